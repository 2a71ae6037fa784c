/* SPDX-License-Identifier: Apache-2.0 */
/* plan: what compile would do; writes nothing.
 *
 * The storage verdict is given as bounds that evaluation cannot break.  The first bulk chunk is
 * evaluated as compile would evaluate it: tables that differ there can never be shared, and rows
 * that differ there make no constant table; nothing that agrees there is taken for granted.  With V
 * <= bulk_rows that is everything. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"
#include "driver/enclosing.h"
#include "driver/plan_schedule.h"

struct plan_block {
    uint64_t logical_before, unique_before;
    uint64_t fixed_logical, fixed_unique; /* bias, retained weights, id list */
    uint64_t least, most;                 /* bytes of stored tables */
    const char *verdict;                  /* shrinks, grows, depends_on_sharing */
    bool all_evaluated;
    uint64_t sample_rows;
    uint64_t rank_bytes, work_bytes, payload_bytes;
    struct plan_times times;
    struct plan_schedule schedule;
};

static uint64_t table_bytes(const struct driver_block *b, size_t source, bool one_row)
{
    const struct graph_output *o = &b->graph->tables[source % b->graph->n_tables];
    return (one_row ? 1 : b->n_rows) * o->width * dtype_size(o->dtype);
}

/* ---- bounds ---------------------------------------------------------------------------------- */

/* Does the value of a node depend on the execution shape? */
static bool node_has_linear(const struct graph *g, uint32_t node)
{
    for (; g->nodes[node].n_inputs > 0; node = g->nodes[node].inputs[0]) {
        if (g->nodes[node].op == OP_LINEAR)
            return true;
        for (unsigned i = 1; i < g->nodes[node].n_inputs; i++)
            if (node_has_linear(g, g->nodes[node].inputs[i]))
                return true;
    }
    return false;
}

/* Sure to be shared: the same node, under routes that cannot change it. */
static bool surely_same(const struct driver_job *job, const struct driver_block *b, size_t x,
                        size_t y)
{
    const struct graph_block *g = b->graph;
    uint32_t node = g->tables[x % g->n_tables].node;
    if (node != g->tables[y % g->n_tables].node)
        return false;
    return x / g->n_tables == y / g->n_tables || job->spec->correctly_rounded ||
           !node_has_linear(&g->graph, node);
}

static bool sample_equal(const struct driver_block *b, const struct worker_unit *u, size_t x,
                         size_t y)
{
    const struct graph_output *a = &b->graph->tables[x % u->n_tables],
                              *c = &b->graph->tables[y % u->n_tables];
    return a->dtype == c->dtype && a->width == c->width &&
           memcmp(u->tables[x], u->tables[y],
                  (size_t)(u->n_rows * a->width) * dtype_size(a->dtype)) == 0;
}

static void bound_tables(const struct driver_job *job, const struct driver_block *b,
                         const struct worker_unit *u, struct plan_block *p)
{
    size_t n = u->n_routes * u->n_tables;
    p->all_evaluated = u->n_rows == b->n_rows;
    for (size_t i = 0; i < n; i++) {
        bool same_in_sample = false, same_for_sure = false;
        bool constant = u->table_constant[i] && b->n_rows > 1;
        for (size_t j = 0; j < i; j++) {
            same_in_sample = same_in_sample || sample_equal(b, u, i, j);
            same_for_sure = same_for_sure || surely_same(job, b, i, j);
        }
        if (!same_in_sample)
            p->least += table_bytes(b, i, constant);
        if (p->all_evaluated ? !same_in_sample : !same_for_sure)
            p->most += table_bytes(b, i, constant && p->all_evaluated);
    }
}

static void judge_bounds(struct plan_block *p)
{
    bool most_shrinks = p->most + p->fixed_logical < p->logical_before &&
                        p->most + p->fixed_unique < p->unique_before;
    bool least_shrinks = p->least + p->fixed_logical < p->logical_before &&
                         p->least + p->fixed_unique < p->unique_before;
    p->verdict = most_shrinks ? "shrinks" : least_shrinks ? "depends_on_sharing" : "grows";
}

/* Exit code that compile would end with by what is known of storage: 6, or 0 where numeric policy
 * has no objection. */
static int expected_exit(const struct driver_job *job, const struct plan_block *p)
{
    bool retained = job->spec->storage == STORAGE_MUST_SHRINK && strcmp(p->verdict, "grows") == 0;
    return status_exit_code(retained ? ST_STORAGE : ST_OK);
}

/* ---- evaluation of the first chunk ----------------------------------------------------------- */

static enum status read_rows(const struct driver_block *b, uint64_t n, void **out, struct err *err)
{
    size_t bytes = (size_t)b->rows.tensor->shape[1] * dtype_size(b->rows.tensor->dtype);
    TRY(mem_alloc((size_t)n, bytes, out, err));
    return shard_rows_read(&b->rows, 0, n, *out, err);
}

/* A sample cannot be cut: compile evaluates whole chunks, and a profile every token of them at all
 * its positions.  What takes long is announced. */
static void announce_sample(const struct driver_job *job, const struct driver_block *b, uint64_t n)
{
    enum { LONG_S = 10 };
    const double flop_per_s = 1e10; /* one core, roughly */
    double calls = 1, seconds;
    for (size_t i = 0; i < job->spec->n_profiles && !job->spec->correctly_rounded; i++)
        calls += (double)job->spec->profiles[i].evaluation_rows;
    seconds = (double)n * calls * graph_block_flops(b->graph) / flop_per_s;
    if (seconds >= LONG_S)
        log_info("%s: the sample, %llu tokens of %.0f rows in all routes, may take about %.2g s",
                 b->graph->name, (unsigned long long)n, calls, seconds);
}

static enum status sample(const struct driver_job *job, struct driver_block *b,
                          struct plan_block *p, struct err *err)
{
    struct worker_rows rows = {.n_rows = min_u64(job->spec->bulk_rows, b->n_rows)};
    announce_sample(job, b, rows.n_rows);
    struct worker_unit *u = NULL;
    void *embedding = NULL;
    enum status st = read_rows(b, rows.n_rows, &embedding, err);
    rows.embedding = embedding;
    if (st == ST_OK)
        st = worker_unit_evaluate(b->worker, &rows, NULL, NULL, &u, err);
    if (st == ST_OK) {
        p->sample_rows = rows.n_rows;
        bound_tables(job, b, u, p);
    }
    worker_unit_free(&u);
    free(embedding);
    return st;
}

/* Upper bounds of what lies in a unit's file, its journal line and tables.h5 beside table rows; the
 * constants are those of files measured, rounded up. */
enum {
    UNIT_FILE_BYTES = 12 << 10,
    UNIT_TABLE_BYTES = 2 << 10,   /* a dataset, its digest, its part of tables.h5 */
    BLOCK_FILES_BYTES = 64 << 10, /* tables.h5, run and progress files */
    NUMBER_TEXT_BYTES = 32,       /* of report.json */
    DECISION_COLUMNS = 3,
};

static uint64_t work_overhead(const struct driver_block *b)
{
    uint64_t n_tables = b->n_routes * b->graph->n_tables, n_decisions = 0, fingerprint = 0;
    uint64_t statistics = (worker_n_stats(b->worker) + n_tables + 1) * worker_stat_n_fields();
    for (size_t i = 0; i < b->graph->n_results; i++)
        n_decisions += b->graph->results[i].decision_top_k > 0;
    for (size_t i = 0; i < b->base.n_fields; i++)
        fingerprint += strlen(b->base.fields[i].name) + strlen(b->base.fields[i].value) + 64;
    uint64_t columns = n_decisions * DECISION_COLUMNS;
    uint64_t unit = UNIT_FILE_BYTES + (n_tables + columns) * UNIT_TABLE_BYTES +
                    statistics * sizeof(double) + fingerprint;
    return BLOCK_FILES_BYTES + statistics * NUMBER_TEXT_BYTES + b->grid.n_units * unit +
           b->n_rows * columns * sizeof(double);
}

/* Header of a payload: a line a table, names and the length included. */
static uint64_t payload_overhead(const struct driver_block *b)
{
    uint64_t bytes = 1 << 10;
    for (size_t i = 0; i < b->graph->n_tables; i++)
        bytes += b->n_routes * (256 + strlen(b->graph->tables[i].name));
    return bytes;
}

static void estimate_sizes(const struct driver_job *job, const struct driver_block *b,
                           struct plan_block *p)
{
    uint64_t row = 0, weights = 0;
    const struct graph *g = &b->graph->graph;
    for (size_t i = 0; i < b->graph->n_tables; i++)
        row += b->graph->tables[i].width * dtype_size(b->graph->tables[i].dtype);
    for (size_t i = 0; i < g->n_weights; i++)
        weights += b->weights.data[i] == NULL ? 0 : graph_weight_bytes(&g->weights[i]);
    uint64_t unit = min_u64(b->grid.unit_rows, b->n_rows);
    uint64_t embedding = b->rows.tensor->shape[1] * dtype_size(b->rows.tensor->dtype);
    /* Stored weights, their compute copies (float and double), one unit's rows and tables. */
    p->rank_bytes = 5 * weights + unit * (embedding + b->n_routes * row) + ((uint64_t)64 << 20);
    p->work_bytes = b->n_rows * b->n_routes * row + work_overhead(b);
    p->payload_bytes = p->most + payload_overhead(b);
    p->logical_before = b->source.logical_bytes;
    p->unique_before = b->source.unique_bytes;
    p->fixed_logical = b->source.bias_bytes + b->source.retained_logical_bytes;
    p->fixed_unique = b->source.bias_bytes + b->source.retained_unique_bytes +
                      (job->ids == NULL ? 0 : (uint64_t)job->n_ids * sizeof(int64_t));
}

static enum status simulate(struct driver_block *b, uint64_t ranks, struct plan_block *p,
                            struct err *err)
{
    TRY(plan_times_measure(b, ranks, p->payload_bytes, &p->times, err));
    TRY(plan_schedule_simulate(&b->grid, ranks, &p->times, &p->schedule, err));
    p->schedule.bytes = p->work_bytes + p->payload_bytes;
    return ST_OK;
}

enum status driver_plan_need(struct driver_job *job, uint64_t n_ranks, struct plan_need *out,
                             struct err *err)
{
    enum status st = ST_OK;
    *out = (struct plan_need){0};
    for (size_t i = 0; i < job->n_blocks && st == ST_OK; i++) {
        struct plan_block p = {0};
        struct driver_block *b = &job->blocks[i];
        st = driver_block_prepare(job, b, err);
        if (st == ST_OK)
            st = sample(job, b, &p, err);
        if (st == ST_OK) {
            estimate_sizes(job, b, &p);
            st = simulate(b, n_ranks, &p, err);
        }
        driver_block_release(b);
        out->rank_bytes = max_u64(out->rank_bytes, p.rank_bytes);
        out->seconds += p.schedule.makespan_s + p.times.emit_s;
    }
    return st;
}

/* ---- output ---------------------------------------------------------------------------------- */

static double plan_seconds(const struct plan_block *p)
{
    return p->schedule.makespan_s + p->times.emit_s;
}

static void print_schedule(const struct plan_block *p, uint64_t ranks, struct bytes *out)
{
    const struct plan_schedule *s = &p->schedule;
    char work[32];
    bytes_printf(out,
                 "  schedule on %llu ranks, simulated: makespan %.3g s, efficiency %.1f %%, %llu "
                 "ranks busy\n"
                 "    rank 0: %llu messages, %.3g a second, %.2g %% of its time; %llu files, %s; "
                 "then about %.3g s to emit\n",
                 (unsigned long long)ranks, s->makespan_s, 100 * s->efficiency,
                 (unsigned long long)s->busy_ranks, (unsigned long long)s->messages,
                 s->messages_per_s, 100 * s->driver_share, (unsigned long long)s->files,
                 str_bytes(s->bytes, work, sizeof work), p->times.emit_s);
}

static void print_weights_text(const struct driver_job *job, const struct driver_block *b,
                               struct bytes *out)
{
    const struct graph *g = &b->graph->graph;
    (void)job;
    for (size_t i = 0; i < g->n_weights; i++) {
        const struct graph_weight *w = &g->weights[i];
        char size[32];
        bytes_printf(out, "  %-40s %-5s [%llu", w->tensor, dtype_name(w->dtype),
                     (unsigned long long)w->tensor_rows);
        if (w->tensor_rank > 1)
            bytes_printf(out, ", %llu", (unsigned long long)w->tensor_cols);
        bytes_printf(out, "] %s%s%s%s%s%s\n", str_bytes(graph_weight_bytes(w), size, sizeof size),
                     w->tensor_rank > 1 ? (w->in_out ? ", in_out" : ", out_in") : "",
                     w->split != SPLIT_NONE ? ", a slice" : "",
                     strcmp(w->tensor, w->backing) != 0 ? ", alias of " : "",
                     strcmp(w->tensor, w->backing) != 0 ? w->backing : "",
                     w->retained ? ", retained" : "");
    }
}

static void print_text(const struct driver_context *ctx, const struct driver_job *job,
                       const struct driver_block *b, const struct plan_block *p, struct bytes *out)
{
    char x[32], y[32], z[32];
    uint64_t ranks = ctx->opts->ranks;
    bytes_printf(out, "%s: %llu tokens of %llu rows, %zu routes\n", b->graph->name,
                 (unsigned long long)b->n_rows, (unsigned long long)b->graph->rows_in_checkpoint,
                 b->n_routes);
    print_weights_text(job, b, out);
    for (size_t i = 0; i < b->graph->n_tables; i++) {
        const struct graph_output *o = &b->graph->tables[i];
        bytes_printf(out, "  table %-34s %-5s [%llu, %llu] %s a route\n", o->name,
                     dtype_name(o->dtype), (unsigned long long)b->n_rows,
                     (unsigned long long)o->width,
                     str_bytes(table_bytes(b, i, false), x, sizeof x));
    }
    bytes_printf(out, "  storage: before %s, after %s to %s: %s\n",
                 str_bytes(p->logical_before, x, sizeof x),
                 str_bytes(p->least + p->fixed_logical, y, sizeof y),
                 str_bytes(p->most + p->fixed_logical, z, sizeof z), p->verdict);
    bytes_printf(out, "  bytes: before %llu, after at least %llu, at most %llu\n",
                 (unsigned long long)p->logical_before,
                 (unsigned long long)(p->least + p->fixed_logical),
                 (unsigned long long)(p->most + p->fixed_logical));
    if (expected_exit(job, p) != 0)
        bytes_printf(out, "  compile would end with exit %d (retained): storage is must_shrink\n",
                     expected_exit(job, p));
    bytes_printf(out, "  grid: %llu units of %llu tokens, %u shards\n",
                 (unsigned long long)b->grid.n_units, (unsigned long long)b->grid.unit_rows,
                 (unsigned)b->grid.n_shards);
    bytes_printf(out, "  memory a rank about %s, work folder at most %s, payload at most %s\n",
                 str_bytes(p->rank_bytes, x, sizeof x), str_bytes(p->work_bytes, y, sizeof y),
                 str_bytes(p->payload_bytes, z, sizeof z));
    bytes_printf(
        out,
        "  work: %.3g FLOP a token and route; %.3g s a unit (measured on %llu tokens); about "
        "%.3g s in all\n",
        graph_block_flops(b->graph), p->times.unit_s, (unsigned long long)p->times.measured_rows,
        plan_seconds(p));
    print_schedule(p, ranks, out);
}

static void write_json(const struct driver_context *ctx, const struct driver_job *job,
                       const struct driver_block *b, const struct plan_block *p,
                       struct format_writer *w)
{
    const struct graph *g = &b->graph->graph;
    format_write_object(w, NULL);
    format_write_string(w, "block", b->graph->name);
    format_write_u64(w, "tokens", b->n_rows);
    format_write_u64(w, "rows_in_checkpoint", b->graph->rows_in_checkpoint);
    format_write_u64(w, "routes", b->n_routes);
    format_write_array(w, "weights");
    for (size_t i = 0; i < g->n_weights; i++) {
        const struct graph_weight *t = &g->weights[i];
        format_write_object(w, NULL);
        format_write_string(w, "where", t->where);
        format_write_string(w, "tensor", t->tensor);
        format_write_string(w, "backing", t->backing);
        format_write_string(w, "dtype", dtype_name(t->dtype));
        format_write_array(w, "shape");
        format_write_u64(w, NULL, t->tensor_rows);
        if (t->tensor_rank > 1)
            format_write_u64(w, NULL, t->tensor_cols);
        format_write_end_array(w);
        format_write_string(w, "orientation", t->in_out ? "in_out" : "out_in");
        format_write_u64(w, "bytes", graph_weight_bytes(t));
        format_write_bool(w, "retained", t->retained);
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_array(w, "tables");
    for (size_t i = 0; i < b->graph->n_tables; i++) {
        format_write_object(w, NULL);
        format_write_string(w, "name", b->graph->tables[i].name);
        format_write_string(w, "dtype", dtype_name(b->graph->tables[i].dtype));
        format_write_u64(w, "width", b->graph->tables[i].width);
        format_write_u64(w, "bytes_a_route", table_bytes(b, i, false));
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_object(w, "storage");
    format_write_u64(w, "logical_before", p->logical_before);
    format_write_u64(w, "unique_before", p->unique_before);
    format_write_u64(w, "logical_after_least", p->least + p->fixed_logical);
    format_write_u64(w, "logical_after_most", p->most + p->fixed_logical);
    format_write_string(w, "verdict", p->verdict);
    format_write_end_object(w);
    format_write_u64(w, "expected_exit", (uint64_t)expected_exit(job, p));
    format_write_u64(w, "units", b->grid.n_units);
    format_write_u64(w, "unit_tokens", b->grid.unit_rows);
    format_write_u64(w, "shards", b->grid.n_shards);
    format_write_u64(w, "memory_bytes_a_rank", p->rank_bytes);
    format_write_u64(w, "work_bytes", p->work_bytes);
    format_write_u64(w, "payload_bytes_most", p->payload_bytes);
    format_write_double(w, "flop_a_token", graph_block_flops(b->graph));
    format_write_u64(w, "ranks", ctx->opts->ranks);
    format_write_double(w, "seconds", plan_seconds(p));
    format_write_double(w, "unit_seconds", p->times.unit_s);
    format_write_object(w, "schedule");
    format_write_double(w, "makespan_seconds", p->schedule.makespan_s);
    format_write_double(w, "efficiency", p->schedule.efficiency);
    format_write_u64(w, "busy_ranks", p->schedule.busy_ranks);
    format_write_u64(w, "messages", p->schedule.messages);
    format_write_double(w, "messages_a_second", p->schedule.messages_per_s);
    format_write_double(w, "driver_share", p->schedule.driver_share);
    format_write_u64(w, "files", p->schedule.files);
    format_write_u64(w, "bytes", p->schedule.bytes);
    format_write_double(w, "emit_seconds", p->times.emit_s);
    format_write_end_object(w);
    format_write_end_object(w);
}

enum status driver_verb_plan(struct driver_context *ctx, struct err *err)
{
    struct driver_job job = {0};
    struct format_writer w = {.pretty = true};
    enum status st =
        driver_job_open(ctx->opts->args[0], ctx->opts, (int)ctx->opts->ranks, &job, err);
    if (st == ST_OK)
        st = driver_job_kernels_all(ctx->comm, ctx->opts, &job, err);
    if (st == ST_OK)
        st = driver_enclosing_check(ctx, &job, err);
    format_write_object(&w, NULL);
    format_write_u64(&w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(&w, "verb", "plan");
    format_write_array(&w, "blocks");
    for (size_t i = 0; i < job.n_blocks && st == ST_OK; i++) {
        struct plan_block p = {0};
        struct driver_block *b = &job.blocks[i];
        st = driver_block_prepare(&job, b, err);
        if (st == ST_OK)
            st = sample(&job, b, &p, err);
        if (st == ST_OK) {
            estimate_sizes(&job, b, &p);
            judge_bounds(&p);
            st = simulate(b, ctx->opts->ranks, &p, err);
        }
        if (st == ST_OK) {
            if (ctx->opts->json)
                write_json(ctx, &job, b, &p, &w);
            else
                print_text(ctx, &job, b, &p, &ctx->result);
        }
        driver_block_release(b);
    }
    format_write_end_array(&w);
    format_write_end_object(&w);
    format_write_finish(&w);
    if (ctx->opts->json && st == ST_OK)
        bytes_append(&ctx->result, w.out.data, w.out.size);
    bytes_free(&w.out);
    driver_job_close(&job);
    return st;
}
