/* SPDX-License-Identifier: Apache-2.0 */
/* Stored elements and the arrays that ops compute in. */
#include "kernels/kernels_internal.h"

#include <string.h>

enum { BLOCK = 256 };

/* Shift arithmetic instead of base's scalar function, so that the compiler can use vectors. */
static void unpack_bf16(const uint8_t *stored, size_t n, float *dst)
{
    for (size_t first = 0; first < n; first += BLOCK) {
        uint16_t half[BLOCK];
        uint32_t bits[BLOCK];
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        memcpy(half, stored + 2 * first, 2 * count);
        for (size_t i = 0; i < count; i++)
            bits[i] = (uint32_t)half[i] << 16;
        memcpy(dst + first, bits, 4 * count);
    }
}

static void unpack_f16(const uint8_t *stored, size_t n, float *dst)
{
    for (size_t first = 0; first < n; first += BLOCK) {
        uint16_t half[BLOCK];
        uint32_t bits[BLOCK];
        float value[BLOCK];
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        memcpy(half, stored + 2 * first, 2 * count);
        /* The exponent's bias differs by 112: one exact product moves it, subnormals included. */
        for (size_t i = 0; i < count; i++)
            bits[i] = ((uint32_t)half[i] & 0x7fffu) << 13;
        memcpy(value, bits, 4 * count);
        for (size_t i = 0; i < count; i++)
            value[i] *= 0x1p112f;
        memcpy(bits, value, 4 * count);
        for (size_t i = 0; i < count; i++) {
            const uint32_t magnitude = half[i] & 0x7fffu;
            const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0;
            const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0;
            bits[i] |= special | quiet | ((uint32_t)half[i] & 0x8000u) << 16;
        }
        memcpy(dst + first, bits, 4 * count);
    }
}

void kernels_unpack(enum dtype dt, const void *stored, size_t n, void *dst)
{
    if (n == 0)
        return;
    if (dt == DT_BF16)
        unpack_bf16(stored, n, dst);
    else if (dt == DT_F16)
        unpack_f16(stored, n, dst);
    else
        memcpy(dst, stored, n * dtype_size(dt));
}

/* NaN is quieted; else nearest even by adding half a unit less one, plus the last bit that stays.
 */
static uint32_t round_bf16_bits(uint32_t bits)
{
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const uint32_t quiet = bits | 0x00400000u;
    return ((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) & 0xffff0000u;
}

static void round_bf16(float *x, size_t n)
{
    for (size_t first = 0; first < n; first += BLOCK) {
        uint32_t bits[BLOCK];
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        memcpy(bits, x + first, 4 * count);
        for (size_t i = 0; i < count; i++)
            bits[i] = round_bf16_bits(bits[i]);
        memcpy(x + first, bits, 4 * count);
    }
}

void kernels_pack(enum dtype dt, const void *src, size_t n, void *stored)
{
    if (n == 0)
        return;
    uint8_t *to = stored;
    const float *x = src;
    if (dt == DT_F32 || dt == DT_F64) {
        memcpy(stored, src, n * dtype_size(dt));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half = 0;
        if (dt == DT_BF16) {
            uint32_t bits;
            memcpy(&bits, x + i, sizeof bits);
            half = (uint16_t)(round_bf16_bits(bits) >> 16);
        } else {
            half = f16_from_f32(x[i]);
        }
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

void kernels_round_f32(enum dtype dt, float *x, size_t n)
{
    if (dt == DT_BF16)
        round_bf16(x, n);
    else if (dt == DT_F16)
        row_loops_pick()->round_f16(x, n);
}

/* All exponent bits set: Inf or NaN. */
static bool is_nonfinite(enum dtype dt, const uint8_t *element)
{
    if (dt == DT_F64) {
        uint64_t bits;
        memcpy(&bits, element, sizeof bits);
        return (bits & 0x7ff0000000000000u) == 0x7ff0000000000000u;
    }
    if (dt == DT_F32) {
        uint32_t bits;
        memcpy(&bits, element, sizeof bits);
        return (bits & 0x7f800000u) == 0x7f800000u;
    }
    const uint16_t exponent = dt == DT_BF16 ? 0x7f80u : 0x7c00u;
    uint16_t bits;
    memcpy(&bits, element, sizeof bits);
    return (bits & exponent) == exponent;
}

size_t kernels_find_nonfinite(enum dtype dt, const void *stored, size_t n)
{
    const uint8_t *at = stored;
    const size_t size = dtype_size(dt);
    /* Whole blocks first: no early exit, so the compiler can use vectors. */
    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        unsigned bad = 0;
        for (size_t i = 0; i < count; i++)
            bad |= is_nonfinite(dt, at + (first + i) * size);
        for (size_t i = 0; bad != 0 && i < count; i++)
            if (is_nonfinite(dt, at + (first + i) * size))
                return first + i;
    }
    return n;
}
