/* SPDX-License-Identifier: Apache-2.0 */
/* The strict reader: one fixture for each of N1-N10. */
#include "formats/recipe.h"
#include "tests/formats/fixture.h"

#include <cjson/cJSON.h>

#include <fcntl.h>

static const char PATH[] = "safetensors.tmpfile";

/* Open PATH and expect a refusal whose message holds both parts. */
static void refused(uint64_t cap, enum status expected, const char *part, const char *also)
{
    struct format_safetensors *f = NULL;
    struct err err = {0};
    enum status st = format_safetensors_open(PATH, cap, &f, &err);
    CU_ASSERT_EQUAL(st, expected);
    CU_ASSERT_EQUAL(status_exit_code(st), 3);
    CU_ASSERT_PTR_NULL(f);
    CU_ASSERT(fixture_says(&err, part));
    CU_ASSERT(fixture_says(&err, also));
    CU_ASSERT(fixture_says(&err, PATH));
    format_safetensors_close(&f);
}

static void header_refused(const char *header, size_t data_size, const char *part, const char *also)
{
    static const uint8_t zeros[64];
    fixture_safetensors(PATH, header, zeros, data_size);
    refused(0, ST_FORMAT, part, also);
}

static struct format_safetensors *opened(void)
{
    struct format_safetensors *f = NULL;
    struct err err = {0};
    CU_ASSERT_EQUAL_FATAL(format_safetensors_open(PATH, 0, &f, &err), ST_OK);
    return f;
}

static float read_f32(const struct format_safetensors *f, const char *name, uint64_t index)
{
    float x = -1;
    struct err err = {0};
    const struct format_tensor *t = format_safetensors_find(f, name);
    CU_ASSERT_PTR_NOT_NULL_FATAL(t);
    CU_ASSERT_EQUAL(format_safetensors_read(f, t, index * 4, &x, 4, &err), ST_OK);
    return x;
}

static void test_length_prefix(void)
{
    uint64_t before = fixture_peak_bytes();
    fixture_file(PATH, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8);
    refused(0, ST_FORMAT, "9223372036854775807", "100000000");
    CU_ASSERT(fixture_peak_bytes() - before < (uint64_t)64 << 20);
    fixture_file(PATH, "", 0);
    refused(0, ST_FORMAT, "0 bytes", "8-byte header length");
    fixture_file(PATH, "\1\0\0\0\0\0\0", 7);
    refused(0, ST_FORMAT, "7 bytes", "8-byte header length");
    fixture_text(PATH, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n");
    refused(0, ST_FORMAT, "Git LFS pointer", "git lfs pull");
    fixture_file(PATH, "\0\0\0\0\0\0\0\0", 8);
    refused(0, ST_FORMAT, "header length 0", "JSON object");
    fixture_text(PATH, "GGUF and more");
    refused(0, ST_FORMAT, "GGUF", "not safetensors");
    /* a header of cap + 1 bytes, and the cap raised by one */
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    fixture_safetensors(PATH, header, "x", 1);
    refused(strlen(header) - 1, ST_FORMAT, "above the cap", "raise the cap");
    struct format_safetensors *f = NULL;
    struct err err = {0};
    CU_ASSERT_EQUAL(format_safetensors_open(PATH, strlen(header), &f, &err), ST_OK);
    format_safetensors_close(&f);
    /* claimed a little more than there is */
    fixture_file(PATH, "\x09\0\0\0\0\0\0\0{}      ", 16);
    refused(0, ST_FORMAT, "header length 9", "16 bytes");
    unlink(PATH);
    refused(0, ST_FORMAT, PATH, "");
}

static void test_duplicates(void)
{
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                   "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
                   8, "duplicate key \"a\"", "header");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"BF16\",\"shape\":[1],"
                   "\"data_offsets\":[0,4]}}",
                   4, "duplicate key \"dtype\" in a", "header");
    header_refused("{\"__metadata__\":{\"x\":\"1\",\"x\":\"2\"},\"a\":{\"dtype\":\"U8\","
                   "\"shape\":[0],\"data_offsets\":[0,0]}}",
                   0, "duplicate key \"x\" in __metadata__", "header");
}

static void test_tiling(void)
{
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                   "\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}",
                   12, "\"a\" (ends at 8)", "\"b\" (begins at 4) overlap");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                   "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}",
                   12, "hole 4..8", "\"b\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8,
                   "hole 0..4", "\"a\"");
    const char *two = "{\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},"
                      "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                      "\"none\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]}}";
    header_refused(two, 12, "4 bytes behind the last tensor", "found");
    header_refused(two, 7, "data ends at 8, expected at most 7", "\"b\"");
    header_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                   "\"n\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[2,2]}}",
                   4, "overlap", "\"n\"");
    header_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,2]}}", 4,
                   "begin 4 behind their end 2", "\"a\"");
    float values[2] = {1.5F, -2.0F};
    fixture_safetensors(PATH, two, values, sizeof values);
    struct format_safetensors *f = opened();
    CU_ASSERT_EQUAL(f->n_tensors, 3);
    CU_ASSERT_STRING_EQUAL(f->tensors[0].name, "b");
    CU_ASSERT_EQUAL(read_f32(f, "b", 0), -2.0F);
    CU_ASSERT_EQUAL(read_f32(f, "a", 0), 1.5F);
    CU_ASSERT_EQUAL(format_safetensors_find(f, "none")->n_elements, 0);
    CU_ASSERT_PTR_NULL(format_safetensors_find(f, "c"));
    format_safetensors_close(&f);
    fixture_safetensors(PATH, "{}", NULL, 0);
    f = opened();
    CU_ASSERT_EQUAL(f->n_tensors, 0);
    format_safetensors_close(&f);
}

static void test_shapes(void)
{
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1000,1000],\"data_offsets\":[0,4]}}", 4,
                   "takes 4000000 bytes", "4 bytes");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
                   "\"data_offsets\":[0,0]}}",
                   0, "overflows", "\"a\"");
    header_refused("{\"a\":{\"dtype\":\"F64\",\"shape\":[4294967296,1073741824],"
                   "\"data_offsets\":[0,0]}}",
                   0, "overflows", "\"a\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[0,4294967296,4294967296],"
                   "\"data_offsets\":[0,0]}}",
                   0, "overflows", "\"a\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4,
                   "found -1", "\"shape\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", 4,
                   "found 1.5", "\"shape\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}", 8,
                   "found \"2\"", "\"shape\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}", 8,
                   "an array \"shape\"", "found 2");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],"
                   "\"data_offsets\":[0,4]}}",
                   4, "more than 8 dimensions", "\"a\"");
    /* a scalar has one element */
    float x = 7.0F;
    fixture_safetensors(PATH, "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", &x,
                        4);
    struct format_safetensors *f = opened();
    CU_ASSERT_EQUAL(f->tensors[0].n_elements, 1);
    CU_ASSERT_EQUAL(f->tensors[0].rank, 0);
    CU_ASSERT_EQUAL(read_f32(f, "a", 0), 7.0F);
    format_safetensors_close(&f);
}

static void test_integers(void)
{
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[9007199254740993],"
                   "\"data_offsets\":[0,0]}}",
                   0, "2^53", "\"shape\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[9007199254740992],"
                   "\"data_offsets\":[0,0]}}",
                   0, "2^53", "\"shape\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e300]}}", 4,
                   "2^53", "\"data_offsets\"");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e999]}}", 4,
                   "2^53", "\"data_offsets\"");
}

static void test_entries(void)
{
    header_refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\"",
                   "found nothing");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "\"shape\"",
                   "found nothing");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "\"data_offsets\"",
                   "found nothing");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4,
                   "[begin, end]", "found an array");
    header_refused("{\"a\":{\"dtype\":5,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "\"dtype\"",
                   "found 5");
    header_refused("{\"a\":[1]}", 4, "an object", "found an array");
    header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4,
                   "dtype, shape, data_offsets alone", "\"x\"");
    header_refused("{\"__metadata__\":{\"format\":1}}", 0, "__metadata__.format",
                   "expected a string, found 1");
    header_refused("{\"__metadata__\":[]}", 0, "__metadata__", "expected an object");
    /* a name that would break the line of a message */
    header_refused("{\"a\\nb\":[1]}", 4, "a?b", "an object");
}

static void test_json_strictness(void)
{
    float values[2] = {1.0F, 2.0F};
    fixture_safetensors(PATH,
                        "{\"A\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
                        "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}   ",
                        values, 8);
    struct format_safetensors *f = opened();
    CU_ASSERT_EQUAL(read_f32(f, "a", 0), 2.0F);
    CU_ASSERT_EQUAL(read_f32(f, "A", 0), 1.0F);
    format_safetensors_close(&f);
    header_refused("{}x", 0, "expected '}'", "header");
    header_refused("{}\n", 0, "expected '}'", "0x0a");
    header_refused(" {}", 0, "expected '{'", "0x20");
    header_refused("{}{}", 0, "nothing behind the document", "header");
    header_refused("[]", 0, "expected '{'", "header");
    header_refused("{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
                   "NUL", "header");
    fixture_file(PATH, "\5\0\0\0\0\0\0\0{\"\0\"}", 13);
    refused(0, ST_FORMAT, "control character", "header");
    char deep[1100];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    deep[5 + 1001] = '}';
    deep[5 + 1002] = '\0';
    header_refused(deep, 0, "1000 nested levels", "header");
}

static void test_unaligned(void)
{
    const char *header = "{\"u\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[1,13]}}";
    const float values[3] = {1.0F, 2.0F, 3.0F};
    char padded[256];
    snprintf(padded, sizeof padded, "%s%s", header, strlen(header) % 2 == 0 ? " " : "");
    CU_ASSERT_EQUAL(strlen(padded) % 2, 1);
    uint8_t data[13] = {9};
    memcpy(data + 1, values, 12);
    fixture_safetensors(PATH, padded, data, sizeof data);
    struct format_safetensors *f = opened();
    for (uint64_t i = 0; i < 3; i++)
        CU_ASSERT_EQUAL(read_f32(f, "a", i), values[i]);
    format_safetensors_close(&f);
}

/* A sparse file with one row marked per place; offsets beyond 2^31 elements and bytes. */
static void check_big(const char *dtype, uint64_t elements_size, uint64_t rows, uint64_t width,
                      const uint64_t *marked, size_t n_marked)
{
    char header[256];
    uint64_t row_bytes = width * elements_size;
    snprintf(header, sizeof header,
             "{\"e\":{\"dtype\":\"%s\",\"shape\":[%llu,%llu],\"data_offsets\":[0,%llu]}}", dtype,
             (unsigned long long)rows, (unsigned long long)width,
             (unsigned long long)(rows * row_bytes));
    fixture_safetensors(PATH, header, NULL, 0);
    uint64_t data_at = 8 + strlen(header);
    int fd = open(PATH, O_WRONLY);
    CU_ASSERT_FATAL(fd >= 0);
    if (ftruncate(fd, (off_t)(data_at + rows * row_bytes)) != 0) {
        printf("\n    no sparse file of this size here: skipped\n");
        close(fd);
        unlink(PATH);
        return;
    }
    for (size_t i = 0; i < n_marked; i++) {
        off_t at = (off_t)(data_at + (marked[i] + 1) * row_bytes - sizeof marked[i]);
        CU_ASSERT_EQUAL(pwrite(fd, &marked[i], sizeof marked[i], at), sizeof marked[i]);
    }
    close(fd);
    struct format_safetensors *f = opened();
    for (size_t i = 0; i < n_marked; i++) {
        uint64_t found = 0;
        struct err err = {0};
        CU_ASSERT_EQUAL(format_safetensors_read(f, &f->tensors[0],
                                                (marked[i] + 1) * row_bytes - sizeof found, &found,
                                                sizeof found, &err),
                        ST_OK);
        CU_ASSERT_EQUAL(found, marked[i]);
    }
    format_safetensors_close(&f);
    unlink(PATH);
}

static void test_big_offsets(void)
{
    const uint64_t gemma[] = {239673, 239674, 262143};
    const uint64_t small[] = {131071, 131072};
    check_big("BF16", 2, 262144, 8960, gemma, 3);
    check_big("F32", 4, 131073, 4096, small, 2);
}

static void test_dtypes(void)
{
    const char *header = "{\"f4\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]},"
                         "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[2],\"data_offsets\":[2,4]},"
                         "\"long\":{\"dtype\":\"A_DTYPE_OF_TOMORROW\",\"shape\":[],"
                         "\"data_offsets\":[4,5]},"
                         "\"lower\":{\"dtype\":\"f32\",\"shape\":[1],\"data_offsets\":[5,9]},"
                         "\"i\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[9,17]}}";
    uint8_t data[17] = {0};
    fixture_safetensors(PATH, header, data, sizeof data);
    struct format_safetensors *f = opened();
    CU_ASSERT_EQUAL(f->n_tensors, 5);
    CU_ASSERT_EQUAL(f->tensors[0].dtype, DT_UNKNOWN);
    CU_ASSERT_STRING_EQUAL(f->tensors[0].dtype_text, "F4");
    CU_ASSERT_EQUAL(f->tensors[0].n_elements, 3);
    CU_ASSERT_EQUAL(f->tensors[0].size_bytes, 2);
    CU_ASSERT_EQUAL(f->tensors[1].dtype, DT_F8_E4M3);
    CU_ASSERT_STRING_EQUAL(f->tensors[2].dtype_text, "A_DTYPE_OF_TOMO");
    CU_ASSERT_EQUAL(f->tensors[3].dtype, DT_UNKNOWN);
    CU_ASSERT_EQUAL(f->tensors[4].dtype, DT_I64);
    format_safetensors_close(&f);
    /* an unknown dtype is no way round the offset checks */
    header_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,2]},"
                   "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,5]}}",
                   5, "overlap", "\"b\"");
    header_refused("{\"a\":{\"dtype\":\"F4\",\"shape\":[4],\"data_offsets\":[0,99]}}", 5,
                   "data ends at 99", "\"a\"");
}

static void test_truncated_later(void)
{
    uint8_t data[8] = {0};
    fixture_safetensors(PATH, "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
                        data, 8);
    struct format_safetensors *f = opened();
    CU_ASSERT_EQUAL_FATAL(truncate(PATH, (off_t)(f->file_size - 4)), 0);
    struct err err = {0};
    enum status st = format_safetensors_read(f, &f->tensors[0], 0, data, 8, &err);
    CU_ASSERT_EQUAL(st, ST_IO);
    CU_ASSERT_EQUAL(status_exit_code(st), 4);
    CU_ASSERT(fixture_says(&err, PATH));
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_safetensors_read(f, &f->tensors[0], 1, data, 8, &err), ST_INTERNAL);
    CU_ASSERT_EQUAL(format_safetensors_read(f, &f->tensors[0], UINT64_MAX, data, 8, &err),
                    ST_INTERNAL);
    format_safetensors_close(&f);
}

static void test_write(void)
{
    const struct format_tensor_spec specs[] = {
        {.name = "tables.group_0", .dtype = DT_F32, .rank = 2, .shape = {2, 3}},
        {.name = "empty", .dtype = DT_F64, .rank = 2, .shape = {0, 3}},
        {.name = "q\"uote", .dtype = DT_BF16, .rank = 1, .shape = {1}},
        {.name = "scalar", .dtype = DT_I64, .rank = 0},
    };
    const float a[6] = {1, 2, 3, 4, 5, 6};
    const uint16_t b[1] = {0x3f80};
    const int64_t c[1] = {-5};
    const void *data[] = {a, NULL, b, c};
    struct err err = {0};
    struct bytes header = {0};
    uint64_t offsets[4];
    uint64_t file_size = 0;
    CU_ASSERT_EQUAL(format_safetensors_header(specs, 4, "\"format\":\"pt\"", &header, offsets,
                                              &file_size, &err),
                    ST_OK);
    CU_ASSERT_EQUAL(header.size % 8, 0);
    CU_ASSERT_EQUAL(offsets[0], header.size);
    CU_ASSERT_EQUAL(file_size, header.size + 24 + 2 + 8);
    CU_ASSERT_EQUAL_FATAL(format_safetensors_write(PATH, specs, data, 4, "\"format\":\"pt\"", &err),
                          ST_OK);
    CU_ASSERT(!file_exists("safetensors.tmpfile.tmp"));
    struct format_safetensors *f = opened();
    CU_ASSERT_EQUAL(f->file_size, file_size);
    CU_ASSERT_EQUAL(f->n_tensors, 4);
    for (size_t i = 0; i < f->n_tensors && i < 4; i++) {
        CU_ASSERT_STRING_EQUAL(f->tensors[i].name, specs[i].name);
        CU_ASSERT_EQUAL(f->tensors[i].dtype, specs[i].dtype);
        CU_ASSERT_EQUAL(f->tensors[i].rank, specs[i].rank);
        CU_ASSERT_EQUAL(f->tensors[i].offset, offsets[i]);
        CU_ASSERT_EQUAL(memcmp(f->tensors[i].shape, specs[i].shape, sizeof specs[i].shape), 0);
    }
    CU_ASSERT_EQUAL(read_f32(f, "tables.group_0", 5), 6.0F);
    CU_ASSERT_STRING_EQUAL(cJSON_GetObjectItemCaseSensitive(f->metadata, "format")->valuestring,
                           "pt");
    format_safetensors_close(&f);
    const struct format_tensor_spec twice[] = {specs[0], specs[0]};
    CU_ASSERT_EQUAL(format_safetensors_header(twice, 2, NULL, &header, offsets, &file_size, &err),
                    ST_INTERNAL);
    bytes_free(&header);
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_safetensors_write("no/such/folder", specs, data, 4, NULL, &err), ST_IO);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"N1 length prefix", test_length_prefix},
        {"N2 duplicate names", test_duplicates},
        {"N3 overlaps and holes", test_tiling},
        {"N4 shapes", test_shapes},
        {"N5 integers", test_integers},
        {"entries", test_entries},
        {"N6 strict JSON", test_json_strictness},
        {"N8 unaligned", test_unaligned},
        {"N9 big offsets", test_big_offsets},
        {"N10 dtypes", test_dtypes},
        {"N12 truncated later", test_truncated_later},
        {"writer", test_write},
    };
    int code = fixture_run("safetensors", cases, sizeof cases / sizeof cases[0]);
    unlink(PATH);
    return code;
}
