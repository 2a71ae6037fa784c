/* SPDX-License-Identifier: Apache-2.0 */
#include "workers/workers_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Rows that evaluator_load passes through the nodes at a time: small enough to stay in cache. */
enum { LOAD_ROWS = 256, ALIGNMENT = 64 };

/* One region of scratch rows that nodes take turns in. */
struct ev_slot {
    size_t row_bytes;
    uint32_t occupant; /* node, while planning */
    bool busy;
    char *data;
};

struct ev_arena {
    struct ev_slot *slots; /* owned; at most one a node and two for conversions */
    size_t n_slots;
    void *memory; /* owned */
    size_t rows;
};

struct ev_linear {
    int32_t weight, bias;
    enum dtype dt;
    struct kernels_linear *linear;
};

struct evaluator {
    struct evaluator_opts opts; /* weights not kept */
    struct ev_mode mode;
    struct ev_node *nodes;
    size_t n_nodes;
    struct ev_linear *linears; /* shared by nodes that read the same tensors */
    size_t n_linears;
    struct ev_arena load, run;
    int convert[2]; /* slots of both arenas for inputs widened to double, or EV_NO_SLOT */
    bool has_linear, has_bias;
};

/* ---- stored elements ----------------------------------------------------------------------- */

void stored_widen(enum dtype src, const void *stored, size_t n, enum dtype compute, void *dst)
{
    enum { BLOCK = 1024 };
    if (dtype_compute(src) == compute) {
        kernels_unpack(src, stored, n, dst);
        return;
    }
    float block[BLOCK];
    for (size_t first = 0; first < n; first += BLOCK) {
        const size_t count = n - first < BLOCK ? n - first : BLOCK;
        kernels_unpack(src, (const char *)stored + first * dtype_size(src), count, block);
        for (size_t i = 0; i < count; i++)
            ((double *)dst)[first + i] = (double)block[i];
    }
}

static void widen(const float *x, size_t n, double *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = (double)x[i];
}

/* ---- planning ------------------------------------------------------------------------------ */

static void mark_needed(struct evaluator *e)
{
    for (size_t i = 0; i < e->opts.n_outputs; i++) {
        struct ev_node *n = &e->nodes[e->opts.outputs[i].node];
        n->needed = true;
        n->output = true;
    }
    for (size_t i = e->n_nodes; i-- > 0;) {
        if (!e->nodes[i].needed)
            continue;
        const struct graph_node *node = e->nodes[i].node;
        for (unsigned j = 0; j < node->n_inputs; j++)
            e->nodes[node->inputs[j]].needed = true;
    }
}

static enum status plan_node(struct evaluator *e, size_t i, struct err *err)
{
    struct ev_node *n = &e->nodes[i];
    const struct graph_node *node = n->node;
    TRY(ev_node_prepare(n, err));
    if (node->op == OP_INPUT)
        return ST_OK;
    n->dt = e->mode.exact ? DT_F64 : node->dtype;
    n->compute = dtype_compute(n->dt);
    if (!dtype_is_computable(n->dt) || !u64_to_size(node->width, &n->width) ||
        !mul_size(n->width, dtype_size(n->compute), &n->row_bytes))
        return err_set(err, ST_USAGE, "%s: node is not resolved", node->name);
    n->dependent = node->op == OP_LINEAR;
    for (unsigned j = 0; j < node->n_inputs; j++) {
        struct ev_node *in = &e->nodes[node->inputs[j]];
        n->dependent = n->dependent || in->dependent;
        in->last_use = i;
        if (node->op != OP_EMBEDDING && in->compute == DT_F64 && n->compute != DT_F64)
            return err_set(err, ST_USAGE, "%s: %s narrows %s", node->name, dtype_name(n->dt),
                           dtype_name(in->dt));
    }
    return ST_OK;
}

/* What a run reads of the row-count independent part has to be kept for all loaded rows. */
static void mark_kept(struct evaluator *e)
{
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ev_node *n = &e->nodes[i];
        if (!n->needed || n->node->op == OP_INPUT)
            continue;
        n->kept = n->kept || (n->output && !n->dependent);
        for (unsigned j = 0; n->dependent && j < n->node->n_inputs; j++)
            e->nodes[n->node->inputs[j]].kept = !e->nodes[n->node->inputs[j]].dependent;
    }
}

static int take_slot(struct ev_arena *a, size_t row_bytes, size_t occupant)
{
    size_t best = a->n_slots;
    for (size_t i = 0; i < a->n_slots; i++)
        if (!a->slots[i].busy && (best == a->n_slots || a->slots[i].row_bytes == row_bytes))
            best = i;
    struct ev_slot *s = &a->slots[best];
    if (best == a->n_slots)
        a->n_slots++;
    if (s->row_bytes < row_bytes)
        s->row_bytes = row_bytes;
    s->busy = true;
    s->occupant = (uint32_t)occupant;
    return (int)best;
}

static void free_slots_after(struct evaluator *e, struct ev_arena *a, size_t node)
{
    for (size_t i = 0; i < a->n_slots; i++) {
        const struct ev_node *n = &e->nodes[a->slots[i].occupant];
        if (a->slots[i].busy && n->last_use <= node && !n->output)
            a->slots[i].busy = false;
    }
}

static void plan_slots(struct evaluator *e)
{
    size_t convert_bytes = 0;
    for (size_t i = 0; i < e->n_nodes; i++)
        if (e->nodes[i].kept)
            e->nodes[i].gather_slot = take_slot(&e->run, e->nodes[i].row_bytes, i);
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ev_node *n = &e->nodes[i];
        if (!n->needed || n->node->op == OP_INPUT)
            continue;
        struct ev_arena *a = n->dependent ? &e->run : &e->load;
        if (!n->kept)
            n->slot = take_slot(a, n->row_bytes, i);
        free_slots_after(e, a, i);
        for (unsigned j = 0; j < n->node->n_inputs; j++) {
            const struct ev_node *in = &e->nodes[n->node->inputs[j]];
            if (in->node->op != OP_INPUT && in->compute != n->compute)
                convert_bytes =
                    convert_bytes > 2 * in->row_bytes ? convert_bytes : 2 * in->row_bytes;
        }
    }
    for (size_t j = 0; j < 2 && convert_bytes > 0; j++) {
        struct ev_arena *arenas[2] = {&e->load, &e->run};
        /* Behind all node slots of both, so that the number means the same in both. */
        const size_t at = 2 * e->n_nodes + j;
        for (size_t k = 0; k < 2; k++)
            arenas[k]->slots[at] = (struct ev_slot){.row_bytes = convert_bytes};
        e->convert[j] = (int)at;
    }
}

/* ---- weights ------------------------------------------------------------------------------- */

static enum status load_weight(const struct evaluator *e, int32_t index, enum dtype compute,
                               void **out, struct err *err)
{
    const struct graph_weight *w = &e->opts.block->graph.weights[index];
    const void *stored = e->opts.weights[index];
    size_t count = 0;
    uint64_t elements = 0;
    if (stored == NULL)
        return err_set(err, ST_USAGE, "%s: tensor %s was not given", w->where, w->tensor);
    if (!mul_u64(w->rows, w->cols, &elements) || !u64_to_size(elements, &count))
        return err_set(err, ST_USAGE, "%s: tensor %s is too large", w->where, w->tensor);
    TRY(mem_alloc(count, dtype_size(compute), out, err));
    stored_widen(w->dtype, stored, count, compute, *out);
    return ST_OK;
}

static enum status open_linear(struct evaluator *e, struct ev_node *n, size_t n_in, struct err *err)
{
    const int32_t weight = n->node->weights[ROLE_WEIGHT], bias = n->node->weights[ROLE_BIAS];
    for (size_t i = 0; i < e->n_linears; i++)
        if (e->linears[i].weight == weight && e->linears[i].bias == bias &&
            e->linears[i].dt == n->dt) {
            n->linear = e->linears[i].linear;
            return ST_OK;
        }
    void *w = NULL, *b = NULL;
    struct ev_linear *l = &e->linears[e->n_linears];
    enum status st = load_weight(e, weight, n->compute, &w, err);
    if (st == ST_OK && bias >= 0)
        st = load_weight(e, bias, n->compute, &b, err);
    if (st == ST_OK)
        st = kernels_linear_open(e->opts.kernels, e->mode.arithmetic, n->dt, n->width, n_in, w, b,
                                 &l->linear, err);
    free(w);
    free(b);
    if (st != ST_OK)
        return st;
    l->weight = weight;
    l->bias = bias;
    l->dt = n->dt;
    n->linear = l->linear;
    e->n_linears++;
    return ST_OK;
}

static enum status open_weights(struct evaluator *e, struct ev_node *n, struct err *err)
{
    const struct graph_node *node = n->node;
    if (node->op == OP_INPUT || node->op == OP_EMBEDDING)
        return ST_OK;
    if (node->op == OP_LINEAR) {
        e->has_linear = true;
        e->has_bias = e->has_bias || node->weights[ROLE_BIAS] >= 0;
        return open_linear(e, n, e->nodes[node->inputs[0]].width, err);
    }
    if (node->weights[ROLE_WEIGHT] >= 0)
        TRY(load_weight(e, node->weights[ROLE_WEIGHT], n->compute, &n->weight, err));
    if (node->weights[ROLE_BIAS] >= 0)
        TRY(load_weight(e, node->weights[ROLE_BIAS], n->compute, &n->bias, err));
    return ST_OK;
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum status open_nodes(struct evaluator *e, struct err *err)
{
    const struct graph *g = &e->opts.block->graph;
    void *memory = NULL;
    e->n_nodes = g->n_nodes;
    TRY(mem_calloc(g->n_nodes, sizeof *e->nodes, &memory, err));
    e->nodes = memory;
    TRY(mem_calloc(g->n_nodes, sizeof *e->linears, &memory, err));
    e->linears = memory;
    struct ev_arena *arenas[2] = {&e->load, &e->run};
    for (size_t i = 0; i < 2; i++) {
        TRY(mem_calloc(2 * g->n_nodes + 2, sizeof *arenas[i]->slots, &memory, err));
        arenas[i]->slots = memory;
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        e->nodes[i].node = &g->nodes[i];
        e->nodes[i].slot = EV_NO_SLOT;
        e->nodes[i].gather_slot = EV_NO_SLOT;
    }
    return ST_OK;
}

enum status evaluator_open(const struct evaluator_opts *opts, struct evaluator **out,
                           struct err *err)
{
    *out = NULL;
    void *memory = NULL;
    TRY(mem_calloc(1, sizeof(struct evaluator), &memory, err));
    struct evaluator *e = memory;
    e->opts = *opts;
    e->mode = (struct ev_mode){opts->exact ? ARITH_LIBRARY : opts->arithmetic, opts->exact};
    e->convert[0] = e->convert[1] = EV_NO_SLOT;
    enum status st = open_nodes(e, err);
    if (st == ST_OK)
        mark_needed(e);
    for (size_t i = 0; st == ST_OK && i < e->n_nodes; i++)
        if (e->nodes[i].needed)
            st = plan_node(e, i, err);
    if (st == ST_OK) {
        mark_kept(e);
        plan_slots(e);
    }
    for (size_t i = 0; st == ST_OK && i < e->n_nodes; i++)
        if (e->nodes[i].needed)
            st = open_weights(e, &e->nodes[i], err);
    e->opts.weights = NULL;
    if (st != ST_OK)
        evaluator_close(&e);
    *out = e;
    return st;
}

void evaluator_close(struct evaluator **e)
{
    if (e == NULL || *e == NULL)
        return;
    for (size_t i = 0; (*e)->nodes != NULL && i < (*e)->n_nodes; i++) {
        free((*e)->nodes[i].weight);
        free((*e)->nodes[i].bias);
        free((*e)->nodes[i].cache);
    }
    for (size_t i = 0; i < (*e)->n_linears; i++)
        kernels_linear_close(&(*e)->linears[i].linear);
    free((*e)->nodes);
    free((*e)->linears);
    free((*e)->load.slots);
    free((*e)->load.memory);
    free((*e)->run.slots);
    free((*e)->run.memory);
    free(*e);
    *e = NULL;
}

/* ---- scratch ------------------------------------------------------------------------------- */

static bool slot_bytes(const struct ev_slot *s, size_t rows, size_t *out)
{
    size_t bytes = 0;
    if (!mul_size(s->row_bytes, rows, &bytes) || !add_size(bytes, ALIGNMENT - 1, &bytes))
        return false;
    *out = bytes / ALIGNMENT * ALIGNMENT;
    return true;
}

static enum status arena_reserve(const struct evaluator *e, struct ev_arena *a, size_t rows,
                                 struct err *err)
{
    if (rows <= a->rows)
        return ST_OK;
    const size_t n = 2 * e->n_nodes + 2;
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        if (!slot_bytes(&a->slots[i], rows, &bytes) || !add_size(total, bytes, &total))
            return err_nomem(err, SIZE_MAX);
    }
    free(a->memory);
    a->memory = NULL;
    a->rows = 0;
    TRY(mem_alloc(total, 1, &a->memory, err));
    memset(a->memory, 0xff, total); /* NaNs: what nobody wrote shows in the results (N35) */
    char *at = a->memory;
    for (size_t i = 0; i < n; i++) {
        size_t bytes = 0;
        if (!slot_bytes(&a->slots[i], rows, &bytes))
            return err_nomem(err, SIZE_MAX);
        a->slots[i].data = at;
        at += bytes;
    }
    a->rows = rows;
    return ST_OK;
}

enum status evaluator_reserve(struct evaluator *e, size_t rows, struct err *err)
{
    return arena_reserve(e, &e->run, rows, err);
}

/* ---- running ------------------------------------------------------------------------------- */

/* Inputs of node n for `rows` rows, widened to its compute dtype where they are not. */
static struct ev_inputs make_inputs(const struct evaluator *e, const struct ev_arena *a,
                                    const struct ev_node *n, size_t rows)
{
    struct ev_inputs in = {.dt = DT_UNKNOWN};
    for (unsigned j = 0; j < n->node->n_inputs && j < 2; j++) {
        const struct ev_node *from = &e->nodes[n->node->inputs[j]];
        in.x[j] = from->values;
        if (from->compute != n->compute) {
            double *wide = (double *)(void *)a->slots[e->convert[j]].data;
            widen(from->values, rows * from->width, wide);
            in.x[j] = wide;
        }
    }
    in.dt = e->nodes[n->node->inputs[0]].dt;
    in.width = e->nodes[n->node->inputs[0]].width;
    return in;
}

/* The caller's rows serve as they are when stored elements are compute elements. */
static bool rows_serve(const struct ev_node *n, enum dtype stored, const void *rows)
{
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return stored == n->compute && (uintptr_t)rows % dtype_size(stored) == 0;
#else
    (void)n, (void)stored, (void)rows;
    return false;
#endif
}

static enum status load_rows(struct evaluator *e, const char *stored, size_t first, size_t rows,
                             struct err *err)
{
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ev_node *n = &e->nodes[i];
        if (!n->needed || n->dependent || n->node->op == OP_INPUT)
            continue;
        const enum dtype dt = n->node->dtype;
        if (n->node->op == OP_EMBEDDING && rows_serve(n, dt, stored)) {
            n->values = stored + first * n->row_bytes;
            continue;
        }
        void *y =
            n->kept ? (char *)n->cache + first * n->row_bytes : (void *)e->load.slots[n->slot].data;
        if (n->node->op != OP_EMBEDDING) {
            const struct ev_inputs in = make_inputs(e, &e->load, n, rows);
            TRY(ev_node_run(n, &e->mode, rows, &in, y, err));
        } else {
            stored_widen(dt, stored + first * n->width * dtype_size(dt), rows * n->width,
                         n->compute, y);
        }
        n->values = y;
    }
    return ST_OK;
}

static enum status reserve_caches(struct evaluator *e, const void *stored, size_t n_rows,
                                  struct err *err)
{
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ev_node *n = &e->nodes[i];
        if (!n->kept)
            continue;
        if (n->node->op == OP_EMBEDDING && rows_serve(n, n->node->dtype, stored)) {
            n->cached = stored;
            continue;
        }
        if (n_rows > n->cache_rows) {
            free(n->cache);
            n->cache = NULL;
            n->cache_rows = 0;
            TRY(mem_alloc(n_rows, n->row_bytes, &n->cache, err));
            n->cache_rows = n_rows;
        }
        n->cached = n->cache;
    }
    return ST_OK;
}

enum status evaluator_load(struct evaluator *e, const void *stored, size_t n_rows, struct err *err)
{
    TRY(reserve_caches(e, stored, n_rows, err));
    TRY(arena_reserve(e, &e->load, n_rows < LOAD_ROWS ? n_rows : LOAD_ROWS, err));
    for (size_t first = 0; first < n_rows; first += LOAD_ROWS) {
        const size_t rows = n_rows - first < LOAD_ROWS ? n_rows - first : LOAD_ROWS;
        TRY(load_rows(e, stored, first, rows, err));
    }
    return ST_OK;
}

void evaluator_drop(struct evaluator *e)
{
    for (size_t i = 0; i < e->n_nodes; i++) {
        free(e->nodes[i].cache);
        e->nodes[i].cache = NULL;
        e->nodes[i].cache_rows = 0;
        e->nodes[i].cached = NULL;
    }
}

static void choose_rows(struct evaluator *e, const struct evaluator_call *call)
{
    const size_t rows = call->n_calls * call->m;
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ev_node *n = &e->nodes[i];
        if (!n->kept)
            continue;
        const char *cached = n->cached;
        if (call->index == NULL) {
            n->values = cached + call->first * n->row_bytes;
            continue;
        }
        char *to = e->run.slots[n->gather_slot].data;
        for (size_t j = 0; j < rows; j++)
            memcpy(to + j * n->row_bytes, cached + call->index[j] * n->row_bytes, n->row_bytes);
        n->values = to;
    }
}

static enum status run_linear(const struct ev_node *n, const struct ev_mode *mode,
                              const struct evaluator_call *call, const struct ev_inputs *in,
                              void *y, struct err *err)
{
    /* A correctly rounded row does not depend on its call. */
    const bool whole = mode->arithmetic == ARITH_CORRECTLY_ROUNDED;
    const size_t n_calls = whole ? 1 : call->n_calls;
    const size_t m = whole ? call->n_calls * call->m : call->m;
    const size_t x_bytes = m * in->width * dtype_size(n->compute), y_bytes = m * n->row_bytes;
    for (size_t c = 0; c < n_calls; c++)
        TRY(kernels_linear_run(n->linear, m, (const char *)in->x[0] + c * x_bytes, call->bias,
                               (char *)y + c * y_bytes, err));
    return ST_OK;
}

enum status evaluator_run(struct evaluator *e, const struct evaluator_call *call, struct err *err)
{
    const size_t rows = call->n_calls * call->m;
    if (rows > e->run.rows)
        return err_set(err, ST_INTERNAL, "evaluator: %zu rows, %zu reserved", rows, e->run.rows);
    choose_rows(e, call);
    for (size_t i = 0; i < e->n_nodes; i++) {
        struct ev_node *n = &e->nodes[i];
        if (!n->needed || !n->dependent)
            continue;
        void *y = e->run.slots[n->slot].data;
        const struct ev_inputs in = make_inputs(e, &e->run, n, rows);
        if (n->node->op == OP_LINEAR)
            TRY(run_linear(n, &e->mode, call, &in, y, err));
        else
            TRY(ev_node_run(n, &e->mode, rows, &in, y, err));
        n->values = y;
    }
    return ST_OK;
}

const void *evaluator_output(const struct evaluator *e, size_t i)
{
    return e->nodes[e->opts.outputs[i].node].values;
}

enum dtype evaluator_compute(const struct evaluator *e, size_t i)
{
    return e->nodes[e->opts.outputs[i].node].compute;
}

bool evaluator_has_linear(const struct evaluator *e)
{
    return e->has_linear;
}

bool evaluator_has_bias(const struct evaluator *e)
{
    return e->has_bias;
}
