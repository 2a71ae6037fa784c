/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/formats.h"
#include "formats/checkpoint_internal.h"
#include "formats/formats_internal.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void checkpoint_warn(struct format_checkpoint *c, const char *fmt, ...)
{
    struct bytes text = {0};
    char line[ERR_MESSAGE_SIZE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    bytes_append(&text, line, strlen(line) + 1);
    char **grown = realloc(c->warnings, (c->n_warnings + 1) * sizeof *grown);
    if (grown == NULL || text.failed) {
        c->warnings = grown == NULL ? c->warnings : grown;
        bytes_free(&text);
        return;
    }
    c->warnings = grown;
    c->warnings[c->n_warnings++] = (char *)text.data;
}

static bool has_suffix(const char *s, const char *suffix)
{
    size_t n = strlen(s);
    size_t m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* ---- which file ---------------------------------------------------------------------------- */

/* Names in a folder that end with `suffix`: how many, and the last in name order. */
static enum status folder_scan(const char *dir, const char *suffix, char **found, size_t *n,
                               struct err *err)
{
    DIR *d = opendir(dir);
    enum status st = ST_OK;
    *n = 0;
    *found = NULL;
    if (d == NULL)
        return err_set(err, ST_FORMAT, "%s: %s", dir, strerror(errno));
    for (struct dirent *e = readdir(d); e != NULL && st == ST_OK; e = readdir(d)) {
        if (!has_suffix(e->d_name, suffix))
            continue;
        ++*n;
        if (*found != NULL && strcmp(e->d_name, *found) < 0)
            continue;
        free(*found);
        *found = str_dup(e->d_name);
        st = *found == NULL ? err_nomem(err, strlen(e->d_name) + 1) : ST_OK;
    }
    closedir(d);
    return st;
}

/* A folder's only file with this suffix; *path stays NULL if there is none or several. */
static enum status folder_only(const char *dir, const char *suffix, char **path, size_t *n,
                               struct err *err)
{
    char *name = NULL;
    enum status st = folder_scan(dir, suffix, &name, n, err);
    if (st == ST_OK && *n == 1) {
        *path = path_join(dir, name);
        st = *path == NULL ? err_nomem(err, strlen(dir) + strlen(name) + 2) : ST_OK;
    }
    free(name);
    return st;
}

/* The index wins, then the usual single name, then the only candidate (N15): never the first of a
 * listing. */
static enum status folder_choose(const char *dir, char **path, struct err *err)
{
    static const char *const usual[] = {"model.safetensors.index.json", "model.safetensors"};
    size_t n_index = 0;
    size_t n_files = 0;
    for (size_t i = 0; i < 2; i++) {
        char *candidate = path_join(dir, usual[i]);
        if (candidate == NULL)
            return err_nomem(err, strlen(dir) + strlen(usual[i]) + 2);
        if (file_exists(candidate)) {
            *path = candidate;
            return ST_OK;
        }
        free(candidate);
    }
    TRY(folder_only(dir, ".safetensors.index.json", path, &n_index, err));
    if (*path != NULL)
        return ST_OK;
    TRY(folder_only(dir, ".safetensors", path, &n_files, err));
    if (*path != NULL)
        return ST_OK;
    return err_set(
        err, ST_FORMAT,
        "%s: expected model.safetensors.index.json, model.safetensors or one .safetensors "
        "file, found %zu indexes and %zu .safetensors files",
        dir, n_index, n_files);
}

/* ---- opening ------------------------------------------------------------------------------- */

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_entry *)a)->name,
                  ((const struct checkpoint_entry *)b)->name);
}

struct checkpoint_entry *checkpoint_entry_find(const struct format_checkpoint *c, const char *name)
{
    const struct checkpoint_entry key = {.name = name};
    return bsearch(&key, c->entries, c->n_entries, sizeof *c->entries, compare_entries);
}

static void stamp_from(const struct stat *info, struct checkpoint_stamp *out)
{
    *out = (struct checkpoint_stamp){.device = (uint64_t)info->st_dev,
                                     .inode = (uint64_t)info->st_ino,
                                     .size = (uint64_t)info->st_size,
                                     .seconds = (int64_t)info->st_mtim.tv_sec,
                                     .nanoseconds = info->st_mtim.tv_nsec};
}

static enum status open_file(struct checkpoint_file *f, uint64_t cap, struct err *err)
{
    struct stat info;
    TRY(format_safetensors_open(f->path, cap, &f->data, err));
    if (fstat(f->data->fd, &info) != 0)
        return err_set(err, ST_IO, "%s: %s", f->path, strerror(errno));
    stamp_from(&info, &f->stamp);
    return ST_OK;
}

static enum status open_single(struct format_checkpoint *c, uint64_t cap, struct err *err)
{
    c->files = calloc(1, sizeof *c->files);
    if (c->files == NULL)
        return err_nomem(err, sizeof *c->files);
    c->n_files = 1;
    c->files[0].name = path_base(c->path);
    c->files[0].path = str_dup(c->path);
    if (c->files[0].path == NULL)
        return err_nomem(err, strlen(c->path) + 1);
    TRY(open_file(&c->files[0], cap, err));
    const struct format_safetensors *f = c->files[0].data;
    c->entries = calloc(f->n_tensors + 1, sizeof *c->entries);
    if (c->entries == NULL)
        return err_nomem(err, (f->n_tensors + 1) * sizeof *c->entries);
    c->n_entries = f->n_tensors;
    for (size_t i = 0; i < f->n_tensors; i++)
        c->entries[i] = (struct checkpoint_entry){f->tensors[i].name, 0, &f->tensors[i]};
    qsort(c->entries, c->n_entries, sizeof *c->entries, compare_entries);
    return ST_OK;
}

/* Every absent file is named, not the first alone (N13). */
static enum status absent_fault(const struct format_checkpoint *c, size_t n_absent, struct err *err)
{
    struct bytes list = {0};
    size_t shown = 0;
    for (size_t i = 0; i < c->n_files; i++) {
        if (c->files[i].data != NULL || list.size + strlen(c->files[i].name) > 700)
            continue;
        bytes_printf(&list, "%s%s", shown == 0 ? "" : ", ", c->files[i].name);
        shown++;
    }
    if (shown < n_absent)
        bytes_printf(&list, " and %zu more", n_absent - shown);
    bytes_put_u8(&list, 0);
    enum status st =
        list.failed
            ? err_nomem(err, list.size)
            : err_set(err, ST_FORMAT, "%s: %zu of the %zu files it names %s absent: %s", c->path,
                      n_absent, c->n_files, n_absent == 1 ? "is" : "are", (const char *)list.data);
    bytes_free(&list);
    return st;
}

/* Give the tensors of one file to the entries that the index maps to it. */
static void attach_tensors(struct format_checkpoint *c, size_t file)
{
    const struct format_safetensors *f = c->files[file].data;
    const struct checkpoint_entry *elsewhere = NULL;
    const char *unmapped = NULL;
    size_t n_elsewhere = 0;
    size_t n_unmapped = 0;
    char name[FORMAT_PRINTABLE_SIZE];
    for (size_t i = 0; i < f->n_tensors; i++) {
        struct checkpoint_entry *e = checkpoint_entry_find(c, f->tensors[i].name);
        if (e == NULL) {
            unmapped = unmapped == NULL ? f->tensors[i].name : unmapped;
            n_unmapped++;
        } else if (e->file != file) {
            elsewhere = elsewhere == NULL ? e : elsewhere;
            n_elsewhere++;
        } else {
            e->tensor = &f->tensors[i];
        }
    }
    if (elsewhere != NULL)
        checkpoint_warn(
            c,
            "%s: %zu tensors lie here that the index maps to another file, as \"%s\" to "
            "%s; the index is followed",
            f->path, n_elsewhere, format_printable(elsewhere->name, name),
            c->files[elsewhere->file].name);
    if (unmapped != NULL)
        checkpoint_warn(c, "%s: %zu tensors are not in the index, as \"%s\"; they are not read",
                        f->path, n_unmapped, format_printable(unmapped, name));
}

static enum status open_indexed(struct format_checkpoint *c,
                                const struct format_checkpoint_opts *opts, struct err *err)
{
    size_t n_absent = 0;
    TRY(checkpoint_index_read(c, err));
    for (size_t i = 0; i < c->n_files; i++) {
        if (!file_exists(c->files[i].path)) {
            n_absent++;
            continue;
        }
        TRY(open_file(&c->files[i], opts->header_cap, err));
        attach_tensors(c, i);
    }
    if (n_absent > 0 && !opts->allow_missing_unused)
        return absent_fault(c, n_absent, err);
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].data == NULL)
            checkpoint_warn(c, "%s: %s is absent; going on as long as no tensor of it is read",
                            c->path, c->files[i].name);
    checkpoint_index_warn(c);
    return ST_OK;
}

static enum status list_entries(struct format_checkpoint *c, struct err *err)
{
    c->listed = calloc(c->n_entries + 1, sizeof *c->listed);
    if (c->listed == NULL)
        return err_nomem(err, (c->n_entries + 1) * sizeof *c->listed);
    for (size_t i = 0; i < c->n_entries; i++)
        if (c->entries[i].tensor != NULL)
            c->listed[c->n_listed++] = i;
    return ST_OK;
}

enum status format_checkpoint_open(const char *path, const struct format_checkpoint_opts *opts,
                                   struct format_checkpoint **out, struct err *err)
{
    const struct format_checkpoint_opts defaults = {0};
    const struct format_checkpoint_opts *o = opts == NULL ? &defaults : opts;
    *out = NULL;
    struct format_checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL)
        return err_nomem(err, sizeof *c);
    enum status st = ST_OK;
    if (file_is_dir(path))
        st = folder_choose(path, &c->path, err);
    else if ((c->path = str_dup(path)) == NULL)
        st = err_nomem(err, strlen(path) + 1);
    if (st == ST_OK && (c->dir = path_dir(c->path)) == NULL)
        st = err_nomem(err, strlen(path) + 1);
    if (st == ST_OK) {
        c->indexed = has_suffix(c->path, ".index.json");
        st = c->indexed ? open_indexed(c, o, err) : open_single(c, o->header_cap, err);
    }
    if (st == ST_OK)
        st = list_entries(c, err);
    if (st != ST_OK) {
        format_checkpoint_close(&c);
        return st;
    }
    *out = c;
    return ST_OK;
}

void format_checkpoint_close(struct format_checkpoint **checkpoint)
{
    if (checkpoint == NULL || *checkpoint == NULL)
        return;
    struct format_checkpoint *c = *checkpoint;
    for (size_t i = 0; i < c->n_files; i++) {
        format_safetensors_close(&c->files[i].data);
        free(c->files[i].path);
    }
    for (size_t i = 0; i < c->n_warnings; i++)
        free(c->warnings[i]);
    free(c->warnings);
    free(c->files);
    free(c->entries);
    free(c->listed);
    format_json_free(&c->index);
    free(c->dir);
    free(c->path);
    free(c);
    *checkpoint = NULL;
}

/* ---- finding and reading ------------------------------------------------------------------- */

/* Three different faults, three messages (N14), and hints for a name that nothing has (N17). */
static enum status missing_fault(const struct format_checkpoint *c, const char *name,
                                 const struct checkpoint_entry *e, struct err *err)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    format_printable(name, shown);
    if (e != NULL && c->files[e->file].data == NULL)
        return err_set(err, ST_STRUCTURE, "%s: the index maps tensor \"%s\" to %s, %s is absent",
                       c->path, shown, c->files[e->file].name, c->files[e->file].name);
    if (e != NULL)
        return err_set(err, ST_STRUCTURE,
                       "%s: %s is present but its header lacks tensor \"%s\", which the index maps "
                       "to it",
                       c->path, c->files[e->file].name, shown);
    struct bytes hints = {0};
    checkpoint_hints(c, name, &hints);
    bytes_put_u8(&hints, 0);
    enum status st =
        err_set(err, ST_STRUCTURE, "%s: tensor \"%s\" not in %s%s", c->path, shown,
                c->indexed ? "index" : "file", hints.failed ? "" : (const char *)hints.data);
    bytes_free(&hints);
    return st;
}

enum status format_checkpoint_find(const struct format_checkpoint *c, const char *name,
                                   const struct format_tensor **tensor, struct err *err)
{
    const struct checkpoint_entry *e = checkpoint_entry_find(c, name);
    *tensor = e == NULL ? NULL : e->tensor;
    return *tensor != NULL ? ST_OK : missing_fault(c, name, e, err);
}

enum status format_checkpoint_tensor_info(void *ctx, const char *name,
                                          struct graph_tensor_info *out, struct err *err)
{
    static_assert((int)GRAPH_MAX_DIMS >= (int)FORMAT_MAX_RANK, "a shape fits");
    const struct format_tensor *t = NULL;
    TRY(format_checkpoint_find(ctx, name, &t, err));
    *out =
        (struct graph_tensor_info){.dtype = t->dtype, .dtype_text = t->dtype_text, .rank = t->rank};
    memcpy(out->shape, t->shape, sizeof t->shape);
    return ST_OK;
}

enum status format_checkpoint_read(const struct format_checkpoint *c,
                                   const struct format_tensor *tensor, uint64_t offset, void *dst,
                                   size_t size, struct err *err)
{
    uintptr_t at = (uintptr_t)tensor;
    for (size_t i = 0; i < c->n_files; i++) {
        const struct format_safetensors *f = c->files[i].data;
        if (f != NULL && at >= (uintptr_t)f->tensors && at < (uintptr_t)(f->tensors + f->n_tensors))
            return format_safetensors_read(f, tensor, offset, dst, size, err);
    }
    return err_set(err, ST_INTERNAL, "%s: read of a tensor of another checkpoint", c->path);
}

static enum status file_unchanged(const struct checkpoint_file *f, struct err *err)
{
    struct stat info;
    struct checkpoint_stamp now;
    /* In place first: a name that leads elsewhere says nothing of the open file. */
    if (fstat(f->data->fd, &info) != 0)
        return err_set(err, ST_IO, "%s: %s", f->path, strerror(errno));
    stamp_from(&info, &now);
    if (now.size != f->stamp.size)
        return err_set(err, ST_IO,
                       "%s: changed while it was read: %" PRIu64 " bytes when opened, %" PRIu64
                       " now; run again",
                       f->path, f->stamp.size, now.size);
    if (now.seconds != f->stamp.seconds || now.nanoseconds != f->stamp.nanoseconds)
        return err_set(err, ST_IO, "%s: changed while it was read: written to since; run again",
                       f->path);
    if (stat(f->path, &info) != 0)
        return err_set(err, ST_IO, "%s: changed while it was read: %s; run again", f->path,
                       strerror(errno));
    stamp_from(&info, &now);
    if (now.inode != f->stamp.inode || now.device != f->stamp.device)
        return err_set(err, ST_IO,
                       "%s: changed while it was read: replaced by another file; run again",
                       f->path);
    return ST_OK;
}

enum status format_checkpoint_unchanged(const struct format_checkpoint *c, struct err *err)
{
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].data != NULL)
            TRY(file_unchanged(&c->files[i], err));
    return ST_OK;
}

uint64_t format_checkpoint_bytes(const struct format_checkpoint *c)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n_files; i++)
        if (c->files[i].data != NULL)
            bytes += c->files[i].data->file_size;
    return bytes;
}

size_t format_checkpoint_count(const struct format_checkpoint *c)
{
    return c->n_listed;
}

const struct format_tensor *format_checkpoint_tensor(const struct format_checkpoint *c, size_t i,
                                                     const char **file)
{
    const struct checkpoint_entry *e = &c->entries[c->listed[i]];
    if (file != NULL)
        *file = c->files[e->file].path;
    return e->tensor;
}

size_t format_checkpoint_warnings(const struct format_checkpoint *c)
{
    return c->n_warnings;
}

const char *format_checkpoint_warning(const struct format_checkpoint *c, size_t i)
{
    return c->warnings[i];
}
