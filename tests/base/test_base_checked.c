/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <limits.h>

static void test_products_and_sums(void)
{
    size_t size = 77;
    CU_ASSERT(mul_size(3, 5, &size));
    CU_ASSERT_EQUAL(size, 15);
    CU_ASSERT(mul_size(SIZE_MAX, 1, &size));
    CU_ASSERT_EQUAL(size, SIZE_MAX);
    CU_ASSERT(mul_size(SIZE_MAX, 0, &size));
    CU_ASSERT_EQUAL(size, 0);
    size = 77;
    CU_ASSERT(!mul_size(SIZE_MAX / 2 + 1, 2, &size));
    CU_ASSERT(!add_size(SIZE_MAX, 1, &size));
    CU_ASSERT_EQUAL(size, 77); /* untouched */
    CU_ASSERT(add_size(SIZE_MAX - 1, 1, &size));
    CU_ASSERT_EQUAL(size, SIZE_MAX);

    uint64_t wide = 77;
    CU_ASSERT(!mul_u64((uint64_t)1 << 32, (uint64_t)1 << 32, &wide));
    CU_ASSERT(!add_u64(UINT64_MAX, UINT64_MAX, &wide));
    CU_ASSERT_EQUAL(wide, 77);
    CU_ASSERT(mul_u64((uint64_t)1 << 32, ((uint64_t)1 << 32) - 1, &wide));
    CU_ASSERT_EQUAL(wide, UINT64_MAX - UINT32_MAX);
    CU_ASSERT(add_u64(UINT64_MAX - 5, 5, &wide));
    CU_ASSERT_EQUAL(wide, UINT64_MAX);
}

static void test_narrowing(void)
{
    int count = 77;
    CU_ASSERT(size_to_int(INT_MAX, &count));
    CU_ASSERT_EQUAL(count, INT_MAX);
    count = 77;
    CU_ASSERT(!size_to_int((size_t)INT_MAX + 1, &count));
    CU_ASSERT(!size_to_int(SIZE_MAX, &count));
    CU_ASSERT_EQUAL(count, 77);
    size_t size = 77;
    CU_ASSERT(u64_to_size(12, &size));
    CU_ASSERT_EQUAL(size, 12);
    CU_ASSERT_EQUAL(min_u64(3, UINT64_MAX), 3);
    CU_ASSERT_EQUAL(max_u64(3, UINT64_MAX), UINT64_MAX);
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"products and sums", test_products_and_sums},
        {"narrowing", test_narrowing},
    };
    return base_test_main("base checked", TESTS, N_OF(TESTS));
}
