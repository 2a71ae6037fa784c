/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The host's name as part of file names. */
static void host_name(char host[SHARD_HOST_SIZE])
{
    if (gethostname(host, SHARD_HOST_SIZE) != 0)
        host[0] = '\0';
    host[SHARD_HOST_SIZE - 1] = '\0';
    if (host[0] == '\0')
        (void)snprintf(host, SHARD_HOST_SIZE, "unknown");
    for (char *c = host; *c != '\0'; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                     (*c >= '0' && *c <= '9') || *c == '-' || *c == '.';
        if (!plain)
            *c = '_';
    }
}

static enum status make_paths(struct shard_store *s, const char *work, const char *block,
                              struct err *err)
{
    s->folder = path_join(work, block);
    if (s->folder == NULL)
        return err_nomem(err, strlen(work) + strlen(block) + 2);
    s->units = path_join(s->folder, SHARD_UNITS_FOLDER);
    s->journal_path = str_printf("%s/journal-%s-%ld.jsonl", s->folder, s->host, (long)s->pid);
    if (s->units == NULL || s->journal_path == NULL)
        return err_nomem(err, strlen(s->folder) + SHARD_HOST_SIZE + 32);
    return ST_OK;
}

static enum status make_folders(struct shard_store *s, struct err *err)
{
    if (!s->made)
        TRY(file_make_dirs(s->units, err));
    s->made = true;
    return ST_OK;
}

enum status shard_store_open(const char *work, const char *block, bool clean,
                             struct shard_store **out, struct err *err)
{
    *out = NULL;
    if (!str_is_name(block))
        return err_set(err, ST_SPEC, "block name \"%s\": [A-Za-z0-9_.-]+ expected", block);
    struct shard_store *s = calloc(1, sizeof *s);
    if (s == NULL)
        return err_nomem(err, sizeof *s);
    size_t n_journals = 0;
    s->journal_fd = -1;
    s->pid = getpid();
    host_name(s->host);
    enum status st = make_paths(s, work, block, err);
    if (st == ST_OK && clean)
        st = make_folders(s, err);
    if (st == ST_OK)
        st = shard_journals_read(s->folder, &s->journal, &n_journals, err);
    if (st == ST_OK && clean)
        st = shard_store_clean(s, n_journals, err);
    if (st != ST_OK)
        shard_store_close(&s);
    *out = s;
    return st;
}

void shard_store_close(struct shard_store **store)
{
    if (store == NULL || *store == NULL)
        return;
    struct shard_store *s = *store;
    /* Every line was synced when it was written. */
    if (s->journal_fd >= 0)
        (void)close(s->journal_fd);
    shard_journal_free(&s->journal);
    free(s->folder);
    free(s->units);
    free(s->journal_path);
    free(s);
    *store = NULL;
}

enum status shard_store_refresh(struct shard_store *s, struct err *err)
{
    struct shard_journal fresh;
    TRY(shard_journals_read(s->folder, &fresh, NULL, err));
    shard_journal_free(&s->journal);
    s->journal = fresh;
    return ST_OK;
}

char *shard_store_unit_path(const struct shard_store *s, uint64_t unit)
{
    char name[SHARD_FILE_NAME];
    shard_unit_name(unit, name);
    return path_join(s->units, name);
}

char *shard_store_path(const struct shard_store *s, const char *name)
{
    return path_join(s->folder, name);
}

uint64_t shard_store_count(const struct shard_store *s, uint64_t n_units)
{
    const struct shard_journal *j = &s->journal;
    uint64_t n = 0;
    for (size_t i = 0; i < j->n && j->entries[i].unit < n_units; i++)
        n += i == 0 || j->entries[i].unit != j->entries[i - 1].unit;
    return n;
}

/* ---- check --------------------------------------------------------------------------------- */

/* Against every entry, since nothing says which is the newest.  *match is the one that fits; else
 * *out and *why say what is wrong. */
static enum status file_check(const char *path, const struct shard_entry *entries, size_t n,
                              const struct shard_entry **match, enum shard_reuse *out, char *why,
                              size_t why_size, struct err *err)
{
    struct stat info;
    *match = NULL;
    *out = SHARD_DAMAGED;
    if (stat(path, &info) != 0) {
        bool absent = errno == ENOENT || errno == ENOTDIR;
        *out = absent ? SHARD_MISSING : SHARD_DAMAGED;
        (void)snprintf(why, why_size, "%s: %s", path, absent ? "no file" : strerror(errno));
        return ST_OK;
    }
    bool has_size = false;
    for (size_t i = 0; i < n; i++)
        has_size = has_size || (info.st_size >= 0 && entries[i].size == (uint64_t)info.st_size);
    if (!has_size) {
        (void)snprintf(why, why_size, "%s: %lld bytes, %" PRIu64 " journalled", path,
                       (long long)info.st_size, entries[n - 1].size);
        return ST_OK;
    }
    struct digest found;
    uint64_t size = 0;
    struct err local = {.st = ST_OK};
    enum status st = file_digests(path, NULL, &found, &size, &local);
    if (st == ST_NOMEM)
        return err_set(err, st, "%s", local.message);
    if (st != ST_OK) { /* a bad sector: the unit is written anew, to another place */
        (void)snprintf(why, why_size, "%s", local.message);
        return ST_OK;
    }
    for (size_t i = 0; i < n && *match == NULL; i++)
        if (entries[i].size == size && digest_equal(&entries[i].digest, &found))
            *match = &entries[i];
    if (*match == NULL) {
        char hex[DIGEST_HEX_SIZE], old[DIGEST_HEX_SIZE];
        (void)snprintf(why, why_size, "%s: digest %s, %s journalled", path, digest_hex(&found, hex),
                       digest_hex(&entries[n - 1].digest, old));
    }
    return ST_OK;
}

static void fingerprint_check(const struct format_shard_info *info,
                              const struct shard_fingerprint *now, enum shard_reuse *out, char *why,
                              size_t why_size)
{
    if (strcmp(info->fingerprint, now->hex) == 0) {
        *out = SHARD_REUSE;
        return;
    }
    *out = shard_fingerprint_only_environment(info->fingerprint_fields, info->n_fingerprint_fields,
                                              now)
               ? SHARD_OTHER_ENVIRONMENT
               : SHARD_STALE;
    shard_fingerprint_difference(info->fingerprint_fields, info->n_fingerprint_fields, now, why,
                                 why_size);
    if (why_size > 0 && why[0] == '\0')
        (void)snprintf(why, why_size, "fingerprint: %s \xE2\x86\x92 %s", info->fingerprint,
                       now->hex);
}

static enum status content_check(const char *path, uint64_t unit, const struct shard_entry *entry,
                                 const struct shard_fingerprint *now, enum shard_reuse *out,
                                 char *why, size_t why_size, struct err *err)
{
    struct format_shard_info *info = NULL;
    struct err local = {.st = ST_OK};
    enum status st = format_shard_info_read(path, &info, &local);
    *out = SHARD_DAMAGED;
    if (st == ST_NOMEM)
        return err_set(err, st, "%s", local.message);
    if (st != ST_OK)
        (void)snprintf(why, why_size, "%s", local.message);
    else if (!info->complete)
        (void)snprintf(why, why_size, "%s: not complete", path);
    else if (info->unit != unit)
        (void)snprintf(why, why_size, "%s: holds unit %" PRIu64, path, info->unit);
    else if (info->fingerprint == NULL || strcmp(info->fingerprint, entry->fingerprint) != 0)
        (void)snprintf(why, why_size, "%s: fingerprint differs from the journal", path);
    else
        fingerprint_check(info, now, out, why, why_size);
    format_shard_info_free(&info);
    return ST_OK;
}

enum status shard_store_check(const struct shard_store *s, uint64_t unit,
                              const struct shard_fingerprint *now, enum shard_reuse *out, char *why,
                              size_t why_size, struct err *err)
{
    const struct shard_entry *entries = NULL, *match = NULL;
    size_t n = shard_journal_find(&s->journal, unit, &entries);
    if (why_size > 0)
        why[0] = '\0';
    *out = SHARD_MISSING;
    if (n == 0) {
        (void)snprintf(why, why_size, "not journalled");
        return ST_OK;
    }
    char *path = shard_store_unit_path(s, unit);
    if (path == NULL)
        return err_nomem(err, strlen(s->units) + SHARD_FILE_NAME);
    enum status st = file_check(path, entries, n, &match, out, why, why_size, err);
    if (st == ST_OK && match != NULL)
        st = content_check(path, unit, match, now, out, why, why_size, err);
    free(path);
    return st;
}

/* ---- put ----------------------------------------------------------------------------------- */

/* The journal of this process.  A former process of the same number may have left a torn line. */
static enum status journal_open(struct shard_store *s, struct err *err)
{
    struct stat info;
    char last = '\n';
    do {
        s->journal_fd = open(s->journal_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    } while (s->journal_fd < 0 && errno == EINTR);
    if (s->journal_fd < 0)
        return err_set(err, ST_IO, "%s: %s", s->journal_path, strerror(errno));
    if (fstat(s->journal_fd, &info) != 0)
        return err_set(err, ST_IO, "%s: %s", s->journal_path, strerror(errno));
    if (info.st_size > 0)
        TRY(file_read_at(s->journal_fd, s->journal_path, (uint64_t)info.st_size - 1, &last, 1,
                         err));
    s->line_is_torn = last != '\n';
    return file_sync(s->folder, err);
}

static enum status journal_append(struct shard_store *s, const struct shard_entry *entry,
                                  struct err *err)
{
    if (s->journal_fd < 0) {
        enum status st = journal_open(s, err);
        if (st != ST_OK) {
            if (s->journal_fd >= 0)
                (void)close(s->journal_fd);
            s->journal_fd = -1;
            return st;
        }
    }
    struct bytes line = {0};
    if (s->line_is_torn)
        bytes_put_u8(&line, '\n');
    shard_entry_write(entry, &line);
    if (line.failed) {
        bytes_free(&line);
        return err_nomem(err, 256);
    }
    enum status st = ST_OK;
    size_t size = fault_hit("journal_append") ? line.size / 2 : line.size, done = 0;
    s->line_is_torn = true; /* until the line is known to be whole */
    while (done < size && st == ST_OK) {
        ssize_t n = write(s->journal_fd, line.data + done, size - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            st = err_set(err, ST_IO, "%s: %s", s->journal_path,
                         n < 0 ? strerror(errno) : "nothing written");
    }
    if (st == ST_OK && size < line.size)
        st = err_set(err, ST_IO, "%s: %s", s->journal_path, strerror(ENOSPC));
    bytes_free(&line);
    if (st == ST_OK && fsync(s->journal_fd) != 0)
        st = err_set(err, ST_IO, "%s: sync: %s", s->journal_path, strerror(errno));
    if (st == ST_OK)
        s->line_is_torn = false;
    return st;
}

static enum status stage(const char *tmp, const struct format_shard *shard,
                         struct shard_entry *entry, struct err *err)
{
    memset(entry, 0, sizeof *entry);
    entry->unit = shard->unit;
    if (shard->fingerprint == NULL || strlen(shard->fingerprint) != SHA256_HEX_SIZE - 1)
        return err_set(err, ST_INTERNAL, "unit %" PRIu64 ": no fingerprint", shard->unit);
    memcpy(entry->fingerprint, shard->fingerprint, SHA256_HEX_SIZE);
    TRY(format_shard_write(tmp, shard, err));
    TRY(file_digests(tmp, NULL, &entry->digest, &entry->size, err));
    if (fault_hit("shard_put"))
        return err_set(err, ST_IO, "%s: %s", tmp, strerror(ENOSPC));
    return ST_OK;
}

enum status shard_store_put(struct shard_store *s, const struct format_shard *shard,
                            struct err *err)
{
    struct shard_entry entry;
    TRY(make_folders(s, err));
    enum status st = ST_OK;
    char *path = shard_store_unit_path(s, shard->unit);
    char *tmp = path != NULL ? str_printf("%s.tmp.%s.%ld", path, s->host, (long)s->pid) : NULL;
    if (tmp == NULL) {
        st = err_nomem(err, strlen(s->units) + SHARD_FILE_NAME);
        goto out;
    }
    st = stage(tmp, shard, &entry, err);
    if (st == ST_OK && fault_hit("shard_rename"))
        st = err_set(err, ST_IO, "%s: rename to %s: %s", tmp, path, strerror(EIO));
    if (st == ST_OK)
        st = file_rename(tmp, path, err);
    if (st == ST_OK)
        st = journal_append(s, &entry, err);
    if (st == ST_OK)
        st = shard_journal_add(&s->journal, &entry, err);
    else
        (void)unlink(tmp);
out:
    free(tmp);
    free(path);
    return st;
}

/* ---- virtual dataset ----------------------------------------------------------------------- */

static enum status sources_make(const struct shard_store *s, const struct shard_grid *g,
                                struct format_virtual_source *sources, char (*names)[64],
                                struct err *err)
{
    for (uint64_t unit = 0; unit < g->n_units; unit++) {
        const struct shard_entry *entry = NULL;
        char name[SHARD_FILE_NAME];
        struct format_virtual_source *source = &sources[unit];
        shard_grid_rows(g, unit, &source->first_row, &source->n_rows);
        shard_unit_name(unit, name);
        (void)snprintf(names[unit], sizeof names[unit], SHARD_UNITS_FOLDER "/%s", name);
        source->file = names[unit];
        char *path = path_join(s->units, name);
        if (path == NULL)
            return err_nomem(err, strlen(s->units) + SHARD_FILE_NAME);
        /* A source that is not there reads as fill values, without an error. */
        bool is_there = shard_journal_find(&s->journal, unit, &entry) > 0 && file_exists(path);
        free(path);
        if (!is_there)
            return err_set(
                err, ST_IO,
                "%s: unit %" PRIu64 " (rows %" PRIu64 " to %" PRIu64 ") is not there yet",
                s->folder, unit, source->first_row, source->first_row + source->n_rows - 1);
    }
    return ST_OK;
}

enum status shard_store_virtual(struct shard_store *s, const struct shard_grid *g,
                                const struct format_shard_table *tables, size_t n_tables,
                                struct err *err)
{
    struct format_virtual_source *sources = NULL;
    char(*names)[64] = NULL;
    char *path = NULL;
    size_t n = 0;
    if (!u64_to_size(g->n_units, &n))
        return err_nomem(err, SIZE_MAX);
    sources = calloc(n, sizeof *sources);
    names = calloc(n, sizeof *names);
    path = path_join(s->folder, "tables.h5");
    enum status st = ST_OK;
    if (sources == NULL || names == NULL || path == NULL)
        st = err_nomem(err, n);
    if (st == ST_OK)
        st = sources_make(s, g, sources, names, err);
    if (st == ST_OK)
        st = format_virtual_write(path, tables, n_tables, g->n_rows, sources, n, err);
    free(sources);
    free(names);
    free(path);
    return st;
}
