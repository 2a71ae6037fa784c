/* SPDX-License-Identifier: Apache-2.0 */
/** Small recipes with known contents, for the tests of formats and lookup. */
#ifndef TESTS_FORMATS_RECIPE_FIXTURE_H
#define TESTS_FORMATS_RECIPE_FIXTURE_H

#include "formats/recipe.h"
#include "tests/formats/fixture.h"

enum { FIXTURE_V = 37, FIXTURE_SHARED = 5 };

static inline char *fixture_dup(const char *s)
{
    char *copy = str_dup(s);
    if (copy == NULL)
        exit(1);
    return copy;
}

static inline void *fixture_zeroed(size_t n, size_t size)
{
    void *p = calloc(n > 0 ? n : 1, size);
    if (p == NULL)
        exit(1);
    return p;
}

static inline struct format_placed fixture_placed(const char *name, uint32_t group, uint64_t column,
                                                  uint64_t width)
{
    return (struct format_placed){
        .name = fixture_dup(name), .group = group, .column = column, .width = width};
}

static inline void fixture_common(struct format_recipe *r)
{
    r->block = fixture_dup("first_layer");
    r->rows_in_checkpoint = r->num_embeddings + 3;
    r->payload_file = fixture_dup("tables-0123456789abcdef.safetensors");
    r->payload_sha256 =
        fixture_dup("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    r->payload_bytes = 4096;
    r->arithmetic = fixture_dup("library");
    r->n_environment = 2;
    r->environment = fixture_zeroed(2, sizeof *r->environment);
    r->environment[0] = (struct format_field){fixture_dup("blas"), fixture_dup("OpenBLAS 0.3.21")};
    r->environment[1] = (struct format_field){fixture_dup("core"), fixture_dup("Haswell")};
    r->n_provenance = 1;
    r->provenance = fixture_zeroed(1, sizeof *r->provenance);
    r->provenance[0] =
        (struct format_field){fixture_dup("model.\"embed\""), fixture_dup("00ff00ff")};
    r->n_thresholds = 2;
    r->thresholds = fixture_zeroed(2, sizeof *r->thresholds);
    r->thresholds[0] = (struct format_field){fixture_dup("absolute"), fixture_dup("1e-05")};
    r->thresholds[1] = (struct format_field){fixture_dup("relative"), fixture_dup("1e-05")};
    r->validation_json = fixture_dup("{\"tokens\": 37, \"worst\": [0.5, 1e-30], \"note\": null}");
    r->storage_json = fixture_dup("{\"verdict\":\"shrinks\"}");
    r->seal = fixture_dup("");
}

/** fanout, version 2: q (own table in profile0), k constant, v BF16, w F64 behind a row index. */
static inline struct format_recipe *fixture_fanout(void)
{
    struct format_recipe *r = fixture_zeroed(1, sizeof *r);
    r->kind = RECIPE_FANOUT;
    r->version = 2;
    r->num_embeddings = FIXTURE_V;
    r->n_groups = 5;
    r->groups = fixture_zeroed(5, sizeof *r->groups);
    r->groups[0] = (struct format_group){.rows = FIXTURE_V, .width = 7, .dtype = DT_F32};
    r->groups[1] = (struct format_group){.rows = 1, .width = 3, .dtype = DT_F32};
    r->groups[2] = (struct format_group){.rows = FIXTURE_V, .width = 4, .dtype = DT_BF16};
    r->groups[3] = (struct format_group){.rows = FIXTURE_V, .width = 5, .dtype = DT_F32};
    r->groups[4] =
        (struct format_group){.rows = FIXTURE_SHARED, .width = 2, .dtype = DT_F64, .indexed = true};
    r->n_outputs = 4;
    r->outputs = fixture_zeroed(4, sizeof *r->outputs);
    r->outputs[0] = fixture_placed("q", 0, 1, 5);
    r->outputs[1] = fixture_placed("k", 1, 0, 3);
    r->outputs[2] = fixture_placed("v", 2, 0, 4);
    r->outputs[3] = fixture_placed("w", 4, 0, 2);
    r->n_profiles = 2;
    r->profiles = fixture_zeroed(2, sizeof *r->profiles);
    for (unsigned i = 0; i < 2; i++) {
        r->profiles[i].max_rows = i == 0 ? 1 : 15;
        r->profiles[i].evaluation_rows = i == 0 ? 1 : 2;
        r->profiles[i].outputs = fixture_zeroed(4, sizeof *r->outputs);
        r->profiles[i].outputs[0] = fixture_placed("q", i == 0 ? 3 : 0, i == 0 ? 0 : 1, 5);
        r->profiles[i].outputs[1] = fixture_placed("k", 1, 0, 3);
        r->profiles[i].outputs[2] = fixture_placed("v", 2, 0, 4);
        r->profiles[i].outputs[3] = fixture_placed("w", 4, 0, 2);
    }
    fixture_common(r);
    return r;
}

/** lookup, version 1, one output of `width` elements. */
static inline struct format_recipe *fixture_lookup(uint64_t rows, uint64_t width, enum dtype dt)
{
    struct format_recipe *r = fixture_zeroed(1, sizeof *r);
    r->kind = RECIPE_LOOKUP;
    r->version = 1;
    r->num_embeddings = rows;
    r->n_groups = 1;
    r->groups = fixture_zeroed(1, sizeof *r->groups);
    r->groups[0] = (struct format_group){.rows = rows, .width = width, .dtype = dt};
    r->n_outputs = 1;
    r->outputs = fixture_zeroed(1, sizeof *r->outputs);
    r->outputs[0] = fixture_placed("output", 0, 0, width);
    fixture_common(r);
    return r;
}

/** projected, version 1, with bias; z [rows, width], r [rows, 1] in one group. */
static inline struct format_recipe *fixture_projected(uint64_t rows, uint64_t width, enum dtype dt,
                                                      bool bias)
{
    struct format_recipe *r = fixture_zeroed(1, sizeof *r);
    r->kind = RECIPE_PROJECTED;
    r->version = 1;
    r->num_embeddings = rows;
    r->n_groups = 1;
    r->groups = fixture_zeroed(1, sizeof *r->groups);
    r->groups[0] = (struct format_group){.rows = rows, .width = width + 1, .dtype = dt};
    r->n_outputs = 2;
    r->outputs = fixture_zeroed(2, sizeof *r->outputs);
    r->outputs[0] = fixture_placed("z", 0, 0, width);
    r->outputs[1] = fixture_placed("r", 0, width, 1);
    r->has_bias = bias;
    r->bias_dtype = dt;
    r->normalize_eps = 1e-12;
    fixture_common(r);
    return r;
}

/** Text of a recipe, NUL-terminated; owned. */
static inline char *fixture_text_of(const struct format_recipe *r)
{
    struct err err = {0};
    struct bytes b = {0};
    if (format_recipe_encode(r, &b, &err) != ST_OK) {
        printf("%s\n", err.message);
        exit(1);
    }
    bytes_put_u8(&b, 0);
    if (b.failed)
        exit(1);
    return (char *)b.data;
}

static inline void fixture_seal(struct format_recipe *r)
{
    struct err err = {0};
    char hex[SHA256_HEX_SIZE];
    if (format_recipe_seal(r, hex, &err) != ST_OK) {
        printf("%s\n", err.message);
        exit(1);
    }
    free(r->seal);
    r->seal = fixture_dup(hex);
}

static inline void fixture_set(char **field, const char *value)
{
    free(*field);
    *field = fixture_dup(value);
}

#endif
