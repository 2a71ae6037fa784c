/* SPDX-License-Identifier: Apache-2.0 */
/** formats, foreign artifacts: folders of the Python package compressme (manifest.json with
 *  model.safetensors or model.cmppack), written and read.  Part of the small target. */
#ifndef FORMATS_FOREIGN_H
#define FORMATS_FOREIGN_H

#include "base/base.h"
#include "formats/recipe.h"

/** Largest raw size of a model.cmppack that is read unless the caller says otherwise. */
#define FORMAT_CMPPACK_LIMIT ((uint64_t)1 << 30)

/** Rows [first, first + n) of stored table `table` under `route` (0 bulk, i profile i - 1) as the
 *  recipe holds them, expanded where they are constant or shared; dst [n, width].
 *  lookup_table_rows is one, but for the order of its first argument. */
typedef enum status (*format_foreign_rows_fn)(void *ctx, size_t route, size_t table, uint64_t first,
                                              uint64_t n, void *dst, struct err *err);

struct format_foreign_opts {
    const char *path; /* of the module in the foreign model; NULL or "": the block is the model */
    bool packed;      /* model.cmppack */
    const void *bias; /* projected with bias: [width] elements */
    /** Names of the source block's tensors and their dtypes ("F32"); may be empty. */
    const struct format_field *source_dtypes;
    size_t n_source_dtypes;
};

/** Write `dir` (made if need be): payload first, manifest.json last, each staged and renamed.
 *  ST_STRUCTURE for what the artifact cannot express: lookup or projected with profiles, id lists,
 *  a retained projection.  ST_IO, ST_NOMEM, or what `rows` returns; no manifest.json then. */
NODISCARD enum status format_foreign_export(const struct format_recipe *r,
                                            format_foreign_rows_fn rows, void *ctx,
                                            const struct format_foreign_opts *opts, const char *dir,
                                            struct err *err);

/** Read the artifact `dir` and write it as a recipe folder `out` (made if need be), sealed, its
 *  validation saying that it was imported.
 *  @param path      module path of the wanted block; NULL: the only one
 *  @param max_size  raw size of a model.cmppack; 0: FORMAT_CMPPACK_LIMIT
 *  @return ST_OK, ST_FORMAT, ST_STRUCTURE (something else than one finite block), ST_IO, ST_NOMEM;
 *  no recipe.json is written after a failure */
NODISCARD enum status format_foreign_import(const char *dir, const char *path, uint64_t max_size,
                                            const char *out, struct err *err);

/** The cmppack codec by itself: FROM packed to TO and back; TO is overwritten, synced, and gone
 * after a failure.  group_bytes: 1, 2, 4 or 8. */
NODISCARD enum status format_cmppack_write(const char *from, const char *to, unsigned group_bytes,
                                           struct err *err);
/** Checks header, frame, sizes and digest; memory bounded by the block size and a 32 MiB window. */
NODISCARD enum status format_cmppack_read(const char *from, const char *to, uint64_t max_size,
                                          struct err *err);

#endif
