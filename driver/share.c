/* SPDX-License-Identifier: Apache-2.0 */
/* Row sharing: identical rows of a group stored once behind an index, where that saves bytes.
 *
 * Looking for them takes memory for every row, so it is done only where the units show duplicates
 * enough to pay (their embedding rows are counted anyway), or where one unit holds all rows.
 * Duplicates that no unit holds twice are not looked for. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"
#include "formats/packed.h"

static bool worth_looking(const struct driver_block *b, const struct driver_totals *t,
                          const struct format_group *g)
{
    uint64_t row_bytes = g->width * dtype_size(g->dtype);
    if (g->rows == 1 || g->rows != b->n_rows)
        return false;
    return b->grid.n_units == 1 ||
           t->distinct_rows * row_bytes + b->n_rows * sizeof(int32_t) < b->n_rows * row_bytes;
}

/* Rank 0. */
static enum status share_groups(const struct driver_block *b, struct shard_store *store,
                                const struct driver_totals *totals, struct driver_layout *l,
                                struct err *err)
{
    struct driver_group_reader rows = {.units = {.block = b, .store = store}, .layout = l};
    enum status st = ST_OK;
    for (uint32_t g = 0; g < l->n_groups && st == ST_OK; g++) {
        struct packed_sharing found = {0};
        size_t row_bytes = (size_t)l->groups[g].width * dtype_size(l->groups[g].dtype);
        if (!worth_looking(b, totals, &l->groups[g]))
            continue;
        st = format_packed_share(driver_group_rows, &rows, g, b->n_rows, row_bytes, &found, err);
        if (st == ST_OK) {
            l->sharing[g].counted = true;
            l->sharing[g].n_distinct = found.n_distinct;
            l->sharing[g].index = found.index;
            l->sharing[g].firsts = found.firsts;
            found.index = found.firsts = NULL;
        }
        format_packed_sharing_free(&found);
    }
    driver_group_reader_close(&rows);
    return st;
}

/* Every rank writes rows, so every rank needs the index of a group that has one. */
static enum status broadcast_group(struct comm *comm, const struct driver_block *b,
                                   struct format_group *g, struct driver_sharing *s,
                                   struct err *err)
{
    bool root = comm_rank(comm) == 0;
    s->counted = comm_max_u64_all(comm, s->counted) != 0;
    s->n_distinct = comm_max_u64_all(comm, s->n_distinct);
    g->indexed = comm_max_u64_all(comm, s->index != NULL) != 0;
    if (!g->indexed)
        return ST_OK;
    void *index = NULL, *firsts = NULL;
    enum status st = ST_OK;
    if (!root) {
        st = mem_alloc((size_t)b->n_rows, sizeof *s->index, &index, err);
        if (st == ST_OK)
            st = mem_alloc((size_t)s->n_distinct, sizeof *s->firsts, &firsts, err);
        s->index = index;
        s->firsts = firsts;
    }
    TRY(comm_agree(comm, st, err));
    comm_bcast_all(comm, 0, s->index, (size_t)b->n_rows * sizeof *s->index);
    comm_bcast_all(comm, 0, s->firsts, (size_t)s->n_distinct * sizeof *s->firsts);
    g->rows = s->n_distinct;
    return ST_OK;
}

enum status driver_share_all(struct comm *comm, const struct driver_block *b,
                             struct shard_store *store, const struct driver_totals *totals,
                             struct driver_layout *l, struct err *err)
{
    void *memory = NULL;
    enum status st = mem_calloc(l->n_groups, sizeof *l->sharing, &memory, err);
    l->sharing = memory;
    if (st == ST_OK && comm_rank(comm) == 0)
        st = share_groups(b, store, totals, l, err);
    st = comm_agree(comm, st, err);
    for (size_t g = 0; g < l->n_groups && st == ST_OK; g++)
        st = broadcast_group(comm, b, &l->groups[g], &l->sharing[g], err);
    return st;
}
