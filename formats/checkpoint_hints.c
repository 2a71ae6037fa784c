/* SPDX-License-Identifier: Apache-2.0 */
/* What a user who named a tensor that is not there most likely meant. */
#include "formats/checkpoint_internal.h"
#include "formats/formats_internal.h"

#include <cjson/cJSON.h>

#include <stdlib.h>
#include <string.h>

enum { N_HINTS = 3, CONFIG_MAX_SIZE = 16 << 20 };

struct hint {
    const char *name;
    unsigned score; /* low is near */
};

/* One of the names ends in ".other": a prefix such as `model.` was missed or added. */
static bool differ_by_prefix(const char *a, const char *b)
{
    size_t n = strlen(a);
    size_t m = strlen(b);
    if (n < m)
        return differ_by_prefix(b, a);
    return n > m && a[n - m - 1] == '.' && strcmp(a + n - m, b) == 0;
}

static void hint_insert(struct hint hints[N_HINTS], const char *name, unsigned score)
{
    for (size_t i = 0; i < N_HINTS; i++) {
        if (hints[i].name != NULL && hints[i].score <= score)
            continue;
        for (size_t j = N_HINTS - 1; j > i; j--)
            hints[j] = hints[j - 1];
        hints[i] = (struct hint){name, score};
        return;
    }
}

/* Prefix matches come first, shortest prefix first; then edit distance; ties in name order. */
static void nearest(const struct format_checkpoint *c, const char *name, struct hint hints[N_HINTS])
{
    enum { PREFIXES = 1000 };
    size_t n = strlen(name);
    for (size_t i = 0; i < c->n_entries; i++) {
        const char *other = c->entries[i].name;
        size_t m = strlen(other);
        size_t gap = n > m ? n - m : m - n;
        unsigned low = gap < 256 ? (unsigned)gap : 256;
        if (differ_by_prefix(name, other)) {
            hint_insert(hints, other, low);
            continue;
        }
        /* the gap of the lengths is a lower bound: no need to measure a name that cannot win */
        if (hints[N_HINTS - 1].name != NULL && hints[N_HINTS - 1].score <= PREFIXES + low)
            continue;
        hint_insert(hints, other, PREFIXES + str_distance(name, other));
    }
}

/* config.json beside the checkpoint; NULL if it is not there or not readable: it only hints. */
static struct cJSON *checkpoint_config(const struct format_checkpoint *c)
{
    struct err ignored = {0};
    struct cJSON *config = NULL;
    char *path = path_join(c->dir, "config.json");
    if (path == NULL || !file_exists(path) ||
        format_json_read(path, CONFIG_MAX_SIZE, &config, &ignored) != ST_OK)
        config = NULL;
    free(path);
    return config;
}

/* A key of config.json, at its top or in the text part of a multimodal model. */
static const cJSON *config_item(const struct cJSON *config, const char *key)
{
    if (!cJSON_IsObject(config))
        return NULL;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    const cJSON *text = cJSON_GetObjectItemCaseSensitive(config, "text_config");
    if (item == NULL && cJSON_IsObject(text))
        item = cJSON_GetObjectItemCaseSensitive(text, key);
    return item;
}

/* The embedding that a tied head shares: a matrix whose name says so. */
static const char *embedding_name(const struct format_checkpoint *c)
{
    static const char *const marks[] = {"embed_tokens.weight",
                                        "wte.weight",
                                        "word_embeddings.weight",
                                        "tok_embeddings.weight",
                                        "embeddings.weight",
                                        "embedding.weight",
                                        "emb.weight",
                                        "embed_in.weight"};
    for (size_t m = 0; m < sizeof marks / sizeof marks[0]; m++)
        for (size_t i = 0; i < c->n_entries; i++) {
            const char *name = c->entries[i].name;
            if (strcmp(name, marks[m]) == 0 || differ_by_prefix(name, marks[m]))
                return name;
        }
    return NULL;
}

/* A head is absent by design when the configuration ties it to the embedding (N17). */
static void hint_tied(const struct format_checkpoint *c, const char *name, struct bytes *out)
{
    static const char *const heads[] = {"lm_head.weight", "output.weight", "embed_out.weight",
                                        "decoder.weight"};
    bool head = false;
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        head = head || strcmp(name, heads[i]) == 0 || differ_by_prefix(name, heads[i]);
    if (!head)
        return;
    struct cJSON *config = checkpoint_config(c);
    const char *target = embedding_name(c);
    char shown[FORMAT_PRINTABLE_SIZE];
    char head_shown[FORMAT_PRINTABLE_SIZE];
    if (cJSON_IsTrue(config_item(config, "tie_word_embeddings")) && target != NULL)
        bytes_printf(out,
                     "; config.json says tie_word_embeddings: if it is the embedding, declare "
                     "\"aliases\": {\"%s\": \"%s\"}",
                     format_printable(name, head_shown), format_printable(target, shown));
    format_json_free(&config);
}

void checkpoint_hints(const struct format_checkpoint *c, const char *name, struct bytes *out)
{
    struct hint hints[N_HINTS] = {{NULL, 0}};
    char shown[FORMAT_PRINTABLE_SIZE];
    nearest(c, name, hints);
    for (size_t i = 0; i < N_HINTS && hints[i].name != NULL; i++)
        bytes_printf(out, "%s\"%s\"", i == 0 ? "; nearest names: " : ", ",
                     format_printable(hints[i].name, shown));
    hint_tied(c, name, out);
}

bool format_checkpoint_vocab_size(const struct format_checkpoint *c, uint64_t *out)
{
    struct cJSON *config = checkpoint_config(c);
    bool found = format_json_u64(config_item(config, "vocab_size"), out);
    format_json_free(&config);
    return found;
}
