# SPDX-License-Identifier: Apache-2.0
"""Golden enclosing models: tiny decoders against expected logits, the router whose single-table candidate is
rolled back, the two-tower candidate net."""
import os

import numpy as np

import cli
import enclosing_model as em

ACCEPTED = "accepted_on_full_domain_validation"
PAIR = [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 15, "evaluation_rows": 2}]


def tensors(*parts):
    return cli.read_safetensors(os.path.join(*parts))


def near(found, expected, what, bound=1e-5):
    for key, (_, array) in expected.items():
        if key in found:
            worst = abs(found[key].astype(np.float64) - array).max() if array.size else 0
            cli.check(found[key].shape == array.shape and worst <= bound, f"{what}: {key}: {worst}")


# ---- decoders --------------------------------------------------------------------------------

def decoder(name, dim, code, **more):
    root = em.need_shared("golden", name)
    graph = em.llama(em.GOLDEN_NAMES, layers=2, heads=4, groups=2, dim=dim, convention="half")
    document = em.spec(f"{root}/model.safetensors", graph, f"{root}/examples.safetensors", **more)
    file = cli.write_json(cli.path(f"{name}.json"), document)
    out = cli.path(f"{name}.{code}")
    inputs, expected = tensors(root, "examples.safetensors"), tensors(root, "expected.safetensors")
    near(em.call(file, inputs, name), expected, f"{name} original")
    result = cli.compile(file, out, code=code).json()["model"]
    if code:
        cli.check(result["status"] == "retained_no_byte_saving", f"{name}: {result}")
        cli.check(not os.path.exists(out), f"{name}: nothing is published")
        report = cli.read_json(out + ".work", "report.json")
        cli.check("bytes" in report["regions"][0]["reason"], f"{name}: {report['regions'][0]['reason']}")
        return
    cli.check(result["status"] == ACCEPTED, f"{name}: {result}")
    near(em.call(out, inputs, name), expected, f"{name} rewritten")
    storage = cli.read_json(out, "report.json")["storage"]
    total = sum(a.nbytes for _, a in tensors(root, "model.safetensors").values())
    cli.check(storage["logical_before"] == storage["unique_before"] == total, f"{name}: {storage}")
    cli.check(storage["shrinks"] == (storage["logical_after"] < total), f"{name}: {storage}")
    left = tensors(out, cli.read_json(out, "report.json")["files"]["weights"])
    cli.check(sum(a.nbytes for _, a in left.values()) == storage["weights_kept_unique"], f"{name}: weights file")
    cli.check("model.embed_tokens.weight" not in left and "lm_head.weight" in left, f"{name}: {sorted(left)}")
    return storage


decoder("llama_tiny", 8, 6)
cli.check(not decoder("llama_tiny", 8, 0, storage="may_grow")["shrinks"], "llama_tiny grows")
cli.check(decoder("llama_saving", 16, 0, row_count_profiles=PAIR) is not None, "llama_saving")
cli.check(decoder("llama_saving", 16, 0)["shrinks"], "llama_saving shrinks")

# ---- router ----------------------------------------------------------------------------------

root = em.need_shared("golden", "moe_router")
ties = [t["token"] for t in cli.read_json(root, "ties.json")["tokens"]]
inputs = tensors(root, "examples.safetensors")
for t in range(84):
    inputs[f"ids.token{t}"] = ("I64", [[t]])
    inputs[f"values.token{t}"] = ("F32", [[1.5]])
cli.write_safetensors(cli.path("router.safetensors"), inputs)
document = em.spec(f"{root}/model.safetensors", em.router(), "router.safetensors")
single = cli.write_json(cli.path("router.json"), document)
direct = em.call(single, inputs, "router")
expected = {k: v for k, v in tensors(root, "expected.safetensors").items() if k.split(".")[0] in ("logits", "mixture")}
near(direct, {k: v for k, v in expected.items() if k.startswith("logits")}, "router")
for tag in ("all", "2x20", "1x12", "1x1"):
    ids = np.asarray(inputs[f"ids.{tag}"][1])
    found = np.sort(direct[f"experts.{tag}"], -1)
    wanted = np.sort(tensors(root, "expected.safetensors")[f"experts.{tag}"][1], -1)
    sure = ~np.isin(ids, ties)
    cli.check(np.array_equal(found[sure], wanted[sure]), f"router: experts of {tag}")
    a, b = direct[f"mixture.{tag}"], expected[f"mixture.{tag}"][1]
    cli.check(abs(a[sure] - b[sure]).max() <= 1e-4, f"router: mixture of {tag}")

# Tokens that this core sends elsewhere alone than in the table's chunk of all 84.
flips = [t for t in range(84)
         if not np.array_equal(direct[f"experts.token{t}"][0, 0], direct["experts.all"][0, t])]
cli.check(set(flips) <= set(ties), f"only near ties flip: {flips}")
print(f"tokens that flip on this core: {flips}")
out = cli.path("router")
if flips:
    result = cli.compile(single, out, code=5, stderr="rejected_and_rolled_back: example .*, output experts: .* "
                         "integers differ, worst at .*: original [0-9]+, rewritten [0-9]+").json()["model"]
    cli.check(result["status"] == "rejected_and_rolled_back", f"router: {result}")
    cli.check(not os.path.exists(out), "router: no recipe is published")
    report = cli.read_json(out + ".work", "report.json")
    cli.check(report["failure"]["output"] == "experts", f"router: {report['failure']}")
    cli.check(report["regions"][0]["status"] == "rejected_and_rolled_back", f"router: {report['regions']}")
    cli.check("files" not in report, "router: a rolled back model names no files")

# The same with a table for single tokens; the other calls are those whose experts the chunk's table has.
profile = [{"max_rows": 1, "evaluation_rows": 1}]
alone = {k: v for k, v in inputs.items() if "token" in k or k.endswith(".all")}
cli.write_safetensors(cli.path("alone.safetensors"), alone)
file = cli.write_json(cli.path("router.profile.json"),
                      {**document, "row_count_profiles": profile, "examples": "alone.safetensors"})
cli.check(cli.compile(file, out).json()["model"]["status"] == ACCEPTED, "router with a profile")
cli.check(em.same_bits(em.call(out, alone, "router"), em.call(file, alone, "router")), "router: the same bytes")

# With the decision declared the block's own report finds the fragile tokens, each worth an example.
file = cli.write_json(cli.path("router.decision.json"),
                      {**document, "graph": em.router({"top_k": 5}), "row_count_profiles": PAIR})
r = cli.compile(file, cli.path("decision"), code=(0, 5)).json()["model"]
where = cli.path("decision") if r["status"] == ACCEPTED else cli.path("decision.work")
proposed = cli.read_json(where, "report.json")["proposed_examples"]
cli.check(len(proposed) == 1 and proposed[0]["input"] == "ids" and set(ties) <= set(proposed[0]["tokens"]),
          f"proposed examples: {proposed}")

# ---- two towers ------------------------------------------------------------------------------

root = em.need_shared("golden", "two_tower")
inputs, expected = tensors(root, "examples.safetensors"), tensors(root, "expected.safetensors")
document = em.spec(f"{root}/model.safetensors", em.two_tower(), f"{root}/examples.safetensors")
file = cli.write_json(cli.path("towers.json"), document)
near(em.call(file, inputs, "towers"), expected, "towers original", 2e-5)
for name, more in (("towers", {}), ("towers.pair", {"row_count_profiles": PAIR, "storage": "may_grow"})):
    file = cli.write_json(cli.path(name + ".json"), {**document, **more})
    result = cli.compile(file, cli.path(name)).json()["model"]
    cli.check(result["status"] == ACCEPTED and result["regions"] == 3 and result["regions_rewritten"] == 2,
              f"{name}: {result}")
    near(em.call(cli.path(name), inputs, name), expected, f"{name} rewritten", 2e-5)
    regions = {r["name"]: r for r in cli.read_json(cli.path(name), "report.json")["regions"]}
    cli.check(regions["user.e"]["outputs"] == ["user.v"] and regions["item.e"]["outputs"] == ["item.v"],
              f"{name}: {regions}")
    cli.check("embedding alone" in regions["bias"]["reason"], f"{name}: {regions['bias']}")
    cli.check(sorted(os.listdir(cli.path(name)))[:1] == ["item.e"], f"{name}: a folder a region")
cli.finish()
