/* SPDX-License-Identifier: Apache-2.0 */
/* Opening an enclosing model and running its nodes in order. */
#include "workers/executor_internal.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- arrays ---------------------------------------------------------------------------------- */

void executor_array_free(struct executor_array *a)
{
    free(a->data);
    *a = (struct executor_array){.dtype = DT_UNKNOWN};
}

uint64_t executor_array_count(const struct executor_array *a)
{
    uint64_t n = 1;
    for (unsigned i = 0; i < a->rank && i < EXECUTOR_MAX_RANK; i++)
        if (a->shape[i] == 0)
            return 0;
    for (unsigned i = 0; i < a->rank && i < EXECUTOR_MAX_RANK; i++)
        if (!mul_u64(n, a->shape[i], &n))
            return UINT64_MAX;
    return n;
}

const char *executor_shape_text(unsigned rank, const uint64_t *shape, char buf[EXECUTOR_SHAPE_TEXT])
{
    size_t at = 0;
    buf[at++] = '(';
    for (unsigned i = 0; i < rank && at + 24 < EXECUTOR_SHAPE_TEXT; i++)
        at += (size_t)snprintf(buf + at, EXECUTOR_SHAPE_TEXT - at, "%s%llu", i == 0 ? "" : ", ",
                               (unsigned long long)shape[i]);
    (void)snprintf(buf + at, EXECUTOR_SHAPE_TEXT - at, ")");
    return buf;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Node under preparation. */
struct opening {
    struct executor *e;
    struct ex_node *n;
    struct err *err;
};

static const char *where_of(const struct graph_node *node)
{
    return node->where != NULL ? node->where : node->name;
}

static const struct graph_weight *weight_of(const struct opening *o, enum graph_role role)
{
    int32_t i = o->n->node->weights[role];
    return i < 0 ? NULL : &o->e->opts.model->graph.weights[i];
}

static enum dtype input_dtype(const struct opening *o, unsigned k)
{
    return o->e->nodes[o->n->node->inputs[k]].dt;
}

/* A weight's values in a compute dtype. */
static enum status load(const struct opening *o, enum graph_role role, enum dtype compute,
                        void **out)
{
    const struct graph_weight *w = weight_of(o, role);
    if (w == NULL)
        return ST_OK;
    const void *stored = o->e->opts.weights[o->n->node->weights[role]];
    uint64_t elements = 0;
    size_t count = 0;
    if (stored == NULL)
        return err_set(o->err, ST_USAGE, "%s: tensor %s was not given", w->where, w->tensor);
    if (!mul_u64(w->rows, w->cols, &elements) || !u64_to_size(elements, &count))
        return err_set(o->err, ST_USAGE, "%s: tensor %s is too large", w->where, w->tensor);
    TRY(mem_alloc(count, dtype_size(compute), out, o->err));
    stored_widen(w->dtype, stored, count, compute, *out);
    return ST_OK;
}

static enum status open_embedding(const struct opening *o)
{
    const struct graph_weight *w = weight_of(o, ROLE_WEIGHT);
    if (w->tensor_rank != 2)
        return err_set(o->err, ST_SPEC, "%s: tensor %s has rank %u, expected [vocabulary, width]",
                       w->where, w->tensor, w->tensor_rank);
    o->n->table = o->e->opts.weights[o->n->node->weights[ROLE_WEIGHT]];
    if (o->n->table == NULL)
        return err_set(o->err, ST_USAGE, "%s: tensor %s was not given", w->where, w->tensor);
    o->n->dt = w->dtype;
    return ST_OK;
}

static enum status open_lookup(const struct opening *o)
{
    static const enum dtype dtypes[] = {[TOKENTAB_F64] = DT_F64,
                                        [TOKENTAB_F32] = DT_F32,
                                        [TOKENTAB_F16] = DT_F16,
                                        [TOKENTAB_BF16] = DT_BF16};
    const struct graph_node *node = o->n->node;
    const struct executor_opts *opts = &o->e->opts;
    struct tokentab_output_info info;
    for (size_t i = 0; i < opts->n_recipes; i++)
        if (strcmp(opts->recipes[i].name, node->texts[TEXT_RECIPE]) == 0)
            o->n->recipe = opts->recipes[i].recipe;
    if (o->n->recipe == NULL)
        return err_set(o->err, ST_SPEC, "%s.recipe: no recipe %s is open", where_of(node),
                       node->texts[TEXT_RECIPE]);
    int output = tokentab_output_find(o->n->recipe, node->texts[TEXT_OUTPUT]);
    if (output < 0 || tokentab_output(o->n->recipe, (size_t)output, &info) != TOKENTAB_OK)
        return err_set(o->err, ST_SPEC, "%s.output: recipe %s has no output %s", where_of(node),
                       node->texts[TEXT_RECIPE], node->texts[TEXT_OUTPUT]);
    o->n->recipe_output = (size_t)output;
    o->n->width = info.width;
    o->n->dt = dtypes[info.dtype];
    return ST_OK;
}

static enum status open_linear(const struct opening *o)
{
    const struct graph_weight *w = weight_of(o, ROLE_WEIGHT), *bias = weight_of(o, ROLE_BIAS);
    if (w->tensor_rank != 2 || (bias != NULL && (bias->tensor_rank != 1 || bias->rows != w->rows)))
        return err_set(o->err, ST_SPEC,
                       "%s: tensor %s: expected [out, in], and a bias of the same out", w->where,
                       w->tensor);
    enum dtype compute = dtype_compute(o->n->dt);
    void *values = NULL, *bias_values = NULL;
    enum status st = load(o, ROLE_WEIGHT, compute, &values);
    if (st == ST_OK)
        st = load(o, ROLE_BIAS, compute, &bias_values);
    if (st == ST_OK)
        st = kernels_linear_open(o->e->opts.kernels, ARITH_LIBRARY, o->n->dt, (size_t)w->rows,
                                 (size_t)w->cols, values, bias_values, &o->n->linear, o->err);
    free(values);
    free(bias_values);
    return st;
}

static enum status check_moe(const struct opening *o)
{
    const struct graph_weight *slope = weight_of(o, ROLE_WEIGHT), *offset = weight_of(o, ROLE_BIAS);
    double experts = o->n->node->numbers[NUM_EXPERTS];
    if (slope->tensor_rank != 2 || (double)slope->rows != experts ||
        (offset != NULL && (offset->rows != slope->rows || offset->cols != slope->cols)))
        return err_set(o->err, ST_SPEC, "%s: slope and offset: expected [%.0f, width] both",
                       where_of(o->n->node), experts);
    return ST_OK;
}

static enum status check_lstm(const struct opening *o)
{
    for (int role = ROLE_RECURRENT; role <= ROLE_EXTRA; role++) {
        const struct graph_weight *w = weight_of(o, (enum graph_role)role);
        if (w != NULL && (w->tensor_rank != 2 || w->rows != 4 * w->cols))
            return err_set(o->err, ST_SPEC,
                           "%s: tensor %s is used as [%llu, %llu], expected [4 h, h] (stored the "
                           "other way: \"orientation\": \"in_out\")",
                           w->where, w->tensor, (unsigned long long)w->rows,
                           (unsigned long long)w->cols);
    }
    const struct graph_weight *f = weight_of(o, ROLE_RECURRENT), *b = weight_of(o, ROLE_EXTRA);
    if (b != NULL && b->cols != f->cols)
        return err_set(o->err, ST_SPEC, "%s: weight and weight_backward have different widths",
                       where_of(o->n->node));
    return ST_OK;
}

static bool is_float(enum dtype dt)
{
    return dtype_is_computable(dt);
}

/* Which inputs of an op may be something else than a floating-point value. */
static bool input_fits(const struct graph_node *node, unsigned k, enum dtype dt)
{
    switch (node->op) {
    case OP_EMBEDDING:
    case OP_LOOKUP:
        return dt == DT_I64;
    case OP_ROPE:
    case OP_ABSOLUTE_POSITION:
        return k == 1 ? dt == DT_I64 : is_float(dt);
    case OP_MEAN_TOKENS:
    case OP_SUM_TOKENS:
    case OP_MAX_TOKENS:
        return k == 1 || is_float(dt);
    case OP_MOE:
        return k == 2 || is_float(dt);
    case OP_SOFTMAX:
        return is_float(dt) || (k == 1 && dt == DT_BOOL);
    case OP_ATTENTION:
        return is_float(dt) || (k == 3 && dt == DT_BOOL);
    case OP_CONCAT:
    case OP_SLICE:
    case OP_RESHAPE:
    case OP_TRANSPOSE:
        return true;
    default:
        return is_float(dt);
    }
}

static enum status check_inputs(const struct opening *o)
{
    const struct graph_node *node = o->n->node;
    for (unsigned k = 0; k < node->n_inputs; k++) {
        enum dtype dt = input_dtype(o, k);
        const struct graph_node *nodes = o->e->opts.model->graph.nodes;
        const struct graph_node *in = &nodes[node->inputs[k]];
        enum dtype first = input_dtype(o, 0);
        if (node->op == OP_CONCAT && dt != first && !(is_float(dt) && is_float(first)))
            return err_set(o->err, ST_STRUCTURE, "%s: concat reads %s (%s) beside %s (%s)",
                           where_of(node), in->name, dtype_name(dt), nodes[node->inputs[0]].name,
                           dtype_name(first));
        if (input_fits(node, k, dt))
            continue;
        return err_set(o->err, ST_STRUCTURE, "%s: %s reads %s (%s), which is not a value it takes",
                       where_of(node), graph_op(node->op)->name, in->name, dtype_name(dt));
    }
    return ST_OK;
}

/* Dtype of a result: that of its values and weights together.  Masks and positions do not count. */
static enum dtype result_dtype(const struct opening *o)
{
    const struct graph_node *node = o->n->node;
    enum dtype dt = input_dtype(o, 0);
    unsigned values = 1;
    if (node->op == OP_TOP_K || node->op == OP_ARGMAX)
        return DT_I64;
    if (!is_float(dt))
        return dt;
    if (node->op == OP_ADD || node->op == OP_SUB || node->op == OP_MUL || node->op == OP_MATMUL ||
        node->op == OP_CONCAT || node->op == OP_LSTM)
        values = node->n_inputs;
    if (node->op == OP_ATTENTION)
        values = 3;
    if (node->op == OP_MOE)
        values = 2;
    for (unsigned k = 1; k < values; k++)
        dt = dtype_promote(dt, input_dtype(o, k));
    for (int role = 0; role < ROLE_COUNT; role++)
        if (weight_of(o, (enum graph_role)role) != NULL)
            dt = dtype_promote(dt, weight_of(o, (enum graph_role)role)->dtype);
    return dt;
}

static enum status open_node(const struct opening *o)
{
    const struct graph_node *node = o->n->node;
    if (node->op == OP_INPUT)
        return ST_OK;
    TRY(check_inputs(o));
    if (node->op == OP_EMBEDDING)
        return open_embedding(o);
    if (node->op == OP_LOOKUP)
        return open_lookup(o);
    o->n->dt = result_dtype(o);
    enum dtype compute = dtype_compute(o->n->dt);
    switch (node->op) {
    case OP_LINEAR:
        return open_linear(o);
    case OP_MOE:
        TRY(check_moe(o));
        break;
    case OP_LSTM:
        TRY(check_lstm(o));
        TRY(load(o, ROLE_RECURRENT, compute, &o->n->weight));
        return load(o, ROLE_EXTRA, compute, &o->n->bias);
    case OP_CONV1D:
    case OP_BATCH_NORM:
        return err_set(o->err, ST_STRUCTURE, "%s: %s cannot be run: it is known by name alone",
                       where_of(node), graph_op(node->op)->name);
    case OP_ADD:
    case OP_SUB:
    case OP_MUL:
    case OP_SOFTMAX:
        return ST_OK;
    default:
        if (graph_op(node->op)->locality == LOCAL_ROW && node->op != OP_TOP_K &&
            node->op != OP_TOP_K_VALUES && node->op != OP_ARGMAX) {
            o->n->row.node = node;
            TRY(ev_node_prepare(&o->n->row, o->err));
        }
    }
    TRY(load(o, ROLE_WEIGHT, compute, &o->n->weight));
    return load(o, ROLE_BIAS, compute, &o->n->bias);
}

static void mark_live(struct executor *e)
{
    const struct graph_model *m = e->opts.model;
    for (size_t i = 0; i < m->n_outputs; i++) {
        e->nodes[m->outputs[i].node].live = true;
        e->nodes[m->outputs[i].node].last_use = SIZE_MAX;
    }
    for (size_t i = e->n_nodes; i-- > 0;) {
        const struct graph_node *node = e->nodes[i].node;
        for (unsigned k = 0; e->nodes[i].live && k < node->n_inputs; k++) {
            struct ex_node *in = &e->nodes[node->inputs[k]];
            in->live = true;
            if (in->last_use < i)
                in->last_use = i;
        }
    }
}

static void open_inputs(struct executor *e)
{
    const struct graph_model *m = e->opts.model;
    for (size_t i = 0; i < m->n_inputs; i++) {
        const struct graph_model_input *in = &m->inputs[i];
        bool whole = in->kind == INPUT_TOKEN_IDS || in->kind == INPUT_INTEGERS;
        e->nodes[in->node].dt = whole ? DT_I64 : in->dtype;
    }
}

enum status executor_open(const struct executor_opts *opts, struct executor **out, struct err *err)
{
    void *memory = NULL;
    *out = NULL;
    TRY(mem_calloc(1, sizeof(struct executor), &memory, err));
    struct executor *e = memory;
    e->opts = *opts;
    size_t n = opts->model->graph.n_nodes;
    enum status st = mem_calloc(n, sizeof *e->nodes, &memory, err);
    if (st == ST_OK) {
        e->nodes = memory;
        st = mem_calloc(n, sizeof *e->values, &memory, err);
    }
    if (st == ST_OK) {
        e->values = memory;
        e->n_nodes = n;
        for (size_t i = 0; i < n; i++)
            e->nodes[i].node = &opts->model->graph.nodes[i];
        mark_live(e);
        open_inputs(e);
    }
    for (size_t i = 0; st == ST_OK && i < n; i++) {
        const struct opening o = {e, &e->nodes[i], err};
        if (e->nodes[i].live)
            st = open_node(&o);
    }
    if (st != ST_OK)
        executor_close(&e);
    *out = e;
    return st;
}

void executor_close(struct executor **e)
{
    if (e == NULL || *e == NULL)
        return;
    for (size_t i = 0; i < (*e)->n_nodes; i++) {
        struct ex_node *n = &(*e)->nodes[i];
        kernels_linear_close(&n->linear);
        free(n->weight);
        free(n->bias);
        ex_value_free(&(*e)->values[i]);
    }
    free((*e)->nodes);
    free((*e)->values);
    free(*e);
    *e = NULL;
}

/* ---- running --------------------------------------------------------------------------------- */

static enum status run_node(const struct ex_call *c)
{
    switch (c->n->node->op) {
    case OP_EMBEDDING:
        return ex_embedding(c);
    case OP_LOOKUP:
        return ex_lookup(c);
    case OP_LINEAR:
        return ex_linear(c);
    case OP_ADD:
        return ex_binary(c, BIN_ADD);
    case OP_SUB:
        return ex_binary(c, BIN_SUB);
    case OP_MUL:
        return ex_binary(c, BIN_MUL);
    case OP_SOFTMAX:
        return ex_softmax(c);
    case OP_TOP_K:
    case OP_TOP_K_VALUES:
    case OP_ARGMAX:
        return ex_choice(c);
    case OP_MOE:
        return ex_moe(c);
    case OP_CONCAT:
        return ex_concat(c);
    case OP_SLICE:
        return ex_slice(c);
    case OP_RESHAPE:
        return ex_reshape(c);
    case OP_TRANSPOSE:
        return ex_transpose(c);
    case OP_MATMUL:
        return ex_matmul(c);
    case OP_ROPE:
        return ex_rope(c);
    case OP_ABSOLUTE_POSITION:
        return ex_position(c);
    case OP_ATTENTION:
        return ex_attention(c);
    case OP_LSTM:
        return ex_lstm(c);
    case OP_MEAN_TOKENS:
    case OP_SUM_TOKENS:
    case OP_MAX_TOKENS:
        return ex_pool(c);
    case OP_TOKEN_SHIFT:
        return ex_token_shift(c);
    default:
        return ex_row_op(c);
    }
}

static bool input_dtype_fits(const struct graph_model_input *in, enum dtype dt)
{
    if (in->kind == INPUT_TOKEN_IDS || in->kind == INPUT_INTEGERS)
        return dt == DT_I64 || dt == DT_I32;
    return dt == in->dtype;
}

static enum status take_input(const struct ex_call *c, const struct graph_model_input *in,
                              const struct executor_array *a)
{
    uint64_t count = executor_array_count(a);
    if (!input_dtype_fits(in, a->dtype))
        return err_set(c->err, ST_FORMAT, "input %s: expected %s, found %s", in->name,
                       dtype_name(in->dtype), dtype_name(a->dtype));
    /* Results add axes: the columns of a row, a head. */
    if (a->rank > EXECUTOR_MAX_RANK - 2 || count > SIZE_MAX / 16)
        return err_set(c->err, ST_FORMAT, "input %s: rank %u or its size is too large", in->name,
                       a->rank);
    TRY(ex_alloc(c, c->n->dt, a->rank, a->shape));
    if (a->dtype == DT_I32) {
        for (size_t i = 0; i < count; i++) {
            int32_t x;
            memcpy(&x, (const char *)a->data + i * sizeof x, sizeof x);
            ((int64_t *)c->out->data)[i] = x;
        }
    } else if (is_float(a->dtype)) {
        kernels_unpack(a->dtype, a->data, (size_t)count, c->out->data);
    } else if (count > 0) {
        memcpy(c->out->data, a->data, (size_t)count * ex_size(a->dtype));
    }
    return ST_OK;
}

static enum status give_output(const struct ex_value *v, struct executor_array *out,
                               struct err *err)
{
    *out = (struct executor_array){.dtype = v->dtype, .rank = v->rank};
    memcpy(out->shape, v->shape, sizeof out->shape);
    TRY(mem_alloc(v->n, dtype_size(v->dtype), &out->data, err));
    if (is_float(v->dtype))
        kernels_pack(v->dtype, v->data, v->n, out->data);
    else if (v->n > 0)
        memcpy(out->data, v->data, v->n * dtype_size(v->dtype));
    return ST_OK;
}

static enum status run_nodes(struct executor *e, const struct executor_array *inputs,
                             struct err *err)
{
    const struct graph_model *m = e->opts.model;
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ex_call c = {.e = e, .n = &e->nodes[i], .out = &e->values[i], .err = err};
        const struct graph_node *node = c.n->node;
        if (!c.n->live)
            continue;
        for (unsigned k = 0; k < node->n_inputs; k++)
            c.in[k] = &e->values[node->inputs[k]];
        if (node->op == OP_INPUT) {
            for (size_t j = 0; j < m->n_inputs; j++)
                if (m->inputs[j].node == i)
                    TRY(take_input(&c, &m->inputs[j], &inputs[j]));
            continue;
        }
        TRY(run_node(&c));
        for (unsigned k = 0; k < node->n_inputs; k++)
            if (e->nodes[node->inputs[k]].last_use == i)
                ex_value_free(&e->values[node->inputs[k]]);
    }
    return ST_OK;
}

enum status executor_run(struct executor *e, const struct executor_array *inputs,
                         struct executor_array *outputs, struct err *err)
{
    const struct graph_model *m = e->opts.model;
    for (size_t i = 0; i < m->n_outputs; i++)
        outputs[i] = (struct executor_array){.dtype = DT_UNKNOWN};
    enum status st = run_nodes(e, inputs, err);
    for (size_t i = 0; i < m->n_outputs && st == ST_OK; i++)
        st = give_output(&e->values[m->outputs[i].node], &outputs[i], err);
    for (size_t i = 0; i < m->n_outputs && st != ST_OK; i++)
        executor_array_free(&outputs[i]);
    for (size_t i = 0; i < e->n_nodes; i++)
        ex_value_free(&e->values[i]);
    return st;
}
