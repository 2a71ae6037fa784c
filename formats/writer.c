/* SPDX-License-Identifier: Apache-2.0 */
/* JSON text whose bytes are a function of the calls alone. */
#include "formats/recipe.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void write_quoted(struct bytes *out, const char *s)
{
    bytes_append(out, "\"", 1);
    const char *run = s;
    for (; *s != '\0'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c >= 0x20 && c != '"' && c != '\\')
            continue;
        bytes_append(out, run, (size_t)(s - run));
        run = s + 1;
        if (c == '"' || c == '\\')
            bytes_printf(out, "\\%c", c);
        else if (c == '\n')
            bytes_append(out, "\\n", 2);
        else if (c == '\t')
            bytes_append(out, "\\t", 2);
        else
            bytes_printf(out, "\\u%04x", c);
    }
    bytes_append(out, run, (size_t)(s - run));
    bytes_append(out, "\"", 1);
}

static void write_line(struct format_writer *w)
{
    if (!w->pretty)
        return;
    bytes_append(&w->out, "\n", 1);
    for (unsigned i = 0; i < w->depth; i++)
        bytes_append(&w->out, "  ", 2);
}

/* Comma, line and key: what stands before a value. */
static void write_before(struct format_writer *w, const char *key)
{
    if (w->need_comma)
        bytes_append(&w->out, ",", 1);
    if (w->depth > 0)
        write_line(w);
    if (key != NULL) {
        write_quoted(&w->out, key);
        bytes_append(&w->out, ": ", w->pretty ? 2 : 1);
    }
    w->need_comma = true;
}

static void write_open(struct format_writer *w, const char *key, const char *bracket)
{
    write_before(w, key);
    bytes_append(&w->out, bracket, 1);
    w->depth++;
    w->need_comma = false;
}

static void write_close(struct format_writer *w, const char *bracket)
{
    bool empty = !w->need_comma;
    w->depth--;
    if (!empty)
        write_line(w);
    bytes_append(&w->out, bracket, 1);
    w->need_comma = true;
}

void format_write_object(struct format_writer *w, const char *key)
{
    write_open(w, key, "{");
}

void format_write_array(struct format_writer *w, const char *key)
{
    write_open(w, key, "[");
}

void format_write_end_object(struct format_writer *w)
{
    write_close(w, "}");
}

void format_write_end_array(struct format_writer *w)
{
    write_close(w, "]");
}

void format_write_string(struct format_writer *w, const char *key, const char *value)
{
    write_before(w, key);
    write_quoted(&w->out, value);
}

/* Readers that hold numbers as doubles would round beyond 2^53 (N5). */
static const uint64_t WRITER_EXACT = (uint64_t)1 << 53;

void format_write_u64(struct format_writer *w, const char *key, uint64_t value)
{
    write_before(w, key);
    bytes_printf(&w->out, value > WRITER_EXACT ? "\"%" PRIu64 "\"" : "%" PRIu64, value);
}

void format_write_i64(struct format_writer *w, const char *key, int64_t value)
{
    uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    write_before(w, key);
    bytes_printf(&w->out, magnitude > WRITER_EXACT ? "\"%" PRId64 "\"" : "%" PRId64, value);
}

void format_write_double(struct format_writer *w, const char *key, double value)
{
    char text[64];
    write_before(w, key);
    bytes_printf(&w->out, isfinite(value) ? "%s" : "\"%s\"", str_double(value, text, sizeof text));
}

void format_write_bool(struct format_writer *w, const char *key, bool value)
{
    write_before(w, key);
    bytes_append(&w->out, value ? "true" : "false", value ? 4 : 5);
}

void format_write_null(struct format_writer *w, const char *key)
{
    write_before(w, key);
    bytes_append(&w->out, "null", 4);
}

void format_write_raw(struct format_writer *w, const char *key, const char *json)
{
    write_before(w, key);
    bytes_append(&w->out, json, strlen(json));
}

void format_write_finish(struct format_writer *w)
{
    bytes_append(&w->out, "\n", 1);
}
