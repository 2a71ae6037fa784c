/* SPDX-License-Identifier: Apache-2.0 */
/* Row-count classes of backends that have known ones, and of the real library. */
#include "worker_fixture.h"

static void start(struct fixture *f, struct kernels *k)
{
    fixture_start(f, BLOCK_LOOKUP, DT_F32, 70, 16);
    f->opts.kernels = k;
    fixture_tensor(f, "w", DT_F32, 3, 16, 1);
    fixture_output(f, "output", fixture_node(f, OP_LINEAR, "linear", 1, "w", NULL));
    CHECK_OK(fixture_open(f, &err));
}

static struct worker_probe_result probe(struct fixture *f, uint64_t max_rows)
{
    const struct worker_probe_opts opts = {.max_rows = max_rows, .n_tokens = 32, .n_seeds = 2};
    struct worker_probe_result r = {0};
    CHECK_OK(worker_probe(f->worker, &f->rows, &opts, NULL, NULL, &r, &err));
    CU_ASSERT_EQUAL(r.tokens_used, 32);
    CU_ASSERT_EQUAL(r.seeds_used, 2);
    return r;
}

#if TOKENTAB_FAULTS
static void test_three_classes(void)
{
    static const uint64_t ends[][2] = {{1, 1}, {2, 15}, {16, 130}};
    struct kernels *k = fixture_kernels("three_classes");
    struct fixture f;
    start(&f, k);
    struct worker_probe_result r = probe(&f, 130);
    CU_ASSERT_EQUAL(r.n_classes, 3);
    CU_ASSERT_EQUAL_FATAL(r.n_intervals, 3);
    for (uint32_t i = 0; i < 3; i++) {
        CU_ASSERT_EQUAL(r.intervals[i].first, ends[i][0]);
        CU_ASSERT_EQUAL(r.intervals[i].last, ends[i][1]);
        CU_ASSERT_EQUAL(r.intervals[i].class_index, i);
        CU_ASSERT(!r.intervals[i].position_dependent);
    }
    /* all positions up to 64 rows, 96 of the others */
    uint64_t positions = 0;
    for (uint64_t m = 1; m <= 130; m++)
        positions += m <= 64 ? m : m < 96 ? m : 96;
    CU_ASSERT_EQUAL(r.positions_used, positions);
    worker_probe_free(&r);
    CU_ASSERT_PTR_NULL(r.intervals);
    fixture_close(&f);
    kernels_close(&k);
}

static void test_position(void)
{
    struct kernels *k = fixture_kernels("position");
    struct fixture f;
    start(&f, k);
    struct worker_probe_result r = probe(&f, 101);
    CU_ASSERT_EQUAL_FATAL(r.n_intervals, 101);
    uint32_t own = 2;
    for (uint64_t m = 1; m <= 101; m++) {
        const struct worker_probe_interval *i = &r.intervals[m - 1];
        CU_ASSERT(i->first == m && i->last == m);
        CU_ASSERT_EQUAL(i->position_dependent, m % 2 == 1 && m > 1);
        CU_ASSERT_EQUAL(i->class_index, m == 1 ? 0 : m % 2 == 0 ? 1 : own++);
    }
    CU_ASSERT_EQUAL(r.n_classes, own);
    worker_probe_free(&r);
    fixture_close(&f);
    kernels_close(&k);
}
#endif

/* Whatever the classes of this core are: they cover all counts, in order, and repeat. */
static void test_real(void)
{
    struct kernels *k = fixture_kernels(NULL);
    struct fixture f;
    start(&f, k);
    struct worker_probe_result r = probe(&f, 40), again = probe(&f, 40);
    uint64_t next = 1;
    for (size_t i = 0; i < r.n_intervals; i++) {
        CU_ASSERT_EQUAL(r.intervals[i].first, next);
        CU_ASSERT(r.intervals[i].class_index < r.n_classes);
        next = r.intervals[i].last + 1;
    }
    CU_ASSERT_EQUAL(next, 41);
    CU_ASSERT_EQUAL_FATAL(again.n_intervals, r.n_intervals);
    for (size_t i = 0; i < r.n_intervals; i++)
        CU_ASSERT_EQUAL(again.intervals[i].class_index, r.intervals[i].class_index);
    worker_probe_free(&again);
    worker_probe_free(&r);
    fixture_close(&f);
    kernels_close(&k);
}

static void test_refusals(void)
{
    struct kernels *k = fixture_kernels(NULL);
    struct fixture f;
    start(&f, k);
    struct worker_probe_result r;
    const struct worker_probe_opts none = {.max_rows = 0, .n_tokens = 32, .n_seeds = 1};
    CHECK_FAULT(worker_probe(f.worker, &f.rows, &none, NULL, NULL, &r, &err), ST_USAGE, "probe");
    fixture_close(&f);
    kernels_close(&k);
}

int main(void)
{
    static const struct fixture_test tests[] = {
#if TOKENTAB_FAULTS
        {"three classes", test_three_classes},
        {"position", test_position},
#endif
        {"real library", test_real},
        {"refusals", test_refusals}
    };
    return fixture_main("workers probe", tests, N_OF(tests));
}
