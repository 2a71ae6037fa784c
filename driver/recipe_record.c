/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/recipe_record.h"

#include <stdlib.h>
#include <string.h>

enum status driver_recipe_add_field(struct format_field **fields, size_t *n, const char *name,
                                    const char *value, struct err *err)
{
    struct format_field *grown = realloc(*fields, (*n + 1) * sizeof *grown);
    if (grown == NULL)
        return err_nomem(err, (*n + 1) * sizeof *grown);
    *fields = grown;
    grown[*n] = (struct format_field){.name = str_dup(name), .value = str_dup(value)};
    (*n)++;
    return grown[*n - 1].name == NULL || grown[*n - 1].value == NULL ? err_nomem(err, 1) : ST_OK;
}

enum status driver_recipe_thresholds(const struct driver_job *job, const struct driver_block *b,
                                     struct format_field **fields, size_t *n, struct err *err)
{
    char text[64];
    TRY(driver_recipe_add_field(fields, n, "absolute",
                                str_double(job->spec->tolerance_absolute, text, sizeof text), err));
    TRY(driver_recipe_add_field(fields, n, "relative",
                                str_double(job->spec->tolerance_relative, text, sizeof text), err));
    for (size_t i = 0; i < b->graph->n_results; i++) {
        const struct graph_output *o = &b->graph->results[i];
        if (o->decision_top_k == 0)
            continue;
        char name[300];
        snprintf(name, sizeof name, "decision.%s", o->name);
        snprintf(text, sizeof text, "top_k %u%s", (unsigned)o->decision_top_k,
                 o->decision_softmax ? " softmax" : "");
        TRY(driver_recipe_add_field(fields, n, name, text, err));
    }
    return ST_OK;
}

char *driver_recipe_text(struct format_writer *w)
{
    format_write_finish(w);
    bytes_put_u8(&w->out, '\0');
    if (w->out.failed) {
        bytes_free(&w->out);
        return NULL;
    }
    w->out.data[w->out.size - 2] = '\0'; /* the final newline */
    return (char *)w->out.data;
}

char *driver_recipe_validation(const struct driver_job *job, const struct driver_block *b,
                               const struct driver_totals *t, const char *status)
{
    struct format_writer w = {0};
    format_write_object(&w, NULL);
    format_write_string(&w, "status", status);
    format_write_u64(&w, "tokens", b->n_rows);
    format_write_u64(&w, "execution_classes", worker_n_classes(b->worker));
    /* What the library's kernels gave belongs to a machine; correctly rounded recipes do not. */
    if (!job->spec->correctly_rounded) {
        format_write_array(&w, "outputs");
        for (size_t o = 0; o < b->graph->n_results; o++) {
            struct worker_stat all = {0};
            for (size_t c = 0; c < worker_n_classes(b->worker); c++)
                for (size_t r = 0; r < b->n_routes; r++)
                    worker_stat_merge(&all, &t->stats[worker_stat_index(b->worker, c, o, r)]);
            format_write_object(&w, NULL);
            format_write_string(&w, "name", b->graph->results[o].name);
            format_write_bool(&w, "exact", all.unequal == 0);
            format_write_bool(&w, "bitwise", all.unequal_bytes == 0);
            format_write_double(&w, "max_abs", all.max_abs);
            format_write_double(&w, "max_relative_l2", all.max_rel);
            format_write_u64(&w, "max_ulp", all.max_ulp);
            format_write_end_object(&w);
        }
        format_write_end_array(&w);
    }
    format_write_end_object(&w);
    return driver_recipe_text(&w);
}
