/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <stdio.h>
#include <string.h>

static void test_xxh3_golden(void)
{
    char hex[DIGEST_HEX_SIZE];
    struct digest d = digest_of(NULL, 0);
    CHECK_TEXT(digest_hex(&d, hex), "99aa06d3014798d86001c324468d497f");
    CU_ASSERT_EQUAL(d.bytes[0], 0x99); /* canonical: the most significant byte first */
    d = digest_of("abc", 3);
    CHECK_TEXT(digest_hex(&d, hex), "06b05ab6733a618578af5f94892f3950");
}

static void test_xxh3_stream(void)
{
    struct err err = {.st = ST_OK};
    uint8_t data[5000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 31 >> 3);
    static const size_t STEPS[] = {1, 7, 240, 1024, 5000};
    for (size_t i = 0; i < N_OF(STEPS); i++) {
        struct digest_state *s = NULL;
        CHECK_OK(digest_open(&s, &err), err);
        CU_ASSERT_PTR_NOT_NULL_FATAL(s);
        for (size_t at = 0; at < sizeof data; at += STEPS[i]) {
            size_t size = sizeof data - at < STEPS[i] ? sizeof data - at : STEPS[i];
            digest_update(s, data + at, size);
            if (at < 600) { /* the state goes on after a look */
                struct digest now = digest_now(s);
                struct digest direct = digest_of(data, at + size);
                CU_ASSERT(digest_equal(&now, &direct));
            }
        }
        digest_update(s, NULL, 0);
        struct digest all = digest_now(s);
        struct digest direct = digest_of(data, sizeof data);
        CU_ASSERT(digest_equal(&all, &direct));
        digest_close(&s);
        CU_ASSERT_PTR_NULL(s);
        digest_close(&s);
    }
}

static void test_hex(void)
{
    char hex[DIGEST_HEX_SIZE];
    struct digest d = digest_of("abc", 3), back = {{0}};
    CU_ASSERT(digest_from_hex(digest_hex(&d, hex), &back));
    CU_ASSERT(digest_equal(&d, &back));
    back.bytes[15] ^= 1;
    CU_ASSERT(!digest_equal(&d, &back));

    struct digest untouched = d;
    CU_ASSERT(!digest_from_hex("", &untouched));
    CU_ASSERT(!digest_from_hex("06b05ab6733a618578af5f94892f395", &untouched));
    CU_ASSERT(!digest_from_hex("06b05ab6733a618578af5f94892f39500", &untouched));
    CU_ASSERT(!digest_from_hex("06b05ab6733a618578af5f94892f395g", &untouched));
    CU_ASSERT(!digest_from_hex("06B05AB6733A618578AF5F94892F3950", &untouched));
    CU_ASSERT(digest_equal(&d, &untouched));
}

static void test_sha256(void)
{
    static const char ABC[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    struct err err = {.st = ST_OK};
    char hex[SHA256_HEX_SIZE];
    CHECK_OK(sha256_of("", 0, hex, &err), err);
    CHECK_TEXT(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_OK(sha256_of(NULL, 0, hex, &err), err);
    CHECK_TEXT(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK_OK(sha256_of("abc", 3, hex, &err), err);
    CHECK_TEXT(hex, ABC);

    struct sha256_state *s = NULL;
    CHECK_OK(sha256_open(&s, &err), err);
    CHECK_OK(sha256_update(s, "a", 1, &err), err);
    CHECK_OK(sha256_update(s, NULL, 0, &err), err);
    CHECK_OK(sha256_update(s, "bc", 2, &err), err);
    CHECK_OK(sha256_finish(s, hex, &err), err);
    CHECK_TEXT(hex, ABC);
    sha256_close(&s);
    CU_ASSERT_PTR_NULL(s);
    sha256_close(&s);
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"XXH3 golden values", test_xxh3_golden},
        {"XXH3 in pieces", test_xxh3_stream},
        {"hexadecimal", test_hex},
        {"SHA-256", test_sha256},
    };
    return base_test_main("base digest", TESTS, N_OF(TESTS));
}
