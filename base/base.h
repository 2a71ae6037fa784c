/* SPDX-License-Identifier: Apache-2.0 */
/** base: what every folder may use: status codes, the error record, dtypes, checked sizes, byte
 *  buffers, digests, files, log, fault points.  It knows nothing of tokens, graphs or ranks
 *  (a rank is a number that the log prints). */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- status -------------------------------------------------------------------------------- */

/** name, exit code of the program (DESIGN.md, "Command line"), text.  Values are positions and
 *  travel between ranks of one run only. */
#define BASE_STATUSES(X)                                                                           \
    X(ST_OK, 0, "ok")                                                                              \
    X(ST_DIFFERS, 1, "differs")                                                                    \
    X(ST_USAGE, 2, "usage")                                                                        \
    X(ST_SPEC, 3, "bad spec")                                                                      \
    X(ST_FORMAT, 3, "bad file")                                                                    \
    X(ST_STRUCTURE, 3, "structure refused")                                                        \
    X(ST_IO, 4, "input/output error")                                                              \
    X(ST_NOMEM, 4, "out of memory")                                                                \
    X(ST_LOCKED, 4, "locked")                                                                      \
    X(ST_ENVIRONMENT, 4, "environment")                                                            \
    X(ST_SINGLETON, 4, "singleton under a launcher")                                               \
    X(ST_NONFINITE, 5, "non-finite value")                                                         \
    X(ST_POSITIONS, 5, "positions disagree")                                                       \
    X(ST_TOLERANCE, 5, "outside tolerance")                                                        \
    X(ST_DECISION, 5, "decision changed")                                                          \
    X(ST_KERNEL, 5, "kernel self-check failed")                                                    \
    X(ST_STORAGE, 6, "would not shrink")                                                           \
    X(ST_STOPPED, 75, "stopped early, resumable")                                                  \
    X(ST_INTERNAL, 70, "broken invariant")

enum status {
#define X(name, exit_code, text) name,
    BASE_STATUSES(X)
#undef X
};

/** Text of a status.  Pure; static storage. */
const char *status_text(enum status st);
/** Exit code of the program for a status.  Pure. */
int status_exit_code(enum status st);

enum { ERR_MESSAGE_SIZE = 1024 };

/** The first fault of an operation: written once, where it is born. */
struct err {
    enum status st;
    char message[ERR_MESSAGE_SIZE]; /* one line, no newline at its end */
};

/** Record a fault unless `err` (NULL allowed) already holds one.  Local.
 *  @return st, so that `return err_set(...)` reads well. */
enum status err_set(struct err *err, enum status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Forget a fault (a caller that handled it). */
void err_clear(struct err *err);
/** Put `fmt...: ` before the recorded message (path, index).  No effect on an empty record. */
void err_prefix(struct err *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Out of memory, with the size that was asked for. */
enum status err_nomem(struct err *err, size_t size_bytes);

/** Forward a failure when nothing is held. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        enum status try_st_ = (call);                                                              \
        if (try_st_ != ST_OK)                                                                      \
            return try_st_;                                                                        \
    } while (0)

#define NODISCARD __attribute__((warn_unused_result))

/* ---- dtypes -------------------------------------------------------------------------------- */

/** name in safetensors, bits an element, kind: f float, i integer, b bool, q packed or 8-bit float.
 */
#define BASE_DTYPES(X)                                                                             \
    X(DT_F64, "F64", 64, 'f')                                                                      \
    X(DT_F32, "F32", 32, 'f')                                                                      \
    X(DT_F16, "F16", 16, 'f')                                                                      \
    X(DT_BF16, "BF16", 16, 'f')                                                                    \
    X(DT_I64, "I64", 64, 'i')                                                                      \
    X(DT_I32, "I32", 32, 'i')                                                                      \
    X(DT_I16, "I16", 16, 'i')                                                                      \
    X(DT_I8, "I8", 8, 'i')                                                                         \
    X(DT_U64, "U64", 64, 'i')                                                                      \
    X(DT_U32, "U32", 32, 'i')                                                                      \
    X(DT_U16, "U16", 16, 'i')                                                                      \
    X(DT_U8, "U8", 8, 'i')                                                                         \
    X(DT_BOOL, "BOOL", 8, 'b')                                                                     \
    X(DT_F8_E4M3, "F8_E4M3", 8, 'q')                                                               \
    X(DT_F8_E5M2, "F8_E5M2", 8, 'q')                                                               \
    X(DT_UNKNOWN, "?", 0, '?')

enum dtype {
#define X(name, text, bits, kind) name,
    BASE_DTYPES(X)
#undef X
        DT_COUNT
};

const char *dtype_name(enum dtype dt);
/** DT_UNKNOWN if the name (length `size`) is none of ours.  Case matters. */
enum dtype dtype_from_name(const char *name, size_t size);
/** Bytes an element; 0 for DT_UNKNOWN. */
size_t dtype_size(enum dtype dt);
/** F64, F32, F16, BF16: dtypes that tokentab computes. */
bool dtype_is_computable(enum dtype dt);
/** The dtype arrays are held in while an op computes: DT_F64 for F64, else DT_F32. */
enum dtype dtype_compute(enum dtype dt);
/** Common dtype of two computable ones: the wider; F32 for F16 with BF16 (PyTorch's promotion). */
enum dtype dtype_promote(enum dtype a, enum dtype b);

/** Scalar conversions; nearest even, overflow to Inf, NaN stays NaN with its sign and payload's top
 *  bits, quieted (0x7F800001 → BF16 0x7FC0).  Here, not in kernels, since lookup needs them.  Pure.
 */
uint16_t bf16_from_f32(float x);
float bf16_to_f32(uint16_t x);
uint16_t f16_from_f32(float x);
float f16_to_f32(uint16_t x);
/** double to the value of storage dtype F32, F16 or BF16 in ONE rounding (never through float). */
float f64_round_to(enum dtype dt, double x);
/** F8 decoding (N10): E5M2 when e5m2, else E4M3. */
float f8_to_f32(uint8_t x, bool e5m2);

/* ---- checked arithmetic -------------------------------------------------------------------- */

/** *out = a * b (or a + b); false, *out untouched, on overflow.  Pure. */
NODISCARD bool mul_size(size_t a, size_t b, size_t *out);
NODISCARD bool add_size(size_t a, size_t b, size_t *out);
NODISCARD bool mul_u64(uint64_t a, uint64_t b, uint64_t *out);
NODISCARD bool add_u64(uint64_t a, uint64_t b, uint64_t *out);
/** MPI and BLAS counts; false above INT_MAX. */
NODISCARD bool size_to_int(size_t a, int *out);
/** uint64_t to size_t; always true on 64-bit machines, checked all the same. */
NODISCARD bool u64_to_size(uint64_t a, size_t *out);
static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- memory and strings -------------------------------------------------------------------- */

/** n * size bytes aligned to 64 (so that BLAS sees the same alignment everywhere), not zeroed.
 *  Free with free().  n == 0 gives a valid pointer.  ST_NOMEM. */
NODISCARD enum status mem_alloc(size_t n, size_t size, void **out, struct err *err);
/** The same, zeroed. */
NODISCARD enum status mem_calloc(size_t n, size_t size, void **out, struct err *err);
/** Copies; NULL when memory is short. */
NODISCARD char *str_dup(const char *s);
NODISCARD char *str_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** Edit distance of two names, for "nearest names" hints; at most 256 characters of each count. */
unsigned str_distance(const char *a, const char *b);
/** `[A-Za-z0-9_.-]+`, at most 255 characters, and neither "." nor "..". */
bool str_is_name(const char *s);
/** 1234567 → "1.18 MiB" (buffer of at least 32). Returns buf. */
const char *str_bytes(uint64_t bytes, char *buf, size_t buf_size);
/** Strict decimal: all of `s`, no sign, no space, no overflow. */
NODISCARD bool str_to_u64(const char *s, uint64_t *out);
/** Decimal with an optional K, M, G, T suffix (1024). */
NODISCARD bool str_to_size(const char *s, uint64_t *out);
/** Strict finite double: all of `s`. */
NODISCARD bool str_to_double(const char *s, double *out);
/** Shortest decimal that reads back as x, locale-free; "NaN", "Infinity", "-Infinity" otherwise. */
const char *str_double(double x, char *buf, size_t buf_size);

/** A growing byte buffer; {0} is empty.  After a failed append `failed` is true and nothing more is
 *  added, so a run of appends needs one check. */
struct bytes {
    uint8_t *data; /* owned */
    size_t size, capacity;
    bool failed;
};
void bytes_append(struct bytes *b, const void *data, size_t size);
void bytes_printf(struct bytes *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Little-endian, fixed width. */
void bytes_put_u8(struct bytes *b, uint8_t x);
void bytes_put_u32(struct bytes *b, uint32_t x);
void bytes_put_u64(struct bytes *b, uint64_t x);
void bytes_put_f64(struct bytes *b, double x);
/** u32 length and the characters. */
void bytes_put_str(struct bytes *b, const char *s);
void bytes_free(struct bytes *b);

/** Reads what bytes_put_* wrote.  After the first short read `failed` is true and zeros come back.
 */
struct bytes_reader {
    const uint8_t *data; /* borrowed */
    size_t size, at;
    bool failed;
};
uint8_t bytes_get_u8(struct bytes_reader *r);
uint32_t bytes_get_u32(struct bytes_reader *r);
uint64_t bytes_get_u64(struct bytes_reader *r);
double bytes_get_f64(struct bytes_reader *r);
/** Borrowed pointer to `size` bytes, NULL when they are not there. */
const uint8_t *bytes_get(struct bytes_reader *r, size_t size);
/** Owned copy (free), NULL on failure. */
char *bytes_get_str(struct bytes_reader *r);

/* ---- digests ------------------------------------------------------------------------------- */

/** XXH3, 128 bits, canonical (big-endian) byte order: equality of tables and weights, always
 *  confirmed byte by byte before anything is shared. */
struct digest {
    uint8_t bytes[16];
};
enum { DIGEST_HEX_SIZE = 33, SHA256_SIZE = 32, SHA256_HEX_SIZE = 65 };

struct digest digest_of(const void *data, size_t size);
bool digest_equal(const struct digest *a, const struct digest *b);
/** 32 hexadecimal digits and NUL.  Returns hex. */
const char *digest_hex(const struct digest *d, char hex[DIGEST_HEX_SIZE]);
NODISCARD bool digest_from_hex(const char *hex, struct digest *out);

struct digest_state; /* opaque */
NODISCARD enum status digest_open(struct digest_state **out, struct err *err);
void digest_update(struct digest_state *s, const void *data, size_t size);
/** The digest of all that was given so far; the state may go on. */
struct digest digest_now(const struct digest_state *s);
void digest_close(struct digest_state **s);

/** SHA-256 (libcrypto): provenance, payload digests and the seal. */
struct sha256_state; /* opaque */
NODISCARD enum status sha256_open(struct sha256_state **out, struct err *err);
NODISCARD enum status sha256_update(struct sha256_state *s, const void *data, size_t size,
                                    struct err *err);
/** Ends the state's use; hex gets 64 digits and NUL. */
NODISCARD enum status sha256_finish(struct sha256_state *s, char hex[SHA256_HEX_SIZE],
                                    struct err *err);
void sha256_close(struct sha256_state **s);
NODISCARD enum status sha256_of(const void *data, size_t size, char hex[SHA256_HEX_SIZE],
                                struct err *err);

/* ---- files --------------------------------------------------------------------------------- */

/** Open for reading.  ST_FORMAT if it is not there or not a regular file (an unreadable input is
 *  exit 3), ST_IO on EIO.  *size_bytes gets its size. */
NODISCARD enum status file_open_read(const char *path, int *fd, uint64_t *size_bytes,
                                     struct err *err);
/** pread all of [offset, offset + size).  ST_IO with path and offset on a short read or error. */
NODISCARD enum status file_read_at(int fd, const char *path, uint64_t offset, void *data,
                                   size_t size, struct err *err);
/** pwrite all.  ST_IO with path and offset. */
NODISCARD enum status file_write_at(int fd, const char *path, uint64_t offset, const void *data,
                                    size_t size, struct err *err);
/** The whole file, with a NUL behind it (not counted).  ST_FORMAT above max_size. */
NODISCARD enum status file_read_all(const char *path, size_t max_size, uint8_t **data, size_t *size,
                                    struct err *err);
/** Write to PATH.tmp, sync, close, rename to PATH, sync the folder.  After a failure PATH is as it
 *  was and the .tmp is gone; only when the last step fails, the sync of the folder, PATH is already
 *  the new file, whole, and a power cut may still undo the rename. */
NODISCARD enum status file_publish(const char *path, const void *data, size_t size,
                                   struct err *err);
/** fsync a file or a folder by path. */
NODISCARD enum status file_sync(const char *path, struct err *err);
/** rename and sync the folder of `to`. */
NODISCARD enum status file_rename(const char *from, const char *to, struct err *err);
/** Make a folder and its parents; an existing one is fine. */
NODISCARD enum status file_make_dirs(const char *path, struct err *err);
bool file_exists(const char *path);
bool file_is_dir(const char *path);
/** SHA-256 and XXH3 of a file in one pass of bounded memory; either may be NULL. */
NODISCARD enum status file_digests(const char *path, char sha256_hex[SHA256_HEX_SIZE],
                                   struct digest *xxh3, uint64_t *size_bytes, struct err *err);
/** Owned "dir/name"; `name` alone if it is absolute or dir is NULL or "".  NULL when memory is
 * short. */
NODISCARD char *path_join(const char *dir, const char *name);
/** Owned folder part ("." if there is none). */
NODISCARD char *path_dir(const char *path);
/** Borrowed last part; slashes at the end of `path` belong to it. */
const char *path_base(const char *path);

/* ---- log ----------------------------------------------------------------------------------- */

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/** Set once by driver/, before the first message.  host may be NULL. */
void log_setup(int rank, const char *host, enum log_level level, bool json);
/** stderr, on rank 0 alone. */
void log_info(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void log_debug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** stderr, on each rank, as "[rank 3 host]". */
void log_rank(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** The one error line of a failed run: "tokentab: message".  driver/ alone calls it. */
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/** One JSON event {"event": name, "time": ..., "rank": ..., ...fields} when JSON logging is on,
 * from each rank that calls it; `fields_json` is the inside of an object ("\"shard\": 3") or "".  A
 *  "rank" among the fields takes the place of the writer's. */
void log_event(const char *name, const char *fields_json);
bool log_is_json(void);
/** Seconds of the monotonic clock. */
double clock_s(void);

/* ---- fault points -------------------------------------------------------------------------- */

/** True when the fault point `name` is armed for this rank and its countdown has run out.  Armed by
 *  TOKENTAB_FAULT="name[@rank|@all][#nth][,...]" (nth hit, from 1; default 1; every later hit too
 * if written "#n+"; every rank if none is named).  Always false where TOKENTAB_FAULTS is not
 * compiled in.  Rank: that of log_setup.  A changed variable starts to count anew; an entry that
 * cannot be read is said on stderr.  Points of base: mem_alloc, file_read, file_write, file_sync,
 *  file_rename. */
#if TOKENTAB_FAULTS
bool fault_hit(const char *name);
/** The value of environment variable `name`, NULL when unset: test hooks that need a parameter. */
const char *fault_value(const char *name);
#else
static inline bool fault_hit(const char *name)
{
    (void)name;
    return false;
}
static inline const char *fault_value(const char *name)
{
    (void)name;
    return NULL;
}
#endif

#endif
