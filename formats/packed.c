/* SPDX-License-Identifier: Apache-2.0 */
/* TODO(#6): the packed payload; until then such a payload is refused by name. */
#include "formats/packed.h"

void format_packed_close(struct format_packed **p)
{
    *p = NULL;
}

const struct packed_layout *format_packed_layout(const struct format_packed *p)
{
    (void)p;
    return NULL;
}

uint64_t format_packed_file_size(const struct format_packed *p)
{
    (void)p;
    return 0;
}

const uint8_t *format_packed_bytes(const struct format_packed *p)
{
    (void)p;
    return NULL;
}

enum status format_packed_open(const char *path, size_t cache_bytes, struct format_packed **out,
                               struct err *err)
{
    (void)cache_bytes;
    *out = NULL;
    return err_set(err, ST_FORMAT, "%s: packed payloads are not supported", path);
}

enum status format_packed_acquire(struct format_packed *p, uint32_t tensor, uint64_t row,
                                  struct packed_rows *out, struct err *err)
{
    (void)p, (void)tensor, (void)row, (void)out;
    return err_set(err, ST_FORMAT, "packed payloads are not supported");
}

void format_packed_release(struct format_packed *p, struct packed_rows *rows)
{
    (void)p, (void)rows;
}

enum status format_packed_rows(struct format_packed *p, uint32_t tensor, uint64_t first, uint64_t n,
                               void *dst, struct err *err)
{
    (void)p, (void)tensor, (void)first, (void)n, (void)dst;
    return err_set(err, ST_FORMAT, "packed payloads are not supported");
}

void format_packed_prefetch(const struct format_packed *p, uint32_t tensor, uint64_t row)
{
    (void)p, (void)tensor, (void)row;
}

void format_packed_trim(struct format_packed *p)
{
    (void)p;
}

enum status format_packed_verify(struct format_packed *p, struct err *err)
{
    (void)p;
    return err_set(err, ST_FORMAT, "packed payloads are not supported");
}

enum status format_packed_plan(const struct format_recipe *r, uint64_t chunk_bytes, bool deltas,
                               struct packed_layout **out, struct err *err)
{
    (void)r, (void)chunk_bytes, (void)deltas, (void)out;
    return err_set(err, ST_FORMAT, "packed payloads are not supported");
}

void format_packed_layout_free(struct packed_layout **layout)
{
    *layout = NULL;
}

enum status format_packed_write(const char *path, const struct packed_layout *l,
                                format_packed_rows_fn rows, void *ctx,
                                struct packed_report *reports, struct err *err)
{
    (void)path, (void)l, (void)rows, (void)ctx, (void)reports;
    return err_set(err, ST_FORMAT, "packed payloads are not supported");
}
