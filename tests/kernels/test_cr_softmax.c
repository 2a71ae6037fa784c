/* SPDX-License-Identifier: Apache-2.0 */
/** Correctly rounded softmax against MPFR. */
#include "test_cr.h"

static void check(enum dtype dt, size_t n, const double *xs)
{
    void *x = new_array(dt, n), *y = new_array(dt, n);
    struct err err = {0};
    mpfr_t sum, t;
    mpfr_inits2(1500, sum, t, (mpfr_ptr)NULL);
    mpfr_set_zero(sum, 1);
    for (size_t i = 0; i < n; i++) {
        cr_store(dt, x, i, xs[i]);
        mpfr_set_d(t, cr_load(dt, x, i), MPFR_RNDN);
        mpfr_exp(t, t, MPFR_RNDN);
        mpfr_add(sum, sum, t, MPFR_RNDN);
    }
    CU_ASSERT_EQUAL(cr_softmax(dt, 1, n, x, y, &err), ST_OK);
    for (size_t i = 0; i < n; i++) {
        mpfr_set_d(t, cr_load(dt, x, i), MPFR_RNDN);
        mpfr_exp(t, t, MPFR_RNDN);
        mpfr_div(t, t, sum, MPFR_RNDN);
        expect_value(cr_load(dt, y, i), reference_round(dt, t), "softmax", xs[i]);
    }
    mpfr_clears(sum, t, (mpfr_ptr)NULL);
    free(x);
    free(y);
}

static void test_rows(void)
{
    uint64_t seed = 1;
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        for (size_t n = 1; n <= 70; n += n < 5 ? 1 : 13)
            for (int scale = 1; scale <= 1000; scale *= 10) {
                double xs[80];
                for (size_t i = 0; i < n; i++)
                    xs[i] = cr_fmt_round(f, scale * next_unit(&seed));
                check(f->dt, n, xs);
            }
        for (size_t n = 1; n <= 16; n++) {
            double xs[16];
            for (size_t i = 0; i < n; i++)
                xs[i] = -7.5;
            check(f->dt, n, xs);
        }
        /* subnormal and vanishing probabilities */
        const double steep[] = {0, -8.75, -17, -17.5, -88, -103, -104, -700, -744, -746};
        check(f->dt, 10, steep);
        const double far[] = {f->max, f->max, -f->max};
        double y[3];
        float yf[3], xf[3] = {(float)f->max, (float)f->max, -(float)f->max};
        struct err err = {0};
        if (f->dt == DT_F64)
            CU_ASSERT_EQUAL(cr_softmax(DT_F64, 1, 3, far, y, &err), ST_OK);
        if (f->dt != DT_F64) {
            CU_ASSERT_EQUAL(cr_softmax(f->dt, 1, 3, xf, yf, &err), ST_OK);
            for (size_t i = 0; i < 3; i++)
                y[i] = (double)yf[i];
        }
        expect_value(y[0], 0.5, "far", 0);
        expect_value(y[1], 0.5, "far", 1);
        expect_value(y[2], 0.0, "far", 2);
    }
}

static void test_refusals(void)
{
    const float x[4] = {1, 2, 3, INFINITY};
    float y[4];
    struct err err = {0};
    CU_ASSERT_EQUAL(cr_softmax(DT_F32, 2, 2, x, y, &err), ST_NONFINITE);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "[1, 1]"));
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_softmax(DT_I8, 1, 1, x, y, &err), ST_USAGE);
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_softmax(DT_F32, 0, 4, x, y, &err), ST_OK);
}

int main(void)
{
    static const struct cr_topic topics[] = {{"rows", test_rows}, {"refusals", test_refusals}};
    return run_topics("cr_softmax", topics, sizeof topics / sizeof topics[0]);
}
