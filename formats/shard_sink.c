/* SPDX-License-Identifier: Apache-2.0 */
/* How HDF5 writes our files.  When a write of its own driver fails (disk full, quota), HDF5 1.10
 * cannot close the file any more and crashes while the process ends.  This driver keeps the first
 * error and goes on as if all were well, so that the library closes in good order and the caller
 * then reports the error with its place.  It takes no locks either: a staged file has one writer
 * under a name of its own, and some file systems have no locks. */
#include "formats/shard_internal.h"

#if H5_VERSION_GE(1, 13, 0)
#include <H5FDdevelop.h>
#endif

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SINK_MAX_ADDRESS (((haddr_t)1 << 63) - 1)

/* What HDF5 holds of an open file. */
struct sink_file {
    H5FD_t pub; /* first: the library casts */
    struct shard_sink *sink;
    haddr_t eoa, eof;
};

static H5FD_t *sink_open(const char *name, unsigned flags, hid_t fapl, haddr_t max_address)
{
    (void)name;
    (void)flags;
    (void)max_address;
    struct shard_sink *const *info = H5Pget_driver_info(fapl);
    struct sink_file *f = info == NULL ? NULL : calloc(1, sizeof *f);
    if (f == NULL)
        return NULL;
    f->sink = *info;
    return &f->pub;
}

static herr_t sink_close(H5FD_t *file)
{
    free(file);
    return 0;
}

/* As sec2, so that the layout is the one of any other writer. */
static herr_t sink_query(const H5FD_t *file, unsigned long *flags)
{
    (void)file;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA | H5FD_FEAT_DEFAULT_VFD_COMPATIBLE;
    return 0;
}

static haddr_t sink_get_eoa(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct sink_file *)file)->eoa;
}

static herr_t sink_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t address)
{
    (void)type;
    ((struct sink_file *)file)->eoa = address;
    return 0;
}

static haddr_t sink_get_eof(const H5FD_t *file, H5FD_mem_t type)
{
    (void)type;
    return ((const struct sink_file *)file)->eof;
}

static void sink_fail(struct shard_sink *s, int error, haddr_t address)
{
    if (s->error != 0)
        return;
    s->error = error;
    s->error_at = address;
}

/* What the file does not hold reads as zeros. */
static herr_t sink_read(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size,
                        void *buffer)
{
    struct sink_file *f = (struct sink_file *)file;
    uint8_t *to = buffer;
    (void)type;
    (void)dxpl;
    while (size > 0) {
        ssize_t n = pread(f->sink->fd, to, size, (off_t)address);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            if (n < 0)
                sink_fail(f->sink, errno, address);
            memset(to, 0, size);
            return 0;
        }
        to += n;
        address += (haddr_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static herr_t sink_write(H5FD_t *file, H5FD_mem_t type, hid_t dxpl, haddr_t address, size_t size,
                         const void *buffer)
{
    struct sink_file *f = (struct sink_file *)file;
    const uint8_t *from = buffer;
    (void)type;
    (void)dxpl;
    if (address + size > f->eof)
        f->eof = address + size;
    while (size > 0 && f->sink->error == 0) {
        ssize_t n = pwrite(f->sink->fd, from, size, (off_t)address);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            sink_fail(f->sink, n < 0 ? errno : ENOSPC, address);
            break;
        }
        from += n;
        address += (haddr_t)n;
        size -= (size_t)n;
    }
    return 0;
}

static herr_t sink_truncate(H5FD_t *file, hid_t dxpl, hbool_t closing)
{
    struct sink_file *f = (struct sink_file *)file;
    (void)dxpl;
    (void)closing;
    if (f->eof != f->eoa && f->sink->error == 0 && ftruncate(f->sink->fd, (off_t)f->eoa) != 0)
        sink_fail(f->sink, errno, f->eoa);
    f->eof = f->eoa;
    return 0;
}

static const H5FD_class_t sink_class = {
#if H5_VERSION_GE(1, 13, 0)
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)517,
#endif
    .name = "tokentab_sink",
    .maxaddr = SINK_MAX_ADDRESS,
    .fc_degree = H5F_CLOSE_STRONG,
    .fapl_size = sizeof(struct shard_sink *),
    .open = sink_open,
    .close = sink_close,
    .query = sink_query,
    .get_eoa = sink_get_eoa,
    .set_eoa = sink_set_eoa,
    .get_eof = sink_get_eof,
    .read = sink_read,
    .write = sink_write,
    .truncate = sink_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

enum status shard_sink_open(const char *path, struct shard_sink *s, struct err *err)
{
    *s = (struct shard_sink){.path = path, .driver = H5I_INVALID_HID, .fd = -1};
    s->fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return s->fd >= 0 ? ST_OK : err_set(err, ST_IO, "%s: %s", path, strerror(errno));
}

herr_t shard_sink_plist(struct shard_sink *s, hid_t fapl)
{
    if (s->driver < 0)
        s->driver = H5FDregister(&sink_class);
    return s->driver < 0 ? -1 : H5Pset_driver(fapl, s->driver, &s);
}

enum status shard_sink_status(const struct shard_sink *s, struct err *err)
{
    if (s->error == 0)
        return ST_OK;
    return err_set(err, ST_IO, "%s: at byte %" PRIu64 ": %s", s->path, s->error_at,
                   strerror(s->error));
}

enum status shard_sink_finish(struct shard_sink *s, struct err *err)
{
    enum status st = shard_sink_status(s, err);
    if (st == ST_OK && s->fd >= 0 && fsync(s->fd) != 0)
        st = err_set(err, ST_IO, "%s: %s", s->path, strerror(errno));
    if (s->fd >= 0 && close(s->fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: %s", s->path, strerror(errno));
    if (s->driver >= 0)
        H5FDunregister(s->driver);
    s->fd = -1;
    s->driver = H5I_INVALID_HID;
    return st;
}
