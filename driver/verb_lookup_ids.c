/* SPDX-License-Identifier: Apache-2.0 */
/* Ids and shapes as the command line gives them. */
#include "driver/verb_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const size_t IDS_FILE_MAX = (size_t)1 << 30;

/* Where a list is read from, for messages: "--ids" or "FILE:LINE". */
struct ids_source {
    const char *file;
    size_t line;
    uint64_t num_embeddings;
    struct verb_ids *out;
    struct err *err;
};

static enum status refuse(const struct ids_source *s, const char *word, size_t size,
                          const char *why)
{
    int shown = size > 40 ? 40 : (int)size;
    if (s->file != NULL)
        return err_set(s->err, ST_USAGE, "%s:%zu: \"%.*s\": %s", s->file, s->line, shown, word,
                       why);
    return err_set(s->err, ST_USAGE, "--ids: \"%.*s\": %s", shown, word, why);
}

static enum status append(const struct ids_source *s, int64_t first, int64_t last)
{
    struct verb_ids *ids = s->out;
    uint64_t more = (uint64_t)last - (uint64_t)first + 1;
    size_t need = 0, bytes = 0;
    if (!add_size(ids->n, (size_t)more, &need) || !mul_size(need, 2 * sizeof(int64_t), &bytes))
        return err_nomem(s->err, SIZE_MAX);
    if (need > ids->capacity) {
        int64_t *grown = realloc(ids->values, bytes);
        if (grown == NULL)
            return err_nomem(s->err, bytes);
        ids->values = grown;
        ids->capacity = 2 * need;
    }
    for (uint64_t i = 0; i < more; i++)
        ids->values[ids->n++] = first + (int64_t)i;
    return ST_OK;
}

/* Decimal digits at *at; false on none or above INT64_MAX. */
static bool take_number(const char **at, const char *end, int64_t *out)
{
    uint64_t value = 0;
    const char *p = *at;
    for (; p < end && *p >= '0' && *p <= '9'; p++) {
        if (!mul_u64(value, 10, &value) || !add_u64(value, (uint64_t)(*p - '0'), &value))
            return false;
    }
    if (p == *at || value > (uint64_t)INT64_MAX)
        return false;
    *out = (int64_t)value;
    *at = p;
    return true;
}

/* One id, perhaps negative (the library refuses it), or a range a-b. */
static enum status parse_word(const struct ids_source *s, const char *word, size_t size)
{
    const char *at = word, *end = word + size;
    int64_t first = 0, last = 0;
    bool negative = at < end && *at == '-';
    at += negative;
    const char *digits = at;
    if (!take_number(&at, end, &first)) {
        bool number = digits < end;
        for (const char *p = digits; p < end; p++)
            number = number && *p >= '0' && *p <= '9';
        return refuse(s, word, size,
                      number ? "outside every vocabulary" : "expected a token id or a range a-b");
    }
    if (negative)
        first = -first;
    last = first;
    if (!negative && at < end && *at == '-') {
        at++;
        if (!take_number(&at, end, &last))
            return refuse(s, word, size, "expected a token id or a range a-b");
        if (last < first)
            return refuse(s, word, size, "the range runs backwards");
        /* Enough to be refused, however long the range is. */
        uint64_t cut = max_u64((uint64_t)first, s->num_embeddings);
        if ((uint64_t)last > cut)
            last = (int64_t)cut;
    }
    if (at != end)
        return refuse(s, word, size, "expected a token id or a range a-b");
    return append(s, first, last);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Words with commas between them; a line of a file may be empty. */
static enum status parse_list(const struct ids_source *s, const char *text, size_t size)
{
    const char *end = text + size, *at = text;
    for (;;) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        const char *stop = comma == NULL ? end : comma;
        const char *a = at, *b = stop;
        while (a < b && is_blank(*a))
            a++;
        while (b > a && is_blank(b[-1]))
            b--;
        bool empty_line = s->file != NULL && a == b && at == text && comma == NULL;
        if (!empty_line)
            TRY(parse_word(s, a, (size_t)(b - a)));
        if (comma == NULL)
            return ST_OK;
        at = comma + 1;
    }
}

static enum status parse_file(struct ids_source *s, const char *path)
{
    uint8_t *data = NULL;
    size_t size = 0;
    TRY(file_read_all(path, IDS_FILE_MAX, &data, &size, s->err));
    s->file = path;
    enum status st = ST_OK;
    const char *at = (const char *)data, *end = at + size;
    while (at < end && st == ST_OK) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline == NULL ? end : newline;
        const char *hash = memchr(at, '#', (size_t)(stop - at));
        s->line++;
        st = parse_list(s, at, (size_t)((hash == NULL ? stop : hash) - at));
        at = newline == NULL ? end : newline + 1;
    }
    free(data);
    return st;
}

/* "2x3", "4", "scalar"; the number of places it has. */
static enum status parse_shape(const char *text, struct verb_ids *ids, struct err *err)
{
    if (strcmp(text, "scalar") == 0) {
        ids->is_scalar = true;
        return ST_OK;
    }
    const char *at = text, *end = text + strlen(text);
    for (;;) {
        if (ids->rank == TOKENTAB_MAX_RANK)
            return err_set(err, ST_USAGE, "--shape: more than %d dimensions", TOKENTAB_MAX_RANK);
        if (!take_number(&at, end, &ids->shape[ids->rank]))
            break;
        ids->rank++;
        if (at == end)
            return ST_OK;
        if (*at != 'x')
            break;
        at++;
    }
    return err_set(err, ST_USAGE, "--shape: expected e.g. 4, 2x3 or scalar, found \"%s\"", text);
}

static enum status check_shape(const char *text, const struct verb_ids *ids, struct err *err)
{
    uint64_t places = 1;
    bool fits = true, empty = false;
    for (unsigned i = 0; i < ids->rank; i++) {
        empty = empty || ids->shape[i] == 0;
        fits = fits && mul_u64(places, (uint64_t)ids->shape[i], &places);
    }
    if (empty)
        places = 0;
    if ((!fits && !empty) || places != ids->n)
        return err_set(err, ST_USAGE, "--shape %s has %s%" PRIu64 " places, --ids gives %zu", text,
                       fits || empty ? "" : "more than ", places, ids->n);
    return ST_OK;
}

enum status verb_ids_parse(const char *list, const char *shape, uint64_t num_embeddings,
                           struct verb_ids *out, struct err *err)
{
    struct ids_source s = {.num_embeddings = num_embeddings, .out = out, .err = err};
    *out = (struct verb_ids){0};
    if (list == NULL && shape == NULL)
        return err_set(err, ST_USAGE, "--ids LIST is missing");
    if (list != NULL)
        TRY(list[0] == '@' ? parse_file(&s, list + 1) : parse_list(&s, list, strlen(list)));
    if (shape == NULL) {
        out->rank = 1;
        out->shape[0] = (int64_t)out->n;
        return ST_OK;
    }
    TRY(parse_shape(shape, out, err));
    return check_shape(shape, out, err);
}

void verb_ids_free(struct verb_ids *ids)
{
    free(ids->values);
    *ids = (struct verb_ids){0};
}
