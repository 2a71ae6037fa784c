/* SPDX-License-Identifier: Apache-2.0 */
/* Which BLAS core is in use, and how far it is from the best one that this machine has. */
#include "driver/doctor_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <unistd.h>

/* Each core in turn, several times, and the best of it: a busy machine disturbs all of them alike.
 */
static const double MEASURE_S = 0.1;
enum { ROUNDS = 3 };
/* Below this share of the best rate a core is worth a warning. */
static const double GOOD_SHARE = 0.7;

/* ---- one core -------------------------------------------------------------------------------- */

static void measure(const struct doctor *d, struct doctor_core *core)
{
    struct err err = {0};
    struct kernels *k = NULL;
    struct kernels_opts opts = {.blas_core = core->asked[0] == '\0' ? NULL : core->asked,
                                .blas_threads = (unsigned)d->ctx->opts->blas_threads};
    if (core->asked[0] == '\0')
        (void)unsetenv("OPENBLAS_CORETYPE"); /* or that would be what it detects */
    core->st = kernels_open(&opts, &k, &err);
    if (core->st == ST_OK) {
        core->env = *kernels_environment(k);
        core->gflops = kernels_measure_gflops(k, MEASURE_S);
        kernels_close(&k);
    }
    (void)snprintf(core->message, sizeof core->message, "%s", err.message);
}

static void send_core(int fd, const struct doctor_core *core)
{
    const char *at = (const char *)core;
    for (size_t left = sizeof *core; left > 0;) {
        ssize_t n = write(fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        at += n;
        left -= (size_t)n;
    }
}

static bool receive_core(int fd, struct doctor_core *core)
{
    char *at = (char *)core;
    size_t left = sizeof *core;
    while (left > 0) {
        ssize_t n = read(fd, at, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        left -= (size_t)n;
    }
    return true;
}

static void core_failed(struct doctor_core *core, const char *what)
{
    core->st = ST_ENVIRONMENT;
    (void)snprintf(core->message, sizeof core->message, "BLAS core %s: %s",
                   core->asked[0] == '\0' ? "as detected" : core->asked, what);
}

/* A child may die by SIGILL or hang in nothing of ours; what counts is whether it answers. */
static void measure_in_child(struct doctor *d, struct doctor_core *core)
{
    int ends[2];
    if (pipe(ends) != 0) {
        core_failed(core, strerror(errno));
        return;
    }
    pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        measure(d, core);
        send_core(ends[1], core);
        _exit(0);
    }
    (void)close(ends[1]);
    struct doctor_core answer;
    double rate = core->gflops;
    if (child < 0) {
        core_failed(core, strerror(errno));
    } else if (receive_core(ends[0], &answer)) {
        *core = answer;
        core->gflops = core->gflops > rate ? core->gflops : rate;
    } else {
        core_failed(core, "the process that tried it died");
    }
    (void)close(ends[0]);
    int wait_status = 0;
    while (child > 0 && waitpid(child, &wait_status, 0) < 0 && errno == EINTR)
        continue;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static size_t add_core(struct doctor *d, const char *name)
{
    for (size_t i = 0; i < d->n_cores; i++)
        if (strcasecmp(d->cores[i].asked, name) == 0)
            return i;
    struct doctor_core *core = &d->cores[d->n_cores];
    *core = (struct doctor_core){.st = ST_OK};
    (void)snprintf(core->asked, sizeof core->asked, "%s", name);
    return d->n_cores++;
}

const struct doctor_core *doctor_best_core(const struct doctor *d)
{
    const struct doctor_core *best = NULL;
    for (size_t i = 0; i < d->n_cores; i++)
        if (d->cores[i].st == ST_OK && (best == NULL || d->cores[i].gflops > best->gflops))
            best = &d->cores[i];
    return best;
}

static void report_in_use(struct doctor *d, const char *by_flags)
{
    const struct doctor_core *used = &d->cores[d->in_use], *best = doctor_best_core(d);
    if (used->st != ST_OK) {
        doctor_add(d, "blas", "core in use", DOCTOR_FAIL, "%s", used->message);
        return;
    }
    doctor_add(d, "blas", "library", DOCTOR_OK, "%s %s", used->env.blas, used->env.blas_version);
    doctor_add(d, "blas", "core in use", DOCTOR_OK, "%s (%s)", used->env.blas_core,
               d->ctx->opts->blas_core != NULL ? "--blas-core"
               : by_flags != NULL              ? "by the CPU flags"
                                               : "what OpenBLAS detects");
    double share = best->gflops > 0 ? used->gflops / best->gflops : 1;
    doctor_add(d, "blas", "speed", share < GOOD_SHARE ? DOCTOR_WARN : DOCTOR_OK,
               "%.1f GFLOP/s in float32 with %llu threads: %.0f %% of the best core here, %s "
               "(%.1f)%s",
               used->gflops, (unsigned long long)d->ctx->opts->blas_threads, 100 * share,
               best->env.blas_core, best->gflops,
               share < GOOD_SHARE ? "; another --blas-core would be faster" : "");
}

void doctor_blas(struct doctor *d)
{
    const char *by_flags = kernels_core_for(kernels_cpu_flags());
    const char *asked = d->ctx->opts->blas_core;
    add_core(d, "");
    size_t flags_core = by_flags == NULL ? 0 : add_core(d, by_flags);
    d->in_use = asked == NULL ? flags_core : add_core(d, asked);
    for (size_t i = 0; i < ROUNDS * d->n_cores; i++) {
        struct doctor_core *core = &d->cores[i % d->n_cores];
        if (core->st == ST_OK)
            measure_in_child(d, core);
    }
    report_in_use(d, by_flags);
    for (size_t i = 0; i < d->n_cores; i++) {
        const struct doctor_core *core = &d->cores[i];
        const char *name = i == 0            ? "core by itself"
                           : i == flags_core ? "core by CPU flags"
                                             : "core by option";
        if (core->st == ST_OK)
            doctor_add(d, "blas", name, DOCTOR_NOTE, "%s: %.1f GFLOP/s", core->env.blas_core,
                       core->gflops);
        else
            doctor_add(d, "blas", name, i == d->in_use ? DOCTOR_NOTE : DOCTOR_WARN, "%s",
                       core->message);
    }
    const char *forced = getenv("OPENBLAS_CORETYPE");
    if (forced != NULL && by_flags != NULL && strcasecmp(forced, by_flags) != 0)
        doctor_add(d, "blas", "OPENBLAS_CORETYPE", DOCTOR_NOTE,
                   "%s: compile does not follow it; --blas-core does", forced);
}
