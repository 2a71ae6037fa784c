/* SPDX-License-Identifier: Apache-2.0 */
/* The op table: what a spec may write. */
#include "tests/graph/graph_fixture.h"

static void test_table(void)
{
    for (int op = 0; op < OP_COUNT; op++) {
        const struct graph_op_info *info = graph_op((enum graph_op)op);
        CU_ASSERT_EQUAL(graph_op_find(info->name), op);
        CU_ASSERT(info->min_inputs <= info->max_inputs && info->max_inputs <= GRAPH_MAX_INPUTS);
        for (size_t i = 0; i < info->n_attrs; i++) {
            const struct graph_attr *a = &info->attrs[i];
            CU_ASSERT_PTR_EQUAL(graph_attr_find((enum graph_op)op, a->key), a);
            if (a->kind == ATTR_TENSOR)
                CU_ASSERT(a->slot >= 0 && a->slot < ROLE_COUNT);
            if (a->kind <= ATTR_CHOICE)
                CU_ASSERT(a->slot >= 0 && a->slot < NUM_COUNT);
            if (a->kind == ATTR_CHOICE)
                CU_ASSERT_PTR_NOT_NULL(a->choices);
            /* N27: no model's eps is another model's default */
            if (strcmp(a->key, "eps") == 0)
                CU_ASSERT(a->required && a->min == 0);
        }
    }
    CU_ASSERT_EQUAL(graph_op_find("gelu"), OP_COUNT);
    CU_ASSERT_EQUAL(graph_op_find(""), OP_COUNT);
    CU_ASSERT_PTR_NULL(graph_attr_find(OP_RELU, "eps"));
    CU_ASSERT_STRING_EQUAL(graph_op_nearest("layernorm"), "layer_norm");
    CU_ASSERT_STRING_EQUAL(graph_op_nearest("linaer"), "linear");
}

static void test_defaults(void)
{
    struct graph_node node;
    graph_node_init(&node, OP_SOFTPLUS);
    CU_ASSERT_EQUAL(node.numbers[NUM_BETA], 1.0);
    CU_ASSERT_EQUAL(node.numbers[NUM_THRESHOLD], 20.0);
    CU_ASSERT_EQUAL(node.weights[ROLE_WEIGHT], -1);
    graph_node_init(&node, OP_LEAKY_RELU);
    CU_ASSERT_EQUAL(node.numbers[NUM_NEGATIVE_SLOPE], 0.01);
    graph_node_init(&node, OP_HARDTANH);
    CU_ASSERT_EQUAL(node.numbers[NUM_MIN], -1.0);
    CU_ASSERT_EQUAL(node.numbers[NUM_MAX], 1.0);
    graph_node_init(&node, OP_ELU);
    CU_ASSERT_EQUAL(node.numbers[NUM_ALPHA], 1.0);
    graph_node_init(&node, OP_RMS_NORM);
    CU_ASSERT_EQUAL(node.numbers[NUM_WEIGHT_OFFSET], 0.0);
    CU_ASSERT_EQUAL(node.numbers[NUM_WEIGHT_OFFSET_DTYPE], DT_UNKNOWN);
    CU_ASSERT_EQUAL(node.numbers[NUM_GROUPS], 1.0);
    graph_node_init(&node, OP_SCALE);
    CU_ASSERT_EQUAL(node.numbers[NUM_VALUE_DTYPE], DT_UNKNOWN);
}

/* DESIGN.md names the ops of a block; everything else has a reason or is of the graph form. */
static void test_layers(void)
{
    static const char *const layers[] = {
        "linear",       "layer_norm", "rms_norm",  "float32_rms_norm",
        "l2_normalize", "scale",      "dropout",   "identity",
        "relu",         "relu6",      "gelu_erf",  "gelu_tanh",
        "silu",         "quick_gelu", "tanh",      "sigmoid",
        "elu",          "celu",       "softplus",  "leaky_relu",
        "softsign",     "hardtanh",   "hardswish", "hardsigmoid",
        "mish",         "selu",       "renorm",    "bias",
    };
    size_t n = 0;
    for (int op = 0; op < OP_COUNT; op++)
        n += graph_op_is_layer((enum graph_op)op);
    CU_ASSERT_EQUAL(n, sizeof layers / sizeof layers[0]);
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        enum graph_op op = graph_op_find(layers[i]);
        CU_ASSERT(op != OP_COUNT && graph_op_is_layer(op));
        CU_ASSERT_PTR_NULL(graph_op_reason(layers[i]));
    }
}

static void test_reasons(void)
{
    for (int op = 0; op < OP_COUNT; op++) {
        const struct graph_op_info *info = graph_op((enum graph_op)op);
        const char *reason = graph_op_reason(info->name);
        if (info->locality == LOCAL_TOKENS) {
            CU_ASSERT(reason != NULL && strstr(reason, "mixes tokens") != NULL);
        } else if (info->locality == LOCAL_POSITION) {
            CU_ASSERT(reason != NULL && strstr(reason, "position") != NULL);
        } else if (op == OP_RESHAPE || op == OP_TRANSPOSE) {
            CU_ASSERT(reason != NULL);
        } else {
            CU_ASSERT_PTR_NULL(reason);
        }
    }
    /* N31: GPT-2, BERT and Whisper */
    const char *absolute = graph_op_reason("absolute_position");
    CU_ASSERT(absolute != NULL && strstr(absolute, "before the first norm") != NULL &&
              strstr(absolute, "GPT-2") != NULL && strstr(absolute, "token alone") != NULL);
    CU_ASSERT_PTR_EQUAL(graph_op_reason("positional_embedding"), absolute);
    CU_ASSERT_PTR_NOT_NULL(graph_op_reason("gru"));
    CU_ASSERT_PTR_NULL(graph_op_reason("no such thing"));
}

static void test_nodes(void)
{
    struct graph g = {0};
    struct graph_node node;
    struct err err = {0};
    uint32_t index;
    fixture_op(&g, OP_INPUT, "ids", -1, -1);
    /* a name once */
    graph_node_init(&node, OP_RELU);
    node.name = str_dup("ids");
    node.where = str_dup("block.x");
    node.n_inputs = 1;
    CU_ASSERT_EQUAL(graph_node_take(&g, &node, &index, &err), ST_SPEC);
    CU_ASSERT(fixture_says(&err, "block.x: node name ids is already that of block.ids"));
    CU_ASSERT_PTR_NOT_NULL(node.name);
    /* inputs are earlier nodes, as many as the op takes */
    err_clear(&err);
    free(node.name);
    node.name = str_dup("x");
    node.inputs[0] = 1;
    CU_ASSERT_EQUAL(graph_node_take(&g, &node, &index, &err), ST_SPEC);
    CU_ASSERT(fixture_says(&err, "input 0 is not an earlier node"));
    err_clear(&err);
    node.n_inputs = 2;
    CU_ASSERT_EQUAL(graph_node_take(&g, &node, &index, &err), ST_SPEC);
    CU_ASSERT(fixture_says(&err, "relu takes at least 1 and at most 1 inputs, found 2"));
    graph_node_free(&node);
    for (int i = 0; i < 40; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        CU_ASSERT_EQUAL(fixture_op(&g, OP_RELU, name, i, -1), (uint32_t)i + 1);
    }
    /* (tensor, slice, orientation) once */
    struct graph_weight plain = {0}, other = {.in_out = true},
                        part = {.split = SPLIT_BLOCKS, .part = 1, .n_parts = 3};
    CU_ASSERT_EQUAL(fixture_weight(&g, plain, "w", NULL), 0);
    CU_ASSERT_EQUAL(fixture_weight(&g, other, "w", NULL), 1);
    CU_ASSERT_EQUAL(fixture_weight(&g, part, "w", NULL), 2);
    CU_ASSERT_EQUAL(fixture_weight(&g, plain, "v", NULL), 3);
    CU_ASSERT_EQUAL(fixture_weight(&g, part, "w", NULL), 2);
    CU_ASSERT_EQUAL(fixture_weight(&g, plain, "w", NULL), 0);
    part.part = 2;
    CU_ASSERT_EQUAL(fixture_weight(&g, part, "w", NULL), 4);
    CU_ASSERT_EQUAL(g.n_weights, 5);
    graph_free(&g);
    CU_ASSERT_PTR_NULL(g.nodes);
    graph_free(&g);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"table", test_table},     {"defaults", test_defaults}, {"layers", test_layers},
        {"reasons", test_reasons}, {"nodes", test_nodes},
    };
    return fixture_run("graph ops", cases, sizeof cases / sizeof cases[0]);
}
