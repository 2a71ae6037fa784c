/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_SIZE = 512, CAPTURE_SIZE = 64 * 1024 };

static char folder[PATH_SIZE];
static int saved_stderr = -1;
static FILE *capture;
static char captured[CAPTURE_SIZE];

int base_test_main(const char *suite, const struct base_test *tests, size_t n_tests)
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
    base_test_folder_remove();
    return failed == 0 && all_ran ? 0 : 1;
}

const char *base_test_folder(void)
{
    if (folder[0] == '\0') {
        const char *parent = getenv("TMPDIR");
        (void)snprintf(folder, sizeof folder, "%s/tokentab-base-XXXXXX",
                       parent != NULL ? parent : "/tmp");
        if (mkdtemp(folder) == NULL) {
            perror(folder);
            exit(1);
        }
    }
    return folder;
}

static void remove_tree(const char *path)
{
    struct stat info;
    if (lstat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        DIR *dir = opendir(path);
        struct dirent *entry;
        while (dir != NULL && (entry = readdir(dir)) != NULL) {
            char child[PATH_SIZE * 2];
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            (void)snprintf(child, sizeof child, "%s/%s", path, entry->d_name);
            remove_tree(child);
        }
        if (dir != NULL)
            (void)closedir(dir);
    }
    (void)remove(path);
}

void base_test_folder_remove(void)
{
    if (folder[0] != '\0')
        remove_tree(folder);
    folder[0] = '\0';
}

const char *base_test_path(const char *name)
{
    static char paths[8][PATH_SIZE * 2];
    static unsigned next;
    char *path = paths[next++ % 8];
    (void)snprintf(path, sizeof paths[0], "%s/%s", base_test_folder(), name);
    return path;
}

void base_test_capture(void)
{
    (void)fflush(stderr);
    capture = tmpfile();
    saved_stderr = dup(STDERR_FILENO);
    if (capture == NULL || saved_stderr < 0 || dup2(fileno(capture), STDERR_FILENO) < 0) {
        perror("capture of stderr");
        exit(1);
    }
}

const char *base_test_captured(void)
{
    (void)fflush(stderr);
    (void)dup2(saved_stderr, STDERR_FILENO);
    (void)close(saved_stderr);
    rewind(capture);
    size_t size = fread(captured, 1, sizeof captured - 1, capture);
    captured[size] = '\0';
    (void)fclose(capture);
    return captured;
}
