/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "driver/driver_internal.h"

enum status driver_totals_make(const struct driver_block *b, struct driver_totals *t,
                               struct err *err)
{
    void *digests = NULL, *seen = NULL, *prints = NULL, *constant = NULL, *errors = NULL,
         *stats = NULL;
    size_t units = 0, cells = 0;
    *t = (struct driver_totals){.n_tables = b->n_routes * b->graph->n_tables,
                                .n_units = b->grid.n_units,
                                .n_stats = worker_n_stats(b->worker)};
    if (!u64_to_size(t->n_units, &units) || !mul_size(units, t->n_tables, &cells))
        return err_nomem(err, SIZE_MAX);
    enum status st = mem_calloc(cells, sizeof *t->unit_digests, &digests, err);
    if (st == ST_OK)
        st = mem_calloc(units, 1, &seen, err);
    if (st == ST_OK)
        st = mem_calloc(units, sizeof *t->fingerprints, &prints, err);
    if (st == ST_OK)
        st = mem_calloc(t->n_tables, 1, &constant, err);
    if (st == ST_OK)
        st = mem_calloc(t->n_tables, sizeof *t->double_error, &errors, err);
    if (st == ST_OK)
        st = mem_calloc(t->n_stats, sizeof *t->stats, &stats, err);
    t->unit_digests = digests;
    t->unit_seen = seen;
    t->fingerprints = prints;
    t->constant = constant;
    t->double_error = errors;
    t->stats = stats;
    if (st != ST_OK)
        driver_totals_free(t);
    else
        memset(t->constant, 1, t->n_tables);
    return st;
}

void driver_totals_free(struct driver_totals *t)
{
    free(t->unit_digests);
    free(t->unit_seen);
    free(t->fingerprints);
    free(t->constant);
    free(t->double_error);
    free(t->stats);
    *t = (struct driver_totals){0};
}

void driver_totals_add(struct driver_totals *t, const struct driver_unit_summary *s)
{
    size_t unit = (size_t)s->unit;
    if (s->unit >= t->n_units || t->unit_seen[unit])
        return;
    t->unit_seen[unit] = 1;
    memcpy(t->unit_digests + unit * t->n_tables, s->table_digests,
           t->n_tables * sizeof *t->unit_digests);
    memcpy(t->fingerprints[unit], s->fingerprint, sizeof t->fingerprints[unit]);
    for (size_t i = 0; i < t->n_tables; i++) {
        t->constant[i] = t->constant[i] && s->table_constant[i];
        if (s->double_error[i] > t->double_error[i])
            t->double_error[i] = s->double_error[i];
    }
    for (size_t i = 0; i < t->n_stats; i++)
        worker_stat_merge(&t->stats[i], &s->stats[i]);
    t->units_reused += s->reused;
    t->units_evaluated += !s->reused;
    t->rows_done += s->n_rows;
    t->distinct_rows += s->distinct_rows;
}
