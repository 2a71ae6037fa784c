/* SPDX-License-Identifier: Apache-2.0 */
/** kernels: arrays to arrays.  OpenBLAS calls (the library is loaded at run time) and row loops,
 *  each beside a plain reference, and the numeric environment they belong to.  Knows no graphs and
 *  no files.
 *
 *  Representation.  A value of storage dtype F32, F16 or BF16 is held in a float array whose
 * elements are exactly representable in the storage dtype; F64 in a double array.  `void *` arrays
 * below are of that compute dtype (dtype_compute(dt)).  Every op rounds its result once to `dt`,
 * nearest even.
 *
 *  Two arithmetics.  ARITH_LIBRARY computes as PyTorch's CPU kernels do on the same OpenBLAS core;
 *  ARITH_CORRECTLY_ROUNDED returns the real-number function of the inputs, rounded once.
 *
 *  One caller at a time (N42). */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "base/base.h"

/** Raised whenever a bit of any result may change with unchanged library and core. */
#define KERNELS_EVALUATOR_VERSION "1"

enum arithmetic { ARITH_LIBRARY, ARITH_CORRECTLY_ROUNDED };

/* ---- numeric environment ------------------------------------------------------------------- */

enum { KERNELS_TEXT_SIZE = 96, KERNELS_FLAGS_SIZE = 256 };

/** What the bits of ARITH_LIBRARY results belong to.  All text, so that it can be compared,
 * recorded and printed the same way everywhere. */
struct kernels_env {
    char blas[KERNELS_TEXT_SIZE];         /* "OpenBLAS" (or the name of a test backend) */
    char blas_version[KERNELS_TEXT_SIZE]; /* "0.3.21" */
    char blas_core[KERNELS_TEXT_SIZE];    /* openblas_get_corename(), e.g. "Haswell" */
    unsigned blas_threads;
    char sleef[KERNELS_TEXT_SIZE];     /* version and instruction set of the calls in use */
    char libm[KERNELS_TEXT_SIZE];      /* gnu_get_libc_version() */
    char ftz_daz[KERNELS_TEXT_SIZE];   /* "off" or which of FTZ, DAZ is on */
    char evaluator[KERNELS_TEXT_SIZE]; /* KERNELS_EVALUATOR_VERSION */
};

/** Number and access of the fields above as (name, value) text, for fingerprints and messages. */
enum { KERNELS_ENV_FIELDS = 8 };
/** Name and value of field i; value is written to buf.  Pure. */
const char *kernels_env_field(const struct kernels_env *env, size_t i, const char **name, char *buf,
                              size_t buf_size);

/** Instruction sets of this CPU that matter for the choice of a core: bit 0 AVX2+FMA, bit 1 AVX-512
 *  (F, CD, BW, DQ, VL).  Pure. */
enum { KERNELS_CPU_AVX2 = 1u, KERNELS_CPU_AVX512 = 2u };
unsigned kernels_cpu_flags(void);
/** Readable list of the flags above and CPU model; for run.json and doctor. */
void kernels_cpu_text(char *buf, size_t buf_size);
/** The core DESIGN.md prescribes for flags common to all ranks: "SkylakeX", "Haswell" or NULL
 *  ("what OpenBLAS detects").  Never by timing.  Pure. */
const char *kernels_core_for(unsigned common_cpu_flags);

struct kernels; /* opaque: the loaded library and its environment */

struct kernels_opts {
    const char *blas_core; /* OPENBLAS_CORETYPE to load with; NULL: what OpenBLAS detects */
    unsigned blas_threads; /* >= 1 */
    /** NULL: OpenBLAS.  Test builds also know "reference" (plain loops), "three_classes" (summation
     *  order changes at M = 1, 2..15, >= 16), "position" (last row of an odd M differs), "reverse"
     *  (reversed summation), "broken" (fails the self-check).  ST_USAGE elsewhere. */
    const char *backend;
};

/** Load OpenBLAS (setenv OPENBLAS_CORETYPE, then dlopen: NUMERICS.md A), fix its thread count, read
 *  the environment, and check sgemm and dgemm against a double-precision loop with the bound
 *  2 K u sum|x||w| (N41).  Once per process with one core; a second core is ST_ENVIRONMENT.  Local.
 *  @return ST_OK, ST_ENVIRONMENT (not found, FTZ/DAZ on, another core than asked), ST_KERNEL (check
 *  failed; names the kernel), ST_USAGE, ST_NOMEM. */
NODISCARD enum status kernels_open(const struct kernels_opts *opts, struct kernels **out,
                                   struct err *err);
void kernels_close(struct kernels **k);
const struct kernels_env *kernels_environment(const struct kernels *k);
/** MXCSR's FTZ and DAZ bits of the calling thread, as in struct kernels_env.  Pure. */
void kernels_ftz_daz(char *buf, size_t buf_size);
/** sgemm rate in GFLOP/s of the loaded core over `seconds`; doctor and plan only, never a choice.
 */
double kernels_measure_gflops(const struct kernels *k, double seconds);

/* ---- conversion ---------------------------------------------------------------------------- */

/** n stored elements (little-endian, any alignment) to the compute dtype of `dt`.  dst: float or
 *  double.  Pure. */
void kernels_unpack(enum dtype dt, const void *stored, size_t n, void *dst);
/** The reverse; values must already be representable (they are rounded nearest even otherwise;
 *  NaN stays NaN, payload quieted).  Pure. */
void kernels_pack(enum dtype dt, const void *src, size_t n, void *stored);
/** Round a float array in place to the values of F16 or BF16; no-op for F32.  Nearest even,
 * overflow to Inf.  Pure. */
void kernels_round_f32(enum dtype dt, float *x, size_t n);
/** First index of a non-finite element among n stored ones, n if there is none.  Pure. */
size_t kernels_find_nonfinite(enum dtype dt, const void *stored, size_t n);

/* ---- linear -------------------------------------------------------------------------------- */

/** How PyTorch's F.linear applies a bias (NUMERICS.md D). */
enum bias_mode {
    BIAS_PREFILLED, /* bias copied to y, beta = 1: 2-D and contiguous 3-D activations */
    BIAS_ADDED      /* beta = 0, then y + b: scalar ids (1-D) and 4-D or more */
};

/** A weight matrix made ready for one arithmetic and result dtype. */
struct kernels_linear; /* opaque */

/** @param[in] w     [n_out, n_in] row-major, contiguous, in the compute dtype of dt; copied or kept
 * as needed: the caller may free it afterwards
 *  @param[in] bias  [n_out] or NULL
 *  @param[in] dt    storage dtype of the result; inputs are in its compute dtype
 *  @return ST_OK, ST_NOMEM, ST_USAGE (sizes above INT_MAX) */
NODISCARD enum status kernels_linear_open(const struct kernels *k, enum arithmetic arith,
                                          enum dtype dt, size_t n_out, size_t n_in, const void *w,
                                          const void *bias, struct kernels_linear **out,
                                          struct err *err);
void kernels_linear_close(struct kernels_linear **l);
/** y[m, n_out] = x[m, n_in] · wᵀ + b.  ARITH_LIBRARY: one cblas_?gemm(RowMajor, NoTrans, Trans),
 * the operands swapped for n_out == 1 and m > 1, as F.linear does; never gemv.  m == 0 is legal.
 *  ARITH_CORRECTLY_ROUNDED ignores `mode` and m.  No allocation after the first call with a given m
 * or a larger one.  ST_NOMEM, ST_USAGE (m above INT_MAX). */
NODISCARD enum status kernels_linear_run(struct kernels_linear *l, size_t m, const void *x,
                                         enum bias_mode mode, void *y, struct err *err);
/** Elements that each step of ARITH_CORRECTLY_ROUNDED settled so far: {bound, Dot2, exact}. */
void kernels_linear_counts(const struct kernels_linear *l, uint64_t counts[3]);

/* ---- norms --------------------------------------------------------------------------------- */

/** Row norms: x, y [m, n]; weight, bias [n] or NULL, all in the compute dtype of `dt`; y may be x.
 *  eps >= 0.  Order of summation: PyTorch's (NUMERICS.md D); rows never depend on m. */
struct kernels_norm {
    enum dtype dt;    /* storage dtype of the result */
    enum dtype in_dt; /* storage dtype of x (float32_rms_norm rounds back to it) */
    double eps;
    const void *weight, *bias;
    double weight_offset; /* rms norms: scale is weight + offset (Gemma 1) */
    enum dtype
        weight_offset_dt; /* dtype the sum weight + offset is rounded to; DT_UNKNOWN: compute */
};
/** Biased variance; (x - mean) / sqrt(var + eps) * weight + bias. */
NODISCARD enum status kernels_layer_norm(enum arithmetic arith, const struct kernels_norm *p,
                                         size_t m, size_t n, const void *x, void *y,
                                         struct err *err);
/** x / sqrt(mean(x²) + eps) * weight. */
NODISCARD enum status kernels_rms_norm(enum arithmetic arith, const struct kernels_norm *p,
                                       size_t m, size_t n, const void *x, void *y, struct err *err);
/** Variance and product in float32 whatever in_dt is, rounded to in_dt, then the scale, rounded to
 * dt. */
NODISCARD enum status kernels_float32_rms_norm(enum arithmetic arith, const struct kernels_norm *p,
                                               size_t m, size_t n, const void *x, void *y,
                                               struct err *err);
/** x / max(‖x‖₂, eps). */
NODISCARD enum status kernels_l2_normalize(enum arithmetic arith, const struct kernels_norm *p,
                                           size_t m, size_t n, const void *x, void *y,
                                           struct err *err);
/** r[m] = max(‖x‖₂, eps): the radius of a projected block. */
NODISCARD enum status kernels_l2_norm(enum arithmetic arith, const struct kernels_norm *p, size_t m,
                                      size_t n, const void *x, void *r, struct err *err);

/* ---- elementwise --------------------------------------------------------------------------- */

/** PyTorch 1.13's definitions; parameters in the order named. */
enum elementwise {
    EW_IDENTITY,
    EW_RELU,
    EW_RELU6,
    EW_GELU_ERF,
    EW_GELU_TANH,
    EW_QUICK_GELU, /* x * sigmoid(1.702 x) */
    EW_SILU,
    EW_TANH,
    EW_SIGMOID,
    EW_ELU,        /* alpha */
    EW_CELU,       /* alpha */
    EW_LEAKY_RELU, /* negative_slope */
    EW_SOFTPLUS,   /* beta, threshold */
    EW_SOFTSIGN,
    EW_HARDTANH, /* min, max */
    EW_HARDSWISH,
    EW_HARDSIGMOID,
    EW_MISH,
    EW_SELU,
    EW_SCALE, /* value, already rounded to its declared dtype by the caller */
    EW_EXP,
    EW_COUNT
};
enum { KERNELS_EW_PARAMS = 2 };
/** y[i] = f(x[i]), rounded once to dt; y may be x.  An element's bits depend on its value alone (no
 *  vector tails, unlike PyTorch).  ST_NOMEM (MPFR), ST_INTERNAL. */
NODISCARD enum status kernels_elementwise(enum arithmetic arith, enum elementwise fn, enum dtype dt,
                                          const double params[KERNELS_EW_PARAMS], size_t n,
                                          const void *x, void *y, struct err *err);
/** Binary ops, rounded once to dt; y may be a or b. */
enum binary { BIN_ADD, BIN_SUB, BIN_MUL, BIN_DIV };
NODISCARD enum status kernels_binary(enum arithmetic arith, enum binary op, enum dtype dt, size_t n,
                                     const void *a, const void *b, void *y, struct err *err);
/** PyTorch's softmax of rows [m, n] (NUMERICS.md D), F32 and F64 compute. */
NODISCARD enum status kernels_softmax(enum arithmetic arith, enum dtype dt, size_t m, size_t n,
                                      const void *x, void *y, struct err *err);
/** Projected blocks: raw y = z + b, normalised y = z / r + b, evaluated per row as two roundings
 *  (division, then sum).  z [m, n], r [m] or NULL (raw), bias [n] or NULL; all compute dtype of dt.
 */
NODISCARD enum status kernels_combine_projected(enum dtype dt, size_t m, size_t n, const void *z,
                                                const void *r, const void *bias, void *y,
                                                struct err *err);

/* ---- general products for the graph executor ----------------------------------------------- */

/** c[m, n] = alpha * op(a) · op(b) + beta * c, row-major, ARITH_LIBRARY: one cblas_?gemm. */
struct kernels_gemm {
    enum dtype compute; /* DT_F32 or DT_F64 */
    bool transpose_a, transpose_b;
    size_t m, n, k, lda, ldb, ldc;
    double alpha, beta;
};
NODISCARD enum status kernels_gemm_run(const struct kernels *k, const struct kernels_gemm *g,
                                       const void *a, const void *b, void *c, struct err *err);

#endif
