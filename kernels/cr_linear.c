/* SPDX-License-Identifier: Apache-2.0 */
/** Linear layers, correctly rounded.  F32, F16, BF16: products are exact in double, so a dgemm with
 *  the bound gamma_K ‖x‖‖w‖ (any order of summation, with or without fma) settles nearly all
 *  elements.  The rest, and all of F64, go through Dot2 with its own bound, then an exact sum. */
#include "kernels/cr_round_internal.h"

#include <stdlib.h>

enum { PANEL_ROWS = 256, F64_GAMMA_PRODUCTS = 2 };

struct cr_linear {
    const struct kernels *k; /* borrowed */
    const struct cr_fmt *fmt;
    size_t n_out, n_in;
    double *w, *bias; /* [n_out, n_in]; [n_out] or NULL */
    double *w_bound;  /* [n_out]: norm of a row of w (F64: n_in times its largest element) */
    cr_gemm_fn gemm;
    cr_dot2_fn dot2;
    cr_check_fn check;
    double gamma2;      /* Dot2's bound, relative to Σ|x w| + |b| */
    size_t capacity;    /* rows of the buffers below */
    double *x, *c;      /* [capacity, n_in], [capacity, n_out]; not for F64 */
    uint8_t *undecided; /* [n_out] */
    uint64_t counts[3];
};

static enum status plain_gemm(const struct kernels *k, const struct kernels_gemm *g, const void *a,
                              const void *b, void *c, struct err *err)
{
    (void)k;
    (void)err;
    const double *x = a, *w = b;
    double *y = c;
    for (size_t i = 0; i < g->m; i++)
        for (size_t j = 0; j < g->n; j++) {
            double s = 0;
            for (size_t l = 0; l < g->k; l++)
                s += x[i * g->lda + l] * w[j * g->ldb + l];
            y[i * g->ldc + j] = s;
        }
    return ST_OK;
}

/* An upper bound B(v), so that Σ|x w| <= B(x) B(w), underflow of products apart.  Norms of values
 * of F32 and below neither overflow nor underflow in double; those of F64 would. */
static double row_bound(const struct cr_linear *l, const double *v, bool is_weight)
{
    if (l->fmt->dt != DT_F64) {
        double s[2];
        l->dot2(v, v, l->n_in, s);
        return sqrt(s[0] + s[1]) * (1 + 0x1p-30);
    }
    double most = 0;
    for (size_t i = 0; i < l->n_in; i++)
        most = fmax(most, fabs(v[i]));
    return is_weight ? most * (double)l->n_in * (1 + 0x1p-30) : most;
}

static enum status copy_weights(struct cr_linear *l, const void *w, const void *bias,
                                struct err *err)
{
    enum dtype dt = l->fmt->dt;
    size_t count;
    if (!mul_size(l->n_out, l->n_in, &count))
        return err_set(err, ST_USAGE, "linear [%zu, %zu]: too large", l->n_out, l->n_in);
    void *p;
    TRY(mem_alloc(count, sizeof(double), &p, err));
    l->w = p;
    TRY(mem_alloc(l->n_out, sizeof(double), &p, err));
    l->w_bound = p;
    TRY(mem_alloc(l->n_out, 1, &p, err));
    l->undecided = p;
    for (size_t i = 0; i < count; i++)
        l->w[i] = cr_load(dt, w, i);
    size_t bad = cr_find_nonfinite(dt, w, count);
    if (bad < count)
        return err_set(err, ST_NONFINITE, "linear: weight [%zu, %zu] is %g", bad / l->n_in,
                       bad % l->n_in, l->w[bad]);
    for (size_t j = 0; j < l->n_out; j++)
        l->w_bound[j] = row_bound(l, l->w + j * l->n_in, true);
    if (bias == NULL)
        return ST_OK;
    TRY(mem_alloc(l->n_out, sizeof(double), &p, err));
    l->bias = p;
    for (size_t j = 0; j < l->n_out; j++) {
        l->bias[j] = cr_load(dt, bias, j);
        if (!isfinite(l->bias[j]))
            return err_set(err, ST_NONFINITE, "linear: bias [%zu] is %g", j, l->bias[j]);
    }
    return ST_OK;
}

enum status cr_linear_open(const struct kernels *k, enum dtype dt, size_t n_out, size_t n_in,
                           const void *w, const void *bias, struct cr_linear **out, struct err *err)
{
    *out = NULL;
    int count;
    if (cr_fmt_of(dt) == NULL || !size_to_int(n_out, &count) || !size_to_int(n_in, &count))
        return err_set(err, ST_USAGE, "linear [%zu, %zu] of %s: not computable", n_out, n_in,
                       dtype_name(dt));
    void *p;
    TRY(mem_calloc(1, sizeof(struct cr_linear), &p, err));
    struct cr_linear *l = p;
    l->k = k;
    l->fmt = cr_fmt_of(dt);
    l->n_out = n_out;
    l->n_in = n_in;
    l->gemm = k != NULL ? kernels_gemm_run : plain_gemm;
    cr_linear_set_isa(l, CR_ISA_BEST);
    /* Products with their errors, the bias and the lanes are the terms of the sum. */
    double g = cr_gamma((dt == DT_F64 ? F64_GAMMA_PRODUCTS : 1) * n_in + CR_DOT2_EXTRA + 2);
    l->gamma2 = g * g * (1 + 0x1p-30);
    enum status st = copy_weights(l, w, bias, err);
    if (st != ST_OK)
        cr_linear_close(&l);
    *out = l;
    return st;
}

void cr_linear_close(struct cr_linear **l)
{
    if (*l == NULL)
        return;
    free((*l)->w);
    free((*l)->bias);
    free((*l)->w_bound);
    free((*l)->x);
    free((*l)->c);
    free((*l)->undecided);
    free(*l);
    *l = NULL;
}

void cr_linear_set_gemm(struct cr_linear *l, cr_gemm_fn gemm)
{
    l->gemm = gemm;
}

void cr_linear_set_isa(struct cr_linear *l, enum cr_isa isa)
{
    l->dot2 = l->fmt->dt == DT_F64 ? cr_dot2_any(isa) : cr_dot2_exact_products(isa);
    l->check = cr_check_for(isa, l->fmt->dt);
}

void cr_linear_counts(const struct cr_linear *l, uint64_t counts[3])
{
    memcpy(counts, l->counts, sizeof l->counts);
}

static double exact(const struct cr_linear *l, const double *x, size_t j)
{
    const double *w = l->w + j * l->n_in;
    struct cr_acc acc;
    cr_acc_clear(&acc);
    for (size_t i = 0; i < l->n_in; i++)
        cr_acc_add_product(&acc, x[i], w[i]);
    if (l->bias != NULL)
        cr_acc_add(&acc, l->bias[j]);
    return cr_acc_round(&acc, l->fmt);
}

/* Dot2, then the exact sum.  x_bound: row_bound(x). */
static double settle(struct cr_linear *l, const double *x, double x_bound, size_t j)
{
    double s[2], q = 0, r;
    l->dot2(x, l->w + j * l->n_in, l->n_in, s);
    double bias = l->bias != NULL ? l->bias[j] : 0;
    double sum = cr_two_sum(s[0], bias, &q);
    double e = l->gamma2 * (x_bound * l->w_bound[j] + fabs(bias));
    if (l->fmt->dt == DT_F64)
        e += (8 * (double)l->n_in + 64) * 0x1p-1074;
    double low;
    double high = cr_two_sum(sum, s[1] + q, &low);
    /* low is exact, but s[1] + q was rounded: one more error term, counted in gamma2. */
    if (cr_round_test(l->fmt, high, low, e, &r)) {
        l->counts[1]++;
        return r;
    }
    l->counts[2]++;
    return exact(l, x, j);
}

static enum status grow(struct cr_linear *l, size_t rows, struct err *err)
{
    if (rows <= l->capacity)
        return ST_OK;
    free(l->x);
    free(l->c);
    l->x = l->c = NULL;
    l->capacity = 0;
    size_t nx, nc;
    if (!mul_size(rows, l->n_in, &nx) || !mul_size(rows, l->n_out, &nc))
        return err_set(err, ST_USAGE, "linear: %zu rows are too many", rows);
    void *p;
    TRY(mem_alloc(nx, sizeof(double), &p, err));
    l->x = p;
    TRY(mem_alloc(nc, sizeof(double), &p, err));
    l->c = p;
    l->capacity = rows;
    return ST_OK;
}

static void check_row(struct cr_linear *l, const double *x, const double *c, double x_bound,
                      float *y)
{
    struct cr_check p = {.fmt = l->fmt, .n = l->n_out, .c = c, .bias = l->bias, .nw = l->w_bound};
    p.gx = cr_gamma(l->n_in + 2) * x_bound * (1 + 0x1p-30);
    l->check(&p, y, l->undecided);
    uint64_t left = 0;
    for (size_t j = 0; j < l->n_out; j++)
        if (l->undecided[j]) {
            y[j] = (float)settle(l, x, x_bound, j);
            left++;
        }
    l->counts[0] += l->n_out - left;
}

static enum status run_panel(struct cr_linear *l, size_t rows, const float *x, float *y,
                             struct err *err)
{
    for (size_t i = 0; i < rows * l->n_in; i++)
        l->x[i] = (double)x[i];
    struct kernels_gemm g = {.compute = DT_F64,
                             .transpose_b = true,
                             .m = rows,
                             .n = l->n_out,
                             .k = l->n_in,
                             .lda = l->n_in,
                             .ldb = l->n_in,
                             .ldc = l->n_out,
                             .alpha = 1};
    if (l->n_in == 0) /* BLAS wants lda >= 1 */
        memset(l->c, 0, rows * l->n_out * sizeof *l->c);
    else
        TRY(l->gemm(l->k, &g, l->x, l->w, l->c, err));
    for (size_t i = 0; i < rows; i++) {
        const double *xi = l->x + i * l->n_in;
        check_row(l, xi, l->c + i * l->n_out, row_bound(l, xi, false), y + i * l->n_out);
    }
    return ST_OK;
}

enum status cr_linear_run(struct cr_linear *l, size_t m, const void *x, void *y, struct err *err)
{
    int count;
    size_t total;
    if (!size_to_int(m, &count) || !mul_size(m, l->n_in, &total))
        return err_set(err, ST_USAGE, "linear: %zu rows are too many", m);
    if (m == 0 || l->n_out == 0)
        return ST_OK;
    size_t bad = cr_find_nonfinite(l->fmt->dt, x, total);
    if (bad < total)
        return err_set(err, ST_NONFINITE, "linear: input [%zu, %zu] is %g", bad / l->n_in,
                       bad % l->n_in, cr_load(l->fmt->dt, x, bad));
    if (l->fmt->dt == DT_F64) {
        for (size_t i = 0; i < m; i++) {
            const double *xi = (const double *)x + i * l->n_in;
            double bound = row_bound(l, xi, false);
            for (size_t j = 0; j < l->n_out; j++)
                ((double *)y)[i * l->n_out + j] = settle(l, xi, bound, j);
        }
        return ST_OK;
    }
    TRY(grow(l, m < PANEL_ROWS ? m : PANEL_ROWS, err));
    for (size_t i = 0; i < m; i += PANEL_ROWS) {
        size_t rows = m - i < PANEL_ROWS ? m - i : PANEL_ROWS;
        TRY(run_panel(l, rows, (const float *)x + i * l->n_in, (float *)y + i * l->n_out, err));
    }
    return ST_OK;
}
