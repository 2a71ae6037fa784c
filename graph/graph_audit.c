/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"
#include "graph/graph_internal.h"

#include <stdlib.h>

bool graph_node_keeps_rows(const struct graph_node *node)
{
    return (node->op == OP_CONCAT || node->op == OP_SLICE) && node->numbers[NUM_AXIS] == -1;
}

void graph_mark(const struct graph *g, const struct graph_output *outputs, size_t n, bool *reached)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        reached[i] = false;
    for (size_t i = 0; i < n; i++)
        reached[outputs[i].node] = true;
    for (size_t i = g->n_nodes; i-- > 0;)
        for (unsigned k = 0; reached[i] && k < g->nodes[i].n_inputs; k++)
            reached[g->nodes[i].inputs[k]] = true;
}

static const char *where_of(const struct graph_node *node)
{
    return node->where != NULL ? node->where : node->name;
}

static enum status audit_source(const struct graph_block *b, size_t i, int64_t *embedding,
                                struct err *err)
{
    const struct graph_node *node = &b->graph.nodes[i];
    if (node->op == OP_INPUT && i != 0)
        return err_set(err, ST_STRUCTURE,
                       "%s: a second input; a block depends on one token-id input only",
                       where_of(node));
    if (node->op != OP_EMBEDDING)
        return ST_OK;
    if (*embedding >= 0)
        return err_set(err, ST_STRUCTURE,
                       "%s: a second embedding beside %s; a block depends on the token through one "
                       "embedding only",
                       where_of(node), where_of(&b->graph.nodes[*embedding]));
    if (node->inputs[0] != 0)
        return err_set(err, ST_STRUCTURE, "%s: the embedding reads %s, expected the token ids",
                       where_of(node), where_of(&b->graph.nodes[node->inputs[0]]));
    *embedding = (int64_t)i;
    const struct graph_weight *w = &b->graph.weights[node->weights[ROLE_WEIGHT]];
    if (w->tensor_rank != 0 && w->rows == 0)
        return err_set(err, ST_STRUCTURE, "%s: tensor %s has no rows: there is nothing to tabulate",
                       where_of(node), w->tensor);
    return ST_OK;
}

static enum status audit_node(const struct graph *g, const struct graph_node *node, struct err *err)
{
    const struct graph_op_info *info = graph_op(node->op);
    if (info->locality != LOCAL_ROW && !graph_node_keeps_rows(node)) {
        const char *reason = graph_op_reason(info->name);
        if (reason == NULL)
            reason = info->locality == LOCAL_SHAPE
                         ? "joins or cuts another axis than the last, so rows do not stay rows"
                         : "not a function of one token";
        return err_set(err, ST_STRUCTURE, "%s: %s: %s", where_of(node), info->name, reason);
    }
    for (unsigned k = 0; k < node->n_inputs; k++)
        if (g->nodes[node->inputs[k]].op == OP_INPUT)
            return err_set(err, ST_STRUCTURE,
                           "%s: %s reads %s itself, not a value reached through the embedding",
                           where_of(node), info->name, where_of(&g->nodes[node->inputs[k]]));
    return ST_OK;
}

static enum status audit_outputs(const struct graph_block *b, const struct graph_output *outputs,
                                 size_t n, struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        const struct graph_node *node = &b->graph.nodes[outputs[i].node];
        bool integer = node->op == OP_TOP_K || node->op == OP_ARGMAX || node->op == OP_INPUT;
        if (integer)
            return err_set(err, ST_STRUCTURE,
                           "%s: output %s is integer; tables hold floating-point values",
                           where_of(node), outputs[i].name);
    }
    return ST_OK;
}

enum status graph_block_audit(const struct graph_block *b, struct err *err)
{
    const struct graph *g = &b->graph;
    const char *where = b->where != NULL ? b->where : "block";
    if (g->n_nodes == 0 || g->nodes[0].op != OP_INPUT)
        return err_set(err, ST_STRUCTURE, "%s: no token-id input", where);
    int64_t embedding = -1;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const struct graph_node *node = &g->nodes[i];
        TRY(audit_source(b, i, &embedding, err));
        if (node->op != OP_INPUT && node->op != OP_EMBEDDING)
            TRY(audit_node(g, node, err));
    }
    if (embedding < 0)
        return err_set(err, ST_STRUCTURE, "%s: no embedding reads the token ids", where);
    if (b->n_tables == 0)
        return err_set(err, ST_STRUCTURE, "%s: no output to tabulate", where);
    TRY(audit_outputs(b, b->tables, b->n_tables, err));
    return audit_outputs(b, b->results, b->n_results, err);
}
