/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of a unit and what its validation finds. */
#include "worker_fixture.h"

/* The last three are NULL in builds without test backends. */
static struct kernels *openblas, *classes, *position, *reference;

static bool lacks(const struct kernels *backend)
{
    if (backend == NULL)
        printf("skipped: test backends are not compiled in ... ");
    return backend == NULL;
}

static struct worker_unit *evaluate(struct fixture *f)
{
    struct worker_unit *u = NULL;
    CHECK_OK(worker_unit_evaluate(f->worker, &f->rows, NULL, NULL, &u, &err));
    return u;
}

static void validate(struct fixture *f, struct worker_unit *u, worker_table_fn source, void *ctx)
{
    CHECK_OK(worker_unit_validate(f->worker, &f->rows, u, source, ctx, NULL, NULL, &err));
}

static const struct worker_stat *stat_of(const struct fixture *f, const struct worker_unit *u,
                                         const char *name, size_t result, size_t route)
{
    for (size_t i = 0; i < worker_n_classes(f->worker); i++)
        if (strcmp(worker_class_at(f->worker, i)->name, name) == 0)
            return &u->stats[worker_stat_index(f->worker, i, result, route)];
    printf("\n  no class %s\n", name);
    CU_FAIL_FATAL("class");
    return NULL;
}

/* ---- routes --------------------------------------------------------------------------------- */

/* A backend whose order of summation changes at 1, 2 and 16 rows: each route's table is that of its
 * own calls, straight from the kernels, and each class finds it byte-equal. */
static void test_routes(void)
{
    static const struct worker_profile profiles[] = {{1, 1}, {15, 2}};
    static const uint64_t rows_of_route[] = {16, 1, 2};
    if (lacks(classes))
        return;
    struct fixture f;
    fixture_start(&f, BLOCK_LOOKUP, DT_F32, 32, 24);
    f.opts.kernels = classes;
    float *w = fixture_tensor(&f, "w", DT_F32, 6, 24, 1);
    fixture_output(&f, "output", fixture_node(&f, OP_LINEAR, "linear", 1, "w", NULL));
    f.opts.profiles = profiles;
    f.opts.n_profiles = 2;
    f.opts.bulk_rows = 16;
    f.opts.validation_rows = 20;
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = evaluate(&f);
    struct kernels_linear *l = NULL;
    CHECK_OK(kernels_linear_open(classes, ARITH_LIBRARY, DT_F32, 6, 24, w, NULL, &l, &err));
    for (size_t route = 0; route < 3; route++)
        for (size_t row = 0; row < 32; row++) {
            float x[16 * 24], y[16 * 6];
            for (size_t i = 0; i < rows_of_route[route]; i++)
                memcpy(x + i * 24, (const float *)f.rows.embedding + row * 24, 24 * sizeof *x);
            CHECK_OK(kernels_linear_run(l, rows_of_route[route], x, BIAS_PREFILLED, y, &err));
            CU_ASSERT_EQUAL(memcmp(y, (float *)u->tables[route] + row * 6, 6 * sizeof *y), 0);
        }
    kernels_linear_close(&l);
    CU_ASSERT(!digest_equal(&u->table_digests[0], &u->table_digests[1]));
    CU_ASSERT(!digest_equal(&u->table_digests[0], &u->table_digests[2]));
    CU_ASSERT(!digest_equal(&u->table_digests[1], &u->table_digests[2]));
    validate(&f, u, NULL, NULL);
    uint64_t cases = 0;
    for (size_t i = 0; i < u->n_stats; i++) {
        CU_ASSERT_EQUAL(u->stats[i].unequal_bytes, 0);
        CU_ASSERT_EQUAL(u->stats[i].ulp[0], u->stats[i].elements);
        cases += u->stats[i].cases;
    }
    /* chunks 20 + 12, each also expanded; one padded; 32 single; repeated 2, 15, 16; mixed 2, 14,
     * 15, 16 */
    CU_ASSERT_EQUAL(cases, 2 + 2 + 1 + 32 + 3 * 32 + 16 + 3 + 3 + 2);
    CU_ASSERT_EQUAL(stat_of(&f, u, "chunk", 0, 0)->cases, 1);
    CU_ASSERT_EQUAL(stat_of(&f, u, "chunk", 0, 2)->elements, 12 * 6);
    CU_ASSERT_EQUAL(stat_of(&f, u, "expanded", 0, 0)->elements, 64 * 6);
    CU_ASSERT_EQUAL(stat_of(&f, u, "padded", 0, 0)->elements, 20 * 6);
    CU_ASSERT_EQUAL(stat_of(&f, u, "repeated 15", 0, 2)->elements, 32 * 15 * 6);
    CU_ASSERT_EQUAL(stat_of(&f, u, "mixed 14", 0, 2)->elements, 42 * 6);
    worker_unit_free(&u);
    CU_ASSERT_PTR_NULL(u);
    fixture_close(&f);
}

/* Chunks that are no longer than a profile's calls differ from their route's table, and the class
 * says where. */
static void test_route_differs(void)
{
    static const struct worker_profile profiles[] = {{20, 1}};
    if (lacks(classes))
        return;
    struct fixture f;
    fixture_fanout(&f, classes, DT_F32, 32, true);
    f.opts.profiles = profiles;
    f.opts.n_profiles = 1;
    f.opts.bulk_rows = 16;
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = evaluate(&f);
    validate(&f, u, NULL, NULL);
    const struct worker_stat *s = stat_of(&f, u, "chunk", 0, 1);
    CU_ASSERT(s->unequal > 0 && s->max_abs > 0 && s->max_abs < 1e-5 && s->max_rel > 0);
    CU_ASSERT(s->max_ulp > 0 && s->max_abs_token < 32 && s->max_abs_column < 6);
    /* The worst place, recomputed. */
    CU_ASSERT_EQUAL(stat_of(&f, u, "chunk", 2, 1)->unequal_bytes, 0); /* the embedding itself */
    CU_ASSERT_EQUAL(stat_of(&f, u, "single", 0, 1)->unequal_bytes, 0);
    CU_ASSERT_EQUAL(stat_of(&f, u, "repeated 21", 0, 0)->unequal_bytes, 0);
    worker_unit_free(&u);
    fixture_close(&f);
}

/* N34: a backend whose last row of an odd call differs refuses the profile and names the place; the
 * correctly rounded arithmetic does not notice. */
static void test_positions(void)
{
    static const struct worker_profile odd[] = {{1, 1}, {7, 3}};
    if (lacks(position))
        return;
    for (int rounded = 0; rounded < 2; rounded++) {
        struct fixture f;
        fixture_fanout(&f, position, DT_F32, 12, true);
        f.opts.profiles = odd;
        f.opts.n_profiles = 2;
        f.opts.arithmetic = rounded ? ARITH_CORRECTLY_ROUNDED : ARITH_LIBRARY;
        CHECK_OK(fixture_open(&f, &err));
        struct worker_unit *u = NULL;
        if (!rounded) {
            CHECK_FAULT(worker_unit_evaluate(f.worker, &f.rows, NULL, NULL, &u, &err), ST_POSITIONS,
                        "profile1 (max_rows 7, evaluation_rows 3): token 0, output q: positions 0 "
                        "and 2");
            CU_ASSERT_PTR_NULL(u);
        } else {
            u = evaluate(&f);
            for (size_t t = 0; t < 3; t++)
                for (size_t route = 1; route < 3; route++)
                    CU_ASSERT(digest_equal(&u->table_digests[t], &u->table_digests[route * 3 + t]));
            validate(&f, u, NULL, NULL);
            const struct worker_stat *s = stat_of(&f, u, "repeated 7", 0, 2);
            CU_ASSERT(s->unequal > 0 && s->max_abs < 1e-5);
            worker_unit_free(&u);
        }
        fixture_close(&f);
    }
}

/* ---- values --------------------------------------------------------------------------------- */

/* Each dtype against the double-precision evaluation, all classes. */
static void test_double(void)
{
    static const enum dtype dtypes[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    static const double bound[] = {1e-6, 1e-5, 3e-2, 2e-1}; /* norm in F32 */
    for (size_t i = 0; i < N_OF(dtypes); i++) {
        struct fixture f;
        fixture_fanout(&f, openblas, dtypes[i], 40, true);
        f.opts.measure_double = true;
        CHECK_OK(fixture_open(&f, &err));
        struct worker_unit *u = evaluate(&f);
        validate(&f, u, NULL, NULL);
        CU_ASSERT(u->double_error[0] > 0 && u->double_error[0] < bound[i]);
        CU_ASSERT(u->double_error[1] > 0 && u->double_error[1] < bound[i]);
        CU_ASSERT_EQUAL(u->double_error[2], 0);
        for (size_t c = 0; c < worker_n_classes(f.worker); c++) {
            const struct worker_stat *s = &u->stats[worker_stat_index(f.worker, c, 0, 0)];
            CU_ASSERT(s->cases == 0 || (s->max_abs_double > 0 && s->max_abs_double < bound[i]));
            CU_ASSERT(s->max_abs < bound[i]);
            CU_ASSERT_EQUAL(s->nonfinite, 0);
        }
        worker_unit_free(&u);
        fixture_close(&f);
    }
}

/* One op on width 2, one row, hand values. */
static void check_op(enum graph_op op, enum dtype dt, const double x[2], const double *weight,
                     const enum graph_number *slots, const double *numbers, size_t n,
                     const double expected[2], double bound)
{
    struct fixture f;
    fixture_start(&f, BLOCK_LOOKUP, dt, 1, 2);
    f.opts.kernels = openblas;
    for (size_t i = 0; i < 2; i++)
        fixture_store(dt, f.tensors[0].data, i, x[i]);
    if (weight != NULL)
        fixture_values(&f, "w", dt, op == OP_RMS_NORM && n > 1 && slots[1] == NUM_GROUPS ? 1 : 2, 0,
                       weight);
    const uint32_t node = fixture_node(&f, op, "op", 1, weight != NULL ? "w" : NULL, NULL);
    for (size_t i = 0; i < n; i++)
        fixture_number(&f, node, slots[i], numbers[i]);
    fixture_output(&f, "output", node);
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = evaluate(&f);
    for (size_t i = 0; i < 2; i++) {
        const double found = fixture_element(f.block.tables[0].dtype, u->tables[0], i);
        if (!(fabs(found - expected[i]) <= bound))
            printf("\n  %s: found %.17g, expected %.17g\n", graph_op(op)->name, found, expected[i]);
        CU_ASSERT(fabs(found - expected[i]) <= bound);
    }
    worker_unit_free(&u);
    fixture_close(&f);
}

static void test_ops(void)
{
    const double x[2] = {3, 4}, zero[2] = {0, 0}, one[1] = {1}, small[2] = {0.05, 15.8125};
    const enum graph_number eps_offset[] = {NUM_EPS, NUM_WEIGHT_OFFSET, NUM_WEIGHT_OFFSET_DTYPE};
    const enum graph_number eps_groups[] = {NUM_EPS, NUM_GROUPS};
    const double llama[] = {0, 0, DT_UNKNOWN}, gemma[] = {0, 1, DT_UNKNOWN};
    const double in_bf16[] = {0, 1, DT_BF16}, in_f32[] = {0, 1, DT_F32}, grouped[] = {0, 2};
    const double rms[2] = {0.8485281, 1.1313708};
    check_op(OP_RMS_NORM, DT_F32, x, zero, eps_offset, llama, 3, zero, 0); /* N26 */
    check_op(OP_RMS_NORM, DT_F32, x, zero, eps_offset, gemma, 3, rms, 2e-7);
    check_op(OP_FLOAT32_RMS_NORM, DT_F32, x, zero, eps_offset, gemma, 3, rms, 2e-7);
    const double ones[2] = {1, 1};
    check_op(OP_RMS_NORM, DT_F32, x, one, eps_groups, grouped, 2, ones, 1e-7);
    /* w stored in bf16: 1 + 0.050048828125 and 1 + 15.8125, added in f32 or in bf16 (in a block of
     * bf16 the result is rounded as well: 16.8125 is a tie that goes to 16.75). */
    const double bf16_sum[2] = {1.046875, 16.75}, unit[2] = {1, 1};
    check_op(OP_RMS_NORM, DT_BF16, unit, small, eps_offset, in_bf16, 3, bf16_sum, 0);
    const double f32_sum[2] = {1.0546875, 16.75};
    check_op(OP_RMS_NORM, DT_BF16, unit, small, eps_offset, in_f32, 3, f32_sum, 0.0079);
    /* N25: sqrt(2304) and sqrt(5376) as Gemma rounds them. */
    const enum graph_number scale[] = {NUM_VALUE, NUM_VALUE_DTYPE};
    const double value[] = {73.321211, DT_BF16}, scaled[2] = {73.5, 73.5};
    check_op(OP_SCALE, DT_F32, unit, NULL, scale, value, 2, scaled, 0);
    const double plain[] = {73.5, DT_UNKNOWN};
    check_op(OP_SCALE, DT_F32, unit, NULL, scale, plain, 2, scaled, 0);
    /* A vector for all rows, rounded once: 15.8125 + 0.05 lies between 15.8125 and 15.875. */
    const double vector[2] = {0.5, -4}, shifted[2] = {3.5, 0}, tie[2] = {0, 0.05},
                 rounded[2] = {0.05, 15.875};
    check_op(OP_BIAS, DT_F32, x, vector, NULL, NULL, 0, shifted, 0);
    check_op(OP_BIAS, DT_F64, x, vector, NULL, NULL, 0, shifted, 0);
    check_op(OP_BIAS, DT_BF16, small, tie, NULL, NULL, 0, rounded, 2e-4);
    /* Renorm: |x| = 5 is longer than 2, not longer than 6. */
    const enum graph_number max_norm[] = {NUM_MAX_NORM};
    const double two[] = {2}, six[] = {6}, shrunk[2] = {1.2, 1.6};
    check_op(OP_RENORM, DT_F64, x, NULL, max_norm, two, 1, shrunk, 1e-7);
    check_op(OP_RENORM, DT_F32, x, NULL, max_norm, two, 1, shrunk, 1e-6);
    check_op(OP_RENORM, DT_F32, x, NULL, max_norm, six, 1, x, 0);
    check_op(OP_DROPOUT, DT_F16, x, NULL, NULL, NULL, 0, x, 0);
}

/* Mixed dtypes: each node takes the wider of what it reads. */
static void test_mixed_dtypes(void)
{
    struct fixture f;
    fixture_start(&f, BLOCK_FANOUT, DT_BF16, 10, 6);
    f.opts.kernels = openblas;
    f.opts.measure_double = true;
    fixture_tensor(&f, "w32", DT_F32, 4, 6, 1);
    fixture_tensor(&f, "w64", DT_F64, 3, 4, 1);
    fixture_tensor(&f, "scale", DT_F64, 6, 0, 1);
    const uint32_t a = fixture_node(&f, OP_LINEAR, "a", 1, "w32", NULL);
    const uint32_t b = fixture_node(&f, OP_LINEAR, "b", a, "w64", NULL);
    const uint32_t norm = fixture_node(&f, OP_RMS_NORM, "norm", 1, "scale", NULL);
    fixture_output(&f, "a", a);
    fixture_output(&f, "b", b);
    fixture_output(&f, "norm", norm);
    fixture_output(&f, "hidden", 1);
    CHECK_OK(fixture_open(&f, &err));
    static const enum dtype expected[] = {DT_F32, DT_F64, DT_F64, DT_BF16};
    for (size_t i = 0; i < 4; i++)
        CU_ASSERT_EQUAL(f.block.tables[i].dtype, expected[i]);
    struct worker_unit *u = evaluate(&f);
    CU_ASSERT(u->double_error[0] < 1e-5);
    CU_ASSERT(u->double_error[1] < 1e-4 && u->double_error[1] > 1e-12); /* behind an F32 rounding */
    CU_ASSERT(u->double_error[2] < 1e-13);
    CU_ASSERT_EQUAL(u->double_error[3], 0);
    CU_ASSERT_EQUAL(memcmp(u->tables[3], f.rows.embedding, 10 * 6 * 2), 0);
    validate(&f, u, NULL, NULL);
    CU_ASSERT_EQUAL(stat_of(&f, u, "chunk", 3, 0)->unequal_bytes, 0);
    CU_ASSERT(stat_of(&f, u, "expanded", 1, 0)->max_abs < 1e-4);
    worker_unit_free(&u);
    fixture_close(&f);
}

/* z and r once; raw and normalized directly against their combination; a zero row has r = eps. */
static void test_projected(void)
{
    for (int bias = 0; bias < 2; bias++) {
        const double e[6] = {3, 4, 0, 0, -5, 12}, w[4] = {1, 0, 1, 1}, b[2] = {10, 20};
        struct fixture f;
        fixture_start(&f, BLOCK_PROJECTED, DT_F32, 3, 2);
        f.opts.kernels = openblas;
        for (size_t i = 0; i < 6; i++)
            fixture_store(DT_F32, f.tensors[0].data, i, e[i]);
        fixture_values(&f, "w", DT_F32, 2, 2, w);
        fixture_values(&f, "b", DT_F32, 2, 0, b);
        const char *bias_name = bias ? "b" : NULL;
        const uint32_t z = fixture_node(&f, OP_LINEAR, "z", 1, "w", NULL);
        const uint32_t r = fixture_node(&f, OP_L2_NORM, "r", 1, NULL, NULL);
        const uint32_t raw = fixture_node(&f, OP_LINEAR, "raw", 1, "w", bias_name);
        const uint32_t unit = fixture_node(&f, OP_L2_NORMALIZE, "unit", 1, NULL, NULL);
        const uint32_t normalized = fixture_node(&f, OP_LINEAR, "normalized", unit, "w", bias_name);
        fixture_number(&f, r, NUM_EPS, 0.5);
        fixture_number(&f, unit, NUM_EPS, 0.5);
        fixture_table(&f, "z", z);
        fixture_table(&f, "r", r);
        fixture_result(&f, "raw", raw);
        fixture_result(&f, "normalized", normalized);
        f.block.bias_weight = bias ? f.block.graph.nodes[raw].weights[ROLE_BIAS] : -1;
        f.opts.measure_double = true;
        CHECK_OK(fixture_open(&f, &err));
        struct worker_unit *u = evaluate(&f);
        const float *z_table = u->tables[0], *r_table = u->tables[1];
        CU_ASSERT(z_table[0] == 3 && z_table[1] == 7 && z_table[2] == 0 && z_table[5] == 7);
        CU_ASSERT(r_table[0] == 5 && r_table[1] == 0.5f && r_table[2] == 13);
        validate(&f, u, NULL, NULL);
        for (size_t c = 0; c < worker_n_classes(f.worker); c++)
            for (size_t i = 0; i < 2; i++) {
                const struct worker_stat *s = &u->stats[worker_stat_index(f.worker, c, i, 0)];
                CU_ASSERT_EQUAL(s->nonfinite, 0);
                CU_ASSERT(s->max_abs < 3e-6 && s->max_abs_double < 3e-6);
                CU_ASSERT(i > 0 || s->unequal_bytes == 0); /* small integers: exact */
            }
        CU_ASSERT_EQUAL(stat_of(&f, u, bias ? "single added" : "single", 1, 0)->elements, 6);
        worker_unit_free(&u);
        fixture_close(&f);
    }
}

/* ---- findings ------------------------------------------------------------------------------- */

static void test_nonfinite(void)
{
    struct fixture f;
    fixture_start(&f, BLOCK_LOOKUP, DT_F16, 4, 2);
    f.opts.kernels = openblas;
    const double e[8] = {1, 1, 1, 1, 60000, 1, 1, 40000}, w[4] = {2, 0, 0, 1};
    for (size_t i = 0; i < 8; i++)
        fixture_store(DT_F16, f.tensors[0].data, i, e[i]);
    fixture_values(&f, "w", DT_F16, 2, 2, w);
    fixture_output(&f, "output", fixture_node(&f, OP_LINEAR, "linear", 1, "w", NULL));
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = NULL;
    CHECK_FAULT(worker_unit_evaluate(f.worker, &f.rows, NULL, NULL, &u, &err), ST_NONFINITE,
                "table bulk.output: 1 values are NaN or infinite in tokens 0 to 3, the first at "
                "token 2, column 0");
    CU_ASSERT_PTR_NULL(u);
    fixture_close(&f);
}

/* A table from elsewhere: its rows as the unit has them, changed by `change`. */
struct altered {
    const struct fixture *f;
    const struct worker_unit *u;
    void (*change)(const struct altered *a, size_t route, size_t table, uint64_t row, void *values);
};

static enum status altered_rows(void *ctx, size_t route, size_t table, uint64_t first_row,
                                uint64_t n_rows, void *dst, struct err *err)
{
    const struct altered *a = ctx;
    const size_t row = worker_row_bytes(&a->f->block.tables[table]);
    (void)err;
    memcpy(dst,
           (const char *)a->u->tables[route * a->u->n_tables + table] +
               (first_row - a->u->first_row) * row,
           n_rows * row);
    for (uint64_t i = 0; i < n_rows; i++)
        a->change(a, route, table, first_row + i, (char *)dst + i * row);
    return ST_OK;
}

static void flip_zero_sign(const struct altered *a, size_t route, size_t table, uint64_t row,
                           void *values)
{
    (void)a, (void)route, (void)table;
    if (row == 3)
        ((uint8_t *)values)[3] ^= 0x80;
}

/* -0 and +0 are one number and two bytes. */
static void test_negative_zero(void)
{
    struct fixture f;
    fixture_start(&f, BLOCK_LOOKUP, DT_F32, 8, 2);
    f.opts.kernels = openblas;
    fixture_store(DT_F32, f.tensors[0].data, 6, -0.0);
    fixture_output(&f, "output", fixture_node(&f, OP_RELU, "relu", 1, NULL, NULL));
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = evaluate(&f);
    validate(&f, u, NULL, NULL);
    CU_ASSERT_EQUAL(u->stats[0].unequal_bytes, 0);
    struct altered a = {&f, u, flip_zero_sign};
    validate(&f, u, altered_rows, &a);
    CU_ASSERT_EQUAL(u->stats[0].unequal_bytes, 1);
    CU_ASSERT_EQUAL(u->stats[0].unequal, 0);
    CU_ASSERT_EQUAL(u->stats[0].max_ulp, 0);
    CU_ASSERT_EQUAL(u->stats[0].max_rel, 0);
    worker_unit_free(&u);
    fixture_close(&f);
}

static void noise(const struct altered *a, size_t route, size_t table, uint64_t row, void *values)
{
    const struct graph_output *o = &a->f->block.tables[table];
    for (size_t i = 0; i < o->width; i++)
        if ((row * 31 + i * 7 + table + route) % 5 == 0)
            fixture_store(o->dtype, values, i,
                          fixture_element(o->dtype, values, i) + (double)((row + i) % 4));
}

/* N75: the numbers of one unit are those of its halves merged. */
static void test_partition(void)
{
    static const struct worker_profile profile[] = {{1, 1}};
    if (lacks(reference))
        return;
    struct fixture f;
    fixture_fanout(&f, reference, DT_F32, 32, true);
    f.opts.profiles = profile;
    f.opts.n_profiles = 1;
    f.opts.validation_rows = 4;
    f.opts.measure_double = true;
    CHECK_OK(fixture_open(&f, &err));
    const struct worker_rows all = f.rows;
    struct worker_unit *whole = evaluate(&f), *half[2];
    struct altered a = {&f, whole, noise};
    validate(&f, whole, altered_rows, &a);
    for (size_t i = 0; i < 2; i++) {
        f.rows = (struct worker_rows){16 * i, 16, (const float *)all.embedding + 16 * i * 24};
        half[i] = evaluate(&f);
        a.u = half[i];
        validate(&f, half[i], altered_rows, &a);
    }
    for (size_t i = 0; i < whole->n_stats; i++) {
        struct worker_stat s = half[1]->stats[i];
        worker_stat_merge(&s, &half[0]->stats[i]);
        CU_ASSERT_EQUAL(memcmp(&s, &whole->stats[i], sizeof s), 0);
    }
    CU_ASSERT(stat_of(&f, whole, "chunk", 0, 0)->unequal > 0);
    for (size_t i = 0; i < 2; i++)
        worker_unit_free(&half[i]);
    worker_unit_free(&whole);
    fixture_close(&f);
}

static void swap_places(const struct altered *a, size_t route, size_t table, uint64_t row,
                        void *values)
{
    (void)a, (void)route;
    float *x = values;
    if (table == 0 && (row == 5 || row == 9)) {
        const float first = x[0];
        x[0] = x[1];
        x[1] = first;
    }
}

/* A router whose two best experts change places in the table for tokens 5 and 9. */
static void test_decision(void)
{
    for (int softmax = 0; softmax < 2; softmax++) {
        struct fixture f;
        fixture_start(&f, BLOCK_LOOKUP, DT_F32, 12, 4);
        f.opts.kernels = openblas;
        for (size_t i = 0; i < 12; i++)
            for (size_t j = 0; j < 4; j++)
                fixture_store(DT_F32, f.tensors[0].data, i * 4 + j,
                              j == 0   ? 2 + (double)i / 64
                              : j == 1 ? 2
                                       : -(double)j);
        fixture_output(&f, "router", fixture_node(&f, OP_IDENTITY, "router", 1, NULL, NULL));
        f.block.results[0].decision_top_k = 1;
        f.block.results[0].decision_softmax = softmax != 0;
        CHECK_OK(fixture_open(&f, &err));
        struct worker_unit *u = evaluate(&f);
        validate(&f, u, NULL, NULL);
        CU_ASSERT_EQUAL(u->stats[0].decisions, 12);
        CU_ASSERT_EQUAL(u->stats[0].decisions_changed, 0);
        CU_ASSERT_EQUAL(u->margin[0][0], 0); /* a tie, and the lowest column wins */
        CU_ASSERT(softmax || u->margin[0][8] == 0.125);
        CU_ASSERT(!softmax || (u->margin[0][8] > 0.01 && u->margin[0][8] < 0.0625));
        struct altered a = {&f, u, swap_places};
        validate(&f, u, altered_rows, &a);
        CU_ASSERT_EQUAL(u->stats[0].decisions_changed, 2);
        CU_ASSERT_EQUAL(u->stats[0].first_changed_token, 5);
        for (size_t i = 0; i < 12; i++)
            CU_ASSERT_EQUAL(u->changed[0][i], i == 5 || i == 9);
        CU_ASSERT(softmax || u->max_error[0][9] == 9.0 / 64);
        CU_ASSERT(u->max_error[0][9] > 0 && u->max_error[0][8] == 0);
        worker_unit_free(&u);
        fixture_close(&f);
    }
}

static enum status stop_later(void *ctx, struct err *err)
{
    int *left = ctx;
    return (*left)-- > 0 ? ST_OK : err_set(err, ST_STOPPED, "stopped");
}

/* The tick ends a unit wherever it is, and nothing leaks (the sanitizers look). */
static void test_stop(void)
{
    struct fixture f;
    if (lacks(reference))
        return;
    fixture_fanout(&f, reference, DT_F32, 20, true);
    fixture_profiles(&f);
    f.opts.measure_double = true;
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = evaluate(&f);
    bool done = false;
    int stops = 0;
    for (int allowed = 0; !done; allowed++, stops++) {
        struct err err = {0};
        int left = allowed;
        const enum status st =
            worker_unit_validate(f.worker, &f.rows, u, NULL, NULL, stop_later, &left, &err);
        CU_ASSERT(st == ST_OK || st == ST_STOPPED);
        done = st != ST_STOPPED;
    }
    CU_ASSERT(stops > 20);
    CU_ASSERT_EQUAL(stat_of(&f, u, "mixed 8", 2, 0)->cases, 3);
    worker_unit_free(&u);
    int left = 2;
    CHECK_FAULT(worker_unit_evaluate(f.worker, &f.rows, stop_later, &left, &u, &err), ST_STOPPED,
                "stopped");
    CU_ASSERT_PTR_NULL(u);
    fixture_close(&f);
}

static void test_facts(void)
{
    struct fixture f;
    fixture_start(&f, BLOCK_FANOUT, DT_F32, 9, 2);
    f.opts.kernels = openblas;
    const double zero[4] = {0, 0, 0, 0};
    for (size_t i = 0; i < 2; i++)
        fixture_store(DT_F32, f.tensors[0].data, 2 * 7 + i,
                      fixture_element(DT_F32, f.tensors[0].data, 2 * 2 + i));
    fixture_values(&f, "zero", DT_F32, 2, 2, zero);
    fixture_tensor(&f, "b", DT_F32, 2, 0, 1);
    fixture_output(&f, "constant", fixture_node(&f, OP_LINEAR, "constant", 1, "zero", "b"));
    fixture_output(&f, "hidden", 1);
    CHECK_OK(fixture_open(&f, &err));
    struct worker_unit *u = evaluate(&f);
    CU_ASSERT_EQUAL(u->distinct_embedding_rows, 8);
    CU_ASSERT_EQUAL(u->table_constant[0], 1);
    CU_ASSERT_EQUAL(u->table_constant[1], 0);
    const struct digest d = digest_of(f.rows.embedding, 9 * 2 * sizeof(float));
    CU_ASSERT(digest_equal(&d, &u->table_digests[1]));
    worker_unit_free(&u);
    fixture_close(&f);
}

int main(void)
{
    static const struct fixture_test tests[] = {{"routes", test_routes},
                                                {"route differs", test_route_differs},
                                                {"positions", test_positions},
                                                {"double precision", test_double},
                                                {"ops", test_ops},
                                                {"mixed dtypes", test_mixed_dtypes},
                                                {"projected", test_projected},
                                                {"non-finite", test_nonfinite},
                                                {"negative zero", test_negative_zero},
                                                {"partition", test_partition},
                                                {"decision", test_decision},
                                                {"stop", test_stop},
                                                {"facts", test_facts}};
    openblas = fixture_kernels(NULL);
#if TOKENTAB_FAULTS
    classes = fixture_kernels("three_classes");
    position = fixture_kernels("position");
    reference = fixture_kernels("reference");
#endif
    const int failed = fixture_main("workers unit", tests, N_OF(tests));
    kernels_close(&openblas);
    kernels_close(&classes);
    kernels_close(&position);
    kernels_close(&reference);
    return failed;
}
