/* SPDX-License-Identifier: Apache-2.0 */
/* The seeded generator: the same bytes everywhere, files and specs that the readers accept. */
#include "formats/formats.h"
#include "tests/formats/fixture.h"

#include <math.h>

static const char DIR_[] = "make_checkpoint.tmpdir";

static int make(const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "cd %s && %s %s 2>stderr.txt", DIR_, MAKE_CHECKPOINT,
             arguments);
    fflush(stdout);
    int state = system(command);
    return state == -1 ? -1 : state >> 8;
}

static struct format_checkpoint *opened(const char *name)
{
    char path[256];
    struct format_checkpoint *c = NULL;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/%s", DIR_, name);
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_open(path, NULL, &c, &err), ST_OK);
    return c;
}

static uint64_t count_elements(const struct format_checkpoint *c)
{
    uint64_t n = 0;
    for (size_t i = 0; i < format_checkpoint_count(c); i++)
        n += format_checkpoint_tensor(c, i, NULL)->n_elements;
    return n;
}

/* The preset's spec resolves against its checkpoint; source values, stored values of the bulk
 * route. */
static void check_spec(const char *name, uint64_t source_bytes, uint64_t n_tables, uint64_t width)
{
    char path[256];
    struct format_spec *s = NULL;
    struct format_checkpoint *c = NULL;
    struct graph_storage storage;
    struct err err = {0};
    snprintf(path, sizeof path, "%s/%s", DIR_, name);
    enum status st = format_spec_read(path, &s, &err);
    if (st == ST_OK)
        st = format_checkpoint_open(s->checkpoint_path, NULL, &c, &err);
    if (st == ST_OK)
        st = graph_block_resolve(&s->blocks[0], format_checkpoint_tensor_info, c, &err);
    if (st == ST_OK)
        st = graph_block_audit(&s->blocks[0], &err);
    if (st == ST_OK)
        st = graph_block_storage(&s->blocks[0], &storage, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL_FATAL(st, ST_OK);
    CU_ASSERT_EQUAL(storage.logical_bytes, source_bytes);
    CU_ASSERT_EQUAL(s->blocks[0].n_tables, n_tables);
    CU_ASSERT_EQUAL(s->blocks[0].tables[0].width, width);
    format_checkpoint_close(&c);
    format_spec_free(&s);
}

static void test_presets(void)
{
    CU_ASSERT_EQUAL(make("--preset novomolgen --out n.safetensors --spec n.json"), 0);
    struct format_checkpoint *c = opened("n.safetensors");
    CU_ASSERT_EQUAL(count_elements(c), 829952);
    format_checkpoint_close(&c);
    check_spec("n.json", 829952 * 4, 4, 512);
    CU_ASSERT_EQUAL(make("--preset gene --vocab 30 --width 40 --out-width 8 --dtype F64"
                         " --out g.safetensors --spec g.json"),
                    0);
    check_spec("g.json", (30 * 40 + 8 * 40 + 8) * 8, 1, 8);
    CU_ASSERT_EQUAL(make("--preset rwkv --vocab 30 --width 16 --out r.safetensors --spec r.json"),
                    0);
    check_spec("r.json", (30 * 16 + 32) * 4, 1, 16);
    CU_ASSERT_EQUAL(make("--preset four-token --out f.safetensors --spec f.json"), 0);
    check_spec("f.json", 14 * 4, 1, 2);
}

/* One digest for all machines. */
static void test_same_everywhere(void)
{
    char hex[SHA256_HEX_SIZE];
    struct err err = {0};
    CU_ASSERT_EQUAL(make("--preset novomolgen --vocab 5 --width 16 --out-width 8 --seed 7 "
                         "--tensor d:F64:3x4:0.1:2 --tensor h:F16:9 --tensor b:BF16:9 "
                         "--tensor i:I32:2=1,-2 --out s.safetensors"),
                    0);
    CU_ASSERT_EQUAL(file_digests("make_checkpoint.tmpdir/s.safetensors", hex, NULL, NULL, &err),
                    ST_OK);
    CU_ASSERT_STRING_EQUAL(hex, "effbc492e3d75367a3db8cea200202535bfeb0d542dea96a7a9e9731773b248d");
}

static void test_values(void)
{
    enum { N = 100000 };
    static float x[N];
    float again[10];
    struct err err = {0};
    const struct format_tensor *t = NULL;
    CU_ASSERT_EQUAL(make("--tensor a:F32:100000:2:1 --out v.safetensors"), 0);
    CU_ASSERT_EQUAL(make("--tensor z:F32:3 --tensor a:F32:10:2:1 --out w.safetensors"), 0);
    struct format_checkpoint *c = opened("v.safetensors");
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_find(c, "a", &t, &err), ST_OK);
    CU_ASSERT_EQUAL(format_checkpoint_read(c, t, 0, x, sizeof x, &err), ST_OK);
    format_checkpoint_close(&c);
    double sum = 0;
    double squares = 0;
    for (size_t i = 0; i < N; i++) {
        sum += x[i];
        squares += (double)x[i] * x[i];
    }
    double mean = sum / N;
    CU_ASSERT_DOUBLE_EQUAL(mean, 1, 0.05);
    CU_ASSERT_DOUBLE_EQUAL(squares / N - mean * mean, 4, 0.1);
    /* a tensor's values hang on its name and the seed, not on its place */
    c = opened("w.safetensors");
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_find(c, "a", &t, &err), ST_OK);
    CU_ASSERT_EQUAL(format_checkpoint_read(c, t, 0, again, sizeof again, &err), ST_OK);
    CU_ASSERT_EQUAL(memcmp(x, again, sizeof again), 0);
    format_checkpoint_close(&c);
    CU_ASSERT_EQUAL(make("--seed 1 --tensor a:F32:10:2:1 --out w.safetensors"), 0);
    c = opened("w.safetensors");
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_find(c, "a", &t, &err), ST_OK);
    CU_ASSERT_EQUAL(format_checkpoint_read(c, t, 0, again, sizeof again, &err), ST_OK);
    CU_ASSERT_NOT_EQUAL(memcmp(x, again, sizeof again), 0);
    format_checkpoint_close(&c);
}

static void test_shards(void)
{
    CU_ASSERT_EQUAL(make("--preset novomolgen --vocab 6 --width 8 --out-width 8 --shards 3"
                         " --out model.safetensors.index.json --spec m.json"),
                    0);
    struct format_checkpoint *c = opened("model.safetensors.index.json");
    CU_ASSERT_EQUAL(count_elements(c), 6 * 8 + 8 + 3 * 64);
    for (size_t i = 0; i < format_checkpoint_warnings(c); i++)
        CU_ASSERT_PTR_NULL(strstr(format_checkpoint_warning(c, i), "total_size"));
    format_checkpoint_close(&c);
    check_spec("m.json", (6 * 8 + 8 + 3 * 64) * 4, 4, 8);
}

static void test_misuse(void)
{
    static const char *const wrong[] = {"",
                                        "--out x --preset none",
                                        "--out x --tensor a:F31:2",
                                        "--out x --tensor a:F32:2=1",
                                        "--out x --tensor a:F32:2:x",
                                        "--out x --seed -1",
                                        "--out x --dtype I32",
                                        "--out x --spec y.json",
                                        "--out x --preset rwkv --shards 9",
                                        "--out x trailing"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        CU_ASSERT_EQUAL(make(wrong[i]), 2);
    CU_ASSERT_EQUAL(make("--help >/dev/null"), 0);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"presets", test_presets}, {"values", test_values},
        {"shards", test_shards},   {"one digest", test_same_everywhere},
        {"misuse", test_misuse},
    };
    if (system("rm -rf make_checkpoint.tmpdir") != 0)
        return 1;
    fixture_dir(DIR_);
    int code = fixture_run("make_checkpoint", cases, sizeof cases / sizeof cases[0]);
    if (system("rm -rf make_checkpoint.tmpdir") != 0)
        return 1;
    return code;
}
