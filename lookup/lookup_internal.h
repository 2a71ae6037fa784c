/* SPDX-License-Identifier: Apache-2.0 */
/** lookup, private: what an open recipe is made of. */
#ifndef LOOKUP_LOOKUP_INTERNAL_H
#define LOOKUP_LOOKUP_INTERNAL_H

#include "formats/packed.h"
#include "lookup/lookup.h"

/** One group of the payload. */
struct lookup_group {
    enum dtype dtype;
    uint64_t rows;
    size_t element, row_bytes;
    const uint8_t *data; /* mapped first row (not aligned: memcpy alone touches it); NULL: packed */
    uint32_t tensor;     /* packed: number of the tensor */
    const uint8_t *index; /* row sharing: [n_rows] of index_size bytes, else NULL */
    size_t index_size;
};

struct tokentab_recipe {
    struct format_recipe *r;
    bool historical;
    uint64_t n_rows;
    char **route_names; /* n_routes */
    size_t n_routes;
    struct lookup_group *groups;
    const uint8_t *ids, *bias; /* NULL without; little-endian I64 / dtype of z, not aligned */
    /* mapped payload */
    uint8_t *map;
    size_t map_size;
    /* packed payload, and what was unpacked from it for good */
    struct format_packed *packed;
    void **unpacked;
    size_t n_unpacked;
};

/** Where a stored table of a route lies. */
static inline const struct format_placed *lookup_placed(const struct tokentab_recipe *recipe,
                                                        size_t route, size_t table)
{
    const struct format_recipe *r = recipe->r;
    return route == 0 ? &r->outputs[table] : &r->profiles[route - 1].outputs[table];
}

/** Row of a group that table row `row` (< n_rows) means; >= rows only if the mapped index was
 *  damaged after it was checked. */
static inline uint64_t lookup_group_row(const struct lookup_group *g, uint64_t row)
{
    if (g->rows == 1)
        return 0;
    if (g->index == NULL)
        return row;
    uint64_t at = 0;
    __builtin_memcpy(&at, g->index + row * g->index_size, g->index_size);
    return at;
}

/** Record in *out (NULL allowed). */
enum tokentab_status lookup_fail(struct tokentab_error *out, enum tokentab_status st,
                                 const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/** Carry a fault of a lower folder over. */
enum tokentab_status lookup_fail_err(struct tokentab_error *out, enum status st,
                                     const struct err *err);

/** Open the payload that recipe->r names in folder `dir`; fills groups, ids, bias.  On failure
 *  lookup_payload_close cleans up. */
NODISCARD enum status lookup_payload_open(struct tokentab_recipe *recipe, const char *dir,
                                          const struct tokentab_open_opts *opts, struct err *err);
void lookup_payload_close(struct tokentab_recipe *recipe);
/** Ask the system for the pages of mapped bytes; a hint. */
void lookup_payload_advise(const struct tokentab_recipe *recipe, const uint8_t *first, size_t size);

/* ---- ids ----------------------------------------------------------------------------------- */

enum { LOOKUP_BLOCK = 1024, LOOKUP_MAX_DIMS = TOKENTAB_MAX_RANK };

/** A walk over a shape in row-major order that yields element offsets. */
struct lookup_walk {
    unsigned rank;
    bool contiguous; /* offsets are 0, 1, 2, ... times `unit` */
    int64_t unit;
    int64_t shape[LOOKUP_MAX_DIMS], strides[LOOKUP_MAX_DIMS], at[LOOKUP_MAX_DIMS];
    int64_t offset;
};
/** strides NULL: row-major with `unit` elements a place.  False when an offset would overflow. */
NODISCARD bool lookup_walk_start(struct lookup_walk *w, unsigned rank, const int64_t *shape,
                                 const int64_t *strides, int64_t unit);
/** The next n offsets; the caller counts. */
void lookup_walk_next(struct lookup_walk *w, size_t n, int64_t *offsets);

/** Checked count of ids of a call. */
NODISCARD enum tokentab_status lookup_ids_count(const struct tokentab_ids *ids, uint64_t *n,
                                                struct tokentab_error *err);
/** The next n (<= LOOKUP_BLOCK) ids as table rows; `place` is the flat position of the first, for
 *  the message.  EBOUNDS. */
NODISCARD enum tokentab_status lookup_ids_rows(const struct tokentab_recipe *recipe,
                                               const struct tokentab_ids *ids,
                                               struct lookup_walk *w, uint64_t place, size_t n,
                                               uint64_t *rows, struct tokentab_error *err);

/* ---- projected blocks ---------------------------------------------------------------------- */

/** dst[i] = z[i] + b[i], or z[i] / r + b[i]; each step rounded to dt; b NULL: no sum.  Elements are
 *  not aligned; dst may not overlap. */
void lookup_project_row(enum dtype dt, const uint8_t *z, const uint8_t *r, const uint8_t *b,
                        bool normalize, size_t width, uint8_t *dst);

#endif
