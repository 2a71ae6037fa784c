/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: the diff verb: things with tables, and how their elements compare. */
#ifndef DRIVER_DIFF_INTERNAL_H
#define DRIVER_DIFF_INTERNAL_H

#include "driver/verb_internal.h"

/* ---- sources --------------------------------------------------------------------------------- */

/** One table (tensor) of a source. */
struct diff_table {
    char *name; /* owned; "route/output" in recipes and units */
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[FORMAT_MAX_RANK + 1 + TOKENTAB_MAX_RANK];
    uint64_t n_elements, width; /* width: elements of a row, the product of shape[1..] */
    uint64_t read_elements;     /* reads begin and end at multiples of this: width or 1 */
    bool opaque;                /* a dtype we do not know: bytes, compared as such */
    bool stored;                /* recipe: a tensor of the payload, not a table of a route */
    size_t route, table;        /* recipe */
    uint32_t tensor;            /* checkpoint, packed: its number */
    char *file;                 /* .npy: owned */
    uint64_t offset;            /* .npy: of the data in the file */
};

enum diff_kind { DIFF_RECIPE, DIFF_CHECKPOINT, DIFF_UNIT, DIFF_NPY, DIFF_PACKED };

/** Something with tables. */
struct diff_source {
    const char *path;
    enum diff_kind kind;
    struct diff_table *tables; /* owned */
    size_t n_tables, capacity;
    struct tokentab_recipe *recipe;
    struct format_checkpoint *checkpoint; /* also: bias and id list of a recipe */
    struct format_shard_reader *unit;
    struct format_packed *packed;
    bool is_foreign;          /* weights of a compressme artifact, opened as a checkpoint */
    uint64_t first_row;       /* unit */
    uint64_t untrimmed_bytes; /* read since mapped pages went back */
};

/** Text of a kind, for results.  Pure. */
const char *diff_kind_name(enum diff_kind kind);
/** Open a recipe, checkpoint, unit file, .npy file, folder of .npy files or packed payload.  Local.
 *  A recipe's payload is compared with its digest.  Close it in any case.  @return ST_OK,
 * ST_FORMAT, ST_IO, ST_NOMEM */
NODISCARD enum status diff_source_open(const char *path, uint64_t header_cap,
                                       struct diff_source *out, struct err *err);
void diff_source_close(struct diff_source *s);
/** Stored elements [first, first + n) of a table.  ST_FORMAT, ST_IO. */
NODISCARD enum status diff_source_read(struct diff_source *s, const struct diff_table *t,
                                       uint64_t first, uint64_t n, void *dst, struct err *err);
/** The token id that a row of a table belongs to (its number where there are no tokens).  Pure. */
uint64_t diff_source_row_id(const struct diff_source *s, const struct diff_table *t, uint64_t row);

/* ---- comparison ------------------------------------------------------------------------------ */

enum diff_nan { DIFF_NAN_DIFFER, DIFF_NAN_EQUAL, DIFF_NAN_BITS };

/** When two elements count as equal: the same bits, or any tolerance that is given holds. */
struct diff_rule {
    bool has_absolute, has_relative, has_ulp;
    double absolute, relative;
    uint64_t ulp;
    enum diff_nan nan;
};

/** Where the largest value of a measure was met first. */
struct diff_worst {
    double value;
    uint64_t element;
};

/** One pair of elements. */
struct diff_element {
    bool equal, same_bits, has_ulp;
    double absolute, relative; /* NaN where a NaN is compared */
    uint64_t ulp;
};

/** What a comparison of two tables found. */
struct diff_counts {
    uint64_t elements, different, bits_different, nan_pairs;
    struct diff_worst absolute, relative;
    uint64_t ulp, ulp_element; /* largest distance */
};

/** Compare one pair.  Pure. */
struct diff_element diff_compare(const struct diff_rule *rule, enum dtype da, const void *a,
                                 enum dtype db, const void *b);

/** Called for every pair that differs, in order of elements. */
typedef void (*diff_place_fn)(void *ctx, uint64_t element, const void *a, const void *b,
                              const struct diff_element *d);
/** Compare tables of one shape, in bounded memory.  ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status diff_tables(const struct diff_rule *rule, struct diff_source *a,
                                  const struct diff_table *ta, struct diff_source *b,
                                  const struct diff_table *tb, diff_place_fn place, void *ctx,
                                  struct diff_counts *out, struct err *err);

#endif
