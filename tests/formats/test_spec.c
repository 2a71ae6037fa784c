/* SPDX-License-Identifier: Apache-2.0 */
/* The document around the blocks. */
#include "tests/formats/spec_fixture.h"

#define BLOCK "'block': {'kind': 'lookup', 'embedding': {'weight': 'e'}, 'layers': []}"
/* The head, the smallest block, and more. */
#define WITH(more) SPEC_HEAD BLOCK ", " more "}"

static void test_defaults(void)
{
    struct format_spec *s = spec_accepted(SPEC_HEAD BLOCK "}");
    if (s == NULL)
        return;
    CU_ASSERT_STRING_EQUAL(s->path, "spec.json");
    CU_ASSERT_STRING_EQUAL(s->checkpoint_path, "model.safetensors");
    CU_ASSERT(s->n_blocks == 1 && s->n_profiles == 0 && s->n_aliases == 0);
    CU_ASSERT(s->bulk_rows == 1024 && s->validation_rows == 257);
    CU_ASSERT(s->tolerance_absolute == 1e-5 && s->tolerance_relative == 1e-5);
    CU_ASSERT(!s->correctly_rounded && s->storage == STORAGE_MUST_SHRINK && s->vocab == 0);
    CU_ASSERT(s->ids_path == NULL && s->graph == NULL && s->examples == NULL);
    format_spec_free(&s);
    CU_ASSERT_PTR_NULL(s);
    format_spec_free(&s);
}

static void test_settings(void)
{
    struct format_spec *s = spec_accepted(
        SPEC_HEAD
        "'row_count_profiles': [{'max_rows': 1, 'evaluation_rows': 1}, {'max_rows': 15, "
        "'evaluation_rows': 2, 'comment': 'pairs'}], 'bulk_rows': 64, 'validation_rows': 7, "
        "'tolerance': {'absolute': 0, 'relative': 1e-3, 'comment': ''}, 'arithmetic': "
        "'correctly_rounded', 'storage': 'may_grow', 'vocab': 4, 'ids': 'ids.txt', "
        "'comment': 'free', 'aliases': {'head': 'e', 'tail': {'alias': 'e'}}, 'examples': [], "
        "'block': {'kind': 'lookup', 'embedding': {'weight': 'head'}, 'layers': [{'op': 'linear', "
        "'weight': 'tail'}]}}");
    if (s == NULL)
        return;
    CU_ASSERT_EQUAL(s->n_profiles, 2);
    CU_ASSERT(s->profiles[1].max_rows == 15 && s->profiles[1].evaluation_rows == 2);
    CU_ASSERT(s->bulk_rows == 64 && s->validation_rows == 7 && s->vocab == 4);
    CU_ASSERT(s->tolerance_absolute == 0 && s->tolerance_relative == 1e-3);
    CU_ASSERT(s->correctly_rounded && s->storage == STORAGE_MAY_GROW);
    CU_ASSERT_STRING_EQUAL(s->ids_path, "ids.txt");
    CU_ASSERT_EQUAL(s->n_aliases, 2);
    CU_ASSERT_STRING_EQUAL(s->aliases[1].name, "tail");
    CU_ASSERT_STRING_EQUAL(s->aliases[1].target, "e");
    CU_ASSERT_PTR_NOT_NULL(s->examples);
    format_spec_free(&s);
}

static void test_paths(void)
{
    struct format_spec *s = NULL;
    struct err err = {0};
    fixture_dir("sub");
    spec_write("sub/spec.json", WITH("'ids': 'ids.txt'"));
    CU_ASSERT_EQUAL(format_spec_read("sub/spec.json", &s, &err), ST_OK);
    CU_ASSERT_STRING_EQUAL(s->checkpoint_path, "sub/model.safetensors");
    CU_ASSERT_STRING_EQUAL(s->ids_path, "sub/ids.txt");
    format_spec_free(&s);
    spec_write("sub/spec.json", "{'tokentab': 1, 'checkpoint': '/abs/m', 'mode': 'eval', "
                                "'input_contract': 'token_indices_only', " BLOCK "}");
    CU_ASSERT_EQUAL(format_spec_read("sub/spec.json", &s, &err), ST_OK);
    CU_ASSERT_STRING_EQUAL(s->checkpoint_path, "/abs/m");
    format_spec_free(&s);
    CU_ASSERT_EQUAL(format_spec_read("sub/absent.json", &s, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "sub/absent.json"));
    CU_ASSERT_EQUAL(status_exit_code(err.st), 3);
    CU_ASSERT_PTR_NULL(s);
    /* what is no JSON at all names the file and the place */
    err_clear(&err);
    spec_write("sub/spec.json", "{'tokentab': 1,}");
    CU_ASSERT_EQUAL(format_spec_read("sub/spec.json", &s, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "sub/spec.json: line 1 column "));
    err_clear(&err);
    spec_write("sub/spec.json", "{'tokentab': 1, 'tokentab': 1}");
    CU_ASSERT_EQUAL(format_spec_read("sub/spec.json", &s, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "duplicate key \"tokentab\""));
}

static void test_contract(void)
{
#define REST "'input_contract': 'token_indices_only', " BLOCK "}"
    spec_refused("[]", ST_SPEC, "expected an object, found an array");
    spec_refused("{'checkpoint': 'm', 'mode': 'eval', " REST, ST_SPEC,
                 "tokentab: missing (required for a spec; this version reads 1)");
    spec_refused("{'tokentab': 2, 'checkpoint': 'm', 'mode': 'eval', " REST, ST_SPEC,
                 "tokentab: expected 1, found number 2");
    spec_refused("{'tokentab': '1', 'checkpoint': 'm', 'mode': 'eval', " REST, ST_SPEC,
                 "tokentab: expected 1, found string \"1\"");
    spec_refused("{'tokentab': 1, 'mode': 'eval', " REST, ST_SPEC, "checkpoint: missing");
    spec_refused("{'tokentab': 1, 'checkpoint': '', 'mode': 'eval', " REST, ST_SPEC,
                 "checkpoint: expected a string that is not empty");
    spec_refused("{'tokentab': 1, 'checkpoint': 7, 'mode': 'eval', " REST, ST_SPEC,
                 "checkpoint: expected a string, found number 7");
    spec_refused("{'tokentab': 1, 'checkpoint': 'm', " REST, ST_SPEC,
                 "mode: missing (required for a spec; \"eval\")");
    spec_refused("{'tokentab': 1, 'checkpoint': 'm', 'mode': 'train', " REST, ST_STRUCTURE,
                 "mode: expected \"eval\", found \"train\": a model in training mode");
    spec_refused("{'tokentab': 1, 'checkpoint': 'm', 'mode': 'eval', " BLOCK "}", ST_SPEC,
                 "input_contract: missing");
    spec_refused(
        "{'tokentab': 1, 'checkpoint': 'm', 'mode': 'eval', 'input_contract': 'any', " BLOCK "}",
        ST_SPEC, "input_contract: expected \"token_indices_only\", found string \"any\"");
#undef REST
}

static void test_keys(void)
{
    spec_refused(WITH("'bulk_row': 7"), ST_SPEC,
                 "bulk_row: unknown key, nearest known key is \"bulk_rows\"");
    spec_refused(WITH("'Storage': 'may_grow'"), ST_SPEC,
                 "Storage: unknown key, nearest known key is \"storage\"");
    spec_refused(WITH("'comment': 1"), ST_SPEC, "comment: expected a string, found number 1");
    spec_refused(WITH("'tolerance': {'abs': 1}"), ST_SPEC,
                 "tolerance.abs: unknown key, nearest known key is \"absolute\"");
    spec_refused(WITH("'\\n': 1"), ST_SPEC, "?: unknown key");
    spec_refused(WITH("'blocks': []"), ST_SPEC,
                 "expected exactly one of \"block\", \"blocks\" and "
                 "\"graph\", found 2");
    spec_refused(SPEC_HEAD "'comment': ''}", ST_SPEC, "expected exactly one of \"block\"");
    spec_refused(SPEC_HEAD "'blocks': []}", ST_SPEC, "blocks: expected at least one block");
    spec_refused(SPEC_HEAD "'blocks': {}}", ST_SPEC, "blocks: expected an array, found an object");
    spec_refused(SPEC_HEAD "'block': []}", ST_SPEC, "block: expected an object, found an array");
}

static void test_ranges(void)
{
    spec_refused(WITH("'bulk_rows': 0"), ST_SPEC,
                 "bulk_rows: expected a whole number from 1 to 16777216, found number 0");
    spec_refused(WITH("'bulk_rows': 16777217"), ST_SPEC, "bulk_rows: expected");
    spec_refused(WITH("'bulk_rows': 1.5"), ST_SPEC, "bulk_rows: expected");
    spec_refused(WITH("'bulk_rows': '7'"), ST_SPEC, "bulk_rows: expected");
    spec_refused(WITH("'validation_rows': -1"), ST_SPEC, "validation_rows: expected");
    spec_refused(WITH("'vocab': 0"), ST_SPEC, "vocab: expected");
    spec_refused(WITH("'vocab': 9007199254740993"), ST_SPEC, "vocab: expected");
    spec_refused(WITH("'ids': []"), ST_SPEC, "ids: expected a string, found an array");
    spec_refused(WITH("'tolerance': 1"), ST_SPEC, "tolerance: expected an object, found number 1");
    spec_refused(WITH("'tolerance': {'absolute': -1}"), ST_SPEC,
                 "tolerance.absolute: expected a finite number, 0 or more, found number -1");
    spec_refused(WITH("'tolerance': {'relative': '0'}"), ST_SPEC, "tolerance.relative: expected");
    spec_refused(
        WITH("'arithmetic': 'exact'"), ST_SPEC,
        "arithmetic: expected \"library\" or \"correctly_rounded\", found string \"exact\"");
    spec_refused(WITH("'storage': true"), ST_SPEC,
                 "storage: expected \"must_shrink\" or \"may_grow\", found true");
    spec_refused(WITH("'examples': 1"), ST_SPEC, "examples: expected a path, a list or an object");
    spec_refused(WITH("'provenance': []"), ST_SPEC, "provenance: expected an object {name: text}");
    spec_refused(WITH("'provenance': {'revision': 1}"), ST_SPEC,
                 "provenance.revision: expected a string, found number 1");
    struct format_spec *s = spec_accepted(WITH("'provenance': {'config.json': 'sha256:00'}"));
    format_spec_free(&s);
}

static void test_profiles(void)
{
    spec_refused(WITH("'row_count_profiles': {}"), ST_SPEC,
                 "row_count_profiles: expected an array");
    spec_refused(WITH("'row_count_profiles': [3]"), ST_SPEC,
                 "row_count_profiles[0]: expected an object, found number 3");
    spec_refused(WITH("'row_count_profiles': [{'max_rows': 0, 'evaluation_rows': 0}]"), ST_SPEC,
                 "row_count_profiles[0].max_rows: expected a whole number from 1");
    spec_refused(
        WITH("'row_count_profiles': [{'max_rows': 4, 'evaluation_rows': 5}]"), ST_SPEC,
        "row_count_profiles[0].evaluation_rows: expected a whole number from 1 to 4, found "
        "number 5");
    spec_refused(WITH("'row_count_profiles': [{'max_rows': 4, 'evaluation_rows': 1}, {'max_rows': "
                      "4, 'evaluation_rows': 2}]"),
                 ST_SPEC, "row_count_profiles[1].max_rows: expected more than 4");
    spec_refused(WITH("'row_count_profiles': [{'max_rows': 4}]"), ST_SPEC,
                 "row_count_profiles[0].evaluation_rows: missing");
    spec_refused(WITH("'row_count_profiles': [{'evaluation_rows': 4}]"), ST_SPEC,
                 "row_count_profiles[0].max_rows: missing");
    spec_refused(WITH("'row_count_profiles': [{'max_rows': 4, 'evaluation_row': 5}]"), ST_SPEC,
                 "row_count_profiles[0].evaluation_row: unknown key, nearest known key is "
                 "\"evaluation_rows\"");
    /* 64 are fine, 65 are not */
    for (int n = 64; n <= 65; n++) {
        struct bytes text = {0};
        bytes_printf(&text, SPEC_HEAD BLOCK ", 'row_count_profiles': [");
        for (int i = 1; i <= n; i++)
            bytes_printf(&text, "%s{'max_rows': %d, 'evaluation_rows': 1}", i > 1 ? ", " : "", i);
        bytes_printf(&text, "]}");
        bytes_put_u8(&text, 0);
        if (n == 65) {
            spec_refused((char *)text.data, ST_SPEC,
                         "row_count_profiles: expected at most 64 profiles, found 65");
        } else {
            struct format_spec *s = spec_accepted((char *)text.data);
            CU_ASSERT(s != NULL && s->n_profiles == 64);
            format_spec_free(&s);
        }
        bytes_free(&text);
    }
}

static void test_aliases(void)
{
    spec_refused(WITH("'aliases': []"), ST_SPEC, "aliases: expected an object {name: name}");
    spec_refused(WITH("'aliases': {'a': 'e'}"), ST_SPEC,
                 "aliases.a: stands for e, but no weight of the spec has this name");
    spec_refused(WITH("'aliases': {'a': 3}"), ST_SPEC, "aliases.a: expected the name of a tensor");
    spec_refused(WITH("'aliases': {'a': {}}"), ST_SPEC, "aliases.a.alias: missing");
    spec_refused(WITH("'aliases': {'a': {'alias': 'b', 'x': 1}}"), ST_SPEC,
                 "aliases.a.x: unknown key, nearest known key is \"alias\"");
    spec_refused(WITH("'aliases': {'a': 'b', 'b': 'c'}"), ST_SPEC,
                 "aliases.a: b is itself an alias");
    spec_refused(WITH("'aliases': {'a': 'a'}"), ST_SPEC, "aliases.a: a is itself an alias");
    spec_refused(WITH("'aliases': {'': 'a'}"), ST_SPEC, "aliases.: expected the name");
}

static void test_blocks(void)
{
#define NAMED(name) "{'kind': 'lookup', " name "'embedding': {'weight': 'e'}, 'layers': []}"
    struct format_spec *s =
        spec_accepted(SPEC_HEAD "'blocks': [" NAMED("'name': 'a.b-c_9', ") ", " NAMED("") "]}");
    if (s != NULL) {
        CU_ASSERT_EQUAL(s->n_blocks, 2);
        CU_ASSERT_STRING_EQUAL(s->blocks[0].name, "a.b-c_9");
        CU_ASSERT_STRING_EQUAL(s->blocks[1].name, "block");
        CU_ASSERT_STRING_EQUAL(s->blocks[1].where, "blocks[1]");
    }
    format_spec_free(&s);
    spec_refused(SPEC_HEAD "'blocks': [" NAMED("") ", " NAMED("") "]}", ST_SPEC,
                 "blocks[1].name: block is also the name of blocks[0]");
    spec_refused(SPEC_HEAD "'block': " NAMED("'name': 'a/b', ") "}", ST_SPEC,
                 "block.name: expected a name of letters, digits");
    spec_refused(SPEC_HEAD "'block': " NAMED("'name': '..', ") "}", ST_SPEC,
                 "block.name: expected");
    spec_refused(SPEC_HEAD "'blocks': [" NAMED("") ", {'kind': 'fanout', 'name': 'x', 'embedding': "
                                                   "{'weight': 'e'}, 'branches': {'q': [{'op': "
                                                   "'rms_norm'}]}}]}",
                 ST_SPEC, "blocks[1].branches.q[0].eps: missing (required for rms_norm)");
#undef NAMED
}

/* Cut anywhere, or with one byte changed, a spec is read or refused with one line; never more. */
static void test_damage(void)
{
    static const char text[] =
        "{\"tokentab\": 1, \"checkpoint\": \"m\", \"mode\": \"eval\", \"input_contract\": "
        "\"token_indices_only\", \"aliases\": {\"a\": {\"alias\": \"b\"}}, \"row_count_profiles\": "
        "[{\"max_rows\": 3, \"evaluation_rows\": 2}], \"blocks\": [{\"kind\": \"fanout\", "
        "\"embedding\": {\"weight\": \"e\"}, \"prefix\": [{\"op\": \"rms_norm\", \"eps\": 1e-6}], "
        "\"branches\": {\"q\": [{\"op\": \"linear\", \"weight\": \"a\", \"split\": {\"mode\": "
        "\"blocks\", \"part\": 1, \"parts\": 3}}]}, \"residual\": {\"name\": \"r\", \"after\": "
        "1}}, {\"kind\": \"projected\", \"name\": \"p\", \"embedding\": {\"weight\": \"e\"}, "
        "\"linear\": {\"weight\": \"w\", \"bias\": \"b\"}, \"normalize_eps\": 1e-12}]}";
    enum { SIZE = sizeof text - 1 };
    static const char changes[] = {'0', '"', '}', ']', ',', 'x', '-', '\\'};
    struct format_spec *s = NULL;
    struct err err = {0};
    size_t bad = 0, n_read = 0;
    fixture_file("damaged.json", text, SIZE);
    CU_ASSERT_EQUAL(format_spec_read("damaged.json", &s, &err), ST_OK);
    format_spec_free(&s);
    for (size_t i = 0; i < SIZE; i += 1 + i % 3) {
        fixture_file("damaged.json", text, i);
        err_clear(&err);
        bad += format_spec_read("damaged.json", &s, &err) != ST_FORMAT || s != NULL;
        char copy[sizeof text];
        memcpy(copy, text, sizeof text);
        copy[i] = changes[i % sizeof changes];
        fixture_file("damaged.json", copy, SIZE);
        err_clear(&err);
        enum status st = format_spec_read("damaged.json", &s, &err);
        n_read += st == ST_OK;
        bad += (st == ST_OK) != (s != NULL) || err.st != st || strchr(err.message, '\n') != NULL ||
               (st != ST_OK && strncmp(err.message, "damaged.json: ", 14) != 0);
        format_spec_free(&s);
    }
    CU_ASSERT_EQUAL(bad, 0);
    CU_ASSERT(n_read > 0 && n_read < SIZE / 4);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"defaults", test_defaults}, {"settings", test_settings}, {"paths", test_paths},
        {"contract", test_contract}, {"keys", test_keys},         {"ranges", test_ranges},
        {"damage", test_damage},     {"profiles", test_profiles}, {"aliases", test_aliases},
        {"blocks", test_blocks},
    };
    return fixture_run("spec", cases, sizeof cases / sizeof cases[0]);
}
