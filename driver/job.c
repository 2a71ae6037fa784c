/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "driver/driver_internal.h"
#include "driver/enclosing.h"
#include "driver/recipe_files.h"

/* The weight that node 1, the embedding, reads. */
static const struct graph_weight *embedding_weight(const struct graph_block *b)
{
    return &b->graph.weights[b->graph.nodes[1].weights[ROLE_WEIGHT]];
}

static enum status check_ids(const struct driver_job *job, const struct graph_block *b,
                             struct err *err)
{
    uint64_t rows = b->rows_in_checkpoint;
    const struct format_spec *spec = job->spec;
    uint64_t limit = spec->vocab > 0 ? spec->vocab : rows;
    if (job->n_ids > 0 && job->ids[job->n_ids - 1] >= limit)
        return err_set(err, ST_STRUCTURE, "%s: ids: expected ids below %llu, found %llu",
                       spec->path, (unsigned long long)limit,
                       (unsigned long long)job->ids[job->n_ids - 1]);
    return ST_OK;
}

static enum status block_open(const struct driver_job *job, struct graph_block *graph,
                              const struct driver_opts *opts, int n_ranks, struct driver_block *b,
                              struct err *err)
{
    const struct format_spec *spec = job->spec;
    *b = (struct driver_block){.graph = graph, .n_routes = 1 + spec->n_profiles};
    TRY(check_ids(job, graph, err));
    TRY(graph_block_storage(graph, &b->source, err));
    b->n_rows = job->ids != NULL  ? job->n_ids
                : spec->vocab > 0 ? spec->vocab
                                  : graph->rows_in_checkpoint;
    b->rows =
        (struct shard_rows){.checkpoint = job->checkpoint, .ids = job->ids, .n_rows = b->n_rows};
    TRY(format_checkpoint_find(job->checkpoint, embedding_weight(graph)->backing, &b->rows.tensor,
                               err));
    int parts = opts->task_count > 0 ? (int)opts->task_count : n_ranks;
    return shard_grid_make(b->n_rows, spec->bulk_rows, opts->shard_units, parts, &b->grid, err);
}

bool driver_name_is_file(const char *name)
{
    static const char *const taken[] = {"lock",
                                        "run.json",
                                        ENCLOSING_REPORT_FILE,
                                        ENCLOSING_MODEL_FILE,
                                        LOOKUP_RECIPE_FILE,
                                        "weights.staged",
                                        "tables.staged",
                                        "tables.h5",
                                        "journal"};
    static const char *const starts[] = {PAYLOAD_START, WEIGHTS_START, "journal-"};
    for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
        if (strncmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        size_t size = strlen(taken[i]);
        if (strncmp(name, taken[i], size) == 0 &&
            (name[size] == '\0' || strcmp(name + size, ".tmp") == 0 ||
             strcmp(name + size, ".staged") == 0))
            return true;
    }
    return false;
}

/* Blocks are folders in WORK, and several of them in OUT too. */
static enum status check_name(const struct format_spec *spec, const struct graph_block *b,
                              struct err *err)
{
    if (!driver_name_is_file(b->name))
        return ST_OK;
    return err_set(err, ST_SPEC,
                   "%s: %s.name: block %s would be a folder where a file of that name lies; call "
                   "it otherwise",
                   spec->path, b->where, b->name);
}

enum status driver_job_open(const char *spec_path, const struct driver_opts *opts, int n_ranks,
                            struct driver_job *job, struct err *err)
{
    *job = (struct driver_job){.packed = opts->packed};
    TRY(format_spec_read(spec_path, &job->spec, err));
    if (job->spec->ids_path != NULL)
        TRY(format_ids_read(job->spec->ids_path, &job->ids, &job->n_ids, err));
    struct format_checkpoint_opts copts = {.header_cap = opts->header_cap,
                                           .allow_missing_unused = opts->allow_missing_unused};
    const char *path = opts->checkpoint != NULL ? opts->checkpoint : job->spec->checkpoint_path;
    TRY(format_checkpoint_open(path, &copts, &job->checkpoint, err));
    for (size_t i = 0; i < format_checkpoint_warnings(job->checkpoint); i++)
        log_warn("%s", format_checkpoint_warning(job->checkpoint, i));
    if (job->spec->graph != NULL)
        TRY(driver_enclosing_open(job, err));
    for (size_t i = 0; i < job->spec->n_blocks; i++)
        TRY(check_name(job->spec, &job->spec->blocks[i], err));
    TRY(format_spec_resolve(job->spec, format_checkpoint_tensor_info, job->checkpoint, err));
    void *memory = NULL;
    TRY(mem_calloc(job->spec->n_blocks, sizeof *job->blocks, &memory, err));
    job->blocks = memory;
    for (size_t i = 0; i < job->spec->n_blocks; i++) {
        TRY(block_open(job, &job->spec->blocks[i], opts, n_ranks, &job->blocks[i], err));
        job->n_blocks = i + 1;
    }
    return ST_OK;
}

void driver_job_close(struct driver_job *job)
{
    for (size_t i = 0; i < job->n_blocks; i++)
        driver_block_release(&job->blocks[i]);
    free(job->blocks);
    driver_enclosing_close(&job->enclosing);
    kernels_close(&job->kernels);
    format_checkpoint_close(&job->checkpoint);
    format_spec_free(&job->spec);
    free(job->ids);
    *job = (struct driver_job){0};
}

/* ---- numeric environment --------------------------------------------------------------------- */

/* Root compares what each rank sent: host, then (name, value) pairs. */
static enum status compare_environments(const struct bytes *all, int size, struct err *err)
{
    struct bytes_reader first = {.data = all[0].data, .size = all[0].size};
    char *first_host = bytes_get_str(&first);
    enum status st = first_host == NULL ? err_nomem(err, all[0].size) : ST_OK;
    for (int r = 1; r < size && st == ST_OK; r++) {
        struct bytes_reader a = first, b = {.data = all[r].data, .size = all[r].size};
        char *host = bytes_get_str(&b);
        for (size_t i = 0; i < KERNELS_ENV_FIELDS && st == ST_OK; i++) {
            char *name = bytes_get_str(&a), *x = bytes_get_str(&a);
            char *name_b = bytes_get_str(&b), *y = bytes_get_str(&b);
            if (name == NULL || x == NULL || y == NULL || name_b == NULL || host == NULL)
                st = err_set(err, ST_INTERNAL, "environment of rank %d cannot be read", r);
            else if (strcmp(x, y) != 0)
                st = err_set(err, ST_ENVIRONMENT,
                             "numeric environments differ: %s is \"%s\" on rank 0 (%s), \"%s\" on "
                             "rank %d (%s); --blas-core NAME pins one that all support",
                             name, x, first_host, y, r, host);
            free(name);
            free(x);
            free(name_b);
            free(y);
        }
        free(host);
    }
    free(first_host);
    return st;
}

/* More BLAS threads than cores on rank 0's host: slow, and OpenBLAS has been seen to exhaust its
 * memory regions (N42). */
static void warn_of_many_threads(const struct bytes *all, int size, unsigned threads)
{
    struct bytes_reader r = {.data = all[0].data, .size = all[0].size};
    char *first_host = bytes_get_str(&r);
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    unsigned long ranks = 0;
    for (int i = 0; i < size && first_host != NULL; i++) {
        struct bytes_reader b = {.data = all[i].data, .size = all[i].size};
        char *host = bytes_get_str(&b);
        ranks += host != NULL && strcmp(host, first_host) == 0;
        free(host);
    }
    if (cores > 0 && ranks * threads > (unsigned long)cores)
        log_warn("host %s: %lu ranks of %u BLAS threads share %ld cores", first_host, ranks,
                 threads, cores);
    free(first_host);
}

static enum status agree_environment(struct comm *comm, const struct kernels *kernels,
                                     bool must_match, struct err *err)
{
    struct bytes mine = {0}, *all = NULL;
    bytes_put_str(&mine, comm_host(comm));
    for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
        char value[KERNELS_TEXT_SIZE];
        const char *name = NULL;
        kernels_env_field(kernels_environment(kernels), i, &name, value, sizeof value);
        bytes_put_str(&mine, name);
        bytes_put_str(&mine, value);
    }
    enum status st = comm_gather_bytes_all(comm, 0, &mine, &all, err);
    bytes_free(&mine);
    if (st != ST_OK)
        return st;
    struct err local = {0};
    if (comm_rank(comm) == 0) {
        st = compare_environments(all, comm_size(comm), &local);
        warn_of_many_threads(all, comm_size(comm), kernels_environment(kernels)->blas_threads);
    }
    comm_gathered_free(&all, comm_rank(comm) == 0 ? comm_size(comm) : 0);
    if (!must_match && st != ST_OK) {
        log_warn("%s (allowed: correctly rounded arithmetic)", local.message);
        st = ST_OK;
    } else if (st != ST_OK) {
        *err = local;
    }
    return comm_agree(comm, st, err);
}

/* OpenBLAS takes a core of its choice when it does not know the name, and says nothing. */
static void warn_of_other_core(const char *asked, const struct kernels_env *env)
{
    if (asked[0] != '\0' && strcasecmp(asked, env->blas_core) != 0)
        log_warn("OPENBLAS_CORETYPE is \"%s\", but %s %s loaded %s instead", asked, env->blas,
                 env->blas_version, env->blas_core);
}

enum status driver_job_kernels_all(struct comm *comm, const struct driver_opts *opts,
                                   struct driver_job *job, struct err *err)
{
    unsigned common = (unsigned)comm_and_u64_all(comm, kernels_cpu_flags());
    /* A core the user pinned, by option or in the environment, is kept; else the flags decide. */
    const char *core = opts->blas_core, *variable = getenv("OPENBLAS_CORETYPE");
    if (core == NULL && variable == NULL)
        core = kernels_core_for(common);
    struct kernels_opts kopts = {.blas_core = core,
                                 .blas_threads = (unsigned)opts->blas_threads,
                                 .backend = fault_value("TOKENTAB_TEST_BACKEND")};
    enum status st = kernels_open(&kopts, &job->kernels, err);
    TRY(comm_agree(comm, st, err));
    if (core == NULL && variable != NULL && kopts.backend == NULL)
        warn_of_other_core(variable, kernels_environment(job->kernels));
    return agree_environment(comm, job->kernels, !job->spec->correctly_rounded, err);
}

/* ---- preparing a block ----------------------------------------------------------------------- */

static enum status fingerprint_graph(const struct graph_block *b, struct shard_fingerprint *f,
                                     struct err *err)
{
    struct bytes text = {0};
    enum status st = graph_block_canonical(b, &text, err);
    if (st == ST_OK) {
        bytes_put_u8(&text, '\0');
        if (text.failed)
            st = err_nomem(err, text.size);
    }
    char *line = (char *)text.data;
    for (size_t i = 0; st == ST_OK && line != NULL && *line != '\0'; i++) {
        char *end = strchr(line, '\n'), name[32];
        if (end != NULL)
            *end = '\0';
        snprintf(name, sizeof name, "graph.%zu", i);
        st = shard_fingerprint_add(f, name, line, err);
        line = end == NULL ? NULL : end + 1;
    }
    bytes_free(&text);
    return st;
}

static enum status fingerprint_number(struct shard_fingerprint *f, const char *name, uint64_t x,
                                      struct err *err)
{
    char text[32];
    snprintf(text, sizeof text, "%llu", (unsigned long long)x);
    return shard_fingerprint_add(f, name, text, err);
}

static enum status fingerprint_profiles(const struct format_spec *spec, struct shard_fingerprint *f,
                                        struct err *err)
{
    struct bytes text = {0};
    for (size_t i = 0; i < spec->n_profiles; i++)
        bytes_printf(&text, "%s%llu:%llu", i == 0 ? "" : ",",
                     (unsigned long long)spec->profiles[i].max_rows,
                     (unsigned long long)spec->profiles[i].evaluation_rows);
    bytes_put_u8(&text, '\0');
    enum status st = text.failed ? err_nomem(err, text.size)
                                 : shard_fingerprint_add(f, "profiles", (char *)text.data, err);
    bytes_free(&text);
    return st;
}

/* Everything a unit depends on but its embedding rows: DESIGN.md, "Running on a cluster". */
static enum status fingerprint_common(const struct driver_job *job, struct driver_block *b,
                                      struct err *err)
{
    const struct format_spec *spec = job->spec;
    struct shard_fingerprint *f = &b->base;
    TRY(shard_fingerprint_add(f, "format", "1", err));
    TRY(shard_fingerprint_add(f, "evaluator", KERNELS_EVALUATOR_VERSION, err));
    TRY(shard_fingerprint_add(f, "arithmetic",
                              spec->correctly_rounded ? "correctly_rounded" : "library", err));
    TRY(fingerprint_number(f, "bulk_rows", spec->bulk_rows, err));
    TRY(fingerprint_number(f, "validation_rows", spec->validation_rows, err));
    TRY(fingerprint_profiles(spec, f, err));
    TRY(fingerprint_graph(b->graph, f, err));
    const struct graph *g = &b->graph->graph;
    for (size_t i = 0; i < g->n_weights; i++) {
        char name[32], hex[DIGEST_HEX_SIZE];
        if (b->weights.data[i] == NULL)
            continue;
        snprintf(name, sizeof name, "weight.%zu", i);
        TRY(shard_fingerprint_add(f, name, digest_hex(&b->weights.digests[i], hex), err));
    }
    /* Correctly rounded values belong to no environment. */
    for (size_t i = 0; i < KERNELS_ENV_FIELDS && !spec->correctly_rounded; i++) {
        char value[KERNELS_TEXT_SIZE], field[KERNELS_TEXT_SIZE];
        const char *name = NULL;
        kernels_env_field(kernels_environment(job->kernels), i, &name, value, sizeof value);
        snprintf(field, sizeof field, "environment.%s", name);
        TRY(shard_fingerprint_add(f, field, value, err));
    }
    return ST_OK;
}

enum status driver_block_prepare(const struct driver_job *job, struct driver_block *b,
                                 struct err *err)
{
    const struct format_spec *spec = job->spec;
    TRY(shard_weights_read(job->checkpoint, b->graph, &b->weights, err));
    void *memory = NULL;
    TRY(mem_calloc(spec->n_profiles, sizeof *b->profiles, &memory, err));
    b->profiles = memory;
    for (size_t i = 0; i < spec->n_profiles; i++)
        b->profiles[i] =
            (struct worker_profile){.max_rows = spec->profiles[i].max_rows,
                                    .evaluation_rows = spec->profiles[i].evaluation_rows};
    TRY(fingerprint_common(job, b, err));
    struct worker_opts wopts = {.kernels = job->kernels,
                                .block = b->graph,
                                .weights = (const void *const *)b->weights.data,
                                .arithmetic = spec->correctly_rounded ? ARITH_CORRECTLY_ROUNDED
                                                                      : ARITH_LIBRARY,
                                .profiles = b->profiles,
                                .n_profiles = spec->n_profiles,
                                .bulk_rows = spec->bulk_rows,
                                .validation_rows = spec->validation_rows,
                                .measure_double = true};
    return worker_open(&wopts, &b->worker, err);
}

uint64_t driver_row_id(const struct driver_job *job, uint64_t row)
{
    return job->ids != NULL && row < job->n_ids ? job->ids[row] : row;
}

void driver_block_release(struct driver_block *b)
{
    worker_close(&b->worker);
    shard_weights_free(&b->weights);
    shard_fingerprint_free(&b->base);
    free(b->profiles);
    b->profiles = NULL;
}
