/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/comm_internal.h"

#include <stdlib.h>
#include <string.h>

/* Gathering stages at most this much on root at a time. */
#define GATHER_ROUND_BYTES ((size_t)64 << 20)

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

void comm_bcast_all(struct comm *c, int root, void *data, size_t size)
{
    if (c->size == 1)
        return;
    for (size_t at = 0; at < size; at += c->slice) {
        MPI_Request request;
        MPI_Ibcast((uint8_t *)data + at, comm_count(min_size(size - at, c->slice)), MPI_BYTE, root,
                   c->mpi, &request);
        comm_wait(&request);
    }
}

enum status comm_bcast_bytes_all(struct comm *c, int root, struct bytes *b, struct err *err)
{
    bool is_root = c->rank == root;
    uint64_t size = is_root ? b->size : 0;
    enum status st = is_root && b->failed ? err_nomem(err, b->size) : ST_OK;
    comm_bcast_all(c, root, &size, sizeof size);
    if (!is_root) {
        uint8_t *data = malloc(size > 0 ? (size_t)size : 1);
        bytes_free(b);
        if (data == NULL)
            st = err_nomem(err, (size_t)size);
        else
            *b = (struct bytes){.data = data, .size = (size_t)size, .capacity = (size_t)size};
    }
    st = comm_agree(c, st, err);
    if (st != ST_OK) {
        if (!is_root)
            bytes_free(b);
        return st;
    }
    comm_bcast_all(c, root, b->data, b->size);
    return ST_OK;
}

static uint64_t reduce_u64(struct comm *c, uint64_t x, MPI_Op op)
{
    if (c->size == 1)
        return x;
    uint64_t all = 0;
    MPI_Request request;
    MPI_Iallreduce(&x, &all, 1, MPI_UINT64_T, op, c->mpi, &request);
    comm_wait(&request);
    return all;
}

uint64_t comm_max_u64_all(struct comm *c, uint64_t x)
{
    return reduce_u64(c, x, MPI_MAX);
}

uint64_t comm_min_u64_all(struct comm *c, uint64_t x)
{
    return reduce_u64(c, x, MPI_MIN);
}

uint64_t comm_sum_u64_all(struct comm *c, uint64_t x)
{
    return reduce_u64(c, x, MPI_SUM);
}

uint64_t comm_and_u64_all(struct comm *c, uint64_t x)
{
    return reduce_u64(c, x, MPI_BAND);
}

uint64_t comm_prefix_u64_all(struct comm *c, uint64_t x)
{
    if (c->size == 1)
        return 0;
    uint64_t before = 0;
    MPI_Request request;
    MPI_Iexscan(&x, &before, 1, MPI_UINT64_T, MPI_SUM, c->mpi, &request);
    comm_wait(&request);
    return c->rank == 0 ? 0 : before; /* MPI leaves rank 0's undefined */
}

void comm_barrier_all(struct comm *c)
{
    if (c->size == 1)
        return;
    MPI_Request request;
    MPI_Ibarrier(c->mpi, &request);
    comm_wait(&request);
}

void comm_same_u64(struct comm *c, uint64_t x)
{
#if TOKENTAB_FAULTS
    uint64_t least = comm_min_u64_all(c, x), most = comm_max_u64_all(c, x);
    if (least != most)
        comm_abort(c, status_exit_code(ST_INTERNAL),
                   "a value promised equal differs: %llu here, from %llu to %llu over ranks",
                   (unsigned long long)x, (unsigned long long)least, (unsigned long long)most);
#else
    (void)c;
    (void)x;
#endif
}

/* Root's side of a gather: sizes of all ranks, their buffers, and room for one round. */
struct gathering {
    uint64_t *sizes;
    struct bytes *all;
    int *counts, *places;
    uint8_t *stage;
};

static void gathering_free(struct gathering *g)
{
    free(g->sizes);
    free(g->counts);
    free(g->places);
    free(g->stage);
}

static enum status gathering_make_sizes(struct gathering *g, size_t n, struct err *err)
{
    g->sizes = calloc(n, sizeof *g->sizes);
    g->all = calloc(n, sizeof *g->all);
    g->counts = calloc(n, sizeof *g->counts);
    g->places = calloc(n, sizeof *g->places);
    if (g->sizes == NULL || g->all == NULL || g->counts == NULL || g->places == NULL)
        return err_nomem(err, n * (sizeof *g->sizes + sizeof *g->all + 2 * sizeof *g->counts));
    return ST_OK;
}

static enum status gathering_make_buffers(struct gathering *g, size_t n, size_t share,
                                          struct err *err)
{
    size_t stage = 0;
    for (size_t r = 0; r < n; r++) {
        size_t size = 0;
        if (!u64_to_size(g->sizes[r], &size))
            return err_set(err, ST_NOMEM, "out of memory: a buffer beyond the address space");
        g->all[r].data = malloc(size > 0 ? size : 1);
        if (g->all[r].data == NULL)
            return err_nomem(err, size);
        g->all[r].size = size;
        g->all[r].capacity = size;
        stage += min_size(size, share);
    }
    g->stage = malloc(stage > 0 ? stage : 1);
    return g->stage == NULL ? err_nomem(err, stage) : ST_OK;
}

/* Every rank gives its bytes [at, at + share); root appends them. */
static void gather_round(struct comm *c, int root, const struct bytes *mine, struct gathering *g,
                         size_t at, size_t share)
{
    size_t left = mine->size > at ? mine->size - at : 0;
    int n_mine = comm_count(min_size(left, share)), end = 0;
    bool is_root = c->rank == root;
    for (int r = 0; is_root && r < c->size; r++) {
        size_t size = g->all[r].size;
        g->counts[r] = comm_count(min_size(size > at ? size - at : 0, share));
        g->places[r] = end;
        end += g->counts[r];
    }
    MPI_Request request;
    MPI_Igatherv(n_mine > 0 ? mine->data + at : NULL, n_mine, MPI_BYTE, g->stage, g->counts,
                 g->places, MPI_BYTE, root, c->mpi, &request);
    comm_wait(&request);
    for (int r = 0; is_root && r < c->size; r++)
        if (g->counts[r] > 0)
            memcpy(g->all[r].data + at, g->stage + g->places[r], (size_t)g->counts[r]);
}

enum status comm_gather_bytes_all(struct comm *c, int root, const struct bytes *mine,
                                  struct bytes **all, struct err *err)
{
    *all = NULL;
    struct gathering g = {NULL, NULL, NULL, NULL, NULL};
    size_t n = (size_t)c->size;
    size_t share = min_size(c->slice, GATHER_ROUND_BYTES) / n;
    if (share == 0)
        share = 1;
    enum status st = mine->failed ? err_nomem(err, mine->size) : ST_OK;
    if (st == ST_OK && c->rank == root)
        st = gathering_make_sizes(&g, n, err);
    st = comm_agree(c, st, err);
    if (st != ST_OK)
        goto out;
    uint64_t size = mine->size;
    if (c->size == 1) {
        g.sizes[0] = size;
    } else {
        MPI_Request request;
        MPI_Igather(&size, 1, MPI_UINT64_T, g.sizes, 1, MPI_UINT64_T, root, c->mpi, &request);
        comm_wait(&request);
    }
    if (c->rank == root)
        st = gathering_make_buffers(&g, n, share, err);
    st = comm_agree(c, st, err);
    if (st != ST_OK)
        goto out;
    if (c->size == 1) {
        if (size > 0)
            memcpy(g.all[0].data, mine->data, mine->size);
    } else {
        uint64_t most = comm_max_u64_all(c, size);
        for (size_t at = 0; at < most; at += share)
            gather_round(c, root, mine, &g, at, share);
    }
    *all = g.all;
    g.all = NULL;
out:
    comm_gathered_free(&g.all, c->size);
    gathering_free(&g);
    return st;
}

void comm_gathered_free(struct bytes **all, int size)
{
    if (all == NULL || *all == NULL)
        return;
    for (int r = 0; r < size; r++)
        bytes_free(&(*all)[r]);
    free(*all);
    *all = NULL;
}
