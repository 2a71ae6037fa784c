# SPDX-License-Identifier: Apache-2.0
"""Projected blocks: z and r stored once, raw and normalised outputs, bias outside the division."""
import os

import cli
from cli import check, np

V, K, N, EPS = 70, 24, 5, 1e-3


def model(dtype="F32", bias=True):
    e = cli.random((V, K), 1)
    e[3] = 0
    e[4] = 1e-6
    w, b = cli.random((N, K), 2, 0.2), cli.random(N, 3)
    tensors = {"e": e, "w": w, "b": b}
    if not bias:
        del tensors["b"]
    if dtype == "BF16":
        return {n: (dtype, cli.bf16(a)) for n, a in tensors.items()}
    return {n: (dtype, a.astype(cli.NUMPY[dtype])) for n, a in tensors.items()}


def block(bias=True, **more):
    linear = {"weight": "w", "bias": "b"} if bias else {"weight": "w"}
    return {"kind": "projected", "embedding": {"weight": "e"}, "linear": linear, "normalize_eps": EPS, **more}


def values(tensors):
    return {n: cli.as_float(*t) for n, t in tensors.items()}


PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]
for name, dtype, bias, tolerance, more in (
        ("plain", "F32", True, 1e-5, {}), ("double", "F64", True, 1e-12, {}), ("no_bias", "F32", False, 1e-5, {}),
        ("profiles", "F32", True, 1e-5, {"row_count_profiles": PROFILES}),
        ("rounded", "F32", True, 1e-5, {"row_count_profiles": PROFILES, "arithmetic": "correctly_rounded"}),
        ("half", "F16", True, 4e-3, {}), ("bfloat", "BF16", True, 7e-2, {})):
    tensors = model(dtype, bias)
    size = np.dtype(cli.NUMPY[dtype]).itemsize
    limit = {"tolerance": {"absolute": tolerance, "relative": tolerance}}
    spec = cli.folder(name, tensors, cli.spec(block(bias), bulk_rows=2, validation_rows=9, **limit, **more))
    out = cli.path(name, "out")
    cli.compile(spec, out, ranks=2 if name == "plain" else 0)
    report = cli.report_of(out)
    v = values(tensors)
    norm = np.maximum(np.linalg.norm(v["e"], axis=1), EPS)
    z = v["e"] @ v["w"].T
    b = v["b"] if bias else 0
    for output, expected in (("raw", z + b), ("normalized", z / norm[:, None] + b)):
        rows = cli.rows_of(out, range(V), output)
        found = cli.as_float(dtype, rows.view("<u2") if dtype == "BF16" else rows)
        check(np.allclose(found, expected, rtol=4 * tolerance, atol=4 * tolerance), f"{name}: {output} rows")
        if bias:
            check(np.allclose(found[3], b, rtol=1e-6, atol=1e-12), f"{name}: {output} of the zero row is not the bias")
    tables = cli.read_tables(out + ".work")
    check({o for _, o in tables} == {"z", "r"} and tables["bulk", "r"].shape == (V, 1), f"{name}: tables")
    r = cli.as_float(dtype, tables["bulk", "r"])[:, 0]
    check(np.allclose(r[3], EPS, rtol=1e-2) and np.allclose(r, norm, rtol=4 * tolerance), f"{name}: r {r[:6]}")
    # The bias lies in the recipe and counts on both sides.
    storage = report["storage"]
    sizes = sum(t["bytes"] for t in report["tables"])
    check(storage["bias"] == (N * size if bias else 0), f"{name}: {storage}")
    check(storage["logical_before"] == size * (V * K + N * K) + storage["bias"], f"{name}: {storage}")
    check(storage["logical_after"] == sizes + storage["bias"], f"{name}: {storage}, tables {sizes}")
    if not more:
        check(sizes == size * V * (N + 1), f"{name}: stored once {sizes}")
    checked = {(s["output"], s["route"]) for s in report["statistics"]}
    routes = ["bulk"] + ([] if "row_count_profiles" not in more else ["profile0", "profile1"])
    check(checked == {(o, r) for o in ("raw", "normalized") for r in routes}, f"{name}: validated {checked}")
    check(all(s["elements"] > 0 for s in report["statistics"]), f"{name}: an empty statistic")
    chunk = [s for s in report["statistics"] if s["class"].startswith("chunk") and s["route"] == "bulk"]
    check(all(s["elements"] == V * N for s in chunk), f"{name}: both complete domains {chunk}")
    recipe = cli.read_json(out, "recipe.json")
    check(recipe["kind"] == "projected" and recipe["version"] == (2 if len(routes) > 1 else 1), f"{name}: kind")
    cli.run("verify", out)
    cli.run("verify", out, "--against", spec)
    if name == "rounded":
        check(len(report["tables"]) == 2, f"{name}: profiles collapse {report['tables']}")

# Arbitrary vectors may still arrive: the projection stays and counts.
tensors = model()
out = cli.path("retained", "out")
cli.compile(cli.folder("retained", tensors, cli.spec(block(retain_projection=True))), out)
storage = cli.report_of(out)["storage"]
check(storage["retained"] == N * K * 4 and storage["logical_after"] == 4 * (V * (N + 1) + N + N * K), f"{storage}")
payload = cli.read_safetensors(cli.path("retained", "out", cli.read_json(out, "recipe.json")["payload"]["file"]))
check(np.array_equal(payload["projection"][1], tensors["w"][1]), "the projection does not lie in the payload")
check(np.array_equal(payload["bias"][1], tensors["b"][1]), "the bias does not lie in the payload")
plan = cli.run("plan", cli.path("retained", "spec.json"), "--json").json()["blocks"][0]["storage"]
check(plan["logical_after_least"] == storage["logical_after"] == plan["logical_after_most"], f"plan {plan}")

# z / r + b is not W (e / r) + b in the last bits: a tolerance of nothing rejects it.
tight = cli.spec(block(), tolerance={"absolute": 0, "relative": 0})
cli.compile(cli.folder("tight", tensors, tight), cli.path("tight", "out"), code=5)
reason = cli.report_of(cli.path("tight", "out"))["reason"]
check("normalized" in reason, f"tight: {reason}")

# Mixed dtypes: each of the three wider or narrower than the others; the projection kept all the same.
def stored(dtype, array):
    return (dtype, cli.bf16(array) if dtype == "BF16" else array.astype(cli.NUMPY[dtype]))


source = {n: a for n, (_, a) in model().items()}
for dtypes in (("BF16", "BF16", "F32"), ("F32", "F32", "BF16"), ("BF16", "F32", "F32"), ("F32", "BF16", "F16"),
               ("F32", "F32", "F64"), ("F16", "F64", None)):
    name = "mixed-" + "-".join(map(str, dtypes))
    tensors = {n: stored(d, source[n]) for n, d in zip("ewb", dtypes) if d}
    loose = {"absolute": 0.1, "relative": 0.1}  # normalised embeddings are rounded to the embedding's dtype
    document = cli.spec(block("b" in tensors, retain_projection=True), tolerance=loose)
    spec, out = cli.folder(name, tensors, document), cli.path(name, "out")
    cli.compile(spec, out)
    v = values(tensors)
    b = v.get("b", 0)
    norm = np.maximum(np.linalg.norm(v["e"], axis=1), EPS)[:, None]
    for output, expected in (("raw", v["e"] @ v["w"].T + b), ("normalized", v["e"] @ v["w"].T / norm + b)):
        rows = cli.rows_of(out, range(V), output)
        check(rows is not None and np.allclose(rows, expected, rtol=1e-5, atol=1e-5), f"{name}: {output} rows")
    payload = cli.read_safetensors(os.path.join(out, cli.read_json(out, "recipe.json")["payload"]["file"]))
    check(np.array_equal(cli.as_float(*payload["projection"]), v["w"]), f"{name}: the projection lost something")
    if "b" in v:
        check(np.array_equal(cli.as_float(*payload["bias"]), b), f"{name}: the bias lost something")
    cli.run("verify", out, "--against", spec)
cli.finish()
