/* SPDX-License-Identifier: Apache-2.0 */
/** Enclosing models as text (single quotes stand for double ones) over tensors of the test, run by
 *  the executor. */
#ifndef TESTS_WORKERS_EXECUTOR_FIXTURE_H
#define TESTS_WORKERS_EXECUTOR_FIXTURE_H

#include "formats/formats.h"
#include "workers/executor.h"

#include <CUnit/Basic.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIXTURE_TENSORS = 8 };

struct fixture_tensor {
    const char *name;
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[2];
    const void *data;
};

/** A model ready to run. */
struct fixture_model {
    struct graph_model *model;
    struct executor *e;
    void *weights[32]; /* as used */
};

/** OpenBLAS, opened once. */
struct kernels *fixture_kernels(void);
/** Read, resolve and open; ST_OK or the first fault in *err. */
enum status fixture_try(const char *graph, const struct fixture_tensor *tensors,
                        struct fixture_model *m, struct err *err);
/** The same, insisting on success. */
struct fixture_model fixture_open(const char *graph, const struct fixture_tensor *tensors);
void fixture_close(struct fixture_model *m);

/** Arrays of a test; data is copied. */
struct executor_array fixture_f32(const float *data, unsigned rank, const uint64_t *shape);
struct executor_array fixture_i64(const int64_t *data, unsigned rank, const uint64_t *shape);
#define SHAPE(...)                                                                                 \
    (unsigned)(sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)), (uint64_t[])                 \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
/** Seeded numbers about 1 in size. */
void fixture_fill(float *x, size_t n, uint64_t seed);
/** Run on `n` inputs, which are freed, insisting on success. */
struct executor_array fixture_run(struct fixture_model *m, struct executor_array *inputs, size_t n);
/** Run where a fault is expected: its status, and a message with `part`. */
void fixture_refused(struct fixture_model *m, struct executor_array *inputs, size_t n,
                     enum status expected, const char *part);
/** Shape and values (bound: |difference|) of a result; frees it. */
void fixture_expect(struct executor_array out, const float *values, double bound, unsigned rank,
                    const uint64_t *shape);

struct fixture_case {
    const char *name;
    void (*run)(void);
};
int fixture_main(const char *suite, const struct fixture_case *cases, size_t n);

#endif
