/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/npy.h"
#include "tests/formats/fixture.h"

static const char FILE_NAME[] = "t.npy";

static void write_array(enum dtype dt, unsigned rank, const uint64_t *shape, const void *data,
                        size_t size)
{
    struct bytes b = {0};
    struct err err = {0};
    CU_ASSERT_EQUAL(format_npy_header(dt, rank, shape, &b, &err), ST_OK);
    CU_ASSERT_EQUAL(b.size % 64, 0);
    bytes_append(&b, data, size);
    fixture_file(FILE_NAME, b.data, b.size);
    bytes_free(&b);
}

/* Bytes that numpy.save of NumPy 1.24 writes for float32 zeros of these shapes. */
static void test_bytes(void)
{
    static const struct {
        unsigned rank;
        uint64_t shape[3];
        const char *text;
    } cases[] = {{0, {0}, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }"},
                 {1, {3}, "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"},
                 {3, {2, 0, 4}, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0, 4), }"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes b = {0};
        struct err err = {0};
        CU_ASSERT_EQUAL(format_npy_header(DT_F32, cases[i].rank, cases[i].shape, &b, &err), ST_OK);
        CU_ASSERT_EQUAL_FATAL(b.size, 128);
        CU_ASSERT_EQUAL(memcmp(b.data, "\x93NUMPY\x01\x00\x76\x00", 10), 0);
        CU_ASSERT_EQUAL(memcmp(b.data + 10, cases[i].text, strlen(cases[i].text)), 0);
        CU_ASSERT_EQUAL(b.data[127], '\n');
        CU_ASSERT_EQUAL(b.data[126], ' ');
        bytes_free(&b);
    }
}

static void test_round_trip(void)
{
    static const enum dtype types[] = {DT_F64, DT_F32, DT_F16, DT_BF16, DT_I64,
                                       DT_I8,  DT_U64, DT_U8,  DT_BOOL};
    const uint64_t shape[3] = {2, 3, 5};
    uint8_t data[30 * 8] = {1, 2, 3};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct format_npy a;
        struct err err = {0};
        int fd = -1;
        write_array(types[i], 3, shape, data, 30 * dtype_size(types[i]));
        CU_ASSERT_EQUAL_FATAL(format_npy_open(FILE_NAME, &fd, &a, &err), ST_OK);
        CU_ASSERT_EQUAL(a.dtype, types[i] == DT_BF16 ? DT_U16 : types[i]);
        CU_ASSERT_EQUAL(a.rank, 3);
        CU_ASSERT_EQUAL(memcmp(a.shape, shape, sizeof shape), 0);
        CU_ASSERT_EQUAL(a.n_elements, 30);
        CU_ASSERT_EQUAL(a.offset, 128);
        close(fd);
    }
    struct bytes b = {0};
    struct err err = {0};
    CU_ASSERT_EQUAL(format_npy_header(DT_F8_E4M3, 1, shape, &b, &err), ST_USAGE);
    bytes_free(&b);
}

static void refused(const void *file, size_t size, const char *why)
{
    struct format_npy a;
    struct err err = {0};
    int fd = 7;
    fixture_file(FILE_NAME, file, size);
    CU_ASSERT_EQUAL(format_npy_open(FILE_NAME, &fd, &a, &err), ST_FORMAT);
    CU_ASSERT_EQUAL(fd, -1);
    CU_ASSERT(fixture_says(&err, why));
}

/* A version 1.0 file with this header and so many bytes behind it. */
static void refused_header(const char *header, size_t behind, const char *why)
{
    struct bytes b = {0};
    bytes_append(&b, "\x93NUMPY\x01\x00", 8);
    bytes_put_u8(&b, (uint8_t)strlen(header));
    bytes_put_u8(&b, 0);
    bytes_append(&b, header, strlen(header));
    for (size_t i = 0; i < behind; i++)
        bytes_put_u8(&b, 0);
    refused(b.data, b.size, why);
    bytes_free(&b);
}

static void test_refusals(void)
{
    refused("", 0, "not a .npy");
    refused("\x93NUMPY\x01\x00\x76", 9, "not a .npy");
    refused("\x93NUMPX\x01\x00\x76\x00", 10, "not a .npy");
    refused("\x93NUMPY\x09\x00\x76\x00", 10, "version 9");
    refused("\x93NUMPY\x01\x00\x76\x00{}", 12, "header of 118 bytes");
    refused("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14, "header of 4294967295 bytes");
    refused_header("{}", 0, "missing");
    refused_header("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", 4, "False");
    refused_header("{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }", 4, ">f4");
    refused_header("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, "word");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", 4, "expected");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", 5, "expected");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", 4, "whole");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", 4, "\"x\"");
    refused_header("{'descr': '<f4', 'descr': '<f4', 'shape': (1,), }", 4, "\"descr\"");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), } x", 4, "nothing");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296,4294967296),}", 0,
                   "overflows");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,),}", 0,
                   "2^64");
    refused_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1", 4, "\",\" or");
}

/* Every shorter file is refused, whatever was cut. */
static void test_cut(void)
{
    const uint64_t shape[2] = {2, 2};
    struct bytes b = {0};
    struct err err = {0};
    CU_ASSERT_EQUAL(format_npy_header(DT_F32, 2, shape, &b, &err), ST_OK);
    for (int i = 0; i < 16; i++)
        bytes_put_u8(&b, 0);
    for (size_t size = 0; size < b.size; size++)
        refused(b.data, size, FILE_NAME);
    bytes_free(&b);
}

int main(void)
{
    static const struct fixture_case cases[] = {{"bytes", test_bytes},
                                                {"round trip", test_round_trip},
                                                {"refusals", test_refusals},
                                                {"cut", test_cut}};
    return fixture_run("npy", cases, sizeof cases / sizeof cases[0]);
}
