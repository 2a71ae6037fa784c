/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: what a recipe records of its thresholds and its validation: compile writes
 *  it, verify makes it again and compares. */
#ifndef DRIVER_RECIPE_RECORD_H
#define DRIVER_RECIPE_RECORD_H

#include "driver/driver_internal.h"

/** Append copies to an owned list.  Local.  ST_NOMEM; the list stays one that can be freed. */
NODISCARD enum status driver_recipe_add_field(struct format_field **fields, size_t *n,
                                              const char *name, const char *value, struct err *err);
/** Tolerances and decisions of a block, appended.  Local.  ST_NOMEM. */
NODISCARD enum status driver_recipe_thresholds(const struct driver_job *job,
                                               const struct driver_block *b,
                                               struct format_field **fields, size_t *n,
                                               struct err *err);
/** Finish a document and take its text over, without the final newline; owned.  NULL when memory
 *  is short. */
char *driver_recipe_text(struct format_writer *w);
/** The summary object of a validation; owned.  NULL when memory is short.  Pure but for that. */
char *driver_recipe_validation(const struct driver_job *job, const struct driver_block *b,
                               const struct driver_totals *t, const char *status);

/** Value of a field by name; NULL if there is none.  Pure. */
const char *driver_recipe_field(const struct format_field *fields, size_t n, const char *name);
/** Does the recipe say of itself what the spec says: thresholds, storage policy, ids accepted,
 *  normalize_eps?  Local.  ST_DIFFERS names the first that differs and both values; ST_NOMEM. */
NODISCARD enum status driver_recipe_check_spec(const struct format_recipe *r,
                                               const struct driver_job *job,
                                               const struct driver_block *b, struct err *err);
/** Is its provenance, besides `inputs` and the weights' digests, what the spec says, and nothing
 *  more?  Of a prepared block.  Local.  ST_DIFFERS, ST_NOMEM. */
NODISCARD enum status driver_recipe_check_provenance(const struct format_recipe *r,
                                                     const struct driver_job *job,
                                                     const struct driver_block *b, struct err *err);
/** Are provenance `inputs` and the validation summary what a run in the same environment comes to?
 *  totals: with all fingerprints and statistics.  Local (rank 0).  ST_DIFFERS, ST_NOMEM. */
NODISCARD enum status driver_recipe_check_run(const struct format_recipe *r,
                                              const struct driver_job *job,
                                              const struct driver_block *b,
                                              const struct driver_totals *t, const char *status,
                                              struct err *err);

#endif
