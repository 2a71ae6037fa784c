# SPDX-License-Identifier: Apache-2.0
"""The NovoMolGen first layer: source and candidate sizes, by how many routes agree; sizes of small decoders."""
import os

import cli
from cli import check

SOURCE_VALUES = 829952
spec = cli.path("spec.json")
cli.run_command([cli.MAKE, "--preset", "novomolgen", "--seed", "1", "--out", cli.path("model.safetensors"),
                 "--spec", spec])


def after(name, *options, spec=spec, env=None, source=SOURCE_VALUES):
    out = cli.path(name)
    r = cli.compile(spec, out, *options, env=env, timeout=250)
    report = cli.report_of(out, "first_layer")
    storage = report["storage"]
    check(storage["logical_before"] == storage["unique_before"] == 4 * source, f"{name}: {storage}")
    check(storage["logical_after"] % 4 == 0 and storage["shrinks"], f"{name}: {storage}")
    if env is None:  # the test kernels are slow
        plan = cli.run("plan", spec, "--json", *options).json()["blocks"][0]["storage"]
        check(plan["verdict"] == "shrinks", f"{name}: plan says {plan['verdict']}")
        check(plan["logical_after_least"] == plan["logical_after_most"] == storage["logical_after"],
              f"{name}: plan evaluates every token of a small vocabulary: {plan}")
    check(r.json()["blocks"][0]["status"] == "accepted_on_full_domain_validation", f"{name}: status")
    return storage["logical_after"] // 4, report


values, report = after("default")
check(values in (172032, 301056, 430080), f"default core: {values} values")
for core in ("Prescott", "Haswell"):
    values, report = after(core, "--blas-core", core)
    check(report["environment"]["blas_core"] == core, f"{core}: {report['environment']['blas_core']} was loaded")
    # Single and pair agree with AVX2 kernels, bulk and pair with SSE ones.
    check(values == 301056, f"{core}: {values} values, expected 301056")
text = open(spec).read()
with open(cli.path("cr.json"), "w") as f:
    f.write(text.replace('"library"', '"correctly_rounded"'))
values, report = after("rounded", spec=cli.path("cr.json"))
check(values == 172032, f"correctly rounded: {values} values, expected 172032")

if cli.FAULTS:
    # Plain loops under sanitizers take minutes at this size: a smaller one of the same shape there.
    small = os.environ.get("TOKENTAB_SANITIZE") == "1"
    if small:
        spec = cli.path("less.json")
        cli.run_command([cli.MAKE, "--preset", "novomolgen", "--seed", "1", "--vocab", "20", "--width", "128",
                         "--out-width", "128", "--out", cli.path("less.safetensors"), "--spec", spec])
    table = 20 * 128 if small else 84 * 512
    source = 20 * 128 + 128 + 3 * 128 * 128 if small else SOURCE_VALUES
    for backend, tables in (("reference", 4), ("three_classes", 10)):
        values, report = after(backend, spec=spec, env={"TOKENTAB_TEST_BACKEND": backend}, source=source)
        check(values == tables * table, f"{backend}: {values} values, expected {tables * table}")
        check(small or values == (172032 if tables == 4 else 430080), f"{backend}: {values} values")
    # A call touches no other route's columns: each profile's q, k and v lie in a group of their own.
    groups = {tuple(u): t["group"] for t in report["tables"] for u in t["uses"]}
    for output in "qkv":
        check(len({groups[route, output] for route in ("bulk", "profile0", "profile1")}) == 3, f"groups {groups}")
    for route in ("bulk", "profile0", "profile1"):
        check(len({groups[route, output] for output in "qkv"}) == 1, f"groups {groups}")
    check(len({groups[r, "residual"] for r in ("bulk", "profile0", "profile1")}) == 1, "the residual is stored once")

# A serial q/k/v block of width d, kv width e and V tokens: growth (d + 2e) V against d (d + 2e) replaced.
for v, shrinks in ((8, True), (32, False)):
    d, e = 16, 4
    tensors = {"e": cli.random((v, d), v), "q": cli.random((d, d), 1), "k": cli.random((e, d), 2),
               "v": cli.random((e, d), 3)}
    block = {"kind": "fanout", "embedding": {"weight": "e"}, "residual": "residual",
             "branches": {name: [{"op": "linear", "weight": name}] for name in "qkv"}}
    small = cli.folder(f"small{v}", tensors, cli.spec(block, storage="must_shrink"))
    out = cli.path(f"small{v}", "out")
    cli.compile(small, out, code=0 if shrinks else 6)
    storage = cli.report_of(out)["storage"]
    check(storage["logical_before"] == 4 * (v * d + d * (d + 2 * e)), f"V={v}: {storage}")
    check(storage["logical_after"] == 4 * v * (d + d + 2 * e), f"V={v}: {storage}")
    check(os.path.exists(out) == shrinks, f"V={v}: recipe")
    plan = cli.run("plan", small, "--json").json()["blocks"][0]["storage"]["verdict"]
    check(plan == ("shrinks" if shrinks else "grows"), f"V={v}: plan says {plan}")
    if not shrinks:
        consent = cli.folder("consent", tensors, cli.spec(block, storage="may_grow"))
        cli.compile(consent, cli.path("consent", "out"))
        recipe = cli.read_json(cli.path("consent", "out"), "recipe.json")
        check("may_grow" in str(recipe), "the consent is not recorded in the recipe")
cli.finish()
