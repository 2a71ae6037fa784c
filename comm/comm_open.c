/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include <assert.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_SPINS = 256, PAUSE_FIRST_US = 20, PAUSE_MAX_US = 500 };

void comm_pause_poll(struct comm_pause *p)
{
    if (p->n_polls < PAUSE_SPINS) {
        p->n_polls++;
        (void)sched_yield();
        return;
    }
    unsigned us = PAUSE_FIRST_US + (p->n_polls++ - PAUSE_SPINS);
    if (us >= PAUSE_MAX_US) {
        us = PAUSE_MAX_US;
        p->n_polls = PAUSE_SPINS + PAUSE_MAX_US;
    }
    struct timespec t = {.tv_sec = 0, .tv_nsec = (long)us * 1000};
    (void)nanosleep(&t, NULL);
}

void comm_wait(MPI_Request *request)
{
    struct comm_pause pause = {0};
    for (;;) {
        int done = 0;
        MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (done)
            return;
        comm_pause_poll(&pause);
    }
}

int comm_count(size_t bytes)
{
    int n = 0;
    bool fits = size_to_int(bytes, &n);
    assert(fits);
    (void)fits;
    return n;
}

static size_t slice_bytes(void)
{
    const char *text = fault_value("TOKENTAB_COMM_SLICE");
    uint64_t bytes = 0;
    if (text == NULL || !str_to_u64(text, &bytes) || bytes == 0 || bytes > COMM_SLICE_BYTES)
        return COMM_SLICE_BYTES;
    return (size_t)bytes;
}

static enum status make(MPI_Comm mpi, struct comm **out, struct err *err)
{
    struct comm *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_nomem(err, sizeof *c);
    c->mpi = mpi;
    c->size = 1;
    c->slice = slice_bytes();
    if (gethostname(c->host, sizeof c->host) != 0 || c->host[0] == '\0')
        (void)snprintf(c->host, sizeof c->host, "unknown");
    c->host[sizeof c->host - 1] = '\0';
    *out = c;
    return ST_OK;
}

enum status comm_open(int *argc, char ***argv, struct comm **out, struct err *err)
{
    *out = NULL;
    /* Read before MPI_Init, which may add OMPI_* variables of its own. */
    struct comm_launched launched = comm_launched_now();
    /* With nothing to connect to, MPI_Init makes a singleton or ends the process with a text of its
     * own: refuse first. */
    if (!launched.has_endpoint)
        TRY(comm_launched_check(&launched, 1, err));
    int provided = MPI_THREAD_SINGLE;
    MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    enum status st = comm_launched_check(&launched, size, err);
    if (st == ST_OK && provided < MPI_THREAD_FUNNELED)
        st = err_set(err, ST_ENVIRONMENT,
                     "%s: no thread support (level %d, MPI_THREAD_FUNNELED "
                     "expected)",
                     comm_library(), provided);
    struct comm *c = NULL;
    if (st == ST_OK)
        st = make(MPI_COMM_NULL, &c, err);
    /* A rank that failed alone must not leave the others in MPI_Comm_dup. */
    int failed = st != ST_OK, any = 0;
    MPI_Allreduce(&failed, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    if (any) {
        free(c);
        MPI_Finalize();
        return st != ST_OK ? st : err_set(err, ST_NOMEM, "another rank could not start");
    }
    MPI_Comm_dup(MPI_COMM_WORLD, &c->mpi);
    MPI_Comm_rank(c->mpi, &c->rank);
    MPI_Comm_size(c->mpi, &c->size);
    *out = c;
    return ST_OK;
}

enum status comm_open_self(struct comm **out, struct err *err)
{
    *out = NULL;
    return make(MPI_COMM_NULL, out, err);
}

void comm_close(struct comm **c)
{
    if (c == NULL || *c == NULL)
        return;
    comm_self_clear(*c);
    if ((*c)->mpi != MPI_COMM_NULL) {
        MPI_Comm_free(&(*c)->mpi);
        MPI_Finalize();
    }
    free(*c);
    *c = NULL;
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_size(const struct comm *c)
{
    return c->size;
}

const char *comm_host(const struct comm *c)
{
    return c->host;
}

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

const char *comm_library(void)
{
#if defined(OMPI_MAJOR_VERSION)
    return "Open MPI " TEXT(OMPI_MAJOR_VERSION) "." TEXT(OMPI_MINOR_VERSION) "." TEXT(
        OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    return "MPICH " MPICH_VERSION;
#else
    return "MPI " TEXT(MPI_VERSION) "." TEXT(MPI_SUBVERSION);
#endif
}

void comm_abort(struct comm *c, int exit_code, const char *fmt, ...)
{
    char message[ERR_MESSAGE_SIZE];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    /* One write, so that lines of several ranks do not mix. */
    (void)fprintf(stderr, "tokentab: rank %d (%s): %s\n", c->rank, c->host, message);
    (void)fflush(stderr);
    if (c->mpi != MPI_COMM_NULL)
        MPI_Abort(c->mpi, exit_code);
    _exit(exit_code);
}
