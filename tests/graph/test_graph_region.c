/* SPDX-License-Identifier: Apache-2.0 */
/* Token-local regions: what belongs to them, what the rest reads of them, why they stay. */
#include "tests/graph/graph_fixture.h"

#include <pthread.h>

/* A model under construction; its first node is the ids. */
static struct graph_model model_begin(void)
{
    struct graph_model m = {.n_inputs = 0};
    fixture_op(&m.graph, OP_INPUT, "ids", -1, -1);
    return m;
}

static uint32_t embed(struct graph_model *m, const char *name, const char *tensor, uint32_t ids)
{
    struct graph_node node;
    graph_node_init(&node, OP_EMBEDDING);
    node.weights[ROLE_WEIGHT] =
        fixture_weight(&m->graph, (struct graph_weight){.dtype = DT_UNKNOWN}, tensor, NULL);
    return fixture_node(&m->graph, node, name, ids, -1);
}

static uint32_t lin(struct graph_model *m, const char *name, const char *tensor, uint32_t input)
{
    int32_t w = fixture_weight(&m->graph, (struct graph_weight){.dtype = DT_UNKNOWN}, tensor, NULL);
    return fixture_linear(&m->graph, name, input, w, -1);
}

static uint32_t op(struct graph_model *m, enum graph_op o, const char *name, uint32_t a, int64_t b)
{
    return fixture_op(&m->graph, o, name, a, b);
}

static void outputs(struct graph_model *m, const uint32_t *nodes, size_t n)
{
    m->outputs = calloc(n, sizeof *m->outputs);
    if (m->outputs == NULL)
        abort();
    m->n_outputs = n;
    for (size_t i = 0; i < n; i++)
        m->outputs[i] =
            (struct graph_output){.name = str_dup(m->graph.nodes[nodes[i]].name), .node = nodes[i]};
}

static void model_end(struct graph_model *m)
{
    for (size_t i = 0; i < m->n_outputs; i++)
        free(m->outputs[i].name);
    free(m->outputs);
    graph_free(&m->graph);
}

struct regions {
    struct graph_region *list;
    size_t n;
};

static struct regions find(const struct graph_model *m, const struct graph_region_request *q,
                           size_t n)
{
    struct regions r = {NULL, 0};
    struct err err = {0};
    if (graph_regions_find(m, q, n, &r.list, &r.n, &err) != ST_OK) {
        printf("\n    %s\n", err.message);
        CU_FAIL("regions");
    }
    return r;
}

static void refused(const struct graph_model *m, const struct graph_region_request *q, size_t n,
                    enum status expected, const char *part)
{
    struct regions r = {NULL, 0};
    struct err err = {0};
    CU_ASSERT_EQUAL(graph_regions_find(m, q, n, &r.list, &r.n, &err), expected);
    CU_ASSERT_PTR_NULL(r.list);
    CU_ASSERT(fixture_says(&err, part));
}

/* The tables of a region in order, "a b c". */
static bool tables_are(const struct graph_region *r, const char *expected)
{
    char text[200] = "";
    for (size_t i = 0; i < r->block.n_tables; i++) {
        strcat(text, i == 0 ? "" : " ");
        strcat(text, r->block.tables[i].name);
    }
    if (strcmp(text, expected) != 0)
        printf("\n    tables \"%s\", expected \"%s\"\n", text, expected);
    return strcmp(text, expected) == 0;
}

/* ---- a decoder's first layer ----------------------------------------------------------------- */

/* embedding -> norm -> q, k, v; attention; the residual reads the embedding; a tied head. */
static struct graph_model decoder(bool tied)
{
    struct graph_model m = model_begin();
    uint32_t e = embed(&m, "e", "emb", 0);
    uint32_t n = op(&m, OP_RMS_NORM, "n", e, -1);
    uint32_t q = lin(&m, "q", "wq", n), k = lin(&m, "k", "wk", n), v = lin(&m, "v", "wv", n);
    uint32_t dead = lin(&m, "dead", "wd", n);
    struct graph_node a;
    graph_node_init(&a, OP_ATTENTION);
    a.name = str_dup("a");
    a.where = str_dup("model.a");
    a.n_inputs = 3;
    a.inputs[0] = op(&m, OP_ROPE, "rq", q, -1);
    a.inputs[1] = op(&m, OP_ROPE, "rk", k, -1);
    a.inputs[2] = v;
    uint32_t attention = 0;
    CU_ASSERT_EQUAL(graph_node_take(&m.graph, &a, &attention, NULL), ST_OK);
    uint32_t h = op(&m, OP_ADD, "h", e, attention);
    uint32_t y = lin(&m, "y", tied ? "emb" : "head", h);
    outputs(&m, &y, 1);
    CU_ASSERT(dead > 0);
    return m;
}

static void test_decoder(void)
{
    struct graph_model m = decoder(false);
    struct regions r = find(&m, NULL, 0);
    CU_ASSERT_EQUAL(r.n, 1);
    CU_ASSERT_PTR_NULL(r.list[0].reason);
    CU_ASSERT_STRING_EQUAL(r.list[0].name, "e");
    /* the embedding last; what nothing reads is no output */
    CU_ASSERT(tables_are(&r.list[0], "q k v e"));
    const struct graph_block *b = &r.list[0].block;
    CU_ASSERT_EQUAL(b->kind, BLOCK_FANOUT);
    CU_ASSERT_EQUAL(b->graph.n_nodes, 6); /* ids, e, n, q, k, v */
    CU_ASSERT_EQUAL(b->graph.nodes[0].op, OP_INPUT);
    CU_ASSERT_EQUAL(b->graph.nodes[1].op, OP_EMBEDDING);
    CU_ASSERT_EQUAL(b->graph.n_weights, 4);
    CU_ASSERT_EQUAL(b->n_external_consumers, 0);
    CU_ASSERT_EQUAL(r.list[0].n_frontier, 4);
    CU_ASSERT_EQUAL(r.list[0].frontier[3], r.list[0].embedding);
    graph_regions_free(&r.list, r.n);
    model_end(&m);
}

static void test_tied_head(void)
{
    static const struct fake_tensor tensors[] = {{"emb", DT_F32, 2, {10, 4}},
                                                 {"wq", DT_F32, 2, {4, 4}},
                                                 {"wk", DT_F32, 2, {4, 4}},
                                                 {"wv", DT_F32, 2, {4, 4}},
                                                 {"wd", DT_F32, 2, {4, 4}}};
    struct fake_checkpoint c = {tensors, 5};
    struct graph_model m = decoder(true);
    struct graph_storage s = {0};
    struct err err = {0};
    struct regions r = find(&m, NULL, 0);
    CU_ASSERT_EQUAL(r.list[0].block.n_external_consumers, 1);
    CU_ASSERT_STRING_EQUAL(r.list[0].block.external_consumers[0], "emb");
    CU_ASSERT_EQUAL(graph_block_resolve(&r.list[0].block, fake_find, &c, &err), ST_OK);
    CU_ASSERT_EQUAL(graph_block_audit(&r.list[0].block, &err), ST_OK);
    CU_ASSERT_EQUAL(graph_block_storage(&r.list[0].block, &s, &err), ST_OK);
    CU_ASSERT_EQUAL(s.logical_bytes, 160 + 3 * 64);
    CU_ASSERT_EQUAL(s.retained_logical_bytes, 160);
    CU_ASSERT_EQUAL(s.retained_unique_bytes, 160);
    /* the whole model: the dead weight does not count, the tied one once */
    CU_ASSERT_EQUAL(graph_model_resolve(&m, fake_find, &c, &err), ST_OK);
    CU_ASSERT_EQUAL(graph_model_storage(&m, &s, &err), ST_OK);
    CU_ASSERT_EQUAL(s.logical_bytes, 160 + 3 * 64);
    graph_regions_free(&r.list, r.n);
    model_end(&m);
}

/* ---- several inputs and embeddings ----------------------------------------------------------- */

static void test_two_towers(void)
{
    struct graph_model m = model_begin();
    uint32_t second = fixture_op(&m.graph, OP_INPUT, "items", -1, -1);
    uint32_t u = lin(&m, "u", "wu", embed(&m, "user", "eu", 0));
    uint32_t i = op(&m, OP_RELU, "i", lin(&m, "li", "wi", embed(&m, "item", "ei", second)), -1);
    uint32_t bias = embed(&m, "bias", "eb", second);
    uint32_t y = op(&m, OP_ADD, "y", op(&m, OP_MATMUL, "s", u, i), bias);
    outputs(&m, &y, 1);
    struct regions r = find(&m, NULL, 0);
    CU_ASSERT_EQUAL(r.n, 3);
    CU_ASSERT(tables_are(&r.list[0], "u"));
    CU_ASSERT(tables_are(&r.list[1], "i"));
    CU_ASSERT(r.list[2].reason != NULL && strstr(r.list[2].reason, "the embedding alone") != NULL);
    CU_ASSERT_STRING_EQUAL(r.list[1].block.graph.nodes[0].name, "items");
    graph_regions_free(&r.list, r.n);
    model_end(&m);
}

/* Ops over two embeddings of one input, a selection, a mixture of outputs. */
static void test_joined(void)
{
    struct graph_model m = model_begin();
    uint32_t a = embed(&m, "a", "ea", 0), b = embed(&m, "b", "eb", 0);
    uint32_t x = op(&m, OP_RELU, "x", a, -1);
    uint32_t square = op(&m, OP_MUL, "square", x, x);
    uint32_t sum = op(&m, OP_ADD, "sum", square, op(&m, OP_TANH, "t", b, -1));
    uint32_t best = op(&m, OP_ARGMAX, "best", square, -1);
    outputs(&m, (const uint32_t[]){sum, best, x}, 3);
    m.outputs[2].decision_top_k = 2;
    struct regions r = find(&m, NULL, 0);
    CU_ASSERT_EQUAL(r.n, 2);
    CU_ASSERT(tables_are(&r.list[0], "x square")); /* x is an output, square is read by sum, best */
    CU_ASSERT_EQUAL(r.list[0].block.tables[0].decision_top_k, 2);
    CU_ASSERT_EQUAL(r.list[0].block.tables[1].decision_top_k, 0);
    CU_ASSERT(tables_are(&r.list[1], "t"));
    graph_regions_free(&r.list, r.n);
    model_end(&m);
}

/* What only moves columns ends a region: a block evaluates ops, and its input's table serves. */
static void test_columns(void)
{
    struct graph_model m = model_begin();
    uint32_t e = embed(&m, "e", "emb", 0), y = lin(&m, "y", "wqkv", e);
    struct graph_node cut;
    graph_node_init(&cut, OP_SLICE);
    cut.numbers[NUM_STOP] = 2;
    uint32_t q = fixture_node(&m.graph, cut, "q", y, -1);
    uint32_t both = op(&m, OP_CONCAT, "both", y, e);
    graph_node_init(&cut, OP_TOP_K_VALUES);
    cut.numbers[NUM_K] = 2;
    uint32_t best = fixture_node(&m.graph, cut, "best", y, -1);
    uint32_t masked = op(&m, OP_SOFTMAX, "masked", y, y);
    outputs(&m, (const uint32_t[]){op(&m, OP_RELU, "r", q, -1), both, best, masked}, 4);
    struct regions r = find(&m, NULL, 0);
    CU_ASSERT_EQUAL(r.n, 1);
    CU_ASSERT(tables_are(&r.list[0], "y e"));
    CU_ASSERT_EQUAL(r.list[0].block.graph.n_nodes, 3); /* ids, e, y */
    graph_regions_free(&r.list, r.n);
    struct graph_region_request one = {"r", "r0", &q, 1};
    refused(&m, &one, 1, ST_STRUCTURE, "q is not token-local: q: slice: it only joins or picks");
    one.nodes = &masked;
    refused(&m, &one, 1, ST_STRUCTURE, "masked: softmax: its mask is no value of one token");
    model_end(&m);
}

/* ---- named regions --------------------------------------------------------------------------- */

static void test_named(void)
{
    struct graph_model m = decoder(false);
    const uint32_t q_and_k[] = {3, 4}, only_q[] = {3}, only_v[] = {5}, rope[] = {7}, head[] = {11};
    const uint32_t dead[] = {6};
    struct graph_region_request one = {"qk", "graph.regions[0]", q_and_k, 2};
    struct regions r = find(&m, &one, 1);
    /* v still reads the norm, so that the norm is an output too */
    CU_ASSERT_EQUAL(r.n, 1);
    CU_ASSERT(tables_are(&r.list[0], "n q k e"));
    CU_ASSERT_EQUAL(r.list[0].block.n_external_consumers, 0);
    graph_regions_free(&r.list, r.n);
    const struct graph_region_request nested[] = {
        {"small", "r0", only_q, 1}, {"large", "r1", q_and_k, 2}, {"v", "r2", only_v, 1}};
    r = find(&m, nested, 3);
    CU_ASSERT(r.list[0].reason != NULL && strstr(r.list[0].reason, "region large") != NULL);
    CU_ASSERT_PTR_NULL(r.list[1].reason);
    CU_ASSERT(r.list[2].reason != NULL && strstr(r.list[2].reason, "region large") != NULL);
    graph_regions_free(&r.list, r.n);
    const struct graph_region_request equal[] = {{"first", "r0", only_q, 1},
                                                 {"second", "r1", only_v, 1}};
    r = find(&m, equal, 2);
    CU_ASSERT_PTR_NULL(r.list[0].reason);
    CU_ASSERT(r.list[1].reason != NULL && strstr(r.list[1].reason, "region first") != NULL);
    graph_regions_free(&r.list, r.n);
    one = (struct graph_region_request){"r", "graph.regions[0]", rope, 1};
    refused(&m, &one, 1, ST_STRUCTURE,
            "graph.regions[0].nodes[0]: rq is not token-local: rq: rope");
    one.nodes = head;
    refused(&m, &one, 1, ST_STRUCTURE, "y is not token-local: a: attention: mixes tokens");
    one.nodes = dead;
    refused(&m, &one, 1, ST_SPEC, "no output of the model needs dead");
    model_end(&m);
}

static void test_named_over_two(void)
{
    struct graph_model m = model_begin();
    uint32_t a = embed(&m, "a", "ea", 0), b = embed(&m, "b", "eb", 0);
    uint32_t x = op(&m, OP_RELU, "x", a, -1), y = op(&m, OP_RELU, "y", b, -1);
    uint32_t z = op(&m, OP_ADD, "z", x, y);
    outputs(&m, &z, 1);
    const uint32_t both[] = {x, y}, joined[] = {z}, ids[] = {0};
    struct graph_region_request one = {"r", "r0", both, 2};
    refused(&m, &one, 1, ST_SPEC, "y depends on embedding b, nodes[0] on a");
    one = (struct graph_region_request){"r", "r0", joined, 1};
    refused(&m, &one, 1, ST_STRUCTURE, "z joins two embeddings, a and b");
    one.nodes = ids;
    refused(&m, &one, 1, ST_STRUCTURE, "ids is not reached through an embedding");
    model_end(&m);
}

struct far {
    struct graph_model m;
    uint32_t node;
};

static void *find_far(void *arg)
{
    struct far *f = arg;
    struct graph_region_request one = {"r", "r0", &f->node, 1};
    refused(&f->m, &one, 1, ST_STRUCTURE, "is not token-local: mean: mean_tokens: mixes tokens");
    return NULL;
}

/* A reason far back is found without a call for each node between: on a small stack. */
static void test_far_reason(void)
{
    enum { LENGTH = 4000, STACK_SIZE = 128 << 10 };
    struct far f = {.m = model_begin()};
    pthread_attr_t attr;
    pthread_t thread;
    f.node = op(&f.m, OP_MEAN_TOKENS, "mean", embed(&f.m, "e", "emb", 0), -1);
    for (int i = 0; i < LENGTH; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        f.node = op(&f.m, OP_RELU, name, f.node, -1);
    }
    outputs(&f.m, &f.node, 1);
    CU_ASSERT_EQUAL(pthread_attr_init(&attr), 0);
    CU_ASSERT_EQUAL(pthread_attr_setstacksize(&attr, STACK_SIZE), 0);
    CU_ASSERT_EQUAL_FATAL(pthread_create(&thread, &attr, find_far, &f), 0);
    CU_ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attr);
    model_end(&f.m);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"first layer of a decoder", test_decoder},
        {"a tied head reads the embedding", test_tied_head},
        {"two inputs, three embeddings", test_two_towers},
        {"selections and joined embeddings stay outside", test_joined},
        {"what moves columns ends a region", test_columns},
        {"regions named by the user, nested and overlapping", test_named},
        {"named nodes over two embeddings", test_named_over_two},
        {"a reason at the other end of a long chain", test_far_reason},
    };
    return fixture_run("graph region", cases, sizeof cases / sizeof cases[0]);
}
