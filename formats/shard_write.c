/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/formats_internal.h"
#include "formats/shard_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* {"name": "value", ...} in the order given. */
static enum status fields_json(const struct format_field *fields, size_t n, struct bytes *out,
                               struct err *err)
{
    struct format_writer w = {0};
    format_write_object(&w, NULL);
    for (size_t i = 0; i < n; i++)
        format_write_string(&w, fields[i].name, fields[i].value);
    format_write_end_object(&w);
    bytes_put_u8(&w.out, 0);
    *out = w.out;
    return out->failed ? err_nomem(err, out->size) : ST_OK;
}

static herr_t put_header(hid_t file, const struct format_shard *s)
{
    if (shard_h5_put_text(file, "format", SHARD_FORMAT) < 0 ||
        shard_h5_put_u64(file, "version", SHARD_VERSION) < 0 ||
        shard_h5_put_u64(file, "unit", s->unit) < 0 ||
        shard_h5_put_u64(file, "first_row", s->first_row) < 0 ||
        shard_h5_put_u64(file, "n_rows", s->n_rows) < 0 ||
        shard_h5_put_u64(file, "n_tables", s->n_tables) < 0)
        return -1;
    return shard_h5_put_text(file, "fingerprint", s->fingerprint);
}

static herr_t put_table(hid_t file, const struct format_shard *s, size_t index)
{
    const struct format_shard_table *t = &s->tables[index];
    const hsize_t dims[2] = {s->n_rows, t->width};
    char path[SHARD_PATH_SIZE];
    char hex[DIGEST_HEX_SIZE];
    hid_t type = shard_h5_type(t->dtype);
    hid_t set = H5I_INVALID_HID;
    herr_t rc = -1;
    snprintf(path, sizeof path, "tables/%s", t->route);
    if (type >= 0 && shard_h5_groups(file, path) >= 0) {
        snprintf(path, sizeof path, "tables/%s/%s", t->route, t->output);
        set = shard_h5_dataset(file, path, type, 2, dims, t->data);
    }
    if (set >= 0 && shard_h5_put_text(set, "dtype", dtype_name(t->dtype)) >= 0 &&
        shard_h5_put_u64(set, "index", index) >= 0)
        rc = shard_h5_put_text(set, "digest", digest_hex(&s->table_digests[index], hex));
    if (set >= 0 && H5Dclose(set) < 0)
        rc = -1;
    if (type >= 0)
        H5Tclose(type);
    return rc;
}

/* Digests in table order, and the names they belong to. */
static herr_t put_digests(hid_t file, const struct format_shard *s)
{
    const hsize_t dims[2] = {s->n_tables, sizeof s->table_digests->bytes};
    struct bytes names = {0};
    for (size_t i = 0; i < s->n_tables; i++)
        bytes_printf(&names, "%s%s/%s", i == 0 ? "" : "\n", s->tables[i].route,
                     s->tables[i].output);
    bytes_put_u8(&names, 0);
    hid_t set = names.failed ? H5I_INVALID_HID
                             : shard_h5_dataset(file, "table_digests", H5T_STD_U8LE, 2, dims,
                                                s->table_digests);
    herr_t rc = set < 0 ? -1 : H5Dclose(set);
    if (rc >= 0)
        rc = shard_h5_put_long_text(file, "table_names", (const char *)names.data);
    bytes_free(&names);
    return rc;
}

static herr_t put_statistics(hid_t file, const struct format_shard *s)
{
    const hsize_t dims[2] = {s->n_records, s->n_fields};
    hid_t set = shard_h5_dataset(file, "statistics", H5T_IEEE_F64LE, 2, dims, s->statistics);
    if (set < 0 || H5Dclose(set) < 0)
        return -1;
    const char *columns = s->statistics_columns == NULL ? "" : s->statistics_columns;
    return shard_h5_put_long_text(file, "statistics_columns", columns);
}

static herr_t put_column(hid_t file, uint64_t n_rows, const struct format_shard_column *c)
{
    const hsize_t dims[1] = {n_rows};
    char path[SHARD_PATH_SIZE];
    int n = snprintf(path, sizeof path, "columns/%s", c->name);
    if (n < 0 || (size_t)n >= sizeof path)
        return -1;
    char *last = strrchr(path, '/');
    *last = '\0';
    if (shard_h5_groups(file, path) < 0)
        return -1;
    *last = '/';
    hid_t set = shard_h5_dataset(file, path, H5T_IEEE_F64LE, 1, dims, c->data);
    return set < 0 ? -1 : H5Dclose(set);
}

static enum status put_all(hid_t file, const struct shard_sink *sink, const struct format_shard *s,
                           struct err *err)
{
    struct bytes fields = {0};
    enum status st = fields_json(s->fingerprint_fields, s->n_fingerprint_fields, &fields, err);
    herr_t rc = st == ST_OK ? put_header(file, s) : -1;
    if (rc >= 0)
        rc = shard_h5_put_long_text(file, "fingerprint_fields", (const char *)fields.data);
    bytes_free(&fields);
    if (rc >= 0)
        rc = put_digests(file, s);
    for (size_t i = 0; i < s->n_tables && rc >= 0; i++) {
        rc = put_table(file, s, i);
        TRY(shard_sink_status(sink, err)); /* a full disk: not the other tables as well */
        if (fault_hit("shard_write"))
            return err_set(err, ST_IO, "%s: fault point shard_write: %s", sink->path,
                           strerror(ENOSPC));
    }
    if (rc >= 0)
        rc = put_statistics(file, s);
    for (size_t i = 0; i < s->n_columns && rc >= 0; i++)
        rc = put_column(file, s->n_rows, &s->columns[i]);
    if (rc >= 0) /* last: what holds it holds all */
        rc = shard_h5_put_u64(file, "complete", 1);
    if (rc < 0 && st == ST_OK)
        st = shard_h5_fault(err, ST_IO, sink->path, "cannot be written");
    return st;
}

enum status format_shard_write(const char *path, const struct format_shard *shard, struct err *err)
{
    hid_t file = H5I_INVALID_HID;
    struct shard_sink sink;
    struct shard_h5_log log;
    shard_h5_begin(&log);
    enum status st = shard_h5_create(path, H5F_LIBVER_V18, &sink, &file, err);
    bool made = sink.fd >= 0;
    if (st == ST_OK)
        st = put_all(file, &sink, shard, err);
    st = shard_h5_finish(&sink, st, &file, err);
    if (st == ST_OK && fault_hit("shard_close"))
        st = err_set(err, ST_IO, "%s: fault point shard_close: %s", path, strerror(EIO));
    shard_h5_end();
    if (made && st != ST_OK)
        unlink(path);
    return st;
}
