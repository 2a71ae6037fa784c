/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/npy.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char MAGIC[] = "\x93NUMPY";
enum { MAGIC_SIZE = 6, ALIGN = 64, HEADER_MAX = 1 << 20 };

static const struct {
    enum dtype dtype;
    const char *text;
} descriptors[] = {{DT_F64, "<f8"}, {DT_F32, "<f4"}, {DT_F16, "<f2"}, {DT_I64, "<i8"},
                   {DT_I32, "<i4"}, {DT_I16, "<i2"}, {DT_I8, "|i1"},  {DT_U64, "<u8"},
                   {DT_U32, "<u4"}, {DT_U16, "<u2"}, {DT_U8, "|u1"},  {DT_BOOL, "|b1"}};
enum { N_DESCRIPTORS = sizeof descriptors / sizeof *descriptors };

bool format_npy_is(const void *data, size_t size)
{
    return size >= MAGIC_SIZE && memcmp(data, MAGIC, MAGIC_SIZE) == 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

enum status format_npy_header(enum dtype dtype, unsigned rank, const uint64_t *shape,
                              struct bytes *out, struct err *err)
{
    const char *descriptor = NULL;
    enum dtype stored = dtype == DT_BF16 ? DT_U16 : dtype;
    for (size_t i = 0; i < N_DESCRIPTORS; i++)
        if (descriptors[i].dtype == stored)
            descriptor = descriptors[i].text;
    if (descriptor == NULL || rank > FORMAT_NPY_MAX_RANK)
        return err_set(err, ST_USAGE, "npy: an array of %s with rank %u cannot be stored",
                       dtype_name(dtype), rank);
    struct bytes text = {0};
    bytes_printf(&text, "{'descr': '%s', 'fortran_order': False, 'shape': (", descriptor);
    for (unsigned i = 0; i < rank; i++)
        bytes_printf(&text, "%s%" PRIu64 "%s", i == 0 ? "" : " ", shape[i],
                     rank == 1 || i + 1 < rank ? "," : "");
    bytes_printf(&text, "), }");
    while (!text.failed && (MAGIC_SIZE + 4 + text.size + 1) % ALIGN != 0)
        bytes_append(&text, " ", 1);
    bytes_append(&text, "\n", 1);
    bytes_append(out, MAGIC, MAGIC_SIZE);
    bytes_put_u8(out, 1);
    bytes_put_u8(out, 0);
    bytes_put_u8(out, (uint8_t)(text.size & 0xFF));
    bytes_put_u8(out, (uint8_t)(text.size >> 8));
    bytes_append(out, text.data, text.size);
    bool failed = text.failed || out->failed;
    bytes_free(&text);
    return failed ? err_nomem(err, 256) : ST_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The header is a Python literal; a cursor over the few forms that NumPy writes. */
struct cursor {
    const char *path, *at;
    struct err *err;
};

static enum status unexpected(const struct cursor *c, const char *expected)
{
    return err_set(c->err, ST_FORMAT, "%s: npy header: expected %s, found \"%.20s\"", c->path,
                   expected, c->at);
}

static void skip_space(struct cursor *c)
{
    while (isspace((unsigned char)*c->at))
        c->at++;
}

static bool take(struct cursor *c, const char *text)
{
    skip_space(c);
    if (strncmp(c->at, text, strlen(text)) != 0)
        return false;
    c->at += strlen(text);
    return true;
}

/* A quoted word without escapes. */
static enum status take_word(struct cursor *c, char *word, size_t word_size)
{
    skip_space(c);
    char quote = *c->at;
    if (quote != '\'' && quote != '"')
        return unexpected(c, "a quoted word");
    const char *end = strchr(c->at + 1, quote);
    if (end == NULL || (size_t)(end - c->at) > word_size)
        return unexpected(c, "a short quoted word");
    size_t n = (size_t)(end - c->at) - 1;
    memcpy(word, c->at + 1, n);
    word[n] = '\0';
    c->at = end + 1;
    return ST_OK;
}

static enum status take_dtype(struct cursor *c, struct format_npy *out)
{
    char word[16];
    TRY(take_word(c, word, sizeof word));
    for (size_t i = 0; i < N_DESCRIPTORS; i++)
        if (strcmp(word, descriptors[i].text) == 0)
            out->dtype = descriptors[i].dtype;
    if (out->dtype == DT_UNKNOWN)
        return err_set(c->err, ST_FORMAT, "%s: npy dtype \"%s\" is not supported", c->path, word);
    return ST_OK;
}

static enum status take_shape(struct cursor *c, struct format_npy *out)
{
    if (!take(c, "("))
        return unexpected(c, "a tuple");
    while (!take(c, ")")) {
        char digits[24];
        size_t n = strspn(c->at, "0123456789");
        if (n == 0 || n >= sizeof digits || out->rank >= FORMAT_NPY_MAX_RANK)
            return unexpected(c, "at most 17 whole numbers");
        memcpy(digits, c->at, n);
        digits[n] = '\0';
        if (!str_to_u64(digits, &out->shape[out->rank]))
            return unexpected(c, "a number below 2^64");
        out->rank++;
        c->at += n;
        if (!take(c, ",")) {
            skip_space(c);
            if (*c->at != ')')
                return unexpected(c, "\",\" or \")\"");
        }
    }
    return ST_OK;
}

static enum status parse_header(struct cursor *c, struct format_npy *out)
{
    bool has_dtype = false, has_order = false, has_shape = false;
    if (!take(c, "{"))
        return unexpected(c, "\"{\"");
    while (!take(c, "}")) {
        char key[16];
        TRY(take_word(c, key, sizeof key));
        if (!take(c, ":"))
            return unexpected(c, "\":\"");
        if (strcmp(key, "descr") == 0 && !has_dtype) {
            TRY(take_dtype(c, out));
            has_dtype = true;
        } else if (strcmp(key, "fortran_order") == 0 && !has_order) {
            if (!take(c, "False"))
                return unexpected(c, "False (row-major)");
            has_order = true;
        } else if (strcmp(key, "shape") == 0 && !has_shape) {
            TRY(take_shape(c, out));
            has_shape = true;
        } else {
            return err_set(c->err, ST_FORMAT, "%s: npy header: unexpected key \"%s\"", c->path,
                           key);
        }
        if (!take(c, ",") && *c->at != '}')
            return unexpected(c, "\",\" or \"}\"");
    }
    skip_space(c);
    if (*c->at != '\0')
        return unexpected(c, "nothing behind \"}\"");
    if (!has_dtype || !has_order || !has_shape)
        return err_set(c->err, ST_FORMAT, "%s: npy header: descr, fortran_order or shape missing",
                       c->path);
    return ST_OK;
}

static enum status check_size(const char *path, uint64_t file_size, struct format_npy *out,
                              struct err *err)
{
    uint64_t n = 1, bytes = 0, end = 0;
    bool fits = true;
    for (unsigned i = 0; i < out->rank; i++)
        fits = fits && mul_u64(n, out->shape[i], &n);
    if (!fits || !mul_u64(n, dtype_size(out->dtype), &bytes) || !add_u64(out->offset, bytes, &end))
        return err_set(err, ST_FORMAT, "%s: npy shape overflows", path);
    out->n_elements = n;
    if (end != file_size)
        return err_set(err, ST_FORMAT,
                       "%s: npy file size: expected %" PRIu64 " bytes by its shape, found %" PRIu64,
                       path, end, file_size);
    return ST_OK;
}

static enum status read_header(const char *path, int fd, uint64_t file_size, struct format_npy *out,
                               struct err *err)
{
    uint8_t start[12] = {0};
    size_t got = (size_t)min_u64(file_size, sizeof start);
    TRY(file_read_at(fd, path, 0, start, got, err));
    if (got < 10 || !format_npy_is(start, got))
        return err_set(err, ST_FORMAT, "%s: not a .npy file", path);
    unsigned major = start[MAGIC_SIZE];
    if (major < 1 || major > 3)
        return err_set(err, ST_FORMAT, "%s: npy version %u, newest known 3", path, major);
    uint64_t length = (uint64_t)start[8] | (uint64_t)start[9] << 8;
    if (major > 1)
        length |= (uint64_t)start[10] << 16 | (uint64_t)start[11] << 24;
    uint64_t at = major > 1 ? 12 : 10;
    if (at > file_size || length > file_size - at || length > HEADER_MAX)
        return err_set(err, ST_FORMAT, "%s: npy header of %" PRIu64 " bytes in a file of %" PRIu64,
                       path, length, file_size);
    char *text = calloc(1, (size_t)length + 1);
    if (text == NULL)
        return err_nomem(err, (size_t)length + 1);
    *out = (struct format_npy){.dtype = DT_UNKNOWN, .offset = at + length};
    struct cursor c = {.path = path, .at = text, .err = err};
    enum status st = file_read_at(fd, path, at, text, (size_t)length, err);
    if (st == ST_OK && strlen(text) != length)
        st = err_set(err, ST_FORMAT, "%s: npy header holds a NUL", path);
    if (st == ST_OK)
        st = parse_header(&c, out);
    free(text);
    TRY(st);
    return check_size(path, file_size, out, err);
}

enum status format_npy_open(const char *path, int *fd, struct format_npy *out, struct err *err)
{
    uint64_t size = 0;
    TRY(file_open_read(path, fd, &size, err));
    enum status st = read_header(path, *fd, size, out, err);
    if (st != ST_OK) {
        (void)close(*fd);
        *fd = -1;
    }
    return st;
}
