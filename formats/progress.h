/* SPDX-License-Identifier: Apache-2.0 */
/** formats, progress files: how far a run is, for people and the status verb while it goes on. They
 *  promise nothing and nothing depends on them. */
#ifndef FORMATS_PROGRESS_H
#define FORMATS_PROGRESS_H

#include "base/base.h"

/** One run (or array task) on one block.  Times are seconds since 1970. */
struct format_progress {
    char *block, *host, *state,
        *last_error; /* owned when decoded; last_error "" when there is none */
    uint64_t pid, ranks;
    uint64_t part, n_parts; /* array task `part` of n_parts; 0 of 0: a whole run */
    uint64_t units_total;   /* of the block */
    uint64_t shards, shards_done, shards_in_flight, shards_failed; /* of this part */
    uint64_t units_done, units_reused, tokens, tokens_done;
    double started, updated;
};

/** Text of a progress file.  ST_NOMEM. */
NODISCARD enum status format_progress_encode(const struct format_progress *p, struct bytes *out,
                                             struct err *err);
/** Replace `path` by rename, without waiting for the disk: a reader sees the old file or the new
 *  one.  After a failure the temporary file is gone.  ST_IO, ST_NOMEM.  Local. */
NODISCARD enum status format_progress_write(const char *path, const struct format_progress *p,
                                            struct err *err);
/** ST_FORMAT (absent, or not a progress file), ST_IO, ST_NOMEM.  *out is owned,
 *  format_progress_free always. */
NODISCARD enum status format_progress_read(const char *path, struct format_progress *out,
                                           struct err *err);
/** Release what format_progress_read gave. */
void format_progress_free(struct format_progress *p);

#endif
