/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/formats/recipe_fixture.h"

#include <ctype.h>

static struct err err;

static struct format_recipe *decode(const char *text)
{
    struct format_recipe *r = NULL;
    err_clear(&err);
    enum status st = format_recipe_decode("recipe.json", text, strlen(text), &r, &err);
    CU_ASSERT((st == ST_OK) == (r != NULL));
    CU_ASSERT(st == ST_OK || st == ST_FORMAT);
    return r;
}

static void check_round_trip(struct format_recipe *r)
{
    fixture_seal(r);
    char *text = fixture_text_of(r);
    struct format_recipe *back = decode(text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(back);
    char *again = fixture_text_of(back);
    CU_ASSERT_STRING_EQUAL(text, again);
    char hex[SHA256_HEX_SIZE];
    CU_ASSERT_EQUAL(format_recipe_seal(back, hex, &err), ST_OK);
    CU_ASSERT_STRING_EQUAL(hex, r->seal);
    format_recipe_free(&back);
    CU_ASSERT_PTR_NULL(back);
    free(text);
    free(again);
    format_recipe_free(&r);
}

static void test_round_trip(void)
{
    check_round_trip(fixture_fanout());
    check_round_trip(fixture_lookup(4, 3, DT_F16));
    check_round_trip(fixture_projected(5, 4, DT_BF16, true));
    check_round_trip(fixture_projected(5, 4, DT_F64, false));
    struct format_recipe *r = fixture_projected(5, 4, DT_F32, false);
    r->retain_projection = true;
    r->projection_columns = 9;
    check_round_trip(r);
    r = fixture_lookup(4, 3, DT_F32);
    r->num_embeddings = 9;
    r->rows_in_checkpoint = 12;
    r->has_ids = true;
    r->n_ids = 4;
    r->may_grow = true;
    fixture_set(&r->arithmetic, "correctly_rounded");
    check_round_trip(r);
}

/* Files of each version stay readable, and keep their bytes. */
static void check_golden(struct format_recipe *r, const char *name)
{
    const char *root = getenv("TOKENTAB_SOURCE_DIR");
    char *dir = path_join(root != NULL ? root : ".", "tests/formats/golden");
    char *path = path_join(dir, name);
    uint8_t *data = NULL;
    size_t size = 0;
    fixture_seal(r);
    char *text = fixture_text_of(r);
    CU_ASSERT_EQUAL(file_read_all(path, 1 << 20, &data, &size, &err), ST_OK);
    if (data != NULL)
        CU_ASSERT_STRING_EQUAL(text, (char *)data);
    free(data);
    free(text);
    free(path);
    free(dir);
    format_recipe_free(&r);
}

static void test_golden(void)
{
    check_golden(fixture_projected(5, 4, DT_BF16, true), "recipe-v1.json");
    check_golden(fixture_fanout(), "recipe-v2.json");
}

/* `text` with the first `from` replaced; owned. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (at == NULL) {
        printf("\n    not in the text: %s\n", from);
        CU_FAIL("replaced");
        return fixture_dup(text);
    }
    char *s = str_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return s != NULL ? s : (exit(1), NULL);
}

static void test_refusals(void)
{
    static const struct {
        const char *from, *to, *says;
    } CASES[] = {
        {"\"kind\": \"fanout\"", "\"kind\": \"fan\"", "kind: expected"},
        {"\"kind\": \"fanout\"", "\"kind\": \"lookup\"", "4 of them in a lookup recipe"},
        {"\"version\": 2", "\"version\": 3", "version: expected 1 or 2, newest known 2, found 3"},
        {"\"version\": 2", "\"version\": 1", "version: expected 2 with"},
        {"\"version\": 2", "\"version\": \"2\"", "version: expected a whole number"},
        {"token_indices_only", "anything", "input_contract"},
        {"\"block\": \"first_layer\"", "\"block\": \"a/b\"", "block: not a name"},
        {"\"block\"", "\"blocks\"", "unknown key \"blocks\""},
        {"\"num_embeddings\": 37", "\"num_embeddings\": 36", "tables.group_0.shape: 37 rows"},
        {"\"num_embeddings\": 37", "\"num_embeddings\": 0", "num_embeddings"},
        {"\"num_embeddings\": 37", "\"num_embeddings\": -37", "expected a whole number, found -37"},
        {"\"num_embeddings\": 37", "\"num_embeddings\": 37.5", "expected a whole number"},
        {"\"num_embeddings\": 37", "\"num_embeddings\": 9007199254740993", "whole number"},
        {"\"num_embeddings\": 37", "\"num_embeddings\": \"37\"", "expected a whole number"},
        {"\"rows_in_checkpoint\": 40", "\"rows_in_checkpoint\": 36", "fewer than num_embeddings"},
        {"\"ids\": null", "\"ids\": 38", "ids: 38 is out of range"},
        {"\"ids\": null,", "", "ids: expected a whole number, found nothing"},
        {"\"group_1\"", "\"group_7\"", "expected \"group_1\", found \"group_7\""},
        {"\"dtype\": \"F32\"", "\"dtype\": \"I32\"", "tables.group_0: expected \"F64\""},
        {"\"dtype\": \"F32\"", "\"dtype\": \"F16\"", "as in bulk"},
        {"\"indexed\": true", "\"indexed\": false", "\"indexed\": true or no such key"},
        {"\"dtype\": \"F32\"", "\"dtype\": \"F32\", \"indexed\": true", "fewer than all"},
        {"\"q\",", "\"p\",", "is \"q\", expected \"p\" as in bulk"},
        {"\"k\",", "\"q\",", "outputs: \"q\" twice"},
        {"\"group_2\",", "\"group_5\",", "there are 5 groups"},
        {"\"group_2\",", "\"group_02\",", "the name of a group"},
        {"\"max_rows\": 15", "\"max_rows\": 1", "max_rows grow"},
        {"\"evaluation_rows\": 2", "\"evaluation_rows\": 0", "must be 1 or more"},
        {"\"evaluation_rows\": 2", "\"rows\": 2", "row_count_profiles[1]: unknown key \"rows\""},
        {"tables-0123", "../tables-0123", "payload.file"},
        {"tables-0123", "/tables-0123", "payload.file"},
        {".safetensors", ".bin", "payload.file"},
        {"\"sha256\": \"01", "\"sha256\": \"0G", "payload.sha256"},
        {"\"sha256\": \"01", "\"sha256\": \"0", "payload.sha256"},
        {"\"bytes\": 4096", "\"bytes\": \"4096\"", "bytes: expected a whole number"},
        {"\"bytes\": 4096", "\"bytes\": 4096, \"bytes\": 4096", "duplicate key"},
        {"\"must_shrink\"", "\"shrink\"", "storage_policy: expected \"must_shrink\""},
        {"\"arithmetic\": \"library\"", "\"arithmetic\": \"fast\"", "arithmetic: expected"},
        {"\"arithmetic\": \"library\"", "\"arithmetic\": \"correctly_rounded\"", "environment"},
        {"\"core\": \"Haswell\"", "\"core\": 1", "environment: expected a string"},
        {"\"provenance\": {", "\"provenance\": 7, \"x\": {", "unknown key \"x\""},
        {"\"thresholds\"", "\"threshold\"", "unknown key \"threshold\""},
        {"\"seal\": \"", "\"seal\": \"0", "seal: expected 64"},
    };
    struct format_recipe *r = fixture_fanout();
    fixture_seal(r);
    char *text = fixture_text_of(r);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char *bad = replaced(text, CASES[i].from, CASES[i].to);
        struct format_recipe *back = decode(bad);
        if (back != NULL)
            printf("\n    accepted: %s\n", CASES[i].to);
        CU_ASSERT_PTR_NULL(back);
        CU_ASSERT(fixture_says(&err, CASES[i].says));
        format_recipe_free(&back);
        free(bad);
    }
    free(text);
    format_recipe_free(&r);
}

/* Without one of its lines with a key the document lacks something. */
static void test_missing(void)
{
    static const char *const KEYS[] = {"kind",
                                       "version",
                                       "block",
                                       "input_contract",
                                       "num_embeddings",
                                       "rows_in_checkpoint",
                                       "ids",
                                       "tables",
                                       "outputs",
                                       "payload",
                                       "storage_policy",
                                       "arithmetic",
                                       "environment",
                                       "provenance",
                                       "thresholds",
                                       "validation",
                                       "storage",
                                       "seal",
                                       "shape",
                                       "dtype",
                                       "max_rows",
                                       "evaluation_rows",
                                       "file",
                                       "sha256",
                                       "bytes"};
    struct format_recipe *r = fixture_fanout();
    char *text = fixture_text_of(r);
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        char from[64];
        snprintf(from, sizeof from, "\"%s\": ", KEYS[i]);
        char *bad = replaced(text, from, "\"zz\": ");
        struct format_recipe *back = decode(bad);
        CU_ASSERT_PTR_NULL(back);
        format_recipe_free(&back);
        free(bad);
    }
    free(text);
    format_recipe_free(&r);
}

static void test_cut_and_flipped(void)
{
    struct format_recipe *r = fixture_fanout();
    fixture_seal(r);
    char *text = fixture_text_of(r);
    size_t size = strlen(text);
    for (size_t n = 0; n + 1 < size; n += 7) { /* the last character is white space */
        struct format_recipe *back = NULL;
        err_clear(&err);
        CU_ASSERT_EQUAL(format_recipe_decode("r", text, n, &back, &err), ST_FORMAT);
    }
    size_t n_decoded = 0;
    for (size_t at = 0; at < size; at++) {
        char kept = text[at];
        text[at] = (char)(kept ^ 1);
        struct format_recipe *back = decode(text);
        if (back != NULL) { /* a change that reads is a change of the content, unless of spacing */
            char hex[SHA256_HEX_SIZE];
            n_decoded++;
            CU_ASSERT_EQUAL(format_recipe_seal(back, hex, &err), ST_OK);
            CU_ASSERT(strcmp(hex, back->seal) != 0 || isspace((unsigned char)kept));
        }
        format_recipe_free(&back);
        text[at] = kept;
    }
    CU_ASSERT(n_decoded > 10);
    free(text);
    format_recipe_free(&r);
}

static void test_tensors(void)
{
    struct format_tensor_spec *specs = NULL;
    size_t n = 0;
    struct format_recipe *r = fixture_fanout();
    CU_ASSERT_EQUAL(format_recipe_tensors(r, &specs, &n, &err), ST_OK);
    CU_ASSERT_EQUAL_FATAL(n, 6);
    CU_ASSERT_STRING_EQUAL(specs[0].name, "tables.group_0");
    CU_ASSERT_EQUAL(specs[0].shape[1], 7);
    CU_ASSERT_EQUAL(specs[2].dtype, DT_BF16);
    CU_ASSERT_STRING_EQUAL(specs[5].name, "tables.group_4.index");
    CU_ASSERT_EQUAL(specs[5].dtype, DT_I32);
    CU_ASSERT_EQUAL(specs[5].rank, 1);
    CU_ASSERT_EQUAL(specs[5].shape[0], FIXTURE_V);
    format_tensor_specs_free(&specs, n);
    format_recipe_free(&r);
    r = fixture_projected(5, 4, DT_F16, true);
    r->retain_projection = true;
    r->projection_columns = 9;
    CU_ASSERT_EQUAL(format_recipe_tensors(r, &specs, &n, &err), ST_OK);
    CU_ASSERT_EQUAL_FATAL(n, 3);
    CU_ASSERT_STRING_EQUAL(specs[1].name, "bias");
    CU_ASSERT_EQUAL(specs[1].shape[0], 4);
    CU_ASSERT_STRING_EQUAL(specs[2].name, "projection");
    CU_ASSERT_EQUAL(specs[2].shape[1], 9);
    format_tensor_specs_free(&specs, n);
    format_recipe_free(&r);
}

/* Rules that a document cannot break one at a time. */
static void test_rules(void)
{
    struct format_recipe *r = fixture_fanout();
    struct bytes b;
    err_clear(&err);
    r->groups[0].width = UINT64_MAX / 8;
    CU_ASSERT_EQUAL(format_recipe_encode(r, &b, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "overflows"));
    r->groups[0].width = 7;
    r->outputs[0].column = UINT64_MAX;
    err_clear(&err);
    CU_ASSERT_EQUAL(format_recipe_encode(r, &b, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "do not lie in group_0"));
    r->outputs[0].column = 1;
    r->profiles[0].outputs[0].group = 0;
    err_clear(&err);
    CU_ASSERT_EQUAL(format_recipe_encode(r, &b, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "group_3: no output uses it"));
    r->profiles[0].outputs[0].group = 3;
    fixture_set(&r->validation_json, "[1]");
    err_clear(&err);
    CU_ASSERT_EQUAL(format_recipe_encode(r, &b, &err), ST_FORMAT);
    fixture_set(&r->validation_json, "{\"a\": 1} x");
    err_clear(&err);
    CU_ASSERT_EQUAL(format_recipe_encode(r, &b, &err), ST_FORMAT);
    format_recipe_free(&r);
    err_clear(&err);
}

int main(int argc, char **argv)
{
    static const struct fixture_case CASES[] = {
        {"encode, decode and seal round trip", test_round_trip},
        {"golden files", test_golden},
        {"each fault its own message", test_refusals},
        {"missing keys", test_missing},
        {"cut and flipped copies", test_cut_and_flipped},
        {"payload tensors", test_tensors},
        {"rules", test_rules},
    };
    if (argc == 2) { /* prints a golden file, to be looked at and kept */
        struct format_recipe *r =
            strcmp(argv[1], "v1") == 0 ? fixture_projected(5, 4, DT_BF16, true) : fixture_fanout();
        fixture_seal(r);
        char *text = fixture_text_of(r);
        fputs(text, stdout);
        free(text);
        format_recipe_free(&r);
        return 0;
    }
    return fixture_run("recipe.json", CASES, sizeof CASES / sizeof *CASES);
}
