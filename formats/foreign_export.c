/* SPDX-License-Identifier: Apache-2.0 */
/* A recipe as a compressme artifact. */
#include "formats/foreign.h"
#include "formats/foreign_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint64_t EXPORT_WINDOW = (uint64_t)1 << 20;

const char *foreign_dtype(enum dtype dt)
{
    return dt == DT_F64   ? "float64"
           : dt == DT_F32 ? "float32"
           : dt == DT_F16 ? "float16"
                          : "bfloat16";
}

struct exporting {
    const struct format_recipe *r;
    format_foreign_rows_fn rows;
    void *ctx;
    const struct format_foreign_opts *opts;
    const char *path; /* module, "" for the whole model */
};

/* Rows that the artifact holds of a group: row sharing is not known there. */
static uint64_t group_rows(const struct format_recipe *r, size_t group)
{
    return r->groups[group].rows == 1 ? 1 : r->num_embeddings;
}

static enum status check_expressible(const struct format_recipe *r, const char *block,
                                     const struct format_foreign_opts *opts, struct err *err)
{
    if (r->kind != RECIPE_FANOUT && r->n_profiles > 0)
        return err_set(err, ST_STRUCTURE,
                       "block %s: a %s recipe with row-count profiles has no compressme form",
                       block, format_recipe_kind_name(r->kind));
    if (r->has_ids)
        return err_set(err, ST_STRUCTURE, "block %s: an id list has no compressme form", block);
    if (r->retain_projection)
        return err_set(err, ST_STRUCTURE, "block %s: a retained projection has no compressme form",
                       block);
    if (r->has_bias && opts->bias == NULL)
        return err_set(err, ST_USAGE, "block %s: the bias is missing", block);
    return ST_OK;
}

/* ---- payload ------------------------------------------------------------------------------- */

static enum status add_spec(const struct exporting *e, struct format_tensor_spec *s,
                            const char *name, enum dtype dt, uint64_t rows, uint64_t width,
                            struct err *err)
{
    *s =
        (struct format_tensor_spec){.dtype = dt, .rank = width > 0 ? 2 : 1, .shape = {rows, width}};
    s->name = str_printf("%s%s%s", e->path, e->path[0] != '\0' ? "." : "", name);
    return s->name != NULL ? ST_OK : err_nomem(err, strlen(name));
}

static enum status list_specs(const struct exporting *e, struct format_tensor_spec *specs,
                              size_t *n, struct err *err)
{
    const struct format_recipe *r = e->r;
    uint64_t v = r->num_embeddings;
    *n = 0;
    if (r->kind == RECIPE_FANOUT) {
        for (; *n < r->n_groups; ++*n) {
            char name[48];
            const struct format_group *g = &r->groups[*n];
            snprintf(name, sizeof name, "tables.group_%zu", *n);
            TRY(add_spec(e, &specs[*n], name, g->dtype, group_rows(r, *n), g->width, err));
        }
        return ST_OK;
    }
    const struct format_placed *o = r->outputs;
    enum dtype dt = r->groups[o[0].group].dtype;
    uint64_t rows = r->kind == RECIPE_LOOKUP ? group_rows(r, o[0].group) : v;
    TRY(add_spec(e, &specs[(*n)++], "_rows", dt, rows, o[0].width, err));
    if (r->kind == RECIPE_PROJECTED)
        TRY(add_spec(e, &specs[(*n)++], "_norms", dt, v, 1, err));
    if (r->has_bias)
        TRY(add_spec(e, &specs[(*n)++], "bias", dt, o[0].width, 0, err));
    return ST_OK;
}

/* Rows of a whole group, put together from the tables that lie in it. */
static enum status group_window(const struct exporting *e, size_t group, uint64_t first, uint64_t n,
                                uint8_t *dst, uint8_t *table, struct err *err)
{
    const struct format_recipe *r = e->r;
    size_t element = dtype_size(r->groups[group].dtype);
    size_t stride = (size_t)r->groups[group].width * element;
    memset(dst, 0, (size_t)n * stride);
    for (size_t route = 0; route <= r->n_profiles; route++)
        for (size_t i = 0; i < r->n_outputs; i++) {
            const struct format_placed *p =
                route == 0 ? &r->outputs[i] : &r->profiles[route - 1].outputs[i];
            if (p->group != group)
                continue;
            size_t size = (size_t)p->width * element;
            TRY(e->rows(e->ctx, route, i, first, n, table, err));
            for (uint64_t k = 0; k < n; k++)
                memcpy(dst + (size_t)k * stride + (size_t)p->column * element,
                       table + (size_t)k * size, size);
        }
    return ST_OK;
}

static enum status export_tensor(const struct exporting *e, const struct format_tensor_spec *s,
                                 size_t index, int fd, const char *path, uint64_t at,
                                 struct err *err)
{
    size_t row = (size_t)(s->rank > 1 ? s->shape[1] : 1) * dtype_size(s->dtype);
    if (s->rank == 1) /* the bias */
        return file_write_at(fd, path, at, e->opts->bias, (size_t)s->shape[0] * row, err);
    uint64_t window = max_u64(EXPORT_WINDOW / row, 1);
    void *rows = NULL, *table = NULL;
    TRY(mem_alloc((size_t)window, row, &rows, err));
    enum status st = mem_alloc((size_t)window, row, &table, err);
    for (uint64_t first = 0; first < s->shape[0] && st == ST_OK; first += window) {
        uint64_t n = min_u64(window, s->shape[0] - first);
        if (e->r->kind == RECIPE_FANOUT)
            st = group_window(e, index, first, n, rows, table, err);
        else
            st = e->rows(e->ctx, 0, index, first, n, rows, err);
        if (st == ST_OK)
            st = file_write_at(fd, path, at + first * row, rows, (size_t)n * row, err);
    }
    free(table);
    free(rows);
    return st;
}

static enum status export_payload(const struct exporting *e, const char *path, struct err *err)
{
    struct format_tensor_spec *specs = calloc(e->r->n_groups + 3, sizeof *specs);
    uint64_t *offsets = calloc(e->r->n_groups + 3, sizeof *offsets), size = 0;
    struct bytes header = {0};
    size_t n = 0;
    int fd = -1;
    enum status st = specs != NULL && offsets != NULL
                         ? list_specs(e, specs, &n, err)
                         : err_nomem(err, (e->r->n_groups + 3) * sizeof *specs);
    if (st == ST_OK)
        st = format_safetensors_header(specs, n, NULL, &header, offsets, &size, err);
    if (st == ST_OK && (fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        st = err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    if (st == ST_OK)
        st = file_write_at(fd, path, 0, header.data, header.size, err);
    for (size_t i = 0; i < n && st == ST_OK; i++)
        st = export_tensor(e, &specs[i], i, fd, path, offsets[i], err);
    if (st == ST_OK && fsync(fd) != 0)
        st = err_set(err, ST_IO, "%s: fsync: %s", path, strerror(errno));
    if (fd >= 0 && close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", path, strerror(errno));
    if (fd >= 0 && st != ST_OK)
        (void)unlink(path);
    bytes_free(&header);
    format_tensor_specs_free(&specs, e->r->n_groups + 3);
    free(offsets);
    return st;
}

/* ---- manifest ------------------------------------------------------------------------------ */

static void write_outputs(struct format_writer *w, const struct format_placed *p, size_t n)
{
    char name[32];
    format_write_array(w, "outputs");
    for (size_t i = 0; i < n; i++) {
        snprintf(name, sizeof name, "group_%" PRIu32, p[i].group);
        format_write_array(w, NULL);
        format_write_string(w, NULL, p[i].name);
        format_write_string(w, NULL, name);
        format_write_u64(w, NULL, p[i].column);
        format_write_u64(w, NULL, p[i].width);
        format_write_end_array(w);
    }
    format_write_end_array(w);
}

static void write_fanout(struct format_writer *w, const struct format_recipe *r)
{
    char name[32];
    format_write_u64(w, "version", r->n_profiles > 0 ? 2 : 1);
    format_write_string(w, "input_contract", "token_indices_only");
    format_write_object(w, "tables");
    for (size_t i = 0; i < r->n_groups; i++) {
        snprintf(name, sizeof name, "group_%zu", i);
        format_write_object(w, name);
        format_write_array(w, "shape");
        format_write_u64(w, NULL, group_rows(r, i));
        format_write_u64(w, NULL, r->groups[i].width);
        format_write_end_array(w);
        format_write_string(w, "dtype", foreign_dtype(r->groups[i].dtype));
        format_write_end_object(w);
    }
    format_write_end_object(w);
    write_outputs(w, r->outputs, r->n_outputs);
    if (r->n_profiles == 0)
        return;
    format_write_array(w, "row_count_profiles");
    for (size_t i = 0; i < r->n_profiles; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "max_rows", r->profiles[i].max_rows);
        format_write_u64(w, "evaluation_rows", r->profiles[i].evaluation_rows);
        write_outputs(w, r->profiles[i].outputs, r->n_outputs);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void write_rewrite(struct format_writer *w, const struct exporting *e)
{
    const struct format_recipe *r = e->r;
    const struct format_group *g = &r->groups[r->outputs[0].group];
    format_write_array(w, "finite_lookup_rewrites");
    format_write_object(w, NULL);
    format_write_string(w, "path", e->path);
    format_write_u64(w, "num_embeddings", r->num_embeddings);
    if (r->kind == RECIPE_FANOUT) {
        write_fanout(w, r);
    } else {
        format_write_u64(w, "embedding_dim", r->outputs[0].width);
        if (r->kind == RECIPE_LOOKUP) {
            format_write_bool(w, "constant", g->rows == 1);
        } else {
            format_write_double(w, "normalize_eps", r->normalize_eps);
            format_write_bool(w, "bias", r->has_bias);
        }
        format_write_string(w, "dtype", foreign_dtype(g->dtype));
    }
    format_write_bool(w, "training", false);
    format_write_end_object(w);
    format_write_end_array(w);
}

static enum status write_source_dtypes(struct format_writer *w,
                                       const struct format_foreign_opts *opts, struct err *err)
{
    format_write_object(w, "source_tensor_dtypes");
    for (size_t i = 0; i < opts->n_source_dtypes; i++) {
        const struct format_field *f = &opts->source_dtypes[i];
        enum dtype dt = dtype_from_name(f->value, strlen(f->value));
        if (!dtype_is_computable(dt))
            return err_set(err, ST_USAGE, "source tensor %.200s: dtype %s has no compressme form",
                           f->name, f->value);
        format_write_string(w, f->name, foreign_dtype(dt));
    }
    format_write_end_object(w);
    return ST_OK;
}

/* Free form there: what a reader may want to know of how the tables came about. */
static void write_report(struct format_writer *w, const struct format_recipe *r,
                         const char *recipe_status)
{
    format_write_object(w, "report");
    format_write_string(w, "producer", "tokentab");
    format_write_string(w, "block", r->block);
    if (r->kind == RECIPE_LOOKUP) /* its name has no other place there */
        format_write_string(w, "output", r->outputs[0].name);
    if (recipe_status[0] != '\0')
        format_write_string(w, "status", recipe_status);
    format_write_string(w, "arithmetic", r->arithmetic);
    format_write_object(w, "provenance");
    for (size_t i = 0; i < r->n_provenance; i++)
        format_write_string(w, r->provenance[i].name, r->provenance[i].value);
    format_write_end_object(w);
    format_write_object(w, "thresholds");
    for (size_t i = 0; i < r->n_thresholds; i++)
        format_write_string(w, r->thresholds[i].name, r->thresholds[i].value);
    format_write_end_object(w);
    if (r->validation_json != NULL)
        format_write_raw(w, "validation", r->validation_json);
    if (r->seal != NULL)
        format_write_string(w, "recipe_seal", r->seal);
    format_write_end_object(w);
}

static void write_empty(struct format_writer *w)
{
    static const char *const OBJECTS[] = {"tensor_aliases", "module_aliases", "parameter_aliases",
                                          "parameter_storage_aliases"};
    for (size_t i = 0; i < sizeof OBJECTS / sizeof *OBJECTS; i++) {
        format_write_object(w, OBJECTS[i]);
        format_write_end_object(w);
    }
    for (const char *const *key = FOREIGN_EMPTY_LISTS; *key != NULL; key++) {
        format_write_array(w, *key);
        format_write_end_array(w);
    }
    format_write_null(w, "affine_fx");
    format_write_bool(w, "training", false);
}

static enum status export_manifest(const struct exporting *e, const char *dir, const char *payload,
                                   struct err *err)
{
    struct format_writer w = {.pretty = true};
    char hex[SHA256_HEX_SIZE];
    uint64_t size;
    TRY(file_digests(payload, hex, NULL, &size, err));
    format_write_object(&w, NULL);
    format_write_u64(&w, "format_version", 1);
    format_write_string(&w, "weights_file", e->opts->packed ? FOREIGN_PACKED : FOREIGN_PLAIN);
    format_write_string(&w, "weights_sha256", hex);
    format_write_u64(&w, "weights_bytes", size);
    if (e->opts->packed)
        format_write_string(&w, "packing", FOREIGN_PACKING);
    else
        format_write_null(&w, "packing");
    write_rewrite(&w, e);
    write_empty(&w);
    format_write_object(&w, "module_training");
    format_write_bool(&w, e->path, false);
    format_write_end_object(&w);
    format_write_object(&w, "requires_grad"); /* tables are buffers, not parameters */
    format_write_end_object(&w);
    enum status st = write_source_dtypes(&w, e->opts, err);
    char *recipe_status = format_recipe_status(e->r);
    if (recipe_status == NULL && st == ST_OK)
        st = err_nomem(err, 64);
    write_report(&w, e->r, recipe_status != NULL ? recipe_status : "");
    free(recipe_status);
    format_write_end_object(&w);
    format_write_finish(&w);
    if (st == ST_OK && w.out.failed)
        st = err_nomem(err, w.out.size);
    char *path = path_join(dir, FOREIGN_MANIFEST);
    if (path == NULL && st == ST_OK)
        st = err_nomem(err, strlen(dir));
    if (st == ST_OK)
        st = file_publish(path, w.out.data, w.out.size, err);
    free(path);
    bytes_free(&w.out);
    return st;
}

/* payload.tmp, perhaps packed.tmp, then the rename. */
static enum status stage_payload(const struct exporting *e, const char *dir, const char *payload,
                                 struct err *err)
{
    char *plain = path_join(dir, FOREIGN_PLAIN ".tmp"),
         *packed = path_join(dir, FOREIGN_PACKED ".tmp");
    enum status st = plain != NULL && packed != NULL ? export_payload(e, plain, err)
                                                     : err_nomem(err, strlen(dir));
    if (st == ST_OK && e->opts->packed) {
        unsigned group = (unsigned)dtype_size(e->r->groups[e->r->outputs[0].group].dtype);
        st = format_cmppack_write(plain, packed, group, err);
        (void)unlink(plain);
    }
    const char *made = e->opts->packed ? packed : plain;
    if (st == ST_OK && (st = file_rename(made, payload, err)) != ST_OK)
        (void)unlink(made);
    free(plain);
    free(packed);
    return st;
}

enum status format_foreign_export(const struct format_recipe *r, format_foreign_rows_fn rows,
                                  void *ctx, const struct format_foreign_opts *opts,
                                  const char *dir, struct err *err)
{
    struct exporting e = {.r = r, .rows = rows, .ctx = ctx, .opts = opts};
    e.path = opts->path != NULL ? opts->path : "";
    TRY(check_expressible(r, r->block, opts, err));
    TRY(file_make_dirs(dir, err));
    char *payload = path_join(dir, opts->packed ? FOREIGN_PACKED : FOREIGN_PLAIN);
    if (payload == NULL)
        return err_nomem(err, strlen(dir));
    enum status st = stage_payload(&e, dir, payload, err);
    if (st == ST_OK)
        st = export_manifest(&e, dir, payload, err);
    free(payload);
    return st;
}
