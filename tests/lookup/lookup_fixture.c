/* SPDX-License-Identifier: Apache-2.0 */
#include "lookup_fixture.h"

#include "formats/packed.h"

uint64_t folder_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static void check(enum status st, const struct err *err)
{
    if (st == ST_OK)
        return;
    printf("fixture: %s\n", err->message);
    exit(1);
}

/* Values with few exponents, as weights have; every third row of a profile's table differs from
 * bulk in its low bits only by chance. */
static void fill_floats(const struct format_tensor_spec *s, uint8_t *data, size_t n)
{
    uint64_t state = 7;
    for (size_t i = 0; i < n; i++) {
        double x = (double)(folder_random(&state) >> 11) * 0x1p-53 * 4 - 2;
        float f = (float)x;
        uint16_t h = s->dtype == DT_F16 ? f16_from_f32(f) : bf16_from_f32(f);
        if (s->dtype == DT_F64)
            memcpy(data + i * sizeof x, &x, sizeof x);
        else if (s->dtype == DT_F32)
            memcpy(data + i * sizeof f, &f, sizeof f);
        else
            memcpy(data + i * sizeof h, &h, sizeof h);
    }
}

static void fill(const struct folder *f, size_t i)
{
    const struct format_tensor_spec *s = &f->specs[i];
    size_t n = (size_t)(s->shape[0] * (s->rank > 1 ? s->shape[1] : 1));
    if (strcmp(s->name, "ids") == 0) {
        int64_t step = (int64_t)(f->r->num_embeddings / n);
        for (size_t k = 0; k < n; k++) {
            int64_t id = (int64_t)k * step;
            memcpy(f->data[i] + k * sizeof id, &id, sizeof id);
        }
    } else if (strstr(s->name, ".index") != NULL) {
        for (size_t k = 0; k < n; k++) {
            int32_t row = (int32_t)(k * 7 % FIXTURE_SHARED);
            memcpy(f->data[i] + k * sizeof row, &row, sizeof row);
        }
    } else {
        fill_floats(s, f->data[i], n);
    }
}

static enum status rows_of(void *ctx, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                           struct err *err)
{
    const struct folder *f = ctx;
    const struct format_tensor_spec *s = &f->specs[tensor];
    size_t row = (size_t)(s->rank > 1 ? s->shape[1] : 1) * dtype_size(s->dtype);
    (void)err;
    memcpy(dst, f->data[tensor] + (size_t)first * row, (size_t)n * row);
    return ST_OK;
}

void folder_write_payload(struct folder *f, bool packed)
{
    struct err err = {0};
    char hex[SHA256_HEX_SIZE];
    char *tmp = path_join(f->dir, "payload.tmp");
    if (packed) {
        struct packed_layout *l = NULL;
        check(format_packed_plan(f->r, f->chunk_bytes, true, &l, &err), &err);
        check(format_packed_write(tmp, l, rows_of, f, NULL, &err), &err);
        format_packed_layout_free(&l);
    } else {
        check(format_safetensors_write(tmp, f->specs, (const void *const *)f->data, f->n_specs,
                                       NULL, &err),
              &err);
    }
    check(file_digests(tmp, hex, NULL, &f->r->payload_bytes, &err), &err);
    fixture_set(&f->r->payload_sha256, hex);
    free(f->r->payload_file);
    f->r->payload_file = str_printf("tables-%.16s.%s", hex, packed ? "ttz" : "safetensors");
    char *path = path_join(f->dir, f->r->payload_file);
    check(file_rename(tmp, path, &err), &err);
    free(path);
    free(tmp);
}

void folder_write_recipe(struct folder *f, bool seal)
{
    struct err err = {0};
    if (seal)
        fixture_seal(f->r);
    char *text = fixture_text_of(f->r);
    char *path = path_join(f->dir, LOOKUP_RECIPE_FILE);
    check(file_publish(path, text, strlen(text), &err), &err);
    free(path);
    free(text);
}

struct folder *folder_make(const char *dir, struct format_recipe *r, bool packed)
{
    return folder_make_chunked(dir, r, packed, 256);
}

struct folder *folder_make_chunked(const char *dir, struct format_recipe *r, bool packed,
                                   uint64_t chunk_bytes)
{
    struct err err = {0};
    struct folder *f = fixture_zeroed(1, sizeof *f);
    f->dir = dir;
    f->r = r;
    f->chunk_bytes = chunk_bytes;
    check(file_make_dirs(dir, &err), &err);
    check(format_recipe_tensors(r, &f->specs, &f->n_specs, &err), &err);
    f->data = fixture_zeroed(f->n_specs, sizeof *f->data);
    for (size_t i = 0; i < f->n_specs; i++) {
        const struct format_tensor_spec *s = &f->specs[i];
        f->data[i] = fixture_zeroed((size_t)(s->shape[0] * (s->rank > 1 ? s->shape[1] : 1)),
                                    dtype_size(s->dtype));
        fill(f, i);
    }
    folder_write_payload(f, packed);
    folder_write_recipe(f, true);
    return f;
}

void folder_free(struct folder **folder)
{
    struct folder *f = *folder;
    for (size_t i = 0; i < f->n_specs; i++)
        free(f->data[i]);
    free(f->data);
    format_tensor_specs_free(&f->specs, f->n_specs);
    format_recipe_free(&f->r);
    free(f);
    *folder = NULL;
}

size_t folder_row_bytes(const struct folder *f, size_t table)
{
    const struct format_placed *p = &f->r->outputs[table];
    return (size_t)p->width * dtype_size(f->r->groups[p->group].dtype);
}

const uint8_t *folder_row(const struct folder *f, size_t route, size_t table, uint64_t row)
{
    const struct format_placed *p =
        route == 0 ? &f->r->outputs[table] : &f->r->profiles[route - 1].outputs[table];
    const struct format_group *g = &f->r->groups[p->group];
    if (g->rows == 1)
        row = 0;
    for (size_t i = 0; g->indexed && i < f->n_specs; i++) {
        char name[64];
        snprintf(name, sizeof name, "tables.group_%u.index", p->group);
        int32_t at;
        if (strcmp(f->specs[i].name, name) != 0)
            continue;
        memcpy(&at, f->data[i] + row * sizeof at, sizeof at);
        row = (uint64_t)at;
        break;
    }
    return f->data[p->group] + (row * g->width + p->column) * dtype_size(g->dtype);
}
