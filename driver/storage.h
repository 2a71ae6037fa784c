/* SPDX-License-Identifier: Apache-2.0 */
/** Bytes of a finished recipe: what a process holds that has all of it, and what lies on disk.
 *  Private to driver/. */
#ifndef DRIVER_STORAGE_H
#define DRIVER_STORAGE_H

#include "driver/driver_internal.h"

struct driver_storage {
    uint64_t resident; /* all payload tensors, decoded: tables, indexes, ids, bias, projection */
    uint64_t payload;  /* the file: tensors (packed: frames) with headers and padding */
    uint64_t recipe_json, report_json; /* 0: not there */
};

/** Measure recipe `r` in folder `dir` (NULL: its JSON is not counted).  Local.  ST_NOMEM,
 *  ST_FORMAT. */
NODISCARD enum status driver_storage_measure(const char *dir, const struct format_recipe *r,
                                             struct driver_storage *out, struct err *err);
/** Members "resident" and "on_disk" of an open object. */
void driver_storage_json(const struct driver_storage *s, struct format_writer *w);
/** One line. */
void driver_storage_text(const struct driver_storage *s, struct bytes *out);

#endif
