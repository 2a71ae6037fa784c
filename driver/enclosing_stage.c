/* SPDX-License-Identifier: Apache-2.0 */
/* The rewritten model in OUT: weights that are left, model.json, and the recipes that the blocks
 * staged.  Files with a digest in their name may lie there unused; model.json, renamed last, says
 * which ones count. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/enclosing.h"
#include "driver/payload.h"
#include "driver/recipe_files.h"

enum { COPY_BYTES = 4 << 20 };

/* ---- which nodes ----------------------------------------------------------------------------- */

/* Frontier nodes of rewritten regions become lookups; what only they needed goes. */
static enum status choose_nodes(struct enclosing_result *r, struct err *err)
{
    const struct driver_enclosing *e = r->job->enclosing;
    const struct graph *g = &e->model->graph;
    void *keep = NULL, *replaced = NULL;
    TRY(mem_calloc(g->n_nodes, sizeof *r->keep, &keep, err));
    r->keep = keep;
    TRY(mem_calloc(g->n_nodes, sizeof *r->replaced, &replaced, err));
    r->replaced = replaced;
    for (size_t i = 0; i < e->n_regions; i++)
        for (size_t k = 0; driver_enclosing_is_rewritten(e, i) && k < e->regions[i].n_frontier; k++)
            r->replaced[r->n_replaced++] =
                (struct format_replacement){.node = e->regions[i].frontier[k],
                                            .recipe = e->regions[i].name,
                                            .output = g->nodes[e->regions[i].frontier[k]].name};
    for (size_t i = 0; i < e->model->n_outputs; i++)
        r->keep[e->model->outputs[i].node] = true;
    for (size_t i = 0; i < e->model->n_inputs; i++)
        r->keep[e->model->inputs[i].node] = true;
    for (size_t i = g->n_nodes; i-- > 0;) {
        bool is_lookup = false;
        for (size_t k = 0; k < r->n_replaced; k++)
            is_lookup = is_lookup || r->replaced[k].node == i;
        for (unsigned k = 0; r->keep[i] && !is_lookup && k < g->nodes[i].n_inputs; k++)
            r->keep[g->nodes[i].inputs[k]] = true;
    }
    return ST_OK;
}

/* ---- weights that are left ------------------------------------------------------------------- */

static bool is_needed(const struct enclosing_result *r, const char *tensor)
{
    const struct graph *g = &r->job->enclosing->model->graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        bool replaced = false;
        for (size_t k = 0; k < r->n_replaced; k++)
            replaced = replaced || r->replaced[k].node == i;
        for (int role = 0; r->keep[i] && !replaced && role < ROLE_COUNT; role++) {
            int32_t w = g->nodes[i].weights[role];
            if (w >= 0 && strcmp(g->weights[w].backing, tensor) == 0)
                return true;
        }
    }
    return false;
}

struct weights_file {
    int fd;
    char *path;
    const struct format_tensor **tensors;
    struct format_tensor_spec *specs;
    uint64_t *offsets;
    size_t n;
};

static enum status list_tensors(const struct enclosing_result *r, struct weights_file *f,
                                struct err *err)
{
    size_t count = format_checkpoint_count(r->job->checkpoint);
    void *memory = NULL;
    TRY(mem_calloc(count, sizeof *f->tensors, &memory, err));
    f->tensors = memory;
    TRY(mem_calloc(count, sizeof *f->specs, &memory, err));
    f->specs = memory;
    TRY(mem_calloc(count, sizeof *f->offsets, &memory, err));
    f->offsets = memory;
    for (size_t i = 0; i < count; i++) {
        const char *file = NULL;
        const struct format_tensor *t = format_checkpoint_tensor(r->job->checkpoint, i, &file);
        if (!is_needed(r, t->name))
            continue;
        struct format_tensor_spec *s = &f->specs[f->n];
        *s = (struct format_tensor_spec){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(s->shape, t->shape, sizeof s->shape);
        f->tensors[f->n++] = t;
    }
    return ST_OK;
}

static enum status copy_tensor(const struct enclosing_result *r, const struct weights_file *f,
                               size_t i, void *buffer, struct err *err)
{
    for (uint64_t at = 0; at < f->tensors[i]->size_bytes; at += COPY_BYTES) {
        size_t size = (size_t)min_u64(COPY_BYTES, f->tensors[i]->size_bytes - at);
        TRY(driver_check_stop(err));
        TRY(format_checkpoint_read(r->job->checkpoint, f->tensors[i], at, buffer, size, err));
        TRY(file_write_at(f->fd, f->path, f->offsets[i] + at, buffer, size, err));
    }
    return ST_OK;
}

static enum status write_tensors(const struct enclosing_result *r, struct weights_file *f,
                                 struct err *err)
{
    struct bytes header = {0};
    uint64_t size_bytes = 0;
    void *buffer = NULL;
    enum status st =
        format_safetensors_header(f->specs, f->n, NULL, &header, f->offsets, &size_bytes, err);
    if (st == ST_OK)
        st = mem_alloc(COPY_BYTES, 1, &buffer, err);
    if (st == ST_OK) {
        f->fd = open(f->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (f->fd < 0)
            st = err_set(err, ST_IO, "%s: %s", f->path, strerror(errno));
    }
    if (st == ST_OK)
        st = file_write_at(f->fd, f->path, 0, header.data, header.size, err);
    for (size_t i = 0; i < f->n && st == ST_OK; i++)
        st = copy_tensor(r, f, i, buffer, err);
    if (f->fd >= 0 && fsync(f->fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: %s", f->path, strerror(errno));
    if (f->fd >= 0 && close(f->fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: %s", f->path, strerror(errno));
    free(buffer);
    bytes_free(&header);
    return st;
}

static enum status stage_weights(struct enclosing_result *r, struct err *err)
{
    struct weights_file f = {.fd = -1};
    char *named = NULL;
    f.path = path_join(r->out, "weights.staged");
    enum status st = f.path == NULL ? err_nomem(err, 1) : list_tensors(r, &f, err);
    if (st == ST_OK)
        st = write_tensors(r, &f, err);
    if (st == ST_OK)
        st = file_digests(f.path, r->weights_sha256, NULL, NULL, err);
    if (st == ST_OK) {
        r->weights_file = str_printf("weights-%.16s.safetensors", r->weights_sha256);
        named = r->weights_file == NULL ? NULL : path_join(r->out, r->weights_file);
        st = named == NULL ? err_nomem(err, 1) : file_rename(f.path, named, err);
    }
    if (st != ST_OK && f.path != NULL)
        unlink(f.path);
    free(named);
    free(f.path);
    free(f.tensors);
    free(f.specs);
    free(f.offsets);
    return st;
}

enum status driver_enclosing_stage(struct enclosing_result *r, struct err *err)
{
    struct bytes text = {0};
    char *path = path_join(r->out, ENCLOSING_STAGED_FILE), hex[SHA256_HEX_SIZE];
    enum status st = path == NULL ? err_nomem(err, 1) : choose_nodes(r, err);
    if (st == ST_OK)
        st = file_make_dirs(r->out, err);
    if (st == ST_OK)
        st = stage_weights(r, err);
    if (st == ST_OK)
        st = format_spec_rewritten(r->job->spec, r->job->enclosing->model, r->keep, r->replaced,
                                   r->n_replaced, r->weights_file, &text, err);
    if (st == ST_OK)
        st = sha256_of(text.data, text.size, hex, err);
    if (st == ST_OK) {
        r->model_sha256 = str_dup(hex);
        st = r->model_sha256 == NULL ? err_nomem(err, 1)
                                     : file_publish(path, text.data, text.size, err);
    }
    bytes_free(&text);
    free(path);
    return st;
}

/* ---- publishing ------------------------------------------------------------------------------ */

static enum status publish_block(const struct enclosing_result *r, const char *name,
                                 struct err *err)
{
    char *dir = path_join(r->out, name), *work = path_join(r->work, name);
    char *from = dir == NULL ? NULL : path_join(dir, LOOKUP_STAGED_FILE);
    char *to = dir == NULL ? NULL : path_join(dir, LOOKUP_RECIPE_FILE);
    char *report = work == NULL ? NULL : path_join(work, "report.json");
    char *report_to = dir == NULL ? NULL : path_join(dir, "report.json");
    uint8_t *text = NULL;
    size_t size = 0;
    enum status st = from == NULL || to == NULL || report == NULL || report_to == NULL
                         ? err_nomem(err, 1)
                         : file_read_all(report, (size_t)1 << 30, &text, &size, err);
    if (st == ST_OK)
        st = file_publish(report_to, text, size, err);
    if (st == ST_OK)
        st = file_rename(from, to, err);
    if (st == ST_OK) {
        char *payload = driver_payload_of(dir, LOOKUP_RECIPE_FILE);
        if (payload != NULL)
            driver_sweep(dir, PAYLOAD_START, payload);
        free(payload);
    }
    free(text);
    free(dir);
    free(work);
    free(from);
    free(to);
    free(report);
    free(report_to);
    return st;
}

static bool is_new(const struct driver_enclosing *e, size_t region)
{
    return driver_enclosing_is_rewritten(e, region) && !e->outcomes[region].unchanged;
}

/* A published model is of the recipes it was compared with: without a manifest nothing counts, so
 * that a run which ends between the renames leaves no model beside other recipes. */
static enum status withdraw(const struct enclosing_result *r, const char *path, struct err *err)
{
    const struct driver_enclosing *e = r->job->enclosing;
    char found[SHA256_HEX_SIZE];
    bool same = true;
    if (!file_exists(path))
        return ST_OK;
    for (size_t i = 0; i < e->n_regions; i++)
        same = same && !is_new(e, i);
    if (same && !file_is_dir(path)) {
        TRY(file_digests(path, found, NULL, NULL, err));
        if (strcmp(found, r->model_sha256) == 0)
            return ST_OK;
    }
    if (unlink(path) != 0)
        return err_set(err, ST_IO, "%s: unlink: %s", path, strerror(errno));
    return file_sync(r->out, err);
}

enum status driver_enclosing_publish(const struct enclosing_result *r, const struct bytes *report,
                                     struct err *err)
{
    const struct driver_enclosing *e = r->job->enclosing;
    char *from = path_join(r->out, ENCLOSING_STAGED_FILE);
    char *to = path_join(r->out, ENCLOSING_MODEL_FILE);
    char *report_path = path_join(r->out, ENCLOSING_REPORT_FILE);
    enum status st = from == NULL || to == NULL || report_path == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK)
        st = withdraw(r, to, err);
    for (size_t i = 0; i < e->n_regions && st == ST_OK; i++)
        if (is_new(e, i))
            st = publish_block(r, e->regions[i].name, err);
    if (st == ST_OK)
        st = driver_emit_fault("enclosing_publish", err);
    if (st == ST_OK)
        st = file_publish(report_path, report->data, report->size, err);
    if (st == ST_OK)
        st = file_rename(from, to, err);
    if (st == ST_OK)
        driver_sweep(r->out, WEIGHTS_START, r->weights_file);
    free(from);
    free(to);
    free(report_path);
    return st;
}

/* ---- rolling back ---------------------------------------------------------------------------- */

static void discard_block(const struct enclosing_result *r, const char *name)
{
    char *dir = path_join(r->out, name);
    char *staged = dir == NULL ? NULL : path_join(dir, LOOKUP_STAGED_FILE);
    if (staged != NULL && file_exists(staged)) {
        char *keep = driver_payload_of(dir, LOOKUP_RECIPE_FILE);
        unlink(staged);
        driver_sweep(dir, PAYLOAD_START, keep);
        if (keep == NULL)
            rmdir(dir); /* it stays where it holds anything else */
        free(keep);
    }
    free(staged);
    free(dir);
}

/* Weights file that the published model names, owned; NULL where there is none. */
static char *published_weights(const struct enclosing_result *r)
{
    char *path = path_join(r->out, ENCLOSING_MODEL_FILE), *name = NULL;
    struct format_spec *spec = NULL;
    struct err ignored = {0};
    if (path != NULL && file_exists(path) && format_spec_read(path, &spec, &ignored) == ST_OK)
        name = str_dup(path_base(spec->checkpoint_path));
    format_spec_free(&spec);
    free(path);
    return name;
}

void driver_enclosing_discard(const struct enclosing_result *r)
{
    const struct driver_enclosing *e = r->job->enclosing;
    char *staged = path_join(r->out, ENCLOSING_STAGED_FILE), *keep = published_weights(r);
    for (size_t i = 0; i < e->n_regions; i++)
        discard_block(r, e->regions[i].name);
    if (staged != NULL)
        unlink(staged);
    driver_sweep(r->out, WEIGHTS_START, keep);
    if (keep == NULL)
        rmdir(r->out);
    free(staged);
    free(keep);
}
