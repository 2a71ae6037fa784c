/* SPDX-License-Identifier: Apache-2.0 */
/* The spec of a rewritten model: nodes stay as their author wrote them, so that a reader sees what
 * has changed. */
#include "formats/spec_model.h"

#include <cjson/cJSON.h>
#include <string.h>

static const struct format_replacement *find(const struct format_replacement *list, size_t n,
                                             size_t node)
{
    for (size_t i = 0; i < n; i++)
        if (list[i].node == node)
            return &list[i];
    return NULL;
}

static cJSON *lookup_node(const char *name, const char *ids, const struct format_replacement *r)
{
    cJSON *node = cJSON_CreateObject();
    cJSON *inputs = node == NULL ? NULL : cJSON_AddArrayToObject(node, "inputs");
    cJSON *input = inputs == NULL ? NULL : cJSON_CreateString(ids);
    bool good = input != NULL && cJSON_AddItemToArray(inputs, input) &&
                cJSON_AddStringToObject(node, "name", name) != NULL &&
                cJSON_AddStringToObject(node, "op", "lookup") != NULL &&
                cJSON_AddStringToObject(node, "recipe", r->recipe) != NULL &&
                cJSON_AddStringToObject(node, "output", r->output) != NULL;
    if (!good) {
        cJSON_Delete(node);
        return NULL;
    }
    return node;
}

/* Name of the token ids that node i depends on. */
static const char *ids_of(const struct graph *g, size_t i)
{
    while (g->nodes[i].op != OP_INPUT && g->nodes[i].n_inputs > 0)
        i = g->nodes[i].inputs[0];
    return g->nodes[i].name;
}

static bool write_nodes(const struct format_spec *s, const struct graph_model *m, const bool *keep,
                        const struct format_replacement *replaced, size_t n, cJSON *list)
{
    /* Inputs come first in the graph, then the nodes in their order. */
    size_t i = m->n_inputs;
    const cJSON *nodes = cJSON_GetObjectItemCaseSensitive(s->graph, "nodes");
    for (const cJSON *item = nodes->child; item != NULL; item = item->next, i++) {
        const struct format_replacement *r = find(replaced, n, i);
        cJSON *node = NULL;
        if (!keep[i])
            continue;
        if (r != NULL)
            node = lookup_node(m->graph.nodes[i].name, ids_of(&m->graph, i), r);
        else
            node = cJSON_Duplicate(item, true);
        if (node == NULL || !cJSON_AddItemToArray(list, node))
            return false;
    }
    return true;
}

static bool copy_member(const cJSON *from, const char *key, cJSON *to)
{
    cJSON *copy = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(from, key), true);
    return copy != NULL && cJSON_AddItemToObject(to, key, copy);
}

static bool write_aliases(const struct format_spec *s, cJSON *document)
{
    if (s->n_aliases == 0)
        return true;
    cJSON *aliases = cJSON_AddObjectToObject(document, "aliases");
    for (size_t i = 0; aliases != NULL && i < s->n_aliases; i++)
        if (cJSON_AddStringToObject(aliases, s->aliases[i].name, s->aliases[i].target) == NULL)
            return false;
    return aliases != NULL;
}

static bool write_document(const struct format_spec *s, const struct graph_model *m,
                           const bool *keep, const struct format_replacement *replaced, size_t n,
                           const char *checkpoint, cJSON *document)
{
    if (cJSON_AddNumberToObject(document, "tokentab", 1) == NULL ||
        cJSON_AddStringToObject(document, "checkpoint", checkpoint) == NULL ||
        cJSON_AddStringToObject(document, "mode", "eval") == NULL ||
        cJSON_AddStringToObject(document, "input_contract", "token_indices_only") == NULL ||
        !write_aliases(s, document))
        return false;
    cJSON *graph = cJSON_AddObjectToObject(document, "graph");
    if (graph == NULL || !copy_member(s->graph, "inputs", graph))
        return false;
    cJSON *nodes = cJSON_AddArrayToObject(graph, "nodes");
    return nodes != NULL && write_nodes(s, m, keep, replaced, n, nodes) &&
           copy_member(s->graph, "outputs", graph);
}

enum status format_spec_rewritten(const struct format_spec *s, const struct graph_model *m,
                                  const bool *keep, const struct format_replacement *replaced,
                                  size_t n, const char *checkpoint, struct bytes *out,
                                  struct err *err)
{
    cJSON *document = cJSON_CreateObject();
    char *text = NULL;
    if (document != NULL && write_document(s, m, keep, replaced, n, checkpoint, document))
        text = cJSON_Print(document);
    if (text != NULL) {
        bytes_append(out, text, strlen(text));
        bytes_append(out, "\n", 1);
    }
    enum status st = text == NULL || out->failed ? err_nomem(err, out->size) : ST_OK;
    cJSON_free(text);
    cJSON_Delete(document);
    return st;
}
