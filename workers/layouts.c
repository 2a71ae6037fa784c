/* SPDX-License-Identifier: Apache-2.0 */
/* One call of the lookup's public API: ids laid out somehow, all outputs, compared byte by byte. */
#include "workers/layouts_internal.h"

#include <stdlib.h>
#include <string.h>

const char *const worker_layout_names[] = {"scalar",
                                           "(n)",
                                           "(n,1)",
                                           "(1,n)",
                                           "(2,k)",
                                           "(1,1,n)",
                                           "strided",
                                           "expanded (2,n)",
                                           "expanded (n,2)",
                                           "flipped",
                                           "interleaved",
                                           "int32",
                                           "int64",
                                           "empty (0)",
                                           "empty (2,0)",
                                           "empty (0,3,2)",
                                           "strided outputs",
                                           "several outputs in one call",
                                           "one output a call",
                                           "outside the vocabulary",
                                           "by number of ids",
                                           NULL};

enum { FILL = 0xa5 };

static enum status not_ok(const struct layouts *k, const char *layout, size_t route,
                          const char *what, struct err *err)
{
    return err_set(err, ST_DIFFERS, "layout %s, route %s: %s", layout,
                   tokentab_route_name(k->recipe, route), what);
}

static void hex(const uint8_t *bytes, size_t n, char *text)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        text[2 * i] = digits[bytes[i] >> 4];
        text[2 * i + 1] = digits[bytes[i] & 15];
    }
    text[2 * n] = '\0';
}

/* Found elements lie `stride` elements apart, expected ones one. */
static enum status compare_row(struct layouts *k, const struct layout_call *c, size_t output,
                               size_t row, const uint8_t *found, size_t stride, struct err *err)
{
    const struct layout_output *o = &k->outputs[output];
    const size_t e = o->element;
    const uint8_t *expected = o->expected + row * o->width * e;
    if (stride == 1 && memcmp(expected, found, o->width * e) == 0)
        return ST_OK;
    for (size_t i = 0; i < o->width; i++) {
        char want[2 * sizeof(double) + 1], got[2 * sizeof(double) + 1];
        if (memcmp(expected + i * e, found + i * stride * e, e) == 0)
            continue;
        hex(expected + i * e, e, want);
        hex(found + i * stride * e, e, got);
        return err_set(err, ST_DIFFERS,
                       "layout %s, route %s, output %s, token %llu, column %zu: expected bytes %s, "
                       "found %s",
                       c->layout, tokentab_route_name(k->recipe, c->route), o->name,
                       (unsigned long long)lookup_row_id(k->recipe, k->first + row), i, want, got);
    }
    return ST_OK;
}

static bool is_filled(const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != FILL)
            return false;
    return true;
}

static void refill(struct layouts *k, size_t n_ids)
{
    for (size_t i = 0; i < k->n_outputs; i++)
        memset(k->outputs[i].found, FILL, n_ids * k->outputs[i].width * k->outputs[i].element);
}

static enum status gather(struct layouts *k, const struct layout_call *c, const size_t *only,
                          struct tokentab_error *found)
{
    struct tokentab_request *r = k->requests;
    size_t n = 0;
    for (size_t i = 0; i < k->n_outputs; i++) {
        const struct layout_output *o = &k->outputs[i];
        if (only == NULL || *only == i)
            r[n++] = (struct tokentab_request){
                .output = i, .data = o->found, .capacity_bytes = c->n * o->width * o->element};
    }
    *found = (struct tokentab_error){.status = TOKENTAB_OK};
    const int route = c->by_count ? -1 : (int)c->route;
    const enum tokentab_status st = tokentab_gather(k->recipe, &c->ids, route, r, n, found);
    return lookup_status(st);
}

enum status layout_check(struct layouts *k, const struct layout_call *c, struct err *err)
{
    struct tokentab_error found;
    refill(k, c->n);
    if (gather(k, c, NULL, &found) != ST_OK)
        return not_ok(k, c->layout, c->route, found.message, err);
    for (size_t i = 0; i < k->n_outputs; i++) {
        const struct layout_output *o = &k->outputs[i];
        for (size_t j = 0; j < c->n; j++)
            TRY(compare_row(k, c, i, c->rows[j], o->found + j * o->width * o->element, 1, err));
        k->n_checks++;
    }
    return ST_OK;
}

enum status layout_check_single(struct layouts *k, const struct layout_call *c, struct err *err)
{
    struct tokentab_error found;
    for (size_t i = 0; i < k->n_outputs; i++) {
        const struct layout_output *o = &k->outputs[i];
        refill(k, c->n);
        if (gather(k, c, &i, &found) != ST_OK)
            return not_ok(k, c->layout, c->route, found.message, err);
        for (size_t j = 0; j < c->n; j++)
            TRY(compare_row(k, c, i, c->rows[j], o->found + j * o->width * o->element, 1, err));
        for (size_t other = 0; other < k->n_outputs; other++)
            if (other != i && !is_filled(k->outputs[other].found, c->n * k->outputs[other].width *
                                                                      k->outputs[other].element))
                return not_ok(k, c->layout, c->route, "an output not asked for was written", err);
        k->n_checks++;
    }
    return ST_OK;
}

enum status layout_check_refused(struct layouts *k, const struct layout_call *c, struct err *err)
{
    struct tokentab_error found;
    refill(k, c->n);
    (void)gather(k, c, NULL, &found);
    if (found.status != TOKENTAB_EBOUNDS)
        return not_ok(k, c->layout, c->route, "an id outside the vocabulary was taken", err);
    for (size_t i = 0; i < k->n_outputs; i++)
        if (!is_filled(k->outputs[i].found, c->n * k->outputs[i].width * k->outputs[i].element))
            return not_ok(k, c->layout, c->route, "a refused call wrote to an output", err);
    k->n_checks += k->n_outputs;
    return ST_OK;
}

enum status layout_check_strided(struct layouts *k, const struct layout_call *c, struct err *err)
{
    struct tokentab_error found = {.status = TOKENTAB_OK};
    for (size_t i = 0; i < k->n_outputs; i++) {
        const struct layout_output *o = &k->outputs[i];
        /* Every second element of rows that are three elements further apart than they need be. */
        const size_t row = 2 * o->width + 3, size_bytes = c->n * row * o->element;
        const int64_t strides[2] = {(int64_t)row, 2};
        const struct tokentab_request r = {.output = i, .data = o->found, .strides = strides};
        memset(o->found, FILL, size_bytes);
        if (tokentab_gather(k->recipe, &c->ids, (int)c->route, &r, 1, &found) != TOKENTAB_OK)
            return not_ok(k, c->layout, c->route, found.message, err);
        for (size_t j = 0; j < c->n; j++) {
            const uint8_t *at = o->found + j * row * o->element;
            TRY(compare_row(k, c, i, c->rows[j], at, 2, err));
            for (size_t column = 0; column < row; column++)
                if ((column % 2 == 1 || column >= 2 * o->width) &&
                    !is_filled(at + column * o->element, o->element))
                    return not_ok(k, c->layout, c->route, "an element in a gap was written", err);
        }
        k->n_checks++;
    }
    return ST_OK;
}
