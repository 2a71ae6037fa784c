/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a run: memory, elements, broadcasting. */
#include "workers/executor_internal.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t ex_size(enum dtype dt)
{
    return dtype_is_computable(dt) ? dtype_size(dtype_compute(dt)) : dtype_size(dt);
}

enum status ex_fail(const struct ex_call *c, const char *fmt, ...)
{
    char text[300];
    const struct graph_node *node = c->n->node;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return err_set(c->err, ST_STRUCTURE, "%s: %s %s: %s",
                   node->where != NULL ? node->where : "node", graph_op(node->op)->name, node->name,
                   text);
}

enum status ex_alloc(const struct ex_call *c, enum dtype dt, unsigned rank, const uint64_t *shape)
{
    struct executor_array form = {.dtype = dt, .rank = rank};
    char text[EXECUTOR_SHAPE_TEXT];
    if (rank > EXECUTOR_MAX_RANK)
        return ex_fail(c, "a result of %u axes, expected at most %d", rank, EXECUTOR_MAX_RANK);
    if (rank > 0) /* an empty shape may be given as NULL */
        memcpy(form.shape, shape, rank * sizeof *shape);
    uint64_t count = executor_array_count(&form);
    if (count > SIZE_MAX / 16)
        return ex_fail(c, "a result of shape %s is too large",
                       executor_shape_text(rank, form.shape, text));
    ex_value_free(c->out);
    c->out->dtype = dt;
    c->out->rank = rank;
    memcpy(c->out->shape, form.shape, sizeof form.shape);
    c->out->n = (size_t)count;
    return mem_alloc((size_t)count, ex_size(dt), &c->out->data, c->err);
}

void ex_value_free(struct ex_value *v)
{
    free(v->data);
    *v = (struct ex_value){.dtype = DT_UNKNOWN};
}

double ex_get(const struct ex_value *v, size_t i)
{
    if (v->dtype == DT_I64)
        return (double)((const int64_t *)v->data)[i];
    if (v->dtype == DT_BOOL)
        return ((const uint8_t *)v->data)[i] != 0 ? 1 : 0;
    if (v->dtype == DT_F64)
        return ((const double *)v->data)[i];
    return (double)((const float *)v->data)[i];
}

double ex_round(enum dtype dt, double x)
{
    return dt == DT_F64 ? x : (double)f64_round_to(dt, x);
}

void ex_put(enum dtype dt, void *data, size_t i, double x)
{
    if (dt == DT_F64)
        ((double *)data)[i] = x;
    else
        ((float *)data)[i] = f64_round_to(dt, x);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

static size_t product(const uint64_t *shape, unsigned n)
{
    size_t p = 1;
    for (unsigned i = 0; i < n; i++)
        p *= (size_t)shape[i];
    return p;
}

size_t ex_width(const struct ex_value *v)
{
    return v->rank == 0 ? 1 : (size_t)v->shape[v->rank - 1];
}

size_t ex_rows(const struct ex_value *v)
{
    return v->rank == 0 ? 1 : product(v->shape, v->rank - 1);
}

size_t ex_tokens(const struct ex_value *v)
{
    return v->rank < 2 ? 1 : (size_t)v->shape[v->rank - 2];
}

size_t ex_batch(const struct ex_value *v)
{
    return v->rank < 2 ? 1 : product(v->shape, v->rank - 2);
}

enum status ex_widened(const struct ex_call *c, unsigned k, enum dtype compute, const void **data,
                       void **owned)
{
    const struct ex_value *v = c->in[k];
    *owned = NULL;
    *data = v->data;
    if (dtype_is_computable(v->dtype) && dtype_compute(v->dtype) == compute)
        return ST_OK;
    TRY(mem_alloc(v->n, dtype_size(compute), owned, c->err));
    for (size_t i = 0; i < v->n; i++)
        ex_put(compute, *owned, i, ex_get(v, i));
    *data = *owned;
    return ST_OK;
}

enum status ex_expand(const struct ex_call *c, const struct ex_value *v, enum dtype compute,
                      enum ex_reading reading, unsigned rank, const uint64_t *shape, void *dst)
{
    size_t strides[EXECUTOR_MAX_RANK] = {0}, step = 1, at = 0, total = product(shape, rank);
    uint64_t index[EXECUTOR_MAX_RANK] = {0};
    char have[EXECUTOR_SHAPE_TEXT], want[EXECUTOR_SHAPE_TEXT];
    for (unsigned i = 0; i < v->rank; i++) {
        unsigned from = v->rank - 1 - i;
        if (i >= rank || (v->shape[from] != 1 && v->shape[from] != shape[rank - 1 - i]))
            return ex_fail(c, "shape %s cannot be broadcast to %s",
                           executor_shape_text(v->rank, v->shape, have),
                           executor_shape_text(rank, shape, want));
        strides[rank - 1 - i] = v->shape[from] == 1 ? 0 : step;
        step *= (size_t)v->shape[from];
    }
    for (size_t n = 0; n < total; n++) {
        double x = ex_get(v, at);
        if (reading == EX_ADDITIVE && v->dtype == DT_BOOL)
            x = x != 0 ? 0 : -(double)INFINITY;
        ex_put(compute, dst, n, x);
        for (unsigned i = rank; i-- > 0;) {
            at += strides[i];
            if (++index[i] < shape[i])
                break;
            at -= strides[i] * (size_t)shape[i];
            index[i] = 0;
        }
    }
    return ST_OK;
}
