#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a further row-count profile costs in a packed recipe, on real weights and on the NovoMolGen shape.

    packed_profiles.py --tokentab BIN --make-checkpoint BIN [--real DIR] [--work DIR]

Compiles each block in F32 and BF16 with profiles (1, 1) and (15, 2) on the BLAS cores of --cores, with --packed, and
prints for every table that a profile has for itself: its bytes over those of a full table, as stored and as it would
be without deltas. Asserts nothing."""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np


def bf16(values):
    bits = np.ascontiguousarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def read(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    return {n: np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]], "<f4").reshape(t["shape"])
            for n, t in header.items() if n != "__metadata__" and t["dtype"] == "F32"}


def write(path, dtype, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        stored = bf16(values) if dtype == "BF16" else np.ascontiguousarray(values, "<f4")
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + stored.nbytes]}
        data += stored.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def linear(weight, **more):
    return [{"op": "linear", "weight": weight, **more}]


def decoder(embedding, norm, weights, eps):
    return {"kind": "fanout", "name": "b", "embedding": {"weight": embedding}, "residual": "residual",
            "prefix": [{"op": "float32_rms_norm", "weight": norm, "eps": eps}],
            "branches": {name: linear(weight) for name, weight in zip("qkv", weights)}}


def lookup(embedding, weight):
    return {"kind": "lookup", "name": "b", "embedding": {"weight": embedding},
            "layers": linear(weight, orientation="in_out")}


def blocks(options):
    """(name, tensors, block) of everything that is there."""
    layer, head = "model.layers.0.", "model.embed_tokens.weight"
    made = os.path.join(options.work, "novomolgen.safetensors")
    subprocess.run([options.make_checkpoint, "--preset", "novomolgen", "--seed", "1", "--out", made], check=True)
    yield "novomolgen 84 x 512 -> 3 x 512", read(made), decoder(
        head, layer + "input_layernorm.weight", [f"{layer}self_attn.{n}_proj.weight" for n in "qkv"], 1e-6)
    if not os.path.isdir(options.real):
        print(f"no {options.real}: the real weights are left out", file=sys.stderr)
        return
    layer = "layers.0.attention"
    yield "stories260k 512 x 64 -> 64, 32, 32", read(f"{options.real}/stories260k/model.safetensors"), decoder(
        "tok_embeddings.weight", layer + "_norm.weight", [f"{layer}.w{n}.weight" for n in "qkv"], 1e-5)
    cld3 = read(f"{options.real}/cld3/model.safetensors")
    cld3["W"] = cld3["hidden.W"][16:32]
    yield "cld3 quadgrams 5000 x 16 -> 208", cld3, lookup("quadgrams.weight", "W")
    yield "guesslang 5000 x 70 -> 512", read(f"{options.real}/guesslang/model.safetensors"), lookup(
        "embedding.weight", "hidden0.kernel")
    magika = read(f"{options.real}/magika-v3-3/model.safetensors")
    magika["e"] = magika["dense0.kernel"] + magika["dense0.bias"]
    yield "magika 257 x 64, GELU", magika, {"kind": "lookup", "name": "b", "embedding": {"weight": "e"},
                                            "layers": [{"op": "gelu_tanh"}]}


def used(block):
    text = json.dumps(block)
    return lambda name: json.dumps(name) in text


def compile_packed(options, dtype, core, tensors, block):
    spec, out = os.path.join(options.work, "spec.json"), os.path.join(options.work, "recipe")
    subprocess.run(["rm", "-rf", out, out + ".work"], check=True)
    write(os.path.join(options.work, "model.safetensors"), dtype, {n: t for n, t in tensors.items() if used(block)(n)})
    with open(spec, "w") as f:
        json.dump({"tokentab": 1, "checkpoint": "model.safetensors", "mode": "eval", "storage": "may_grow",
                   "input_contract": "token_indices_only", "block": block, "bulk_rows": 1024, "validation_rows": 257,
                   "row_count_profiles": [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}],
                   "tolerance": {"absolute": 10, "relative": 1}}, f)
    subprocess.run([options.tokentab, "compile", spec, "--out", out, "--packed", "--blas-core", core, "--quiet",
                    "--progress", "none"], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(out, "recipe.json")) as f:
        return json.load(f)


def row(name, dtype, core, recipe):
    """Tables of bulk, then those that a profile has for itself."""
    bulk = {group for _, group, _, _ in recipe["outputs"]}
    spent = {t["tensor"].split(".")[-1]: t for t in recipe["storage"]["packed"]}
    size = {g: t["planes"] + t["delta_planes"] + t["delta_sparse"] for g, t in spent.items()}
    cells = [name, dtype, core, f"{100 * sum(size[g] for g in bulk) / sum(spent[g]['raw'] for g in bulk):.1f} %"]
    own = [g for g in spent if g not in bulk and g.startswith("group")]
    raw = sum(spent[g]["raw"] for g in own)
    if not own:
        cells += ["0", "0 (no table of its own)", ""]
    else:
        planes = sum(spent[g]["planes_of_delta"] for g in own)
        cells += [str(len(own)), f"{100 * sum(size[g] for g in own) / raw:.2f} %", f"{100 * planes / raw:.1f} %"]
    print("| " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokentab", required=True)
    parser.add_argument("--make-checkpoint", required=True)
    parser.add_argument("--real", default=os.path.join(os.path.dirname(__file__), "../../../shared/real"))
    parser.add_argument("--work")
    parser.add_argument("--cores", default="Haswell,Prescott")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        options.work = options.work or scratch
        print("| block | dtype | core | bulk, packed | profile tables | each, as stored | without deltas |")
        print("|---|---|---|---|---|---|---|")
        for name, tensors, block in blocks(options):
            for dtype in ("F32", "BF16"):
                for core in options.cores.split(","):
                    row(name, dtype, core, compile_packed(options, dtype, core, tensors, block))


main()
