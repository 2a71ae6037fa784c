/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards_internal.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A journal is JSON lines, so that people and scripts can read it; the reader takes exactly what
 * the writer makes.  A line that a dying process tore, or that is anything else, is as if it were
 * not there: its unit is evaluated again. */

#define JOURNAL_PREFIX "journal-"
#define JOURNAL_SUFFIX ".jsonl"
#define JOURNAL_MAX_BYTES ((size_t)1 << 32)

void shard_unit_name(uint64_t unit, char name[SHARD_FILE_NAME])
{
    (void)snprintf(name, SHARD_FILE_NAME, "unit-%08" PRIu64 ".h5", unit);
}

void shard_entry_write(const struct shard_entry *e, struct bytes *out)
{
    char name[SHARD_FILE_NAME], hex[DIGEST_HEX_SIZE];
    shard_unit_name(e->unit, name);
    bytes_printf(out,
                 "{\"unit\":%" PRIu64 ",\"file\":\"" SHARD_UNITS_FOLDER "/%s\",\"size\":%" PRIu64
                 ",\"digest\":\"%s\",\"fingerprint\":\"%s\"}\n",
                 e->unit, name, e->size, digest_hex(&e->digest, hex), e->fingerprint);
}

struct cursor {
    const char *at, *end;
};

static bool take_text(struct cursor *c, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n) != 0)
        return false;
    c->at += n;
    return true;
}

/* n characters of the class that `accept` lists, as a string. */
static bool take_chars(struct cursor *c, const char *accept, size_t least, size_t most, char *out)
{
    size_t n = 0;
    while (n < most && c->at + n < c->end && c->at[n] != '\0' && strchr(accept, c->at[n]) != NULL)
        n++;
    if (n < least)
        return false;
    memcpy(out, c->at, n);
    out[n] = '\0';
    c->at += n;
    return true;
}

static bool take_u64(struct cursor *c, uint64_t *out)
{
    char digits[21];
    return take_chars(c, "0123456789", 1, 20, digits) && str_to_u64(digits, out);
}

bool shard_entry_parse(const char *text, size_t size, struct shard_entry *out)
{
    static const char hex_digits[] = "0123456789abcdef";
    struct cursor c = {.at = text, .end = text + size};
    struct shard_entry e;
    char name[SHARD_FILE_NAME], hex[DIGEST_HEX_SIZE];
    memset(&e, 0, sizeof e);
    if (!take_text(&c, "{\"unit\":") || !take_u64(&c, &e.unit))
        return false;
    shard_unit_name(e.unit, name);
    bool is_whole =
        take_text(&c, ",\"file\":\"" SHARD_UNITS_FOLDER "/") && take_text(&c, name) &&
        take_text(&c, "\",\"size\":") && take_u64(&c, &e.size) && take_text(&c, ",\"digest\":\"") &&
        take_chars(&c, hex_digits, DIGEST_HEX_SIZE - 1, DIGEST_HEX_SIZE - 1, hex) &&
        digest_from_hex(hex, &e.digest) && take_text(&c, "\",\"fingerprint\":\"") &&
        take_chars(&c, hex_digits, SHA256_HEX_SIZE - 1, SHA256_HEX_SIZE - 1, e.fingerprint) &&
        take_text(&c, "\"}") && c.at == c.end;
    if (is_whole)
        *out = e;
    return is_whole;
}

static bool entry_equal(const struct shard_entry *a, const struct shard_entry *b)
{
    return a->unit == b->unit && a->size == b->size && digest_equal(&a->digest, &b->digest) &&
           strcmp(a->fingerprint, b->fingerprint) == 0;
}

static enum status reserve_one(struct shard_journal *j, struct err *err)
{
    if (j->n < j->capacity)
        return ST_OK;
    size_t capacity = j->capacity > 0 ? j->capacity : 64, size;
    if (!mul_size(capacity, 2, &capacity) || !mul_size(capacity, sizeof *j->entries, &size))
        return err_nomem(err, SIZE_MAX);
    struct shard_entry *entries = realloc(j->entries, size);
    if (entries == NULL)
        return err_nomem(err, size);
    j->entries = entries;
    j->capacity = capacity;
    return ST_OK;
}

enum status shard_journal_parse(struct shard_journal *j, const char *text, size_t size,
                                struct err *err)
{
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (end == NULL)
            break; /* torn */
        struct shard_entry e;
        size_t length = (size_t)(end - (text + at));
        if (shard_entry_parse(text + at, length, &e)) {
            TRY(reserve_one(j, err));
            j->entries[j->n++] = e;
        }
        at += length + 1;
    }
    return ST_OK;
}

/* A total order, so that what stands in memory does not depend on the order of files. */
static int entry_order(const void *a, const void *b)
{
    const struct shard_entry *x = a, *y = b;
    if (x->unit != y->unit)
        return x->unit < y->unit ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    int order = memcmp(&x->digest, &y->digest, sizeof x->digest);
    return order != 0 ? order : strcmp(x->fingerprint, y->fingerprint);
}

void shard_journal_sort(struct shard_journal *j)
{
    if (j->n == 0)
        return;
    qsort(j->entries, j->n, sizeof *j->entries, entry_order);
    size_t kept = 1;
    for (size_t i = 1; i < j->n; i++)
        if (!entry_equal(&j->entries[i], &j->entries[kept - 1]))
            j->entries[kept++] = j->entries[i];
    j->n = kept;
}

/* First entry that is not before `unit`. */
static size_t lower_bound(const struct shard_journal *j, uint64_t unit)
{
    size_t low = 0, high = j->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (j->entries[middle].unit < unit)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

size_t shard_journal_find(const struct shard_journal *j, uint64_t unit,
                          const struct shard_entry **first)
{
    size_t at = lower_bound(j, unit), n = 0;
    while (at + n < j->n && j->entries[at + n].unit == unit)
        n++;
    *first = n > 0 ? &j->entries[at] : NULL;
    return n;
}

enum status shard_journal_add(struct shard_journal *j, const struct shard_entry *e, struct err *err)
{
    TRY(reserve_one(j, err));
    size_t at = lower_bound(j, e->unit);
    while (at < j->n && entry_order(&j->entries[at], e) < 0)
        at++;
    if (at < j->n && entry_equal(&j->entries[at], e))
        return ST_OK;
    memmove(&j->entries[at + 1], &j->entries[at], (j->n - at) * sizeof *j->entries);
    j->entries[at] = *e;
    j->n++;
    return ST_OK;
}

void shard_journal_free(struct shard_journal *j)
{
    free(j->entries);
    *j = (struct shard_journal){.n = 0};
}

bool shard_is_journal_name(const char *name)
{
    size_t n = strlen(name), prefix = sizeof JOURNAL_PREFIX - 1, suffix = sizeof JOURNAL_SUFFIX - 1;
    return n > prefix + suffix && strncmp(name, JOURNAL_PREFIX, prefix) == 0 &&
           strcmp(name + n - suffix, JOURNAL_SUFFIX) == 0;
}

static enum status names_add(struct shard_names *names, const char *name, struct err *err)
{
    if (names->n == names->capacity) {
        size_t capacity = names->capacity > 0 ? names->capacity : 64, size;
        if (!mul_size(capacity, 2, &capacity) || !mul_size(capacity, sizeof *names->names, &size))
            return err_nomem(err, SIZE_MAX);
        char **grown = realloc(names->names, size);
        if (grown == NULL)
            return err_nomem(err, size);
        names->names = grown;
        names->capacity = capacity;
    }
    char *copy = str_dup(name);
    if (copy == NULL)
        return err_nomem(err, strlen(name) + 1);
    names->names[names->n++] = copy;
    return ST_OK;
}

enum status shard_names_read(const char *folder, struct shard_names *out, struct err *err)
{
    *out = (struct shard_names){.n = 0};
    DIR *dir = opendir(folder);
    if (dir == NULL && errno == ENOENT)
        return ST_OK;
    if (dir == NULL)
        return err_set(err, ST_IO, "%s: %s", folder, strerror(errno));
    enum status st = ST_OK;
    while (st == ST_OK) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            if (errno != 0)
                st = err_set(err, ST_IO, "%s: %s", folder, strerror(errno));
            break;
        }
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            st = names_add(out, entry->d_name, err);
    }
    (void)closedir(dir);
    if (st != ST_OK)
        shard_names_free(out);
    return st;
}

void shard_names_free(struct shard_names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->names[i]);
    free(names->names);
    *names = (struct shard_names){.n = 0};
}

static enum status journal_read(const char *folder, const char *name, struct shard_journal *out,
                                struct err *err)
{
    char *path = path_join(folder, name);
    if (path == NULL)
        return err_nomem(err, strlen(folder) + strlen(name) + 2);
    uint8_t *text = NULL;
    size_t size = 0;
    struct err local = {.st = ST_OK};
    enum status st = file_read_all(path, JOURNAL_MAX_BYTES, &text, &size, &local);
    if (st == ST_OK)
        st = shard_journal_parse(out, (const char *)text, size, err);
    else if (!file_exists(path))
        st = ST_OK; /* merged into another since the folder was read */
    else
        st = err_set(err, st == ST_FORMAT ? ST_IO : st, "%s", local.message);
    free(text);
    free(path);
    return st;
}

enum status shard_journals_read(const char *folder, struct shard_journal *out, size_t *n_files,
                                struct err *err)
{
    struct shard_names names;
    size_t n = 0;
    *out = (struct shard_journal){.n = 0};
    TRY(shard_names_read(folder, &names, err));
    enum status st = ST_OK;
    for (size_t i = 0; i < names.n && st == ST_OK; i++) {
        if (!shard_is_journal_name(names.names[i]))
            continue;
        n++;
        st = journal_read(folder, names.names[i], out, err);
    }
    shard_names_free(&names);
    if (st != ST_OK) {
        shard_journal_free(out);
        return st;
    }
    shard_journal_sort(out);
    if (n_files != NULL)
        *n_files = n;
    return ST_OK;
}
