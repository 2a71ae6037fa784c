# SPDX-License-Identifier: Apache-2.0
"""ICU's Thai and Burmese word breakers, whole: tags of the excerpt are those of the original model and of a
double-precision evaluation in numpy, with one table and with profiles.  Pre-activations reach thousands, hence the
absolute tolerance."""
import numpy as np

import cli
import enclosing_model as em


def one(folder):
    root = em.need_shared("real", folder)
    weights = {k: a.astype(np.float64) for k, (_, a) in cli.read_safetensors(f"{root}/model.safetensors").items()}
    raw = cli.read_safetensors(f"{root}/excerpt.safetensors")["tokens"][1].astype(np.int64)
    n = len(raw)
    inputs = {"ids.all": ("I64", raw[None, :]), "ids.one": ("I64", raw[None, :1]),
              "ids.few": ("I64", raw[:12].reshape(3, 4)), "ids.none": ("I64", np.zeros((2, 0)))}
    cli.write_safetensors(cli.path(f"{folder}.examples.safetensors"), inputs)
    document = em.spec(f"{root}/model.safetensors", em.word_breaker(), f"{folder}.examples.safetensors",
                       storage="may_grow", tolerance={"absolute": 2e-3, "relative": 1e-5})
    scores = em.evaluate_word_breaker(weights, raw)
    for name, more in (("bulk", {}), ("single", {"row_count_profiles": [{"max_rows": 1, "evaluation_rows": 1}]}),
                       ("exact", {"arithmetic": "correctly_rounded"})):
        file = cli.write_json(cli.path(f"{folder}.{name}.json"), {**document, **more})
        out = cli.path(f"{folder}.{name}")
        result = cli.compile(file, out).json()["model"]
        cli.check(result["status"] == "accepted_on_full_domain_validation", f"{name}: {result}")
        original, rewritten = em.call(file, inputs, "original"), em.call(out, inputs, "rewritten")
        for tag in ("all", "one", "few", "none"):
            cli.check(np.array_equal(original[f"tags.{tag}"], rewritten[f"tags.{tag}"]), f"{folder} {name}: {tag}")
        cli.check(rewritten["tags.all"].shape == (1, n), "shape of the tags")
        cli.check(np.array_equal(rewritten["tags.all"][0], scores.argmax(1)), f"{folder} {name}: against numpy")
        cli.check(abs(rewritten["scores.all"][0] - scores).max() < 1e-3, f"{folder} {name}: scores against numpy")
        if name == "single":
            cli.check(same(original, rewritten, "one"), f"{folder}: a single token has the same bytes")
        report = cli.read_json(out, "report.json")
        cli.check(report["regions"][0]["outputs"] == ["forward", "backward"], "the raw embedding is not read")
        kept = cli.read_safetensors(f"{out}/{report['files']['weights']}")
        cli.check(sorted(kept) == ["bwd.U", "fwd.U", "out.W", "out.b"], f"weights that are left: {sorted(kept)}")


def same(a, b, tag):
    return all(a[f"{o}.{tag}"].tobytes() == b[f"{o}.{tag}"].tobytes() for o in ("scores", "tags"))


cli.NUMPY["U32"] = "<u4"
one("icu-thai-codepoints")
one("icu-burmese-graphclust")
cli.finish()
