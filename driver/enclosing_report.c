/* SPDX-License-Identifier: Apache-2.0 */
/* report.json of a rewritten (or rolled back) model: a function of spec, weights, examples and
 * numeric environment alone. */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"
#include "formats/json_value.h"

enum { REPORT_MAX_EXAMPLES = 10000 };

static void write_head(const struct enclosing_result *r, struct format_writer *w)
{
    const struct format_spec *spec = r->job->spec;
    format_write_u64(w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(w, "status", r->status);
    if (r->reason[0] != '\0')
        format_write_string(w, "reason", r->reason);
    else
        format_write_null(w, "reason");
    format_write_string(w, "arithmetic", spec->correctly_rounded ? "correctly_rounded" : "library");
    format_write_string(w, "policy",
                        spec->storage == STORAGE_MAY_GROW ? "may_grow" : "must_shrink");
    format_write_object(w, "tolerance");
    format_write_double(w, "absolute", spec->tolerance_absolute);
    format_write_double(w, "relative", spec->tolerance_relative);
    format_write_end_object(w);
    driver_write_profiles(w, spec);
    driver_write_environment(w, r->job->kernels);
}

static const char *region_status(const struct enclosing_result *r, size_t i)
{
    const struct driver_enclosing *e = r->job->enclosing;
    if (e->block_of[i] == SIZE_MAX || !e->outcomes[i].known)
        return "refused_unsupported";
    if (e->outcomes[i].st == ST_OK && r->comparison.failure.failed)
        return "rejected_and_rolled_back";
    return driver_status_word(e->outcomes[i].st);
}

static void write_region(const struct enclosing_result *r, size_t i, struct format_writer *w)
{
    const struct driver_enclosing *e = r->job->enclosing;
    const struct graph *g = &e->model->graph;
    const struct graph_region *region = &e->regions[i];
    const struct enclosing_outcome *o = &e->outcomes[i];
    const char *reason = region->reason != NULL ? region->reason : o->reason;
    format_write_object(w, NULL);
    format_write_string(w, "name", region->name);
    format_write_string(w, "status", region_status(r, i));
    if (reason[0] != '\0')
        format_write_string(w, "reason", reason);
    else
        format_write_null(w, "reason");
    format_write_string(w, "input", g->nodes[g->nodes[region->embedding].inputs[0]].name);
    format_write_string(w, "embedding", g->nodes[region->embedding].name);
    format_write_array(w, "nodes");
    for (size_t k = 0; k < g->n_nodes; k++)
        if (region->members[k])
            format_write_string(w, NULL, g->nodes[k].name);
    format_write_end_array(w);
    format_write_array(w, "outputs");
    for (size_t k = 0; k < region->n_frontier; k++)
        format_write_string(w, NULL, g->nodes[region->frontier[k]].name);
    format_write_end_array(w);
    if (o->known && (o->st == ST_OK || o->st == ST_STORAGE)) {
        const struct graph_block *b = r->job->blocks[e->block_of[i]].graph;
        format_write_array(w, "external_consumers");
        for (size_t k = 0; k < b->n_external_consumers; k++)
            format_write_string(w, NULL, b->external_consumers[k]);
        format_write_end_array(w);
        format_write_u64(w, "logical_before", o->verdict.logical_before);
        format_write_u64(w, "logical_after", o->verdict.logical_after);
        format_write_u64(w, "unique_before", o->verdict.unique_before);
        format_write_u64(w, "unique_after", o->verdict.unique_after);
    }
    format_write_end_object(w);
}

static void write_storage(const struct enclosing_result *r, struct format_writer *w)
{
    uint64_t logical_after = r->tables_logical + r->kept.logical_bytes;
    uint64_t unique_after = r->tables_unique + r->kept.unique_bytes;
    if (!r->has_storage)
        return;
    format_write_object(w, "storage");
    format_write_u64(w, "logical_before", r->before.logical_bytes);
    format_write_u64(w, "logical_after", logical_after);
    format_write_u64(w, "unique_before", r->before.unique_bytes);
    format_write_u64(w, "unique_after", unique_after);
    format_write_u64(w, "weights_kept_logical", r->kept.logical_bytes);
    format_write_u64(w, "weights_kept_unique", r->kept.unique_bytes);
    format_write_bool(w, "shrinks",
                      logical_after < r->before.logical_bytes &&
                          unique_after < r->before.unique_bytes);
    format_write_end_object(w);
}

static void write_comparison(const struct enclosing_result *r, struct format_writer *w)
{
    const struct graph_model *m = r->job->enclosing->model;
    const struct enclosing_comparison *c = &r->comparison;
    format_write_u64(w, "examples_given", r->examples.n);
    format_write_u64(w, "examples_compared", c->n_done);
    format_write_array(w, "outputs");
    for (size_t i = 0; c->outputs != NULL && i < m->n_outputs; i++) {
        const struct executor_difference *d = &c->outputs[i];
        format_write_object(w, NULL);
        format_write_string(w, "name", m->outputs[i].name);
        format_write_u64(w, "elements", d->elements);
        format_write_bool(w, "exact", d->unequal == 0);
        format_write_bool(w, "bitwise", d->unequal_bytes == 0);
        format_write_u64(w, "unequal", d->unequal);
        format_write_u64(w, "unequal_bytes", d->unequal_bytes);
        format_write_double(w, "max_abs", d->max_abs);
        format_write_double(w, "max_relative_l2", d->max_rel);
        if (m->outputs[i].decision_top_k > 0) {
            format_write_u64(w, "decisions", d->decisions);
            format_write_u64(w, "decisions_changed", d->decisions_changed);
        }
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_array(w, "examples");
    for (size_t i = 0; i < c->n_done && i < REPORT_MAX_EXAMPLES; i++) {
        format_write_object(w, NULL);
        format_write_string(w, "name", r->examples.list[i].name);
        format_write_bool(w, "exact", c->examples[i].exact);
        format_write_bool(w, "bitwise", c->examples[i].bitwise);
        format_write_double(w, "max_abs", c->examples[i].max_abs);
        format_write_double(w, "max_relative_l2", c->examples[i].max_rel);
        format_write_end_object(w);
    }
    format_write_end_array(w);
    if (!c->failure.failed)
        return;
    format_write_object(w, "failure");
    format_write_string(w, "example", r->examples.list[c->failure.example].name);
    format_write_u64(w, "example_index", c->failure.example);
    format_write_string(w, "output", m->outputs[c->failure.output].name);
    format_write_u64(w, "element", c->failure.place.index);
    format_write_double(w, "original", c->failure.place.a);
    format_write_double(w, "rewritten", c->failure.place.b);
    format_write_string(w, "message", c->failure.message);
    format_write_end_object(w);
}

/* Fragile tokens in the reports of blocks, each once, as a JSON list. */
static enum status fragile_tokens(const char *path, struct bytes *out, struct err *err)
{
    struct cJSON *report = NULL;
    size_t n = 0;
    if (!file_exists(path))
        return ST_OK;
    TRY(format_json_read(path, (size_t)1 << 30, &report, err));
    const struct cJSON *decisions = json_value_get(report, "decisions");
    for (const struct cJSON *d = json_value_first(decisions); d != NULL; d = json_value_next(d)) {
        const struct cJSON *tokens = json_value_get(d, "fragile_tokens");
        for (const struct cJSON *t = json_value_first(tokens); t != NULL; t = json_value_next(t)) {
            uint64_t token = 0;
            bool earlier = false;
            for (const struct cJSON *o = json_value_first(decisions); o != d && !earlier;
                 o = json_value_next(o))
                for (const struct cJSON *u = json_value_first(json_value_get(o, "fragile_tokens"));
                     u != NULL && !earlier; u = json_value_next(u)) {
                    uint64_t other = 0;
                    earlier =
                        json_value_u64(u, &other) && json_value_u64(t, &token) && other == token;
                }
            if (!earlier && json_value_u64(t, &token))
                bytes_printf(out, "%s%llu", n++ == 0 ? "[" : ", ", (unsigned long long)token);
        }
    }
    if (n > 0)
        bytes_printf(out, "]");
    bytes_put_u8(out, '\0');
    format_json_free(&report);
    return out->failed ? err_nomem(err, out->size) : ST_OK;
}

/* Fragile tokens that a block's own report lists: each deserves an example of its own. */
static enum status write_proposals(const struct enclosing_result *r, struct format_writer *w,
                                   struct err *err)
{
    const struct driver_enclosing *e = r->job->enclosing;
    const struct graph *g = &e->model->graph;
    enum status st = ST_OK;
    format_write_array(w, "proposed_examples");
    for (size_t i = 0; i < e->n_regions && st == ST_OK; i++) {
        if (e->block_of[i] == SIZE_MAX || !e->outcomes[i].known)
            continue;
        struct bytes tokens = {0};
        char *dir = path_join(r->work, e->regions[i].name);
        char *path = dir == NULL ? NULL : path_join(dir, "report.json");
        st = path == NULL ? err_nomem(err, 1) : fragile_tokens(path, &tokens, err);
        if (st == ST_OK && tokens.size > 1) {
            format_write_object(w, NULL);
            format_write_string(w, "region", e->regions[i].name);
            format_write_string(w, "input",
                                g->nodes[g->nodes[e->regions[i].embedding].inputs[0]].name);
            format_write_raw(w, "tokens", (const char *)tokens.data);
            format_write_end_object(w);
        }
        bytes_free(&tokens);
        free(path);
        free(dir);
    }
    format_write_end_array(w);
    return st;
}

/* Seals bind this report to the recipes it speaks of. */
static enum status write_files(const struct enclosing_result *r, struct format_writer *w,
                               struct err *err)
{
    const struct driver_enclosing *e = r->job->enclosing;
    enum status st = ST_OK;
    if (r->weights_file == NULL || r->model_sha256 == NULL || r->comparison.failure.failed)
        return ST_OK;
    format_write_object(w, "files");
    format_write_string(w, "model_sha256", r->model_sha256);
    format_write_string(w, "weights", r->weights_file);
    format_write_string(w, "weights_sha256", r->weights_sha256);
    format_write_array(w, "recipes");
    for (size_t i = 0; i < e->n_regions && st == ST_OK; i++) {
        if (!driver_enclosing_is_rewritten(e, i))
            continue;
        struct tokentab_recipe *recipe = NULL;
        struct tokentab_error fault = {0};
        struct tokentab_open_opts opts = {.flags =
                                              e->outcomes[i].unchanged ? 0 : TOKENTAB_OPEN_STAGED};
        char *dir = path_join(r->out, e->regions[i].name);
        enum tokentab_status opened =
            dir == NULL ? TOKENTAB_ENOMEM : tokentab_open(dir, &opts, &recipe, &fault);
        if (opened != TOKENTAB_OK) {
            st = err_set(err, lookup_status(opened), "%s", fault.message);
        } else {
            format_write_object(w, NULL);
            format_write_string(w, "name", e->regions[i].name);
            format_write_string(w, "seal", lookup_recipe(recipe)->seal);
            format_write_end_object(w);
        }
        tokentab_close(&recipe);
        free(dir);
    }
    format_write_end_array(w);
    format_write_end_object(w);
    return st;
}

enum status driver_enclosing_report(const struct enclosing_result *r, struct bytes *out,
                                    struct err *err)
{
    struct format_writer w = {.pretty = true};
    format_write_object(&w, NULL);
    write_head(r, &w);
    format_write_array(&w, "regions");
    for (size_t i = 0; i < r->job->enclosing->n_regions; i++)
        write_region(r, i, &w);
    format_write_end_array(&w);
    write_storage(r, &w);
    write_comparison(r, &w);
    enum status st = write_proposals(r, &w, err);
    if (st == ST_OK)
        st = write_files(r, &w, err);
    format_write_end_object(&w);
    format_write_finish(&w);
    if (st == ST_OK && w.out.failed)
        st = err_nomem(err, w.out.size);
    if (st == ST_OK)
        *out = w.out;
    else
        bytes_free(&w.out);
    return st;
}
