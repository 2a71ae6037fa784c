/* SPDX-License-Identifier: Apache-2.0 */
/* verify of a rewritten model: the digests and seals its report names; with --against, complete
 * outputs of the original and of what lies in the folder, on the examples of the spec. */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"
#include "driver/verb_internal.h"
#include "formats/json_value.h"

struct checking {
    struct driver_context *ctx;
    const char *dir;
    struct cJSON *report;
    struct driver_job job;
    struct format_examples examples;
    struct enclosing_comparison comparison;
    size_t n_recipes;
};

/* ---- files ----------------------------------------------------------------------------------- */

static enum status check_file(const struct checking *v, const char *name, const char *expected,
                              struct err *err)
{
    char found[SHA256_HEX_SIZE];
    char *path = name == NULL || strchr(name, '/') != NULL ? NULL : path_join(v->dir, name);
    if (path == NULL || expected == NULL)
        return err_set(err, ST_FORMAT, "%s/%s: files: a name or a digest is missing", v->dir,
                       ENCLOSING_REPORT_FILE);
    enum status st = file_digests(path, found, NULL, NULL, err);
    if (st == ST_OK && strcmp(found, expected) != 0)
        st = err_set(err, ST_FORMAT, "%s: sha256 %s, expected %s: it has changed", path, found,
                     expected);
    free(path);
    return st;
}

static enum status check_recipe(struct checking *v, const char *name, const char *seal,
                                struct err *err)
{
    struct tokentab_open_opts opts = {.flags = v->ctx->opts->quick ? 0 : TOKENTAB_OPEN_VERIFY};
    struct tokentab_recipe *recipe = NULL;
    struct tokentab_error fault = {0};
    char *path = name == NULL || !str_is_name(name) ? NULL : path_join(v->dir, name);
    if (path == NULL || seal == NULL)
        return err_set(err, ST_FORMAT, "%s/%s: files.recipes: a name or a seal is missing", v->dir,
                       ENCLOSING_REPORT_FILE);
    enum tokentab_status opened = tokentab_open(path, &opts, &recipe, &fault);
    enum status st = ST_OK;
    if (opened != TOKENTAB_OK)
        st = err_set(err, lookup_status(opened), "%s", fault.message);
    else if (tokentab_is_historical(recipe) || strcmp(lookup_recipe(recipe)->seal, seal) != 0)
        st = err_set(err, ST_DIFFERS,
                     "%s: historical: not the recipe that the model's outputs were compared with",
                     path);
    v->n_recipes++;
    tokentab_close(&recipe);
    free(path);
    return st;
}

static bool is_listed(const struct cJSON *recipes, const char *name)
{
    for (const struct cJSON *r = json_value_first(recipes); r != NULL; r = json_value_next(r)) {
        const char *listed = json_value_string(json_value_get(r, "name"));
        if (listed != NULL && strcmp(listed, name) == 0)
            return true;
    }
    return false;
}

/* Every recipe that a lookup of the model names must be among those that are checked. */
static enum status check_lookups(const struct checking *v, const struct cJSON *recipes,
                                 struct err *err)
{
    struct format_spec *spec = NULL;
    struct graph_model *model = NULL;
    char *path = path_join(v->dir, ENCLOSING_MODEL_FILE);
    enum status st = path == NULL ? err_nomem(err, 1) : format_spec_read(path, &spec, err);
    if (st == ST_OK)
        st = format_spec_graph(spec, &model, err);
    for (size_t i = 0; st == ST_OK && model != NULL && i < model->graph.n_nodes; i++) {
        const struct graph_node *node = &model->graph.nodes[i];
        if (node->op == OP_LOOKUP && !is_listed(recipes, node->texts[TEXT_RECIPE]))
            st = err_set(err, ST_FORMAT, "%s/%s: files.recipes: recipe %s of node %s is missing",
                         v->dir, ENCLOSING_REPORT_FILE, node->texts[TEXT_RECIPE], node->name);
    }
    graph_model_free(&model);
    format_spec_free(&spec);
    free(path);
    return st;
}

static enum status check_files(struct checking *v, struct err *err)
{
    char *path = path_join(v->dir, ENCLOSING_REPORT_FILE);
    if (path == NULL)
        return err_nomem(err, 1);
    enum status st = format_json_read(path, (size_t)1 << 30, &v->report, err);
    free(path);
    TRY(st);
    const struct cJSON *files = json_value_get(v->report, "files");
    TRY(check_file(v, ENCLOSING_MODEL_FILE,
                   json_value_string(json_value_get(files, "model_sha256")), err));
    if (!v->ctx->opts->quick)
        TRY(check_file(v, json_value_string(json_value_get(files, "weights")),
                       json_value_string(json_value_get(files, "weights_sha256")), err));
    const struct cJSON *recipes = json_value_get(files, "recipes");
    TRY(check_lookups(v, recipes, err));
    for (const struct cJSON *r = json_value_first(recipes); r != NULL; r = json_value_next(r))
        TRY(check_recipe(v, json_value_string(json_value_get(r, "name")),
                         json_value_string(json_value_get(r, "seal")), err));
    return ST_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static enum status compare(struct checking *v, struct err *err)
{
    const struct driver_opts *o = v->ctx->opts;
    struct driver_model_opts mopts = {
        .opts = o, .kernels = v->job.kernels, .checkpoint = o->checkpoint};
    struct driver_model *original = NULL, *rewritten = NULL;
    char *path = path_join(v->dir, ENCLOSING_MODEL_FILE);
    enum status st = path == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK)
        st = format_spec_examples(v->job.spec, v->job.enclosing->model, &v->examples, err);
    if (st == ST_OK)
        st = driver_model_open(o->against, &mopts, &original, err);
    mopts.checkpoint = NULL;
    if (st == ST_OK)
        st = driver_model_open(path, &mopts, &rewritten, err);
    if (st == ST_OK && (rewritten->model->n_outputs != original->model->n_outputs ||
                        rewritten->model->n_inputs != original->model->n_inputs))
        st = err_set(err, ST_DIFFERS, "%s: other inputs or outputs than %s", path, o->against);
    if (st == ST_OK)
        st = driver_enclosing_compare(v->job.spec, original, rewritten, &v->examples,
                                      &v->comparison, err);
    if (st == ST_OK && v->comparison.failure.failed)
        st = err_set(err, ST_DIFFERS, "%s: %s", v->dir, v->comparison.failure.message);
    driver_model_close(&original);
    driver_model_close(&rewritten);
    free(path);
    return st;
}

static enum status compare_all(struct checking *v, struct err *err)
{
    struct comm *comm = v->ctx->comm;
    const struct driver_opts *o = v->ctx->opts;
    enum status st = driver_job_open(o->against, o, comm_size(comm), &v->job, err);
    if (st == ST_OK && v->job.enclosing == NULL)
        st = err_set(err, ST_USAGE, "%s: no model: %s is a rewritten model, its spec has \"graph\"",
                     o->against, v->dir);
    struct err own = *err;
    st = comm_agree(comm, st, err);
    if (comm_rank(comm) == 0 && own.st != ST_OK)
        *err = own;
    TRY(st);
    TRY(driver_job_kernels_all(comm, o, &v->job, err));
    if (comm_rank(comm) == 0)
        st = compare(v, err);
    own = *err;
    st = comm_agree(comm, st, err);
    if (comm_rank(comm) == 0 && own.st != ST_OK)
        *err = own;
    return st;
}

/* ---- result ---------------------------------------------------------------------------------- */

static void print(const struct checking *v, enum status st, const struct err *err)
{
    const struct driver_opts *o = v->ctx->opts;
    bool bitwise = v->comparison.outputs != NULL;
    double max_abs = 0;
    for (size_t i = 0; v->comparison.outputs != NULL && i < v->job.enclosing->model->n_outputs;
         i++) {
        bitwise = bitwise && v->comparison.outputs[i].unequal_bytes == 0;
        if (v->comparison.outputs[i].max_abs > max_abs)
            max_abs = v->comparison.outputs[i].max_abs;
    }
    if (o->json) {
        struct format_writer w;
        verb_json_start(v->ctx, &w);
        format_write_string(&w, "model", v->dir);
        format_write_bool(&w, "verified", st == ST_OK);
        format_write_u64(&w, "recipes", v->n_recipes);
        if (st != ST_OK)
            format_write_string(&w, "reason", err->message);
        if (o->against != NULL) {
            format_write_u64(&w, "examples", v->comparison.n_done);
            format_write_bool(&w, "bitwise", bitwise);
            format_write_double(&w, "max_abs", max_abs);
        }
        verb_json_end(v->ctx, &w);
        return;
    }
    if (st != ST_OK)
        return;
    char x[32];
    bytes_printf(&v->ctx->result, "%s: verified: model, weights and %zu recipes match\n", v->dir,
                 v->n_recipes);
    if (o->against != NULL)
        bytes_printf(&v->ctx->result, "  against %s: %zu examples, %s%s\n", o->against,
                     v->comparison.n_done, bitwise ? "the same bytes" : "max_abs ",
                     bitwise ? "" : str_double(max_abs, x, sizeof x));
}

enum status driver_enclosing_verify(struct driver_context *ctx, struct err *err)
{
    struct checking v = {.ctx = ctx, .dir = ctx->opts->args[0]};
    bool root = comm_rank(ctx->comm) == 0;
    enum status st = root ? check_files(&v, err) : ST_OK;
    struct err own = *err;
    st = comm_agree(ctx->comm, st, err);
    if (root && own.st != ST_OK)
        *err = own;
    if (st == ST_OK && ctx->opts->against != NULL)
        st = compare_all(&v, err);
    if (root)
        print(&v, st, err);
    format_json_free(&v.report);
    format_examples_free(&v.examples);
    driver_enclosing_comparison_free(&v.comparison);
    driver_job_close(&v.job);
    return st;
}
