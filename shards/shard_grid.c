/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards.h"

#include <assert.h>
#include <inttypes.h>

enum { SHARDS_A_RANK = 4, SHARDS_CHOSEN_MAX = 1 << 20 };

static uint64_t ceil_div(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0 ? 1 : 0);
}

enum status shard_grid_make(uint64_t n_rows, uint64_t bulk_rows, uint64_t shard_units, int n_ranks,
                            struct shard_grid *out, struct err *err)
{
    if (n_rows == 0)
        return err_set(err, ST_USAGE, "no rows to tabulate");
    if (bulk_rows == 0)
        return err_set(err, ST_USAGE, "bulk_rows: at least 1 expected, found 0");
    if (n_ranks < 1)
        return err_set(err, ST_USAGE, "ranks: at least 1 expected, found %d", n_ranks);
    struct shard_grid g = {.n_rows = n_rows};
    /* Rows are addressed by first + count: the end of the last full unit must be a number too. */
    uint64_t end;
    if (!mul_u64(SHARD_UNIT_CHUNKS, bulk_rows, &g.unit_rows) ||
        !mul_u64(ceil_div(n_rows, g.unit_rows), g.unit_rows, &end))
        return err_set(err, ST_USAGE, "bulk_rows: %" PRIu64 " is too large", bulk_rows);
    g.n_units = ceil_div(n_rows, g.unit_rows);
    if (shard_units == 0) {
        uint64_t wanted = (uint64_t)SHARDS_A_RANK * (uint64_t)n_ranks;
        shard_units = max_u64(g.n_units / wanted, ceil_div(g.n_units, SHARDS_CHOSEN_MAX));
        shard_units = max_u64(shard_units, 1);
    }
    g.shard_units = shard_units;
    uint64_t n_shards = ceil_div(g.n_units, shard_units);
    if (n_shards > UINT32_MAX)
        return err_set(err, ST_USAGE,
                       "%" PRIu64 " shards of %" PRIu64 " units, at most %" PRIu32 " expected",
                       n_shards, shard_units, UINT32_MAX);
    g.n_shards = (uint32_t)n_shards;
    *out = g;
    return ST_OK;
}

void shard_grid_units(const struct shard_grid *g, uint32_t shard, uint64_t *first, uint64_t *count)
{
    assert(shard < g->n_shards);
    *first = shard * g->shard_units; /* below n_units */
    *count = min_u64(g->shard_units, g->n_units - *first);
}

void shard_grid_rows(const struct shard_grid *g, uint64_t unit, uint64_t *first, uint64_t *count)
{
    assert(unit < g->n_units);
    *first = unit * g->unit_rows;
    *count = min_u64(g->unit_rows, g->n_rows - *first);
}
