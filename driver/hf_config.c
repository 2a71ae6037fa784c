/* SPDX-License-Identifier: Apache-2.0 */
/* config.json of a snapshot. */
#include "driver/hf_internal.h"

#include <math.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 16 << 20 };
/* Counts fit an int, since BLAS takes them. */
static const uint64_t CONFIG_MAX_COUNT = 2147483647;

void hf_config_free(struct hf_config *c)
{
    format_json_free(&c->json);
}

bool hf_config_has(const struct hf_config *c, const struct hf_tensor *t)
{
    if (t->when == 0)
        return true;
    return t->when >= 'a' && t->when <= 'z' && t->when != 'x' && c->flags[t->when - 'a'];
}

bool hf_config_has_name(const struct hf_config *c, const char *name, const char *suffix)
{
    size_t size = strlen(name);
    for (size_t i = 0; i < c->family->n_tensors; i++) {
        const struct hf_tensor *t = &c->family->tensors[i];
        if (strncmp(t->name, name, size) == 0 && strcmp(t->name + size, suffix) == 0)
            return hf_config_has(c, t);
    }
    return false;
}

/* ---- values ---------------------------------------------------------------------------------- */

static enum status value_wrong(const struct hf_config *c, const char *key, const char *expected,
                               struct err *err)
{
    char shown[JSON_SHOWN_SIZE];
    return err_set(err, ST_SPEC, "%s: %s: expected %s, found %s", c->path, key, expected,
                   json_value_shown(json_value_get(c->json, key), shown));
}

/* Absent or null? */
static bool is_unset(const struct hf_config *c, const char *key)
{
    return json_value_kind(json_value_get(c->json, key)) <= JSON_NULL;
}

/* A count; `preset` stands where the key is absent or null, 0: it may not be. */
static enum status read_count(const struct hf_config *c, const char *key, uint64_t preset,
                              uint64_t *out, struct err *err)
{
    const struct cJSON *v = json_value_get(c->json, key);
    *out = preset;
    if (is_unset(c, key) && preset > 0)
        return ST_OK;
    if (json_value_kind(v) != JSON_NUMBER || !json_value_u64(v, out) || *out == 0 ||
        *out > CONFIG_MAX_COUNT)
        return value_wrong(c, key, "a whole number from 1 to 2147483647", err);
    return ST_OK;
}

static enum status read_flag(const struct hf_config *c, const char *key, bool preset, bool *out,
                             struct err *err)
{
    *out = preset;
    if (is_unset(c, key) || json_value_bool(json_value_get(c->json, key), out))
        return ST_OK;
    return value_wrong(c, key, "true or false", err);
}

/* ---- which model ----------------------------------------------------------------------------- */

static enum status unknown_model(const struct hf_config *c, const char *model_type, struct err *err)
{
    struct bytes list = {0};
    for (size_t i = 0; i < hf_n_families; i++)
        bytes_printf(&list, "%s%s", i == 0 ? "" : ", ", hf_families[i].model_type);
    bytes_put_u8(&list, 0);
    enum status st = err_set(err, ST_STRUCTURE,
                             "%s: model_type: expected one of %s, found \"%.64s\"; its spec has to "
                             "be written by hand",
                             c->path, list.failed ? "" : (const char *)list.data, model_type);
    bytes_free(&list);
    return st;
}

/* Is `architecture` class_name + one of the suffixes?  *suffix points to what is behind the class
 * name. */
static bool architecture_known(const struct hf_family *f, const char *architecture,
                               const char **suffix)
{
    size_t class_size = strlen(f->class_name);
    if (strncmp(architecture, f->class_name, class_size) != 0)
        return false;
    *suffix = architecture + class_size;
    size_t n = strlen(*suffix);
    for (const char *p = f->suffixes; p != NULL;) {
        const char *end = strchr(p, '|');
        size_t size = end == NULL ? strlen(p) : (size_t)(end - p);
        if (size == n && strncmp(p, *suffix, n) == 0)
            return true;
        p = end == NULL ? NULL : end + 1;
    }
    return false;
}

static enum status read_architecture(struct hf_config *c, struct err *err)
{
    const struct hf_family *f = c->family;
    const struct cJSON *list = json_value_get(c->json, "architectures");
    const char *suffix = "";
    if (json_value_kind(list) != JSON_ARRAY || json_value_count(list) != 1 ||
        json_value_string(json_value_first(list)) == NULL)
        return value_wrong(c, "architectures", "a list with one name", err);
    c->architecture = json_value_string(json_value_first(list));
    if (!architecture_known(f, c->architecture, &suffix))
        return err_set(err, ST_STRUCTURE,
                       "%s: architectures: expected %s followed by %s for model_type %s, found "
                       "\"%.64s\"; no code of a snapshot is run",
                       c->path, f->class_name, f->suffixes, f->model_type, c->architecture);
    size_t n = strlen(suffix);
    bool is_base = n >= 5 && strcmp(suffix + n - 5, "Model") == 0;
    c->prefix = is_base ? "" : f->prefix;
    c->head = strcmp(suffix, "ForCausalLM") == 0   ? f->causal_head
              : strcmp(suffix, "ForMaskedLM") == 0 ? f->masked_head
                                                   : NULL;
    return ST_OK;
}

static enum status read_model(struct hf_config *c, struct err *err)
{
    const char *model_type = json_value_string(json_value_get(c->json, "model_type"));
    if (model_type == NULL)
        return value_wrong(c, "model_type", "a string", err);
    const char *reason = hf_refusal(model_type);
    if (reason != NULL)
        return err_set(err, ST_STRUCTURE, "%s: model_type %s: %s", c->path, model_type, reason);
    c->family = hf_family_find(model_type);
    if (c->family == NULL)
        return unknown_model(c, model_type, err);
    TRY(read_architecture(c, err));
    c->has_code = !is_unset(c, "auto_map");
    if (!is_unset(c, "quantization_config"))
        return err_set(err, ST_STRUCTURE,
                       "%s: quantization_config: the weights are quantised; import the unquantised "
                       "checkpoint",
                       c->path);
    return c->family->check == NULL ? ST_OK : c->family->check(c, err);
}

/* ---- sizes ----------------------------------------------------------------------------------- */

static enum status read_head_dim(struct hf_config *c, struct err *err)
{
    uint64_t preset = c->family->head_dim_preset;
    if (c->family->head_dim != HEAD_DIM_PRESET) {
        bool derives = c->family->head_dim == HEAD_DIM_DERIVED || is_unset(c, "head_dim");
        if (derives && c->hidden % c->heads != 0)
            return err_set(err, ST_SPEC,
                           "%s: hidden_size %llu is no multiple of num_attention_heads %llu",
                           c->path, (unsigned long long)c->hidden, (unsigned long long)c->heads);
        preset = derives ? c->hidden / c->heads : 1;
        if (c->family->head_dim == HEAD_DIM_DERIVED) {
            c->head_dim = preset;
            return ST_OK;
        }
    }
    return read_count(c, "head_dim", preset, &c->head_dim, err);
}

static enum status read_sizes(struct hf_config *c, struct err *err)
{
    const struct hf_family *f = c->family;
    TRY(read_count(c, "vocab_size", 0, &c->vocab, err));
    TRY(read_count(c, "hidden_size", 0, &c->hidden, err));
    TRY(read_count(c, "intermediate_size", 0, &c->intermediate, err));
    TRY(read_count(c, "num_attention_heads", 0, &c->heads, err));
    c->kv_heads = c->heads;
    if (f->has_kv_heads)
        TRY(read_count(c, "num_key_value_heads", f->needs_kv_heads ? 0 : c->heads, &c->kv_heads,
                       err));
    if (c->heads % c->kv_heads != 0)
        return err_set(err, ST_SPEC,
                       "%s: num_attention_heads %llu is no multiple of num_key_value_heads %llu",
                       c->path, (unsigned long long)c->heads, (unsigned long long)c->kv_heads);
    TRY(read_head_dim(c, err));
    c->q_width = c->heads * c->head_dim; /* each below 2^31 */
    c->kv_width = c->kv_heads * c->head_dim;
    if (c->q_width > CONFIG_MAX_COUNT)
        return err_set(err, ST_SPEC,
                       "%s: num_attention_heads times head_dim is %llu, above 2^31 - 1", c->path,
                       (unsigned long long)c->q_width);
    return ST_OK;
}

static enum status read_eps(struct hf_config *c, struct err *err)
{
    const char *key = c->family->eps_key;
    /* No default: it differs between models of one family (N27). */
    if (!json_value_double(json_value_get(c->json, key), &c->eps) || !isfinite(c->eps) ||
        c->eps < 0)
        return value_wrong(c, key, "a number, 0 or more", err);
    return ST_OK;
}

static enum status read_dtype(struct hf_config *c, struct err *err)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } known[] = {
        {"float64", DT_F64}, {"float32", DT_F32}, {"float16", DT_F16}, {"bfloat16", DT_BF16}};
    const char *key = is_unset(c, "torch_dtype") ? "dtype" : "torch_dtype";
    c->dtype = DT_UNKNOWN;
    if (is_unset(c, key))
        return ST_OK;
    const char *name = json_value_string(json_value_get(c->json, key));
    for (size_t i = 0; name != NULL && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0)
            c->dtype = known[i].dtype;
    return c->dtype != DT_UNKNOWN
               ? ST_OK
               : value_wrong(c, key, "float64, float32, float16 or bfloat16", err);
}

/* The op of a spec for an activation of Transformers' table. */
static enum status read_activation(struct hf_config *c, struct err *err)
{
    static const char *const known[][2] = {
        {"gelu", "gelu_erf"},       {"gelu_python", "gelu_erf"},
        {"gelu_new", "gelu_tanh"},  {"gelu_pytorch_tanh", "gelu_tanh"},
        {"gelu_fast", "gelu_tanh"}, {"quick_gelu", "quick_gelu"},
        {"relu", "relu"},           {"relu6", "relu6"},
        {"silu", "silu"},           {"swish", "silu"},
        {"tanh", "tanh"},           {"sigmoid", "sigmoid"},
        {"mish", "mish"},           {"leaky_relu", "leaky_relu"}};
    const char *name = json_value_string(json_value_get(c->json, "hidden_act"));
    if (c->family->mlp_up == NULL || !c->flags['p' - 'a'])
        return ST_OK;
    for (size_t i = 0; name != NULL && i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i][0], name) == 0)
            c->activation = known[i][1];
    return c->activation != NULL
               ? ST_OK
               : value_wrong(c, "hidden_act", "an activation such as gelu, gelu_new or relu", err);
}

enum status hf_config_read(const char *path, struct hf_config *c, struct err *err)
{
    *c = (struct hf_config){.path = path};
    TRY(format_json_read(path, CONFIG_MAX_BYTES, &c->json, err));
    if (json_value_kind(c->json) != JSON_OBJECT)
        return err_set(err, ST_FORMAT, "%s: expected an object", path);
    TRY(read_model(c, err));
    for (const struct hf_flag *f = c->family->flags; f->letter != 0; f++)
        TRY(read_flag(c, f->key, f->preset, &c->flags[f->letter - 'a'], err));
    TRY(read_flag(c, "tie_word_embeddings", c->family->tied_by_default, &c->tied, err));
    TRY(read_sizes(c, err));
    TRY(read_eps(c, err));
    TRY(read_dtype(c, err));
    return read_activation(c, err);
}
