/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of stored rows.  Most rows are the same bytes: one memcmp settles those. */
#include "workers/workers_internal.h"

#include <math.h>
#include <string.h>

/* ---- elements ------------------------------------------------------------------------------ */

/* Sign and magnitude to an integer that counts representable numbers; +-0 are both 0. */
static int64_t place(uint64_t bits, unsigned width)
{
    const uint64_t sign = UINT64_C(1) << (width - 1);
    const int64_t magnitude = (int64_t)(bits & (sign - 1));
    return (bits & sign) != 0 ? -magnitude : magnitude;
}

static uint64_t distance(int64_t a, int64_t b)
{
    /* Magnitudes stay below 2^63, so the difference fits 64 unsigned bits. */
    return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

size_t compare_bucket(uint64_t ulp)
{
    size_t bucket = 0;
    if (ulp > UINT64_C(1) << 30)
        return WORKER_ULP_BUCKETS - 1;
    /* 0, 1, 2, 3-4, 5-8, ...: one more than the bits of ulp - 1. */
    for (uint64_t x = ulp == 0 ? 0 : 2 * ulp - 1; x != 0; x >>= 1)
        bucket++;
    return bucket;
}

static void worst_abs(struct worker_stat *s, struct compare_row *row, double difference,
                      uint64_t token, uint64_t column)
{
    if (difference > row->max_abs)
        row->max_abs = difference;
    if (difference < s->max_abs)
        return;
    if (difference > s->max_abs || s->unequal == 0 || token < s->max_abs_token ||
        (token == s->max_abs_token && column < s->max_abs_column)) {
        s->max_abs = difference;
        s->max_abs_token = token;
        s->max_abs_column = column;
    }
}

static void worst_ulp(struct worker_stat *s, uint64_t ulp, uint64_t token, uint64_t column)
{
    if (ulp > s->max_ulp ||
        (ulp == s->max_ulp &&
         (token < s->max_ulp_token || (token == s->max_ulp_token && column < s->max_ulp_column)))) {
        s->max_ulp = ulp;
        s->max_ulp_token = token;
        s->max_ulp_column = column;
    }
}

/* Two finite elements that differ in bytes. */
static void count_pair(struct worker_stat *s, struct compare_row *row, double direct, double table,
                       uint64_t ulp, uint64_t token, uint64_t column)
{
    s->ulp[compare_bucket(ulp)]++;
    if (ulp == 0)
        return; /* -0.0 and +0.0 */
    /* Long double keeps the square of any difference in range. */
    const long double difference = (long double)direct - (long double)table;
    row->square_difference += difference * difference;
    worst_abs(s, row, fabs(direct - table), token, column);
    worst_ulp(s, ulp, token, column);
    s->unequal++;
}

/* ---- rows, one function a dtype ------------------------------------------------------------ */

static double f64_value(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double f32_value(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return (double)x;
}

static double f16_value(uint16_t bits)
{
    return (double)f16_to_f32(bits);
}

static double bf16_value(uint16_t bits)
{
    return (double)bf16_to_f32(bits);
}

#define ROW_FUNCTIONS(name, BITS, width_bits, EXPONENT)                                            \
    static void rows_##name(const void *direct, const void *table, size_t width, uint64_t token,   \
                            struct worker_stat *s, struct compare_row *row)                        \
    {                                                                                              \
        for (size_t i = 0; i < width; i++) {                                                       \
            BITS a, b;                                                                             \
            memcpy(&a, (const char *)direct + i * sizeof a, sizeof a);                             \
            memcpy(&b, (const char *)table + i * sizeof b, sizeof b);                              \
            const bool same = a == b;                                                              \
            s->unequal_bytes += !same;                                                             \
            if ((a & (EXPONENT)) == (EXPONENT) || (b & (EXPONENT)) == (EXPONENT))                  \
                s->nonfinite++;                                                                    \
            else if (same)                                                                         \
                s->ulp[0]++;                                                                       \
            else                                                                                   \
                count_pair(s, row, name##_value(a), name##_value(b),                               \
                           distance(place(a, width_bits), place(b, width_bits)), token, i);        \
        }                                                                                          \
    }                                                                                              \
    static long double square_##name(const void *direct, size_t width)                             \
    {                                                                                              \
        long double sum = 0;                                                                       \
        for (size_t i = 0; i < width; i++) {                                                       \
            BITS a;                                                                                \
            memcpy(&a, (const char *)direct + i * sizeof a, sizeof a);                             \
            const long double x = (long double)name##_value(a);                                    \
            if ((a & (EXPONENT)) != (EXPONENT))                                                    \
                sum += x * x;                                                                      \
        }                                                                                          \
        return sum;                                                                                \
    }                                                                                              \
    static uint64_t ulp_##name(const void *direct, const void *table)                              \
    {                                                                                              \
        BITS a, b;                                                                                 \
        memcpy(&a, direct, sizeof a);                                                              \
        memcpy(&b, table, sizeof b);                                                               \
        return distance(place(a, width_bits), place(b, width_bits));                               \
    }

ROW_FUNCTIONS(f64, uint64_t, 64, UINT64_C(0x7ff0000000000000))
ROW_FUNCTIONS(f32, uint32_t, 32, UINT32_C(0x7f800000))
ROW_FUNCTIONS(f16, uint16_t, 16, 0x7c00)
ROW_FUNCTIONS(bf16, uint16_t, 16, 0x7f80)

struct compare_row compare_rows(enum dtype dt, const void *direct, const void *table, size_t width,
                                uint64_t token, bool table_finite, struct worker_stat *s)
{
    struct compare_row row = {0};
    s->elements += width;
    row.same_bytes = memcmp(direct, table, width * dtype_size(dt)) == 0;
    if (table_finite && row.same_bytes) {
        s->ulp[0] += width;
        return row;
    }
    switch (dt) {
    case DT_F64:
        rows_f64(direct, table, width, token, s, &row);
        break;
    case DT_F32:
        rows_f32(direct, table, width, token, s, &row);
        break;
    case DT_F16:
        rows_f16(direct, table, width, token, s, &row);
        break;
    default:
        rows_bf16(direct, table, width, token, s, &row);
        break;
    }
    return row;
}

long double compare_square(enum dtype dt, const void *direct, size_t width)
{
    switch (dt) {
    case DT_F64:
        return square_f64(direct, width);
    case DT_F32:
        return square_f32(direct, width);
    case DT_F16:
        return square_f16(direct, width);
    default:
        return square_bf16(direct, width);
    }
}

uint64_t compare_ulp(enum dtype dt, const void *a, const void *b)
{
    switch (dt) {
    case DT_F64:
        return ulp_f64(a, b);
    case DT_F32:
        return ulp_f32(a, b);
    case DT_F16:
        return ulp_f16(a, b);
    default:
        return ulp_bf16(a, b);
    }
}

/* ---- cases --------------------------------------------------------------------------------- */

void compare_case(struct worker_stat *s, long double square_difference, long double square,
                  uint64_t first_token)
{
    s->cases++;
    if (square_difference == 0)
        return;
    const double rel =
        square == 0 ? (double)INFINITY : (double)(sqrtl(square_difference) / sqrtl(square));
    if (rel > s->max_rel || (rel == s->max_rel && first_token < s->max_rel_token)) {
        s->max_rel = rel;
        s->max_rel_token = first_token;
    }
}

double compare_exact(enum dtype compute, const void *values, const double *exact, size_t width)
{
    double worst = 0;
    for (size_t i = 0; i < width; i++) {
        const double value =
            compute == DT_F64 ? ((const double *)values)[i] : (double)((const float *)values)[i];
        const double error = fabs(value - exact[i]);
        if (isfinite(value) && isfinite(exact[i]) && error > worst)
            worst = error;
    }
    return worst;
}
