/* SPDX-License-Identifier: Apache-2.0 */
/** formats, parsed JSON: reading the values of a document of format_json_read, for folders that may
 *  not include cJSON (a config.json, a report.json).  Everything returned is borrowed from the
 *  document.  All Pure. */
#ifndef FORMATS_JSON_VALUE_H
#define FORMATS_JSON_VALUE_H

#include "formats/recipe.h"

enum json_kind {
    JSON_ABSENT, /* a NULL pointer: no such member */
    JSON_NULL,
    JSON_BOOL,
    JSON_NUMBER,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
};
enum { JSON_SHOWN_SIZE = 128 };

enum json_kind json_value_kind(const struct cJSON *v);
/** Member of an object; NULL if it has none of that name, or is no object. */
const struct cJSON *json_value_get(const struct cJSON *object, const char *key);
/** First value in an array or object (NULL: empty, or neither), the one after it, its key (NULL in
 *  an array). */
const struct cJSON *json_value_first(const struct cJSON *v);
const struct cJSON *json_value_next(const struct cJSON *v);
const char *json_value_key(const struct cJSON *v);
size_t json_value_count(const struct cJSON *v);
/** NULL unless it is a string. */
const char *json_value_string(const struct cJSON *v);
/** False, *out untouched, unless it is a number; a whole number in [0, 2^53), or a decimal string
 * of one beyond (format_write_u64); a boolean. */
NODISCARD bool json_value_double(const struct cJSON *v, double *out);
NODISCARD bool json_value_u64(const struct cJSON *v, uint64_t *out);
NODISCARD bool json_value_bool(const struct cJSON *v, bool *out);
/** As it would stand in a message: a short text of a scalar, or the kind of a container.  Returns
 *  buf. */
const char *json_value_shown(const struct cJSON *v, char buf[JSON_SHOWN_SIZE]);

#endif
