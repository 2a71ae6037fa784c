/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/progress.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "formats/formats_internal.h"
#include "formats/recipe.h"

enum { PROGRESS_SCHEMA = 1, PROGRESS_MAX_BYTES = 1 << 20 };

enum field_kind { FIELD_TEXT, FIELD_COUNT, FIELD_TIME };

/* One table for writing and reading. */
static const struct {
    const char *name;
    enum field_kind kind;
    size_t offset;
} fields[] = {
#define TEXT(f)                                                                                    \
    {                                                                                              \
#f, FIELD_TEXT, offsetof(struct format_progress, f)                                        \
    }
#define COUNT(f)                                                                                   \
    {                                                                                              \
#f, FIELD_COUNT, offsetof(struct format_progress, f)                                       \
    }
#define TIME(f)                                                                                    \
    {                                                                                              \
#f, FIELD_TIME, offsetof(struct format_progress, f)                                        \
    }
    TEXT(block),
    TEXT(state),
    TEXT(host),
    COUNT(pid),
    COUNT(ranks),
    COUNT(part),
    COUNT(n_parts),
    COUNT(units_total),
    COUNT(shards),
    COUNT(shards_done),
    COUNT(shards_in_flight),
    COUNT(shards_failed),
    COUNT(units_done),
    COUNT(units_reused),
    COUNT(tokens),
    COUNT(tokens_done),
    TIME(started),
    TIME(updated),
    TEXT(last_error),
#undef TEXT
#undef COUNT
#undef TIME
};
enum { N_FIELDS = sizeof fields / sizeof *fields };

enum status format_progress_encode(const struct format_progress *p, struct bytes *out,
                                   struct err *err)
{
    struct format_writer w = {.pretty = true};
    format_write_object(&w, NULL);
    format_write_u64(&w, "schema_version", PROGRESS_SCHEMA);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const char *at = (const char *)p + fields[i].offset;
        if (fields[i].kind == FIELD_TEXT) {
            const char *text = *(char *const *)(const void *)at;
            format_write_string(&w, fields[i].name, text == NULL ? "" : text);
        } else if (fields[i].kind == FIELD_COUNT) {
            format_write_u64(&w, fields[i].name, *(const uint64_t *)(const void *)at);
        } else {
            format_write_double(&w, fields[i].name, *(const double *)(const void *)at);
        }
    }
    format_write_end_object(&w);
    format_write_finish(&w);
    if (w.out.failed) {
        size_t size = w.out.size;
        bytes_free(&w.out);
        return err_nomem(err, size);
    }
    *out = w.out;
    return ST_OK;
}

enum status format_progress_write(const char *path, const struct format_progress *p,
                                  struct err *err)
{
    struct bytes text = {0};
    char *tmp = str_printf("%s.tmp", path);
    if (tmp == NULL)
        return err_nomem(err, strlen(path) + 5);
    enum status st = format_progress_encode(p, &text, err);
    int fd = -1;
    errno = 0;
    if (st == ST_OK) {
        fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (fd < 0)
            st = err_set(err, ST_IO, "%s: %s", tmp, strerror(errno));
    }
    /* One plain write: it is small, and a short one is a failure like any other. */
    if (st == ST_OK && write(fd, text.data, text.size) != (ssize_t)text.size)
        st = err_set(err, ST_IO, "%s: %s", tmp, errno != 0 ? strerror(errno) : "short write");
    if (fd >= 0 && close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: close: %s", tmp, strerror(errno));
    if (st == ST_OK && rename(tmp, path) != 0)
        st = err_set(err, ST_IO, "%s: rename to %s: %s", tmp, path, strerror(errno));
    if (st != ST_OK && fd >= 0)
        (void)unlink(tmp);
    bytes_free(&text);
    free(tmp);
    return st;
}

static enum status read_field(const char *path, const cJSON *json, size_t i,
                              struct format_progress *out, struct err *err)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, fields[i].name);
    char *at = (char *)out + fields[i].offset, shown[FORMAT_PRINTABLE_SIZE];
    bool good = true;
    if (fields[i].kind == FIELD_TEXT) {
        good = cJSON_IsString(item);
        if (good) {
            char *copy = str_dup(item->valuestring);
            if (copy == NULL)
                return err_nomem(err, strlen(item->valuestring) + 1);
            *(char **)(void *)at = copy;
        }
    } else if (fields[i].kind == FIELD_COUNT) {
        good = format_json_u64(item, (uint64_t *)(void *)at) ||
               (cJSON_IsString(item) && str_to_u64(item->valuestring, (uint64_t *)(void *)at));
    } else {
        good = cJSON_IsNumber(item);
        if (good)
            *(double *)(void *)at = item->valuedouble;
    }
    if (!good)
        return err_set(err, ST_FORMAT, "%s: %s: expected %s, found %s", path, fields[i].name,
                       fields[i].kind == FIELD_TEXT ? "a text" : "a number",
                       format_json_shown(item, shown));
    return ST_OK;
}

enum status format_progress_read(const char *path, struct format_progress *out, struct err *err)
{
    struct cJSON *json = NULL;
    *out = (struct format_progress){0};
    TRY(format_json_read(path, PROGRESS_MAX_BYTES, &json, err));
    enum status st = ST_OK;
    for (size_t i = 0; i < N_FIELDS && st == ST_OK; i++)
        st = read_field(path, json, i, out, err);
    format_json_free(&json);
    return st;
}

void format_progress_free(struct format_progress *p)
{
    free(p->block);
    free(p->host);
    free(p->state);
    free(p->last_error);
    *p = (struct format_progress){0};
}
