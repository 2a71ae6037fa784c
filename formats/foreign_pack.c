/* SPDX-License-Identifier: Apache-2.0 */
/* model.cmppack: a 56-byte header and one zstd frame of byte-shuffled blocks. */
#include "formats/foreign.h"

#include <zstd.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    CMP_HEADER = 56,
    CMP_VERSION = 1,
    CMP_CODEC_ZSTD = 1,
    CMP_SHUFFLE = 1,
    CMP_BLOCK = 1 << 20,
    CMP_MAX_BLOCK = 16 << 20,
    CMP_LEVEL = 6,
    CMP_WINDOW_LOG = 25,
    CMP_PIECE = 1 << 16
};
static const uint8_t CMP_MAGIC[8] = {'C', 'M', 'P', 'R', 'P', 'A', 'C', 'K'};

/* Big-endian, `n` bytes. */
static void put_be(uint8_t *dst, uint64_t x, size_t n)
{
    while (n-- > 0) {
        dst[n] = (uint8_t)x;
        x >>= 8;
    }
}

static uint64_t get_be(const uint8_t *src, size_t n)
{
    uint64_t x = 0;
    for (size_t i = 0; i < n; i++)
        x = x << 8 | src[i];
    return x;
}

static void hex_to_bytes(const char *hex, uint8_t out[SHA256_SIZE])
{
    static const char DIGITS[] = "0123456789abcdef";
    for (size_t i = 0; i < SHA256_SIZE; i++)
        out[i] = (uint8_t)((strchr(DIGITS, hex[2 * i]) - DIGITS) * 16 +
                           (strchr(DIGITS, hex[2 * i + 1]) - DIGITS));
}

/* Whole groups as byte planes, the rest behind them. */
static void shuffle(const uint8_t *from, size_t size, size_t group, uint8_t *to)
{
    size_t n = size / group;
    for (size_t k = 0; k < group; k++)
        for (size_t i = 0; i < n; i++)
            to[k * n + i] = from[i * group + k];
    memcpy(to + n * group, from + n * group, size - n * group);
}

/* Bytes [first, first + size) of the unshuffled block; first lies on a group. */
static void unshuffle(const uint8_t *from, size_t block, size_t group, size_t first, size_t size,
                      uint8_t *to)
{
    size_t n = block / group, end = n * group;
    for (size_t i = 0; i < size; i++) {
        size_t at = first + i;
        to[i] = at < end ? from[at % group * n + at / group] : from[at];
    }
}

/* ---- writing ------------------------------------------------------------------------------- */

struct packing {
    const char *from, *to;
    int in, out;
    uint64_t size, at; /* raw size; bytes written */
    ZSTD_CCtx *zstd;
    struct sha256_state *sha;
    uint8_t *raw, *shuffled, *room; /* CMP_BLOCK, CMP_BLOCK, ZSTD_CStreamOutSize() */
};

static enum status pack_block(struct packing *p, size_t n, bool last, struct err *err)
{
    ZSTD_inBuffer in = {.src = p->shuffled, .size = n};
    size_t left = 1;
    while (last ? left != 0 : in.pos < in.size) {
        ZSTD_outBuffer out = {.dst = p->room, .size = ZSTD_CStreamOutSize()};
        left = ZSTD_compressStream2(p->zstd, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
        if (ZSTD_isError(left))
            return err_set(err, ST_NOMEM, "%s: zstd: %s", p->to, ZSTD_getErrorName(left));
        TRY(file_write_at(p->out, p->to, p->at, p->room, out.pos, err));
        p->at += out.pos;
    }
    return ST_OK;
}

static enum status pack_all(struct packing *p, unsigned group, struct err *err)
{
    uint8_t header[CMP_HEADER] = {0};
    char hex[SHA256_HEX_SIZE];
    p->at = CMP_HEADER;
    uint64_t first = 0;
    do {
        size_t n = (size_t)min_u64(CMP_BLOCK, p->size - first);
        TRY(file_read_at(p->in, p->from, first, p->raw, n, err));
        TRY(sha256_update(p->sha, p->raw, n, err));
        shuffle(p->raw, n, group, p->shuffled);
        first += n;
        TRY(pack_block(p, n, first == p->size, err));
    } while (first < p->size);
    TRY(sha256_finish(p->sha, hex, err));
    memcpy(header, CMP_MAGIC, sizeof CMP_MAGIC);
    header[8] = CMP_VERSION;
    header[9] = CMP_CODEC_ZSTD;
    header[10] = CMP_SHUFFLE;
    header[11] = (uint8_t)group;
    put_be(header + 12, CMP_BLOCK, 4);
    put_be(header + 16, p->size, 8);
    hex_to_bytes(hex, header + 24);
    TRY(file_write_at(p->out, p->to, 0, header, sizeof header, err));
    if (fsync(p->out) != 0)
        return err_set(err, ST_IO, "%s: fsync: %s", p->to, strerror(errno));
    return ST_OK;
}

static enum status pack_open(struct packing *p, struct err *err)
{
    void *raw = NULL, *shuffled = NULL, *room = NULL;
    TRY(file_open_read(p->from, &p->in, &p->size, err));
    enum status st = mem_alloc(CMP_BLOCK, 1, &raw, err);
    if (st == ST_OK)
        st = mem_alloc(CMP_BLOCK, 1, &shuffled, err);
    if (st == ST_OK)
        st = mem_alloc(ZSTD_CStreamOutSize(), 1, &room, err);
    p->raw = raw;
    p->shuffled = shuffled;
    p->room = room;
    TRY(st);
    TRY(sha256_open(&p->sha, err));
    p->zstd = ZSTD_createCCtx();
    if (p->zstd == NULL)
        return err_nomem(err, 1 << 20);
    if (ZSTD_isError(ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_compressionLevel, CMP_LEVEL)) ||
        ZSTD_isError(ZSTD_CCtx_setParameter(p->zstd, ZSTD_c_checksumFlag, 1)) ||
        ZSTD_isError(ZSTD_CCtx_setPledgedSrcSize(p->zstd, p->size)))
        return err_set(err, ST_INTERNAL, "zstd refuses its parameters");
    p->out = open(p->to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (p->out < 0)
        return err_set(err, ST_IO, "%s: %s", p->to, strerror(errno));
    return ST_OK;
}

enum status format_cmppack_write(const char *from, const char *to, unsigned group_bytes,
                                 struct err *err)
{
    struct packing p = {.from = from, .to = to, .in = -1, .out = -1};
    if (group_bytes != 1 && group_bytes != 2 && group_bytes != 4 && group_bytes != 8)
        return err_set(err, ST_USAGE, "cmppack: groups of %u bytes, expected 1, 2, 4 or 8",
                       group_bytes);
    enum status st = pack_open(&p, err);
    if (st == ST_OK)
        st = pack_all(&p, group_bytes, err);
    ZSTD_freeCCtx(p.zstd);
    sha256_close(&p.sha);
    free(p.raw);
    free(p.shuffled);
    free(p.room);
    if (p.in >= 0)
        (void)close(p.in);
    if (p.out >= 0 && close(p.out) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", to, strerror(errno));
    if (st != ST_OK && p.out >= 0)
        (void)unlink(to);
    return st;
}

/* ---- reading ------------------------------------------------------------------------------- */

struct unpacking {
    const char *from, *to;
    int in, out;
    uint64_t file_size, size; /* of the packed file; raw */
    size_t group, block;
    uint8_t digest[SHA256_SIZE];
    ZSTD_DCtx *zstd;
    struct sha256_state *sha;
    uint8_t *shuffled, *piece, *input; /* block, CMP_PIECE, CMP_PIECE */
    uint64_t read_at;
    ZSTD_inBuffer buffer; /* what of `input` is still to be decoded */
    bool ended;           /* the frame is complete */
};

static enum status read_header(struct unpacking *u, uint64_t max_size, struct err *err)
{
    uint8_t h[CMP_HEADER], frame[32] = {0};
    if (u->file_size < CMP_HEADER)
        return err_set(err, ST_FORMAT, "%s: %" PRIu64 " bytes, a cmppack header has %d", u->from,
                       u->file_size, CMP_HEADER);
    TRY(file_read_at(u->in, u->from, 0, h, sizeof h, err));
    if (memcmp(h, CMP_MAGIC, sizeof CMP_MAGIC) != 0)
        return err_set(err, ST_FORMAT, "%s: no cmppack magic", u->from);
    if (h[8] != CMP_VERSION || h[9] != CMP_CODEC_ZSTD || h[10] != CMP_SHUFFLE)
        return err_set(err, ST_FORMAT, "%s: version %u, codec %u, transform %u, expected 1, 1, 1",
                       u->from, h[8], h[9], h[10]);
    u->group = h[11];
    u->block = (size_t)get_be(h + 12, 4);
    u->size = get_be(h + 16, 8);
    memcpy(u->digest, h + 24, SHA256_SIZE);
    if (u->group != 1 && u->group != 2 && u->group != 4 && u->group != 8)
        return err_set(err, ST_FORMAT, "%s: groups of %zu bytes", u->from, u->group);
    if (u->block == 0 || u->block > CMP_MAX_BLOCK || u->block % u->group != 0)
        return err_set(err, ST_FORMAT, "%s: blocks of %zu bytes", u->from, u->block);
    if (u->size > max_size)
        return err_set(err, ST_FORMAT, "%s: unpacks to %" PRIu64 " bytes, the limit is %" PRIu64,
                       u->from, u->size, max_size);
    size_t n = (size_t)min_u64(sizeof frame, u->file_size - CMP_HEADER);
    TRY(file_read_at(u->in, u->from, CMP_HEADER, frame, n, err));
    unsigned long long claimed = ZSTD_getFrameContentSize(frame, n);
    if (claimed == ZSTD_CONTENTSIZE_ERROR || claimed == ZSTD_CONTENTSIZE_UNKNOWN)
        return err_set(err, ST_FORMAT, "%s: no zstd frame with a content size", u->from);
    if (claimed != u->size)
        return err_set(err, ST_FORMAT, "%s: the frame claims %llu bytes, the header %" PRIu64,
                       u->from, claimed, u->size);
    return ST_OK;
}

/* The next n decoded bytes. */
static enum status decode(struct unpacking *u, uint8_t *dst, size_t n, struct err *err)
{
    ZSTD_outBuffer out = {.dst = dst, .size = n};
    while (out.pos < n || (n == 0 && !u->ended)) {
        if (u->buffer.pos == u->buffer.size) {
            size_t size = (size_t)min_u64(CMP_PIECE, u->file_size - u->read_at);
            if (size == 0 || u->ended)
                return err_set(err, ST_FORMAT, "%s: the frame is cut", u->from);
            TRY(file_read_at(u->in, u->from, u->read_at, u->input, size, err));
            u->read_at += size;
            u->buffer = (ZSTD_inBuffer){.src = u->input, .size = size};
        }
        if (u->ended)
            return err_set(err, ST_FORMAT, "%s: the frame is shorter than it claims", u->from);
        size_t left = ZSTD_decompressStream(u->zstd, &out, &u->buffer);
        if (ZSTD_isError(left))
            return err_set(err, ST_FORMAT, "%s: zstd: %s", u->from, ZSTD_getErrorName(left));
        u->ended = left == 0;
    }
    return ST_OK;
}

static enum status unpack_blocks(struct unpacking *u, struct err *err)
{
    for (uint64_t at = 0; at < u->size; at += u->block) {
        size_t n = (size_t)min_u64(u->block, u->size - at);
        TRY(decode(u, u->shuffled, n, err));
        for (size_t first = 0; first < n; first += CMP_PIECE) {
            size_t size = n - first < CMP_PIECE ? n - first : CMP_PIECE;
            unshuffle(u->shuffled, n, u->group, first, size, u->piece);
            TRY(sha256_update(u->sha, u->piece, size, err));
            TRY(file_write_at(u->out, u->to, at + first, u->piece, size, err));
        }
    }
    TRY(decode(u, NULL, 0, err)); /* the checksum */
    if (u->buffer.pos != u->buffer.size || u->read_at != u->file_size)
        return err_set(err, ST_FORMAT, "%s: bytes behind the frame", u->from);
    return ST_OK;
}

static enum status unpack_all(struct unpacking *u, struct err *err)
{
    char hex[SHA256_HEX_SIZE];
    uint8_t found[SHA256_SIZE];
    TRY(unpack_blocks(u, err));
    TRY(sha256_finish(u->sha, hex, err));
    hex_to_bytes(hex, found);
    if (memcmp(found, u->digest, sizeof found) != 0)
        return err_set(err, ST_FORMAT, "%s: corrupt: the SHA-256 of its raw data differs", u->from);
    if (fsync(u->out) != 0)
        return err_set(err, ST_IO, "%s: fsync: %s", u->to, strerror(errno));
    return ST_OK;
}

static enum status unpack_open(struct unpacking *u, uint64_t max_size, struct err *err)
{
    void *shuffled = NULL, *piece = NULL, *input = NULL;
    TRY(file_open_read(u->from, &u->in, &u->file_size, err));
    TRY(read_header(u, max_size, err));
    enum status st = mem_alloc(u->block, 1, &shuffled, err);
    if (st == ST_OK)
        st = mem_alloc(CMP_PIECE, 1, &piece, err);
    if (st == ST_OK)
        st = mem_alloc(CMP_PIECE, 1, &input, err);
    u->shuffled = shuffled;
    u->piece = piece;
    u->input = input;
    u->read_at = CMP_HEADER;
    TRY(st);
    TRY(sha256_open(&u->sha, err));
    u->zstd = ZSTD_createDCtx();
    if (u->zstd == NULL)
        return err_nomem(err, 1 << 17);
    if (ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, CMP_WINDOW_LOG)))
        return err_set(err, ST_INTERNAL, "zstd refuses its parameters");
    u->out = open(u->to, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (u->out < 0)
        return err_set(err, ST_IO, "%s: %s", u->to, strerror(errno));
    return ST_OK;
}

enum status format_cmppack_read(const char *from, const char *to, uint64_t max_size,
                                struct err *err)
{
    struct unpacking u = {.from = from, .to = to, .in = -1, .out = -1};
    enum status st = unpack_open(&u, max_size > 0 ? max_size : FORMAT_CMPPACK_LIMIT, err);
    if (st == ST_OK)
        st = unpack_all(&u, err);
    ZSTD_freeDCtx(u.zstd);
    sha256_close(&u.sha);
    free(u.shuffled);
    free(u.piece);
    free(u.input);
    if (u.in >= 0)
        (void)close(u.in);
    if (u.out >= 0 && close(u.out) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", to, strerror(errno));
    if (st != ST_OK && u.out >= 0)
        (void)unlink(to);
    return st;
}
