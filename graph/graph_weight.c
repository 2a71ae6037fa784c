/* SPDX-License-Identifier: Apache-2.0 */
#include "graph/graph.h"
#include "graph/graph_internal.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Rows of the full [out, in] view, before the split. */
static uint64_t full_rows(const struct graph_weight *w)
{
    return w->in_out && w->tensor_rank == 2 ? w->tensor_cols : w->tensor_rows;
}

static uint64_t full_cols(const struct graph_weight *w)
{
    return w->in_out && w->tensor_rank == 2 ? w->tensor_rows : w->tensor_cols;
}

/* Heads of one interleaved group: its query heads, one key head, one value head. */
static uint64_t group_heads(const struct graph_weight *w)
{
    return w->heads / w->kv_heads + 2;
}

uint64_t graph_weight_runs(const struct graph_weight *w)
{
    return w->split == SPLIT_PER_HEAD_INTERLEAVED ? w->kv_heads : 1;
}

struct graph_run graph_weight_run(const struct graph_weight *w, uint64_t i)
{
    uint64_t full = w->split_inputs ? full_cols(w) : full_rows(w);
    if (w->split == SPLIT_NONE)
        return (struct graph_run){0, full};
    if (w->split == SPLIT_BLOCKS && w->slice_count != 0)
        return (struct graph_run){w->slice_first, w->slice_count};
    if (w->split == SPLIT_BLOCKS)
        return (struct graph_run){full / w->n_parts * w->part, full / w->n_parts};
    uint64_t queries = w->heads / w->kv_heads;
    uint64_t head = i * group_heads(w) + (w->part == 0 ? 0 : queries + w->part - 1);
    return (struct graph_run){head * w->head_dim, (w->part == 0 ? queries : 1) * w->head_dim};
}

/* How the split refers to its tensor, for messages. */
static const char *axis_text(const struct graph_weight *w)
{
    return w->split_inputs ? "columns" : "rows";
}

static enum status check_blocks(const struct graph_weight *w, uint64_t full, struct err *err)
{
    if (w->slice_count == 0) {
        if (w->n_parts == 0 || w->part >= w->n_parts || full % w->n_parts != 0)
            return err_set(
                err, ST_SPEC, "%s: split: part %u of %u equal parts of tensor %s, found %llu %s",
                w->where, w->part, w->n_parts, w->tensor, (unsigned long long)full, axis_text(w));
        return ST_OK;
    }
    uint64_t stop;
    if (!add_u64(w->slice_first, w->slice_count, &stop) || stop > full)
        return err_set(err, ST_SPEC, "%s: split: %s %llu to %llu of tensor %s, found %llu %s",
                       w->where, axis_text(w), (unsigned long long)w->slice_first,
                       (unsigned long long)stop, w->tensor, (unsigned long long)full, axis_text(w));
    uint64_t heads = (uint64_t)w->heads + 2u * (uint64_t)w->kv_heads;
    if (w->heads != 0 &&
        (w->head_dim == 0 || full % w->head_dim != 0 || full / w->head_dim != heads))
        return err_set(
            err, ST_SPEC, "%s: split: (%u + 2 x %u) heads of %u rows in tensor %s, found %llu rows",
            w->where, w->heads, w->kv_heads, w->head_dim, w->tensor, (unsigned long long)full);
    return ST_OK;
}

static enum status check_interleaved(const struct graph_weight *w, uint64_t full, struct err *err)
{
    if (w->kv_heads == 0 || w->head_dim == 0 || w->heads % w->kv_heads != 0 || w->part > 2)
        return err_set(err, ST_SPEC,
                       "%s: split: %u heads in %u groups of head_dim %u, part %u: heads must be a "
                       "multiple of kv_heads",
                       w->where, w->heads, w->kv_heads, w->head_dim, w->part);
    /* 32-bit factors: (2^32 + 2) * 2^32 * 2^32 could wrap, so the product is divided instead. */
    uint64_t rows_per_group;
    if (!mul_u64(group_heads(w), w->head_dim, &rows_per_group) || full % rows_per_group != 0 ||
        full / rows_per_group != w->kv_heads)
        return err_set(err, ST_SPEC,
                       "%s: split: %u groups of (%llu + 2) heads of %u rows in tensor %s, found "
                       "%llu rows",
                       w->where, w->kv_heads, (unsigned long long)(w->heads / w->kv_heads),
                       w->head_dim, w->tensor, (unsigned long long)full);
    return ST_OK;
}

enum status graph_weight_shape(struct graph_weight *w, unsigned rank, const uint64_t *shape,
                               struct err *err)
{
    if (rank != 1 && rank != 2)
        return err_set(err, ST_SPEC, "%s: tensor %s has %u dimensions, expected 1 or 2", w->where,
                       w->tensor, rank);
    w->tensor_rank = rank;
    w->tensor_rows = shape[0];
    w->tensor_cols = rank == 2 ? shape[1] : 1;
    w->rows = full_rows(w);
    w->cols = full_cols(w);
    if (w->split == SPLIT_NONE)
        return ST_OK;
    if (w->split_inputs && (rank != 2 || w->split != SPLIT_BLOCKS))
        return err_set(err, ST_SPEC, "%s: split: axis in needs a matrix and mode blocks", w->where);
    uint64_t full = w->split_inputs ? w->cols : w->rows;
    TRY(w->split == SPLIT_BLOCKS ? check_blocks(w, full, err) : check_interleaved(w, full, err));
    uint64_t kept = graph_weight_run(w, 0).count * graph_weight_runs(w);
    if (w->split_inputs)
        w->cols = kept;
    else
        w->rows = kept;
    return ST_OK;
}

bool graph_weight_is_plain(const struct graph_weight *w)
{
    bool transposed = w->in_out && w->tensor_rank == 2 && w->tensor_rows > 1 && w->tensor_cols > 1;
    return !transposed && w->split == SPLIT_NONE;
}

/* dst[r * cols + c] = src[c * src_ld + r], in tiles that stay in the first cache. */
static void transpose(const unsigned char *src, uint64_t src_ld, uint64_t rows, uint64_t cols,
                      size_t elem_size, unsigned char *dst)
{
    enum { TILE = 32 };
    for (uint64_t r0 = 0; r0 < rows; r0 += TILE) {
        for (uint64_t c0 = 0; c0 < cols; c0 += TILE) {
            uint64_t r1 = min_u64(r0 + TILE, rows), c1 = min_u64(c0 + TILE, cols);
            for (uint64_t r = r0; r < r1; r++)
                for (uint64_t c = c0; c < c1; c++)
                    memcpy(dst + (r * cols + c) * elem_size, src + (c * src_ld + r) * elem_size,
                           elem_size);
        }
    }
}

void graph_weight_gather(const struct graph_weight *w, const void *stored, size_t elem_size,
                         void *dst)
{
    const unsigned char *src = stored;
    unsigned char *to = dst;
    bool transposed = w->in_out && w->tensor_rank == 2;
    uint64_t ld = w->tensor_cols, first_col = 0;
    if (w->split_inputs)
        first_col = graph_weight_run(w, 0).first;
    for (uint64_t i = 0; i < graph_weight_runs(w); i++) {
        struct graph_run rows = {0, w->rows};
        if (!w->split_inputs)
            rows = graph_weight_run(w, i);
        if (transposed)
            transpose(src + (first_col * ld + rows.first) * elem_size, ld, rows.count, w->cols,
                      elem_size, to);
        else
            for (uint64_t r = 0; r < rows.count; r++)
                memcpy(to + r * w->cols * elem_size,
                       src + ((rows.first + r) * ld + first_col) * elem_size, w->cols * elem_size);
        to += rows.count * w->cols * elem_size;
    }
}
