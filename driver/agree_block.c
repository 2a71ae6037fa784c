/* SPDX-License-Identifier: Apache-2.0 */
/* Do all ranks see the same inputs?  Each reads spec, weights and rows for itself: a copy of a
 * checkpoint on a node's own disk that is older than the others' would otherwise end up in one
 * recipe with them. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"

static void put_fields(const struct driver_job *job, const struct driver_block *b,
                       struct bytes *out)
{
    char text[32];
    snprintf(text, sizeof text, "%llu",
             (unsigned long long)format_checkpoint_bytes(job->checkpoint));
    bytes_put_str(out, "checkpoint bytes");
    bytes_put_str(out, text);
    snprintf(text, sizeof text, "%llu", (unsigned long long)b->n_rows);
    bytes_put_str(out, "rows");
    bytes_put_str(out, text);
    for (size_t i = 0; i < b->base.n_fields; i++) {
        bytes_put_str(out, b->base.fields[i].name);
        bytes_put_str(out, b->base.fields[i].value);
    }
}

/* First field that differs between rank 0 and rank r; the host stands before the fields. */
static enum status compare(const struct bytes *all, int r, size_t n_fields, struct err *err)
{
    struct bytes_reader x = {.data = all[0].data, .size = all[0].size};
    struct bytes_reader y = {.data = all[r].data, .size = all[r].size};
    char *host = bytes_get_str(&x), *other = bytes_get_str(&y);
    enum status st = ST_OK;
    for (size_t i = 0; i < n_fields && st == ST_OK; i++) {
        char *name = bytes_get_str(&x), *value = bytes_get_str(&x);
        char *name_r = bytes_get_str(&y), *value_r = bytes_get_str(&y);
        const char *found = value_r == NULL ? "nothing" : value_r;
        if (name == NULL || value == NULL || host == NULL)
            st = err_set(err, ST_INTERNAL, "inputs of rank 0 cannot be read");
        else if (name_r == NULL || strcmp(name, name_r) != 0 || strcmp(value, found) != 0)
            st =
                err_set(err, ST_ENVIRONMENT,
                        "ranks read different inputs: %s is %s on rank 0 (%s), %s on rank %d (%s); "
                        "are the copies of spec and checkpoint the same?",
                        name, value, host, found, r, other == NULL ? "?" : other);
        free(name);
        free(value);
        free(name_r);
        free(value_r);
    }
    free(host);
    free(other);
    return st;
}

enum status driver_block_agree_all(struct comm *comm, const struct driver_job *job,
                                   const struct driver_block *b, struct err *err)
{
    struct bytes mine = {0}, *all = NULL;
    if (comm_size(comm) == 1)
        return ST_OK;
    bytes_put_str(&mine, comm_host(comm));
    size_t host_size = mine.size;
    put_fields(job, b, &mine);
    enum status st = mine.failed ? err_nomem(err, mine.size) : ST_OK;
    st = comm_agree(comm, st, err);
    /* The fields travel only where they differ: there may be many ranks. */
    bool same = false;
    if (st == ST_OK) {
        struct digest d = digest_of(mine.data + host_size, mine.size - host_size);
        uint64_t brief = 0;
        memcpy(&brief, d.bytes, sizeof brief);
        same = comm_min_u64_all(comm, brief) == comm_max_u64_all(comm, brief);
    }
    if (st == ST_OK && !same)
        st = comm_gather_bytes_all(comm, 0, &mine, &all, err);
    bytes_free(&mine);
    if (st != ST_OK || same)
        return st;
    bool root = comm_rank(comm) == 0;
    for (int r = 1; root && r < comm_size(comm) && st == ST_OK; r++)
        st = compare(all, r, b->base.n_fields + 2, err);
    comm_gathered_free(&all, root ? comm_size(comm) : 0);
    return comm_agree(comm, st, err);
}
