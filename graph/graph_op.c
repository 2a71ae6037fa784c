/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"

#include <float.h>
#include <string.h>

/* Attribute lists, one an op; each ends with an entry that is not counted. */
#define END                                                                                        \
    {                                                                                              \
        NULL, ATTR_NUMBER, -1, false, 0, 0, 0, NULL                                                \
    }
#define NUMBER(key, slot, preset, lo, hi)                                                          \
    {                                                                                              \
        key, ATTR_NUMBER, slot, false, preset, lo, hi, NULL                                        \
    }
#define NEED_NUMBER(key, slot, lo, hi)                                                             \
    {                                                                                              \
        key, ATTR_NUMBER, slot, true, 0, lo, hi, NULL                                              \
    }
#define COUNT(key, slot, preset)                                                                   \
    {                                                                                              \
        key, ATTR_COUNT, slot, false, preset, 1, GRAPH_MAX_COUNT, NULL                             \
    }
#define NEED_COUNT(key, slot)                                                                      \
    {                                                                                              \
        key, ATTR_COUNT, slot, true, 0, 1, GRAPH_MAX_COUNT, NULL                                   \
    }
#define INTEGER(key, slot, preset)                                                                 \
    {                                                                                              \
        key, ATTR_INTEGER, slot, false, preset, -GRAPH_MAX_COUNT, GRAPH_MAX_COUNT, NULL            \
    }
#define NEED_INTEGER(key, slot)                                                                    \
    {                                                                                              \
        key, ATTR_INTEGER, slot, true, 0, -GRAPH_MAX_COUNT, GRAPH_MAX_COUNT, NULL                  \
    }
#define BOOL(key, slot)                                                                            \
    {                                                                                              \
        key, ATTR_BOOL, slot, false, 0, 0, 1, NULL                                                 \
    }
#define NEED_BOOL(key, slot)                                                                       \
    {                                                                                              \
        key, ATTR_BOOL, slot, true, 0, 0, 1, NULL                                                  \
    }
#define DTYPE(key, slot)                                                                           \
    {                                                                                              \
        key, ATTR_DTYPE, slot, false, DT_UNKNOWN, 0, 0, NULL                                       \
    }
#define NEED_CHOICE(key, slot, choices)                                                            \
    {                                                                                              \
        key, ATTR_CHOICE, slot, true, 0, 0, 0, choices                                             \
    }
#define TENSOR(key, role)                                                                          \
    {                                                                                              \
        key, ATTR_TENSOR, role, false, 0, 0, 0, NULL                                               \
    }
#define NEED_TENSOR(key, role)                                                                     \
    {                                                                                              \
        key, ATTR_TENSOR, role, true, 0, 0, 0, NULL                                                \
    }
#define NEED_DIMS(key)                                                                             \
    {                                                                                              \
        key, ATTR_DIMS, -1, true, 0, -1, GRAPH_MAX_COUNT, NULL                                     \
    }
#define NEED_TEXT(key, slot)                                                                       \
    {                                                                                              \
        key, ATTR_TEXT, slot, true, 0, 0, 0, NULL                                                  \
    }
#define ORIENTATION                                                                                \
    {                                                                                              \
        "orientation", ATTR_ORIENTATION, -1, false, 0, 0, 0, "out_in|in_out"                       \
    }
#define SPLIT                                                                                      \
    {                                                                                              \
        "split", ATTR_SPLIT, -1, false, 0, 0, 0, NULL                                              \
    }
#define EPS NEED_NUMBER("eps", NUM_EPS, 0, DBL_MAX)
#define LOWEST (-DBL_MAX)
#define LIST(op, ...) static const struct graph_attr attrs_##op[] = {__VA_ARGS__, END};
#define NO_ATTRS(op) static const struct graph_attr attrs_##op[] = {END};

/* Counts fit an int, since BLAS takes them. */
#define GRAPH_MAX_COUNT 2147483647.0

NO_ATTRS(OP_INPUT)
LIST(OP_EMBEDDING, NEED_TENSOR("weight", ROLE_WEIGHT))
LIST(OP_LINEAR, NEED_TENSOR("weight", ROLE_WEIGHT), TENSOR("bias", ROLE_BIAS), ORIENTATION, SPLIT)
LIST(OP_LAYER_NORM, TENSOR("weight", ROLE_WEIGHT), TENSOR("bias", ROLE_BIAS), EPS)
LIST(OP_RMS_NORM, TENSOR("weight", ROLE_WEIGHT), EPS,
     NUMBER("weight_offset", NUM_WEIGHT_OFFSET, 0, LOWEST, DBL_MAX),
     DTYPE("weight_offset_dtype", NUM_WEIGHT_OFFSET_DTYPE), COUNT("groups", NUM_GROUPS, 1))
LIST(OP_FLOAT32_RMS_NORM, TENSOR("weight", ROLE_WEIGHT), EPS,
     NUMBER("weight_offset", NUM_WEIGHT_OFFSET, 0, LOWEST, DBL_MAX),
     DTYPE("weight_offset_dtype", NUM_WEIGHT_OFFSET_DTYPE), COUNT("groups", NUM_GROUPS, 1))
LIST(OP_L2_NORMALIZE, EPS)
LIST(OP_L2_NORM, EPS)
LIST(OP_RENORM, NEED_NUMBER("max_norm", NUM_MAX_NORM, 0, DBL_MAX))
LIST(OP_SCALE, NEED_NUMBER("value", NUM_VALUE, LOWEST, DBL_MAX),
     DTYPE("value_dtype", NUM_VALUE_DTYPE))
LIST(OP_BIAS, NEED_TENSOR("weight", ROLE_WEIGHT))
LIST(OP_DROPOUT, NUMBER("p", NUM_P, 0.5, 0, 1))
NO_ATTRS(OP_IDENTITY)
NO_ATTRS(OP_RELU)
NO_ATTRS(OP_RELU6)
NO_ATTRS(OP_GELU_ERF)
NO_ATTRS(OP_GELU_TANH)
NO_ATTRS(OP_QUICK_GELU)
NO_ATTRS(OP_SILU)
NO_ATTRS(OP_TANH)
NO_ATTRS(OP_SIGMOID)
LIST(OP_ELU, NUMBER("alpha", NUM_ALPHA, 1, LOWEST, DBL_MAX))
LIST(OP_CELU, NUMBER("alpha", NUM_ALPHA, 1, LOWEST, DBL_MAX))
LIST(OP_LEAKY_RELU, NUMBER("negative_slope", NUM_NEGATIVE_SLOPE, 0.01, LOWEST, DBL_MAX))
LIST(OP_SOFTPLUS, NUMBER("beta", NUM_BETA, 1, DBL_MIN, DBL_MAX),
     NUMBER("threshold", NUM_THRESHOLD, 20, LOWEST, DBL_MAX))
NO_ATTRS(OP_SOFTSIGN)
LIST(OP_HARDTANH, NUMBER("min", NUM_MIN, -1, LOWEST, DBL_MAX),
     NUMBER("max", NUM_MAX, 1, LOWEST, DBL_MAX))
NO_ATTRS(OP_HARDSWISH)
NO_ATTRS(OP_HARDSIGMOID)
NO_ATTRS(OP_MISH)
NO_ATTRS(OP_SELU)
NO_ATTRS(OP_ADD)
NO_ATTRS(OP_SUB)
NO_ATTRS(OP_MUL)
NO_ATTRS(OP_SOFTMAX)
LIST(OP_TOP_K, NEED_COUNT("k", NUM_K))
LIST(OP_TOP_K_VALUES, NEED_COUNT("k", NUM_K))
NO_ATTRS(OP_ARGMAX)
LIST(OP_MOE, NEED_TENSOR("slope", ROLE_WEIGHT), TENSOR("offset", ROLE_BIAS), NEED_COUNT("k", NUM_K),
     NEED_COUNT("experts", NUM_EXPERTS))
LIST(OP_CONCAT, INTEGER("axis", NUM_AXIS, -1))
LIST(OP_SLICE, INTEGER("axis", NUM_AXIS, -1), INTEGER("start", NUM_START, 0),
     NEED_INTEGER("stop", NUM_STOP))
LIST(OP_RESHAPE, NEED_DIMS("dims"))
LIST(OP_TRANSPOSE, NEED_DIMS("dims"))
LIST(OP_MATMUL, BOOL("transpose_b", NUM_TRANSPOSE_B))
LIST(OP_ROPE, NEED_COUNT("head_dim", NUM_HEAD_DIM),
     NUMBER("theta", NUM_THETA, 10000, DBL_MIN, DBL_MAX), COUNT("rotary_dim", NUM_ROTARY_DIM, 0),
     NEED_CHOICE("convention", NUM_CONVENTION, "half|interleaved"))
LIST(OP_ABSOLUTE_POSITION, NEED_TENSOR("weight", ROLE_WEIGHT))
LIST(OP_ATTENTION, NEED_COUNT("heads", NUM_HEADS), COUNT("kv_heads", NUM_KV_HEADS, 0),
     NEED_BOOL("causal", NUM_CAUSAL), NUMBER("scale", NUM_SCALE, 0, DBL_MIN, DBL_MAX))
LIST(OP_LSTM, NEED_TENSOR("weight", ROLE_RECURRENT), TENSOR("weight_backward", ROLE_EXTRA),
     NEED_CHOICE("gates", NUM_CONVENTION, "ifco|ifgo|iofc"), BOOL("reverse", NUM_REVERSE),
     BOOL("bidirectional", NUM_BIDIRECTIONAL), ORIENTATION)
NO_ATTRS(OP_MEAN_TOKENS)
NO_ATTRS(OP_SUM_TOKENS)
NO_ATTRS(OP_MAX_TOKENS)
LIST(OP_CONV1D, NEED_TENSOR("weight", ROLE_WEIGHT), TENSOR("bias", ROLE_BIAS))
NO_ATTRS(OP_TOKEN_SHIFT)
LIST(OP_BATCH_NORM, TENSOR("weight", ROLE_WEIGHT), TENSOR("bias", ROLE_BIAS), EPS)
LIST(OP_LOOKUP, NEED_TEXT("recipe", TEXT_RECIPE), NEED_TEXT("output", TEXT_OUTPUT))

static const struct graph_op_info op_infos[OP_COUNT] = {
#define X(id, name, locality, min, max)                                                            \
    [id] = {name, locality, min, max, attrs_##id, sizeof attrs_##id / sizeof attrs_##id[0] - 1},
    GRAPH_OPS(X)
#undef X
};

const struct graph_op_info *graph_op(enum graph_op op)
{
    return &op_infos[op];
}

enum graph_op graph_op_find(const char *name)
{
    int op = 0;
    while (op < OP_COUNT && strcmp(op_infos[op].name, name) != 0)
        op++;
    return (enum graph_op)op;
}

const struct graph_attr *graph_attr_find(enum graph_op op, const char *key)
{
    for (size_t i = 0; i < op_infos[op].n_attrs; i++)
        if (strcmp(op_infos[op].attrs[i].key, key) == 0)
            return &op_infos[op].attrs[i];
    return NULL;
}

const char *graph_op_nearest(const char *name)
{
    const char *best = op_infos[0].name;
    unsigned best_distance = str_distance(name, best);
    for (int op = 1; op < OP_COUNT; op++) {
        unsigned distance = str_distance(name, op_infos[op].name);
        if (distance < best_distance) {
            best = op_infos[op].name;
            best_distance = distance;
        }
    }
    return best;
}

bool graph_op_is_layer(enum graph_op op)
{
    return op >= OP_LINEAR && op <= OP_SELU && op != OP_L2_NORM;
}

#define MIXES_STATE "mixes tokens: its state carries the tokens before"
#define MIXES_NEIGHBOURS "mixes tokens: each row reads its neighbours"
#define MIXES_ROWS "mixes tokens: each row reads the other rows of its sequence"
#define MIXES_POOL "mixes tokens: it pools over the sequence"
#define POSITION_ROTARY                                                                            \
    "depends on the position: the angle of the rotation is the row's place in the sequence"
#define POSITION_ABSOLUTE                                                                          \
    "depends on the position: absolute positions are added before the first norm (GPT-2, BERT, "   \
    "Whisper), so the token alone does not determine the value"
#define POSITION_BIAS "depends on the position: the distance between rows enters"
#define MOVES_AXES                                                                                 \
    "moves elements between axes, so a row of its result is not a function of one token"

/* Ops of the table first, then names that other libraries give to layers of that kind. */
static const struct {
    const char *name, *reason;
} op_reasons[] = {
    {"attention", MIXES_ROWS},
    {"lstm", MIXES_STATE},
    {"conv1d", MIXES_NEIGHBOURS},
    {"token_shift", MIXES_NEIGHBOURS},
    {"mean_tokens", MIXES_POOL},
    {"sum_tokens", MIXES_POOL},
    {"max_tokens", MIXES_POOL},
    {"batch_norm", "mixes tokens: its statistics are those of the batch"},
    {"matmul", "mixes tokens: it multiplies activations of different rows"},
    {"rope", POSITION_ROTARY},
    {"absolute_position", POSITION_ABSOLUTE},
    {"reshape", MOVES_AXES},
    {"transpose", MOVES_AXES},
    {"self_attention", MIXES_ROWS},
    {"cross_attention", MIXES_ROWS},
    {"multihead_attention", MIXES_ROWS},
    {"scaled_dot_product_attention", MIXES_ROWS},
    {"rnn", MIXES_STATE},
    {"gru", MIXES_STATE},
    {"mamba", MIXES_STATE},
    {"time_mix", MIXES_STATE},
    {"conv", MIXES_NEIGHBOURS},
    {"conv2d", MIXES_NEIGHBOURS},
    {"depthwise_conv1d", MIXES_NEIGHBOURS},
    {"mean_pool", MIXES_POOL},
    {"max_pool", MIXES_POOL},
    {"avg_pool", MIXES_POOL},
    {"embedding_bag", MIXES_POOL},
    {"rotary", POSITION_ROTARY},
    {"rotary_embedding", POSITION_ROTARY},
    {"alibi", POSITION_BIAS},
    {"relative_position", POSITION_BIAS},
    {"position_embedding", POSITION_ABSOLUTE},
    {"positional_embedding", POSITION_ABSOLUTE},
    {"positional_encoding", POSITION_ABSOLUTE},
    {"learned_position", POSITION_ABSOLUTE},
};

const char *graph_op_reason(const char *name)
{
    for (size_t i = 0; i < sizeof op_reasons / sizeof op_reasons[0]; i++)
        if (strcmp(op_reasons[i].name, name) == 0)
            return op_reasons[i].reason;
    return NULL;
}
