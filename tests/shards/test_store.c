/* SPDX-License-Identifier: Apache-2.0 */
#include "fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/types.h>

enum {
    WIDTH = 3,
    UNIT_ROWS = 16,
    N_ROWS = 16 * 5 + 1,
    N_UNITS = 6
}; /* the last unit has one row */

static char work[64];

static struct shard_grid grid(void)
{
    struct shard_grid g;
    CU_ASSERT_EQUAL_FATAL(shard_grid_make(N_ROWS, 1, 1, 1, &g, NULL), ST_OK);
    return g;
}

/* The fingerprint of a unit whose rows are named by `rows`. */
static struct shard_fingerprint fingerprint(uint64_t unit, const char *eps, const char *core)
{
    struct shard_fingerprint base = {.n_fields = 0}, out;
    struct digest rows = digest_of(&unit, sizeof unit);
    CU_ASSERT_EQUAL(shard_fingerprint_add(&base, "eps", eps, NULL), ST_OK);
    CU_ASSERT_EQUAL(shard_fingerprint_add(&base, "environment.core", core, NULL), ST_OK);
    CU_ASSERT_EQUAL(shard_fingerprint_unit(&base, &rows, &out, NULL), ST_OK);
    shard_fingerprint_free(&base);
    return out;
}

/* Evaluate and put a unit; the values follow from unit and eps. */
static enum status put(struct shard_store *s, uint64_t unit, const char *eps, const char *core,
                       struct err *err)
{
    struct shard_grid g = grid();
    struct shard_fingerprint f = fingerprint(unit, eps, core);
    uint64_t first, n;
    float values[UNIT_ROWS * WIDTH];
    double statistics[2] = {1, 2};
    shard_grid_rows(&g, unit, &first, &n);
    for (size_t i = 0; i < n * WIDTH; i++)
        values[i] = (float)(first * WIDTH + i) + (float)strlen(eps);
    struct format_shard_table table = {
        .route = "bulk", .output = "output", .dtype = DT_F32, .width = WIDTH, .data = values};
    struct digest digest = digest_of(values, (size_t)n * WIDTH * sizeof *values);
    struct format_shard shard = {.unit = unit,
                                 .first_row = first,
                                 .n_rows = n,
                                 .tables = &table,
                                 .n_tables = 1,
                                 .statistics = statistics,
                                 .n_records = 1,
                                 .n_fields = 2,
                                 .statistics_columns = "a\nb",
                                 .table_digests = &digest,
                                 .fingerprint_fields = f.fields,
                                 .n_fingerprint_fields = f.n_fields,
                                 .fingerprint = f.hex};
    enum status st = shard_store_put(s, &shard, err);
    shard_fingerprint_free(&f);
    return st;
}

static enum shard_reuse check(const struct shard_store *s, uint64_t unit, const char *eps,
                              const char *core, char *why, size_t why_size)
{
    struct shard_fingerprint f = fingerprint(unit, eps, core);
    enum shard_reuse reuse = SHARD_MISSING;
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(shard_store_check(s, unit, &f, &reuse, why, why_size, &err), ST_OK);
    CU_ASSERT_EQUAL(reuse == SHARD_REUSE, why[0] == '\0');
    shard_fingerprint_free(&f);
    return reuse;
}

/* Is unit as expected for eps "1" on core "A", with `text` in the reason? */
static bool is(const struct shard_store *s, uint64_t unit, enum shard_reuse reuse, const char *text)
{
    char why[600];
    enum shard_reuse found = check(s, unit, "1", "A", why, sizeof why);
    if (found != reuse)
        printf("\n    unit %d: %d expected, found %d: %s\n", (int)unit, reuse, found, why);
    return found == reuse && (text == NULL || fixture_says(why, text));
}

static struct shard_store *reopen(bool clean)
{
    struct shard_store *s = NULL;
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL_FATAL(shard_store_open(work, "block", clean, &s, &err), ST_OK);
    return s;
}

/* How many names in WORK/block/<sub> hold `part`. */
static int count_names(const char *sub, const char *part)
{
    char path[200];
    int n = 0;
    (void)snprintf(path, sizeof path, "%s/block/%s", work, sub);
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        n += strstr(e->d_name, part) != NULL;
    if (dir != NULL)
        (void)closedir(dir);
    return n;
}

static void fill_store(void)
{
    fixture_folder(work, sizeof work);
    struct shard_store *s = reopen(true);
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT_EQUAL(put(s, u, "1", "A", NULL), ST_OK);
    shard_store_close(&s);
}

static void test_put_and_reopen(void)
{
    char why[300];
    fixture_folder(work, sizeof work);
    struct shard_store *s = reopen(true);
    CU_ASSERT(is(s, 0, SHARD_MISSING, "not journalled"));
    CU_ASSERT_EQUAL(shard_store_count(s, N_UNITS), 0);
    for (uint64_t u = N_UNITS; u-- > 0;) {
        CU_ASSERT_EQUAL(put(s, u, "1", "A", NULL), ST_OK);
        CU_ASSERT(is(s, u, SHARD_REUSE, NULL));
    }
    CU_ASSERT_EQUAL(shard_store_count(s, N_UNITS), N_UNITS);
    CU_ASSERT_EQUAL(shard_store_count(s, 4), 4);
    shard_store_close(&s);
    CU_ASSERT_PTR_NULL(s);
    s = reopen(false);
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT(is(s, u, SHARD_REUSE, NULL));
    CU_ASSERT_EQUAL(count_names("units", ".tmp"), 0);
    CU_ASSERT_EQUAL(count_names("units", ".h5"), N_UNITS);
    CU_ASSERT_EQUAL(count_names("", "journal-"), 1);
    /* a unit anew, twice the same, and back */
    CU_ASSERT_EQUAL(put(s, 1, "22", "A", NULL), ST_OK);
    CU_ASSERT(is(s, 1, SHARD_STALE, "eps: 22 \xE2\x86\x92 1"));
    CU_ASSERT_EQUAL(check(s, 1, "22", "A", why, sizeof why), SHARD_REUSE);
    CU_ASSERT_EQUAL(put(s, 1, "1", "A", NULL), ST_OK);
    CU_ASSERT_EQUAL(put(s, 1, "1", "A", NULL), ST_OK);
    CU_ASSERT(is(s, 1, SHARD_REUSE, NULL));
    CU_ASSERT_EQUAL(check(s, 1, "1", "B", why, sizeof why), SHARD_OTHER_ENVIRONMENT);
    CU_ASSERT(fixture_says(why, "environment.core: A \xE2\x86\x92 B"));
    CU_ASSERT_EQUAL(check(s, 1, "2", "B", why, sizeof why), SHARD_STALE);
    CU_ASSERT_EQUAL(shard_store_count(s, N_UNITS), N_UNITS);
    shard_store_close(&s);
    fixture_remove(work);
}

/* Looking at a work folder writes nothing. */
static void test_reading_writes_nothing(void)
{
    fixture_folder(work, sizeof work);
    struct shard_store *s = reopen(false);
    CU_ASSERT(is(s, 0, SHARD_MISSING, NULL));
    CU_ASSERT_EQUAL(shard_store_refresh(s, NULL), ST_OK);
    shard_store_close(&s);
    CU_ASSERT_EQUAL(rmdir(work), 0);
    struct err err = {.st = ST_OK};
    CU_ASSERT_EQUAL(shard_store_open(work, "../x", false, &s, &err), ST_SPEC);
    CU_ASSERT_PTR_NULL(s);
}

static void unit_path(uint64_t unit, char *path, size_t size)
{
    struct shard_store *s = reopen(false);
    char *own = shard_store_unit_path(s, unit);
    (void)snprintf(path, size, "%s", own);
    free(own);
    shard_store_close(&s);
}

/* Every kind of harm to a file is seen by its digest, wherever it is (N64). */
static void test_damage(void)
{
    char path[300];
    fill_store();
    unit_path(2, path, sizeof path);
    struct stat info;
    CU_ASSERT_EQUAL_FATAL(stat(path, &info), 0);
    uint8_t *whole = NULL, *harmed = NULL;
    size_t size = 0;
    CU_ASSERT_EQUAL_FATAL(file_read_all(path, SIZE_MAX, &whole, &size, NULL), ST_OK);
    harmed = malloc(size + 1);
    CU_ASSERT_PTR_NOT_NULL_FATAL(harmed);
    struct shard_store *s = reopen(true);
    for (size_t at = 0; at < size; at += size / 40 + 1) {
        memcpy(harmed, whole, size);
        harmed[at] = (uint8_t)(harmed[at] ^ 1u << at % 8);
        fixture_file(path, harmed, size);
        CU_ASSERT(is(s, 2, SHARD_DAMAGED, "digest"));
    }
    fixture_file(path, whole, size - 1);
    CU_ASSERT(is(s, 2, SHARD_DAMAGED, "bytes"));
    fixture_file(path, whole, 0);
    CU_ASSERT(is(s, 2, SHARD_DAMAGED, "0 bytes"));
    memcpy(harmed, whole, size);
    harmed[size] = 0;
    fixture_file(path, harmed, size + 1);
    CU_ASSERT(is(s, 2, SHARD_DAMAGED, "bytes"));
    memset(harmed, 0, size);
    fixture_file(path, harmed, size);
    CU_ASSERT(is(s, 2, SHARD_DAMAGED, "digest"));
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT(is(s, 2, SHARD_MISSING, "no file"));
    CU_ASSERT_EQUAL(mkdir(path, 0777), 0);
    CU_ASSERT(is(s, 2, SHARD_DAMAGED, NULL));
    CU_ASSERT_EQUAL(rmdir(path), 0);
    /* the others are as they were; the harmed one is put again, byte for byte */
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT(u == 2 || is(s, u, SHARD_REUSE, NULL));
    CU_ASSERT_EQUAL(put(s, 2, "1", "A", NULL), ST_OK);
    CU_ASSERT(is(s, 2, SHARD_REUSE, NULL));
    uint8_t *again = NULL;
    size_t again_size = 0;
    CU_ASSERT_EQUAL(file_read_all(path, SIZE_MAX, &again, &again_size, NULL), ST_OK);
    CU_ASSERT(again_size == size && memcmp(again, whole, size) == 0);
    shard_store_close(&s);
    free(again);
    free(whole);
    free(harmed);
    fixture_remove(work);
}

static void copy_file(const char *from, const char *to)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    CU_ASSERT_EQUAL_FATAL(file_read_all(from, SIZE_MAX, &bytes, &size, NULL), ST_OK);
    fixture_file(to, bytes, size);
    free(bytes);
}

/* A journal line by hand, as any process could have written it. */
static void journal_write(const char *name, uint64_t unit, const char *of_file, const char *hex,
                          const char *end)
{
    char path[300], digest[DIGEST_HEX_SIZE];
    struct digest d;
    uint64_t size = 0;
    CU_ASSERT_EQUAL(file_digests(of_file, NULL, &d, &size, NULL), ST_OK);
    (void)snprintf(path, sizeof path, "%s/block/%s", work, name);
    FILE *f = fopen(path, "ab");
    CU_ASSERT_PTR_NOT_NULL_FATAL(f);
    fprintf(f,
            "{\"unit\":%llu,\"file\":\"units/unit-%08llu.h5\",\"size\":%llu,\"digest\":\"%s\","
            "\"fingerprint\":\"%s\"}%s",
            (unsigned long long)unit, (unsigned long long)unit, (unsigned long long)size,
            digest_hex(&d, digest), hex, end);
    CU_ASSERT_EQUAL(fclose(f), 0);
}

/* A whole file with a right digest is still not taken when it is another unit's, when its content
 * is no HDF5, or when its journal speaks of another fingerprint. */
static void test_false_journals(void)
{
    char two[300], three[300];
    fill_store();
    unit_path(2, two, sizeof two);
    unit_path(3, three, sizeof three);
    struct shard_fingerprint f = fingerprint(3, "1", "A"), other = fingerprint(3, "2", "A");
    copy_file(two, three);
    journal_write("journal-x-1.jsonl", 3, three, f.hex, "\n");
    struct shard_store *s = reopen(true);
    CU_ASSERT(is(s, 3, SHARD_DAMAGED, "unit 2"));
    fixture_file(three, "no HDF5 at all", 14);
    journal_write("journal-x-2.jsonl", 3, three, f.hex, "\n");
    CU_ASSERT_EQUAL(shard_store_refresh(s, NULL), ST_OK);
    CU_ASSERT(is(s, 3, SHARD_DAMAGED, "unit-00000003.h5"));
    CU_ASSERT_EQUAL(put(s, 3, "1", "A", NULL), ST_OK);
    CU_ASSERT(is(s, 3, SHARD_REUSE, NULL));
    shard_store_close(&s);
    /* only an entry with the wrong fingerprint is left */
    char command[300];
    (void)snprintf(command, sizeof command, "rm %s/block/journal-*", work);
    CU_ASSERT_EQUAL(system(command), 0);
    journal_write("journal-x-3.jsonl", 3, three, other.hex, "\n");
    s = reopen(true);
    CU_ASSERT(is(s, 3, SHARD_DAMAGED, "fingerprint differs from the journal"));
    shard_store_close(&s);
    shard_fingerprint_free(&f);
    shard_fingerprint_free(&other);
    fixture_remove(work);
}

/* Torn, glued, foreign and false lines count as absent; whole ones around them count. */
static void test_torn_lines(void)
{
    char path[300], command[300];
    fill_store();
    (void)snprintf(command, sizeof command, "rm %s/block/journal-*", work);
    CU_ASSERT_EQUAL(system(command), 0);
    for (uint64_t u = 0; u < N_UNITS; u++) {
        static const char *const ends[N_UNITS] = {"\n", "\n", "\n", " \n", "{\"unit\":9\n", ""};
        struct shard_fingerprint f = fingerprint(u, "1", "A");
        unit_path(u, path, sizeof path);
        if (u == 1)
            f.hex[0] = 'G';
        if (u == 2) { /* a number that does not fit, before a good line */
            (void)snprintf(command, sizeof command,
                           "echo '{\"unit\":99999999999999999999,' >>%s/block/journal-h-1.jsonl",
                           work);
            CU_ASSERT_EQUAL(system(command), 0);
        }
        journal_write("journal-h-1.jsonl", u, path, f.hex, ends[u]);
        shard_fingerprint_free(&f);
    }
    struct shard_store *s = reopen(true);
    static const bool whole[N_UNITS] = {true, false, true, false, false, false};
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT(is(s, u, whole[u] ? SHARD_REUSE : SHARD_MISSING, NULL));
    CU_ASSERT_EQUAL(shard_store_count(s, N_UNITS), 2);
    shard_store_close(&s);
    /* a later process of the same host and number appends behind the torn line */
    char host[80] = {0};
    (void)gethostname(host, 64);
    (void)snprintf(command, sizeof command,
                   "mv %s/block/journal-h-1.jsonl %s/block/journal-%s-%ld.jsonl", work, work, host,
                   (long)getpid());
    CU_ASSERT_EQUAL(system(command), 0);
    s = reopen(true);
    CU_ASSERT_EQUAL(put(s, 3, "1", "A", NULL), ST_OK);
    CU_ASSERT_EQUAL(put(s, 4, "1", "A", NULL), ST_OK);
    shard_store_close(&s);
    s = reopen(false);
    CU_ASSERT(is(s, 3, SHARD_REUSE, NULL));
    CU_ASSERT(is(s, 4, SHARD_REUSE, NULL));
    CU_ASSERT(is(s, 0, SHARD_REUSE, NULL));
    shard_store_close(&s);
    fixture_remove(work);
}

/* Two live processes on one store: both see each other's units after a refresh. */
static void test_two_processes(void)
{
    fixture_folder(work, sizeof work);
    struct shard_store *s = reopen(true);
    pid_t pid = fork();
    if (pid == 0) {
        struct shard_store *child = NULL;
        bool right = shard_store_open(work, "block", false, &child, NULL) == ST_OK;
        for (uint64_t u = 1; right && u < N_UNITS; u += 2)
            right = put(child, u, "1", "A", NULL) == ST_OK;
        /* both write unit 0, differently: the file decides */
        right = right && put(child, 0, "22", "A", NULL) == ST_OK;
        shard_store_close(&child);
        _exit(right ? 0 : 1);
    }
    for (uint64_t u = 2; u < N_UNITS; u += 2)
        CU_ASSERT_EQUAL(put(s, u, "1", "A", NULL), ST_OK);
    int how = 1;
    (void)waitpid(pid, &how, 0);
    CU_ASSERT(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    CU_ASSERT(is(s, 1, SHARD_MISSING, NULL));
    CU_ASSERT_EQUAL(shard_store_refresh(s, NULL), ST_OK);
    CU_ASSERT(is(s, 0, SHARD_STALE, "eps: 22"));
    CU_ASSERT_EQUAL(put(s, 0, "1", "A", NULL), ST_OK);
    shard_store_close(&s);
    s = reopen(false);
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT(is(s, u, SHARD_REUSE, NULL));
    CU_ASSERT_EQUAL(count_names("", "journal-"), 2);
    shard_store_close(&s);
    fixture_remove(work);
}

static void touch(const char *sub, const char *fmt, const char *host, long pid)
{
    char name[120], path[300];
    (void)snprintf(name, sizeof name, "unit-%08d.h5.tmp", 7);
    (void)snprintf(path, sizeof path, "%s/block/%s%s.%s.%ld", work, sub,
                   fmt[0] != '\0' ? fmt : name, host, pid);
    fixture_file(path, "x", 1);
}

static void test_clean(void)
{
    char host[80] = {0};
    (void)gethostname(host, 64);
    fill_store();
    pid_t dead = fork();
    if (dead == 0)
        _exit(0);
    (void)waitpid(dead, NULL, 0);
    pid_t living = fork();
    if (living == 0)
        for (;;)
            (void)pause();
    touch("units/", "", host, (long)dead);
    touch("units/", "", host, (long)living);
    touch("units/", "", "other-host", 1);
    touch("", "tables.h5.tmp", host, 1);
    struct shard_store *s = reopen(false);
    shard_store_close(&s);
    CU_ASSERT_EQUAL(count_names("units", ".tmp"), 3);
    s = reopen(true);
    shard_store_close(&s);
    CU_ASSERT_EQUAL(count_names("units", ".tmp"), 1);
    CU_ASSERT_EQUAL(count_names("", "tables.h5"), 0);
    CU_ASSERT_EQUAL(count_names("units", ".h5"), N_UNITS + 1);
    (void)kill(living, SIGKILL);
    (void)waitpid(living, NULL, 0);
    s = reopen(true);
    CU_ASSERT_EQUAL(count_names("units", ".tmp"), 0);
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT(is(s, u, SHARD_REUSE, NULL));
    shard_store_close(&s);
    fixture_remove(work);
}

/* More than 64 journals become one; nothing is forgotten. */
static void test_merge(void)
{
    char path[300], name[64];
    fill_store();
    for (int i = 0; i < 64; i++) {
        uint64_t u = (uint64_t)i % N_UNITS;
        struct shard_fingerprint f = fingerprint(u, "1", "A");
        unit_path(u, path, sizeof path);
        (void)snprintf(name, sizeof name, "journal-elsewhere-%d.jsonl", i);
        journal_write(name, u, path, f.hex, "\n");
        shard_fingerprint_free(&f);
    }
    CU_ASSERT_EQUAL(count_names("", "journal-"), 65);
    struct shard_store *s = reopen(false);
    shard_store_close(&s);
    CU_ASSERT_EQUAL(count_names("", "journal-"), 65);
    s = reopen(true);
    /* this process's own, which could be in use, and the merged one */
    CU_ASSERT_EQUAL(count_names("", "journal-"), 2);
    CU_ASSERT_EQUAL(count_names("", "journal-merged.jsonl"), 1);
    shard_store_close(&s);
    s = reopen(false);
    for (uint64_t u = 0; u < N_UNITS; u++)
        CU_ASSERT(is(s, u, SHARD_REUSE, NULL));
    shard_store_close(&s);
    fixture_remove(work);
}

static void test_virtual(void)
{
    struct shard_grid g = grid();
    struct format_shard_table table = {
        .route = "bulk", .output = "output", .dtype = DT_F32, .width = WIDTH};
    struct err err = {.st = ST_OK};
    char path[300];
    fill_store();
    struct shard_store *s = reopen(true);
    CU_ASSERT_EQUAL(shard_store_virtual(s, &g, &table, 1, &err), ST_OK);
    CU_ASSERT_EQUAL(count_names("", "tables.h5"), 1);
    unit_path(5, path, sizeof path);
    CU_ASSERT_EQUAL(unlink(path), 0);
    CU_ASSERT_EQUAL(shard_store_virtual(s, &g, &table, 1, &err), ST_IO);
    CU_ASSERT(fixture_says(err.message, "unit 5 (rows 80 to 80)"));
    shard_store_close(&s);
    fixture_remove(work);
}

/* Killed at any moment, twenty times: the next process finds every unit whole or missing, never
 * wrong, and ends with the bytes of an undisturbed run (N63). */
static void test_kill(void)
{
    uint8_t *calm[N_UNITS], *stormy = NULL;
    size_t sizes[N_UNITS], size = 0;
    char path[300];
    fill_store();
    for (uint64_t u = 0; u < N_UNITS; u++) {
        unit_path(u, path, sizeof path);
        CU_ASSERT_EQUAL_FATAL(file_read_all(path, SIZE_MAX, &calm[u], &sizes[u], NULL), ST_OK);
    }
    fixture_remove(work);
    fixture_folder(work, sizeof work);
    for (long round = 0; round < 20; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            struct shard_store *child = NULL;
            struct shard_lock *lock = NULL;
            if (shard_lock_take(work, SHARD_LOCK_GATE, 0, 5, &lock, NULL) != ST_OK ||
                shard_store_open(work, "block", true, &child, NULL) != ST_OK)
                _exit(1);
            for (uint64_t u = 0;; u = (u + 1) % N_UNITS)
                if (put(child, u, "1", "A", NULL) != ST_OK)
                    _exit(1);
        }
        fixture_sleep_ms(3 + round * 7 % 60);
        (void)kill(pid, SIGKILL);
        int how = 0;
        (void)waitpid(pid, &how, 0);
        CU_ASSERT(WIFSIGNALED(how));
        struct shard_store *s = reopen(false);
        for (uint64_t u = 0; u < N_UNITS; u++) {
            char why[600];
            enum shard_reuse found = check(s, u, "1", "A", why, sizeof why);
            CU_ASSERT(found == SHARD_REUSE || found == SHARD_MISSING);
        }
        shard_store_close(&s);
    }
    struct shard_store *s = reopen(true);
    CU_ASSERT_EQUAL(count_names("units", ".tmp"), 0);
    for (uint64_t u = 0; u < N_UNITS; u++) {
        if (!is(s, u, SHARD_REUSE, NULL))
            CU_ASSERT_EQUAL(put(s, u, "1", "A", NULL), ST_OK);
        unit_path(u, path, sizeof path);
        CU_ASSERT_EQUAL(file_read_all(path, SIZE_MAX, &stormy, &size, NULL), ST_OK);
        CU_ASSERT(size == sizes[u] && memcmp(stormy, calm[u], size) == 0);
        free(stormy);
        free(calm[u]);
    }
    shard_store_close(&s);
    fixture_remove(work);
}

#if TOKENTAB_FAULTS
/* A put that fails anywhere leaves no staged file, and its unit counts as missing until it is put
 * again; what was there before stays usable when the file was not replaced. */
static void test_faults(void)
{
    static const struct {
        const char *point;
        enum shard_reuse fresh; /* what a unit counts as that was never there */
    } cases[] = {{"shard_put", SHARD_MISSING},   {"shard_rename", SHARD_MISSING},
                 {"file_rename", SHARD_MISSING}, {"journal_append", SHARD_MISSING},
                 {"shard_write", SHARD_MISSING}, {"shard_close", SHARD_MISSING}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct err err = {.st = ST_OK};
        fixture_folder(work, sizeof work);
        struct shard_store *s = reopen(true);
        CU_ASSERT_EQUAL(put(s, 0, "1", "A", NULL), ST_OK);
        (void)setenv("TOKENTAB_FAULT", cases[i].point, 1);
        CU_ASSERT_EQUAL(put(s, 1, "1", "A", &err), ST_IO);
        CU_ASSERT(strchr(err.message, '\n') == NULL && strstr(err.message, work) != NULL);
        (void)unsetenv("TOKENTAB_FAULT");
        CU_ASSERT_EQUAL(count_names("units", ".tmp"), 0);
        CU_ASSERT(is(s, 1, cases[i].fresh, NULL));
        struct shard_store *later = reopen(false);
        CU_ASSERT(is(later, 1, cases[i].fresh, NULL));
        CU_ASSERT(is(later, 0, SHARD_REUSE, NULL));
        shard_store_close(&later);
        CU_ASSERT_EQUAL(put(s, 1, "1", "A", NULL), ST_OK);
        CU_ASSERT_EQUAL(put(s, 2, "1", "A", NULL), ST_OK);
        later = reopen(false);
        for (uint64_t u = 0; u < 3; u++)
            CU_ASSERT(is(later, u, SHARD_REUSE, NULL));
        shard_store_close(&later);
        shard_store_close(&s);
        fixture_remove(work);
    }
}

/* A read error while a unit is verified: it is redone, the run goes on. */
static void test_bad_sector(void)
{
    fill_store();
    struct shard_store *s = reopen(false);
    (void)setenv("TOKENTAB_FAULT", "file_read", 1);
    CU_ASSERT(is(s, 2, SHARD_DAMAGED, "unit-00000002.h5"));
    (void)unsetenv("TOKENTAB_FAULT");
    CU_ASSERT(is(s, 2, SHARD_REUSE, NULL));
    shard_store_close(&s);
    fixture_remove(work);
}
#endif

int main(void)
{
    static const struct fixture_case cases[] = {
        {"put and reopen", test_put_and_reopen},
        {"reading writes nothing", test_reading_writes_nothing},
        {"damage", test_damage},
        {"false journals", test_false_journals},
        {"torn lines", test_torn_lines},
        {"two processes", test_two_processes},
        {"clean", test_clean},
        {"merge", test_merge},
        {"virtual", test_virtual},
        {"kill", test_kill},
#if TOKENTAB_FAULTS
        {"faults", test_faults},
        {"bad sector", test_bad_sector},
#endif
    };
    return fixture_main("store", cases, sizeof cases / sizeof cases[0]);
}
