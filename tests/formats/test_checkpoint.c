/* SPDX-License-Identifier: Apache-2.0 */
/* Files, indexes and folders: one fixture for each of N12-N18. */
#include "formats/formats.h"
#include "tests/formats/fixture.h"

static const char DIR_[] = "checkpoint.tmpdir";
static const char INDEX[] = "checkpoint.tmpdir/model.safetensors.index.json";

static const char ONE[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                          "\"extra\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}";
static const char TWO[] = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                          "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}";
static const float FIRST[1] = {1.0F};
static const float SECOND[2] = {2.0F, 3.0F};

static const char *in_dir(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", DIR_, name);
    return path;
}

static void put(const char *name, const char *header, const void *data, size_t size)
{
    fixture_safetensors(in_dir(name), header, data, size);
}

static void fresh_dir(void)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf %s", DIR_);
    if (system(command) != 0)
        exit(1);
    fixture_dir(DIR_);
}

/* Two shards and an index: a in one, b in two, and what the shards hold besides. */
static void standard_dir(void)
{
    fresh_dir();
    put("one.safetensors", ONE, FIRST, sizeof FIRST);
    put("two.safetensors", TWO, SECOND, sizeof SECOND);
    fixture_text(INDEX, "{\"metadata\":{\"total_size\":12},\"weight_map\":"
                        "{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\","
                        "\"lost\":\"two.safetensors\"}}");
}

static struct format_checkpoint *opened(const char *path, bool allow)
{
    struct format_checkpoint *c = NULL;
    struct err err = {0};
    const struct format_checkpoint_opts opts = {.allow_missing_unused = allow};
    enum status st = format_checkpoint_open(path, &opts, &c, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL_FATAL(st, ST_OK);
    return c;
}

static void refused(const char *path, const char *part, const char *also)
{
    struct format_checkpoint *c = NULL;
    struct err err = {0};
    enum status st = format_checkpoint_open(path, NULL, &c, &err);
    CU_ASSERT_EQUAL(st, ST_FORMAT);
    CU_ASSERT_PTR_NULL(c);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, also));
    format_checkpoint_close(&c);
}

static void not_found(const struct format_checkpoint *c, const char *name, const char *part,
                      const char *also)
{
    const struct format_tensor *t = NULL;
    struct err err = {0};
    enum status st = format_checkpoint_find(c, name, &t, &err);
    CU_ASSERT_EQUAL(st, ST_STRUCTURE);
    CU_ASSERT_EQUAL(status_exit_code(st), 3);
    CU_ASSERT_PTR_NULL(t);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, also));
}

static float value_of(const struct format_checkpoint *c, const char *name)
{
    const struct format_tensor *t = NULL;
    struct err err = {0};
    float x = -1;
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_find(c, name, &t, &err), ST_OK);
    CU_ASSERT_EQUAL(format_checkpoint_read(c, t, 0, &x, 4, &err), ST_OK);
    return x;
}

static bool warns(const struct format_checkpoint *c, const char *part, const char *also)
{
    for (size_t i = 0; i < format_checkpoint_warnings(c); i++)
        if (strstr(format_checkpoint_warning(c, i), part) != NULL &&
            strstr(format_checkpoint_warning(c, i), also) != NULL)
            return true;
    for (size_t i = 0; i < format_checkpoint_warnings(c); i++)
        printf("\n    warning: %s", format_checkpoint_warning(c, i));
    return false;
}

static void test_index(void)
{
    standard_dir();
    const char *const paths[] = {DIR_, INDEX};
    for (size_t p = 0; p < 2; p++) {
        struct format_checkpoint *c = opened(paths[p], false);
        const char *file = NULL;
        CU_ASSERT_EQUAL(value_of(c, "a"), 1.0F);
        CU_ASSERT_EQUAL(value_of(c, "b"), 2.0F);
        CU_ASSERT_EQUAL(format_checkpoint_count(c), 2);
        CU_ASSERT_STRING_EQUAL(format_checkpoint_tensor(c, 0, &file)->name, "a");
        CU_ASSERT_STRING_EQUAL(file, "checkpoint.tmpdir/one.safetensors");
        CU_ASSERT_STRING_EQUAL(format_checkpoint_tensor(c, 1, &file)->name, "b");
        CU_ASSERT_STRING_EQUAL(file, "checkpoint.tmpdir/two.safetensors");
        struct graph_tensor_info info;
        struct err err = {0};
        CU_ASSERT_EQUAL(format_checkpoint_tensor_info(c, "b", &info, &err), ST_OK);
        CU_ASSERT_EQUAL(info.dtype, DT_F32);
        CU_ASSERT_EQUAL(info.rank, 1);
        CU_ASSERT_EQUAL(info.shape[0], 1);
        CU_ASSERT_STRING_EQUAL(info.dtype_text, "F32");
        format_checkpoint_close(&c);
        CU_ASSERT_PTR_NULL(c);
    }
}

static void test_three_messages(void)
{
    standard_dir();
    struct format_checkpoint *c = opened(DIR_, false);
    not_found(c, "nowhere", "tensor \"nowhere\" not in index", "nearest names");
    not_found(c, "lost", "two.safetensors is present but its header lacks tensor \"lost\"", INDEX);
    format_checkpoint_close(&c);
    unlink(in_dir("two.safetensors"));
    c = opened(DIR_, true);
    not_found(c, "b", "maps tensor \"b\" to two.safetensors", "two.safetensors is absent");
    CU_ASSERT_EQUAL(value_of(c, "a"), 1.0F);
    CU_ASSERT(warns(c, "two.safetensors is absent", INDEX));
    CU_ASSERT_EQUAL(format_checkpoint_count(c), 1);
    format_checkpoint_close(&c);
}

static void test_absent(void)
{
    fresh_dir();
    put("s1.safetensors", ONE, FIRST, sizeof FIRST);
    fixture_text(INDEX, "{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\","
                        "\"c\":\"s3.safetensors\",\"d\":\"s3.safetensors\"}}");
    refused(DIR_, "2 of the 3 files", "absent: s2.safetensors, s3.safetensors");
    put("s3.safetensors", "{}", NULL, 0);
    refused(DIR_, "1 of the 3 files it names is absent: s2.safetensors", INDEX);
    /* a long list is cut, not lost */
    struct bytes text = {0};
    bytes_printf(&text, "{\"weight_map\":{");
    for (int i = 0; i < 200; i++)
        bytes_printf(&text, "%s\"t%d\":\"model-%05d-of-00200.safetensors\"", i == 0 ? "" : ",", i,
                     i);
    bytes_printf(&text, "}}");
    fixture_file(INDEX, text.data, text.size);
    bytes_free(&text);
    refused(DIR_, "200 of the 200 files", "model-00000-of-00200.safetensors, ");
    refused(DIR_, " more", "model-00001");
}

static void test_strays(void)
{
    standard_dir();
    put("model.safetensors", TWO, SECOND, sizeof SECOND);
    put("consolidated.safetensors", TWO, SECOND, sizeof SECOND);
    struct format_checkpoint *c = opened(DIR_, false);
    CU_ASSERT_EQUAL(value_of(c, "a"), 1.0F);
    CU_ASSERT(warns(c, "2 stray .safetensors files", "as model.safetensors"));
    CU_ASSERT(warns(c, "two.safetensors: 1 tensors lie here that the index maps to another file",
                    "\"a\" to one.safetensors"));
    CU_ASSERT(warns(c, "one.safetensors: 1 tensors are not in the index", "\"extra\""));
    CU_ASSERT_EQUAL(format_checkpoint_warnings(c), 3); /* total_size is right */
    format_checkpoint_close(&c);
    fixture_text(INDEX, "{\"metadata\":{\"total_size\":13},\"weight_map\":"
                        "{\"b\":\"two.safetensors\",\"a\":\"one.safetensors\"}}");
    c = opened(DIR_, false);
    CU_ASSERT(warns(c, "total_size is 13", "12 bytes"));
    format_checkpoint_close(&c);
}

static void index_refused(const char *text, const char *part, const char *also)
{
    fixture_text(INDEX, text);
    refused(DIR_, part, also);
}

static void test_paths(void)
{
    standard_dir();
    index_refused("{\"weight_map\":{\"a\":\"../x\"}}", "inside the folder", "\"../x\"");
    index_refused("{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "inside the folder", "/etc/passwd");
    index_refused("{\"weight_map\":{\"a\":\"x/../../y\"}}", "inside the folder", "weight_map");
    index_refused("{\"weight_map\":{\"a\":\"\"}}", "inside the folder", "weight_map");
    index_refused("{\"weight_map\":{\"a\":\"..\"}}", "inside the folder", "weight_map");
    index_refused("{\"weight_map\":{\"a\":\"x\\u0000y\"}}", "NUL", INDEX);
    index_refused("{\"weight_map\":{\"a\":5}}", "expected a file name, found 5", "\"a\"");
    index_refused("{\"weight_map\":[]}", "expected an object, found an array", "weight_map");
    index_refused("{}", "expected an object, found nothing", "weight_map");
    index_refused("[]", "expected an object, found an array", INDEX);
    index_refused("{\"weight_map\":{\"a\":\"one.safetensors\",\"a\":\"two.safetensors\"}}",
                  "duplicate key \"a\"", INDEX);
    /* the layout of a Hugging Face cache */
    fixture_dir("blobs.tmpdir");
    fixture_safetensors("blobs.tmpdir/abc", ONE, FIRST, sizeof FIRST);
    unlink(in_dir("one.safetensors"));
    CU_ASSERT_EQUAL(symlink("../blobs.tmpdir/abc", in_dir("one.safetensors")), 0);
    fixture_text(INDEX, "{\"weight_map\":{\"a\":\"one.safetensors\"}}");
    struct format_checkpoint *c = opened(DIR_, false);
    CU_ASSERT_EQUAL(value_of(c, "a"), 1.0F);
    format_checkpoint_close(&c);
    /* a folder in the name may not be a way out */
    CU_ASSERT_EQUAL(symlink("../blobs.tmpdir", in_dir("sub")), 0);
    index_refused("{\"weight_map\":{\"a\":\"sub/abc\"}}", "leads out of the folder", "sub/abc");
    unlink(in_dir("sub"));
    fixture_dir(in_dir("sub"));
    put("sub/abc", ONE, FIRST, sizeof FIRST);
    fixture_text(INDEX, "{\"weight_map\":{\"a\":\"sub/abc\"}}");
    c = opened(DIR_, false);
    CU_ASSERT_EQUAL(value_of(c, "a"), 1.0F);
    format_checkpoint_close(&c);
    unlink("blobs.tmpdir/abc");
    rmdir("blobs.tmpdir");
}

static void test_folders(void)
{
    fresh_dir();
    refused(DIR_, "found 0 indexes and 0 .safetensors files", DIR_);
    put("weights.safetensors", ONE, FIRST, sizeof FIRST);
    struct format_checkpoint *c = opened(DIR_, false);
    CU_ASSERT_EQUAL(value_of(c, "a"), 1.0F);
    format_checkpoint_close(&c);
    put("other.safetensors", TWO, SECOND, sizeof SECOND);
    refused(DIR_, "2 .safetensors files", DIR_);
    put("model.safetensors", TWO, SECOND, sizeof SECOND);
    c = opened(DIR_, false);
    CU_ASSERT_EQUAL(value_of(c, "a"), 3.0F);
    CU_ASSERT_EQUAL(format_checkpoint_warnings(c), 0);
    format_checkpoint_close(&c);
    c = opened(in_dir("weights.safetensors"), false);
    not_found(c, "c", "tensor \"c\" not in file", "weights.safetensors");
    format_checkpoint_close(&c);
    refused("checkpoint.tmpdir/absent.safetensors", "absent.safetensors", "");
    put("broken.safetensors", "{", NULL, 0);
    refused(in_dir("broken.safetensors"), "broken.safetensors", "header");
}

static void test_hints(void)
{
    fresh_dir();
    put("model.safetensors",
        "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
        "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
        "\"embed_tokenz.weight\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]},"
        "\"zzz\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}",
        FIRST, sizeof FIRST);
    struct format_checkpoint *c = opened(DIR_, false);
    /* a missing prefix is nearer than a single letter */
    not_found(c, "embed_tokens.weight",
              "nearest names: \"model.embed_tokens.weight\", \"embed_tokenz.weight\", ",
              "\"model.norm.weight\"");
    not_found(c, "language_model.model.norm.weight", "nearest names: \"model.norm.weight\"", "");
    not_found(c, "model.norm.weihgt", "nearest names: \"model.norm.weight\"", "");
    struct err err = {0};
    const struct format_tensor *t = NULL;
    CU_ASSERT_EQUAL(format_checkpoint_find(c, "lm_head.weight", &t, &err), ST_STRUCTURE);
    CU_ASSERT_PTR_NULL(strstr(err.message, "tie_word_embeddings"));
    uint64_t vocab = 0;
    CU_ASSERT(!format_checkpoint_vocab_size(c, &vocab));
    fixture_text(in_dir("config.json"), "{\"tie_word_embeddings\": true, \"vocab_size\": 84}");
    not_found(c, "lm_head.weight", "tie_word_embeddings",
              "\"aliases\": {\"lm_head.weight\": \"model.embed_tokens.weight\"}");
    CU_ASSERT(format_checkpoint_vocab_size(c, &vocab));
    CU_ASSERT_EQUAL(vocab, 84);
    fixture_text(in_dir("config.json"), "{\"text_config\":{\"tie_word_embeddings\": true}}");
    not_found(c, "lm_head.weight", "tie_word_embeddings", "model.embed_tokens.weight");
    fixture_text(in_dir("config.json"), "{broken");
    not_found(c, "lm_head.weight", "not in file", "nearest names");
    format_checkpoint_close(&c);
}

static void test_short_read(void)
{
    standard_dir();
    struct format_checkpoint *c = opened(DIR_, false);
    const struct format_tensor *t = NULL;
    struct err err = {0};
    float x;
    CU_ASSERT_EQUAL(truncate(in_dir("two.safetensors"), 20), 0);
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_find(c, "b", &t, &err), ST_OK);
    enum status st = format_checkpoint_read(c, t, 0, &x, 4, &err);
    CU_ASSERT_EQUAL(status_exit_code(st), 4);
    CU_ASSERT(fixture_says(&err, "two.safetensors"));
    struct format_tensor stranger = *t;
    CU_ASSERT_EQUAL(format_checkpoint_read(c, &stranger, 0, &x, 4, &err), ST_INTERNAL);
    format_checkpoint_close(&c);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"index and folder", test_index},
        {"N12 short read", test_short_read},
        {"N13 absent files", test_absent},
        {"N14 three messages", test_three_messages},
        {"N15 strays and total_size", test_strays},
        {"N16 paths", test_paths},
        {"folders", test_folders},
        {"N17 hints", test_hints},
    };
    int code = fixture_run("checkpoint", cases, sizeof cases / sizeof cases[0]);
    fresh_dir();
    rmdir(DIR_);
    return code;
}
