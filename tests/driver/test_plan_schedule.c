/* SPDX-License-Identifier: Apache-2.0 */
#include <CUnit/Basic.h>
#include <math.h>

#include "driver/plan_schedule.h"

static struct plan_times quiet_times(double unit_s)
{
    return (struct plan_times){.unit_s = unit_s, .tick_s = 1e-3, .service_s = 0, .latency_s = 0};
}

static struct plan_schedule simulate(uint64_t rows, uint64_t ranks, const struct plan_times *times)
{
    struct shard_grid grid;
    struct plan_schedule out = {0};
    CU_ASSERT_EQUAL(shard_grid_make(rows, 1, 1, 1, &grid, NULL), ST_OK); /* units of 16 rows */
    CU_ASSERT_EQUAL(plan_schedule_simulate(&grid, ranks, times, &out, NULL), ST_OK);
    return out;
}

static void test_one_rank(void)
{
    struct plan_times t = quiet_times(2);
    struct plan_schedule s = simulate(160, 1, &t);
    CU_ASSERT_DOUBLE_EQUAL(s.makespan_s, 20, 1e-9);
    CU_ASSERT_DOUBLE_EQUAL(s.efficiency, 1, 1e-9);
    CU_ASSERT_EQUAL(s.messages, 0);
    CU_ASSERT_EQUAL(s.busy_ranks, 1);
    /* a ragged last unit costs its part */
    s = simulate(168, 1, &t);
    CU_ASSERT_DOUBLE_EQUAL(s.makespan_s, 21, 1e-9);
}

static void test_even_share(void)
{
    struct plan_times t = quiet_times(1);
    for (uint64_t ranks = 1; ranks <= 8; ranks *= 2) {
        struct plan_schedule s = simulate(16 * 32, ranks, &t);
        CU_ASSERT_DOUBLE_EQUAL(s.makespan_s, 32.0 / (double)ranks, 0.05);
        CU_ASSERT(s.efficiency > 0.99 && s.efficiency <= 1 + 1e-9);
        CU_ASSERT_EQUAL(s.busy_ranks, ranks);
    }
}

/* Ranks without a shard wait; each asks once. */
static void test_more_ranks_than_shards(void)
{
    struct plan_times t = quiet_times(1);
    struct plan_schedule s = simulate(16 * 3, 1000, &t);
    CU_ASSERT_DOUBLE_EQUAL(s.makespan_s, 1, 0.01);
    CU_ASSERT_EQUAL(s.busy_ranks, 3);
    CU_ASSERT_EQUAL(s.messages, 999 + 3 + 3);
    CU_ASSERT(s.efficiency < 0.01);
}

/* Rank 0 is the bound when its messages take longer than the work. */
static void test_busy_driver(void)
{
    struct plan_times t = quiet_times(1e-3);
    t.service_s = 1e-3;
    struct plan_schedule s = simulate(16 * 10000, 1000, &t);
    CU_ASSERT(s.makespan_s >= 9.0);
    CU_ASSERT(s.driver_share > 0.9);
    CU_ASSERT(s.efficiency < 0.01);
}

/* A rank 0 that looks at its messages rarely lets the others wait. */
static void test_long_ticks(void)
{
    struct plan_times often = quiet_times(1), seldom = quiet_times(1);
    seldom.tick_s = 1;
    struct plan_schedule a = simulate(16 * 400, 4, &often), b = simulate(16 * 400, 4, &seldom);
    CU_ASSERT(b.makespan_s >= a.makespan_s - 1e-9);
    CU_ASSERT(b.makespan_s <= 1.5 * a.makespan_s);
}

static void test_a_hundred_thousand_ranks(void)
{
    struct plan_times t = {.unit_s = 10, .tick_s = 1e-2, .service_s = 2e-5, .latency_s = 2e-5};
    double start = clock_s();
    struct plan_schedule s = simulate((uint64_t)16 << 20, 100000, &t);
    CU_ASSERT(clock_s() - start < 20); /* about a second */
    CU_ASSERT_EQUAL(s.busy_ranks, 100000);
    /* 2^20 shards of 10 s on 10^5 ranks: eleven rounds */
    CU_ASSERT(s.makespan_s >= 104.8 && s.makespan_s < 140);
    CU_ASSERT_DOUBLE_EQUAL(s.messages_per_s, (double)s.messages / s.makespan_s, 1e-6);
    CU_ASSERT(s.messages >= 2 * (((uint64_t)1 << 20) - 1000));
}

int main(void)
{
    CU_pSuite suite;
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    suite = CU_add_suite("plan_schedule", NULL, NULL);
    CU_add_test(suite, "one rank", test_one_rank);
    CU_add_test(suite, "even share", test_even_share);
    CU_add_test(suite, "more ranks than shards", test_more_ranks_than_shards);
    CU_add_test(suite, "busy driver", test_busy_driver);
    CU_add_test(suite, "long ticks", test_long_ticks);
    CU_add_test(suite, "100,000 ranks", test_a_hundred_thousand_ranks);
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failed > 0;
}
