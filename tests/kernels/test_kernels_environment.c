/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* setenv */
#include "kernels_test.h"

#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xmmintrin.h>

/* OpenBLAS is loaded once per process, so each question about loading has a process of its own. */
static int in_child(int (*run)(void))
{
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        _exit(run());
    int state = 0;
    if (child < 0 || waitpid(child, &state, 0) != child)
        return -1;
    return WIFEXITED(state) ? WEXITSTATUS(state) : -2;
}

static enum status try_open(const char *core, unsigned threads, const char *backend,
                            struct kernels **k, struct err *err)
{
    const struct kernels_opts opts = {
        .blas_core = core, .blas_threads = threads, .backend = backend};
    return kernels_open(&opts, k, err);
}

static void test_core_choice(void)
{
    CU_ASSERT_STRING_EQUAL(kernels_core_for(KERNELS_CPU_AVX2 | KERNELS_CPU_AVX512), "SkylakeX");
    CU_ASSERT_STRING_EQUAL(kernels_core_for(KERNELS_CPU_AVX2), "Haswell");
    CU_ASSERT_PTR_NULL(kernels_core_for(0));
    unsigned flags = kernels_cpu_flags();
    CU_ASSERT((flags & KERNELS_CPU_AVX512) == 0 || (flags & KERNELS_CPU_AVX2) != 0);
    char text[KERNELS_FLAGS_SIZE];
    kernels_cpu_text(text, sizeof text);
    CU_ASSERT_EQUAL(strstr(text, " AVX2+FMA") != NULL, (flags & KERNELS_CPU_AVX2) != 0);
    CU_ASSERT_EQUAL(strstr(text, " AVX-512") != NULL && flags != 0,
                    (flags & KERNELS_CPU_AVX512) != 0);
    CU_ASSERT_STRING_EQUAL(
        row_loops_pick()->isa,
        (flags & KERNELS_CPU_AVX2) != 0 && __builtin_cpu_supports("f16c") ? "avx2" : "sse2");
}

static int child_reads_environment(void)
{
    struct kernels *k = kernels_test_open(NULL);
    const struct kernels_env *env = kernels_environment(k);
    const char *core = kernels_core_for(kernels_cpu_flags());
    bool good = strcmp(env->blas, "OpenBLAS") == 0 && strchr(env->blas_version, '.') != NULL &&
                strchr(env->blas_version, ' ') == NULL && env->blas_threads == 1 &&
                (core == NULL || strcmp(env->blas_core, core) == 0) &&
                strstr(env->sleef, row_loops_pick()->isa) != NULL &&
                strchr(env->libm, '.') != NULL && strcmp(env->ftz_daz, "off") == 0 &&
                strcmp(env->evaluator, KERNELS_EVALUATOR_VERSION) == 0;
    for (size_t i = 0; i < KERNELS_ENV_FIELDS; i++) {
        const char *name = NULL;
        char value[KERNELS_TEXT_SIZE];
        good = good && kernels_env_field(env, i, &name, value, sizeof value) == value &&
               *name != '\0' && *value != '\0';
    }
    good = good && kernels_measure_gflops(k, 0.01) > 0;
    kernels_close(&k);
    return good && k == NULL ? 0 : 1;
}

/* Prescott's kernels run on every x86-64. */
static int child_second_core(void)
{
    struct kernels *k = NULL;
    struct err err = {0};
    if (try_open("Prescott", 1, NULL, &k, &err) != ST_OK)
        return 1;
    if (strcmp(kernels_environment(k)->blas_core, "Prescott") != 0)
        return 2;
    kernels_close(&k);
    /* The library stays as it is: no question about the core is fine, another core is not. */
    if (try_open(NULL, 1, NULL, &k, &err) != ST_OK)
        return 3;
    kernels_close(&k);
    if (try_open("Nehalem", 1, NULL, &k, &err) != ST_ENVIRONMENT || k != NULL)
        return 4;
    return strstr(err.message, "Nehalem") != NULL && strstr(err.message, "Prescott") != NULL &&
                   strstr(err.message, "already loaded") != NULL
               ? 0
               : 5;
}

static int child_user_core_stays(void)
{
    struct kernels *k = NULL;
    struct err err = {0};
    (void)setenv("OPENBLAS_CORETYPE", "Prescott", 1);
    if (try_open(NULL, 1, NULL, &k, &err) != ST_OK)
        return 1;
    int result = strcmp(kernels_environment(k)->blas_core, "Prescott") == 0 ? 0 : 2;
    kernels_close(&k);
    return result;
}

static int child_user_core_overridden(void)
{
    struct kernels *k = NULL;
    struct err err = {0};
    (void)setenv("OPENBLAS_CORETYPE", "Nehalem", 1);
    if (try_open("Prescott", 1, NULL, &k, &err) != ST_OK)
        return 1;
    int result = strcmp(kernels_environment(k)->blas_core, "Prescott") == 0 ? 0 : 2;
    kernels_close(&k);
    return result;
}

/* A name that this OpenBLAS does not know makes it detect a core: not what was asked. */
static int child_unknown_core(void)
{
    struct kernels *k = NULL;
    struct err err = {0};
    if (try_open("NoSuchCore", 1, NULL, &k, &err) != ST_ENVIRONMENT)
        return 1;
    return strstr(err.message, "unknown BLAS core \"NoSuchCore\": OpenBLAS ") != NULL &&
                   strstr(err.message, "instead; known: Prescott, ") != NULL
               ? 0
               : 2;
}

/* Running a core that the CPU lacks would be an illegal instruction. */
static int child_core_too_new(void)
{
    const char *core = (kernels_cpu_flags() & KERNELS_CPU_AVX2) == 0     ? "Haswell"
                       : (kernels_cpu_flags() & KERNELS_CPU_AVX512) == 0 ? "SkylakeX"
                                                                         : NULL;
    struct kernels *k = NULL;
    struct err err = {0};
    if (core == NULL)
        return 0;
    if (try_open(core, 1, NULL, &k, &err) != ST_ENVIRONMENT || strstr(err.message, core) == NULL ||
        strstr(err.message, "lacks") == NULL)
        return 1;
    (void)setenv("OPENBLAS_CORETYPE", core, 1);
    err_clear(&err);
    return try_open(NULL, 1, NULL, &k, &err) == ST_ENVIRONMENT ? 0 : 2;
}

static int child_cooperlake(void)
{
    struct kernels *k = NULL;
    struct err err = {0};
    if (__builtin_cpu_supports("avx512bf16"))
        return 0;
    if (try_open("Cooperlake", 1, NULL, &k, &err) != ST_ENVIRONMENT ||
        strstr(err.message, "Cooperlake") == NULL)
        return 1;
    const char *best = kernels_core_for(kernels_cpu_flags());
    return best == NULL || strstr(err.message, best) != NULL ? 0 : 2;
}

static int child_two_threads(void)
{
    struct kernels *k = NULL;
    struct err err = {0};
    if (try_open(kernels_core_for(kernels_cpu_flags()), 2, NULL, &k, &err) != ST_OK)
        return 1;
    int result = kernels_environment(k)->blas_threads == 2 ? 0 : 2;
    kernels_close(&k);
    return result;
}

static void test_loading(void)
{
    CU_ASSERT_EQUAL(in_child(child_reads_environment), 0);
    CU_ASSERT_EQUAL(in_child(child_second_core), 0);
    CU_ASSERT_EQUAL(in_child(child_user_core_stays), 0);
    CU_ASSERT_EQUAL(in_child(child_user_core_overridden), 0);
    CU_ASSERT_EQUAL(in_child(child_unknown_core), 0);
    CU_ASSERT_EQUAL(in_child(child_core_too_new), 0);
    CU_ASSERT_EQUAL(in_child(child_cooperlake), 0);
    CU_ASSERT_EQUAL(in_child(child_two_threads), 0);
}

/* N43: refused, and named, before anything is loaded. */
static void test_flush_to_zero(void)
{
    static const struct {
        unsigned bits;
        const char *text;
    } STATES[] = {{0x8000, "FTZ"}, {0x0040, "DAZ"}, {0x8040, "FTZ+DAZ"}};
    unsigned before = _mm_getcsr();
    for (size_t i = 0; i < N_OF(STATES); i++) {
        struct kernels *k = NULL;
        struct err fault = {0};
        char text[KERNELS_TEXT_SIZE];
        _mm_setcsr(before | STATES[i].bits);
        kernels_ftz_daz(text, sizeof text);
        enum status st = try_open(NULL, 1, NULL, &k, &fault);
        _mm_setcsr(before);
        CU_ASSERT_STRING_EQUAL(text, STATES[i].text);
        CU_ASSERT_EQUAL(st, ST_ENVIRONMENT);
        CU_ASSERT_PTR_NOT_NULL(strstr(fault.message, STATES[i].text));
    }
}

static void test_rounding_mode(void)
{
    struct kernels *k = NULL;
    struct err fault = {0};
    CU_ASSERT_EQUAL(fesetround(FE_UPWARD), 0);
    enum status st = try_open(NULL, 1, NULL, &k, &fault);
    CU_ASSERT_EQUAL(fesetround(FE_TONEAREST), 0);
    CU_ASSERT_EQUAL(st, ST_ENVIRONMENT);
    CU_ASSERT_PTR_NOT_NULL(strstr(fault.message, "rounding mode"));
    CU_ASSERT_PTR_NULL(k);
}

static void test_backends(void)
{
    struct kernels *k = NULL;
    CHECK_FAULT(try_open(NULL, 0, NULL, &k, &err), ST_USAGE, "at least 1");
#if TOKENTAB_FAULTS
    static const char *const NAMES[] = {"reference", "three_classes", "position", "reverse"};
    for (size_t i = 0; i < N_OF(NAMES); i++) {
        CHECK_OK(try_open(NULL, 3, NAMES[i], &k, &err));
        CU_ASSERT_STRING_EQUAL(kernels_environment(k)->blas, NAMES[i]);
        CU_ASSERT_EQUAL(kernels_environment(k)->blas_threads, 3);
        kernels_close(&k);
    }
    /* N41: the message names kernel, shape and element. */
    CHECK_FAULT(try_open(NULL, 1, "broken", &k, &err), ST_KERNEL, "sgemm of broken");
    CU_ASSERT_PTR_NULL(k);
    CHECK_FAULT(try_open(NULL, 1, "none such", &k, &err), ST_USAGE, "none such");
#else
    CHECK_FAULT(try_open(NULL, 1, "reference", &k, &err), ST_USAGE, "not in this build");
#endif
    CU_ASSERT_PTR_NULL(k);
}

int main(void)
{
    static const struct kernels_test TESTS[] = {
        {"choice of a core", test_core_choice},
        {"loading OpenBLAS", test_loading},
        {"flush to zero is refused", test_flush_to_zero},
        {"another rounding mode is refused", test_rounding_mode},
        {"test backends", test_backends},
    };
    return kernels_test_main("kernels environment", TESTS, N_OF(TESTS));
}
