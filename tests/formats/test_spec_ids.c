/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of token ids (N24). */
#include "formats/formats.h"
#include "tests/formats/fixture.h"

static void reads(const char *text, const uint64_t *expected, size_t n_expected)
{
    uint64_t *ids = NULL;
    size_t n = 0;
    struct err err = {0};
    fixture_text("ids.txt", text);
    enum status st = format_ids_read("ids.txt", &ids, &n, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    CU_ASSERT_EQUAL(n, n_expected);
    CU_ASSERT(n == n_expected && memcmp(ids, expected, n * sizeof *ids) == 0);
    free(ids);
}

static void refused(const void *text, size_t size, const char *part)
{
    uint64_t *ids = NULL;
    size_t n = 7;
    struct err err = {0};
    fixture_file("ids.txt", text, size);
    CU_ASSERT_EQUAL(format_ids_read("ids.txt", &ids, &n, &err), ST_SPEC);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, "ids.txt: "));
    CU_ASSERT(ids == NULL && n == 0);
}

static void refused_text(const char *text, const char *part)
{
    refused(text, strlen(text), part);
}

#define IDS(...)                                                                                   \
    (const uint64_t[]){__VA_ARGS__}, sizeof((const uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)

static void test_lists(void)
{
    reads("3\n1\n1\n", IDS(1, 3));
    reads("3", IDS(3));
    reads("# numbers\r\n 7 - 9 # a range\r\n\r\n\t2\r\n8-10\n10-11", IDS(2, 7, 8, 9, 10, 11));
    reads("0-0\n", IDS(0));
    reads("5-6\n1-9\n2", IDS(1, 2, 3, 4, 5, 6, 7, 8, 9));
    reads("9223372036854775807\n4294967296", IDS(4294967296, INT64_MAX));
}

static void test_faults(void)
{
    refused_text("", "expected at least one id, found none");
    refused_text("# nothing\n\n", "expected at least one id");
    refused_text("1\ntwo\n", "line 2: expected an id or a range a-b, found \"two\"");
    refused_text("-1\n", "line 1: expected an id or a range a-b, found \"-1\"");
    refused_text("1-\n", "line 1: expected an id or a range");
    refused_text("1-2-3\n", "line 1: expected an id or a range");
    refused_text("1 2\n", "line 1: expected an id or a range");
    refused_text("1.0\n", "line 1: expected an id or a range");
    refused_text("1,2\n", "line 1: expected an id or a range");
    refused_text("1\n\n9-3\n", "line 3: expected a range that grows, found \"9-3\"");
    refused_text("9223372036854775808\n", "line 1: expected an id");
    refused_text("99999999999999999999\n", "line 1: expected an id");
    /* refused before anything of that size is allocated */
    refused_text("0-9223372036854775807\n", "9223372036854775808 ids, expected at most 2147483648");
    refused("1\n2\0003\n", 6, "line 2: expected text, found a zero byte");
    uint64_t *ids = NULL;
    size_t n = 0;
    struct err err = {0};
    CU_ASSERT_EQUAL(format_ids_read("absent.txt", &ids, &n, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "absent.txt"));
}

/* Many lines in no order. */
static void test_many(void)
{
    struct bytes text = {0};
    for (uint64_t i = 0; i < 5000; i++)
        bytes_printf(&text, "%llu\n", (unsigned long long)(i * 7919 % 5000 * 2));
    uint64_t *ids = NULL;
    size_t n = 0, wrong = 0;
    fixture_file("ids.txt", text.data, text.size);
    CU_ASSERT_EQUAL(format_ids_read("ids.txt", &ids, &n, NULL), ST_OK);
    CU_ASSERT_EQUAL(n, 5000);
    for (size_t i = 0; i < n; i++)
        wrong += ids[i] != 2 * i;
    CU_ASSERT_EQUAL(wrong, 0);
    free(ids);
    bytes_free(&text);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"lists", test_lists},
        {"faults", test_faults},
        {"many", test_many},
    };
    return fixture_run("ids", cases, sizeof cases / sizeof cases[0]);
}
