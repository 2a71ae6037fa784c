/* SPDX-License-Identifier: Apache-2.0 */
/** Files of a recipe folder whose names hold a digest.  Private to driver/. */
#ifndef DRIVER_RECIPE_FILES_H
#define DRIVER_RECIPE_FILES_H

#include "driver/driver_internal.h"

#define PAYLOAD_START "tables-"
#define WEIGHTS_START "weights-"

/** Name of the payload that the recipe in file `file` of `dir` names; owned, NULL where it cannot
 * be read.  Local. */
char *driver_payload_of(const char *dir, const char *file);
/** Unlink the files of `dir` that tokentab may have called so: `start`, 16 hexadecimal digits and
 *  .safetensors or .ttz; but for `keep` (NULL: all).  What cannot be removed stays.  Local. */
void driver_sweep(const char *dir, const char *start, const char *keep);

#endif
