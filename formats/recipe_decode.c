/* SPDX-License-Identifier: Apache-2.0 */
/* recipe.json, read strictly: every key known, every key there, every type right. */
#include "formats/recipe.h"
#include "formats/formats_internal.h"
#include "formats/recipe_internal.h"

#include <cjson/cJSON.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Where messages come from. */
struct decoder {
    const char *what;
    struct err *err;
};

enum { DECODE_PATH_SIZE = 256 };

static enum status expected(const struct decoder *d, const char *path, const char *wanted,
                            const struct cJSON *found)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    return err_set(d->err, ST_FORMAT, "%s: %s: expected %s, found %s", d->what, path, wanted,
                   format_json_shown(found, shown));
}

/* Keys of `object` must be among the NULL-ended `known`. */
static enum status check_known(const struct decoder *d, const struct cJSON *object,
                               const char *path, const char *const *known)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    for (const struct cJSON *c = object->child; c != NULL; c = c->next) {
        size_t i = 0;
        while (known[i] != NULL && strcmp(known[i], c->string) != 0)
            i++;
        if (known[i] == NULL)
            return err_set(d->err, ST_FORMAT, "%s: %s%sunknown key \"%s\"", d->what, path,
                           path[0] != '\0' ? ": " : "", format_printable(c->string, shown));
    }
    return ST_OK;
}

static const struct cJSON *member(const struct cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static enum status get_object(const struct decoder *d, const struct cJSON *object, const char *key,
                              const struct cJSON **out)
{
    *out = member(object, key);
    return cJSON_IsObject(*out) ? ST_OK : expected(d, key, "an object", *out);
}

static enum status take_u64(const struct decoder *d, const struct cJSON *item, const char *path,
                            uint64_t *out)
{
    /* Above 2^53 the writer uses a decimal string. */
    if (cJSON_IsString(item) && str_to_u64(item->valuestring, out) && *out > (uint64_t)1 << 53)
        return ST_OK;
    return format_json_u64(item, out) ? ST_OK : expected(d, path, "a whole number", item);
}

static enum status get_u64(const struct decoder *d, const struct cJSON *object, const char *key,
                           uint64_t *out)
{
    return take_u64(d, member(object, key), key, out);
}

static enum status take_string(const struct decoder *d, const struct cJSON *item, const char *path,
                               char **out)
{
    if (!cJSON_IsString(item))
        return expected(d, path, "a string", item);
    *out = str_dup(item->valuestring);
    return *out != NULL ? ST_OK : err_nomem(d->err, strlen(item->valuestring));
}

static enum status get_string(const struct decoder *d, const struct cJSON *object, const char *key,
                              char **out)
{
    return take_string(d, member(object, key), key, out);
}

static enum status count_children(const struct decoder *d, const struct cJSON *item,
                                  const char *path, size_t limit, size_t *out)
{
    size_t n = 0;
    for (const struct cJSON *c = item->child; c != NULL; c = c->next)
        n++;
    if (n > limit)
        return err_set(d->err, ST_FORMAT, "%s: %s: %zu items, at most %zu are allowed", d->what,
                       path, n, limit);
    *out = n;
    return ST_OK;
}

static enum status alloc_items(const struct decoder *d, size_t n, size_t size, void *out)
{
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL)
        return err_nomem(d->err, size);
    memcpy(out, &p, sizeof p);
    return ST_OK;
}

static enum status get_dtype(const struct decoder *d, const struct cJSON *item, const char *path,
                             enum dtype *out)
{
    if (cJSON_IsString(item))
        *out = dtype_from_name(item->valuestring, strlen(item->valuestring));
    if (!cJSON_IsString(item) || !dtype_is_computable(*out))
        return expected(d, path, "\"F64\", \"F32\", \"F16\" or \"BF16\"", item);
    return ST_OK;
}

/* Text of a string, "" for anything else. */
static const char *text_of(const struct cJSON *item)
{
    return cJSON_IsString(item) ? item->valuestring : "";
}

static enum status decode_pair(const struct decoder *d, const struct cJSON *item, const char *path,
                               uint64_t *a, uint64_t *b)
{
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2)
        return expected(d, path, "[rows, width]", item);
    TRY(take_u64(d, item->child, path, a));
    return take_u64(d, item->child->next, path, b);
}

static enum status decode_tables(const struct decoder *d, const struct cJSON *tables,
                                 struct format_recipe *r)
{
    static const char *const KNOWN[] = {"shape", "dtype", "indexed", NULL};
    TRY(count_children(d, tables, "tables", RECIPE_MAX_GROUPS, &r->n_groups));
    TRY(alloc_items(d, r->n_groups, sizeof *r->groups, &r->groups));
    size_t i = 0;
    for (const struct cJSON *c = tables->child; c != NULL; c = c->next, i++) {
        char name[32], path[DECODE_PATH_SIZE];
        struct format_group *g = &r->groups[i];
        snprintf(name, sizeof name, RECIPE_GROUP_PREFIX "%zu", i);
        if (strcmp(c->string, name) != 0)
            return err_set(d->err, ST_FORMAT, "%s: tables: expected \"%s\", found \"%.100s\"",
                           d->what, name, format_printable(c->string, path));
        snprintf(path, sizeof path, "tables.%s", name);
        if (!cJSON_IsObject(c))
            return expected(d, path, "an object", c);
        TRY(check_known(d, c, path, KNOWN));
        TRY(decode_pair(d, member(c, "shape"), path, &g->rows, &g->width));
        TRY(get_dtype(d, member(c, "dtype"), path, &g->dtype));
        const struct cJSON *indexed = member(c, "indexed");
        if (indexed != NULL && !cJSON_IsTrue(indexed))
            return expected(d, path, "\"indexed\": true or no such key", indexed);
        g->indexed = indexed != NULL;
    }
    return ST_OK;
}

static enum status decode_group_name(const struct decoder *d, const struct cJSON *item,
                                     const char *path, uint32_t *out)
{
    uint64_t group;
    const char *s = text_of(item);
    size_t n = strlen(RECIPE_GROUP_PREFIX);
    if (strncmp(s, RECIPE_GROUP_PREFIX, n) != 0 || !str_to_u64(s + n, &group) ||
        (s[n] == '0' && s[n + 1] != '\0') || group > RECIPE_MAX_GROUPS)
        return expected(d, path, "the name of a group", item);
    *out = (uint32_t)group;
    return ST_OK;
}

/* [[name, group, first column, width], ...] */
static enum status decode_outputs(const struct decoder *d, const struct cJSON *list,
                                  const char *path, struct format_placed **out, size_t *n_out)
{
    if (!cJSON_IsArray(list))
        return expected(d, path, "an array of [name, group, first column, width]", list);
    TRY(count_children(d, list, path, RECIPE_MAX_OUTPUTS, n_out));
    TRY(alloc_items(d, *n_out, sizeof **out, out));
    struct format_placed *p = *out;
    for (const struct cJSON *c = list->child; c != NULL; c = c->next, p++) {
        if (!cJSON_IsArray(c) || cJSON_GetArraySize(c) != 4)
            return expected(d, path, "[name, group, first column, width]", c);
        const struct cJSON *at = c->child;
        TRY(take_string(d, at, path, &p->name));
        at = at->next;
        TRY(decode_group_name(d, at, path, &p->group));
        at = at->next;
        TRY(take_u64(d, at, path, &p->column));
        TRY(take_u64(d, at->next, path, &p->width));
    }
    return ST_OK;
}

static enum status decode_profiles(const struct decoder *d, const struct cJSON *list,
                                   struct format_recipe *r)
{
    static const char *const KNOWN[] = {"max_rows", "evaluation_rows", "outputs", NULL};
    if (list == NULL)
        return ST_OK;
    if (!cJSON_IsArray(list) || list->child == NULL)
        return expected(d, "row_count_profiles", "an array of profiles", list);
    size_t n = 0;
    TRY(count_children(d, list, "row_count_profiles", RECIPE_MAX_PROFILES, &n));
    TRY(alloc_items(d, n, sizeof *r->profiles, &r->profiles));
    for (const struct cJSON *c = list->child; c != NULL; c = c->next) {
        char path[DECODE_PATH_SIZE];
        struct format_profile *p = &r->profiles[r->n_profiles];
        struct format_placed *outputs = NULL;
        size_t n_outputs = 0;
        snprintf(path, sizeof path, "row_count_profiles[%zu]", r->n_profiles);
        if (!cJSON_IsObject(c))
            return expected(d, path, "an object", c);
        TRY(check_known(d, c, path, KNOWN));
        TRY(get_u64(d, c, "max_rows", &p->max_rows));
        TRY(get_u64(d, c, "evaluation_rows", &p->evaluation_rows));
        enum status st = decode_outputs(d, member(c, "outputs"), path, &outputs, &n_outputs);
        if (st == ST_OK && n_outputs != r->n_outputs)
            st = err_set(d->err, ST_FORMAT, "%s: %s.outputs: %zu outputs, expected %zu as in bulk",
                         d->what, path, n_outputs, r->n_outputs);
        if (st != ST_OK) {
            for (size_t i = 0; outputs != NULL && i < n_outputs; i++)
                free(outputs[i].name);
            free(outputs);
            return st;
        }
        p->outputs = outputs;
        r->n_profiles++;
    }
    return ST_OK;
}

static enum status decode_projected(const struct decoder *d, const struct cJSON *root,
                                    struct format_recipe *r)
{
    static const char *const KNOWN[] = {"normalize_eps", "bias", "projection", NULL};
    const struct cJSON *o = member(root, "projected");
    if (r->kind != RECIPE_PROJECTED)
        return o == NULL ? ST_OK : expected(d, "projected", "no such key in this kind", o);
    TRY(get_object(d, root, "projected", &o));
    TRY(check_known(d, o, "projected", KNOWN));
    const struct cJSON *eps = member(o, "normalize_eps");
    if (!cJSON_IsNumber(eps))
        return expected(d, "projected.normalize_eps", "a number", eps);
    r->normalize_eps = eps->valuedouble;
    const struct cJSON *bias = member(o, "bias");
    if (bias == NULL)
        return expected(d, "projected.bias", "a dtype or null", bias);
    r->has_bias = !cJSON_IsNull(bias);
    if (r->has_bias)
        TRY(get_dtype(d, bias, "projected.bias", &r->bias_dtype));
    const struct cJSON *projection = member(o, "projection");
    if (projection == NULL)
        return expected(d, "projected.projection", "[rows, columns] or null", projection);
    r->retain_projection = !cJSON_IsNull(projection);
    uint64_t rows = 0;
    if (r->retain_projection)
        TRY(decode_pair(d, projection, "projected.projection", &rows, &r->projection_columns));
    if (r->n_outputs == 0 || r->outputs[0].group >= r->n_groups)
        return ST_OK; /* format_recipe_check names it */
    if (r->retain_projection && rows != r->outputs[0].width)
        return err_set(d->err, ST_FORMAT,
                       "%s: projected.projection: %" PRIu64 " rows, expected %" PRIu64
                       ", the width of \"z\"",
                       d->what, rows, r->outputs[0].width);
    if (!r->has_bias) /* the dtype of a retained projection */
        r->bias_dtype = r->groups[r->outputs[0].group].dtype;
    return ST_OK;
}

static enum status decode_fields(const struct decoder *d, const struct cJSON *root, const char *key,
                                 struct format_field **out, size_t *n_out)
{
    const struct cJSON *o;
    size_t n = 0;
    TRY(get_object(d, root, key, &o));
    TRY(count_children(d, o, key, RECIPE_MAX_FIELDS, &n));
    TRY(alloc_items(d, n, sizeof **out, out));
    for (const struct cJSON *c = o->child; c != NULL; c = c->next) {
        struct format_field *f = &(*out)[(*n_out)++];
        TRY(take_string(d, c, key, &f->value));
        f->name = str_dup(c->string);
        if (f->name == NULL)
            return err_nomem(d->err, strlen(c->string));
    }
    return ST_OK;
}

/* The object as canonical text. */
static enum status decode_text(const struct decoder *d, const struct cJSON *root, const char *key,
                               char **out)
{
    const struct cJSON *o;
    struct format_writer w = {0};
    TRY(get_object(d, root, key, &o));
    recipe_write_json(&w, NULL, o);
    bytes_put_u8(&w.out, 0);
    if (w.out.failed) {
        bytes_free(&w.out);
        return err_nomem(d->err, w.out.size);
    }
    *out = str_dup((const char *)w.out.data);
    bytes_free(&w.out);
    return *out != NULL ? ST_OK : err_nomem(d->err, 1);
}

static enum status decode_payload(const struct decoder *d, const struct cJSON *root,
                                  struct format_recipe *r)
{
    static const char *const KNOWN[] = {"file", "sha256", "bytes", NULL};
    const struct cJSON *o;
    TRY(get_object(d, root, "payload", &o));
    TRY(check_known(d, o, "payload", KNOWN));
    TRY(get_string(d, o, "file", &r->payload_file));
    TRY(get_string(d, o, "sha256", &r->payload_sha256));
    return get_u64(d, o, "bytes", &r->payload_bytes);
}

/* One of two words. */
static enum status get_choice(const struct decoder *d, const struct cJSON *root, const char *key,
                              const char *no, const char *yes, bool *out)
{
    char wanted[DECODE_PATH_SIZE];
    const struct cJSON *item = member(root, key);
    const char *s = text_of(item);
    *out = strcmp(s, yes) == 0;
    if (*out || strcmp(s, no) == 0)
        return ST_OK;
    snprintf(wanted, sizeof wanted, "\"%s\" or \"%s\"", no, yes);
    return expected(d, key, wanted, item);
}

static enum status decode_kind(const struct decoder *d, const struct cJSON *root,
                               struct format_recipe *r)
{
    const struct cJSON *kind = member(root, "kind");
    const char *s = text_of(kind);
    int i = RECIPE_LOOKUP;
    while (i <= RECIPE_PROJECTED && strcmp(s, format_recipe_kind_name((enum format_recipe_kind)i)))
        i++;
    if (i > RECIPE_PROJECTED)
        return expected(d, "kind", "\"lookup\", \"fanout\" or \"projected\"", kind);
    r->kind = (enum format_recipe_kind)i;
    uint64_t version;
    TRY(get_u64(d, root, "version", &version));
    if (version != 1 && version != 2)
        return expected(d, "version", "1 or 2, newest known 2", member(root, "version"));
    r->version = (unsigned)version;
    const struct cJSON *contract = member(root, "input_contract");
    if (strcmp(text_of(contract), RECIPE_CONTRACT) != 0)
        return expected(d, "input_contract", "\"" RECIPE_CONTRACT "\"", contract);
    return ST_OK;
}

static enum status decode_root(const struct decoder *d, const struct cJSON *root,
                               struct format_recipe *r)
{
    static const char *const KNOWN[] = {"kind",
                                        "version",
                                        "block",
                                        "input_contract",
                                        "num_embeddings",
                                        "rows_in_checkpoint",
                                        "ids",
                                        "tables",
                                        "outputs",
                                        "row_count_profiles",
                                        "projected",
                                        "payload",
                                        "storage_policy",
                                        "arithmetic",
                                        "environment",
                                        "evaluator",
                                        "provenance",
                                        "thresholds",
                                        "validation",
                                        "storage",
                                        "seal",
                                        NULL};
    const struct cJSON *tables;
    bool correctly_rounded;
    if (!cJSON_IsObject(root))
        return expected(d, "document", "an object", root);
    TRY(decode_kind(d, root, r));
    TRY(check_known(d, root, "", KNOWN));
    TRY(get_string(d, root, "block", &r->block));
    TRY(get_u64(d, root, "num_embeddings", &r->num_embeddings));
    TRY(get_u64(d, root, "rows_in_checkpoint", &r->rows_in_checkpoint));
    const struct cJSON *ids = member(root, "ids");
    r->has_ids = !cJSON_IsNull(ids);
    if (r->has_ids)
        TRY(take_u64(d, ids, "ids", &r->n_ids));
    TRY(get_object(d, root, "tables", &tables));
    TRY(decode_tables(d, tables, r));
    TRY(decode_outputs(d, member(root, "outputs"), "outputs", &r->outputs, &r->n_outputs));
    TRY(decode_profiles(d, member(root, "row_count_profiles"), r));
    TRY(decode_projected(d, root, r));
    TRY(decode_payload(d, root, r));
    TRY(get_choice(d, root, "storage_policy", "must_shrink", "may_grow", &r->may_grow));
    TRY(get_choice(d, root, "arithmetic", "library", "correctly_rounded", &correctly_rounded));
    TRY(get_string(d, root, "arithmetic", &r->arithmetic));
    const char *key = correctly_rounded ? "evaluator" : "environment";
    const char *other = correctly_rounded ? "environment" : "evaluator";
    if (member(root, other) != NULL)
        return expected(d, other, "no such key under this arithmetic", member(root, other));
    TRY(decode_fields(d, root, key, &r->environment, &r->n_environment));
    TRY(decode_fields(d, root, "provenance", &r->provenance, &r->n_provenance));
    TRY(decode_fields(d, root, "thresholds", &r->thresholds, &r->n_thresholds));
    TRY(decode_text(d, root, "validation", &r->validation_json));
    TRY(decode_text(d, root, "storage", &r->storage_json));
    return get_string(d, root, "seal", &r->seal);
}

enum status format_recipe_decode(const char *what, const void *text, size_t size,
                                 struct format_recipe **out, struct err *err)
{
    const struct decoder d = {.what = what, .err = err};
    struct cJSON *root = NULL;
    *out = NULL;
    TRY(format_json_parse(what, text, size, &root, err));
    struct format_recipe *r = calloc(1, sizeof *r);
    enum status st = r != NULL ? decode_root(&d, root, r) : err_nomem(err, sizeof *r);
    if (st == ST_OK)
        st = format_recipe_check(r, what, err);
    format_json_free(&root);
    if (st == ST_OK)
        *out = r;
    else
        format_recipe_free(&r);
    return st;
}
