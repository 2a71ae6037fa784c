/* SPDX-License-Identifier: Apache-2.0 */
/* status: how far a run is.  Reads what rank 0 writes once a second, the journals, and who holds
 * the kernel locks; takes no lock itself, so it never stands in a run's way. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver/verb_internal.h"

struct names {
    char **names; /* owned */
    size_t n;
};

static void names_free(struct names *names)
{
    for (size_t i = 0; i < names->n; i++)
        free(names->names[i]);
    free(names->names);
    *names = (struct names){0};
}

static int names_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

typedef bool (*name_filter)(const char *folder, const char *name);

/* Entries of a folder that pass, in name order.  A folder that vanishes has none. */
static enum status names_read(const char *folder, name_filter filter, struct names *out,
                              struct err *err)
{
    *out = (struct names){0};
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return errno == ENOENT ? ST_OK : err_set(err, ST_FORMAT, "%s: %s", folder, strerror(errno));
    enum status st = ST_OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == ST_OK; e = readdir(dir)) {
        if (!filter(folder, e->d_name))
            continue;
        char **grown = realloc(out->names, (out->n + 1) * sizeof *grown);
        char *copy = grown == NULL ? NULL : str_dup(e->d_name);
        if (grown != NULL)
            out->names = grown;
        if (copy == NULL)
            st = err_nomem(err, strlen(e->d_name));
        else
            out->names[out->n++] = copy;
    }
    closedir(dir);
    if (out->n > 1)
        qsort(out->names, out->n, sizeof *out->names, names_order);
    return st;
}

static bool is_progress_file(const char *folder, const char *name)
{
    (void)folder;
    size_t n = strlen(name);
    return strncmp(name, "progress", 8) == 0 && n > 5 && strcmp(name + n - 5, ".json") == 0;
}

static bool is_block_folder(const char *folder, const char *name)
{
    struct names files = {0};
    char *path = str_is_name(name) ? path_join(folder, name) : NULL;
    bool is_one = path != NULL && file_is_dir(path) &&
                  names_read(path, is_progress_file, &files, NULL) == ST_OK && files.n > 0;
    names_free(&files);
    free(path);
    return is_one;
}

/* ---- one run or task on a block -------------------------------------------------------------- */

struct run_view {
    struct format_progress p;
    const char *state;           /* p.state, or "died" */
    double tokens_per_s, left_s; /* left_s < 0: unknown */
};

static void run_view_make(const char *holder, struct run_view *v)
{
    double seconds = v->p.updated - v->p.started;
    v->state = strcmp(v->p.state, "running") == 0 && holder[0] == '\0' ? "died" : v->p.state;
    v->tokens_per_s = seconds > 0 ? (double)v->p.tokens_done / seconds : 0;
    v->left_s =
        v->tokens_per_s > 0
            ? (double)(v->p.tokens - min_u64(v->p.tokens, v->p.tokens_done)) / v->tokens_per_s
            : -1;
}

#define U(x) ((unsigned long long)(x))

static void run_text(const struct run_view *v, struct bytes *out)
{
    const struct format_progress *p = &v->p;
    bytes_printf(out, "  %s", v->state);
    if (p->n_parts > 0)
        bytes_printf(out, ", part %llu of %llu", U(p->part), U(p->n_parts));
    bytes_printf(out, ", %llu ranks, pid %llu on %s, %.1f s\n", U(p->ranks), U(p->pid), p->host,
                 p->updated - p->started);
    bytes_printf(out, "    shards %llu of %llu done, %llu in flight, %llu failed\n",
                 U(p->shards_done), U(p->shards), U(p->shards_in_flight), U(p->shards_failed));
    bytes_printf(out, "    tokens %llu of %llu, units %llu (%llu reused)\n", U(p->tokens_done),
                 U(p->tokens), U(p->units_done), U(p->units_reused));
    bytes_printf(out, "    rate %.1f tokens/s", v->tokens_per_s);
    if (strcmp(v->state, "running") == 0 && v->left_s >= 0)
        bytes_printf(out, ", %.1f s left", v->left_s);
    bytes_printf(out, "\n    last error: %s\n", p->last_error[0] == '\0' ? "none" : p->last_error);
    if (strcmp(v->state, "died") == 0)
        bytes_printf(out, "    nobody holds the work folder: run the same command to resume\n");
}

static void run_json(const struct run_view *v, struct format_writer *w)
{
    const struct format_progress *p = &v->p;
    format_write_object(w, NULL);
    format_write_string(w, "state", v->state);
    if (p->n_parts > 0) {
        format_write_u64(w, "part", p->part);
        format_write_u64(w, "n_parts", p->n_parts);
    }
    format_write_u64(w, "ranks", p->ranks);
    format_write_u64(w, "pid", p->pid);
    format_write_string(w, "host", p->host);
    format_write_double(w, "started", p->started);
    format_write_double(w, "updated", p->updated);
    format_write_u64(w, "shards", p->shards);
    format_write_u64(w, "shards_done", p->shards_done);
    format_write_u64(w, "shards_in_flight", p->shards_in_flight);
    format_write_u64(w, "shards_failed", p->shards_failed);
    format_write_u64(w, "units_done", p->units_done);
    format_write_u64(w, "units_reused", p->units_reused);
    format_write_u64(w, "tokens", p->tokens);
    format_write_u64(w, "tokens_done", p->tokens_done);
    format_write_double(w, "tokens_per_s", v->tokens_per_s);
    if (v->left_s >= 0)
        format_write_double(w, "seconds_left", v->left_s);
    else
        format_write_null(w, "seconds_left");
    if (p->last_error[0] != '\0')
        format_write_string(w, "last_error", p->last_error);
    else
        format_write_null(w, "last_error");
    format_write_end_object(w);
}

/* ---- a block --------------------------------------------------------------------------------- */

struct status_run {
    struct driver_context *ctx;
    const char *work;
    char holder[400];
    struct format_writer json;
};

static enum status one_run(struct status_run *s, const char *block, const char *name,
                           uint64_t *units_total, struct err *err)
{
    struct run_view v = {0};
    char *folder = path_join(s->work, block);
    char *path = folder == NULL ? NULL : path_join(folder, name);
    struct err unread = {0};
    enum status st = path == NULL ? err_nomem(err, 1) : format_progress_read(path, &v.p, &unread);
    /* Nobody waits for these files to reach the disk; a power cut may leave an empty one. */
    if (st == ST_FORMAT)
        log_warn("%s", unread.message);
    else if (st != ST_OK && path != NULL)
        err_set(err, st, "%s", unread.message);
    if (st == ST_OK) {
        *units_total = max_u64(*units_total, v.p.units_total);
        run_view_make(s->holder, &v);
        if (s->ctx->opts->json)
            run_json(&v, &s->json);
        else
            run_text(&v, &s->ctx->result);
    }
    format_progress_free(&v.p);
    free(folder);
    free(path);
    return st == ST_FORMAT ? ST_OK : st;
}

static enum status one_block(struct status_run *s, const char *block, struct err *err)
{
    struct names files = {0};
    struct shard_store *store = NULL;
    uint64_t units_total = 0;
    bool json = s->ctx->opts->json;
    char *folder = path_join(s->work, block);
    enum status st =
        folder == NULL ? err_nomem(err, 1) : names_read(folder, is_progress_file, &files, err);
    if (json) {
        format_write_object(&s->json, NULL);
        format_write_string(&s->json, "block", block);
        format_write_array(&s->json, "runs");
    } else {
        bytes_printf(&s->ctx->result, "%s:\n", block);
    }
    for (size_t i = 0; i < files.n && st == ST_OK; i++)
        st = one_run(s, block, files.names[i], &units_total, err);
    if (st == ST_OK)
        st = shard_store_open(s->work, block, false, &store, err);
    uint64_t stored = st == ST_OK ? shard_store_count(store, units_total) : 0;
    if (json) {
        format_write_end_array(&s->json);
        format_write_u64(&s->json, "units_stored", stored);
        format_write_u64(&s->json, "units", units_total);
        format_write_end_object(&s->json);
    } else {
        bytes_printf(&s->ctx->result, "  units stored %llu of %llu\n", U(stored), U(units_total));
    }
    shard_store_close(&store);
    names_free(&files);
    free(folder);
    return st;
}

static enum status all_blocks(struct status_run *s, struct err *err)
{
    struct names blocks = {0};
    if (!file_is_dir(s->work))
        return err_set(err, ST_FORMAT, "%s: expected a work folder, found %s", s->work,
                       file_exists(s->work) ? "a file" : "nothing");
    shard_lock_holder(s->work, s->holder, sizeof s->holder);
    enum status st = names_read(s->work, is_block_folder, &blocks, err);
    char *lock = path_join(s->work, "lock");
    if (st == ST_OK && blocks.n == 0 && (lock == NULL || !file_exists(lock)))
        st = err_set(err, ST_FORMAT, "%s: no run has worked here: it holds neither lock nor blocks",
                     s->work);
    free(lock);
    if (s->ctx->opts->json) {
        format_write_bool(&s->json, "held", s->holder[0] != '\0');
        format_write_string(&s->json, "holder", s->holder);
        format_write_array(&s->json, "blocks");
    } else {
        bytes_printf(&s->ctx->result, "%s: %s%s\n", s->work,
                     s->holder[0] == '\0' ? "nobody works here now" : "held by ", s->holder);
    }
    for (size_t i = 0; i < blocks.n && st == ST_OK; i++)
        st = one_block(s, blocks.names[i], err);
    if (s->ctx->opts->json)
        format_write_end_array(&s->json);
    names_free(&blocks);
    return st;
}

enum status driver_verb_status(struct driver_context *ctx, struct err *err)
{
    struct status_run s = {.ctx = ctx, .work = ctx->opts->args[0]};
    if (ctx->opts->json)
        verb_json_start(ctx, &s.json);
    enum status st = all_blocks(&s, err);
    if (ctx->opts->json)
        verb_json_end(ctx, &s.json);
    if (st != ST_OK)
        bytes_free(&ctx->result);
    return st;
}
