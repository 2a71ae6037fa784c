/* SPDX-License-Identifier: Apache-2.0 */
/** The golden specs are an older spelling of the same blocks: no head, the block's keys at the top,
 *  a lookup's output as "name", gelu with "approximate", defaults for eps. */
#ifndef TESTS_FORMATS_GOLDEN_TRANSLATE_H
#define TESTS_FORMATS_GOLDEN_TRANSLATE_H

#include <cjson/cJSON.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static inline void golden_translate_layer(cJSON *layer, double rms_eps)
{
    const cJSON *op = cJSON_GetObjectItemCaseSensitive(layer, "op");
    if (!cJSON_IsString(op))
        return;
    const char *name = op->valuestring;
    if (strcmp(name, "gelu") == 0) {
        const cJSON *how = cJSON_GetObjectItemCaseSensitive(layer, "approximate");
        bool is_tanh = how != NULL && strcmp(how->valuestring, "tanh") == 0;
        if (how != NULL && !is_tanh && strcmp(how->valuestring, "none") != 0)
            return;
        cJSON_DeleteItemFromObjectCaseSensitive(layer, "approximate");
        cJSON_ReplaceItemInObjectCaseSensitive(
            layer, "op", cJSON_CreateString(is_tanh ? "gelu_tanh" : "gelu_erf"));
        return;
    }
    double eps = strcmp(name, "layer_norm") == 0     ? 1e-5
                 : strcmp(name, "l2_normalize") == 0 ? 1e-12
                 : strcmp(name, "rms_norm") == 0     ? rms_eps
                                                     : 0;
    if (eps != 0 && cJSON_GetObjectItemCaseSensitive(layer, "eps") == NULL)
        cJSON_AddNumberToObject(layer, "eps", eps);
}

static inline void golden_translate_layers(cJSON *layers, double rms_eps)
{
    for (cJSON *layer = layers == NULL ? NULL : layers->child; layer != NULL; layer = layer->next)
        golden_translate_layer(layer, rms_eps);
}

/** Text of the spec in today's spelling (cJSON_free); NULL if `text` is no JSON.
 *  @param[in] rms_eps  what an rms_norm without eps means: the storage dtype's machine epsilon */
static inline char *golden_translate(const char *text, double rms_eps)
{
    static const char *const block_keys[] = {"kind",     "embedding", "layers", "prefix",
                                             "branches", "residual",  "linear", "decision"};
    cJSON *spec = cJSON_Parse(text), *block = cJSON_CreateObject();
    if (spec == NULL || block == NULL) {
        cJSON_Delete(spec);
        cJSON_Delete(block);
        return NULL;
    }
    for (size_t i = 0; i < sizeof block_keys / sizeof block_keys[0]; i++) {
        cJSON *item = cJSON_DetachItemFromObjectCaseSensitive(spec, block_keys[i]);
        if (item != NULL)
            cJSON_AddItemToObject(block, block_keys[i], item);
    }
    cJSON *name = cJSON_DetachItemFromObjectCaseSensitive(spec, "name"),
          *eps = cJSON_DetachItemFromObjectCaseSensitive(spec, "eps");
    if (name != NULL)
        cJSON_AddItemToObject(block, "output", name);
    if (eps != NULL)
        cJSON_AddItemToObject(block, "normalize_eps", eps);
    golden_translate_layers(cJSON_GetObjectItemCaseSensitive(block, "layers"), rms_eps);
    golden_translate_layers(cJSON_GetObjectItemCaseSensitive(block, "prefix"), rms_eps);
    cJSON *branches = cJSON_GetObjectItemCaseSensitive(block, "branches");
    for (cJSON *b = branches == NULL ? NULL : branches->child; b != NULL; b = b->next)
        golden_translate_layers(b, rms_eps);
    cJSON_AddNumberToObject(spec, "tokentab", 1);
    cJSON_AddStringToObject(spec, "mode", "eval");
    cJSON_AddStringToObject(spec, "input_contract", "token_indices_only");
    cJSON_AddItemToObject(spec, "block", block);
    char *out = cJSON_Print(spec);
    cJSON_Delete(spec);
    return out;
}

#endif
