/* SPDX-License-Identifier: Apache-2.0 */
/* Files of every format version, made once and kept (golden/make.sh): they open, hold what they
 * held, and damaged copies are refused or told apart. */
#include "formats/formats.h"
#include "formats/packed.h"
#include "lookup/tokentab.h"
#include "tests/formats/fixture.h"

#include <hdf5.h>
#include <sys/wait.h>

enum { ALL = 1 << 24, V2_TOKENS = 20 };

static struct err err;
static char *golden; /* a copy of the folder, in the working directory */

struct blob {
    uint8_t *data;
    size_t size;
};

/* Where a file of the copy lies. */
static char *golden_path(const char *name)
{
    char *path = path_join(golden, name);
    if (path == NULL)
        exit(1);
    return path;
}

static struct blob read_blob(const char *path)
{
    struct blob b = {0};
    err = (struct err){0};
    if (file_read_all(path, ALL, &b.data, &b.size, &err) != ST_OK) {
        printf("\n    %s\n", err.message);
        exit(1);
    }
    return b;
}

static struct blob golden_blob(const char *name)
{
    char *path = golden_path(name);
    struct blob b = read_blob(path);
    free(path);
    return b;
}

/* Write a damaged copy: cut to `at` bytes, or with bit `at` turned. */
static void damaged(const char *path, const struct blob *b, bool cut, size_t at)
{
    (void)unlink(path); /* some file systems flush a file that is cut and written again */
    if (cut) {
        fixture_file(path, b->data, at);
        return;
    }
    b->data[at / 8] = (uint8_t)(b->data[at / 8] ^ (1u << (at % 8)));
    fixture_file(path, b->data, b->size);
    b->data[at / 8] = (uint8_t)(b->data[at / 8] ^ (1u << (at % 8)));
}

/* ---- recipes ------------------------------------------------------------------------------- */

#define V1_RECIPE "v1/recipe/recipe.json"
#define V2_RECIPE "v2/recipe/recipe.json"
#define V1_PAYLOAD "v1/recipe/tables-acab19c54c7a7885.safetensors"
#define V2_PAYLOAD "v2/recipe/tables-a9d6883060363aa3.safetensors"

static struct tokentab_recipe *open_recipe(const char *name, unsigned flags)
{
    struct tokentab_open_opts opts = {.flags = flags};
    struct tokentab_recipe *r = NULL;
    struct tokentab_error fault = {0};
    char *path = golden_path(name);
    enum tokentab_status st = tokentab_open(path, &opts, &r, &fault);
    if (st != TOKENTAB_OK)
        printf("\n    %s\n", fault.message);
    CU_ASSERT_EQUAL(st, TOKENTAB_OK);
    free(path);
    return r;
}

static void check_rows(struct tokentab_recipe *r, const int64_t *ids, size_t n, const char *output,
                       const float *expected, size_t width)
{
    float found[V2_TOKENS * 4];
    int at = tokentab_output_find(r, output);
    CU_ASSERT_TRUE_FATAL(at >= 0 && n * width <= sizeof found / sizeof *found);
    struct tokentab_output_info info = {0};
    CU_ASSERT_EQUAL(tokentab_output(r, (size_t)at, &info), TOKENTAB_OK);
    CU_ASSERT_EQUAL(info.width, width);
    CU_ASSERT_EQUAL(info.dtype, TOKENTAB_F32);
    CU_ASSERT_EQUAL(tokentab_gather_rows(r, ids, n, (size_t)at, found, sizeof found, NULL),
                    TOKENTAB_OK);
    CU_ASSERT_EQUAL(memcmp(found, expected, n * width * sizeof *found), 0);
}

/* z = W e, r = |e|, raw z + b, normalised z / r + b; ids 1, 3, 4 of a vocabulary of 5. */
static void test_recipe_v1(void)
{
    static const int64_t ids[] = {4, 1, 3};
    static const float raw[] = {-29.5F, 39, 12, 15.5F, 19, 37, 0.5F, 9, 12};
    static const float normalized[] = {-2.5F, 3, 3, 3.5F, 3, 9, 0.5F, 4, 7};
    struct tokentab_recipe *r =
        open_recipe("v1/recipe", TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_STRING_EQUAL(tokentab_kind(r), "projected");
    CU_ASSERT_EQUAL(tokentab_is_historical(r), 0);
    CU_ASSERT_EQUAL(tokentab_num_embeddings(r), 5);
    CU_ASSERT_EQUAL(tokentab_n_routes(r), 1);
    check_rows(r, ids, 3, "raw", raw, 3);
    check_rows(r, ids, 3, "normalized", normalized, 3);
    float row[3];
    int64_t absent = 2;
    CU_ASSERT_EQUAL(tokentab_gather_rows(r, &absent, 1, 0, row, sizeof row, NULL),
                    TOKENTAB_EBOUNDS);
    tokentab_close(&r);
}

/* The block of v2 by hand: every product and sum is exact. */
static void v2_expected(size_t token, float q[2], float k[3], float residual[4])
{
    static const float up[8][4] = {{1, 0, 0, 0}, {0, 1, 0, 0},  {0, 0, 1, 0},    {0, 0, 0, 1},
                                   {1, 1, 0, 0}, {-1, 0, 0, 4}, {0, 0, 2, 0.5F}, {0.25F, -1, 0, 0}};
    static const float bias[8] = {0, 1, 0, -1, 0.5F, 0, 0, 2};
    static const float down[2][8] = {{1, 1, 1, 1, 1, 1, 1, 1}, {2, 0, -1, 0, 0.5F, 0, 3, -0.25F}};
    const float x[4] = {(float)token, 1, 0 - (float)token / 2, (float)(token % 3)};
    q[0] = q[1] = 0;
    for (size_t i = 0; i < 8; i++) {
        float y = bias[i];
        for (size_t j = 0; j < 4; j++)
            y += up[i][j] * x[j];
        y = y > 0 ? y : 0;
        q[0] += down[0][i] * y;
        q[1] += down[1][i] * y;
    }
    k[0] = 1.5F;
    k[1] = -2;
    k[2] = 0.25F;
    memcpy(residual, x, sizeof x);
}

static void test_recipe_v2(void)
{
    static const size_t calls[] = {1, 3, 4, 5, V2_TOKENS}; /* profile0, profile1, profile1, bulk */
    int64_t ids[V2_TOKENS];
    float q[V2_TOKENS * 2], k[V2_TOKENS * 3], residual[V2_TOKENS * 4];
    struct tokentab_recipe *r =
        open_recipe("v2/recipe", TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL);
    CU_ASSERT_PTR_NOT_NULL_FATAL(r);
    CU_ASSERT_STRING_EQUAL(tokentab_kind(r), "fanout");
    CU_ASSERT_EQUAL(tokentab_is_historical(r), 0);
    CU_ASSERT_EQUAL(tokentab_n_routes(r), 3);
    CU_ASSERT_EQUAL(tokentab_route(r, 4), 2);
    CU_ASSERT_EQUAL(tokentab_route(r, 5), 0);
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++) {
        for (size_t i = 0; i < calls[c]; i++) {
            ids[i] = (int64_t)((7 * i + c) % V2_TOKENS);
            v2_expected((size_t)ids[i], q + 2 * i, k + 3 * i, residual + 4 * i);
        }
        check_rows(r, ids, calls[c], "q", q, 2);
        check_rows(r, ids, calls[c], "k", k, 3);
        check_rows(r, ids, calls[c], "residual", residual, 4);
    }
    tokentab_close(&r);
}

/* Seal of the golden file and of what today's encoder writes of it: both as they were. */
static void check_recipe_text(const char *name, unsigned version)
{
    struct blob b = golden_blob(name);
    struct format_recipe *r = NULL;
    struct bytes again = {0};
    char seal[SHA256_HEX_SIZE] = "";
    CU_ASSERT_EQUAL_FATAL(format_recipe_decode(name, b.data, b.size, &r, &err), ST_OK);
    CU_ASSERT_EQUAL(r->version, version);
    CU_ASSERT_EQUAL(format_recipe_seal(r, seal, &err), ST_OK);
    CU_ASSERT_STRING_EQUAL(seal, r->seal);
    CU_ASSERT_EQUAL(format_recipe_encode(r, &again, &err), ST_OK);
    CU_ASSERT_EQUAL(again.size, b.size);
    CU_ASSERT_TRUE(again.size == b.size && memcmp(again.data, b.data, b.size) == 0);
    bytes_free(&again);
    format_recipe_free(&r);
    free(b.data);
}

static void test_recipe_text(void)
{
    check_recipe_text(V1_RECIPE, 1);
    check_recipe_text(V2_RECIPE, 2);
}

enum outcome { OUTCOME_REFUSED, OUTCOME_HISTORICAL, OUTCOME_SAME, OUTCOME_BAD, OUTCOMES };

/* What a reader makes of a text: refused, historical, or the very content of `whole`. */
static enum outcome recipe_outcome(const struct blob *text, const struct blob *whole)
{
    struct format_recipe *r = NULL;
    char seal[SHA256_HEX_SIZE];
    err = (struct err){0};
    enum status st = format_recipe_decode("recipe", text->data, text->size, &r, &err);
    if (st != ST_OK)
        return st == ST_FORMAT && r == NULL && err.message[0] != '\0' ? OUTCOME_REFUSED
                                                                      : OUTCOME_BAD;
    enum outcome o = OUTCOME_HISTORICAL;
    if (format_recipe_seal(r, seal, &err) != ST_OK) {
        o = OUTCOME_BAD;
    } else if (strcmp(seal, r->seal) == 0) {
        struct bytes again = {0};
        bool same = format_recipe_encode(r, &again, &err) == ST_OK && again.size == whole->size &&
                    memcmp(again.data, whole->data, again.size) == 0;
        o = same ? OUTCOME_SAME : OUTCOME_BAD;
        bytes_free(&again);
    }
    format_recipe_free(&r);
    return o;
}

static void check_recipe_damage(const char *name)
{
    struct blob b = golden_blob(name);
    size_t n[OUTCOMES] = {0};
    for (size_t size = 0; size + 2 < b.size; size++) { /* without its "}\n" at least */
        struct blob part = {.data = b.data, .size = size};
        n[recipe_outcome(&part, &b)]++;
    }
    CU_ASSERT_EQUAL(n[OUTCOME_REFUSED], b.size - 2);
    struct blob copy = {.data = malloc(b.size), .size = b.size};
    CU_ASSERT_PTR_NOT_NULL_FATAL(copy.data);
    memset(n, 0, sizeof n);
    for (size_t bit = 0; bit < 8 * b.size; bit++) {
        memcpy(copy.data, b.data, b.size);
        copy.data[bit / 8] = (uint8_t)(copy.data[bit / 8] ^ (1u << (bit % 8)));
        n[recipe_outcome(&copy, &b)]++;
    }
    printf("\n    %s: of %zu turned bits %zu refused, %zu historical, %zu another spelling ", name,
           8 * b.size, n[OUTCOME_REFUSED], n[OUTCOME_HISTORICAL], n[OUTCOME_SAME]);
    CU_ASSERT_EQUAL(n[OUTCOME_BAD], 0);
    CU_ASSERT_TRUE(n[OUTCOME_REFUSED] > 0 && n[OUTCOME_HISTORICAL] > 0);
    CU_ASSERT_TRUE(n[OUTCOME_SAME] < 8); /* the case of an exponent's letter, nothing else */
    free(copy.data);
    free(b.data);
}

static void test_recipe_damage(void)
{
    check_recipe_damage(V1_RECIPE);
    check_recipe_damage(V2_RECIPE);
}

/* How a folder opens; a failure has to have a message. */
static enum tokentab_status open_status(const char *folder, unsigned flags, int *historical)
{
    struct tokentab_open_opts opts = {.flags = flags};
    struct tokentab_recipe *r = NULL;
    struct tokentab_error fault = {0};
    char *path = golden_path(folder);
    enum tokentab_status st = tokentab_open(path, &opts, &r, &fault);
    CU_ASSERT_EQUAL(st == TOKENTAB_OK, r != NULL);
    CU_ASSERT_TRUE(st == TOKENTAB_OK || fault.message[0] != '\0');
    if (historical != NULL)
        *historical = r != NULL && tokentab_is_historical(r);
    tokentab_close(&r);
    free(path);
    return st;
}

/* A recipe.json with a turned bit, through the library. */
static void check_opened_damage(const char *folder, const char *name)
{
    struct blob b = golden_blob(name);
    char *path = golden_path(name);
    size_t n_historical = 0;
    for (size_t bit = 3; bit < 8 * b.size; bit += 83) {
        int historical = 0;
        damaged(path, &b, false, bit);
        enum tokentab_status st = open_status(folder, 0, &historical);
        /* EIO: the name of the payload is another name */
        CU_ASSERT_TRUE(st == TOKENTAB_EFORMAT || st == TOKENTAB_EIO ||
                       (st == TOKENTAB_OK && historical));
        n_historical += st == TOKENTAB_OK;
        if (st == TOKENTAB_OK)
            CU_ASSERT_EQUAL(open_status(folder, TOKENTAB_OPEN_REQUIRE_SEAL, NULL),
                            TOKENTAB_EFORMAT);
    }
    CU_ASSERT_TRUE(n_historical > 0);
    fixture_file(path, b.data, b.size);
    free(path);
    free(b.data);
}

static void check_payload_damage(const char *folder, const char *name)
{
    struct blob b = golden_blob(name);
    char *path = golden_path(name);
    for (size_t size = 0; size < b.size; size++) {
        damaged(path, &b, true, size);
        CU_ASSERT_EQUAL(open_status(folder, 0, NULL), TOKENTAB_EFORMAT);
    }
    for (size_t bit = 0; bit < 8 * b.size; bit += 3) {
        damaged(path, &b, false, bit);
        CU_ASSERT_EQUAL(open_status(folder, TOKENTAB_OPEN_VERIFY, NULL), TOKENTAB_EFORMAT);
        enum tokentab_status st = open_status(folder, 0, NULL);
        CU_ASSERT_TRUE(st == TOKENTAB_EFORMAT || st == TOKENTAB_OK); /* numbers are not read */
    }
    fixture_file(path, b.data, b.size);
    CU_ASSERT_EQUAL(open_status(folder, TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL, NULL),
                    TOKENTAB_OK);
    free(path);
    free(b.data);
}

static void test_opened_damage(void)
{
    check_opened_damage("v1/recipe", V1_RECIPE);
    check_opened_damage("v2/recipe", V2_RECIPE);
    check_payload_damage("v1/recipe", V1_PAYLOAD);
    check_payload_damage("v2/recipe", V2_PAYLOAD);
}

static void test_report(void)
{
    struct cJSON *json = NULL;
    char *path = golden_path("v2/recipe/report.json");
    CU_ASSERT_EQUAL(format_json_read(path, ALL, &json, &err), ST_OK);
    CU_ASSERT_PTR_NOT_NULL(json);
    format_json_free(&json);
    free(path);
}

/* ---- unit files ---------------------------------------------------------------------------- */

#define V2_STORED "v2/stored/first_layer/"
#define V2_UNIT0 V2_STORED "units/unit-00000000.h5"
#define V2_UNIT1 V2_STORED "units/unit-00000001.h5"
#define V1_STORED "v1/stored/items/"
#define V1_UNIT V1_STORED "units/unit-00000000.h5"

static size_t lines_of(const char *text)
{
    size_t n = text[0] != '\0';
    for (; *text != '\0'; text++)
        n += *text == '\n';
    return n;
}

/* The journal's line is about this very file. */
static void check_journal(const char *stored, size_t unit, const char *name,
                          const struct format_shard_info *info)
{
    struct digest d;
    uint64_t size = 0;
    char line[512], hex[DIGEST_HEX_SIZE];
    char *path = golden_path(name);
    CU_ASSERT_EQUAL(file_digests(path, NULL, &d, &size, &err), ST_OK);
    snprintf(line, sizeof line,
             "{\"unit\":%zu,\"file\":\"units/unit-%08zu.h5\",\"size\":%llu,\"digest\":\"%s\","
             "\"fingerprint\":\"%s\"}\n",
             unit, unit, (unsigned long long)size, digest_hex(&d, hex), info->fingerprint);
    free(path);
    char *journal = str_printf("%sjournal-golden-1.jsonl", stored);
    struct blob b = golden_blob(journal);
    CU_ASSERT_PTR_NOT_NULL(strstr((const char *)b.data, line)); /* file_read_all ends with NUL */
    free(b.data);
    free(journal);
}

static struct format_shard_info *check_unit(const char *stored, const char *name, size_t unit,
                                            uint64_t first, uint64_t rows, size_t tables)
{
    struct format_shard_info *info = NULL;
    char *path = golden_path(name);
    CU_ASSERT_EQUAL_FATAL(format_shard_info_read(path, &info, &err), ST_OK);
    CU_ASSERT_TRUE(info->complete);
    CU_ASSERT_EQUAL(info->unit, unit);
    CU_ASSERT_EQUAL(info->first_row, first);
    CU_ASSERT_EQUAL(info->n_rows, rows);
    CU_ASSERT_EQUAL(info->n_tables, tables);
    CU_ASSERT_EQUAL(lines_of(info->table_names), tables);
    CU_ASSERT_EQUAL(info->n_fields, 51);
    CU_ASSERT_EQUAL(lines_of(info->statistics_columns), info->n_fields);
    CU_ASSERT_STRING_EQUAL(info->fingerprint_fields[0].name, "embedding_rows");
    CU_ASSERT_EQUAL(strncmp(info->statistics_columns, "cases\nelements\nunequal\n", 23), 0);
    /* Every record of a class counts elements and none that differs: the numbers are exact. */
    size_t records = info->n_records - tables - 1, counted = 0;
    for (size_t i = 0; i < records; i++) {
        const double *record = info->statistics + i * info->n_fields;
        counted += record[1] > 0;
        CU_ASSERT_EQUAL(record[2], 0); /* unequal */
        CU_ASSERT_EQUAL(record[5], 0); /* max_abs */
    }
    CU_ASSERT_TRUE(counted > 0);
    check_journal(stored, unit, name, info);
    free(path);
    return info;
}

/* The first n rows of a table. */
static enum status read_table(const char *path, const char *route, const char *output, uint64_t n,
                              float *dst)
{
    struct format_shard_reader *r = NULL;
    err = (struct err){0};
    TRY(format_shard_reader_open(path, &r, &err));
    enum status st = format_shard_reader_rows(r, route, output, 0, n, dst, &err);
    format_shard_reader_close(&r);
    return st;
}

static void check_v2_tables(const char *name, size_t first, size_t n)
{
    static const char *const routes[] = {"bulk", "profile0", "profile1"};
    char *path = golden_path(name);
    float found_q[16 * 2], found_k[16 * 3], found_r[16 * 4], q[2], k[3], residual[4];
    for (size_t r = 0; r < 3; r++) {
        CU_ASSERT_EQUAL(read_table(path, routes[r], "q", n, found_q), ST_OK);
        CU_ASSERT_EQUAL(read_table(path, routes[r], "k", n, found_k), ST_OK);
        CU_ASSERT_EQUAL(read_table(path, routes[r], "residual", n, found_r), ST_OK);
        for (size_t i = 0; i < n; i++) {
            v2_expected(first + i, q, k, residual);
            CU_ASSERT_EQUAL(memcmp(found_q + 2 * i, q, sizeof q), 0);
            CU_ASSERT_EQUAL(memcmp(found_k + 3 * i, k, sizeof k), 0);
            CU_ASSERT_EQUAL(memcmp(found_r + 4 * i, residual, sizeof residual), 0);
        }
    }
    free(path);
}

static void test_units(void)
{
    struct format_shard_info *info = check_unit(V1_STORED, V1_UNIT, 0, 0, 3, 2);
    CU_ASSERT_STRING_EQUAL(info->table_names, "bulk/z\nbulk/r");
    CU_ASSERT_EQUAL(info->statistics[(info->n_records - 1) * info->n_fields],
                    3); /* distinct rows */
    format_shard_info_free(&info);
    info = check_unit(V2_STORED, V2_UNIT0, 0, 0, 16, 9);
    struct digest d;
    float q[16 * 2];
    double margin[16];
    char *path = golden_path(V2_UNIT0);
    CU_ASSERT_EQUAL(read_table(path, "bulk", "q", 16, q), ST_OK);
    d = digest_of(q, sizeof q);
    CU_ASSERT_TRUE(digest_equal(&d, &info->table_digests[0]));
    /* record of table 1, k in bulk: constant */
    CU_ASSERT_EQUAL(info->statistics[(info->n_records - 10 + 1) * info->n_fields], 1);
    format_shard_info_free(&info);
    struct format_shard_reader *r = NULL;
    CU_ASSERT_EQUAL_FATAL(format_shard_reader_open(path, &r, &err), ST_OK);
    CU_ASSERT_EQUAL(format_shard_reader_column(r, "decision/q/margin", margin, &err), ST_OK);
    CU_ASSERT_EQUAL(margin[0], 4); /* 4.5 against 0.5 */
    format_shard_reader_close(&r);
    free(path);
    info = check_unit(V2_STORED, V2_UNIT1, 1, 16, 4, 9);
    format_shard_info_free(&info);
    check_v2_tables(V2_UNIT0, 0, 16);
    check_v2_tables(V2_UNIT1, 16, 4);
}

/* What store and reader make of a damaged unit file: refused, or a table whose digest does not fit,
 * or the very table. */
static enum outcome unit_outcome(const char *path, const float *whole, size_t n_floats)
{
    struct format_shard_info *info = NULL;
    float found[16 * 2];
    err = (struct err){0};
    enum status st = format_shard_info_read(path, &info, &err);
    if (st != ST_OK)
        return (st == ST_FORMAT || st == ST_IO || st == ST_NOMEM) && err.message[0] != '\0'
                   ? OUTCOME_REFUSED
                   : OUTCOME_BAD;
    st = read_table(path, "bulk", info->n_tables == 2 ? "z" : "q", info->n_tables == 2 ? 3 : 16,
                    found);
    enum outcome o = OUTCOME_REFUSED;
    if (st == ST_OK) {
        struct digest d = digest_of(found, n_floats * sizeof *found);
        if (digest_equal(&d, &info->table_digests[0]))
            o = memcmp(found, whole, n_floats * sizeof *found) == 0 ? OUTCOME_SAME : OUTCOME_BAD;
    } else if (st != ST_FORMAT && st != ST_STRUCTURE && st != ST_IO && st != ST_NOMEM) {
        o = OUTCOME_BAD;
    }
    format_shard_info_free(&info);
    return o;
}

static void check_unit_damage(const char *name, const float *whole, size_t n_floats, size_t step)
{
    struct blob b = golden_blob(name);
    size_t n[OUTCOMES] = {0};
    for (size_t size = 0; size < b.size; size += step / 8 + 1) {
        damaged("damaged.h5", &b, true, size);
        enum outcome o = unit_outcome("damaged.h5", whole, n_floats);
        CU_ASSERT_EQUAL(o, OUTCOME_REFUSED);
    }
    for (size_t bit = 0; bit < 8 * b.size; bit += step) {
        damaged("damaged.h5", &b, false, bit);
        enum outcome o = unit_outcome("damaged.h5", whole, n_floats);
        if (o == OUTCOME_BAD)
            printf("\n    %s: bit %zu: %s\n", name, bit, err.message);
        n[o]++;
    }
    CU_ASSERT_EQUAL(n[OUTCOME_BAD], 0);
    CU_ASSERT_TRUE(n[OUTCOME_REFUSED] > 0 && n[OUTCOME_SAME] > 0);
    unlink("damaged.h5");
    free(b.data);
}

static void unit_damage_all(void)
{
    float z[3 * 3], q[16 * 2];
    char *path = golden_path(V1_UNIT);
    CU_ASSERT_EQUAL_FATAL(read_table(path, "bulk", "z", 3, z), ST_OK);
    free(path);
    path = golden_path(V2_UNIT0);
    CU_ASSERT_EQUAL_FATAL(read_table(path, "bulk", "q", 16, q), ST_OK);
    free(path);
    check_unit_damage(V1_UNIT, z, 9, 83);
    check_unit_damage(V2_UNIT0, q, 32, 991);
}

/* In a child: HDF5 leaks on the way out of broken files, and a crash would show as well. */
static void in_child(void (*run)(void))
{
    int state = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        unsigned before = CU_get_number_of_failures();
        run();
        bool failed = CU_get_number_of_failures() != before;
        fflush(stdout);
        _exit(failed ? 1 : 0);
    }
    CU_ASSERT_FATAL(child > 0);
    CU_ASSERT_EQUAL(waitpid(child, &state, 0), child);
    CU_ASSERT(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

static void test_unit_damage(void)
{
    in_child(unit_damage_all);
}

/* ---- tables.h5 ----------------------------------------------------------------------------- */

static bool read_virtual(const char *path, float *q)
{
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    hid_t set = file < 0 ? -1 : H5Dopen2(file, "/tables/profile1/q", H5P_DEFAULT);
    bool good = set >= 0 && H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, q) >= 0;
    if (set >= 0)
        H5Dclose(set);
    if (file >= 0)
        H5Fclose(file);
    return good;
}

static void tables_damage_all(void)
{
    float q[V2_TOKENS * 2];
    struct blob b = golden_blob(V2_STORED "tables.h5");
    for (size_t size = 0; size < b.size; size += 101) {
        damaged("damaged.h5", &b, true, size);
        CU_ASSERT_FALSE(read_virtual("damaged.h5", q));
    }
    unlink("damaged.h5");
    free(b.data);
}

/* Plain HDF5 sees whole tables over both units; a unit's reader does not take it for a unit. */
static void test_tables_file(void)
{
    char *path = golden_path(V2_STORED "tables.h5");
    struct format_shard_info *info = NULL;
    float q[V2_TOKENS * 2], want[2], k[3], residual[4];
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    CU_ASSERT_TRUE_FATAL(read_virtual(path, q));
    for (size_t i = 0; i < V2_TOKENS; i++) {
        v2_expected(i, want, k, residual);
        CU_ASSERT_EQUAL(memcmp(q + 2 * i, want, sizeof want), 0);
    }
    CU_ASSERT_EQUAL(format_shard_info_read(path, &info, &err), ST_FORMAT);
    CU_ASSERT_PTR_NULL(info);
    free(path);
    in_child(tables_damage_all);
}

/* ---- packed, spec -------------------------------------------------------------------------- */

static void test_packed(void)
{
    struct blob b = golden_blob("v2/tables.ttz"), whole = golden_blob(V2_PAYLOAD);
    size_t n_refused = 0;
    for (size_t i = 0; i < b.size + 8 * b.size; i += i < b.size ? 1 : 5) {
        damaged("damaged.ttz", &b, i < b.size, i < b.size ? i : i - b.size);
        err = (struct err){0};
        enum status st = format_unpack_file("damaged.ttz", "unpacked", 1 << 20, &err);
        n_refused += st == ST_FORMAT;
        CU_ASSERT_TRUE(st == ST_FORMAT || (st == ST_OK && i >= b.size));
        if (st == ST_OK) { /* a bit that says nothing about the content */
            struct blob found = read_blob("unpacked");
            CU_ASSERT_TRUE(found.size == whole.size &&
                           memcmp(found.data, whole.data, whole.size) == 0);
            free(found.data);
        }
    }
    CU_ASSERT_TRUE(n_refused > b.size + b.size);
    fixture_file("damaged.ttz", b.data, b.size);
    CU_ASSERT_EQUAL(format_unpack_file("damaged.ttz", "unpacked", 0, &err), ST_OK);
    struct blob found = read_blob("unpacked");
    CU_ASSERT_TRUE(found.size == whole.size && memcmp(found.data, whole.data, whole.size) == 0);
    free(found.data);
    unlink("damaged.ttz");
    unlink("unpacked");
    free(whole.data);
    free(b.data);
}

static void test_spec(void)
{
    char *path = golden_path("v2/spec.json");
    struct blob b = read_blob(path);
    struct format_spec *spec = NULL;
    CU_ASSERT_EQUAL_FATAL(format_spec_read(path, &spec, &err), ST_OK);
    CU_ASSERT_EQUAL(spec->n_blocks, 1);
    CU_ASSERT_EQUAL(spec->n_profiles, 2);
    CU_ASSERT_EQUAL(spec->bulk_rows, 1);
    CU_ASSERT_EQUAL(spec->validation_rows, 7);
    CU_ASSERT_STRING_EQUAL(spec->blocks[0].name, "first_layer");
    format_spec_free(&spec);
    for (size_t i = 0; i + 2 < b.size + b.size; i++) {
        bool cut = i + 2 < b.size;
        damaged("damaged.json", &b, cut, cut ? i : (i - (b.size - 2)) * 8 + i % 8);
        err = (struct err){0};
        enum status st = format_spec_read("damaged.json", &spec, &err);
        CU_ASSERT_TRUE(st == ST_FORMAT || st == ST_SPEC || st == ST_STRUCTURE ||
                       (st == ST_OK && !cut));
        CU_ASSERT_EQUAL(st == ST_OK, spec != NULL);
        format_spec_free(&spec);
    }
    unlink("damaged.json");
    free(b.data);
    free(path);
}

/* ---- a copy of the folder ------------------------------------------------------------------ */

static const char *const files[] = {"v1/spec.json",
                                    "v2/spec.json",
                                    V1_RECIPE,
                                    V2_RECIPE,
                                    V1_PAYLOAD,
                                    V2_PAYLOAD,
                                    "v2/recipe/report.json",
                                    "v2/tables.ttz",
                                    V1_STORED "journal-golden-1.jsonl",
                                    V2_STORED "journal-golden-1.jsonl",
                                    V1_UNIT,
                                    V2_UNIT0,
                                    V2_UNIT1,
                                    V2_STORED "tables.h5"};

/* The source folder may be read-only, and stays as it is. */
static bool copy_golden(void)
{
    const char *root = getenv("TOKENTAB_SOURCE_DIR");
    char *from = path_join(root != NULL ? root : ".", "tests/formats/golden");
    golden = str_dup("golden-copy");
    for (size_t i = 0; from != NULL && i < sizeof files / sizeof *files; i++) {
        char *source = path_join(from, files[i]), *to = golden_path(files[i]), *dir = path_dir(to);
        struct blob b = {0};
        if (source == NULL || dir == NULL || file_make_dirs(dir, &err) != ST_OK ||
            file_read_all(source, ALL, &b.data, &b.size, &err) != ST_OK) {
            printf("%s\n", err.message);
            return false;
        }
        fixture_file(to, b.data, b.size);
        free(b.data);
        free(dir);
        free(to);
        free(source);
    }
    free(from);
    return golden != NULL;
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"recipe, version 1", test_recipe_v1},
        {"recipe, version 2", test_recipe_v2},
        {"recipe.json keeps bytes and seal", test_recipe_text},
        {"damaged recipe.json", test_recipe_damage},
        {"damaged recipe folders", test_opened_damage},
        {"report.json", test_report},
        {"unit files", test_units},
        {"damaged unit files", test_unit_damage},
        {"tables.h5", test_tables_file},
        {"packed file, also damaged", test_packed},
        {"spec, also damaged", test_spec}};
    if (!copy_golden())
        return 1;
    int code = fixture_run("golden", cases, sizeof cases / sizeof cases[0]);
    free(golden);
    return code;
}
