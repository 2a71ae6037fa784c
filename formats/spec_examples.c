/* SPDX-License-Identifier: Apache-2.0 */
/* Examples of an enclosing model: calls written in JSON, or tensors of safetensors files. */
#include "formats/spec_model.h"
#include "formats/formats_internal.h"
#include "formats/spec_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXAMPLES_MAX = 1 << 20, JSON_MAX_BYTES = 1 << 30 };

struct reading {
    const struct graph_model *m;
    struct format_examples *out;
    struct spec_reader r; /* r.spec->path names the document */
};

void format_examples_free(struct format_examples *e)
{
    for (size_t i = 0; i < e->n; i++) {
        for (size_t k = 0; e->list[i].inputs != NULL && k < e->n_inputs; k++)
            free(e->list[i].inputs[k].data);
        free(e->list[i].inputs);
        free(e->list[i].name);
    }
    free(e->list);
    *e = (struct format_examples){0};
}

/* A new example at the end; its inputs have no data yet. */
static enum status add(const struct reading *d, const char *name, struct format_example **out)
{
    struct format_examples *e = d->out;
    void *memory = NULL;
    if (e->n >= EXAMPLES_MAX)
        return err_set(d->r.err, ST_SPEC, "%s: more than %d examples", d->r.spec->path,
                       EXAMPLES_MAX);
    if ((e->n & (e->n - 1)) == 0) {
        size_t capacity = e->n == 0 ? 1 : 2 * e->n;
        void *grown = realloc(e->list, capacity * sizeof *e->list);
        if (grown == NULL)
            return err_nomem(d->r.err, capacity * sizeof *e->list);
        e->list = grown;
    }
    e->n_inputs = d->m->n_inputs;
    struct format_example *one = &e->list[e->n];
    *one = (struct format_example){.name = str_dup(name)};
    e->n++;
    if (one->name == NULL)
        return err_nomem(d->r.err, strlen(name) + 1);
    TRY(mem_calloc(d->m->n_inputs, sizeof *one->inputs, &memory, d->r.err));
    one->inputs = memory;
    *out = one;
    return ST_OK;
}

static bool is_whole(const struct graph_model_input *in)
{
    return in->kind == INPUT_TOKEN_IDS || in->kind == INPUT_INTEGERS;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Shape of nested lists, from their first elements. */
static enum status nested_shape(const struct reading *d, const struct spec_path *at,
                                const cJSON *json, struct format_array *a)
{
    for (; cJSON_IsArray(json); json = json->child) {
        if (a->rank == FORMAT_MAX_RANK)
            return spec_fail(&d->r, ST_SPEC, at, "expected at most %d axes", FORMAT_MAX_RANK);
        a->shape[a->rank++] = (uint64_t)cJSON_GetArraySize(json);
        if (json->child == NULL)
            break;
    }
    return ST_OK;
}

static enum status put_number(const struct reading *d, const struct spec_path *at,
                              const cJSON *json, const struct graph_model_input *in,
                              struct format_array *a, size_t i)
{
    double x = cJSON_IsBool(json)     ? cJSON_IsTrue(json)
               : cJSON_IsNumber(json) ? json->valuedouble
                                      : NAN;
    char *to = (char *)a->data + i * dtype_size(a->dtype);
    if (is_whole(in)) {
        int64_t whole = x > -0x1p53 && x < 0x1p53 ? (int64_t)x : 0;
        bool fits = a->dtype != DT_I32 || (whole >= INT32_MIN && whole <= INT32_MAX);
        int32_t narrow = fits && a->dtype == DT_I32 ? (int32_t)whole : 0;
        if (!cJSON_IsNumber(json) || (double)whole != x || !fits)
            return spec_expected(&d->r, at, json, fits ? "a whole number" : "a 32-bit number");
        memcpy(to, a->dtype == DT_I32 ? (const void *)&narrow : (const void *)&whole,
               dtype_size(a->dtype));
        return ST_OK;
    }
    if (!isfinite(x) || (a->dtype == DT_BOOL && x != 0 && x != 1))
        return spec_expected(&d->r, at, json, a->dtype == DT_BOOL ? "true or false" : "a number");
    float f = a->dtype == DT_F64 || a->dtype == DT_BOOL ? 0 : f64_round_to(a->dtype, x);
    uint16_t half = a->dtype == DT_F16 ? f16_from_f32(f) : bf16_from_f32(f);
    uint8_t flag = x != 0;
    const void *from = a->dtype == DT_F64    ? (const void *)&x
                       : a->dtype == DT_F32  ? (const void *)&f
                       : a->dtype == DT_BOOL ? (const void *)&flag
                                             : (const void *)&half;
    memcpy(to, from, dtype_size(a->dtype));
    return ST_OK;
}

/* Elements of nested lists in order; every list at a depth has the same length. */
static enum status put_nested(const struct reading *d, const struct spec_path *at,
                              const cJSON *json, const struct graph_model_input *in,
                              struct format_array *a, unsigned depth, size_t *n)
{
    if (depth == a->rank)
        return put_number(d, at, json, in, a, (*n)++);
    if (!cJSON_IsArray(json) || (uint64_t)cJSON_GetArraySize(json) != a->shape[depth])
        return spec_fail(&d->r, ST_SPEC, at,
                         "ragged: expected a list of %llu, as the first one at this depth",
                         (unsigned long long)a->shape[depth]);
    size_t i = 0;
    for (const cJSON *item = json->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {at, NULL, i};
        TRY(put_nested(d, &here, item, in, a, depth + 1, n));
    }
    return ST_OK;
}

static enum status count_elements(const struct reading *d, const struct spec_path *at,
                                  const struct format_array *a, size_t *n)
{
    uint64_t count = 1;
    bool empty = false;
    for (unsigned i = 0; i < a->rank; i++)
        empty = empty || a->shape[i] == 0;
    for (unsigned i = 0; i < a->rank && !empty; i++)
        if (!mul_u64(count, a->shape[i], &count) || count > INT32_MAX)
            return spec_fail(&d->r, ST_SPEC, at, "expected at most %d elements", INT32_MAX);
    *n = empty ? 0 : (size_t)count;
    return ST_OK;
}

/* {"shape", "data"}: data is flat. */
static enum status put_flat(const struct reading *d, const struct spec_path *at, const cJSON *json,
                            const struct graph_model_input *in, struct format_array *a)
{
    const struct spec_path shape_at = {at, "shape", 0}, data_at = {at, "data", 0};
    const cJSON *shape = spec_get(json, "shape"), *data = spec_get(json, "data");
    size_t n = 0, i = 0;
    TRY(SPEC_OBJECT(&d->r, at, json, "shape", "data"));
    TRY(spec_array(&d->r, &shape_at, shape));
    TRY(spec_array(&d->r, &data_at, data));
    for (const cJSON *item = shape->child; item != NULL; item = item->next) {
        const struct spec_path here = {&shape_at, NULL, a->rank};
        uint64_t length = 0;
        if (a->rank == FORMAT_MAX_RANK || !format_json_u64(item, &length))
            return spec_expected(&d->r, &here, item, "at most 8 whole numbers");
        a->shape[a->rank++] = length;
    }
    TRY(count_elements(d, at, a, &n));
    if ((size_t)cJSON_GetArraySize(data) != n)
        return spec_fail(&d->r, ST_SPEC, &data_at, "%d elements, expected %zu",
                         cJSON_GetArraySize(data), n);
    TRY(mem_alloc(n, dtype_size(a->dtype), &a->data, d->r.err));
    for (const cJSON *item = data->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {&data_at, NULL, i};
        TRY(put_number(d, &here, item, in, a, i));
    }
    return ST_OK;
}

static enum status read_value(const struct reading *d, const struct spec_path *at,
                              const cJSON *json, const struct graph_model_input *in,
                              struct format_array *a)
{
    size_t n = 0, at_element = 0;
    *a = (struct format_array){.dtype = in->dtype};
    if (cJSON_IsObject(json))
        return put_flat(d, at, json, in, a);
    TRY(nested_shape(d, at, json, a));
    TRY(count_elements(d, at, a, &n));
    TRY(mem_alloc(n, dtype_size(a->dtype), &a->data, d->r.err));
    return put_nested(d, at, json, in, a, 0, &at_element);
}

static enum status read_inputs(const struct reading *d, const struct spec_path *at,
                               const cJSON *json, const char *name)
{
    struct format_example *one = NULL;
    char shown[FORMAT_PRINTABLE_SIZE];
    if (!cJSON_IsObject(json))
        return spec_expected(&d->r, at, json, "an object {input: values}");
    TRY(add(d, name, &one));
    for (const cJSON *item = json->child; item != NULL; item = item->next) {
        bool known = false;
        const struct spec_path here = {at, item->string, 0};
        for (size_t i = 0; i < d->m->n_inputs; i++)
            known = known || strcmp(d->m->inputs[i].name, item->string) == 0;
        if (!known)
            return spec_fail(&d->r, ST_SPEC, &here, "the model has no input %s",
                             format_printable(item->string, shown));
    }
    for (size_t i = 0; i < d->m->n_inputs; i++) {
        const struct graph_model_input *in = &d->m->inputs[i];
        const struct spec_path here = {at, in->name, 0};
        if (spec_get(json, in->name) == NULL)
            return spec_missing(&d->r, at, in->name, "every example");
        TRY(read_value(d, &here, spec_get(json, in->name), in, &one->inputs[i]));
    }
    return ST_OK;
}

static enum status read_path(const struct reading *d, const char *name)
{
    char *dir = path_dir(d->r.spec->path);
    char *path = dir == NULL ? NULL : path_join(strcmp(dir, ".") == 0 ? NULL : dir, name);
    enum status st = path == NULL ? err_nomem(d->r.err, strlen(name) + 1)
                                  : format_examples_file(path, d->m, d->out, d->r.err);
    free(dir);
    free(path);
    return st;
}

/* A list of objects {"name", "inputs"} and paths, an object {name: {input: values}}, or a path. */
static enum status read_json(const struct reading *d, const struct spec_path *at, const cJSON *json,
                             bool paths)
{
    size_t i = 0;
    if (paths && cJSON_IsString(json))
        return read_path(d, json->valuestring);
    if (cJSON_IsObject(json)) {
        for (const cJSON *item = json->child; item != NULL; item = item->next) {
            const struct spec_path here = {at, item->string, 0};
            if (strcmp(item->string, "comment") == 0 && cJSON_IsString(item))
                continue;
            TRY(read_inputs(d, &here, item, item->string));
        }
        return ST_OK;
    }
    TRY(spec_array(&d->r, at, json));
    for (const cJSON *item = json->child; item != NULL; item = item->next, i++) {
        const struct spec_path here = {at, NULL, i}, inputs_at = {&here, "inputs", 0};
        const char *name = NULL;
        if (paths && cJSON_IsString(item)) {
            TRY(read_path(d, item->valuestring));
            continue;
        }
        TRY(SPEC_OBJECT(&d->r, &here, item, "name", "inputs"));
        TRY(spec_string(&d->r, &here, item, "name", NULL, &name));
        if (spec_get(item, "inputs") == NULL)
            return spec_missing(&d->r, &here, "inputs", "an example");
        /* numbered through all files, so that names stay apart */
        char *own = name != NULL ? str_dup(name) : str_printf("%zu", d->out->n);
        enum status st = own == NULL ? err_nomem(d->r.err, 32)
                                     : read_inputs(d, &inputs_at, spec_get(item, "inputs"), own);
        free(own);
        TRY(st);
    }
    return ST_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Reports and results tell examples by their names. */
static enum status check_names(const struct reading *d)
{
    const struct format_examples *e = d->out;
    void *memory = NULL;
    char shown[FORMAT_PRINTABLE_SIZE];
    enum status st = ST_OK;
    TRY(mem_alloc(e->n, sizeof(char *), &memory, d->r.err));
    const char **names = memory;
    for (size_t i = 0; i < e->n; i++)
        names[i] = e->list[i].name;
    if (e->n > 1)
        qsort(names, e->n, sizeof *names, by_name);
    for (size_t i = 1; i < e->n && st == ST_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            st = err_set(d->r.err, ST_SPEC, "%s: examples: a second one of name \"%s\"",
                         d->r.spec->path, format_printable(names[i], shown));
    free(memory);
    return st;
}

enum status format_spec_examples(const struct format_spec *s, const struct graph_model *m,
                                 struct format_examples *out, struct err *err)
{
    const struct spec_path root = {0}, at = {&root, "examples", 0};
    const struct reading d = {m, out, {s, err}};
    *out = (struct format_examples){0};
    if (s->examples == NULL)
        return ST_OK;
    TRY(read_json(&d, &at, s->examples, true));
    return check_names(&d);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Input and example of a tensor "INPUT.NAME": the longest input name that fits. */
static const struct graph_model_input *tensor_input(const struct graph_model *m, const char *tensor,
                                                    size_t *index, const char **name)
{
    const struct graph_model_input *best = NULL;
    size_t best_size = 0;
    for (size_t i = 0; i < m->n_inputs; i++) {
        size_t size = strlen(m->inputs[i].name);
        bool fits = strncmp(tensor, m->inputs[i].name, size) == 0 &&
                    (tensor[size] == '\0' || tensor[size] == '.');
        if (!fits || (best != NULL && size < best_size))
            continue;
        best = &m->inputs[i];
        best_size = size;
        *index = i;
        *name = tensor[size] == '.' ? tensor + size + 1 : tensor + size;
    }
    return best;
}

static bool dtype_fits(const struct graph_model_input *in, enum dtype dt)
{
    return is_whole(in) ? dt == DT_I64 || dt == DT_I32 : dt == in->dtype;
}

static enum status read_tensor(const struct reading *d, const struct format_safetensors *f,
                               const struct format_tensor *t, size_t first)
{
    size_t index = 0;
    const char *name = NULL;
    char shown[FORMAT_PRINTABLE_SIZE];
    struct format_example *one = NULL;
    const struct graph_model_input *in = tensor_input(d->m, t->name, &index, &name);
    format_printable(t->name, shown);
    if (in == NULL)
        return err_set(d->r.err, ST_SPEC, "%s: tensor %s: the model has no such input", f->path,
                       shown);
    if (!dtype_fits(in, t->dtype))
        return err_set(d->r.err, ST_SPEC, "%s: tensor %s: expected %s, found %s", f->path, shown,
                       dtype_name(in->dtype), t->dtype_text);
    for (size_t i = first; i < d->out->n && one == NULL; i++)
        if (strcmp(d->out->list[i].name, name) == 0)
            one = &d->out->list[i];
    if (one == NULL)
        TRY(add(d, name, &one));
    struct format_array *a = &one->inputs[index];
    if (a->data != NULL) /* "ids" and "ids." */
        return err_set(d->r.err, ST_SPEC, "%s: tensor %s: a second one of input %s, example \"%s\"",
                       f->path, shown, in->name, name);
    *a = (struct format_array){.dtype = t->dtype, .rank = t->rank};
    memcpy(a->shape, t->shape, sizeof a->shape);
    size_t size = 0;
    if (!u64_to_size(t->size_bytes, &size))
        return err_nomem(d->r.err, SIZE_MAX);
    TRY(mem_alloc(size, 1, &a->data, d->r.err));
    return size == 0 ? ST_OK : format_safetensors_read(f, t, 0, a->data, size, d->r.err);
}

static enum status read_safetensors(const struct reading *d, const char *path)
{
    struct format_safetensors *f = NULL;
    size_t first = d->out->n;
    TRY(format_safetensors_open(path, 0, &f, d->r.err));
    enum status st = ST_OK;
    for (size_t i = 0; i < f->n_tensors && st == ST_OK; i++)
        st = read_tensor(d, f, &f->tensors[i], first);
    for (size_t i = first; i < d->out->n && st == ST_OK; i++)
        for (size_t k = 0; k < d->m->n_inputs && st == ST_OK; k++) {
            const char *name = d->out->list[i].name;
            if (d->out->list[i].inputs[k].data == NULL)
                st = err_set(d->r.err, ST_SPEC,
                             "%s: no tensor %s%s%s: every example gives every "
                             "input",
                             path, d->m->inputs[k].name, name[0] == '\0' ? "" : ".", name);
        }
    format_safetensors_close(&f);
    return st;
}

enum status format_examples_file(const char *path, const struct graph_model *m,
                                 struct format_examples *out, struct err *err)
{
    struct format_spec named = {.path = str_dup(path)};
    const struct reading d = {m, out, {&named, err}};
    const struct spec_path root = {0};
    size_t size = strlen(path);
    struct cJSON *json = NULL;
    enum status st = named.path == NULL ? err_nomem(err, size + 1) : ST_OK;
    if (st == ST_OK && (size < 5 || strcmp(path + size - 5, ".json") != 0)) {
        st = read_safetensors(&d, path);
    } else if (st == ST_OK) {
        st = format_json_read(path, JSON_MAX_BYTES, &json, err);
        if (st == ST_OK)
            st = read_json(&d, &root, json, false);
        format_json_free(&json);
    }
    if (st == ST_OK)
        st = check_names(&d);
    free(named.path);
    return st;
}
