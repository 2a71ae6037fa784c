/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void arm(const char *spec)
{
    CU_ASSERT_EQUAL(setenv("TOKENTAB_FAULT", spec, 1), 0);
}

#if TOKENTAB_FAULTS

/* Pattern of the next hits of `name`: "..x" says that the third one fired. */
static const char *pattern(const char *name, size_t n)
{
    static char text[32];
    for (size_t i = 0; i < n; i++)
        text[i] = fault_hit(name) ? 'x' : '.';
    text[n] = '\0';
    return text;
}

static void test_counts(void)
{
    log_setup(0, NULL, LOG_INFO, false);
    (void)unsetenv("TOKENTAB_FAULT");
    CHECK_TEXT(pattern("a", 2), "..");
    arm("");
    CHECK_TEXT(pattern("a", 2), "..");
    arm("a");
    CHECK_TEXT(pattern("a", 4), "x...");
    arm("a#3");
    CHECK_TEXT(pattern("a", 5), "..x..");
    arm("a#2+");
    CHECK_TEXT(pattern("a", 5), ".xxxx");
    arm("a#2+");
    CHECK_TEXT(pattern("a", 1), "x"); /* the same spec goes on counting */
    arm("a");
    CHECK_TEXT(pattern("ab", 2), "..");
    CHECK_TEXT(pattern("", 2), "..");
    CHECK_TEXT(pattern("a", 2), "x."); /* others' hits do not count */
}

static void test_ranks(void)
{
    log_setup(2, NULL, LOG_INFO, false);
    arm("a@2");
    CHECK_TEXT(pattern("a", 2), "x.");
    arm("a@0");
    CHECK_TEXT(pattern("a", 2), "..");
    arm("a@all#2");
    CHECK_TEXT(pattern("a", 3), ".x.");
    arm("a@22");
    CHECK_TEXT(pattern("a", 2), "..");
    log_setup(0, NULL, LOG_INFO, false);
    arm("a@0#1+");
    CHECK_TEXT(pattern("a", 2), "xx");
}

static void test_lists(void)
{
    log_setup(0, NULL, LOG_INFO, false);
    arm("a#2,b@0,c@1,a#4");
    CHECK_TEXT(pattern("a", 5), ".x.x.");
    CHECK_TEXT(pattern("b", 2), "x.");
    CHECK_TEXT(pattern("c", 2), "..");
}

static void test_mistakes_are_said(void)
{
    static const char *const BAD[] = {"a#", "a#0", "a#x", "a@", "a@x", "a@-1", ",a#9", "@1", "a#+"};
    log_setup(0, NULL, LOG_INFO, false);
    for (size_t i = 0; i < N_OF(BAD); i++) {
        arm(BAD[i]);
        base_test_capture();
        bool hit = fault_hit("a");
        bool again = fault_hit("a");
        const char *said = base_test_captured();
        CU_ASSERT(!hit && !again);
        CHECK_TEXT(said, "tokentab: [rank 0] TOKENTAB_FAULT: entry 0 is not "
                         "name[@rank|@all][#nth[+]]\n");
    }
}

static void test_out_of_memory(void)
{
    struct err err = {.st = ST_OK};
    void *p = NULL;
    arm("mem_alloc");
    CHECK_FAULT(mem_alloc(1024, 3, &p, &err), ST_NOMEM, err, "3.00 KiB");
    CU_ASSERT_PTR_NULL(p);
    CHECK_OK(mem_alloc(1024, 3, &p, &err), err);
    free(p);
}

static void test_value(void)
{
    (void)unsetenv("TOKENTAB_TEST_VALUE");
    CU_ASSERT_PTR_NULL(fault_value("TOKENTAB_TEST_VALUE"));
    CU_ASSERT_EQUAL(setenv("TOKENTAB_TEST_VALUE", "12", 1), 0);
    const char *value = fault_value("TOKENTAB_TEST_VALUE");
    CU_ASSERT_PTR_NOT_NULL_FATAL(value);
    CHECK_TEXT(value, "12");
}

static const struct base_test TESTS[] = {
    {"counts", test_counts},
    {"ranks", test_ranks},
    {"lists", test_lists},
    {"mistakes are said", test_mistakes_are_said},
    {"out of memory", test_out_of_memory},
    {"value", test_value},
};

#else

static void test_off(void)
{
    struct err err = {.st = ST_OK};
    void *p = NULL;
    arm("a,mem_alloc#1+");
    CU_ASSERT(!fault_hit("a"));
    CU_ASSERT_EQUAL(setenv("TOKENTAB_TEST_VALUE", "12", 1), 0);
    CU_ASSERT_PTR_NULL(fault_value("TOKENTAB_TEST_VALUE"));
    CHECK_OK(mem_alloc(1, 1, &p, &err), err);
    free(p);
}

static const struct base_test TESTS[] = {{"compiled out", test_off}};

#endif

int main(void)
{
    return base_test_main("base fault", TESTS, N_OF(TESTS));
}
