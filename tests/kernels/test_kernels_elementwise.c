/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters of the golden case; softplus also with beta 1. */
static void parameters_of(enum elementwise fn, double params[KERNELS_EW_PARAMS])
{
    params[0] = fn == EW_ELU          ? 1.3
                : fn == EW_CELU       ? 0.7
                : fn == EW_LEAKY_RELU ? 0.02
                : fn == EW_SOFTPLUS   ? 1.5
                : fn == EW_HARDTANH   ? -0.5
                : fn == EW_SCALE      ? (double)-0.7f
                                      : 0;
    params[1] = fn == EW_SOFTPLUS ? 12 : fn == EW_HARDTANH ? 0.7 : 0;
}

static float apply_f32(enum elementwise fn, float x)
{
    double params[KERNELS_EW_PARAMS];
    float y = NAN;
    parameters_of(fn, params);
    CHECK_OK(kernels_elementwise(ARITH_LIBRARY, fn, DT_F32, params, 1, &x, &y, &err));
    return y;
}

static double apply_f64(enum elementwise fn, double x)
{
    double params[KERNELS_EW_PARAMS], y = NAN;
    parameters_of(fn, params);
    CHECK_OK(kernels_elementwise(ARITH_LIBRARY, fn, DT_F64, params, 1, &x, &y, &err));
    return y;
}

/* N28. */
static void test_known_values(void)
{
    CHECK_NEAR(apply_f64(EW_GELU_ERF, 1), 0.8413447460685429, 4e-16);
    CHECK_NEAR(apply_f64(EW_GELU_TANH, 1), 0.8411919906082768, 4e-16);
    CHECK_NEAR(apply_f64(EW_QUICK_GELU, 1), 0.8457957659328212, 4e-16);
    CHECK_NEAR(apply_f64(EW_SILU, 1), 0.7310585786300049, 4e-16);
    CHECK_NEAR(apply_f32(EW_GELU_ERF, 1), 0.8413447460685429, 1.3e-7);
    CHECK_NEAR(apply_f32(EW_GELU_TANH, 1), 0.8411919906082768, 1.3e-7);
    CHECK_NEAR(apply_f32(EW_QUICK_GELU, 1), 0.8457957659328212, 1.3e-7);
    CHECK_NEAR(apply_f32(EW_SILU, 1), 0.7310585786300049, 1.3e-7);
    double largest = 0, at = 0;
    for (int i = -6000; i <= 6000; i++) {
        double x = i / 1000.0, gap = fabs(apply_f64(EW_GELU_ERF, x) - apply_f64(EW_GELU_TANH, x));
        if (gap > largest) {
            largest = gap;
            at = fabs(x);
        }
    }
    CHECK_NEAR(largest, 4.7324e-4, 5e-9);
    CHECK_NEAR(at, 2.70, 0.01);
}

/* Knots, ends of the range, and what overflows inside the formula. */
static const double EXTREMES[] = {
    0.0,   -0.0, 1e-45, -1e-45, 1e-38,   -1e-38, 1e-10, -1e-10, 1e-4,  -1e-4, 0.5,  -0.5,  1,
    -1,    3,    -3,    2.9999, -2.9999, 6,      -6,    7.9,    8.1,   10,    -10,  15,    -15,
    20,    -20,  20.1,  50,     -50,     87,     -87,   88.5,   -88.5, 89,    -89,  100,   -100,
    103.5, -105, 1000,  -1000,  1e10,    -1e10,  1e19,  -1e19,  1e30,  -1e30, 3e38, -3e38,
};

/* Results beyond the range; PyTorch's x * 6 / 6 of hardswish leaves it early. */
static bool overflows(enum elementwise fn, double x)
{
    return (fn == EW_EXP && x > 88) || (fn == EW_HARDSWISH && x > 5e37);
}

static void test_extremes(void)
{
    for (int f = 0; f < EW_COUNT; f++) {
        const enum elementwise fn = (enum elementwise)f;
        double params[KERNELS_EW_PARAMS];
        parameters_of(fn, params);
        for (size_t i = 0; i < N_OF(EXTREMES); i++) {
            const float x = (float)EXTREMES[i];
            const float y = apply_f32(fn, x);
            if (overflows(fn, (double)x)) {
                CU_ASSERT(y > FLT_MAX / 16);
                continue;
            }
            /* The formulas lose what exp(x) - 1 and 1 + tanh cancel: an absolute error of the order
             * of a unit of 1, as PyTorch's. */
            const double expected = kernels_reference_elementwise(fn, params, (double)x);
            CHECK_NEAR(y, expected, 8e-7 + 8e-7 * fabs(expected));
            CHECK_NEAR(apply_f64(fn, (double)x), expected,
                       2e-15 * fmax(1, fabs((double)x)) + 2e-15 * fabs(expected));
        }
    }
}

/* Signs of zero: PyTorch's. */
static void test_zero_signs(void)
{
    CU_ASSERT(signbit(apply_f32(EW_RELU, -0.0f)) && !signbit(apply_f32(EW_RELU, -1.0f)));
    CU_ASSERT(signbit(apply_f32(EW_SILU, -0.0f)));
    CU_ASSERT(signbit(apply_f32(EW_TANH, -0.0f)));
    CU_ASSERT(signbit(apply_f32(EW_LEAKY_RELU, -0.0f)));
    CU_ASSERT(signbit(apply_f32(EW_IDENTITY, -0.0f)));
    CU_ASSERT(signbit(apply_f32(EW_RELU6, -0.0f)));
    const double slope[KERNELS_EW_PARAMS] = {0, 0};
    float x = -1, y = 1;
    CHECK_OK(kernels_elementwise(ARITH_LIBRARY, EW_LEAKY_RELU, DT_F32, slope, 1, &x, &y, &err));
    CU_ASSERT(y == 0 && signbit(y));
}

/* An element's bytes depend on its value alone: alone, at every place, in place, in both loops. */
static void test_no_tails(void)
{
    enum { N = 37 };
    uint64_t state = 28;
    float x[N], y[N], base[N];
    double xd[N], yd[N];
    kernels_test_fill_f32(&state, DT_F32, N, x);
    for (size_t i = 0; i < N; i++)
        xd[i] = (double)(x[i] *= 3);
    for (int f = 0; f < EW_COUNT; f++) {
        const enum elementwise fn = (enum elementwise)f;
        double params[KERNELS_EW_PARAMS];
        parameters_of(fn, params);
        CHECK_OK(kernels_elementwise(ARITH_LIBRARY, fn, DT_F32, params, N, x, y, &err));
        CHECK_OK(kernels_elementwise(ARITH_LIBRARY, fn, DT_F64, params, N, xd, yd, &err));
        row_loops_base.elementwise_f32(fn, params, N, x, base);
        for (size_t i = 0; i < N; i++) {
            float alone = apply_f32(fn, x[i]);
            double wide = apply_f64(fn, xd[i]);
            CHECK_BYTES(&alone, y + i, sizeof alone);
            CHECK_BYTES(&wide, yd + i, sizeof wide);
            float one = x[i], alone_base = 0;
            row_loops_base.elementwise_f32(fn, params, 1, &one, &alone_base);
            CHECK_BYTES(&alone_base, base + i, sizeof alone_base);
            CHECK_NEAR(base[i], y[i], 6e-7 * (1 + fabs((double)y[i])));
        }
        memcpy(base, x, sizeof x);
        CHECK_OK(kernels_elementwise(ARITH_LIBRARY, fn, DT_F32, params, N, base, base, &err));
        CHECK_BYTES(base, y, sizeof y);
    }
}

/* Halves are the float32 result, rounded once. */
static void test_halves(void)
{
    enum { N = 500 };
    uint64_t state = 46;
    float x[N], y[N], z[N];
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const enum dtype dt = is_bf16 ? DT_BF16 : DT_F16;
        kernels_test_fill_f32(&state, dt, N, x);
        for (int f = 0; f < EW_COUNT; f++) {
            double params[KERNELS_EW_PARAMS];
            parameters_of((enum elementwise)f, params);
            CHECK_OK(
                kernels_elementwise(ARITH_LIBRARY, (enum elementwise)f, dt, params, N, x, y, &err));
            CHECK_OK(kernels_elementwise(ARITH_LIBRARY, (enum elementwise)f, DT_F32, params, N, x,
                                         z, &err));
            kernels_round_f32(dt, z, N);
            CHECK_BYTES(y, z, sizeof y);
        }
    }
    /* N25: 0.1f * 3 in F16. */
    const double params[KERNELS_EW_PARAMS] = {(double)0.1f, 0};
    const float three = 3;
    CHECK_OK(kernels_elementwise(ARITH_LIBRARY, EW_SCALE, DT_F16, params, 1, &three, y, &err));
    CU_ASSERT_EQUAL(y[0], f16_to_f32(f16_from_f32(3 * 0.1f)));
}

static void test_binary(void)
{
    const float a[3] = {1, 65504, 3}, b[3] = {0x1p-11f, 65504, 7};
    float y[3];
    CHECK_OK(kernels_binary(ARITH_LIBRARY, BIN_ADD, DT_F32, 3, a, b, y, &err));
    CU_ASSERT(y[0] == 1 + 0x1p-11f && y[1] == 131008 && y[2] == 10);
    CHECK_OK(kernels_binary(ARITH_LIBRARY, BIN_ADD, DT_F16, 3, a, b, y, &err));
    CU_ASSERT(y[0] == 1 && isinf(y[1]) && y[2] == 10);
    CHECK_OK(kernels_binary(ARITH_LIBRARY, BIN_SUB, DT_F32, 3, a, b, y, &err));
    CU_ASSERT(y[1] == 0 && y[2] == -4);
    CHECK_OK(kernels_binary(ARITH_LIBRARY, BIN_MUL, DT_F32, 3, a, b, y, &err));
    CU_ASSERT(y[0] == 0x1p-11f && y[2] == 21);
    CHECK_OK(kernels_binary(ARITH_LIBRARY, BIN_DIV, DT_F32, 3, a, b, y, &err));
    CU_ASSERT(y[0] == 2048 && y[2] == 3.0f / 7.0f);
    double c[2] = {1, 2}, d[2] = {3, 8};
    CHECK_OK(kernels_binary(ARITH_LIBRARY, BIN_DIV, DT_F64, 2, c, d, c, &err));
    CU_ASSERT(c[0] == 1.0 / 3.0 && c[1] == 0.25);
}

/* z / r + b: two roundings; raw: one. */
static void test_projected(void)
{
    const float z[4] = {1, 2, 3, 4}, r[2] = {3, 7}, b[2] = {0.1f, -0.3f};
    float y[4];
    CHECK_OK(kernels_combine_projected(DT_F32, 2, 2, z, r, b, y, &err));
    for (size_t i = 0; i < 4; i++) {
        float quotient = z[i] / r[i / 2];
        CU_ASSERT_EQUAL(y[i], quotient + b[i % 2]);
    }
    CHECK_OK(kernels_combine_projected(DT_F32, 2, 2, z, NULL, b, y, &err));
    CU_ASSERT_EQUAL(y[3], 4 - 0.3f);
    CHECK_OK(kernels_combine_projected(DT_F32, 2, 2, z, r, NULL, y, &err));
    CU_ASSERT_EQUAL(y[0], 1.0f / 3.0f);
    const float half_bias[2] = {0.5f, 1024};
    CHECK_OK(kernels_combine_projected(DT_F16, 2, 2, z, r, half_bias, y, &err));
    for (size_t i = 0; i < 4; i++) {
        float quotient = f16_to_f32(f16_from_f32(z[i] / r[i / 2]));
        CU_ASSERT_EQUAL(y[i], f16_to_f32(f16_from_f32(quotient + half_bias[i % 2])));
    }
    const double zd[2] = {1, 2}, rd = 3, bd[2] = {0.1, 0.2};
    double yd[2];
    CHECK_OK(kernels_combine_projected(DT_F64, 1, 2, zd, &rd, bd, yd, &err));
    CU_ASSERT(yd[0] == 1.0 / 3.0 + 0.1 && yd[1] == 2.0 / 3.0 + 0.2);
}

static void test_softmax(void)
{
    const float x[3] = {1000, 1000, -1000};
    float y[3];
    CHECK_OK(kernels_softmax(ARITH_LIBRARY, DT_F32, 1, 3, x, y, &err));
    CU_ASSERT(y[0] == 0.5f && y[1] == 0.5f && y[2] == 0);
    CHECK_OK(kernels_softmax(ARITH_LIBRARY, DT_F32, 0, 3, x, y, &err));
    const double wide[4] = {0, 0, 0, 0};
    double z[4];
    CHECK_OK(kernels_softmax(ARITH_LIBRARY, DT_F64, 1, 4, wide, z, &err));
    CU_ASSERT(z[0] == 0.25 && z[3] == 0.25);
}

/* The golden tables, within their tolerance. */
static void test_golden(void)
{
    enum { SIZE = 25 * 8 };
    static const struct {
        const char *name;
        enum elementwise fn;
        double params[KERNELS_EW_PARAMS];
    } CASES[] = {
        {"bulk.identity", EW_IDENTITY, {0}},
        {"bulk.relu", EW_RELU, {0}},
        {"bulk.relu6", EW_RELU6, {0}},
        {"bulk.silu", EW_SILU, {0}},
        {"bulk.tanh", EW_TANH, {0}},
        {"bulk.sigmoid", EW_SIGMOID, {0}},
        {"bulk.softsign", EW_SOFTSIGN, {0}},
        {"bulk.hardswish", EW_HARDSWISH, {0}},
        {"bulk.hardsigmoid", EW_HARDSIGMOID, {0}},
        {"bulk.mish", EW_MISH, {0}},
        {"bulk.selu", EW_SELU, {0}},
        {"bulk.gelu", EW_GELU_ERF, {0}},
        {"bulk.gelu_tanh", EW_GELU_TANH, {0}},
        {"bulk.elu", EW_ELU, {1.3}},
        {"bulk.celu", EW_CELU, {0.7}},
        {"bulk.leaky_relu", EW_LEAKY_RELU, {0.02}},
        {"bulk.softplus", EW_SOFTPLUS, {1, 20}},
        {"bulk.softplus_beta", EW_SOFTPLUS, {1.5, 12}},
        {"bulk.hardtanh", EW_HARDTANH, {-0.5, 0.7}},
        {"bulk.scale", EW_SCALE, {-0.7}},
    };
    double read[SIZE], expected[SIZE];
    float x[SIZE], y[SIZE];
    if (!kernels_test_golden("activations/model.safetensors", "tokens.weight", SIZE, read)) {
        printf("skipped: no golden files ");
        return;
    }
    for (size_t i = 0; i < SIZE; i++)
        x[i] = (float)read[i];
    for (size_t c = 0; c < N_OF(CASES); c++) {
        CHECK_OK(kernels_elementwise(ARITH_LIBRARY, CASES[c].fn, DT_F32, CASES[c].params, SIZE, x,
                                     y, &err));
        CU_ASSERT(
            kernels_test_golden("activations/expected.safetensors", CASES[c].name, SIZE, expected));
        for (size_t i = 0; i < SIZE; i++)
            CHECK_NEAR(y[i], expected[i], 5e-6 + 5e-6 * fabs(expected[i]));
    }
}

int main(void)
{
    static const struct kernels_test TESTS[] = {
        {"known values", test_known_values},
        {"extreme values", test_extremes},
        {"signs of zero", test_zero_signs},
        {"no tails", test_no_tails},
        {"halves", test_halves},
        {"binary", test_binary},
        {"projected", test_projected},
        {"softmax", test_softmax},
        {"golden tables", test_golden},
    };
    return kernels_test_main("kernels elementwise", TESTS, N_OF(TESTS));
}
