/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/formats/recipe_fixture.h"

#include "formats/foreign.h"

#include <cjson/cJSON.h>
#include <zstd.h>

static struct err err;

/* Element bits are a function of where they stand. */
static enum status rows_of(void *ctx, size_t route, size_t table, uint64_t first, uint64_t n,
                           void *dst, struct err *e)
{
    const struct format_recipe *r = ctx;
    const struct format_placed *p =
        route == 0 ? &r->outputs[table] : &r->profiles[route - 1].outputs[table];
    size_t element = dtype_size(r->groups[p->group].dtype);
    (void)e;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t row = first + i;
        if (r->groups[p->group].rows == 1)
            row = 0;
        if (r->groups[p->group].indexed)
            row = row * 7 % FIXTURE_SHARED;
        for (uint64_t c = 0; c < p->width; c++) {
            uint64_t bits = 0x3000 + row * 64 + (p->column + c) + p->group * 17u;
            memcpy((uint8_t *)dst + (i * p->width + c) * element, &bits, element);
        }
    }
    return ST_OK;
}

static bool says(const char *part)
{
    return fixture_says(&err, part);
}

static struct cJSON *read_manifest(const char *dir)
{
    struct cJSON *json = NULL;
    char *path = path_join(dir, "manifest.json");
    CU_ASSERT_EQUAL_FATAL(format_json_read(path, 1 << 20, &json, &err), ST_OK);
    free(path);
    return json;
}

static void check_manifest(const struct format_recipe *r, const char *dir, bool packed)
{
    static const char *const KEYS[] = {"format_version",
                                       "weights_file",
                                       "weights_sha256",
                                       "weights_bytes",
                                       "packing",
                                       "finite_lookup_rewrites",
                                       "tensor_aliases",
                                       "module_aliases",
                                       "parameter_aliases",
                                       "parameter_storage_aliases",
                                       "rewrites",
                                       "attention_rewrites",
                                       "normalization_rewrites",
                                       "constant_embedding_rewrites",
                                       "packed_embedding_rewrites",
                                       "adapters",
                                       "affine_fx",
                                       "training",
                                       "module_training",
                                       "requires_grad",
                                       "source_tensor_dtypes",
                                       "report"};
    struct cJSON *m = read_manifest(dir);
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++)
        CU_ASSERT_PTR_NOT_NULL(cJSON_GetObjectItemCaseSensitive(m, KEYS[i]));
    CU_ASSERT_EQUAL(cJSON_GetArraySize(m), (int)(sizeof KEYS / sizeof *KEYS));
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(m, "finite_lookup_rewrites")->child;
    CU_ASSERT_STRING_EQUAL(cJSON_GetObjectItemCaseSensitive(entry, "path")->valuestring, "");
    CU_ASSERT_EQUAL(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(m, "packing")), !packed);
    CU_ASSERT((cJSON_GetObjectItemCaseSensitive(entry, "tables") != NULL) ==
              (r->kind == RECIPE_FANOUT));
    CU_ASSERT((cJSON_GetObjectItemCaseSensitive(entry, "constant") != NULL) ==
              (r->kind == RECIPE_LOOKUP));
    CU_ASSERT((cJSON_GetObjectItemCaseSensitive(entry, "normalize_eps") != NULL) ==
              (r->kind == RECIPE_PROJECTED));
    cJSON_Delete(m);
}

/* The imported payload against the rows themselves. */
static void check_imported(const struct format_recipe *r, const uint16_t *bias)
{
    uint8_t *text = NULL;
    size_t size = 0;
    struct format_recipe *back = NULL;
    struct format_safetensors *f = NULL;
    char hex[SHA256_HEX_SIZE];
    CU_ASSERT_EQUAL_FATAL(file_read_all("imported/recipe.json", 1 << 20, &text, &size, &err),
                          ST_OK);
    CU_ASSERT_EQUAL_FATAL(format_recipe_decode("recipe.json", text, size, &back, &err), ST_OK);
    free(text);
    CU_ASSERT_EQUAL(format_recipe_seal(back, hex, &err), ST_OK);
    CU_ASSERT_STRING_EQUAL(hex, back->seal);
    CU_ASSERT_EQUAL(back->kind, r->kind);
    CU_ASSERT_EQUAL(back->num_embeddings, r->num_embeddings);
    CU_ASSERT_EQUAL_FATAL(back->n_profiles, r->n_profiles);
    CU_ASSERT_EQUAL_FATAL(back->n_outputs, r->n_outputs);
    char *path = path_join("imported", back->payload_file);
    CU_ASSERT_EQUAL_FATAL(format_safetensors_open(path, 0, &f, &err), ST_OK);
    bool same = true;
    for (size_t route = 0; route <= back->n_profiles; route++)
        for (size_t i = 0; i < back->n_outputs; i++) {
            const struct format_placed *p =
                route == 0 ? &back->outputs[i] : &back->profiles[route - 1].outputs[i];
            const struct format_group *g = &back->groups[p->group];
            char name[64];
            uint8_t want[64], got[64];
            size_t row = (size_t)p->width * dtype_size(g->dtype);
            snprintf(name, sizeof name, "tables.group_%u", p->group);
            const struct format_tensor *t = format_safetensors_find(f, name);
            CU_ASSERT_PTR_NOT_NULL_FATAL(t);
            union {
                const struct format_recipe *in;
                void *out;
            } ctx = {.in = r};
            for (uint64_t k = 0; k < r->num_embeddings; k++) {
                uint64_t at = g->rows == 1 ? 0 : k;
                same = same && rows_of(ctx.out, route, i, k, 1, want, &err) == ST_OK &&
                       format_safetensors_read(f, t,
                                               (at * g->width + p->column) * dtype_size(g->dtype),
                                               got, row, &err) == ST_OK &&
                       memcmp(want, got, row) == 0;
            }
        }
    CU_ASSERT(same);
    if (bias != NULL) {
        uint16_t got[4];
        const struct format_tensor *t = format_safetensors_find(f, "bias");
        CU_ASSERT_PTR_NOT_NULL_FATAL(t);
        CU_ASSERT_EQUAL(format_safetensors_read(f, t, 0, got, sizeof got, &err), ST_OK);
        CU_ASSERT_EQUAL(memcmp(got, bias, sizeof got), 0);
    }
    format_safetensors_close(&f);
    format_recipe_free(&back);
    free(path);
}

static void check_round_trip(struct format_recipe *r, const char *path, const uint16_t *bias)
{
    for (int packed = 0; packed < 2; packed++) {
        const struct format_field source = {.name = fixture_dup("embed"),
                                            .value = fixture_dup("F32")};
        const struct format_foreign_opts opts = {.path = path,
                                                 .packed = packed,
                                                 .bias = bias,
                                                 .source_dtypes = &source,
                                                 .n_source_dtypes = 1};
        err_clear(&err);
        enum status st = format_foreign_export(r, rows_of, r, &opts, "exported", &err);
        if (st == ST_OK && path == NULL)
            check_manifest(r, "exported", packed);
        if (st == ST_OK)
            st = format_foreign_import("exported", path, 0, "imported", &err);
        if (st != ST_OK)
            printf("\n    %s\n", err.message);
        CU_ASSERT_EQUAL(st, ST_OK);
        if (st == ST_OK)
            check_imported(r, bias);
        CU_ASSERT_FALSE(file_exists("imported/import.tmp"));
        CU_ASSERT_FALSE(file_exists("exported/model.safetensors.tmp"));
        CU_ASSERT_FALSE(file_exists("exported/model.cmppack.tmp"));
        free(source.name);
        free(source.value);
    }
    format_recipe_free(&r);
}

static void test_round_trip(void)
{
    static const uint16_t BIAS[4] = {1, 2, 3, 4};
    check_round_trip(fixture_fanout(), NULL, NULL);
    check_round_trip(fixture_fanout(), "encoder.first", NULL);
    check_round_trip(fixture_lookup(21, 3, DT_F64), NULL, NULL);
    check_round_trip(fixture_lookup(1, 3, DT_F16), "a", NULL);
    check_round_trip(fixture_projected(9, 4, DT_BF16, true), NULL, BIAS);
    check_round_trip(fixture_projected(9, 4, DT_F32, false), NULL, NULL);
}

static void test_inexpressible(void)
{
    const struct format_foreign_opts opts = {0};
    struct format_recipe *r = fixture_lookup(4, 3, DT_F32);
    r->profiles = fixture_zeroed(1, sizeof *r->profiles);
    r->profiles[0].outputs = fixture_zeroed(1, sizeof *r->outputs);
    r->profiles[0].outputs[0] = fixture_placed("output", 0, 0, 3);
    r->n_profiles = 1;
    err_clear(&err);
    CU_ASSERT_EQUAL(format_foreign_export(r, rows_of, r, &opts, "refused", &err), ST_STRUCTURE);
    CU_ASSERT(says("row-count profiles has no compressme form"));
    format_recipe_free(&r);
    r = fixture_lookup(4, 3, DT_F32);
    r->has_ids = true;
    err_clear(&err);
    CU_ASSERT_EQUAL(format_foreign_export(r, rows_of, r, &opts, "refused", &err), ST_STRUCTURE);
    format_recipe_free(&r);
    r = fixture_projected(4, 3, DT_F32, true);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_foreign_export(r, rows_of, r, &opts, "refused", &err), ST_USAGE);
    format_recipe_free(&r);
    CU_ASSERT_FALSE(file_exists("refused"));
}

/* ---- cmppack ------------------------------------------------------------------------------- */

/* As the description of the format has it, apart from the code under test. */
static void check_layout(const uint8_t *raw, size_t size, unsigned group)
{
    uint8_t *file = NULL, *shuffled = fixture_zeroed(size, 1);
    size_t file_size = 0;
    CU_ASSERT_EQUAL_FATAL(file_read_all("p.cmppack", 1 << 26, &file, &file_size, &err), ST_OK);
    CU_ASSERT_EQUAL(memcmp(file, "CMPRPACK\1\1\1", 11), 0);
    CU_ASSERT_EQUAL(file[11], group);
    size_t block =
        (size_t)file[12] << 24 | (size_t)file[13] << 16 | (size_t)file[14] << 8 | (size_t)file[15];
    CU_ASSERT_EQUAL(block, 1 << 20);
    CU_ASSERT_EQUAL((size_t)file[21] << 16 | (size_t)file[22] << 8 | (size_t)file[23], size);
    CU_ASSERT_EQUAL(ZSTD_getFrameContentSize(file + 56, file_size - 56), size);
    CU_ASSERT_EQUAL(ZSTD_findFrameCompressedSize(file + 56, file_size - 56), file_size - 56);
    CU_ASSERT_EQUAL(ZSTD_decompress(shuffled, size, file + 56, file_size - 56), size);
    bool same = true;
    for (size_t at = 0; at < size; at++) {
        size_t first = at / block * block, n = size - first < block ? size - first : block;
        size_t in = at - first, groups = n / group;
        size_t place = in < groups * group ? in % group * groups + in / group : in;
        same = same && shuffled[first + place] == raw[at];
    }
    CU_ASSERT(same);
    free(file);
    free(shuffled);
}

static void test_cmppack(void)
{
    enum { SIZE = (2 << 20) + 4321 };
    static const size_t SIZES[] = {0, 1, 3, 8, 13, 65536, 65537, 1 << 20, (1 << 20) + 1, SIZE};
    static const unsigned GROUPS[] = {1, 2, 4, 8};
    uint8_t *raw = fixture_zeroed(SIZE, 1);
    for (size_t i = 0; i < SIZE; i++)
        raw[i] = (uint8_t)(i * 2654435761u >> 13);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        for (size_t g = 0; g < 4; g++) {
            uint8_t *back = NULL;
            size_t size = 0;
            fixture_file("p.raw", raw, SIZES[i]);
            err_clear(&err);
            CU_ASSERT_EQUAL_FATAL(format_cmppack_write("p.raw", "p.cmppack", GROUPS[g], &err),
                                  ST_OK);
            check_layout(raw, SIZES[i], GROUPS[g]);
            enum status st = format_cmppack_read("p.cmppack", "p.back", 0, &err);
            if (st != ST_OK)
                printf("\n    %s\n", err.message);
            CU_ASSERT_EQUAL_FATAL(st, ST_OK);
            CU_ASSERT_EQUAL_FATAL(file_read_all("p.back", 1 << 26, &back, &size, &err), ST_OK);
            CU_ASSERT_EQUAL(size, SIZES[i]);
            CU_ASSERT_EQUAL(memcmp(back, raw, size), 0);
            free(back);
        }
    CU_ASSERT_EQUAL(format_cmppack_write("p.raw", "p.cmppack", 3, NULL), ST_USAGE);
    free(raw);
}

static void test_cmppack_damaged(void)
{
    enum { SIZE = 3000 };
    uint8_t raw[SIZE], *file = NULL;
    size_t size = 0;
    for (size_t i = 0; i < SIZE; i++)
        raw[i] = (uint8_t)(i / 7);
    fixture_file("p.raw", raw, SIZE);
    CU_ASSERT_EQUAL_FATAL(format_cmppack_write("p.raw", "p.cmppack", 4, &err), ST_OK);
    CU_ASSERT_EQUAL_FATAL(file_read_all("p.cmppack", 1 << 20, &file, &size, &err), ST_OK);
    (void)remove("p.back");
    for (size_t n = 0; n < size; n++) {
        fixture_file("bad.cmppack", file, n);
        CU_ASSERT_EQUAL(format_cmppack_read("bad.cmppack", "p.back", 0, NULL), ST_FORMAT);
    }
    fixture_file("bad.cmppack", file, size + 1);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_cmppack_read("bad.cmppack", "p.back", 0, &err), ST_FORMAT);
    CU_ASSERT(says("bytes behind the frame"));
    size_t silent = 0;
    for (size_t at = 0; at < size; at++) {
        file[at] ^= 0x10;
        fixture_file("bad.cmppack", file, size);
        enum status st = format_cmppack_read("bad.cmppack", "p.back", 0, NULL);
        if (st == ST_OK) { /* a larger block size, bits that zstd does not read: the same bytes */
            uint8_t *back = NULL;
            size_t n = 0;
            CU_ASSERT_EQUAL_FATAL(file_read_all("p.back", 1 << 20, &back, &n, &err), ST_OK);
            CU_ASSERT(n == SIZE && memcmp(back, raw, SIZE) == 0);
            free(back);
            silent++;
            (void)remove("p.back");
        } else {
            CU_ASSERT_EQUAL(st, ST_FORMAT);
        }
        file[at] ^= 0x10;
    }
    CU_ASSERT(silent < size / 8);
    CU_ASSERT_FALSE(file_exists("p.back"));
    err_clear(&err);
    CU_ASSERT_EQUAL(format_cmppack_read("p.cmppack", "p.back", SIZE - 1, &err), ST_FORMAT);
    CU_ASSERT(says("the limit is"));
    free(file);
}

/* A frame that claims what its header does not. */
static void test_cmppack_hostile(void)
{
    uint64_t before = fixture_peak_bytes();
    uint8_t file[128] = "CMPRPACK\1\1\1\4";
    const uint8_t frame[] = {0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0};
    file[13] = 0x10; /* blocks of 1 MiB */
    file[19] = 1;    /* 4 GiB */
    memcpy(file + 56, frame, sizeof frame);
    fixture_file("bad.cmppack", file, sizeof file);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_cmppack_read("bad.cmppack", "p.back", 0, &err), ST_FORMAT);
    CU_ASSERT(says("the limit is 1073741824"));
    file[19] = 0;
    file[23] = 100;
    fixture_file("bad.cmppack", file, sizeof file);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_cmppack_read("bad.cmppack", "p.back", 0, &err), ST_FORMAT);
    CU_ASSERT(says("the frame claims 4294967296 bytes, the header 100"));
    file[12] = 2; /* blocks of 33 MiB */
    fixture_file("bad.cmppack", file, sizeof file);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_cmppack_read("bad.cmppack", "p.back", 0, &err), ST_FORMAT);
    CU_ASSERT(says("blocks of"));
    CU_ASSERT(fixture_peak_bytes() - before < (uint64_t)64 << 20);
}

/* ---- strictness of the import -------------------------------------------------------------- */

static void test_import_refusals(void)
{
    static const struct {
        const char *from, *to, *says;
        enum status st;
    } CASES[] = {
        {"\"format_version\": 1", "\"format_version\": 2", "format_version", ST_FORMAT},
        {"\"weights_file\": \"model", "\"weights_file\": \"../model", "weights_file", ST_FORMAT},
        {"\"weights_sha256\": \"", "\"weights_sha256\": \"0", "corrupt", ST_FORMAT},
        {"\"weights_bytes\": ", "\"weights_bytes\": 1", "corrupt", ST_FORMAT},
        {"\"packing\": null", "\"packing\": \"zip\"", "packing", ST_FORMAT},
        {"\"adapters\": []", "\"adapters\": [1]", "adapters is not empty", ST_STRUCTURE},
        {"\"path\": \"\"", "\"path\": \"b\"", "\"b._rows\" is missing", ST_FORMAT},
        {"\"embedding_dim\": 3", "\"embedding_dim\": 4", "another shape", ST_FORMAT},
        {"\"num_embeddings\": 6", "\"num_embeddings\": 0", "num_embeddings", ST_FORMAT},
        {"\"num_embeddings\": 6", "\"num_embeddings\": 7", "another shape", ST_FORMAT},
        {"\"constant\": false", "\"constant\": true", "another shape", ST_FORMAT},
        {"\"dtype\": \"float32\"", "\"dtype\": \"int32\"", "dtype", ST_FORMAT},
        {"\"dtype\": \"float32\"", "\"dtype\": \"float16\"", "another shape or dtype", ST_FORMAT},
    };
    struct format_recipe *r = fixture_lookup(6, 3, DT_F32);
    const struct format_foreign_opts opts = {0};
    uint8_t *text = NULL;
    size_t size = 0;
    err_clear(&err);
    CU_ASSERT_EQUAL_FATAL(format_foreign_export(r, rows_of, r, &opts, "strict.in", &err), ST_OK);
    CU_ASSERT_EQUAL_FATAL(file_read_all("strict.in/manifest.json", 1 << 20, &text, &size, &err),
                          ST_OK);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char *at = strstr((char *)text, CASES[i].from);
        CU_ASSERT_PTR_NOT_NULL_FATAL(at);
        char *bad = str_printf("%.*s%s%s", (int)(at - (char *)text), (char *)text, CASES[i].to,
                               at + strlen(CASES[i].from));
        fixture_text("strict.in/manifest.json", bad);
        free(bad);
        err_clear(&err);
        CU_ASSERT_EQUAL(format_foreign_import("strict.in", NULL, 0, "strict.out", &err),
                        CASES[i].st);
        CU_ASSERT(says(CASES[i].says));
        CU_ASSERT_FALSE(file_exists("strict.out/recipe.json"));
    }
    fixture_file("strict.in/manifest.json", text, size);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_foreign_import("strict.in", "other", 0, "strict.out", &err), ST_FORMAT);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_foreign_import("strict.in", "", 0, "strict.out", &err), ST_OK);
    CU_ASSERT(file_exists("strict.out/recipe.json"));
    (void)remove("strict.out/recipe.json");
    free(text);
    format_recipe_free(&r);
}

int main(void)
{
    static const struct fixture_case CASES[] = {
        {"hostile cmppack", test_cmppack_hostile},        {"export and import", test_round_trip},
        {"what cannot be expressed", test_inexpressible}, {"cmppack", test_cmppack},
        {"damaged cmppack", test_cmppack_damaged},        {"strict import", test_import_refusals},
    };
    return fixture_run("foreign", CASES, sizeof CASES / sizeof *CASES);
}
