/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_system.h"
#include "shards/shards.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* WORK/lock is locked by byte ranges.  The file's own bytes hold "host pid" of the last gate
 * holder, for messages alone; locks may lie beyond its end.
 *
 *   byte                kind   taken
 *   GATE_AT             gate   by a run, exclusively; by array tasks, shared
 *   RANKS_AT + index    rank   by each rank of a run, exclusively
 *   TASKS_AT + index    task   by each array task, exclusively
 *
 * A run that has the gate then waits until nobody holds a rank or a task byte: ranks of a killed
 * run may still be writing when its rank 0, and with it the gate, is already gone.
 *
 * These are POSIX record locks.  The kernel drops them when the process ends in whatever way, so no
 * stale file blocks anyone; they also work between hosts where the file system supports them. Their
 * trap: a process that closes ANY descriptor of the file loses ALL its locks on it, and a process
 * never conflicts with itself.  So: one lock a process, and no shard_lock_holder in a process that
 * holds one. */
#define GATE_AT ((off_t)0)
#define RANKS_AT ((off_t)1 << 32)
#define TASKS_AT ((off_t)2 << 32)

enum { POLL_MS = 50, HOLDER_TEXT = 320 };

struct shard_lock {
    char *path; /* owned */
    int fd;
    enum shard_lock_kind kind;
    uint32_t index;
};

/* What stands in the way. */
struct blocker {
    bool blocks;
    pid_t pid; /* 0: unknown */
    const char *what;
};

static enum status cannot_lock(const char *path, int error, struct err *err)
{
    char fs[FILE_SYSTEM_NAME_SIZE];
    return err_set(
        err, ST_IO,
        "%s: the file system (%s) cannot lock: %s; put --work on a local file system, or "
        "mount this one with locks (NFS: without nolock, lockd running; Lustre: -o flock)",
        path, file_system_name(path, fs), strerror(error));
}

static struct flock range(short type, off_t first, off_t count)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = first, .l_len = count};
}

/* Try to lock a range without waiting; *got says whether. */
static enum status range_try(const struct shard_lock *l, short type, off_t first, off_t count,
                             bool *got, struct err *err)
{
    int error = ENOLCK;
    if (!fault_hit("lock_take")) {
        int rc;
        struct flock f = range(type, first, count);
        do {
            rc = fcntl(l->fd, F_SETLK, &f);
        } while (rc != 0 && errno == EINTR);
        *got = rc == 0;
        if (rc == 0 || errno == EACCES || errno == EAGAIN)
            return ST_OK;
        error = errno;
    }
    return cannot_lock(l->path, error, err);
}

/* Who else holds something in a range, without taking it. */
static enum status range_ask(int fd, const char *path, off_t first, off_t count,
                             struct blocker *out, struct err *err)
{
    struct flock f = range(F_WRLCK, first, count);
    if (fcntl(fd, F_GETLK, &f) != 0)
        return cannot_lock(path, errno, err);
    *out = (struct blocker){.blocks = f.l_type != F_UNLCK, .pid = f.l_pid > 0 ? f.l_pid : 0};
    if (f.l_start >= TASKS_AT)
        out->what = "an array task";
    else if (f.l_start >= RANKS_AT)
        out->what = "a rank";
    else
        out->what = f.l_type == F_RDLCK ? "an array task" : "a run";
    return ST_OK;
}

/* One attempt at everything that the kind needs.  What was got is kept for the next attempt. */
static enum status attempt(const struct shard_lock *l, struct blocker *b, struct err *err)
{
    bool got = false;
    off_t own =
        l->kind == SHARD_LOCK_TASK ? TASKS_AT + (off_t)l->index : RANKS_AT + (off_t)l->index;
    if (l->kind != SHARD_LOCK_RANK) {
        TRY(range_try(l, l->kind == SHARD_LOCK_GATE ? F_WRLCK : F_RDLCK, GATE_AT, 1, &got, err));
        if (!got) {
            TRY(range_ask(l->fd, l->path, GATE_AT, 1, b, err));
            b->blocks = true; /* the holder may have gone since */
            return ST_OK;
        }
    }
    if (l->kind == SHARD_LOCK_GATE)
        return range_ask(l->fd, l->path, RANKS_AT, 0, b, err);
    TRY(range_try(l, F_WRLCK, own, 1, &got, err));
    b->blocks = !got;
    if (got)
        return ST_OK;
    TRY(range_ask(l->fd, l->path, own, 1, b, err));
    b->blocks = true;
    return ST_OK;
}

/* " on HOST" when the file's text is about `pid`, else "". */
static void host_of(int fd, pid_t pid, char *out, size_t out_size)
{
    char text[HOLDER_TEXT] = {0}, host[HOLDER_TEXT];
    long written = 0;
    out[0] = '\0';
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n > 0 && sscanf(text, "%255s %ld", host, &written) == 2 && written == (long)pid)
        (void)snprintf(out, out_size, " on %s", host);
}

static enum status refuse(const struct shard_lock *l, const struct blocker *b, double wait_s,
                          struct err *err)
{
    char holder[HOLDER_TEXT + 32], host[HOLDER_TEXT + 8];
    host_of(l->fd, b->pid, host, sizeof host);
    if (b->pid > 0)
        (void)snprintf(holder, sizeof holder, "pid %ld%s", (long)b->pid, host);
    else
        (void)snprintf(holder, sizeof holder, "a process that this host cannot name");
    return err_set(err, ST_LOCKED, "%s: held by %s (%s); waited %.0f s", l->path,
                   b->what != NULL ? b->what : "another process", holder, wait_s);
}

/* Somebody who deletes WORK/lock makes the next process lock another file: only a lock on the file
 * that has the name counts. */
static bool is_current(const struct shard_lock *l)
{
    struct stat mine, named;
    return fstat(l->fd, &mine) == 0 && stat(l->path, &named) == 0 && mine.st_ino == named.st_ino &&
           mine.st_dev == named.st_dev;
}

static enum status file_open(struct shard_lock *l, struct err *err)
{
    if (l->fd >= 0)
        (void)close(l->fd);
    do {
        l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    } while (l->fd < 0 && errno == EINTR);
    return l->fd >= 0 ? ST_OK : err_set(err, ST_IO, "%s: %s", l->path, strerror(errno));
}

/* For messages alone, so a failure is nobody's concern. */
static void sign(const struct shard_lock *l)
{
    char host[256] = {0}, text[HOLDER_TEXT];
    if (gethostname(host, sizeof host - 1) != 0 || host[0] == '\0')
        (void)snprintf(host, sizeof host, "unknown");
    int n = snprintf(text, sizeof text, "%s %ld\n", host, (long)getpid());
    if (n > 0 && ftruncate(l->fd, 0) == 0 && pwrite(l->fd, text, (size_t)n, 0) != n)
        (void)ftruncate(l->fd, 0);
}

static enum status take(struct shard_lock *l, double wait_s, bool (*stop)(void), struct err *err)
{
    double deadline = clock_s() + wait_s;
    TRY(file_open(l, err));
    for (;;) {
        struct blocker b = {.blocks = false};
        TRY(attempt(l, &b, err));
        if (!b.blocks && is_current(l))
            break;
        if (!b.blocks)
            TRY(file_open(l, err));
        else if (clock_s() >= deadline)
            return refuse(l, &b, wait_s, err);
        if (stop != NULL && stop())
            return err_set(err, ST_STOPPED, "%s: stopped by a signal while waiting for its holder",
                           l->path);
        struct timespec pause = {.tv_sec = 0, .tv_nsec = (long)POLL_MS * 1000000};
        (void)nanosleep(&pause, NULL);
    }
    if (l->kind == SHARD_LOCK_GATE)
        sign(l);
    return ST_OK;
}

enum status shard_lock_take(const char *work, enum shard_lock_kind kind, uint32_t index,
                            double wait_s, struct shard_lock **out, struct err *err)
{
    return shard_lock_take_until(work, kind, index, wait_s, NULL, out, err);
}

enum status shard_lock_take_until(const char *work, enum shard_lock_kind kind, uint32_t index,
                                  double wait_s, bool (*stop)(void), struct shard_lock **out,
                                  struct err *err)
{
    *out = NULL;
    TRY(file_make_dirs(work, err));
    struct shard_lock *l = calloc(1, sizeof *l);
    if (l == NULL)
        return err_nomem(err, sizeof *l);
    l->fd = -1;
    l->kind = kind;
    l->index = index;
    l->path = path_join(work, "lock");
    enum status st =
        l->path == NULL ? err_nomem(err, strlen(work) + 6) : take(l, wait_s, stop, err);
    if (st != ST_OK)
        shard_lock_release(&l);
    *out = l;
    return st;
}

void shard_lock_release(struct shard_lock **lock)
{
    if (lock == NULL || *lock == NULL)
        return;
    if ((*lock)->fd >= 0)
        (void)close((*lock)->fd); /* drops them all */
    free((*lock)->path);
    free(*lock);
    *lock = NULL;
}

void shard_lock_holder(const char *work, char *buf, size_t buf_size)
{
    if (buf_size == 0)
        return;
    buf[0] = '\0';
    char *path = path_join(work, "lock");
    int fd = path != NULL ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    struct blocker b = {.blocks = false};
    if (fd >= 0 && range_ask(fd, path, GATE_AT, 0, &b, NULL) == ST_OK && b.blocks) {
        char host[HOLDER_TEXT + 8];
        host_of(fd, b.pid, host, sizeof host);
        if (b.pid > 0)
            (void)snprintf(buf, buf_size, "pid %ld%s", (long)b.pid, host);
        else
            (void)snprintf(buf, buf_size, "another host");
    }
    if (fd >= 0)
        (void)close(fd);
    free(path);
}
