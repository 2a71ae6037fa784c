/* SPDX-License-Identifier: Apache-2.0 */
/* One unit: read its rows, decide whether its file can be reused, evaluate, validate, store.
 *
 * The `statistics` of a unit's file are worker_n_stats records, then one record a table
 * {constant, double_error}, then one {distinct embedding rows}; unused fields are zero. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"

void driver_unit_summary_free(struct driver_unit_summary *s)
{
    free(s->table_digests);
    free(s->table_constant);
    free(s->double_error);
    free(s->stats);
    *s = (struct driver_unit_summary){0};
}

static enum status summary_alloc(struct driver_unit_summary *s, size_t n_tables, size_t n_stats,
                                 struct err *err)
{
    void *digests = NULL, *constant = NULL, *errors = NULL, *stats = NULL;
    s->n_tables = n_tables;
    s->n_stats = n_stats;
    enum status st = mem_calloc(n_tables, sizeof *s->table_digests, &digests, err);
    if (st == ST_OK)
        st = mem_calloc(n_tables, 1, &constant, err);
    if (st == ST_OK)
        st = mem_calloc(n_tables, sizeof *s->double_error, &errors, err);
    if (st == ST_OK)
        st = mem_calloc(n_stats, sizeof *s->stats, &stats, err);
    s->table_digests = digests;
    s->table_constant = constant;
    s->double_error = errors;
    s->stats = stats;
    return st;
}

enum status driver_unit_summary_encode(const struct driver_unit_summary *s, struct bytes *out,
                                       struct err *err)
{
    bytes_put_u64(out, s->unit);
    bytes_put_u64(out, s->n_rows);
    bytes_put_u8(out, s->reused);
    bytes_put_u64(out, s->distinct_rows);
    bytes_put_str(out, s->fingerprint);
    bytes_put_u64(out, s->n_tables);
    bytes_put_u64(out, s->n_stats);
    for (size_t i = 0; i < s->n_tables; i++) {
        bytes_append(out, s->table_digests[i].bytes, sizeof s->table_digests[i].bytes);
        bytes_put_u8(out, s->table_constant[i]);
        bytes_put_f64(out, s->double_error[i]);
    }
    /* Ranks of one job run one binary, so the records travel as they lie. */
    bytes_append(out, s->stats, s->n_stats * sizeof *s->stats);
    return out->failed ? err_nomem(err, out->size) : ST_OK;
}

enum status driver_unit_summary_decode(struct bytes_reader *r, struct driver_unit_summary *s,
                                       struct err *err)
{
    *s = (struct driver_unit_summary){0};
    s->unit = bytes_get_u64(r);
    s->n_rows = bytes_get_u64(r);
    s->reused = bytes_get_u8(r) != 0;
    s->distinct_rows = bytes_get_u64(r);
    char *fingerprint = bytes_get_str(r);
    if (fingerprint != NULL)
        snprintf(s->fingerprint, sizeof s->fingerprint, "%s", fingerprint);
    free(fingerprint);
    size_t n_tables = (size_t)bytes_get_u64(r), n_stats = (size_t)bytes_get_u64(r);
    if (r->failed || n_tables > r->size || n_stats > r->size)
        return err_set(err, ST_INTERNAL, "a unit summary is cut");
    TRY(summary_alloc(s, n_tables, n_stats, err));
    for (size_t i = 0; i < n_tables; i++) {
        const uint8_t *digest = bytes_get(r, sizeof s->table_digests[i].bytes);
        if (digest != NULL)
            memcpy(s->table_digests[i].bytes, digest, sizeof s->table_digests[i].bytes);
        s->table_constant[i] = bytes_get_u8(r);
        s->double_error[i] = bytes_get_f64(r);
    }
    const uint8_t *stats = bytes_get(r, n_stats * sizeof *s->stats);
    if (stats != NULL && n_stats > 0)
        memcpy(s->stats, stats, n_stats * sizeof *s->stats);
    return r->failed ? err_set(err, ST_INTERNAL, "a unit summary is cut") : ST_OK;
}

/* ---- between a unit and its file ------------------------------------------------------------- */

static enum status statistics_encode(const struct worker_unit *u, double **out, size_t *n_records,
                                     struct err *err)
{
    size_t n_tables = u->n_routes * u->n_tables, fields = worker_stat_n_fields(), total = 0;
    void *memory = NULL;
    *n_records = u->n_stats + n_tables + 1;
    if (!mul_size(*n_records, fields, &total))
        return err_nomem(err, SIZE_MAX);
    TRY(mem_calloc(total, sizeof **out, &memory, err));
    *out = memory;
    for (size_t i = 0; i < u->n_stats; i++)
        worker_stat_encode(&u->stats[i], *out + i * fields);
    for (size_t i = 0; i < n_tables; i++) {
        double *record = *out + (u->n_stats + i) * fields;
        record[0] = u->table_constant[i];
        record[1] = u->double_error[i];
    }
    (*out)[(*n_records - 1) * fields] = (double)u->distinct_embedding_rows;
    return ST_OK;
}

static enum status summary_from_file(const struct driver_block *b, const char *path,
                                     struct driver_unit_summary *s, struct err *err)
{
    struct format_shard_info *info = NULL;
    TRY(format_shard_info_read(path, &info, err));
    size_t n_tables = b->n_routes * b->graph->n_tables, n_stats = worker_n_stats(b->worker);
    size_t fields = worker_stat_n_fields();
    enum status st = ST_OK;
    if (info->n_tables != n_tables || info->n_records != n_stats + n_tables + 1 ||
        info->n_fields != fields)
        st =
            err_set(err, ST_FORMAT, "%s: expected %zu tables and %zu statistics, found %zu and %zu",
                    path, n_tables, n_stats + n_tables + 1, info->n_tables, info->n_records);
    if (st == ST_OK)
        st = summary_alloc(s, n_tables, n_stats, err);
    for (size_t i = 0; i < n_stats && st == ST_OK; i++)
        st = worker_stat_decode(info->statistics + i * fields, &s->stats[i], err);
    for (size_t i = 0; i < n_tables && st == ST_OK; i++) {
        const double *record = info->statistics + (n_stats + i) * fields;
        s->table_digests[i] = info->table_digests[i];
        s->table_constant[i] = record[0] > 0;
        s->double_error[i] = record[1];
    }
    if (st == ST_OK) {
        s->distinct_rows = (uint64_t)info->statistics[(info->n_records - 1) * fields];
        s->n_rows = info->n_rows;
        s->reused = true;
    }
    format_shard_info_free(&info);
    return st;
}

static enum status summary_from_unit(const struct worker_unit *u, struct driver_unit_summary *s,
                                     struct err *err)
{
    size_t n_tables = u->n_routes * u->n_tables;
    TRY(summary_alloc(s, n_tables, u->n_stats, err));
    memcpy(s->table_digests, u->table_digests, n_tables * sizeof *s->table_digests);
    memcpy(s->table_constant, u->table_constant, n_tables);
    memcpy(s->double_error, u->double_error, n_tables * sizeof *s->double_error);
    memcpy(s->stats, u->stats, u->n_stats * sizeof *s->stats);
    s->distinct_rows = u->distinct_embedding_rows;
    s->n_rows = u->n_rows;
    return ST_OK;
}

/* ---- storing --------------------------------------------------------------------------------- */

enum { DECISION_COLUMNS = 3 };

struct unit_file {
    struct format_shard_table *tables;
    char (*routes)[24];
    struct format_shard_column *columns;
    char **column_names;
    size_t n_columns;
    double *statistics;
};

static void unit_file_free(struct unit_file *f)
{
    for (size_t i = 0; i < f->n_columns; i++)
        free(f->column_names[i]);
    free(f->column_names);
    free(f->columns);
    free(f->routes);
    free(f->tables);
    free(f->statistics);
}

static enum status unit_file_tables(const struct driver_block *b, const struct worker_unit *u,
                                    struct unit_file *f, struct err *err)
{
    size_t n = u->n_routes * u->n_tables;
    void *tables = NULL, *routes = NULL;
    enum status st = mem_calloc(n, sizeof *f->tables, &tables, err);
    if (st == ST_OK)
        st = mem_calloc(u->n_routes, sizeof *f->routes, &routes, err);
    f->tables = tables;
    f->routes = routes;
    for (size_t i = 0; i < n && st == ST_OK; i++) {
        size_t route = i / u->n_tables;
        const struct graph_output *t = &b->graph->tables[i % u->n_tables];
        lookup_route_name(route, f->routes[route], sizeof f->routes[route]);
        f->tables[i] = (struct format_shard_table){.route = f->routes[route],
                                                   .output = t->name,
                                                   .dtype = t->dtype,
                                                   .width = t->width,
                                                   .data = u->tables[i]};
    }
    return st;
}

static enum status unit_file_columns(const struct driver_block *b, const struct worker_unit *u,
                                     struct unit_file *f, struct err *err)
{
    size_t n_results = b->graph->n_results;
    void *columns = NULL, *names = NULL;
    enum status st = mem_calloc(n_results * DECISION_COLUMNS, sizeof *f->columns, &columns, err);
    if (st == ST_OK)
        st = mem_calloc(n_results * DECISION_COLUMNS, sizeof *f->column_names, &names, err);
    f->columns = columns;
    f->column_names = names;
    for (size_t i = 0; i < n_results && st == ST_OK; i++) {
        const struct graph_output *result = &b->graph->results[i];
        if (result->decision_top_k == 0)
            continue;
        const char *words[DECISION_COLUMNS] = {"margin", "max_error", "changed"};
        const double *data[DECISION_COLUMNS] = {u->margin[i], u->max_error[i], u->changed[i]};
        for (size_t j = 0; j < DECISION_COLUMNS; j++) {
            char *name = str_printf("decision/%s/%s", result->name, words[j]);
            if (name == NULL)
                return err_nomem(err, sizeof words);
            f->column_names[f->n_columns] = name;
            f->columns[f->n_columns++] =
                (struct format_shard_column){.name = name, .data = data[j]};
        }
    }
    return st;
}

static enum status unit_store(const struct driver_block *b, struct shard_store *store,
                              uint64_t unit, const struct worker_unit *u,
                              const struct shard_fingerprint *fingerprint, struct err *err)
{
    struct unit_file f = {0};
    size_t n_records = 0;
    enum status st = unit_file_tables(b, u, &f, err);
    if (st == ST_OK)
        st = unit_file_columns(b, u, &f, err);
    if (st == ST_OK)
        st = statistics_encode(u, &f.statistics, &n_records, err);
    if (st == ST_OK) {
        struct format_shard shard = {.unit = unit,
                                     .first_row = u->first_row,
                                     .n_rows = u->n_rows,
                                     .tables = f.tables,
                                     .n_tables = u->n_routes * u->n_tables,
                                     .statistics = f.statistics,
                                     .n_records = n_records,
                                     .n_fields = worker_stat_n_fields(),
                                     .statistics_columns = worker_stat_columns,
                                     .columns = f.columns,
                                     .n_columns = f.n_columns,
                                     .table_digests = u->table_digests,
                                     .fingerprint_fields = fingerprint->fields,
                                     .n_fingerprint_fields = fingerprint->n_fields,
                                     .fingerprint = fingerprint->hex};
        st = shard_store_put(store, &shard, err);
    }
    unit_file_free(&f);
    return st;
}

/* ---- a unit ---------------------------------------------------------------------------------- */

static enum status try_reuse(struct driver_block *b, struct shard_store *store, uint64_t unit,
                             const struct driver_opts *opts, const struct shard_fingerprint *now,
                             bool *reused, struct driver_unit_summary *out, struct err *err)
{
    enum shard_reuse reuse = SHARD_MISSING;
    char why[512] = "";
    *reused = false;
    if (opts->fresh)
        return ST_OK;
    TRY(shard_store_check(store, unit, now, &reuse, why, sizeof why, err));
    if (reuse == SHARD_OTHER_ENVIRONMENT && !opts->accept_environment)
        return err_set(err, ST_ENVIRONMENT,
                       "unit %llu was evaluated in another numeric environment: %s; "
                       "--accept-environment starts it over",
                       (unsigned long long)unit, why);
    if (reuse != SHARD_REUSE) {
        if (reuse != SHARD_MISSING)
            log_rank("unit %llu: evaluated again: %s", (unsigned long long)unit, why);
        return ST_OK;
    }
    char *path = shard_store_unit_path(store, unit);
    if (path == NULL)
        return err_nomem(err, sizeof why);
    struct err ignored = {0};
    if (summary_from_file(b, path, out, &ignored) == ST_OK) {
        *reused = true;
    } else {
        driver_unit_summary_free(out);
        log_rank("unit %llu: evaluated again: %s", (unsigned long long)unit, ignored.message);
    }
    free(path);
    return ST_OK;
}

enum status driver_unit_run(struct driver_block *b, struct shard_store *store, uint64_t unit,
                            const struct driver_opts *opts, worker_tick_fn tick, void *tick_ctx,
                            struct driver_unit_summary *out, struct err *err)
{
    struct worker_rows rows = {0};
    struct worker_unit *u = NULL;
    struct shard_fingerprint fingerprint = {0};
    void *embedding = NULL;
    size_t row_bytes = (size_t)b->rows.tensor->shape[1] * dtype_size(b->rows.tensor->dtype);
    bool reused = false;
    *out = (struct driver_unit_summary){0};
    shard_grid_rows(&b->grid, unit, &rows.first_row, &rows.n_rows);
    enum status st = mem_alloc((size_t)rows.n_rows, row_bytes, &embedding, err);
    if (st == ST_OK)
        st = shard_rows_read(&b->rows, rows.first_row, rows.n_rows, embedding, err);
    if (st == ST_OK) {
        struct digest digest = digest_of(embedding, (size_t)rows.n_rows * row_bytes);
        st = shard_fingerprint_unit(&b->base, &digest, &fingerprint, err);
    }
    if (st == ST_OK)
        st = try_reuse(b, store, unit, opts, &fingerprint, &reused, out, err);
    if (st == ST_OK && !reused && opts->reduce)
        st = err_set(err, ST_DIFFERS,
                     "unit %llu is not stored yet as this spec needs it: run its array task again",
                     (unsigned long long)unit);
    if (st == ST_OK && !reused) {
        rows.embedding = embedding;
        st = worker_unit_evaluate(b->worker, &rows, tick, tick_ctx, &u, err);
        if (st == ST_OK)
            st = worker_unit_validate(b->worker, &rows, u, NULL, NULL, tick, tick_ctx, err);
        if (st == ST_OK)
            st = unit_store(b, store, unit, u, &fingerprint, err);
        if (st == ST_OK)
            st = summary_from_unit(u, out, err);
    }
    out->unit = unit;
    snprintf(out->fingerprint, sizeof out->fingerprint, "%s", fingerprint.hex);
    if (st != ST_OK)
        driver_unit_summary_free(out);
    worker_unit_free(&u);
    shard_fingerprint_free(&fingerprint);
    free(embedding);
    return st;
}
