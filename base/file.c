/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux moves at most 2 GiB - 4 KiB a call; some network file systems dislike even that. */
enum { IO_CALL_MAX_BYTES = 1 << 30, DIGEST_BUFFER_BYTES = 1 << 20 };

/* An input that is wrong is the user's (ST_FORMAT); a machine that fails is ST_IO. */
static enum status open_status(int error)
{
    switch (error) {
    case EIO:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ESTALE:
    case ETIMEDOUT:
        return ST_IO;
    default:
        return ST_FORMAT;
    }
}

static int open_retry(const char *path, int flags)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, 0666);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

enum status file_open_read(const char *path, int *fd, uint64_t *size_bytes, struct err *err)
{
    /* O_NONBLOCK: opening a FIFO must be refused below, not wait for a writer. */
    int opened = open_retry(path, O_RDONLY | O_NONBLOCK);
    if (opened < 0) {
        int error = errno;
        return err_set(err, open_status(error), "%s: %s", path, strerror(error));
    }
    struct stat info;
    enum status st = ST_OK;
    if (fstat(opened, &info) != 0)
        st = err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    else if (S_ISDIR(info.st_mode))
        st = err_set(err, ST_FORMAT, "%s: %s", path, strerror(EISDIR));
    else if (!S_ISREG(info.st_mode))
        st = err_set(err, ST_FORMAT, "%s: not a regular file", path);
    if (st != ST_OK) {
        (void)close(opened);
        return st;
    }
    *fd = opened;
    if (size_bytes != NULL)
        *size_bytes = (uint64_t)info.st_size;
    return ST_OK;
}

static size_t call_size(size_t size)
{
    return size < IO_CALL_MAX_BYTES ? size : IO_CALL_MAX_BYTES;
}

static bool range_fits(uint64_t offset, size_t size)
{
    uint64_t end;
    return add_u64(offset, size, &end) && end <= (uint64_t)INT64_MAX;
}

enum status file_read_at(int fd, const char *path, uint64_t offset, void *data, size_t size,
                         struct err *err)
{
    if (!range_fits(offset, size))
        return err_set(err, ST_IO, "%s: offset %" PRIu64 ": %zu bytes are out of range", path,
                       offset, size);
    if (fault_hit("file_read"))
        return err_set(err, ST_IO, "%s: offset %" PRIu64 ": %s", path, offset, strerror(EIO));
    size_t done = 0;
    while (done < size) {
        uint64_t at = offset + done;
        ssize_t n = pread(fd, (char *)data + done, call_size(size - done), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_set(err, ST_IO, "%s: offset %" PRIu64 ": %s", path, at, strerror(errno));
        if (n == 0)
            return err_set(err, ST_IO,
                           "%s: offset %" PRIu64 ": short read, expected %zu bytes, found %zu",
                           path, offset, size, done);
        done += (size_t)n;
    }
    return ST_OK;
}

enum status file_write_at(int fd, const char *path, uint64_t offset, const void *data, size_t size,
                          struct err *err)
{
    if (!range_fits(offset, size))
        return err_set(err, ST_IO, "%s: offset %" PRIu64 ": %zu bytes are out of range", path,
                       offset, size);
    if (fault_hit("file_write"))
        return err_set(err, ST_IO, "%s: offset %" PRIu64 ": %s", path, offset, strerror(ENOSPC));
    size_t done = 0;
    while (done < size) {
        uint64_t at = offset + done;
        ssize_t n = pwrite(fd, (const char *)data + done, call_size(size - done), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return err_set(err, ST_IO, "%s: offset %" PRIu64 ": %s", path, at,
                           n < 0 ? strerror(errno) : "nothing written");
        done += (size_t)n;
    }
    return ST_OK;
}

enum status file_read_all(const char *path, size_t max_size, uint8_t **data, size_t *size,
                          struct err *err)
{
    int fd = -1;
    uint64_t size_bytes = 0;
    TRY(file_open_read(path, &fd, &size_bytes, err));
    enum status st = ST_OK;
    uint8_t *read = NULL;
    if (size_bytes > max_size || size_bytes >= SIZE_MAX) {
        st = err_set(err, ST_FORMAT, "%s: %" PRIu64 " bytes, at most %zu expected", path,
                     size_bytes, max_size);
        goto out;
    }
    read = malloc((size_t)size_bytes + 1);
    if (read == NULL) {
        st = err_nomem(err, (size_t)size_bytes + 1);
        goto out;
    }
    st = file_read_at(fd, path, 0, read, (size_t)size_bytes, err);
    if (st != ST_OK)
        goto out;
    read[size_bytes] = 0;
    *data = read;
    *size = (size_t)size_bytes;
    read = NULL;
out:
    free(read);
    (void)close(fd);
    return st;
}

/* Some network file systems refuse to sync a folder; they order the rename themselves. */
static enum status sync_fd(int fd, const char *path, struct err *err)
{
    if (fault_hit("file_sync"))
        return err_set(err, ST_IO, "%s: sync: %s", path, strerror(EIO));
    int rc;
    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    if (rc == 0)
        return ST_OK;
    int error = errno;
    struct stat info;
    if ((error == EINVAL || error == ENOTSUP) && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode))
        return ST_OK;
    return err_set(err, ST_IO, "%s: sync: %s", path, strerror(error));
}

enum status file_sync(const char *path, struct err *err)
{
    int fd = open_retry(path, O_RDONLY | O_NONBLOCK);
    if (fd < 0)
        return err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    enum status st = sync_fd(fd, path, err);
    if (close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", path, strerror(errno));
    return st;
}

static enum status sync_folder_of(const char *path, struct err *err)
{
    char *dir = path_dir(path);
    if (dir == NULL)
        return err_nomem(err, strlen(path) + 1);
    enum status st = file_sync(dir, err);
    free(dir);
    return st;
}

static enum status rename_only(const char *from, const char *to, struct err *err)
{
    if (fault_hit("file_rename"))
        return err_set(err, ST_IO, "%s: rename to %s: %s", from, to, strerror(EIO));
    if (rename(from, to) != 0)
        return err_set(err, ST_IO, "%s: rename to %s: %s", from, to, strerror(errno));
    return ST_OK;
}

enum status file_rename(const char *from, const char *to, struct err *err)
{
    TRY(rename_only(from, to, err));
    return sync_folder_of(to, err);
}

enum status file_publish(const char *path, const void *data, size_t size, struct err *err)
{
    int fd = -1;
    bool made = false;
    enum status st = ST_OK;
    char *tmp = str_printf("%s.tmp", path);
    if (tmp == NULL)
        return err_nomem(err, strlen(path) + 5);
    fd = open_retry(tmp, O_WRONLY | O_CREAT | O_TRUNC);
    if (fd < 0) {
        st = err_set(err, ST_IO, "%s: %s", tmp, strerror(errno));
        goto out;
    }
    made = true;
    st = file_write_at(fd, tmp, 0, data, size, err);
    if (st == ST_OK)
        st = sync_fd(fd, tmp, err);
    if (close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", tmp, strerror(errno));
    if (st == ST_OK)
        st = rename_only(tmp, path, err);
    if (st != ST_OK)
        goto out;
    made = false;
    st = sync_folder_of(path, err);
out:
    if (made)
        (void)unlink(tmp);
    free(tmp);
    return st;
}

static enum status make_dir(const char *path, struct err *err)
{
    /* Asked first: on automounted and read-only parents mkdir fails in other ways than EEXIST. */
    if (file_is_dir(path))
        return ST_OK;
    if (mkdir(path, 0777) == 0)
        return sync_folder_of(path, err);
    int error = errno;
    if (error == EEXIST && file_is_dir(path)) /* another rank was faster */
        return ST_OK;
    return err_set(err, ST_IO, "%s: %s", path,
                   error == EEXIST ? "exists and is not a folder" : strerror(error));
}

enum status file_make_dirs(const char *path, struct err *err)
{
    char *part = str_dup(path);
    if (part == NULL)
        return err_nomem(err, strlen(path) + 1);
    enum status st = ST_OK;
    for (char *p = part; *p != '\0' && st == ST_OK; p++) {
        if (p == part || *p != '/' || p[-1] == '/')
            continue;
        *p = '\0';
        st = make_dir(part, err);
        *p = '/';
    }
    if (st == ST_OK)
        st = make_dir(part, err);
    free(part);
    return st;
}

bool file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

struct file_hashes {
    struct sha256_state *sha; /* NULL: not wanted */
    struct digest_state *xxh; /* NULL: not wanted */
};

static enum status hash_fd(int fd, const char *path, uint64_t size_bytes,
                           const struct file_hashes *hashes, struct err *err)
{
    void *buffer = NULL;
    TRY(mem_alloc(DIGEST_BUFFER_BYTES, 1, &buffer, err));
    enum status st = ST_OK;
    for (uint64_t at = 0; at < size_bytes && st == ST_OK; at += DIGEST_BUFFER_BYTES) {
        size_t size = (size_t)min_u64(size_bytes - at, DIGEST_BUFFER_BYTES);
        st = file_read_at(fd, path, at, buffer, size, err);
        if (st == ST_OK && hashes->xxh != NULL)
            digest_update(hashes->xxh, buffer, size);
        if (st == ST_OK && hashes->sha != NULL)
            st = sha256_update(hashes->sha, buffer, size, err);
    }
    free(buffer);
    return st;
}

enum status file_digests(const char *path, char sha256_hex[SHA256_HEX_SIZE], struct digest *xxh3,
                         uint64_t *size_bytes, struct err *err)
{
    struct file_hashes hashes = {NULL, NULL};
    int fd = -1;
    uint64_t size = 0;
    TRY(file_open_read(path, &fd, &size, err));
    enum status st = ST_OK;
    if (sha256_hex != NULL)
        st = sha256_open(&hashes.sha, err);
    if (st == ST_OK && xxh3 != NULL)
        st = digest_open(&hashes.xxh, err);
    if (st == ST_OK)
        st = hash_fd(fd, path, size, &hashes, err);
    if (st == ST_OK && sha256_hex != NULL)
        st = sha256_finish(hashes.sha, sha256_hex, err);
    if (st == ST_OK && xxh3 != NULL)
        *xxh3 = digest_now(hashes.xxh);
    if (st == ST_OK && size_bytes != NULL)
        *size_bytes = size;
    digest_close(&hashes.xxh);
    sha256_close(&hashes.sha);
    (void)close(fd);
    return st;
}

char *path_join(const char *dir, const char *name)
{
    if (name[0] == '/' || dir == NULL || dir[0] == '\0')
        return str_dup(name);
    return str_printf("%s%s%s", dir, dir[strlen(dir) - 1] == '/' ? "" : "/", name);
}

/* Where the last part begins; slashes at the end belong to it. */
static size_t base_offset(const char *path)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    while (end > 0 && path[end - 1] != '/')
        end--;
    return end;
}

char *path_dir(const char *path)
{
    size_t size = base_offset(path);
    if (size == 0)
        return str_dup(path[0] == '/' ? "/" : ".");
    while (size > 1 && path[size - 1] == '/')
        size--;
    char *dir = str_dup(path);
    if (dir != NULL)
        dir[size] = '\0';
    return dir;
}

const char *path_base(const char *path)
{
    return path + base_offset(path);
}
