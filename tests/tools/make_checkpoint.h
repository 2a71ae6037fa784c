/* SPDX-License-Identifier: Apache-2.0 */
/** make_checkpoint: seeded safetensors files of any shape, the same bytes on every machine, so that
 *  big runs need no download. */
#ifndef TESTS_TOOLS_MAKE_CHECKPOINT_H
#define TESTS_TOOLS_MAKE_CHECKPOINT_H

#include "base/base.h"
#include "formats/recipe.h"

enum { MAKE_MAX_TENSORS = 64, MAKE_MAX_VALUES = 4096, MAKE_NAME_SIZE = 256 };

/** One tensor: elements offset + scale * z with z of mean 0 and variance 1, or a list of values. */
struct make_tensor {
    char name[MAKE_NAME_SIZE];
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[FORMAT_MAX_RANK];
    double scale, offset;
    double *values; /* owned; NULL: random */
    size_t n_values;
};

struct make_options {
    const char *out, *spec, *preset, *arithmetic, *storage;
    uint64_t seed, n_shards;
    uint64_t vocab, width, out_width; /* 0: the preset's own */
    uint64_t bulk_rows, validation_rows;
    enum dtype dtype;
    struct make_tensor tensors[MAKE_MAX_TENSORS];
    size_t n_tensors;
};

/** Append a tensor of rank 1 (cols 0) or 2.  ST_USAGE when there are too many. */
NODISCARD enum status make_add(struct make_options *o, const char *name, uint64_t rows,
                               uint64_t cols, double scale, double offset, struct err *err);
/** The tensors of o->preset, after those of the command line.  ST_USAGE for an unknown name. */
NODISCARD enum status make_preset(struct make_options *o, struct err *err);
/** The spec that fits the preset, to o->spec. */
NODISCARD enum status make_spec(const struct make_options *o, struct err *err);

#endif
