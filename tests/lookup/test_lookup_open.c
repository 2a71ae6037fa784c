/* SPDX-License-Identifier: Apache-2.0 */
/* Strict reload: corrupt, historical, missing, extra. */
#include "lookup_fixture.h"

static struct tokentab_error terr;

static enum tokentab_status open_with(const struct folder *f, unsigned flags,
                                      struct tokentab_recipe **t)
{
    const struct tokentab_open_opts opts = {.flags = flags};
    memset(&terr, 0, sizeof terr);
    enum tokentab_status st = tokentab_open(f->dir, &opts, t, &terr);
    CU_ASSERT((st == TOKENTAB_OK) == (*t != NULL));
    CU_ASSERT(st == TOKENTAB_OK || terr.status == st);
    return st;
}

static void check_open(const struct folder *f, unsigned flags, enum tokentab_status want,
                       const char *says)
{
    struct tokentab_recipe *t = NULL;
    enum tokentab_status st = open_with(f, flags, &t);
    if (st != want || strstr(terr.message, says) == NULL)
        printf("\n    status %d, expected %d with \"%s\": %s\n", st, want, says, terr.message);
    CU_ASSERT_EQUAL(st, want);
    CU_ASSERT_PTR_NOT_NULL(strstr(terr.message, says));
    tokentab_close(&t);
}

static char *payload_path(const struct folder *f)
{
    return path_join(f->dir, f->r->payload_file);
}

/* Flip a bit of the payload file, `from_end` bytes before its end. */
static void flip(const struct folder *f, long from_end)
{
    char *path = payload_path(f);
    FILE *file = fopen(path, "r+b");
    if (file == NULL)
        exit(1);
    fseek(file, -from_end, SEEK_END);
    int c = fgetc(file);
    fseek(file, -from_end, SEEK_END);
    fputc(c ^ 1, file);
    fclose(file);
    free(path);
}

static void check_corrupt(bool packed)
{
    struct folder *f =
        folder_make(packed ? "open.packed" : "open.mapped", fixture_fanout(), packed);
    check_open(f, 0, TOKENTAB_OK, "");
    check_open(f, TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL, TOKENTAB_OK, "");
    /* the last byte belongs to the index tensor, 600 bytes from the end lie values of a table */
    flip(f, 600);
    check_open(f, TOKENTAB_OPEN_VERIFY, TOKENTAB_EFORMAT,
               packed ? "damaged: the digest of its directory" : "corrupt: SHA-256");
    flip(f, 600);
    check_open(f, TOKENTAB_OPEN_VERIFY, TOKENTAB_OK, "");
    char *path = payload_path(f);
    struct err err = {0};
    uint8_t *data = NULL;
    size_t size = 0;
    CU_ASSERT_EQUAL_FATAL(file_read_all(path, 1 << 20, &data, &size, &err), ST_OK);
    static const size_t KEPT[] = {0, 1, 7, 8, 100};
    for (size_t i = 0; i < sizeof KEPT / sizeof *KEPT; i++) {
        fixture_file(path, data, KEPT[i]);
        check_open(f, 0, TOKENTAB_EFORMAT, f->r->payload_file);
    }
    fixture_file(path, data, size - 1);
    check_open(f, 0, TOKENTAB_EFORMAT, f->r->payload_file);
    fixture_file(path, data, size + 1); /* the NUL behind it */
    check_open(f, 0, TOKENTAB_EFORMAT, f->r->payload_file);
    remove(path);
    check_open(f, 0, TOKENTAB_EFORMAT, f->r->payload_file);
    free(data);
    free(path);
    folder_free(&f);
}

static void test_corrupt(void)
{
    check_corrupt(false);
    check_corrupt(true);
}

/* Consistent, but changed since it was validated: payload, descriptor, threshold. */
static void check_historical(bool packed)
{
    const char *dir = packed ? "historical.packed" : "historical.mapped";
    for (int change = 0; change < 4; change++) {
        struct folder *f = folder_make(dir, fixture_fanout(), packed);
        struct tokentab_recipe *t = NULL;
        if (change == 0) {
            f->data[0][5] ^= 1;
            folder_write_payload(f, packed);
        } else if (change == 1) {
            f->r->profiles[0].outputs[0].group = 3;
            f->r->outputs[0].column = 2;
        } else if (change == 2) {
            fixture_set(&f->r->thresholds[0].value, "1e-3");
        } else {
            fixture_set(&f->r->environment[1].value, "SkylakeX");
        }
        folder_write_recipe(f, false);
        CU_ASSERT_EQUAL(open_with(f, TOKENTAB_OPEN_VERIFY, &t), TOKENTAB_OK);
        if (t != NULL)
            CU_ASSERT(tokentab_is_historical(t));
        tokentab_close(&t);
        check_open(f, TOKENTAB_OPEN_REQUIRE_SEAL, TOKENTAB_EFORMAT, "historical");
        folder_write_recipe(f, true);
        CU_ASSERT_EQUAL(open_with(f, TOKENTAB_OPEN_REQUIRE_SEAL, &t), TOKENTAB_OK);
        if (t != NULL)
            CU_ASSERT_FALSE(tokentab_is_historical(t));
        tokentab_close(&t);
        folder_free(&f);
    }
}

static void test_historical(void)
{
    check_historical(false);
    check_historical(true);
}

/* The payload holds other tensors than recipe.json says. */
static void check_strict(bool packed)
{
    struct folder *f = folder_make("strict", fixture_fanout(), packed);
    f->r->groups[2].dtype = DT_F16;
    folder_write_recipe(f, true);
    check_open(f, 0, TOKENTAB_EFORMAT, "tensor \"tables.group_2\"");
    f->r->groups[2].dtype = DT_BF16;
    f->r->groups[1].width = 4;
    folder_write_recipe(f, true);
    check_open(f, 0, TOKENTAB_EFORMAT, "tensor \"tables.group_1\"");
    f->r->groups[1].width = 3;
    f->r->groups[4].indexed = false;
    f->r->groups[4].rows = FIXTURE_V;
    folder_write_recipe(f, true);
    check_open(f, 0, TOKENTAB_EFORMAT, "6 tensors, expected 5");
    folder_free(&f);
}

static void test_strict(void)
{
    check_strict(false);
    check_strict(true);
}

/* Numbers in the payload that would lead outside of it. */
static void check_numbers(bool packed)
{
    struct folder *f = folder_make("numbers", fixture_fanout(), packed);
    static const int32_t BAD[] = {FIXTURE_SHARED, -1, INT32_MIN};
    for (size_t i = 0; i < 3; i++) {
        memcpy(f->data[5] + 4 * (FIXTURE_V - 1), &BAD[i], 4);
        folder_write_payload(f, packed);
        folder_write_recipe(f, true);
        check_open(f, 0, TOKENTAB_EFORMAT, "tables.group_4.index[36]");
    }
    folder_free(&f);
    static const int64_t IDS[] = {40, -1, 8, 0};
    for (size_t i = 0; i < 4; i++) {
        struct format_recipe *r = fixture_lookup(40, 3, DT_F32);
        r->has_ids = true;
        r->n_ids = 10;
        r->groups[0].rows = 10;
        f = folder_make("numbers", r, packed);
        check_open(f, 0, TOKENTAB_OK, "");
        memcpy(f->data[1] + 8 * 3, &IDS[i], 8); /* 0 4 8 12 16 ... */
        folder_write_payload(f, packed);
        folder_write_recipe(f, true);
        check_open(f, 0, TOKENTAB_EFORMAT, i == 0 ? "ids[3] is 40" : "ids[3]");
        folder_free(&f);
    }
}

static void test_numbers(void)
{
    check_numbers(false);
    check_numbers(true);
}

static void test_staged(void)
{
    struct folder *f = folder_make("staged", fixture_lookup(4, 3, DT_F32), false);
    char *from = path_join(f->dir, LOOKUP_RECIPE_FILE), *to = path_join(f->dir, LOOKUP_STAGED_FILE);
    remove(to);
    check_open(f, TOKENTAB_OPEN_STAGED, TOKENTAB_EFORMAT, "recipe.json.staged");
    fixture_set(&f->r->seal, ""); /* staged recipes have none yet */
    folder_write_recipe(f, false);
    check_open(f, 0, TOKENTAB_EFORMAT, "never validated");
    CU_ASSERT_EQUAL(rename(from, to), 0);
    check_open(f, TOKENTAB_OPEN_STAGED, TOKENTAB_OK, "");
    check_open(f, TOKENTAB_OPEN_STAGED | TOKENTAB_OPEN_REQUIRE_SEAL, TOKENTAB_EFORMAT,
               "historical");
    check_open(f, 0, TOKENTAB_EFORMAT, "recipe.json");
    check_open(f, 8, TOKENTAB_EINVAL, "flags");
    remove(to);
    free(from);
    free(to);
    folder_free(&f);
}

static void test_arguments(void)
{
    struct tokentab_recipe *t = NULL;
    CU_ASSERT_EQUAL(tokentab_open(NULL, NULL, &t, NULL), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_open("x", NULL, NULL, NULL), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_open("no/such/folder", NULL, &t, &terr), TOKENTAB_EFORMAT);
    CU_ASSERT_PTR_NULL(t);
    CU_ASSERT_PTR_NOT_NULL(strstr(terr.message, "no/such/folder"));
    fixture_dir("garbage");
    fixture_text("garbage/recipe.json", "{\"kind\": \"lookup\"");
    CU_ASSERT_EQUAL(tokentab_open("garbage", NULL, &t, &terr), TOKENTAB_EFORMAT);
    fixture_text("garbage/recipe.json", "");
    CU_ASSERT_EQUAL(tokentab_open("garbage", NULL, &t, NULL), TOKENTAB_EFORMAT);
}

/* A payload of thousands of MiB by its own word costs nothing before it is refused. */
static void test_hostile(void)
{
    uint64_t before = fixture_peak_bytes();
    struct format_recipe *r = fixture_lookup((uint64_t)1 << 40, 1024, DT_F32);
    struct folder f = {.dir = "hostile", .r = r};
    fixture_dir("hostile");
    fixture_set(&r->payload_file, "tables-x.safetensors");
    fixture_safetensors("hostile/tables-x.safetensors",
                        "{\"tables.group_0\":{\"dtype\":\"F32\",\"shape\":[1099511627776,1024],"
                        "\"data_offsets\":[0,4503599627370496]}}",
                        "", 0);
    folder_write_recipe(&f, true);
    check_open(&f, 0, TOKENTAB_EFORMAT, "tables-x.safetensors");
    fixture_set(&r->payload_file, "tables-x.ttz");
    fixture_text("hostile/tables-x.ttz", "tokentab, or so it says; this is no packed file at all");
    folder_write_recipe(&f, true);
    check_open(&f, 0, TOKENTAB_EFORMAT, "not a packed file");
    CU_ASSERT(fixture_peak_bytes() - before < (uint64_t)64 << 20);
    format_recipe_free(&r);
}

int main(void)
{
    static const struct fixture_case CASES[] = {
        {"hostile payloads", test_hostile},
        {"corrupt payloads", test_corrupt},
        {"historical recipes", test_historical},
        {"nothing missing, nothing extra", test_strict},
        {"numbers that lead outside", test_numbers},
        {"staged recipes", test_staged},
        {"arguments", test_arguments},
    };
    return fixture_run("open", CASES, sizeof CASES / sizeof *CASES);
}
