/* SPDX-License-Identifier: Apache-2.0 */
/** Correctly rounded elementwise functions and binary ops against textbook formulas in MPFR at a
 *  precision at which cancellation does not matter. */
#include "test_cr.h"

struct scratch {
    mpfr_t x, a, b;
};

static void sigmoid(mpfr_ptr r, mpfr_srcptr z)
{
    mpfr_neg(r, z, MPFR_RNDN);
    mpfr_exp(r, r, MPFR_RNDN);
    mpfr_add_ui(r, r, 1, MPFR_RNDN);
    mpfr_ui_div(r, 1, r, MPFR_RNDN);
}

static void gelu(struct scratch *s, enum elementwise fn)
{
    if (fn == EW_GELU_ERF) {
        mpfr_set_ui(s->a, 2, MPFR_RNDN);
        mpfr_sqrt(s->a, s->a, MPFR_RNDN);
        mpfr_div(s->a, s->x, s->a, MPFR_RNDN);
        mpfr_erf(s->a, s->a, MPFR_RNDN);
    } else {
        mpfr_set_str(s->b, "0.044715", 10, MPFR_RNDN);
        mpfr_pow_ui(s->a, s->x, 3, MPFR_RNDN);
        mpfr_mul(s->a, s->a, s->b, MPFR_RNDN);
        mpfr_add(s->a, s->a, s->x, MPFR_RNDN);
        mpfr_const_pi(s->b, MPFR_RNDN);
        mpfr_ui_div(s->b, 2, s->b, MPFR_RNDN);
        mpfr_sqrt(s->b, s->b, MPFR_RNDN);
        mpfr_mul(s->a, s->a, s->b, MPFR_RNDN);
        mpfr_tanh(s->a, s->a, MPFR_RNDN);
    }
    mpfr_add_ui(s->a, s->a, 1, MPFR_RNDN);
    mpfr_mul(s->a, s->a, s->x, MPFR_RNDN);
    mpfr_div_ui(s->a, s->a, 2, MPFR_RNDN);
    if (mpfr_equal_p(s->a, s->x)) /* it lies below x at any precision */
        mpfr_nextbelow(s->a);
}

static void softplus(mpfr_ptr r, mpfr_srcptr z)
{
    mpfr_exp(r, z, MPFR_RNDN);
    mpfr_add_ui(r, r, 1, MPFR_RNDN);
    mpfr_log(r, r, MPFR_RNDN);
}

/* a = min(max(x + 3, 0), 6) / 6 */
static void hardsigmoid(struct scratch *s)
{
    mpfr_add_ui(s->a, s->x, 3, MPFR_RNDN);
    if (mpfr_sgn(s->a) < 0)
        mpfr_set_ui(s->a, 0, MPFR_RNDN);
    if (mpfr_cmp_ui(s->a, 6) > 0)
        mpfr_set_ui(s->a, 6, MPFR_RNDN);
}

static void elu(struct scratch *s, double alpha, double inner)
{
    mpfr_set(s->a, s->x, MPFR_RNDN);
    if (mpfr_sgn(s->x) > 0)
        return;
    mpfr_div_d(s->a, s->a, inner, MPFR_RNDN);
    mpfr_expm1(s->a, s->a, MPFR_RNDN);
    if (mpfr_cmp_si(s->a, -1) == 0) /* above -1 at any precision */
        mpfr_nextabove(s->a);
    mpfr_mul_d(s->a, s->a, alpha, MPFR_RNDN);
}

static void selu(struct scratch *s)
{
    elu(s, 1, 1);
    mpfr_set_str(s->b, "1.6732632423543772848170429916717", 10, MPFR_RNDN);
    if (mpfr_sgn(s->x) < 0)
        mpfr_mul(s->a, s->a, s->b, MPFR_RNDN);
    mpfr_set_str(s->b, "1.0507009873554804934193349852946", 10, MPFR_RNDN);
    mpfr_mul(s->a, s->a, s->b, MPFR_RNDN);
}

static void piecewise(struct scratch *s, enum elementwise fn, double x, const double *p)
{
    switch (fn) {
    case EW_RELU:
        mpfr_set_d(s->a, x > 0 ? x : 0, MPFR_RNDN);
        break;
    case EW_RELU6:
        mpfr_set_d(s->a, x > 6 ? 6 : x > 0 ? x : 0, MPFR_RNDN);
        break;
    case EW_LEAKY_RELU:
        mpfr_mul_d(s->a, s->x, x > 0 ? 1 : p[0], MPFR_RNDN);
        break;
    case EW_SOFTSIGN:
        mpfr_abs(s->b, s->x, MPFR_RNDN);
        mpfr_add_ui(s->b, s->b, 1, MPFR_RNDN);
        mpfr_div(s->a, s->x, s->b, MPFR_RNDN);
        break;
    case EW_HARDTANH:
        mpfr_set_d(s->a, x > p[1] ? p[1] : x < p[0] ? p[0] : x, MPFR_RNDN);
        break;
    case EW_HARDSWISH:
        hardsigmoid(s);
        mpfr_mul(s->a, s->a, s->x, MPFR_RNDN);
        mpfr_div_ui(s->a, s->a, 6, MPFR_RNDN);
        break;
    case EW_HARDSIGMOID:
        hardsigmoid(s);
        mpfr_div_ui(s->a, s->a, 6, MPFR_RNDN);
        break;
    case EW_SCALE:
        mpfr_mul_d(s->a, s->x, p[0], MPFR_RNDN);
        break;
    default:
        mpfr_set(s->a, s->x, MPFR_RNDN);
        break;
    }
}

static double reference(struct scratch *s, enum elementwise fn, enum dtype dt, double x,
                        const double *p)
{
    mpfr_set_d(s->x, x, MPFR_RNDN);
    switch (fn) {
    case EW_GELU_ERF:
    case EW_GELU_TANH:
        gelu(s, fn);
        break;
    case EW_QUICK_GELU:
        mpfr_set_str(s->b, "1.702", 10, MPFR_RNDN);
        mpfr_mul(s->b, s->b, s->x, MPFR_RNDN);
        sigmoid(s->a, s->b);
        mpfr_mul(s->a, s->a, s->x, MPFR_RNDN);
        break;
    case EW_SILU:
        sigmoid(s->a, s->x);
        mpfr_mul(s->a, s->a, s->x, MPFR_RNDN);
        break;
    case EW_TANH:
        mpfr_tanh(s->a, s->x, MPFR_RNDN);
        break;
    case EW_SIGMOID:
        sigmoid(s->a, s->x);
        break;
    case EW_ELU:
        elu(s, p[0], 1);
        break;
    case EW_CELU:
        elu(s, p[0], p[0]);
        break;
    case EW_SOFTPLUS:
        mpfr_mul_d(s->b, s->x, p[0], MPFR_RNDN);
        if (mpfr_cmp_d(s->b, p[1]) > 0) {
            mpfr_set(s->a, s->x, MPFR_RNDN);
            break;
        }
        softplus(s->a, s->b);
        mpfr_div_d(s->a, s->a, p[0], MPFR_RNDN);
        break;
    case EW_MISH:
        softplus(s->a, s->x);
        mpfr_tanh(s->a, s->a, MPFR_RNDN);
        mpfr_mul(s->a, s->a, s->x, MPFR_RNDN);
        break;
    case EW_SELU:
        selu(s);
        break;
    case EW_EXP:
        mpfr_exp(s->a, s->x, MPFR_RNDN);
        break;
    default:
        piecewise(s, fn, x, p);
        break;
    }
    return reference_round(dt, s->a);
}

static const double parameters[EW_COUNT][3][2] = {
    [EW_ELU] = {{1, 0}, {0x1.01p0, 0}, {-0.3, 0}},
    [EW_CELU] = {{0.7, 0}, {0x1.000001p0, 0}, {-3, 0}},
    [EW_LEAKY_RELU] = {{0.01, 0}, {0.1, 0}, {-0.5, 0}},
    [EW_SOFTPLUS] = {{1, 20}, {0.5, 3}, {-1.25, 20}},
    [EW_HARDTANH] = {{-1, 1}, {0.1, 0.3}, {-1e300, 1e-3}},
    [EW_SCALE] = {{22.627416997969522, 0}, {0.1, 0}, {-1e-5, 0}},
};

static void check(struct scratch *s, enum dtype dt, const double *xs, size_t n)
{
    void *x = new_array(dt, n), *y = new_array(dt, n);
    for (size_t i = 0; i < n; i++)
        cr_store(dt, x, i, xs[i]);
    for (int fn = 0; fn < EW_COUNT; fn++)
        for (size_t v = 0; v < 3; v++) {
            const double *p = parameters[fn][v];
            struct err err = {0};
            if (v > 0 && p[0] == 0 && p[1] == 0)
                continue;
            enum status st = cr_elementwise((enum elementwise)fn, dt, p, n, x, y, &err);
            CU_ASSERT_EQUAL(st, ST_OK);
            if (st != ST_OK)
                printf("\n  %s", err.message);

            for (size_t i = 0; st == ST_OK && i < n; i++) {
                double want = reference(s, (enum elementwise)fn, dt, xs[i], p);
                char what[40];
                (void)snprintf(what, sizeof what, "%s function %d, %g", dtype_name(dt), fn, p[0]);
                double got = cr_load(dt, y, i);
                /* Exact zeros have a table of their own (test_zeros). */
                expect_value(got, want == 0 && got == 0 && mpfr_zero_p(s->a) ? got : want, what,
                             xs[i]);
            }
        }
    free(x);
    free(y);
}

static void scratch_open(struct scratch *s, mpfr_prec_t prec)
{
    mpfr_inits2(prec, s->x, s->a, s->b, (mpfr_ptr)NULL);
}

static void scratch_close(struct scratch *s)
{
    mpfr_clears(s->x, s->a, s->b, (mpfr_ptr)NULL);
}

static void test_random(void)
{
    uint64_t seed = 1;
    struct scratch s;
    scratch_open(&s, 1500);
    for (size_t d = 0; d < 4; d++) {
        double xs[120];
        for (size_t i = 0; i < 120; i++) {
            double x = next_unit(&seed) * (i < 60 ? 4 : i < 90 ? 20 : 120);
            xs[i] = cr_fmt_round(cr_fmt_of(cr_dtypes[d]), x);
        }
        check(&s, cr_dtypes[d], xs, 120);
    }
    scratch_close(&s);
}

/* Around zero, the corners of the piecewise functions, saturation, underflow and overflow.  F32,
 * F16 and BF16 also get inputs wider than their own format, as after a wider op. */
static void test_special(void)
{
    struct scratch s;
    scratch_open(&s, 2500);
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]), *wide = cr_fmt_of(DT_F32);
        double q = ldexp(1, f->quantum_exp), ulp = ldexp(1, 1 - f->prec);
        if (f->dt == DT_F64)
            wide = f;
        double xs[] = {q,
                       -q,
                       3 * q,
                       -3 * q,
                       f->min_normal,
                       -f->min_normal,
                       f->max,
                       -f->max,
                       1,
                       -1,
                       3,
                       -3,
                       6,
                       -6,
                       3 + ulp,
                       -3 + ulp,
                       3 + 4 * ulp,
                       -3 - 4 * ulp,
                       0.5,
                       -0.5,
                       9,
                       -9,
                       17,
                       -17,
                       20,
                       20.5,
                       -20,
                       88.5,
                       89,
                       -88,
                       -104,
                       -150,
                       -36,
                       -14.25,
                       -38.5,
                       -744,
                       -746,
                       709,
                       710,
                       1e-3,
                       -1e-3,
                       1 + ulp / 2,
                       -1 - ulp,
                       1.5e-5,
                       2.1e-7,
                       0x1p-12,
                       -0x1p-12,
                       0x1.004p-3,
                       -61,
                       -59,
                       1600,
                       -1600,
                       0x1.008p-20,
                       -0x1.008p-20,
                       0x1.81p0,
                       0x1.01p5,
                       0x1.03p5,
                       -0x1.01p5};
        size_t n = 0;
        for (size_t i = 0; i < sizeof xs / sizeof xs[0]; i++) {
            double x = cr_fmt_round(wide, xs[i]);
            if (isfinite(x) && x != 0)
                xs[n++] = x;
        }
        check(&s, f->dt, xs, n);
    }
    scratch_close(&s);
}

/* silu and gelu halve their argument near zero: the smallest subnormals land beside ties. */
static void test_beside_ties(void)
{
    struct scratch s;
    scratch_open(&s, 4600);
    const double q = 0x1p-1074;
    const double xs[] = {q, -q, 3 * q, -3 * q, 5 * q, 0x1p-1060 + q, 0x1.8p-1000, -0x1.01p-900};
    check(&s, DT_F64, xs, sizeof xs / sizeof xs[0]);
    scratch_close(&s);
}

/* The bound of the fast path holds, and is tight enough to be of use. */
static void test_bound(void)
{
    uint64_t seed = 8;
    struct scratch s;
    scratch_open(&s, 1600);
    for (int fn = EW_GELU_ERF; fn < EW_COUNT; fn++)
        for (int i = 0; i < 600; i++) {
            const double *p = parameters[fn][i % 3];
            if (p[0] == 0)
                p = parameters[fn][0];
            double x = next_unit(&seed) * (i % 4 == 0 ? 1 : i % 4 == 1 ? 12 : 100), e;
            x = (double)(float)(i % 8 < 4 ? x : ldexp(x, -(i % 90)));
            double y = cr_elementwise_approximate((enum elementwise)fn, p, x, &e);
            if (!isfinite(e) || (fn == EW_SOFTPLUS && p[0] * x > p[1]) ||
                ((fn == EW_ELU || fn == EW_CELU || fn == EW_HARDSWISH) && x > 0) ||
                ((fn == EW_HARDSWISH || fn == EW_HARDSIGMOID) && fabs(x) > 3))
                continue; /* exact cases */
            (void)reference(&s, (enum elementwise)fn, DT_F64, x, p);
            double f = mpfr_get_d(s.a, MPFR_RNDN);
            mpfr_sub_d(s.a, s.a, y, MPFR_RNDN);
            bool good = fabs(mpfr_get_d(s.a, MPFR_RNDN)) <= e &&
                        e <= fabs(f) * (fn == EW_GELU_ERF ? 0x1p-34 : 0x1p-38) + 0x1p-900;
            if (!good)
                printf("\n  function %d at %a: %a, bound %a, expected %a", fn, x, y, e, f);
            CU_ASSERT_TRUE(good);
        }
    scratch_close(&s);
}

static double apply(enum elementwise fn, double p0, double x)
{
    const double p[2] = {p0, fn == EW_HARDTANH ? 1 : 20};
    double y = NAN;
    struct err err = {0};
    CU_ASSERT_EQUAL(cr_elementwise(fn, DT_F64, p, 1, &x, &y, &err), ST_OK);
    return y;
}

/* formats/FORMAT.md, line by line. */
static void test_zeros(void)
{
    static const enum elementwise odd[] = {EW_IDENTITY, EW_GELU_ERF, EW_GELU_TANH, EW_QUICK_GELU,
                                           EW_SILU,     EW_TANH,     EW_SOFTSIGN,  EW_HARDSWISH,
                                           EW_MISH,     EW_SELU,     EW_CELU};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        expect_value(apply(odd[i], 1, -0.0), -0.0, "odd", (double)odd[i]);
        expect_value(apply(odd[i], 1, 0.0), 0.0, "odd", (double)odd[i]);
    }
    for (int sign = -1; sign <= 1; sign += 2) {
        double zero = sign * 0.0;
        expect_value(apply(EW_RELU, 0, zero), 0.0, "relu", zero);
        expect_value(apply(EW_RELU6, 0, zero), 0.0, "relu6", zero);
        expect_value(apply(EW_HARDTANH, -1, zero), zero, "hardtanh", zero);
        expect_value(apply(EW_ELU, sign, 0.0), zero, "elu", sign);
        expect_value(apply(EW_LEAKY_RELU, sign, -0.0), -zero, "leaky_relu", sign);
        expect_value(apply(EW_SCALE, sign, 0.0), zero, "scale", sign);
        expect_value(apply(EW_SCALE, zero, 2.0), zero, "scale", sign);
        expect_value(apply(EW_EXP, 0, zero), 1.0, "exp", zero);
        expect_value(apply(EW_SIGMOID, 0, zero), 0.5, "sigmoid", zero);
        expect_value(apply(EW_HARDSIGMOID, 0, zero), 0.5, "hardsigmoid", zero);
    }
    expect_value(apply(EW_RELU, 0, -5.0), 0.0, "relu", -5);
    expect_value(apply(EW_HARDSIGMOID, 0, -5.0), 0.0, "hardsigmoid", -5);
    expect_value(apply(EW_HARDSWISH, 0, -5.0), -0.0, "hardswish", -5);
    expect_value(apply(EW_HARDSWISH, 0, -3.0), -0.0, "hardswish", -3);
    expect_value(apply(EW_ELU, 0.0, -5.0), -0.0, "elu", -5);
    expect_value(apply(EW_LEAKY_RELU, 0.0, -5.0), -0.0, "leaky_relu", -5);
    expect_value(apply(EW_SILU, 0, -1e30), -0.0, "silu", -1e30);
    expect_value(apply(EW_EXP, 0, -1e300), 0.0, "exp", -1e300);
    expect_value(apply(EW_SOFTPLUS, -1, 1e300), -0.0, "softplus", 1e300);
    expect_value(apply(EW_GELU_ERF, 0, -1e300), -0.0, "gelu_erf", -1e300);
    expect_value(apply(EW_EXP, 0, 1e300), (double)INFINITY, "exp", 1e300);
}

static void test_refusals(void)
{
    const float x[3] = {1, 2, NAN};
    const double p[2] = {0, 1};
    float y[3];
    struct err err = {0};
    CU_ASSERT_EQUAL(cr_elementwise(EW_RELU, DT_F32, p, 3, x, y, &err), ST_NONFINITE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "[2]"));
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_elementwise(EW_CELU, DT_F32, p, 1, x, y, &err), ST_USAGE);
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_elementwise(EW_RELU, DT_I8, p, 1, x, y, &err), ST_USAGE);
    err_clear(&err);
    const float zero[1] = {0};
    CU_ASSERT_EQUAL(cr_binary(BIN_DIV, DT_F32, 1, x, zero, y, &err), ST_NONFINITE);
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_binary(BIN_ADD, DT_F32, 3, x, x, y, &err), ST_NONFINITE);
}

/* What the fast path takes for granted of libm, with a factor of four to spare. */
static void test_libm(void)
{
    static const struct {
        const char *name;
        double (*fn)(double);
        int (*reference)(mpfr_ptr, mpfr_srcptr, mpfr_rnd_t);
        double low, high;
    } fns[] = {{"exp", exp, mpfr_exp, -700, 700},
               {"expm1", expm1, mpfr_expm1, -40, 700},
               {"log1p", log1p, mpfr_log1p, 0, 1},
               {"tanh", tanh, mpfr_tanh, -20, 20},
               {"erfc", erfc, mpfr_erfc, -6, 26}};
    uint64_t seed = 6;
    mpfr_t x;
    mpfr_init2(x, 120);
    for (size_t f = 0; f < sizeof fns / sizeof fns[0]; f++)
        for (int i = 0; i < 3000; i++) {
            double u = fabs(next_unit(&seed)), small = ldexp(u, -(i % 40));
            double v = i % 2 == 0 ? fns[f].low + (fns[f].high - fns[f].low) * u : small;
            mpfr_set_d(x, v, MPFR_RNDN);
            fns[f].reference(x, x, MPFR_RNDN);
            double got = fns[f].fn(v), want = mpfr_get_d(x, MPFR_RNDN);
            mpfr_sub_d(x, x, got, MPFR_RNDN);
            bool good = fabs(mpfr_get_d(x, MPFR_RNDN)) <= fabs(want) * 0x1p-48;
            if (!good)
                printf("\n  %s(%a) is %a, expected %a", fns[f].name, v, got, want);
            CU_ASSERT_TRUE(good);
        }
    mpfr_clear(x);
}

static void binary_reference(mpfr_ptr r, enum binary op, mpfr_srcptr a, mpfr_srcptr b)
{
    static int (*const fns[])(mpfr_ptr, mpfr_srcptr, mpfr_srcptr, mpfr_rnd_t) = {
        [BIN_ADD] = mpfr_add, [BIN_SUB] = mpfr_sub, [BIN_MUL] = mpfr_mul, [BIN_DIV] = mpfr_div};
    fns[op](r, a, b, MPFR_RNDN);
}

static void test_binary(void)
{
    uint64_t seed = 5;
    mpfr_t a, b, r;
    mpfr_inits2(5000, a, b, r, (mpfr_ptr)NULL);
    for (size_t d = 0; d < 4; d++)
        for (int op = BIN_ADD; op <= BIN_DIV; op++)
            for (int i = 0; i < 400; i++) {
                enum dtype dt = cr_dtypes[d], from = dt == DT_F64 ? DT_F64 : DT_F32;
                int spread = i % 4 == 0 ? -cr_fmt_of(dt)->quantum_exp : 12;
                void *x = new_array(from, 1), *y = new_array(from, 1), *z = new_array(from, 1);
                struct err err = {0};
                double u = next_value(i % 2 == 0 ? dt : from, spread, &seed);
                double v = next_value(i % 2 == 0 ? dt : from, spread, &seed);
                v = v == 0 && op == BIN_DIV ? 1 : v;
                cr_store(from, x, 0, u);
                cr_store(from, y, 0, v);
                mpfr_set_d(a, u, MPFR_RNDN);
                mpfr_set_d(b, v, MPFR_RNDN);
                binary_reference(r, (enum binary)op, a, b);
                CU_ASSERT_EQUAL(cr_binary((enum binary)op, dt, 1, x, y, z, &err), ST_OK);
                expect_value(cr_load(from, z, 0), reference_round(dt, r), "binary", u);
                free(x);
                free(y);
                free(z);
            }
    mpfr_clears(a, b, r, (mpfr_ptr)NULL);
}

int main(void)
{
    static const struct cr_topic topics[] = {
        {"random", test_random}, {"special", test_special}, {"beside ties", test_beside_ties},
        {"bound", test_bound},   {"zeros", test_zeros},     {"refusals", test_refusals},
        {"binary", test_binary}, {"libm", test_libm},
    };
    return run_topics("cr_elementwise", topics, sizeof topics / sizeof topics[0]);
}
