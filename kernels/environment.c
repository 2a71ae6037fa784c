/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* gnu/libc-version.h */
#include "kernels/kernels_internal.h"

#include <fenv.h>
#include <gnu/libc-version.h>
#include <sleef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *kernels_env_field(const struct kernels_env *env, size_t i, const char **name, char *buf,
                              size_t buf_size)
{
    static const char *const names[KERNELS_ENV_FIELDS] = {
        "blas",  "blas_version", "blas_core", "blas_threads",
        "sleef", "libm",         "ftz_daz",   "evaluator"};
    char threads[16];
    (void)snprintf(threads, sizeof threads, "%u", env->blas_threads);
    const char *const values[KERNELS_ENV_FIELDS] = {env->blas,    env->blas_version, env->blas_core,
                                                    threads,      env->sleef,        env->libm,
                                                    env->ftz_daz, env->evaluator};
    bool known = i < KERNELS_ENV_FIELDS;
    if (name != NULL)
        *name = known ? names[i] : "";
    (void)snprintf(buf, buf_size, "%s", known ? values[i] : "");
    return buf;
}

static enum status read_process(struct kernels_env *env, struct err *err)
{
    kernels_ftz_daz(env->ftz_daz, sizeof env->ftz_daz);
    if (strcmp(env->ftz_daz, "off") != 0)
        return err_set(err, ST_ENVIRONMENT,
                       "flush-to-zero state: expected off, found %s (set by the launcher, a "
                       "-ffast-math library or a tool)",
                       env->ftz_daz);
    /* Both arithmetics are defined for nearest even. */
    if (fegetround() != FE_TONEAREST)
        return err_set(
            err, ST_ENVIRONMENT,
            "rounding mode: expected to nearest, found another (set by the launcher or a "
            "tool)");
    (void)snprintf(env->sleef, sizeof env->sleef, "%d.%d.%d %s", SLEEF_VERSION_MAJOR,
                   SLEEF_VERSION_MINOR, SLEEF_VERSION_PATCHLEVEL, row_loops_pick()->isa);
    (void)snprintf(env->libm, sizeof env->libm, "%s", gnu_get_libc_version());
    (void)snprintf(env->evaluator, sizeof env->evaluator, "%s", KERNELS_EVALUATOR_VERSION);
    return ST_OK;
}

static enum status open_into(const struct kernels_opts *opts, struct kernels *k, struct err *err)
{
    TRY(read_process(&k->env, err));
    if (opts->backend != NULL) {
        TRY(blas_test_backend(opts->backend, k, err));
        k->env.blas_threads = opts->blas_threads;
    } else {
        TRY(blas_load(opts, k, err));
    }
    TRY(kernels_self_check(k, err));
    /* A library constructor may have changed the mode behind our back. */
    return read_process(&k->env, err);
}

enum status kernels_open(const struct kernels_opts *opts, struct kernels **out, struct err *err)
{
    *out = NULL;
    if (opts->blas_threads == 0)
        return err_set(err, ST_USAGE, "BLAS threads: expected at least 1, found 0");
    struct kernels *k = calloc(1, sizeof *k);
    if (k == NULL)
        return err_nomem(err, sizeof *k);
    enum status st = open_into(opts, k, err);
    if (st != ST_OK) {
        kernels_close(&k);
        return st;
    }
    *out = k;
    return ST_OK;
}

void kernels_close(struct kernels **k)
{
    if (k == NULL || *k == NULL)
        return;
    blas_unload(*k);
    free(*k);
    *k = NULL;
}

const struct kernels_env *kernels_environment(const struct kernels *k)
{
    return &k->env;
}

double kernels_measure_gflops(const struct kernels *k, double seconds)
{
    enum { SIDE = 512 };
    struct err err = {0};
    void *a = NULL, *b = NULL, *c = NULL;
    double best = 0, start = clock_s();
    if (mem_calloc((size_t)SIDE * SIDE, sizeof(float), &a, &err) == ST_OK &&
        mem_calloc((size_t)SIDE * SIDE, sizeof(float), &b, &err) == ST_OK &&
        mem_calloc((size_t)SIDE * SIDE, sizeof(float), &c, &err) == ST_OK) {
        struct gemm_call g = {.m = SIDE,
                              .n = SIDE,
                              .k = SIDE,
                              .lda = SIDE,
                              .ldb = SIDE,
                              .ldc = SIDE,
                              .transpose_b = true,
                              .alpha = 1,
                              .beta = 0};
        /* The best of several: what the core can do, not what a busy machine lets it. */
        do {
            double before = clock_s();
            k->gemm_f32(k, &g, a, b, c);
            double spent = clock_s() - before;
            double rate = spent > 0 ? 2e-9 * SIDE * SIDE * SIDE / spent : 0;
            best = rate > best ? rate : best;
        } while (clock_s() - start < seconds);
    }
    free(a);
    free(b);
    free(c);
    return best;
}
