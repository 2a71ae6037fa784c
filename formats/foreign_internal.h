/* SPDX-License-Identifier: Apache-2.0 */
/** formats, private: names of the compressme artifact. */
#ifndef FORMATS_FOREIGN_INTERNAL_H
#define FORMATS_FOREIGN_INTERNAL_H

#include "formats/foreign.h"

#define FOREIGN_MANIFEST "manifest.json"
#define FOREIGN_PLAIN "model.safetensors"
#define FOREIGN_PACKED "model.cmppack"
#define FOREIGN_PACKING "lossless_byte_shuffle_zstd"

/** Lists that a finite block leaves empty; NULL at the end. */
extern const char *const FOREIGN_EMPTY_LISTS[];
/** "float32" and so on.  Pure. */
const char *foreign_dtype(enum dtype dt);

#endif
