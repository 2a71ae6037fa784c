/* SPDX-License-Identifier: Apache-2.0 */
/* Every layout of ids under every route, block by block. */
#include "workers/layouts_internal.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK_ROWS = 256, BLOCK_BYTES = 16 << 20, MOST_CALL_ROWS = 4096 };

/* ---- memory -------------------------------------------------------------------------------- */

static bool is_projected(const struct layouts *k)
{
    return lookup_recipe(k->recipe)->kind == RECIPE_PROJECTED;
}

static enum status describe_outputs(struct layouts *k, struct err *err)
{
    void *memory = NULL;
    k->n_outputs = tokentab_n_outputs(k->recipe);
    TRY(mem_calloc(k->n_outputs, sizeof *k->outputs, &memory, err));
    k->outputs = memory;
    TRY(mem_calloc(k->n_outputs, sizeof *k->requests, &memory, err));
    k->requests = memory;
    for (size_t i = 0; i < k->n_outputs; i++) {
        struct tokentab_output_info info;
        if (tokentab_output(k->recipe, i, &info) != TOKENTAB_OK)
            return err_set(err, ST_INTERNAL, "layouts: output %zu is not there", i);
        struct layout_output *o = &k->outputs[i];
        o->name = info.name;
        o->dtype = lookup_dtype(info.dtype);
        o->element = dtype_size(o->dtype);
        if (!u64_to_size(info.width, &o->width))
            return err_nomem(err, SIZE_MAX);
    }
    return ST_OK;
}

/* Blocks small enough that their buffers stay below some tens of MiB; calls long enough to reach
 * bulk's first count of ids. */
static void choose_sizes(struct layouts *k, uint64_t n)
{
    size_t row_bytes = 1;
    for (size_t i = 0; i < k->n_outputs; i++)
        row_bytes += k->outputs[i].width * k->outputs[i].element;
    const size_t fit = BLOCK_BYTES / row_bytes;
    k->block_rows = (size_t)min_u64(n, fit < 1 ? 1 : fit < BLOCK_ROWS ? fit : BLOCK_ROWS);
    k->call_rows = 2 * k->block_rows;
    const size_t n_routes = tokentab_n_routes(k->recipe);
    if (n_routes < 2)
        return;
    const uint64_t last = tokentab_route_max_rows(k->recipe, n_routes - 1);
    if (last < MOST_CALL_ROWS && last + 1 > k->call_rows)
        k->call_rows = (size_t)last + 1;
}

static enum status alloc_buffers(struct layouts *k, struct err *err)
{
    void *memory = NULL;
    TRY(mem_alloc(2 * k->call_rows, sizeof *k->ids, &memory, err));
    k->ids = memory;
    TRY(mem_alloc(k->call_rows, sizeof *k->short_ids, &memory, err));
    k->short_ids = memory;
    TRY(mem_alloc(k->call_rows, sizeof *k->rows, &memory, err));
    k->rows = memory;
    for (size_t i = 0; i < k->n_outputs; i++) {
        struct layout_output *o = &k->outputs[i];
        TRY(mem_alloc(k->block_rows, o->width * o->element, &memory, err));
        o->expected = memory;
        TRY(mem_alloc(k->call_rows, (2 * o->width + 3) * o->element, &memory, err));
        o->found = memory;
    }
    if (!is_projected(k))
        return ST_OK;
    const size_t width = k->outputs[0].width;
    TRY(mem_alloc(k->block_rows, width * sizeof(double), &k->z_stored, err));
    TRY(mem_alloc(k->block_rows, sizeof(double), &k->r_stored, err));
    TRY(mem_alloc(k->block_rows, width * sizeof(double), &k->z, err));
    TRY(mem_alloc(k->block_rows, sizeof(double), &k->r, err));
    return mem_alloc(k->block_rows, width * sizeof(double), &k->y, err);
}

static enum status fetch_bias(struct layouts *k, struct err *err)
{
    const struct format_recipe *r = lookup_recipe(k->recipe);
    if (!is_projected(k) || !r->has_bias)
        return ST_OK;
    const size_t width = k->outputs[0].width;
    void *stored = NULL;
    TRY(mem_alloc(width, sizeof(double), &k->bias, err));
    TRY(mem_alloc(width, sizeof(double), &stored, err));
    const enum status st = k->source(k->source_ctx, 0, 2, 0, 1, stored, err);
    if (st == ST_OK)
        stored_widen(r->bias_dtype, stored, width, dtype_compute(k->outputs[0].dtype), k->bias);
    free(stored);
    return st;
}

static void free_layouts(struct layouts *k)
{
    for (size_t i = 0; k->outputs != NULL && i < k->n_outputs; i++) {
        free(k->outputs[i].expected);
        free(k->outputs[i].found);
    }
    free(k->outputs);
    free(k->requests);
    free(k->ids);
    free(k->short_ids);
    free(k->rows);
    free(k->z_stored);
    free(k->r_stored);
    free(k->z);
    free(k->r);
    free(k->bias);
    free(k->y);
}

/* ---- what has to come back ----------------------------------------------------------------- */

static enum status expect_projected(struct layouts *k, size_t route, struct err *err)
{
    const struct format_recipe *recipe = lookup_recipe(k->recipe);
    const size_t width = k->outputs[0].width;
    TRY(k->source(k->source_ctx, route, 0, k->first, k->n, k->z_stored, err));
    TRY(k->source(k->source_ctx, route, 1, k->first, k->n, k->r_stored, err));
    for (size_t i = 0; i < k->n_outputs; i++) {
        struct layout_output *o = &k->outputs[i];
        const enum dtype compute = dtype_compute(o->dtype);
        const enum dtype r_dtype = recipe->groups[recipe->outputs[1].group].dtype;
        stored_widen(recipe->groups[recipe->outputs[0].group].dtype, k->z_stored, k->n * width,
                     compute, k->z);
        stored_widen(r_dtype, k->r_stored, k->n, compute, k->r);
        TRY(kernels_combine_projected(o->dtype, k->n, width, k->z,
                                      strcmp(o->name, "normalized") == 0 ? k->r : NULL, k->bias,
                                      k->y, err));
        kernels_pack(o->dtype, k->y, k->n * width, o->expected);
    }
    return ST_OK;
}

static enum status expect_route(struct layouts *k, size_t route, struct err *err)
{
    if (is_projected(k))
        return expect_projected(k, route, err);
    for (size_t i = 0; i < k->n_outputs; i++)
        TRY(k->source(k->source_ctx, route, i, k->first, k->n, k->outputs[i].expected, err));
    return ST_OK;
}

/* ---- layouts ------------------------------------------------------------------------------- */

static int64_t id_of(const struct layouts *k, size_t row)
{
    return (int64_t)lookup_row_id(k->recipe, k->first + row);
}

/* ids[i] of block row rows[i], n of them, row i of the block at place i, over and over. */
static void fill_ids(struct layouts *k, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        k->rows[i] = i % k->n;
        k->ids[i] = id_of(k, i % k->n);
    }
}

static struct layout_call make_call(const struct layouts *k, const char *layout, size_t n,
                                    size_t route)
{
    return (struct layout_call){.layout = layout,
                                .ids = {.data = k->ids, .type = TOKENTAB_I64, .rank = 1},
                                .n = n,
                                .rows = k->rows,
                                .route = route};
}

static enum status check_scalars(struct layouts *k, size_t route, struct err *err)
{
    fill_ids(k, k->n);
    const bool natural = tokentab_route(k->recipe, 1) == route;
    for (size_t i = 0; i < k->n; i++) {
        struct layout_call c = make_call(k, "scalar", 1, route);
        c.ids.data = k->ids + i;
        c.ids.rank = 0;
        c.rows = k->rows + i;
        TRY(layout_check(k, &c, err));
        c.by_count = true;
        if (natural)
            TRY(layout_check(k, &c, err));
    }
    return ST_OK;
}

static enum status check_shapes(struct layouts *k, size_t route, struct err *err)
{
    const int64_t n = (int64_t)k->n;
    const struct {
        const char *layout;
        unsigned rank;
        int64_t shape[3];
    } shapes[] = {{"(n)", 1, {n, 0, 0}},
                  {"(n,1)", 2, {n, 1, 0}},
                  {"(1,n)", 2, {1, n, 0}},
                  {"(1,1,n)", 3, {1, 1, n}},
                  {"(2,k)", 2, {2, n / 2, 0}}};
    fill_ids(k, k->n);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct layout_call c = make_call(k, shapes[i].layout, k->n, route);
        c.ids.rank = shapes[i].rank;
        c.ids.shape = shapes[i].shape;
        if (shapes[i].shape[0] == 2 && shapes[i].rank == 2)
            c.n = k->n / 2 * 2;
        TRY(layout_check(k, &c, err));
    }
    struct layout_call c = make_call(k, "one output a call", k->n, route);
    c.ids.shape = &n;
    TRY(layout_check_single(k, &c, err));
    c.layout = "strided outputs";
    return layout_check_strided(k, &c, err);
}

/* Ids with others between them that no call may read as ids. */
static enum status check_strides(struct layouts *k, size_t route, struct err *err)
{
    const int64_t n = (int64_t)k->n, two[1] = {2}, back[1] = {-1};
    struct layout_call c = make_call(k, "strided", k->n, route);
    for (size_t i = 0; i < k->n; i++) {
        k->rows[i] = i;
        k->ids[2 * i] = id_of(k, i);
        k->ids[2 * i + 1] = -1;
    }
    c.ids.shape = &n;
    c.ids.strides = two;
    TRY(layout_check(k, &c, err));
    for (size_t i = 0; i < k->n; i++) {
        k->rows[i] = k->n - 1 - i;
        k->ids[i] = id_of(k, i);
    }
    c.layout = "flipped";
    c.ids.data = k->ids + (k->n - 1);
    c.ids.strides = back;
    return layout_check(k, &c, err);
}

static enum status check_two_axes(struct layouts *k, size_t route, struct err *err)
{
    const int64_t n = (int64_t)k->n, half = n / 2;
    const struct {
        const char *layout;
        int64_t shape[2], strides[2];
    } cases[] = {{"expanded (2,n)", {2, n}, {0, 1}},
                 {"expanded (n,2)", {n, 2}, {1, 0}},
                 {"interleaved", {2, half}, {1, 2}}};
    for (size_t i = 0; i < k->n; i++)
        k->ids[i] = id_of(k, i);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct layout_call c = make_call(k, cases[i].layout, 0, route);
        c.ids.rank = 2;
        c.ids.shape = cases[i].shape;
        c.ids.strides = cases[i].strides;
        for (int64_t a = 0; a < cases[i].shape[0]; a++)
            for (int64_t b = 0; b < cases[i].shape[1]; b++)
                k->rows[c.n++] = (size_t)(a * cases[i].strides[0] + b * cases[i].strides[1]);
        TRY(layout_check(k, &c, err));
    }
    return ST_OK;
}

static enum status check_int32(struct layouts *k, size_t route, struct err *err)
{
    const int64_t n = (int64_t)k->n;
    fill_ids(k, k->n);
    for (size_t i = 0; i < k->n; i++) {
        if (k->ids[i] > INT32_MAX)
            return ST_OK; /* a vocabulary that int32 cannot name */
        k->short_ids[i] = (int32_t)k->ids[i];
    }
    struct layout_call c = make_call(k, "int32", k->n, route);
    c.ids.type = TOKENTAB_I32;
    c.ids.data = k->short_ids;
    c.ids.shape = &n;
    TRY(layout_check(k, &c, err));
    k->short_ids[k->n - 1] = -1;
    c.layout = "outside the vocabulary, int32";
    return layout_check_refused(k, &c, err);
}

static enum status check_empty(struct layouts *k, size_t route, struct err *err)
{
    static const struct {
        const char *layout;
        unsigned rank;
        int64_t shape[3];
    } shapes[] = {{"empty (0)", 1, {0, 0, 0}},
                  {"empty (2,0)", 2, {2, 0, 0}},
                  {"empty (0,3,2)", 3, {0, 3, 2}}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct layout_call c = make_call(k, shapes[i].layout, 0, route);
        c.ids.data = NULL;
        c.ids.rank = shapes[i].rank;
        c.ids.shape = shapes[i].shape;
        TRY(layout_check(k, &c, err));
        c.by_count = true;
        TRY(layout_check(k, &c, err));
    }
    return ST_OK;
}

static enum status check_outside(struct layouts *k, size_t route, struct err *err)
{
    const uint64_t vocabulary = tokentab_num_embeddings(k->recipe);
    int64_t bad[5] = {-1, (int64_t)vocabulary, INT64_MAX, INT64_MIN, -1};
    const int64_t n = (int64_t)k->n;
    /* With an id list: one between two of its ids. */
    for (size_t i = 0; i + 1 < k->n; i++)
        if (id_of(k, i) + 1 < id_of(k, i + 1))
            bad[4] = id_of(k, i) + 1;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct layout_call c = make_call(k, "outside the vocabulary", k->n, route);
        fill_ids(k, k->n);
        k->ids[i % 2 == 0 ? k->n - 1 : 0] = bad[i];
        c.ids.shape = &n;
        TRY(layout_check_refused(k, &c, err));
    }
    return ST_OK;
}

/* Both ends of each route's interval of counts, the lookup choosing the route. */
static enum status check_counts(struct layouts *k, size_t route, struct err *err)
{
    const size_t n_routes = tokentab_n_routes(k->recipe);
    const size_t before = route == 0 ? n_routes - 1 : route - 1;
    const uint64_t low = before == 0 ? 1 : tokentab_route_max_rows(k->recipe, before) + 1;
    const uint64_t high = route == 0 ? low + 1 : tokentab_route_max_rows(k->recipe, route);
    const uint64_t counts[2] = {low, high};
    for (size_t i = 0; i < 2; i++) {
        const int64_t shape[2] = {1, (int64_t)counts[i]};
        if (counts[i] > k->call_rows)
            continue;
        fill_ids(k, (size_t)counts[i]);
        struct layout_call c = make_call(k, "by number of ids", (size_t)counts[i], route);
        c.by_count = true;
        c.ids.shape = shape + 1;
        TRY(layout_check(k, &c, err));
        c.ids.rank = 2;
        c.ids.shape = shape;
        TRY(layout_check(k, &c, err));
    }
    return ST_OK;
}

static enum status check_block(struct layouts *k, bool first_block, struct err *err)
{
    for (size_t route = 0; route < tokentab_n_routes(k->recipe); route++) {
        TRY(expect_route(k, route, err));
        TRY(check_scalars(k, route, err));
        TRY(check_shapes(k, route, err));
        TRY(check_strides(k, route, err));
        TRY(check_two_axes(k, route, err));
        TRY(check_int32(k, route, err));
        TRY(check_empty(k, route, err));
        TRY(check_outside(k, route, err));
        if (first_block)
            TRY(check_counts(k, route, err));
    }
    return ST_OK;
}

static enum status check_range(struct layouts *k, uint64_t first, uint64_t n, worker_tick_fn tick,
                               void *tick_ctx, struct err *err)
{
    TRY(describe_outputs(k, err));
    choose_sizes(k, n);
    TRY(alloc_buffers(k, err));
    TRY(fetch_bias(k, err));
    for (uint64_t at = 0; at < n; at += k->n) {
        if (tick != NULL)
            TRY(tick(tick_ctx, err));
        k->first = first + at;
        k->n = (size_t)min_u64(n - at, k->block_rows);
        TRY(check_block(k, at == 0, err));
        tokentab_trim(k->recipe);
    }
    return ST_OK;
}

enum status worker_layouts_check(struct tokentab_recipe *recipe, uint64_t first, uint64_t n,
                                 worker_table_fn source, void *source_ctx, worker_tick_fn tick,
                                 void *tick_ctx, uint64_t *n_checks, struct err *err)
{
    struct layouts k = {.recipe = recipe, .source = source, .source_ctx = source_ctx};
    *n_checks = 0;
    const uint64_t rows = lookup_n_rows(recipe);
    if (first > rows || n > rows - first)
        return err_set(err, ST_USAGE, "layouts: rows %llu to %llu: the recipe has %llu",
                       (unsigned long long)first, (unsigned long long)(first + n),
                       (unsigned long long)rows);
    if (n == 0)
        return ST_OK;
    const enum status st = check_range(&k, first, n, tick, tick_ctx, err);
    *n_checks = k.n_checks;
    free_layouts(&k);
    return st;
}
