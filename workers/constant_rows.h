/* SPDX-License-Identifier: Apache-2.0 */
/** constant_rows: known rows of an encoder's input, evaluated in the shape they will be met in.
 *
 *  A model often meets rows it knows ahead (padding vectors, a learned prompt, a class token)
 * inside a tensor of a known leading shape.  A row's bits depend on the row count and, on some
 * cores, on its position (NUMERICS.md), so the rows are evaluated inside a zero-filled tensor of
 * the original shape, at their own places, and only they are returned.  Results are cached.  Own
 * target `constant_rows`: needs the kernels, so it is no part of libtokentab. */
#ifndef WORKERS_CONSTANT_ROWS_H
#define WORKERS_CONSTANT_ROWS_H

#include "base/base.h"
#include "graph/graph.h"
#include "kernels/kernels.h"

/** Everything but the limits is borrowed for the life of the object.  Weights may change under it:
 * their digests are taken at every call. */
struct constant_rows_opts {
    const struct kernels *kernels;
    /** Resolved lookup or fanout; its embedding node stands for the rows that are handed in, so the
     *  embedding's width and dtype are those of a vector and no embedding is read. */
    const struct graph_block *chain;
    const void *const *weights; /* as in struct worker_opts */
    enum arithmetic arithmetic;
    size_t max_entries; /* cached calls; 0 caches nothing */
    size_t max_bytes;   /* of cached results and keys */
};

struct constant_rows; /* opaque; one caller at a time */

/** ST_NOMEM, ST_USAGE, ST_STRUCTURE (projected blocks). */
NODISCARD enum status constant_rows_open(const struct constant_rows_opts *opts,
                                         struct constant_rows **out, struct err *err);
void constant_rows_close(struct constant_rows **c);

/** A known row. */
struct constant_row {
    uint64_t index;     /* flat row index in the leading shape, row-major */
    const void *values; /* [width] stored elements */
};
/** A call: leading shape and its known rows; indices strictly ascending. */
struct constant_rows_call {
    const uint64_t *shape; /* [rank]; rank 0: a single vector */
    unsigned rank;
    const struct constant_row *rows;
    size_t n_rows;
};
/** Result `output` (index into chain->results) of the known rows: dst [n_rows, width] stored
 * elements, a copy. A call equal to an earlier one in shape, positions, values, weights, arithmetic
 * and environment comes from the cache.  Bias as F.linear applies it to activations of rank + 1
 * dimensions. ST_USAGE (index outside, not ascending, dst too small), ST_NOMEM, and what the
 * kernels return; dst is untouched after a failure. */
NODISCARD enum status constant_rows_evaluate(struct constant_rows *c,
                                             const struct constant_rows_call *call, size_t output,
                                             void *dst, size_t dst_bytes, struct err *err);

struct constant_rows_counters {
    uint64_t hits, misses, evictions;
    size_t entries, bytes; /* cached now */
};
struct constant_rows_counters constant_rows_count(const struct constant_rows *c);
/** Forget all entries; counters of hits, misses and evictions go on. */
void constant_rows_clear(struct constant_rows *c);
/** New limits; entries beyond them are evicted at once, least recently used first. */
void constant_rows_limit(struct constant_rows *c, size_t max_entries, size_t max_bytes);

#endif
