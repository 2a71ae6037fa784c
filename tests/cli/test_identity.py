# SPDX-License-Identifier: Apache-2.0
"""Recipe, payload, report and unit files are the same bytes for any number of ranks and any shard size."""
import cli
from cli import check, np

UNIT = 16 * 4


def model(v):
    return {"e": cli.random((v, 24), 1), "n": 1 + 0.1 * cli.random(24, 2), "q": cli.random((8, 24), 3, 0.2),
            "b": cli.random(8, 4), "k": cli.random((6, 24), 5, 0.2)}


BLOCK = {"kind": "fanout", "embedding": {"weight": "e"},
         "prefix": [{"op": "float32_rms_norm", "weight": "n", "eps": 1e-6}],
         "branches": {"q": {"layers": [{"op": "linear", "weight": "q", "bias": "b"}, {"op": "gelu_erf"}],
                            "decision": {"top_k": 3, "softmax": True}},
                      "k": [{"op": "linear", "weight": "k"}],
                      "constant": [{"op": "scale", "value": 0}, {"op": "relu"}]},
         "residual": "residual"}
PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]


def build(name, v, block=BLOCK, tensors=None, **more):
    document = cli.spec(block, row_count_profiles=PROFILES, bulk_rows=4, validation_rows=5, **more)
    return cli.folder(name, tensors or model(v), document)


def runs(name, spec, variants, code=0, env=None, refused=False):
    out = cli.path(name, "one")
    cli.compile(spec, out, code=code, env=env)
    first = cli.promised_bytes(out)
    check("work/block/report.json" in first, f"{name}: no report")
    for ranks, units in variants:
        options = ["--shard-units", units] if units else []
        other = cli.path(name, f"r{ranks}u{units}")
        cli.compile(spec, other, *options, ranks=ranks, code=code, env=env)
        found = cli.promised_bytes(other)
        if refused:  # how far beyond the refused unit a run came depends on the schedule
            common = set(first) & set(found)
            first, found = ({n: files[n] for n in common} for files in (first, found))
            check("work/block/report.json" in common, f"{name}: no report")
        cli.check_same_bytes(first, found, f"{name}: {ranks} ranks, {units} units a shard")
    return first


first = runs("several", build("several", 5 * UNIT - 17),
             [(1, 5), (2, 1), (3, 2), (4, 0), (7, 1)])
check(sum("units/" in name for name in first) == 5, f"expected five unit files, found {sorted(first)}")
check(any(name.startswith("recipe/tables-") for name in first) and "recipe/recipe.json" in first, "no recipe")

# Fewer tokens than ranks; more ranks than units.
runs("three", build("three", 3), [(4, 0), (2, 1)])
runs("one", build("one", 1), [(3, 0)])

# A rejected candidate leaves the same report, and the lowest refused unit decides a refusal's reason.
runs("rejected", build("rejected", 2 * UNIT + 3, tolerance={"absolute": 0, "relative": 0}), [(3, 1)], code=(0, 5))
overflow = model(4 * UNIT)
overflow["e"][[UNIT + 3, 3 * UNIT + 1], 0] = 3e38
block = dict(BLOCK, branches={"x": [{"op": "scale", "value": 4}]}, prefix=[])
first = runs("refused", build("refused", 4 * UNIT, block, overflow), [(2, 1), (4, 2)], code=5, refused=True)
check(f"{UNIT + 3}" in first["work/block/report.json"].decode(), "the refusal does not name its token")

# Messages in small slices, and every whole table as h5py sees it.
out = cli.path("slices")
spec = cli.path("several", "spec.json")
cli.compile(spec, out, ranks=3, env={"TOKENTAB_COMM_SLICE": "1024"})
cli.check_same_bytes(cli.promised_bytes(cli.path("several", "one")), cli.promised_bytes(out), "1 KiB slices")
tables = cli.read_tables(out + ".work")
report = cli.report_of(out)
check(len(tables) == 12 and all(t.shape[0] == 5 * UNIT - 17 and np.isfinite(t).all() for t in tables.values()),
      "tables.h5 has not every row of every table")
check({d["output"] for d in report["decisions"]} == {"q"}, "decisions of the report")
check(not [s for s in report["statistics"] if s["nonfinite"]], "non-finite values counted")
cli.finish()
