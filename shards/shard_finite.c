/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards_internal.h"

#include <string.h>

/* Not finite: all exponent bits are set. */
#define EXPONENT_F64 UINT64_C(0x7FF0000000000000)
#define EXPONENT_F32 UINT32_C(0x7F800000)
#define EXPONENT_F16 UINT16_C(0x7C00)
#define EXPONENT_BF16 UINT16_C(0x7F80)

/* One loop a width: the loads are memcpy, since stored elements need not be aligned, and the body
 * has no branch, so that the compiler vectorises it. */
static size_t count_64(const uint8_t *p, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t x;
        memcpy(&x, p + i * sizeof x, sizeof x);
        found += (x & EXPONENT_F64) == EXPONENT_F64;
    }
    return found;
}

static size_t count_32(const uint8_t *p, size_t n)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t x;
        memcpy(&x, p + i * sizeof x, sizeof x);
        found += (x & EXPONENT_F32) == EXPONENT_F32;
    }
    return found;
}

static size_t count_16(const uint8_t *p, size_t n, uint16_t exponent)
{
    size_t found = 0;
    for (size_t i = 0; i < n; i++) {
        uint16_t x;
        memcpy(&x, p + i * sizeof x, sizeof x);
        found += (x & exponent) == exponent;
    }
    return found;
}

static size_t count(const uint8_t *p, enum dtype dt, size_t n)
{
    switch (dt) {
    case DT_F64:
        return count_64(p, n);
    case DT_F32:
        return count_32(p, n);
    case DT_F16:
        return count_16(p, n, EXPONENT_F16);
    case DT_BF16:
        return count_16(p, n, EXPONENT_BF16);
    default:
        return 0;
    }
}

size_t shard_nonfinite(const void *data, enum dtype dt, size_t n, size_t *first)
{
    size_t found = count(data, dt, n), at = 0;
    if (found == 0)
        return 0;
    /* Halve the range that holds the first one. */
    for (size_t left = n; left > 1;) {
        size_t half = left / 2;
        bool is_low = count((const uint8_t *)data + at * dtype_size(dt), dt, half) > 0;
        at += is_low ? 0 : half;
        left = is_low ? half : left - half;
    }
    *first = at;
    return found;
}
