/* SPDX-License-Identifier: Apache-2.0 */
/* Rank 0 hands out shards and works too between requests.
 *
 * Protocol.  A worker sends READY once, then one ANSWER for every SHARD it got; an answer is also
 * the request for more.  Workers without work are kept waiting until all shards are done, so that a
 * signal that one of them gets is still reported.  STOP ends a worker: waiting, or inside a unit
 * (its tick sees it).  On STOP it answers what it owes, sends READY as its goodbye and leaves; the
 * driver receives until it has every goodbye, so nothing is left in flight.
 *
 * A refusal of policy (non-finite, positions) is that of the lowest failing unit: units below it
 * are still evaluated, units above are not handed out.  So the reason does not depend on the
 * schedule. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "driver/driver_internal.h"

static const uint32_t no_shard = UINT32_MAX;

static void nap(void)
{
    struct timespec t = {.tv_nsec = 1000000};
    nanosleep(&t, NULL);
}

/* ---- what both sides do ---------------------------------------------------------------------- */

struct shard_run {
    struct comm *comm;
    struct driver_block *block;
    struct shard_store *store;
    const struct driver_opts *opts;
};

static bool is_policy(enum status st)
{
    return st == ST_NONFINITE || st == ST_POSITIONS;
}

/* Test hook: a unit takes this many milliseconds longer, in steps that see signals. */
static enum status slow_down(worker_tick_fn tick, void *tick_ctx, struct err *err)
{
    const char *text = fault_value("TOKENTAB_UNIT_MS");
    uint64_t ms = 0;
    if (text == NULL || !str_to_u64(text, &ms))
        return ST_OK;
    for (double end = clock_s() + (double)ms / 1000; clock_s() < end;) {
        TRY(tick(tick_ctx, err));
        nap();
    }
    return ST_OK;
}

/* Evaluate the units of a shard; answer = {shard, status, message, failed unit, n, summaries}. */
static void shard_answer(const struct shard_run *run, uint32_t shard, worker_tick_fn tick,
                         void *tick_ctx, struct bytes *answer)
{
    uint64_t first = 0, count = 0, unit = 0, done = 0;
    struct bytes summaries = {0};
    struct err err = {0};
    enum status st = ST_OK;
    shard_grid_units(&run->block->grid, shard, &first, &count);
    for (unit = first; unit < first + count && st == ST_OK; unit++) {
        struct driver_unit_summary s;
        st = driver_check_stop(&err);
        if (st == ST_OK)
            st = slow_down(tick, tick_ctx, &err);
        if (st == ST_OK)
            st = driver_unit_run(run->block, run->store, unit, run->opts, tick, tick_ctx, &s, &err);
        if (st != ST_OK)
            break;
        st = driver_unit_summary_encode(&s, &summaries, &err);
        driver_unit_summary_free(&s);
        done++;
    }
    if (st == ST_OK && fault_hit("schedule_answer"))
        st = err_set(&err, ST_IO, "answer of shard %lu: fault point", (unsigned long)shard);
    /* A refusal is about the unit, whoever met it; other faults are a rank's. */
    if (st != ST_OK && !is_policy(st) && comm_size(run->comm) > 1)
        err_prefix(&err, "rank %d (%s)", comm_rank(run->comm), comm_host(run->comm));
    answer->size = 0;
    bytes_put_u32(answer, shard);
    bytes_put_u32(answer, (uint32_t)st);
    bytes_put_str(answer, err.message);
    bytes_put_u64(answer, unit);
    bytes_put_u64(answer, done);
    bytes_append(answer, summaries.data, summaries.size);
    bytes_free(&summaries);
}

/* ---- the driver's side ----------------------------------------------------------------------- */

/* What rank 0 knows of another rank. */
enum rank_state { RANK_SILENT, RANK_WAITING, RANK_BUSY };

struct schedule {
    struct comm *comm;
    struct shard_run run;
    struct driver_totals *totals;
    struct driver_progress_state progress;
    uint32_t next, end, stride; /* shards next, next + stride, ... below end */
    uint64_t *shards_of;        /* [size]: answered by each rank */
    enum rank_state *ranks;     /* [size] */
    int outstanding, goodbyes;
    bool busy;     /* rank 0 evaluates a shard itself */
    bool stopping; /* hand out nothing more, and have told all */
    uint64_t shards_done, shards_failed;
    uint64_t failed_unit; /* lowest unit refused by policy */
    struct err failure;   /* its message, or the first other failure */
    bool fatal;
};

static void note_failure(struct schedule *s, enum status st, const char *message, uint64_t unit)
{
    if (is_policy(st)) {
        if (!s->fatal && unit < s->failed_unit) {
            s->failed_unit = unit;
            err_clear(&s->failure);
            err_set(&s->failure, st, "%s", message);
        }
    } else if (!s->fatal) {
        s->fatal = true;
        err_clear(&s->failure);
        err_set(&s->failure, st, "%s", message);
    }
}

static bool shard_left(const struct schedule *s)
{
    if (s->fatal || s->stopping || s->next >= s->end)
        return false;
    uint64_t first = 0, count = 0;
    shard_grid_units(&s->run.block->grid, s->next, &first, &count);
    return first < s->failed_unit;
}

static uint32_t shard_take(struct schedule *s)
{
    uint32_t shard = s->next;
    s->next = s->end - s->next > s->stride ? s->next + s->stride : s->end;
    return shard;
}

/* Counts for the status verb. */
static void note_progress(struct schedule *s)
{
    struct driver_run_file *f = s->totals->run_file;
    driver_progress_step(&s->progress, s->totals->rows_done);
    if (f == NULL)
        return;
    f->now.shards_done = s->shards_done;
    f->now.shards_failed = s->shards_failed;
    f->now.shards_in_flight = (uint64_t)s->outstanding + s->busy;
    f->now.units_done = s->totals->units_reused + s->totals->units_evaluated;
    f->now.units_reused = s->totals->units_reused;
    f->now.tokens_done = s->totals->rows_done;
    if (s->failure.message[0] != '\0' && f->now.last_error == NULL)
        f->now.last_error = str_dup(s->failure.message);
    driver_run_file_step(f);
}

static void take_answer(struct schedule *s, const struct bytes *b, int source)
{
    struct bytes_reader r = {.data = b->data, .size = b->size};
    uint32_t shard = bytes_get_u32(&r);
    enum status st = (enum status)bytes_get_u32(&r);
    char *message = bytes_get_str(&r);
    uint64_t unit = bytes_get_u64(&r), n = bytes_get_u64(&r);
    if (b->failed || r.failed || message == NULL)
        comm_abort(s->comm, status_exit_code(ST_INTERNAL), "answer of rank %d is cut", source);
    for (uint64_t i = 0; i < n; i++) {
        struct driver_unit_summary summary;
        struct err err = {0};
        if (driver_unit_summary_decode(&r, &summary, &err) == ST_OK)
            driver_totals_add(s->totals, &summary);
        else
            note_failure(s, err.st, err.message, unit);
        driver_unit_summary_free(&summary);
    }
    if (st != ST_OK)
        note_failure(s, st, message, unit);
    if (shard != no_shard) {
        s->shards_done += st == ST_OK;
        s->shards_of[source] += st == ST_OK;
        s->shards_failed += st != ST_OK && st != ST_STOPPED;
    }
    if (log_is_json()) {
        char fields[96];
        snprintf(fields, sizeof fields, "\"shard\": %lu, \"rank\": %d, \"status\": %d",
                 (unsigned long)shard, source, (int)st);
        log_event("shard_done", fields);
    }
    free(message);
}

static void send_shard(struct schedule *s, int rank, uint32_t shard)
{
    struct bytes b = {0};
    bytes_put_u32(&b, shard);
    if (b.failed)
        comm_abort(s->comm, status_exit_code(ST_NOMEM), "out of memory for a message");
    comm_send(s->comm, rank, COMM_TAG_SHARD, &b);
    bytes_free(&b);
    s->ranks[rank] = RANK_BUSY;
    s->outstanding++;
}

static void stop_all(struct schedule *s)
{
    struct bytes none = {0};
    if (s->stopping)
        return;
    s->stopping = true;
    for (int r = 1; r < comm_size(s->comm); r++)
        comm_send(s->comm, r, COMM_TAG_STOP, &none);
}

/* Receive all waiting messages and give waiting ranks work. */
static void serve(struct schedule *s)
{
    while (comm_poll(s->comm, -1)) {
        struct bytes b = {0};
        struct err err = {0};
        int source = 0;
        enum comm_tag tag = COMM_TAG_READY;
        if (comm_receive(s->comm, -1, &source, &tag, &b, &err) != ST_OK)
            comm_abort(s->comm, status_exit_code(err.st), "%s", err.message);
        if (tag == COMM_TAG_ANSWER) {
            struct bytes_reader r = {.data = b.data, .size = b.size};
            bool owed = bytes_get_u32(&r) != no_shard;
            take_answer(s, &b, source);
            s->outstanding -= owed;
            if (owed)
                s->ranks[source] = RANK_WAITING;
        } else if (s->ranks[source] == RANK_SILENT) {
            s->ranks[source] = RANK_WAITING; /* its first READY, even when all is over by now */
        } else {
            s->goodbyes++;
        }
        bytes_free(&b);
    }
    note_progress(s);
    if (s->fatal)
        stop_all(s);
    for (int r = 1; r < comm_size(s->comm) && !s->stopping; r++)
        if (s->ranks[r] == RANK_WAITING && shard_left(s))
            send_shard(s, r, shard_take(s));
}

static enum status driver_tick(void *ctx, struct err *err)
{
    struct schedule *s = ctx;
    serve(s);
    if (s->fatal)
        return err_set(err, s->failure.st, "%s", s->failure.message);
    return driver_check_stop(err);
}

/* Imbalance is a matter of the machines: said, not judged. */
static void tell_balance(const struct schedule *s, double seconds)
{
    int least = 0, most = 0, size = comm_size(s->comm);
    for (int r = 1; r < size; r++) {
        least = s->shards_of[r] < s->shards_of[least] ? r : least;
        most = s->shards_of[r] > s->shards_of[most] ? r : most;
    }
    if (size > 1)
        log_info("%s: %llu shards in %.2f s on %d ranks: %llu (rank %d) to %llu (rank %d) each",
                 s->run.block->graph->name, (unsigned long long)s->shards_done, seconds, size,
                 (unsigned long long)s->shards_of[least], least,
                 (unsigned long long)s->shards_of[most], most);
}

static void drive(struct schedule *s)
{
    struct bytes answer = {0};
    for (;;) {
        struct err err = {0};
        serve(s);
        if (!s->fatal && driver_check_stop(&err) != ST_OK)
            note_failure(s, err.st, err.message, 0);
        if (s->fatal || (!shard_left(s) && s->outstanding == 0))
            break;
        if (shard_left(s)) {
            s->busy = true;
            shard_answer(&s->run, shard_take(s), driver_tick, s, &answer);
            s->busy = false;
            take_answer(s, &answer, 0);
        } else {
            nap();
        }
    }
    stop_all(s);
    while (s->goodbyes < comm_size(s->comm) - 1) {
        serve(s);
        nap();
    }
    bytes_free(&answer);
}

/* ---- the worker's side ----------------------------------------------------------------------- */

struct worker_side {
    struct comm *comm;
    bool stopped; /* STOP has been received */
};

static enum status worker_tick(void *ctx, struct err *err)
{
    struct worker_side *w = ctx;
    if (!w->stopped && comm_poll(w->comm, 0)) {
        /* Nothing but STOP comes while a shard is being evaluated, and it comes once: it counts
         * even where memory is short for it. */
        struct bytes b = {0};
        int source = 0;
        enum comm_tag tag = COMM_TAG_STOP;
        w->stopped = true;
        TRY(comm_receive(w->comm, 0, &source, &tag, &b, err));
        bytes_free(&b);
    }
    if (w->stopped)
        return err_set(err, ST_STOPPED, "stopped by rank 0");
    return driver_check_stop(err);
}

static void report_signal(struct comm *comm)
{
    struct bytes b = {0};
    struct err err = {0};
    enum status st = driver_check_stop(&err);
    err_prefix(&err, "rank %d (%s)", comm_rank(comm), comm_host(comm));
    bytes_put_u32(&b, no_shard);
    bytes_put_u32(&b, (uint32_t)st);
    bytes_put_str(&b, err.message);
    bytes_put_u64(&b, UINT64_MAX);
    bytes_put_u64(&b, 0);
    comm_send(comm, 0, COMM_TAG_ANSWER, &b);
    bytes_free(&b);
}

static void work(struct comm *comm, const struct shard_run *run)
{
    struct worker_side w = {.comm = comm};
    struct bytes b = {0}, none = {0};
    bool reported = false;
    comm_send(comm, 0, COMM_TAG_READY, &none);
    while (!w.stopped) {
        if (!reported && driver_stop_requested()) {
            report_signal(comm);
            reported = true;
        }
        if (!comm_poll(comm, 0)) {
            nap();
            continue;
        }
        struct err err = {0};
        int source = 0;
        enum comm_tag tag = COMM_TAG_STOP;
        if (comm_receive(comm, 0, &source, &tag, &b, &err) != ST_OK)
            comm_abort(comm, status_exit_code(err.st), "%s", err.message);
        if (tag == COMM_TAG_STOP)
            break;
        struct bytes_reader r = {.data = b.data, .size = b.size};
        uint32_t shard = bytes_get_u32(&r);
        shard_answer(run, shard, worker_tick, &w, &b);
        comm_send(comm, 0, COMM_TAG_ANSWER, &b);
    }
    comm_send(comm, 0, COMM_TAG_READY, &none);
    bytes_free(&b);
}

/* ---- both ------------------------------------------------------------------------------------ */

/* Rank 0's outcome, on every rank. */
static enum status share_outcome(struct comm *comm, const struct err *failure, struct err *err)
{
    struct bytes b = {0};
    if (comm_rank(comm) == 0) {
        bytes_put_u32(&b, (uint32_t)failure->st);
        bytes_put_str(&b, failure->message);
    }
    enum status st = comm_bcast_bytes_all(comm, 0, &b, err);
    if (st == ST_OK) {
        struct bytes_reader r = {.data = b.data, .size = b.size};
        st = (enum status)bytes_get_u32(&r);
        char *message = bytes_get_str(&r);
        if (st != ST_OK)
            st = err_set(err, st, "%s", message == NULL ? "" : message);
        free(message);
    }
    bytes_free(&b);
    return st;
}

enum status driver_schedule_all(struct comm *comm, struct driver_block *b,
                                struct shard_store *store, const struct driver_opts *opts,
                                struct driver_totals *totals, struct err *err)
{
    struct shard_run run = {.comm = comm, .block = b, .store = store, .opts = opts};
    struct schedule s = {.comm = comm,
                         .run = run,
                         .totals = totals,
                         .next = (uint32_t)opts->task_index,
                         .stride = opts->task_count > 0 ? (uint32_t)opts->task_count : 1,
                         .end = b->grid.n_shards,
                         .failed_unit = UINT64_MAX};
    void *ranks = NULL, *shards_of = NULL;
    enum status st = ST_OK;
    if (comm_rank(comm) == 0)
        st = mem_calloc((size_t)comm_size(comm), sizeof *s.ranks, &ranks, err);
    if (st == ST_OK && comm_rank(comm) == 0)
        st = mem_calloc((size_t)comm_size(comm), sizeof *s.shards_of, &shards_of, err);
    st = comm_agree(comm, st, err);
    if (st != ST_OK) {
        free(ranks);
        free(shards_of);
        return st;
    }
    s.ranks = ranks;
    s.shards_of = shards_of;
    if (comm_rank(comm) == 0) {
        uint64_t rows = totals->run_file != NULL ? totals->run_file->now.tokens : b->n_rows;
        driver_progress_start(&s.progress, opts, b->graph->name, rows);
        double start = clock_s();
        drive(&s);
        totals->schedule_s = clock_s() - start;
        driver_progress_end(&s.progress);
        tell_balance(&s, totals->schedule_s);
    } else {
        work(comm, &run);
    }
    free(ranks);
    free(shards_of);
    return share_outcome(comm, &s.failure, err);
}
