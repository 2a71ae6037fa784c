/* SPDX-License-Identifier: Apache-2.0 */
/* Elements as text: what lookup and diff print. */
#include <float.h>
#include <math.h>

#include "driver/verb_internal.h"
#include "tests/formats/fixture.h"

static bool is_f32_text(float x, const char *expected)
{
    char buf[VERB_TEXT_SIZE];
    bool same = strcmp(verb_f32_text(x, buf), expected) == 0;
    if (!same)
        printf("\n    expected %s, found %s", expected, buf);
    return same;
}

static void test_known(void)
{
    CU_ASSERT(is_f32_text(0.1f, "0.1"));
    CU_ASSERT(is_f32_text(0.0f, "0"));
    CU_ASSERT(is_f32_text(-0.0f, "-0"));
    CU_ASSERT(is_f32_text(27.5f, "27.5"));
    CU_ASSERT(is_f32_text(16777216.0f, "16777216"));
    CU_ASSERT(is_f32_text(FLT_MAX, "3.4028235e+38"));
    CU_ASSERT(is_f32_text(FLT_MIN, "1.1754944e-38"));
    CU_ASSERT(is_f32_text(0x1p-149f, "1e-45"));
    CU_ASSERT(is_f32_text(1.0f / 3, "0.33333334"));
    CU_ASSERT(is_f32_text((float)NAN, "NaN"));
    CU_ASSERT(is_f32_text(-(float)INFINITY, "-Infinity"));
}

/* No text with fewer digits reads back, and this one does: bit patterns over the whole range. */
static void test_shortest(void)
{
    size_t wrong = 0;
    uint32_t bits = 12345;
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        float x, back;
        char buf[VERB_TEXT_SIZE], shorter[VERB_TEXT_SIZE];
        uint32_t pattern = i % 16 == 0 ? bits & 0x807fffffu : bits; /* subnormal ones too */
        memcpy(&x, &pattern, sizeof x);
        if (!isfinite(x))
            continue;
        verb_f32_text(x, buf);
        back = strtof(buf, NULL);
        wrong += memcmp(&back, &x, sizeof x) != 0;
        int digits = 1;
        for (; digits < 9; digits++) {
            snprintf(shorter, sizeof shorter, "%.*g", digits, (double)x);
            back = strtof(shorter, NULL);
            if (memcmp(&back, &x, sizeof x) == 0)
                break;
        }
        snprintf(shorter, sizeof shorter, "%.*g", digits, (double)x);
        wrong += strlen(buf) > strlen(shorter);
    }
    CU_ASSERT_EQUAL(wrong, 0);
}

static void test_halves_are_exact(void)
{
    size_t wrong = 0;
    char buf[VERB_TEXT_SIZE];
    for (uint32_t i = 0; i < 0x10000; i++) {
        uint16_t half = (uint16_t)i;
        double f16 = (double)f16_to_f32(half), bf16 = (double)bf16_to_f32(half);
        if (isfinite(f16))
            wrong += strtod(verb_element_text(DT_F16, &half, buf), NULL) != f16;
        if (isfinite(bf16))
            wrong += strtod(verb_element_text(DT_BF16, &half, buf), NULL) != bf16;
    }
    CU_ASSERT_EQUAL(wrong, 0);
    uint16_t tenth = bf16_from_f32(0.1f);
    CU_ASSERT_STRING_EQUAL(verb_element_text(DT_BF16, &tenth, buf), "0.10009765625");
}

static void test_integers(void)
{
    char buf[VERB_TEXT_SIZE];
    int64_t low = INT64_MIN;
    uint64_t high = UINT64_MAX;
    int8_t small = -128;
    uint8_t yes = 1, e4m3 = 0x7E;
    CU_ASSERT_STRING_EQUAL(verb_element_text(DT_I64, &low, buf), "-9223372036854775808");
    CU_ASSERT_STRING_EQUAL(verb_element_text(DT_U64, &high, buf), "18446744073709551615");
    CU_ASSERT_STRING_EQUAL(verb_element_text(DT_I8, &small, buf), "-128");
    CU_ASSERT_STRING_EQUAL(verb_element_text(DT_BOOL, &yes, buf), "1");
    CU_ASSERT_STRING_EQUAL(verb_element_text(DT_F8_E4M3, &e4m3, buf), "448");
}

int main(void)
{
    static const struct fixture_case cases[] = {{"known", test_known},
                                                {"shortest", test_shortest},
                                                {"halves", test_halves_are_exact},
                                                {"integers", test_integers}};
    return fixture_run("elements", cases, sizeof cases / sizeof cases[0]);
}
