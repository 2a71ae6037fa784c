/* SPDX-License-Identifier: Apache-2.0 */
#include "worker_fixture.h"

int fixture_main(const char *suite, const struct fixture_test *tests, size_t n)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite cu_suite = CU_add_suite(suite, NULL, NULL);
    bool added = cu_suite != NULL;
    for (size_t i = 0; added && i < n; i++)
        added = CU_add_test(cu_suite, tests[i].name, tests[i].run) != NULL;
    if (!added)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    const unsigned failed = CU_get_number_of_failures();
    const bool all_ran = CU_get_number_of_tests_run() == n;
    CU_cleanup_registry();
    return failed == 0 && all_ran ? 0 : 1;
}

struct kernels *fixture_kernels(const char *backend)
{
    struct err err = {0};
    struct kernels *k = NULL;
    const struct kernels_opts opts = {
        .blas_core = kernels_core_for(kernels_cpu_flags()), .blas_threads = 1, .backend = backend};
    if (kernels_open(&opts, &k, &err) != ST_OK) {
        printf("kernels_open: %s\n", err.message);
        exit(1);
    }
    return k;
}

static void *must(void *p)
{
    if (p == NULL) {
        printf("out of memory\n");
        exit(1);
    }
    return p;
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 11) + 0.5) / 0x1p53;
}

static double normal(uint64_t *state)
{
    const double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

double fixture_element(enum dtype dt, const void *stored, size_t i)
{
    double wide;
    float narrow;
    const char *at = (const char *)stored + i * dtype_size(dt);
    if (dt == DT_F64) {
        kernels_unpack(dt, at, 1, &wide);
        return wide;
    }
    kernels_unpack(dt, at, 1, &narrow);
    return (double)narrow;
}

void fixture_store(enum dtype dt, void *stored, size_t i, double value)
{
    char *at = (char *)stored + i * dtype_size(dt);
    const float narrow = dt == DT_F64 ? 0 : f64_round_to(dt, value);
    if (dt == DT_F64)
        kernels_pack(dt, &value, 1, at);
    else
        kernels_pack(dt, &narrow, 1, at);
}

static struct fixture_tensor *new_tensor(struct fixture *f, const char *name, enum dtype dt,
                                         uint64_t rows, uint64_t cols)
{
    if (f->n_tensors == FIXTURE_TENSORS) {
        printf("too many tensors\n");
        exit(1);
    }
    struct fixture_tensor *t = &f->tensors[f->n_tensors++];
    *t = (struct fixture_tensor){.dtype = dt, .rank = cols == 0 ? 1 : 2, .shape = {rows, cols}};
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->data = must(calloc(rows * (cols == 0 ? 1 : cols) + 1, dtype_size(dt)));
    return t;
}

void *fixture_tensor(struct fixture *f, const char *name, enum dtype dt, uint64_t rows,
                     uint64_t cols, double scale)
{
    struct fixture_tensor *t = new_tensor(f, name, dt, rows, cols);
    for (size_t i = 0; i < rows * (cols == 0 ? 1 : cols); i++)
        fixture_store(dt, t->data, i, scale * normal(&f->seed));
    return t->data;
}

void *fixture_values(struct fixture *f, const char *name, enum dtype dt, uint64_t rows,
                     uint64_t cols, const double *values)
{
    struct fixture_tensor *t = new_tensor(f, name, dt, rows, cols);
    for (size_t i = 0; i < rows * (cols == 0 ? 1 : cols); i++)
        fixture_store(dt, t->data, i, values[i]);
    return t->data;
}

struct fixture_tensor *fixture_find(struct fixture *f, const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    return NULL;
}

static void take(enum status st, const struct err *err)
{
    if (st != ST_OK) {
        printf("fixture: %s\n", err->message);
        exit(1);
    }
}

uint32_t fixture_node(struct fixture *f, enum graph_op op, const char *name, uint32_t input,
                      const char *weight, const char *bias)
{
    struct err err = {0};
    struct graph_node node;
    const char *names[2] = {weight, bias};
    uint32_t index = 0;
    graph_node_init(&node, op);
    node.name = must(str_dup(name));
    node.where = must(str_dup(name));
    node.n_inputs = op == OP_INPUT ? 0 : 1;
    node.inputs[0] = input;
    for (int i = 0; i < 2; i++) {
        if (names[i] == NULL)
            continue;
        struct graph_weight w = {.tensor = must(str_dup(names[i])),
                                 .backing = must(str_dup(names[i])),
                                 .where = must(str_dup(name))};
        take(graph_weight_take(&f->block.graph, &w, &node.weights[ROLE_WEIGHT + i], &err), &err);
    }
    take(graph_node_take(&f->block.graph, &node, &index, &err), &err);
    return index;
}

void fixture_number(struct fixture *f, uint32_t node, enum graph_number slot, double value)
{
    f->block.graph.nodes[node].numbers[slot] = value;
}

static void append(struct graph_output **list, size_t *n, const char *name, uint32_t node)
{
    *list = must(realloc(*list, (*n + 1) * sizeof **list));
    (*list)[(*n)++] = (struct graph_output){.name = must(str_dup(name)), .node = node};
}

void fixture_table(struct fixture *f, const char *name, uint32_t node)
{
    append(&f->block.tables, &f->block.n_tables, name, node);
}

void fixture_result(struct fixture *f, const char *name, uint32_t node)
{
    append(&f->block.results, &f->block.n_results, name, node);
}

void fixture_output(struct fixture *f, const char *name, uint32_t node)
{
    fixture_table(f, name, node);
    fixture_result(f, name, node);
}

void fixture_start(struct fixture *f, enum graph_block_kind kind, enum dtype dt,
                   uint64_t vocabulary, uint64_t width)
{
    *f = (struct fixture){.seed = 12345};
    f->block.kind = kind;
    f->block.name = must(str_dup("block"));
    f->block.where = must(str_dup("block"));
    f->block.bias_weight = -1;
    f->opts.bulk_rows = 8;
    f->opts.validation_rows = 5;
    fixture_tensor(f, "E", dt, vocabulary, width, 1);
    const uint32_t input = fixture_node(f, OP_INPUT, "ids", 0, NULL, NULL);
    (void)fixture_node(f, OP_EMBEDDING, "embedding", input, "E", NULL);
}

static enum status describe(void *ctx, const char *name, struct graph_tensor_info *out,
                            struct err *err)
{
    const struct fixture_tensor *t = fixture_find(ctx, name);
    if (t == NULL)
        return err_set(err, ST_STRUCTURE, "no tensor %s", name);
    *out = (struct graph_tensor_info){.dtype = t->dtype,
                                      .dtype_text = dtype_name(t->dtype),
                                      .rank = t->rank,
                                      .shape = {t->shape[0], t->shape[1]}};
    return ST_OK;
}

enum status fixture_open(struct fixture *f, struct err *err)
{
    TRY(graph_block_resolve(&f->block, describe, f, err));
    for (size_t i = 0; i < f->block.graph.n_weights; i++)
        f->weights[i] = fixture_find(f, f->block.graph.weights[i].tensor)->data;
    f->opts.block = &f->block;
    f->opts.weights = f->weights;
    f->rows = (struct worker_rows){0, f->tensors[0].shape[0], f->tensors[0].data};
    return worker_open(&f->opts, &f->worker, err);
}

void fixture_close(struct fixture *f)
{
    worker_close(&f->worker);
    graph_block_free(&f->block);
    for (size_t i = 0; i < f->n_tensors; i++)
        free(f->tensors[i].data);
    *f = (struct fixture){0};
}

void fixture_profiles(struct fixture *f)
{
    static const struct worker_profile profiles[] = {{1, 1}, {7, 2}};
    f->opts.profiles = profiles;
    f->opts.n_profiles = N_OF(profiles);
}

void fixture_fanout(struct fixture *f, struct kernels *k, enum dtype dt, uint64_t vocabulary,
                    bool bias)
{
    enum { WIDTH = 24 };
    fixture_start(f, BLOCK_FANOUT, dt, vocabulary, WIDTH);
    f->opts.kernels = k;
    fixture_tensor(f, "scale", dt, WIDTH, 0, 1);
    fixture_tensor(f, "q", dt, 6, WIDTH, 0.3);
    fixture_tensor(f, "v", dt, 5, WIDTH, 0.3);
    fixture_tensor(f, "q.bias", dt, 6, 0, 1);
    const uint32_t norm = fixture_node(f, OP_FLOAT32_RMS_NORM, "norm", 1, "scale", NULL);
    fixture_number(f, norm, NUM_EPS, 1e-6);
    const uint32_t q = fixture_node(f, OP_LINEAR, "q0", norm, "q", bias ? "q.bias" : NULL);
    const uint32_t v = fixture_node(f, OP_LINEAR, "v0", norm, "v", NULL);
    const uint32_t silu = fixture_node(f, OP_SILU, "v1", v, NULL, NULL);
    fixture_output(f, "q", q);
    fixture_output(f, "v", silu);
    fixture_output(f, "hidden", 1);
}
