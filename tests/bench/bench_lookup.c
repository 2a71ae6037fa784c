/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of libtokentab: rows a second and bytes a second of gathers, beside memcpy of as many
 * bytes.
 *
 *   bench_lookup [ROW_BYTES [TABLE_MIB]]     without arguments: a list of row sizes
 *
 * Cold means that neither page cache nor frame cache holds anything.  Makes its recipes in the
 * working directory and removes nothing, so that a second run finds them there. */
#define _GNU_SOURCE
#include "tests/lookup/lookup_fixture.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <time.h>

enum { REPEATS = 9, MAX_THREADS = 2, COLD_ROWS = 200 };

struct job {
    struct tokentab_recipe *recipe;
    const int64_t *ids;
    size_t n;
    uint8_t *out;
    size_t out_bytes;
    pthread_barrier_t *start;
};

static void gather(const struct job *j)
{
    struct tokentab_error err;
    if (tokentab_gather_rows(j->recipe, j->ids, j->n, 0, j->out, j->out_bytes, &err) !=
        TOKENTAB_OK) {
        printf("%s\n", err.message);
        exit(1);
    }
}

static void *gather_thread(void *ctx)
{
    const struct job *j = ctx;
    pthread_barrier_wait(j->start);
    gather(j);
    return NULL;
}

/* Seconds of one gather by each of `threads` threads at once. */
static double time_gather(const struct job *jobs, int threads)
{
    double best = 1e30;
    for (int k = 0; k < REPEATS; k++) {
        pthread_t ids[MAX_THREADS];
        struct job copies[MAX_THREADS];
        pthread_barrier_t start;
        pthread_barrier_init(&start, NULL, (unsigned)threads + 1);
        for (int i = 0; i < threads; i++) {
            copies[i] = jobs[i];
            copies[i].start = &start;
            if (pthread_create(&ids[i], NULL, gather_thread, &copies[i]) != 0)
                exit(1);
        }
        pthread_barrier_wait(&start);
        double begin = clock_s();
        for (int i = 0; i < threads; i++)
            pthread_join(ids[i], NULL);
        double took = clock_s() - begin;
        best = took < best ? took : best;
        pthread_barrier_destroy(&start);
    }
    return best;
}

static double time_memcpy(uint8_t *dst, const uint8_t *src, size_t size)
{
    double best = 1e30;
    for (int k = 0; k < REPEATS; k++) {
        double begin = clock_s();
        memcpy(dst, src, size);
        __asm__ volatile("" ::: "memory");
        double took = clock_s() - begin;
        best = took < best ? took : best;
    }
    return best;
}

/* The same rows in the same order by memcpy alone: what no gather can beat by much. */
static double time_rows(uint8_t *dst, const uint8_t *src, const int64_t *ids, size_t n, size_t row)
{
    double best = 1e30;
    for (int k = 0; k < REPEATS; k++) {
        double begin = clock_s();
        for (size_t i = 0; i < n; i++)
            memcpy(dst + i * row, src + (size_t)ids[i] * row, row);
        __asm__ volatile("" ::: "memory");
        double took = clock_s() - begin;
        best = took < best ? took : best;
    }
    return best;
}

static void drop_file(const struct folder *f)
{
    char *path = path_join(f->dir, f->r->payload_file);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        (void)close(fd);
    }
    free(path);
}

static int compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median and 90th percentile of single rows, each with cold caches. */
static void bench_cold(const struct folder *f, struct tokentab_recipe *recipe, uint64_t rows,
                       size_t row_bytes)
{
    double took[COLD_ROWS], decoded[COLD_ROWS];
    uint8_t *row = fixture_zeroed(row_bytes, 1);
    uint64_t state = 77;
    for (int i = 0; i < COLD_ROWS; i++) {
        int64_t id = (int64_t)(folder_random(&state) % rows);
        struct job j = {.recipe = recipe, .ids = &id, .n = 1, .out = row, .out_bytes = row_bytes};
        tokentab_trim(recipe);
        drop_file(f);
        double begin = clock_s();
        gather(&j);
        took[i] = clock_s() - begin;
        gather(&j);
        /* the page cache is warm now, the mapping and the frame cache are not */
        tokentab_trim(recipe);
        begin = clock_s();
        gather(&j);
        decoded[i] = clock_s() - begin;
    }
    qsort(took, COLD_ROWS, sizeof *took, compare_doubles);
    qsort(decoded, COLD_ROWS, sizeof *decoded, compare_doubles);
    printf("  one cold row: disk %.1f us (90 %%: %.1f), page cache %.1f us (90 %%: %.1f)\n",
           took[COLD_ROWS / 2] * 1e6, took[COLD_ROWS * 9 / 10] * 1e6, decoded[COLD_ROWS / 2] * 1e6,
           decoded[COLD_ROWS * 9 / 10] * 1e6);
    free(row);
}

static void bench_warm(struct tokentab_recipe *recipe, const int64_t *ids, size_t n,
                       size_t row_bytes, const char *order, double copy_s, double rows_s)
{
    for (int threads = 1; threads <= MAX_THREADS; threads++) {
        struct job jobs[MAX_THREADS];
        for (int i = 0; i < threads; i++) {
            jobs[i] =
                (struct job){.recipe = recipe, .ids = ids, .n = n, .out_bytes = n * row_bytes};
            void *out = NULL;
            struct err err = {0};
            if (mem_calloc(n, row_bytes, &out, &err) != ST_OK)
                exit(1);
            jobs[i].out = out;
        }
        double s = time_gather(jobs, threads);
        double bytes = (double)n * (double)row_bytes * threads;
        printf("  warm, %-6s, %d thread%s: %7.2f M rows/s, %6.2f GB/s, %4.0f %% of one memcpy, "
               "%4.0f %% of memcpy row by row\n",
               order, threads, threads > 1 ? "s" : " ", (double)n * threads / s * 1e-6,
               bytes / s * 1e-9, 100 * copy_s * threads / s, 100 * rows_s * threads / s);
        for (int i = 0; i < threads; i++)
            free(jobs[i].out);
    }
}

static void bench(size_t row_bytes, uint64_t table_bytes, bool packed)
{
    char dir[64];
    uint64_t rows = table_bytes / row_bytes;
    size_t n = (size_t)(table_bytes / row_bytes);
    snprintf(dir, sizeof dir, "bench.%zu.%s", row_bytes, packed ? "ttz" : "mapped");
    struct folder *f =
        folder_make_chunked(dir, fixture_lookup(rows, row_bytes / 4, DT_F32), packed, 0);
    struct tokentab_recipe *recipe = NULL;
    struct tokentab_error terr;
    if (tokentab_open(dir, NULL, &recipe, &terr) != TOKENTAB_OK) {
        printf("%s\n", terr.message);
        exit(1);
    }
    int64_t *ids = fixture_zeroed(n, sizeof *ids);
    uint8_t *copy = fixture_zeroed(n, row_bytes);
    uint64_t state = 3;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int64_t)(folder_random(&state) % rows);
    double copy_s = time_memcpy(copy, f->data[0], n * row_bytes);
    printf("%s, rows of %zu bytes, %" PRIu64 " of them, payload %.1f MiB; memcpy %.2f GB/s\n",
           packed ? "packed" : "mapped", row_bytes, rows, (double)f->r->payload_bytes / 1048576,
           (double)n * (double)row_bytes / copy_s * 1e-9);
    bench_warm(recipe, ids, n, row_bytes, "random", copy_s,
               time_rows(copy, f->data[0], ids, n, row_bytes));
    qsort(ids, n, sizeof *ids, compare_ids);
    bench_warm(recipe, ids, n, row_bytes, "sorted", copy_s,
               time_rows(copy, f->data[0], ids, n, row_bytes));
    bench_cold(f, recipe, rows, row_bytes);
    tokentab_close(&recipe);
    free(copy);
    free(ids);
    folder_free(&f);
}

int main(int argc, char **argv)
{
    static const uint64_t SIZES[] = {16, 64, 256, 1024, 2048, 6144};
    uint64_t row_bytes = 0, mib = 64;
    if ((argc > 1 && (!str_to_u64(argv[1], &row_bytes) || row_bytes == 0 || row_bytes % 4 != 0)) ||
        (argc > 2 && (!str_to_u64(argv[2], &mib) || mib == 0)) || argc > 3) {
        fprintf(stderr, "usage: bench_lookup [ROW_BYTES [TABLE_MIB]]\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        for (int packed = 0; packed < 2; packed++)
            if (row_bytes == 0 || i == 0)
                bench((size_t)(row_bytes > 0 ? row_bytes : SIZES[i]), mib << 20, packed);
    return 0;
}
