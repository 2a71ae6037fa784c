/* SPDX-License-Identifier: Apache-2.0 */
/* Write the tables of a recipe for other programs. */
#include "driver/diff_internal.h"

#include "formats/foreign.h"
#include "formats/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Bytes of rows in memory at a time (at least a row). */
static const uint64_t BLOCK_BYTES = (uint64_t)4 << 20;
/* Mapped pages are given back after so many reads of at most 1 MiB. */
enum { FOREIGN_TRIM = 16 };

struct export_run {
    struct driver_context *ctx;
    const char *out;
    struct diff_source source; /* the recipe */
    bool bf16;                 /* .npy holds bfloat16 as <u2 */
    uint64_t foreign_reads;
};

/* ---- one file -------------------------------------------------------------------------------- */

/* A file being written under a temporary name. */
struct staged {
    char *path, *tmp; /* owned */
    int fd;
    uint64_t size;
};

static enum status staged_open(const char *path, struct staged *f, struct err *err)
{
    *f = (struct staged){.path = str_dup(path), .tmp = str_printf("%s.tmp", path), .fd = -1};
    if (f->path == NULL || f->tmp == NULL)
        return err_nomem(err, strlen(path));
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return f->fd >= 0 ? ST_OK : err_set(err, ST_IO, "%s: %s", f->tmp, strerror(errno));
}

static enum status staged_append(struct staged *f, const void *data, size_t size, struct err *err)
{
    TRY(file_write_at(f->fd, f->tmp, f->size, data, size, err));
    f->size += size;
    return ST_OK;
}

/* Whole and under its name when st is ST_OK, else gone. */
static enum status staged_end(struct staged *f, enum status st, struct err *err)
{
    if (f->fd >= 0 && st == ST_OK && fsync(f->fd) != 0)
        st = err_set(err, ST_IO, "%s: %s", f->tmp, strerror(errno));
    if (f->fd >= 0 && close(f->fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: %s", f->tmp, strerror(errno));
    if (st == ST_OK)
        st = file_rename(f->tmp, f->path, err);
    if (st != ST_OK && f->fd >= 0)
        (void)unlink(f->tmp);
    free(f->path);
    free(f->tmp);
    return st;
}

static enum status append_table(struct export_run *r, const struct diff_table *t, struct staged *f,
                                struct err *err)
{
    size_t element = dtype_size(t->dtype);
    uint64_t step = max_u64(t->read_elements, 1);
    uint64_t block = step * max_u64(BLOCK_BYTES / element / step, 1);
    void *rows = NULL;
    block = min_u64(block, t->n_elements);
    TRY(mem_alloc((size_t)block, element, &rows, err));
    enum status st = ST_OK;
    for (uint64_t first = 0; first < t->n_elements && st == ST_OK; first += block) {
        uint64_t n = min_u64(block, t->n_elements - first);
        st = driver_check_stop(err);
        if (st == ST_OK)
            st = diff_source_read(&r->source, t, first, n, rows, err);
        if (st == ST_OK)
            st = staged_append(f, rows, (size_t)n * element, err);
    }
    free(rows);
    tokentab_trim(r->source.recipe);
    return st;
}

/* ---- safetensors ----------------------------------------------------------------------------- */

/* What a reader needs besides the tensors; safetensors metadata is text. */
static enum status metadata(const struct export_run *r, struct bytes *out, struct err *err)
{
    const struct format_recipe *recipe = lookup_recipe(r->source.recipe);
    char eps[32];
    bytes_printf(
        out, "\"format\":\"tokentab-export\",\"kind\":\"%s\",\"num_embeddings\":\"%" PRIu64 "\"",
        tokentab_kind(r->source.recipe), recipe->num_embeddings);
    for (size_t i = 0; i < recipe->n_profiles; i++)
        bytes_printf(out, ",\"profile%zu\":\"max_rows %" PRIu64 " evaluation_rows %" PRIu64 "\"", i,
                     recipe->profiles[i].max_rows, recipe->profiles[i].evaluation_rows);
    if (recipe->kind == RECIPE_PROJECTED)
        bytes_printf(out, ",\"normalize_eps\":\"%s\"",
                     str_double(recipe->normalize_eps, eps, sizeof eps));
    bytes_put_u8(out, 0);
    return out->failed ? err_nomem(err, out->size) : ST_OK;
}

static enum status safetensors_header(const struct export_run *r, struct bytes *header,
                                      struct err *err)
{
    const struct diff_source *s = &r->source;
    struct format_tensor_spec *specs = calloc(s->n_tables, sizeof *specs);
    uint64_t *offsets = calloc(s->n_tables, sizeof *offsets), size = 0;
    struct bytes text = {0};
    enum status st = specs == NULL || offsets == NULL ? err_nomem(err, s->n_tables * sizeof *specs)
                                                      : metadata(r, &text, err);
    for (size_t i = 0; i < s->n_tables && st == ST_OK; i++) {
        specs[i] = (struct format_tensor_spec){
            .name = s->tables[i].name, .dtype = s->tables[i].dtype, .rank = s->tables[i].rank};
        memcpy(specs[i].shape, s->tables[i].shape, s->tables[i].rank * sizeof *specs[i].shape);
    }
    if (st == ST_OK)
        st = format_safetensors_header(specs, s->n_tables, (const char *)text.data, header, offsets,
                                       &size, err);
    bytes_free(&text);
    free(specs);
    free(offsets);
    return st;
}

static enum status export_safetensors(struct export_run *r, struct err *err)
{
    struct bytes header = {0};
    struct staged f = {.fd = -1};
    enum status st = safetensors_header(r, &header, err);
    if (st == ST_OK) {
        st = staged_open(r->out, &f, err);
        if (st == ST_OK)
            st = staged_append(&f, header.data, header.size, err);
        for (size_t i = 0; i < r->source.n_tables && st == ST_OK; i++)
            st = append_table(r, &r->source.tables[i], &f, err);
        st = staged_end(&f, st, err);
    }
    bytes_free(&header);
    return st;
}

/* ---- npy ------------------------------------------------------------------------------------- */

static enum status export_array(struct export_run *r, const struct diff_table *t, struct err *err)
{
    struct bytes header = {0};
    struct staged f = {.fd = -1};
    char *path = str_printf("%s/%s.npy", r->out, t->name);
    char *dir = path == NULL ? NULL : path_dir(path);
    enum status st = dir == NULL ? err_nomem(err, strlen(t->name)) : file_make_dirs(dir, err);
    if (st == ST_OK)
        st = format_npy_header(t->dtype, t->rank, t->shape, &header, err);
    if (st == ST_OK) {
        st = staged_open(path, &f, err);
        if (st == ST_OK)
            st = staged_append(&f, header.data, header.size, err);
        if (st == ST_OK)
            st = append_table(r, t, &f, err);
        st = staged_end(&f, st, err);
    }
    r->bf16 = r->bf16 || t->dtype == DT_BF16;
    bytes_free(&header);
    free(dir);
    free(path);
    return st;
}

/* --force writes over files of its own names; what else lies there would pass for exported. */
static void warn_of_others(const struct export_run *r)
{
    struct diff_source found;
    struct err ignored = {0};
    if (diff_source_open(r->out, 0, &found, &ignored) == ST_OK &&
        found.n_tables > r->source.n_tables)
        log_warn("%s: holds %zu .npy files that are not of this recipe", r->out,
                 found.n_tables - r->source.n_tables);
    diff_source_close(&found);
}

static enum status export_npy(struct export_run *r, struct err *err)
{
    for (size_t i = 0; i < r->source.n_tables; i++)
        TRY(export_array(r, &r->source.tables[i], err));
    warn_of_others(r);
    if (r->bf16)
        log_warn("%s: NumPy has no bfloat16; such tables hold its 16 bits as <u2", r->out);
    return ST_OK;
}

/* ---- compressme ------------------------------------------------------------------------------ */

static enum status foreign_rows(void *ctx, size_t route, size_t table, uint64_t first, uint64_t n,
                                void *dst, struct err *err)
{
    struct export_run *r = ctx;
    TRY(driver_check_stop(err));
    if (++r->foreign_reads % FOREIGN_TRIM == 0)
        tokentab_trim(r->source.recipe);
    return lookup_table_rows(r->source.recipe, route, table, first, n, dst, err);
}

static enum status export_compressme(struct export_run *r, struct err *err)
{
    const struct format_recipe *recipe = lookup_recipe(r->source.recipe);
    struct format_foreign_opts opts = {.path = r->ctx->opts->module,
                                       .packed = r->ctx->opts->packed};
    void *bias = NULL;
    enum status st = ST_OK;
    for (size_t i = 0; i < r->source.n_tables && recipe->has_bias && st == ST_OK; i++) {
        const struct diff_table *t = &r->source.tables[i];
        if (!t->stored || strcmp(t->name, "bias") != 0)
            continue;
        st = mem_alloc((size_t)t->n_elements, dtype_size(t->dtype), &bias, err);
        if (st == ST_OK)
            st = diff_source_read(&r->source, t, 0, t->n_elements, bias, err);
    }
    opts.bias = bias;
    if (st == ST_OK)
        st = format_foreign_export(recipe, foreign_rows, r, &opts, r->out, err);
    free(bias);
    return st;
}

/* ---- verb ------------------------------------------------------------------------------------ */

static void describe(const struct export_run *r)
{
    const struct driver_opts *o = r->ctx->opts;
    bool named = strcmp(o->to, "compressme") != 0; /* its tensors have names of their own */
    if (!o->json) {
        bytes_printf(&r->ctx->result, "%s: %s of %s, %zu tables\n", r->out, o->to, o->args[0],
                     r->source.n_tables);
        return;
    }
    struct format_writer w;
    verb_json_start(r->ctx, &w);
    format_write_string(&w, "recipe", o->args[0]);
    format_write_string(&w, "to", o->to);
    format_write_string(&w, "out", r->out);
    format_write_bool(&w, "historical", tokentab_is_historical(r->source.recipe) != 0);
    format_write_array(&w, "tables");
    for (size_t i = 0; i < r->source.n_tables && named; i++) {
        const struct diff_table *t = &r->source.tables[i];
        format_write_object(&w, NULL);
        format_write_string(&w, "name", t->name);
        format_write_string(&w, "dtype", dtype_name(t->dtype));
        format_write_array(&w, "shape");
        for (unsigned j = 0; j < t->rank; j++)
            format_write_u64(&w, NULL, t->shape[j]);
        format_write_end_array(&w);
        format_write_end_object(&w);
    }
    format_write_end_array(&w);
    verb_json_end(r->ctx, &w);
}

static enum status run(struct export_run *r, struct err *err)
{
    const struct driver_opts *o = r->ctx->opts;
    if (o->to == NULL)
        return err_set(err, ST_USAGE, "--to safetensors, npy or compressme is missing");
    bool compressme = strcmp(o->to, "compressme") == 0;
    if (!compressme && (o->packed || o->module != NULL))
        return err_set(err, ST_USAGE, "--%s is for --to compressme alone",
                       o->packed ? "packed" : "module");
    TRY(verb_output_check(o->out, "--out", o->force, err));
    TRY(verb_single_check(o->args[0], err));
    if (!verb_is_recipe(o->args[0]))
        return err_set(err, ST_FORMAT, "%s: no recipe (no %s there)", o->args[0],
                       LOOKUP_RECIPE_FILE);
    if (file_is_dir(o->out) && verb_is_recipe(o->out))
        return err_set(err, ST_USAGE, "--out: %s is a recipe", o->out);
    TRY(diff_source_open(o->args[0], 0, &r->source, err));
    if (compressme)
        TRY(export_compressme(r, err));
    else
        TRY(strcmp(o->to, "npy") == 0 ? export_npy(r, err) : export_safetensors(r, err));
    describe(r);
    return ST_OK;
}

enum status driver_verb_export(struct driver_context *ctx, struct err *err)
{
    struct export_run r = {.ctx = ctx, .out = ctx->opts->out};
    enum status st = run(&r, err);
    diff_source_close(&r.source);
    return st;
}
