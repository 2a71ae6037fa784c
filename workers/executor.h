/* SPDX-License-Identifier: Apache-2.0 */
/** executor: runs an enclosing model (struct graph_model) on the CPU for given inputs: original
 * ones with all their weights, and rewritten ones whose lookup nodes gather from recipes.  It knows
 * no files: weights and open recipes are handed in.
 *
 *  Values are dense row-major arrays.  Every op computes as ARITH_LIBRARY does and rounds its
 * result once to its dtype, as in a block; composite ops (attention, lstm, rope, moe) round after
 * each of their steps.  A linear's bias is prefilled for 2-D and contiguous 3-D activations and
 * added afterwards for others, as F.linear does; the direct result of a transpose, or of a slice
 * that leaves gaps, counts as not contiguous.
 *
 *  Shapes.  "Tokens" are the second last axis of a value, its columns the last; all axes before are
 *  the batch.  A value of rank 1 is one token.  Two operands (add, sub, mul, a mask) are broadcast
 *  against each other in NumPy's way. */
#ifndef WORKERS_EXECUTOR_H
#define WORKERS_EXECUTOR_H

#include "base/base.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "lookup/lookup.h"

enum { EXECUTOR_MAX_RANK = 10 };

/** Stored elements, row-major, without gaps. */
struct executor_array {
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[EXECUTOR_MAX_RANK];
    void *data; /* may be NULL where the shape has a zero */
};
/** Release data and make it all zero. */
void executor_array_free(struct executor_array *a);
/** Number of elements; UINT64_MAX where it does not fit.  Pure. */
uint64_t executor_array_count(const struct executor_array *a);
/** "(2, 7)" into buf.  Pure; returns buf. */
enum { EXECUTOR_SHAPE_TEXT = 120 };
const char *executor_shape_text(unsigned rank, const uint64_t *shape,
                                char buf[EXECUTOR_SHAPE_TEXT]);

/** A recipe that lookup nodes name. */
struct executor_recipe {
    const char *name; /* the node's attribute "recipe" */
    struct tokentab_recipe *recipe;
};

/** Pointers are borrowed for the life of the executor. */
struct executor_opts {
    const struct kernels *kernels;
    const struct graph_model *model; /* weights resolved: graph_model_resolve */
    /** Stored elements of each weight as used ([out, in] contiguous), [graph.n_weights]; NULL for
     *  weights that no output needs. */
    const void *const *weights;
    const struct executor_recipe *recipes;
    size_t n_recipes;
};
struct executor; /* opaque */

/** Check ops, dtypes and weights of all nodes that the outputs need, prepare linears.  Local.
 *  ST_STRUCTURE (an op or a dtype that cannot be run; names the node), ST_SPEC (shapes of weights,
 * a recipe or an output of one that is not there), ST_USAGE, ST_NOMEM. */
NODISCARD enum status executor_open(const struct executor_opts *opts, struct executor **out,
                                    struct err *err);
void executor_close(struct executor **e);

/** Run once.
 *  @param[in]  inputs   [model->n_inputs], in the model's order; token ids and integers I64 or I32,
 *                       others of their declared dtype
 *  @param[out] outputs  [model->n_outputs]; owned by the caller (executor_array_free each); integer
 *                       ones I64.  All zero after a failure.
 *  @return ST_OK, ST_FORMAT (an input's dtype or rank; an id outside its table: names input, place
 *  and id), ST_STRUCTURE (shapes that do not fit; names the node), ST_NOMEM */
NODISCARD enum status executor_run(struct executor *e, const struct executor_array *inputs,
                                   struct executor_array *outputs, struct err *err);

/* ---- comparing what two models return -------------------------------------------------------- */

/** All examples of one output so far; {0} to begin with. */
struct executor_difference {
    uint64_t elements;
    uint64_t unequal; /* as numbers (-0 == +0; NaN equals NaN) */
    uint64_t unequal_bytes;
    double max_abs; /* INFINITY where one side alone is no finite number */
    double max_rel; /* largest relative L2 of an example; 0/0 = 0, x/0 = INFINITY */
    uint64_t decisions, decisions_changed;
};
/** The worst place of one comparison: row-major index and both values. */
struct executor_place {
    uint64_t index;
    double a, b;
    double max_abs, max_rel; /* of this comparison alone */
    uint64_t unequal, decisions_changed;
    bool same_form; /* dtype, rank and shape are the same; otherwise nothing was compared */
};
/** Compare output arrays of one example.  `output` may declare a decision, compared row by row.
 *  Integers: max_abs is their difference as doubles.  ST_NOMEM. */
NODISCARD enum status executor_compare(const struct graph_output *output,
                                       const struct executor_array *a,
                                       const struct executor_array *b,
                                       struct executor_difference *all,
                                       struct executor_place *place, struct err *err);

#endif
