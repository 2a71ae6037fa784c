/* SPDX-License-Identifier: Apache-2.0 */
/* A compressme artifact as a recipe. */
#include "formats/foreign.h"
#include "formats/foreign_internal.h"
#include "formats/formats_internal.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const FOREIGN_EMPTY_LISTS[] = {"rewrites",
                                           "attention_rewrites",
                                           "normalization_rewrites",
                                           "constant_embedding_rewrites",
                                           "packed_embedding_rewrites",
                                           "adapters",
                                           NULL};

static const size_t MANIFEST_MAX = (size_t)16 << 20;
static const size_t IMPORT_WINDOW = (size_t)1 << 20;
enum { IMPORT_MAX_ITEMS = 65536 };

struct importing {
    const char *what; /* path of the manifest, for messages */
    const char *dir;
    struct cJSON *manifest;
    const struct cJSON *entry;  /* the block's recipe */
    const char *path;           /* its module path */
    const char *block, *output; /* what tokentab called them, or "imported" and "output" */
    struct format_recipe *r;
    char *payload;     /* the safetensors file to read */
    bool payload_made; /* it is ours, to be removed */
    struct format_safetensors *f;
    struct err *err;
};

/* ---- JSON ---------------------------------------------------------------------------------- */

static enum status expected(const struct importing *m, const char *key, const char *wanted,
                            const struct cJSON *found)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    return err_set(m->err, ST_FORMAT, "%s: %s: expected %s, found %s", m->what, key, wanted,
                   format_json_shown(found, shown));
}

static const struct cJSON *member(const struct cJSON *object, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

static enum status get_u64(const struct importing *m, const struct cJSON *o, const char *key,
                           uint64_t *out)
{
    return format_json_u64(member(o, key), out)
               ? ST_OK
               : expected(m, key, "a whole number", member(o, key));
}

static enum status get_dtype(const struct importing *m, const struct cJSON *item, enum dtype *out)
{
    static const enum dtype ALL[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    for (size_t i = 0; i < 4 && cJSON_IsString(item); i++)
        if (strcmp(item->valuestring, foreign_dtype(ALL[i])) == 0) {
            *out = ALL[i];
            return ST_OK;
        }
    return expected(m, "dtype", "float64, float32, float16 or bfloat16", item);
}

static enum status allocate(const struct importing *m, size_t n, size_t size, void *out)
{
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL)
        return err_nomem(m->err, n * size);
    memcpy(out, &p, sizeof p);
    return ST_OK;
}

static enum status copy_text(const struct importing *m, const char *text, char **out)
{
    free(*out);
    *out = str_dup(text);
    return *out != NULL ? ST_OK : err_nomem(m->err, strlen(text));
}

/* ---- manifest ------------------------------------------------------------------------------ */

/* What would say that the model is in training, where dropout and its like are no identities. */
static enum status refuse_training(const struct importing *m, const struct cJSON *object,
                                   const char *key)
{
    const struct cJSON *training = member(object, "training");
    if (training == NULL || cJSON_IsFalse(training))
        return ST_OK;
    if (!cJSON_IsTrue(training))
        return expected(m, key, "true or false", training);
    return err_set(m->err, ST_STRUCTURE, "%s: %s: true; only a model in evaluation is read",
                   m->what, key);
}

/* Nothing but finite blocks. */
static enum status check_manifest(const struct importing *m)
{
    uint64_t version;
    TRY(get_u64(m, m->manifest, "format_version", &version));
    if (version != 1)
        return expected(m, "format_version", "1", member(m->manifest, "format_version"));
    for (const char *const *key = FOREIGN_EMPTY_LISTS; *key != NULL; key++) {
        const struct cJSON *list = member(m->manifest, *key);
        if (list != NULL && (!cJSON_IsArray(list) || list->child != NULL))
            return err_set(m->err, ST_STRUCTURE,
                           "%s: %s is not empty; only finite token blocks are read", m->what, *key);
    }
    const struct cJSON *affine = member(m->manifest, "affine_fx");
    if (affine != NULL && !cJSON_IsNull(affine))
        return err_set(m->err, ST_STRUCTURE,
                       "%s: affine_fx is not null; only finite token blocks are read", m->what);
    return refuse_training(m, m->manifest, "training");
}

/* The wanted block, or the only one. */
static enum status find_entry(struct importing *m, const char *wanted)
{
    const struct cJSON *list = member(m->manifest, "finite_lookup_rewrites");
    if (!cJSON_IsArray(list) || list->child == NULL)
        return expected(m, "finite_lookup_rewrites", "a list of recipes", list);
    for (const struct cJSON *c = list->child; c != NULL; c = c->next) {
        const struct cJSON *path = member(c, "path");
        if (!cJSON_IsObject(c) || !cJSON_IsString(path))
            return expected(m, "finite_lookup_rewrites", "recipes with a path", c);
        if (wanted != NULL && strcmp(wanted, path->valuestring) != 0)
            continue;
        if (m->entry != NULL)
            return err_set(m->err, wanted == NULL ? ST_STRUCTURE : ST_FORMAT,
                           "%s: finite_lookup_rewrites: \"%.200s\" and \"%.200s\": %s", m->what,
                           m->path, path->valuestring,
                           wanted == NULL ? "one block is read; say which" : "twice");
        m->entry = c;
        m->path = path->valuestring;
    }
    if (m->entry == NULL)
        return err_set(m->err, ST_FORMAT, "%s: finite_lookup_rewrites: no block at \"%.200s\"",
                       m->what, wanted);
    return refuse_training(m, m->entry, "finite_lookup_rewrites.training");
}

/* Names that the artifact has no place for, where tokentab wrote it. */
static void find_names(struct importing *m)
{
    const struct cJSON *report = member(m->manifest, "report");
    const struct cJSON *producer = member(report, "producer");
    const struct cJSON *block = member(report, "block"), *output = member(report, "output");
    bool ours = cJSON_IsString(producer) && strcmp(producer->valuestring, "tokentab") == 0;
    m->block = ours && cJSON_IsString(block) && str_is_name(block->valuestring) ? block->valuestring
                                                                                : "imported";
    m->output = ours && cJSON_IsString(output) && str_is_name(output->valuestring)
                    ? output->valuestring
                    : "output";
}

/* Digest and size of the payload as it lies there; a packed one is unpacked beside the result. */
static enum status find_payload(struct importing *m, uint64_t max_size, const char *out)
{
    const struct cJSON *file = member(m->manifest, "weights_file");
    const struct cJSON *packing = member(m->manifest, "packing");
    const struct cJSON *sha = member(m->manifest, "weights_sha256");
    const char *name = cJSON_IsString(file) ? file->valuestring : "";
    bool packed = strcmp(name, FOREIGN_PACKED) == 0;
    uint64_t bytes, size;
    char hex[SHA256_HEX_SIZE];
    if (!packed && strcmp(name, FOREIGN_PLAIN) != 0)
        return expected(m, "weights_file", FOREIGN_PLAIN " or " FOREIGN_PACKED, file);
    if (packed ? !cJSON_IsString(packing) || strcmp(packing->valuestring, FOREIGN_PACKING) != 0
               : !cJSON_IsNull(packing))
        return expected(m, "packing", packed ? FOREIGN_PACKING : "null", packing);
    TRY(get_u64(m, m->manifest, "weights_bytes", &bytes));
    if (!cJSON_IsString(sha))
        return expected(m, "weights_sha256", "a digest", sha);
    char *path = path_join(m->dir, name);
    if (path == NULL)
        return err_nomem(m->err, strlen(m->dir));
    enum status st = file_digests(path, hex, NULL, &size, m->err);
    if (st == ST_OK && (size != bytes || strcmp(hex, sha->valuestring) != 0))
        st = err_set(m->err, ST_FORMAT,
                     "%s: corrupt: %" PRIu64 " bytes with SHA-256 %s, the manifest says %" PRIu64
                     " and %.64s",
                     path, size, hex, bytes, sha->valuestring);
    if (st == ST_OK && packed) {
        m->payload = path_join(out, "import.tmp");
        if (m->payload == NULL)
            st = err_nomem(m->err, strlen(out));
        else if ((st = format_cmppack_read(path, m->payload, max_size, m->err)) == ST_OK)
            m->payload_made = true;
        free(path);
    } else {
        m->payload = path;
    }
    return st;
}

/* ---- the three forms ----------------------------------------------------------------------- */

static enum status set_output(struct importing *m, struct format_placed *p, const char *name,
                              uint32_t group, uint64_t width)
{
    *p = (struct format_placed){.group = group, .width = width};
    return copy_text(m, name, &p->name);
}

static enum status read_lookup(struct importing *m)
{
    struct format_recipe *r = m->r;
    const struct cJSON *constant = member(m->entry, "constant");
    uint64_t width;
    r->kind = RECIPE_LOOKUP;
    TRY(get_u64(m, m->entry, "embedding_dim", &width));
    if (!cJSON_IsBool(constant))
        return expected(m, "constant", "true or false", constant);
    TRY(allocate(m, 1, sizeof *r->groups, &r->groups));
    r->n_groups = 1;
    r->groups[0].rows = cJSON_IsTrue(constant) ? 1 : r->num_embeddings;
    r->groups[0].width = width;
    TRY(get_dtype(m, member(m->entry, "dtype"), &r->groups[0].dtype));
    TRY(allocate(m, 1, sizeof *r->outputs, &r->outputs));
    r->n_outputs = 1;
    return set_output(m, &r->outputs[0], m->output, 0, width);
}

static enum status read_projected(struct importing *m)
{
    struct format_recipe *r = m->r;
    const struct cJSON *eps = member(m->entry, "normalize_eps"), *bias = member(m->entry, "bias");
    uint64_t width;
    r->kind = RECIPE_PROJECTED;
    TRY(get_u64(m, m->entry, "embedding_dim", &width));
    if (!cJSON_IsNumber(eps))
        return expected(m, "normalize_eps", "a number", eps);
    if (!cJSON_IsBool(bias))
        return expected(m, "bias", "true or false", bias);
    r->normalize_eps = eps->valuedouble;
    r->has_bias = cJSON_IsTrue(bias);
    TRY(get_dtype(m, member(m->entry, "dtype"), &r->bias_dtype));
    TRY(allocate(m, 2, sizeof *r->groups, &r->groups));
    r->n_groups = 2;
    for (size_t i = 0; i < 2; i++)
        r->groups[i] = (struct format_group){
            .rows = r->num_embeddings, .width = i == 0 ? width : 1, .dtype = r->bias_dtype};
    TRY(allocate(m, 2, sizeof *r->outputs, &r->outputs));
    r->n_outputs = 2;
    TRY(set_output(m, &r->outputs[0], "z", 0, width));
    return set_output(m, &r->outputs[1], "r", 1, 1);
}

static enum status read_tables(struct importing *m)
{
    struct format_recipe *r = m->r;
    const struct cJSON *tables = member(m->entry, "tables");
    int n = cJSON_IsObject(tables) ? cJSON_GetArraySize(tables) : 0;
    if (n < 1 || n > IMPORT_MAX_ITEMS)
        return expected(m, "tables", "an object of tables", tables);
    TRY(allocate(m, (size_t)n, sizeof *r->groups, &r->groups));
    r->n_groups = (size_t)n;
    for (size_t i = 0; i < r->n_groups; i++) {
        char name[32];
        snprintf(name, sizeof name, "group_%zu", i);
        const struct cJSON *t = member(tables, name), *shape = member(t, "shape");
        if (!cJSON_IsObject(t) || !cJSON_IsArray(shape) || cJSON_GetArraySize(shape) != 2 ||
            !format_json_u64(shape->child, &r->groups[i].rows) ||
            !format_json_u64(shape->child->next, &r->groups[i].width))
            return expected(m, name, "{\"shape\": [rows, width], \"dtype\": ...}", t);
        TRY(get_dtype(m, member(t, "dtype"), &r->groups[i].dtype));
    }
    return ST_OK;
}

static enum status read_outputs(struct importing *m, const struct cJSON *list,
                                struct format_placed **out, size_t *n_out)
{
    int n = cJSON_IsArray(list) ? cJSON_GetArraySize(list) : 0;
    if (n < 1 || n > IMPORT_MAX_ITEMS)
        return expected(m, "outputs", "a list of [name, table, first column, width]", list);
    TRY(allocate(m, (size_t)n, sizeof **out, out));
    *n_out = (size_t)n;
    struct format_placed *p = *out;
    for (const struct cJSON *c = list->child; c != NULL; c = c->next, p++) {
        const struct cJSON *name = c->child, *table = name != NULL ? name->next : NULL;
        uint64_t group = 0;
        if (!cJSON_IsArray(c) || cJSON_GetArraySize(c) != 4 || !cJSON_IsString(name) ||
            !cJSON_IsString(table) || strncmp(table->valuestring, "group_", 6) != 0 ||
            !str_to_u64(table->valuestring + 6, &group) || group >= m->r->n_groups ||
            !format_json_u64(table->next, &p->column) ||
            !format_json_u64(table->next->next, &p->width))
            return expected(m, "outputs", "[name, table, first column, width]", c);
        p->group = (uint32_t)group;
        TRY(copy_text(m, name->valuestring, &p->name));
    }
    return ST_OK;
}

static enum status read_profile(struct importing *m, const struct cJSON *c)
{
    struct format_recipe *r = m->r;
    struct format_profile *p = &r->profiles[r->n_profiles];
    size_t n = 0;
    TRY(get_u64(m, c, "max_rows", &p->max_rows));
    TRY(get_u64(m, c, "evaluation_rows", &p->evaluation_rows));
    enum status st = read_outputs(m, member(c, "outputs"), &p->outputs, &n);
    if (st == ST_OK && n != r->n_outputs)
        st = expected(m, "row_count_profiles", "as many outputs as in bulk", c);
    if (st == ST_OK) {
        r->n_profiles++;
        return ST_OK;
    }
    for (size_t i = 0; p->outputs != NULL && i < n; i++)
        free(p->outputs[i].name);
    free(p->outputs);
    p->outputs = NULL;
    return st;
}

static enum status read_fanout(struct importing *m)
{
    struct format_recipe *r = m->r;
    const struct cJSON *profiles = member(m->entry, "row_count_profiles");
    uint64_t version;
    r->kind = RECIPE_FANOUT;
    TRY(get_u64(m, m->entry, "version", &version));
    const struct cJSON *contract = member(m->entry, "input_contract");
    if (!cJSON_IsString(contract) || strcmp(contract->valuestring, "token_indices_only") != 0)
        return expected(m, "input_contract", "\"token_indices_only\"", contract);
    if (version != 1 && version != 2)
        return expected(m, "version", "1 or 2", member(m->entry, "version"));
    TRY(read_tables(m));
    TRY(read_outputs(m, member(m->entry, "outputs"), &r->outputs, &r->n_outputs));
    if (version == 1)
        return profiles == NULL
                   ? ST_OK
                   : expected(m, "row_count_profiles", "no such key in version 1", profiles);
    int n = cJSON_IsArray(profiles) ? cJSON_GetArraySize(profiles) : 0;
    if (n < 1 || n > IMPORT_MAX_ITEMS)
        return expected(m, "row_count_profiles", "a list of profiles", profiles);
    TRY(allocate(m, (size_t)n, sizeof *r->profiles, &r->profiles));
    for (const struct cJSON *c = profiles->child; c != NULL; c = c->next)
        TRY(read_profile(m, c));
    return ST_OK;
}

/* ---- payload ------------------------------------------------------------------------------- */

/* What a tensor of ours is called there. */
static char *foreign_name(const struct importing *m, const char *name)
{
    const char *theirs = name;
    if (m->r->kind != RECIPE_FANOUT)
        theirs = strcmp(name, "tables.group_0") == 0   ? "_rows"
                 : strcmp(name, "tables.group_1") == 0 ? "_norms"
                                                       : name;
    return str_printf("%s%s%s", m->path, m->path[0] != '\0' ? "." : "", theirs);
}

static enum status find_tensor(const struct importing *m, const struct format_tensor_spec *s,
                               const struct format_tensor **out)
{
    char *name = foreign_name(m, s->name);
    if (name == NULL)
        return err_nomem(m->err, strlen(s->name));
    const struct format_tensor *t = format_safetensors_find(m->f, name);
    enum status st = ST_OK;
    if (t == NULL)
        st = err_set(m->err, ST_FORMAT, "%s: tensor \"%.200s\" is missing", m->payload, name);
    else if (t->dtype != s->dtype || t->rank != s->rank || t->shape[0] != s->shape[0] ||
             (t->rank > 1 && t->shape[1] != s->shape[1]))
        st = err_set(m->err, ST_FORMAT,
                     "%s: tensor \"%.200s\" has another shape or dtype than the manifest says",
                     m->payload, name);
    free(name);
    *out = t;
    return st;
}

static enum status copy_tensor(const struct importing *m, const struct format_tensor *t, int fd,
                               const char *path, uint64_t at)
{
    void *window = NULL;
    TRY(mem_alloc(IMPORT_WINDOW, 1, &window, m->err));
    enum status st = ST_OK;
    for (uint64_t done = 0; done < t->size_bytes && st == ST_OK; done += IMPORT_WINDOW) {
        size_t n = (size_t)min_u64(IMPORT_WINDOW, t->size_bytes - done);
        st = format_safetensors_read(m->f, t, done, window, n, m->err);
        if (st == ST_OK)
            st = file_write_at(fd, path, at + done, window, n, m->err);
    }
    free(window);
    return st;
}

static enum status copy_tensors(const struct importing *m, const struct format_tensor_spec *specs,
                                size_t n, int fd, const char *path, uint64_t *bytes)
{
    uint64_t *offsets = calloc(n, sizeof *offsets), size;
    struct bytes header = {0};
    if (offsets == NULL)
        return err_nomem(m->err, n * sizeof *offsets);
    enum status st = format_safetensors_header(specs, n, NULL, &header, offsets, &size, m->err);
    if (st == ST_OK)
        st = file_write_at(fd, path, 0, header.data, header.size, m->err);
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const struct format_tensor *t = NULL;
        st = find_tensor(m, &specs[i], &t);
        if (st == ST_OK)
            st = copy_tensor(m, t, fd, path, offsets[i]);
        *bytes += st == ST_OK ? t->size_bytes : 0;
    }
    if (st == ST_OK && fsync(fd) != 0)
        st = err_set(m->err, ST_IO, "%s: fsync: %s", path, strerror(errno));
    bytes_free(&header);
    free(offsets);
    return st;
}

/* All tensors of the module; what lies outside belongs to the rest of the model. */
static size_t tensors_of_block(const struct importing *m)
{
    size_t n = 0, size = strlen(m->path);
    for (size_t i = 0; i < m->f->n_tensors; i++) {
        const char *name = m->f->tensors[i].name;
        n += size == 0 || (strncmp(name, m->path, size) == 0 && name[size] == '.');
    }
    return n;
}

static enum status copy_payload(const struct importing *m, const char *tmp, uint64_t *bytes)
{
    struct format_tensor_spec *specs = NULL;
    size_t n = 0;
    int fd = -1;
    TRY(format_recipe_tensors(m->r, &specs, &n, m->err));
    enum status st = ST_OK;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        const struct format_tensor *t = NULL;
        st = find_tensor(m, &specs[i], &t);
    }
    size_t found = tensors_of_block(m);
    if (st == ST_OK && found != n)
        st = err_set(m->err, ST_FORMAT, "%s: %zu tensors of module \"%.200s\", expected %zu",
                     m->payload, found, m->path, n);
    if (st == ST_OK && (fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0)
        st = err_set(m->err, ST_IO, "%s: %s", tmp, strerror(errno));
    if (st == ST_OK)
        st = copy_tensors(m, specs, n, fd, tmp, bytes);
    if (fd >= 0 && close(fd) != 0 && st == ST_OK)
        st = err_set(m->err, ST_IO, "%s: close: %s", tmp, strerror(errno));
    if (fd >= 0 && st != ST_OK)
        (void)unlink(tmp);
    format_tensor_specs_free(&specs, n);
    return st;
}

/* ---- recipe -------------------------------------------------------------------------------- */

static enum status fill_recipe(struct importing *m)
{
    struct format_recipe *r = m->r;
    TRY(get_u64(m, m->entry, "num_embeddings", &r->num_embeddings));
    r->rows_in_checkpoint = r->num_embeddings;
    if (member(m->entry, "tables") != NULL)
        TRY(read_fanout(m));
    else if (member(m->entry, "normalize_eps") != NULL)
        TRY(read_projected(m));
    else
        TRY(read_lookup(m));
    r->version = r->n_profiles > 0 ? 2 : 1;
    r->may_grow = true; /* what it replaced is not known here */
    TRY(copy_text(m, m->block, &r->block));
    TRY(copy_text(m, "library", &r->arithmetic));
    TRY(copy_text(m, "{\"status\": \"" FORMAT_RECIPE_IMPORTED "\", \"from\": \"compressme\"}",
                  &r->validation_json));
    TRY(copy_text(m, "", &r->seal));
    char hex[SHA256_HEX_SIZE];
    TRY(file_digests(m->what, hex, NULL, NULL, m->err));
    TRY(allocate(m, 1, sizeof *r->provenance, &r->provenance));
    r->n_provenance = 1;
    TRY(copy_text(m, "compressme/manifest.json", &r->provenance[0].name));
    TRY(copy_text(m, hex, &r->provenance[0].value));
    TRY(allocate(m, 1, sizeof *r->environment, &r->environment));
    r->n_environment = 1;
    TRY(copy_text(m, "imported_from", &r->environment[0].name));
    return copy_text(m, "compressme", &r->environment[0].value);
}

/* What the result takes; what it replaced is not known. */
static enum status describe_storage(struct importing *m, uint64_t tensor_bytes)
{
    free(m->r->storage_json);
    m->r->storage_json = str_printf(
        "{\"resident\": %" PRIu64 ", \"on_disk\": %" PRIu64 ", \"on_disk_headers\": %" PRIu64 "}",
        tensor_bytes, m->r->payload_bytes, m->r->payload_bytes - tensor_bytes);
    return m->r->storage_json != NULL ? ST_OK : err_nomem(m->err, 128);
}

static enum status encode_recipe(struct importing *m, const char *tmp, uint64_t tensor_bytes,
                                 struct bytes *text)
{
    struct format_recipe *r = m->r;
    char hex[SHA256_HEX_SIZE];
    TRY(file_digests(tmp, hex, NULL, &r->payload_bytes, m->err));
    TRY(copy_text(m, hex, &r->payload_sha256));
    free(r->payload_file);
    r->payload_file = str_printf("tables-%.16s.safetensors", hex);
    if (r->payload_file == NULL)
        return err_nomem(m->err, 64);
    TRY(describe_storage(m, tensor_bytes));
    TRY(format_recipe_seal(r, hex, m->err));
    TRY(copy_text(m, hex, &r->seal));
    return format_recipe_encode(r, text, m->err);
}

/* The payload under its name, then recipe.json; without the second the first goes again, unless
 * the recipe that is there names it. */
static enum status publish(struct importing *m, const char *tmp, uint64_t tensor_bytes,
                           const char *out)
{
    struct bytes text = {0};
    char *payload = NULL, *recipe = path_join(out, "recipe.json");
    bool made = false;
    enum status st = encode_recipe(m, tmp, tensor_bytes, &text);
    if (st == ST_OK) {
        payload = path_join(out, m->r->payload_file);
        st = payload != NULL && recipe != NULL ? ST_OK : err_nomem(m->err, strlen(out));
    }
    if (st == ST_OK) {
        made = !file_exists(payload);
        st = file_rename(tmp, payload, m->err);
    }
    if (st == ST_OK && (st = file_publish(recipe, text.data, text.size, m->err)) != ST_OK && made)
        (void)unlink(payload);
    if (st != ST_OK)
        (void)unlink(tmp);
    free(payload);
    free(recipe);
    bytes_free(&text);
    return st;
}

/* Rules first, so that the shapes below are sane; the payload's name comes with its digest. */
static enum status check_recipe(struct importing *m)
{
    char zeros[SHA256_HEX_SIZE];
    memset(zeros, '0', sizeof zeros - 1);
    zeros[sizeof zeros - 1] = '\0';
    TRY(copy_text(m, zeros, &m->r->payload_sha256));
    TRY(copy_text(m, "tables.safetensors", &m->r->payload_file));
    TRY(copy_text(m, "{}", &m->r->storage_json));
    return format_recipe_check(m->r, m->what, m->err);
}

static enum status import_block(struct importing *m, const char *wanted, uint64_t max_size,
                                const char *out)
{
    uint64_t tensor_bytes = 0;
    char *tmp = path_join(out, "tables.staged");
    if (tmp == NULL)
        return err_nomem(m->err, strlen(out));
    enum status st = format_json_read(m->what, MANIFEST_MAX, &m->manifest, m->err);
    if (st == ST_OK)
        st = check_manifest(m);
    if (st == ST_OK)
        st = find_entry(m, wanted);
    if (st == ST_OK) {
        find_names(m);
        st = fill_recipe(m);
    }
    if (st == ST_OK)
        st = check_recipe(m);
    if (st == ST_OK)
        st = file_make_dirs(out, m->err);
    if (st == ST_OK)
        st = find_payload(m, max_size, out);
    if (st == ST_OK)
        st = format_safetensors_open(m->payload, 0, &m->f, m->err);
    if (st == ST_OK)
        st = copy_payload(m, tmp, &tensor_bytes);
    if (st == ST_OK)
        st = publish(m, tmp, tensor_bytes, out);
    free(tmp);
    return st;
}

enum status format_foreign_import(const char *dir, const char *path, uint64_t max_size,
                                  const char *out, struct err *err)
{
    struct importing m = {.dir = dir, .err = err};
    char *what = path_join(dir, FOREIGN_MANIFEST);
    m.what = what;
    m.r = calloc(1, sizeof *m.r);
    enum status st = what != NULL && m.r != NULL ? import_block(&m, path, max_size, out)
                                                 : err_nomem(err, sizeof *m.r);
    format_safetensors_close(&m.f);
    if (m.payload_made)
        (void)unlink(m.payload);
    free(m.payload);
    format_json_free(&m.manifest);
    format_recipe_free(&m.r);
    free(what);
    return st;
}
