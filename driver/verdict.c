/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "driver/driver_internal.h"

const char *driver_status_word(enum status st)
{
    switch (st) {
    case ST_OK:
        return "accepted_on_full_domain_validation";
    case ST_STORAGE:
        return "retained_no_byte_saving";
    case ST_TOLERANCE:
        return "rejected_numerical_validation";
    case ST_DECISION:
        return "rejected_decision_changed";
    default:
        return "refused_unsupported";
    }
}

static void count_bytes(const struct driver_job *job, const struct driver_block *b,
                        const struct driver_layout *l, struct driver_verdict *v)
{
    uint64_t tables = 0, stored = 0;
    for (size_t i = 0; i < l->n_tables; i++)
        tables += l->tables[i].rows * l->tables[i].width * dtype_size(l->tables[i].dtype);
    for (size_t g = 0; g < l->n_groups; g++) {
        const struct format_group *group = &l->groups[g];
        stored += group->rows * group->width * dtype_size(group->dtype);
        if (group->indexed)
            stored += b->n_rows * (group->rows <= INT32_MAX ? sizeof(int32_t) : sizeof(int64_t));
    }
    v->logical_before = b->source.logical_bytes;
    v->unique_before = b->source.unique_bytes;
    v->logical_after = tables + b->source.bias_bytes + b->source.retained_logical_bytes;
    v->unique_after = stored + b->source.bias_bytes + b->source.retained_unique_bytes;
    if (job->ids != NULL)
        v->unique_after += (uint64_t)job->n_ids * sizeof(int64_t);
    v->shrinks = v->logical_after < v->logical_before && v->unique_after < v->unique_before;
}

static bool stat_passes(const struct driver_job *job, const struct worker_stat *s)
{
    return s->nonfinite == 0 && s->max_abs <= job->spec->tolerance_absolute &&
           s->max_rel <= job->spec->tolerance_relative;
}

/* First failing record in report order decides the reason; the report has them all. */
static void judge_numbers(const struct driver_job *job, const struct driver_block *b,
                          const struct driver_totals *t, struct driver_verdict *v)
{
    const double absolute = job->spec->tolerance_absolute, relative = job->spec->tolerance_relative;
    char route[32], x[32], y[32], x_limit[32], y_limit[32];
    for (size_t c = 0; c < worker_n_classes(b->worker); c++)
        for (size_t o = 0; o < b->graph->n_results; o++)
            for (size_t r = 0; r < b->n_routes; r++) {
                const struct worker_stat *s = &t->stats[worker_stat_index(b->worker, c, o, r)];
                const char *name = worker_class_at(b->worker, c)->name;
                const char *output = b->graph->results[o].name;
                lookup_route_name(r, route, sizeof route);
                if (v->st == ST_OK && s->nonfinite > 0) {
                    v->st = ST_TOLERANCE;
                    snprintf(v->reason, sizeof v->reason,
                             "output %s, route %s, class %s: %llu non-finite values", output, route,
                             name, (unsigned long long)s->nonfinite);
                } else if (v->st == ST_OK && !stat_passes(job, s)) {
                    v->st = ST_TOLERANCE;
                    snprintf(v->reason, sizeof v->reason,
                             "output %s, route %s, class %s: max_abs %s %s %s (absolute) at token "
                             "%llu column %llu; relative L2 %s %s %s",
                             output, route, name, str_double(s->max_abs, x, sizeof x),
                             s->max_abs <= absolute ? "<=" : ">",
                             str_double(absolute, x_limit, sizeof x_limit),
                             (unsigned long long)driver_row_id(job, s->max_abs_token),
                             (unsigned long long)s->max_abs_column,
                             str_double(s->max_rel, y, sizeof y),
                             s->max_rel <= relative ? "<=" : ">",
                             str_double(relative, y_limit, sizeof y_limit));
                }
            }
}

static void judge_decisions(const struct driver_job *job, const struct driver_block *b,
                            const struct driver_totals *t, struct driver_verdict *v)
{
    char route[32];
    for (size_t c = 0; c < worker_n_classes(b->worker); c++)
        for (size_t o = 0; o < b->graph->n_results; o++)
            for (size_t r = 0; r < b->n_routes; r++) {
                const struct worker_stat *s = &t->stats[worker_stat_index(b->worker, c, o, r)];
                if (v->st != ST_OK || s->decisions_changed == 0)
                    continue;
                v->st = ST_DECISION;
                snprintf(
                    v->reason, sizeof v->reason,
                    "output %s, route %s, class %s: %llu selections change, first at token %llu",
                    b->graph->results[o].name, lookup_route_name(r, route, sizeof route),
                    worker_class_at(b->worker, c)->name, (unsigned long long)s->decisions_changed,
                    (unsigned long long)driver_row_id(job, s->first_changed_token));
            }
}

void driver_verdict_judge(const struct driver_job *job, const struct driver_block *b,
                          const struct driver_totals *t, struct driver_verdict *out)
{
    *out = (struct driver_verdict){.st = ST_OK};
    judge_numbers(job, b, t, out);
    judge_decisions(job, b, t, out);
    out->status_text = driver_status_word(out->st);
}

void driver_verdict_make(const struct driver_job *job, const struct driver_block *b,
                         const struct driver_totals *t, const struct driver_layout *l,
                         struct driver_verdict *out)
{
    driver_verdict_judge(job, b, t, out);
    count_bytes(job, b, l, out);
    if (out->st == ST_OK && !out->shrinks && job->spec->storage == STORAGE_MUST_SHRINK) {
        out->st = ST_STORAGE;
        snprintf(out->reason, sizeof out->reason,
                 "logical bytes %llu -> %llu, unique bytes %llu -> %llu: fewer are required",
                 (unsigned long long)out->logical_before, (unsigned long long)out->logical_after,
                 (unsigned long long)out->unique_before, (unsigned long long)out->unique_after);
    }
    out->status_text = driver_status_word(out->st);
}
