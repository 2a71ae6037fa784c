/* SPDX-License-Identifier: Apache-2.0 */
/** lookup: libtokentab seen from inside the project.  The installed header is lookup/tokentab.h;
 * this one adds what tokentab's own verbs need and an inference program does not. */
#ifndef LOOKUP_LOOKUP_H
#define LOOKUP_LOOKUP_H

#include "base/base.h"
#include "formats/recipe.h"
#include "lookup/tokentab.h"

/** The decoded recipe.json of an open recipe; borrowed. */
const struct format_recipe *lookup_recipe(const struct tokentab_recipe *recipe);
/** Status of the project for a status of the library (EBOUNDS and EINVAL: ST_USAGE, EFORMAT:
 * ST_FORMAT, ...). */
enum status lookup_status(enum tokentab_status st);
/** Stored elements of rows [first, first + n) of stored table `table` (index into recipe outputs:
 * for projected 0 is z, 1 is r) under a route, as the payload holds them; dst [n, width].  Local.
 */
NODISCARD enum status lookup_table_rows(struct tokentab_recipe *recipe, size_t route, size_t table,
                                        uint64_t first, uint64_t n, void *dst, struct err *err);
/** The original id of table row `row` (identity without an id list). */
uint64_t lookup_row_id(const struct tokentab_recipe *recipe, uint64_t row);
/** The bias of a projected recipe, [width of z] elements, not aligned; NULL without one.  Borrowed.
 */
const void *lookup_bias(const struct tokentab_recipe *recipe);
/** Number of table rows: num_embeddings, or the length of the id list. */
uint64_t lookup_n_rows(const struct tokentab_recipe *recipe);

/** "bulk", "profile0", ...: the name of a route.  Pure; returns buf. */
const char *lookup_route_name(size_t route, char *buf, size_t buf_size);
/** The project's dtype for the library's.  Pure. */
enum dtype lookup_dtype(enum tokentab_dtype dt);

/** Name of recipe.json and of the staged one inside a recipe folder. */
#define LOOKUP_RECIPE_FILE "recipe.json"
#define LOOKUP_STAGED_FILE "recipe.json.staged"

#endif
