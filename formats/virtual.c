/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h5: whole tables as virtual datasets over the unit files.  HDF5 looks for a relative name
 * beside the virtual file, so the folder may be moved. */
#include "formats/shard_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Rows that no source holds read as NaN, never as zeros (N65). */
static herr_t set_fill(hid_t dcpl, hid_t type, enum dtype dt)
{
    const double f64 = (double)NAN;
    const float f32 = NAN;
    const uint16_t f16 = 0x7e00;
    const uint16_t bf16 = 0x7fc0;
    switch (dt) {
    case DT_F64:
        return H5Pset_fill_value(dcpl, type, &f64);
    case DT_F32:
        return H5Pset_fill_value(dcpl, type, &f32);
    case DT_F16:
        return H5Pset_fill_value(dcpl, type, &f16);
    case DT_BF16:
        return H5Pset_fill_value(dcpl, type, &bf16);
    default:
        return 0;
    }
}

static herr_t map_source(hid_t dcpl, hid_t space, const char *set_name, uint64_t width,
                         const struct format_virtual_source *source)
{
    const hsize_t start[2] = {source->first_row, 0};
    const hsize_t count[2] = {source->n_rows, width};
    herr_t rc = -1;
    hid_t source_space = H5Screate_simple(2, count, NULL);
    if (source_space >= 0 &&
        H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0)
        rc = H5Pset_virtual(dcpl, space, source->file, set_name, source_space);
    if (source_space >= 0)
        H5Sclose(source_space);
    return rc;
}

static herr_t put_virtual(hid_t file, const struct format_shard_table *t, uint64_t n_rows,
                          const struct format_virtual_source *sources, size_t n_sources)
{
    const hsize_t dims[2] = {n_rows, t->width};
    char path[SHARD_PATH_SIZE];
    hid_t set = H5I_INVALID_HID;
    hid_t type = shard_h5_type(t->dtype);
    hid_t dcpl = H5Pcreate(H5P_DATASET_CREATE);
    hid_t space = H5Screate_simple(2, dims, NULL);
    snprintf(path, sizeof path, "tables/%s", t->route);
    herr_t rc = type >= 0 && dcpl >= 0 && space >= 0 ? shard_h5_groups(file, path) : -1;
    if (rc >= 0)
        rc = H5Pset_obj_track_times(dcpl, false);
    if (rc >= 0)
        rc = set_fill(dcpl, type, t->dtype);
    snprintf(path, sizeof path, "/tables/%s/%s", t->route, t->output);
    for (size_t i = 0; i < n_sources && rc >= 0 && t->width > 0; i++)
        if (sources[i].n_rows > 0)
            rc = map_source(dcpl, space, path, t->width, &sources[i]);
    if (rc >= 0) {
        H5Sselect_all(space);
        set = H5Dcreate2(file, path, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
        rc = set < 0 ? -1 : shard_h5_put_text(set, "dtype", dtype_name(t->dtype));
    }
    if (set >= 0 && H5Dclose(set) < 0)
        rc = -1;
    if (space >= 0)
        H5Sclose(space);
    if (dcpl >= 0)
        H5Pclose(dcpl);
    if (type >= 0)
        H5Tclose(type);
    return rc;
}

/* HDF5 reads '%' in a source name as a pattern; a name that is not relative ties the folder to its
 * place. */
static enum status check_sources(const char *path, uint64_t n_rows,
                                 const struct format_virtual_source *sources, size_t n,
                                 struct err *err)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t end;
        const struct format_virtual_source *s = &sources[i];
        if (s->file[0] == '/' || s->file[0] == '\0' || strchr(s->file, '%') != NULL ||
            !add_u64(s->first_row, s->n_rows, &end) || end > n_rows)
            return err_set(err, ST_INTERNAL, "%s: source %s cannot be mapped", path, s->file);
    }
    return ST_OK;
}

static enum status write_tmp(const char *tmp, const struct format_shard_table *tables,
                             size_t n_tables, uint64_t n_rows,
                             const struct format_virtual_source *sources, size_t n_sources,
                             struct err *err)
{
    hid_t file = H5I_INVALID_HID;
    struct shard_sink sink;
    enum status st = shard_h5_create(tmp, H5F_LIBVER_V110, &sink, &file, err);
    herr_t rc = st == ST_OK ? shard_h5_put_text(file, "format", SHARD_TABLES_FORMAT) : -1;
    if (rc >= 0)
        rc = shard_h5_put_u64(file, "version", SHARD_VERSION);
    if (rc >= 0)
        rc = shard_h5_put_u64(file, "n_rows", n_rows);
    for (size_t i = 0; i < n_tables && rc >= 0; i++)
        rc = put_virtual(file, &tables[i], n_rows, sources, n_sources);
    if (rc < 0 && st == ST_OK)
        st = shard_h5_fault(err, ST_IO, tmp, "cannot be written");
    return shard_h5_finish(&sink, st, &file, err);
}

enum status format_virtual_write(const char *path, const struct format_shard_table *tables,
                                 size_t n_tables, uint64_t n_rows,
                                 const struct format_virtual_source *sources, size_t n_sources,
                                 struct err *err)
{
    TRY(check_sources(path, n_rows, sources, n_sources, err));
    char *tmp = str_printf("%s.tmp", path);
    if (tmp == NULL)
        return err_nomem(err, strlen(path) + 5);
    struct shard_h5_log log;
    shard_h5_begin(&log);
    enum status st = write_tmp(tmp, tables, n_tables, n_rows, sources, n_sources, err);
    shard_h5_end();
    if (st == ST_OK)
        st = file_rename(tmp, path, err);
    if (st != ST_OK)
        unlink(tmp);
    free(tmp);
    return st;
}
