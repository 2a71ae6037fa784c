/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <stdio.h>
#include <string.h>

static void test_names(void)
{
    for (unsigned i = 0; i < DT_UNKNOWN; i++) {
        const char *name = dtype_name((enum dtype)i);
        CU_ASSERT_EQUAL(dtype_from_name(name, strlen(name)), (enum dtype)i);
        CU_ASSERT_EQUAL(dtype_from_name(name, strlen(name) - 1), DT_UNKNOWN);
    }
    CU_ASSERT_EQUAL(dtype_from_name("F32xyz", 3), DT_F32); /* the length counts, not a NUL */
    CU_ASSERT_EQUAL(dtype_from_name("f32", 3), DT_UNKNOWN);
    CU_ASSERT_EQUAL(dtype_from_name("?", 1), DT_UNKNOWN);
    CU_ASSERT_EQUAL(dtype_from_name("", 0), DT_UNKNOWN);
    CU_ASSERT_EQUAL(dtype_from_name("F8_E4M3", 7), DT_F8_E4M3);
    CHECK_TEXT(dtype_name(DT_UNKNOWN), "?");
    CHECK_TEXT(dtype_name((enum dtype)1000), "?");
}

static void test_sizes(void)
{
    CU_ASSERT_EQUAL(dtype_size(DT_F64), 8);
    CU_ASSERT_EQUAL(dtype_size(DT_F32), 4);
    CU_ASSERT_EQUAL(dtype_size(DT_BF16), 2);
    CU_ASSERT_EQUAL(dtype_size(DT_F16), 2);
    CU_ASSERT_EQUAL(dtype_size(DT_I64), 8);
    CU_ASSERT_EQUAL(dtype_size(DT_U16), 2);
    CU_ASSERT_EQUAL(dtype_size(DT_BOOL), 1);
    CU_ASSERT_EQUAL(dtype_size(DT_F8_E5M2), 1);
    CU_ASSERT_EQUAL(dtype_size(DT_UNKNOWN), 0);
    CU_ASSERT_EQUAL(dtype_size((enum dtype)1000), 0);
}

static void test_computable(void)
{
    unsigned n_computable = 0;
    for (unsigned i = 0; i <= DT_UNKNOWN; i++)
        n_computable += dtype_is_computable((enum dtype)i) ? 1u : 0u;
    CU_ASSERT_EQUAL(n_computable, 4);
    CU_ASSERT(dtype_is_computable(DT_F64) && dtype_is_computable(DT_F32));
    CU_ASSERT(dtype_is_computable(DT_F16) && dtype_is_computable(DT_BF16));
    CU_ASSERT_EQUAL(dtype_compute(DT_F64), DT_F64);
    CU_ASSERT_EQUAL(dtype_compute(DT_F32), DT_F32);
    CU_ASSERT_EQUAL(dtype_compute(DT_BF16), DT_F32);
}

static void test_promotion(void)
{
    static const enum dtype FLOATS[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    static const enum dtype EXPECTED[4][4] = {
        {DT_F64, DT_F64, DT_F64, DT_F64},
        {DT_F64, DT_F32, DT_F32, DT_F32},
        {DT_F64, DT_F32, DT_F16, DT_F32},
        {DT_F64, DT_F32, DT_F32, DT_BF16},
    };
    for (size_t i = 0; i < 4; i++) {
        for (size_t j = 0; j < 4; j++)
            CU_ASSERT_EQUAL(dtype_promote(FLOATS[i], FLOATS[j]), EXPECTED[i][j]);
    }
    CU_ASSERT_EQUAL(dtype_promote(DT_I64, DT_F32), DT_UNKNOWN);
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"names", test_names},
        {"sizes", test_sizes},
        {"computable", test_computable},
        {"promotion", test_promotion},
    };
    return base_test_main("base dtype", TESTS, N_OF(TESTS));
}
