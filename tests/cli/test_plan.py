# SPDX-License-Identifier: Apache-2.0
"""plan writes nothing, shows every tensor, and its storage verdict is what compile finds."""
import os

import cli
from cli import check, np


def listing():
    return sorted((d, tuple(files)) for d, _, files in os.walk(cli.tmp))


def plan(spec, *options, code=0, stderr=None, env=None):
    before = listing()
    r = cli.run("plan", spec, "--json", *options, code=code, stderr=stderr, env=env)
    cli.run("plan", spec, *options, code=code, env=env)
    check(listing() == before, f"plan wrote: {set(listing()) ^ set(before)}")
    return r.json() if r.code == 0 else None


def compare(name, tensors, block, verdict, env=None, **more):
    """The verdict of plan, and that compile agrees with it and with its bounds."""
    spec = cli.folder(name, tensors, cli.spec(block, storage="must_shrink", **more))
    p = plan(spec, env=env)["blocks"][0]
    check(p["storage"]["verdict"] == verdict, f"{name}: plan says {p['storage']}, expected {verdict}")
    out = cli.path(name, "out")
    r = cli.compile(spec, out, code=(0, 6), env=env)
    storage = cli.report_of(out)["storage"]
    if verdict != "depends_on_sharing":
        check((r.code == 0) == (verdict == "shrinks"), f"{name}: plan says {verdict}, compile exits {r.code}")
    check(p["storage"]["logical_after_least"] <= storage["logical_after"] <= p["storage"]["logical_after_most"],
          f"{name}: bounds {p['storage']}, found {storage}")
    check(p["storage"]["logical_before"] == storage["logical_before"], f"{name}: before {p['storage']}")
    check(p["expected_exit"] == (6 if verdict == "grows" else 0), f"{name}: exit {p['expected_exit']}")
    text = cli.run("plan", spec, env=env).out
    check(("compile would end with exit 6 (retained)" in text) == (verdict == "grows"), f"{name}: {text}")
    work = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(out + ".work") for f in files)
    check(work <= p["work_bytes"], f"{name}: plan says at most {p['work_bytes']} in the work folder, found {work}")
    payloads = [os.path.getsize(os.path.join(out, f)) for f in os.listdir(out) if f.startswith("tables-")] if \
        os.path.isdir(out) else []
    check(all(s <= p["payload_bytes_most"] for s in payloads), f"{name}: {p['payload_bytes_most']}, found {payloads}")
    print(f"{name}: {p['units']} units, work {work} of {p['work_bytes']}, payload {payloads} of {p['payload_bytes_most']}")
    return r.code


PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]
linear = cli.lookup_block([{"op": "linear", "weight": "w"}])
exact = np.random.default_rng(1).integers(-4, 5, (100, 16)).astype("<f4")
weight = np.random.default_rng(2).integers(-4, 5, (8, 16)).astype("<f4")

# With V <= bulk_rows everything is evaluated, so plan always knows.
compare("all", {"e": exact, "w": weight}, linear, "shrinks", row_count_profiles=PROFILES)
compare("one_route", {"e": exact, "w": weight}, linear, "shrinks", bulk_rows=4)
compare("grows", {"e": exact[:, :4], "w": weight[:, :4]}, linear, "grows", bulk_rows=4)
compare("identity", {"e": exact}, cli.lookup_block([]), "grows", bulk_rows=4)

# before 100*16+8*16 = 1,728 values; one table 800, two 1,600, three 2,400: only evaluation can tell.
some = {"row_count_profiles": PROFILES, "bulk_rows": 4}
check(compare("shared", {"e": exact, "w": weight}, linear, "depends_on_sharing", **some) == 0, "shared tables")
late = exact.copy()
late[50:] += cli.random((50, 16), 3, 0.1)
if cli.FAULTS:
    backend = {"TOKENTAB_TEST_BACKEND": "three_classes"}
    some = {"row_count_profiles": PROFILES, "bulk_rows": 16}
    wild = cli.random((8, 16), 4)
    check(compare("late", {"e": late, "w": weight}, linear, "depends_on_sharing", env=backend, **some) == 6,
          "tables that differ in late rows only")
    compare("early", {"e": cli.random((100, 16), 5), "w": wild}, linear, "grows", env=backend, **some)
# No linear, or correctly rounded arithmetic: routes cannot differ, so plan knows without evaluation.
norm = cli.lookup_block([{"op": "layer_norm", "weight": "g", "bias": "h", "eps": 1e-5}])
compare("rwkv", {"e": exact, "g": exact[0], "h": exact[1]}, norm, "shrinks", **some)
compare("rounded", {"e": late, "w": cli.random((8, 16), 4)}, linear, "shrinks",
        arithmetic="correctly_rounded", **some)
# A table that may be constant, an id list, a smaller vocabulary, a retained weight.
compare("constant", {"e": np.repeat(exact[:1], 100, 0), "w": cli.random((16, 16), 4)}, linear, "shrinks", bulk_rows=4)
with open(cli.path("ids.txt"), "w") as f:
    f.write("3\n90-99\n")
compare("ids", {"e": exact, "w": weight}, linear, "shrinks", ids="../ids.txt")
compare("vocab", {"e": exact, "w": weight}, linear, "shrinks", vocab=40)
compare("retained", {"e": exact, "w": weight}, dict(linear, external_consumers=["e"]), "grows", bulk_rows=4)
projected = {"kind": "projected", "embedding": {"weight": "e"}, "linear": {"weight": "w"}, "normalize_eps": 1e-12}
compare("projected", {"e": exact, "w": weight}, projected, "shrinks", bulk_rows=4)

# A sample that takes long is announced before it begins.
long = cli.folder("long", {"e": cli.random((1024, 64), 1), "w": cli.random((64, 64), 2)}, cli.spec(
    linear, row_count_profiles=[{"max_rows": 200000, "evaluation_rows": 200000}]))
cli.run("plan", long, code=(5, 124), stderr="block: the sample, 1024 tokens of 200001 rows in all routes, may take about",
        prefix=("timeout", "-k", "2", "3"))
other = {"OPENBLAS_CORETYPE": "NoSuchCore"}
cli.run("plan", cli.path("all", "spec.json"), env=other, stderr='OPENBLAS_CORETYPE is "NoSuchCore", but OpenBLAS .* instead')

# What plan shows: tensors, file sizes, orientation of square weights, grid, cost.
spec = cli.folder("shown", {"model.e": cli.random((70, 8), 1), "model.w": cli.random((8, 8), 2)},
                  cli.spec(cli.lookup_block([{"op": "linear", "weight": "tied"}], embedding="model.e"),
                           aliases={"tied": "model.w"}, bulk_rows=2, storage="may_grow"))
b = plan(spec, "--ranks", "3")["blocks"][0]
check([w["bytes"] for w in b["weights"]] == [70 * 8 * 4, 8 * 8 * 4], f"weights {b['weights']}")
check(b["weights"][1]["tensor"] == "tied" and b["weights"][1]["backing"] == "model.w", f"alias {b['weights']}")
check(b["weights"][1]["dtype"] == "F32" and b["weights"][1]["shape"] == [8, 8], f"weights {b['weights']}")
check(b["units"] == 3 and b["unit_tokens"] == 32 and b["tokens"] == 70 and b["ranks"] == 3, f"grid {b}")
check(b["flop_a_token"] >= 2 * 64 and b["memory_bytes_a_rank"] > 0 and b["seconds"] >= 0, f"cost {b}")
check(b["tables"][0]["bytes_a_route"] == 70 * 8 * 4, f"tables {b['tables']}")
text = cli.run("plan", spec).out
check("out_in" in text and "alias of model.w" in text, f"plan's text: {text}")

# The same checks as the real run.
plan(cli.folder("nan", {"e": exact, "w": np.where(weight == 1, np.nan, weight)}, cli.spec(linear)), code=5,
     stderr="w.*not finite")
plan(cli.folder("shape", {"e": exact, "w": weight[:, :5]}, cli.spec(linear)), code=3, stderr=r"layers\[0\]\.weight.*\[8, 5\]")
cli.run("plan", cli.path("absent.json"), code=(3, 4), stderr="absent.json")
cli.finish()
