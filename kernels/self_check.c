/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kernels_internal.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

/* Shapes that reach the small, tail, split and block paths of the known cores (NUMERICS.md B). */
static const struct {
    int m, n, k;
} SHAPES[] = {{1, 48, 64}, {2, 37, 100}, {5, 8, 8}, {13, 33, 700}, {1, 21, 130}, {27, 16, 330}};
enum { MAX_M = 27, MAX_N = 48, MAX_K = 700 };

struct check_scratch {
    float xf[MAX_M * MAX_K], wf[MAX_N * MAX_K], yf[MAX_M * MAX_N];
    double xd[MAX_M * MAX_K], wd[MAX_N * MAX_K], yd[MAX_M * MAX_N];
    double expected[MAX_M * MAX_N], magnitude[MAX_M * MAX_N];
};

/* In [-1, 1), from the high bits of a 64-bit congruential generator. */
static double next_value(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 40) / (double)(1u << 23) - 1.0;
}

static enum status compare(const struct kernels *k, const char *kernel, const struct gemm_call *g,
                           const struct check_scratch *s, bool is_float, struct err *err)
{
    double unit = is_float ? FLT_EPSILON / 2.0 : DBL_EPSILON / 2.0;
    for (int i = 0; i < g->m * g->n; i++) {
        double found = is_float ? (double)s->yf[i] : s->yd[i];
        double bound = 2.0 * (g->k + 1) * unit * s->magnitude[i];
        if (fabs(found - s->expected[i]) <= bound)
            continue;
        return err_set(err, ST_KERNEL,
                       "%s of %s %s, core %s: m %d, n %d, k %d: element [%d, %d]: expected %.17g "
                       "within %.3g, found %.17g",
                       kernel, k->env.blas, k->env.blas_version, k->env.blas_core, g->m, g->n, g->k,
                       i / g->n, i % g->n, s->expected[i], bound, found);
    }
    return ST_OK;
}

static enum status check_shape(const struct kernels *k, int m, int n, int depth, double beta,
                               struct check_scratch *s, struct err *err)
{
    struct gemm_call g = {.m = m,
                          .n = n,
                          .k = depth,
                          .lda = depth,
                          .ldb = depth,
                          .ldc = n,
                          .transpose_b = true,
                          .alpha = 1,
                          .beta = beta};
    size_t rows = (size_t)m, cols = (size_t)n, terms = (size_t)depth;
    uint64_t state = 20u + (uint64_t)m;
    double bias[MAX_N];
    float bias_f[MAX_N];
    for (size_t i = 0; i < rows * terms; i++)
        s->xd[i] = s->xf[i] = (float)next_value(&state);
    for (size_t i = 0; i < cols * terms; i++)
        s->wd[i] = s->wf[i] = (float)next_value(&state);
    for (size_t i = 0; i < cols; i++)
        bias[i] = bias_f[i] = (float)next_value(&state);
    /* Without beta the result must not be read: leave NaN in it. */
    for (size_t i = 0; i < rows * cols; i++) {
        s->yd[i] = beta != 0 ? bias[i % cols] : NAN;
        s->yf[i] = beta != 0 ? bias_f[i % cols] : NAN;
    }
    kernels_reference_linear_f32(rows, cols, terms, s->xf, s->wf, beta != 0 ? bias_f : NULL,
                                 s->expected, s->magnitude);
    k->gemm_f32(k, &g, s->xf, s->wf, s->yf);
    TRY(compare(k, "sgemm", &g, s, true, err));
    /* Shift the double inputs off the floats' grid, so that their low bits matter. */
    for (size_t i = 0; i < rows * terms; i++)
        s->xd[i] += 0x1p-30 * next_value(&state);
    kernels_reference_linear_f64(rows, cols, terms, s->xd, s->wd, beta != 0 ? bias : NULL,
                                 s->expected, s->magnitude);
    k->gemm_f64(k, &g, s->xd, s->wd, s->yd);
    return compare(k, "dgemm", &g, s, false, err);
}

enum status kernels_self_check(const struct kernels *k, struct err *err)
{
    struct check_scratch *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_nomem(err, sizeof *s);
    enum status st = ST_OK;
    for (size_t i = 0; i < sizeof SHAPES / sizeof *SHAPES && st == ST_OK; i++) {
        st = check_shape(k, SHAPES[i].m, SHAPES[i].n, SHAPES[i].k, 0, s, err);
        if (st == ST_OK)
            st = check_shape(k, SHAPES[i].m, SHAPES[i].n, SHAPES[i].k, 1, s, err);
    }
    free(s);
    return st;
}
