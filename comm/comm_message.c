/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* On the wire a message is slices of c->slice bytes and a last one that is shorter, possibly empty.
 * MPI keeps the order of messages of one source and tag, so slices need no numbers. */

void comm_self_clear(struct comm *c)
{
    while (c->self_first != NULL) {
        struct comm_self_message *m = c->self_first;
        c->self_first = m->next;
        free(m->data);
        free(m);
    }
    c->self_last = NULL;
}

static void self_send(struct comm *c, enum comm_tag tag, const struct bytes *b)
{
    struct comm_self_message *m = calloc(1, sizeof *m);
    uint8_t *data = malloc(b->size > 0 ? b->size : 1);
    /* The sender has no status to return; so small a shortage cannot be reported elsewhere. */
    if (m == NULL || data == NULL)
        comm_abort(c, status_exit_code(ST_NOMEM), "out of memory: message of %zu bytes", b->size);
    if (b->size > 0)
        memcpy(data, b->data, b->size);
    *m = (struct comm_self_message){.tag = tag, .data = data, .size = b->size};
    if (c->self_last != NULL)
        c->self_last->next = m;
    else
        c->self_first = m;
    c->self_last = m;
}

static void self_receive(struct comm *c, int *source, enum comm_tag *tag, struct bytes *b)
{
    struct comm_self_message *m = c->self_first;
    c->self_first = m->next;
    if (c->self_first == NULL)
        c->self_last = NULL;
    bytes_free(b);
    *b = (struct bytes){.data = m->data, .size = m->size, .capacity = m->size};
    *tag = m->tag;
    if (source != NULL)
        *source = c->rank;
    free(m);
}

void comm_send(struct comm *c, int to, enum comm_tag tag, const struct bytes *b)
{
    assert(to >= 0 && to < c->size && !b->failed);
    if (to == c->rank) {
        self_send(c, tag, b);
        return;
    }
    size_t at = 0, n;
    do {
        n = b->size - at < c->slice ? b->size - at : c->slice;
        MPI_Request request;
        MPI_Isend(n > 0 ? b->data + at : NULL, comm_count(n), MPI_BYTE, to, (int)tag, c->mpi,
                  &request);
        comm_wait(&request);
        at += n;
    } while (n == c->slice);
}

/* Append one slice to *b.  With `keep` false, or when memory is short, it is read and dropped, so
 * that the sender and the slices behind it are not stranded; false then. */
static bool take_slice(struct comm *c, MPI_Message *message, size_t n, bool keep, struct bytes *b)
{
    size_t needed = 0;
    uint8_t *data = NULL, *drop = NULL;
    if (keep && add_size(b->size, n, &needed))
        data = realloc(b->data, needed > 0 ? needed : 1);
    if (data != NULL) {
        b->data = data;
        b->capacity = needed;
    } else {
        drop = malloc(n > 0 ? n : 1);
        if (drop == NULL)
            comm_abort(c, status_exit_code(ST_NOMEM), "out of memory: slice of %zu bytes", n);
    }
    MPI_Request request;
    MPI_Imrecv(data != NULL ? data + b->size : drop, comm_count(n), MPI_BYTE, message, &request);
    comm_wait(&request);
    free(drop);
    if (data == NULL)
        return false;
    b->size += n;
    return true;
}

/* Wait for a message; the first slice's size goes to *n. */
static void await_message(struct comm *c, int from, int tag, MPI_Message *message, MPI_Status *info,
                          size_t *n)
{
    struct comm_pause pause = {0};
    int there = 0, count = 0;
    for (;;) {
        MPI_Improbe(from, tag, c->mpi, &there, message, info);
        if (there)
            break;
        comm_pause_poll(&pause);
    }
    MPI_Get_count(info, MPI_BYTE, &count);
    assert(count >= 0);
    *n = (size_t)count;
}

enum status comm_receive(struct comm *c, int from, int *source, enum comm_tag *tag, struct bytes *b,
                         struct err *err)
{
    assert(from >= -1 && from < c->size);
    if ((from == -1 || from == c->rank) && c->self_first != NULL) {
        self_receive(c, source, tag, b);
        return ST_OK;
    }
    if (from == c->rank || c->size == 1)
        comm_abort(c, status_exit_code(ST_INTERNAL), "waiting for a message to itself");
    MPI_Message message;
    MPI_Status info;
    size_t n = 0, total = 0;
    await_message(c, from == -1 ? MPI_ANY_SOURCE : from, MPI_ANY_TAG, &message, &info, &n);
    int sender = info.MPI_SOURCE, sender_tag = info.MPI_TAG;
    bytes_free(b);
    bool kept = take_slice(c, &message, n, !fault_hit("comm_receive"), b);
    for (total = n; n == c->slice; total += n) {
        await_message(c, sender, sender_tag, &message, &info, &n);
        kept = take_slice(c, &message, n, kept, b) && kept;
    }
    if (source != NULL)
        *source = sender;
    *tag = (enum comm_tag)sender_tag;
    if (kept)
        return ST_OK;
    bytes_free(b);
    return err_nomem(err, total);
}

bool comm_poll(struct comm *c, int from)
{
    if ((from == -1 || from == c->rank) && c->self_first != NULL)
        return true;
    if (from == c->rank || c->size == 1)
        return false;
    int there = 0;
    MPI_Iprobe(from == -1 ? MPI_ANY_SOURCE : from, MPI_ANY_TAG, c->mpi, &there, MPI_STATUS_IGNORE);
    return there != 0;
}
