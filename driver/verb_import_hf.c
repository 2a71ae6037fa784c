/* SPDX-License-Identifier: Apache-2.0 */
/* import-hf: a spec from a Hugging Face snapshot.  Reads config.json and the headers, downloads
 * nothing, runs nothing. */
#define _XOPEN_SOURCE 700 /* realpath */
#include "driver/hf_internal.h"
#include "driver/verb_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { IMPORT_MAX_PROVENANCE = HF_MAX_FILES + 8, IMPORT_MAX_NOTES = 8 };

struct import {
    struct driver_context *ctx;
    char *dir;         /* owned: real path of the snapshot */
    char *blobs;       /* owned: real path of ../../blobs, or NULL */
    char *config_path; /* owned */
    char *weights;     /* owned: path of the file or index */
    struct hf_config config;
    struct hf_snapshot snapshot;
    struct hf_provenance provenance[IMPORT_MAX_PROVENANCE];
    size_t n_provenance;
    char *notes[IMPORT_MAX_NOTES]; /* owned */
    size_t n_notes;
};

static void import_close(struct import *m)
{
    for (size_t i = 0; i < m->n_provenance; i++) {
        free(m->provenance[i].name);
        free(m->provenance[i].value);
    }
    for (size_t i = 0; i < m->n_notes; i++)
        free(m->notes[i]);
    format_checkpoint_close(&m->snapshot.checkpoint);
    hf_config_free(&m->config);
    free(m->dir);
    free(m->blobs);
    free(m->config_path);
    free(m->weights);
}

static void note(struct import *m, char *text)
{
    if (text == NULL || m->n_notes == IMPORT_MAX_NOTES) {
        free(text);
        return;
    }
    log_warn("%s", text);
    m->notes[m->n_notes++] = text;
}

/* ---- files ----------------------------------------------------------------------------------- */

static bool lies_below(const char *path, const char *folder)
{
    size_t n = folder == NULL ? 0 : strlen(folder);
    return n > 0 && strncmp(path, folder, n) == 0 && path[n] == '/';
}

/* Caches of Hugging Face link into ../../blobs; a link to anywhere else is no part of a snapshot
 * (N16). */
static enum status check_link(const struct import *m, const char *path, struct err *err)
{
    char *real = realpath(path, NULL);
    if (real == NULL)
        return err_set(err, ST_FORMAT, "%s: %s", path, strerror(errno));
    enum status st = ST_OK;
    if (!lies_below(real, m->dir) && !lies_below(real, m->blobs))
        st = err_set(err, ST_FORMAT,
                     "%s: expected a file of the snapshot or a link into its ../../blobs, found a "
                     "link to %s",
                     path, real);
    free(real);
    return st;
}

static enum status find_files(struct import *m, const char *given, struct err *err)
{
    if (!file_is_dir(given))
        return err_set(err, ST_FORMAT, "%s: expected the folder of a snapshot, found %s", given,
                       file_exists(given) ? "a file" : "nothing");
    m->dir = realpath(given, NULL);
    if (m->dir == NULL)
        return err_set(err, ST_FORMAT, "%s: %s", given, strerror(errno));
    char *blobs = path_join(m->dir, "../../blobs");
    m->blobs = blobs == NULL ? NULL : realpath(blobs, NULL);
    free(blobs);
    m->config_path = path_join(m->dir, "config.json");
    m->weights = path_join(m->dir, "model.safetensors.index.json");
    if (m->weights != NULL && !file_exists(m->weights)) {
        free(m->weights);
        m->weights = path_join(m->dir, "model.safetensors");
    }
    if (m->config_path == NULL || m->weights == NULL)
        return err_nomem(err, strlen(m->dir));
    TRY(check_link(m, m->config_path, err));
    if (!file_exists(m->weights)) {
        char *pickle = path_join(m->dir, "pytorch_model.bin");
        bool has_pickle = pickle != NULL && file_exists(pickle);
        free(pickle);
        return err_set(err, ST_FORMAT,
                       "%s: expected model.safetensors or model.safetensors.index.json, found "
                       "neither%s",
                       m->dir,
                       has_pickle ? " (pytorch_model.bin is not read: a pickle is code)" : "");
    }
    return check_link(m, m->weights, err);
}

static enum status read_snapshot(struct import *m, struct err *err)
{
    const struct format_checkpoint_opts opts = {.header_cap = m->ctx->opts->header_cap};
    TRY(hf_config_read(m->config_path, &m->config, err));
    if (m->config.has_code)
        note(m,
             str_printf("%s: auto_map names code of the snapshot; it is ignored, and %s is taken "
                        "to be Transformers' own",
                        m->config_path, m->config.architecture));
    m->snapshot.config = &m->config;
    TRY(format_checkpoint_open(m->weights, &opts, &m->snapshot.checkpoint, err));
    for (size_t i = 0; i < format_checkpoint_warnings(m->snapshot.checkpoint); i++)
        note(m, str_printf("%s", format_checkpoint_warning(m->snapshot.checkpoint, i)));
    const char *last = NULL;
    for (size_t i = 0; i < format_checkpoint_count(m->snapshot.checkpoint); i++) {
        const char *file = NULL;
        format_checkpoint_tensor(m->snapshot.checkpoint, i, &file);
        if (file != last)
            TRY(check_link(m, file, err));
        last = file;
    }
    return hf_snapshot_check(&m->snapshot, err);
}

/* ---- provenance ------------------------------------------------------------------------------ */

static enum status record(struct import *m, const char *name, char *value, struct err *err)
{
    struct hf_provenance *p = &m->provenance[m->n_provenance];
    *p = (struct hf_provenance){.name = str_dup(name), .value = value};
    m->n_provenance++;
    return p->name != NULL && p->value != NULL ? ST_OK : err_nomem(err, strlen(name));
}

static enum status record_file(struct import *m, const char *path, struct err *err)
{
    char hex[SHA256_HEX_SIZE];
    TRY(file_digests(path, hex, NULL, NULL, err));
    return record(m, path_base(path), str_printf("sha256:%s", hex), err);
}

static bool is_commit(const char *s)
{
    return strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

/* In a cache the folder is named by its commit. */
static enum status record_revision(struct import *m, struct err *err)
{
    const char *given = m->ctx->opts->revision, *name = path_base(m->dir);
    char *up = path_dir(m->dir);
    bool in_cache = up != NULL && strcmp(path_base(up), "snapshots") == 0 && is_commit(name);
    free(up);
    if (given != NULL && in_cache && is_commit(given) && strcmp(given, name) != 0)
        return err_set(err, ST_USAGE, "--revision: %s, but the snapshot's folder is named %s",
                       given, name);
    if (given != NULL)
        TRY(record(m, "revision", str_dup(given), err));
    if (in_cache)
        TRY(record(m, "snapshot", str_dup(name), err));
    return ST_OK;
}

static enum status gather_provenance(struct import *m, struct err *err)
{
    TRY(record(m, "imported_by", str_printf("tokentab %s import-hf", DRIVER_VERSION), err));
    TRY(record(m, "model_type", str_dup(m->config.family->model_type), err));
    TRY(record(m, "architecture", str_dup(m->config.architecture), err));
    TRY(record_revision(m, err));
    TRY(record_file(m, m->config_path, err));
    bool is_index = strcmp(path_base(m->weights), "model.safetensors") != 0;
    if (is_index)
        TRY(record_file(m, m->weights, err));
    for (size_t i = 0; i < m->snapshot.n_files; i++)
        TRY(record_file(m, m->snapshot.files[i], err));
    return ST_OK;
}

/* ---- output ---------------------------------------------------------------------------------- */

/* What the spec calls the checkpoint: its plain name where both lie in one folder. */
static enum status checkpoint_name(const struct import *m, const char *out, char **name,
                                   struct err *err)
{
    bool beside = false;
    if (out != NULL) {
        char *dir = path_dir(out);
        char *real = dir == NULL ? NULL : realpath(dir, NULL);
        beside = real != NULL && strcmp(real, m->dir) == 0;
        free(real);
        free(dir);
    }
    *name = str_dup(beside ? path_base(m->weights) : m->weights);
    return *name != NULL ? ST_OK : err_nomem(err, strlen(m->weights));
}

static void print_text(const struct import *m, const char *out, struct bytes *text)
{
    const struct hf_config *c = &m->config;
    bytes_printf(text, "%s: %s, first layer per token, %s\n", m->dir, c->architecture,
                 dtype_name(m->snapshot.dtype));
    bytes_printf(text, "  tokens %llu, hidden %llu, q %llu, k and v %llu (%llu and %llu heads)\n",
                 (unsigned long long)c->vocab, (unsigned long long)c->hidden,
                 (unsigned long long)c->q_width, (unsigned long long)c->kv_width,
                 (unsigned long long)c->heads, (unsigned long long)c->kv_heads);
    for (size_t i = 0; i < m->n_provenance; i++)
        bytes_printf(text, "  %s %s\n", m->provenance[i].name, m->provenance[i].value);
    bytes_printf(text, "  spec %s\n", out);
}

static void print_json(const struct import *m, const char *out, const struct bytes *spec)
{
    struct format_writer w;
    verb_json_start(m->ctx, &w);
    format_write_string(&w, "model_type", m->config.family->model_type);
    format_write_string(&w, "architecture", m->config.architecture);
    format_write_string(&w, "dtype", dtype_name(m->snapshot.dtype));
    format_write_u64(&w, "tokens", m->config.vocab);
    format_write_array(&w, "notes");
    for (size_t i = 0; i < m->n_notes; i++)
        format_write_string(&w, NULL, m->notes[i]);
    format_write_end_array(&w);
    format_write_object(&w, "provenance");
    for (size_t i = 0; i < m->n_provenance; i++)
        format_write_string(&w, m->provenance[i].name, m->provenance[i].value);
    format_write_end_object(&w);
    if (out != NULL) {
        format_write_string(&w, "out", out);
    } else {
        struct bytes text = {0};
        bytes_printf(&text, "%.*s", (int)(spec->size - 1), (const char *)spec->data);
        bytes_put_u8(&text, 0);
        format_write_raw(&w, "spec", text.failed ? "null" : (const char *)text.data);
        bytes_free(&text);
    }
    verb_json_end(m->ctx, &w);
}

/* To the file of --out; to standard output without one. */
static enum status write_spec(struct import *m, struct err *err)
{
    const char *out = m->ctx->opts->out;
    struct format_writer w = {.pretty = true};
    char *name = NULL;
    TRY(checkpoint_name(m, out, &name, err));
    hf_spec_write(&m->snapshot, name, m->provenance, m->n_provenance, &w);
    free(name);
    enum status st = w.out.failed ? err_nomem(err, w.out.size) : ST_OK;
    if (st == ST_OK && out != NULL)
        st = file_publish(out, w.out.data, w.out.size, err);
    if (st == ST_OK && m->ctx->opts->json)
        print_json(m, out, &w.out);
    else if (st == ST_OK && out != NULL)
        print_text(m, out, &m->ctx->result);
    else if (st == ST_OK)
        bytes_append(&m->ctx->result, w.out.data, w.out.size);
    bytes_free(&w.out);
    return st;
}

enum status driver_verb_import_hf(struct driver_context *ctx, struct err *err)
{
    struct import m = {.ctx = ctx};
    if (ctx->opts->out != NULL)
        TRY(verb_output_check(ctx->opts->out, "--out", ctx->opts->force, err));
    enum status st = find_files(&m, ctx->opts->args[0], err);
    if (st == ST_OK)
        st = read_snapshot(&m, err);
    if (st == ST_OK)
        st = gather_provenance(&m, err);
    if (st == ST_OK)
        st = write_spec(&m, err);
    import_close(&m);
    return st;
}
