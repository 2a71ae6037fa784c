/* SPDX-License-Identifier: Apache-2.0 */
/* What a checkpoint, unit, recipe, packed or .npy file holds; headers alone are read. */
#include "driver/verb_internal.h"

#include "formats/npy.h"
#include "formats/packed.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char HDF5_MAGIC[] = "\x89HDF\r\n\x1a\n";
enum { START_SIZE = 64 };

struct inspect_run {
    struct driver_context *ctx;
    const char *path;
    struct format_writer w; /* --json */
    struct bytes *text;     /* else */
    bool json;
};

/* ---- shapes ---------------------------------------------------------------------------------- */

static void inspect_shape_text(const uint64_t *shape, unsigned rank, struct bytes *out)
{
    bytes_append(out, "[", 1);
    for (unsigned i = 0; i < rank; i++)
        bytes_printf(out, "%s%" PRIu64, i == 0 ? "" : ",", shape[i]);
    bytes_append(out, "]", 1);
}

static void inspect_shape_json(struct format_writer *w, const uint64_t *shape, unsigned rank)
{
    format_write_array(w, "shape");
    for (unsigned i = 0; i < rank; i++)
        format_write_u64(w, NULL, shape[i]);
    format_write_end_array(w);
}

static void inspect_kind(struct inspect_run *r, const char *kind)
{
    if (r->json)
        format_write_string(&r->w, "kind", kind);
    else
        bytes_printf(r->text, "%s: %s\n", r->path, kind);
}

/* One tensor or table; `file` and `route` may be NULL. */
struct inspect_item {
    const char *name, *file, *dtype;
    unsigned rank;
    const uint64_t *shape;
    uint64_t bytes;
};

static void inspect_item(struct inspect_run *r, const struct inspect_item *t)
{
    if (r->json) {
        format_write_object(&r->w, NULL);
        format_write_string(&r->w, "name", t->name);
        format_write_string(&r->w, "dtype", t->dtype);
        inspect_shape_json(&r->w, t->shape, t->rank);
        format_write_u64(&r->w, "bytes", t->bytes);
        if (t->file != NULL)
            format_write_string(&r->w, "file", t->file);
        format_write_end_object(&r->w);
        return;
    }
    struct bytes shape = {0};
    inspect_shape_text(t->shape, t->rank, &shape);
    bytes_put_u8(&shape, 0);
    bytes_printf(r->text, "  %-48s %-8s %-18s %14" PRIu64 "%s%s\n", t->name, t->dtype,
                 shape.failed ? "?" : (const char *)shape.data, t->bytes, t->file ? "  " : "",
                 t->file ? path_base(t->file) : "");
    bytes_free(&shape);
}

/* ---- checkpoint ------------------------------------------------------------------------------ */

struct inspect_total {
    char dtype[FORMAT_DTYPE_TEXT];
    uint64_t tensors, elements, bytes;
};
enum { INSPECT_MAX_TOTALS = 64 };

static size_t inspect_totals(const struct format_checkpoint *c,
                             struct inspect_total totals[INSPECT_MAX_TOTALS])
{
    size_t n = 0;
    for (size_t i = 0; i < format_checkpoint_count(c); i++) {
        const char *file = NULL;
        const struct format_tensor *t = format_checkpoint_tensor(c, i, &file);
        size_t at = 0;
        while (at < n && strcmp(totals[at].dtype, t->dtype_text) != 0)
            at++;
        if (at == INSPECT_MAX_TOTALS)
            continue; /* a file with more made-up dtypes than that loses their totals alone */
        if (at == n) {
            totals[n] = (struct inspect_total){.tensors = 0};
            memcpy(totals[n++].dtype, t->dtype_text, sizeof t->dtype_text);
        }
        totals[at].tensors++;
        totals[at].elements += t->n_elements;
        totals[at].bytes += t->size_bytes;
    }
    return n;
}

static void inspect_checkpoint_totals(struct inspect_run *r, const struct format_checkpoint *c)
{
    struct inspect_total totals[INSPECT_MAX_TOTALS];
    size_t n = inspect_totals(c, totals);
    uint64_t bytes = 0;
    char human[32];
    if (r->json)
        format_write_array(&r->w, "totals");
    else
        bytes_printf(r->text, "totals by dtype\n");
    for (size_t i = 0; i < n; i++) {
        bytes += totals[i].bytes;
        if (r->json) {
            format_write_object(&r->w, NULL);
            format_write_string(&r->w, "dtype", totals[i].dtype);
            format_write_u64(&r->w, "tensors", totals[i].tensors);
            format_write_u64(&r->w, "elements", totals[i].elements);
            format_write_u64(&r->w, "bytes", totals[i].bytes);
            format_write_end_object(&r->w);
        } else {
            bytes_printf(r->text,
                         "  %-8s %8" PRIu64 " tensors %16" PRIu64 " elements %16" PRIu64
                         " bytes (%s)\n",
                         totals[i].dtype, totals[i].tensors, totals[i].elements, totals[i].bytes,
                         str_bytes(totals[i].bytes, human, sizeof human));
        }
    }
    if (r->json) {
        format_write_end_array(&r->w);
        format_write_u64(&r->w, "n_tensors", format_checkpoint_count(c));
        format_write_u64(&r->w, "bytes", bytes);
    } else {
        bytes_printf(r->text, "  all      %8zu tensors %16" PRIu64 " bytes (%s)\n",
                     format_checkpoint_count(c), bytes, str_bytes(bytes, human, sizeof human));
    }
}

static enum status inspect_checkpoint(struct inspect_run *r, struct err *err)
{
    struct format_checkpoint_opts opts = {.header_cap = r->ctx->opts->header_cap,
                                          .allow_missing_unused =
                                              r->ctx->opts->allow_missing_unused};
    struct format_checkpoint *c = NULL;
    TRY(format_checkpoint_open(r->path, &opts, &c, err));
    inspect_kind(r, "checkpoint");
    if (r->json)
        format_write_array(&r->w, "tensors");
    for (size_t i = 0; i < format_checkpoint_count(c); i++) {
        struct inspect_item item = {0};
        const struct format_tensor *t = format_checkpoint_tensor(c, i, &item.file);
        item.name = t->name;
        item.dtype = t->dtype_text;
        item.rank = t->rank;
        item.shape = t->shape;
        item.bytes = t->size_bytes;
        inspect_item(r, &item);
    }
    if (r->json)
        format_write_end_array(&r->w);
    inspect_checkpoint_totals(r, c);
    uint64_t vocab = 0;
    bool has_vocab = format_checkpoint_vocab_size(c, &vocab);
    if (r->json) {
        if (has_vocab)
            format_write_u64(&r->w, "config_vocab_size", vocab);
        format_write_array(&r->w, "warnings");
        for (size_t i = 0; i < format_checkpoint_warnings(c); i++)
            format_write_string(&r->w, NULL, format_checkpoint_warning(c, i));
        format_write_end_array(&r->w);
    } else if (has_vocab) {
        bytes_printf(r->text, "config.json: vocab_size %" PRIu64 "\n", vocab);
    }
    for (size_t i = 0; i < format_checkpoint_warnings(c); i++)
        log_warn("%s", format_checkpoint_warning(c, i));
    format_checkpoint_close(&c);
    return ST_OK;
}

/* ---- unit file ------------------------------------------------------------------------------- */

static void inspect_unit_head(struct inspect_run *r, const struct format_shard_info *info)
{
    inspect_kind(r, "unit");
    if (r->json) {
        format_write_u64(&r->w, "unit", info->unit);
        format_write_u64(&r->w, "first_row", info->first_row);
        format_write_u64(&r->w, "n_rows", info->n_rows);
        format_write_bool(&r->w, "complete", info->complete);
        format_write_string(&r->w, "fingerprint", info->fingerprint);
        format_write_object(&r->w, "fingerprint_fields");
        for (size_t i = 0; i < info->n_fingerprint_fields; i++)
            format_write_string(&r->w, info->fingerprint_fields[i].name,
                                info->fingerprint_fields[i].value);
        format_write_end_object(&r->w);
        format_write_u64(&r->w, "statistics_records", info->n_records);
        format_write_array(&r->w, "tables");
        return;
    }
    bytes_printf(r->text,
                 "  unit %" PRIu64 ", rows %" PRIu64 " to %" PRIu64 ", %s\n  fingerprint %s\n",
                 info->unit, info->first_row, info->first_row + info->n_rows,
                 info->complete ? "complete" : "NOT complete", info->fingerprint);
    for (size_t i = 0; i < info->n_fingerprint_fields; i++)
        bytes_printf(r->text, "    %s: %s\n", info->fingerprint_fields[i].name,
                     info->fingerprint_fields[i].value);
    bytes_printf(r->text, "tables\n");
}

static enum status inspect_unit_table(struct inspect_run *r, struct format_shard_reader *reader,
                                      const struct format_shard_info *info, char *name,
                                      struct err *err)
{
    char *slash = strchr(name, '/');
    uint64_t shape[2] = {info->n_rows, 0};
    enum dtype dtype = DT_UNKNOWN;
    if (slash == NULL)
        return err_set(err, ST_FORMAT, "%s: table name \"%s\": expected route/output", r->path,
                       name);
    *slash = '\0';
    enum status st = format_shard_reader_table(reader, name, slash + 1, &dtype, &shape[1], err);
    *slash = '/';
    TRY(st);
    uint64_t elements = 0, bytes = 0;
    if (!mul_u64(shape[0], shape[1], &elements) || !mul_u64(elements, dtype_size(dtype), &bytes))
        return err_set(err, ST_FORMAT, "%s: table %s overflows", r->path, name);
    inspect_item(
        r,
        &(struct inspect_item){
            .name = name, .dtype = dtype_name(dtype), .rank = 2, .shape = shape, .bytes = bytes});
    return ST_OK;
}

static enum status inspect_unit(struct inspect_run *r, struct err *err)
{
    struct format_shard_info *info = NULL;
    struct format_shard_reader *reader = NULL;
    TRY(format_shard_info_read(r->path, &info, err));
    enum status st = format_shard_reader_open(r->path, &reader, err);
    if (st == ST_OK)
        inspect_unit_head(r, info);
    for (char *name = st == ST_OK ? info->table_names : NULL; name != NULL && *name != '\0';) {
        char *end = strchr(name, '\n');
        if (end != NULL)
            *end = '\0';
        st = inspect_unit_table(r, reader, info, name, err);
        name = st == ST_OK && end != NULL ? end + 1 : NULL;
    }
    if (st == ST_OK && r->json)
        format_write_end_array(&r->w);
    format_shard_reader_close(&reader);
    format_shard_info_free(&info);
    return st;
}

/* ---- packed and .npy ------------------------------------------------------------------------- */

static enum status inspect_packed(struct inspect_run *r, struct err *err)
{
    struct format_packed *p = NULL;
    TRY(format_packed_open(r->path, 0, &p, err));
    const struct packed_layout *l = format_packed_layout(p);
    uint64_t raw = 0;
    inspect_kind(r, "packed");
    if (r->json)
        format_write_array(&r->w, "tensors");
    for (size_t i = 0; i < l->n_tensors; i++) {
        const struct packed_tensor *t = &l->tensors[i];
        uint64_t shape[2] = {t->rows, t->width};
        uint64_t bytes = t->rows * t->width * dtype_size(t->dtype);
        raw += bytes;
        inspect_item(r, &(struct inspect_item){.name = t->name,
                                               .dtype = dtype_name(t->dtype),
                                               .rank = t->rank,
                                               .shape = shape,
                                               .bytes = bytes});
    }
    char human[32];
    if (r->json) {
        format_write_end_array(&r->w);
        format_write_u64(&r->w, "chunks", format_packed_total_chunks(l));
        format_write_u64(&r->w, "bytes", raw);
        format_write_u64(&r->w, "file_bytes", format_packed_file_size(p));
    } else {
        bytes_printf(r->text, "  %" PRIu64 " chunks, %" PRIu64 " bytes in a file of %" PRIu64,
                     format_packed_total_chunks(l), raw, format_packed_file_size(p));
        bytes_printf(r->text, " (%s)\n",
                     str_bytes(format_packed_file_size(p), human, sizeof human));
    }
    format_packed_close(&p);
    return ST_OK;
}

static enum status inspect_npy(struct inspect_run *r, struct err *err)
{
    struct format_npy a;
    int fd = -1;
    TRY(format_npy_open(r->path, &fd, &a, err));
    (void)close(fd);
    inspect_kind(r, "npy");
    if (r->json)
        format_write_array(&r->w, "tensors");
    inspect_item(r, &(struct inspect_item){.name = path_base(r->path),
                                           .dtype = dtype_name(a.dtype),
                                           .rank = a.rank,
                                           .shape = a.shape,
                                           .bytes = a.n_elements * dtype_size(a.dtype)});
    if (r->json)
        format_write_end_array(&r->w);
    return ST_OK;
}

/* ---- what it is ------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static enum status inspect_file(struct inspect_run *r, struct err *err)
{
    uint8_t start[START_SIZE] = {0};
    uint64_t size = 0;
    int fd = -1;
    TRY(file_open_read(r->path, &fd, &size, err));
    size_t got = (size_t)min_u64(size, sizeof start);
    enum status st = file_read_at(fd, r->path, 0, start, got, err);
    (void)close(fd);
    TRY(st);
    if (got >= 8 && memcmp(start, HDF5_MAGIC, 8) == 0)
        return inspect_unit(r, err);
    if (format_npy_is(start, got))
        return inspect_npy(r, err);
    if (verb_is_packed(start, got))
        return inspect_packed(r, err);
    TRY(verb_cmppack_check(r->path, start, got, err));
    st = inspect_checkpoint(r, err);
    if (st == ST_FORMAT && !ends_with(r->path, ".safetensors") &&
        !ends_with(r->path, ".safetensors.index.json"))
        err_prefix(err, "neither a unit, recipe, packed nor .npy file, and as a checkpoint");
    return st;
}

enum status driver_verb_inspect(struct driver_context *ctx, struct err *err)
{
    struct inspect_run r = {
        .ctx = ctx, .path = ctx->opts->args[0], .text = &ctx->result, .json = ctx->opts->json};
    if (r.json) {
        verb_json_start(ctx, &r.w);
        format_write_string(&r.w, "path", r.path);
    }
    enum status st = verb_single_check(r.path, err);
    if (st == ST_OK && verb_is_recipe(r.path))
        st = verb_inspect_recipe(r.path, ctx, r.json ? &r.w : NULL, err);
    else if (st == ST_OK && file_is_dir(r.path))
        st = inspect_checkpoint(&r, err);
    else if (st == ST_OK)
        st = inspect_file(&r, err);
    if (st == ST_OK && r.json)
        verb_json_end(ctx, &r.w);
    else
        bytes_free(&r.w.out);
    if (st != ST_OK)
        bytes_free(&ctx->result); /* half a listing is no result */
    return st;
}
