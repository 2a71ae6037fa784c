/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private: HDF5, as the shard files use it.  Public functions stand between
 *  shard_h5_begin and shard_h5_end. */
#ifndef FORMATS_SHARD_INTERNAL_H
#define FORMATS_SHARD_INTERNAL_H

#include "formats/formats.h"

#include <hdf5.h>

#define SHARD_FORMAT "tokentab-shard"
#define SHARD_TABLES_FORMAT "tokentab-tables"
enum { SHARD_VERSION = 1, SHARD_PATH_SIZE = 1024, SHARD_TEXT_MAX = 1 << 24 };

/** The innermost message of the first call of HDF5 that failed: kept when it fails, since the calls
 *  that clean up clear the library's own record. */
struct shard_h5_log {
    char text[512];
    bool lock;
};
/** Send HDF5's errors to *log (borrowed until shard_h5_end) instead of stderr. */
void shard_h5_begin(struct shard_h5_log *log);
/** Silence again. */
void shard_h5_end(void);

/** Record the fault that the log of shard_h5_begin holds.  "errno" in its message makes it ST_IO, a
 *  lock ST_LOCKED with the remedy, all else `st`.  Clears the log. */
enum status shard_h5_fault(struct err *err, enum status st, const char *path, const char *what);

/** Where HDF5 writes: see shard_sink.c. */
struct shard_sink {
    const char *path; /* borrowed */
    int fd;
    hid_t driver;
    int error; /* errno of the first write that failed, 0 if none did */
    uint64_t error_at;
};
/** A new file, truncated.  ST_IO.  shard_sink_finish after success and failure. */
NODISCARD enum status shard_sink_open(const char *path, struct shard_sink *s, struct err *err);
/** Let a file access list write into the sink, which must outlive the file. */
herr_t shard_sink_plist(struct shard_sink *s, hid_t fapl);
/** The first failed write, ST_IO. */
NODISCARD enum status shard_sink_status(const struct shard_sink *s, struct err *err);
/** After H5Fclose: report, fsync, close. */
NODISCARD enum status shard_sink_finish(struct shard_sink *s, struct err *err);

/** A new file in a sink: fixed bounds, no object times.  shard_h5_finish after success and failure.
 */
NODISCARD enum status shard_h5_create(const char *path, H5F_libver_t low, struct shard_sink *sink,
                                      hid_t *file, struct err *err);
/** Size and signature are looked at before HDF5 sees the file.  ST_FORMAT, ST_IO, ST_LOCKED. */
NODISCARD enum status shard_h5_open(const char *path, hid_t *file, uint64_t *size_bytes,
                                    struct err *err);
/** Close and, when `st` (what came before) is ST_OK, fsync.  *file is invalid afterwards.  Returns
 * st or the first fault of its own. */
NODISCARD enum status shard_h5_finish(struct shard_sink *sink, enum status st, hid_t *file,
                                      struct err *err);

/** File type of a dtype, little-endian; F16 is the IEEE half that h5py reads as float16, BF16 is
 *  u16.  Close with H5Tclose; H5I_INVALID_HID if the dtype is none that a table may have. */
hid_t shard_h5_type(enum dtype dt);
/** Dataset creation properties: contiguous, no times, no fill. */
hid_t shard_h5_dataset_plist(void);
/** Make the groups of `path` ("a/b/c") that are not there.  Negative on failure. */
herr_t shard_h5_groups(hid_t file, const char *path);
/** A dataset of `type`, rank 0 to 2, written from data (NULL allowed without elements). */
hid_t shard_h5_dataset(hid_t file, const char *path, hid_t type, int rank, const hsize_t *dims,
                       const void *data);

/** Attributes.  Negative on failure. */
herr_t shard_h5_put_u64(hid_t object, const char *name, uint64_t value);
herr_t shard_h5_put_text(hid_t object, const char *name, const char *value);
/** False if it is absent or of another kind. */
bool shard_h5_get_u64(hid_t object, const char *name, uint64_t *value);
/** Owned, NULL if absent or of another kind. */
char *shard_h5_get_text(hid_t object, const char *name);

/** A scalar string dataset (texts too long for an attribute). */
herr_t shard_h5_put_long_text(hid_t file, const char *path, const char *value);
char *shard_h5_get_long_text(hid_t file, const char *path);

/** Common header of both kinds of file. */
NODISCARD enum status shard_h5_check_format(hid_t file, const char *path, const char *format,
                                            struct err *err);

#endif
