/* SPDX-License-Identifier: Apache-2.0 */
/** Private to import-hf (verb_import_hf.c, hf_*.c): what config.json says, the model families whose
 *  first stage is known, and the checks of a snapshot against them. */
#ifndef DRIVER_HF_INTERNAL_H
#define DRIVER_HF_INTERNAL_H

#include "driver/driver_internal.h"
#include "formats/json_value.h"

enum { HF_NAME_SIZE = 160, HF_MAX_FLAGS = 4, HF_MAX_GUARDS = 2, HF_MAX_FILES = 64 };

/** One tensor of the embedding or the first layer.
 *  shape: a letter an axis, "" any: v vocabulary, h hidden, q and k width of all query and of all
 *  key heads, d of one head, f query + key + value, i intermediate, u twice that.
 *  when: 0 always; 'x' a buffer that Transformers makes itself and ignores in a file; else the flag
 *  that decides. */
struct hf_tensor {
    const char *name; /* below the model's prefix */
    const char *shape;
    char when;
};

/** A switch of config.json that decides which tensors there are. */
struct hf_flag {
    char letter;
    const char *key;
    bool preset;
};

enum hf_head_dim { HEAD_DIM_DERIVED, HEAD_DIM_OPTIONAL, HEAD_DIM_PRESET };
enum hf_norm { NORM_FLOAT32_RMS, NORM_GEMMA_RMS, NORM_LAYER };
enum hf_fused { FUSED_NONE, FUSED_BLOCKS, FUSED_INTERLEAVED };

struct hf_config;

/** How the first stage of one model_type is built, as Transformers' own class computes it. */
struct hf_family {
    const char *model_type;
    const char *class_name; /* architectures are class_name + one of the suffixes */
    const char *suffixes; /* '|' between them; one that ends in "Model" has no prefix and no head */
    const char *prefix;
    const struct hf_tensor *tensors;
    size_t n_tensors;
    const char *guards[HF_MAX_GUARDS]; /* below these nothing but `tensors` may lie */
    /* config.json */
    const char *eps_key;
    bool has_kv_heads, needs_kv_heads;
    enum hf_head_dim head_dim;
    uint64_t head_dim_preset;
    struct hf_flag flags[HF_MAX_FLAGS]; /* letter 0 ends them */
    bool tied_by_default;
    const char *causal_head, *masked_head; /* the matrix that may be tied to the embedding */
    /* the stage; names without ".weight" */
    const char *embedding, *embedding_norm, *norm; /* norm NULL: the first layer has none */
    enum hf_norm norm_kind;
    bool scaled_embedding; /* by sqrt(hidden), rounded to the dtype of the embedding */
    const char *q, *k, *v, *fused;
    enum hf_fused fused_mode;
    const char *q_norm, *k_norm;              /* per head, or NULL */
    const char *mlp_norm, *mlp_up, *mlp_down; /* with a parallel residual (flag 'p'), or NULL */
    enum status (*check)(struct hf_config *c, struct err *err); /* further refusals, or NULL */
    const char *comment;
};
extern const struct hf_family hf_families[];
extern const size_t hf_n_families;

/** What the import needs of config.json.  Strings are borrowed from `json`. */
struct hf_config {
    const char *path;
    struct cJSON *json; /* owned */
    const struct hf_family *family;
    const char *architecture;
    const char *prefix;
    const char *head; /* NULL: the architecture has none that may be tied */
    bool tied;
    uint64_t vocab, hidden, intermediate, heads, kv_heads, head_dim, q_width, kv_width;
    double eps;
    bool flags[26];         /* by letter */
    const char *activation; /* op of the spec; parallel MLP alone */
    enum dtype dtype;       /* DT_UNKNOWN: not declared */
    bool has_code;          /* auto_map: ignored, nothing of a snapshot is run */
};

/** Read config.json: model_type and architectures of the list, every value that shapes the first
 *  stage.  Local.  ST_FORMAT (unreadable), ST_STRUCTURE (a model that cannot be imported, with the
 *  reason), ST_SPEC (a value is missing or wrong); hf_config_free always. */
NODISCARD enum status hf_config_read(const char *path, struct hf_config *c, struct err *err);
void hf_config_free(struct hf_config *c);
/** Is the tensor there under this config?  'x' tensors are not.  Pure. */
bool hf_config_has(const struct hf_config *c, const struct hf_tensor *t);
/** Is there a tensor NAME + `suffix` (".weight", ".bias")?  Pure. */
bool hf_config_has_name(const struct hf_config *c, const char *name, const char *suffix);
/** Entry of the family's table by model_type; NULL.  Pure. */
const struct hf_family *hf_family_find(const char *model_type);
/** Why a known model_type cannot be tabulated; NULL for an unknown one.  Pure. */
const char *hf_refusal(const char *model_type);

/** A snapshot whose headers agree with its config. */
struct hf_snapshot {
    const struct hf_config *config;
    struct format_checkpoint *checkpoint; /* owned */
    enum dtype dtype;                     /* of the embedding, so of every tensor of the stage */
    bool aliased;                         /* the embedding is stored under the head's name alone */
    const char *files[HF_MAX_FILES];      /* borrowed: where the stage's tensors lie, name order */
    size_t n_files;
};

/** Compare names, shapes and dtypes of embedding and first layer with the headers, and the tie with
 *  what the config declares (N17).  Local.  ST_STRUCTURE, ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status hf_snapshot_check(struct hf_snapshot *s, struct err *err);

/** Text for `provenance`. */
struct hf_provenance {
    char *name, *value; /* owned */
};
/** The spec as text.  checkpoint: what the spec names. */
void hf_spec_write(const struct hf_snapshot *s, const char *checkpoint,
                   const struct hf_provenance *provenance, size_t n_provenance,
                   struct format_writer *w);

#endif
