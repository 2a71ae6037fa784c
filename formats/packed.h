/* SPDX-License-Identifier: Apache-2.0 */
/** formats, packed payload (.ttz): tensors cut into chunks of a fixed number of rows, each chunk as
 *  byte planes in zstd frames, profile tables as exact XOR against bulk ones.  FORMAT.md is
 *  the specification.  Part of the small target `formats_recipe`. */
#ifndef FORMATS_PACKED_H
#define FORMATS_PACKED_H

#include "base/base.h"
#include "formats/recipe.h"

/* ---- what is packed ------------------------------------------------------------------------ */

enum {
    PACKED_MAX_CHUNK = 8 << 20,      /* bytes of decoded rows; a reader refuses more */
    PACKED_DEFAULT_CHUNK = 32 << 10, /* aimed at: a cold row costs one of these */
    PACKED_FILE_CHUNK = 1 << 20,     /* of format_pack_file */
    PACKED_LEVEL = 6
};

/** Columns [column, column + width) of a tensor.  With has_base they are stored as XOR against
 *  equally many columns of a tensor of the same dtype with as many rows, or one, that has no base
 *  anywhere. */
struct packed_segment {
    uint64_t column, width;
    bool has_base;
    uint32_t base_tensor;
    uint64_t base_column;
};

struct packed_tensor {
    char *name; /* owned */
    enum dtype dtype;
    unsigned rank; /* 1: [rows]; 2: [rows, width] */
    uint64_t rows, width;
    uint64_t rows_per_chunk;
    struct packed_segment *segments; /* owned; in column order, without gaps */
    size_t n_segments;
};

/** All that decides the bytes of a packed file, but for the rows.  Owned. */
struct packed_layout {
    struct packed_tensor *tensors;
    size_t n_tensors;
};

/** Layout of a recipe's payload: the tensors of format_recipe_tensors, in order; with `deltas` a
 *  profile's own table is stored against the bulk table of the same output.  chunk_bytes 0:
 *  PACKED_DEFAULT_CHUNK.  Pure.  ST_FORMAT for a row above PACKED_MAX_CHUNK, ST_NOMEM. */
NODISCARD enum status format_packed_plan(const struct format_recipe *r, uint64_t chunk_bytes,
                                         bool deltas, struct packed_layout **out, struct err *err);
void format_packed_layout_free(struct packed_layout **layout);
/** Chunks of a tensor; of all tensors.  Pure. */
uint64_t format_packed_chunks(const struct packed_tensor *t);
uint64_t format_packed_total_chunks(const struct packed_layout *l);
/** Tensor and chunk of the i-th chunk of the file.  Pure. */
void format_packed_locate(const struct packed_layout *l, uint64_t i, uint32_t *tensor,
                          uint64_t *chunk);

/* ---- writing ------------------------------------------------------------------------------- */

/** Rows [first, first + n) of a tensor, stored elements, row-major, into dst. */
typedef enum status (*format_packed_rows_fn)(void *ctx, uint32_t tensor, uint64_t first, uint64_t n,
                                             void *dst, struct err *err);

/** One coded chunk: `entry` is its record in the directory, `data` its zstd frames.  The bytes
 *  depend on the layout and the rows alone, so that any rank may make any chunk. */
struct packed_chunk {
    struct bytes entry, data;
};
void format_packed_chunk_free(struct packed_chunk *c);
/** Code chunk `chunk` of tensor `tensor`; asks `rows` for its rows and for those of its bases.
 *  Local, no state.  ST_NOMEM, or what `rows` returns. */
NODISCARD enum status format_packed_chunk_encode(const struct packed_layout *l, uint32_t tensor,
                                                 uint64_t chunk, format_packed_rows_fn rows,
                                                 void *ctx, struct packed_chunk *out,
                                                 struct err *err);
/** First bytes of the file; the chunks' data follows in order of format_packed_locate, without
 *  gaps. */
NODISCARD enum status format_packed_head(struct bytes *out, struct err *err);
/** What follows the last chunk, from the entries of all chunks joined in order. */
NODISCARD enum status format_packed_tail(const struct packed_layout *l, const struct bytes *entries,
                                         struct bytes *out, struct err *err);

/** Bytes by way of coding, summed over one tensor's segments; for reports. */
struct packed_report {
    uint64_t raw_bytes;    /* of the decoded rows */
    uint64_t planes_bytes; /* stored as planes */
    uint64_t delta_bytes;  /* stored as planes of the XOR */
    uint64_t sparse_bytes; /* stored as a sparse XOR */
    uint64_t raw_of_delta; /* decoded bytes of what has a base */
    uint64_t stored_of_delta;
    uint64_t planes_of_delta; /* what plain planes would have taken there */
};
/** `entries` as for format_packed_tail; reports [n_tensors].  Pure. */
NODISCARD enum status format_packed_reports(const struct packed_layout *l,
                                            const struct bytes *entries,
                                            struct packed_report *reports, struct err *err);

/** All of it by one process, to `path` (a temporary name of the caller's; synced, closed; gone
 * after a failure).  reports may be NULL. */
NODISCARD enum status format_packed_write(const char *path, const struct packed_layout *l,
                                          format_packed_rows_fn rows, void *ctx,
                                          struct packed_report *reports, struct err *err);

/* ---- row sharing --------------------------------------------------------------------------- */

/** Distinct rows of a table. */
struct packed_sharing {
    uint64_t n_distinct;
    bool pays;        /* n_distinct rows and the index are fewer bytes than all rows */
    uint64_t *index;  /* [rows] number of the distinct row; owned, only when it pays */
    uint64_t *firsts; /* [n_distinct] first row with those bytes; owned, only when it pays */
};
/** Digest and byte confirmation; memory about 40 bytes a row.  Counting goes on to the end.
 *  `tensor` is handed to `rows`. */
NODISCARD enum status format_packed_share(format_packed_rows_fn rows, void *ctx, uint32_t tensor,
                                          uint64_t n_rows, size_t row_bytes,
                                          struct packed_sharing *out, struct err *err);
void format_packed_sharing_free(struct packed_sharing *s);

/* ---- reading ------------------------------------------------------------------------------- */

struct format_packed; /* opaque; all functions but open and close may run in several threads */

/** Map the file and check its head, tail and directory; no chunk is decoded.  cache_bytes bounds
 *  the decoded chunks kept (0: 64 MiB).  ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status format_packed_open(const char *path, size_t cache_bytes,
                                         struct format_packed **out, struct err *err);
void format_packed_close(struct format_packed **p);
/** Tensors in file order; borrowed. */
const struct packed_layout *format_packed_layout(const struct format_packed *p);
uint64_t format_packed_file_size(const struct format_packed *p);
/** The whole mapped file; borrowed. */
const uint8_t *format_packed_bytes(const struct format_packed *p);
/** Reports as format_packed_reports gives them. */
NODISCARD enum status format_packed_file_reports(const struct format_packed *p,
                                                 struct packed_report *reports, struct err *err);

/** A decoded chunk, held in the cache until it is released. */
struct packed_rows {
    const uint8_t *data; /* [n, width] */
    uint64_t first, n;
    struct packed_slot *slot; /* private */
};
/** The chunk that holds row `row`.  ST_FORMAT names tensor and chunk. */
NODISCARD enum status format_packed_acquire(struct format_packed *p, uint32_t tensor, uint64_t row,
                                            struct packed_rows *out, struct err *err);
/** Accepts a zeroed struct; zeroes it. */
void format_packed_release(struct format_packed *p, struct packed_rows *rows);
/** Copy rows [first, first + n) to dst [n, width]. */
NODISCARD enum status format_packed_rows(struct format_packed *p, uint32_t tensor, uint64_t first,
                                         uint64_t n, void *dst, struct err *err);
/** Ask the system for the chunk's pages; a hint. */
void format_packed_prefetch(const struct format_packed *p, uint32_t tensor, uint64_t row);
/** Drop cached chunks and mapped pages. */
void format_packed_trim(struct format_packed *p);
/** Decode every chunk. */
NODISCARD enum status format_packed_verify(struct format_packed *p, struct err *err);

/* ---- any file ------------------------------------------------------------------------------ */

/** Pack any file: FROM to TO (staged, renamed).  dtype DT_UNKNOWN: the element kind that samples of
 *  the file pack smallest with.  Same bytes, same result.  ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status format_pack_file(const char *from, const char *to, enum dtype dtype,
                                       struct err *err);
/** The reverse, byte for byte.  max_size: refuse a result above it before anything is written (0:
 * no limit).  ST_FORMAT for what format_pack_file did not write. */
NODISCARD enum status format_unpack_file(const char *from, const char *to, uint64_t max_size,
                                         struct err *err);

#endif
