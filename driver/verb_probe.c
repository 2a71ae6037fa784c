/* SPDX-License-Identifier: Apache-2.0 */
/* probe: the row-count classes of this machine's BLAS for the very shapes of a spec, and the
 * profiles that reproduce them. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"

/* A profile a position-independent interval: evaluated at its first row count.  The last interval
 * is the bulk's when it reaches max_rows; position-dependent ones cannot be reproduced by a table
 * and end the list. */
static size_t propose(const struct worker_probe_result *r, uint64_t max_rows,
                      struct format_row_profile *out, size_t capacity)
{
    size_t n = 0;
    for (size_t i = 0; i < r->n_intervals && n < capacity; i++) {
        const struct worker_probe_interval *v = &r->intervals[i];
        if (v->position_dependent || v->last >= max_rows)
            break;
        if (n > 0 && i > 0 && r->intervals[i - 1].class_index == v->class_index)
            out[n - 1].max_rows = v->last;
        else
            out[n++] =
                (struct format_row_profile){.max_rows = v->last, .evaluation_rows = v->first};
    }
    return n;
}

static void print_intervals(const char *block, const struct worker_probe_result *r,
                            const struct format_row_profile *profiles, size_t n_profiles,
                            struct bytes *out)
{
    bytes_printf(out, "%s: %u classes; %llu tokens, %llu seeds, %llu positions compared\n", block,
                 (unsigned)r->n_classes, (unsigned long long)r->tokens_used,
                 (unsigned long long)r->seeds_used, (unsigned long long)r->positions_used);
    for (size_t i = 0; i < r->n_intervals; i++) {
        const struct worker_probe_interval *v = &r->intervals[i];
        uint64_t last = v->last;
        /* Each position-dependent row count is a class of its own; a run of them is told in one
         * line. */
        while (v->position_dependent && i + 1 < r->n_intervals &&
               r->intervals[i + 1].position_dependent)
            last = r->intervals[++i].last;
        if (v->position_dependent)
            bytes_printf(out, "  rows %llu-%llu: depend on the position\n",
                         (unsigned long long)v->first, (unsigned long long)last);
        else
            bytes_printf(out, "  rows %llu-%llu: class %u\n", (unsigned long long)v->first,
                         (unsigned long long)last, (unsigned)v->class_index);
    }
    bytes_printf(out, "  profiles:");
    for (size_t i = 0; i < n_profiles; i++)
        bytes_printf(out, " {\"max_rows\": %llu, \"evaluation_rows\": %llu}",
                     (unsigned long long)profiles[i].max_rows,
                     (unsigned long long)profiles[i].evaluation_rows);
    bytes_printf(out, "%s\n", n_profiles == 0 ? " none" : "");
}

static void write_intervals(const char *block, const struct worker_probe_result *r,
                            const struct format_row_profile *profiles, size_t n_profiles,
                            struct format_writer *w)
{
    format_write_object(w, NULL);
    format_write_string(w, "block", block);
    format_write_u64(w, "classes", r->n_classes);
    format_write_u64(w, "tokens", r->tokens_used);
    format_write_u64(w, "seeds", r->seeds_used);
    format_write_u64(w, "positions", r->positions_used);
    format_write_array(w, "intervals");
    for (size_t i = 0; i < r->n_intervals; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "first", r->intervals[i].first);
        format_write_u64(w, "last", r->intervals[i].last);
        format_write_u64(w, "class", r->intervals[i].class_index);
        format_write_bool(w, "position_dependent", r->intervals[i].position_dependent);
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_array(w, "row_count_profiles");
    for (size_t i = 0; i < n_profiles; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "max_rows", profiles[i].max_rows);
        format_write_u64(w, "evaluation_rows", profiles[i].evaluation_rows);
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_end_object(w);
}

/* A probe has no count that grows evenly, so it tells the time it has taken. */
struct probe_clock {
    double start_s, told_s;
    uint64_t max_rows;
};

enum { PROBE_TELL_S = 30 };

static enum status probe_tick(void *ctx, struct err *err)
{
    struct probe_clock *c = ctx;
    double now_s = clock_s();
    if (now_s - c->told_s >= PROBE_TELL_S) {
        c->told_s = now_s;
        log_info(
            "probe: %.0f s so far, comparing calls of up to %llu rows (--max-rows N shortens it)",
            now_s - c->start_s, (unsigned long long)c->max_rows);
    }
    if (driver_stop_requested())
        return err_set(err, ST_STOPPED, "probe: stopped by a signal; nothing was written");
    return ST_OK;
}

static enum status probe_block(const struct driver_context *ctx, const struct driver_job *job,
                               struct driver_block *b, struct worker_probe_result *r,
                               struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    struct worker_probe_opts popts = {
        .max_rows = o->max_rows, .n_tokens = o->tokens, .n_seeds = o->seeds};
    struct worker_rows rows = {.n_rows = min_u64(b->n_rows, max_u64(o->max_rows, 1024))};
    size_t row_bytes = (size_t)b->rows.tensor->shape[1] * dtype_size(b->rows.tensor->dtype);
    void *embedding = NULL;
    TRY(driver_block_prepare(job, b, err));
    enum status st = mem_alloc((size_t)rows.n_rows, row_bytes, &embedding, err);
    if (st == ST_OK)
        st = shard_rows_read(&b->rows, 0, rows.n_rows, embedding, err);
    rows.embedding = embedding;
    struct probe_clock clock = {
        .start_s = clock_s(), .told_s = clock_s(), .max_rows = popts.max_rows};
    if (st == ST_OK)
        st = worker_probe(b->worker, &rows, &popts, probe_tick, &clock, r, err);
    free(embedding);
    return st;
}

/* The profiles of all blocks: every boundary of every block's classes. */
struct proposal {
    struct format_row_profile profiles[64];
    size_t n;
};

static int by_max_rows(const void *a, const void *b)
{
    const struct format_row_profile *x = a, *y = b;
    return x->max_rows < y->max_rows ? -1 : x->max_rows > y->max_rows;
}

static void merge_proposal(struct proposal *all, const struct format_row_profile *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t j = 0; j < all->n; j++)
            known = known || all->profiles[j].max_rows == p[i].max_rows;
        if (!known && all->n < sizeof all->profiles / sizeof *all->profiles)
            all->profiles[all->n++] = p[i];
    }
    qsort(all->profiles, all->n, sizeof *all->profiles, by_max_rows);
    /* Each is evaluated inside its own interval, whose first count is the last boundary plus one.
     */
    uint64_t first = 1;
    for (size_t i = 0; i < all->n; i++) {
        if (all->profiles[i].evaluation_rows < first)
            all->profiles[i].evaluation_rows = first;
        first = all->profiles[i].max_rows + 1;
    }
}

enum status driver_verb_probe(struct driver_context *ctx, struct err *err)
{
    struct driver_job job = {0};
    struct format_writer w = {.pretty = true};
    struct proposal all = {.n = 0};
    driver_signals_setup();
    enum status st = driver_job_open(ctx->opts->args[0], ctx->opts, 1, &job, err);
    if (st == ST_OK)
        st = driver_job_kernels_all(ctx->comm, ctx->opts, &job, err);
    format_write_object(&w, NULL);
    format_write_u64(&w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(&w, "verb", "probe");
    if (st == ST_OK) {
        const struct kernels_env *env = kernels_environment(job.kernels);
        format_write_string(&w, "blas_core", env->blas_core);
        format_write_string(&w, "blas_version", env->blas_version);
        format_write_u64(&w, "blas_threads", env->blas_threads);
        if (!ctx->opts->json)
            bytes_printf(&ctx->result, "%s %s, core %s, %u threads\n", env->blas, env->blas_version,
                         env->blas_core, env->blas_threads);
    }
    format_write_array(&w, "blocks");
    for (size_t i = 0; i < job.n_blocks && st == ST_OK; i++) {
        struct worker_probe_result r = {0};
        struct driver_block *b = &job.blocks[i];
        st = probe_block(ctx, &job, b, &r, err);
        if (st == ST_OK) {
            struct format_row_profile profiles[64];
            size_t n = propose(&r, ctx->opts->max_rows, profiles, 64);
            merge_proposal(&all, profiles, n);
            if (ctx->opts->json)
                write_intervals(b->graph->name, &r, profiles, n, &w);
            else
                print_intervals(b->graph->name, &r, profiles, n, &ctx->result);
        }
        worker_probe_free(&r);
        driver_block_release(b);
    }
    format_write_end_array(&w);
    format_write_end_object(&w);
    format_write_finish(&w);
    if (ctx->opts->json && st == ST_OK)
        bytes_append(&ctx->result, w.out.data, w.out.size);
    bytes_free(&w.out);
    if (st == ST_OK && ctx->opts->emit_profiles != NULL) {
        if (file_exists(ctx->opts->emit_profiles) && !ctx->opts->force)
            st = err_set(err, ST_USAGE, "%s: exists; --force overwrites it",
                         ctx->opts->emit_profiles);
        else
            st = format_spec_with_profiles(ctx->opts->args[0], all.profiles, all.n,
                                           ctx->opts->emit_profiles, err);
    }
    driver_job_close(&job);
    return st;
}
