/* SPDX-License-Identifier: Apache-2.0 */
/* Unit files and tables.h5: the same bytes each time, every dtype back, no fault unnoticed. */
#include "formats/formats.h"
#include "tests/formats/fixture.h"

#include <hdf5.h>

#include <math.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MAX_ROWS = 8, WIDTH = 3, N_TABLES = 5, N_RECORDS = 2, N_FIELDS = 3 };
static const char DIR_[] = "shard.tmpdir";
static const char PATH[] = "shard.tmpdir/one.h5";

/* One unit: every dtype, an output that two routes have, columns, statistics. */
struct unit {
    double f64[MAX_ROWS * WIDTH];
    float f32[MAX_ROWS * WIDTH];
    uint16_t f16[MAX_ROWS * WIDTH], bf16[MAX_ROWS * WIDTH];
    double margin[MAX_ROWS], statistics[N_RECORDS * N_FIELDS];
    struct format_shard_table tables[N_TABLES];
    struct digest digests[N_TABLES];
    struct format_shard_column columns[1];
    struct format_field fields[2];
    char text[4][8];
    struct format_shard shard;
};

/* Element j of row i of the whole table is i * 8 + j, exact in every dtype. */
static void fill_tables(struct unit *u, uint64_t first, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t j = 0; j < WIDTH; j++) {
            float x = (float)((first + i) * 8 + j);
            u->f64[i * WIDTH + j] = x;
            u->f32[i * WIDTH + j] = x;
            u->f16[i * WIDTH + j] = f16_from_f32(x);
            u->bf16[i * WIDTH + j] = bf16_from_f32(x);
        }
        u->margin[i] = (double)i + 0.25;
    }
}

static void make_unit(struct unit *u, uint64_t unit, uint64_t first, uint64_t n)
{
    static const double statistics[N_RECORDS * N_FIELDS] = {0, -0.0, 1e300, NAN, -INFINITY, 5};
    *u = (struct unit){.text = {"a", "1", "b", "two"}};
    fill_tables(u, first, n);
    memcpy(u->statistics, statistics, sizeof statistics);
    const struct format_shard_table tables[N_TABLES] = {{"bulk", "f64", DT_F64, WIDTH, u->f64},
                                                        {"bulk", "f32", DT_F32, WIDTH, u->f32},
                                                        {"bulk", "f16", DT_F16, WIDTH, u->f16},
                                                        {"bulk", "bf16", DT_BF16, WIDTH, u->bf16},
                                                        {"profile0", "f32", DT_F32, WIDTH, u->f32}};
    for (size_t i = 0; i < N_TABLES; i++) {
        u->tables[i] = tables[i];
        u->digests[i] = digest_of(tables[i].data, n * WIDTH * dtype_size(tables[i].dtype));
    }
    u->columns[0] = (struct format_shard_column){"decision/q/margin", u->margin};
    u->fields[0] = (struct format_field){u->text[0], u->text[1]};
    u->fields[1] = (struct format_field){u->text[2], u->text[3]};
    u->shard = (struct format_shard){.unit = unit,
                                     .first_row = first,
                                     .n_rows = n,
                                     .tables = u->tables,
                                     .n_tables = N_TABLES,
                                     .statistics = u->statistics,
                                     .n_records = N_RECORDS,
                                     .n_fields = N_FIELDS,
                                     .statistics_columns = "max_abs\nmax_ulp\ncount",
                                     .columns = u->columns,
                                     .n_columns = 1,
                                     .table_digests = u->digests,
                                     .fingerprint_fields = u->fields,
                                     .n_fingerprint_fields = 2,
                                     .fingerprint = "00112233445566778899aabbccddeeff"};
}

static void write_unit(const char *path, uint64_t unit, uint64_t first, uint64_t n)
{
    static struct unit u;
    struct err err = {0};
    make_unit(&u, unit, first, n);
    enum status st = format_shard_write(path, &u.shard, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL_FATAL(st, ST_OK);
}

static void read_bytes(const char *path, uint8_t **data, size_t *size)
{
    struct err err = {0};
    CU_ASSERT_EQUAL_FATAL(file_read_all(path, (size_t)1 << 26, data, size, &err), ST_OK);
}

static void test_round_trip(void)
{
    struct unit u;
    struct format_shard_info *info = NULL;
    struct format_shard_reader *r = NULL;
    struct err err = {0};
    make_unit(&u, 3, 40, 6);
    write_unit(PATH, 3, 40, 6);
    CU_ASSERT_EQUAL_FATAL(format_shard_info_read(PATH, &info, &err), ST_OK);
    CU_ASSERT(info->unit == 3 && info->first_row == 40 && info->n_rows == 6 && info->complete);
    CU_ASSERT_STRING_EQUAL(info->fingerprint, u.shard.fingerprint);
    CU_ASSERT_EQUAL_FATAL(info->n_tables, N_TABLES);
    CU_ASSERT_EQUAL(memcmp(info->table_digests, u.digests, sizeof u.digests), 0);
    CU_ASSERT_STRING_EQUAL(info->table_names,
                           "bulk/f64\nbulk/f32\nbulk/f16\nbulk/bf16\nprofile0/f32");
    CU_ASSERT_EQUAL(info->n_records * info->n_fields, N_RECORDS * N_FIELDS);
    CU_ASSERT_EQUAL(memcmp(info->statistics, u.statistics, sizeof u.statistics), 0);
    CU_ASSERT_STRING_EQUAL(info->statistics_columns, "max_abs\nmax_ulp\ncount");
    CU_ASSERT_EQUAL_FATAL(info->n_fingerprint_fields, 2);
    CU_ASSERT_STRING_EQUAL(info->fingerprint_fields[1].name, "b");
    CU_ASSERT_STRING_EQUAL(info->fingerprint_fields[1].value, "two");
    format_shard_info_free(&info);
    CU_ASSERT_PTR_NULL(info);

    CU_ASSERT_EQUAL_FATAL(format_shard_reader_open(PATH, &r, &err), ST_OK);
    for (size_t i = 0; i < N_TABLES; i++) {
        uint8_t got[MAX_ROWS * WIDTH * 8];
        const struct format_shard_table *t = &u.tables[i];
        size_t row = WIDTH * dtype_size(t->dtype);
        enum dtype dtype = DT_UNKNOWN;
        uint64_t width = 0;
        CU_ASSERT_EQUAL(format_shard_reader_table(r, t->route, t->output, &dtype, &width, &err),
                        ST_OK);
        CU_ASSERT(dtype == t->dtype && width == WIDTH);
        CU_ASSERT_EQUAL(format_shard_reader_rows(r, t->route, t->output, 0, 6, got, &err), ST_OK);
        CU_ASSERT_EQUAL(memcmp(got, t->data, 6 * row), 0);
        memset(got, 0xee, sizeof got);
        CU_ASSERT_EQUAL(format_shard_reader_rows(r, t->route, t->output, 4, 2, got, &err), ST_OK);
        CU_ASSERT_EQUAL(memcmp(got, (const uint8_t *)t->data + 4 * row, 2 * row), 0);
        CU_ASSERT_EQUAL(got[2 * row], 0xee);
        CU_ASSERT_EQUAL(format_shard_reader_rows(r, t->route, t->output, 6, 0, got, &err), ST_OK);
        struct err beyond = {0};
        CU_ASSERT_EQUAL(format_shard_reader_rows(r, t->route, t->output, 5, 2, got, &beyond),
                        ST_INTERNAL);
    }
    double margin[MAX_ROWS];
    CU_ASSERT_EQUAL(format_shard_reader_column(r, "decision/q/margin", margin, &err), ST_OK);
    CU_ASSERT_EQUAL(memcmp(margin, u.margin, 6 * sizeof *margin), 0);
    CU_ASSERT_EQUAL(format_shard_reader_column(r, "none", margin, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "columns/none"));
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_shard_reader_rows(r, "bulk", "none", 0, 1, margin, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "table bulk/none"));
    CU_ASSERT(fixture_says(&err, "doesn't exist"));
    format_shard_reader_close(&r);
    CU_ASSERT_PTR_NULL(r);
}

/* Equal arguments, equal bytes, whatever the clock says. */
static void test_same_bytes(void)
{
    uint8_t *a = NULL;
    uint8_t *b = NULL;
    size_t a_size = 0;
    size_t b_size = 0;
    write_unit(PATH, 0, 0, 4);
    sleep(1);
    write_unit("shard.tmpdir/two.h5", 0, 0, 4);
    read_bytes(PATH, &a, &a_size);
    read_bytes("shard.tmpdir/two.h5", &b, &b_size);
    CU_ASSERT_EQUAL(a_size, b_size);
    CU_ASSERT(a_size == b_size && memcmp(a, b, a_size) == 0);
    free(a);
    free(b);
    unlink("shard.tmpdir/two.h5");
}

static void test_small(void)
{
    struct unit u;
    struct err err = {0};
    struct format_shard_info *info = NULL;
    make_unit(&u, 0, 0, 1);
    u.shard.n_tables = u.shard.n_columns = u.shard.n_fingerprint_fields = u.shard.n_records = 0;
    u.shard.statistics = NULL;
    u.shard.statistics_columns = NULL;
    CU_ASSERT_EQUAL(format_shard_write(PATH, &u.shard, &err), ST_OK);
    CU_ASSERT_EQUAL_FATAL(format_shard_info_read(PATH, &info, &err), ST_OK);
    CU_ASSERT(info->n_tables == 0 && info->n_records == 0 && info->n_fingerprint_fields == 0);
    CU_ASSERT_STRING_EQUAL(info->statistics_columns, "");
    format_shard_info_free(&info);
    make_unit(&u, 0, 0, 1);
    u.tables[0].dtype = DT_UNKNOWN;
    CU_ASSERT_EQUAL(format_shard_write(PATH, &u.shard, &err), ST_IO);
    CU_ASSERT(!file_exists(PATH));
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_shard_write("shard.tmpdir/no/such.h5", &u.shard, &err), ST_IO);
    CU_ASSERT(fixture_says(&err, "No such file"));
}

/* Everything a resume reads of a file.  True if nothing was noticed. */
static bool reads_whole(const char *path, enum status *worst)
{
    struct format_shard_info *info = NULL;
    struct format_shard_reader *r = NULL;
    struct err err = {0};
    double buffer[MAX_ROWS * WIDTH];
    enum status st = format_shard_info_read(path, &info, &err);
    if (st == ST_OK)
        st = format_shard_reader_open(path, &r, &err);
    for (size_t i = 0; i < 4 && st == ST_OK; i++) {
        static const char *const names[] = {"f64", "f32", "f16", "bf16"};
        enum dtype dtype;
        uint64_t width;
        st = format_shard_reader_table(r, "bulk", names[i], &dtype, &width, &err);
        if (st == ST_OK && (width != WIDTH || dtype_size(dtype) > 8))
            st = ST_FORMAT;
        if (st == ST_OK)
            st = format_shard_reader_rows(r, "bulk", names[i], 0, 4, buffer, &err);
    }
    if (st == ST_OK)
        st = format_shard_reader_column(r, "decision/q/margin", buffer, &err);
    format_shard_reader_close(&r);
    format_shard_info_free(&info);
    *worst = st;
    return st == ST_OK;
}

static void damage_all(void)
{
    uint8_t *data = NULL;
    size_t size = 0;
    enum status st;
    write_unit(PATH, 0, 0, 4);
    read_bytes(PATH, &data, &size);
    CU_ASSERT(reads_whole(PATH, &st));
    /* cut at every length */
    for (size_t n = 0; n < size; n += n < 4096 ? 13 : 97) {
        fixture_file(PATH, data, n);
        CU_ASSERT(!reads_whole(PATH, &st));
        CU_ASSERT(st == ST_FORMAT || st == ST_IO);
    }
    /* zeroed from a place on, and altogether */
    for (size_t from = 0; from < 4096 && from < size; from += 256) {
        uint8_t *zeroed = calloc(1, size);
        memcpy(zeroed, data, from);
        fixture_file(PATH, zeroed, size);
        CU_ASSERT(!reads_whole(PATH, &st));
        CU_ASSERT(st == ST_FORMAT || st == ST_IO);
        free(zeroed);
    }
    /* one byte flipped anywhere: never a crash; a digest tells what HDF5's checksums do not */
    size_t noticed = 0;
    size_t tried = 0;
    for (size_t i = 0; i < size; i += 3 + i % 7, tried++) {
        uint8_t before = data[i];
        data[i] = i % 3 == 0 ? 0 : (uint8_t)(before ^ (i % 3 == 1 ? 0xff : 1 << i % 8));
        fixture_file(PATH, data, size);
        if (!reads_whole(PATH, &st)) {
            noticed++;
            CU_ASSERT(st == ST_FORMAT || st == ST_IO || st == ST_NOMEM);
        }
        data[i] = before;
    }
    printf("%zu of %zu changed bytes noticed without digests ... ", noticed, tried);
    CU_ASSERT(noticed > tried / 8);
    free(data);
    fixture_text(PATH, "no HDF5 at all, but long enough");
    CU_ASSERT(!reads_whole(PATH, &st));
    CU_ASSERT_EQUAL(st, ST_FORMAT);
    unlink(PATH);
    CU_ASSERT(!reads_whole(PATH, &st));
}

/* In a child, since the library leaks on the way out of broken files; a crash would show as well.
 */
static void test_damage(void)
{
    int state = 0;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        damage_all();
        bool failed = CU_get_number_of_failures() != 0;
        fflush(stdout);
        _exit(H5close() < 0 || failed ? 1 : 0);
    }
    CU_ASSERT_FATAL(child > 0);
    CU_ASSERT_EQUAL(waitpid(child, &state, 0), child);
    CU_ASSERT(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

static void test_incomplete(void)
{
    struct format_shard_info *info = NULL;
    struct format_shard_reader *r = NULL;
    struct err err = {0};
    write_unit(PATH, 0, 0, 4);
    hid_t file = H5Fopen(PATH, H5F_ACC_RDWR, H5P_DEFAULT);
    CU_ASSERT_FATAL(file >= 0);
    CU_ASSERT(H5Adelete(file, "complete") >= 0);
    CU_ASSERT(H5Fclose(file) >= 0);
    CU_ASSERT_EQUAL_FATAL(format_shard_info_read(PATH, &info, &err), ST_OK);
    CU_ASSERT(!info->complete);
    format_shard_info_free(&info);
    CU_ASSERT_EQUAL(format_shard_reader_open(PATH, &r, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "complete"));
    /* a version of tomorrow */
    const uint64_t version = 2;
    file = H5Fopen(PATH, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t a = H5Aopen(file, "version", H5P_DEFAULT);
    CU_ASSERT(H5Awrite(a, H5T_NATIVE_UINT64, &version) >= 0);
    H5Aclose(a);
    CU_ASSERT(H5Fclose(file) >= 0);
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_shard_info_read(PATH, &info, &err), ST_FORMAT);
    CU_ASSERT(fixture_says(&err, "version 2, newest known 1"));
    unlink(PATH);
}

static void test_lock(void)
{
    struct format_shard_info *info = NULL;
    struct err err = {0};
    write_unit(PATH, 0, 0, 4);
    FILE *holder = fopen(PATH, "rb");
    CU_ASSERT_PTR_NOT_NULL_FATAL(holder);
    CU_ASSERT_EQUAL(flock(fileno(holder), LOCK_EX | LOCK_NB), 0);
    CU_ASSERT_EQUAL(format_shard_info_read(PATH, &info, &err), ST_LOCKED);
    CU_ASSERT_EQUAL(status_exit_code(ST_LOCKED), 4);
    CU_ASSERT(fixture_says(&err, "HDF5_USE_FILE_LOCKING=FALSE"));
    CU_ASSERT(fixture_says(&err, "file system "));
    fclose(holder);
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_shard_info_read(PATH, &info, &err), ST_OK);
    format_shard_info_free(&info);
    unlink(PATH);
}

/* A file that may not grow stands for a full disk.  In a child: the limit cannot be raised again.
 */
static int write_limited(rlim_t limit)
{
    static float big[MAX_ROWS * 65536];
    struct unit u;
    struct err err = {0};
    const struct rlimit r = {limit, limit};
    make_unit(&u, 0, 0, MAX_ROWS);
    u.tables[1].data = big;
    u.tables[1].width = 65536;
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &r) != 0)
        return 10;
    enum status st = format_shard_write(PATH, &u.shard, &err);
    if (st != ST_IO || strstr(err.message, "File too large") == NULL ||
        strstr(err.message, "at byte") == NULL || file_exists(PATH))
        return 11;
    return strchr(err.message, '\n') == NULL ? 0 : 12;
}

static void test_full_disk(void)
{
    const rlim_t limits[] = {0, 1000, 100000, 2000000};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        int state = 0;
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            int code = write_limited(limits[i]);
            _exit(H5close() < 0 ? 13 : code);
        }
        CU_ASSERT_FATAL(child > 0);
        CU_ASSERT_EQUAL(waitpid(child, &state, 0), child);
        if (state != 0)
            printf("\n    limit %lu: state %x\n", (unsigned long)limits[i], (unsigned)state);
        CU_ASSERT(WIFEXITED(state) && WEXITSTATUS(state) == 0);
    }
}

static void test_fault_points(void)
{
#if TOKENTAB_FAULTS
    static const char *const points[] = {"shard_write", "shard_close"};
    struct unit u;
    struct err err = {0};
    double x[WIDTH * 2];
    make_unit(&u, 0, 0, 2);
    for (size_t i = 0; i < 2; i++) {
        err = (struct err){0};
        setenv("TOKENTAB_FAULT", points[i], 1);
        CU_ASSERT_EQUAL(format_shard_write(PATH, &u.shard, &err), ST_IO);
        CU_ASSERT(fixture_says(&err, points[i]));
        CU_ASSERT(!file_exists(PATH));
    }
    unsetenv("TOKENTAB_FAULT");
    err = (struct err){0};
    CU_ASSERT_EQUAL(format_shard_write(PATH, &u.shard, &err), ST_OK);
    struct format_shard_reader *r = NULL;
    CU_ASSERT_EQUAL_FATAL(format_shard_reader_open(PATH, &r, &err), ST_OK);
    setenv("TOKENTAB_FAULT", "shard_read", 1);
    CU_ASSERT_EQUAL(format_shard_reader_rows(r, "bulk", "f64", 0, 2, x, &err), ST_IO);
    unsetenv("TOKENTAB_FAULT");
    format_shard_reader_close(&r);
    unlink(PATH);
#else
    printf("no fault points in this build ... ");
#endif
}

/* ---- tables.h5 ----------------------------------------------------------------------------- */

static void make_virtual(void)
{
    static struct unit u;
    struct err err = {0};
    const struct format_virtual_source sources[] = {
        {"unit0.h5", 0, 4}, {"unit1.h5", 4, 2}, {"absent.h5", 6, 1}};
    write_unit("shard.tmpdir/unit0.h5", 0, 0, 4);
    write_unit("shard.tmpdir/unit1.h5", 1, 4, 2);
    make_unit(&u, 0, 0, 1);
    CU_ASSERT_EQUAL_FATAL(
        format_virtual_write("shard.tmpdir/tables.h5", u.tables, N_TABLES, 7, sources, 3, &err),
        ST_OK);
    CU_ASSERT(!file_exists("shard.tmpdir/tables.h5.tmp"));
    const struct format_virtual_source bad[] = {{"/abs.h5", 0, 1}, {"a.h5", 6, 2}, {"a%b", 0, 1}};
    for (size_t i = 0; i < 3; i++) {
        struct err e = {0};
        CU_ASSERT_EQUAL(
            format_virtual_write("shard.tmpdir/bad.h5", u.tables, N_TABLES, 7, &bad[i], 1, &e),
            ST_INTERNAL);
        CU_ASSERT(!file_exists("shard.tmpdir/bad.h5"));
    }
}

static bool tool_works(const char *command)
{
    char quiet[256];
    snprintf(quiet, sizeof quiet, "%s >/dev/null 2>&1", command);
    return system(quiet) == 0;
}

static void run_h5py(const char *folder)
{
    const char *source = getenv("TOKENTAB_SOURCE_DIR");
    char command[1024];
    if (source == NULL || !tool_works("/usr/bin/python3 -c 'import h5py'")) {
        printf("h5py is not here: not read by it ... ");
        return;
    }
    snprintf(command, sizeof command, "/usr/bin/python3 '%s/tests/formats/read_tables.py' %s",
             source, folder);
    fflush(stdout);
    CU_ASSERT_EQUAL(system(command), 0);
}

static void run_h5dump(const char *folder)
{
    char command[1024];
    if (!tool_works("h5dump --version")) {
        printf("h5dump is not here: not read by it ... ");
        return;
    }
    snprintf(command, sizeof command,
             "h5dump -H -p %s/tables.h5 | grep -q VIRTUAL && "
             "h5dump -d /tables/bulk/f32 %s/tables.h5 | grep -q '(5,0): 40, 41, 42' && "
             "h5dump -d /tables/bulk/f16 %s/tables.h5 | grep -q '(4,0): 32, 33, 34' && "
             "h5dump -a /fingerprint %s/unit1.h5 | grep -q 00112233445566778899aabbccddeeff",
             folder, folder, folder, folder);
    fflush(stdout);
    CU_ASSERT_EQUAL(system(command), 0);
}

static void test_virtual(void)
{
    uint8_t *a = NULL;
    uint8_t *b = NULL;
    size_t a_size = 0;
    size_t b_size = 0;
    make_virtual();
    read_bytes("shard.tmpdir/tables.h5", &a, &a_size);
    sleep(1);
    make_virtual();
    read_bytes("shard.tmpdir/tables.h5", &b, &b_size);
    CU_ASSERT(a_size == b_size && memcmp(a, b, a_size) == 0);
    free(a);
    free(b);
    run_h5py(DIR_);
    run_h5dump(DIR_);
    CU_ASSERT_EQUAL_FATAL(rename(DIR_, "shard.moved"), 0);
    run_h5py("shard.moved");
    run_h5dump("shard.moved");
    CU_ASSERT_EQUAL_FATAL(rename("shard.moved", DIR_), 0);
}

/* A run of many units: linear in their number. */
static void test_many_sources(void)
{
    enum { N = 2000 };
    static struct format_virtual_source sources[N];
    static char names[N][24];
    struct unit u;
    struct err err = {0};
    make_unit(&u, 0, 0, 1);
    for (size_t i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "units/u%06zu.h5", i);
        sources[i] = (struct format_virtual_source){names[i], i * 16384, 16384};
    }
    double start = clock_s();
    CU_ASSERT_EQUAL(format_virtual_write("shard.tmpdir/many.h5", u.tables, N_TABLES, N * 16384,
                                         sources, N, &err),
                    ST_OK);
    double seconds = clock_s() - start;
    printf("%d sources x %d tables: %.2f s ... ", N, N_TABLES, seconds);
    CU_ASSERT(seconds < 60);
}

int main(void)
{
    static const struct fixture_case cases[] = {
        {"round trip", test_round_trip}, {"same bytes", test_same_bytes},
        {"small", test_small},           {"damage", test_damage},
        {"incomplete", test_incomplete}, {"N62 lock", test_lock},
        {"full disk", test_full_disk},   {"fault points", test_fault_points},
        {"tables.h5", test_virtual},     {"many sources", test_many_sources},
    };
    if (system("rm -rf shard.tmpdir shard.moved") != 0)
        return 1;
    fixture_dir(DIR_);
    unsetenv("HDF5_USE_FILE_LOCKING");
    int code = fixture_run("shard", cases, sizeof cases / sizeof cases[0]);
    if (system("rm -rf shard.tmpdir shard.moved") != 0)
        return 1;
    return code;
}
