/* SPDX-License-Identifier: Apache-2.0 */
/* The payload of an open recipe: a mapped safetensors file, or a packed one behind a cache.
 *
 * The map is shared and read-only, so that processes share pages.  Its size is checked when it is
 * opened; a file that somebody cuts afterwards raises SIGBUS in its readers, so recipes are
 * replaced by rename, never rewritten. */
#define _DEFAULT_SOURCE
#include "lookup/lookup_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* What a pass over a large payload keeps resident. */
static const size_t PAYLOAD_WINDOW = (size_t)4 << 20;
enum { NUMBERS_WINDOW = 1 << 16 };

static enum status check_spec(const char *path, const struct format_tensor_spec *want,
                              const char *name, enum dtype dtype, unsigned rank,
                              const uint64_t *shape, struct err *err)
{
    if (strcmp(want->name, name) != 0)
        return err_set(err, ST_FORMAT, "%s: tensor \"%.100s\", expected \"%s\"", path, name,
                       want->name);
    if (want->dtype != dtype || want->rank != rank || want->shape[0] != shape[0] ||
        (rank > 1 && want->shape[1] != shape[1]))
        return err_set(err, ST_FORMAT,
                       "%s: tensor \"%s\": rank %u, %" PRIu64 " rows, %" PRIu64
                       " columns of %s, expected rank %u, %" PRIu64 ", %" PRIu64 " of %s",
                       path, name, rank, shape[0], rank > 1 ? shape[1] : 1, dtype_name(dtype),
                       want->rank, want->shape[0], want->rank > 1 ? want->shape[1] : 1,
                       dtype_name(want->dtype));
    return ST_OK;
}

static enum status check_count(const char *path, size_t found, size_t wanted, struct err *err)
{
    if (found == wanted)
        return ST_OK;
    return err_set(err, ST_FORMAT, "%s: %zu tensors, expected %zu", path, found, wanted);
}

static enum status check_size(const struct tokentab_recipe *recipe, const char *path, uint64_t size,
                              struct err *err)
{
    if (size == recipe->r->payload_bytes)
        return ST_OK;
    return err_set(err, ST_FORMAT, "%s: corrupt: %" PRIu64 " bytes, expected %" PRIu64, path, size,
                   recipe->r->payload_bytes);
}

/* Where the bytes of each payload tensor begin: groups, index tensors, ids, bias. */
static void place_tensor(struct tokentab_recipe *recipe, size_t i, const uint8_t *data)
{
    const struct format_recipe *r = recipe->r;
    if (i < r->n_groups) {
        recipe->groups[i].data = data;
        return;
    }
    i -= r->n_groups;
    for (size_t k = 0; k < r->n_groups; k++) {
        if (!r->groups[k].indexed)
            continue;
        if (i-- == 0) {
            recipe->groups[k].index = data;
            return;
        }
    }
    if (r->has_ids && i-- == 0)
        recipe->ids = data;
    else if (r->has_bias && i == 0)
        recipe->bias = data;
}

static enum status open_mapped(struct tokentab_recipe *recipe, const char *path,
                               const struct format_tensor_spec *specs, size_t n, struct err *err)
{
    struct format_safetensors *f = NULL;
    TRY(format_safetensors_open(path, 0, &f, err));
    enum status st = check_size(recipe, path, f->file_size, err);
    if (st == ST_OK)
        st = check_count(path, f->n_tensors, n, err);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const struct format_tensor *t = format_safetensors_find(f, specs[i].name);
        if (t == NULL)
            st = err_set(err, ST_FORMAT, "%s: tensor \"%s\" is missing", path, specs[i].name);
        else
            st = check_spec(path, &specs[i], t->name, t->dtype, t->rank, t->shape, err);
    }
    size_t size = 0;
    if (st == ST_OK && !u64_to_size(f->file_size, &size))
        st = err_set(err, ST_NOMEM, "%s: too large to map", path);
    if (st == ST_OK) {
        void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, f->fd, 0);
        if (map == MAP_FAILED)
            st = err_set(err, errno == ENOMEM ? ST_NOMEM : ST_IO, "%s: mmap: %s", path,
                         strerror(errno));
        else {
            recipe->map = map;
            recipe->map_size = size;
        }
    }
    for (size_t i = 0; i < n && st == ST_OK; i++)
        place_tensor(recipe, i, recipe->map + format_safetensors_find(f, specs[i].name)->offset);
    format_safetensors_close(&f);
    return st;
}

/* ---- checks of content --------------------------------------------------------------------- */

/* Ids of rows [first, first + n) ascend from the one before and stay in the vocabulary. */
static enum status check_ids(const struct tokentab_recipe *recipe, const char *path, uint64_t first,
                             uint64_t n, struct err *err)
{
    for (uint64_t i = first; i < first + n; i++) {
        uint64_t id = lookup_row_id(recipe, i);
        if (id >= recipe->r->num_embeddings || (i > 0 && id <= lookup_row_id(recipe, i - 1)))
            return err_set(err, ST_FORMAT,
                           "%s: ids[%" PRIu64 "] is %" PRId64
                           ", expected ascending ids below %" PRIu64,
                           path, i, (int64_t)id, recipe->r->num_embeddings);
    }
    return ST_OK;
}

static enum status check_index(const struct tokentab_recipe *recipe, const struct lookup_group *g,
                               const char *path, uint64_t first, uint64_t n, struct err *err)
{
    for (uint64_t i = first; i < first + n; i++)
        if (lookup_group_row(g, i) >= g->rows)
            return err_set(err, ST_FORMAT,
                           "%s: tables.group_%td.index[%" PRIu64 "] is %" PRId64
                           ", expected 0 <= row < %" PRIu64,
                           path, g - recipe->groups, i, (int64_t)lookup_group_row(g, i), g->rows);
    return ST_OK;
}

/* Row numbers and ids in `data`, as far as they have been read; other tensors pass. */
static enum status check_numbers(const struct tokentab_recipe *recipe, const uint8_t *data,
                                 const char *path, uint64_t first, uint64_t n, struct err *err)
{
    if (data == recipe->ids)
        return check_ids(recipe, path, first, n, err);
    for (size_t i = 0; i < recipe->r->n_groups; i++)
        if (recipe->groups[i].index == data)
            return check_index(recipe, &recipe->groups[i], path, first, n, err);
    return ST_OK;
}

static void drop_window(const struct tokentab_recipe *recipe, const uint8_t *first, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t at = (size_t)(first - recipe->map), from = at / page * page;
    (void)madvise(recipe->map + from, at - from + size, MADV_DONTNEED);
}

/* All of them in a mapped payload, a window at a time. */
static enum status check_mapped(const struct tokentab_recipe *recipe, const char *path,
                                const uint8_t *data, size_t element, struct err *err)
{
    for (uint64_t first = 0; data != NULL && first < recipe->n_rows; first += NUMBERS_WINDOW) {
        uint64_t n = min_u64(NUMBERS_WINDOW, recipe->n_rows - first);
        TRY(check_numbers(recipe, data, path, first, n, err));
        drop_window(recipe, data + (size_t)first * element, (size_t)n * element);
    }
    return ST_OK;
}

/* Index, ids and bias are read for every call, so they are unpacked for good; each window is
 * checked before the next is touched, so that a hostile file cannot fill the memory. */
static enum status unpack_tensor(struct tokentab_recipe *recipe, const char *path, uint32_t tensor,
                                 struct err *err)
{
    const struct packed_tensor *t = &format_packed_layout(recipe->packed)->tensors[tensor];
    void *data = NULL;
    size_t row_bytes = (size_t)t->width * dtype_size(t->dtype), rows = 0;
    if (!u64_to_size(t->rows, &rows))
        return err_nomem(err, SIZE_MAX);
    TRY(mem_alloc(rows, row_bytes, &data, err));
    recipe->unpacked[recipe->n_unpacked++] = data;
    place_tensor(recipe, tensor, data);
    for (uint64_t first = 0; first < t->rows; first += NUMBERS_WINDOW) {
        uint64_t n = min_u64(NUMBERS_WINDOW, t->rows - first);
        TRY(format_packed_rows(recipe->packed, tensor, first, n,
                               (uint8_t *)data + (size_t)first * row_bytes, err));
        TRY(check_numbers(recipe, data, path, first, n, err));
    }
    return ST_OK;
}

static enum status open_packed(struct tokentab_recipe *recipe, const char *path, size_t cache_bytes,
                               const struct format_tensor_spec *specs, size_t n, struct err *err)
{
    TRY(format_packed_open(path, cache_bytes, &recipe->packed, err));
    const struct packed_layout *l = format_packed_layout(recipe->packed);
    TRY(check_size(recipe, path, format_packed_file_size(recipe->packed), err));
    TRY(check_count(path, l->n_tensors, n, err));
    for (size_t i = 0; i < n; i++) {
        const struct packed_tensor *t = &l->tensors[i];
        const uint64_t shape[2] = {t->rows, t->width};
        TRY(check_spec(path, &specs[i], t->name, t->dtype, t->rank, shape, err));
    }
    recipe->unpacked = calloc(n, sizeof *recipe->unpacked);
    if (recipe->unpacked == NULL)
        return err_nomem(err, n * sizeof *recipe->unpacked);
    size_t last = n - (recipe->r->retain_projection ? 1 : 0); /* a projection is kept, not read */
    for (size_t i = 0; i < last; i++) {
        if (i < recipe->r->n_groups)
            recipe->groups[i].tensor = (uint32_t)i; /* at most 65536 groups */
        else
            TRY(unpack_tensor(recipe, path, (uint32_t)i, err));
    }
    return ST_OK;
}

static enum status check_digest(struct tokentab_recipe *recipe, const char *path, struct err *err)
{
    struct sha256_state *s = NULL;
    char hex[SHA256_HEX_SIZE];
    bool packed = recipe->packed != NULL;
    const uint8_t *data = packed ? format_packed_bytes(recipe->packed) : recipe->map;
    size_t size = packed ? (size_t)format_packed_file_size(recipe->packed) : recipe->map_size;
    TRY(sha256_open(&s, err));
    enum status st = ST_OK;
    for (size_t at = 0; at < size && st == ST_OK; at += PAYLOAD_WINDOW) {
        size_t n = size - at < PAYLOAD_WINDOW ? size - at : PAYLOAD_WINDOW;
        st = sha256_update(s, data + at, n, err);
        if (packed)
            format_packed_trim(recipe->packed);
        else
            drop_window(recipe, data + at, n);
    }
    if (st == ST_OK)
        st = sha256_finish(s, hex, err);
    sha256_close(&s);
    if (st == ST_OK && strcmp(hex, recipe->r->payload_sha256) != 0)
        st = err_set(err, ST_FORMAT, "%s: corrupt: SHA-256 %s, expected %s", path, hex,
                     recipe->r->payload_sha256);
    if (st == ST_OK && packed)
        st = format_packed_verify(recipe->packed, err);
    return st;
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum status make_groups(struct tokentab_recipe *recipe, struct err *err)
{
    const struct format_recipe *r = recipe->r;
    recipe->groups = calloc(r->n_groups, sizeof *recipe->groups);
    if (recipe->groups == NULL)
        return err_nomem(err, r->n_groups * sizeof *recipe->groups);
    for (size_t i = 0; i < r->n_groups; i++) {
        struct lookup_group *g = &recipe->groups[i];
        g->dtype = r->groups[i].dtype;
        g->element = dtype_size(g->dtype);
        g->rows = r->groups[i].rows;
        g->row_bytes = (size_t)r->groups[i].width * g->element;
        g->index_size = r->groups[i].rows <= INT32_MAX ? sizeof(int32_t) : sizeof(int64_t);
    }
    return ST_OK;
}

enum status lookup_payload_open(struct tokentab_recipe *recipe, const char *dir,
                                const struct tokentab_open_opts *opts, struct err *err)
{
    const char *dot = strrchr(recipe->r->payload_file, '.');
    struct format_tensor_spec *specs = NULL;
    size_t n = 0;
    char *path = path_join(dir, recipe->r->payload_file);
    if (path == NULL)
        return err_nomem(err, strlen(dir));
    enum status st = make_groups(recipe, err);
    if (st == ST_OK)
        st = format_recipe_tensors(recipe->r, &specs, &n, err);
    if (st == ST_OK && dot != NULL && strcmp(dot, ".ttz") == 0)
        st = open_packed(recipe, path, opts->cache_bytes, specs, n, err);
    else if (st == ST_OK)
        st = open_mapped(recipe, path, specs, n, err);
    if (st == ST_OK && (opts->flags & TOKENTAB_OPEN_VERIFY) != 0)
        st = check_digest(recipe, path, err);
    if (st == ST_OK && recipe->map != NULL)
        st = check_mapped(recipe, path, recipe->ids, sizeof(int64_t), err);
    for (size_t i = 0; i < recipe->r->n_groups && st == ST_OK && recipe->map != NULL; i++)
        st = check_mapped(recipe, path, recipe->groups[i].index, recipe->groups[i].index_size, err);
    format_tensor_specs_free(&specs, n);
    free(path);
    return st;
}

void lookup_payload_close(struct tokentab_recipe *recipe)
{
    if (recipe->map != NULL)
        (void)munmap(recipe->map, recipe->map_size);
    format_packed_close(&recipe->packed);
    for (size_t i = 0; i < recipe->n_unpacked; i++)
        free(recipe->unpacked[i]);
    free(recipe->unpacked);
    free(recipe->groups);
}

void lookup_payload_advise(const struct tokentab_recipe *recipe, const uint8_t *first, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t at = (size_t)(first - recipe->map), from = at / page * page;
    (void)madvise(recipe->map + from, at - from + size, MADV_WILLNEED);
}

void tokentab_trim(struct tokentab_recipe *recipe)
{
    if (recipe->packed != NULL)
        format_packed_trim(recipe->packed);
    else
        (void)madvise(recipe->map, recipe->map_size, MADV_DONTNEED);
}

enum status lookup_table_rows(struct tokentab_recipe *recipe, size_t route, size_t table,
                              uint64_t first, uint64_t n, void *dst, struct err *err)
{
    if (route >= recipe->n_routes || table >= recipe->r->n_outputs || first > recipe->n_rows ||
        n > recipe->n_rows - first)
        return err_set(err, ST_USAGE,
                       "table %zu of route %zu, rows %" PRIu64 " + %" PRIu64 ": not in the recipe",
                       table, route, first, n);
    const struct format_placed *p = lookup_placed(recipe, route, table);
    const struct lookup_group *g = &recipe->groups[p->group];
    size_t column = (size_t)p->column * g->element, size = (size_t)p->width * g->element;
    struct packed_rows held = {0};
    enum status st = ST_OK;
    uint8_t *to = dst;
    for (uint64_t i = 0; i < n && st == ST_OK; i++, to += size) {
        uint64_t at = lookup_group_row(g, first + i);
        if (at >= g->rows) {
            st = err_set(err, ST_FORMAT,
                         "row index %" PRIu64 " of %" PRIu64 ": the payload changed while open", at,
                         g->rows);
        } else if (g->data != NULL) {
            memcpy(to, g->data + (size_t)at * g->row_bytes + column, size);
        } else {
            if (held.slot == NULL || at < held.first || at - held.first >= held.n) {
                format_packed_release(recipe->packed, &held);
                st = format_packed_acquire(recipe->packed, g->tensor, at, &held, err);
            }
            if (st == ST_OK)
                memcpy(to, held.data + (size_t)(at - held.first) * g->row_bytes + column, size);
        }
    }
    if (recipe->packed != NULL)
        format_packed_release(recipe->packed, &held);
    return st;
}
