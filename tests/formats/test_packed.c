/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/formats/recipe_fixture.h"

#include "formats/packed.h"
#include "formats/packed_internal.h"

#include <pthread.h>
#include <zstd.h>

static struct err err;

static uint64_t next(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Sums of uniform numbers: near enough to weights. */
static double bell(uint64_t *state)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(next(state) >> 11) * 0x1p-53;
    return (sum - 6) * 0.02;
}

static void put_element(enum dtype dt, double x, uint8_t *dst)
{
    float f = (float)x;
    uint16_t h = dt == DT_F16 ? f16_from_f32(f) : bf16_from_f32(f);
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (dt == DT_F64)
        memcpy(dst, &x, sizeof x);
    else if (dt == DT_F32)
        memcpy(dst, &f, sizeof f);
    else if (dtype_is_computable(dt))
        memcpy(dst, &h, sizeof h);
    else
        memcpy(dst, &bits, dtype_size(dt));
}

static bool says(const char *part)
{
    return fixture_says(&err, part);
}

/* ---- planes -------------------------------------------------------------------------------- */

static void test_planes(void)
{
    /* BF16 1.0 is 0x3F80: the exponent 0x7F alone in the high plane, mantissa and sign in the low.
     */
    const uint8_t one[4] = {0x80, 0x3F, 0x80, 0xBF};
    uint8_t planes[4], back[4];
    packed_split(DT_BF16, one, 2, planes);
    CU_ASSERT_EQUAL(memcmp(planes, (const uint8_t[]){0x00, 0x01, 0x7F, 0x7F}, 4), 0);
    packed_join(DT_BF16, planes, 2, back);
    CU_ASSERT_EQUAL(memcmp(back, one, 4), 0);
    /* integers are not turned */
    packed_split(DT_U16, one, 2, planes);
    CU_ASSERT_EQUAL(memcmp(planes, (const uint8_t[]){0x80, 0x80, 0x3F, 0xBF}, 4), 0);
    for (int dt = 0; dt < DT_UNKNOWN; dt++) {
        enum { N = 29 };
        uint8_t a[N * 8], b[N * 8], c[N * 8];
        uint64_t state = (uint64_t)dt;
        for (size_t i = 0; i < sizeof a; i++)
            a[i] = (uint8_t)next(&state);
        packed_split((enum dtype)dt, a, N, b);
        packed_join((enum dtype)dt, b, N, c);
        CU_ASSERT_EQUAL(memcmp(a, c, N * dtype_size((enum dtype)dt)), 0);
    }
}

/* ---- segments ------------------------------------------------------------------------------ */

static struct packed_coded code(enum dtype dt, const uint8_t *elements, const uint8_t *base,
                                size_t n, size_t *size)
{
    struct packed_coder *coder = NULL;
    struct packed_coded coded = {0};
    struct bytes data = {0};
    size_t element = dtype_size(dt);
    uint8_t *back = fixture_zeroed(n, element), *scratch = fixture_zeroed(n, element);
    CU_ASSERT_EQUAL_FATAL(packed_coder_open(&coder, &err), ST_OK);
    CU_ASSERT_EQUAL(packed_segment_encode(coder, dt, elements, base, n, &coded, &data, &err),
                    ST_OK);
    CU_ASSERT_EQUAL(
        packed_segment_decode(coder, dt, &coded, data.data, base, n, back, scratch, &err), ST_OK);
    CU_ASSERT_EQUAL(memcmp(back, elements, n * element), 0);
    CU_ASSERT_EQUAL(packed_coded_bytes(&coded), data.size);
    *size = data.size;
    bytes_free(&data);
    packed_coder_close(&coder);
    free(back);
    free(scratch);
    return coded;
}

/* N53: what splitting gains on weights, and that noise costs next to nothing. */
static void test_gain(void)
{
    enum { N = 100000 };
    uint8_t *bf16 = fixture_zeroed(N, 2), *noise = fixture_zeroed(N, 4);
    size_t split, whole, size;
    uint64_t state = 1;
    for (size_t i = 0; i < N; i++)
        put_element(DT_BF16, bell(&state), bf16 + 2 * i);
    for (size_t i = 0; i < N * 4; i++)
        noise[i] = (uint8_t)next(&state);
    (void)code(DT_BF16, bf16, NULL, N, &split);
    (void)code(DT_U8, bf16, NULL, 2 * N, &whole);
    CU_ASSERT(split < whole);
    CU_ASSERT((double)split < 0.68 * 2 * N); /* the entropy of these is 0.66 */
    struct packed_coded c = code(DT_F32, noise, NULL, N, &size);
    CU_ASSERT(size <= (size_t)N * 4 + 4 * 64);
    CU_ASSERT_EQUAL(c.mode, MODE_PLANES);
    memset(noise, 0, (size_t)N * 4);
    (void)code(DT_F32, noise, NULL, N, &size);
    CU_ASSERT(size < 400);
    free(bf16);
    free(noise);
}

static void test_deltas(void)
{
    enum { N = 20000 };
    uint8_t *base = fixture_zeroed(N, 4), *same = fixture_zeroed(N, 4);
    size_t size;
    uint64_t state = 5;
    for (size_t i = 0; i < N; i++)
        put_element(DT_F32, bell(&state), base + 4 * i);
    memcpy(same, base, (size_t)N * 4);
    struct packed_coded c = code(DT_F32, same, base, N, &size);
    CU_ASSERT_EQUAL(c.mode, MODE_SAME);
    CU_ASSERT_EQUAL(size, 0);
    CU_ASSERT(c.plain_size > 50000);
    same[0] ^= 1; /* first and last element */
    same[4 * N - 1] ^= 0x80;
    c = code(DT_F32, same, base, N, &size);
    CU_ASSERT_EQUAL(c.mode, MODE_SPARSE);
    CU_ASSERT(size < 64);
    for (size_t i = 0; i < N; i += 2) /* half of the lowest bytes */
        same[4 * i] ^= (uint8_t)(1 + next(&state) % 3);
    c = code(DT_F32, same, base, N, &size);
    CU_ASSERT_EQUAL(c.mode, MODE_DELTA);
    CU_ASSERT((double)size < 0.1 * 4 * N);
    for (size_t i = 0; i < (size_t)N * 4; i++) /* nothing in common */
        same[i] = (uint8_t)(i % 4 == 0 ? 7 : 0);
    c = code(DT_F32, same, base, N, &size);
    CU_ASSERT_EQUAL(c.mode, MODE_PLANES);
    CU_ASSERT(size < 200);
    for (size_t n = 1; n < 9; n++) /* small ones */
        (void)code(DT_F32, same, base, n, &size);
    free(base);
    free(same);
}

/* ---- whole files --------------------------------------------------------------------------- */

struct contents {
    struct format_recipe *r;
    struct format_tensor_spec *specs;
    size_t n;
    uint8_t **data;
};

static size_t spec_row(const struct format_tensor_spec *s)
{
    return (size_t)(s->rank > 1 ? s->shape[1] : 1) * dtype_size(s->dtype);
}

static struct contents make_contents(struct format_recipe *r)
{
    struct contents c = {.r = r};
    uint64_t state = 9;
    CU_ASSERT_EQUAL_FATAL(format_recipe_tensors(r, &c.specs, &c.n, &err), ST_OK);
    c.data = fixture_zeroed(c.n, sizeof *c.data);
    for (size_t i = 0; i < c.n; i++) {
        size_t n = (size_t)c.specs[i].shape[0] * spec_row(&c.specs[i]);
        c.data[i] = fixture_zeroed(n, 1);
        size_t element = dtype_size(c.specs[i].dtype);
        for (size_t k = 0; k < n / element; k++)
            put_element(c.specs[i].dtype, bell(&state), c.data[i] + k * element);
    }
    return c;
}

static void free_contents(struct contents *c)
{
    for (size_t i = 0; i < c->n; i++)
        free(c->data[i]);
    free(c->data);
    format_tensor_specs_free(&c->specs, c->n);
    format_recipe_free(&c->r);
}

static enum status rows_of(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                           struct err *e)
{
    const struct contents *c = ctx;
    size_t row = spec_row(&c->specs[tensor]);
    if (first + n > c->specs[tensor].shape[0])
        return err_set(e, ST_INTERNAL, "rows outside");
    memcpy(dst, c->data[tensor] + (size_t)first * row, (size_t)n * row);
    return ST_OK;
}

static void check_contents(const struct contents *c, const char *path, size_t cache)
{
    struct format_packed *p = NULL;
    enum status st = format_packed_open(path, cache, &p, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL_FATAL(st, ST_OK);
    CU_ASSERT_EQUAL(format_packed_verify(p, &err), ST_OK);
    const struct packed_layout *l = format_packed_layout(p);
    CU_ASSERT_EQUAL_FATAL(l->n_tensors, c->n);
    for (uint32_t i = 0; i < c->n; i++) {
        size_t row = spec_row(&c->specs[i]);
        uint64_t rows = c->specs[i].shape[0];
        uint8_t *back = fixture_zeroed((size_t)rows, row);
        CU_ASSERT_STRING_EQUAL(l->tensors[i].name, c->specs[i].name);
        CU_ASSERT_EQUAL(format_packed_rows(p, i, 0, rows, back, &err), ST_OK);
        CU_ASSERT_EQUAL(memcmp(back, c->data[i], (size_t)rows * row), 0);
        memset(back, 0, row);
        CU_ASSERT_EQUAL(format_packed_rows(p, i, rows - 1, 1, back, &err), ST_OK);
        CU_ASSERT_EQUAL(memcmp(back, c->data[i] + (size_t)(rows - 1) * row, row), 0);
        CU_ASSERT_EQUAL(format_packed_rows(p, i, rows, 1, back, NULL), ST_USAGE);
        format_packed_prefetch(p, i, rows - 1);
        free(back);
    }
    format_packed_trim(p);
    format_packed_close(&p);
    CU_ASSERT_PTR_NULL(p);
}

/* zstd's own decoder must find nothing but frames it knows. */
static void check_zstd(const char *path)
{
    uint8_t *file = NULL;
    size_t size = 0;
    CU_ASSERT_EQUAL_FATAL(file_read_all(path, 1 << 26, &file, &size, &err), ST_OK);
    unsigned long long all = 0;
    for (size_t at = 0; at < size;) {
        size_t frame = ZSTD_findFrameCompressedSize(file + at, size - at);
        CU_ASSERT_FATAL(!ZSTD_isError(frame));
        all += ZSTD_getFrameContentSize(file + at, frame);
        at += frame;
    }
    uint8_t *out = fixture_zeroed((size_t)all + 1, 1);
    CU_ASSERT_EQUAL(ZSTD_decompress(out, (size_t)all, file, size), (size_t)all);
    free(out);
    free(file);
}

static void write_contents(const struct contents *c, const char *path, uint64_t chunk_bytes,
                           bool deltas, struct packed_report *reports)
{
    struct packed_layout *l = NULL;
    struct contents copy = *c;
    CU_ASSERT_EQUAL_FATAL(format_packed_plan(c->r, chunk_bytes, deltas, &l, &err), ST_OK);
    CU_ASSERT_EQUAL_FATAL(format_packed_write(path, l, rows_of, &copy, reports, &err), ST_OK);
    format_packed_layout_free(&l);
}

static void test_round_trip(void)
{
    static const enum dtype DTYPES[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    static const uint64_t ROWS[] = {1, 2, 63, 64, 65, 1000}, WIDTHS[] = {1, 3, 17};
    for (size_t d = 0; d < 4; d++)
        for (size_t i = 0; i < 6; i++)
            for (size_t k = 0; k < 3; k++) {
                struct contents c = make_contents(fixture_lookup(ROWS[i], WIDTHS[k], DTYPES[d]));
                write_contents(&c, "round.ttz", 512, true, NULL);
                check_contents(&c, "round.ttz", 1);
                free_contents(&c);
            }
    for (int deltas = 0; deltas < 2; deltas++) {
        struct contents c = make_contents(fixture_fanout());
        write_contents(&c, "round.ttz", 100, deltas, NULL);
        check_contents(&c, "round.ttz", 0);
        check_zstd("round.ttz");
        free_contents(&c);
    }
    struct contents c = make_contents(fixture_projected(50, 9, DT_F16, true));
    write_contents(&c, "round.ttz", 0, true, NULL);
    check_contents(&c, "round.ttz", 0);
    free_contents(&c);
}

static const char *golden_path;

static void write_golden(void)
{
    struct contents c = make_contents(fixture_fanout());
    write_contents(&c, golden_path, 100, true, NULL);
    free_contents(&c);
}

/* A file of version 1 stays readable. */
static void test_golden(void)
{
    const char *root = getenv("TOKENTAB_SOURCE_DIR");
    char *path = path_join(root != NULL ? root : ".", "tests/formats/golden/packed-v1.ttz");
    struct contents c = make_contents(fixture_fanout());
    check_contents(&c, path, 0);
    free_contents(&c);
    free(path);
}

/* A profile's table near the bulk one: stored for a fraction of a table. */
static void check_profile(enum dtype dt, double share_changed, double limit)
{
    enum { ROWS = 300, WIDTH = 128 };
    struct format_recipe *r = fixture_lookup(ROWS, WIDTH, dt);
    r->version = 2;
    r->n_groups = 2;
    r->groups = realloc(r->groups, 2 * sizeof *r->groups);
    r->groups[1] = r->groups[0];
    r->profiles = fixture_zeroed(1, sizeof *r->profiles);
    r->n_profiles = 1;
    r->profiles[0] = (struct format_profile){.max_rows = 1, .evaluation_rows = 1};
    r->profiles[0].outputs = fixture_zeroed(1, sizeof *r->outputs);
    r->profiles[0].outputs[0] = fixture_placed("output", 1, 0, WIDTH);
    struct contents c = make_contents(r);
    size_t element = dtype_size(dt);
    uint64_t state = 11;
    memcpy(c.data[1], c.data[0], ROWS * WIDTH * element);
    for (size_t i = 0; i < ROWS * WIDTH; i++)
        if ((double)(next(&state) % 1000000) < share_changed * 1e6)
            c.data[1][i * element] ^= 1;
    struct packed_report reports[2];
    write_contents(&c, "profile.ttz", 0, true, reports);
    check_contents(&c, "profile.ttz", 0);
    uint64_t raw = ROWS * WIDTH * element;
    CU_ASSERT_EQUAL(reports[0].raw_bytes, raw);
    CU_ASSERT_EQUAL(reports[0].raw_of_delta, 0);
    CU_ASSERT_EQUAL(reports[1].raw_of_delta, raw);
    CU_ASSERT_EQUAL(reports[1].stored_of_delta,
                    reports[1].planes_bytes + reports[1].delta_bytes + reports[1].sparse_bytes);
    CU_ASSERT(reports[1].planes_of_delta > raw / 2);
    CU_ASSERT((double)reports[1].stored_of_delta < limit * (double)raw);
    struct format_packed *p = NULL;
    struct packed_report read[2];
    CU_ASSERT_EQUAL_FATAL(format_packed_open("profile.ttz", 0, &p, &err), ST_OK);
    CU_ASSERT_EQUAL(format_packed_file_reports(p, read, &err), ST_OK);
    CU_ASSERT_EQUAL(memcmp(read, reports, sizeof read), 0);
    format_packed_close(&p);
    free_contents(&c);
}

static void test_profiles(void)
{
    check_profile(DT_F32, 0.8, 0.3);
    check_profile(DT_BF16, 0.0002, 0.01);
    check_profile(DT_F64, 0, 0.001);
}

/* N55: any process may make any chunk. */
static void test_assembled(void)
{
    struct contents c = make_contents(fixture_fanout());
    struct packed_layout *l = NULL;
    struct bytes head = {0}, entries = {0}, tail = {0};
    write_contents(&c, "serial.ttz", 100, true, NULL);
    CU_ASSERT_EQUAL_FATAL(format_packed_plan(c.r, 100, true, &l, &err), ST_OK);
    uint64_t n = format_packed_total_chunks(l);
    CU_ASSERT(n > 20);
    struct packed_chunk *chunks = fixture_zeroed((size_t)n, sizeof *chunks);
    for (uint64_t i = n; i-- > 0;) { /* backwards */
        uint32_t tensor;
        uint64_t chunk;
        format_packed_locate(l, i, &tensor, &chunk);
        CU_ASSERT_EQUAL(format_packed_chunk_encode(l, tensor, chunk, rows_of, &c, &chunks[i], &err),
                        ST_OK);
    }
    CU_ASSERT_EQUAL(format_packed_head(&head, &err), ST_OK);
    for (uint64_t i = 0; i < n; i++) {
        bytes_append(&head, chunks[i].data.data, chunks[i].data.size);
        bytes_append(&entries, chunks[i].entry.data, chunks[i].entry.size);
        format_packed_chunk_free(&chunks[i]);
    }
    CU_ASSERT_EQUAL(format_packed_tail(l, &entries, &tail, &err), ST_OK);
    bytes_append(&head, tail.data, tail.size);
    uint8_t *serial = NULL;
    size_t size = 0;
    CU_ASSERT_EQUAL_FATAL(file_read_all("serial.ttz", 1 << 20, &serial, &size, &err), ST_OK);
    CU_ASSERT_EQUAL(size, head.size);
    CU_ASSERT_EQUAL(memcmp(serial, head.data, size < head.size ? size : head.size), 0);
    bytes_free(&tail);
    entries.size--;
    CU_ASSERT_EQUAL(format_packed_tail(l, &entries, &tail, &err), ST_INTERNAL);
    err_clear(&err);
    free(serial);
    free(chunks);
    bytes_free(&head);
    bytes_free(&entries);
    format_packed_layout_free(&l);
    free_contents(&c);
}

static void test_share(void)
{
    struct contents c = make_contents(fixture_lookup(1000, 4, DT_F32));
    struct packed_sharing s;
    for (size_t i = 0; i < 1000; i++) /* row i is row i % 10, but for row 999 */
        if (i != 999)
            memcpy(c.data[0] + i * 16, c.data[0] + i % 10 * 16, 16);
    CU_ASSERT_EQUAL(format_packed_share(rows_of, &c, 0, 1000, 16, &s, &err), ST_OK);
    CU_ASSERT_EQUAL(s.n_distinct, 11);
    CU_ASSERT_FATAL(s.pays);
    CU_ASSERT_EQUAL(s.index[37], 7);
    CU_ASSERT_EQUAL(s.firsts[7], 7);
    CU_ASSERT_EQUAL(s.index[999], 10);
    CU_ASSERT_EQUAL(s.firsts[10], 999);
    format_packed_sharing_free(&s);
    /* -0 and +0 are two rows */
    memset(c.data[0], 0, 16 * 1000);
    c.data[0][16 * 5 + 3] = 0x80;
    CU_ASSERT_EQUAL(format_packed_share(rows_of, &c, 0, 1000, 16, &s, &err), ST_OK);
    CU_ASSERT_EQUAL(s.n_distinct, 2);
    CU_ASSERT(s.pays);
    format_packed_sharing_free(&s);
    /* a constant table needs no index; distinct rows pay none */
    c.data[0][16 * 5 + 3] = 0;
    CU_ASSERT_EQUAL(format_packed_share(rows_of, &c, 0, 1000, 16, &s, &err), ST_OK);
    CU_ASSERT_EQUAL(s.n_distinct, 1);
    CU_ASSERT_FALSE(s.pays);
    CU_ASSERT_PTR_NULL(s.index);
    for (uint32_t i = 0; i < 800; i++)
        memcpy(c.data[0] + i * 16, &i, sizeof i);
    CU_ASSERT_EQUAL(format_packed_share(rows_of, &c, 0, 1000, 16, &s, &err), ST_OK);
    CU_ASSERT_EQUAL(s.n_distinct, 800); /* 800 * 16 + 1000 * 4 is more than 1000 * 16 */
    CU_ASSERT_FALSE(s.pays);
    free_contents(&c);
}

/* ---- hostile files ------------------------------------------------------------------------- */

/* Opens and decodes everything; the worst that happened. */
static enum status read_everything(const char *path)
{
    struct format_packed *p = NULL;
    err_clear(&err);
    enum status st = format_packed_open(path, 0, &p, &err);
    if (st == ST_OK)
        st = format_packed_verify(p, &err);
    format_packed_close(&p);
    return st;
}

static void test_damaged(void)
{
    struct contents c = make_contents(fixture_fanout());
    uint8_t *file = NULL;
    size_t size = 0, silent = 0;
    write_contents(&c, "good.ttz", 100, true, NULL);
    CU_ASSERT_EQUAL_FATAL(file_read_all("good.ttz", 1 << 20, &file, &size, &err), ST_OK);
    for (size_t n = 0; n < size; n += 37) {
        fixture_file("bad.ttz", file, n);
        CU_ASSERT_EQUAL(read_everything("bad.ttz"), ST_FORMAT);
    }
    uint8_t *longer = fixture_zeroed(size + 1, 1);
    memcpy(longer, file, size);
    fixture_file("bad.ttz", longer, size + 1);
    CU_ASSERT_EQUAL(read_everything("bad.ttz"), ST_FORMAT);
    free(longer);
    uint64_t state = 2;
    for (size_t at = 0; at < size; at += 5) {
        uint8_t kept = file[at];
        file[at] = (uint8_t)(kept ^ (1u << (next(&state) % 8)));
        fixture_file("bad.ttz", file, size);
        enum status st = read_everything("bad.ttz");
        if (st == ST_OK) /* the head's version numbers bind nothing */
            silent += at < 20 || at >= 32;
        else
            CU_ASSERT_EQUAL(st, ST_FORMAT);
        file[at] = kept;
    }
    CU_ASSERT_EQUAL(silent, 0);
    free(file);
    free_contents(&c);
}

/* A file of one tensor whose only frame is `frame`. */
static void write_hostile(const char *path, uint64_t rows, const void *frame, size_t frame_size)
{
    struct packed_segment segment = {.width = 1};
    char name[] = "data";
    struct packed_tensor t = {.name = name,
                              .dtype = DT_U8,
                              .rank = 1,
                              .rows = rows,
                              .width = 1,
                              .rows_per_chunk = rows,
                              .segments = &segment,
                              .n_segments = 1};
    struct packed_layout l = {.tensors = &t, .n_tensors = 1};
    struct bytes head = {0}, entries = {0}, tail = {0};
    struct digest d = {{0}};
    struct packed_coded coded = {.mode = MODE_PLANES, .sizes = {(uint32_t)frame_size}};
    bytes_append(&entries, d.bytes, sizeof d.bytes);
    packed_coded_put(&entries, &coded, 1);
    CU_ASSERT_EQUAL(format_packed_head(&head, &err), ST_OK);
    bytes_append(&head, frame, frame_size);
    CU_ASSERT_EQUAL(format_packed_tail(&l, &entries, &tail, &err), ST_OK);
    bytes_append(&head, tail.data, tail.size);
    fixture_file(path, head.data, head.size);
    bytes_free(&head);
    bytes_free(&entries);
    bytes_free(&tail);
}

/* N54: a frame that claims 1 GiB is refused before anything is allocated for it. */
static void test_hostile(void)
{
    enum { BLOCK = 1 << 17 };
    struct bytes frame = {0};
    bytes_put_u32(&frame, ZSTD_MAGICNUMBER);
    bytes_put_u8(&frame, 0xA0); /* content size of 4 bytes, single segment, no checksum */
    bytes_put_u32(&frame, 1u << 30);
    for (uint32_t i = 0; i < (1u << 30) / BLOCK; i++) { /* runs of zeros */
        uint32_t head = (uint32_t)BLOCK << 3 | 1u << 1 | (i + 1 == (1u << 30) / BLOCK);
        const uint8_t bytes[4] = {(uint8_t)head, (uint8_t)(head >> 8), (uint8_t)(head >> 16), 0};
        bytes_append(&frame, bytes, sizeof bytes);
    }
    uint64_t before = fixture_peak_bytes();
    write_hostile("hostile.ttz", 100, frame.data, frame.size);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    CU_ASSERT(says("claims 1073741824 bytes, the directory says 100"));
    CU_ASSERT(says("tensor \"data\", chunk 0"));
    write_hostile("hostile.ttz", (uint64_t)1 << 30, frame.data, frame.size);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    CU_ASSERT(says("at most 8388608 bytes are allowed"));
    CU_ASSERT_EQUAL(format_unpack_file("hostile.ttz", "unpacked", 0, NULL), ST_FORMAT);
    CU_ASSERT_FALSE(file_exists("unpacked"));
    write_hostile("hostile.ttz", UINT64_MAX, frame.data, frame.size);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    CU_ASSERT(says("overflow"));
    /* without a content size; not a frame at all; two frames where one should be */
    const uint8_t unsized[] = {0x28, 0xB5, 0x2F, 0xFD, 0x00, 0x58, 0x01, 0x00, 0x00};
    write_hostile("hostile.ttz", 1, unsized, sizeof unsized);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    CU_ASSERT(says("content size"));
    write_hostile("hostile.ttz", 4, "abcd", 4);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    uint8_t two[128];
    size_t one = ZSTD_compress(two, 64, "abcd", 4, 3);
    memcpy(two + one, two, one);
    write_hostile("hostile.ttz", 4, two, 2 * one);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    CU_ASSERT(says("does not end where the directory says"));
    /* right in all but the digest of what it decodes to */
    write_hostile("hostile.ttz", 4, two, one);
    CU_ASSERT_EQUAL(read_everything("hostile.ttz"), ST_FORMAT);
    CU_ASSERT(says("do not match their digest"));
    CU_ASSERT(fixture_peak_bytes() - before < (uint64_t)64 << 20);
    bytes_free(&frame);
}

/* ---- any file ------------------------------------------------------------------------------ */

static void check_file(const uint8_t *data, size_t size, enum dtype dt)
{
    uint8_t *back = NULL;
    size_t back_size = 0;
    fixture_file("any", data, size);
    err_clear(&err);
    enum status st = format_pack_file("any", "any.ttz", dt, &err);
    if (st == ST_OK)
        st = format_unpack_file("any.ttz", "any.back", 0, &err);
    if (st != ST_OK)
        printf("\n    %s\n", err.message);
    CU_ASSERT_EQUAL_FATAL(st, ST_OK);
    CU_ASSERT_EQUAL_FATAL(file_read_all("any.back", 1 << 26, &back, &back_size, &err), ST_OK);
    CU_ASSERT_EQUAL(back_size, size);
    CU_ASSERT_EQUAL(memcmp(back, data, size), 0);
    free(back);
    CU_ASSERT_FALSE(file_exists("any.ttz.tmp"));
    CU_ASSERT_FALSE(file_exists("any.back.tmp"));
}

static void test_files(void)
{
    enum { SIZE = (3 << 20) + 7 };
    uint8_t *data = fixture_zeroed(SIZE, 1);
    static const size_t SIZES[] = {
        0, 1, 2, 3, 7, 8, 9, 4095, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, SIZE};
    uint64_t state = 4;
    for (size_t i = 0; i + 4 <= SIZE; i += 4)
        put_element(DT_F32, bell(&state), data + i);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        check_file(data, SIZES[i], i % 2 == 0 ? DT_UNKNOWN : DT_F64);
    check_file(data, 1001, DT_BF16);
    uint64_t packed = 0;
    char hex[SHA256_HEX_SIZE], again[SHA256_HEX_SIZE];
    check_file(data, SIZE, DT_UNKNOWN);
    CU_ASSERT_EQUAL(file_digests("any.ttz", hex, NULL, &packed, &err), ST_OK);
    CU_ASSERT(packed < SIZE * 86 / 100); /* the exponents' share; bytes as they lie: 93 % */
    CU_ASSERT_EQUAL(format_pack_file("any", "any.ttz", DT_UNKNOWN, &err), ST_OK);
    CU_ASSERT_EQUAL(file_digests("any.ttz", again, NULL, NULL, &err), ST_OK);
    CU_ASSERT_STRING_EQUAL(hex, again);
    (void)remove("any.back");
    CU_ASSERT_EQUAL(format_unpack_file("any.ttz", "any.back", SIZE - 1, &err), ST_FORMAT);
    CU_ASSERT(says("the limit is"));
    CU_ASSERT_FALSE(file_exists("any.back"));
    err_clear(&err);
    CU_ASSERT_EQUAL(format_unpack_file("any.ttz", "any.back", SIZE, &err), ST_OK);
    CU_ASSERT_EQUAL(format_unpack_file("any", "any.back2", 0, &err), ST_FORMAT);
    CU_ASSERT(says("not a packed file"));
    err_clear(&err);
    CU_ASSERT_EQUAL(format_pack_file("absent", "any.ttz", DT_UNKNOWN, &err), ST_FORMAT);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_pack_file("any", "absent/any.ttz", DT_UNKNOWN, &err), ST_IO);
    struct contents c = make_contents(fixture_lookup(4, 3, DT_F32));
    write_contents(&c, "tables.ttz", 0, true, NULL);
    err_clear(&err);
    CU_ASSERT_EQUAL(format_unpack_file("tables.ttz", "any.back2", 0, &err), ST_FORMAT);
    CU_ASSERT(says("a packed payload of tables"));
    err_clear(&err);
    free_contents(&c);
    free(data);
}

static void test_plan(void)
{
    struct format_recipe *r = fixture_lookup(4, (uint64_t)3 << 20, DT_F32);
    struct packed_layout *l = NULL;
    err_clear(&err);
    CU_ASSERT_EQUAL(format_packed_plan(r, 0, true, &l, &err), ST_FORMAT);
    CU_ASSERT(says("at most 8388608 bytes"));
    CU_ASSERT_PTR_NULL(l);
    err_clear(&err);
    format_recipe_free(&r);
    r = fixture_fanout();
    CU_ASSERT_EQUAL_FATAL(format_packed_plan(r, 280, true, &l, &err), ST_OK);
    CU_ASSERT_EQUAL(l->n_tensors, 6);
    CU_ASSERT_EQUAL(l->tensors[0].rows_per_chunk, 10);
    CU_ASSERT_EQUAL(format_packed_chunks(&l->tensors[0]), 4);
    CU_ASSERT_EQUAL(l->tensors[0].n_segments, 1);
    CU_ASSERT_FALSE(l->tensors[0].segments[0].has_base);
    CU_ASSERT_TRUE(l->tensors[3].segments[0].has_base);
    CU_ASSERT_EQUAL(l->tensors[3].segments[0].base_tensor, 0);
    CU_ASSERT_EQUAL(l->tensors[3].segments[0].base_column, 1);
    format_packed_layout_free(&l);
    CU_ASSERT_EQUAL_FATAL(format_packed_plan(r, 280, false, &l, &err), ST_OK);
    CU_ASSERT_FALSE(l->tensors[3].segments[0].has_base);
    format_packed_layout_free(&l);
    format_recipe_free(&r);
}

/* Two tensors of two columns each, which the caller ties together. */
static struct packed_layout *two_tensors(void)
{
    struct packed_layout *l = calloc(1, sizeof *l);
    CU_ASSERT_PTR_NOT_NULL_FATAL(l);
    l->tensors = calloc(2, sizeof *l->tensors);
    l->n_tensors = 2;
    for (size_t i = 0; i < 2; i++) {
        struct packed_tensor *t = &l->tensors[i];
        *t = (struct packed_tensor){.name = str_printf("t%zu", i),
                                    .dtype = DT_F32,
                                    .rank = 2,
                                    .rows = 3,
                                    .width = 2,
                                    .rows_per_chunk = 3,
                                    .segments = calloc(2, sizeof *t->segments),
                                    .n_segments = 2};
        t->segments[0] = (struct packed_segment){.width = 1};
        t->segments[1] = (struct packed_segment){.column = 1, .width = 1};
    }
    return l;
}

static enum status zero_rows(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                             struct err *fault)
{
    const struct packed_layout *l = ctx;
    (void)first;
    (void)fault;
    memset(dst, 0, (size_t)n * packed_row_bytes(&l->tensors[tensor]));
    return ST_OK;
}

/* A chunk whose base needs that chunk again would send its reader round for ever. */
static void test_circles(void)
{
    for (int i = 0; i < 3; i++) {
        struct packed_layout *l = two_tensors();
        struct packed_segment *a = &l->tensors[0].segments[1], *b = &l->tensors[1].segments[1];
        a->has_base = i != 2;
        a->base_tensor = i == 0 ? 0 : 1; /* the plain column beside it, or the other tensor's */
        b->has_base = i != 0;
        b->base_tensor = 0;
        err_clear(&err);
        enum status st = format_packed_write("circle.ttz", l, zero_rows, l, NULL, &err);
        CU_ASSERT_EQUAL(st, i == 2 ? ST_OK : ST_FORMAT);
        CU_ASSERT(i == 2 || says("has a base itself"));
        format_packed_layout_free(&l);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--golden") == 0) { /* writes one, to be looked at and kept */
        static const struct fixture_case WRITE = {"write a golden file", write_golden};
        golden_path = argv[2];
        return fixture_run("packed", &WRITE, 1);
    }
    static const struct fixture_case CASES[] = {
        {"hostile frames", test_hostile}, /* first: it looks at the peak of memory */
        {"planes", test_planes},
        {"gain", test_gain},
        {"deltas", test_deltas},
        {"plan", test_plan},
        {"every dtype and odd size", test_round_trip},
        {"golden file", test_golden},
        {"profiles", test_profiles},
        {"chunks made in any order", test_assembled},
        {"shared rows", test_share},
        {"cut and flipped copies", test_damaged},
        {"bases in a circle", test_circles},
        {"any file", test_files},
    };
    return fixture_run("packed", CASES, sizeof CASES / sizeof *CASES);
}
