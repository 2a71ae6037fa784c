/* SPDX-License-Identifier: Apache-2.0 */
/* Plots as inline SVG.  Colours are classes of the page's style, so that they follow light and
 * dark; every mark carries its value as text or as a title. */
#include "driver/report_internal.h"

#include <math.h>
#include <string.h>

enum { ROW = 26, LABEL = 210, PLOT = 460, VALUE = 150, MAX_COLUMNS = 65 };

static void svg_start(struct bytes *out, int width, int height, const char *name, size_t index,
                      const char *title)
{
    bytes_printf(out,
                 "<svg role=\"img\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                 "aria-labelledby=\"%s-%zu\"><title id=\"%s-%zu\">",
                 width, height, width, height, name, index, name, index);
    html_text(out, title);
    bytes_printf(out, "</title>\n");
}

static void svg_end(struct bytes *out)
{
    bytes_printf(out, "</svg>\n");
}

static void svg_label(struct bytes *out, const char *class, double x, double y, const char *text)
{
    bytes_printf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
    html_text(out, text);
    bytes_printf(out, "</text>\n");
}

/* A bar with its label before and its value behind. */
static void svg_bar(struct bytes *out, const char *class, int row, const char *label, double share,
                    const char *value)
{
    double y = row * ROW, width = share > 0 ? fmax(share * PLOT, 1) : 0;
    svg_label(out, "end", LABEL - 8, y + 17, label);
    bytes_printf(out,
                 "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"16\" rx=\"2\"/>\n",
                 class, LABEL, y + 5, width);
    svg_label(out, "value", LABEL + width + 6, y + 17, value);
}

/* ---- storage --------------------------------------------------------------------------------- */

void report_svg_storage(struct bytes *out, const struct report_view *v)
{
    static const struct {
        const char *key, *label, *class;
    } bars[] = {{"logical_before", "logical, before", "before"},
                {"logical_after", "logical, after", "after"},
                {"unique_before", "unique, before", "before"},
                {"unique_after", "unique, after", "after"}};
    const struct cJSON *s = json_value_get(v->report, "storage");
    double most = 0;
    char value[REPORT_TEXT_SIZE], size[32], text[2 * REPORT_TEXT_SIZE];
    for (size_t i = 0; i < 4; i++)
        most = fmax(most, report_get(s, bars[i].key));
    svg_start(out, LABEL + PLOT + VALUE + 60, 4 * ROW, "storage", v->index,
              "Bytes before and after, logical and unique; the table below has the numbers");
    for (size_t i = 0; i < 4; i++) {
        double x = report_get(s, bars[i].key);
        if (x < 1024)
            (void)snprintf(text, sizeof text, "%s bytes", report_count(x, value));
        else
            (void)snprintf(text, sizeof text, "%s (%s)", report_count(x, value),
                           str_bytes(report_bytes(x), size, sizeof size));
        svg_bar(out, bars[i].class, (int)i, bars[i].label, most > 0 ? x / most : 0, text);
    }
    svg_end(out);
}

/* ---- heat map -------------------------------------------------------------------------------- */

bool report_is_outside(const struct report_view *v, const struct cJSON *statistic)
{
    return !(report_get(statistic, "max_abs") <= v->tolerance_absolute) ||
           !(report_get(statistic, "max_relative_l2") <= v->tolerance_relative) ||
           report_get(statistic, "nonfinite") > 0 || report_get(statistic, "decisions_changed") > 0;
}

/* 0 the same bytes, 1 the same numbers, 2 to 5 ever closer to the tolerance, 6 outside. */
static int heat_level(const struct report_view *v, const struct cJSON *s)
{
    double used = report_get(s, "max_abs") / v->tolerance_absolute;
    if (report_is_outside(v, s))
        return 6;
    if (report_is(s, "bitwise"))
        return 0;
    if (report_is(s, "exact"))
        return 1;
    if (v->tolerance_relative > 0)
        used = fmax(used, report_get(s, "max_relative_l2") / v->tolerance_relative);
    return used <= 1e-3 ? 2 : used <= 1e-2 ? 3 : used <= 0.1 ? 4 : 5;
}

static const struct cJSON *find_statistic(const struct report_view *v, const char *output,
                                          const char *class, const char *route)
{
    const struct cJSON *s = json_value_first(json_value_get(v->report, "statistics"));
    for (; s != NULL; s = json_value_next(s))
        if (strcmp(report_text(s, "output"), output) == 0 &&
            strcmp(report_text(s, "class"), class) == 0 &&
            strcmp(report_text(s, "route"), route) == 0)
            return s;
    return NULL;
}

enum { CELL = 76, HEAD = 24 };

static void heat_cell(struct bytes *out, const struct report_view *v, const struct cJSON *s,
                      double x, double y)
{
    int level = heat_level(v, s);
    char a[REPORT_TEXT_SIZE], b[REPORT_TEXT_SIZE], c[REPORT_TEXT_SIZE], mark[REPORT_TEXT_SIZE];
    bytes_printf(out, "<g><title>");
    html_text(out, report_text(s, "class"));
    bytes_printf(out, ", ");
    html_text(out, report_text(s, "route"));
    bytes_printf(out, ": max abs %s, relative L2 %s, %s ULP, %s of ",
                 report_error(report_get(s, "max_abs"), a),
                 report_error(report_get(s, "max_relative_l2"), b),
                 report_count(report_get(s, "max_ulp"), c),
                 report_count(report_get(s, "unequal"), mark));
    bytes_printf(out, "%s elements differ%s</title>", report_count(report_get(s, "elements"), a),
                 level == 6 ? "; outside" : "");
    bytes_printf(out,
                 "<rect class=\"h%d\" x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%d\" rx=\"2\"/>",
                 level, x + 1, y + 1, CELL - 2, ROW - 2);
    if (level <= 1)
        (void)snprintf(mark, sizeof mark, "%s", level == 0 ? "=" : "= ±0");
    else
        (void)snprintf(mark, sizeof mark, "%s%.1e", level == 6 ? "✕ " : "",
                       report_get(s, "max_abs"));
    bytes_printf(out, "<text class=\"cell t%d\" x=\"%.1f\" y=\"%.1f\">%s</text></g>\n", level,
                 x + CELL / 2.0, y + 17, mark);
}

/* Routes in the order of their first statistic: bulk, then the profiles. */
static size_t list_routes(const struct report_view *v, const char *routes[MAX_COLUMNS])
{
    size_t n = 0;
    const struct cJSON *s = json_value_first(json_value_get(v->report, "double_precision_error"));
    for (; s != NULL && n < MAX_COLUMNS; s = json_value_next(s)) {
        size_t i = 0;
        while (i < n && strcmp(routes[i], report_text(s, "route")) != 0)
            i++;
        if (i == n)
            routes[n++] = report_text(s, "route");
    }
    return n;
}

void report_svg_heat_map(struct bytes *out, const struct report_view *v, const char *output)
{
    const char *routes[MAX_COLUMNS];
    size_t n_routes = list_routes(v, routes);
    const struct cJSON *classes = json_value_get(v->report, "execution_classes");
    int height = HEAD + ROW * (int)json_value_count(classes);
    char title[512];
    (void)snprintf(title, sizeof title,
                   "Output %.200s: largest absolute difference between table and direct "
                   "evaluation, execution class by route; the statistics table has the numbers",
                   output);
    /* Output names match [A-Za-z0-9_.-]+ in what tokentab writes; ids must hold for any file. */
    char id[64];
    (void)snprintf(id, sizeof id, "heat%zu", out->size);
    svg_start(out, LABEL + CELL * (int)n_routes + 10, height, id, v->index, title);
    for (size_t r = 0; r < n_routes; r++)
        svg_label(out, "middle", LABEL + CELL * ((double)r + 0.5), 16, routes[r]);
    int row = 0;
    for (const struct cJSON *c = json_value_first(classes); c != NULL; c = json_value_next(c)) {
        double y = HEAD + ROW * row++;
        svg_label(out, "end", LABEL - 8, y + 17, report_text(c, "name"));
        for (size_t r = 0; r < n_routes; r++) {
            const struct cJSON *s = find_statistic(v, output, report_text(c, "name"), routes[r]);
            if (s != NULL)
                heat_cell(out, v, s, LABEL + CELL * (double)r, y);
            else
                svg_label(out, "middle none", LABEL + CELL * ((double)r + 0.5), y + 17, "–");
        }
    }
    svg_end(out);
}

/* ---- ULP histogram --------------------------------------------------------------------------- */

enum { BUCKETS = WORKER_ULP_BUCKETS };

static const char *bucket_text(size_t i, char buf[REPORT_TEXT_SIZE])
{
    if (i < 3)
        (void)snprintf(buf, REPORT_TEXT_SIZE, "%zu ULP", i);
    else if (i == BUCKETS - 1)
        (void)snprintf(buf, REPORT_TEXT_SIZE, "above 2^30");
    else if (i <= 12)
        (void)snprintf(buf, REPORT_TEXT_SIZE, "%u to %u", (1u << (i - 2)) + 1, 1u << (i - 1));
    else
        (void)snprintf(buf, REPORT_TEXT_SIZE, "to 2^%zu", i - 1);
    return buf;
}

void report_svg_histogram(struct bytes *out, const struct report_view *v, const char *output)
{
    double counts[BUCKETS] = {0}, most = 0, total = 0;
    size_t n = 1;
    const struct cJSON *s = json_value_first(json_value_get(v->report, "statistics"));
    for (; s != NULL; s = json_value_next(s)) {
        const struct cJSON *b = json_value_first(json_value_get(s, "ulp_histogram"));
        if (strcmp(report_text(s, "output"), output) != 0)
            continue;
        for (size_t i = 0; b != NULL && i < BUCKETS; b = json_value_next(b), i++) {
            double x = 0;
            if (report_number(b, &x) && x > 0) {
                counts[i] += x;
                n = i + 1 > n ? i + 1 : n;
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        most = fmax(most, counts[i]);
        total += counts[i];
    }
    char label[REPORT_TEXT_SIZE], value[REPORT_TEXT_SIZE], text[2 * REPORT_TEXT_SIZE], id[64];
    (void)snprintf(id, sizeof id, "ulp%zu", out->size);
    svg_start(out, LABEL + PLOT + VALUE + 60, ROW * (int)n, id, v->index,
              "Elements by distance in units in the last place, logarithmic bars");
    for (size_t i = 0; i < n; i++) {
        (void)snprintf(text, sizeof text, "%s (%.3g %%)", report_count(counts[i], value),
                       total > 0 ? 100 * counts[i] / total : 0);
        svg_bar(out, i == 0 ? "before" : "after", (int)i, bucket_text(i, label),
                counts[i] > 0 ? log10(counts[i] + 1) / log10(most + 1) : 0, text);
    }
    svg_end(out);
}

/* ---- double precision ------------------------------------------------------------------------ */

void report_svg_double(struct bytes *out, const struct report_view *v)
{
    const struct cJSON *list = json_value_get(v->report, "double_precision_error");
    double most = 0;
    char label[REPORT_TEXT_SIZE + 32], value[REPORT_TEXT_SIZE];
    for (const struct cJSON *e = json_value_first(list); e != NULL; e = json_value_next(e))
        if (isfinite(report_get(e, "max_abs")))
            most = fmax(most, report_get(e, "max_abs"));
    svg_start(out, LABEL + PLOT + VALUE, ROW * (int)json_value_count(list), "double", v->index,
              "Largest distance of each table from a double-precision evaluation");
    int row = 0;
    for (const struct cJSON *e = json_value_first(list); e != NULL; e = json_value_next(e)) {
        double x = report_get(e, "max_abs");
        (void)snprintf(label, sizeof label, "%.32s, %.32s", report_text(e, "table"),
                       report_text(e, "route"));
        double share = most > 0 ? fmin(x / most, 1) : 0;
        svg_bar(out, "after", row++, label, isnan(share) ? 0 : share, report_error(x, value));
    }
    svg_end(out);
}
