/* SPDX-License-Identifier: Apache-2.0 */
/* What counts as proof of unseen siblings (N69), and a communicator without MPI. */
#include "comm/comm.h"

#include <CUnit/Basic.h>
#include <CUnit/CUnit.h>
#include <stdlib.h>
#include <string.h>

static const char *const NAMES[] = {
    "OMPI_COMM_WORLD_SIZE", "PMI_SIZE",      "PMI_RANK",     "PMIX_RANK",   "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_JOB_ID"};

struct launch {
    const char *what;
    const char *env[6][2];
    int size;
    const char *blamed; /* NULL: no singleton */
};

static const struct launch LAUNCHES[] = {
    {"nothing set", {{NULL, NULL}}, 1, NULL},
    {"N69's own test", {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "2"}}, 1, "SLURM_PROCID"},
    {"sbatch -n4, serial verb in the script",
     {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "9"}},
     1,
     NULL},
    {"salloc shell", {{"SLURM_NTASKS", "4"}, {"SLURM_JOB_ID", "9"}}, 1, NULL},
    {"plain srun -n4, task 0",
     {{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}},
     1,
     "SLURM_STEP_NUM_TASKS"},
    {"srun --mpi=pmix -n4, MPI found all",
     {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"PMIX_RANK", "3"}},
     4,
     NULL},
    {"srun --mpi=pmix -n4, no server reached",
     {{"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "3"}, {"PMIX_RANK", "3"}},
     1,
     "SLURM_STEP_NUM_TASKS"},
    {"srun -n1", {{"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_PROCID", "0"}}, 1, NULL},
    {"mpirun -n 4", {{"OMPI_COMM_WORLD_SIZE", "4"}}, 4, NULL},
    {"mpirun -n 4, other MPI", {{"OMPI_COMM_WORLD_SIZE", "4"}}, 1, "OMPI_COMM_WORLD_SIZE"},
    {"mpiexec of MPICH", {{"PMI_SIZE", "4"}, {"PMI_RANK", "0"}}, 1, "PMI_SIZE"},
    {"mpirun -n 1 on the third node: the step is the daemons'",
     {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_PROCID", "2"}},
     1,
     NULL},
    {"values that are no numbers", {{"SLURM_PROCID", "two"}, {"PMI_SIZE", ""}}, 1, NULL},
};

static void test_launchers(void)
{
    for (size_t i = 0; i < sizeof LAUNCHES / sizeof LAUNCHES[0]; i++) {
        const struct launch *l = &LAUNCHES[i];
        for (size_t n = 0; n < sizeof NAMES / sizeof NAMES[0]; n++)
            (void)unsetenv(NAMES[n]);
        for (size_t n = 0; n < 6 && l->env[n][0] != NULL; n++)
            (void)setenv(l->env[n][0], l->env[n][1], 1);
        struct err err = {.st = ST_OK};
        enum status st = comm_check_launcher(l->size, &err);
        bool right = l->blamed == NULL ? st == ST_OK
                                       : st == ST_SINGLETON && strstr(err.message, l->blamed) &&
                                             strstr(err.message, "srun --mpi=pmix");
        if (!right)
            printf("\n    %s: status %d, \"%s\"", l->what, (int)st, err.message);
        CU_ASSERT(right);
    }
    for (size_t n = 0; n < sizeof NAMES / sizeof NAMES[0]; n++)
        (void)unsetenv(NAMES[n]);
    CU_ASSERT_EQUAL(status_exit_code(ST_SINGLETON), 4);
}

/* Refused before MPI_Init, which could end the process in its own way. */
static void test_open_refuses(void)
{
    (void)setenv("SLURM_NTASKS", "4", 1);
    (void)setenv("SLURM_PROCID", "2", 1);
    struct comm *c = NULL;
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(comm_open(NULL, NULL, &c, &err), ST_SINGLETON);
    CU_ASSERT_PTR_NULL(c);
    (void)unsetenv("SLURM_NTASKS");
    (void)unsetenv("SLURM_PROCID");
}

static void test_self_collectives(struct comm *c)
{
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(comm_agree(c, ST_OK, &err), ST_OK);
    CU_ASSERT_EQUAL(comm_agree(c, ST_SPEC, &err), ST_SPEC);
    CU_ASSERT(err.message[0] != '\0');
    err_clear(&err);
    (void)err_set(&err, ST_FORMAT, "a.safetensors: cut");
    CU_ASSERT_EQUAL(comm_agree(c, ST_FORMAT, &err), ST_FORMAT);
    CU_ASSERT_STRING_EQUAL(err.message, "a.safetensors: cut");
    err_clear(&err);
    CU_ASSERT_EQUAL(comm_max_u64_all(c, 5), 5);
    CU_ASSERT_EQUAL(comm_sum_u64_all(c, 5), 5);
    CU_ASSERT_EQUAL(comm_prefix_u64_all(c, 5), 0);
    comm_same_u64(c, 1);
    comm_barrier_all(c);
    struct bytes mine = {0}, *all = NULL;
    bytes_put_str(&mine, "alone");
    CU_ASSERT_EQUAL(comm_bcast_bytes_all(c, 0, &mine, &err), ST_OK);
    CU_ASSERT_EQUAL(comm_gather_bytes_all(c, 0, &mine, &all, &err), ST_OK);
    CU_ASSERT_PTR_NOT_NULL_FATAL(all);
    CU_ASSERT_EQUAL(all[0].size, mine.size);
    CU_ASSERT_EQUAL(memcmp(all[0].data, mine.data, mine.size), 0);
    comm_gathered_free(&all, 1);
    CU_ASSERT_PTR_NULL(all);
    bytes_free(&mine);
}

static void test_self(void)
{
    struct comm *c = NULL;
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL_FATAL(comm_open_self(&c, &err), ST_OK);
    CU_ASSERT_EQUAL(comm_rank(c), 0);
    CU_ASSERT_EQUAL(comm_size(c), 1);
    CU_ASSERT(comm_host(c)[0] != '\0');
    CU_ASSERT(strstr(comm_library(), "MPI") != NULL || strstr(comm_library(), "MPICH") != NULL);
    test_self_collectives(c);
    /* messages to itself keep their order; the second and third are dropped with the communicator
     */
    struct bytes b = {0}, got = {0};
    enum comm_tag tag = COMM_TAG_STOP;
    int source = -1;
    CU_ASSERT_FALSE(comm_poll(c, -1));
    bytes_put_u64(&b, 7);
    comm_send(c, 0, COMM_TAG_TEST, &b);
    comm_send(c, 0, COMM_TAG_READY, &(struct bytes){0});
    comm_send(c, 0, COMM_TAG_READY, &b);
    CU_ASSERT_TRUE(comm_poll(c, -1));
    CU_ASSERT_TRUE(comm_poll(c, 0));
    CU_ASSERT_EQUAL(comm_receive(c, -1, &source, &tag, &got, &err), ST_OK);
    CU_ASSERT_EQUAL(source, 0);
    CU_ASSERT_EQUAL(tag, COMM_TAG_TEST);
    CU_ASSERT_EQUAL(got.size, 8);
    bytes_free(&got);
    bytes_free(&b);
    comm_close(&c);
    CU_ASSERT_PTR_NULL(c);
    comm_close(&c);
}

int main(void)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite("launcher", NULL, NULL);
    if (suite == NULL || !CU_add_test(suite, "launchers", test_launchers) ||
        !CU_add_test(suite, "open refuses", test_open_refuses) ||
        !CU_add_test(suite, "self", test_self))
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    (void)CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0 ? 1 : 0;
}
