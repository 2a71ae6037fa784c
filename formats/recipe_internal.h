/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private: what the files of recipe.json share. */
#ifndef FORMATS_RECIPE_INTERNAL_H
#define FORMATS_RECIPE_INTERNAL_H

#include "formats/recipe.h"

/** Limits of a recipe, so that a hostile file costs little before it is refused. */
enum {
    RECIPE_MAX_GROUPS = 65536,
    RECIPE_MAX_OUTPUTS = 65536,
    RECIPE_MAX_PROFILES = 4096,
    RECIPE_MAX_FIELDS = 1 << 20
};

/** What tokentab computes from: nothing but ids. */
#define RECIPE_CONTRACT "token_indices_only"
#define RECIPE_GROUP_PREFIX "group_"

/** dtype of an index tensor: I32 as long as the row numbers fit. */
enum dtype recipe_index_dtype(const struct format_group *g);
/** Write a parsed JSON value through the writer: numbers and spacing become canonical. */
void recipe_write_json(struct format_writer *w, const char *key, const struct cJSON *item);

#endif
