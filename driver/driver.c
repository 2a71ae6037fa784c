/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "driver/driver_internal.h"

enum { MMAP_THRESHOLD_BYTES = 1 << 20 };

/* Set by the handler of SIGTERM, SIGUSR1, SIGINT and SIGHUP; read between kernel calls. */
static volatile sig_atomic_t stop_requested;

static void on_stop_signal(int number)
{
    (void)number;
    stop_requested = 1;
}

void driver_signals_setup(void)
{
    struct sigaction action = {.sa_handler = on_stop_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
}

bool driver_stop_requested(void)
{
    return stop_requested != 0;
}

enum status driver_check_stop(struct err *err)
{
    if (stop_requested == 0)
        return ST_OK;
    return err_set(err, ST_STOPPED, "stopped by a signal; run the same command again to resume");
}

static const char *nearest_verb(const char *name)
{
    const char *best = NULL;
    unsigned best_distance = 4;
    for (size_t i = 0; i < driver_n_verbs; i++) {
        unsigned d = str_distance(name, driver_verbs[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = driver_verbs[i].name;
        }
    }
    return best;
}

/* Results of rank 0 go out in one piece at the end, so that a failed write is noticed. */
static enum status print_result(const struct driver_context *ctx, struct err *err)
{
    if (comm_rank(ctx->comm) != 0)
        return ST_OK;
    if (ctx->result.failed)
        return err_nomem(err, ctx->result.size);
    if (ctx->result.size == 0)
        return ST_OK;
    if (fwrite(ctx->result.data, 1, ctx->result.size, stdout) != ctx->result.size ||
        fflush(stdout) != 0) {
        if (errno == EPIPE)
            return ST_OK; /* the reader had enough */
        return err_set(err, ST_IO, "standard output: %s", strerror(errno));
    }
    return ST_OK;
}

static enum status run_verb(struct driver_context *ctx, struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    enum log_level level = o->quiet ? LOG_ERROR : o->verbose ? LOG_DEBUG : LOG_INFO;
    log_setup(comm_rank(ctx->comm), comm_host(ctx->comm), level, o->log_json);
    enum status st = ctx->verb->run(ctx, err);
    /* Rank 0 alone prints; that it could not is everybody's exit code. */
    struct err own = {0};
    enum status printed = print_result(ctx, &own);
    struct err agreed = own;
    printed = comm_agree(ctx->comm, printed, &agreed);
    if (st != ST_OK || printed == ST_OK)
        return st;
    *err = own.st != ST_OK ? own : agreed;
    return printed;
}

/* Usage errors are found before MPI starts: every rank finds the same one, and rank 0 of the
 * launcher (or the only process) tells. */
static bool is_first_process(void)
{
    const char *names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL)
            return strcmp(value, "0") == 0;
    }
    return true;
}

static int fail_early(const struct err *err)
{
    if (is_first_process())
        log_error("%s", err->message);
    return status_exit_code(err->st);
}

/* What was printed without MPI is lost too when the output is full. */
static int end_print(void)
{
    struct err err = {0};
    if ((fflush(stdout) == 0 && ferror(stdout) == 0) || errno == EPIPE)
        return 0;
    err_set(&err, ST_IO, "standard output: %s", strerror(errno));
    return fail_early(&err);
}

static int print_version(void)
{
    printf("tokentab %s (%s)\n", DRIVER_VERSION, comm_library());
    return end_print();
}

/* A verb without MPI would run once a process and write its files over each other.  SLURM_NTASKS
 * proves nothing: batch scripts have it (comm/comm_launcher.c). */
static enum status check_alone(const struct driver_verb *verb, struct err *err)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"};
    if (verb->uses_ranks || verb->run == driver_verb_doctor) /* which looks at the launcher */
        return ST_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        uint64_t size = 0;
        if (value != NULL && str_to_u64(value, &size) && size > 1)
            return err_set(err, ST_USAGE, "%s runs alone: start it without mpirun (%s is %s)",
                           verb->name, names[i], value);
    }
    return ST_OK;
}

int driver_main(int argc, char **argv)
{
    struct err err = {0};
    /* A fixed threshold: buffers of a unit go back to the system when it is done, so that a rank's
     * memory does not creep with the number of units. */
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES);
    signal(SIGPIPE, SIG_IGN);
    log_setup(0, NULL, LOG_INFO, false);
    if (argc < 2) {
        err_set(&err, ST_USAGE, "a verb is missing; tokentab --help lists them");
        return fail_early(&err);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        driver_help_print(argc > 2 ? driver_verb_find(argv[2]) : NULL);
        return end_print();
    }
    if (strcmp(argv[1], "--version") == 0)
        return print_version();
    const struct driver_verb *verb = driver_verb_find(argv[1]);
    if (verb == NULL) {
        const char *near = nearest_verb(argv[1]);
        err_set(&err, ST_USAGE, "unknown verb \"%s\"%s%s%s", argv[1],
                near == NULL ? "" : " (did you mean ", near == NULL ? "" : near,
                near == NULL ? "" : "?)");
        return fail_early(&err);
    }
    struct driver_opts opts;
    if (driver_opts_parse(verb, argc, argv, &opts, &err) != ST_OK)
        return fail_early(&err);
    if (opts.help) {
        driver_help_print(verb);
        return end_print();
    }
    if (check_alone(verb, &err) != ST_OK)
        return fail_early(&err);
    struct driver_context ctx = {.opts = &opts, .verb = verb};
    enum status st = verb->uses_ranks ? comm_open(&argc, &argv, &ctx.comm, &err)
                                      : comm_open_self(&ctx.comm, &err);
    if (st == ST_OK)
        st = run_verb(&ctx, &err);
    bool prints = ctx.comm == NULL || comm_rank(ctx.comm) == 0;
    if (st != ST_OK && err.message[0] != '\0' && prints)
        log_error("%s", err.message);
    bytes_free(&ctx.result);
    comm_close(&ctx.comm);
    return status_exit_code(st);
}
