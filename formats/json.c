/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/recipe.h"
#include "formats/formats_internal.h"

#include <cjson/cJSON.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *format_printable(const char *name, char buf[FORMAT_PRINTABLE_SIZE])
{
    size_t i = 0;
    for (; name[i] != '\0' && i < FORMAT_PRINTABLE_SIZE - 4; i++) {
        unsigned char c = (unsigned char)name[i];
        buf[i] = c < 0x20 || c == 0x7f ? '?' : name[i];
    }
    if (name[i] != '\0') {
        /* never end inside a UTF-8 character */
        while (i > 0 && ((unsigned char)name[i] & 0xc0) == 0x80)
            i--;
        memcpy(buf + i, "...", 3);
        i += 3;
    }
    buf[i] = '\0';
    return buf;
}

bool format_json_u64(const struct cJSON *item, uint64_t *out)
{
    if (!cJSON_IsNumber(item))
        return false;
    double x = item->valuedouble;
    if (!(x >= 0.0) || x >= 9007199254740992.0 || x != (double)(uint64_t)x)
        return false;
    *out = (uint64_t)x;
    return true;
}

const char *format_json_shown(const struct cJSON *item, char buf[FORMAT_PRINTABLE_SIZE])
{
    char part[FORMAT_PRINTABLE_SIZE];
    if (item == NULL)
        snprintf(buf, FORMAT_PRINTABLE_SIZE, "nothing");
    else if (cJSON_IsString(item))
        snprintf(buf, FORMAT_PRINTABLE_SIZE, "\"%.100s\"",
                 format_printable(item->valuestring, part));
    else if (cJSON_IsNumber(item))
        str_double(item->valuedouble, buf, FORMAT_PRINTABLE_SIZE);
    else
        snprintf(buf, FORMAT_PRINTABLE_SIZE, "%s",
                 cJSON_IsArray(item)    ? "an array"
                 : cJSON_IsObject(item) ? "an object"
                 : cJSON_IsTrue(item)   ? "true"
                 : cJSON_IsFalse(item)  ? "false"
                                        : "null");
    return buf;
}

/* The way from the root to a value, for messages. */
struct json_place {
    const struct json_place *parent; /* NULL at the root */
    const char *key;                 /* NULL inside an array */
    size_t index;
};

static void json_place_print(const struct json_place *p, struct bytes *out)
{
    char key[FORMAT_PRINTABLE_SIZE];
    if (p->parent == NULL)
        return;
    json_place_print(p->parent, out);
    if (p->key == NULL)
        bytes_printf(out, "[%zu]", p->index);
    else
        bytes_printf(out, "%s%s", out->size > 0 ? "." : "", format_printable(p->key, key));
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status duplicate_fault(const char *what, const struct json_place *place,
                                   const char *key, struct err *err)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    struct bytes path = {0};
    json_place_print(place, &path);
    bytes_put_u8(&path, 0);
    bool named = !path.failed && path.size > 1;
    enum status st = err_set(err, ST_FORMAT, "%s: duplicate key \"%s\"%s%.300s", what,
                             format_printable(key, shown), named ? " in " : " at the top level",
                             named ? (const char *)path.data : "");
    bytes_free(&path);
    return st;
}

/* Keys of one object: sorted, so that a header of a million tensors stays cheap. */
static enum status check_object_keys(const char *what, const cJSON *object,
                                     const struct json_place *place, struct err *err)
{
    size_t n = 0;
    for (const cJSON *c = object->child; c != NULL; c = c->next)
        n++;
    if (n < 2)
        return ST_OK;
    const char **keys = calloc(n, sizeof *keys);
    if (keys == NULL)
        return err_nomem(err, n * sizeof *keys);
    size_t i = 0;
    for (const cJSON *c = object->child; c != NULL; c = c->next)
        keys[i++] = c->string;
    qsort(keys, n, sizeof *keys, compare_keys);
    enum status st = ST_OK;
    for (i = 1; i < n && st == ST_OK; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0)
            st = duplicate_fault(what, place, keys[i], err);
    free(keys);
    return st;
}

/* No key twice at any depth: cJSON keeps both and finds the first, other readers the last (N2). */
static enum status check_keys(const char *what, const cJSON *item, const struct json_place *place,
                              struct err *err)
{
    if (cJSON_IsObject(item))
        TRY(check_object_keys(what, item, place, err));
    size_t index = 0;
    for (const cJSON *c = item->child; c != NULL; c = c->next, index++) {
        if (c->child == NULL)
            continue;
        struct json_place inner = {.parent = place, .key = c->string, .index = index};
        TRY(check_keys(what, c, &inner, err));
    }
    return ST_OK;
}

enum status format_json_parse(const char *what, const void *text, size_t size, struct cJSON **out,
                              struct err *err)
{
    const char *end = NULL;
    *out = NULL;
    TRY(format_json_scan(what, text, size, err));
    cJSON *json = cJSON_ParseWithLengthOpts(text, size, &end, false);
    if (json == NULL) /* the scanner accepted it, so cJSON ran out of memory */
        return err_set(err, ST_NOMEM, "%s: cJSON could not hold the %zu bytes of JSON", what, size);
    const struct json_place root = {0};
    enum status st = check_keys(what, json, &root, err);
    if (st != ST_OK) {
        cJSON_Delete(json);
        return st;
    }
    *out = json;
    return ST_OK;
}

enum status format_json_read(const char *path, size_t max_size, struct cJSON **out, struct err *err)
{
    uint8_t *text = NULL;
    size_t size = 0;
    *out = NULL;
    TRY(file_read_all(path, max_size, &text, &size, err));
    enum status st = format_json_parse(path, text, size, out, err);
    free(text);
    return st;
}

void format_json_free(struct cJSON **json)
{
    if (json == NULL || *json == NULL)
        return;
    cJSON_Delete(*json);
    *json = NULL;
}
