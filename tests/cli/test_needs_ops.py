# SPDX-License-Identifier: Apache-2.0
"""Right values of ops and attributes (NEEDS 1C and 1D), refusals that name the node, the four-token example."""
import math
import os

import cli
from cli import check, np


def table(name, tensors, layers, code=0, stderr=None, embedding="e", output="output", **more):
    """Rows of a lookup block over all tokens, in both arithmetics."""
    found = []
    for arithmetic in ("library", "correctly_rounded") if code == 0 else ("library",):
        document = cli.spec(cli.lookup_block(layers, embedding=embedding),
                            **{"tolerance": {"absolute": 1, "relative": 1}, "arithmetic": arithmetic, **more})
        spec, out = cli.folder(f"{name}-{arithmetic}", tensors, document), cli.path(f"{name}-{arithmetic}", "out")
        cli.compile(spec, out, code=code, stderr=stderr)
        if code == 0:
            t = cli.report_of(out)["tables"][0]
            rows = cli.read_tables(out + ".work")["bulk", output]
            found.append(cli.as_float(t["dtype"], rows))
    return found


def expect(name, tensors, layers, values, tolerance=0.0, **more):
    for rows in table(name, tensors, layers, **more):
        values = np.asarray(values, "f8").reshape(rows.shape)
        check((abs(rows - values) <= tolerance * np.maximum(1, abs(values))).all(),
              f"{name}: found {rows.tolist()}, expected {values.tolist()}")


def expect_many(name, tensors, branches):
    """One fanout of branches: (layers, values, tolerance)."""
    for arithmetic in ("library", "correctly_rounded"):
        document = cli.spec({"kind": "fanout", "embedding": {"weight": "e"},
                             "branches": {b: layers for b, (layers, _, _) in branches.items()}},
                            arithmetic=arithmetic, tolerance={"absolute": 1, "relative": 1})
        out = cli.path(f"{name}-{arithmetic}", "out")
        cli.compile(cli.folder(f"{name}-{arithmetic}", tensors, document), out)
        tables = cli.read_tables(out + ".work")
        for branch, (_, values, tolerance) in branches.items():
            rows = tables["bulk", branch]
            values = np.asarray(values, "f8").reshape(rows.shape)
            check((abs(rows - values) <= tolerance * np.maximum(1, abs(values))).all(),
                  f"{name} {branch} {arithmetic}: found {rows.tolist()}, expected {values.tolist()}")


ULP = 2.0 ** -23

# ---- N23: renormalised rows -------------------------------------------------------------------
expect("renorm", {"e": [[3.0, 4], [0.3, 0.4]]}, [{"op": "renorm", "max_norm": 1}], [[0.6, 0.8], [0.3, 0.4]], 2e-7)
max_norm = cli.spec({"kind": "lookup", "embedding": {"weight": "e", "max_norm": 1.0}, "layers": []})
cli.compile(cli.folder("max_norm", {"e": [[3.0, 4]]}, max_norm), cli.path("max_norm", "out"), code=3, stderr="max_norm")
sparse = cli.spec({"kind": "lookup", "embedding": {"weight": "e", "sparse": True}, "layers": []})
cli.compile(cli.folder("sparse", {"e": [[3.0, 4]]}, sparse), cli.path("sparse", "out"), code=3, stderr="sparse")

# ---- N25: a scale and the dtype its value is rounded to -----------------------------------------
one = {"e": [[1.0]]}
root = math.sqrt(3072)
expect_many("scale", one, {
    "bf16": ([{"op": "scale", "value": root, "value_dtype": "BF16"}], [[55.5]], 0),
    "f32": ([{"op": "scale", "value": root, "value_dtype": "F32"}], [[55.42562484741211]], 0),
    "default": ([{"op": "scale", "value": root}], [[55.42562484741211]], 0)})
roots = {640: 25.25, 1152: 34.0, 1536: 39.25, 2048: 45.25, 2560: 50.5, 4096: 64.0}
document = cli.spec({"kind": "fanout", "embedding": {"weight": "e"}, "branches": {
    f"d{d}": [{"op": "scale", "value": math.sqrt(d), "value_dtype": "BF16"}] for d in roots}})
cli.compile(cli.folder("gemma", {"e": ("BF16", cli.bf16([[1.0]]))}, document), cli.path("gemma", "out"))
for d, value in roots.items():
    rows = cli.read_tables(cli.path("gemma", "out.work"))["bulk", f"d{d}"]
    check(cli.as_float("BF16", rows) == [[value]], f"sqrt({d}) in bf16: {rows}")

# ---- N26, N27: RMS and layer norms --------------------------------------------------------------
x, g = {"e": [[3.0, 4]], "w": [0.0, 0], "u": [1.0, 1]}, [[0.8485281374238570, 1.1313708498984760]]
expect_many("rms", x, {f"{op}-{kind}": ([{"op": op, "eps": 0, **how}], values, tolerance)
                       for op in ("rms_norm", "float32_rms_norm")
                       for kind, how, values, tolerance in (
                           ("llama", {"weight": "w"}, [[0, 0]], 0), ("ones", {"weight": "u"}, g, 2 * ULP),
                           ("gemma", {"weight": "w", "weight_offset": 1}, g, 2 * ULP))})
half = {"e": [[1.0, 1]], "w": ("BF16", cli.bf16([0.05, 15.8125]))}
for dtype, values in (("F32", [1.050048828125, 16.8125]), ("BF16", [1.046875, 16.75])):
    layer = {"op": "rms_norm", "weight": "w", "eps": 0, "weight_offset": 1, "weight_offset_dtype": dtype}
    expect(f"offset-{dtype}", half, [layer], [values], 2 * ULP)
expect_many("layer_norm", {"e": [[0.001, -0.001]]}, {
    f"eps{i}": ([{"op": "layer_norm", "eps": eps}], [[value, -value]], 2e-6)
    for i, (eps, value) in enumerate(((1e-5, 0.3015113), (1e-6, 0.7071068), (1e-12, 0.9999995)))})
flat = {"e": [[0.5, 0.5]], "w": [3.0, 4], "b": [0.25, -7]}
expect("flat", flat, [{"op": "layer_norm", "weight": "w", "bias": "b", "eps": 1e-5}], [[0.25, -7]])
for op in ("layer_norm", "rms_norm", "float32_rms_norm", "l2_normalize"):
    table(op + "-eps", x, [{"op": op}], code=3, stderr=r"layers\[0\]\.eps: missing")

# ---- N28: GELUs and their neighbours ------------------------------------------------------------
VALUES = (("gelu_erf", 0.8413447460685429), ("gelu_tanh", 0.8411919906082768),
          ("quick_gelu", 0.8457957659328212), ("silu", 0.7310585786300049), ("tanh", math.tanh(1)),
          ("sigmoid", 1 / (1 + math.exp(-1))), ("softsign", 0.5), ("hardswish", 4 / 6), ("relu6", 1),
          ("hardsigmoid", 4 / 6), ("mish", math.tanh(math.log1p(math.e))), ("selu", 1.0507009873554805))
expect_many("activations", one, {op: ([{"op": op}], [[value]], 2 * ULP) for op, value in VALUES})
table("gelu", one, [{"op": "gelu"}], code=3, stderr="gelu_erf.*gelu_tanh")
grid = np.linspace(-4, 4, 4001, dtype="<f4").reshape(-1, 1)
erf, tanh = (table(op + "-grid", {"e": grid}, [{"op": op}]) for op in ("gelu_erf", "gelu_tanh"))
for a, b in zip(erf, tanh):
    worst = np.argmax(abs(a - b))
    check(abs(abs(a - b)[worst, 0] - 4.7324e-4) < 3e-7 and abs(abs(grid[worst, 0]) - 2.70) < 0.02,
          f"erf against tanh: {abs(a - b)[worst]} at {grid[worst]}")

# ---- N29, N30: orientation and fused splits -----------------------------------------------------
square = {"e": [[1.0, 10]], "w": [[1.0, 2], [3, 4]]}
expect_many("square", square, {
    "out_in": ([{"op": "linear", "weight": "w", "orientation": "out_in"}], [[21, 43]], 0),
    "default": ([{"op": "linear", "weight": "w"}], [[21, 43]], 0),
    "in_out": ([{"op": "linear", "weight": "w", "orientation": "in_out"}], [[31, 42]], 0)})
fused = {"e": [[1.0]], "w": np.arange(1.0, 7).reshape(6, 1), "b": np.arange(10.0, 16)}
for mode, values in (("per_head_interleaved", {"q": [1, 4], "k": [2, 5], "v": [3, 6]}),
                     ("blocks", {"q": [1, 2], "k": [3, 4], "v": [5, 6]})):
    split = {"mode": mode, "heads": 2, "head_dim": 1, "kv_heads": 2}
    block = {"kind": "fanout", "embedding": {"weight": "e"},
             "branches": {p: [{"op": "linear", "weight": "w", "split": {**split, "part": p}}] for p in "qkv"}}
    out = cli.path(mode, "out")
    cli.compile(cli.folder(mode, fused, cli.spec(block)), out)
    for part, expected in values.items():
        check(cli.rows_of(out, [0], part).tolist() == [expected], f"{mode} {part}")
    check(cli.report_of(out)["storage"]["unique_before"] == 4 * 7, "the fused tensor lies there once")
    with_bias = {"op": "linear", "weight": "w", "bias": "b", "split": {**split, "part": "k"}}
    expect(mode + "-bias", fused, [with_bias], [np.add(values["k"], np.add(values["k"], 9))])
third = {"op": "linear", "weight": "w", "split": {"mode": "blocks", "part": 1, "parts": 3}}
expect("thirds", fused, [third], [[3, 4]])
table("fifths", fused, [dict(third, split={"mode": "blocks", "part": 1, "parts": 5})], code=3, stderr="split|parts")

# ---- N46: conversions, through a scale by one to another dtype's grid ---------------------------
fine = {"e": ("BF16", cli.bf16([[3.14, 1.0]])), "w": ("BF16", cli.bf16(np.ones((1, 2))))}
check(cli.bf16([3.14])[0] == 0x4049 and cli.bf16([0.26914087702922])[0] == 0x3E8A, "the tests' own rounding")
expect("bf16_sum", {"e": ("BF16", cli.bf16(np.ones((1, 512)))), "w": ("BF16", cli.bf16(np.ones((1, 512))))},
       [{"op": "linear", "weight": "w"}], [[512.0]])
expect("f16_sum", {"e": ("F16", np.ones((1, 512))), "w": ("F16", np.ones((1, 512)))},
       [{"op": "linear", "weight": "w"}], [[512.0]])
table("f16_over", {"e": ("F16", [[65504.0]])}, [{"op": "scale", "value": 2}], code=5, stderr="token 0")

# ---- N31: what is not token-local is refused, and why ------------------------------------------
for op, why in (("rope", "position"), ("attention", "token"), ("conv1d", "token"), ("token_shift", "token"),
                ("absolute_position", "position"), ("softmax", "graph"), ("batch_norm", "graph|batch|token"),
                ("frobnicate", "unknown op"), ("lienar", "linear")):
    table("refuse-" + op, square, [{"op": "linear", "weight": "w"}, {"op": op}], code=3, stderr=why)
    check(os.path.exists(cli.path(f"refuse-{op}-library", "out")) is False, f"{op}: a recipe")
for what, change in (("training", {"mode": "train"}), ("contract", {"input_contract": "embeddings"}),
                     ("version", {"tokentab": 2})):
    document = {**cli.spec(cli.lookup_block([])), **change}
    cli.compile(cli.folder(what, one, document), cli.path(what, "out"), code=3, stderr=list(change)[0])

# ---- specs: unknown keys, wrong types, with the JSON path ---------------------------------------
linear = {"op": "linear", "weight": "w"}
for name, document, pattern in (
        ("unknown", dict(cli.spec(cli.lookup_block([linear])), extra=1), "extra"),
        ("nested", cli.spec(cli.lookup_block([dict(linear, wieght="w")])), r"block\.layers\[0\]\.wieght"),
        ("type", cli.spec(cli.lookup_block([{"op": "scale", "value": "2"}])), r"layers\[0\]\.value.*number.*string"),
        ("branch", cli.spec({"kind": "fanout", "embedding": {"weight": "e"}, "branches": {"q": [{"op": "tanh", "x": 1}]}}),
         r"branches\.q\[0\]\.x"),
        ("rows", cli.spec(cli.lookup_block([]), bulk_rows=0), "bulk_rows"),
        ("profile", cli.spec(cli.lookup_block([]), row_count_profiles=[{"max_rows": 2}]), r"profiles\[0\]\.evaluation_rows"),
        ("storage", cli.spec(cli.lookup_block([]), storage="perhaps"), "storage.*may_grow"),
        ("arithmetic", cli.spec(cli.lookup_block([]), arithmetic="fast"), "arithmetic.*correctly_rounded"),
        ("tolerance", cli.spec(cli.lookup_block([]), tolerance={"absolute": -1, "relative": 0}), "tolerance.absolute"),
        ("two", dict(cli.spec(cli.lookup_block([])), blocks=[]), "block"),
        ("none", {k: v for k, v in cli.spec(cli.lookup_block([])).items() if k != "block"}, "block")):
    spec = cli.folder("spec-" + name, square, document)
    r = cli.run("plan", spec, "--quiet", code=3, stderr=pattern)
    check(len(r.err.splitlines()) == 1 and "spec.json" in r.err, f"{name}: {r.err}")
for text, name in (("{", "cut"), ('{"tokentab": 1, "tokentab": 1}', "twice"), ("[]", "list"), ("", "empty"), ("{} x", "junk")):
    with open(cli.path(name + ".json"), "w") as f:
        f.write(text)
    r = cli.run("plan", cli.path(name + ".json"), "--quiet", code=3, stderr=name + ".json")
    check(len(r.err.splitlines()) == 1, f"{name}: {r.err}")
cli.run("compile", cli.folder("no_out", one, cli.spec(cli.lookup_block([]))), code=2, stderr="--out")
cli.run("compile", code=2)
cli.run("compile", "x", "--ouy", "y", code=2, stderr="--out")
cli.run("compile", "x", "--out", "y", "--shard-units", "1x", code=2, stderr="shard-units")
cli.run("compile", cli.path("no_out", "spec.json"), "--out", cli.path("same"), "--work", cli.path("same"), code=2)

# ---- N57, N66: 280,000 ids with duplicates; files that plain HDF5 reads -------------------------
v = 3000
rng = np.random.default_rng(5)
big = cli.spec({"kind": "fanout", "embedding": {"weight": "e"}, "residual": "r",
                "branches": {"q": [linear]}}, bulk_rows=16)
spec, out = cli.folder("big", {"e": cli.random((v, 20), 1), "w": cli.random((6, 20), 2)}, big), cli.path("big", "out")
cli.compile(spec, out, ranks=2)
ids = rng.integers(0, v, 280000)
np.savetxt(cli.path("ids.txt"), ids, fmt="%d")
tables = cli.read_tables(out + ".work")
for output in ("q", "r"):
    cli.run("lookup", out, "--ids", "@" + cli.path("ids.txt"), "--output", output, "--format", "npy", "--file",
            cli.path("rows.npy"), "--force")
    check(np.load(cli.path("rows.npy")).tobytes() == tables["bulk", output][ids].tobytes(), f"280,000 rows of {output}")
for file in ("tables.h5", "units/unit-00000003.h5"):
    r = cli.run_command(["h5dump", "-H", "-p", os.path.join(out + ".work", "block", file)])
    check("bulk" in r.out and "USER_DEFINED_FILTER" not in r.out, f"h5dump of {file}: {r.out[:400]}")
moved = cli.path("moved")
os.rename(out + ".work", moved)
check(cli.read_tables(moved)["bulk", "q"].tobytes() == tables["bulk", "q"].tobytes(), "a work folder may be moved")

# ---- statistics ---------------------------------------------------------------------------------
report = cli.read_json(moved, "block", "report.json")
n_chunks = sum(-(-min(256, v - first) // 257) for first in range(0, v, 256))
for s in report["statistics"]:
    check(sum(s["ulp_histogram"]) == s["elements"] - s["nonfinite"], f"histogram {s}")
    check(s["exact"] == (s["unequal"] == 0) and s["bitwise"] == (s["unequal_bytes"] == 0), f"flags {s}")
    check(s["cases"] > 0 and s["max_abs_to_double"] < 1e-4, f"statistic {s}")
    if s["class"].startswith("single"):
        check(s["cases"] == v and s["elements"] == v * (6 if s["output"] == "q" else 20), f"every token alone: {s}")
    if s["class"] == "chunk" and s["output"] == "q":
        check(s["cases"] == n_chunks and s["elements"] == v * 6, f"every token in a chunk: {s}")
names = {l for c in report["execution_classes"] for l in c["layouts"]}
check({"(n)", "(1,n)", "(n,1)", "(1,1,n)", "scalar", "(1,n) expanded to (2,n)"} <= names, f"layouts {names}")

# ---- N69: singletons under a launcher -----------------------------------------------------------
slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "2"}
r = cli.compile(spec, cli.path("singleton"), code=4, env=slurm)
check("pmix" in r.err or "mpirun" in r.err or r.err == "", f"singleton: {r.err}")
check(not os.path.exists(cli.path("singleton.work")), "a singleton touched files")
cli.run("plan", spec, env=slurm)

# ---- the README's four tokens -------------------------------------------------------------------
four = os.path.join(cli.SOURCE, "examples", "four-token", "spec.json")
out = cli.path("four")
r = cli.run("compile", four, "--out", out, "--progress", "none")
check("before 132 (132 B), after 16 (16 B): shrinks" in r.out and "tables 1 distinct of 2" in r.out, f"README: {r.out}")
values = cli.run("lookup", out, "--ids", "3,0,1,2").out
check(all(x in values for x in ("27.5", "5.5", "3.5", "10.5")), f"README's values: {values}")
cli.run("verify", out, "--against", four)
cli.run("compile", four, "--out", cli.path("four4"), "--progress", "none", ranks=4)
cli.check_same_bytes(cli.promised_bytes(out), cli.promised_bytes(cli.path("four4")), "four tokens on four ranks")
cli.run("diff", out, cli.path("four4"))
cli.finish()
