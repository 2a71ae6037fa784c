/* SPDX-License-Identifier: Apache-2.0 */
#include "base_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void say_everything(void)
{
    log_error("e %d", 1);
    log_warn("w %d", 2);
    log_info("i %d", 3);
    log_debug("d %d", 4);
    log_rank("r %d", 5);
    log_event("shard", "\"shard\": 3");
}

static const char *captured_with(int rank, const char *host, enum log_level level, bool json)
{
    base_test_capture();
    log_setup(rank, host, level, json);
    say_everything();
    return base_test_captured();
}

static void test_text(void)
{
    CHECK_TEXT(captured_with(0, "node7", LOG_INFO, false), "tokentab: e 1\n"
                                                           "tokentab: warning: w 2\n"
                                                           "tokentab: i 3\n"
                                                           "tokentab: [rank 0 node7] r 5\n");
    CHECK_TEXT(captured_with(3, "node7", LOG_DEBUG, false), "tokentab: e 1\n"
                                                            "tokentab: [rank 3 node7] r 5\n");
    CHECK_TEXT(captured_with(0, NULL, LOG_DEBUG, false), "tokentab: e 1\n"
                                                         "tokentab: warning: w 2\n"
                                                         "tokentab: i 3\n"
                                                         "tokentab: d 4\n"
                                                         "tokentab: [rank 0] r 5\n");
    CHECK_TEXT(captured_with(0, NULL, LOG_WARN, false), "tokentab: e 1\n"
                                                        "tokentab: warning: w 2\n");
    CHECK_TEXT(captured_with(0, NULL, LOG_ERROR, false), "tokentab: e 1\n");
    CU_ASSERT(!log_is_json());
}

static void test_one_line_each(void)
{
    char text[4000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    base_test_capture();
    log_setup(0, NULL, LOG_INFO, false);
    log_info("a\nb\r\x1b[0m");
    log_info("%s", text);
    const char *lines = base_test_captured();
    static const char FIRST[] = "tokentab: a?b??[0m\n";
    CU_ASSERT_EQUAL_FATAL(strncmp(lines, FIRST, strlen(FIRST)), 0);
    const char *second = lines + strlen(FIRST);
    CU_ASSERT_EQUAL(strlen(second), strlen("tokentab: \n") + 2047);
    CHECK_TEXT(second + strlen(second) - 5, "x...\n");
}

/* "time" differs from run to run: check that it is a number, and cut it out. */
static char *without_times(const char *text)
{
    char *out = str_dup(text);
    static const char KEY[] = "\"time\": ";
    for (char *at = out; at != NULL && (at = strstr(at, KEY)) != NULL;) {
        at += strlen(KEY);
        size_t size = strspn(at, "0123456789");
        CU_ASSERT(size >= 10);
        CU_ASSERT_EQUAL(at[size], '.');
        CU_ASSERT_EQUAL(strspn(at + size + 1, "0123456789"), 3);
        memmove(at, at + size + 4, strlen(at + size + 4) + 1);
    }
    return out;
}

static void check_json(const char *found, const char *expected)
{
    char *text = without_times(found);
    CU_ASSERT_PTR_NOT_NULL_FATAL(text);
    CHECK_TEXT(text, expected);
    free(text);
}

static void test_json(void)
{
    check_json(captured_with(0, "h", LOG_INFO, true),
               "{\"time\": , \"level\": \"error\", \"rank\": 0, \"message\": \"e 1\"}\n"
               "{\"time\": , \"level\": \"warn\", \"rank\": 0, \"message\": \"w 2\"}\n"
               "{\"time\": , \"level\": \"info\", \"rank\": 0, \"message\": \"i 3\"}\n"
               "{\"time\": , \"level\": \"info\", \"rank\": 0, \"message\": \"r 5\"}\n"
               "{\"event\": \"shard\", \"time\": , \"rank\": 0, \"shard\": 3}\n");
    CU_ASSERT(log_is_json());
    check_json(captured_with(2, "h", LOG_INFO, true),
               "{\"time\": , \"level\": \"error\", \"rank\": 2, \"message\": \"e 1\"}\n"
               "{\"time\": , \"level\": \"info\", \"rank\": 2, \"message\": \"r 5\"}\n"
               "{\"event\": \"shard\", \"time\": , \"rank\": 2, \"shard\": 3}\n");

    base_test_capture();
    log_setup(0, NULL, LOG_INFO, true);
    log_event("start", "");
    log_event("lost", "\"rank\": 4");
    check_json(base_test_captured(), "{\"event\": \"start\", \"time\": , \"rank\": 0}\n"
                                     "{\"event\": \"lost\", \"time\": , \"rank\": 4}\n");
}

static void test_json_escapes(void)
{
    base_test_capture();
    log_setup(0, NULL, LOG_INFO, true);
    /* quotes, control characters, good UTF-8 of each length, then what is none: a stray byte, an
     * overlong slash, a surrogate, a sequence beyond U+10FFFF, one that is cut by the end */
    log_info("\"\\\n\x01 \x7f");
    log_info("\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80");
    log_info("\xFF|\xC0\xAF|\xED\xA0\x80|\xF4\x90\x80\x80|\xE2\x82");
    check_json(base_test_captured(),
               "{\"time\": , \"level\": \"info\", \"rank\": 0, \"message\": "
               "\"\\\"\\\\\\u000a\\u0001 \x7f\"}\n"
               "{\"time\": , \"level\": \"info\", \"rank\": 0, \"message\": "
               "\"\xC3\xA4 \xE2\x82\xAC \xF0\x9F\x98\x80\"}\n"
               "{\"time\": , \"level\": \"info\", \"rank\": 0, \"message\": "
               "\"\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd\\ufffd|"
               "\\ufffd\\ufffd\"}\n");
}

/* The worst message for the line buffer: every byte becomes six. */
static void test_json_longest(void)
{
    char text[4000];
    memset(text, '\x02', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    base_test_capture();
    log_setup(2147483647, NULL, LOG_INFO, true);
    log_rank("%s", text);
    const char *line = base_test_captured();
    size_t size = strlen(line);
    CU_ASSERT_FATAL(size > 6 * 2044);
    CHECK_TEXT(line + size - 12, "\\u0002...\"}\n");
}

static void test_unwritable_log(void)
{
    int saved = dup(STDERR_FILENO);
    CU_ASSERT_FATAL(saved >= 0);
    log_setup(0, NULL, LOG_INFO, false);
    (void)close(STDERR_FILENO);
    log_info("nobody reads this"); /* returns */
    CU_ASSERT_EQUAL(dup2(saved, STDERR_FILENO), STDERR_FILENO);
    (void)close(saved);
    base_test_capture();
    log_info("back");
    CHECK_TEXT(base_test_captured(), "tokentab: back\n");
}

static void test_clock(void)
{
    double before = clock_s();
    struct timespec pause = {.tv_nsec = 2000000};
    (void)nanosleep(&pause, NULL);
    double after = clock_s();
    CU_ASSERT(after - before >= 0.001);
    CU_ASSERT(after - before < 30);
}

int main(void)
{
    static const struct base_test TESTS[] = {
        {"text", test_text},
        {"one line each", test_one_line_each},
        {"JSON", test_json},
        {"JSON escapes", test_json_escapes},
        {"longest JSON", test_json_longest},
        {"unwritable log", test_unwritable_log},
        {"clock", test_clock},
    };
    return base_test_main("base log", TESTS, N_OF(TESTS));
}
