/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct kernels_norm PLAIN = {
    .dt = DT_F32, .in_dt = DT_F32, .weight_offset_dt = DT_UNKNOWN};

/* N26. */
static void test_rms_flavours(void)
{
    const float x[2] = {3, 4}, zeros[2] = {0, 0};
    float y[2];
    struct kernels_norm p = PLAIN;
    CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &p, 1, 2, x, y, &err));
    CHECK_NEAR(y[0], 0.8485281, 2e-7);
    CHECK_NEAR(y[1], 1.1313708, 2e-7);
    p.weight = zeros;
    CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &p, 1, 2, x, y, &err));
    CU_ASSERT(y[0] == 0 && y[1] == 0);
    p.weight_offset = 1;
    CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &p, 1, 2, x, y, &err));
    CHECK_NEAR(y[0], 0.8485281, 2e-7);
    CHECK_NEAR(y[1], 1.1313708, 2e-7);
}

/* N26: the scale that a row of equal elements shows (x / rms = 1). */
static float shown_scale(float weight, enum dtype offset_dt, bool float32)
{
    const float x = 1;
    float y = 0;
    struct kernels_norm p = PLAIN;
    p.weight = &weight;
    p.weight_offset = 1;
    p.weight_offset_dt = offset_dt;
    if (float32)
        CHECK_OK(kernels_float32_rms_norm(ARITH_LIBRARY, &p, 1, 1, &x, &y, &err));
    else
        CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &p, 1, 1, &x, &y, &err));
    return y;
}

static void test_where_the_offset_is_added(void)
{
    for (int float32 = 0; float32 < 2; float32++) {
        CU_ASSERT_EQUAL(shown_scale(0.050048828125f, DT_UNKNOWN, float32 != 0), 1.050048828125f);
        CU_ASSERT_EQUAL(shown_scale(0.050048828125f, DT_F32, float32 != 0), 1.050048828125f);
        CU_ASSERT_EQUAL(shown_scale(0.050048828125f, DT_BF16, float32 != 0), 1.046875f);
        CU_ASSERT_EQUAL(shown_scale(15.8125f, DT_UNKNOWN, float32 != 0), 16.8125f);
        CU_ASSERT_EQUAL(shown_scale(15.8125f, DT_BF16, float32 != 0), 16.75f);
    }
}

/* N27. */
static void test_layer_norm_eps(void)
{
    static const double EPS[] = {1e-5, 1e-6, 1e-12}, EXPECTED[] = {0.3015113, 0.7071068, 0.9999995};
    const float x[2] = {0.001f, -0.001f};
    const double wide[2] = {0.001, -0.001};
    for (size_t i = 0; i < N_OF(EPS); i++) {
        float y[2];
        double z[2];
        struct kernels_norm p = PLAIN;
        p.eps = EPS[i];
        CHECK_OK(kernels_layer_norm(ARITH_LIBRARY, &p, 1, 2, x, y, &err));
        CHECK_NEAR(y[0], EXPECTED[i], 2e-7);
        CHECK_NEAR(y[1], -EXPECTED[i], 2e-7);
        p.dt = p.in_dt = DT_F64;
        CHECK_OK(kernels_layer_norm(ARITH_LIBRARY, &p, 1, 2, wide, z, &err));
        CHECK_NEAR(z[0], EXPECTED[i], 6e-8);
        CHECK_NEAR(z[1], -EXPECTED[i], 6e-8);
    }
    /* A constant row of numbers whose mean is exact: the bias, and no NaN. */
    enum { N = 100 };
    float flat[N], bias[N], y[N];
    for (size_t i = 0; i < N; i++) {
        flat[i] = 3.25f;
        bias[i] = (float)i * 0.37f;
    }
    struct kernels_norm p = PLAIN;
    p.eps = 1e-5;
    p.bias = bias;
    CHECK_OK(kernels_layer_norm(ARITH_LIBRARY, &p, 1, N, flat, y, &err));
    for (size_t i = 0; i < N; i++)
        CHECK_NEAR(y[i], bias[i], 3.25 * 317 * 0x1p-23);
}

/* N27: zero rows have finite results everywhere. */
static void test_zero_rows(void)
{
    const float x[5] = {0, 0, -0.0f, 0, 0};
    float y[5], r = 0;
    struct kernels_norm p = PLAIN;
    p.eps = 1e-12;
    CHECK_OK(kernels_layer_norm(ARITH_LIBRARY, &p, 1, 5, x, y, &err));
    CHECK_NEAR(y[2], 0, 0);
    CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &p, 1, 5, x, y, &err));
    CHECK_NEAR(y[2], 0, 0);
    CHECK_OK(kernels_l2_normalize(ARITH_LIBRARY, &p, 1, 5, x, y, &err));
    CHECK_NEAR(y[2], 0, 0);
    CU_ASSERT(signbit(y[2]) && !signbit(y[1]));
    CHECK_OK(kernels_l2_norm(ARITH_LIBRARY, &p, 1, 5, x, &r, &err));
    CU_ASSERT_EQUAL(r, 1e-12f);
}

enum which { LAYER_NORM, RMS_NORM, FLOAT32_RMS_NORM, NORMALIZE, SOFTMAX, WHICH_COUNT };

static enum status call(enum which w, const struct kernels_norm *p, size_t m, size_t n,
                        const void *x, void *y, struct err *err)
{
    switch (w) {
    case LAYER_NORM:
        return kernels_layer_norm(ARITH_LIBRARY, p, m, n, x, y, err);
    case RMS_NORM:
        return kernels_rms_norm(ARITH_LIBRARY, p, m, n, x, y, err);
    case FLOAT32_RMS_NORM:
        return kernels_float32_rms_norm(ARITH_LIBRARY, p, m, n, x, y, err);
    case NORMALIZE:
        return kernels_l2_normalize(ARITH_LIBRARY, p, m, n, x, y, err);
    case SOFTMAX:
        return kernels_softmax(ARITH_LIBRARY, p->dt, m, n, x, y, err);
    case WHICH_COUNT:
        break;
    }
    return err_set(err, ST_INTERNAL, "which");
}

static void reference(enum which w, size_t n, const double *x, const double *wt, const double *b,
                      double eps, double *y)
{
    if (w == LAYER_NORM)
        kernels_reference_layer_norm(n, x, wt, b, eps, y);
    else if (w == RMS_NORM || w == FLOAT32_RMS_NORM)
        kernels_reference_rms_norm(n, x, wt, eps, y);
    else if (w == SOFTMAX)
        kernels_reference_softmax(n, x, y);
    else
        for (size_t i = 0; i < n; i++)
            y[i] = x[i] / kernels_reference_l2_norm(n, x, eps);
}

static const size_t WIDTHS[] = {1,  2,  3,   5,   7,   8,   9,    15,  16,
                                31, 64, 100, 127, 130, 515, 1024, 2100};
enum { ROWS = 5, MAX_WIDTH = 2100 };

struct rows {
    float x[ROWS * MAX_WIDTH], y[ROWS * MAX_WIDTH], wt[MAX_WIDTH], b[MAX_WIDTH];
    double xd[ROWS * MAX_WIDTH], yd[ROWS * MAX_WIDTH], wd[MAX_WIDTH], bd[MAX_WIDTH];
    double expected[MAX_WIDTH];
};

static struct rows *make_rows(enum dtype dt, size_t n)
{
    struct rows *r = kernels_test_alloc(1, sizeof *r);
    uint64_t state = 27 + n;
    kernels_test_fill_f32(&state, dt, ROWS * n, r->x);
    kernels_test_fill_f32(&state, dt, n, r->wt);
    kernels_test_fill_f32(&state, dt, n, r->b);
    for (size_t i = 0; i < ROWS * n; i++)
        r->xd[i] = (double)r->x[i];
    for (size_t i = 0; i < n; i++) {
        r->wd[i] = (double)r->wt[i];
        r->bd[i] = (double)r->b[i];
    }
    return r;
}

/* Largest error of an element, by op and unit roundoff u: sums of n terms in lanes, a few steps.
 * LayerNorm's x * s - mean * s cancels where x is near the mean: `spread` is the largest |x| * s.
 */
static double allowed(enum which w, double u, size_t n, double expected, double wt, double spread)
{
    double steps = 12 + (double)n / 8;
    if (w == LAYER_NORM)
        return steps * u * (fabs(expected) + 2 * spread * fabs(wt) + 1);
    return steps * u * (fabs(expected) + 1e-6);
}

static double row_spread(size_t n, const double *x)
{
    double mean = 0, variance = 0, largest = 0;
    for (size_t i = 0; i < n; i++)
        mean += x[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        variance += (x[i] - mean) * (x[i] - mean) / (double)n;
        largest = fmax(largest, fabs(x[i]));
    }
    return largest / sqrt(variance + 1e-5);
}

static void check_rows(enum which w, enum dtype dt, size_t n)
{
    struct rows *r = make_rows(dt, n);
    const bool wide = dt == DT_F64;
    const struct kernels_norm p = {.dt = dt,
                                   .in_dt = dt,
                                   .eps = 1e-5,
                                   .weight_offset_dt = DT_UNKNOWN,
                                   .weight = wide ? (const void *)r->wd : r->wt,
                                   .bias = wide ? (const void *)r->bd : r->b};
    CHECK_OK(
        call(w, &p, ROWS, n, wide ? (const void *)r->xd : r->x, wide ? (void *)r->yd : r->y, &err));
    /* float32_rms_norm has float32's error whatever the storage. */
    const double u = w == FLOAT32_RMS_NORM && wide ? 0x1p-24 : wide ? 0x1p-53 : 0x1p-24;
    const double storage = dt == DT_BF16 ? 0x1p-8 : dt == DT_F16 ? 0x1p-11 : 0;
    const double roundings = w == FLOAT32_RMS_NORM ? 2.1 : 1.01;
    for (size_t row = 0; row < ROWS; row++) {
        const double spread = row_spread(n, r->xd + row * n);
        reference(w, n, r->xd + row * n, r->wd, r->bd, 1e-5, r->expected);
        for (size_t i = 0; i < n; i++) {
            double e = r->expected[i],
                   found = wide ? r->yd[row * n + i] : (double)r->y[row * n + i];
            double tiny = dt == DT_F16 ? 0x1p-23 : 0;
            CHECK_NEAR(found, e,
                       allowed(w, u, n, e, r->wd[i], spread) + roundings * storage * fabs(e) +
                           tiny);
        }
    }
    free(r);
}

static void test_against_reference(void)
{
    for (int w = 0; w < WHICH_COUNT; w++) {
        for (size_t i = 0; i < N_OF(WIDTHS); i++) {
            check_rows((enum which)w, DT_F32, WIDTHS[i]);
            check_rows((enum which)w, DT_F64, WIDTHS[i]);
            check_rows((enum which)w, DT_F16, WIDTHS[i]);
            check_rows((enum which)w, DT_BF16, WIDTHS[i]);
        }
    }
}

/* A row has the same bytes alone, in place, and among others. */
static void test_rows_are_independent(void)
{
    for (int w = 0; w < WHICH_COUNT; w++) {
        for (size_t i = 0; i < N_OF(WIDTHS); i++) {
            const size_t n = WIDTHS[i];
            struct rows *r = make_rows(DT_F32, n);
            const struct kernels_norm p = {.dt = DT_F32,
                                           .in_dt = DT_F32,
                                           .eps = 1e-6,
                                           .weight = r->wt,
                                           .bias = r->b,
                                           .weight_offset_dt = DT_UNKNOWN};
            float *alone = kernels_test_alloc(n, sizeof *alone);
            CHECK_OK(call((enum which)w, &p, ROWS, n, r->x, r->y, &err));
            for (size_t row = 0; row < ROWS; row++) {
                memcpy(alone, r->x + row * n, n * sizeof *alone);
                CHECK_OK(call((enum which)w, &p, 1, n, alone, alone, &err));
                CHECK_BYTES(alone, r->y + row * n, n * sizeof *alone);
            }
            free(alone);
            free(r);
        }
    }
}

/* Sums have one order: AVX2 and baseline loops agree byte for byte. */
static void test_loops_agree(void)
{
    const struct row_loops *loops[2] = {&row_loops_base, row_loops_pick()};
    for (size_t i = 0; i < N_OF(WIDTHS); i++) {
        const size_t n = WIDTHS[i], size = ROWS * n;
        struct rows *r = make_rows(DT_F32, n), *s = make_rows(DT_F32, n);
        struct rows *out[2] = {r, s};
        float norms[2][ROWS];
        double wide_norms[2][ROWS];
        for (int step = 0; step < 2; step++) {
            for (size_t j = 0; j < 2; j++) {
                if (step == 0) {
                    loops[j]->layer_norm_f32(ROWS, n, out[j]->x, r->wt, r->b, 1e-5f, out[j]->y);
                    loops[j]->layer_norm_f64(ROWS, n, out[j]->xd, r->wd, r->bd, 1e-5, out[j]->yd);
                } else {
                    loops[j]->rms_norm_f32(ROWS, n, out[j]->x, r->wt, 1e-5f, out[j]->y);
                    loops[j]->rms_norm_f64(ROWS, n, out[j]->xd, r->wd, 1e-5, out[j]->yd);
                }
                loops[j]->l2_norm_f32(ROWS, n, out[j]->x, 1e-12f, norms[j]);
                loops[j]->l2_norm_f64(ROWS, n, out[j]->xd, 1e-12, wide_norms[j]);
            }
            CHECK_BYTES(r->y, s->y, size * sizeof *r->y);
            CHECK_BYTES(r->yd, s->yd, size * sizeof *r->yd);
            CHECK_BYTES(norms[0], norms[1], sizeof norms[0]);
            CHECK_BYTES(wide_norms[0], wide_norms[1], sizeof wide_norms[0]);
        }
        free(r);
        free(s);
    }
}

/* The two declared roundings of float32_rms_norm: to the input's dtype, then after the scale. */
static void test_float32_roundings(void)
{
    enum { N = 3 };
    const float x[N] = {1, 2, 4}, w[N] = {1.25f, 1.0078125f, 3};
    float y[N], inner[N];
    struct kernels_norm p = PLAIN;
    CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &p, 1, N, x, inner, &err));
    kernels_round_f32(DT_BF16, inner, N);
    p.weight = w;
    p.in_dt = DT_BF16; /* BF16 in, F32 scale and result */
    CHECK_OK(kernels_float32_rms_norm(ARITH_LIBRARY, &p, 1, N, x, y, &err));
    for (size_t i = 0; i < N; i++)
        CU_ASSERT_EQUAL(y[i], inner[i] * w[i]);
    p.dt = DT_BF16;
    CHECK_OK(kernels_float32_rms_norm(ARITH_LIBRARY, &p, 1, N, x, y, &err));
    for (size_t i = 0; i < N; i++)
        CU_ASSERT_EQUAL(y[i], bf16_to_f32(bf16_from_f32(inner[i] * w[i])));
    /* F64 in and out: the float32 value, scaled in double. */
    const double xd[N] = {1, 2, 4}, wd[N] = {1.1, 1.2, 1.3};
    double yd[N];
    struct kernels_norm wide = PLAIN;
    CHECK_OK(kernels_rms_norm(ARITH_LIBRARY, &wide, 1, N, x, inner, &err));
    wide.dt = wide.in_dt = DT_F64;
    wide.weight = wd;
    CHECK_OK(kernels_float32_rms_norm(ARITH_LIBRARY, &wide, 1, N, xd, yd, &err));
    for (size_t i = 0; i < N; i++)
        CU_ASSERT_EQUAL(yd[i], wd[i] * (double)inner[i]);
}

/* The golden tables, within their tolerance. */
static void test_golden(void)
{
    enum { M = 20, N = 24, SIZE = M * N };
    static const struct {
        const char *name;
        enum which which;
        bool weight, bias;
        double eps;
    } CASES[] = {{"bulk.layer_norm_plain", LAYER_NORM, false, false, 1e-5},
                 {"bulk.layer_norm_weight", LAYER_NORM, true, false, 1e-6},
                 {"bulk.layer_norm", LAYER_NORM, true, true, 1e-5},
                 {"bulk.rms_norm_default_eps", RMS_NORM, true, false, 0x1p-23},
                 {"bulk.rms_norm_plain", RMS_NORM, false, false, 1e-6},
                 {"bulk.float32_rms_norm", FLOAT32_RMS_NORM, true, false, 1e-6},
                 {"bulk.l2_normalize", NORMALIZE, false, false, 1e-12},
                 {"bulk.l2_normalize_eps", NORMALIZE, false, false, 0.01}};
    double read[SIZE], expected[SIZE];
    float x[SIZE], y[SIZE], w[N], b[N];
    if (!kernels_test_golden("norms/model.safetensors", "tokens.weight", SIZE, read)) {
        printf("skipped: no golden files ");
        return;
    }
    for (size_t i = 0; i < SIZE; i++)
        x[i] = (float)read[i];
    (void)kernels_test_golden("norms/model.safetensors", "g.weight", N, read);
    for (size_t i = 0; i < N; i++)
        w[i] = (float)read[i];
    (void)kernels_test_golden("norms/model.safetensors", "g.bias", N, read);
    for (size_t i = 0; i < N; i++)
        b[i] = (float)read[i];
    for (size_t c = 0; c < N_OF(CASES); c++) {
        struct kernels_norm p = PLAIN;
        p.eps = CASES[c].eps;
        p.weight = CASES[c].weight ? w : NULL;
        p.bias = CASES[c].bias ? b : NULL;
        CHECK_OK(call(CASES[c].which, &p, M, N, x, y, &err));
        CU_ASSERT(kernels_test_golden("norms/expected.safetensors", CASES[c].name, SIZE, expected));
        for (size_t i = 0; i < SIZE; i++)
            CHECK_NEAR(y[i], expected[i], 5e-6 + 5e-6 * fabs(expected[i]));
    }
}

int main(void)
{
    static const struct kernels_test TESTS[] = {
        {"RMS flavours", test_rms_flavours},
        {"where the offset is added", test_where_the_offset_is_added},
        {"LayerNorm's eps", test_layer_norm_eps},
        {"zero rows", test_zero_rows},
        {"against the reference", test_against_reference},
        {"rows are independent", test_rows_are_independent},
        {"AVX2 and baseline agree", test_loops_agree},
        {"float32 RMSNorm's roundings", test_float32_roundings},
        {"golden tables", test_golden},
    };
    return kernels_test_main("kernels norm", TESTS, N_OF(TESTS));
}
