/* SPDX-License-Identifier: Apache-2.0 */
/* Which row counts of the loaded BLAS give a token the same bytes, for the shapes of one block. */
#include "workers/workers_internal.h"

#include <stdlib.h>
#include <string.h>

enum { ALL_POSITIONS = 64, EDGE_POSITIONS = 48 };

/* A probe under way.  A *place* is a position that is looked at. */
struct probing {
    struct evaluator *e;
    const struct graph_block *block;
    size_t n_tokens, n_seeds, max_rows;
    size_t *order;    /* [n_tokens] the companions' order under one seed */
    size_t *index;    /* [reserved rows] */
    size_t call_rows; /* rows of one run */
    size_t *places;   /* [max places] positions */
    size_t n_places;
    struct digest *digests;    /* [place * n_tokens + token] of the first seed */
    struct digest *signatures; /* [place] over all tokens */
    void *packed;
    size_t row_bytes; /* of all outputs together */
    bool companions_matter;
    struct worker_probe_result *out;
    struct digest *known; /* signatures of the classes so far; [out->n_classes] */
};

static void choose_places(struct probing *p, size_t m)
{
    p->n_places = 0;
    for (size_t i = 0; i < m; i++)
        if (m <= ALL_POSITIONS || i < EDGE_POSITIONS || i >= m - EDGE_POSITIONS)
            p->places[p->n_places++] = i;
}

/* The companions of a seed: a Fisher-Yates shuffle by a fixed generator. */
static void shuffle(struct probing *p, uint64_t seed)
{
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t i = 0; i < p->n_tokens; i++)
        p->order[i] = i;
    for (size_t i = p->n_tokens; i-- > 1 && seed > 0;) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const size_t j = (size_t)(x >> 33) % (i + 1), other = p->order[i];
        p->order[i] = p->order[j];
        p->order[j] = other;
    }
}

/* Which token stands at `position` in the call of a shift: over all shifts each token visits each
 * position. */
static size_t token_at(const struct probing *p, size_t shift, size_t position)
{
    return p->order[(position + shift) % p->n_tokens];
}

/* Bytes of one row of a run, all outputs one behind the other. */
static void pack_row(struct probing *p, size_t row)
{
    char *to = p->packed;
    for (size_t i = 0; i < p->block->n_tables; i++) {
        const struct graph_output *o = &p->block->tables[i];
        const size_t width = (size_t)o->width;
        kernels_pack(o->dtype,
                     (const char *)evaluator_output(p->e, i) +
                         row * width * dtype_size(evaluator_compute(p->e, i)),
                     width, to);
        to += worker_row_bytes(o);
    }
}

/* Calls of m rows for shifts [first, first + n). */
static enum status run_shifts(struct probing *p, size_t m, size_t seed, size_t first, size_t n,
                              struct err *err)
{
    for (size_t i = 0; i < n * m; i++)
        p->index[i] = token_at(p, first + i / m, i % m);
    const struct evaluator_call call = {
        .n_calls = n, .m = m, .bias = BIAS_PREFILLED, .index = p->index};
    TRY(evaluator_run(p->e, &call, err));
    for (size_t c = 0; c < n; c++)
        for (size_t i = 0; i < p->n_places; i++) {
            const size_t token = p->index[c * m + p->places[i]];
            struct digest *d = &p->digests[i * p->n_tokens + token];
            pack_row(p, c * m + p->places[i]);
            const struct digest found = digest_of(p->packed, p->row_bytes);
            if (seed == 0)
                *d = found;
            else if (!digest_equal(d, &found))
                p->companions_matter = true;
        }
    return ST_OK;
}

/* All tokens at all places of calls of m rows, among n_seeds orders of companions. */
static enum status run_count(struct probing *p, size_t m, worker_tick_fn tick, void *tick_ctx,
                             struct err *err)
{
    const size_t most = p->call_rows / m;
    choose_places(p, m);
    p->companions_matter = false;
    for (size_t seed = 0; seed < p->n_seeds; seed++) {
        shuffle(p, seed);
        for (size_t first = 0; first < p->n_tokens; first += most) {
            const size_t left = p->n_tokens - first;
            if (tick != NULL)
                TRY(tick(tick_ctx, err));
            TRY(run_shifts(p, m, seed, first, left < most ? left : most, err));
        }
    }
    for (size_t i = 0; i < p->n_places; i++)
        p->signatures[i] =
            digest_of(p->digests + i * p->n_tokens, p->n_tokens * sizeof *p->digests);
    p->out->positions_used += p->n_places;
    return ST_OK;
}

/* Append row count m: to the last interval where that is of the same class. */
static void record(struct probing *p, size_t m)
{
    struct worker_probe_result *out = p->out;
    bool dependent = p->companions_matter;
    for (size_t i = 1; i < p->n_places; i++)
        dependent = dependent || !digest_equal(&p->signatures[0], &p->signatures[i]);
    uint32_t class_index = out->n_classes;
    for (uint32_t i = 0; !dependent && i < out->n_classes; i++)
        if (digest_equal(&p->known[i], &p->signatures[0])) {
            class_index = i;
            break;
        }
    if (class_index == out->n_classes) {
        /* The name of a position-dependent count is one that no signature has. */
        const uint64_t own[2] = {m, UINT64_MAX};
        p->known[out->n_classes++] = dependent ? digest_of(own, sizeof own) : p->signatures[0];
    }
    struct worker_probe_interval *last =
        out->n_intervals == 0 ? NULL : &out->intervals[out->n_intervals - 1];
    if (last != NULL && last->class_index == class_index) {
        last->last = m;
        return;
    }
    out->intervals[out->n_intervals++] = (struct worker_probe_interval){
        .first = m, .last = m, .class_index = class_index, .position_dependent = dependent};
}

static enum status alloc_probe(struct probing *p, struct err *err)
{
    const size_t most_places =
        2 * EDGE_POSITIONS > ALL_POSITIONS ? 2 * EDGE_POSITIONS : ALL_POSITIONS;
    void *memory = NULL;
#define ALLOC(member, count)                                                                       \
    TRY(mem_calloc(count, sizeof *p->member, &memory, err));                                       \
    p->member = memory
    ALLOC(order, p->n_tokens);
    ALLOC(index, p->call_rows);
    ALLOC(places, most_places);
    ALLOC(digests, most_places * p->n_tokens);
    ALLOC(signatures, most_places);
    ALLOC(known, p->max_rows);
    ALLOC(out->intervals, p->max_rows);
#undef ALLOC
    for (size_t i = 0; i < p->block->n_tables; i++)
        p->row_bytes += worker_row_bytes(&p->block->tables[i]);
    return mem_alloc(1, p->row_bytes, &p->packed, err);
}

/* Load the drawn tokens' embedding rows, taken evenly over the given ones. */
static enum status load_tokens(struct probing *p, const struct worker_rows *rows, size_t row_bytes,
                               void **drawn, struct err *err)
{
    TRY(mem_alloc(p->n_tokens, row_bytes, drawn, err));
    for (size_t i = 0; i < p->n_tokens; i++) {
        /* i * (n_rows - 1) / (n_tokens - 1), without overflow for any vocabulary of 2^32 rows */
        const uint64_t row =
            p->n_tokens == 1 ? 0 : (uint64_t)i * (rows->n_rows - 1) / (p->n_tokens - 1);
        memcpy((char *)*drawn + i * row_bytes, (const char *)rows->embedding + row * row_bytes,
               row_bytes);
    }
    return evaluator_load(p->e, *drawn, p->n_tokens, err);
}

static enum status check_opts(const struct worker_probe_opts *opts, const struct worker_rows *rows,
                              struct err *err)
{
    enum { MOST = 1 << 20 };
    if (opts->max_rows == 0 || opts->max_rows > MOST || opts->n_tokens == 0 ||
        opts->n_tokens > MOST || opts->n_seeds == 0 || rows->n_rows == 0)
        return err_set(err, ST_USAGE,
                       "probe: %llu rows, %llu tokens, %llu seeds, %llu embedding rows: expected 1 "
                       "at least and %d at most",
                       (unsigned long long)opts->max_rows, (unsigned long long)opts->n_tokens,
                       (unsigned long long)opts->n_seeds, (unsigned long long)rows->n_rows, MOST);
    return ST_OK;
}

static enum status probe_counts(struct probing *p, worker_tick_fn tick, void *tick_ctx,
                                struct err *err)
{
    for (size_t m = 1; m <= p->max_rows; m++) {
        TRY(run_count(p, m, tick, tick_ctx, err));
        record(p, m);
    }
    p->out->tokens_used = p->n_tokens;
    p->out->seeds_used = p->n_seeds;
    return ST_OK;
}

enum status worker_probe(struct worker *w, const struct worker_rows *rows,
                         const struct worker_probe_opts *opts, worker_tick_fn tick, void *tick_ctx,
                         struct worker_probe_result *out, struct err *err)
{
    *out = (struct worker_probe_result){0};
    TRY(check_opts(opts, rows, err));
    if (w->opts.arithmetic != ARITH_LIBRARY)
        return err_set(err, ST_USAGE,
                       "probe: correctly rounded rows have one class: nothing to find");
    struct probing p = {.e = w->tables,
                        .block = w->opts.block,
                        .n_tokens = (size_t)min_u64(opts->n_tokens, rows->n_rows),
                        .n_seeds = (size_t)opts->n_seeds,
                        .max_rows = (size_t)opts->max_rows,
                        .out = out};
    p.call_rows = p.max_rows > WORKER_BATCH_ROWS ? p.max_rows : WORKER_BATCH_ROWS;
    void *drawn = NULL;
    enum status st = alloc_probe(&p, err);
    if (st == ST_OK)
        st = evaluator_reserve(p.e, p.call_rows, err);
    if (st == ST_OK)
        st = load_tokens(&p, rows, w->embedding_row_bytes, &drawn, err);
    if (st == ST_OK)
        st = probe_counts(&p, tick, tick_ctx, err);
    evaluator_drop(p.e);
    free(drawn);
    free(p.order);
    free(p.index);
    free(p.places);
    free(p.digests);
    free(p.signatures);
    free(p.known);
    free(p.packed);
    if (st != ST_OK)
        worker_probe_free(out);
    return st;
}

void worker_probe_free(struct worker_probe_result *r)
{
    free(r->intervals);
    *r = (struct worker_probe_result){0};
}
