/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/recipe_files.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NAME_DIGITS = 16 };
static const size_t RECIPE_READ_MAX = (size_t)1 << 30;

char *driver_payload_of(const char *dir, const char *file)
{
    char *path = path_join(dir, file), *name = NULL;
    uint8_t *text = NULL;
    size_t size = 0;
    struct format_recipe *r = NULL;
    struct err ignored = {0};
    if (path != NULL && file_exists(path) &&
        file_read_all(path, RECIPE_READ_MAX, &text, &size, &ignored) == ST_OK &&
        format_recipe_decode(path, text, size, &r, &ignored) == ST_OK)
        name = str_dup(r->payload_file);
    format_recipe_free(&r);
    free(text);
    free(path);
    return name;
}

/* A user's own tables-old.safetensors is none of ours. */
static bool is_ours(const char *name, const char *start)
{
    size_t n = strlen(start);
    if (strncmp(name, start, n) != 0 || strspn(name + n, "0123456789abcdef") != NAME_DIGITS)
        return false;
    const char *end = name + n + NAME_DIGITS;
    return strcmp(end, ".safetensors") == 0 || strcmp(end, ".ttz") == 0;
}

void driver_sweep(const char *dir, const char *start, const char *keep)
{
    DIR *d = opendir(dir);
    if (d == NULL)
        return;
    for (struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        if (!is_ours(entry->d_name, start) || (keep != NULL && strcmp(entry->d_name, keep) == 0))
            continue;
        char *path = path_join(dir, entry->d_name);
        if (path != NULL)
            (void)unlink(path);
        free(path);
    }
    closedir(d);
}
