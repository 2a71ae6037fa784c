/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cr_internal.h"
#include "kernels/kernels_internal.h"

#include <stdlib.h>

static bool is_wide(const struct kernels_norm *p)
{
    return dtype_compute(p->dt) == DT_F64;
}

/* A sum weight + offset rounded to `dt` (PyTorch adds in the dtype it holds the weight in). */
static double add_offset(const struct kernels_norm *p, size_t i)
{
    const enum dtype dt = p->weight_offset_dt;
    if (is_wide(p)) {
        double sum = ((const double *)p->weight)[i] + p->weight_offset;
        return dt == DT_UNKNOWN || dt == DT_F64 ? sum : (double)f64_round_to(dt, sum);
    }
    if (dt == DT_F64 || dt == DT_UNKNOWN || dt == DT_F32)
        return (double)(((const float *)p->weight)[i] + (float)p->weight_offset);
    return (double)f64_round_to(dt, (double)((const float *)p->weight)[i] + p->weight_offset);
}

/* The scale of an rms norm.  *scale is p->weight itself or an array in *owned. */
static enum status make_scale(const struct kernels_norm *p, size_t n, const void **scale,
                              void **owned, struct err *err)
{
    *owned = NULL;
    *scale = p->weight;
    if (p->weight == NULL || p->weight_offset == 0)
        return ST_OK;
    TRY(mem_alloc(n, is_wide(p) ? sizeof(double) : sizeof(float), owned, err));
    for (size_t i = 0; i < n; i++) {
        if (is_wide(p))
            ((double *)*owned)[i] = add_offset(p, i);
        else
            ((float *)*owned)[i] = (float)add_offset(p, i);
    }
    *scale = *owned;
    return ST_OK;
}

enum status kernels_layer_norm(enum arithmetic arith, const struct kernels_norm *p, size_t m,
                               size_t n, const void *x, void *y, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_layer_norm(p, m, n, x, y, err);
    const struct row_loops *loops = row_loops_pick();
    if (is_wide(p)) {
        loops->layer_norm_f64(m, n, x, p->weight, p->bias, p->eps, y);
    } else {
        loops->layer_norm_f32(m, n, x, p->weight, p->bias, (float)p->eps, y);
        kernels_round_f32(p->dt, y, m * n);
    }
    return ST_OK;
}

enum status kernels_rms_norm(enum arithmetic arith, const struct kernels_norm *p, size_t m,
                             size_t n, const void *x, void *y, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_rms_norm(p, m, n, x, y, err);
    const struct row_loops *loops = row_loops_pick();
    const void *scale = NULL;
    void *owned = NULL;
    TRY(make_scale(p, n, &scale, &owned, err));
    if (is_wide(p)) {
        loops->rms_norm_f64(m, n, x, scale, p->eps, y);
    } else {
        loops->rms_norm_f32(m, n, x, scale, (float)p->eps, y);
        kernels_round_f32(p->dt, y, m * n);
    }
    free(owned);
    return ST_OK;
}

static enum status float32_rms_f64(const struct kernels_norm *p, size_t m, size_t n,
                                   const double *x, const double *scale, double *y, struct err *err)
{
    const struct row_loops *loops = row_loops_pick();
    void *owned = NULL;
    TRY(mem_alloc(n, sizeof(float), &owned, err));
    float *row = owned;
    for (size_t i = 0; i < m; i++, x += n, y += n) {
        for (size_t j = 0; j < n; j++)
            row[j] = (float)x[j];
        loops->rms_norm_f32(1, n, row, NULL, (float)p->eps, row);
        kernels_round_f32(p->in_dt, row, n);
        for (size_t j = 0; j < n; j++)
            y[j] = scale != NULL ? scale[j] * (double)row[j] : (double)row[j];
    }
    free(owned);
    return ST_OK;
}

static void float32_rms_f32(const struct kernels_norm *p, size_t m, size_t n, const float *x,
                            const float *scale, float *y)
{
    row_loops_pick()->rms_norm_f32(m, n, x, NULL, (float)p->eps, y);
    kernels_round_f32(p->in_dt, y, m * n);
    if (scale == NULL)
        return;
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++)
            y[i * n + j] *= scale[j];
    kernels_round_f32(p->dt, y, m * n);
}

enum status kernels_float32_rms_norm(enum arithmetic arith, const struct kernels_norm *p, size_t m,
                                     size_t n, const void *x, void *y, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_float32_rms_norm(p, m, n, x, y, err);
    const void *scale = NULL;
    void *owned = NULL;
    TRY(make_scale(p, n, &scale, &owned, err));
    enum status st = ST_OK;
    if (is_wide(p))
        st = float32_rms_f64(p, m, n, x, scale, y, err);
    else
        float32_rms_f32(p, m, n, x, scale, y);
    free(owned);
    return st;
}

enum status kernels_l2_normalize(enum arithmetic arith, const struct kernels_norm *p, size_t m,
                                 size_t n, const void *x, void *y, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_l2_normalize(p, m, n, x, y, err);
    const struct row_loops *loops = row_loops_pick();
    for (size_t i = 0; i < m; i++) {
        if (is_wide(p)) {
            double r = 0;
            loops->l2_norm_f64(1, n, (const double *)x + i * n, p->eps, &r);
            loops->divide_rows_f64(1, n, (const double *)x + i * n, &r, (double *)y + i * n);
        } else {
            float r = 0;
            loops->l2_norm_f32(1, n, (const float *)x + i * n, (float)p->eps, &r);
            loops->divide_rows_f32(1, n, (const float *)x + i * n, &r, (float *)y + i * n);
        }
    }
    if (!is_wide(p))
        kernels_round_f32(p->dt, y, m * n);
    return ST_OK;
}

enum status kernels_l2_norm(enum arithmetic arith, const struct kernels_norm *p, size_t m, size_t n,
                            const void *x, void *r, struct err *err)
{
    if (arith == ARITH_CORRECTLY_ROUNDED)
        return cr_l2_norm(p, m, n, x, r, err);
    const struct row_loops *loops = row_loops_pick();
    if (is_wide(p)) {
        loops->l2_norm_f64(m, n, x, p->eps, r);
    } else {
        loops->l2_norm_f32(m, n, x, (float)p->eps, r);
        kernels_round_f32(p->dt, r, m);
    }
    return ST_OK;
}
