/* SPDX-License-Identifier: Apache-2.0 */
/* The page: a section a block. */
#include "driver/report_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_WORST = 20, MAX_LISTED = 500, MAX_OUTPUTS = 256 };

/* The palette: one hue from light to dark for errors within the tolerance, a second one only for
 * what lies outside, which also carries a mark.  Text on every cell keeps a contrast above 4.5. */
static const char style[] =
    ":root{color-scheme:light dark;--paper:#fcfcfb;--ink:#1c1c1a;--soft:#5c5b56;--line:#d9d8d2;"
    "--card:#f3f2ee;--before:#9a988f;--after:#2a6fb0;--good:#1d6b3a;--bad:#a8271c;"
    "--h0:#e9e8e3;--h1:#dbe6ee;--h2:#c2dbef;--h3:#93bfe3;--h4:#4f8fcb;--h5:#1f5c99;--h6:#a8271c;"
    "--d:#10100f;--l:#fff}"
    "@media(prefers-color-scheme:dark){:root{--paper:#191918;--ink:#ededea;--soft:#a9a8a1;"
    "--line:#3a3a37;--card:#232321;--before:#7d7b73;--after:#5a9fe0;--good:#6cc48b;--bad:#f08a7d;"
    "--h0:#2c2c29;--h1:#2b3640;--h2:#234058;--h3:#25567f;--h4:#3777b0;--h5:#7fb4e6;--h6:#c23a2c;"
    "--d:#ededea;--l:#fff}"
    ".t5{fill:#10100f!important}}"
    "*{box-sizing:border-box}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}"
    "main{max-width:1000px;margin:0 auto;padding:24px 20px 64px}"
    "h1{font-size:1.7rem;margin:0 0 4px}h2{font-size:1.35rem;margin:40px 0 4px;"
    "border-top:1px solid var(--line);padding-top:24px}h3{font-size:1.05rem;margin:28px 0 8px}"
    "p{margin:4px 0 10px;max-width:72ch}.soft,figcaption,caption{color:var(--soft)}"
    ".where{font:13px ui-monospace,monospace;color:var(--soft);overflow-wrap:anywhere}"
    ".verdict{display:flex;gap:12px;align-items:baseline;flex-wrap:wrap;background:var(--card);"
    "border-left:4px solid var(--line);padding:10px 14px;margin:10px 0 14px}"
    ".verdict.good{border-color:var(--good)}.verdict.bad{border-color:var(--bad)}"
    ".verdict strong{font-size:1.05rem}.good strong{color:var(--good)}.bad strong{color:var(--bad)}"
    ".wide{overflow-x:auto}"
    "figure{margin:0 0 10px}figcaption,caption{font-size:.88rem;text-align:left;padding:2px 0 6px}"
    "caption{white-space:nowrap}"
    "table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--line);text-align:left;"
    "vertical-align:top}td.n,th.n{text-align:right}thead th{font-weight:600}"
    "tr.out td:first-child{font-weight:600}"
    "details{margin:8px 0}summary{cursor:pointer}"
    "code,.ids{font:13px ui-monospace,monospace;overflow-wrap:anywhere}"
    ".key{display:flex;gap:14px;flex-wrap:wrap;font-size:.85rem;color:var(--soft);margin:4px 0 "
    "10px}"
    ".key i{display:inline-block;width:14px;height:14px;border-radius:2px;margin-right:5px;"
    "vertical-align:-2px;border:1px solid var(--line)}"
    "svg text{font:12px system-ui,sans-serif;fill:var(--ink)}svg .end{text-anchor:end}"
    "svg .middle,svg .cell{text-anchor:middle}svg .value,svg .none{fill:var(--soft)}"
    ".before{fill:var(--before)}.after{fill:var(--after)}"
    ".h0{fill:var(--h0);background:var(--h0)}.h1{fill:var(--h1);background:var(--h1)}"
    ".h2{fill:var(--h2);background:var(--h2)}.h3{fill:var(--h3);background:var(--h3)}"
    ".h4{fill:var(--h4);background:var(--h4)}.h5{fill:var(--h5);background:var(--h5)}"
    ".h6{fill:var(--h6);background:var(--h6)}"
    "svg .t0,svg .t1,svg .t2,svg .t3{fill:var(--d)}svg .t4{fill:#fff}svg .t5,svg .t6{fill:var(--l)}"
    "@media print{details{display:block}.wide{overflow:visible}}";

void report_html_start(struct bytes *out, const char *title)
{
    bytes_printf(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                      "<title>tokentab report: ");
    html_text(out, title);
    bytes_printf(out, "</title>\n<style>");
    bytes_append(out, style, sizeof style - 1);
    bytes_printf(out, "</style>\n</head>\n<body>\n<main>\n<h1>tokentab report</h1>\n"
                      "<p class=\"where\">");
    html_text(out, title);
    bytes_printf(out, "</p>\n");
}

void report_html_end(struct bytes *out)
{
    bytes_printf(out, "</main>\n</body>\n</html>\n");
}

/* ---- small pieces ---------------------------------------------------------------------------- */

void html_heading(struct bytes *out, const char *text)
{
    bytes_printf(out, "<h3>");
    html_text(out, text);
    bytes_printf(out, "</h3>\n");
}

void html_table_start(struct bytes *out, const char *caption, const char *columns)
{
    bytes_printf(out, "<div class=\"wide\"><table>");
    if (*caption != '\0')
        bytes_printf(out, "<caption>%s</caption>", caption);
    bytes_printf(out, "<thead><tr>");
    for (const char *p = columns; p != NULL;) {
        const char *end = strchr(p, '|');
        bool number = *p == '#';
        p += number;
        bytes_printf(out, "<th scope=\"col\"%s>%.*s</th>", number ? " class=\"n\"" : "",
                     end == NULL ? (int)strlen(p) : (int)(end - p), p);
        p = end == NULL ? NULL : end + 1;
    }
    bytes_printf(out, "</tr></thead><tbody>\n");
}

void html_table_end(struct bytes *out)
{
    bytes_printf(out, "</tbody></table></div>\n");
}

void html_cell(struct bytes *out, const char *text)
{
    bytes_printf(out, "<td>");
    html_text(out, text);
    bytes_printf(out, "</td>");
}

static void cell_count(struct bytes *out, const struct cJSON *object, const char *key)
{
    char buf[REPORT_TEXT_SIZE];
    double x = 0;
    bool there = report_number(json_value_get(object, key), &x);
    bytes_printf(out, "<td class=\"n\">%s</td>", there ? report_count(x, buf) : "–");
}

static void cell_error(struct bytes *out, const struct cJSON *object, const char *key)
{
    char buf[REPORT_TEXT_SIZE];
    bytes_printf(out, "<td class=\"n\">%s</td>", report_error(report_get(object, key), buf));
}

void html_row(struct bytes *out, const char *name, const char *value)
{
    bytes_printf(out, "<tr><th scope=\"row\">");
    html_text(out, name);
    bytes_printf(out, "</th>");
    html_cell(out, value);
    bytes_printf(out, "</tr>\n");
}

static void row_bytes(struct bytes *out, const char *name, const struct cJSON *object,
                      const char *key)
{
    char buf[REPORT_TEXT_SIZE], size[32];
    double x = 0;
    if (!report_number(json_value_get(object, key), &x))
        return;
    bytes_printf(out, "<tr><th scope=\"row\">%s</th><td class=\"n\">%s</td><td>%s</td></tr>\n",
                 name, report_count(x, buf), str_bytes(report_bytes(x), size, sizeof size));
}

/* Names of the outputs that have statistics, in their order. */
static size_t list_outputs(const struct report_view *v, const char *outputs[MAX_OUTPUTS])
{
    size_t n = 0;
    const struct cJSON *s = json_value_first(json_value_get(v->report, "statistics"));
    for (; s != NULL && n < MAX_OUTPUTS; s = json_value_next(s)) {
        size_t i = 0;
        while (i < n && strcmp(outputs[i], report_text(s, "output")) != 0)
            i++;
        if (i == n)
            outputs[n++] = report_text(s, "output");
    }
    return n;
}

/* ---- parts of a section ---------------------------------------------------------------------- */

static void write_verdict(struct bytes *out, const struct report_view *v)
{
    const char *status = report_text(v->report, "status"),
               *reason = report_text(v->report, "reason");
    bool good = strncmp(status, "accepted", 8) == 0;
    bytes_printf(out, "<div class=\"verdict %s\" role=\"status\"><strong>%s ",
                 good ? "good" : "bad", good ? "✓" : "✕");
    html_text(out, status);
    bytes_printf(out, "</strong><span>");
    html_text(out, reason[0] != '\0' ? reason : good ? "every token, every declared layout" : "");
    bytes_printf(out, "</span></div>\n");
}

static void write_historical(struct bytes *out, const struct report_view *v)
{
    if (v->is_historical)
        bytes_printf(out, "<div class=\"verdict bad\" role=\"alert\"><strong>✕ historical</strong>"
                          "<span>recipe.json has changed since it was validated and sealed: what "
                          "follows is not about this recipe as it is now</span></div>\n");
}

/* A row of a text or a count; nothing where the report has none. */
static void row_member(struct bytes *out, const char *name, const struct cJSON *object,
                       const char *key)
{
    char buf[REPORT_TEXT_SIZE];
    double x = 0;
    const struct cJSON *value = json_value_get(object, key);
    if (report_number(value, &x))
        html_row(out, name, report_count(x, buf));
    else if (json_value_string(value) != NULL)
        html_row(out, name, json_value_string(value));
}

static void write_facts(struct bytes *out, const struct report_view *v)
{
    char a[REPORT_TEXT_SIZE], b[REPORT_TEXT_SIZE];
    struct bytes profiles = {0};
    const struct cJSON *r = v->report;
    const struct cJSON *p = json_value_first(json_value_get(r, "row_count_profiles"));
    if (json_value_get(r, "arithmetic") == NULL)
        return;
    for (; p != NULL; p = json_value_next(p))
        bytes_printf(&profiles, "%sup to %s rows: evaluated at %s", profiles.size > 0 ? "; " : "",
                     report_count(report_get(p, "max_rows"), a),
                     report_count(report_get(p, "evaluation_rows"), b));
    bytes_put_u8(&profiles, 0);
    html_table_start(out, "What was tabulated", "property|value");
    row_member(out, "kind", r, "kind");
    row_member(out, "arithmetic", r, "arithmetic");
    row_member(out, "tokens", r, "tokens");
    row_member(out, "rows in the checkpoint", r, "rows_in_checkpoint");
    row_member(out, "bulk rows", r, "bulk_rows");
    row_member(out, "validation rows", r, "validation_rows");
    html_row(out, "row-count profiles",
             profiles.failed || profiles.size <= 1 ? "none" : (const char *)profiles.data);
    html_row(out, "tolerance, absolute", report_error(v->tolerance_absolute, a));
    html_row(out, "tolerance, relative L2", report_error(v->tolerance_relative, a));
    row_member(out, "distinct embedding rows (within units)", r,
               "distinct_embedding_rows_within_units");
    html_table_end(out);
    bytes_free(&profiles);
}

static void write_storage(struct bytes *out, const struct report_view *v)
{
    const struct cJSON *s = json_value_get(v->report, "storage");
    if (s == NULL)
        return;
    html_heading(out, "Storage");
    const char *policy = report_text(s, "policy");
    bytes_printf(out, "<p>Policy <code>");
    html_text(out, policy[0] != '\0' ? policy : report_text(v->report, "policy"));
    bytes_printf(out, "</code>: the tables %s.</p>\n<figure class=\"wide\">",
                 report_is(s, "shrinks")
                     ? "take fewer bytes than what they replace, logical and unique"
                     : "take no fewer bytes than what they replace");
    report_svg_storage(out, v);
    bytes_printf(out, "</figure>\n<details><summary>Bytes</summary>\n");
    html_table_start(out,
                     "Logical: distinct (tensor, slice) pairs; unique: after aliases and sharing",
                     "what|#bytes|size");
    row_bytes(out, "logical, before", s, "logical_before");
    row_bytes(out, "logical, after", s, "logical_after");
    row_bytes(out, "unique, before", s, "unique_before");
    row_bytes(out, "unique, after", s, "unique_after");
    row_bytes(out, "of these retained for other readers", s, "retained");
    row_bytes(out, "bias in the recipe", s, "bias");
    row_bytes(out, "payload file on disk", json_value_get(v->recipe, "payload"), "bytes");
    html_table_end(out);
    bytes_printf(out, "</details>\n");
}

static void write_key(struct bytes *out)
{
    static const char *const names[] = {"= same bytes",
                                        "= ±0 same numbers",
                                        "up to 0.1 % of the tolerance",
                                        "up to 1 %",
                                        "up to 10 %",
                                        "within",
                                        "✕ outside, non-finite, or a decision changed"};
    bytes_printf(out, "<div class=\"key\">");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        bytes_printf(out, "<span><i class=\"h%zu\"></i>%s</span>", i, names[i]);
    bytes_printf(out, "</div>\n");
}

static void write_mismatches(struct bytes *out, const struct report_view *v)
{
    const char *outputs[MAX_OUTPUTS];
    size_t n = list_outputs(v, outputs);
    if (n == 0)
        return;
    html_heading(out, "Tables against direct evaluation");
    bytes_printf(out,
                 "<p>Rows: execution classes, columns: the table that a call of that size "
                 "selects. A cell holds the largest absolute difference over all tokens.</p>\n");
    write_key(out);
    for (size_t i = 0; i < n; i++) {
        bytes_printf(out, "<figure class=\"wide\"><figcaption>output <code>");
        html_text(out, outputs[i]);
        bytes_printf(out, "</code></figcaption>");
        report_svg_heat_map(out, v, outputs[i]);
        bytes_printf(out, "</figure>\n");
    }
    html_heading(out, "Units in the last place");
    bytes_printf(out, "<p>Elements of all classes and routes by their distance from the table. "
                      "The bars are logarithmic.</p>\n");
    for (size_t i = 0; i < n; i++) {
        bytes_printf(out, "<figure class=\"wide\"><figcaption>output <code>");
        html_text(out, outputs[i]);
        bytes_printf(out, "</code></figcaption>");
        report_svg_histogram(out, v, outputs[i]);
        bytes_printf(out, "</figure>\n");
    }
}

static void statistic_row(struct bytes *out, const struct report_view *v, const struct cJSON *s)
{
    const struct cJSON *at = json_value_get(s, "max_abs_at");
    bytes_printf(out, "<tr%s>", report_is_outside(v, s) ? " class=\"out\"" : "");
    bytes_printf(out, "<td>%s", report_is_outside(v, s) ? "✕ " : "");
    html_text(out, report_text(s, "output"));
    bytes_printf(out, "</td>");
    html_cell(out, report_text(s, "class"));
    html_cell(out, report_text(s, "route"));
    cell_count(out, at, "token");
    cell_count(out, at, "column");
    cell_error(out, s, "max_abs");
    cell_error(out, s, "max_relative_l2");
    cell_count(out, s, "max_ulp");
    cell_count(out, s, "unequal");
    cell_count(out, s, "elements");
    html_cell(out, report_is(s, "bitwise") ? "bytes" : report_is(s, "exact") ? "numbers" : "no");
    cell_error(out, s, "max_abs_to_double");
    bytes_printf(out, "</tr>\n");
}

static int by_error(const void *a, const void *b)
{
    double x = report_get(*(const struct cJSON *const *)a, "max_abs");
    double y = report_get(*(const struct cJSON *const *)b, "max_abs");
    return (x < y) - (x > y);
}

#define STATISTIC_COLUMNS                                                                          \
    "output|class|route|#token|#column|#max abs|#relative L2|#ULP|#unequal|#elements|equal|#to "   \
    "double"

static void write_statistics(struct bytes *out, const struct report_view *v)
{
    const struct cJSON *list = json_value_get(v->report, "statistics");
    size_t n = json_value_count(list), at = 0;
    const struct cJSON **sorted = calloc(n + 1, sizeof *sorted);
    if (sorted == NULL || n == 0) {
        out->failed = out->failed || sorted == NULL;
        free(sorted);
        return;
    }
    for (const struct cJSON *s = json_value_first(list); s != NULL; s = json_value_next(s))
        sorted[at++] = s;
    qsort(sorted, n, sizeof *sorted, by_error);
    html_heading(out, "Worst tokens");
    if (report_get(sorted[0], "max_abs") > 0) {
        html_table_start(out, "The largest differences, with the lowest token where they occur",
                         STATISTIC_COLUMNS);
        for (size_t i = 0; i < n && i < MAX_WORST && report_get(sorted[i], "max_abs") > 0; i++)
            statistic_row(out, v, sorted[i]);
        html_table_end(out);
    } else {
        bytes_printf(out, "<p>None: no element of any token differs as a number.</p>\n");
    }
    bytes_printf(out, "<details><summary>All %zu statistics</summary>\n", n);
    html_table_start(out, "Output by execution class by route", STATISTIC_COLUMNS);
    for (const struct cJSON *s = json_value_first(list); s != NULL; s = json_value_next(s))
        statistic_row(out, v, s);
    html_table_end(out);
    bytes_printf(out, "</details>\n");
    free(sorted);
}

static void write_double(struct bytes *out, const struct report_view *v)
{
    if (json_value_first(json_value_get(v->report, "double_precision_error")) == NULL)
        return;
    html_heading(out, "Distance from double precision");
    bytes_printf(out, "<p>Largest absolute difference between a stored table and the same ops in "
                      "double precision.</p>\n<figure class=\"wide\">");
    report_svg_double(out, v);
    bytes_printf(out, "</figure>\n");
}

/* ---- decisions ------------------------------------------------------------------------------- */

static void write_ids(struct bytes *out, const char *what, const struct cJSON *ids, double count)
{
    char buf[REPORT_TEXT_SIZE];
    size_t n = 0;
    if (json_value_first(ids) == NULL)
        return;
    bytes_printf(out, "<details%s><summary>%s: %s</summary><p class=\"ids\">",
                 count <= 50 ? " open" : "", what, report_count(count, buf));
    for (const struct cJSON *t = json_value_first(ids); t != NULL && n < MAX_LISTED;
         t = json_value_next(t), n++) {
        double x = 0;
        if (report_number(t, &x))
            bytes_printf(out, "%s%.0f", n == 0 ? "" : ", ", x);
    }
    bytes_printf(out, "%s</p></details>\n", count > (double)n ? ", …" : "");
}

static void write_decisions(struct bytes *out, const struct report_view *v)
{
    const struct cJSON *list = json_value_get(v->report, "decisions");
    if (json_value_first(list) == NULL)
        return;
    html_heading(out, "Decisions");
    bytes_printf(out,
                 "<p>A token is fragile when the margin of its decision is below ten times the "
                 "largest error: candidates for examples of an enclosing model.</p>\n");
    html_table_start(
        out, "Top-k decisions on the declared outputs",
        "output|#top k|softmax|#smallest margin|#at token|#largest error|#changed|#fragile");
    for (const struct cJSON *d = json_value_first(list); d != NULL; d = json_value_next(d)) {
        bytes_printf(out, "<tr>");
        html_cell(out, report_text(d, "output"));
        cell_count(out, d, "top_k");
        html_cell(out, report_is(d, "softmax") ? "yes" : "no");
        cell_error(out, d, "smallest_margin");
        cell_count(out, d, "smallest_margin_token");
        cell_error(out, d, "largest_error");
        cell_count(out, d, "changed_count");
        cell_count(out, d, "fragile_count");
        bytes_printf(out, "</tr>\n");
    }
    html_table_end(out);
    for (const struct cJSON *d = json_value_first(list); d != NULL; d = json_value_next(d)) {
        if (report_get(d, "changed_count") + report_get(d, "fragile_count") == 0)
            continue;
        bytes_printf(out, "<p>Output <code>");
        html_text(out, report_text(d, "output"));
        bytes_printf(out, "</code></p>\n");
        write_ids(out, "Changed tokens", json_value_get(d, "changed_tokens"),
                  report_get(d, "changed_count"));
        write_ids(out, "Fragile tokens", json_value_get(d, "fragile_tokens"),
                  report_get(d, "fragile_count"));
    }
}

/* ---- tables, environment, provenance --------------------------------------------------------- */

static void write_tables(struct bytes *out, const struct report_view *v)
{
    const struct cJSON *list = json_value_get(v->report, "tables");
    if (json_value_first(list) == NULL)
        return;
    html_heading(out, "Stored tables");
    html_table_start(out, "Distinct tables and the routes and outputs that use them",
                     "#table|dtype|#rows|#width|#bytes|#group|#column|constant|used by");
    for (const struct cJSON *t = json_value_first(list); t != NULL; t = json_value_next(t)) {
        bytes_printf(out, "<tr>");
        cell_count(out, t, "id");
        html_cell(out, report_text(t, "dtype"));
        cell_count(out, t, "rows");
        cell_count(out, t, "width");
        cell_count(out, t, "bytes");
        cell_count(out, t, "group");
        cell_count(out, t, "column");
        html_cell(out, report_is(t, "constant") ? "yes" : "no");
        bytes_printf(out, "<td>");
        const struct cJSON *use = json_value_first(json_value_get(t, "uses"));
        for (size_t i = 0; use != NULL; use = json_value_next(use), i++) {
            const struct cJSON *route = json_value_first(use);
            const struct cJSON *name = route == NULL ? NULL : json_value_next(route);
            bytes_printf(out, "%s", i == 0 ? "" : ", ");
            html_text(out, json_value_string(route) == NULL ? "" : json_value_string(route));
            bytes_printf(out, "/");
            html_text(out, json_value_string(name) == NULL ? "" : json_value_string(name));
        }
        bytes_printf(out, "</td></tr>\n");
    }
    html_table_end(out);
}

static void write_classes(struct bytes *out, const struct report_view *v)
{
    const struct cJSON *list = json_value_get(v->report, "execution_classes");
    if (json_value_first(list) == NULL)
        return;
    bytes_printf(out, "<details><summary>Which layouts an execution class stands for</summary>\n");
    html_table_start(out, "Layouts that come to the same kernel call are evaluated once",
                     "class|#rows of a call|bias|layouts");
    for (const struct cJSON *c = json_value_first(list); c != NULL; c = json_value_next(c)) {
        bytes_printf(out, "<tr>");
        html_cell(out, report_text(c, "name"));
        cell_count(out, c, "rows");
        html_cell(out, report_text(c, "bias"));
        bytes_printf(out, "<td>");
        const struct cJSON *l = json_value_first(json_value_get(c, "layouts"));
        for (size_t i = 0; l != NULL; l = json_value_next(l), i++) {
            bytes_printf(out, "%s", i == 0 ? "" : "; ");
            html_text(out, json_value_string(l) == NULL ? "" : json_value_string(l));
        }
        bytes_printf(out, "</td></tr>\n");
    }
    html_table_end(out);
    bytes_printf(out, "</details>\n");
}

/* An object of texts. */
static void write_texts(struct bytes *out, const char *title, const char *caption,
                        const struct cJSON *object)
{
    if (json_value_first(object) == NULL)
        return;
    html_heading(out, title);
    html_table_start(out, caption, "name|value");
    for (const struct cJSON *f = json_value_first(object); f != NULL; f = json_value_next(f)) {
        char shown[JSON_SHOWN_SIZE];
        const char *text = json_value_string(f);
        html_row(out, json_value_key(f), text != NULL ? text : json_value_shown(f, shown));
    }
    html_table_end(out);
}

static void write_recipe(struct bytes *out, const struct report_view *v)
{
    if (v->recipe == NULL)
        return;
    const struct cJSON *payload = json_value_get(v->recipe, "payload");
    html_heading(out, "Recipe");
    html_table_start(out, "What the seal binds", "name|value");
    html_row(out, "payload", report_text(payload, "file"));
    html_row(out, "payload SHA-256", report_text(payload, "sha256"));
    html_row(out, "seal", report_text(v->recipe, "seal"));
    html_table_end(out);
    write_texts(out, "Provenance", "Digests of what the tables were made from",
                json_value_get(v->recipe, "provenance"));
}

void report_html_section(struct bytes *out, const struct report_view *v)
{
    const char *block = report_text(v->report, "block");
    bytes_printf(out, "<section aria-labelledby=\"block-%zu\">\n<h2 id=\"block-%zu\">", v->index,
                 v->index);
    html_text(out, block[0] != '\0'                               ? block
                   : json_value_get(v->report, "regions") != NULL ? "enclosing model"
                                                                  : "spec");
    bytes_printf(out, "</h2>\n<p class=\"where\">");
    html_text(out, v->where);
    bytes_printf(out, "</p>\n");
    write_historical(out, v);
    write_verdict(out, v);
    write_facts(out, v);
    write_storage(out, v);
    write_mismatches(out, v);
    write_classes(out, v);
    write_statistics(out, v);
    write_double(out, v);
    write_decisions(out, v);
    write_tables(out, v);
    report_html_more(out, v);
    write_texts(out, "Numeric environment", "What the bits of these tables belong to",
                json_value_get(v->report, "environment"));
    write_recipe(out, v);
    bytes_printf(out, "</section>\n");
}
