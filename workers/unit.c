/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of a unit: every row under every route. */
#include "workers/workers_internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A unit under way. */
struct making {
    struct worker *w;
    const struct worker_rows *rows;
    struct worker_unit *unit;
    worker_tick_fn tick;
    void *tick_ctx;
    size_t n_rows;
    size_t *index; /* [max_call_rows], repeated calls */
    void *packed;  /* [max_call_rows] rows of the widest table, stored */
};

static const struct graph_output *table_of(const struct making *k, size_t t)
{
    return &k->w->opts.block->tables[t];
}

static char *table_rows(const struct making *k, size_t route, size_t t)
{
    return k->unit->tables[route * k->unit->n_tables + t];
}

static enum status tick(const struct making *k, struct err *err)
{
    return k->tick == NULL ? ST_OK : k->tick(k->tick_ctx, err);
}

/* ---- allocation ---------------------------------------------------------------------------- */

static void columns_free(double **columns, size_t n)
{
    for (size_t i = 0; columns != NULL && i < n; i++)
        free(columns[i]);
    free(columns);
}

void worker_unit_free(struct worker_unit **u)
{
    if (u == NULL || *u == NULL)
        return;
    struct worker_unit *unit = *u;
    for (size_t i = 0; unit->tables != NULL && i < unit->n_routes * unit->n_tables; i++)
        free(unit->tables[i]);
    free(unit->tables);
    free(unit->table_digests);
    free(unit->table_constant);
    free(unit->stats);
    free(unit->double_error);
    columns_free(unit->margin, unit->n_results);
    columns_free(unit->max_error, unit->n_results);
    columns_free(unit->changed, unit->n_results);
    free(unit);
    *u = NULL;
}

static enum status alloc_columns(const struct making *k, double fill, double ***out,
                                 struct err *err)
{
    const struct graph_block *b = k->w->opts.block;
    void *memory = NULL;
    TRY(mem_calloc(b->n_results, sizeof(double *), &memory, err));
    *out = memory;
    for (size_t i = 0; i < b->n_results; i++) {
        if (b->results[i].decision_top_k == 0)
            continue;
        TRY(mem_alloc(k->n_rows, sizeof(double), &memory, err));
        (*out)[i] = memory;
        for (size_t j = 0; j < k->n_rows; j++)
            (*out)[i][j] = fill;
    }
    return ST_OK;
}

static enum status alloc_unit(struct making *k, struct err *err)
{
    const struct graph_block *b = k->w->opts.block;
    void *memory = NULL;
    TRY(mem_calloc(1, sizeof *k->unit, &memory, err));
    struct worker_unit *u = k->unit = memory;
    u->first_row = k->rows->first_row;
    u->n_rows = k->rows->n_rows;
    u->n_routes = k->w->n_routes;
    u->n_tables = b->n_tables;
    u->n_results = b->n_results;
    u->n_stats = worker_n_stats(k->w);
    const size_t n = u->n_routes * u->n_tables;
    TRY(mem_calloc(n, sizeof *u->tables, &memory, err));
    u->tables = memory;
    for (size_t i = 0; i < n; i++)
        TRY(mem_alloc(k->n_rows, worker_row_bytes(&b->tables[i % u->n_tables]), &u->tables[i],
                      err));
    TRY(mem_calloc(n, sizeof *u->table_digests, &memory, err));
    u->table_digests = memory;
    TRY(mem_calloc(n, sizeof *u->table_constant, &memory, err));
    u->table_constant = memory;
    TRY(mem_calloc(n, sizeof *u->double_error, &memory, err));
    u->double_error = memory;
    TRY(mem_calloc(u->n_stats, sizeof *u->stats, &memory, err));
    u->stats = memory;
    TRY(alloc_columns(k, (double)INFINITY, &u->margin, err));
    TRY(alloc_columns(k, 0, &u->max_error, err));
    return alloc_columns(k, 0, &u->changed, err);
}

static enum status alloc_scratch(struct making *k, struct err *err)
{
    const struct graph_block *b = k->w->opts.block;
    size_t widest = 0;
    void *memory = NULL;
    for (size_t t = 0; t < b->n_tables; t++)
        if (worker_row_bytes(&b->tables[t]) > widest)
            widest = worker_row_bytes(&b->tables[t]);
    TRY(mem_alloc(k->w->max_call_rows, sizeof *k->index, &memory, err));
    k->index = memory;
    return mem_alloc(k->w->max_call_rows, widest, &k->packed, err);
}

/* ---- evaluation ---------------------------------------------------------------------------- */

/* Bulk: chunks of bulk_rows consecutive ids of shape (n). */
static enum status evaluate_bulk(struct making *k, struct err *err)
{
    const size_t chunk = (size_t)k->w->opts.bulk_rows;
    for (size_t first = 0; first < k->n_rows; first += chunk) {
        TRY(tick(k, err));
        const size_t m = k->n_rows - first < chunk ? k->n_rows - first : chunk;
        const struct evaluator_call call = {
            .n_calls = 1, .m = m, .bias = BIAS_PREFILLED, .first = first};
        TRY(evaluator_run(k->w->tables, &call, err));
        for (size_t t = 0; t < k->unit->n_tables; t++) {
            const struct graph_output *o = table_of(k, t);
            kernels_pack(o->dtype, evaluator_output(k->w->tables, t), m * (size_t)o->width,
                         table_rows(k, 0, t) + first * worker_row_bytes(o));
        }
    }
    return ST_OK;
}

static enum status positions_differ(const struct making *k, size_t profile, uint64_t token,
                                    size_t t, size_t position, struct err *err)
{
    const struct worker_profile *p = &k->w->profiles[profile];
    return err_set(err, ST_POSITIONS,
                   "profile%zu (max_rows %llu, evaluation_rows %llu): token %llu, output %s: "
                   "positions 0 and %zu of one call with the same token give different bytes",
                   profile, (unsigned long long)p->max_rows, (unsigned long long)p->evaluation_rows,
                   (unsigned long long)token, table_of(k, t)->name, position);
}

/* Take over the first row of each call; the others have to be the same bytes. */
static enum status take_positions(struct making *k, size_t profile, size_t t, size_t first,
                                  size_t n_calls, struct err *err)
{
    const struct graph_output *o = table_of(k, t);
    const size_t m = (size_t)k->w->profiles[profile].evaluation_rows, row = worker_row_bytes(o);
    kernels_pack(o->dtype, evaluator_output(k->w->tables, t), n_calls * m * (size_t)o->width,
                 k->packed);
    for (size_t c = 0; c < n_calls; c++) {
        const char *call = (const char *)k->packed + c * m * row;
        for (size_t p = 1; p < m; p++)
            if (memcmp(call, call + p * row, row) != 0)
                return positions_differ(k, profile, k->unit->first_row + first + c, t, p, err);
        memcpy(table_rows(k, profile + 1, t) + (first + c) * row, call, row);
    }
    return ST_OK;
}

/* Profile: each token alone, ids of shape (1, evaluation_rows), the same token at all positions.
 * Many calls are made in one go; each linear still sees the rows of one call at a time. */
static enum status evaluate_profile(struct making *k, size_t profile, struct err *err)
{
    const size_t m = (size_t)k->w->profiles[profile].evaluation_rows;
    const size_t batch = m < WORKER_BATCH_ROWS ? WORKER_BATCH_ROWS / m : 1;
    for (size_t first = 0; first < k->n_rows; first += batch) {
        TRY(tick(k, err));
        const size_t n_calls = k->n_rows - first < batch ? k->n_rows - first : batch;
        for (size_t i = 0; i < n_calls * m; i++)
            k->index[i] = first + i / m;
        const struct evaluator_call call = {.n_calls = n_calls,
                                            .m = m,
                                            .bias = BIAS_PREFILLED,
                                            .index = m == 1 ? NULL : k->index,
                                            .first = first};
        TRY(evaluator_run(k->w->tables, &call, err));
        for (size_t t = 0; t < k->unit->n_tables; t++)
            TRY(take_positions(k, profile, t, first, n_calls, err));
    }
    return ST_OK;
}

/* The route whose table this profile's has to equal: an earlier one of the same execution, or any
 * where the row count cannot matter (correctly rounded rows; no linear).  SIZE_MAX: none. */
static size_t same_route(const struct worker *w, size_t profile)
{
    if (w->opts.arithmetic == ARITH_CORRECTLY_ROUNDED || !evaluator_has_linear(w->tables))
        return 0;
    for (size_t i = 0; i < profile; i++)
        if (w->profiles[i].evaluation_rows == w->profiles[profile].evaluation_rows)
            return i + 1;
    return SIZE_MAX;
}

static enum status evaluate_routes(struct making *k, struct err *err)
{
    TRY(evaluator_reserve(k->w->tables, k->w->max_call_rows, err));
    TRY(evaluator_load(k->w->tables, k->rows->embedding, k->n_rows, err));
    TRY(evaluate_bulk(k, err));
    for (size_t i = 0; i < k->w->opts.n_profiles; i++) {
        const size_t same = same_route(k->w, i);
        if (same == SIZE_MAX) {
            TRY(evaluate_profile(k, i, err));
            continue;
        }
        for (size_t t = 0; t < k->unit->n_tables; t++)
            memcpy(table_rows(k, i + 1, t), table_rows(k, same, t),
                   k->n_rows * worker_row_bytes(table_of(k, t)));
    }
    return ST_OK;
}

/* ---- findings ------------------------------------------------------------------------------ */

static enum status check_finite(const struct making *k, size_t route, size_t t, struct err *err)
{
    const struct graph_output *o = table_of(k, t);
    const size_t width = (size_t)o->width, n = k->n_rows * width, element = dtype_size(o->dtype);
    const char *values = table_rows(k, route, t);
    size_t first = n, count = 0;
    for (size_t at = 0; at < n; at++) {
        at += kernels_find_nonfinite(o->dtype, values + at * element, n - at);
        if (at >= n)
            break;
        first = count == 0 ? at : first;
        count++;
    }
    char text[32];
    if (count == 0)
        return ST_OK;
    return err_set(err, ST_NONFINITE,
                   "table %s.%s: %zu values are NaN or infinite in tokens %llu to %llu, the first "
                   "at token %llu, column %zu",
                   lookup_route_name(route, text, sizeof text), o->name, count,
                   (unsigned long long)k->unit->first_row,
                   (unsigned long long)(k->unit->first_row + k->n_rows - 1),
                   (unsigned long long)(k->unit->first_row + first / width), first % width);
}

static bool is_constant(const char *rows, size_t n_rows, size_t row_bytes)
{
    for (size_t i = 1; i < n_rows; i++)
        if (memcmp(rows, rows + i * row_bytes, row_bytes) != 0)
            return false;
    return true;
}

/* Rows of the embedding that differ from all before them: a hash table of digests, each hit
 * confirmed by bytes. */
static enum status count_distinct(const struct making *k, struct err *err)
{
    const size_t row = k->w->embedding_row_bytes;
    const char *rows = k->rows->embedding;
    size_t capacity = 16;
    while (capacity < 2 * k->n_rows)
        capacity *= 2;
    struct entry {
        struct digest digest;
        size_t row; /* + 1; 0: free */
    } *entries = NULL;
    void *memory = NULL;
    TRY(mem_calloc(capacity, sizeof *entries, &memory, err));
    entries = memory;
    for (size_t i = 0; i < k->n_rows; i++) {
        const struct digest d = digest_of(rows + i * row, row);
        uint64_t at = 0;
        memcpy(&at, d.bytes, sizeof at);
        at &= capacity - 1;
        while (entries[at].row != 0 &&
               (!digest_equal(&entries[at].digest, &d) ||
                memcmp(rows + (entries[at].row - 1) * row, rows + i * row, row) != 0))
            at = (at + 1) & (capacity - 1);
        if (entries[at].row != 0)
            continue;
        entries[at] = (struct entry){d, i + 1};
        k->unit->distinct_embedding_rows++;
    }
    free(entries);
    return ST_OK;
}

static void describe_tables(struct making *k)
{
    struct worker_unit *u = k->unit;
    for (size_t i = 0; i < u->n_routes * u->n_tables; i++) {
        const size_t row = worker_row_bytes(table_of(k, i % u->n_tables));
        u->table_digests[i] = digest_of(u->tables[i], k->n_rows * row);
        u->table_constant[i] = is_constant(u->tables[i], k->n_rows, row);
    }
}

/* Rows [first, first + n) of every route's table against a double-precision evaluation. */
static enum status measure_rows(struct making *k, void *unpacked, size_t first, size_t n,
                                struct err *err)
{
    struct worker_unit *u = k->unit;
    struct evaluator *e = k->w->exact_tables;
    const struct evaluator_call call = {.n_calls = 1, .m = n, .bias = BIAS_PREFILLED};
    TRY(evaluator_load(e, (const char *)k->rows->embedding + first * k->w->embedding_row_bytes, n,
                       err));
    TRY(evaluator_run(e, &call, err));
    for (size_t i = 0; i < u->n_routes * u->n_tables; i++) {
        const size_t t = i % u->n_tables, count = n * (size_t)table_of(k, t)->width;
        const enum dtype dt = table_of(k, t)->dtype;
        kernels_unpack(dt,
                       table_rows(k, i / u->n_tables, t) + first * worker_row_bytes(table_of(k, t)),
                       count, unpacked);
        const double error =
            compare_exact(dtype_compute(dt), unpacked, evaluator_output(e, t), count);
        if (error > u->double_error[i])
            u->double_error[i] = error;
    }
    return ST_OK;
}

static enum status measure_tables(struct making *k, struct err *err)
{
    size_t widest = 0;
    void *unpacked = NULL;
    for (size_t t = 0; t < k->unit->n_tables; t++)
        if (table_of(k, t)->width > widest)
            widest = (size_t)table_of(k, t)->width;
    TRY(evaluator_reserve(k->w->exact_tables, WORKER_BATCH_ROWS, err));
    TRY(mem_alloc(WORKER_BATCH_ROWS * widest, sizeof(double), &unpacked, err));
    enum status st = ST_OK;
    for (size_t first = 0; st == ST_OK && first < k->n_rows; first += WORKER_BATCH_ROWS) {
        const size_t left = k->n_rows - first;
        st = tick(k, err);
        if (st == ST_OK)
            st = measure_rows(k, unpacked, first,
                              left < WORKER_BATCH_ROWS ? left : WORKER_BATCH_ROWS, err);
    }
    free(unpacked);
    return st;
}

static enum status make_unit(struct making *k, struct err *err)
{
    TRY(alloc_unit(k, err));
    TRY(alloc_scratch(k, err));
    TRY(evaluate_routes(k, err));
    for (size_t i = 0; i < k->unit->n_routes * k->unit->n_tables; i++)
        TRY(check_finite(k, i / k->unit->n_tables, i % k->unit->n_tables, err));
    if (k->w->opts.measure_double)
        TRY(measure_tables(k, err));
    TRY(count_distinct(k, err));
    TRY(worker_unit_damage(k->w, k->unit, err));
    describe_tables(k);
    return ST_OK;
}

enum status worker_unit_evaluate(struct worker *w, const struct worker_rows *rows,
                                 worker_tick_fn tick_fn, void *tick_ctx, struct worker_unit **out,
                                 struct err *err)
{
    *out = NULL;
    struct making k = {.w = w, .rows = rows, .tick = tick_fn, .tick_ctx = tick_ctx};
    if (!u64_to_size(rows->n_rows, &k.n_rows))
        return err_set(err, ST_USAGE, "%llu rows in one unit", (unsigned long long)rows->n_rows);
    enum status st = make_unit(&k, err);
    evaluator_drop(w->tables);
    free(k.index);
    free(k.packed);
    if (st != ST_OK)
        worker_unit_free(&k.unit);
    *out = k.unit;
    return st;
}

/* ---- test hook ----------------------------------------------------------------------------- */

enum status worker_unit_damage(const struct worker *w, struct worker_unit *unit, struct err *err)
{
    enum { N_FIELDS = 5 };
    const char *text = fault_value("TOKENTAB_DAMAGE");
    uint64_t field[N_FIELDS] = {0};
    if (text == NULL)
        return ST_OK;
    for (size_t i = 0; i < N_FIELDS; i++) {
        char *end = NULL;
        errno = 0;
        field[i] = strtoull(text, &end, 10);
        if (end == text || errno != 0 || *end != (i + 1 < N_FIELDS ? ':' : '\0'))
            return err_set(err, ST_USAGE, "TOKENTAB_DAMAGE: expected route:table:row:column:bit");
        text = end + 1;
    }
    const uint64_t route = field[0], table = field[1], row = field[2], bit = field[4];
    if (row < unit->first_row || row >= unit->first_row + unit->n_rows)
        return ST_OK; /* lies in another unit */
    if (route >= unit->n_routes || table >= unit->n_tables)
        return err_set(err, ST_USAGE, "TOKENTAB_DAMAGE: route %llu or table %llu is not there",
                       (unsigned long long)route, (unsigned long long)table);
    const struct graph_output *o = &w->opts.block->tables[table];
    const size_t element = dtype_size(o->dtype);
    if (field[3] >= o->width || bit >= 8 * element)
        return err_set(err, ST_USAGE, "TOKENTAB_DAMAGE: column %llu or bit %llu is not there",
                       (unsigned long long)field[3], (unsigned long long)bit);
    uint8_t *rows = unit->tables[route * unit->n_tables + table];
    rows[(row - unit->first_row) * worker_row_bytes(o) + field[3] * element + bit / 8] ^=
        (uint8_t)(1u << bit % 8);
    return ST_OK;
}
