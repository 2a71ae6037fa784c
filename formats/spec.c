/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/spec_internal.h"
#include "formats/formats_internal.h"

#include <stdlib.h>
#include <string.h>

enum { SPEC_MAX_BYTES = 64 * 1024 * 1024, SPEC_MAX_PROFILES = 64, SPEC_MAX_ROWS = 1 << 24 };

static const struct spec_path root = {0};

void format_spec_free(struct format_spec **s)
{
    if (s == NULL || *s == NULL)
        return;
    struct format_spec *spec = *s;
    for (size_t i = 0; i < spec->n_blocks; i++)
        graph_block_free(&spec->blocks[i]);
    for (size_t i = 0; i < spec->n_provenance; i++) {
        free(spec->provenance[i].name);
        free(spec->provenance[i].value);
    }
    free(spec->provenance);
    for (size_t i = 0; i < spec->n_aliases; i++) {
        free(spec->aliases[i].name);
        free(spec->aliases[i].target);
    }
    free(spec->path);
    free(spec->checkpoint_path);
    free(spec->blocks);
    free(spec->profiles);
    free(spec->aliases);
    free(spec->ids_path);
    format_json_free(&spec->graph);
    format_json_free(&spec->examples);
    free(spec);
    *s = NULL;
}

/* ---- parts of the document ----------------------------------------------------------------- */

static enum status read_contract(const struct spec_reader *r, const cJSON *json)
{
    const struct spec_path version_at = {&root, "tokentab", 0}, mode_at = {&root, "mode", 0},
                           contract_at = {&root, "input_contract", 0};
    const cJSON *version = spec_get(json, "tokentab");
    const char *mode = NULL;
    unsigned contract = 0;
    if (version == NULL)
        return spec_missing(r, &root, "tokentab", "a spec; this version reads 1");
    if (!cJSON_IsNumber(version) || version->valuedouble != 1)
        return spec_expected(r, &version_at, version, "1");
    TRY(spec_string(r, &root, json, "mode", "a spec; \"eval\"", &mode));
    char shown[FORMAT_PRINTABLE_SIZE];
    if (strcmp(mode, "eval") != 0)
        return spec_fail(r, ST_STRUCTURE, &mode_at,
                         "expected \"eval\", found \"%s\": a model in training mode (dropout on, "
                         "statistics of the batch) is not a function of the token",
                         format_printable(mode, shown));
    if (spec_get(json, "input_contract") == NULL)
        return spec_missing(r, &root, "input_contract", "a spec; \"token_indices_only\"");
    return spec_choice(r, &contract_at, spec_get(json, "input_contract"), "token_indices_only",
                       &contract);
}

/* A path of the spec, joined with the spec's folder. */
static enum status read_path(const struct spec_reader *r, const cJSON *json, const char *key,
                             const char *what, char **out)
{
    const char *name = NULL;
    TRY(spec_string(r, &root, json, key, what, &name));
    if (name == NULL)
        return ST_OK;
    char *dir = path_dir(r->spec->path);
    *out = dir == NULL ? NULL : path_join(strcmp(dir, ".") == 0 ? NULL : dir, name);
    free(dir);
    return *out != NULL ? ST_OK : err_nomem(r->err, strlen(name) + 1);
}

static enum status read_aliases(const struct spec_reader *r, const cJSON *document,
                                struct format_spec *spec)
{
    const struct spec_path at = {&root, "aliases", 0};
    const cJSON *json = spec_get(document, "aliases");
    if (json == NULL)
        return ST_OK;
    if (!cJSON_IsObject(json))
        return spec_expected(r, &at, json, "an object {name: name}");
    void *memory;
    TRY(spec_alloc(r, (size_t)cJSON_GetArraySize(json), sizeof *spec->aliases, &memory));
    spec->aliases = memory;
    for (const cJSON *item = json->child; item != NULL; item = item->next) {
        const struct spec_path here = {&at, item->string, 0};
        const char *target = cJSON_IsString(item) ? item->valuestring : NULL;
        if (cJSON_IsObject(item)) {
            TRY(SPEC_OBJECT(r, &here, item, "alias"));
            TRY(spec_string(r, &here, item, "alias", "an alias", &target));
        }
        if (target == NULL || target[0] == '\0' || item->string[0] == '\0')
            return spec_expected(r, &here, item, "the name of a tensor or {\"alias\": name}");
        struct format_alias *alias = &spec->aliases[spec->n_aliases++];
        TRY(spec_dup(r, item->string, &alias->name));
        TRY(spec_dup(r, target, &alias->target));
    }
    for (size_t i = 0; i < spec->n_aliases; i++) {
        const struct spec_path here = {&at, spec->aliases[i].name, 0};
        char shown[FORMAT_PRINTABLE_SIZE];
        for (size_t j = 0; j < spec->n_aliases; j++)
            if (strcmp(spec->aliases[j].name, spec->aliases[i].target) == 0)
                return spec_fail(r, ST_SPEC, &here,
                                 "%s is itself an alias; name the tensor that is stored",
                                 format_printable(spec->aliases[i].target, shown));
    }
    return ST_OK;
}

static enum status read_profiles(const struct spec_reader *r, const cJSON *document,
                                 struct format_spec *spec)
{
    const struct spec_path at = {&root, "row_count_profiles", 0};
    const cJSON *json = spec_get(document, "row_count_profiles");
    if (json == NULL)
        return ST_OK;
    TRY(spec_array(r, &at, json));
    int n = cJSON_GetArraySize(json);
    if (n > SPEC_MAX_PROFILES)
        return spec_fail(r, ST_SPEC, &at, "expected at most %d profiles, found %d",
                         SPEC_MAX_PROFILES, n);
    void *memory;
    TRY(spec_alloc(r, (size_t)n, sizeof *spec->profiles, &memory));
    spec->profiles = memory;
    uint64_t above = 0;
    for (const cJSON *item = json->child; item != NULL; item = item->next) {
        const struct spec_path here = {&at, NULL, spec->n_profiles};
        const struct spec_path max_at = {&here, "max_rows", 0};
        struct format_row_profile p = {0};
        TRY(SPEC_OBJECT(r, &here, item, "max_rows", "evaluation_rows"));
        if (spec_get(item, "max_rows") == NULL)
            return spec_missing(r, &here, "max_rows", "a profile");
        if (spec_get(item, "evaluation_rows") == NULL)
            return spec_missing(r, &here, "evaluation_rows", "a profile");
        TRY(spec_u64(r, &here, item, "max_rows", (struct spec_range){1, SPEC_MAX_ROWS},
                     &p.max_rows));
        if (p.max_rows <= above)
            return spec_fail(r, ST_SPEC, &max_at,
                             "expected more than %llu (max_rows grow), found %llu",
                             (unsigned long long)above, (unsigned long long)p.max_rows);
        TRY(spec_u64(r, &here, item, "evaluation_rows", (struct spec_range){1, p.max_rows},
                     &p.evaluation_rows));
        above = p.max_rows;
        spec->profiles[spec->n_profiles++] = p;
    }
    return ST_OK;
}

static enum status read_settings(const struct spec_reader *r, const cJSON *json,
                                 struct format_spec *spec)
{
    const struct spec_path arithmetic_at = {&root, "arithmetic", 0},
                           storage_at = {&root, "storage", 0},
                           tolerance_at = {&root, "tolerance", 0};
    const struct spec_range rows = {1, SPEC_MAX_ROWS};
    const cJSON *tolerance = spec_get(json, "tolerance");
    unsigned arithmetic = 0, storage = 0;
    TRY(spec_u64(r, &root, json, "bulk_rows", rows, &spec->bulk_rows));
    TRY(spec_u64(r, &root, json, "validation_rows", rows, &spec->validation_rows));
    if (tolerance != NULL) {
        TRY(SPEC_OBJECT(r, &tolerance_at, tolerance, "absolute", "relative"));
        TRY(spec_nonnegative(r, &tolerance_at, tolerance, "absolute", NULL,
                             &spec->tolerance_absolute));
        TRY(spec_nonnegative(r, &tolerance_at, tolerance, "relative", NULL,
                             &spec->tolerance_relative));
    }
    if (spec_get(json, "arithmetic") != NULL)
        TRY(spec_choice(r, &arithmetic_at, spec_get(json, "arithmetic"),
                        "library|correctly_rounded", &arithmetic));
    if (spec_get(json, "storage") != NULL)
        TRY(spec_choice(r, &storage_at, spec_get(json, "storage"), "must_shrink|may_grow",
                        &storage));
    spec->correctly_rounded = arithmetic == 1;
    spec->storage = storage == 0 ? STORAGE_MUST_SHRINK : STORAGE_MAY_GROW;
    return spec_u64(r, &root, json, "vocab", (struct spec_range){1, INT64_MAX}, &spec->vocab);
}

static enum status read_blocks(const struct spec_reader *r, const cJSON *document,
                               struct format_spec *spec)
{
    const struct spec_path block_at = {&root, "block", 0}, blocks_at = {&root, "blocks", 0};
    const cJSON *block = spec_get(document, "block"), *blocks = spec_get(document, "blocks");
    void *memory;
    if (block != NULL) {
        TRY(spec_alloc(r, 1, sizeof *spec->blocks, &memory));
        spec->blocks = memory;
        spec->n_blocks = 1;
        return spec_block(r, &block_at, block, &spec->blocks[0]);
    }
    TRY(spec_array(r, &blocks_at, blocks));
    if (blocks->child == NULL)
        return spec_fail(r, ST_SPEC, &blocks_at, "expected at least one block, found none");
    TRY(spec_alloc(r, (size_t)cJSON_GetArraySize(blocks), sizeof *spec->blocks, &memory));
    spec->blocks = memory;
    for (const cJSON *item = blocks->child; item != NULL; item = item->next) {
        const struct spec_path here = {&blocks_at, NULL, spec->n_blocks};
        struct graph_block *b = &spec->blocks[spec->n_blocks++];
        TRY(spec_block(r, &here, item, b));
        const struct spec_path name_at = {&here, "name", 0};
        for (struct graph_block *other = spec->blocks; other < b; other++)
            if (strcmp(other->name, b->name) == 0)
                return spec_fail(r, ST_SPEC, &name_at, "%s is also the name of %s", b->name,
                                 other->where);
    }
    return ST_OK;
}

/* A name that nothing reads is a typing error that would stay hidden, its target unchecked. */
static enum status check_aliases_used(const struct spec_reader *r)
{
    const struct spec_path at = {&root, "aliases", 0};
    for (size_t i = 0; i < r->spec->n_aliases; i++) {
        const struct format_alias *alias = &r->spec->aliases[i];
        const struct spec_path here = {&at, alias->name, 0};
        char shown[FORMAT_PRINTABLE_SIZE];
        if (!alias->used)
            return spec_fail(r, ST_SPEC, &here,
                             "stands for %s, but no weight of the spec has this name",
                             format_printable(alias->target, shown));
    }
    return ST_OK;
}

static bool has_lookup(const struct graph_model *m)
{
    for (size_t i = 0; i < m->graph.n_nodes; i++)
        if (m->graph.nodes[i].op == OP_LOOKUP)
            return true;
    return false;
}

/* Exactly one of block, blocks, graph.  graph and examples move from the document to the spec. */
static enum status read_content(const struct spec_reader *r, cJSON *json, struct format_spec *spec)
{
    static const char *const forms[] = {"block", "blocks", "graph"};
    size_t n = 0;
    for (size_t i = 0; i < 3; i++)
        n += spec_get(json, forms[i]) != NULL;
    if (n != 1)
        return spec_fail(r, ST_SPEC, &root,
                         "expected exactly one of \"block\", \"blocks\" and \"graph\", found %zu",
                         n);
    const struct spec_path examples_at = {&root, "examples", 0};
    const cJSON *examples = spec_get(json, "examples");
    if (examples != NULL && !cJSON_IsString(examples) && !cJSON_IsArray(examples) &&
        !cJSON_IsObject(examples))
        return spec_expected(r, &examples_at, examples, "a path, a list or an object");
    spec->examples = cJSON_DetachItemFromObjectCaseSensitive(json, "examples");
    if (spec_get(json, "graph") == NULL) {
        TRY(read_blocks(r, json, spec));
        return check_aliases_used(r);
    }
    spec->graph = cJSON_DetachItemFromObjectCaseSensitive(json, "graph");
    struct graph_model *model = NULL; /* checked here, built again by who needs it */
    enum status st = format_spec_graph(spec, &model, r->err);
    /* A rewritten model keeps the aliases of nodes that its tables took the place of. */
    if (st == ST_OK && !has_lookup(model))
        st = check_aliases_used(r);
    graph_model_free(&model);
    return st;
}

/* Where the files came from, as import-hf writes it: text for people, carried into the recipe. */
static enum status read_provenance(const struct spec_reader *r, const cJSON *document,
                                   struct format_spec *spec)
{
    const struct spec_path at = {&root, "provenance", 0};
    const cJSON *json = spec_get(document, "provenance");
    void *memory = NULL;
    if (json == NULL)
        return ST_OK;
    if (!cJSON_IsObject(json))
        return spec_expected(r, &at, json, "an object {name: text}");
    TRY(spec_alloc(r, (size_t)cJSON_GetArraySize(json), sizeof *spec->provenance, &memory));
    spec->provenance = memory;
    for (const cJSON *item = json->child; item != NULL; item = item->next) {
        const struct spec_path here = {&at, item->string, 0};
        if (!cJSON_IsString(item))
            return spec_expected(r, &here, item, "a string");
        struct format_field *f = &spec->provenance[spec->n_provenance++];
        *f = (struct format_field){.name = str_dup(item->string),
                                   .value = str_dup(item->valuestring)};
        if (f->name == NULL || f->value == NULL)
            return err_nomem(r->err, 1);
    }
    return ST_OK;
}

static enum status read_document(const struct spec_reader *r, cJSON *json, struct format_spec *spec)
{
    TRY(SPEC_OBJECT(r, &root, json, "tokentab", "checkpoint", "mode", "input_contract", "block",
                    "blocks", "graph", "examples", "row_count_profiles", "bulk_rows",
                    "validation_rows", "tolerance", "arithmetic", "storage", "aliases", "vocab",
                    "ids", "provenance"));
    TRY(read_contract(r, json));
    TRY(read_provenance(r, json, spec));
    TRY(read_path(r, json, "checkpoint", "a spec", &spec->checkpoint_path));
    TRY(read_path(r, json, "ids", NULL, &spec->ids_path));
    TRY(read_settings(r, json, spec));
    TRY(read_profiles(r, json, spec));
    TRY(read_aliases(r, json, spec));
    return read_content(r, json, spec);
}

enum status format_spec_read(const char *path, struct format_spec **out, struct err *err)
{
    struct cJSON *json = NULL;
    void *memory = NULL;
    *out = NULL;
    TRY(format_json_read(path, SPEC_MAX_BYTES, &json, err));
    enum status st = mem_calloc(1, sizeof(struct format_spec), &memory, err);
    struct format_spec *spec = memory;
    if (st == ST_OK) {
        spec->bulk_rows = 1024;
        spec->validation_rows = 257;
        spec->tolerance_absolute = 1e-5;
        spec->tolerance_relative = 1e-5;
        spec->path = str_dup(path);
        st = spec->path == NULL ? err_nomem(err, strlen(path) + 1) : ST_OK;
    }
    if (st == ST_OK) {
        const struct spec_reader r = {spec, err};
        st = read_document(&r, json, spec);
    }
    format_json_free(&json);
    if (st != ST_OK)
        format_spec_free(&spec);
    *out = spec;
    return st;
}

/* ---- against a checkpoint ------------------------------------------------------------------ */

enum status format_spec_resolve(struct format_spec *s, graph_tensor_fn find, void *ctx,
                                struct err *err)
{
    const struct spec_reader r = {s, err};
    const struct spec_path vocab_at = {&root, "vocab", 0};
    for (size_t i = 0; i < s->n_blocks; i++) {
        struct graph_block *b = &s->blocks[i];
        enum status st = graph_block_resolve(b, find, ctx, err);
        if (st == ST_OK)
            st = graph_block_audit(b, err);
        if (st != ST_OK) {
            err_prefix(err, "%s", s->path);
            return st;
        }
        if (s->vocab > b->rows_in_checkpoint)
            return spec_fail(&r, ST_SPEC, &vocab_at, "%llu, but the embedding of %s has %llu rows",
                             (unsigned long long)s->vocab, b->where,
                             (unsigned long long)b->rows_in_checkpoint);
    }
    return ST_OK;
}
