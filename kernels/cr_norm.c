/* SPDX-License-Identifier: Apache-2.0 */
/** Row norms, correctly rounded.  F32, F16, BF16: sums by Dot2, the rest in double with an error
 *  bound and a rounding test.  What that leaves open, and all of F64: with exact sums S = Σx and
 *  Q = Σx² every norm has the form p sqrt(num / den) + b over dyadic numbers,
 *    layer_norm   p = g (n x - S), num = 1, den = n Q - S² + n² eps
 *    rms_norm     p = g x,         num = n, den = Q + n eps
 *    l2           p = x,           num = 1, den = max(Q, eps²)
 *  which cr_alg_round rounds, ties included. */
#include "kernels/cr_round_internal.h"

#include <stdlib.h>

enum kind { LAYER, RMS, L2, L2_RADIUS };

struct norm {
    enum kind kind;
    const char *name;
    const struct kernels_norm *p;
    const struct cr_fmt *fmt;   /* of the normalised value */
    const struct cr_fmt *scale; /* float32_rms_norm: of the product with g; else NULL */
    size_t n;
    double *x, *g, *b; /* [n]; g and b NULL when there is none */
    cr_dot2_fn dot2;   /* NULL: F64, exact path only */
    /* fast statistics of the row, see fast_row */
    double root, root_rel, sum_hi, sum_lo, sum_err;
    /* exact ones */
    bool exact_ready;
    struct cr_alg alg;
    struct cr_dy sum, point, factor;
};

/* RN(w + offset): one rounding to the declared dtype. */
static double offset_weight(const struct kernels_norm *p, double w)
{
    enum dtype dt = p->weight_offset_dt == DT_UNKNOWN ? dtype_compute(p->dt) : p->weight_offset_dt;
    return p->weight_offset == 0 ? w : cr_round_pair(cr_fmt_of(dt), w, p->weight_offset);
}

static enum status load_vector(const struct norm *c, const void *v, double **out, struct err *err)
{
    *out = NULL;
    if (v == NULL)
        return ST_OK;
    void *d;
    TRY(mem_alloc(c->n, sizeof(double), &d, err));
    *out = d;
    size_t bad = cr_find_nonfinite(c->p->dt, v, c->n);
    if (bad < c->n)
        return err_set(err, ST_NONFINITE, "%s: weight or bias [%zu] is not finite", c->name, bad);
    for (size_t i = 0; i < c->n; i++)
        (*out)[i] = cr_load(c->p->dt, v, i);
    return ST_OK;
}

static void norm_close(struct norm *c)
{
    free(c->x);
    free(c->g);
    free(c->b);
    cr_alg_clear(&c->alg);
    cr_dy_clear(&c->sum);
    cr_dy_clear(&c->point);
    cr_dy_clear(&c->factor);
}

/* c is zeroed but for kind, name and p; norm_close even after a failure. */
static enum status norm_open(struct norm *c, size_t n, struct err *err)
{
    const struct kernels_norm *p = c->p;
    cr_alg_init(&c->alg);
    cr_dy_init(&c->sum);
    cr_dy_init(&c->point);
    cr_dy_init(&c->factor);
    c->n = n;
    if (c->fmt == NULL)
        c->fmt = cr_fmt_of(p->dt);
    if (c->fmt == NULL || !(p->eps >= 0) || !isfinite(p->eps) || !isfinite(p->weight_offset) ||
        (p->weight_offset_dt != DT_UNKNOWN && cr_fmt_of(p->weight_offset_dt) == NULL))
        return err_set(err, ST_USAGE, "%s: dtype %s, eps %g, offset %g: not computable", c->name,
                       dtype_name(p->dt), p->eps, p->weight_offset);
    void *x;
    TRY(mem_alloc(n, sizeof(double), &x, err));
    c->x = x;
    if (c->kind == LAYER || c->kind == RMS)
        TRY(load_vector(c, p->weight, &c->g, err));
    if (c->kind == LAYER)
        TRY(load_vector(c, p->bias, &c->b, err));
    if (c->kind == RMS && c->g != NULL)
        for (size_t i = 0; i < n; i++)
            c->g[i] = offset_weight(p, c->g[i]);
    /* n x must be exact in double. */
    c->dot2 = p->dt == DT_F64 || n >= 1u << 29 ? NULL : cr_dot2_exact_products(CR_ISA_BEST);
    return ST_OK;
}

/* ---- exact path ----------------------------------------------------------------------------- */

static void exact_row(struct norm *c)
{
    if (c->exact_ready)
        return;
    struct cr_acc acc;
    struct cr_alg *a = &c->alg;
    cr_acc_clear(&acc);
    for (size_t i = 0; i < c->n; i++)
        cr_acc_add_product(&acc, c->x[i], c->x[i]);
    cr_dy_set_acc(&a->den, &acc);
    cr_dy_set(&a->num, c->kind == RMS ? (double)c->n : 1.0);
    cr_dy_set(&a->t, (double)c->n);
    cr_dy_set(&a->u, c->p->eps);
    if (c->kind == LAYER) {
        cr_acc_clear(&acc);
        for (size_t i = 0; i < c->n; i++)
            cr_acc_add(&acc, c->x[i]);
        cr_dy_set_acc(&c->sum, &acc);
        cr_dy_mul(&a->den, &a->den, &a->t);
        cr_dy_mul(&a->v, &c->sum, &c->sum);
        cr_dy_sub(&a->den, &a->den, &a->v);
        cr_dy_mul(&a->t, &a->t, &a->t);
    }
    if (c->kind == LAYER || c->kind == RMS) {
        cr_dy_mul(&a->t, &a->t, &a->u);
        cr_dy_add(&a->den, &a->den, &a->t);
    } else {
        cr_dy_mul(&a->u, &a->u, &a->u);
        if (cr_dy_cmp(&a->den, &a->u) < 0) {
            mpz_set(a->den.m, a->u.m);
            a->den.e = a->u.e;
        }
    }
    cr_alg_changed(a);
    c->exact_ready = true;
}

/* Element i; false where the quotient is 0 / 0. */
static bool exact_element(struct norm *c, size_t i, double *y)
{
    *y = 0;
    exact_row(c);
    if (mpz_sgn(c->alg.den.m) == 0)
        return false;
    double g = c->g != NULL && c->scale == NULL ? c->g[i] : 1.0;
    cr_dy_set(&c->point, c->x[i]);
    cr_dy_set(&c->factor, g);
    if (c->kind == LAYER) {
        cr_dy_set(&c->alg.t, (double)c->n);
        cr_dy_mul(&c->point, &c->point, &c->alg.t);
        cr_dy_sub(&c->point, &c->point, &c->sum);
    }
    cr_dy_mul(&c->point, &c->point, &c->factor);
    /* Exact zeros: +0 for layer_norm, else the sign of the numerator. */
    double zero = c->kind == LAYER ? 0.0 : copysign(0.0, c->x[i]) * copysign(1.0, g);
    *y = cr_alg_round(&c->alg, c->fmt, &c->point, c->b != NULL ? c->b[i] : 0.0, zero);
    return true;
}

/* ---- fast path ------------------------------------------------------------------------------ */

/* root = sqrt(num / den) within relative root_rel (infinite: nothing is known), and S = sum_hi +
 * sum_lo within sum_err.  Bounds are generous by factors of two and more: each rounding below is at
 * most CR_U, Dot2 contributes cr_gamma()² n Q to n Q - S² by Cauchy and Schwarz. */
static void fast_row(struct norm *c)
{
    double q[2], s[2], n = (double)c->n, g = cr_gamma(c->n + CR_DOT2_EXTRA), err;
    c->dot2(c->x, c->x, c->n, q);
    double den = q[0] + q[1], den_err = den * (0x1p-51 + 2 * g * g);
    double floor = 0, num = 1;
    c->root_rel = INFINITY;
    if (c->kind == LAYER) {
        c->dot2(c->x, NULL, c->n, s);
        c->sum_hi = cr_two_sum(s[0], s[1], &c->sum_lo);
        c->sum_err = g * g * sqrt(n * den) * 1.01;
        double square_err, product_err;
        double square = cr_two_prod(c->sum_hi, c->sum_hi, &square_err);
        double product = cr_two_prod(n, q[0], &product_err);
        double bulk = n * den;
        den = cr_two_sum(product, -square, &err);
        den += (err + (product_err - square_err)) + (n * q[1] - 2 * c->sum_hi * c->sum_lo);
        den_err = fabs(den) * 0x1p-50 + bulk * (0x1p-98 + 8 * g * g);
        floor = n * n * c->p->eps;
    } else if (c->kind == RMS) {
        floor = n * c->p->eps;
        num = n;
    } else {
        double e2 = c->p->eps * c->p->eps;
        if (den < e2 * (1 - 0x1p-40)) {
            den = e2;
            den_err = e2 * 0x1p-51;
        } else if (!(den > e2 * (1 + 0x1p-40)))
            return;
    }
    den += floor;
    den_err += fabs(den) * 0x1p-51;
    /* Sums of squares of values of F32 are 0 or above 2^-298. */
    if (!(den > 0x1p-900) || !isfinite(den) || den_err > den * 0x1p-4)
        return;
    c->root = sqrt(num / den);
    c->root_rel = den_err / den + 0x1p-50;
}

/* Element i if the bound decides it. */
static bool fast_element(const struct norm *c, size_t i, double *y)
{
    double x = c->x[i], g = c->g != NULL && c->scale == NULL ? c->g[i] : 1.0;
    if (c->kind != LAYER) {
        *y = copysign(x * 0.0, x) * copysign(1.0, g);
        if ((x == 0 || g == 0) && c->root_rel < 1)
            return true;
        double v = (x * g) * c->root;
        return cr_round_test1(c->fmt, v, fabs(v) * (c->root_rel + 0x1p-50), y);
    }
    double low;
    double a = cr_two_sum((double)c->n * x, -c->sum_hi, &low);
    double p = a + (low - c->sum_lo);
    double p_err = fabs(p) * 0x1p-51 + c->sum_err + fabs(c->sum_lo) * 0x1p-51;
    double v = g * p * c->root, scale = fabs(g) * c->root;
    double e = (scale * p_err + fabs(v) * (c->root_rel + 0x1p-50)) * 1.5;
    double b = c->b != NULL ? c->b[i] : 0.0;
    double r = v + b;
    return cr_round_test1(c->fmt, r, e + fabs(r) * 0x1p-52, y);
}

/* ---- rows ----------------------------------------------------------------------------------- */

static enum status load_row(struct norm *c, size_t row, const void *x, struct err *err)
{
    for (size_t i = 0; i < c->n; i++) {
        c->x[i] = cr_load(c->p->dt, x, row * c->n + i);
        if (!isfinite(c->x[i]))
            return err_set(err, ST_NONFINITE, "%s: input [%zu, %zu] is %g", c->name, row, i,
                           c->x[i]);
    }
    c->exact_ready = false;
    c->root_rel = INFINITY;
    if (c->dot2 != NULL)
        fast_row(c);
    return ST_OK;
}

/* float32_rms_norm: the second declared rounding. */
static bool apply_scale(const struct norm *c, size_t i, double *v)
{
    if (c->scale == NULL)
        return true;
    double g = c->g != NULL ? c->g[i] : 1.0;
    if (isinf(*v) || c->scale->dt == DT_F64)
        *v *= g; /* one IEEE operation */
    else if ((double)(float)g == g)
        *v = cr_fmt_round(c->scale, *v * g); /* two values of F32: exact in double */
    else
        *v = cr_round_product(c->scale, *v, g);
    return !isnan(*v);
}

static enum status norm_rows(struct norm *c, size_t m, size_t n, const void *x, void *y,
                             struct err *err)
{
    enum status st = norm_open(c, n, err);
    for (size_t row = 0; st == ST_OK && row < m; row++) {
        st = load_row(c, row, x, err);
        for (size_t i = 0; st == ST_OK && i < n; i++) {
            double v = 0;
            if (!(c->root_rel < 1 && fast_element(c, i, &v)) && !exact_element(c, i, &v))
                st = err_set(err, ST_NONFINITE, "%s: row %zu is divided by zero", c->name, row);
            else if (!apply_scale(c, i, &v))
                st = err_set(err, ST_NONFINITE, "%s: element [%zu, %zu] is infinity times zero",
                             c->name, row, i);
            if (st == ST_OK)
                cr_store(c->p->dt, y, row * n + i, v);
        }
    }
    norm_close(c);
    return st;
}

enum status cr_layer_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x, void *y,
                          struct err *err)
{
    struct norm c = {.kind = LAYER, .name = "layer_norm", .p = p};
    return norm_rows(&c, m, n, x, y, err);
}

enum status cr_rms_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x, void *y,
                        struct err *err)
{
    struct norm c = {.kind = RMS, .name = "rms_norm", .p = p};
    return norm_rows(&c, m, n, x, y, err);
}

/* The first declared rounding is to in_dt, and to F32 where in_dt is wider. */
enum status cr_float32_rms_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x,
                                void *y, struct err *err)
{
    struct norm c = {.kind = RMS, .name = "float32_rms_norm", .p = p};
    c.fmt = cr_fmt_of(p->in_dt == DT_F64 ? DT_F32 : p->in_dt);
    c.scale = cr_fmt_of(p->dt);
    if (c.fmt == NULL || c.scale == NULL)
        return err_set(err, ST_USAGE, "float32_rms_norm: dtype %s of %s: not computable",
                       dtype_name(p->dt), dtype_name(p->in_dt));
    return norm_rows(&c, m, n, x, y, err);
}

enum status cr_l2_normalize(const struct kernels_norm *p, size_t m, size_t n, const void *x,
                            void *y, struct err *err)
{
    struct norm c = {.kind = L2, .name = "l2_normalize", .p = p};
    return norm_rows(&c, m, n, x, y, err);
}

enum status cr_l2_norm(const struct kernels_norm *p, size_t m, size_t n, const void *x, void *r,
                       struct err *err)
{
    struct norm c = {.kind = L2_RADIUS, .name = "l2_norm", .p = p};
    enum status st = norm_open(&c, n, err);
    for (size_t row = 0; st == ST_OK && row < m; row++) {
        st = load_row(&c, row, x, err);
        double v = 0;
        if (st == ST_OK &&
            !(c.root_rel < 1 &&
              cr_round_test1(c.fmt, 1 / c.root, (c.root_rel + 0x1p-50) * 2 / c.root, &v))) {
            /* r = den / sqrt(den) */
            exact_row(&c);
            v = mpz_sgn(c.alg.den.m) == 0 ? 0.0 : cr_alg_round(&c.alg, c.fmt, &c.alg.den, 0.0, 0.0);
        }
        if (st == ST_OK)
            cr_store(p->dt, r, row, v);
    }
    norm_close(&c);
    return st;
}
