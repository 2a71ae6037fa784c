/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of the executor share: values, a node under way, helpers for shapes. */
#ifndef WORKERS_EXECUTOR_INTERNAL_H
#define WORKERS_EXECUTOR_INTERNAL_H

#include "workers/executor.h"
#include "workers/workers_internal.h"

/** A value.  Floating dtypes: data in the compute dtype; I64: int64_t; BOOL: bytes. */
struct ex_value {
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[EXECUTOR_MAX_RANK];
    size_t n;
    void *data;   /* owned */
    bool strided; /* would be a view in PyTorch: transpose, slice */
};

struct ex_node {
    const struct graph_node *node;
    bool live;
    size_t last_use;
    enum dtype dt;                 /* of the result */
    struct ev_node row;            /* the ops that blocks have too */
    struct kernels_linear *linear; /* owned */
    void *weight, *bias;           /* owned, compute dtype of dt: vectors, lstm, moe, positions */
    const void *table;             /* embedding: borrowed stored rows */
    struct tokentab_recipe *recipe;
    size_t recipe_output;
    uint64_t width; /* lookup */
};

struct executor {
    struct executor_opts opts;
    struct ex_node *nodes;
    struct ex_value *values; /* of the run under way */
    size_t n_nodes;
};

/** One node in a run: its inputs (in[i] borrowed) and its result. */
struct ex_call {
    struct executor *e;
    struct ex_node *n;
    const struct ex_value *in[GRAPH_MAX_INPUTS];
    struct ex_value *out;
    struct err *err;
};

/* ---- values ---------------------------------------------------------------------------------- */

/** Bytes of an element in memory. */
size_t ex_size(enum dtype dt);
/** Set dtype and shape and allocate.  ST_NOMEM, ST_STRUCTURE (too large). */
NODISCARD enum status ex_alloc(const struct ex_call *c, enum dtype dt, unsigned rank,
                               const uint64_t *shape);
void ex_value_free(struct ex_value *v);
double ex_get(const struct ex_value *v, size_t i);
/** x rounded to dt, into an array of its compute dtype. */
void ex_put(enum dtype dt, void *data, size_t i, double x);
/** x rounded to dt. */
double ex_round(enum dtype dt, double x);
/** Width of the last axis (1 for rank 0) and the product of the others. */
size_t ex_width(const struct ex_value *v);
size_t ex_rows(const struct ex_value *v);
/** Tokens (second last axis; 1 for rank 1) and the product of the axes before. */
size_t ex_tokens(const struct ex_value *v);
size_t ex_batch(const struct ex_value *v);

/** "node.path: op: message". */
enum status ex_fail(const struct ex_call *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** The values of in[k] in the compute dtype `compute`: borrowed, or a copy in *owned.  ST_NOMEM. */
NODISCARD enum status ex_widened(const struct ex_call *c, unsigned k, enum dtype compute,
                                 const void **data, void **owned);

/** How a mask is read: as a number to add (BOOL: true 0, false -inf) or as a weight (BOOL: 1, 0).
 */
enum ex_reading { EX_NUMBER, EX_ADDITIVE };
/** Expand *v to `shape` (NumPy broadcasting) into dst [product of shape] of compute dtype.
 *  ST_STRUCTURE when it does not fit. */
NODISCARD enum status ex_expand(const struct ex_call *c, const struct ex_value *v,
                                enum dtype compute, enum ex_reading reading, unsigned rank,
                                const uint64_t *shape, void *dst);

/* ---- ops; each allocates c->out -------------------------------------------------------------- */

enum status ex_embedding(const struct ex_call *c);
enum status ex_lookup(const struct ex_call *c);
enum status ex_linear(const struct ex_call *c);
enum status ex_row_op(const struct ex_call *c);
enum status ex_binary(const struct ex_call *c, enum binary op);
enum status ex_softmax(const struct ex_call *c);
enum status ex_choice(const struct ex_call *c);
enum status ex_moe(const struct ex_call *c);

enum status ex_concat(const struct ex_call *c);
enum status ex_slice(const struct ex_call *c);
enum status ex_reshape(const struct ex_call *c);
enum status ex_transpose(const struct ex_call *c);

enum status ex_matmul(const struct ex_call *c);
enum status ex_rope(const struct ex_call *c);
enum status ex_position(const struct ex_call *c);
enum status ex_attention(const struct ex_call *c);
enum status ex_lstm(const struct ex_call *c);
enum status ex_pool(const struct ex_call *c);
enum status ex_token_shift(const struct ex_call *c);

#endif
