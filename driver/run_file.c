/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "driver/driver_internal.h"

enum { RUN_FILE_EVERY_S = 1 };

static double now_s(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_REALTIME, &t) != 0)
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void put(struct driver_run_file *f)
{
    struct err ignored = {0};
    if (f->path == NULL)
        return;
    f->now.updated = now_s();
    f->written_s = clock_s();
    if (format_progress_write(f->path, &f->now, &ignored) != ST_OK)
        log_debug("%s", ignored.message);
}

static uint64_t part_rows(const struct driver_block *b, uint64_t part, uint64_t n_parts,
                          uint64_t *n_shards)
{
    uint64_t rows = 0;
    *n_shards = 0;
    for (uint64_t s = part; s < b->grid.n_shards; s += n_parts) {
        uint64_t first = 0, count = 0, first_row = 0, last_row = 0, n = 0;
        shard_grid_units(&b->grid, (uint32_t)s, &first, &count);
        shard_grid_rows(&b->grid, first, &first_row, &n);
        shard_grid_rows(&b->grid, first + count - 1, &last_row, &n);
        rows += last_row + n - first_row;
        ++*n_shards;
    }
    return rows;
}

void driver_run_file_open(struct driver_run_file *f, struct comm *comm,
                          const struct driver_block *b, const struct shard_store *store,
                          const struct driver_opts *opts)
{
    char name[96] = "progress.json";
    if (opts->task_count > 0)
        snprintf(name, sizeof name, "progress-part-%llu-of-%llu.json",
                 (unsigned long long)opts->task_index, (unsigned long long)opts->task_count);
    *f = (struct driver_run_file){.path = shard_store_path(store, name)};
    f->now = (struct format_progress){.block = b->graph->name,
                                      .host = str_dup(comm_host(comm)),
                                      .pid = (uint64_t)getpid(),
                                      .ranks = (uint64_t)comm_size(comm),
                                      .part = opts->task_index,
                                      .n_parts = opts->task_count,
                                      .units_total = b->grid.n_units,
                                      .started = now_s()};
    uint64_t n_parts = max_u64(1, opts->task_count);
    f->now.tokens = part_rows(b, opts->task_index, n_parts, &f->now.shards);
    f->now.state = str_dup("running");
    put(f);
}

void driver_run_file_step(struct driver_run_file *f)
{
    if (clock_s() - f->written_s >= RUN_FILE_EVERY_S)
        put(f);
}

void driver_run_file_close(struct driver_run_file *f, const char *state, const char *reason)
{
    free(f->now.state);
    free(f->now.last_error);
    f->now.state = str_dup(state);
    f->now.last_error = str_dup(reason);
    f->now.shards_in_flight = 0;
    put(f);
    free(f->now.state);
    free(f->now.last_error);
    free(f->now.host);
    free(f->path);
    *f = (struct driver_run_file){0};
}
