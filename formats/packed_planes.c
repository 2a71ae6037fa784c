/* SPDX-License-Identifier: Apache-2.0 */
/* Byte planes of elements. */
#include "formats/packed_internal.h"

#include <string.h>

/* Turned left by one bit a float's exponent fills the highest byte (all of it in BF16 and F32) and
 * the sign joins the mantissa, which is noise as the sign is. */
#define PLANES(bits)                                                                               \
    static inline uint##bits##_t turn_left##bits(uint##bits##_t x, bool turned)                    \
    {                                                                                              \
        uint64_t wide = x;                                                                         \
        return turned ? (uint##bits##_t)(wide << 1 | wide >> (bits - 1)) : x;                      \
    }                                                                                              \
    static inline uint##bits##_t turn_right##bits(uint##bits##_t x, bool turned)                   \
    {                                                                                              \
        uint64_t wide = x;                                                                         \
        return turned ? (uint##bits##_t)(wide >> 1 | wide << (bits - 1)) : x;                      \
    }                                                                                              \
    static void split##bits(const uint8_t *restrict from, size_t n, bool turned,                   \
                            uint8_t *restrict planes)                                              \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint##bits##_t x;                                                                      \
            memcpy(&x, from + i * sizeof x, sizeof x);                                             \
            x = turn_left##bits(x, turned);                                                        \
            for (size_t k = 0; k < sizeof x; k++)                                                  \
                planes[k * n + i] = (uint8_t)(x >> (8 * k));                                       \
        }                                                                                          \
    }                                                                                              \
    static void join##bits(const uint8_t *restrict planes, size_t n, bool turned,                  \
                           uint8_t *restrict to)                                                   \
    {                                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            uint64_t wide = 0;                                                                     \
            for (size_t k = 0; k < sizeof(uint##bits##_t); k++)                                    \
                wide |= (uint64_t)planes[k * n + i] << (8 * k);                                    \
            uint##bits##_t x = turn_right##bits((uint##bits##_t)wide, turned);                     \
            memcpy(to + i * sizeof x, &x, sizeof x);                                               \
        }                                                                                          \
    }

PLANES(16)
PLANES(32)
PLANES(64)

void packed_split(enum dtype dt, const uint8_t *elements, size_t n, uint8_t *planes)
{
    bool turned = dtype_is_computable(dt);
    switch (dtype_size(dt)) {
    case 2:
        split16(elements, n, turned, planes);
        break;
    case 4:
        split32(elements, n, turned, planes);
        break;
    case 8:
        split64(elements, n, turned, planes);
        break;
    default:
        memcpy(planes, elements, n);
    }
}

void packed_join(enum dtype dt, const uint8_t *planes, size_t n, uint8_t *elements)
{
    bool turned = dtype_is_computable(dt);
    switch (dtype_size(dt)) {
    case 2:
        join16(planes, n, turned, elements);
        break;
    case 4:
        join32(planes, n, turned, elements);
        break;
    case 8:
        join64(planes, n, turned, elements);
        break;
    default:
        memcpy(elements, planes, n);
    }
}
