/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that keep rows: gathering, linear, norms, elementwise, selections, the mixture of experts. */
#include "workers/executor_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct graph_weight *weight_of(const struct ex_call *c, enum graph_role role)
{
    int32_t i = c->n->node->weights[role];
    return i < 0 ? NULL : &c->e->opts.model->graph.weights[i];
}

/* The name of the input that a gathering node reads, for messages about ids. */
static const char *ids_name(const struct ex_call *c)
{
    return c->e->opts.model->graph.nodes[c->n->node->inputs[0]].name;
}

/* Shape of the ids with the width behind it. */
static enum status alloc_rows(const struct ex_call *c, uint64_t width)
{
    const struct ex_value *ids = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK + 1];
    memcpy(shape, ids->shape, sizeof ids->shape);
    shape[ids->rank] = width;
    return ex_alloc(c, c->n->dt, ids->rank + 1, shape);
}

enum status ex_embedding(const struct ex_call *c)
{
    const struct graph_weight *w = weight_of(c, ROLE_WEIGHT);
    const int64_t *ids = c->in[0]->data;
    size_t width = (size_t)w->cols, stored = width * dtype_size(w->dtype);
    size_t held = width * ex_size(w->dtype);
    TRY(alloc_rows(c, w->cols));
    for (size_t i = 0; i < c->in[0]->n; i++) {
        if (ids[i] < 0 || (uint64_t)ids[i] >= w->rows)
            return err_set(c->err, ST_FORMAT,
                           "input %s: element %zu is id %lld, expected ids from 0 to below %llu",
                           ids_name(c), i, (long long)ids[i], (unsigned long long)w->rows);
        kernels_unpack(w->dtype, (const char *)c->n->table + (size_t)ids[i] * stored, width,
                       (char *)c->out->data + i * held);
    }
    return ST_OK;
}

/* A call with n ids takes the profile of n: the library chooses the route. */
enum status ex_lookup(const struct ex_call *c)
{
    const struct ex_value *in = c->in[0];
    int64_t shape[EXECUTOR_MAX_RANK];
    struct tokentab_error fault = {0};
    void *stored = NULL;
    TRY(alloc_rows(c, c->n->width));
    for (unsigned i = 0; i < in->rank; i++)
        shape[i] = (int64_t)in->shape[i];
    struct tokentab_ids ids = {
        .data = in->data, .type = TOKENTAB_I64, .rank = in->rank, .shape = shape};
    size_t size = c->out->n * dtype_size(c->n->dt);
    TRY(mem_alloc(size, 1, &stored, c->err));
    struct tokentab_request request = {
        .output = c->n->recipe_output, .data = stored, .capacity_bytes = size};
    enum tokentab_status st = tokentab_gather(c->n->recipe, &ids, -1, &request, 1, &fault);
    if (st == TOKENTAB_OK)
        kernels_unpack(c->n->dt, stored, c->out->n, c->out->data);
    free(stored);
    if (st == TOKENTAB_EBOUNDS)
        return err_set(c->err, ST_FORMAT, "input %s: %s", ids_name(c), fault.message);
    return st == TOKENTAB_OK ? ST_OK : err_set(c->err, lookup_status(st), "%s", fault.message);
}

enum status ex_linear(const struct ex_call *c)
{
    const struct graph_weight *w = weight_of(c, ROLE_WEIGHT);
    const struct ex_value *x = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK];
    const void *data;
    void *owned;
    if (x->rank == 0 || x->shape[x->rank - 1] != w->cols)
        return ex_fail(c, "columns %zu, expected %llu", ex_width(x), (unsigned long long)w->cols);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = w->rows;
    TRY(ex_alloc(c, c->n->dt, x->rank, shape));
    TRY(ex_widened(c, 0, dtype_compute(c->n->dt), &data, &owned));
    bool prefilled = x->rank == 2 || (x->rank == 3 && !x->strided);
    enum status st =
        kernels_linear_run(c->n->linear, ex_rows(x), data, prefilled ? BIAS_PREFILLED : BIAS_ADDED,
                           c->out->data, c->err);
    free(owned);
    return st;
}

/* A vector weight must have one entry a column (of a group). */
static enum status check_vectors(const struct ex_call *c, size_t width)
{
    const struct graph_weight *w = weight_of(c, ROLE_WEIGHT), *bias = weight_of(c, ROLE_BIAS);
    size_t groups = 1;
    if (c->n->node->op == OP_RMS_NORM || c->n->node->op == OP_FLOAT32_RMS_NORM)
        groups = (size_t)c->n->node->numbers[NUM_GROUPS];
    if (width % groups != 0)
        return ex_fail(c, "%zu groups do not divide %zu columns", groups, width);
    if ((w != NULL && (w->tensor_rank != 1 || w->rows != width / groups)) ||
        (bias != NULL && (bias->tensor_rank != 1 || bias->rows != width)))
        return ex_fail(c, "columns %zu, which the shape of its weights does not fit", width);
    return ST_OK;
}

enum status ex_row_op(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    const struct ev_mode mode = {.arithmetic = ARITH_LIBRARY};
    struct ev_node row = c->n->row;
    uint64_t shape[EXECUTOR_MAX_RANK];
    void *owned;
    size_t width = ex_width(x);
    TRY(check_vectors(c, width));
    row.dt = c->n->dt;
    row.compute = dtype_compute(row.dt);
    row.width = c->n->node->op == OP_L2_NORM ? 1 : width;
    row.row_bytes = row.width * dtype_size(row.compute);
    row.weight = c->n->weight;
    row.bias = c->n->bias;
    memcpy(shape, x->shape, sizeof shape);
    if (x->rank > 0)
        shape[x->rank - 1] = row.width;
    TRY(ex_alloc(c, row.dt, x->rank, shape));
    struct ev_inputs in = {.dt = x->dtype, .width = width};
    TRY(ex_widened(c, 0, row.compute, &in.x[0], &owned));
    enum status st = ST_OK;
    if (width > 0 && ex_rows(x) > 0)
        st = ev_node_run(&row, &mode, ex_rows(x), &in, c->out->data, c->err);
    else /* the norm of a row without columns is the least there is */
        for (size_t i = 0; i < c->out->n; i++)
            ex_put(row.dt, c->out->data, i, c->n->node->numbers[NUM_EPS]);
    free(owned);
    return st;
}

/* ---- two operands ---------------------------------------------------------------------------- */

static enum status broadcast_shape(const struct ex_call *c, const struct ex_value *a,
                                   const struct ex_value *b, unsigned *rank, uint64_t *shape)
{
    char x[EXECUTOR_SHAPE_TEXT], y[EXECUTOR_SHAPE_TEXT];
    *rank = a->rank > b->rank ? a->rank : b->rank;
    for (unsigned i = 0; i < *rank; i++) {
        uint64_t p = i < a->rank ? a->shape[a->rank - 1 - i] : 1;
        uint64_t q = i < b->rank ? b->shape[b->rank - 1 - i] : 1;
        if (p != q && p != 1 && q != 1)
            return ex_fail(c, "shapes %s and %s do not fit each other",
                           executor_shape_text(a->rank, a->shape, x),
                           executor_shape_text(b->rank, b->shape, y));
        shape[*rank - 1 - i] = p == 1 ? q : p;
    }
    return ST_OK;
}

/* Operand k in the shape of the result. */
static enum status operand(const struct ex_call *c, unsigned k, enum ex_reading reading,
                           const void **data, void **owned)
{
    const struct ex_value *v = c->in[k], *out = c->out;
    enum dtype compute = dtype_compute(out->dtype);
    bool same = v->rank == out->rank &&
                (v->rank == 0 || memcmp(v->shape, out->shape, v->rank * sizeof *v->shape) == 0);
    if (same && v->dtype != DT_BOOL)
        return ex_widened(c, k, compute, data, owned);
    TRY(mem_alloc(out->n, dtype_size(compute), owned, c->err));
    *data = *owned;
    enum status st = ex_expand(c, v, compute, reading, out->rank, out->shape, *owned);
    if (st != ST_OK) {
        free(*owned);
        *owned = NULL;
    }
    return st;
}

enum status ex_binary(const struct ex_call *c, enum binary op)
{
    uint64_t shape[EXECUTOR_MAX_RANK] = {0};
    unsigned rank = 0;
    const void *a = NULL, *b = NULL;
    void *owned_a = NULL, *owned_b = NULL;
    TRY(broadcast_shape(c, c->in[0], c->in[1], &rank, shape));
    TRY(ex_alloc(c, c->n->dt, rank, shape));
    enum status st = operand(c, 0, EX_NUMBER, &a, &owned_a);
    if (st == ST_OK)
        st = operand(c, 1, EX_NUMBER, &b, &owned_b);
    if (st == ST_OK)
        st = kernels_binary(ARITH_LIBRARY, op, c->n->dt, c->out->n, a, b, c->out->data, c->err);
    free(owned_a);
    free(owned_b);
    return st;
}

enum status ex_softmax(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    const void *mask = NULL;
    void *owned = NULL;
    TRY(ex_alloc(c, c->n->dt, x->rank, x->shape));
    memcpy(c->out->data, x->data, x->n * ex_size(x->dtype));
    enum status st = ST_OK;
    if (c->n->node->n_inputs == 2) {
        st = operand(c, 1, EX_ADDITIVE, &mask, &owned);
        if (st == ST_OK)
            st = kernels_binary(ARITH_LIBRARY, BIN_ADD, c->n->dt, x->n, c->out->data, mask,
                                c->out->data, c->err);
    }
    if (st == ST_OK && x->n > 0)
        st = kernels_softmax(ARITH_LIBRARY, c->n->dt, ex_rows(x), ex_width(x), c->out->data,
                             c->out->data, c->err);
    free(owned);
    return st;
}

/* ---- selections ------------------------------------------------------------------------------ */

/* Scratch of one row: its values as doubles and the columns chosen from it. */
struct choice {
    double *values;
    uint32_t *columns;
};

static enum status choice_alloc(const struct ex_call *c, size_t width, size_t k, struct choice *out)
{
    void *values = NULL, *columns = NULL;
    *out = (struct choice){NULL, NULL};
    if (k > width)
        return ex_fail(c, "k %zu, expected at most the columns %zu", k, width);
    TRY(mem_alloc(width, sizeof(double), &values, c->err));
    out->values = values;
    TRY(mem_alloc(k, sizeof(uint32_t), &columns, c->err));
    out->columns = columns;
    return ST_OK;
}

static void choice_free(struct choice *s)
{
    free(s->values);
    free(s->columns);
}

static void choose(const struct choice *s, const struct ex_value *x, size_t row, size_t k)
{
    size_t width = ex_width(x);
    for (size_t i = 0; i < width; i++)
        s->values[i] = ex_get(x, row * width + i);
    (void)decision_select(s->values, width, k, s->columns);
}

enum status ex_choice(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    const enum graph_op op = c->n->node->op;
    size_t k = op == OP_ARGMAX ? 1 : (size_t)c->n->node->numbers[NUM_K];
    uint64_t shape[EXECUTOR_MAX_RANK];
    struct choice s = {NULL, NULL};
    if (x->rank == 0)
        return ex_fail(c, "a single number, expected columns");
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = k;
    TRY(ex_alloc(c, c->n->dt, op == OP_ARGMAX ? x->rank - 1 : x->rank, shape));
    enum status st = choice_alloc(c, ex_width(x), k, &s);
    for (size_t row = 0; st == ST_OK && row < ex_rows(x); row++) {
        choose(&s, x, row, k);
        for (size_t i = 0; i < k; i++) {
            if (op == OP_TOP_K_VALUES)
                ex_put(c->n->dt, c->out->data, row * k + i, s.values[s.columns[i]]);
            else
                ((int64_t *)c->out->data)[row * k + i] = s.columns[i];
        }
    }
    choice_free(&s);
    return st;
}

/* sum_j p_j (value slope_j + offset_j), best expert first, each step rounded. */
static void mix(const struct ex_call *c, size_t width, size_t k, const uint32_t *experts,
                void *weights, double value, size_t row)
{
    const enum dtype dt = c->n->dt;
    const struct ex_value p = {.dtype = dt, .data = weights};
    const struct ex_value slope = {.dtype = dt, .data = c->n->weight};
    const struct ex_value offset = {.dtype = dt, .data = c->n->bias};
    for (size_t i = 0; i < width; i++) {
        double sum = 0;
        for (size_t j = 0; j < k; j++) {
            size_t at = experts[j] * width + i;
            double x = ex_round(dt, value * ex_get(&slope, at));
            if (c->n->bias != NULL)
                x = ex_round(dt, x + ex_get(&offset, at));
            sum = ex_round(dt, sum + ex_round(dt, ex_get(&p, experts[j]) * x));
        }
        ex_put(dt, c->out->data, row * width + i, sum);
    }
}

/* Softmax over the chosen experts alone: the others are masked. */
static enum status expert_weights(const struct ex_call *c, const struct choice *s, size_t n,
                                  size_t k, void *weights)
{
    for (size_t i = 0; i < n; i++)
        ex_put(c->n->dt, weights, i, -(double)INFINITY);
    for (size_t j = 0; j < k; j++)
        ex_put(c->n->dt, weights, s->columns[j], s->values[s->columns[j]]);
    return kernels_softmax(ARITH_LIBRARY, c->n->dt, 1, n, weights, weights, c->err);
}

enum status ex_moe(const struct ex_call *c)
{
    const struct ex_value *logits = c->in[0], *values = c->in[1];
    const struct graph_weight *slope = weight_of(c, ROLE_WEIGHT);
    const struct ex_value *mask = c->n->node->n_inputs == 3 ? c->in[2] : NULL;
    size_t k = (size_t)c->n->node->numbers[NUM_K], n = ex_width(logits), rows = ex_rows(logits);
    uint64_t shape[EXECUTOR_MAX_RANK];
    struct choice s = {NULL, NULL};
    void *weights = NULL;
    if (logits->rank == 0 || n != slope->rows)
        return ex_fail(c, "logits of %zu columns, expected %llu experts", n,
                       (unsigned long long)slope->rows);
    if (values->n != rows || (mask != NULL && mask->n != rows))
        return ex_fail(c, "%zu rows of logits, but %zu values", rows, values->n);
    memcpy(shape, logits->shape, sizeof shape);
    shape[logits->rank - 1] = slope->cols;
    TRY(ex_alloc(c, c->n->dt, logits->rank, shape));
    enum status st = choice_alloc(c, n, k, &s);
    if (st == ST_OK)
        st = mem_alloc(n, ex_size(c->n->dt), &weights, c->err);
    for (size_t row = 0; st == ST_OK && row < rows; row++) {
        choose(&s, logits, row, k);
        st = expert_weights(c, &s, n, k, weights);
        if (st == ST_OK)
            mix(c, (size_t)slope->cols, k, s.columns, weights, ex_get(values, row), row);
        for (size_t i = 0; mask != NULL && i < slope->cols; i++) {
            size_t at = row * (size_t)slope->cols + i;
            ex_put(c->n->dt, c->out->data, at, ex_get(c->out, at) * ex_get(mask, row));
        }
    }
    choice_free(&s);
    free(weights);
    return st;
}
