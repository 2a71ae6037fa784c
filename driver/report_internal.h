/* SPDX-License-Identifier: Apache-2.0 */
/** Private to the report verb: one HTML page from report.json and recipe.json.  The page loads
 *  nothing: style and plots (SVG) are inline, there is no script.  Every plot has a text in its
 *  place for who cannot see it, and no meaning hangs on colour alone. */
#ifndef DRIVER_REPORT_INTERNAL_H
#define DRIVER_REPORT_INTERNAL_H

#include "driver/driver_internal.h"
#include "formats/json_value.h"

/** What one section of the page is made from; borrowed. */
struct report_view {
    const char *where;          /* path of the report, shown under the heading */
    const struct cJSON *report; /* report.json */
    const struct cJSON *recipe; /* recipe.json, or NULL */
    double tolerance_absolute, tolerance_relative;
    bool is_historical; /* recipe.json does not match its seal */
    size_t index;       /* of the section: makes ids unique */
};

/* ---- text and values (report_text.c) --------------------------------------------------------- */

/** `s` with &, <, >, " and ' as entities; control characters become spaces. */
void html_text(struct bytes *out, const char *s);
/** Number of a report: a JSON number, a decimal string, or "Infinity", "-Infinity", "NaN".  False
 *  for anything else.  Pure. */
NODISCARD bool report_number(const struct cJSON *v, double *out);
/** Member as a number; 0 where it is absent. */
double report_get(const struct cJSON *object, const char *key);
/** A count of bytes: whole and within range whatever the report says; 0 for NaN.  Pure. */
uint64_t report_bytes(double x);
/** Member as text; "" where it is absent or no string. */
const char *report_text(const struct cJSON *object, const char *key);
/** Member that is true. */
bool report_is(const struct cJSON *object, const char *key);
enum { REPORT_TEXT_SIZE = 48 };
/** 1234567 as "1,234,567"; anything but a whole number below 2^53 as "%.3g".  Returns buf. */
const char *report_count(double x, char buf[REPORT_TEXT_SIZE]);
/** An error: "0", or three digits. */
const char *report_error(double x, char buf[REPORT_TEXT_SIZE]);

/* ---- plots (report_svg.c) -------------------------------------------------------------------- */

/** Bytes before and after, logical and unique. */
void report_svg_storage(struct bytes *out, const struct report_view *v);
/** Class by route of one output: how far direct evaluation is from the table. */
void report_svg_heat_map(struct bytes *out, const struct report_view *v, const char *output);
/** How many elements lie how many units in the last place off; all classes and routes of one
 *  output. */
void report_svg_histogram(struct bytes *out, const struct report_view *v, const char *output);
/** Largest distance of each table from a double-precision evaluation. */
void report_svg_double(struct bytes *out, const struct report_view *v);

/** Is a statistic outside the tolerance, non-finite, or a decision changed? */
bool report_is_outside(const struct report_view *v, const struct cJSON *statistic);

/* ---- pieces of the page (report_html.c) ------------------------------------------------------ */

void html_heading(struct bytes *out, const char *text);
/** columns: '|' between them; one that begins with '#' holds numbers.  Both texts are markup. */
void html_table_start(struct bytes *out, const char *caption, const char *columns);
void html_table_end(struct bytes *out);
void html_cell(struct bytes *out, const char *text);
/** A row of a two-column table. */
void html_row(struct bytes *out, const char *name, const char *value);
/** What the other parts do not show, as tables: whatever keys a report gains (report_more.c). */
void report_html_more(struct bytes *out, const struct report_view *v);

/* ---- the page (report_html.c) ---------------------------------------------------------------- */

void report_html_start(struct bytes *out, const char *title);
void report_html_section(struct bytes *out, const struct report_view *v);
void report_html_end(struct bytes *out);

#endif
