/* SPDX-License-Identifier: Apache-2.0 */
#include "formats/recipe.h"
#include "formats/formats_internal.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PREFIX_SIZE = 8 };

/* ---- reading ------------------------------------------------------------------------------- */

/* Files that people take for safetensors, by their first bytes. */
static const struct {
    const char *magic, *what;
} impostors[] = {
    {"version https://git-lfs.github.com/spec/v1",
     "is a Git LFS pointer, not the file itself (git lfs pull fetches it)"},
    {"GGUF", "is a GGUF file, not safetensors"},
    {"PK\003\004", "is a ZIP archive (a PyTorch checkpoint?), not safetensors"},
    {"\x89HDF", "is an HDF5 file, not safetensors"},
    {"<!DOCTYPE", "is an HTML page (a failed download?), not safetensors"},
    {"<html", "is an HTML page (a failed download?), not safetensors"},
};

static enum status check_impostor(const struct format_safetensors *f, struct err *err)
{
    char head[48] = {0};
    size_t size = f->file_size < sizeof head ? (size_t)f->file_size : sizeof head;
    TRY(file_read_at(f->fd, f->path, 0, head, size, err));
    for (size_t i = 0; i < sizeof impostors / sizeof impostors[0]; i++) {
        size_t n = strlen(impostors[i].magic);
        if (size >= n && memcmp(head, impostors[i].magic, n) == 0)
            return err_set(err, ST_FORMAT, "%s: %s", f->path, impostors[i].what);
    }
    return ST_OK;
}

/* The length prefix, held against the file size and the cap before anything is allocated (N1). */
static enum status read_prefix(struct format_safetensors *f, uint64_t cap, struct err *err)
{
    uint8_t prefix[PREFIX_SIZE];
    TRY(check_impostor(f, err));
    if (f->file_size < PREFIX_SIZE)
        return err_set(err, ST_FORMAT,
                       "%s: %" PRIu64 " bytes, expected at least the 8-byte header length", f->path,
                       f->file_size);
    TRY(file_read_at(f->fd, f->path, 0, prefix, sizeof prefix, err));
    struct bytes_reader r = {.data = prefix, .size = sizeof prefix};
    uint64_t claimed = bytes_get_u64(&r);
    if (claimed == 0)
        return err_set(err, ST_FORMAT, "%s: header length 0, expected a JSON object", f->path);
    if (claimed > f->file_size - PREFIX_SIZE)
        return err_set(err, ST_FORMAT,
                       "%s: header length %" PRIu64 " reaches past the end of the file (%" PRIu64
                       " bytes; cap %" PRIu64 "): cut short, or not safetensors",
                       f->path, claimed, f->file_size, cap);
    if (claimed > cap)
        return err_set(err, ST_FORMAT,
                       "%s: header length %" PRIu64 " above the cap of %" PRIu64
                       " (file size %" PRIu64 "); raise the cap if the file is to be trusted",
                       f->path, claimed, cap, f->file_size);
    f->header_size = claimed;
    return ST_OK;
}

static enum status tensor_fault(const struct format_safetensors *f, const cJSON *entry,
                                const char *what, const cJSON *found, struct err *err)
{
    char name[FORMAT_PRINTABLE_SIZE];
    char shown[FORMAT_PRINTABLE_SIZE];
    return err_set(err, ST_FORMAT, "%s: tensor \"%s\": expected %s, found %s", f->path,
                   format_printable(entry->string, name), what, format_json_shown(found, shown));
}

static enum status read_shape(const struct format_safetensors *f, const cJSON *entry,
                              const cJSON *shape, struct format_tensor *t, struct err *err)
{
    char name[FORMAT_PRINTABLE_SIZE];
    bool empty = false;
    uint64_t n = 1;
    if (!cJSON_IsArray(shape))
        return tensor_fault(f, entry, "an array \"shape\"", shape, err);
    for (const cJSON *dim = shape->child; dim != NULL; dim = dim->next) {
        uint64_t d;
        if (t->rank == FORMAT_MAX_RANK)
            return err_set(err, ST_FORMAT, "%s: tensor \"%s\": more than %d dimensions", f->path,
                           format_printable(entry->string, name), FORMAT_MAX_RANK);
        if (!format_json_u64(dim, &d))
            return tensor_fault(f, entry, "whole numbers from 0 to 2^53 - 1 in \"shape\"", dim,
                                err);
        t->shape[t->rank++] = d;
        empty = empty || d == 0;
        /* a zero must not hide an overflow: readers multiply parts of a shape as well */
        if (d != 0 && !mul_u64(n, d, &n))
            return err_set(err, ST_FORMAT,
                           "%s: tensor \"%s\": the product of its shape overflows 64 bits", f->path,
                           format_printable(entry->string, name));
    }
    t->n_elements = empty ? 0 : n;
    return ST_OK;
}

/* offset: relative to the data section until read_header moves it. */
static enum status read_span(const struct format_safetensors *f, const cJSON *entry,
                             const cJSON *span, struct format_tensor *t, struct err *err)
{
    char name[FORMAT_PRINTABLE_SIZE];
    uint64_t data_size = f->file_size - PREFIX_SIZE - f->header_size;
    uint64_t at[2] = {0, 0};
    if (!cJSON_IsArray(span) || cJSON_GetArraySize(span) != 2)
        return tensor_fault(f, entry, "two numbers [begin, end] in \"data_offsets\"", span, err);
    for (int i = 0; i < 2; i++) {
        const cJSON *item = cJSON_GetArrayItem(span, i);
        if (!format_json_u64(item, &at[i]))
            return tensor_fault(f, entry, "whole numbers from 0 to 2^53 - 1 in \"data_offsets\"",
                                item, err);
    }
    format_printable(entry->string, name);
    if (at[0] > at[1])
        return err_set(err, ST_FORMAT,
                       "%s: tensor \"%s\": data_offsets begin %" PRIu64
                       " behind their end %" PRIu64,
                       f->path, name, at[0], at[1]);
    if (at[1] > data_size)
        return err_set(err, ST_FORMAT,
                       "%s: tensor \"%s\": data ends at %" PRIu64 ", expected at most %" PRIu64
                       " (the data section of a file of %" PRIu64 " bytes): cut short?",
                       f->path, name, at[1], data_size, f->file_size);
    t->offset = at[0];
    t->size_bytes = at[1] - at[0];
    return ST_OK;
}

/* shape x dtype = span.  Bits an element are unknown for an unknown dtype, so nothing is said. */
static enum status check_span(const struct format_safetensors *f, const struct format_tensor *t,
                              struct err *err)
{
    char name[FORMAT_PRINTABLE_SIZE];
    uint64_t expected;
    if (t->dtype == DT_UNKNOWN)
        return ST_OK;
    if (!mul_u64(t->n_elements, dtype_size(t->dtype), &expected))
        return err_set(err, ST_FORMAT, "%s: tensor \"%s\": shape x dtype overflows 64 bits",
                       f->path, format_printable(t->name, name));
    if (expected != t->size_bytes)
        return err_set(err, ST_FORMAT,
                       "%s: tensor \"%s\": shape x %s takes %" PRIu64
                       " bytes, found data_offsets of %" PRIu64 " bytes",
                       f->path, format_printable(t->name, name), t->dtype_text, expected,
                       t->size_bytes);
    return ST_OK;
}

static enum status read_tensor(const struct format_safetensors *f, const cJSON *entry,
                               struct format_tensor *t, struct err *err)
{
    const cJSON *dtype = NULL;
    const cJSON *shape = NULL;
    const cJSON *span = NULL;
    if (!cJSON_IsObject(entry))
        return tensor_fault(f, entry, "an object", entry, err);
    for (const cJSON *c = entry->child; c != NULL; c = c->next) {
        if (strcmp(c->string, "dtype") == 0)
            dtype = c;
        else if (strcmp(c->string, "shape") == 0)
            shape = c;
        else if (strcmp(c->string, "data_offsets") == 0)
            span = c;
        else {
            const cJSON key = {.type = cJSON_String, .valuestring = c->string};
            return tensor_fault(f, entry, "the keys dtype, shape, data_offsets alone", &key, err);
        }
    }
    if (!cJSON_IsString(dtype) || dtype->valuestring[0] == '\0')
        return tensor_fault(f, entry, "a string \"dtype\"", dtype, err);
    t->dtype = dtype_from_name(dtype->valuestring, strlen(dtype->valuestring));
    char shown[FORMAT_PRINTABLE_SIZE];
    snprintf(t->dtype_text, sizeof t->dtype_text, "%.15s",
             format_printable(dtype->valuestring, shown));
    TRY(read_shape(f, entry, shape, t, err));
    TRY(read_span(f, entry, span, t, err));
    t->name = str_dup(entry->string);
    if (t->name == NULL)
        return err_nomem(err, strlen(entry->string) + 1);
    return check_span(f, t, err);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct format_tensor *x = *(const struct format_tensor *const *)a;
    const struct format_tensor *y = *(const struct format_tensor *const *)b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->size_bytes != y->size_bytes)
        return x->size_bytes < y->size_bytes ? -1 : 1;
    return 0;
}

/* Every byte of the data section belongs to one tensor (N3). */
static enum status check_tiling(const struct format_safetensors *f,
                                const struct format_tensor *const *sorted, struct err *err)
{
    char name[FORMAT_PRINTABLE_SIZE];
    char before[FORMAT_PRINTABLE_SIZE];
    uint64_t data_size = f->file_size - PREFIX_SIZE - f->header_size;
    uint64_t at = 0;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct format_tensor *t = sorted[i];
        format_printable(t->name, name);
        if (t->offset < at) /* never at i = 0 */
            return err_set(err, ST_FORMAT,
                           "%s: tensors \"%s\" (ends at %" PRIu64 ") and \"%s\" (begins at %" PRIu64
                           ") overlap",
                           f->path, format_printable(sorted[i - 1]->name, before), at, name,
                           t->offset);
        if (t->offset > at)
            return err_set(err, ST_FORMAT,
                           "%s: hole %" PRIu64 "..%" PRIu64 " in the data before tensor \"%s\"",
                           f->path, at, t->offset, name);
        at = t->offset + t->size_bytes;
    }
    if (at != data_size)
        return err_set(err, ST_FORMAT,
                       "%s: %" PRIu64 " bytes behind the last tensor: expected a file of %" PRIu64
                       " bytes, found %" PRIu64,
                       f->path, data_size - at, PREFIX_SIZE + f->header_size + at, f->file_size);
    return ST_OK;
}

static enum status check_layout(const struct format_safetensors *f, struct err *err)
{
    const struct format_tensor **sorted = calloc(f->n_tensors + 1, sizeof *sorted);
    if (sorted == NULL)
        return err_nomem(err, (f->n_tensors + 1) * sizeof *sorted);
    for (size_t i = 0; i < f->n_tensors; i++)
        sorted[i] = &f->tensors[i];
    qsort(sorted, f->n_tensors, sizeof *sorted, compare_offsets);
    enum status st = check_tiling(f, sorted, err);
    free(sorted);
    return st;
}

static enum status check_metadata(const struct format_safetensors *f, const cJSON *metadata,
                                  struct err *err)
{
    if (!cJSON_IsObject(metadata))
        return tensor_fault(f, metadata, "an object", metadata, err);
    for (const cJSON *c = metadata->child; c != NULL; c = c->next)
        if (!cJSON_IsString(c)) {
            char name[FORMAT_PRINTABLE_SIZE];
            char shown[FORMAT_PRINTABLE_SIZE];
            return err_set(err, ST_FORMAT, "%s: __metadata__.%s: expected a string, found %s",
                           f->path, format_printable(c->string, name), format_json_shown(c, shown));
        }
    return ST_OK;
}

/* Fill f->tensors from the header's object, in its order; takes __metadata__ out of it. */
static enum status take_entries(struct format_safetensors *f, cJSON *header, struct err *err)
{
    size_t n = 0;
    for (const cJSON *c = header->child; c != NULL; c = c->next)
        n++;
    f->tensors = calloc(n + 1, sizeof *f->tensors);
    if (f->tensors == NULL)
        return err_nomem(err, (n + 1) * sizeof *f->tensors);
    cJSON *metadata = NULL;
    for (cJSON *c = header->child; c != NULL; c = c->next) {
        if (strcmp(c->string, "__metadata__") == 0) {
            TRY(check_metadata(f, c, err));
            metadata = c;
            continue;
        }
        struct format_tensor *t = &f->tensors[f->n_tensors++];
        TRY(read_tensor(f, c, t, err));
    }
    TRY(check_layout(f, err));
    for (size_t i = 0; i < f->n_tensors; i++)
        f->tensors[i].offset += PREFIX_SIZE + f->header_size;
    if (metadata != NULL)
        f->metadata = cJSON_DetachItemViaPointer(header, metadata);
    return ST_OK;
}

static enum status read_header(struct format_safetensors *f, struct err *err)
{
    cJSON *header = NULL;
    size_t size;
    if (!u64_to_size(f->header_size, &size))
        return err_set(err, ST_NOMEM, "%s: header of %" PRIu64 " bytes", f->path, f->header_size);
    char *text = malloc(size);
    char *what = str_printf("%s: header", f->path);
    enum status st = ST_OK;
    if (text == NULL || what == NULL) {
        st = err_nomem(err, size);
        goto out;
    }
    st = file_read_at(f->fd, f->path, PREFIX_SIZE, text, size, err);
    if (st != ST_OK)
        goto out;
    if (text[0] != '{') {
        st = err_set(err, ST_FORMAT, "%s: expected '{', found byte 0x%02x: not safetensors?", what,
                     (unsigned)(unsigned char)text[0]);
        goto out;
    }
    size_t end = size;
    while (end > 0 && text[end - 1] == ' ') /* padding; other white space is a fault (N6) */
        end--;
    if (end == 0 || text[end - 1] != '}') {
        st = err_set(err, ST_FORMAT, "%s: expected '}' and spaces at its end, found byte 0x%02x",
                     what, (unsigned)(unsigned char)text[end == 0 ? 0 : end - 1]);
        goto out;
    }
    st = format_json_parse(what, text, end, &header, err);
    free(text);
    text = NULL; /* the tree holds copies; not both while tensors are built */
    if (st == ST_OK)
        st = take_entries(f, header, err);
out:
    format_json_free(&header);
    free(what);
    free(text);
    return st;
}

enum status format_safetensors_open(const char *path, uint64_t header_cap,
                                    struct format_safetensors **out, struct err *err)
{
    *out = NULL;
    struct format_safetensors *f = calloc(1, sizeof *f);
    if (f == NULL)
        return err_nomem(err, sizeof *f);
    f->fd = -1;
    f->path = str_dup(path);
    enum status st = f->path == NULL ? err_nomem(err, strlen(path) + 1) : ST_OK;
    if (st == ST_OK)
        st = file_open_read(path, &f->fd, &f->file_size, err);
    if (st == ST_OK)
        st = read_prefix(f, header_cap == 0 ? FORMAT_HEADER_CAP_DEFAULT : header_cap, err);
    if (st == ST_OK)
        st = read_header(f, err);
    if (st != ST_OK) {
        format_safetensors_close(&f);
        return st;
    }
    *out = f;
    return ST_OK;
}

void format_safetensors_close(struct format_safetensors **f)
{
    if (f == NULL || *f == NULL)
        return;
    struct format_safetensors *s = *f;
    if (s->fd >= 0)
        close(s->fd);
    for (size_t i = 0; i < s->n_tensors; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    format_json_free(&s->metadata);
    free(s->path);
    free(s);
    *f = NULL;
}

const struct format_tensor *format_safetensors_find(const struct format_safetensors *f,
                                                    const char *name)
{
    for (size_t i = 0; i < f->n_tensors; i++)
        if (strcmp(f->tensors[i].name, name) == 0)
            return &f->tensors[i];
    return NULL;
}

enum status format_safetensors_read(const struct format_safetensors *f,
                                    const struct format_tensor *t, uint64_t offset, void *dst,
                                    size_t size, struct err *err)
{
    uint64_t end;
    if (!add_u64(offset, size, &end) || end > t->size_bytes)
        return err_set(err, ST_INTERNAL,
                       "%s: tensor %s: bytes %" PRIu64 " + %zu asked for, it has %" PRIu64, f->path,
                       t->name, offset, size, t->size_bytes);
    return file_read_at(f->fd, f->path, t->offset + offset, dst, size, err);
}

/* ---- writing ------------------------------------------------------------------------------- */

static enum status spec_bytes(const struct format_tensor_spec *t, uint64_t *out, struct err *err)
{
    uint64_t n = dtype_size(t->dtype);
    bool ok = n > 0 && t->rank <= FORMAT_MAX_RANK && strcmp(t->name, "__metadata__") != 0;
    for (unsigned d = 0; ok && d < t->rank; d++)
        ok = mul_u64(n, t->shape[d], &n);
    if (!ok)
        return err_set(err, ST_INTERNAL, "safetensors: tensor %s cannot be written (dtype %s)",
                       t->name, dtype_name(t->dtype));
    *out = n;
    return ST_OK;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static enum status check_names(const struct format_tensor_spec *tensors, size_t n, struct err *err)
{
    enum status st = ST_OK;
    const char **names = calloc(n + 1, sizeof *names);
    if (names == NULL)
        return err_nomem(err, (n + 1) * sizeof *names);
    for (size_t i = 0; i < n; i++)
        names[i] = tensors[i].name;
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 1; i < n && st == ST_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            st = err_set(err, ST_INTERNAL, "safetensors: tensor %s twice", names[i]);
    free(names);
    return st;
}

static void write_entry(struct format_writer *w, const struct format_tensor_spec *t, uint64_t begin,
                        uint64_t end)
{
    format_write_object(w, t->name);
    format_write_string(w, "dtype", dtype_name(t->dtype));
    format_write_array(w, "shape");
    for (unsigned d = 0; d < t->rank; d++)
        format_write_u64(w, NULL, t->shape[d]);
    format_write_end_array(w);
    format_write_array(w, "data_offsets");
    format_write_u64(w, NULL, begin);
    format_write_u64(w, NULL, end);
    format_write_end_array(w);
    format_write_end_object(w);
}

/* The JSON; offsets relative to the data section. */
static enum status build_header(const struct format_tensor_spec *tensors, size_t n,
                                const char *metadata_json, struct format_writer *w,
                                uint64_t *offsets, uint64_t *data_size, struct err *err)
{
    uint64_t at = 0;
    TRY(check_names(tensors, n, err));
    format_write_object(w, NULL);
    if (metadata_json != NULL) {
        format_write_object(w, "__metadata__");
        bytes_append(&w->out, metadata_json, strlen(metadata_json));
        format_write_end_object(w);
    }
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes;
        uint64_t end;
        TRY(spec_bytes(&tensors[i], &bytes, err));
        if (!add_u64(at, bytes, &end))
            return err_set(err, ST_INTERNAL, "safetensors: tensors above 2^64 bytes");
        write_entry(w, &tensors[i], at, end);
        offsets[i] = at;
        at = end;
    }
    format_write_end_object(w);
    while (w->out.size % PREFIX_SIZE != 0 && !w->out.failed)
        bytes_append(&w->out, " ", 1);
    *data_size = at;
    return w->out.failed ? err_nomem(err, w->out.size) : ST_OK;
}

enum status format_safetensors_header(const struct format_tensor_spec *tensors, size_t n,
                                      const char *metadata_json, struct bytes *out,
                                      uint64_t *offsets, uint64_t *file_size, struct err *err)
{
    struct format_writer w = {0};
    uint64_t data_size = 0;
    enum status st = build_header(tensors, n, metadata_json, &w, offsets, &data_size, err);
    if (st == ST_OK) {
        uint64_t data_at = PREFIX_SIZE + w.out.size;
        for (size_t i = 0; i < n; i++)
            offsets[i] += data_at;
        bytes_put_u64(out, w.out.size);
        bytes_append(out, w.out.data, w.out.size);
        if (out->failed)
            st = err_nomem(err, w.out.size);
        else if (!add_u64(data_at, data_size, file_size))
            st = err_set(err, ST_INTERNAL, "safetensors: a file above 2^64 bytes");
    }
    bytes_free(&w.out);
    return st;
}

static enum status write_parts(int fd, const char *path, const struct bytes *header,
                               const uint64_t *offsets, const struct format_tensor_spec *tensors,
                               const void *const *data, size_t n, struct err *err)
{
    TRY(file_write_at(fd, path, 0, header->data, header->size, err));
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes;
        size_t size;
        TRY(spec_bytes(&tensors[i], &bytes, err));
        if (!u64_to_size(bytes, &size))
            return err_nomem(err, SIZE_MAX);
        if (size > 0)
            TRY(file_write_at(fd, path, offsets[i], data[i], size, err));
    }
    return fsync(fd) == 0 ? ST_OK : err_set(err, ST_IO, "%s: %s", path, strerror(errno));
}

enum status format_safetensors_write(const char *path, const struct format_tensor_spec *tensors,
                                     const void *const *data, size_t n, const char *metadata_json,
                                     struct err *err)
{
    struct bytes header = {0};
    uint64_t file_size;
    int fd = -1;
    bool made = false;
    char *tmp = str_printf("%s.tmp", path);
    uint64_t *offsets = calloc(n + 1, sizeof *offsets);
    enum status st = ST_OK;
    if (tmp == NULL || offsets == NULL) {
        st = err_nomem(err, (n + 1) * sizeof *offsets);
        goto out;
    }
    st = format_safetensors_header(tensors, n, metadata_json, &header, offsets, &file_size, err);
    if (st != ST_OK)
        goto out;
    fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        st = err_set(err, ST_IO, "%s: %s", tmp, strerror(errno));
        goto out;
    }
    made = true;
    st = write_parts(fd, tmp, &header, offsets, tensors, data, n, err);
out:
    if (fd >= 0 && close(fd) != 0 && st == ST_OK)
        st = err_set(err, ST_IO, "%s: %s", tmp, strerror(errno));
    if (st == ST_OK)
        st = file_rename(tmp, path, err);
    if (made && st != ST_OK)
        unlink(tmp);
    bytes_free(&header);
    free(offsets);
    free(tmp);
    return st;
}
