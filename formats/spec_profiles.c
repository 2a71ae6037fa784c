/* SPDX-License-Identifier: Apache-2.0 */
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
    if (st == ST_OK) {
        text = cJSON_Print(spec);
        st = text == NULL ? err_nomem(err, n) : file_publish(out_path, text, strlen(text), err);
    }
    cJSON_free(text);
    format_json_free(&spec);
    return st;
}
