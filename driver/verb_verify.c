/* SPDX-License-Identifier: Apache-2.0 */
/* verify: digests and seal; with --against, provenance and the full validation on this machine. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"
#include "driver/enclosing.h"
#include "driver/recipe_record.h"
#include "driver/verb_internal.h"

struct verification {
    struct driver_context *ctx;
    struct tokentab_recipe *recipe;
    const struct format_recipe *r;
    struct driver_job job;
    struct driver_block *b;
    struct driver_totals totals;
    bool other_environment;
    const char *status_word; /* what the recipe says of its validation */
    bool imported;           /* made by another program: nothing here has ever validated it */
    uint64_t differing;      /* stored rows whose bytes differ from what was evaluated here */
    uint64_t first_row;      /* lowest of them */
    uint64_t checks;
};

/* ---- provenance ------------------------------------------------------------------------------ */

static enum status find_block(struct verification *v, struct err *err)
{
    for (size_t i = 0; i < v->job.n_blocks; i++)
        if (strcmp(v->job.blocks[i].graph->name, v->r->block) == 0)
            v->b = &v->job.blocks[i];
    /* A foreign artifact may know no name. */
    if (v->b == NULL && v->imported && v->job.n_blocks == 1)
        v->b = &v->job.blocks[0];
    if (v->b == NULL)
        return err_set(err, ST_DIFFERS, "%s: the spec has no block named %s", v->job.spec->path,
                       v->r->block);
    return ST_OK;
}

/* Rows are compared as stored, so that name, width and dtype have to be the same first. */
static enum status check_output(const struct verification *v, size_t i, struct err *err)
{
    const struct format_placed *stored = &v->r->outputs[i];
    const struct graph_output *table = &v->b->graph->tables[i];
    const enum dtype dt = v->r->groups[stored->group].dtype;
    if (strcmp(stored->name, table->name) == 0 && stored->width == table->width &&
        dt == table->dtype)
        return ST_OK;
    return err_set(err, ST_DIFFERS, "output %zu: recipe %s [%llu] of %s, spec %s [%llu] of %s", i,
                   stored->name, (unsigned long long)stored->width, dtype_name(dt), table->name,
                   (unsigned long long)table->width, dtype_name(table->dtype));
}

static enum status check_shape(const struct verification *v, struct err *err)
{
    const struct format_recipe *r = v->r;
    const struct format_spec *spec = v->job.spec;
    const char *arithmetic = spec->correctly_rounded ? "correctly_rounded" : "library";
    if (strcmp(r->arithmetic, arithmetic) != 0)
        return err_set(err, ST_DIFFERS, "arithmetic: recipe %s, spec %s", r->arithmetic,
                       arithmetic);
    static const enum format_recipe_kind kinds[] = {RECIPE_LOOKUP, RECIPE_FANOUT, RECIPE_PROJECTED};
    const enum format_recipe_kind kind = kinds[v->b->graph->kind];
    if (r->kind != kind)
        return err_set(err, ST_DIFFERS, "kind: recipe %s, spec %s",
                       format_recipe_kind_name(r->kind), format_recipe_kind_name(kind));
    if (r->has_bias != (kind == RECIPE_PROJECTED && v->b->graph->bias_weight >= 0))
        return err_set(err, ST_DIFFERS, "bias: recipe %s, spec %s",
                       r->has_bias ? "has one" : "none", r->has_bias ? "none" : "has one");
    if (r->has_ids != (v->job.ids != NULL))
        return err_set(err, ST_DIFFERS, "id list: recipe %s, spec %s",
                       r->has_ids ? "has one" : "none", r->has_ids ? "none" : "has one");
    if (lookup_n_rows(v->recipe) != v->b->n_rows)
        return err_set(err, ST_DIFFERS, "tokens: recipe %llu, spec %llu",
                       (unsigned long long)lookup_n_rows(v->recipe),
                       (unsigned long long)v->b->n_rows);
    for (uint64_t i = 0; v->job.ids != NULL && i < v->b->n_rows; i++)
        if (lookup_row_id(v->recipe, i) != v->job.ids[i])
            return err_set(err, ST_DIFFERS,
                           "id list: row %llu is id %llu in the recipe, %llu in the spec",
                           (unsigned long long)i, (unsigned long long)lookup_row_id(v->recipe, i),
                           (unsigned long long)v->job.ids[i]);
    if (r->n_profiles != spec->n_profiles)
        return err_set(err, ST_DIFFERS, "row_count_profiles: recipe %zu, spec %zu", r->n_profiles,
                       spec->n_profiles);
    for (size_t i = 0; i < r->n_profiles; i++)
        if (r->profiles[i].max_rows != spec->profiles[i].max_rows ||
            r->profiles[i].evaluation_rows != spec->profiles[i].evaluation_rows)
            return err_set(err, ST_DIFFERS,
                           "row_count_profiles[%zu]: recipe %llu/%llu, spec %llu/%llu", i,
                           (unsigned long long)r->profiles[i].max_rows,
                           (unsigned long long)r->profiles[i].evaluation_rows,
                           (unsigned long long)spec->profiles[i].max_rows,
                           (unsigned long long)spec->profiles[i].evaluation_rows);
    if (r->n_outputs != v->b->graph->n_tables)
        return err_set(err, ST_DIFFERS, "outputs: recipe %zu, spec %zu", r->n_outputs,
                       v->b->graph->n_tables);
    for (size_t i = 0; i < r->n_outputs; i++)
        TRY(check_output(v, i, err));
    return ST_OK;
}

static enum status check_provenance(const struct verification *v, struct err *err)
{
    if (v->imported) {
        log_warn("%s: imported: it does not name its weights, so that their digests are not "
                 "compared",
                 v->ctx->opts->args[0]);
        return ST_OK;
    }
    for (size_t i = 0; i < v->b->graph->graph.n_weights; i++) {
        char name[48], hex[DIGEST_HEX_SIZE];
        if (v->b->weights.data[i] == NULL)
            continue;
        snprintf(name, sizeof name, "weight.%zu", i);
        const char *stored = driver_recipe_field(v->r->provenance, v->r->n_provenance, name);
        digest_hex(&v->b->weights.digests[i], hex);
        if (stored == NULL || strcmp(stored, hex) != 0)
            return err_set(err, ST_DIFFERS, "provenance: %s (%s): recipe %s, checkpoint %s", name,
                           v->b->graph->graph.weights[i].tensor, stored == NULL ? "none" : stored,
                           hex);
    }
    return driver_recipe_check_provenance(v->r, &v->job, v->b, err);
}

static void compare_environment(struct verification *v)
{
    if (v->job.spec->correctly_rounded)
        return;
    for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
        char value[KERNELS_TEXT_SIZE];
        const char *name = NULL;
        kernels_env_field(kernels_environment(v->job.kernels), i, &name, value, sizeof value);
        const char *stored = driver_recipe_field(v->r->environment, v->r->n_environment, name);
        if (stored != NULL && strcmp(stored, value) == 0)
            continue;
        v->other_environment = true;
        log_info("environment: different: %s: recipe %s, here %s", name,
                 stored == NULL ? "none" : stored, value);
    }
}

/* ---- evaluation ------------------------------------------------------------------------------ */

static enum status recipe_rows(void *ctx, size_t route, size_t table, uint64_t first_row,
                               uint64_t n_rows, void *dst, struct err *err)
{
    struct verification *v = ctx;
    if (table == v->b->graph->n_tables) /* the layouts check asks for the bias this way */
        return driver_block_bias(v->b, dst, err);
    return lookup_table_rows(v->recipe, route, table, first_row, n_rows, dst, err);
}

static enum status verify_tick(void *ctx, struct err *err)
{
    (void)ctx;
    return driver_check_stop(err);
}

static enum status compare_tables(struct verification *v, const struct worker_unit *u,
                                  struct err *err)
{
    enum status st = ST_OK;
    for (size_t i = 0; i < u->n_routes * u->n_tables && st == ST_OK; i++) {
        const struct graph_output *o = &v->b->graph->tables[i % u->n_tables];
        size_t row_bytes = (size_t)o->width * dtype_size(o->dtype);
        void *stored = NULL;
        st = mem_alloc((size_t)u->n_rows, row_bytes, &stored, err);
        if (st == ST_OK)
            st = recipe_rows(v, i / u->n_tables, i % u->n_tables, u->first_row, u->n_rows, stored,
                             err);
        for (uint64_t row = 0; row < u->n_rows && st == ST_OK; row++) {
            if (memcmp((char *)stored + row * row_bytes, (char *)u->tables[i] + row * row_bytes,
                       row_bytes) == 0)
                continue;
            v->differing++;
            v->first_row = min_u64(v->first_row, u->first_row + row);
        }
        free(stored);
    }
    return st;
}

/* As compile has it: what provenance's `inputs` is made of. */
static enum status fingerprint_unit(struct verification *v, uint64_t unit, const void *rows,
                                    size_t size, struct err *err)
{
    struct shard_fingerprint f = {0};
    struct digest digest = digest_of(rows, size);
    enum status st = shard_fingerprint_unit(&v->b->base, &digest, &f, err);
    if (st == ST_OK)
        memcpy(v->totals.fingerprints[unit], f.hex, sizeof f.hex);
    shard_fingerprint_free(&f);
    return st;
}

static enum status verify_unit(struct verification *v, uint64_t unit, struct err *err)
{
    struct worker_rows rows = {0};
    struct worker_unit *u = NULL;
    void *embedding = NULL;
    size_t row_bytes = (size_t)v->b->rows.tensor->shape[1] * dtype_size(v->b->rows.tensor->dtype);
    shard_grid_rows(&v->b->grid, unit, &rows.first_row, &rows.n_rows);
    enum status st = mem_alloc((size_t)rows.n_rows, row_bytes, &embedding, err);
    if (st == ST_OK)
        st = shard_rows_read(&v->b->rows, rows.first_row, rows.n_rows, embedding, err);
    rows.embedding = embedding;
    if (st == ST_OK)
        st = fingerprint_unit(v, unit, embedding, (size_t)rows.n_rows * row_bytes, err);
    if (st == ST_OK)
        st = worker_unit_evaluate(v->b->worker, &rows, verify_tick, NULL, &u, err);
    if (st == ST_OK)
        st = compare_tables(v, u, err);
    if (st == ST_OK)
        st = worker_unit_validate(v->b->worker, &rows, u, recipe_rows, v, verify_tick, NULL, err);
    for (size_t i = 0; st == ST_OK && i < v->totals.n_stats; i++)
        worker_stat_merge(&v->totals.stats[i], &u->stats[i]);
    if (st == ST_OK)
        st = worker_layouts_check(v->recipe, rows.first_row, rows.n_rows, recipe_rows, v,
                                  verify_tick, NULL, &v->checks, err);
    tokentab_trim(v->recipe);
    worker_unit_free(&u);
    free(embedding);
    return st;
}

/* What rank r sent of its statistics and of its units r, r + size, ... */
static void merge_rank(struct verification *v, const struct bytes *sent, int r)
{
    const uint8_t *at = sent->data;
    for (size_t i = 0; i < v->totals.n_stats; i++, at += sizeof(struct worker_stat)) {
        struct worker_stat s;
        memcpy(&s, at, sizeof s);
        worker_stat_merge(&v->totals.stats[i], &s);
    }
    for (uint64_t u = (uint64_t)r; u < v->totals.n_units; u += (uint64_t)comm_size(v->ctx->comm)) {
        memcpy(v->totals.fingerprints[u], at, sizeof *v->totals.fingerprints);
        at += sizeof *v->totals.fingerprints;
    }
}

/* Statistics and fingerprints of all ranks onto rank 0; statistics combine in any order. */
static enum status merge_all(struct verification *v, struct err *err)
{
    struct comm *comm = v->ctx->comm;
    struct bytes mine = {0}, *all = NULL;
    uint64_t size = (uint64_t)comm_size(comm);
    bytes_append(&mine, v->totals.stats, v->totals.n_stats * sizeof *v->totals.stats);
    for (uint64_t u = (uint64_t)comm_rank(comm); u < v->totals.n_units; u += size)
        bytes_append(&mine, v->totals.fingerprints[u], sizeof *v->totals.fingerprints);
    enum status st = comm_agree(comm, mine.failed ? err_nomem(err, mine.size) : ST_OK, err);
    if (st == ST_OK)
        st = comm_gather_bytes_all(comm, 0, &mine, &all, err);
    bytes_free(&mine);
    TRY(st);
    for (int r = 1; comm_rank(comm) == 0 && r < comm_size(comm); r++)
        merge_rank(v, &all[r], r);
    comm_gathered_free(&all, comm_rank(comm) == 0 ? comm_size(comm) : 0);
    v->differing = comm_sum_u64_all(comm, v->differing);
    v->first_row = comm_min_u64_all(comm, v->first_row);
    v->checks = comm_sum_u64_all(comm, v->checks);
    return ST_OK;
}

static enum status judge(struct verification *v, struct driver_verdict *verdict, struct err *err)
{
    driver_verdict_judge(&v->job, v->b, &v->totals, verdict);
    if (verdict->st != ST_OK)
        return err_set(err, ST_DIFFERS, "%s: %s", verdict->status_text, verdict->reason);
    if (v->differing > 0 && !v->other_environment)
        return err_set(
            err, ST_DIFFERS,
            "%llu stored rows differ in bytes from what this machine evaluates in the same "
            "%s, first at token %llu",
            (unsigned long long)v->differing,
            v->job.spec->correctly_rounded ? "arithmetic" : "numeric environment",
            (unsigned long long)lookup_row_id(v->recipe, v->first_row));
    if (v->imported || v->other_environment)
        return ST_OK;
    return driver_recipe_check_run(v->r, &v->job, v->b, &v->totals, verdict->status_text, err);
}

static bool is_packed(const struct format_recipe *r)
{
    size_t size = strlen(r->payload_file);
    return size > 4 && strcmp(r->payload_file + size - 4, ".ttz") == 0;
}

static enum status verify_against(struct verification *v, struct driver_verdict *verdict,
                                  struct err *err)
{
    struct comm *comm = v->ctx->comm;
    const struct driver_opts *o = v->ctx->opts;
    struct driver_progress_state progress = {.mode = PROGRESS_NONE};
    enum status st = driver_job_open(o->against, o, comm_size(comm), &v->job, err);
    if (st == ST_OK)
        v->job.packed = is_packed(v->r);
    if (st == ST_OK)
        st = find_block(v, err);
    if (st == ST_OK)
        st = check_shape(v, err);
    if (st == ST_OK && !v->imported)
        st = driver_recipe_check_spec(v->r, &v->job, v->b, err);
    TRY(comm_agree(comm, st, err));
    TRY(driver_job_kernels_all(comm, o, &v->job, err));
    st = driver_block_prepare(&v->job, v->b, err);
    if (st == ST_OK)
        st = check_provenance(v, err);
    if (st == ST_OK)
        st = driver_totals_make(v->b, &v->totals, err);
    TRY(comm_agree(comm, st, err));
    TRY(driver_block_agree_all(comm, &v->job, v->b, err));
    compare_environment(v);
    uint64_t size = (uint64_t)comm_size(comm), rank = (uint64_t)comm_rank(comm), done = 0;
    if (rank == 0)
        driver_progress_start(&progress, o, "verify", v->b->n_rows / size);
    for (uint64_t u = rank; u < v->b->grid.n_units && st == ST_OK; u += size) {
        uint64_t first = 0, count = 0;
        shard_grid_rows(&v->b->grid, u, &first, &count);
        st = verify_unit(v, u, err);
        done += count;
        if (rank == 0)
            driver_progress_step(&progress, min_u64(done, progress.total));
    }
    driver_progress_end(&progress);
    TRY(comm_agree(comm, st, err));
    TRY(merge_all(v, err));
    if (rank == 0)
        st = judge(v, verdict, err);
    struct err own = *err;
    st = comm_agree(comm, st, err);
    if (rank == 0 && own.st != ST_OK)
        *err = own;
    return st;
}

/* ---- the verb -------------------------------------------------------------------------------- */

static void print_verification(const struct verification *v, bool historical, enum status st,
                               const struct err *err)
{
    const struct driver_opts *o = v->ctx->opts;
    struct bytes *out = &v->ctx->result;
    const char *environment = o->against == NULL     ? "not compared"
                              : v->other_environment ? "different"
                                                     : "same";
    if (o->json) {
        struct format_writer w;
        verb_json_start(v->ctx, &w);
        format_write_string(&w, "recipe", o->args[0]);
        format_write_bool(&w, "verified", st == ST_OK);
        format_write_bool(&w, "historical", historical);
        format_write_string(&w, "validation", v->status_word);
        format_write_string(&w, "payload", o->quick ? "header only" : "every byte");
        format_write_string(&w, "environment", environment);
        if (st != ST_OK)
            format_write_string(&w, "reason", err->message);
        if (o->against != NULL) {
            format_write_u64(&w, "tokens", v->b == NULL ? 0 : v->b->n_rows);
            format_write_u64(&w, "rows_differing_in_bytes", v->differing);
            format_write_u64(&w, "layout_checks", v->checks);
        }
        verb_json_end(v->ctx, &w);
        return;
    }
    if (st != ST_OK)
        return;
    bytes_printf(out, "%s: verified: payload %s, seal matches%s\n", o->args[0],
                 o->quick ? "header" : "digest",
                 v->imported ? "; imported, never validated by tokentab" : "");
    if (o->against != NULL)
        bytes_printf(
            out,
            "  against %s: %llu tokens validated, environment: %s, %llu stored rows differ in "
            "bytes, %llu lookups checked\n",
            o->against, (unsigned long long)v->b->n_rows, environment,
            (unsigned long long)v->differing, (unsigned long long)v->checks);
}

enum status driver_verb_verify(struct driver_context *ctx, struct err *err)
{
    struct verification v = {.ctx = ctx, .first_row = UINT64_MAX};
    struct driver_verdict verdict = {0};
    struct tokentab_error lib = {0};
    bool root = comm_rank(ctx->comm) == 0, historical = false;
    driver_signals_setup();
    TRY(comm_check_launcher(comm_size(ctx->comm), err));
    if (driver_is_model_dir(ctx->opts->args[0]))
        return driver_enclosing_verify(ctx, err);
    /* One rank reads every byte; the others only map. */
    struct tokentab_open_opts opts = {.flags =
                                          root && !ctx->opts->quick ? TOKENTAB_OPEN_VERIFY : 0};
    enum status st = verb_single_check(ctx->opts->args[0], err);
    enum tokentab_status opened =
        st != ST_OK ? TOKENTAB_OK : tokentab_open(ctx->opts->args[0], &opts, &v.recipe, &lib);
    if (opened != TOKENTAB_OK)
        st = err_set(err, lookup_status(opened), "%s", lib.message);
    struct err own = *err;
    st = comm_agree(ctx->comm, st, err);
    if (root && own.st != ST_OK)
        *err = own;
    char *word = st == ST_OK ? format_recipe_status(lookup_recipe(v.recipe)) : NULL;
    v.status_word = word == NULL ? "" : word;
    v.imported = strcmp(v.status_word, FORMAT_RECIPE_IMPORTED) == 0;
    if (st == ST_OK) {
        v.r = lookup_recipe(v.recipe);
        historical = tokentab_is_historical(v.recipe) != 0;
        if (historical)
            st =
                err_set(err, ST_DIFFERS,
                        "%s: historical: recipe.json does not match its seal; it was changed after "
                        "its validation",
                        ctx->opts->args[0]);
        else if (ctx->opts->against != NULL)
            st = verify_against(&v, &verdict, err);
    }
    if (root)
        print_verification(&v, historical, st, err);
    driver_totals_free(&v.totals);
    driver_job_close(&v.job);
    tokentab_close(&v.recipe);
    free(word);
    return st;
}
