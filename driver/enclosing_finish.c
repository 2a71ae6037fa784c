/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a compile run over a graph: rewrite, compare complete outputs, publish or roll back.
 * Rank 0 works alone; the others hold the locks and learn how it ended. */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"

static const char *const rolled_back = "rejected_and_rolled_back";

/* Numeric policy of one block ends the run: the region can be left out by naming others. */
static bool is_policy(enum status st)
{
    return st == ST_TOLERANCE || st == ST_DECISION || st == ST_NONFINITE || st == ST_POSITIONS;
}

static enum status free_result(struct enclosing_result *r, enum status st)
{
    format_examples_free(&r->examples);
    driver_enclosing_comparison_free(&r->comparison);
    free(r->weights_file);
    free(r->model_sha256);
    free(r->keep);
    free(r->replaced);
    return st;
}

/* ---- nothing to rewrite ---------------------------------------------------------------------- */

static size_t count_rewritten(const struct driver_enclosing *e)
{
    size_t n = 0;
    for (size_t i = 0; i < e->n_regions; i++)
        n += driver_enclosing_is_rewritten(e, i);
    return n;
}

/* No region is tabulated: the status of the first that was tried, or why none could be. */
static enum status refuse_all(struct enclosing_result *r, const struct err *blocks, struct err *err)
{
    const struct driver_enclosing *e = r->job->enclosing;
    enum status st = blocks->st == ST_OK ? ST_STRUCTURE : blocks->st;
    r->status = driver_status_word(st);
    if (blocks->st != ST_OK)
        (void)snprintf(r->reason, sizeof r->reason, "%s", blocks->message);
    else if (e->n_regions == 0)
        (void)snprintf(r->reason, sizeof r->reason,
                       "%s: graph: no live node is an embedding: nothing to tabulate",
                       r->job->spec->path);
    else
        (void)snprintf(r->reason, sizeof r->reason, "%s: graph: region %s stays as it is: %s",
                       r->job->spec->path, e->regions[0].name,
                       e->regions[0].reason == NULL ? "" : e->regions[0].reason);
    return err_set(err, st, "%s", r->reason);
}

/* ---- rewriting and comparing ----------------------------------------------------------------- */

static void count_storage(struct enclosing_result *r, const struct driver_model *rewritten,
                          struct err *err, enum status *st)
{
    const struct driver_enclosing *e = r->job->enclosing;
    *st = graph_model_storage(e->model, &r->before, err);
    if (*st == ST_OK)
        *st = graph_model_storage(rewritten->model, &r->kept, err);
    for (size_t i = 0; i < e->n_regions; i++) {
        if (!driver_enclosing_is_rewritten(e, i))
            continue;
        const struct driver_verdict *v = &e->outcomes[i].verdict;
        const struct graph_storage *s = &r->job->blocks[e->block_of[i]].source;
        r->tables_logical += v->logical_after - s->retained_logical_bytes;
        r->tables_unique += v->unique_after - s->retained_unique_bytes;
    }
    r->has_storage = *st == ST_OK;
}

static enum status rewrite_and_compare(struct enclosing_result *r, const struct driver_opts *opts,
                                       struct err *err)
{
    const struct driver_job *job = r->job;
    struct driver_model_opts mopts = {
        .opts = opts, .kernels = job->kernels, .checkpoint = opts->checkpoint, .staged = true};
    struct driver_model *original = NULL, *rewritten = NULL;
    char *path = path_join(r->out, ENCLOSING_STAGED_FILE);
    enum status st = path == NULL ? err_nomem(err, 1) : driver_enclosing_stage(r, err);
    if (st == ST_OK)
        st = driver_model_open(job->spec->path, &mopts, &original, err);
    mopts.checkpoint = NULL;
    if (st == ST_OK)
        st = driver_model_open(path, &mopts, &rewritten, err);
    if (st == ST_OK)
        rewritten->shown = job->spec->path; /* the staged spec goes when the run fails */
    if (st == ST_OK)
        count_storage(r, rewritten, err, &st);
    if (st == ST_OK)
        st = driver_enclosing_compare(job->spec, original, rewritten, &r->examples, &r->comparison,
                                      err);
    driver_model_close(&original);
    driver_model_close(&rewritten);
    free(path);
    return st;
}

static enum status write_report(const struct enclosing_result *r, const struct bytes *report,
                                struct err *err)
{
    char *path = path_join(r->work, ENCLOSING_REPORT_FILE);
    enum status st =
        path == NULL ? err_nomem(err, 1) : file_publish(path, report->data, report->size, err);
    free(path);
    return st;
}

/* Rank 0's part. */
static enum status finish(struct enclosing_result *r, const struct driver_opts *opts,
                          const struct err *blocks, struct err *err)
{
    const struct driver_job *job = r->job;
    struct bytes report = {0};
    struct err verdict = {0}, late = {0};
    enum status st = ST_OK;
    if (is_policy(blocks->st)) {
        r->status = driver_status_word(blocks->st);
        (void)snprintf(r->reason, sizeof r->reason, "%s", blocks->message);
        st = err_set(&verdict, blocks->st, "%s", blocks->message);
    } else if (count_rewritten(job->enclosing) == 0) {
        st = refuse_all(r, blocks, &verdict);
    } else {
        TRY(rewrite_and_compare(r, opts, err));
        if (r->comparison.failure.failed) {
            r->status = rolled_back;
            (void)snprintf(r->reason, sizeof r->reason, "%s", r->comparison.failure.message);
            st = err_set(&verdict, r->comparison.failure.st, "%s: %s: %s", job->spec->path,
                         rolled_back, r->reason);
        } else {
            r->status = driver_status_word(ST_OK);
        }
    }
    enum status made = driver_enclosing_report(r, &report, &late);
    if (made == ST_OK)
        made = write_report(r, &report, &late);
    if (made == ST_OK && st == ST_OK)
        made = driver_enclosing_publish(r, &report, &late);
    bytes_free(&report);
    if (made != ST_OK) {
        r->status = NULL; /* nothing is announced that was not published */
        *err = late;
        return made;
    }
    if (st != ST_OK)
        *err = verdict;
    return st;
}

/* ---- results --------------------------------------------------------------------------------- */

static void result_text(const struct enclosing_result *r, struct bytes *out)
{
    const struct driver_enclosing *e = r->job->enclosing;
    char before[32], after[32];
    bytes_printf(out, "model: %s\n", r->status);
    if (r->reason[0] != '\0')
        bytes_printf(out, "  %s\n", r->reason);
    for (size_t i = 0; i < e->n_regions && count_rewritten(e) > 0; i++)
        if (!driver_enclosing_is_rewritten(e, i))
            bytes_printf(out, "  region %s stays as it is: %s\n", e->regions[i].name,
                         e->regions[i].reason != NULL ? e->regions[i].reason
                                                      : e->outcomes[i].reason);
    if (r->has_storage) {
        uint64_t b = r->before.unique_bytes, a = r->tables_unique + r->kept.unique_bytes;
        bytes_printf(out, "  model bytes before %llu (%s), after %llu (%s)\n",
                     (unsigned long long)b, str_bytes(b, before, sizeof before),
                     (unsigned long long)a, str_bytes(a, after, sizeof after));
    }
    for (size_t i = 0; r->comparison.outputs != NULL && i < e->model->n_outputs; i++) {
        const struct executor_difference *d = &r->comparison.outputs[i];
        char x[32];
        bytes_printf(out, "  output %s: %zu examples, %s%s%s\n", e->model->outputs[i].name,
                     r->comparison.n_done,
                     d->unequal_bytes == 0 ? "the same bytes"
                     : d->unequal == 0     ? "the same values"
                                           : "max_abs ",
                     d->unequal == 0 ? "" : str_double(d->max_abs, x, sizeof x), "");
    }
    if (r->reason[0] == '\0')
        bytes_printf(out, "  model %s/%s\n", r->out, ENCLOSING_MODEL_FILE);
}

static char *result_json(const struct enclosing_result *r)
{
    struct format_writer w = {.pretty = true, .depth = 1};
    const struct driver_enclosing *e = r->job->enclosing;
    format_write_object(&w, NULL);
    format_write_string(&w, "status", r->status == NULL ? "failed" : r->status);
    if (r->reason[0] != '\0')
        format_write_string(&w, "reason", r->reason);
    format_write_u64(&w, "regions", e->n_regions);
    format_write_u64(&w, "regions_rewritten", count_rewritten(e));
    format_write_u64(&w, "examples", r->comparison.n_done);
    if (r->has_storage) {
        format_write_u64(&w, "logical_before", r->before.logical_bytes);
        format_write_u64(&w, "logical_after", r->tables_logical + r->kept.logical_bytes);
        format_write_u64(&w, "unique_before", r->before.unique_bytes);
        format_write_u64(&w, "unique_after", r->tables_unique + r->kept.unique_bytes);
    }
    format_write_end_object(&w);
    bytes_put_u8(&w.out, '\0');
    if (w.out.failed) {
        bytes_free(&w.out);
        return NULL;
    }
    char *text = str_dup((const char *)w.out.data + strspn((const char *)w.out.data, " \n"));
    bytes_free(&w.out);
    return text;
}

enum status driver_enclosing_finish_all(struct driver_context *ctx, struct driver_job *job,
                                        const char *out, const char *work, const struct err *blocks,
                                        char **json, struct err *err)
{
    struct enclosing_result r = {.job = job, .out = out, .work = work};
    struct err own = {0};
    bool root = comm_rank(ctx->comm) == 0;
    enum status st = ST_OK;
    *json = NULL;
    if (root) {
        st = format_spec_examples(job->spec, job->enclosing->model, &r.examples, &own);
        if (st == ST_OK)
            st = finish(&r, ctx->opts, blocks, &own);
        if (st != ST_OK)
            driver_enclosing_discard(&r);
        if (r.status != NULL && !ctx->opts->json)
            result_text(&r, &ctx->result);
        *json = result_json(&r);
    }
    *err = own;
    st = comm_agree(ctx->comm, st, err);
    if (root && own.st != ST_OK)
        *err = own;
    return free_result(&r, st);
}

void driver_enclosing_abandon(const struct driver_context *ctx, const struct driver_job *job,
                              const char *out, const char *work, const struct err *why,
                              struct err *err)
{
    const struct enclosing_result r = {.job = job, .out = out, .work = work};
    if (comm_rank(ctx->comm) == 0)
        driver_enclosing_discard(&r);
    *err = *why;
}
