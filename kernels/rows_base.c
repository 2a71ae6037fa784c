/* SPDX-License-Identifier: Apache-2.0 */
/* For CPUs without AVX2: the same order of every sum (fma through libm where the CPU has none), and
 * Sleef without fma. */
#include "kernels/kernels_internal.h"

#include <math.h>
#include <sleef.h>
#include <string.h>

#define REAL float
#define BITS int32_t
#define FN(name) name##_f32
#define LANES 8
#define VLANES 4
#define NORM_HAS_VECTORS true
#define REAL_FMA __builtin_fmaf
#define REAL_SQRT __builtin_sqrtf
#define V_EXP Sleef_expf4_u10sse2
#define V_TANH Sleef_tanhf4_u10sse2
#define V_ERF Sleef_erff4_u10sse2
#define V_LOG1P Sleef_log1pf4_u10sse2
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
#define VLANES 2
#define NORM_HAS_VECTORS false
#define REAL_FMA __builtin_fma
#define REAL_SQRT __builtin_sqrt
#define V_EXP Sleef_expd2_u10sse2
#define V_TANH Sleef_tanhd2_u10sse2
#define V_ERF Sleef_erfd2_u10sse2
#define V_LOG1P Sleef_log1pd2_u10sse2
#define SOFTMAX_TREE(a) (((a[0] + a[1]) + a[2]) + a[3])
#include "kernels/rows_template.h"

static void round_f16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = f16_to_f32(f16_from_f32(x[i]));
}

const struct row_loops row_loops_base = {
    .isa = "sse2",
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
