/* SPDX-License-Identifier: Apache-2.0 */
/** Softmax of rows, correctly rounded: double with a bound, then intervals over MPFR.  A row of
 * equal elements gives 1 / n, the only rational case; everything else is transcendental (Lindemann
 * and Weierstrass), so the loop over precisions ends. */
#include "kernels/cr_round_internal.h"

#include <stdlib.h>

enum { FIRST_PREC = 128, LAST_PREC = 1 << 16 };
#define LIBM 0x1p-46 /* as in cr_elementwise.c */

struct softmax {
    const struct cr_fmt *fmt;
    size_t n;
    double *x, *e; /* [n]: the row, and e^(x - max) */
    double max, sum;
    mpfr_prec_t sum_prec; /* of exact_sum; 0: not computed for this row */
    struct cr_iv exact_sum, t, u;
};

/* c->t = e^(x - max) */
static void exact_exp(struct softmax *c, double x)
{
    cr_iv_set(&c->t, x);
    cr_iv_set(&c->u, c->max);
    cr_iv_sub(&c->t, &c->t, &c->u);
    cr_iv_increasing(&c->t, mpfr_exp);
}

static bool slow(struct softmax *c, size_t i, double *y)
{
    for (mpfr_prec_t prec = FIRST_PREC; prec <= LAST_PREC; prec *= 4) {
        cr_iv_set_prec(&c->t, prec);
        cr_iv_set_prec(&c->u, prec);
        if (c->sum_prec != prec) {
            cr_iv_set_prec(&c->exact_sum, prec);
            cr_iv_set(&c->exact_sum, 0);
            for (size_t j = 0; j < c->n; j++) {
                exact_exp(c, c->x[j]);
                cr_iv_add(&c->exact_sum, &c->exact_sum, &c->t);
            }
            c->sum_prec = prec;
        }
        exact_exp(c, c->x[i]);
        cr_iv_div(&c->t, &c->t, &c->exact_sum);
        if (cr_iv_round(c->fmt, &c->t, y))
            return true;
        *y = 0.0;
        if (cr_mpfr_round(c->fmt, c->t.hi) == 0)
            return true;
    }
    return false;
}

/* The row's maximum and sum; true if all elements are equal. */
static bool prepare(struct softmax *c)
{
    bool equal = true;
    c->max = c->x[0];
    c->sum = 0;
    c->sum_prec = 0;
    for (size_t i = 1; i < c->n; i++) {
        equal = equal && c->x[i] == c->x[0];
        c->max = fmax(c->max, c->x[i]);
    }
    for (size_t i = 0; i < c->n; i++) {
        c->e[i] = exp(c->x[i] - c->max);
        c->sum += c->e[i];
    }
    return equal;
}

/* Terms: rounding of x - max times its size (beyond 800 the term is 0 within the absolute slack),
 * exp, n additions. */
static bool fast(const struct softmax *c, size_t i, double *y)
{
    if (c->fmt->dt == DT_F64)
        return false;
    double v = c->e[i] / c->sum;
    double rel = 2 * LIBM + 0x1p-52 * (1700 + 2 * (double)c->n);
    double e = v * rel + 0x1p-1000 * ((double)c->n + 1);
    if (cr_round_test1(c->fmt, v, e, y))
        return true;
    *y = 0.0;
    return v + 2 * e < ldexp(0.49, c->fmt->quantum_exp);
}

static enum status softmax_row(struct softmax *c, size_t row, const void *x, void *y,
                               struct err *err)
{
    enum dtype dt = c->fmt->dt;
    for (size_t i = 0; i < c->n; i++) {
        c->x[i] = cr_load(dt, x, row * c->n + i);
        if (!isfinite(c->x[i]))
            return err_set(err, ST_NONFINITE, "softmax: input [%zu, %zu] is %g", row, i, c->x[i]);
    }
    bool equal = prepare(c);
    for (size_t i = 0; i < c->n; i++) {
        double v;
        if (equal && (c->n & (c->n - 1)) == 0)
            v = cr_fmt_round(c->fmt, 1.0 / (double)c->n); /* exact before: may be a tie */
        else if (!fast(c, i, &v) && !slow(c, i, &v))
            return err_set(err, ST_INTERNAL, "softmax: element [%zu, %zu] is undecided at %d bits",
                           row, i, LAST_PREC);
        cr_store(dt, y, row * c->n + i, v);
    }
    return ST_OK;
}

enum status cr_softmax(enum dtype dt, size_t m, size_t n, const void *x, void *y, struct err *err)
{
    struct softmax c = {.fmt = cr_fmt_of(dt), .n = n};
    if (c.fmt == NULL)
        return err_set(err, ST_USAGE, "softmax of %s: not computable", dtype_name(dt));
    if (m == 0 || n == 0)
        return ST_OK;
    void *p;
    TRY(mem_alloc(n, 2 * sizeof(double), &p, err));
    c.x = p;
    c.e = c.x + n;
    cr_iv_init(&c.exact_sum, FIRST_PREC);
    cr_iv_init(&c.t, FIRST_PREC);
    cr_iv_init(&c.u, FIRST_PREC);
    enum status st = ST_OK;
    for (size_t row = 0; st == ST_OK && row < m; row++)
        st = softmax_row(&c, row, x, y, err);
    cr_iv_clear(&c.exact_sum);
    cr_iv_clear(&c.t);
    cr_iv_clear(&c.u);
    free(c.x);
    return st;
}
