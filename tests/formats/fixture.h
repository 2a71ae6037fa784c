/* SPDX-License-Identifier: Apache-2.0 */
/** Small files for the tests of this folder, made in the working directory. */
#ifndef TESTS_FORMATS_FIXTURE_H
#define TESTS_FORMATS_FIXTURE_H

#include "base/base.h"

#include <CUnit/Basic.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/** Write `size` bytes to `path`. */
static inline void fixture_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static inline void fixture_text(const char *path, const char *text)
{
    fixture_file(path, text, strlen(text));
}

/** Length prefix, header, data.  The header may hold NUL bytes. */
static inline void fixture_safetensors(const char *path, const char *header, const void *data,
                                       size_t data_size)
{
    struct bytes b = {0};
    bytes_put_u64(&b, strlen(header));
    bytes_append(&b, header, strlen(header));
    bytes_append(&b, data, data_size);
    fixture_file(path, b.data, b.size);
    bytes_free(&b);
}

static inline void fixture_dir(const char *path)
{
    if (mkdir(path, 0777) != 0 && !file_is_dir(path)) {
        perror(path);
        exit(1);
    }
}

/** The message holds `part`; prints it when it does not. */
static inline bool fixture_says(const struct err *err, const char *part)
{
    bool yes = strstr(err->message, part) != NULL;
    if (!yes)
        printf("\n    expected \"%s\" in: %s\n", part, err->message);
    if (strchr(err->message, '\n') != NULL)
        yes = false;
    return yes;
}

/** Peak resident bytes of this process. */
static inline uint64_t fixture_peak_bytes(void)
{
    FILE *f = fopen("/proc/self/status", "r");
    char line[256];
    unsigned long long kib = 0;
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmHWM: %llu", &kib) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return (uint64_t)kib * 1024;
}

struct fixture_case {
    const char *name;
    void (*run)(void);
};

/** Run all cases; the exit code of the program. */
static inline int fixture_run(const char *suite, const struct fixture_case *cases, size_t n)
{
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite s = CU_add_suite(suite, NULL, NULL);
    for (size_t i = 0; s != NULL && i < n; i++)
        if (CU_add_test(s, cases[i].name, cases[i].run) == NULL)
            s = NULL;
    if (s == NULL)
        return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    CU_basic_run_tests();
    bool failed = CU_get_number_of_failures() != 0 || CU_get_number_of_tests_run() != n;
    CU_cleanup_registry();
    return failed ? 1 : 0;
}

#endif
