/* SPDX-License-Identifier: Apache-2.0 */
/* Shapes, widths, dtypes; and what a block may not be. */
#include "tests/graph/graph_fixture.h"

static const struct fake_tensor tensors[] = {
    {"embed", DT_F32, 2, {20, 12}},
    {"embed16", DT_BF16, 2, {20, 12}},
    {"half", DT_F16, 2, {4, 12}},
    {"w", DT_F32, 2, {4, 12}},
    {"w_in_out", DT_F32, 2, {12, 4}},
    {"square", DT_F32, 2, {12, 12}},
    {"double", DT_F64, 2, {4, 12}},
    {"bias", DT_F32, 1, {4}},
    {"norm", DT_F32, 1, {12}},
    {"group", DT_F32, 1, {3}},
    {"integers", DT_I64, 2, {10, 6}},
    {"packed", DT_U8, 2, {4, 12}},
    {"eight", DT_F8_E4M3, 2, {4, 12}},
    {"strange", DT_UNKNOWN, 2, {4, 12}},
    {"cube", DT_F32, 3, {2, 2, 2}},
    {"empty", DT_F32, 2, {0, 12}},
    {"no_width", DT_F32, 2, {20, 0}},
    {"no_rows", DT_F32, 2, {0, 12}},
    {"huge", DT_F32, 2, {1ull << 33, 12}},
    {"fused", DT_F32, 2, {36, 12}},
    {"fused_bias", DT_F32, 1, {36}},
    {"overflow", DT_F32, 2, {1ull << 32, 1ull << 32}},
};

static enum status resolve(struct graph_block *b, struct err *err)
{
    struct fake_checkpoint c = {tensors, sizeof tensors / sizeof tensors[0]};
    *err = (struct err){0};
    return graph_block_resolve(b, fake_find, &c, err);
}

static int32_t weight(struct graph_block *b, const char *tensor)
{
    return fixture_weight(&b->graph, (struct graph_weight){0}, tensor, NULL);
}

/* Resolve and audit end well; free the block. */
static void accepted(struct graph_block *b, enum dtype dtype, uint64_t width)
{
    struct err err;
    enum status st = resolve(b, &err);
    if (st == ST_OK)
        st = graph_block_audit(b, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    CU_ASSERT_EQUAL(b->tables[0].dtype, dtype);
    CU_ASSERT_EQUAL(b->tables[0].width, width);
    CU_ASSERT_EQUAL(b->results[0].width, width);
    graph_block_free(b);
}

static void refused(struct graph_block *b, enum status expected, const char *part)
{
    struct err err;
    CU_ASSERT_EQUAL(resolve(b, &err), expected);
    CU_ASSERT_EQUAL(err.st, expected);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, "block"));
    graph_block_free(b);
}

/* embedding -> linear `w` (with the slicing of `how`), bias unless NULL. */
static struct graph_block linear_block(const char *embedding, struct graph_weight how,
                                       const char *w, const char *bias)
{
    struct graph_block b = fixture_block(embedding);
    int32_t wi = fixture_weight(&b.graph, how, w, NULL), bi = bias == NULL ? -1 : weight(&b, bias);
    fixture_output(&b, "output", fixture_linear(&b.graph, "layers[0]", 1, wi, bi));
    return b;
}

static struct graph_block norm_block(enum graph_op op, const char *w, double groups)
{
    struct graph_block b = fixture_block("embed");
    struct graph_node node;
    graph_node_init(&node, op);
    if (w != NULL)
        node.weights[ROLE_WEIGHT] = weight(&b, w);
    node.numbers[NUM_GROUPS] = groups;
    fixture_output(&b, "output", fixture_node(&b.graph, node, "layers[0]", 1, -1));
    return b;
}

static const struct graph_weight as_is = {0}, in_out = {.in_out = true};

static void test_shapes(void)
{
    struct graph_block b = fixture_block("embed");
    fixture_output(&b, "output", 1);
    accepted(&b, DT_F32, 12);
    b = linear_block("embed", as_is, "w", "bias");
    accepted(&b, DT_F32, 4);
    b = linear_block("embed", in_out, "w_in_out", "bias");
    accepted(&b, DT_F32, 4);
    b = linear_block("embed", as_is, "w_in_out", NULL);
    refused(&b, ST_SPEC,
            "block.layers[0].weight: tensor w_in_out has shape [12, 4], expected [out, 12]; stored "
            "the other way: \"orientation\": \"in_out\"");
    b = linear_block("embed", in_out, "w", NULL);
    refused(&b, ST_SPEC, "tensor w has shape [4, 12], expected [12, out]; stored the other way");
    b = linear_block("embed", as_is, "w", "norm");
    refused(&b, ST_SPEC, "block.layers[0].bias: tensor norm has shape [12], expected [4]");
    b = linear_block("embed", as_is, "w", "w");
    refused(&b, ST_SPEC, "block.layers[0].bias: tensor w has shape [4, 12], expected [4]");
    b = linear_block("embed", as_is, "norm", NULL);
    refused(&b, ST_SPEC, "block.layers[0].weight: tensor norm has shape [12], expected [out, 12]");
    b = linear_block("embed", as_is, "cube", NULL);
    refused(&b, ST_SPEC, "has 3 dimensions, expected 1 or 2");
    b = linear_block("norm", as_is, "w", NULL);
    refused(&b, ST_SPEC, "tensor norm has shape [12], expected [vocabulary, width]");
    b = linear_block("no_width", as_is, "w", NULL);
    refused(&b, ST_SPEC, "tensor no_width has shape [20, 0]");
    b = linear_block("embed", as_is, "empty", NULL);
    refused(&b, ST_SPEC, "tensor empty has shape [0, 12]");
    b = linear_block("embed", as_is, "huge", NULL);
    refused(&b, ST_SPEC, "width 8589934592, expected at most 2147483647");
    b = linear_block("embed", as_is, "overflow", NULL);
    refused(&b, ST_SPEC, "larger than 2^64 bytes");
    b = linear_block("embed", as_is, "absent", NULL);
    refused(&b, ST_STRUCTURE, "block.absent: no tensor absent");
}

static void test_norms(void)
{
    struct graph_block b = norm_block(OP_LAYER_NORM, NULL, 1);
    accepted(&b, DT_F32, 12);
    b = norm_block(OP_LAYER_NORM, "norm", 1);
    accepted(&b, DT_F32, 12);
    b = norm_block(OP_RMS_NORM, "group", 4);
    accepted(&b, DT_F32, 12);
    b = norm_block(OP_LAYER_NORM, "bias", 1);
    refused(&b, ST_SPEC, "block.layers[0].weight: tensor bias has shape [4], expected [12]");
    b = norm_block(OP_BIAS, "norm", 1);
    accepted(&b, DT_F32, 12);
    b = norm_block(OP_BIAS, "bias", 1);
    refused(&b, ST_SPEC, "block.layers[0].weight: tensor bias has shape [4], expected [12]");
    b = norm_block(OP_RMS_NORM, "norm", 4);
    refused(&b, ST_SPEC, "tensor norm has shape [12], expected [3]");
    b = norm_block(OP_FLOAT32_RMS_NORM, NULL, 5);
    refused(&b, ST_SPEC, "block.layers[0].groups: 5 does not divide the width 12");
}

static void test_dtypes(void)
{
    struct graph_block b = linear_block("embed16", as_is, "half", NULL);
    accepted(&b, DT_F32, 4); /* PyTorch's promotion */
    b = linear_block("embed16", as_is, "w", NULL);
    accepted(&b, DT_F32, 4);
    b = linear_block("embed", as_is, "double", "bias");
    accepted(&b, DT_F64, 4);
    b = fixture_block("embed16");
    fixture_output(&b, "output", fixture_op(&b.graph, OP_RELU, "layers[0]", 1, -1));
    accepted(&b, DT_BF16, 12);
    b = linear_block("integers", as_is, "w", NULL);
    refused(&b, ST_STRUCTURE,
            "tensor integers is I64, expected F64, F32, F16 or BF16 (integer "
            "weights are quantised");
    b = linear_block("embed", as_is, "packed", NULL);
    refused(&b, ST_STRUCTURE, "tensor packed is U8");
    b = linear_block("embed", as_is, "eight", NULL);
    refused(&b, ST_STRUCTURE,
            "tensor eight is F8_E4M3, expected F64, F32, F16 or BF16 (8-bit "
            "floats are quantised: their scales lie in another tensor");
    b = linear_block("embed", as_is, "strange", NULL);
    refused(&b, ST_STRUCTURE, "tensor strange is ?");
}

static void test_slices(void)
{
    struct graph_weight part = {.split = SPLIT_BLOCKS, .part = 2, .n_parts = 3};
    struct graph_block b = fixture_block("embed");
    int32_t w = fixture_weight(&b.graph, part, "fused", NULL),
            bias = fixture_weight(&b.graph, part, "fused_bias", NULL);
    fixture_output(&b, "output", fixture_linear(&b.graph, "layers[0]", 1, w, bias));
    accepted(&b, DT_F32, 12);
    b = linear_block("embed", part, "fused", "bias");
    refused(&b, ST_SPEC, "block.layers[0].bias: tensor bias has shape [4], expected [12]");
    b = linear_block("embed", part, "w", NULL);
    refused(&b, ST_SPEC, "split: part 2 of 3 equal parts of tensor w, found 4 rows");
    part.split_inputs = true;
    b = linear_block("embed", part, "fused", NULL);
    refused(&b, ST_SPEC,
            "the split of tensor fused leaves [out, in] = [36, 4], expected [out, 12]");
}

/* concat, slice, add, choices: what a discovered region may hold beside layers. */
static void test_regions(void)
{
    struct graph_block b = fixture_block("embed");
    uint32_t both = fixture_op(&b.graph, OP_CONCAT, "both", 1, 1);
    struct graph_node cut;
    graph_node_init(&cut, OP_SLICE);
    cut.numbers[NUM_START] = 4;
    cut.numbers[NUM_STOP] = -4;
    uint32_t middle = fixture_node(&b.graph, cut, "middle", both, -1);
    fixture_output(&b, "middle", middle);
    fixture_output(&b, "sum", fixture_op(&b.graph, OP_ADD, "sum", middle, middle));
    accepted(&b, DT_F32, 16);

    b = fixture_block("embed");
    graph_node_init(&cut, OP_SLICE);
    cut.numbers[NUM_START] = 4;
    cut.numbers[NUM_STOP] = 13;
    fixture_output(&b, "x", fixture_node(&b.graph, cut, "x", 1, -1));
    refused(&b, ST_SPEC, "block.x: columns 4 to 13, found a width of 12");

    b = linear_block("embed", as_is, "w", NULL);
    fixture_op(&b.graph, OP_MUL, "product", 1, 2);
    refused(&b, ST_SPEC, "block.product: mul of widths 12 and 4, expected equal ones");

    b = fixture_block("embed");
    graph_node_init(&cut, OP_TOP_K);
    cut.numbers[NUM_K] = 13;
    fixture_node(&b.graph, cut, "top", 1, -1);
    refused(&b, ST_SPEC, "block.top.k: expected at most the width 12, found 13");

    b = fixture_block("embed");
    fixture_op(&b.graph, OP_ARGMAX, "best", 1, -1);
    fixture_op(&b.graph, OP_RELU, "relu", 2, -1);
    refused(&b, ST_STRUCTURE, "block.relu: relu reads block.best (I64)");

    b = fixture_block("embed");
    fixture_op(&b.graph, OP_RELU, "relu", 0, -1);
    refused(&b, ST_STRUCTURE, "block.relu: relu reads block.ids (token ids)");

    b = fixture_block("embed");
    fixture_output(&b, "output", 1);
    b.tables[0].decision_top_k = 13;
    refused(&b, ST_SPEC, "decision of output output: top_k 13, expected at most its width 12");
}

/* Every op that is not row-local is refused by resolve and by the audit, which name the node. */
static void test_locality(void)
{
    for (int i = 0; i < OP_COUNT; i++) {
        enum graph_op op = (enum graph_op)i;
        const struct graph_op_info *info = graph_op(op);
        if (info->locality == LOCAL_ROW || info->locality == LOCAL_SOURCE)
            continue;
        struct graph_block b = fixture_block("embed");
        struct graph_node node;
        struct err err = {0};
        uint32_t index;
        graph_node_init(&node, op);
        node.numbers[NUM_AXIS] = -2;
        node.name = str_dup("mixer");
        node.where = str_dup("graph.nodes[7]");
        node.n_inputs = info->min_inputs;
        for (unsigned k = 0; k < node.n_inputs; k++)
            node.inputs[k] = 1;
        CU_ASSERT_EQUAL(graph_node_take(&b.graph, &node, &index, &err), ST_OK);
        fixture_output(&b, "output", index);
        CU_ASSERT_EQUAL(graph_block_audit(&b, &err), ST_STRUCTURE);
        CU_ASSERT(fixture_says(&err, "graph.nodes[7]: "));
        CU_ASSERT(fixture_says(&err, info->name));
        if (info->locality != LOCAL_SHAPE)
            CU_ASSERT(fixture_says(&err, info->locality == LOCAL_TOKENS ? "mixes tokens"
                                                                        : "on the position"));
        err_clear(&err);
        CU_ASSERT_EQUAL(resolve(&b, &err), ST_STRUCTURE);
        CU_ASSERT(fixture_says(&err, "graph.nodes[7]: "));
        graph_block_free(&b);
    }
}

static void audit_refused(struct graph_block *b, const char *part)
{
    struct err err = {0};
    CU_ASSERT_EQUAL(graph_block_audit(b, &err), ST_STRUCTURE);
    CU_ASSERT(fixture_says(&err, part));
    graph_block_free(b);
}

static void test_audit(void)
{
    struct graph_block b = {.bias_weight = -1};
    audit_refused(&b, "block: no token-id input");
    b = fixture_block("embed");
    audit_refused(&b, "block: no output to tabulate");
    b = fixture_block("embed");
    fixture_op(&b.graph, OP_INPUT, "values", -1, -1);
    audit_refused(&b, "block.values: a second input");
    b = fixture_block("embed");
    struct graph_node second;
    graph_node_init(&second, OP_EMBEDDING);
    second.weights[ROLE_WEIGHT] = weight(&b, "embed16");
    fixture_node(&b.graph, second, "types", 0, -1);
    audit_refused(&b, "block.types: a second embedding beside block.embedding");
    b = fixture_block("embed");
    fixture_op(&b.graph, OP_RELU, "relu", 0, -1);
    audit_refused(&b, "block.relu: relu reads block.ids itself");
    b = fixture_block("embed");
    fixture_output(&b, "best", fixture_op(&b.graph, OP_ARGMAX, "best", 1, -1));
    audit_refused(&b, "block.best: output best is integer");
    b = (struct graph_block){.bias_weight = -1};
    fixture_op(&b.graph, OP_INPUT, "ids", -1, -1);
    audit_refused(&b, "block: no embedding reads the token ids");
    struct err err;
    b = fixture_block("no_rows");
    fixture_output(&b, "output", 1);
    CU_ASSERT_EQUAL(resolve(&b, &err), ST_OK);
    audit_refused(&b, "block.embedding: tensor no_rows has no rows");
}

static void test_aliases(void)
{
    struct graph_block b = fixture_block("embed");
    int32_t w = fixture_weight(&b.graph, as_is, "head", "absent");
    fixture_output(&b, "output", fixture_linear(&b.graph, "layers[0]", 1, w, -1));
    refused(&b, ST_STRUCTURE, "block.head: alias head: no tensor absent");
    b = fixture_block("embed");
    w = fixture_weight(&b.graph, as_is, "head", "embed");
    fixture_output(&b, "output", fixture_linear(&b.graph, "layers[0]", 1, w, -1));
    accepted(&b, DT_F32, 20);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"shapes", test_shapes}, {"norms", test_norms},     {"dtypes", test_dtypes},
        {"slices", test_slices}, {"regions", test_regions}, {"locality", test_locality},
        {"audit", test_audit},   {"aliases", test_aliases},
    };
    return fixture_run("graph resolve", cases, sizeof cases / sizeof cases[0]);
}
