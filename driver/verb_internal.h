/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: what several verbs share: results as JSON, output files, element text. */
#ifndef DRIVER_VERB_INTERNAL_H
#define DRIVER_VERB_INTERNAL_H

#include "driver/driver_internal.h"

/* ---- results --------------------------------------------------------------------------------- */

/** Start the JSON result of a verb: {"schema_version": 1, "verb": name, ... */
void verb_json_start(const struct driver_context *ctx, struct format_writer *w);
/** Close the object, move the text to ctx->result and free the writer. */
void verb_json_end(struct driver_context *ctx, struct format_writer *w);

/** ST_USAGE when `path` exists and --force was not given, or when it is missing (`option` is the
 *  option that names it).  Local. */
NODISCARD enum status verb_output_check(const char *path, const char *option, bool force,
                                        struct err *err);
/** Carry a fault of the lookup library over; ST_OK passes. */
NODISCARD enum status verb_from_lookup(enum tokentab_status st, const struct tokentab_error *fault,
                                       struct err *err);
/** Open a recipe folder (or the recipe.json in it) for a verb; says on stderr when it is
 *  historical.  Close with tokentab_close. */
NODISCARD enum status verb_recipe_open(const char *path, const struct tokentab_open_opts *opts,
                                       struct tokentab_recipe **out, struct err *err);
/** The folder of a recipe given as folder or as its recipe.json; owned.  NULL when memory is short.
 */
char *verb_recipe_dir(const char *path);
/** Does `path` hold a recipe: a folder with a recipe.json, or that file? */
bool verb_is_recipe(const char *path);
/** A folder of several recipes, or a rewritten model, is no recipe and no checkpoint: names what
 *  lies in it.  Other paths pass, and so does a folder of a checkpoint that holds recipes beside
 *  it.  ST_FORMAT, ST_NOMEM. */
NODISCARD enum status verb_single_check(const char *path, struct err *err);
/** Are these the first bytes of a packed file (.ttz)?  Pure. */
bool verb_is_packed(const void *start, size_t size);
/** Format of the message about a compressme artifact where a recipe's tables are expected; takes
 *  its path. */
#define VERB_IMPORT_FIRST                                                                          \
    "%s: a compressme artifact, whose tensors have names of their own; import it first "           \
    "(tokentab import DIR --from compressme --out RECIPE) and name that recipe"
/** ST_FORMAT with that message where these are the first bytes of a model.cmppack.  Pure. */
NODISCARD enum status verb_cmppack_check(const char *path, const void *start, size_t size,
                                         struct err *err);

/* ---- elements -------------------------------------------------------------------------------- */

enum { VERB_TEXT_SIZE = 40 };

/** Shortest decimal that reads back as the float x: 0.1f is "0.1".  "NaN", "Infinity", "-Infinity"
 *  otherwise.  Pure; returns buf. */
const char *verb_f32_text(float x, char buf[VERB_TEXT_SIZE]);
/** A stored element (any alignment) as text.  F32: verb_f32_text; F16, BF16, F8: the decimal that
 *  reads back exactly as a double; integers and booleans as they are.  Pure; returns buf. */
const char *verb_element_text(enum dtype dt, const void *stored, char buf[VERB_TEXT_SIZE]);
/** A stored element as a double; 64-bit integers are rounded.  Pure. */
double verb_element_number(enum dtype dt, const void *stored);

/* ---- lookup ---------------------------------------------------------------------------------- */

/** Ids as the command line gives them. */
struct verb_ids {
    int64_t *values; /* owned */
    size_t n, capacity;
    bool is_scalar;
    unsigned rank;
    int64_t shape[TOKENTAB_MAX_RANK];
};
/** Parse --ids (list, ranges, @FILE; NULL: none) and --shape (NULL: their number).  A range that
 *  leaves the vocabulary is cut after its first id outside, which the library then names.
 *  @return ST_OK, ST_USAGE, ST_FORMAT (@FILE unreadable), ST_NOMEM; free with verb_ids_free always
 */
NODISCARD enum status verb_ids_parse(const char *list, const char *shape, uint64_t num_embeddings,
                                     struct verb_ids *out, struct err *err);
void verb_ids_free(struct verb_ids *ids);

/** One gathered output. */
struct verb_array {
    char *name; /* owned */
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[TOKENTAB_MAX_RANK + 1];
    uint8_t *data; /* owned */
    size_t size_bytes;
};
/** Elements as nested JSON arrays without white space beyond ", ", with a NUL at the end. */
void verb_array_json(const struct verb_array *a, struct bytes *out);
/** Ids nested by their shape, likewise. */
void verb_ids_json(const struct verb_ids *ids, struct bytes *out);

/* ---- inspect --------------------------------------------------------------------------------- */

/** Describe a recipe: into `w` (an open object), or as text into ctx->result when w is NULL. */
NODISCARD enum status verb_inspect_recipe(const char *path, struct driver_context *ctx,
                                          struct format_writer *w, struct err *err);

#endif
