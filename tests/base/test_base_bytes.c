/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_round_trip(void)
{
    struct bytes b = {0};
    bytes_put_u8(&b, 0xFE);
    bytes_put_u32(&b, 0x01020304u);
    bytes_put_u64(&b, 0x1122334455667788u);
    bytes_put_f64(&b, -0.0);
    bytes_put_str(&b, "na\xC3\xA4me");
    bytes_put_str(&b, "");
    bytes_append(&b, "xyz", 3);
    CU_ASSERT(!b.failed);
    static const uint8_t EXPECTED[] = {
        0xFE, 4, 3, 2, 1, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0,   0,   0,  0, 0,
        0x80, 6, 0, 0, 0, 'n',  'a',  0xC3, 0xA4, 'm',  'e',  0,    0,    0, 0, 'x', 'y', 'z'};
    CU_ASSERT_EQUAL_FATAL(b.size, sizeof EXPECTED);
    CU_ASSERT_EQUAL(memcmp(b.data, EXPECTED, sizeof EXPECTED), 0);

    struct bytes_reader r = {.data = b.data, .size = b.size};
    CU_ASSERT_EQUAL(bytes_get_u8(&r), 0xFE);
    CU_ASSERT_EQUAL(bytes_get_u32(&r), 0x01020304u);
    CU_ASSERT_EQUAL(bytes_get_u64(&r), 0x1122334455667788u);
    double zero = bytes_get_f64(&r);
    CU_ASSERT(zero == 0 && signbit(zero));
    char *name = bytes_get_str(&r);
    CU_ASSERT_PTR_NOT_NULL_FATAL(name);
    CHECK_TEXT(name, "na\xC3\xA4me");
    free(name);
    char *empty = bytes_get_str(&r);
    CU_ASSERT_PTR_NOT_NULL_FATAL(empty);
    CHECK_TEXT(empty, "");
    free(empty);
    const uint8_t *rest = bytes_get(&r, 3);
    CU_ASSERT_PTR_NOT_NULL_FATAL(rest);
    CU_ASSERT_EQUAL(memcmp(rest, "xyz", 3), 0);
    CU_ASSERT(!r.failed);
    CU_ASSERT_EQUAL(r.at, r.size);
    bytes_free(&b);
    CU_ASSERT(b.data == NULL && b.size == 0 && b.capacity == 0);
    bytes_free(&b);
    bytes_free(NULL);
}

/* Every cut of a good buffer is noticed, and nothing is read past its end (ASan watches). */
static void test_every_cut(void)
{
    struct bytes b = {0};
    bytes_put_u32(&b, 7);
    bytes_put_str(&b, "abcdef");
    bytes_put_f64(&b, 1.5);
    for (size_t size = 0; size <= b.size; size++) {
        uint8_t *cut = malloc(size > 0 ? size : 1);
        CU_ASSERT_PTR_NOT_NULL_FATAL(cut);
        memcpy(cut, b.data, size);
        struct bytes_reader r = {.data = cut, .size = size};
        uint32_t first = bytes_get_u32(&r);
        char *s = bytes_get_str(&r);
        double x = bytes_get_f64(&r);
        CU_ASSERT_EQUAL(r.failed, size < b.size);
        CU_ASSERT_EQUAL(first, size >= 4 ? 7u : 0u);
        CU_ASSERT_EQUAL(s != NULL, size >= 14);
        CU_ASSERT_EQUAL(x, size == b.size ? 1.5 : 0.0);
        free(s);
        free(cut);
    }
    bytes_free(&b);
}

static void test_reader_refuses(void)
{
    static const uint8_t HUGE_LENGTH[] = {0xFF, 0xFF, 0xFF, 0xFF, 'a'};
    struct bytes_reader r = {.data = HUGE_LENGTH, .size = sizeof HUGE_LENGTH};
    CU_ASSERT_PTR_NULL(bytes_get_str(&r));
    CU_ASSERT(r.failed);
    CU_ASSERT_EQUAL(bytes_get_u8(&r), 0); /* stays failed though a byte is there */

    static const uint8_t WITH_NUL[] = {2, 0, 0, 0, 'a', 0};
    r = (struct bytes_reader){.data = WITH_NUL, .size = sizeof WITH_NUL};
    CU_ASSERT_PTR_NULL(bytes_get_str(&r));
    CU_ASSERT(r.failed);

    r = (struct bytes_reader){.data = WITH_NUL, .size = sizeof WITH_NUL, .at = 4};
    CU_ASSERT_PTR_NULL(bytes_get(&r, SIZE_MAX)); /* at + size would wrap */
    CU_ASSERT(r.failed);

    r = (struct bytes_reader){.data = NULL, .size = 0};
    CU_ASSERT_PTR_NOT_NULL(bytes_get(&r, 0));
    CU_ASSERT(!r.failed);
    CU_ASSERT_PTR_NULL(bytes_get(&r, SIZE_MAX));
    CU_ASSERT(r.failed);
}

static void test_growth_and_print(void)
{
    struct bytes b = {0};
    for (int i = 0; i < 1000; i++)
        bytes_printf(&b, "%d,", i);
    CU_ASSERT(!b.failed);
    CU_ASSERT_EQUAL_FATAL(b.size, 10 * 2 + 90 * 3 + 900 * 4);
    CU_ASSERT_EQUAL(memcmp(b.data, "0,1,2,", 6), 0);
    CU_ASSERT_EQUAL(memcmp(b.data + b.size - 8, "998,999,", 8), 0);
    bytes_append(&b, NULL, 0);
    CU_ASSERT(!b.failed);
    bytes_free(&b);
}

static void test_failure_stays(void)
{
    struct bytes b = {0};
    bytes_put_u8(&b, 1);
    bytes_append(&b, "x", SIZE_MAX); /* the sum of sizes overflows before a byte is touched */
    CU_ASSERT(b.failed);
    bytes_put_u64(&b, 2);
    bytes_printf(&b, "more");
    bytes_put_str(&b, "more");
    CU_ASSERT_EQUAL(b.size, 1);
    CU_ASSERT(b.failed);
    bytes_free(&b);
    CU_ASSERT(!b.failed);
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"round trip", test_round_trip},
        {"every cut", test_every_cut},
        {"the reader refuses", test_reader_refuses},
        {"growth", test_growth_and_print},
        {"failure stays", test_failure_stays},
    };
    return base_test_main("base bytes", TESTS, N_OF(TESTS));
}
