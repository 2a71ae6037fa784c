/* SPDX-License-Identifier: Apache-2.0 */
#include "base/file_system.h"
#include "base_test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static struct err err;

static void write_file(const char *path, const char *text)
{
    CHECK_OK(file_publish(path, text, strlen(text), &err), err);
}

/* The whole file is `text`. */
static void check_file(const char *path, const char *text)
{
    uint8_t *data = NULL;
    size_t size = 0;
    CHECK_OK(file_read_all(path, 1 << 20, &data, &size, &err), err);
    CU_ASSERT_PTR_NOT_NULL_FATAL(data);
    CU_ASSERT_EQUAL(size, strlen(text));
    CHECK_TEXT((const char *)data, text); /* there is a NUL behind it */
    free(data);
}

static void test_open_refuses(void)
{
    int fd = -1;
    uint64_t size = 77;
    char expected[2000];
    const char *path = base_test_path("absent");
    (void)snprintf(expected, sizeof expected, "%s: No such file or directory", path);
    CHECK_FAULT(file_open_read(path, &fd, &size, &err), ST_FORMAT, err, expected);
    CHECK_TEXT(err.message, expected);
    CHECK_FAULT(file_open_read(base_test_folder(), &fd, &size, &err), ST_FORMAT, err,
                "Is a directory");
    CHECK_FAULT(file_open_read("", &fd, &size, &err), ST_FORMAT, err, "No such file");
    CHECK_FAULT(file_open_read("/dev/null", &fd, &size, &err), ST_FORMAT, err,
                "/dev/null: not a regular file");
    const char *fifo = base_test_path("fifo");
    CU_ASSERT_EQUAL_FATAL(mkfifo(fifo, 0600), 0);
    CHECK_FAULT(file_open_read(fifo, &fd, &size, &err), ST_FORMAT, err, "not a regular file");
    write_file(base_test_path("plain"), "x");
    CHECK_FAULT(file_open_read(base_test_path("plain/below"), &fd, &size, &err), ST_FORMAT, err,
                "Not a directory");
    if (geteuid() != 0) { /* root reads everything */
        const char *secret = base_test_path("secret");
        write_file(secret, "x");
        CU_ASSERT_EQUAL(chmod(secret, 0), 0);
        CHECK_FAULT(file_open_read(secret, &fd, &size, &err), ST_FORMAT, err, "Permission denied");
    }
    CU_ASSERT_EQUAL(fd, -1);
    CU_ASSERT_EQUAL(size, 77);
}

/* A full table of descriptors is the machine's fault, not the file's. */
static void test_no_descriptors(void)
{
    const char *path = base_test_path("plain");
    write_file(path, "x");
    struct rlimit saved;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_NOFILE, &saved), 0);
    struct rlimit none = {.rlim_cur = 0, .rlim_max = saved.rlim_max};
    int fd = -1;
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &none), 0);
    enum status st = file_open_read(path, &fd, NULL, NULL);
    enum status publish_st = file_publish(path, "y", 1, NULL);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_NOFILE, &saved), 0);
    CU_ASSERT_EQUAL(st, ST_IO);
    CU_ASSERT_EQUAL(publish_st, ST_IO);
    check_file(path, "x");
}

static void test_read_at(void)
{
    const char *path = base_test_path("data");
    write_file(path, "0123456789");
    int fd = -1;
    uint64_t size = 0;
    CHECK_OK(file_open_read(path, &fd, &size, &err), err);
    CU_ASSERT_EQUAL(size, 10);
    char buf[16] = "";
    CHECK_OK(file_read_at(fd, path, 3, buf, 4, &err), err);
    CU_ASSERT_EQUAL(memcmp(buf, "3456", 5), 0);
    CHECK_OK(file_read_at(fd, path, 10, buf, 0, &err), err);
    CHECK_OK(file_read_at(fd, path, 0, buf, 10, &err), err);
    CHECK_FAULT(file_read_at(fd, path, 8, buf, 4, &err), ST_IO, err,
                "offset 8: short read, expected 4 bytes, found 2");
    CU_ASSERT_PTR_EQUAL(strstr(err.message, path), err.message);
    CHECK_FAULT(file_read_at(fd, path, 100, buf, 1, &err), ST_IO, err, "found 0");
    CHECK_FAULT(file_read_at(fd, path, UINT64_MAX, buf, 1, &err), ST_IO, err, "out of range");
    CHECK_FAULT(file_read_at(fd, path, INT64_MAX, buf, 1, &err), ST_IO, err, "out of range");

    /* The file shrinks under the reader. */
    CU_ASSERT_EQUAL(truncate(path, 5), 0);
    CHECK_FAULT(file_read_at(fd, path, 0, buf, 10, &err), ST_IO, err,
                "offset 0: short read, expected 10 bytes, found 5");
    CU_ASSERT_EQUAL(close(fd), 0);
    CHECK_FAULT(file_read_at(fd, path, 0, buf, 1, &err), ST_IO, err, "Bad file descriptor");
}

/* Page 0 of a process is never mapped: reading it there is EIO, without a broken disk. */
static void test_read_error(void)
{
    int fd = open("/proc/self/mem", O_RDONLY);
    if (fd < 0) {
        printf("skipped, no /proc/self/mem: ");
        return;
    }
    char c;
    CHECK_FAULT(file_read_at(fd, "mem", 16, &c, 1, &err), ST_IO, err,
                "mem: offset 16: Input/output error");
    CU_ASSERT_EQUAL(close(fd), 0);
}

static void test_write_at(void)
{
    const char *path = base_test_path("written");
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    CU_ASSERT_FATAL(fd >= 0);
    CHECK_OK(file_write_at(fd, path, 0, "abcdef", 6, &err), err);
    CHECK_OK(file_write_at(fd, path, 2, "XY", 2, &err), err);
    CHECK_OK(file_write_at(fd, path, 0, NULL, 0, &err), err);
    CHECK_FAULT(file_write_at(fd, path, UINT64_MAX - 1, "abc", 3, &err), ST_IO, err,
                "out of range");
    CU_ASSERT_EQUAL(close(fd), 0);
    check_file(path, "abXYef");

    fd = open("/dev/full", O_WRONLY);
    CU_ASSERT_FATAL(fd >= 0);
    CHECK_FAULT(file_write_at(fd, "/dev/full", 0, "abc", 3, &err), ST_IO, err,
                "/dev/full: offset 0: No space left on device");
    CU_ASSERT_EQUAL(close(fd), 0);
}

static void test_read_all(void)
{
    const char *path = base_test_path("all");
    write_file(path, "");
    check_file(path, "");
    write_file(path, "12345");
    check_file(path, "12345");
    uint8_t *data = NULL;
    size_t size = 77;
    CHECK_OK(file_read_all(path, 5, &data, &size, &err), err);
    free(data);
    data = NULL;
    size = 77;
    CHECK_FAULT(file_read_all(path, 4, &data, &size, &err), ST_FORMAT, err,
                "5 bytes, at most 4 expected");
    CHECK_FAULT(file_read_all(base_test_path("absent"), 4, &data, &size, &err), ST_FORMAT, err,
                "No such file");
    CU_ASSERT_PTR_NULL(data);
    CU_ASSERT_EQUAL(size, 77);
}

/* After a failed publication the file is the old one and the temporary one is gone. */
static void check_untouched(const char *path, const char *text)
{
    check_file(path, text);
    char *tmp = str_printf("%s.tmp", path);
    CU_ASSERT_PTR_NOT_NULL_FATAL(tmp);
    CU_ASSERT(!file_exists(tmp));
    free(tmp);
}

static void test_publish(void)
{
    const char *path = base_test_path("published");
    write_file(path, "one");
    check_untouched(path, "one");
    write_file(base_test_path("published.tmp"), "left by a killed run, and longer");
    write_file(path, "two");
    check_untouched(path, "two");

    CHECK_FAULT(file_publish(base_test_path("absent/x"), "a", 1, &err), ST_IO, err,
                "x.tmp: No such file or directory");
    const char *folder = base_test_path("folder");
    CHECK_OK(file_make_dirs(base_test_path("folder/inside"), &err), err);
    CHECK_FAULT(file_publish(folder, "a", 1, &err), ST_IO, err, "folder: Is a directory");
    CU_ASSERT(file_is_dir(folder));
    CU_ASSERT(!file_exists(base_test_path("folder.tmp")));
    /* a folder where the temporary file should be is not ours to remove */
    CHECK_OK(file_make_dirs(base_test_path("published.tmp"), &err), err);
    CHECK_FAULT(file_publish(path, "three", 5, &err), ST_IO, err, "Is a directory");
    CU_ASSERT_EQUAL(rmdir(base_test_path("published.tmp")), 0);
    check_untouched(path, "two");
    if (geteuid() == 0) { /* root writes everywhere */
        printf("read-only folder skipped as root: ");
        return;
    }
    CU_ASSERT_EQUAL(chmod(folder, 0500), 0);
    CHECK_FAULT(file_publish(base_test_path("folder/x"), "a", 1, &err), ST_IO, err,
                "Permission denied");
    CU_ASSERT_EQUAL(chmod(folder, 0700), 0);
}

/* A limit of the file size stands in for a full disk: the write starts, and ends early. */
static void test_publish_disk_full(void)
{
    const char *path = base_test_path("limited");
    write_file(path, "old");
    struct rlimit saved;
    CU_ASSERT_EQUAL_FATAL(getrlimit(RLIMIT_FSIZE, &saved), 0);
    struct rlimit small = {.rlim_cur = 100, .rlim_max = saved.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    char data[300];
    memset(data, 'd', sizeof data);
    struct err limited = {.st = ST_OK};
    /* no output in between: it may go to a file, too */
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status st = file_publish(path, data, sizeof data, &limited);
    CU_ASSERT_EQUAL_FATAL(setrlimit(RLIMIT_FSIZE, &saved), 0);
    (void)signal(SIGXFSZ, handler);
    CU_ASSERT_EQUAL(st, ST_IO);
    CU_ASSERT_PTR_NOT_NULL(strstr(limited.message, "limited.tmp: offset 100: File too large"));
    check_untouched(path, "old");
}

static void test_rename_and_sync(void)
{
    write_file(base_test_path("from"), "f");
    CHECK_OK(file_rename(base_test_path("from"), base_test_path("to"), &err), err);
    CU_ASSERT(!file_exists(base_test_path("from")));
    check_file(base_test_path("to"), "f");
    CHECK_FAULT(file_rename(base_test_path("from"), base_test_path("to"), &err), ST_IO, err,
                "No such file or directory");
    check_file(base_test_path("to"), "f");
    CHECK_OK(file_sync(base_test_path("to"), &err), err);
    CHECK_OK(file_sync(base_test_folder(), &err), err);
    CHECK_FAULT(file_sync(base_test_path("absent"), &err), ST_IO, err, "No such file");
    /* EINVAL from a folder is a file system that has nothing to sync; from others it is an error */
    if (file_is_dir("/proc/self"))
        CHECK_OK(file_sync("/proc", &err), err);
    CHECK_FAULT(file_sync("/dev/null", &err), ST_IO, err, "/dev/null: sync: Invalid argument");
}

static void test_make_dirs(void)
{
    CHECK_OK(file_make_dirs(base_test_path("a/b//c"), &err), err);
    CU_ASSERT(file_is_dir(base_test_path("a/b/c")));
    CHECK_OK(file_make_dirs(base_test_path("a/b/c"), &err), err);
    CHECK_OK(file_make_dirs(base_test_path("a/b/d/"), &err), err);
    CU_ASSERT(file_is_dir(base_test_path("a/b/d")));
    CHECK_OK(file_make_dirs("/", &err), err);
    CHECK_OK(file_make_dirs(".", &err), err);
    write_file(base_test_path("a/file"), "x");
    CHECK_FAULT(file_make_dirs(base_test_path("a/file"), &err), ST_IO, err,
                "a/file: exists and is not a folder");
    CHECK_FAULT(file_make_dirs(base_test_path("a/file/x"), &err), ST_IO, err,
                "a/file: exists and is not a folder");
    CHECK_FAULT(file_make_dirs("", &err), ST_IO, err, "No such file");
    CU_ASSERT(file_exists(base_test_path("a/file")) && !file_is_dir(base_test_path("a/file")));
    CU_ASSERT(!file_exists(base_test_path("a/absent")) && !file_is_dir(base_test_path("a/x")));

    int here = open(".", O_RDONLY);
    CU_ASSERT_FATAL(here >= 0);
    CU_ASSERT_EQUAL_FATAL(chdir(base_test_folder()), 0);
    CHECK_OK(file_make_dirs("rel/ative", &err), err);
    CHECK_OK(file_publish("bare", "b", 1, &err), err);
    CU_ASSERT_EQUAL_FATAL(fchdir(here), 0);
    CU_ASSERT_EQUAL(close(here), 0);
    CU_ASSERT(file_is_dir(base_test_path("rel/ative")));
    check_file(base_test_path("bare"), "b");
}

static void test_digests(void)
{
    /* larger than the buffer of file_digests, and not a multiple of it */
    size_t n = (1 << 20) + 12345;
    uint8_t *data = malloc(n);
    CU_ASSERT_PTR_NOT_NULL_FATAL(data);
    for (size_t i = 0; i < n; i++)
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    const char *path = base_test_path("digested");
    CHECK_OK(file_publish(path, data, n, &err), err);
    char sha[SHA256_HEX_SIZE], expected_sha[SHA256_HEX_SIZE];
    struct digest xxh, expected_xxh = digest_of(data, n);
    uint64_t size = 0;
    CHECK_OK(sha256_of(data, n, expected_sha, &err), err);
    CHECK_OK(file_digests(path, sha, &xxh, &size, &err), err);
    CHECK_TEXT(sha, expected_sha);
    CU_ASSERT(digest_equal(&xxh, &expected_xxh));
    CU_ASSERT_EQUAL(size, n);
    memset(&xxh, 0, sizeof xxh);
    sha[0] = '\0';
    CHECK_OK(file_digests(path, NULL, &xxh, NULL, &err), err);
    CU_ASSERT(digest_equal(&xxh, &expected_xxh));
    CHECK_OK(file_digests(path, sha, NULL, NULL, &err), err);
    CHECK_TEXT(sha, expected_sha);
    free(data);

    write_file(path, "");
    CHECK_OK(file_digests(path, sha, &xxh, &size, &err), err);
    CHECK_TEXT(sha, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CU_ASSERT_EQUAL(size, 0);
    CHECK_FAULT(file_digests(base_test_path("absent"), sha, &xxh, &size, &err), ST_FORMAT, err,
                "No such file");
}

static void check_owned(char *text, const char *expected)
{
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CHECK_TEXT(text, expected);
    free(text);
}

static void test_paths(void)
{
    check_owned(path_join("a", "b"), "a/b");
    check_owned(path_join("a/", "b"), "a/b");
    check_owned(path_join("/", "b"), "/b");
    check_owned(path_join(NULL, "b"), "b");
    check_owned(path_join("", "b"), "b");
    check_owned(path_join("a", "/b"), "/b");
    check_owned(path_dir("a/b"), "a");
    check_owned(path_dir("a/b/c"), "a/b");
    check_owned(path_dir("a//b"), "a");
    check_owned(path_dir("a/b/"), "a");
    check_owned(path_dir("a"), ".");
    check_owned(path_dir(""), ".");
    check_owned(path_dir("/a"), "/");
    check_owned(path_dir("//a"), "/");
    check_owned(path_dir("/"), "/");
    CHECK_TEXT(path_base("a/b.json"), "b.json");
    CHECK_TEXT(path_base("b.json"), "b.json");
    CHECK_TEXT(path_base("/b"), "b");
    CHECK_TEXT(path_base("a/b/"), "b/");
}

static void test_file_system(void)
{
    char here[FILE_SYSTEM_NAME_SIZE], absent[FILE_SYSTEM_NAME_SIZE], buf[FILE_SYSTEM_NAME_SIZE];
    (void)snprintf(here, sizeof here, "%s", file_system_name(base_test_path("."), buf));
    (void)snprintf(absent, sizeof absent, "%s", file_system_name(base_test_path("absent"), buf));
    CHECK_TEXT(absent, here); /* that of its folder */
    CHECK_TEXT(file_system_name(base_test_path("absent/deeper"), buf), "unknown");
    if (file_is_dir("/proc/self")) /* no file of a run ever lies there */
        CHECK_TEXT(file_system_name("/proc", buf), "0x9fa0");
}

#if TOKENTAB_FAULTS
static void arm(const char *spec)
{
    (void)unsetenv("TOKENTAB_FAULT");
    (void)fault_hit("none");
    CU_ASSERT_EQUAL(setenv("TOKENTAB_FAULT", spec, 1), 0);
}

static void test_fault_points(void)
{
    const char *path = base_test_path("armed");
    write_file(path, "old");
    uint8_t *data = NULL;
    size_t size = 0;
    char sha[SHA256_HEX_SIZE];
    struct digest xxh;
    arm("file_read#1");
    CHECK_FAULT(file_read_all(path, 10, &data, &size, &err), ST_IO, err,
                "armed: offset 0: Input/output error");
    CU_ASSERT_PTR_NULL(data);
    arm("file_read#1+");
    CHECK_FAULT(file_digests(path, sha, &xxh, NULL, &err), ST_IO, err, "Input/output error");
    arm("file_write");
    CHECK_FAULT(file_publish(path, "new", 3, &err), ST_IO, err,
                "armed.tmp: offset 0: No space left on device");
    check_untouched(path, "old");
    arm("file_sync");
    CHECK_FAULT(file_publish(path, "new", 3, &err), ST_IO, err, "armed.tmp: sync: Input");
    check_untouched(path, "old");
    arm("file_rename");
    CHECK_FAULT(file_publish(path, "new", 3, &err), ST_IO, err, "armed.tmp: rename to ");
    check_untouched(path, "old");
    arm("file_rename#1+");
    CHECK_FAULT(file_rename(path, base_test_path("elsewhere"), &err), ST_IO, err, "rename to ");
    check_untouched(path, "old");
    arm("file_sync#1+");
    CHECK_FAULT(file_sync(path, &err), ST_IO, err, "sync: Input/output error");
    /* The second sync of a publication is the folder's: the file is there, whole, and the failure
     * says that a power cut could still undo it. */
    arm("file_sync#2");
    CHECK_FAULT(file_publish(path, "new", 3, &err), ST_IO, err, "sync: Input/output error");
    check_untouched(path, "new");
    arm("mem_alloc");
    CHECK_FAULT(file_digests(path, sha, &xxh, NULL, &err), ST_NOMEM, err, "1.00 MiB");
    (void)unsetenv("TOKENTAB_FAULT");
}
#endif

int main(void)
{
    static const struct base_test TESTS[] = {
        {"opening refuses", test_open_refuses},
        {"no descriptors", test_no_descriptors},
        {"read at", test_read_at},
        {"read error", test_read_error},
        {"write at", test_write_at},
        {"read all", test_read_all},
        {"publish", test_publish},
        {"publish on a full disk", test_publish_disk_full},
        {"rename and sync", test_rename_and_sync},
        {"folders", test_make_dirs},
        {"digests", test_digests},
        {"paths", test_paths},
        {"file systems by name", test_file_system},
#if TOKENTAB_FAULTS
        {"fault points", test_fault_points},
#endif
    };
    return base_test_main("base file", TESTS, N_OF(TESTS));
}
