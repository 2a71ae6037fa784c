/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t to_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static uint16_t pack_one(enum dtype dt, float x)
{
    uint16_t half = 0;
    kernels_pack(dt, &x, 1, &half);
    return half;
}

/* N46. */
static void test_golden_values(void)
{
    CU_ASSERT_EQUAL(pack_one(DT_BF16, from_bits(0x3E89CCD5)), 0x3E8A);
    CU_ASSERT_EQUAL(pack_one(DT_BF16, 3.14f), 0x4049);
    CU_ASSERT_EQUAL(pack_one(DT_BF16, FLT_MAX), 0x7F80);
    CU_ASSERT_EQUAL(pack_one(DT_BF16, from_bits(0x7F800001)), 0x7FC0);
    CU_ASSERT_EQUAL(pack_one(DT_F16, 65519.0f), 0x7BFF);
    CU_ASSERT_EQUAL(pack_one(DT_F16, 65520.0f), 0x7C00);
    CU_ASSERT_EQUAL(pack_one(DT_F16, 0x1p-24f), 0x0001);
    CU_ASSERT_EQUAL(pack_one(DT_F16, 0x1p-25f), 0x0000);
    CU_ASSERT_EQUAL(pack_one(DT_F16, -0x1p-25f), 0x8000);
    float values[2] = {3.14f, FLT_MAX};
    kernels_round_f32(DT_BF16, values, 2);
    CU_ASSERT_EQUAL(values[0], 3.140625f);
    CU_ASSERT(isinf(values[1]));
}

/* Every pattern, from an odd address, against base's scalar functions. */
static void test_all_patterns(void)
{
    enum { N = 65536 };
    uint8_t *stored = kernels_test_alloc(2 * N + 1, 1), *again = kernels_test_alloc(2 * N + 1, 1);
    float *x = kernels_test_alloc(N, sizeof *x);
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
        const enum dtype dt = is_bf16 ? DT_BF16 : DT_F16;
        size_t wrong = 0;
        for (size_t i = 0; i < N; i++) {
            uint16_t half = (uint16_t)i;
            memcpy(stored + 1 + 2 * i, &half, 2);
        }
        kernels_unpack(dt, stored + 1, N, x);
        for (size_t i = 0; i < N; i++) {
            float expected = is_bf16 ? bf16_to_f32((uint16_t)i) : f16_to_f32((uint16_t)i);
            if (isnan(expected) ? !isnan(x[i]) : to_bits(expected) != to_bits(x[i]))
                wrong++;
        }
        CU_ASSERT_EQUAL(wrong, 0);
        kernels_pack(dt, x, N, again + 1);
        for (size_t i = 0; i < N; i++) {
            uint16_t half;
            memcpy(&half, again + 1 + 2 * i, 2);
            if (isnan(x[i]) ? half != (i | (is_bf16 ? 0x40u : 0x200u)) : half != i)
                wrong++;
        }
        CU_ASSERT_EQUAL(wrong, 0);
    }
    free(stored);
    free(again);
    free(x);
}

/* Both loops round as base does: random bits, and all neighbours of ties. */
static void test_rounding_agrees(void)
{
    enum { N = 1 << 16 };
    float *x = kernels_test_alloc(N, sizeof *x), *y = kernels_test_alloc(N, sizeof *y);
    uint64_t state = 46;
    for (uint32_t i = 0; i < N; i++) {
        (void)kernels_test_normal(&state);
        uint32_t bits = i % 2 == 0 ? (uint32_t)(state >> 32) : (i << 16 | 0x8000u) + i % 3 - 1;
        if (i % 4 == 3) /* ties of F16 */
            bits = to_bits(f16_to_f32((uint16_t)i)) + 0x1000u + i % 3 - 1;
        x[i] = from_bits(bits);
    }
    size_t wrong = 0;
    memcpy(y, x, N * sizeof *x);
    kernels_round_f32(DT_BF16, y, N);
    for (size_t i = 0; i < N; i++)
        wrong += to_bits(y[i]) != to_bits(bf16_to_f32(bf16_from_f32(x[i])));
    CU_ASSERT_EQUAL(wrong, 0);
    const struct row_loops *loops[] = {&row_loops_base, row_loops_pick()};
    for (size_t j = 0; j < N_OF(loops); j++) {
        memcpy(y, x, N * sizeof *x);
        loops[j]->round_f16(y, N - 3);
        for (size_t i = 0; i < N; i++) {
            float expected = i < N - 3 ? f16_to_f32(f16_from_f32(x[i])) : x[i];
            if (isnan(expected) ? !isnan(y[i]) : to_bits(y[i]) != to_bits(expected))
                wrong++;
        }
        CU_ASSERT_EQUAL(wrong, 0);
    }
    memcpy(y, x, N * sizeof *x);
    kernels_round_f32(DT_F32, y, N);
    CHECK_BYTES(x, y, N * sizeof *x);
    free(x);
    free(y);
}

static void test_wide_copies(void)
{
    /* Odd addresses, NaN payloads and negative zeros survive. */
    uint8_t stored[1 + 3 * 8], again[1 + 3 * 8];
    const double wide[3] = {-0.0, 0x1p-1074, -1.5};
    const uint32_t narrow[3] = {0x7F800001u, 0x80000000u, 0x000116C2u};
    double x64[3];
    float x32[3];
    memcpy(stored + 1, wide, sizeof wide);
    kernels_unpack(DT_F64, stored + 1, 3, x64);
    CHECK_BYTES(x64, wide, sizeof wide);
    kernels_pack(DT_F64, x64, 3, again + 1);
    CHECK_BYTES(again + 1, stored + 1, sizeof wide);
    memcpy(stored + 1, narrow, sizeof narrow);
    kernels_unpack(DT_F32, stored + 1, 3, x32);
    CHECK_BYTES(x32, narrow, sizeof narrow);
    kernels_pack(DT_F32, x32, 3, again + 1);
    CHECK_BYTES(again + 1, narrow, sizeof narrow);
    kernels_unpack(DT_F32, NULL, 0, NULL);
    kernels_pack(DT_BF16, NULL, 0, NULL);
}

static void test_nonfinite(void)
{
    enum { N = 600 };
    static const enum dtype DTYPES[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    static const uint64_t BAD[][2] = {{0x7FF0000000000000u, 0xFFF0000000000001u},
                                      {0x7F800000u, 0xFF800001u},
                                      {0x7C00u, 0xFC01u},
                                      {0x7F80u, 0xFF81u}};
    static const uint64_t LARGEST[] = {0x7FEFFFFFFFFFFFFFu, 0x7F7FFFFFu, 0x7BFFu, 0x7F7Fu};
    uint8_t stored[1 + 8 * N];
    for (size_t d = 0; d < N_OF(DTYPES); d++) {
        const size_t size = dtype_size(DTYPES[d]);
        for (size_t i = 0; i < N; i++)
            memcpy(stored + 1 + i * size, &LARGEST[d], size);
        CU_ASSERT_EQUAL(kernels_find_nonfinite(DTYPES[d], stored + 1, N), N);
        CU_ASSERT_EQUAL(kernels_find_nonfinite(DTYPES[d], stored + 1, 0), 0);
        memcpy(stored + 1 + 599 * size, &BAD[d][1], size);
        CU_ASSERT_EQUAL(kernels_find_nonfinite(DTYPES[d], stored + 1, N), 599);
        memcpy(stored + 1 + 256 * size, &BAD[d][0], size);
        CU_ASSERT_EQUAL(kernels_find_nonfinite(DTYPES[d], stored + 1, N), 256);
        CU_ASSERT_EQUAL(kernels_find_nonfinite(DTYPES[d], stored + 1, 256), 256);
    }
}

int main(void)
{
    static const struct kernels_test TESTS[] = {
        {"golden conversions", test_golden_values},
        {"all half patterns", test_all_patterns},
        {"rounding agrees with base", test_rounding_agrees},
        {"F32 and F64 are copied", test_wide_copies},
        {"first non-finite element", test_nonfinite},
    };
    return kernels_test_main("kernels stored", TESTS, N_OF(TESTS));
}
