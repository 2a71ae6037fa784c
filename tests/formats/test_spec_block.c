/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: what they may hold and which token graph they give. */
#include "tests/formats/spec_fixture.h"

#define E "'embedding': {'weight': 'e'}, "
#define LOOKUP(layers) SPEC_HEAD "'block': {'kind': 'lookup', " E "'layers': [" layers "]}}"
#define FANOUT(rest) SPEC_HEAD "'block': {'kind': 'fanout', " E rest "}}"
#define PROJECTED(rest) SPEC_HEAD "'block': {'kind': 'projected', " E rest "}}"

static const struct graph_node *node_at(const struct format_spec *s, uint32_t i)
{
    return &s->blocks[0].graph.nodes[i];
}

static void test_lookup(void)
{
    struct format_spec *s = spec_accepted(
        LOOKUP("{'op': 'layer_norm', 'weight': 'g', 'eps': 1e-5}, {'op': 'linear', 'weight': 'w', "
               "'bias': 'b', 'comment': 'up'}, {'op': 'gelu_erf'}"));
    if (s == NULL)
        return;
    const struct graph_block *b = &s->blocks[0];
    CU_ASSERT_EQUAL(b->kind, BLOCK_LOOKUP);
    CU_ASSERT_STRING_EQUAL(b->name, "block");
    CU_ASSERT_EQUAL(b->graph.n_nodes, 5);
    CU_ASSERT_EQUAL(node_at(s, 0)->op, OP_INPUT);
    CU_ASSERT_EQUAL(node_at(s, 1)->op, OP_EMBEDDING);
    CU_ASSERT_EQUAL(node_at(s, 2)->numbers[NUM_EPS], 1e-5);
    CU_ASSERT_STRING_EQUAL(node_at(s, 3)->name, "layers[1]");
    CU_ASSERT_STRING_EQUAL(node_at(s, 3)->where, "block.layers[1]");
    CU_ASSERT_EQUAL(node_at(s, 3)->inputs[0], 2);
    CU_ASSERT_STRING_EQUAL(b->graph.weights[node_at(s, 3)->weights[ROLE_BIAS]].where,
                           "block.layers[1].bias");
    CU_ASSERT(b->n_tables == 1 && b->n_results == 1 && b->bias_weight == -1);
    CU_ASSERT_STRING_EQUAL(b->tables[0].name, "output");
    CU_ASSERT_EQUAL(b->tables[0].node, 4);
    CU_ASSERT_EQUAL(b->results[0].node, 4);
    format_spec_free(&s);
    s = spec_accepted(SPEC_HEAD
                      "'block': {'kind': 'lookup', 'name': 'router', 'output': 'logits', " E
                      "'layers': [], 'decision': {'top_k': 5, 'softmax': true}, "
                      "'external_consumers': ['e']}}");
    if (s == NULL)
        return;
    b = &s->blocks[0];
    CU_ASSERT_STRING_EQUAL(b->name, "router");
    CU_ASSERT_STRING_EQUAL(b->tables[0].name, "logits");
    CU_ASSERT_EQUAL(b->tables[0].node, 1);
    CU_ASSERT(b->tables[0].decision_top_k == 5 && b->tables[0].decision_softmax);
    CU_ASSERT(b->results[0].decision_top_k == 5 && b->results[0].decision_softmax);
    CU_ASSERT_EQUAL(b->n_external_consumers, 1);
    format_spec_free(&s);
}

static void test_fanout(void)
{
    struct format_spec *s = spec_accepted(
        FANOUT("'prefix': [{'op': 'scale', 'value': 2}, {'op': 'relu'}], 'branches': {'q': [{'op': "
               "'linear', 'weight': 'w'}], 'none': [], 'router': {'layers': [{'op': 'linear', "
               "'weight': 'w'}], 'decision': {'top_k': 2}}}, 'residual': 'residual'"));
    if (s == NULL)
        return;
    const struct graph_block *b = &s->blocks[0];
    CU_ASSERT_EQUAL(b->n_tables, 4);
    CU_ASSERT_STRING_EQUAL(b->tables[0].name, "q");
    CU_ASSERT_STRING_EQUAL(b->tables[3].name, "residual");
    CU_ASSERT_EQUAL(b->tables[0].node, 4);
    CU_ASSERT_EQUAL(b->tables[1].node, 3); /* an empty branch is the end of the prefix */
    CU_ASSERT_EQUAL(b->tables[3].node, 1); /* the embedding */
    CU_ASSERT(b->tables[2].decision_top_k == 2 && !b->tables[2].decision_softmax);
    CU_ASSERT_EQUAL(b->graph.n_weights, 2); /* one matrix in two branches */
    CU_ASSERT_STRING_EQUAL(node_at(s, 4)->name, "branches.q[0]");
    CU_ASSERT_STRING_EQUAL(node_at(s, 4)->where, "block.branches.q[0]");
    CU_ASSERT_STRING_EQUAL(node_at(s, 5)->where, "block.branches.router.layers[0]");
    format_spec_free(&s);
    /* the list form, and a residual behind prefix layers */
    for (int after = 0; after <= 2; after++) {
        char text[1024];
        snprintf(
            text, sizeof text,
            FANOUT("'prefix': [{'op': 'relu'}, {'op': 'tanh'}], 'branches': [{'name': 'q', "
                   "'layers': [{'op': 'relu'}]}], 'residual': {'name': 'hidden', 'after': %d}"),
            after);
        s = spec_accepted(text);
        if (s == NULL)
            return;
        CU_ASSERT_EQUAL(s->blocks[0].tables[1].node, (uint32_t)(1 + after));
        CU_ASSERT_STRING_EQUAL(node_at(s, 4)->where, "block.branches[0].layers[0]");
        format_spec_free(&s);
    }
}

static void test_fanout_refused(void)
{
    spec_refused(FANOUT("'layers': []"), ST_SPEC, "block.layers: unknown key");
    spec_refused(FANOUT("'prefix': []"), ST_SPEC, "block.branches: missing (required for fanout)");
    spec_refused(FANOUT("'branches': {}"), ST_SPEC, "block.branches: expected at least one branch");
    spec_refused(FANOUT("'branches': 'q'"), ST_SPEC, "block.branches: expected an object");
    spec_refused(FANOUT("'branches': {'q': 'relu'}"), ST_SPEC,
                 "block.branches.q: expected a list of layers or an object with \"layers\"");
    spec_refused(FANOUT("'branches': {'q r': []}"), ST_SPEC, "block.branches.q r: expected a name");
    spec_refused(FANOUT("'branches': {'q': {'decision': {'top_k': 1}}}"), ST_SPEC,
                 "block.branches.q.layers: missing");
    spec_refused(FANOUT("'branches': {'q': {'layers': [], 'decision': {}}}"), ST_SPEC,
                 "block.branches.q.decision.top_k: missing (required for decision)");
    spec_refused(FANOUT("'branches': {'q': {'layers': [], 'decision': {'top_k': 0}}}"), ST_SPEC,
                 "block.branches.q.decision.top_k: expected a whole number from 1");
    spec_refused(FANOUT("'branches': [{'name': 'q', 'layers': []}, {'name': 'q', 'layers': []}]"),
                 ST_SPEC, "block.branches[1]: a second branch of name q");
    spec_refused(FANOUT("'branches': [{'layers': []}]"), ST_SPEC,
                 "block.branches[0].name: missing");
    spec_refused(FANOUT("'branches': {'q': []}, 'residual': 'q'"), ST_SPEC,
                 "block.residual: residual q is also a branch");
    spec_refused(FANOUT("'branches': {'q': []}, 'residual': ''"), ST_SPEC,
                 "block.residual: expected a name");
    spec_refused(
        FANOUT("'branches': {'q': []}, 'residual': 3"), ST_SPEC,
        "block.residual: expected a name or an object {\"name\", \"after\"}, found number 3");
    spec_refused(FANOUT("'prefix': [{'op': 'relu'}], 'branches': {'q': []}, 'residual': {'name': "
                        "'r', 'after': 2}"),
                 ST_SPEC,
                 "block.residual.after: expected a whole number from 0 to 1, found number 2");
    spec_refused(FANOUT("'branches': {'q': []}, 'decision': {'top_k': 1}"), ST_SPEC,
                 "block.decision: unknown key");
}

static void test_projected(void)
{
    struct format_spec *s = spec_accepted(PROJECTED("'linear': {'weight': 'w', 'bias': 'b'}, "
                                                    "'normalize_eps': 1e-12, "
                                                    "'retain_projection': true"));
    if (s == NULL)
        return;
    const struct graph_block *b = &s->blocks[0];
    CU_ASSERT(b->kind == BLOCK_PROJECTED && b->retain_projection);
    CU_ASSERT(b->n_tables == 2 && b->n_results == 2);
    CU_ASSERT_STRING_EQUAL(b->tables[0].name, "z");
    CU_ASSERT_STRING_EQUAL(b->tables[1].name, "r");
    CU_ASSERT_STRING_EQUAL(b->results[0].name, "raw");
    CU_ASSERT_STRING_EQUAL(b->results[1].name, "normalized");
    const struct graph_node *z = node_at(s, b->tables[0].node), *r = node_at(s, b->tables[1].node),
                            *raw = node_at(s, b->results[0].node),
                            *normalized = node_at(s, b->results[1].node);
    CU_ASSERT(z->op == OP_LINEAR && z->weights[ROLE_BIAS] == -1 && z->inputs[0] == 1);
    CU_ASSERT(r->op == OP_L2_NORM && r->numbers[NUM_EPS] == 1e-12 && r->inputs[0] == 1);
    CU_ASSERT(raw->op == OP_LINEAR && raw->weights[ROLE_BIAS] == b->bias_weight);
    CU_ASSERT(raw->inputs[0] == 1 && raw->weights[ROLE_WEIGHT] == z->weights[ROLE_WEIGHT]);
    CU_ASSERT(normalized->op == OP_LINEAR && normalized->weights[ROLE_BIAS] == b->bias_weight);
    const struct graph_node *unit = node_at(s, normalized->inputs[0]);
    CU_ASSERT(unit->op == OP_L2_NORMALIZE && unit->numbers[NUM_EPS] == 1e-12);
    CU_ASSERT_EQUAL(unit->inputs[0], 1);
    CU_ASSERT_STRING_EQUAL(b->graph.weights[b->bias_weight].tensor, "b");
    format_spec_free(&s);
    s = spec_accepted(PROJECTED("'linear': {'weight': 'w'}, 'normalize_eps': 0"));
    if (s == NULL)
        return;
    CU_ASSERT_EQUAL(s->blocks[0].bias_weight, -1);
    CU_ASSERT_EQUAL(s->blocks[0].results[0].node, s->blocks[0].tables[0].node);
    CU_ASSERT(!s->blocks[0].retain_projection);
    format_spec_free(&s);
    spec_refused(PROJECTED("'linear': {'weight': 'w'}"), ST_SPEC,
                 "block.normalize_eps: missing (required for projected)");
    spec_refused(PROJECTED("'normalize_eps': 1"), ST_SPEC, "block.linear: missing");
    spec_refused(PROJECTED("'linear': 'w', 'normalize_eps': 1"), ST_SPEC,
                 "block.linear: expected an object, found string \"w\"");
    spec_refused(PROJECTED("'linear': {}, 'normalize_eps': 1"), ST_SPEC,
                 "block.linear.weight: missing (required for linear)");
    spec_refused(PROJECTED("'linear': {'weight': 'w'}, 'normalize_eps': -1"), ST_SPEC,
                 "block.normalize_eps: expected a finite number, 0 or more");
    spec_refused(PROJECTED("'linear': {'weight': 'w'}, 'normalize_eps': 1, 'eps': 1"), ST_SPEC,
                 "block.eps: unknown key");
    spec_refused(PROJECTED("'linear': {'weight': 'w'}, 'normalize_eps': 1, 'retain_projection': 1"),
                 ST_SPEC, "block.retain_projection: expected true or false, found number 1");
}

static void test_embedding(void)
{
#define WITH(embedding)                                                                            \
    SPEC_HEAD "'block': {'kind': 'lookup', 'embedding': " embedding ", 'layers': []}}"
    spec_refused(SPEC_HEAD "'block': {'kind': 'lookup', 'layers': []}}", ST_SPEC,
                 "block.embedding: missing (required for a block)");
    spec_refused(WITH("'e'"), ST_SPEC, "block.embedding: expected an object");
    spec_refused(WITH("{}"), ST_SPEC, "block.embedding.weight: missing");
    spec_refused(
        WITH("{'weight': 3}"), ST_SPEC,
        "block.embedding.weight: expected a string (the name of a tensor), found number 3");
    /* N23 */
    spec_refused(
        WITH("{'weight': 'e', 'max_norm': 1}"), ST_STRUCTURE,
        "block.embedding.max_norm: max_norm changes the weights during a lookup, so results "
        "depend on the order of calls; write it as a layer: {\"op\": \"renorm\"");
    spec_refused(WITH("{'weight': 'e', 'sparse': true}"), ST_STRUCTURE,
                 "block.embedding.sparse: sparse embeddings");
    spec_refused(WITH("{'weight': 'e', 'sparse': 1}"), ST_SPEC, "block.embedding.sparse: expected");
    spec_refused(WITH("{'weight': 'e', 'padding_idx': 0}"), ST_SPEC,
                 "block.embedding.padding_idx: unknown key: it changes no row");
    spec_refused(WITH("{'weight': 'e', 'split': {}}"), ST_SPEC,
                 "block.embedding.split: unknown key");
    struct format_spec *s = spec_accepted(WITH("{'weight': 'e', 'sparse': false, 'comment': 'x'}"));
    format_spec_free(&s);
    s = spec_accepted(LOOKUP("{'op': 'renorm', 'max_norm': 1}"));
    CU_ASSERT(s != NULL && node_at(s, 2)->numbers[NUM_MAX_NORM] == 1);
    format_spec_free(&s);
#undef WITH
}

static void test_kinds(void)
{
    spec_refused(SPEC_HEAD "'block': {" E "'layers': []}}", ST_SPEC, "block.kind: missing");
    spec_refused(SPEC_HEAD "'block': {'kind': 'sequence', " E "'layers': []}}", ST_SPEC,
                 "block.kind: expected \"lookup\" or \"fanout\" or \"projected\", found string "
                 "\"sequence\"");
    spec_refused(SPEC_HEAD "'block': {'kind': 'lookup', 'embedding': {'weight': 'e'}}}", ST_SPEC,
                 "block.layers: missing (required for lookup)");
    spec_refused(SPEC_HEAD "'block': {'kind': 'lookup', " E "'layers': {}}}", ST_SPEC,
                 "block.layers: expected an array, found an object");
    spec_refused(SPEC_HEAD "'block': {'kind': 'lookup', " E "'layers': [], 'external_consumers': "
                           "'e'}}",
                 ST_SPEC, "block.external_consumers: expected an array");
    spec_refused(SPEC_HEAD "'block': {'kind': 'lookup', " E "'layers': [], 'external_consumers': "
                           "[1]}}",
                 ST_SPEC, "block.external_consumers[0]: expected a string");
    spec_refused(SPEC_HEAD "'block': {'kind': 'lookup', 'output': 'a b', " E "'layers': []}}",
                 ST_SPEC, "block.output: expected a name");
}

/* Every op of a block with the attributes it takes; N27: no norm without eps. */
static void test_ops(void)
{
    struct format_spec *s = spec_accepted(LOOKUP(
        "{'op': 'linear', 'weight': 'w', 'bias': 'b', 'orientation': 'in_out'}, {'op': "
        "'layer_norm', "
        "'weight': 'w', 'bias': 'b', 'eps': 0}, {'op': 'rms_norm', 'weight': 'w', 'eps': 1e-6, "
        "'weight_offset': 1, 'weight_offset_dtype': 'BF16', 'groups': 2}, {'op': "
        "'float32_rms_norm', 'eps': 1e-6}, {'op': 'l2_normalize', 'eps': 1e-12}, {'op': 'scale', "
        "'value': 55.42562484741211, 'value_dtype': 'BF16'}, {'op': 'dropout', 'p': 0.1}, {'op': "
        "'dropout'}, {'op': 'identity'}, {'op': 'relu'}, {'op': 'relu6'}, {'op': 'gelu_erf'}, "
        "{'op': "
        "'gelu_tanh'}, {'op': 'quick_gelu'}, {'op': 'silu'}, {'op': 'tanh'}, {'op': 'sigmoid'}, "
        "{'op': 'elu', 'alpha': 1.3}, {'op': 'celu'}, {'op': 'leaky_relu', 'negative_slope': 0}, "
        "{'op': 'softplus', 'beta': 1.5, 'threshold': 12}, {'op': 'softsign'}, {'op': 'hardtanh', "
        "'min': -0.5, 'max': 0.7}, {'op': 'hardswish'}, {'op': 'hardsigmoid'}, {'op': 'mish'}, "
        "{'op': 'selu'}, {'op': 'renorm', 'max_norm': 0}, {'op': 'bias', "
        "'weight': 'w'}"));
    if (s == NULL)
        return;
    CU_ASSERT_EQUAL(s->blocks[0].graph.n_nodes, 2 + 29);
    CU_ASSERT(s->blocks[0].graph.weights[node_at(s, 2)->weights[ROLE_WEIGHT]].in_out);
    CU_ASSERT(!s->blocks[0].graph.weights[node_at(s, 2)->weights[ROLE_BIAS]].in_out);
    CU_ASSERT(node_at(s, 4)->numbers[NUM_WEIGHT_OFFSET] == 1 &&
              node_at(s, 4)->numbers[NUM_WEIGHT_OFFSET_DTYPE] == DT_BF16 &&
              node_at(s, 4)->numbers[NUM_GROUPS] == 2);
    CU_ASSERT(node_at(s, 7)->numbers[NUM_VALUE] == 55.42562484741211 &&
              node_at(s, 7)->numbers[NUM_VALUE_DTYPE] == DT_BF16);
    CU_ASSERT_EQUAL(node_at(s, 9)->numbers[NUM_P], 0.5);
    CU_ASSERT_EQUAL(node_at(s, 20)->numbers[NUM_ALPHA], 1);
    CU_ASSERT_EQUAL(node_at(s, 24)->numbers[NUM_MAX], 0.7);
    format_spec_free(&s);
    static const char *const norms[] = {"layer_norm", "rms_norm", "float32_rms_norm",
                                        "l2_normalize"};
    for (size_t i = 0; i < 4; i++) {
        char text[512], part[128];
        snprintf(text, sizeof text, LOOKUP("{'op': '%s'}"), norms[i]);
        snprintf(part, sizeof part, "block.layers[0].eps: missing (required for %s)", norms[i]);
        spec_refused(text, ST_SPEC, part);
    }
}

static void test_layers_refused(void)
{
    static const struct {
        const char *layer, *part;
    } cases[] = {
        {"3", "block.layers[0]: expected an object with a key \"op\", found number 3"},
        {"{}", "block.layers[0].op: missing (required for a layer)"},
        {"{'op': 3}", "block.layers[0].op: expected a string, found number 3"},
        {"{'op': 'reul'}", "block.layers[0].op: unknown op \"reul\", nearest is \"relu\""},
        {"{'op': 'ReLU'}", "block.layers[0].op: unknown op \"ReLU\""},
        {"{'op': 'gelu'}", "block.layers[0].op: unknown op \"gelu\": write gelu_erf or gelu_tanh"},
        {"{'op': 'swish'}", "block.layers[0].op: unknown op \"swish\": write silu"},
        {"{'op': 'softmax'}", "block.layers[0].op: softmax is an op of the graph form"},
        {"{'op': 'input'}", "block.layers[0].op: input is an op of the graph form"},
        {"{'op': 'relu', 'inplace': true}", "block.layers[0].inplace: unknown key"},
        {"{'op': 'linear'}", "block.layers[0].weight: missing (required for linear)"},
        {"{'op': 'linear', 'weight': 7}",
         "block.layers[0].weight: expected a string (the name of a tensor), found number 7"},
        {"{'op': 'linear', 'weight': null}", "block.layers[0].weight: expected a string"},
        {"{'op': 'linear', 'weight': 'w', 'eps': 1}",
         "block.layers[0].eps: unknown key, nearest known key is \"op\""},
        {"{'op': 'linear', 'weight': 'w', 'orientation': 'io'}",
         "block.layers[0].orientation: expected \"out_in\" or \"in_out\", found string \"io\""},
        {"{'op': 'rms_norm', 'eps': '1e-5'}",
         "block.layers[0].eps: expected a finite number, 0 or more, found string \"1e-5\""},
        {"{'op': 'rms_norm', 'eps': -1}",
         "block.layers[0].eps: expected a finite number, 0 or more"},
        {"{'op': 'rms_norm', 'eps': 1e999}", "block.layers[0].eps: expected a finite number"},
        {"{'op': 'rms_norm', 'eps': 1, 'groups': 0}",
         "block.layers[0].groups: expected a whole number from 1 to 2147483647, found number 0"},
        {"{'op': 'rms_norm', 'eps': 1, 'groups': 1.5}", "block.layers[0].groups: expected a whole"},
        {"{'op': 'rms_norm', 'eps': 1, 'bias': 'b'}", "block.layers[0].bias: unknown key"},
        {"{'op': 'rms_norm', 'eps': 1, 'weight_offset_dtype': 'I64'}",
         "block.layers[0].weight_offset_dtype: expected \"F64\", \"F32\", \"F16\" or \"BF16\""},
        {"{'op': 'scale'}", "block.layers[0].value: missing (required for scale)"},
        {"{'op': 'scale', 'value': 2, 'value_dtype': 'bf16'}",
         "block.layers[0].value_dtype: expected \"F64\""},
        {"{'op': 'dropout', 'p': 1.5}",
         "block.layers[0].p: expected a finite number from 0 to 1, found number 1.5"},
        {"{'op': 'softplus', 'beta': 0}",
         "block.layers[0].beta: expected a finite number above 0, found number 0"},
        {"{'op': 'celu', 'alpha': 0}", "block.layers[0]: celu: alpha 0"},
        {"{'op': 'hardtanh', 'min': 2}", "block.layers[0]: hardtanh: min 2 above max 1"},
        {"{'op': 'relu', 'training': false}", "block.layers[0].training: unknown key"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = str_printf(LOOKUP("%s"), cases[i].layer);
        spec_refused(text, ST_SPEC, cases[i].part);
        free(text);
    }
}

/* N31: what depends on neighbours or positions, each with that reason. */
static void test_structure(void)
{
    static const struct {
        const char *layer, *part;
    } cases[] = {
        {"{'op': 'attention', 'heads': 2}", "block.layers[0].op: attention mixes tokens"},
        {"{'op': 'conv1d', 'weight': 'w'}", "block.layers[0].op: conv1d mixes tokens"},
        {"{'op': 'token_shift'}", "block.layers[0].op: token_shift mixes tokens"},
        {"{'op': 'lstm'}", "block.layers[0].op: lstm mixes tokens"},
        {"{'op': 'gru'}", "block.layers[0].op: gru mixes tokens"},
        {"{'op': 'mean_tokens'}", "block.layers[0].op: mean_tokens mixes tokens"},
        {"{'op': 'batch_norm'}", "block.layers[0].op: batch_norm mixes tokens"},
        {"{'op': 'matmul'}", "block.layers[0].op: matmul mixes tokens"},
        {"{'op': 'rope', 'theta': 1}", "block.layers[0].op: rope depends on the position"},
        {"{'op': 'absolute_position', 'weight': 'wpe'}",
         "block.layers[0].op: absolute_position depends on the position: absolute positions are "
         "added before the first norm (GPT-2, BERT, Whisper), so the token alone does not "
         "determine"},
        {"{'op': 'positional_embedding'}", "block.layers[0].op: positional_embedding depends"},
        {"{'op': 'reshape', 'dims': [1]}", "block.layers[0].op: reshape moves elements"},
        {"{'op': 'dropout', 'p': 0.1, 'training': true}",
         "block.layers[0].training: training mode"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = str_printf(LOOKUP("%s"), cases[i].layer);
        spec_refused(text, ST_STRUCTURE, cases[i].part);
        free(text);
    }
}

/* N30 as it is written; the rows themselves are tests/graph's. */
static void test_split(void)
{
#define SPLIT(split) LOOKUP("{'op': 'linear', 'weight': 'w', 'bias': 'b', 'split': " split "}")
    struct format_spec *s = spec_accepted(SPLIT("{'mode': 'blocks', 'part': 2, 'parts': 3}"));
    if (s == NULL)
        return;
    const struct graph_weight *w = &s->blocks[0].graph.weights[1], *b = w + 1;
    CU_ASSERT(w->split == SPLIT_BLOCKS && w->part == 2 && w->n_parts == 3 && w->slice_count == 0);
    CU_ASSERT(b->split == SPLIT_BLOCKS && b->part == 2 && b->n_parts == 3);
    format_spec_free(&s);
    s = spec_accepted(SPLIT("{'mode': 'blocks', 'first': 0, 'count': 2, 'axis': 'in'}"));
    if (s == NULL)
        return;
    w = &s->blocks[0].graph.weights[1];
    b = w + 1;
    CU_ASSERT(w->split_inputs && w->slice_first == 0 && w->slice_count == 2);
    CU_ASSERT(b->split == SPLIT_NONE && !b->split_inputs);
    format_spec_free(&s);
    s = spec_accepted(SPLIT("{'mode': 'per_head_interleaved', 'heads': 4, 'head_dim': 8, "
                            "'kv_heads': 2, 'part': 'v'}"));
    if (s == NULL)
        return;
    w = &s->blocks[0].graph.weights[1];
    CU_ASSERT(w->split == SPLIT_PER_HEAD_INTERLEAVED && w->heads == 4 && w->kv_heads == 2);
    CU_ASSERT(w->head_dim == 8 && w->part == 2);
    format_spec_free(&s);
    s = spec_accepted(SPLIT("{'mode': 'blocks', 'heads': 4, 'head_dim': 8, 'kv_heads': 2, 'part': "
                            "'v'}"));
    if (s == NULL)
        return;
    w = &s->blocks[0].graph.weights[1];
    CU_ASSERT(w->split == SPLIT_BLOCKS && w->slice_first == 48 && w->slice_count == 16);
    format_spec_free(&s);
    static const struct {
        const char *split, *part;
    } cases[] = {
        {"3", "block.layers[0].split: expected an object"},
        {"{}", "block.layers[0].split.mode: missing (required for split)"},
        {"{'mode': 'thirds'}", "block.layers[0].split.mode: expected \"blocks\" or "
                               "\"per_head_interleaved\", found string \"thirds\""},
        {"{'mode': 'blocks'}", "block.layers[0].split: expected one of"},
        {"{'mode': 'blocks', 'parts': 3}", "block.layers[0].split.part: missing"},
        {"{'mode': 'blocks', 'part': 3, 'parts': 3}",
         "block.layers[0].split.part: expected a whole number from 0 to 2, found number 3"},
        {"{'mode': 'blocks', 'part': 0, 'parts': 0}", "block.layers[0].split.parts: expected"},
        {"{'mode': 'blocks', 'part': 'q', 'parts': 3}", "block.layers[0].split.part: expected"},
        {"{'mode': 'blocks', 'part': 0, 'parts': 3, 'first': 0, 'count': 1}",
         "block.layers[0].split: expected one of"},
        {"{'mode': 'blocks', 'first': 0}", "block.layers[0].split.count: missing"},
        {"{'mode': 'blocks', 'first': 0, 'count': 0}", "block.layers[0].split.count: expected"},
        {"{'mode': 'blocks', 'first': 0, 'count': 1, 'axis': 'rows'}",
         "block.layers[0].split.axis: expected \"out\" or \"in\""},
        {"{'mode': 'blocks', 'first': 0, 'count': 1, 'size': 2}",
         "block.layers[0].split.size: unknown key"},
        {"{'mode': 'per_head_interleaved', 'heads': 2, 'part': 'q'}",
         "block.layers[0].split.head_dim: missing (required for a split by heads)"},
        {"{'mode': 'per_head_interleaved', 'heads': 2, 'head_dim': 1, 'part': 0}",
         "block.layers[0].split.part: expected \"q\" or \"k\" or \"v\", found number 0"},
        {"{'mode': 'per_head_interleaved', 'heads': 3, 'kv_heads': 2, 'head_dim': 1, 'part': 'q'}",
         "block.layers[0].split: heads 3, expected a multiple of kv_heads 2"},
        {"{'mode': 'per_head_interleaved', 'heads': 2, 'head_dim': 1, 'part': 'q', 'axis': 'in'}",
         "block.layers[0].split.axis: unknown key"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = str_printf(SPLIT("%s"), cases[i].split);
        spec_refused(text, ST_SPEC, cases[i].part);
        free(text);
    }
#undef SPLIT
}

static void test_aliases(void)
{
    struct format_spec *s = spec_accepted(
        SPEC_HEAD "'aliases': {'lm_head': {'alias': 'e'}}, 'block': {'kind': 'lookup', " E
                  "'layers': [{'op': 'linear', 'weight': 'lm_head'}], 'external_consumers': "
                  "['lm_head']}}");
    if (s == NULL)
        return;
    const struct graph_block *b = &s->blocks[0];
    CU_ASSERT_EQUAL(b->graph.n_weights, 2);
    CU_ASSERT_STRING_EQUAL(b->graph.weights[1].tensor, "lm_head");
    CU_ASSERT_STRING_EQUAL(b->graph.weights[1].backing, "e");
    CU_ASSERT_STRING_EQUAL(b->external_consumers[0], "lm_head");
    CU_ASSERT_STRING_EQUAL(b->external_backings[0], "e");
    format_spec_free(&s);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"lookup", test_lookup},
        {"fanout", test_fanout},
        {"fanout refused", test_fanout_refused},
        {"projected", test_projected},
        {"embedding", test_embedding},
        {"kinds", test_kinds},
        {"ops", test_ops},
        {"layers refused", test_layers_refused},
        {"structure", test_structure},
        {"split", test_split},
        {"aliases", test_aliases},
    };
    return fixture_run("spec blocks", cases, sizeof cases / sizeof cases[0]);
}
