/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <stdio.h>
#include <string.h>

static void test_exit_codes(void)
{
    /* DESIGN.md, "Command line": written out again, so that an edit of the list is noticed. */
    static const struct {
        enum status st;
        int exit_code;
    } EXPECTED[] = {
        {ST_OK, 0},          {ST_DIFFERS, 1},   {ST_USAGE, 2},     {ST_SPEC, 3},
        {ST_FORMAT, 3},      {ST_STRUCTURE, 3}, {ST_IO, 4},        {ST_NOMEM, 4},
        {ST_LOCKED, 4},      {ST_SINGLETON, 4}, {ST_NONFINITE, 5}, {ST_POSITIONS, 5},
        {ST_TOLERANCE, 5},   {ST_DECISION, 5},  {ST_KERNEL, 5},    {ST_STORAGE, 6},
        {ST_ENVIRONMENT, 4}, {ST_STOPPED, 75},  {ST_INTERNAL, 70},
    };
    for (size_t i = 0; i < N_OF(EXPECTED); i++) {
        CU_ASSERT_EQUAL(status_exit_code(EXPECTED[i].st), EXPECTED[i].exit_code);
        CU_ASSERT(strlen(status_text(EXPECTED[i].st)) > 0);
    }
    CHECK_TEXT(status_text(ST_SINGLETON), "singleton under a launcher");
    CHECK_TEXT(status_text((enum status)1000), "unknown status");
    CU_ASSERT_EQUAL(status_exit_code((enum status)1000), 70);
}

static void test_first_fault_wins(void)
{
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(err_set(&err, ST_FORMAT, "a: version %u, newest known %u", 9u, 2u), ST_FORMAT);
    CU_ASSERT_EQUAL(err_set(&err, ST_IO, "later"), ST_IO);
    CU_ASSERT_EQUAL(err.st, ST_FORMAT);
    CHECK_TEXT(err.message, "a: version 9, newest known 2");
    err_clear(&err);
    CU_ASSERT_EQUAL(err.st, ST_OK);
    CHECK_TEXT(err.message, "");
    CU_ASSERT_EQUAL(err_set(NULL, ST_IO, "nobody listens"), ST_IO);
    err_clear(NULL);
    err_prefix(NULL, "x");
}

static void test_prefix(void)
{
    struct err err = {.st = ST_OK};
    err_prefix(&err, "nothing to prefix");
    CHECK_TEXT(err.message, "");
    (void)err_set(&err, ST_SPEC, "unknown key");
    err_prefix(&err, "$.block[%d]", 3);
    err_prefix(&err, "spec.json");
    CHECK_TEXT(err.message, "spec.json: $.block[3]: unknown key");
    CU_ASSERT_EQUAL(err.st, ST_SPEC);
}

static void test_long_and_dirty_messages(void)
{
    char name[3000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    struct err err = {.st = ST_OK};
    (void)err_set(&err, ST_FORMAT, "%s: bad", name);
    CU_ASSERT_EQUAL(strlen(err.message), ERR_MESSAGE_SIZE - 1);
    CHECK_TEXT(err.message + ERR_MESSAGE_SIZE - 4, "...");
    err_prefix(&err, "%s", name);
    CU_ASSERT_EQUAL(strlen(err.message), ERR_MESSAGE_SIZE - 1);
    CHECK_TEXT(err.message + ERR_MESSAGE_SIZE - 4, "...");

    err_clear(&err);
    (void)err_set(&err, ST_FORMAT, "tensor \"a\nb\x1b[31m\x7f\": bad");
    CHECK_TEXT(err.message, "tensor \"a?b?[31m?\": bad");
    err_prefix(&err, "x\ty");
    CHECK_TEXT(err.message, "x?y: tensor \"a?b?[31m?\": bad");
}

static void test_nomem(void)
{
    struct err err = {.st = ST_OK};
    CHECK_FAULT(err_nomem(&err, 3u << 20), ST_NOMEM, err, "3.00 MiB");
}

static enum status twice(struct err *err, int *n)
{
    TRY(ST_OK);
    ++*n;
    TRY(err_set(err, ST_IO, "here"));
    ++*n;
    return ST_OK;
}

static void test_try(void)
{
    struct err err = {.st = ST_OK};
    int n = 0;
    CU_ASSERT_EQUAL(twice(&err, &n), ST_IO);
    CU_ASSERT_EQUAL(n, 1);
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"exit codes", test_exit_codes}, {"first fault wins", test_first_fault_wins},
        {"prefix", test_prefix},         {"long and dirty messages", test_long_and_dirty_messages},
        {"out of memory", test_nomem},   {"TRY", test_try},
    };
    return base_test_main("base status", TESTS, N_OF(TESTS));
}
