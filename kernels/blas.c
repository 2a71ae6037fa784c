/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* setenv, strcasecmp, dlopen's RTLD_NOLOAD */
#include "kernels/kernels_internal.h"

#include <cblas.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char LIBRARY[] = "libopenblas.so.0";

struct openblas {
    void *library; /* dlopen's handle */
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
};

static void openblas_f32(const struct kernels *k, const struct gemm_call *g, const float *a,
                         const float *b, float *c)
{
    k->openblas->sgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                       g->transpose_b ? CblasTrans : CblasNoTrans, g->m, g->n, g->k,
                       (float)g->alpha, a, g->lda, b, g->ldb, (float)g->beta, c, g->ldc);
}

static void openblas_f64(const struct kernels *k, const struct gemm_call *g, const double *a,
                         const double *b, double *c)
{
    k->openblas->dgemm(CblasRowMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                       g->transpose_b ? CblasTrans : CblasNoTrans, g->m, g->n, g->k, g->alpha, a,
                       g->lda, b, g->ldb, g->beta, c, g->ldc);
}

/* OpenBLAS runs a core it is told to, even one that this CPU cannot execute: refuse it here instead
 * of dying by SIGILL in the first product. */
static const char *core_lacks(const char *core)
{
    bool avx2 = (kernels_cpu_flags() & KERNELS_CPU_AVX2) != 0;
    bool avx512 = (kernels_cpu_flags() & KERNELS_CPU_AVX512) != 0;
    if (strcasecmp(core, "SkylakeX") == 0)
        return avx512 ? NULL : "AVX-512";
    if (strcasecmp(core, "Cooperlake") == 0 || strcasecmp(core, "SapphireRapids") == 0)
        return avx512 && __builtin_cpu_supports("avx512bf16") ? NULL : "AVX-512 with BF16";
    if (strcasecmp(core, "Haswell") == 0 || strcasecmp(core, "Zen") == 0 ||
        strcasecmp(core, "Excavator") == 0)
        return avx2 ? NULL : "AVX2 and FMA";
    if (strcasecmp(core, "Sandybridge") == 0)
        return __builtin_cpu_supports("avx") ? NULL : "AVX";
    if (strcasecmp(core, "Bulldozer") == 0 || strcasecmp(core, "Piledriver") == 0 ||
        strcasecmp(core, "Steamroller") == 0)
        return __builtin_cpu_supports("fma4") ? NULL : "FMA4";
    return NULL;
}

/* Names that OPENBLAS_CORETYPE may have; OpenBLAS is built with some of them. */
static const char CORES[] = "Prescott, Core2, Penryn, Dunnington, Nehalem, Athlon, Opteron, "
                            "Opteron_SSE3, Barcelona, Bobcat, Atom, Nano, Sandybridge, Bulldozer, "
                            "Piledriver, Steamroller, Excavator, Haswell, Zen, SkylakeX, "
                            "Cooperlake, SapphireRapids";

static bool core_is_known(const char *core)
{
    size_t size = strlen(core);
    for (const char *c = CORES; *c != '\0';) {
        size_t n = strcspn(c, ",");
        if (n == size && strncasecmp(c, core, n) == 0)
            return true;
        c += n;
        c += strspn(c, ", ");
    }
    return false;
}

static enum status check_core_runs(const char *core, struct err *err)
{
    const char *missing = core_lacks(core);
    if (missing == NULL)
        return ST_OK;
    char cpu[KERNELS_FLAGS_SIZE];
    kernels_cpu_text(cpu, sizeof cpu);
    const char *best = kernels_core_for(kernels_cpu_flags());
    return err_set(err, ST_ENVIRONMENT,
                   "BLAS core %s needs %s, which this CPU lacks (%s); expected at most %s", core,
                   missing, cpu, best != NULL ? best : "what OpenBLAS detects");
}

/* The library reads the environment in its constructor, so this must come before dlopen. */
static enum status set_variables(const struct kernels_opts *opts, struct err *err)
{
    const char *asked = opts->blas_core != NULL ? opts->blas_core : getenv("OPENBLAS_CORETYPE");
    if (asked != NULL)
        TRY(check_core_runs(asked, err));
    char threads[16];
    (void)snprintf(threads, sizeof threads, "%u", opts->blas_threads);
    if ((opts->blas_core != NULL && setenv("OPENBLAS_CORETYPE", opts->blas_core, 1) != 0) ||
        setenv("OPENBLAS_NUM_THREADS", threads, 1) != 0)
        return err_nomem(err, 64);
    return ST_OK;
}

/* ISO C has no conversion from void * to a function pointer; POSIX promises the same bits. */
static enum status symbol(const struct openblas *blas, const char *name, void *fn_pointer,
                          struct err *err)
{
    void *address = dlsym(blas->library, name);
    if (address == NULL)
        return err_set(err, ST_ENVIRONMENT, "%s: no symbol %s", LIBRARY, name);
    memcpy(fn_pointer, &address, sizeof address);
    return ST_OK;
}

/* "OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..." */
static void read_version(const char *config, char version[KERNELS_TEXT_SIZE])
{
    const char *name = "OpenBLAS ";
    const char *at = strncmp(config, name, strlen(name)) == 0 ? config + strlen(name) : config;
    (void)snprintf(version, KERNELS_TEXT_SIZE, "%.*s", (int)strcspn(at, " "), at);
}

static enum status core_fault(const char *asked, bool was_loaded, const struct kernels *k,
                              struct err *err)
{
    if (was_loaded)
        return err_set(err, ST_ENVIRONMENT,
                       "%s: BLAS core: expected %s, found %s (the library was already loaded in "
                       "this process)",
                       LIBRARY, asked, k->env.blas_core);
    bool known = core_is_known(asked);
    return err_set(err, ST_ENVIRONMENT, "%s BLAS core \"%s\": OpenBLAS %s loaded %s instead; %s%s",
                   known ? "unavailable" : "unknown", asked, k->env.blas_version, k->env.blas_core,
                   known ? "it was built without that core" : "known: ", known ? "" : CORES);
}

static enum status read_library(const struct kernels_opts *opts, bool was_loaded, struct kernels *k,
                                struct err *err)
{
    char *(*get_core)(void) = NULL;
    char *(*get_config)(void) = NULL;
    void (*set_threads)(int) = NULL;
    int (*get_threads)(void) = NULL;
    TRY(symbol(k->openblas, "openblas_get_corename", &get_core, err));
    TRY(symbol(k->openblas, "openblas_get_config", &get_config, err));
    TRY(symbol(k->openblas, "openblas_set_num_threads", &set_threads, err));
    TRY(symbol(k->openblas, "openblas_get_num_threads", &get_threads, err));
    TRY(symbol(k->openblas, "cblas_sgemm", &k->openblas->sgemm, err));
    TRY(symbol(k->openblas, "cblas_dgemm", &k->openblas->dgemm, err));

    (void)snprintf(k->env.blas, sizeof k->env.blas, "OpenBLAS");
    (void)snprintf(k->env.blas_core, sizeof k->env.blas_core, "%s", get_core());
    read_version(get_config(), k->env.blas_version);
    if (opts->blas_core != NULL && strcasecmp(k->env.blas_core, opts->blas_core) != 0)
        return core_fault(opts->blas_core, was_loaded, k, err);
    int threads = 0;
    if (!size_to_int(opts->blas_threads, &threads))
        return err_set(err, ST_USAGE, "BLAS threads: %u is too large", opts->blas_threads);
    set_threads(threads);
    if (get_threads() != threads)
        return err_set(err, ST_ENVIRONMENT, "%s: BLAS threads: expected %d, found %d", LIBRARY,
                       threads, get_threads());
    k->env.blas_threads = opts->blas_threads;
    return ST_OK;
}

static enum status load_library(const struct kernels_opts *opts, struct kernels *k, struct err *err)
{
    void *earlier = dlopen(LIBRARY, RTLD_NOW | RTLD_NOLOAD);
    const bool was_loaded = earlier != NULL;
    if (was_loaded)
        (void)dlclose(earlier);
    TRY(set_variables(opts, err));
    /* RTLD_NODELETE: its worker threads and fork handlers do not survive an unloading, and a
     * library that stays cannot come back with another core. */
    k->openblas->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (k->openblas->library == NULL)
        return err_set(err, ST_ENVIRONMENT, "%s: %s", LIBRARY, dlerror());
    return read_library(opts, was_loaded, k, err);
}

enum status blas_load(const struct kernels_opts *opts, struct kernels *k, struct err *err)
{
    k->openblas = calloc(1, sizeof *k->openblas);
    if (k->openblas == NULL)
        return err_nomem(err, sizeof *k->openblas);
    k->gemm_f32 = openblas_f32;
    k->gemm_f64 = openblas_f64;
    enum status st = load_library(opts, k, err);
    if (st != ST_OK)
        blas_unload(k);
    return st;
}

void blas_unload(struct kernels *k)
{
    if (k->openblas != NULL && k->openblas->library != NULL)
        (void)dlclose(k->openblas->library);
    free(k->openblas);
    k->openblas = NULL;
}
