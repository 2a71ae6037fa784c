/* SPDX-License-Identifier: Apache-2.0 */
/** base, file systems by name: for messages about what some of them cannot do (locks). */
#ifndef BASE_FILE_SYSTEM_H
#define BASE_FILE_SYSTEM_H

#include <stddef.h>

enum { FILE_SYSTEM_NAME_SIZE = 32 };

/** "nfs", "lustre", "ext4", ...: the kind of file system that `path` lies on, or its folder where
 * it is not there; a number in hexadecimal for kinds without a name here, "unknown" where nobody
 * can say.  Local.  Returns buf or static text. */
const char *file_system_name(const char *path, char buf[FILE_SYSTEM_NAME_SIZE]);

#endif
