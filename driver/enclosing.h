/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: enclosing models: their regions as blocks of a job, models made ready to
 * run, the comparison of complete outputs, the rewritten model in OUT. */
#ifndef DRIVER_ENCLOSING_H
#define DRIVER_ENCLOSING_H

#include "driver/driver_internal.h"
#include "formats/spec_model.h"
#include "workers/executor.h"

/** Names in an output folder. */
#define ENCLOSING_MODEL_FILE "model.json"
#define ENCLOSING_STAGED_FILE "model.json.staged"
#define ENCLOSING_REPORT_FILE "report.json"

/* ---- regions of a job ------------------------------------------------------------------------ */

/** How the compilation of a region's block ended. */
struct enclosing_outcome {
    bool known;
    enum status st;
    bool unchanged; /* the published recipe is current; nothing was staged */
    struct driver_verdict verdict;
    char reason[ERR_MESSAGE_SIZE];
};

/** What a job with a graph knows beside its blocks.  Region i of which block_of is SIZE_MAX stays
 * as it is; its reason says why. */
struct driver_enclosing {
    struct graph_model *model; /* weights resolved */
    struct graph_region *regions;
    size_t n_regions;
    size_t *block_of;                   /* [n_regions]: index into job->blocks */
    struct enclosing_outcome *outcomes; /* [n_regions] */
};

/** Parse the graph of job->spec, find its regions, and make those that can be tabulated the blocks
 *  of the spec (unresolved).  Between opening the checkpoint and resolving blocks.  Local.
 *  ST_SPEC, ST_STRUCTURE, ST_FORMAT, ST_NOMEM. */
NODISCARD enum status driver_enclosing_open(struct driver_job *job, struct err *err);
void driver_enclosing_close(struct driver_enclosing **e);
/** Keep how block `block` ended, for the end of the run.  Rank 0's verdict is whole. */
void driver_enclosing_note(struct driver_job *job, size_t block, enum status st,
                           const struct driver_verdict *verdict, bool unchanged,
                           const struct err *why);

/* ---- a model made ready to run --------------------------------------------------------------- */

struct driver_model {
    char *path;        /* as given */
    const char *shown; /* borrowed: path in messages of a run; NULL: path */
    struct format_spec *spec;
    struct format_checkpoint *checkpoint;
    struct graph_model *model;
    struct shard_weights weights; /* live ones */
    const void **by_index;        /* [graph.n_weights] into weights */
    struct executor_recipe *recipes;
    size_t n_recipes;
    struct executor *executor;
};
/** Open a spec in graph form: weights that live nodes read, recipes that lookups name (relative to
 *  the spec's folder).  checkpoint: instead of the spec's, or NULL.  staged: prefer a staged
 * recipe. Local.  ST_USAGE (no graph), ST_SPEC, ST_STRUCTURE, ST_FORMAT, ST_IO, ST_NONFINITE,
 * ST_NOMEM */
struct driver_model_opts {
    const struct driver_opts *opts;
    const struct kernels *kernels;
    const char *checkpoint;
    bool staged;
};
NODISCARD enum status driver_model_open(const char *spec_path, const struct driver_model_opts *o,
                                        struct driver_model **out, struct err *err);
void driver_model_close(struct driver_model **m);
/** Run one example; outputs [n_outputs] as executor_run. */
NODISCARD enum status driver_model_run(const struct driver_model *m,
                                       const struct format_example *example,
                                       struct executor_array *outputs, struct err *err);
/** Owned path of the model spec in `path`: OUT/model.json of a folder, else `path`. */
char *driver_model_spec_path(const char *path);
/** Does the folder hold a rewritten model? */
bool driver_is_model_dir(const char *path);

/* ---- complete outputs ------------------------------------------------------------------------ */

/** Where and how two models first disagreed beyond what is allowed. */
struct enclosing_failure {
    bool failed;
    size_t example, output;
    enum status st;    /* ST_TOLERANCE, ST_DECISION */
    char message[600]; /* example, output, place, both values */
    struct executor_place place;
};
struct enclosing_example {
    bool exact, bitwise;
    double max_abs, max_rel;
};
struct enclosing_comparison {
    struct executor_difference *outputs; /* [n_outputs], owned */
    struct enclosing_example *examples;  /* [n_examples], owned */
    size_t n_examples, n_done;           /* the comparison ends at the first failure */
    struct enclosing_failure failure;
};
/** Run every example through both models and compare every output.  Tolerances: of `spec`; integers
 *  and decisions must be the same.  A difference beyond them is no fault but *out's failure. Local.
 *  What a run returns; ST_STOPPED. */
NODISCARD enum status driver_enclosing_compare(const struct format_spec *spec,
                                               const struct driver_model *original,
                                               const struct driver_model *rewritten,
                                               const struct format_examples *examples,
                                               struct enclosing_comparison *out, struct err *err);
void driver_enclosing_comparison_free(struct enclosing_comparison *c);

/* ---- the rewritten model --------------------------------------------------------------------- */

/** Everything that rank 0 knows at the end of a run. */
struct enclosing_result {
    const struct driver_job *job;
    const char *out, *work;
    const char *status; /* DESIGN.md word */
    char reason[ERR_MESSAGE_SIZE];
    struct graph_storage before, kept;
    uint64_t tables_logical, tables_unique; /* bytes of the tables of rewritten regions */
    bool has_storage;
    struct format_examples examples;
    struct enclosing_comparison comparison;
    char *weights_file; /* owned: name in OUT */
    char weights_sha256[SHA256_HEX_SIZE];
    char *model_sha256; /* owned, of model.json */
    bool *keep;         /* owned: nodes of the rewritten model */
    struct format_replacement *replaced;
    size_t n_replaced;
};
/** Is region i replaced by its recipe? */
bool driver_enclosing_is_rewritten(const struct driver_enclosing *e, size_t region);
/** report.json of the model.  ST_NOMEM, ST_FORMAT, ST_IO (reports of blocks). */
NODISCARD enum status driver_enclosing_report(const struct enclosing_result *r, struct bytes *out,
                                              struct err *err);
/** Write OUT/weights-<digest>.safetensors and OUT/model.json.staged. */
NODISCARD enum status driver_enclosing_stage(struct enclosing_result *r, struct err *err);
/** Publish staged recipes, report and model, model.json last. */
NODISCARD enum status driver_enclosing_publish(const struct enclosing_result *r,
                                               const struct bytes *report, struct err *err);
/** Remove what was staged; nothing that was published before changes. */
void driver_enclosing_discard(const struct enclosing_result *r);

/** End of a compile run over the blocks of a graph: rewrite, compare complete outputs, publish or
 *  roll back.  blocks: the first outcome of the blocks (ST_OK if none).  *json gets an object for
 *  the result of the verb (owned by the caller, may stay NULL).  Collective.
 *  @return ST_OK, the status of the refusal, what went wrong */
NODISCARD enum status driver_enclosing_finish_all(struct driver_context *ctx,
                                                  struct driver_job *job, const char *out,
                                                  const char *work, const struct err *blocks,
                                                  char **json, struct err *err);

/** A compile run that ends with an error: what the blocks staged goes.  *err = *why.  Local. */
void driver_enclosing_abandon(const struct driver_context *ctx, const struct driver_job *job,
                              const char *out, const char *work, const struct err *why,
                              struct err *err);
/** Examples decide, so that a spec needs some; they are read to find faults before any work. Local.
 *  ST_SPEC, ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status driver_enclosing_check_examples(const struct driver_job *job,
                                                      struct err *err);
/** The same, and more, before any work: the original model runs on every example, and the ids of
 *  what is to be tabulated lie in the spec's vocab or ids.  Nothing where the job has no graph.
 *  After driver_job_kernels_all.  Collective (rank 0 runs).  Besides what a run returns: ST_SPEC,
 *  ST_STRUCTURE, ST_FORMAT, ST_NONFINITE, ST_STOPPED. */
NODISCARD enum status driver_enclosing_check(struct driver_context *ctx,
                                             const struct driver_job *job, struct err *err);

/** verify of a folder that driver_is_model_dir: digests, seals; with --against the comparison of
 *  complete outputs.  Collective (rank 0 works). */
enum status driver_enclosing_verify(struct driver_context *ctx, struct err *err);

#endif
