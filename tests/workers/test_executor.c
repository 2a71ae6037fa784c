/* SPDX-License-Identifier: Apache-2.0 */
/* The executor's ops on small numbers: values worked out by hand or by plain loops in double. */
#include "tests/workers/executor_fixture.h"

#define IDS "'inputs': [{'name': 'ids', 'kind': 'token_ids'}], "
#define VALUES(names) "'inputs': [" names "], "
#define FLOATS(name) "{'name': '" name "', 'kind': 'values'}"
#define OUT "'outputs': [{'name': 'out', 'node': 'y'}]}"
static const struct fixture_tensor no_tensors[1];

/* ---- gathering and linear -------------------------------------------------------------------- */

static const float table[] = {1, 2, 3, 4, -1, 0, 0.5f, -2}; /* [4, 2] */
static const float weight[] = {1, 1, 1, -1, 2, 0};          /* [3, 2] */
static const float bias[] = {0.5f, 0, -1};
static const struct fixture_tensor small[FIXTURE_TENSORS] = {{"emb", DT_F32, 2, {4, 2}, table},
                                                             {"w", DT_F32, 2, {3, 2}, weight},
                                                             {"b", DT_F32, 1, {3}, bias}};

static void test_embedding_linear(void)
{
    struct fixture_model m =
        fixture_open("{" IDS "'nodes': [{'name': 'e', 'op': 'embedding', 'inputs': ['ids'], "
                     "'weight': 'emb'}, {'name': 'y', 'op': 'linear', 'inputs': ['e'], "
                     "'weight': 'w', 'bias': 'b'}], " OUT,
                     small);
    const int64_t ids[] = {3, 0, 1};
    const float expected[] = {-1, 2.5f, 0, 3.5f, -1, 1, 7.5f, -1, 5};
    struct executor_array in = fixture_i64(ids, SHAPE(1, 3));
    fixture_expect(fixture_run(&m, &in, 1), expected, 0, SHAPE(1, 3, 3));
    in = fixture_i64(ids, 0, NULL); /* a scalar */
    fixture_expect(fixture_run(&m, &in, 1), expected, 0, SHAPE(3));
    in = fixture_i64(ids, SHAPE(3, 0, 2));
    fixture_expect(fixture_run(&m, &in, 1), NULL, 0, SHAPE(3, 0, 2, 3));
    const int32_t narrow[] = {3, 0, 1};
    in = fixture_f32((const float *)(const void *)narrow, SHAPE(3));
    in.dtype = DT_I32;
    fixture_expect(fixture_run(&m, &in, 1), expected, 0, SHAPE(3, 3));
    const int64_t outside[] = {0, 4};
    in = fixture_i64(outside, SHAPE(2));
    fixture_refused(&m, &in, 1, ST_FORMAT, "input ids: element 1 is id 4, expected ids from 0");
    const float none[] = {0};
    in = fixture_f32(none, SHAPE(1));
    fixture_refused(&m, &in, 1, ST_FORMAT, "input ids: expected I64, found F32");
    fixture_close(&m);
}

/* The bias is prefilled or added as the rank says: other bits once K is large enough. */
static void test_bias_modes(void)
{
    enum { K = 1500, N = 17 };
    static float w[N * K], b[N], x[8 * K];
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"w", DT_F32, 2, {N, K}, w},
                                                      {"b", DT_F32, 1, {N}, b}};
    const unsigned ranks[] = {1, 2, 3, 4};
    const uint64_t shapes[][4] = {{K}, {8, K}, {2, 4, K}, {1, 2, 4, K}};
    const size_t rows[] = {1, 8, 8, 8};
    fixture_fill(w, N * K, 1);
    fixture_fill(b, N, 2);
    fixture_fill(x, 8 * K, 3);
    struct fixture_model m =
        fixture_open("{" VALUES(FLOATS("x")) "'nodes': [{'name': 'y', 'op': 'linear', 'inputs': "
                                             "['x'], 'weight': 'w', 'bias': 'b'}], " OUT,
                     tensors);
    for (size_t i = 0; i < 4; i++) {
        struct kernels_linear *l = NULL;
        float y[8 * N];
        struct executor_array in = fixture_f32(x, ranks[i], shapes[i]);
        struct executor_array out = fixture_run(&m, &in, 1);
        CU_ASSERT_EQUAL(
            kernels_linear_open(fixture_kernels(), ARITH_LIBRARY, DT_F32, N, K, w, b, &l, NULL),
            ST_OK);
        CU_ASSERT_EQUAL(kernels_linear_run(
                            l, rows[i], x,
                            ranks[i] == 2 || ranks[i] == 3 ? BIAS_PREFILLED : BIAS_ADDED, y, NULL),
                        ST_OK);
        CU_ASSERT_EQUAL(memcmp(out.data, y, rows[i] * N * sizeof *y), 0);
        kernels_linear_close(&l);
        executor_array_free(&out);
    }
    fixture_close(&m);
}

/* A slice that leaves no gaps is as contiguous as what it was cut from. */
static void test_bias_of_slices(void)
{
    enum { K = 1500, N = 17, ROWS = 4 };
    static float w[N * K], b[N], x[2 * (ROWS + 1) * K], cut[2 * ROWS * K];
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"w", DT_F32, 2, {N, K}, w},
                                                      {"b", DT_F32, 1, {N}, b}};
    fixture_fill(w, N * K, 1);
    fixture_fill(b, N, 2);
    fixture_fill(x, 2 * (ROWS + 1) * K, 3);
    for (size_t i = 0; i < 2; i++)
        memcpy(cut + i * ROWS * K, x + i * (ROWS + 1) * K, ROWS * K * sizeof *x);
    struct fixture_model m = fixture_open(
        "{" VALUES(FLOATS("x")) "'nodes': [{'name': 's', 'op': 'slice', 'inputs': ['x'], 'axis': "
                                "1, 'stop': 4}, {'name': 'y', 'op': 'linear', 'inputs': ['s'], "
                                "'weight': 'w', 'bias': 'b'}], " OUT,
        tensors);
    for (size_t batch = 1; batch <= 2; batch++) {
        struct kernels_linear *l = NULL;
        float y[2 * ROWS * N];
        struct executor_array in = fixture_f32(x, SHAPE(batch, ROWS + 1, K));
        struct executor_array out = fixture_run(&m, &in, 1);
        CU_ASSERT_EQUAL(
            kernels_linear_open(fixture_kernels(), ARITH_LIBRARY, DT_F32, N, K, w, b, &l, NULL),
            ST_OK);
        CU_ASSERT_EQUAL(kernels_linear_run(l, batch * ROWS, cut,
                                           batch == 1 ? BIAS_PREFILLED : BIAS_ADDED, y, NULL),
                        ST_OK);
        CU_ASSERT_EQUAL(memcmp(out.data, y, batch * ROWS * N * sizeof *y), 0);
        kernels_linear_close(&l);
        executor_array_free(&out);
    }
    fixture_close(&m);
}

/* ---- two operands ---------------------------------------------------------------------------- */

#define TWO(op)                                                                                    \
    "{" VALUES(FLOATS("a") ", " FLOATS("b")) "'nodes': [{'name': 'y', 'op': '" op                  \
                                             "', 'inputs': ['a', 'b']}], " OUT

static void test_broadcast(void)
{
    const float a[] = {1, 2, 3, 4, 5, 6}, b[] = {10, 20}, c[] = {2, 3, 4};
    struct fixture_model m = fixture_open(TWO("add"), no_tensors);
    struct executor_array in[2] = {fixture_f32(a, SHAPE(3, 2)), fixture_f32(b, SHAPE(2))};
    fixture_expect(fixture_run(&m, in, 2), (const float[]){11, 22, 13, 24, 15, 26}, 0, SHAPE(3, 2));
    in[0] = fixture_f32(c, SHAPE(3, 1));
    in[1] = fixture_f32(b, SHAPE(1, 2));
    fixture_expect(fixture_run(&m, in, 2), (const float[]){12, 22, 13, 23, 14, 24}, 0, SHAPE(3, 2));
    in[0] = fixture_f32(a, SHAPE(2, 3));
    in[1] = fixture_f32(b, SHAPE(2));
    fixture_refused(&m, in, 2, ST_STRUCTURE, "shapes (2, 3) and (2) do not fit each other");
    in[0] = fixture_f32(a, SHAPE(0, 2));
    in[1] = fixture_f32(b, SHAPE(2));
    fixture_expect(fixture_run(&m, in, 2), NULL, 0, SHAPE(0, 2));
    fixture_close(&m);
    m = fixture_open(TWO("mul"), no_tensors);
    in[0] = fixture_f32(a, SHAPE(3, 2));
    in[1] = fixture_f32(c, SHAPE(3, 1));
    fixture_expect(fixture_run(&m, in, 2), (const float[]){2, 4, 9, 12, 20, 24}, 0, SHAPE(3, 2));
    fixture_close(&m);
    m = fixture_open(TWO("sub"), no_tensors);
    in[0] = fixture_f32(b, SHAPE(2));
    in[1] = fixture_f32(b, SHAPE(1, 2));
    fixture_expect(fixture_run(&m, in, 2), (const float[]){0, 0}, 0, SHAPE(1, 2));
    fixture_close(&m);
}

static void test_masked_softmax(void)
{
    struct fixture_model m = fixture_open(
        "{'inputs': [" FLOATS(
            "x") ", {'name': 'mask', 'kind': 'mask', 'dtype': 'BOOL'}], 'nodes': [{'name': 'y', "
                 "'op': 'softmax', 'inputs': ['x', 'mask']}], " OUT,
        no_tensors);
    const float x[] = {0, 100, 0, 1, 1, 1};
    const uint8_t mask[] = {1, 0, 1};
    struct executor_array in[2] = {fixture_f32(x, SHAPE(2, 3)),
                                   fixture_f32((const float[]){0}, SHAPE(1))};
    executor_array_free(&in[1]);
    in[1] = (struct executor_array){.dtype = DT_BOOL, .rank = 1, .shape = {3}};
    in[1].data = malloc(3);
    if (in[1].data == NULL)
        abort();
    memcpy(in[1].data, mask, 3);
    fixture_expect(fixture_run(&m, in, 2), (const float[]){0.5f, 0, 0.5f, 0.5f, 0, 0.5f}, 1e-7,
                   SHAPE(2, 3));
    fixture_close(&m);
}

/* ---- row ops --------------------------------------------------------------------------------- */

static void test_row_ops(void)
{
    const float gain[] = {2, 1};
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"g", DT_F32, 1, {2}, gain}};
    struct fixture_model m = fixture_open(
        "{" VALUES(FLOATS("x")) "'nodes': [{'name': 'n', 'op': 'rms_norm', 'inputs': ['x'], "
                                "'weight': 'g', 'eps': 0}, {'name': 'y', 'op': 'relu', 'inputs': "
                                "['n']}], " OUT,
        tensors);
    const float x[] = {3, 4, -1, 1};
    const float r = sqrtf(12.5f);
    struct executor_array in = fixture_f32(x, SHAPE(2, 1, 2));
    fixture_expect(fixture_run(&m, &in, 1), (const float[]){6 / r, 4 / r, 0, 1}, 1e-6,
                   SHAPE(2, 1, 2));
    in = fixture_f32(x, SHAPE(4, 1));
    fixture_refused(&m, &in, 1, ST_STRUCTURE, "columns 1, which the shape of its weights");
    fixture_close(&m);
    m = fixture_open("{" VALUES(FLOATS("x")) "'nodes': [{'name': 'y', 'op': 'l2_norm', 'inputs': "
                                             "['x'], 'eps': 1e-12}], " OUT,
                     no_tensors);
    in = fixture_f32(x, SHAPE(1, 2, 2));
    fixture_expect(fixture_run(&m, &in, 1), (const float[]){5, sqrtf(2)}, 1e-6, SHAPE(1, 2, 1));
    in = fixture_f32(x, SHAPE(2, 0)); /* no columns: eps */
    fixture_expect(fixture_run(&m, &in, 1), (const float[]){1e-12f, 1e-12f}, 0, SHAPE(2, 1));
    fixture_close(&m);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

#define ONE(op) "{" VALUES(FLOATS("x")) "'nodes': [{'name': 'y', 'inputs': ['x'], " op "}], " OUT

static void one(const char *graph, struct executor_array in, const float *values, unsigned rank,
                const uint64_t *shape)
{
    struct fixture_model m = fixture_open(graph, no_tensors);
    fixture_expect(fixture_run(&m, &in, 1), values, 0, rank, shape);
    fixture_close(&m);
}

static void one_refused(const char *graph, struct executor_array in, const char *part)
{
    struct fixture_model m = fixture_open(graph, no_tensors);
    fixture_refused(&m, &in, 1, ST_STRUCTURE, part);
    fixture_close(&m);
}

static void test_shapes(void)
{
    const float x[] = {0, 1, 2, 3, 4, 5};
    one(ONE("'op': 'reshape', 'dims': [3, -1]"), fixture_f32(x, SHAPE(2, 3)), x, SHAPE(3, 2));
    one(ONE("'op': 'reshape', 'dims': [0, 1, -1]"), fixture_f32(x, SHAPE(2, 3)), x, SHAPE(2, 1, 3));
    /* an empty batch: -1 is what the kept axes leave */
    one(ONE("'op': 'reshape', 'dims': [0, -1, 2]"), fixture_f32(x, SHAPE(0, 3, 4)), x,
        SHAPE(0, 6, 2));
    one(ONE("'op': 'reshape', 'dims': [0, 3, -1]"), fixture_f32(x, SHAPE(2, 3, 0)), x,
        SHAPE(2, 3, 0));
    one_refused(ONE("'op': 'reshape', 'dims': [0, -1, 5]"), fixture_f32(x, SHAPE(0, 3, 4)),
                "shape (0, 3, 4) cannot fill dims[1]");
    one_refused(ONE("'op': 'reshape', 'dims': [4, -1]"), fixture_f32(x, SHAPE(2, 3)),
                "shape (2, 3) cannot fill dims[1]");
    one_refused(ONE("'op': 'reshape', 'dims': [5]"), fixture_f32(x, SHAPE(2, 3)),
                "has 6 elements, dims 5");
    one_refused(ONE("'op': 'reshape', 'dims': [-1, -1]"), fixture_f32(x, SHAPE(2, 3)),
                "a second -1");
    one(ONE("'op': 'transpose', 'dims': [1, 0]"), fixture_f32(x, SHAPE(2, 3)),
        (const float[]){0, 3, 1, 4, 2, 5}, SHAPE(3, 2));
    one(ONE("'op': 'transpose', 'dims': [2, 0, 1]"), fixture_f32(x, SHAPE(1, 2, 3)),
        (const float[]){0, 3, 1, 4, 2, 5}, SHAPE(3, 1, 2));
    one_refused(ONE("'op': 'transpose', 'dims': [0, 0]"), fixture_f32(x, SHAPE(2, 3)),
                "each of the 2 axes once");
    one(ONE("'op': 'slice', 'start': -2, 'stop': 3"), fixture_f32(x, SHAPE(2, 3)),
        (const float[]){1, 2, 4, 5}, SHAPE(2, 2));
    one(ONE("'op': 'slice', 'axis': 0, 'stop': 1"), fixture_f32(x, SHAPE(2, 3)), x, SHAPE(1, 3));
    one_refused(ONE("'op': 'slice', 'stop': 4"), fixture_f32(x, SHAPE(2, 3)), "from 0 to 4 of 3");
    one_refused(ONE("'op': 'slice', 'axis': 2, 'stop': 1"), fixture_f32(x, SHAPE(2, 3)),
                "axis 2 of a value with 2 axes");
    one(ONE("'op': 'token_shift'"), fixture_f32(x, SHAPE(3, 2)), (const float[]){0, 0, 0, 1, 2, 3},
        SHAPE(3, 2));
}

static void refused_model(const char *graph, const struct fixture_tensor *tensors,
                          enum status expected, const char *part)
{
    struct fixture_model m;
    struct err err = {0};
    CU_ASSERT_EQUAL(fixture_try(graph, tensors, &m, &err), expected);
    if (strstr(err.message, part) == NULL) {
        printf("\n    expected \"%s\" in: %s\n", part, err.message);
        CU_FAIL("message");
    }
    fixture_close(&m);
}

static void test_concat(void)
{
    const float a[] = {1, 2, 3, 4}, b[] = {5, 6};
    struct fixture_model m = fixture_open(TWO("concat"), no_tensors);
    struct executor_array in[2] = {fixture_f32(a, SHAPE(2, 2)), fixture_f32(b, SHAPE(2, 1))};
    fixture_expect(fixture_run(&m, in, 2), (const float[]){1, 2, 5, 3, 4, 6}, 0, SHAPE(2, 3));
    in[0] = fixture_f32(a, SHAPE(2, 2));
    in[1] = fixture_f32(b, SHAPE(1, 2));
    fixture_refused(&m, in, 2, ST_STRUCTURE, "(2, 2) and (1, 2) cannot be joined along axis 1");
    fixture_close(&m);
    /* elements of other sizes lie beside each other in no array */
    refused_model("{'inputs': [{'name': 'a', 'kind': 'integers'}, {'name': 'b', 'kind': 'mask', "
                  "'dtype': 'BOOL'}], 'nodes': [{'name': 'y', 'op': 'concat', 'inputs': ['a', "
                  "'b']}], " OUT,
                  no_tensors, ST_STRUCTURE, "concat reads b (BOOL) beside a (I64)");
}

/* ---- selections ------------------------------------------------------------------------------ */

static void test_selections(void)
{
    const float x[] = {1, 3, 3, 2, -1, -2, -3, -4};
    one(ONE("'op': 'argmax'"), fixture_f32(x, SHAPE(2, 4)), (const float[]){1, 0}, SHAPE(2));
    one(ONE("'op': 'top_k', 'k': 3"), fixture_f32(x, SHAPE(2, 4)),
        (const float[]){1, 2, 3, 0, 1, 2}, SHAPE(2, 3));
    one(ONE("'op': 'top_k_values', 'k': 2"), fixture_f32(x, SHAPE(2, 4)),
        (const float[]){3, 3, -1, -2}, SHAPE(2, 2));
    one_refused(ONE("'op': 'top_k', 'k': 5"), fixture_f32(x, SHAPE(2, 4)),
                "k 5, expected at most the columns 4");
}

static void test_moe(void)
{
    const float slope[] = {1, 10, 2, 20, 3, 30}, offset[] = {0, 0, 1, 1, 0, 0};
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"s", DT_F32, 2, {3, 2}, slope},
                                                      {"o", DT_F32, 2, {3, 2}, offset}};
    struct fixture_model m = fixture_open(
        "{" VALUES(FLOATS("l") ", " FLOATS("v") ", " FLOATS(
            "m")) "'nodes': [{'name': 'y', 'op': 'moe', 'inputs': ['l', 'v', 'm'], 'slope': 's', "
                  "'offset': 'o', 'k': 2, 'experts': 3}], " OUT,
        tensors);
    const float logits[] = {0, 0, -5, -9, 0, 0}, values[] = {2, 4}, mask[] = {1, 0};
    struct executor_array in[3] = {fixture_f32(logits, SHAPE(1, 2, 3)),
                                   fixture_f32(values, SHAPE(1, 2)),
                                   fixture_f32(mask, SHAPE(1, 2))};
    /* experts 0 and 1, half each: (2 + 5) / 2, (20 + 41) / 2; the second token is masked */
    fixture_expect(fixture_run(&m, in, 3), (const float[]){3.5f, 30.5f, 0, 0}, 1e-5,
                   SHAPE(1, 2, 2));
    in[0] = fixture_f32(logits, SHAPE(2, 3));
    in[1] = fixture_f32(values, SHAPE(1));
    in[2] = fixture_f32(mask, SHAPE(2));
    fixture_refused(&m, in, 3, ST_STRUCTURE, "2 rows of logits, but 1 values");
    fixture_close(&m);
}

/* ---- opening --------------------------------------------------------------------------------- */

static void test_refused_models(void)
{
    refused_model(ONE("'op': 'batch_norm', 'eps': 1"), no_tensors, ST_STRUCTURE,
                  "batch_norm cannot be run");
    refused_model("{'inputs': [{'name': 'x', 'kind': 'integers'}], 'nodes': [{'name': 'y', 'op': "
                  "'relu', 'inputs': ['x']}], " OUT,
                  no_tensors, ST_STRUCTURE, "relu reads x (I64), which is not a value it takes");
    refused_model(ONE("'op': 'lstm', 'weight': 'w', 'gates': 'ifco'"), small, ST_SPEC,
                  "expected [4 h, h]");
    refused_model("{" IDS "'nodes': [{'name': 'y', 'op': 'lookup', 'inputs': ['ids'], 'recipe': "
                  "'r', 'output': 'o'}], " OUT,
                  no_tensors, ST_SPEC, "no recipe r is open");
    refused_model(ONE("'op': 'linear', 'weight': 'b'"), small, ST_SPEC, "expected [out, in]");
    refused_model("{" VALUES(FLOATS("x")) "'nodes': [{'name': 'y', 'op': 'moe', 'inputs': ['x', "
                                          "'x'], 'slope': 'w', 'k': 1, 'experts': 2}], " OUT,
                  small, ST_SPEC, "slope and offset: expected [2, width] both");
}

static void test_narrow_dtype(void)
{
    /* 1 + 2^-9 rounds to 1 in BF16: each op rounds its result. */
    uint16_t narrow[] = {bf16_from_f32(1), bf16_from_f32(0x1p-9f)};
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"emb", DT_BF16, 2, {2, 1}, narrow}};
    struct fixture_model m = fixture_open(
        "{" IDS "'nodes': [{'name': 'e', 'op': 'embedding', 'inputs': ['ids'], 'weight': 'emb'}, "
        "{'name': 't', 'op': 'slice', 'inputs': ['e'], 'axis': 0, 'stop': 1}, "
        "{'name': 'y', 'op': 'add', 'inputs': ['e', 't']}], " OUT,
        tensors);
    struct executor_array in = fixture_i64((const int64_t[]){0, 1}, SHAPE(2));
    struct executor_array out = fixture_run(&m, &in, 1);
    CU_ASSERT_EQUAL(out.dtype, DT_BF16);
    CU_ASSERT_EQUAL(((const uint16_t *)out.data)[0], bf16_from_f32(2));
    CU_ASSERT_EQUAL(((const uint16_t *)out.data)[1], bf16_from_f32(1));
    executor_array_free(&out);
    fixture_close(&m);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static void test_compare(void)
{
    struct executor_difference all = {0};
    struct executor_place place;
    char name[] = "out";
    const struct graph_output plain = {.name = name};
    const struct graph_output top = {.name = name, .decision_top_k = 1};
    struct executor_array a = fixture_f32((const float[]){0.0f, NAN, 3, 4}, SHAPE(2, 2));
    struct executor_array b = fixture_f32((const float[]){-0.0f, NAN, 3.5f, 3}, SHAPE(2, 2));
    CU_ASSERT_EQUAL(executor_compare(&plain, &a, &b, &all, &place, NULL), ST_OK);
    CU_ASSERT(place.same_form && place.index == 3 && place.a == 4 && place.b == 3);
    CU_ASSERT(all.unequal == 2 && all.unequal_bytes == 3 && all.elements == 4 && all.max_abs == 1);
    CU_ASSERT_DOUBLE_EQUAL(all.max_rel, sqrt(1.25) / 5, 1e-12);
    CU_ASSERT_EQUAL(executor_compare(&top, &a, &b, &all, &place, NULL), ST_OK);
    CU_ASSERT(place.decisions_changed == 1 && all.decisions == 2 && all.decisions_changed == 1);
    ((float *)b.data)[1] = 1;
    CU_ASSERT_EQUAL(executor_compare(&plain, &a, &b, &all, &place, NULL), ST_OK);
    CU_ASSERT(isinf(place.max_abs) && isinf(all.max_abs) && place.index == 1);
    b.rank = 1;
    b.shape[0] = 4;
    CU_ASSERT_EQUAL(executor_compare(&plain, &a, &b, &all, &place, NULL), ST_OK);
    CU_ASSERT(!place.same_form);
    executor_array_free(&a);
    executor_array_free(&b);
    a = fixture_i64((const int64_t[]){1, INT64_MAX}, SHAPE(2));
    b = fixture_i64((const int64_t[]){1, INT64_MAX - 1}, SHAPE(2));
    all = (struct executor_difference){0};
    CU_ASSERT_EQUAL(executor_compare(&plain, &a, &b, &all, &place, NULL), ST_OK);
    CU_ASSERT(place.unequal == 1 && place.index == 1); /* although they are one number as doubles */
    executor_array_free(&a);
    executor_array_free(&b);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"embedding and linear on any shape, ids outside", test_embedding_linear},
        {"bias prefilled or added by rank", test_bias_modes},
        {"bias behind a slice", test_bias_of_slices},
        {"broadcasting", test_broadcast},
        {"softmax with a mask", test_masked_softmax},
        {"norms and elementwise", test_row_ops},
        {"reshape, transpose, slice, shift", test_shapes},
        {"concat", test_concat},
        {"argmax and top-k, lowest on ties", test_selections},
        {"mixture of experts with a mask", test_moe},
        {"models that cannot be run", test_refused_models},
        {"BF16 rounds after each op", test_narrow_dtype},
        {"comparison of outputs", test_compare},
    };
    return fixture_main("executor", cases, sizeof cases / sizeof cases[0]);
}
