/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* sched_getaffinity */
/* What a bug report needs, and what would make a run slow or fail. */
#include "driver/doctor_internal.h"

#include "base/versions.h"
#include "formats/libraries.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void doctor_add(struct doctor *d, const char *section, const char *name, enum doctor_state state,
                const char *fmt, ...)
{
    if (d->n_checks == DOCTOR_MAX_CHECKS)
        return;
    struct doctor_check *c = &d->checks[d->n_checks++];
    *c = (struct doctor_check){.section = section, .name = name, .state = state};
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(c->value, sizeof c->value, fmt, args);
    va_end(args);
}

/* ---- versions -------------------------------------------------------------------------------- */

static void doctor_versions(struct doctor *d)
{
    const struct doctor_core *used = &d->cores[d->in_use];
    char xxhash[24];
    doctor_add(d, "versions", "tokentab", DOCTOR_OK, "%s, evaluator %s", DRIVER_VERSION,
               KERNELS_EVALUATOR_VERSION);
    doctor_add(d, "versions", "MPI", DOCTOR_OK, "%s", comm_library());
    doctor_add(d, "versions", "zstd", DOCTOR_OK, "%s", format_zstd_version());
    doctor_add(d, "versions", "cJSON", DOCTOR_OK, "%s", format_cjson_version());
    doctor_add(d, "versions", "xxHash", DOCTOR_OK, "%s",
               base_xxhash_version(xxhash, sizeof xxhash));
    doctor_add(d, "versions", "libcrypto", DOCTOR_OK, "%s", base_crypto_version());
    if (used->st == ST_OK) {
        doctor_add(d, "versions", "Sleef", DOCTOR_OK, "%s", used->env.sleef);
        doctor_add(d, "versions", "libm", DOCTOR_OK, "glibc %s", used->env.libm);
    }
}

static void doctor_hdf5(struct doctor *d)
{
    struct format_hdf5_info info;
    struct err err = {0};
    if (format_hdf5_info_read(&info, &err) != ST_OK) {
        doctor_add(d, "versions", "HDF5", DOCTOR_FAIL, "%s", err.message);
        return;
    }
    char have[128] = "", lack[128] = "";
    for (size_t i = 0; i < FORMAT_HDF5_FILTERS; i++) {
        char *list = info.filters[i].available ? have : lack;
        size_t at = strlen(list);
        (void)snprintf(list + at, sizeof have - at, "%s%s", at == 0 ? "" : " ",
                       info.filters[i].name);
    }
    doctor_add(d, "versions", "HDF5", DOCTOR_OK, "%s", info.version);
    doctor_add(d, "versions", "HDF5 filters", DOCTOR_NOTE, "%s%s%s (unit files need none of them)",
               have, lack[0] == '\0' ? "" : "; not ", lack);
}

/* ---- machine --------------------------------------------------------------------------------- */

static unsigned usable_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (unsigned)CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n > 0 ? (unsigned)n : 1;
}

static void doctor_machine(struct doctor *d)
{
    char cpu[KERNELS_FLAGS_SIZE], ftz[KERNELS_TEXT_SIZE], memory[32];
    unsigned long long threads = d->ctx->opts->blas_threads;
    uint64_t local_ranks = 1;
    kernels_cpu_text(cpu, sizeof cpu);
    kernels_ftz_daz(ftz, sizeof ftz);
    doctor_add(d, "machine", "CPU", DOCTOR_OK, "%s", cpu);
    unsigned cores = usable_cores();
    const char *local = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (local == NULL || !str_to_u64(local, &local_ranks) || local_ranks == 0)
        local_ranks = 1;
    bool crowded = local_ranks * threads > cores;
    doctor_add(d, "machine", "cores", crowded ? DOCTOR_WARN : DOCTOR_OK,
               "%u usable of %ld; %llu ranks here with %llu BLAS threads each%s", cores,
               sysconf(_SC_NPROCESSORS_ONLN), (unsigned long long)local_ranks, threads,
               crowded ? ": more threads than cores" : "");
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0)
        doctor_add(d, "machine", "memory", DOCTOR_OK, "%s",
                   str_bytes((uint64_t)pages * (uint64_t)page, memory, sizeof memory));
    bool off = strcmp(ftz, "off") == 0;
    doctor_add(d, "machine", "FTZ/DAZ", off ? DOCTOR_OK : DOCTOR_FAIL, "%s%s", ftz,
               off ? "" : ": subnormal numbers would be lost; something linked with -ffast-math?");
}

static void doctor_launcher(struct doctor *d)
{
    static const char *const names[] = {
        "OMPI_COMM_WORLD_SIZE", "PMIX_RANK",          "PMI_SIZE",
        "SLURM_JOB_ID",         "SLURM_NTASKS",       "SLURM_STEP_NUM_TASKS",
        "SLURM_PROCID",         "SLURM_CPUS_ON_NODE", "OPENBLAS_NUM_THREADS",
        "OMP_NUM_THREADS",      "OPENBLAS_CORETYPE",  "HDF5_USE_FILE_LOCKING"};
    char text[DOCTOR_VALUE_SIZE] = "";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        size_t at = strlen(text);
        if (value != NULL && at + 1 < sizeof text)
            (void)snprintf(text + at, sizeof text - at, "%s%s=%s", at == 0 ? "" : " ", names[i],
                           value);
    }
    doctor_add(d, "launcher", "variables", DOCTOR_NOTE, "%s", text[0] == '\0' ? "none" : text);
    /* Under mpirun this serial verb is many; that is no singleton in disguise. */
    struct err err = {0};
    if (getenv("OMPI_COMM_WORLD_SIZE") == NULL && comm_check_launcher(1, &err) != ST_OK)
        doctor_add(d, "launcher", "ranks", DOCTOR_WARN, "%s", err.message);
}

/* ---- results --------------------------------------------------------------------------------- */

static const char *const state_words[] = {"ok", "note", "warn", "fail"};

static void result_text(struct doctor *d)
{
    struct bytes *out = &d->ctx->result;
    const char *section = "";
    for (size_t i = 0; i < d->n_checks; i++) {
        const struct doctor_check *c = &d->checks[i];
        if (strcmp(section, c->section) != 0)
            bytes_printf(out, "%s\n", c->section);
        section = c->section;
        bytes_printf(out, "  %-4s  %-18s  %s\n", state_words[c->state], c->name, c->value);
    }
}

static void result_json(struct doctor *d, size_t n_failed)
{
    struct format_writer w;
    const struct doctor_core *used = &d->cores[d->in_use];
    verb_json_start(d->ctx, &w);
    format_write_bool(&w, "healthy", n_failed == 0);
    format_write_object(&w, "blas");
    format_write_string(&w, "core_in_use", used->env.blas_core);
    format_write_double(&w, "gflops", used->gflops);
    const struct doctor_core *best = doctor_best_core(d);
    if (best != NULL && best->gflops > 0) {
        format_write_string(&w, "best_core", best->env.blas_core);
        format_write_double(&w, "share_of_best", used->gflops / best->gflops);
    }
    format_write_array(&w, "cores");
    for (size_t i = 0; i < d->n_cores; i++) {
        format_write_object(&w, NULL);
        format_write_string(&w, "asked", d->cores[i].asked);
        format_write_string(&w, "core", d->cores[i].env.blas_core);
        format_write_double(&w, "gflops", d->cores[i].gflops);
        format_write_string(&w, "fault", d->cores[i].message);
        format_write_end_object(&w);
    }
    format_write_end_array(&w);
    format_write_end_object(&w);
    format_write_array(&w, "checks");
    for (size_t i = 0; i < d->n_checks; i++) {
        const struct doctor_check *c = &d->checks[i];
        format_write_object(&w, NULL);
        format_write_string(&w, "section", c->section);
        format_write_string(&w, "name", c->name);
        format_write_string(&w, "state", state_words[c->state]);
        format_write_string(&w, "value", c->value);
        format_write_end_object(&w);
    }
    format_write_end_array(&w);
    verb_json_end(d->ctx, &w);
}

enum status driver_verb_doctor(struct driver_context *ctx, struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(1, sizeof(struct doctor), &memory, err));
    struct doctor *d = memory;
    d->ctx = ctx;
    doctor_blas(d);
    doctor_versions(d);
    doctor_hdf5(d);
    doctor_machine(d);
    doctor_launcher(d);
    doctor_folder(d, ctx->opts->n_args > 0 ? ctx->opts->args[0] : ".");
    size_t n_failed = 0;
    const struct doctor_check *first = NULL;
    for (size_t i = d->n_checks; i-- > 0;)
        if (d->checks[i].state == DOCTOR_FAIL) {
            n_failed++;
            first = &d->checks[i];
        }
    if (ctx->opts->json)
        result_json(d, n_failed);
    else
        result_text(d);
    enum status st = ST_OK;
    if (first != NULL)
        st = err_set(err, ST_ENVIRONMENT, "doctor: %zu checks failed; %s: %s", n_failed,
                     first->name, first->value);
    free(d);
    return st;
}
