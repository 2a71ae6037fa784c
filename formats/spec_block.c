/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: lookup, fanout, projected.  Node 0 is the token-id input, node 1 the embedding; the rest
 * follows in the order of the spec. */
#include "formats/spec_internal.h"
#include "formats/formats_internal.h"

#include <stdlib.h>
#include <string.h>

/* A node of the block's graph under construction. */
static enum status take_node(const struct spec_reader *r, struct graph_block *b,
                             struct graph_node *node, char *name, const struct spec_path *at,
                             uint32_t *index)
{
    node->name = name;
    node->where = spec_path_dup(at);
    enum status st = ST_OK;
    if (node->name == NULL || node->where == NULL)
        st = err_nomem(r->err, SPEC_PATH_SIZE);
    else
        st = graph_node_take(&b->graph, node, index, r->err);
    graph_node_free(node);
    return st;
}

/* Append a list of layers behind *node; *node becomes the last one's index.  name: how the list is
 * called within the block ("branches.q"). */
static enum status read_layers(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, const char *name, struct graph_block *b,
                               uint32_t *node)
{
    static const char *const keys[] = {"op"};
    TRY(spec_array(r, at, json));
    size_t i = 0;
    for (const cJSON *item = json->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {at, NULL, i};
        struct graph_node layer;
        enum graph_op op;
        TRY(spec_op(r, &here, item, true, &op));
        graph_node_init(&layer, op);
        layer.n_inputs = 1;
        layer.inputs[0] = *node;
        TRY(spec_attributes(r, &here, item, keys, 1, &b->graph, &layer));
        TRY(take_node(r, b, &layer, str_printf("%s[%zu]", name, i), &here, node));
    }
    return ST_OK;
}

static enum status read_embedding(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *block, struct graph_block *b)
{
    const struct spec_path here = {at, "embedding", 0};
    const cJSON *json = spec_get(block, "embedding");
    if (json == NULL)
        return spec_missing(r, at, "embedding", "a block");
    struct graph_node node;
    uint32_t index;
    bool sparse = false;
    graph_node_init(&node, OP_INPUT);
    TRY(take_node(r, b, &node, str_dup("ids"), &here, &index));
    graph_node_init(&node, OP_EMBEDDING);
    node.n_inputs = 1;
    node.inputs[0] = index;
    static const char *const keys[] = {"sparse"};
    TRY(spec_attributes(r, &here, json, keys, 1, &b->graph, &node));
    TRY(spec_bool(r, &here, json, "sparse", &sparse));
    return take_node(r, b, &node, str_dup("embedding"), &here, &index);
}

static enum status add_output(const struct spec_reader *r, struct graph_output **outputs, size_t *n,
                              const char *name, uint32_t node)
{
    void *grown = realloc(*outputs, (*n + 1) * sizeof **outputs);
    if (grown == NULL)
        return err_nomem(r->err, (*n + 1) * sizeof **outputs);
    *outputs = grown;
    (*outputs)[*n] = (struct graph_output){.node = node, .dtype = DT_UNKNOWN};
    TRY(spec_dup(r, name, &(*outputs)[*n].name));
    (*n)++;
    return ST_OK;
}

static enum status copy_outputs(const struct spec_reader *r, struct graph_block *b)
{
    for (size_t i = 0; i < b->n_tables; i++) {
        const struct graph_output *t = &b->tables[i];
        TRY(add_output(r, &b->results, &b->n_results, t->name, t->node));
        b->results[i].decision_top_k = t->decision_top_k;
        b->results[i].decision_softmax = t->decision_softmax;
    }
    return ST_OK;
}

/* ---- lookup -------------------------------------------------------------------------------- */

static enum status read_lookup(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, struct graph_block *b)
{
    const char *output = "output";
    const struct spec_path layers_at = {at, "layers", 0}, output_at = {at, "output", 0};
    if (spec_get(json, "layers") == NULL)
        return spec_missing(r, at, "layers", "lookup");
    TRY(spec_string(r, at, json, "output", NULL, &output));
    TRY(spec_name(r, &output_at, output));
    uint32_t node = 1;
    TRY(read_layers(r, &layers_at, spec_get(json, "layers"), "layers", b, &node));
    TRY(add_output(r, &b->tables, &b->n_tables, output, node));
    TRY(spec_decision(r, at, json, &b->tables[0]));
    return copy_outputs(r, b);
}

/* ---- fanout -------------------------------------------------------------------------------- */

/* at: of the branch's layers; json: a list, or an object that holds one. */
static enum status read_branch(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, const char *name, uint32_t prefix_end,
                               struct graph_block *b)
{
    const struct spec_path inner = {at, "layers", 0};
    const struct spec_path *layers_at = at;
    const cJSON *layers = json;
    TRY(spec_name(r, at, name));
    for (size_t i = 0; i < b->n_tables; i++)
        if (strcmp(b->tables[i].name, name) == 0)
            return spec_fail(r, ST_SPEC, at, "a second branch of name %s", name);
    if (cJSON_IsObject(json)) {
        layers_at = &inner;
        layers = spec_get(json, "layers");
        if (layers == NULL)
            return spec_missing(r, at, "layers", "a branch");
    } else if (!cJSON_IsArray(json)) {
        return spec_expected(r, at, json, "a list of layers or an object with \"layers\"");
    }
    char *prefix = str_printf("branches.%s", name);
    if (prefix == NULL)
        return err_nomem(r->err, strlen(name) + 10);
    uint32_t node = prefix_end;
    enum status st = read_layers(r, layers_at, layers, prefix, b, &node);
    free(prefix);
    TRY(st);
    TRY(add_output(r, &b->tables, &b->n_tables, name, node));
    return cJSON_IsObject(json) ? spec_decision(r, at, json, &b->tables[b->n_tables - 1]) : ST_OK;
}

static enum status read_branches(const struct spec_reader *r, const struct spec_path *at,
                                 const cJSON *json, uint32_t prefix_end, struct graph_block *b)
{
    size_t i = 0;
    if (!cJSON_IsArray(json) && !cJSON_IsObject(json))
        return spec_expected(r, at, json, "an object {name: layers} or a list of {name, layers}");
    for (const cJSON *item = json->child; item != NULL; item = item->next, i++) {
        const struct spec_path by_name = {at, item->string, 0}, by_index = {at, NULL, i};
        if (cJSON_IsObject(json)) {
            /* "comment" with a string is free at every level, a branch may have that name */
            if (strcmp(item->string, "comment") == 0 && cJSON_IsString(item))
                continue;
            if (cJSON_IsObject(item))
                TRY(SPEC_OBJECT(r, &by_name, item, "layers", "decision"));
            TRY(read_branch(r, &by_name, item, item->string, prefix_end, b));
            continue;
        }
        const char *name = NULL;
        TRY(SPEC_OBJECT(r, &by_index, item, "name", "layers", "decision"));
        TRY(spec_string(r, &by_index, item, "name", "a branch", &name));
        TRY(read_branch(r, &by_index, item, name, prefix_end, b));
    }
    if (b->n_tables == 0)
        return spec_fail(r, ST_SPEC, at, "expected at least one branch, found none");
    return ST_OK;
}

/* "name", or {"name", "after"}: the value after that many prefix layers. */
static enum status read_residual(const struct spec_reader *r, const struct spec_path *at,
                                 const cJSON *json, uint32_t prefix_end, struct graph_block *b)
{
    const char *name = NULL;
    uint64_t after = 0;
    if (cJSON_IsString(json)) {
        name = json->valuestring;
    } else if (cJSON_IsObject(json)) {
        TRY(SPEC_OBJECT(r, at, json, "name", "after"));
        TRY(spec_string(r, at, json, "name", "residual", &name));
        TRY(spec_u64(r, at, json, "after", (struct spec_range){0, prefix_end - 1}, &after));
    } else {
        return spec_expected(r, at, json, "a name or an object {\"name\", \"after\"}");
    }
    TRY(spec_name(r, at, name));
    for (size_t i = 0; i < b->n_tables; i++)
        if (strcmp(b->tables[i].name, name) == 0)
            return spec_fail(r, ST_SPEC, at, "residual %s is also a branch", name);
    return add_output(r, &b->tables, &b->n_tables, name, (uint32_t)(1 + after));
}

static enum status read_fanout(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, struct graph_block *b)
{
    const struct spec_path prefix_at = {at, "prefix", 0}, branches_at = {at, "branches", 0},
                           residual_at = {at, "residual", 0};
    const cJSON *prefix = spec_get(json, "prefix"), *residual = spec_get(json, "residual");
    if (spec_get(json, "branches") == NULL)
        return spec_missing(r, at, "branches", "fanout");
    uint32_t node = 1;
    if (prefix != NULL)
        TRY(read_layers(r, &prefix_at, prefix, "prefix", b, &node));
    TRY(read_branches(r, &branches_at, spec_get(json, "branches"), node, b));
    if (residual != NULL)
        TRY(read_residual(r, &residual_at, residual, node, b));
    return copy_outputs(r, b);
}

/* ---- projected ----------------------------------------------------------------------------- */

/* One node of a projected block: op over `input`, named after what it gives. */
static enum status projected_node(const struct spec_reader *r, struct graph_block *b,
                                  const struct spec_path *at, struct graph_node *node,
                                  const char *name, uint32_t input, uint32_t *index)
{
    node->n_inputs = 1;
    node->inputs[0] = input;
    return take_node(r, b, node, str_dup(name), at, index);
}

/* tables z = linear(e) without bias, r = max(|e|, eps); results linear(e) and linear(e / r). */
static enum status build_projected(const struct spec_reader *r, const struct spec_path *at,
                                   struct graph_node linear, double eps, struct graph_block *b)
{
    const struct spec_path linear_at = {at, "linear", 0}, eps_at = {at, "normalize_eps", 0};
    struct graph_node node = linear;
    uint32_t z, radius, raw, unit, normalized;
    b->bias_weight = linear.weights[ROLE_BIAS];
    node.weights[ROLE_BIAS] = -1;
    TRY(projected_node(r, b, &linear_at, &node, "linear", 1, &z));
    graph_node_init(&node, OP_L2_NORM);
    node.numbers[NUM_EPS] = eps;
    TRY(projected_node(r, b, &eps_at, &node, "l2_norm", 1, &radius));
    raw = z;
    if (b->bias_weight >= 0) {
        node = linear;
        TRY(projected_node(r, b, &linear_at, &node, "raw", 1, &raw));
    }
    graph_node_init(&node, OP_L2_NORMALIZE);
    node.numbers[NUM_EPS] = eps;
    TRY(projected_node(r, b, &eps_at, &node, "l2_normalize", 1, &unit));
    node = linear;
    TRY(projected_node(r, b, &linear_at, &node, "normalized", unit, &normalized));
    TRY(add_output(r, &b->tables, &b->n_tables, "z", z));
    TRY(add_output(r, &b->tables, &b->n_tables, "r", radius));
    TRY(add_output(r, &b->results, &b->n_results, "raw", raw));
    return add_output(r, &b->results, &b->n_results, "normalized", normalized);
}

static enum status read_projected(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *json, struct graph_block *b)
{
    const struct spec_path linear_at = {at, "linear", 0};
    double eps = 0;
    if (spec_get(json, "linear") == NULL)
        return spec_missing(r, at, "linear", "projected");
    if (!cJSON_IsObject(spec_get(json, "linear")))
        return spec_expected(r, &linear_at, spec_get(json, "linear"), "an object");
    TRY(spec_nonnegative(r, at, json, "normalize_eps", "projected", &eps));
    TRY(spec_bool(r, at, json, "retain_projection", &b->retain_projection));
    struct graph_node linear;
    graph_node_init(&linear, OP_LINEAR);
    TRY(spec_attributes(r, &linear_at, spec_get(json, "linear"), NULL, 0, &b->graph, &linear));
    return build_projected(r, at, linear, eps, b);
}

/* ---- any block ----------------------------------------------------------------------------- */

static enum status read_consumers(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *block, struct graph_block *b)
{
    const struct spec_path here = {at, "external_consumers", 0};
    const cJSON *json = spec_get(block, "external_consumers");
    if (json == NULL)
        return ST_OK;
    TRY(spec_array(r, &here, json));
    size_t n = (size_t)cJSON_GetArraySize(json);
    void *memory;
    TRY(spec_alloc(r, n, sizeof(char *), &memory));
    b->external_consumers = memory;
    b->n_external_consumers = n;
    TRY(spec_alloc(r, n, sizeof(char *), &memory));
    b->external_backings = memory;
    size_t i = 0;
    for (const cJSON *item = json->child; item != NULL; item = item->next, i++) {
        const struct spec_path item_at = {&here, NULL, i};
        if (!cJSON_IsString(item) || item->valuestring[0] == '\0')
            return spec_expected(r, &item_at, item, "a string (the name of a tensor)");
        TRY(spec_dup(r, item->valuestring, &b->external_consumers[i]));
        TRY(spec_dup(r, spec_backing(r->spec, item->valuestring), &b->external_backings[i]));
    }
    return ST_OK;
}

static enum status check_keys(const struct spec_reader *r, const struct spec_path *at,
                              const cJSON *json, enum graph_block_kind kind)
{
    switch (kind) {
    case BLOCK_LOOKUP:
        return SPEC_OBJECT(r, at, json, "kind", "name", "embedding", "layers", "output", "decision",
                           "external_consumers");
    case BLOCK_FANOUT:
        return SPEC_OBJECT(r, at, json, "kind", "name", "embedding", "prefix", "branches",
                           "residual", "external_consumers");
    default:
        return SPEC_OBJECT(r, at, json, "kind", "name", "embedding", "linear", "normalize_eps",
                           "retain_projection", "external_consumers");
    }
}

enum status spec_block(const struct spec_reader *r, const struct spec_path *at, const cJSON *json,
                       struct graph_block *b)
{
    b->bias_weight = -1;
    if (!cJSON_IsObject(json))
        return spec_expected(r, at, json, "an object");
    const struct spec_path kind_at = {at, "kind", 0}, name_at = {at, "name", 0};
    unsigned kind = 0;
    const char *name = "block";
    if (spec_get(json, "kind") == NULL)
        return spec_missing(r, at, "kind", "a block");
    TRY(spec_choice(r, &kind_at, spec_get(json, "kind"), "lookup|fanout|projected", &kind));
    TRY(spec_string(r, at, json, "name", NULL, &name));
    TRY(spec_name(r, &name_at, name));
    b->kind = (enum graph_block_kind)kind;
    TRY(check_keys(r, at, json, b->kind));
    TRY(spec_dup(r, name, &b->name));
    b->where = spec_path_dup(at);
    if (b->where == NULL)
        return err_nomem(r->err, SPEC_PATH_SIZE);
    TRY(read_embedding(r, at, json, b));
    switch (b->kind) {
    case BLOCK_LOOKUP:
        TRY(read_lookup(r, at, json, b));
        break;
    case BLOCK_FANOUT:
        TRY(read_fanout(r, at, json, b));
        break;
    case BLOCK_PROJECTED:
        TRY(read_projected(r, at, json, b));
        break;
    }
    return read_consumers(r, at, json, b);
}
