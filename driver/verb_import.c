/* SPDX-License-Identifier: Apache-2.0 */
/* A recipe from the tables of another program. */
#include "driver/recipe_files.h"
#include "driver/verb_internal.h"

#include "formats/foreign.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void remove_in(const char *dir, const char *name)
{
    char *path = path_join(dir, name);
    if (path != NULL)
        (void)unlink(path);
    free(path);
}

/* With --force: the payload and the report of the recipe that was there belong to nothing now. */
static void sweep(const char *dir, const char *old_payload)
{
    char *payload = driver_payload_of(dir, LOOKUP_RECIPE_FILE);
    if (payload != NULL && old_payload != NULL && strcmp(payload, old_payload) != 0)
        remove_in(dir, old_payload);
    if (payload != NULL)
        remove_in(dir, "report.json");
    free(payload);
}

static void describe(struct driver_context *ctx, const struct tokentab_recipe *recipe)
{
    const struct driver_opts *o = ctx->opts;
    const struct format_recipe *r = lookup_recipe(recipe);
    if (!o->json) {
        bytes_printf(&ctx->result,
                     "%s: %s recipe of block %s from %s %s: %" PRIu64 " tokens, %zu outputs, %zu "
                     "routes; imported, never validated\n",
                     o->out, tokentab_kind(recipe), r->block, o->from, o->args[0],
                     r->num_embeddings, tokentab_n_outputs(recipe), tokentab_n_routes(recipe));
        return;
    }
    struct format_writer w;
    verb_json_start(ctx, &w);
    format_write_string(&w, "from", o->from);
    format_write_string(&w, "source", o->args[0]);
    format_write_string(&w, "recipe", o->out);
    format_write_string(&w, "validation", FORMAT_RECIPE_IMPORTED);
    format_write_string(&w, "block", r->block);
    format_write_string(&w, "block_kind", tokentab_kind(recipe));
    format_write_u64(&w, "num_embeddings", r->num_embeddings);
    format_write_u64(&w, "outputs", tokentab_n_outputs(recipe));
    format_write_u64(&w, "routes", tokentab_n_routes(recipe));
    format_write_string(&w, "payload", r->payload_file);
    format_write_u64(&w, "payload_bytes", r->payload_bytes);
    verb_json_end(ctx, &w);
}

static enum status import_recipe(struct driver_context *ctx, struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    bool was_there = file_is_dir(o->out);
    char *old_payload = driver_payload_of(o->out, LOOKUP_RECIPE_FILE);
    enum status st = format_foreign_import(o->args[0], o->module, o->size_limit, o->out, err);
    if (st == ST_OK)
        sweep(o->out, old_payload);
    else if (!was_there)
        (void)rmdir(o->out); /* only while it is empty */
    free(old_payload);
    return st;
}

enum status driver_verb_import(struct driver_context *ctx, struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    const struct tokentab_open_opts opts = {.flags =
                                                TOKENTAB_OPEN_VERIFY | TOKENTAB_OPEN_REQUIRE_SEAL};
    struct tokentab_recipe *recipe = NULL;
    if (o->from == NULL)
        return err_set(err, ST_USAGE, "--from compressme is missing");
    TRY(verb_output_check(o->out, "--out", o->force, err));
    TRY(import_recipe(ctx, err));
    TRY(verb_recipe_open(o->out, &opts, &recipe, err));
    describe(ctx, recipe);
    tokentab_close(&recipe);
    return ST_OK;
}
