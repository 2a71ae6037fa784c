/* SPDX-License-Identifier: Apache-2.0 */
/* A packed file, mapped: its directory is checked at opening, chunks are decoded into a bounded
 * cache. */
#define _DEFAULT_SOURCE
#include "formats/packed.h"
#include "formats/packed_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CACHE_BUCKETS = 4096, CODERS_KEPT = 16 };
static const size_t CACHE_DEFAULT = (size_t)64 << 20;
static const uint64_t VERIFY_TRIM = (uint64_t)8 << 20;

/* A decoded chunk. */
struct packed_slot {
    uint32_t tensor;
    uint64_t chunk;
    uint8_t *data;
    size_t size;
    unsigned pins;
    struct packed_slot *next;          /* in its bucket */
    struct packed_slot *newer, *older; /* by last use */
};

struct format_packed {
    char *path;
    const uint8_t *map;
    size_t size;
    struct packed_layout *layout;
    const uint8_t **records; /* of each tensor: its part of the directory */
    size_t cache_bytes;
    /* all below under the lock */
    pthread_mutex_t lock;
    bool has_lock;
    struct packed_slot *buckets[CACHE_BUCKETS];
    struct packed_slot *newest, *oldest;
    size_t cached_bytes;
    struct packed_coder *coders[CODERS_KEPT]; /* idle ones */
    size_t n_coders;
};

/* ---- directory ----------------------------------------------------------------------------- */

static enum status damaged(const struct format_packed *p, struct err *err, const char *what)
{
    return err_set(err, ST_FORMAT, "%s: packed file is damaged: %s", p->path, what);
}

static uint32_t get_u32(const uint8_t *p)
{
    struct bytes_reader in = {.data = p, .size = 4};
    return bytes_get_u32(&in);
}

static enum status read_segments(struct format_packed *p, struct bytes_reader *in,
                                 struct packed_tensor *t, struct err *err)
{
    uint32_t n = bytes_get_u32(in);
    uint64_t column = 0;
    if (in->failed || n == 0 || n > (in->size - in->at) / 24)
        return damaged(p, err, "a tensor's number of segments");
    t->segments = calloc(n, sizeof *t->segments);
    if (t->segments == NULL)
        return err_nomem(err, n * sizeof *t->segments);
    for (; t->n_segments < n; t->n_segments++) {
        struct packed_segment *s = &t->segments[t->n_segments];
        s->column = column;
        s->width = bytes_get_u64(in);
        uint32_t has_base = bytes_get_u32(in);
        s->has_base = has_base == 1;
        s->base_tensor = bytes_get_u32(in);
        s->base_column = bytes_get_u64(in);
        if (in->failed || has_base > 1 || !add_u64(column, s->width, &column))
            return damaged(p, err, "a tensor's segments");
    }
    return ST_OK;
}

static enum status read_tensor(struct format_packed *p, struct bytes_reader *in,
                               struct packed_tensor *t, struct err *err)
{
    char *dtype = NULL;
    t->name = bytes_get_str(in);
    if (t->name != NULL)
        dtype = bytes_get_str(in);
    if (dtype != NULL)
        t->dtype = dtype_from_name(dtype, strlen(dtype));
    bool read = dtype != NULL;
    free(dtype);
    t->rank = bytes_get_u32(in);
    t->rows = bytes_get_u64(in);
    t->width = bytes_get_u64(in);
    t->rows_per_chunk = bytes_get_u64(in);
    if (!read || in->failed || !str_is_name(t->name)) /* the name stands in messages */
        return damaged(p, err, "a tensor's description");
    return read_segments(p, in, t, err);
}

static enum status read_layout(struct format_packed *p, struct bytes_reader *in, struct err *err)
{
    uint32_t n = bytes_get_u32(in);
    if (in->failed || n == 0 || n > PACKED_MAX_TENSORS || n > (in->size - in->at) / 60)
        return damaged(p, err, "the number of tensors");
    p->layout = calloc(1, sizeof *p->layout);
    if (p->layout == NULL)
        return err_nomem(err, sizeof *p->layout);
    p->layout->tensors = calloc(n, sizeof *p->layout->tensors);
    p->records = calloc(n, sizeof *p->records);
    if (p->layout->tensors == NULL || p->records == NULL)
        return err_nomem(err, n * sizeof *p->layout->tensors);
    p->layout->n_tensors = n;
    for (uint32_t i = 0; i < n; i++)
        TRY(read_tensor(p, in, &p->layout->tensors[i], err));
    return packed_layout_check(p->layout, p->path, err);
}

static size_t record_size(const struct packed_tensor *t)
{
    return 8 + packed_entry_size(t);
}

static enum status chunk_fault(const struct format_packed *p, uint32_t tensor, uint64_t chunk,
                               struct err *err, const char *what)
{
    return err_set(err, ST_FORMAT, "%s: tensor \"%s\", chunk %" PRIu64 ": %s", p->path,
                   p->layout->tensors[tensor].name, chunk, what);
}

/* Modes and sizes of one segment make sense, whatever its frames hold. */
static bool coded_is_sane(const struct packed_coded *c, const struct packed_segment *s,
                          size_t n_planes, uint64_t n_elements)
{
    if (c->mode >= MODE_COUNT || (c->mode != MODE_PLANES && !s->has_base))
        return false;
    if ((c->mode == MODE_SPARSE) != (c->content_size != 0) ||
        c->content_size > 4 + n_elements * (n_planes + 5) || (!s->has_base && c->plain_size != 0))
        return false;
    size_t n_frames = packed_coded_frames(c, n_planes);
    for (size_t k = 0; k < n_planes; k++)
        if ((c->sizes[k] != 0) != (k < n_frames))
            return false;
    return true;
}

/* Records follow each other without gaps, and the seek table says the same. */
static enum status check_records(const struct format_packed *p, const uint8_t *seek,
                                 uint32_t n_frames, uint64_t data_end, struct err *err)
{
    uint64_t offset = PACKED_HEAD_SIZE;
    uint32_t frame = 1;
    for (uint32_t i = 0; i < p->layout->n_tensors; i++) {
        const struct packed_tensor *t = &p->layout->tensors[i];
        size_t n_planes = dtype_size(t->dtype);
        for (uint64_t chunk = 0; chunk < format_packed_chunks(t); chunk++) {
            struct bytes_reader in = {.data = p->records[i] + chunk * record_size(t),
                                      .size = record_size(t)};
            if (bytes_get_u64(&in) != offset)
                return chunk_fault(p, i, chunk, err, "its place in the directory is wrong");
            (void)bytes_get(&in, PACKED_DIGEST);
            for (size_t k = 0; k < t->n_segments; k++) {
                struct packed_coded c;
                uint64_t n = packed_chunk_rows(t, chunk) * t->segments[k].width;
                packed_coded_get(&in, &c, n_planes);
                if (!coded_is_sane(&c, &t->segments[k], n_planes, n) ||
                    packed_coded_bytes(&c) > data_end - offset)
                    return chunk_fault(p, i, chunk, err, "its record in the directory is wrong");
                for (size_t f = 0; f < packed_coded_frames(&c, n_planes); f++, frame++)
                    if (frame >= n_frames ||
                        get_u32(seek + (size_t)frame * PACKED_SEEK_ENTRY) != c.sizes[f] ||
                        get_u32(seek + (size_t)frame * PACKED_SEEK_ENTRY + 4) !=
                            packed_frame_content(&c, (size_t)n))
                        return chunk_fault(p, i, chunk, err, "the seek table disagrees");
                offset += packed_coded_bytes(&c);
            }
        }
    }
    if (offset != data_end || frame + 1 != n_frames)
        return damaged(p, err, "data that no chunk owns");
    return ST_OK;
}

static enum status read_directory(struct format_packed *p, const uint8_t *data, size_t size,
                                  struct err *err)
{
    struct digest found, want;
    if (size < 8 + PACKED_DIGEST || memcmp(data, PACKED_DIRECTORY_MAGIC, 8) != 0)
        return damaged(p, err, "no directory");
    found = digest_of(data, size - PACKED_DIGEST);
    memcpy(want.bytes, data + size - PACKED_DIGEST, PACKED_DIGEST);
    if (!digest_equal(&found, &want))
        return damaged(p, err, "the digest of its directory");
    struct bytes_reader in = {.data = data, .size = size - PACKED_DIGEST, .at = 8};
    TRY(read_layout(p, &in, err));
    for (uint32_t i = 0; i < p->layout->n_tensors; i++) {
        const struct packed_tensor *t = &p->layout->tensors[i];
        uint64_t bytes;
        if (!mul_u64(format_packed_chunks(t), record_size(t), &bytes) || bytes > in.size - in.at)
            return damaged(p, err, "the directory is shorter than its chunks");
        p->records[i] = data + in.at;
        in.at += (size_t)bytes;
    }
    return in.at == in.size ? ST_OK : damaged(p, err, "the directory is longer than its chunks");
}

static enum status check_head(const struct format_packed *p, struct err *err)
{
    if (p->size < PACKED_HEAD_SIZE + 8 + PACKED_SEEK_FOOTER ||
        get_u32(p->map) != PACKED_SKIPPABLE || get_u32(p->map + 4) != PACKED_HEAD_SIZE - 8 ||
        memcmp(p->map + 8, PACKED_HEAD_MAGIC, 8) != 0)
        return err_set(err, ST_FORMAT, "%s: not a packed file (no head)", p->path);
    uint32_t version = get_u32(p->map + 16);
    if (version != PACKED_VERSION)
        return err_set(err, ST_FORMAT, "%s: packed version %" PRIu32 ", newest known %d", p->path,
                       version, PACKED_VERSION);
    return ST_OK;
}

/* From the end: seek table, directory, chunks. */
static enum status read_tail(struct format_packed *p, struct err *err)
{
    const uint8_t *footer = p->map + p->size - PACKED_SEEK_FOOTER;
    uint32_t n_frames = get_u32(footer);
    if (get_u32(footer + 5) != PACKED_SEEK_MAGIC || footer[4] != 0)
        return damaged(p, err, "no seek table at its end (cut, or bytes behind it)");
    uint64_t table = (uint64_t)n_frames * PACKED_SEEK_ENTRY;
    if (n_frames < 2 || table + PACKED_SEEK_FOOTER + 8 + PACKED_HEAD_SIZE > p->size)
        return damaged(p, err, "the size of its seek table");
    const uint8_t *seek = footer - table;
    if (get_u32(seek - 8) != PACKED_SEEK_FRAME || get_u32(seek - 4) != table + PACKED_SEEK_FOOTER)
        return damaged(p, err, "the frame of its seek table");
    uint64_t at = (uint64_t)(seek - 8 - p->map);
    uint64_t directory = get_u32(footer - PACKED_SEEK_ENTRY);
    if (directory < 8 || directory > at - PACKED_HEAD_SIZE || get_u32(footer - 4) != 0 ||
        get_u32(seek) != PACKED_HEAD_SIZE || get_u32(seek + 4) != 0)
        return damaged(p, err, "the seek table's first or last entry");
    const uint8_t *frame = p->map + (at - directory);
    if (get_u32(frame) != PACKED_SKIPPABLE || get_u32(frame + 4) != directory - 8)
        return damaged(p, err, "the frame of its directory");
    TRY(read_directory(p, frame + 8, (size_t)directory - 8, err));
    return check_records(p, seek, n_frames, at - directory, err);
}

/* ---- life ---------------------------------------------------------------------------------- */

static enum status map_file(struct format_packed *p, struct err *err)
{
    int fd = -1;
    uint64_t size = 0;
    TRY(file_open_read(p->path, &fd, &size, err));
    enum status st = ST_OK;
    if (size == 0 || !u64_to_size(size, &p->size)) {
        st = err_set(err, ST_FORMAT, "%s: not a packed file (%" PRIu64 " bytes)", p->path, size);
    } else {
        void *map = mmap(NULL, p->size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
            st = err_set(err, errno == ENOMEM ? ST_NOMEM : ST_IO, "%s: mmap: %s", p->path,
                         strerror(errno));
        else
            p->map = map;
    }
    (void)close(fd);
    return st;
}

enum status format_packed_open(const char *path, size_t cache_bytes, struct format_packed **out,
                               struct err *err)
{
    *out = NULL;
    struct format_packed *p = calloc(1, sizeof *p);
    if (p == NULL)
        return err_nomem(err, sizeof *p);
    p->cache_bytes = cache_bytes > 0 ? cache_bytes : CACHE_DEFAULT;
    p->path = str_dup(path);
    enum status st = p->path != NULL ? ST_OK : err_nomem(err, strlen(path));
    if (st == ST_OK && pthread_mutex_init(&p->lock, NULL) != 0)
        st = err_set(err, ST_NOMEM, "%s: no lock", path);
    p->has_lock = st == ST_OK;
    if (st == ST_OK)
        st = map_file(p, err);
    if (st == ST_OK)
        st = check_head(p, err);
    if (st == ST_OK)
        st = read_tail(p, err);
    if (st == ST_OK)
        *out = p;
    else
        format_packed_close(&p);
    return st;
}

static void free_slot(struct packed_slot *s)
{
    free(s->data);
    free(s);
}

void format_packed_close(struct format_packed **packed)
{
    if (packed == NULL || *packed == NULL)
        return;
    struct format_packed *p = *packed;
    for (struct packed_slot *s = p->newest; s != NULL;) {
        struct packed_slot *older = s->older;
        free_slot(s);
        s = older;
    }
    for (size_t i = 0; i < p->n_coders; i++)
        packed_coder_close(&p->coders[i]);
    if (p->map != NULL) {
        union {
            const uint8_t *borrowed;
            void *owned;
        } map = {.borrowed = p->map};
        (void)munmap(map.owned, p->size);
    }
    if (p->has_lock)
        (void)pthread_mutex_destroy(&p->lock);
    format_packed_layout_free(&p->layout);
    free(p->records);
    free(p->path);
    free(p);
    *packed = NULL;
}

const struct packed_layout *format_packed_layout(const struct format_packed *p)
{
    return p->layout;
}

uint64_t format_packed_file_size(const struct format_packed *p)
{
    return p->size;
}

const uint8_t *format_packed_bytes(const struct format_packed *p)
{
    return p->map;
}

enum status format_packed_file_reports(const struct format_packed *p, struct packed_report *reports,
                                       struct err *err)
{
    struct bytes entries = {0};
    for (size_t i = 0; i < p->layout->n_tensors; i++) {
        const struct packed_tensor *t = &p->layout->tensors[i];
        for (uint64_t chunk = 0; chunk < format_packed_chunks(t); chunk++)
            bytes_append(&entries, p->records[i] + chunk * record_size(t) + 8,
                         packed_entry_size(t));
    }
    enum status st = entries.failed ? err_nomem(err, entries.size)
                                    : format_packed_reports(p->layout, &entries, reports, err);
    bytes_free(&entries);
    return st;
}

/* ---- cache --------------------------------------------------------------------------------- */

static size_t bucket_of(uint32_t tensor, uint64_t chunk)
{
    return (size_t)((chunk * 0x9E3779B97F4A7C15u + tensor * 0xBF58476D1CE4E5B9u) >> 52) %
           CACHE_BUCKETS;
}

static void list_remove(struct format_packed *p, struct packed_slot *s)
{
    *(s->newer != NULL ? &s->newer->older : &p->newest) = s->older;
    *(s->older != NULL ? &s->older->newer : &p->oldest) = s->newer;
}

static void list_add(struct format_packed *p, struct packed_slot *s)
{
    s->newer = NULL;
    s->older = p->newest;
    *(p->newest != NULL ? &p->newest->newer : &p->oldest) = s;
    p->newest = s;
}

static struct packed_slot *cache_find(struct format_packed *p, uint32_t tensor, uint64_t chunk)
{
    struct packed_slot *s = p->buckets[bucket_of(tensor, chunk)];
    while (s != NULL && (s->tensor != tensor || s->chunk != chunk))
        s = s->next;
    if (s != NULL) {
        s->pins++;
        list_remove(p, s);
        list_add(p, s);
    }
    return s;
}

/* Drop the least used chunks that nobody holds until `limit` is kept. */
static void cache_shrink(struct format_packed *p, size_t limit)
{
    struct packed_slot *s = p->oldest;
    while (s != NULL && p->cached_bytes > limit) {
        struct packed_slot *newer = s->newer;
        if (s->pins == 0) {
            struct packed_slot **at = &p->buckets[bucket_of(s->tensor, s->chunk)];
            while (*at != s)
                at = &(*at)->next;
            *at = s->next;
            list_remove(p, s);
            p->cached_bytes -= s->size;
            free_slot(s);
        }
        s = newer;
    }
}

static struct packed_coder *coder_take(struct format_packed *p)
{
    struct packed_coder *c = NULL;
    (void)pthread_mutex_lock(&p->lock);
    if (p->n_coders > 0)
        c = p->coders[--p->n_coders];
    (void)pthread_mutex_unlock(&p->lock);
    return c;
}

static void coder_give(struct format_packed *p, struct packed_coder *c)
{
    (void)pthread_mutex_lock(&p->lock);
    if (c != NULL && p->n_coders < CODERS_KEPT) {
        p->coders[p->n_coders++] = c;
        c = NULL;
    }
    (void)pthread_mutex_unlock(&p->lock);
    packed_coder_close(&c);
}

/* ---- decoding ------------------------------------------------------------------------------ */

/* Columns of the base for rows [first, first + n), contiguous. */
static enum status fetch_base(struct format_packed *p, const struct packed_segment *s,
                              uint64_t first, uint64_t n, uint8_t *dst, struct err *err)
{
    const struct packed_tensor *b = &p->layout->tensors[s->base_tensor];
    size_t element = dtype_size(b->dtype), size = (size_t)s->width * element;
    size_t stride = packed_row_bytes(b), offset = (size_t)s->base_column * element;
    struct packed_rows held = {0};
    enum status st = ST_OK;
    for (uint64_t i = 0; i < n && st == ST_OK; i++, dst += size) {
        uint64_t row = b->rows == 1 ? 0 : first + i;
        if (held.slot == NULL || row - held.first >= held.n) {
            format_packed_release(p, &held);
            st = format_packed_acquire(p, s->base_tensor, row, &held, err);
        }
        if (st == ST_OK)
            memcpy(dst, held.data + (size_t)(row - held.first) * stride + offset, size);
    }
    format_packed_release(p, &held);
    return st;
}

/* What decoding a chunk works with: three buffers of its decoded size. */
struct decoding {
    struct packed_coder *coder;
    uint8_t *segment, *scratch, *base;
};

static enum status decode_segments(struct format_packed *p, const struct decoding *d,
                                   uint32_t tensor, uint64_t chunk, uint8_t *dst, struct err *err)
{
    const struct packed_tensor *t = &p->layout->tensors[tensor];
    size_t element = dtype_size(t->dtype), stride = packed_row_bytes(t);
    uint64_t n_rows = packed_chunk_rows(t, chunk), offset;
    struct bytes_reader in = {.data = p->records[tensor] + chunk * record_size(t),
                              .size = record_size(t)};
    offset = bytes_get_u64(&in);
    struct digest want, found;
    const uint8_t *digest = bytes_get(&in, PACKED_DIGEST);
    memcpy(want.bytes, digest, PACKED_DIGEST);
    for (size_t i = 0; i < t->n_segments; i++) {
        const struct packed_segment *s = &t->segments[i];
        struct packed_coded c;
        size_t size = (size_t)s->width * element;
        bool whole = t->n_segments == 1;
        packed_coded_get(&in, &c, element);
        if (c.mode != MODE_PLANES)
            TRY(fetch_base(p, s, chunk * t->rows_per_chunk, n_rows, d->base, err));
        TRY(packed_segment_decode(d->coder, t->dtype, &c, p->map + offset, d->base,
                                  (size_t)(n_rows * s->width), whole ? dst : d->segment, d->scratch,
                                  err));
        for (uint64_t k = 0; !whole && k < n_rows; k++)
            memcpy(dst + (size_t)k * stride + (size_t)s->column * element,
                   d->segment + (size_t)k * size, size);
        offset += packed_coded_bytes(&c);
    }
    found = digest_of(dst, (size_t)n_rows * stride);
    if (!digest_equal(&found, &want))
        return err_set(err, ST_FORMAT, "decoded bytes do not match their digest");
    return ST_OK;
}

static enum status decode_chunk(struct format_packed *p, uint32_t tensor, uint64_t chunk,
                                uint8_t *dst, size_t size, struct err *err)
{
    const struct packed_tensor *t = &p->layout->tensors[tensor];
    struct decoding d = {.coder = coder_take(p)};
    bool based = false;
    void *scratch = NULL, *segment = NULL, *base = NULL;
    enum status st = ST_OK;
    for (size_t i = 0; i < t->n_segments; i++)
        based = based || t->segments[i].has_base;
    if (d.coder == NULL)
        st = packed_coder_open(&d.coder, err);
    if (st == ST_OK)
        st = mem_alloc(size, 1, &scratch, err);
    if (st == ST_OK && t->n_segments > 1)
        st = mem_alloc(size, 1, &segment, err);
    if (st == ST_OK && based)
        st = mem_alloc(size, 1, &base, err);
    d.scratch = scratch;
    d.segment = segment;
    d.base = base;
    if (st == ST_OK) {
        struct err inner = {0};
        st = decode_segments(p, &d, tensor, chunk, dst, &inner);
        if (st == ST_FORMAT && strncmp(inner.message, p->path, strlen(p->path)) != 0)
            st = chunk_fault(p, tensor, chunk, err, inner.message);
        else if (st != ST_OK) /* a base's own fault names itself */
            st = err_set(err, st, "%s", inner.message);
    }
    free(base);
    free(segment);
    free(scratch);
    coder_give(p, d.coder);
    return st;
}

static enum status load_chunk(struct format_packed *p, uint32_t tensor, uint64_t chunk,
                              struct packed_slot **out, struct err *err)
{
    const struct packed_tensor *t = &p->layout->tensors[tensor];
    struct packed_slot *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_nomem(err, sizeof *s);
    *s = (struct packed_slot){.tensor = tensor, .chunk = chunk, .pins = 1};
    s->size = (size_t)packed_chunk_rows(t, chunk) * packed_row_bytes(t);
    void *data = NULL;
    enum status st = mem_alloc(s->size, 1, &data, err);
    s->data = data;
    if (st == ST_OK)
        st = decode_chunk(p, tensor, chunk, s->data, s->size, err);
    if (st != ST_OK) {
        free_slot(s);
        return st;
    }
    (void)pthread_mutex_lock(&p->lock);
    struct packed_slot *other = cache_find(p, tensor, chunk); /* another thread was faster */
    if (other == NULL) {
        struct packed_slot **bucket = &p->buckets[bucket_of(tensor, chunk)];
        s->next = *bucket;
        *bucket = s;
        list_add(p, s);
        p->cached_bytes += s->size;
        cache_shrink(p, p->cache_bytes);
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (other != NULL)
        free_slot(s);
    *out = other != NULL ? other : s;
    return ST_OK;
}

enum status format_packed_acquire(struct format_packed *p, uint32_t tensor, uint64_t row,
                                  struct packed_rows *out, struct err *err)
{
    *out = (struct packed_rows){0};
    if (tensor >= p->layout->n_tensors || row >= p->layout->tensors[tensor].rows)
        return err_set(err, ST_USAGE, "%s: tensor %" PRIu32 ", row %" PRIu64 ": not in the file",
                       p->path, tensor, row);
    const struct packed_tensor *t = &p->layout->tensors[tensor];
    uint64_t chunk = row / t->rows_per_chunk;
    (void)pthread_mutex_lock(&p->lock);
    struct packed_slot *s = cache_find(p, tensor, chunk);
    (void)pthread_mutex_unlock(&p->lock);
    if (s == NULL)
        TRY(load_chunk(p, tensor, chunk, &s, err));
    *out = (struct packed_rows){.data = s->data,
                                .first = chunk * t->rows_per_chunk,
                                .n = packed_chunk_rows(t, chunk),
                                .slot = s};
    return ST_OK;
}

void format_packed_release(struct format_packed *p, struct packed_rows *rows)
{
    if (rows->slot != NULL) {
        (void)pthread_mutex_lock(&p->lock);
        rows->slot->pins--;
        if (p->cached_bytes > p->cache_bytes) /* it was kept beyond the bound for its holder */
            cache_shrink(p, p->cache_bytes);
        (void)pthread_mutex_unlock(&p->lock);
    }
    *rows = (struct packed_rows){0};
}

enum status format_packed_rows(struct format_packed *p, uint32_t tensor, uint64_t first, uint64_t n,
                               void *dst, struct err *err)
{
    if (tensor >= p->layout->n_tensors || first > p->layout->tensors[tensor].rows ||
        n > p->layout->tensors[tensor].rows - first)
        return err_set(err, ST_USAGE, "%s: tensor %" PRIu32 ": rows outside", p->path, tensor);
    size_t row_bytes = packed_row_bytes(&p->layout->tensors[tensor]);
    for (uint64_t at = first; at < first + n;) {
        struct packed_rows held;
        TRY(format_packed_acquire(p, tensor, at, &held, err));
        uint64_t taken = min_u64(held.first + held.n, first + n) - at;
        memcpy((uint8_t *)dst + (size_t)(at - first) * row_bytes,
               held.data + (size_t)(at - held.first) * row_bytes, (size_t)taken * row_bytes);
        at += taken;
        format_packed_release(p, &held);
    }
    return ST_OK;
}

static void advise(const struct format_packed *p, uint64_t first, uint64_t size, int what)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), from = (size_t)first / page * page;
    union {
        const uint8_t *borrowed;
        void *place;
    } at = {.borrowed = p->map + from};
    (void)madvise(at.place, (size_t)(first - from + size), what);
}

void format_packed_prefetch(const struct format_packed *p, uint32_t tensor, uint64_t row)
{
    if (tensor >= p->layout->n_tensors || row >= p->layout->tensors[tensor].rows)
        return;
    const struct packed_tensor *t = &p->layout->tensors[tensor];
    struct bytes_reader in = {.data = p->records[tensor] + row / t->rows_per_chunk * record_size(t),
                              .size = record_size(t)};
    uint64_t first = bytes_get_u64(&in), size = 0;
    (void)bytes_get(&in, PACKED_DIGEST);
    for (size_t i = 0; i < t->n_segments; i++) {
        struct packed_coded c;
        packed_coded_get(&in, &c, dtype_size(t->dtype));
        size += packed_coded_bytes(&c);
        if (t->segments[i].has_base)
            format_packed_prefetch(p, t->segments[i].base_tensor,
                                   p->layout->tensors[t->segments[i].base_tensor].rows == 1 ? 0
                                                                                            : row);
    }
    if (size > 0)
        advise(p, first, size, MADV_WILLNEED);
}

void format_packed_trim(struct format_packed *p)
{
    (void)pthread_mutex_lock(&p->lock);
    cache_shrink(p, 0);
    (void)pthread_mutex_unlock(&p->lock);
    advise(p, 0, p->size, MADV_DONTNEED);
}

enum status format_packed_verify(struct format_packed *p, struct err *err)
{
    uint64_t untrimmed = 0;
    for (uint32_t i = 0; i < p->layout->n_tensors; i++) {
        const struct packed_tensor *t = &p->layout->tensors[i];
        for (uint64_t chunk = 0; chunk < format_packed_chunks(t); chunk++) {
            struct packed_rows held;
            TRY(format_packed_acquire(p, i, chunk * t->rows_per_chunk, &held, err));
            untrimmed += held.n * packed_row_bytes(t);
            format_packed_release(p, &held);
            if (untrimmed >= VERIFY_TRIM) { /* chunks and pages that were looked at are done with */
                format_packed_trim(p);
                untrimmed = 0;
            }
        }
    }
    return ST_OK;
}
