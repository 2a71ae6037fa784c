/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cr_round_internal.h"

/* magic = 2^52 quanta: adding it leaves multiples of the quantum, rounded nearest even. */
static const struct cr_fmt formats[] = {
    {DT_F64, 53, -1074, 1023, 0x1.fffffffffffffp1023, 0x1p-1022, 0, 0, 0, 0},
    {DT_F32, 24, -149, 127, 0x1.fffffep127, 0x1p-126, 0x1p-97, (UINT64_C(1) << 29) - 1,
     (UINT64_C(1) << 28) - 1, 29},
    {DT_F16, 11, -24, 15, 65504.0, 0x1p-14, 0x1p28, (UINT64_C(1) << 42) - 1,
     (UINT64_C(1) << 41) - 1, 42},
    {DT_BF16, 8, -133, 127, 0x1.fep127, 0x1p-126, 0x1p-81, (UINT64_C(1) << 45) - 1,
     (UINT64_C(1) << 44) - 1, 45},
};

const struct cr_fmt *cr_fmt_of(enum dtype dt)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
        if (formats[i].dt == dt)
            return &formats[i];
    return NULL;
}

/* Exponent of the quantum of |x|'s binade; x finite. */
static int quantum_exp(const struct cr_fmt *f, double x)
{
    if (x == 0)
        return f->quantum_exp;
    int e;
    (void)frexp(x, &e);
    return e - f->prec > f->quantum_exp ? e - f->prec : f->quantum_exp;
}

double cr_fmt_succ(const struct cr_fmt *f, double x)
{
    if (isinf(x))
        return x < 0 ? -f->max : x;
    if (x == f->max)
        return INFINITY;
    int q = quantum_exp(f, x);
    /* Below a negative power of two the binade towards zero is finer. */
    int e;
    if (x < 0 && frexp(x, &e) == -0.5 && q > f->quantum_exp)
        q--;
    return x + ldexp(1.0, q);
}

double cr_round_bits(const struct cr_fmt *f, bool neg, uint64_t m, long e, bool sticky)
{
    if (m == 0)
        return neg ? -0.0 : 0.0;
    int lead = __builtin_clzll(m);
    long top = e + 63 - lead; /* value in [2^top, 2^(top + 1)) */
    if (top > f->max_exp)
        return neg ? -(double)INFINITY : (double)INFINITY;
    if (top < f->quantum_exp - 1)
        return neg ? -0.0 : 0.0;
    m <<= lead;
    e -= lead;
    long q = top - (f->prec - 1);
    if (q < f->quantum_exp)
        q = f->quantum_exp;
    long drop = q - e; /* 11 .. 64: m has 64 bits, formats at most 53 */
    uint64_t keep = drop < 64 ? m >> drop : 0;
    uint64_t half = UINT64_C(1) << (drop - 1);
    uint64_t rest = drop < 64 ? m & ((UINT64_C(1) << drop) - 1) : m;
    if (rest > half || (rest == half && (sticky || (keep & 1) != 0)))
        keep++;
    double r = ldexp((double)keep, (int)q);
    if (r > f->max)
        r = (double)INFINITY;
    return neg ? -r : r;
}

/* |x| = *m * 2^*e. */
static void split(double x, uint64_t *m, int *e)
{
    uint64_t u = cr_bits(x) & ~(UINT64_C(1) << 63);
    uint64_t field = u >> 52;
    *m = u & ((UINT64_C(1) << 52) - 1);
    *e = -1074;
    if (field != 0) {
        *m |= UINT64_C(1) << 52;
        *e += (int)field - 1;
    }
}

__extension__ typedef unsigned __int128 u128;

double cr_round_product(const struct cr_fmt *f, double a, double b)
{
    uint64_t ma, mb;
    int ea, eb;
    split(a, &ma, &ea);
    split(b, &mb, &eb);
    bool neg = (signbit(a) != 0) != (signbit(b) != 0);
    u128 p = (u128)ma * mb;
    uint64_t high = (uint64_t)(p >> 64), low = (uint64_t)p;
    if (high == 0)
        return cr_round_bits(f, neg, low, ea + eb, false);
    int lead = __builtin_clzll(high);
    uint64_t m = lead == 0 ? high : high << lead | low >> (64 - lead);
    bool sticky = lead == 0 ? low != 0 : low << lead != 0;
    return cr_round_bits(f, neg, m, ea + eb + 64 - lead, sticky);
}

double cr_round_pair(const struct cr_fmt *f, double h, double l)
{
    double err;
    double s = cr_two_sum(h, l, &err);
    if (f->dt == DT_F64 || err == 0)
        return cr_fmt_round(f, s);
    /* Round to odd in double: then the rounding to at most 51 bits is that of the exact sum. */
    uint64_t u = cr_bits(s);
    if ((u & 1) == 0)
        u = (err > 0) == (s > 0) ? u + 1 : u - 1;
    return cr_fmt_round(f, cr_from_bits(u));
}

bool cr_round_test(const struct cr_fmt *f, double hi, double lo, double e, double *out)
{
    double slack = e == 0 ? 0 : e * (1 + 0x1p-40) + fabs(lo) * 0x1p-52 + 0x1p-1074;
    if (!isfinite(hi) || !isfinite(lo) || !isfinite(slack))
        return false;
    double a = cr_round_pair(f, hi, lo - slack), b = cr_round_pair(f, hi, lo + slack);
    *out = a;
    return a == b && a != 0;
}

size_t cr_find_nonfinite(enum dtype dt, const void *x, size_t n)
{
    size_t i = 0;
    while (i < n && isfinite(cr_load(dt, x, i)))
        i++;
    return i;
}

/* ---- exact accumulator ---------------------------------------------------------------------- */

void cr_acc_clear(struct cr_acc *a)
{
    memset(a, 0, sizeof *a);
}

static void propagate(struct cr_acc *a)
{
    int64_t carry = 0;
    for (size_t i = 0; i < CR_ACC_DIGITS - 1; i++) {
        int64_t d = a->digit[i] + carry;
        carry = d >> 32; /* floor: digits end in [0, 2^32) */
        a->digit[i] = d & INT64_C(0xffffffff);
    }
    a->digit[CR_ACC_DIGITS - 1] += carry;
    a->pending = 0;
}

static void add_bits(struct cr_acc *a, bool neg, uint64_t m, int e)
{
    unsigned at = (unsigned)(e - CR_ACC_BASE);
    u128 v = (u128)m << (at & 31);
    int64_t d0 = (int64_t)(v & 0xffffffff);
    int64_t d1 = (int64_t)((v >> 32) & 0xffffffff);
    int64_t d2 = (int64_t)(v >> 64);
    int64_t *d = a->digit + (at >> 5);
    if (neg) {
        d[0] -= d0;
        d[1] -= d1;
        d[2] -= d2;
    } else {
        d[0] += d0;
        d[1] += d1;
        d[2] += d2;
    }
    /* Each addition moves a digit by less than 2^32. */
    if (++a->pending >= 1u << 28)
        propagate(a);
}

void cr_acc_add(struct cr_acc *a, double x)
{
    uint64_t m;
    int e;
    split(x, &m, &e);
    add_bits(a, signbit(x) != 0, m, e);
}

void cr_acc_add_product(struct cr_acc *a, double x, double y)
{
    uint64_t mx, my;
    int ex, ey;
    split(x, &mx, &ex);
    split(y, &my, &ey);
    bool neg = (signbit(x) != 0) != (signbit(y) != 0);
    u128 p = (u128)mx * my;
    add_bits(a, neg, (uint64_t)p, ex + ey);
    if (p >> 64 != 0)
        add_bits(a, neg, (uint64_t)(p >> 64), ex + ey + 64);
}

/* Digits of the magnitude, carries done; true if the sum was negative. */
static bool magnitude(struct cr_acc *a)
{
    propagate(a);
    if (a->digit[CR_ACC_DIGITS - 1] >= 0)
        return false;
    for (size_t i = 0; i < CR_ACC_DIGITS; i++)
        a->digit[i] = -a->digit[i];
    propagate(a);
    return true;
}

double cr_acc_round(struct cr_acc *a, const struct cr_fmt *f)
{
    bool neg = magnitude(a);
    size_t top = CR_ACC_DIGITS;
    while (top > 0 && a->digit[top - 1] == 0)
        top--;
    if (top == 0)
        return 0.0;
    /* The top digit and two below it: at least 65 bits. */
    u128 v = 0;
    for (size_t i = 0; i < 3; i++)
        v = v << 32 | (u128)(top > i ? (uint64_t)a->digit[top - 1 - i] : 0);
    bool sticky = false;
    for (size_t i = 0; i + 3 < top; i++)
        sticky |= a->digit[i] != 0;
    long e = 32 * ((long)top - 3) + CR_ACC_BASE;
    while (v >> 64 != 0) {
        sticky |= (v & 1) != 0;
        v >>= 1;
        e++;
    }
    return cr_round_bits(f, neg, (uint64_t)v, e, sticky);
}

/* ---- exact dyadic numbers ------------------------------------------------------------------- */

void cr_dy_init(struct cr_dy *a)
{
    mpz_init(a->m);
    a->e = 0;
}

void cr_dy_clear(struct cr_dy *a)
{
    mpz_clear(a->m);
}

void cr_dy_set(struct cr_dy *a, double x)
{
    uint64_t m;
    int e;
    split(x, &m, &e);
    mpz_set_ui(a->m, m);
    if (signbit(x))
        mpz_neg(a->m, a->m);
    a->e = e;
}

static void strip(struct cr_dy *a)
{
    if (mpz_sgn(a->m) == 0) {
        a->e = 0;
        return;
    }
    mp_bitcnt_t zeros = mpz_scan1(a->m, 0);
    mpz_tdiv_q_2exp(a->m, a->m, zeros);
    a->e += (long)zeros;
}

void cr_dy_set_acc(struct cr_dy *a, struct cr_acc *x)
{
    bool neg = magnitude(x);
    uint32_t words[CR_ACC_DIGITS];
    for (size_t i = 0; i < CR_ACC_DIGITS; i++)
        words[i] = (uint32_t)x->digit[i];
    mpz_import(a->m, CR_ACC_DIGITS, -1, sizeof words[0], 0, 0, words);
    if (neg)
        mpz_neg(a->m, a->m);
    a->e = CR_ACC_BASE;
    strip(a);
}

void cr_dy_mul(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b)
{
    r->e = a->e + b->e;
    mpz_mul(r->m, a->m, b->m);
    strip(r);
}

static void combine(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b, bool subtract)
{
    const struct cr_dy *high = a->e > b->e ? a : b, *low = high == a ? b : a;
    long e = low->e;
    mpz_t t;
    mpz_init(t);
    mpz_mul_2exp(t, high->m, (mp_bitcnt_t)(high->e - e));
    if (!subtract)
        mpz_add(r->m, t, low->m);
    else if (high == a)
        mpz_sub(r->m, t, low->m);
    else
        mpz_sub(r->m, low->m, t);
    mpz_clear(t);
    r->e = e;
    strip(r);
}

void cr_dy_add(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b)
{
    combine(r, a, b, false);
}

void cr_dy_sub(struct cr_dy *r, const struct cr_dy *a, const struct cr_dy *b)
{
    combine(r, a, b, true);
}

int cr_dy_cmp(const struct cr_dy *a, const struct cr_dy *b)
{
    struct cr_dy d;
    cr_dy_init(&d);
    cr_dy_sub(&d, a, b);
    int s = mpz_sgn(d.m);
    cr_dy_clear(&d);
    return s;
}

static double round_mpz(const struct cr_fmt *f, mpz_srcptr m, long e)
{
    bool neg = mpz_sgn(m) < 0;
    size_t bits = mpz_sgn(m) == 0 ? 0 : mpz_sizeinbase(m, 2);
    if (bits <= 64)
        return cr_round_bits(f, neg, mpz_get_ui(m), e, false);
    mp_bitcnt_t drop = bits - 64;
    mpz_t t;
    mpz_init(t);
    mpz_tdiv_q_2exp(t, m, drop);
    uint64_t top = mpz_get_ui(t); /* of the absolute value */
    mpz_clear(t);
    return cr_round_bits(f, neg, top, e + (long)drop, mpz_scan1(m, 0) < drop);
}

double cr_dy_round(const struct cr_fmt *f, const struct cr_dy *a)
{
    return round_mpz(f, a->m, a->e);
}

double cr_mpfr_round(const struct cr_fmt *f, mpfr_srcptr x)
{
    if (mpfr_inf_p(x))
        return mpfr_sgn(x) < 0 ? -(double)INFINITY : (double)INFINITY;
    if (mpfr_zero_p(x))
        return mpfr_signbit(x) ? -0.0 : 0.0;
    mpz_t m;
    mpz_init(m);
    long e = mpfr_get_z_2exp(m, x);
    double r = round_mpz(f, m, e);
    mpz_clear(m);
    return r;
}
