/* SPDX-License-Identifier: Apache-2.0 */
/* Distances, statistics and decisions on their own. */
#include "worker_fixture.h"

static uint64_t ulp_of(enum dtype dt, double a, double b)
{
    uint64_t x = 0, y = 0;
    fixture_store(dt, &x, 0, a);
    fixture_store(dt, &y, 0, b);
    return compare_ulp(dt, &x, &y);
}

static void test_ulp(void)
{
    static const enum dtype dtypes[] = {DT_F64, DT_F32, DT_F16, DT_BF16};
    static const double epsilon[] = {0x1p-52, 0x1p-23, 0x1p-10, 0x1p-7};
    static const double least[] = {0x1p-1074, 0x1p-149, 0x1p-24, 0x1p-133};
    for (size_t i = 0; i < N_OF(dtypes); i++) {
        const enum dtype dt = dtypes[i];
        CU_ASSERT_EQUAL(ulp_of(dt, 0.0, -0.0), 0);
        CU_ASSERT_EQUAL(ulp_of(dt, 1, 1), 0);
        CU_ASSERT_EQUAL(ulp_of(dt, 1, 1 + epsilon[i]), 1);
        CU_ASSERT_EQUAL(ulp_of(dt, 1 + epsilon[i], 1), 1);
        CU_ASSERT_EQUAL(ulp_of(dt, 2 - epsilon[i], 2), 1);
        CU_ASSERT_EQUAL(ulp_of(dt, 0, least[i]), 1);
        CU_ASSERT_EQUAL(ulp_of(dt, -least[i], least[i]), 2);
        CU_ASSERT_EQUAL(ulp_of(dt, -1, -1 - 2 * epsilon[i]), 2);
    }
    CU_ASSERT_EQUAL(ulp_of(DT_F64, -1.7976931348623157e308, 1.7976931348623157e308),
                    2 * UINT64_C(0x7fefffffffffffff));
    CU_ASSERT_EQUAL(ulp_of(DT_BF16, 1, 2), 128);
}

static void test_buckets(void)
{
    static const struct {
        uint64_t ulp;
        size_t bucket;
    } cases[] = {{0, 0},
                 {1, 1},
                 {2, 2},
                 {3, 3},
                 {4, 3},
                 {5, 4},
                 {8, 4},
                 {9, 5},
                 {16, 5},
                 {17, 6},
                 {UINT64_C(1) << 29, 30},
                 {(UINT64_C(1) << 29) + 1, 31},
                 {UINT64_C(1) << 30, 31},
                 {(UINT64_C(1) << 30) + 1, 32},
                 {UINT64_MAX, 32}};
    for (size_t i = 0; i < N_OF(cases); i++)
        CU_ASSERT_EQUAL(compare_bucket(cases[i].ulp), cases[i].bucket);
    size_t names = 1;
    for (const char *s = worker_stat_columns; *s != '\0'; s++)
        names += *s == '\n';
    CU_ASSERT_EQUAL(names, worker_stat_n_fields());
}

/* Hand values: N33's reversed sum, and zeros of both signs. */
static void test_rows(void)
{
    struct worker_stat s = {0};
    const float direct[4] = {0, -0.0f, 3, 4}, table[4] = {1, 0, 3, 4};
    struct compare_row row = compare_rows(DT_F32, direct, table, 4, 9, true, &s);
    CU_ASSERT_EQUAL(s.elements, 4);
    CU_ASSERT_EQUAL(s.unequal, 1);
    CU_ASSERT_EQUAL(s.unequal_bytes, 2);
    CU_ASSERT_EQUAL(s.max_abs, 1);
    CU_ASSERT_EQUAL(s.max_abs_token, 9);
    CU_ASSERT_EQUAL(s.max_abs_column, 0);
    CU_ASSERT_EQUAL(s.max_ulp, 0x3f800000);
    CU_ASSERT_EQUAL(s.ulp[0], 3);
    CU_ASSERT_EQUAL(s.ulp[31], 1);
    compare_case(&s, row.square_difference, compare_square(DT_F32, direct, 4), 9);
    CU_ASSERT_EQUAL(s.max_rel, 0.2);
    CU_ASSERT_EQUAL(s.cases, 1);
    /* 0/0 is 0, x/0 rejects. */
    const float zero[2] = {0, 0}, one[2] = {1, 0};
    struct worker_stat z = {0};
    row = compare_rows(DT_F32, zero, zero, 2, 0, true, &z);
    compare_case(&z, row.square_difference, compare_square(DT_F32, zero, 2), 0);
    CU_ASSERT_EQUAL(z.max_rel, 0);
    row = compare_rows(DT_F32, zero, one, 2, 3, true, &z);
    compare_case(&z, row.square_difference, compare_square(DT_F32, zero, 2), 3);
    CU_ASSERT(isinf(z.max_rel));
    CU_ASSERT_EQUAL(z.max_rel_token, 3);
    /* Squares of F64 neither overflow nor vanish. */
    struct worker_stat w = {0};
    const double big[2] = {1e300, 1e-300}, near[2] = {1e300, 2e-300};
    row = compare_rows(DT_F64, big, near, 2, 0, true, &w);
    compare_case(&w, row.square_difference, compare_square(DT_F64, big, 2), 0);
    CU_ASSERT_EQUAL(w.max_abs, 1e-300);
    const double tiny[1] = {1e-300}, other[1] = {1.5e-300};
    row = compare_rows(DT_F64, tiny, other, 1, 0, true, &w);
    compare_case(&w, row.square_difference, compare_square(DT_F64, tiny, 1), 0);
    CU_ASSERT(fabs(w.max_rel - 0.5) < 1e-15);
}

/* NaN and Inf stay in their own counter (N47), whichever side they are on. */
static void test_nonfinite(void)
{
    struct worker_stat s = {0};
    const float direct[5] = {NAN, 1, INFINITY, 2, NAN}, table[5] = {1, NAN, INFINITY, 2.5f, NAN};
    const struct compare_row row = compare_rows(DT_F32, direct, table, 5, 0, false, &s);
    CU_ASSERT_EQUAL(s.nonfinite, 4);
    CU_ASSERT_EQUAL(s.unequal, 1);
    CU_ASSERT_EQUAL(s.max_abs, 0.5);
    CU_ASSERT_EQUAL((double)row.square_difference, 0.25);
    CU_ASSERT_EQUAL(compare_square(DT_F32, direct, 5), 5);
    /* The same bytes: seen when the table is not known to be finite. */
    struct worker_stat t = {0};
    (void)compare_rows(DT_F32, direct, direct, 5, 0, false, &t);
    CU_ASSERT_EQUAL(t.nonfinite, 3);
    CU_ASSERT_EQUAL(t.ulp[0], 2);
    static const enum dtype dtypes[] = {DT_F64, DT_F16, DT_BF16};
    for (size_t i = 0; i < N_OF(dtypes); i++) {
        uint64_t nan = 0, two = 0;
        struct worker_stat u = {0};
        fixture_store(dtypes[i], &nan, 0, (double)NAN);
        fixture_store(dtypes[i], &two, 0, 2);
        (void)compare_rows(dtypes[i], &nan, &two, 1, 0, true, &u);
        CU_ASSERT_EQUAL(u.nonfinite, 1);
        CU_ASSERT_EQUAL(u.unequal, 0);
        CU_ASSERT_EQUAL(u.max_abs, 0);
    }
}

static void random_row(uint64_t *state, float *direct, float *table)
{
    for (size_t i = 0; i < 4; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        direct[i] = (float)(*state >> 60);
        table[i] = (float)(*state >> 56 & 15);
    }
}

/* Rows in any order, merged in any grouping, give the same record, ties included. */
static void test_merge(void)
{
    enum { ROWS = 48 };
    struct worker_stat whole = {0}, parts[3] = {{0}, {0}, {0}};
    for (size_t pass = 0; pass < 2; pass++) {
        for (size_t n = 0; n < ROWS; n++) {
            const size_t row = pass == 0 ? n : ROWS - 1 - n;
            uint64_t state = 77 + row;
            float direct[4], table[4];
            random_row(&state, direct, table);
            struct worker_stat *s = pass == 0 ? &whole : &parts[row % 3];
            const struct compare_row r = compare_rows(DT_F32, direct, table, 4, row, true, s);
            compare_case(s, r.square_difference, compare_square(DT_F32, direct, 4), row);
            s->decisions++;
            if (row % 10 == 7) {
                if (s->decisions_changed == 0 || row < s->first_changed_token)
                    s->first_changed_token = row;
                s->decisions_changed++;
            }
        }
    }
    struct worker_stat forward = parts[0], backward = parts[2], empty = {0};
    worker_stat_merge(&forward, &parts[1]);
    worker_stat_merge(&forward, &parts[2]);
    worker_stat_merge(&backward, &empty);
    worker_stat_merge(&backward, &parts[0]);
    worker_stat_merge(&backward, &parts[1]);
    worker_stat_merge(&empty, &backward);
    CU_ASSERT(whole.unequal > 0);
    CU_ASSERT_EQUAL(memcmp(&whole, &forward, sizeof whole), 0);
    CU_ASSERT_EQUAL(memcmp(&whole, &backward, sizeof whole), 0);
    CU_ASSERT_EQUAL(memcmp(&whole, &empty, sizeof whole), 0);
    double fields[80];
    struct worker_stat back;
    CU_ASSERT_FATAL(worker_stat_n_fields() <= N_OF(fields));
    worker_stat_encode(&whole, fields);
    CHECK_OK(worker_stat_decode(fields, &back, &err));
    CU_ASSERT_EQUAL(memcmp(&whole, &back, sizeof whole), 0);
}

static void test_decode_refuses(void)
{
    double fields[80], bad[80];
    struct worker_stat s = {.elements = 3,
                            .cases = 1,
                            .ulp = {2, 1},
                            .unequal = 1,
                            .unequal_bytes = 1,
                            .max_abs = 0.5,
                            .max_ulp = 1,
                            .max_rel = INFINITY};
    struct worker_stat back;
    worker_stat_encode(&s, fields);
    CHECK_OK(worker_stat_decode(fields, &back, &err));
    CU_ASSERT(isinf(back.max_rel));
    static const double values[] = {-1, 0.5, 1e300, (double)NAN};
    for (size_t i = 0; i < worker_stat_n_fields(); i++)
        for (size_t j = 0; j < N_OF(values); j++) {
            memcpy(bad, fields, sizeof bad);
            bad[i] = values[j];
            struct err err = {0};
            const bool real = i >= 5 && i < 8 && (j == 1 || j == 2);
            CU_ASSERT_EQUAL(worker_stat_decode(bad, &back, &err), real ? ST_OK : ST_FORMAT);
        }
    memcpy(bad, fields, sizeof bad);
    bad[1] = 4; /* one element that no bucket counts */
    CHECK_FAULT(worker_stat_decode(bad, &back, &err), ST_FORMAT, "statistics");
    s.max_ulp = 2 * UINT64_C(0x7fefffffffffffff);
    worker_stat_encode(&s, fields);
    CHECK_OK(worker_stat_decode(fields, &back, &err));
    CU_ASSERT_EQUAL(back.max_ulp, s.max_ulp);
}

static void test_decisions(void)
{
    uint32_t top[5];
    const double values[6] = {1, 5, 3, 5, (double)NAN, 2};
    CU_ASSERT_EQUAL(decision_select(values, 4, 2, top), 2);
    CU_ASSERT(top[0] == 1 && top[1] == 3);
    CU_ASSERT_EQUAL(decision_select(values, 4, 1, top), 0);
    CU_ASSERT_EQUAL(top[0], 1);
    CU_ASSERT_EQUAL(decision_select(values, 4, 3, top), 2);
    CU_ASSERT_EQUAL(top[2], 2);
    CU_ASSERT(isinf(decision_select(values, 4, 4, top)));
    CU_ASSERT(isinf(decision_select(values, 4, 5, top)));
    (void)decision_select(values, 6, 3, top);
    CU_ASSERT(top[0] == 4 && top[1] == 1 && top[2] == 3);
    const double zeros[3] = {-0.0, 0.0, -1};
    CU_ASSERT_EQUAL(decision_select(zeros, 3, 1, top), 0);
    CU_ASSERT_EQUAL(top[0], 0);
    /* Softmax first, in the storage dtype: logits that tie there go to the lower column. */
    const struct graph_output o = {.dtype = DT_F32, .width = 3, .decision_softmax = true};
    const float logits[3] = {0, 20, 19};
    double scratch[3], p[3];
    CHECK_OK(decision_values(&o, logits, scratch, p, &err));
    CU_ASSERT(fabs(p[0] + p[1] + p[2] - 1) < 1e-6 && p[1] > p[2] && p[2] > p[0]);
}

int main(void)
{
    static const struct fixture_test tests[] = {
        {"distances", test_ulp},       {"buckets and columns", test_buckets},
        {"rows and cases", test_rows}, {"non-finite values", test_nonfinite},
        {"merging", test_merge},       {"decoding", test_decode_refuses},
        {"decisions", test_decisions}};
    return fixture_main("workers stat", tests, N_OF(tests));
}
