/* SPDX-License-Identifier: Apache-2.0 */
/* Known rows inside a zero-filled tensor of the original shape; the cache and its bounds. */
#include "workers/constant_rows.h"

#include "worker_fixture.h"

enum { WIDTH = 24, OUT = 20, VOCABULARY = 8 };

/* linear with bias, GELU, linear: what a prompt encoder looks like. */
static void chain_make(struct fixture *f)
{
    fixture_start(f, BLOCK_LOOKUP, DT_F32, VOCABULARY, WIDTH);
    fixture_tensor(f, "up.weight", DT_F32, 32, WIDTH, 0.3);
    fixture_tensor(f, "up.bias", DT_F32, 32, 0, 0.3);
    fixture_tensor(f, "down.weight", DT_F32, OUT, 32, 0.3);
    uint32_t up = fixture_node(f, OP_LINEAR, "up", 1, "up.weight", "up.bias");
    uint32_t act = fixture_node(f, OP_GELU_ERF, "act", up, NULL, NULL);
    uint32_t down = fixture_node(f, OP_LINEAR, "down", act, "down.weight", NULL);
    fixture_output(f, "output", down);
    f->opts.kernels = fixture_kernels(NULL);
    f->opts.bulk_rows = 8;
    f->opts.validation_rows = 5;
    CHECK_OK(fixture_open(f, &err));
}

static void chain_free(struct fixture *f)
{
    struct kernels *k = f->opts.kernels;
    fixture_close(f);
    kernels_close(&k);
}

static struct constant_rows *cache_open(struct fixture *f, size_t entries, size_t bytes)
{
    struct constant_rows *c = NULL;
    struct constant_rows_opts opts = {.kernels = f->opts.kernels,
                                      .chain = &f->block,
                                      .weights = f->weights,
                                      .arithmetic = ARITH_LIBRARY,
                                      .max_entries = entries,
                                      .max_bytes = bytes};
    CHECK_OK(constant_rows_open(&opts, &c, &err));
    return c;
}

static const float *embedding_row(struct fixture *f, size_t row)
{
    return (const float *)fixture_find(f, "E")->data + row * WIDTH;
}

/* The same rows by a whole evaluation of the zero-filled tensor. */
static void direct(struct fixture *f, size_t n_total, const struct constant_row *rows, size_t n,
                   enum bias_mode bias, float *out)
{
    struct evaluator *e = NULL;
    struct evaluator_opts opts = {.kernels = f->opts.kernels,
                                  .block = &f->block,
                                  .outputs = f->block.results,
                                  .n_outputs = 1,
                                  .weights = f->weights};
    float *x = calloc(n_total * WIDTH, sizeof *x);
    CU_ASSERT_PTR_NOT_NULL_FATAL(x);
    for (size_t i = 0; i < n; i++)
        memcpy(x + rows[i].index * WIDTH, rows[i].values, WIDTH * sizeof *x);
    struct evaluator_call call = {.n_calls = 1, .m = n_total, .bias = bias};
    CHECK_OK(evaluator_open(&opts, &e, &err));
    CHECK_OK(evaluator_load(e, x, n_total, &err));
    CHECK_OK(evaluator_reserve(e, n_total, &err));
    CHECK_OK(evaluator_run(e, &call, &err));
    const float *y = evaluator_output(e, 0);
    for (size_t i = 0; i < n; i++)
        memcpy(out + i * OUT, y + rows[i].index * OUT, OUT * sizeof *out);
    evaluator_close(&e);
    free(x);
}

static void test_rows_in_their_shape(void)
{
    struct fixture f;
    chain_make(&f);
    struct constant_rows *c = cache_open(&f, 16, 1 << 20);
    const uint64_t shapes[][4] = {{0}, {37}, {3, 13}, {2, 3, 5}, {1, 2, 2, 9}};
    for (unsigned rank = 0; rank < 5; rank++) {
        size_t total = 1;
        for (unsigned d = 0; d < rank; d++)
            total *= (size_t)shapes[rank][d];
        struct constant_row rows[3] = {{0, embedding_row(&f, 2)},
                                       {total / 2, embedding_row(&f, 5)},
                                       {total - 1, embedding_row(&f, 7)}};
        size_t n = rank == 0 ? 1 : 3;
        struct constant_rows_call call = {shapes[rank], rank, rows, n};
        float got[3 * OUT], again[3 * OUT], expected[3 * OUT];
        CHECK_OK(constant_rows_evaluate(c, &call, 0, got, sizeof got, &err));
        CHECK_OK(constant_rows_evaluate(c, &call, 0, again, sizeof again, &err));
        direct(&f, total, rows, n, rank == 1 || rank == 2 ? BIAS_PREFILLED : BIAS_ADDED, expected);
        CU_ASSERT_EQUAL(memcmp(got, expected, n * OUT * sizeof *got), 0);
        CU_ASSERT_EQUAL(memcmp(again, expected, n * OUT * sizeof *got), 0);
        /* A copy: writing into it does not reach the cache. */
        memset(again, 0, sizeof again);
        CHECK_OK(constant_rows_evaluate(c, &call, 0, again, sizeof again, &err));
        CU_ASSERT_EQUAL(memcmp(again, expected, n * OUT * sizeof *got), 0);
    }
    CU_ASSERT_EQUAL(constant_rows_count(c).misses, 5);
    CU_ASSERT_EQUAL(constant_rows_count(c).hits, 10);
    constant_rows_close(&c);
    chain_free(&f);
}

static void test_keys(void)
{
    struct fixture f;
    chain_make(&f);
    struct constant_rows *c = cache_open(&f, 16, 1 << 20);
    float out[2 * OUT], changed[2 * OUT];
    struct constant_row rows[2] = {{1, embedding_row(&f, 0)}, {4, embedding_row(&f, 1)}};
    const uint64_t flat[] = {6}, matrix[] = {2, 3};
    struct constant_rows_call call = {flat, 1, rows, 2};
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    call = (struct constant_rows_call){matrix, 2, rows, 2}; /* another shape of as many rows */
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    rows[1].index = 5; /* another position */
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    rows[1].values = embedding_row(&f, 3); /* another vector */
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    CU_ASSERT_EQUAL(constant_rows_count(c).misses, 4);
    CU_ASSERT_EQUAL(constant_rows_count(c).hits, 0);
    CU_ASSERT_EQUAL(constant_rows_count(c).entries, 4);
    /* A weight changed in place: nothing older survives. */
    ((float *)fixture_find(&f, "down.weight")->data)[7] += 1.0f;
    CHECK_OK(constant_rows_evaluate(c, &call, 0, changed, sizeof changed, &err));
    CU_ASSERT_NOT_EQUAL(memcmp(out, changed, sizeof out), 0);
    CU_ASSERT_EQUAL(constant_rows_count(c).misses, 5);
    CU_ASSERT_EQUAL(constant_rows_count(c).entries, 1);
    constant_rows_close(&c);
    chain_free(&f);
}

static void test_bounds(void)
{
    struct fixture f;
    chain_make(&f);
    struct constant_rows *c = cache_open(&f, 2, 1 << 20);
    float out[OUT];
    const uint64_t shape[] = {9};
    struct constant_row row = {0, embedding_row(&f, 0)};
    struct constant_rows_call call = {shape, 1, &row, 1};
    for (row.index = 0; row.index < 3; row.index++) {
        CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
        if (row.index == 1) { /* touch 0 again, so that 1 is the least recently used */
            row.index = 0;
            CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
            row.index = 1;
        }
    }
    CU_ASSERT_EQUAL(constant_rows_count(c).entries, 2);
    CU_ASSERT_EQUAL(constant_rows_count(c).evictions, 1);
    row.index = 0;
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    CU_ASSERT_EQUAL(constant_rows_count(c).hits, 2);
    row.index = 1;
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    CU_ASSERT_EQUAL(constant_rows_count(c).misses, 4);
    size_t one = constant_rows_count(c).bytes / 2;
    constant_rows_limit(c, 2, one); /* bytes bound too */
    CU_ASSERT_EQUAL(constant_rows_count(c).entries, 1);
    CU_ASSERT(constant_rows_count(c).bytes <= one);
    constant_rows_limit(c, 2, one - 1);
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    CU_ASSERT_EQUAL(constant_rows_count(c).entries, 0);
    constant_rows_limit(c, 4, 1 << 20);
    CHECK_OK(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err));
    constant_rows_clear(c);
    CU_ASSERT_EQUAL(constant_rows_count(c).entries, 0);
    CU_ASSERT_EQUAL(constant_rows_count(c).bytes, 0);
    constant_rows_close(&c);
    chain_free(&f);
}

static void test_misuse(void)
{
    struct fixture f;
    chain_make(&f);
    struct constant_rows *c = cache_open(&f, 2, 1 << 20);
    float out[2 * OUT];
    memset(out, 0x5a, sizeof out);
    const uint64_t shape[] = {3}, huge[] = {UINT64_MAX, 4};
    struct constant_row rows[2] = {{2, embedding_row(&f, 0)}, {2, embedding_row(&f, 1)}};
    struct constant_rows_call call = {shape, 1, rows, 2};
    CHECK_FAULT(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err), ST_USAGE, "ascend");
    rows[1].index = 3;
    CHECK_FAULT(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err), ST_USAGE, "below 3");
    rows[0].index = 0;
    rows[1].index = 1;
    CHECK_FAULT(constant_rows_evaluate(c, &call, 0, out, 8, &err), ST_USAGE, "room for");
    CHECK_FAULT(constant_rows_evaluate(c, &call, 1, out, sizeof out, &err), ST_USAGE, "output 1");
    call = (struct constant_rows_call){huge, 2, rows, 2};
    CHECK_FAULT(constant_rows_evaluate(c, &call, 0, out, sizeof out, &err), ST_USAGE, "overflows");
    for (size_t i = 0; i < sizeof out; i++)
        CU_ASSERT_EQUAL(((const unsigned char *)out)[i], 0x5a);
    constant_rows_close(&c);
    chain_free(&f);
}

int main(void)
{
    const struct fixture_test tests[] = {{"rows in their shape", test_rows_in_their_shape},
                                         {"keys", test_keys},
                                         {"bounds", test_bounds},
                                         {"misuse", test_misuse}};
    return fixture_main("constant_rows", tests, N_OF(tests));
}
