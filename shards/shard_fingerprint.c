/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_FIELD "embedding_rows"
#define ENVIRONMENT_PREFIX "environment."

/* Characters of a value in a difference, and how many of them before the first that differs. */
enum { SHOWN_MAX = 96, SHOWN_CONTEXT = 32 };

static const struct format_field *field_find(const struct format_field *fields, size_t n,
                                             const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static enum status append(struct shard_fingerprint *f, const char *name, const char *value,
                          struct err *err)
{
    size_t size;
    if (!mul_size(f->n_fields + 1, sizeof *f->fields, &size))
        return err_nomem(err, SIZE_MAX);
    struct format_field *fields = realloc(f->fields, size);
    if (fields == NULL)
        return err_nomem(err, size);
    f->fields = fields;
    char *own_name = str_dup(name), *own_value = str_dup(value);
    if (own_name == NULL || own_value == NULL) {
        free(own_name);
        free(own_value);
        return err_nomem(err, strlen(name) + strlen(value) + 2);
    }
    f->fields[f->n_fields++] = (struct format_field){.name = own_name, .value = own_value};
    return ST_OK;
}

enum status shard_fingerprint_add(struct shard_fingerprint *f, const char *name, const char *value,
                                  struct err *err)
{
    if (strcmp(name, ROWS_FIELD) == 0 || field_find(f->fields, f->n_fields, name) != NULL)
        return err_set(err, ST_INTERNAL, "fingerprint field %s given twice", name);
    f->hex[0] = '\0'; /* of the fields before; a unit's is computed when it is whole */
    return append(f, name, value, err);
}

/* SHA-256 over length-prefixed names and values, so that no two lists of fields read alike. */
static enum status compute_hex(struct shard_fingerprint *f, struct err *err)
{
    struct bytes text = {0};
    for (size_t i = 0; i < f->n_fields; i++) {
        bytes_put_str(&text, f->fields[i].name);
        bytes_put_str(&text, f->fields[i].value);
    }
    enum status st =
        text.failed ? err_nomem(err, text.size) : sha256_of(text.data, text.size, f->hex, err);
    bytes_free(&text);
    return st;
}

enum status shard_fingerprint_unit(const struct shard_fingerprint *base, const struct digest *rows,
                                   struct shard_fingerprint *out, struct err *err)
{
    char hex[DIGEST_HEX_SIZE];
    *out = (struct shard_fingerprint){.n_fields = 0};
    enum status st = append(out, ROWS_FIELD, digest_hex(rows, hex), err);
    for (size_t i = 0; i < base->n_fields && st == ST_OK; i++)
        st = append(out, base->fields[i].name, base->fields[i].value, err);
    if (st == ST_OK)
        st = compute_hex(out, err);
    if (st != ST_OK)
        shard_fingerprint_free(out);
    return st;
}

void shard_fingerprint_free(struct shard_fingerprint *f)
{
    for (size_t i = 0; i < f->n_fields; i++) {
        free(f->fields[i].name);
        free(f->fields[i].value);
    }
    free(f->fields);
    *f = (struct shard_fingerprint){.n_fields = 0};
}

/* The next differing field: fields of now in order, then those that only the old has.  *at counts
 * through both; false when there is none left. */
static bool difference_next(const struct format_field *old_fields, size_t n_old,
                            const struct shard_fingerprint *now, size_t *at,
                            const struct format_field **before, const struct format_field **after)
{
    while (*at < now->n_fields) {
        *after = &now->fields[(*at)++];
        *before = field_find(old_fields, n_old, (*after)->name);
        if (*before == NULL || strcmp((*before)->value, (*after)->value) != 0)
            return true;
    }
    while (*at - now->n_fields < n_old) {
        *before = &old_fields[(*at)++ - now->n_fields];
        *after = NULL;
        if (field_find(now->fields, now->n_fields, (*before)->name) == NULL)
            return true;
    }
    return false;
}

/* A value as a reader needs it: one line; of a long one (the text of a whole graph) the part from
 * shortly before character `differs` on. */
static void show(const struct format_field *field, size_t differs, char *out, size_t out_size)
{
    if (field == NULL) {
        (void)snprintf(out, out_size, "(none)");
        return;
    }
    size_t n = strlen(field->value), from = 0;
    if (n > SHOWN_MAX && differs > SHOWN_CONTEXT)
        from = differs - SHOWN_CONTEXT < n ? differs - SHOWN_CONTEXT : n;
    bool is_cut = n - from > SHOWN_MAX;
    (void)snprintf(out, out_size, "%s%.*s%s", from > 0 ? "..." : "", SHOWN_MAX,
                   n == 0 ? "(empty)" : field->value + from, is_cut ? "..." : "");
    for (char *c = out; *c != '\0'; c++)
        if ((unsigned char)*c < ' ')
            *c = ' ';
}

static size_t common_prefix(const struct format_field *a, const struct format_field *b)
{
    size_t n = 0;
    while (a != NULL && b != NULL && a->value[n] != '\0' && a->value[n] == b->value[n])
        n++;
    return n;
}

void shard_fingerprint_difference(const struct format_field *old_fields, size_t n_old,
                                  const struct shard_fingerprint *now, char *buf, size_t buf_size)
{
    const struct format_field *before = NULL, *after = NULL;
    size_t at = 0;
    if (buf_size == 0)
        return;
    buf[0] = '\0';
    if (difference_next(old_fields, n_old, now, &at, &before, &after)) {
        char was[SHOWN_MAX + 8], is[SHOWN_MAX + 8];
        size_t differs = common_prefix(before, after);
        show(before, differs, was, sizeof was);
        show(after, differs, is, sizeof is);
        (void)snprintf(buf, buf_size, "%s: %s \xE2\x86\x92 %s",
                       after != NULL ? after->name : before->name, was, is);
        return;
    }
    for (size_t i = 0; i < n_old && i < now->n_fields; i++)
        if (strcmp(old_fields[i].name, now->fields[i].name) != 0) {
            (void)snprintf(buf, buf_size, "order of fields: %s \xE2\x86\x92 %s", old_fields[i].name,
                           now->fields[i].name);
            return;
        }
}

bool shard_fingerprint_only_environment(const struct format_field *old_fields, size_t n_old,
                                        const struct shard_fingerprint *now)
{
    const struct format_field *before = NULL, *after = NULL;
    size_t at = 0, n = 0;
    while (difference_next(old_fields, n_old, now, &at, &before, &after)) {
        const char *name = after != NULL ? after->name : before->name;
        if (strncmp(name, ENVIRONMENT_PREFIX, sizeof ENVIRONMENT_PREFIX - 1) != 0)
            return false;
        n++;
    }
    return n > 0;
}
