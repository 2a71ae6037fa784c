/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private to the spec reader (spec*.c): JSON values with their paths. */
#ifndef FORMATS_SPEC_INTERNAL_H
#define FORMATS_SPEC_INTERNAL_H

#include "formats/formats.h"

#include <cjson/cJSON.h>

/** Where a value lies: a chain on the stack, innermost first.  {0} is the document. */
struct spec_path {
    const struct spec_path *up;
    const char *key; /* NULL: index */
    size_t index;
};

/** What the parsing functions share. */
struct spec_reader {
    const struct format_spec *spec; /* path and aliases */
    struct err *err;
};

enum { SPEC_PATH_SIZE = 400 };

/** "blocks[1].branches.q[0]"; "" for the document.  Returns buf. */
const char *spec_path_text(const struct spec_path *at, char buf[SPEC_PATH_SIZE]);
/** Owned copy, NULL when memory is short. */
char *spec_path_dup(const struct spec_path *at);

/** "FILE: path: message". */
enum status spec_fail(const struct spec_reader *r, enum status st, const struct spec_path *at,
                      const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/** "expected ..., found number 3" about the value itself. */
enum status spec_expected(const struct spec_reader *r, const struct spec_path *at,
                          const cJSON *found, const char *expected);
/** "missing (required for what)". */
enum status spec_missing(const struct spec_reader *r, const struct spec_path *up, const char *key,
                         const char *what);

/** An object with known keys only; "comment" (a string) is known everywhere. */
NODISCARD enum status spec_object(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *json, const char *const *known, size_t n_known);
#define SPEC_OBJECT(r, at, json, ...)                                                              \
    spec_object(r, at, json, (const char *const[]){__VA_ARGS__},                                   \
                sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *))
NODISCARD enum status spec_array(const struct spec_reader *r, const struct spec_path *at,
                                 const cJSON *json);

/** Member of an object, NULL if absent. */
const cJSON *spec_get(const cJSON *object, const char *key);

/* Readers of one member: nothing happens, *out keeps its preset, where the member is absent and not
 * required.  `what` is who requires it, NULL: optional.  Strings are borrowed and never empty. */
NODISCARD enum status spec_string(const struct spec_reader *r, const struct spec_path *up,
                                  const cJSON *object, const char *key, const char *what,
                                  const char **out);
/** Whole number in [min, max]. */
struct spec_range {
    uint64_t min, max;
};
NODISCARD enum status spec_u64(const struct spec_reader *r, const struct spec_path *up,
                               const cJSON *object, const char *key, struct spec_range range,
                               uint64_t *out);
NODISCARD enum status spec_u32(const struct spec_reader *r, const struct spec_path *up,
                               const cJSON *object, const char *key, struct spec_range range,
                               uint32_t *out);
NODISCARD enum status spec_bool(const struct spec_reader *r, const struct spec_path *up,
                                const cJSON *object, const char *key, bool *out);
/** Finite, not negative. */
NODISCARD enum status spec_nonnegative(const struct spec_reader *r, const struct spec_path *up,
                                       const cJSON *object, const char *key, const char *what,
                                       double *out);
/** One of `choices` ("a|b"); *out its index. */
NODISCARD enum status spec_choice(const struct spec_reader *r, const struct spec_path *at,
                                  const cJSON *json, const char *choices, unsigned *out);
/** A string member that is a name (str_is_name). */
NODISCARD enum status spec_name(const struct spec_reader *r, const struct spec_path *at,
                                const char *name);

NODISCARD enum status spec_dup(const struct spec_reader *r, const char *s, char **out);
/** *array of n zeroed items (at least one is allocated). */
NODISCARD enum status spec_alloc(const struct spec_reader *r, size_t n, size_t size, void **out);

/** Name in the checkpoint of a tensor as a spec writes it. */
const char *spec_backing(const struct format_spec *spec, const char *tensor);

/** Op of a layer or node object; in_block: ops that are no layers are refused with their reason. */
NODISCARD enum status spec_op(const struct spec_reader *r, const struct spec_path *at,
                              const cJSON *json, bool in_block, enum graph_op *op);
/** Attributes of a layer or node into `node` (initialised for its op), its weights into `g`.
 *  extra: keys that the caller reads itself. */
NODISCARD enum status spec_attributes(const struct spec_reader *r, const struct spec_path *at,
                                      const cJSON *json, const char *const *extra, size_t n_extra,
                                      struct graph *g, struct graph_node *node);
/** Refuse embedding keys that make the table depend on more than the token. */
NODISCARD enum status spec_embedding_keys(const struct spec_reader *r, const struct spec_path *at,
                                          const cJSON *json);
/** "decision": {"top_k", "softmax"} of an object into *output, if it is there. */
NODISCARD enum status spec_decision(const struct spec_reader *r, const struct spec_path *at,
                                    const cJSON *object, struct graph_output *output);

/** One block object; *b is zero before and to be freed after a failure too. */
NODISCARD enum status spec_block(const struct spec_reader *r, const struct spec_path *at,
                                 const cJSON *json, struct graph_block *b);

#endif
