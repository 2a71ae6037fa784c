# SPDX-License-Identifier: Apache-2.0
"""stories260k, a trained 5-layer Llama, with its first layer tabulated: logits and all hidden states for every
single token and for lengths 1, 2, 15, 16 and 257, the greedy continuation; with one bulk table, with the
profiles that probe proposes (the same bytes wherever they cover the call), with correctly rounded tables."""
import numpy as np

import cli
import enclosing_model as em

STEPS = 64
root = em.need_shared("real", "stories260k")
note = cli.read_json(root, "note.json")
greedy = np.array(note["check"]["greedy_ids"], np.int64)
cli.NUMPY["U32"] = "<u4"
sampled = cli.read_safetensors(f"{root}/excerpt.safetensors")["tokens"][1].astype(np.int64)

examples = {f"ids.token{t}": ("I64", [[t]]) for t in range(512)}
for n in (1, 2, 15, 16, 257):
    examples[f"ids.n{n}"] = ("I64", sampled[None, 300:300 + n])
examples["ids.batch"] = ("I64", sampled[:24].reshape(3, 8))
examples["ids.empty"] = ("I64", np.zeros((1, 0)))
cli.write_safetensors(cli.path("examples.safetensors"), examples)
# Prefix n of the known continuation: by induction, what greedy decoding feeds at step n.
prefixes = {f"ids.{n}": ("I64", greedy[None, :n]) for n in range(1, STEPS + 1)}

graph = em.llama(em.STORIES_NAMES, layers=5, heads=8, groups=4, dim=8, convention="interleaved")
document = em.spec(f"{root}/model.safetensors", graph, "examples.safetensors", storage="may_grow",
                   tolerance={"absolute": 1e-4, "relative": 1e-5})
bulk = cli.write_json(cli.path("bulk.json"), document)
rounded = cli.write_json(cli.path("rounded.json"), {**document, "arithmetic": "correctly_rounded"})
probed = cli.path("profiles.json")
classes = cli.run("probe", bulk, "--emit-profiles", probed, "--force", "--json", timeout=280).json()["blocks"][0]
profiles = cli.read_json(probed)["row_count_profiles"]


def interval(n):
    return next(i for i in classes["intervals"] if i["first"] <= n <= i["last"])


def covered(n):
    """Does the table that a call with n ids takes hold the bits of such a call?  The bulk table is evaluated in
    one chunk of 512."""
    if n == 0:
        return True
    mine = interval(n)
    table = next((p["evaluation_rows"] for p in profiles if n <= p["max_rows"]), 512)
    return not mine["position_dependent"] and mine["class"] == interval(table)["class"]


original = em.call(bulk, examples, "original", timeout=280)
continued = em.call(bulk, prefixes, "continued", timeout=280)
for n in range(1, STEPS + 1):
    cli.check(continued[f"next.{n}"][0, -1] == greedy[n], f"original: greedy step {n}")

for name, file in (("bulk", bulk), ("profiles", probed), ("rounded", rounded)):
    out = cli.path(name)
    result = cli.compile(file, out, timeout=280).json()["model"]
    cli.check(result["status"] == "accepted_on_full_domain_validation", f"{name}: {result}")
    report = cli.read_json(out, "report.json")
    region = report["regions"][0]
    cli.check(region["outputs"] == ["l0.q", "l0.k", "l0.v", "h0"], f"{name}: outputs {region['outputs']}")
    # the head reads the embedding's tensor
    cli.check(region["external_consumers"] == ["tok_embeddings.weight"], f"{name}: {region['external_consumers']}")
    storage = report["storage"]
    cli.check(storage["weights_kept_logical"] == storage["logical_before"] - 4 * (64 + 64 * 128),
              f"{name}: what is kept: {storage}")
    rewritten = em.call(out, examples, name, timeout=280)
    worst = 0
    for key, array in original.items():
        if key.startswith("next."):
            cli.check(np.array_equal(array, rewritten[key]), f"{name}: {key}")
        elif array.size:
            worst = max(worst, abs(array.astype(np.float64) - rewritten[key]).max())
    cli.check(worst <= 1e-4, f"{name}: max_abs {worst}")
    if name == "profiles":
        n_covered = 0
        for key, array in original.items():
            n = examples["ids." + key.split(".", 1)[1]][1]
            if covered(np.asarray(n).size):
                n_covered += 1
                cli.check(array.tobytes() == rewritten[key].tobytes(), f"{name}: {key}: bytes")
        cli.check(n_covered >= 512 * 8, f"{name}: only {n_covered} outputs covered")
    answer = em.call(out, prefixes, "continued", timeout=280)
    for n in range(1, STEPS + 1):
        cli.check(answer[f"next.{n}"][0, -1] == greedy[n], f"{name}: greedy step {n}")
cli.run("verify", cli.path("profiles"), "--against", probed)
cli.finish()
