# SPDX-License-Identifier: Apache-2.0
"""Compact Language Detector v3, whole: six token-id inputs, each its own region over its own columns of one fused
hidden layer; weighted sums over the n-grams, ReLU, 109 languages.  Tables hold the excerpt's numbers, and the
rewritten model names the same languages as the original and as numpy in double precision."""
import numpy as np

import cli
import enclosing_model as em

# Group: first column of the hidden layer, width.
GROUPS = {"bigrams": (0, 16), "quadgrams": (16, 16), "relevant_scripts": (32, 8), "script": (40, 8),
          "trigrams": (48, 16), "unigrams": (64, 16)}


def detector():
    inputs, nodes, before = [], [], None
    for group, (first, count) in GROUPS.items():
        inputs += [{"name": group, "kind": "token_ids"}, {"name": f"{group}.share", "kind": "mask"}]
        nodes += [em.node(f"{group}.e", "embedding", [group], weight=f"{group}.weight"),
                  em.node(f"{group}.h", "linear", [f"{group}.e"], weight="hidden.W", orientation="in_out",
                          split={"mode": "blocks", "axis": "in", "first": first, "count": count}),
                  em.node(f"{group}.s", "sum_tokens", [f"{group}.h", f"{group}.share"])]
        if before:
            nodes.append(em.node(f"{group}.and_before", "add", [before, f"{group}.s"]))
            before = f"{group}.and_before"
        else:
            before = f"{group}.s"
    nodes += [em.node("sum", "add", [before, "hidden.bias"]), em.node("hidden", "relu", ["sum"]),
              em.node("scores", "linear", ["hidden"], weight="softmax.W", bias="softmax.b", orientation="in_out"),
              em.node("shares", "softmax", ["scores"]), em.node("language", "argmax", ["scores"])]
    inputs.append({"name": "hidden.bias", "kind": "values"})
    return {"inputs": inputs, "nodes": nodes,
            "outputs": [{"name": name, "node": name} for name in ("scores", "shares", "language")]}


def call(weights, ids):
    """Inputs of one call: ids of each group with equal shares, zero for what a text lacks."""
    given = {"hidden.bias": ("F32", weights["hidden.b"])}
    for group, values in ids.items():
        values = np.asarray(values, np.int64)
        given[group] = ("I64", values)
        given[f"{group}.share"] = ("F32", np.full(values.shape, 1 / max(values.shape[-1], 1), np.float32))
    return given


def evaluate(weights, given):
    """Scores in double."""
    w = {name: a.astype(np.float64) for name, a in weights.items()}
    hidden = w["hidden.b"]
    for group, (first, count) in GROUPS.items():
        rows = w[f"{group}.weight"][given[group][1]] @ w["hidden.W"][first:first + count]
        hidden = hidden + (rows * given[f"{group}.share"][1][..., None].astype(np.float64)).sum(-2)
    return np.maximum(hidden, 0) @ w["softmax.W"] + w["softmax.b"]


cli.NUMPY["U32"] = "<u4"
root = em.need_shared("real", "cld3")
weights = {name: a for name, (dtype, a) in cli.read_safetensors(f"{root}/model.safetensors").items() if dtype == "F32"}
excerpt = {name: a for name, (_, a) in cli.read_safetensors(f"{root}/excerpt.safetensors").items()}
grams = {g: excerpt[f"tokens.{g}"] for g in ("bigrams", "quadgrams", "trigrams", "unigrams")}
texts = {"text": {g: a[None, :300] for g, a in grams.items()},
         "letter": {g: a[None, :1] for g, a in grams.items()},
         "batch": {g: a[:60].reshape(3, 20) for g, a in grams.items()},
         "bare": {g: a[:7] for g, a in grams.items()},
         "short": {**{g: a[None, :5] for g, a in grams.items()}, "quadgrams": np.zeros((1, 0))}}
for ids in texts.values():
    shape = np.shape(ids["bigrams"])[:-1] + (1,)
    ids.update(relevant_scripts=np.full(shape, 2), script=np.full(shape, 1))
calls = {name: call(weights, ids) for name, ids in texts.items()}
examples = {f"{i}.{name}": value for name, given in calls.items() for i, value in given.items()}
cli.write_safetensors(cli.path("examples.safetensors"), examples)
document = em.spec(f"{root}/model.safetensors", detector(), "examples.safetensors", storage="may_grow")
for name, more in (("bulk", {}), ("exact", {"arithmetic": "correctly_rounded"})):
    file, out = cli.write_json(cli.path(f"{name}.json"), {**document, **more}), cli.path(name)
    result = cli.compile(file, out).json()["model"]
    cli.check(result["status"] == "accepted_on_full_domain_validation", f"{name}: {result}")
    report = cli.read_json(out, "report.json")
    cli.check([r["outputs"] for r in report["regions"]] == [[f"{g}.h"] for g in GROUPS], f"{name}: a region a group")
    kept = cli.read_safetensors(f"{out}/{report['files']['weights']}")
    cli.check(sorted(kept) == ["softmax.W", "softmax.b"], f"{name}: weights that are left: {sorted(kept)}")
    original, rewritten = em.call(file, examples, f"{name}.original"), em.call(out, examples, f"{name}.rewritten")
    for text, given in calls.items():
        wanted = evaluate(weights, given)
        for made in (original, rewritten):
            cli.check(abs(made[f"scores.{text}"] - wanted).max() < 1e-4, f"{name} {text}: scores")
            cli.check(np.array_equal(made[f"language.{text}"], wanted.argmax(-1)), f"{name} {text}: language")
    for group in grams:
        rows = excerpt[f"ref.rows.{group}"]
        made = cli.rows_of(f"{out}/{group}.e", rows, output=f"{group}.h")
        worst = abs(made - excerpt[f"ref.out.{group}"]).max()
        cli.check(worst == 0 if name == "exact" else worst < 1e-6, f"{name} {group}: rows differ by {worst}")
cli.finish()
