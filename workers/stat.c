/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics: numbers that combine in any order to the same result (N75), and their flat form. */
#include "workers/workers_internal.h"

#include <math.h>
#include <string.h>

/* Field lists of the flat form.  A count may exceed 2^53, the integers of a double, only where it
 * is a distance of F64 values; that one is stored in two halves. */
#define COUNTS_BEFORE(X) X(cases) X(elements) X(unequal) X(unequal_bytes) X(nonfinite)
#define REALS(X) X(max_abs) X(max_rel) X(max_abs_double)
#define COUNTS_AFTER(X)                                                                            \
    X(max_abs_token)                                                                               \
    X(max_abs_column)                                                                              \
    X(max_rel_token)                                                                               \
    X(max_ulp_token)                                                                               \
    X(max_ulp_column)                                                                              \
    X(decisions)                                                                                   \
    X(decisions_changed)                                                                           \
    X(first_changed_token)

#define NAME(field) #field "\n"
#define ONE(field) +1
enum {
    N_BEFORE = 0 COUNTS_BEFORE(ONE),
    N_REALS = 0 REALS(ONE),
    N_AFTER = 0 COUNTS_AFTER(ONE),
    N_HALVES = 2,
    N_FIELDS = N_BEFORE + N_REALS + N_AFTER + N_HALVES + WORKER_ULP_BUCKETS
};

const char *const worker_stat_columns = COUNTS_BEFORE(NAME) REALS(NAME) COUNTS_AFTER(
    NAME) "max_ulp_high\nmax_ulp_low\n"
          "ulp_0\nulp_1\nulp_2\nulp_4\nulp_8\nulp_16\nulp_32\nulp_64\nulp_128\nulp_256\nulp_512\n"
          "ulp_2^10\nulp_2^11\nulp_2^12\nulp_2^13\nulp_2^14\nulp_2^15\nulp_2^16\nulp_2^17\nulp_2^"
          "18\n"
          "ulp_2^19\nulp_2^20\nulp_2^21\nulp_2^22\nulp_2^23\nulp_2^24\nulp_2^25\nulp_2^26\nulp_2^"
          "27\n"
          "ulp_2^28\nulp_2^29\nulp_2^30\nulp_more";

size_t worker_stat_n_fields(void)
{
    return N_FIELDS;
}

void worker_stat_encode(const struct worker_stat *s, double *fields)
{
    size_t at = 0;
#define PUT(field) fields[at++] = (double)s->field;
    COUNTS_BEFORE(PUT)
    REALS(PUT)
    COUNTS_AFTER(PUT)
#undef PUT
    fields[at++] = (double)(s->max_ulp >> 32);
    fields[at++] = (double)(s->max_ulp & UINT32_MAX);
    for (size_t i = 0; i < WORKER_ULP_BUCKETS; i++)
        fields[at++] = (double)s->ulp[i];
}

static bool to_count(double x, uint64_t *out)
{
    if (!(x >= 0 && x <= 0x1p53) || x != floor(x) || signbit(x))
        return false;
    *out = (uint64_t)x;
    return true;
}

static bool is_consistent(const struct worker_stat *s)
{
    uint64_t counted = 0;
    for (size_t i = 0; i < WORKER_ULP_BUCKETS; i++)
        counted += s->ulp[i];
    return counted + s->nonfinite == s->elements && s->unequal <= counted &&
           s->unequal == counted - s->ulp[0] && s->decisions_changed <= s->decisions &&
           (s->unequal > 0) == (s->max_ulp > 0) && (s->unequal > 0) == (s->max_abs > 0);
}

enum status worker_stat_decode(const double *fields, struct worker_stat *s, struct err *err)
{
    size_t at = 0;
    uint64_t high = 0, low = 0;
    bool ok = true;
    *s = (struct worker_stat){0};
#define GET_COUNT(field) ok = to_count(fields[at++], &s->field) && ok;
#define GET_REAL(field)                                                                            \
    s->field = fields[at++];                                                                       \
    ok = s->field >= 0 && !signbit(s->field) && ok;
    COUNTS_BEFORE(GET_COUNT)
    REALS(GET_REAL)
    COUNTS_AFTER(GET_COUNT)
#undef GET_COUNT
#undef GET_REAL
    ok = to_count(fields[at++], &high) && high <= UINT32_MAX && ok;
    ok = to_count(fields[at++], &low) && low <= UINT32_MAX && ok;
    s->max_ulp = high << 32 | low;
    for (size_t i = 0; i < WORKER_ULP_BUCKETS; i++)
        ok = to_count(fields[at++], &s->ulp[i]) && ok;
    if (!ok || !is_consistent(s)) {
        *s = (struct worker_stat){0};
        return err_set(err, ST_FORMAT, "statistics record: not what a worker writes");
    }
    return ST_OK;
}

/* Is place (token, column) of b to be taken over a's?  Equal maxima keep the lowest place. */
static bool takes_over(double a, bool a_valid, uint64_t a_token, uint64_t a_column, double b,
                       bool b_valid, uint64_t b_token, uint64_t b_column)
{
    if (!b_valid || !a_valid)
        return b_valid;
    if (a != b)
        return b > a;
    return b_token != a_token ? b_token < a_token : b_column < a_column;
}

static void merge_maxima(struct worker_stat *a, const struct worker_stat *b)
{
    if (takes_over(a->max_abs, a->unequal > 0, a->max_abs_token, a->max_abs_column, b->max_abs,
                   b->unequal > 0, b->max_abs_token, b->max_abs_column)) {
        a->max_abs = b->max_abs;
        a->max_abs_token = b->max_abs_token;
        a->max_abs_column = b->max_abs_column;
    }
    if (takes_over(a->max_rel, a->max_rel > 0, a->max_rel_token, 0, b->max_rel, b->max_rel > 0,
                   b->max_rel_token, 0)) {
        a->max_rel = b->max_rel;
        a->max_rel_token = b->max_rel_token;
    }
    const bool greater = b->max_ulp > a->max_ulp;
    const bool lower =
        b->max_ulp == a->max_ulp && b->max_ulp > 0 &&
        (b->max_ulp_token < a->max_ulp_token ||
         (b->max_ulp_token == a->max_ulp_token && b->max_ulp_column < a->max_ulp_column));
    if (greater || lower) {
        a->max_ulp = b->max_ulp;
        a->max_ulp_token = b->max_ulp_token;
        a->max_ulp_column = b->max_ulp_column;
    }
    if (b->max_abs_double > a->max_abs_double)
        a->max_abs_double = b->max_abs_double;
}

void worker_stat_merge(struct worker_stat *a, const struct worker_stat *b)
{
    merge_maxima(a, b); /* before the counts that say which maxima are valid */
    if (b->decisions_changed > 0 &&
        (a->decisions_changed == 0 || b->first_changed_token < a->first_changed_token))
        a->first_changed_token = b->first_changed_token;
#define ADD(field) a->field += b->field;
    COUNTS_BEFORE(ADD)
#undef ADD
    a->decisions += b->decisions;
    a->decisions_changed += b->decisions_changed;
    for (size_t i = 0; i < WORKER_ULP_BUCKETS; i++)
        a->ulp[i] += b->ulp[i];
}
