/* SPDX-License-Identifier: Apache-2.0 */
/** What the tests of correctly rounded arithmetic share: random values, and a rounding by MPFR
 * alone (mpfr_subnormalize), independent of the code under test. */
#ifndef TESTS_KERNELS_TEST_CR_H
#define TESTS_KERNELS_TEST_CR_H

#include "kernels/cr_round_internal.h"

#include <CUnit/Basic.h>
#include <stdio.h>
#include <stdlib.h>

static const enum dtype cr_dtypes[4] = {DT_F32, DT_F16, DT_BF16, DT_F64};

static inline uint64_t next_u64(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    uint64_t x = *seed;
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    return x ^ x >> 33;
}

/** (-1, 1) */
static inline double next_unit(uint64_t *seed)
{
    return (double)(next_u64(seed) >> 11) * 0x1p-52 - 1.0;
}

/** A value of dt with an exponent within `spread` of 0; now and then zero, or of few bits. */
static inline double next_value(enum dtype dt, int spread, uint64_t *seed)
{
    double x = next_unit(seed);
    uint64_t how = next_u64(seed) % 16;
    if (how == 0)
        x = x < 0 ? -0.0 : 0.0;
    else if (how == 1)
        x = rint(x * 4) / 4;
    if (spread > 0)
        x = ldexp(x, (int)(next_u64(seed) % (uint64_t)(2 * spread + 1)) - spread);
    x = cr_fmt_round(cr_fmt_of(dt), x);
    return isinf(x) ? copysign(cr_fmt_of(dt)->max, x) : x;
}

static inline void *new_array(enum dtype dt, size_t n)
{
    return calloc(n + 1, dt == DT_F64 ? sizeof(double) : sizeof(float));
}

/** One rounding of x to dt. */
static inline double reference_round(enum dtype dt, mpfr_srcptr x)
{
    static const struct {
        enum dtype dt;
        int prec, emin, emax;
    } formats[4] = {{DT_F32, 24, -148, 128},
                    {DT_F16, 11, -23, 16},
                    {DT_BF16, 8, -132, 128},
                    {DT_F64, 53, -1073, 1024}};
    size_t i = 0;
    while (formats[i].dt != dt)
        i++;
    mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
    mpfr_t r;
    mpfr_init2(r, formats[i].prec);
    mpfr_set_emax(formats[i].emax);
    mpfr_set_emin(formats[i].emin);
    int ternary = mpfr_set(r, x, MPFR_RNDN);
    ternary = mpfr_check_range(r, ternary, MPFR_RNDN);
    (void)mpfr_subnormalize(r, ternary, MPFR_RNDN);
    double y = mpfr_get_d(r, MPFR_RNDN);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
    mpfr_clear(r);
    return y;
}

/** Equal, signs of zero included; counts and prints what is not. */
static inline void expect_value(double got, double want, const char *what, double where)
{
    bool same = got == want && (signbit(got) != 0) == (signbit(want) != 0);
    if (!same)
        printf("\n  %s at %a: got %a, expected %a", what, where, got, want);
    CU_ASSERT_TRUE(same);
}

struct cr_topic {
    const char *name;
    void (*fn)(void);
};

static inline int run_topics(const char *suite_name, const struct cr_topic *topics, size_t n)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite(suite_name, NULL, NULL);
    for (size_t i = 0; suite != NULL && i < n; i++)
        if (CU_add_test(suite, topics[i].name, topics[i].fn) == NULL)
            suite = NULL;
    if (suite != NULL)
        (void)CU_basic_run_tests();
    bool failed =
        suite == NULL || CU_get_number_of_failures() > 0 || CU_get_number_of_tests_run() != n;
    CU_cleanup_registry();
    mpfr_free_cache();
    return failed ? 1 : 0;
}

#endif
