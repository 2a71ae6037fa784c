/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a recipe folder, and what an open recipe says about itself. */
#include "lookup/lookup_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A recipe.json is a few KiB, with a line for every weight. */
static const size_t RECIPE_MAX_BYTES = (size_t)16 << 20;

enum tokentab_status lookup_fail(struct tokentab_error *out, enum tokentab_status st,
                                 const char *fmt, ...)
{
    if (out == NULL)
        return st;
    va_list args;
    va_start(args, fmt);
    out->status = st;
    (void)vsnprintf(out->message, sizeof out->message, fmt, args);
    va_end(args);
    return st;
}

enum tokentab_status lookup_fail_err(struct tokentab_error *out, enum status st,
                                     const struct err *err)
{
    enum tokentab_status ours = st == ST_IO      ? TOKENTAB_EIO
                                : st == ST_NOMEM ? TOKENTAB_ENOMEM
                                : st == ST_USAGE ? TOKENTAB_EINVAL
                                                 : TOKENTAB_EFORMAT;
    return lookup_fail(out, ours, "%s", err->message);
}

enum status lookup_status(enum tokentab_status st)
{
    switch (st) {
    case TOKENTAB_OK:
        return ST_OK;
    case TOKENTAB_EINVAL:
    case TOKENTAB_EBOUNDS:
        return ST_USAGE;
    case TOKENTAB_EFORMAT:
        return ST_FORMAT;
    case TOKENTAB_EIO:
        return ST_IO;
    case TOKENTAB_ENOMEM:
        return ST_NOMEM;
    }
    return ST_INTERNAL;
}

/* ---- opening ------------------------------------------------------------------------------- */

static enum status read_recipe(struct tokentab_recipe *recipe, const char *path, unsigned flags,
                               struct err *err)
{
    uint8_t *text = NULL;
    size_t size = 0;
    char hex[SHA256_HEX_SIZE];
    TRY(file_read_all(path, RECIPE_MAX_BYTES, &text, &size, err));
    enum status st = format_recipe_decode(path, text, size, &recipe->r, err);
    free(text);
    TRY(st);
    TRY(format_recipe_seal(recipe->r, hex, err));
    recipe->historical = strcmp(hex, recipe->r->seal) != 0;
    if (recipe->r->seal[0] == '\0' && (flags & TOKENTAB_OPEN_STAGED) == 0)
        return err_set(err, ST_FORMAT, "%s: seal: empty; the recipe was never validated", path);
    if (recipe->historical && (flags & TOKENTAB_OPEN_REQUIRE_SEAL) != 0)
        return err_set(err, ST_FORMAT,
                       "%s: historical: seal %.16s..., expected %.16s... for this content", path,
                       recipe->r->seal, hex);
    recipe->n_rows = format_recipe_rows(recipe->r);
    return ST_OK;
}

const char *lookup_route_name(size_t route, char *buf, size_t buf_size)
{
    if (route == 0)
        (void)snprintf(buf, buf_size, "bulk");
    else
        (void)snprintf(buf, buf_size, "profile%zu", route - 1);
    return buf;
}

static enum status name_routes(struct tokentab_recipe *recipe, struct err *err)
{
    size_t n = recipe->r->n_profiles + 1;
    recipe->route_names = calloc(n, sizeof *recipe->route_names);
    if (recipe->route_names == NULL)
        return err_nomem(err, n * sizeof *recipe->route_names);
    for (; recipe->n_routes < n; recipe->n_routes++) {
        char name[32];
        char *copy = str_dup(lookup_route_name(recipe->n_routes, name, sizeof name));
        if (copy == NULL)
            return err_nomem(err, sizeof name);
        recipe->route_names[recipe->n_routes] = copy;
    }
    return ST_OK;
}

static enum status open_recipe(struct tokentab_recipe *recipe, const char *path,
                               const struct tokentab_open_opts *opts, struct err *err)
{
    bool staged = (opts->flags & TOKENTAB_OPEN_STAGED) != 0;
    char *file = path_join(path, staged ? LOOKUP_STAGED_FILE : LOOKUP_RECIPE_FILE);
    if (file == NULL)
        return err_nomem(err, strlen(path));
    enum status st = read_recipe(recipe, file, opts->flags, err);
    free(file);
    TRY(st);
    TRY(name_routes(recipe, err));
    return lookup_payload_open(recipe, path, opts, err);
}

static enum tokentab_status open_once(const char *path, const struct tokentab_open_opts *opts,
                                      struct tokentab_recipe **out, struct tokentab_error *err)
{
    static const struct tokentab_open_opts DEFAULTS = {0};
    const unsigned known = TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL | TOKENTAB_OPEN_STAGED;
    struct err fault = {0};
    if (out == NULL)
        return lookup_fail(err, TOKENTAB_EINVAL, "open: NULL argument");
    *out = NULL;
    if (opts == NULL)
        opts = &DEFAULTS;
    if (path == NULL || (opts->flags & ~known) != 0)
        return lookup_fail(err, TOKENTAB_EINVAL, "open: NULL path or unknown flags %#x",
                           opts->flags);
    struct tokentab_recipe *recipe = calloc(1, sizeof *recipe);
    if (recipe == NULL)
        return lookup_fail(err, TOKENTAB_ENOMEM, "open: out of memory");
    enum status st = open_recipe(recipe, path, opts, &fault);
    if (st == ST_OK) {
        *out = recipe;
        return TOKENTAB_OK;
    }
    tokentab_close(&recipe);
    return lookup_fail_err(err, st, &fault);
}

enum tokentab_status tokentab_open(const char *path, const struct tokentab_open_opts *opts,
                                   struct tokentab_recipe **out, struct tokentab_error *err)
{
    enum tokentab_status st = open_once(path, opts, out, err);
    /* A recipe published between the reading of recipe.json and the opening of its payload takes
     * the old payload away; the new one is whole by then. */
    return st == TOKENTAB_EFORMAT || st == TOKENTAB_EIO ? open_once(path, opts, out, err) : st;
}

void tokentab_close(struct tokentab_recipe **recipe)
{
    if (recipe == NULL || *recipe == NULL)
        return;
    struct tokentab_recipe *p = *recipe;
    lookup_payload_close(p);
    for (size_t i = 0; i < p->n_routes; i++)
        free(p->route_names[i]);
    free(p->route_names);
    format_recipe_free(&p->r);
    free(p);
    *recipe = NULL;
}

/* ---- descriptions -------------------------------------------------------------------------- */

int tokentab_is_historical(const struct tokentab_recipe *recipe)
{
    return recipe->historical;
}

uint64_t tokentab_num_embeddings(const struct tokentab_recipe *recipe)
{
    return recipe->r->num_embeddings;
}

const char *tokentab_kind(const struct tokentab_recipe *recipe)
{
    return format_recipe_kind_name(recipe->r->kind);
}

size_t tokentab_n_outputs(const struct tokentab_recipe *recipe)
{
    return recipe->r->n_outputs; /* projected: z and r give raw and normalized */
}

static enum tokentab_dtype public_dtype(enum dtype dt)
{
    return dt == DT_F64   ? TOKENTAB_F64
           : dt == DT_F32 ? TOKENTAB_F32
           : dt == DT_F16 ? TOKENTAB_F16
                          : TOKENTAB_BF16;
}

enum dtype lookup_dtype(enum tokentab_dtype dt)
{
    switch (dt) {
    case TOKENTAB_F64:
        return DT_F64;
    case TOKENTAB_F32:
        return DT_F32;
    case TOKENTAB_F16:
        return DT_F16;
    case TOKENTAB_BF16:
        return DT_BF16;
    }
    return DT_UNKNOWN;
}

static const char *output_name(const struct tokentab_recipe *recipe, size_t i)
{
    if (recipe->r->kind == RECIPE_PROJECTED)
        return i == 0 ? "raw" : "normalized";
    return recipe->r->outputs[i].name;
}

enum tokentab_status tokentab_output(const struct tokentab_recipe *recipe, size_t i,
                                     struct tokentab_output_info *info)
{
    if (i >= tokentab_n_outputs(recipe))
        return TOKENTAB_EINVAL;
    size_t table = recipe->r->kind == RECIPE_PROJECTED ? 0 : i;
    const struct format_placed *p = &recipe->r->outputs[table];
    *info = (struct tokentab_output_info){.name = output_name(recipe, i),
                                          .dtype = public_dtype(recipe->groups[p->group].dtype),
                                          .width = p->width};
    return TOKENTAB_OK;
}

int tokentab_output_find(const struct tokentab_recipe *recipe, const char *name)
{
    for (size_t i = 0; i < tokentab_n_outputs(recipe); i++)
        if (strcmp(output_name(recipe, i), name) == 0)
            return (int)i; /* at most 65536 outputs */
    return -1;
}

size_t tokentab_dtype_size(enum tokentab_dtype dtype)
{
    return dtype == TOKENTAB_F64 ? 8 : dtype == TOKENTAB_F32 ? 4 : 2;
}

size_t tokentab_n_routes(const struct tokentab_recipe *recipe)
{
    return recipe->n_routes;
}

size_t tokentab_route(const struct tokentab_recipe *recipe, uint64_t n_ids)
{
    for (size_t i = 0; i < recipe->r->n_profiles; i++)
        if (n_ids <= recipe->r->profiles[i].max_rows)
            return i + 1;
    return 0;
}

const char *tokentab_route_name(const struct tokentab_recipe *recipe, size_t route)
{
    return route < recipe->n_routes ? recipe->route_names[route] : NULL;
}

uint64_t tokentab_route_max_rows(const struct tokentab_recipe *recipe, size_t route)
{
    if (route == 0 || route >= recipe->n_routes)
        return UINT64_MAX;
    return recipe->r->profiles[route - 1].max_rows;
}

const struct format_recipe *lookup_recipe(const struct tokentab_recipe *recipe)
{
    return recipe->r;
}

const void *lookup_bias(const struct tokentab_recipe *recipe)
{
    return recipe->bias;
}

uint64_t lookup_n_rows(const struct tokentab_recipe *recipe)
{
    return recipe->n_rows;
}

uint64_t lookup_row_id(const struct tokentab_recipe *recipe, uint64_t row)
{
    uint64_t id = row;
    if (recipe->ids != NULL && row < recipe->n_rows)
        memcpy(&id, recipe->ids + row * sizeof id, sizeof id);
    return id;
}

const char *tokentab_version(void)
{
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
    return TEXT(TOKENTAB_VERSION_MAJOR) "." TEXT(TOKENTAB_VERSION_MINOR) "." TEXT(
        TOKENTAB_VERSION_PATCH);
#undef TEXT
#undef TEXT_
}
