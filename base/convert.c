/* SPDX-License-Identifier: Apache-2.0 */
/* All in integers: neither the rounding mode nor FTZ/DAZ can change a result. */
#include "base/base.h"

#include <assert.h>
#include <string.h>

static uint32_t bits_of_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float f32_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

uint16_t bf16_from_f32(float x)
{
    uint32_t bits = bits_of_f32(x);
    if ((bits & 0x7FFFFFFFu) > 0x7F800000u)
        return (uint16_t)((bits >> 16) | 0x0040u);
    return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float bf16_to_f32(uint16_t x)
{
    return f32_of_bits((uint32_t)x << 16);
}

/* value >> shift, to nearest, ties to even; 1 <= shift <= 31. */
static uint32_t shift_right_even(uint32_t value, unsigned shift)
{
    uint32_t kept = value >> shift;
    uint32_t rest = value & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);
    return kept + (rest > half || (rest == half && (kept & 1u) != 0) ? 1u : 0u);
}

uint16_t f16_from_f32(float x)
{
    uint32_t bits = bits_of_f32(x);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (magnitude > 0x7F800000u)
        return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x01FFu));
    if (magnitude >= 0x477FF000u) /* 65520, the tie above the largest F16, and all beyond */
        return (uint16_t)(sign | 0x7C00u);
    uint32_t exponent = magnitude >> 23;
    if (exponent >= 113) /* a carry out of the fraction raises the exponent, as it should */
        return (uint16_t)(sign | shift_right_even(magnitude - (112u << 23), 13));
    if (exponent < 102) /* below 2^-25, half of the smallest F16 */
        return (uint16_t)sign;
    uint32_t significand = (magnitude & 0x007FFFFFu) | 0x00800000u;
    return (uint16_t)(sign | shift_right_even(significand, 126u - exponent));
}

float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16;
    uint32_t exponent = (x >> 10) & 0x1Fu;
    uint32_t fraction = x & 0x03FFu;
    if (exponent == 0x1F)
        return f32_of_bits(sign | 0x7F800000u | (fraction != 0 ? 0x00400000u : 0u) |
                           (fraction << 13));
    if (exponent == 0) { /* 10 bits times 2^-24: exact in float, and a normal number there */
        if (fraction == 0)
            return f32_of_bits(sign);
        uint32_t biased = 113;
        while ((fraction & 0x0400u) == 0) {
            fraction <<= 1;
            biased--;
        }
        return f32_of_bits(sign | (biased << 23) | ((fraction & 0x03FFu) << 13));
    }
    return f32_of_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
}

struct float_layout {
    int fraction_bits, min_exponent, max_exponent;
};

/* F32, F16 and BF16 values all are F32 values, so the result is built as one. */
static float f64_round_layout(double x, struct float_layout layout)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t sign = (uint32_t)(bits >> 63) << 31;
    int exponent = (int)((bits >> 52) & 0x7FFu) - 1023;
    uint64_t significand = bits & 0x000FFFFFFFFFFFFFu;
    int dropped_bits = 23 - layout.fraction_bits;

    if (exponent == 1024 && significand != 0) {
        uint32_t payload = 0x00400000u | (uint32_t)(significand >> 29);
        return f32_of_bits(sign | 0x7F800000u | ((payload >> dropped_bits) << dropped_bits));
    }
    if (exponent > layout.max_exponent)
        return f32_of_bits(sign | 0x7F800000u);
    if (exponent == -1023) /* zeros, and subnormal doubles, far below half of any smallest value */
        return f32_of_bits(sign);
    significand |= (uint64_t)1 << 52;

    int raised = exponent < layout.min_exponent ? layout.min_exponent - exponent : 0;
    int shift = 52 - layout.fraction_bits + raised;
    if (shift >= 54)
        return f32_of_bits(sign);
    uint64_t kept = significand >> shift;
    uint64_t rest = significand & (((uint64_t)1 << shift) - 1u);
    uint64_t half = (uint64_t)1 << (shift - 1);
    if (rest > half || (rest == half && (kept & 1u) != 0))
        kept++;
    if (exponent == layout.max_exponent && (kept >> (layout.fraction_bits + 1)) != 0)
        return f32_of_bits(sign | 0x7F800000u);
    if (kept == 0)
        return f32_of_bits(sign);

    /* kept * 2^unit, with kept <= 2^24; brought to F32's 24 bits, or to its smallest unit. */
    int unit = exponent - 52 + shift;
    while (kept < (1u << 23) && unit > -149) {
        kept <<= 1;
        unit--;
    }
    return f32_of_bits(sign | (((uint32_t)(unit + 149) << 23) + (uint32_t)kept));
}

float f64_round_to(enum dtype dt, double x)
{
    switch (dt) {
    case DT_F16:
        return f64_round_layout(x, (struct float_layout){10, -14, 15});
    case DT_BF16:
        return f64_round_layout(x, (struct float_layout){7, -126, 127});
    default:
        assert(dt == DT_F32);
        return f64_round_layout(x, (struct float_layout){23, -126, 127});
    }
}

float f8_to_f32(uint8_t x, bool e5m2)
{
    if (e5m2) /* the upper byte of an F16 */
        return f16_to_f32((uint16_t)(x << 8));
    /* E4M3 ("fn"): no infinities, one NaN pattern a sign, bias 7. */
    uint32_t sign = (uint32_t)(x & 0x80u) << 24;
    uint32_t exponent = (x >> 3) & 0x0Fu;
    uint32_t fraction = x & 0x07u;
    if (exponent == 0x0F && fraction == 0x07)
        return f32_of_bits(sign | 0x7FC00000u);
    if (exponent != 0)
        return f32_of_bits(sign | ((exponent + 120u) << 23) | (fraction << 20));
    float magnitude = (float)fraction * 0x1p-9f;
    return f32_of_bits(sign | bits_of_f32(magnitude));
}
