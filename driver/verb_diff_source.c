/* SPDX-License-Identifier: Apache-2.0 */
/* What has tables that can be compared. */
#include "driver/diff_internal.h"

#include "formats/json_value.h"
#include "formats/npy.h"
#include "formats/packed.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char HDF5_MAGIC[] = "\x89HDF\r\n\x1a\n";
enum { START_SIZE = 64 };
static const size_t MANIFEST_MAX_BYTES = (size_t)64 << 20;
static const uint64_t TRIM_BYTES = (uint64_t)8 << 20;

const char *diff_kind_name(enum diff_kind kind)
{
    static const char *const names[] = {"recipe", "checkpoint", "unit", "npy", "packed"};
    return names[kind];
}

/* Takes `name` over.  NULL when memory is short. */
static struct diff_table *add_table(struct diff_source *s, char *name, struct err *err)
{
    if (s->n_tables == s->capacity) {
        size_t capacity = s->capacity == 0 ? 16 : 2 * s->capacity, size = 0;
        struct diff_table *grown =
            mul_size(capacity, sizeof *grown, &size) ? realloc(s->tables, size) : NULL;
        if (grown == NULL) {
            free(name);
            name = NULL;
        } else {
            s->tables = grown;
            s->capacity = capacity;
        }
    }
    if (name == NULL) {
        err_nomem(err, sizeof *s->tables);
        return NULL;
    }
    struct diff_table *t = &s->tables[s->n_tables++];
    *t = (struct diff_table){.name = name, .read_elements = 1};
    return t;
}

static enum status set_shape(struct diff_table *t, enum dtype dt, unsigned rank,
                             const uint64_t *shape, struct err *err)
{
    t->dtype = dt;
    t->rank = rank;
    t->n_elements = t->width = 1;
    for (unsigned i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        if (!mul_u64(t->n_elements, shape[i], &t->n_elements) ||
            (i > 0 && !mul_u64(t->width, shape[i], &t->width)))
            return err_set(err, ST_FORMAT, "%s: shape overflows", t->name);
    }
    return ST_OK;
}

/* ---- checkpoint and packed ------------------------------------------------------------------- */

static enum status add_tensor(struct diff_source *s, size_t i, struct err *err)
{
    const char *file = NULL;
    const struct format_tensor *t = format_checkpoint_tensor(s->checkpoint, i, &file);
    struct diff_table *d = add_table(s, str_dup(t->name), err);
    if (d == NULL)
        return ST_NOMEM;
    d->tensor = (uint32_t)i;
    d->opaque = t->dtype == DT_UNKNOWN;
    if (d->opaque)
        return set_shape(d, DT_U8, 1, &t->size_bytes, err);
    return set_shape(d, t->dtype, t->rank, t->shape, err);
}

static enum status open_checkpoint(struct diff_source *s, const char *path, uint64_t header_cap,
                                   struct err *err)
{
    struct format_checkpoint_opts opts = {.header_cap = header_cap};
    s->kind = DIFF_CHECKPOINT;
    TRY(format_checkpoint_open(path, &opts, &s->checkpoint, err));
    for (size_t i = 0; i < format_checkpoint_count(s->checkpoint); i++)
        TRY(add_tensor(s, i, err));
    return ST_OK;
}

static enum status add_packed_tensor(struct diff_source *s, uint32_t i, struct err *err)
{
    const struct packed_tensor *t = &format_packed_layout(s->packed)->tensors[i];
    uint64_t shape[2] = {t->rows, t->width};
    struct diff_table *d = add_table(s, str_dup(t->name), err);
    if (d == NULL)
        return ST_NOMEM;
    d->tensor = i;
    TRY(set_shape(d, t->dtype, t->rank, shape, err));
    d->read_elements = t->width;
    return ST_OK;
}

static enum status open_packed(struct diff_source *s, const char *path, struct err *err)
{
    s->kind = DIFF_PACKED;
    TRY(format_packed_open(path, 0, &s->packed, err));
    for (uint32_t i = 0; i < format_packed_layout(s->packed)->n_tensors; i++)
        TRY(add_packed_tensor(s, i, err));
    return ST_OK;
}

/* ---- recipe ---------------------------------------------------------------------------------- */

static enum status add_routes(struct diff_source *s, struct err *err)
{
    const struct format_recipe *r = lookup_recipe(s->recipe);
    for (size_t route = 0; route < tokentab_n_routes(s->recipe); route++) {
        for (size_t i = 0; i < r->n_outputs; i++) {
            const struct format_placed *p =
                route == 0 ? &r->outputs[i] : &r->profiles[route - 1].outputs[i];
            uint64_t shape[2] = {lookup_n_rows(s->recipe), p->width};
            char *name = str_printf("%s/%s", tokentab_route_name(s->recipe, route), p->name);
            struct diff_table *t = add_table(s, name, err);
            if (t == NULL)
                return ST_NOMEM;
            TRY(set_shape(t, r->groups[p->group].dtype, 2, shape, err));
            t->read_elements = p->width;
            t->route = route;
            t->table = i;
        }
    }
    return ST_OK;
}

/* The payload's other tensors: bias, projection, id list.  Groups and indexes are how tables are
 * stored, not what they hold. */
static bool is_value_tensor(const char *name)
{
    return strncmp(name, "tables.", 7) != 0;
}

static enum status add_payload(struct diff_source *s, const char *dir, struct err *err)
{
    const struct format_recipe *r = lookup_recipe(s->recipe);
    char *path = path_join(dir, r->payload_file);
    if (path == NULL)
        return err_nomem(err, strlen(dir));
    size_t size = strlen(path);
    bool packed = size > 4 && strcmp(path + size - 4, ".ttz") == 0;
    struct format_checkpoint_opts opts = {.header_cap = 0};
    enum status st = packed ? format_packed_open(path, 0, &s->packed, err)
                            : format_checkpoint_open(path, &opts, &s->checkpoint, err);
    free(path);
    TRY(st);
    size_t n = packed ? format_packed_layout(s->packed)->n_tensors
                      : format_checkpoint_count(s->checkpoint);
    for (size_t i = 0; i < n; i++) {
        const char *file = NULL;
        const char *name = packed ? format_packed_layout(s->packed)->tensors[i].name
                                  : format_checkpoint_tensor(s->checkpoint, i, &file)->name;
        if (!is_value_tensor(name))
            continue;
        TRY(packed ? add_packed_tensor(s, (uint32_t)i, err) : add_tensor(s, i, err));
        s->tables[s->n_tables - 1].stored = true;
    }
    return ST_OK;
}

static enum status open_recipe(struct diff_source *s, const char *path, struct err *err)
{
    s->kind = DIFF_RECIPE;
    /* All of it will be read: what does not match its digest is no table to compare or export. */
    const struct tokentab_open_opts opts = {.flags = TOKENTAB_OPEN_VERIFY};
    TRY(verb_recipe_open(path, &opts, &s->recipe, err));
    TRY(add_routes(s, err));
    char *dir = verb_recipe_dir(path);
    if (dir == NULL)
        return err_nomem(err, strlen(path));
    enum status st = add_payload(s, dir, err);
    free(dir);
    return st;
}

/* ---- unit ------------------------------------------------------------------------------------ */

static enum status add_unit_table(struct diff_source *s, const struct format_shard_info *info,
                                  const char *name, size_t size, struct err *err)
{
    struct diff_table *t = add_table(s, str_printf("%.*s", (int)size, name), err);
    if (t == NULL)
        return ST_NOMEM;
    char *slash = strchr(t->name, '/');
    if (slash == NULL)
        return err_set(err, ST_FORMAT, "%s: table name \"%s\": expected route/output", s->path,
                       t->name);
    uint64_t shape[2] = {info->n_rows, 0};
    enum dtype dt = DT_UNKNOWN;
    *slash = '\0';
    enum status st = format_shard_reader_table(s->unit, t->name, slash + 1, &dt, &shape[1], err);
    *slash = '/';
    TRY(st);
    TRY(set_shape(t, dt, 2, shape, err));
    t->read_elements = shape[1];
    return ST_OK;
}

static enum status open_unit(struct diff_source *s, const char *path, struct err *err)
{
    struct format_shard_info *info = NULL;
    s->kind = DIFF_UNIT;
    TRY(format_shard_info_read(path, &info, err));
    s->first_row = info->first_row;
    enum status st = format_shard_reader_open(path, &s->unit, err);
    for (const char *name = info->table_names; st == ST_OK && *name != '\0';) {
        size_t size = strcspn(name, "\n");
        if (size > 512)
            st = err_set(err, ST_FORMAT, "%s: table name of %zu characters", path, size);
        else
            st = add_unit_table(s, info, name, size, err);
        name += size + (name[size] == '\n');
    }
    format_shard_info_free(&info);
    return st;
}

/* ---- .npy ------------------------------------------------------------------------------------ */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* `route`: name of the folder that the file lies in, or NULL. */
static enum status add_npy(struct diff_source *s, const char *path, const char *route,
                           struct err *err)
{
    struct format_npy a;
    int fd = -1;
    TRY(format_npy_open(path, &fd, &a, err));
    (void)close(fd);
    const char *base = path_base(path);
    size_t size = strlen(base);
    int shown = (int)(ends_with(base, ".npy") ? size - 4 : size);
    struct diff_table *t = add_table(
        s, str_printf("%s%s%.*s", route ? route : "", route ? "/" : "", shown, base), err);
    if (t == NULL)
        return ST_NOMEM;
    t->offset = a.offset;
    t->file = str_dup(path);
    if (t->file == NULL)
        return err_nomem(err, size);
    return set_shape(t, a.dtype, a.rank, a.shape, err);
}

static int compare_tables(const void *a, const void *b)
{
    return strcmp(((const struct diff_table *)a)->name, ((const struct diff_table *)b)->name);
}

/* All .npy files of a folder and of the folders in it, as export writes them. */
static enum status scan_npy(struct diff_source *s, const char *path, const char *route,
                            struct err *err)
{
    DIR *dir = opendir(path);
    if (dir == NULL)
        return err_set(err, ST_FORMAT, "%s: %s", path, strerror(errno));
    enum status st = ST_OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == ST_OK; e = readdir(dir)) {
        if (e->d_name[0] == '.')
            continue;
        char *file = path_join(path, e->d_name);
        if (file == NULL)
            st = err_nomem(err, 1);
        else if (ends_with(e->d_name, ".npy"))
            st = add_npy(s, file, route, err);
        else if (route == NULL && file_is_dir(file))
            st = scan_npy(s, file, e->d_name, err);
        free(file);
    }
    (void)closedir(dir);
    return st;
}

static enum status open_npy_folder(struct diff_source *s, const char *path, struct err *err)
{
    s->kind = DIFF_NPY;
    TRY(scan_npy(s, path, NULL, err));
    if (s->n_tables > 0)
        qsort(s->tables, s->n_tables, sizeof *s->tables, compare_tables);
    return ST_OK;
}

/* ---- any ------------------------------------------------------------------------------------- */

static enum status open_file(struct diff_source *s, const char *path, uint64_t header_cap,
                             struct err *err)
{
    uint8_t start[START_SIZE] = {0};
    uint64_t size = 0;
    int fd = -1;
    TRY(file_open_read(path, &fd, &size, err));
    size_t got = (size_t)min_u64(size, sizeof start);
    enum status st = file_read_at(fd, path, 0, start, got, err);
    (void)close(fd);
    TRY(st);
    if (got >= 8 && memcmp(start, HDF5_MAGIC, 8) == 0)
        return open_unit(s, path, err);
    if (format_npy_is(start, got)) {
        s->kind = DIFF_NPY;
        return add_npy(s, path, NULL, err);
    }
    if (verb_is_packed(start, got))
        return open_packed(s, path, err);
    TRY(verb_cmppack_check(path, start, got, err));
    return open_checkpoint(s, path, header_cap, err);
}

static bool has_file(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    bool there = path != NULL && file_exists(path);
    free(path);
    return there;
}

/* Is it a compressme artifact, or the weights file of one?  Its tensors are named by module. */
static bool is_foreign(const char *path)
{
    bool is_weights = strcmp(path_base(path), "model.safetensors") == 0;
    char *dir = file_is_dir(path) ? str_dup(path) : is_weights ? path_dir(path) : NULL;
    char *manifest = dir == NULL ? NULL : path_join(dir, "manifest.json");
    struct cJSON *json = NULL;
    struct err ignored = {0};
    bool found = manifest != NULL && file_exists(manifest) &&
                 format_json_read(manifest, MANIFEST_MAX_BYTES, &json, &ignored) == ST_OK &&
                 json_value_get(json, "finite_lookup_rewrites") != NULL;
    format_json_free(&json);
    free(manifest);
    free(dir);
    return found;
}

enum status diff_source_open(const char *path, uint64_t header_cap, struct diff_source *out,
                             struct err *err)
{
    *out = (struct diff_source){.path = path};
    if (verb_is_recipe(path))
        return open_recipe(out, path, err);
    out->is_foreign = is_foreign(path);
    if (!file_is_dir(path))
        return open_file(out, path, header_cap, err);
    TRY(verb_single_check(path, err));
    if (out->is_foreign && has_file(path, "model.cmppack"))
        return err_set(err, ST_FORMAT, VERB_IMPORT_FIRST, path);
    if (!has_file(path, "model.safetensors") && !has_file(path, "model.safetensors.index.json"))
        TRY(open_npy_folder(out, path, err));
    return out->n_tables > 0 ? ST_OK : open_checkpoint(out, path, header_cap, err);
}

void diff_source_close(struct diff_source *s)
{
    for (size_t i = 0; i < s->n_tables; i++) {
        free(s->tables[i].name);
        free(s->tables[i].file);
    }
    free(s->tables);
    tokentab_close(&s->recipe);
    format_checkpoint_close(&s->checkpoint);
    format_shard_reader_close(&s->unit);
    format_packed_close(&s->packed);
    *s = (struct diff_source){0};
}

static enum status read_npy(const struct diff_table *t, uint64_t first, uint64_t n, void *dst,
                            struct err *err)
{
    uint64_t size = 0;
    int fd = -1;
    size_t element = dtype_size(t->dtype);
    TRY(file_open_read(t->file, &fd, &size, err));
    enum status st =
        file_read_at(fd, t->file, t->offset + first * element, dst, (size_t)n * element, err);
    (void)close(fd);
    return st;
}

static enum status read_unit(struct diff_source *s, const struct diff_table *t, uint64_t first,
                             uint64_t n, void *dst, struct err *err)
{
    char *route = str_dup(t->name);
    if (route == NULL)
        return err_nomem(err, strlen(t->name));
    char *slash = strchr(route, '/');
    *slash = '\0';
    enum status st = format_shard_reader_rows(s->unit, route, slash + 1, first / t->width,
                                              n / t->width, dst, err);
    free(route);
    return st;
}

static enum status read_elements(struct diff_source *s, const struct diff_table *t, uint64_t first,
                                 uint64_t n, void *dst, struct err *err)
{
    if (t->file != NULL)
        return read_npy(t, first, n, dst, err);
    if (s->kind == DIFF_RECIPE && !t->stored)
        return lookup_table_rows(s->recipe, t->route, t->table, first / t->width, n / t->width, dst,
                                 err);
    if (s->kind == DIFF_UNIT)
        return read_unit(s, t, first, n, dst, err);
    if (s->packed != NULL)
        return format_packed_rows(s->packed, t->tensor, first / t->width, n / t->width, dst, err);
    const char *file = NULL;
    size_t element = dtype_size(t->dtype);
    return format_checkpoint_read(s->checkpoint,
                                  format_checkpoint_tensor(s->checkpoint, t->tensor, &file),
                                  first * element, dst, (size_t)n * element, err);
}

/* Mapped pages count as ours: they go back once in a while. */
static void trim(struct diff_source *s, uint64_t read_bytes)
{
    s->untrimmed_bytes += read_bytes;
    if (s->untrimmed_bytes < TRIM_BYTES)
        return;
    s->untrimmed_bytes = 0;
    if (s->kind == DIFF_RECIPE)
        tokentab_trim(s->recipe);
    else if (s->packed != NULL)
        format_packed_trim(s->packed);
}

enum status diff_source_read(struct diff_source *s, const struct diff_table *t, uint64_t first,
                             uint64_t n, void *dst, struct err *err)
{
    TRY(read_elements(s, t, first, n, dst, err));
    trim(s, n * dtype_size(t->dtype));
    return ST_OK;
}

uint64_t diff_source_row_id(const struct diff_source *s, const struct diff_table *t, uint64_t row)
{
    if (s->kind == DIFF_RECIPE && !t->stored)
        return lookup_row_id(s->recipe, row);
    return s->kind == DIFF_UNIT ? s->first_row + row : row;
}
