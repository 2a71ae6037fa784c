/* SPDX-License-Identifier: Apache-2.0 */
/* Token-local regions of an enclosing model: which nodes can be known from the token alone, and
 * what the rest of the model reads of them. */
#include "graph/graph.h"
#include "graph/graph_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_LOCAL = UINT32_MAX, REASON_SIZE = 400 };

/* ---- the model ------------------------------------------------------------------------------- */

/* A block that only borrows weights, for functions that ask for one. */
static struct graph_block weights_only(struct graph_weight *weights, size_t n)
{
    return (struct graph_block){
        .kind = BLOCK_FANOUT, .graph = {.weights = weights, .n_weights = n}, .bias_weight = -1};
}

enum status graph_model_resolve(struct graph_model *m, graph_tensor_fn find, void *ctx,
                                struct err *err)
{
    struct graph_block b = weights_only(m->graph.weights, m->graph.n_weights);
    return graph_block_resolve(&b, find, ctx, err);
}

void graph_model_live(const struct graph_model *m, bool *live)
{
    graph_mark(&m->graph, m->outputs, m->n_outputs, live);
}

enum status graph_model_storage(const struct graph_model *m, struct graph_storage *out,
                                struct err *err)
{
    const struct graph *g = &m->graph;
    void *live = NULL, *used = NULL;
    size_t n = 0;
    enum status st = mem_calloc(g->n_nodes, sizeof(bool), &live, err);
    if (st == ST_OK)
        st = mem_calloc(g->n_weights, sizeof(struct graph_weight), &used, err);
    if (st == ST_OK) {
        graph_model_live(m, live);
        for (size_t w = 0; w < g->n_weights; w++) {
            bool read = false;
            for (size_t i = 0; i < g->n_nodes; i++)
                for (int role = 0; ((bool *)live)[i] && role < ROLE_COUNT; role++)
                    read = read || g->nodes[i].weights[role] == (int32_t)w;
            if (read)
                ((struct graph_weight *)used)[n++] = g->weights[w];
        }
        struct graph_block b = weights_only(used, n);
        st = graph_block_storage(&b, out, err);
    }
    free(live);
    free(used);
    return st;
}

/* ---- which nodes are token-local ------------------------------------------------------------- */

struct analysis {
    const struct graph_model *m;
    const struct graph *g;
    uint32_t *source; /* [n_nodes]: the embedding, or NOT_LOCAL */
    bool *live;
    struct err *err;
};

/* Can the op be part of a region, given token-local inputs?  What joins, cuts or selects columns
 * computes nothing, so a region ends before it: the table of its input serves as well. */
static bool op_is_local(const struct graph_node *node)
{
    switch (node->op) {
    case OP_TOP_K:
    case OP_TOP_K_VALUES:
    case OP_ARGMAX:
    case OP_MOE:
        return false;
    case OP_SOFTMAX:
        return node->n_inputs == 1; /* the second is a mask */
    default:
        return graph_op(node->op)->locality == LOCAL_ROW;
    }
}

static enum status analyse(struct analysis *a)
{
    void *memory = NULL;
    TRY(mem_calloc(a->g->n_nodes, sizeof *a->source, &memory, a->err));
    a->source = memory;
    TRY(mem_calloc(a->g->n_nodes, sizeof *a->live, &memory, a->err));
    a->live = memory;
    graph_model_live(a->m, a->live);
    for (size_t i = 0; i < a->g->n_nodes; i++) {
        const struct graph_node *node = &a->g->nodes[i];
        a->source[i] = node->op == OP_EMBEDDING ? (uint32_t)i : NOT_LOCAL;
        if (node->op == OP_EMBEDDING || node->n_inputs == 0 || !op_is_local(node))
            continue;
        a->source[i] = a->source[node->inputs[0]];
        for (unsigned k = 1; k < node->n_inputs; k++)
            if (a->source[node->inputs[k]] != a->source[i])
                a->source[i] = NOT_LOCAL;
    }
    return ST_OK;
}

/* The node that is the cause: back along inputs that are not token-local, each earlier than the
 * last, so that long chains take no stack. */
static size_t find_cause(const struct analysis *a, size_t i)
{
    bool found = false;
    while (!found) {
        const struct graph_node *node = &a->g->nodes[i];
        found = true;
        if (!op_is_local(node))
            break;
        for (unsigned k = 0; k < node->n_inputs && found; k++)
            if (a->source[node->inputs[k]] == NOT_LOCAL) {
                i = node->inputs[k];
                found = false;
            }
    }
    return i;
}

/* Why a node is not token-local. */
static void explain(const struct analysis *a, size_t i, char buf[REASON_SIZE])
{
    const struct graph_node *node = &a->g->nodes[find_cause(a, i)];
    const char *op = graph_op(node->op)->name, *why = graph_op_reason(op);
    if (node->op == OP_INPUT || node->op == OP_LOOKUP) {
        (void)snprintf(buf, REASON_SIZE, "%s is not reached through an embedding", node->name);
    } else if (!op_is_local(node)) {
        if (node->op == OP_MOE)
            why = "mixtures of experts stay in the model";
        if (node->op == OP_TOP_K || node->op == OP_ARGMAX)
            why = "its result is integer; tables hold floating-point values";
        if (graph_node_keeps_rows(node) || node->op == OP_TOP_K_VALUES)
            why = "it only joins or picks columns: name its inputs";
        if (node->op == OP_SOFTMAX)
            why = "its mask is no value of one token";
        if (why == NULL)
            why = "it does not keep rows apart";
        (void)snprintf(buf, REASON_SIZE, "%s: %s: %s", node->name, op, why);
    } else {
        (void)snprintf(buf, REASON_SIZE, "%s joins two embeddings, %s and %s", node->name,
                       a->g->nodes[a->source[node->inputs[0]]].name,
                       a->g->nodes[a->source[node->inputs[1]]].name);
    }
}

/* ---- regions --------------------------------------------------------------------------------- */

static enum status region_begin(const struct analysis *a, const char *name, uint32_t embedding,
                                struct graph_region *r)
{
    void *memory = NULL;
    *r = (struct graph_region){.embedding = embedding};
    r->name = str_dup(name);
    if (r->name == NULL)
        return err_nomem(a->err, strlen(name) + 1);
    TRY(mem_calloc(a->g->n_nodes, sizeof *r->members, &memory, a->err));
    r->members = memory;
    return ST_OK;
}

static enum status region_of_embedding(const struct analysis *a, uint32_t embedding,
                                       struct graph_region *r)
{
    TRY(region_begin(a, a->g->nodes[embedding].name, embedding, r));
    for (size_t i = 0; i < a->g->n_nodes; i++)
        r->members[i] = a->live[i] && a->source[i] == embedding;
    return ST_OK;
}

static enum status region_of_request(const struct analysis *a, const struct graph_region_request *q,
                                     struct graph_region *r)
{
    char why[REASON_SIZE];
    for (size_t i = 0; i < q->n_nodes; i++) {
        uint32_t node = q->nodes[i], source = a->source[node];
        if (source == NOT_LOCAL) {
            explain(a, node, why);
            return err_set(a->err, ST_STRUCTURE, "%s.nodes[%zu]: %s is not token-local: %s",
                           q->where, i, a->g->nodes[node].name, why);
        }
        if (source != a->source[q->nodes[0]])
            return err_set(
                a->err, ST_SPEC,
                "%s.nodes[%zu]: %s depends on embedding %s, nodes[0] on %s; a region has "
                "one embedding",
                q->where, i, a->g->nodes[node].name, a->g->nodes[source].name,
                a->g->nodes[a->source[q->nodes[0]]].name);
        if (!a->live[node])
            return err_set(a->err, ST_SPEC, "%s.nodes[%zu]: no output of the model needs %s",
                           q->where, i, a->g->nodes[node].name);
    }
    TRY(region_begin(a, q->name, a->source[q->nodes[0]], r));
    for (size_t i = 0; i < q->n_nodes; i++)
        r->members[q->nodes[i]] = true;
    for (size_t i = a->g->n_nodes; i-- > 0;)
        for (unsigned k = 0;
             r->members[i] && a->g->nodes[i].op != OP_EMBEDDING && k < a->g->nodes[i].n_inputs; k++)
            r->members[a->g->nodes[i].inputs[k]] = true;
    return ST_OK;
}

/* Does a live node outside, or the world, read member i? */
static bool is_frontier(const struct analysis *a, const struct graph_region *r, size_t i)
{
    for (size_t o = 0; o < a->m->n_outputs; o++)
        if (a->m->outputs[o].node == i)
            return true;
    for (size_t j = i + 1; j < a->g->n_nodes; j++)
        for (unsigned k = 0; a->live[j] && !r->members[j] && k < a->g->nodes[j].n_inputs; k++)
            if (a->g->nodes[j].inputs[k] == i)
                return true;
    return false;
}

static enum status find_frontier(const struct analysis *a, struct graph_region *r)
{
    void *memory = NULL;
    TRY(mem_calloc(a->g->n_nodes, sizeof *r->frontier, &memory, a->err));
    r->frontier = memory;
    for (size_t i = 0; i < a->g->n_nodes; i++)
        if (r->members[i] && i != r->embedding && is_frontier(a, r, i))
            r->frontier[r->n_frontier++] = (uint32_t)i;
    if (is_frontier(a, r, r->embedding))
        r->frontier[r->n_frontier++] = r->embedding;
    return ST_OK;
}

static size_t member_count(const struct analysis *a, const struct graph_region *r)
{
    size_t n = 0;
    for (size_t i = 0; i < a->g->n_nodes; i++)
        n += r->members[i];
    return n;
}

static enum status keep(const struct analysis *a, struct graph_region *r, char *reason)
{
    if (r->reason == NULL)
        r->reason = reason;
    else
        free(reason);
    return r->reason != NULL ? ST_OK : err_nomem(a->err, REASON_SIZE);
}

/* Of two regions that share a node the larger one is taken, the earlier when they are equal. */
static enum status settle_overlaps(const struct analysis *a, struct graph_region *regions, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        for (size_t j = i + 1; j < n; j++) {
            struct graph_region *x = &regions[i], *y = &regions[j];
            bool shared = false;
            for (size_t k = 0; k < a->g->n_nodes; k++)
                shared = shared || (x->members[k] && y->members[k]);
            if (!shared || x->reason != NULL || y->reason != NULL)
                continue;
            bool second = member_count(a, y) > member_count(a, x);
            struct graph_region *loser = second ? x : y, *winner = second ? y : x;
            TRY(keep(
                a, loser,
                str_printf("shares nodes with region %s, which is taken instead", winner->name)));
        }
    }
    return ST_OK;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

static enum status copy_weight(const struct analysis *a, int32_t from, struct graph_block *b,
                               int32_t *to)
{
    if (from < 0)
        return ST_OK;
    struct graph_weight w = a->g->weights[from];
    const char *where = w.where != NULL ? w.where : w.tensor;
    w.tensor = str_dup(w.tensor);
    w.backing = str_dup(w.backing);
    w.where = str_dup(where);
    return graph_weight_take(&b->graph, &w, to, a->err);
}

/* Node i of the model as a node of the block; map[] holds the block's indices. */
static enum status copy_node(const struct analysis *a, size_t i, struct graph_block *b,
                             uint32_t *map)
{
    const struct graph_node *from = &a->g->nodes[i];
    struct graph_node node = *from;
    memset(node.texts, 0, sizeof node.texts);
    node.name = str_dup(from->name);
    node.where = str_dup(from->where != NULL ? from->where : from->name);
    enum status st =
        node.name == NULL || node.where == NULL ? err_nomem(a->err, REASON_SIZE) : ST_OK;
    for (int role = 0; role < ROLE_COUNT && st == ST_OK; role++)
        st = copy_weight(a, from->weights[role], b, &node.weights[role]);
    for (unsigned k = 0; k < from->n_inputs; k++)
        node.inputs[k] = map[from->inputs[k]];
    if (st == ST_OK)
        st = graph_node_take(&b->graph, &node, &map[i], a->err);
    graph_node_free(&node);
    return st;
}

static enum status copy_outputs(const struct analysis *a, struct graph_region *r,
                                const uint32_t *map, struct graph_output **outputs, size_t *n)
{
    void *memory = NULL;
    TRY(mem_calloc(r->n_frontier, sizeof **outputs, &memory, a->err));
    *outputs = memory;
    for (size_t i = 0; i < r->n_frontier; i++) {
        struct graph_output *o = &(*outputs)[i];
        *o = (struct graph_output){.node = map[r->frontier[i]], .dtype = DT_UNKNOWN};
        o->name = str_dup(a->g->nodes[r->frontier[i]].name);
        if (o->name == NULL)
            return err_nomem(a->err, REASON_SIZE);
        *n = i + 1;
        for (size_t k = 0; k < a->m->n_outputs; k++) {
            if (a->m->outputs[k].node != r->frontier[i] || a->m->outputs[k].decision_top_k == 0)
                continue;
            o->decision_top_k = a->m->outputs[k].decision_top_k;
            o->decision_softmax = a->m->outputs[k].decision_softmax;
        }
    }
    return ST_OK;
}

/* Is the tensor behind a weight read by a live node that is no member? */
static bool is_read_outside(const struct analysis *a, const struct graph_region *r,
                            const struct graph_weight *w)
{
    for (size_t i = 0; i < a->g->n_nodes; i++) {
        for (int role = 0; a->live[i] && !r->members[i] && role < ROLE_COUNT; role++) {
            int32_t other = a->g->nodes[i].weights[role];
            if (other >= 0 && strcmp(a->g->weights[other].backing, w->backing) == 0)
                return true;
        }
    }
    return false;
}

static enum status find_consumers(const struct analysis *a, struct graph_region *r)
{
    struct graph_block *b = &r->block;
    void *memory = NULL;
    TRY(mem_calloc(b->graph.n_weights, sizeof(char *), &memory, a->err));
    b->external_consumers = memory;
    TRY(mem_calloc(b->graph.n_weights, sizeof(char *), &memory, a->err));
    b->external_backings = memory;
    for (size_t i = 0; i < b->graph.n_weights; i++) {
        const struct graph_weight *w = &b->graph.weights[i];
        bool known = false;
        for (size_t k = 0; k < b->n_external_consumers; k++)
            known = known || strcmp(b->external_consumers[k], w->tensor) == 0;
        if (known || !is_read_outside(a, r, w))
            continue;
        size_t at = b->n_external_consumers++;
        b->external_consumers[at] = str_dup(w->tensor);
        b->external_backings[at] = str_dup(w->backing);
        if (b->external_consumers[at] == NULL || b->external_backings[at] == NULL)
            return err_nomem(a->err, REASON_SIZE);
    }
    return ST_OK;
}

static enum status build_block(const struct analysis *a, struct graph_region *r)
{
    struct graph_block *b = &r->block;
    const struct graph_node *embedding = &a->g->nodes[r->embedding];
    void *memory = NULL;
    struct graph_node ids;
    b->kind = BLOCK_FANOUT;
    b->bias_weight = -1;
    b->name = str_dup(r->name);
    b->where = str_printf("graph region %s", r->name);
    if (b->name == NULL || b->where == NULL)
        return err_nomem(a->err, REASON_SIZE);
    TRY(mem_calloc(a->g->n_nodes, sizeof(uint32_t), &memory, a->err));
    uint32_t *map = memory;
    graph_node_init(&ids, OP_INPUT);
    ids.name = str_dup(a->g->nodes[embedding->inputs[0]].name);
    ids.where = str_dup(embedding->where != NULL ? embedding->where : embedding->name);
    enum status st = ids.name == NULL || ids.where == NULL ? err_nomem(a->err, REASON_SIZE) : ST_OK;
    if (st == ST_OK)
        st = graph_node_take(&b->graph, &ids, &map[embedding->inputs[0]], a->err);
    graph_node_free(&ids);
    for (size_t i = 0; i < a->g->n_nodes && st == ST_OK; i++)
        if (r->members[i])
            st = copy_node(a, i, b, map);
    if (st == ST_OK)
        st = copy_outputs(a, r, map, &b->tables, &b->n_tables);
    if (st == ST_OK)
        st = copy_outputs(a, r, map, &b->results, &b->n_results);
    free(map);
    return st == ST_OK ? find_consumers(a, r) : st;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static enum status find_all(struct analysis *a, const struct graph_region_request *requests,
                            size_t n_requests, struct graph_region *regions, size_t *n)
{
    for (size_t i = 0; i < n_requests; i++)
        TRY(region_of_request(a, &requests[i], &regions[(*n)++]));
    for (size_t i = 0; i < a->g->n_nodes && n_requests == 0; i++)
        if (a->g->nodes[i].op == OP_EMBEDDING && a->live[i])
            TRY(region_of_embedding(a, (uint32_t)i, &regions[(*n)++]));
    for (size_t i = 0; i < *n; i++) {
        TRY(find_frontier(a, &regions[i]));
        if (regions[i].n_frontier == 1 && regions[i].frontier[0] == regions[i].embedding)
            TRY(keep(a, &regions[i],
                     str_dup("the embedding alone is read: its table is what is there already")));
    }
    TRY(settle_overlaps(a, regions, *n));
    for (size_t i = 0; i < *n; i++)
        if (regions[i].reason == NULL)
            TRY(build_block(a, &regions[i]));
    return ST_OK;
}

enum status graph_regions_find(const struct graph_model *m,
                               const struct graph_region_request *requests, size_t n_requests,
                               struct graph_region **out, size_t *n, struct err *err)
{
    struct analysis a = {.m = m, .g = &m->graph, .err = err};
    void *memory = NULL;
    *out = NULL;
    *n = 0;
    TRY(mem_calloc(m->graph.n_nodes + n_requests, sizeof **out, &memory, err));
    *out = memory;
    enum status st = analyse(&a);
    if (st == ST_OK)
        st = find_all(&a, requests, n_requests, *out, n);
    free(a.source);
    free(a.live);
    if (st != ST_OK) {
        graph_regions_free(out, *n);
        *n = 0;
    }
    return st;
}

void graph_regions_free(struct graph_region **regions, size_t n)
{
    for (size_t i = 0; *regions != NULL && i < n; i++) {
        struct graph_region *r = &(*regions)[i];
        free(r->name);
        free(r->reason);
        free(r->members);
        free(r->frontier);
        graph_block_free(&r->block);
    }
    free(*regions);
    *regions = NULL;
}
