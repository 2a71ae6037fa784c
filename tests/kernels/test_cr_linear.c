/* SPDX-License-Identifier: Apache-2.0 */
/** Correctly rounded linear layers against exact sums by MPFR, and their independence of the first
 *  step's summation, of the rows in a call, and of the BLAS. */
#include "test_cr.h"

struct layer {
    enum dtype dt;
    size_t m, n_in, n_out;
    void *x, *w, *b, *y;
};

static void layer_open(struct layer *t, enum dtype dt, size_t m, size_t n_in, size_t n_out)
{
    *t = (struct layer){.dt = dt, .m = m, .n_in = n_in, .n_out = n_out};
    t->x = new_array(dt, m * n_in);
    t->w = new_array(dt, n_out * n_in);
    t->b = new_array(dt, n_out);
    t->y = new_array(dt, m * n_out);
}

static void layer_close(struct layer *t)
{
    free(t->x);
    free(t->w);
    free(t->b);
    free(t->y);
}

static void layer_fill(struct layer *t, int spread, uint64_t *seed)
{
    for (size_t i = 0; i < t->m * t->n_in; i++)
        cr_store(t->dt, t->x, i, next_value(t->dt, spread, seed));
    for (size_t i = 0; i < t->n_out * t->n_in; i++)
        cr_store(t->dt, t->w, i, next_value(t->dt, spread, seed));
    for (size_t i = 0; i < t->n_out; i++)
        cr_store(t->dt, t->b, i, next_value(t->dt, spread, seed));
}

static double reference(const struct layer *t, size_t i, size_t j, bool bias)
{
    mpfr_t s, p;
    mpfr_init2(s, 9000);
    mpfr_init2(p, 106);
    mpfr_set_zero(s, 1);
    for (size_t l = 0; l < t->n_in; l++) {
        mpfr_set_d(p, cr_load(t->dt, t->x, i * t->n_in + l), MPFR_RNDN);
        CU_ASSERT_EQUAL(mpfr_mul_d(p, p, cr_load(t->dt, t->w, j * t->n_in + l), MPFR_RNDN), 0);
        CU_ASSERT_EQUAL(mpfr_add(s, s, p, MPFR_RNDN), 0);
    }
    if (bias)
        CU_ASSERT_EQUAL(mpfr_add_d(s, s, cr_load(t->dt, t->b, j), MPFR_RNDN), 0);
    double r = mpfr_zero_p(s) ? 0.0 : reference_round(t->dt, s);
    mpfr_clear(s);
    mpfr_clear(p);
    return r;
}

/* Runs with plain loops; adds what each step settled to counts. */
static void layer_check(struct layer *t, bool bias, uint64_t counts[3])
{
    struct cr_linear *l = NULL;
    struct err err = {0};
    uint64_t c[3] = {0};
    CU_ASSERT_EQUAL_FATAL(
        cr_linear_open(NULL, t->dt, t->n_out, t->n_in, t->w, bias ? t->b : NULL, &l, &err), ST_OK);
    CU_ASSERT_EQUAL(cr_linear_run(l, t->m, t->x, t->y, &err), ST_OK);
    for (size_t i = 0; i < t->m; i++)
        for (size_t j = 0; j < t->n_out; j++)
            expect_value(cr_load(t->dt, t->y, i * t->n_out + j), reference(t, i, j, bias),
                         dtype_name(t->dt), (double)(i * t->n_out + j));
    cr_linear_counts(l, c);
    CU_ASSERT_EQUAL(c[0] + c[1] + c[2], t->m * t->n_out);
    for (size_t s = 0; s < 3; s++)
        counts[s] += c[s];
    cr_linear_close(&l);
    CU_ASSERT_PTR_NULL(l);
}

static void test_random(void)
{
    static const size_t shapes[][3] = {{1, 1, 1}, {2, 7, 3}, {3, 64, 5}, {2, 129, 4}, {2, 0, 3}};
    uint64_t seed = 1;
    for (size_t d = 0; d < 4; d++) {
        uint64_t counts[3] = {0};
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int spread = 0; spread <= 12; spread += 6) {
                struct layer t;
                layer_open(&t, cr_dtypes[d], shapes[s][0], shapes[s][1], shapes[s][2]);
                layer_fill(&t, spread, &seed);
                layer_check(&t, spread != 6, counts);
                layer_close(&t);
            }
        CU_ASSERT_TRUE(counts[0] > 0 || cr_dtypes[d] == DT_F64);
    }
}

/* Exponents over the whole range of the dtype: subnormal sums, overflow, cancellation by pairs of
 * nearly opposite products. */
static void test_extreme(void)
{
    uint64_t seed = 2, counts[3] = {0};
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        for (int round = 0; round < 40; round++) {
            struct layer t;
            layer_open(&t, f->dt, 2, 24, 3);
            layer_fill(&t, round % 2 == 0 ? f->max_exp : -f->quantum_exp / 2 + 10, &seed);
            for (size_t i = 0; i < 2; i++)
                for (size_t l = 0; l + 1 < 24; l += 2) {
                    if (round % 4 < 2)
                        cr_store(f->dt, t.x, i * 24 + l + 1, -cr_load(f->dt, t.x, i * 24 + l));
                    for (size_t j = 0; j < 3; j++)
                        if (round % 8 < 3)
                            cr_store(f->dt, t.w, j * 24 + l + 1, cr_load(f->dt, t.w, j * 24 + l));
                }
            layer_check(&t, round % 3 != 0, counts);
            layer_close(&t);
        }
    }
    CU_ASSERT_TRUE(counts[0] > 0);
    CU_ASSERT_TRUE(counts[1] > 0);
    CU_ASSERT_TRUE(counts[2] > 0);
}

/* Large products first, their opposites last and small ones between: a plain sum loses the small
 * ones, with wider exponents Dot2 does too. */
static void test_cancellation(void)
{
    enum { PAIRS = 9, REST = 5, N = 2 * PAIRS + REST };
    static const int spreads[] = {6, 12, 30, 45};
    uint64_t seed = 7, counts[3] = {0};
    for (size_t d = 0; d < 4; d++)
        for (int round = 0; round < 60; round++) {
            const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
            int spread = f->dt == DT_F16 ? 6 : spreads[round % 4];
            struct layer t;
            layer_open(&t, f->dt, 1, N, 1);
            layer_fill(&t, spread, &seed);
            for (size_t l = 0; l < N; l++) {
                if (l >= PAIRS && l < PAIRS + REST) {
                    cr_store(f->dt, t.x, l, next_value(f->dt, 1, &seed));
                    cr_store(f->dt, t.w, l, next_value(f->dt, 1, &seed));
                }
                if (l < PAIRS) {
                    double x = cr_load(f->dt, t.x, l), w = cr_load(f->dt, t.w, l);
                    cr_store(f->dt, t.x, N - 1 - (l * 4) % PAIRS, -x);
                    cr_store(f->dt, t.w, N - 1 - (l * 4) % PAIRS, w);
                }
            }
            layer_check(&t, false, counts);
            layer_close(&t);
        }
    CU_ASSERT_TRUE(counts[1] > 0);
    CU_ASSERT_TRUE(counts[2] > 0);
}

/* Rows of at most four terms whose sums lie on, just above and just below midpoints. */
static void test_ties(void)
{
    uint64_t counts[3] = {0};
    for (size_t d = 0; d < 4; d++) {
        const struct cr_fmt *f = cr_fmt_of(cr_dtypes[d]);
        double half = ldexp(1, -f->prec), speck = ldexp(1, f->quantum_exp / 2);
        double tiny = ldexp(1, f->quantum_exp / 2), tiny2 = ldexp(1, f->quantum_exp / 2 - 1);
        double tiny3 = ldexp(1, f->quantum_exp / 2 - 4);
        double lots = ldexp(1, f->max_exp), top = ldexp(1, f->max_exp - f->prec);
        const double rows[][4] = {
            {1, half, 0, 0},
            {1, half, speck, 0},
            {1, half, -speck, 0},
            {1, half, 2 * half, 0},
            {-1, -half, 0, 0},
            {-1, -half, speck, 0},
            {f->max, top, 0, 0},
            {f->max, top, -speck, 0},
            {f->max, f->max, -f->max, 0},
            {lots, 1, -lots, 0},
            {lots, -1, -lots, 0},
            {1, -1, 0, 0},
            {-1, 1, -0.0, 0},
            {-0.0, -0.0, -0.0, -0.0},
            {f->max, half, -f->max, speck},
            {tiny, 0, 0, 0},
            {-tiny, 0, 0, 0},
            {tiny2, tiny2, tiny2, 0},
            {-tiny2, 0, 0, 0},
            {-tiny3, 0, 0, 0},
            {tiny3, 0, 0, 0},
            {-tiny3, tiny3, 0, -tiny3},
            {f->max, f->max, 0, 0},
            {-f->max, -f->max, 0, 0},
        };
        /* The last weights bring products down to the smallest subnormal. */
        const double weights[][4] = {{1, 1, 1, 1}, {1, 1, speck, 1}, {tiny, tiny, tiny, tiny}};
        struct layer t;
        layer_open(&t, f->dt, sizeof rows / sizeof rows[0], 4, 3);
        for (size_t i = 0; i < t.m * 4; i++)
            cr_store(f->dt, t.x, i, cr_fmt_round(f, rows[i / 4][i % 4]));
        for (size_t j = 0; j < 12; j++)
            cr_store(f->dt, t.w, j, cr_fmt_round(f, weights[j / 4][j % 4]));
        layer_check(&t, false, counts);
        cr_store(f->dt, t.b, 0, -1.0);
        cr_store(f->dt, t.b, 1, -0.0);
        cr_store(f->dt, t.b, 2, ldexp(1, f->quantum_exp));
        layer_check(&t, true, counts);
        layer_close(&t);
    }
    CU_ASSERT_TRUE(counts[2] > 0);
}

/* Another order of summation, within the bound of the first step. */
static enum status reversed_gemm(const struct kernels *k, const struct kernels_gemm *g,
                                 const void *a, const void *b, void *c, struct err *err)
{
    (void)k;
    (void)err;
    const double *x = a, *w = b;
    double *y = c;
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            double s = -0.0; /* zeros of either sign must not show */
            for (size_t l = g->k; l-- > 0;)
                s += x[i * g->lda + l] * w[j * g->ldb + l];
            y[i * g->ldc + j] = s;
        }
    return ST_OK;
}

/* One unit in the last place beside the reversed sums, up and down by turns: closer to the bound.
 */
static enum status shaken_gemm(const struct kernels *k, const struct kernels_gemm *g, const void *a,
                               const void *b, void *c, struct err *err)
{
    enum status st = reversed_gemm(k, g, a, b, c, err);
    double *y = c;
    for (size_t i = 0; i < g->m * g->n; i++)
        y[i] = nextafter(y[i], i % 2 == 0 ? (double)INFINITY : -(double)INFINITY);
    return st;
}

/* OpenBLAS with the core and threads that the environment asks for, or as this machine has it. */
static struct kernels *blas(void)
{
    const char *core = getenv("TOKENTAB_TEST_BLAS_CORE");
    const char *threads = getenv("TOKENTAB_TEST_BLAS_THREADS");
    struct kernels_opts opts = {
        .blas_core = core != NULL ? core : kernels_core_for(kernels_cpu_flags()),
        .blas_threads = threads != NULL ? (unsigned)strtoul(threads, NULL, 10) : 1};
    struct kernels *k = NULL;
    struct err err = {0};
    if (kernels_open(&opts, &k, &err) != ST_OK)
        printf("\n  %s", err.message);
    CU_ASSERT_PTR_NOT_NULL_FATAL(k);
    return k;
}

/* False where this processor cannot run the core asked for.  OpenBLAS maps Cooperlake to another
 * core where bfloat16 is missing, which only opening it tells. */
static bool core_runs_here(void)
{
    const char *core = getenv("TOKENTAB_TEST_BLAS_CORE");
    unsigned flags = kernels_cpu_flags();
    if (core == NULL || strcmp(core, "Prescott") == 0)
        return true;
    if (strcmp(core, "Haswell") == 0)
        return (flags & KERNELS_CPU_AVX2) != 0;
    if ((flags & KERNELS_CPU_AVX512) == 0 || strcmp(core, "Cooperlake") != 0)
        return (flags & KERNELS_CPU_AVX512) != 0;
    struct kernels_opts opts = {.blas_core = core, .blas_threads = 1};
    struct kernels *k = NULL;
    enum status st = kernels_open(&opts, &k, NULL);
    kernels_close(&k);
    return st != ST_ENVIRONMENT;
}

static void run_as(const struct layer *t, const struct kernels *k, cr_gemm_fn gemm, size_t rows,
                   void *y)
{
    struct cr_linear *l = NULL;
    struct err err = {0};
    size_t width = t->dt == DT_F64 ? sizeof(double) : sizeof(float);
    CU_ASSERT_EQUAL_FATAL(cr_linear_open(k, t->dt, t->n_out, t->n_in, t->w, t->b, &l, &err), ST_OK);
    if (gemm != NULL) {
        cr_linear_set_gemm(l, gemm);
        cr_linear_set_isa(l, CR_ISA_BASE);
    }
    for (size_t i = 0; i < t->m; i += rows) {
        size_t n = t->m - i < rows ? t->m - i : rows;
        CU_ASSERT_EQUAL(cr_linear_run(l, n, (const char *)t->x + i * t->n_in * width,
                                      (char *)y + i * t->n_out * width, &err),
                        ST_OK);
    }
    cr_linear_close(&l);
}

static void test_independence(void)
{
    uint64_t seed = 3;
    struct kernels *k = blas();
    for (size_t d = 0; d < 4; d++) {
        struct layer t;
        layer_open(&t, cr_dtypes[d], 300, 70, 37);
        layer_fill(&t, 3, &seed);
        for (size_t l = 0; l < 70; l++) { /* a row of -0, with a bias of -0 */
            cr_store(t.dt, t.x, l, -0.0);
            cr_store(t.dt, t.w, l, fabs(cr_load(t.dt, t.w, l)));
        }
        cr_store(t.dt, t.b, 0, -0.0);
        size_t bytes = 300 * 37 * (t.dt == DT_F64 ? sizeof(double) : sizeof(float));
        void *z = new_array(t.dt, 300 * 37);
        run_as(&t, NULL, NULL, 300, t.y);
        run_as(&t, NULL, reversed_gemm, 300, z);
        CU_ASSERT_EQUAL(memcmp(t.y, z, bytes), 0);
        run_as(&t, NULL, shaken_gemm, 7, z);
        CU_ASSERT_EQUAL(memcmp(t.y, z, bytes), 0);
        run_as(&t, k, NULL, 300, z);
        CU_ASSERT_EQUAL(memcmp(t.y, z, bytes), 0);
        run_as(&t, k, NULL, 1, z);
        CU_ASSERT_EQUAL(memcmp(t.y, z, bytes), 0);
        free(z);
        layer_close(&t);
    }
    kernels_close(&k);
}

static void test_refusals(void)
{
    const float w[2] = {1, 2}, bad[2] = {1, NAN}, big[2] = {INFINITY, 1}, ok[2] = {1, 1};
    float y[1];
    struct cr_linear *l = NULL;
    struct err err = {0};
    CU_ASSERT_EQUAL(cr_linear_open(NULL, DT_F32, 1, 2, bad, NULL, &l, &err), ST_NONFINITE);
    CU_ASSERT_PTR_NULL(l);
    CU_ASSERT_PTR_NOT_NULL(strstr(err.message, "[0, 1]"));
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_linear_open(NULL, DT_I32, 1, 2, w, NULL, &l, &err), ST_USAGE);
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_linear_open(NULL, DT_F32, 2, 1, w, bad, &l, &err), ST_NONFINITE);
    err_clear(&err);
    CU_ASSERT_EQUAL_FATAL(cr_linear_open(NULL, DT_F32, 1, 2, w, NULL, &l, &err), ST_OK);
    CU_ASSERT_EQUAL(cr_linear_run(l, 1, bad, y, &err), ST_NONFINITE);
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_linear_run(l, 1, big, y, &err), ST_NONFINITE);
    err_clear(&err);
    CU_ASSERT_EQUAL(cr_linear_run(l, 0, NULL, NULL, &err), ST_OK);
    CU_ASSERT_EQUAL(cr_linear_run(l, 1, ok, y, &err), ST_OK);
    CU_ASSERT_EQUAL(y[0], 3.0f);
    cr_linear_close(&l);
}

int main(void)
{
    if (!core_runs_here()) {
        printf("skipped: no such processor\n");
        return 77;
    }
    static const struct cr_topic topics[] = {
        {"random", test_random},
        {"extreme exponents", test_extreme},
        {"cancellation", test_cancellation},
        {"ties", test_ties},
        {"independence", test_independence},
        {"refusals", test_refusals},
    };
    return run_topics("cr_linear", topics, sizeof topics / sizeof topics[0]);
}
