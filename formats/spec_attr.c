/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/spec_internal.h"
#include "formats/formats_internal.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which op ------------------------------------------------------------------------------ */

/* Names that other programs use with more than one meaning, or in another spelling. */
static const struct {
    const char *name, *hint;
} op_hints[] = {
    {"gelu", "write gelu_erf or gelu_tanh: the two differ by up to 4.8e-4"},
    {"gelu_new", "write gelu_tanh"},
    {"gelu_pytorch_tanh", "write gelu_tanh"},
    {"swish", "write silu"},
    {"layernorm", "write layer_norm"},
    {"rmsnorm", "write rms_norm, or float32_rms_norm where the variance is formed in float32"},
    {"normalize", "write l2_normalize"},
};

/* Nearest op that a place of a spec may hold. */
static const char *nearest_op(const char *name, bool in_block)
{
    const char *best = graph_op_nearest(name);
    unsigned best_distance = UINT_MAX;
    for (int op = 0; in_block && op < OP_COUNT; op++) {
        const char *its = graph_op((enum graph_op)op)->name;
        unsigned distance = str_distance(name, its);
        if (graph_op_is_layer((enum graph_op)op) && distance < best_distance) {
            best = its;
            best_distance = distance;
        }
    }
    return best;
}

static enum status unknown_op(const struct spec_reader *r, const struct spec_path *at,
                              const char *name, bool in_block)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    format_printable(name, shown);
    const char *reason = graph_op_reason(name);
    if (reason != NULL)
        return spec_fail(r, ST_STRUCTURE, at, "%s %s", shown, reason);
    for (size_t i = 0; i < sizeof op_hints / sizeof op_hints[0]; i++)
        if (strcmp(op_hints[i].name, name) == 0)
            return spec_fail(r, ST_SPEC, at, "unknown op \"%s\": %s", shown, op_hints[i].hint);
    return spec_fail(r, ST_SPEC, at, "unknown op \"%s\", nearest is \"%s\"", shown,
                     nearest_op(name, in_block));
}

enum status spec_op(const struct spec_reader *r, const struct spec_path *at, const cJSON *json,
                    bool in_block, enum graph_op *op)
{
    const struct spec_path here = {at, "op", 0};
    const char *name = NULL;
    if (!cJSON_IsObject(json))
        return spec_expected(r, at, json, "an object with a key \"op\"");
    TRY(spec_string(r, at, json, "op", in_block ? "a layer" : "a node", &name));
    *op = graph_op_find(name);
    if (*op == OP_COUNT)
        return unknown_op(r, &here, name, in_block);
    if (in_block && !graph_op_is_layer(*op)) {
        const char *reason = graph_op_reason(name);
        if (reason != NULL)
            return spec_fail(r, ST_STRUCTURE, &here, "%s %s", name, reason);
        return spec_fail(r, ST_SPEC, &here,
                         "%s is an op of the graph form, not of a block's layers", name);
    }
    if (!in_block && *op == OP_INPUT)
        return spec_fail(r, ST_SPEC, &here, "inputs are declared in graph.inputs");
    return ST_OK;
}

/* ---- split --------------------------------------------------------------------------------- */

/* What of a weight all tensors of a node share. */
struct slicing {
    bool in_out;
    struct graph_weight split; /* the split fields alone */
};

static const struct spec_range any_count = {1, INT32_MAX};

/* heads, kv_heads, head_dim and which of q, k, v. */
static enum status split_heads(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, struct graph_weight *w)
{
    static const char *const needed[] = {"heads", "head_dim", "part"};
    for (size_t i = 0; i < 3; i++)
        if (spec_get(json, needed[i]) == NULL)
            return spec_missing(r, at, needed[i], "a split by heads");
    TRY(spec_u32(r, at, json, "heads", any_count, &w->heads));
    TRY(spec_u32(r, at, json, "head_dim", any_count, &w->head_dim));
    w->kv_heads = w->heads;
    TRY(spec_u32(r, at, json, "kv_heads", any_count, &w->kv_heads));
    const struct spec_path part = {at, "part", 0};
    TRY(spec_choice(r, &part, spec_get(json, "part"), "q|k|v", &w->part));
    if (w->heads % w->kv_heads != 0)
        return spec_fail(r, ST_SPEC, at, "heads %u, expected a multiple of kv_heads %u", w->heads,
                         w->kv_heads);
    return ST_OK;
}

static enum status split_blocks(const struct spec_reader *r, const struct spec_path *at,
                                const cJSON *json, struct graph_weight *w)
{
    bool by_rows = spec_get(json, "first") != NULL || spec_get(json, "count") != NULL;
    bool by_parts = spec_get(json, "parts") != NULL;
    bool by_heads = spec_get(json, "heads") != NULL;
    if (by_rows + by_parts + by_heads != 1)
        return spec_fail(r, ST_SPEC, at,
                         "expected one of {\"part\", \"parts\"}, {\"first\", \"count\"} and "
                         "{\"heads\", \"kv_heads\", \"head_dim\", \"part\"}");
    if (by_heads) {
        TRY(SPEC_OBJECT(r, at, json, "mode", "heads", "kv_heads", "head_dim", "part"));
        TRY(split_heads(r, at, json, w));
        uint64_t q = (uint64_t)w->heads * w->head_dim, kv = (uint64_t)w->kv_heads * w->head_dim;
        w->slice_first = w->part == 0 ? 0 : q + (w->part == 2 ? kv : 0);
        w->slice_count = w->part == 0 ? q : kv;
        return ST_OK;
    }
    unsigned axis = 0;
    const struct spec_path axis_at = {at, "axis", 0};
    if (spec_get(json, "axis") != NULL)
        TRY(spec_choice(r, &axis_at, spec_get(json, "axis"), "out|in", &axis));
    w->split_inputs = axis == 1;
    if (by_rows) {
        TRY(SPEC_OBJECT(r, at, json, "mode", "first", "count", "axis"));
        if (spec_get(json, "count") == NULL)
            return spec_missing(r, at, "count", "a split by first and count");
        TRY(spec_u64(r, at, json, "first", (struct spec_range){0, INT64_MAX}, &w->slice_first));
        return spec_u64(r, at, json, "count", (struct spec_range){1, INT64_MAX}, &w->slice_count);
    }
    TRY(SPEC_OBJECT(r, at, json, "mode", "part", "parts", "axis"));
    if (spec_get(json, "part") == NULL)
        return spec_missing(r, at, "part", "a split in parts");
    TRY(spec_u32(r, at, json, "parts", any_count, &w->n_parts));
    return spec_u32(r, at, json, "part", (struct spec_range){0, w->n_parts - 1}, &w->part);
}

static enum status read_split(const struct spec_reader *r, const struct spec_path *at,
                              const cJSON *json, struct graph_weight *w)
{
    const struct spec_path mode_at = {at, "mode", 0};
    unsigned mode = 0;
    TRY(SPEC_OBJECT(r, at, json, "mode", "part", "parts", "first", "count", "axis", "heads",
                    "kv_heads", "head_dim"));
    if (spec_get(json, "mode") == NULL)
        return spec_missing(r, at, "mode", "split");
    TRY(spec_choice(r, &mode_at, spec_get(json, "mode"), "blocks|per_head_interleaved", &mode));
    w->split = mode == 0 ? SPLIT_BLOCKS : SPLIT_PER_HEAD_INTERLEAVED;
    if (mode == 0)
        return split_blocks(r, at, json, w);
    TRY(SPEC_OBJECT(r, at, json, "mode", "heads", "kv_heads", "head_dim", "part"));
    return split_heads(r, at, json, w);
}

/* ---- attributes ---------------------------------------------------------------------------- */

static enum status read_tensor(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, const struct slicing *slicing, bool is_vector,
                               struct graph *g, int32_t *index)
{
    if (!cJSON_IsString(json) || json->valuestring[0] == '\0')
        return spec_expected(r, at, json, "a string (the name of a tensor)");
    struct graph_weight w = {.dtype = DT_UNKNOWN};
    /* A fused matrix has a fused bias; columns of the matrix are no part of the bias. */
    if (!is_vector || !slicing->split.split_inputs)
        w = slicing->split;
    w.in_out = slicing->in_out && !is_vector;
    w.tensor = str_dup(json->valuestring);
    w.backing = str_dup(spec_backing(r->spec, json->valuestring));
    w.where = spec_path_dup(at);
    return graph_weight_take(g, &w, index, r->err);
}

static enum status read_number(const struct spec_reader *r, const struct spec_path *at,
                               const cJSON *json, const struct graph_attr *a, double *out)
{
    char expected[120], lo[40], hi[40];
    double x = cJSON_IsNumber(json) ? json->valuedouble : NAN;
    bool whole = a->kind != ATTR_NUMBER;
    if (isfinite(x) && x >= a->min && x <= a->max && (!whole || x == (double)(int64_t)x)) {
        *out = x;
        return ST_OK;
    }
    const char *kind = whole ? "a whole number" : "a finite number";
    str_double(a->min, lo, sizeof lo);
    str_double(a->max, hi, sizeof hi);
    if (a->min < -1e300)
        snprintf(expected, sizeof expected, "%s", kind);
    else if (a->max > 1e300 && a->min > 0 && a->min < 1e-300)
        snprintf(expected, sizeof expected, "%s above 0", kind);
    else if (a->max > 1e300)
        snprintf(expected, sizeof expected, "%s, %s or more", kind, lo);
    else
        snprintf(expected, sizeof expected, "%s from %s to %s", kind, lo, hi);
    return spec_expected(r, at, json, expected);
}

static enum status read_dtype(const struct spec_reader *r, const struct spec_path *at,
                              const cJSON *json, double *out)
{
    if (cJSON_IsString(json)) {
        enum dtype dt = dtype_from_name(json->valuestring, strlen(json->valuestring));
        if (dtype_is_computable(dt)) {
            *out = (double)dt;
            return ST_OK;
        }
    }
    return spec_expected(r, at, json, "\"F64\", \"F32\", \"F16\" or \"BF16\"");
}

static enum status read_dims(const struct spec_reader *r, const struct spec_path *at,
                             const cJSON *json, struct graph_node *node)
{
    TRY(spec_array(r, at, json));
    int n = cJSON_GetArraySize(json);
    if (n < 1 || n > GRAPH_MAX_DIMS)
        return spec_fail(r, ST_SPEC, at, "expected 1 to %d whole numbers, found %d", GRAPH_MAX_DIMS,
                         n);
    const cJSON *item = json->child;
    for (size_t i = 0; i < (size_t)n; i++, item = item->next) {
        const struct spec_path here = {at, NULL, i};
        double x = cJSON_IsNumber(item) ? item->valuedouble : NAN;
        if (!(x >= -1 && x <= INT32_MAX) || x != (double)(int64_t)x)
            return spec_expected(r, &here, item, "a whole number, -1 or more");
        node->dims[i] = (int64_t)x;
    }
    node->n_dims = (unsigned)n;
    return ST_OK;
}

/* What is read before any tensor of the node, since it decides what they are. */
static enum status read_slicing(const struct spec_reader *r, const struct spec_path *at,
                                const cJSON *json, enum graph_op op, struct slicing *slicing)
{
    const struct spec_path orientation_at = {at, "orientation", 0}, split_at = {at, "split", 0};
    const cJSON *orientation = spec_get(json, "orientation"), *split = spec_get(json, "split");
    unsigned choice = 0;
    if (orientation != NULL && graph_attr_find(op, "orientation") != NULL)
        TRY(spec_choice(r, &orientation_at, orientation, "out_in|in_out", &choice));
    slicing->in_out = choice == 1;
    slicing->split.dtype = DT_UNKNOWN;
    if (split != NULL && graph_attr_find(op, "split") != NULL)
        TRY(read_split(r, &split_at, split, &slicing->split));
    return ST_OK;
}

static enum status read_attribute(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *json, const struct graph_attr *a,
                                  const struct slicing *slicing, struct graph *g,
                                  struct graph_node *node)
{
    unsigned choice = 0;
    switch (a->kind) {
    case ATTR_NUMBER:
    case ATTR_COUNT:
    case ATTR_INTEGER:
        return read_number(r, at, json, a, &node->numbers[a->slot]);
    case ATTR_BOOL:
        if (!cJSON_IsBool(json))
            return spec_expected(r, at, json, "true or false");
        node->numbers[a->slot] = cJSON_IsTrue(json) ? 1 : 0;
        return ST_OK;
    case ATTR_DTYPE:
        return read_dtype(r, at, json, &node->numbers[a->slot]);
    case ATTR_CHOICE:
        TRY(spec_choice(r, at, json, a->choices, &choice));
        node->numbers[a->slot] = choice;
        return ST_OK;
    case ATTR_TENSOR:
        return read_tensor(r, at, json, slicing, strcmp(a->key, "bias") == 0, g,
                           &node->weights[a->slot]);
    case ATTR_DIMS:
        return read_dims(r, at, json, node);
    case ATTR_TEXT:
        if (!cJSON_IsString(json) || json->valuestring[0] == '\0')
            return spec_expected(r, at, json, "a string that is not empty");
        return spec_dup(r, json->valuestring, &node->texts[a->slot]);
    case ATTR_ORIENTATION:
    case ATTR_SPLIT:
        break;
    }
    return ST_OK;
}

static bool divides(double a, double b)
{
    return (int64_t)b % (int64_t)a == 0;
}

/* Rules between attributes that the table cannot state. */
static enum status check_together(const struct spec_reader *r, const struct spec_path *at,
                                  const struct graph_node *node)
{
    const double *x = node->numbers;
    switch (node->op) {
    case OP_HARDTANH:
        if (!(x[NUM_MIN] <= x[NUM_MAX]))
            return spec_fail(r, ST_SPEC, at, "hardtanh: min %g above max %g", x[NUM_MIN],
                             x[NUM_MAX]);
        return ST_OK;
    case OP_CELU:
        if (x[NUM_ALPHA] == 0)
            return spec_fail(r, ST_SPEC, at, "celu: alpha 0, expected another number");
        return ST_OK;
    case OP_ATTENTION:
        if (x[NUM_KV_HEADS] != 0 && !divides(x[NUM_KV_HEADS], x[NUM_HEADS]))
            return spec_fail(r, ST_SPEC, at,
                             "attention: heads %g, expected a multiple of kv_heads %g",
                             x[NUM_HEADS], x[NUM_KV_HEADS]);
        return ST_OK;
    case OP_ROPE:
        if (x[NUM_ROTARY_DIM] > x[NUM_HEAD_DIM] || !divides(2, x[NUM_ROTARY_DIM]) ||
            (x[NUM_ROTARY_DIM] == 0 && !divides(2, x[NUM_HEAD_DIM])))
            return spec_fail(r, ST_SPEC, at,
                             "rope: rotary_dim %g, expected an even number up to head_dim %g",
                             x[NUM_ROTARY_DIM], x[NUM_HEAD_DIM]);
        return ST_OK;
    case OP_MOE:
        if (x[NUM_K] > x[NUM_EXPERTS])
            return spec_fail(r, ST_SPEC, at, "moe: k %g above experts %g", x[NUM_K],
                             x[NUM_EXPERTS]);
        return ST_OK;
    case OP_LSTM: {
        bool both = x[NUM_BIDIRECTIONAL] != 0;
        if (both != (node->weights[ROLE_EXTRA] >= 0) || node->n_inputs != (both ? 2 : 1) ||
            (both && x[NUM_REVERSE] != 0))
            return spec_fail(r, ST_SPEC, at,
                             "lstm: expected one input, or bidirectional with two inputs (forward, "
                             "backward pre-activations) and weight_backward, without reverse");
        return ST_OK;
    }
    default:
        return ST_OK;
    }
}

static enum status check_keys(const struct spec_reader *r, const struct spec_path *at,
                              const cJSON *json, const char *const *extra, size_t n_extra,
                              enum graph_op op)
{
    enum { MAX_KEYS = 24 };
    const struct graph_op_info *info = graph_op(op);
    const char *known[MAX_KEYS];
    size_t n = 0;
    for (size_t i = 0; i < n_extra && n < MAX_KEYS; i++)
        known[n++] = extra[i];
    for (size_t i = 0; i < info->n_attrs && n < MAX_KEYS; i++)
        known[n++] = info->attrs[i].key;
    if (cJSON_IsTrue(spec_get(json, "training"))) {
        const struct spec_path here = {at, "training", 0};
        return spec_fail(r, ST_STRUCTURE, &here,
                         "training mode: the result is not a function of the token");
    }
    return spec_object(r, at, json, known, n);
}

enum status spec_attributes(const struct spec_reader *r, const struct spec_path *at,
                            const cJSON *json, const char *const *extra, size_t n_extra,
                            struct graph *g, struct graph_node *node)
{
    const struct graph_op_info *info = graph_op(node->op);
    struct slicing slicing = {0};
    if (node->op == OP_EMBEDDING)
        TRY(spec_embedding_keys(r, at, json));
    TRY(check_keys(r, at, json, extra, n_extra, node->op));
    TRY(read_slicing(r, at, json, node->op, &slicing));
    for (size_t i = 0; i < info->n_attrs; i++) {
        const struct graph_attr *a = &info->attrs[i];
        const struct spec_path here = {at, a->key, 0};
        const cJSON *item = spec_get(json, a->key);
        if (item != NULL)
            TRY(read_attribute(r, &here, item, a, &slicing, g, node));
        else if (a->required)
            return spec_missing(r, at, a->key, info->name);
    }
    return check_together(r, at, node);
}

enum status spec_embedding_keys(const struct spec_reader *r, const struct spec_path *at,
                                const cJSON *json)
{
    const struct spec_path max_norm = {at, "max_norm", 0}, sparse = {at, "sparse", 0};
    if (!cJSON_IsObject(json))
        return spec_expected(r, at, json, "an object with a key \"weight\"");
    if (spec_get(json, "max_norm") != NULL)
        return spec_fail(r, ST_STRUCTURE, &max_norm,
                         "max_norm changes the weights during a lookup, so results depend on the "
                         "order of calls; write it as a layer: {\"op\": \"renorm\", \"max_norm\": "
                         "...}");
    if (cJSON_IsTrue(spec_get(json, "sparse")))
        return spec_fail(r, ST_STRUCTURE, &sparse,
                         "sparse embeddings are for training and are not tabulated");
    static const char *const inert[] = {"padding_idx", "scale_grad_by_freq", "norm_type"};
    for (size_t i = 0; i < sizeof inert / sizeof inert[0]; i++) {
        const struct spec_path here = {at, inert[i], 0};
        if (spec_get(json, inert[i]) != NULL)
            return spec_fail(r, ST_SPEC, &here,
                             "unknown key: it changes no row of a frozen table, leave it out");
    }
    return ST_OK;
}

enum status spec_decision(const struct spec_reader *r, const struct spec_path *at,
                          const cJSON *object, struct graph_output *output)
{
    const struct spec_path here = {at, "decision", 0};
    const cJSON *json = spec_get(object, "decision");
    if (json == NULL)
        return ST_OK;
    TRY(SPEC_OBJECT(r, &here, json, "top_k", "softmax"));
    if (spec_get(json, "top_k") == NULL)
        return spec_missing(r, &here, "top_k", "decision");
    TRY(spec_u32(r, &here, json, "top_k", any_count, &output->decision_top_k));
    return spec_bool(r, &here, json, "softmax", &output->decision_softmax);
}
