/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <string.h>

struct dtype_info {
    const char *name;
    size_t bits;
    char kind;
};

static const struct dtype_info DTYPE_INFO[DT_COUNT] = {
#define X(name, text, bits, kind) {text, bits, kind},
    BASE_DTYPES(X)
#undef X
};

static const struct dtype_info *info_of(enum dtype dt)
{
    return &DTYPE_INFO[(unsigned)dt < (unsigned)DT_COUNT ? dt : DT_UNKNOWN];
}

const char *dtype_name(enum dtype dt)
{
    return info_of(dt)->name;
}

enum dtype dtype_from_name(const char *name, size_t size)
{
    for (unsigned i = 0; i < DT_UNKNOWN; i++) {
        const char *known = DTYPE_INFO[i].name;
        if (strlen(known) == size && memcmp(known, name, size) == 0)
            return (enum dtype)i;
    }
    return DT_UNKNOWN;
}

size_t dtype_size(enum dtype dt)
{
    return info_of(dt)->bits / 8;
}

bool dtype_is_computable(enum dtype dt)
{
    return info_of(dt)->kind == 'f';
}

enum dtype dtype_compute(enum dtype dt)
{
    return dt == DT_F64 ? DT_F64 : DT_F32;
}

enum dtype dtype_promote(enum dtype a, enum dtype b)
{
    if (!dtype_is_computable(a) || !dtype_is_computable(b))
        return DT_UNKNOWN;
    if (a == b)
        return a;
    if (dtype_size(a) == dtype_size(b))
        return DT_F32; /* F16 with BF16: neither holds the other */
    return dtype_size(a) > dtype_size(b) ? a : b;
}
