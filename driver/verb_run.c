/* SPDX-License-Identifier: Apache-2.0 */
/* run: an enclosing model on the calls of a file; original specs and rewritten models alike. */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"
#include "driver/verb_internal.h"

struct results {
    struct format_tensor_spec *specs;
    struct executor_array *arrays; /* owned data */
    const void **data;
    char **names; /* owned */
    size_t n;
};

static enum status results_make(struct results *r, size_t n, struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(n, sizeof *r->specs, &memory, err));
    r->specs = memory;
    TRY(mem_calloc(n, sizeof *r->arrays, &memory, err));
    r->arrays = memory;
    TRY(mem_calloc(n, sizeof *r->data, &memory, err));
    r->data = memory;
    TRY(mem_calloc(n, sizeof *r->names, &memory, err));
    r->names = memory;
    r->n = n;
    return ST_OK;
}

static void results_free(struct results *r)
{
    for (size_t i = 0; i < r->n; i++) {
        executor_array_free(&r->arrays[i]);
        free(r->names[i]);
    }
    free(r->specs);
    free(r->arrays);
    free(r->data);
    free(r->names);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Outputs are tensors "OUTPUT.EXAMPLE"; a file holds one of each name. */
static enum status name_all(struct results *r, const struct driver_model *m,
                            const struct format_examples *examples, struct err *err)
{
    size_t n = m->model->n_outputs;
    void *memory = NULL;
    for (size_t at = 0; at < r->n; at++) {
        const char *output = m->model->outputs[at % n].name, *name = examples->list[at / n].name;
        r->names[at] = str_printf("%s%s%s", output, *name == '\0' ? "" : ".", name);
        if (r->names[at] == NULL)
            return err_nomem(err, strlen(name) + 1);
    }
    TRY(mem_alloc(r->n, sizeof *r->names, &memory, err));
    char **sorted = memory;
    enum status st = ST_OK;
    if (r->n > 0) {
        memcpy(sorted, r->names, r->n * sizeof *sorted);
        qsort(sorted, r->n, sizeof *sorted, by_name);
    }
    for (size_t i = 1; i < r->n && st == ST_OK; i++)
        if (strcmp(sorted[i - 1], sorted[i]) == 0)
            st = err_set(err, ST_USAGE,
                         "run: two outputs would be tensor %s (output, \".\", example): call the "
                         "examples otherwise",
                         sorted[i]);
    free(sorted);
    return st;
}

/* Outputs of one example. */
static enum status take(struct results *r, const struct driver_model *m,
                        const struct format_examples *examples, size_t example, struct err *err)
{
    size_t n = m->model->n_outputs;
    TRY(driver_model_run(m, &examples->list[example], &r->arrays[example * n], err));
    for (size_t i = 0; i < n; i++) {
        size_t at = example * n + i;
        const struct executor_array *a = &r->arrays[at];
        struct format_tensor_spec *s = &r->specs[at];
        if (a->rank > FORMAT_MAX_RANK)
            return err_set(err, ST_STRUCTURE, "output %s: %u axes, a file holds at most %d",
                           m->model->outputs[i].name, a->rank, FORMAT_MAX_RANK);
        *s = (struct format_tensor_spec){.name = r->names[at], .dtype = a->dtype, .rank = a->rank};
        memcpy(s->shape, a->shape, a->rank * sizeof *s->shape);
        r->data[at] = a->data;
    }
    return ST_OK;
}

static enum status run_model(struct driver_context *ctx, const struct driver_model *m,
                             struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    struct format_examples examples = {0};
    struct results r = {.n = 0};
    struct format_writer w;
    enum status st = o->inputs != NULL ? format_examples_file(o->inputs, m->model, &examples, err)
                                       : format_spec_examples(m->spec, m->model, &examples, err);
    if (st == ST_OK && examples.n == 0)
        st = err_set(err, ST_USAGE, "run: no calls: --inputs FILE, or a spec with examples");
    if (st == ST_OK)
        st = results_make(&r, examples.n * m->model->n_outputs, err);
    if (st == ST_OK)
        st = name_all(&r, m, &examples, err);
    for (size_t i = 0; i < examples.n && st == ST_OK; i++) {
        st = driver_check_stop(err);
        if (st == ST_OK)
            st = take(&r, m, &examples, i, err);
    }
    if (st == ST_OK)
        st = format_safetensors_write(o->out, r.specs, r.data, r.n, NULL, err);
    if (st == ST_OK && o->json) {
        verb_json_start(ctx, &w);
        format_write_string(&w, "model", m->path);
        format_write_u64(&w, "calls", examples.n);
        format_write_u64(&w, "tensors", r.n);
        format_write_string(&w, "out", o->out);
        verb_json_end(ctx, &w);
    } else if (st == ST_OK) {
        bytes_printf(&ctx->result, "%s: %zu calls, %zu tensors in %s\n", m->path, examples.n, r.n,
                     o->out);
    }
    results_free(&r);
    format_examples_free(&examples);
    return st;
}

enum status driver_verb_run(struct driver_context *ctx, struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    struct driver_job job = {0}; /* for its kernels alone */
    struct driver_model *m = NULL;
    driver_signals_setup();
    TRY(verb_output_check(o->out, "--out", o->force, err));
    char *path = driver_model_spec_path(o->args[0]);
    enum status st = path == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK)
        st = format_spec_read(path, &job.spec, err);
    if (st == ST_OK)
        st = driver_job_kernels_all(ctx->comm, o, &job, err);
    if (st == ST_OK) {
        const struct driver_model_opts mopts = {
            .opts = o, .kernels = job.kernels, .checkpoint = o->checkpoint};
        st = driver_model_open(path, &mopts, &m, err);
    }
    if (st == ST_OK)
        st = run_model(ctx, m, err);
    driver_model_close(&m);
    driver_job_close(&job);
    free(path);
    return st;
}
