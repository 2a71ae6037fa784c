/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe says of itself against a spec and a run of it.  A seal shows that recipe.json is as
 * somebody sealed it; whether it is true is for verify --against. */
#include <stdlib.h>
#include <string.h>

#include "driver/recipe_record.h"
#include "formats/json_value.h"

const char *driver_recipe_field(const struct format_field *fields, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].name, name) == 0)
            return fields[i].value;
    return NULL;
}

static enum status differs(const char *what, const char *recipe, const char *spec, struct err *err)
{
    return err_set(err, ST_DIFFERS, "%s: recipe %s, spec %s", what,
                   recipe == NULL ? "none" : recipe, spec == NULL ? "none" : spec);
}

static enum status differs_u64(const char *what, uint64_t recipe, uint64_t spec, struct err *err)
{
    if (recipe == spec)
        return ST_OK;
    return err_set(err, ST_DIFFERS, "%s: recipe %llu, spec %llu", what, (unsigned long long)recipe,
                   (unsigned long long)spec);
}

/* ---- the spec -------------------------------------------------------------------------------- */

static enum status check_thresholds(const struct format_recipe *r, const struct format_field *spec,
                                    size_t n, struct err *err)
{
    char what[320];
    for (size_t i = 0; i < n; i++) {
        const char *stored = driver_recipe_field(r->thresholds, r->n_thresholds, spec[i].name);
        snprintf(what, sizeof what, "thresholds.%s", spec[i].name);
        if (stored == NULL || strcmp(stored, spec[i].value) != 0)
            return differs(what, stored, spec[i].value, err);
    }
    for (size_t i = 0; i < r->n_thresholds; i++) {
        snprintf(what, sizeof what, "thresholds.%s", r->thresholds[i].name);
        if (driver_recipe_field(spec, n, r->thresholds[i].name) == NULL)
            return differs(what, r->thresholds[i].value, NULL, err);
    }
    return ST_OK;
}

enum status driver_recipe_check_spec(const struct format_recipe *r, const struct driver_job *job,
                                     const struct driver_block *b, struct err *err)
{
    struct format_field *thresholds = NULL;
    size_t n = 0;
    enum status st = driver_recipe_thresholds(job, b, &thresholds, &n, err);
    if (st == ST_OK)
        st = check_thresholds(r, thresholds, n, err);
    for (size_t i = 0; i < n; i++) {
        free(thresholds[i].name);
        free(thresholds[i].value);
    }
    free(thresholds);
    TRY(st);
    bool may_grow = job->spec->storage == STORAGE_MAY_GROW;
    if (r->may_grow != may_grow)
        return differs("storage policy", r->may_grow ? "may_grow" : "must_shrink",
                       may_grow ? "may_grow" : "must_shrink", err);
    TRY(differs_u64("rows_in_checkpoint", r->rows_in_checkpoint, b->graph->rows_in_checkpoint,
                    err));
    uint64_t accepted = job->ids == NULL       ? b->n_rows
                        : job->spec->vocab > 0 ? job->spec->vocab
                                               : b->graph->rows_in_checkpoint;
    TRY(differs_u64("num_embeddings", r->num_embeddings, accepted, err));
    if (r->kind == RECIPE_PROJECTED) {
        char x[32], y[32];
        double eps = b->graph->graph.nodes[b->graph->tables[1].node].numbers[NUM_EPS];
        if (memcmp(&r->normalize_eps, &eps, sizeof eps) != 0)
            return differs("normalize_eps", str_double(r->normalize_eps, x, sizeof x),
                           str_double(eps, y, sizeof y), err);
    }
    return ST_OK;
}

enum status driver_recipe_check_provenance(const struct format_recipe *r,
                                           const struct driver_job *job,
                                           const struct driver_block *b, struct err *err)
{
    const struct format_spec *spec = job->spec;
    size_t expected = 1 + spec->n_provenance; /* `inputs` first */
    for (size_t i = 0; i < b->graph->graph.n_weights; i++)
        expected += b->weights.data[i] != NULL;
    for (size_t i = 0; i < spec->n_provenance; i++) {
        char *name = str_printf("spec.%s", spec->provenance[i].name);
        if (name == NULL)
            return err_nomem(err, 1);
        const char *stored = driver_recipe_field(r->provenance, r->n_provenance, name);
        free(name);
        if (stored == NULL || strcmp(stored, spec->provenance[i].value) != 0)
            return err_set(err, ST_DIFFERS, "provenance.spec.%s: recipe %s, spec %s",
                           spec->provenance[i].name, stored == NULL ? "none" : stored,
                           spec->provenance[i].value);
    }
    return differs_u64("fields of provenance", r->n_provenance, expected, err);
}

/* ---- a run ----------------------------------------------------------------------------------- */

static bool same_scalar(const struct cJSON *a, const struct cJSON *b)
{
    double x = 0, y = 0;
    bool p = false, q = false;
    if (json_value_kind(a) != json_value_kind(b))
        return false;
    if (json_value_string(a) != NULL)
        return strcmp(json_value_string(a), json_value_string(b)) == 0;
    if (json_value_double(a, &x) && json_value_double(b, &y))
        return memcmp(&x, &y, sizeof x) == 0;
    if (json_value_bool(a, &p) && json_value_bool(b, &q))
        return p == q;
    return json_value_kind(a) == JSON_NULL;
}

/* Member by member, in order: our writer has one order.  `path` grows to the first difference. */
static enum status compare_json(const struct cJSON *a, const struct cJSON *b, struct bytes *path,
                                struct err *err)
{
    enum json_kind kind = json_value_kind(a);
    if (kind == json_value_kind(b) && (kind == JSON_OBJECT || kind == JSON_ARRAY)) {
        const struct cJSON *x = json_value_first(a), *y = json_value_first(b);
        size_t size = path->size;
        for (size_t i = 0; x != NULL || y != NULL; i++) {
            const char *key = json_value_key(x != NULL ? x : y);
            path->size = size;
            if (kind == JSON_OBJECT)
                bytes_printf(path, ".%s", key == NULL ? "" : key);
            else
                bytes_printf(path, "[%zu]", i);
            if (kind == JSON_OBJECT && x != NULL && y != NULL &&
                strcmp(json_value_key(x), json_value_key(y)) != 0)
                y = NULL;
            TRY(compare_json(x, y, path, err));
            x = json_value_next(x);
            y = json_value_next(y);
        }
        return ST_OK;
    }
    if (same_scalar(a, b))
        return ST_OK;
    char recipe[JSON_SHOWN_SIZE], here[JSON_SHOWN_SIZE];
    return err_set(err, ST_DIFFERS, "validation%.*s: recipe %s, here %s",
                   path->failed ? 0 : (int)path->size,
                   path->data == NULL ? "" : (const char *)path->data,
                   a == NULL ? "none" : json_value_shown(a, recipe),
                   b == NULL ? "none" : json_value_shown(b, here));
}

static enum status check_validation(const struct format_recipe *r, const char *found,
                                    struct err *err)
{
    struct cJSON *a = NULL, *b = NULL;
    struct bytes path = {0};
    const char *stored = r->validation_json == NULL ? "{}" : r->validation_json;
    enum status st = format_json_parse("validation", stored, strlen(stored), &a, err);
    if (st == ST_OK)
        st = format_json_parse("validation", found, strlen(found), &b, err);
    if (st == ST_OK)
        st = compare_json(a, b, &path, err);
    bytes_free(&path);
    format_json_free(&a);
    format_json_free(&b);
    return st;
}

enum status driver_recipe_check_run(const struct format_recipe *r, const struct driver_job *job,
                                    const struct driver_block *b, const struct driver_totals *t,
                                    const char *status, struct err *err)
{
    const char *evaluator = driver_recipe_field(r->environment, r->n_environment, "evaluator");
    const char *stored = driver_recipe_field(r->provenance, r->n_provenance, "inputs");
    char inputs[SHA256_HEX_SIZE];
    /* Fingerprints cover the version of the evaluator, correctly rounded or not. */
    if (evaluator != NULL && strcmp(evaluator, KERNELS_EVALUATOR_VERSION) == 0) {
        TRY(driver_inputs_digest(job, b, t, inputs, err));
        if (stored == NULL || strcmp(stored, inputs) != 0)
            return err_set(err, ST_DIFFERS,
                           "provenance.inputs: recipe %.16s, spec %.16s: another embedding, graph, "
                           "vocab, bulk_rows or validation_rows",
                           stored == NULL ? "none" : stored, inputs);
    }
    char *found = driver_recipe_validation(job, b, t, status);
    if (found == NULL)
        return err_nomem(err, 1);
    enum status st = check_validation(r, found, err);
    free(found);
    return st;
}
