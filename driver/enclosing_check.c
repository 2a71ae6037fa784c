/* SPDX-License-Identifier: Apache-2.0 */
/* What a graph spec's examples show before any work: the original model runs on every one of them,
 * so that ids, shapes and attributes that do not fit end a run before the vocabulary is evaluated.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"

/* ---- examples -------------------------------------------------------------------------------- */

static enum status read_examples(const struct driver_job *job, struct format_examples *examples,
                                 struct err *err)
{
    TRY(format_spec_examples(job->spec, job->enclosing->model, examples, err));
    if (examples->n > 0)
        return ST_OK;
    return err_set(err, ST_SPEC,
                   "%s: examples: missing: the complete outputs of an enclosing model are "
                   "compared on them",
                   job->spec->path);
}

enum status driver_enclosing_check_examples(const struct driver_job *job, struct err *err)
{
    struct format_examples examples = {0};
    enum status st = read_examples(job, &examples, err);
    format_examples_free(&examples);
    return st;
}

/* ---- ids that no table will hold ------------------------------------------------------------- */

static int compare_ids(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool is_held(const struct driver_job *job, int64_t id)
{
    uint64_t key = (uint64_t)id;
    if (id < 0)
        return false;
    if (job->ids != NULL)
        return bsearch(&key, job->ids, job->n_ids, sizeof key, compare_ids) != NULL;
    return job->spec->vocab == 0 || key < job->spec->vocab;
}

static enum status check_ids(const struct driver_job *job, const struct format_example *example,
                             const struct format_array *a, const char *input, struct err *err)
{
    uint64_t n = 1;
    for (unsigned i = 0; i < a->rank; i++)
        n *= a->shape[i]; /* the array lies in memory */
    for (uint64_t i = 0; i < n; i++) {
        int64_t id =
            a->dtype == DT_I32 ? ((const int32_t *)a->data)[i] : ((const int64_t *)a->data)[i];
        if (!is_held(job, id))
            return err_set(err, ST_SPEC,
                           "%s: example %s: input %s: element %llu is id %lld, which %s leaves out",
                           job->spec->path, example->name, input, (unsigned long long)i,
                           (long long)id, job->ids != NULL ? job->spec->ids_path : "vocab");
    }
    return ST_OK;
}

/* Ids of the regions that become tables; the others' embeddings stay whole. */
static enum status check_domain(const struct driver_job *job, const struct format_example *example,
                                struct err *err)
{
    const struct driver_enclosing *e = job->enclosing;
    for (size_t r = 0; r < e->n_regions; r++) {
        uint32_t ids = e->model->graph.nodes[e->regions[r].embedding].inputs[0];
        for (size_t i = 0; e->block_of[r] != SIZE_MAX && i < e->model->n_inputs; i++)
            if (e->model->inputs[i].node == ids)
                TRY(check_ids(job, example, &example->inputs[i], e->model->inputs[i].name, err));
    }
    return ST_OK;
}

/* ---- the original model ---------------------------------------------------------------------- */

static enum status run_example(const struct driver_model *m, const struct format_example *example,
                               struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(m->model->n_outputs, sizeof(struct executor_array), &memory, err));
    struct executor_array *outputs = memory;
    enum status st = driver_model_run(m, example, outputs, err);
    for (size_t i = 0; i < m->model->n_outputs; i++)
        executor_array_free(&outputs[i]);
    free(outputs);
    return st;
}

static enum status run_original(const struct driver_opts *opts, const struct driver_job *job,
                                struct err *err)
{
    const struct driver_model_opts mopts = {
        .opts = opts, .kernels = job->kernels, .checkpoint = opts->checkpoint};
    struct format_examples examples = {0};
    struct driver_model *m = NULL;
    enum status st = read_examples(job, &examples, err);
    if (st == ST_OK)
        st = driver_model_open(job->spec->path, &mopts, &m, err);
    for (size_t i = 0; i < examples.n && st == ST_OK; i++) {
        st = driver_check_stop(err);
        if (st == ST_OK)
            st = run_example(m, &examples.list[i], err);
        if (st == ST_OK)
            st = check_domain(job, &examples.list[i], err);
    }
    driver_model_close(&m);
    format_examples_free(&examples);
    return st;
}

enum status driver_enclosing_check(struct driver_context *ctx, const struct driver_job *job,
                                   struct err *err)
{
    struct err own = {0};
    bool root = comm_rank(ctx->comm) == 0;
    if (job->enclosing == NULL)
        return ST_OK;
    enum status st = root ? run_original(ctx->opts, job, &own) : ST_OK;
    *err = own;
    st = comm_agree(ctx->comm, st, err);
    if (root && own.st != ST_OK)
        *err = own;
    return st;
}
