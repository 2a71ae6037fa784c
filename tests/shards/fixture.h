/* SPDX-License-Identifier: Apache-2.0 */
/** Folders and small files for the tests of shards, and the main of every program. */
#ifndef TESTS_SHARDS_FIXTURE_H
#define TESTS_SHARDS_FIXTURE_H

#include "shards/shards.h"

#include <CUnit/Basic.h>
#include <CUnit/CUnit.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/** A new folder under the working directory, removed by fixture_remove. */
static inline void fixture_folder(char *path, size_t size)
{
    (void)snprintf(path, size, "shards-test-XXXXXX");
    if (mkdtemp(path) == NULL) {
        perror(path);
        exit(1);
    }
}

static inline void fixture_remove(const char *path)
{
    char command[512];
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", path);
    if (system(command) != 0)
        exit(1);
}

static inline void fixture_file(const char *path, const void *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static inline void fixture_sleep_ms(long ms)
{
    struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

/** The message holds `part`; prints it when it does not. */
static inline bool fixture_says(const char *text, const char *part)
{
    bool yes = strstr(text, part) != NULL && strchr(text, '\n') == NULL;
    if (!yes)
        printf("\n    expected \"%s\" in: %s\n", part, text);
    return yes;
}

struct fixture_case {
    const char *name;
    void (*run)(void);
};

static inline int fixture_main(const char *suite_name, const struct fixture_case *cases, size_t n)
{
    (void)setvbuf(stdout, NULL, _IONBF, 0); /* forked children must not print it twice */
    if (CU_initialize_registry() != CUE_SUCCESS)
        return 1;
    CU_pSuite suite = CU_add_suite(suite_name, NULL, NULL);
    for (size_t i = 0; i < n; i++)
        if (suite == NULL || CU_add_test(suite, cases[i].name, cases[i].run) == NULL)
            return 1;
    CU_basic_set_mode(CU_BRM_VERBOSE);
    (void)CU_basic_run_tests();
    unsigned failures = CU_get_number_of_failures();
    CU_cleanup_registry();
    return failures > 0 ? 1 : 0;
}

#endif
