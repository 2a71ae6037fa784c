/* SPDX-License-Identifier: Apache-2.0 */
/* Compare two recipes or table files. */
#include "driver/diff_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOTE_SIZE = 320 };

/* One place that differs, kept for the listing. */
struct diff_place {
    size_t pair;
    uint64_t row_id, column;
    char a[VERB_TEXT_SIZE], b[VERB_TEXT_SIZE];
    char a_bits[20], b_bits[20];
    struct diff_element d;
};

/* Two tables of one name. */
struct diff_pair {
    struct diff_table *a, *b; /* borrowed from the sources */
    struct diff_counts counts;
    bool compared;
};

struct diff_run {
    struct driver_context *ctx;
    struct diff_rule rule;
    struct diff_source a, b;
    struct diff_pair *pairs;
    size_t n_pairs, at;
    char (*notes)[NOTE_SIZE]; /* differences of structure */
    size_t n_notes;
    struct diff_place *places;
    size_t n_places, max_places;
    uint64_t different, elements;
    bool no_memory;
};

/* ---- structure ------------------------------------------------------------------------------- */

static void note(struct diff_run *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void note(struct diff_run *r, const char *fmt, ...)
{
    void *grown = realloc(r->notes, (r->n_notes + 1) * sizeof *r->notes);
    if (grown == NULL) {
        r->no_memory = true;
        return;
    }
    r->notes = grown;
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(r->notes[r->n_notes++], sizeof *r->notes, fmt, args);
    va_end(args);
}

static void note_u64(struct diff_run *r, const char *what, uint64_t a, uint64_t b)
{
    if (a != b)
        note(r, "%s: %" PRIu64 " and %" PRIu64, what, a, b);
}

/* What recipes mean besides their tables. */
static void compare_recipes(struct diff_run *r)
{
    const struct format_recipe *a = lookup_recipe(r->a.recipe), *b = lookup_recipe(r->b.recipe);
    char text_a[32], text_b[32];
    if (a->kind != b->kind)
        note(r, "kind: %s and %s", tokentab_kind(r->a.recipe), tokentab_kind(r->b.recipe));
    note_u64(r, "num_embeddings", a->num_embeddings, b->num_embeddings);
    note_u64(r, "row_count_profiles", a->n_profiles, b->n_profiles);
    for (size_t i = 0; i < a->n_profiles && i < b->n_profiles; i++) {
        note_u64(r, "max_rows of a profile", a->profiles[i].max_rows, b->profiles[i].max_rows);
        note_u64(r, "evaluation_rows of a profile", a->profiles[i].evaluation_rows,
                 b->profiles[i].evaluation_rows);
    }
    if (a->normalize_eps < b->normalize_eps || a->normalize_eps > b->normalize_eps)
        note(r, "normalize_eps: %s and %s", str_double(a->normalize_eps, text_a, sizeof text_a),
             str_double(b->normalize_eps, text_b, sizeof text_b));
}

static bool same_shape(const struct diff_table *a, const struct diff_table *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape) == 0;
}

static void shape_text(const struct diff_table *t, char *buf, size_t size)
{
    size_t at = 0;
    buf[0] = '\0';
    for (unsigned i = 0; i < t->rank && at + 24 < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s%" PRIu64, i == 0 ? "" : "x", t->shape[i]);
}

/* NumPy has no bfloat16: U16 of a .npy beside BF16 is that. */
static void match_bf16(struct diff_table *a, enum diff_kind kind_a, const struct diff_table *b)
{
    if (kind_a == DIFF_NPY && a->dtype == DT_U16 && b->dtype == DT_BF16)
        a->dtype = DT_BF16;
}

/* Can the two be compared element by element? */
static bool comparable(struct diff_run *r, struct diff_pair *p)
{
    char a[128], b[128];
    match_bf16(p->a, r->a.kind, p->b);
    match_bf16(p->b, r->b.kind, p->a);
    if (!same_shape(p->a, p->b)) {
        shape_text(p->a, a, sizeof a);
        shape_text(p->b, b, sizeof b);
        note(r, "%.80s: shape %s and %s", p->a->name, a, b);
        return false;
    }
    bool tolerant = r->rule.has_absolute || r->rule.has_relative;
    if (p->a->opaque != p->b->opaque || (p->a->dtype != p->b->dtype && !tolerant)) {
        note(r, "%.80s: dtype %s and %s", p->a->name, p->a->opaque ? "?" : dtype_name(p->a->dtype),
             p->b->opaque ? "?" : dtype_name(p->b->dtype));
        return false;
    }
    return true;
}

static struct diff_table *find_table(const struct diff_source *s, const char *name)
{
    for (size_t i = 0; i < s->n_tables; i++)
        if (strcmp(s->tables[i].name, name) == 0)
            return &s->tables[i];
    return NULL;
}

/* Pairs by name; a single .npy goes with a single table of any name. */
static enum status make_pairs(struct diff_run *r, struct err *err)
{
    bool single = r->a.n_tables == 1 && r->b.n_tables == 1 &&
                  (r->a.kind == DIFF_NPY || r->b.kind == DIFF_NPY);
    r->pairs = calloc(r->a.n_tables + 1, sizeof *r->pairs);
    if (r->pairs == NULL)
        return err_nomem(err, r->a.n_tables * sizeof *r->pairs);
    for (size_t i = 0; i < r->a.n_tables; i++) {
        struct diff_table *a = &r->a.tables[i];
        struct diff_table *b = single ? &r->b.tables[0] : find_table(&r->b, a->name);
        if (b == NULL)
            note(r, "%.80s: only in %.200s", a->name, r->a.path);
        else
            r->pairs[r->n_pairs++] = (struct diff_pair){.a = a, .b = b};
    }
    for (size_t i = 0; i < r->b.n_tables && !single; i++)
        if (find_table(&r->a, r->b.tables[i].name) == NULL)
            note(r, "%.80s: only in %.200s", r->b.tables[i].name, r->b.path);
    return ST_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static void bits_text(enum dtype dt, const void *stored, char buf[20])
{
    uint64_t bits = 0;
    memcpy(&bits, stored, dtype_size(dt));
    (void)snprintf(buf, 20, "0x%0*" PRIx64, (int)(2 * dtype_size(dt)), bits);
}

static void place_of(const struct diff_run *r, const struct diff_pair *p, uint64_t element,
                     uint64_t *row_id, uint64_t *column)
{
    *row_id = diff_source_row_id(&r->a, p->a, element / p->a->width);
    *column = element % p->a->width;
}

static void keep_place(void *ctx, uint64_t element, const void *a, const void *b,
                       const struct diff_element *d)
{
    struct diff_run *r = ctx;
    const struct diff_pair *p = &r->pairs[r->at];
    if (r->n_places >= r->max_places || r->no_memory)
        return;
    if ((r->n_places & (r->n_places - 1)) == 0) { /* full at each power of two */
        size_t size = 0;
        void *grown = mul_size(2 * r->n_places + 1, sizeof *r->places, &size)
                          ? realloc(r->places, size)
                          : NULL;
        if (grown == NULL) {
            r->no_memory = true;
            return;
        }
        r->places = grown;
    }
    struct diff_place *place = &r->places[r->n_places++];
    *place = (struct diff_place){.pair = r->at, .d = *d};
    place_of(r, p, element, &place->row_id, &place->column);
    verb_element_text(p->a->dtype, a, place->a);
    verb_element_text(p->b->dtype, b, place->b);
    bits_text(p->a->dtype, a, place->a_bits);
    bits_text(p->b->dtype, b, place->b_bits);
}

static enum status compare_values(struct diff_run *r, struct err *err)
{
    static const struct diff_rule BITWISE = {.nan = DIFF_NAN_BITS};
    for (r->at = 0; r->at < r->n_pairs; r->at++) {
        struct diff_pair *p = &r->pairs[r->at];
        TRY(driver_check_stop(err));
        if (!comparable(r, p))
            continue;
        const struct diff_rule *rule = p->a->opaque ? &BITWISE : &r->rule;
        TRY(diff_tables(rule, &r->a, p->a, &r->b, p->b, keep_place, r, &p->counts, err));
        p->compared = true;
        r->different += p->counts.different;
        r->elements += p->counts.elements;
        if (r->a.recipe != NULL)
            tokentab_trim(r->a.recipe);
        if (r->b.recipe != NULL)
            tokentab_trim(r->b.recipe);
    }
    return r->no_memory ? err_nomem(err, NOTE_SIZE) : ST_OK;
}

/* ---- results --------------------------------------------------------------------------------- */

static void worst_json(const struct diff_run *r, const struct diff_pair *p, const char *key,
                       double value, uint64_t element, struct format_writer *w)
{
    uint64_t row_id = 0, column = 0;
    place_of(r, p, element, &row_id, &column);
    format_write_object(w, key);
    if (strcmp(key, "max_ulp") == 0)
        format_write_u64(w, "value", p->counts.ulp);
    else
        format_write_double(w, "value", value);
    format_write_u64(w, "row_id", row_id);
    format_write_u64(w, "column", column);
    format_write_end_object(w);
}

static void pair_json(const struct diff_run *r, const struct diff_pair *p, struct format_writer *w)
{
    const struct diff_counts *c = &p->counts;
    format_write_object(w, NULL);
    format_write_string(w, "name", p->a->name);
    format_write_string(w, "dtype", dtype_name(p->a->dtype));
    format_write_array(w, "shape");
    for (unsigned i = 0; i < p->a->rank; i++)
        format_write_u64(w, NULL, p->a->shape[i]);
    format_write_end_array(w);
    format_write_u64(w, "elements", c->elements);
    format_write_u64(w, "different", c->different);
    format_write_u64(w, "bits_different", c->bits_different);
    format_write_u64(w, "nan_pairs", c->nan_pairs);
    if (c->absolute.value > 0) {
        worst_json(r, p, "max_absolute", c->absolute.value, c->absolute.element, w);
        worst_json(r, p, "max_relative", c->relative.value, c->relative.element, w);
    }
    if (c->ulp > 0)
        worst_json(r, p, "max_ulp", 0, c->ulp_element, w);
    format_write_end_object(w);
}

static void places_json(const struct diff_run *r, struct format_writer *w)
{
    format_write_array(w, "places");
    for (size_t i = 0; i < r->n_places; i++) {
        const struct diff_place *p = &r->places[i];
        format_write_object(w, NULL);
        format_write_string(w, "name", r->pairs[p->pair].a->name);
        format_write_u64(w, "row_id", p->row_id);
        format_write_u64(w, "column", p->column);
        format_write_string(w, "a", p->a);
        format_write_string(w, "b", p->b);
        format_write_string(w, "a_bits", p->a_bits);
        format_write_string(w, "b_bits", p->b_bits);
        format_write_double(w, "absolute", p->d.absolute);
        format_write_double(w, "relative", p->d.relative);
        if (p->d.has_ulp)
            format_write_u64(w, "ulp", p->d.ulp);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void result_json(const struct diff_run *r, bool equal)
{
    static const char *const nan_words[] = {"differ", "equal", "bits"};
    struct format_writer w;
    verb_json_start(r->ctx, &w);
    format_write_string(&w, "a", r->a.path);
    format_write_string(&w, "a_kind", diff_kind_name(r->a.kind));
    format_write_string(&w, "b", r->b.path);
    format_write_string(&w, "b_kind", diff_kind_name(r->b.kind));
    format_write_bool(&w, "equal", equal);
    format_write_object(&w, "rule");
    if (r->rule.has_absolute)
        format_write_double(&w, "absolute", r->rule.absolute);
    if (r->rule.has_relative)
        format_write_double(&w, "relative", r->rule.relative);
    if (r->rule.has_ulp)
        format_write_u64(&w, "ulp", r->rule.ulp);
    format_write_bool(&w, "bitwise",
                      !r->rule.has_absolute && !r->rule.has_relative && !r->rule.has_ulp);
    format_write_string(&w, "nan", nan_words[r->rule.nan]);
    format_write_end_object(&w);
    format_write_u64(&w, "elements", r->elements);
    format_write_u64(&w, "different", r->different);
    format_write_array(&w, "structure");
    for (size_t i = 0; i < r->n_notes; i++)
        format_write_string(&w, NULL, r->notes[i]);
    format_write_end_array(&w);
    format_write_array(&w, "tables");
    for (size_t i = 0; i < r->n_pairs; i++)
        if (r->pairs[i].compared)
            pair_json(r, &r->pairs[i], &w);
    format_write_end_array(&w);
    places_json(r, &w);
    verb_json_end(r->ctx, &w);
}

static void pair_text(const struct diff_run *r, const struct diff_pair *p, struct bytes *out)
{
    const struct diff_counts *c = &p->counts;
    uint64_t row_id = 0, column = 0;
    char value[32];
    if (c->bits_different == 0 && c->different == 0)
        return;
    bytes_printf(out, "%s: %" PRIu64 " of %" PRIu64 " differ (%" PRIu64 " in bits)", p->a->name,
                 c->different, c->elements, c->bits_different);
    if (c->nan_pairs > 0)
        bytes_printf(out, ", %" PRIu64 " with NaN", c->nan_pairs);
    if (c->absolute.value > 0) {
        place_of(r, p, c->absolute.element, &row_id, &column);
        bytes_printf(out, "; max abs %s (id %" PRIu64 ", column %" PRIu64 ")",
                     str_double(c->absolute.value, value, sizeof value), row_id, column);
        place_of(r, p, c->relative.element, &row_id, &column);
        bytes_printf(out, ", max rel %s (id %" PRIu64 ", column %" PRIu64 ")",
                     str_double(c->relative.value, value, sizeof value), row_id, column);
    }
    if (c->ulp > 0) {
        place_of(r, p, c->ulp_element, &row_id, &column);
        bytes_printf(out, ", max ulp %" PRIu64 " (id %" PRIu64 ", column %" PRIu64 ")", c->ulp,
                     row_id, column);
    }
    bytes_printf(out, "\n");
}

static void result_text(const struct diff_run *r, bool equal)
{
    struct bytes *out = &r->ctx->result;
    for (size_t i = 0; i < r->n_notes; i++)
        bytes_printf(out, "%s\n", r->notes[i]);
    for (size_t i = 0; i < r->n_pairs; i++)
        if (r->pairs[i].compared)
            pair_text(r, &r->pairs[i], out);
    for (size_t i = 0; i < r->n_places; i++) {
        const struct diff_place *p = &r->places[i];
        bytes_printf(out, "  %s id %" PRIu64 " column %" PRIu64 ": %s (%s) and %s (%s)\n",
                     r->pairs[p->pair].a->name, p->row_id, p->column, p->a, p->a_bits, p->b,
                     p->b_bits);
    }
    if (r->different > r->n_places)
        bytes_printf(out, "  ... and %" PRIu64 " more\n", r->different - r->n_places);
    bytes_printf(out, "%s: %" PRIu64 " elements of %zu tables compared\n",
                 equal ? "equal" : "different", r->elements, r->n_pairs);
}

/* ---- verb ------------------------------------------------------------------------------------ */

static struct diff_rule rule_of(const struct driver_opts *o)
{
    bool tolerant = o->has_absolute || o->has_relative || o->has_ulp;
    struct diff_rule rule = {.has_absolute = o->has_absolute,
                             .has_relative = o->has_relative,
                             .has_ulp = o->has_ulp,
                             .absolute = o->diff_absolute,
                             .relative = o->diff_relative,
                             .ulp = o->diff_ulp};
    switch (o->nan_mode) {
    case 0:
        rule.nan = DIFF_NAN_DIFFER;
        break;
    case 1:
        rule.nan = DIFF_NAN_EQUAL;
        break;
    case 2:
        rule.nan = DIFF_NAN_BITS;
        break;
    default:
        rule.nan = tolerant ? DIFF_NAN_DIFFER : DIFF_NAN_BITS;
    }
    return rule;
}

static enum status run(struct diff_run *r, struct err *err)
{
    const struct driver_opts *o = r->ctx->opts;
    r->rule = rule_of(o);
    TRY(diff_source_open(o->args[0], o->header_cap, &r->a, err));
    TRY(diff_source_open(o->args[1], o->header_cap, &r->b, err));
    if ((r->a.is_foreign && r->b.kind == DIFF_RECIPE) ||
        (r->b.is_foreign && r->a.kind == DIFF_RECIPE))
        return err_set(err, ST_FORMAT, VERB_IMPORT_FIRST, o->args[r->a.is_foreign ? 0 : 1]);
    if (r->a.kind == DIFF_RECIPE && r->b.kind == DIFF_RECIPE)
        compare_recipes(r);
    TRY(make_pairs(r, err));
    r->max_places = (size_t)o->max_lines;
    TRY(compare_values(r, err));
    bool equal = r->different == 0 && r->n_notes == 0;
    if (o->json)
        result_json(r, equal);
    else
        result_text(r, equal);
    return equal ? ST_OK : ST_DIFFERS;
}

enum status driver_verb_diff(struct driver_context *ctx, struct err *err)
{
    struct diff_run r = {.ctx = ctx};
    enum status st = run(&r, err);
    diff_source_close(&r.a);
    diff_source_close(&r.b);
    free(r.pairs);
    free(r.notes);
    free(r.places);
    /* As diff tools have it: 1 is a finding, trouble is 2. */
    if (st != ST_OK && st != ST_DIFFERS)
        st = err->st = ST_USAGE;
    return st;
}
