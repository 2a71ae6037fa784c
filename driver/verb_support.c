/* SPDX-License-Identifier: Apache-2.0 */
/* What several verbs share. */
#include "driver/verb_internal.h"

#include "driver/enclosing.h"

#include <dirent.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- results --------------------------------------------------------------------------------- */

void verb_json_start(const struct driver_context *ctx, struct format_writer *w)
{
    *w = (struct format_writer){.pretty = true};
    format_write_object(w, NULL);
    format_write_u64(w, "schema_version", DRIVER_JSON_SCHEMA);
    format_write_string(w, "verb", ctx->verb->name);
}

void verb_json_end(struct driver_context *ctx, struct format_writer *w)
{
    format_write_end_object(w);
    format_write_finish(w);
    bytes_append(&ctx->result, w->out.data, w->out.size);
    ctx->result.failed = ctx->result.failed || w->out.failed;
    bytes_free(&w->out);
}

enum status verb_output_check(const char *path, const char *option, bool force, struct err *err)
{
    if (path == NULL)
        return err_set(err, ST_USAGE, "%s is missing", option);
    if (!force && (file_exists(path) || file_is_dir(path)))
        return err_set(err, ST_USAGE, "%s: %s exists; --force overwrites it", option, path);
    return ST_OK;
}

enum status verb_from_lookup(enum tokentab_status st, const struct tokentab_error *fault,
                             struct err *err)
{
    return st == TOKENTAB_OK ? ST_OK : err_set(err, lookup_status(st), "%s", fault->message);
}

char *verb_recipe_dir(const char *path)
{
    return file_is_dir(path) ? str_dup(path) : path_dir(path);
}

bool verb_is_recipe(const char *path)
{
    if (!file_is_dir(path))
        return strcmp(path_base(path), LOOKUP_RECIPE_FILE) == 0 && file_exists(path);
    char *file = path_join(path, LOOKUP_RECIPE_FILE);
    bool there = file != NULL && file_exists(file);
    free(file);
    return there;
}

enum { SHOWN_RECIPES = 8 };

/* Names of the folders in `path` that hold recipes, the first few in order, as "a, b"; 0 for none.
 */
static size_t list_recipes(const char *path, char *text, size_t text_size)
{
    struct dirent **entries = NULL;
    int n = scandir(path, &entries, NULL, alphasort);
    size_t found = 0, at = 0;
    for (int i = 0; i < n; i++) {
        char *below = str_is_name(entries[i]->d_name) ? path_join(path, entries[i]->d_name) : NULL;
        if (below != NULL && file_is_dir(below) && verb_is_recipe(below)) {
            bool is_shown = found < SHOWN_RECIPES && at + strlen(below) + 8 < text_size;
            if (is_shown)
                at += (size_t)snprintf(text + at, text_size - at, "%s%s", found > 0 ? ", " : "",
                                       entries[i]->d_name);
            else if (found == SHOWN_RECIPES)
                (void)snprintf(text + at, text_size - at, ", ...");
            found++;
        }
        free(below);
        free(entries[i]);
    }
    free(entries);
    return found;
}

enum status verb_single_check(const char *path, struct err *err)
{
    static const char *const checkpoints[] = {"model.safetensors", "model.safetensors.index.json"};
    char text[300] = "";
    bool is_model = driver_is_model_dir(path);
    if (!file_is_dir(path) || verb_is_recipe(path))
        return ST_OK;
    for (size_t i = 0; i < 2 && !is_model; i++) {
        char *file = path_join(path, checkpoints[i]);
        bool there = file != NULL && file_exists(file);
        free(file);
        if (there)
            return ST_OK;
    }
    if (list_recipes(path, text, sizeof text) == 0 && !is_model)
        return ST_OK;
    if (is_model)
        return err_set(err, ST_FORMAT,
                       "%s: a rewritten model; name a recipe in it (%s) or its weights file", path,
                       text);
    return err_set(err, ST_FORMAT, "%s: a folder of recipes; name one of them: %s", path, text);
}

/* FORMAT.md: a skippable zstd frame that holds our name. */
bool verb_is_packed(const void *start, size_t size)
{
    static const char NAME[] = "tokentab";
    return size >= 16 && memcmp(start, "\x50\x2A\x4D\x18", 4) == 0 &&
           memcmp((const char *)start + 8, NAME, 8) == 0;
}

enum status verb_cmppack_check(const char *path, const void *start, size_t size, struct err *err)
{
    static const char MAGIC[] = "CMPRPACK";
    if (size < sizeof MAGIC - 1 || memcmp(start, MAGIC, sizeof MAGIC - 1) != 0)
        return ST_OK;
    return err_set(err, ST_FORMAT, VERB_IMPORT_FIRST, path);
}

enum status verb_recipe_open(const char *path, const struct tokentab_open_opts *opts,
                             struct tokentab_recipe **out, struct err *err)
{
    struct tokentab_error fault = {0};
    TRY(verb_single_check(path, err));
    char *dir = verb_is_recipe(path) ? verb_recipe_dir(path) : str_dup(path);
    if (dir == NULL)
        return err_nomem(err, strlen(path) + 1);
    enum status st = verb_from_lookup(tokentab_open(dir, opts, out, &fault), &fault, err);
    free(dir);
    if (st == ST_OK && tokentab_is_historical(*out))
        log_warn("%s: historical: recipe.json has changed since it was validated and sealed", path);
    return st;
}

/* ---- elements -------------------------------------------------------------------------------- */

const char *verb_f32_text(float x, char buf[VERB_TEXT_SIZE])
{
    if (!isfinite(x))
        return str_double((double)x, buf, VERB_TEXT_SIZE);
    /* A normal float that reads back from fewer than six digits has zeros behind them, which %g
     * leaves out; subnormal ones have fewer digits to begin with. */
    for (int digits = fabsf(x) < FLT_MIN ? 1 : FLT_DIG; digits <= FLT_DECIMAL_DIG; digits++) {
        (void)snprintf(buf, VERB_TEXT_SIZE, "%.*g", digits, (double)x);
        if (strtof(buf, NULL) == x)
            break;
    }
    return buf;
}

double verb_element_number(enum dtype dt, const void *stored)
{
    union {
        double f64;
        float f32;
        uint16_t u16;
        int16_t i16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
        uint8_t u8;
        int8_t i8;
    } x = {.u64 = 0};
    memcpy(&x, stored, dtype_size(dt));
    switch (dt) {
    case DT_F64:
        return x.f64;
    case DT_F32:
        return (double)x.f32;
    case DT_F16:
        return (double)f16_to_f32(x.u16);
    case DT_BF16:
        return (double)bf16_to_f32(x.u16);
    case DT_I64:
        return (double)x.i64;
    case DT_I32:
        return x.i32;
    case DT_I16:
        return x.i16;
    case DT_I8:
        return x.i8;
    case DT_U64:
        return (double)x.u64;
    case DT_U32:
        return x.u32;
    case DT_U16:
        return x.u16;
    case DT_U8:
    case DT_BOOL:
        return x.u8;
    case DT_F8_E4M3:
    case DT_F8_E5M2:
        return (double)f8_to_f32(x.u8, dt == DT_F8_E5M2);
    case DT_UNKNOWN:
    case DT_COUNT:
        break;
    }
    return 0;
}

const char *verb_element_text(enum dtype dt, const void *stored, char buf[VERB_TEXT_SIZE])
{
    if (dt == DT_F32) {
        float x;
        memcpy(&x, stored, sizeof x);
        return verb_f32_text(x, buf);
    }
    if (dt == DT_I64) {
        int64_t x;
        memcpy(&x, stored, sizeof x);
        (void)snprintf(buf, VERB_TEXT_SIZE, "%" PRId64, x);
        return buf;
    }
    if (dt == DT_U64) {
        uint64_t x;
        memcpy(&x, stored, sizeof x);
        (void)snprintf(buf, VERB_TEXT_SIZE, "%" PRIu64, x);
        return buf;
    }
    return str_double(verb_element_number(dt, stored), buf, VERB_TEXT_SIZE);
}
