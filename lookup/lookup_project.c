/* SPDX-License-Identifier: Apache-2.0 */
/* raw = z + b and normalized = z / r + b, each step rounded to the storage dtype. */
#include "lookup/lookup_internal.h"

#include <string.h>

#define PROJECT_WIDE(name, type)                                                                   \
    static void name(const uint8_t *z, const uint8_t *r, const uint8_t *b, bool normalize,         \
                     size_t width, uint8_t *dst)                                                   \
    {                                                                                              \
        type norm = 1;                                                                             \
        if (normalize)                                                                             \
            memcpy(&norm, r, sizeof norm);                                                         \
        for (size_t i = 0; i < width; i++) {                                                       \
            type x, bias;                                                                          \
            memcpy(&x, z + i * sizeof x, sizeof x);                                                \
            if (normalize)                                                                         \
                x = x / norm;                                                                      \
            if (b != NULL) {                                                                       \
                memcpy(&bias, b + i * sizeof bias, sizeof bias);                                   \
                x = x + bias;                                                                      \
            }                                                                                      \
            memcpy(dst + i * sizeof x, &x, sizeof x);                                              \
        }                                                                                          \
    }

#define PROJECT_HALF(name, load, store)                                                            \
    static void name(const uint8_t *z, const uint8_t *r, const uint8_t *b, bool normalize,         \
                     size_t width, uint8_t *dst)                                                   \
    {                                                                                              \
        uint16_t bits, norm = 0;                                                                   \
        if (normalize)                                                                             \
            memcpy(&norm, r, sizeof norm);                                                         \
        for (size_t i = 0; i < width; i++) {                                                       \
            memcpy(&bits, z + i * sizeof bits, sizeof bits);                                       \
            if (normalize)                                                                         \
                bits = store(load(bits) / load(norm));                                             \
            if (b != NULL) {                                                                       \
                uint16_t bias;                                                                     \
                memcpy(&bias, b + i * sizeof bias, sizeof bias);                                   \
                bits = store(load(bits) + load(bias));                                             \
            }                                                                                      \
            memcpy(dst + i * sizeof bits, &bits, sizeof bits);                                     \
        }                                                                                          \
    }

PROJECT_WIDE(project_f64, double)
PROJECT_WIDE(project_f32, float)
PROJECT_HALF(project_f16, f16_to_f32, f16_from_f32)
PROJECT_HALF(project_bf16, bf16_to_f32, bf16_from_f32)

void lookup_project_row(enum dtype dt, const uint8_t *z, const uint8_t *r, const uint8_t *b,
                        bool normalize, size_t width, uint8_t *dst)
{
    if (dt == DT_F64)
        project_f64(z, r, b, normalize, width, dst);
    else if (dt == DT_F32)
        project_f32(z, r, b, normalize, width, dst);
    else if (dt == DT_F16)
        project_f16(z, r, b, normalize, width, dst);
    else
        project_bf16(z, r, b, normalize, width, dst);
}
