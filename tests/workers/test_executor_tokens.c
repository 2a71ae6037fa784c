/* SPDX-License-Identifier: Apache-2.0 */
/* Ops that mix tokens, against plain loops in double. */
#include "tests/workers/executor_fixture.h"

#define FLOATS(name) "{'name': '" name "', 'kind': 'values'}"
#define OUT "'outputs': [{'name': 'out', 'node': 'y'}]}"
#define QKV FLOATS("q") ", " FLOATS("k") ", " FLOATS("v")
static const struct fixture_tensor no_tensors[1];

/* ---- matmul ---------------------------------------------------------------------------------- */

static void test_matmul(void)
{
    struct fixture_model m = fixture_open(
        "{'inputs': [" FLOATS("a") ", " FLOATS(
            "b") "], 'nodes': [{'name': 'y', 'op': 'matmul', 'inputs': ['a', 'b']}], " OUT,
        no_tensors);
    const float a[] = {1, 2, 3, 4, 5, 6, 7, 8}, b[] = {1, 0, 1, 2, 1, 1};
    struct executor_array in[2] = {fixture_f32(a, SHAPE(2, 2, 2)), fixture_f32(b, SHAPE(2, 3))};
    const float expected[] = {5, 2, 3, 11, 4, 7, 17, 6, 11, 23, 8, 15};
    fixture_expect(fixture_run(&m, in, 2), expected, 0, SHAPE(2, 2, 3));
    in[0] = fixture_f32(a, SHAPE(2, 2, 2));
    in[1] = fixture_f32(a, SHAPE(2, 2, 2));
    fixture_expect(fixture_run(&m, in, 2), (const float[]){7, 10, 15, 22, 67, 78, 91, 106}, 0,
                   SHAPE(2, 2, 2));
    in[0] = fixture_f32(a, SHAPE(2, 2));
    in[1] = fixture_f32(b, SHAPE(3, 2));
    fixture_refused(&m, in, 2, ST_STRUCTURE, "shapes (2, 2) and (3, 2)");
    fixture_close(&m);
    m = fixture_open("{'inputs': [" FLOATS("a") ", " FLOATS(
                         "b") "], 'nodes': [{'name': 'y', 'op': 'matmul', 'inputs': ['a', 'b'], "
                              "'transpose_b': true}], " OUT,
                     no_tensors);
    in[0] = fixture_f32(a, SHAPE(1, 2, 2));
    in[1] = fixture_f32(b, SHAPE(1, 3, 2));
    fixture_expect(fixture_run(&m, in, 2), (const float[]){1, 5, 3, 3, 11, 7}, 0, SHAPE(1, 2, 3));
    fixture_close(&m);
}

/* ---- attention ------------------------------------------------------------------------------- */

struct attention_case {
    size_t batch, n_q, n_k, heads, kv_heads, dim;
    bool causal;
    const float *mask; /* [n_k] or NULL */
};

static void reference_attention(const struct attention_case *c, const float *q, const float *k,
                                const float *v, float *out)
{
    size_t group = c->heads / c->kv_heads;
    for (size_t b = 0; b < c->batch; b++)
        for (size_t h = 0; h < c->heads; h++)
            for (size_t i = 0; i < c->n_q; i++) {
                double weights[16], sum = 0;
                for (size_t j = 0; j < c->n_k; j++) {
                    double s = 0;
                    for (size_t d = 0; d < c->dim; d++)
                        s += (double)q[((b * c->n_q + i) * c->heads + h) * c->dim + d] *
                             (double)k[((b * c->n_k + j) * c->kv_heads + h / group) * c->dim + d];
                    s = s / sqrt((double)c->dim) + (c->mask == NULL ? 0 : (double)c->mask[j]);
                    weights[j] = c->causal && j > i + c->n_k - c->n_q ? 0 : exp(s);
                    sum += weights[j];
                }
                for (size_t d = 0; d < c->dim; d++) {
                    double y = 0;
                    for (size_t j = 0; j < c->n_k; j++)
                        y += weights[j] / sum *
                             (double)v[((b * c->n_k + j) * c->kv_heads + h / group) * c->dim + d];
                    out[((b * c->n_q + i) * c->heads + h) * c->dim + d] = (float)y;
                }
            }
}

static void attention_checked(const char *graph, const struct attention_case *c)
{
    float q[256], k[256], v[256], expected[256];
    size_t n = c->batch * c->n_k * c->kv_heads * c->dim;
    fixture_fill(q, c->batch * c->n_q * c->heads * c->dim, 5);
    fixture_fill(k, n, 6);
    fixture_fill(v, n, 7);
    reference_attention(c, q, k, v, expected);
    struct fixture_model m = fixture_open(graph, no_tensors);
    struct executor_array in[4] = {
        fixture_f32(q, SHAPE(c->batch, c->n_q, c->heads * c->dim)),
        fixture_f32(k, SHAPE(c->batch, c->n_k, c->kv_heads * c->dim)),
        fixture_f32(v, SHAPE(c->batch, c->n_k, c->kv_heads * c->dim)),
    };
    if (c->mask != NULL)
        in[3] = fixture_f32(c->mask, SHAPE(c->n_k));
    fixture_expect(fixture_run(&m, in, c->mask == NULL ? 3 : 4), expected, 1e-6,
                   SHAPE(c->batch, c->n_q, c->heads * c->dim));
    fixture_close(&m);
}

static void test_attention(void)
{
    const float mask[] = {0, -1, -INFINITY, 0.5f, 0};
    attention_checked("{'inputs': [" QKV "], 'nodes': [{'name': 'y', 'op': 'attention', 'inputs': "
                      "['q', 'k', 'v'], 'heads': 4, 'kv_heads': 2, 'causal': true}], " OUT,
                      &(struct attention_case){2, 5, 5, 4, 2, 3, true, NULL});
    attention_checked("{'inputs': [" QKV "], 'nodes': [{'name': 'y', 'op': 'attention', 'inputs': "
                      "['q', 'k', 'v'], 'heads': 2, 'causal': false}], " OUT,
                      &(struct attention_case){1, 3, 7, 2, 2, 4, false, NULL});
    attention_checked("{'inputs': [" QKV ", " FLOATS(
                          "m") "], 'nodes': [{'name': 'y', 'op': 'attention', 'inputs': ['q', "
                               "'k', 'v', 'm'], 'heads': 2, 'causal': false}], " OUT,
                      &(struct attention_case){2, 4, 5, 2, 2, 4, false, mask});
    struct fixture_model m = fixture_open(
        "{'inputs': [" QKV "], 'nodes': [{'name': 'y', 'op': 'attention', 'inputs': ['q', 'k', "
        "'v'], 'heads': 2, 'causal': true}], " OUT,
        no_tensors);
    float x[16] = {0};
    struct executor_array in[3] = {fixture_f32(x, SHAPE(2, 4)), fixture_f32(x, SHAPE(2, 3)),
                                   fixture_f32(x, SHAPE(2, 4))};
    fixture_refused(&m, in, 3, ST_STRUCTURE, "q (2, 4), k (2, 3), v (2, 4) do not fit 2 heads");
    for (int i = 0; i < 3; i++)
        in[i] = fixture_f32(x, SHAPE(1, 0, 4));
    fixture_expect(fixture_run(&m, in, 3), NULL, 0, SHAPE(1, 0, 4));
    fixture_close(&m);
}

/* ---- rope ------------------------------------------------------------------------------------ */

static void rope_checked(const char *graph, bool interleaved, size_t rotary, bool given)
{
    enum { N = 4, HEADS = 2, DIM = 6 };
    float x[N * HEADS * DIM], expected[N * HEADS * DIM];
    const int64_t positions[N] = {7, 3, 0, 11};
    fixture_fill(x, N * HEADS * DIM, 9);
    memcpy(expected, x, sizeof x);
    for (size_t t = 0; t < N; t++)
        for (size_t h = 0; h < HEADS; h++)
            for (size_t i = 0; i < rotary / 2; i++) {
                size_t at = (t * HEADS + h) * DIM, p = at + (interleaved ? 2 * i : i);
                size_t q = interleaved ? p + 1 : p + rotary / 2;
                double position = given ? (double)positions[t] : (double)t;
                double angle = position * pow(100, -2.0 * (double)i / (double)rotary);
                double a = (double)x[p], b = (double)x[q];
                expected[p] = (float)(a * cos(angle) - b * sin(angle));
                expected[q] = (float)(b * cos(angle) + a * sin(angle));
            }
    struct fixture_model m = fixture_open(graph, no_tensors);
    struct executor_array in[2] = {fixture_f32(x, SHAPE(1, N, HEADS * DIM))};
    if (given)
        in[1] = fixture_i64(positions, SHAPE(N));
    fixture_expect(fixture_run(&m, in, given ? 2 : 1), expected, 2e-6, SHAPE(1, N, HEADS * DIM));
    fixture_close(&m);
}

static void test_rope(void)
{
    rope_checked("{'inputs': [" FLOATS("x") "], 'nodes': [{'name': 'y', 'op': 'rope', 'inputs': "
                                            "['x'], 'head_dim': 6, 'theta': 100, 'convention': "
                                            "'half'}], " OUT,
                 false, 6, false);
    rope_checked("{'inputs': [" FLOATS("x") "], 'nodes': [{'name': 'y', 'op': 'rope', 'inputs': "
                                            "['x'], 'head_dim': 6, 'theta': 100, 'convention': "
                                            "'interleaved', 'rotary_dim': 4}], " OUT,
                 true, 4, false);
    rope_checked("{'inputs': [" FLOATS(
                     "x") ", {'name': 'p', 'kind': 'integers'}], 'nodes': [{'name': 'y', 'op': "
                          "'rope', 'inputs': ['x', 'p'], 'head_dim': 6, 'theta': 100, "
                          "'convention': 'half'}], " OUT,
                 false, 6, true);
}

static void test_positions(void)
{
    const float table[] = {1, 2, 3, 4, 5, 6};
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"p", DT_F32, 2, {3, 2}, table}};
    struct fixture_model m = fixture_open(
        "{'inputs': [" FLOATS("x") "], 'nodes': [{'name': 'y', 'op': 'absolute_position', "
                                   "'inputs': ['x'], 'weight': 'p'}], " OUT,
        tensors);
    const float x[8] = {0, 0, 1, 1, 2, 2, 0, 0};
    struct executor_array in = fixture_f32(x, SHAPE(2, 2, 2));
    fixture_expect(fixture_run(&m, &in, 1), (const float[]){1, 2, 4, 5, 3, 4, 3, 4}, 0,
                   SHAPE(2, 2, 2));
    in = fixture_f32(x, SHAPE(4, 2));
    fixture_refused(&m, &in, 1, ST_STRUCTURE, "position 3, expected below 3");
    fixture_close(&m);
}

/* ---- lstm ------------------------------------------------------------------------------------ */

enum { H = 3, T = 4, B = 2 };

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* u [4 h, h]; places: of input, forget, candidate, output. */
static void reference_lstm(const float *z, const float *u, const int places[4], bool reverse,
                           float *out, size_t width, size_t column)
{
    for (size_t b = 0; b < B; b++) {
        double c[H] = {0}, h[H] = {0};
        for (size_t s = 0; s < T; s++) {
            size_t t = reverse ? T - 1 - s : s;
            double pre[4 * H];
            for (size_t i = 0; i < 4 * H; i++) {
                pre[i] = (double)z[(b * T + t) * 4 * H + i];
                for (size_t j = 0; j < H; j++)
                    pre[i] += (double)u[i * H + j] * h[j];
            }
            for (size_t i = 0; i < H; i++) {
                double in = sigmoid(pre[places[0] * H + (int)i]);
                double forget = sigmoid(pre[places[1] * H + (int)i]);
                double candidate = tanh(pre[places[2] * H + (int)i]);
                double gate = sigmoid(pre[places[3] * H + (int)i]);
                c[i] = forget * c[i] + in * candidate;
                h[i] = gate * tanh(c[i]);
                out[(b * T + t) * width + column + i] = (float)h[i];
            }
        }
    }
}

static void test_lstm(void)
{
    static const int ifco[] = {0, 1, 2, 3}, iofc[] = {0, 2, 3, 1};
    float z[B * T * 4 * H], zb[B * T * 4 * H], u[4 * H * H], ub[4 * H * H], stored[4 * H * H];
    float expected[B * T * 2 * H];
    fixture_fill(z, B * T * 4 * H, 1);
    fixture_fill(zb, B * T * 4 * H, 2);
    fixture_fill(u, 4 * H * H, 3);
    fixture_fill(ub, 4 * H * H, 4);
    for (size_t i = 0; i < 4 * H; i++)
        for (size_t j = 0; j < H; j++)
            stored[j * 4 * H + i] = ub[i * H + j];
    struct fixture_tensor tensors[FIXTURE_TENSORS] = {{"u", DT_F32, 2, {4 * H, H}, u},
                                                      {"b", DT_F32, 2, {4 * H, H}, ub},
                                                      {"bt", DT_F32, 2, {H, 4 * H}, stored}};
    struct fixture_model m = fixture_open(
        "{'inputs': [" FLOATS("z") ", " FLOATS(
            "r") "], 'nodes': [{'name': 'y', 'op': 'lstm', 'inputs': ['z', 'r'], 'weight': 'u', "
                 "'weight_backward': 'b', 'bidirectional': true, 'gates': 'ifgo'}], " OUT,
        tensors);
    reference_lstm(z, u, ifco, false, expected, 2 * H, 0);
    reference_lstm(zb, ub, ifco, true, expected, 2 * H, H);
    struct executor_array in[2] = {fixture_f32(z, SHAPE(B, T, 4 * H)),
                                   fixture_f32(zb, SHAPE(B, T, 4 * H))};
    fixture_expect(fixture_run(&m, in, 2), expected, 1e-6, SHAPE(B, T, 2 * H));
    in[0] = fixture_f32(z, SHAPE(B, T, 4 * H));
    in[1] = fixture_f32(zb, SHAPE(B * T, 4 * H));
    fixture_refused(&m, in, 2, ST_STRUCTURE, "pre-activations");
    fixture_close(&m);
    m = fixture_open(
        "{'inputs': [" FLOATS("z") "], 'nodes': [{'name': 'y', 'op': 'lstm', "
                                   "'inputs': ['z'], 'weight': 'bt', 'orientation': "
                                   "'in_out', 'reverse': true, 'gates': 'iofc'}], " OUT,
        tensors);
    reference_lstm(z, ub, iofc, true, expected, H, 0);
    in[0] = fixture_f32(z, SHAPE(B, T, 4 * H));
    fixture_expect(fixture_run(&m, in, 1), expected, 1e-6, SHAPE(B, T, H));
    in[0] = fixture_f32(z, SHAPE(B, 0, 4 * H));
    fixture_expect(fixture_run(&m, in, 1), NULL, 0, SHAPE(B, 0, H));
    fixture_close(&m);
}

/* ---- pools ----------------------------------------------------------------------------------- */

static void pool(const char *graph, bool masked, const float *values)
{
    const float x[] = {1, 2, 3, 4, INFINITY, -9, 7, 8, NAN, 1, 0, 0};
    const float mask[] = {1, 1, 0, 1, 0, 0};
    struct fixture_model m = fixture_open(graph, no_tensors);
    struct executor_array in[2] = {
        fixture_f32(x, masked ? 3 : 2, (const uint64_t[]){2, masked ? 3 : 2, 2}),
        fixture_f32(mask, SHAPE(2, 3))};
    if (masked) {
        fixture_expect(fixture_run(&m, in, 2), values, 0, SHAPE(2, 2));
    } else {
        executor_array_free(&in[1]);
        fixture_expect(fixture_run(&m, in, 1), values, 0, SHAPE(2));
    }
    fixture_close(&m);
}

#define POOL(op)                                                                                   \
    "{'inputs': [" FLOATS("x") "], 'nodes': [{'name': 'y', 'op': '" op "', 'inputs': "             \
                               "['x']}], " OUT
#define POOL_MASKED(op)                                                                            \
    "{'inputs': [" FLOATS("x") ", {'name': 'm', 'kind': 'mask'}], 'nodes': [{'name': 'y', 'op': "  \
                               "'" op "', 'inputs': ['x', 'm']}], " OUT

static void test_pools(void)
{
    pool(POOL("mean_tokens"), false, (const float[]){2, 3});
    pool(POOL("sum_tokens"), false, (const float[]){4, 6});
    pool(POOL("max_tokens"), false, (const float[]){3, 4});
    /* what the mask leaves out may hold anything */
    pool(POOL_MASKED("mean_tokens"), true, (const float[]){2, 3, 7, 8});
    pool(POOL_MASKED("sum_tokens"), true, (const float[]){4, 6, 7, 8});
    pool(POOL_MASKED("max_tokens"), true, (const float[]){3, 4, 7, 8});
    struct fixture_model m = fixture_open(POOL("sum_tokens"), no_tensors);
    struct executor_array in = fixture_f32(NULL, SHAPE(2, 0, 3));
    fixture_expect(fixture_run(&m, &in, 1), (const float[]){0, 0, 0, 0, 0, 0}, 0, SHAPE(2, 3));
    fixture_close(&m);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"matmul with broadcast batches", test_matmul},
        {"attention: causal, grouped, masked, empty", test_attention},
        {"rope in both conventions", test_rope},
        {"absolute positions", test_positions},
        {"lstm: both directions, gate orders, orientation", test_lstm},
        {"pools with and without a mask", test_pools},
    };
    return fixture_main("executor tokens", cases, sizeof cases / sizeof cases[0]);
}
