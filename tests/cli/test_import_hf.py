# SPDX-License-Identifier: Apache-2.0
"""import-hf: tiny random snapshots of every family; the imported spec's tables against a float64 evaluation of
that family's first stage written from its definition, and every refusal."""
import copy
import hashlib
import json
import os

import cli
from cli import check, np

V, H, HEADS, KV, D, I = 37, 24, 4, 2, 8, 40
COMMIT = "0123456789abcdef0123456789abcdef01234567"


# ---- the definitions, in float64 ---------------------------------------------------------------

def rms(x, weight, eps=1e-6):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


def layer_norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weight + bias


def gelu(x):
    from math import erf
    return x * 0.5 * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def linear(x, w, name):
    y = x @ w[name + ".weight"].T
    return y + w[name + ".bias"] if name + ".bias" in w else y


def per_head(x, heads, function):
    return function(x.reshape(len(x), heads, -1)).reshape(len(x), -1)


def decoder(w, c, p, offset=0.0, scaled=False):
    """llama and its relatives: q, k, v of the normed embedding; the residual."""
    e = w[p + "embed_tokens.weight"]
    if scaled:
        e = e * np.sqrt(c["hidden_size"])
    layer = p + "layers.0."
    x = rms(e, offset + w[layer + "input_layernorm.weight"], c["rms_norm_eps"])
    if layer + "self_attn.qkv_proj.weight" in w:
        qkv = linear(x, w, layer + "self_attn.qkv_proj")
        q, k, v = np.split(qkv, [HEADS * (H // HEADS), (HEADS + KV) * (H // HEADS)], axis=1)
    else:
        q, k, v = (linear(x, w, layer + f"self_attn.{n}_proj") for n in "qkv")
    if layer + "self_attn.q_norm.weight" in w:
        q = per_head(q, HEADS, lambda h: rms(h, offset + w[layer + "self_attn.q_norm.weight"], c["rms_norm_eps"]))
        k = per_head(k, KV, lambda h: rms(h, offset + w[layer + "self_attn.k_norm.weight"], c["rms_norm_eps"]))
    return {"q": q, "k": k, "v": v, "residual": e}


def gemma(w, c, p):
    return decoder(w, c, p, offset=1.0, scaled=True)


def gpt_neox(w, c, p):
    e, layer, eps = w[p + "embed_in.weight"], p + "layers.0.", c["layer_norm_eps"]

    def norm(name):
        return layer_norm(e, w[layer + name + ".weight"], w[layer + name + ".bias"], eps)

    qkv = linear(norm("input_layernorm"), w, layer + "attention.query_key_value").reshape(V, HEADS, 3, H // HEADS)
    out = {n: qkv[:, :, i].reshape(V, H) for i, n in enumerate("qkv")}
    if c.get("use_parallel_residual", True):
        hidden = gelu(linear(norm("post_attention_layernorm"), w, layer + "mlp.dense_h_to_4h"))
        out["mlp"] = linear(hidden, w, layer + "mlp.dense_4h_to_h")
    return {**out, "residual": e}


def modernbert(w, c, p):
    bias = w.get(p + "embeddings.norm.bias", 0.0)
    x = layer_norm(w[p + "embeddings.tok_embeddings.weight"], w[p + "embeddings.norm.weight"], bias, c["norm_eps"])
    qkv = linear(x, w, p + "layers.0.attn.Wqkv").reshape(V, 3, H)
    return {"q": qkv[:, 0], "k": qkv[:, 1], "v": qkv[:, 2], "residual": x}


def esm(w, c, p):
    x, layer, eps = w[p + "embeddings.word_embeddings.weight"], p + "encoder.layer.0.attention.", c["layer_norm_eps"]
    if c["emb_layer_norm_before"]:
        x = layer_norm(x, w[p + "embeddings.layer_norm.weight"], w[p + "embeddings.layer_norm.bias"], eps)
    n = layer_norm(x, w[layer + "LayerNorm.weight"], w[layer + "LayerNorm.bias"], eps)
    out = {name[0]: linear(n, w, layer + "self." + name) for name in ("query", "key", "value")}
    return {**out, "residual": x}


# ---- snapshots -----------------------------------------------------------------------------------

def with_bias(name, out, inner):
    return {name + ".weight": (out, inner), name + ".bias": (out,)}


def decoder_shapes(d, bias=False, mlp_bias=False, o_bias=False, fused=False, head_norms=False, gemma2=False):
    layer, q, k = "layers.0.", HEADS * d, KV * d
    s = {"embed_tokens.weight": (V, H), layer + "input_layernorm.weight": (H,),
         layer + "post_attention_layernorm.weight": (H,)}

    def add(name, out, inner, has_bias):
        s[layer + name + ".weight"] = (out, inner)
        if has_bias:
            s[layer + name + ".bias"] = (out,)

    if fused:
        add("self_attn.qkv_proj", q + 2 * k, H, False)
        add("mlp.gate_up_proj", 2 * I, H, False)
    else:
        for name, width in (("q", q), ("k", k), ("v", k)):
            add(f"self_attn.{name}_proj", width, H, bias)
        add("mlp.gate_proj", I, H, mlp_bias)
        add("mlp.up_proj", I, H, mlp_bias)
    add("self_attn.o_proj", H, q, o_bias)
    add("mlp.down_proj", H, I, mlp_bias)
    if head_norms:
        s[layer + "self_attn.q_norm.weight"] = s[layer + "self_attn.k_norm.weight"] = (d,)
    if gemma2:
        s[layer + "pre_feedforward_layernorm.weight"] = s[layer + "post_feedforward_layernorm.weight"] = (H,)
    return s


def neox_shapes(bias=True):
    layer = "layers.0."
    s = {"embed_in.weight": (V, H), layer + "attention.masked_bias": ()}
    for norm in ("input_layernorm", "post_attention_layernorm"):
        s.update({layer + norm + ".weight": (H,), layer + norm + ".bias": (H,)})
    for name, out, inner in (("attention.query_key_value", 3 * H, H), ("attention.dense", H, H)):
        s[layer + name + ".weight"] = (out, inner)
        if bias:
            s[layer + name + ".bias"] = (out,)
    s.update(with_bias(layer + "mlp.dense_h_to_4h", I, H))
    s.update(with_bias(layer + "mlp.dense_4h_to_h", H, I))
    return s


def modernbert_shapes(norm_bias=False):
    layer = "layers.0."
    s = {"embeddings.tok_embeddings.weight": (V, H), "embeddings.norm.weight": (H,), layer + "mlp_norm.weight": (H,),
         layer + "attn.Wqkv.weight": (3 * H, H), layer + "attn.Wo.weight": (H, H), layer + "mlp.Wi.weight": (2 * I, H),
         layer + "mlp.Wo.weight": (H, I)}
    if norm_bias:
        s.update({"embeddings.norm.bias": (H,), layer + "mlp_norm.bias": (H,)})
    return s


def esm_shapes(before):
    layer = "encoder.layer.0."
    s = {"embeddings.word_embeddings.weight": (V, H), "embeddings.position_embeddings.weight": (50, H)}
    for name in ("query", "key", "value"):
        s.update(with_bias(layer + "attention.self." + name, H, H))
    s.update(with_bias(layer + "attention.output.dense", H, H))
    s.update(with_bias(layer + "intermediate.dense", I, H))
    s.update(with_bias(layer + "output.dense", H, I))
    for norm in [layer + "attention.LayerNorm", layer + "LayerNorm"] + (["embeddings.layer_norm"] if before else []):
        s.update({norm + ".weight": (H,), norm + ".bias": (H,)})
    return s


BASE = {"vocab_size": V, "hidden_size": H, "intermediate_size": I, "num_attention_heads": HEADS,
        "num_hidden_layers": 1, "torch_dtype": "float32", "rope_theta": 10000.0}
DECODER = {**BASE, "num_key_value_heads": KV, "rms_norm_eps": 1e-6, "tie_word_embeddings": False}

# name: architecture, prefix, config, shapes, reference, head
CASES = {
    "llama": ("LlamaForCausalLM", "model.", {**DECODER, "rms_norm_eps": 1e-3}, decoder_shapes(H // HEADS), decoder,
              "lm_head.weight"),
    "llama-biased": ("LlamaForCausalLM", "model.", {**DECODER, "attention_bias": True, "mlp_bias": True, "head_dim": D},
                     decoder_shapes(D, bias=True, mlp_bias=True, o_bias=True), decoder, "lm_head.weight"),
    "llama-base": ("LlamaModel", "", {**DECODER, "head_dim": None}, decoder_shapes(H // HEADS), decoder, None),
    "mistral": ("MistralForCausalLM", "model.", {**DECODER, "head_dim": D}, decoder_shapes(D), decoder,
                "lm_head.weight"),
    "qwen2": ("Qwen2ForCausalLM", "model.", {**DECODER, "tie_word_embeddings": True},
              decoder_shapes(H // HEADS, bias=True), decoder, None),
    "qwen3": ("Qwen3ForCausalLM", "model.", {**DECODER, "head_dim": D}, decoder_shapes(D, head_norms=True), decoder,
              "lm_head.weight"),
    "gemma": ("GemmaForCausalLM", "model.", {**DECODER, "head_dim": D, "tie_word_embeddings": None},
              decoder_shapes(D), gemma, None),
    "gemma2": ("Gemma2ForCausalLM", "model.", {**DECODER, "head_dim": D, "tie_word_embeddings": True},
               decoder_shapes(D, gemma2=True), gemma, None),
    "gemma3_text": ("Gemma3ForCausalLM", "model.", {**DECODER, "head_dim": D, "tie_word_embeddings": True},
                    decoder_shapes(D, gemma2=True, head_norms=True), gemma, None),
    "phi3": ("Phi3ForCausalLM", "model.", {**DECODER, "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3"}},
             decoder_shapes(H // HEADS, fused=True), decoder, "lm_head.weight"),
    "gpt_neox": ("GPTNeoXForCausalLM", "gpt_neox.",
                 {**BASE, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "tie_word_embeddings": False}, neox_shapes(),
                 gpt_neox, "embed_out.weight"),
    "gpt_neox-serial": ("GPTNeoXForCausalLM", "gpt_neox.",
                        {**BASE, "layer_norm_eps": 1e-5, "hidden_act": "gelu", "tie_word_embeddings": False,
                         "use_parallel_residual": False, "attention_bias": False}, neox_shapes(False), gpt_neox,
                        "embed_out.weight"),
    "modernbert": ("ModernBertForMaskedLM", "model.", {**BASE, "norm_eps": 1e-5}, modernbert_shapes(), modernbert, None),
    "modernbert-biased": ("ModernBertModel", "", {**BASE, "norm_eps": 1e-5, "norm_bias": True}, modernbert_shapes(True),
                          modernbert, None),
    "esm": ("EsmForMaskedLM", "esm.", {**BASE, "layer_norm_eps": 1e-5, "emb_layer_norm_before": False,
                                       "token_dropout": False, "position_embedding_type": "rotary"},
            esm_shapes(False), esm, None),
    "esm-normed": ("EsmModel", "", {**BASE, "layer_norm_eps": 1e-5, "emb_layer_norm_before": True,
                                    "position_embedding_type": "rotary"}, esm_shapes(True), esm, None),
}


def make(name):
    """config and weights (float32) of a case."""
    architecture, prefix, config, shapes, reference, head = CASES[name]
    config = {"architectures": [architecture], "model_type": name.split("-")[0], **copy.deepcopy(config)}
    tensors = {prefix + n: np.asarray(cli.random(s, seed)) for seed, (n, s) in enumerate(shapes.items())}
    for n in tensors:
        if n.endswith("_proj.weight") or "dense" in n or "attn.W" in n or "mlp.W" in n or "self." in n:
            tensors[n] = tensors[n] * np.float32(0.3)
    if head:
        tensors[head] = cli.random((V, H), 900)
    tensors[prefix + "layers.1.anything.weight"] = cli.random((2,), 901)  # beyond the first stage
    return config, tensors, prefix, reference


def write(folder, config, tensors):
    os.makedirs(cli.path(folder), exist_ok=True)
    cli.write_json(cli.path(folder, "config.json"), config)
    cli.write_safetensors(cli.path(folder, "model.safetensors"), tensors)
    return cli.path(folder)


def digest(file):
    with open(file, "rb") as f:
        return "sha256:" + hashlib.sha256(f.read()).hexdigest()


def import_hf(folder, *options, code=0, stderr=None, out="spec.json"):
    return cli.run("import-hf", folder, "--out", os.path.join(folder, out), "--force", *options, code=code,
                   stderr=stderr)


def tables_of(folder, name):
    """Compile the imported spec with consent to grow; route bulk of every output."""
    document = cli.read_json(folder, "spec.json")
    check(document["storage"] == "must_shrink", f"{name}: consent to grow is the user's")
    document.update(storage="may_grow", bulk_rows=16, validation_rows=8)
    file = cli.write_json(os.path.join(folder, "grow.json"), document)
    cli.run("plan", file)
    out = cli.path(name + ".out")
    r = cli.compile(file, out)
    if r.code != 0:
        return {}
    return {o: t for (route, o), t in cli.read_tables(out + ".work", "first_layer").items() if route == "bulk"}


def test_family(name):
    config, tensors, prefix, reference = make(name)
    folder = write(name, config, tensors)
    import_hf(folder)
    document = cli.read_json(folder, "spec.json")
    check(document["checkpoint"] == "model.safetensors", f"{name}: checkpoint beside the spec")
    for file in ("config.json", "model.safetensors"):
        check(document["provenance"][file] == digest(os.path.join(folder, file)), f"{name}: digest of {file}")
    tied = config.get("tie_word_embeddings")
    tied = name.split("-")[0] in ("gemma", "modernbert", "esm") if tied is None else tied
    has_head = not config["architectures"][0].endswith("Model")
    check(("external_consumers" in document["block"]) == (tied and has_head), f"{name}: the tied head is a consumer")
    expected = reference({n: np.asarray(t, np.float64) for n, t in tensors.items()}, config, prefix)
    tables = tables_of(folder, name)
    check(list(document["block"]["branches"]) + ["residual"] == list(expected), f"{name}: outputs in order")
    for output, values in expected.items():
        if check(output in tables, f"{name}: table {output}"):
            error = np.abs(tables[output] - values).max()
            check(error <= 2e-5 * np.abs(values).max(), f"{name}: {output} is off by {error}")


# ---- bfloat16: where roundings happen -------------------------------------------------------------

def test_gemma_bf16():
    config, tensors, prefix, _ = make("gemma")
    config.update(torch_dtype="bfloat16", head_dim=H // HEADS)
    layer = prefix + "layers.0."
    for n in ("q", "k", "v", "o"):
        width = (KV if n in "kv" else HEADS) * (H // HEADS)
        shape = (H, width) if n == "o" else (width, H)
        tensors[layer + f"self_attn.{n}_proj.weight"] = np.zeros(shape, "<f4")
    tensors[layer + "self_attn.q_proj.weight"] = np.eye(H, dtype="<f4")  # q is the norm itself
    tensors[layer + "input_layernorm.weight"] = np.full(H, 0.05, "<f4")
    stored = {n: ("BF16", cli.bf16(t)) for n, t in tensors.items()}
    folder = write("gemma-bf16", config, stored)
    import_hf(folder)
    scale = cli.read_json(folder, "spec.json")["block"]["prefix"][0]
    check(scale["value"] == np.sqrt(24.0) and scale["value_dtype"] == "BF16", "gemma: sqrt(hidden) held in bf16")
    tables = tables_of(folder, "gemma-bf16")
    if not tables:
        return
    e = cli.as_float("BF16", stored[prefix + "embed_tokens.weight"][1]).astype("<f4")
    root = cli.as_float("BF16", cli.bf16([np.sqrt(np.float32(24))])).astype("<f4")
    check(root[0] == np.float32(4.90625), "sqrt(24) in bf16")
    x = cli.bf16(e * root)
    check((tables["residual"].view("<u2") == x).all(), "gemma: residual = bf16(e * bf16(sqrt(hidden)))")
    x = cli.as_float("BF16", x).astype("<f4")
    w = np.float32(1) + cli.as_float("BF16", cli.bf16([0.05])).astype("<f4")  # float32, not bf16
    k = 1 / np.sqrt(np.mean(x * x, -1, keepdims=True, dtype="<f4") + np.float32(config["rms_norm_eps"]))
    same = (tables["q"].view("<u2") == cli.bf16(x * k * w)).mean()
    check(same > 0.98, f"gemma: 1 + w in float32: {same} of the elements equal")
    wrong = (tables["q"].view("<u2") == cli.bf16(x * k * np.float32(1.046875))).mean()
    check(wrong < 0.9, f"the check above tells 1 + w in bf16 apart: {wrong}")


def test_llama_bf16():
    config, tensors, prefix, reference = make("llama")
    config["torch_dtype"] = "bfloat16"
    stored = {n: ("BF16", cli.bf16(t)) for n, t in tensors.items()}
    folder = write("llama-bf16", config, stored)
    import_hf(folder)
    tables = tables_of(folder, "llama-bf16")
    wide = {n: cli.as_float("BF16", t[1]) for n, t in stored.items()}
    for output, values in reference(wide, config, prefix).items():
        if check(output in tables, f"llama-bf16: table {output}"):
            error = np.abs(cli.as_float("BF16", tables[output].view("<u2")) - values).max()
            check(error <= 0.02 * np.abs(values).max(), f"llama-bf16: {output} is off by {error}")


def test_golden_decoder():
    """The reference's tiny decoder comes with a config.json: its block, and the tables a PyTorch gave."""
    golden = os.path.join(cli.SHARED, "golden", "llama_tiny")
    if not os.path.isdir(golden):
        print("skipped: no reference decoder")
        return
    spec = cli.path("golden.json")
    cli.run("import-hf", golden, "--out", spec)
    document, block = cli.read_json(spec), cli.read_json(golden, "block.json")
    mine = document["block"]
    for layers in mine["branches"].values():
        check(layers[0].pop("orientation") == "out_in", "golden: orientation is written")
    for key in ("kind", "embedding", "prefix", "branches"):
        check(mine[key] == block[key], f"golden: {key}: {mine[key]} is not {block[key]}")
    document = cli.read_json(spec)
    document.update(storage="may_grow", row_count_profiles=block["row_count_profiles"])
    out = cli.path("golden.out")
    cli.compile(cli.write_json(spec, document), out)
    expected = cli.read_safetensors(os.path.join(golden, "block_expected.safetensors"))
    for (route, output), table in cli.read_tables(out + ".work", "first_layer").items():
        theirs = expected[f"{route}.{'hidden' if output == 'residual' else output}"][1]
        check(np.abs(table - theirs).max() <= 1e-5, f"golden: {route}.{output}")


# ---- where files lie --------------------------------------------------------------------------------

def make_cache(name, shards):
    """A cache of Hugging Face: blobs, and a snapshot of links."""
    config, tensors, prefix, reference = make(name)
    root = cli.path("cache-" + name, "models--org--" + name)
    snapshot = os.path.join(root, "snapshots", COMMIT)
    os.makedirs(os.path.join(root, "blobs"))
    os.makedirs(snapshot)

    def add(file, writer):
        blob = os.path.join(root, "blobs", hashlib.sha256(file.encode()).hexdigest())
        writer(blob)
        os.symlink(os.path.join("..", "..", "blobs", os.path.basename(blob)), os.path.join(snapshot, file))

    add("config.json", lambda f: cli.write_json(f, config))
    names = sorted(tensors)
    if not shards:
        add("model.safetensors", lambda f: cli.write_safetensors(f, tensors))
        return snapshot
    where = {n: f"model-{1 + i % 3:05}-of-00003.safetensors" for i, n in enumerate(names)}
    for file in sorted(set(where.values())):
        part = {n: tensors[n] for n in names if where[n] == file}
        add(file, lambda f, part=part: cli.write_safetensors(f, part))
    size = sum(t.nbytes for t in tensors.values())
    add("model.safetensors.index.json",
        lambda f: cli.write_json(f, {"metadata": {"total_size": size}, "weight_map": where}))
    return snapshot


def test_cache():
    snapshot = make_cache("llama", shards=False)
    out = cli.path("cache.json")
    cli.run("import-hf", snapshot, "--out", out, "--revision", "main")
    document = cli.read_json(out)
    check(document["provenance"]["revision"] == "main", "the revision given")
    check(document["provenance"]["snapshot"] == COMMIT, "the snapshot's commit")
    check(document["checkpoint"] == os.path.join(os.path.realpath(snapshot), "model.safetensors"), "where it lies")
    cli.run("plan", out)
    cli.run("import-hf", snapshot, "--out", out, code=2, stderr="--force")
    cli.run("import-hf", snapshot, "--out", out, "--force", "--revision", "f" * 40, code=2, stderr=COMMIT)
    printed = json.loads(cli.run("import-hf", snapshot).out)
    check(printed["block"] == document["block"], "without --out the spec goes to standard output")
    answer = cli.run("import-hf", snapshot, "--json").json()
    check(answer["spec"]["block"] == document["block"] and answer["schema_version"] == 1, "--json without --out")

    snapshot = make_cache("qwen3", shards=True)
    cli.run("import-hf", snapshot, "--out", out, "--force")
    provenance = cli.read_json(out)["provenance"]
    for file in os.listdir(snapshot):
        check(provenance.get(file) == digest(os.path.join(snapshot, file)), f"digest of {file}")
    cli.run("plan", out)

    os.remove(os.path.join(snapshot, "model-00002-of-00003.safetensors"))
    cli.run("import-hf", snapshot, "--out", out, "--force", code=3, stderr="absent: model-00002-of-00003")
    check(cli.read_json(out)["provenance"] == provenance, "a refused import leaves the old spec")


def test_links():
    config, tensors, _, _ = make("llama")
    for file in ("config.json", "model.safetensors"):
        folder = write("link-" + file, config, tensors)
        os.rename(os.path.join(folder, file), cli.path("elsewhere-" + file))
        os.symlink(cli.path("elsewhere-" + file), os.path.join(folder, file))
        import_hf(folder, code=3, stderr="link to .*elsewhere")
        os.remove(os.path.join(folder, file))
        os.symlink("nowhere", os.path.join(folder, file))
        import_hf(folder, code=3)


# ---- ties ------------------------------------------------------------------------------------------

def test_ties():
    config, tensors, prefix, _ = make("llama")
    embedding = prefix + "embed_tokens.weight"
    without = {n: t for n, t in tensors.items() if n != "lm_head.weight"}
    import_hf(write("untied", config, without), code=3, stderr="lm_head.weight is absent and tie_word_embeddings")
    tied = {**config, "tie_word_embeddings": True}
    import_hf(write("tied-other", tied, tensors), code=3, stderr="their bytes differ")
    import_hf(write("tied-both", tied, {**tensors, "lm_head.weight": tensors[embedding]}))
    # The embedding may be stored under the head's name alone.
    folder = write("tied-head", tied, {**{n: t for n, t in without.items() if n != embedding},
                                       "lm_head.weight": tensors[embedding]})
    import_hf(folder)
    document = cli.read_json(folder, "spec.json")
    check(document["aliases"] == {embedding: "lm_head.weight"}, "the tie becomes an alias")
    cli.run("plan", os.path.join(folder, "spec.json"))
    import_hf(write("no-embedding", config, {n: t for n, t in tensors.items() if n != embedding}), code=3,
              stderr="embed_tokens")


# ---- refusals ----------------------------------------------------------------------------------------

def refuse(name, pattern, base="llama", config=None, tensors=None, drop=(), options=()):
    c, t, prefix, _ = make(base)
    c.update(config or {})
    c = {k: v for k, v in c.items() if k not in drop}
    t.update({prefix + n: v for n, v in (tensors or {}).items()})
    t = {n: v for n, v in t.items() if not (len(n) > len(prefix) and n[len(prefix):] in drop)}
    folder = write("refuse-" + name, c, t)
    import_hf(folder, *options, code=3, stderr=pattern)
    check(not os.path.exists(os.path.join(folder, "spec.json")), f"{name}: no spec was written")


def test_refusals():
    for model_type in ("gpt2", "bert", "roberta", "opt"):
        refuse(model_type, f"model_type {model_type}: absolute positions are added .* before the first norm",
               config={"model_type": model_type})
    refuse("unknown", 'model_type: expected one of llama, mistral.*found "falcon"', config={"model_type": "falcon"})
    refuse("custom", 'architectures: expected Llama.*found "MyModel"', config={"architectures": ["MyModel"]})
    refuse("crossed", 'found "MistralForCausalLM"', config={"architectures": ["MistralForCausalLM"]})
    refuse("two", "architectures: expected a list with one name",
           config={"architectures": ["LlamaForCausalLM", "LlamaModel"]})
    refuse("no-type", "model_type: expected a string, found nothing", drop=("model_type",))
    refuse("quantised", "quantization_config", config={"quantization_config": {"quant_method": "gptq"}})
    refuse("dropout", "token_dropout: every embedding is scaled", base="esm", config={"token_dropout": True})
    refuse("absolute", "absolute positions are added", base="esm", config={"position_embedding_type": "absolute"})
    refuse("absolute-default", "absolute positions are added", base="esm", drop=("position_embedding_type",))
    refuse("eps", "rms_norm_eps: expected a number, 0 or more, found nothing", drop=("rms_norm_eps",))
    refuse("hidden", "hidden_size: expected a whole number", config={"hidden_size": "24"})
    refuse("kv", "no multiple of num_key_value_heads 3", config={"num_key_value_heads": 3})
    refuse("derived", "hidden_size 24 is no multiple of num_attention_heads 7", base="gpt_neox",
           config={"num_attention_heads": 7})
    refuse("dtype-name", "torch_dtype: expected float64, ", config={"torch_dtype": "int8"})
    refuse("flag", "attention_bias: expected true or false", config={"attention_bias": 1})
    refuse("activation", "hidden_act: expected an activation", base="gpt_neox", config={"hidden_act": "relu2"})
    refuse("vocab", r"embed_tokens.weight: expected F32 \[38, 24\].*found F32 \[37, 24\]", config={"vocab_size": 38})
    refuse("heads", r"q_proj.weight: expected F32 \[16, 24\]", config={"head_dim": 4})
    refuse("dtype", r"found F32 \[37, 24\]", config={"torch_dtype": "float16"})
    refuse("one-dtype", r"input_layernorm.weight: expected F32 \[24\].*found F64 \[24\]",
           tensors={"layers.0.input_layernorm.weight": ("F64", np.ones(H))})
    refuse("integers", "expected F64, F32, F16 or BF16, found I8", drop=("torch_dtype",),
           tensors={"embed_tokens.weight": ("I8", np.ones((V, H)))})
    refuse("bias", "q_proj.bias: the first layer of LlamaForCausalLM has no such tensor",
           tensors={"layers.0.self_attn.q_proj.bias": np.ones(H)})
    refuse("adapter", "lora_A.*no such tensor", tensors={"layers.0.self_attn.q_proj.lora_A.weight": np.ones((2, H))})
    refuse("no-bias", "q_proj.bias", base="qwen2", drop=("layers.0.self_attn.q_proj.bias",))
    refuse("no-mlp", "mlp.gate_proj.weight", drop=("layers.0.mlp.gate_proj.weight",))
    refuse("rank", r"input_layernorm.weight: expected F32 \[24\].*found F32 \[1, 24\]",
           tensors={"layers.0.input_layernorm.weight": np.ones((1, H))})

    cli.run("import-hf", cli.path("absent"), code=3, stderr="expected the folder of a snapshot, found nothing")
    folder = cli.path("pickle")
    os.makedirs(folder)
    cli.write_json(os.path.join(folder, "config.json"), make("llama")[0])
    open(os.path.join(folder, "pytorch_model.bin"), "wb").close()
    import_hf(folder, code=3, stderr="a pickle is code")
    config, tensors, _, _ = make("llama")
    folder = write("twice", config, tensors)
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write('{"model_type": "llama", "model_type": "gpt2"}')
    import_hf(folder, code=3, stderr='duplicate key "model_type"')


for case in CASES:
    test_family(case)
test_gemma_bf16()
test_llama_bf16()
test_golden_decoder()
test_cache()
test_links()
test_ties()
test_refusals()
cli.finish()
