/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private: the parts of a checkpoint. */
#ifndef FORMATS_CHECKPOINT_INTERNAL_H
#define FORMATS_CHECKPOINT_INTERNAL_H

#include "formats/formats.h"

/** What tells that a file is no longer the one that was opened. */
struct checkpoint_stamp {
    uint64_t device, inode, size;
    int64_t seconds; /* of the last change of its content */
    long nanoseconds;
};

struct checkpoint_file {
    const char *name;                /* as in the index; borrowed from it, or path itself */
    char *path;                      /* owned */
    struct format_safetensors *data; /* owned; NULL: absent */
    struct checkpoint_stamp stamp;   /* when it was opened */
};

struct checkpoint_entry {
    const char *name; /* borrowed from the index or from the tensor */
    size_t file;
    const struct format_tensor *tensor; /* NULL: file absent, or its header lacks the name */
};

struct format_checkpoint {
    char *path, *dir; /* owned: what was opened (file or index), and its folder */
    bool indexed;
    struct cJSON *index;           /* owned or NULL; names are borrowed from it */
    struct checkpoint_file *files; /* name order */
    size_t n_files;
    struct checkpoint_entry *entries; /* name order */
    size_t n_entries;
    size_t *listed; /* entries that have a tensor */
    size_t n_listed;
    char **warnings; /* owned */
    size_t n_warnings;
};

/** Keep a warning; short memory loses it.  Local. */
void checkpoint_warn(struct format_checkpoint *c, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/** Read c->path as an index: files and entries (tensors not yet attached), names sorted, paths
 *  checked (N16).  ST_FORMAT, ST_IO, ST_NOMEM. */
NODISCARD enum status checkpoint_index_read(struct format_checkpoint *c, struct err *err);
/** metadata.total_size against the spans, files that lie beside the index without being in it.  All
 *  are warnings. */
void checkpoint_index_warn(struct format_checkpoint *c);

/** Entry by name, NULL if none.  Pure. */
struct checkpoint_entry *checkpoint_entry_find(const struct format_checkpoint *c, const char *name);

/** "; nearest names: ..." for a name that no entry has, and what config.json says of tied weights.
 *  Appends to out. */
void checkpoint_hints(const struct format_checkpoint *c, const char *name, struct bytes *out);

#endif
