# SPDX-License-Identifier: Apache-2.0
"""Identity means bytes: colliding digests, signed zeros, constants, many tables."""
import cli
from cli import check, np

V, UNIT = 150, 64


def fanout(branches, **more):
    return {"kind": "fanout", "embedding": {"weight": "e"}, "branches": branches, **more}


def table_ids(report):
    return {tuple(u): t["id"] for t in report["tables"] for u in t["uses"]}


def linear(name):
    return [{"op": "linear", "weight": name}]


# Equal weights under two names, others alike but for one element or one late row.
e = cli.random((V, 8), 1)
w = cli.random((3, 8), 2)
near = w.copy()
near[2, 7] += 1e-3
late = np.zeros((3, 8), "<f4")
tensors = {"e": e, "a": w, "b": w.copy(), "c": near, "d": w.copy()}
spec = cli.folder("model", tensors, cli.spec(
    fanout({n: linear(n) for n in "abcd"}, residual="r"), bulk_rows=4,
    row_count_profiles=[{"max_rows": 4, "evaluation_rows": 4}]))
cli.compile(spec, cli.path("sound"))
sound = cli.report_of(cli.path("sound"))
ids = table_ids(sound)
check(ids["bulk", "a"] == ids["bulk", "b"] == ids["bulk", "d"] != ids["bulk", "c"], f"tables {ids}")
if cli.FAULTS:
    for bits in (0, 1, 3):
        for ranks in (0, 3):
            out = cli.path(f"weak{bits}-{ranks}")
            r = cli.compile(spec, out, ranks=ranks, env={"TOKENTAB_DIGEST_BITS": str(bits)})
            found = cli.report_of(out)
            check(found["tables"] == sound["tables"], f"{bits}-bit digests change the tables: {found['tables']}")
            check(r.json()["blocks"][0]["full_compares"] > 0, "no full comparison")
            cli.check_same_bytes(cli.promised_bytes(cli.path("sound")), cli.promised_bytes(out), f"{bits} bits")

# Two tables that differ in the last row only; one whose unit 1 is constant with another value.
e = np.ones((V, 2), "<f4")
e[-1, 1] = 2
step = np.ones((V, 2), "<f4")
step[UNIT:] = 3
for name, rows, expected in (("last", e, {"x": 1, "y": V}), ("step", step, {"x": V, "y": V})):
    spec = cli.folder(name, {"e": rows, "x": np.array([[1, 0]]), "y": np.array([[0, 1]])},
                      cli.spec(fanout({"x": linear("x"), "y": linear("y")}), bulk_rows=4))
    cli.compile(spec, cli.path(name, "out"), ranks=2)
    tables = {t["uses"][0][1]: t for t in cli.report_of(cli.path(name, "out"))["tables"]}
    for output, n in expected.items():
        if name == "step" and output == "y":
            check("y" not in tables, "equal tables are stored once")
            continue
        check(tables[output]["rows"] == n and tables[output]["constant"] == (n == 1), f"{name}: {tables[output]}")

# One row is the whole table; all-equal rows collapse, also -0; [7, 7, 7, 8] does not.
cases = {"one": (np.array([[7.0]]), 1, False), "sevens": (np.full((4, 1), 7.0), 1, True),
         "eight": (np.array([[7.0], [7], [7], [8]]), 4, False), "minus": (np.full((4, 1), -0.0), 1, True),
         "signs": (np.array([[0.0], [-0.0], [0.0]]), 3, False)}
for name, (rows, n, constant) in cases.items():
    spec = cli.folder(name, {"e": rows}, cli.spec(cli.lookup_block([])))
    out = cli.path(name, "out")
    cli.compile(spec, out)
    t = cli.report_of(out)["tables"][0]
    check(t["rows"] == n and t["constant"] == constant, f"{name}: {t}")
    found = cli.rows_of(out, range(len(rows)))
    check(found.tobytes() == rows.astype("<f4").tobytes(), f"{name}: rows {found.tobytes()}")
spec = cli.folder("zeros", {"e": np.array([[-1.0], [-2], [3]])}, cli.spec(fanout(
    {"plus": [{"op": "relu"}], "minus": [{"op": "leaky_relu", "negative_slope": 0}]})))
cli.compile(spec, cli.path("zeros", "out"))
check(len(cli.report_of(cli.path("zeros", "out"))["tables"]) == 2, "+0 and -0 are two tables")

# The same bytes with another dtype are another table; the same width and dtype in two outputs one.
half = np.array([[1.0, 2.0], [3.0, 4.0]])
spec = cli.folder("dtypes", {"e": ("F16", half)}, cli.spec(fanout(
    {"a": [{"op": "identity"}], "b": [{"op": "dropout", "p": 0.1}], "c": [{"op": "linear", "weight": "w"}]})))
cli.write_safetensors(cli.path("dtypes", "model.safetensors"), {"e": ("F16", half), "w": np.eye(2)})
cli.compile(spec, cli.path("dtypes", "out"))
tables = cli.report_of(cli.path("dtypes", "out"))["tables"]
check([(t["dtype"], len(t["uses"])) for t in tables] == [("F16", 2), ("F32", 1)], f"dtypes: {tables}")
check(len({t["group"] for t in tables}) == 2, "outputs of different dtypes lie in different groups")

# 4,096 tiny tables, two distinct.
branches = {f"b{i}": [{"op": "scale", "value": 1 + i % 2}] for i in range(4096)}
spec = cli.folder("many", {"e": np.array([[1.0], [2]])}, cli.spec(fanout(branches)))
r = cli.compile(spec, cli.path("many", "out")).json()["blocks"][0]
check(r["distinct_tables"] == 2 and r["full_compares"] <= 4094, f"many tables: {r}")
cli.finish()
