/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/base_internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEM_ALIGNMENT = 64, NAME_MAX_CHARS = 255, DISTANCE_MAX_CHARS = 256 };

enum status mem_alloc(size_t n, size_t size, void **out, struct err *err)
{
    size_t size_bytes;
    if (!mul_size(n, size, &size_bytes))
        return err_set(err, ST_NOMEM, "out of memory: %zu items of %zu bytes", n, size);
    void *p = NULL;
    if (fault_hit("mem_alloc") ||
        posix_memalign(&p, MEM_ALIGNMENT, size_bytes > 0 ? size_bytes : 1) != 0)
        return err_nomem(err, size_bytes);
    *out = p;
    return ST_OK;
}

enum status mem_calloc(size_t n, size_t size, void **out, struct err *err)
{
    TRY(mem_alloc(n, size, out, err));
    memset(*out, 0, n * size); /* mem_alloc checked the product */
    return ST_OK;
}

char *str_dup(const char *s)
{
    size_t size = strlen(s) + 1;
    char *copy = malloc(size);
    if (copy != NULL)
        memcpy(copy, s, size);
    return copy;
}

char *str_printf(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    if (length < 0)
        return NULL;
    char *s = malloc((size_t)length + 1);
    if (s == NULL)
        return NULL;
    va_start(args, fmt);
    (void)vsnprintf(s, (size_t)length + 1, fmt, args);
    va_end(args);
    return s;
}

void str_make_line(char *s)
{
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c < 0x20 || c == 0x7F)
            *s = '?';
    }
}

void str_fix_radix(char *s)
{
    /* The locale's point may be several bytes; nothing else that %g prints is outside this set. */
    size_t before = strspn(s, "+-0123456789e");
    if (s[before] == '\0')
        return;
    char *rest = s + before + strcspn(s + before, "+-0123456789e");
    s[before] = '.';
    memmove(s + before + 1, rest, strlen(rest) + 1);
}

static unsigned min_unsigned(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

unsigned str_distance(const char *a, const char *b)
{
    size_t a_size = strnlen(a, DISTANCE_MAX_CHARS);
    size_t b_size = strnlen(b, DISTANCE_MAX_CHARS);
    unsigned row[DISTANCE_MAX_CHARS + 1];
    for (size_t j = 0; j <= b_size; j++)
        row[j] = (unsigned)j;
    for (size_t i = 1; i <= a_size; i++) {
        unsigned diagonal = row[0];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= b_size; j++) {
            unsigned replaced = diagonal + (a[i - 1] != b[j - 1] ? 1u : 0u);
            diagonal = row[j];
            row[j] = min_unsigned(replaced, min_unsigned(row[j], row[j - 1]) + 1u);
        }
    }
    return row[b_size];
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

bool str_is_name(const char *s)
{
    size_t size = strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-");
    if (size == 0 || s[size] != '\0' || size > NAME_MAX_CHARS)
        return false;
    return strcmp(s, ".") != 0 && strcmp(s, "..") != 0;
}

const char *str_bytes(uint64_t bytes, char *buf, size_t buf_size)
{
    static const char *const UNITS[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    enum { N_UNITS = (int)(sizeof UNITS / sizeof UNITS[0]) };
    if (bytes < 1024) {
        (void)snprintf(buf, buf_size, "%u B", (unsigned)bytes);
        return buf;
    }
    double value = (double)bytes / 1024.0;
    int unit = 0;
    while (value >= 1023.995 && unit + 1 < N_UNITS) {
        value /= 1024.0;
        unit++;
    }
    char number[32];
    (void)snprintf(number, sizeof number, "%.2f", value);
    str_fix_radix(number);
    (void)snprintf(buf, buf_size, "%s %s", number, UNITS[unit]);
    return buf;
}

/* Digits at the start of s; NULL if there is none or the number is too large. */
static const char *read_digits(const char *s, uint64_t *out)
{
    if (!is_digit(*s))
        return NULL;
    uint64_t value = 0;
    for (; is_digit(*s); s++) {
        if (!mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(*s - '0'), &value))
            return NULL;
    }
    *out = value;
    return s;
}

bool str_to_u64(const char *s, uint64_t *out)
{
    uint64_t value;
    const char *end = read_digits(s, &value);
    if (end == NULL || *end != '\0')
        return false;
    *out = value;
    return true;
}

bool str_to_size(const char *s, uint64_t *out)
{
    uint64_t value;
    const char *end = read_digits(s, &value);
    if (end == NULL)
        return false;
    if (*end != '\0') {
        static const char SUFFIXES[] = "KMGT";
        const char *suffix = strchr(SUFFIXES, *end);
        if (suffix == NULL || end[1] != '\0')
            return false;
        if (!mul_u64(value, (uint64_t)1 << (10 * (suffix - SUFFIXES + 1)), &value))
            return false;
    }
    *out = value;
    return true;
}

/* [+-] digits [. digits] [e [+-] digits] and nothing else: strtod alone would also take spaces,
 * hexadecimal, "inf" and what the locale allows.  *point: place of the '.', or SIZE_MAX. */
static bool is_decimal(const char *s, size_t *point)
{
    const char *p = s;
    *point = SIZE_MAX;
    if (*p == '+' || *p == '-')
        p++;
    size_t n_digits = strspn(p, "0123456789");
    p += n_digits;
    if (*p == '.') {
        *point = (size_t)(p - s);
        size_t n_fraction = strspn(p + 1, "0123456789");
        n_digits += n_fraction;
        p += 1 + n_fraction;
    }
    if (n_digits == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-')
            p++;
        size_t n_exponent = strspn(p, "0123456789");
        if (n_exponent == 0)
            return false;
        p += n_exponent;
    }
    return *p == '\0';
}

bool str_to_double(const char *s, double *out)
{
    size_t point;
    if (!is_decimal(s, &point))
        return false;
    double value;
    if (point == SIZE_MAX) {
        value = strtod(s, NULL);
    } else {
        /* What %.1f prints between "0" and "0" is the point that strtod expects just now. */
        char radix[16];
        (void)snprintf(radix, sizeof radix, "%.1f", 0.0);
        size_t radix_size = strlen(radix) - 2;
        char *local =
            str_printf("%.*s%.*s%s", (int)point, s, (int)radix_size, radix + 1, s + point + 1);
        if (local == NULL)
            return false;
        value = strtod(local, NULL);
        free(local);
    }
    if (!isfinite(value))
        return false;
    *out = value;
    return true;
}

const char *str_double(double x, char *buf, size_t buf_size)
{
    if (!isfinite(x)) {
        (void)snprintf(buf, buf_size, "%s", isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
        return buf;
    }
    /* Fifteen digits survive the way through a normal double, and %g drops their trailing zeros, so
     * nothing below 15 can be shorter; a subnormal has fewer digits. */
    char text[48];
    for (int digits = fabs(x) < 0x1p-1022 && x != 0 ? 1 : 15; digits <= 17; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x)
            break;
    }
    str_fix_radix(text);
    (void)snprintf(buf, buf_size, "%s", text);
    return buf;
}
