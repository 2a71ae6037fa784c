/* SPDX-License-Identifier: Apache-2.0 */
/* The spec of a snapshot, written out in full so that it can be read and changed. */
#include "driver/hf_internal.h"

#include <math.h>
#include <stdlib.h>

struct spec_writer {
    const struct hf_snapshot *s;
    const struct hf_config *c;
    struct format_writer *w;
};

static void write_tensor(const struct spec_writer *x, const char *key, const char *name,
                         const char *suffix)
{
    char full[HF_NAME_SIZE];
    (void)snprintf(full, sizeof full, "%s%s%s", x->c->prefix, name, suffix);
    format_write_string(x->w, key, full);
}

/* groups: heads that are normalised one by one; 1: the whole row. */
static void write_norm(const struct spec_writer *x, const char *name, uint64_t groups)
{
    static const char *const ops[] = {"float32_rms_norm", "rms_norm", "layer_norm"};
    enum hf_norm kind = x->c->family->norm_kind;
    format_write_object(x->w, NULL);
    format_write_string(x->w, "op", ops[kind]);
    write_tensor(x, "weight", name, ".weight");
    if (hf_config_has_name(x->c, name, ".bias"))
        write_tensor(x, "bias", name, ".bias");
    format_write_double(x->w, "eps", x->c->eps);
    if (kind == NORM_GEMMA_RMS) {
        /* 1 + w is added in float32 and the product rounded once, whatever the dtype. */
        format_write_double(x->w, "weight_offset", 1);
        format_write_string(x->w, "weight_offset_dtype", x->s->dtype == DT_F64 ? "F64" : "F32");
    }
    if (groups > 1)
        format_write_u64(x->w, "groups", groups);
    format_write_end_object(x->w);
}

/* part: "q", "k" or "v" of a fused matrix; NULL: all of it. */
static void write_linear(const struct spec_writer *x, const char *name, const char *part)
{
    format_write_object(x->w, NULL);
    format_write_string(x->w, "op", "linear");
    write_tensor(x, "weight", name, ".weight");
    if (hf_config_has_name(x->c, name, ".bias"))
        write_tensor(x, "bias", name, ".bias");
    format_write_string(x->w, "orientation", "out_in");
    if (part != NULL) {
        format_write_object(x->w, "split");
        format_write_string(x->w, "mode",
                            x->c->family->fused_mode == FUSED_BLOCKS ? "blocks"
                                                                     : "per_head_interleaved");
        format_write_u64(x->w, "heads", x->c->heads);
        format_write_u64(x->w, "kv_heads", x->c->kv_heads);
        format_write_u64(x->w, "head_dim", x->c->head_dim);
        format_write_string(x->w, "part", part);
        format_write_end_object(x->w);
    }
    format_write_end_object(x->w);
}

static bool is_parallel(const struct hf_config *c)
{
    return c->family->mlp_up != NULL && c->flags['p' - 'a'];
}

/* Number of prefix layers the residual comes after: what the model adds the attention to. */
static unsigned write_prefix(const struct spec_writer *x)
{
    const struct hf_family *f = x->c->family;
    unsigned after = 0;
    format_write_array(x->w, "prefix");
    if (f->scaled_embedding) {
        format_write_object(x->w, NULL);
        format_write_string(x->w, "op", "scale");
        format_write_double(x->w, "value", sqrt((double)x->c->hidden));
        format_write_string(x->w, "value_dtype", dtype_name(x->s->dtype));
        format_write_end_object(x->w);
        after++;
    }
    if (f->embedding_norm != NULL && hf_config_has_name(x->c, f->embedding_norm, ".weight")) {
        write_norm(x, f->embedding_norm, 1);
        after++;
    }
    if (f->norm != NULL && !is_parallel(x->c))
        write_norm(x, f->norm, 1);
    format_write_end_array(x->w);
    return after;
}

static void write_branches(const struct spec_writer *x)
{
    const struct hf_family *f = x->c->family;
    const char *const names[] = {"q", "k", "v"};
    const char *const matrices[] = {f->q, f->k, f->v};
    const char *const norms[] = {f->q_norm, f->k_norm, NULL};
    const uint64_t heads[] = {x->c->heads, x->c->kv_heads, 1};
    format_write_object(x->w, "branches");
    for (size_t i = 0; i < 3; i++) {
        format_write_array(x->w, names[i]);
        if (is_parallel(x->c))
            write_norm(x, f->norm, 1);
        write_linear(x, f->fused != NULL ? f->fused : matrices[i],
                     f->fused != NULL ? names[i] : NULL);
        if (norms[i] != NULL)
            write_norm(x, norms[i], heads[i]);
        format_write_end_array(x->w);
    }
    if (is_parallel(x->c)) {
        format_write_array(x->w, "mlp");
        write_norm(x, f->mlp_norm, 1);
        write_linear(x, f->mlp_up, NULL);
        format_write_object(x->w, NULL);
        format_write_string(x->w, "op", x->c->activation);
        format_write_end_object(x->w);
        write_linear(x, f->mlp_down, NULL);
        format_write_end_array(x->w);
    }
    format_write_end_object(x->w);
}

static void write_block(const struct spec_writer *x)
{
    const struct hf_family *f = x->c->family;
    format_write_object(x->w, "block");
    format_write_string(x->w, "kind", "fanout");
    format_write_string(x->w, "name", "first_layer");
    format_write_object(x->w, "embedding");
    write_tensor(x, "weight", f->embedding, ".weight");
    format_write_end_object(x->w);
    unsigned after = write_prefix(x);
    write_branches(x);
    if (after == 0) {
        format_write_string(x->w, "residual", "residual");
    } else {
        format_write_object(x->w, "residual");
        format_write_string(x->w, "name", "residual");
        format_write_u64(x->w, "after", after);
        format_write_end_object(x->w);
    }
    if (x->c->tied && x->c->head != NULL) {
        /* The head reads the embedding too: it stays, and counts. */
        format_write_array(x->w, "external_consumers");
        if (x->s->aliased)
            format_write_string(x->w, NULL, x->c->head);
        else
            write_tensor(x, NULL, f->embedding, ".weight");
        format_write_end_array(x->w);
    }
    format_write_end_object(x->w);
}

static void write_comment(const struct spec_writer *x)
{
    char *text = str_printf(
        "First stage of %s (%s), per token.  %s%s", x->c->architecture, x->c->family->model_type,
        x->c->family->comment,
        is_parallel(x->c) ? "  The residual is parallel: mlp is the whole first MLP." : "");
    if (text == NULL)
        x->w->out.failed = true;
    else
        format_write_string(x->w, "comment", text);
    free(text);
}

/* A unit in the last place of a half is far above the default, and row counts differ by one. */
static void write_tolerance(const struct spec_writer *x)
{
    double absolute = 1e-5, relative = 1e-5;
    if (x->s->dtype == DT_BF16) {
        absolute = 0.125;
        relative = 0.008;
    } else if (x->s->dtype == DT_F16) {
        absolute = 0.016;
        relative = 0.001;
    }
    format_write_object(x->w, "tolerance");
    format_write_double(x->w, "absolute", absolute);
    format_write_double(x->w, "relative", relative);
    format_write_end_object(x->w);
}

void hf_spec_write(const struct hf_snapshot *s, const char *checkpoint,
                   const struct hf_provenance *provenance, size_t n_provenance,
                   struct format_writer *w)
{
    const struct spec_writer x = {.s = s, .c = s->config, .w = w};
    format_write_object(w, NULL);
    format_write_u64(w, "tokentab", 1);
    write_comment(&x);
    format_write_string(w, "checkpoint", checkpoint);
    format_write_string(w, "mode", "eval");
    format_write_string(w, "input_contract", "token_indices_only");
    if (s->aliased) {
        char full[HF_NAME_SIZE];
        (void)snprintf(full, sizeof full, "%s%s.weight", s->config->prefix,
                       s->config->family->embedding);
        format_write_object(w, "aliases");
        format_write_string(w, full, s->config->head);
        format_write_end_object(w);
    }
    write_block(&x);
    format_write_array(w, "row_count_profiles");
    format_write_end_array(w);
    format_write_u64(w, "bulk_rows", 1024);
    format_write_u64(w, "validation_rows", 257);
    write_tolerance(&x);
    format_write_string(w, "arithmetic", "library");
    format_write_string(w, "storage", "must_shrink");
    format_write_object(w, "provenance");
    for (size_t i = 0; i < n_provenance; i++)
        format_write_string(w, provenance[i].name, provenance[i].value);
    format_write_end_object(w);
    format_write_end_object(w);
    format_write_finish(w);
}
