/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that mix tokens or depend on their position: products of activations, attention, rope,
 * positions, pools, shift. */
#include "workers/executor_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- products of activations ----------------------------------------------------------------- */

/* Offset in matrices of batch index `at` (of the result's batch axes) in an operand of fewer or
 * broadcast ones. */
static size_t batch_offset(const struct ex_value *v, const struct ex_value *out, size_t at)
{
    size_t offset = 0, step = 1;
    for (unsigned i = out->rank - 2; i-- > 0;) {
        size_t place = at % (size_t)out->shape[i];
        unsigned back = out->rank - i; /* this axis counted from the end */
        at /= (size_t)out->shape[i];
        if (back > v->rank)
            continue;
        uint64_t length = v->shape[v->rank - back];
        offset += length == 1 ? 0 : place * step;
        step *= (size_t)length;
    }
    return offset;
}

static enum status matmul_shape(const struct ex_call *c, bool transpose_b, uint64_t *shape,
                                unsigned *rank)
{
    const struct ex_value *a = c->in[0], *b = c->in[1];
    char x[EXECUTOR_SHAPE_TEXT], y[EXECUTOR_SHAPE_TEXT];
    bool fits = a->rank >= 2 && b->rank >= 2;
    *rank = a->rank > b->rank ? a->rank : b->rank;
    if (fits)
        fits = a->shape[a->rank - 1] == b->shape[b->rank - (transpose_b ? 1 : 2)];
    for (unsigned back = 3; fits && back <= *rank; back++) {
        uint64_t p = back <= a->rank ? a->shape[a->rank - back] : 1;
        uint64_t q = back <= b->rank ? b->shape[b->rank - back] : 1;
        fits = p == q || p == 1 || q == 1;
        shape[*rank - back] = p == 1 ? q : p;
    }
    if (!fits)
        return ex_fail(c, "shapes %s and %s%s", executor_shape_text(a->rank, a->shape, x),
                       executor_shape_text(b->rank, b->shape, y),
                       transpose_b ? " (transposed)" : "");
    shape[*rank - 2] = a->shape[a->rank - 2];
    shape[*rank - 1] = b->shape[b->rank - (transpose_b ? 2 : 1)];
    return ST_OK;
}

enum status ex_matmul(const struct ex_call *c)
{
    bool transpose_b = c->n->node->numbers[NUM_TRANSPOSE_B] != 0;
    uint64_t shape[EXECUTOR_MAX_RANK] = {0};
    unsigned rank = 0;
    const void *a = NULL, *b = NULL;
    void *owned_a = NULL, *owned_b = NULL;
    enum dtype compute = dtype_compute(c->n->dt);
    TRY(matmul_shape(c, transpose_b, shape, &rank));
    TRY(ex_alloc(c, c->n->dt, rank, shape));
    size_t k = ex_width(c->in[0]), size = dtype_size(compute);
    struct kernels_gemm g = {.compute = compute,
                             .transpose_b = transpose_b,
                             .m = (size_t)shape[rank - 2],
                             .n = (size_t)shape[rank - 1],
                             .k = k,
                             .alpha = 1};
    g.lda = k > 0 ? k : 1;
    g.ldb = transpose_b ? g.lda : g.n > 0 ? g.n : 1;
    g.ldc = g.n > 0 ? g.n : 1;
    enum status st = ex_widened(c, 0, compute, &a, &owned_a);
    if (st == ST_OK)
        st = ex_widened(c, 1, compute, &b, &owned_b);
    for (size_t i = 0; st == ST_OK && i < ex_batch(c->out); i++)
        st = kernels_gemm_run(c->e->opts.kernels, &g,
                              (const char *)a + batch_offset(c->in[0], c->out, i) * g.m * k * size,
                              (const char *)b + batch_offset(c->in[1], c->out, i) * g.n * k * size,
                              (char *)c->out->data + i * g.m * g.n * size, c->err);
    if (compute == DT_F32)
        kernels_round_f32(c->n->dt, c->out->data, c->out->n);
    free(owned_a);
    free(owned_b);
    return st;
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention {
    const struct ex_call *c;
    size_t heads, kv_heads, dim, value_dim, n_q, n_k, batch, size;
    enum dtype dt, compute;
    double scale[KERNELS_EW_PARAMS];
    const void *q, *k, *v;
    void *owned[3];
    void *scores; /* [n_q, n_k] */
    void *mask;   /* [batch, heads, n_q, n_k] or NULL */
};

static enum status attention_sizes(struct attention *a)
{
    const struct ex_call *c = a->c;
    const struct ex_value *q = c->in[0], *k = c->in[1], *v = c->in[2];
    const double *x = c->n->node->numbers;
    a->heads = (size_t)x[NUM_HEADS];
    a->kv_heads = x[NUM_KV_HEADS] == 0 ? a->heads : (size_t)x[NUM_KV_HEADS];
    a->dim = ex_width(q) / a->heads;
    a->value_dim = ex_width(v) / a->kv_heads;
    bool fits = q->rank >= 1 && q->rank == k->rank && k->rank == v->rank &&
                ex_width(q) == a->dim * a->heads && ex_width(k) == a->dim * a->kv_heads &&
                ex_width(v) == a->value_dim * a->kv_heads && ex_tokens(k) == ex_tokens(v);
    for (unsigned i = 0; fits && i + 2 < q->rank; i++)
        fits = q->shape[i] == k->shape[i] && k->shape[i] == v->shape[i];
    if (!fits || a->dim == 0) {
        char t[3][EXECUTOR_SHAPE_TEXT];
        return ex_fail(c, "q %s, k %s, v %s do not fit %zu heads of %zu kv heads",
                       executor_shape_text(q->rank, q->shape, t[0]),
                       executor_shape_text(k->rank, k->shape, t[1]),
                       executor_shape_text(v->rank, v->shape, t[2]), a->heads, a->kv_heads);
    }
    a->n_q = ex_tokens(q);
    a->n_k = ex_tokens(k);
    a->batch = ex_batch(q);
    a->scale[0] = x[NUM_SCALE] != 0 ? x[NUM_SCALE] : 1 / sqrt((double)a->dim);
    return ST_OK;
}

/* The additive mask at full size: batch axes, heads, queries, keys. */
static enum status attention_mask(struct attention *a)
{
    const struct ex_call *c = a->c;
    const struct ex_value *q = c->in[0];
    uint64_t shape[EXECUTOR_MAX_RANK + 2];
    unsigned rank = 0;
    size_t n = a->batch * a->heads;
    if (c->n->node->n_inputs < 4)
        return ST_OK;
    for (; rank + 2 < q->rank; rank++)
        shape[rank] = q->shape[rank];
    if (rank + 3 > EXECUTOR_MAX_RANK)
        return ex_fail(c, "too many axes for a mask");
    shape[rank++] = a->heads;
    shape[rank++] = a->n_q;
    shape[rank++] = a->n_k;
    if (!mul_size(n, a->n_q, &n) || !mul_size(n, a->n_k, &n))
        return ex_fail(c, "the mask is too large");
    TRY(mem_alloc(n, a->size, &a->mask, c->err));
    return ex_expand(c, c->in[3], a->compute, EX_ADDITIVE, rank, shape, a->mask);
}

/* Keys behind the query's own place get -inf; the last query sees all keys. */
static void mask_causal(const struct attention *a)
{
    for (size_t i = 0; i < a->n_q; i++)
        for (size_t j = i + a->n_k - (a->n_q < a->n_k ? a->n_q : a->n_k) + 1; j < a->n_k; j++)
            ex_put(a->dt, a->scores, i * a->n_k + j, -(double)INFINITY);
}

static void round_to_storage(const struct attention *a, void *data, size_t n)
{
    if (a->compute == DT_F32)
        kernels_round_f32(a->dt, data, n);
}

static enum status attention_head(const struct attention *a, size_t batch, size_t head)
{
    const struct ex_call *c = a->c;
    size_t kv = head / (a->heads / a->kv_heads), n = a->n_q * a->n_k, width = a->heads * a->dim;
    size_t out_width = a->heads * a->value_dim, kv_width = a->kv_heads * a->dim;
    size_t v_width = a->kv_heads * a->value_dim;
    struct kernels_gemm g = {.compute = a->compute,
                             .transpose_b = true,
                             .m = a->n_q,
                             .n = a->n_k,
                             .k = a->dim,
                             .lda = width,
                             .ldb = kv_width,
                             .ldc = a->n_k,
                             .alpha = 1};
    TRY(kernels_gemm_run(c->e->opts.kernels, &g,
                         (const char *)a->q + (batch * a->n_q * width + head * a->dim) * a->size,
                         (const char *)a->k + (batch * a->n_k * kv_width + kv * a->dim) * a->size,
                         a->scores, c->err));
    round_to_storage(a, a->scores, n);
    TRY(kernels_elementwise(ARITH_LIBRARY, EW_SCALE, a->dt, a->scale, n, a->scores, a->scores,
                            c->err));
    if (a->mask != NULL)
        TRY(kernels_binary(ARITH_LIBRARY, BIN_ADD, a->dt, n, a->scores,
                           (const char *)a->mask + (batch * a->heads + head) * n * a->size,
                           a->scores, c->err));
    if (c->n->node->numbers[NUM_CAUSAL] != 0)
        mask_causal(a);
    TRY(kernels_softmax(ARITH_LIBRARY, a->dt, a->n_q, a->n_k, a->scores, a->scores, c->err));
    g = (struct kernels_gemm){.compute = a->compute,
                              .m = a->n_q,
                              .n = a->value_dim,
                              .k = a->n_k,
                              .lda = a->n_k,
                              .ldb = v_width,
                              .ldc = out_width,
                              .alpha = 1};
    return kernels_gemm_run(
        c->e->opts.kernels, &g, a->scores,
        (const char *)a->v + (batch * a->n_k * v_width + kv * a->value_dim) * a->size,
        (char *)c->out->data + (batch * a->n_q * out_width + head * a->value_dim) * a->size,
        c->err);
}

enum status ex_attention(const struct ex_call *c)
{
    struct attention a = {.c = c, .dt = c->n->dt, .compute = dtype_compute(c->n->dt)};
    uint64_t shape[EXECUTOR_MAX_RANK];
    const void **parts[3] = {&a.q, &a.k, &a.v};
    size_t n = 0;
    a.size = dtype_size(a.compute);
    TRY(attention_sizes(&a));
    memcpy(shape, c->in[0]->shape, sizeof shape);
    shape[c->in[0]->rank - 1] = a.heads * a.value_dim;
    TRY(ex_alloc(c, a.dt, c->in[0]->rank, shape));
    if (!mul_size(a.n_q, a.n_k, &n))
        return ex_fail(c, "too many tokens");
    enum status st = mem_alloc(n, a.size, &a.scores, c->err);
    for (unsigned i = 0; i < 3 && st == ST_OK; i++)
        st = ex_widened(c, i, a.compute, parts[i], &a.owned[i]);
    if (st == ST_OK)
        st = attention_mask(&a);
    if (a.n_k == 0 && c->out->n > 0) /* no key: a sum of nothing */
        memset(c->out->data, 0, c->out->n * a.size);
    for (size_t i = 0; st == ST_OK && n > 0 && c->out->n > 0 && i < a.batch * a.heads; i++)
        st = attention_head(&a, i / a.heads, i % a.heads);
    round_to_storage(&a, c->out->data, c->out->n);
    free(a.scores);
    free(a.mask);
    for (unsigned i = 0; i < 3; i++)
        free(a.owned[i]);
    return st;
}

/* ---- positions ------------------------------------------------------------------------------- */

/* Positions of the tokens: the optional second input, [tokens] or one a token, else 0, 1, ... */
static enum status position_check(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    if (x->rank == 0)
        return ex_fail(c, "a single number, expected columns");
    if (c->n->node->n_inputs == 2 && c->in[1]->n != ex_tokens(x) && c->in[1]->n != ex_rows(x))
        return ex_fail(c, "%zu positions for %zu tokens", c->in[1]->n, ex_tokens(x));
    return ST_OK;
}

static int64_t position_of(const struct ex_call *c, size_t row)
{
    size_t n = ex_tokens(c->in[0]);
    if (c->n->node->n_inputs < 2)
        return (int64_t)(row % n);
    return ((const int64_t *)c->in[1]->data)[c->in[1]->n == n ? row % n : row];
}

/* Rotate the pairs of one head.  Frequencies and angles are float32, as Llama's code forms them. */
static void rotate_head(const struct ex_call *c, size_t at, int64_t position, size_t rotary)
{
    const enum dtype dt = c->n->dt;
    size_t half = rotary / 2;
    bool interleaved = c->n->node->numbers[NUM_CONVENTION] != 0;
    for (size_t i = 0; i < half; i++) {
        double power = (double)(float)(-(double)i / (double)half);
        float inverse = (float)pow(c->n->node->numbers[NUM_THETA], power);
        double angle = (double)((float)position * inverse);
        double cosine = ex_round(dt, (double)(float)cos(angle));
        double sine = ex_round(dt, (double)(float)sin(angle));
        size_t p = at + (interleaved ? 2 * i : i), q = at + (interleaved ? 2 * i + 1 : i + half);
        double x = ex_get(c->in[0], p), y = ex_get(c->in[0], q);
        ex_put(dt, c->out->data, p, ex_round(dt, x * cosine) - ex_round(dt, y * sine));
        ex_put(dt, c->out->data, q, ex_round(dt, y * cosine) + ex_round(dt, x * sine));
    }
}

enum status ex_rope(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    const double *numbers = c->n->node->numbers;
    size_t dim = (size_t)numbers[NUM_HEAD_DIM], width = ex_width(x);
    size_t rotary = numbers[NUM_ROTARY_DIM] == 0 ? dim : (size_t)numbers[NUM_ROTARY_DIM];
    TRY(position_check(c));
    if (width % dim != 0)
        return ex_fail(c, "columns %zu, expected a multiple of head_dim %zu", width, dim);
    TRY(ex_alloc(c, c->n->dt, x->rank, x->shape));
    memcpy(c->out->data, x->data, x->n * ex_size(x->dtype));
    for (size_t row = 0; row < ex_rows(x) && x->n > 0; row++)
        for (size_t head = 0; head < width / dim; head++)
            rotate_head(c, row * width + head * dim, position_of(c, row), rotary);
    return ST_OK;
}

enum status ex_position(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    const struct graph_weight *w =
        &c->e->opts.model->graph.weights[c->n->node->weights[ROLE_WEIGHT]];
    const struct ex_value table = {.dtype = c->n->dt, .data = c->n->weight};
    size_t width = ex_width(x);
    TRY(position_check(c));
    if (w->tensor_rank != 2 || w->cols != width)
        return ex_fail(c, "columns %zu, the positions have %llu", width,
                       (unsigned long long)w->cols);
    TRY(ex_alloc(c, c->n->dt, x->rank, x->shape));
    for (size_t row = 0; row < ex_rows(x) && x->n > 0; row++) {
        int64_t position = position_of(c, row);
        if (position < 0 || (uint64_t)position >= w->rows)
            return ex_fail(c, "position %lld, expected below %llu", (long long)position,
                           (unsigned long long)w->rows);
        for (size_t i = 0; i < width; i++)
            ex_put(c->n->dt, c->out->data, row * width + i,
                   ex_get(x, row * width + i) + ex_get(&table, (size_t)position * width + i));
    }
    return ST_OK;
}

/* ---- pools and shift ------------------------------------------------------------------------- */

static double pool_column(const struct ex_call *c, const double *weight, size_t batch,
                          size_t column)
{
    const struct ex_value *x = c->in[0];
    const enum graph_op op = c->n->node->op;
    size_t n = ex_tokens(x), width = ex_width(x);
    double sum = 0, total = 0, largest = -(double)INFINITY;
    for (size_t i = 0; i < n; i++) {
        double w = weight == NULL ? 1 : weight[batch * n + i];
        double value = ex_get(x, (batch * n + i) * width + column);
        if (w == 0)
            continue; /* padding may hold anything, infinities too */
        sum += w * value;
        total += w;
        if (value > largest || isnan(value))
            largest = value;
    }
    if (op == OP_MAX_TOKENS)
        return largest;
    return op == OP_SUM_TOKENS ? sum : sum / total;
}

/* Sums are formed in double and rounded once.  No token: sum 0, mean NaN, max -inf. */
enum status ex_pool(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    const struct ex_value *mask = c->n->node->n_inputs == 2 ? c->in[1] : NULL;
    uint64_t shape[EXECUTOR_MAX_RANK] = {0};
    void *memory = NULL;
    if (x->rank < 2)
        return ex_fail(c, "%u axes, expected tokens and columns", x->rank);
    if (mask != NULL && mask->n != ex_rows(x))
        return ex_fail(c, "a mask of %zu elements for %zu tokens", mask->n, ex_rows(x));
    memcpy(shape, x->shape, (x->rank - 2) * sizeof *shape);
    shape[x->rank - 2] = ex_width(x);
    TRY(ex_alloc(c, c->n->dt, x->rank - 1, shape));
    if (mask != NULL) {
        TRY(mem_alloc(mask->n, sizeof(double), &memory, c->err));
        for (size_t i = 0; i < mask->n; i++)
            ((double *)memory)[i] = ex_get(mask, i);
    }
    for (size_t i = 0; i < c->out->n; i++)
        ex_put(c->n->dt, c->out->data, i, pool_column(c, memory, i / ex_width(x), i % ex_width(x)));
    free(memory);
    return ST_OK;
}

/* Each token takes the row before it, the first zeros. */
enum status ex_token_shift(const struct ex_call *c)
{
    const struct ex_value *x = c->in[0];
    if (x->rank < 2)
        return ex_fail(c, "%u axes, expected tokens and columns", x->rank);
    TRY(ex_alloc(c, c->n->dt, x->rank, x->shape));
    size_t n = ex_tokens(x), row = ex_width(x) * ex_size(x->dtype);
    for (size_t b = 0; b < ex_batch(x) && x->n > 0; b++) {
        char *to = (char *)c->out->data + b * n * row;
        memset(to, 0, row);
        memcpy(to + row, (const char *)x->data + b * n * row, (n - 1) * row);
    }
    return ST_OK;
}
