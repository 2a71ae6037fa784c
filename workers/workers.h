/* SPDX-License-Identifier: Apache-2.0 */
/** workers: evaluating a range of rows.  Execution shapes, comparison of rows with a table,
 * statistics, decisions, the layouts of the lookup.  Knows no ranks and no file names.
 *
 *  Words.  A *route* is a table choice: 0 bulk, i profile i-1.  A *layout* is how a call's ids are
 * laid out
 *  ("chunk (1,n)", "repeated (15)").  An *execution class* is one kernel call behind one or more
 * layouts: (row count, bias mode); layouts of one class are evaluated once and reported under every
 * name. */
#ifndef WORKERS_WORKERS_H
#define WORKERS_WORKERS_H

#include "base/base.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "lookup/lookup.h"

/* ---- a block made ready for evaluation ----------------------------------------------------- */

struct worker_profile {
    uint64_t max_rows, evaluation_rows;
};

/** What a worker evaluates.  Pointers are borrowed for the life of the worker. */
struct worker_opts {
    struct kernels *kernels;
    const struct graph_block *block; /* resolved */
    /** Stored elements of each weight as used ([out, in] contiguous); NULL for the embedding unless
     * a linear reads it too. */
    const void *const *weights;
    enum arithmetic arithmetic; /* of the tables; the validation always runs the library kernels */
    const struct worker_profile *profiles;
    size_t n_profiles;
    uint64_t bulk_rows, validation_rows;
    bool measure_double; /* compare with a double-precision evaluation too */
};
struct worker; /* opaque */
/** Convert weights, prepare kernels, build the list of classes.  ST_NOMEM, ST_USAGE. */
NODISCARD enum status worker_open(const struct worker_opts *opts, struct worker **out,
                                  struct err *err);
void worker_close(struct worker **w);

size_t worker_n_routes(const struct worker *w);
/** Route of a call with n ids. */
size_t worker_route(const struct worker *w, uint64_t n_ids);

/* ---- execution classes --------------------------------------------------------------------- */

enum worker_family {
    FAMILY_CHUNK,    /* validation_rows consecutive rows, the unit's last chunk shorter */
    FAMILY_EXPANDED, /* the chunk twice in one call: (1,n) expanded to (2,n) */
    FAMILY_PADDED, /* a short chunk filled up to validation_rows by repeating its ids from the start
                    */
    FAMILY_SINGLE, /* one id */
    FAMILY_REPEATED, /* one token at all m positions */
    FAMILY_MIXED     /* the unit cut into consecutive m-id calls, the last filled by wrapping to the
                        unit's start */
};
enum { WORKER_MAX_LAYOUTS = 24 };

struct worker_class {
    enum worker_family family;
    uint64_t rows; /* m of a call (chunk: of a full one) */
    enum bias_mode bias;
    char name[64]; /* "chunk", "chunk added", "expanded", "single", "repeated 15", "mixed 16", ...
                      unique */
    const char *layouts[WORKER_MAX_LAYOUTS]; /* "(n)", "(1,n)", "(1,1,n)", "scalar", ... */
    size_t n_layouts;
};
size_t worker_n_classes(const struct worker *w);
const struct worker_class *worker_class_at(const struct worker *w, size_t i);

/* ---- statistics ---------------------------------------------------------------------------- */

/** Histogram of ULP distances: 0, 1, 2, 3-4, 5-8, ..., the last bucket everything above 2^30. */
enum { WORKER_ULP_BUCKETS = 33 };

/** One (class, result, route): all maxima, counts and lowest tokens, so that combining units in any
 * order gives the same numbers (N75).  Tokens are row numbers of the tables. */
struct worker_stat {
    uint64_t cases, elements;
    uint64_t unequal;       /* finite elements that differ as numbers (-0 == +0) */
    uint64_t unequal_bytes; /* elements that differ in bytes */
    uint64_t nonfinite;     /* elements with a NaN or Inf on either side: in no maximum */
    double max_abs;
    uint64_t max_abs_token,
        max_abs_column;     /* lowest token, then column, on ties; valid if unequal > 0 */
    double max_rel;         /* largest relative L2 of a case; INFINITY for x/0 */
    uint64_t max_rel_token; /* first row of that case */
    uint64_t max_ulp;
    uint64_t max_ulp_token, max_ulp_column;
    uint64_t ulp[WORKER_ULP_BUCKETS];
    double max_abs_double; /* |direct - double evaluation| */
    uint64_t decisions, decisions_changed, first_changed_token;
};
/** Flatten for storage: names of the fields, newline between them, and their number. */
extern const char *const worker_stat_columns;
size_t worker_stat_n_fields(void);
void worker_stat_encode(const struct worker_stat *s, double *fields);
/** ST_FORMAT when fields are not what encode writes. */
NODISCARD enum status worker_stat_decode(const double *fields, struct worker_stat *s,
                                         struct err *err);
/** a = a and b combined. */
void worker_stat_merge(struct worker_stat *a, const struct worker_stat *b);
/** Index of (class, result, route) in the list of records of a unit: class-major, then result, then
 * route. */
size_t worker_stat_index(const struct worker *w, size_t class_index, size_t result, size_t route);
size_t worker_n_stats(const struct worker *w);

/* ---- a unit -------------------------------------------------------------------------------- */

/** Rows to evaluate. */
struct worker_rows {
    uint64_t first_row, n_rows;
    const void *embedding; /* [n_rows, embedding width], stored elements */
};

/** Called between calls; a status other than ST_OK (ST_STOPPED) ends the unit with it. */
typedef enum status (*worker_tick_fn)(void *ctx, struct err *err);

/** What a unit gives.  Owned; worker_unit_free. */
struct worker_unit {
    uint64_t first_row, n_rows;
    size_t n_routes, n_tables, n_results;
    void **tables;                /* [route * n_tables + table]: [n_rows, width] stored elements */
    struct digest *table_digests; /* the same order */
    uint8_t *table_constant;      /* all rows of the unit are the same bytes */
    struct worker_stat *stats;    /* worker_n_stats */
    size_t n_stats;
    /** [route * n_tables + table]: max |table - double evaluation|; zeros without measure_double */
    double *double_error;
    uint64_t distinct_embedding_rows; /* within the unit */
    /* decisions, per result with a declared one: [n_rows] each, NULL otherwise */
    double **margin; /* [result]: smallest gap between the k-th and the next value over the tables
                        of all routes and the classes; of probabilities if softmax is declared */
    double **max_error; /* [result]: largest |direct - table| of the row, of the same values */
    double **changed;   /* [result]: 1 when a class selects otherwise than the table */
};
void worker_unit_free(struct worker_unit **u);

/** Tables of all routes.  Every element finite: else ST_NONFINITE with count, first (token,
 * column), table. Positions of a profile that disagree: ST_POSITIONS naming profile, token, output,
 * positions. ST_STOPPED from the tick. */
NODISCARD enum status worker_unit_evaluate(struct worker *w, const struct worker_rows *rows,
                                           worker_tick_fn tick, void *tick_ctx,
                                           struct worker_unit **out, struct err *err);

/** Stored elements of rows [first, first + n) of (route, table) that validation compares with. */
typedef enum status (*worker_table_fn)(void *ctx, size_t route, size_t table, uint64_t first_row,
                                       uint64_t n_rows, void *dst, struct err *err);

/** Every token under every execution class against the table that a call of its size selects: fills
 *  unit->stats and the decision columns.  source NULL: the unit's own tables. */
NODISCARD enum status worker_unit_validate(struct worker *w, const struct worker_rows *rows,
                                           struct worker_unit *unit, worker_table_fn source,
                                           void *source_ctx, worker_tick_fn tick, void *tick_ctx,
                                           struct err *err);

/* ---- layouts of the lookup ----------------------------------------------------------------- */

/** Check the lookup itself, through its public API, on rows [first, first + n): scalar, (n), (n,1),
 * (1,n), (2,k), (1,1,n), strided, expanded, flipped, interleaved, int32, int64, empty ((0), (2,0),
 * (0,3,2)), strided outputs, several outputs in one call, ids outside the vocabulary; under every
 * route.  `source` gives the expected stored rows; for a projected recipe with a bias it is asked
 * for table 2, row 0, one row as well: the bias as the recipe has to hold it.  Every row under
 * every route and layout; the choice of a route by the number of ids at both ends of each interval
 * that fits 4,096 ids.  *n_checks counts comparisons. ST_DIFFERS names layout, route, output,
 * token, column, expected and found bytes. */
NODISCARD enum status worker_layouts_check(struct tokentab_recipe *recipe, uint64_t first,
                                           uint64_t n, worker_table_fn source, void *source_ctx,
                                           worker_tick_fn tick, void *tick_ctx, uint64_t *n_checks,
                                           struct err *err);
/** Names of the layouts that the check covers, for reports: NULL-terminated. */
extern const char *const worker_layout_names[];

/* ---- probe --------------------------------------------------------------------------------- */

struct worker_probe_opts {
    uint64_t max_rows; /* 512 */
    uint64_t n_tokens; /* >= 32; taken evenly over the given rows */
    uint64_t n_seeds;  /* how many different companions each token is placed among */
};
/** Rows [first, last] whose executions give each probed token the same bytes. */
struct worker_probe_interval {
    uint64_t first, last;
    uint32_t class_index; /* equal index: same bytes; position-dependent counts have their own */
    bool position_dependent;
};
struct worker_probe_result {
    struct worker_probe_interval *intervals; /* owned */
    size_t n_intervals;
    uint32_t n_classes;
    uint64_t tokens_used, seeds_used, positions_used;
};
/** Find the row-count classes of the loaded BLAS for the very shapes of a block: for M = 1 ...
 * max_rows, all positions for M <= 64, the first and last 48 beyond.  rows: tokens to draw from. */
NODISCARD enum status worker_probe(struct worker *w, const struct worker_rows *rows,
                                   const struct worker_probe_opts *opts, worker_tick_fn tick,
                                   void *tick_ctx, struct worker_probe_result *out,
                                   struct err *err);
void worker_probe_free(struct worker_probe_result *r);

#endif
