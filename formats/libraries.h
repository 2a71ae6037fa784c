/* SPDX-License-Identifier: Apache-2.0 */
/** formats: the libraries it is linked with, as the program runs with them; for doctor. */
#ifndef FORMATS_LIBRARIES_H
#define FORMATS_LIBRARIES_H

#include "base/base.h"

enum { FORMAT_VERSION_TEXT = 32, FORMAT_HDF5_FILTERS = 7 };

struct format_hdf5_filter {
    const char *name; /* static */
    bool available;
};

struct format_hdf5_info {
    char version[FORMAT_VERSION_TEXT];
    struct format_hdf5_filter filters[FORMAT_HDF5_FILTERS];
};

/** Version of the HDF5 library and which filters it has: deflate, shuffle, fletcher32, szip, nbit,
 *  scaleoffset, zstd (a plugin, 32015).  Local.  ST_ENVIRONMENT where it does not answer. */
NODISCARD enum status format_hdf5_info_read(struct format_hdf5_info *out, struct err *err);
/** "1.5.4" and "1.7.15".  Pure; static storage. */
const char *format_zstd_version(void);
const char *format_cjson_version(void);

#endif
