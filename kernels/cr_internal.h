/* SPDX-License-Identifier: Apache-2.0 */
/** Correctly rounded arithmetic (ARITH_CORRECTLY_ROUNDED), private to kernels/.
 *
 *  Every function returns the real-number function of its (already rounded) inputs, rounded once to
 *  the storage dtype, nearest even; overflow rounds to Inf.  Such a value is unique, so no BLAS,
 * core type, thread count, row count or position can change it: each element is either proven by an
 * error bound and a rounding test or computed exactly.  Signs of zero results:
 * formats/FORMAT.md.
 *
 *  Arrays are as in kernels.h: float for F32, F16 and BF16, double for F64.  Inputs are real
 * numbers: a NaN or an infinity among them, or a result that no real number defines (0 / 0), is
 * ST_NONFINITE with the index of the element; y is undefined then. */
#ifndef KERNELS_CR_INTERNAL_H
#define KERNELS_CR_INTERNAL_H

#include "kernels/kernels.h"

/* ---- linear -------------------------------------------------------------------------------- */

/** A weight matrix made ready: F32, F16, BF16 keep it in double, F64 as it is. */
struct cr_linear; /* opaque */

/** The first step's product, c[m, n_out] = a[m, n_in] · b[n_out, n_in]ᵀ in double, in any order of
 *  summation.  `k` is what cr_linear_open got. */
typedef enum status (*cr_gemm_fn)(const struct kernels *k, const struct kernels_gemm *g,
                                  const void *a, const void *b, void *c, struct err *err);

/** @param[in] k     borrowed until close; NULL: plain loops instead of dgemm
 *  @param[in] w     [n_out, n_in] in the compute dtype of dt; copied
 *  @param[in] bias  [n_out] or NULL; copied
 *  @return ST_OK, ST_NOMEM, ST_USAGE (sizes above INT_MAX), ST_NONFINITE. */
NODISCARD enum status cr_linear_open(const struct kernels *k, enum dtype dt, size_t n_out,
                                     size_t n_in, const void *w, const void *bias,
                                     struct cr_linear **out, struct err *err);
/** y[m, n_out] = x[m, n_in] · wᵀ + b.  m == 0 is legal.  No allocation after the first call with
 * this m or a larger one.  ST_NOMEM, ST_USAGE, ST_NONFINITE, or what the first step's product
 * reports. */
NODISCARD enum status cr_linear_run(struct cr_linear *l, size_t m, const void *x, void *y,
                                    struct err *err);
/** Elements that each step settled so far: {bound, Dot2, exact}. */
void cr_linear_counts(const struct cr_linear *l, uint64_t counts[3]);
void cr_linear_close(struct cr_linear **l);
/** Tests: another first step (reversed summation, plain loops). */
void cr_linear_set_gemm(struct cr_linear *l, cr_gemm_fn gemm);

/* ---- norms: kernels_* of the same names without `arith` ------------------------------------- */

NODISCARD enum status cr_layer_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x,
                                    void *y, struct err *err);
NODISCARD enum status cr_rms_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x,
                                  void *y, struct err *err);
NODISCARD enum status cr_float32_rms_norm(const struct kernels_norm *p, size_t m, size_t n,
                                          const void *x, void *y, struct err *err);
NODISCARD enum status cr_l2_normalize(const struct kernels_norm *p, size_t m, size_t n,
                                      const void *x, void *y, struct err *err);
NODISCARD enum status cr_l2_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x,
                                 void *r, struct err *err);

/* ---- elementwise and softmax ---------------------------------------------------------------- */

NODISCARD enum status cr_elementwise(enum elementwise fn, enum dtype dt,
                                     const double params[KERNELS_EW_PARAMS], size_t n,
                                     const void *x, void *y, struct err *err);
NODISCARD enum status cr_binary(enum binary op, enum dtype dt, size_t n, const void *a,
                                const void *b, void *y, struct err *err);
NODISCARD enum status cr_softmax(enum dtype dt, size_t m, size_t n, const void *x, void *y,
                                 struct err *err);

#endif
