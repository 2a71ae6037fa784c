/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private: what several files of this folder share. */
#ifndef FORMATS_FORMATS_INTERNAL_H
#define FORMATS_FORMATS_INTERNAL_H

#include "base/base.h"

struct cJSON;

enum { FORMAT_PRINTABLE_SIZE = 128 };

/** A name from a file for a one-line message: control characters become '?', a long one is cut.
 *  Pure.  Returns buf. */
const char *format_printable(const char *name, char buf[FORMAT_PRINTABLE_SIZE]);

/** A JSON number as a whole number in [0, 2^53), read from valuedouble (valueint saturates at
 *  2^31 - 1).  2^53 itself is refused: 2^53 + 1 reads as the same double.  False for anything else,
 *  NULL included.  Pure. */
NODISCARD bool format_json_u64(const struct cJSON *item, uint64_t *out);

/** The value as it would stand in a message: a short text of a number, string, or the kind of a
 *  container.  Pure.  Returns buf. */
const char *format_json_shown(const struct cJSON *item, char buf[FORMAT_PRINTABLE_SIZE]);

/** Check `text` against RFC 8259 before cJSON, which is laxer, sees it: grammar, UTF-8, surrogates,
 *  no NUL in any string, nesting <= 1000, at most FORMAT_JSON_MAX_VALUES values (each costs cJSON
 *  about 80 bytes), white space alone behind the document.  Pure but for *err.  ST_FORMAT. */
NODISCARD enum status format_json_scan(const char *what, const void *text, size_t size,
                                       struct err *err);
enum { FORMAT_JSON_MAX_DEPTH = 1000, FORMAT_JSON_MAX_VALUES = 1 << 24, FORMAT_JSON_NUMBER = 62 };

#endif
