/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of kernels/ (and its tests) share: the loaded library, the row loops of one
 *  instruction set, and the plain references beside them. */
#ifndef KERNELS_KERNELS_INTERNAL_H
#define KERNELS_KERNELS_INTERNAL_H

#include "kernels/kernels.h"

/* ---- matrix product ------------------------------------------------------------------------ */

/** c[m, n] = alpha * op(a) · op(b) + beta * c, row-major, with the library's int sizes. */
struct gemm_call {
    int m, n, k, lda, ldb, ldc;
    bool transpose_a, transpose_b;
    double alpha, beta;
};

struct openblas; /* blas.c: the loaded library and its functions */

/** One source of matrix products; OpenBLAS or a test backend. */
struct kernels {
    struct kernels_env env;
    struct openblas *openblas; /* owned; NULL for test backends */
    void (*gemm_f32)(const struct kernels *k, const struct gemm_call *g, const float *a,
                     const float *b, float *c);
    void (*gemm_f64)(const struct kernels *k, const struct gemm_call *g, const double *a,
                     const double *b, double *c);
};

/** Load OpenBLAS into *k: library, functions and the blas_* fields of its environment.  Local. */
NODISCARD enum status blas_load(const struct kernels_opts *opts, struct kernels *k,
                                struct err *err);
/** Unload what blas_load loaded (its code stays: see blas.c). */
void blas_unload(struct kernels *k);
/** Install test backend `name` into *k.  ST_USAGE where test backends are not compiled in, or for
 *  an unknown name. */
NODISCARD enum status blas_test_backend(const char *name, struct kernels *k, struct err *err);
/** Compare sgemm and dgemm with plain loops (N41).  ST_KERNEL names the kernel. */
NODISCARD enum status kernels_self_check(const struct kernels *k, struct err *err);

/* ---- row loops ----------------------------------------------------------------------------- */

/** Loops over rows and elements, compiled once for AVX2 and once for the baseline.  Norms and sums
 *  have the same bits in both; elementary functions are Sleef's of that instruction set.  `wt`, `b`
 *  may be NULL; y may be x.  eps is in the compute dtype, as PyTorch takes it. */
#define KERNELS_ROW_LOOPS(REAL, S)                                                                 \
    void (*elementwise_##S)(enum elementwise fn, const double params[KERNELS_EW_PARAMS], size_t n, \
                            const REAL *x, REAL *y);                                               \
    void (*layer_norm_##S)(size_t m, size_t n, const REAL *x, const REAL *wt, const REAL *b,       \
                           REAL eps, REAL *y);                                                     \
    void (*rms_norm_##S)(size_t m, size_t n, const REAL *x, const REAL *wt, REAL eps, REAL *y);    \
    void (*l2_norm_##S)(size_t m, size_t n, const REAL *x, REAL eps, REAL *r);                     \
    void (*divide_rows_##S)(size_t m, size_t n, const REAL *x, const REAL *r, REAL *y);            \
    void (*softmax_##S)(size_t m, size_t n, const REAL *x, REAL *y);

struct row_loops {
    const char *isa; /* of the Sleef calls: "avx2", "sse2" */
    KERNELS_ROW_LOOPS(float, f32)
    KERNELS_ROW_LOOPS(double, f64)
    void (*round_f16)(float *x, size_t n); /* to F16 values, in place */
};

extern const struct row_loops row_loops_avx2, row_loops_base;
/** What this CPU runs.  Pure. */
const struct row_loops *row_loops_pick(void);

/* ---- plain references (double, no blocking, libm) ------------------------------------------- */

/** y[m, n_out] = x · wᵀ + b and, where bound is not NULL, sum |x||w| + |b| per element. */
void kernels_reference_linear_f32(size_t m, size_t n_out, size_t n_in, const float *x,
                                  const float *w, const float *bias, double *y, double *magnitude);
/** The same in long double sums. */
void kernels_reference_linear_f64(size_t m, size_t n_out, size_t n_in, const double *x,
                                  const double *w, const double *bias, double *y,
                                  double *magnitude);
/** One row each, all in double; wt, b may be NULL. */
void kernels_reference_layer_norm(size_t n, const double *x, const double *wt, const double *b,
                                  double eps, double *y);
void kernels_reference_rms_norm(size_t n, const double *x, const double *wt, double eps, double *y);
double kernels_reference_l2_norm(size_t n, const double *x, double eps);
void kernels_reference_softmax(size_t n, const double *x, double *y);
/** f(x) in double with libm, stable at both ends. */
double kernels_reference_elementwise(enum elementwise fn, const double params[KERNELS_EW_PARAMS],
                                     double x);

#endif
