/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels_test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kernels_test_main(const char *suite, const struct kernels_test *tests, size_t n_tests)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite cu_suite = CU_add_suite(suite, NULL, NULL);
    bool added = cu_suite != NULL;
    for (size_t i = 0; added && i < n_tests; i++)
        added = CU_add_test(cu_suite, tests[i].name, tests[i].run) != NULL;
    if (!added)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    unsigned failed = CU_get_number_of_failures();
    bool all_ran = CU_get_number_of_tests_run() == n_tests;
    CU_cleanup_registry();
    return failed == 0 && all_ran ? 0 : 1;
}

struct kernels *kernels_test_open(const char *backend)
{
    struct err err = {0};
    struct kernels *k = NULL;
    const struct kernels_opts opts = {
        .blas_core = kernels_core_for(kernels_cpu_flags()), .blas_threads = 1, .backend = backend};
    if (kernels_open(&opts, &k, &err) != ST_OK) {
        printf("kernels_open: %s\n", err.message);
        exit(1);
    }
    return k;
}

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*state >> 11) + 0.5) / 0x1p53;
}

double kernels_test_normal(uint64_t *state)
{
    double radius = sqrt(-2 * log(uniform(state)));
    return radius * cos(6.283185307179586 * uniform(state));
}

void kernels_test_fill_f32(uint64_t *state, enum dtype dt, size_t n, float *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)kernels_test_normal(state);
    kernels_round_f32(dt, x, n);
}

void kernels_test_fill_f64(uint64_t *state, size_t n, double *x)
{
    for (size_t i = 0; i < n; i++)
        x[i] = kernels_test_normal(state);
}

void *kernels_test_alloc(size_t n, size_t size)
{
    struct err err = {0};
    void *p = NULL;
    if (mem_calloc(n, size, &p, &err) != ST_OK) {
        printf("%s\n", err.message);
        exit(1);
    }
    return p;
}

static int64_t ordered(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? (int64_t)INT32_MIN - bits : bits;
}

uint64_t kernels_test_ulp_f32(float a, float b)
{
    int64_t distance = ordered(a) - ordered(b);
    return (uint64_t)(distance < 0 ? -distance : distance);
}

static void die(const char *path, const char *what)
{
    printf("%s: %s\n", path, what);
    exit(1);
}

bool kernels_test_golden(const char *file, const char *name, size_t n, double *out)
{
    const char *source = getenv("TOKENTAB_SOURCE_DIR");
    char path[1024], key[128];
    (void)snprintf(path, sizeof path, "%s/../shared/golden/%s", source != NULL ? source : ".",
                   file);
    struct err err = {0};
    uint8_t *data = NULL;
    size_t size = 0;
    if (!file_exists(path))
        return false;
    if (file_read_all(path, 1u << 24, &data, &size, &err) != ST_OK || size < 8)
        die(path, err.message);
    /* Headers of one known writer: enough to find one tensor. */
    uint64_t header = 0;
    memcpy(&header, data, sizeof header);
    (void)snprintf(key, sizeof key, "\"%s\":{\"dtype\":\"", name);
    const char *at = strstr((const char *)data + 8, key);
    if (at == NULL)
        die(path, name);
    bool wide = strncmp(at + strlen(key), "F64", 3) == 0;
    const char *offsets = strstr(at, "\"data_offsets\":[");
    uint64_t first = strtoull(offsets + strlen("\"data_offsets\":["), NULL, 10);
    size_t element = wide ? 8 : 4;
    if (8 + header + first + n * element > size)
        die(path, "short");
    for (size_t i = 0; i < n; i++) {
        const uint8_t *from = data + 8 + header + first + i * element;
        float narrow = 0;
        if (wide)
            memcpy(out + i, from, 8);
        else
            memcpy(&narrow, from, 4);
        out[i] = wide ? out[i] : (double)narrow;
    }
    free(data);
    return true;
}
