/* SPDX-License-Identifier: Apache-2.0 */
/* The map from layouts to execution classes. */
#include "worker_fixture.h"

static struct kernels *kernels;

struct expected_class {
    const char *name, *layouts; /* joined by spaces and '|' */
    uint64_t rows;
    enum bias_mode bias;
};

static void check_classes(struct fixture *f, const struct expected_class *expected, size_t n)
{
    CHECK_OK(fixture_open(f, &err));
    CU_ASSERT_EQUAL(worker_n_classes(f->worker), n);
    for (size_t i = 0; i < worker_n_classes(f->worker); i++) {
        const struct worker_class *c = worker_class_at(f->worker, i);
        char layouts[512] = "";
        for (size_t j = 0; j < c->n_layouts; j++)
            (void)snprintf(layouts + strlen(layouts), sizeof layouts - strlen(layouts), "%s%s",
                           j == 0 ? "" : " | ", c->layouts[j]);
        const bool same = i < n && strcmp(c->name, expected[i].name) == 0 &&
                          strcmp(layouts, expected[i].layouts) == 0 &&
                          c->rows == expected[i].rows && c->bias == expected[i].bias;
        if (!same)
            printf("\n  class %zu: %s, %llu rows, bias %d: %s\n", i, c->name,
                   (unsigned long long)c->rows, (int)c->bias, layouts);
        CU_ASSERT(same);
    }
    CU_ASSERT_EQUAL(worker_n_stats(f->worker), n * f->block.n_results * worker_n_routes(f->worker));
    CU_ASSERT_EQUAL(worker_stat_index(f->worker, n - 1, f->block.n_results - 1,
                                      worker_n_routes(f->worker) - 1) +
                        1,
                    worker_n_stats(f->worker));
    fixture_close(f);
}

static void test_no_profiles(void)
{
    static const struct expected_class expected[] = {
        {"chunk", "(n) | (1,n) | (n,1)", 5, BIAS_PREFILLED},
        {"chunk added", "(1,1,n)", 5, BIAS_ADDED},
        {"expanded", "(1,n) expanded to (2,n)", 10, BIAS_PREFILLED},
        {"padded", "(n) short, filled by repeating", 5, BIAS_PREFILLED},
        {"single added", "scalar", 1, BIAS_ADDED}};
    struct fixture f;
    fixture_fanout(&f, kernels, DT_F32, 12, true);
    check_classes(&f, expected, N_OF(expected));
}

static void test_profiles(void)
{
    static const struct expected_class expected[] = {
        {"chunk", "(n) | (1,n) | (n,1)", 5, BIAS_PREFILLED},
        {"chunk added", "(1,1,n)", 5, BIAS_ADDED},
        {"expanded", "(1,n) expanded to (2,n)", 10, BIAS_PREFILLED},
        {"padded", "(n) short, filled by repeating", 5, BIAS_PREFILLED},
        {"single added", "scalar | (1,1,1)", 1, BIAS_ADDED},
        {"single", "(1) | (1,1) | mixed (1)", 1, BIAS_PREFILLED},
        {"repeated 2", "repeated (2) | repeated (1,2)", 2, BIAS_PREFILLED},
        {"repeated 7", "repeated (7) | repeated (1,7)", 7, BIAS_PREFILLED},
        {"repeated 8", "repeated (8) | repeated (1,8)", 8, BIAS_PREFILLED},
        {"mixed 2", "mixed (2)", 2, BIAS_PREFILLED},
        {"mixed 6", "mixed (6)", 6, BIAS_PREFILLED},
        {"mixed 7", "mixed (7)", 7, BIAS_PREFILLED},
        {"mixed 8", "mixed (8)", 8, BIAS_PREFILLED}};
    struct fixture f;
    fixture_fanout(&f, kernels, DT_F32, 12, true);
    fixture_profiles(&f);
    check_classes(&f, expected, N_OF(expected));
}

/* Without a bias prefilled and added are one. */
static void test_no_bias(void)
{
    static const struct expected_class expected[] = {
        {"chunk", "(n) | (1,n) | (n,1) | (1,1,n)", 5, BIAS_PREFILLED},
        {"expanded", "(1,n) expanded to (2,n)", 10, BIAS_PREFILLED},
        {"padded", "(n) short, filled by repeating", 5, BIAS_PREFILLED},
        {"single", "scalar | (1) | (1,1) | (1,1,1) | mixed (1)", 1, BIAS_PREFILLED},
        {"repeated 3", "repeated (3) | repeated (1,3)", 3, BIAS_PREFILLED},
        {"repeated 4", "repeated (4) | repeated (1,4)", 4, BIAS_PREFILLED},
        {"mixed 2", "mixed (2)", 2, BIAS_PREFILLED},
        {"mixed 3", "mixed (3)", 3, BIAS_PREFILLED},
        {"mixed 4", "mixed (4)", 4, BIAS_PREFILLED}};
    static const struct worker_profile profile[] = {{3, 2}};
    struct fixture f;
    fixture_fanout(&f, kernels, DT_F32, 12, false);
    f.opts.profiles = profile;
    f.opts.n_profiles = 1;
    check_classes(&f, expected, N_OF(expected));
}

/* Chunks of one row are single calls, and twice one row is that row repeated. */
static void test_one_row(void)
{
    static const struct expected_class expected[] = {
        {"single",
         "(n) | (1,n) | (n,1) | (1,1,n) | (n) short, filled by repeating | scalar | (1) | (1,1) | "
         "(1,1,1) | mixed (1)",
         1, BIAS_PREFILLED},
        {"repeated 2", "(1,n) expanded to (2,n) | repeated (2) | repeated (1,2)", 2,
         BIAS_PREFILLED},
        {"mixed 2", "mixed (2)", 2, BIAS_PREFILLED}};
    static const struct worker_profile profile[] = {{1, 1}};
    struct fixture f;
    fixture_fanout(&f, kernels, DT_F32, 12, false);
    f.opts.profiles = profile;
    f.opts.n_profiles = 1;
    f.opts.validation_rows = 1;
    check_classes(&f, expected, N_OF(expected));
}

/* No linear: the row count cannot matter, so one class stands for all. */
static void test_no_linear(void)
{
    static const struct expected_class expected[] = {
        {"single",
         "(n) | (1,n) | (n,1) | (1,1,n) | (1,n) expanded to (2,n) | (n) short, filled by repeating "
         "| scalar | (1) | (1,1) | (1,1,1) | repeated (m) | repeated (1,m) | mixed (m)",
         1, BIAS_PREFILLED}};
    struct fixture f;
    fixture_start(&f, BLOCK_LOOKUP, DT_F32, 9, 4);
    f.opts.kernels = kernels;
    fixture_output(&f, "output", fixture_node(&f, OP_TANH, "tanh", 1, NULL, NULL));
    fixture_profiles(&f);
    check_classes(&f, expected, N_OF(expected));
}

static void test_routes(void)
{
    struct fixture f;
    fixture_fanout(&f, kernels, DT_F32, 12, true);
    fixture_profiles(&f);
    CHECK_OK(fixture_open(&f, &err));
    CU_ASSERT_EQUAL(worker_n_routes(f.worker), 3);
    CU_ASSERT_EQUAL(worker_route(f.worker, 1), 1);
    CU_ASSERT_EQUAL(worker_route(f.worker, 2), 2);
    CU_ASSERT_EQUAL(worker_route(f.worker, 7), 2);
    CU_ASSERT_EQUAL(worker_route(f.worker, 8), 0);
    CU_ASSERT_EQUAL(worker_route(f.worker, UINT64_MAX), 0);
    fixture_close(&f);
}

static void test_refusals(void)
{
    static const struct worker_profile bad[][2] = {
        {{0, 0}, {2, 1}}, {{3, 4}, {9, 1}}, {{3, 1}, {3, 1}}, {{3, 0}, {4, 1}}};
    for (size_t i = 0; i < N_OF(bad); i++) {
        struct fixture f;
        fixture_fanout(&f, kernels, DT_F32, 12, true);
        f.opts.profiles = bad[i];
        f.opts.n_profiles = 2;
        CHECK_FAULT(fixture_open(&f, &err), ST_USAGE, "profile");
        CU_ASSERT_PTR_NULL(f.worker);
        fixture_close(&f);
    }
    struct fixture f;
    fixture_fanout(&f, kernels, DT_F32, 12, true);
    f.opts.bulk_rows = 0;
    CHECK_FAULT(fixture_open(&f, &err), ST_USAGE, "bulk_rows");
    fixture_close(&f);
}

int main(void)
{
    static const struct fixture_test tests[] = {
        {"no profiles", test_no_profiles}, {"profiles", test_profiles},   {"no bias", test_no_bias},
        {"one row", test_one_row},         {"no linear", test_no_linear}, {"routes", test_routes},
        {"refusals", test_refusals}};
    kernels = fixture_kernels(NULL);
    const int failed = fixture_main("workers classes", tests, N_OF(tests));
    kernels_close(&kernels);
    return failed;
}
