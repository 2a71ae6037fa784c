/* SPDX-License-Identifier: Apache-2.0 */
/** Elementwise functions, correctly rounded: exact cases first, then double with an error bound and
 *  a rounding test (F32, F16, BF16), then intervals over MPFR of growing precision; rational
 *  functions decide ties in integers.
 *
 *  Why the loop over precisions ends: away from the exact cases exp and what is built on it is
 *  transcendental at a rational argument (Lindemann and Weierstrass), so no value is a midpoint;
 * values that tend to a constant end in an interval around it, which rounds to one value; what
 * vanishes below every format is an exact case here. */
#include "kernels/cr_round_internal.h"

/* PyTorch's literals. */
#define SELU_SCALE "1.0507009873554804934193349852946"
#define SELU_ALPHA "1.6732632423543772848170429916717"
#define QUICK_GELU "1.702"
#define GELU_CUBIC "0.044715"

enum { FIRST_PREC = 128, LAST_PREC = 1 << 16, N_IV = 4 };

struct ew {
    enum elementwise fn;
    const struct cr_fmt *fmt;
    double p[KERNELS_EW_PARAMS];
    bool ready; /* the members below are initialised */
    struct cr_iv iv[N_IV];
    struct cr_alg alg;
    struct cr_dy t, u;
};

static void ew_ready(struct ew *c)
{
    if (c->ready)
        return;
    for (size_t i = 0; i < N_IV; i++)
        cr_iv_init(&c->iv[i], FIRST_PREC);
    cr_alg_init(&c->alg);
    cr_dy_init(&c->t);
    cr_dy_init(&c->u);
    c->ready = true;
}

static void ew_close(struct ew *c)
{
    if (!c->ready)
        return;
    for (size_t i = 0; i < N_IV; i++)
        cr_iv_clear(&c->iv[i]);
    cr_alg_clear(&c->alg);
    cr_dy_clear(&c->t);
    cr_dy_clear(&c->u);
}

/* beta x > threshold, over the reals. */
static bool above_threshold(struct ew *c, double x)
{
    double z = c->p[0] * x, threshold = c->p[1];
    if (z != threshold)
        return z > threshold; /* rounding is monotone */
    ew_ready(c);
    cr_dy_set(&c->t, c->p[0]);
    cr_dy_set(&c->u, x);
    cr_dy_mul(&c->t, &c->t, &c->u);
    cr_dy_set(&c->u, threshold);
    return cr_dy_cmp(&c->t, &c->u) > 0;
}

/* An argument z, roughly, so that the function is x or 1 times e^z, or less, for z < -1500, and so
 * below half of the smallest subnormal of every format.  0 where there is no such thing. */
static double decay(const struct ew *c, double x)
{
    switch (c->fn) {
    case EW_GELU_ERF:
        return x < -60 ? -INFINITY : 0;
    case EW_GELU_TANH:
        return x < -60 ? -INFINITY : 0;
    case EW_QUICK_GELU:
        return 1.7 * x;
    case EW_SILU:
    case EW_SIGMOID:
    case EW_MISH:
    case EW_EXP:
        return x;
    case EW_SOFTPLUS:
        return c->p[0] * x;
    default:
        return 0;
    }
}

/* Sign of the real value at x != 0 (of a zero that it rounds to, too); not for exact zeros. */
static double real_sign(const struct ew *c, double x)
{
    switch (c->fn) {
    case EW_SIGMOID:
    case EW_EXP:
    case EW_HARDSIGMOID:
        return 1.0;
    case EW_SOFTPLUS:
        return copysign(1.0, c->p[0]);
    case EW_ELU:
        return x > 0 ? 1.0 : -copysign(1.0, c->p[0]);
    default: /* celu: the signs of alpha cancel */
        return copysign(1.0, x);
    }
}

/* Functions at +0 and -0; false: not exact there. */
static bool at_zero(struct ew *c, double x, double *y)
{
    switch (c->fn) {
    case EW_RELU:
    case EW_RELU6:
        *y = 0.0;
        return true;
    case EW_SIGMOID:
    case EW_HARDSIGMOID:
        *y = 0.5;
        return true;
    case EW_EXP:
        *y = 1.0;
        return true;
    case EW_ELU:
    case EW_LEAKY_RELU:
    case EW_SCALE:
        *y = x * c->p[0];
        return true;
    case EW_SOFTPLUS:
        *y = x;
        return above_threshold(c, x);
    case EW_HARDTANH:
        return false; /* a clamp like any other */
    default:
        *y = x;
        return true;
    }
}

/* Where the function lies within a relative 2^-60 of a double, strictly on one side of it.  Inputs
 * and attributes may be midpoints of a narrower format, and then no precision would settle the
 * side; otherwise no midpoint (of at most 54 bits) lies that near. */
static bool near_double(const struct ew *c, double x, double *y)
{
    double limit = x, toward = -0x1p-60; /* away from zero if positive */
    bool near = false;
    switch (c->fn) {
    case EW_GELU_ERF:
    case EW_GELU_TANH:
        near = x > 12;
        break;
    case EW_QUICK_GELU:
    case EW_SILU:
    case EW_MISH:
        near = x > 45;
        break;
    case EW_SOFTPLUS:
        near = c->p[0] * x > 45;
        toward = 0x1p-60;
        break;
    case EW_ELU:
        near = x < -45;
        limit = -c->p[0];
        break;
    case EW_CELU:
        near = x / c->p[0] < -45;
        limit = -c->p[0];
        break;
    default:
        break;
    }
    if (near)
        *y = cr_round_pair(c->fmt, limit, limit * toward);
    return near;
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Values that are doubles or products of two doubles, rounded; false: none of them. */
static bool exact_case(struct ew *c, double x, double *y)
{
    const struct cr_fmt *f = c->fmt;
    if (x == 0 && at_zero(c, x, y))
        return true;
    bool is_x = false;
    switch (c->fn) {
    case EW_RELU:
        *y = x > 0 ? cr_fmt_round(f, x) : 0.0;
        return true;
    case EW_RELU6:
        *y = x > 0 ? cr_fmt_round(f, clamp(x, 0, 6)) : 0.0;
        return true;
    case EW_HARDTANH:
        *y = cr_fmt_round(f, clamp(x, c->p[0], c->p[1]));
        return true;
    case EW_SCALE:
        *y = cr_round_product(f, x, c->p[0]);
        return true;
    case EW_LEAKY_RELU:
        *y = x > 0 ? cr_fmt_round(f, x) : cr_round_product(f, x, c->p[0]);
        return true;
    case EW_HARDSIGMOID:
        *y = x >= 3 ? 1.0 : 0.0;
        return x >= 3 || x <= -3;
    case EW_ELU:
        if (x < 0 && c->p[0] == 0) {
            *y = -c->p[0];
            return true;
        }
        is_x = x > 0;
        break;
    case EW_IDENTITY:
        is_x = true;
        break;
    case EW_CELU:
        is_x = x > 0;
        break;
    case EW_HARDSWISH:
        *y = -0.0;
        if (x <= -3)
            return true;
        is_x = x >= 3;
        break;
    case EW_SOFTPLUS:
        is_x = above_threshold(c, x);
        break;
    default:
        break;
    }
    *y = is_x ? cr_fmt_round(f, x) : copysign(0.0, real_sign(c, x));
    return is_x || decay(c, x) < -1500 || near_double(c, x, y);
}

/* ---- double --------------------------------------------------------------------------------- */

/* exp, expm1, log1p, tanh and erfc of libm, relative: glibc documents at most 10 units in the last
 * place on any machine; 64 are allowed for here.  test_cr_elementwise checks samples against MPFR.
 */
#define LIBM 0x1p-46

struct approx {
    double y, rel; /* |y - f(x)| <= rel |y| + abs */
    double abs;
};

static struct approx sigmoid_times(double x, double z, double z_rel)
{
    /* x / (1 + e^-z); an error of z counts where e^-z is not small. */
    struct approx a = {x / (1 + exp(-z)), LIBM + 0x1p-50, 0x1p-1000};
    a.rel += z_rel * (z < 0 ? fabs(z) + 1 : 1);
    return a;
}

/* The condition number of each step times the roundings before it, doubled at least. */
static struct approx approximate(const struct ew *c, double x)
{
    struct approx a = {0, LIBM + 0x1p-50, 0x1p-1000};
    double alpha = c->p[0], z;
    switch (c->fn) {
    case EW_GELU_ERF:
        a.y = 0.5 * x * erfc(x * -0x1.6a09e667f3bcdp-1);
        a.rel += 0x1p-50 * (x < 0 ? x * x + 2 : 2);
        break;
    case EW_GELU_TANH: /* (1 + tanh(z)) / 2 = sigmoid(2 z); the constant is 2 sqrt(2 / pi) */
        return sigmoid_times(x, 0x1.9884533d43651p+0 * (x + 0.044715 * (x * x * x)), 0x1p-49);
    case EW_QUICK_GELU:
        return sigmoid_times(x, 1.702 * x, 0x1p-50);
    case EW_SILU:
        return sigmoid_times(x, x, 0);
    case EW_SIGMOID:
        return sigmoid_times(1, x, 0);
    case EW_TANH:
        a.y = tanh(x);
        break;
    case EW_EXP:
        a.y = exp(x);
        break;
    case EW_ELU:
        a.y = alpha * expm1(x);
        break;
    case EW_CELU:
        z = x / alpha;
        a.y = alpha * expm1(z);
        a.rel += 0x1p-50 * (z > 0 ? z + 1 : 1);
        a.abs *= fabs(alpha) + 1;
        break;
    case EW_SELU: /* scale, and scale * alpha */
        a.y = x > 0 ? 0x1.0cfabd6a91132p+0 * x : 0x1.c212cc640f031p+0 * expm1(x);
        break;
    case EW_SOFTPLUS:
        z = alpha * x;
        a.y = (fmax(z, 0) + log1p(exp(-fabs(z)))) / alpha;
        a.rel += LIBM + 0x1p-50 * (z < 0 ? fabs(z) + 2 : 4);
        a.abs /= fabs(alpha);
        break;
    case EW_MISH: /* tanh(log(1 + w)) = w (w + 2) / (w (w + 2) + 2) */
        z = exp(fmin(x, 300));
        z = z * (z + 2);
        a.y = x * (z / (z + 2));
        a.rel += LIBM + 0x1p-49;
        a.abs *= fabs(x) + 1;
        break;
    case EW_SOFTSIGN:
        a.y = x / (1 + fabs(x));
        break;
    case EW_HARDSWISH:
        a.y = x * (x + 3) / 6;
        break;
    case EW_HARDSIGMOID:
        a.y = (x + 3) / 6;
        break;
    default:
        a.rel = INFINITY;
        break;
    }
    return a;
}

static double bounded(const struct ew *c, double x, double *e)
{
    struct approx a = approximate(c, x);
    *e = fabs(a.y) * a.rel + a.abs;
    return a.y;
}

double cr_elementwise_approximate(enum elementwise fn, const double params[KERNELS_EW_PARAMS],
                                  double x, double *e)
{
    struct ew c = {.fn = fn, .p = {params[0], params[1]}};
    return bounded(&c, x, e);
}

static bool fast(const struct ew *c, double x, double *y)
{
    double e, v = bounded(c, x, &e);
    if (cr_round_test1(c->fmt, v, e, y))
        return true;
    /* Below half of the smallest subnormal: zero, with the sign of the real value. */
    *y = copysign(0.0, real_sign(c, x));
    return fabs(v) + 2 * e < ldexp(0.49, c->fmt->quantum_exp);
}

/* ---- intervals ------------------------------------------------------------------------------ */

/* v[0] = 1 / (1 + exp(-v[0])); v[1] is scratch. */
static void iv_sigmoid(struct cr_iv *v)
{
    cr_iv_neg(&v[0]);
    cr_iv_increasing(&v[0], mpfr_exp);
    cr_iv_set(&v[1], 1);
    cr_iv_add(&v[0], &v[0], &v[1]);
    cr_iv_div(&v[0], &v[1], &v[0]);
}

/* v[0] = 2 sqrt(2 / pi) (x + 0.044715 x³) */
static void iv_gelu_argument(struct cr_iv *v, double x)
{
    cr_iv_set(&v[1], x);
    cr_iv_mul(&v[0], &v[1], &v[1]);
    cr_iv_mul(&v[0], &v[0], &v[1]);
    cr_iv_set_decimal(&v[2], GELU_CUBIC);
    cr_iv_mul(&v[0], &v[0], &v[2]);
    cr_iv_add(&v[0], &v[0], &v[1]);
    mpfr_const_pi(v[1].lo, MPFR_RNDD);
    mpfr_const_pi(v[1].hi, MPFR_RNDU);
    cr_iv_set(&v[2], 8);
    cr_iv_div(&v[1], &v[2], &v[1]);
    cr_iv_increasing(&v[1], mpfr_sqrt);
    cr_iv_mul(&v[0], &v[0], &v[1]);
}

/* v[0] *= x */
static void iv_times(struct cr_iv *v, double x)
{
    cr_iv_set(&v[1], x);
    cr_iv_mul(&v[0], &v[0], &v[1]);
}

static void iv_selu(struct cr_iv *v, double x)
{
    if (x < 0) {
        cr_iv_increasing(&v[0], mpfr_expm1);
        cr_iv_set_decimal(&v[1], SELU_ALPHA);
        cr_iv_mul(&v[0], &v[0], &v[1]);
    }
    cr_iv_set_decimal(&v[1], SELU_SCALE);
    cr_iv_mul(&v[0], &v[0], &v[1]);
}

static void iv_gelu_erf(struct cr_iv *v, double x)
{
    cr_iv_set(&v[1], 2);
    cr_iv_increasing(&v[1], mpfr_sqrt);
    cr_iv_div(&v[0], &v[0], &v[1]);
    cr_iv_neg(&v[0]);
    cr_iv_decreasing(&v[0], mpfr_erfc);
    iv_times(v, x);
    iv_times(v, 0.5);
}

/* Positive arguments: z + log(1 + e^-z), or the interval would grow with e^z. */
static void iv_softplus(struct cr_iv *v, double x, double beta)
{
    iv_times(v, beta);
    cr_iv_set(&v[2], 0);
    if (mpfr_sgn(v[0].lo) > 0) {
        cr_iv_add(&v[2], &v[2], &v[0]);
        cr_iv_neg(&v[0]);
    }
    cr_iv_increasing(&v[0], mpfr_exp);
    cr_iv_increasing(&v[0], mpfr_log1p);
    cr_iv_add(&v[0], &v[0], &v[2]);
    cr_iv_set(&v[1], beta);
    cr_iv_div(&v[0], &v[0], &v[1]);
    (void)x;
}

/* With w = e^x: x w (w + 2) / (w (w + 2) + 2); for x > 0 divided by w². */
static void iv_mish(struct cr_iv *v, double x)
{
    if (x > 0)
        cr_iv_neg(&v[0]);
    cr_iv_increasing(&v[0], mpfr_exp); /* w, or q = 1 / w */
    cr_iv_set(&v[1], 2);
    if (x > 0) { /* 1 + 2 q over (1 + 2 q) + 2 q² */
        cr_iv_mul(&v[2], &v[0], &v[0]);
        cr_iv_mul(&v[2], &v[2], &v[1]);
        cr_iv_mul(&v[0], &v[0], &v[1]);
        cr_iv_set(&v[1], 1);
        cr_iv_add(&v[0], &v[0], &v[1]);
        cr_iv_add(&v[2], &v[2], &v[0]);
    } else {
        cr_iv_add(&v[2], &v[0], &v[1]);
        cr_iv_mul(&v[0], &v[0], &v[2]);
        cr_iv_add(&v[2], &v[0], &v[1]);
    }
    cr_iv_div(&v[0], &v[0], &v[2]);
    iv_times(v, x);
}

/* iv[0] = f(x) at the precision of the intervals; false for functions not made of exp. */
static bool interval(struct ew *c, double x)
{
    struct cr_iv *v = c->iv;
    cr_iv_set(&v[0], x);
    switch (c->fn) {
    case EW_GELU_ERF:
        iv_gelu_erf(v, x);
        return true;
    case EW_GELU_TANH:
        iv_gelu_argument(v, x);
        break;
    case EW_QUICK_GELU:
        cr_iv_set_decimal(&v[1], QUICK_GELU);
        cr_iv_mul(&v[0], &v[0], &v[1]);
        break;
    case EW_SILU:
    case EW_SIGMOID:
        break;
    case EW_TANH:
        cr_iv_increasing(&v[0], mpfr_tanh);
        return true;
    case EW_EXP:
        cr_iv_increasing(&v[0], mpfr_exp);
        return true;
    case EW_ELU:
        cr_iv_increasing(&v[0], mpfr_expm1);
        iv_times(v, c->p[0]);
        return true;
    case EW_CELU:
        cr_iv_set(&v[1], c->p[0]);
        cr_iv_div(&v[0], &v[0], &v[1]);
        cr_iv_increasing(&v[0], mpfr_expm1);
        iv_times(v, c->p[0]);
        return true;
    case EW_SELU:
        iv_selu(v, x);
        return true;
    case EW_SOFTPLUS:
        iv_softplus(v, x, c->p[0]);
        return true;
    case EW_MISH:
        iv_mish(v, x);
        return true;
    default:
        return false;
    }
    iv_sigmoid(v);
    if (c->fn != EW_SIGMOID)
        iv_times(v, x);
    return true;
}

/* softsign, hardswish, hardsigmoid: t / sqrt(den). */
static double rational(struct ew *c, double x)
{
    struct cr_alg *a = &c->alg;
    cr_dy_set(&a->num, 1);
    cr_dy_set(&a->den, 1);
    cr_dy_set(&c->t, x);
    if (c->fn == EW_SOFTSIGN) {
        cr_dy_set(&c->u, fabs(x));
        cr_dy_add(&c->u, &c->u, &a->den);
        cr_dy_mul(&a->den, &c->u, &c->u);
    } else {
        cr_dy_set(&a->den, 36);
        cr_dy_set(&c->u, 3);
        cr_dy_add(&c->u, &c->u, &c->t);
        if (c->fn == EW_HARDSIGMOID)
            cr_dy_set(&c->t, 1);
        cr_dy_mul(&c->t, &c->t, &c->u);
    }
    cr_alg_changed(a);
    return cr_alg_round(a, c->fmt, &c->t, 0, 0);
}

static bool slow(struct ew *c, double x, double *y)
{
    ew_ready(c);
    for (mpfr_prec_t prec = FIRST_PREC; prec <= LAST_PREC; prec *= 2) {
        for (size_t i = 0; i < N_IV; i++)
            cr_iv_set_prec(&c->iv[i], prec);
        if (!interval(c, x)) {
            *y = rational(c, x);
            return true;
        }
        if (cr_iv_round(c->fmt, &c->iv[0], y))
            return true;
        double lo = cr_mpfr_round(c->fmt, c->iv[0].lo), hi = cr_mpfr_round(c->fmt, c->iv[0].hi);
        if (lo == 0 && hi == 0) {
            *y = copysign(0.0, real_sign(c, x));
            return true;
        }
    }
    return false;
}

enum status cr_elementwise(enum elementwise fn, enum dtype dt,
                           const double params[KERNELS_EW_PARAMS], size_t n, const void *x, void *y,
                           struct err *err)
{
    struct ew c = {.fn = fn, .fmt = cr_fmt_of(dt)};
    if (params != NULL)
        memcpy(c.p, params, sizeof c.p);
    bool divides = fn == EW_CELU || fn == EW_SOFTPLUS;
    if (c.fmt == NULL || !isfinite(c.p[0]) || !isfinite(c.p[1]) || (divides && c.p[0] == 0))
        return err_set(err, ST_USAGE, "elementwise %d of %s: parameters %g, %g: not computable",
                       (int)fn, dtype_name(dt), c.p[0], c.p[1]);
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        double v = cr_load(dt, x, i), r;
        if (!isfinite(v))
            st = err_set(err, ST_NONFINITE, "elementwise %d: input [%zu] is %g", (int)fn, i, v);
        else if (exact_case(&c, v, &r) || (dt != DT_F64 && fast(&c, v, &r)) || slow(&c, v, &r))
            cr_store(dt, y, i, r);
        else
            st = err_set(err, ST_INTERNAL, "elementwise %d: %a is undecided at %d bits", (int)fn, v,
                         LAST_PREC);
    }
    ew_close(&c);
    return st;
}

/* ---- binary --------------------------------------------------------------------------------- */

/* IEEE operations are correctly rounded; narrower formats get the exact sum or product once.  A
 * quotient of F32 values lies too far from every midpoint of F32 and below for the rounding to
 * double to matter. */
static double binary_value(const struct cr_fmt *f, enum binary op, double a, double b)
{
    switch (op) {
    case BIN_ADD:
        return f->dt == DT_F64 ? a + b : cr_round_pair(f, a, b);
    case BIN_SUB:
        return f->dt == DT_F64 ? a - b : cr_round_pair(f, a, -b);
    case BIN_MUL:
        return cr_fmt_round(f, a * b);
    default:
        return cr_fmt_round(f, a / b);
    }
}

enum status cr_binary(enum binary op, enum dtype dt, size_t n, const void *a, const void *b,
                      void *y, struct err *err)
{
    const struct cr_fmt *f = cr_fmt_of(dt);
    if (f == NULL)
        return err_set(err, ST_USAGE, "binary %d of %s: not computable", (int)op, dtype_name(dt));
    for (size_t i = 0; i < n; i++) {
        double u = cr_load(dt, a, i), v = cr_load(dt, b, i);
        if (!isfinite(u) || !isfinite(v) || (op == BIN_DIV && v == 0))
            return err_set(err, ST_NONFINITE, "binary %d: element [%zu]: no value for %g and %g",
                           (int)op, i, u, v);
        cr_store(dt, y, i, binary_value(f, op, u, v));
    }
    return ST_OK;
}
