/* SPDX-License-Identifier: Apache-2.0 */
/* What a recipe takes, resident and on disk apart. */
#include "driver/storage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>

static uint64_t file_bytes(const char *dir, const char *name)
{
    struct stat info;
    char *path = path_join(dir, name);
    bool there = path != NULL && stat(path, &info) == 0 && info.st_size > 0;
    free(path);
    return there ? (uint64_t)info.st_size : 0;
}

enum status driver_storage_measure(const char *dir, const struct format_recipe *r,
                                   struct driver_storage *out, struct err *err)
{
    struct format_tensor_spec *specs = NULL;
    size_t n = 0;
    *out = (struct driver_storage){.payload = r->payload_bytes};
    TRY(format_recipe_tensors(r, &specs, &n, err));
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes = dtype_size(specs[i].dtype); /* checked when the recipe was decoded */
        for (unsigned k = 0; k < specs[i].rank; k++)
            bytes *= specs[i].shape[k];
        out->resident += bytes;
    }
    format_tensor_specs_free(&specs, n);
    if (dir != NULL) {
        out->recipe_json = file_bytes(dir, LOOKUP_RECIPE_FILE);
        out->report_json = file_bytes(dir, "report.json");
    }
    return ST_OK;
}

void driver_storage_json(const struct driver_storage *s, struct format_writer *w)
{
    format_write_u64(w, "resident", s->resident);
    format_write_object(w, "on_disk");
    format_write_u64(w, "payload", s->payload);
    format_write_u64(w, "recipe_json", s->recipe_json);
    format_write_u64(w, "report_json", s->report_json);
    format_write_u64(w, "total", s->payload + s->recipe_json + s->report_json);
    format_write_end_object(w);
}

void driver_storage_text(const struct driver_storage *s, struct bytes *out)
{
    char resident[32], payload[32];
    bytes_printf(out,
                 "resident %" PRIu64 " bytes (%s); on disk %" PRIu64 " bytes (%s) of payload, "
                 "%" PRIu64 " of JSON\n",
                 s->resident, str_bytes(s->resident, resident, sizeof resident), s->payload,
                 str_bytes(s->payload, payload, sizeof payload), s->recipe_json + s->report_json);
}
