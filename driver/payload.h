/* SPDX-License-Identifier: Apache-2.0 */
/** The payload of a recipe: which bytes, written by all ranks.  Private to driver/. */
#ifndef DRIVER_PAYLOAD_H
#define DRIVER_PAYLOAD_H

#include "driver/driver_internal.h"
#include "formats/packed.h"

/** What is written, and where.  The first fields are set by the caller and borrowed. */
struct driver_payload {
    struct comm *comm;
    const struct driver_job *job;
    const struct driver_block *b;
    struct shard_store *store;
    const struct driver_layout *l;
    const struct format_recipe *recipe; /* groups, kind, id list, bias */
    const char *path;                   /* the staged file */
    bool packed;                        /* .ttz instead of safetensors */
    /* set by driver_payload_open: */
    struct format_tensor_spec *specs; /* payload tensors, groups first */
    size_t n_specs;
    uint64_t *offsets; /* safetensors: file offset of each */
    uint64_t size_bytes;
    struct bytes head;
    struct packed_layout *packed_layout;
    struct packed_report *reports; /* packed, after writing, on rank 0: [n_specs] */
};

/** Names, shapes and places from the recipe.  Local.  ST_NOMEM, ST_FORMAT. */
NODISCARD enum status driver_payload_open(struct driver_payload *p, struct err *err);
void driver_payload_close(struct driver_payload *p);
/** Write the whole staged file: each rank its blocks of rows (safetensors) or its chunks (packed,
 * placed by prefix sum).  The bytes do not depend on the ranks.  Synced.  Collective.  ST_IO,
 * ST_NOMEM, ST_STOPPED. */
NODISCARD enum status driver_payload_write_all(struct driver_payload *p, struct err *err);
/** Test hook: flip one bit of the staged safetensors file, "route:table:row:column:bit" in
 *  TOKENTAB_DAMAGE_PAYLOAD.  Local. */
NODISCARD enum status driver_payload_damage(const struct driver_payload *p, struct err *err);
/** A fault point of emission: ST_IO when it is armed. */
NODISCARD enum status driver_emit_fault(const char *name, struct err *err);

#endif
