/* SPDX-License-Identifier: Apache-2.0 */
/** Rounding, sums and dyadic numbers that correctly rounded arithmetic rests on, against MPFR. */
#include "test_cr.h"

/* Doubles around every kind of boundary of the format, and random ones. */
static double probe(const struct cr_fmt *f, uint64_t *seed)
{
    static const int bases[] = {0, -1, 1};
    uint64_t how = next_u64(seed);
    int e = (int)(how % (uint64_t)(f->max_exp - f->quantum_exp + 6)) + f->quantum_exp - 3;
    double x = cr_fmt_round(f, ldexp(1 + fabs(next_unit(seed)), e));
    if (!isfinite(x))
        x = f->max;
    double next = cr_fmt_succ(f, x);
    double half = isinf(next) ? ldexp(1, f->max_exp - f->prec) : (next - x) / 2;
    if ((how >> 32) % 2 == 0)
        x += half; /* a tie */
    int step = bases[(how >> 40) % 3];
    if (step != 0)
        x = nextafter(x, step * (double)INFINITY);
    return (how >> 50) % 2 == 0 ? x : -x;
}

static void test_fmt_round(void)
{
    uint64_t seed = 1;
    mpfr_t t;
    mpfr_init2(t, 53);
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        for (int i = 0; i < 20000; i++) {
            double x = probe(f, &seed);
            if (!isfinite(x))
                continue;
            mpfr_set_d(t, x, MPFR_RNDN);
            double want = reference_round(f->dt, t);
            expect_value(cr_fmt_round(f, x), want, "cr_fmt_round", x);
            expect_value(cr_mpfr_round(f, t), want, "cr_mpfr_round", x);
            expect_value(cr_round_product(f, x, 1.0), want, "cr_round_product", x);
            expect_value(cr_round_pair(f, x, copysign(0.0, x)), want, "cr_round_pair", x);
            if (f->dt != DT_F64)
                expect_value((double)f64_round_to(f->dt, x), want, "f64_round_to", x);
        }
    }
    mpfr_clear(t);
}

static void test_pair_and_product(void)
{
    uint64_t seed = 2;
    mpfr_t s, p, b;
    mpfr_init2(s, 4000);
    mpfr_init2(p, 4000);
    mpfr_init2(b, 53);
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        for (int i = 0; i < 20000; i++) {
            double x = probe(f, &seed);
            double y = ldexp(next_unit(&seed), (int)(next_u64(&seed) % 200) - 190);
            double l = fabs(x) < 1e290 && fabs(x) > 1e-250 ? x * y : 0;
            if (!isfinite(x))
                continue;
            mpfr_set_d(s, x, MPFR_RNDN);
            mpfr_set_d(b, l, MPFR_RNDN);
            CU_ASSERT_EQUAL(mpfr_add(p, s, b, MPFR_RNDN), 0);
            if (!mpfr_zero_p(p))
                expect_value(cr_round_pair(f, x, l), reference_round(f->dt, p), "pair", x);
            mpfr_set_d(b, y, MPFR_RNDN);
            CU_ASSERT_EQUAL(mpfr_mul(p, s, b, MPFR_RNDN), 0);
            expect_value(cr_round_product(f, x, y), reference_round(f->dt, p), "product", x);
        }
    }
    mpfr_clear(s);
    mpfr_clear(p);
    mpfr_clear(b);
}

static void test_succ(void)
{
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        double quantum = ldexp(1, f->quantum_exp), ulp = ldexp(1, 1 - f->prec);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, 0.0), quantum);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, -quantum), 0.0);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, 1.0), 1 + ulp);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, -1.0), -1 + ulp / 2);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, -f->min_normal), -f->min_normal + quantum);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, f->max), (double)INFINITY);
        CU_ASSERT_EQUAL(cr_fmt_succ(f, -(double)INFINITY), -f->max);
    }
}

/* Sums with cancellation over the whole range of doubles. */
static void test_accumulator(void)
{
    uint64_t seed = 3;
    mpfr_t s, t;
    mpfr_init2(s, 9000);
    mpfr_init2(t, 106);
    for (int round = 0; round < 400; round++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[round % 4]);
        int spread = round % 8 < 4 ? 60 : 1100;
        struct cr_acc acc;
        cr_acc_clear(&acc);
        mpfr_set_zero(s, 1);
        for (int i = 0; i < 20; i++) {
            double x = next_value(DT_F64, spread, &seed), y = next_value(DT_F64, spread, &seed);
            int copies = i % 5 == 0 ? 2 : 1; /* some terms cancel altogether */
            for (int k = 0; k < copies; k++) {
                cr_acc_add_product(&acc, k == 0 ? x : -x, y);
                mpfr_set_d(t, k == 0 ? x : -x, MPFR_RNDN);
                CU_ASSERT_EQUAL(mpfr_mul_d(t, t, y, MPFR_RNDN), 0);
                CU_ASSERT_EQUAL(mpfr_add(s, s, t, MPFR_RNDN), 0);
            }
            cr_acc_add(&acc, y);
            CU_ASSERT_EQUAL(mpfr_add_d(s, s, y, MPFR_RNDN), 0);
        }
        double want = mpfr_zero_p(s) ? 0.0 : reference_round(f->dt, s);
        expect_value(cr_acc_round(&acc, f), want, "cr_acc_round", round);
    }
    mpfr_clear(s);
    mpfr_clear(t);
}

static void check_dot2(cr_dot2_fn dot2, enum dtype dt, size_t n, uint64_t *seed)
{
    double x[64], w[64], out[2];
    mpfr_t s, t, abs_sum;
    mpfr_init2(s, 4000);
    mpfr_init2(t, 106);
    mpfr_init2(abs_sum, 100);
    mpfr_set_zero(s, 1);
    mpfr_set_zero(abs_sum, 1);
    for (size_t i = 0; i < n; i++) {
        x[i] = next_value(dt, 40, seed);
        w[i] = next_value(dt, 40, seed);
        mpfr_set_d(t, x[i], MPFR_RNDN);
        mpfr_mul_d(t, t, w[i], MPFR_RNDN);
        mpfr_add(s, s, t, MPFR_RNDN);
        mpfr_abs(t, t, MPFR_RNDN);
        mpfr_add(abs_sum, abs_sum, t, MPFR_RNDU);
    }
    dot2(x, w, n, out);
    mpfr_sub_d(s, s, out[0], MPFR_RNDN);
    mpfr_sub_d(s, s, out[1], MPFR_RNDN);
    double g = cr_gamma(2 * n + CR_DOT2_EXTRA);
    CU_ASSERT_TRUE(fabs(mpfr_get_d(s, MPFR_RNDN)) <=
                   g * g * mpfr_get_d(abs_sum, MPFR_RNDU) + 0x1p-1060);
    mpfr_clear(s);
    mpfr_clear(t);
    mpfr_clear(abs_sum);
}

static void test_dot2(void)
{
    uint64_t seed = 4;
    for (size_t n = 0; n <= 64; n++)
        for (int isa = CR_ISA_BEST; isa <= CR_ISA_BASE; isa++) {
            check_dot2(cr_dot2_exact_products((enum cr_isa)isa), DT_F32, n, &seed);
            check_dot2(cr_dot2_any((enum cr_isa)isa), DT_F64, n, &seed);
        }
}

/* p sqrt(num / den) + b: exact ties on both sides of even, neighbours of ties, cancellation. */
static void test_algebraic(void)
{
    const struct cr_fmt *f = cr_fmt_of(DT_F32);
    struct cr_alg a;
    struct cr_dy p, tiny;
    cr_alg_init(&a);
    cr_dy_init(&p);
    cr_dy_init(&tiny);
    cr_dy_set(&a.num, 1);
    cr_dy_set(&a.den, 9);
    cr_dy_set(&p, 3 * (1 + 0x1p-24));
    CU_ASSERT_EQUAL(cr_alg_round(&a, f, &p, 0, 0), 1.0);
    CU_ASSERT_EQUAL(cr_alg_round(&a, f, &p, 0x1p-23, 0), 1 + 0x1p-22); /* tie, upwards */
    expect_value(cr_alg_round(&a, f, &p, -(1 + 0x1p-24), 0), 0.0, "cancels", 0);
    cr_dy_set(&tiny, 0x1p-1000);
    cr_dy_add(&p, &p, &tiny);
    CU_ASSERT_EQUAL(cr_alg_round(&a, f, &p, 0, 0), 1 + 0x1p-23);
    expect_value(cr_alg_round(&a, f, &p, -(1 + 0x1p-24), 0), 0.0, "vanishes", 1);
    cr_dy_sub(&p, &p, &tiny);
    cr_dy_sub(&p, &p, &tiny);
    CU_ASSERT_EQUAL(cr_alg_round(&a, f, &p, 0, 0), 1.0);
    expect_value(cr_alg_round(&a, f, &p, -(1 + 0x1p-24), 0), -0.0, "vanishes", -1);
    cr_dy_set(&p, 3 * 0x1p-150);
    expect_value(cr_alg_round(&a, f, &p, 0, 0), 0.0, "half of the smallest", 1);
    cr_dy_set(&p, -3 * 0x1p-150);
    expect_value(cr_alg_round(&a, f, &p, 0, 0), -0.0, "half of the smallest", -1);
    cr_dy_set(&p, 3 * (0x1.fffffep127 + 0x1p103));
    CU_ASSERT_EQUAL(cr_alg_round(&a, f, &p, 0, 0), (double)INFINITY);
    cr_dy_sub(&p, &p, &tiny);
    CU_ASSERT_EQUAL(cr_alg_round(&a, f, &p, 0, 0), (double)0x1.fffffep127);
    cr_alg_clear(&a);
    cr_dy_clear(&p);
    cr_dy_clear(&tiny);
}

int main(void)
{
    static const struct cr_topic topics[] = {
        {"rounding of doubles", test_fmt_round},
        {"pairs and products", test_pair_and_product},
        {"successor", test_succ},
        {"accumulator", test_accumulator},
        {"Dot2", test_dot2},
        {"algebraic values", test_algebraic},
    };
    return run_topics("cr_round", topics, sizeof topics / sizeof topics[0]);
}
