/* SPDX-License-Identifier: Apache-2.0 */
/* The graph form: an enclosing model as inputs, nodes in topological order, outputs. */
#include "formats/spec_internal.h"
#include "formats/spec_model.h"
#include "formats/formats_internal.h"

#include <stdlib.h>
#include <string.h>

static bool find_node(const struct graph *g, const char *name, uint32_t *index)
{
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (strcmp(g->nodes[i].name, name) == 0) {
            *index = (uint32_t)i;
            return true;
        }
    }
    return false;
}

/* A node named by `json`; later: all nodes of the graph, to tell a late declaration from a typing
 * error. */
static enum status read_reference(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *json, const struct graph *g, const cJSON *later,
                                  uint32_t *index)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    if (!cJSON_IsString(json))
        return spec_expected(r, at, json, "a string (the name of an input or node)");
    const char *name = json->valuestring, *nearest = NULL;
    if (find_node(g, name, index))
        return ST_OK;
    for (const cJSON *n = later == NULL ? NULL : later->child; n != NULL; n = n->next) {
        const cJSON *its = spec_get(n, "name");
        if (cJSON_IsString(its) && strcmp(its->valuestring, name) == 0)
            return spec_fail(r, ST_SPEC, at,
                             "%s is declared at this node or later; nodes read earlier ones",
                             format_printable(name, shown));
    }
    for (size_t i = 0; i < g->n_nodes; i++)
        if (nearest == NULL || str_distance(name, g->nodes[i].name) < str_distance(name, nearest))
            nearest = g->nodes[i].name;
    return spec_fail(r, ST_SPEC, at, "no input or node %s, nearest is %s",
                     format_printable(name, shown), nearest == NULL ? "none" : nearest);
}

/* The string member "name" of an object, free to use in the graph. */
static enum status read_name(const struct spec_reader *r, const struct spec_path *at,
                             const cJSON *json, const struct graph *g, const char *what,
                             const char **name)
{
    const struct spec_path here = {at, "name", 0};
    uint32_t other;
    TRY(spec_string(r, at, json, "name", what, name));
    TRY(spec_name(r, &here, *name));
    if (find_node(g, *name, &other))
        return spec_fail(r, ST_SPEC, &here, "%s is already the name of %s", *name,
                         g->nodes[other].where);
    return ST_OK;
}

/* ---- inputs -------------------------------------------------------------------------------- */

static enum status check_input_dtype(const struct spec_reader *r, const struct spec_path *at,
                                     const cJSON *json, struct graph_model_input *input)
{
    bool whole = input->kind == INPUT_TOKEN_IDS || input->kind == INPUT_INTEGERS;
    if (json == NULL) {
        input->dtype = whole ? DT_I64 : DT_F32;
        return ST_OK;
    }
    if (cJSON_IsString(json))
        input->dtype = dtype_from_name(json->valuestring, strlen(json->valuestring));
    bool good = whole ? input->dtype == DT_I64 || input->dtype == DT_I32
                : input->kind == INPUT_MASK
                    ? dtype_is_computable(input->dtype) || input->dtype == DT_BOOL
                    : dtype_is_computable(input->dtype);
    if (good)
        return ST_OK;
    return spec_expected(r, at, json,
                         whole ? "\"I64\" or \"I32\""
                         : input->kind == INPUT_MASK
                             ? "\"F64\", \"F32\", \"F16\", \"BF16\" or \"BOOL\""
                             : "\"F64\", \"F32\", \"F16\" or \"BF16\"");
}

static enum status read_input(const struct spec_reader *r, const struct spec_path *at,
                              const cJSON *json, struct graph_model *m)
{
    const struct spec_path kind_at = {at, "kind", 0}, dtype_at = {at, "dtype", 0};
    struct graph_model_input *input = &m->inputs[m->n_inputs];
    const char *name = NULL;
    unsigned kind = 0;
    *input = (struct graph_model_input){.dtype = DT_UNKNOWN};
    TRY(SPEC_OBJECT(r, at, json, "name", "dtype", "kind"));
    TRY(read_name(r, at, json, &m->graph, "an input", &name));
    if (spec_get(json, "kind") == NULL)
        return spec_missing(r, at, "kind", "an input");
    TRY(spec_choice(r, &kind_at, spec_get(json, "kind"), "token_ids|values|mask|integers", &kind));
    input->kind = (enum graph_input_kind)kind;
    TRY(check_input_dtype(r, &dtype_at, spec_get(json, "dtype"), input));
    TRY(spec_dup(r, name, &input->name));
    m->n_inputs++;
    struct graph_node node;
    graph_node_init(&node, OP_INPUT);
    node.name = str_dup(name);
    node.where = spec_path_dup(at);
    enum status st = graph_node_take(&m->graph, &node, &input->node, r->err);
    graph_node_free(&node);
    return st;
}

/* ---- nodes --------------------------------------------------------------------------------- */

static enum status read_node_inputs(const struct spec_reader *r, const struct spec_path *at,
                                    const cJSON *json, const struct graph_model *m,
                                    const cJSON *all, struct graph_node *node)
{
    const struct spec_path here = {at, "inputs", 0};
    const cJSON *list = spec_get(json, "inputs");
    const struct graph_op_info *info = graph_op(node->op);
    if (list == NULL)
        return spec_missing(r, at, "inputs", "a node");
    TRY(spec_array(r, &here, list));
    int n = cJSON_GetArraySize(list);
    if (n < (int)info->min_inputs || n > (int)info->max_inputs) {
        if (info->min_inputs == info->max_inputs)
            return spec_fail(r, ST_SPEC, &here, "%s takes %u inputs, found %d", info->name,
                             info->min_inputs, n);
        return spec_fail(r, ST_SPEC, &here, "%s takes %u to %u inputs, found %d", info->name,
                         info->min_inputs, info->max_inputs, n);
    }
    size_t i = 0;
    for (const cJSON *item = list->child; item != NULL; item = item->next, i++) {
        const struct spec_path item_at = {&here, NULL, i};
        TRY(read_reference(r, &item_at, item, &m->graph, all, &node->inputs[i]));
    }
    node->n_inputs = (unsigned)n;
    if (node->op == OP_EMBEDDING || node->op == OP_LOOKUP) {
        const struct spec_path item_at = {&here, NULL, 0};
        for (i = 0; i < m->n_inputs; i++)
            if (m->inputs[i].node == node->inputs[0] && m->inputs[i].kind == INPUT_TOKEN_IDS)
                return ST_OK;
        return spec_fail(r, ST_SPEC, &item_at,
                         "%s reads token ids, %s is no input of kind token_ids", info->name,
                         list->child->valuestring);
    }
    return ST_OK;
}

static enum status read_node(const struct spec_reader *r, const struct spec_path *at,
                             const cJSON *json, const cJSON *all, struct graph_model *m)
{
    static const char *const keys[] = {"name", "op", "inputs"};
    enum graph_op op;
    const char *name = NULL;
    uint32_t index;
    TRY(spec_op(r, at, json, false, &op));
    TRY(read_name(r, at, json, &m->graph, "a node", &name));
    struct graph_node node;
    graph_node_init(&node, op);
    enum status st = read_node_inputs(r, at, json, m, all, &node);
    if (st == ST_OK)
        st = spec_attributes(r, at, json, keys, 3, &m->graph, &node);
    if (st == ST_OK) {
        node.name = str_dup(name);
        node.where = spec_path_dup(at);
        st = graph_node_take(&m->graph, &node, &index, r->err);
    }
    graph_node_free(&node);
    return st;
}

/* ---- outputs ------------------------------------------------------------------------------- */

static enum status read_output(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, struct graph_model *m)
{
    const struct spec_path name_at = {at, "name", 0}, node_at = {at, "node", 0};
    struct graph_output *output = &m->outputs[m->n_outputs];
    const char *name = NULL;
    *output = (struct graph_output){.dtype = DT_UNKNOWN};
    TRY(SPEC_OBJECT(r, at, json, "name", "node", "decision"));
    TRY(spec_string(r, at, json, "name", "an output", &name));
    TRY(spec_name(r, &name_at, name));
    for (size_t i = 0; i < m->n_outputs; i++)
        if (strcmp(m->outputs[i].name, name) == 0)
            return spec_fail(r, ST_SPEC, &name_at, "a second output of name %s", name);
    if (spec_get(json, "node") == NULL)
        return spec_missing(r, at, "node", "an output");
    TRY(read_reference(r, &node_at, spec_get(json, "node"), &m->graph, NULL, &output->node));
    TRY(spec_decision(r, at, json, output));
    TRY(spec_dup(r, name, &output->name));
    m->n_outputs++;
    return ST_OK;
}

/* A list of the graph object that may not be absent or empty; *n its length. */
static enum status read_list(const struct spec_reader *r, const struct spec_path *at,
                             const cJSON *graph, const char *key, const cJSON **list, size_t *n)
{
    const struct spec_path here = {at, key, 0};
    *list = spec_get(graph, key);
    if (*list == NULL)
        return spec_missing(r, at, key, "graph");
    TRY(spec_array(r, &here, *list));
    if ((*list)->child == NULL)
        return spec_fail(r, ST_SPEC, &here, "expected at least one entry, found none");
    *n = (size_t)cJSON_GetArraySize(*list);
    return ST_OK;
}

static enum status read_model(const struct spec_reader *r, const cJSON *json, struct graph_model *m)
{
    const struct spec_path root = {0}, at = {&root, "graph", 0};
    const struct spec_path inputs_at = {&at, "inputs", 0}, nodes_at = {&at, "nodes", 0},
                           outputs_at = {&at, "outputs", 0};
    const cJSON *inputs, *nodes, *outputs, *item;
    size_t n_inputs = 0, n_nodes = 0, n_outputs = 0, i = 0;
    void *memory;
    TRY(SPEC_OBJECT(r, &at, json, "inputs", "nodes", "outputs", "regions"));
    TRY(read_list(r, &at, json, "inputs", &inputs, &n_inputs));
    TRY(read_list(r, &at, json, "nodes", &nodes, &n_nodes));
    TRY(read_list(r, &at, json, "outputs", &outputs, &n_outputs));
    TRY(spec_alloc(r, n_inputs, sizeof *m->inputs, &memory));
    m->inputs = memory;
    TRY(spec_alloc(r, n_outputs, sizeof *m->outputs, &memory));
    m->outputs = memory;
    for (item = inputs->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {&inputs_at, NULL, i};
        TRY(read_input(r, &here, item, m));
    }
    i = 0;
    for (item = nodes->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {&nodes_at, NULL, i};
        TRY(read_node(r, &here, item, nodes, m));
    }
    i = 0;
    for (item = outputs->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {&outputs_at, NULL, i};
        TRY(read_output(r, &here, item, m));
    }
    return ST_OK;
}

/* ---- regions ------------------------------------------------------------------------------- */

void format_regions_free(struct format_region **regions, size_t n)
{
    for (size_t i = 0; *regions != NULL && i < n; i++) {
        free((*regions)[i].name);
        free((*regions)[i].where);
        free((*regions)[i].nodes);
    }
    free(*regions);
    *regions = NULL;
}

static enum status read_region(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, const struct graph_model *m,
                               const struct format_region *before, size_t n_before,
                               struct format_region *region)
{
    const struct spec_path name_at = {at, "name", 0}, nodes_at = {at, "nodes", 0};
    const cJSON *nodes = spec_get(json, "nodes");
    const char *name = NULL;
    void *memory = NULL;
    TRY(SPEC_OBJECT(r, at, json, "name", "nodes"));
    TRY(spec_string(r, at, json, "name", "a region", &name));
    TRY(spec_name(r, &name_at, name));
    for (size_t i = 0; i < n_before; i++)
        if (strcmp(before[i].name, name) == 0)
            return spec_fail(r, ST_SPEC, &name_at, "a second region of name %s", name);
    TRY(spec_dup(r, name, &region->name));
    region->where = spec_path_dup(at);
    if (region->where == NULL)
        return err_nomem(r->err, SPEC_PATH_SIZE);
    if (nodes == NULL)
        return spec_missing(r, at, "nodes", "a region");
    TRY(spec_array(r, &nodes_at, nodes));
    if (nodes->child == NULL)
        return spec_fail(r, ST_SPEC, &nodes_at, "expected at least one node, found none");
    TRY(spec_alloc(r, (size_t)cJSON_GetArraySize(nodes), sizeof *region->nodes, &memory));
    region->nodes = memory;
    for (const cJSON *item = nodes->child; item != NULL; item = item->next) {
        const struct spec_path here = {&nodes_at, NULL, region->n_nodes};
        TRY(read_reference(r, &here, item, &m->graph, NULL, &region->nodes[region->n_nodes]));
        region->n_nodes++;
    }
    return ST_OK;
}

enum status format_spec_regions(const struct format_spec *s, const struct graph_model *m,
                                struct format_region **out, size_t *n, struct err *err)
{
    const struct spec_reader r = {s, err};
    const struct spec_path root = {0}, graph_at = {&root, "graph", 0},
                           at = {&graph_at, "regions", 0};
    const cJSON *json = spec_get(s->graph, "regions");
    void *memory = NULL;
    enum status st = ST_OK;
    *out = NULL;
    *n = 0;
    if (json == NULL)
        return ST_OK;
    TRY(spec_array(&r, &at, json));
    if (json->child == NULL)
        return spec_fail(&r, ST_SPEC, &at, "expected at least one region, found none");
    TRY(spec_alloc(&r, (size_t)cJSON_GetArraySize(json), sizeof **out, &memory));
    *out = memory;
    for (const cJSON *item = json->child; item != NULL && st == ST_OK; item = item->next) {
        const struct spec_path here = {&at, NULL, *n};
        (*n)++;
        st = read_region(&r, &here, item, m, *out, *n - 1, &(*out)[*n - 1]);
    }
    if (st != ST_OK) {
        format_regions_free(out, *n);
        *n = 0;
    }
    return st;
}

enum status format_spec_graph(const struct format_spec *s, struct graph_model **out,
                              struct err *err)
{
    const struct spec_reader r = {s, err};
    void *memory;
    *out = NULL;
    if (s->graph == NULL)
        return ST_OK;
    TRY(spec_alloc(&r, 1, sizeof **out, &memory));
    struct graph_model *m = memory;
    struct format_region *regions = NULL;
    size_t n_regions = 0;
    enum status st = read_model(&r, s->graph, m);
    if (st == ST_OK)
        st = format_spec_regions(s, m, &regions, &n_regions, err);
    format_regions_free(&regions, n_regions);
    if (st != ST_OK)
        graph_model_free(&m);
    *out = m;
    return st;
}
