/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <limits.h>

/* The builtins write their result even when it wraps, so it goes through a local. */

bool mul_size(size_t a, size_t b, size_t *out)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

bool add_size(size_t a, size_t b, size_t *out)
{
    size_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

bool mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

bool add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

bool size_to_int(size_t a, int *out)
{
    if (a > (size_t)INT_MAX)
        return false;
    *out = (int)a;
    return true;
}

bool u64_to_size(uint64_t a, size_t *out)
{
#if SIZE_MAX < UINT64_MAX
    if (a > SIZE_MAX)
        return false;
#endif
    *out = (size_t)a;
    return true;
}
