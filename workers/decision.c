/* SPDX-License-Identifier: Apache-2.0 */
/* What a router selects from a row, and by how much. */
#include "workers/workers_internal.h"

#include <math.h>

/* Does a come before b?  NaN above all, then larger values, then lower columns. */
static bool comes_before(const double *values, uint32_t a, uint32_t b)
{
    const double x = values[a], y = values[b];
    if (isnan(x) || isnan(y))
        return isnan(x) && (!isnan(y) || a < b);
    return x != y ? x > y : a < b;
}

double decision_select(const double *values, size_t width, size_t k, uint32_t *selected)
{
    double next = -(double)INFINITY;
    size_t n = 0;
    k = k < width ? k : width;
    for (uint32_t i = 0; i < width; i++) {
        uint32_t loser = i;
        size_t at = n;
        while (at > 0 && comes_before(values, i, selected[at - 1]))
            at--;
        if (at < k) {
            if (n == k)
                loser = selected[k - 1];
            else
                n++;
            for (size_t j = n - 1; j > at; j--)
                selected[j] = selected[j - 1];
            selected[at] = i;
            if (loser == i)
                continue;
        }
        if (values[loser] > next)
            next = values[loser];
    }
    if (n == width)
        return (double)INFINITY;
    const double margin = values[selected[k - 1]] - next;
    return isnan(margin) ? 0 : margin;
}

enum status decision_values(const struct graph_output *o, const void *row, double *scratch,
                            double *values, struct err *err)
{
    const size_t width = (size_t)o->width;
    const enum dtype compute = dtype_compute(o->dtype);
    if (o->decision_softmax) {
        TRY(kernels_softmax(ARITH_LIBRARY, o->dtype, 1, width, row, scratch, err));
        row = scratch;
    }
    for (size_t i = 0; i < width; i++)
        values[i] = compute == DT_F64 ? ((const double *)row)[i] : (double)((const float *)row)[i];
    return ST_OK;
}
