/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/base_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LOG_MESSAGE_SIZE = 2048, LOG_ESCAPED_SIZE = 6 * LOG_MESSAGE_SIZE + 1, LOG_HOST_SIZE = 64 };

/* Set once, by log_setup, before the first message. */
static struct {
    int rank;
    char host[LOG_HOST_SIZE];
    enum log_level level;
    bool json;
} log_state = {.rank = 0, .level = LOG_INFO};

void log_setup(int rank, const char *host, enum log_level level, bool json)
{
    log_state.rank = rank;
    log_state.level = level;
    log_state.json = json;
    (void)snprintf(log_state.host, sizeof log_state.host, "%s", host != NULL ? host : "");
    str_make_line(log_state.host);
}

int log_rank_number(void)
{
    return log_state.rank;
}

bool log_is_json(void)
{
    return log_state.json;
}

double clock_s(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* One write a line, so that lines of several ranks on one pipe do not mix.  A log that cannot be
 * written has nobody to tell; it must not end a run either. */
static void write_line(const char *line, size_t size)
{
    while (size > 0) {
        ssize_t written = write(STDERR_FILENO, line, size);
        if (written >= 0) {
            line += written;
            size -= (size_t)written;
        } else if (errno == EAGAIN) {
            struct pollfd ready = {.fd = STDERR_FILENO, .events = POLLOUT};
            if (poll(&ready, 1, 1000) <= 0)
                return;
        } else if (errno != EINTR) {
            return;
        }
    }
}

/* Bytes of the UTF-8 sequence at s, 0 if it is none (overlong, surrogate, cut, beyond U+10FFFF). */
static size_t utf8_size(const unsigned char *s)
{
    size_t size = s[0] < 0x80                   ? 1
                  : s[0] >= 0xC2 && s[0] < 0xE0 ? 2
                  : (s[0] & 0xF0) == 0xE0       ? 3
                  : s[0] >= 0xF0 && s[0] < 0xF5 ? 4
                                                : 0;
    for (size_t i = 1; i < size; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0;
    }
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xED && s[1] > 0x9F) ||
        (s[0] == 0xF0 && s[1] < 0x90) || (s[0] == 0xF4 && s[1] > 0x8F))
        return 0;
    return size;
}

/* The inside of a JSON string; out holds 6 bytes for each of s.  File names need not be UTF-8. */
static void json_escape(const char *s, char *out)
{
    const unsigned char *p = (const unsigned char *)s;
    while (*p != '\0') {
        size_t size = utf8_size(p);
        if (size == 0) {
            out += sprintf(out, "\\ufffd");
            size = 1;
        } else if (*p < 0x20) {
            out += sprintf(out, "\\u%04x", (unsigned)*p);
        } else {
            if (*p == '"' || *p == '\\')
                *out++ = '\\';
            memcpy(out, p, size);
            out += size;
        }
        p += size;
    }
    *out = '\0';
}

/* Seconds since 1970, in integers so that no locale gets at the point. */
static void json_time(char *buf, size_t buf_size)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)snprintf(buf, buf_size, "%lld.%03ld", (long long)now.tv_sec, now.tv_nsec / 1000000);
}

static void emit(const char *level, const char *prefix, const char *fmt, va_list args)
    __attribute__((format(printf, 3, 0)));

static void emit(const char *level, const char *prefix, const char *fmt, va_list args)
{
    char message[LOG_MESSAGE_SIZE];
    int printed = vsnprintf(message, sizeof message, fmt, args);
    if (printed < 0)
        return;
    if (printed >= LOG_MESSAGE_SIZE)
        memcpy(message + LOG_MESSAGE_SIZE - 4, "...", 4);
    char line[LOG_ESCAPED_SIZE + 256];
    int size;
    if (log_state.json) {
        char escaped[LOG_ESCAPED_SIZE];
        char now[48];
        json_escape(message, escaped);
        json_time(now, sizeof now);
        size = snprintf(line, sizeof line,
                        "{\"time\": %s, \"level\": \"%s\", \"rank\": %d, \"message\": \"%s\"}\n",
                        now, level, log_state.rank, escaped);
    } else {
        str_make_line(message);
        size = snprintf(line, sizeof line, "tokentab: %s%s\n", prefix, message);
    }
    if (size > 0)
        write_line(line, (size_t)size);
}

static bool shown_on_root(enum log_level level)
{
    return log_state.rank == 0 && log_state.level >= level;
}

void log_info(const char *fmt, ...)
{
    if (!shown_on_root(LOG_INFO))
        return;
    va_list args;
    va_start(args, fmt);
    emit("info", "", fmt, args);
    va_end(args);
}

void log_warn(const char *fmt, ...)
{
    if (!shown_on_root(LOG_WARN))
        return;
    va_list args;
    va_start(args, fmt);
    emit("warn", "warning: ", fmt, args);
    va_end(args);
}

void log_debug(const char *fmt, ...)
{
    if (!shown_on_root(LOG_DEBUG))
        return;
    va_list args;
    va_start(args, fmt);
    emit("debug", "", fmt, args);
    va_end(args);
}

void log_rank(const char *fmt, ...)
{
    if (log_state.level < LOG_INFO)
        return;
    char prefix[LOG_HOST_SIZE + 32];
    (void)snprintf(prefix, sizeof prefix, "[rank %d%s%s] ", log_state.rank,
                   log_state.host[0] != '\0' ? " " : "", log_state.host);
    va_list args;
    va_start(args, fmt);
    emit("info", prefix, fmt, args);
    va_end(args);
}

void log_error(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    emit("error", "", fmt, args);
    va_end(args);
}

void log_event(const char *name, const char *fields_json)
{
    if (!log_state.json)
        return;
    char now[48];
    json_time(now, sizeof now);
    struct bytes line = {0};
    bytes_printf(&line, "{\"event\": \"%s\", \"time\": %s", name, now);
    if (strstr(fields_json, "\"rank\":") == NULL) /* an event about a rank names that one */
        bytes_printf(&line, ", \"rank\": %d", log_state.rank);
    bytes_printf(&line, "%s%s}\n", fields_json[0] != '\0' ? ", " : "", fields_json);
    if (!line.failed)
        write_line((const char *)line.data, line.size);
    bytes_free(&line);
}
