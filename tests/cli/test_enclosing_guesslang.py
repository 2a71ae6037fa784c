# SPDX-License-Identifier: Apache-2.0
"""guesslang, whole: bigrams of a C++ file to one of 54 languages.  The deep part's hidden layer is tabulated before the
mean, the wide part is a table already and stays; both sides name the language that numpy does, also at the length of
one bigram."""
import numpy as np

import cli
import enclosing_model as em

IN_OUT = {"orientation": "in_out"}


def classifier():
    nodes = [em.node("x", "embedding", ["ids"], weight="embedding.weight"),
             em.node("h", "linear", ["x"], weight="hidden0.kernel", bias="hidden0.bias", **IN_OUT),
             em.node("w", "embedding", ["ids"], weight="wide.weight"),
             em.node("mean", "mean_tokens", ["h"]), em.node("a0", "relu", ["mean"]),
             em.node("h1", "linear", ["a0"], weight="hidden1.kernel", bias="hidden1.bias", **IN_OUT),
             em.node("a1", "relu", ["h1"]),
             em.node("deep", "linear", ["a1"], weight="logits.kernel", bias="logits.bias", **IN_OUT),
             em.node("wide", "sum_tokens", ["w"]), em.node("both", "add", ["deep", "wide"]),
             em.node("logits", "add", ["both", "wide.bias"]), em.node("shares", "softmax", ["logits"]),
             em.node("language", "argmax", ["logits"])]
    return {"inputs": [{"name": "ids", "kind": "token_ids"}, {"name": "wide.bias", "kind": "values"}], "nodes": nodes,
            "outputs": [{"name": name, "node": name} for name in ("logits", "shares", "language")]}


def evaluate(weights, ids):
    """Logits in double, the mean taken first, as the model itself does."""
    w = {name: a.astype(np.float64) for name, a in weights.items()}
    hidden = np.maximum(w["embedding.weight"][ids].mean(-2) @ w["hidden0.kernel"] + w["hidden0.bias"], 0)
    hidden = np.maximum(hidden @ w["hidden1.kernel"] + w["hidden1.bias"], 0)
    return hidden @ w["logits.kernel"] + w["logits.bias"] + w["wide.weight"][ids].sum(-2) + w["wide.bias"]


cli.NUMPY["U32"] = "<u4"
root = em.need_shared("real", "guesslang")
note = cli.read_json(root, "note.json")
weights = {name: a for name, (dtype, a) in cli.read_safetensors(f"{root}/model.safetensors").items() if dtype == "F32"}
excerpt = {name: a for name, (_, a) in cli.read_safetensors(f"{root}/excerpt.safetensors").items()}
tokens = excerpt["tokens"].astype(np.int64)
calls = {"file": tokens[None], "bigram": tokens[None, :1], "batch": tokens[:60].reshape(3, 20), "bare": tokens[:9]}
inputs = {f"ids.{name}": ("I64", ids) for name, ids in calls.items()}
inputs.update({f"wide.bias.{name}": ("F32", weights["wide.bias"]) for name in calls})
cli.write_safetensors(cli.path("examples.safetensors"), inputs)
file = cli.write_json(cli.path("spec.json"), em.spec(f"{root}/model.safetensors", classifier(), "examples.safetensors",
                                                     storage="may_grow",
                                                     row_count_profiles=[{"max_rows": 1, "evaluation_rows": 1}]))
out = cli.path("out")
result = cli.compile(file, out).json()["model"]
cli.check(result["status"] == "accepted_on_full_domain_validation", f"{result}")
report = cli.read_json(out, "report.json")
cli.check([(r["name"], r["outputs"], r["status"]) for r in report["regions"]] ==
          [("x", ["h"], "accepted_on_full_domain_validation"), ("w", ["w"], "refused_unsupported")], "regions")
kept = cli.read_safetensors(f"{out}/{report['files']['weights']}")
cli.check("wide.weight" in kept and "embedding.weight" not in kept and "hidden0.kernel" not in kept,
          f"weights that are left: {sorted(kept)}")
original, rewritten = em.call(file, inputs, "original"), em.call(out, inputs, "rewritten")
for name, ids in calls.items():
    wanted = evaluate(weights, ids)
    for made in (original, rewritten):
        cli.check(abs(made[f"logits.{name}"] - wanted).max() < 1e-4 * max(1, abs(wanted).max()), f"{name}: logits")
        cli.check(np.array_equal(made[f"language.{name}"], wanted.argmax(-1)), f"{name}: language")
cli.check(original["shares.bigram"].tobytes() == rewritten["shares.bigram"].tobytes(), "one bigram has the same bytes")
cli.check(note["labels"][int(rewritten["language.file"][0])] == "cpp", "the excerpt is C++")
rows = excerpt["ref.rows"]
made = cli.rows_of(f"{out}/x", rows, output="h") - weights["hidden0.bias"]
cli.check(abs(made - excerpt["ref.out"][:, :512]).max() < 1e-5, "rows of the excerpt")
cli.finish()
