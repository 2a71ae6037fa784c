# SPDX-License-Identifier: Apache-2.0
"""What a spec says of its files' origin stands in the recipe, sealed; other values computed are the same."""
import cli
from cli import check

tensors = {"e": cli.random((12, 4), 1), "w": cli.random((3, 4), 2)}
document = cli.spec(cli.lookup_block([{"op": "linear", "weight": "w"}]))
plain = cli.folder("plain", tensors, document)
told = cli.folder("told", tensors, dict(document, provenance={"revision": "abc", "inputs": "a name of ours"}))
cli.compile(plain, cli.path("plain.out"))
cli.compile(told, cli.path("told.out"))
a, b = (cli.read_json(cli.path(name), "recipe.json") for name in ("plain.out", "told.out"))
check(b["provenance"]["spec.revision"] == "abc" and b["provenance"]["spec.inputs"] == "a name of ours",
      f"{b['provenance']}")
check(not any(key.startswith("spec.") for key in a["provenance"]), f"{a['provenance']}")
check(a["payload"] == b["payload"] and a["seal"] != b["seal"], "the payload is the same, the seal is not")

# Another revision of the same bytes: nothing is evaluated again, the recipe says so.
cli.folder("told", None, dict(document, provenance={"revision": "def"}))
r = cli.compile(told, cli.path("told.out")).json()["blocks"][0]
check(r["units_evaluated"] == 0 and not r["unchanged"], f"{r}")
check(cli.read_json(cli.path("told.out"), "recipe.json")["provenance"]["spec.revision"] == "def", "a new revision")
cli.run("verify", cli.path("told.out"), "--against", told, "--progress", "none")
cli.finish()
