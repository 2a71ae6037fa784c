# SPDX-License-Identifier: Apache-2.0
"""One damaged table entry is found by every execution class that meets it, with its token and column."""
import os
import re

import cli
from cli import check, np

V, UNIT, VALIDATION = 150, 64, 5  # units 64, 64, 22; the last chunk of a unit is short
ROUTES = ("bulk", "profile0", "profile1")
# Small whole numbers: every sum is exact, so all routes agree and only the damage differs.
rng = np.random.default_rng(7)
tensors = {"e": rng.integers(1, 5, (V, 8)), "q": rng.integers(1, 3, (6, 8)), "b": rng.integers(1, 4, 6),
           "k": rng.integers(1, 3, (4, 8))}
block = {"kind": "fanout", "embedding": {"weight": "e"}, "residual": "residual",
         "branches": {"q": [{"op": "linear", "weight": "q", "bias": "b"}], "k": [{"op": "linear", "weight": "k"}],
                      "zero": [{"op": "scale", "value": 0}]}}
OUTPUTS = ("q", "k", "zero", "residual")
spec = cli.folder("model", tensors, cli.spec(
    block, row_count_profiles=[{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}],
    bulk_rows=4, validation_rows=VALIDATION))

sound = cli.path("sound")
cli.compile(spec, sound)
baseline = cli.report_of(sound)
check(all(s["bitwise"] and s["exact"] for s in baseline["statistics"]), "the sound run is not bitwise equal")
classes = {c["name"] for c in baseline["execution_classes"]}
found_by = set()


def in_short_chunk(row):
    """Only tokens of a unit's short last chunk are evaluated filled up."""
    first = row // UNIT * UNIT
    rows = min(UNIT, V - first)
    return row - first >= rows // VALIDATION * VALIDATION and rows % VALIDATION


def damaged(name, route, output, row, column, bit, code, ranks=0):
    out = cli.path(name)
    value = f"{route}:{OUTPUTS.index(output)}:{row}:{column}:{bit}"
    r = cli.compile(spec, out, code=code, ranks=ranks, env={"TOKENTAB_DAMAGE": value})
    return out, r, cli.report_of(out)


def one(route, output, row, column, ranks=0):
    name = f"d-{route}-{output}-{row}"
    out, r, report = damaged(name, route, output, row, column, 30, 5, ranks)
    check(report["status"] == "rejected_numerical_validation", f"{name}: {report['status']}")
    check(re.search(r"max_abs \S+ (>|<=) \S+ \(absolute\) at token \d+ column \d+; relative L2 \S+ (>|<=) \S+",
                    report["reason"]) and "> " in report["reason"], f"{name}: {report['reason']}")
    check(not os.path.exists(out), f"{name}: a rejected candidate was published")
    check(f"token {row} column {column}" in report["reason"], f"{name}: reason {report['reason']}")
    for s in report["statistics"]:
        hit = (s["output"], s["route"]) == (output, ROUTES[route])
        padded_elsewhere = s["class"].startswith("padded") and not in_short_chunk(row)
        where = f"{name}: class {s['class']}, output {s['output']}, route {s['route']}"
        if not hit or padded_elsewhere:
            check(s["exact"] and s["bitwise"] and s["max_abs"] == 0, f"{where} differs without cause: {s}")
            continue
        found_by.add(s["class"])
        check(not s["exact"] and s["unequal"] >= 1 and s["max_abs"] > 1, f"{where} missed the damage: {s}")
        place = {"token": row, "column": column}
        check(s.get("max_abs_at") == place and s.get("max_ulp_at") == place, f"{where} names {s.get('max_abs_at')}")
        check(s["ulp_histogram"][0] == s["elements"] - s["unequal"], f"{where}: histogram {s}")


one(0, "q", 0, 0)
one(0, "k", V - 1, 3, ranks=3)
one(1, "q", 63, 5)
one(1, "residual", 64, 7, ranks=2)
one(2, "q", 127, 2)
one(2, "k", 149, 0)
check(found_by == classes, f"classes that never met a damaged entry: {classes - found_by}")

# A damaged zero's sign: equal as a number, other bytes; a last bit: within tolerance, counted.
out, r, report = damaged("sign", 0, "zero", 70, 1, 31, 0)
hits = [s for s in report["statistics"] if s["output"] == "zero" and s["route"] == "bulk"]
check(hits and all(s["exact"] and s["max_abs"] == 0 and s["max_ulp"] == 0 for s in hits), f"-0 is not 0: {hits}")
check(any(not s["bitwise"] and s["unequal_bytes"] == 1 for s in hits), f"-0 has the bytes of 0: {hits}")
# -0 in one route only: two tables, not one.
uses = [t["uses"] for t in report["tables"] if ["bulk", "zero"] in t["uses"]]
check(uses == [[["bulk", "zero"]]], f"a table with a -0 is shared: {uses}")

out, r, report = damaged("ulp", 0, "q", 70, 1, 0, 0)
hits = [s for s in report["statistics"] if (s["output"], s["route"]) == ("q", "bulk") and s["unequal"]]
check(hits and all(s["max_ulp"] == 1 and s["ulp_histogram"][1] == s["unequal"] for s in hits), f"one ulp: {hits}")
# A sealed recipe whose table has a wrong last bit: the bytes verify, the full validation finds it.
cli.run("verify", out)
r = cli.run("verify", out, "--against", spec, code=1, stderr="token 70")
check("1 stored rows differ" in r.err, f"verify --against: {r.err}")

# A damaged staged payload is found by the layouts check, and nothing is published.
for ranks, (route, output, row, column) in ((0, (0, "k", 3, 1)), (3, (2, "q", 140, 4))):
    out = cli.path(f"payload{ranks}")
    r = cli.compile(spec, out, code=1, ranks=ranks, env={
        "TOKENTAB_DAMAGE_PAYLOAD": f"{route}:{OUTPUTS.index(output)}:{row}:{column}:30"})
    check(f"token {row}" in r.err and f"column {column}" in r.err and output in r.err, f"payload damage: {r.err}")
    left = sorted(os.listdir(out)) if os.path.exists(out) else []
    check(left == [], f"payload damage: left {left}")

# An existing recipe is untouched by a damaged one.
before = cli.promised_bytes(sound)
changed = dict(cli.read_json(spec), tolerance={"absolute": 1e-4, "relative": 1e-4})
cli.write_json(spec, changed)
cli.compile(spec, sound, code=1, env={"TOKENTAB_DAMAGE_PAYLOAD": "0:0:0:0:30"})
after = cli.promised_bytes(sound)
recipe = {n: b for n, b in before.items() if n.startswith("recipe/")}
cli.check_same_bytes(recipe, {n: b for n, b in after.items() if n.startswith("recipe/")}, "a failed replacement")
cli.run("verify", sound)
cli.finish()
