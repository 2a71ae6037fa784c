/* SPDX-License-Identifier: Apache-2.0 */
/** formats: bytes on disk.  This header is the larger target `formats`: checkpoints, specs, HDF5
 * shard files; formats/recipe.h is the small one that lookup links.  FORMAT.md is the
 * specification.  Formats knows what bytes look like, not what they mean: it asks graph's op table
 * which attributes an op has. */
#ifndef FORMATS_FORMATS_H
#define FORMATS_FORMATS_H

#include "base/base.h"
#include "formats/recipe.h"
#include "graph/graph.h"

/* ---- checkpoint: a safetensors file, a sharded index, or a folder -------------------------- */

struct format_checkpoint_opts {
    uint64_t header_cap;       /* 0: default */
    bool allow_missing_unused; /* absent shards are a warning until a tensor of theirs is read */
};

struct format_checkpoint; /* opaque */

/** PATH is a .safetensors file, a *.safetensors.index.json, or a folder that holds
 *  model.safetensors.index.json (wins, with a warning about a stray model.safetensors), or
 *  model.safetensors, or exactly one .safetensors file.  NEEDS N12-N16: all absent shards are
 * listed; no absolute paths, "..", NUL; plain names may be links (Hugging Face caches).  Headers
 * only. ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status format_checkpoint_open(const char *path,
                                             const struct format_checkpoint_opts *opts,
                                             struct format_checkpoint **out, struct err *err);
void format_checkpoint_close(struct format_checkpoint **c);
/** Tensor by name.  ST_STRUCTURE with the three nearest names, or the three different messages of
 * N14. */
NODISCARD enum status format_checkpoint_find(const struct format_checkpoint *c, const char *name,
                                             const struct format_tensor **tensor, struct err *err);
/** The graph_tensor_fn of a checkpoint; ctx is the struct format_checkpoint. */
enum status format_checkpoint_tensor_info(void *ctx, const char *name,
                                          struct graph_tensor_info *out, struct err *err);
/** pread bytes [offset, offset + size) of a tensor.  ST_IO. */
NODISCARD enum status format_checkpoint_read(const struct format_checkpoint *c,
                                             const struct format_tensor *tensor, uint64_t offset,
                                             void *dst, size_t size, struct err *err);
/** Is every file still the one that was opened, of the same size and time of change, and does its
 * name still lead to it?  To be asked once all has been read: what was read may otherwise be half
 * old and half new.  ST_IO ("changed while it was read", with what differs).  Local. */
NODISCARD enum status format_checkpoint_unchanged(const struct format_checkpoint *c,
                                                  struct err *err);
/** Bytes of all its files. */
uint64_t format_checkpoint_bytes(const struct format_checkpoint *c);
/** All tensors, name order; and the file each lies in. */
size_t format_checkpoint_count(const struct format_checkpoint *c);
const struct format_tensor *format_checkpoint_tensor(const struct format_checkpoint *c, size_t i,
                                                     const char **file);
/** Warnings gathered while opening (stray files, total_size): count and text. */
size_t format_checkpoint_warnings(const struct format_checkpoint *c);
const char *format_checkpoint_warning(const struct format_checkpoint *c, size_t i);
/** `vocab_size` of the config.json beside the checkpoint (N20: often not the table's rows).  False
 * if there is none. */
NODISCARD bool format_checkpoint_vocab_size(const struct format_checkpoint *c, uint64_t *out);

/* ---- spec ---------------------------------------------------------------------------------- */

struct format_row_profile {
    uint64_t max_rows, evaluation_rows;
};

struct format_alias {
    char *name, *target; /* owned */
    bool used;           /* a tensor of the spec goes by this name */
};

enum format_storage_policy { STORAGE_MUST_SHRINK, STORAGE_MAY_GROW };

/** A parsed spec: DESIGN.md "Spec".  Everything owned; format_spec_free releases all. */
struct format_spec {
    char *path;            /* as given */
    char *checkpoint_path; /* joined with the spec's folder */
    struct graph_block *blocks;
    size_t n_blocks;
    struct format_row_profile *profiles; /* strictly growing max_rows */
    size_t n_profiles;
    uint64_t bulk_rows, validation_rows;
    double tolerance_absolute, tolerance_relative;
    bool correctly_rounded; /* "arithmetic" */
    enum format_storage_policy storage;
    struct format_alias *aliases;
    size_t n_aliases;
    struct format_field *provenance; /* where the files came from; carried into the recipe */
    size_t n_provenance;
    uint64_t vocab; /* 0: all rows */
    char *ids_path; /* joined, or NULL */
    /* graph form (an enclosing model): the raw objects, parsed by format_spec_graph */
    struct cJSON *graph;    /* owned or NULL */
    struct cJSON *examples; /* owned or NULL */
};

/** Read and check a spec: unknown keys, wrong types, missing eps, names, profiles, ranges; every
 * message is "FILE: json.path: expected ..., found ...".  Builds the token graphs of its blocks
 * (unresolved). ST_SPEC, ST_STRUCTURE (training mode, max_norm, sparse, token mixing named in a
 * block), ST_FORMAT (unreadable), ST_NOMEM. */
NODISCARD enum status format_spec_read(const char *path, struct format_spec **out, struct err *err);
void format_spec_free(struct format_spec **s);
/** Resolve all blocks against a checkpoint and audit them; `vocab` against the rows; every message
 * has the spec's path in front.  Local.  As graph_block_resolve and graph_block_audit. */
NODISCARD enum status format_spec_resolve(struct format_spec *s, graph_tensor_fn find, void *ctx,
                                          struct err *err);
/** The enclosing model of `graph`: nodes, inputs, outputs, with JSON paths in every message.  NULL
 * in *out where the spec has none.  Free with graph_model_free.  ST_SPEC, ST_NOMEM. */
NODISCARD enum status format_spec_graph(const struct format_spec *s, struct graph_model **out,
                                        struct err *err);
/** Write a copy of a spec with these row-count profiles (paths inside it stay as they are, relative
 * to the copy's folder).  Staged, renamed.  ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status format_spec_with_profiles(const char *spec_path,
                                                const struct format_row_profile *profiles, size_t n,
                                                const char *out_path, struct err *err);
/** Ids of an `ids` file: one id or inclusive range "a-b" a line, '#' comments; sorted,
 * deduplicated. *ids is owned (free).  ST_SPEC with file and line. */
NODISCARD enum status format_ids_read(const char *path, uint64_t **ids, size_t *n, struct err *err);

/* ---- HDF5 shard files ---------------------------------------------------------------------- */

/** One stored table of one route in a shard file. */
struct format_shard_table {
    const char *route, *output;
    enum dtype dtype; /* F16 and BF16 as 16-bit integers with attribute dtype; see FORMAT.md */
    uint64_t width;
    const void *data; /* [n_rows, width], stored elements */
};

/** Per-token columns that later passes need ("decision/<output>/margin"): [n_rows] doubles. */
struct format_shard_column {
    const char *name;
    const double *data;
};

/** What one unit's file holds.  Borrowed. */
struct format_shard {
    uint64_t unit, first_row, n_rows; /* rows of the table, in id order */
    const struct format_shard_table *tables;
    size_t n_tables;
    const double *statistics; /* [n_records, n_fields] */
    size_t n_records, n_fields;
    const char *statistics_columns; /* names, newline between them */
    const struct format_shard_column *columns;
    size_t n_columns;
    const struct digest *table_digests; /* n_tables */
    const struct format_field *fingerprint_fields;
    size_t n_fingerprint_fields;
    const char *fingerprint; /* hex */
};

/** Write `path` (a temporary name), closed and synced.  Same arguments, same bytes: object times
 * off, bounds fixed.  After a failure the file is gone.  ST_IO, ST_NOMEM. */
NODISCARD enum status format_shard_write(const char *path, const struct format_shard *shard,
                                         struct err *err);

/** What a unit's file says about itself, without its tables.  Owned; format_shard_info_free. */
struct format_shard_info {
    uint64_t unit, first_row, n_rows;
    size_t n_tables;
    struct digest *table_digests;
    double *statistics;
    size_t n_records, n_fields;
    struct format_field *fingerprint_fields;
    size_t n_fingerprint_fields;
    char *fingerprint;
    bool complete;
    char *table_names; /* "route/output", newline between them, in the order of the digests */
    char *statistics_columns; /* as written */
};
NODISCARD enum status format_shard_info_read(const char *path, struct format_shard_info **out,
                                             struct err *err);
void format_shard_info_free(struct format_shard_info **info);

/** An open unit file for reading tables. */
struct format_shard_reader; /* opaque */
NODISCARD enum status format_shard_reader_open(const char *path, struct format_shard_reader **out,
                                               struct err *err);
void format_shard_reader_close(struct format_shard_reader **r);
/** Dtype and width of a stored table: what format_shard_reader_rows will put into dst. */
NODISCARD enum status format_shard_reader_table(struct format_shard_reader *r, const char *route,
                                                const char *output, enum dtype *dtype,
                                                uint64_t *width, struct err *err);
/** Rows [first, first + n) counted from the unit's first row; dst [n, width] stored elements. */
NODISCARD enum status format_shard_reader_rows(struct format_shard_reader *r, const char *route,
                                               const char *output, uint64_t first, uint64_t n,
                                               void *dst, struct err *err);
/** Per-token column by name, all rows. */
NODISCARD enum status format_shard_reader_column(struct format_shard_reader *r, const char *name,
                                                 double *dst, struct err *err);

/** tables.h5: virtual datasets tables/<route>/<output> [n_rows, width] over the unit files, names
 *  relative, NaN fill (halves: 0x7E00 / 0x7FC0).  Staged, renamed. */
struct format_virtual_source {
    const char *file; /* relative to the virtual file's folder */
    uint64_t first_row, n_rows;
};
NODISCARD enum status format_virtual_write(const char *path,
                                           const struct format_shard_table *tables, size_t n_tables,
                                           uint64_t n_rows,
                                           const struct format_virtual_source *sources,
                                           size_t n_sources, struct err *err);

#endif
