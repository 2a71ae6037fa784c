/* SPDX-License-Identifier: Apache-2.0 */
/* The main job: evaluate, reduce, judge, emit, for each block of a spec. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/driver_internal.h"
#include "driver/enclosing.h"
#include "driver/storage.h"

/* ---- names ----------------------------------------------------------------------------------- */

struct places {
    char *out, *work; /* of the run */
};

static char *without_slash(const char *path)
{
    char *copy = str_dup(path);
    for (size_t n = copy == NULL ? 0 : strlen(copy); n > 1 && copy[n - 1] == '/'; n--)
        copy[n - 1] = '\0';
    return copy;
}

static enum status places_make(const struct driver_opts *o, struct places *p, struct err *err)
{
    *p = (struct places){0};
    if (o->out == NULL)
        return err_set(err, ST_USAGE, "compile: --out DIR is missing");
    p->out = without_slash(o->out);
    if (p->out != NULL)
        p->work = o->work != NULL ? without_slash(o->work) : str_printf("%s.work", p->out);
    if (p->out == NULL || p->work == NULL)
        return err_nomem(err, 1);
    if (strcmp(p->out, p->work) == 0)
        return err_set(err, ST_USAGE, "compile: --out and --work are the same folder, %s", p->out);
    return ST_OK;
}

static void places_free(struct places *p)
{
    free(p->out);
    free(p->work);
}

/* ---- what is current ------------------------------------------------------------------------- */

enum status driver_inputs_digest(const struct driver_job *job, const struct driver_block *b,
                                 const struct driver_totals *t, char hex[SHA256_HEX_SIZE],
                                 struct err *err)
{
    struct bytes text = {0};
    char a[32], r[32];
    bytes_printf(&text, "block %s\nrows %llu\nvocab %llu\nrows_in_checkpoint %llu\n",
                 b->graph->name, (unsigned long long)b->n_rows,
                 (unsigned long long)job->spec->vocab,
                 (unsigned long long)b->graph->rows_in_checkpoint);
    bytes_printf(&text, "tolerance %s %s\nstorage %d\n",
                 str_double(job->spec->tolerance_absolute, a, sizeof a),
                 str_double(job->spec->tolerance_relative, r, sizeof r), (int)job->spec->storage);
    bytes_printf(&text, "source %llu %llu %llu %llu\n", (unsigned long long)b->source.logical_bytes,
                 (unsigned long long)b->source.unique_bytes,
                 (unsigned long long)b->source.retained_logical_bytes,
                 (unsigned long long)b->source.retained_unique_bytes);
    if (job->ids != NULL) {
        struct digest d = digest_of(job->ids, job->n_ids * sizeof *job->ids);
        char id_hex[DIGEST_HEX_SIZE];
        bytes_printf(&text, "ids %s\n", digest_hex(&d, id_hex));
    }
    for (size_t i = 0; i < job->spec->n_provenance; i++)
        bytes_printf(&text, "provenance %s %s\n", job->spec->provenance[i].name,
                     job->spec->provenance[i].value);
    bytes_printf(&text, "payload %s\n", job->packed ? "packed" : "safetensors");
    for (uint64_t u = 0; u < t->n_units; u++)
        bytes_printf(&text, "%s\n", t->fingerprints[u]);
    enum status st =
        text.failed ? err_nomem(err, text.size) : sha256_of(text.data, text.size, hex, err);
    bytes_free(&text);
    return st;
}

bool driver_recipe_is_current(const char *out, const char *inputs_hex)
{
    char *path = path_join(out, LOOKUP_RECIPE_FILE);
    bool there = path != NULL && file_exists(path), current = false;
    free(path);
    if (!there)
        return false;
    struct tokentab_open_opts opts = {.flags = TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL};
    struct tokentab_recipe *recipe = NULL;
    if (tokentab_open(out, &opts, &recipe, NULL) == TOKENTAB_OK) {
        const struct format_recipe *r = lookup_recipe(recipe);
        for (size_t i = 0; i < r->n_provenance; i++)
            current = current || (strcmp(r->provenance[i].name, "inputs") == 0 &&
                                  strcmp(r->provenance[i].value, inputs_hex) == 0);
    }
    tokentab_close(&recipe);
    return current;
}

/* ---- one block ------------------------------------------------------------------------------- */

struct block_run {
    struct driver_context *ctx;
    struct driver_job *job;
    struct driver_block *b;
    const char *out, *work; /* of the block; work is its store's folder */
    struct shard_store *store;
    struct driver_totals totals;
    struct driver_layout layout;
    struct driver_verdict verdict;
    struct driver_run_file run_file;
    bool unchanged;
    double seconds;
};

static enum status write_report(const struct block_run *r, const struct bytes *report,
                                struct err *err)
{
    char *path = path_join(r->work, "report.json");
    enum status st =
        path == NULL ? err_nomem(err, 1) : file_publish(path, report->data, report->size, err);
    free(path);
    return st;
}

static enum status write_tables_file(const struct block_run *r, struct err *err)
{
    size_t n_outputs = r->b->graph->n_tables, n = r->b->n_routes * n_outputs;
    void *tables = NULL, *names = NULL;
    enum status st = mem_calloc(n, sizeof(struct format_shard_table), &tables, err);
    if (st == ST_OK)
        st = mem_calloc(r->b->n_routes, 32, &names, err);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const struct graph_output *o = &r->b->graph->tables[i % n_outputs];
        char *route = (char *)names + (i / n_outputs) * 32;
        lookup_route_name(i / n_outputs, route, 32);
        ((struct format_shard_table *)tables)[i] = (struct format_shard_table){
            .route = route, .output = o->name, .dtype = o->dtype, .width = o->width};
    }
    if (st == ST_OK)
        st = shard_store_virtual(r->store, &r->b->grid, tables, n, err);
    free(tables);
    free(names);
    return st;
}

/* A policy refusal writes its report and keeps its status. */
static enum status refuse(const struct block_run *r, enum status st, struct err *err)
{
    if (st != ST_NONFINITE && st != ST_POSITIONS && st != ST_STRUCTURE)
        return st;
    if (comm_rank(r->ctx->comm) != 0)
        return st;
    struct bytes report = {0};
    struct err ignored = {0};
    if (driver_report_refused(r->job, r->b, err, &report, &ignored) != ST_OK ||
        file_make_dirs(r->work, &ignored) != ST_OK || write_report(r, &report, &ignored) != ST_OK)
        log_warn("report.json: %s", ignored.message);
    bytes_free(&report);
    return st;
}

/* Judge and publish; *report is rank 0's.  Collective. */
static enum status judge_and_emit(struct block_run *r, struct bytes *report, struct err *err)
{
    struct comm *comm = r->ctx->comm;
    bool root = comm_rank(comm) == 0;
    char inputs[SHA256_HEX_SIZE] = "";
    enum status st = ST_OK;
    uint64_t verdict = ST_OK;
    if (root) {
        driver_verdict_make(r->job, r->b, &r->totals, &r->layout, &r->verdict);
        verdict = (uint64_t)r->verdict.st;
        st = driver_report_make(r->job, r->b, &r->totals, &r->layout, &r->verdict, r->store, report,
                                err);
        if (st == ST_OK)
            st = write_report(r, report, err);
        if (st == ST_OK)
            st = driver_inputs_digest(r->job, r->b, &r->totals, inputs, err);
        if (st == ST_OK && r->verdict.st == ST_OK)
            r->unchanged = driver_recipe_is_current(r->out, inputs);
        bytes_put_u8(report, '\0');
        if (st == ST_OK && report->failed)
            st = err_nomem(err, report->size);
    }
    TRY(comm_agree(comm, st, err));
    verdict = comm_max_u64_all(comm, verdict);
    r->verdict.st = (enum status)verdict;
    r->unchanged = comm_max_u64_all(comm, r->unchanged) != 0;
    if (r->verdict.st != ST_OK)
        return err_set(err, r->verdict.st, "block %s: %s: %s", r->b->graph->name,
                       driver_status_word(r->verdict.st), r->verdict.reason);
    if (r->unchanged)
        return ST_OK;
    return driver_emit_all(comm, r->job, r->b, r->store, &r->layout, &r->verdict, &r->totals,
                           r->out, r->ctx->opts, (const char *)report->data, err);
}

/* A checkpoint that changed is the cause of whatever else was found in it.  Collective. */
static enum status checkpoint_unchanged_all(const struct block_run *r, struct err *err)
{
    struct err changed = {0};
    enum status st = format_checkpoint_unchanged(r->job->checkpoint, &changed);
    st = comm_agree(r->ctx->comm, st, &changed);
    if (st != ST_OK)
        *err = changed;
    return st;
}

/* What the array tasks left out, all of it, before anything is read. */
static enum status check_all_stored(const struct block_run *r, struct err *err)
{
    uint64_t n_units = r->b->grid.n_units, missing = 0, first = 0;
    struct bytes ranges = {0};
    enum { RANGES_SHOWN = 20 };
    unsigned n_ranges = 0;
    bool before = false; /* was the unit before missing? */
    for (uint64_t u = 0; u <= n_units; u++) {
        char *path = u < n_units ? shard_store_unit_path(r->store, u) : NULL;
        bool lacks = u < n_units && path != NULL && !file_exists(path);
        if (u < n_units && path == NULL) {
            bytes_free(&ranges);
            return err_nomem(err, 1);
        }
        free(path);
        missing += lacks;
        if (lacks && !before)
            first = u;
        if (!lacks && before && ++n_ranges <= RANGES_SHOWN) {
            bytes_printf(&ranges, "%s%llu", n_ranges == 1 ? "" : ", ", (unsigned long long)first);
            if (first + 1 < u)
                bytes_printf(&ranges, "-%llu", (unsigned long long)(u - 1));
        }
        before = lacks;
    }
    enum status st = ST_OK;
    bytes_put_u8(&ranges, '\0');
    if (missing > 0)
        st = err_set(err, ST_DIFFERS,
                     "block %s: %llu of %llu units are not stored yet: %s%s; run their array tasks",
                     r->b->graph->name, (unsigned long long)missing, (unsigned long long)n_units,
                     ranges.failed ? "" : (const char *)ranges.data,
                     n_ranges > RANGES_SHOWN ? ", ..." : "");
    bytes_free(&ranges);
    return st;
}

static enum status run_block(struct block_run *r, struct err *err)
{
    struct comm *comm = r->ctx->comm;
    const struct driver_opts *o = r->ctx->opts;
    bool root = comm_rank(comm) == 0;
    struct bytes report = {0};
    enum status st = comm_agree(comm, driver_block_prepare(r->job, r->b, err), err);
    if (st != ST_OK)
        return refuse(r, st, err);
    TRY(driver_block_agree_all(comm, r->job, r->b, err));
    if (root)
        st = driver_totals_make(r->b, &r->totals, err);
    if (root && st == ST_OK && o->reduce)
        st = check_all_stored(r, err);
    r->totals.run_file = root ? &r->run_file : NULL;
    TRY(comm_agree(comm, st, err));
    st = driver_schedule_all(comm, r->b, r->store, o, &r->totals, err);
    if (st != ST_STOPPED)
        TRY(checkpoint_unchanged_all(r, err));
    if (st != ST_OK)
        return refuse(r, st, err);
    if (o->task_count > 0)
        return ST_OK; /* a task of an array only fills the store */
    st = shard_store_refresh(r->store, err);
    if (st == ST_OK && root)
        st = write_tables_file(r, err);
    TRY(comm_agree(comm, st, err));
    TRY(driver_reduce_all(comm, r->b, r->store, &r->totals, &r->layout, err));
    st = judge_and_emit(r, &report, err);
    bytes_free(&report);
    return st;
}

/* Policy outcomes of one block do not keep the others from being compiled. */
static bool is_outcome(enum status st)
{
    return st == ST_TOLERANCE || st == ST_DECISION || st == ST_STORAGE || st == ST_NONFINITE ||
           st == ST_POSITIONS;
}

/* Last word of the progress file. */
static const char *end_state(const struct driver_opts *o, enum status st)
{
    if (st == ST_STOPPED)
        return "stopped";
    if (st != ST_OK && !is_outcome(st))
        return "failed";
    return o->task_count > 0 && st == ST_OK ? "stored" : driver_status_word(st);
}

/* False where there is no recipe yet (a part of a job, a region of an enclosing model). */
static bool measure_recipe(const char *out, struct driver_storage *bytes)
{
    struct tokentab_recipe *recipe = NULL;
    struct err ignored = {0};
    char *path = path_join(out, LOOKUP_RECIPE_FILE);
    bool there = path != NULL && file_exists(path) &&
                 tokentab_open(out, NULL, &recipe, NULL) == TOKENTAB_OK &&
                 driver_storage_measure(out, lookup_recipe(recipe), bytes, &ignored) == ST_OK;
    tokentab_close(&recipe);
    free(path);
    return there;
}

/* ---- results --------------------------------------------------------------------------------- */

/* A recipe that this run did not write, although it ended without one of its own. */
static bool keeps_recipe(const char *out)
{
    char *path = path_join(out, LOOKUP_RECIPE_FILE);
    bool there = path != NULL && file_exists(path);
    free(path);
    return there;
}

static void kept_text(const struct block_run *r, enum status st, struct bytes *out)
{
    if (st != ST_OK && keeps_recipe(r->out))
        bytes_printf(out, "  %s still holds the recipe of an earlier run\n", r->out);
}

static void result_text(struct block_run *r, enum status st, const struct err *err)
{
    struct bytes *out = &r->ctx->result;
    char before[32], after[32];
    const char *name = r->b->graph->name;
    if (r->ctx->opts->task_count > 0 && st == ST_OK) {
        bytes_printf(out, "%s: part %llu of %llu stored\n", name,
                     (unsigned long long)r->ctx->opts->task_index,
                     (unsigned long long)r->ctx->opts->task_count);
        return;
    }
    bytes_printf(out, "%s: %s\n", name, driver_status_word(st));
    if (st != ST_OK && r->verdict.st == ST_OK) {
        bytes_printf(out, "  %s\n", err->message);
        kept_text(r, st, out);
        return;
    }
    if (r->verdict.reason[0] != '\0')
        bytes_printf(out, "  %s\n", r->verdict.reason);
    kept_text(r, st, out);
    bytes_printf(out, "  tokens %llu, units %llu (%llu reused), tables %zu distinct of %zu\n",
                 (unsigned long long)r->b->n_rows, (unsigned long long)r->totals.n_units,
                 (unsigned long long)r->totals.units_reused, r->layout.n_tables,
                 r->layout.n_sources);
    bytes_printf(out, "  bytes before %llu (%s), after %llu (%s): %s\n",
                 (unsigned long long)r->verdict.logical_before,
                 str_bytes(r->verdict.logical_before, before, sizeof before),
                 (unsigned long long)r->verdict.logical_after,
                 str_bytes(r->verdict.logical_after, after, sizeof after),
                 r->verdict.shrinks ? "shrinks" : "does not shrink");
    struct driver_storage bytes = {0};
    if (st == ST_OK && measure_recipe(r->out, &bytes)) {
        bytes_printf(out, "  ");
        driver_storage_text(&bytes, out);
    }
    /* A recipe of an enclosing model is published with the model, or not at all. */
    if (st == ST_OK && (r->job->enclosing == NULL || r->unchanged))
        bytes_printf(out, "  recipe %s%s\n", r->out, r->unchanged ? " (unchanged)" : "");
}

static void result_json(const struct block_run *r, enum status st, const struct err *err,
                        struct format_writer *w)
{
    struct driver_storage bytes = {0};
    format_write_object(w, NULL);
    format_write_string(w, "block", r->b->graph->name);
    format_write_string(w, "status", end_state(r->ctx->opts, st));
    format_write_u64(w, "exit_code", (uint64_t)status_exit_code(st));
    if (st != ST_OK)
        format_write_string(w, "reason",
                            r->verdict.reason[0] != '\0' ? r->verdict.reason : err->message);
    format_write_u64(w, "tokens", r->b->n_rows);
    format_write_u64(w, "units", r->b->grid.n_units);
    format_write_u64(w, "shards", r->b->grid.n_shards);
    format_write_u64(w, "units_reused", r->totals.units_reused);
    format_write_u64(w, "units_evaluated", r->totals.units_evaluated);
    format_write_u64(w, "distinct_tables", r->layout.n_tables);
    format_write_u64(w, "full_compares", r->layout.compares);
    format_write_u64(w, "logical_before", r->verdict.logical_before);
    format_write_u64(w, "logical_after", r->verdict.logical_after);
    format_write_u64(w, "unique_before", r->verdict.unique_before);
    format_write_u64(w, "unique_after", r->verdict.unique_after);
    format_write_bool(w, "shrinks", r->verdict.shrinks);
    if (st == ST_OK && r->ctx->opts->task_count == 0 && measure_recipe(r->out, &bytes))
        driver_storage_json(&bytes, w);
    format_write_bool(w, "unchanged", r->unchanged);
    if (st != ST_OK)
        format_write_bool(w, "previous_recipe_kept", keeps_recipe(r->out));
    format_write_string(w, "recipe", r->out);
    format_write_string(w, "work", r->work);
    format_write_double(w, "schedule_seconds", r->totals.schedule_s);
    format_write_double(w, "seconds", r->seconds);
    format_write_end_object(w);
}

/* WORK/run.json: what promises nothing.  `blocks` is the array that --json prints too. */
static void write_run_file(const struct driver_context *ctx, const struct driver_job *job,
                           const char *work, double seconds, const char *blocks)
{
    struct format_writer w = {.pretty = true};
    struct err ignored = {0};
    char cpu[KERNELS_FLAGS_SIZE];
    char *path = path_join(work, "run.json");
    kernels_cpu_text(cpu, sizeof cpu);
    format_write_object(&w, NULL);
    format_write_u64(&w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(&w, "version", DRIVER_VERSION);
    format_write_u64(&w, "ranks", (uint64_t)comm_size(ctx->comm));
    format_write_string(&w, "host", comm_host(ctx->comm));
    format_write_u64(&w, "pid", (uint64_t)getpid());
    format_write_string(&w, "mpi", comm_library());
    format_write_string(&w, "cpu", cpu);
    driver_write_environment(&w, job->kernels);
    format_write_double(&w, "seconds", seconds);
    format_write_raw(&w, "blocks", blocks);
    format_write_end_object(&w);
    format_write_finish(&w);
    /* Where this cannot be written the run has failed with a better message, or soon will. */
    if (path != NULL && !w.out.failed &&
        file_publish(path, w.out.data, w.out.size, &ignored) != ST_OK)
        log_debug("%s", ignored.message);
    bytes_free(&w.out);
    free(path);
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Index of a rank's lock.  Tasks of an array run side by side, with any number of ranks each: every
 * task has numbers of its own for its first LOCK_TASK_RANKS. */
enum { LOCK_TASK_RANKS = 4096 };

static uint32_t rank_lock_index(const struct driver_opts *o, int rank)
{
    return o->task_count == 0 ? (uint32_t)rank
                              : (uint32_t)o->task_index * LOCK_TASK_RANKS + (uint32_t)rank;
}

/* Rank 0 holds the gate, or its task; the others their rank's lock, so that a new run waits for
 * dying ranks too. */
static enum status lock_all(struct driver_context *ctx, const char *work, struct shard_lock **lock,
                            struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    bool root = comm_rank(ctx->comm) == 0;
    enum status st = ST_OK;
    if (root) {
        st = file_make_dirs(work, err);
        if (st == ST_OK)
            st = shard_lock_take_until(work, o->task_count > 0 ? SHARD_LOCK_TASK : SHARD_LOCK_GATE,
                                       (uint32_t)o->task_index, o->lock_wait_s,
                                       driver_stop_requested, lock, err);
    }
    TRY(comm_agree(ctx->comm, st, err));
    int rank = comm_rank(ctx->comm);
    if (!root && (o->task_count == 0 || rank < LOCK_TASK_RANKS))
        st = shard_lock_take(work, SHARD_LOCK_RANK, rank_lock_index(o, rank), o->lock_wait_s, lock,
                             err);
    return comm_agree(ctx->comm, st, err);
}

static enum status one_block(struct driver_context *ctx, struct driver_job *job, size_t i,
                             const struct places *p, struct format_writer *json, struct err *err)
{
    struct block_run r = {.ctx = ctx, .job = job, .b = &job->blocks[i]};
    double start = clock_s();
    const char *name = r.b->graph->name;
    bool several = job->n_blocks > 1 || job->enclosing != NULL;
    char *out = several ? path_join(p->out, name) : str_dup(p->out);
    char *work = path_join(p->work, name);
    r.out = out;
    r.work = work;
    bool clean = comm_rank(ctx->comm) == 0 && ctx->opts->task_count == 0;
    enum status st = out == NULL || work == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK && clean)
        st = shard_store_open(p->work, name, true, &r.store, err);
    st = comm_agree(ctx->comm, st, err);
    if (st == ST_OK && r.store == NULL)
        st = shard_store_open(p->work, name, false, &r.store, err);
    st = comm_agree(ctx->comm, st, err);
    if (st == ST_OK && comm_rank(ctx->comm) == 0)
        driver_run_file_open(&r.run_file, ctx->comm, r.b, r.store, ctx->opts);
    if (st == ST_OK)
        st = run_block(&r, err);
    if (r.run_file.path != NULL)
        driver_run_file_close(&r.run_file, end_state(ctx->opts, st),
                              st == ST_OK ? "" : err->message);
    r.seconds = clock_s() - start;
    driver_enclosing_note(job, i, st, &r.verdict, r.unchanged, err);
    if (comm_rank(ctx->comm) == 0)
        result_json(&r, st, err, json);
    if (comm_rank(ctx->comm) == 0 && (st == ST_OK || is_outcome(st))) {
        if (!ctx->opts->json)
            result_text(&r, st, err);
        if (st != ST_NONFINITE && st != ST_POSITIONS) /* refused: not all were evaluated */
            log_info("%s: %llu tokens in %.2f s", name, (unsigned long long)r.b->n_rows, r.seconds);
    }
    driver_layout_free(&r.layout);
    driver_totals_free(&r.totals);
    driver_block_release(r.b);
    shard_store_close(&r.store);
    free(out);
    free(work);
    return st;
}

/* The array of blocks as text, indented to stand in an object; NULL when memory is short. */
static const char *blocks_text(struct format_writer *blocks)
{
    format_write_end_array(blocks);
    bytes_put_u8(&blocks->out, '\0');
    if (blocks->out.failed)
        return NULL;
    const char *text = (const char *)blocks->out.data;
    return text + strspn(text, " \n");
}

static void deliver_blocks(struct driver_context *ctx, const struct driver_job *job,
                           const struct places *p, double seconds, struct format_writer *blocks,
                           const char *model)
{
    const char *text = blocks_text(blocks);
    if (comm_rank(ctx->comm) != 0 || text == NULL)
        return;
    if (ctx->opts->task_count == 0) /* tasks of an array run side by side */
        write_run_file(ctx, job, p->work, seconds, text);
    if (!ctx->opts->json)
        return;
    struct format_writer w = {.pretty = true};
    format_write_object(&w, NULL);
    format_write_u64(&w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(&w, "verb", "compile");
    format_write_raw(&w, "blocks", text);
    if (model != NULL)
        format_write_raw(&w, "model", model);
    format_write_end_object(&w);
    format_write_finish(&w);
    bytes_append(&ctx->result, w.out.data, w.out.size);
    ctx->result.failed = ctx->result.failed || w.out.failed;
    bytes_free(&w.out);
}

static enum status compile_job(struct driver_context *ctx, struct driver_job *job,
                               const struct places *p, struct err *err)
{
    struct format_writer blocks = {.pretty = true, .depth = 1};
    struct err first = {0};
    enum status st = ST_OK;
    double start = clock_s();
    format_write_array(&blocks, NULL);
    for (size_t i = 0; i < job->n_blocks && (st == ST_OK || is_outcome(st)); i++) {
        struct err one = {0};
        st = one_block(ctx, job, i, p, &blocks, &one);
        /* Numeric policy (5) outranks storage (6); anything else ends the run. */
        if (st != ST_OK &&
            (first.st == ST_OK || !is_outcome(st) || (first.st == ST_STORAGE && st != ST_STORAGE)))
            first = one;
    }
    char *model = NULL;
    if (job->enclosing != NULL && ctx->opts->task_count == 0) {
        struct err last = {0};
        if (first.st == ST_OK || is_outcome(first.st))
            st = driver_enclosing_finish_all(ctx, job, p->out, p->work, &first, &model, &last);
        else
            driver_enclosing_abandon(ctx, job, p->out, p->work, &first, &last);
        first = last;
    }
    deliver_blocks(ctx, job, p, clock_s() - start, &blocks, model);
    free(model);
    bytes_free(&blocks.out);
    if (first.st != ST_OK)
        *err = first;
    return first.st;
}

/* A spec whose structure is refused leaves a report too. */
static void report_structure(const struct places *p, const struct err *why)
{
    struct format_writer w = {.pretty = true};
    struct err ignored = {0};
    char *path = path_join(p->work, "report.json");
    format_write_object(&w, NULL);
    format_write_u64(&w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(&w, "status", driver_status_word(why->st));
    format_write_string(&w, "reason", why->message);
    format_write_end_object(&w);
    format_write_finish(&w);
    if (path == NULL || w.out.failed || file_make_dirs(p->work, &ignored) != ST_OK ||
        file_publish(path, w.out.data, w.out.size, &ignored) != ST_OK)
        log_warn("report.json: %s", ignored.message);
    bytes_free(&w.out);
    free(path);
}

enum status driver_verb_compile(struct driver_context *ctx, struct err *err)
{
    struct driver_job job = {0};
    struct places p = {0};
    struct shard_lock *lock = NULL;
    bool root = comm_rank(ctx->comm) == 0;
    driver_signals_setup();
    TRY(comm_check_launcher(comm_size(ctx->comm), err));
    enum status st = places_make(ctx->opts, &p, err);
    if (st == ST_OK)
        st = driver_job_open(ctx->opts->args[0], ctx->opts, comm_size(ctx->comm), &job, err);
    if (st == ST_OK && job.enclosing != NULL)
        st = driver_enclosing_check_examples(&job, err);
    /* The message of a bad spec is the same on all ranks; rank 0's is told without naming a rank.
     */
    struct err own = *err;
    st = comm_agree(ctx->comm, st, err);
    if (st != ST_OK && root && own.st != ST_OK)
        *err = own;
    if (st == ST_OK) {
        log_info("tokentab %s, %d ranks, %s, spec %s, %zu blocks", DRIVER_VERSION,
                 comm_size(ctx->comm), comm_library(), ctx->opts->args[0], job.n_blocks);
        st = driver_job_kernels_all(ctx->comm, ctx->opts, &job, err);
        if (st == ST_OK)
            st = driver_enclosing_check(ctx, &job, err);
    } else if (root && st == ST_STRUCTURE && p.work != NULL) {
        report_structure(&p, err);
        if (keeps_recipe(p.out))
            log_warn("%s still holds the recipe of an earlier run", p.out);
    }
    if (st == ST_OK)
        st = lock_all(ctx, p.work, &lock, err);
    if (st == ST_OK)
        st = compile_job(ctx, &job, &p, err);
    shard_lock_release(&lock);
    driver_job_close(&job);
    places_free(&p);
    return st;
}
