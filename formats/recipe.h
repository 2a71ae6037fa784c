/* SPDX-License-Identifier: Apache-2.0 */
/** formats, small target `formats_recipe`: the files an inference program needs: safetensors
 * headers, recipe.json, the packed payload.  Linked by lookup; needs cJSON and zstd, neither HDF5
 * nor MPI. FORMAT.md is the specification. */
#ifndef FORMATS_RECIPE_H
#define FORMATS_RECIPE_H

#include "base/base.h"

struct cJSON;

/* ---- safetensors --------------------------------------------------------------------------- */

enum { FORMAT_MAX_RANK = 8, FORMAT_DTYPE_TEXT = 16 };
#define FORMAT_HEADER_CAP_DEFAULT ((uint64_t)100000000)

struct format_tensor {
    char *name;       /* owned by the file */
    enum dtype dtype; /* DT_UNKNOWN: still listed, offsets still checked */
    char dtype_text[FORMAT_DTYPE_TEXT];
    unsigned rank;
    uint64_t shape[FORMAT_MAX_RANK];
    uint64_t n_elements;
    uint64_t offset; /* from the start of the file */
    uint64_t size_bytes;
};

/** An open safetensors file: header read and checked, data untouched. */
struct format_safetensors {
    char *path; /* owned */
    int fd;
    uint64_t file_size, header_size; /* header_size: the JSON, without the 8-byte length */
    struct format_tensor *tensors;   /* in header order */
    size_t n_tensors;
    struct cJSON *metadata; /* owned `__metadata__` object or NULL */
};

/** Open and check everything NEEDS N1-N6 name: length prefix against the file size before any
 *  allocation, cap, Git LFS pointers, JSON with nothing behind it, duplicate names, NUL in names,
 * shape x dtype = span without overflow, no overlap, no hole, nothing behind the last tensor.
 *  @param header_cap  0: FORMAT_HEADER_CAP_DEFAULT
 *  @return ST_OK, ST_FORMAT, ST_IO, ST_NOMEM; nothing to close after a failure */
NODISCARD enum status format_safetensors_open(const char *path, uint64_t header_cap,
                                              struct format_safetensors **out, struct err *err);
void format_safetensors_close(struct format_safetensors **f);
/** NULL if absent. */
const struct format_tensor *format_safetensors_find(const struct format_safetensors *f,
                                                    const char *name);
/** pread `size` bytes from byte `offset` of a tensor.  ST_IO on a short read. */
NODISCARD enum status format_safetensors_read(const struct format_safetensors *f,
                                              const struct format_tensor *t, uint64_t offset,
                                              void *dst, size_t size, struct err *err);

/** What a header is built from. */
struct format_tensor_spec {
    const char *name;
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[FORMAT_MAX_RANK];
};
/** Length prefix and JSON (padded with spaces to a multiple of 8) for tensors laid out in the order
 *  given, without gaps.  offsets[i] gets the file offset of tensor i, *file_size the size of the
 * whole. metadata_json: inside of an object, or NULL.  Bytes are a function of the arguments alone.
 */
NODISCARD enum status format_safetensors_header(const struct format_tensor_spec *tensors, size_t n,
                                                const char *metadata_json, struct bytes *out,
                                                uint64_t *offsets, uint64_t *file_size,
                                                struct err *err);
/** Write a whole file from arrays in memory (staged, renamed). */
NODISCARD enum status format_safetensors_write(const char *path,
                                               const struct format_tensor_spec *tensors,
                                               const void *const *data, size_t n,
                                               const char *metadata_json, struct err *err);

/* ---- JSON ---------------------------------------------------------------------------------- */

/** Parse a whole document: nothing but white space behind it, no duplicate keys at any depth, no
 *  control NUL in names, nesting <= 1000 (N2, N6).  `what` names it in messages.  Free with
 *  format_json_free. */
NODISCARD enum status format_json_parse(const char *what, const void *text, size_t size,
                                        struct cJSON **out, struct err *err);
NODISCARD enum status format_json_read(const char *path, size_t max_size, struct cJSON **out,
                                       struct err *err);
void format_json_free(struct cJSON **json);

/** A writer of JSON text whose bytes are fixed: keys in call order, two-space indent, numbers by
 *  str_double, integers above 2^53 as decimal strings, non-finite numbers as strings. */
struct format_writer {
    struct bytes out;
    unsigned depth;
    bool need_comma, pretty;
};
void format_write_object(struct format_writer *w, const char *key); /* key NULL inside arrays */
void format_write_array(struct format_writer *w, const char *key);
void format_write_end_object(struct format_writer *w);
void format_write_end_array(struct format_writer *w);
void format_write_string(struct format_writer *w, const char *key, const char *value);
void format_write_u64(struct format_writer *w, const char *key, uint64_t value);
void format_write_i64(struct format_writer *w, const char *key, int64_t value);
void format_write_double(struct format_writer *w, const char *key, double value);
void format_write_bool(struct format_writer *w, const char *key, bool value);
void format_write_null(struct format_writer *w, const char *key);
/** Ready-made JSON text as a value. */
void format_write_raw(struct format_writer *w, const char *key, const char *json);
/** Ends the document with a newline. */
void format_write_finish(struct format_writer *w);

/* ---- recipe.json --------------------------------------------------------------------------- */

enum format_recipe_kind { RECIPE_LOOKUP, RECIPE_FANOUT, RECIPE_PROJECTED };
/** Text in recipe.json: "lookup", "fanout", "projected". */
const char *format_recipe_kind_name(enum format_recipe_kind kind);

/** One packed table: [rows, width]; rows is num_embeddings, or 1 for a constant one, or n_distinct
 * where an index shares identical rows. */
struct format_group {
    uint64_t rows, width;
    enum dtype dtype;
    /** Row sharing: the payload holds tensor "tables.group_N.index" (I32 or I64, [num_embeddings]).
     */
    bool indexed;
};

/** Where one stored table of one route lies. */
struct format_placed {
    char *name; /* owned */
    uint32_t group;
    uint64_t column, width;
};

struct format_profile {
    uint64_t max_rows, evaluation_rows;
    struct format_placed *outputs; /* n_outputs, same names and order as bulk */
};

struct format_field {
    char *name, *value; /* owned */
};

/** recipe.json in memory.  Every string is owned; format_recipe_free releases all. */
struct format_recipe {
    enum format_recipe_kind kind;
    unsigned version;            /* 1, or 2 with row-count profiles */
    char *block;                 /* name of the block */
    uint64_t num_embeddings;     /* ids accepted: [0, num_embeddings) without a remap */
    uint64_t rows_in_checkpoint; /* N20 */
    /** `ids` subset (N24): the payload holds tensor "ids" (I64, ascending); id -> row by search. */
    bool has_ids;
    uint64_t
        n_ids; /* with has_ids: length of the list, which is the number of table rows; else 0 */
    struct format_group *groups;
    size_t n_groups;
    struct format_placed *outputs; /* stored tables of route bulk; for projected "z" and "r" */
    size_t n_outputs;
    struct format_profile *profiles;
    size_t n_profiles;
    /* projected: payload tensor "bias" [width] (dtype of z) when has_bias; "projection" when
     * retained */
    bool has_bias, retain_projection;
    uint64_t projection_columns; /* retain_projection: tensor "projection" [width of z, this] */
    enum dtype bias_dtype;
    double normalize_eps;
    char *payload_file, *payload_sha256;
    uint64_t payload_bytes;
    bool may_grow;
    char *arithmetic; /* "library" or "correctly_rounded" */
    struct format_field
        *environment; /* library: the numeric environment; else the evaluator alone */
    size_t n_environment;
    struct format_field *provenance; /* name of what, digest */
    size_t n_provenance;
    struct format_field *thresholds; /* tolerance absolute, relative; decisions */
    size_t n_thresholds;
    char *validation_json; /* summary object as text */
    char *storage_json;    /* verdict object as text */
    char *seal;            /* sha256 hex over everything above, see FORMAT.md */
};
void format_recipe_free(struct format_recipe **r);
/** Status word of a recipe that another program made: nothing here has validated it. */
#define FORMAT_RECIPE_IMPORTED "imported_not_validated"
/** The status that r->validation_json tells, owned; "" if it has none.  NULL when memory is short.
 */
NODISCARD char *format_recipe_status(const struct format_recipe *r);
/** Rows of the tables: n_ids with an id list, else num_embeddings.  Pure. */
uint64_t format_recipe_rows(const struct format_recipe *r);
/** The rules that recipe.json must keep besides its grammar (shapes, names, widths equal in all
 *  routes, every group used, ...); `what` names it in messages.  Local. */
NODISCARD enum status format_recipe_check(const struct format_recipe *r, const char *what,
                                          struct err *err);
/** Seal of the content (r->seal itself excluded), 64 hex digits. */
NODISCARD enum status format_recipe_seal(const struct format_recipe *r, char hex[SHA256_HEX_SIZE],
                                         struct err *err);
/** Text of recipe.json.  Bytes are a function of *r alone. */
NODISCARD enum status format_recipe_encode(const struct format_recipe *r, struct bytes *out,
                                           struct err *err);
/** Strict: unknown keys, missing keys, wrong types, inconsistent shapes, names that are no names,
 * payload file names with a path: ST_FORMAT.  Does not compare the seal. */
NODISCARD enum status format_recipe_decode(const char *what, const void *text, size_t size,
                                           struct format_recipe **out, struct err *err);
/** Tensors the payload must hold, in order: tables.group_0, ..., then index tensors, ids, bias,
 *  projection.  *specs and the names in it are owned by the caller (format_tensor_specs_free). */
NODISCARD enum status format_recipe_tensors(const struct format_recipe *r,
                                            struct format_tensor_spec **specs, size_t *n,
                                            struct err *err);
void format_tensor_specs_free(struct format_tensor_spec **specs, size_t n);

#endif
