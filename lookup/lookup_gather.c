/* SPDX-License-Identifier: Apache-2.0 */
/* Gather: all ids are checked in a first pass over blocks, rows are copied in a second. */
#include "lookup/lookup_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum target_op { TARGET_COPY, TARGET_RAW, TARGET_NORMALIZED };

/* A stored table under the call's route, and the chunk of it that is held (packed payloads). */
struct source {
    const struct lookup_group *group;
    size_t column_bytes;
    struct packed_rows held;
};

/* One request, resolved. */
struct target {
    enum target_op op;
    enum dtype dtype;
    size_t element, width, row_bytes;
    struct source table, norm; /* norm: "r" of a projected recipe */
    uint8_t *data;
    struct lookup_walk walk;
    int64_t column_stride;
    bool stream;      /* write around the caches */
    int64_t *offsets; /* [LOOKUP_BLOCK], elements */
    uint8_t *scratch; /* [row_bytes], when columns are strided */
};

struct gather {
    struct tokentab_recipe *recipe;
    struct target *targets;
    size_t n_targets;
    struct tokentab_error *err;
};

/* Outputs that no cache holds are written past it: a third of the traffic of a plain copy is the
 * reading of lines that are about to be overwritten. */
static const size_t STREAM_FROM = (size_t)8 << 20;
enum { STREAM_ROW = 256, STREAM_UNIT = 64 };

/* ---- resolving ----------------------------------------------------------------------------- */

static struct source source_of(const struct tokentab_recipe *recipe, size_t route, size_t table)
{
    const struct format_placed *p = lookup_placed(recipe, route, table);
    const struct lookup_group *g = &recipe->groups[p->group];
    return (struct source){.group = g, .column_bytes = (size_t)p->column * g->element};
}

static enum tokentab_status resolve_place(const struct gather *g, struct target *t,
                                          const struct tokentab_request *q,
                                          const struct tokentab_ids *ids, uint64_t n)
{
    size_t total;
    if (n > 0 && q->data == NULL)
        return lookup_fail(g->err, TOKENTAB_EINVAL, "output %zu: no data", q->output);
    if (!mul_size((size_t)n, t->row_bytes, &total) || total > (size_t)PTRDIFF_MAX)
        return lookup_fail(g->err, TOKENTAB_EINVAL,
                           "output %zu: %" PRIu64 " rows of %zu bytes overflow", q->output, n,
                           t->row_bytes);
    if (q->strides == NULL && q->capacity_bytes < total)
        return lookup_fail(g->err, TOKENTAB_EINVAL, "output %zu: %zu bytes of room, %zu are needed",
                           q->output, q->capacity_bytes, total);
    /* the column is one more dimension while offsets are checked */
    struct lookup_walk check;
    int64_t shape[LOOKUP_MAX_DIMS + 1] = {0};
    unsigned rank = ids->rank;
    for (unsigned d = 0; d < rank; d++)
        shape[d] = ids->shape[d];
    t->column_stride = q->strides != NULL ? q->strides[rank] : 1;
    int64_t column[1] = {(int64_t)t->width};
    if (!lookup_walk_start(&t->walk, rank, shape, q->strides, (int64_t)t->width) ||
        !lookup_walk_start(&check, 1, column, &t->column_stride, 1))
        return lookup_fail(g->err, TOKENTAB_EINVAL, "output %zu: the strides overflow", q->output);
    t->data = q->data;
    t->stream = total >= STREAM_FROM && t->row_bytes >= STREAM_ROW;
    return TOKENTAB_OK;
}

static enum tokentab_status resolve(const struct gather *g, struct target *t,
                                    const struct tokentab_request *q,
                                    const struct tokentab_ids *ids, size_t route, uint64_t n)
{
    const struct tokentab_recipe *recipe = g->recipe;
    if (q->output >= tokentab_n_outputs(recipe))
        return lookup_fail(g->err, TOKENTAB_EINVAL, "output %zu: the recipe has %zu", q->output,
                           tokentab_n_outputs(recipe));
    bool projected = recipe->r->kind == RECIPE_PROJECTED;
    size_t table = projected ? 0 : q->output;
    t->op = !projected ? TARGET_COPY : q->output == 0 ? TARGET_RAW : TARGET_NORMALIZED;
    t->table = source_of(recipe, route, table);
    if (projected)
        t->norm = source_of(recipe, route, 1);
    if (t->op == TARGET_RAW && recipe->bias == NULL)
        t->op = TARGET_COPY;
    t->dtype = t->table.group->dtype;
    t->element = t->table.group->element;
    t->width = (size_t)lookup_placed(recipe, route, table)->width;
    t->row_bytes = t->width * t->element;
    enum tokentab_status st = resolve_place(g, t, q, ids, n);
    if (st != TOKENTAB_OK || n == 0)
        return st;
    struct err fault = {0};
    void *p = NULL;
    enum status made = mem_alloc((size_t)min_u64(n, LOOKUP_BLOCK), sizeof *t->offsets, &p, &fault);
    t->offsets = p;
    p = NULL;
    if (made == ST_OK && t->op != TARGET_COPY && t->column_stride != 1)
        made = mem_alloc(t->row_bytes, 1, &p, &fault);
    t->scratch = p;
    return made == ST_OK ? TOKENTAB_OK : lookup_fail_err(g->err, made, &fault);
}

/* ---- copying ------------------------------------------------------------------------------- */

/* First byte of the source's columns in table row `row`. */
static enum tokentab_status source_row(const struct gather *g, struct source *s, uint64_t row,
                                       const uint8_t **out)
{
    const struct lookup_group *group = s->group;
    uint64_t at = lookup_group_row(group, row);
    if (at >= group->rows)
        return lookup_fail(g->err, TOKENTAB_EFORMAT,
                           "row index %" PRIu64 " of %" PRIu64 ": the payload changed while open",
                           at, group->rows);
    if (group->data != NULL) {
        *out = group->data + (size_t)at * group->row_bytes + s->column_bytes;
        return TOKENTAB_OK;
    }
    if (s->held.slot == NULL || at < s->held.first || at - s->held.first >= s->held.n) {
        struct err fault = {0};
        format_packed_release(g->recipe->packed, &s->held);
        enum status st =
            format_packed_acquire(g->recipe->packed, group->tensor, at, &s->held, &fault);
        if (st != ST_OK)
            return lookup_fail_err(g->err, st, &fault);
    }
    *out = s->held.data + (size_t)(at - s->held.first) * group->row_bytes + s->column_bytes;
    return TOKENTAB_OK;
}

static inline void copy_bytes(uint8_t *dst, const uint8_t *src, size_t size, bool stream)
{
#ifdef __SSE2__
    if (stream && (uintptr_t)dst % sizeof(__m128i) == 0) {
        size_t whole = size / STREAM_UNIT * STREAM_UNIT;
        for (size_t i = 0; i < whole; i += STREAM_UNIT) {
            __m128i unit[STREAM_UNIT / sizeof(__m128i)];
            memcpy(unit, src + i, sizeof unit);
            for (size_t k = 0; k < STREAM_UNIT / sizeof(__m128i); k++)
                _mm_stream_si128((__m128i *)(void *)(dst + i) + k, unit[k]);
        }
        dst += whole;
        src += whole;
        size -= whole;
    }
#else
    (void)stream;
#endif
    memcpy(dst, src, size);
}

static void scatter(const struct target *t, const uint8_t *src, uint8_t *dst)
{
    int64_t step = t->column_stride * (int64_t)t->element;
    for (size_t i = 0; i < t->width; i++)
        memcpy(dst + (int64_t)i * step, src + i * t->element, t->element);
}

static enum tokentab_status copy_row(const struct gather *g, struct target *t, uint64_t row,
                                     int64_t offset)
{
    const uint8_t *src, *norm = NULL;
    uint8_t *dst = t->data + offset * (int64_t)t->element;
    enum tokentab_status st = source_row(g, &t->table, row, &src);
    if (st == TOKENTAB_OK && t->op == TARGET_NORMALIZED)
        st = source_row(g, &t->norm, row, &norm);
    if (st != TOKENTAB_OK)
        return st;
    if (t->op != TARGET_COPY) {
        uint8_t *to = t->column_stride == 1 ? dst : t->scratch;
        lookup_project_row(t->dtype, src, norm, g->recipe->bias, t->op == TARGET_NORMALIZED,
                           t->width, to);
        src = to;
    }
    if (t->column_stride != 1)
        scatter(t, src, dst);
    else if (src != dst)
        copy_bytes(dst, src, t->row_bytes, t->stream);
    return TOKENTAB_OK;
}

enum { PREFETCH_AHEAD = 8, PREFETCH_BYTES = 256, CACHE_LINE = 64 };

static inline void prefetch_row(const uint8_t *p, size_t size)
{
    /* the hardware follows a row once it has begun */
    size_t end = size < PREFETCH_BYTES ? size : PREFETCH_BYTES;
    for (size_t i = 0; i < end; i += CACHE_LINE)
        __builtin_prefetch(p + i);
}

/* A fixed size lets the compiler copy without a call. */
#define COPY_FIXED(size)                                                                           \
    case size:                                                                                     \
        for (size_t i = 0; i < n; i++) {                                                           \
            if (i + 2 * PREFETCH_AHEAD < n)                                                        \
                __builtin_prefetch(base + (size_t)rows[i + 2 * PREFETCH_AHEAD] * stride);          \
            memcpy(dst + i * (size), base + (size_t)rows[i] * stride, size);                       \
        }                                                                                          \
        return

/* Contiguous output, mapped rows one for one: no bookkeeping between copies. */
static void copy_block(const struct target *t, const uint64_t *rows, size_t n, uint8_t *dst)
{
    const struct lookup_group *g = t->table.group;
    const uint8_t *base = g->data + t->table.column_bytes;
    size_t stride = g->row_bytes, size = t->row_bytes;
    switch (size) {
        COPY_FIXED(2);
        COPY_FIXED(4);
        COPY_FIXED(8);
        COPY_FIXED(16);
        COPY_FIXED(32);
        COPY_FIXED(64);
        COPY_FIXED(128);
    default:
        break;
    }
    for (size_t i = 0; i < n; i++) {
        if (i + PREFETCH_AHEAD < n)
            prefetch_row(base + (size_t)rows[i + PREFETCH_AHEAD] * stride, size);
        copy_bytes(dst + i * size, base + (size_t)rows[i] * stride, size, t->stream);
    }
}

static bool is_plain(const struct target *t)
{
    return t->op == TARGET_COPY && t->walk.contiguous && t->column_stride == 1 &&
           t->table.group->data != NULL && t->table.group->index == NULL &&
           t->table.group->rows > 1;
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Order of a block's rows in which every packed chunk is met once. */
static void order_rows(const uint64_t *rows, size_t n, uint16_t *order)
{
    uint64_t keys[LOOKUP_BLOCK];
    _Static_assert(LOOKUP_BLOCK == 1 << 10, "ten bits of a key hold a place in the block");
    for (size_t i = 0; i < n; i++) /* format_recipe_check: rows are below 2^54 */
        keys[i] = rows[i] << 10 | i;
    qsort(keys, n, sizeof *keys, compare_u64);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint16_t)(keys[i] & (LOOKUP_BLOCK - 1));
}

static enum tokentab_status gather_block(struct gather *g, const uint64_t *rows, uint64_t place,
                                         size_t n)
{
    if (g->n_targets == 1 && is_plain(&g->targets[0])) {
        struct target *t = &g->targets[0];
        copy_block(t, rows, n, t->data + (size_t)place * t->row_bytes);
        return TOKENTAB_OK;
    }
    uint16_t order[LOOKUP_BLOCK];
    bool ordered = g->recipe->packed != NULL && n > 1;
    if (ordered)
        order_rows(rows, n, order);
    for (size_t j = 0; j < g->n_targets; j++)
        lookup_walk_next(&g->targets[j].walk, n, g->targets[j].offsets);
    for (size_t k = 0; k < n; k++) {
        size_t i = ordered ? order[k] : k;
        for (size_t j = 0; j < g->n_targets; j++) {
            struct target *t = &g->targets[j];
            if (!ordered && k + PREFETCH_AHEAD < n && t->table.group->index == NULL &&
                t->table.group->rows > 1 && t->table.group->data != NULL)
                prefetch_row(t->table.group->data +
                                 (size_t)rows[k + PREFETCH_AHEAD] * t->table.group->row_bytes +
                                 t->table.column_bytes,
                             t->row_bytes);
            enum tokentab_status st = copy_row(g, t, rows[i], t->offsets[i]);
            if (st != TOKENTAB_OK)
                return st;
        }
    }
    return TOKENTAB_OK;
}

static enum tokentab_status gather_all(struct gather *g, const struct tokentab_ids *ids, uint64_t n)
{
    uint64_t rows[LOOKUP_BLOCK];
    struct lookup_walk w;
    enum tokentab_status st = TOKENTAB_OK;
    for (int pass = 0; pass < 2; pass++) {
        if (!lookup_walk_start(&w, ids->rank, ids->shape, ids->strides, 1))
            return lookup_fail(g->err, TOKENTAB_EINVAL, "ids: the strides overflow");
        for (uint64_t place = 0; place < n && st == TOKENTAB_OK; place += LOOKUP_BLOCK) {
            size_t size = (size_t)min_u64(n - place, LOOKUP_BLOCK);
            if (pass == 0 || n > LOOKUP_BLOCK) /* a single block is still there */
                st = lookup_ids_rows(g->recipe, ids, &w, place, size, rows, g->err);
            if (st == TOKENTAB_OK && pass == 1)
                st = gather_block(g, rows, place, size);
        }
        if (st != TOKENTAB_OK)
            return st;
    }
    return TOKENTAB_OK;
}

static enum tokentab_status choose_route(const struct tokentab_recipe *recipe, int route,
                                         uint64_t n, size_t *out, struct tokentab_error *err)
{
    *out = route < 0 ? tokentab_route(recipe, n) : (size_t)route;
    if (route < -1 || *out >= recipe->n_routes)
        return lookup_fail(err, TOKENTAB_EINVAL, "route %d: the recipe has %zu", route,
                           recipe->n_routes);
    return TOKENTAB_OK;
}

enum tokentab_status tokentab_gather(struct tokentab_recipe *recipe, const struct tokentab_ids *ids,
                                     int route, const struct tokentab_request *requests, size_t n,
                                     struct tokentab_error *err)
{
    enum { FEW = 8 };
    struct target few[FEW] = {0};
    struct gather g = {.recipe = recipe, .targets = few, .n_targets = n, .err = err};
    uint64_t n_ids = 0;
    size_t at = 0;
    if (recipe == NULL || (n > 0 && requests == NULL))
        return lookup_fail(err, TOKENTAB_EINVAL, "gather: NULL argument");
    enum tokentab_status st = lookup_ids_count(ids, &n_ids, err);
    if (st == TOKENTAB_OK)
        st = choose_route(recipe, route, n_ids, &at, err);
    if (st != TOKENTAB_OK)
        return st;
    if (n > FEW && (g.targets = calloc(n, sizeof *g.targets)) == NULL)
        return lookup_fail(err, TOKENTAB_ENOMEM, "gather: %zu outputs do not fit in memory", n);
    for (size_t j = 0; j < n && st == TOKENTAB_OK; j++)
        st = resolve(&g, &g.targets[j], &requests[j], ids, at, n_ids);
    if (st == TOKENTAB_OK)
        st = gather_all(&g, ids, n_ids);
#ifdef __SSE2__
    _mm_sfence(); /* streamed rows are there before whatever tells another thread so */
#endif
    for (size_t j = 0; j < n; j++) {
        struct target *t = &g.targets[j];
        free(t->offsets);
        free(t->scratch);
        if (recipe->packed != NULL) {
            format_packed_release(recipe->packed, &t->table.held);
            format_packed_release(recipe->packed, &t->norm.held);
        }
    }
    if (g.targets != few)
        free(g.targets);
    return st;
}

enum tokentab_status tokentab_gather_rows(struct tokentab_recipe *recipe, const int64_t *ids,
                                          size_t n, size_t output, void *data,
                                          size_t capacity_bytes, struct tokentab_error *err)
{
    if (n > (size_t)INT64_MAX)
        return lookup_fail(err, TOKENTAB_EINVAL, "gather: %zu ids", n);
    const int64_t shape[1] = {(int64_t)n};
    const struct tokentab_ids list = {.data = ids, .type = TOKENTAB_I64, .rank = 1, .shape = shape};
    const struct tokentab_request q = {
        .output = output, .data = data, .capacity_bytes = capacity_bytes};
    return tokentab_gather(recipe, &list, -1, &q, 1, err);
}

/* ---- prefetch ------------------------------------------------------------------------------ */

static void prefetch_sorted(struct tokentab_recipe *recipe, size_t route, const uint64_t *rows,
                            size_t n)
{
    size_t n_tables = recipe->r->n_outputs;
    for (size_t j = 0; j < n_tables; j++) {
        const struct source s = source_of(recipe, route, j);
        bool seen = false; /* one group serves several outputs */
        for (size_t k = 0; k < j; k++)
            seen = seen || source_of(recipe, route, k).group == s.group;
        for (size_t i = 0; i < n && !seen; i++) {
            uint64_t at = lookup_group_row(s.group, rows[i]);
            if (at >= s.group->rows)
                continue;
            if (s.group->data == NULL)
                format_packed_prefetch(recipe->packed, s.group->tensor, at);
            else
                lookup_payload_advise(recipe, s.group->data + (size_t)at * s.group->row_bytes,
                                      s.group->row_bytes);
        }
    }
}

enum tokentab_status tokentab_prefetch(struct tokentab_recipe *recipe,
                                       const struct tokentab_ids *ids, int route,
                                       struct tokentab_error *err)
{
    uint64_t rows[LOOKUP_BLOCK], n = 0;
    size_t at = 0;
    struct lookup_walk w;
    if (recipe == NULL)
        return lookup_fail(err, TOKENTAB_EINVAL, "prefetch: NULL argument");
    enum tokentab_status st = lookup_ids_count(ids, &n, err);
    if (st == TOKENTAB_OK)
        st = choose_route(recipe, route, n, &at, err);
    if (st != TOKENTAB_OK)
        return st;
    if (!lookup_walk_start(&w, ids->rank, ids->shape, ids->strides, 1))
        return lookup_fail(err, TOKENTAB_EINVAL, "ids: the strides overflow");
    for (uint64_t place = 0; place < n && st == TOKENTAB_OK; place += LOOKUP_BLOCK) {
        size_t size = (size_t)min_u64(n - place, LOOKUP_BLOCK);
        st = lookup_ids_rows(recipe, ids, &w, place, size, rows, err);
        if (st != TOKENTAB_OK)
            break;
        qsort(rows, size, sizeof *rows, compare_u64);
        size_t kept = 0;
        for (size_t i = 0; i < size; i++)
            if (kept == 0 || rows[kept - 1] != rows[i])
                rows[kept++] = rows[i];
        prefetch_sorted(recipe, at, rows, kept);
    }
    return st;
}
