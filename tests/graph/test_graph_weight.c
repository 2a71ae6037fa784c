/* SPDX-License-Identifier: Apache-2.0 */
/* Slices and orientations of stored tensors (N29, N30). */
#include "tests/graph/graph_fixture.h"

/* A weight over a tensor of rank `rank`; the shape must be possible. */
static struct graph_weight shaped(struct graph_weight w, unsigned rank, uint64_t d0, uint64_t d1)
{
    struct err err = {0};
    w.tensor = (char[]){"w"};
    w.where = (char[]){"block.w"};
    enum status st = graph_weight_shape(&w, rank, (const uint64_t[]){d0, d1}, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    w.tensor = NULL;
    w.where = NULL;
    return w;
}

static void gathers(struct graph_weight w, unsigned rank, uint64_t d0, uint64_t d1,
                    const float *stored, uint64_t rows, uint64_t cols, const float *expected)
{
    float dst[64];
    w = shaped(w, rank, d0, d1);
    CU_ASSERT_EQUAL(w.rows, rows);
    CU_ASSERT_EQUAL(w.cols, cols);
    if (w.rows != rows || w.cols != cols)
        return;
    memset(dst, 0xff, sizeof dst);
    graph_weight_gather(&w, stored, sizeof *dst, dst);
    CU_ASSERT_EQUAL(memcmp(dst, expected, rows * cols * sizeof *dst), 0);
    /* not one element more */
    uint32_t behind;
    memcpy(&behind, &dst[rows * cols], sizeof behind);
    CU_ASSERT_EQUAL(behind, 0xffffffffu);
}

#define F(...) ((const float[]){__VA_ARGS__})

static void test_orientation(void)
{
    struct graph_weight plain = {0}, in_out = {.in_out = true};
    gathers(plain, 2, 2, 2, F(1, 2, 3, 4), 2, 2, F(1, 2, 3, 4));
    gathers(in_out, 2, 2, 2, F(1, 2, 3, 4), 2, 2, F(1, 3, 2, 4));
    gathers(in_out, 2, 2, 3, F(1, 2, 3, 4, 5, 6), 3, 2, F(1, 4, 2, 5, 3, 6));
    gathers(plain, 1, 3, 0, F(1, 2, 3), 3, 1, F(1, 2, 3));
    /* x = [1, 10]: out_in [21, 43], in_out [31, 42] */
    struct graph_weight w = shaped(in_out, 2, 2, 2);
    float t[4];
    graph_weight_gather(&w, F(1, 2, 3, 4), sizeof *t, t);
    CU_ASSERT_EQUAL(t[0] * 1 + t[1] * 10, 31);
    CU_ASSERT_EQUAL(t[2] * 1 + t[3] * 10, 42);
    CU_ASSERT(!graph_weight_is_plain(&w));
    w = shaped(plain, 2, 2, 2);
    CU_ASSERT(graph_weight_is_plain(&w));
}

/* The NEEDS numbers: fused rows 1..6, two heads of dimension 1. */
static void test_fused(void)
{
    static const float expected[2][3][2] = {{{1, 2}, {3, 4}, {5, 6}}, {{1, 4}, {2, 5}, {3, 6}}};
    const float *rows = F(1, 2, 3, 4, 5, 6);
    for (uint32_t part = 0; part < 3; part++) {
        struct graph_weight blocks = {.split = SPLIT_BLOCKS, .part = part, .n_parts = 3};
        struct graph_weight interleaved = {.split = SPLIT_PER_HEAD_INTERLEAVED,
                                           .part = part,
                                           .heads = 2,
                                           .kv_heads = 2,
                                           .head_dim = 1};
        struct graph_weight range = {
            .split = SPLIT_BLOCKS, .slice_first = 2 * (uint64_t)part, .slice_count = 2};
        gathers(blocks, 2, 6, 1, rows, 2, 1, expected[0][part]);
        gathers(range, 2, 6, 1, rows, 2, 1, expected[0][part]);
        gathers(interleaved, 2, 6, 1, rows, 2, 1, expected[1][part]);
        gathers(interleaved, 1, 6, 0, rows, 2, 1, expected[1][part]); /* its bias */
        /* stored [in, out]: the same rows as columns of one row */
        blocks.in_out = interleaved.in_out = true;
        gathers(blocks, 2, 1, 6, rows, 2, 1, expected[0][part]);
        gathers(interleaved, 2, 1, 6, rows, 2, 1, expected[1][part]);
    }
}

/* Grouped heads: 4 query heads in 2 groups of dimension 1 are stored q q k v, q q k v. */
static void test_grouped(void)
{
    static const uint64_t counts[3] = {4, 2, 2};
    const float *rows = F(0, 1, 2, 3, 4, 5, 6, 7);
    const float *expected[3] = {F(0, 1, 4, 5), F(2, 6), F(3, 7)};
    for (uint32_t part = 0; part < 3; part++) {
        struct graph_weight w = {.split = SPLIT_PER_HEAD_INTERLEAVED,
                                 .part = part,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .head_dim = 1};
        gathers(w, 2, 8, 1, rows, counts[part], 1, expected[part]);
    }
    struct graph_weight two = {
        .split = SPLIT_PER_HEAD_INTERLEAVED, .part = 1, .heads = 2, .kv_heads = 2, .head_dim = 2};
    gathers(two, 2, 12, 1, F(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), 4, 1, F(2, 3, 8, 9));
}

/* Columns of [out, in], in both ways of storage. */
static void test_columns(void)
{
    struct graph_weight w = {
        .split = SPLIT_BLOCKS, .split_inputs = true, .slice_first = 1, .slice_count = 2};
    gathers(w, 2, 2, 4, F(0, 1, 2, 3, 10, 11, 12, 13), 2, 2, F(1, 2, 11, 12));
    w.in_out = true;
    gathers(w, 2, 4, 2, F(0, 10, 1, 11, 2, 12, 3, 13), 2, 2, F(1, 2, 11, 12));
    /* beyond one tile of the transposition, elements of 2 and 8 bytes */
    enum { ROWS = 70, COLS = 45 };
    static uint16_t stored[ROWS * COLS], half[ROWS * COLS];
    static double wide_stored[ROWS * COLS], wide[ROWS * COLS];
    for (size_t i = 0; i < ROWS * COLS; i++) {
        stored[i] = (uint16_t)i;
        wide_stored[i] = (double)i;
    }
    struct graph_weight all = shaped((struct graph_weight){.in_out = true}, 2, ROWS, COLS);
    graph_weight_gather(&all, stored, sizeof *stored, half);
    graph_weight_gather(&all, wide_stored, sizeof *wide_stored, wide);
    size_t wrong = 0;
    for (size_t o = 0; o < COLS; o++)
        for (size_t i = 0; i < ROWS; i++)
            wrong +=
                half[o * ROWS + i] != i * COLS + o || wide[o * ROWS + i] != (double)(i * COLS + o);
    CU_ASSERT_EQUAL(wrong, 0);
}

static void refused(struct graph_weight w, unsigned rank, uint64_t d0, uint64_t d1,
                    const char *part)
{
    struct err err = {0};
    w.tensor = (char[]){"fused"};
    w.where = (char[]){"block.layers[0].weight"};
    CU_ASSERT_EQUAL(graph_weight_shape(&w, rank, (const uint64_t[]){d0, d1, 1}, &err), ST_SPEC);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, "block.layers[0].weight: "));
}

static void test_impossible(void)
{
    struct graph_weight parts = {.split = SPLIT_BLOCKS, .part = 0, .n_parts = 3};
    refused(parts, 2, 7, 2, "part 0 of 3 equal parts of tensor fused, found 7 rows");
    struct graph_weight range = {.split = SPLIT_BLOCKS, .slice_first = 5, .slice_count = 2};
    refused(range, 2, 6, 2, "rows 5 to 7 of tensor fused, found 6 rows");
    range.slice_first = UINT64_MAX;
    refused(range, 2, 6, 2, "found 6 rows");
    range = (struct graph_weight){
        .split = SPLIT_BLOCKS, .slice_first = 0, .slice_count = 9, .split_inputs = true};
    refused(range, 2, 6, 8, "columns 0 to 9 of tensor fused, found 8 columns");
    refused(range, 1, 9, 0, "axis in needs a matrix");
    struct graph_weight heads = {
        .split = SPLIT_PER_HEAD_INTERLEAVED, .part = 0, .heads = 4, .kv_heads = 2, .head_dim = 2};
    refused(heads, 2, 18, 2, "2 groups of (2 + 2) heads of 2 rows in tensor fused, found 18 rows");
    heads.kv_heads = 3;
    refused(heads, 2, 16, 2, "heads must be a multiple of kv_heads");
    /* 2^32 - 1 heads of 2^32 - 1 rows do not wrap into a small number */
    heads = (struct graph_weight){.split = SPLIT_PER_HEAD_INTERLEAVED,
                                  .heads = UINT32_MAX,
                                  .kv_heads = UINT32_MAX,
                                  .head_dim = UINT32_MAX};
    refused(heads, 2, 3, 1, "found 3 rows");
    struct graph_weight by_heads = {.split = SPLIT_BLOCKS,
                                    .slice_first = 0,
                                    .slice_count = 4,
                                    .heads = 2,
                                    .kv_heads = 1,
                                    .head_dim = 2};
    refused(by_heads, 2, 9, 1, "(2 + 2 x 1) heads of 2 rows in tensor fused, found 9 rows");
    refused((struct graph_weight){0}, 3, 2, 2, "has 3 dimensions, expected 1 or 2");
    refused((struct graph_weight){0}, 0, 0, 0, "has 0 dimensions, expected 1 or 2");
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"orientation", test_orientation}, {"fused", test_fused},
        {"grouped", test_grouped},         {"columns", test_columns},
        {"impossible", test_impossible},
    };
    return fixture_run("graph weight", cases, sizeof cases / sizeof cases[0]);
}
