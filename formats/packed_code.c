/* SPDX-License-Identifier: Apache-2.0 */
/* One segment of a chunk to zstd frames and back. */
#include "formats/packed_internal.h"

#define XXH_INLINE_ALL /* the checksum of frames made by hand; nothing to link */
#include <xxhash.h>
#include <zstd.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    RAW_BLOCK = 128 << 10, /* zstd's largest block */
    RAW_HEAD = 9,
    RAW_TAIL = 4,
    /* magic; content size of 4 bytes, single segment, checksum */
    RAW_DESCRIPTOR = 0xA4,
    FRAME_UNUSED_BIT = 0x10,
    PAYS_SHIFT = 6, /* compression must save 1/64, or its time is not worth it */
    VARINT_MAX = 5,
    PACKED_WAYS = 2
};

struct packed_coder {
    ZSTD_CCtx *compress[PACKED_WAYS];
    ZSTD_DCtx *decompress;
};

/* ---- contexts ------------------------------------------------------------------------------ */

enum status packed_coder_open(struct packed_coder **out, struct err *err)
{
    struct packed_coder *c = calloc(1, sizeof *c);
    *out = c;
    return c != NULL ? ST_OK : err_nomem(err, sizeof *c);
}

void packed_coder_close(struct packed_coder **coder)
{
    if (coder == NULL || *coder == NULL)
        return;
    for (size_t way = 0; way < PACKED_WAYS; way++)
        ZSTD_freeCCtx((*coder)->compress[way]);
    ZSTD_freeDCtx((*coder)->decompress);
    free(*coder);
    *coder = NULL;
}

/* The two sets of fixed parameters of FORMAT.md; no workers: they change the bytes (N55).
 * Planes of weights have skewed bytes and no repeats: a search that finds next to nothing leaves
 * zstd's entropy coder all of them, and is smaller than level 19 at a hundred times its speed.
 * Repeated rows want the search. */
static const struct fixed_parameter {
    ZSTD_cParameter what;
    int value;
} FIXED[PACKED_WAYS][7] = {{{ZSTD_c_compressionLevel, 3},
                            {ZSTD_c_strategy, ZSTD_fast},
                            {ZSTD_c_minMatch, 7},
                            {ZSTD_c_hashLog, 6},
                            {ZSTD_c_contentSizeFlag, 1},
                            {ZSTD_c_checksumFlag, 1},
                            {ZSTD_c_dictIDFlag, 0}},
                           {{ZSTD_c_compressionLevel, PACKED_LEVEL},
                            {ZSTD_c_contentSizeFlag, 1},
                            {ZSTD_c_checksumFlag, 1},
                            {ZSTD_c_dictIDFlag, 0}}};

static enum status need_compress(struct packed_coder *c, size_t way, struct err *err)
{
    if (c->compress[way] != NULL)
        return ST_OK;
    c->compress[way] = ZSTD_createCCtx();
    if (c->compress[way] == NULL)
        return err_nomem(err, 1 << 20);
    for (size_t i = 0; i < sizeof FIXED[way] / sizeof *FIXED[way] && FIXED[way][i].what != 0; i++) {
        size_t r =
            ZSTD_CCtx_setParameter(c->compress[way], FIXED[way][i].what, FIXED[way][i].value);
        if (ZSTD_isError(r))
            return err_set(err, ST_INTERNAL, "zstd: %s", ZSTD_getErrorName(r));
    }
    return ST_OK;
}

static enum status need_decompress(struct packed_coder *c, struct err *err)
{
    if (c->decompress != NULL)
        return ST_OK;
    c->decompress = ZSTD_createDCtx();
    if (c->decompress == NULL)
        return err_nomem(err, 1 << 17);
    size_t r = ZSTD_DCtx_setParameter(c->decompress, ZSTD_d_windowLogMax, PACKED_WINDOW_LOG);
    if (ZSTD_isError(r))
        return err_set(err, ST_INTERNAL, "zstd: %s", ZSTD_getErrorName(r));
    return ST_OK;
}

/* ---- frames -------------------------------------------------------------------------------- */

static size_t raw_frame_size(size_t n)
{
    return RAW_HEAD + n + 3 * ((n + RAW_BLOCK - 1) / RAW_BLOCK) + RAW_TAIL;
}

/* A zstd frame of raw blocks: any decoder reads it, at the speed of a copy. */
static void raw_frame(const uint8_t *content, size_t n, struct bytes *out)
{
    bytes_put_u32(out, ZSTD_MAGICNUMBER);
    bytes_put_u8(out, RAW_DESCRIPTOR);
    bytes_put_u32(out, (uint32_t)n);
    for (size_t at = 0; at < n; at += RAW_BLOCK) {
        size_t size = n - at < RAW_BLOCK ? n - at : RAW_BLOCK;
        uint32_t head = (uint32_t)size << 3 | (at + size == n ? 1u : 0u);
        const uint8_t bytes[3] = {(uint8_t)head, (uint8_t)(head >> 8), (uint8_t)(head >> 16)};
        bytes_append(out, bytes, sizeof bytes);
        bytes_append(out, content + at, size);
    }
    bytes_put_u32(out, (uint32_t)XXH64(content, n, 0));
}

/* Append `content` as one frame. */
static enum status put_frame(struct packed_coder *c, const uint8_t *content, size_t n,
                             struct bytes *out, uint32_t *size, struct err *err)
{
    size_t bound = ZSTD_compressBound(n), before = out->size, best = 0;
    size_t made[PACKED_WAYS] = {0};
    void *p = NULL;
    TRY(mem_alloc(PACKED_WAYS * bound, 1, &p, err));
    enum status st = ST_OK;
    for (size_t way = 0; way < PACKED_WAYS && st == ST_OK; way++) {
        st = need_compress(c, way, err);
        if (st != ST_OK)
            break;
        made[way] = ZSTD_compress2(c->compress[way], (uint8_t *)p + way * bound, bound, content, n);
        if (ZSTD_isError(made[way]))
            st = err_set(err, ST_NOMEM, "zstd: %s", ZSTD_getErrorName(made[way]));
        else if (made[way] < made[best])
            best = way;
    }
    if (st == ST_OK && made[best] + (n >> PAYS_SHIFT) < raw_frame_size(n))
        bytes_append(out, (uint8_t *)p + best * bound, made[best]);
    else if (st == ST_OK)
        raw_frame(content, n, out);
    free(p);
    if (st == ST_OK && out->failed)
        st = err_nomem(err, out->size);
    *size = (uint32_t)(out->size - before);
    return st;
}

/* The directory is believed, the frame is not: its claim is compared before anything is decoded. */
static enum status get_frame(struct packed_coder *c, const uint8_t *frame, size_t size,
                             uint8_t *dst, size_t n, struct err *err)
{
    TRY(need_decompress(c, err));
    unsigned long long claimed = ZSTD_getFrameContentSize(frame, size);
    if (claimed == ZSTD_CONTENTSIZE_UNKNOWN || claimed == ZSTD_CONTENTSIZE_ERROR)
        return err_set(err, ST_FORMAT, "zstd frame without a readable content size");
    if (claimed != n)
        return err_set(err, ST_FORMAT, "zstd frame claims %llu bytes, the directory says %zu",
                       claimed, n);
    if (size < 5 || (frame[4] & FRAME_UNUSED_BIT) != 0)
        return err_set(err, ST_FORMAT, "zstd frame header is damaged");
    size_t r = ZSTD_findFrameCompressedSize(frame, size);
    if (ZSTD_isError(r) || r != size)
        return err_set(err, ST_FORMAT, "zstd frame does not end where the directory says");
    r = ZSTD_decompressDCtx(c->decompress, dst, n, frame, size);
    if (ZSTD_isError(r) || r != n)
        return err_set(err, ST_FORMAT, "zstd: %s",
                       ZSTD_isError(r) ? ZSTD_getErrorName(r) : "short frame");
    return ST_OK;
}

/* ---- encoding ------------------------------------------------------------------------------ */

static enum status encode_planes(struct packed_coder *c, enum dtype dt, const uint8_t *elements,
                                 size_t n, struct packed_coded *coded, struct bytes *data,
                                 struct err *err)
{
    size_t n_planes = dtype_size(dt);
    void *planes = NULL;
    TRY(mem_alloc(n, n_planes, &planes, err));
    packed_split(dt, elements, n, planes);
    enum status st = ST_OK;
    for (size_t k = 0; k < n_planes && st == ST_OK; k++)
        st = put_frame(c, (const uint8_t *)planes + k * n, n, data, &coded->sizes[k], err);
    free(planes);
    return st;
}

static void put_varint(struct bytes *out, uint32_t x)
{
    for (; x >= 0x80; x >>= 7)
        bytes_put_u8(out, (uint8_t)(x | 0x80));
    bytes_put_u8(out, (uint8_t)x);
}

static bool is_zero(const uint8_t *p, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (p[i] != 0)
            return false;
    return true;
}

/* Number of non-zero elements, their gaps, their planes. */
static enum status encode_sparse(struct packed_coder *c, enum dtype dt, const uint8_t *xored,
                                 size_t n, size_t n_set, struct packed_coded *coded,
                                 struct bytes *data, struct err *err)
{
    size_t element = dtype_size(dt), set = 0, last = 0;
    struct bytes content = {0};
    void *values = NULL, *planes = NULL;
    enum status st = mem_alloc(n_set, element, &values, err);
    if (st == ST_OK)
        st = mem_alloc(n_set, element, &planes, err);
    if (st != ST_OK)
        goto out;
    bytes_put_u32(&content, (uint32_t)n_set);
    for (size_t i = 0; i < n; i++) {
        if (is_zero(xored + i * element, element))
            continue;
        put_varint(&content, (uint32_t)(i - last));
        last = i + 1;
        memcpy((uint8_t *)values + set++ * element, xored + i * element, element);
    }
    packed_split(dt, values, n_set, planes);
    bytes_append(&content, planes, n_set * element);
    if (content.failed)
        st = err_nomem(err, content.size);
    coded->content_size = (uint32_t)content.size;
    if (st == ST_OK)
        st = put_frame(c, content.data, content.size, data, &coded->sizes[0], err);
out:
    free(values);
    free(planes);
    bytes_free(&content);
    return st;
}

/* The smallest of all ways; the earlier one of equals, so that the choice is a function of bytes.
 */
static enum status encode_against(struct packed_coder *c, enum dtype dt, const uint8_t *elements,
                                  const uint8_t *base, size_t n, struct packed_coded *coded,
                                  struct bytes *data, struct err *err)
{
    size_t element = dtype_size(dt), n_set = 0, best = 0;
    struct packed_coded ways[3] = {
        {.mode = MODE_PLANES}, {.mode = MODE_DELTA}, {.mode = MODE_SPARSE}};
    struct bytes frames[3] = {{0}, {0}, {0}};
    void *xored = NULL;
    TRY(mem_alloc(n, element, &xored, err));
    uint8_t *x = xored;
    for (size_t i = 0; i < n * element; i++)
        x[i] = elements[i] ^ base[i];
    for (size_t i = 0; i < n; i++)
        n_set += !is_zero(x + i * element, element);
    enum status st = encode_planes(c, dt, elements, n, &ways[0], &frames[0], err);
    uint32_t plain = (uint32_t)frames[0].size;
    if (st == ST_OK && n_set == 0) {
        *coded = (struct packed_coded){.mode = MODE_SAME, .plain_size = plain};
        goto out;
    }
    if (st == ST_OK)
        st = encode_planes(c, dt, x, n, &ways[1], &frames[1], err);
    bool sparse = n_set <= n / 4; /* beyond, gaps alone cost more than planes of zeros */
    if (st == ST_OK && sparse)
        st = encode_sparse(c, dt, x, n, n_set, &ways[2], &frames[2], err);
    if (st != ST_OK)
        goto out;
    for (size_t i = 1; i < (sparse ? 3u : 2u); i++)
        if (frames[i].size < frames[best].size)
            best = i;
    *coded = ways[best];
    coded->plain_size = plain;
    bytes_append(data, frames[best].data, frames[best].size);
out:
    for (size_t i = 0; i < 3; i++)
        bytes_free(&frames[i]);
    free(xored);
    return st;
}

enum status packed_segment_encode(struct packed_coder *c, enum dtype dt, const uint8_t *elements,
                                  const uint8_t *base, size_t n, struct packed_coded *coded,
                                  struct bytes *data, struct err *err)
{
    *coded = (struct packed_coded){.mode = MODE_PLANES};
    if (base != NULL)
        TRY(encode_against(c, dt, elements, base, n, coded, data, err));
    else
        TRY(encode_planes(c, dt, elements, n, coded, data, err));
    return data->failed ? err_nomem(err, data->size) : ST_OK;
}

/* ---- decoding ------------------------------------------------------------------------------ */

static enum status decode_planes(struct packed_coder *c, enum dtype dt,
                                 const struct packed_coded *coded, const uint8_t *data, size_t n,
                                 uint8_t *dst, uint8_t *scratch, struct err *err)
{
    size_t n_planes = dtype_size(dt);
    for (size_t k = 0; k < n_planes; k++) {
        TRY(get_frame(c, data, coded->sizes[k], scratch + k * n, n, err));
        data += coded->sizes[k];
    }
    packed_join(dt, scratch, n, dst);
    return ST_OK;
}

static bool get_varint(struct bytes_reader *in, uint32_t *out)
{
    uint64_t x = 0;
    for (unsigned i = 0; i < VARINT_MAX; i++) {
        uint8_t byte = bytes_get_u8(in);
        x |= (uint64_t)(byte & 0x7F) << (7 * i);
        if (byte < 0x80) {
            *out = (uint32_t)x;
            return !in->failed && x <= UINT32_MAX;
        }
    }
    return false;
}

/* XOR the listed elements into dst, which holds the base. */
static enum status apply_sparse(enum dtype dt, const uint8_t *content, size_t size, size_t n,
                                uint8_t *dst, struct err *err)
{
    size_t element = dtype_size(dt);
    struct bytes_reader in = {.data = content, .size = size};
    uint32_t n_set = bytes_get_u32(&in);
    if (in.failed || n_set == 0 || n_set > n || size - in.at < n_set * element)
        return err_set(err, ST_FORMAT, "sparse delta of %" PRIu32 " elements does not fit", n_set);
    size_t gaps_end = size - n_set * element, at = 0;
    void *values = NULL;
    TRY(mem_alloc(n_set, element, &values, err));
    packed_join(dt, content + gaps_end, n_set, values);
    in.size = gaps_end;
    enum status st = ST_OK;
    for (uint32_t i = 0; i < n_set && st == ST_OK; i++) {
        uint32_t gap;
        if (!get_varint(&in, &gap) || gap >= n - at) {
            st = err_set(err, ST_FORMAT, "sparse delta: element %" PRIu32 " lies outside", i);
            break;
        }
        at += gap;
        for (size_t k = 0; k < element; k++)
            dst[at * element + k] ^= ((const uint8_t *)values)[i * element + k];
        at++;
        if (at == n && i + 1 < n_set)
            st = err_set(err, ST_FORMAT, "sparse delta: elements beyond the last");
    }
    if (st == ST_OK && in.at != gaps_end)
        st = err_set(err, ST_FORMAT, "sparse delta: %zu bytes too many", gaps_end - in.at);
    free(values);
    return st;
}

enum status packed_segment_decode(struct packed_coder *c, enum dtype dt,
                                  const struct packed_coded *coded, const uint8_t *data,
                                  const uint8_t *base, size_t n, uint8_t *dst, uint8_t *scratch,
                                  struct err *err)
{
    size_t size = n * dtype_size(dt);
    switch (coded->mode) {
    case MODE_PLANES:
        return decode_planes(c, dt, coded, data, n, dst, scratch, err);
    case MODE_DELTA:
        TRY(decode_planes(c, dt, coded, data, n, dst, scratch, err));
        for (size_t i = 0; i < size; i++)
            dst[i] ^= base[i];
        return ST_OK;
    case MODE_SPARSE: {
        void *content = NULL;
        TRY(mem_alloc(coded->content_size, 1, &content, err));
        enum status st = get_frame(c, data, coded->sizes[0], content, coded->content_size, err);
        memcpy(dst, base, size);
        if (st == ST_OK)
            st = apply_sparse(dt, content, coded->content_size, n, dst, err);
        free(content);
        return st;
    }
    case MODE_SAME:
        memcpy(dst, base, size);
        return ST_OK;
    case MODE_COUNT:
        break;
    }
    return err_set(err, ST_FORMAT, "unknown coding %d", (int)coded->mode);
}
