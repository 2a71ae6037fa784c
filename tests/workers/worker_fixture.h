/* SPDX-License-Identifier: Apache-2.0 */
/** Blocks built by hand, and what the test programs of workers share. */
#ifndef TESTS_WORKERS_WORKER_FIXTURE_H
#define TESTS_WORKERS_WORKER_FIXTURE_H

#include "workers/workers_internal.h"

#include <CUnit/Basic.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

struct fixture_test {
    const char *name;
    void (*run)(void);
};
/** Runs them in one suite; the exit code of the program. */
int fixture_main(const char *suite, const struct fixture_test *tests, size_t n);

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        struct err err = {0};                                                                      \
        const enum status st_ = (call);                                                            \
        if (st_ != ST_OK)                                                                          \
            printf("\n  %s:%d: %s\n", __FILE__, __LINE__, err.message);                            \
        CU_ASSERT_EQUAL_FATAL(st_, ST_OK);                                                         \
    } while (0)

/** The status, and a message that contains `part`. */
#define CHECK_FAULT(call, status, part)                                                            \
    do {                                                                                           \
        struct err err = {0};                                                                      \
        CU_ASSERT_EQUAL((call), (status));                                                         \
        if (strstr(err.message, (part)) == NULL) {                                                 \
            printf("\n  %s:%d: found \"%s\"\n  without \"%s\"\n", __FILE__, __LINE__, err.message, \
                   (part));                                                                        \
            CU_FAIL("message");                                                                    \
        }                                                                                          \
    } while (0)

enum { FIXTURE_TENSORS = 48 };

struct fixture_tensor {
    char name[64];
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[2];
    void *data; /* owned, stored elements */
};

/** A block under construction, its tensors, and a worker on it. */
struct fixture {
    struct graph_block block;
    struct fixture_tensor tensors[FIXTURE_TENSORS];
    size_t n_tensors;
    const void *weights[FIXTURE_TENSORS];
    struct worker_opts opts;
    struct worker *worker;
    struct worker_rows rows; /* of the whole embedding */
    uint64_t seed;
};

/** The library on the core this CPU should have, or a test backend.  Exits on failure. */
struct kernels *fixture_kernels(const char *backend);

/** Node 0 is the input, node 1 the embedding `E` [vocabulary, width] of random values. */
void fixture_start(struct fixture *f, enum graph_block_kind kind, enum dtype dt,
                   uint64_t vocabulary, uint64_t width);
/** Random normal tensor times `scale`; cols 0: a vector.  Returns its data. */
void *fixture_tensor(struct fixture *f, const char *name, enum dtype dt, uint64_t rows,
                     uint64_t cols, double scale);
/** Tensor of given values. */
void *fixture_values(struct fixture *f, const char *name, enum dtype dt, uint64_t rows,
                     uint64_t cols, const double *values);
struct fixture_tensor *fixture_find(struct fixture *f, const char *name);
/** Append a node named `name`; weight and bias are tensor names or NULL.  Returns its index. */
uint32_t fixture_node(struct fixture *f, enum graph_op op, const char *name, uint32_t input,
                      const char *weight, const char *bias);
void fixture_number(struct fixture *f, uint32_t node, enum graph_number slot, double value);
/** Name a value as table, result or both. */
void fixture_output(struct fixture *f, const char *name, uint32_t node);
void fixture_table(struct fixture *f, const char *name, uint32_t node);
void fixture_result(struct fixture *f, const char *name, uint32_t node);
/** Resolve the block and open the worker by f->opts (kernels, profiles, ... set before). */
enum status fixture_open(struct fixture *f, struct err *err);
void fixture_close(struct fixture *f);

/** Two branches on a norm, with biases and a residual: the block most tests use.  Widths: q 6,
 *  v 5 behind a silu. */
void fixture_fanout(struct fixture *f, struct kernels *k, enum dtype dt, uint64_t vocabulary,
                    bool bias);
/** bulk_rows 8, validation_rows 5, profiles {1, 1} and {7, 2}. */
void fixture_profiles(struct fixture *f);

/** Stored element as a number. */
double fixture_element(enum dtype dt, const void *stored, size_t i);
void fixture_store(enum dtype dt, void *stored, size_t i, double value);

#endif
