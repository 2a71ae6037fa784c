/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/workers/executor_fixture.h"

#include <unistd.h>

struct kernels *fixture_kernels(void)
{
    static struct kernels *k = NULL;
    struct err err = {0};
    const struct kernels_opts opts = {.blas_core = kernels_core_for(kernels_cpu_flags()),
                                      .blas_threads = 1};
    if (k == NULL && kernels_open(&opts, &k, &err) != ST_OK) {
        printf("kernels_open: %s\n", err.message);
        exit(1);
    }
    return k;
}

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL)
        abort();
    for (; *text != '\0'; text++)
        fputc(*text == '\'' ? '"' : *text, f);
    fclose(f);
}

static const struct fixture_tensor *find_tensor(const struct fixture_tensor *tensors,
                                                const char *name)
{
    for (size_t i = 0; i < FIXTURE_TENSORS && tensors[i].name != NULL; i++)
        if (strcmp(tensors[i].name, name) == 0)
            return &tensors[i];
    return NULL;
}

static const struct fixture_tensor *current; /* of the resolution under way */

static enum status find(void *ctx, const char *name, struct graph_tensor_info *out, struct err *err)
{
    const struct fixture_tensor *t = find_tensor(current, name);
    (void)ctx;
    if (t == NULL)
        return err_set(err, ST_STRUCTURE, "no tensor %s", name);
    *out = (struct graph_tensor_info){t->dtype, dtype_name(t->dtype), t->rank, {0}};
    for (unsigned i = 0; i < t->rank; i++)
        out->shape[i] = t->shape[i];
    return ST_OK;
}

enum status fixture_try(const char *graph, const struct fixture_tensor *tensors,
                        struct fixture_model *m, struct err *err)
{
    struct format_spec *spec = NULL;
    char path[64];
    *m = (struct fixture_model){0};
    char *text = str_printf("{'tokentab': 1, 'checkpoint': 'c.safetensors', 'mode': 'eval', "
                            "'input_contract': 'token_indices_only', 'graph': %s}",
                            graph);
    if (text == NULL)
        abort();
    snprintf(path, sizeof path, "executor_%ld.json", (long)getpid());
    write_text(path, text);
    free(text);
    enum status st = format_spec_read(path, &spec, err);
    remove(path);
    if (st == ST_OK)
        st = format_spec_graph(spec, &m->model, err);
    current = tensors;
    if (st == ST_OK)
        st = graph_model_resolve(m->model, find, NULL, err);
    for (size_t i = 0; st == ST_OK && i < m->model->graph.n_weights; i++) {
        const struct graph_weight *w = &m->model->graph.weights[i];
        const struct fixture_tensor *t = find_tensor(tensors, w->backing);
        m->weights[i] = malloc(graph_weight_bytes(w) + 1);
        if (m->weights[i] == NULL)
            abort();
        graph_weight_gather(w, t->data, dtype_size(t->dtype), m->weights[i]);
    }
    if (st == ST_OK) {
        const struct executor_opts opts = {.kernels = fixture_kernels(),
                                           .model = m->model,
                                           .weights = (const void *const *)m->weights};
        st = executor_open(&opts, &m->e, err);
    }
    format_spec_free(&spec);
    return st;
}

struct fixture_model fixture_open(const char *graph, const struct fixture_tensor *tensors)
{
    struct fixture_model m;
    struct err err = {0};
    if (fixture_try(graph, tensors, &m, &err) != ST_OK) {
        printf("\n    %s\n", err.message);
        exit(1);
    }
    return m;
}

void fixture_close(struct fixture_model *m)
{
    executor_close(&m->e);
    graph_model_free(&m->model);
    for (size_t i = 0; i < sizeof m->weights / sizeof m->weights[0]; i++)
        free(m->weights[i]);
    *m = (struct fixture_model){0};
}

static struct executor_array make(enum dtype dt, const void *data, unsigned rank,
                                  const uint64_t *shape)
{
    struct executor_array a = {.dtype = dt, .rank = rank};
    for (unsigned i = 0; i < rank; i++)
        a.shape[i] = shape[i];
    size_t size = (size_t)executor_array_count(&a) * dtype_size(dt);
    a.data = malloc(size + 1);
    if (a.data == NULL)
        abort();
    if (size > 0)
        memcpy(a.data, data, size);
    return a;
}

struct executor_array fixture_f32(const float *data, unsigned rank, const uint64_t *shape)
{
    return make(DT_F32, data, rank, shape);
}

struct executor_array fixture_i64(const int64_t *data, unsigned rank, const uint64_t *shape)
{
    return make(DT_I64, data, rank, shape);
}

void fixture_fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(seed >> 40) / 0x1p23 - 1);
    }
}

static enum status run(struct fixture_model *m, struct executor_array *inputs, size_t n,
                       struct executor_array *out, struct err *err)
{
    if (n != m->model->n_inputs || m->model->n_outputs != 1)
        abort();
    enum status st = executor_run(m->e, inputs, out, err);
    for (size_t i = 0; i < n; i++)
        executor_array_free(&inputs[i]);
    return st;
}

struct executor_array fixture_run(struct fixture_model *m, struct executor_array *inputs, size_t n)
{
    struct executor_array out;
    struct err err = {0};
    if (run(m, inputs, n, &out, &err) != ST_OK) {
        printf("\n    %s\n", err.message);
        CU_FAIL("run");
    }
    return out;
}

void fixture_refused(struct fixture_model *m, struct executor_array *inputs, size_t n,
                     enum status expected, const char *part)
{
    struct executor_array out;
    struct err err = {0};
    CU_ASSERT_EQUAL(run(m, inputs, n, &out, &err), expected);
    CU_ASSERT_PTR_NULL(out.data);
    if (strstr(err.message, part) == NULL) {
        printf("\n    expected \"%s\" in: %s\n", part, err.message);
        CU_FAIL("message");
    }
    executor_array_free(&out);
}

void fixture_expect(struct executor_array out, const float *values, double bound, unsigned rank,
                    const uint64_t *shape)
{
    bool same = out.rank == rank;
    char text[EXECUTOR_SHAPE_TEXT];
    for (unsigned i = 0; same && i < rank; i++)
        same = out.shape[i] == shape[i];
    if (!same)
        printf("\n    found shape %s\n", executor_shape_text(out.rank, out.shape, text));
    CU_ASSERT(same);
    for (size_t i = 0; same && i < executor_array_count(&out); i++) {
        double x = out.dtype == DT_I64 ? (double)((const int64_t *)out.data)[i]
                                       : (double)((const float *)out.data)[i];
        bool near = fabs(x - (double)values[i]) <= bound || x == (double)values[i];
        if (!near)
            printf("\n    [%zu] found %.9g, expected %.9g\n", i, x, (double)values[i]);
        CU_ASSERT(near);
    }
    executor_array_free(&out);
}

int fixture_main(const char *suite_name, const struct fixture_case *cases, size_t n)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite(suite_name, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        if (suite == NULL || CU_add_test(suite, cases[i].name, cases[i].run) == NULL)
            return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    bool bad = CU_get_number_of_failures() > 0 || CU_get_number_of_tests_run() != n;
    CU_cleanup_registry();
    struct kernels *k = fixture_kernels();
    kernels_close(&k);
    return bad;
}
