/* SPDX-License-Identifier: Apache-2.0 */
/** What the test programs of base share. */
#ifndef TESTS_BASE_BASE_TEST_H
#define TESTS_BASE_BASE_TEST_H

#include "base/base.h"

#include <CUnit/Basic.h>

struct base_test {
    const char *name;
    void (*run)(void);
};

/** Runs them in one suite; the exit code of the program: 0 if every assertion held. */
int base_test_main(const char *suite, const struct base_test *tests, size_t n_tests);

/** A fresh temporary folder, removed with all it holds by base_test_folder_remove. */
const char *base_test_folder(void);
void base_test_folder_remove(void);
/** "folder/name" in one of a few static buffers that are used in turn. */
const char *base_test_path(const char *name);

/** From here on stderr goes to a file. */
void base_test_capture(void);
/** Ends the capture; what was written, NUL-terminated, valid until the next capture ends. */
const char *base_test_captured(void);

#define N_OF(array) (sizeof(array) / sizeof(array)[0])

/** Prints both texts when they differ. */
#define CHECK_TEXT(got, expected)                                                                  \
    do {                                                                                           \
        const char *got_ = (got);                                                                  \
        const char *expected_ = (expected);                                                        \
        if (strcmp(got_, expected_) != 0)                                                          \
            fprintf(stdout, "\n  found    \"%s\"\n  expected \"%s\"\n", got_, expected_);          \
        CU_ASSERT_STRING_EQUAL(got_, expected_);                                                   \
    } while (0)

/** The status, and a message that contains `part`. */
#define CHECK_FAULT(call, status, err, part)                                                       \
    do {                                                                                           \
        err_clear(&(err));                                                                         \
        CU_ASSERT_EQUAL((call), (status));                                                         \
        CU_ASSERT_EQUAL((err).st, (status));                                                       \
        if (strstr((err).message, (part)) == NULL) {                                               \
            fprintf(stdout, "\n  found \"%s\"\n  without \"%s\"\n", (err).message, (part));        \
            CU_FAIL("message");                                                                    \
        }                                                                                          \
    } while (0)

#define CHECK_OK(call, err)                                                                        \
    do {                                                                                           \
        err_clear(&(err));                                                                         \
        CU_ASSERT_EQUAL((call), ST_OK);                                                            \
        CHECK_TEXT((err).message, "");                                                             \
    } while (0)

#endif
