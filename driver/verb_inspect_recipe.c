/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe folder says about itself. */
#include "driver/storage.h"
#include "driver/verb_internal.h"

#include <inttypes.h>
#include <stdlib.h>

static void fields_json(struct format_writer *w, const char *key, const struct format_field *f,
                        size_t n)
{
    format_write_object(w, key);
    for (size_t i = 0; i < n; i++)
        format_write_string(w, f[i].name, f[i].value);
    format_write_end_object(w);
}

static void fields_text(struct bytes *out, const char *key, const struct format_field *f, size_t n)
{
    bytes_printf(out, "%s\n", key);
    for (size_t i = 0; i < n; i++)
        bytes_printf(out, "  %s: %s\n", f[i].name, f[i].value);
}

static const struct format_placed *placed(const struct format_recipe *r, size_t route, size_t i)
{
    return route == 0 ? &r->outputs[i] : &r->profiles[route - 1].outputs[i];
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void outputs_json(const struct tokentab_recipe *recipe, struct format_writer *w)
{
    format_write_array(w, "outputs");
    for (size_t i = 0; i < tokentab_n_outputs(recipe); i++) {
        struct tokentab_output_info info = {0};
        if (tokentab_output(recipe, i, &info) != TOKENTAB_OK)
            continue;
        format_write_object(w, NULL);
        format_write_string(w, "name", info.name);
        format_write_string(w, "dtype", dtype_name(lookup_dtype(info.dtype)));
        format_write_u64(w, "width", info.width);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void routes_json(const struct tokentab_recipe *recipe, struct format_writer *w)
{
    const struct format_recipe *r = lookup_recipe(recipe);
    format_write_array(w, "routes");
    for (size_t route = 0; route < tokentab_n_routes(recipe); route++) {
        format_write_object(w, NULL);
        format_write_string(w, "name", tokentab_route_name(recipe, route));
        if (route > 0) {
            format_write_u64(w, "max_rows", r->profiles[route - 1].max_rows);
            format_write_u64(w, "evaluation_rows", r->profiles[route - 1].evaluation_rows);
        }
        format_write_array(w, "tables");
        for (size_t i = 0; i < r->n_outputs; i++) {
            const struct format_placed *p = placed(r, route, i);
            format_write_object(w, NULL);
            format_write_string(w, "name", p->name);
            format_write_u64(w, "group", p->group);
            format_write_u64(w, "column", p->column);
            format_write_u64(w, "width", p->width);
            format_write_end_object(w);
        }
        format_write_end_array(w);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void recipe_json(const struct tokentab_recipe *recipe, const struct driver_storage *bytes,
                        struct format_writer *w)
{
    const struct format_recipe *r = lookup_recipe(recipe);
    format_write_string(w, "kind", "recipe");
    format_write_string(w, "block_kind", tokentab_kind(recipe));
    format_write_string(w, "block", r->block);
    format_write_u64(w, "version", r->version);
    format_write_bool(w, "historical", tokentab_is_historical(recipe) != 0);
    format_write_u64(w, "num_embeddings", r->num_embeddings);
    format_write_u64(w, "rows_in_checkpoint", r->rows_in_checkpoint);
    format_write_bool(w, "has_ids", r->has_ids);
    format_write_u64(w, "rows", lookup_n_rows(recipe));
    outputs_json(recipe, w);
    routes_json(recipe, w);
    format_write_array(w, "groups");
    for (size_t i = 0; i < r->n_groups; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "rows", r->groups[i].rows);
        format_write_u64(w, "width", r->groups[i].width);
        format_write_string(w, "dtype", dtype_name(r->groups[i].dtype));
        format_write_bool(w, "indexed", r->groups[i].indexed);
        format_write_end_object(w);
    }
    format_write_end_array(w);
    if (r->kind == RECIPE_PROJECTED) {
        format_write_bool(w, "bias", r->has_bias);
        format_write_bool(w, "retain_projection", r->retain_projection);
        format_write_double(w, "normalize_eps", r->normalize_eps);
    }
    format_write_object(w, "payload");
    format_write_string(w, "file", r->payload_file);
    format_write_u64(w, "bytes", r->payload_bytes);
    format_write_string(w, "sha256", r->payload_sha256);
    format_write_end_object(w);
    format_write_bool(w, "may_grow", r->may_grow);
    format_write_string(w, "arithmetic", r->arithmetic);
    fields_json(w, "environment", r->environment, r->n_environment);
    fields_json(w, "provenance", r->provenance, r->n_provenance);
    fields_json(w, "thresholds", r->thresholds, r->n_thresholds);
    driver_storage_json(bytes, w);
    format_write_raw(w, "storage", r->storage_json);
    format_write_raw(w, "validation", r->validation_json);
    format_write_string(w, "seal", r->seal);
}

/* ---- text ------------------------------------------------------------------------------------ */

static void routes_text(const struct tokentab_recipe *recipe, struct bytes *out)
{
    const struct format_recipe *r = lookup_recipe(recipe);
    for (size_t route = 0; route < tokentab_n_routes(recipe); route++) {
        bytes_printf(out, "route %s", tokentab_route_name(recipe, route));
        if (route > 0)
            bytes_printf(out,
                         " (calls of at most %" PRIu64 " ids, evaluated with %" PRIu64 " rows)",
                         r->profiles[route - 1].max_rows, r->profiles[route - 1].evaluation_rows);
        bytes_printf(out, "\n");
        for (size_t i = 0; i < r->n_outputs; i++) {
            const struct format_placed *p = placed(r, route, i);
            const struct format_group *g = &r->groups[p->group];
            bytes_printf(out,
                         "  %-32s %-5s group_%" PRIu32 " columns [%" PRIu64 ", %" PRIu64 ")%s%s\n",
                         p->name, dtype_name(g->dtype), p->group, p->column, p->column + p->width,
                         g->rows == 1 ? ", constant" : "", g->indexed ? ", rows shared" : "");
        }
    }
}

static void recipe_text(const char *path, const struct tokentab_recipe *recipe,
                        const struct driver_storage *bytes, struct bytes *out)
{
    const struct format_recipe *r = lookup_recipe(recipe);
    char *validation = format_recipe_status(r);
    char human[32];
    bytes_printf(out, "%s: recipe of block %s, %s, version %u%s\n", path, r->block,
                 tokentab_kind(recipe), r->version,
                 tokentab_is_historical(recipe) ? ", HISTORICAL" : "");
    bytes_printf(out, "ids [0, %" PRIu64 "), %" PRIu64 " rows%s\n", r->num_embeddings,
                 lookup_n_rows(recipe), r->has_ids ? " of an id list" : "");
    bytes_printf(out, "outputs\n");
    for (size_t i = 0; i < tokentab_n_outputs(recipe); i++) {
        struct tokentab_output_info info = {0};
        if (tokentab_output(recipe, i, &info) == TOKENTAB_OK)
            bytes_printf(out, "  %-32s %-5s %" PRIu64 "\n", info.name,
                         dtype_name(lookup_dtype(info.dtype)), info.width);
    }
    routes_text(recipe, out);
    for (size_t i = 0; i < r->n_groups; i++)
        bytes_printf(out, "group_%zu [%" PRIu64 ",%" PRIu64 "] %s\n", i, r->groups[i].rows,
                     r->groups[i].width, dtype_name(r->groups[i].dtype));
    bytes_printf(out, "payload %s, %" PRIu64 " bytes (%s), sha256 %s\n", r->payload_file,
                 r->payload_bytes, str_bytes(r->payload_bytes, human, sizeof human),
                 r->payload_sha256);
    driver_storage_text(bytes, out);
    bytes_printf(out, "validation %s\n", validation == NULL ? "" : validation);
    free(validation);
    bytes_printf(out, "arithmetic %s, storage %s\n", r->arithmetic,
                 r->may_grow ? "may_grow" : "must_shrink");
    fields_text(out, "environment", r->environment, r->n_environment);
    fields_text(out, "thresholds", r->thresholds, r->n_thresholds);
    fields_text(out, "provenance", r->provenance, r->n_provenance);
    bytes_printf(out, "seal %s\n", r->seal);
}

enum status verb_inspect_recipe(const char *path, struct driver_context *ctx,
                                struct format_writer *w, struct err *err)
{
    struct tokentab_recipe *recipe = NULL;
    struct driver_storage bytes = {0};
    TRY(verb_recipe_open(path, NULL, &recipe, err));
    char *dir = verb_recipe_dir(path);
    enum status st = dir == NULL ? err_nomem(err, 1)
                                 : driver_storage_measure(dir, lookup_recipe(recipe), &bytes, err);
    if (st == ST_OK && w != NULL)
        recipe_json(recipe, &bytes, w);
    else if (st == ST_OK)
        recipe_text(path, recipe, &bytes, &ctx->result);
    free(dir);
    tokentab_close(&recipe);
    return st;
}
