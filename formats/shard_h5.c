/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_system.h"
#include "formats/shard_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- faults -------------------------------------------------------------------------------- */

/* Innermost first: its text is the message; a lock may be named further out. */
static herr_t keep_message(unsigned n, const H5E_error2_t *e, void *ctx)
{
    struct shard_h5_log *log = ctx;
    const char *desc = e->desc == NULL ? "" : e->desc;
    if (n == 0) {
        snprintf(log->text, sizeof log->text, "%s", desc);
        for (char *c = log->text; *c != '\0'; c++) /* a failed write prints a date and a newline */
            if ((unsigned char)*c < 0x20)
                *c = ' ';
    }
    log->lock =
        log->lock || strstr(desc, "lock file") != NULL || strstr(desc, "lock the file") != NULL;
    return 0;
}

/* Called by HDF5 when a call fails; the first one counts. */
static herr_t keep_first(hid_t stack, void *ctx)
{
    const struct shard_h5_log *log = ctx;
    if (log->text[0] == '\0')
        H5Ewalk2(stack, H5E_WALK_UPWARD, keep_message, ctx);
    return 0;
}

void shard_h5_begin(struct shard_h5_log *log)
{
    *log = (struct shard_h5_log){.text = ""};
    H5Eset_auto2(H5E_DEFAULT, keep_first, log);
}

void shard_h5_end(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

enum status shard_h5_fault(struct err *err, enum status st, const char *path, const char *what)
{
    H5E_auto2_t fn = NULL;
    void *ctx = NULL;
    char fs[FILE_SYSTEM_NAME_SIZE];
    struct shard_h5_log m = {.text = ""};
    if (H5Eget_auto2(H5E_DEFAULT, &fn, &ctx) >= 0 && fn == keep_first) {
        struct shard_h5_log *log = ctx;
        m = *log;
        *log = (struct shard_h5_log){.text = ""};
    }
    if (m.lock)
        return err_set(err, ST_LOCKED,
                       "%s: %s: %s (file system %s; if it has no locks, set "
                       "HDF5_USE_FILE_LOCKING=FALSE)",
                       path, what, m.text, file_system_name(path, fs));
    if (strstr(m.text, "errno") != NULL)
        st = ST_IO;
    return err_set(err, st, "%s: %s%s%s", path, what, m.text[0] == '\0' ? "" : ": ", m.text);
}

/* ---- files --------------------------------------------------------------------------------- */

static hid_t access_plist(H5F_libver_t low, struct shard_sink *sink)
{
    hid_t p = H5Pcreate(H5P_FILE_ACCESS);
    if (p >= 0 && (sink == NULL ? H5Pset_fapl_sec2(p) : shard_sink_plist(sink, p)) >= 0 &&
        H5Pset_libver_bounds(p, low, H5F_LIBVER_V110) >= 0 &&
        H5Pset_fclose_degree(p, H5F_CLOSE_STRONG) >= 0)
        return p;
    if (p >= 0)
        H5Pclose(p);
    return H5I_INVALID_HID;
}

enum status shard_h5_create(const char *path, H5F_libver_t low, struct shard_sink *sink,
                            hid_t *file, struct err *err)
{
    *file = H5I_INVALID_HID;
    TRY(shard_sink_open(path, sink, err));
    hid_t fapl = access_plist(low, sink);
    hid_t fcpl = H5Pcreate(H5P_FILE_CREATE);
    if (fapl >= 0 && fcpl >= 0 && H5Pset_obj_track_times(fcpl, false) >= 0)
        *file = H5Fcreate(path, H5F_ACC_TRUNC, fcpl, fapl);
    enum status st = *file >= 0 ? ST_OK : shard_h5_fault(err, ST_IO, path, "cannot be made");
    if (fcpl >= 0)
        H5Pclose(fcpl);
    if (fapl >= 0)
        H5Pclose(fapl);
    return st;
}

enum status shard_h5_finish(struct shard_sink *sink, enum status st, hid_t *file, struct err *err)
{
    if (*file >= 0 && H5Fclose(*file) < 0 && st == ST_OK)
        st = shard_h5_fault(err, ST_IO, sink->path, "cannot be closed");
    *file = H5I_INVALID_HID;
    struct err unheard = {0};
    enum status last = shard_sink_finish(sink, st == ST_OK ? err : &unheard);
    return st == ST_OK ? last : st;
}

enum status shard_h5_open(const char *path, hid_t *file, uint64_t *size_bytes, struct err *err)
{
    static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    uint8_t head[8] = {0};
    int fd = -1;
    *file = H5I_INVALID_HID;
    TRY(file_open_read(path, &fd, size_bytes, err));
    enum status st = ST_OK;
    if (*size_bytes >= sizeof head)
        st = file_read_at(fd, path, 0, head, sizeof head, err);
    close(fd);
    TRY(st);
    if (memcmp(head, signature, sizeof head) != 0)
        return err_set(err, ST_FORMAT, "%s: expected the signature of HDF5, found %s", path,
                       *size_bytes == 0 ? "an empty file" : "other bytes");
    hid_t fapl = access_plist(H5F_LIBVER_V18, NULL);
    if (fapl >= 0)
        *file = H5Fopen(path, H5F_ACC_RDONLY, fapl);
    if (*file < 0)
        st = shard_h5_fault(err, ST_FORMAT, path, "not a whole HDF5 file");
    if (fapl >= 0)
        H5Pclose(fapl);
    return st;
}

/* ---- types, groups, datasets --------------------------------------------------------------- */

/* The layout that h5py takes for numpy's float16. */
static hid_t half_type(void)
{
    hid_t t = H5Tcopy(H5T_IEEE_F32LE);
    if (t >= 0 && H5Tset_fields(t, 15, 10, 5, 0, 10) >= 0 && H5Tset_size(t, 2) >= 0 &&
        H5Tset_ebias(t, 15) >= 0)
        return t;
    if (t >= 0)
        H5Tclose(t);
    return H5I_INVALID_HID;
}

hid_t shard_h5_type(enum dtype dt)
{
    switch (dt) {
    case DT_F64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case DT_F32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case DT_F16:
        return half_type();
    case DT_BF16:
    case DT_U16:
        return H5Tcopy(H5T_STD_U16LE);
    case DT_I64:
        return H5Tcopy(H5T_STD_I64LE);
    case DT_I32:
        return H5Tcopy(H5T_STD_I32LE);
    case DT_I16:
        return H5Tcopy(H5T_STD_I16LE);
    case DT_I8:
        return H5Tcopy(H5T_STD_I8LE);
    case DT_U64:
        return H5Tcopy(H5T_STD_U64LE);
    case DT_U32:
        return H5Tcopy(H5T_STD_U32LE);
    case DT_U8:
    case DT_BOOL:
        return H5Tcopy(H5T_STD_U8LE);
    case DT_F8_E4M3:
    case DT_F8_E5M2:
    case DT_UNKNOWN:
    case DT_COUNT:
        break;
    }
    return H5I_INVALID_HID;
}

hid_t shard_h5_dataset_plist(void)
{
    hid_t p = H5Pcreate(H5P_DATASET_CREATE);
    if (p >= 0 && H5Pset_obj_track_times(p, false) >= 0 && H5Pset_layout(p, H5D_CONTIGUOUS) >= 0 &&
        H5Pset_fill_time(p, H5D_FILL_TIME_NEVER) >= 0)
        return p;
    if (p >= 0)
        H5Pclose(p);
    return H5I_INVALID_HID;
}

herr_t shard_h5_groups(hid_t file, const char *path)
{
    char part[SHARD_PATH_SIZE];
    herr_t rc = 0;
    hid_t gcpl = H5Pcreate(H5P_GROUP_CREATE);
    if (gcpl < 0 || H5Pset_obj_track_times(gcpl, false) < 0 || strlen(path) >= sizeof part)
        rc = -1;
    for (size_t i = 1; rc >= 0 && i <= strlen(path); i++) {
        if (path[i] != '/' && path[i] != '\0')
            continue;
        memcpy(part, path, i);
        part[i] = '\0';
        htri_t there = H5Lexists(file, part, H5P_DEFAULT);
        if (there > 0)
            continue;
        hid_t g =
            there < 0 ? H5I_INVALID_HID : H5Gcreate2(file, part, H5P_DEFAULT, gcpl, H5P_DEFAULT);
        rc = g < 0 ? -1 : H5Gclose(g);
    }
    if (gcpl >= 0)
        H5Pclose(gcpl);
    return rc;
}

hid_t shard_h5_dataset(hid_t file, const char *path, hid_t type, int rank, const hsize_t *dims,
                       const void *data)
{
    hid_t dcpl = shard_h5_dataset_plist();
    hid_t space = rank == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(rank, dims, NULL);
    hid_t set = H5I_INVALID_HID;
    bool empty = false;
    for (int d = 0; d < rank; d++)
        empty = empty || dims[d] == 0;
    if (dcpl >= 0 && space >= 0 && type >= 0)
        set = H5Dcreate2(file, path, type, space, H5P_DEFAULT, dcpl, H5P_DEFAULT);
    if (set >= 0 && !empty && H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
        H5Dclose(set);
        set = H5I_INVALID_HID;
    }
    if (space >= 0)
        H5Sclose(space);
    if (dcpl >= 0)
        H5Pclose(dcpl);
    return set;
}

/* ---- attributes and texts ------------------------------------------------------------------ */

static herr_t put_attribute(hid_t object, const char *name, hid_t type, const void *value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5I_INVALID_HID;
    herr_t rc = -1;
    if (space >= 0 && type >= 0)
        a = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (a >= 0)
        rc = H5Awrite(a, type, value);
    if (a >= 0 && H5Aclose(a) < 0)
        rc = -1;
    if (space >= 0)
        H5Sclose(space);
    return rc;
}

herr_t shard_h5_put_u64(hid_t object, const char *name, uint64_t value)
{
    return put_attribute(object, name, H5T_STD_U64LE, &value);
}

/* Fixed length with its NUL. */
static hid_t text_type(size_t size)
{
    hid_t t = H5Tcopy(H5T_C_S1);
    if (t >= 0 && H5Tset_size(t, size + 1) >= 0 && H5Tset_cset(t, H5T_CSET_UTF8) >= 0)
        return t;
    if (t >= 0)
        H5Tclose(t);
    return H5I_INVALID_HID;
}

herr_t shard_h5_put_text(hid_t object, const char *name, const char *value)
{
    hid_t type = text_type(strlen(value));
    herr_t rc = put_attribute(object, name, type, value);
    if (type >= 0)
        H5Tclose(type);
    return rc;
}

static bool is_scalar(hid_t space)
{
    return space >= 0 && H5Sget_simple_extent_npoints(space) == 1;
}

bool shard_h5_get_u64(hid_t object, const char *name, uint64_t *value)
{
    bool ok = false;
    if (H5Aexists(object, name) <= 0)
        return false;
    hid_t a = H5Aopen(object, name, H5P_DEFAULT);
    hid_t type = a >= 0 ? H5Aget_type(a) : H5I_INVALID_HID;
    hid_t space = a >= 0 ? H5Aget_space(a) : H5I_INVALID_HID;
    if (type >= 0 && is_scalar(space) && H5Tget_class(type) == H5T_INTEGER &&
        H5Tget_size(type) == sizeof *value)
        ok = H5Aread(a, H5T_NATIVE_UINT64, value) >= 0;
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (a >= 0)
        H5Aclose(a);
    return ok;
}

/* Room for a fixed-length text of this type, zeroed; NULL for another kind of type. */
static char *text_room(hid_t type)
{
    if (type < 0 || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0)
        return NULL;
    size_t size = H5Tget_size(type);
    return size == 0 || size > SHARD_TEXT_MAX ? NULL : calloc(1, size + 1);
}

char *shard_h5_get_text(hid_t object, const char *name)
{
    char *text = NULL;
    if (H5Aexists(object, name) <= 0)
        return NULL;
    hid_t a = H5Aopen(object, name, H5P_DEFAULT);
    hid_t type = a >= 0 ? H5Aget_type(a) : H5I_INVALID_HID;
    hid_t space = a >= 0 ? H5Aget_space(a) : H5I_INVALID_HID;
    if (is_scalar(space))
        text = text_room(type);
    if (text != NULL && H5Aread(a, type, text) < 0) {
        free(text);
        text = NULL;
    }
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (a >= 0)
        H5Aclose(a);
    return text;
}

herr_t shard_h5_put_long_text(hid_t file, const char *path, const char *value)
{
    hid_t type = text_type(strlen(value));
    hid_t set = shard_h5_dataset(file, path, type, 0, NULL, value);
    if (type >= 0)
        H5Tclose(type);
    return set < 0 ? -1 : H5Dclose(set);
}

char *shard_h5_get_long_text(hid_t file, const char *path)
{
    char *text = NULL;
    if (H5Lexists(file, path, H5P_DEFAULT) <= 0)
        return NULL;
    hid_t set = H5Dopen2(file, path, H5P_DEFAULT);
    hid_t type = set >= 0 ? H5Dget_type(set) : H5I_INVALID_HID;
    hid_t space = set >= 0 ? H5Dget_space(set) : H5I_INVALID_HID;
    if (is_scalar(space))
        text = text_room(type);
    if (text != NULL && H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, text) < 0) {
        free(text);
        text = NULL;
    }
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (set >= 0)
        H5Dclose(set);
    return text;
}

enum status shard_h5_check_format(hid_t file, const char *path, const char *format, struct err *err)
{
    uint64_t version = 0;
    char *found = shard_h5_get_text(file, "format");
    bool ours = found != NULL && strcmp(found, format) == 0;
    free(found);
    if (!ours)
        return err_set(err, ST_FORMAT, "%s: attribute format: expected \"%s\"", path, format);
    if (!shard_h5_get_u64(file, "version", &version))
        return err_set(err, ST_FORMAT, "%s: attribute version: not there", path);
    if (version != SHARD_VERSION)
        return err_set(err, ST_FORMAT, "%s: version %" PRIu64 ", newest known %d", path, version,
                       SHARD_VERSION);
    return ST_OK;
}
