/* SPDX-License-Identifier: Apache-2.0 */
/* How elements compare: bits, absolute, relative, units in the last place. */
#include "driver/diff_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Elements read at a time (at least a row). */
enum { BLOCK_ELEMENTS = 1 << 18 };

static char kind_of(enum dtype dt)
{
    static const char kinds[] = {
#define X(name, text, bits, kind) kind,
        BASE_DTYPES(X)
#undef X
    };
    return (unsigned)dt < sizeof kinds ? kinds[dt] : '?';
}

static bool is_float(enum dtype dt)
{
    return kind_of(dt) == 'f' || kind_of(dt) == 'q';
}

/* Floats of one dtype in order: neighbours differ by one, and both zeros are 0. */
static int64_t ordered_bits(enum dtype dt, const void *stored)
{
    uint64_t bits = 0;
    size_t size = dtype_size(dt);
    memcpy(&bits, stored, size);
    uint64_t sign = (uint64_t)1 << (8 * size - 1);
    int64_t magnitude = (int64_t)(bits & (sign - 1));
    return (bits & sign) != 0 ? -magnitude : magnitude;
}

static uint64_t distance(int64_t a, int64_t b)
{
    return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

/* |a - b| of 64-bit integers, exact before it becomes a double. */
static double integer_difference(enum dtype dt, const void *a, const void *b)
{
    uint64_t x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    bool x_larger = dt == DT_U64 ? x > y : (int64_t)x > (int64_t)y;
    return (double)(x_larger ? x - y : y - x);
}

static bool within(const struct diff_rule *rule, const struct diff_element *d)
{
    if (!isfinite(d->absolute))
        return false;
    return (rule->has_absolute && d->absolute <= rule->absolute) ||
           (rule->has_relative && d->relative <= rule->relative) ||
           (rule->has_ulp && d->has_ulp && d->ulp <= rule->ulp);
}

struct diff_element diff_compare(const struct diff_rule *rule, enum dtype da, const void *a,
                                 enum dtype db, const void *b)
{
    struct diff_element d = {.same_bits = da == db && memcmp(a, b, dtype_size(da)) == 0};
    double x = verb_element_number(da, a), y = verb_element_number(db, b);
    if (isnan(x) || isnan(y)) {
        d.absolute = d.relative = (double)NAN;
        d.equal = isnan(x) && isnan(y) &&
                  (rule->nan == DIFF_NAN_EQUAL || (rule->nan == DIFF_NAN_BITS && d.same_bits));
        return d;
    }
    if (da == db && is_float(da)) {
        d.has_ulp = true;
        d.ulp = distance(ordered_bits(da, a), ordered_bits(db, b));
    }
    if (d.same_bits) {
        d.equal = true;
        return d;
    }
    d.absolute = da == db && (da == DT_I64 || da == DT_U64) ? integer_difference(da, a, b)
                 : x == y                                   ? 0
                                                            : fabs(x - y);
    double scale = fmax(fabs(x), fabs(y));
    d.relative = d.absolute == 0 ? 0 : isinf(scale) ? (double)INFINITY : d.absolute / scale;
    d.equal = within(rule, &d);
    return d;
}

static void worse(struct diff_worst *w, double value, uint64_t element)
{
    if (value > w->value)
        *w = (struct diff_worst){.value = value, .element = element};
}

static void count(struct diff_counts *c, const struct diff_element *d, uint64_t element)
{
    c->different += d->equal ? 0 : 1;
    c->bits_different += d->same_bits ? 0 : 1;
    if (isnan(d->absolute)) {
        c->nan_pairs++;
        return;
    }
    worse(&c->absolute, d->absolute, element);
    worse(&c->relative, d->relative, element);
    if (d->has_ulp && d->ulp > c->ulp) {
        c->ulp = d->ulp;
        c->ulp_element = element;
    }
}

/* Elements of a block whose ends suit both sides. */
static uint64_t block_elements(const struct diff_table *a, const struct diff_table *b)
{
    uint64_t step = max_u64(max_u64(a->read_elements, b->read_elements), 1);
    return step * max_u64(BLOCK_ELEMENTS / step, 1);
}

enum status diff_tables(const struct diff_rule *rule, struct diff_source *a,
                        const struct diff_table *ta, struct diff_source *b,
                        const struct diff_table *tb, diff_place_fn place, void *ctx,
                        struct diff_counts *out, struct err *err)
{
    *out = (struct diff_counts){.elements = ta->n_elements};
    uint64_t block = min_u64(block_elements(ta, tb), ta->n_elements);
    size_t size_a = dtype_size(ta->dtype), size_b = dtype_size(tb->dtype);
    void *rows_a = NULL, *rows_b = NULL;
    enum status st = mem_alloc((size_t)block, size_a, &rows_a, err);
    if (st == ST_OK)
        st = mem_alloc((size_t)block, size_b, &rows_b, err);
    bool bits_suffice =
        ta->dtype == tb->dtype && (!is_float(ta->dtype) || rule->nan != DIFF_NAN_DIFFER);
    for (uint64_t first = 0; first < ta->n_elements && st == ST_OK; first += block) {
        uint64_t n = min_u64(block, ta->n_elements - first);
        st = diff_source_read(a, ta, first, n, rows_a, err);
        if (st == ST_OK)
            st = diff_source_read(b, tb, first, n, rows_b, err);
        if (st != ST_OK || (bits_suffice && memcmp(rows_a, rows_b, (size_t)n * size_a) == 0))
            continue;
        for (uint64_t i = 0; i < n; i++) {
            const uint8_t *x = (const uint8_t *)rows_a + i * size_a;
            const uint8_t *y = (const uint8_t *)rows_b + i * size_b;
            struct diff_element d = diff_compare(rule, ta->dtype, x, tb->dtype, y);
            count(out, &d, first + i);
            if (!d.equal)
                place(ctx, first + i, x, y, &d);
        }
    }
    free(rows_a);
    free(rows_b);
    return st;
}
