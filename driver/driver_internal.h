/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: options, the verbs, and the pieces of a compile run. */
#ifndef DRIVER_DRIVER_INTERNAL_H
#define DRIVER_DRIVER_INTERNAL_H

#include <stdio.h>

#include "base/base.h"
#include "comm/comm.h"
#include "formats/formats.h"
#include "formats/progress.h"
#include "graph/graph.h"
#include "kernels/kernels.h"
#include "lookup/lookup.h"
#include "shards/shards.h"
#include "workers/workers.h"

#define DRIVER_VERSION "0.1.0"
/** Raised when a field of --json output changes its meaning. */
enum { DRIVER_JSON_SCHEMA = 1 };

/* ---- options -------------------------------------------------------------------------------- */

enum driver_progress { PROGRESS_AUTO, PROGRESS_BAR, PROGRESS_LOG, PROGRESS_NONE };

/** Every option of every verb; a verb reads those it lists. */
struct driver_opts {
    const char *verb;
    const char *args[4]; /* positional arguments */
    unsigned n_args;
    bool help, json, log_json, quiet, verbose, force;
    uint64_t progress; /* enum driver_progress */
    /* compile, plan, probe, verify */
    const char *out, *work, *against, *blas_core, *checkpoint;
    uint64_t blas_threads, shard_units, header_cap, ranks;
    bool allow_missing_unused, accept_environment, fresh, reduce, packed;
    const char *shards; /* "i/n" */
    uint64_t task_index, task_count;
    double lock_wait_s;
    /* lookup */
    const char *ids, *shape, *id_type, *output, *format, *route, *raw_out;
    /* run */
    const char *inputs;
    /* probe */
    uint64_t max_rows, tokens, seeds;
    const char *emit_profiles;
    /* diff */
    double diff_absolute, diff_relative;
    uint64_t diff_ulp, max_lines;
    uint64_t nan_mode;
    bool has_absolute, has_relative, has_ulp;
    /* export, import, sbatch, pack */
    const char *to, *from, *revision, *module;
    uint64_t size_limit; /* 0: the verb's own */
    uint64_t nodes, tasks_per_node, time_minutes, array;
    const char *partition, *job_name, *launcher;
    bool quick, deep;
};

enum driver_opt_kind { OPT_FLAG, OPT_TEXT, OPT_U64, OPT_SIZE, OPT_DOUBLE, OPT_CHOICE };

/** One long option. */
struct driver_opt {
    const char *name;
    enum driver_opt_kind kind;
    size_t offset;       /* into struct driver_opts */
    size_t seen_offset;  /* of a bool that tells the option was given; 0: none */
    const char *arg;     /* placeholder in --help */
    const char *choices; /* OPT_CHOICE: "auto|bar|log|none" */
    double min, max;
    const char *help; /* with unit and default */
};

struct driver_context; /* comm, options, output streams */

typedef enum status (*driver_verb_fn)(struct driver_context *ctx, struct err *err);

/** One verb. */
struct driver_verb {
    const char *name, *usage, *summary, *help;
    unsigned min_args, max_args;
    bool uses_ranks;     /* MPI is initialised */
    const char *options; /* names of the options it takes, space between them */
    driver_verb_fn run;
};
extern const struct driver_verb driver_verbs[];
extern const size_t driver_n_verbs;

/** Find a verb; NULL if there is none. */
const struct driver_verb *driver_verb_find(const char *name);
/** Parse argv[2..] for a verb.  ST_USAGE with one line. */
NODISCARD enum status driver_opts_parse(const struct driver_verb *verb, int argc, char **argv,
                                        struct driver_opts *o, struct err *err);
/** Print --help of a verb, or of the program when verb is NULL, to stdout. */
void driver_help_print(const struct driver_verb *verb);

struct driver_context {
    struct comm *comm;
    const struct driver_opts *opts;
    const struct driver_verb *verb;
    struct bytes result; /* what goes to stdout at the end, on rank 0 */
};

/** Has SIGTERM, SIGUSR1 or SIGINT arrived at this process? */
bool driver_stop_requested(void);
/** Install the handlers of a run. */
void driver_signals_setup(void);
/** ST_STOPPED once a signal has arrived. */
NODISCARD enum status driver_check_stop(struct err *err);

/* ---- verbs ---------------------------------------------------------------------------------- */

enum status driver_verb_compile(struct driver_context *ctx, struct err *err);
enum status driver_verb_plan(struct driver_context *ctx, struct err *err);
enum status driver_verb_status(struct driver_context *ctx, struct err *err);
enum status driver_verb_verify(struct driver_context *ctx, struct err *err);
enum status driver_verb_lookup(struct driver_context *ctx, struct err *err);
enum status driver_verb_run(struct driver_context *ctx, struct err *err);
enum status driver_verb_inspect(struct driver_context *ctx, struct err *err);
enum status driver_verb_probe(struct driver_context *ctx, struct err *err);
enum status driver_verb_diff(struct driver_context *ctx, struct err *err);
enum status driver_verb_pack(struct driver_context *ctx, struct err *err);
enum status driver_verb_unpack(struct driver_context *ctx, struct err *err);
enum status driver_verb_export(struct driver_context *ctx, struct err *err);
enum status driver_verb_import(struct driver_context *ctx, struct err *err);
enum status driver_verb_import_hf(struct driver_context *ctx, struct err *err);
enum status driver_verb_sbatch(struct driver_context *ctx, struct err *err);
enum status driver_verb_report(struct driver_context *ctx, struct err *err);
enum status driver_verb_doctor(struct driver_context *ctx, struct err *err);

/* ---- a job: spec, checkpoint and blocks, opened and checked ---------------------------------- */

/** One block ready to be planned or evaluated. */
struct driver_block {
    struct graph_block *graph; /* borrowed from the spec, resolved and audited */
    struct shard_rows rows;
    struct shard_grid grid;
    struct graph_storage source; /* bytes that the block reads */
    uint64_t n_rows;
    size_t n_routes;
    /* evaluation (driver_block_prepare): */
    struct shard_weights weights;
    struct worker *worker;
    struct worker_profile *profiles; /* owned copy in workers' form */
    struct shard_fingerprint base;
};

struct driver_enclosing; /* driver/enclosing.h */

struct driver_job {
    struct format_spec *spec;
    struct format_checkpoint *checkpoint;
    uint64_t *ids;
    size_t n_ids;
    struct driver_block *blocks;
    size_t n_blocks;
    struct driver_enclosing *enclosing; /* a spec with `graph`; NULL otherwise */
    struct kernels *kernels;
    bool packed; /* write packed payloads */
};

/** Read spec and checkpoint headers, resolve and audit every block, make its grid.  Local.
 *  ST_SPEC, ST_STRUCTURE, ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status driver_job_open(const char *spec_path, const struct driver_opts *opts,
                                      int n_ranks, struct driver_job *job, struct err *err);
void driver_job_close(struct driver_job *job);
/** Would a folder of this name lie where a file of a run, a recipe or a rewritten model lies? Pure.
 */
bool driver_name_is_file(const char *name);
/** Agree on CPU flags, load the BLAS core, compare environments (ST_ENVIRONMENT names both values
 * and hosts; in correctly rounded jobs a difference is allowed).  Collective. */
NODISCARD enum status driver_job_kernels_all(struct comm *comm, const struct driver_opts *opts,
                                             struct driver_job *job, struct err *err);
/** Read weights, open the worker, build the common fingerprint.  Local. */
NODISCARD enum status driver_block_prepare(const struct driver_job *job, struct driver_block *b,
                                           struct err *err);
/** Compare what the prepared block depends on (weights' digests, attributes, environment,
 * checkpoint size) over all ranks: ST_ENVIRONMENT names field, values, ranks and hosts. Collective.
 */
NODISCARD enum status driver_block_agree_all(struct comm *comm, const struct driver_job *job,
                                             const struct driver_block *b, struct err *err);
void driver_block_release(struct driver_block *b);
/** Token id of a table row: what reports and refusals name.  Pure. */
uint64_t driver_row_id(const struct driver_job *job, uint64_t row);

/* ---- unit summaries -------------------------------------------------------------------------- */

/** What the reduction needs of a unit: from its evaluation or, reused, from its file. */
struct driver_unit_summary {
    uint64_t unit, n_rows;
    bool reused;
    size_t n_tables; /* routes * tables */
    struct digest *table_digests;
    uint8_t *table_constant;
    double *double_error;
    struct worker_stat *stats;
    size_t n_stats;
    uint64_t distinct_rows;
    char fingerprint[SHA256_HEX_SIZE];
};
void driver_unit_summary_free(struct driver_unit_summary *s);
NODISCARD enum status driver_unit_summary_encode(const struct driver_unit_summary *s,
                                                 struct bytes *out, struct err *err);
NODISCARD enum status driver_unit_summary_decode(struct bytes_reader *r,
                                                 struct driver_unit_summary *s, struct err *err);

/** Evaluate (or reuse) one unit and store it.  *why of a reuse decision is logged. Local. */
NODISCARD enum status driver_unit_run(struct driver_block *b, struct shard_store *store,
                                      uint64_t unit, const struct driver_opts *opts,
                                      worker_tick_fn tick, void *tick_ctx,
                                      struct driver_unit_summary *out, struct err *err);

/* ---- the progress file ----------------------------------------------------------------------- */

/** WORK/<block>/progress.json of rank 0, or progress-part-I-of-N.json of an array task: for the
 * status verb.  That it cannot be written ends nothing.  Local. */
struct driver_run_file {
    char *path; /* owned; NULL: nothing is written */
    struct format_progress now;
    double written_s; /* clock_s() of the last write */
};
/** Fill in what stays the same and write the first state, "running". */
void driver_run_file_open(struct driver_run_file *f, struct comm *comm,
                          const struct driver_block *b, const struct shard_store *store,
                          const struct driver_opts *opts);
/** Write f->now if the last write is a second ago. */
void driver_run_file_step(struct driver_run_file *f);
/** Write the last state, with the reason of a failure or "", and free. */
void driver_run_file_close(struct driver_run_file *f, const char *state, const char *reason);

/* ---- totals and schedule --------------------------------------------------------------------- */

/** Everything that rank 0 keeps of all units: bounded by the number of units, not of tokens. */
struct driver_totals {
    size_t n_tables; /* routes * tables */
    uint64_t n_units;
    struct digest *unit_digests; /* [unit * n_tables + table] */
    uint8_t *unit_seen;
    char (*fingerprints)[SHA256_HEX_SIZE]; /* [unit] */
    uint8_t *constant;                     /* [table]: constant within every unit */
    double *double_error;                  /* [table] */
    struct worker_stat *stats;
    size_t n_stats;
    uint64_t units_reused, units_evaluated, rows_done;
    uint64_t distinct_rows;           /* distinct embedding rows, counted within each unit */
    struct driver_run_file *run_file; /* borrowed, or NULL */
    double schedule_s;                /* how long the schedule took */
};
NODISCARD enum status driver_totals_make(const struct driver_block *b, struct driver_totals *t,
                                         struct err *err);
void driver_totals_free(struct driver_totals *t);
void driver_totals_add(struct driver_totals *t, const struct driver_unit_summary *s);

/** Run all shards of a block over the ranks: rank 0 hands them out and works too.  A refusal
 * (non-finite, positions) is that of the lowest failing unit, whatever the schedule.  Collective.
 *  totals: filled on rank 0. */
NODISCARD enum status driver_schedule_all(struct comm *comm, struct driver_block *b,
                                          struct shard_store *store, const struct driver_opts *opts,
                                          struct driver_totals *totals, struct err *err);

/* ---- reduction ------------------------------------------------------------------------------- */

/** One distinct table and where it is used. */
struct driver_table {
    size_t source; /* route * tables + table of its first use */
    uint64_t rows, width;
    enum dtype dtype;
    bool constant;
    uint32_t group;
    uint64_t column;
};
/** Rows of a group that are the same bytes. */
struct driver_sharing {
    bool counted; /* n_distinct is known */
    uint64_t n_distinct;
    uint64_t *index;  /* [rows of the table]: number of the stored row; NULL: not shared */
    uint64_t *firsts; /* [n_distinct]: first table row with those bytes */
};
/** Distinct tables, groups, bytes.  The same on all ranks. */
struct driver_layout {
    size_t n_sources;   /* routes * tables */
    uint32_t *table_of; /* [source]: index of its distinct table */
    struct driver_table *tables;
    size_t n_tables;
    struct format_group *groups;
    size_t n_groups;
    struct driver_sharing *sharing; /* [n_groups] */
    uint64_t compares;              /* full comparisons made */
};
/** From totals (rank 0) to the layout: digests, confirmed byte by byte by all ranks on their units.
 *  Collective. */
NODISCARD enum status driver_reduce_all(struct comm *comm, const struct driver_block *b,
                                        struct shard_store *store,
                                        const struct driver_totals *totals,
                                        struct driver_layout *out, struct err *err);
void driver_layout_free(struct driver_layout *l);
/** Identical rows of each group stored once, where that saves bytes; sets l->sharing and the
 * groups' rows and `indexed`.  Part of driver_reduce_all.  Collective. */
NODISCARD enum status driver_share_all(struct comm *comm, const struct driver_block *b,
                                       struct shard_store *store,
                                       const struct driver_totals *totals, struct driver_layout *l,
                                       struct err *err);

/** Bytes before and after, the verdict. */
struct driver_verdict {
    uint64_t logical_before, logical_after, unique_before, unique_after, on_disk;
    bool shrinks;
    enum status st;          /* ST_OK, ST_TOLERANCE, ST_DECISION, ST_STORAGE, ST_NONFINITE */
    const char *status_text; /* DESIGN.md statuses */
    char reason[512];
};
void driver_verdict_make(const struct driver_job *job, const struct driver_block *b,
                         const struct driver_totals *t, const struct driver_layout *l,
                         struct driver_verdict *out);
/** Numbers and decisions alone, without storage. */
void driver_verdict_judge(const struct driver_job *job, const struct driver_block *b,
                          const struct driver_totals *t, struct driver_verdict *out);
/** Status word of DESIGN.md for a status. */
const char *driver_status_word(enum status st);

/* ---- reports and emission -------------------------------------------------------------------- */

/** report.json of a block; a function of spec, weights and environment alone.  Local (rank 0);
 * reads the decision columns from the store. */
NODISCARD enum status driver_report_make(const struct driver_job *job, const struct driver_block *b,
                                         const struct driver_totals *t,
                                         const struct driver_layout *l,
                                         const struct driver_verdict *v, struct shard_store *store,
                                         struct bytes *out, struct err *err);
/** "environment": the fields of the loaded library's numeric environment. */
void driver_write_environment(struct format_writer *w, const struct kernels *k);
/** "row_count_profiles": those of a spec. */
void driver_write_profiles(struct format_writer *w, const struct format_spec *spec);
/** report.json of a refused block: status, reason. */
NODISCARD enum status driver_report_refused(const struct driver_job *job,
                                            const struct driver_block *b, const struct err *why,
                                            struct bytes *out, struct err *err);
/** Digest of what a finished recipe depends on: unit fingerprints, thresholds, policy. */
NODISCARD enum status driver_inputs_digest(const struct driver_job *job,
                                           const struct driver_block *b,
                                           const struct driver_totals *t, char hex[SHA256_HEX_SIZE],
                                           struct err *err);
/** Is there a sealed recipe at `out` whose inputs are these and whose payload verifies?  Local. */
bool driver_recipe_is_current(const char *out, const char *inputs_hex);
/** Write the staged payload (all ranks, their units), check layouts (all ranks), seal, publish.  An
 * existing recipe is untouched until the last rename.  Collective. */
NODISCARD enum status driver_emit_all(struct comm *comm, const struct driver_job *job,
                                      const struct driver_block *b, struct shard_store *store,
                                      const struct driver_layout *l, const struct driver_verdict *v,
                                      const struct driver_totals *t, const char *out,
                                      const struct driver_opts *opts, const char *report,
                                      struct err *err);
/** Reads table rows from a block's unit files; one open reader at a time. */
struct driver_unit_reader {
    const struct driver_block *block;
    struct shard_store *store;
    struct format_shard_reader *reader;
    uint64_t unit;
    bool open;
};
/** worker_table_fn over a struct driver_unit_reader. */
enum status driver_unit_reader_rows(void *ctx, size_t route, size_t table, uint64_t first_row,
                                    uint64_t n_rows, void *dst, struct err *err);
void driver_unit_reader_close(struct driver_unit_reader *r);
/** Reads rows of a group: its tables' columns side by side, as the payload holds them. */
struct driver_group_reader {
    struct driver_unit_reader units;
    const struct driver_layout *layout;
    void *columns; /* scratch */
    size_t columns_bytes;
};
/** format_packed_rows_fn over a struct driver_group_reader: table rows [first, first + n) of a
 * group, before any sharing, to dst [n, group width]. */
enum status driver_group_rows(void *ctx, uint32_t group, uint64_t first, uint64_t n, void *dst,
                              struct err *err);
void driver_group_reader_close(struct driver_group_reader *r);
/** Elements [first, first + n) of a weight as used, in its own dtype or a wider one. */
void driver_weight_elements(const struct driver_block *b, int32_t weight, enum dtype dt,
                            uint64_t first, uint64_t n, void *dst);
/** A projected block's bias in the dtype of z, as the recipe holds it.  ST_INTERNAL without one. */
NODISCARD enum status driver_block_bias(const struct driver_block *b, void *dst, struct err *err);

/* ---- progress -------------------------------------------------------------------------------- */

struct driver_progress_state {
    enum driver_progress mode;
    uint64_t total, done;
    double start_s, last_s;
    const char *what;
};
void driver_progress_start(struct driver_progress_state *p, const struct driver_opts *opts,
                           const char *what, uint64_t total);
void driver_progress_step(struct driver_progress_state *p, uint64_t done);
void driver_progress_end(struct driver_progress_state *p);

#endif
