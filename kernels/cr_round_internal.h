/* SPDX-License-Identifier: Apache-2.0 */
/** What the parts of correctly rounded arithmetic share: storage formats, one rounding of an exact
 *  value, rounding tests, an exact accumulator, exact dyadic numbers, and Dot2.  Private to the
 * cr_* files of kernels/.  All assume nearest-even mode without FTZ or DAZ, which kernels_open
 * checks. */
#ifndef KERNELS_CR_ROUND_INTERNAL_H
#define KERNELS_CR_ROUND_INTERNAL_H

#include "kernels/cr_internal.h"

#include <gmp.h>
#include <math.h>
#include <mpfr.h>
#include <string.h>

/* ---- storage formats ------------------------------------------------------------------------ */

/** One binary format.  Values are held as doubles. */
struct cr_fmt {
    enum dtype dt;
    int prec;        /* bits of the significand, the leading one counted */
    int quantum_exp; /* the smallest subnormal is 2^quantum_exp */
    int max_exp;     /* finite values are below 2^(max_exp + 1) */
    double max, min_normal;
    double magic;             /* its ulp is the smallest subnormal; F64: unused */
    uint64_t low_mask, half1; /* bits of a double below prec, and half of them minus one */
    unsigned shift;           /* their number */
};

/** NULL unless the dtype is computable.  Pure. */
const struct cr_fmt *cr_fmt_of(enum dtype dt);

/** Bits of a double and back. */
static inline uint64_t cr_bits(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}
static inline double cr_from_bits(uint64_t u)
{
    double x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/** A finite double to the format, one rounding, nearest even, overflow to Inf; keeps the sign of
 *  zero.  Branch-free, so that loops over it vectorise.  Pure. */
static inline double cr_fmt_round(const struct cr_fmt *f, double x)
{
    uint64_t u = cr_bits(x);
    u += f->half1 + ((u >> f->shift) & (f->low_mask != 0));
    u &= ~f->low_mask;
    double a = fabs(x);
    double normal = cr_from_bits(u & ~(UINT64_C(1) << 63));
    double tiny = (a + f->magic) - f->magic;
    double r = a < f->min_normal ? tiny : normal;
    r = r > f->max ? (double)INFINITY : r;
    return copysign(r, x);
}

/** Element i of an array in the compute dtype of dt. */
static inline double cr_load(enum dtype dt, const void *x, size_t i)
{
    return dt == DT_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
}
static inline void cr_store(enum dtype dt, void *y, size_t i, double v)
{
    if (dt == DT_F64)
        ((double *)y)[i] = v;
    else
        ((float *)y)[i] = (float)v; /* exact: v is a value of dt */
}

/** The next value above x in the format; x finite or -Inf.  Pure. */
double cr_fmt_succ(const struct cr_fmt *f, double x);

/** (-1)^neg * (m + d) * 2^e to the format in one rounding, with d = 0, or 0 < d < 1 if `sticky`.
 *  m == 0 only for zero.  Zero results keep the sign.  Pure. */
double cr_round_bits(const struct cr_fmt *f, bool neg, uint64_t m, long e, bool sticky);
/** a * b, rounded once.  Finite arguments.  Pure. */
double cr_round_product(const struct cr_fmt *f, double a, double b);

/* ---- double-double and rounding tests ------------------------------------------------------- */

#define CR_U 0x1p-53 /* unit roundoff of double */

/** s + *err = a + b exactly (Knuth), barring overflow. */
static inline double cr_two_sum(double a, double b, double *err)
{
    double s = a + b;
    double bb = s - a;
    *err = (a - (s - bb)) + (b - bb);
    return s;
}

/** p + *err = a * b exactly (Dekker, Veltkamp), for |a|, |b| < 2^990 and no underflow. */
static inline double cr_two_prod(double a, double b, double *err)
{
    double p = a * b;
    double ta = 134217729.0 * a, tb = 134217729.0 * b;
    double ah = ta - (ta - a), bh = tb - (tb - b);
    double al = a - ah, bl = b - bh;
    *err = ((ah * bh - p) + ah * bl + al * bh) + al * bl;
    return p;
}

/** Upper bound of n u / (1 - n u). */
static inline double cr_gamma(size_t n)
{
    double nu = (double)n * CR_U;
    return nu < 0.5 ? nu / (1 - nu) * (1 + 0x1p-40) : (double)INFINITY;
}

/** RN(h + l) of a format of at most 51 bits, or F64, where |l| may be anything. */
double cr_round_pair(const struct cr_fmt *f, double h, double l);
/** Whether all reals within e of hi + lo round to one nonzero value; then *out is it. */
bool cr_round_test(const struct cr_fmt *f, double hi, double lo, double e, double *out);
/** The same for a plain double: y and e may themselves have been rounded a few times, which the
 * caller has counted in e. */
static inline bool cr_round_test1(const struct cr_fmt *f, double y, double e, double *out)
{
    double slack = e * (1 + 0x1p-40) + fabs(y) * 0x1p-51;
    double a = cr_fmt_round(f, y - slack), b = cr_fmt_round(f, y + slack);
    *out = a;
    return a == b && a != 0;
}

/** Dot2 (Ogita, Rump, Oishi): x·w of n elements as out[0] + out[1]; w NULL: the sum of x.
 *  |x·w - (out[0] + out[1])| <= cr_gamma(n + CR_DOT2_EXTRA)² Σ|x w|. */
typedef void (*cr_dot2_fn)(const double *x, const double *w, size_t n, double out[2]);
enum { CR_DOT2_EXTRA = 24 };
/** Which compilation of the loops: what this processor can, or plain C (tests; other machines). */
enum cr_isa { CR_ISA_BEST, CR_ISA_BASE };
/** For factors whose products are exact in double (values of F32 and below). */
cr_dot2_fn cr_dot2_exact_products(enum cr_isa isa);
/** For any doubles; underflow adds at most (8 n + 64) 2^-1074; results not finite prove nothing. */
cr_dot2_fn cr_dot2_any(enum cr_isa isa);

/** One row of the first step of a linear layer: y[j] = RN(c[j] + bias[j]) where provable with
 *  |c - exact| <= gx * nw[j]; undecided[j] = 1 elsewhere.  bias may be NULL. */
struct cr_check {
    const struct cr_fmt *fmt;
    size_t n;
    const double *c, *bias, *nw;
    double gx;
};
typedef void (*cr_check_fn)(const struct cr_check *p, float *y, uint8_t *undecided);
cr_check_fn cr_check_for(enum cr_isa isa, enum dtype dt);

/** Tests: the loops of another instruction set. */
void cr_linear_set_isa(struct cr_linear *l, enum cr_isa isa);

/** Tests: the fast evaluation of an elementwise function at x, and its bound: |y - f(x)| <= *e. */
double cr_elementwise_approximate(enum elementwise fn, const double params[KERNELS_EW_PARAMS],
                                  double x, double *e);

/* ---- exact accumulator ----------------------------------------------------------------------- */

/** A signed fixed-point number that holds any sum of up to 2^31 products of doubles exactly. */
enum { CR_ACC_DIGITS = 136, CR_ACC_BASE = -2148 };
struct cr_acc {
    int64_t digit[CR_ACC_DIGITS]; /* of 2^(32 i + CR_ACC_BASE), carries pending */
    unsigned pending;             /* additions since carries were propagated */
};
void cr_acc_clear(struct cr_acc *a);
void cr_acc_add(struct cr_acc *a, double x);
void cr_acc_add_product(struct cr_acc *a, double x, double y);
/** The sum, rounded once; an exact zero gives +0. */
double cr_acc_round(struct cr_acc *a, const struct cr_fmt *f);

/* ---- exact dyadic numbers -------------------------------------------------------------------- */

/** m * 2^e. */
struct cr_dy {
    mpz_t m;
    long e;
};
void cr_dy_init(struct cr_dy *a);
void cr_dy_clear(struct cr_dy *a);
void cr_dy_set(struct cr_dy *a, double x);
void cr_dy_set_acc(struct cr_dy *a, struct cr_acc *x);
/** r may be a or b. */
void cr_dy_mul(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b);
void cr_dy_add(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b);
void cr_dy_sub(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b);
int cr_dy_cmp(const struct cr_dy *a, const struct cr_dy *b);
double cr_dy_round(const struct cr_fmt *f, const struct cr_dy *a);
/** An MPFR number (not NaN), rounded once. */
double cr_mpfr_round(const struct cr_fmt *f, mpfr_srcptr x);

/* ---- intervals ------------------------------------------------------------------------------- */

/** lo <= value <= hi; both ends have the precision of the interval. */
struct cr_iv {
    mpfr_t lo, hi;
};
void cr_iv_init(struct cr_iv *a, mpfr_prec_t prec);
void cr_iv_clear(struct cr_iv *a);
/** Another precision; the value is lost. */
void cr_iv_set_prec(struct cr_iv *a, mpfr_prec_t prec);
void cr_iv_set(struct cr_iv *a, double x);
void cr_iv_set_dy(struct cr_iv *a, const struct cr_dy *x);
/** A decimal constant. */
void cr_iv_set_decimal(struct cr_iv *a, const char *text);
/** r may be an operand.  Divisors do not contain zero. */
void cr_iv_add(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b);
void cr_iv_sub(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b);
void cr_iv_mul(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b);
void cr_iv_div(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b);
void cr_iv_neg(struct cr_iv *a);
/** Apply an increasing (or decreasing) correctly rounded MPFR function. */
typedef int (*cr_mpfr_fn)(mpfr_ptr r, mpfr_srcptr x, mpfr_rnd_t rnd);
void cr_iv_increasing(struct cr_iv *a, cr_mpfr_fn fn);
void cr_iv_decreasing(struct cr_iv *a, cr_mpfr_fn fn);
/** Whether all reals of the interval round to one nonzero value; then *out is it. */
bool cr_iv_round(const struct cr_fmt *f, const struct cr_iv *a, double *out);

/* ---- algebraic values ------------------------------------------------------------------------ */

/** RN(p * sqrt(num / den) + b), ties decided exactly.  num >= 0, den > 0. */
struct cr_alg {
    struct cr_dy num, den;
    struct cr_iv root; /* sqrt(num / den) at the first precision */
    bool root_ready;
    struct cr_dy t, u, v; /* scratch */
    struct cr_iv y, z;
};
void cr_alg_init(struct cr_alg *a);
void cr_alg_clear(struct cr_alg *a);
/** After num or den were set. */
void cr_alg_changed(struct cr_alg *a);
/** `zero` is returned for a real value of exactly 0. */
double cr_alg_round(struct cr_alg *a, const struct cr_fmt *f, const struct cr_dy *p, double b,
                    double zero);

/** First index that is not finite among n values of the compute dtype of dt; n if none.  Pure. */
size_t cr_find_nonfinite(enum dtype dt, const void *x, size_t n);

#endif
