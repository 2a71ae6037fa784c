/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/json_value.h"
#include "formats/formats_internal.h"

#include <cjson/cJSON.h>

#include <assert.h>

static_assert((int)JSON_SHOWN_SIZE == (int)FORMAT_PRINTABLE_SIZE, "one size of shown values");

enum json_kind json_value_kind(const struct cJSON *v)
{
    return v == NULL           ? JSON_ABSENT
           : cJSON_IsBool(v)   ? JSON_BOOL
           : cJSON_IsNumber(v) ? JSON_NUMBER
           : cJSON_IsString(v) ? JSON_STRING
           : cJSON_IsArray(v)  ? JSON_ARRAY
           : cJSON_IsObject(v) ? JSON_OBJECT
                               : JSON_NULL;
}

const struct cJSON *json_value_get(const struct cJSON *object, const char *key)
{
    return cJSON_IsObject(object) ? cJSON_GetObjectItemCaseSensitive(object, key) : NULL;
}

const struct cJSON *json_value_first(const struct cJSON *v)
{
    return cJSON_IsArray(v) || cJSON_IsObject(v) ? v->child : NULL;
}

const struct cJSON *json_value_next(const struct cJSON *v)
{
    return v->next;
}

const char *json_value_key(const struct cJSON *v)
{
    return v->string;
}

size_t json_value_count(const struct cJSON *v)
{
    size_t n = 0;
    for (const cJSON *c = json_value_first(v); c != NULL; c = c->next)
        n++;
    return n;
}

const char *json_value_string(const struct cJSON *v)
{
    return cJSON_IsString(v) ? v->valuestring : NULL;
}

bool json_value_double(const struct cJSON *v, double *out)
{
    if (!cJSON_IsNumber(v))
        return false;
    *out = v->valuedouble;
    return true;
}

bool json_value_u64(const struct cJSON *v, uint64_t *out)
{
    if (cJSON_IsString(v))
        return str_to_u64(v->valuestring, out);
    return format_json_u64(v, out);
}

bool json_value_bool(const struct cJSON *v, bool *out)
{
    if (!cJSON_IsBool(v))
        return false;
    *out = cJSON_IsTrue(v);
    return true;
}

const char *json_value_shown(const struct cJSON *v, char buf[JSON_SHOWN_SIZE])
{
    return format_json_shown(v, buf);
}
