/* SPDX-License-Identifier: Apache-2.0 */
/* report.json: a function of spec, weights and numeric environment alone. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"

enum { REPORT_MAX_TOKENS = 10000 }; /* longest token list; the count is always whole */

struct report {
    const struct driver_job *job;
    const struct driver_block *b;
    const struct driver_totals *t;
    const struct driver_layout *l;
    const struct driver_verdict *v;
    struct format_writer *w;
};

void driver_write_environment(struct format_writer *w, const struct kernels *k)
{
    format_write_object(w, "environment");
    for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
        char value[KERNELS_TEXT_SIZE];
        const char *name = NULL;
        kernels_env_field(kernels_environment(k), i, &name, value, sizeof value);
        format_write_string(w, name, value);
    }
    format_write_end_object(w);
}

void driver_write_profiles(struct format_writer *w, const struct format_spec *spec)
{
    format_write_array(w, "row_count_profiles");
    for (size_t i = 0; i < spec->n_profiles; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "max_rows", spec->profiles[i].max_rows);
        format_write_u64(w, "evaluation_rows", spec->profiles[i].evaluation_rows);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void write_head(struct format_writer *w, const struct driver_job *job,
                       const struct driver_block *b, const char *status, const char *reason)
{
    const char *kinds[] = {"lookup", "fanout", "projected"};
    format_write_u64(w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(w, "status", status);
    if (reason != NULL && *reason != '\0')
        format_write_string(w, "reason", reason);
    else
        format_write_null(w, "reason");
    format_write_string(w, "block", b->graph->name);
    format_write_string(w, "kind", kinds[b->graph->kind]);
    format_write_string(w, "arithmetic",
                        job->spec->correctly_rounded ? "correctly_rounded" : "library");
    format_write_u64(w, "tokens", b->n_rows);
    format_write_u64(w, "rows_in_checkpoint", b->graph->rows_in_checkpoint);
    format_write_u64(w, "bulk_rows", job->spec->bulk_rows);
    format_write_u64(w, "validation_rows", job->spec->validation_rows);
    driver_write_profiles(w, job->spec);
    format_write_object(w, "tolerance");
    format_write_double(w, "absolute", job->spec->tolerance_absolute);
    format_write_double(w, "relative", job->spec->tolerance_relative);
    format_write_end_object(w);
    if (job->kernels == NULL)
        return;
    /* The library kernels that the validation ran, in both arithmetics. */
    driver_write_environment(w, job->kernels);
}

static void write_storage(const struct report *r)
{
    struct format_writer *w = r->w;
    format_write_object(w, "storage");
    format_write_string(w, "policy",
                        r->job->spec->storage == STORAGE_MAY_GROW ? "may_grow" : "must_shrink");
    format_write_u64(w, "logical_before", r->v->logical_before);
    format_write_u64(w, "logical_after", r->v->logical_after);
    format_write_u64(w, "unique_before", r->v->unique_before);
    format_write_u64(w, "unique_after", r->v->unique_after);
    format_write_u64(w, "retained", r->b->source.retained_logical_bytes);
    format_write_u64(w, "bias", r->b->source.bias_bytes);
    format_write_bool(w, "shrinks", r->v->shrinks);
    format_write_end_object(w);
}

static void write_tables(const struct report *r)
{
    struct format_writer *w = r->w;
    size_t n_outputs = r->b->graph->n_tables;
    char route[32];
    format_write_array(w, "tables");
    for (size_t i = 0; i < r->l->n_tables; i++) {
        const struct driver_table *t = &r->l->tables[i];
        format_write_object(w, NULL);
        format_write_u64(w, "id", i);
        format_write_string(w, "dtype", dtype_name(t->dtype));
        format_write_u64(w, "rows", t->rows);
        format_write_u64(w, "width", t->width);
        format_write_u64(w, "bytes", t->rows * t->width * dtype_size(t->dtype));
        format_write_bool(w, "constant", t->constant);
        format_write_u64(w, "group", t->group);
        format_write_u64(w, "column", t->column);
        format_write_array(w, "uses");
        for (size_t s = 0; s < r->l->n_sources; s++) {
            if (r->l->table_of[s] != i)
                continue;
            format_write_array(w, NULL);
            format_write_string(w, NULL, lookup_route_name(s / n_outputs, route, sizeof route));
            format_write_string(w, NULL, r->b->graph->tables[s % n_outputs].name);
            format_write_end_array(w);
        }
        format_write_end_array(w);
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_array(w, "groups");
    for (size_t g = 0; g < r->l->n_groups; g++) {
        const struct format_group *group = &r->l->groups[g];
        format_write_object(w, NULL);
        format_write_u64(w, "id", g);
        format_write_string(w, "dtype", dtype_name(group->dtype));
        format_write_u64(w, "rows", group->rows);
        format_write_u64(w, "width", group->width);
        format_write_bool(w, "indexed", group->indexed);
        if (r->l->sharing[g].counted)
            format_write_u64(w, "distinct_rows", r->l->sharing[g].n_distinct);
        else
            format_write_null(w, "distinct_rows"); /* not looked for: see docs/performance.md */
        format_write_end_object(w);
    }
    format_write_end_array(w);
    format_write_array(w, "double_precision_error");
    for (size_t s = 0; s < r->l->n_sources; s++) {
        format_write_object(w, NULL);
        format_write_string(w, "route", lookup_route_name(s / n_outputs, route, sizeof route));
        format_write_string(w, "table", r->b->graph->tables[s % n_outputs].name);
        format_write_double(w, "max_abs", r->t->double_error[s]);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void write_classes(const struct report *r)
{
    struct format_writer *w = r->w;
    format_write_array(w, "execution_classes");
    for (size_t c = 0; c < worker_n_classes(r->b->worker); c++) {
        const struct worker_class *class = worker_class_at(r->b->worker, c);
        format_write_object(w, NULL);
        format_write_string(w, "name", class->name);
        format_write_u64(w, "rows", class->rows);
        format_write_string(w, "bias", class->bias == BIAS_ADDED ? "added" : "prefilled");
        format_write_array(w, "layouts");
        for (size_t i = 0; i < class->n_layouts; i++)
            format_write_string(w, NULL, class->layouts[i]);
        format_write_end_array(w);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void write_place(const struct report *r, const char *key, uint64_t token, uint64_t column)
{
    format_write_object(r->w, key);
    format_write_u64(r->w, "token", driver_row_id(r->job, token));
    format_write_u64(r->w, "column", column);
    format_write_end_object(r->w);
}

static void write_histogram(const struct report *r, const struct worker_stat *s)
{
    size_t last = 0;
    for (size_t i = 0; i < WORKER_ULP_BUCKETS; i++)
        if (s->ulp[i] > 0)
            last = i;
    format_write_array(r->w, "ulp_histogram");
    for (size_t i = 0; i <= last; i++)
        format_write_u64(r->w, NULL, s->ulp[i]);
    format_write_end_array(r->w);
}

static void write_statistic(const struct report *r, size_t class_index, size_t output, size_t route)
{
    const struct worker_stat *s =
        &r->t->stats[worker_stat_index(r->b->worker, class_index, output, route)];
    struct format_writer *w = r->w;
    char name[32];
    if (s->cases == 0)
        return;
    format_write_object(w, NULL);
    format_write_string(w, "class", worker_class_at(r->b->worker, class_index)->name);
    format_write_string(w, "output", r->b->graph->results[output].name);
    format_write_string(w, "route", lookup_route_name(route, name, sizeof name));
    format_write_u64(w, "cases", s->cases);
    format_write_u64(w, "elements", s->elements);
    format_write_bool(w, "exact", s->unequal == 0 && s->nonfinite == 0);
    format_write_bool(w, "bitwise", s->unequal_bytes == 0);
    format_write_u64(w, "unequal", s->unequal);
    format_write_u64(w, "unequal_bytes", s->unequal_bytes);
    format_write_u64(w, "nonfinite", s->nonfinite);
    format_write_double(w, "max_abs", s->max_abs);
    if (s->unequal > 0)
        write_place(r, "max_abs_at", s->max_abs_token, s->max_abs_column);
    format_write_double(w, "max_relative_l2", s->max_rel);
    if (s->max_rel > 0)
        format_write_u64(w, "max_relative_l2_case", driver_row_id(r->job, s->max_rel_token));
    format_write_u64(w, "max_ulp", s->max_ulp);
    if (s->max_ulp > 0)
        write_place(r, "max_ulp_at", s->max_ulp_token, s->max_ulp_column);
    write_histogram(r, s);
    format_write_double(w, "max_abs_to_double", s->max_abs_double);
    if (s->decisions > 0) {
        format_write_u64(w, "decisions", s->decisions);
        format_write_u64(w, "decisions_changed", s->decisions_changed);
        if (s->decisions_changed > 0)
            format_write_u64(w, "first_changed_token",
                             driver_row_id(r->job, s->first_changed_token));
    }
    format_write_end_object(w);
}

/* ---- decisions ------------------------------------------------------------------------------- */

/* One pass over the per-token columns of a result, unit by unit. */
struct decision_scan {
    double smallest_margin, largest_error;
    uint64_t smallest_margin_token, n_changed, n_fragile;
    struct bytes changed, fragile; /* JSON lists */
};

static enum status read_column(struct shard_store *store, uint64_t unit, const char *output,
                               const char *what, double *dst, struct err *err)
{
    char *path = shard_store_unit_path(store, unit);
    char *name = str_printf("decision/%s/%s", output, what);
    struct format_shard_reader *reader = NULL;
    enum status st = path == NULL || name == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK)
        st = format_shard_reader_open(path, &reader, err);
    if (st == ST_OK)
        st = format_shard_reader_column(reader, name, dst, err);
    format_shard_reader_close(&reader);
    free(path);
    free(name);
    return st;
}

static void list_token(struct bytes *list, uint64_t *n, uint64_t token)
{
    if (*n < REPORT_MAX_TOKENS)
        bytes_printf(list, "%s%llu", *n == 0 ? "" : ", ", (unsigned long long)token);
    (*n)++;
}

/* pass 0: smallest margin, largest error; pass 1: the lists that need them. */
static enum status scan_decisions(const struct report *r, struct shard_store *store,
                                  const char *output, int pass, struct decision_scan *scan,
                                  struct err *err)
{
    size_t rows = (size_t)min_u64(r->b->grid.unit_rows, r->b->n_rows);
    void *margin = NULL, *error = NULL, *changed = NULL;
    enum status st = mem_alloc(rows, sizeof(double), &margin, err);
    if (st == ST_OK)
        st = mem_alloc(rows, sizeof(double), &error, err);
    if (st == ST_OK)
        st = mem_alloc(rows, sizeof(double), &changed, err);
    for (uint64_t u = 0; u < r->b->grid.n_units && st == ST_OK; u++) {
        uint64_t first = 0, count = 0;
        shard_grid_rows(&r->b->grid, u, &first, &count);
        st = read_column(store, u, output, "margin", margin, err);
        if (st == ST_OK)
            st = read_column(store, u, output, "max_error", error, err);
        if (st == ST_OK)
            st = read_column(store, u, output, "changed", changed, err);
        for (uint64_t i = 0; i < count && st == ST_OK; i++) {
            double m = ((double *)margin)[i];
            if (pass == 0) {
                if (m < scan->smallest_margin) {
                    scan->smallest_margin = m;
                    scan->smallest_margin_token = first + i;
                }
                scan->largest_error = fmax(scan->largest_error, ((double *)error)[i]);
                continue;
            }
            if (((double *)changed)[i] > 0)
                list_token(&scan->changed, &scan->n_changed, driver_row_id(r->job, first + i));
            if (m < 10 * scan->largest_error)
                list_token(&scan->fragile, &scan->n_fragile, driver_row_id(r->job, first + i));
        }
    }
    free(margin);
    free(error);
    free(changed);
    return st;
}

static void write_list(struct format_writer *w, const char *key, struct bytes *list)
{
    struct bytes text = {0};
    bytes_printf(&text, "[%.*s]", (int)list->size, list->size == 0 ? "" : (const char *)list->data);
    bytes_put_u8(&text, '\0');
    if (!text.failed)
        format_write_raw(w, key, (const char *)text.data);
    w->out.failed = w->out.failed || text.failed || list->failed;
    bytes_free(&text);
}

static enum status write_decisions(const struct report *r, struct shard_store *store,
                                   struct err *err)
{
    struct format_writer *w = r->w;
    enum status st = ST_OK;
    format_write_array(w, "decisions");
    for (size_t o = 0; o < r->b->graph->n_results && st == ST_OK; o++) {
        const struct graph_output *result = &r->b->graph->results[o];
        struct decision_scan scan = {.smallest_margin = INFINITY};
        if (result->decision_top_k == 0)
            continue;
        st = scan_decisions(r, store, result->name, 0, &scan, err);
        if (st == ST_OK)
            st = scan_decisions(r, store, result->name, 1, &scan, err);
        format_write_object(w, NULL);
        format_write_string(w, "output", result->name);
        format_write_u64(w, "top_k", result->decision_top_k);
        format_write_bool(w, "softmax", result->decision_softmax);
        format_write_double(w, "smallest_margin", scan.smallest_margin);
        format_write_u64(w, "smallest_margin_token",
                         driver_row_id(r->job, scan.smallest_margin_token));
        format_write_double(w, "largest_error", scan.largest_error);
        format_write_u64(w, "changed_count", scan.n_changed);
        write_list(w, "changed_tokens", &scan.changed);
        format_write_u64(w, "fragile_count", scan.n_fragile);
        write_list(w, "fragile_tokens", &scan.fragile);
        format_write_end_object(w);
        bytes_free(&scan.changed);
        bytes_free(&scan.fragile);
    }
    format_write_end_array(w);
    return st;
}

/* ---- the report ------------------------------------------------------------------------------ */

static enum status finish(struct format_writer *w, struct bytes *out, struct err *err)
{
    format_write_finish(w);
    *out = w->out;
    if (out->failed)
        return err_nomem(err, out->size);
    return ST_OK;
}

enum status driver_report_make(const struct driver_job *job, const struct driver_block *b,
                               const struct driver_totals *t, const struct driver_layout *l,
                               const struct driver_verdict *v, struct shard_store *store,
                               struct bytes *out, struct err *err)
{
    struct format_writer w = {.pretty = true};
    struct report r = {.job = job, .b = b, .t = t, .l = l, .v = v, .w = &w};
    format_write_object(&w, NULL);
    write_head(&w, job, b, v->status_text, v->reason);
    /* Counted within each unit, so that no rank needs memory for all tokens. */
    format_write_u64(&w, "distinct_embedding_rows_within_units", t->distinct_rows);
    write_storage(&r);
    write_tables(&r);
    write_classes(&r);
    format_write_array(&w, "statistics");
    for (size_t c = 0; c < worker_n_classes(b->worker); c++)
        for (size_t o = 0; o < b->graph->n_results; o++)
            for (size_t route = 0; route < b->n_routes; route++)
                write_statistic(&r, c, o, route);
    format_write_end_array(&w);
    format_write_array(&w, "lookup_layouts");
    for (size_t i = 0; worker_layout_names[i] != NULL; i++)
        format_write_string(&w, NULL, worker_layout_names[i]);
    format_write_end_array(&w);
    enum status st = write_decisions(&r, store, err);
    format_write_end_object(&w);
    enum status finished = finish(&w, out, err);
    return st == ST_OK ? finished : st;
}

enum status driver_report_refused(const struct driver_job *job, const struct driver_block *b,
                                  const struct err *why, struct bytes *out, struct err *err)
{
    struct format_writer w = {.pretty = true};
    format_write_object(&w, NULL);
    write_head(&w, job, b, driver_status_word(why->st), why->message);
    format_write_end_object(&w);
    return finish(&w, out, err);
}
