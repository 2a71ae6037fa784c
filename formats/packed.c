/* SPDX-License-Identifier: Apache-2.0 */
/* Layout of a packed payload, and the coding of its chunks. */
#include "formats/packed.h"
#include "formats/packed_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- arithmetic ---------------------------------------------------------------------------- */

size_t packed_row_bytes(const struct packed_tensor *t)
{
    return (size_t)t->width * dtype_size(t->dtype);
}

uint64_t format_packed_chunks(const struct packed_tensor *t)
{
    return t->rows / t->rows_per_chunk + (t->rows % t->rows_per_chunk != 0);
}

uint64_t packed_chunk_rows(const struct packed_tensor *t, uint64_t chunk)
{
    return min_u64(t->rows_per_chunk, t->rows - chunk * t->rows_per_chunk);
}

uint64_t format_packed_total_chunks(const struct packed_layout *l)
{
    uint64_t n = 0;
    for (size_t i = 0; i < l->n_tensors; i++)
        n += format_packed_chunks(&l->tensors[i]);
    return n;
}

void format_packed_locate(const struct packed_layout *l, uint64_t i, uint32_t *tensor,
                          uint64_t *chunk)
{
    uint32_t t = 0;
    while (t + 1 < l->n_tensors && i >= format_packed_chunks(&l->tensors[t]))
        i -= format_packed_chunks(&l->tensors[t++]);
    *tensor = t;
    *chunk = i;
}

/* ---- entries ------------------------------------------------------------------------------- */

size_t packed_entry_size(const struct packed_tensor *t)
{
    return PACKED_DIGEST + t->n_segments * (12 + 4 * dtype_size(t->dtype));
}

void packed_coded_put(struct bytes *out, const struct packed_coded *c, size_t n_planes)
{
    bytes_put_u32(out, (uint32_t)c->mode);
    bytes_put_u32(out, c->plain_size);
    bytes_put_u32(out, c->content_size);
    for (size_t k = 0; k < n_planes; k++)
        bytes_put_u32(out, c->sizes[k]);
}

void packed_coded_get(struct bytes_reader *in, struct packed_coded *c, size_t n_planes)
{
    *c = (struct packed_coded){0};
    uint32_t mode = bytes_get_u32(in);
    c->mode = mode < MODE_COUNT ? (enum packed_mode)mode : MODE_COUNT;
    c->plain_size = bytes_get_u32(in);
    c->content_size = bytes_get_u32(in);
    for (size_t k = 0; k < n_planes; k++)
        c->sizes[k] = bytes_get_u32(in);
}

uint64_t packed_coded_bytes(const struct packed_coded *c)
{
    uint64_t sum = 0;
    for (size_t k = 0; k < PACKED_MAX_PLANES; k++)
        sum += c->sizes[k];
    return sum;
}

size_t packed_coded_frames(const struct packed_coded *c, size_t n_planes)
{
    return c->mode == MODE_SAME ? 0 : c->mode == MODE_SPARSE ? 1 : n_planes;
}

uint64_t packed_frame_content(const struct packed_coded *c, size_t n_elements)
{
    return c->mode == MODE_SPARSE ? c->content_size : n_elements;
}

/* ---- rules --------------------------------------------------------------------------------- */

/* The base exists, has the columns, and is stored without any base: a chunk then needs chunks of
 * one other kind, which need none, so that no file can send its reader round in circles. */
static enum status check_base(const struct packed_layout *l, const struct packed_tensor *t,
                              const struct packed_segment *s, const char *what, struct err *err)
{
    if (s->base_tensor >= l->n_tensors)
        return err_set(err, ST_FORMAT, "%s: tensor \"%s\": base tensor %" PRIu32 " of %zu", what,
                       t->name, s->base_tensor, l->n_tensors);
    const struct packed_tensor *b = &l->tensors[s->base_tensor];
    if (b->dtype != t->dtype || (b->rows != t->rows && b->rows != 1) || s->base_column > b->width ||
        s->width > b->width - s->base_column)
        return err_set(err, ST_FORMAT, "%s: tensor \"%s\": its base \"%s\" has another shape", what,
                       t->name, b->name);
    for (size_t i = 0; i < b->n_segments; i++)
        if (b->segments[i].has_base)
            return err_set(err, ST_FORMAT, "%s: tensor \"%s\": its base \"%s\" has a base itself",
                           what, t->name, b->name);
    return ST_OK;
}

static enum status check_tensor(const struct packed_tensor *t, const char *what, struct err *err)
{
    size_t element = dtype_size(t->dtype);
    uint64_t row_bytes, chunk_bytes, bytes, column = 0;
    if (element == 0 || t->rank < 1 || t->rank > 2 || t->width == 0 ||
        (t->rank == 1 && t->width != 1) || t->rows_per_chunk == 0)
        return err_set(err, ST_FORMAT, "%s: tensor \"%s\": bad dtype or shape", what, t->name);
    if (!mul_u64(t->width, element, &row_bytes) || !mul_u64(t->rows, row_bytes, &bytes) ||
        bytes > (uint64_t)INT64_MAX)
        return err_set(err, ST_FORMAT, "%s: tensor \"%s\": its size overflows", what, t->name);
    if (!mul_u64(t->rows_per_chunk, row_bytes, &chunk_bytes) || chunk_bytes > PACKED_MAX_CHUNK)
        return err_set(err, ST_FORMAT,
                       "%s: tensor \"%s\": chunks of %" PRIu64 " rows of %" PRIu64
                       " bytes, at most %d bytes are allowed",
                       what, t->name, t->rows_per_chunk, row_bytes, PACKED_MAX_CHUNK);
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct packed_segment *s = &t->segments[i];
        if (s->column != column || s->width == 0 || s->width > t->width - column)
            return err_set(err, ST_FORMAT, "%s: tensor \"%s\": segment %zu is out of place", what,
                           t->name, i);
        column += s->width;
    }
    if (column != t->width)
        return err_set(err, ST_FORMAT,
                       "%s: tensor \"%s\": segments cover %" PRIu64 " of %" PRIu64 " columns", what,
                       t->name, column, t->width);
    return ST_OK;
}

enum status packed_layout_check(const struct packed_layout *l, const char *what, struct err *err)
{
    for (size_t i = 0; i < l->n_tensors; i++)
        TRY(check_tensor(&l->tensors[i], what, err));
    for (size_t i = 0; i < l->n_tensors; i++)
        for (size_t k = 0; k < l->tensors[i].n_segments; k++)
            if (l->tensors[i].segments[k].has_base)
                TRY(check_base(l, &l->tensors[i], &l->tensors[i].segments[k], what, err));
    return ST_OK;
}

void format_packed_layout_free(struct packed_layout **layout)
{
    if (layout == NULL || *layout == NULL)
        return;
    for (size_t i = 0; (*layout)->tensors != NULL && i < (*layout)->n_tensors; i++) {
        free((*layout)->tensors[i].name);
        free((*layout)->tensors[i].segments);
    }
    free((*layout)->tensors);
    free(*layout);
    *layout = NULL;
}

/* ---- planning a recipe --------------------------------------------------------------------- */

static int compare_columns(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool bulk_uses(const struct format_recipe *r, size_t group)
{
    for (size_t i = 0; i < r->n_outputs; i++)
        if (r->outputs[i].group == group)
            return true;
    return false;
}

/* A bulk table that columns [first, end) of a profile's group can be compared with. */
static void find_base(const struct format_recipe *r, size_t group, struct packed_segment *s)
{
    for (size_t p = 0; p < r->n_profiles; p++)
        for (size_t i = 0; i < r->n_outputs; i++) {
            const struct format_placed *mine = &r->profiles[p].outputs[i], *bulk = &r->outputs[i];
            const struct format_group *b = &r->groups[bulk->group];
            if (mine->group != group || mine->column > s->column ||
                mine->column + mine->width < s->column + s->width || b->indexed ||
                (b->rows != r->groups[group].rows && b->rows != 1))
                continue;
            s->has_base = true;
            s->base_tensor = bulk->group;
            s->base_column = bulk->column + (s->column - mine->column);
            return;
        }
}

/* Neighbours that are coded alike become one segment: fewer, longer frames. */
static bool joins(const struct packed_segment *a, const struct packed_segment *b)
{
    if (a->has_base != b->has_base)
        return false;
    return !a->has_base ||
           (a->base_tensor == b->base_tensor && a->base_column + a->width == b->base_column);
}

/* Cut a profile's group where its tables begin and end. */
static enum status plan_segments(const struct format_recipe *r, size_t group, bool deltas,
                                 struct packed_tensor *t, struct err *err)
{
    size_t n_cuts = 2, capacity = 2 * r->n_outputs * r->n_profiles + 2;
    bool whole = !deltas || r->groups[group].indexed || bulk_uses(r, group);
    uint64_t *cuts = calloc(whole ? 2 : capacity, sizeof *cuts);
    if (cuts == NULL)
        return err_nomem(err, capacity * sizeof *cuts);
    cuts[1] = t->width;
    for (size_t p = 0; p < r->n_profiles && !whole; p++)
        for (size_t i = 0; i < r->n_outputs; i++) {
            const struct format_placed *o = &r->profiles[p].outputs[i];
            if (o->group != group)
                continue;
            cuts[n_cuts++] = o->column;
            cuts[n_cuts++] = o->column + o->width;
        }
    qsort(cuts, n_cuts, sizeof *cuts, compare_columns);
    t->segments = calloc(n_cuts, sizeof *t->segments);
    enum status st = t->segments != NULL ? ST_OK : err_nomem(err, n_cuts * sizeof *t->segments);
    for (size_t i = 1; i < n_cuts && st == ST_OK; i++) {
        struct packed_segment s = {.column = cuts[i - 1], .width = cuts[i] - cuts[i - 1]};
        if (s.width == 0)
            continue;
        if (!whole)
            find_base(r, group, &s);
        if (t->n_segments > 0 && joins(&t->segments[t->n_segments - 1], &s))
            t->segments[t->n_segments - 1].width += s.width;
        else
            t->segments[t->n_segments++] = s;
    }
    free(cuts);
    return st;
}

enum status format_packed_plan(const struct format_recipe *r, uint64_t chunk_bytes, bool deltas,
                               struct packed_layout **out, struct err *err)
{
    struct format_tensor_spec *specs = NULL;
    size_t n = 0;
    *out = NULL;
    TRY(format_recipe_tensors(r, &specs, &n, err));
    struct packed_layout *l = calloc(1, sizeof *l);
    enum status st = l != NULL ? ST_OK : err_nomem(err, sizeof *l);
    if (st == ST_OK) {
        l->tensors = calloc(n, sizeof *l->tensors);
        l->n_tensors = l->tensors != NULL ? n : 0;
        st = l->tensors != NULL ? ST_OK : err_nomem(err, n * sizeof *l->tensors);
    }
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        struct packed_tensor *t = &l->tensors[i];
        *t = (struct packed_tensor){.name = str_dup(specs[i].name),
                                    .dtype = specs[i].dtype,
                                    .rank = specs[i].rank,
                                    .rows = specs[i].shape[0],
                                    .width = specs[i].rank > 1 ? specs[i].shape[1] : 1};
        uint64_t wanted =
            min_u64(chunk_bytes > 0 ? chunk_bytes : PACKED_DEFAULT_CHUNK, PACKED_MAX_CHUNK);
        t->rows_per_chunk =
            min_u64(max_u64(wanted / max_u64(packed_row_bytes(t), 1), 1), max_u64(t->rows, 1));
        /* tensors behind the groups have no tables */
        if (t->name == NULL)
            st = err_nomem(err, strlen(specs[i].name));
        else
            st = plan_segments(r, i, deltas && i < r->n_groups, t, err);
    }
    format_tensor_specs_free(&specs, n);
    if (st == ST_OK)
        st = packed_layout_check(l, "packed payload", err);
    if (st == ST_OK)
        *out = l;
    else
        format_packed_layout_free(&l);
    return st;
}

/* ---- chunks -------------------------------------------------------------------------------- */

void format_packed_chunk_free(struct packed_chunk *c)
{
    bytes_free(&c->entry);
    bytes_free(&c->data);
}

/* What the coding of a chunk works with. */
struct encoding {
    const struct packed_layout *layout;
    const struct packed_tensor *tensor;
    format_packed_rows_fn rows;
    void *ctx;
    uint64_t first, n_rows;
    struct packed_coder *coder;
    uint8_t *elements, *base; /* of one segment, [n_rows, segment width] */
};

static void copy_columns(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride,
                         size_t size, uint64_t n_rows)
{
    if (dst_stride == size && src_stride == size) {
        memcpy(dst, src, size * (size_t)n_rows);
        return;
    }
    for (uint64_t i = 0; i < n_rows; i++)
        memcpy(dst + (size_t)i * dst_stride, src + (size_t)i * src_stride, size);
}

/* e->base gets the rows that segment s is compared with. */
static enum status fetch_base(const struct encoding *e, const struct packed_segment *s,
                              struct err *err)
{
    const struct packed_tensor *b = &e->layout->tensors[s->base_tensor];
    size_t element = dtype_size(b->dtype), size = (size_t)s->width * element;
    size_t stride = packed_row_bytes(b), offset = (size_t)s->base_column * element;
    uint64_t n = b->rows == 1 ? 1 : e->n_rows;
    void *whole = NULL;
    TRY(mem_alloc((size_t)n, stride, &whole, err));
    enum status st = e->rows(e->ctx, s->base_tensor, b->rows == 1 ? 0 : e->first, n, whole, err);
    if (st == ST_OK)
        copy_columns(e->base, size, (const uint8_t *)whole + offset, b->rows == 1 ? 0 : stride,
                     size, e->n_rows);
    free(whole);
    return st;
}

static enum status encode_segments(const struct encoding *e, const uint8_t *rows,
                                   struct packed_chunk *out, struct err *err)
{
    const struct packed_tensor *t = e->tensor;
    size_t element = dtype_size(t->dtype), stride = packed_row_bytes(t);
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct packed_segment *s = &t->segments[i];
        struct packed_coded coded;
        size_t size = (size_t)s->width * element;
        copy_columns(e->elements, size, rows + (size_t)s->column * element, stride, size,
                     e->n_rows);
        if (s->has_base)
            TRY(fetch_base(e, s, err));
        TRY(packed_segment_encode(e->coder, t->dtype, e->elements, s->has_base ? e->base : NULL,
                                  (size_t)(e->n_rows * s->width), &coded, &out->data, err));
        packed_coded_put(&out->entry, &coded, element);
    }
    return out->entry.failed ? err_nomem(err, out->entry.size) : ST_OK;
}

enum status format_packed_chunk_encode(const struct packed_layout *l, uint32_t tensor,
                                       uint64_t chunk, format_packed_rows_fn rows, void *ctx,
                                       struct packed_chunk *out, struct err *err)
{
    const struct packed_tensor *t = &l->tensors[tensor];
    struct encoding e = {.layout = l, .tensor = t, .rows = rows, .ctx = ctx};
    void *p[3] = {NULL, NULL, NULL};
    e.first = chunk * t->rows_per_chunk;
    e.n_rows = packed_chunk_rows(t, chunk);
    *out = (struct packed_chunk){0};
    size_t size = (size_t)e.n_rows * packed_row_bytes(t);
    enum status st = packed_coder_open(&e.coder, err);
    for (size_t i = 0; i < 3 && st == ST_OK; i++)
        st = mem_alloc(size, 1, &p[i], err);
    if (st == ST_OK)
        st = rows(ctx, tensor, e.first, e.n_rows, p[0], err);
    if (st == ST_OK) {
        struct digest d = digest_of(p[0], size);
        bytes_append(&out->entry, d.bytes, sizeof d.bytes);
        e.elements = p[1];
        e.base = p[2];
        st = encode_segments(&e, p[0], out, err);
    }
    for (size_t i = 0; i < 3; i++)
        free(p[i]);
    packed_coder_close(&e.coder);
    if (st != ST_OK)
        format_packed_chunk_free(out);
    return st;
}
