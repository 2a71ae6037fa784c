/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"
#include "graph/graph_internal.h"

#include <stdlib.h>
#include <string.h>

uint64_t graph_weight_bytes(const struct graph_weight *w)
{
    return w->rows * w->cols * dtype_size(w->dtype);
}

static bool same_slice(const struct graph_weight *a, const struct graph_weight *b)
{
    if (a->split_inputs != b->split_inputs || a->in_out != b->in_out)
        return graph_weight_bytes(a) == graph_weight_bytes(b) && a->split == SPLIT_NONE &&
               b->split == SPLIT_NONE;
    if (graph_weight_runs(a) != graph_weight_runs(b))
        return false;
    for (uint64_t i = 0; i < graph_weight_runs(a); i++) {
        struct graph_run x = graph_weight_run(a, i), y = graph_weight_run(b, i);
        if (x.first != y.first || x.count != y.count)
            return false;
    }
    return true;
}

static int compare_runs(const void *a, const void *b)
{
    const struct graph_run *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Does weight i count for `unique` bytes (of everything, or of what stays)? */
static bool counts(const struct graph_weight *w, const struct graph_weight *of, bool retained_only)
{
    return strcmp(w->backing, of->backing) == 0 && (!retained_only || w->retained);
}

/* Axis of the stored tensor that a slice cuts: 0 rows, 1 columns. */
static int stored_axis(const struct graph_weight *w)
{
    return (w->in_out && w->tensor_rank == 2) != w->split_inputs;
}

/* Bytes of the union of slices of one backing tensor along one stored axis.  Rows of a weight that
 * several slices share exist once. */
static enum status union_bytes(const struct graph *g, const struct graph_weight *of, int axis,
                               bool retained_only, uint64_t *size_bytes, struct err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n_weights; i++)
        if (counts(&g->weights[i], of, retained_only) && stored_axis(&g->weights[i]) == axis)
            n += graph_weight_runs(&g->weights[i]);
    void *memory;
    TRY(mem_alloc(n, sizeof(struct graph_run), &memory, err));
    struct graph_run *runs = memory;
    n = 0;
    for (size_t i = 0; i < g->n_weights; i++) {
        const struct graph_weight *w = &g->weights[i];
        if (counts(w, of, retained_only) && stored_axis(w) == axis)
            for (uint64_t k = 0; k < graph_weight_runs(w); k++)
                runs[n++] = graph_weight_run(w, k);
    }
    qsort(runs, n, sizeof *runs, compare_runs);
    uint64_t covered = 0, stop = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t end = runs[i].first + runs[i].count;
        if (end > stop) {
            covered += end - max_u64(runs[i].first, stop);
            stop = end;
        }
    }
    free(memory);
    *size_bytes = covered * (axis == 0 ? of->tensor_cols : of->tensor_rows) * dtype_size(of->dtype);
    return ST_OK;
}

static enum status unique_bytes(const struct graph *g, const struct graph_weight *of,
                                bool retained_only, uint64_t *size_bytes, struct err *err)
{
    uint64_t whole = of->tensor_rows * of->tensor_cols * dtype_size(of->dtype), parts[2] = {0, 0};
    for (size_t i = 0; i < g->n_weights; i++) {
        if (counts(&g->weights[i], of, retained_only) && g->weights[i].split == SPLIT_NONE) {
            *size_bytes = whole;
            return ST_OK;
        }
    }
    for (int axis = 0; axis < 2; axis++)
        TRY(union_bytes(g, of, axis, retained_only, &parts[axis], err));
    *size_bytes = min_u64(whole, parts[0] + parts[1]);
    return ST_OK;
}

/* Index of the projection that a recipe keeps, -1 for none. */
static int32_t retained_projection(const struct graph_block *b)
{
    if (b->kind != BLOCK_PROJECTED || !b->retain_projection)
        return -1;
    return b->graph.nodes[b->tables[0].node].weights[ROLE_WEIGHT];
}

/* Is the tensor read outside the block under this very name? */
static bool retained_by_name(const struct graph_block *b, const struct graph_weight *w)
{
    if (!w->retained)
        return false;
    for (size_t i = 0; i < b->n_external_consumers; i++)
        if (strcmp(b->external_consumers[i], w->tensor) == 0)
            return true;
    int32_t projection = retained_projection(b);
    return projection >= 0 && w == &b->graph.weights[projection];
}

/* Bytes of a weight as a projected recipe holds it: in the dtype of z, which may be a wider one. */
static uint64_t bytes_in_recipe(const struct graph_block *b, int32_t weight)
{
    const struct graph_weight *w = &b->graph.weights[weight];
    return w->rows * w->cols * max_u64(dtype_size(w->dtype), dtype_size(b->tables[0].dtype));
}

enum status graph_block_storage(const struct graph_block *b, struct graph_storage *out,
                                struct err *err)
{
    const struct graph *g = &b->graph;
    struct graph_storage s = {0};
    for (size_t i = 0; i < g->n_weights; i++) {
        const struct graph_weight *w = &g->weights[i];
        bool new_slice = true, new_backing = true, new_retained = w->retained;
        for (size_t j = 0; j < i; j++) {
            const struct graph_weight *v = &g->weights[j];
            if (strcmp(v->tensor, w->tensor) == 0 && same_slice(v, w))
                new_slice = false;
            if (strcmp(v->backing, w->backing) == 0) {
                new_backing = false;
                new_retained = new_retained && !v->retained;
            }
        }
        uint64_t size_bytes;
        if (new_slice) {
            s.logical_bytes += graph_weight_bytes(w);
            s.retained_logical_bytes += retained_by_name(b, w) ? graph_weight_bytes(w) : 0;
        }
        if (new_backing) {
            TRY(unique_bytes(g, w, false, &size_bytes, err));
            s.unique_bytes += size_bytes;
        }
        if (new_retained) {
            TRY(unique_bytes(g, w, true, &size_bytes, err));
            s.retained_unique_bytes += size_bytes;
        }
    }
    if (b->bias_weight >= 0)
        s.bias_bytes = bytes_in_recipe(b, b->bias_weight);
    int32_t projection = retained_projection(b);
    if (projection >= 0) {
        uint64_t wider =
            bytes_in_recipe(b, projection) - graph_weight_bytes(&g->weights[projection]);
        s.retained_logical_bytes += wider;
        s.retained_unique_bytes += wider;
    }
    *out = s;
    return ST_OK;
}

bool graph_block_has_bias(const struct graph_block *b)
{
    for (size_t i = 0; i < b->graph.n_nodes; i++)
        if (b->graph.nodes[i].op == OP_LINEAR && b->graph.nodes[i].weights[ROLE_BIAS] >= 0)
            return true;
    return false;
}

bool graph_block_has_linear(const struct graph_block *b)
{
    for (size_t i = 0; i < b->graph.n_nodes; i++)
        if (b->graph.nodes[i].op == OP_LINEAR)
            return true;
    return false;
}

/* Operations a column of elementwise ops and norms, by rough count: a plan's estimate. */
static double node_flops(const struct graph *g, const struct graph_node *node)
{
    double width = (double)node->width, in = 0;
    if (node->n_inputs > 0)
        in = (double)g->nodes[node->inputs[0]].width;
    switch (node->op) {
    case OP_INPUT:
    case OP_EMBEDDING:
    case OP_IDENTITY:
    case OP_DROPOUT:
    case OP_CONCAT:
    case OP_SLICE:
        return 0;
    case OP_LINEAR:
        return 2 * in * width + (node->weights[ROLE_BIAS] >= 0 ? width : 0);
    case OP_LAYER_NORM:
        return 8 * in;
    case OP_RMS_NORM:
    case OP_FLOAT32_RMS_NORM:
    case OP_L2_NORMALIZE:
    case OP_RENORM:
        return 4 * in;
    case OP_L2_NORM:
        return 2 * in;
    case OP_RELU:
    case OP_RELU6:
    case OP_SCALE:
    case OP_BIAS:
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_LEAKY_RELU:
    case OP_HARDTANH:
        return width;
    default:
        return 10 * in;
    }
}

double graph_block_flops(const struct graph_block *b)
{
    void *memory;
    if (mem_alloc(b->graph.n_nodes, sizeof(bool), &memory, NULL) != ST_OK)
        return 0;
    bool *reached = memory;
    graph_mark(&b->graph, b->tables, b->n_tables, reached);
    double sum = 0;
    for (size_t i = 0; i < b->graph.n_nodes; i++)
        if (reached[i])
            sum += node_flops(&b->graph, &b->graph.nodes[i]);
    free(memory);
    return sum;
}
