/* SPDX-License-Identifier: Apache-2.0 */
/* What two models return for one example: element by element, and what a decision selects. */
#include "workers/executor_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One array pair under comparison. */
struct pair {
    const struct executor_array *a, *b;
    size_t n, size;
    long double square_difference, square;
};

static double element(const struct executor_array *a, size_t i)
{
    const char *at = (const char *)a->data + i * dtype_size(a->dtype);
    union {
        double f64;
        float f32;
        int64_t i64;
    } x = {.i64 = 0};
    switch (a->dtype) {
    case DT_I64:
        memcpy(&x.i64, at, sizeof x.i64);
        return (double)x.i64;
    case DT_F64:
    case DT_F32:
    case DT_F16:
    case DT_BF16:
        kernels_unpack(a->dtype, at, 1, &x);
        return dtype_compute(a->dtype) == DT_F64 ? x.f64 : (double)x.f32;
    default:
        return (double)*(const uint8_t *)at;
    }
}

/* |x - y|; 0 for two NaN or the same infinity, INFINITY where only one is a finite number. */
static double distance(double x, double y)
{
    if (x == y || (isnan(x) && isnan(y)))
        return 0;
    return isfinite(x) && isfinite(y) ? fabs(x - y) : (double)INFINITY;
}

static void compare_elements(struct pair *p, struct executor_difference *all,
                             struct executor_place *place)
{
    for (size_t i = 0; i < p->n; i++) {
        double x = element(p->a, i), y = element(p->b, i), d = distance(x, y);
        bool same = memcmp((const char *)p->a->data + i * p->size,
                           (const char *)p->b->data + i * p->size, p->size) == 0;
        bool integers_differ = p->a->dtype == DT_I64 && !same;
        all->unequal_bytes += !same;
        if (isfinite(x))
            p->square += (long double)x * (long double)x;
        if (d == 0 && !integers_differ)
            continue;
        place->unequal++;
        if (d > place->max_abs || place->unequal == 1) {
            place->max_abs = d;
            place->index = i;
            place->a = x;
            place->b = y;
        }
        p->square_difference += (long double)d * (long double)d;
    }
}

static enum status compare_decisions(const struct graph_output *output, const struct pair *p,
                                     struct executor_difference *all, struct executor_place *place,
                                     struct err *err)
{
    size_t k = output->decision_top_k, width = (size_t)p->a->shape[p->a->rank - 1];
    void *memory = NULL, *columns = NULL;
    if (k > width)
        k = width;
    enum status st = mem_alloc(2 * width, sizeof(double), &memory, err);
    if (st == ST_OK)
        st = mem_alloc(2 * k, sizeof(uint32_t), &columns, err);
    double *x = memory, *y = x == NULL ? NULL : x + width;
    uint32_t *of_x = columns, *of_y = of_x == NULL ? NULL : of_x + k;
    for (size_t row = 0; st == ST_OK && row < p->n / width; row++) {
        bool same = true;
        for (size_t i = 0; i < width; i++) {
            x[i] = element(p->a, row * width + i);
            y[i] = element(p->b, row * width + i);
        }
        (void)decision_select(x, width, k, of_x);
        (void)decision_select(y, width, k, of_y);
        /* A set, in any order. */
        for (size_t i = 0; i < k; i++) {
            bool found = false;
            for (size_t j = 0; j < k; j++)
                found = found || of_x[i] == of_y[j];
            same = same && found;
        }
        all->decisions++;
        all->decisions_changed += !same;
        place->decisions_changed += !same;
    }
    free(memory);
    free(columns);
    return st;
}

enum status executor_compare(const struct graph_output *output, const struct executor_array *a,
                             const struct executor_array *b, struct executor_difference *all,
                             struct executor_place *place, struct err *err)
{
    struct pair p = {.a = a, .b = b, .size = dtype_size(a->dtype)};
    *place = (struct executor_place){0};
    if (a->dtype != b->dtype || a->rank != b->rank ||
        (a->rank > 0 && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) != 0))
        return ST_OK;
    place->same_form = true;
    p.n = (size_t)executor_array_count(a);
    compare_elements(&p, all, place);
    all->elements += p.n;
    all->unequal += place->unequal;
    if (place->max_abs > all->max_abs)
        all->max_abs = place->max_abs;
    if (p.square_difference > 0)
        place->max_rel =
            p.square > 0 ? (double)sqrtl(p.square_difference / p.square) : (double)INFINITY;
    if (place->max_rel > all->max_rel)
        all->max_rel = place->max_rel;
    if (output->decision_top_k == 0 || a->rank == 0 || p.n == 0 || a->dtype == DT_I64)
        return ST_OK;
    return compare_decisions(output, &p, all, place, err);
}
