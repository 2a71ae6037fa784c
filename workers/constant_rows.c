/* SPDX-License-Identifier: Apache-2.0 */
#include "workers/constant_rows.h"

#include <stdlib.h>
#include <string.h>

#include "workers/workers_internal.h"

/* One cached call: results of all outputs, concatenated. */
struct entry {
    struct entry *newer, *older;
    char key[SHA256_HEX_SIZE];
    size_t n_rows, bytes;
    uint8_t data[];
};

struct constant_rows {
    struct constant_rows_opts opts;
    struct evaluator *evaluator;
    char state[SHA256_HEX_SIZE]; /* of weights and settings the evaluator was made for */
    size_t row_bytes;            /* of all results of a row */
    struct entry *newest, *oldest;
    struct constant_rows_counters count;
};

/* ---- cache ----------------------------------------------------------------------------------- */

static void unlink_entry(struct constant_rows *c, struct entry *e)
{
    *(e->newer == NULL ? &c->newest : &e->newer->older) = e->older;
    *(e->older == NULL ? &c->oldest : &e->older->newer) = e->newer;
}

static void push_newest(struct constant_rows *c, struct entry *e)
{
    e->newer = NULL;
    e->older = c->newest;
    *(c->newest == NULL ? &c->oldest : &c->newest->newer) = e;
    c->newest = e;
}

static void drop_oldest(struct constant_rows *c)
{
    struct entry *e = c->oldest;
    unlink_entry(c, e);
    c->count.entries--;
    c->count.bytes -= e->bytes;
    free(e);
}

static void shrink(struct constant_rows *c, size_t entries, size_t bytes)
{
    while (c->oldest != NULL && (c->count.entries > entries || c->count.bytes > bytes)) {
        drop_oldest(c);
        c->count.evictions++;
    }
}

static struct entry *find(struct constant_rows *c, const char *key)
{
    for (struct entry *e = c->newest; e != NULL; e = e->older)
        if (strcmp(e->key, key) == 0)
            return e;
    return NULL;
}

/* Keep a result if it fits at all; a cache that cannot grow is no failure of the call. */
static void keep(struct constant_rows *c, const char *key, const uint8_t *data, size_t n_rows)
{
    size_t size = n_rows * c->row_bytes, bytes = sizeof(struct entry) + size;
    if (c->opts.max_entries == 0 || bytes > c->opts.max_bytes)
        return;
    struct entry *e = malloc(bytes);
    if (e == NULL)
        return;
    memcpy(e->key, key, sizeof e->key);
    e->n_rows = n_rows;
    e->bytes = bytes;
    memcpy(e->data, data, size);
    shrink(c, c->opts.max_entries - 1, c->opts.max_bytes - bytes);
    push_newest(c, e);
    c->count.entries++;
    c->count.bytes += bytes;
}

void constant_rows_clear(struct constant_rows *c)
{
    while (c->oldest != NULL)
        drop_oldest(c);
}

void constant_rows_limit(struct constant_rows *c, size_t max_entries, size_t max_bytes)
{
    c->opts.max_entries = max_entries;
    c->opts.max_bytes = max_bytes;
    shrink(c, max_entries, max_bytes);
}

struct constant_rows_counters constant_rows_count(const struct constant_rows *c)
{
    return c->count;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Digest of everything but the call: an entry never outlives a change of it. */
static enum status state_digest(const struct constant_rows *c, char hex[SHA256_HEX_SIZE],
                                struct err *err)
{
    struct bytes text = {0};
    const struct graph *g = &c->opts.chain->graph;
    enum status st = graph_block_canonical(c->opts.chain, &text, err);
    bytes_put_u8(&text, (uint8_t)c->opts.arithmetic);
    for (size_t i = 0; i < g->n_weights; i++) {
        if (c->opts.weights[i] == NULL)
            continue;
        struct digest d = digest_of(c->opts.weights[i], (size_t)graph_weight_bytes(&g->weights[i]));
        bytes_append(&text, d.bytes, sizeof d.bytes);
    }
    for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
        char value[KERNELS_TEXT_SIZE];
        const char *name = NULL;
        bytes_put_str(&text, kernels_env_field(kernels_environment(c->opts.kernels), i, &name,
                                               value, sizeof value));
    }
    if (st == ST_OK)
        st = text.failed ? err_nomem(err, text.size) : sha256_of(text.data, text.size, hex, err);
    bytes_free(&text);
    return st;
}

static enum status call_key(const struct constant_rows *c, const struct constant_rows_call *call,
                            char hex[SHA256_HEX_SIZE], struct err *err)
{
    struct bytes text = {0};
    size_t width_bytes =
        worker_row_bytes(&(struct graph_output){.dtype = c->opts.chain->graph.nodes[1].dtype,
                                                .width = c->opts.chain->graph.nodes[1].width});
    bytes_append(&text, c->state, sizeof c->state);
    bytes_put_u32(&text, call->rank);
    for (unsigned i = 0; i < call->rank; i++)
        bytes_put_u64(&text, call->shape[i]);
    for (size_t i = 0; i < call->n_rows; i++) {
        bytes_put_u64(&text, call->rows[i].index);
        bytes_append(&text, call->rows[i].values, width_bytes);
    }
    enum status st =
        text.failed ? err_nomem(err, text.size) : sha256_of(text.data, text.size, hex, err);
    bytes_free(&text);
    return st;
}

/* ---- evaluation ------------------------------------------------------------------------------ */

/* New weights or settings: a new evaluator and an empty cache. */
static enum status refresh(struct constant_rows *c, struct err *err)
{
    char state[SHA256_HEX_SIZE];
    TRY(state_digest(c, state, err));
    if (c->evaluator != NULL && strcmp(state, c->state) == 0)
        return ST_OK;
    constant_rows_clear(c);
    evaluator_close(&c->evaluator);
    struct evaluator_opts eopts = {.kernels = c->opts.kernels,
                                   .block = c->opts.chain,
                                   .outputs = c->opts.chain->results,
                                   .n_outputs = c->opts.chain->n_results,
                                   .weights = c->opts.weights,
                                   .arithmetic = c->opts.arithmetic};
    TRY(evaluator_open(&eopts, &c->evaluator, err));
    memcpy(c->state, state, sizeof c->state);
    return ST_OK;
}

static enum status check_call(const struct constant_rows_call *call, size_t *n_total,
                              struct err *err)
{
    size_t total = 1;
    for (unsigned i = 0; i < call->rank; i++) {
        size_t extent = 0;
        if (!u64_to_size(call->shape[i], &extent) || !mul_size(total, extent, &total))
            return err_set(err, ST_USAGE, "constant rows: the leading shape overflows");
    }
    for (size_t i = 0; i < call->n_rows; i++) {
        if (call->rows[i].index >= total)
            return err_set(err, ST_USAGE,
                           "constant rows: row %zu: expected an index below %zu, found %llu", i,
                           total, (unsigned long long)call->rows[i].index);
        if (i > 0 && call->rows[i].index <= call->rows[i - 1].index)
            return err_set(err, ST_USAGE, "constant rows: indices must ascend: %llu after %llu",
                           (unsigned long long)call->rows[i].index,
                           (unsigned long long)call->rows[i - 1].index);
    }
    *n_total = total;
    return ST_OK;
}

/* Activations have one dimension more than the leading shape: 2-D and contiguous 3-D take the bias
 * prefilled. */
static enum bias_mode bias_mode_of(unsigned rank)
{
    return rank == 1 || rank == 2 ? BIAS_PREFILLED : BIAS_ADDED;
}

static enum status evaluate(struct constant_rows *c, const struct constant_rows_call *call,
                            size_t n_total, uint8_t *data, struct err *err)
{
    const struct graph_node *input = &c->opts.chain->graph.nodes[1];
    size_t width_bytes = (size_t)input->width * dtype_size(input->dtype);
    void *rows = NULL;
    enum status st = mem_calloc(n_total, width_bytes, &rows, err);
    for (size_t i = 0; i < call->n_rows && st == ST_OK; i++)
        memcpy((char *)rows + (size_t)call->rows[i].index * width_bytes, call->rows[i].values,
               width_bytes);
    if (st == ST_OK)
        st = evaluator_load(c->evaluator, rows, n_total, err);
    if (st == ST_OK)
        st = evaluator_reserve(c->evaluator, n_total, err);
    struct evaluator_call run = {.n_calls = 1, .m = n_total, .bias = bias_mode_of(call->rank)};
    if (st == ST_OK)
        st = evaluator_run(c->evaluator, &run, err);
    for (size_t o = 0; o < c->opts.chain->n_results && st == ST_OK; o++) {
        const struct graph_output *result = &c->opts.chain->results[o];
        size_t compute = dtype_size(evaluator_compute(c->evaluator, o));
        const char *values = evaluator_output(c->evaluator, o);
        for (size_t i = 0; i < call->n_rows; i++) {
            kernels_pack(result->dtype,
                         values + (size_t)call->rows[i].index * (size_t)result->width * compute,
                         (size_t)result->width, data);
            data += worker_row_bytes(result);
        }
    }
    evaluator_drop(c->evaluator);
    free(rows);
    return st;
}

static void copy_output(const struct constant_rows *c, const uint8_t *data, size_t n_rows,
                        size_t output, void *dst)
{
    for (size_t o = 0; o < output; o++)
        data += n_rows * worker_row_bytes(&c->opts.chain->results[o]);
    memcpy(dst, data, n_rows * worker_row_bytes(&c->opts.chain->results[output]));
}

enum status constant_rows_evaluate(struct constant_rows *c, const struct constant_rows_call *call,
                                   size_t output, void *dst, size_t dst_bytes, struct err *err)
{
    size_t n_total = 0;
    char key[SHA256_HEX_SIZE];
    void *data = NULL;
    if (output >= c->opts.chain->n_results)
        return err_set(err, ST_USAGE, "constant rows: output %zu of %zu", output,
                       c->opts.chain->n_results);
    TRY(check_call(call, &n_total, err));
    size_t needed = call->n_rows * worker_row_bytes(&c->opts.chain->results[output]);
    if (dst_bytes < needed)
        return err_set(err, ST_USAGE, "constant rows: expected room for %zu bytes, found %zu",
                       needed, dst_bytes);
    if (call->n_rows == 0)
        return ST_OK;
    TRY(refresh(c, err));
    TRY(call_key(c, call, key, err));
    struct entry *e = find(c, key);
    if (e != NULL) {
        c->count.hits++;
        unlink_entry(c, e);
        push_newest(c, e);
        copy_output(c, e->data, call->n_rows, output, dst);
        return ST_OK;
    }
    c->count.misses++;
    TRY(mem_alloc(call->n_rows, c->row_bytes, &data, err));
    enum status st = evaluate(c, call, n_total, data, err);
    if (st == ST_OK) {
        keep(c, key, data, call->n_rows);
        copy_output(c, data, call->n_rows, output, dst);
    }
    free(data);
    return st;
}

/* ---- life ------------------------------------------------------------------------------------ */

enum status constant_rows_open(const struct constant_rows_opts *opts, struct constant_rows **out,
                               struct err *err)
{
    void *memory = NULL;
    *out = NULL;
    if (opts->chain->kind == BLOCK_PROJECTED)
        return err_set(err, ST_STRUCTURE,
                       "constant rows: %s is a projected block; give its layers as a chain",
                       opts->chain->name);
    TRY(mem_calloc(1, sizeof **out, &memory, err));
    struct constant_rows *c = memory;
    c->opts = *opts;
    for (size_t i = 0; i < opts->chain->n_results; i++)
        c->row_bytes += worker_row_bytes(&opts->chain->results[i]);
    enum status st = refresh(c, err);
    if (st != ST_OK)
        constant_rows_close(&c);
    *out = c;
    return st;
}

void constant_rows_close(struct constant_rows **c)
{
    if (*c == NULL)
        return;
    constant_rows_clear(*c);
    evaluator_close(&(*c)->evaluator);
    free(*c);
    *c = NULL;
}
