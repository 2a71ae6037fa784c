/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"
#include "base/base_internal.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

struct status_info {
    const char *text;
    int exit_code;
};

static const struct status_info STATUS_INFO[] = {
#define X(name, exit_code, text) {text, exit_code},
    BASE_STATUSES(X)
#undef X
};

enum { N_STATUSES = (int)(sizeof STATUS_INFO / sizeof STATUS_INFO[0]) };

/* A status may have come from another rank, so its range is checked. */
static bool status_is_known(enum status st)
{
    return (unsigned)st < (unsigned)N_STATUSES;
}

const char *status_text(enum status st)
{
    return status_is_known(st) ? STATUS_INFO[st].text : "unknown status";
}

int status_exit_code(enum status st)
{
    return STATUS_INFO[status_is_known(st) ? st : ST_INTERNAL].exit_code;
}

/* A message that was cut ends in "...", so that nobody takes half a path for a whole one. */
static void mark_if_cut(char *message, int printed)
{
    if (printed >= ERR_MESSAGE_SIZE)
        memcpy(message + ERR_MESSAGE_SIZE - 4, "...", 4);
}

enum status err_set(struct err *err, enum status st, const char *fmt, ...)
{
    assert(st != ST_OK);
    if (err == NULL || err->st != ST_OK)
        return st;
    err->st = st;
    va_list args;
    va_start(args, fmt);
    int printed = vsnprintf(err->message, sizeof err->message, fmt, args);
    va_end(args);
    if (printed < 0)
        (void)snprintf(err->message, sizeof err->message, "%s", status_text(st));
    mark_if_cut(err->message, printed);
    str_make_line(err->message);
    return st;
}

void err_clear(struct err *err)
{
    if (err != NULL)
        *err = (struct err){.st = ST_OK};
}

void err_prefix(struct err *err, const char *fmt, ...)
{
    if (err == NULL || err->st == ST_OK)
        return;
    char prefix[ERR_MESSAGE_SIZE];
    va_list args;
    va_start(args, fmt);
    int prefix_size = vsnprintf(prefix, sizeof prefix, fmt, args);
    va_end(args);
    if (prefix_size < 0)
        return;
    char old[ERR_MESSAGE_SIZE];
    memcpy(old, err->message, sizeof old);
    int printed = snprintf(err->message, sizeof err->message, "%s: %s", prefix, old);
    mark_if_cut(err->message, printed);
    str_make_line(err->message);
}

enum status err_nomem(struct err *err, size_t size_bytes)
{
    char text[32];
    return err_set(err, ST_NOMEM, "out of memory: %s could not be had",
                   str_bytes(size_bytes, text, sizeof text));
}
