/* SPDX-License-Identifier: Apache-2.0 */
/* Gather rows by token id. */
#include "driver/verb_internal.h"

#include "formats/npy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum lookup_format { LOOKUP_JSON, LOOKUP_NPY, LOOKUP_RAW };

struct lookup_run {
    const struct driver_opts *o;
    struct tokentab_recipe *recipe;
    struct verb_ids ids;
    int32_t *ids32; /* --id-type int32 */
    enum lookup_format format;
    size_t first_output, n_outputs; /* of the recipe */
    int route;                      /* -1: by the number of ids */
    size_t route_taken;
    struct verb_array *arrays; /* n_outputs */
};

/* ---- what is asked for ----------------------------------------------------------------------- */

static enum status choose_outputs(struct lookup_run *r, struct err *err)
{
    r->n_outputs = tokentab_n_outputs(r->recipe);
    if (r->o->output != NULL) {
        int at = tokentab_output_find(r->recipe, r->o->output);
        if (at < 0) {
            struct bytes names = {0};
            for (size_t i = 0; i < r->n_outputs; i++) {
                struct tokentab_output_info info = {0};
                if (tokentab_output(r->recipe, i, &info) == TOKENTAB_OK)
                    bytes_printf(&names, "%s%s", i == 0 ? "" : ", ", info.name);
            }
            err_set(err, ST_USAGE, "--output: no \"%s\" among the outputs %.*s", r->o->output,
                    (int)names.size, (const char *)names.data);
            bytes_free(&names);
            return ST_USAGE;
        }
        r->first_output = (size_t)at;
        r->n_outputs = 1;
    }
    if (r->format != LOOKUP_JSON && r->n_outputs != 1)
        return err_set(err, ST_USAGE,
                       "--format %s: the recipe has %zu outputs; name one by "
                       "--output",
                       r->o->format, r->n_outputs);
    return ST_OK;
}

static enum status choose_route(struct lookup_run *r, struct err *err)
{
    r->route = -1;
    r->route_taken = tokentab_route(r->recipe, r->ids.n);
    if (r->o->route == NULL)
        return ST_OK;
    size_t n = tokentab_n_routes(r->recipe);
    for (size_t i = 0; i < n && r->route < 0; i++)
        if (strcmp(tokentab_route_name(r->recipe, i), r->o->route) == 0)
            r->route = (int)i;
    if (r->route < 0)
        return err_set(err, ST_USAGE, "--route: no \"%s\"; the recipe has bulk%s%s", r->o->route,
                       n > 1 ? " and profile0 to " : "",
                       n > 1 ? tokentab_route_name(r->recipe, n - 1) : "");
    r->route_taken = (size_t)r->route;
    return ST_OK;
}

/* A narrower type must not turn an id into another one (N19). */
static enum status narrow_ids(struct lookup_run *r, struct err *err)
{
    if (r->o->id_type == NULL || strcmp(r->o->id_type, "int32") != 0)
        return ST_OK;
    void *narrow = NULL;
    TRY(mem_alloc(r->ids.n, sizeof *r->ids32, &narrow, err));
    r->ids32 = narrow;
    for (size_t i = 0; i < r->ids.n; i++) {
        if (r->ids.values[i] < INT32_MIN || r->ids.values[i] > INT32_MAX)
            return err_set(err, ST_USAGE, "--id-type int32: id %" PRId64 " does not fit",
                           r->ids.values[i]);
        r->ids32[i] = (int32_t)r->ids.values[i];
    }
    return ST_OK;
}

static enum status check_options(struct lookup_run *r, struct err *err)
{
    const char *format = r->o->format;
    if (format == NULL || strcmp(format, "json") == 0)
        r->format = LOOKUP_JSON;
    else
        r->format = strcmp(format, "npy") == 0 ? LOOKUP_NPY : LOOKUP_RAW;
    if (r->format == LOOKUP_JSON && r->o->raw_out == NULL)
        return ST_OK;
    return verb_output_check(r->o->raw_out, "--file", r->o->force, err);
}

/* ---- gather ---------------------------------------------------------------------------------- */

static enum status make_array(struct lookup_run *r, size_t output, struct verb_array *a,
                              struct err *err)
{
    struct tokentab_output_info info = {0};
    struct tokentab_error fault = {0};
    size_t row = 0;
    TRY(verb_from_lookup(tokentab_output(r->recipe, output, &info), &fault, err));
    a->dtype = lookup_dtype(info.dtype);
    a->rank = r->ids.rank + 1;
    for (unsigned i = 0; i < r->ids.rank; i++)
        a->shape[i] = (uint64_t)r->ids.shape[i];
    a->shape[r->ids.rank] = info.width;
    a->name = str_dup(info.name);
    if (a->name == NULL || !mul_size((size_t)info.width, dtype_size(a->dtype), &row) ||
        !mul_size(row, r->ids.n, &a->size_bytes))
        return err_nomem(err, row);
    void *data = NULL;
    TRY(mem_alloc(a->size_bytes, 1, &data, err));
    a->data = data;
    return ST_OK;
}

static enum status gather(struct lookup_run *r, struct err *err)
{
    struct tokentab_request *requests = calloc(r->n_outputs, sizeof *requests);
    r->arrays = calloc(r->n_outputs, sizeof *r->arrays);
    enum status st = requests == NULL || r->arrays == NULL
                         ? err_nomem(err, r->n_outputs * sizeof *r->arrays)
                         : ST_OK;
    for (size_t i = 0; i < r->n_outputs && st == ST_OK; i++) {
        st = make_array(r, r->first_output + i, &r->arrays[i], err);
        requests[i] = (struct tokentab_request){.output = r->first_output + i,
                                                .data = r->arrays[i].data,
                                                .capacity_bytes = r->arrays[i].size_bytes};
    }
    if (st == ST_OK) {
        struct tokentab_error fault = {0};
        struct tokentab_ids ids = {.data = r->ids32 != NULL ? (const void *)r->ids32
                                                            : (const void *)r->ids.values,
                                   .type = r->ids32 != NULL ? TOKENTAB_I32 : TOKENTAB_I64,
                                   .rank = r->ids.rank,
                                   .shape = r->ids.shape};
        st = verb_from_lookup(
            tokentab_gather(r->recipe, &ids, r->route, requests, r->n_outputs, &fault), &fault,
            err);
    }
    free(requests);
    return st;
}

/* ---- results --------------------------------------------------------------------------------- */

/* Elements dim.. of the array from element *at on; `text` writes one. */
struct nest {
    unsigned rank;
    const uint64_t *shape;
    const struct verb_array *array; /* NULL: ids */
    const int64_t *ids;
    size_t at;
    struct bytes *out;
};

static void nest_element(struct nest *n)
{
    char text[VERB_TEXT_SIZE];
    if (n->array == NULL) {
        bytes_printf(n->out, "%" PRId64, n->ids[n->at++]);
        return;
    }
    const uint8_t *stored = n->array->data + n->at++ * dtype_size(n->array->dtype);
    verb_element_text(n->array->dtype, stored, text);
    bool number = text[0] != 'N' && strchr(text, 'I') == NULL; /* NaN, Infinity: as strings */
    bytes_printf(n->out, number ? "%s" : "\"%s\"", text);
}

static void nest_write(struct nest *n, unsigned dim)
{
    if (dim == n->rank) {
        nest_element(n);
        return;
    }
    bytes_append(n->out, "[", 1);
    for (uint64_t i = 0; i < n->shape[dim] && !n->out->failed; i++) {
        if (i > 0)
            bytes_append(n->out, ", ", 2);
        nest_write(n, dim + 1);
    }
    bytes_append(n->out, "]", 1);
}

void verb_array_json(const struct verb_array *a, struct bytes *out)
{
    struct nest n = {.rank = a->rank, .shape = a->shape, .array = a, .out = out};
    nest_write(&n, 0);
    bytes_put_u8(out, 0);
}

void verb_ids_json(const struct verb_ids *ids, struct bytes *out)
{
    uint64_t shape[TOKENTAB_MAX_RANK] = {0};
    for (unsigned i = 0; i < ids->rank; i++)
        shape[i] = (uint64_t)ids->shape[i];
    struct nest n = {.rank = ids->rank, .shape = shape, .ids = ids->values, .out = out};
    nest_write(&n, 0);
    bytes_put_u8(out, 0);
}

static void write_shape(struct format_writer *w, const uint64_t *shape, unsigned rank)
{
    struct bytes text = {0};
    bytes_append(&text, "[", 1);
    for (unsigned i = 0; i < rank; i++)
        bytes_printf(&text, "%s%" PRIu64, i == 0 ? "" : ", ", shape[i]);
    bytes_append(&text, "]", 2);
    w->out.failed = w->out.failed || text.failed;
    if (!text.failed)
        format_write_raw(w, "shape", (const char *)text.data);
    bytes_free(&text);
}

static void write_text(struct format_writer *w, const char *key, struct bytes *text)
{
    w->out.failed = w->out.failed || text->failed;
    if (!text->failed)
        format_write_raw(w, key, (const char *)text->data);
    bytes_free(text);
}

static void describe(struct lookup_run *r, struct driver_context *ctx)
{
    struct format_writer w;
    struct bytes ids = {0};
    verb_json_start(ctx, &w);
    format_write_string(&w, "recipe", r->o->args[0]);
    format_write_string(&w, "kind", tokentab_kind(r->recipe));
    format_write_bool(&w, "historical", tokentab_is_historical(r->recipe) != 0);
    format_write_string(&w, "route", tokentab_route_name(r->recipe, r->route_taken));
    format_write_u64(&w, "n_ids", r->ids.n);
    if (r->format == LOOKUP_JSON) {
        verb_ids_json(&r->ids, &ids);
        write_text(&w, "ids", &ids);
    }
    format_write_array(&w, "outputs");
    for (size_t i = 0; i < r->n_outputs; i++) {
        const struct verb_array *a = &r->arrays[i];
        struct bytes values = {0};
        format_write_object(&w, NULL);
        format_write_string(&w, "name", a->name);
        format_write_string(&w, "dtype", dtype_name(a->dtype));
        write_shape(&w, a->shape, a->rank);
        if (r->format == LOOKUP_JSON) {
            verb_array_json(a, &values);
            write_text(&w, "values", &values);
        } else {
            format_write_string(&w, "file", r->o->raw_out);
            format_write_string(&w, "format", r->o->format);
            if (r->format == LOOKUP_NPY && a->dtype == DT_BF16)
                format_write_string(&w, "note", "NumPy has no bfloat16: its 16 bits as <u2");
        }
        format_write_end_object(&w);
    }
    format_write_end_array(&w);
    verb_json_end(ctx, &w);
}

static enum status write_file(const struct lookup_run *r, struct err *err)
{
    const struct verb_array *a = &r->arrays[0];
    struct bytes file = {0};
    enum status st = ST_OK;
    if (r->format == LOOKUP_NPY)
        st = format_npy_header(a->dtype, a->rank, a->shape, &file, err);
    if (st == ST_OK) {
        bytes_append(&file, a->data, a->size_bytes);
        st = file.failed ? err_nomem(err, a->size_bytes)
                         : file_publish(r->o->raw_out, file.data, file.size, err);
    }
    if (st == ST_OK && r->format == LOOKUP_NPY && a->dtype == DT_BF16)
        log_warn("%s: NumPy has no bfloat16; the file holds its 16 bits as <u2", r->o->raw_out);
    bytes_free(&file);
    return st;
}

static enum status deliver(struct lookup_run *r, struct driver_context *ctx, struct err *err)
{
    if (r->format != LOOKUP_JSON) {
        TRY(write_file(r, err));
        if (r->o->json)
            describe(r, ctx);
        return ST_OK;
    }
    describe(r, ctx);
    if (r->o->raw_out == NULL || ctx->result.failed)
        return ST_OK;
    enum status st = file_publish(r->o->raw_out, ctx->result.data, ctx->result.size, err);
    bytes_free(&ctx->result);
    return st;
}

static enum status run(struct lookup_run *r, struct driver_context *ctx, struct err *err)
{
    TRY(check_options(r, err));
    TRY(verb_recipe_open(r->o->args[0], NULL, &r->recipe, err));
    TRY(verb_ids_parse(r->o->ids, r->o->shape, tokentab_num_embeddings(r->recipe), &r->ids, err));
    TRY(choose_outputs(r, err));
    TRY(choose_route(r, err));
    TRY(narrow_ids(r, err));
    TRY(gather(r, err));
    return deliver(r, ctx, err);
}

enum status driver_verb_lookup(struct driver_context *ctx, struct err *err)
{
    struct lookup_run r = {.o = ctx->opts};
    enum status st = run(&r, ctx, err);
    for (size_t i = 0; r.arrays != NULL && i < r.n_outputs; i++) {
        free(r.arrays[i].name);
        free(r.arrays[i].data);
    }
    free(r.arrays);
    free(r.ids32);
    verb_ids_free(&r.ids);
    tokentab_close(&r.recipe);
    return st;
}
