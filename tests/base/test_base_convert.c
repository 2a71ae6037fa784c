/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t bits32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float32(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double float64(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* splitmix64: bit patterns that cover every exponent. */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void test_bf16_golden(void)
{
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x3E89CCD5u)), 0x3E8A);
    CU_ASSERT_EQUAL(bf16_from_f32(3.14f), 0x4049);
    CU_ASSERT_EQUAL(bf16_to_f32(0x4049), 3.140625f);
    CU_ASSERT_EQUAL(bf16_from_f32(FLT_MAX), 0x7F80);
    CU_ASSERT_EQUAL(bf16_from_f32(-FLT_MAX), 0xFF80);
    CU_ASSERT_EQUAL(bf16_from_f32(INFINITY), 0x7F80);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x7F800001u)), 0x7FC0);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0xFF800001u)), 0xFFC0);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x7FFFFFFFu)), 0x7FFF);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x7FA50000u)), 0x7FE5);
    CU_ASSERT_EQUAL(bf16_from_f32(-0.0f), 0x8000);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x00000001u)), 0x0000);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x00008000u)), 0x0000); /* tie to even */
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x00018000u)), 0x0002);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x3F808000u)), 0x3F80);
    CU_ASSERT_EQUAL(bf16_from_f32(float32(0x3F818000u)), 0x3F82);
}

static void test_f16_golden(void)
{
    CU_ASSERT_EQUAL(f16_from_f32(65519.0f), 0x7BFF);
    CU_ASSERT_EQUAL(f16_from_f32(65520.0f), 0x7C00);
    CU_ASSERT_EQUAL(f16_from_f32(-65520.0f), 0xFC00);
    CU_ASSERT_EQUAL(f16_from_f32(65504.0f), 0x7BFF);
    CU_ASSERT_EQUAL(f16_from_f32(0x1p-24f), 0x0001);
    CU_ASSERT_EQUAL(f16_from_f32(0x1p-25f), 0x0000); /* tie to even */
    CU_ASSERT_EQUAL(f16_from_f32(nextafterf(0x1p-25f, 1.0f)), 0x0001);
    CU_ASSERT_EQUAL(f16_from_f32(0x3p-25f), 0x0002); /* tie to even, upwards */
    CU_ASSERT_EQUAL(f16_from_f32(0x1p-26f), 0x0000);
    CU_ASSERT_EQUAL(f16_from_f32(-0x1p-26f), 0x8000);
    CU_ASSERT_EQUAL(f16_from_f32(nextafterf(0x1p-14f, 0.0f)), 0x0400); /* up into the normals */
    CU_ASSERT_EQUAL(f16_from_f32(1.0f), 0x3C00);
    CU_ASSERT_EQUAL(f16_from_f32(FLT_MAX), 0x7C00);
    CU_ASSERT_EQUAL(f16_from_f32(FLT_TRUE_MIN), 0x0000);
    CU_ASSERT_EQUAL(f16_from_f32(float32(0x7F800001u)), 0x7E00);
    CU_ASSERT_EQUAL(f16_from_f32(float32(0xFFFFE000u)), 0xFFFF);
    CU_ASSERT_EQUAL(f16_to_f32(0x0001), 0x1p-24f);
    CU_ASSERT_EQUAL(f16_to_f32(0x03FF), 1023 * 0x1p-24f);
    CU_ASSERT_EQUAL(f16_to_f32(0x7BFF), 65504.0f);
    CU_ASSERT_EQUAL(bits32(f16_to_f32(0x8000)), 0x80000000u);
    CU_ASSERT_EQUAL(f16_to_f32(0xFC00), -INFINITY);
    CU_ASSERT(isnan(f16_to_f32(0x7C01)));
}

/* The value of a 16-bit pattern by the definition, without bit tricks. */
static double value_by_definition(uint16_t x, int fraction_bits, int bias)
{
    int exponent = (x & 0x7FFF) >> fraction_bits;
    int fraction = x & ((1 << fraction_bits) - 1);
    double magnitude =
        exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                      : ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
    return (x & 0x8000) != 0 ? -magnitude : magnitude;
}

static void test_all_patterns_survive(void)
{
    unsigned n_bad = 0;
    for (unsigned i = 0; i < 65536; i++) {
        uint16_t x = (uint16_t)i;
        bool f16_finite = (x & 0x7C00) != 0x7C00;
        bool f16_signalling = !f16_finite && (x & 0x03FF) != 0 && (x & 0x0200) == 0;
        bool bf16_finite = (x & 0x7F80) != 0x7F80;
        bool bf16_signalling = !bf16_finite && (x & 0x007F) != 0 && (x & 0x0040) == 0;
        if (f16_from_f32(f16_to_f32(x)) != (f16_signalling ? x | 0x0200 : x))
            n_bad++;
        if (bf16_from_f32(bf16_to_f32(x)) != (bf16_signalling ? x | 0x0040 : x))
            n_bad++;
        if (f16_finite && (double)f16_to_f32(x) != value_by_definition(x, 10, 15))
            n_bad++;
        if (bf16_finite && (double)bf16_to_f32(x) != value_by_definition(x, 7, 127))
            n_bad++;
    }
    CU_ASSERT_EQUAL(n_bad, 0);
}

/* Around the middle of every two neighbours: exactly there the even one, else the nearer one. */
static unsigned check_middles(enum dtype dt, unsigned n_finite, int fraction_bits, int bias)
{
    unsigned n_bad = 0;
    for (unsigned i = 0; i < n_finite; i++) {
        double low = value_by_definition((uint16_t)i, fraction_bits, bias);
        /* past the largest value: the first one that does not exist, which rounds to Inf */
        double high = value_by_definition((uint16_t)(i + 1), fraction_bits, bias);
        double high_result = i + 1 == n_finite ? (double)INFINITY : high;
        double middle = (low + high) / 2; /* exact: one bit more */
        double even = (i & 1) == 0 ? low : high_result;
        for (int sign = -1; sign <= 1; sign += 2) {
            n_bad += (double)f64_round_to(dt, sign * middle) != sign * even;
            n_bad += (double)f64_round_to(dt, sign * nextafter(middle, 0)) != sign * low;
            n_bad +=
                (double)f64_round_to(dt, sign * nextafter(middle, DBL_MAX)) != sign * high_result;
            n_bad += (double)f64_round_to(dt, sign * low) != sign * low;
        }
    }
    return n_bad;
}

static void test_round_once(void)
{
    CU_ASSERT_EQUAL(check_middles(DT_F16, 0x7C00, 10, 15), 0);
    CU_ASSERT_EQUAL(check_middles(DT_BF16, 0x7F80, 7, 127), 0);
    /* Through float these would be ties, and go down. */
    CU_ASSERT_EQUAL(f64_round_to(DT_BF16, 1 + 0x1p-8 + 0x1p-40), 1 + 0x1p-7f);
    CU_ASSERT_EQUAL(f64_round_to(DT_F16, 1 + 0x1p-11 + 0x1p-40), 1 + 0x1p-10f);
    CU_ASSERT_EQUAL(f64_round_to(DT_F16, 0x1p-25 + 0x1p-60), 0x1p-24f);
    CU_ASSERT_EQUAL(bf16_to_f32(bf16_from_f32((float)(1 + 0x1p-8 + 0x1p-40))), 1.0f);
}

static void test_round_edges(void)
{
    static const enum dtype DTYPES[] = {DT_F32, DT_F16, DT_BF16};
    for (size_t i = 0; i < N_OF(DTYPES); i++) {
        enum dtype dt = DTYPES[i];
        CU_ASSERT_EQUAL(bits32(f64_round_to(dt, 0.0)), 0);
        CU_ASSERT_EQUAL(bits32(f64_round_to(dt, -0.0)), 0x80000000u);
        CU_ASSERT_EQUAL(bits32(f64_round_to(dt, -4e-324)), 0x80000000u);
        CU_ASSERT_EQUAL(bits32(f64_round_to(dt, -1e-300)), 0x80000000u);
        CU_ASSERT_EQUAL(f64_round_to(dt, DBL_MAX), INFINITY);
        CU_ASSERT_EQUAL(f64_round_to(dt, -(double)INFINITY), -INFINITY);
        CU_ASSERT(isnan(f64_round_to(dt, float64(0x7FF0000000000001u))));
        CU_ASSERT_EQUAL(bits32(f64_round_to(dt, float64(0xFFF0000000000001u))), 0xFFC00000u);
    }
    CU_ASSERT_EQUAL(bits32(f64_round_to(DT_F32, float64(0x7FFFFFFFFFFFFFFFu))), 0x7FFFFFFFu);
    CU_ASSERT_EQUAL(bits32(f64_round_to(DT_F16, float64(0x7FFFFFFFFFFFFFFFu))), 0x7FFFE000u);
    CU_ASSERT_EQUAL(bits32(f64_round_to(DT_BF16, float64(0x7FFFFFFFFFFFFFFFu))), 0x7FFF0000u);
    CU_ASSERT_EQUAL(f64_round_to(DT_F32, (double)FLT_MAX + 0x1p102), FLT_MAX);
    CU_ASSERT_EQUAL(f64_round_to(DT_F32, (double)FLT_MAX + 0x1p103), INFINITY);
    CU_ASSERT_EQUAL(f64_round_to(DT_F32, 0x1p-150), 0.0f);
    CU_ASSERT_EQUAL(f64_round_to(DT_F32, nextafter(0x1p-150, 1)), FLT_TRUE_MIN);
}

static void test_round_f32_is_the_cast(void)
{
    uint64_t state = 1;
    unsigned n_bad = 0;
    for (int i = 0; i < 400000; i++) {
        uint64_t bits = next_random(&state);
        if (i % 2 == 0) /* keep half of them where F32 has values, subnormals included */
            bits = (bits & 0x800FFFFFFFFFFFFFu) | (uint64_t)(1023 - 152 + i / 2 % 282) << 52;
        if (i % 8 == 0) /* ties */
            bits = (bits & ~(uint64_t)0x1FFFFFFF) | 0x10000000u;
        double x = float64(bits);
        if (isnan(x))
            continue;
        float cast = fabs(x) > 0x1p128 ? copysignf(INFINITY, (float)copysign(1, x)) : (float)x;
        n_bad += bits32(f64_round_to(DT_F32, x)) != bits32(cast);
    }
    CU_ASSERT_EQUAL(n_bad, 0);
}

static void test_from_f32_agrees(void)
{
    uint64_t state = 2;
    unsigned n_bad = 0;
    for (int i = 0; i < 400000; i++) {
        uint32_t bits = (uint32_t)next_random(&state);
        if (i % 4 == 0)
            bits = (bits & ~0x1FFFu) | 0x1000u; /* ties of F16 */
        if (i % 4 == 1)
            bits = (bits & ~0xFFFFu) | 0x8000u; /* ties of BF16 */
        float x = float32(bits);
        if (isnan(x))
            continue;
        n_bad += bits32(f16_to_f32(f16_from_f32(x))) != bits32(f64_round_to(DT_F16, (double)x));
        n_bad += bits32(bf16_to_f32(bf16_from_f32(x))) != bits32(f64_round_to(DT_BF16, (double)x));
    }
    CU_ASSERT_EQUAL(n_bad, 0);
}

static void test_f8(void)
{
    CU_ASSERT_EQUAL(f8_to_f32(0x38, false), 1.0f);
    CU_ASSERT_EQUAL(f8_to_f32(0x01, false), 0x1p-9f);
    CU_ASSERT_EQUAL(f8_to_f32(0x07, false), 7 * 0x1p-9f);
    CU_ASSERT_EQUAL(f8_to_f32(0x08, false), 0x1p-6f);
    CU_ASSERT_EQUAL(f8_to_f32(0x7E, false), 448.0f);
    CU_ASSERT_EQUAL(f8_to_f32(0xFE, false), -448.0f);
    CU_ASSERT(isnan(f8_to_f32(0x7F, false)));
    CU_ASSERT(isnan(f8_to_f32(0xFF, false)));
    CU_ASSERT_EQUAL(bits32(f8_to_f32(0x80, false)), 0x80000000u);
    CU_ASSERT_EQUAL(f8_to_f32(0x3C, true), 1.0f);
    CU_ASSERT_EQUAL(f8_to_f32(0x01, true), 0x1p-16f);
    CU_ASSERT_EQUAL(f8_to_f32(0x7B, true), 57344.0f);
    CU_ASSERT_EQUAL(f8_to_f32(0x7C, true), INFINITY);
    CU_ASSERT_EQUAL(f8_to_f32(0xFC, true), -INFINITY);
    CU_ASSERT(isnan(f8_to_f32(0x7D, true)));
    CU_ASSERT_EQUAL(bits32(f8_to_f32(0x80, true)), 0x80000000u);
    for (unsigned i = 0; i < 256; i++) { /* by the definition */
        int exponent = (i >> 3) & 15;
        int fraction = i & 7;
        double value = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
        if ((i & 0x7F) != 0x7F)
            CU_ASSERT_EQUAL((double)f8_to_f32((uint8_t)i, false), i < 128 ? value : -value);
    }
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"bf16 golden values", test_bf16_golden},
        {"f16 golden values", test_f16_golden},
        {"all patterns survive", test_all_patterns_survive},
        {"double rounds once", test_round_once},
        {"edges of double rounding", test_round_edges},
        {"to F32 it is the cast", test_round_f32_is_the_cast},
        {"float and double agree", test_from_f32_agrees},
        {"8-bit floats", test_f8},
    };
    return base_test_main("base convert", TESTS, N_OF(TESTS));
}
