# SPDX-License-Identifier: Apache-2.0
"""Routers: a token whose selection changes rejects the candidate, whatever the tolerances say."""
import os

import cli
from cli import check, np

PROFILES = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]


def router(name, tensors, decision, code, env=None, ranks=0, **more):
    """Without profiles: the single-row calls differ from the one table, which bulk calls made."""
    block = cli.lookup_block([{"op": "linear", "weight": "w"}], **({"decision": decision} if decision else {}))
    spec = cli.folder(name, tensors, cli.spec(block, bulk_rows=16, **more))
    out = cli.path(name, "out")
    cli.compile(spec, out, code=code, env=env, ranks=ranks)
    check(os.path.exists(out) == (code == 0), f"{name}: recipe")
    return cli.report_of(out)


# Clear gaps everywhere but in two tokens, whose second and third logits differ by less than a sum's rounding.
K, V = 64, 300
w = cli.random((6, K), 1)
w[3] = w[2] * np.float32(1 + 2 ** -22)
e = cli.random((V, K), 2)
scores = e.astype("f8") @ w.astype("f8").T
top = np.sort(scores, axis=1)[:, ::-1]
clear = (scores[:, [0, 1, 4, 5]] > np.maximum(scores[:, 2], scores[:, 3])[:, None] + 1).sum(1)
near = np.flatnonzero(clear == 1)  # one expert above both: 2 and 3 fight for the second place
far = np.flatnonzero(clear >= 2)   # two above both: the fight is for the third place, which nobody sees
near = [t for t in near if top[t, 0] - top[t, 1] > 1][:40]
far = [t for t in far if min(top[t, 0] - top[t, 1], top[t, 1] - top[t, 2]) > 1][:150]
ids = sorted([*near, *far])
model = {"e": e[ids], "w": w}
where = {i for i, t in enumerate(ids) if t in set(near)}
check(len(where) > 10 and len(far) > 30, f"{len(near)} near and {len(far)} far tokens")

if cli.FAULTS:
    backend = {"TOKENTAB_TEST_BACKEND": "three_classes"}
    quiet = router("plain", model, None, 0, backend)
    check(quiet["decisions"] == [] and not [s for s in quiet["statistics"] if "decisions" in s], "no decision asked")
    for ranks, decision in ((0, {"top_k": 2}), (3, {"top_k": 2, "softmax": True})):
        report = router(f"router{ranks}", model, decision, 5, backend, ranks)
        check(report["status"] == "rejected_decision_changed", f"status {report['status']}")
        d = report["decisions"][0]
        changed = set(d["changed_tokens"])
        check(changed and changed <= where and d["changed_count"] == len(changed), f"changed {changed} of {where}")
        # Softmax makes margins between small probabilities small as well.
        fragile = set(d["fragile_tokens"])
        check(changed <= fragile and (fragile <= where or "softmax" in decision), f"fragile {d}")
        check(0 <= d["smallest_margin"] < d["largest_error"] * 10, f"margin and error {d}")
        check(d["smallest_margin_token"] in where or "softmax" in decision, f"smallest margin {d}")
        firsts = [s["first_changed_token"] for s in report["statistics"] if s["decisions_changed"]]
        check(firsts and f"first at token {firsts[0]}" in report["reason"], f"reason {report['reason']}, {firsts}")
        check(min(firsts) == min(changed), f"first changed {firsts}, all {changed}")
        for s in report["statistics"]:
            check(s["decisions"] > 0 and s["max_abs"] < 1e-4, f"tolerances hold: {s}")
    # Where every execution sums in the same order nothing changes, and no margin is fragile.
    report = router("reference", model, {"top_k": 2}, 0, {"TOKENTAB_TEST_BACKEND": "reference"})
    d = report["decisions"][0]
    check(d["changed_tokens"] == [] and d["fragile_tokens"] == [] and d["largest_error"] == 0, f"reference: {d}")
    # Decisions go before storage.
    block = dict(cli.lookup_block([{"op": "linear", "weight": "w"}]), external_consumers=["e"])
    grown = cli.folder("grown", model, cli.spec(dict(block, decision={"top_k": 2}), bulk_rows=16, storage="must_shrink"))
    cli.compile(grown, cli.path("grown", "out"), code=5, env=backend)
    check(not cli.report_of(cli.path("grown", "out"))["storage"]["shrinks"], "this one grows as well")

bad = cli.lookup_block([{"op": "linear", "weight": "w"}], decision={"top_k": 7})
cli.compile(cli.folder("many", model, cli.spec(bad)), cli.path("many", "out"), code=3, stderr="top_k")

# The golden router: three tokens may pick another expert, where this core's kernels make them.
golden = os.path.join(cli.SHARED, "golden", "moe_router")
if os.path.isdir(golden):
    old = cli.read_json(golden, "block.json")
    block = {"kind": "lookup", "embedding": old["embedding"], "layers": old["layers"], "decision": {"top_k": 5}}
    ties = {t["token"] for t in cli.read_json(golden, "ties.json")["tokens"]}
    cores = [("--blas-core", c) for c in ("Prescott", "Haswell")]
    for options in ((), *cores):
        name = "golden" + "".join(options)
        document = cli.spec(block, os.path.join(golden, "model.safetensors"), row_count_profiles=PROFILES)
        spec, out = cli.folder(name, None, document), cli.path(name, "out")
        r = cli.compile(spec, out, *options, code=(0, 5))
        report = cli.report_of(out)
        d = report["decisions"][0]
        changed = set(d["changed_tokens"])
        print(f"{report['environment']['blas_core']}: changed {sorted(changed)}, fragile {d['fragile_tokens']}")
        check((r.code == 5) == bool(changed), f"{name}: {changed}, exit {r.code}")
        check((report["status"] == "rejected_decision_changed") == bool(changed), f"{name}: {report['status']}")
        check(changed <= ties, f"{name}: tokens {changed - ties} have clear gaps")
        check(ties <= set(d["fragile_tokens"]) or d["largest_error"] == 0, f"{name}: fragile {d}")
        check(d["smallest_margin"] < 2e-8 and d["smallest_margin_token"] in ties, f"{name}: margin {d}")
        for token in changed:
            check(str(token) in str(report), f"{name}: token {token} is not named")
    # Correctly rounded tables: one table; the library's kernels may still choose otherwise, and it is told.
    document = cli.spec(block, os.path.join(golden, "model.safetensors"), row_count_profiles=PROFILES,
                        arithmetic="correctly_rounded")
    out = cli.path("rounded", "out")
    cli.compile(cli.folder("rounded", None, document), out, code=(0, 5))
    report = cli.report_of(out)
    check(len(report["tables"]) == 1 and set(report["decisions"][0]["changed_tokens"]) <= ties, "rounded router")
cli.finish()
