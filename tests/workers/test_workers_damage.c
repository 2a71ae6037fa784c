/* SPDX-License-Identifier: Apache-2.0 */
/* One flipped bit in one row of one route: every class that meets it finds it and names the place.
 * Small integers, so that every execution gives the same bytes on every core. */
#include "worker_fixture.h"

enum { ROWS = 23, BIT = 20 };

static struct kernels *kernels;

static void make_integers(struct fixture *f)
{
    for (size_t i = 0; i < f->n_tensors; i++) {
        struct fixture_tensor *t = &f->tensors[i];
        const size_t n = (size_t)(t->shape[0] * (t->rank == 2 ? t->shape[1] : 1));
        for (size_t j = 0; j < n; j++)
            fixture_store(t->dtype, t->data, j, (double)((j * 7 + i * 3) % 5) - 2);
    }
}

static void start(struct fixture *f, bool linear)
{
    fixture_start(f, BLOCK_FANOUT, DT_F32, ROWS, 6);
    f->opts.kernels = kernels;
    fixture_tensor(f, "q", DT_F32, 4, 6, 1);
    fixture_tensor(f, "b", DT_F32, 4, 0, 1);
    if (linear)
        fixture_output(f, "q", fixture_node(f, OP_LINEAR, "q", 1, "q", "b"));
    else
        fixture_output(f, "q", fixture_node(f, OP_RELU, "q", 1, NULL, NULL));
    fixture_output(f, "hidden", 1);
    fixture_profiles(f);
    make_integers(f);
    CHECK_OK(fixture_open(f, &err));
}

/* What every record finds of a flipped bit at (route, table, row, column). */
static void check_found(const struct fixture *f, const struct worker_unit *u, size_t route,
                        size_t table, uint64_t row, uint64_t column, bool *found)
{
    for (size_t c = 0; c < worker_n_classes(f->worker); c++)
        for (size_t result = 0; result < 2; result++)
            for (size_t r = 0; r < u->n_routes; r++) {
                const size_t at = worker_stat_index(f->worker, c, result, r);
                const struct worker_stat *s = &u->stats[at];
                if (s->unequal_bytes == 0)
                    continue;
                found[at] = true;
                CU_ASSERT(r == route && result == table);
                CU_ASSERT_EQUAL(s->max_abs_token, row);
                CU_ASSERT_EQUAL(s->max_abs_column, column);
                CU_ASSERT_EQUAL(s->max_ulp, 1u << BIT);
                CU_ASSERT_EQUAL(s->max_ulp_token, row);
                CU_ASSERT(s->max_abs > 0 && s->max_rel > 0 && s->max_rel_token < ROWS);
            }
}

static void damage_each(struct fixture *f)
{
    struct worker_unit *u = NULL;
    CHECK_OK(worker_unit_evaluate(f->worker, &f->rows, NULL, NULL, &u, &err));
    CHECK_OK(worker_unit_validate(f->worker, &f->rows, u, NULL, NULL, NULL, NULL, &err));
    bool *found = calloc(u->n_stats, sizeof *found), *used = calloc(u->n_stats, sizeof *used);
    CU_ASSERT_FATAL(found != NULL && used != NULL);
    for (size_t i = 0; i < u->n_stats; i++) {
        CU_ASSERT_EQUAL(u->stats[i].unequal_bytes, 0);
        used[i] = u->stats[i].cases > 0;
    }
    for (size_t route = 0; route < u->n_routes; route++)
        for (size_t table = 0; table < 2; table++)
            for (uint64_t row = 0; row < ROWS; row++) {
                const uint64_t width = f->block.tables[table].width, column = row % width;
                uint8_t *bytes = u->tables[route * 2 + table];
                uint8_t *byte = bytes + (row * width + column) * 4 + BIT / 8;
                *byte ^= 1u << BIT % 8;
                CHECK_OK(
                    worker_unit_validate(f->worker, &f->rows, u, NULL, NULL, NULL, NULL, &err));
                check_found(f, u, route, table, row, column, found);
                *byte ^= 1u << BIT % 8;
            }
    for (size_t i = 0; i < u->n_stats; i++)
        CU_ASSERT_EQUAL(found[i], used[i]); /* all classes, on all routes that they select */
    free(found);
    free(used);
    worker_unit_free(&u);
}

static void test_each_class(void)
{
    struct fixture f;
    start(&f, true);
    damage_each(&f);
    fixture_close(&f);
}

static void test_no_linear(void)
{
    struct fixture f;
    start(&f, false);
    damage_each(&f);
    fixture_close(&f);
}

/* A bit that makes the table's value NaN or infinite is counted as such. */
static void test_nonfinite(void)
{
    struct fixture f;
    start(&f, true);
    struct worker_unit *u = NULL;
    CHECK_OK(worker_unit_evaluate(f.worker, &f.rows, NULL, NULL, &u, &err));
    const float nan = NAN;
    memcpy((float *)u->tables[2] + 4 * 11, &nan, sizeof nan);
    CHECK_OK(worker_unit_validate(f.worker, &f.rows, u, NULL, NULL, NULL, NULL, &err));
    size_t seen = 0;
    for (size_t c = 0; c < worker_n_classes(f.worker); c++) {
        const struct worker_stat *s = &u->stats[worker_stat_index(f.worker, c, 0, 1)];
        CU_ASSERT_EQUAL(s->nonfinite > 0, s->cases > 0);
        CU_ASSERT_EQUAL(s->unequal, 0);
        seen += s->nonfinite;
    }
    CU_ASSERT(seen > 0);
    worker_unit_free(&u);
    fixture_close(&f);
}

#if TOKENTAB_FAULTS
static void test_hook(void)
{
    struct fixture f;
    start(&f, true);
    struct worker_unit *u = NULL, *whole = NULL;
    CHECK_OK(worker_unit_evaluate(f.worker, &f.rows, NULL, NULL, &whole, &err));
    CU_ASSERT_EQUAL(setenv("TOKENTAB_DAMAGE", "2:0:13:3:20", 1), 0);
    CHECK_OK(worker_unit_evaluate(f.worker, &f.rows, NULL, NULL, &u, &err));
    for (size_t i = 0; i < 6; i++)
        CU_ASSERT_EQUAL(digest_equal(&u->table_digests[i], &whole->table_digests[i]), i != 4);
    CHECK_OK(worker_unit_validate(f.worker, &f.rows, u, NULL, NULL, NULL, NULL, &err));
    bool found[128] = {false};
    CU_ASSERT_FATAL(u->n_stats <= N_OF(found));
    check_found(&f, u, 2, 0, 13, 3, found);
    worker_unit_free(&u);
    static const char *const bad[] = {"2:0:13:3",    "3:0:13:3:20",   "2:0:13:4:20",
                                      "2:0:13:3:32", "2:0:13:3:20:1", "bulk"};
    for (size_t i = 0; i < N_OF(bad); i++) {
        CU_ASSERT_EQUAL(setenv("TOKENTAB_DAMAGE", bad[i], 1), 0);
        CHECK_FAULT(worker_unit_evaluate(f.worker, &f.rows, NULL, NULL, &u, &err), ST_USAGE,
                    "TOKENTAB_DAMAGE");
    }
    CU_ASSERT_EQUAL(unsetenv("TOKENTAB_DAMAGE"), 0);
    worker_unit_free(&whole);
    fixture_close(&f);
}
#endif

int main(void)
{
    static const struct fixture_test tests[] = {
        {"each class", test_each_class},
        {"no linear", test_no_linear},
        {"non-finite table", test_nonfinite},
#if TOKENTAB_FAULTS
        {"hook", test_hook},
#endif
    };
    kernels = fixture_kernels(NULL);
    const int failed = fixture_main("workers damage", tests, N_OF(tests));
    kernels_close(&kernels);
    return failed;
}
