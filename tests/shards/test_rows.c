/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <fcntl.h>
#include <math.h>

/* The linker puts these around format_checkpoint_read: how often rows are really read. */
enum status __real_format_checkpoint_read(const struct format_checkpoint *c,
                                          const struct format_tensor *tensor, uint64_t offset,
                                          void *dst, size_t size, struct err *err);
enum status __wrap_format_checkpoint_read(const struct format_checkpoint *c,
                                          const struct format_tensor *tensor, uint64_t offset,
                                          void *dst, size_t size, struct err *err);
static int n_reads;
static uint64_t n_bytes_read;
enum status __wrap_format_checkpoint_read(const struct format_checkpoint *c,
                                          const struct format_tensor *tensor, uint64_t offset,
                                          void *dst, size_t size, struct err *err)
{
    n_reads++;
    n_bytes_read += size;
    return __real_format_checkpoint_read(c, tensor, offset, dst, size, err);
}

enum { ROWS = 40, WIDTH = 5 };

static char folder[64];
static float table[ROWS * WIDTH];

static float value_of(uint64_t id, uint64_t column)
{
    return (float)(id * 10 + column) / 8.0f;
}

static void open_table(enum dtype dt, const void *data, const struct shard_rows *like,
                       struct format_checkpoint **c, struct shard_rows *out)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/m.safetensors", folder);
    struct format_tensor_spec spec[2] = {
        {.name = "norm", .dtype = DT_F32, .rank = 1, .shape = {3}},
        {.name = "emb", .dtype = dt, .rank = 2, .shape = {ROWS, WIDTH}}};
    const void *arrays[2] = {"aaaabbbbcccc", data};
    CU_ASSERT_EQUAL_FATAL(format_safetensors_write(path, spec, arrays, 2, NULL, NULL), ST_OK);
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_open(path, NULL, c, NULL), ST_OK);
    *out = *like;
    out->checkpoint = *c;
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_find(*c, "emb", &out->tensor, NULL), ST_OK);
}

static void fill_table(void)
{
    for (uint64_t i = 0; i < ROWS; i++)
        for (uint64_t k = 0; k < WIDTH; k++)
            table[i * WIDTH + k] = value_of(i, k);
}

static void test_all_ranges(void)
{
    struct format_checkpoint *c = NULL;
    struct shard_rows rows;
    float got[ROWS * WIDTH];
    fixture_folder(folder, sizeof folder);
    fill_table();
    open_table(DT_F32, table, &(struct shard_rows){.n_rows = ROWS}, &c, &rows);
    for (uint64_t first = 0; first <= ROWS; first++)
        for (uint64_t n = 0; n <= ROWS - first; n++) {
            memset(got, 0xEE, sizeof got);
            n_reads = 0;
            CU_ASSERT_EQUAL(shard_rows_read(&rows, first, n, got, NULL), ST_OK);
            CU_ASSERT_EQUAL(n_reads, n > 0 ? 1 : 0);
            CU_ASSERT_EQUAL(memcmp(got, table + first * WIDTH, (size_t)n * WIDTH * sizeof *got), 0);
        }
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(shard_rows_read(&rows, ROWS, 1, got, &err), ST_INTERNAL);
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 1, UINT64_MAX, got, NULL), ST_INTERNAL);
    /* fewer rows than the tensor (N20): the others are not touched */
    rows.n_rows = 4;
    n_bytes_read = 0;
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, 4, got, NULL), ST_OK);
    CU_ASSERT_EQUAL(n_bytes_read, 4 * WIDTH * sizeof *got);
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, 5, got, NULL), ST_INTERNAL);
    /* more rows than the tensor */
    rows.n_rows = ROWS + 1;
    err_clear(&err);
    CU_ASSERT_EQUAL(shard_rows_read(&rows, ROWS, 1, got, &err), ST_STRUCTURE);
    CU_ASSERT(fixture_says(err.message, "tensor emb: id 40"));
    format_checkpoint_close(&c);
    fixture_remove(folder);
}

static void test_id_lists(void)
{
    static const uint64_t ids[] = {0, 1, 2, 5, 7, 8, 20, 21, 22, 23, 39};
    enum { N = sizeof ids / sizeof ids[0] };
    struct format_checkpoint *c = NULL;
    struct shard_rows rows;
    float got[ROWS * WIDTH];
    fixture_folder(folder, sizeof folder);
    fill_table();
    open_table(DT_F32, table, &(struct shard_rows){.ids = ids, .n_rows = N}, &c, &rows);
    for (uint64_t first = 0; first < N; first++)
        for (uint64_t n = 1; n <= N - first; n++) {
            int runs = 1;
            for (uint64_t i = 1; i < n; i++)
                runs += ids[first + i] != ids[first + i - 1] + 1;
            n_reads = 0;
            CU_ASSERT_EQUAL(shard_rows_read(&rows, first, n, got, NULL), ST_OK);
            CU_ASSERT_EQUAL(n_reads, runs);
            bool right = true;
            for (uint64_t i = 0; i < n; i++)
                for (uint64_t k = 0; k < WIDTH; k++)
                    right = right && got[i * WIDTH + k] == value_of(ids[first + i], k);
            CU_ASSERT(right);
        }
    static const uint64_t beyond[] = {3, 40};
    rows.ids = beyond;
    rows.n_rows = 2;
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, 2, got, NULL), ST_STRUCTURE);
    format_checkpoint_close(&c);
    fixture_remove(folder);
}

/* Every dtype, each kind of value, each place of a small table: the first place is named, and ids
 * of a list are original ids. */
static void test_nonfinite(void)
{
    static const struct {
        enum dtype dt;
        uint64_t fine, bad[4];
    } cases[] = {{DT_F64,
                  0x7FEFFFFFFFFFFFFF,
                  {0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF0000000000001}},
                 {DT_F32, 0x7F7FFFFF, {0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001}},
                 {DT_F16, 0x7BFF, {0x7C00, 0xFC00, 0x7E00, 0xFC01}},
                 {DT_BF16, 0x7F7F, {0x7F80, 0xFF80, 0x7FC0, 0xFF81}}};
    static const uint64_t ids[] = {2, 11, 39};
    fixture_folder(folder, sizeof folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t elem = dtype_size(cases[i].dt);
        for (size_t b = 0; b < 4; b++) {
            uint8_t bits[ROWS * WIDTH * 8], got[ROWS * WIDTH * 8];
            struct format_checkpoint *c = NULL;
            struct shard_rows rows;
            struct err err = {.st = ST_OK};
            for (size_t e = 0; e < ROWS * WIDTH; e++)
                memcpy(bits + e * elem, &cases[i].fine, elem); /* little-endian, like the file */
            memcpy(bits + (11 * WIDTH + b) * elem, &cases[i].bad[b], elem);
            memcpy(bits + (39 * WIDTH + 4) * elem, &cases[i].bad[b], elem);
            open_table(cases[i].dt, bits, &(struct shard_rows){.n_rows = ROWS}, &c, &rows);
            CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, 11, got, &err), ST_OK);
            CU_ASSERT_EQUAL(shard_rows_read(&rows, 12, 27, got, &err), ST_OK);
            CU_ASSERT_EQUAL(shard_rows_read(&rows, 3, 37, got, &err), ST_NONFINITE);
            char text[64];
            (void)snprintf(text, sizeof text, "tensor emb: id 11, column %zu ", b);
            CU_ASSERT(fixture_says(err.message, text));
            CU_ASSERT(fixture_says(err.message, "(2 such"));
            err_clear(&err);
            rows.ids = ids;
            rows.n_rows = 3;
            CU_ASSERT_EQUAL(shard_rows_read(&rows, 1, 2, got, &err), ST_NONFINITE);
            CU_ASSERT(fixture_says(err.message, text));
            format_checkpoint_close(&c);
        }
    }
    CU_ASSERT_EQUAL(status_exit_code(ST_NONFINITE), 5);
    fixture_remove(folder);
}

/* Two tensors of more than 2 GiB in one sparse file: offsets in the tensor and in the file are
 * beyond 2^32. */
static void test_large_offsets(void)
{
    enum { WIDE = 1024 };
    const uint64_t n_rows = 700000; /* 2.87 GB each */
    char path[96];
    struct format_tensor_spec spec[2] = {
        {.name = "a", .dtype = DT_F32, .rank = 2, .shape = {n_rows, WIDE}},
        {.name = "b", .dtype = DT_F32, .rank = 2, .shape = {n_rows, WIDE}}};
    struct bytes header = {0};
    uint64_t offsets[2], file_size = 0;
    float row[WIDE], got[3 * WIDE];
    fixture_folder(folder, sizeof folder);
    (void)snprintf(path, sizeof path, "%s/big.safetensors", folder);
    CU_ASSERT_EQUAL_FATAL(
        format_safetensors_header(spec, 2, NULL, &header, offsets, &file_size, NULL), ST_OK);
    fixture_file(path, header.data, header.size);
    bytes_free(&header);
    int fd = open(path, O_WRONLY);
    if (fd < 0 || ftruncate(fd, (off_t)file_size) != 0) {
        printf("\n    skipped: no sparse file of %llu bytes here: %s\n",
               (unsigned long long)file_size, strerror(errno));
        if (fd >= 0)
            (void)close(fd);
        fixture_remove(folder);
        return;
    }
    for (size_t k = 0; k < WIDE; k++)
        row[k] = (float)k + 0.5f;
    for (size_t t = 0; t < 2; t++)
        CU_ASSERT_EQUAL(
            file_write_at(fd, path, offsets[t] + (n_rows - 2) * sizeof row, row, sizeof row, NULL),
            ST_OK);
    (void)close(fd);
    struct format_checkpoint *c = NULL;
    CU_ASSERT_EQUAL_FATAL(format_checkpoint_open(path, NULL, &c, NULL), ST_OK);
    for (size_t t = 0; t < 2; t++) {
        struct shard_rows rows = {.checkpoint = c, .n_rows = n_rows};
        CU_ASSERT_EQUAL(format_checkpoint_find(c, spec[t].name, &rows.tensor, NULL), ST_OK);
        memset(got, 0xEE, sizeof got);
        CU_ASSERT_EQUAL(shard_rows_read(&rows, n_rows - 3, 3, got, NULL), ST_OK);
        CU_ASSERT_EQUAL(memcmp(got + WIDE, row, sizeof row), 0);
        CU_ASSERT(got[0] == 0 && got[WIDE - 1] == 0 && got[2 * WIDE] == 0 &&
                  got[3 * WIDE - 1] == 0);
    }
    format_checkpoint_close(&c);
    fixture_remove(folder);
}

static void test_faults(void)
{
    struct format_checkpoint *c = NULL;
    struct shard_rows rows;
    struct err err = {.st = ST_OK};
    float got[ROWS * WIDTH];
    char path[96];
    fixture_folder(folder, sizeof folder);
    fill_table();
    open_table(DT_F32, table, &(struct shard_rows){.n_rows = ROWS}, &c, &rows);
#if TOKENTAB_FAULTS
    (void)setenv("TOKENTAB_FAULT", "rows_read", 1);
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, 4, got, &err), ST_IO);
    CU_ASSERT(fixture_says(err.message, "tensor emb"));
    (void)unsetenv("TOKENTAB_FAULT");
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, 4, got, NULL), ST_OK);
#endif
    /* the checkpoint shrinks while it is read */
    (void)snprintf(path, sizeof path, "%s/m.safetensors", folder);
    struct stat info;
    CU_ASSERT_EQUAL(stat(path, &info), 0);
    CU_ASSERT_EQUAL(truncate(path, info.st_size - 1), 0);
    err_clear(&err);
    CU_ASSERT_EQUAL(shard_rows_read(&rows, 0, ROWS, got, &err), ST_IO);
    CU_ASSERT(fixture_says(err.message, "m.safetensors"));
    format_checkpoint_close(&c);
    fixture_remove(folder);
}

int main(void)
{
    static const struct fixture_case cases[] = {{"all ranges", test_all_ranges},
                                                {"id lists", test_id_lists},
                                                {"non-finite", test_nonfinite},
                                                {"large offsets", test_large_offsets},
                                                {"faults", test_faults}};
    return fixture_main("rows", cases, sizeof cases / sizeof cases[0]);
}
