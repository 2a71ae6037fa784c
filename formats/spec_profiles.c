/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* realpath */
/* A copy of a spec with other row-count profiles. */
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include "formats/formats.h"

enum { SPEC_MAX_BYTES = 64 << 20 };

static cJSON *profile_list(const struct format_row_profile *profiles, size_t n)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < n && list != NULL; i++) {
        cJSON *one = cJSON_CreateObject();
        if (one == NULL ||
            cJSON_AddNumberToObject(one, "max_rows", (double)profiles[i].max_rows) == NULL ||
            cJSON_AddNumberToObject(one, "evaluation_rows", (double)profiles[i].evaluation_rows) ==
                NULL ||
            !cJSON_AddItemToArray(list, one)) {
            cJSON_Delete(one);
            cJSON_Delete(list);
            return NULL;
        }
    }
    return list;
}

/* ---- paths ------------------------------------------------------------------------------------
 *
 * Those of a spec are relative to its folder; in a copy elsewhere they name the old folder in full.
 */

static char *real_folder_of(const char *path)
{
    char *dir = path_dir(path);
    char *real = dir == NULL ? NULL : realpath(dir, NULL);
    free(dir);
    return real;
}

/* False: memory is short. */
static bool rebase(cJSON *item, const char *dir)
{
    if (!cJSON_IsString(item) || item->valuestring[0] == '/' || item->valuestring[0] == '\0')
        return true;
    char *path = path_join(dir, item->valuestring);
    bool good = path != NULL && cJSON_SetValuestring(item, path) != NULL;
    free(path);
    return good;
}

static bool rebase_all(cJSON *spec, const char *dir)
{
    cJSON *examples = cJSON_GetObjectItemCaseSensitive(spec, "examples");
    bool good = rebase(cJSON_GetObjectItemCaseSensitive(spec, "checkpoint"), dir) &&
                rebase(cJSON_GetObjectItemCaseSensitive(spec, "ids"), dir) && rebase(examples, dir);
    cJSON *item = NULL;
    if (cJSON_IsArray(examples))
        cJSON_ArrayForEach(item, examples) good = good && rebase(item, dir);
    cJSON *graph = cJSON_GetObjectItemCaseSensitive(spec, "graph");
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(graph, "nodes")) good =
        good && rebase(cJSON_GetObjectItemCaseSensitive(item, "recipe"), dir);
    return good;
}

static enum status rebase_copy(cJSON *spec, const char *spec_path, const char *out_path,
                               struct err *err)
{
    char *from = real_folder_of(spec_path), *to = real_folder_of(out_path);
    enum status st = ST_OK;
    /* Where the new folder is not there, writing tells. */
    if (from != NULL && to != NULL && strcmp(from, to) != 0 && !rebase_all(spec, from))
        st = err_nomem(err, strlen(from));
    free(from);
    free(to);
    return st;
}

enum status format_spec_with_profiles(const char *spec_path,
                                      const struct format_row_profile *profiles, size_t n,
                                      const char *out_path, struct err *err)
{
    struct cJSON *spec = NULL;
    TRY(format_json_read(spec_path, SPEC_MAX_BYTES, &spec, err));
    cJSON *list = profile_list(profiles, n);
    char *text = NULL;
    enum status st = ST_OK;
    cJSON_DeleteItemFromObjectCaseSensitive(spec, "row_count_profiles");
    if (list == NULL || !cJSON_AddItemToObject(spec, "row_count_profiles", list)) {
        cJSON_Delete(list);
        st = err_nomem(err, n);
    }
    if (st == ST_OK)
        st = rebase_copy(spec, spec_path, out_path, err);
    if (st == ST_OK) {
        text = cJSON_Print(spec);
        st = text == NULL ? err_nomem(err, n) : file_publish(out_path, text, strlen(text), err);
    }
    cJSON_free(text);
    format_json_free(&spec);
    return st;
}
