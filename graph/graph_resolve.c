/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"
#include "graph/graph_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long ull;

enum { SHAPE_TEXT_SIZE = 200 };

static const char *shape_text(unsigned rank, const uint64_t *shape, char buf[SHAPE_TEXT_SIZE])
{
    size_t at = 0;
    buf[at++] = '[';
    for (unsigned i = 0; i < rank && i < GRAPH_MAX_DIMS; i++)
        at += (size_t)snprintf(buf + at, SHAPE_TEXT_SIZE - at, "%s%llu", i == 0 ? "" : ", ",
                               (ull)shape[i]);
    snprintf(buf + at, SHAPE_TEXT_SIZE - at, "]");
    return buf;
}

/* The tensor of a weight as the checkpoint has it. */
static const char *stored_text(const struct graph_weight *w, char buf[SHAPE_TEXT_SIZE])
{
    return shape_text(w->tensor_rank, (uint64_t[]){w->tensor_rows, w->tensor_cols}, buf);
}

static enum status refuse_dtype(const struct graph_weight *w, const struct graph_tensor_info *info,
                                struct err *err)
{
    const char *text = info->dtype_text != NULL ? info->dtype_text : dtype_name(info->dtype);
    const char *why = "not a dtype that is computed";
    switch (info->dtype) {
    case DT_F8_E4M3:
    case DT_F8_E5M2:
        why = "8-bit floats are quantised: their scales lie in another tensor; dequantise first";
        break;
    case DT_UNKNOWN:
    case DT_COUNT:
        break;
    default:
        why = "integer weights are quantised: dequantise first";
        break;
    }
    return err_set(err, ST_STRUCTURE, "%s: tensor %s is %s, expected F64, F32, F16 or BF16 (%s)",
                   w->where, w->tensor, text, why);
}

static enum status resolve_weight(struct graph_weight *w, graph_tensor_fn find, void *ctx,
                                  struct err *err)
{
    struct graph_tensor_info info = {.dtype = DT_UNKNOWN};
    enum status st = find(ctx, w->backing, &info, err);
    if (st != ST_OK) {
        if (strcmp(w->tensor, w->backing) != 0)
            err_prefix(err, "%s: alias %s", w->where, w->tensor);
        else
            err_prefix(err, "%s", w->where);
        return st;
    }
    if (!dtype_is_computable(info.dtype))
        return refuse_dtype(w, &info, err);
    if (info.rank > GRAPH_MAX_DIMS)
        return err_set(err, ST_SPEC, "%s: tensor %s has %u dimensions, expected 1 or 2", w->where,
                       w->tensor, info.rank);
    w->dtype = info.dtype;
    TRY(graph_weight_shape(w, info.rank, info.shape, err));
    uint64_t n, size_bytes;
    if (!mul_u64(w->tensor_rows, w->tensor_cols, &n) ||
        !mul_u64(n, dtype_size(w->dtype), &size_bytes))
        return err_set(err, ST_SPEC, "%s: tensor %s is larger than 2^64 bytes", w->where,
                       w->tensor);
    return ST_OK;
}

/* What a node is resolved with. */
struct resolver {
    struct graph *g;
    struct graph_node *node;
    const struct graph_node *in; /* first input */
    struct err *err;
};

static struct graph_weight *weight_of(const struct resolver *r, enum graph_role role)
{
    int32_t i = r->node->weights[role];
    return i < 0 ? NULL : &r->g->weights[i];
}

/* Weights may be shared between nodes, so messages name the node's own key, not the weight's first
 * use. */
static enum status vector_check(const struct resolver *r, enum graph_role role, const char *key,
                                uint64_t width)
{
    const struct graph_weight *w = weight_of(r, role);
    if (w == NULL || (w->tensor_rank == 1 && w->rows == width))
        return ST_OK;
    char found[SHAPE_TEXT_SIZE];
    if (w->split != SPLIT_NONE && w->tensor_rank == 1)
        return err_set(r->err, ST_SPEC,
                       "%s.%s: the split of tensor %s leaves [%llu], expected [%llu]",
                       r->node->where, key, w->tensor, (ull)w->rows, (ull)width);
    return err_set(r->err, ST_SPEC, "%s.%s: tensor %s has shape %s, expected [%llu]",
                   r->node->where, key, w->tensor, stored_text(w, found), (ull)width);
}

static enum status resolve_embedding(const struct resolver *r)
{
    const struct graph_weight *w = weight_of(r, ROLE_WEIGHT);
    char found[SHAPE_TEXT_SIZE];
    if (w->tensor_rank != 2 || w->cols == 0)
        return err_set(r->err, ST_SPEC,
                       "%s: tensor %s has shape %s, expected [vocabulary, width] with a width",
                       w->where, w->tensor, stored_text(w, found));
    r->node->dtype = w->dtype;
    r->node->width = w->cols;
    return ST_OK;
}

static enum status resolve_linear(const struct resolver *r)
{
    const struct graph_weight *w = weight_of(r, ROLE_WEIGHT), *bias = weight_of(r, ROLE_BIAS);
    uint64_t width = r->in->width;
    char found[SHAPE_TEXT_SIZE];
    if (w->tensor_rank != 2 || w->cols != width || w->rows == 0) {
        bool other_way = w->tensor_rank == 2 && w->split == SPLIT_NONE && w->rows == width;
        const char *hint = !other_way  ? ""
                           : w->in_out ? "; stored the other way: drop \"orientation\""
                                       : "; stored the other way: \"orientation\": \"in_out\"";
        if (w->split != SPLIT_NONE && w->tensor_rank == 2)
            return err_set(r->err, ST_SPEC,
                           "%s.weight: the split of tensor %s leaves [out, in] = [%llu, %llu], "
                           "expected [out, %llu]",
                           r->node->where, w->tensor, (ull)w->rows, (ull)w->cols, (ull)width);
        if (w->in_out)
            return err_set(r->err, ST_SPEC,
                           "%s.weight: tensor %s has shape %s, expected [%llu, out]%s",
                           r->node->where, w->tensor, stored_text(w, found), (ull)width, hint);
        return err_set(r->err, ST_SPEC, "%s.weight: tensor %s has shape %s, expected [out, %llu]%s",
                       r->node->where, w->tensor, stored_text(w, found), (ull)width, hint);
    }
    TRY(vector_check(r, ROLE_BIAS, "bias", w->rows));
    r->node->dtype = dtype_promote(r->in->dtype, w->dtype);
    if (bias != NULL)
        r->node->dtype = dtype_promote(r->node->dtype, bias->dtype);
    r->node->width = w->rows;
    return ST_OK;
}

/* Norms, and what else reads a vector as wide as its input. */
static enum status resolve_norm(const struct resolver *r)
{
    const struct graph_weight *w = weight_of(r, ROLE_WEIGHT), *bias = weight_of(r, ROLE_BIAS);
    uint64_t width = r->in->width, groups = 1;
    if (r->node->op == OP_RMS_NORM || r->node->op == OP_FLOAT32_RMS_NORM)
        groups = (uint64_t)r->node->numbers[NUM_GROUPS];
    if (width % groups != 0)
        return err_set(r->err, ST_SPEC, "%s.groups: %llu does not divide the width %llu",
                       r->node->where, (ull)groups, (ull)width);
    TRY(vector_check(r, ROLE_WEIGHT, "weight", width / groups));
    TRY(vector_check(r, ROLE_BIAS, "bias", width));
    r->node->dtype = r->in->dtype;
    if (w != NULL)
        r->node->dtype = dtype_promote(r->node->dtype, w->dtype);
    if (bias != NULL)
        r->node->dtype = dtype_promote(r->node->dtype, bias->dtype);
    r->node->width = width;
    return ST_OK;
}

/* concat and slice along the last axis, and the ops of two inputs. */
static enum status resolve_joined(const struct resolver *r)
{
    struct graph_node *node = r->node;
    node->dtype = r->in->dtype;
    node->width = r->in->width;
    if (node->op == OP_SLICE) {
        double width = (double)node->width, start = node->numbers[NUM_START],
               stop = node->numbers[NUM_STOP];
        start += start < 0 ? width : 0;
        stop += stop < 0 ? width : 0;
        if (start < 0 || stop > width || start >= stop)
            return err_set(r->err, ST_SPEC, "%s: columns %.0f to %.0f, found a width of %llu",
                           node->where, start, stop, (ull)node->width);
        node->width = (uint64_t)(stop - start);
        return ST_OK;
    }
    for (unsigned i = 1; i < node->n_inputs; i++) {
        const struct graph_node *other = &r->g->nodes[node->inputs[i]];
        node->dtype = dtype_promote(node->dtype, other->dtype);
        if (node->op == OP_CONCAT)
            node->width += other->width; /* each at most INT_MAX, at most 16 of them */
        else if (other->width != node->width)
            return err_set(r->err, ST_SPEC, "%s: %s of widths %llu and %llu, expected equal ones",
                           node->where, graph_op(node->op)->name, (ull)node->width,
                           (ull)other->width);
    }
    return ST_OK;
}

static enum status resolve_choice(const struct resolver *r)
{
    struct graph_node *node = r->node;
    uint64_t k = node->op == OP_ARGMAX ? 1 : (uint64_t)node->numbers[NUM_K];
    if (k > r->in->width)
        return err_set(r->err, ST_SPEC, "%s.k: expected at most the width %llu, found %llu",
                       node->where, (ull)r->in->width, (ull)k);
    node->dtype = node->op == OP_TOP_K_VALUES ? r->in->dtype : DT_I64;
    node->width = k;
    return ST_OK;
}

static enum status refuse_node(const struct graph_node *node, struct err *err)
{
    const char *name = graph_op(node->op)->name, *reason = graph_op_reason(name);
    if (reason == NULL)
        reason = "not an op that is tabulated";
    return err_set(err, ST_STRUCTURE, "%s: %s: %s", node->where, name, reason);
}

static enum status resolve_op(const struct resolver *r)
{
    struct graph_node *node = r->node;
    switch (node->op) {
    case OP_EMBEDDING:
        return resolve_embedding(r);
    case OP_LINEAR:
        return resolve_linear(r);
    case OP_LAYER_NORM:
    case OP_RMS_NORM:
    case OP_FLOAT32_RMS_NORM:
    case OP_BIAS:
        return resolve_norm(r);
    case OP_L2_NORM:
        node->dtype = r->in->dtype;
        node->width = 1;
        return ST_OK;
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
        return resolve_joined(r);
    case OP_CONCAT:
    case OP_SLICE:
        return graph_node_keeps_rows(node) ? resolve_joined(r) : refuse_node(node, r->err);
    case OP_TOP_K:
    case OP_TOP_K_VALUES:
    case OP_ARGMAX:
        return resolve_choice(r);
    case OP_MOE:
    case OP_LOOKUP:
        return refuse_node(node, r->err);
    default:
        if (graph_op(node->op)->locality != LOCAL_ROW)
            return refuse_node(node, r->err);
        node->dtype = r->in->dtype;
        node->width = r->in->width;
        return ST_OK;
    }
}

static enum status resolve_node(struct graph *g, struct graph_node *node, struct err *err)
{
    if (node->op == OP_INPUT) {
        node->dtype = DT_I64;
        node->width = 1;
        return ST_OK;
    }
    struct resolver r = {g, node, &g->nodes[node->inputs[0]], err};
    for (unsigned i = 0; i < node->n_inputs; i++) {
        const struct graph_node *in = &g->nodes[node->inputs[i]];
        bool ids = in->op == OP_INPUT;
        if (ids != (node->op == OP_EMBEDDING) || (!ids && !dtype_is_computable(in->dtype)))
            return err_set(err, ST_STRUCTURE, "%s: %s reads %s (%s), which is not a value it takes",
                           node->where, graph_op(node->op)->name,
                           in->where != NULL ? in->where : in->name,
                           ids ? "token ids" : dtype_name(in->dtype));
    }
    TRY(resolve_op(&r));
    if (node->width > INT_MAX)
        return err_set(err, ST_SPEC, "%s: width %llu, expected at most %d", node->where,
                       (ull)node->width, INT_MAX);
    return ST_OK;
}

static enum status resolve_outputs(const struct graph_block *b, struct graph_output *outputs,
                                   size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct graph_node *node = &b->graph.nodes[outputs[i].node];
        outputs[i].dtype = node->dtype;
        outputs[i].width = node->width;
        if (outputs[i].decision_top_k > node->width)
            return err_set(err, ST_SPEC,
                           "%s: decision of output %s: top_k %u, expected at most its width %llu",
                           b->where, outputs[i].name, outputs[i].decision_top_k, (ull)node->width);
    }
    return ST_OK;
}

static enum status resolve_retained(struct graph_block *b, struct err *err)
{
    for (size_t i = 0; i < b->n_external_consumers; i++) {
        const char *name = b->external_consumers[i], *nearest = NULL;
        const char *backing = b->external_backings != NULL ? b->external_backings[i] : name;
        bool found = false;
        for (size_t j = 0; j < b->graph.n_weights; j++) {
            struct graph_weight *w = &b->graph.weights[j];
            if (strcmp(w->tensor, name) == 0 || strcmp(w->backing, backing) == 0) {
                w->retained = true;
                found = true;
            }
            if (nearest == NULL || str_distance(name, w->tensor) < str_distance(name, nearest))
                nearest = w->tensor;
        }
        if (!found)
            return err_set(
                err, ST_SPEC,
                "%s.external_consumers[%zu]: the block reads no tensor %s, nearest is %s", b->where,
                i, name, nearest != NULL ? nearest : "none");
    }
    return ST_OK;
}

/* z and r meet the bias at lookup: all three have the results' dtype, so that a wider bias or
 * weight loses nothing on the way. */
static void widen_projected(struct graph_block *b)
{
    if (b->kind != BLOCK_PROJECTED)
        return;
    for (size_t i = 0; i < b->n_tables; i++)
        b->graph.nodes[b->tables[i].node].dtype = b->graph.nodes[b->results[0].node].dtype;
}

enum status graph_block_resolve(struct graph_block *b, graph_tensor_fn find, void *ctx,
                                struct err *err)
{
    for (size_t i = 0; i < b->graph.n_weights; i++)
        TRY(resolve_weight(&b->graph.weights[i], find, ctx, err));
    for (size_t i = 0; i < b->graph.n_nodes; i++)
        TRY(resolve_node(&b->graph, &b->graph.nodes[i], err));
    for (size_t i = 0; i < b->graph.n_nodes; i++) {
        const struct graph_node *node = &b->graph.nodes[i];
        if (node->op == OP_EMBEDDING)
            b->rows_in_checkpoint = b->graph.weights[node->weights[ROLE_WEIGHT]].rows;
    }
    widen_projected(b);
    TRY(resolve_outputs(b, b->tables, b->n_tables, err));
    TRY(resolve_outputs(b, b->results, b->n_results, err));
    TRY(resolve_retained(b, err));
    if (b->retain_projection && b->n_tables > 0) {
        int32_t w = b->graph.nodes[b->tables[0].node].weights[ROLE_WEIGHT];
        if (w >= 0)
            b->graph.weights[w].retained = true;
    }
    return ST_OK;
}
