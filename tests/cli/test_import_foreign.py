# SPDX-License-Identifier: Apache-2.0
"""import --from compressme: what was exported comes back bit for bit, artifacts that this program did not write are
read by their description, and hostile ones give exit 3 and leave nothing behind."""
import copy
import hashlib
import json
import os
import struct
import subprocess

import cli
from cli import check, np

NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def values(dtype, shape, seed, scale=1.0):
    a = cli.random(shape, seed, scale)
    return (dtype, cli.bf16(a) if dtype == "BF16" else a.astype(cli.NUMPY[dtype]))


def importing(folder, out, *options, **how):
    return cli.run("import", folder, "--from", "compressme", "--out", out, *options, **how)


def files_of(folder):
    return sorted(os.listdir(folder)) if os.path.isdir(folder) else []


# ---- there and back ------------------------------------------------------------------------------

PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 5, "evaluation_rows": 2}]
LOOSE = {"tolerance": {"absolute": 0.5, "relative": 0.5}}


def round_trip(name, spec, *options, prefix=()):
    """compile, export plain and packed, import: equal tables, sealed, said to be imported."""
    recipe = cli.path(name, "recipe")
    cli.compile(spec, recipe, *options)
    for packed in (False, True):
        artifact, back = cli.path(name, f"cm{packed}"), cli.path(name, f"back{packed}")
        cli.run("export", recipe, "--to", "compressme", "--out", artifact, *prefix, *(["--packed"] if packed else []))
        r = importing(artifact, back, "--json", *prefix)
        check(r.json()["validation"] == "imported_not_validated", f"{name}: {r.out}")
        check(r.json()["block"] == cli.read_json(recipe, "recipe.json")["block"], f"{name}: block's name: {r.out}")
        cli.run("diff", recipe, back)
        v = cli.run("verify", back)
        check("imported, never validated" in v.out, f"{name}: verify says {v.out}")
        check(cli.run("verify", back, "--json").json()["validation"] == "imported_not_validated", name)
        check("accepted" in cli.run("verify", recipe, "--json").json()["validation"], name)
        written = files_of(back)
        check(len(written) == 2 and written[0] == "recipe.json" and written[1].endswith(".safetensors"),
              f"{name}: {written}")
        shown = cli.run("inspect", back).out
        check("validation imported_not_validated" in shown, f"{name}: inspect says {shown}")
        # Exporting what was imported repeats the payload, and does not call it accepted.
        again = cli.path(name, f"again{packed}")
        cli.run("export", back, "--to", "compressme", "--out", again, *prefix)
        check(cli.read_json(again, "manifest.json")["report"]["status"] == "imported_not_validated", name)
        for file in ("model.safetensors",):
            if not packed:
                check(open(os.path.join(again, file), "rb").read() == open(os.path.join(artifact, file), "rb").read(),
                      f"{name}: {file} of a second export differs")
    return recipe


V = 40
for dtype in ("F32", "F64", "F16", "BF16"):
    tensors = {"e": values(dtype, (V, 8), 1), "q": values(dtype, (5, 8), 2, 0.3), "z": (dtype, np.zeros((3, 8)))}
    fanout = {"kind": "fanout", "name": "first", "embedding": {"weight": "e"}, "residual": "kept",
              "branches": {"q": [{"op": "linear", "weight": "q"}], "zero": [{"op": "linear", "weight": "z"}]}}
    # The branch of zeros is one row in every route: a constant group.
    spec = cli.folder(f"fan{dtype}", tensors, cli.spec(fanout, row_count_profiles=PROFILES, bulk_rows=8, **LOOSE))
    recipe = round_trip(f"fan{dtype}", spec)
    check(any(t["shape"][0] == 1 for t in cli.read_json(recipe, "recipe.json")["tables"].values()), "a constant group")
    lookup = cli.lookup_block([{"op": "linear", "weight": "q"}], name="one", output="hidden")
    spec = cli.folder(f"one{dtype}", tensors, cli.spec(lookup, bulk_rows=8, **LOOSE))
    round_trip(f"one{dtype}", spec, prefix=("--module", "encoder.first"))
    projected = {"kind": "projected", "embedding": {"weight": "e"}, "linear": {"weight": "q", "bias": "b"},
                 "normalize_eps": 1e-12}
    spec = cli.folder(f"pro{dtype}", {**tensors, "b": values(dtype, (5,), 3)}, cli.spec(projected, bulk_rows=8, **LOOSE))
    round_trip(f"pro{dtype}", spec, "--packed")

constant = cli.lookup_block([{"op": "linear", "weight": "z"}])
spec = cli.folder("constant", {"e": cli.random((V, 8), 1), "z": np.zeros((3, 8))}, cli.spec(constant, bulk_rows=8))
check(cli.read_json(round_trip("constant", spec), "recipe.json")["tables"]["group_0"]["shape"] == [1, 3], "constant")
shared = cli.random((V, 8), 1)
shared[10:] = shared[3]  # stored behind an index, which the artifact does not know
spec = cli.folder("shared", {"e": shared}, cli.spec(cli.lookup_block([{"op": "relu"}]), bulk_rows=8))
check(cli.read_json(round_trip("shared", spec), "recipe.json")["tables"]["group_0"].get("indexed"), "shared rows")

# The imported tables against the spec: validated here and now, but the recipe keeps saying what it is.
spec, back = cli.path("fanF32", "spec.json"), cli.path("fanF32", "backFalse")
r = cli.run("verify", back, "--against", spec, "--progress", "none", stderr="digests are not compared")
check("never validated" in r.out and "environment: different" in r.out and "0 stored rows differ" in r.out, r.out)
weights = cli.read_safetensors(cli.path("fanF32", "model.safetensors"))
other = cli.folder("other", {**weights, "q": values("F32", (5, 8), 77, 9)}, cli.read_json(spec))
cli.run("verify", back, "--against", other, "--progress", "none", code=1)

# ---- artifacts of other programs -----------------------------------------------------------------

PLAIN = {"format_version": 1, "weights_file": "model.safetensors", "packing": None, "finite_lookup_rewrites": [],
         "tensor_aliases": {}, "module_aliases": {}, "parameter_aliases": {}, "parameter_storage_aliases": {},
         "rewrites": [], "attention_rewrites": [], "normalization_rewrites": [], "constant_embedding_rewrites": [],
         "packed_embedding_rewrites": [], "adapters": [], "affine_fx": None, "training": False, "module_training": {},
         "requires_grad": {}, "source_tensor_dtypes": {"embed.weight": "float32"}, "report": {"any": ["thing"]}}


def artifact(name, tensors, *entries, **more):
    folder = cli.path(name)
    os.makedirs(folder, exist_ok=True)
    file = os.path.join(folder, "model.safetensors")
    cli.write_safetensors(file, tensors)
    data = open(file, "rb").read()
    manifest = {**copy.deepcopy(PLAIN), "finite_lookup_rewrites": list(entries), "weights_bytes": len(data),
                "weights_sha256": hashlib.sha256(data).hexdigest(), **more}
    cli.write_json(os.path.join(folder, "manifest.json"), manifest)
    return folder


def lookup_entry(rows, width, path="", dtype="float32", constant=False):
    return {"path": path, "num_embeddings": rows, "embedding_dim": width, "constant": constant, "dtype": dtype,
            "training": False}


table = cli.random((9, 3), 4)
folder = artifact("theirs", {"_rows": table}, lookup_entry(9, 3))
importing(folder, cli.path("theirs.out"))
check(cli.rows_of(cli.path("theirs.out"), range(9)).tobytes() == table.tobytes(), "rows of another program's artifact")
check(cli.read_json(cli.path("theirs.out"), "recipe.json")["block"] == "imported", "a block without a name")
pair = {"path": "", "version": 2, "input_contract": "token_indices_only", "num_embeddings": 9, "training": False,
        "tables": {"group_0": {"shape": [9, 3], "dtype": "float32"}, "group_1": {"shape": [1, 2], "dtype": "float32"},
                   "group_2": {"shape": [9, 3], "dtype": "float32"}},
        "outputs": [["a", "group_0", 1, 2], ["b", "group_1", 0, 2], ["c", "group_0", 0, 1]],
        "row_count_profiles": [{"max_rows": 3, "evaluation_rows": 2, "outputs":
                                [["a", "group_2", 0, 2], ["b", "group_1", 0, 2], ["c", "group_2", 2, 1]]}]}
groups = {"tables.group_0": table, "tables.group_1": cli.random((1, 2), 5), "tables.group_2": cli.random((9, 3), 6)}
importing(artifact("pair", groups, pair), cli.path("pair.out"))
check(cli.rows_of(cli.path("pair.out"), [4, 8], "c", "profile0").tobytes() == groups["tables.group_2"][[4, 8], 2:].tobytes(),
      "a column of a profile")

# Part of a larger model: the block's tensors alone, and which block where there are two.
both = artifact("both", {"m.a._rows": table, "m.b._rows": 2 * table, "head.weight": cli.random((4, 3), 1)},
                lookup_entry(9, 3, "m.a"), lookup_entry(9, 3, "m.b"))
importing(both, cli.path("both.out"), code=3, stderr='"m.a" and "m.b": one block is read; say which')
importing(both, cli.path("both.out"), "--module", "m.b")
check(cli.rows_of(cli.path("both.out"), range(9)).tobytes() == (2 * table).tobytes(), "the block that was asked for")
importing(both, cli.path("none.out"), "--module", "m", code=3, stderr='no block at "m"')

# ---- options -------------------------------------------------------------------------------------

importing(folder, cli.path("theirs.out"), code=2, stderr="exists; --force")
cli.run("import", folder, "--out", cli.path("x"), code=2, stderr="--from compressme is missing")
cli.run("import", folder, "--from", "onnx", "--out", cli.path("x"), code=2, stderr='expected compressme, found "onnx"')
cli.run("import", folder, "--from", "compressme", code=2, stderr="--out is missing")
# --force over a compiled recipe: its payload and its report are gone, they would tell of other tables.
victim = cli.path("oneF32", "recipe")
check(os.path.exists(os.path.join(victim, "report.json")), "a compiled recipe has a report")
importing(both, victim, "--module", "m.a", "--force")
check(len(files_of(victim)) == 2 and cli.rows_of(victim, [8]).tobytes() == table[8:].tobytes(), files_of(victim))
importing(both, victim, "--module", "m.a", "--force")
check(len(files_of(victim)) == 2, f"imported again: {files_of(victim)}")

# ---- hostile -------------------------------------------------------------------------------------

before = {f: open(os.path.join(victim, f), "rb").read() for f in files_of(victim)}
count = 0


def refused(pattern, tensors=None, entry=None, **more):
    """Exit 3, one line, no file; a recipe that was there is untouched."""
    global count
    count += 1
    bad = artifact(f"bad{count}", tensors or {"_rows": table}, entry or lookup_entry(9, 3), **more)
    importing(bad, cli.path(f"bad{count}.out"), code=3, stderr=pattern)
    check(not os.path.exists(cli.path(f"bad{count}.out")), f"{pattern}: something is left")
    importing(bad, victim, "--force", code=3)
    return bad


entry = lookup_entry(9, 3)
for key, value in (("format_version", 2), ("format_version", "1"), ("weights_bytes", 5), ("weights_bytes", -1),
                   ("weights_bytes", 1e300), ("weights_sha256", "0" * 64), ("weights_sha256", 7),
                   ("weights_file", "../model.safetensors"), ("weights_file", "/etc/passwd"), ("weights_file", None),
                   ("weights_file", "model.cmppack"), ("packing", "lossless_byte_shuffle_zstd"),
                   ("finite_lookup_rewrites", []), ("finite_lookup_rewrites", {}), ("finite_lookup_rewrites", [7]),
                   ("finite_lookup_rewrites", [{}]), ("rewrites", [1]), ("adapters", {"a": 1}), ("affine_fx", {}),
                   ("training", True), ("training", "no"), ("format_version", None)):
    refused("", **{key: value})
for change in ({"num_embeddings": 10}, {"num_embeddings": 0}, {"num_embeddings": -9}, {"num_embeddings": 9.5},
               {"num_embeddings": 2**53}, {"num_embeddings": 2**64}, {"num_embeddings": "9"}, {"embedding_dim": 2**62},
               {"embedding_dim": 0}, {"embedding_dim": None}, {"dtype": "float16"}, {"dtype": "int8"}, {"dtype": 3},
               {"constant": 1}, {"constant": True}, {"training": True}, {"path": 5}, {"path": "elsewhere"}):
    refused("", entry={**entry, **change})
for change in ({"version": 3}, {"version": 1}, {"input_contract": "anything"}, {"tables": {}}, {"tables": []},
               {"tables": {"group_1": pair["tables"]["group_0"]}}, {"outputs": []}, {"outputs": [["a"]]},
               {"outputs": [["a", "group_9", 0, 2]]}, {"outputs": [["a", "group_18446744073709551616", 0, 2]]},
               {"outputs": [["../a", "group_0", 0, 3], *pair["outputs"][1:]]},
               {"outputs": [["b", "group_0", 1, 2], *pair["outputs"][1:]]},
               {"outputs": [["a", "group_0", 2, 2], *pair["outputs"][1:]]},
               {"outputs": [["a", "group_0", 2**53 - 1, 2], *pair["outputs"][1:]]},
               {"row_count_profiles": []}, {"row_count_profiles": [{"max_rows": 3}]},
               {"row_count_profiles": pair["row_count_profiles"] * 2},
               {"row_count_profiles": [{**pair["row_count_profiles"][0], "max_rows": 0}]},
               {"tables": {**pair["tables"], "group_1": {"shape": [2, 2], "dtype": "float32"}}},
               {"tables": {**pair["tables"], "group_0": {"shape": [9, 3, 1], "dtype": "float32"}}}):
    refused("", tensors=groups, entry={**pair, **change})
projected = {"path": "", "num_embeddings": 9, "embedding_dim": 3, "normalize_eps": 1e-6, "bias": False,
             "dtype": "float32", "training": False}
for change in ({"normalize_eps": -1}, {"normalize_eps": "1"}, {"bias": True}, {"bias": None}, {"embedding_dim": 4}):
    refused("", tensors={"_rows": table, "_norms": table[:, :1]}, entry={**projected, **change})
refused("2 tensors", tensors={"_rows": table, "_more": table})
refused("missing", tensors={"rows": table})
refused("another shape or dtype", tensors={"_rows": table.T})
refused("another shape or dtype", tensors={"_rows": ("F64", table)})
bad = refused("corrupt", weights_sha256="0" * 64)
for text in (b"", b"{", b"[]", b"{}", b"nothing", b'{"a": 1, "a": 2}', b"[" * 100000, b'{"format_version": 1} x',
             b"\xff\xfe{}", json.dumps(PLAIN).encode()[:-9], b'{"format_version": ' + b"9" * 400 + b"}"):
    open(os.path.join(bad, "manifest.json"), "wb").write(text)
    importing(bad, cli.path("x"), code=3)
with open(os.path.join(bad, "manifest.json"), "wb") as f:
    f.truncate(17 << 20)
importing(bad, cli.path("x"), code=3)
os.unlink(os.path.join(bad, "manifest.json"))
importing(bad, cli.path("x"), code=3, stderr="manifest.json")
importing(cli.path("nowhere"), cli.path("x"), code=3)
importing(os.path.join(folder, "manifest.json"), cli.path("x"), code=3)
os.mkfifo(os.path.join(bad, "manifest.json"))
importing(bad, cli.path("x"), code=3)
theirs = artifact("cut", {"_rows": table}, entry)
data = open(os.path.join(theirs, "model.safetensors"), "rb").read()
for wrong in (b"", data[:7], data[:-1], data + b"x", struct.pack("<Q", 2**63) + data[8:], data[:8] + b"[" + data[9:]):
    artifact("cut", {}, entry, weights_sha256=hashlib.sha256(wrong).hexdigest(), weights_bytes=len(wrong))
    open(os.path.join(theirs, "model.safetensors"), "wb").write(wrong)
    importing(theirs, cli.path("x"), code=3)
os.unlink(os.path.join(theirs, "model.safetensors"))
importing(theirs, cli.path("x"), code=3, stderr="model.safetensors")

# A packed payload that claims a terabyte, or to be longer than the limit.
packed = cli.path("fanF32", "cmTrue")
importing(packed, cli.path("x"), "--size-limit", "100", code=3, stderr="the limit is 100")
data = open(os.path.join(packed, "model.cmppack"), "rb").read()
manifest = cli.read_json(packed, "manifest.json")
hostile = cli.path("hostile")
os.makedirs(hostile)
for wrong in (data[:16] + struct.pack(">Q", 1 << 40) + data[24:], data[:12] + struct.pack(">I", 1 << 30) + data[16:],
              data[:56], data[:-1], data + b"x", data[:24] + bytes(32) + data[56:], data[:200] + bytes(40) + data[240:]):
    open(os.path.join(hostile, "model.cmppack"), "wb").write(wrong)
    cli.write_json(os.path.join(hostile, "manifest.json"),
                   {**manifest, "weights_bytes": len(wrong), "weights_sha256": hashlib.sha256(wrong).hexdigest()})
    importing(hostile, cli.path("x"), code=3)
check(not os.path.exists(cli.path("x")), "a refused import leaves no folder")
check({f: open(os.path.join(victim, f), "rb").read() for f in files_of(victim)} == before,
      "a refused import over a recipe leaves it as it was")
cli.run("verify", victim)

# A write that fails: exit 4, and the folder is gone or as it was.
if cli.FAULTS:
    for fault in ("file_write", "file_write#2", "file_rename", "file_rename#2"):
        importing(folder, cli.path("full"), code=(0, 4), env={"TOKENTAB_FAULT": fault})
        if os.path.exists(cli.path("full")):
            check(len(files_of(cli.path("full"))) == 2, f"{fault}: {files_of(cli.path('full'))}")
            subprocess.run(["rm", "-r", cli.path("full")], check=True)
        importing(folder, victim, "--force", code=(0, 4), env={"TOKENTAB_FAULT": fault})
        cli.run("verify", victim)
        check(len(files_of(victim)) == 2, f"{fault}: {files_of(victim)}")
cli.finish()
