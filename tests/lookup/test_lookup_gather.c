/* SPDX-License-Identifier: Apache-2.0 */
#include "lookup_fixture.h"

#include <pthread.h>

static struct tokentab_error terr;
static const char *dir_name = "gather.mapped";
static bool use_packed;

static struct tokentab_recipe *open_folder(const struct folder *f)
{
    struct tokentab_recipe *t = NULL;
    enum tokentab_status st = tokentab_open(f->dir, NULL, &t, &terr);
    if (st != TOKENTAB_OK)
        printf("\n    %s\n", terr.message);
    CU_ASSERT_EQUAL_FATAL(st, TOKENTAB_OK);
    CU_ASSERT_FALSE(tokentab_is_historical(t));
    return t;
}

static struct folder *make(struct format_recipe *r)
{
    return folder_make(dir_name, r, use_packed);
}

static void test_describe(void)
{
    struct folder *f = make(fixture_fanout());
    struct tokentab_recipe *t = open_folder(f);
    struct tokentab_output_info info;
    CU_ASSERT_EQUAL(tokentab_num_embeddings(t), FIXTURE_V);
    CU_ASSERT_STRING_EQUAL(tokentab_kind(t), "fanout");
    CU_ASSERT_EQUAL(tokentab_n_outputs(t), 4);
    CU_ASSERT_EQUAL(tokentab_output(t, 3, &info), TOKENTAB_OK);
    CU_ASSERT_STRING_EQUAL(info.name, "w");
    CU_ASSERT_EQUAL(info.dtype, TOKENTAB_F64);
    CU_ASSERT_EQUAL(info.width, 2);
    CU_ASSERT_EQUAL(tokentab_output(t, 4, &info), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_output_find(t, "v"), 2);
    CU_ASSERT_EQUAL(tokentab_output_find(t, "V"), -1);
    CU_ASSERT_EQUAL(tokentab_n_routes(t), 3);
    CU_ASSERT_STRING_EQUAL(tokentab_route_name(t, 2), "profile1");
    CU_ASSERT_PTR_NULL(tokentab_route_name(t, 3));
    CU_ASSERT_EQUAL(tokentab_route(t, 0), 1);
    CU_ASSERT_EQUAL(tokentab_route(t, 1), 1);
    CU_ASSERT_EQUAL(tokentab_route(t, 2), 2);
    CU_ASSERT_EQUAL(tokentab_route(t, 15), 2);
    CU_ASSERT_EQUAL(tokentab_route(t, 16), 0);
    CU_ASSERT_EQUAL(tokentab_route_max_rows(t, 2), 15);
    CU_ASSERT_EQUAL(tokentab_route_max_rows(t, 0), UINT64_MAX);
    CU_ASSERT_STRING_EQUAL(tokentab_version(), "0.1.0");
    tokentab_close(&t);
    CU_ASSERT_PTR_NULL(t);
    tokentab_close(&t);
    tokentab_close(NULL);
    folder_free(&f);
}

/* Ids of one layout: shape and strides over a buffer, first element at `start`. */
struct layout {
    const char *name;
    unsigned rank;
    int64_t shape[4], strides[4];
    size_t start;
    bool plain; /* strides NULL */
};

static const struct layout LAYOUTS[] = {
    {"scalar", 0, {0}, {0}, 5, true},
    {"(1)", 1, {1}, {0}, 3, true},
    {"(20)", 1, {20}, {0}, 0, true},
    {"(1,7)", 2, {1, 7}, {0}, 0, true},
    {"(7,1)", 2, {7, 1}, {0}, 0, true},
    {"(2,3,4)", 3, {2, 3, 4}, {0}, 1, true},
    {"(0)", 1, {0}, {0}, 0, true},
    {"(2,0)", 2, {2, 0}, {0}, 0, true},
    {"(0,3,2)", 3, {0, 3, 2}, {0}, 0, true},
    {"(0,2^61)", 2, {0, INT64_C(1) << 61}, {0}, 0, true},
    {"expanded", 2, {3, 5}, {0, 1}, 2, false},
    {"all one", 2, {4, 5}, {0, 0}, 2, false},
    {"flipped", 1, {11}, {-1}, 20, false},
    {"interleaved", 2, {4, 3}, {6, 2}, 1, false},
    {"transposed", 2, {3, 4}, {1, 3}, 0, false},
    {"flipped rows", 3, {2, 2, 3}, {-8, 4, -1}, 20, false},
};

static int64_t offset_of(const struct layout *l, uint64_t flat)
{
    int64_t offset = 0, step = 1;
    for (unsigned d = l->rank; d-- > 0;) {
        int64_t at = (int64_t)(flat % (uint64_t)l->shape[d]);
        flat /= (uint64_t)l->shape[d];
        offset += at * (l->plain ? step : l->strides[d]);
        step *= l->shape[d];
    }
    return offset;
}

/* Gathers all outputs, contiguous or strided, and compares with the folder's data. */
static void check_layout(const struct folder *f, struct tokentab_recipe *t, const struct layout *l,
                         bool wide, int route, bool strided)
{
    enum { N_BUFFER = 64, ROOM = 64 * 64 };
    int64_t long_ids[N_BUFFER];
    int32_t short_ids[N_BUFFER];
    uint64_t state = 3, n = 1;
    for (int i = 0; i < N_BUFFER; i++) {
        long_ids[i] = (int64_t)(folder_random(&state) % FIXTURE_V);
        short_ids[i] = (int32_t)long_ids[i];
    }
    for (unsigned d = 0; d < l->rank; d++)
        n *= (uint64_t)l->shape[d];
    struct tokentab_ids ids = {.data = wide ? (const void *)(long_ids + l->start)
                                            : (const void *)(short_ids + l->start),
                               .type = wide ? TOKENTAB_I64 : TOKENTAB_I32,
                               .rank = l->rank,
                               .shape = l->shape,
                               .strides = l->plain ? NULL : l->strides};
    static uint8_t room[4][ROOM], before[ROOM];
    struct tokentab_request q[4];
    int64_t strides[4][5];
    memset(room, 0xA5, sizeof room);
    memset(before, 0xA5, sizeof before);
    for (size_t j = 0; j < 4; j++) {
        struct tokentab_output_info info;
        CU_ASSERT_EQUAL(tokentab_output(t, j, &info), TOKENTAB_OK);
        q[j] = (struct tokentab_request){.output = j, .data = room[j], .capacity_bytes = ROOM};
        if (!strided)
            continue;
        /* columns outermost, backwards: element (i..., c) at (width - 1 - c) * n + flat(i) */
        int64_t step = 1;
        for (unsigned d = l->rank; d-- > 0;) {
            strides[j][d] = step;
            step *= l->shape[d];
        }
        strides[j][l->rank] = -(int64_t)n;
        q[j].strides = strides[j];
        q[j].data = room[j] + (info.width - 1) * n * tokentab_dtype_size(info.dtype);
    }
    enum tokentab_status st = tokentab_gather(t, &ids, route, q, 4, &terr);
    CU_ASSERT_EQUAL(st, TOKENTAB_OK);
    size_t at_route = route >= 0 ? (size_t)route : tokentab_route(t, n);
    bool same = true;
    for (size_t j = 0; j < 4; j++) {
        size_t row_bytes = folder_row_bytes(f, j);
        size_t element = j == 3 ? 8 : j == 2 ? 2 : 4, width = row_bytes / element;
        for (uint64_t i = 0; i < n; i++) {
            uint64_t id = (uint64_t)long_ids[(int64_t)l->start + offset_of(l, i)];
            const uint8_t *want = folder_row(f, at_route, j, id);
            for (size_t c = 0; c < width; c++) {
                size_t at = strided ? (width - 1 - c) * n + i : i * width + c;
                same = same && memcmp(room[j] + at * element, want + c * element, element) == 0;
            }
        }
        same = same && memcmp(room[j] + n * row_bytes, before, ROOM - n * row_bytes) == 0;
    }
    if (!same)
        printf("\n    layout %s, %s, route %d, strided %d\n", l->name, wide ? "int64" : "int32",
               route, strided);
    CU_ASSERT(same);
}

static void test_layouts(void)
{
    struct folder *f = make(fixture_fanout());
    struct tokentab_recipe *t = open_folder(f);
    for (size_t i = 0; i < sizeof LAYOUTS / sizeof *LAYOUTS; i++)
        for (int variant = 0; variant < 4; variant++)
            for (int route = -1; route < 3; route++)
                check_layout(f, t, &LAYOUTS[i], variant & 1, route, variant & 2);
    tokentab_trim(t);
    check_layout(f, t, &LAYOUTS[2], true, -1, false);
    tokentab_close(&t);
    folder_free(&f);
}

/* N19: an error touches nothing, whatever stands around the bad id. */
static void test_bounds(void)
{
    static const int64_t BAD[] = {-1, 4, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    struct folder *f = make(fixture_lookup(4, 3, DT_F32));
    struct tokentab_recipe *t = open_folder(f);
    uint8_t out[3000 * 12], sentinel[sizeof out];
    int64_t ids[3000];
    memset(sentinel, 0x5A, sizeof sentinel);
    for (size_t b = 0; b < sizeof BAD / sizeof *BAD; b++) {
        static const size_t COUNTS[] = {1, 2, 1024, 1025, 3000};
        for (size_t k = 0; k < sizeof COUNTS / sizeof *COUNTS; k++) {
            size_t n = COUNTS[k];
            for (size_t i = 0; i < n; i++)
                ids[i] = i % 2 == 0 ? 0 : 3;
            memcpy(out, sentinel, sizeof out);
            CU_ASSERT_EQUAL(tokentab_gather_rows(t, ids, n, 0, out, sizeof out, &terr),
                            TOKENTAB_OK);
            CU_ASSERT_EQUAL(memcmp(out, f->data[0], 12), 0);
            CU_ASSERT_EQUAL(memcmp(out + (n - 1) * 12, f->data[0] + (n % 2 == 0 ? 36 : 0), 12), 0);
            ids[n - 1] = BAD[b];
            memcpy(out, sentinel, sizeof out);
            CU_ASSERT_EQUAL(tokentab_gather_rows(t, ids, n, 0, out, sizeof out, &terr),
                            TOKENTAB_EBOUNDS);
            CU_ASSERT_EQUAL(terr.status, TOKENTAB_EBOUNDS);
            char number[32];
            snprintf(number, sizeof number, "id %lld at place %zu", (long long)BAD[b], n - 1);
            CU_ASSERT_PTR_NOT_NULL(strstr(terr.message, number));
            CU_ASSERT_EQUAL(memcmp(out, sentinel, sizeof out), 0);
        }
    }
    int32_t negative = -1;
    const struct tokentab_ids scalar = {.data = &negative, .type = TOKENTAB_I32};
    const struct tokentab_request q = {.data = out, .capacity_bytes = sizeof out};
    CU_ASSERT_EQUAL(tokentab_gather(t, &scalar, -1, &q, 1, NULL), TOKENTAB_EBOUNDS);
    CU_ASSERT_EQUAL(tokentab_prefetch(t, &scalar, -1, NULL), TOKENTAB_EBOUNDS);
    CU_ASSERT_EQUAL(memcmp(out, sentinel, sizeof out), 0);
    tokentab_close(&t);
    folder_free(&f);
}

static void test_arguments(void)
{
    struct folder *f = make(fixture_lookup(4, 3, DT_F32));
    struct tokentab_recipe *t = open_folder(f);
    int64_t id = 1, shape[17] = {1}, huge[2] = {INT64_MAX, INT64_MAX}, minus[1] = {-1};
    int64_t far[2] = {INT64_MAX, 1}, minimum[1] = {INT64_MIN};
    float out[12];
    struct tokentab_ids ids = {.data = &id, .type = TOKENTAB_I64, .rank = 1, .shape = shape};
    struct tokentab_request q = {.data = out, .capacity_bytes = sizeof out};
#define REFUSED(says)                                                                              \
    do {                                                                                           \
        CU_ASSERT_EQUAL(tokentab_gather(t, &ids, -1, &q, 1, &terr), TOKENTAB_EINVAL);              \
        CU_ASSERT_PTR_NOT_NULL(strstr(terr.message, says));                                        \
    } while (0)
    ids.rank = 17;
    REFUSED("rank 17");
    ids.rank = 1;
    ids.shape = NULL;
    REFUSED("without a shape");
    ids.shape = minus;
    REFUSED("shape[0] is -1");
    ids.rank = 2;
    ids.shape = huge;
    REFUSED("overflow");
    ids.rank = 1;
    ids.shape = shape;
    ids.data = NULL;
    REFUSED("without data");
    ids.data = &id;
    shape[0] = 3;
    ids.strides = far;
    REFUSED("strides overflow");
    ids.strides = minimum;
    REFUSED("strides overflow");
    ids.strides = NULL;
    shape[0] = 1;
    q.capacity_bytes = 11;
    REFUSED("11 bytes of room, 12");
    q.capacity_bytes = 12;
    q.output = 1;
    REFUSED("output 1");
    q.output = 0;
    q.data = NULL;
    REFUSED("no data");
    q.data = out;
    q.strides = huge;
    REFUSED("strides overflow");
    q.strides = NULL;
    ids.type = (enum tokentab_id_type)7;
    REFUSED("neither I32 nor I64");
    ids.type = TOKENTAB_I64;
    CU_ASSERT_EQUAL(tokentab_gather(t, &ids, 1, &q, 1, &terr), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_gather(t, &ids, -2, &q, 1, &terr), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_gather(t, NULL, -1, &q, 1, &terr), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_gather(NULL, &ids, -1, &q, 1, NULL), TOKENTAB_EINVAL);
    CU_ASSERT_EQUAL(tokentab_gather(t, &ids, -1, NULL, 0, &terr), TOKENTAB_OK);
    CU_ASSERT_EQUAL(tokentab_gather_rows(t, NULL, 0, 0, NULL, 0, &terr), TOKENTAB_OK);
    tokentab_close(&t);
    folder_free(&f);
}

/* N57: many ids with duplicates, one output (the fast way) and several (the general one). */
static void check_many(size_t width, enum dtype dt)
{
    enum { N = 5000, ROWS = 701 };
    struct folder *f = make(fixture_lookup(ROWS, width, dt));
    struct tokentab_recipe *t = open_folder(f);
    size_t row_bytes = width * dtype_size(dt);
    int64_t *ids = fixture_zeroed(N, sizeof *ids);
    uint8_t *out = fixture_zeroed(N, row_bytes), *second = fixture_zeroed(N, row_bytes);
    uint64_t state = width;
    for (size_t i = 0; i < N; i++)
        ids[i] = (int64_t)(folder_random(&state) % ROWS);
    CU_ASSERT_EQUAL(tokentab_gather_rows(t, ids, N, 0, out, N * row_bytes, &terr), TOKENTAB_OK);
    bool same = true;
    for (size_t i = 0; i < N; i++)
        same = same &&
               memcmp(out + i * row_bytes, f->data[0] + (size_t)ids[i] * row_bytes, row_bytes) == 0;
    CU_ASSERT(same);
    const int64_t shape[2] = {50, 100};
    const struct tokentab_ids list = {.data = ids, .type = TOKENTAB_I64, .rank = 2, .shape = shape};
    const struct tokentab_request q[2] = {{.data = out, .capacity_bytes = N * row_bytes},
                                          {.data = second, .capacity_bytes = N * row_bytes}};
    CU_ASSERT_EQUAL(tokentab_prefetch(t, &list, -1, &terr), TOKENTAB_OK);
    CU_ASSERT_EQUAL(tokentab_gather(t, &list, -1, q, 2, &terr), TOKENTAB_OK);
    CU_ASSERT_EQUAL(memcmp(out, second, N * row_bytes), 0);
    CU_ASSERT_EQUAL(
        memcmp(out + (N - 1) * row_bytes, f->data[0] + (size_t)ids[N - 1] * row_bytes, row_bytes),
        0);
    free(ids);
    free(out);
    free(second);
    tokentab_close(&t);
    folder_free(&f);
}

static void test_many(void)
{
    check_many(1, DT_BF16);
    check_many(1, DT_F32);
    check_many(1, DT_F64);
    check_many(2, DT_F64);
    check_many(16, DT_F16);
    check_many(16, DT_F32);
    check_many(16, DT_F64);
    check_many(31, DT_F16);
    check_many(97, DT_F32);
}

static void test_ids(void)
{
    struct format_recipe *r = fixture_lookup(40, 3, DT_F32);
    r->has_ids = true;
    r->n_ids = 10;
    r->groups[0].rows = 10;
    struct folder *f = make(r);
    struct tokentab_recipe *t = open_folder(f);
    float out[6], sentinel[6] = {1, 2, 3, 4, 5, 6};
    const int64_t good[2] = {36, 0}, absent[2] = {36, 1}, beyond[2] = {0, 40};
    CU_ASSERT_EQUAL(tokentab_num_embeddings(t), 40);
    CU_ASSERT_EQUAL(lookup_n_rows(t), 10);
    CU_ASSERT_EQUAL(lookup_row_id(t, 9), 36);
    CU_ASSERT_EQUAL(tokentab_gather_rows(t, good, 2, 0, out, sizeof out, &terr), TOKENTAB_OK);
    CU_ASSERT_EQUAL(memcmp(out, f->data[0] + 9 * 12, 12), 0);
    CU_ASSERT_EQUAL(memcmp(out + 3, f->data[0], 12), 0);
    memcpy(out, sentinel, sizeof out);
    CU_ASSERT_EQUAL(tokentab_gather_rows(t, absent, 2, 0, out, sizeof out, &terr),
                    TOKENTAB_EBOUNDS);
    CU_ASSERT_PTR_NOT_NULL(strstr(terr.message, "id 1 at place 1 is not in the recipe's id list"));
    CU_ASSERT_EQUAL(tokentab_gather_rows(t, beyond, 2, 0, out, sizeof out, &terr),
                    TOKENTAB_EBOUNDS);
    CU_ASSERT_EQUAL(memcmp(out, sentinel, sizeof out), 0);
    tokentab_close(&t);
    folder_free(&f);
}

/* What raw and normalized must be, one element, by the definition. */
static void expect_projected(enum dtype dt, const uint8_t *z, const uint8_t *r, const uint8_t *b,
                             bool normalize, uint8_t *dst)
{
    if (dt == DT_F64) {
        double x, n, c;
        memcpy(&x, z, 8);
        memcpy(&n, r, 8);
        memcpy(&c, b, 8);
        volatile double q = normalize ? x / n : x;
        x = q + c;
        memcpy(dst, &x, 8);
    } else if (dt == DT_F32) {
        float x, n, c;
        memcpy(&x, z, 4);
        memcpy(&n, r, 4);
        memcpy(&c, b, 4);
        volatile float q = normalize ? x / n : x;
        x = q + c;
        memcpy(dst, &x, 4);
    } else {
        uint16_t x, n, c;
        memcpy(&x, z, 2);
        memcpy(&n, r, 2);
        memcpy(&c, b, 2);
        double zx = dt == DT_F16 ? (double)f16_to_f32(x) : (double)bf16_to_f32(x);
        double zn = dt == DT_F16 ? (double)f16_to_f32(n) : (double)bf16_to_f32(n);
        double zc = dt == DT_F16 ? (double)f16_to_f32(c) : (double)bf16_to_f32(c);
        double q = normalize ? (double)f64_round_to(dt, zx / zn) : zx;
        float y = f64_round_to(dt, q + zc);
        x = dt == DT_F16 ? f16_from_f32(y) : bf16_from_f32(y);
        memcpy(dst, &x, 2);
    }
}

static void check_projected(enum dtype dt, bool bias)
{
    enum { ROWS = 9, WIDTH = 13 };
    struct folder *f = make(fixture_projected(ROWS, WIDTH, dt, bias));
    struct tokentab_recipe *t = open_folder(f);
    size_t size = dtype_size(dt);
    uint8_t raw[ROWS * WIDTH * 8], normal[ROWS * WIDTH * 8], zero[8] = {0}, want[8];
    const int64_t ids[ROWS] = {8, 7, 6, 5, 4, 3, 2, 1, 0}, shape[1] = {ROWS};
    const int64_t strides[2] = {1, ROWS}; /* transposed */
    const struct tokentab_ids list = {.data = ids, .type = TOKENTAB_I64, .rank = 1, .shape = shape};
    const struct tokentab_request q[2] = {{.output = 1, .data = normal, .strides = strides},
                                          {.output = 0, .data = raw, .capacity_bytes = sizeof raw}};
    struct tokentab_output_info info;
    CU_ASSERT_EQUAL(tokentab_output(t, 1, &info), TOKENTAB_OK);
    CU_ASSERT_STRING_EQUAL(info.name, "normalized");
    CU_ASSERT_EQUAL(info.width, WIDTH);
    CU_ASSERT_EQUAL(tokentab_output_find(t, "raw"), 0);
    CU_ASSERT_EQUAL(tokentab_gather(t, &list, -1, q, 2, &terr), TOKENTAB_OK);
    bool same = true;
    for (size_t i = 0; i < ROWS; i++)
        for (size_t c = 0; c < WIDTH; c++) {
            const uint8_t *z = folder_row(f, 0, 0, (uint64_t)ids[i]) + c * size;
            const uint8_t *r = folder_row(f, 0, 1, (uint64_t)ids[i]);
            const uint8_t *b = bias ? f->data[1] + c * size : zero;
            expect_projected(dt, z, r, b, false, want);
            same = same && memcmp(raw + (i * WIDTH + c) * size, want, size) == 0;
            expect_projected(dt, z, r, b, true, want);
            same = same && memcmp(normal + (c * ROWS + i) * size, want, size) == 0;
        }
    CU_ASSERT(same);
    tokentab_close(&t);
    folder_free(&f);
}

static void test_projected(void)
{
    for (int bias = 0; bias < 2; bias++) {
        check_projected(DT_F64, bias);
        check_projected(DT_F32, bias);
        check_projected(DT_F16, bias);
        check_projected(DT_BF16, bias);
    }
}

static void test_table_rows(void)
{
    struct folder *f = make(fixture_fanout());
    struct tokentab_recipe *t = open_folder(f);
    struct err err = {0};
    uint8_t out[FIXTURE_V * 32];
    for (size_t route = 0; route < 3; route++)
        for (size_t table = 0; table < 4; table++) {
            size_t size = folder_row_bytes(f, table);
            bool same = lookup_table_rows(t, route, table, 2, FIXTURE_V - 2, out, &err) == ST_OK;
            for (uint64_t i = 2; i < FIXTURE_V; i++)
                same =
                    same && memcmp(out + (i - 2) * size, folder_row(f, route, table, i), size) == 0;
            CU_ASSERT(same);
        }
    CU_ASSERT_EQUAL(lookup_table_rows(t, 0, 0, 30, 8, out, &err), ST_USAGE);
    CU_ASSERT_EQUAL(lookup_table_rows(t, 3, 0, 0, 1, out, NULL), ST_USAGE);
    CU_ASSERT_EQUAL(lookup_table_rows(t, 0, 4, 0, 1, out, NULL), ST_USAGE);
    CU_ASSERT_EQUAL(lookup_status(TOKENTAB_EBOUNDS), ST_USAGE);
    CU_ASSERT_EQUAL(lookup_status(TOKENTAB_EFORMAT), ST_FORMAT);
    tokentab_close(&t);
    folder_free(&f);
}

struct reader {
    const struct folder *f;
    struct tokentab_recipe *t;
    uint64_t seed;
    bool same;
};

static void *read_many(void *ctx)
{
    struct reader *r = ctx;
    uint8_t out[64 * 28];
    int64_t ids[64];
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 64; i++)
            ids[i] = (int64_t)(folder_random(&r->seed) % FIXTURE_V);
        size_t table = (size_t)round % 4, size = folder_row_bytes(r->f, table);
        if (tokentab_gather_rows(r->t, ids, 64, table, out, sizeof out, NULL) != TOKENTAB_OK)
            r->same = false;
        for (size_t i = 0; i < 64; i++)
            if (memcmp(out + i * size, folder_row(r->f, 0, table, (uint64_t)ids[i]), size) != 0)
                r->same = false;
        if (round % 16 == 0)
            tokentab_trim(r->t);
    }
    return NULL;
}

static void test_threads(void)
{
    struct folder *f = make(fixture_fanout());
    struct tokentab_recipe *t = open_folder(f);
    pthread_t threads[4];
    struct reader readers[4];
    for (uint64_t i = 0; i < 4; i++) {
        readers[i] = (struct reader){.f = f, .t = t, .seed = i, .same = true};
        CU_ASSERT_EQUAL_FATAL(pthread_create(&threads[i], NULL, read_many, &readers[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CU_ASSERT(readers[i].same);
    }
    tokentab_close(&t);
    folder_free(&f);
}

int main(int argc, char **argv)
{
    static const struct fixture_case CASES[] = {
        {"description", test_describe},
        {"ids of every layout", test_layouts},
        {"ids outside the vocabulary", test_bounds},
        {"arguments", test_arguments},
        {"many ids", test_many},
        {"id lists", test_ids},
        {"projected", test_projected},
        {"stored tables", test_table_rows},
        {"threads", test_threads},
    };
    use_packed = argc > 1 && strcmp(argv[1], "packed") == 0;
    if (use_packed)
        dir_name = "gather.packed";
    return fixture_run(dir_name, CASES, sizeof CASES / sizeof *CASES);
}
