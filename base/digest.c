/* SPDX-License-Identifier: Apache-2.0 */
#include "base/base.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static void hex_of(const uint8_t *bytes, size_t size, char *hex)
{
    static const char DIGITS[] = "0123456789abcdef";
    for (size_t i = 0; i < size; i++) {
        hex[2 * i] = DIGITS[bytes[i] >> 4];
        hex[2 * i + 1] = DIGITS[bytes[i] & 15];
    }
    hex[2 * size] = '\0';
}

static struct digest digest_from_hash(XXH128_hash_t hash)
{
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, hash);
    struct digest d;
    _Static_assert(sizeof d.bytes == sizeof canonical.digest, "a digest is 128 bits");
    memcpy(d.bytes, canonical.digest, sizeof d.bytes);
    return d;
}

struct digest digest_of(const void *data, size_t size)
{
    return digest_from_hash(XXH3_128bits(size > 0 ? data : "", size));
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

const char *digest_hex(const struct digest *d, char hex[DIGEST_HEX_SIZE])
{
    hex_of(d->bytes, sizeof d->bytes, hex);
    return hex;
}

/* Lower case only, as digest_hex writes it: one spelling for one digest. */
static int nibble_of(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return -1;
}

bool digest_from_hex(const char *hex, struct digest *out)
{
    struct digest d;
    if (strlen(hex) != 2 * sizeof d.bytes)
        return false;
    for (size_t i = 0; i < sizeof d.bytes; i++) {
        int high = nibble_of(hex[2 * i]);
        int low = nibble_of(hex[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        d.bytes[i] = (uint8_t)(high << 4 | low);
    }
    *out = d;
    return true;
}

struct digest_state {
    XXH3_state_t *xxh;
};

enum status digest_open(struct digest_state **out, struct err *err)
{
    struct digest_state *s = malloc(sizeof *s);
    if (s == NULL)
        return err_nomem(err, sizeof *s);
    s->xxh = XXH3_createState();
    if (s->xxh == NULL || XXH3_128bits_reset(s->xxh) != XXH_OK) {
        digest_close(&s);
        return err_set(err, ST_NOMEM, "out of memory: no state for an XXH3 digest");
    }
    *out = s;
    return ST_OK;
}

void digest_update(struct digest_state *s, const void *data, size_t size)
{
    if (size > 0)
        (void)XXH3_128bits_update(s->xxh, data, size); /* fails on a NULL argument only */
}

struct digest digest_now(const struct digest_state *s)
{
    return digest_from_hash(XXH3_128bits_digest(s->xxh));
}

void digest_close(struct digest_state **s)
{
    if (*s == NULL)
        return;
    (void)XXH3_freeState((*s)->xxh);
    free(*s);
    *s = NULL;
}

struct sha256_state {
    EVP_MD_CTX *ctx;
};

enum status sha256_open(struct sha256_state **out, struct err *err)
{
    struct sha256_state *s = malloc(sizeof *s);
    if (s == NULL)
        return err_nomem(err, sizeof *s);
    s->ctx = EVP_MD_CTX_new();
    if (s->ctx == NULL || EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL) != 1) {
        sha256_close(&s);
        return err_set(err, ST_ENVIRONMENT, "libcrypto offers no SHA-256");
    }
    *out = s;
    return ST_OK;
}

enum status sha256_update(struct sha256_state *s, const void *data, size_t size, struct err *err)
{
    if (size > 0 && EVP_DigestUpdate(s->ctx, data, size) != 1)
        return err_set(err, ST_INTERNAL, "SHA-256 of %zu bytes failed in libcrypto", size);
    return ST_OK;
}

enum status sha256_finish(struct sha256_state *s, char hex[SHA256_HEX_SIZE], struct err *err)
{
    uint8_t raw[EVP_MAX_MD_SIZE];
    unsigned raw_size = 0;
    if (EVP_DigestFinal_ex(s->ctx, raw, &raw_size) != 1 || raw_size != SHA256_SIZE)
        return err_set(err, ST_INTERNAL, "SHA-256 could not be finished in libcrypto");
    hex_of(raw, SHA256_SIZE, hex);
    return ST_OK;
}

void sha256_close(struct sha256_state **s)
{
    if (*s == NULL)
        return;
    EVP_MD_CTX_free((*s)->ctx);
    free(*s);
    *s = NULL;
}

enum status sha256_of(const void *data, size_t size, char hex[SHA256_HEX_SIZE], struct err *err)
{
    struct sha256_state *s = NULL;
    TRY(sha256_open(&s, err));
    enum status st = sha256_update(s, data, size, err);
    if (st == ST_OK)
        st = sha256_finish(s, hex, err);
    sha256_close(&s);
    return st;
}
