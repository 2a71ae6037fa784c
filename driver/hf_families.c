/* SPDX-License-Identifier: Apache-2.0 */
/* The families: what Transformers' own classes compute before the first token meets another. */
#include "driver/hf_internal.h"

#include <string.h>

/* A linear layer whose bias depends on a flag (0: always there). */
#define LINEAR(name, out, in, bias)                                                                \
    {name ".weight", out in, 0},                                                                   \
    {                                                                                              \
        name ".bias", out, bias                                                                    \
    }
#define WEIGHT(name, shape)                                                                        \
    {                                                                                              \
        name ".weight", shape, 0                                                                   \
    }
#define BUFFER(name)                                                                               \
    {                                                                                              \
        name, "", 'x'                                                                              \
    }
#define LAYER "layers.0."
#define COUNT(list) list, sizeof list / sizeof *list

#define GATED_MLP(bias)                                                                            \
    LINEAR(LAYER "mlp.gate_proj", "i", "h", bias), LINEAR(LAYER "mlp.up_proj", "i", "h", bias),    \
        LINEAR(LAYER "mlp.down_proj", "h", "i", bias)
#define PROJECTIONS(bias)                                                                          \
    LINEAR(LAYER "self_attn.q_proj", "q", "h", bias),                                              \
        LINEAR(LAYER "self_attn.k_proj", "k", "h", bias),                                          \
        LINEAR(LAYER "self_attn.v_proj", "k", "h", bias)
#define DECODER                                                                                    \
    WEIGHT("embed_tokens", "vh"), WEIGHT(LAYER "input_layernorm", "h"),                            \
        WEIGHT(LAYER "post_attention_layernorm", "h"),                                             \
        BUFFER(LAYER "self_attn.rotary_emb.inv_freq")

/* Flag 'z' is in no family's list, so a bias under it is never there. */
static const struct hf_tensor llama[] = {
    DECODER, PROJECTIONS('a'), LINEAR(LAYER "self_attn.o_proj", "h", "q", 'a'), GATED_MLP('m')};
static const struct hf_tensor mistral[] = {DECODER, PROJECTIONS('z'),
                                           WEIGHT(LAYER "self_attn.o_proj", "hq"), GATED_MLP('z')};
static const struct hf_tensor qwen2[] = {DECODER, PROJECTIONS(0),
                                         WEIGHT(LAYER "self_attn.o_proj", "hq"), GATED_MLP('z')};
static const struct hf_tensor qwen3[] = {DECODER,
                                         PROJECTIONS('a'),
                                         LINEAR(LAYER "self_attn.o_proj", "h", "q", 'a'),
                                         WEIGHT(LAYER "self_attn.q_norm", "d"),
                                         WEIGHT(LAYER "self_attn.k_norm", "d"),
                                         GATED_MLP('z')};
static const struct hf_tensor gemma[] = {
    DECODER, PROJECTIONS('a'), LINEAR(LAYER "self_attn.o_proj", "h", "q", 'a'), GATED_MLP('z')};
#define GEMMA2                                                                                     \
    DECODER, PROJECTIONS('a'), LINEAR(LAYER "self_attn.o_proj", "h", "q", 'a'),                    \
        WEIGHT(LAYER "pre_feedforward_layernorm", "h"),                                            \
        WEIGHT(LAYER "post_feedforward_layernorm", "h"), GATED_MLP('z')
static const struct hf_tensor gemma2[] = {GEMMA2};
static const struct hf_tensor gemma3[] = {GEMMA2, WEIGHT(LAYER "self_attn.q_norm", "d"),
                                          WEIGHT(LAYER "self_attn.k_norm", "d")};
static const struct hf_tensor phi3[] = {
    DECODER, WEIGHT(LAYER "self_attn.qkv_proj", "fh"), WEIGHT(LAYER "self_attn.o_proj", "hq"),
    WEIGHT(LAYER "mlp.gate_up_proj", "uh"), WEIGHT(LAYER "mlp.down_proj", "hi")};
static const struct hf_tensor gpt_neox[] = {
    WEIGHT("embed_in", "vh"),
    LINEAR(LAYER "input_layernorm", "h", "", 0),
    LINEAR(LAYER "post_attention_layernorm", "h", "", 0),
    LINEAR(LAYER "attention.query_key_value", "f", "h", 'a'),
    LINEAR(LAYER "attention.dense", "h", "h", 'a'),
    LINEAR(LAYER "mlp.dense_h_to_4h", "i", "h", 0),
    LINEAR(LAYER "mlp.dense_4h_to_h", "h", "i", 0),
    BUFFER(LAYER "attention.bias"),
    BUFFER(LAYER "attention.masked_bias"),
    BUFFER(LAYER "attention.rotary_emb.inv_freq")};
static const struct hf_tensor modernbert[] = {
    WEIGHT("embeddings.tok_embeddings", "vh"), LINEAR("embeddings.norm", "h", "", 'n'),
    LINEAR(LAYER "attn.Wqkv", "f", "h", 'a'),  LINEAR(LAYER "attn.Wo", "h", "h", 'a'),
    LINEAR(LAYER "mlp_norm", "h", "", 'n'),    LINEAR(LAYER "mlp.Wi", "u", "h", 'm'),
    LINEAR(LAYER "mlp.Wo", "h", "i", 'm')};
#define ESM_LAYER "encoder.layer.0."
static const struct hf_tensor esm[] = {
    WEIGHT("embeddings.word_embeddings", "vh"),
    {"embeddings.layer_norm.weight", "h", 'e'},
    {"embeddings.layer_norm.bias", "h", 'e'},
    BUFFER("embeddings.position_ids"),
    BUFFER("embeddings.position_embeddings.weight"),
    LINEAR(ESM_LAYER "attention.LayerNorm", "h", "", 0),
    LINEAR(ESM_LAYER "attention.self.query", "q", "h", 0),
    LINEAR(ESM_LAYER "attention.self.key", "k", "h", 0),
    LINEAR(ESM_LAYER "attention.self.value", "k", "h", 0),
    LINEAR(ESM_LAYER "attention.output.dense", "h", "q", 0),
    LINEAR(ESM_LAYER "LayerNorm", "h", "", 0),
    LINEAR(ESM_LAYER "intermediate.dense", "i", "h", 0),
    LINEAR(ESM_LAYER "output.dense", "h", "i", 0),
    BUFFER(ESM_LAYER "attention.self.rotary_embeddings.inv_freq")};

static enum status esm_check(struct hf_config *c, struct err *err)
{
    const char *position = "absolute"; /* EsmConfig's default */
    bool dropout = false, folding = false;
    const struct cJSON *v = json_value_get(c->json, "position_embedding_type");
    if (json_value_string(v) != NULL)
        position = json_value_string(v);
    if (json_value_bool(json_value_get(c->json, "token_dropout"), &dropout) && dropout)
        return err_set(
            err, ST_STRUCTURE,
            "%s: token_dropout: every embedding is scaled by the share of mask tokens in "
            "its sequence, also in evaluation, so it is not a function of the token",
            c->path);
    if (strcmp(position, "absolute") == 0)
        return err_set(err, ST_STRUCTURE,
                       "%s: position_embedding_type: absolute positions are added to the embedding "
                       "before the first norm, so the first stage is not a function of the token",
                       c->path);
    if (strcmp(position, "rotary") != 0)
        return err_set(err, ST_STRUCTURE,
                       "%s: position_embedding_type: expected \"rotary\", found \"%.64s\"", c->path,
                       position);
    if (json_value_bool(json_value_get(c->json, "is_folding_model"), &folding) && folding)
        return err_set(err, ST_STRUCTURE, "%s: is_folding_model: folding models are not imported",
                       c->path);
    return ST_OK;
}

#define DECODER_STAGE                                                                              \
    .prefix = "model.", .guards = {"embed_tokens.", LAYER}, .causal_head = "lm_head.weight",       \
    .embedding = "embed_tokens", .norm = LAYER "input_layernorm", .eps_key = "rms_norm_eps",       \
    .has_kv_heads = true
#define DECODER_CLASSES "ForCausalLM|Model|ForSequenceClassification|ForTokenClassification"
#define SEPARATE                                                                                   \
    .q = LAYER "self_attn.q_proj", .k = LAYER "self_attn.k_proj", .v = LAYER "self_attn.v_proj"
#define HEAD_NORMS .q_norm = LAYER "self_attn.q_norm", .k_norm = LAYER "self_attn.k_norm"
#define ROTARY "Rotary positions belong to q and k after these tables."
#define ATTENTION_BIAS                                                                             \
    {                                                                                              \
        'a', "attention_bias", false                                                               \
    }

const struct hf_family hf_families[] = {
    {.model_type = "llama",
     .class_name = "Llama",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     SEPARATE,
     .tensors = COUNT(llama),
     .head_dim = HEAD_DIM_OPTIONAL,
     .flags = {ATTENTION_BIAS, {'m', "mlp_bias", false}},
     .comment = ROTARY},
    {.model_type = "mistral",
     .class_name = "Mistral",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     SEPARATE,
     .tensors = COUNT(mistral),
     .needs_kv_heads = true,
     .head_dim = HEAD_DIM_OPTIONAL,
     .comment = ROTARY},
    {.model_type = "qwen2",
     .class_name = "Qwen2",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     SEPARATE,
     .tensors = COUNT(qwen2),
     .needs_kv_heads = true,
     .head_dim = HEAD_DIM_OPTIONAL,
     .comment = ROTARY},
    {.model_type = "qwen3",
     .class_name = "Qwen3",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     SEPARATE,
     HEAD_NORMS,
     .tensors = COUNT(qwen3),
     .needs_kv_heads = true,
     .head_dim = HEAD_DIM_PRESET,
     .head_dim_preset = 128,
     .flags = {ATTENTION_BIAS},
     .comment = "q and k are normalised head by head.  " ROTARY},
    {.model_type = "gemma",
     .class_name = "Gemma",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     SEPARATE,
     .tensors = COUNT(gemma),
     .needs_kv_heads = true,
     .head_dim = HEAD_DIM_PRESET,
     .head_dim_preset = 256,
     .flags = {ATTENTION_BIAS},
     .tied_by_default = true,
     .norm_kind = NORM_GEMMA_RMS,
     .scaled_embedding = true,
     .comment = "The residual is the scaled embedding.  " ROTARY},
    {.model_type = "gemma2",
     .class_name = "Gemma2",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     SEPARATE,
     .tensors = COUNT(gemma2),
     .needs_kv_heads = true,
     .head_dim = HEAD_DIM_PRESET,
     .head_dim_preset = 256,
     .flags = {ATTENTION_BIAS},
     .tied_by_default = true,
     .norm_kind = NORM_GEMMA_RMS,
     .scaled_embedding = true,
     .comment = "The residual is the scaled embedding.  " ROTARY},
    {.model_type = "gemma3_text",
     .class_name = "Gemma3",
     .suffixes = "ForCausalLM|TextModel",
     DECODER_STAGE,
     SEPARATE,
     HEAD_NORMS,
     .tensors = COUNT(gemma3),
     .needs_kv_heads = true,
     .head_dim = HEAD_DIM_PRESET,
     .head_dim_preset = 256,
     .flags = {ATTENTION_BIAS},
     .tied_by_default = true,
     .norm_kind = NORM_GEMMA_RMS,
     .scaled_embedding = true,
     .comment =
         "The residual is the scaled embedding; q and k are normalised head by head.  " ROTARY},
    {.model_type = "phi3",
     .class_name = "Phi3",
     .suffixes = DECODER_CLASSES,
     DECODER_STAGE,
     .tensors = COUNT(phi3),
     .head_dim = HEAD_DIM_OPTIONAL,
     .fused = LAYER "self_attn.qkv_proj",
     .fused_mode = FUSED_BLOCKS,
     .comment = ROTARY},
    {.model_type = "gpt_neox",
     .class_name = "GPTNeoX",
     .suffixes = DECODER_CLASSES,
     .prefix = "gpt_neox.",
     .tensors = COUNT(gpt_neox),
     .guards = {"embed_in.", LAYER},
     .eps_key = "layer_norm_eps",
     .flags = {{'a', "attention_bias", true}, {'p', "use_parallel_residual", true}},
     .causal_head = "embed_out.weight",
     .embedding = "embed_in",
     .norm = LAYER "input_layernorm",
     .norm_kind = NORM_LAYER,
     .fused = LAYER "attention.query_key_value",
     .fused_mode = FUSED_INTERLEAVED,
     .mlp_norm = LAYER "post_attention_layernorm",
     .mlp_up = LAYER "mlp.dense_h_to_4h",
     .mlp_down = LAYER "mlp.dense_4h_to_h",
     .comment = ROTARY},
    {.model_type = "modernbert",
     .class_name = "ModernBert",
     .suffixes = "ForMaskedLM|Model|ForSequenceClassification|ForTokenClassification",
     .prefix = "model.",
     .tensors = COUNT(modernbert),
     .guards = {"embeddings.", LAYER},
     .eps_key = "norm_eps",
     .flags = {ATTENTION_BIAS, {'m', "mlp_bias", false}, {'n', "norm_bias", false}},
     .tied_by_default = true,
     .masked_head = "decoder.weight",
     .embedding = "embeddings.tok_embeddings",
     .embedding_norm = "embeddings.norm",
     .norm_kind = NORM_LAYER,
     .fused = LAYER "attn.Wqkv",
     .fused_mode = FUSED_BLOCKS,
     .comment = "The residual is the normalised embedding; the first layer has no norm of its own. "
                " " ROTARY},
    {.model_type = "esm",
     .class_name = "Esm",
     .suffixes = "ForMaskedLM|Model|ForSequenceClassification|ForTokenClassification",
     .prefix = "esm.",
     .tensors = COUNT(esm),
     .guards = {"embeddings.", ESM_LAYER},
     .eps_key = "layer_norm_eps",
     .flags = {{'e', "emb_layer_norm_before", false}},
     .tied_by_default = true,
     .masked_head = "lm_head.decoder.weight",
     .embedding = "embeddings.word_embeddings",
     .embedding_norm = "embeddings.layer_norm",
     .norm = ESM_LAYER "attention.LayerNorm",
     .norm_kind = NORM_LAYER,
     .q = ESM_LAYER "attention.self.query",
     .k = ESM_LAYER "attention.self.key",
     .v = ESM_LAYER "attention.self.value",
     .check = esm_check,
     .comment =
         "Of unpadded tokens.  The scale of q (head_dim^-0.5) and rotary positions come after "
         "these tables."},
};
const size_t hf_n_families = sizeof hf_families / sizeof *hf_families;

const struct hf_family *hf_family_find(const char *model_type)
{
    for (size_t i = 0; i < hf_n_families; i++)
        if (strcmp(hf_families[i].model_type, model_type) == 0)
            return &hf_families[i];
    return NULL;
}

const char *hf_refusal(const char *model_type)
{
    static const char *const absolute[] = {
        "gpt2",   "bert",  "roberta", "xlm-roberta", "camembert",    "distilbert", "electra",
        "albert", "opt",   "gpt_neo", "gpt_bigcode", "openai-gpt",   "whisper",    "bart",
        "biogpt", "ernie", "mpnet",   "layoutlm",    "data2vec-text"};
    static const char *const mixing[] = {"rwkv", "mamba", "mamba2", "falcon_mamba"};
    for (size_t i = 0; i < sizeof absolute / sizeof *absolute; i++)
        if (strcmp(absolute[i], model_type) == 0)
            return "absolute positions are added to the embedding before the first norm, so the "
                   "first stage is a function of token and position, not of the token alone";
    for (size_t i = 0; i < sizeof mixing / sizeof *mixing; i++)
        if (strcmp(mixing[i], model_type) == 0)
            return "the first layer mixes neighbouring tokens (token shift or convolution); what "
                   "is "
                   "token-local before it needs a spec of its own";
    return NULL;
}
