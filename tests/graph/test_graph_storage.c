/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes that a block reads, and the text that a fingerprint covers. */
#include "tests/graph/graph_fixture.h"

static const struct fake_tensor tensors[] = {
    {"embed", DT_F32, 2, {30, 16}}, {"w", DT_F32, 2, {16, 16}},     {"copy", DT_F32, 2, {16, 16}},
    {"bias", DT_F32, 1, {16}},      {"fused", DT_F32, 2, {48, 16}}, {"fused_bias", DT_F32, 1, {48}},
    {"bias16", DT_F16, 1, {16}},    {"w16", DT_F16, 2, {16, 16}},
};

static struct graph_storage storage(struct graph_block *b)
{
    struct fake_checkpoint c = {tensors, sizeof tensors / sizeof tensors[0]};
    struct graph_storage s = {0};
    struct err err = {0};
    enum status st = graph_block_resolve(b, fake_find, &c, &err);
    if (st == ST_OK)
        st = graph_block_storage(b, &s, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    return s;
}

static uint32_t linear(struct graph_block *b, const char *name, int64_t input,
                       struct graph_weight how, const char *tensor, const char *backing)
{
    return fixture_linear(&b->graph, name, input, fixture_weight(&b->graph, how, tensor, backing),
                          -1);
}

static const struct graph_weight as_is = {0};

static void consumers(struct graph_block *b, const char *name, const char *backing)
{
    size_t n = b->n_external_consumers;
    char ***lists[] = {&b->external_consumers, &b->external_backings};
    for (size_t i = 0; i < 2; i++) {
        char **grown = realloc(*lists[i], (n + 1) * sizeof *grown);
        if (grown == NULL)
            abort();
        grown[n] = str_dup(i == 0 ? name : backing);
        *lists[i] = grown;
    }
    b->n_external_consumers++;
}

/* Golden shared_tensor: one matrix in two layers, the embedding as a linear: 2944 bytes. */
static struct graph_block shared(void)
{
    struct graph_block b = fixture_block("embed");
    uint32_t first = linear(&b, "branches.twice[0]", 1, as_is, "w", NULL);
    uint32_t tanh_node = fixture_op(&b.graph, OP_TANH, "branches.twice[1]", first, -1);
    fixture_output(&b, "twice", linear(&b, "branches.twice[2]", tanh_node, as_is, "w", NULL));
    fixture_output(&b, "tied", linear(&b, "branches.tied[0]", 1, as_is, "embed", NULL));
    return b;
}

static void test_shared(void)
{
    struct graph_block b = shared();
    struct graph_storage s = storage(&b);
    CU_ASSERT_EQUAL(b.graph.n_weights, 2);
    CU_ASSERT_EQUAL(s.logical_bytes, 2944);
    CU_ASSERT_EQUAL(s.unique_bytes, 2944);
    CU_ASSERT_EQUAL(s.retained_logical_bytes + s.retained_unique_bytes + s.bias_bytes, 0);
    CU_ASSERT_EQUAL(b.rows_in_checkpoint, 30);
    CU_ASSERT(graph_block_has_linear(&b) && !graph_block_has_bias(&b));
    /* 16*16 twice, 16*30 once, tanh 10 an element */
    CU_ASSERT_EQUAL(graph_block_flops(&b), 2 * (16 * 16 * 2 + 16 * 30) + 160);
    graph_block_free(&b);
}

/* Names count for logical bytes, tensors for unique ones. */
static void test_aliases(void)
{
    struct graph_block b = fixture_block("embed");
    fixture_output(&b, "head", linear(&b, "branches.head[0]", 1, as_is, "head", "embed"));
    fixture_output(&b, "copy", linear(&b, "branches.copy[0]", 1, as_is, "copy", NULL));
    struct graph_storage s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 2 * 1920 + 1024);
    CU_ASSERT_EQUAL(s.unique_bytes, 1920 + 1024);
    graph_block_free(&b);
}

static void test_slices(void)
{
    struct graph_weight part = {.split = SPLIT_BLOCKS, .n_parts = 3};
    struct graph_block b = fixture_block("embed");
    for (uint32_t i = 0; i < 2; i++) {
        char name[8];
        part.part = i;
        snprintf(name, sizeof name, "p%u", i);
        fixture_output(&b, name, linear(&b, name, 1, part, "fused", NULL));
    }
    struct graph_storage s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 2 * 1024);
    CU_ASSERT_EQUAL(s.unique_bytes, s.logical_bytes);
    /* the same rows declared by number are the same slice */
    struct graph_weight rows = {.split = SPLIT_BLOCKS, .slice_first = 16, .slice_count = 16};
    fixture_output(&b, "again", linear(&b, "again", 1, rows, "fused", NULL));
    s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 2 * 1024);
    /* overlapping rows exist once, whatever they are called */
    rows.slice_first = 8;
    fixture_output(&b, "across", linear(&b, "across", 1, rows, "fused", NULL));
    s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 3 * 1024);
    CU_ASSERT_EQUAL(s.unique_bytes, 1920 + 2 * 1024);
    fixture_output(&b, "whole", linear(&b, "whole", 1, as_is, "fused", NULL));
    s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 6 * 1024);
    CU_ASSERT_EQUAL(s.unique_bytes, 1920 + 3 * 1024);
    graph_block_free(&b);
    /* heads of one group: q of both groups is half of the rows */
    b = fixture_block("embed");
    struct graph_weight q = {
        .split = SPLIT_PER_HEAD_INTERLEAVED, .heads = 4, .kv_heads = 2, .head_dim = 6};
    fixture_output(&b, "q", linear(&b, "q", 1, q, "fused", NULL));
    s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 24 * 64);
    CU_ASSERT_EQUAL(s.unique_bytes, s.logical_bytes);
    graph_block_free(&b);
}

static void test_retained(void)
{
    struct graph_block b = shared();
    consumers(&b, "embed", "embed");
    struct graph_storage s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 2944);
    CU_ASSERT_EQUAL(s.retained_logical_bytes, 1920);
    CU_ASSERT_EQUAL(s.retained_unique_bytes, 1920);
    CU_ASSERT(b.graph.weights[0].retained && !b.graph.weights[1].retained);
    graph_block_free(&b);
    /* read outside as lm_head alone: the name goes, the bytes stay */
    b = shared();
    consumers(&b, "lm_head", "embed");
    s = storage(&b);
    CU_ASSERT_EQUAL(s.retained_logical_bytes, 0);
    CU_ASSERT_EQUAL(s.retained_unique_bytes, 1920);
    graph_block_free(&b);
    b = shared();
    consumers(&b, "embde", "embde");
    struct fake_checkpoint c = {tensors, sizeof tensors / sizeof tensors[0]};
    struct err err = {0};
    CU_ASSERT_EQUAL(graph_block_resolve(&b, fake_find, &c, &err), ST_SPEC);
    CU_ASSERT(fixture_says(&err, "block.external_consumers[0]: the block reads no tensor embde, "
                                 "nearest is embed"));
    graph_block_free(&b);
}

static struct graph_block projected(bool retain, const char *weight_name, const char *bias_name)
{
    struct graph_block b = fixture_block("embed");
    struct graph_node norm;
    b.kind = BLOCK_PROJECTED;
    int32_t w = fixture_weight(&b.graph, as_is, weight_name, NULL),
            bias = fixture_weight(&b.graph, as_is, bias_name, NULL);
    fixture_output(&b, "z", fixture_linear(&b.graph, "linear", 1, w, -1));
    graph_node_init(&norm, OP_L2_NORM);
    norm.numbers[NUM_EPS] = 1e-12;
    fixture_output(&b, "r", fixture_node(&b.graph, norm, "l2_norm", 1, -1));
    b.results[0].node = fixture_linear(&b.graph, "raw", 1, w, bias);
    b.bias_weight = bias;
    b.retain_projection = retain;
    return b;
}

static void test_projected(void)
{
    struct graph_block b = projected(false, "w", "bias");
    struct graph_storage s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 1024 + 64);
    CU_ASSERT_EQUAL(s.bias_bytes, 64);
    CU_ASSERT_EQUAL(s.retained_logical_bytes, 0);
    CU_ASSERT_EQUAL(b.tables[1].width, 1);
    CU_ASSERT_EQUAL(b.results[0].width, 16);
    CU_ASSERT(graph_block_has_bias(&b));
    /* z and r alone: the results' nodes are no part of the tables' work */
    CU_ASSERT_EQUAL(graph_block_flops(&b), 2 * 16 * 16 + 2 * 16);
    graph_block_free(&b);
    b = projected(true, "w", "bias");
    s = storage(&b);
    CU_ASSERT_EQUAL(s.retained_logical_bytes, 1024);
    CU_ASSERT_EQUAL(s.retained_unique_bytes, 1024);
    graph_block_free(&b);
    /* narrower ones lie in the recipe in the dtype of z */
    b = projected(true, "w16", "bias16");
    s = storage(&b);
    CU_ASSERT_EQUAL(s.logical_bytes, 1920 + 512 + 32);
    CU_ASSERT_EQUAL(s.bias_bytes, 64);
    CU_ASSERT_EQUAL(s.retained_logical_bytes, 1024);
    CU_ASSERT_EQUAL(s.retained_unique_bytes, 1024);
    graph_block_free(&b);
}

static void canonical(struct graph_block *b, char text[4096])
{
    struct bytes out = {0};
    storage(b);
    CU_ASSERT_EQUAL(graph_block_canonical(b, &out, NULL), ST_OK);
    CU_ASSERT(out.size < 4096);
    memcpy(text, out.data, min_u64(out.size, 4095));
    text[min_u64(out.size, 4095)] = '\0';
    bytes_free(&out);
}

static void test_canonical(void)
{
    char text[4096], other[4096];
    struct graph_block b = shared(), c = shared();
    canonical(&b, text);
    /* names of tensors, nodes and the block are no arithmetic */
    free(c.name);
    c.name = str_dup("other");
    for (size_t i = 0; i < c.graph.n_nodes; i++) {
        free(c.graph.nodes[i].where);
        c.graph.nodes[i].where = str_dup("blocks[3]");
    }
    free(c.graph.weights[1].tensor);
    c.graph.weights[1].tensor = str_dup("another.name");
    canonical(&c, other);
    CU_ASSERT_STRING_EQUAL(text, other);
    CU_ASSERT_PTR_NULL(strstr(text, "embed."));
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "n2 linear n1 weight=w1 -> F32[16]\n"));
    /* the order of outputs, their names, a decision and attributes are */
    free(c.tables[0].name);
    c.tables[0].name = str_dup("thrice");
    canonical(&c, other);
    CU_ASSERT_STRING_NOT_EQUAL(text, other);
    graph_block_free(&c);
    c = shared();
    c.tables[1].decision_top_k = 2;
    canonical(&c, other);
    CU_ASSERT_STRING_NOT_EQUAL(text, other);
    graph_block_free(&c);
    graph_block_free(&b);
    /* the vocabulary's size is none: a unit depends on its own rows; but where a linear reads the
     * table as well, its width is */
    b = projected(false, "w", "bias");
    canonical(&b, text);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "w0 F32 *x16\n"));
    graph_block_free(&b);
    b = shared();
    canonical(&b, text);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "w0 F32 30x16\n"));
    graph_block_free(&b);
    b = projected(false, "w", "bias");
    c = projected(false, "w", "bias");
    c.graph.nodes[3].numbers[NUM_EPS] = 1e-6;
    canonical(&b, text);
    canonical(&c, other);
    CU_ASSERT_PTR_NOT_NULL(strstr(text, "eps=1e-12"));
    CU_ASSERT_STRING_NOT_EQUAL(text, other);
    graph_block_free(&b);
    graph_block_free(&c);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"shared", test_shared},     {"aliases", test_aliases},     {"slices", test_slices},
        {"retained", test_retained}, {"projected", test_projected}, {"canonical", test_canonical},
    };
    return fixture_run("graph storage", cases, sizeof cases / sizeof cases[0]);
}
