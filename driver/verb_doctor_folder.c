/* SPDX-License-Identifier: Apache-2.0 */
/* Can a run use this folder: writing, locks, HDF5, room? */
#include "driver/doctor_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROBE_SIZE = 4096, PROBE_ROWS = 16, PROBE_WIDTH = 4 };
/* Less room than this is worth a warning: a few shards of a wide block. */
static const uint64_t LITTLE_SPACE = (uint64_t)1 << 30;

static void add_result(struct doctor *d, const char *name, enum status st, const struct err *err,
                       const char *good)
{
    if (st == ST_OK)
        doctor_add(d, "folder", name, DOCTOR_OK, "%s", good);
    else
        doctor_add(d, "folder", name, DOCTOR_FAIL, "%s", err->message);
}

/* ---- write ----------------------------------------------------------------------------------- */

static enum status write_test(const char *dir, struct err *err)
{
    uint8_t data[PROBE_SIZE], *back = NULL;
    size_t size = 0;
    char *path = path_join(dir, "write");
    if (path == NULL)
        return err_nomem(err, strlen(dir));
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 37 >> 3);
    enum status st = file_publish(path, data, sizeof data, err);
    if (st == ST_OK)
        st = file_read_all(path, sizeof data, &back, &size, err);
    if (st == ST_OK && (size != sizeof data || memcmp(back, data, size) != 0))
        st = err_set(err, ST_IO, "%s: other bytes came back than were written", path);
    (void)unlink(path);
    free(back);
    free(path);
    return st;
}

/* ---- locks ----------------------------------------------------------------------------------- */

/* A lock that a second process gets too is none. */
static enum status second_process(const char *dir, struct err *err)
{
    pid_t child = fork();
    if (child < 0)
        return err_set(err, ST_IO, "fork: %s", strerror(errno));
    if (child == 0) {
        struct shard_lock *lock = NULL;
        struct err ignored = {0};
        enum status st = shard_lock_take(dir, SHARD_LOCK_GATE, 0, 0, &lock, &ignored);
        _exit(st == ST_LOCKED ? 0 : 1);
    }
    int wait_status = 0;
    while (waitpid(child, &wait_status, 0) < 0)
        if (errno != EINTR)
            return err_set(err, ST_IO, "waitpid: %s", strerror(errno));
    if (!WIFEXITED(wait_status) || WEXITSTATUS(wait_status) != 0)
        return err_set(err, ST_IO,
                       "%s: two processes hold the same lock; this file system does not lock, use "
                       "another for --work",
                       dir);
    return ST_OK;
}

static enum status lock_test(const char *dir, struct err *err)
{
    struct shard_lock *lock = NULL;
    enum status st = shard_lock_take(dir, SHARD_LOCK_GATE, 0, 0, &lock, err);
    if (st == ST_OK)
        st = second_process(dir, err);
    shard_lock_release(&lock);
    char *path = path_join(dir, "lock");
    if (path != NULL)
        (void)unlink(path);
    free(path);
    return st;
}

/* ---- HDF5 ------------------------------------------------------------------------------------ */

static enum status read_unit(const char *path, const float *expected, struct err *err)
{
    struct format_shard_reader *reader = NULL;
    float back[PROBE_ROWS * PROBE_WIDTH] = {0};
    TRY(format_shard_reader_open(path, &reader, err));
    enum status st = format_shard_reader_rows(reader, "bulk", "output", 0, PROBE_ROWS, back, err);
    format_shard_reader_close(&reader);
    if (st == ST_OK && memcmp(back, expected, sizeof back) != 0)
        st = err_set(err, ST_FORMAT, "%s: other values came back than were written", path);
    return st;
}

/* A unit file, written and read as a run does. */
static enum status hdf5_test(const char *dir, struct err *err)
{
    float data[PROBE_ROWS * PROBE_WIDTH];
    for (size_t i = 0; i < PROBE_ROWS * PROBE_WIDTH; i++)
        data[i] = (float)i / 7;
    struct digest digest = digest_of(data, sizeof data);
    double statistics[1] = {0};
    struct format_shard_table table = {
        .route = "bulk", .output = "output", .dtype = DT_F32, .width = PROBE_WIDTH, .data = data};
    struct format_shard shard = {.n_rows = PROBE_ROWS,
                                 .tables = &table,
                                 .n_tables = 1,
                                 .statistics = statistics,
                                 .n_records = 1,
                                 .n_fields = 1,
                                 .statistics_columns = "probe",
                                 .table_digests = &digest,
                                 .fingerprint = "doctor"};
    char *path = path_join(dir, "unit.h5");
    if (path == NULL)
        return err_nomem(err, strlen(dir));
    enum status st = format_shard_write(path, &shard, err);
    if (st == ST_OK)
        st = read_unit(path, data, err);
    (void)unlink(path);
    free(path);
    return st;
}

/* ---- room ------------------------------------------------------------------------------------ */

static void space_test(struct doctor *d, const char *dir)
{
    struct statvfs fs;
    char free_text[32], total_text[32];
    if (statvfs(dir, &fs) != 0) {
        doctor_add(d, "folder", "free space", DOCTOR_WARN, "%s: %s", dir, strerror(errno));
        return;
    }
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize,
             total = (uint64_t)fs.f_blocks * fs.f_frsize;
    doctor_add(d, "folder", "free space", bytes < LITTLE_SPACE ? DOCTOR_WARN : DOCTOR_OK,
               "%s of %s", str_bytes(bytes, free_text, sizeof free_text),
               str_bytes(total, total_text, sizeof total_text));
    if (fs.f_files > 0 && fs.f_favail < 1000)
        doctor_add(d, "folder", "free inodes", DOCTOR_WARN, "%llu; a run makes a file a unit",
                   (unsigned long long)fs.f_favail);
}

void doctor_folder(struct doctor *d, const char *dir)
{
    struct err err = {0};
    if (!file_is_dir(dir)) {
        doctor_add(d, "folder", "write", DOCTOR_FAIL, "%s: no such folder", dir);
        return;
    }
    doctor_add(d, "folder", "path", DOCTOR_NOTE, "%s", dir);
    char *probe = str_printf("%s/.tokentab-doctor-%ld", dir, (long)getpid());
    enum status st = probe == NULL ? err_nomem(&err, strlen(dir)) : file_make_dirs(probe, &err);
    if (st == ST_OK)
        st = write_test(probe, &err);
    add_result(d, "write", st, &err, "written, synced, renamed, read back");
    if (st == ST_OK) {
        err_clear(&err);
        st = lock_test(probe, &err);
        add_result(d, "lock", st, &err, "taken; a second process is kept out");
        err_clear(&err);
        st = hdf5_test(probe, &err);
        add_result(d, "HDF5 file", st, &err, "a unit file written and read back");
    }
    if (probe != NULL)
        (void)rmdir(probe);
    free(probe);
    space_test(d, dir);
}
