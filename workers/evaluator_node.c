/* SPDX-License-Identifier: Apache-2.0 */
/* One node of a block over a matrix of rows. */
#include "workers/workers_internal.h"

#include <string.h>

/* Elementwise ops: kernel and the attributes it takes, in its order. */
struct elementwise_op {
    bool known;
    enum elementwise fn;
    int numbers[KERNELS_EW_PARAMS]; /* NUM_COUNT: none */
};

#define PLAIN(name) [OP_##name] = {true, EW_##name, {NUM_COUNT, NUM_COUNT}}
static const struct elementwise_op elementwise_ops[OP_COUNT] = {
    PLAIN(RELU),
    PLAIN(RELU6),
    PLAIN(GELU_ERF),
    PLAIN(GELU_TANH),
    PLAIN(QUICK_GELU),
    PLAIN(SILU),
    PLAIN(TANH),
    PLAIN(SIGMOID),
    PLAIN(SOFTSIGN),
    PLAIN(HARDSWISH),
    PLAIN(HARDSIGMOID),
    PLAIN(MISH),
    PLAIN(SELU),
    [OP_ELU] = {true, EW_ELU, {NUM_ALPHA, NUM_COUNT}},
    [OP_CELU] = {true, EW_CELU, {NUM_ALPHA, NUM_COUNT}},
    [OP_LEAKY_RELU] = {true, EW_LEAKY_RELU, {NUM_NEGATIVE_SLOPE, NUM_COUNT}},
    [OP_SOFTPLUS] = {true, EW_SOFTPLUS, {NUM_BETA, NUM_THRESHOLD}},
    [OP_HARDTANH] = {true, EW_HARDTANH, {NUM_MIN, NUM_MAX}},
    [OP_SCALE] = {true, EW_SCALE, {NUM_VALUE, NUM_COUNT}},
};
#undef PLAIN

static enum dtype number_dtype(double number)
{
    for (int dt = 0; dt < DT_UNKNOWN; dt++)
        if (number == dt)
            return (enum dtype)dt;
    return DT_UNKNOWN;
}

/* A declared value_dtype is part of the function (Gemma's sqrt(d) in bf16), so the double-precision
 * evaluation rounds the constant as well. */
static double scale_value(const struct graph_node *node)
{
    const double value = node->numbers[NUM_VALUE];
    const enum dtype dt = number_dtype(node->numbers[NUM_VALUE_DTYPE]);
    return !dtype_is_computable(dt) || dt == DT_F64 ? value : (double)f64_round_to(dt, value);
}

static bool op_is_known(const struct graph_node *node)
{
    switch (node->op) {
    case OP_INPUT:
    case OP_EMBEDDING:
    case OP_LINEAR:
    case OP_LAYER_NORM:
    case OP_RMS_NORM:
    case OP_FLOAT32_RMS_NORM:
    case OP_L2_NORMALIZE:
    case OP_L2_NORM:
    case OP_RENORM:
    case OP_BIAS:
    case OP_DROPOUT:
    case OP_IDENTITY:
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
        return true;
    case OP_SOFTMAX:
        return node->n_inputs == 1; /* the second is a mask */
    default:
        return elementwise_ops[node->op].known;
    }
}

enum status ev_node_prepare(struct ev_node *n, struct err *err)
{
    if (!op_is_known(n->node))
        return err_set(err, ST_STRUCTURE, "%s: %s cannot be evaluated in a token-local block",
                       n->node->where != NULL ? n->node->where : n->node->name,
                       graph_op(n->node->op)->name);
    const struct elementwise_op *op = &elementwise_ops[n->node->op];
    for (size_t i = 0; op->known && i < KERNELS_EW_PARAMS; i++)
        n->params[i] = op->numbers[i] == NUM_COUNT ? 0 : n->node->numbers[op->numbers[i]];
    if (n->node->op == OP_SCALE)
        n->params[0] = scale_value(n->node);
    return ST_OK;
}

static enum status run_norm(const struct ev_node *n, const struct ev_mode *mode, size_t rows,
                            const struct ev_inputs *in, void *y, struct err *err)
{
    const struct graph_node *node = n->node;
    const enum arithmetic arith = mode->arithmetic;
    const void *x = in->x[0];
    const struct kernels_norm p = {
        .dt = n->dt,
        .in_dt = in->dt,
        .eps = node->numbers[NUM_EPS],
        .weight = n->weight,
        .bias = n->bias,
        .weight_offset = node->numbers[NUM_WEIGHT_OFFSET],
        .weight_offset_dt =
            mode->exact ? DT_UNKNOWN : number_dtype(node->numbers[NUM_WEIGHT_OFFSET_DTYPE])};
    size_t groups = node->op == OP_RMS_NORM || node->op == OP_FLOAT32_RMS_NORM
                        ? (size_t)node->numbers[NUM_GROUPS]
                        : 1;
    if (groups == 0 || n->width % groups != 0)
        return err_set(err, ST_STRUCTURE, "%s: %zu groups do not divide width %zu", node->name,
                       groups, n->width);
    const size_t m = rows * groups, width = n->width / groups;
    switch (node->op) {
    case OP_LAYER_NORM:
        return kernels_layer_norm(arith, &p, m, width, x, y, err);
    case OP_FLOAT32_RMS_NORM:
        if (!mode->exact)
            return kernels_float32_rms_norm(arith, &p, m, width, x, y, err);
        /* fall through - in double the two roundings are gone, and this is rms_norm */
    case OP_RMS_NORM:
        return kernels_rms_norm(arith, &p, m, width, x, y, err);
    default:
        return kernels_l2_normalize(arith, &p, m, width, x, y, err);
    }
}

/* torch.nn.functional.embedding's renorm: rows longer than max_norm are multiplied by
 * max_norm / (norm + 1e-7), a factor computed in double.  These steps define the op under correctly
 * rounded arithmetic too: their bits are the same everywhere. */
static void renorm_row(const struct ev_node *n, double r, const void *x, void *y)
{
    const double max_norm = n->node->numbers[NUM_MAX_NORM], factor = max_norm / (r + 1e-7);
    if (!(r > max_norm)) {
        memcpy(y, x, n->row_bytes);
    } else if (n->compute == DT_F64) {
        for (size_t i = 0; i < n->width; i++)
            ((double *)y)[i] = ((const double *)x)[i] * factor;
    } else {
        for (size_t i = 0; i < n->width; i++)
            ((float *)y)[i] = ((const float *)x)[i] * (float)factor;
        kernels_round_f32(n->dt, y, n->width);
    }
}

static enum status run_renorm(const struct ev_node *n, enum arithmetic arith, size_t rows,
                              const void *x, void *y, struct err *err)
{
    /* The radius keeps the compute dtype: only the product is rounded to storage. */
    const struct kernels_norm p = {.dt = n->compute, .in_dt = n->compute, .eps = 0};
    for (size_t i = 0; i < rows; i++) {
        const char *row = (const char *)x + i * n->row_bytes;
        union {
            float f32;
            double f64;
        } r = {.f64 = 0};
        TRY(kernels_l2_norm(arith, &p, 1, n->width, row, &r, err));
        renorm_row(n, n->compute == DT_F64 ? r.f64 : (double)r.f32, row,
                   (char *)y + i * n->row_bytes);
    }
    return ST_OK;
}

/* One vector for all rows; each sum is rounded once. */
static enum status run_bias(const struct ev_node *n, enum arithmetic arith, size_t rows,
                            const void *x, void *y, struct err *err)
{
    for (size_t i = 0; i < rows; i++)
        TRY(kernels_binary(arith, BIN_ADD, n->dt, n->width, (const char *)x + i * n->row_bytes,
                           n->weight, (char *)y + i * n->row_bytes, err));
    return ST_OK;
}

static enum status run_radius(const struct ev_node *n, enum arithmetic arith, size_t rows,
                              const struct ev_inputs *in, void *y, struct err *err)
{
    const struct kernels_norm p = {.dt = n->dt, .in_dt = in->dt, .eps = n->node->numbers[NUM_EPS]};
    return kernels_l2_norm(arith, &p, rows, in->width, in->x[0], y, err);
}

enum status ev_node_run(const struct ev_node *n, const struct ev_mode *mode, size_t rows,
                        const struct ev_inputs *in, void *y, struct err *err)
{
    const struct graph_node *node = n->node;
    const enum arithmetic arith = mode->arithmetic;
    const size_t count = rows * n->width;
    switch (node->op) {
    case OP_LAYER_NORM:
    case OP_RMS_NORM:
    case OP_FLOAT32_RMS_NORM:
    case OP_L2_NORMALIZE:
        return run_norm(n, mode, rows, in, y, err);
    case OP_L2_NORM:
        return run_radius(n, arith, rows, in, y, err);
    case OP_RENORM:
        return run_renorm(n, arith, rows, in->x[0], y, err);
    case OP_BIAS:
        return run_bias(n, arith, rows, in->x[0], y, err);
    case OP_DROPOUT:
    case OP_IDENTITY:
        memcpy(y, in->x[0], rows * n->row_bytes);
        return ST_OK;
    case OP_ADD:
        return kernels_binary(arith, BIN_ADD, n->dt, count, in->x[0], in->x[1], y, err);
    case OP_SUB:
        return kernels_binary(arith, BIN_SUB, n->dt, count, in->x[0], in->x[1], y, err);
    case OP_MUL:
        return kernels_binary(arith, BIN_MUL, n->dt, count, in->x[0], in->x[1], y, err);
    case OP_SOFTMAX:
        return kernels_softmax(arith, n->dt, rows, n->width, in->x[0], y, err);
    default:
        return kernels_elementwise(arith, elementwise_ops[node->op].fn, n->dt, n->params, count,
                                   in->x[0], y, err);
    }
}
