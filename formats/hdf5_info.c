/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/libraries.h"

#include <hdf5.h>
#include <stdio.h>

/* Registered with The HDF Group; not in plain builds. */
enum { FILTER_ZSTD = 32015 };

enum status format_hdf5_info_read(struct format_hdf5_info *out, struct err *err)
{
    static const struct {
        const char *name;
        H5Z_filter_t id;
    } known[FORMAT_HDF5_FILTERS] = {{"deflate", H5Z_FILTER_DEFLATE},
                                    {"shuffle", H5Z_FILTER_SHUFFLE},
                                    {"fletcher32", H5Z_FILTER_FLETCHER32},
                                    {"szip", H5Z_FILTER_SZIP},
                                    {"nbit", H5Z_FILTER_NBIT},
                                    {"scaleoffset", H5Z_FILTER_SCALEOFFSET},
                                    {"zstd", FILTER_ZSTD}};
    unsigned major = 0, minor = 0, release = 0;
    /* A filter that is no plugin either is an error to HDF5 and an answer to us. */
    if (H5open() < 0 || H5Eset_auto2(H5E_DEFAULT, NULL, NULL) < 0 ||
        H5get_libversion(&major, &minor, &release) < 0)
        return err_set(err, ST_ENVIRONMENT, "HDF5: the library does not answer");
    (void)snprintf(out->version, sizeof out->version, "%u.%u.%u", major, minor, release);
    for (size_t i = 0; i < FORMAT_HDF5_FILTERS; i++) {
        out->filters[i].name = known[i].name;
        out->filters[i].available = H5Zfilter_avail(known[i].id) > 0;
    }
    return ST_OK;
}
