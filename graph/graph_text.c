/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"

#include <string.h>

/* The text is what a fingerprint covers: everything that decides a bit of a table, nothing that
 * merely names it.  Weights appear as their index in order of first use, with shape and slice; what
 * is in them is the digests' part. */

/* Is it read row by row alone?  Then a unit depends on its own rows, whatever their number. */
static bool is_only_embedding(const struct graph *g, size_t weight)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        for (size_t role = 0; role < ROLE_COUNT; role++)
            if (g->nodes[i].weights[role] == (int32_t)weight && g->nodes[i].op != OP_EMBEDDING)
                return false;
    return true;
}

static void put_weight(struct bytes *out, const struct graph_weight *w, bool any_rows)
{
    bytes_printf(out, " %s ", dtype_name(w->dtype));
    if (any_rows)
        bytes_printf(out, "*x%llu", (unsigned long long)w->cols);
    else
        bytes_printf(out, "%llux%llu", (unsigned long long)w->rows, (unsigned long long)w->cols);
    if (w->in_out)
        bytes_printf(out, " in_out");
    if (w->split == SPLIT_BLOCKS && w->slice_count != 0)
        bytes_printf(out, " %s %llu+%llu", w->split_inputs ? "columns" : "rows",
                     (unsigned long long)w->slice_first, (unsigned long long)w->slice_count);
    else if (w->split == SPLIT_BLOCKS)
        bytes_printf(out, " %s part %u/%u", w->split_inputs ? "columns" : "rows", w->part,
                     w->n_parts);
    else if (w->split == SPLIT_PER_HEAD_INTERLEAVED)
        bytes_printf(out, " interleaved %u of %u,%u,%u", w->part, w->heads, w->kv_heads,
                     w->head_dim);
    bytes_printf(out, "\n");
}

static void put_attr(struct bytes *out, const struct graph_node *node, const struct graph_attr *a)
{
    char number[64];
    switch (a->kind) {
    case ATTR_NUMBER:
    case ATTR_COUNT:
    case ATTR_INTEGER:
    case ATTR_BOOL:
    case ATTR_CHOICE:
        bytes_printf(out, " %s=%s", a->key,
                     str_double(node->numbers[a->slot], number, sizeof number));
        break;
    case ATTR_DTYPE: {
        int dt = (int)node->numbers[a->slot];
        bytes_printf(out, " %s=%s", a->key, dtype_name((enum dtype)dt));
        break;
    }
    case ATTR_TENSOR:
        if (node->weights[a->slot] >= 0)
            bytes_printf(out, " %s=w%d", a->key, (int)node->weights[a->slot]);
        break;
    case ATTR_DIMS:
        bytes_printf(out, " %s=", a->key);
        for (unsigned i = 0; i < node->n_dims; i++)
            bytes_printf(out, "%s%lld", i == 0 ? "" : ",", (long long)node->dims[i]);
        break;
    case ATTR_TEXT: /* where another recipe lies is no arithmetic */
    case ATTR_ORIENTATION:
    case ATTR_SPLIT:
        break;
    }
}

static void put_outputs(struct bytes *out, const char *what, const struct graph_output *outputs,
                        size_t n)
{
    for (size_t i = 0; i < n; i++) {
        bytes_printf(out, "%s %s n%u", what, outputs[i].name, outputs[i].node);
        if (outputs[i].decision_top_k > 0)
            bytes_printf(out, " top_k=%u%s", outputs[i].decision_top_k,
                         outputs[i].decision_softmax ? " softmax" : "");
        bytes_printf(out, "\n");
    }
}

enum status graph_block_canonical(const struct graph_block *b, struct bytes *out, struct err *err)
{
    static const char *const kinds[] = {"lookup", "fanout", "projected"};
    const struct graph *g = &b->graph;
    bytes_printf(out, "%s\n", kinds[b->kind]);
    for (size_t i = 0; i < g->n_weights; i++) {
        bytes_printf(out, "w%zu", i);
        put_weight(out, &g->weights[i], is_only_embedding(g, i));
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *node = &g->nodes[i];
        const struct graph_op_info *info = graph_op(node->op);
        bytes_printf(out, "n%zu %s", i, info->name);
        for (unsigned k = 0; k < node->n_inputs; k++)
            bytes_printf(out, " n%u", node->inputs[k]);
        for (size_t k = 0; k < info->n_attrs; k++)
            put_attr(out, node, &info->attrs[k]);
        bytes_printf(out, " -> %s[%llu]\n", dtype_name(node->dtype),
                     (unsigned long long)node->width);
    }
    put_outputs(out, "table", b->tables, b->n_tables);
    put_outputs(out, "result", b->results, b->n_results);
    return out->failed ? err_nomem(err, out->size) : ST_OK;
}
