/* SPDX-License-Identifier: Apache-2.0 */
/* The index of a sharded checkpoint: {"metadata": {"total_size": n}, "weight_map": {name: file}}.
 */
#define _XOPEN_SOURCE 700 /* realpath */
#include "formats/checkpoint_internal.h"
#include "formats/formats_internal.h"

#include <cjson/cJSON.h>

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A file name in the index may not lead out of the folder (N16).  Links are another matter: Hugging
 * Face caches hold links to ../../blobs under plain names. */
static bool name_stays_inside(const char *name)
{
    if (name[0] == '\0' || name[0] == '/')
        return false;
    for (const char *part = name; part != NULL;) {
        const char *slash = strchr(part, '/');
        size_t n = slash == NULL ? strlen(part) : (size_t)(slash - part);
        if (n == 0 || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.'))
            return false;
        part = slash == NULL ? NULL : slash + 1;
    }
    return true;
}

/* A name with folders in it must also end inside once links are followed. */
static enum status check_links(const struct format_checkpoint *c, const struct checkpoint_file *f,
                               struct err *err)
{
    if (strchr(f->name, '/') == NULL || !file_exists(f->path))
        return ST_OK;
    char *root = realpath(c->dir, NULL);
    char *real = realpath(f->path, NULL);
    size_t n = root == NULL ? 0 : strlen(root);
    bool inside =
        root != NULL && real != NULL && strncmp(real, root, n) == 0 && (n == 1 || real[n] == '/');
    free(root);
    free(real);
    if (inside)
        return ST_OK;
    return err_set(err, ST_FORMAT, "%s: file name \"%s\" leads out of the folder through a link",
                   c->path, f->name);
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_file *)a)->name,
                  ((const struct checkpoint_file *)b)->name);
}

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_entry *)a)->name,
                  ((const struct checkpoint_entry *)b)->name);
}

static enum status check_map(const struct format_checkpoint *c, const cJSON *map, size_t *n,
                             struct err *err)
{
    char name[FORMAT_PRINTABLE_SIZE];
    char shown[FORMAT_PRINTABLE_SIZE];
    *n = 0;
    if (!cJSON_IsObject(map))
        return err_set(err, ST_FORMAT, "%s: weight_map: expected an object, found %s", c->path,
                       format_json_shown(map, shown));
    for (const cJSON *e = map->child; e != NULL; e = e->next, ++*n) {
        if (!cJSON_IsString(e))
            return err_set(err, ST_FORMAT, "%s: weight_map[\"%s\"]: expected a file name, found %s",
                           c->path, format_printable(e->string, name), format_json_shown(e, shown));
        if (!name_stays_inside(e->valuestring))
            return err_set(
                err, ST_FORMAT,
                "%s: weight_map[\"%s\"]: expected a file name inside the folder, found %s", c->path,
                format_printable(e->string, name), format_json_shown(e, shown));
    }
    return ST_OK;
}

/* The distinct file names of a checked map, in name order. */
static enum status take_files(struct format_checkpoint *c, const cJSON *map, size_t n,
                              struct err *err)
{
    size_t i = 0;
    size_t kept = 0;
    c->files = calloc(n + 1, sizeof *c->files);
    if (c->files == NULL)
        return err_nomem(err, (n + 1) * sizeof *c->files);
    for (const cJSON *e = map->child; e != NULL; e = e->next)
        c->files[i++].name = e->valuestring;
    qsort(c->files, n, sizeof *c->files, compare_files);
    for (i = 0; i < n; i++)
        if (kept == 0 || strcmp(c->files[kept - 1].name, c->files[i].name) != 0)
            c->files[kept++].name = c->files[i].name;
    c->n_files = kept;
    for (i = 0; i < kept; i++) {
        c->files[i].path = path_join(c->dir, c->files[i].name);
        if (c->files[i].path == NULL)
            return err_nomem(err, strlen(c->dir) + strlen(c->files[i].name) + 2);
        TRY(check_links(c, &c->files[i], err));
    }
    return ST_OK;
}

static enum status take_entries(struct format_checkpoint *c, const cJSON *map, size_t n,
                                struct err *err)
{
    c->entries = calloc(n + 1, sizeof *c->entries);
    if (c->entries == NULL)
        return err_nomem(err, (n + 1) * sizeof *c->entries);
    for (const cJSON *e = map->child; e != NULL; e = e->next) {
        const struct checkpoint_file key = {.name = e->valuestring};
        const struct checkpoint_file *f =
            bsearch(&key, c->files, c->n_files, sizeof *c->files, compare_files);
        c->entries[c->n_entries++] =
            (struct checkpoint_entry){.name = e->string, .file = (size_t)(f - c->files)};
    }
    qsort(c->entries, c->n_entries, sizeof *c->entries, compare_entries);
    return ST_OK;
}

enum status checkpoint_index_read(struct format_checkpoint *c, struct err *err)
{
    size_t n = 0;
    char shown[FORMAT_PRINTABLE_SIZE];
    TRY(format_json_read(c->path, FORMAT_HEADER_CAP_DEFAULT, &c->index, err));
    if (!cJSON_IsObject(c->index))
        return err_set(err, ST_FORMAT, "%s: expected an object, found %s", c->path,
                       format_json_shown(c->index, shown));
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(c->index, "weight_map");
    TRY(check_map(c, map, &n, err));
    TRY(take_files(c, map, n, err));
    return take_entries(c, map, n, err);
}

/* The tensors' bytes against metadata.total_size; nothing is said where a file is absent. */
static void warn_total(struct format_checkpoint *c)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(c->index, "metadata");
    const cJSON *total =
        cJSON_IsObject(metadata) ? cJSON_GetObjectItemCaseSensitive(metadata, "total_size") : NULL;
    uint64_t claimed;
    uint64_t sum = 0;
    if (!format_json_u64(total, &claimed))
        return;
    for (size_t i = 0; i < c->n_files; i++) {
        const struct format_safetensors *f = c->files[i].data;
        if (f == NULL)
            return;
        sum += f->file_size - 8 - f->header_size;
    }
    if (sum != claimed)
        checkpoint_warn(
            c, "%s: metadata.total_size is %" PRIu64 ", the tensors take %" PRIu64 " bytes",
            c->path, claimed, sum);
}

/* Files that a loader going by names might have picked: the lowest name and how many. */
static void warn_strays(struct format_checkpoint *c)
{
    static const char suffix[] = ".safetensors";
    char *first = NULL;
    size_t n_strays = 0;
    DIR *d = opendir(c->dir);
    if (d == NULL)
        return;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        const struct checkpoint_file key = {.name = e->d_name};
        size_t n = strlen(e->d_name);
        if (n < sizeof suffix || strcmp(e->d_name + n - (sizeof suffix - 1), suffix) != 0 ||
            bsearch(&key, c->files, c->n_files, sizeof *c->files, compare_files) != NULL)
            continue;
        n_strays++;
        bool usual = strcmp(e->d_name, "model.safetensors") == 0;
        bool better = first == NULL || usual ||
                      (strcmp(first, "model.safetensors") != 0 && strcmp(e->d_name, first) < 0);
        if (better) {
            free(first);
            first = str_dup(e->d_name);
        }
    }
    closedir(d);
    if (first != NULL)
        checkpoint_warn(c, "%s: %zu stray .safetensors files beside the index, as %s; not read",
                        c->path, n_strays, first);
    free(first);
}

void checkpoint_index_warn(struct format_checkpoint *c)
{
    warn_total(c);
    warn_strays(c);
}
