/* SPDX-License-Identifier: Apache-2.0 */
/** What the files of workers/ (and its tests) share: the evaluator of a block, the list of
 *  execution classes, comparison of stored rows, decisions. */
#ifndef WORKERS_WORKERS_INTERNAL_H
#define WORKERS_WORKERS_INTERNAL_H

#include "workers/workers.h"

/* ---- evaluator ----------------------------------------------------------------------------- */

/** Runs the nodes that a list of outputs needs.  Nodes with no linear above them do not depend on
 *  the row count: evaluator_load computes them once for a range of rows.  evaluator_run then makes
 *  the calls, each linear once a call with the call's own row count; everything else below a linear
 *  runs over the rows of all calls at once. */
struct evaluator; /* opaque */

struct evaluator_opts {
    const struct kernels *kernels;
    const struct graph_block *block;
    const struct graph_output *outputs;
    size_t n_outputs;
    const void *const *weights; /* as in struct worker_opts */
    enum arithmetic arithmetic;
    bool exact; /* double throughout: weights widened, no rounding between ops */
};
/** Convert weights and prepare linears.  All pointers but `weights` are borrowed for its life.
 *  ST_NOMEM, ST_USAGE, ST_STRUCTURE (an op that no block may hold). */
NODISCARD enum status evaluator_open(const struct evaluator_opts *opts, struct evaluator **out,
                                     struct err *err);
void evaluator_close(struct evaluator **e);

/** Rows that later runs choose from: stored embedding elements [n_rows, width].  They are borrowed
 *  until the next load or drop.  ST_NOMEM and what kernels return. */
NODISCARD enum status evaluator_load(struct evaluator *e, const void *stored, size_t n_rows,
                                     struct err *err);
/** Forget the loaded rows and give their memory back. */
void evaluator_drop(struct evaluator *e);
/** Make room for runs of up to `rows` rows, so that they allocate nothing.  ST_NOMEM. */
NODISCARD enum status evaluator_reserve(struct evaluator *e, size_t rows, struct err *err);

/** n_calls calls of m rows each. */
struct evaluator_call {
    size_t n_calls, m;
    enum bias_mode bias;
    const size_t *index; /* [n_calls * m] loaded rows; NULL: consecutive ones from `first` */
    size_t first;
};
/** n_calls * m rows must be reserved. */
NODISCARD enum status evaluator_run(struct evaluator *e, const struct evaluator_call *call,
                                    struct err *err);
/** Values [n_calls * m, width] of an output after a run, in evaluator_compute(e, i); they live
 *  until the next run. */
const void *evaluator_output(const struct evaluator *e, size_t i);
enum dtype evaluator_compute(const struct evaluator *e, size_t i);
bool evaluator_has_linear(const struct evaluator *e);
bool evaluator_has_bias(const struct evaluator *e);

/** n stored elements of `src` into an array of compute dtype `compute`, which is not narrower. */
void stored_widen(enum dtype src, const void *stored, size_t n, enum dtype compute, void *dst);

/* What evaluator.c and evaluator_node.c share. */

enum { EV_NO_SLOT = -1 };

struct ev_node {
    const struct graph_node *node;
    bool needed;
    bool dependent; /* a linear lies at or above it */
    bool kept;      /* row-count independent and wanted by a run: cached by evaluator_load */
    bool output;
    enum dtype dt, compute; /* of the result in this evaluator */
    size_t width, row_bytes;
    size_t last_use;
    int slot;                      /* of its phase, EV_NO_SLOT if it needs none */
    int gather_slot;               /* kept nodes: room for the rows of a run */
    struct kernels_linear *linear; /* borrowed from the evaluator's list */
    void *weight, *bias;           /* owned, compute dtype; norms */
    double params[KERNELS_EW_PARAMS];
    const void *values; /* in the run under way */
    void *cache;        /* owned; kept nodes */
    size_t cache_rows;
    const void *cached; /* cache, or the caller's rows */
};

struct ev_mode {
    enum arithmetic arithmetic;
    bool exact;
};
/** Inputs of a node: arrays in the node's compute dtype (the norm of l2_norm: likewise), storage
 *  dtype and width of the first. */
struct ev_inputs {
    const void *x[2];
    enum dtype dt;
    size_t width;
};
/** One node that is not a linear over `rows` rows; y does not overlap its inputs.  What kernels
 *  return. */
NODISCARD enum status ev_node_run(const struct ev_node *n, const struct ev_mode *mode, size_t rows,
                                  const struct ev_inputs *in, void *y, struct err *err);
/** Fill params from the node's numbers.  ST_STRUCTURE for an op that cannot be evaluated here. */
NODISCARD enum status ev_node_prepare(struct ev_node *n, struct err *err);

/* ---- the worker ---------------------------------------------------------------------------- */

enum { WORKER_BATCH_ROWS = 256, WORKER_MAX_CLASSES = 512 };

struct worker_class_entry {
    struct worker_class c;
    bool every_route; /* the row count does not matter: one call stands for calls of any size */
};

struct worker {
    struct worker_opts opts;
    struct worker_profile *profiles; /* owned copy */
    size_t n_routes;
    struct evaluator *tables, *results, *exact_tables, *exact_results;
    bool results_shared, exact_shared; /* the second of each pair is the first */
    struct worker_class_entry *classes;
    size_t n_classes;
    char **names; /* owned layout names */
    size_t n_names;
    void *bias; /* projected: the bias in the results' compute dtype, or NULL; owned */
    size_t embedding_row_bytes;
    size_t max_call_rows; /* the largest call of any class, and of any table */
};

NODISCARD enum status worker_classes_build(struct worker *w, struct err *err);
void worker_classes_free(struct worker *w);
/** Bytes of a stored row of a table or result. */
size_t worker_row_bytes(const struct graph_output *o);
/** The test hook TOKENTAB_DAMAGE on a unit's tables. */
NODISCARD enum status worker_unit_damage(const struct worker *w, struct worker_unit *unit,
                                         struct err *err);

/** Scratch of the combination of z and r into results. */
struct projected_scratch {
    void *z, *r, *y;
    void *results[2];
};

/* ---- comparison ---------------------------------------------------------------------------- */

/** Sums of a case and extremes of a row. */
struct compare_row {
    long double square_difference; /* sum over finite pairs */
    double max_abs;                /* 0 when nothing finite differs */
    bool same_bytes;
};
/** Compare one stored row of the direct evaluation with the table's and count into *s (all but
 *  cases and max_rel).  ST-free; Pure but for *s.  `table_finite`: the whole table row is known to
 *  be finite, so that equal bytes need no look. */
struct compare_row compare_rows(enum dtype dt, const void *direct, const void *table, size_t width,
                                uint64_t token, bool table_finite, struct worker_stat *s);
/** Sum of squares of the finite elements of a stored row. */
long double compare_square(enum dtype dt, const void *direct, size_t width);
/** Number of representable steps between two stored elements, both finite; +-0 are one place. */
uint64_t compare_ulp(enum dtype dt, const void *a, const void *b);
/** Bucket of a distance in worker_stat.ulp. */
size_t compare_bucket(uint64_t ulp);
/** Close a case: its relative L2 from the two sums, the case's first token. */
void compare_case(struct worker_stat *s, long double square_difference, long double square,
                  uint64_t first_token);
/** Largest |value - exact| of a row of finite compute values; non-finite ones are left out. */
double compare_exact(enum dtype compute, const void *values, const double *exact, size_t width);

/* ---- decisions ----------------------------------------------------------------------------- */

/** The k columns with the largest values, largest first, lowest column on ties, NaN above all, and
 *  the gap between the last of them and the next value: INFINITY when k is the whole width, 0 where
 *  it is no number.  selected [k].  Pure. */
double decision_select(const double *values, size_t width, size_t k, uint32_t *selected);
/** Values that a decision looks at: compute-dtype row to doubles, after softmax if declared.
 *  scratch [width] doubles. */
NODISCARD enum status decision_values(const struct graph_output *o, const void *row,
                                      double *scratch, double *values, struct err *err);

#endif
