# SPDX-License-Identifier: Apache-2.0
"""Graph specs of the models that the tests of enclosing models run: Llama-style decoders, ICU's word
breakers, the golden router and two-tower net."""
import os
import sys

import numpy as np

import cli


def need_shared(*parts):
    """The folder, or skip where ../shared is absent."""
    folder = os.path.abspath(os.path.join(cli.SHARED, *parts))
    if not os.path.isdir(folder):
        print(f"skipped: {folder} is not there")
        sys.exit(77)
    return folder


def node(name, op, inputs, **attributes):
    return {"name": name, "op": op, "inputs": inputs, **attributes}


def spec(checkpoint, graph, examples, **more):
    document = {"tokentab": 1, "checkpoint": checkpoint, "mode": "eval", "input_contract": "token_indices_only",
                "graph": graph, **more}
    if examples is not None:
        document["examples"] = examples
    return document


GOLDEN_NAMES = {"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight",
                "attention_norm": "model.layers.{}.input_layernorm.weight",
                "q": "model.layers.{}.self_attn.q_proj.weight", "k": "model.layers.{}.self_attn.k_proj.weight",
                "v": "model.layers.{}.self_attn.v_proj.weight", "o": "model.layers.{}.self_attn.o_proj.weight",
                "ffn_norm": "model.layers.{}.post_attention_layernorm.weight",
                "gate": "model.layers.{}.mlp.gate_proj.weight", "up": "model.layers.{}.mlp.up_proj.weight",
                "down": "model.layers.{}.mlp.down_proj.weight"}
STORIES_NAMES = {"embedding": "tok_embeddings.weight", "norm": "norm.weight", "head": "tok_embeddings.weight",
                 "attention_norm": "layers.{}.attention_norm.weight", "q": "layers.{}.attention.wq.weight",
                 "k": "layers.{}.attention.wk.weight", "v": "layers.{}.attention.wv.weight",
                 "o": "layers.{}.attention.wo.weight", "ffn_norm": "layers.{}.ffn_norm.weight",
                 "gate": "layers.{}.feed_forward.w1.weight", "up": "layers.{}.feed_forward.w3.weight",
                 "down": "layers.{}.feed_forward.w2.weight"}


def llama_layer(i, names, heads, groups, dim, convention, eps):
    name = {key: value.format(i) for key, value in names.items()}
    h, p = f"h{i}", f"l{i}."
    rope = {"head_dim": dim, "convention": convention, "theta": 10000}
    return [
        node(p + "x", "float32_rms_norm", [h], weight=name["attention_norm"], eps=eps),
        *(node(p + n, "linear", [p + "x"], weight=name[n]) for n in "qkv"),
        node(p + "rq", "rope", [p + "q"], **rope),
        node(p + "rk", "rope", [p + "k"], **rope),
        node(p + "a", "attention", [p + "rq", p + "rk", p + "v"], heads=heads, kv_heads=groups, causal=True),
        node(p + "o", "linear", [p + "a"], weight=name["o"]),
        node(p + "m", "add", [h, p + "o"]),
        node(p + "n", "float32_rms_norm", [p + "m"], weight=name["ffn_norm"], eps=eps),
        node(p + "g", "linear", [p + "n"], weight=name["gate"]),
        node(p + "s", "silu", [p + "g"]),
        node(p + "u", "linear", [p + "n"], weight=name["up"]),
        node(p + "p", "mul", [p + "s", p + "u"]),
        node(p + "d", "linear", [p + "p"], weight=name["down"]),
        node(f"h{i + 1}", "add", [p + "m", p + "d"]),
    ]


def llama(names, layers, heads, groups, dim, convention, eps=1e-5):
    """Outputs: logits, next (argmax), last (normalised), hidden0 ... (embedding and after each layer)."""
    nodes = [node("h0", "embedding", ["ids"], weight=names["embedding"])]
    for i in range(layers):
        nodes += llama_layer(i, names, heads, groups, dim, convention, eps)
    nodes += [node("last", "float32_rms_norm", [f"h{layers}"], weight=names["norm"], eps=eps),
              node("logits", "linear", ["last"], weight=names["head"]),
              node("next", "argmax", ["logits"])]
    outputs = [{"name": n, "node": n} for n in ("logits", "next", "last")]
    outputs += [{"name": f"hidden{i}", "node": f"h{i}"} for i in range(layers + 1)]
    return {"inputs": [{"name": "ids", "kind": "token_ids"}], "nodes": nodes, "outputs": outputs}


def word_breaker():
    """ICU's LSTM: embedding, gates of both directions, LSTM, output layer, argmax."""
    io = {"orientation": "in_out"}
    return {"inputs": [{"name": "ids", "kind": "token_ids"}],
            "nodes": [node("x", "embedding", ["ids"], weight="embedding.weight"),
                      node("forward", "linear", ["x"], weight="fwd.W", bias="fwd.b", **io),
                      node("backward", "linear", ["x"], weight="bwd.W", bias="bwd.b", **io),
                      node("h", "lstm", ["forward", "backward"], weight="fwd.U", weight_backward="bwd.U",
                           bidirectional=True, gates="ifco", **io),
                      node("scores", "linear", ["h"], weight="out.W", bias="out.b", **io),
                      node("tags", "argmax", ["scores"])],
            "outputs": [{"name": "scores", "node": "scores"}, {"name": "tags", "node": "tags"}]}


def evaluate_word_breaker(w, ids):
    """Scores in double: Keras' LSTM, gates i, f, c, o, both directions."""
    def sigmoid(x):
        return (1 + np.tanh(x / 2)) / 2

    def walk(z, u, order):
        h, c, out = np.zeros(u.shape[0]), np.zeros(u.shape[0]), {}
        for t in order:
            i, f, g, o = np.split(z[t] + h @ u, 4)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
            out[t] = h
        return np.array([out[t] for t in range(len(z))])
    x = w["embedding.weight"][ids]
    forward = walk(x @ w["fwd.W"] + w["fwd.b"], w["fwd.U"], range(len(ids)))
    backward = walk(x @ w["bwd.W"] + w["bwd.b"], w["bwd.U"], range(len(ids) - 1, -1, -1))
    return np.concatenate([forward, backward], 1) @ w["out.W"] + w["out.b"]


def router(decision=None):
    logits = {"name": "logits", "node": "logits"}
    if decision:
        logits["decision"] = decision
    return {"inputs": [{"name": "ids", "kind": "token_ids"}, {"name": "values", "kind": "values"}],
            "nodes": [node("e", "embedding", ["ids"], weight="gene_embedding.weight"),
                      node("r0", "linear", ["e"], weight="router.0.weight", bias="router.0.bias"),
                      node("r1", "relu", ["r0"]),
                      node("logits", "linear", ["r1"], weight="router.2.weight", bias="router.2.bias"),
                      node("experts", "top_k", ["logits"], k=5),
                      node("mixture", "moe", ["logits", "values"], slope="experts.slope", offset="experts.offset",
                           k=5, experts=10)],
            "outputs": [logits, {"name": "experts", "node": "experts"}, {"name": "mixture", "node": "mixture"}]}


def two_tower():
    def tower(name, input):
        return [node(f"{name}.e", "embedding", [input], weight=f"{name}.weight"),
                node(f"{name}.0", "linear", [f"{name}.e"], weight=f"{name}_tower.0.weight",
                     bias=f"{name}_tower.0.bias"),
                node(f"{name}.1", "relu", [f"{name}.0"]),
                node(f"{name}.2", "linear", [f"{name}.1"], weight=f"{name}_tower.2.weight",
                     bias=f"{name}_tower.2.bias"),
                node(f"{name}.v", "l2_normalize", [f"{name}.2"], eps=1e-12)]
    return {"inputs": [{"name": "user", "kind": "token_ids"}, {"name": "candidates", "kind": "token_ids"},
                       {"name": "context", "kind": "values"}],
            "nodes": [*tower("user", "user"), *tower("item", "candidates"),
                      node("bias", "embedding", ["candidates"], weight="item_bias.weight"),
                      node("c", "linear", ["context"], weight="context.weight"),
                      node("uc", "add", ["user.v", "c"]),
                      node("un", "l2_normalize", ["uc"], eps=1e-12),
                      node("column", "reshape", ["un"], dims=[-1, 16, 1]),
                      node("dot", "matmul", ["item.v", "column"]),
                      node("warm", "scale", ["dot"], value=12.5),
                      node("sum", "add", ["warm", "bias"]),
                      node("scores", "reshape", ["sum"], dims=[0, -1])],
            "outputs": [{"name": "scores", "node": "scores"}]}


def call(model, inputs, name, **options):
    """Run a model (spec or folder) on tensors {"INPUT.NAME": (dtype, array)}; its outputs."""
    given, made = cli.path(name + ".in.safetensors"), cli.path(name + ".out.safetensors")
    cli.write_safetensors(given, inputs)
    cli.run("run", model, "--inputs", given, "--out", made, "--force", **options)
    return {key: array for key, (_, array) in cli.read_safetensors(made).items()} if os.path.exists(made) else {}


def same_bits(a, b):
    return sorted(a) == sorted(b) and all(a[k].tobytes() == b[k].tobytes() and a[k].shape == b[k].shape for k in a)
