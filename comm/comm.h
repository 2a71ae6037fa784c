/* SPDX-License-Identifier: Apache-2.0 */
/** comm: ranks.  The only folder that calls MPI: agreement on failure, messages, small collectives.
 *  Knows nothing of tokens, files or kernels.  MPI errors stay fatal; MPI_Abort stands in
 * comm_abort. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include "base/base.h"

struct comm; /* opaque: one duplicated communicator */

/** Slices of larger transfers; TOKENTAB_COMM_SLICE (bytes) lowers it in test builds (N60). */
#define COMM_SLICE_BYTES ((size_t)1 << 30)

/** Before MPI_Init: is this one of several processes that a launcher started, each of which would
 * think it is rank 0 of 1 (N69)?  Looks at SLURM_STEP_NUM_TASKS, SLURM_PROCID, PMI and OMPI
 * variables.
 * Proof is a count above `size`, or a SLURM_PROCID that is no rank of ours; SLURM_NTASKS alone
 * proves nothing, since a batch script that runs a serial verb has it too.
 *  @param size  size of MPI_COMM_WORLD; 1 before MPI_Init.  ST_SINGLETON with the hint `srun
 * --mpi=pmix`.  Local (reads the environment). */
NODISCARD enum status comm_check_launcher(int size, struct err *err);

/** MPI_Init (thread level funneled) and a duplicate of the world.  Checks the launcher itself, with
 * the environment as it was before MPI_Init; so a verb that must run alone inside a batch script
 * uses comm_open_self.  Collective.
 *  @return ST_OK, ST_SINGLETON (before MPI_Init where possible), ST_ENVIRONMENT, ST_NOMEM.  After a
 * failure MPI is finalized and cannot be opened again. */
NODISCARD enum status comm_open(int *argc, char ***argv, struct comm **out, struct err *err);
/** One MPI_Finalize.  Collective; accepts a pointer to NULL. */
void comm_close(struct comm **c);
/** A communicator of one rank without MPI: verbs that need no ranks, and tests.  Local. */
NODISCARD enum status comm_open_self(struct comm **out, struct err *err);

int comm_rank(const struct comm *c);
int comm_size(const struct comm *c);
/** Host name of this rank; borrowed. */
const char *comm_host(const struct comm *c);
/** "Open MPI 4.1.4" and the like; static. */
const char *comm_library(void);

/** All ranks learn whether any failed: lowest failing rank's status and message everywhere
 * (prefixed "rank r (host): " when size > 1).  One Allreduce when all is well.  Ends every local
 * phase.  Collective.
 *  @return the agreed status, ST_OK if no rank failed */
NODISCARD enum status comm_agree(struct comm *c, enum status st, struct err *err);

/** The same bytes everywhere, from rank `root`; sliced.  Collective. */
void comm_bcast_all(struct comm *c, int root, void *data, size_t size);
/** The same for a buffer of a size only root knows; others' buffers are replaced.  ST_NOMEM,
 * agreed. Collective. */
NODISCARD enum status comm_bcast_bytes_all(struct comm *c, int root, struct bytes *b,
                                           struct err *err);
uint64_t comm_max_u64_all(struct comm *c, uint64_t x);
uint64_t comm_min_u64_all(struct comm *c, uint64_t x);
uint64_t comm_sum_u64_all(struct comm *c, uint64_t x);
/** Bitwise and of all. */
uint64_t comm_and_u64_all(struct comm *c, uint64_t x);
/** Exclusive prefix sum over ranks. */
uint64_t comm_prefix_u64_all(struct comm *c, uint64_t x);
/** Gather each rank's buffer on root: *all (root only) gets size entries, owned; elsewhere NULL.
 * ST_NOMEM, agreed.  Collective. */
NODISCARD enum status comm_gather_bytes_all(struct comm *c, int root, const struct bytes *mine,
                                            struct bytes **all, struct err *err);
/** Free what comm_gather_bytes_all gave. */
void comm_gathered_free(struct bytes **all, int size);
/** Debug builds: abort when a value promised equal is not.  Collective. */
void comm_same_u64(struct comm *c, uint64_t x);
void comm_barrier_all(struct comm *c);

/** Tags of all messages between driver and workers. */
enum comm_tag {
    COMM_TAG_READY = 1, /* worker -> driver: give me work */
    COMM_TAG_SHARD,     /* driver -> worker: a shard */
    COMM_TAG_ANSWER,    /* worker -> driver: {shard, status, message, summary} */
    COMM_TAG_STOP,      /* driver -> worker: no more */
    COMM_TAG_TEST
};
/** Blocking; sliced above COMM_SLICE_BYTES.  Point to point; a message to itself is queued and
 * never blocks, one to another rank may wait for its receiver. */
void comm_send(struct comm *c, int to, enum comm_tag tag, const struct bytes *b);
/** Blocking receive of the next message with any tag; from == -1: any rank.  *b is replaced.
 * ST_NOMEM. */
NODISCARD enum status comm_receive(struct comm *c, int from, int *source, enum comm_tag *tag,
                                   struct bytes *b, struct err *err);
/** Is a message waiting?  Does not block. */
bool comm_poll(struct comm *c, int from);

/** A broken invariant: prints one line and ends the job with `exit_code`. */
_Noreturn void comm_abort(struct comm *c, int exit_code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
