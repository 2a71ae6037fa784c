/* SPDX-License-Identifier: Apache-2.0 */
/* When two elements count as equal, and how far apart they are. */
#include <float.h>
#include <math.h>

#include "driver/diff_internal.h"
#include "tests/formats/fixture.h"

static const struct diff_rule BITS = {.nan = DIFF_NAN_BITS};

static struct diff_element f32(const struct diff_rule *rule, float a, float b)
{
    return diff_compare(rule, DT_F32, &a, DT_F32, &b);
}

static void test_bits(void)
{
    CU_ASSERT(f32(&BITS, 1, 1).equal);
    CU_ASSERT(!f32(&BITS, 1, nextafterf(1, 2)).equal);
    struct diff_element zeros = f32(&BITS, 0.0f, -0.0f);
    CU_ASSERT(!zeros.equal && !zeros.same_bits && zeros.has_ulp);
    CU_ASSERT_EQUAL(zeros.ulp, 0);
    CU_ASSERT(zeros.absolute == 0 && zeros.relative == 0);
}

static void test_distances(void)
{
    CU_ASSERT_EQUAL(f32(&BITS, 1, nextafterf(1, 2)).ulp, 1);
    CU_ASSERT_EQUAL(f32(&BITS, -0x1p-149f, 0x1p-149f).ulp, 2);
    CU_ASSERT_EQUAL(f32(&BITS, FLT_MAX, -FLT_MAX).ulp, 2 * (uint64_t)0x7f7fffff);
    double low = -DBL_MAX, high = DBL_MAX;
    struct diff_element d = diff_compare(&BITS, DT_F64, &low, DT_F64, &high);
    CU_ASSERT_EQUAL(d.ulp, 2 * (uint64_t)0x7fefffffffffffff);
    CU_ASSERT(isinf(d.absolute) && !d.equal);
    uint16_t one = 0x3F80, next = 0x3F82;
    CU_ASSERT_EQUAL(diff_compare(&BITS, DT_BF16, &one, DT_BF16, &next).ulp, 2);
    int64_t small = INT64_MIN, large = INT64_MAX;
    d = diff_compare(&BITS, DT_I64, &small, DT_I64, &large);
    CU_ASSERT(!d.has_ulp && d.absolute == 0x1p64);
    int64_t near = INT64_MAX - 1; /* the same double as INT64_MAX */
    CU_ASSERT(diff_compare(&BITS, DT_I64, &near, DT_I64, &large).absolute == 1);
}

static void test_tolerances(void)
{
    const struct diff_rule absolute = {.has_absolute = true, .absolute = 0.5};
    const struct diff_rule relative = {.has_relative = true, .relative = 0.5};
    const struct diff_rule ulp = {.has_ulp = true, .ulp = 1};
    const struct diff_rule any = {
        .has_absolute = true, .absolute = 0.5, .has_relative = true, .relative = 0.1};
    CU_ASSERT(f32(&absolute, 1, 1.5f).equal && !f32(&absolute, 1, 1.75f).equal);
    CU_ASSERT(f32(&relative, 2, 4).equal && !f32(&relative, 2, 4.5f).equal);
    CU_ASSERT(f32(&relative, 4, 2).equal && !f32(&relative, 4.5f, 2).equal);
    CU_ASSERT(f32(&ulp, 1, nextafterf(1, 2)).equal && !f32(&ulp, 1, 1.0000004f).equal);
    CU_ASSERT(f32(&any, 100, 105).equal && f32(&any, 0, 0.5f).equal && !f32(&any, 0, 1).equal);
    CU_ASSERT(f32(&ulp, 0.0f, -0.0f).equal);
    const struct diff_rule huge = {
        .has_absolute = true, .absolute = 1e300, .has_relative = true, .relative = 1e300};
    CU_ASSERT(f32(&huge, (float)INFINITY, (float)INFINITY).equal);
    CU_ASSERT(!f32(&huge, (float)INFINITY, -(float)INFINITY).equal);
    CU_ASSERT(!f32(&huge, (float)INFINITY, 1).equal);
    float a = 0.1f;
    double b = (double)0.1f, c = 0.1;
    CU_ASSERT(diff_compare(&relative, DT_F32, &a, DT_F64, &b).equal);
    CU_ASSERT(diff_compare(&relative, DT_F32, &a, DT_F64, &c).equal);
    CU_ASSERT(!diff_compare(&ulp, DT_F32, &a, DT_F64, &c).equal);
}

static void test_nan(void)
{
    uint32_t bits[] = {0x7fc00000, 0x7fc00001, 0x3f800000};
    struct {
        enum diff_nan mode;
        bool same, other;
    } modes[] = {{DIFF_NAN_DIFFER, false, false},
                 {DIFF_NAN_EQUAL, true, true},
                 {DIFF_NAN_BITS, true, false}};
    for (size_t i = 0; i < 3; i++) {
        const struct diff_rule rule = {
            .has_absolute = true, .absolute = 1e30, .nan = modes[i].mode};
        CU_ASSERT_EQUAL(diff_compare(&rule, DT_F32, &bits[0], DT_F32, &bits[0]).equal,
                        modes[i].same);
        CU_ASSERT_EQUAL(diff_compare(&rule, DT_F32, &bits[0], DT_F32, &bits[1]).equal,
                        modes[i].other);
        CU_ASSERT(!diff_compare(&rule, DT_F32, &bits[0], DT_F32, &bits[2]).equal);
        CU_ASSERT(!diff_compare(&rule, DT_F32, &bits[2], DT_F32, &bits[1]).equal);
    }
}

int main(void)
{
    static const struct fixture_case cases[] = {{"bits", test_bits},
                                                {"distances", test_distances},
                                                {"tolerances", test_tolerances},
                                                {"nan", test_nan}};
    return fixture_run("diff rule", cases, sizeof cases / sizeof cases[0]);
}
