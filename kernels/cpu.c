/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* strings.h */
#include "kernels/kernels_internal.h"

#include <cpuid.h>
#include <stdio.h>
#include <string.h>
#include <xmmintrin.h>

enum { MXCSR_FTZ = 0x8000, MXCSR_DAZ = 0x0040 };

/* __builtin_cpu_supports also asks whether the system saves the wide registers. */
unsigned kernels_cpu_flags(void)
{
    unsigned flags = 0;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        flags |= KERNELS_CPU_AVX2;
    if ((flags & KERNELS_CPU_AVX2) != 0 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        flags |= KERNELS_CPU_AVX512;
    return flags;
}

static void cpu_model(char model[49])
{
    unsigned regs[12] = {0};
    bool known = true;
    for (unsigned i = 0; i < 3; i++)
        known = __get_cpuid(0x80000002u + i, regs + 4 * i, regs + 4 * i + 1, regs + 4 * i + 2,
                            regs + 4 * i + 3) != 0 &&
                known;
    memset(model, 0, 49);
    if (known)
        memcpy(model, regs, sizeof regs);
    else
        memcpy(model, "unknown CPU", 12);
}

void kernels_cpu_text(char *buf, size_t buf_size)
{
    char model[49];
    cpu_model(model);
    const char *name = model;
    while (*name == ' ')
        name++;
    size_t length = strlen(name);
    while (length > 0 && name[length - 1] == ' ')
        length--;
    unsigned flags = kernels_cpu_flags();
    (void)snprintf(buf, buf_size, "%.*s:%s%s%s", (int)length, name,
                   (flags & KERNELS_CPU_AVX2) != 0 ? " AVX2+FMA" : "",
                   (flags & KERNELS_CPU_AVX512) != 0 ? " AVX-512" : "",
                   flags == 0 ? " neither AVX2+FMA nor AVX-512" : "");
}

const char *kernels_core_for(unsigned common_cpu_flags)
{
    if ((common_cpu_flags & KERNELS_CPU_AVX512) != 0)
        return "SkylakeX";
    if ((common_cpu_flags & KERNELS_CPU_AVX2) != 0)
        return "Haswell";
    return NULL;
}

void kernels_ftz_daz(char *buf, size_t buf_size)
{
    unsigned csr = _mm_getcsr();
    bool ftz = (csr & MXCSR_FTZ) != 0, daz = (csr & MXCSR_DAZ) != 0;
    (void)snprintf(buf, buf_size, "%s", ftz && daz ? "FTZ+DAZ" : ftz ? "FTZ" : daz ? "DAZ" : "off");
}

const struct row_loops *row_loops_pick(void)
{
    bool wide = (kernels_cpu_flags() & KERNELS_CPU_AVX2) != 0 && __builtin_cpu_supports("f16c");
    return wide ? &row_loops_avx2 : &row_loops_base;
}
