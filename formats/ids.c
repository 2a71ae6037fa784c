/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of token ids: one id or inclusive range a line, '#' starts a comment. */
#include "formats/formats.h"
#include "formats/formats_internal.h"

#include <stdlib.h>
#include <string.h>

/* 2^31 ids take 16 GiB; a range beyond that is a typing error. */
#define IDS_MAX ((uint64_t)1 << 31)
#define IDS_MAX_FILE_BYTES ((size_t)1 << 32)

struct id_range {
    uint64_t first, last; /* inclusive */
};

struct id_list {
    struct id_range *items;
    size_t n, capacity;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cut comment and space off both ends, in place. */
static char *trim(char *line)
{
    line[strcspn(line, "#")] = '\0';
    while (is_space(*line))
        line++;
    size_t n = strlen(line);
    while (n > 0 && is_space(line[n - 1]))
        line[--n] = '\0';
    return line;
}

static bool parse_range(char *text, struct id_range *out)
{
    char *dash = strchr(text, '-');
    if (dash == NULL) {
        bool good = str_to_u64(text, &out->first);
        out->last = out->first;
        return good && out->first <= INT64_MAX;
    }
    *dash = '\0';
    bool good = str_to_u64(trim(text), &out->first) && str_to_u64(trim(dash + 1), &out->last);
    *dash = '-';
    return good && out->last <= INT64_MAX;
}

static enum status list_add(struct id_list *list, struct id_range range, struct err *err)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity, size_bytes;
        if (!mul_size(capacity, sizeof *list->items, &size_bytes))
            return err_nomem(err, SIZE_MAX);
        void *grown = realloc(list->items, size_bytes);
        if (grown == NULL)
            return err_nomem(err, size_bytes);
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->n++] = range;
    return ST_OK;
}

static enum status read_line(const char *path, size_t number, char *line, struct id_list *list,
                             struct err *err)
{
    char shown[FORMAT_PRINTABLE_SIZE];
    char *text = trim(line);
    struct id_range range = {0, 0};
    if (*text == '\0')
        return ST_OK;
    format_printable(text, shown);
    if (!parse_range(text, &range))
        return err_set(err, ST_SPEC, "%s: line %zu: expected an id or a range a-b, found \"%s\"",
                       path, number, shown);
    if (range.first > range.last)
        return err_set(err, ST_SPEC, "%s: line %zu: expected a range that grows, found \"%s\"",
                       path, number, shown);
    return list_add(list, range, err);
}

static int compare_ranges(const void *a, const void *b)
{
    const struct id_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sort, join overlapping ranges, count. */
static uint64_t merge(struct id_list *list)
{
    uint64_t count = 0;
    size_t kept = 0;
    qsort(list->items, list->n, sizeof *list->items, compare_ranges);
    for (size_t i = 0; i < list->n; i++) {
        struct id_range *range = &list->items[i];
        if (kept > 0 && range->first <= list->items[kept - 1].last) {
            list->items[kept - 1].last = max_u64(list->items[kept - 1].last, range->last);
            continue;
        }
        list->items[kept++] = *range;
    }
    list->n = kept;
    for (size_t i = 0; i < kept; i++)
        count += list->items[i].last - list->items[i].first + 1; /* disjoint, below 2^63 */
    return count;
}

static enum status read_lines(const char *path, char *text, size_t size, struct id_list *list,
                              struct err *err)
{
    size_t number = 1;
    for (char *line = text, *stop = text + size; line < stop; number++) {
        char *end = memchr(line, '\n', (size_t)(stop - line));
        if (end == NULL)
            end = stop;
        if (memchr(line, '\0', (size_t)(end - line)) != NULL)
            return err_set(err, ST_SPEC, "%s: line %zu: expected text, found a zero byte", path,
                           number);
        *end = '\0';
        TRY(read_line(path, number, line, list, err));
        line = end + 1;
    }
    return ST_OK;
}

enum status format_ids_read(const char *path, uint64_t **ids, size_t *n, struct err *err)
{
    uint8_t *text = NULL;
    size_t size = 0;
    struct id_list list = {0};
    void *memory = NULL;
    uint64_t count = 0;
    *ids = NULL;
    *n = 0;
    TRY(file_read_all(path, IDS_MAX_FILE_BYTES, &text, &size, err));
    enum status st = read_lines(path, (char *)text, size, &list, err);
    if (st != ST_OK)
        goto out;
    if (list.n == 0) {
        st = err_set(err, ST_SPEC, "%s: expected at least one id, found none", path);
        goto out;
    }
    count = merge(&list);
    if (count > IDS_MAX) {
        st = err_set(err, ST_SPEC, "%s: %llu ids, expected at most %llu", path,
                     (unsigned long long)count, (unsigned long long)IDS_MAX);
        goto out;
    }
    st = mem_alloc((size_t)count, sizeof **ids, &memory, err);
    if (st != ST_OK)
        goto out;
    *ids = memory;
    for (size_t i = 0; i < list.n; i++)
        for (uint64_t id = list.items[i].first; id <= list.items[i].last; id++)
            (*ids)[(*n)++] = id;
out:
    free(list.items);
    free(text);
    return st;
}
