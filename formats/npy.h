/* SPDX-License-Identifier: Apache-2.0 */
/** formats, .npy: NumPy's file of one array.  Version 1.0 is written, 1.0 to 3.0 are read;
 * row-major and little-endian alone.  NumPy has no bfloat16: BF16 elements are stored as '<u2', the
 * same bits, and come back as U16. */
#ifndef FORMATS_NPY_H
#define FORMATS_NPY_H

#include "base/base.h"

/** One dimension more than the ids of a gather may have. */
enum { FORMAT_NPY_MAX_RANK = 17 };

/** What the header of a .npy file says. */
struct format_npy {
    enum dtype dtype;
    unsigned rank;
    uint64_t shape[FORMAT_NPY_MAX_RANK];
    uint64_t n_elements;
    uint64_t offset; /* of the first element in the file */
};

/** Header of an array (to be followed by its elements), 64-byte aligned.  Bytes are a function of
 *  the arguments alone.  Pure.
 *  @param shape  [rank]
 *  @return ST_OK, ST_USAGE (dtype that NumPy lacks, rank too large), ST_NOMEM */
NODISCARD enum status format_npy_header(enum dtype dtype, unsigned rank, const uint64_t *shape,
                                        struct bytes *out, struct err *err);
/** Read and check the header: magic, version, keys, dtype, order, and that the file holds exactly
 *  the elements that the shape says.  Local.
 *  @param[out] fd  open for reading, the caller closes it; -1 after a failure
 *  @return ST_OK, ST_FORMAT, ST_IO, ST_NOMEM */
NODISCARD enum status format_npy_open(const char *path, int *fd, struct format_npy *out,
                                      struct err *err);
/** Do these first bytes of a file look like a .npy?  Pure. */
bool format_npy_is(const void *data, size_t size);

#endif
