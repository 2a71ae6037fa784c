/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/spec_internal.h"
#include "formats/formats_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A JSON number is a double: above, neighbours are the same number. */
#define SPEC_MAX_INTEGER (((uint64_t)1 << 53) - 1)

static size_t path_put(const struct spec_path *at, char *buf, size_t size)
{
    if (at == NULL || (at->up == NULL && at->key == NULL))
        return 0;
    size_t n = path_put(at->up, buf, size);
    char key[FORMAT_PRINTABLE_SIZE];
    int added;
    if (at->key != NULL)
        added =
            snprintf(buf + n, size - n, "%s%s", n == 0 ? "" : ".", format_printable(at->key, key));
    else
        added = snprintf(buf + n, size - n, "[%zu]", at->index);
    n += added < 0 ? 0 : (size_t)added;
    return n < size ? n : size - 1;
}

const char *spec_path_text(const struct spec_path *at, char buf[SPEC_PATH_SIZE])
{
    buf[0] = '\0';
    path_put(at, buf, SPEC_PATH_SIZE);
    return buf;
}

char *spec_path_dup(const struct spec_path *at)
{
    char buf[SPEC_PATH_SIZE];
    return str_dup(spec_path_text(at, buf));
}

enum status spec_fail(const struct spec_reader *r, enum status st, const struct spec_path *at,
                      const char *fmt, ...)
{
    char path[SPEC_PATH_SIZE], message[ERR_MESSAGE_SIZE / 2];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    spec_path_text(at, path);
    return err_set(r->err, st, "%s: %s%s%s", r->spec->path, path, path[0] == '\0' ? "" : ": ",
                   message);
}

enum status spec_expected(const struct spec_reader *r, const struct spec_path *at,
                          const cJSON *found, const char *expected)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    const char *kind = cJSON_IsNumber(found) ? "number " : cJSON_IsString(found) ? "string " : "";
    return spec_fail(r, ST_SPEC, at, "expected %s, found %s%s", expected, kind,
                     format_json_shown(found, shown));
}

enum status spec_missing(const struct spec_reader *r, const struct spec_path *up, const char *key,
                         const char *what)
{
    const struct spec_path at = {up, key, 0};
    return spec_fail(r, ST_SPEC, &at, "missing (required for %s)", what);
}

const cJSON *spec_get(const cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static enum status unknown_key(const struct spec_reader *r, const struct spec_path *at,
                               const char *key, const char *const *known, size_t n_known)
{
    const struct spec_path here = {at, key, 0};
    const char *nearest = NULL;
    unsigned best = 0;
    for (size_t i = 0; i < n_known; i++) {
        unsigned distance = str_distance(key, known[i]);
        if (nearest == NULL || distance < best) {
            nearest = known[i];
            best = distance;
        }
    }
    return spec_fail(r, ST_SPEC, &here, "unknown key, nearest known key is \"%s\"",
                     nearest == NULL ? "comment" : nearest);
}

enum status spec_object(const struct spec_reader *r, const struct spec_path *at, const cJSON *json,
                        const char *const *known, size_t n_known)
{
    if (!cJSON_IsObject(json))
        return spec_expected(r, at, json, "an object");
    for (const cJSON *item = json->child; item != NULL; item = item->next) {
        const struct spec_path here = {at, item->string, 0};
        if (strcmp(item->string, "comment") == 0) {
            if (!cJSON_IsString(item))
                return spec_expected(r, &here, item, "a string");
            continue;
        }
        size_t i = 0;
        while (i < n_known && strcmp(known[i], item->string) != 0)
            i++;
        if (i == n_known)
            return unknown_key(r, at, item->string, known, n_known);
    }
    return ST_OK;
}

enum status spec_array(const struct spec_reader *r, const struct spec_path *at, const cJSON *json)
{
    return cJSON_IsArray(json) ? ST_OK : spec_expected(r, at, json, "an array");
}

enum status spec_string(const struct spec_reader *r, const struct spec_path *up,
                        const cJSON *object, const char *key, const char *what, const char **out)
{
    const struct spec_path at = {up, key, 0};
    const cJSON *json = spec_get(object, key);
    if (json == NULL)
        return what == NULL ? ST_OK : spec_missing(r, up, key, what);
    if (!cJSON_IsString(json))
        return spec_expected(r, &at, json, "a string");
    if (json->valuestring[0] == '\0')
        return spec_fail(r, ST_SPEC, &at, "expected a string that is not empty, found \"\"");
    *out = json->valuestring;
    return ST_OK;
}

enum status spec_u64(const struct spec_reader *r, const struct spec_path *up, const cJSON *object,
                     const char *key, struct spec_range range, uint64_t *out)
{
    const struct spec_path at = {up, key, 0};
    const cJSON *json = spec_get(object, key);
    uint64_t value;
    char expected[80];
    if (json == NULL)
        return ST_OK;
    range.max = min_u64(range.max, SPEC_MAX_INTEGER);
    if (!format_json_u64(json, &value) || value < range.min || value > range.max) {
        snprintf(expected, sizeof expected, "a whole number from %llu to %llu",
                 (unsigned long long)range.min, (unsigned long long)range.max);
        return spec_expected(r, &at, json, expected);
    }
    *out = value;
    return ST_OK;
}

enum status spec_u32(const struct spec_reader *r, const struct spec_path *up, const cJSON *object,
                     const char *key, struct spec_range range, uint32_t *out)
{
    uint64_t value = *out;
    range.max = min_u64(range.max, UINT32_MAX);
    TRY(spec_u64(r, up, object, key, range, &value));
    *out = (uint32_t)value;
    return ST_OK;
}

enum status spec_bool(const struct spec_reader *r, const struct spec_path *up, const cJSON *object,
                      const char *key, bool *out)
{
    const struct spec_path at = {up, key, 0};
    const cJSON *json = spec_get(object, key);
    if (json == NULL)
        return ST_OK;
    if (!cJSON_IsBool(json))
        return spec_expected(r, &at, json, "true or false");
    *out = cJSON_IsTrue(json);
    return ST_OK;
}

enum status spec_nonnegative(const struct spec_reader *r, const struct spec_path *up,
                             const cJSON *object, const char *key, const char *what, double *out)
{
    const struct spec_path at = {up, key, 0};
    const cJSON *json = spec_get(object, key);
    if (json == NULL)
        return what == NULL ? ST_OK : spec_missing(r, up, key, what);
    if (!cJSON_IsNumber(json) || !isfinite(json->valuedouble) || json->valuedouble < 0)
        return spec_expected(r, &at, json, "a finite number, 0 or more");
    *out = json->valuedouble;
    return ST_OK;
}

enum status spec_choice(const struct spec_reader *r, const struct spec_path *at, const cJSON *json,
                        const char *choices, unsigned *out)
{
    unsigned index = 0;
    if (cJSON_IsString(json)) {
        size_t size = strlen(json->valuestring);
        for (const char *c = choices; size > 0; index++) {
            size_t n = strcspn(c, "|");
            if (n == size && memcmp(c, json->valuestring, n) == 0) {
                *out = index;
                return ST_OK;
            }
            if (c[n] == '\0')
                break;
            c += n + 1;
        }
    }
    char expected[160];
    size_t n = (size_t)snprintf(expected, sizeof expected, "\"");
    for (const char *c = choices; *c != '\0' && n < sizeof expected - 12; c++) {
        if (*c == '|')
            n += (size_t)snprintf(expected + n, sizeof expected - n, "\" or \"");
        else
            expected[n++] = *c;
    }
    snprintf(expected + n, sizeof expected - n, "\"");
    return spec_expected(r, at, json, expected);
}

enum status spec_name(const struct spec_reader *r, const struct spec_path *at, const char *name)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    if (str_is_name(name))
        return ST_OK;
    return spec_fail(r, ST_SPEC, at,
                     "expected a name of letters, digits, '_', '.', '-' (1 to 255), found \"%s\"",
                     format_printable(name, shown));
}

enum status spec_dup(const struct spec_reader *r, const char *s, char **out)
{
    *out = str_dup(s);
    return *out != NULL ? ST_OK : err_nomem(r->err, strlen(s) + 1);
}

enum status spec_alloc(const struct spec_reader *r, size_t n, size_t size, void **out)
{
    return mem_calloc(n == 0 ? 1 : n, size, out, r->err);
}

const char *spec_backing(const struct format_spec *spec, const char *tensor)
{
    for (size_t i = 0; i < spec->n_aliases; i++)
        if (strcmp(spec->aliases[i].name, tensor) == 0) {
            spec->aliases[i].used = true;
            return spec->aliases[i].target;
        }
    return tensor;
}
