/* SPDX-License-Identifier: Apache-2.0 */
/** formats: what belongs to enclosing models alone: the regions a user names, examples, and the
 * spec of a rewritten model.  FORMAT.md describes all three. */
#ifndef FORMATS_SPEC_MODEL_H
#define FORMATS_SPEC_MODEL_H

#include "formats/formats.h"

/* ---- regions --------------------------------------------------------------------------------- */

/** One entry of graph.regions. */
struct format_region {
    char *name, *where; /* owned; where: JSON path */
    uint32_t *nodes;    /* owned; indices of nodes of the model */
    size_t n_nodes;
};
/** The regions that a spec names; none where it has no "regions".  `m` is the model of this spec.
 *  *out is owned (format_regions_free).  ST_SPEC, ST_NOMEM. */
NODISCARD enum status format_spec_regions(const struct format_spec *s, const struct graph_model *m,
                                          struct format_region **out, size_t *n, struct err *err);
void format_regions_free(struct format_region **regions, size_t n);

/* ---- examples -------------------------------------------------------------------------------- */

/** Stored elements, row-major; data is owned by the example. */
struct format_array {
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[FORMAT_MAX_RANK];
    void *data;
};
/** One call of a model. */
struct format_example {
    char *name;                  /* owned; may be "" */
    struct format_array *inputs; /* owned; [model->n_inputs], in the model's order */
};
struct format_examples {
    struct format_example *list; /* owned */
    size_t n, n_inputs;
};
/** Read "examples" of a spec: a path, a list of objects and paths, or an object by name.  Every
 *  example gives every input of the model, in its dtype, and nothing else.  None where the spec has
 *  no examples.  Free with format_examples_free, also after a failure.
 *  ST_SPEC, ST_FORMAT (files), ST_IO, ST_NOMEM. */
NODISCARD enum status format_spec_examples(const struct format_spec *s, const struct graph_model *m,
                                           struct format_examples *out, struct err *err);
/** Append the examples of a file: safetensors with tensors "INPUT.NAME" (or "INPUT": name ""), or
 *  JSON (*.json) with a list or an object. */
NODISCARD enum status format_examples_file(const char *path, const struct graph_model *m,
                                           struct format_examples *out, struct err *err);
void format_examples_free(struct format_examples *e);

/* ---- rewritten models ------------------------------------------------------------------------ */

/** Node of a model whose values a recipe holds. */
struct format_replacement {
    uint32_t node;
    const char *recipe, *output;
};
/** Text of the spec of a rewritten model: the nodes of `s` that `keep` marks, as they were written,
 *  with lookups of the same names in place of the replaced ones; all inputs and outputs; no blocks,
 *  regions, examples or settings.  checkpoint: file of the weights that are left, relative to the
 *  new spec.  Bytes are a function of the arguments alone.  ST_NOMEM. */
NODISCARD enum status format_spec_rewritten(const struct format_spec *s,
                                            const struct graph_model *m, const bool *keep,
                                            const struct format_replacement *replaced, size_t n,
                                            const char *checkpoint, struct bytes *out,
                                            struct err *err);

#endif
