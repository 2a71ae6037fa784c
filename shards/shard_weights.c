/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Which weights must be in memory: all but those that embeddings alone read, row by row. */
static enum status find_needed(const struct graph_block *b, bool **out, struct err *err)
{
    const struct graph *g = &b->graph;
    size_t n = g->n_weights > 0 ? g->n_weights : 1;
    bool *rows_only = calloc(n, sizeof *rows_only), *needed = calloc(n, sizeof *needed);
    if (rows_only == NULL || needed == NULL) {
        free(rows_only);
        free(needed);
        return err_nomem(err, 2 * n);
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (size_t role = 0; role < ROLE_COUNT; role++) {
            int32_t w = g->nodes[i].weights[role];
            if (w < 0)
                continue;
            if (g->nodes[i].op == OP_EMBEDDING)
                rows_only[w] = true;
            else
                needed[w] = true;
        }
    }
    for (size_t i = 0; i < g->n_weights; i++)
        needed[i] = needed[i] || !rows_only[i];
    if (b->bias_weight >= 0)
        needed[b->bias_weight] = true;
    free(rows_only);
    *out = needed;
    return ST_OK;
}

static enum status tensor_find(const struct format_checkpoint *c, const struct graph_weight *w,
                               const struct format_tensor **out, struct err *err)
{
    const struct format_tensor *t = NULL;
    TRY(format_checkpoint_find(c, w->backing, &t, err));
    uint64_t n = 0;
    if (t->dtype != w->dtype || !mul_u64(w->tensor_rows, w->tensor_cols, &n) ||
        n != t->n_elements || t->rank != w->tensor_rank)
        return err_set(err, ST_FORMAT,
                       "tensor %s: [%" PRIu64 ", %" PRIu64 "] of %s expected, found %" PRIu64
                       " elements of %s: the checkpoint has changed",
                       t->name, w->tensor_rows, w->tensor_cols, dtype_name(w->dtype), t->n_elements,
                       t->dtype_text);
    *out = t;
    return ST_OK;
}

/* Finite, and its digest. */
static enum status weight_accept(const struct graph_weight *w, const void *data,
                                 struct digest *digest, struct err *err)
{
    size_t size = (size_t)graph_weight_bytes(w), at = 0;
    size_t found = shard_nonfinite(data, w->dtype, size / dtype_size(w->dtype), &at);
    *digest = digest_of(data, size);
    if (found == 0)
        return ST_OK;
    uint64_t row = at / w->cols, col = at % w->cols;
    const char *part = w->split == SPLIT_NONE ? "" : " of the part that is used";
    const char *values = found == 1 ? "value is" : "values are";
    if (w->tensor_rank == 1)
        return err_set(err, ST_NONFINITE, "tensor %s: %zu %s not finite, the first at [%zu]%s",
                       w->backing, found, values, at, part);
    bool turned = w->in_out; /* to the place in the file */
    return err_set(err, ST_NONFINITE,
                   "tensor %s: %zu %s not finite, the first at [%" PRIu64 ", %" PRIu64 "]%s",
                   w->backing, found, values, turned ? col : row, turned ? row : col, part);
}

static enum status weight_alloc(const struct graph_weight *w, void **out, struct err *err)
{
    size_t size;
    if (!u64_to_size(graph_weight_bytes(w), &size))
        return err_set(err, ST_NOMEM, "out of memory: tensor %s", w->backing);
    return mem_alloc(size, 1, out, err);
}

/* All needed weights from `first` on that lie in its tensor. */
static enum status backing_read(const struct format_checkpoint *c, const struct graph *g,
                                const bool *needed, size_t first, struct shard_weights *out,
                                struct err *err)
{
    const struct graph_weight *w = &g->weights[first];
    const struct format_tensor *t = NULL;
    TRY(tensor_find(c, w, &t, err));
    size_t size, n_users = 0;
    for (size_t i = first; i < g->n_weights; i++)
        n_users += needed[i] && strcmp(g->weights[i].backing, w->backing) == 0;
    if (!u64_to_size(t->size_bytes, &size))
        return err_set(err, ST_NOMEM, "out of memory: tensor %s", t->name);
    if (n_users == 1 && graph_weight_is_plain(w)) {
        TRY(weight_alloc(w, &out->data[first], err));
        TRY(format_checkpoint_read(c, t, 0, out->data[first], size, err));
        return weight_accept(w, out->data[first], &out->digests[first], err);
    }
    void *stored = NULL;
    TRY(mem_alloc(size, 1, &stored, err));
    enum status st = format_checkpoint_read(c, t, 0, stored, size, err);
    for (size_t i = first; i < g->n_weights && st == ST_OK; i++) {
        const struct graph_weight *user = &g->weights[i];
        if (!needed[i] || strcmp(user->backing, w->backing) != 0)
            continue;
        const struct format_tensor *same = NULL;
        st = tensor_find(c, user, &same, err);
        if (st == ST_OK)
            st = weight_alloc(user, &out->data[i], err);
        if (st != ST_OK)
            break;
        graph_weight_gather(user, stored, dtype_size(user->dtype), out->data[i]);
        st = weight_accept(user, out->data[i], &out->digests[i], err);
    }
    free(stored);
    return st;
}

enum status shard_weights_read(const struct format_checkpoint *c, const struct graph_block *b,
                               struct shard_weights *out, struct err *err)
{
    const struct graph *g = &b->graph;
    size_t room = g->n_weights > 0 ? g->n_weights : 1;
    *out = (struct shard_weights){.n = g->n_weights};
    bool *needed = NULL;
    enum status st = find_needed(b, &needed, err);
    if (st != ST_OK)
        return st;
    out->data = calloc(room, sizeof *out->data);
    out->digests = calloc(room, sizeof *out->digests);
    if (out->data == NULL || out->digests == NULL)
        st = err_nomem(err, room * (sizeof *out->data + sizeof *out->digests));
    for (size_t i = 0; i < g->n_weights && st == ST_OK; i++)
        if (needed[i] && out->data[i] == NULL)
            st = backing_read(c, g, needed, i, out, err);
    free(needed);
    if (st != ST_OK)
        shard_weights_free(out);
    return st;
}

void shard_weights_free(struct shard_weights *w)
{
    for (size_t i = 0; w->data != NULL && i < w->n; i++)
        free(w->data[i]);
    free(w->data);
    free(w->digests);
    *w = (struct shard_weights){.n = 0};
}
