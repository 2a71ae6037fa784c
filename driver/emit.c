/* SPDX-License-Identifier: Apache-2.0 */
/* Stage the payload (all ranks, each its own units), check the lookup on it, seal, publish. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver/payload.h"
#include "driver/recipe_files.h"
#include "driver/recipe_record.h"
#include "driver/storage.h"

struct emission {
    struct comm *comm;
    const struct driver_job *job;
    const struct driver_block *b;
    struct shard_store *store;
    const struct driver_layout *l;
    const struct driver_verdict *v;
    const struct driver_totals *t;
    const char *out;
    const struct driver_opts *opts;
    struct format_recipe *recipe;
    struct driver_payload tables;
    char *staged, *payload; /* paths */
};

/* ---- recipe ---------------------------------------------------------------------------------- */

static enum status placed_list(const struct emission *e, size_t route, struct format_placed **out,
                               struct err *err)
{
    size_t n = e->b->graph->n_tables;
    void *memory = NULL;
    TRY(mem_calloc(n, sizeof **out, &memory, err));
    *out = memory;
    for (size_t i = 0; i < n; i++) {
        const struct driver_table *t = &e->l->tables[e->l->table_of[route * n + i]];
        (*out)[i] = (struct format_placed){.name = str_dup(e->b->graph->tables[i].name),
                                           .group = t->group,
                                           .column = t->column,
                                           .width = t->width};
        if ((*out)[i].name == NULL)
            return err_nomem(err, 1);
    }
    return ST_OK;
}

static enum status recipe_environment(const struct emission *e, struct err *err)
{
    struct format_recipe *r = e->recipe;
    if (e->job->spec->correctly_rounded)
        return driver_recipe_add_field(&r->environment, &r->n_environment, "evaluator",
                                       KERNELS_EVALUATOR_VERSION, err);
    for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
        char value[KERNELS_TEXT_SIZE];
        const char *name = NULL;
        kernels_env_field(kernels_environment(e->job->kernels), i, &name, value, sizeof value);
        TRY(driver_recipe_add_field(&r->environment, &r->n_environment, name, value, err));
    }
    return ST_OK;
}

static enum status recipe_provenance(const struct emission *e, const char *inputs, struct err *err)
{
    struct format_recipe *r = e->recipe;
    const struct graph *g = &e->b->graph->graph;
    TRY(driver_recipe_add_field(&r->provenance, &r->n_provenance, "inputs", inputs, err));
    for (size_t i = 0; i < g->n_weights; i++) {
        char hex[DIGEST_HEX_SIZE], name[48];
        if (e->b->weights.data[i] == NULL)
            continue;
        snprintf(name, sizeof name, "weight.%zu", i);
        TRY(driver_recipe_add_field(&r->provenance, &r->n_provenance, name,
                                    digest_hex(&e->b->weights.digests[i], hex), err));
    }
    /* What the spec says of its files' origin, under names that cannot meet ours. */
    const struct format_spec *spec = e->job->spec;
    for (size_t i = 0; i < spec->n_provenance; i++) {
        char *name = str_printf("spec.%s", spec->provenance[i].name);
        enum status st = name == NULL
                             ? err_nomem(err, 1)
                             : driver_recipe_add_field(&r->provenance, &r->n_provenance, name,
                                                       spec->provenance[i].value, err);
        free(name);
        TRY(st);
    }
    return ST_OK;
}

static enum status recipe_skeleton(struct emission *e, struct err *err)
{
    const struct format_spec *spec = e->job->spec;
    void *memory = NULL;
    TRY(mem_calloc(1, sizeof *e->recipe, &memory, err));
    struct format_recipe *r = e->recipe = memory;
    const enum format_recipe_kind kinds[] = {RECIPE_LOOKUP, RECIPE_FANOUT, RECIPE_PROJECTED};
    r->kind = kinds[e->b->graph->kind];
    r->version = spec->n_profiles > 0 ? 2 : 1;
    r->block = str_dup(e->b->graph->name);
    r->rows_in_checkpoint = e->b->graph->rows_in_checkpoint;
    r->num_embeddings = e->job->ids == NULL ? e->b->n_rows
                        : spec->vocab > 0   ? spec->vocab
                                            : r->rows_in_checkpoint;
    r->has_ids = e->job->ids != NULL;
    r->n_ids = e->job->n_ids;
    TRY(mem_calloc(e->l->n_groups, sizeof *r->groups, &memory, err));
    r->groups = memory;
    r->n_groups = e->l->n_groups;
    memcpy(r->groups, e->l->groups, e->l->n_groups * sizeof *r->groups);
    r->n_outputs = e->b->graph->n_tables;
    TRY(placed_list(e, 0, &r->outputs, err));
    TRY(mem_calloc(spec->n_profiles, sizeof *r->profiles, &memory, err));
    r->profiles = memory;
    r->n_profiles = spec->n_profiles;
    for (size_t i = 0; i < spec->n_profiles; i++) {
        r->profiles[i].max_rows = spec->profiles[i].max_rows;
        r->profiles[i].evaluation_rows = spec->profiles[i].evaluation_rows;
        TRY(placed_list(e, i + 1, &r->profiles[i].outputs, err));
    }
    r->may_grow = spec->storage == STORAGE_MAY_GROW;
    r->arithmetic = str_dup(spec->correctly_rounded ? "correctly_rounded" : "library");
    if (r->kind == RECIPE_PROJECTED) {
        r->has_bias = e->b->graph->bias_weight >= 0;
        r->bias_dtype = e->b->graph->tables[0].dtype;
        r->retain_projection = e->b->graph->retain_projection;
        if (r->retain_projection)
            r->projection_columns = e->b->graph->graph.nodes[1].width;
        const struct graph_node *norm = &e->b->graph->graph.nodes[e->b->graph->tables[1].node];
        r->normalize_eps = norm->numbers[NUM_EPS];
    }
    if (r->block == NULL || r->arithmetic == NULL)
        return err_nomem(err, 1);
    return recipe_environment(e, err);
}

/* ---- sealing --------------------------------------------------------------------------------- */

/* Packed payloads: what each way of coding took, tensor by tensor.  A delta's share is of what
 * plain planes would have taken for the same columns. */
static void write_packing(const struct emission *e, struct format_writer *w)
{
    if (e->tables.reports == NULL)
        return;
    format_write_array(w, "packed");
    for (size_t i = 0; i < e->tables.n_specs; i++) {
        const struct packed_report *r = &e->tables.reports[i];
        format_write_object(w, NULL);
        format_write_string(w, "tensor", e->tables.specs[i].name);
        format_write_u64(w, "raw", r->raw_bytes);
        format_write_u64(w, "planes", r->planes_bytes);
        format_write_u64(w, "delta_planes", r->delta_bytes);
        format_write_u64(w, "delta_sparse", r->sparse_bytes);
        format_write_u64(w, "raw_of_delta", r->raw_of_delta);
        format_write_u64(w, "stored_of_delta", r->stored_of_delta);
        format_write_u64(w, "planes_of_delta", r->planes_of_delta);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

/* On disk but in no tensor: headers and padding, or the packed file's directory and seek table. */
static uint64_t header_bytes(const struct emission *e, uint64_t resident)
{
    uint64_t stored = resident;
    if (e->tables.reports != NULL) {
        stored = 0;
        for (size_t i = 0; i < e->tables.n_specs; i++) {
            const struct packed_report *r = &e->tables.reports[i];
            stored += r->planes_bytes + r->delta_bytes + r->sparse_bytes;
        }
    }
    return e->recipe->payload_bytes - stored;
}

static char *storage_json(const struct emission *e)
{
    struct format_writer w = {0};
    struct driver_storage s = {0};
    struct err ignored = {0};
    if (driver_storage_measure(NULL, e->recipe, &s, &ignored) != ST_OK)
        return NULL;
    format_write_object(&w, NULL);
    format_write_u64(&w, "logical_before", e->v->logical_before);
    format_write_u64(&w, "logical_after", e->v->logical_after);
    format_write_u64(&w, "unique_before", e->v->unique_before);
    format_write_u64(&w, "unique_after", e->v->unique_after);
    format_write_bool(&w, "shrinks", e->v->shrinks);
    format_write_u64(&w, "resident", s.resident);
    format_write_u64(&w, "on_disk", e->recipe->payload_bytes);
    format_write_u64(&w, "on_disk_headers", header_bytes(e, s.resident));
    write_packing(e, &w);
    format_write_end_object(&w);
    return driver_recipe_text(&w);
}

/* Name the payload by its digest and write the staged recipe beside it.  Rank 0. */
static enum status seal(struct emission *e, struct err *err)
{
    struct format_recipe *r = e->recipe;
    char sha256[SHA256_HEX_SIZE], inputs[SHA256_HEX_SIZE], seal_hex[SHA256_HEX_SIZE];
    /* Before its digest, so that the damaged file has a name of its own and only the layouts check
     * can tell. */
    TRY(driver_payload_damage(&e->tables, err));
    TRY(driver_emit_fault("emit_seal", err));
    TRY(file_digests(e->staged, sha256, NULL, &r->payload_bytes, err));
    r->payload_sha256 = str_dup(sha256);
    r->payload_file = str_printf("tables-%.16s.%s", sha256, e->job->packed ? "ttz" : "safetensors");
    if (r->payload_sha256 == NULL || r->payload_file == NULL)
        return err_nomem(err, 1);
    e->payload = path_join(e->out, r->payload_file);
    if (e->payload == NULL)
        return err_nomem(err, 1);
    TRY(file_rename(e->staged, e->payload, err));
    TRY(driver_inputs_digest(e->job, e->b, e->t, inputs, err));
    TRY(recipe_provenance(e, inputs, err));
    TRY(driver_recipe_thresholds(e->job, e->b, &r->thresholds, &r->n_thresholds, err));
    r->validation_json = driver_recipe_validation(e->job, e->b, e->t, e->v->status_text);
    r->storage_json = storage_json(e);
    if (r->validation_json == NULL || r->storage_json == NULL)
        return err_nomem(err, 1);
    TRY(format_recipe_seal(r, seal_hex, err));
    r->seal = str_dup(seal_hex);
    struct bytes text = {0};
    char *path = path_join(e->out, LOOKUP_STAGED_FILE);
    enum status st = path == NULL || r->seal == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK)
        st = format_recipe_encode(r, &text, err);
    if (st == ST_OK)
        st = file_publish(path, text.data, text.size, err);
    bytes_free(&text);
    free(path);
    return st;
}

/* ---- checking and publishing ----------------------------------------------------------------- */

static enum status emission_tick(void *ctx, struct err *err)
{
    (void)ctx;
    return driver_check_stop(err);
}

/* Each rank checks the lookup on its share of the rows, a unit's window at a time. */
static enum status check_my_layouts(const struct emission *e, struct err *err)
{
    struct tokentab_open_opts opts = {.flags = TOKENTAB_OPEN_STAGED | TOKENTAB_OPEN_REQUIRE_SEAL};
    struct tokentab_error lib = {0};
    struct tokentab_recipe *recipe = NULL;
    struct driver_unit_reader reader = {.block = e->b, .store = e->store};
    enum tokentab_status opened = tokentab_open(e->out, &opts, &recipe, &lib);
    if (opened != TOKENTAB_OK)
        return err_set(err, lookup_status(opened), "staged recipe: %s", lib.message);
    enum status st = driver_emit_fault("emit_check", err);
    uint64_t size = (uint64_t)comm_size(e->comm), rank = (uint64_t)comm_rank(e->comm), checks = 0;
    for (uint64_t u = rank; u < e->b->grid.n_units && st == ST_OK; u += size) {
        uint64_t first = 0, count = 0;
        shard_grid_rows(&e->b->grid, u, &first, &count);
        st = worker_layouts_check(recipe, first, count, driver_unit_reader_rows, &reader,
                                  emission_tick, NULL, &checks, err);
        tokentab_trim(recipe);
    }
    driver_unit_reader_close(&reader);
    tokentab_close(&recipe);
    return st;
}

/* Remove what a failed emission staged.  Rank 0. */
static void discard(const struct emission *e)
{
    char *recipe = path_join(e->out, LOOKUP_STAGED_FILE),
         *keep = driver_payload_of(e->out, LOOKUP_RECIPE_FILE);
    if (recipe != NULL)
        unlink(recipe);
    if (e->staged != NULL)
        unlink(e->staged);
    /* What the published recipe names must outlive a failed replacement. */
    if (e->payload != NULL && (keep == NULL || strcmp(path_base(e->payload), keep) != 0))
        unlink(e->payload);
    free(recipe);
    free(keep);
}

static enum status publish(const struct emission *e, const char *report, struct err *err)
{
    char *from = path_join(e->out, LOOKUP_STAGED_FILE), *to = path_join(e->out, LOOKUP_RECIPE_FILE);
    char *report_path = path_join(e->out, "report.json");
    enum status st = from == NULL || to == NULL || report_path == NULL ? err_nomem(err, 1) : ST_OK;
    if (st == ST_OK)
        st = driver_emit_fault("emit_publish", err);
    if (st == ST_OK)
        st = file_publish(report_path, report, strlen(report), err);
    if (st == ST_OK)
        st = file_rename(from, to, err);
    if (st == ST_OK)
        driver_sweep(e->out, PAYLOAD_START, e->recipe->payload_file);
    free(from);
    free(to);
    free(report_path);
    return st;
}

enum status driver_emit_all(struct comm *comm, const struct driver_job *job,
                            const struct driver_block *b, struct shard_store *store,
                            const struct driver_layout *l, const struct driver_verdict *v,
                            const struct driver_totals *t, const char *out,
                            const struct driver_opts *opts, const char *report, struct err *err)
{
    struct emission e = {.comm = comm,
                         .job = job,
                         .b = b,
                         .store = store,
                         .l = l,
                         .v = v,
                         .t = t,
                         .out = out,
                         .opts = opts};
    bool root = comm_rank(comm) == 0;
    e.staged = path_join(out, "tables.staged");
    enum status st = e.staged == NULL ? err_nomem(err, 1) : recipe_skeleton(&e, err);
    e.tables = (struct driver_payload){.comm = comm,
                                       .job = job,
                                       .b = b,
                                       .store = store,
                                       .l = l,
                                       .recipe = e.recipe,
                                       .path = e.staged,
                                       .packed = job->packed};
    if (st == ST_OK)
        st = driver_payload_open(&e.tables, err);
    if (st == ST_OK && root)
        st = file_make_dirs(out, err);
    st = comm_agree(comm, st, err);
    if (st == ST_OK)
        st = driver_payload_write_all(&e.tables, err);
    if (st == ST_OK)
        st = comm_agree(comm, root ? seal(&e, err) : ST_OK, err);
    if (st == ST_OK)
        st = comm_agree(comm, check_my_layouts(&e, err), err);
    /* Blocks of an enclosing model wait for its complete outputs. */
    if (st == ST_OK && job->enclosing == NULL)
        st = comm_agree(comm, root ? publish(&e, report, err) : ST_OK, err);
    if (st != ST_OK && root)
        discard(&e);
    driver_payload_close(&e.tables);
    format_recipe_free(&e.recipe);
    free(e.staged);
    free(e.payload);
    return st;
}
