/* SPDX-License-Identifier: Apache-2.0 */
#include "driver/report_internal.h"

#include <math.h>
#include <string.h>

void html_text(struct bytes *out, const char *s)
{
    for (; *s != '\0'; s++) {
        switch (*s) {
        case '&':
            bytes_printf(out, "&amp;");
            break;
        case '<':
            bytes_printf(out, "&lt;");
            break;
        case '>':
            bytes_printf(out, "&gt;");
            break;
        case '"':
            bytes_printf(out, "&quot;");
            break;
        case '\'':
            bytes_printf(out, "&#39;");
            break;
        default:
            bytes_append(out, (unsigned char)*s < 0x20 || *s == 0x7f ? " " : s, 1);
        }
    }
}

bool report_number(const struct cJSON *v, double *out)
{
    uint64_t whole = 0;
    const char *text = json_value_string(v);
    if (json_value_double(v, out))
        return true;
    if (text == NULL)
        return false;
    if (json_value_u64(v, &whole))
        *out = (double)whole;
    else if (strcmp(text, "Infinity") == 0 || strcmp(text, "-Infinity") == 0)
        *out = text[0] == '-' ? -INFINITY : INFINITY;
    else if (strcmp(text, "NaN") == 0)
        *out = NAN;
    else
        return false;
    return true;
}

double report_get(const struct cJSON *object, const char *key)
{
    double x = 0;
    return report_number(json_value_get(object, key), &x) ? x : 0;
}

uint64_t report_bytes(double x)
{
    if (!(x > 0))
        return 0;
    return x < 18446744073709551616.0 ? (uint64_t)x : UINT64_MAX;
}

const char *report_text(const struct cJSON *object, const char *key)
{
    const char *s = json_value_string(json_value_get(object, key));
    return s == NULL ? "" : s;
}

bool report_is(const struct cJSON *object, const char *key)
{
    bool x = false;
    return json_value_bool(json_value_get(object, key), &x) && x;
}

const char *report_count(double x, char buf[REPORT_TEXT_SIZE])
{
    char digits[REPORT_TEXT_SIZE];
    if (!(fabs(x) < 9007199254740992.0) || x != floor(x) || x < 0) {
        (void)snprintf(buf, REPORT_TEXT_SIZE, "%.3g", x);
        return buf;
    }
    int n = snprintf(digits, sizeof digits, "%.0f", x);
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        if (i > 0 && (n - i) % 3 == 0)
            buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = '\0';
    return buf;
}

const char *report_error(double x, char buf[REPORT_TEXT_SIZE])
{
    if (x == 0)
        (void)snprintf(buf, REPORT_TEXT_SIZE, "0");
    else
        (void)snprintf(buf, REPORT_TEXT_SIZE, "%.2e", x);
    return buf;
}
