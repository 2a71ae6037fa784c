/* SPDX-License-Identifier: Apache-2.0 */
/** Recipe folders with seeded contents, and a plain gather to compare with. */
#ifndef TESTS_LOOKUP_LOOKUP_FIXTURE_H
#define TESTS_LOOKUP_LOOKUP_FIXTURE_H

#include "lookup/lookup.h"
#include "tests/formats/recipe_fixture.h"

/** A recipe folder and what its payload holds. */
struct folder {
    const char *dir;
    struct format_recipe *r;
    struct format_tensor_spec *specs;
    size_t n_specs;
    uint8_t **data; /* of each payload tensor */
    uint64_t chunk_bytes;
};

/** Fills the payload with seeded values (finite; index and id tensors with valid ones), writes
 *  tables-*.safetensors or, when packed, .ttz, and recipe.json, sealed.  Takes r over. */
struct folder *folder_make(const char *dir, struct format_recipe *r, bool packed);
/** The same with chunks of another size than the small ones that tests want (0: the default). */
struct folder *folder_make_chunked(const char *dir, struct format_recipe *r, bool packed,
                                   uint64_t chunk_bytes);
/** Writes recipe.json again from f->r (sealing it when asked). */
void folder_write_recipe(struct folder *f, bool seal);
/** Writes the payload again from f->data, and updates digest, size and name in f->r. */
void folder_write_payload(struct folder *f, bool packed);
void folder_free(struct folder **f);
/** Bytes of table row `row` of a stored table, straight from f->data. */
const uint8_t *folder_row(const struct folder *f, size_t route, size_t table, uint64_t row);
size_t folder_row_bytes(const struct folder *f, size_t table);

/** A seeded sequence. */
uint64_t folder_random(uint64_t *state);

#endif
