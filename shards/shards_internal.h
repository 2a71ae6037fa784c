/* SPDX-License-Identifier: Apache-2.0 */
/** shards, private: journal entries and the store's insides. */
#ifndef SHARDS_SHARDS_INTERNAL_H
#define SHARDS_SHARDS_INTERNAL_H

#include "shards/shards.h"

#include <sys/types.h>

/* How many of n stored elements are NaN or infinite; *first gets the index of the first.  By bits,
 * so that no floating-point state matters.  0 for dtypes that hold no such values.  Pure. */
size_t shard_nonfinite(const void *data, enum dtype dt, size_t n, size_t *first);

/* ---- journal ------------------------------------------------------------------------------- */

/* One line of a journal: what a unit's file was when its worker had renamed it. */
struct shard_entry {
    uint64_t unit, size;
    struct digest digest;
    char fingerprint[SHA256_HEX_SIZE];
};

/* Distinct entries ordered by unit.  Several may stand for one unit (journals of different
 * processes have no common clock): the one that matches the file counts. */
struct shard_journal {
    struct shard_entry *entries; /* owned */
    size_t n, capacity;
};

/* Name of a unit's file in the folder of units; buffer of SHARD_FILE_NAME. */
enum { SHARD_FILE_NAME = 40 };
void shard_unit_name(uint64_t unit, char name[SHARD_FILE_NAME]);

/* One line, newline included. */
void shard_entry_write(const struct shard_entry *e, struct bytes *out);
/* Is [text, text + size) exactly one line without its newline? */
bool shard_entry_parse(const char *text, size_t size, struct shard_entry *out);
/* Add the whole lines of a journal's text; torn and foreign lines are left out. */
NODISCARD enum status shard_journal_parse(struct shard_journal *j, const char *text, size_t size,
                                          struct err *err);
/* Insert in order unless an equal one is there. */
NODISCARD enum status shard_journal_add(struct shard_journal *j, const struct shard_entry *e,
                                        struct err *err);
/* Order after shard_journal_parse, duplicates dropped. */
void shard_journal_sort(struct shard_journal *j);
/* Entries of a unit: their number, *first the first of them. */
size_t shard_journal_find(const struct shard_journal *j, uint64_t unit,
                          const struct shard_entry **first);
void shard_journal_free(struct shard_journal *j);

/* ---- store --------------------------------------------------------------------------------- */

enum { SHARD_HOST_SIZE = 65, SHARD_JOURNALS_MAX = 64 };
#define SHARD_UNITS_FOLDER "units"

struct shard_store {
    char *folder; /* owned: WORK/<block> */
    char *units;  /* owned: WORK/<block>/units */
    char *journal_path;
    int journal_fd; /* -1 until the first put */
    bool line_is_torn;
    bool made; /* the folders are there */
    char host[SHARD_HOST_SIZE];
    pid_t pid;
    struct shard_journal journal;
};

/* Read every journal file of a folder that may be missing; *n_files counts them. */
NODISCARD enum status shard_journals_read(const char *folder, struct shard_journal *out,
                                          size_t *n_files, struct err *err);
/* What a killed run left: staged files of dead processes; journals beyond SHARD_JOURNALS_MAX are
 * merged into one. */
NODISCARD enum status shard_store_clean(struct shard_store *s, size_t n_journals, struct err *err);

/* Names in a folder (any order), owned; a folder that is not there has none. */
struct shard_names {
    char **names;
    size_t n, capacity;
};
NODISCARD enum status shard_names_read(const char *folder, struct shard_names *out,
                                       struct err *err);
void shard_names_free(struct shard_names *names);
bool shard_is_journal_name(const char *name);

#endif
