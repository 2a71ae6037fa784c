/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include <inttypes.h>
#include <stdlib.h>

static uint64_t env_u64(const char *name)
{
    const char *text = getenv(name);
    uint64_t value = 0;
    if (text == NULL || !str_to_u64(text, &value))
        return 0;
    return value;
}

struct comm_launched comm_launched_now(void)
{
    struct comm_launched l = {
        .ompi_size = env_u64("OMPI_COMM_WORLD_SIZE"),
        .pmi_size = env_u64("PMI_SIZE"),
        .step_tasks = env_u64("SLURM_STEP_NUM_TASKS"),
        .step_rank = env_u64("SLURM_PROCID"),
    };
    l.under_orted = l.ompi_size > 0;
    l.has_endpoint = l.under_orted || getenv("PMIX_RANK") != NULL ||
                     getenv("PMIX_NAMESPACE") != NULL || getenv("PMI_RANK") != NULL ||
                     getenv("PMI_FD") != NULL;
    return l;
}

/* What proves that siblings exist which MPI does not know of:
 *  - a launcher that counts more processes than MPI does;
 *  - srun's SLURM_STEP_NUM_TASKS above the size, or a SLURM_PROCID that is no rank of ours.
 * What proves nothing: SLURM_NTASKS.  It is set in a batch script (whose SLURM_PROCID is 0 and
 * which has no SLURM_STEP_NUM_TASKS), where a serial verb is legal.  Under mpirun's daemon the
 * SLURM_* values are those of the step that started the daemons, one a node, and are not looked at.
 */
enum status comm_launched_check(const struct comm_launched *l, int size, struct err *err)
{
    uint64_t ranks = size > 0 ? (uint64_t)size : 1;
    const char *what = NULL;
    uint64_t found = 0;
    if (l->ompi_size > ranks) {
        what = "OMPI_COMM_WORLD_SIZE";
        found = l->ompi_size;
    } else if (l->pmi_size > ranks) {
        what = "PMI_SIZE";
        found = l->pmi_size;
    } else if (!l->under_orted && l->step_tasks > ranks) {
        what = "SLURM_STEP_NUM_TASKS";
        found = l->step_tasks;
    } else if (!l->under_orted && l->step_rank >= ranks) {
        what = "SLURM_PROCID";
        found = l->step_rank;
    }
    if (what == NULL)
        return ST_OK;
    return err_set(err, ST_SINGLETON,
                   "one of several processes that do not see each other: %s is %" PRIu64
                   ", MPI has %" PRIu64
                   " rank%s; start with `srun --mpi=pmix` or mpirun (not plain srun)",
                   what, found, ranks, ranks == 1 ? "" : "s");
}

enum status comm_check_launcher(int size, struct err *err)
{
    struct comm_launched l = comm_launched_now();
    return comm_launched_check(&l, size, err);
}
