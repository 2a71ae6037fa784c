/* SPDX-License-Identifier: Apache-2.0 */
/** Correctly rounded row norms against MPFR at a precision that holds every exact sum. */
#include "test_cr.h"

enum { PREC = 14000 };

enum kind { LAYER, RMS, RMS32, L2, RADIUS };
static const char *const kind_names[] = {"layer_norm", "rms_norm", "float32_rms_norm",
                                         "l2_normalize", "l2_norm"};

struct rows {
    enum kind kind;
    struct kernels_norm p;
    size_t m, n;
    void *x, *g, *b, *y;
};

static void rows_open(struct rows *t, enum kind kind, enum dtype dt, size_t m, size_t n)
{
    *t = (struct rows){.kind = kind, .m = m, .n = n};
    t->x = new_array(dt, m * n);
    t->g = new_array(dt, n);
    t->b = new_array(dt, n);
    t->y = new_array(dt, m * n);
    t->p = (struct kernels_norm){.dt = dt,
                                 .in_dt = dt,
                                 .eps = 1e-5,
                                 .weight = t->g,
                                 .bias = t->b,
                                 .weight_offset_dt = DT_UNKNOWN};
}

static void rows_close(struct rows *t)
{
    free(t->x);
    free(t->g);
    free(t->b);
    free(t->y);
}

static enum status rows_run(const struct rows *t, struct err *err)
{
    switch (t->kind) {
    case LAYER:
        return cr_layer_norm(&t->p, t->m, t->n, t->x, t->y, err);
    case RMS:
        return cr_rms_norm(&t->p, t->m, t->n, t->x, t->y, err);
    case RMS32:
        return cr_float32_rms_norm(&t->p, t->m, t->n, t->x, t->y, err);
    case L2:
        return cr_l2_normalize(&t->p, t->m, t->n, t->x, t->y, err);
    default:
        return cr_l2_norm(&t->p, t->m, t->n, t->x, t->y, err);
    }
}

/* sum = Σ x, square = Σ x², exactly. */
static void sums(const struct rows *t, size_t row, mpfr_ptr sum, mpfr_ptr square)
{
    mpfr_t q;
    mpfr_init2(q, 106);
    mpfr_set_zero(sum, 1);
    mpfr_set_zero(square, 1);
    for (size_t i = 0; i < t->n; i++) {
        double x = cr_load(t->p.dt, t->x, row * t->n + i);
        CU_ASSERT_EQUAL(mpfr_add_d(sum, sum, x, MPFR_RNDN), 0);
        mpfr_set_d(q, x, MPFR_RNDN);
        mpfr_sqr(q, q, MPFR_RNDN);
        CU_ASSERT_EQUAL(mpfr_add(square, square, q, MPFR_RNDN), 0);
    }
    mpfr_clear(q);
}

/* a = ± sqrt(a² num / den): exact where the result is representable. */
static void scaled_root(mpfr_ptr a, unsigned long num, mpfr_srcptr den)
{
    int sign = mpfr_sgn(a);
    mpfr_sqr(a, a, MPFR_RNDN);
    mpfr_mul_ui(a, a, num, MPFR_RNDN);
    mpfr_div(a, a, den, MPFR_RNDN);
    mpfr_sqrt(a, a, MPFR_RNDN);
    if (sign < 0)
        mpfr_neg(a, a, MPFR_RNDN);
}

static double weight(const struct rows *t, size_t i)
{
    if (t->p.weight == NULL)
        return 1;
    enum dtype dt = t->p.weight_offset_dt;
    mpfr_t w;
    mpfr_init2(w, 3000);
    mpfr_set_d(w, cr_load(t->p.dt, t->p.weight, i), MPFR_RNDN);
    mpfr_add_d(w, w, t->p.weight_offset, MPFR_RNDN);
    double r = reference_round(dt == DT_UNKNOWN ? dtype_compute(t->p.dt) : dt, w);
    mpfr_clear(w);
    return t->p.weight_offset == 0 || t->kind == LAYER ? cr_load(t->p.dt, t->p.weight, i) : r;
}

/* The row's denominator as in scaled_root; sum is Σ x. */
static void denominator(const struct rows *t, mpfr_srcptr sum, mpfr_ptr square)
{
    mpfr_t e;
    mpfr_init2(e, PREC);
    mpfr_set_d(e, t->p.eps, MPFR_RNDN);
    unsigned long n = (unsigned long)t->n;
    if (t->kind == LAYER) {
        mpfr_mul_ui(square, square, n, MPFR_RNDN);
        mpfr_mul_ui(e, e, n, MPFR_RNDN);
        mpfr_mul_ui(e, e, n, MPFR_RNDN);
        mpfr_add(square, square, e, MPFR_RNDN);
        mpfr_sqr(e, sum, MPFR_RNDN);
        mpfr_sub(square, square, e, MPFR_RNDN);
    } else if (t->kind == RMS || t->kind == RMS32) {
        mpfr_mul_ui(e, e, n, MPFR_RNDN);
        mpfr_add(square, square, e, MPFR_RNDN);
    } else {
        mpfr_sqr(e, e, MPFR_RNDN);
        mpfr_max(square, square, e, MPFR_RNDN);
    }
    mpfr_clear(e);
}

static double reference(const struct rows *t, size_t row, size_t i, mpfr_srcptr sum,
                        mpfr_srcptr den)
{
    double x = cr_load(t->p.dt, t->x, row * t->n + i), g = weight(t, i), r;
    mpfr_t a;
    mpfr_init2(a, PREC);
    mpfr_set_d(a, x, MPFR_RNDN);
    if (t->kind == LAYER) {
        mpfr_mul_ui(a, a, (unsigned long)t->n, MPFR_RNDN);
        mpfr_sub(a, a, sum, MPFR_RNDN);
    }
    if (t->kind == LAYER || t->kind == RMS)
        mpfr_mul_d(a, a, g, MPFR_RNDN);
    scaled_root(a, t->kind == RMS || t->kind == RMS32 ? (unsigned long)t->n : 1, den);
    if (t->kind == LAYER && t->p.bias != NULL)
        mpfr_add_d(a, a, cr_load(t->p.dt, t->p.bias, i), MPFR_RNDN);
    if (t->kind == RMS32) {
        r = reference_round(t->p.in_dt == DT_F64 ? DT_F32 : t->p.in_dt, a);
        mpfr_set_d(a, mpfr_zero_p(a) ? x * 0.0 : r, MPFR_RNDN);
        mpfr_mul_d(a, a, g, MPFR_RNDN);
        r = reference_round(t->p.dt, a);
    } else if (mpfr_zero_p(a)) {
        r = t->kind == LAYER ? 0.0 : copysign(0.0, x) * copysign(1.0, t->kind == RMS ? g : 1.0);
    } else {
        r = reference_round(t->p.dt, a);
    }
    mpfr_clear(a);
    return r;
}

static void rows_check(const struct rows *t)
{
    struct err err = {0};
    mpfr_t sum, den, r;
    mpfr_init2(sum, PREC);
    mpfr_init2(den, PREC);
    mpfr_init2(r, PREC);
    enum status st = rows_run(t, &err);
    CU_ASSERT_EQUAL(st, ST_OK);
    for (size_t row = 0; st == ST_OK && row < t->m; row++) {
        sums(t, row, sum, den);
        denominator(t, sum, den);
        if (t->kind == RADIUS) {
            mpfr_sqrt(r, den, MPFR_RNDN);
            expect_value(cr_load(t->p.dt, t->y, row), reference_round(t->p.dt, r), "l2_norm",
                         (double)row);
            continue;
        }
        for (size_t i = 0; i < t->n; i++)
            expect_value(cr_load(t->p.dt, t->y, row * t->n + i), reference(t, row, i, sum, den),
                         kind_names[t->kind], cr_load(t->p.dt, t->x, row * t->n + i));
    }
    mpfr_clear(sum);
    mpfr_clear(den);
    mpfr_clear(r);
}

static void fill(struct rows *t, int spread, double offset, uint64_t *seed)
{
    const struct cr_fmt *f = cr_fmt_of(t->p.dt);
    for (size_t i = 0; i < t->m * t->n; i++)
        cr_store(f->dt, t->x, i, cr_fmt_round(f, offset + next_value(f->dt, spread, seed)));
    for (size_t i = 0; i < t->n; i++) {
        cr_store(f->dt, t->g, i, next_value(f->dt, 1, seed));
        cr_store(f->dt, t->b, i, next_value(f->dt, 1, seed));
    }
}

static void test_random(void)
{
    static const size_t widths[] = {1, 2, 3, 8, 37, 130};
    static const double epsilons[] = {1e-5, 1e-12, 1e-6, 0.25, 1e-30, 3.0};
    uint64_t seed = 1;
    for (size_t d = 0; d < 4; d++)
        for (int kind = LAYER; kind <= RADIUS; kind++)
            for (size_t s = 0; s < 6; s++) {
                struct rows t;
                rows_open(&t, (enum kind)kind, cr_dtypes[d], 2, widths[s]);
                t.p.eps = epsilons[(s + d) % 6];
                if (s == 2)
                    t.p.weight = t.p.bias = NULL;
                if (s == 3)
                    t.p.weight_offset = 1.0;
                if (s == 4)
                    t.p.weight_offset = 1.0, t.p.weight_offset_dt = DT_BF16;
                fill(&t, (int)s, 0, &seed);
                rows_check(&t);
                rows_close(&t);
            }
}

/* Means far above the deviation, constant rows, zero rows, the ends of the range. */
static void test_adversarial(void)
{
    uint64_t seed = 2;
    for (size_t d = 0; d < 4; d++)
        for (int kind = LAYER; kind <= RADIUS; kind++)
            for (int how = 0; how < 8; how++) {
                const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
                struct rows t;
                rows_open(&t, (enum kind)kind, f->dt, 2, 9);
                fill(&t, 0, how < 4 ? ldexp(1, f->dt == DT_F16 ? 4 * how : 6 * how) : 0, &seed);
                double scale = how == 4   ? f->max
                               : how == 5 ? f->min_normal
                               : how == 6 ? 64 * ldexp(1, f->quantum_exp)
                                          : 1;
                for (size_t i = 0; i < 18; i++) {
                    double x = cr_fmt_round(f, cr_load(f->dt, t.x, i) * scale);
                    cr_store(f->dt, t.x, i, how == 7 ? i < 9 ? -0.0 : 0.3125 : x);
                }
                if (how == 3)
                    t.p.bias = NULL;
                t.p.eps = how == 6 ? 1e-300 : 1e-12;
                rows_check(&t);
                rows_close(&t);
            }
}

/* ‖(3 a, 4 a)‖ = 5 a, which for odd a of prec - 1 bits may have one bit too many; `more` is so
 * small a third element that double does not see it. */
static void check_radius_tie(const struct cr_fmt *f, double a, double more)
{
    struct rows t;
    rows_open(&t, RADIUS, f->dt, 1, 3);
    cr_store(DT_F32, t.x, 0, cr_fmt_round(cr_fmt_of(DT_F32), 3 * a));
    cr_store(DT_F32, t.x, 1, 4 * a);
    cr_store(DT_F32, t.x, 2, more);
    rows_check(&t);
    rows_close(&t);
}

/* Results exactly between two values, and so little beside that double cannot tell: rows of one
 * magnitude with eps 0 or next to nothing, halved by the weight or moved by the bias. */
static void test_ties(void)
{
    for (size_t d = 0; d < 3; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        double half = ldexp(1, -f->prec);
        for (int kind = LAYER; kind <= RMS32; kind++)
            for (int round = 0; round < 12; round++) {
                struct rows t;
                rows_open(&t, (enum kind)kind, f->dt, 1, 4);
                t.p.eps = round % 3 == 0 ? 0 : round % 3 == 1 ? 1e-25 : 1e-200;
                double odd = (double)(2 * round + 1) * half;
                for (size_t i = 0; i < 4; i++) {
                    cr_store(f->dt, t.x, i, (i % 2 == 0 ? 3.0 : -3.0));
                    /* for F16 and BF16 the weights are F32 values of another tensor */
                    double g = 1 + (f->dt == DT_F32 ? 0 : odd);
                    cr_store(f->dt, t.g, i, g);
                    cr_store(f->dt, t.b, i, f->dt == DT_F32 ? (i < 2 ? odd : -odd) : 0.0);
                }
                rows_check(&t);
                rows_close(&t);
            }
        for (int round = 0; round < 8; round++)
            check_radius_tie(f, ldexp(1, f->prec - 2) + 1 + 4 * (round / 2),
                             round % 2 == 0 ? 0 : 0x1p-20);
    }
}

static void test_refusals(void)
{
    for (int kind = LAYER; kind <= RADIUS; kind++) {
        struct err err = {0};
        struct rows t;
        rows_open(&t, (enum kind)kind, DT_F32, 2, 3);
        t.p.eps = 0;
        enum status st = rows_run(&t, &err); /* rows of zeros over zero */
        CU_ASSERT_EQUAL(st, kind == RADIUS ? ST_OK : ST_NONFINITE);
        err_clear(&err);
        t.p.eps = 1;
        ((float *)t.x)[4] = NAN;
        CU_ASSERT_EQUAL(rows_run(&t, &err), ST_NONFINITE);
        CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "[1, 1]"));
        err_clear(&err);
        t.p.eps = -1;
        CU_ASSERT_EQUAL(rows_run(&t, &err), ST_USAGE);
        rows_close(&t);
    }
}

int main(void)
{
    static const struct cr_topic topics[] = {
        {"random", test_random},
        {"adversarial", test_adversarial},
        {"ties", test_ties},
        {"refusals", test_refusals},
    };
    return run_topics("cr_norm", topics, sizeof topics / sizeof topics[0]);
}
