/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that move elements between axes. */
#include "workers/executor_internal.h"

#include <stdlib.h>
#include <string.h>

/* Axis of a node in [0, rank), negative ones from the end. */
static enum status find_axis(const struct ex_call *c, unsigned rank, unsigned *axis)
{
    double x = c->n->node->numbers[NUM_AXIS], at = x < 0 ? x + rank : x;
    if (!(at >= 0 && at < rank))
        return ex_fail(c, "axis %.0f of a value with %u axes", x, rank);
    *axis = (unsigned)at;
    return ST_OK;
}

static size_t product(const uint64_t *shape, unsigned first, unsigned last)
{
    size_t p = 1;
    for (unsigned i = first; i < last; i++)
        p *= (size_t)shape[i];
    return p;
}

enum status ex_concat(const struct ex_call *c)
{
    const struct ex_value *first = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK];
    unsigned axis = 0, n = c->n->node->n_inputs;
    TRY(find_axis(c, first->rank, &axis));
    memcpy(shape, first->shape, sizeof shape);
    for (unsigned k = 1; k < n; k++) {
        char x[EXECUTOR_SHAPE_TEXT], y[EXECUTOR_SHAPE_TEXT];
        const struct ex_value *v = c->in[k];
        bool fits = v->rank == first->rank;
        for (unsigned i = 0; fits && i < v->rank; i++)
            fits = i == axis || v->shape[i] == first->shape[i];
        if (!fits)
            return ex_fail(c, "shapes %s and %s cannot be joined along axis %u",
                           executor_shape_text(first->rank, first->shape, x),
                           executor_shape_text(v->rank, v->shape, y), axis);
        shape[axis] += v->shape[axis];
    }
    TRY(ex_alloc(c, c->n->dt, first->rank, shape));
    size_t outer = product(shape, 0, axis), inner = product(shape, axis + 1, first->rank);
    size_t size = ex_size(c->n->dt), row = (size_t)shape[axis] * inner * size, at = 0;
    for (unsigned k = 0; k < n; k++) {
        const void *data = c->in[k]->data;
        void *owned = NULL;
        size_t part = (size_t)c->in[k]->shape[axis] * inner * size;
        if (dtype_is_computable(c->n->dt))
            TRY(ex_widened(c, k, dtype_compute(c->n->dt), &data, &owned));
        for (size_t i = 0; i < outer && part > 0; i++)
            memcpy((char *)c->out->data + i * row + at, (const char *)data + i * part, part);
        at += part;
        free(owned);
    }
    return ST_OK;
}

enum status ex_slice(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK];
    unsigned axis = 0;
    TRY(find_axis(c, x->rank, &axis));
    double length = (double)x->shape[axis], start = c->n->node->numbers[NUM_START],
           stop = c->n->node->numbers[NUM_STOP];
    start += start < 0 ? length : 0;
    stop += stop < 0 ? length : 0;
    if (start < 0 || stop > length || start > stop)
        return ex_fail(c, "from %.0f to %.0f of %.0f", start, stop, length);
    memcpy(shape, x->shape, sizeof shape);
    shape[axis] = (uint64_t)(stop - start);
    TRY(ex_alloc(c, c->n->dt, x->rank, shape));
    size_t outer = product(shape, 0, axis), inner = product(shape, axis + 1, x->rank);
    size_t unit = inner * ex_size(c->n->dt);
    size_t part = (size_t)shape[axis] * unit, row = (size_t)x->shape[axis] * unit;
    for (size_t i = 0; i < outer && part > 0; i++)
        memcpy((char *)c->out->data + i * part,
               (const char *)x->data + i * row + (size_t)start * unit, part);
    c->out->strided = x->strided || (shape[axis] != x->shape[axis] && outer > 1);
    return ST_OK;
}

/* dims as written: 0 keeps the axis of the input, one -1 takes what is left. */
enum status ex_reshape(const struct ex_call *c)
{
    const struct graph_node *node = c->n->node;
    const struct ex_value *x = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK] = {0}, known = 1, given = 1, left = 1;
    unsigned open = node->n_dims;
    char text[EXECUTOR_SHAPE_TEXT];
    executor_shape_text(x->rank, x->shape, text);
    for (unsigned i = 0; i < node->n_dims; i++) {
        if (node->dims[i] == -1 && open < node->n_dims)
            return ex_fail(c, "dims: a second -1");
        if (node->dims[i] == -1) {
            open = i;
            continue;
        }
        if (node->dims[i] == 0 && i >= x->rank)
            return ex_fail(c, "dims[%u]: 0 keeps an axis that shape %s does not have", i, text);
        shape[i] = node->dims[i] == 0 ? x->shape[i] : (uint64_t)node->dims[i];
        if (!mul_u64(known, shape[i], &known) ||
            (node->dims[i] > 0 && !mul_u64(given, shape[i], &given)))
            return ex_fail(c, "dims are too large");
    }
    if (open < node->n_dims) {
        /* Of the axes that are not kept, so that an empty batch has an answer too. */
        for (unsigned i = 0; i < x->rank; i++)
            if ((i >= node->n_dims || node->dims[i] != 0) && !mul_u64(left, x->shape[i], &left))
                return ex_fail(c, "shape %s is too large", text);
        if (left % given != 0)
            return ex_fail(c, "shape %s cannot fill dims[%u]", text, open);
        shape[open] = left / given;
        known = x->n;
    }
    if (known != x->n)
        return ex_fail(c, "shape %s has %zu elements, dims %llu", text, x->n,
                       (unsigned long long)known);
    TRY(ex_alloc(c, c->n->dt, node->n_dims, shape));
    memcpy(c->out->data, x->data, x->n * ex_size(x->dtype));
    return ST_OK;
}

enum status ex_transpose(const struct ex_call *c)
{
    const struct graph_node *node = c->n->node;
    const struct ex_value *x = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK] = {0}, index[EXECUTOR_MAX_RANK] = {0};
    size_t strides[EXECUTOR_MAX_RANK] = {0}, by[EXECUTOR_MAX_RANK] = {0}, at = 0;
    bool seen[EXECUTOR_MAX_RANK] = {false};
    bool good = node->n_dims == x->rank;
    for (unsigned i = 0; good && i < x->rank; i++) {
        good = node->dims[i] >= 0 && node->dims[i] < (int64_t)x->rank && !seen[node->dims[i]];
        if (good)
            seen[node->dims[i]] = true;
    }
    if (!good)
        return ex_fail(c, "dims: expected each of the %u axes once", x->rank);
    for (unsigned i = x->rank; i-- > 0;)
        strides[i] = i + 1 == x->rank ? 1 : strides[i + 1] * (size_t)x->shape[i + 1];
    for (unsigned i = 0; i < x->rank; i++) {
        shape[i] = x->shape[node->dims[i]];
        by[i] = strides[node->dims[i]];
    }
    TRY(ex_alloc(c, c->n->dt, x->rank, shape));
    size_t size = ex_size(c->n->dt);
    for (size_t n = 0; n < x->n; n++) {
        memcpy((char *)c->out->data + n * size, (const char *)x->data + at * size, size);
        for (unsigned i = x->rank; i-- > 0;) {
            at += by[i];
            if (++index[i] < shape[i])
                break;
            at -= by[i] * (size_t)shape[i];
            index[i] = 0;
        }
    }
    for (unsigned i = 0; i < x->rank; i++)
        c->out->strided = c->out->strided || node->dims[i] != (int64_t)i;
    return ST_OK;
}
