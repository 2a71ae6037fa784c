/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

/* Units cover all rows once, shards all units once. */
static bool covers(const struct shard_grid *g)
{
    uint64_t next_unit = 0, next_row = 0;
    for (uint32_t s = 0; s < g->n_shards; s++) {
        uint64_t first, count;
        shard_grid_units(g, s, &first, &count);
        if (first != next_unit || count == 0 || count > g->shard_units)
            return false;
        for (uint64_t u = first; u < first + count; u++) {
            uint64_t row, n;
            shard_grid_rows(g, u, &row, &n);
            if (row != next_row || n == 0 || n > g->unit_rows)
                return false;
            next_row += n;
        }
        next_unit = first + count;
    }
    return next_unit == g->n_units && next_row == g->n_rows;
}

static void test_cover(void)
{
    static const uint64_t rows[] = {1, 2, 15, 16, 17, 84, 160, 161, 5000, 19790};
    static const uint64_t bulk[] = {1, 3, 10, 1024};
    static const uint64_t units[] = {0, 1, 2, 7, UINT64_MAX};
    struct shard_grid g;
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
        for (size_t b = 0; b < sizeof bulk / sizeof bulk[0]; b++)
            for (size_t u = 0; u < sizeof units / sizeof units[0]; u++)
                for (int ranks = 1; ranks < 9; ranks += 3) {
                    CU_ASSERT_EQUAL(shard_grid_make(rows[r], bulk[b], units[u], ranks, &g, NULL),
                                    ST_OK);
                    CU_ASSERT_EQUAL(g.unit_rows, 16 * bulk[b]);
                    CU_ASSERT(covers(&g));
                }
}

static void test_shapes(void)
{
    struct shard_grid g;
    /* V = 5 on 8 ranks: one unit, one shard, seven ranks without work */
    CU_ASSERT_EQUAL(shard_grid_make(5, 1024, 0, 8, &g, NULL), ST_OK);
    CU_ASSERT(g.n_units == 1 && g.n_shards == 1);
    /* a last unit of one row */
    CU_ASSERT_EQUAL(shard_grid_make(33, 1, 0, 1, &g, NULL), ST_OK);
    uint64_t first, count;
    shard_grid_rows(&g, 2, &first, &count);
    CU_ASSERT(g.n_units == 3 && first == 32 && count == 1);
    /* at least four shards a rank where units allow, whatever the remainder */
    for (int ranks = 1; ranks < 40; ranks++)
        for (uint64_t units = 4 * (uint64_t)ranks; units < 4 * (uint64_t)ranks + 50; units++) {
            CU_ASSERT_EQUAL(shard_grid_make(units * 16, 1, 0, ranks, &g, NULL), ST_OK);
            CU_ASSERT(g.n_shards >= 4 * (uint32_t)ranks && g.n_shards <= 8 * (uint32_t)ranks + 50);
        }
    /* never more than 2^20 when we choose */
    CU_ASSERT_EQUAL(shard_grid_make((uint64_t)1 << 40, 1, 0, 1000000, &g, NULL), ST_OK);
    CU_ASSERT(g.n_shards <= 1u << 20);
    /* the grid is the same for any ranks and any shard size */
    struct shard_grid a, b;
    CU_ASSERT_EQUAL(shard_grid_make(100000, 10, 1, 1, &a, NULL), ST_OK);
    CU_ASSERT_EQUAL(shard_grid_make(100000, 10, 0, 7, &b, NULL), ST_OK);
    CU_ASSERT(a.n_units == b.n_units && a.unit_rows == b.unit_rows);
}

static void test_refused(void)
{
    struct shard_grid g;
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(shard_grid_make(0, 1024, 0, 1, &g, &err), ST_USAGE);
    err_clear(&err);
    CU_ASSERT_EQUAL(shard_grid_make(1, 0, 0, 1, &g, &err), ST_USAGE);
    CU_ASSERT(fixture_says(err.message, "bulk_rows"));
    CU_ASSERT_EQUAL(shard_grid_make(1, 1, 0, 0, &g, NULL), ST_USAGE);
    CU_ASSERT_EQUAL(shard_grid_make(1, UINT64_MAX / 16 + 1, 0, 1, &g, NULL), ST_USAGE);
    CU_ASSERT_EQUAL(shard_grid_make(UINT64_MAX, UINT64_MAX / 16, 0, 1, &g, NULL), ST_USAGE);
    CU_ASSERT_EQUAL(shard_grid_make((uint64_t)16 << 32, 1, 1, 1, &g, NULL), ST_USAGE);
    CU_ASSERT_EQUAL(shard_grid_make(((uint64_t)16 << 32) - 16, 1, 1, 1, &g, NULL), ST_OK);
    CU_ASSERT_EQUAL(g.n_shards, UINT32_MAX);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"cover", test_cover}, {"shapes", test_shapes}, {"refused", test_refused}};
    return fixture_main("grid", cases, sizeof cases / sizeof cases[0]);
}
