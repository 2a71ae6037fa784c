/* SPDX-License-Identifier: Apache-2.0 */
/** Private to driver/: a schedule on paper.  What driver/schedule.c would do with a grid and a
 * number of ranks, event by event, with times that a short measurement gives. */
#ifndef DRIVER_PLAN_SCHEDULE_H
#define DRIVER_PLAN_SCHEDULE_H

#include "driver/driver_internal.h"

/** Times of this machine, in seconds. */
struct plan_times {
    double unit_s;    /* a full unit: read, evaluate, validate, store */
    double tick_s;    /* between two looks of a working rank 0 at its messages */
    double service_s; /* rank 0: receive an answer, add it up, send a shard */
    double latency_s; /* a message on its way */
    double emit_s;    /* after the schedule: payload written by all ranks, hashed by rank 0 */
    uint64_t measured_rows;
    double measured_s; /* how long the measurement of unit_s took */
};

/** What a simulated run gives. */
struct plan_schedule {
    double makespan_s;             /* from the first request to the last answer */
    double efficiency;             /* work / (ranks * makespan) */
    double messages_per_s;         /* in and out of rank 0 */
    double driver_share;           /* part of the makespan that rank 0 spends with messages */
    uint64_t messages, busy_ranks; /* ranks that got at least one shard */
    uint64_t files, bytes;         /* written to the work folder and the recipe */
};

/** About a second of evaluation and validation of the block's first rows; the block is prepared.
 *  Storage is not measured, since plan writes nothing: 300 MB/s and 10 ms a file are assumed.
 *  Local.  Status of the worker's calls. */
NODISCARD enum status plan_times_measure(struct driver_block *b, uint64_t n_ranks,
                                         uint64_t payload_bytes, struct plan_times *out,
                                         struct err *err);
/** Simulate n_ranks >= 1 ranks over the grid.  Pure but for memory: ST_NOMEM. */
NODISCARD enum status plan_schedule_simulate(const struct shard_grid *grid, uint64_t n_ranks,
                                             const struct plan_times *times,
                                             struct plan_schedule *out, struct err *err);

/** What a batch job must ask for. */
struct plan_need {
    uint64_t rank_bytes; /* memory a rank */
    double seconds;      /* start to end */
};
/** Over all blocks of an open job whose kernels are loaded.  Prepares and releases the blocks. */
NODISCARD enum status driver_plan_need(struct driver_job *job, uint64_t n_ranks,
                                       struct plan_need *out, struct err *err);

#endif
