/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/plan_schedule.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- measurement ----------------------------------------------------------------------------- */

#define MEASURE_S 1.0
#define MESSAGE_S 5e-6  /* MPI's part of a small message, both ends */
#define LATENCY_S 20e-6 /* TCP between hosts; far below a unit's time */
#define STORE_BYTES_PER_S 300e6
#define STORE_FILE_S 0.01

struct tick_count {
    uint64_t n;
};

static enum status count_tick(void *ctx, struct err *err)
{
    struct tick_count *t = ctx;
    t->n++;
    return driver_check_stop(err);
}

/* Evaluate and validate the first n rows; *seconds as long as it took. */
static enum status time_rows(struct driver_block *b, const void *embedding, uint64_t n,
                             struct tick_count *ticks, double *seconds, struct err *err)
{
    struct worker_rows rows = {.n_rows = n, .embedding = embedding};
    struct worker_unit *u = NULL;
    double start = clock_s();
    ticks->n = 0;
    enum status st = worker_unit_evaluate(b->worker, &rows, count_tick, ticks, &u, err);
    if (st == ST_OK)
        st = worker_unit_validate(b->worker, &rows, u, NULL, NULL, count_tick, ticks, err);
    *seconds = clock_s() - start;
    worker_unit_free(&u);
    return st;
}

/* Roughly, and at least, what a token takes in all routes and their validation. */
static double row_seconds(const struct driver_block *b)
{
    const double flop_per_s = 1e10;
    double rows = 2;
    for (size_t i = 0; i + 1 < b->n_routes; i++)
        rows += (double)b->profiles[i].evaluation_rows + (double)b->profiles[i].max_rows;
    return rows * graph_block_flops(b->graph) / flop_per_s;
}

/* More rows until the measurement is long enough to be believed; the first, cold one never counts
 * alone. */
static enum status measure_unit(struct driver_block *b, uint64_t unit_rows, struct plan_times *out,
                                struct err *err)
{
    size_t row_bytes = (size_t)b->rows.tensor->shape[1] * dtype_size(b->rows.tensor->dtype);
    struct tick_count ticks = {0};
    double seconds = 0, total = 0;
    uint64_t n = min_u64(unit_rows, row_seconds(b) * 16 > MEASURE_S ? 1 : 16);
    void *embedding = NULL;
    enum status st = mem_alloc((size_t)unit_rows, row_bytes, &embedding, err);
    if (st == ST_OK)
        st = shard_rows_read(&b->rows, 0, unit_rows, embedding, err);
    if (st == ST_OK)
        st = time_rows(b, embedding, n, &ticks, &seconds, err);
    if (seconds > 2 * MEASURE_S)
        total = seconds; /* long enough to be believed, cold or not */
    while (st == ST_OK && total < MEASURE_S) {
        double a_row = seconds / (double)n;
        uint64_t fitting = (uint64_t)fmin((double)unit_rows, MEASURE_S / (a_row + 1e-12));
        n = max_u64(n, min_u64(fitting, n * 8));
        st = time_rows(b, embedding, n, &ticks, &seconds, err);
        total += seconds;
        if (n == unit_rows && total >= MEASURE_S / 4)
            break;
    }
    free(embedding);
    out->measured_rows = n;
    out->measured_s = seconds;
    out->unit_s = seconds * (double)unit_rows / (double)n;
    out->tick_s = seconds / (double)max_u64(1, ticks.n);
    return st;
}

/* Time that rank 0 needs for an answer of one unit: decode the summary and add it up. */
static enum status measure_service(const struct driver_block *b, double *service_s, struct err *err)
{
    struct driver_totals totals = {0};
    struct driver_unit_summary s = {.n_tables = b->n_routes * b->graph->n_tables,
                                    .n_stats = worker_n_stats(b->worker)};
    struct bytes text = {0};
    void *digests = NULL, *constant = NULL, *errors = NULL, *stats = NULL;
    enum status st = driver_totals_make(b, &totals, err);
    if (st == ST_OK)
        st = mem_calloc(s.n_tables, sizeof *s.table_digests, &digests, err);
    if (st == ST_OK)
        st = mem_calloc(s.n_tables, 1, &constant, err);
    if (st == ST_OK)
        st = mem_calloc(s.n_tables, sizeof *s.double_error, &errors, err);
    if (st == ST_OK)
        st = mem_calloc(s.n_stats, sizeof *s.stats, &stats, err);
    s.table_digests = digests;
    s.table_constant = constant;
    s.double_error = errors;
    s.stats = stats;
    if (st == ST_OK)
        st = driver_unit_summary_encode(&s, &text, err);
    double start = clock_s();
    int rounds = 0;
    for (; st == ST_OK && clock_s() - start < 0.01; rounds++) {
        struct bytes_reader r = {.data = text.data, .size = text.size};
        struct driver_unit_summary copy;
        st = driver_unit_summary_decode(&r, &copy, err);
        if (st == ST_OK) {
            totals.unit_seen[0] = 0;
            driver_totals_add(&totals, &copy);
        }
        driver_unit_summary_free(&copy);
    }
    *service_s = (clock_s() - start) / (rounds > 0 ? rounds : 1) + 2 * MESSAGE_S;
    bytes_free(&text);
    driver_unit_summary_free(&s);
    driver_totals_free(&totals);
    return st;
}

/* SHA-256 of the payload is the one serial pass over all bytes. */
static enum status measure_hash(double *bytes_per_s, struct err *err)
{
    enum { SAMPLE = 4 << 20 };
    char hex[SHA256_HEX_SIZE];
    void *data = NULL;
    TRY(mem_calloc(SAMPLE, 1, &data, err));
    double start = clock_s();
    enum status st = sha256_of(data, SAMPLE, hex, err);
    *bytes_per_s = SAMPLE / (clock_s() - start + 1e-9);
    free(data);
    return st;
}

static uint64_t unit_bytes(const struct driver_block *b)
{
    uint64_t row = 0;
    for (size_t i = 0; i < b->graph->n_tables; i++)
        row += b->graph->tables[i].width * dtype_size(b->graph->tables[i].dtype);
    return min_u64(b->grid.unit_rows, b->n_rows) * row * b->n_routes;
}

enum status plan_times_measure(struct driver_block *b, uint64_t n_ranks, uint64_t payload_bytes,
                               struct plan_times *out, struct err *err)
{
    double hash_rate = 1;
    *out = (struct plan_times){.latency_s = LATENCY_S};
    TRY(measure_unit(b, min_u64(b->grid.unit_rows, b->n_rows), out, err));
    TRY(measure_service(b, &out->service_s, err));
    TRY(measure_hash(&hash_rate, err));
    out->unit_s += (double)unit_bytes(b) / STORE_BYTES_PER_S + STORE_FILE_S;
    double writers = (double)min_u64(n_ranks, b->grid.n_units), bytes = (double)payload_bytes;
    /* Read from the unit files, written, read again by the layout check. */
    out->emit_s = 3 * bytes / (STORE_BYTES_PER_S * writers) + bytes / hash_rate + 4 * STORE_FILE_S;
    return ST_OK;
}

/* ---- simulation ------------------------------------------------------------------------------ */

/* Times at which messages reach rank 0, earliest first. */
struct arrivals {
    double *times; /* a binary heap */
    size_t n;
};

static void arrivals_push(struct arrivals *a, double t)
{
    size_t i = a->n++;
    while (i > 0 && a->times[(i - 1) / 2] > t) {
        a->times[i] = a->times[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    a->times[i] = t;
}

static double arrivals_pop(struct arrivals *a)
{
    double first = a->times[0], last = a->times[--a->n];
    size_t i = 0;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= a->n)
            break;
        if (child + 1 < a->n && a->times[child + 1] < a->times[child])
            child++;
        if (a->times[child] >= last)
            break;
        a->times[i] = a->times[child];
        i = child;
    }
    a->times[i] = last;
    return first;
}

struct simulation {
    const struct shard_grid *grid;
    const struct plan_times *times;
    struct arrivals arrivals;
    uint32_t next;   /* shard to hand out */
    double now;      /* rank 0's clock */
    double own_left; /* of the shard rank 0 works on; 0: none */
    double served_s; /* spent with messages */
    double work_s;   /* of all shards */
    uint64_t messages, first_shards;
    uint64_t fresh; /* ranks whose first request is still to come */
    bool root_works;
};

static double shard_seconds(const struct simulation *s, uint32_t shard)
{
    uint64_t first = 0, count = 0, row = 0, n = 0, rows = 0;
    shard_grid_units(s->grid, shard, &first, &count);
    for (uint64_t u = first; u < first + count; u++) {
        /* All units but the last are full; ask about that one alone. */
        if (u + 1 < s->grid->n_units) {
            rows += s->grid->unit_rows;
            continue;
        }
        shard_grid_rows(s->grid, u, &row, &n);
        rows += n;
    }
    return s->times->unit_s * (double)rows / (double)min_u64(s->grid->unit_rows, s->grid->n_rows);
}

/* Rank 0 deals with all messages that are there. */
static void serve(struct simulation *s)
{
    while (s->arrivals.n > 0 && s->arrivals.times[0] <= s->now) {
        (void)arrivals_pop(&s->arrivals);
        s->messages++;
        s->now += s->times->service_s;
        s->served_s += s->times->service_s;
        if (s->next >= s->grid->n_shards)
            continue;
        double seconds = shard_seconds(s, s->next++);
        s->work_s += seconds;
        s->messages++;
        if (s->fresh > 0) {
            s->fresh--;
            s->first_shards++;
        }
        arrivals_push(&s->arrivals, s->now + seconds + 2 * s->times->latency_s);
    }
}

/* Work on the own shard until the next look at messages that finds one. */
static void work(struct simulation *s)
{
    double step = s->own_left;
    if (s->arrivals.n > 0 && s->arrivals.times[0] < s->now + s->own_left) {
        double tick = fmax(s->times->tick_s, 1e-9);
        double ticks = ceil((s->arrivals.times[0] - s->now) / tick);
        step = fmin(s->own_left, fmax(1, ticks) * tick);
    }
    s->now += step;
    s->own_left = step >= s->own_left ? 0 : s->own_left - step;
}

static void run(struct simulation *s)
{
    for (;;) {
        serve(s);
        if (s->own_left <= 0 && s->next < s->grid->n_shards) {
            s->own_left = shard_seconds(s, s->next++);
            s->work_s += s->own_left;
            s->root_works = true;
        }
        if (s->own_left > 0)
            work(s);
        else if (s->arrivals.n > 0)
            s->now = fmax(s->now, s->arrivals.times[0]);
        else
            break;
    }
}

enum status plan_schedule_simulate(const struct shard_grid *grid, uint64_t n_ranks,
                                   const struct plan_times *times, struct plan_schedule *out,
                                   struct err *err)
{
    struct simulation s = {.grid = grid, .times = times, .fresh = n_ranks - 1};
    void *heap = NULL;
    size_t n = 0;
    *out = (struct plan_schedule){0};
    if (!u64_to_size(n_ranks, &n))
        return err_nomem(err, SIZE_MAX);
    TRY(mem_calloc(n, sizeof *s.arrivals.times, &heap, err));
    s.arrivals.times = heap;
    for (size_t i = 1; i < n; i++)
        arrivals_push(&s.arrivals, times->latency_s);
    run(&s);
    free(heap);
    out->makespan_s = s.now;
    out->efficiency = s.now > 0 ? s.work_s / (s.now * (double)n_ranks) : 1;
    out->messages = s.messages;
    out->messages_per_s = s.now > 0 ? (double)s.messages / s.now : 0;
    out->driver_share = s.now > 0 ? s.served_s / s.now : 0;
    out->busy_ranks = s.first_shards + s.root_works;
    /* Unit files, a journal a working rank, lock, tables.h5, progress, run, report; the recipe:
     * text, payload, report. */
    out->files = grid->n_units + out->busy_ranks + 5 + 3;
    return ST_OK;
}
