/* SPDX-License-Identifier: Apache-2.0 */
/* A model in graph form, made ready to run; and two of them compared. */
#include <stdlib.h>
#include <string.h>

#include "driver/enclosing.h"

/* ---- opening --------------------------------------------------------------------------------- */

/* Read the weights that live nodes use; the others may be as large as they like. */
static enum status read_weights(struct driver_model *m, struct err *err)
{
    const struct graph *g = &m->model->graph;
    struct graph_block used = {.kind = BLOCK_FANOUT, .bias_weight = -1};
    void *live = NULL, *index = NULL, *memory = NULL;
    enum status st = mem_calloc(g->n_nodes, sizeof(bool), &live, err);
    if (st == ST_OK)
        st = mem_calloc(g->n_weights, sizeof *used.graph.weights, &memory, err);
    used.graph.weights = memory;
    if (st == ST_OK)
        st = mem_calloc(g->n_weights, sizeof(size_t), &index, err);
    if (st == ST_OK) {
        st = mem_calloc(g->n_weights, sizeof *m->by_index, &memory, err);
        m->by_index = memory;
    }
    if (st == ST_OK) {
        graph_model_live(m->model, live);
        for (size_t w = 0; w < g->n_weights; w++) {
            bool read = false;
            for (size_t i = 0; i < g->n_nodes; i++)
                for (int role = 0; ((bool *)live)[i] && role < ROLE_COUNT; role++)
                    read = read || g->nodes[i].weights[role] == (int32_t)w;
            if (!read)
                continue;
            ((size_t *)index)[used.graph.n_weights] = w;
            used.graph.weights[used.graph.n_weights++] = g->weights[w];
        }
        st = shard_weights_read(m->checkpoint, &used, &m->weights, err);
    }
    for (size_t i = 0; st == ST_OK && i < used.graph.n_weights; i++)
        m->by_index[((size_t *)index)[i]] = m->weights.data[i];
    free(live);
    free(index);
    free(used.graph.weights);
    return st;
}

static enum status open_recipe(struct driver_model *m, const char *name, bool staged,
                               struct err *err)
{
    struct tokentab_error fault = {0};
    struct tokentab_open_opts opts = {.flags = 0};
    char *dir = path_dir(m->path);
    char *path = dir == NULL ? NULL : path_join(dir, name);
    char *file = path == NULL ? NULL : path_join(path, LOOKUP_STAGED_FILE);
    enum status st = file == NULL ? err_nomem(err, strlen(name) + 1) : ST_OK;
    if (st == ST_OK) {
        struct executor_recipe *r = &m->recipes[m->n_recipes];
        if (staged && file_exists(file))
            opts.flags = TOKENTAB_OPEN_STAGED;
        r->name = name;
        enum tokentab_status opened = tokentab_open(path, &opts, &r->recipe, &fault);
        if (opened != TOKENTAB_OK)
            st = err_set(err, lookup_status(opened), "%s", fault.message);
        else
            m->n_recipes++;
    }
    free(dir);
    free(path);
    free(file);
    return st;
}

static enum status open_recipes(struct driver_model *m, bool staged, struct err *err)
{
    const struct graph *g = &m->model->graph;
    void *memory = NULL;
    TRY(mem_calloc(g->n_nodes, sizeof *m->recipes, &memory, err));
    m->recipes = memory;
    for (size_t i = 0; i < g->n_nodes; i++) {
        const char *name = g->nodes[i].texts[TEXT_RECIPE];
        bool known = g->nodes[i].op != OP_LOOKUP;
        for (size_t k = 0; k < m->n_recipes && !known; k++)
            known = strcmp(m->recipes[k].name, name) == 0;
        if (!known)
            TRY(open_recipe(m, name, staged, err));
    }
    return ST_OK;
}

static enum status open_parts(struct driver_model *m, const struct driver_model_opts *o,
                              struct err *err)
{
    struct format_checkpoint_opts copts = {.header_cap = o->opts->header_cap,
                                           .allow_missing_unused = o->opts->allow_missing_unused};
    TRY(format_spec_read(m->path, &m->spec, err));
    TRY(format_spec_graph(m->spec, &m->model, err));
    if (m->model == NULL)
        return err_set(err, ST_USAGE, "%s: no model: a spec with \"graph\" can be run", m->path);
    const char *checkpoint = o->checkpoint != NULL ? o->checkpoint : m->spec->checkpoint_path;
    TRY(format_checkpoint_open(checkpoint, &copts, &m->checkpoint, err));
    enum status st =
        graph_model_resolve(m->model, format_checkpoint_tensor_info, m->checkpoint, err);
    if (st == ST_OK)
        st = open_recipes(m, o->staged, err);
    if (st == ST_OK)
        st = read_weights(m, err);
    if (st == ST_OK) {
        const struct executor_opts eopts = {.kernels = o->kernels,
                                            .model = m->model,
                                            .weights = m->by_index,
                                            .recipes = m->recipes,
                                            .n_recipes = m->n_recipes};
        st = executor_open(&eopts, &m->executor, err);
    }
    if (st == ST_SPEC || st == ST_STRUCTURE)
        err_prefix(err, "%s", m->path);
    return st;
}

enum status driver_model_open(const char *spec_path, const struct driver_model_opts *o,
                              struct driver_model **out, struct err *err)
{
    void *memory = NULL;
    *out = NULL;
    TRY(mem_calloc(1, sizeof **out, &memory, err));
    struct driver_model *m = memory;
    m->path = str_dup(spec_path);
    enum status st = m->path == NULL ? err_nomem(err, 1) : open_parts(m, o, err);
    if (st != ST_OK)
        driver_model_close(&m);
    *out = m;
    return st;
}

void driver_model_close(struct driver_model **m)
{
    if (*m == NULL)
        return;
    executor_close(&(*m)->executor);
    for (size_t i = 0; i < (*m)->n_recipes; i++)
        tokentab_close(&(*m)->recipes[i].recipe);
    free((*m)->recipes);
    shard_weights_free(&(*m)->weights);
    free((*m)->by_index);
    graph_model_free(&(*m)->model);
    format_checkpoint_close(&(*m)->checkpoint);
    format_spec_free(&(*m)->spec);
    free((*m)->path);
    free(*m);
    *m = NULL;
}

enum status driver_model_run(const struct driver_model *m, const struct format_example *example,
                             struct executor_array *outputs, struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(m->model->n_inputs, sizeof(struct executor_array), &memory, err));
    struct executor_array *inputs = memory;
    for (size_t i = 0; i < m->model->n_inputs; i++) {
        const struct format_array *a = &example->inputs[i];
        inputs[i] = (struct executor_array){.dtype = a->dtype, .rank = a->rank, .data = a->data};
        memcpy(inputs[i].shape, a->shape, a->rank * sizeof *a->shape);
    }
    enum status st = executor_run(m->executor, inputs, outputs, err);
    if (st != ST_OK)
        err_prefix(err, "%s: example %s", m->shown != NULL ? m->shown : m->path, example->name);
    free(inputs);
    return st;
}

bool driver_is_model_dir(const char *path)
{
    char *file = path_join(path, ENCLOSING_MODEL_FILE);
    bool there = file != NULL && file_is_dir(path) && file_exists(file);
    free(file);
    return there;
}

char *driver_model_spec_path(const char *path)
{
    return driver_is_model_dir(path) ? path_join(path, ENCLOSING_MODEL_FILE) : str_dup(path);
}

/* ---- complete outputs ------------------------------------------------------------------------ */

/* "[0, 3, 17]" for a row-major index. */
static void index_text(const struct executor_array *a, uint64_t index, char *buf, size_t buf_size)
{
    uint64_t place[EXECUTOR_MAX_RANK] = {0};
    size_t at = 0;
    for (unsigned i = a->rank; i-- > 0;) {
        place[i] = a->shape[i] == 0 ? 0 : index % a->shape[i];
        index = a->shape[i] == 0 ? 0 : index / a->shape[i];
    }
    for (unsigned i = 0; i < a->rank && at + 24 < buf_size; i++)
        at += (size_t)snprintf(buf + at, buf_size - at, "%s%llu", i == 0 ? "" : ", ",
                               (unsigned long long)place[i]);
    if (a->rank == 0)
        (void)snprintf(buf, buf_size, "0");
}

struct comparing {
    const struct format_spec *spec;
    const struct graph_model *model;
    struct enclosing_comparison *out;
    size_t example;
    const char *name;
};

static void fail(const struct comparing *c, size_t output, enum status st,
                 const struct executor_array *a, const struct executor_place *p, const char *what)
{
    struct enclosing_failure *f = &c->out->failure;
    char at[160], x[32], y[32];
    if (f->failed)
        return;
    *f = (struct enclosing_failure){
        .failed = true, .example = c->example, .output = output, .st = st, .place = *p};
    index_text(a, p->index, at, sizeof at);
    (void)snprintf(f->message, sizeof f->message,
                   "example %s, output %s: %s, worst at [%s]: original %s, rewritten %s", c->name,
                   c->model->outputs[output].name, what, at, str_double(p->a, x, sizeof x),
                   str_double(p->b, y, sizeof y));
}

static enum status compare_output(const struct comparing *c, size_t i,
                                  const struct executor_array *a, const struct executor_array *b,
                                  struct err *err)
{
    struct executor_difference *all = &c->out->outputs[i];
    struct enclosing_example *one = &c->out->examples[c->example];
    struct executor_place p;
    char what[120], x[32], y[32];
    uint64_t bytes_before = all->unequal_bytes;
    TRY(executor_compare(&c->model->outputs[i], a, b, all, &p, err));
    one->exact = one->exact && p.same_form && p.unequal == 0;
    one->bitwise = one->bitwise && p.same_form && all->unequal_bytes == bytes_before;
    if (p.max_abs > one->max_abs)
        one->max_abs = p.max_abs;
    if (p.max_rel > one->max_rel)
        one->max_rel = p.max_rel;
    if (!p.same_form) {
        char s[EXECUTOR_SHAPE_TEXT], t[EXECUTOR_SHAPE_TEXT];
        c->out->failure = (struct enclosing_failure){
            .failed = true, .example = c->example, .output = i, .st = ST_TOLERANCE};
        (void)snprintf(c->out->failure.message, sizeof c->out->failure.message,
                       "example %s, output %s: %s %s, rewritten %s %s", c->name,
                       c->model->outputs[i].name, dtype_name(a->dtype),
                       executor_shape_text(a->rank, a->shape, s), dtype_name(b->dtype),
                       executor_shape_text(b->rank, b->shape, t));
    } else if (a->dtype == DT_I64 && p.unequal > 0) {
        (void)snprintf(what, sizeof what, "%llu integers differ", (unsigned long long)p.unequal);
        fail(c, i, ST_DECISION, a, &p, what);
    } else if (p.max_abs > c->spec->tolerance_absolute || p.max_rel > c->spec->tolerance_relative) {
        (void)snprintf(what, sizeof what, "max_abs %s, relative L2 %s",
                       str_double(p.max_abs, x, sizeof x), str_double(p.max_rel, y, sizeof y));
        fail(c, i, ST_TOLERANCE, a, &p, what);
    } else if (p.decisions_changed > 0) {
        (void)snprintf(what, sizeof what, "%llu selections change",
                       (unsigned long long)p.decisions_changed);
        fail(c, i, ST_DECISION, a, &p, what);
    }
    return ST_OK;
}

static enum status compare_example(const struct comparing *c, const struct driver_model *original,
                                   const struct driver_model *rewritten,
                                   const struct format_example *example, struct err *err)
{
    void *memory = NULL;
    size_t n = c->model->n_outputs;
    TRY(mem_calloc(2 * n, sizeof(struct executor_array), &memory, err));
    struct executor_array *a = memory, *b = a + n;
    enum status st = driver_model_run(original, example, a, err);
    if (st == ST_OK)
        st = driver_model_run(rewritten, example, b, err);
    for (size_t i = 0; i < n && st == ST_OK && !c->out->failure.failed; i++)
        st = compare_output(c, i, &a[i], &b[i], err);
    for (size_t i = 0; i < 2 * n; i++)
        executor_array_free(&a[i]);
    free(a);
    return st;
}

enum status driver_enclosing_compare(const struct format_spec *spec,
                                     const struct driver_model *original,
                                     const struct driver_model *rewritten,
                                     const struct format_examples *examples,
                                     struct enclosing_comparison *out, struct err *err)
{
    void *memory = NULL;
    *out = (struct enclosing_comparison){.n_examples = examples->n};
    TRY(mem_calloc(original->model->n_outputs, sizeof *out->outputs, &memory, err));
    out->outputs = memory;
    TRY(mem_calloc(examples->n, sizeof *out->examples, &memory, err));
    out->examples = memory;
    for (size_t i = 0; i < examples->n && !out->failure.failed; i++) {
        struct comparing c = {.spec = spec,
                              .model = original->model,
                              .out = out,
                              .example = i,
                              .name = examples->list[i].name};
        out->examples[i] = (struct enclosing_example){.exact = true, .bitwise = true};
        TRY(driver_check_stop(err));
        TRY(compare_example(&c, original, rewritten, &examples->list[i], err));
        out->n_done = i + 1;
    }
    return ST_OK;
}

void driver_enclosing_comparison_free(struct enclosing_comparison *c)
{
    free(c->outputs);
    free(c->examples);
    *c = (struct enclosing_comparison){.outputs = NULL};
}
