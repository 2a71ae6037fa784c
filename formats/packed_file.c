/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of any file: its bytes as elements of one kind, and what is left over as a tail. */
#define _DEFAULT_SOURCE
#include "formats/packed.h"
#include "formats/packed_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Kinds whose planes differ; the earliest of equally good ones is taken. */
static const enum dtype FILE_KINDS[] = {DT_U8, DT_F32, DT_BF16, DT_F64, DT_U16, DT_U32, DT_U64};
enum { FILE_N_KINDS = sizeof FILE_KINDS / sizeof *FILE_KINDS, FILE_SAMPLES = 8 };
static const uint64_t FILE_SAMPLE_BYTES = (uint64_t)64 << 10;
#define FILE_DATA "data"
#define FILE_TAIL "tail"

struct source_file {
    const char *path;
    int fd;
    uint64_t size;
    const struct packed_layout *layout;
};

static enum status source_rows(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                               struct err *err)
{
    const struct source_file *f = ctx;
    const struct packed_tensor *t = &f->layout->tensors[tensor];
    size_t element = dtype_size(t->dtype);
    uint64_t offset = first * element;
    if (tensor == 1) /* the tail lies behind the data */
        offset += f->layout->tensors[0].rows * dtype_size(f->layout->tensors[0].dtype);
    return file_read_at(f->fd, f->path, offset, dst, (size_t)n * element, err);
}

static enum status file_tensor(struct packed_tensor *t, const char *name, enum dtype dt,
                               uint64_t rows, struct err *err)
{
    *t = (struct packed_tensor){.name = str_dup(name),
                                .dtype = dt,
                                .rank = 1,
                                .rows = rows,
                                .width = 1,
                                .rows_per_chunk = PACKED_FILE_CHUNK / dtype_size(dt),
                                .segments = calloc(1, sizeof *t->segments),
                                .n_segments = 1};
    if (t->name == NULL || t->segments == NULL)
        return err_nomem(err, sizeof *t->segments);
    t->segments[0].width = 1;
    return ST_OK;
}

static enum status file_layout(uint64_t size, enum dtype dt, struct packed_layout **out,
                               struct err *err)
{
    size_t element = dtype_size(dt);
    struct packed_layout *l = calloc(1, sizeof *l);
    *out = l;
    if (l == NULL)
        return err_nomem(err, sizeof *l);
    l->tensors = calloc(2, sizeof *l->tensors);
    if (l->tensors == NULL)
        return err_nomem(err, 2 * sizeof *l->tensors);
    l->n_tensors = 1;
    TRY(file_tensor(&l->tensors[0], FILE_DATA, dt, size / element, err));
    if (size % element == 0)
        return ST_OK;
    l->n_tensors = 2;
    return file_tensor(&l->tensors[1], FILE_TAIL, DT_U8, size % element, err);
}

/* ---- choosing the kind --------------------------------------------------------------------- */

static enum status sample_kinds(const struct source_file *f, uint64_t at, uint8_t *window,
                                uint64_t totals[FILE_N_KINDS], struct err *err)
{
    size_t n = (size_t)min_u64(FILE_SAMPLE_BYTES, f->size - at) / 8 * 8;
    struct packed_coder *coder = NULL;
    if (n == 0)
        return ST_OK;
    TRY(file_read_at(f->fd, f->path, at, window, n, err));
    enum status st = packed_coder_open(&coder, err);
    for (size_t i = 0; i < FILE_N_KINDS && st == ST_OK; i++) {
        struct packed_coded coded;
        struct bytes data = {0};
        st = packed_segment_encode(coder, FILE_KINDS[i], window, NULL,
                                   n / dtype_size(FILE_KINDS[i]), &coded, &data, err);
        totals[i] += data.size;
        bytes_free(&data);
    }
    packed_coder_close(&coder);
    return st;
}

static enum status choose_kind(const struct source_file *f, enum dtype *out, struct err *err)
{
    uint64_t totals[FILE_N_KINDS] = {0}, last = UINT64_MAX;
    void *window = NULL;
    size_t best = 0;
    TRY(mem_alloc((size_t)FILE_SAMPLE_BYTES, 1, &window, err));
    enum status st = ST_OK;
    for (uint64_t i = 0; i < FILE_SAMPLES && st == ST_OK; i++) {
        uint64_t at = f->size / FILE_SAMPLES * i / 8 * 8;
        if (at == last)
            continue;
        last = at;
        st = sample_kinds(f, at, window, totals, err);
    }
    for (size_t i = 1; i < FILE_N_KINDS; i++)
        if (totals[i] < totals[best])
            best = i;
    *out = FILE_KINDS[best];
    free(window);
    return st;
}

enum status format_pack_file(const char *from, const char *to, enum dtype dtype, struct err *err)
{
    struct source_file f = {.path = from, .fd = -1};
    struct packed_layout *l = NULL;
    char *tmp = str_printf("%s.tmp", to);
    if (tmp == NULL)
        return err_nomem(err, strlen(to));
    enum status st = file_open_read(from, &f.fd, &f.size, err);
    if (st == ST_OK && dtype == DT_UNKNOWN)
        st = choose_kind(&f, &dtype, err);
    if (st == ST_OK)
        st = file_layout(f.size, dtype, &l, err);
    f.layout = l;
    if (st == ST_OK)
        st = format_packed_write(tmp, l, source_rows, &f, NULL, err);
    if (st == ST_OK && (st = file_rename(tmp, to, err)) != ST_OK)
        (void)unlink(tmp);
    format_packed_layout_free(&l);
    if (f.fd >= 0)
        (void)close(f.fd);
    free(tmp);
    return st;
}

/* ---- unpacking ----------------------------------------------------------------------------- */

/* What format_pack_file writes: data, and a tail shorter than one of its elements. */
static enum status check_file_layout(const struct packed_layout *l, const char *path,
                                     uint64_t *size, struct err *err)
{
    bool good = l->n_tensors <= 2 && strcmp(l->tensors[0].name, FILE_DATA) == 0;
    size_t element = dtype_size(l->tensors[0].dtype);
    for (size_t i = 0; i < l->n_tensors && good; i++)
        good = l->tensors[i].rank == 1;
    if (good && l->n_tensors == 2)
        good = strcmp(l->tensors[1].name, FILE_TAIL) == 0 && l->tensors[1].dtype == DT_U8 &&
               l->tensors[1].rows > 0 && l->tensors[1].rows < element;
    if (!good)
        return err_set(err, ST_FORMAT, "%s: a packed payload of tables, not a packed file", path);
    *size = l->tensors[0].rows * element + (l->n_tensors == 2 ? l->tensors[1].rows : 0);
    return ST_OK;
}

static const uint64_t UNPACK_TRIM = (uint64_t)16 << 20;

static enum status unpack_to(struct format_packed *p, int fd, const char *path, struct err *err)
{
    const struct packed_layout *l = format_packed_layout(p);
    uint64_t at = 0, trimmed = 0;
    for (uint32_t i = 0; i < l->n_tensors; i++) {
        size_t element = dtype_size(l->tensors[i].dtype);
        for (uint64_t row = 0; row < l->tensors[i].rows;) {
            struct packed_rows held;
            TRY(format_packed_acquire(p, i, row, &held, err));
            enum status st = file_write_at(fd, path, at, held.data, (size_t)held.n * element, err);
            at += held.n * element;
            row += held.n;
            format_packed_release(p, &held);
            TRY(st);
            if (at - trimmed >= UNPACK_TRIM) { /* what was read of the mapping is not read again */
                format_packed_trim(p);
                trimmed = at;
            }
        }
    }
    if (fsync(fd) != 0)
        return err_set(err, ST_IO, "%s: fsync: %s", path, strerror(errno));
    return ST_OK;
}

enum status format_unpack_file(const char *from, const char *to, uint64_t max_size, struct err *err)
{
    struct format_packed *p = NULL;
    uint64_t size = 0;
    int fd = -1;
    char *tmp = NULL;
    TRY(format_packed_open(from, PACKED_FILE_CHUNK, &p, err));
    enum status st = check_file_layout(format_packed_layout(p), from, &size, err);
    if (st == ST_OK && max_size > 0 && size > max_size)
        st = err_set(err, ST_FORMAT, "%s: unpacks to %" PRIu64 " bytes, the limit is %" PRIu64,
                     from, size, max_size);
    if (st == ST_OK && (tmp = str_printf("%s.tmp", to)) == NULL)
        st = err_nomem(err, strlen(to));
    if (st != ST_OK)
        goto out;
    fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = err_set(err, ST_IO, "%s: %s", tmp, strerror(errno));
        goto out;
    }
    st = unpack_to(p, fd, tmp, err);
    if (close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", tmp, strerror(errno));
    if (st == ST_OK)
        st = file_rename(tmp, to, err);
    if (st != ST_OK)
        (void)unlink(tmp);
out:
    free(tmp);
    format_packed_close(&p);
    return st;
}
