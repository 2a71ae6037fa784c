# SPDX-License-Identifier: Apache-2.0
"""Correctly rounded recipes: the same bytes under every core type, thread count, rank count and row count."""
import os

import cli
from cli import check, np

V = 90
flags = open("/proc/cpuinfo").read() if os.path.exists("/proc/cpuinfo") else ""
CORES = ["Prescott"] + (["Haswell"] if " avx2" in flags else []) + (
    ["SkylakeX"] if " avx512f" in flags else []) + (["Cooperlake"] if "avx512_bf16" in flags else [])
PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]


def model(dtype):
    tensors = {"e": cli.random((V, 40), 1), "n": 1 + 0.1 * cli.random(40, 2), "w": cli.random((24, 40), 3, 0.2),
               "b": cli.random(24, 4), "u": cli.random((8, 24), 5, 0.3)}
    if dtype == "BF16":
        return {n: (dtype, cli.bf16(a)) for n, a in tensors.items()}
    return {n: (dtype, a.astype(cli.NUMPY[dtype])) for n, a in tensors.items()}


MIXED = {"kind": "fanout", "embedding": {"weight": "e"}, "residual": "residual",
         "prefix": [{"op": "float32_rms_norm", "weight": "n", "eps": 1e-6}],
         "branches": {"gelu": [{"op": "linear", "weight": "w", "bias": "b"}, {"op": "gelu_erf"},
                               {"op": "linear", "weight": "u"}],
                      "soft": [{"op": "layer_norm", "eps": 1e-5}, {"op": "linear", "weight": "w"}, {"op": "mish"}],
                      "unit": [{"op": "l2_normalize", "eps": 1e-12}, {"op": "linear", "weight": "w"}, {"op": "silu"}]}}


def recipe_bytes(out):
    """Recipe and payload; the report beside them tells how far this machine's own kernels are."""
    files = {n: b for n, b in cli.promised_bytes(out).items() if n.startswith("recipe/")}
    files.pop("recipe/report.json")
    return files


def spec_of(dtype):
    loose = {"absolute": 0.1, "relative": 0.1} if dtype in ("F16", "BF16") else {"absolute": 1e-4, "relative": 1e-4}
    return cli.folder(dtype, model(dtype), cli.spec(
        MIXED, arithmetic="correctly_rounded", row_count_profiles=PROFILES, bulk_rows=2, validation_rows=11,
        tolerance=loose))


first_tables = None
for dtype in ("F32", "F64", "F16", "BF16"):
    spec, first = spec_of(dtype), None
    cases = [(core, 1, 0) for core in CORES]
    if dtype == "F32":
        cases += [(CORES[0], 2, 0), (CORES[-1], 2, 2), (CORES[-1], 1, 1), (CORES[0], 1, 3), (CORES[-1], 1, 4)]
    for core, threads, ranks in cases:
        out = cli.path(dtype, f"{core}-{threads}-{ranks}")
        how = {"env": {"OPENBLAS_CORETYPE": core}} if ranks % 2 == 0 else {"env": {}}
        options = [] if ranks % 2 == 0 else ["--blas-core", core]
        r = cli.compile(spec, out, "--blas-threads", threads, *options, ranks=ranks, **how)
        report = cli.report_of(out)
        check(report["environment"]["blas_core"] == core, f"{core} was not loaded: {report['environment']}")
        check(len(report["tables"]) == 4, f"{dtype} {core}: profiles collapse into one table: {report['tables']}")
        files, tables = recipe_bytes(out), cli.read_tables(out + ".work")
        if first is None:
            first, first_tables = files, tables
        cli.check_same_bytes(first, files, f"{dtype}, {core}, {threads} threads, {ranks} ranks")
        for name, table in tables.items():
            check(table.tobytes() == first_tables[name].tobytes(), f"{dtype} {core}: unit tables {name}")
    check(CORES[0] not in first["recipe/recipe.json"].decode(), "the recipe names a core type")
    # Made here, verified under any core: byte for byte.
    for core in CORES:
        r = cli.run("verify", cli.path(dtype, f"{CORES[0]}-1-0"), "--against", spec, "--json",
                    env={"OPENBLAS_CORETYPE": core})
        check(r.json()["rows_differing_in_bytes"] == 0, f"verify under {core}: {r.out}")

# Ranks of different core types in one run; library arithmetic refuses that and lists both.
spec, out = cli.path("F32", "spec.json"), cli.path("mpmd")
ranks = []
for i, core in enumerate([CORES[0], CORES[-1], CORES[-1]]):
    ranks += ([":"] if ranks else []) + ["-n", "1", "env", f"OPENBLAS_CORETYPE={core}", cli.BIN, "compile", spec,
                                         "--out", out, "--progress", "none"]
cli.run_command(["mpirun", *ranks])
cli.check_same_bytes(recipe_bytes(cli.path("F32", f"{CORES[0]}-1-0")), recipe_bytes(out), "mixed core types")
if len(CORES) > 1:
    library = cli.folder("library", model("F32"), cli.spec(MIXED, bulk_rows=2))
    ranks = [library if a == spec else cli.path("other") if a == out else a for a in ranks]
    r = cli.run_command(["mpirun", *ranks], code=4, stderr="numeric environments differ")
    check(CORES[0] in r.err and CORES[-1] in r.err, f"both core types are named: {r.err}")
    check(not os.path.exists(cli.path("other")), "a refused run left a recipe")

# Shards evaluated under one core type are reused under another.
r = cli.compile(spec, cli.path("F32", f"{CORES[0]}-1-0"), env={"OPENBLAS_CORETYPE": CORES[-1]}).json()["blocks"][0]
check(r["units_reused"] == 3 and r["unchanged"], f"another core type: {r}")

# The tables are the float64 values rounded once, wherever those are clear of a tie.
w = {n: a.astype("f8") for n, (_, a) in model("F32").items()}
plain = cli.folder("plain", model("F32"), cli.spec(
    cli.lookup_block([{"op": "linear", "weight": "w", "bias": "b"}]), arithmetic="correctly_rounded"))
cli.compile(plain, cli.path("plain", "out"))
exact = w["e"] @ w["w"].T + w["b"]
rows = cli.rows_of(cli.path("plain", "out"), range(V))
low, high = np.nextafter(exact.astype("<f4"), np.float32(-np.inf)), np.nextafter(exact.astype("<f4"), np.float32(np.inf))
gap = np.minimum(abs(exact - (low + exact.astype("<f4").astype("f8")) / 2),
                 abs(exact - (high + exact.astype("<f4").astype("f8")) / 2))
clear = gap > 1e-13
check(clear.mean() > 0.99 and (rows == exact.astype("<f4"))[clear].all(), "rows are not the rounded real values")
check(all(s["max_abs_to_double"] < 1e-4 for s in cli.report_of(cli.path("plain", "out"))["statistics"]), "distance")
cli.finish()
