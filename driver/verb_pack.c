/* SPDX-License-Identifier: Apache-2.0 */
/* Lossless packing of any file, and the reverse. */
#include "driver/verb_internal.h"

#include "formats/packed.h"

#include <inttypes.h>
#include <sys/stat.h>

static const uint64_t UNPACK_LIMIT = (uint64_t)1 << 40;

/* Neither may eat its own source, --force or not. */
static enum status check_paths(const struct driver_opts *o, struct err *err)
{
    struct stat from, to;
    TRY(verb_output_check(o->out, "--out", o->force, err));
    if (stat(o->args[0], &from) == 0 && stat(o->out, &to) == 0 && from.st_dev == to.st_dev &&
        from.st_ino == to.st_ino)
        return err_set(err, ST_USAGE, "--out: %s is the file that is read", o->out);
    return ST_OK;
}

static uint64_t file_bytes(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && info.st_size > 0 ? (uint64_t)info.st_size : 0;
}

static void report(struct driver_context *ctx, uint64_t raw, uint64_t packed)
{
    const struct driver_opts *o = ctx->opts;
    double share = raw > 0 ? (double)packed / (double)raw : 0;
    char raw_text[32], packed_text[32];
    if (!o->json) {
        bytes_printf(&ctx->result, "%s: %" PRIu64 " bytes (%s) raw, %" PRIu64 " bytes (%s) packed",
                     o->out, raw, str_bytes(raw, raw_text, sizeof raw_text), packed,
                     str_bytes(packed, packed_text, sizeof packed_text));
        if (raw > 0)
            bytes_printf(&ctx->result, ": %.1f %%", 100 * share);
        bytes_printf(&ctx->result, "\n");
        return;
    }
    struct format_writer w;
    verb_json_start(ctx, &w);
    format_write_string(&w, "from", o->args[0]);
    format_write_string(&w, "to", o->out);
    format_write_u64(&w, "raw_bytes", raw);
    format_write_u64(&w, "packed_bytes", packed);
    if (raw > 0)
        format_write_double(&w, "packed_share", share);
    verb_json_end(ctx, &w);
}

enum status driver_verb_pack(struct driver_context *ctx, struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    TRY(check_paths(o, err));
    TRY(format_pack_file(o->args[0], o->out, DT_UNKNOWN, err));
    report(ctx, file_bytes(o->args[0]), file_bytes(o->out));
    return ST_OK;
}

enum status driver_verb_unpack(struct driver_context *ctx, struct err *err)
{
    const struct driver_opts *o = ctx->opts;
    TRY(check_paths(o, err));
    uint64_t limit = o->size_limit > 0 ? o->size_limit : UNPACK_LIMIT;
    TRY(format_unpack_file(o->args[0], o->out, limit, err));
    report(ctx, file_bytes(o->out), file_bytes(o->args[0]));
    return ST_OK;
}
