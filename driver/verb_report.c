/* SPDX-License-Identifier: Apache-2.0 */
/* report: one self-contained HTML page about a recipe, a work folder or a report.json. */
#include "driver/report_internal.h"
#include "driver/verb_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { REPORT_MAX_BYTES = 1 << 30, REPORT_MAX_BLOCKS = 4096 };
#define REPORT_FILE "report.json"

/* Paths of the reports to show, in order; owned. */
struct report_list {
    char **paths;
    size_t n;
};

static void report_list_free(struct report_list *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->paths[i]);
    free(l->paths);
}

static enum status report_list_take(struct report_list *l, char *path, struct err *err)
{
    char **grown = path == NULL ? NULL : realloc(l->paths, (l->n + 1) * sizeof *grown);
    if (grown == NULL) {
        free(path);
        return err_nomem(err, 1);
    }
    l->paths = grown;
    l->paths[l->n++] = path;
    return ST_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* FOLDER/<block>/report.json of every block. */
static enum status list_blocks(const char *folder, struct report_list *l, struct err *err)
{
    DIR *dir = opendir(folder);
    if (dir == NULL)
        return err_set(err, ST_FORMAT, "%s: %s", folder, strerror(errno));
    enum status st = ST_OK;
    for (struct dirent *e = readdir(dir); e != NULL && st == ST_OK; e = readdir(dir)) {
        char *path =
            str_is_name(e->d_name) ? str_printf("%s/%s/" REPORT_FILE, folder, e->d_name) : NULL;
        if (path == NULL || !file_exists(path) || l->n == REPORT_MAX_BLOCKS)
            free(path);
        else
            st = report_list_take(l, path, err);
    }
    closedir(dir);
    if (l->n > 1)
        qsort(l->paths, l->n, sizeof *l->paths, by_name);
    return st;
}

static bool is_newer(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) != 0 || stat(b, &y) != 0)
        return true;
    return x.st_mtim.tv_sec != y.st_mtim.tv_sec ? x.st_mtim.tv_sec > y.st_mtim.tv_sec
                                                : x.st_mtim.tv_nsec >= y.st_mtim.tv_nsec;
}

/* Is it the report of an enclosing model, whose blocks have reports of their own? */
static bool is_model(const char *path)
{
    struct cJSON *report = NULL;
    bool is_one = format_json_read(path, REPORT_MAX_BYTES, &report, NULL) == ST_OK &&
                  json_value_get(report, "regions") != NULL;
    format_json_free(&report);
    return is_one;
}

/* A folder's own report comes first: that of a recipe, an enclosing model, or a refused spec.  One
 * that is older than its blocks' is a refusal that a later run has left behind. */
static enum status list_reports(const char *path, struct report_list *l, struct err *err)
{
    if (!file_is_dir(path) && strcmp(path_base(path), LOOKUP_RECIPE_FILE) != 0)
        return report_list_take(l, str_dup(path), err);
    char *folder = verb_recipe_dir(path);
    char *own = folder == NULL ? NULL : path_join(folder, REPORT_FILE);
    enum status st = own == NULL ? err_nomem(err, 1) : list_blocks(folder, l, err);
    bool shows_own = st == ST_OK && file_exists(own);
    for (size_t i = 0; i < l->n && shows_own; i++)
        shows_own = is_newer(own, l->paths[i]);
    if (shows_own && !is_model(own)) {
        report_list_free(l);
        *l = (struct report_list){0};
    }
    if (shows_own) {
        st = report_list_take(l, own, err);
        own = NULL;
        for (size_t i = l->n - 1; i > 0 && st == ST_OK; i--) {
            char *last = l->paths[i];
            l->paths[i] = l->paths[i - 1];
            l->paths[i - 1] = last;
        }
    }
    if (st == ST_OK && l->n == 0)
        st = err_set(err, ST_FORMAT,
                     "%s: expected a recipe or work folder, or a report.json; it holds no "
                     "report.json",
                     path);
    free(own);
    free(folder);
    return st;
}

/* ---- one section ----------------------------------------------------------------------------- */

static enum status read_report(const char *path, struct cJSON **out, struct err *err)
{
    uint64_t schema = 0;
    TRY(format_json_read(path, REPORT_MAX_BYTES, out, err));
    if (!json_value_u64(json_value_get(*out, "schema_version"), &schema) ||
        json_value_string(json_value_get(*out, "status")) == NULL)
        return err_set(err, ST_FORMAT, "%s: not a report: schema_version or status is missing",
                       path);
    if (schema != DRIVER_JSON_SCHEMA)
        return err_set(err, ST_FORMAT, "%s: schema_version %llu, this version reads %d", path,
                       (unsigned long long)schema, DRIVER_JSON_SCHEMA);
    return ST_OK;
}

/* Is what lies there the recipe that was sealed?  Every byte of the payload is read. */
static enum status check_recipe(const char *folder, bool *is_historical, struct err *err)
{
    const struct tokentab_open_opts opts = {.flags = TOKENTAB_OPEN_VERIFY};
    struct tokentab_recipe *recipe = NULL;
    TRY(verb_recipe_open(folder, &opts, &recipe, err));
    *is_historical = tokentab_is_historical(recipe) != 0;
    tokentab_close(&recipe);
    return ST_OK;
}

/* The recipe that lies beside the report, if there is one. */
static enum status read_recipe(const char *report, struct cJSON **out, bool *is_historical,
                               struct err *err)
{
    char *folder = path_dir(report);
    char *path = folder == NULL ? NULL : path_join(folder, LOOKUP_RECIPE_FILE);
    enum status st = path == NULL ? err_nomem(err, 1) : ST_OK;
    bool there = st == ST_OK && file_exists(path);
    if (there)
        st = check_recipe(folder, is_historical, err);
    if (there && st == ST_OK)
        st = format_json_read(path, REPORT_MAX_BYTES, out, err);
    free(path);
    free(folder);
    return st;
}

static enum status write_section(const char *path, size_t index, struct bytes *page,
                                 struct format_writer *json, struct err *err)
{
    struct cJSON *report = NULL, *recipe = NULL;
    bool is_historical = false;
    enum status st = read_report(path, &report, err);
    if (st == ST_OK)
        st = read_recipe(path, &recipe, &is_historical, err);
    if (st == ST_OK) {
        const struct cJSON *tolerance = json_value_get(report, "tolerance");
        const struct report_view v = {.where = path,
                                      .report = report,
                                      .recipe = recipe,
                                      .tolerance_absolute = report_get(tolerance, "absolute"),
                                      .tolerance_relative = report_get(tolerance, "relative"),
                                      .is_historical = is_historical,
                                      .index = index};
        report_html_section(page, &v);
        format_write_object(json, NULL);
        format_write_string(json, "report", path);
        format_write_string(json, "block", report_text(report, "block"));
        format_write_string(json, "status", report_text(report, "status"));
        format_write_bool(json, "historical", is_historical);
        format_write_end_object(json);
    }
    format_json_free(&report);
    format_json_free(&recipe);
    return st;
}

enum status driver_verb_report(struct driver_context *ctx, struct err *err)
{
    const char *path = ctx->opts->args[0], *out = ctx->opts->out;
    struct report_list list = {0};
    struct bytes page = {0};
    struct format_writer json;
    TRY(verb_output_check(out, "--out", ctx->opts->force, err));
    enum status st = list_reports(path, &list, err);
    verb_json_start(ctx, &json);
    format_write_array(&json, "blocks");
    report_html_start(&page, path);
    for (size_t i = 0; i < list.n && st == ST_OK; i++)
        st = write_section(list.paths[i], i, &page, &json, err);
    report_html_end(&page);
    format_write_end_array(&json);
    if (st == ST_OK && page.failed)
        st = err_nomem(err, page.size);
    if (st == ST_OK)
        st = file_publish(out, page.data, page.size, err);
    if (st == ST_OK && ctx->opts->json) {
        format_write_string(&json, "out", out);
        format_write_u64(&json, "bytes", page.size);
        verb_json_end(ctx, &json);
    } else {
        bytes_free(&json.out);
        if (st == ST_OK)
            bytes_printf(&ctx->result, "%s: %zu blocks, %zu bytes\n", out, list.n, page.size);
    }
    bytes_free(&page);
    report_list_free(&list);
    return st;
}
