/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/tools/make_checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum preset { NOVOMOLGEN, GENE, RWKV, FOUR_TOKEN, N_PRESETS };

static const struct {
    const char *name;
    uint64_t vocab, width, out_width;
} presets[N_PRESETS] = {
    [NOVOMOLGEN] = {"novomolgen", 84, 512, 512}, /* 84*512 + 512 + 3*512*512 = 829,952 values */
    [GENE] = {"gene", 19790, 5120, 1024},
    [RWKV] = {"rwkv", 50277, 768, 768},
    [FOUR_TOKEN] = {"four-token", 4, 2, 2},
};

static enum preset find_preset(const char *name)
{
    enum preset p = NOVOMOLGEN;
    while (p < N_PRESETS && strcmp(presets[p].name, name) != 0)
        p++;
    return p;
}

static uint64_t or_default(uint64_t given, uint64_t value)
{
    return given == 0 ? value : given;
}

static enum status novomolgen(struct make_options *o, uint64_t vocab, uint64_t width, uint64_t out,
                              struct err *err)
{
    TRY(make_add(o, "model.embed_tokens.weight", vocab, width, 0.02, 0, err));
    TRY(make_add(o, "model.layers.0.input_layernorm.weight", width, 0, 0.05, 1, err));
    TRY(make_add(o, "model.layers.0.self_attn.q_proj.weight", out, width, 0.04, 0, err));
    TRY(make_add(o, "model.layers.0.self_attn.k_proj.weight", out, width, 0.04, 0, err));
    return make_add(o, "model.layers.0.self_attn.v_proj.weight", out, width, 0.04, 0, err);
}

static enum status gene(struct make_options *o, uint64_t vocab, uint64_t width, uint64_t out,
                        struct err *err)
{
    TRY(make_add(o, "gene_embedding.weight", vocab, width, 1, 0, err));
    TRY(make_add(o, "gene_encoder.weight", out, width, 0.014, 0, err));
    return make_add(o, "gene_encoder.bias", out, 0, 0.1, 0, err);
}

static enum status rwkv(struct make_options *o, uint64_t vocab, uint64_t width, struct err *err)
{
    TRY(make_add(o, "emb.weight", vocab, width, 0.1, 0, err));
    TRY(make_add(o, "blocks.0.ln0.weight", width, 0, 0.05, 1, err));
    return make_add(o, "blocks.0.ln0.bias", width, 0, 0.05, 0, err);
}

static enum status set_values(struct make_options *o, const double *values, size_t n,
                              struct err *err)
{
    struct make_tensor *t = &o->tensors[o->n_tensors - 1];
    t->values = calloc(n, sizeof *values);
    if (t->values == NULL)
        return err_nomem(err, n * sizeof *values);
    memcpy(t->values, values, n * sizeof *values);
    t->n_values = n;
    return ST_OK;
}

/* relu(e W^T + b), by hand: [3.5 0] [7.5 0] [0 0] [0 2.5]. */
static enum status four_token(struct make_options *o, struct err *err)
{
    const double embedding[] = {1, 2, 3, 4, -1, 0, 0.5, -2};
    const double weight[] = {1, 1, 1, -1};
    const double bias[] = {0.5, 0};
    TRY(make_add(o, "embedding.weight", 4, 2, 0, 0, err));
    TRY(set_values(o, embedding, 8, err));
    TRY(make_add(o, "linear.weight", 2, 2, 0, 0, err));
    TRY(set_values(o, weight, 4, err));
    TRY(make_add(o, "linear.bias", 2, 0, 0, 0, err));
    return set_values(o, bias, 2, err);
}

enum status make_preset(struct make_options *o, struct err *err)
{
    enum preset p = find_preset(o->preset);
    if (p == N_PRESETS)
        return err_set(err, ST_USAGE, "--preset %s: expected novomolgen, gene, rwkv or four-token",
                       o->preset);
    uint64_t vocab = or_default(o->vocab, presets[p].vocab);
    uint64_t width = or_default(o->width, presets[p].width);
    uint64_t out = or_default(o->out_width, presets[p].out_width);
    switch (p) {
    case NOVOMOLGEN:
        return novomolgen(o, vocab, width, out, err);
    case GENE:
        return gene(o, vocab, width, out, err);
    case RWKV:
        return rwkv(o, vocab, width, err);
    case FOUR_TOKEN:
        if (vocab == 4 && width == 2 && out == 2)
            return four_token(o, err);
        return err_set(err, ST_USAGE, "--preset four-token has one size");
    case N_PRESETS:
        break;
    }
    return ST_INTERNAL;
}

/* ---- specs --------------------------------------------------------------------------------- */

static void begin_layer(struct format_writer *w, const char *op, const char *weight,
                        const char *bias)
{
    format_write_object(w, NULL);
    format_write_string(w, "op", op);
    if (weight != NULL)
        format_write_string(w, "weight", weight);
    if (bias != NULL)
        format_write_string(w, "bias", bias);
}

static void begin_block(struct format_writer *w, const char *kind, const char *name,
                        const char *embedding)
{
    format_write_object(w, "block");
    format_write_string(w, "kind", kind);
    format_write_string(w, "name", name);
    format_write_object(w, "embedding");
    format_write_string(w, "weight", embedding);
    format_write_end_object(w);
}

static void novomolgen_block(struct format_writer *w)
{
    static const char *const names[] = {"q", "k", "v"};
    begin_block(w, "fanout", "first_layer", "model.embed_tokens.weight");
    format_write_array(w, "prefix");
    begin_layer(w, "float32_rms_norm", "model.layers.0.input_layernorm.weight", NULL);
    format_write_double(w, "eps", 1e-6);
    format_write_end_object(w);
    format_write_end_array(w);
    format_write_object(w, "branches");
    for (size_t i = 0; i < 3; i++) {
        char weight[MAKE_NAME_SIZE] = "model.layers.0.self_attn.?_proj.weight";
        *strchr(weight, '?') = names[i][0];
        format_write_array(w, names[i]);
        begin_layer(w, "linear", weight, NULL);
        format_write_end_object(w);
        format_write_end_array(w);
    }
    format_write_end_object(w);
    format_write_string(w, "residual", "residual");
    format_write_end_object(w);
    format_write_array(w, "row_count_profiles");
    for (uint64_t i = 0; i < 2; i++) {
        format_write_object(w, NULL);
        format_write_u64(w, "max_rows", i == 0 ? 1 : 15);
        format_write_u64(w, "evaluation_rows", i + 1);
        format_write_end_object(w);
    }
    format_write_end_array(w);
}

static void lookup_block(struct format_writer *w, enum preset p)
{
    static const char *const embeddings[] = {
        [GENE] = "gene_embedding.weight", [RWKV] = "emb.weight", [FOUR_TOKEN] = "embedding.weight"};
    begin_block(w, "lookup",
                p == GENE   ? "gene_encoder"
                : p == RWKV ? "ln0"
                            : "four_token",
                embeddings[p]);
    format_write_array(w, "layers");
    if (p == RWKV) {
        begin_layer(w, "layer_norm", "blocks.0.ln0.weight", "blocks.0.ln0.bias");
        format_write_double(w, "eps", 1e-5);
    } else if (p == GENE) {
        begin_layer(w, "linear", "gene_encoder.weight", "gene_encoder.bias");
    } else {
        begin_layer(w, "linear", "linear.weight", "linear.bias");
        format_write_end_object(w);
        begin_layer(w, "relu", NULL, NULL);
    }
    format_write_end_object(w);
    format_write_end_array(w);
    format_write_end_object(w);
}

/* The checkpoint as the spec's folder sees it. */
static enum status checkpoint_path(const struct make_options *o, const char **path, struct err *err)
{
    char *of_spec = path_dir(o->spec);
    char *of_out = path_dir(o->out);
    enum status st = ST_OK;
    if (of_spec == NULL || of_out == NULL)
        st = err_nomem(err, strlen(o->spec));
    else if (strcmp(of_spec, of_out) == 0)
        *path = path_base(o->out);
    else if (o->out[0] == '/')
        *path = o->out;
    else
        st = err_set(err, ST_USAGE, "--spec %s: expected the folder of --out, or an absolute --out",
                     o->spec);
    free(of_spec);
    free(of_out);
    return st;
}

enum status make_spec(const struct make_options *o, struct err *err)
{
    struct format_writer w = {.pretty = true};
    const char *checkpoint = NULL;
    TRY(checkpoint_path(o, &checkpoint, err));
    enum preset p = find_preset(o->preset);
    format_write_object(&w, NULL);
    format_write_u64(&w, "tokentab", 1);
    format_write_string(&w, "checkpoint", checkpoint);
    format_write_string(&w, "mode", "eval");
    format_write_string(&w, "input_contract", "token_indices_only");
    if (p == NOVOMOLGEN)
        novomolgen_block(&w);
    else
        lookup_block(&w, p);
    format_write_u64(&w, "bulk_rows", o->bulk_rows);
    format_write_u64(&w, "validation_rows", o->validation_rows);
    format_write_object(&w, "tolerance");
    format_write_double(&w, "absolute", 1e-5);
    format_write_double(&w, "relative", 1e-5);
    format_write_end_object(&w);
    format_write_string(&w, "arithmetic", o->arithmetic);
    format_write_string(&w, "storage", o->storage);
    format_write_end_object(&w);
    format_write_finish(&w);
    enum status st = w.out.failed ? err_nomem(err, w.out.size)
                                  : file_publish(o->spec, w.out.data, w.out.size, err);
    bytes_free(&w.out);
    return st;
}
