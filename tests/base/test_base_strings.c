/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_memory(void)
{
    struct err err = {.st = ST_OK};
    static const size_t COUNTS[] = {0, 1, 7, 64, 1000};
    for (size_t i = 0; i < N_OF(COUNTS); i++) {
        void *p = NULL;
        CHECK_OK(mem_alloc(COUNTS[i], 3, &p, &err), err);
        CU_ASSERT_PTR_NOT_NULL_FATAL(p);
        CU_ASSERT_EQUAL((uintptr_t)p % 64, 0);
        memset(p, 0xAB, COUNTS[i] * 3);
        free(p);
        uint8_t *zeroed = NULL;
        void *raw = NULL;
        CHECK_OK(mem_calloc(COUNTS[i], 3, &raw, &err), err);
        CU_ASSERT_PTR_NOT_NULL_FATAL(raw);
        CU_ASSERT_EQUAL((uintptr_t)raw % 64, 0);
        zeroed = raw;
        for (size_t j = 0; j < COUNTS[i] * 3; j++)
            CU_ASSERT_EQUAL(zeroed[j], 0);
        free(raw);
    }
    void *untouched = &err;
    CHECK_FAULT(mem_alloc(SIZE_MAX / 2, 3, &untouched, &err), ST_NOMEM, err, "3 bytes");
    CHECK_FAULT(mem_calloc(SIZE_MAX, 2, &untouched, &err), ST_NOMEM, err, "out of memory");
    CU_ASSERT_PTR_EQUAL(untouched, &err);
}

static void test_copies(void)
{
    char *copy = str_dup("abc");
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy);
    CHECK_TEXT(copy, "abc");
    free(copy);
    char *text = str_printf("%d-%s", 7, "x");
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CHECK_TEXT(text, "7-x");
    free(text);
    text = str_printf("%0*d", 5000, 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CU_ASSERT_EQUAL(strlen(text), 5000);
    free(text);
}

static void test_distance(void)
{
    CU_ASSERT_EQUAL(str_distance("", ""), 0);
    CU_ASSERT_EQUAL(str_distance("abc", ""), 3);
    CU_ASSERT_EQUAL(str_distance("", "abcd"), 4);
    CU_ASSERT_EQUAL(str_distance("kitten", "sitting"), 3);
    CU_ASSERT_EQUAL(str_distance("sitting", "kitten"), 3);
    CU_ASSERT_EQUAL(str_distance("q_proj.weight", "q_proj.weigth"), 2);
    char a[400], b[400];
    memset(a, 'a', sizeof a);
    memset(b, 'b', sizeof b);
    a[399] = b[399] = '\0';
    CU_ASSERT_EQUAL(str_distance(a, b), 256);
}

static void test_names(void)
{
    CU_ASSERT(str_is_name("q"));
    CU_ASSERT(str_is_name("Layer_0.q-proj"));
    CU_ASSERT(str_is_name("..."));
    CU_ASSERT(str_is_name(".hidden"));
    CU_ASSERT(!str_is_name(""));
    CU_ASSERT(!str_is_name("."));
    CU_ASSERT(!str_is_name(".."));
    CU_ASSERT(!str_is_name("a/b"));
    CU_ASSERT(!str_is_name("a b"));
    CU_ASSERT(!str_is_name("a\n"));
    CU_ASSERT(!str_is_name("\xC3\xA4"));
    char name[258];
    memset(name, 'n', sizeof name);
    name[255] = '\0';
    CU_ASSERT(str_is_name(name));
    name[255] = 'n';
    name[256] = '\0';
    CU_ASSERT(!str_is_name(name));
}

static void test_byte_counts(void)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } EXPECTED[] = {
        {0, "0 B"},
        {1023, "1023 B"},
        {1024, "1.00 KiB"},
        {1234567, "1.18 MiB"},
        {1048575, "1.00 MiB"},
        {(uint64_t)5 << 40, "5.00 TiB"},
        {UINT64_MAX, "16.00 EiB"},
    };
    char buf[32];
    for (size_t i = 0; i < N_OF(EXPECTED); i++)
        CHECK_TEXT(str_bytes(EXPECTED[i].bytes, buf, sizeof buf), EXPECTED[i].text);
}

static void test_read_integers(void)
{
    uint64_t x = 77;
    CU_ASSERT(str_to_u64("0", &x) && x == 0);
    CU_ASSERT(str_to_u64("18446744073709551615", &x) && x == UINT64_MAX);
    CU_ASSERT(str_to_u64("007", &x) && x == 7);
    static const char *const BAD[] = {"",
                                      " 1",
                                      "1 ",
                                      "-1",
                                      "+1",
                                      "0x",
                                      "1e3",
                                      "1.0",
                                      "18446744073709551616",
                                      "99999999999999999999999"};
    x = 77;
    for (size_t i = 0; i < N_OF(BAD); i++)
        CU_ASSERT(!str_to_u64(BAD[i], &x));
    CU_ASSERT_EQUAL(x, 77);

    CU_ASSERT(str_to_size("12", &x) && x == 12);
    CU_ASSERT(str_to_size("1K", &x) && x == 1024);
    CU_ASSERT(str_to_size("3M", &x) && x == 3u << 20);
    CU_ASSERT(str_to_size("2G", &x) && x == (uint64_t)2 << 30);
    CU_ASSERT(str_to_size("16777215T", &x) && x == (uint64_t)16777215 << 40);
    static const char *const BAD_SIZES[] = {"",    "K",    "1KB",       "1k", "1 K",
                                            "-1K", "1.5M", "16777216T", "1E"};
    x = 77;
    for (size_t i = 0; i < N_OF(BAD_SIZES); i++)
        CU_ASSERT(!str_to_size(BAD_SIZES[i], &x));
    CU_ASSERT_EQUAL(x, 77);
}

static void check_doubles(void)
{
    static const struct {
        double x;
        const char *text;
    } EXPECTED[] = {
        {0.1, "0.1"},
        {100, "100"},
        {-2.5, "-2.5"},
        {1e-5, "1e-05"},
        {1.0 / 3, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {4.94065645841246544e-324, "5e-324"},
        {0, "0"},
        {-0.0, "-0"},
        {NAN, "NaN"},
        {INFINITY, "Infinity"},
        {-INFINITY, "-Infinity"},
    };
    char buf[32];
    for (size_t i = 0; i < N_OF(EXPECTED); i++)
        CHECK_TEXT(str_double(EXPECTED[i].x, buf, sizeof buf), EXPECTED[i].text);
    static const double VALUES[] = {DBL_MIN, 0x1.fffffffffffffp-1, 123456789.123456789,
                                    1e22,    9007199254740993e3,   0x1.8p-1060,
                                    -1e-7};
    for (size_t i = 0; i < N_OF(VALUES); i++) {
        double back = 0;
        CU_ASSERT(str_to_double(str_double(VALUES[i], buf, sizeof buf), &back));
        CU_ASSERT_EQUAL(back, VALUES[i]);
    }
    double x = 0;
    CU_ASSERT(str_to_double("1.5e-3", &x) && x == 1.5e-3);
    CU_ASSERT(str_to_double("-0.0", &x) && x == 0 && signbit(x));
    CU_ASSERT(str_to_double("+.5", &x) && x == 0.5);
    CU_ASSERT(str_to_double("5.", &x) && x == 5);
    CU_ASSERT(str_to_double("1E+2", &x) && x == 100);
    CU_ASSERT(str_to_double("1e-400", &x) && x == 0);
    static const char *const BAD[] = {"",       ".",     "-",   "1e",  "1e+",  "1,5",
                                      " 1",     "1 ",    "nan", "inf", "0x10", "1e400",
                                      "-1e999", "1.5.2", "1f",  "--1"};
    x = 77;
    for (size_t i = 0; i < N_OF(BAD); i++)
        CU_ASSERT(!str_to_double(BAD[i], &x));
    CU_ASSERT_EQUAL(x, 77);
    CHECK_TEXT(str_bytes(1536, buf, sizeof buf), "1.50 KiB");
}

static void test_doubles(void)
{
    check_doubles();
}

/* A locale that prints "0,5".  One is built where none is installed, and localedef is there. */
static bool comma_locale(void)
{
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        char *command = str_printf("localedef -i de_DE -f UTF-8 --no-archive %s/de_DE.UTF-8 "
                                   ">/dev/null 2>&1",
                                   base_test_folder());
        bool built = command != NULL && system(command) != -1;
        free(command);
        if (!built || setenv("LOCPATH", base_test_folder(), 1) != 0 ||
            setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL)
            return false;
    }
    char text[16];
    (void)snprintf(text, sizeof text, "%.1f", 0.5);
    return strcmp(text, "0,5") == 0;
}

static void test_doubles_in_a_locale(void)
{
    if (comma_locale())
        check_doubles();
    else
        printf("skipped, no locale with a decimal comma: ");
    (void)setlocale(LC_ALL, "C");
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"memory", test_memory},           {"copies", test_copies},
        {"distance", test_distance},       {"names", test_names},
        {"byte counts", test_byte_counts}, {"integers", test_read_integers},
        {"doubles", test_doubles},         {"doubles in a locale", test_doubles_in_a_locale},
    };
    return base_test_main("base strings", TESTS, N_OF(TESTS));
}
