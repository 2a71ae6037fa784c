/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private: what the files of the packed payload share.  FORMAT.md. */
#ifndef FORMATS_PACKED_INTERNAL_H
#define FORMATS_PACKED_INTERNAL_H

#include "formats/packed.h"

enum {
    PACKED_VERSION = 1,
    PACKED_SKIPPABLE = 0x184D2A50,  /* zstd's skippable frames: head and directory */
    PACKED_SEEK_FRAME = 0x184D2A5E, /* the seek table's frame, and the magic at its end */
    PACKED_HEAD_SIZE = 8 + 24,
    PACKED_SEEK_ENTRY = 8,
    PACKED_SEEK_FOOTER = 9,
    PACKED_MAX_PLANES = 8,
    PACKED_DIGEST = 16,
    PACKED_WINDOW_LOG = 27,
    PACKED_MAX_TENSORS = 1 << 20
};
#define PACKED_SEEK_MAGIC 0x8F92EAB1u
#define PACKED_HEAD_MAGIC "tokentab"
#define PACKED_DIRECTORY_MAGIC "TTZDIR1\n"

/** How a segment of a chunk is coded. */
enum packed_mode { MODE_PLANES, MODE_DELTA, MODE_SPARSE, MODE_SAME, MODE_COUNT };

/** One segment's part of a chunk's entry. */
struct packed_coded {
    enum packed_mode mode;
    uint32_t plain_size;   /* has_base: bytes that MODE_PLANES would have taken, else 0 */
    uint32_t content_size; /* MODE_SPARSE: decoded bytes of its frame, else 0 */
    uint32_t sizes[PACKED_MAX_PLANES]; /* of the zstd frames, 0 where there is none */
};

/** Bytes of an entry of tensor t: digest, and for each segment mode, plain_size, content_size and
 *  one size for each byte of an element.  Pure. */
size_t packed_entry_size(const struct packed_tensor *t);
void packed_coded_put(struct bytes *out, const struct packed_coded *c, size_t n_planes);
void packed_coded_get(struct bytes_reader *in, struct packed_coded *c, size_t n_planes);
/** Sum of the frames. */
uint64_t packed_coded_bytes(const struct packed_coded *c);
/** Frames a segment has: planes or 1 or 0. */
size_t packed_coded_frames(const struct packed_coded *c, size_t n_planes);
/** Decoded bytes of frame k of a segment with n elements. */
uint64_t packed_frame_content(const struct packed_coded *c, size_t n_elements);
/** Rules that any layout must keep; `what` names it. */
NODISCARD enum status packed_layout_check(const struct packed_layout *l, const char *what,
                                          struct err *err);
/** Rows of chunk `chunk`. */
uint64_t packed_chunk_rows(const struct packed_tensor *t, uint64_t chunk);
size_t packed_row_bytes(const struct packed_tensor *t);

/* ---- coding of one segment ----------------------------------------------------------------- */

/** A coder's zstd context. */
struct packed_coder; /* opaque */
NODISCARD enum status packed_coder_open(struct packed_coder **out, struct err *err);
void packed_coder_close(struct packed_coder **c);

/** Code n elements; `base` NULL or the n elements they are compared with.  Frames are appended to
 *  `data`. */
NODISCARD enum status packed_segment_encode(struct packed_coder *c, enum dtype dt,
                                            const uint8_t *elements, const uint8_t *base, size_t n,
                                            struct packed_coded *coded, struct bytes *data,
                                            struct err *err);
/** The reverse; base as above where the mode needs it.  `data` holds exactly the frames.  dst and
 *  scratch: n elements each. */
NODISCARD enum status packed_segment_decode(struct packed_coder *c, enum dtype dt,
                                            const struct packed_coded *coded, const uint8_t *data,
                                            const uint8_t *base, size_t n, uint8_t *dst,
                                            uint8_t *scratch, struct err *err);

/* ---- planes, apart for tests --------------------------------------------------------------- */

/** n elements to byte planes, lowest byte first; floating dtypes are first turned left by one bit,
 *  so that the highest plane holds the exponent and the sign lies with the mantissa.  Pure. */
void packed_split(enum dtype dt, const uint8_t *elements, size_t n, uint8_t *planes);
void packed_join(enum dtype dt, const uint8_t *planes, size_t n, uint8_t *elements);

#endif
