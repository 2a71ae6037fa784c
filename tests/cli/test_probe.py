# SPDX-License-Identifier: Apache-2.0
"""probe finds row-count classes by itself; profiles it writes make tables that the validation confirms."""
import cli
from cli import check

model = {"e": cli.random((120, 48), 1), "w": cli.random((16, 48), 2, 0.2)}
spec = cli.folder("model", model, cli.spec(cli.lookup_block([{"op": "linear", "weight": "w"}]), bulk_rows=64,
                                           validation_rows=40))


def probe(*options, env=None, code=0):
    r = cli.run("probe", spec, "--json", *options, env=env, code=code)
    return r.json() if r.code == 0 else None


def intervals(p):
    return [(i["first"], i["last"], i["class"]) for i in p["blocks"][0]["intervals"]]


if cli.FAULTS:
    synthetic = {"TOKENTAB_TEST_BACKEND": "three_classes"}
    emitted = cli.path("model", "profiles.json")
    p = probe("--max-rows", 40, "--emit-profiles", emitted, env=synthetic)
    check(p["blocks"][0]["classes"] == 3, f"three classes: {p}")
    check([i[:2] for i in intervals(p)] == [(1, 1), (2, 15), (16, 40)], f"three classes: {intervals(p)}")
    profiles = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]
    check(p["blocks"][0]["row_count_profiles"] == profiles, f"profiles {p['blocks'][0]}")
    check(not any(i["position_dependent"] for i in p["blocks"][0]["intervals"]), "no position matters here")
    check(p["blocks"][0]["tokens"] >= 32 and p["blocks"][0]["seeds"] >= 2, f"tokens and seeds: {p['blocks'][0]}")
    document = cli.read_json(emitted)
    check(document["row_count_profiles"] == profiles and document["block"] == cli.read_json(spec)["block"], "emitted spec")
    cli.run("probe", spec, "--max-rows", 20, "--emit-profiles", emitted, code=2, stderr="force")
    cli.run("probe", spec, "--max-rows", 20, "--emit-profiles", emitted, "--force", env=synthetic)
    out = cli.path("emitted")
    cli.compile(emitted, out, env=synthetic)
    # A copy in another folder finds the files of the spec.
    cli.folder("elsewhere")
    moved = cli.path("elsewhere", "profiles.json")
    cli.write_json(cli.path("model", "ids.json"), dict(cli.read_json(spec), ids="ids.txt"))
    with open(cli.path("model", "ids.txt"), "w") as f:
        f.write("0-99\n")
    r = cli.run("probe", cli.path("model", "ids.json"), "--max-rows", 20, "--emit-profiles", moved, "--json",
                env=synthetic)
    check(r.json()["verb"] == "probe", f"verb: {r.out}")
    cli.compile(moved, cli.path("elsewhere", "out"), env=synthetic)
    report = cli.report_of(out)
    check(len(report["tables"]) == 3 and all(s["bitwise"] for s in report["statistics"]), "the profiles reproduce all")
    text = cli.run("probe", spec, "--max-rows", 40, env=synthetic).out
    check("rows 2-15: class" in text and '{"max_rows": 15, "evaluation_rows": 2}' in text, f"text {text}")

    # The last row of an odd count differs: found, and never proposed as one table.
    p = probe("--max-rows", 12, env={"TOKENTAB_TEST_BACKEND": "position"})
    dependent = [i["position_dependent"] for i in p["blocks"][0]["intervals"]]
    check(any(dependent), f"position: {p['blocks'][0]}")
    p = probe("--max-rows", 12, env={"TOKENTAB_TEST_BACKEND": "reference"})
    check(p["blocks"][0]["classes"] == 1 and p["blocks"][0]["row_count_profiles"] == [], f"reference: {p['blocks'][0]}")
    # A wrong profile is found by the validation: tokens differ at the other end of its interval.
    wrong = dict(cli.read_json(spec), row_count_profiles=[{"max_rows": 15, "evaluation_rows": 1}])
    out = cli.path("wrong")
    cli.compile(cli.write_json(cli.path("model", "wrong.json"), wrong), out, env=synthetic)
    bits = {s["class"]: s["bitwise"] for s in cli.report_of(out)["statistics"] if s["route"] == "profile0"}
    check(bits["single"] and not bits["repeated 15"] and not bits["mixed 2"], f"a wrong profile: {bits}")

# Positions that disagree refuse a profile, naming profile and token.
if cli.FAULTS:
    odd = dict(cli.read_json(spec), row_count_profiles=[{"max_rows": 3, "evaluation_rows": 3}])
    r = cli.compile(cli.write_json(cli.path("model", "odd.json"), odd), cli.path("odd"), code=5,
                    env={"TOKENTAB_TEST_BACKEND": "position"})
    check("profile0" in r.err and "token 0" in r.err, f"positions disagree: {r.err}")
    check(cli.report_of(cli.path("odd"))["status"] == "refused_unsupported", "status of a refusal")
    # Sums in another order: left to right 0, right to left 1.
    tiny = cli.folder("tiny", {"e": [[1.0, 1, 1]] * 2, "w": [[1.0, 1e8, -1e8]]}, cli.spec(
        cli.lookup_block([{"op": "linear", "weight": "w"}])))
    for backend, value in (("reference", 0.0), ("reverse", 1.0)):
        out = cli.path("tiny-" + backend)
        cli.compile(tiny, out, env={"TOKENTAB_TEST_BACKEND": backend})
        check(cli.rows_of(out, [0]).tolist() == [[value]], f"{backend}: {cli.rows_of(out, [0])}")
        check(all(s["bitwise"] for s in cli.report_of(out)["statistics"]), f"{backend}: equal to itself")
    for backend, other in (("reference", "reverse"),):
        r = cli.run("verify", cli.path("tiny-reference"), "--against", tiny, "--json", code=1,
                    env={"TOKENTAB_TEST_BACKEND": "reverse"})
        check(r.json()["environment"] == "different" and "max_abs 1 " in r.json()["reason"], f"reverse: {r.out}")
    # A kernel that is plainly wrong is refused before any work.
    cli.compile(spec, cli.path("broken"), code=5, env={"TOKENTAB_TEST_BACKEND": "broken"}, stderr="sgemm of broken")

# The real kernels, whatever they are: intervals cover every count, and proposed profiles hold.
emitted = cli.path("model", "real.json")
p = probe("--max-rows", 70, "--tokens", 33, "--seeds", 2, "--emit-profiles", emitted)
found = intervals(p)
check(found[0][0] == 1 and found[-1][1] == 70, f"real: {found}")
check(all(a[1] + 1 == b[0] for a, b in zip(found, found[1:])), f"real: {found}")
check(p["blocks"][0]["tokens"] == 33 and p["blocks"][0]["seeds"] == 2 and p["blas_core"], f"real: {p}")
out = cli.path("real")
cli.compile(emitted, out)
report = cli.report_of(out)
for i, profile in enumerate(p["blocks"][0]["row_count_profiles"]):
    mine = [s for s in report["statistics"] if s["route"] == f"profile{i}" and "added" not in s["class"]]
    check(mine and all(s["bitwise"] for s in mine), f"profile {i} {profile} does not reproduce its interval: {mine}")
rounded = cli.write_json(cli.path("model", "cr.json"), dict(cli.read_json(spec), arithmetic="correctly_rounded"))
cli.run("probe", rounded, "--max-rows", 20, code=2, stderr="one class")
cli.finish()
