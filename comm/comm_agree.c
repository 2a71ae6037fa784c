/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include <stdio.h>
#include <string.h>

/* What the lowest failing rank tells the others; all ranks run one program, so its layout is
 * theirs.
 */
struct verdict {
    int32_t st;
    char host[COMM_HOST_SIZE];
    char message[ERR_MESSAGE_SIZE];
};

static void verdict_fill(const struct comm *c, enum status st, const struct err *err,
                         struct verdict *v)
{
    v->st = (int32_t)st;
    memcpy(v->host, c->host, sizeof v->host);
    const char *message = err != NULL && err->message[0] != '\0' ? err->message : status_text(st);
    (void)snprintf(v->message, sizeof v->message, "%s", message);
}

enum status comm_agree(struct comm *c, enum status st, struct err *err)
{
    if (c->size == 1) {
        if (st != ST_OK && err != NULL && err->message[0] == '\0')
            (void)err_set(err, st, "%s", status_text(st));
        return st;
    }
    int mine = st == ST_OK ? c->size : c->rank, first = c->size;
    MPI_Request request;
    MPI_Iallreduce(&mine, &first, 1, MPI_INT, MPI_MIN, c->mpi, &request);
    comm_wait(&request);
    if (first == c->size)
        return ST_OK;
    struct verdict v;
    memset(&v, 0, sizeof v);
    if (first == c->rank)
        verdict_fill(c, st, err, &v);
    comm_bcast_all(c, first, &v, sizeof v);
    v.host[sizeof v.host - 1] = '\0';
    v.message[sizeof v.message - 1] = '\0';
    err_clear(err);
    return err_set(err, (enum status)v.st, "rank %d (%s): %s", first, v.host, v.message);
}
