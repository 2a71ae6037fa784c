# SPDX-License-Identifier: Apache-2.0
"""verify and compiling again: corrupt, historical, other weights, other environments, what is reused."""
import hashlib
import json
import os
import re
import shutil

import cli
from cli import check

V, UNIT = 200, 64
tensors = {"e": cli.random((V, 24), 1), "n": 1 + 0.1 * cli.random(24, 2), "w": cli.random((8, 24), 3, 0.2),
           "b": cli.random(8, 4)}
layers = [{"op": "rms_norm", "weight": "n", "eps": 1e-6}, {"op": "linear", "weight": "w", "bias": "b"},
          {"op": "silu"}]
more = {"row_count_profiles": [{"max_rows": 1, "evaluation_rows": 1}], "bulk_rows": 4, "validation_rows": 7}
spec = cli.folder("model", tensors, cli.spec(cli.lookup_block(layers), **more))
out = cli.path("recipe")
first = cli.compile(spec, out).json()["blocks"][0]
check(first["units_evaluated"] == 4 and first["units_reused"] == 0, f"first run: {first}")


def payload_of(recipe):
    return os.path.join(recipe, cli.read_json(recipe, "recipe.json")["payload"]["file"])


def flip(file, offset):
    with open(file, "r+b") as f:
        f.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        byte = f.read(1)[0]
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte ^ 4]))


def copy(name):
    shutil.copytree(out, cli.path(name))
    return cli.path(name)


# ---- verify ----------------------------------------------------------------------------------
r = cli.run("verify", out, "--json").json()
check(r["schema_version"] == 1 and r["verb"] == "verify" and r["verified"] and r["payload"] == "every byte", f"verify: {r}")
for ranks in (0, 3):
    r = cli.run("verify", out, "--against", spec, "--json", ranks=ranks).json()
    check(r["environment"] == "same" and r["tokens"] == V and r["rows_differing_in_bytes"] == 0, f"against: {r}")
    check(r["layout_checks"] > 0, f"against: {r}")

bad = copy("corrupt")
flip(payload_of(bad), -1)
cli.run("verify", bad, code=3, stderr="corrupt")
r = cli.run("verify", bad, "--quick", "--json")
check(r.json()["payload"] == "header only", f"--quick: {r.out}")
cli.run("verify", bad, "--against", spec, code=3, ranks=2, stderr="corrupt")

for name, change in (("threshold", lambda t: t.replace("1e-05", "1e-04")),
                     ("descriptor", lambda t: t.replace('"output"', '"renamed"'))):
    old = copy("historical-" + name)
    text = open(os.path.join(old, "recipe.json")).read()
    check(change(text) != text, f"{name}: nothing to change in {text[:400]}")
    with open(os.path.join(old, "recipe.json"), "w") as f:
        f.write(change(text))
    cli.run("verify", old, code=1, stderr="historical")
    r = cli.run("lookup", old, "--ids", "1")
    check("historical" in r.err, f"{name}: the lookup does not say historical: {r.err}")

for name, break_it in (("cut", lambda f: os.truncate(f, os.path.getsize(f) - 4)),
                       ("longer", lambda f: open(f, "ab").write(b"\0")),
                       ("header", lambda f: flip(f, 12)), ("gone", os.unlink)):
    bad = copy("payload-" + name)
    break_it(payload_of(bad))
    cli.run("verify", bad, code=3, stderr="tables-")
    cli.run("lookup", bad, "--ids", "1", code=3)
cli.run("verify", cli.path("model"), code=3, stderr="recipe.json")

# Against another model, another function, another vocabulary: never equal.
other = dict(tensors, w=tensors["w"] + 1e-3)
cli.run("verify", out, "--against", cli.folder("weights", other, cli.spec(cli.lookup_block(layers), **more)), code=1,
        stderr="weight")
rows = dict(tensors, e=tensors["e"] * 1.5)
cli.run("verify", out, "--against", cli.folder("rows", rows, cli.spec(cli.lookup_block(layers), **more)), code=1)
# The same weights over an embedding of another dtype: other elements, of which none may be read as the spec's.
wide = cli.folder("wide", dict(tensors, e=("F64", tensors["e"])), cli.spec(cli.lookup_block(layers), **more))
cli.compile(wide, cli.path("wide.recipe"))
cli.run("verify", cli.path("wide.recipe"), "--against", spec, code=1, stderr=r"recipe output \[8\] of F64, spec output \[8\] of F32")
cli.run("verify", out, "--against", wide, code=1, stderr=r"of F32, spec output \[8\] of F64", ranks=2)
listed = cli.folder("listed", tensors, cli.spec(cli.lookup_block(layers), ids="ids.txt", **more))
with open(cli.path("listed", "ids.txt"), "w") as f:
    f.write(f"0-{V - 1}\n")
cli.run("verify", out, "--against", listed, code=1, stderr="id list: recipe none, spec has one")
fan = {"kind": "fanout", "embedding": {"weight": "e"}, "prefix": [], "branches": {"output": layers}}
cli.run("verify", out, "--against", cli.folder("fan", tensors, cli.spec(fan, **more)), code=1,
        stderr="kind: recipe lookup, spec fanout")
eps = [dict(layers[0], eps=1e-3), *layers[1:]]
cli.run("verify", out, "--against", cli.folder("eps", tensors, cli.spec(cli.lookup_block(eps), **more)), code=1)
for name, change, what in (("short", {"vocab": 100}, "tokens"), ("profiles", {"row_count_profiles": []}, "profiles"),
                           ("arithmetic", {"arithmetic": "correctly_rounded"}, "arithmetic")):
    changed = cli.folder(name, tensors, cli.spec(cli.lookup_block(layers), **{**more, **change}))
    cli.run("verify", out, "--against", changed, code=1, stderr=what)

# What a recipe says of itself: sealed anew after a change, it is no longer what the spec says.
def reseal(recipe):
    """The seal over the content as it is now (FORMAT.md): SHA-256 of the bytes with "seal" empty."""
    file = os.path.join(recipe, "recipe.json")
    text = open(file, "rb").read()
    empty = re.sub(rb'("seal": ?)"[0-9a-f]{64}"', rb'\1""', text)
    sealed = re.sub(rb'("seal": ?)""', rb'\1"' + hashlib.sha256(empty).hexdigest().encode() + b'"', empty)
    with open(file, "wb") as f:
        f.write(sealed)


def lie(name, source, *edits, what, against=spec, ranks=0):
    recipe = cli.path("lie-" + name)
    shutil.copytree(source, recipe)
    file = os.path.join(recipe, "recipe.json")
    text = open(file).read()
    for pattern, new in edits:
        text, n = re.subn(pattern, new, text, count=1)
        check(n == 1, f"{name}: no {pattern} in {text}")
    with open(file, "w") as f:
        f.write(text)
    reseal(recipe)
    cli.run("verify", recipe)
    cli.run("verify", recipe, "--against", against, "--progress", "none", code=1, stderr=what, ranks=ranks)


ZEROS = "0" * 64
lie("absolute", out, (r'("absolute": ?)"1e-05"', r'\1"5"'), what="thresholds.absolute: recipe 5, spec 1e-05")
lie("relative", out, (r'("relative": ?)"1e-05"', r'\1"1"'), what="thresholds.relative: recipe 1, spec 1e-05")
lie("more", out, (r'(\n *)("relative": "1e-05")', r'\1\2,\1"decision.output": "top_k 1"'),
    what="thresholds.decision.output: recipe top_k 1, spec none")
lie("policy", out, ("may_grow", "must_shrink"), what="storage policy: recipe must_shrink, spec may_grow")
lie("profile", out, (r'("max_rows": ?)1\b', r"\g<1>2"), what="row_count_profiles")
for n in (0, 3):
    lie(f"inputs{n}", out, (r'("inputs": ?)"[0-9a-f]{64}"', rf'\1"{ZEROS}"'), what="provenance.inputs: recipe 0000", ranks=n)
lie("provenance", out, (r'(\n *)("inputs")', r'\1"spec.source": "the best",\1\2'), what="fields of provenance")
lie("tokens", out, (r'("tokens": ?)200', r"\g<1>201"), what="validation.tokens: recipe 201, here 200")
lie("status", out, ("accepted_on_full_domain_validation", "accepted"), what="validation.status")
stated = cli.read_json(out, "recipe.json")["validation"]["outputs"][0]
lie("bitwise", out, (r'("bitwise": ?)(true|false)', r"\1" + ("false" if stated["bitwise"] else "true")),
    what=r"validation.outputs\[0\].bitwise: recipe")
lie("max_abs", out, (r'("max_abs": ?)[^,]+', r"\g<1>0.25"), what=r"validation.outputs\[0\].max_abs: recipe 0.25, here")
for name, change, what in (("tolerance", {"tolerance": {"absolute": 0.0002, "relative": 1e-5}}, "thresholds.absolute: recipe 1e-05, spec 0.0002"),
                           ("policy", {"storage": "must_shrink"}, "storage policy"),
                           ("validation_rows", {"validation_rows": 9}, "provenance.inputs"),
                           ("bulk_rows", {"bulk_rows": 8}, "provenance.inputs")):
    cli.run("verify", out, "--against", cli.folder("says-" + name, tensors, cli.spec(cli.lookup_block(layers), **{**more, **change})),
            code=1, stderr=what)
# Ranks that read different specs would validate a mixture.
parts = [["-n", "1", cli.BIN, "verify", out, "--against", file, "--progress", "none"]
         for file in (spec, cli.path("says-validation_rows", "spec.json"))]
cli.run_command(["mpirun", *parts[0], ":", *parts[1]], code=4, stderr="validation_rows is 7 on rank 0 .*, 9 on rank 1")
exact = cli.folder("exact", tensors, cli.spec(cli.lookup_block(layers), arithmetic="correctly_rounded", **more))
cli.compile(exact, cli.path("exact.recipe"), "--packed")
cli.run("verify", cli.path("exact.recipe"), "--against", exact, ranks=2)
cli.run("verify", cli.path("exact.recipe"), "--against", exact, "--blas-core", "Prescott")
lie("exact", cli.path("exact.recipe"), (r'("inputs": ?)"[0-9a-f]{64}"', rf'\1"{ZEROS}"'), what="provenance.inputs",
    against=exact)

# Another numeric environment is told apart from corruption; tolerance decides.
r = cli.run("verify", out, "--against", spec, "--blas-core", "Prescott", "--json")
check(r.json()["environment"] == "different" and r.json()["verified"], f"other core: {r.out}")
check("blas_core" in r.err, f"other core: the field is not named: {r.err}")
before = cli.promised_bytes(out)

# ---- compiling again -------------------------------------------------------------------------
stamps = {n: os.stat(os.path.join(out, n)).st_mtime_ns for n in os.listdir(out)}
again = cli.compile(spec, out).json()["blocks"][0]
check(again["unchanged"] and again["units_reused"] == 4 and again["units_evaluated"] == 0, f"again: {again}")
check(stamps == {n: os.stat(os.path.join(out, n)).st_mtime_ns for n in os.listdir(out)}, "unchanged files were written")

# A corrupt recipe is made again from the stored units.
flip(payload_of(out), -1)
r = cli.compile(spec, out, ranks=2).json()["blocks"][0]
check(not r["unchanged"] and r["units_reused"] == 4, f"corrupt recipe: {r}")
cli.check_same_bytes(before, cli.promised_bytes(out), "made again")

# Damaged units, and only those, are evaluated again and named (N64).
units = os.path.join(out + ".work", "block", "units")
flip(os.path.join(units, "unit-00000001.h5"), 9000)
os.truncate(os.path.join(units, "unit-00000002.h5"), 1000)
with open(os.path.join(units, "unit-00000003.h5"), "r+b") as f:
    f.write(bytes(os.path.getsize(f.name)))
r = cli.compile(spec, out, ranks=3)
blocks = r.json()["blocks"][0]
check(blocks["units_evaluated"] == 3 and blocks["units_reused"] == 1, f"damaged units: {blocks}")
for unit in (1, 2, 3):
    check(f"unit {unit}: evaluated again" in r.err, f"damaged unit {unit} is not named: {r.err}")
cli.check_same_bytes(before, cli.promised_bytes(out), "after damage")

# Another thread count or core is another environment: refused, or started over on request (N38).
r = cli.compile(spec, out, "--blas-core", "Prescott", code=4, stderr="environment")
check("Prescott" in r.err and "--accept-environment" in r.err, f"other environment: {r.err}")
cli.compile(spec, out, "--blas-threads", "2", code=4, stderr="blas_threads: 1 → 2")
cli.check_same_bytes(before, cli.promised_bytes(out), "a refused environment")
r = cli.compile(spec, out, "--blas-threads", "2", "--accept-environment").json()["blocks"][0]
check(r["units_evaluated"] == 4, f"accepted environment: {r}")

# A changed spec evaluates anew and says why; tolerance and storage do not (N73).
shutil.rmtree(out + ".work")
cli.compile(spec, out)
changed = cli.spec(cli.lookup_block(layers), **{**more, "tolerance": {"absolute": 1e-4, "relative": 1e-4}})
cli.write_json(spec, changed)
r = cli.compile(spec, out).json()["blocks"][0]
check(r["units_reused"] == 4 and not r["unchanged"], f"other tolerance: {r}")
check("0.0001" in json.dumps(cli.read_json(out, "recipe.json")), "the recipe keeps the old tolerance")
cli.write_json(spec, cli.spec(cli.lookup_block(eps), **more))
r = cli.compile(spec, out)
check(r.json()["blocks"][0]["units_evaluated"] == 4, f"other eps: {r.out}")
check("1e-06" in r.err and "0.001" in r.err and "→" in r.err, f"other eps: old and new are not logged: {r.err}")

# New rows at the end of the vocabulary: only the last unit and the new ones are evaluated.
longer = dict(tensors, e=cli.np.concatenate([tensors["e"], cli.random((60, 24), 9)]))
cli.write_safetensors(cli.path("model", "model.safetensors"), longer)
r = cli.compile(spec, out).json()["blocks"][0]
check(r["tokens"] == 260 and r["units_reused"] == 3 and r["units_evaluated"] == 2, f"longer vocabulary: {r}")

# --fresh evaluates all; the recipe's old payload is gone.
r = cli.compile(spec, out, "--fresh").json()["blocks"][0]
check(r["units_evaluated"] == 5, f"--fresh: {r}")
check(sum(n.startswith("tables-") for n in os.listdir(out)) == 1, f"old payloads: {os.listdir(out)}")

# A result that is refused later leaves the recipe as it is.
before = {n: b for n, b in cli.promised_bytes(out).items() if n.startswith("recipe/")}
cli.write_json(spec, cli.spec(cli.lookup_block(eps), **{**more, "storage": "must_shrink", "vocab": 9}))
cli.compile(spec, out, code=(0, 6))
nan = dict(longer, w=longer["w"] * float("inf"))
cli.write_safetensors(cli.path("model", "model.safetensors"), nan)
recipe = {n: b for n, b in cli.promised_bytes(out).items() if n.startswith("recipe/")}
cli.compile(spec, out, code=5, stderr="w.*not finite")
after = {n: b for n, b in cli.promised_bytes(out).items() if n.startswith("recipe/")}
cli.check_same_bytes(recipe, after, "a refused run")
check(cli.report_of(out)["status"] == "refused_unsupported", "report of a refusal")
cli.finish()
