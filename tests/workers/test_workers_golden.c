/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of the golden cases (../shared/golden), whose specs are an older spelling of the block
 * form, against those of the PyTorch reference: both arithmetics, the double-precision evaluation,
 * and the validation of accepted ones.  Skipped where the folder is absent. */
#include "formats/recipe.h"
#include "worker_fixture.h"

#include <cjson/cJSON.h>

static struct kernels *kernels;
static char *golden; /* folder */

/* One block of a golden case. */
struct golden_case {
    struct fixture f;
    const char *folder, *prefix; /* "rms_qkv_84", ""; "two_tower", "item_" */
    cJSON *spec, *fact;
    struct worker_profile profiles[8];
};

static char *case_path(const struct golden_case *c, const char *name, const char *suffix)
{
    char *path = str_printf("%s/%s/%s%s", golden, c->folder, name, suffix);
    if (path == NULL)
        exit(1);
    return path;
}

static cJSON *read_json(const char *path)
{
    uint8_t *text = NULL;
    size_t size = 0;
    CHECK_OK(file_read_all(path, 1 << 24, &text, &size, &err));
    cJSON *json = cJSON_Parse((const char *)text);
    CU_ASSERT_PTR_NOT_NULL_FATAL(json);
    free(text);
    return json;
}

static double number(const cJSON *o, const char *key, double fallback)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsNumber(item) ? item->valuedouble : fallback;
}

static const char *text(const cJSON *o, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(o, key));
}

/* ---- checkpoint ----------------------------------------------------------------------------- */

static void read_tensors(struct golden_case *c)
{
    char *path = case_path(c, text(c->spec, "checkpoint"), "");
    struct format_safetensors *s = NULL;
    CHECK_OK(format_safetensors_open(path, 0, &s, &err));
    c->f.seed = 1;
    for (size_t i = 0; i < s->n_tensors; i++) {
        const struct format_tensor *t = &s->tensors[i];
        if (!dtype_is_computable(t->dtype) || t->rank == 0 || t->rank > 2)
            continue;
        void *data = fixture_tensor(&c->f, t->name, t->dtype, t->shape[0],
                                    t->rank == 2 ? t->shape[1] : 0, 0);
        CHECK_OK(format_safetensors_read(s, t, 0, data, (size_t)t->size_bytes, &err));
    }
    format_safetensors_close(&s);
    free(path);
}

/* Tensor `name` of a golden file as doubles, and its bytes; false if the file lacks it. */
static bool read_expected(const char *path, const char *name, enum dtype *dt, void **stored,
                          size_t *n)
{
    struct format_safetensors *s = NULL;
    CHECK_OK(format_safetensors_open(path, 0, &s, &err));
    const struct format_tensor *t = format_safetensors_find(s, name);
    if (t != NULL) {
        CHECK_OK(mem_alloc((size_t)t->size_bytes, 1, stored, &err));
        CHECK_OK(format_safetensors_read(s, t, 0, *stored, (size_t)t->size_bytes, &err));
        *dt = t->dtype;
        *n = (size_t)t->n_elements;
    }
    format_safetensors_close(&s);
    return t != NULL;
}

/* ---- the block ------------------------------------------------------------------------------ */

static enum graph_op op_of(const cJSON *layer)
{
    const char *name = text(layer, "op"), *approximate = text(layer, "approximate");
    if (strcmp(name, "gelu") == 0)
        name = approximate != NULL && strcmp(approximate, "tanh") == 0 ? "gelu_tanh" : "gelu_erf";
    return graph_op_find(name);
}

static double default_eps(const struct golden_case *c, enum graph_op op)
{
    const enum dtype dt = c->f.tensors[0].dtype;
    if (op == OP_LAYER_NORM)
        return 1e-5;
    if (op == OP_RMS_NORM)
        return dt == DT_F64 ? 0x1p-52 : dt == DT_F32 ? 0x1p-23 : dt == DT_F16 ? 0x1p-10 : 0x1p-7;
    return 1e-12;
}

static uint32_t add_layer(struct golden_case *c, const cJSON *layer, const char *name,
                          uint32_t input)
{
    const enum graph_op op = op_of(layer);
    CU_ASSERT_NOT_EQUAL_FATAL(op, OP_COUNT);
    const uint32_t node =
        fixture_node(&c->f, op, name, input, text(layer, "weight"), text(layer, "bias"));
    const struct graph_op_info *info = graph_op(op);
    for (size_t i = 0; i < info->n_attrs; i++) {
        const struct graph_attr *a = &info->attrs[i];
        if (a->kind != ATTR_NUMBER)
            continue;
        const double fallback = a->slot == NUM_EPS ? default_eps(c, op) : a->default_value;
        fixture_number(&c->f, node, (enum graph_number)a->slot, number(layer, a->key, fallback));
    }
    return node;
}

static uint32_t add_chain(struct golden_case *c, const cJSON *layers, const char *name,
                          uint32_t input)
{
    const cJSON *layer;
    unsigned i = 0;
    cJSON_ArrayForEach(layer, layers)
    {
        char node_name[96];
        (void)snprintf(node_name, sizeof node_name, "%s.%u", name, i++);
        input = add_layer(c, layer, node_name, input);
    }
    return input;
}

static void add_projected(struct golden_case *c)
{
    const cJSON *linear = cJSON_GetObjectItemCaseSensitive(c->spec, "linear");
    const char *w = text(linear, "weight"), *b = text(linear, "bias");
    const double eps = number(c->spec, "eps", 1e-12);
    const uint32_t z = fixture_node(&c->f, OP_LINEAR, "z", 1, w, NULL);
    const uint32_t r = fixture_node(&c->f, OP_L2_NORM, "r", 1, NULL, NULL);
    const uint32_t raw = fixture_node(&c->f, OP_LINEAR, "raw", 1, w, b);
    const uint32_t unit = fixture_node(&c->f, OP_L2_NORMALIZE, "unit", 1, NULL, NULL);
    const uint32_t normalized = fixture_node(&c->f, OP_LINEAR, "normalized", unit, w, b);
    fixture_number(&c->f, r, NUM_EPS, eps);
    fixture_number(&c->f, unit, NUM_EPS, eps);
    fixture_table(&c->f, "z", z);
    fixture_table(&c->f, "r", r);
    fixture_result(&c->f, "raw", raw);
    fixture_result(&c->f, "normalized", normalized);
    c->f.block.bias_weight = c->f.block.graph.nodes[raw].weights[ROLE_BIAS];
}

static void add_fanout(struct golden_case *c)
{
    const cJSON *prefix = cJSON_GetObjectItemCaseSensitive(c->spec, "prefix");
    const cJSON *branches = cJSON_GetObjectItemCaseSensitive(c->spec, "branches"), *branch;
    const uint32_t shared = add_chain(c, prefix, "prefix", 1);
    cJSON_ArrayForEach(branch, branches)
    {
        const bool listed = cJSON_IsArray(branches);
        const char *name = listed ? text(branch, "name") : branch->string;
        const cJSON *layers = listed ? cJSON_GetObjectItemCaseSensitive(branch, "layers") : branch;
        fixture_output(&c->f, name, add_chain(c, layers, name, shared));
    }
    if (text(c->spec, "residual") != NULL)
        fixture_output(&c->f, text(c->spec, "residual"), 1);
}

static void add_block(struct golden_case *c)
{
    const char *kind = text(c->spec, "kind");
    const cJSON *embedding = cJSON_GetObjectItemCaseSensitive(c->spec, "embedding");
    c->f.block.name = str_dup(c->folder);
    c->f.block.where = str_dup("block");
    c->f.block.bias_weight = -1;
    (void)fixture_node(&c->f, OP_INPUT, "ids", 0, NULL, NULL);
    (void)fixture_node(&c->f, OP_EMBEDDING, "embedding", 0, text(embedding, "weight"), NULL);
    if (strcmp(kind, "projected") == 0) {
        c->f.block.kind = BLOCK_PROJECTED;
        add_projected(c);
    } else if (strcmp(kind, "fanout") == 0) {
        c->f.block.kind = BLOCK_FANOUT;
        add_fanout(c);
    } else {
        const char *name = text(c->spec, "name") != NULL ? text(c->spec, "name") : "output";
        const cJSON *layers = cJSON_GetObjectItemCaseSensitive(c->spec, "layers");
        c->f.block.kind = BLOCK_LOOKUP;
        fixture_output(&c->f, name, add_chain(c, layers, "layers", 1));
    }
}

static void set_opts(struct golden_case *c, enum arithmetic arithmetic)
{
    const cJSON *profile,
        *profiles = cJSON_GetObjectItemCaseSensitive(c->spec, "row_count_profiles");
    size_t n = 0;
    cJSON_ArrayForEach(profile, profiles)
    {
        CU_ASSERT_FATAL(n < N_OF(c->profiles));
        c->profiles[n++] = (struct worker_profile){(uint64_t)number(profile, "max_rows", 0),
                                                   (uint64_t)number(profile, "evaluation_rows", 0)};
    }
    c->f.opts =
        (struct worker_opts){.kernels = kernels,
                             .arithmetic = arithmetic,
                             .profiles = c->profiles,
                             .n_profiles = n,
                             .bulk_rows = (uint64_t)number(c->spec, "bulk_rows", 1024),
                             .validation_rows = (uint64_t)number(c->spec, "validation_rows", 257),
                             .measure_double = true};
}

static void open_case(struct golden_case *c, const char *folder, const char *prefix, cJSON *fact,
                      enum arithmetic arithmetic)
{
    *c = (struct golden_case){.folder = folder, .prefix = prefix, .fact = fact};
    char *name = *prefix == '\0' ? str_dup("spec.json")
                                 : str_printf("%.*s.json", (int)strlen(prefix) - 1, prefix);
    char *path = case_path(c, name, "");
    c->spec = read_json(path);
    free(path);
    free(name);
    read_tensors(c);
    add_block(c);
    set_opts(c, arithmetic);
    if (strcmp(folder, "moe_router") == 0) {
        c->f.block.results[0].decision_top_k = 5;
        c->f.block.results[0].decision_softmax = true;
    }
    CHECK_OK(fixture_open(&c->f, &err));
    const cJSON *embedding = cJSON_GetObjectItemCaseSensitive(c->spec, "embedding");
    const struct fixture_tensor *e = fixture_find(&c->f, text(embedding, "weight"));
    c->f.rows = (struct worker_rows){0, e->shape[0], e->data};
}

static void close_case(struct golden_case *c)
{
    cJSON_Delete(c->spec);
    fixture_close(&c->f);
}

/* ---- checks --------------------------------------------------------------------------------- */

static size_t table_index(const struct golden_case *c, const char *route_and_name)
{
    for (size_t route = 0; route < worker_n_routes(c->f.worker); route++)
        for (size_t t = 0; t < c->f.block.n_tables; t++) {
            char prefix[16], name[128];
            (void)snprintf(name, sizeof name, "%s.%s",
                           lookup_route_name(route, prefix, sizeof prefix),
                           c->f.block.tables[t].name);
            if (strcmp(name, route_and_name) == 0)
                return route * c->f.block.n_tables + t;
        }
    return SIZE_MAX;
}

static void check_table(const struct golden_case *c, const struct worker_unit *u, size_t at,
                        const char *path, bool exact, size_t counts[2])
{
    const cJSON *tolerance = cJSON_GetObjectItemCaseSensitive(c->fact, "table_tolerance");
    const double absolute = number(tolerance, "absolute", 0);
    const double relative = number(tolerance, "relative", 0);
    const struct graph_output *o = &c->f.block.tables[at % u->n_tables];
    char prefix[16], name[128];
    (void)snprintf(name, sizeof name, "%s.%s",
                   lookup_route_name(at / u->n_tables, prefix, sizeof prefix), o->name);
    enum dtype dt = DT_UNKNOWN;
    void *expected = NULL;
    size_t n = 0, off = 0;
    CU_ASSERT_FATAL(read_expected(path, name, &dt, &expected, &n));
    CU_ASSERT_EQUAL_FATAL(dt, o->dtype);
    CU_ASSERT_EQUAL_FATAL(n, (size_t)(u->n_rows * o->width));
    for (size_t i = 0; i < n; i++) {
        const double a = fixture_element(dt, u->tables[at], i);
        const double b = fixture_element(dt, expected, i);
        off += !(fabs(a - b) <= absolute + relative * fabs(b));
        counts[0] += memcmp((const char *)u->tables[at] + i * dtype_size(dt),
                            (const char *)expected + i * dtype_size(dt), dtype_size(dt)) == 0;
    }
    counts[1] += n;
    if (off > 0)
        printf("\n  %s %s: %zu of %zu outside the tolerance", c->folder, name, off, n);
    CU_ASSERT_EQUAL(off, 0);
    if (exact && cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(c->fact, "bit_exact")))
        CU_ASSERT_EQUAL(memcmp(u->tables[at], expected, n * dtype_size(dt)), 0);
    free(expected);
}

/* Which tables have to be the same, different, one row. */
static void check_facts(const struct golden_case *c, const struct worker_unit *u)
{
    static const char *const pairs[] = {"same", "different"};
    for (size_t k = 0; k < 2; k++) {
        const cJSON *pair, *list = cJSON_GetObjectItemCaseSensitive(c->fact, pairs[k]);
        cJSON_ArrayForEach(pair, list)
        {
            const size_t a = table_index(c, cJSON_GetArrayItem(pair, 0)->valuestring);
            const size_t b = table_index(c, cJSON_GetArrayItem(pair, 1)->valuestring);
            CU_ASSERT_FATAL(a != SIZE_MAX && b != SIZE_MAX);
            CU_ASSERT_EQUAL(digest_equal(&u->table_digests[a], &u->table_digests[b]), k == 0);
        }
    }
    static const char *const collapsed[] = {"not_collapsed", "collapsed"};
    for (size_t k = 0; k < 2; k++) {
        const cJSON *item, *list = cJSON_GetObjectItemCaseSensitive(c->fact, collapsed[k]);
        cJSON_ArrayForEach(item, list)
        {
            const size_t at = table_index(c, item->valuestring);
            CU_ASSERT_FATAL(at != SIZE_MAX);
            CU_ASSERT_EQUAL(u->table_constant[at], k);
        }
    }
}

/* The double-precision evaluation against the reference's, row by row. */
static void check_double(const struct golden_case *c, const struct worker_unit *u)
{
    char *name = str_printf("%sexact.safetensors", c->prefix), *path = case_path(c, name, "");
    struct evaluator *e = c->f.worker->exact_tables;
    CHECK_OK(evaluator_reserve(e, (size_t)u->n_rows, &err));
    CHECK_OK(evaluator_load(e, c->f.rows.embedding, (size_t)u->n_rows, &err));
    const struct evaluator_call call = {.n_calls = 1, .m = (size_t)u->n_rows};
    CHECK_OK(evaluator_run(e, &call, &err));
    for (size_t t = 0; t < u->n_tables; t++) {
        const size_t width = (size_t)c->f.block.tables[t].width;
        const double *found = evaluator_output(e, t);
        enum dtype dt = DT_UNKNOWN;
        void *expected = NULL;
        size_t n = 0, off = 0;
        CU_ASSERT_FATAL(read_expected(path, c->f.block.tables[t].name, &dt, &expected, &n));
        CU_ASSERT_EQUAL_FATAL(dt, DT_F64);
        CU_ASSERT_EQUAL_FATAL(n, (size_t)u->n_rows * width);
        for (size_t row = 0; row < u->n_rows; row++) {
            double scale = 1e-300;
            for (size_t i = row * width; i < (row + 1) * width; i++)
                scale = fmax(scale, fabs(fixture_element(dt, expected, i)));
            for (size_t i = row * width; i < (row + 1) * width; i++)
                off += !(fabs(found[i] - fixture_element(dt, expected, i)) <= 1e-9 * scale);
        }
        if (off > 0)
            printf("\n  %s %s: %zu doubles differ", c->folder, c->f.block.tables[t].name, off);
        CU_ASSERT_EQUAL(off, 0);
        free(expected);
    }
    free(path);
    free(name);
}

/* Classes of accepted cases stay within the spec's tolerance; library kernels against correctly
 * rounded tables at least within that of the reference's own tables. */
static void check_validation(struct golden_case *c, struct worker_unit *u)
{
    const bool library = c->f.opts.arithmetic == ARITH_LIBRARY;
    const cJSON *tolerance = cJSON_GetObjectItemCaseSensitive(c->spec, "tolerance");
    const cJSON *of_table = cJSON_GetObjectItemCaseSensitive(c->fact, "table_tolerance");
    const double slack = library ? 0 : number(of_table, "absolute", 0);
    const double absolute = fmax(number(tolerance, "absolute", 1e-5), slack);
    const double relative = number(tolerance, "relative", 1e-5);
    CHECK_OK(worker_unit_validate(c->f.worker, &c->f.rows, u, NULL, NULL, NULL, NULL, &err));
    for (size_t i = 0; i < u->n_stats; i++) {
        /* Flat rows: rounded correctly a zero, in the library what is left of x - mean. */
        const bool in =
            u->stats[i].max_abs <= absolute && (u->stats[i].max_rel <= relative || !library);
        CU_ASSERT_EQUAL(u->stats[i].nonfinite, 0);
        CU_ASSERT(in || strcmp(text(c->fact, "status"), "accepted") != 0);
    }
}

/* Only tokens 15, 41 and 49 nearly tie (ties.json): whatever this core's classes flip is among
 * them, and they have the smallest margins. */
static void check_decisions(const struct golden_case *c, const struct worker_unit *u)
{
    static const size_t ties[] = {15, 41, 49};
    double smallest = 1;
    for (size_t i = 0; i < u->n_rows; i++) {
        const bool tie = i == ties[0] || i == ties[1] || i == ties[2];
        if (u->changed[0][i] != 0)
            printf("\n  %s: the selection for token %zu changes, margin %g, error %g", c->folder, i,
                   u->margin[0][i], u->max_error[0][i]);
        CU_ASSERT(tie || u->changed[0][i] == 0);
        smallest = tie ? smallest : fmin(smallest, u->margin[0][i]);
    }
    for (size_t i = 0; i < N_OF(ties); i++)
        CU_ASSERT(u->margin[0][ties[i]] < smallest && u->margin[0][ties[i]] < 1e-7);
}

static void check_refused(struct golden_case *c)
{
    const char *reason =
        cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(c->fact, "reasons"), 0)->valuestring;
    struct worker_unit *u = NULL;
    struct err err = {0};
    const enum status st = worker_unit_evaluate(c->f.worker, &c->f.rows, NULL, NULL, &u, &err);
    if (strcmp(reason, "positions_disagree") == 0) /* on the reference's core, not on every one */
        CU_ASSERT(st == ST_POSITIONS || st == ST_OK)
    else
        CU_ASSERT_EQUAL(st, ST_NONFINITE);
    worker_unit_free(&u);
}

static void check_case(const char *folder, const char *prefix, cJSON *fact)
{
    for (int k = 0; k < 2; k++) {
        struct golden_case c;
        open_case(&c, folder, prefix, fact, k == 0 ? ARITH_LIBRARY : ARITH_CORRECTLY_ROUNDED);
        const char *status = text(fact, "status");
        if (strcmp(status, "refused") == 0) {
            if (k == 0)
                check_refused(&c);
            close_case(&c);
            continue;
        }
        struct worker_unit *u = NULL;
        CHECK_OK(worker_unit_evaluate(c.f.worker, &c.f.rows, NULL, NULL, &u, &err));
        char *half = str_printf("%sexpected_float32.safetensors", prefix);
        char *whole = str_printf("%sexpected.safetensors", prefix);
        char *path = case_path(&c, half, "");
        if (!file_exists(path)) {
            free(path);
            path = case_path(&c, whole, "");
        }
        size_t counts[2] = {0, 0};
        for (size_t i = 0; i < u->n_routes * u->n_tables; i++)
            check_table(&c, u, i, path, true, counts);
        printf("\n  %s %s%s: %.2f %% of %zu elements byte-equal to the reference", folder, prefix,
               k == 0 ? "library" : "correctly rounded",
               100 * (double)counts[0] / (double)counts[1], counts[1]);
        check_facts(&c, u);
        check_double(&c, u);
        check_validation(&c, u);
        if (u->margin[0] != NULL)
            check_decisions(&c, u);
        worker_unit_free(&u);
        free(path);
        free(half);
        free(whole);
        close_case(&c);
    }
}

static void test_golden(void)
{
    char *path = path_join(golden, "index.json");
    cJSON *index = read_json(path), *fact, *block;
    size_t n = 0;
    cJSON_ArrayForEach(fact, index)
    {
        const char *reason = cJSON_GetStringValue(
            cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(fact, "reasons"), 0));
        cJSON *blocks = cJSON_GetObjectItemCaseSensitive(fact, "blocks");
        cJSON_ArrayForEach(block, blocks)
        {
            char prefix[64];
            (void)snprintf(prefix, sizeof prefix, "%s_", block->string);
            check_case(fact->string, prefix, block);
            n++;
        }
        if (blocks != NULL || (reason != NULL && strcmp(reason, "non_finite_parameter") == 0))
            continue; /* weights are checked where they are read */
        check_case(fact->string, "", fact);
        n++;
    }
    printf("\n  %zu blocks ", n);
    CU_ASSERT(n > 30);
    cJSON_Delete(index);
    free(path);
}

int main(void)
{
    static const struct fixture_test tests[] = {{"golden cases", test_golden}};
    const char *source = getenv("TOKENTAB_SOURCE_DIR");
    golden = str_printf("%s/../shared/golden", source != NULL ? source : ".");
    if (golden == NULL || !file_is_dir(golden)) {
        printf("skipped: %s is not there\n", golden);
        free(golden);
        return 77;
    }
    kernels = fixture_kernels(NULL);
    const int failed = fixture_main("workers golden", tests, N_OF(tests));
    kernels_close(&kernels);
    free(golden);
    return failed;
}
