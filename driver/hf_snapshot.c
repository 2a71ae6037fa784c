/* SPDX-License-Identifier: Apache-2.0 */
/* The headers of a snapshot against its config: nothing missing, nothing extra, every shape and
 * dtype as declared. */
#include "driver/hf_internal.h"

#include <stdlib.h>
#include <string.h>

enum { COMPARE_BYTES = 4 << 20 };

static void full_name(const struct hf_snapshot *s, const char *name, char out[HF_NAME_SIZE])
{
    (void)snprintf(out, HF_NAME_SIZE, "%s%s", s->config->prefix, name);
}

/* By name, without a message; *file is where it lies. */
static const struct format_tensor *peek(const struct hf_snapshot *s, const char *name,
                                        const char **file)
{
    for (size_t i = 0; i < format_checkpoint_count(s->checkpoint); i++) {
        const struct format_tensor *t = format_checkpoint_tensor(s->checkpoint, i, file);
        if (strcmp(t->name, name) == 0)
            return t;
    }
    return NULL;
}

/* ---- one tensor ------------------------------------------------------------------------------ */

static uint64_t axis_size(const struct hf_config *c, char letter)
{
    switch (letter) {
    case 'v':
        return c->vocab;
    case 'h':
        return c->hidden;
    case 'q':
        return c->q_width;
    case 'k':
        return c->kv_width;
    case 'd':
        return c->head_dim;
    case 'f':
        return c->q_width + 2 * c->kv_width;
    case 'i':
        return c->intermediate;
    case 'u':
        return 2 * c->intermediate;
    default:
        return 0;
    }
}

static void shape_text(unsigned rank, const uint64_t *shape, char out[HF_NAME_SIZE])
{
    size_t at = 0;
    out[at++] = '[';
    for (unsigned i = 0; i < rank; i++)
        at += (size_t)snprintf(out + at, HF_NAME_SIZE - at, "%s%llu", i == 0 ? "" : ", ",
                               (unsigned long long)shape[i]);
    (void)snprintf(out + at, HF_NAME_SIZE - at, "]");
}

static enum status check_tensor(const struct hf_snapshot *s, const struct format_tensor *t,
                                const char *file, const char *letters, struct err *err)
{
    unsigned rank = (unsigned)strlen(letters);
    uint64_t shape[FORMAT_MAX_RANK] = {0};
    bool same = t->rank == rank;
    for (unsigned i = 0; i < rank; i++) {
        shape[i] = axis_size(s->config, letters[i]);
        same = same && t->shape[i] == shape[i];
    }
    if (same && t->dtype == s->dtype)
        return ST_OK;
    char expected[HF_NAME_SIZE], found[HF_NAME_SIZE];
    shape_text(rank, shape, expected);
    shape_text(t->rank, t->shape, found);
    return err_set(err, ST_STRUCTURE, "%s: %s: expected %s %s as %s has it, found %s %s", file,
                   t->name, dtype_name(s->dtype), expected,
                   same && s->config->dtype == DT_UNKNOWN ? "the embedding" : s->config->path,
                   t->dtype_text, found);
}

static enum status use_file(struct hf_snapshot *s, const char *file, struct err *err)
{
    for (size_t i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i], file) == 0)
            return ST_OK;
    if (s->n_files == HF_MAX_FILES)
        return err_set(err, ST_STRUCTURE, "%s: the first layer lies in more than %d files",
                       s->config->path, HF_MAX_FILES);
    s->files[s->n_files++] = file;
    return ST_OK;
}

/* ---- nothing missing ------------------------------------------------------------------------- */

static enum status check_expected(struct hf_snapshot *s, struct err *err)
{
    const struct hf_config *c = s->config;
    for (size_t i = 0; i < c->family->n_tensors; i++) {
        const struct hf_tensor *e = &c->family->tensors[i];
        const struct format_tensor *t = NULL;
        const char *file = NULL;
        char name[HF_NAME_SIZE];
        if (!hf_config_has(c, e) || strchr(e->shape, 'v') != NULL)
            continue; /* the embedding: hf_snapshot_check */
        full_name(s, e->name, name);
        TRY(format_checkpoint_find(s->checkpoint, name, &t, err));
        t = peek(s, name, &file);
        TRY(check_tensor(s, t, file, e->shape, err));
        TRY(use_file(s, file, err));
    }
    return ST_OK;
}

/* ---- nothing extra --------------------------------------------------------------------------- */

static bool is_guarded(const struct hf_family *f, const char *name)
{
    for (size_t i = 0; i < HF_MAX_GUARDS; i++)
        if (f->guards[i] != NULL && strncmp(name, f->guards[i], strlen(f->guards[i])) == 0)
            return true;
    return false;
}

static bool is_expected(const struct hf_config *c, const char *name)
{
    for (size_t i = 0; i < c->family->n_tensors; i++) {
        const struct hf_tensor *e = &c->family->tensors[i];
        if (strcmp(e->name, name) == 0)
            return e->when == 'x' || hf_config_has(c, e);
    }
    return false;
}

/* A bias that the class would not load changes nothing in Transformers but a warning; here it shows
 * that config and weights do not belong together. */
static enum status check_extra(const struct hf_snapshot *s, struct err *err)
{
    const struct hf_config *c = s->config;
    size_t prefix = strlen(c->prefix);
    for (size_t i = 0; i < format_checkpoint_count(s->checkpoint); i++) {
        const char *file = NULL;
        const struct format_tensor *t = format_checkpoint_tensor(s->checkpoint, i, &file);
        if (strncmp(t->name, c->prefix, prefix) != 0)
            continue;
        const char *name = t->name + prefix;
        if (is_guarded(c->family, name) && !is_expected(c, name))
            return err_set(err, ST_STRUCTURE,
                           "%s: %.200s: the first layer of %s has no such tensor as %s declares it",
                           file, t->name, c->architecture, c->path);
    }
    return ST_OK;
}

/* ---- tied weights ---------------------------------------------------------------------------- */

static enum status compare_bytes(const struct hf_snapshot *s, const struct format_tensor *a,
                                 const struct format_tensor *b, bool *equal, struct err *err)
{
    void *x = NULL, *y = NULL;
    enum status st = mem_alloc(COMPARE_BYTES, 1, &x, err);
    if (st == ST_OK)
        st = mem_alloc(COMPARE_BYTES, 1, &y, err);
    *equal = true;
    for (uint64_t at = 0; at < a->size_bytes && st == ST_OK && *equal; at += COMPARE_BYTES) {
        size_t n = (size_t)min_u64(COMPARE_BYTES, a->size_bytes - at);
        st = format_checkpoint_read(s->checkpoint, a, at, x, n, err);
        if (st == ST_OK)
            st = format_checkpoint_read(s->checkpoint, b, at, y, n, err);
        *equal = st == ST_OK && memcmp(x, y, n) == 0;
    }
    free(x);
    free(y);
    return st;
}

/* The head may share the embedding when, and only when, the config says so (N17). */
static enum status check_head(const struct hf_snapshot *s, const struct format_tensor *embedding,
                              struct err *err)
{
    const struct hf_config *c = s->config;
    const char *file = NULL;
    bool equal = true;
    if (c->head == NULL || s->aliased)
        return ST_OK;
    const struct format_tensor *head = peek(s, c->head, &file);
    if (head == NULL && c->tied)
        return ST_OK;
    if (head == NULL)
        return err_set(err, ST_STRUCTURE,
                       "%s: %s is absent and tie_word_embeddings is not set, so nothing says that "
                       "the embedding takes its place",
                       c->path, c->head);
    TRY(check_tensor(s, head, file, "vh", err));
    if (!c->tied)
        return ST_OK;
    TRY(compare_bytes(s, embedding, head, &equal, err));
    return equal ? ST_OK
                 : err_set(err, ST_STRUCTURE,
                           "%s: %s is tied to %s by tie_word_embeddings, but their bytes differ",
                           file, c->head, embedding->name);
}

enum status hf_snapshot_check(struct hf_snapshot *s, struct err *err)
{
    const struct hf_config *c = s->config;
    const struct format_tensor *embedding = NULL;
    const char *file = NULL;
    char name[HF_NAME_SIZE], relative[HF_NAME_SIZE];
    (void)snprintf(relative, sizeof relative, "%s.weight", c->family->embedding);
    full_name(s, relative, name);
    embedding = peek(s, name, &file);
    if (embedding == NULL && c->tied && c->head != NULL) {
        embedding = peek(s, c->head, &file);
        s->aliased = embedding != NULL;
    }
    if (embedding == NULL)
        return format_checkpoint_find(s->checkpoint, name, &embedding, err);
    if (!dtype_is_computable(embedding->dtype))
        return err_set(err, ST_STRUCTURE, "%s: %s: expected F64, F32, F16 or BF16, found %s", file,
                       embedding->name, embedding->dtype_text);
    s->dtype = c->dtype != DT_UNKNOWN ? c->dtype : embedding->dtype;
    TRY(check_tensor(s, embedding, file, "vh", err));
    TRY(use_file(s, file, err));
    TRY(check_extra(s, err));
    TRY(check_expected(s, err));
    return check_head(s, embedding, err);
}
