/* SPDX-License-Identifier: Apache-2.0 */
/* The rules of a recipe that stand above the grammar of recipe.json. */
#include "formats/recipe.h"
#include "formats/recipe_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status check_fields(const char *what, const char *key, const struct format_field *f,
                                size_t n, struct err *err)
{
    if (n == 0)
        return ST_OK;
    if (n > RECIPE_MAX_FIELDS)
        return err_set(err, ST_FORMAT, "%s: %s: %zu fields, at most %d are allowed", what, key, n,
                       RECIPE_MAX_FIELDS);
    const char **names = calloc(n, sizeof *names);
    if (names == NULL)
        return err_nomem(err, n * sizeof *names);
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        names[i] = f[i].name;
        if (f[i].name == NULL || f[i].value == NULL)
            st = err_set(err, ST_FORMAT, "%s: %s: field %zu has no name or value", what, key, i);
    }
    if (st == ST_OK)
        qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 1; i < n && st == ST_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            st = err_set(err, ST_FORMAT, "%s: %s: duplicate field \"%.200s\"", what, key, names[i]);
    free(names);
    return st;
}

static enum status check_groups(const struct format_recipe *r, const char *what, struct err *err)
{
    uint64_t rows = format_recipe_rows(r);
    if (r->n_groups == 0 || r->n_groups > RECIPE_MAX_GROUPS)
        return err_set(err, ST_FORMAT, "%s: tables: %zu groups, expected 1 to %d", what,
                       r->n_groups, RECIPE_MAX_GROUPS);
    for (size_t i = 0; i < r->n_groups; i++) {
        const struct format_group *g = &r->groups[i];
        uint64_t row_bytes, bytes;
        if (!dtype_is_computable(g->dtype))
            return err_set(err, ST_FORMAT,
                           "%s: tables.group_%zu.dtype: expected F64, F32, F16 "
                           "or BF16, found %s",
                           what, i, dtype_name(g->dtype));
        if (g->width == 0 || !mul_u64(g->width, dtype_size(g->dtype), &row_bytes) ||
            !mul_u64(row_bytes, g->rows, &bytes) || bytes > (uint64_t)INT64_MAX)
            return err_set(err, ST_FORMAT,
                           "%s: tables.group_%zu.shape: [%" PRIu64 ", %" PRIu64
                           "] is empty or overflows",
                           what, i, g->rows, g->width);
        bool good = g->indexed ? g->rows >= 2 && g->rows < rows : g->rows == 1 || g->rows == rows;
        if (!good)
            return err_set(err, ST_FORMAT,
                           "%s: tables.group_%zu.shape: %" PRIu64 " rows, expected "
                           "%s of %" PRIu64,
                           what, i, g->rows, g->indexed ? "from 2 to fewer than all" : "1 or all",
                           rows);
    }
    return ST_OK;
}

static enum status check_placed(const struct format_recipe *r, const char *what, const char *route,
                                const struct format_placed *p, bool *used, struct err *err)
{
    for (size_t i = 0; i < r->n_outputs; i++) {
        const struct format_placed *bulk = &r->outputs[i];
        if (p[i].name == NULL || !str_is_name(p[i].name))
            return err_set(err, ST_FORMAT,
                           "%s: %s: output %zu is not a name of "
                           "[A-Za-z0-9_.-]",
                           what, route, i);
        if (strcmp(p[i].name, bulk->name) != 0)
            return err_set(err, ST_FORMAT,
                           "%s: %s: output %zu is \"%s\", expected \"%s\" as in "
                           "bulk",
                           what, route, i, p[i].name, bulk->name);
        if (p[i].group >= r->n_groups)
            return err_set(err, ST_FORMAT,
                           "%s: %s: output \"%s\" lies in group_%" PRIu32
                           ", but there are %zu groups",
                           what, route, p[i].name, p[i].group, r->n_groups);
        const struct format_group *g = &r->groups[p[i].group];
        if (p[i].width == 0 || p[i].width > g->width || p[i].column > g->width - p[i].width)
            return err_set(err, ST_FORMAT,
                           "%s: %s: output \"%s\": columns %" PRIu64 " to +%" PRIu64
                           " do not lie in group_%" PRIu32 " of width %" PRIu64,
                           what, route, p[i].name, p[i].column, p[i].width, p[i].group, g->width);
        if (p[i].width != bulk->width || g->dtype != r->groups[bulk->group].dtype)
            return err_set(err, ST_FORMAT,
                           "%s: %s: output \"%s\": %" PRIu64 " x %s, expected %" PRIu64
                           " x %s as in bulk",
                           what, route, p[i].name, p[i].width, dtype_name(g->dtype), bulk->width,
                           dtype_name(r->groups[bulk->group].dtype));
        used[p[i].group] = true;
    }
    return ST_OK;
}

static enum status check_names(const struct format_recipe *r, const char *what, struct err *err)
{
    const char **names = calloc(r->n_outputs, sizeof *names);
    if (names == NULL)
        return err_nomem(err, r->n_outputs * sizeof *names);
    for (size_t i = 0; i < r->n_outputs; i++)
        names[i] = r->outputs[i].name;
    qsort(names, r->n_outputs, sizeof *names, compare_names);
    enum status st = ST_OK;
    for (size_t i = 1; i < r->n_outputs && st == ST_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            st = err_set(err, ST_FORMAT, "%s: outputs: \"%s\" twice", what, names[i]);
    free(names);
    return st;
}

static enum status check_routes(const struct format_recipe *r, const char *what, struct err *err)
{
    bool *used = calloc(r->n_groups, sizeof *used);
    if (used == NULL)
        return err_nomem(err, r->n_groups);
    enum status st = check_placed(r, what, "outputs", r->outputs, used, err);
    if (st == ST_OK)
        st = check_names(r, what, err);
    for (size_t i = 0; i < r->n_profiles && st == ST_OK; i++) {
        const struct format_profile *p = &r->profiles[i];
        if (p->evaluation_rows == 0 || p->max_rows == 0 ||
            (i > 0 && p->max_rows <= r->profiles[i - 1].max_rows))
            st = err_set(err, ST_FORMAT,
                         "%s: row_count_profiles[%zu]: max_rows %" PRIu64
                         " and evaluation_rows %" PRIu64 ": both must be 1 or more and max_rows "
                         "grow",
                         what, i, p->max_rows, p->evaluation_rows);
        if (st == ST_OK)
            st = check_placed(r, what, "row_count_profiles", p->outputs, used, err);
    }
    for (size_t i = 0; i < r->n_groups && st == ST_OK; i++)
        if (!used[i])
            st = err_set(err, ST_FORMAT, "%s: tables.group_%zu: no output uses it", what, i);
    free(used);
    return st;
}

static enum status check_projected(const struct format_recipe *r, const char *what, struct err *err)
{
    if (r->kind != RECIPE_PROJECTED) {
        if (r->has_bias || r->retain_projection)
            return err_set(err, ST_FORMAT, "%s: bias or projection in a %s recipe", what,
                           format_recipe_kind_name(r->kind));
        return ST_OK;
    }
    if (r->n_outputs != 2 || strcmp(r->outputs[0].name, "z") != 0 ||
        strcmp(r->outputs[1].name, "r") != 0 || r->outputs[1].width != 1)
        return err_set(err, ST_FORMAT,
                       "%s: outputs: a projected recipe stores \"z\" and \"r\" of "
                       "width 1",
                       what);
    enum dtype z = r->groups[r->outputs[0].group].dtype;
    if (r->groups[r->outputs[1].group].dtype != z)
        return err_set(err, ST_FORMAT, "%s: outputs: \"r\" is not %s as \"z\"", what,
                       dtype_name(z));
    if ((r->has_bias || r->retain_projection) && r->bias_dtype != z)
        return err_set(err, ST_FORMAT, "%s: projected.bias: expected %s as \"z\", found %s", what,
                       dtype_name(z), dtype_name(r->bias_dtype));
    uint64_t n;
    if (r->retain_projection &&
        (r->projection_columns == 0 || !mul_u64(r->projection_columns, r->outputs[0].width, &n) ||
         n > (uint64_t)INT64_MAX / 8))
        return err_set(err, ST_FORMAT, "%s: projected.projection: %" PRIu64 " columns", what,
                       r->projection_columns);
    if (!isfinite(r->normalize_eps) || r->normalize_eps < 0)
        return err_set(err, ST_FORMAT,
                       "%s: projected.normalize_eps: expected a finite number of "
                       "0 or more",
                       what);
    return ST_OK;
}

static bool is_hex(const char *s, size_t n)
{
    return strlen(s) == n && strspn(s, "0123456789abcdef") == n;
}

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static enum status check_payload(const struct format_recipe *r, const char *what, struct err *err)
{
    if (r->payload_file == NULL || !str_is_name(r->payload_file) ||
        !(ends_in(r->payload_file, ".safetensors") || ends_in(r->payload_file, ".ttz")))
        return err_set(err, ST_FORMAT,
                       "%s: payload.file: expected a plain name ending in "
                       ".safetensors or .ttz, found \"%.100s\"",
                       what, r->payload_file != NULL ? r->payload_file : "");
    if (r->payload_sha256 == NULL || !is_hex(r->payload_sha256, SHA256_HEX_SIZE - 1))
        return err_set(err, ST_FORMAT, "%s: payload.sha256: expected 64 hexadecimal digits", what);
    if (r->seal != NULL && r->seal[0] != '\0' && !is_hex(r->seal, SHA256_HEX_SIZE - 1))
        return err_set(err, ST_FORMAT, "%s: seal: expected 64 hexadecimal digits", what);
    if (r->arithmetic == NULL ||
        (strcmp(r->arithmetic, "library") != 0 && strcmp(r->arithmetic, "correctly_rounded") != 0))
        return err_set(err, ST_FORMAT,
                       "%s: arithmetic: expected \"library\" or "
                       "\"correctly_rounded\", found \"%.100s\"",
                       what, r->arithmetic != NULL ? r->arithmetic : "");
    return ST_OK;
}

enum status format_recipe_check(const struct format_recipe *r, const char *what, struct err *err)
{
    unsigned version = r->n_profiles > 0 ? 2 : 1;
    if (r->version != version)
        return err_set(err, ST_FORMAT, "%s: version: expected %u %s row-count profiles, found %u",
                       what, version, version == 2 ? "with" : "without", r->version);
    if (r->block == NULL || !str_is_name(r->block))
        return err_set(err, ST_FORMAT, "%s: block: not a name of [A-Za-z0-9_.-]", what);
    if (r->num_embeddings == 0 || r->num_embeddings > ((uint64_t)1 << 53))
        return err_set(err, ST_FORMAT, "%s: num_embeddings: %" PRIu64 " is out of range", what,
                       r->num_embeddings);
    if (r->rows_in_checkpoint < r->num_embeddings)
        return err_set(err, ST_FORMAT,
                       "%s: rows_in_checkpoint: %" PRIu64 " is fewer than num_embeddings %" PRIu64,
                       what, r->rows_in_checkpoint, r->num_embeddings);
    if (r->has_ids ? r->n_ids == 0 || r->n_ids > r->num_embeddings : r->n_ids != 0)
        return err_set(err, ST_FORMAT, "%s: ids: %" PRIu64 " is out of range", what, r->n_ids);
    if (r->n_outputs == 0 || r->n_outputs > RECIPE_MAX_OUTPUTS ||
        (r->kind == RECIPE_LOOKUP && r->n_outputs != 1))
        return err_set(err, ST_FORMAT, "%s: outputs: %zu of them in a %s recipe", what,
                       r->n_outputs, format_recipe_kind_name(r->kind));
    if (r->n_profiles > RECIPE_MAX_PROFILES)
        return err_set(err, ST_FORMAT, "%s: row_count_profiles: %zu, at most %d", what,
                       r->n_profiles, RECIPE_MAX_PROFILES);
    TRY(check_groups(r, what, err));
    TRY(check_routes(r, what, err));
    TRY(check_projected(r, what, err));
    TRY(check_payload(r, what, err));
    TRY(check_fields(what, strcmp(r->arithmetic, "library") == 0 ? "environment" : "evaluator",
                     r->environment, r->n_environment, err));
    TRY(check_fields(what, "provenance", r->provenance, r->n_provenance, err));
    return check_fields(what, "thresholds", r->thresholds, r->n_thresholds, err);
}
