/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <math.h>

enum status __real_format_checkpoint_read(const struct format_checkpoint *c,
                                          const struct format_tensor *tensor, uint64_t offset,
                                          void *dst, size_t size, struct err *err);
enum status __wrap_format_checkpoint_read(const struct format_checkpoint *c,
                                          const struct format_tensor *tensor, uint64_t offset,
                                          void *dst, size_t size, struct err *err);
static int n_reads;
enum status __wrap_format_checkpoint_read(const struct format_checkpoint *c,
                                          const struct format_tensor *tensor, uint64_t offset,
                                          void *dst, size_t size, struct err *err)
{
    n_reads++;
    return __real_format_checkpoint_read(c, tensor, offset, dst, size, err);
}

/* emb [7, 4], qkv [6, 4], turned [4, 3] stored [in, out], gain [4] */
enum { N_TENSORS = 4, MAX_ELEMENTS = 28 };
static const struct format_tensor_spec TENSORS[N_TENSORS] = {
    {.name = "emb", .dtype = DT_F32, .rank = 2, .shape = {7, 4}},
    {.name = "qkv", .dtype = DT_F32, .rank = 2, .shape = {6, 4}},
    {.name = "turned", .dtype = DT_F32, .rank = 2, .shape = {4, 3}},
    {.name = "gain", .dtype = DT_F32, .rank = 1, .shape = {4}}};
static float data[N_TENSORS][MAX_ELEMENTS];
static char folder[64];
static struct format_checkpoint *checkpoint;

static void fill(void)
{
    for (size_t t = 0; t < N_TENSORS; t++)
        for (size_t i = 0; i < MAX_ELEMENTS; i++)
            data[t][i] = (float)(t * 100 + i);
}

static void open_checkpoint(void)
{
    char path[96];
    const void *arrays[N_TENSORS] = {data[0], data[1], data[2], data[3]};
    fixture_folder(folder, sizeof folder);
    (void)snprintf(path, sizeof path, "%s/m.safetensors", folder);
    CU_ASSERT_EQUAL_FATAL(format_safetensors_write(path, TENSORS, arrays, N_TENSORS, NULL, NULL),
                          ST_OK);
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_open(path, NULL, &checkpoint, NULL), ST_OK);
}

static void close_checkpoint(void)
{
    format_checkpoint_close(&checkpoint);
    fixture_remove(folder);
}

static int32_t add_weight(struct graph_block *b, size_t tensor, bool in_out, uint32_t part)
{
    struct graph_weight w = {.tensor = str_dup(TENSORS[tensor].name),
                             .backing = str_dup(TENSORS[tensor].name),
                             .where = str_dup("test"),
                             .in_out = in_out,
                             .dtype = TENSORS[tensor].dtype};
    if (strcmp(TENSORS[tensor].name, "qkv") == 0) {
        w.split = SPLIT_BLOCKS;
        w.part = part;
        w.n_parts = 3;
    }
    CU_ASSERT_EQUAL_FATAL(graph_weight_shape(&w, TENSORS[tensor].rank, TENSORS[tensor].shape, NULL),
                          ST_OK);
    int32_t index = -1;
    CU_ASSERT_EQUAL_FATAL(graph_weight_take(&b->graph, &w, &index, NULL), ST_OK);
    return index;
}

static void add_node(struct graph_block *b, enum graph_op op, int32_t weight)
{
    struct graph_node node;
    uint32_t index = 0;
    graph_node_init(&node, op);
    node.name = str_printf("n%zu", b->graph.n_nodes);
    node.where = str_dup("test");
    node.weights[ROLE_WEIGHT] = weight;
    node.n_inputs = b->graph.n_nodes > 0 ? 1 : 0;
    node.inputs[0] = b->graph.n_nodes > 0 ? (uint32_t)b->graph.n_nodes - 1 : 0;
    CU_ASSERT_EQUAL_FATAL(graph_node_take(&b->graph, &node, &index, NULL), ST_OK);
}

/* Embedding, q and v of a fused tensor, a turned one, a gain; optionally the embedding as a linear.
 */
static void make_block(struct graph_block *b, bool tied)
{
    *b = (struct graph_block){.kind = BLOCK_LOOKUP, .bias_weight = -1};
    add_node(b, OP_INPUT, -1);
    int32_t emb = add_weight(b, 0, false, 0);
    add_node(b, OP_EMBEDDING, emb);
    add_node(b, OP_LINEAR, add_weight(b, 1, false, 0));
    add_node(b, OP_LINEAR, add_weight(b, 1, false, 2));
    add_node(b, OP_LINEAR, add_weight(b, 2, true, 0));
    add_node(b, OP_RMS_NORM, add_weight(b, 3, false, 0));
    if (tied)
        add_node(b, OP_LINEAR, emb);
}

static void test_read(void)
{
    struct graph_block b;
    struct shard_weights w;
    fill();
    open_checkpoint();
    make_block(&b, false);
    n_reads = 0;
    CU_ASSERT_EQUAL_FATAL(shard_weights_read(checkpoint, &b, &w, NULL), ST_OK);
    CU_ASSERT_EQUAL(n_reads, 3); /* qkv once, turned, gain; nothing of the embedding */
    CU_ASSERT_EQUAL(w.n, 5);
    CU_ASSERT_PTR_NULL(w.data[0]);
    struct digest zero = {{0}};
    CU_ASSERT(digest_equal(&w.digests[0], &zero));
    CU_ASSERT_EQUAL(memcmp(w.data[1], data[1], 8 * sizeof(float)), 0);
    CU_ASSERT_EQUAL(memcmp(w.data[2], data[1] + 16, 8 * sizeof(float)), 0);
    struct digest d = digest_of(data[1] + 16, 8 * sizeof(float));
    CU_ASSERT(digest_equal(&w.digests[2], &d));
    const float *turned = w.data[3];
    for (size_t r = 0; r < 3; r++)
        for (size_t k = 0; k < 4; k++)
            CU_ASSERT_EQUAL(turned[r * 4 + k], data[2][k * 3 + r]);
    CU_ASSERT_EQUAL(memcmp(w.data[4], data[3], 4 * sizeof(float)), 0);
    shard_weights_free(&w);
    shard_weights_free(&w);
    graph_block_free(&b);
    /* tied to a linear, the embedding is needed whole */
    make_block(&b, true);
    CU_ASSERT_EQUAL_FATAL(shard_weights_read(checkpoint, &b, &w, NULL), ST_OK);
    CU_ASSERT_PTR_NOT_NULL_FATAL(w.data[0]);
    CU_ASSERT_EQUAL(memcmp(w.data[0], data[0], 28 * sizeof(float)), 0);
    shard_weights_free(&w);
    graph_block_free(&b);
    close_checkpoint();
}

/* The bias of a projected block belongs to no node. */
static void test_bias(void)
{
    struct graph_block b;
    struct shard_weights w;
    fill();
    open_checkpoint();
    b = (struct graph_block){.kind = BLOCK_PROJECTED, .bias_weight = -1};
    add_node(&b, OP_INPUT, -1);
    add_node(&b, OP_EMBEDDING, add_weight(&b, 0, false, 0));
    b.bias_weight = add_weight(&b, 3, false, 0);
    CU_ASSERT_EQUAL_FATAL(shard_weights_read(checkpoint, &b, &w, NULL), ST_OK);
    CU_ASSERT_EQUAL(memcmp(w.data[1], data[3], 4 * sizeof(float)), 0);
    shard_weights_free(&w);
    graph_block_free(&b);
    close_checkpoint();
}

/* What is set to NaN, and what the message says (NULL: nothing reads it). */
static void test_nonfinite(void)
{
    static const struct {
        size_t tensor, element;
        const char *text;
    } cases[] = {{0, 5, NULL},
                 {1, 3, "tensor qkv: 2 values are not finite, the first at [0, 3] of the part"},
                 {1, 8, NULL}, /* k is not used */
                 {2, 7, "tensor turned: 2 values are not finite, the first at [2, 1]"},
                 {3, 2, "tensor gain: 2 values are not finite, the first at [2]"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct graph_block b;
        struct shard_weights w;
        struct err err = {.st = ST_OK};
        fill();
        size_t step = cases[i].tensor == 2 ? 3 : 1; /* the next one of the same used row */
        data[cases[i].tensor][cases[i].element] = (float)NAN;
        data[cases[i].tensor][cases[i].element + step] = (float)INFINITY;
        if (cases[i].tensor == 1 && cases[i].element == 3) {
            fill();
            data[1][3] = (float)NAN;
            data[1][7] = -(float)INFINITY;
        }
        open_checkpoint();
        make_block(&b, false);
        enum status st = shard_weights_read(checkpoint, &b, &w, &err);
        CU_ASSERT_EQUAL(st, cases[i].text == NULL ? ST_OK : ST_NONFINITE);
        if (cases[i].text != NULL)
            CU_ASSERT(fixture_says(err.message, cases[i].text));
        CU_ASSERT(st == ST_OK || (w.data == NULL && w.digests == NULL));
        shard_weights_free(&w);
        graph_block_free(&b);
        close_checkpoint();
    }
}

static void test_changed_checkpoint(void)
{
    struct graph_block b;
    struct shard_weights w;
    struct err err = {.st = ST_OK};
    fill();
    open_checkpoint();
    make_block(&b, false);
    b.graph.weights[1].tensor_rows = 9;
    CU_ASSERT_EQUAL(shard_weights_read(checkpoint, &b, &w, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(err.message, "tensor qkv: [9, 4] of F32 expected, found 24"));
    graph_block_free(&b);
    err_clear(&err);
    make_block(&b, false);
    free(b.graph.weights[4].backing);
    b.graph.weights[4].backing = str_dup("gone");
    CU_ASSERT_EQUAL(shard_weights_read(checkpoint, &b, &w, &err), ST_STRUCTURE);
    CU_ASSERT(fixture_says(err.message, "gone"));
    graph_block_free(&b);
    close_checkpoint();
}

int main(void)
{
    static const struct fixture_case cases[] = {{"read", test_read},
                                                {"bias", test_bias},
                                                {"non-finite", test_nonfinite},
                                                {"changed checkpoint", test_changed_checkpoint}};
    return fixture_main("weights", cases, sizeof cases / sizeof cases[0]);
}
