/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kernels *openblas;

static enum status run(const struct kernels *k, enum dtype dt, size_t m, size_t n, size_t depth,
                       const void *x, const void *w, const void *bias, enum bias_mode mode, void *y,
                       struct err *err)
{
    struct kernels_linear *l = NULL;
    TRY(kernels_linear_open(k, ARITH_LIBRARY, dt, n, depth, w, bias, &l, err));
    enum status st = kernels_linear_run(l, m, x, mode, y, err);
    kernels_linear_close(&l);
    return st;
}

/* N29, N30: x · wᵀ for w [out, in]. */
static void test_orientation(void)
{
    const float w[4] = {1, 2, 3, 4}, x[2] = {1, 10}, transposed[4] = {1, 3, 2, 4};
    float y[2];
    CHECK_OK(run(openblas, DT_F32, 1, 2, 2, x, w, NULL, BIAS_PREFILLED, y, &err));
    CU_ASSERT(y[0] == 21 && y[1] == 43);
    CHECK_OK(run(openblas, DT_F32, 1, 2, 2, x, transposed, NULL, BIAS_PREFILLED, y, &err));
    CU_ASSERT(y[0] == 31 && y[1] == 42);
    const float fused[6] = {1, 2, 3, 4, 5, 6}, one = 1;
    float all[6];
    CHECK_OK(run(openblas, DT_F32, 1, 6, 1, &one, fused, NULL, BIAS_PREFILLED, all, &err));
    CHECK_BYTES(all, fused, sizeof fused);
}

struct shape {
    size_t m, n, k;
};

static void check_f32(enum dtype dt, struct shape s, bool has_bias, enum bias_mode mode)
{
    uint64_t state = 7 + s.m + 100 * s.n;
    float *x = kernels_test_alloc(s.m * s.k, sizeof *x),
          *w = kernels_test_alloc(s.n * s.k, sizeof *w);
    float *b = kernels_test_alloc(s.n, sizeof *b), *y = kernels_test_alloc(s.m * s.n, sizeof *y);
    double *expected = kernels_test_alloc(s.m * s.n, sizeof *expected);
    double *size = kernels_test_alloc(s.m * s.n, sizeof *size);
    kernels_test_fill_f32(&state, dt, s.m * s.k, x);
    kernels_test_fill_f32(&state, dt, s.n * s.k, w);
    kernels_test_fill_f32(&state, dt, s.n, b);
    /* What is in y before must not matter (N35). */
    for (size_t i = 0; i < s.m * s.n; i++)
        y[i] = NAN;
    CHECK_OK(run(openblas, dt, s.m, s.n, s.k, x, w, has_bias ? b : NULL, mode, y, &err));
    kernels_reference_linear_f32(s.m, s.n, s.k, x, w, has_bias ? b : NULL, expected, size);
    for (size_t i = 0; i < s.m * s.n; i++) {
        double unit = dt == DT_BF16 ? 0x1p-8 : dt == DT_F16 ? 0x1p-11 : 0;
        double bound =
            2.0 * (double)(s.k + 1) * 0x1p-24 * size[i] + 1.01 * unit * fabs(expected[i]);
        CHECK_NEAR(y[i], expected[i], bound + (dt == DT_F16 ? 0x1p-24 : 0));
    }
    float *rounded = kernels_test_alloc(s.m * s.n, sizeof *rounded);
    memcpy(rounded, y, s.m * s.n * sizeof *y);
    kernels_round_f32(dt, rounded, s.m * s.n);
    CHECK_BYTES(rounded, y, s.m * s.n * sizeof *y);
    free(x);
    free(w);
    free(b);
    free(y);
    free(rounded);
    free(expected);
    free(size);
}

static void check_f64(struct shape s, bool has_bias, enum bias_mode mode)
{
    uint64_t state = 9 + s.m + 100 * s.n;
    double *x = kernels_test_alloc(s.m * s.k, sizeof *x);
    double *w = kernels_test_alloc(s.n * s.k, sizeof *w);
    double *b = kernels_test_alloc(s.n, sizeof *b), *y = kernels_test_alloc(s.m * s.n, sizeof *y);
    double *expected = kernels_test_alloc(s.m * s.n, sizeof *expected);
    double *size = kernels_test_alloc(s.m * s.n, sizeof *size);
    kernels_test_fill_f64(&state, s.m * s.k, x);
    kernels_test_fill_f64(&state, s.n * s.k, w);
    kernels_test_fill_f64(&state, s.n, b);
    for (size_t i = 0; i < s.m * s.n; i++)
        y[i] = NAN;
    CHECK_OK(run(openblas, DT_F64, s.m, s.n, s.k, x, w, has_bias ? b : NULL, mode, y, &err));
    kernels_reference_linear_f64(s.m, s.n, s.k, x, w, has_bias ? b : NULL, expected, size);
    for (size_t i = 0; i < s.m * s.n; i++)
        CHECK_NEAR(y[i], expected[i], 2.0 * (double)(s.k + 1) * 0x1p-53 * size[i]);
    free(x);
    free(w);
    free(b);
    free(y);
    free(expected);
    free(size);
}

static void test_against_reference(void)
{
    static const struct shape SHAPES[] = {{1, 64, 512}, {2, 37, 100},  {3, 5, 8},   {15, 64, 64},
                                          {16, 3, 33},  {33, 192, 64}, {40, 1, 64}, {1, 1, 5},
                                          {2, 1, 300},  {13, 20, 650}, {257, 8, 8}, {4, 6, 1}};
    for (size_t i = 0; i < N_OF(SHAPES); i++) {
        for (int form = 0; form < 3; form++) {
            bool has_bias = form > 0;
            enum bias_mode mode = form == 2 ? BIAS_ADDED : BIAS_PREFILLED;
            check_f32(DT_F32, SHAPES[i], has_bias, mode);
            check_f32(DT_F16, SHAPES[i], has_bias, mode);
            check_f32(DT_BF16, SHAPES[i], has_bias, mode);
            check_f64(SHAPES[i], has_bias, mode);
        }
    }
}

/* One rounding: product and bias are summed in float32 (NUMERICS.md D), whatever the mode. */
static void test_halves_round_once(void)
{
    /* 1 + 2^-9 is between two BF16 values; the bias decides, so it must come before the rounding.
     */
    const float x[2] = {1, 0x1p-5f}, w[2] = {1, 0x1p-4f}, bias[1] = {0x1p-8f};
    float y = 0;
    CHECK_OK(run(openblas, DT_BF16, 1, 1, 2, x, w, bias, BIAS_PREFILLED, &y, &err));
    CU_ASSERT_EQUAL(y, 1 + 0x1p-7f);
    CHECK_OK(run(openblas, DT_BF16, 1, 1, 2, x, w, bias, BIAS_ADDED, &y, &err));
    CU_ASSERT_EQUAL(y, 1 + 0x1p-7f);
    /* N46: 512 ones are 512, not the 256 at which a BF16 accumulator stops. */
    float ones[512];
    for (size_t i = 0; i < 512; i++)
        ones[i] = 1;
    CHECK_OK(run(openblas, DT_BF16, 1, 1, 512, ones, ones, NULL, BIAS_PREFILLED, &y, &err));
    CU_ASSERT_EQUAL(y, 512);
    const float large[2] = {256, 256};
    CHECK_OK(run(openblas, DT_F16, 1, 1, 2, large, large, NULL, BIAS_PREFILLED, &y, &err));
    CU_ASSERT(isinf(y));
}

/* N43, NUMERICS.md E: subnormals are kept, and no sum of zeros is negative. */
static void test_subnormals_and_zeros(void)
{
    const uint32_t bits = 0x000116C2u;
    float tiny, one = 1, y = 0;
    memcpy(&tiny, &bits, sizeof tiny);
    CHECK_OK(run(openblas, DT_F32, 1, 1, 1, &tiny, &one, NULL, BIAS_PREFILLED, &y, &err));
    CHECK_BYTES(&y, &bits, sizeof y);
    const float zeros[2] = {-0.0f, -0.0f}, w[2] = {1, 2}, bias = -0.0f, plus = 0;
    CHECK_OK(run(openblas, DT_F32, 1, 1, 2, zeros, w, &bias, BIAS_PREFILLED, &y, &err));
    CHECK_BYTES(&y, &plus, sizeof y);
    CHECK_OK(run(openblas, DT_F32, 1, 1, 2, zeros, w, &bias, BIAS_ADDED, &y, &err));
    CHECK_BYTES(&y, &plus, sizeof y);
}

/* The same call twice, other rows changed, and NaN in another row: the bytes of a row stay. */
static void test_repeats(void)
{
    enum { M = 37, N = 24, K = 330 };
    uint64_t state = 3;
    float *x = kernels_test_alloc(M * K, sizeof *x), *w = kernels_test_alloc(N * K, sizeof *w);
    float *y = kernels_test_alloc(M * N, sizeof *y), *z = kernels_test_alloc(M * N, sizeof *z);
    kernels_test_fill_f32(&state, DT_F32, M * K, x);
    kernels_test_fill_f32(&state, DT_F32, N * K, w);
    struct kernels_linear *l = NULL;
    CHECK_OK(kernels_linear_open(openblas, ARITH_LIBRARY, DT_F32, N, K, w, NULL, &l, &err));
    /* The weights are copied. */
    memset(w, 0xFF, N * K * sizeof *w);
    CHECK_OK(kernels_linear_run(l, M, x, BIAS_PREFILLED, y, &err));
    CHECK_OK(kernels_linear_run(l, M, x, BIAS_PREFILLED, z, &err));
    CHECK_BYTES(y, z, M * N * sizeof *y);
    for (size_t i = 0; i < K; i++)
        x[5 * K + i] = NAN;
    CHECK_OK(kernels_linear_run(l, M, x, BIAS_PREFILLED, z, &err));
    CHECK_BYTES(y, z, 5 * N * sizeof *y);
    CHECK_BYTES(y + 6 * N, z + 6 * N, (M - 6) * N * sizeof *y);
    CU_ASSERT(isnan(z[5 * N]));
    uint64_t counts[3] = {1, 1, 1};
    kernels_linear_counts(l, counts);
    CU_ASSERT(counts[0] == 0 && counts[1] == 0 && counts[2] == 0);
    kernels_linear_close(&l);
    CU_ASSERT_PTR_NULL(l);
    kernels_linear_close(&l);
    free(x);
    free(w);
    free(y);
    free(z);
}

static void test_limits(void)
{
    float y[2] = {5, 6};
    const float bias[2] = {1, 2}, none[1] = {0};
    struct kernels_linear *l = NULL;
    /* No input feature: the bias alone. */
    CHECK_OK(run(openblas, DT_F32, 1, 2, 0, none, none, bias, BIAS_PREFILLED, y, &err));
    CU_ASSERT(y[0] == 1 && y[1] == 2);
    CHECK_OK(run(openblas, DT_F32, 0, 2, 1, none, bias, bias, BIAS_PREFILLED, NULL, &err));
    CHECK_FAULT(kernels_linear_open(openblas, ARITH_LIBRARY, DT_F32, (size_t)1 << 31, 1, none, NULL,
                                    &l, &err),
                ST_USAGE, "2147483648");
    CU_ASSERT_PTR_NULL(l);
    CHECK_FAULT(
        run(openblas, DT_F32, (size_t)1 << 31, 2, 1, none, bias, NULL, BIAS_PREFILLED, y, &err),
        ST_USAGE, "2147483648 rows");
}

static void test_general_product(void)
{
    /* [[1,2,3],[4,5,6]] · [[1,2],[3,4],[5,6]] = [[22,28],[49,64]], each factor stored both ways. */
    const double a[6] = {1, 2, 3, 4, 5, 6}, a_t[6] = {1, 4, 2, 5, 3, 6};
    const double b[6] = {1, 2, 3, 4, 5, 6}, b_t[6] = {1, 3, 5, 2, 4, 6};
    const double expected[4] = {22, 28, 49, 64};
    float af[6], bf[6], cf[4];
    for (int form = 0; form < 4; form++) {
        bool ta = (form & 1) != 0, tb = (form & 2) != 0;
        struct kernels_gemm g = {.compute = DT_F64,
                                 .transpose_a = ta,
                                 .transpose_b = tb,
                                 .m = 2,
                                 .n = 2,
                                 .k = 3,
                                 .lda = ta ? 2 : 3,
                                 .ldb = tb ? 3 : 2,
                                 .ldc = 2,
                                 .alpha = 2,
                                 .beta = 1};
        double c[4] = {1, 1, 1, 1};
        CHECK_OK(kernels_gemm_run(openblas, &g, ta ? a_t : a, tb ? b_t : b, c, &err));
        for (size_t i = 0; i < 4; i++) {
            CU_ASSERT_EQUAL(c[i], 2 * expected[i] + 1);
            cf[i] = NAN;
        }
        for (size_t i = 0; i < 6; i++) {
            af[i] = (float)(ta ? a_t : a)[i];
            bf[i] = (float)(tb ? b_t : b)[i];
        }
        g.compute = DT_F32;
        g.beta = 0;
        CHECK_OK(kernels_gemm_run(openblas, &g, af, bf, cf, &err));
        for (size_t i = 0; i < 4; i++)
            CU_ASSERT_EQUAL((double)cf[i], 2 * expected[i]);
    }
    const struct kernels_gemm narrow = {
        .compute = DT_F64, .m = 2, .n = 2, .k = 3, .lda = 2, .ldb = 2, .ldc = 2, .alpha = 1};
    double c[4];
    CHECK_FAULT(kernels_gemm_run(openblas, &narrow, a, b, c, &err), ST_USAGE, "strides 2, 2, 2");
}

/* The other arithmetic through the same functions: mode and row count do not matter, every element
 * is counted, and the result is the double one rounded (these sums are exact in double). */
static void test_correctly_rounded(void)
{
    enum { M = 5, N = 3, K = 7 };
    uint64_t state = 9;
    float x[M * K], w[N * K], b[N], y[M * N], z[M * N];
    double expected[M * N];
    kernels_test_fill_f32(&state, DT_BF16, M * K, x);
    kernels_test_fill_f32(&state, DT_BF16, N * K, w);
    kernels_test_fill_f32(&state, DT_BF16, N, b);
    struct kernels_linear *l = NULL;
    CHECK_OK(kernels_linear_open(openblas, ARITH_CORRECTLY_ROUNDED, DT_F32, N, K, w, b, &l, &err));
    CHECK_OK(kernels_linear_run(l, M, x, BIAS_PREFILLED, y, &err));
    for (size_t i = 0; i < M; i++)
        CHECK_OK(kernels_linear_run(l, 1, x + i * K, BIAS_ADDED, z + i * N, &err));
    CHECK_BYTES(y, z, sizeof y);
    uint64_t counts[3];
    kernels_linear_counts(l, counts);
    CU_ASSERT_EQUAL(counts[0] + counts[1] + counts[2], 2 * M * N);
    kernels_linear_close(&l);
    kernels_reference_linear_f32(M, N, K, x, w, b, expected, NULL);
    for (size_t i = 0; i < M * N; i++)
        CU_ASSERT_EQUAL(y[i], (float)expected[i]);
}

#if TOKENTAB_FAULTS
/* Row `row` of m equal rows of a test backend, for N features. */
static void backend_row(const char *name, size_t m, size_t row, float y[3])
{
    enum { K = 40, N = 3, MAX_M = 20 };
    uint64_t state = 33;
    float x[MAX_M * K], w[N * K], all[MAX_M * N];
    kernels_test_fill_f32(&state, DT_F32, K, x);
    kernels_test_fill_f32(&state, DT_F32, N * K, w);
    for (size_t i = 1; i < m; i++)
        memcpy(x + i * K, x, K * sizeof *x);
    struct kernels *k = kernels_test_open(name);
    CHECK_OK(run(k, DT_F32, m, N, K, x, w, NULL, BIAS_PREFILLED, all, &err));
    memcpy(y, all + row * N, N * sizeof *y);
    kernels_close(&k);
}

static bool same_rows(const char *name, size_t m1, size_t row1, size_t m2, size_t row2)
{
    float a[3], b[3];
    backend_row(name, m1, row1, a);
    backend_row(name, m2, row2, b);
    return memcmp(a, b, sizeof a) == 0;
}

static void test_known_classes(void)
{
    /* N33: left to right 1 + 1e8 - 1e8 is 0, right to left it is 1. */
    const float x[3] = {1, 1, 1}, w[3] = {1, 1e8f, -1e8f};
    float y = 7;
    struct kernels *k = kernels_test_open("reference");
    CHECK_OK(run(k, DT_F32, 1, 1, 3, x, w, NULL, BIAS_PREFILLED, &y, &err));
    CU_ASSERT_EQUAL(y, 0);
    kernels_close(&k);
    k = kernels_test_open("reverse");
    CHECK_OK(run(k, DT_F32, 1, 1, 3, x, w, NULL, BIAS_PREFILLED, &y, &err));
    CU_ASSERT_EQUAL(y, 1);
    kernels_close(&k);

    CU_ASSERT(same_rows("reference", 1, 0, 17, 16));
    CU_ASSERT(same_rows("three_classes", 2, 0, 15, 14));
    CU_ASSERT(same_rows("three_classes", 16, 3, 20, 19));
    CU_ASSERT_FALSE(same_rows("three_classes", 1, 0, 2, 0));
    CU_ASSERT_FALSE(same_rows("three_classes", 15, 0, 16, 0));
    CU_ASSERT_FALSE(same_rows("three_classes", 1, 0, 16, 0));
    CU_ASSERT(same_rows("position", 4, 3, 5, 3));
    CU_ASSERT(same_rows("position", 1, 0, 5, 4));
    CU_ASSERT_FALSE(same_rows("position", 5, 4, 5, 3));
}
#endif

int main(void)
{
    static const struct kernels_test TESTS[] = {
        {"orientation and fused rows", test_orientation},
        {"against the reference", test_against_reference},
        {"halves round once", test_halves_round_once},
        {"subnormals and zeros", test_subnormals_and_zeros},
        {"a row's bytes stay", test_repeats},
        {"limits", test_limits},
        {"general product", test_general_product},
        {"correctly rounded", test_correctly_rounded},
#if TOKENTAB_FAULTS
        {"backends with known classes", test_known_classes},
#endif
    };
    openblas = kernels_test_open(NULL);
    int result = kernels_test_main("kernels linear", TESTS, N_OF(TESTS));
    kernels_close(&openblas);
    return result;
}
