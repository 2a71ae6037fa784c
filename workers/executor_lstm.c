/* SPDX-License-Identifier: Apache-2.0 */
/* lstm: from gate pre-activations [.., tokens, 4 h], a state of zeros at the start.  Each step adds
 * h_before · recurrentᵀ to the step's row (one product over all sequences of the batch), then
 * c = f c + i tanh(g), h = o tanh(c).  Backward directions walk from the last token and put their
 * state at its own token. */
#include "workers/executor_internal.h"

#include <stdlib.h>
#include <string.h>

enum { GATE_INPUT, GATE_FORGET, GATE_CANDIDATE, GATE_OUTPUT, GATES };

/* Place of each gate in a row of pre-activations: ifco = ifgo, and iofc. */
static const size_t gate_places[3][GATES] = {{0, 1, 2, 3}, {0, 1, 2, 3}, {0, 2, 3, 1}};

struct lstm {
    const struct ex_call *c;
    enum dtype dt, compute;
    size_t batch, tokens, width, size; /* width: h */
    const void *pre, *recurrent;       /* pre [batch, tokens, 4 h] */
    size_t out_width, out_column;
    bool reverse;
    void *row;         /* [batch, 4 h] */
    void *gate[GATES]; /* [batch, h] */
    void *state, *hidden, *scratch;
};

static void *at(void *base, size_t index, size_t size)
{
    return (char *)base + index * size;
}

/* Columns [from, from + count) of rows to contiguous ones. */
static void copy_columns(const struct lstm *l, const void *src, size_t src_width, size_t from,
                         void *dst)
{
    for (size_t b = 0; b < l->batch; b++)
        memcpy(at(dst, b * l->width, l->size), (const char *)src + (b * src_width + from) * l->size,
               l->width * l->size);
}

static enum status activate(const struct lstm *l, enum elementwise fn, const void *x, void *y)
{
    static const double none[KERNELS_EW_PARAMS] = {0};
    return kernels_elementwise(ARITH_LIBRARY, fn, l->dt, none, l->batch * l->width, x, y,
                               l->c->err);
}

static enum status combine(const struct lstm *l, enum binary op, const void *a, const void *b,
                           void *y)
{
    return kernels_binary(ARITH_LIBRARY, op, l->dt, l->batch * l->width, a, b, y, l->c->err);
}

static enum status step(const struct lstm *l, size_t token)
{
    size_t rows = 4 * l->width;
    const size_t *places = gate_places[(size_t)l->c->n->node->numbers[NUM_CONVENTION]];
    for (size_t b = 0; b < l->batch; b++)
        memcpy(at(l->row, b * rows, l->size),
               (const char *)l->pre + (b * l->tokens + token) * rows * l->size, rows * l->size);
    struct kernels_gemm g = {.compute = l->compute,
                             .transpose_b = true,
                             .m = l->batch,
                             .n = rows,
                             .k = l->width,
                             .lda = l->width,
                             .ldb = l->width,
                             .ldc = rows,
                             .alpha = 1,
                             .beta = 1};
    TRY(kernels_gemm_run(l->c->e->opts.kernels, &g, l->hidden, l->recurrent, l->row, l->c->err));
    if (l->compute == DT_F32)
        kernels_round_f32(l->dt, l->row, l->batch * rows);
    for (int i = 0; i < GATES; i++) {
        copy_columns(l, l->row, rows, places[i] * l->width, l->gate[i]);
        TRY(activate(l, i == GATE_CANDIDATE ? EW_TANH : EW_SIGMOID, l->gate[i], l->gate[i]));
    }
    TRY(combine(l, BIN_MUL, l->gate[GATE_FORGET], l->state, l->state));
    TRY(combine(l, BIN_MUL, l->gate[GATE_INPUT], l->gate[GATE_CANDIDATE], l->scratch));
    TRY(combine(l, BIN_ADD, l->state, l->scratch, l->state));
    TRY(activate(l, EW_TANH, l->state, l->scratch));
    TRY(combine(l, BIN_MUL, l->gate[GATE_OUTPUT], l->scratch, l->hidden));
    for (size_t b = 0; b < l->batch; b++)
        memcpy(at(l->c->out->data, (b * l->tokens + token) * l->out_width + l->out_column, l->size),
               at(l->hidden, b * l->width, l->size), l->width * l->size);
    return ST_OK;
}

static enum status walk(struct lstm *l)
{
    size_t n = l->batch * l->width;
    void *memory = NULL;
    if (n == 0 || l->tokens == 0)
        return ST_OK;
    /* Seven arrays [batch, h] and one of four times that. */
    TRY(mem_calloc(n, 11 * l->size, &memory, l->c->err));
    for (int i = 0; i < GATES; i++)
        l->gate[i] = at(memory, (size_t)i * n, l->size);
    l->state = at(memory, 4 * n, l->size);
    l->hidden = at(memory, 5 * n, l->size);
    l->scratch = at(memory, 6 * n, l->size);
    l->row = at(memory, 7 * n, l->size);
    enum status st = ST_OK;
    for (size_t t = 0; t < l->tokens && st == ST_OK; t++)
        st = step(l, l->reverse ? l->tokens - 1 - t : t);
    free(memory);
    return st;
}

enum status ex_lstm(const struct ex_call *c)
{
    const struct graph_node *node = c->n->node;
    const struct ex_value *x = c->in[0];
    bool both = node->numbers[NUM_BIDIRECTIONAL] != 0;
    struct lstm l = {.c = c, .dt = c->n->dt, .compute = dtype_compute(c->n->dt)};
    uint64_t shape[EXECUTOR_MAX_RANK];
    enum status st = ST_OK;
    l.size = dtype_size(l.compute);
    l.width = (size_t)c->e->opts.model->graph.weights[node->weights[ROLE_RECURRENT]].cols;
    l.batch = ex_batch(x);
    l.tokens = ex_tokens(x);
    l.out_width = both ? 2 * l.width : l.width;
    for (unsigned k = 0; k < node->n_inputs; k++)
        if (c->in[k]->rank < 2 || c->in[k]->rank != x->rank || ex_width(c->in[k]) != 4 * l.width ||
            memcmp(c->in[k]->shape, x->shape, x->rank * sizeof *shape) != 0)
            return ex_fail(c, "pre-activations of %zu columns, expected tokens of 4 x %zu",
                           ex_width(c->in[k]), l.width);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->rank - 1] = l.out_width;
    TRY(ex_alloc(c, l.dt, x->rank, shape));
    for (unsigned k = 0; k < node->n_inputs && st == ST_OK; k++) {
        void *owned = NULL;
        l.reverse = k == 1 || node->numbers[NUM_REVERSE] != 0;
        l.recurrent = k == 1 ? c->n->bias : c->n->weight;
        l.out_column = k * l.width;
        st = ex_widened(c, k, l.compute, &l.pre, &owned);
        if (st == ST_OK)
            st = walk(&l);
        free(owned);
    }
    return st;
}
