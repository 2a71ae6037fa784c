/* SPDX-License-Identifier: Apache-2.0 */
/* Distinct rows of a table: digest as a filter, bytes as the proof. */
#include "formats/packed.h"
#include "formats/packed_internal.h"

#include <stdlib.h>
#include <string.h>

static const uint64_t SHARE_NONE = UINT64_MAX;

/* Open addressing over the distinct rows. */
struct share_table {
    uint64_t *slots; /* number of a distinct row, or SHARE_NONE */
    uint64_t mask;
    struct digest *digests; /* of the distinct rows */
};

struct sharing {
    format_packed_rows_fn rows;
    void *ctx;
    uint32_t tensor;
    size_t row_bytes;
    struct share_table table;
    struct packed_sharing *out;
    uint8_t *other; /* [row_bytes] */
};

void format_packed_sharing_free(struct packed_sharing *s)
{
    free(s->index);
    free(s->firsts);
    s->index = NULL;
    s->firsts = NULL;
}

static enum status place_row(struct sharing *s, uint64_t row, const uint8_t *data, struct err *err)
{
    struct digest d = digest_of(data, s->row_bytes);
    uint64_t hash;
    memcpy(&hash, d.bytes, sizeof hash);
    for (uint64_t at = hash & s->table.mask;; at = (at + 1) & s->table.mask) {
        uint64_t k = s->table.slots[at];
        if (k == SHARE_NONE) {
            k = s->out->n_distinct++;
            s->table.slots[at] = k;
            s->table.digests[k] = d;
            s->out->firsts[k] = row;
            s->out->index[row] = k;
            return ST_OK;
        }
        if (!digest_equal(&s->table.digests[k], &d))
            continue;
        TRY(s->rows(s->ctx, s->tensor, s->out->firsts[k], 1, s->other, err));
        if (memcmp(s->other, data, s->row_bytes) == 0) {
            s->out->index[row] = k;
            return ST_OK;
        }
    }
}

static enum status share_rows(struct sharing *s, uint64_t n_rows, uint8_t *window,
                              uint64_t window_rows, struct err *err)
{
    for (uint64_t first = 0; first < n_rows; first += window_rows) {
        uint64_t n = min_u64(window_rows, n_rows - first);
        TRY(s->rows(s->ctx, s->tensor, first, n, window, err));
        for (uint64_t i = 0; i < n; i++)
            TRY(place_row(s, first + i, window + (size_t)i * s->row_bytes, err));
    }
    return ST_OK;
}

static enum status share_alloc(struct sharing *s, uint64_t n_rows, uint64_t window_rows,
                               uint8_t **window, struct err *err)
{
    uint64_t n_slots = 16;
    size_t n = 0;
    void *p = NULL;
    while (n_slots / 2 < n_rows && n_slots < (uint64_t)1 << 60)
        n_slots *= 2;
    if (!u64_to_size(n_slots, &n))
        return err_nomem(err, SIZE_MAX);
    TRY(mem_alloc(n, sizeof *s->table.slots, &p, err));
    s->table.slots = p;
    memset(p, 0xFF, n * sizeof *s->table.slots);
    s->table.mask = n_slots - 1;
    TRY(mem_alloc((size_t)n_rows, sizeof *s->table.digests, &p, err));
    s->table.digests = p;
    TRY(mem_alloc((size_t)n_rows, sizeof *s->out->index, &p, err));
    s->out->index = p;
    TRY(mem_alloc((size_t)n_rows, sizeof *s->out->firsts, &p, err));
    s->out->firsts = p;
    TRY(mem_alloc(1, s->row_bytes, &p, err));
    s->other = p;
    TRY(mem_alloc((size_t)window_rows, s->row_bytes, &p, err));
    *window = p;
    return ST_OK;
}

enum status format_packed_share(format_packed_rows_fn rows, void *ctx, uint32_t tensor,
                                uint64_t n_rows, size_t row_bytes, struct packed_sharing *out,
                                struct err *err)
{
    struct sharing s = {
        .rows = rows, .ctx = ctx, .tensor = tensor, .row_bytes = row_bytes, .out = out};
    uint64_t window_rows = max_u64(PACKED_FILE_CHUNK / row_bytes, 1), all, shared, index;
    uint8_t *window = NULL;
    *out = (struct packed_sharing){0};
    enum status st = share_alloc(&s, n_rows, window_rows, &window, err);
    if (st == ST_OK)
        st = share_rows(&s, n_rows, window, window_rows, err);
    free(window);
    free(s.other);
    free(s.table.digests);
    free(s.table.slots);
    if (st == ST_OK) {
        uint64_t index_size = out->n_distinct <= INT32_MAX ? sizeof(int32_t) : sizeof(int64_t);
        /* a table of one distinct row is a constant one, which needs no index */
        out->pays = out->n_distinct >= 2 && mul_u64(n_rows, row_bytes, &all) &&
                    mul_u64(out->n_distinct, row_bytes, &shared) &&
                    mul_u64(n_rows, index_size, &index) && add_u64(shared, index, &shared) &&
                    shared < all;
    }
    if (st != ST_OK || !out->pays)
        format_packed_sharing_free(out);
    return st;
}
