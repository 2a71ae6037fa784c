/* SPDX-License-Identifier: Apache-2.0 */
/** comm, private: the communicator and waiting without burning a core. */
#ifndef COMM_COMM_INTERNAL_H
#define COMM_COMM_INTERNAL_H

#include "comm/comm.h"

#include <mpi.h>

enum { COMM_HOST_SIZE = 256 };

/* A message of this rank to itself; never goes through MPI, where a large one would wait for its
 * own receiver. */
struct comm_self_message {
    struct comm_self_message *next;
    enum comm_tag tag;
    uint8_t *data;
    size_t size;
};

struct comm {
    MPI_Comm mpi; /* MPI_COMM_NULL: a communicator of one rank without MPI */
    int rank, size;
    size_t slice; /* bytes a transfer; the same on all ranks */
    struct comm_self_message *self_first, *self_last;
    char host[COMM_HOST_SIZE];
};

/* Ranks share cores (oversubscribed tests, BLAS threads of a neighbour): spin shortly, then sleep
 * between polls.  {0} starts anew. */
struct comm_pause {
    unsigned n_polls;
};
void comm_pause_poll(struct comm_pause *p);
/* Wait for a request that way; it is MPI_REQUEST_NULL afterwards. */
void comm_wait(MPI_Request *request);

/* Bytes of one slice as MPI counts them; a slice is at most COMM_SLICE_BYTES, which fits. */
int comm_count(size_t bytes);

/* What launchers say about this process, as they left it in the environment. */
struct comm_launched {
    bool under_orted;  /* mpirun's own daemon started this process: Slurm's step is the daemon's */
    bool has_endpoint; /* something that MPI_Init could connect to is announced */
    uint64_t step_tasks, step_rank; /* srun; 0 when not set */
    uint64_t ompi_size, pmi_size;   /* 0 when not set */
};
struct comm_launched comm_launched_now(void);
NODISCARD enum status comm_launched_check(const struct comm_launched *l, int size, struct err *err);

/* Drop messages that nobody received. */
void comm_self_clear(struct comm *c);

#endif
