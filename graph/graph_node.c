/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

void graph_node_free(struct graph_node *node)
{
    free(node->name);
    free(node->where);
    node->name = NULL;
    node->where = NULL;
    for (size_t i = 0; i < TEXT_COUNT; i++) {
        free(node->texts[i]);
        node->texts[i] = NULL;
    }
}

void graph_weight_free(struct graph_weight *w)
{
    free(w->tensor);
    free(w->backing);
    free(w->where);
    w->tensor = NULL;
    w->backing = NULL;
    w->where = NULL;
}

void graph_free(struct graph *g)
{
    for (size_t i = 0; i < g->n_nodes; i++)
        graph_node_free(&g->nodes[i]);
    for (size_t i = 0; i < g->n_weights; i++)
        graph_weight_free(&g->weights[i]);
    free(g->nodes);
    free(g->weights);
    *g = (struct graph){0};
}

static void outputs_free(struct graph_output **outputs, size_t *n)
{
    for (size_t i = 0; i < *n; i++)
        free((*outputs)[i].name);
    free(*outputs);
    *outputs = NULL;
    *n = 0;
}

static void names_free(char ***names, size_t n)
{
    for (size_t i = 0; *names != NULL && i < n; i++)
        free((*names)[i]);
    free(*names);
    *names = NULL;
}

void graph_block_free(struct graph_block *b)
{
    graph_free(&b->graph);
    outputs_free(&b->tables, &b->n_tables);
    outputs_free(&b->results, &b->n_results);
    names_free(&b->external_consumers, b->n_external_consumers);
    names_free(&b->external_backings, b->n_external_consumers);
    free(b->name);
    free(b->where);
    *b = (struct graph_block){0};
}

void graph_model_free(struct graph_model **m)
{
    if (*m == NULL)
        return;
    graph_free(&(*m)->graph);
    outputs_free(&(*m)->outputs, &(*m)->n_outputs);
    for (size_t i = 0; i < (*m)->n_inputs; i++)
        free((*m)->inputs[i].name);
    free((*m)->inputs);
    free(*m);
    *m = NULL;
}

void graph_node_init(struct graph_node *node, enum graph_op op)
{
    *node = (struct graph_node){.op = op, .dtype = DT_UNKNOWN};
    for (size_t i = 0; i < ROLE_COUNT; i++)
        node->weights[i] = -1;
    const struct graph_op_info *info = graph_op(op);
    for (size_t i = 0; i < info->n_attrs; i++) {
        const struct graph_attr *a = &info->attrs[i];
        if (a->kind <= ATTR_CHOICE)
            node->numbers[a->slot] = a->default_value;
    }
}

/* Arrays double when their length is a power of two, so no capacity has to be kept. */
static enum status grow(void **items, size_t n, size_t item_size, struct err *err)
{
    if ((n & (n - 1)) != 0)
        return ST_OK;
    size_t size_bytes;
    if (!mul_size(n == 0 ? 1 : 2 * n, item_size, &size_bytes))
        return err_nomem(err, SIZE_MAX);
    void *p = realloc(*items, size_bytes);
    if (p == NULL)
        return err_nomem(err, size_bytes);
    *items = p;
    return ST_OK;
}

static enum status node_check(const struct graph *g, const struct graph_node *node, struct err *err)
{
    const struct graph_op_info *info = graph_op(node->op);
    const char *where = node->where != NULL ? node->where : node->name;
    if (node->n_inputs < info->min_inputs || node->n_inputs > info->max_inputs)
        return err_set(err, ST_SPEC, "%s: %s takes at least %u and at most %u inputs, found %u",
                       where, info->name, info->min_inputs, info->max_inputs, node->n_inputs);
    for (unsigned i = 0; i < node->n_inputs; i++)
        if (node->inputs[i] >= g->n_nodes)
            return err_set(err, ST_SPEC, "%s: input %u is not an earlier node", where, i);
    for (size_t i = 0; i < g->n_nodes; i++)
        if (strcmp(g->nodes[i].name, node->name) == 0)
            return err_set(err, ST_SPEC, "%s: node name %s is already that of %s", where,
                           node->name,
                           g->nodes[i].where != NULL ? g->nodes[i].where : "another node");
    return ST_OK;
}

enum status graph_node_take(struct graph *g, struct graph_node *node, uint32_t *index,
                            struct err *err)
{
    if (node->name == NULL)
        return err_nomem(err, 1);
    TRY(node_check(g, node, err));
    if (g->n_nodes >= UINT32_MAX)
        return err_set(err, ST_SPEC, "%s: more than %u nodes", node->where, UINT32_MAX);
    void *nodes = g->nodes;
    TRY(grow(&nodes, g->n_nodes, sizeof *g->nodes, err));
    g->nodes = nodes;
    g->nodes[g->n_nodes] = *node;
    *index = (uint32_t)g->n_nodes++;
    node->name = NULL;
    node->where = NULL;
    for (size_t i = 0; i < TEXT_COUNT; i++)
        node->texts[i] = NULL;
    return ST_OK;
}

static bool weight_same(const struct graph_weight *a, const struct graph_weight *b)
{
    return strcmp(a->tensor, b->tensor) == 0 && strcmp(a->backing, b->backing) == 0 &&
           a->in_out == b->in_out && a->split == b->split && a->part == b->part &&
           a->n_parts == b->n_parts && a->heads == b->heads && a->kv_heads == b->kv_heads &&
           a->head_dim == b->head_dim && a->slice_first == b->slice_first &&
           a->slice_count == b->slice_count && a->split_inputs == b->split_inputs;
}

enum status graph_weight_take(struct graph *g, struct graph_weight *w, int32_t *index,
                              struct err *err)
{
    enum status st = ST_OK;
    size_t i = 0;
    if (w->tensor == NULL || w->backing == NULL || w->where == NULL) {
        st = err_nomem(err, 1);
        goto out;
    }
    while (i < g->n_weights && !weight_same(&g->weights[i], w))
        i++;
    if (i == g->n_weights) {
        if (i >= INT32_MAX) {
            st = err_set(err, ST_SPEC, "%s: more than %d weights", w->where, INT32_MAX);
            goto out;
        }
        void *weights = g->weights;
        st = grow(&weights, g->n_weights, sizeof *g->weights, err);
        g->weights = weights;
        if (st != ST_OK)
            goto out;
        g->weights[g->n_weights++] = *w;
        w->tensor = NULL;
        w->backing = NULL;
        w->where = NULL;
    }
    *index = (int32_t)i;
out:
    graph_weight_free(w);
    return st;
}
