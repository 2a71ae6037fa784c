/* SPDX-License-Identifier: Apache-2.0 */
/* Head, directory and seek table of a packed file, and the whole of it by one process. */
#include "formats/packed.h"
#include "formats/packed_internal.h"

#include <zstd.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum status format_packed_head(struct bytes *out, struct err *err)
{
    *out = (struct bytes){0};
    bytes_put_u32(out, PACKED_SKIPPABLE);
    bytes_put_u32(out, PACKED_HEAD_SIZE - 8);
    bytes_append(out, PACKED_HEAD_MAGIC, 8);
    bytes_put_u32(out, PACKED_VERSION);
    bytes_put_u32(out, ZSTD_versionNumber());
    bytes_put_u32(out, PACKED_LEVEL);
    bytes_put_u32(out, 0);
    return out->failed ? err_nomem(err, PACKED_HEAD_SIZE) : ST_OK;
}

static void put_layout(struct bytes *out, const struct packed_layout *l)
{
    bytes_put_u32(out, (uint32_t)l->n_tensors);
    for (size_t i = 0; i < l->n_tensors; i++) {
        const struct packed_tensor *t = &l->tensors[i];
        bytes_put_str(out, t->name);
        bytes_put_str(out, dtype_name(t->dtype));
        bytes_put_u32(out, t->rank);
        bytes_put_u64(out, t->rows);
        bytes_put_u64(out, t->width);
        bytes_put_u64(out, t->rows_per_chunk);
        bytes_put_u32(out, (uint32_t)t->n_segments);
        for (size_t k = 0; k < t->n_segments; k++) {
            const struct packed_segment *s = &t->segments[k];
            bytes_put_u64(out, s->width);
            bytes_put_u32(out, s->has_base);
            bytes_put_u32(out, s->base_tensor);
            bytes_put_u64(out, s->base_column);
        }
    }
}

/* The directory's records and, beside them, the seek table's entries. */
static enum status put_records(const struct packed_layout *l, const struct bytes *entries,
                               struct bytes *directory, struct bytes *seek, uint32_t *n_frames,
                               struct err *err)
{
    struct bytes_reader in = {.data = entries->data, .size = entries->size};
    uint64_t offset = PACKED_HEAD_SIZE;
    for (size_t i = 0; i < l->n_tensors; i++) {
        const struct packed_tensor *t = &l->tensors[i];
        size_t n_planes = dtype_size(t->dtype);
        for (uint64_t chunk = 0; chunk < format_packed_chunks(t); chunk++) {
            const uint8_t *digest = bytes_get(&in, PACKED_DIGEST);
            if (digest == NULL)
                return err_set(err, ST_INTERNAL, "packed payload: entries of chunks are missing");
            bytes_put_u64(directory, offset);
            bytes_append(directory, digest, PACKED_DIGEST);
            for (size_t k = 0; k < t->n_segments; k++) {
                struct packed_coded c;
                packed_coded_get(&in, &c, n_planes);
                packed_coded_put(directory, &c, n_planes);
                size_t n = (size_t)(packed_chunk_rows(t, chunk) * t->segments[k].width);
                for (size_t p = 0; p < packed_coded_frames(&c, n_planes); p++, ++*n_frames) {
                    bytes_put_u32(seek, c.sizes[p]);
                    bytes_put_u32(seek, (uint32_t)packed_frame_content(&c, n));
                }
                offset += packed_coded_bytes(&c);
            }
        }
    }
    if (in.failed || in.at != in.size)
        return err_set(err, ST_INTERNAL, "packed payload: entries do not match the chunks");
    return ST_OK;
}

static enum status put_tail(const struct packed_layout *l, const struct bytes *entries,
                            struct bytes *directory, struct bytes *seek, struct bytes *out,
                            struct err *err)
{
    uint32_t n_frames = 2;
    bytes_append(directory, PACKED_DIRECTORY_MAGIC, 8);
    put_layout(directory, l);
    bytes_put_u32(seek, PACKED_HEAD_SIZE);
    bytes_put_u32(seek, 0);
    TRY(put_records(l, entries, directory, seek, &n_frames, err));
    if (directory->failed || seek->failed)
        return err_nomem(err, directory->size);
    struct digest d = digest_of(directory->data, directory->size);
    bytes_append(directory, d.bytes, sizeof d.bytes);
    if (directory->size > UINT32_MAX - 8 ||
        seek->size > UINT32_MAX - PACKED_SEEK_ENTRY - PACKED_SEEK_FOOTER)
        return err_set(err, ST_FORMAT, "packed payload: too many chunks for one file");
    bytes_put_u32(seek, (uint32_t)directory->size + 8);
    bytes_put_u32(seek, 0);
    bytes_put_u32(out, PACKED_SKIPPABLE);
    bytes_put_u32(out, (uint32_t)directory->size);
    bytes_append(out, directory->data, directory->size);
    bytes_put_u32(out, PACKED_SEEK_FRAME);
    bytes_put_u32(out, (uint32_t)seek->size + PACKED_SEEK_FOOTER);
    bytes_append(out, seek->data, seek->size);
    bytes_put_u32(out, n_frames);
    bytes_put_u8(out, 0);
    bytes_put_u32(out, PACKED_SEEK_MAGIC);
    return directory->failed || out->failed ? err_nomem(err, out->size) : ST_OK;
}

enum status format_packed_tail(const struct packed_layout *l, const struct bytes *entries,
                               struct bytes *out, struct err *err)
{
    struct bytes directory = {0}, seek = {0};
    *out = (struct bytes){0};
    enum status st = put_tail(l, entries, &directory, &seek, out, err);
    bytes_free(&directory);
    bytes_free(&seek);
    if (st != ST_OK)
        bytes_free(out);
    return st;
}

/* ---- reports ------------------------------------------------------------------------------- */

static void report_add(struct packed_report *r, const struct packed_coded *c, uint64_t raw,
                       bool has_base)
{
    uint64_t stored = packed_coded_bytes(c);
    r->raw_bytes += raw;
    if (c->mode == MODE_PLANES)
        r->planes_bytes += stored;
    else if (c->mode == MODE_DELTA)
        r->delta_bytes += stored;
    else
        r->sparse_bytes += stored;
    if (!has_base)
        return;
    r->raw_of_delta += raw;
    r->stored_of_delta += stored;
    r->planes_of_delta += c->plain_size;
}

enum status format_packed_reports(const struct packed_layout *l, const struct bytes *entries,
                                  struct packed_report *reports, struct err *err)
{
    struct bytes_reader in = {.data = entries->data, .size = entries->size};
    for (size_t i = 0; i < l->n_tensors; i++) {
        const struct packed_tensor *t = &l->tensors[i];
        size_t element = dtype_size(t->dtype);
        reports[i] = (struct packed_report){0};
        for (uint64_t chunk = 0; chunk < format_packed_chunks(t); chunk++) {
            (void)bytes_get(&in, PACKED_DIGEST);
            for (size_t k = 0; k < t->n_segments && !in.failed; k++) {
                struct packed_coded c;
                packed_coded_get(&in, &c, element);
                report_add(&reports[i], &c,
                           packed_chunk_rows(t, chunk) * t->segments[k].width * element,
                           t->segments[k].has_base);
            }
        }
    }
    if (in.failed || in.at != in.size)
        return err_set(err, ST_INTERNAL, "packed payload: entries do not match the chunks");
    return ST_OK;
}

/* ---- one process --------------------------------------------------------------------------- */

static enum status append_file(int fd, const char *path, uint64_t *at, const struct bytes *b,
                               struct err *err)
{
    TRY(file_write_at(fd, path, *at, b->data, b->size, err));
    *at += b->size;
    return ST_OK;
}

static enum status write_chunks(int fd, const char *path, const struct packed_layout *l,
                                format_packed_rows_fn rows, void *ctx, struct bytes *entries,
                                uint64_t *at, struct err *err)
{
    uint64_t n = format_packed_total_chunks(l);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t tensor;
        uint64_t chunk;
        struct packed_chunk c;
        format_packed_locate(l, i, &tensor, &chunk);
        TRY(format_packed_chunk_encode(l, tensor, chunk, rows, ctx, &c, err));
        bytes_append(entries, c.entry.data, c.entry.size);
        enum status st = append_file(fd, path, at, &c.data, err);
        format_packed_chunk_free(&c);
        TRY(st);
        if (entries->failed)
            return err_nomem(err, entries->size);
    }
    return ST_OK;
}

enum status format_packed_write(const char *path, const struct packed_layout *l,
                                format_packed_rows_fn rows, void *ctx,
                                struct packed_report *reports, struct err *err)
{
    struct bytes entries = {0}, part = {0};
    uint64_t at = 0;
    TRY(packed_layout_check(l, path, err));
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    enum status st = format_packed_head(&part, err);
    if (st == ST_OK)
        st = append_file(fd, path, &at, &part, err);
    bytes_free(&part);
    if (st == ST_OK)
        st = write_chunks(fd, path, l, rows, ctx, &entries, &at, err);
    if (st == ST_OK)
        st = format_packed_tail(l, &entries, &part, err);
    if (st == ST_OK)
        st = append_file(fd, path, &at, &part, err);
    bytes_free(&part);
    if (st == ST_OK && reports != NULL)
        st = format_packed_reports(l, &entries, reports, err);
    if (st == ST_OK && fsync(fd) != 0)
        st = err_set(err, ST_IO, "%s: fsync: %s", path, strerror(errno));
    if (close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", path, strerror(errno));
    if (st != ST_OK)
        (void)unlink(path);
    bytes_free(&entries);
    return st;
}
