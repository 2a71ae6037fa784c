/* SPDX-License-Identifier: Apache-2.0 */
/* Every row of a unit under every execution class against the table of its route. */
#include "workers/workers_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A validation under way. */
struct checking {
    struct worker *w;
    const struct worker_rows *rows;
    struct worker_unit *unit;
    worker_table_fn source;
    void *source_ctx;
    worker_tick_fn tick;
    void *tick_ctx;
    size_t n_rows, n_results;
    /* [route * n_results + result]: */
    const char **table;   /* [n_rows] stored rows that a lookup would return */
    void **owned;         /* those that are not the unit's own */
    bool *finite;         /* no NaN or Inf in the whole table */
    double **table_error; /* [n_rows]: |table - exact| of the row; with measure_double */
    /* [result]: */
    double **exact; /* [n_rows, width]; with measure_double */
    size_t *index;
    void *packed, *unpacked;
    double *scratch, *values;          /* [widest result] */
    uint32_t *selected_direct, *other; /* [largest top_k] */
};

static const struct graph_output *result_of(const struct checking *k, size_t r)
{
    return &k->w->opts.block->results[r];
}

static enum status tick(const struct checking *k, struct err *err)
{
    return k->tick == NULL ? ST_OK : k->tick(k->tick_ctx, err);
}

/* ---- the rows that a lookup would return ---------------------------------------------------- */

/* Stored rows of a table of a route: the unit's own, or read from the source into *owned. */
static enum status fetch_table(const struct checking *k, size_t route, size_t t, const char **rows,
                               void **owned, struct err *err)
{
    if (k->source == NULL) {
        *rows = k->unit->tables[route * k->unit->n_tables + t];
        return ST_OK;
    }
    TRY(mem_alloc(k->n_rows, worker_row_bytes(&k->w->opts.block->tables[t]), owned, err));
    *rows = *owned;
    return k->source(k->source_ctx, route, t, k->rows->first_row, k->n_rows, *owned, err);
}

static enum status combine_rows(const struct checking *k, const char *z, const char *r, size_t at,
                                size_t n, const struct projected_scratch *s, struct err *err)
{
    const struct graph_block *b = k->w->opts.block;
    const size_t width = (size_t)b->tables[0].width;
    for (size_t i = 0; i < k->n_results; i++) {
        const enum dtype dt = b->results[i].dtype, compute = dtype_compute(dt);
        stored_widen(b->tables[0].dtype, z + at * worker_row_bytes(&b->tables[0]), n * width,
                     compute, s->z);
        stored_widen(b->tables[1].dtype, r + at * worker_row_bytes(&b->tables[1]), n, compute,
                     s->r);
        TRY(kernels_combine_projected(dt, n, width, s->z, i == 0 ? NULL : s->r, k->w->bias, s->y,
                                      err));
        kernels_pack(dt, s->y, n * width,
                     (char *)s->results[i] + at * worker_row_bytes(&b->results[i]));
    }
    return ST_OK;
}

/* raw and normalized of one route from its tables z and r. */
static enum status combine_route(struct checking *k, size_t route, struct err *err)
{
    const size_t width = (size_t)k->w->opts.block->tables[0].width;
    const char *z = NULL, *r = NULL;
    void *z_owned = NULL, *r_owned = NULL;
    struct projected_scratch s = {0};
    enum status st = fetch_table(k, route, 0, &z, &z_owned, err);
    if (st == ST_OK)
        st = fetch_table(k, route, 1, &r, &r_owned, err);
    if (st == ST_OK)
        st = mem_alloc(WORKER_BATCH_ROWS * width, sizeof(double), &s.z, err);
    if (st == ST_OK)
        st = mem_alloc(WORKER_BATCH_ROWS, sizeof(double), &s.r, err);
    if (st == ST_OK)
        st = mem_alloc(WORKER_BATCH_ROWS * width, sizeof(double), &s.y, err);
    for (size_t i = 0; st == ST_OK && i < k->n_results; i++) {
        void **owned = &k->owned[route * k->n_results + i];
        st = mem_alloc(k->n_rows, worker_row_bytes(result_of(k, i)), owned, err);
        s.results[i] = *owned;
        k->table[route * k->n_results + i] = *owned;
    }
    for (size_t at = 0; st == ST_OK && at < k->n_rows; at += WORKER_BATCH_ROWS) {
        const size_t left = k->n_rows - at;
        st =
            combine_rows(k, z, r, at, left < WORKER_BATCH_ROWS ? left : WORKER_BATCH_ROWS, &s, err);
    }
    free(z_owned);
    free(r_owned);
    free(s.z);
    free(s.r);
    free(s.y);
    return st;
}

static enum status fetch_tables(struct checking *k, struct err *err)
{
    for (size_t route = 0; route < k->w->n_routes; route++) {
        TRY(tick(k, err));
        if (k->w->opts.block->kind == BLOCK_PROJECTED)
            TRY(combine_route(k, route, err));
        for (size_t r = 0; r < k->n_results; r++) {
            const size_t at = route * k->n_results + r;
            const size_t n = k->n_rows * (size_t)result_of(k, r)->width;
            if (k->w->opts.block->kind != BLOCK_PROJECTED)
                TRY(fetch_table(k, route, r, &k->table[at], &k->owned[at], err));
            k->finite[at] = kernels_find_nonfinite(result_of(k, r)->dtype, k->table[at], n) == n;
        }
    }
    return ST_OK;
}

/* ---- double precision ----------------------------------------------------------------------- */

/* The same rows in reverse order, so at other places and beside other neighbours: a row whose
 * double-precision value moves by more than rounding is no function of its token (N32). */
static enum status check_locality(const struct checking *k, size_t n, struct err *err)
{
    struct evaluator *e = k->w->exact_results;
    for (size_t i = 0; i < n; i++)
        k->index[i] = n - 1 - i;
    const struct evaluator_call call = {
        .n_calls = 1, .m = n, .bias = BIAS_PREFILLED, .index = k->index};
    TRY(evaluator_run(e, &call, err));
    for (size_t r = 0; r < k->n_results; r++) {
        const size_t width = (size_t)result_of(k, r)->width;
        const double *reversed = evaluator_output(e, r);
        for (size_t i = 0; i < n; i++) {
            const double *row = k->exact[r] + i * width;
            double scale = 1;
            for (size_t j = 0; j < width; j++)
                scale = fabs(row[j]) > scale ? fabs(row[j]) : scale;
            if (compare_exact(DT_F64, reversed + (n - 1 - i) * width, row, width) > 1e-6 * scale)
                return err_set(err, ST_KERNEL,
                               "output %s: token %llu: its double-precision value changes with its "
                               "neighbours",
                               result_of(k, r)->name, (unsigned long long)(k->rows->first_row + i));
        }
    }
    return ST_OK;
}

static enum status evaluate_exact(struct checking *k, struct err *err)
{
    struct evaluator *e = k->w->exact_results;
    void *memory = NULL;
    TRY(evaluator_reserve(e, WORKER_BATCH_ROWS, err));
    for (size_t r = 0; r < k->n_results; r++) {
        TRY(mem_alloc(k->n_rows, (size_t)result_of(k, r)->width * sizeof(double), &memory, err));
        k->exact[r] = memory;
    }
    for (size_t first = 0; first < k->n_rows; first += WORKER_BATCH_ROWS) {
        TRY(tick(k, err));
        const size_t left = k->n_rows - first,
                     n = left < WORKER_BATCH_ROWS ? left : WORKER_BATCH_ROWS;
        const struct evaluator_call call = {.n_calls = 1, .m = n, .bias = BIAS_PREFILLED};
        TRY(evaluator_load(e, (const char *)k->rows->embedding + first * k->w->embedding_row_bytes,
                           n, err));
        TRY(evaluator_run(e, &call, err));
        for (size_t r = 0; r < k->n_results; r++) {
            const size_t width = (size_t)result_of(k, r)->width;
            memcpy(k->exact[r] + first * width, evaluator_output(e, r), n * width * sizeof(double));
        }
        if (first == 0)
            TRY(check_locality(k, n, err));
    }
    return ST_OK;
}

/* Error of each table row, so that rows equal to it need no second look. */
static enum status measure_tables(struct checking *k, struct err *err)
{
    for (size_t i = 0; i < k->w->n_routes * k->n_results; i++) {
        const struct graph_output *o = result_of(k, i % k->n_results);
        const size_t width = (size_t)o->width;
        void *memory = NULL;
        TRY(mem_alloc(k->n_rows, sizeof(double), &memory, err));
        k->table_error[i] = memory;
        for (size_t row = 0; row < k->n_rows; row++) {
            kernels_unpack(o->dtype, k->table[i] + row * worker_row_bytes(o), width, k->unpacked);
            k->table_error[i][row] = compare_exact(dtype_compute(o->dtype), k->unpacked,
                                                   k->exact[i % k->n_results] + row * width, width);
        }
    }
    return ST_OK;
}

/* ---- decisions ------------------------------------------------------------------------------ */

/* Margins of the tables themselves. */
static enum status table_margins(struct checking *k, struct err *err)
{
    for (size_t i = 0; i < k->w->n_routes * k->n_results; i++) {
        const size_t r = i % k->n_results, width = (size_t)result_of(k, r)->width;
        const struct graph_output *o = result_of(k, r);
        double *margins = k->unit->margin[r];
        for (size_t row = 0; o->decision_top_k > 0 && row < k->n_rows; row++) {
            kernels_unpack(o->dtype, k->table[i] + row * worker_row_bytes(o), width, k->unpacked);
            TRY(decision_values(o, k->unpacked, k->scratch, k->values, err));
            const double margin =
                decision_select(k->values, width, o->decision_top_k, k->selected_direct);
            margins[row] = margin < margins[row] ? margin : margins[row];
        }
    }
    return ST_OK;
}

/* A row that differs from the table's: what does each select?  Errors are those of the values that
 * the decision looks at, so that they compare with margins. */
static enum status compare_decision(struct checking *k, size_t r, size_t row, const void *direct,
                                    const char *table, struct worker_stat *s, struct err *err)
{
    const struct graph_output *o = result_of(k, r);
    const size_t width = (size_t)o->width;
    const size_t top = o->decision_top_k < width ? o->decision_top_k : width;
    TRY(decision_values(o, direct, k->scratch, k->values, err));
    const double margin = decision_select(k->values, width, top, k->selected_direct);
    double *table_values = k->values + width;
    kernels_unpack(o->dtype, table, width, k->unpacked);
    TRY(decision_values(o, k->unpacked, k->scratch, table_values, err));
    (void)decision_select(table_values, width, top, k->other);
    double *margins = k->unit->margin[r], *errors = k->unit->max_error[r];
    margins[row] = margin < margins[row] ? margin : margins[row];
    const double error = compare_exact(DT_F64, k->values, table_values, width);
    errors[row] = error > errors[row] ? error : errors[row];
    if (memcmp(k->selected_direct, k->other, top * sizeof *k->other) == 0)
        return ST_OK;
    const uint64_t token = k->rows->first_row + row;
    k->unit->changed[r][row] = 1;
    if (s->decisions_changed == 0 || token < s->first_changed_token)
        s->first_changed_token = token;
    s->decisions_changed++;
    return ST_OK;
}

/* ---- classes -------------------------------------------------------------------------------- */

struct batch {
    struct evaluator_call call;
    size_t class_index;
};

static size_t batch_row(const struct batch *b, size_t i)
{
    return b->call.index != NULL ? b->call.index[i] : b->call.first + i;
}

/* Row i of the batch in result r against a route's table; its difference is added to *square. */
static enum status compare_one(struct checking *k, const struct batch *b, size_t r, size_t route,
                               size_t i, long double *square, struct err *err)
{
    const struct graph_output *o = result_of(k, r);
    const size_t at = route * k->n_results + r, row = batch_row(b, i), width = (size_t)o->width;
    const size_t row_bytes = worker_row_bytes(o);
    struct worker_stat *s = &k->unit->stats[worker_stat_index(k->w, b->class_index, r, route)];
    const char *direct = (const char *)k->packed + i * row_bytes;
    const char *table = k->table[at] + row * row_bytes;
    const struct compare_row c =
        compare_rows(o->dtype, direct, table, width, k->rows->first_row + row, k->finite[at], s);
    const char *values = (const char *)evaluator_output(k->w->results, r) +
                         i * width * dtype_size(dtype_compute(o->dtype));
    *square += c.square_difference;
    s->decisions += o->decision_top_k > 0;
    if (k->w->opts.measure_double) {
        const double error = c.same_bytes ? k->table_error[at][row]
                                          : compare_exact(dtype_compute(o->dtype), values,
                                                          k->exact[r] + row * width, width);
        s->max_abs_double = error > s->max_abs_double ? error : s->max_abs_double;
    }
    if (o->decision_top_k > 0 && !c.same_bytes)
        return compare_decision(k, r, row, values, table, s, err);
    return ST_OK;
}

static enum status compare_result(struct checking *k, const struct batch *b, size_t r, size_t route,
                                  struct err *err)
{
    const struct graph_output *o = result_of(k, r);
    const size_t m = b->call.m, row_bytes = worker_row_bytes(o);
    struct worker_stat *s = &k->unit->stats[worker_stat_index(k->w, b->class_index, r, route)];
    for (size_t c = 0; c < b->call.n_calls; c++) {
        long double difference = 0, square = 0;
        for (size_t i = c * m; i < (c + 1) * m; i++)
            TRY(compare_one(k, b, r, route, i, &difference, err));
        for (size_t i = c * m; difference != 0 && i < (c + 1) * m; i++)
            square +=
                compare_square(o->dtype, (const char *)k->packed + i * row_bytes, (size_t)o->width);
        compare_case(s, difference, square, k->rows->first_row + batch_row(b, c * m));
    }
    return ST_OK;
}

/* Make the calls of a batch and compare them with the table that a call of m ids selects. */
static enum status run_batch(struct checking *k, const struct batch *b, struct err *err)
{
    const struct worker_class_entry *entry = &k->w->classes[b->class_index];
    TRY(tick(k, err));
    TRY(evaluator_run(k->w->results, &b->call, err));
    for (size_t r = 0; r < k->n_results; r++) {
        const struct graph_output *o = result_of(k, r);
        kernels_pack(o->dtype, evaluator_output(k->w->results, r),
                     b->call.n_calls * b->call.m * (size_t)o->width, k->packed);
        if (!entry->every_route) {
            TRY(compare_result(k, b, r, worker_route(k->w, b->call.m), err));
            continue;
        }
        for (size_t route = 0; route < k->w->n_routes; route++)
            TRY(compare_result(k, b, r, route, err));
    }
    return ST_OK;
}

static size_t calls_at_once(size_t m)
{
    return m < WORKER_BATCH_ROWS ? WORKER_BATCH_ROWS / m : 1;
}

/* The unit's rows cut into calls of m; the rest, if any, is left to the caller. */
static enum status run_full_calls(struct checking *k, struct batch *b, size_t m, size_t *rest,
                                  struct err *err)
{
    const size_t n_full = k->n_rows / m;
    for (size_t done = 0; done < n_full; done += b->call.n_calls) {
        const size_t left = n_full - done, most = calls_at_once(m);
        b->call.n_calls = left < most ? left : most;
        b->call.m = m;
        b->call.index = NULL;
        b->call.first = done * m;
        TRY(run_batch(k, b, err));
    }
    *rest = n_full * m;
    return ST_OK;
}

/* One call of m rows: the n rows from `first`, over and over. */
static enum status run_filled(struct checking *k, struct batch *b, size_t m, size_t first, size_t n,
                              struct err *err)
{
    for (size_t i = 0; i < m; i++)
        k->index[i] = first + i % n;
    b->call.n_calls = 1;
    b->call.m = m;
    b->call.index = k->index;
    return run_batch(k, b, err);
}

static enum status run_chunks(struct checking *k, struct batch *b, size_t m, struct err *err)
{
    size_t rest = 0;
    TRY(run_full_calls(k, b, m, &rest, err));
    if (rest == k->n_rows)
        return ST_OK;
    b->call.n_calls = 1;
    b->call.m = k->n_rows - rest;
    b->call.first = rest;
    b->call.index = NULL;
    return run_batch(k, b, err);
}

static enum status run_expanded(struct checking *k, struct batch *b, struct err *err)
{
    const size_t chunk = (size_t)k->w->opts.validation_rows;
    for (size_t first = 0; first < k->n_rows; first += chunk) {
        const size_t left = k->n_rows - first, n = left < chunk ? left : chunk;
        TRY(run_filled(k, b, 2 * n, first, n, err));
    }
    return ST_OK;
}

static enum status run_repeated(struct checking *k, struct batch *b, size_t m, struct err *err)
{
    const size_t most = calls_at_once(m);
    for (size_t first = 0; first < k->n_rows; first += b->call.n_calls) {
        const size_t left = k->n_rows - first;
        b->call.n_calls = left < most ? left : most;
        b->call.m = m;
        b->call.index = k->index;
        for (size_t i = 0; i < b->call.n_calls * m; i++)
            k->index[i] = first + i / m;
        TRY(run_batch(k, b, err));
    }
    return ST_OK;
}

/* The last call is filled by wrapping to the unit's start. */
static enum status run_mixed(struct checking *k, struct batch *b, size_t m, struct err *err)
{
    size_t rest = 0;
    TRY(run_full_calls(k, b, m, &rest, err));
    if (rest == k->n_rows)
        return ST_OK;
    for (size_t i = 0; i < m; i++)
        k->index[i] = (rest + i) % k->n_rows;
    b->call.n_calls = 1;
    b->call.m = m;
    b->call.index = k->index;
    return run_batch(k, b, err);
}

static enum status run_class(struct checking *k, size_t class_index, struct err *err)
{
    const struct worker_class *c = &k->w->classes[class_index].c;
    const size_t m = (size_t)c->rows, chunk = (size_t)k->w->opts.validation_rows;
    struct batch b = {.call = {.bias = c->bias}, .class_index = class_index};
    switch (c->family) {
    case FAMILY_CHUNK:
    case FAMILY_SINGLE:
        return run_chunks(k, &b, m, err);
    case FAMILY_EXPANDED:
        return run_expanded(k, &b, err);
    case FAMILY_PADDED:
        if (k->n_rows % chunk == 0)
            return ST_OK;
        return run_filled(k, &b, chunk, k->n_rows / chunk * chunk, k->n_rows % chunk, err);
    case FAMILY_REPEATED:
        return run_repeated(k, &b, m, err);
    case FAMILY_MIXED:
        return run_mixed(k, &b, m, err);
    }
    return err_set(err, ST_INTERNAL, "class %s: unknown family", c->name);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static enum status alloc_checking(struct checking *k, struct err *err)
{
    const size_t n = k->w->n_routes * k->n_results;
    size_t widest = 1, widest_bytes = 1, top = 1;
    void *memory = NULL;
    for (size_t r = 0; r < k->n_results; r++) {
        const struct graph_output *o = result_of(k, r);
        widest = o->width > widest ? (size_t)o->width : widest;
        widest_bytes = worker_row_bytes(o) > widest_bytes ? worker_row_bytes(o) : widest_bytes;
        top = o->decision_top_k > top ? o->decision_top_k : top;
    }
#define ALLOC(member, count)                                                                       \
    TRY(mem_calloc(count, sizeof *k->member, &memory, err));                                       \
    k->member = memory
    ALLOC(table, n);
    ALLOC(owned, n);
    ALLOC(finite, n);
    ALLOC(table_error, n);
    ALLOC(exact, k->n_results);
    ALLOC(index, k->w->max_call_rows);
    ALLOC(scratch, widest);
    ALLOC(values, 2 * widest);
    ALLOC(selected_direct, top);
    ALLOC(other, top);
#undef ALLOC
    TRY(mem_alloc(widest, sizeof(double), &k->unpacked, err));
    return mem_alloc(k->w->max_call_rows, widest_bytes, &k->packed, err);
}

static void free_checking(struct checking *k)
{
    for (size_t i = 0; i < k->w->n_routes * k->n_results; i++) {
        if (k->owned != NULL)
            free(k->owned[i]);
        if (k->table_error != NULL)
            free(k->table_error[i]);
    }
    for (size_t i = 0; k->exact != NULL && i < k->n_results; i++)
        free(k->exact[i]);
    free(k->table);
    free(k->owned);
    free(k->finite);
    free(k->table_error);
    free(k->exact);
    free(k->index);
    free(k->scratch);
    free(k->values);
    free(k->selected_direct);
    free(k->other);
    free(k->unpacked);
    free(k->packed);
}

static void reset_findings(struct checking *k)
{
    struct worker_unit *u = k->unit;
    memset(u->stats, 0, u->n_stats * sizeof *u->stats);
    for (size_t r = 0; r < k->n_results; r++) {
        if (u->margin[r] == NULL)
            continue;
        for (size_t i = 0; i < k->n_rows; i++) {
            u->margin[r][i] = (double)INFINITY;
            u->max_error[r][i] = 0;
            u->changed[r][i] = 0;
        }
    }
}

static enum status check_unit(struct checking *k, struct err *err)
{
    TRY(alloc_checking(k, err));
    reset_findings(k);
    TRY(fetch_tables(k, err));
    if (k->w->opts.measure_double) {
        TRY(evaluate_exact(k, err));
        TRY(measure_tables(k, err));
    }
    TRY(table_margins(k, err));
    TRY(evaluator_reserve(k->w->results, k->w->max_call_rows, err));
    TRY(evaluator_load(k->w->results, k->rows->embedding, k->n_rows, err));
    for (size_t i = 0; i < k->w->n_classes; i++)
        TRY(run_class(k, i, err));
    return ST_OK;
}

enum status worker_unit_validate(struct worker *w, const struct worker_rows *rows,
                                 struct worker_unit *unit, worker_table_fn source, void *source_ctx,
                                 worker_tick_fn tick_fn, void *tick_ctx, struct err *err)
{
    struct checking k = {.w = w,
                         .rows = rows,
                         .unit = unit,
                         .source = source,
                         .source_ctx = source_ctx,
                         .tick = tick_fn,
                         .tick_ctx = tick_ctx,
                         .n_results = w->opts.block->n_results};
    if (unit->first_row != rows->first_row || unit->n_rows != rows->n_rows ||
        !u64_to_size(rows->n_rows, &k.n_rows))
        return err_set(err, ST_USAGE, "validation: unit and rows are not the same range");
    if (k.n_rows == 0)
        return ST_OK;
    enum status st = check_unit(&k, err);
    evaluator_drop(w->results);
    free_checking(&k);
    return st;
}
