/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.json in memory: its rules, its payload's tensors, its text and seal. */
#include "formats/recipe.h"
#include "formats/recipe_internal.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *format_recipe_kind_name(enum format_recipe_kind kind)
{
    switch (kind) {
    case RECIPE_LOOKUP:
        return "lookup";
    case RECIPE_FANOUT:
        return "fanout";
    case RECIPE_PROJECTED:
        return "projected";
    }
    return "?";
}

static void free_placed(struct format_placed *p, size_t n)
{
    for (size_t i = 0; p != NULL && i < n; i++)
        free(p[i].name);
    free(p);
}

static void free_fields(struct format_field *f, size_t n)
{
    for (size_t i = 0; f != NULL && i < n; i++) {
        free(f[i].name);
        free(f[i].value);
    }
    free(f);
}

void format_recipe_free(struct format_recipe **recipe)
{
    if (recipe == NULL || *recipe == NULL)
        return;
    struct format_recipe *r = *recipe;
    free(r->block);
    free(r->groups);
    free_placed(r->outputs, r->n_outputs);
    for (size_t i = 0; r->profiles != NULL && i < r->n_profiles; i++)
        free_placed(r->profiles[i].outputs, r->n_outputs);
    free(r->profiles);
    free(r->payload_file);
    free(r->payload_sha256);
    free(r->arithmetic);
    free_fields(r->environment, r->n_environment);
    free_fields(r->provenance, r->n_provenance);
    free_fields(r->thresholds, r->n_thresholds);
    free(r->validation_json);
    free(r->storage_json);
    free(r->seal);
    free(r);
    *recipe = NULL;
}

char *format_recipe_status(const struct format_recipe *r)
{
    struct cJSON *json = NULL;
    struct err ignored = {0};
    const char *text = r->validation_json;
    if (text != NULL &&
        format_json_parse("validation", text, strlen(text), &json, &ignored) != ST_OK)
        json = NULL;
    const struct cJSON *found = cJSON_GetObjectItemCaseSensitive(json, "status");
    char *status = str_dup(cJSON_IsString(found) ? found->valuestring : "");
    format_json_free(&json);
    return status;
}

uint64_t format_recipe_rows(const struct format_recipe *r)
{
    return r->has_ids ? r->n_ids : r->num_embeddings;
}

enum dtype recipe_index_dtype(const struct format_group *g)
{
    return g->rows <= (uint64_t)INT32_MAX ? DT_I32 : DT_I64;
}

/* ---- payload tensors ----------------------------------------------------------------------- */

void format_tensor_specs_free(struct format_tensor_spec **specs, size_t n)
{
    if (specs == NULL || *specs == NULL)
        return;
    for (size_t i = 0; i < n; i++) {
        union {
            const char *borrowed;
            char *owned;
        } name = {.borrowed = (*specs)[i].name};
        free(name.owned);
    }
    free(*specs);
    *specs = NULL;
}

struct spec_list {
    struct format_tensor_spec *specs;
    size_t n;
    bool failed;
};

/* `name` is taken over.  cols 0: a vector. */
static void spec_add(struct spec_list *l, char *name, enum dtype dt, uint64_t rows, uint64_t cols)
{
    if (name == NULL) {
        l->failed = true;
        return;
    }
    l->specs[l->n++] = (struct format_tensor_spec){
        .name = name, .dtype = dt, .rank = cols > 0 ? 2 : 1, .shape = {rows, cols}};
}

enum status format_recipe_tensors(const struct format_recipe *r, struct format_tensor_spec **specs,
                                  size_t *n, struct err *err)
{
    size_t capacity = 2 * r->n_groups + 3;
    struct spec_list l = {.specs = calloc(capacity, sizeof *l.specs)};
    *specs = NULL;
    *n = 0;
    if (l.specs == NULL)
        return err_nomem(err, capacity * sizeof *l.specs);
    for (size_t i = 0; i < r->n_groups; i++)
        spec_add(&l, str_printf("tables." RECIPE_GROUP_PREFIX "%zu", i), r->groups[i].dtype,
                 r->groups[i].rows, r->groups[i].width);
    for (size_t i = 0; i < r->n_groups; i++)
        if (r->groups[i].indexed)
            spec_add(&l, str_printf("tables." RECIPE_GROUP_PREFIX "%zu.index", i),
                     recipe_index_dtype(&r->groups[i]), format_recipe_rows(r), 0);
    if (r->has_ids)
        spec_add(&l, str_dup("ids"), DT_I64, r->n_ids, 0);
    if (r->has_bias)
        spec_add(&l, str_dup("bias"), r->bias_dtype, r->outputs[0].width, 0);
    if (r->retain_projection)
        spec_add(&l, str_dup("projection"), r->bias_dtype, r->outputs[0].width,
                 r->projection_columns);
    if (l.failed) {
        format_tensor_specs_free(&l.specs, l.n);
        return err_nomem(err, 32);
    }
    *specs = l.specs;
    *n = l.n;
    return ST_OK;
}

/* ---- text ---------------------------------------------------------------------------------- */

void recipe_write_json(struct format_writer *w, const char *key, const struct cJSON *item)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        bool object = cJSON_IsObject(item);
        if (object)
            format_write_object(w, key);
        else
            format_write_array(w, key);
        for (const cJSON *c = item->child; c != NULL; c = c->next)
            recipe_write_json(w, object ? c->string : NULL, c);
        if (object)
            format_write_end_object(w);
        else
            format_write_end_array(w);
    } else if (cJSON_IsString(item)) {
        format_write_string(w, key, item->valuestring);
    } else if (cJSON_IsNumber(item)) {
        format_write_double(w, key, item->valuedouble);
    } else if (cJSON_IsBool(item)) {
        format_write_bool(w, key, cJSON_IsTrue(item));
    } else {
        format_write_null(w, key);
    }
}

static enum status write_text_object(struct format_writer *w, const char *key, const char *text,
                                     struct err *err)
{
    struct cJSON *json = NULL;
    if (text == NULL)
        text = "{}";
    TRY(format_json_parse(key, text, strlen(text), &json, err));
    enum status st = ST_OK;
    if (cJSON_IsObject(json))
        recipe_write_json(w, key, json);
    else
        st = err_set(err, ST_FORMAT, "%s: expected a JSON object", key);
    format_json_free(&json);
    return st;
}

static void write_fields(struct format_writer *w, const char *key, const struct format_field *f,
                         size_t n)
{
    format_write_object(w, key);
    for (size_t i = 0; i < n; i++)
        format_write_string(w, f[i].name, f[i].value);
    format_write_end_object(w);
}

static void group_name(char name[32], uint64_t group)
{
    snprintf(name, 32, RECIPE_GROUP_PREFIX "%" PRIu64, group);
}

static void write_outputs(struct format_writer *w, const struct format_placed *p, size_t n)
{
    char name[32];
    format_write_array(w, "outputs");
    for (size_t i = 0; i < n; i++) {
        group_name(name, p[i].group);
        format_write_array(w, NULL);
        format_write_string(w, NULL, p[i].name);
        format_write_string(w, NULL, name);
        format_write_u64(w, NULL, p[i].column);
        format_write_u64(w, NULL, p[i].width);
        format_write_end_array(w);
    }
    format_write_end_array(w);
}

static void write_tables(struct format_writer *w, const struct format_recipe *r)
{
    char name[32];
    format_write_object(w, "tables");
    for (size_t i = 0; i < r->n_groups; i++) {
        const struct format_group *g = &r->groups[i];
        group_name(name, i);
        format_write_object(w, name);
        format_write_array(w, "shape");
        format_write_u64(w, NULL, g->rows);
        format_write_u64(w, NULL, g->width);
        format_write_end_array(w);
        format_write_string(w, "dtype", dtype_name(g->dtype));
        if (g->indexed)
            format_write_bool(w, "indexed", true);
        format_write_end_object(w);
    }
    format_write_end_object(w);
}

static void write_profiles(struct format_writer *w, const struct format_recipe *r)
{
    format_write_array(w, "row_count_profiles");
    for (size_t i = 0; i < r->n_profiles; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "max_rows", r->profiles[i].max_rows);
        format_write_u64(w, "evaluation_rows", r->profiles[i].evaluation_rows);
        write_outputs(w, r->profiles[i].outputs, r->n_outputs);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void write_projected(struct format_writer *w, const struct format_recipe *r)
{
    format_write_object(w, "projected");
    format_write_double(w, "normalize_eps", r->normalize_eps);
    if (r->has_bias)
        format_write_string(w, "bias", dtype_name(r->bias_dtype));
    else
        format_write_null(w, "bias");
    if (r->retain_projection) {
        format_write_array(w, "projection");
        format_write_u64(w, NULL, r->outputs[0].width);
        format_write_u64(w, NULL, r->projection_columns);
        format_write_end_array(w);
    } else {
        format_write_null(w, "projection");
    }
    format_write_end_object(w);
}

static void write_head(struct format_writer *w, const struct format_recipe *r)
{
    format_write_string(w, "kind", format_recipe_kind_name(r->kind));
    format_write_u64(w, "version", r->version);
    format_write_string(w, "block", r->block);
    format_write_string(w, "input_contract", RECIPE_CONTRACT);
    format_write_u64(w, "num_embeddings", r->num_embeddings);
    format_write_u64(w, "rows_in_checkpoint", r->rows_in_checkpoint);
    if (r->has_ids)
        format_write_u64(w, "ids", r->n_ids);
    else
        format_write_null(w, "ids");
    write_tables(w, r);
    write_outputs(w, r->outputs, r->n_outputs);
    if (r->n_profiles > 0)
        write_profiles(w, r);
    if (r->kind == RECIPE_PROJECTED)
        write_projected(w, r);
    format_write_object(w, "payload");
    format_write_string(w, "file", r->payload_file);
    format_write_string(w, "sha256", r->payload_sha256);
    format_write_u64(w, "bytes", r->payload_bytes);
    format_write_end_object(w);
}

static enum status encode(const struct format_recipe *r, const char *seal, struct bytes *out,
                          struct err *err)
{
    struct format_writer w = {.pretty = true};
    *out = (struct bytes){0};
    TRY(format_recipe_check(r, "recipe", err));
    format_write_object(&w, NULL);
    write_head(&w, r);
    format_write_string(&w, "storage_policy", r->may_grow ? "may_grow" : "must_shrink");
    format_write_string(&w, "arithmetic", r->arithmetic);
    write_fields(&w, strcmp(r->arithmetic, "library") == 0 ? "environment" : "evaluator",
                 r->environment, r->n_environment);
    write_fields(&w, "provenance", r->provenance, r->n_provenance);
    write_fields(&w, "thresholds", r->thresholds, r->n_thresholds);
    enum status st = write_text_object(&w, "validation", r->validation_json, err);
    if (st == ST_OK)
        st = write_text_object(&w, "storage", r->storage_json, err);
    format_write_string(&w, "seal", seal != NULL ? seal : "");
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

enum status format_recipe_encode(const struct format_recipe *r, struct bytes *out, struct err *err)
{
    return encode(r, r->seal, out, err);
}

/* The digest of the document with an empty seal: `sed` and `sha256sum` can repeat it. */
enum status format_recipe_seal(const struct format_recipe *r, char hex[SHA256_HEX_SIZE],
                               struct err *err)
{
    struct bytes text = {0};
    TRY(encode(r, "", &text, err));
    enum status st = sha256_of(text.data, text.size, hex, err);
    bytes_free(&text);
    return st;
}
