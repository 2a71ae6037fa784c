/* SPDX-License-Identifier: Apache-2.0 */
/* cJSON accepts raw control characters, broken UTF-8, "\u0000" (which cuts the C string), numbers
 * such as 01 or 1., any byte <= 32 as white space.  Two readers that differ in such points see
 * different files, so every document passes this scanner first. */
#include "formats/formats_internal.h"

#include <stdio.h>
#include <string.h>

struct scan {
    const char *what;
    const uint8_t *text;
    size_t size, at;
    size_t n_values;
    struct err *err;
};

/* Line and column of the place, and what was expected and found. */
static enum status scan_fault(const struct scan *s, const char *expected)
{
    size_t line = 1;
    size_t column = 1;
    for (size_t i = 0; i < s->at && i < s->size; i++) {
        column = s->text[i] == '\n' ? 1 : column + 1;
        line += s->text[i] == '\n';
    }
    if (s->at >= s->size)
        return err_set(s->err, ST_FORMAT,
                       "%s: line %zu column %zu: expected %s, found the end of the text", s->what,
                       line, column, expected);
    uint8_t c = s->text[s->at];
    if (c > 0x20 && c < 0x7f)
        return err_set(s->err, ST_FORMAT, "%s: line %zu column %zu: expected %s, found '%c'",
                       s->what, line, column, expected, c);
    return err_set(s->err, ST_FORMAT, "%s: line %zu column %zu: expected %s, found byte 0x%02x",
                   s->what, line, column, expected, c);
}

static int scan_peek(const struct scan *s)
{
    return s->at < s->size ? s->text[s->at] : -1;
}

static void scan_space(struct scan *s)
{
    while (s->at < s->size && (s->text[s->at] == ' ' || s->text[s->at] == '\n' ||
                               s->text[s->at] == '\r' || s->text[s->at] == '\t'))
        s->at++;
}

static size_t scan_digits(struct scan *s)
{
    size_t n = 0;
    for (; s->at < s->size && s->text[s->at] >= '0' && s->text[s->at] <= '9'; s->at++)
        n++;
    return n;
}

static enum status scan_number(struct scan *s)
{
    size_t first = s->at;
    if (scan_peek(s) == '-')
        s->at++;
    if (scan_peek(s) == '0')
        s->at++;
    else if (scan_digits(s) == 0)
        return scan_fault(s, "a digit");
    if (scan_peek(s) == '.') {
        s->at++;
        if (scan_digits(s) == 0)
            return scan_fault(s, "a digit after the decimal point");
    }
    if (scan_peek(s) == 'e' || scan_peek(s) == 'E') {
        s->at++;
        if (scan_peek(s) == '+' || scan_peek(s) == '-')
            s->at++;
        if (scan_digits(s) == 0)
            return scan_fault(s, "a digit of the exponent");
    }
    if (s->at - first > FORMAT_JSON_NUMBER) /* cJSON cuts numbers at 63 characters */
        return scan_fault(s, "a number of at most 62 characters before this place");
    return ST_OK;
}

/* Four hexadecimal digits at s->at. */
static bool scan_hex4(struct scan *s, unsigned *out)
{
    unsigned value = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        int c = scan_peek(s);
        if (c >= '0' && c <= '9')
            value = value * 16 + (unsigned)(c - '0');
        else if (c >= 'a' && c <= 'f')
            value = value * 16 + (unsigned)(c - 'a') + 10;
        else if (c >= 'A' && c <= 'F')
            value = value * 16 + (unsigned)(c - 'A') + 10;
        else
            return false;
    }
    *out = value;
    return true;
}

/* Behind "\u". */
static enum status scan_unicode_escape(struct scan *s)
{
    unsigned unit;
    unsigned low;
    if (!scan_hex4(s, &unit))
        return scan_fault(s, "four hexadecimal digits after \\u");
    if (unit == 0)
        return scan_fault(s, "no NUL (\\u0000) in a string before this place");
    if (unit >= 0xdc00 && unit <= 0xdfff)
        return scan_fault(s, "no lone low surrogate before this place");
    if (unit < 0xd800 || unit > 0xdbff)
        return ST_OK;
    if (s->size - s->at < 6 || s->text[s->at] != '\\' || s->text[s->at + 1] != 'u')
        return scan_fault(s, "a low surrogate \\uDC00..\\uDFFF");
    s->at += 2;
    if (!scan_hex4(s, &low) || low < 0xdc00 || low > 0xdfff)
        return scan_fault(s, "a low surrogate \\uDC00..\\uDFFF");
    return ST_OK;
}

/* The byte that begins what is no character: those behind it may be good ones. */
static enum status utf8_fault(struct scan *s, size_t start)
{
    char expected[48];
    (void)snprintf(expected, sizeof expected, "UTF-8 at byte offset %zu", start);
    s->at = start;
    return scan_fault(s, expected);
}

/* One multi-byte UTF-8 character: no overlong forms, no surrogates, nothing above U+10FFFF. */
static enum status scan_utf8(struct scan *s)
{
    size_t start = s->at;
    uint8_t lead = s->text[start];
    size_t n = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    uint8_t most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (lead < 0xc2 || lead > 0xf4)
        return utf8_fault(s, start);
    s->at++;
    for (size_t i = 0; i < n; i++, s->at++) {
        int c = scan_peek(s);
        if (c < least || c > most)
            return utf8_fault(s, start);
        least = 0x80;
        most = 0xbf;
    }
    return ST_OK;
}

static enum status scan_string(struct scan *s)
{
    s->at++; /* the opening quote */
    while (s->at < s->size) {
        uint8_t c = s->text[s->at];
        if (c == '"') {
            s->at++;
            return ST_OK;
        }
        if (c < 0x20)
            return scan_fault(s, "no raw control character in a string");
        if (c >= 0x80) {
            TRY(scan_utf8(s));
        } else if (c == '\\') {
            s->at++;
            int kind = scan_peek(s);
            if (kind <= 0 || strchr("\"\\/bfnrtu", kind) == NULL)
                return scan_fault(s, "an escape of JSON");
            s->at++;
            if (kind == 'u')
                TRY(scan_unicode_escape(s));
        } else {
            s->at++;
        }
    }
    return scan_fault(s, "the closing quote of a string");
}

static enum status scan_word(struct scan *s, const char *word)
{
    for (const char *c = word; *c != '\0'; c++, s->at++)
        if (scan_peek(s) != *c)
            return scan_fault(s, "a JSON value");
    return ST_OK;
}

static enum status scan_value(struct scan *s, unsigned depth);

/* An object or array, at its opening bracket. */
static enum status scan_container(struct scan *s, unsigned depth)
{
    bool object = s->text[s->at] == '{';
    int close = object ? '}' : ']';
    if (depth > FORMAT_JSON_MAX_DEPTH)
        return scan_fault(s, "at most 1000 nested levels");
    s->at++;
    scan_space(s);
    if (scan_peek(s) == close) {
        s->at++;
        return ST_OK;
    }
    for (;;) {
        if (object) {
            scan_space(s);
            if (scan_peek(s) != '"')
                return scan_fault(s, "a key in quotes");
            TRY(scan_string(s));
            scan_space(s);
            if (scan_peek(s) != ':')
                return scan_fault(s, "':'");
            s->at++;
        }
        TRY(scan_value(s, depth));
        if (scan_peek(s) == close) {
            s->at++;
            return ST_OK;
        }
        if (scan_peek(s) != ',')
            return scan_fault(s, object ? "',' or '}'" : "',' or ']'");
        s->at++;
    }
}

/* A value with the white space around it; `depth` containers are open.  Recursion is bounded by
 * FORMAT_JSON_MAX_DEPTH. */
static enum status scan_value(struct scan *s, unsigned depth)
{
    if (++s->n_values > FORMAT_JSON_MAX_VALUES)
        return scan_fault(s, "at most 16777216 values in a document");
    scan_space(s);
    int c = scan_peek(s);
    if (c == '{' || c == '[')
        TRY(scan_container(s, depth + 1));
    else if (c == '"')
        TRY(scan_string(s));
    else if (c == '-' || (c >= '0' && c <= '9'))
        TRY(scan_number(s));
    else if (c == 't')
        TRY(scan_word(s, "true"));
    else if (c == 'f')
        TRY(scan_word(s, "false"));
    else if (c == 'n')
        TRY(scan_word(s, "null"));
    else
        return scan_fault(s, "a JSON value");
    scan_space(s);
    return ST_OK;
}

enum status format_json_scan(const char *what, const void *text, size_t size, struct err *err)
{
    struct scan s = {.what = what, .text = text, .size = size, .err = err};
    TRY(scan_value(&s, 0));
    if (s.at < s.size)
        return scan_fault(&s, "nothing behind the document");
    return ST_OK;
}
