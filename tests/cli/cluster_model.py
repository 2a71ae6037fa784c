# SPDX-License-Identifier: Apache-2.0
"""Write DIR/model.safetensors and DIR/spec.json: a seeded fanout block, with the changes that a rebuild
must notice or must not notice."""
import argparse
import json
import os
import struct

import numpy as np

parser = argparse.ArgumentParser()
parser.add_argument("dir")
parser.add_argument("--vocab", type=int, default=600)
parser.add_argument("--append", type=int, default=0, help="rows added behind the vocabulary")
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--outputs", type=int, default=24)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--change", default="", help="ids of embedding rows to change")
parser.add_argument("--nan", type=int, default=-1, help="id of a row that gets a NaN")
parser.add_argument("--change-weight", action="store_true")
parser.add_argument("--eps", default="1e-6")
parser.add_argument("--profiles", default="1:1")
parser.add_argument("--bulk", type=int, default=4)
parser.add_argument("--validation", type=int, default=5)
parser.add_argument("--tolerance", default="1e-4")
parser.add_argument("--storage", default="may_grow")
parser.add_argument("--arithmetic", default="library")
parser.add_argument("--blocks", type=int, default=1)
parser.add_argument("--spec-only", action="store_true")
a = parser.parse_args()

rows = np.random.default_rng(a.seed).standard_normal((a.vocab + a.append, a.width))
rows = rows.astype(np.float32)
rng = np.random.default_rng(a.seed + 1000)
tensors = {"embed": rows}
for name, n in (("q", a.outputs), ("k", a.outputs // 2)):
    w = rng.standard_normal((n, a.width)) / np.sqrt(a.width)
    tensors[name + ".weight"] = w.astype(np.float32)
    tensors[name + ".bias"] = rng.standard_normal(n).astype(np.float32)
tensors["norm"] = (1 + 0.1 * rng.standard_normal(a.width)).astype(np.float32)
for i in (int(x) for x in a.change.split(",") if x):
    rows[i] += 0.5
if a.nan >= 0:
    rows[a.nan, 1] = np.nan
if a.change_weight:
    tensors["q.weight"][0, 0] += 0.25


def safetensors(path):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".new", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.tobytes())
    os.replace(path + ".new", path)


def block(i):
    linear = lambda n: [{"op": "linear", "weight": n + ".weight", "bias": n + ".bias"}]
    return {"kind": "fanout", "name": "first" if i == 0 else f"block{i}",
            "embedding": {"weight": "embed"},
            "prefix": [{"op": "float32_rms_norm", "weight": "norm", "eps": float(a.eps)}],
            "branches": {"q": linear("q"), "k": linear("k")}, "residual": "residual"}


os.makedirs(a.dir, exist_ok=True)
if not a.spec_only:
    safetensors(os.path.join(a.dir, "model.safetensors"))
spec = {"tokentab": 1, "checkpoint": "model.safetensors", "mode": "eval",
        "input_contract": "token_indices_only",
        "row_count_profiles": [{"max_rows": int(m), "evaluation_rows": int(e)}
                               for m, e in (p.split(":") for p in a.profiles.split(",") if p)],
        "bulk_rows": a.bulk, "validation_rows": a.validation,
        "tolerance": {"absolute": float(a.tolerance), "relative": float(a.tolerance)},
        "arithmetic": a.arithmetic, "storage": a.storage}
if a.blocks == 1:
    spec["block"] = block(0)
else:
    spec["blocks"] = [block(i) for i in range(a.blocks)]
with open(os.path.join(a.dir, "spec.json"), "w") as f:
    json.dump(spec, f, indent=1)
