/* SPDX-License-Identifier: Apache-2.0 */
/* --ids and --shape of lookup. */
#include "driver/verb_internal.h"
#include "tests/formats/fixture.h"

enum { V = 10 };

static bool parses(const char *list, const char *shape, size_t n, const int64_t *values,
                   unsigned rank, const int64_t *dims)
{
    struct verb_ids ids;
    struct err err = {0};
    bool good = verb_ids_parse(list, shape, V, &ids, &err) == ST_OK && ids.n == n &&
                ids.rank == rank && memcmp(ids.shape, dims, rank * sizeof *dims) == 0;
    for (size_t i = 0; good && i < n; i++)
        good = ids.values[i] == values[i];
    if (!good)
        printf("\n    --ids %s: %s", list == NULL ? "(none)" : list, err.message);
    verb_ids_free(&ids);
    return good;
}

static bool refuses(const char *list, const char *shape, const char *why)
{
    struct verb_ids ids;
    struct err err = {0};
    enum status st = verb_ids_parse(list, shape, V, &ids, &err);
    verb_ids_free(&ids);
    return st == ST_USAGE && fixture_says(&err, why);
}

static void test_lists(void)
{
    CU_ASSERT(parses("1,2,5-9", NULL, 7, (int64_t[]){1, 2, 5, 6, 7, 8, 9}, 1, (int64_t[]){7}));
    CU_ASSERT(parses("3", "scalar", 1, (int64_t[]){3}, 0, (int64_t[]){0}));
    CU_ASSERT(parses("0,0,0,0", "2x2", 4, (int64_t[]){0, 0, 0, 0}, 2, (int64_t[]){2, 2}));
    CU_ASSERT(parses(" 4 , 5 ", NULL, 2, (int64_t[]){4, 5}, 1, (int64_t[]){2}));
    CU_ASSERT(parses("7-7", "1x1x1", 1, (int64_t[]){7}, 3, (int64_t[]){1, 1, 1}));
    CU_ASSERT(parses(NULL, "2x0", 0, NULL, 2, (int64_t[]){2, 0}));
    CU_ASSERT(parses(NULL, "0x3x2", 0, NULL, 3, (int64_t[]){0, 3, 2}));
    /* Outside the vocabulary: kept, so that the library names it; long ranges are cut behind it. */
    CU_ASSERT(parses("-1", NULL, 1, (int64_t[]){-1}, 1, (int64_t[]){1}));
    CU_ASSERT(parses("4294967296", NULL, 1, (int64_t[]){4294967296}, 1, (int64_t[]){1}));
    CU_ASSERT(parses("8-9223372036854775807", NULL, 3, (int64_t[]){8, 9, 10}, 1, (int64_t[]){3}));
    CU_ASSERT(parses("9000000000-9223372036854775807", NULL, 1, (int64_t[]){9000000000}, 1,
                     (int64_t[]){1}));
}

static void test_refusals(void)
{
    static const char *const lists[] = {"1,,2",  ",1",  "1,",  "a",  "1a",  "1-",
                                        "1-2-3", "0x1", "1.0", "+1", "--1", " "};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        CU_ASSERT(refuses(lists[i], NULL, "expected a token id or a range"));
    CU_ASSERT(refuses("9223372036854775808", NULL, "outside every vocabulary"));
    CU_ASSERT(refuses("5-2", NULL, "backwards"));
    CU_ASSERT(refuses(NULL, NULL, "--ids LIST is missing"));
    CU_ASSERT(refuses("1,2", "3", "3 places, --ids gives 2"));
    CU_ASSERT(refuses("1,2", "scalar", "1 places"));
    CU_ASSERT(refuses("1,2", "4294967296x4294967296", "more than"));
    CU_ASSERT(refuses("1", "1x", "--shape"));
    CU_ASSERT(refuses("1", "x1", "--shape"));
    CU_ASSERT(refuses("1", "-1", "--shape"));
    CU_ASSERT(refuses("1", "1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1x1", "16 dimensions"));
}

static void test_files(void)
{
    fixture_text("ids.txt", "# ids\n3\n\n  5-6 , 1 # three\r\n0");
    CU_ASSERT(parses("@ids.txt", NULL, 5, (int64_t[]){3, 5, 6, 1, 0}, 1, (int64_t[]){5}));
    fixture_text("ids.txt", "");
    CU_ASSERT(parses("@ids.txt", "0", 0, NULL, 1, (int64_t[]){0}));
    fixture_text("ids.txt", "1\n2\nx\n");
    CU_ASSERT(refuses("@ids.txt", NULL, "ids.txt:3: \"x\""));
    struct verb_ids ids;
    struct err err = {0};
    CU_ASSERT_EQUAL(verb_ids_parse("@no-such-file", NULL, V, &ids, &err), ST_FORMAT);
    verb_ids_free(&ids);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"lists", test_lists}, {"refusals", test_refusals}, {"files", test_files}};
    return fixture_run("ids", cases, sizeof cases / sizeof cases[0]);
}
