/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards_internal.h"

#include <assert.h>
#include <inttypes.h>

static uint64_t id_of(const struct shard_rows *rows, uint64_t row)
{
    return rows->ids != NULL ? rows->ids[row] : row;
}

/* How many rows from `row` on, at most `most`, have consecutive ids. */
static uint64_t run_length(const struct shard_rows *rows, uint64_t row, uint64_t most)
{
    if (rows->ids == NULL)
        return most;
    uint64_t n = 1;
    while (n < most && rows->ids[row + n] == rows->ids[row] + n)
        n++;
    return n;
}

static enum status rows_check(const struct shard_rows *rows, uint64_t first, uint64_t n,
                              struct err *err)
{
    const struct format_tensor *t = rows->tensor;
    if (first > rows->n_rows || n > rows->n_rows - first)
        return err_set(err, ST_INTERNAL,
                       "tensor %s: rows %" PRIu64 " to %" PRIu64 " of %" PRIu64 " asked for",
                       t->name, first, first + n, rows->n_rows);
    if (t->rank != 2 || !dtype_is_computable(t->dtype))
        return err_set(err, ST_STRUCTURE,
                       "tensor %s: a matrix of F64, F32, F16 or BF16 expected, found rank %u of %s",
                       t->name, t->rank, t->dtype_text);
    if (n > 0 && id_of(rows, first + n - 1) >= t->shape[0])
        return err_set(err, ST_STRUCTURE,
                       "tensor %s: id %" PRIu64 " asked for, found %" PRIu64 " rows", t->name,
                       id_of(rows, first + n - 1), t->shape[0]);
    return ST_OK;
}

static enum status finite_check(const struct shard_rows *rows, uint64_t first, uint64_t n,
                                const void *data, struct err *err)
{
    const struct format_tensor *t = rows->tensor;
    uint64_t width = t->shape[1];
    size_t at = 0, found = shard_nonfinite(data, t->dtype, (size_t)(n * width), &at);
    if (found == 0)
        return ST_OK;
    return err_set(err, ST_NONFINITE,
                   "tensor %s: id %" PRIu64 ", column %" PRIu64
                   " is not finite (%zu such values in the %" PRIu64 " rows from there on)",
                   t->name, id_of(rows, first + at / width), at % width, found, n - at / width);
}

enum status shard_rows_read(const struct shard_rows *rows, uint64_t first, uint64_t n, void *dst,
                            struct err *err)
{
    TRY(rows_check(rows, first, n, err));
    const struct format_tensor *t = rows->tensor;
    uint64_t row_bytes, all_bytes;
    size_t size;
    if (!mul_u64(t->shape[1], dtype_size(t->dtype), &row_bytes) ||
        !mul_u64(n, row_bytes, &all_bytes) || !u64_to_size(all_bytes, &size))
        return err_set(err, ST_FORMAT, "tensor %s: %" PRIu64 " rows of %" PRIu64 " are too large",
                       t->name, n, t->shape[1]);
    if (size == 0)
        return ST_OK;
    if (fault_hit("rows_read"))
        return err_set(err, ST_IO, "tensor %s: rows from %" PRIu64 ": fault point", t->name, first);
    uint8_t *to = dst;
    for (uint64_t done = 0; done < n;) {
        uint64_t run = run_length(rows, first + done, n - done);
        /* Ids are below shape[0], whose bytes the reader of the header has checked. */
        TRY(format_checkpoint_read(rows->checkpoint, t, id_of(rows, first + done) * row_bytes, to,
                                   (size_t)(run * row_bytes), err));
        to += run * row_bytes;
        done += run;
    }
    return finite_check(rows, first, n, dst, err);
}
