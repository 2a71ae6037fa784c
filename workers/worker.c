/* SPDX-License-Identifier: Apache-2.0 */
#include "workers/workers_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status check_opts(const struct worker_opts *o, struct err *err)
{
    if (o->bulk_rows == 0 || o->validation_rows == 0 || o->bulk_rows > INT_MAX ||
        o->validation_rows > INT_MAX / 2)
        return err_set(err, ST_USAGE, "bulk_rows %llu, validation_rows %llu: expected 1 to %d",
                       (unsigned long long)o->bulk_rows, (unsigned long long)o->validation_rows,
                       INT_MAX / 2);
    uint64_t before = 0;
    for (size_t i = 0; i < o->n_profiles; i++) {
        const struct worker_profile *p = &o->profiles[i];
        if (p->max_rows <= before || p->max_rows >= INT_MAX || p->evaluation_rows == 0 ||
            p->evaluation_rows > p->max_rows)
            return err_set(err, ST_USAGE,
                           "profile%zu: max_rows %llu, evaluation_rows %llu: expected max_rows "
                           "above %llu and evaluation_rows in 1..max_rows",
                           i, (unsigned long long)p->max_rows,
                           (unsigned long long)p->evaluation_rows, (unsigned long long)before);
        before = p->max_rows;
    }
    return ST_OK;
}

static bool same_lists(const struct graph_block *b)
{
    bool same = b->n_tables == b->n_results;
    for (size_t i = 0; same && i < b->n_tables; i++)
        same = b->tables[i].node == b->results[i].node;
    return same;
}

static enum status check_block(const struct graph_block *b, struct err *err)
{
    const bool projected = b->kind == BLOCK_PROJECTED;
    if (b->graph.n_nodes < 2 || b->graph.nodes[1].op != OP_EMBEDDING || b->n_tables == 0 ||
        (!projected && !same_lists(b)) || (projected && (b->n_tables != 2 || b->n_results != 2)))
        return err_set(err, ST_USAGE, "%s: not a resolved token-local block",
                       b->name != NULL ? b->name : "block");
    return ST_OK;
}

static enum status open_one(const struct worker *w, bool tables, bool exact, struct evaluator **out,
                            struct err *err)
{
    const struct graph_block *b = w->opts.block;
    const struct evaluator_opts o = {.kernels = w->opts.kernels,
                                     .block = b,
                                     .outputs = tables ? b->tables : b->results,
                                     .n_outputs = tables ? b->n_tables : b->n_results,
                                     .weights = w->opts.weights,
                                     .arithmetic = tables ? w->opts.arithmetic : ARITH_LIBRARY,
                                     .exact = exact};
    return evaluator_open(&o, out, err);
}

static enum status open_evaluators(struct worker *w, struct err *err)
{
    const bool same = same_lists(w->opts.block);
    TRY(open_one(w, true, false, &w->tables, err));
    w->results_shared = same && w->opts.arithmetic == ARITH_LIBRARY;
    if (w->results_shared)
        w->results = w->tables;
    else
        TRY(open_one(w, false, false, &w->results, err));
    if (!w->opts.measure_double)
        return ST_OK;
    TRY(open_one(w, true, true, &w->exact_tables, err));
    w->exact_shared = same;
    if (same)
        w->exact_results = w->exact_tables;
    else
        TRY(open_one(w, false, true, &w->exact_results, err));
    return ST_OK;
}

static enum status copy_profiles(struct worker *w, struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(w->opts.n_profiles, sizeof *w->profiles, &memory, err));
    w->profiles = memory;
    if (w->opts.n_profiles > 0)
        memcpy(w->profiles, w->opts.profiles, w->opts.n_profiles * sizeof *w->profiles);
    w->opts.profiles = w->profiles;
    return ST_OK;
}

/* The bias of a projected block lies in the recipe and is added to what the tables give. */
static enum status load_bias(struct worker *w, struct err *err)
{
    const struct graph_block *b = w->opts.block;
    if (b->kind != BLOCK_PROJECTED || b->bias_weight < 0)
        return ST_OK;
    const struct graph_weight *bias = &b->graph.weights[b->bias_weight];
    const enum dtype compute = dtype_compute(b->results[0].dtype);
    if (dtype_compute(b->results[1].dtype) != compute || w->opts.weights[b->bias_weight] == NULL)
        return err_set(err, ST_USAGE, "%s: bias %s does not fit its results", b->name,
                       bias->tensor);
    TRY(mem_alloc((size_t)bias->rows, dtype_size(compute), &w->bias, err));
    stored_widen(bias->dtype, w->opts.weights[b->bias_weight], (size_t)bias->rows, compute,
                 w->bias);
    return ST_OK;
}

static enum status open_worker(struct worker *w, struct err *err)
{
    const struct graph_node *embedding = &w->opts.block->graph.nodes[1];
    TRY(copy_profiles(w, err));
    TRY(open_evaluators(w, err));
    TRY(load_bias(w, err));
    TRY(worker_classes_build(w, err));
    w->opts.weights = NULL; /* the evaluators hold what they need */
    w->n_routes = w->opts.n_profiles + 1;
    w->embedding_row_bytes = (size_t)embedding->width * dtype_size(embedding->dtype);
    uint64_t rows = max_u64(w->opts.bulk_rows, WORKER_BATCH_ROWS);
    for (size_t i = 0; i < w->n_classes; i++)
        rows = max_u64(rows, w->classes[i].c.rows);
    w->max_call_rows = (size_t)rows;
    return ST_OK;
}

enum status worker_open(const struct worker_opts *opts, struct worker **out, struct err *err)
{
    *out = NULL;
    TRY(check_opts(opts, err));
    TRY(check_block(opts->block, err));
    void *memory = NULL;
    TRY(mem_calloc(1, sizeof(struct worker), &memory, err));
    struct worker *w = memory;
    w->opts = *opts;
    enum status st = open_worker(w, err);
    if (st != ST_OK)
        worker_close(&w);
    *out = w;
    return st;
}

void worker_close(struct worker **w)
{
    if (w == NULL || *w == NULL)
        return;
    if (!(*w)->results_shared)
        evaluator_close(&(*w)->results);
    evaluator_close(&(*w)->tables);
    if (!(*w)->exact_shared)
        evaluator_close(&(*w)->exact_results);
    evaluator_close(&(*w)->exact_tables);
    worker_classes_free(*w);
    free((*w)->profiles);
    free((*w)->bias);
    free(*w);
    *w = NULL;
}

size_t worker_n_routes(const struct worker *w)
{
    return w->n_routes;
}

size_t worker_route(const struct worker *w, uint64_t n_ids)
{
    for (size_t i = 0; i < w->opts.n_profiles; i++)
        if (n_ids <= w->profiles[i].max_rows)
            return i + 1;
    return 0;
}

size_t worker_n_classes(const struct worker *w)
{
    return w->n_classes;
}

const struct worker_class *worker_class_at(const struct worker *w, size_t i)
{
    return &w->classes[i].c;
}

size_t worker_stat_index(const struct worker *w, size_t class_index, size_t result, size_t route)
{
    return (class_index * w->opts.block->n_results + result) * w->n_routes + route;
}

size_t worker_n_stats(const struct worker *w)
{
    return w->n_classes * w->opts.block->n_results * w->n_routes;
}

size_t worker_row_bytes(const struct graph_output *o)
{
    return (size_t)o->width * dtype_size(o->dtype);
}
