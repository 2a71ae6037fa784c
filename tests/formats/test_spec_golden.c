/* SPDX-License-Identifier: Apache-2.0 */
/* Every golden spec, read and resolved against its checkpoint: widths and bytes as the reference
 * reports them; every spec of refusals/ refused at the place it should be. */
#include "tests/formats/spec_fixture.h"
#include "tests/formats/golden_translate.h"

#include <dirent.h>
#include <float.h>

static char golden[512];

/* A file of the golden folder, NUL behind it; NULL if it is not there. */
static char *slurp(const char *folder, const char *name)
{
    char path[1024];
    uint8_t *data = NULL;
    size_t size;
    snprintf(path, sizeof path, "%s/%s/%s", golden, folder, name);
    if (!file_exists(path) || file_read_all(path, 1 << 24, &data, &size, NULL) != ST_OK)
        return NULL;
    return (char *)data;
}

static enum status find(void *ctx, const char *name, struct graph_tensor_info *out, struct err *err)
{
    const struct format_tensor *t = format_safetensors_find(ctx, name);
    if (t == NULL)
        return err_set(err, ST_STRUCTURE, "no tensor %s", name);
    *out = (struct graph_tensor_info){t->dtype, t->dtype_text, t->rank, {0}};
    for (unsigned i = 0; i < t->rank && i < GRAPH_MAX_DIMS; i++)
        out->shape[i] = t->shape[i];
    return ST_OK;
}

/* Read a golden spec in today's spelling and resolve it: where it ended, and how. */
enum stage { STAGE_READ, STAGE_OPEN, STAGE_RESOLVE, STAGE_DONE };

static enum stage run(const char *folder, const char *name, struct format_spec **spec,
                      struct err *err)
{
    char *text = slurp(folder, name), path[1024];
    struct format_safetensors *file = NULL;
    enum stage stage = STAGE_READ;
    *err = (struct err){0};
    *spec = NULL;
    char *translated = text == NULL ? NULL : golden_translate(text, FLT_EPSILON);
    free(text);
    if (translated == NULL) {
        CU_FAIL("golden spec not readable");
        return stage;
    }
    fixture_text("golden.json", translated);
    cJSON_free(translated);
    if (format_spec_read("golden.json", spec, err) != ST_OK)
        return stage;
    stage = STAGE_OPEN;
    snprintf(path, sizeof path, "%s/%s/%s", golden, folder, (*spec)->checkpoint_path);
    if (format_safetensors_open(path, 0, &file, err) != ST_OK)
        return stage;
    stage = format_spec_resolve(*spec, find, file, err) == ST_OK ? STAGE_DONE : STAGE_RESOLVE;
    format_safetensors_close(&file);
    return stage;
}

static double number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return item == NULL ? -1 : item->valuedouble;
}

/* A list of {name, width} of the reference's report against ours. */
static void compare_outputs(const cJSON *expected, const struct graph_output *outputs, size_t n)
{
    CU_ASSERT_EQUAL((size_t)cJSON_GetArraySize(expected), n);
    const cJSON *item = expected == NULL ? NULL : expected->child;
    for (size_t i = 0; i < n && item != NULL; i++, item = item->next) {
        CU_ASSERT_STRING_EQUAL(outputs[i].name,
                               cJSON_GetObjectItemCaseSensitive(item, "name")->valuestring);
        CU_ASSERT_EQUAL((double)outputs[i].width, number(item, "width"));
    }
}

static void compare(const char *folder, const char *spec_name, const char *report_name)
{
    struct format_spec *spec;
    struct err err;
    enum stage stage = run(folder, spec_name, &spec, &err);
    if (stage != STAGE_DONE)
        printf("\n    %s/%s: %s\n", folder, spec_name, err.message);
    CU_ASSERT_EQUAL(stage, STAGE_DONE);
    char *text = slurp(folder, report_name);
    cJSON *report = text == NULL ? NULL : cJSON_Parse(text);
    CU_ASSERT_PTR_NOT_NULL(report);
    const cJSON *storage = cJSON_GetObjectItemCaseSensitive(report, "storage");
    if (stage == STAGE_DONE && storage != NULL) {
        const struct graph_block *b = &spec->blocks[0];
        struct graph_storage s;
        CU_ASSERT_EQUAL(graph_block_storage(b, &s, &err), ST_OK);
        CU_ASSERT_EQUAL((double)s.logical_bytes, number(storage, "before"));
        CU_ASSERT_EQUAL((double)s.unique_bytes, number(storage, "before"));
        CU_ASSERT_EQUAL((double)b->rows_in_checkpoint, number(report, "tokens"));
        CU_ASSERT_EQUAL((double)spec->bulk_rows, number(report, "bulk_rows"));
        CU_ASSERT_EQUAL((double)spec->validation_rows, number(report, "validation_rows"));
        CU_ASSERT_EQUAL((double)b->graph.nodes[1].width, number(report, "embedding_width"));
        compare_outputs(cJSON_GetObjectItemCaseSensitive(report, "stored"), b->tables, b->n_tables);
        compare_outputs(cJSON_GetObjectItemCaseSensitive(report, "outputs"), b->results,
                        b->n_results);
    }
    cJSON_Delete(report);
    free(text);
    format_spec_free(&spec);
}

static void test_cases(void)
{
    static const char *const blocks[][3] = {{"llama_tiny", "block.json", "block_report.json"},
                                            {"moe_router", "block.json", "block_report.json"},
                                            {"two_tower", "item.json", "item_report.json"},
                                            {"two_tower", "user.json", "user_report.json"}};
    size_t n = 0;
    DIR *dir = opendir(golden);
    if (dir == NULL) {
        CU_FAIL("golden folder");
        return;
    }
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char *spec = slurp(entry->d_name, "spec.json");
        if (spec == NULL)
            continue;
        free(spec);
        compare(entry->d_name, "spec.json", "report.json");
        n++;
    }
    closedir(dir);
    CU_ASSERT(n >= 28);
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        compare(blocks[i][0], blocks[i][1], blocks[i][2]);
}

static void test_shared_tensor(void)
{
    struct format_spec *spec;
    struct err err;
    struct graph_storage s = {0};
    CU_ASSERT_EQUAL(run("shared_tensor", "spec.json", &spec, &err), STAGE_DONE);
    if (spec != NULL)
        CU_ASSERT_EQUAL(graph_block_storage(&spec->blocks[0], &s, &err), ST_OK);
    CU_ASSERT(s.logical_bytes == 2944 && s.unique_bytes == 2944);
    format_spec_free(&spec);
}

static const struct {
    const char *name;
    enum stage stage;
    enum status st;
    const char *part;
} refusals[] = {
    {"unknown_kind", STAGE_READ, ST_SPEC, "golden.json: block.kind: expected \"lookup\""},
    {"unknown_op", STAGE_READ, ST_SPEC, "golden.json: block.layers[0].op: softmax"},
    {"unknown_key", STAGE_READ, ST_SPEC, "golden.json: block.layers[0].inplace: unknown key"},
    {"scale_without_value", STAGE_READ, ST_SPEC, "golden.json: block.layers[0].value: missing"},
    {"gelu_approximate", STAGE_READ, ST_SPEC, "write gelu_erf or gelu_tanh"},
    {"no_embedding", STAGE_READ, ST_SPEC, "golden.json: block.embedding: missing"},
    {"profiles_not_increasing", STAGE_READ, ST_SPEC, "row_count_profiles[1].max_rows: expected"},
    {"profile_zero", STAGE_READ, ST_SPEC, "row_count_profiles[0].max_rows: expected"},
    {"evaluation_above_max", STAGE_READ, ST_SPEC,
     "row_count_profiles[0].evaluation_rows: expected"},
    {"bulk_rows_zero", STAGE_READ, ST_SPEC, "golden.json: bulk_rows: expected"},
    {"missing_tensor", STAGE_RESOLVE, ST_STRUCTURE,
     "golden.json: block.layers[0].weight: no tensor absent.weight"},
    {"width_mismatch", STAGE_RESOLVE, ST_SPEC,
     "golden.json: block.layers[1].weight: tensor w.weight has shape [4, 12], expected [out, 4]"},
    {"bias_mismatch", STAGE_RESOLVE, ST_SPEC,
     "golden.json: block.layers[0].bias: tensor norm.weight has shape [12], expected [4]"},
    {"norm_mismatch", STAGE_RESOLVE, ST_SPEC,
     "golden.json: block.layers[1].weight: tensor norm.weight has shape [12], expected [4]"},
    {"vector_embedding", STAGE_RESOLVE, ST_SPEC,
     "golden.json: block.embedding.weight: tensor norm.weight has shape [12], expected "
     "[vocabulary, "
     "width]"},
    {"integer_embedding", STAGE_RESOLVE, ST_STRUCTURE,
     "golden.json: block.embedding.weight: tensor integers is I64, expected F64, F32, F16 or BF16 "
     "(integer weights are quantised"},
    {"truncated_file", STAGE_OPEN, ST_FORMAT, "truncated.safetensors"},
    {"overlapping_tensors", STAGE_OPEN, ST_FORMAT, "overlap.safetensors"},
    {"absent_file", STAGE_OPEN, ST_FORMAT, "absent.safetensors"},
    /* mixed dtypes are computed; values are looked at when they are read */
    {"mixed_dtypes", STAGE_DONE, ST_OK, ""},
    {"infinite_bias", STAGE_DONE, ST_OK, ""},
    {"unused_nan_is_fine", STAGE_DONE, ST_OK, ""},
};

static void test_refusals(void)
{
    char *text = slurp("refusals", "expected.json");
    cJSON *expected = text == NULL ? NULL : cJSON_Parse(text);
    size_t n = sizeof refusals / sizeof refusals[0];
    CU_ASSERT_EQUAL((size_t)cJSON_GetArraySize(expected), n);
    for (size_t i = 0; i < n; i++) {
        char name[64];
        struct format_spec *spec;
        struct err err;
        CU_ASSERT_PTR_NOT_NULL(cJSON_GetObjectItemCaseSensitive(expected, refusals[i].name));
        snprintf(name, sizeof name, "%s.json", refusals[i].name);
        enum stage stage = run("refusals", name, &spec, &err);
        if (stage != refusals[i].stage || err.st != refusals[i].st)
            printf("\n    %s: stage %d: %s\n", name, (int)stage, err.message);
        CU_ASSERT_EQUAL(stage, refusals[i].stage);
        CU_ASSERT_EQUAL(err.st, refusals[i].st);
        CU_ASSERT(fixture_says(&err, refusals[i].part));
        if (strcmp(refusals[i].name, "mixed_dtypes") == 0 && stage == STAGE_DONE)
            CU_ASSERT_EQUAL(spec->blocks[0].tables[0].dtype, DT_F64);
        format_spec_free(&spec);
    }
    cJSON_Delete(expected);
    free(text);
}

/* N20: the embedding has 20 rows. */
static void test_vocab(void)
{
    struct format_safetensors *file = NULL;
    struct format_spec *spec = NULL;
    struct err err = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/refusals/model.safetensors", golden);
    CU_ASSERT_EQUAL(format_safetensors_open(path, 0, &file, &err), ST_OK);
    for (int vocab = 20; vocab <= 21; vocab++) {
        char text[512];
        snprintf(text, sizeof text,
                 SPEC_HEAD "'vocab': %d, 'block': {'kind': 'lookup', 'embedding': {'weight': "
                           "'tokens.weight'}, 'layers': []}}",
                 vocab);
        spec = spec_accepted(text);
        if (spec == NULL || file == NULL)
            break;
        enum status st = format_spec_resolve(spec, find, file, &err);
        CU_ASSERT_EQUAL(st, vocab == 20 ? ST_OK : ST_SPEC);
        if (vocab == 21)
            CU_ASSERT(
                fixture_says(&err, "spec.json: vocab: 21, but the embedding of block has 20"));
        format_spec_free(&spec);
    }
    format_safetensors_close(&file);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"cases", test_cases},
        {"shared tensor", test_shared_tensor},
        {"refusals", test_refusals},
        {"vocab", test_vocab},
    };
    const char *source = getenv("TOKENTAB_SOURCE_DIR");
    snprintf(golden, sizeof golden, "%s/../shared/golden", source == NULL ? "." : source);
    if (!file_is_dir(golden)) {
        printf("skipped: no %s\n", golden);
        return 77;
    }
    return fixture_run("spec golden", cases, sizeof cases / sizeof cases[0]);
}
