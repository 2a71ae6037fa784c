/* SPDX-License-Identifier: Apache-2.0 */
/** The check of the lookup's layouts: calls, and what they have to give. */
#ifndef WORKERS_LAYOUTS_INTERNAL_H
#define WORKERS_LAYOUTS_INTERNAL_H

#include "workers/workers_internal.h"

struct layout_output {
    const char *name; /* borrowed from the recipe */
    enum dtype dtype;
    size_t width, element;
    uint8_t *expected; /* owned: [block_rows, width] of one route */
    uint8_t *found;    /* owned: room for every call */
};

/** A check under way: rows [first, first + n) of the block that is looked at. */
struct layouts {
    struct tokentab_recipe *recipe;
    worker_table_fn source;
    void *source_ctx;
    struct layout_output *outputs;
    size_t n_outputs;
    struct tokentab_request *requests; /* [n_outputs] */
    uint64_t first;
    size_t n;
    size_t block_rows, call_rows; /* most rows of a block, most ids of a call */
    int64_t *ids;                 /* [2 * call_rows] */
    int32_t *short_ids;           /* [call_rows] */
    size_t *rows;                 /* [call_rows] */
    /* projected: */
    void *z_stored, *r_stored, *z, *r, *bias, *y;
    uint64_t n_checks;
};

/** One call: ids in their layout, and the block row that each stands for, in row-major order. */
struct layout_call {
    const char *layout;
    struct tokentab_ids ids;
    size_t n;
    const size_t *rows;
    size_t route;  /* asked for, or expected of the number of ids */
    bool by_count; /* let the lookup choose the route */
};

/** All outputs in one call; ST_DIFFERS names layout, route, output, token, column, bytes. */
NODISCARD enum status layout_check(struct layouts *k, const struct layout_call *c, struct err *err);
/** One output a call, the others untouched. */
NODISCARD enum status layout_check_single(struct layouts *k, const struct layout_call *c,
                                          struct err *err);
/** The call is refused as out of bounds and touches nothing. */
NODISCARD enum status layout_check_refused(struct layouts *k, const struct layout_call *c,
                                           struct err *err);
/** Outputs with gaps between elements and rows, which stay as they were.  c->ids has rank 1. */
NODISCARD enum status layout_check_strided(struct layouts *k, const struct layout_call *c,
                                           struct err *err);

#endif
