/* SPDX-License-Identifier: Apache-2.0 */
/** libtokentab: open a recipe folder and gather rows.  The one installed header; C++-safe.
 *  Pulls in no MPI, HDF5 or BLAS.
 *
 *  A recipe holds the tables of one token-local block.  A call with n ids takes the first row-count
 *  profile with n <= max_rows, otherwise the bulk tables ("route").  All functions but open and
 * close may be called from several threads at once on one recipe. */
#ifndef TOKENTAB_H
#define TOKENTAB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TOKENTAB_API __attribute__((visibility("default")))
#else
#define TOKENTAB_API
#endif

#define TOKENTAB_VERSION_MAJOR 0
#define TOKENTAB_VERSION_MINOR 1
#define TOKENTAB_VERSION_PATCH 0

/** Return values; pinned. */
enum tokentab_status {
    TOKENTAB_OK = 0,
    TOKENTAB_EINVAL = 1, /* an argument makes no sense */
    TOKENTAB_EBOUNDS =
        2, /* an id below 0, outside the vocabulary, or not in the recipe's id list */
    TOKENTAB_EFORMAT = 3, /* recipe or payload is malformed or corrupt */
    TOKENTAB_EIO = 4,
    TOKENTAB_ENOMEM = 5
};

enum { TOKENTAB_MESSAGE_SIZE = 512, TOKENTAB_MAX_RANK = 16 };

/** Filled on failure; may be NULL everywhere. */
struct tokentab_error {
    enum tokentab_status status;
    char message[TOKENTAB_MESSAGE_SIZE];
};

enum tokentab_dtype { TOKENTAB_F64, TOKENTAB_F32, TOKENTAB_F16, TOKENTAB_BF16 };

struct tokentab_recipe; /* opaque */

/** Flags of tokentab_open. */
enum {
    TOKENTAB_OPEN_VERIFY = 1u,       /* read every payload byte and compare its digest */
    TOKENTAB_OPEN_REQUIRE_SEAL = 2u, /* a historical recipe is TOKENTAB_EFORMAT */
    TOKENTAB_OPEN_STAGED = 4u /* recipe.json.staged instead of recipe.json: tokentab's own check */
};

struct tokentab_open_opts {
    unsigned flags;
    size_t cache_bytes; /* packed payloads: bound of the frame cache; 0: 64 MiB */
};

/** Open folder `path`: recipe.json, and its payload, memory-mapped (safetensors) or through the
 * frame cache (packed).  Checks header, names, shapes, dtypes, sizes (nothing missing, nothing
 * extra) and seal. opts may be NULL.  On failure *out is NULL.  OK, EFORMAT, EIO, ENOMEM, EINVAL.
 */
TOKENTAB_API enum tokentab_status tokentab_open(const char *path,
                                                const struct tokentab_open_opts *opts,
                                                struct tokentab_recipe **out,
                                                struct tokentab_error *err);
/** Accepts NULL and a pointer to NULL; sets *recipe to NULL.  No call may be under way. */
TOKENTAB_API void tokentab_close(struct tokentab_recipe **recipe);

/** 1 when recipe.json does not match its seal ("historical": consistent, but changed since it was
 * validated). */
TOKENTAB_API int tokentab_is_historical(const struct tokentab_recipe *recipe);
/** Ids a call may use lie in [0, num_embeddings); with an id list, those of the list alone. */
TOKENTAB_API uint64_t tokentab_num_embeddings(const struct tokentab_recipe *recipe);
/** "lookup", "fanout" or "projected". */
TOKENTAB_API const char *tokentab_kind(const struct tokentab_recipe *recipe);

/** What a call returns.  Projected recipes have outputs "raw" and "normalized". */
struct tokentab_output_info {
    const char *name; /* lives as long as the recipe */
    enum tokentab_dtype dtype;
    uint64_t width;
};
TOKENTAB_API size_t tokentab_n_outputs(const struct tokentab_recipe *recipe);
/** EINVAL beyond the last. */
TOKENTAB_API enum tokentab_status tokentab_output(const struct tokentab_recipe *recipe, size_t i,
                                                  struct tokentab_output_info *info);
/** Index of an output by name; -1 if there is none. */
TOKENTAB_API int tokentab_output_find(const struct tokentab_recipe *recipe, const char *name);
/** Bytes of an element. */
TOKENTAB_API size_t tokentab_dtype_size(enum tokentab_dtype dtype);

/** Routes: 0 bulk, i profile i-1. */
TOKENTAB_API size_t tokentab_n_routes(const struct tokentab_recipe *recipe);
/** Route of a call with n ids. */
TOKENTAB_API size_t tokentab_route(const struct tokentab_recipe *recipe, uint64_t n_ids);
/** "bulk", "profile0", ... ; NULL beyond the last. */
TOKENTAB_API const char *tokentab_route_name(const struct tokentab_recipe *recipe, size_t route);
/** Largest number of ids a route serves; UINT64_MAX for bulk. */
TOKENTAB_API uint64_t tokentab_route_max_rows(const struct tokentab_recipe *recipe, size_t route);

enum tokentab_id_type { TOKENTAB_I32, TOKENTAB_I64 };

/** Ids of any shape: element (i0, i1, ...) lies at data + sum(i * strides) elements.  rank 0 is a
 * scalar. Strides may be 0 (expanded) or negative; NULL strides mean row-major contiguous.  A shape
 * with a zero is an empty call. */
struct tokentab_ids {
    const void *data; /* of element (0, 0, ...); may be NULL for an empty call */
    enum tokentab_id_type type;
    unsigned rank;
    const int64_t *shape;   /* [rank] */
    const int64_t *strides; /* [rank] in elements, or NULL */
};

/** One output wanted from a call. */
struct tokentab_request {
    size_t output;          /* index */
    void *data;             /* caller memory; element (ids..., column) as below */
    const int64_t *strides; /* [rank + 1] in elements of the output's dtype, or NULL: contiguous */
    size_t capacity_bytes;  /* contiguous data: bytes at `data`; EINVAL if too few.  Ignored with
                               strides */
};

/** Gather `n` outputs in one pass: output j has shape ids.shape + [width].  All ids are checked
 * before any byte is written.  route: -1 chooses by the number of ids (DESIGN.md), else that route.
 *  OK, EINVAL, EBOUNDS (message names the id and its place), EFORMAT (a packed frame is corrupt),
 * EIO, ENOMEM.  After EINVAL and EBOUNDS no output byte has changed; after the others, which a
 * packed payload may meet half way, outputs are unspecified. */
TOKENTAB_API enum tokentab_status tokentab_gather(struct tokentab_recipe *recipe,
                                                  const struct tokentab_ids *ids, int route,
                                                  const struct tokentab_request *requests, size_t n,
                                                  struct tokentab_error *err);
/** Convenience: n contiguous int64 ids, one output, contiguous rows. */
TOKENTAB_API enum tokentab_status tokentab_gather_rows(struct tokentab_recipe *recipe,
                                                       const int64_t *ids, size_t n, size_t output,
                                                       void *data, size_t capacity_bytes,
                                                       struct tokentab_error *err);
/** Ask for the rows' pages (or frames) ahead of a gather; a hint. */
TOKENTAB_API enum tokentab_status tokentab_prefetch(struct tokentab_recipe *recipe,
                                                    const struct tokentab_ids *ids, int route,
                                                    struct tokentab_error *err);
/** Give mapped pages back to the system (they are read again when needed): keeps the resident size
 * of a pass over a large table bounded. */
TOKENTAB_API void tokentab_trim(struct tokentab_recipe *recipe);
/** Library version, "0.1.0". */
TOKENTAB_API const char *tokentab_version(void);

#ifdef __cplusplus
}
#endif

#endif
