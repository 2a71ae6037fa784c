# SPDX-License-Identifier: Apache-2.0
"""examples/icu-thai-whole as docs/enclosing-models.md walks through it; needs nothing outside the tree."""
import os

import numpy as np

import cli
import enclosing_model as em

file = os.path.join(cli.SOURCE, "examples", "icu-thai-whole", "spec.json")
model = os.path.join(cli.SOURCE, "examples", "icu-thai-codepoints", "model.safetensors")
out = cli.path("thai")
result = cli.run("compile", file, "--out", out, "--progress", "none")
cli.check("bytes before 16000" in result.out and "model bytes before 23696" in result.out, result.out)
cli.check("output tags: 6 examples, the same bytes" in result.out, result.out)
cli.run("verify", out)
cli.run("verify", out, "--against", file)
cli.write_json(cli.path("letters.json"), {"line": {"ids": [[26, 14, 51, 12, 12, 49]]}})
cli.run("run", out, "--inputs", cli.path("letters.json"), "--out", cli.path("tags.safetensors"))
tags = cli.read_safetensors(cli.path("tags.safetensors"))["tags.line"][1]
weights = {k: a.astype(np.float64) for k, (_, a) in cli.read_safetensors(model).items()}
expected = em.evaluate_word_breaker(weights, np.array([26, 14, 51, 12, 12, 49])).argmax(1)
cli.check(tags.shape == (1, 6) and np.array_equal(tags[0], expected), f"{tags} {expected}")
cli.run("run", file, "--out", cli.path("original.safetensors"))
original = cli.read_safetensors(cli.path("original.safetensors"))
cli.check(original["tags.sentence"][1].shape == (1, 64) and original["tags.nothing"][1].shape == (1, 0), "shapes")
report = cli.read_json(out, "report.json")
cli.check(report["regions"][0]["name"] == "gates" and report["files"]["recipes"][0]["name"] == "gates", "the region")
letter = next(e for e in report["examples"] if e["name"] == "letter")
cli.check(letter["bitwise"], "one letter takes the profile of one row: the same bytes")
cli.finish()
