/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/formats_internal.h"
#include "formats/shard_internal.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An open file and what its sizes are held against. */
struct shard_source {
    const char *path;
    hid_t file;
    uint64_t size_bytes;
};

static enum status missing(const struct shard_source *s, const char *what, struct err *err)
{
    return shard_h5_fault(err, ST_FORMAT, s->path, what);
}

/* A dataset of rank 1 or 2 of fixed-size elements that lie in this file: its dims, and that the
 * product does not exceed the file, so that what is allocated for it is bounded. */
static hid_t open_dataset(const struct shard_source *s, const char *name, int rank,
                          size_t element_size, hsize_t dims[2])
{
    uint64_t bytes = element_size;
    hid_t set = H5Dopen2(s->file, name, H5P_DEFAULT);
    hid_t space = set >= 0 ? H5Dget_space(set) : H5I_INVALID_HID;
    hid_t type = set >= 0 ? H5Dget_type(set) : H5I_INVALID_HID;
    bool ok = space >= 0 && type >= 0 && H5Sget_simple_extent_ndims(space) == rank &&
              H5Sget_simple_extent_dims(space, dims, NULL) == rank &&
              (element_size == 0 || H5Tget_size(type) == element_size);
    if (ok && element_size == 0)
        bytes = H5Tget_size(type);
    for (int d = 0; ok && d < rank; d++)
        ok = mul_u64(bytes, dims[d], &bytes);
    ok = ok && bytes <= s->size_bytes;
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (ok)
        return set;
    if (set >= 0)
        H5Dclose(set);
    return H5I_INVALID_HID;
}

/* ---- info ---------------------------------------------------------------------------------- */

static enum status read_header(const struct shard_source *s, struct format_shard_info *info,
                               struct err *err)
{
    uint64_t n_tables = 0;
    uint64_t complete = 0;
    uint64_t end;
    TRY(shard_h5_check_format(s->file, s->path, SHARD_FORMAT, err));
    if (!shard_h5_get_u64(s->file, "unit", &info->unit) ||
        !shard_h5_get_u64(s->file, "first_row", &info->first_row) ||
        !shard_h5_get_u64(s->file, "n_rows", &info->n_rows) ||
        !shard_h5_get_u64(s->file, "n_tables", &n_tables))
        return missing(s, "attributes unit, first_row, n_rows, n_tables: not there or not u64",
                       err);
    if (!add_u64(info->first_row, info->n_rows, &end) || !u64_to_size(n_tables, &info->n_tables))
        return err_set(err, ST_FORMAT, "%s: rows %" PRIu64 " + %" PRIu64 ": out of range", s->path,
                       info->first_row, info->n_rows);
    info->complete = shard_h5_get_u64(s->file, "complete", &complete) && complete == 1;
    info->fingerprint = shard_h5_get_text(s->file, "fingerprint");
    return info->fingerprint != NULL ? ST_OK : missing(s, "attribute fingerprint: not there", err);
}

static enum status read_digests(const struct shard_source *s, struct format_shard_info *info,
                                struct err *err)
{
    hsize_t dims[2] = {0, 0};
    hid_t set = open_dataset(s, "table_digests", 2, 1, dims);
    if (set < 0 || dims[0] != info->n_tables || dims[1] != sizeof info->table_digests->bytes) {
        if (set >= 0)
            H5Dclose(set);
        return missing(s, "table_digests: not there or not of n_tables rows", err);
    }
    enum status st = ST_OK;
    info->table_digests = calloc(info->n_tables + 1, sizeof *info->table_digests);
    if (info->table_digests == NULL)
        st = err_nomem(err, (info->n_tables + 1) * sizeof *info->table_digests);
    else if (info->n_tables > 0 &&
             H5Dread(set, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, info->table_digests) < 0)
        st = missing(s, "table_digests: not readable", err);
    H5Dclose(set);
    info->table_names = st == ST_OK ? shard_h5_get_long_text(s->file, "table_names") : NULL;
    if (st == ST_OK && info->table_names == NULL)
        st = missing(s, "table_names: not there", err);
    return st;
}

static enum status read_statistics(const struct shard_source *s, struct format_shard_info *info,
                                   struct err *err)
{
    hsize_t dims[2] = {0, 0};
    hid_t set = open_dataset(s, "statistics", 2, sizeof(double), dims);
    if (set < 0)
        return missing(s, "statistics: not there or not [records, fields] of F64", err);
    /* records x fields x 8 is at most the size of the file */
    info->n_records = (size_t)dims[0];
    info->n_fields = (size_t)dims[1];
    size_t n = info->n_records * info->n_fields;
    enum status st = ST_OK;
    info->statistics = calloc(n + 1, sizeof *info->statistics);
    if (info->statistics == NULL)
        st = err_nomem(err, (n + 1) * sizeof *info->statistics);
    else if (n > 0 &&
             H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, info->statistics) < 0)
        st = missing(s, "statistics: not readable", err);
    H5Dclose(set);
    info->statistics_columns =
        st == ST_OK ? shard_h5_get_long_text(s->file, "statistics_columns") : NULL;
    if (st == ST_OK && info->statistics_columns == NULL)
        st = missing(s, "statistics_columns: not there", err);
    return st;
}

static enum status take_fields(const struct shard_source *s, const cJSON *json,
                               struct format_shard_info *info, struct err *err)
{
    size_t n = 0;
    if (!cJSON_IsObject(json))
        return err_set(err, ST_FORMAT, "%s: fingerprint_fields: expected an object", s->path);
    for (const cJSON *c = json->child; c != NULL; c = c->next)
        n++;
    info->fingerprint_fields = calloc(n + 1, sizeof *info->fingerprint_fields);
    if (info->fingerprint_fields == NULL)
        return err_nomem(err, (n + 1) * sizeof *info->fingerprint_fields);
    for (const cJSON *c = json->child; c != NULL; c = c->next) {
        if (!cJSON_IsString(c))
            return err_set(err, ST_FORMAT, "%s: fingerprint_fields: expected strings", s->path);
        struct format_field *f = &info->fingerprint_fields[info->n_fingerprint_fields++];
        f->name = str_dup(c->string);
        f->value = str_dup(c->valuestring);
        if (f->name == NULL || f->value == NULL)
            return err_nomem(err, strlen(c->string) + strlen(c->valuestring) + 2);
    }
    return ST_OK;
}

static enum status read_fields(const struct shard_source *s, struct format_shard_info *info,
                               struct err *err)
{
    struct cJSON *json = NULL;
    char *text = shard_h5_get_long_text(s->file, "fingerprint_fields");
    if (text == NULL)
        return missing(s, "fingerprint_fields: not there", err);
    enum status st = format_json_parse(s->path, text, strlen(text), &json, err);
    free(text);
    if (st == ST_OK)
        st = take_fields(s, json, info, err);
    format_json_free(&json);
    return st;
}

enum status format_shard_info_read(const char *path, struct format_shard_info **out,
                                   struct err *err)
{
    struct shard_source s = {.path = path, .file = H5I_INVALID_HID};
    *out = NULL;
    struct format_shard_info *info = calloc(1, sizeof *info);
    if (info == NULL)
        return err_nomem(err, sizeof *info);
    struct shard_h5_log log;
    shard_h5_begin(&log);
    enum status st = shard_h5_open(path, &s.file, &s.size_bytes, err);
    if (st == ST_OK)
        st = read_header(&s, info, err);
    if (st == ST_OK)
        st = read_digests(&s, info, err);
    if (st == ST_OK)
        st = read_statistics(&s, info, err);
    if (st == ST_OK)
        st = read_fields(&s, info, err);
    if (s.file >= 0)
        H5Fclose(s.file);
    shard_h5_end();
    if (st != ST_OK) {
        format_shard_info_free(&info);
        return st;
    }
    *out = info;
    return ST_OK;
}

void format_shard_info_free(struct format_shard_info **info)
{
    if (info == NULL || *info == NULL)
        return;
    struct format_shard_info *i = *info;
    for (size_t f = 0; f < i->n_fingerprint_fields; f++) {
        free(i->fingerprint_fields[f].name);
        free(i->fingerprint_fields[f].value);
    }
    free(i->fingerprint_fields);
    free(i->table_digests);
    free(i->table_names);
    free(i->statistics);
    free(i->statistics_columns);
    free(i->fingerprint);
    free(i);
    *info = NULL;
}

/* ---- tables and columns -------------------------------------------------------------------- */

struct format_shard_reader {
    char *path; /* owned */
    struct shard_source source;
    uint64_t n_rows;
    /* the table that was read last stays open: windows of one table follow one another */
    char open_name[SHARD_PATH_SIZE];
    hid_t set, type;
    uint64_t width;
    enum dtype dtype;
};

static void close_table(struct format_shard_reader *r)
{
    if (r->set >= 0)
        H5Dclose(r->set);
    if (r->type >= 0)
        H5Tclose(r->type);
    r->set = r->type = H5I_INVALID_HID;
    r->open_name[0] = '\0';
}

enum status format_shard_reader_open(const char *path, struct format_shard_reader **out,
                                     struct err *err)
{
    uint64_t complete = 0;
    *out = NULL;
    struct format_shard_reader *r = calloc(1, sizeof *r);
    if (r == NULL)
        return err_nomem(err, sizeof *r);
    r->source.file = r->set = r->type = H5I_INVALID_HID;
    r->path = str_dup(path);
    r->source.path = r->path;
    enum status st = r->path == NULL ? err_nomem(err, strlen(path) + 1) : ST_OK;
    struct shard_h5_log log;
    shard_h5_begin(&log);
    if (st == ST_OK)
        st = shard_h5_open(path, &r->source.file, &r->source.size_bytes, err);
    if (st == ST_OK)
        st = shard_h5_check_format(r->source.file, path, SHARD_FORMAT, err);
    if (st == ST_OK && !shard_h5_get_u64(r->source.file, "n_rows", &r->n_rows))
        st = missing(&r->source, "attribute n_rows: not there", err);
    if (st == ST_OK && (!shard_h5_get_u64(r->source.file, "complete", &complete) || complete != 1))
        st = err_set(err, ST_FORMAT, "%s: not marked complete: its writer was stopped", path);
    shard_h5_end();
    if (st != ST_OK) {
        format_shard_reader_close(&r);
        return st;
    }
    *out = r;
    return ST_OK;
}

void format_shard_reader_close(struct format_shard_reader **reader)
{
    if (reader == NULL || *reader == NULL)
        return;
    struct format_shard_reader *r = *reader;
    close_table(r);
    if (r->source.file >= 0)
        H5Fclose(r->source.file);
    free(r->path);
    free(r);
    *reader = NULL;
}

static enum status open_table(struct format_shard_reader *r, const char *route, const char *output,
                              struct err *err)
{
    hsize_t dims[2] = {0, 0};
    char name[SHARD_PATH_SIZE];
    int size = snprintf(name, sizeof name, "tables/%s/%s", route, output);
    if (size < 0 || (size_t)size >= sizeof name)
        return err_set(err, ST_INTERNAL, "%s: table names too long", r->path);
    if (strcmp(name, r->open_name) == 0)
        return ST_OK;
    close_table(r);
    r->set = open_dataset(&r->source, name, 2, 0, dims);
    char *dtype = r->set >= 0 ? shard_h5_get_text(r->set, "dtype") : NULL;
    r->dtype = dtype == NULL ? DT_UNKNOWN : dtype_from_name(dtype, strlen(dtype));
    free(dtype);
    r->type = shard_h5_type(r->dtype);
    r->width = dims[1];
    hid_t stored = r->set >= 0 ? H5Dget_type(r->set) : H5I_INVALID_HID;
    bool ok = r->type >= 0 && stored >= 0 && dims[0] == r->n_rows && H5Tequal(r->type, stored) > 0;
    if (stored >= 0)
        H5Tclose(stored);
    if (!ok) {
        close_table(r);
        enum status st = missing(&r->source, "not there, or not [n_rows, width] of its dtype", err);
        err_prefix(err, "table %s/%s", route, output);
        return st;
    }
    memcpy(r->open_name, name, (size_t)size + 1);
    return ST_OK;
}

enum status format_shard_reader_table(struct format_shard_reader *r, const char *route,
                                      const char *output, enum dtype *dtype, uint64_t *width,
                                      struct err *err)
{
    struct shard_h5_log log;
    shard_h5_begin(&log);
    enum status st = open_table(r, route, output, err);
    shard_h5_end();
    *dtype = r->dtype;
    *width = r->width;
    return st;
}

/* Stored elements as they lie in the file: memory and file type are one, nothing is converted. */
static herr_t read_rows(const struct format_shard_reader *r, uint64_t first, uint64_t n, void *dst)
{
    const hsize_t start[2] = {first, 0};
    const hsize_t count[2] = {n, r->width};
    herr_t rc = -1;
    hid_t file_space = H5Dget_space(r->set);
    hid_t memory_space = H5Screate_simple(2, count, NULL);
    if (file_space >= 0 && memory_space >= 0 &&
        H5Sselect_hyperslab(file_space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0)
        rc = H5Dread(r->set, r->type, memory_space, file_space, H5P_DEFAULT, dst);
    if (memory_space >= 0)
        H5Sclose(memory_space);
    if (file_space >= 0)
        H5Sclose(file_space);
    return rc;
}

static enum status rows_of(struct format_shard_reader *r, const char *route, const char *output,
                           uint64_t first, uint64_t n, void *dst, struct err *err)
{
    uint64_t end;
    TRY(open_table(r, route, output, err));
    if (!add_u64(first, n, &end) || end > r->n_rows)
        return err_set(err, ST_INTERNAL,
                       "%s: rows %" PRIu64 " + %" PRIu64 " asked for, it has %" PRIu64, r->path,
                       first, n, r->n_rows);
    if (n == 0 || r->width == 0 || read_rows(r, first, n, dst) >= 0)
        return ST_OK;
    enum status st = missing(&r->source, "not readable", err);
    err_prefix(err, "table %s/%s", route, output);
    return st;
}

enum status format_shard_reader_rows(struct format_shard_reader *r, const char *route,
                                     const char *output, uint64_t first, uint64_t n, void *dst,
                                     struct err *err)
{
    struct shard_h5_log log;
    if (fault_hit("shard_read"))
        return err_set(err, ST_IO, "%s: fault point shard_read: %s", r->path, strerror(EIO));
    shard_h5_begin(&log);
    enum status st = rows_of(r, route, output, first, n, dst, err);
    shard_h5_end();
    return st;
}

static enum status column_of(struct format_shard_reader *r, const char *path, double *dst,
                             struct err *err)
{
    hsize_t dims[2] = {0, 0};
    hid_t set = open_dataset(&r->source, path, 1, sizeof(double), dims);
    herr_t rc = set >= 0 && dims[0] == r->n_rows ? 0 : -1;
    if (rc >= 0 && r->n_rows > 0)
        rc = H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, dst);
    if (set >= 0)
        H5Dclose(set);
    if (rc >= 0)
        return ST_OK;
    enum status st = missing(&r->source, "not there, or not [n_rows] of F64", err);
    err_prefix(err, "%s", path);
    return st;
}

enum status format_shard_reader_column(struct format_shard_reader *r, const char *name, double *dst,
                                       struct err *err)
{
    struct shard_h5_log log;
    char path[SHARD_PATH_SIZE];
    int size = snprintf(path, sizeof path, "columns/%s", name);
    if (size < 0 || (size_t)size >= sizeof path)
        return err_set(err, ST_INTERNAL, "%s: column name too long", r->path);
    if (fault_hit("shard_read"))
        return err_set(err, ST_IO, "%s: fault point shard_read: %s", r->path, strerror(EIO));
    shard_h5_begin(&log);
    enum status st = column_of(r, path, dst, err);
    shard_h5_end();
    return st;
}
