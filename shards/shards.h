/* SPDX-License-Identifier: Apache-2.0 */
/** shards: the vocabulary grid, fingerprints, embedding rows, and the store of evaluated units on
 * disk (files, journal, lock, resume).  Hands embedding rows to workers.  Knows no ranks and no
 * ops.
 *
 *  Words.  A *row* is a row of the tables: row i belongs to token id i, or to the i-th id of an id
 * list.  A *unit* is U = 16 * bulk_rows consecutive rows.  A *shard* is what a rank takes at a
 * time: a whole number of consecutive units.  Each unit has its own HDF5 file, so that neither the
 * shard size nor the schedule shows in any byte, and a rebuild reuses single units. */
#ifndef SHARDS_SHARDS_H
#define SHARDS_SHARDS_H

#include "base/base.h"
#include "formats/formats.h"

/* ---- grid (pure arithmetic) ---------------------------------------------------------------- */

enum { SHARD_UNIT_CHUNKS = 16 };

struct shard_grid {
    uint64_t n_rows;    /* >= 1 */
    uint64_t unit_rows; /* SHARD_UNIT_CHUNKS * bulk_rows */
    uint64_t n_units;
    uint64_t shard_units; /* units a shard */
    uint32_t n_shards;
};
/** shard_units 0: chosen so that there are at least 4 shards a rank where units allow, and at most
 * 2^20 shards.  ST_USAGE on zero rows, overflow, or more than UINT32_MAX shards. */
NODISCARD enum status shard_grid_make(uint64_t n_rows, uint64_t bulk_rows, uint64_t shard_units,
                                      int n_ranks, struct shard_grid *out, struct err *err);
/** Units [*first, *first + *count) of a shard.  Pure. */
void shard_grid_units(const struct shard_grid *g, uint32_t shard, uint64_t *first, uint64_t *count);
/** Rows [*first, *first + *count) of a unit.  Pure. */
void shard_grid_rows(const struct shard_grid *g, uint64_t unit, uint64_t *first, uint64_t *count);

/* ---- rows of the embedding ----------------------------------------------------------------- */

/** Where a block's rows come from: the embedding tensor and, optionally, an id list.  Borrowed. */
struct shard_rows {
    const struct format_checkpoint *checkpoint;
    const struct format_tensor *tensor; /* [rows, width] */
    const uint64_t *ids;                /* ascending, or NULL: row i is id i */
    uint64_t n_rows;
};
/** Stored elements of rows [first, first + n) into dst [n, width]; runs of consecutive ids are one
 * pread. Checks every value finite: ST_NONFINITE names tensor, id, column.  ST_IO. */
NODISCARD enum status shard_rows_read(const struct shard_rows *rows, uint64_t first, uint64_t n,
                                      void *dst, struct err *err);

/* ---- weights ------------------------------------------------------------------------------- */

/** The weights of a block in memory: contiguous [out, in] as used, stored elements; the embedding
 *  itself is NULL unless a linear uses it too. */
struct shard_weights {
    void **data;            /* n, owned */
    struct digest *digests; /* n: of the used bytes (zero for an embedding read by rows alone) */
    size_t n;
};
/** Read, slice and transpose the weights of a resolved block (each backing tensor once).
 * ST_NONFINITE names tensor and first place and counts them; ST_IO, ST_NOMEM. */
NODISCARD enum status shard_weights_read(const struct format_checkpoint *c,
                                         const struct graph_block *b, struct shard_weights *out,
                                         struct err *err);
void shard_weights_free(struct shard_weights *w);

/* ---- fingerprints -------------------------------------------------------------------------- */

/** What a unit's result is a function of, as named fields, and the digest over them (DESIGN.md,
 * "Running on a cluster").  Field 0 is always "embedding_rows". */
struct shard_fingerprint {
    struct format_field *fields; /* owned */
    size_t n_fields;
    char hex[SHA256_HEX_SIZE];
};
/** The part that all units share: everything but the embedding rows.  Callers add fields in a fixed
 *  order with shard_fingerprint_add, then copy it a unit. */
NODISCARD enum status shard_fingerprint_add(struct shard_fingerprint *f, const char *name,
                                            const char *value, struct err *err);
/** *out = base with "embedding_rows" = digest of the rows first, and its hex computed. */
NODISCARD enum status shard_fingerprint_unit(const struct shard_fingerprint *base,
                                             const struct digest *rows,
                                             struct shard_fingerprint *out, struct err *err);
void shard_fingerprint_free(struct shard_fingerprint *f);
/** First differing field as "field: old → new" (missing fields too); empty string when equal. */
void shard_fingerprint_difference(const struct format_field *old_fields, size_t n_old,
                                  const struct shard_fingerprint *now, char *buf, size_t buf_size);
/** Is a difference in environment fields ("environment.*") the only one? */
bool shard_fingerprint_only_environment(const struct format_field *old_fields, size_t n_old,
                                        const struct shard_fingerprint *now);

/* ---- lock ---------------------------------------------------------------------------------- */

/** Kernel (fcntl) locks on WORK/lock, gone with the process, whatever ends it; opaque.  The kernel
 * drops ALL locks of a process on a file when it closes ANY descriptor of it, and a process never
 * conflicts with itself.  So a process takes one lock and keeps it: rank 0 of a run the gate (or
 * its task), every other rank its rank; and shard_lock_holder is for processes that hold none. */
struct shard_lock;

enum shard_lock_kind {
    SHARD_LOCK_GATE, /* the run: excludes other runs and array tasks; waits for ranks of a dying run
                      */
    SHARD_LOCK_RANK, /* a rank of a run whose gate is held.  Ranks of array tasks that run side by
                        side need indices of their own (task * ranks + rank) */
    SHARD_LOCK_TASK  /* one array task: excludes the same task and whole runs */
};
/** Take a lock; waits up to wait_s for holders to die (0: one attempt).  `index` is the rank or
 * task; ignored for the gate.  Makes WORK.  Local.
 *  ST_LOCKED names pid (and host where the file says so) of the holder; ST_IO with the remedy where
 * the file system cannot lock. */
NODISCARD enum status shard_lock_take(const char *work, enum shard_lock_kind kind, uint32_t index,
                                      double wait_s, struct shard_lock **out, struct err *err);
/** The same; gives up waiting with ST_STOPPED once `stop` (NULL: never) returns true. */
NODISCARD enum status shard_lock_take_until(const char *work, enum shard_lock_kind kind,
                                            uint32_t index, double wait_s, bool (*stop)(void),
                                            struct shard_lock **out, struct err *err);
void shard_lock_release(struct shard_lock **lock);
/** Who holds WORK now: "pid 123 on HOST" (the host where the file says so), "another host" where
 * the kernel cannot name the process, "" when nobody.  For status; takes nothing.  Not in a process
 * that holds a lock (see struct shard_lock). */
void shard_lock_holder(const char *work, char *buf, size_t buf_size);

/* ---- store --------------------------------------------------------------------------------- */

/** WORK/<block>/: units/unit-00000000.h5 ..., journal-<host>-<pid>.jsonl, tables.h5. */
struct shard_store; /* opaque */

/** Open the store of a block.  Reads all journal files; a torn line, or one that is none of ours,
 * is as if absent.  Entries of several processes for one unit have no common clock: the one that
 * matches the file counts.  With `clean` (rank 0, while it holds the gate; never an array task) the
 * folders are made, staged files of dead processes removed, and more than 64 journals merged into
 * one. Without it nothing is written before the first put.  Local.  ST_SPEC (block is no name),
 * ST_IO, ST_NOMEM. */
NODISCARD enum status shard_store_open(const char *work, const char *block, bool clean,
                                       struct shard_store **out, struct err *err);
void shard_store_close(struct shard_store **s);

enum shard_reuse {
    SHARD_REUSE,            /* file there, whole, digest as journalled, fingerprint equal */
    SHARD_MISSING,          /* no journal entry or no file */
    SHARD_DAMAGED,          /* size or digest differ from the journal, or HDF5 cannot read it */
    SHARD_STALE,            /* whole, other fingerprint */
    SHARD_OTHER_ENVIRONMENT /* whole, only environment fields differ */
};
/** What to do with a unit: reads its whole file and compares size and digest with the journal, then
 * its fingerprint.  *why gets a reason ("eps: 1e-5 → 1e-6") in every case but REUSE, "" then.  An
 * unreadable file is DAMAGED, not an error: it will be written anew.  Local.  ST_NOMEM. */
NODISCARD enum status shard_store_check(const struct shard_store *s, uint64_t unit,
                                        const struct shard_fingerprint *now, enum shard_reuse *out,
                                        char *why, size_t why_size, struct err *err);
/** Stage, close, fsync, rename and journal a unit's file (format_shard_write to a temporary name).
 * Called by the rank that evaluated it.  After a failure the staged file is gone and the unit
 * counts as missing, or as it was before where its file was not replaced.  Local.  ST_IO, ST_NOMEM.
 */
NODISCARD enum status shard_store_put(struct shard_store *s, const struct format_shard *shard,
                                      struct err *err);
/** Path of a unit's file; owned. */
NODISCARD char *shard_store_unit_path(const struct shard_store *s, uint64_t unit);
/** Path of a file in the store's folder, WORK/<block>; owned. */
NODISCARD char *shard_store_path(const struct shard_store *s, const char *name);
/** Re-read the journals (other processes have written since). */
NODISCARD enum status shard_store_refresh(struct shard_store *s, struct err *err);
/** How many units below n_units are journalled (status verb). */
uint64_t shard_store_count(const struct shard_store *s, uint64_t n_units);
/** Write tables.h5 over all units of the grid.  ST_IO, naming unit and rows, when one is not
 * journalled or has no file (it would read as fill values); whatever format_virtual_write gives. */
NODISCARD enum status shard_store_virtual(struct shard_store *s, const struct shard_grid *g,
                                          const struct format_shard_table *tables, size_t n_tables,
                                          struct err *err);

#endif
