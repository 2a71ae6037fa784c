/* SPDX-License-Identifier: Apache-2.0 */
/** What the test programs of kernels share. */
#ifndef TESTS_KERNELS_KERNELS_TEST_H
#define TESTS_KERNELS_KERNELS_TEST_H

#include "kernels/kernels_internal.h"

#include <CUnit/Basic.h>

struct kernels_test {
    const char *name;
    void (*run)(void);
};

/** Runs them in one suite; the exit code of the program: 0 if every assertion held. */
int kernels_test_main(const char *suite, const struct kernels_test *tests, size_t n_tests);

/** OpenBLAS on the core that this CPU should have, or a test backend.  Exits on failure. */
struct kernels *kernels_test_open(const char *backend);

/** Standard normal values of a seeded generator. */
double kernels_test_normal(uint64_t *state);
void kernels_test_fill_f32(uint64_t *state, enum dtype dt, size_t n, float *x);
void kernels_test_fill_f64(uint64_t *state, size_t n, double *x);

/** mem_alloc that exits when memory is short. */
void *kernels_test_alloc(size_t n, size_t size);

/** Distance in units of the last place; both zeros are one value. */
uint64_t kernels_test_ulp_f32(float a, float b);

/** Read tensor `name` (F32 or F64, `n` elements) of a golden safetensors file as doubles.  False
 * where the file is not there; exits where the tensor is missing. */
bool kernels_test_golden(const char *file, const char *name, size_t n, double *out);

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        struct err err = {0};                                                                      \
        if ((call) != ST_OK)                                                                       \
            printf("\n  %s:%d: %s\n", __FILE__, __LINE__, err.message);                            \
        CU_ASSERT_EQUAL(err.st, ST_OK);                                                            \
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

/** |found - expected| <= bound, with the numbers when not. */
#define CHECK_NEAR(found, expected, bound)                                                         \
    do {                                                                                           \
        double found_ = (double)(found), expected_ = (double)(expected);                           \
        bool near_ = fabs(found_ - expected_) <= (bound) || found_ == expected_;                   \
        if (!near_)                                                                                \
            printf("\n  %s:%d: found %.17g, expected %.17g\n", __FILE__, __LINE__, found_,         \
                   expected_);                                                                     \
        CU_ASSERT(near_);                                                                          \
    } while (0)

#define CHECK_BYTES(a, b, size) CU_ASSERT_EQUAL(memcmp((a), (b), (size)), 0)

#endif
