/* SPDX-License-Identifier: Apache-2.0 */
#include "base/versions.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <xxhash.h>

const char *base_xxhash_version(char *buf, size_t buf_size)
{
    unsigned v = XXH_versionNumber();
    (void)snprintf(buf, buf_size, "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
    return buf;
}

const char *base_crypto_version(void)
{
    return OpenSSL_version(OPENSSL_VERSION);
}
