/* SPDX-License-Identifier: Apache-2.0 */
/** Blocks built by hand and a checkpoint that exists as a list. */
#ifndef TESTS_GRAPH_GRAPH_FIXTURE_H
#define TESTS_GRAPH_GRAPH_FIXTURE_H

#include "graph/graph.h"

#include <CUnit/Basic.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct fake_tensor {
    const char *name;
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[GRAPH_MAX_DIMS];
};

struct fake_checkpoint {
    const struct fake_tensor *tensors;
    size_t n;
};

static inline enum status fake_find(void *ctx, const char *name, struct graph_tensor_info *out,
                                    struct err *err)
{
    const struct fake_checkpoint *c = ctx;
    for (size_t i = 0; i < c->n; i++) {
        if (strcmp(c->tensors[i].name, name) == 0) {
            *out = (struct graph_tensor_info){
                c->tensors[i].dtype, dtype_name(c->tensors[i].dtype), c->tensors[i].rank, {0}};
            memcpy(out->shape, c->tensors[i].shape, sizeof out->shape);
            return ST_OK;
        }
    }
    return err_set(err, ST_STRUCTURE, "no tensor %s", name);
}

/** Index of weight `tensor` (backing: the same unless given). */
static inline int32_t fixture_weight(struct graph *g, struct graph_weight w, const char *tensor,
                                     const char *backing)
{
    int32_t index = -1;
    w.tensor = str_dup(tensor);
    w.backing = str_dup(backing == NULL ? tensor : backing);
    w.where = str_printf("block.%s", tensor);
    CU_ASSERT_EQUAL(graph_weight_take(g, &w, &index, NULL), ST_OK);
    CU_ASSERT(w.tensor == NULL && w.backing == NULL && w.where == NULL);
    return index;
}

/** Append an op over `input` (and `second` unless negative). */
static inline uint32_t fixture_node(struct graph *g, struct graph_node node, const char *name,
                                    int64_t input, int64_t second)
{
    uint32_t index = UINT32_MAX;
    struct err err = {0};
    node.name = str_dup(name);
    node.where = str_printf("block.%s", name);
    node.n_inputs = (input >= 0 ? 1u : 0u) + (second >= 0 ? 1u : 0u);
    node.inputs[0] = input >= 0 ? (uint32_t)input : 0;
    node.inputs[1] = second >= 0 ? (uint32_t)second : 0;
    enum status st = graph_node_take(g, &node, &index, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    graph_node_free(&node);
    return index;
}

static inline uint32_t fixture_op(struct graph *g, enum graph_op op, const char *name,
                                  int64_t input, int64_t second)
{
    struct graph_node node;
    graph_node_init(&node, op);
    return fixture_node(g, node, name, input, second);
}

static inline uint32_t fixture_linear(struct graph *g, const char *name, int64_t input,
                                      int32_t weight, int32_t bias)
{
    struct graph_node node;
    graph_node_init(&node, OP_LINEAR);
    node.weights[ROLE_WEIGHT] = weight;
    node.weights[ROLE_BIAS] = bias;
    return fixture_node(g, node, name, input, -1);
}

/** ids and embedding; the block is a lookup named "block" without outputs. */
static inline struct graph_block fixture_block(const char *embedding)
{
    struct graph_block b = {.kind = BLOCK_LOOKUP, .bias_weight = -1};
    struct graph_node node;
    b.name = str_dup("block");
    b.where = str_dup("block");
    fixture_op(&b.graph, OP_INPUT, "ids", -1, -1);
    graph_node_init(&node, OP_EMBEDDING);
    node.weights[ROLE_WEIGHT] = fixture_weight(&b.graph, (struct graph_weight){0}, embedding, NULL);
    CU_ASSERT_EQUAL(fixture_node(&b.graph, node, "embedding", 0, -1), 1);
    return b;
}

static inline void fixture_output(struct graph_block *b, const char *name, uint32_t node)
{
    struct graph_output **lists[] = {&b->tables, &b->results};
    size_t *counts[] = {&b->n_tables, &b->n_results};
    for (size_t i = 0; i < 2; i++) {
        struct graph_output *grown = realloc(*lists[i], (*counts[i] + 1) * sizeof **lists[i]);
        if (grown == NULL)
            abort();
        *lists[i] = grown;
        grown[(*counts[i])++] = (struct graph_output){.name = str_dup(name), .node = node};
    }
}

/** The message holds `part` and is one line; prints it when it does not. */
static inline bool fixture_says(const struct err *err, const char *part)
{
    bool yes = strstr(err->message, part) != NULL && strchr(err->message, '\n') == NULL;
    if (!yes)
        printf("\n    expected \"%s\" in: %s\n", part, err->message);
    return yes;
}

struct fixture_case {
    const char *name;
    void (*run)(void);
};

static inline int fixture_run(const char *suite_name, const struct fixture_case *cases, size_t n)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite(suite_name, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        if (suite == NULL || CU_add_test(suite, cases[i].name, cases[i].run) == NULL)
            return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    bool bad = CU_get_number_of_failures() > 0 || CU_get_number_of_tests_run() != n;
    CU_cleanup_registry();
    return bad;
}

#endif
