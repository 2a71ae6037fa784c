/* SPDX-License-Identifier: Apache-2.0 */
/** Dot2 and the first step's rounding test, compiled for the instruction sets that pay; the results
 *  are proven, so which one runs shows in no bit. */
#include "kernels/cr_round_internal.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define CR_X86 1
#else
#define CR_X86 0
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { LANES = 4, STEP = 2 * LANES };
typedef double vec __attribute__((vector_size(LANES * sizeof(double))));

/* TwoSum of a running sum and its error term; macros, since passing vectors by value depends on the
 * instruction set. */
#define ACCUMULATE(type, s, c, p)                                                                  \
    do {                                                                                           \
        type t_ = (s) + (p);                                                                       \
        type z_ = t_ - (s);                                                                        \
        (c) += ((s) - (t_ - z_)) + ((p)-z_);                                                       \
        (s) = t_;                                                                                  \
    } while (0)

/* Folds lanes: n + STEP - 1 TwoSums and fewer than n + CR_DOT2_EXTRA additions of errors in all. */
ALWAYS_INLINE void fold(const double s[STEP], const double c[STEP], double out[2])
{
    double sum = s[0], err = c[0];
    for (size_t l = 1; l < STEP; l++) {
        ACCUMULATE(double, sum, err, s[l]);
        err += c[l];
    }
    out[0] = sum;
    out[1] = err;
}

ALWAYS_INLINE void dot2_exact_body(const double *x, const double *w, size_t n, double out[2])
{
    vec s0 = {0}, s1 = {0}, c0 = {0}, c1 = {0};
    size_t i = 0;
    for (; i + STEP <= n; i += STEP) {
        vec a0, a1, b0, b1;
        memcpy(&a0, x + i, sizeof a0);
        memcpy(&a1, x + i + LANES, sizeof a1);
        if (w != NULL) {
            memcpy(&b0, w + i, sizeof b0);
            memcpy(&b1, w + i + LANES, sizeof b1);
            a0 *= b0;
            a1 *= b1;
        }
        ACCUMULATE(vec, s0, c0, a0);
        ACCUMULATE(vec, s1, c1, a1);
    }
    double s[STEP], c[STEP];
    memcpy(s, &s0, sizeof s0);
    memcpy(s + LANES, &s1, sizeof s1);
    memcpy(c, &c0, sizeof c0);
    memcpy(c + LANES, &c1, sizeof c1);
    for (; i < n; i++) {
        double p = w != NULL ? x[i] * w[i] : x[i];
        ACCUMULATE(double, s[0], c[0], p);
    }
    fold(s, c, out);
}

/* The loop must contain no call and no branch, or it does not vectorise. */
ALWAYS_INLINE void check_f32_body(const struct cr_check *p, float *restrict y,
                                  uint8_t *restrict undecided)
{
    const double *restrict c = p->c, *restrict nw = p->nw, *restrict bias = p->bias;
    const double gx = p->gx;
    for (size_t j = 0; j < p->n; j++) {
        double v = c[j] + (bias != NULL ? bias[j] : 0.0);
        double bound = gx * nw[j];
        double e = bound + fabs(v) * 0x1p-51;
        float lo = (float)(v - e), hi = (float)(v + e);
        /* A sum proven to be zero is +0: both ends are zero and nothing was rounded. */
        y[j] = lo + 0.0f;
        undecided[j] = (uint8_t) !((lo == hi) & ((lo != 0) | ((v == 0) & (bound == 0))));
    }
}

ALWAYS_INLINE void check_half_body(const struct cr_check *p, float *restrict y,
                                   uint8_t *restrict undecided)
{
    const struct cr_fmt f = *p->fmt;
    const double *restrict c = p->c, *restrict nw = p->nw, *restrict bias = p->bias;
    const double gx = p->gx;
    for (size_t j = 0; j < p->n; j++) {
        double v = c[j] + (bias != NULL ? bias[j] : 0.0);
        double bound = gx * nw[j];
        double e = bound + fabs(v) * 0x1p-51;
        float lo = (float)cr_fmt_round(&f, v - e), hi = (float)cr_fmt_round(&f, v + e);
        y[j] = lo + 0.0f;
        undecided[j] = (uint8_t) !((lo == hi) & ((lo != 0) | ((v == 0) & (bound == 0))));
    }
}

static void dot2_exact_base(const double *x, const double *w, size_t n, double out[2])
{
    dot2_exact_body(x, w, n, out);
}

static void check_f32_base(const struct cr_check *p, float *y, uint8_t *undecided)
{
    check_f32_body(p, y, undecided);
}

static void check_half_base(const struct cr_check *p, float *y, uint8_t *undecided)
{
    check_half_body(p, y, undecided);
}

static void dot2_any_base(const double *x, const double *w, size_t n, double out[2])
{
    double s = 0, c = 0;
    for (size_t i = 0; i < n; i++) {
        double p = w != NULL ? x[i] * w[i] : x[i];
        c += w != NULL ? fma(x[i], w[i], -p) : 0.0;
        ACCUMULATE(double, s, c, p);
    }
    out[0] = s;
    out[1] = c;
}

#if CR_X86
#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static void dot2_exact_avx2(const double *x, const double *w, size_t n, double out[2])
{
    dot2_exact_body(x, w, n, out);
}

AVX2 static void check_f32_avx2(const struct cr_check *p, float *y, uint8_t *undecided)
{
    check_f32_body(p, y, undecided);
}

AVX2 static void check_half_avx2(const struct cr_check *p, float *y, uint8_t *undecided)
{
    check_half_body(p, y, undecided);
}

AVX2 static void dot2_any_avx2(const double *x, const double *w, size_t n, double out[2])
{
    if (w == NULL) {
        dot2_exact_body(x, NULL, n, out);
        return;
    }
    __m256d s = _mm256_setzero_pd(), c = s;
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m256d a = _mm256_loadu_pd(x + i), b = _mm256_loadu_pd(w + i);
        __m256d p = _mm256_mul_pd(a, b);
        c = _mm256_add_pd(c, _mm256_fmsub_pd(a, b, p));
        ACCUMULATE(__m256d, s, c, p);
    }
    double sl[STEP] = {0}, cl[STEP] = {0};
    _mm256_storeu_pd(sl, s);
    _mm256_storeu_pd(cl, c);
    for (; i < n; i++) {
        double p = x[i] * w[i];
        cl[0] += __builtin_fma(x[i], w[i], -p);
        ACCUMULATE(double, sl[0], cl[0], p);
    }
    fold(sl, cl, out);
}

#endif

static bool use_avx2(enum cr_isa isa)
{
#if CR_X86
    return isa == CR_ISA_BEST && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
    (void)isa;
    return false;
#endif
}

cr_dot2_fn cr_dot2_exact_products(enum cr_isa isa)
{
#if CR_X86
    if (use_avx2(isa))
        return dot2_exact_avx2;
#endif
    return dot2_exact_base;
}

cr_dot2_fn cr_dot2_any(enum cr_isa isa)
{
#if CR_X86
    if (use_avx2(isa))
        return dot2_any_avx2;
#endif
    return dot2_any_base;
}

cr_check_fn cr_check_for(enum cr_isa isa, enum dtype dt)
{
#if CR_X86
    if (use_avx2(isa))
        return dt == DT_F32 ? check_f32_avx2 : check_half_avx2;
#endif
    return dt == DT_F32 ? check_f32_base : check_half_base;
}
