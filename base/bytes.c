/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES_FIRST_CAPACITY = 64 };

/* Room for `size` more; false, and the buffer failed, if it cannot be had. */
static bool reserve(struct bytes *b, size_t size)
{
    size_t needed;
    if (b->failed || !add_size(b->size, size, &needed)) {
        b->failed = true;
        return false;
    }
    if (needed <= b->capacity)
        return true;
    size_t capacity = b->capacity > 0 ? b->capacity : BYTES_FIRST_CAPACITY;
    while (capacity < needed) {
        if (!mul_size(capacity, 2, &capacity))
            capacity = needed;
    }
    uint8_t *data = realloc(b->data, capacity);
    if (data == NULL) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    return true;
}

void bytes_append(struct bytes *b, const void *data, size_t size)
{
    if (!reserve(b, size) || size == 0)
        return;
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

void bytes_printf(struct bytes *b, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (length < 0) {
        b->failed = true;
        return;
    }
    if (!reserve(b, (size_t)length + 1)) /* vsnprintf writes a NUL, which is not counted */
        return;
    va_start(args, fmt);
    (void)vsnprintf((char *)(b->data + b->size), (size_t)length + 1, fmt, args);
    va_end(args);
    b->size += (size_t)length;
}

static void put_little(struct bytes *b, uint64_t x, size_t width)
{
    uint8_t raw[8];
    for (size_t i = 0; i < width; i++)
        raw[i] = (uint8_t)(x >> (8 * i));
    bytes_append(b, raw, width);
}

void bytes_put_u8(struct bytes *b, uint8_t x)
{
    put_little(b, x, 1);
}

void bytes_put_u32(struct bytes *b, uint32_t x)
{
    put_little(b, x, 4);
}

void bytes_put_u64(struct bytes *b, uint64_t x)
{
    put_little(b, x, 8);
}

void bytes_put_f64(struct bytes *b, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bytes_put_u64(b, bits);
}

void bytes_put_str(struct bytes *b, const char *s)
{
    size_t size = strlen(s);
    if (size > UINT32_MAX) {
        b->failed = true;
        return;
    }
    bytes_put_u32(b, (uint32_t)size);
    bytes_append(b, s, size);
}

void bytes_free(struct bytes *b)
{
    if (b == NULL)
        return;
    free(b->data);
    *b = (struct bytes){0};
}

const uint8_t *bytes_get(struct bytes_reader *r, size_t size)
{
    static const uint8_t NOTHING[1];
    if (r->failed || r->at > r->size || size > r->size - r->at) {
        r->failed = true;
        return NULL;
    }
    if (size == 0)
        return NOTHING;
    const uint8_t *p = r->data + r->at;
    r->at += size;
    return p;
}

static uint64_t get_little(struct bytes_reader *r, size_t width)
{
    const uint8_t *raw = bytes_get(r, width);
    uint64_t x = 0;
    for (size_t i = 0; raw != NULL && i < width; i++)
        x |= (uint64_t)raw[i] << (8 * i);
    return x;
}

uint8_t bytes_get_u8(struct bytes_reader *r)
{
    return (uint8_t)get_little(r, 1);
}

uint32_t bytes_get_u32(struct bytes_reader *r)
{
    return (uint32_t)get_little(r, 4);
}

uint64_t bytes_get_u64(struct bytes_reader *r)
{
    return get_little(r, 8);
}

double bytes_get_f64(struct bytes_reader *r)
{
    uint64_t bits = bytes_get_u64(r);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

char *bytes_get_str(struct bytes_reader *r)
{
    uint32_t size = bytes_get_u32(r);
    const uint8_t *raw = bytes_get(r, size);
    if (raw == NULL)
        return NULL;
    /* bytes_put_str never writes a NUL: one here is damage, and would cut the string silently. */
    char *s = memchr(raw, 0, size) == NULL ? malloc((size_t)size + 1) : NULL;
    if (s == NULL) {
        r->failed = true;
        return NULL;
    }
    memcpy(s, raw, size);
    s[size] = '\0';
    return s;
}
