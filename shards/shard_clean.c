/* SPDX-License-Identifier: Apache-2.0 */
#include "shards/shards_internal.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Does the name end in ".<our host>.<pid>" or "-<our host>-<pid>.jsonl" of a process that lives?
 * The caller holds the gate, so nobody of another run should; a rank of this run may be early. */
static bool is_of_living(const struct shard_store *s, const char *name, char mark,
                         const char *suffix)
{
    size_t n = strlen(name), host = strlen(s->host), tail = strlen(suffix), digits = 0;
    if (n < tail || strcmp(name + n - tail, suffix) != 0)
        return false;
    n -= tail;
    while (digits < n && name[n - digits - 1] >= '0' && name[n - digits - 1] <= '9')
        digits++;
    size_t with = digits + 1 + host + 1;
    if (digits == 0 || digits > 9 || n < with || name[n - digits - 1] != mark ||
        name[n - with] != mark || strncmp(name + n - with + 1, s->host, host) != 0)
        return false;
    long pid = strtol(name + n - digits, NULL, 10);
    return kill((pid_t)pid, 0) == 0 || errno == EPERM;
}

static enum status remove_file(const char *folder, const char *name, struct err *err)
{
    char *path = path_join(folder, name);
    if (path == NULL)
        return err_nomem(err, strlen(folder) + strlen(name) + 2);
    enum status st = ST_OK;
    if (unlink(path) != 0 && errno != ENOENT)
        st = err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    free(path);
    return st;
}

static bool starts_with(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

static enum status clean_units(const struct shard_store *s, struct err *err)
{
    struct shard_names names;
    TRY(shard_names_read(s->units, &names, err));
    enum status st = ST_OK;
    for (size_t i = 0; i < names.n && st == ST_OK; i++) {
        const char *name = names.names[i];
        if (starts_with(name, "unit-") && strstr(name, ".h5.tmp") != NULL &&
            !is_of_living(s, name, '.', ""))
            st = remove_file(s->units, name, err);
    }
    shard_names_free(&names);
    return st;
}

static enum status merge_journals(const struct shard_store *s, const struct shard_names *names,
                                  struct err *err)
{
    static const char merged[] = "journal-merged.jsonl";
    struct bytes text = {0};
    char *path = path_join(s->folder, merged);
    if (path == NULL)
        return err_nomem(err, sizeof merged);
    for (size_t i = 0; i < s->journal.n; i++)
        shard_entry_write(&s->journal.entries[i], &text);
    enum status st = text.failed
                         ? err_nomem(err, text.size)
                         : file_publish(path, text.size > 0 ? text.data : NULL, text.size, err);
    bytes_free(&text);
    free(path);
    /* Killed in between, both the merged journal and its sources stand: the same entries twice. */
    for (size_t i = 0; i < names->n && st == ST_OK; i++) {
        const char *name = names->names[i];
        if (shard_is_journal_name(name) && strcmp(name, merged) != 0 &&
            !is_of_living(s, name, '-', ".jsonl"))
            st = remove_file(s->folder, name, err);
    }
    return st;
}

enum status shard_store_clean(struct shard_store *s, size_t n_journals, struct err *err)
{
    struct shard_names names;
    TRY(clean_units(s, err));
    TRY(shard_names_read(s->folder, &names, err));
    enum status st = ST_OK;
    for (size_t i = 0; i < names.n && st == ST_OK; i++) {
        const char *name = names.names[i];
        if (starts_with(name, "tables.h5.tmp") ||
            (starts_with(name, "journal-") && strstr(name, ".jsonl.tmp") != NULL))
            st = remove_file(s->folder, name, err);
    }
    if (st == ST_OK && n_journals > SHARD_JOURNALS_MAX)
        st = merge_journals(s, &names, err);
    shard_names_free(&names);
    return st;
}
