/* SPDX-License-Identifier: Apache-2.0 */
/** Intervals over MPFR, and algebraic values p sqrt(num / den) + b with ties decided in integers.
 */
#include "kernels/cr_round_internal.h"

void cr_iv_init(struct cr_iv *a, mpfr_prec_t prec)
{
    mpfr_init2(a->lo, prec);
    mpfr_init2(a->hi, prec);
}

void cr_iv_clear(struct cr_iv *a)
{
    mpfr_clear(a->lo);
    mpfr_clear(a->hi);
}

void cr_iv_set_prec(struct cr_iv *a, mpfr_prec_t prec)
{
    mpfr_set_prec(a->lo, prec);
    mpfr_set_prec(a->hi, prec);
}

void cr_iv_set(struct cr_iv *a, double x)
{
    mpfr_set_d(a->lo, x, MPFR_RNDD);
    mpfr_set_d(a->hi, x, MPFR_RNDU);
}

void cr_iv_set_dy(struct cr_iv *a, const struct cr_dy *x)
{
    mpfr_set_z_2exp(a->lo, x->m, x->e, MPFR_RNDD);
    mpfr_set_z_2exp(a->hi, x->m, x->e, MPFR_RNDU);
}

void cr_iv_set_decimal(struct cr_iv *a, const char *text)
{
    mpfr_set_str(a->lo, text, 10, MPFR_RNDD);
    mpfr_set_str(a->hi, text, 10, MPFR_RNDU);
}

void cr_iv_add(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b)
{
    mpfr_add(r->lo, a->lo, b->lo, MPFR_RNDD);
    mpfr_add(r->hi, a->hi, b->hi, MPFR_RNDU);
}

void cr_iv_sub(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b)
{
    mpfr_t lo;
    mpfr_init2(lo, mpfr_get_prec(r->lo));
    mpfr_sub(lo, a->lo, b->hi, MPFR_RNDD);
    mpfr_sub(r->hi, a->hi, b->lo, MPFR_RNDU);
    mpfr_swap(r->lo, lo);
    mpfr_clear(lo);
}

/* Hull of op over the four pairs of ends. */
typedef int (*binary_fn)(mpfr_ptr r, mpfr_srcptr a, mpfr_srcptr b, mpfr_rnd_t rnd);
static void hull(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b, binary_fn op)
{
    mpfr_srcptr as[2] = {a->lo, a->hi}, bs[2] = {b->lo, b->hi};
    mpfr_prec_t prec = mpfr_get_prec(r->lo);
    struct cr_iv best;
    mpfr_t t;
    cr_iv_init(&best, prec);
    mpfr_init2(t, prec);
    for (size_t i = 0; i < 4; i++) {
        op(t, as[i / 2], bs[i % 2], MPFR_RNDD);
        if (i == 0 || mpfr_less_p(t, best.lo))
            mpfr_set(best.lo, t, MPFR_RNDD);
        op(t, as[i / 2], bs[i % 2], MPFR_RNDU);
        if (i == 0 || mpfr_greater_p(t, best.hi))
            mpfr_set(best.hi, t, MPFR_RNDU);
    }
    mpfr_swap(r->lo, best.lo);
    mpfr_swap(r->hi, best.hi);
    mpfr_clear(t);
    cr_iv_clear(&best);
}

void cr_iv_mul(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b)
{
    hull(r, a, b, mpfr_mul);
}

void cr_iv_div(struct cr_iv *r, const struct cr_iv *a, const struct cr_iv *b)
{
    hull(r, a, b, mpfr_div);
}

void cr_iv_neg(struct cr_iv *a)
{
    mpfr_swap(a->lo, a->hi);
    mpfr_neg(a->lo, a->lo, MPFR_RNDD);
    mpfr_neg(a->hi, a->hi, MPFR_RNDU);
}

void cr_iv_increasing(struct cr_iv *a, cr_mpfr_fn fn)
{
    fn(a->lo, a->lo, MPFR_RNDD);
    fn(a->hi, a->hi, MPFR_RNDU);
}

void cr_iv_decreasing(struct cr_iv *a, cr_mpfr_fn fn)
{
    fn(a->lo, a->lo, MPFR_RNDU);
    fn(a->hi, a->hi, MPFR_RNDD);
    mpfr_swap(a->lo, a->hi);
}

bool cr_iv_round(const struct cr_fmt *f, const struct cr_iv *a, double *out)
{
    if (mpfr_nan_p(a->lo) || mpfr_nan_p(a->hi))
        return false;
    double lo = cr_mpfr_round(f, a->lo), hi = cr_mpfr_round(f, a->hi);
    *out = lo;
    return lo == hi && lo != 0;
}

/* ---- algebraic values ----------------------------------------------------------------------- */

enum { ALG_PREC = 192, ALG_MAX_PREC = 1 << 20 };

void cr_alg_init(struct cr_alg *a)
{
    cr_dy_init(&a->num);
    cr_dy_init(&a->den);
    cr_dy_init(&a->t);
    cr_dy_init(&a->u);
    cr_dy_init(&a->v);
    cr_iv_init(&a->root, ALG_PREC);
    cr_iv_init(&a->y, ALG_PREC);
    cr_iv_init(&a->z, ALG_PREC);
    a->root_ready = false;
}

void cr_alg_clear(struct cr_alg *a)
{
    cr_dy_clear(&a->num);
    cr_dy_clear(&a->den);
    cr_dy_clear(&a->t);
    cr_dy_clear(&a->u);
    cr_dy_clear(&a->v);
    cr_iv_clear(&a->root);
    cr_iv_clear(&a->y);
    cr_iv_clear(&a->z);
}

void cr_alg_changed(struct cr_alg *a)
{
    a->root_ready = false;
}

/* a->z = sqrt(num / den) at the precision of z. */
static void root(struct cr_alg *a)
{
    cr_iv_set_dy(&a->z, &a->num);
    cr_iv_set_dy(&a->y, &a->den);
    cr_iv_div(&a->z, &a->z, &a->y);
    cr_iv_increasing(&a->z, mpfr_sqrt);
}

/* a->y = the value at precision `prec`. */
static void evaluate(struct cr_alg *a, const struct cr_dy *p, double b, mpfr_prec_t prec)
{
    cr_iv_set_prec(&a->y, prec);
    cr_iv_set_prec(&a->z, prec);
    if (prec == ALG_PREC) {
        if (!a->root_ready) {
            root(a);
            mpfr_swap(a->z.lo, a->root.lo);
            mpfr_swap(a->z.hi, a->root.hi);
            a->root_ready = true;
        }
        cr_iv_set_dy(&a->y, p);
        cr_iv_mul(&a->y, &a->y, &a->root);
    } else {
        root(a);
        cr_iv_set_dy(&a->y, p);
        cr_iv_mul(&a->y, &a->y, &a->z);
    }
    if (b != 0) {
        cr_iv_set(&a->z, b);
        cr_iv_add(&a->y, &a->y, &a->z);
    }
}

/* Sign of p sqrt(num / den) - c, exactly; destroys c, u, v. */
static int compare(struct cr_alg *a, const struct cr_dy *p, struct cr_dy *c)
{
    int sp = mpz_sgn(a->num.m) == 0 ? 0 : mpz_sgn(p->m), sc = mpz_sgn(c->m);
    if (sp != sc)
        return sp < sc ? -1 : 1;
    if (sp == 0)
        return 0;
    cr_dy_mul(&a->u, p, p);
    cr_dy_mul(&a->u, &a->u, &a->num);
    cr_dy_mul(&a->v, c, c);
    cr_dy_mul(&a->v, &a->v, &a->den);
    return sp * cr_dy_cmp(&a->u, &a->v);
}

/* a->t = the point halfway between the neighbours x < y; for Inf the end of the binade. */
static void midpoint(struct cr_alg *a, const struct cr_fmt *f, double x, double y)
{
    if (isinf(x) || isinf(y)) {
        cr_dy_set(&a->t, isinf(x) ? y : x);
        cr_dy_set(&a->u, ldexp(isinf(x) ? -1.0 : 1.0, f->max_exp - f->prec));
    } else {
        cr_dy_set(&a->t, x);
        cr_dy_set(&a->u, y);
        a->t.e--;
        a->u.e--;
    }
    cr_dy_add(&a->t, &a->t, &a->u);
}

double cr_alg_round(struct cr_alg *a, const struct cr_fmt *f, const struct cr_dy *p, double b,
                    double zero)
{
    if (mpz_sgn(p->m) == 0 || mpz_sgn(a->num.m) == 0)
        return b == 0 ? zero : cr_fmt_round(f, b);
    double lo = 0, hi = 0;
    for (mpfr_prec_t prec = ALG_PREC; prec <= ALG_MAX_PREC; prec *= 4) {
        evaluate(a, p, b, prec);
        if (cr_iv_round(f, &a->y, &lo))
            return lo;
        lo = cr_mpfr_round(f, a->y.lo);
        hi = cr_mpfr_round(f, a->y.hi);
        if (lo == hi || hi == cr_fmt_succ(f, lo))
            break;
    }
    cr_dy_set(&a->v, b);
    if (lo == hi) { /* zeros: the sign of the real value */
        cr_dy_set(&a->t, -b);
        int s = compare(a, p, &a->t);
        return s == 0 ? zero : s < 0 ? -0.0 : 0.0;
    }
    midpoint(a, f, lo, hi);
    double tie = cr_dy_round(f, &a->t);
    cr_dy_set(&a->u, b);
    cr_dy_sub(&a->t, &a->t, &a->u);
    int s = compare(a, p, &a->t);
    double r = s == 0 ? tie : s < 0 ? lo : hi;
    /* One neighbour is not zero and has the sign of the value. */
    return r == 0 ? copysign(0.0, lo < 0 ? -1.0 : 1.0) : r;
}
