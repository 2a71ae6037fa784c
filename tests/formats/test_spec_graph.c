/* SPDX-License-Identifier: Apache-2.0 */
/* The graph form: an enclosing model. */
#include "tests/formats/spec_fixture.h"

#include <cjson/cJSON.h>

#define IN "{'name': 'ids', 'kind': 'token_ids'}"
#define EMBED "{'name': 'x', 'op': 'embedding', 'inputs': ['ids'], 'weight': 'e'}"
#define OUT "{'name': 'y', 'node': 'x'}"
#define GRAPH(inputs, nodes, outputs)                                                              \
    SPEC_HEAD "'graph': {'inputs': [" inputs "], 'nodes': [" nodes "], 'outputs': [" outputs "]}}"

/* A layer of a decoder, a gated MLP, logits. */
static const char decoder[] = GRAPH(
    IN ", {'name': 'mask', 'kind': 'mask', 'dtype': 'F32'}",
    EMBED
    ", {'name': 'n', 'op': 'float32_rms_norm', 'inputs': ['x'], 'weight': 'g', 'eps': 1e-5}, "
    "{'name': 'q', 'op': 'linear', 'inputs': ['n'], 'weight': 'q'}, "
    "{'name': 'k', 'op': 'linear', 'inputs': ['n'], 'weight': 'k'}, "
    "{'name': 'v', 'op': 'linear', 'inputs': ['n'], 'weight': 'v'}, "
    "{'name': 'qr', 'op': 'rope', 'inputs': ['q'], 'head_dim': 8, 'convention': 'half'}, "
    "{'name': 'kr', 'op': 'rope', 'inputs': ['k'], 'head_dim': 8, 'convention': 'interleaved', "
    "'theta': 5e5, 'rotary_dim': 4}, "
    "{'name': 'a', 'op': 'attention', 'inputs': ['qr', 'kr', 'v', 'mask'], 'heads': 4, 'kv_heads': "
    "2, 'causal': true}, "
    "{'name': 'h', 'op': 'add', 'inputs': ['x', 'a']}, "
    "{'name': 'g', 'op': 'silu', 'inputs': ['h']}, "
    "{'name': 'm', 'op': 'mul', 'inputs': ['g', 'h']}, "
    "{'name': 'logits', 'op': 'linear', 'inputs': ['m'], 'weight': 'lm_head'}, "
    "{'name': 'best', 'op': 'argmax', 'inputs': ['logits'], 'comment': 'greedy'}",
    "{'name': 'logits', 'node': 'logits', 'decision': {'top_k': 1}}, {'name': 'best', 'node': "
    "'best'}, {'name': 'embedding', 'node': 'x'}");

static struct graph_model *model(const char *text, struct format_spec **spec)
{
    struct graph_model *m = NULL;
    struct err err = {0};
    *spec = spec_accepted(text);
    if (*spec != NULL)
        CU_ASSERT_EQUAL(format_spec_graph(*spec, &m, &err), ST_OK);
    return m;
}

static const struct graph_node *named(const struct graph_model *m, const char *name)
{
    for (size_t i = 0; i < m->graph.n_nodes; i++)
        if (strcmp(m->graph.nodes[i].name, name) == 0)
            return &m->graph.nodes[i];
    return &m->graph.nodes[0];
}

static void test_decoder(void)
{
    struct format_spec *spec;
    struct graph_model *m = model(decoder, &spec);
    CU_ASSERT_PTR_NOT_NULL(m);
    if (m == NULL)
        return;
    CU_ASSERT(m->n_inputs == 2 && m->n_outputs == 3 && m->graph.n_nodes == 15);
    CU_ASSERT(m->inputs[0].kind == INPUT_TOKEN_IDS && m->inputs[0].dtype == DT_I64);
    CU_ASSERT(m->inputs[1].kind == INPUT_MASK && m->inputs[1].dtype == DT_F32);
    CU_ASSERT_EQUAL(m->graph.nodes[m->inputs[1].node].op, OP_INPUT);
    CU_ASSERT_STRING_EQUAL(m->outputs[0].name, "logits");
    CU_ASSERT_EQUAL(m->outputs[0].decision_top_k, 1);
    CU_ASSERT_STRING_EQUAL(m->graph.nodes[m->outputs[2].node].name, "x");
    const struct graph_node *a = named(m, "a"), *q = named(m, "qr"), *k = named(m, "kr");
    CU_ASSERT(a->op == OP_ATTENTION && a->n_inputs == 4 && a->numbers[NUM_CAUSAL] == 1);
    CU_ASSERT(a->numbers[NUM_HEADS] == 4 && a->numbers[NUM_KV_HEADS] == 2);
    CU_ASSERT_STRING_EQUAL(a->where, "graph.nodes[7]");
    CU_ASSERT(q->numbers[NUM_CONVENTION] == 0 && q->numbers[NUM_THETA] == 10000);
    CU_ASSERT(k->numbers[NUM_CONVENTION] == 1 && k->numbers[NUM_THETA] == 5e5);
    CU_ASSERT_EQUAL(k->numbers[NUM_ROTARY_DIM], 4);
    CU_ASSERT_PTR_NOT_NULL(spec->graph);
    graph_model_free(&m);
    CU_ASSERT_PTR_NULL(m);
    format_spec_free(&spec);
}

static void test_other_ops(void)
{
    struct format_spec *spec;
    struct graph_model *m = model(
        GRAPH(
            IN ", {'name': 'v', 'kind': 'values'}, {'name': 'p', 'kind': 'integers', 'dtype': "
               "'I32'}",
            EMBED
            ", {'name': 'zf', 'op': 'linear', 'inputs': ['x'], 'weight': 'f.W', 'orientation': "
            "'in_out'}, {'name': 'l', 'op': 'lstm', 'inputs': ['zf', 'zf'], 'weight': 'f.U', "
            "'weight_backward': 'b.U', 'gates': 'ifco', 'bidirectional': true, 'orientation': "
            "'in_out'}, {'name': 'l1', 'op': 'lstm', 'inputs': ['zf'], 'weight': 'f.U', 'gates': "
            "'iofc', 'reverse': true}, {'name': 'pos', 'op': 'absolute_position', 'inputs': ['x', "
            "'p'], 'weight': 'wpe'}, {'name': 'r', 'op': 'reshape', 'inputs': ['x'], 'dims': [-1, "
            "4]}, {'name': 't', 'op': 'transpose', 'inputs': ['r'], 'dims': [1, 0]}, {'name': "
            "'mm', "
            "'op': 'matmul', 'inputs': ['x', 't'], 'transpose_b': true}, {'name': 'moe', 'op': "
            "'moe', 'inputs': ['x', 'v'], 'slope': 's', 'offset': 'o', 'k': 5, 'experts': 10}, "
            "{'name': 's', 'op': 'slice', 'inputs': ['x'], 'start': -2, 'stop': 4}, {'name': 'c', "
            "'op': 'concat', 'inputs': ['x', 's']}, {'name': 'k', 'op': 'top_k', 'inputs': ['x'], "
            "'k': 5}, {'name': 'avg', 'op': 'mean_tokens', 'inputs': ['x']}, {'name': 'sm', 'op': "
            "'softmax', 'inputs': ['x']}, {'name': 'lk', 'op': 'lookup', 'inputs': ['ids'], "
            "'recipe': 'recipes/first', 'output': 'q'}",
            OUT),
        &spec);
    CU_ASSERT_PTR_NOT_NULL(m);
    if (m == NULL)
        return;
    const struct graph_node *l = named(m, "l"), *t = named(m, "r"), *lk = named(m, "lk");
    CU_ASSERT(l->weights[ROLE_RECURRENT] >= 0 && l->weights[ROLE_EXTRA] >= 0);
    CU_ASSERT(m->graph.weights[l->weights[ROLE_RECURRENT]].in_out);
    CU_ASSERT(l->numbers[NUM_CONVENTION] == 0 && l->numbers[NUM_BIDIRECTIONAL] == 1);
    CU_ASSERT(named(m, "l1")->numbers[NUM_CONVENTION] == 2);
    CU_ASSERT(t->n_dims == 2 && t->dims[0] == -1 && t->dims[1] == 4);
    CU_ASSERT_STRING_EQUAL(lk->texts[TEXT_RECIPE], "recipes/first");
    CU_ASSERT_STRING_EQUAL(lk->texts[TEXT_OUTPUT], "q");
    CU_ASSERT(named(m, "s")->numbers[NUM_START] == -2 && named(m, "c")->numbers[NUM_AXIS] == -1);
    CU_ASSERT_EQUAL(m->inputs[2].dtype, DT_I32);
    graph_model_free(&m);
    format_spec_free(&spec);
    /* no graph, no model */
    struct err err = {0};
    spec = spec_accepted(SPEC_HEAD "'block': {'kind': 'lookup', 'embedding': {'weight': 'e'}, "
                                   "'layers': []}}");
    CU_ASSERT(spec != NULL && format_spec_graph(spec, &m, &err) == ST_OK && m == NULL);
    format_spec_free(&spec);
}

static void node_refused(const char *node, const char *part)
{
    char *text = str_printf(GRAPH(IN ", {'name': 'v', 'kind': 'values'}", EMBED ", %s", OUT), node);
    char *where = str_printf("graph.nodes[1]%s", part);
    spec_refused(text, ST_SPEC, where);
    free(text);
    free(where);
}

static void test_nodes(void)
{
    node_refused("3", ": expected an object with a key \"op\"");
    node_refused("{'name': 'a', 'inputs': ['x']}", ".op: missing (required for a node)");
    node_refused("{'op': 'relu', 'inputs': ['x']}", ".name: missing (required for a node)");
    node_refused("{'name': 'a', 'op': 'relu'}", ".inputs: missing (required for a node)");
    node_refused("{'name': 'a', 'op': 'relu', 'inputs': 'x'}", ".inputs: expected an array");
    node_refused("{'name': 'a', 'op': 'relu', 'inputs': []}",
                 ".inputs: relu takes 1 inputs, found 0");
    node_refused("{'name': 'a', 'op': 'attention', 'inputs': ['x'], 'heads': 1, 'causal': true}",
                 ".inputs: attention takes 3 to 4 inputs, found 1");
    node_refused("{'name': 'a', 'op': 'relu', 'inputs': ['xx']}",
                 ".inputs[0]: no input or node xx, nearest is x");
    node_refused("{'name': 'a', 'op': 'relu', 'inputs': ['a']}",
                 ".inputs[0]: a is declared at this node or later");
    node_refused("{'name': 'a', 'op': 'relu', 'inputs': [0]}",
                 ".inputs[0]: expected a string (the name of an input or node), found number 0");
    node_refused("{'name': 'x', 'op': 'relu', 'inputs': ['x']}",
                 ".name: x is already the name of graph.nodes[0]");
    node_refused("{'name': 'ids', 'op': 'relu', 'inputs': ['x']}",
                 ".name: ids is already the name of graph.inputs[0]");
    node_refused("{'name': 'a b', 'op': 'relu', 'inputs': ['x']}", ".name: expected a name");
    node_refused("{'name': 'a', 'op': 'relu', 'inputs': ['x'], 'weight': 'w'}",
                 ".weight: unknown key, nearest known key is ");
    node_refused("{'name': 'a', 'op': 'input', 'inputs': []}", ".op: inputs are declared in");
    node_refused("{'name': 'a', 'op': 'attenton', 'inputs': []}",
                 ".op: unknown op \"attenton\", nearest is \"attention\"");
    node_refused("{'name': 'a', 'op': 'embedding', 'inputs': ['v'], 'weight': 'e'}",
                 ".inputs[0]: embedding reads token ids, v is no input of kind token_ids");
    node_refused("{'name': 'a', 'op': 'embedding', 'inputs': ['x'], 'weight': 'e'}",
                 ".inputs[0]: embedding reads token ids, x is no input");
    node_refused("{'name': 'a', 'op': 'attention', 'inputs': ['x', 'x', 'x'], 'heads': 3, "
                 "'kv_heads': 2, 'causal': true}",
                 ": attention: heads 3, expected a multiple of kv_heads 2");
    node_refused("{'name': 'a', 'op': 'attention', 'inputs': ['x', 'x', 'x'], 'heads': 3}",
                 ".causal: missing (required for attention)");
    node_refused(
        "{'name': 'a', 'op': 'attention', 'inputs': ['x', 'x', 'x'], 'heads': 3, 'causal': "
        "1}",
        ".causal: expected true or false, found number 1");
    node_refused("{'name': 'a', 'op': 'rope', 'inputs': ['x'], 'head_dim': 8}",
                 ".convention: missing (required for rope)");
    node_refused(
        "{'name': 'a', 'op': 'rope', 'inputs': ['x'], 'head_dim': 7, 'convention': 'half'}",
        ": rope: rotary_dim 0, expected an even number up to head_dim 7");
    node_refused("{'name': 'a', 'op': 'lstm', 'inputs': ['x'], 'weight': 'u', 'gates': 'ifgo', "
                 "'bidirectional': true}",
                 ": lstm: expected one input, or bidirectional with two");
    node_refused("{'name': 'a', 'op': 'lstm', 'inputs': ['x'], 'weight': 'u', 'gates': 'fico'}",
                 ".gates: expected \"ifco\" or \"ifgo\" or \"iofc\"");
    node_refused(
        "{'name': 'a', 'op': 'moe', 'inputs': ['x', 'v'], 'slope': 's', 'k': 5, 'experts': "
        "4}",
        ": moe: k 5 above experts 4");
    node_refused("{'name': 'a', 'op': 'reshape', 'inputs': ['x']}", ".dims: missing");
    node_refused("{'name': 'a', 'op': 'reshape', 'inputs': ['x'], 'dims': []}",
                 ".dims: expected 1 to 8 whole numbers, found 0");
    node_refused("{'name': 'a', 'op': 'reshape', 'inputs': ['x'], 'dims': [1, 'x']}",
                 ".dims[1]: expected a whole number, -1 or more");
    node_refused("{'name': 'a', 'op': 'top_k', 'inputs': ['x'], 'k': 0}",
                 ".k: expected a whole number from 1");
    node_refused("{'name': 'a', 'op': 'lookup', 'inputs': ['ids'], 'recipe': ''}",
                 ".recipe: expected a string that is not empty");
    spec_refused(GRAPH(IN, EMBED ", {'name': 'g', 'op': 'gru', 'inputs': ['x']}", OUT),
                 ST_STRUCTURE, "graph.nodes[1].op: gru mixes tokens");
    spec_refused(GRAPH(IN,
                       "{'name': 'x', 'op': 'embedding', 'inputs': ['ids'], 'weight': 'e', "
                       "'max_norm': 1}",
                       OUT),
                 ST_STRUCTURE, "graph.nodes[0].max_norm: max_norm changes");
}

static void test_ends(void)
{
    spec_refused(SPEC_HEAD "'graph': []}", ST_SPEC, "graph: expected an object, found an array");
    spec_refused(SPEC_HEAD "'graph': {'nodes': [], 'outputs': []}}", ST_SPEC,
                 "graph.inputs: missing (required for graph)");
    spec_refused(SPEC_HEAD "'graph': {'input': []}}", ST_SPEC,
                 "graph.input: unknown key, nearest known key is \"inputs\"");
    spec_refused(GRAPH("", EMBED, OUT), ST_SPEC, "graph.inputs: expected at least one entry");
    spec_refused(GRAPH(IN, EMBED, ""), ST_SPEC, "graph.outputs: expected at least one entry");
    spec_refused(GRAPH("{'name': 'ids', 'kind': 'tokens'}", EMBED, OUT), ST_SPEC,
                 "graph.inputs[0].kind: expected \"token_ids\" or \"values\" or \"mask\" or "
                 "\"integers\"");
    spec_refused(GRAPH("{'name': 'ids'}", EMBED, OUT), ST_SPEC, "graph.inputs[0].kind: missing");
    spec_refused(GRAPH("{'kind': 'mask'}", EMBED, OUT), ST_SPEC, "graph.inputs[0].name: missing");
    spec_refused(GRAPH("{'name': 'ids', 'kind': 'token_ids', 'dtype': 'F32'}", EMBED, OUT), ST_SPEC,
                 "graph.inputs[0].dtype: expected \"I64\" or \"I32\", found string \"F32\"");
    spec_refused(GRAPH(IN ", {'name': 'm', 'kind': 'mask', 'dtype': 'I8'}", EMBED, OUT), ST_SPEC,
                 "graph.inputs[1].dtype: expected \"F64\", \"F32\", \"F16\", \"BF16\" or \"BOOL\"");
    spec_refused(GRAPH(IN ", {'name': 'm', 'kind': 'values', 'dtype': 3}", EMBED, OUT), ST_SPEC,
                 "graph.inputs[1].dtype: expected \"F64\"");
    spec_refused(GRAPH(IN ", " IN, EMBED, OUT), ST_SPEC,
                 "graph.inputs[1].name: ids is already the name of graph.inputs[0]");
    spec_refused(GRAPH(IN, EMBED, OUT ", " OUT), ST_SPEC,
                 "graph.outputs[1].name: a second output of name y");
    spec_refused(GRAPH(IN, EMBED, "{'name': 'y'}"), ST_SPEC, "graph.outputs[0].node: missing");
    spec_refused(GRAPH(IN, EMBED, "{'name': 'y', 'node': 'z'}"), ST_SPEC,
                 "graph.outputs[0].node: no input or node z, nearest is x");
    spec_refused(GRAPH(IN, EMBED, "{'node': 'x'}"), ST_SPEC, "graph.outputs[0].name: missing");
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"decoder", test_decoder},
        {"other ops", test_other_ops},
        {"nodes", test_nodes},
        {"ends", test_ends},
    };
    return fixture_run("spec graph", cases, sizeof cases / sizeof cases[0]);
}
