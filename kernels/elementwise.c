/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cr_internal.h"
#include "kernels/kernels_internal.h"

enum status kernels_elementwise(enum arithmetic arith, enum elementwise fn, enum dtype dt,
                                const double params[KERNELS_EW_PARAMS], size_t n, const void *x,
                                void *y, struct err *err)
{
    static const double none[KERNELS_EW_PARAMS] = {0};
    if (fn >= EW_COUNT)
        return err_set(err, ST_INTERNAL, "elementwise function %d: not known", (int)fn);
    if (params == NULL)
        params = none;
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_elementwise(fn, dt, params, n, x, y, err);
    if (dtype_compute(dt) == DT_F64) {
        row_loops_pick()->elementwise_f64(fn, params, n, x, y);
    } else {
        row_loops_pick()->elementwise_f32(fn, params, n, x, y);
        kernels_round_f32(dt, y, n);
    }
    return ST_OK;
}

#define BINARY_LOOP(op)                                                                            \
    for (size_t i = 0; i < n; i++)                                                                 \
    y[i] = a[i] op b[i]

static void binary_f32(enum binary op, size_t n, const float *a, const float *b, float *y)
{
    switch (op) {
    case BIN_ADD:
        BINARY_LOOP(+);
        break;
    case BIN_SUB:
        BINARY_LOOP(-);
        break;
    case BIN_MUL:
        BINARY_LOOP(*);
        break;
    case BIN_DIV:
        BINARY_LOOP(/);
        break;
    }
}

static void binary_f64(enum binary op, size_t n, const double *a, const double *b, double *y)
{
    switch (op) {
    case BIN_ADD:
        BINARY_LOOP(+);
        break;
    case BIN_SUB:
        BINARY_LOOP(-);
        break;
    case BIN_MUL:
        BINARY_LOOP(*);
        break;
    case BIN_DIV:
        BINARY_LOOP(/);
        break;
    }
}

enum status kernels_binary(enum arithmetic arith, enum binary op, enum dtype dt, size_t n,
                           const void *a, const void *b, void *y, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_binary(op, dt, n, a, b, y, err);
    if (dtype_compute(dt) == DT_F64) {
        binary_f64(op, n, a, b, y);
    } else {
        binary_f32(op, n, a, b, y);
        kernels_round_f32(dt, y, n);
    }
    return ST_OK;
}

enum status kernels_softmax(enum arithmetic arith, enum dtype dt, size_t m, size_t n, const void *x,
                            void *y, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_softmax(dt, m, n, x, y, err);
    if (dtype_compute(dt) == DT_F64) {
        row_loops_pick()->softmax_f64(m, n, x, y);
    } else {
        row_loops_pick()->softmax_f32(m, n, x, y);
        kernels_round_f32(dt, y, m * n);
    }
    return ST_OK;
}

/* Halves divide and add in double: a float quotient would be a second rounding where the result is
 * subnormal. */
static float combine_half(enum dtype dt, float z, const float *r, const float *b)
{
    float quotient = r != NULL ? f64_round_to(dt, (double)z / (double)*r) : z;
    return b != NULL ? f64_round_to(dt, (double)quotient + (double)*b) : quotient;
}

static void combine_f32(enum dtype dt, size_t n, const float *z, const float *r, const float *bias,
                        float *y)
{
    if (dt != DT_F32) {
        for (size_t j = 0; j < n; j++)
            y[j] = combine_half(dt, z[j], r, bias != NULL ? bias + j : NULL);
        return;
    }
    for (size_t j = 0; j < n; j++) {
        float quotient = r != NULL ? z[j] / *r : z[j];
        y[j] = bias != NULL ? quotient + bias[j] : quotient;
    }
}

static void combine_f64(size_t n, const double *z, const double *r, const double *bias, double *y)
{
    for (size_t j = 0; j < n; j++) {
        double quotient = r != NULL ? z[j] / *r : z[j];
        y[j] = bias != NULL ? quotient + bias[j] : quotient;
    }
}

enum status kernels_combine_projected(enum dtype dt, size_t m, size_t n, const void *z,
                                      const void *r, const void *bias, void *y, struct err *err)
{
    (void)err;
    for (size_t i = 0; i < m; i++) {
        if (dtype_compute(dt) == DT_F64)
            combine_f64(n, (const double *)z + i * n, r != NULL ? (const double *)r + i : NULL,
                        bias, (double *)y + i * n);
        else
            combine_f32(dt, n, (const float *)z + i * n, r != NULL ? (const float *)r + i : NULL,
                        bias, (float *)y + i * n);
    }
    return ST_OK;
}
