/* SPDX-License-Identifier: Apache-2.0 */
/** Specs as text.  Single quotes stand for double ones, so that the texts can be read. */
#ifndef TESTS_FORMATS_SPEC_FIXTURE_H
#define TESTS_FORMATS_SPEC_FIXTURE_H

#include "formats/formats.h"
#include "tests/formats/fixture.h"

enum { SPEC_TEXT_SIZE = 1 << 16 };

/** Write `text` to `path` with quotes in place. */
static inline void spec_write(const char *path, const char *text)
{
    char *quoted = str_dup(text);
    if (quoted == NULL)
        abort();
    for (char *c = quoted; *c != '\0'; c++)
        if (*c == '\'')
            *c = '"';
    fixture_text(path, quoted);
    free(quoted);
}

#define SPEC_HEAD                                                                                  \
    "{'tokentab': 1, 'checkpoint': 'model.safetensors', 'mode': 'eval', "                          \
    "'input_contract': 'token_indices_only', "

/** Read a whole document. */
static inline enum status spec_read(const char *text, struct format_spec **out, struct err *err)
{
    *err = (struct err){0};
    spec_write("spec.json", text);
    return format_spec_read("spec.json", out, err);
}

/** It is read; NULL (and a failed test) where it is not.  Free with format_spec_free. */
static inline struct format_spec *spec_accepted(const char *text)
{
    struct format_spec *s = NULL;
    struct err err;
    enum status st = spec_read(text, &s, &err);
    if (st != ST_OK)
        printf("\n    %s\n    %s\n", text, err.message);
    CU_ASSERT_EQUAL(st, ST_OK);
    return s;
}

/** It is refused with this status and a message "spec.json: PART...". */
static inline void spec_refused(const char *text, enum status expected, const char *part)
{
    struct format_spec *s = NULL;
    struct err err;
    char *full = str_printf("spec.json: %s", part);
    enum status st = spec_read(text, &s, &err);
    if (st != expected)
        printf("\n    %s\n    status %s: %s\n", text, status_text(st), err.message);
    CU_ASSERT_EQUAL(st, expected);
    CU_ASSERT_EQUAL(err.st, expected);
    CU_ASSERT_PTR_NULL(s);
    CU_ASSERT(full != NULL && fixture_says(&err, full));
    format_spec_free(&s);
    free(full);
}

#endif
