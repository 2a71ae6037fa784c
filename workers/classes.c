/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernel calls the declared layouts give rise to. */
#include "workers/workers_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A layout before it is known which class it belongs to. */
struct layout {
    enum worker_family family;
    uint64_t rows;
    bool added; /* rank-0 ids or activations of rank 4: the bias is added afterwards */
    const char *name;
};

static enum status own_name(struct worker *w, const char *text, const char **name, struct err *err)
{
    for (size_t i = 0; i < w->n_names; i++)
        if (strcmp(w->names[i], text) == 0) {
            *name = w->names[i];
            return ST_OK;
        }
    char *copy = str_dup(text);
    char **names = realloc(w->names, (w->n_names + 1) * sizeof *names);
    if (names != NULL)
        w->names = names;
    if (copy == NULL || names == NULL) {
        free(copy);
        return err_nomem(err, strlen(text) + 1);
    }
    w->names[w->n_names++] = copy;
    *name = copy;
    return ST_OK;
}

static void name_class(struct worker_class *c, bool has_bias)
{
    static const char *const words[] = {
        [FAMILY_CHUNK] = "chunk",   [FAMILY_EXPANDED] = "expanded", [FAMILY_PADDED] = "padded",
        [FAMILY_SINGLE] = "single", [FAMILY_REPEATED] = "repeated", [FAMILY_MIXED] = "mixed"};
    const char *added = has_bias && c->bias == BIAS_ADDED ? " added" : "";
    if (c->family == FAMILY_REPEATED || c->family == FAMILY_MIXED)
        (void)snprintf(c->name, sizeof c->name, "%s %llu%s", words[c->family],
                       (unsigned long long)c->rows, added);
    else
        (void)snprintf(c->name, sizeof c->name, "%s%s", words[c->family], added);
}

/* What the kernel sees: calls of one row are all alike, and a chunk of one row twice is that row
 * repeated.  Without a linear every row stands alone; without a bias there is one way to add it. */
static struct layout normal_form(const struct worker *w, struct layout l)
{
    if (!evaluator_has_linear(w->results)) {
        l.family = FAMILY_SINGLE;
        l.rows = 1;
    }
    if (!evaluator_has_bias(w->results))
        l.added = false;
    if (l.family == FAMILY_EXPANDED && w->opts.validation_rows == 1)
        l.family = FAMILY_REPEATED;
    if (l.rows == 1)
        l.family = FAMILY_SINGLE;
    return l;
}

static enum status add_layout(struct worker *w, struct layout l, struct err *err)
{
    l = normal_form(w, l);
    const enum bias_mode bias = l.added ? BIAS_ADDED : BIAS_PREFILLED;
    size_t at = 0;
    while (at < w->n_classes && (w->classes[at].c.family != l.family ||
                                 w->classes[at].c.rows != l.rows || w->classes[at].c.bias != bias))
        at++;
    if (at == WORKER_MAX_CLASSES)
        return err_set(err, ST_USAGE, "more than %d execution classes: too many profiles",
                       WORKER_MAX_CLASSES);
    struct worker_class *c = &w->classes[at].c;
    if (at == w->n_classes) {
        w->n_classes++;
        *c = (struct worker_class){.family = l.family, .rows = l.rows, .bias = bias};
        w->classes[at].every_route = !evaluator_has_linear(w->results);
        name_class(c, evaluator_has_bias(w->results));
    }
    const char *name = NULL;
    TRY(own_name(w, l.name, &name, err));
    for (size_t i = 0; i < c->n_layouts; i++)
        if (c->layouts[i] == name)
            return ST_OK;
    if (c->n_layouts < WORKER_MAX_LAYOUTS)
        c->layouts[c->n_layouts++] = name;
    return ST_OK;
}

static enum status add_chunks(struct worker *w, struct err *err)
{
    const uint64_t rows = w->opts.validation_rows;
    const struct layout layouts[] = {
        {FAMILY_CHUNK, rows, false, "(n)"},
        {FAMILY_CHUNK, rows, false, "(1,n)"},
        {FAMILY_CHUNK, rows, false, "(n,1)"},
        {FAMILY_CHUNK, rows, true, "(1,1,n)"},
        {FAMILY_EXPANDED, 2 * rows, false, "(1,n) expanded to (2,n)"},
        {FAMILY_PADDED, rows, false, "(n) short, filled by repeating"},
        {FAMILY_SINGLE, 1, true, "scalar"},
    };
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        TRY(add_layout(w, layouts[i], err));
    return ST_OK;
}

static enum status add_numbered(struct worker *w, enum worker_family family, uint64_t m,
                                const char *ahead, struct err *err)
{
    /* One id again and again is no layout of its own when it is there once. */
    const char *word = family == FAMILY_MIXED ? "mixed " : m > 1 ? "repeated " : "";
    char text[64];
    if (evaluator_has_linear(w->results))
        (void)snprintf(text, sizeof text, "%s(%s%llu)", word, ahead, (unsigned long long)m);
    else /* one class for all of them: their counts would only fill its list of names */
        (void)snprintf(text, sizeof text, "%s (%sm)", family == FAMILY_MIXED ? "mixed" : "repeated",
                       ahead);
    return add_layout(w, (struct layout){family, m, false, text}, err);
}

static enum status add_repeated(struct worker *w, uint64_t m, struct err *err)
{
    TRY(add_numbered(w, FAMILY_REPEATED, m, "", err));
    return add_numbered(w, FAMILY_REPEATED, m, "1,", err);
}

/* Both ends of every interval of row counts, bulk's first count included. */
static enum status add_intervals(struct worker *w, struct err *err)
{
    uint64_t first = 1;
    for (size_t i = 0; i < w->opts.n_profiles; i++) {
        TRY(add_repeated(w, first, err));
        TRY(add_repeated(w, w->profiles[i].max_rows, err));
        first = w->profiles[i].max_rows + 1;
    }
    return add_repeated(w, first, err);
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static enum status add_mixed(struct worker *w, struct err *err)
{
    uint64_t *m = malloc((4 * w->opts.n_profiles + 2) * sizeof *m);
    size_t n = 0;
    if (m == NULL)
        return err_nomem(err, (4 * w->opts.n_profiles + 2) * sizeof *m);
    m[n++] = 1;
    m[n++] = 2;
    for (size_t i = 0; i < w->opts.n_profiles; i++) {
        m[n++] = w->profiles[i].max_rows - 1;
        m[n++] = w->profiles[i].max_rows;
        m[n++] = w->profiles[i].max_rows + 1;
        m[n++] = w->profiles[i].evaluation_rows;
    }
    qsort(m, n, sizeof *m, by_value);
    enum status st = ST_OK;
    for (size_t i = 0; st == ST_OK && i < n; i++)
        if (m[i] > 0 && (i == 0 || m[i] != m[i - 1]))
            st = add_numbered(w, FAMILY_MIXED, m[i], "", err);
    free(m);
    return st;
}

enum status worker_classes_build(struct worker *w, struct err *err)
{
    void *memory = NULL;
    TRY(mem_calloc(WORKER_MAX_CLASSES + 1, sizeof *w->classes, &memory, err));
    w->classes = memory;
    TRY(add_chunks(w, err));
    if (w->opts.n_profiles == 0)
        return ST_OK;
    const struct layout singles[] = {{FAMILY_SINGLE, 1, false, "(1)"},
                                     {FAMILY_SINGLE, 1, false, "(1,1)"},
                                     {FAMILY_SINGLE, 1, true, "(1,1,1)"}};
    for (size_t i = 0; i < sizeof singles / sizeof singles[0]; i++)
        TRY(add_layout(w, singles[i], err));
    TRY(add_intervals(w, err));
    return add_mixed(w, err);
}

void worker_classes_free(struct worker *w)
{
    for (size_t i = 0; i < w->n_names; i++)
        free(w->names[i]);
    free(w->names);
    free(w->classes);
    w->names = NULL;
    w->classes = NULL;
    w->n_names = 0;
    w->n_classes = 0;
}
