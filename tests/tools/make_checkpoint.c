/* SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE /* getopt_long */
#include "tests/tools/make_checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_ELEMENTS = 1 << 16 };

/* ---- numbers ------------------------------------------------------------------------------- */

/* splitmix64's output function (Steele, Lea, Flood 2014), of a counter: any element by itself. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Mean 0, variance 1: twelve uniforms added in integers, so no libm and one value everywhere. */
static double normal_like(uint64_t key, uint64_t index)
{
    int64_t sum = 0;
    for (uint64_t part = 0; part < 3; part++) {
        uint64_t bits = mix(key + (index * 3 + part + 1) * UINT64_C(0x9e3779b97f4a7c15));
        for (int i = 0; i < 4; i++)
            sum += (int64_t)(bits >> (16 * i) & 0xffff);
    }
    return (double)(sum * 2 - 12 * 0xffff) / 131072.0;
}

static uint64_t tensor_key(uint64_t seed, const char *name)
{
    uint64_t key = mix(seed + UINT64_C(0x9e3779b97f4a7c15));
    for (const char *c = name; *c != '\0'; c++)
        key = mix(key ^ (unsigned char)*c) + UINT64_C(0x9e3779b97f4a7c15);
    return key;
}

static void put_element(enum dtype dt, double x, uint8_t *to)
{
    float f = (float)x;
    uint16_t half;
    int64_t whole;
    switch (dt) {
    case DT_F64:
        memcpy(to, &x, 8);
        break;
    case DT_F32:
        memcpy(to, &f, 4);
        break;
    case DT_F16:
        half = f16_from_f32(f64_round_to(DT_F16, x));
        memcpy(to, &half, 2);
        break;
    case DT_BF16:
        half = bf16_from_f32(f64_round_to(DT_BF16, x));
        memcpy(to, &half, 2);
        break;
    default: /* integers: little-endian, cut to their size */
        whole = (int64_t)x;
        memcpy(to, &whole, dtype_size(dt));
        break;
    }
}

/* ---- files --------------------------------------------------------------------------------- */

static enum status write_tensor(int fd, const char *path, uint64_t offset, uint64_t seed,
                                const struct make_tensor *t, struct err *err)
{
    static uint8_t chunk[CHUNK_ELEMENTS * sizeof(double)];
    uint64_t key = tensor_key(seed, t->name);
    uint64_t n = 1;
    size_t size = dtype_size(t->dtype);
    for (unsigned d = 0; d < t->rank; d++)
        n *= t->shape[d]; /* format_safetensors_header has checked the product */
    for (uint64_t first = 0; first < n; first += CHUNK_ELEMENTS) {
        size_t count = (size_t)min_u64(CHUNK_ELEMENTS, n - first);
        for (size_t i = 0; i < count; i++) {
            double x = t->values != NULL ? t->values[first + i]
                                         : t->offset + t->scale * normal_like(key, first + i);
            put_element(t->dtype, x, chunk + i * size);
        }
        TRY(file_write_at(fd, path, offset + first * size, chunk, count * size, err));
    }
    return ST_OK;
}

/* Tensors [first, last) to one file; *data_size gets their bytes. */
static enum status write_file(const struct make_options *o, const char *path, size_t first,
                              size_t last, uint64_t *data_size, struct err *err)
{
    struct format_tensor_spec specs[MAKE_MAX_TENSORS];
    uint64_t offsets[MAKE_MAX_TENSORS];
    uint64_t file_size = 0;
    struct bytes header = {0};
    int fd = -1;
    for (size_t i = first; i < last; i++) {
        const struct make_tensor *t = &o->tensors[i];
        specs[i - first] =
            (struct format_tensor_spec){.name = t->name, .dtype = t->dtype, .rank = t->rank};
        memcpy(specs[i - first].shape, t->shape, sizeof t->shape);
    }
    enum status st = format_safetensors_header(specs, last - first, "\"format\":\"pt\"", &header,
                                               offsets, &file_size, err);
    if (st != ST_OK)
        goto out;
    *data_size = file_size - header.size;
    fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = err_set(err, ST_IO, "%s: %s", path, strerror(errno));
        goto out;
    }
    st = file_write_at(fd, path, 0, header.data, header.size, err);
    for (size_t i = first; i < last && st == ST_OK; i++)
        st = write_tensor(fd, path, offsets[i - first], o->seed, &o->tensors[i], err);
out:
    if (fd >= 0 && close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: %s", path, strerror(errno));
    bytes_free(&header);
    return st;
}

/* --out is the index; its files lie beside it. */
static enum status write_shards(const struct make_options *o, struct err *err)
{
    struct format_writer map = {.pretty = true, .depth = 1};
    struct format_writer w = {.pretty = true};
    uint64_t total = 0;
    enum status st = ST_OK;
    char *dir = path_dir(o->out);
    format_write_object(&map, NULL);
    for (size_t s = 0; s < o->n_shards && st == ST_OK; s++) {
        char name[64];
        uint64_t size = 0;
        size_t first = s * o->n_tensors / o->n_shards;
        size_t last = (s + 1) * o->n_tensors / o->n_shards;
        snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", s + 1, (size_t)o->n_shards);
        char *path = dir == NULL ? NULL : path_join(dir, name);
        st = path == NULL ? err_nomem(err, sizeof name)
                          : write_file(o, path, first, last, &size, err);
        for (size_t i = first; i < last; i++)
            format_write_string(&map, o->tensors[i].name, name);
        total += size;
        free(path);
    }
    format_write_end_object(&map);
    bytes_put_u8(&map.out, 0);
    if (st == ST_OK && !map.out.failed) {
        const char *text = (const char *)map.out.data;
        format_write_object(&w, NULL);
        format_write_object(&w, "metadata");
        format_write_u64(&w, "total_size", total);
        format_write_end_object(&w);
        format_write_raw(&w, "weight_map", text + strspn(text, "\n "));
        format_write_end_object(&w);
        format_write_finish(&w);
        st = w.out.failed ? err_nomem(err, w.out.size)
                          : file_publish(o->out, w.out.data, w.out.size, err);
    }
    bytes_free(&w.out);
    bytes_free(&map.out);
    free(dir);
    return st;
}

/* ---- command line -------------------------------------------------------------------------- */

enum status make_add(struct make_options *o, const char *name, uint64_t rows, uint64_t cols,
                     double scale, double offset, struct err *err)
{
    if (o->n_tensors == MAKE_MAX_TENSORS || strlen(name) >= MAKE_NAME_SIZE)
        return err_set(err, ST_USAGE, "%s: at most %d tensors, names of at most %d characters",
                       name, MAKE_MAX_TENSORS, MAKE_NAME_SIZE - 1);
    struct make_tensor *t = &o->tensors[o->n_tensors++];
    *t = (struct make_tensor){.dtype = o->dtype, .scale = scale, .offset = offset};
    memcpy(t->name, name, strlen(name) + 1);
    t->rank = cols == 0 ? 1 : 2;
    t->shape[0] = rows;
    t->shape[1] = cols;
    return ST_OK;
}

static bool parse_dims(char *text, struct make_tensor *t)
{
    char *rest = NULL;
    if (*text == '\0')
        return true; /* a scalar */
    for (char *part = strtok_r(text, "x", &rest); part != NULL; part = strtok_r(NULL, "x", &rest))
        if (t->rank == FORMAT_MAX_RANK || !str_to_u64(part, &t->shape[t->rank++]))
            return false;
    return true;
}

static bool parse_values(char *text, struct make_tensor *t)
{
    char *rest = NULL;
    uint64_t n = 1;
    for (unsigned d = 0; d < t->rank; d++)
        if (!mul_u64(n, t->shape[d], &n))
            return false;
    if (n > MAKE_MAX_VALUES || (t->values = calloc((size_t)n + 1, sizeof(double))) == NULL)
        return false;
    for (char *part = strtok_r(text, ",", &rest); part != NULL; part = strtok_r(NULL, ",", &rest))
        if (t->n_values == n || !str_to_double(part, &t->values[t->n_values++]))
            return false;
    return t->n_values == n;
}

/* NAME:DTYPE:d0xd1[:scale[:offset]] or NAME:DTYPE:d0xd1=v,v,... */
static enum status parse_tensor(struct make_options *o, char *text, struct err *err)
{
    char *fields[5] = {NULL};
    size_t n = 0;
    char *shown = str_dup(text);
    char *values = strchr(text, '=');
    if (values != NULL)
        *values++ = '\0';
    for (char *c = text; c != NULL && n < 5; n++) {
        fields[n] = c;
        c = strchr(c, ':');
        if (c != NULL)
            *c++ = '\0';
    }
    enum status st = make_add(o, fields[0], 0, 0, 1, 0, err);
    if (st == ST_OK) {
        struct make_tensor *t = &o->tensors[o->n_tensors - 1];
        t->rank = 0;
        bool ok = n >= 3 && (t->dtype = dtype_from_name(fields[1], strlen(fields[1]))) < DT_F8_E4M3;
        ok = ok && parse_dims(fields[2], t);
        ok = ok && (n < 4 || str_to_double(fields[3], &t->scale));
        ok = ok && (n < 5 || str_to_double(fields[4] + (fields[4][0] == '+'), &t->offset));
        ok = ok && (values == NULL || (n == 3 && parse_values(values, t)));
        if (!ok)
            st = err_set(err, ST_USAGE,
                         "--tensor %s: expected NAME:DTYPE:d0xd1[:scale[:offset]] or "
                         "NAME:DTYPE:d0xd1=v,v,...",
                         shown == NULL ? "" : shown);
    }
    free(shown);
    return st;
}

static const char usage[] =
    "Usage: make_checkpoint --out FILE [options]\n"
    "  --out FILE              safetensors file, or the index with --shards\n"
    "  --seed N                0\n"
    "  --tensor NAME:DTYPE:d0xd1[:scale[:offset]]   random: offset + scale * z (repeatable)\n"
    "  --tensor NAME:DTYPE:d0xd1=v,v,...            these values\n"
    "  --preset novomolgen|gene|rwkv|four-token     --dtype F32, --vocab N, --width N,\n"
    "                          --out-width N change its sizes\n"
    "  --spec FILE             the spec of the preset; --bulk-rows 1024, --validation-rows 257,\n"
    "                          --arithmetic library, --storage must_shrink\n"
    "  --shards N              N files and an index\n";

enum option_id {
    O_OUT = 1,
    O_SEED,
    O_TENSOR,
    O_PRESET,
    O_DTYPE,
    O_VOCAB,
    O_WIDTH,
    O_OUT_WIDTH,
    O_SPEC,
    O_BULK,
    O_VALIDATION,
    O_ARITHMETIC,
    O_STORAGE,
    O_SHARDS,
    O_HELP
};

static const struct option option_table[] = {
    {"out", required_argument, NULL, O_OUT},
    {"seed", required_argument, NULL, O_SEED},
    {"tensor", required_argument, NULL, O_TENSOR},
    {"preset", required_argument, NULL, O_PRESET},
    {"dtype", required_argument, NULL, O_DTYPE},
    {"vocab", required_argument, NULL, O_VOCAB},
    {"width", required_argument, NULL, O_WIDTH},
    {"out-width", required_argument, NULL, O_OUT_WIDTH},
    {"spec", required_argument, NULL, O_SPEC},
    {"bulk-rows", required_argument, NULL, O_BULK},
    {"validation-rows", required_argument, NULL, O_VALIDATION},
    {"arithmetic", required_argument, NULL, O_ARITHMETIC},
    {"storage", required_argument, NULL, O_STORAGE},
    {"shards", required_argument, NULL, O_SHARDS},
    {"help", no_argument, NULL, O_HELP},
    {NULL, 0, NULL, 0},
};

static enum status apply_option(struct make_options *o, int id, char *value, struct err *err)
{
    uint64_t *number = NULL;
    const char **text = NULL;
    switch (id) {
    case O_OUT:
        text = &o->out;
        break;
    case O_PRESET:
        text = &o->preset;
        break;
    case O_SPEC:
        text = &o->spec;
        break;
    case O_ARITHMETIC:
        text = &o->arithmetic;
        break;
    case O_STORAGE:
        text = &o->storage;
        break;
    case O_SEED:
        number = &o->seed;
        break;
    case O_VOCAB:
        number = &o->vocab;
        break;
    case O_WIDTH:
        number = &o->width;
        break;
    case O_OUT_WIDTH:
        number = &o->out_width;
        break;
    case O_BULK:
        number = &o->bulk_rows;
        break;
    case O_VALIDATION:
        number = &o->validation_rows;
        break;
    case O_SHARDS:
        number = &o->n_shards;
        break;
    case O_TENSOR:
        return parse_tensor(o, value, err);
    case O_DTYPE:
        o->dtype = dtype_from_name(value, strlen(value));
        if (!dtype_is_computable(o->dtype))
            return err_set(err, ST_USAGE, "--dtype %s: expected F64, F32, F16 or BF16", value);
        return ST_OK;
    default:
        return err_set(err, ST_USAGE, "see --help");
    }
    if (text != NULL)
        *text = value;
    else if (!str_to_u64(value, number))
        return err_set(err, ST_USAGE, "%s: expected a whole number", value);
    return ST_OK;
}

static enum status run(int argc, char **argv, struct make_options *o, struct err *err)
{
    int id;
    while ((id = getopt_long(argc, argv, "", option_table, NULL)) != -1) {
        if (id == O_HELP) {
            fputs(usage, stdout);
            return ST_OK;
        }
        TRY(apply_option(o, id, optarg, err));
    }
    if (optind < argc)
        return err_set(err, ST_USAGE, "%s: not an option", argv[optind]);
    if (o->out == NULL)
        return err_set(err, ST_USAGE, "--out FILE is missing");
    if (o->spec != NULL && o->preset == NULL)
        return err_set(err, ST_USAGE, "--spec needs a --preset");
    if (o->preset != NULL)
        TRY(make_preset(o, err));
    if (o->n_shards > o->n_tensors)
        return err_set(err, ST_USAGE, "--shards: more files than the %zu tensors", o->n_tensors);
    uint64_t size = 0;
    if (o->n_shards > 0)
        TRY(write_shards(o, err));
    else
        TRY(write_file(o, o->out, 0, o->n_tensors, &size, err));
    return o->spec != NULL ? make_spec(o, err) : ST_OK;
}

int main(int argc, char **argv)
{
    static struct make_options o = {.arithmetic = "library",
                                    .storage = "must_shrink",
                                    .dtype = DT_F32,
                                    .bulk_rows = 1024,
                                    .validation_rows = 257};
    struct err err = {0};
    enum status st = run(argc, argv, &o, &err);
    if (st != ST_OK)
        fprintf(stderr, "make_checkpoint: %s\n", err.message);
    for (size_t i = 0; i < o.n_tensors; i++)
        free(o.tensors[i].values);
    return status_exit_code(st);
}
