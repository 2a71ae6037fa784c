/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with known execution classes, for tests of what depends on them. */
#include "kernels/kernels_internal.h"

#include <stdio.h>
#include <string.h>

#if TOKENTAB_FAULTS

enum order { ORDER_FORWARD, ORDER_REVERSE, ORDER_PAIRS, ORDER_BROKEN };

/* Element (i, l) of op(a), and of op(b) with (l, j). */
static size_t index_a(const struct gemm_call *g, int i, int l)
{
    return g->transpose_a ? (size_t)l * (size_t)g->lda + (size_t)i
                          : (size_t)i * (size_t)g->lda + (size_t)l;
}

static size_t index_b(const struct gemm_call *g, int l, int j)
{
    return g->transpose_b ? (size_t)j * (size_t)g->ldb + (size_t)l
                          : (size_t)l * (size_t)g->ldb + (size_t)j;
}

static enum order reference_order(const struct gemm_call *g, int row)
{
    (void)g;
    (void)row;
    return ORDER_FORWARD;
}

static enum order three_classes_order(const struct gemm_call *g, int row)
{
    (void)row;
    return g->m == 1 ? ORDER_REVERSE : g->m < 16 ? ORDER_PAIRS : ORDER_FORWARD;
}

static enum order position_order(const struct gemm_call *g, int row)
{
    return g->m % 2 == 1 && row == g->m - 1 ? ORDER_PAIRS : ORDER_FORWARD;
}

static enum order reverse_order(const struct gemm_call *g, int row)
{
    (void)g;
    (void)row;
    return ORDER_REVERSE;
}

static enum order broken_order(const struct gemm_call *g, int row)
{
    return row == g->m - 1 ? ORDER_BROKEN : ORDER_FORWARD;
}

/* One product for both types; ORDER_PAIRS keeps even and odd terms apart, ORDER_BROKEN forgets the
 * last term. */
#define TEST_GEMM(REAL, NAME)                                                                      \
    static REAL NAME##_dot(const struct gemm_call *g, enum order order, int i, int j,              \
                           const REAL *a, const REAL *b)                                           \
    {                                                                                              \
        REAL acc[2] = {0, 0};                                                                      \
        int terms = order == ORDER_BROKEN ? g->k - 1 : g->k;                                       \
        for (int l = 0; l < terms; l++) {                                                          \
            int term = order == ORDER_REVERSE ? g->k - 1 - l : l;                                  \
            REAL product = a[index_a(g, i, term)] * b[index_b(g, term, j)];                        \
            acc[order == ORDER_PAIRS ? term % 2 : 0] += product;                                   \
        }                                                                                          \
        return acc[0] + acc[1];                                                                    \
    }                                                                                              \
    static void NAME(const struct gemm_call *g,                                                    \
                     enum order (*order_of)(const struct gemm_call *, int), const REAL *a,         \
                     const REAL *b, REAL *c)                                                       \
    {                                                                                              \
        for (int i = 0; i < g->m; i++) {                                                           \
            enum order order = order_of(g, i);                                                     \
            for (int j = 0; j < g->n; j++) {                                                       \
                REAL *out = c + (size_t)i * (size_t)g->ldc + (size_t)j;                            \
                REAL product = (REAL)g->alpha * NAME##_dot(g, order, i, j, a, b);                  \
                REAL before = g->beta != 0 ? (REAL)g->beta * *out : 0;                             \
                *out = before + product;                                                           \
            }                                                                                      \
        }                                                                                          \
    }

TEST_GEMM(float, test_gemm_f32)
TEST_GEMM(double, test_gemm_f64)

#define TEST_BACKENDS(X) X(reference) X(three_classes) X(position) X(reverse) X(broken)

#define X(name)                                                                                    \
    static void name##_f32(const struct kernels *k, const struct gemm_call *g, const float *a,     \
                           const float *b, float *c)                                               \
    {                                                                                              \
        (void)k;                                                                                   \
        test_gemm_f32(g, name##_order, a, b, c);                                                   \
    }                                                                                              \
    static void name##_f64(const struct kernels *k, const struct gemm_call *g, const double *a,    \
                           const double *b, double *c)                                             \
    {                                                                                              \
        (void)k;                                                                                   \
        test_gemm_f64(g, name##_order, a, b, c);                                                   \
    }
TEST_BACKENDS(X)
#undef X

enum status blas_test_backend(const char *name, struct kernels *k, struct err *err)
{
#define X(backend)                                                                                 \
    if (strcmp(name, #backend) == 0) {                                                             \
        k->gemm_f32 = backend##_f32;                                                               \
        k->gemm_f64 = backend##_f64;                                                               \
    }
    TEST_BACKENDS(X)
#undef X
    if (k->gemm_f32 == NULL)
        return err_set(err, ST_USAGE,
                       "BLAS backend %s: expected reference, three_classes, position, reverse or "
                       "broken",
                       name);
    (void)snprintf(k->env.blas, sizeof k->env.blas, "%s", name);
    (void)snprintf(k->env.blas_version, sizeof k->env.blas_version, "test");
    (void)snprintf(k->env.blas_core, sizeof k->env.blas_core, "none");
    return ST_OK;
}

#else

enum status blas_test_backend(const char *name, struct kernels *k, struct err *err)
{
    (void)k;
    return err_set(err, ST_USAGE, "BLAS backend %s: test backends are not in this build", name);
}

#endif
