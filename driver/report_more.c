/* SPDX-License-Identifier: Apache-2.0 */
/* What has no section of its own: an enclosing model's regions, outputs and examples, groups, and
 * whatever a report gains later. */
#include "driver/report_internal.h"

#include <string.h>

enum { MORE_COLUMNS = 16, MORE_ROWS = 1000 };

static bool is_shown(const char *key)
{
    static const char *const shown[] = {"schema_version",
                                        "status",
                                        "reason",
                                        "block",
                                        "kind",
                                        "arithmetic",
                                        "policy",
                                        "tokens",
                                        "rows_in_checkpoint",
                                        "bulk_rows",
                                        "validation_rows",
                                        "row_count_profiles",
                                        "tolerance",
                                        "environment",
                                        "distinct_embedding_rows_within_units",
                                        "storage",
                                        "tables",
                                        "double_precision_error",
                                        "execution_classes",
                                        "statistics",
                                        "decisions"};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        if (strcmp(shown[i], key) == 0)
            return true;
    return false;
}

/* "logical_before" as "logical before". */
static void name_text(struct bytes *out, const char *key)
{
    for (; *key != '\0'; key++) {
        const char c[] = {*key == '_' ? ' ' : *key, '\0'};
        html_text(out, c);
    }
}

static void value_text(struct bytes *out, const struct cJSON *v)
{
    char buf[REPORT_TEXT_SIZE], shown[JSON_SHOWN_SIZE];
    double x = 0;
    if (json_value_kind(v) == JSON_ARRAY) {
        size_t n = 0;
        for (const struct cJSON *c = json_value_first(v); c != NULL; c = json_value_next(c)) {
            if (n++ > 0)
                bytes_printf(out, ", ");
            if (n > MORE_ROWS) {
                bytes_printf(out, "…");
                break;
            }
            if (json_value_kind(c) == JSON_ARRAY)
                html_text(out, json_value_shown(c, shown));
            else
                value_text(out, c);
        }
    } else if (json_value_kind(v) == JSON_NUMBER && report_number(v, &x)) {
        html_text(out, report_count(x, buf));
    } else if (json_value_string(v) != NULL) {
        html_text(out, json_value_string(v));
    } else if (json_value_kind(v) <= JSON_NULL) {
        bytes_printf(out, "–");
    } else {
        html_text(out, json_value_shown(v, shown));
    }
}

/* A list of objects: the columns are the keys of all of them, in the order they first appear. */
static void object_table(struct bytes *out, const struct cJSON *list)
{
    const char *keys[MORE_COLUMNS];
    size_t n = 0, rows = 0;
    for (const struct cJSON *o = json_value_first(list); o != NULL; o = json_value_next(o))
        for (const struct cJSON *m = json_value_first(o); m != NULL; m = json_value_next(m)) {
            size_t i = 0;
            while (i < n && strcmp(keys[i], json_value_key(m)) != 0)
                i++;
            if (i == n && n < MORE_COLUMNS)
                keys[n++] = json_value_key(m);
        }
    bytes_printf(out, "<div class=\"wide\"><table><thead><tr>");
    for (size_t i = 0; i < n; i++) {
        bytes_printf(out, "<th scope=\"col\">");
        name_text(out, keys[i]);
        bytes_printf(out, "</th>");
    }
    bytes_printf(out, "</tr></thead><tbody>\n");
    for (const struct cJSON *o = json_value_first(list); o != NULL && rows < MORE_ROWS;
         o = json_value_next(o), rows++) {
        bytes_printf(out, "<tr>");
        for (size_t i = 0; i < n; i++) {
            bytes_printf(out, "<td>");
            value_text(out, json_value_get(o, keys[i]));
            bytes_printf(out, "</td>");
        }
        bytes_printf(out, "</tr>\n");
    }
    html_table_end(out);
}

static void name_value_table(struct bytes *out, const struct cJSON *object, bool only_hidden)
{
    html_table_start(out, "", "name|value");
    for (const struct cJSON *m = json_value_first(object); m != NULL; m = json_value_next(m)) {
        bool is_scalar = json_value_kind(m) < JSON_ARRAY;
        if (only_hidden && (!is_scalar || is_shown(json_value_key(m))))
            continue;
        bytes_printf(out, "<tr><th scope=\"row\">");
        name_text(out, json_value_key(m));
        bytes_printf(out, "</th><td>");
        value_text(out, m);
        bytes_printf(out, "</td></tr>\n");
    }
    html_table_end(out);
}

static void more_heading(struct bytes *out, const char *key)
{
    bytes_printf(out, "<h3>");
    name_text(out, key);
    bytes_printf(out, "</h3>\n");
}

void report_html_more(struct bytes *out, const struct report_view *v)
{
    size_t n_scalars = 0;
    for (const struct cJSON *m = json_value_first(v->report); m != NULL; m = json_value_next(m)) {
        enum json_kind kind = json_value_kind(m);
        if (is_shown(json_value_key(m)))
            continue;
        if (kind < JSON_ARRAY) {
            n_scalars++;
            continue;
        }
        if (json_value_first(m) == NULL)
            continue;
        more_heading(out, json_value_key(m));
        if (kind == JSON_OBJECT) {
            name_value_table(out, m, false);
        } else if (json_value_kind(json_value_first(m)) == JSON_OBJECT) {
            object_table(out, m);
        } else {
            bytes_printf(out, "<p>");
            value_text(out, m);
            bytes_printf(out, "</p>\n");
        }
    }
    if (n_scalars == 0)
        return;
    html_heading(out, "More");
    name_value_table(out, v->report, true);
}
