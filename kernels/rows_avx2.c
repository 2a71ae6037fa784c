/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled for AVX2 whatever the build's target is; row_loops_pick() keeps it from older CPUs. */
#pragma GCC target("avx2,fma,f16c")
#include "kernels/kernels_internal.h"

#include <immintrin.h>
#include <math.h>
#include <sleef.h>
#include <string.h>

#define REAL float
#define BITS int32_t
#define FN(name) name##_f32
#define LANES 8
#define VLANES 8
#define NORM_HAS_VECTORS true
#define REAL_FMA __builtin_fmaf
#define REAL_SQRT __builtin_sqrtf
#define V_EXP Sleef_expf8_u10avx2
#define V_TANH Sleef_tanhf8_u10avx2
#define V_ERF Sleef_erff8_u10avx2
#define V_LOG1P Sleef_log1pf8_u10avx2
#define SOFTMAX_TREE(a) (((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7])))
#include "kernels/rows_template.h"
#undef REAL
#undef BITS
#undef FN
#undef LANES
#undef VLANES
#undef NORM_HAS_VECTORS
#undef REAL_FMA
#undef REAL_SQRT
#undef V_EXP
#undef V_TANH
#undef V_ERF
#undef V_LOG1P
#undef SOFTMAX_TREE

#define REAL double
#define BITS int64_t
#define FN(name) name##_f64
#define LANES 4
#define VLANES 4
#define NORM_HAS_VECTORS false
#define REAL_FMA __builtin_fma
#define REAL_SQRT __builtin_sqrt
#define V_EXP Sleef_expd4_u10avx2
#define V_TANH Sleef_tanhd4_u10avx2
#define V_ERF Sleef_erfd4_u10avx2
#define V_LOG1P Sleef_log1pd4_u10avx2
#define SOFTMAX_TREE(a) (((a[0] + a[1]) + a[2]) + a[3])
#include "kernels/rows_template.h"

static void round_f16(float *x, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(half));
    }
    for (; i < n; i++)
        x[i] = f16_to_f32(f16_from_f32(x[i]));
}

const struct row_loops row_loops_avx2 = {
    .isa = "avx2",
    .elementwise_f32 = elementwise_f32,
    .layer_norm_f32 = layer_norm_f32,
    .rms_norm_f32 = rms_norm_f32,
    .l2_norm_f32 = l2_norm_f32,
    .divide_rows_f32 = divide_rows_f32,
    .softmax_f32 = softmax_f32,
    .elementwise_f64 = elementwise_f64,
    .layer_norm_f64 = layer_norm_f64,
    .rms_norm_f64 = rms_norm_f64,
    .l2_norm_f64 = l2_norm_f64,
    .divide_rows_f64 = divide_rows_f64,
    .softmax_f64 = softmax_f64,
    .round_f16 = round_f16,
};
