/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cr_internal.h"
#include "kernels/kernels_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct kernels_linear {
    const struct kernels *k; /* borrowed */
    enum dtype dt;
    int n_out, n_in;
    bool wide; /* F64: double arrays */
    void *w, *bias;
    struct cr_linear *exact; /* ARITH_CORRECTLY_ROUNDED; then w and bias are NULL */
};

static enum status copy_array(const void *from, size_t n, size_t element, void **to,
                              struct err *err)
{
    TRY(mem_alloc(n, element, to, err));
    if (n != 0)
        memcpy(*to, from, n * element);
    return ST_OK;
}

static enum status open_library(struct kernels_linear *l, const void *w, const void *bias,
                                struct err *err)
{
    size_t element = l->wide ? sizeof(double) : sizeof(float), count = 0;
    if (!mul_size((size_t)l->n_out, (size_t)l->n_in, &count))
        return err_set(err, ST_USAGE, "linear: %d by %d weights overflow", l->n_out, l->n_in);
    TRY(copy_array(w, count, element, &l->w, err));
    if (bias != NULL)
        TRY(copy_array(bias, (size_t)l->n_out, element, &l->bias, err));
    return ST_OK;
}

enum status kernels_linear_open(const struct kernels *k, enum arithmetic arith, enum dtype dt,
                                size_t n_out, size_t n_in, const void *w, const void *bias,
                                struct kernels_linear **out, struct err *err)
{
    *out = NULL;
    struct kernels_linear *l = calloc(1, sizeof *l);
    if (l == NULL)
        return err_nomem(err, sizeof *l);
    l->k = k;
    l->dt = dt;
    l->wide = dtype_compute(dt) == DT_F64;
    enum status st = ST_OK;
    if (!size_to_int(n_out, &l->n_out) || !size_to_int(n_in, &l->n_in))
        st = err_set(err, ST_USAGE, "linear: [%zu, %zu]: expected sizes up to %d", n_out, n_in,
                     INT_MAX);
    else if (arith == ARITH_CORRECTLY_ROUNDED)
        st = cr_linear_open(k, dt, n_out, n_in, w, bias, &l->exact, err);
    else
        st = open_library(l, w, bias, err);
    if (st != ST_OK) {
        kernels_linear_close(&l);
        return st;
    }
    *out = l;
    return ST_OK;
}

void kernels_linear_close(struct kernels_linear **l)
{
    if (l == NULL || *l == NULL)
        return;
    cr_linear_close(&(*l)->exact);
    free((*l)->w);
    free((*l)->bias);
    free(*l);
    *l = NULL;
}

void kernels_linear_counts(const struct kernels_linear *l, uint64_t counts[3])
{
    if (l->exact != NULL)
        cr_linear_counts(l->exact, counts);
    else
        memset(counts, 0, 3 * sizeof *counts);
}

static void prefill(const struct kernels_linear *l, size_t m, void *y)
{
    size_t row = (size_t)l->n_out * (l->wide ? sizeof(double) : sizeof(float));
    for (size_t i = 0; i < m; i++)
        memcpy((char *)y + i * row, l->bias, row);
}

static void add_bias(const struct kernels_linear *l, size_t m, void *y)
{
    const size_t n = (size_t)l->n_out;
    for (size_t i = 0; i < m; i++) {
        if (l->wide) {
            double *row = (double *)y + i * n;
            for (size_t j = 0; j < n; j++)
                row[j] += ((const double *)l->bias)[j];
        } else {
            float *row = (float *)y + i * n;
            for (size_t j = 0; j < n; j++)
                row[j] += ((const float *)l->bias)[j];
        }
    }
}

/* F.linear's call (NUMERICS.md D).  A single output feature makes PyTorch compute the transposed
 * product, in which w is the one row and the tokens are the columns. */
static struct gemm_call linear_call(const struct kernels_linear *l, int m, double beta)
{
    const int depth = l->n_in > 0 ? l->n_in : 1;
    struct gemm_call g = {.m = m,
                          .n = l->n_out,
                          .k = l->n_in,
                          .lda = depth,
                          .ldb = depth,
                          .ldc = l->n_out,
                          .transpose_b = true,
                          .alpha = 1,
                          .beta = beta};
    if (l->n_out == 1 && m > 1) {
        g.m = 1;
        g.n = m;
        g.ldc = m;
    }
    return g;
}

static enum status run_library(struct kernels_linear *l, size_t rows, const void *x,
                               enum bias_mode mode, void *y, struct err *err)
{
    int m = 0;
    if (!size_to_int(rows, &m))
        return err_set(err, ST_USAGE, "linear: %zu rows: expected up to %d", rows, INT_MAX);
    if (m == 0 || l->n_out == 0)
        return ST_OK;
    const bool filled = l->bias != NULL && mode == BIAS_PREFILLED;
    if (filled)
        prefill(l, rows, y);
    const struct gemm_call g = linear_call(l, m, filled ? 1 : 0);
    const bool swapped = g.m != m;
    const void *a = swapped ? l->w : x, *b = swapped ? x : l->w;
    if (l->wide)
        l->k->gemm_f64(l->k, &g, a, b, y);
    else
        l->k->gemm_f32(l->k, &g, a, b, y);
    if (l->bias != NULL && !filled)
        add_bias(l, rows, y);
    if (!l->wide)
        kernels_round_f32(l->dt, y, rows * (size_t)l->n_out);
    return ST_OK;
}

enum status kernels_linear_run(struct kernels_linear *l, size_t m, const void *x,
                               enum bias_mode mode, void *y, struct err *err)
{
    if (l->exact != NULL)
        return cr_linear_run(l->exact, m, x, y, err);
    return run_library(l, m, x, mode, y, err);
}

static bool general_call(const struct kernels_gemm *g, struct gemm_call *out)
{
    *out = (struct gemm_call){.transpose_a = g->transpose_a,
                              .transpose_b = g->transpose_b,
                              .alpha = g->alpha,
                              .beta = g->beta};
    return size_to_int(g->m, &out->m) && size_to_int(g->n, &out->n) && size_to_int(g->k, &out->k) &&
           size_to_int(g->lda, &out->lda) && size_to_int(g->ldb, &out->ldb) &&
           size_to_int(g->ldc, &out->ldc);
}

/* cblas reports a bad leading dimension on stderr and goes on: refuse it before. */
static bool strides_fit(const struct kernels_gemm *g)
{
    size_t a = g->transpose_a ? g->m : g->k, b = g->transpose_b ? g->k : g->n;
    return g->lda >= a && g->lda > 0 && g->ldb >= b && g->ldb > 0 && g->ldc >= g->n && g->ldc > 0;
}

enum status kernels_gemm_run(const struct kernels *k, const struct kernels_gemm *g, const void *a,
                             const void *b, void *c, struct err *err)
{
    struct gemm_call call;
    if (!general_call(g, &call) || !strides_fit(g))
        return err_set(err, ST_USAGE,
                       "gemm: m %zu, n %zu, k %zu, strides %zu, %zu, %zu: expected sizes up to %d "
                       "and strides of a row at least",
                       g->m, g->n, g->k, g->lda, g->ldb, g->ldc, INT_MAX);
    if (g->m == 0 || g->n == 0)
        return ST_OK;
    if (g->compute == DT_F64)
        k->gemm_f64(k, &call, a, b, c);
    else
        k->gemm_f32(k, &call, a, b, c);
    return ST_OK;
}
