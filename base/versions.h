/* SPDX-License-Identifier: Apache-2.0 */
/** base: versions of the libraries it is linked with; for doctor. */
#ifndef BASE_VERSIONS_H
#define BASE_VERSIONS_H

#include <stddef.h>

/** "0.8.1" into buf (at least 24 characters).  Pure.  Returns buf. */
const char *base_xxhash_version(char *buf, size_t buf_size);
/** "OpenSSL 3.0.15 3 Sep 2024".  Pure; static storage. */
const char *base_crypto_version(void);

#endif
