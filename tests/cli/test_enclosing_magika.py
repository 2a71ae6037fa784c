# SPDX-License-Identifier: Apache-2.0
"""Magika standard_v3_3 up to its first norm: byte, Dense 64 as a gather and a bias vector, GELU.  The table is that of
the excerpt, for every byte value, in both arithmetics; and within a graph the region gives the runtime's activations."""
import numpy as np

import cli
import enclosing_model as em

cli.NUMPY["U32"] = "<u4"
root = em.need_shared("real", "magika-v3-3")
excerpt = {name: a for name, (_, a) in cli.read_safetensors(f"{root}/excerpt.safetensors").items()}
LAYERS = [{"op": "bias", "weight": "dense0.bias"}, {"op": "gelu_tanh"}]
BLOCK = {"kind": "lookup", "embedding": {"weight": "dense0.kernel"}, "layers": LAYERS}


def near(found, expected, what):
    worst = np.abs(found.astype(np.float64) - expected.astype(np.float64)).max()
    cli.check(found.shape == expected.shape and worst <= 5e-7, f"{what}: {found.shape}, max_abs {worst}")


for arithmetic in ("library", "correctly_rounded"):
    document = {**cli.spec(BLOCK), "checkpoint": f"{root}/model.safetensors", "arithmetic": arithmetic,
                "storage": "may_grow"}
    file, out = cli.write_json(cli.path(f"{arithmetic}.json"), document), cli.path(arithmetic)
    cli.compile(file, out)
    cli.run("verify", out, "--against", file)
    rows = cli.path(f"{arithmetic}.npy")
    cli.run("lookup", out, "--ids", "0-256", "--format", "npy", "--file", rows)
    near(np.load(rows), excerpt["ref.table"], arithmetic)

nodes = [em.node("x", "embedding", ["ids"], weight="dense0.kernel"),
         em.node("y", "bias", ["x"], weight="dense0.bias"), em.node("a", "gelu_tanh", ["y"]),
         em.node("top", "max_tokens", ["a"])]
graph = {"inputs": [{"name": "ids", "kind": "token_ids"}], "nodes": nodes,
         "outputs": [{"name": "a", "node": "a"}, {"name": "top", "node": "top"}]}
cli.write_safetensors(cli.path("calls.safetensors"), {"ids.file": ("I64", excerpt["tokens"].astype(np.int64))})
file = cli.write_json(cli.path("graph.json"), em.spec(f"{root}/model.safetensors", graph, "calls.safetensors",
                                                      storage="may_grow"))
out = cli.path("graph")
cli.check(cli.compile(file, out).json()["model"]["regions_rewritten"] == 1, "the region is a table")
for model in (file, out):
    result = cli.path("run.safetensors")
    cli.run("run", model, "--inputs", cli.path("calls.safetensors"), "--out", result, "--force")
    near(cli.read_safetensors(result)["a.file"][1], excerpt["ref.onnxruntime"], f"run of {model}")
cli.finish()
