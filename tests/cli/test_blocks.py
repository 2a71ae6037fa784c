# SPDX-License-Identifier: Apache-2.0
"""Several blocks in one spec, id lists, vocabularies, aliases, retained weights."""
import os

import cli
from cli import check, np

V = 6
e = np.arange(V * 3).reshape(V, 3).astype("<f4")
w = np.array([[1, 0, 2], [0, 1, -1]], "<f4")
rows = e @ w.T
linear = [{"op": "linear", "weight": "w"}]


def compiled(name, tensors, document, *options, code=0, stderr=None, ranks=0):
    out = cli.path(name, "out")
    r = cli.compile(cli.folder(name, tensors, document), out, *options, code=code, stderr=stderr, ranks=ranks)
    return out, r


# ---- vocabulary (N20) -------------------------------------------------------------------------
out, _ = compiled("vocab", {"e": e, "w": w}, cli.spec(cli.lookup_block(linear), vocab=4))
recipe = cli.read_json(out, "recipe.json")
check(recipe["num_embeddings"] == 4 and recipe["rows_in_checkpoint"] == 6, f"vocab 4: {recipe}")
check(np.array_equal(cli.rows_of(out, [3, 0]), rows[[3, 0]]), "vocab 4: rows")
cli.run("lookup", out, "--ids", "4", code=2, stderr="4")
compiled("vocab8", {"e": e, "w": w}, cli.spec(cli.lookup_block(linear), vocab=8), code=3, stderr="8.*6|6.*8")
compiled("empty", {"e": e[:0], "w": w}, cli.spec(cli.lookup_block(linear)), code=3, stderr="e")
padded = np.concatenate([e, np.zeros((10, 3), "<f4")])
out, _ = compiled("padded", {"e": padded, "w": w}, cli.spec(cli.lookup_block(linear)))
# Row 0 of e is not zero: six rows and the zero row.
check(cli.report_of(out)["distinct_embedding_rows_within_units"] == 7, "distinct rows of a padded table")

# ---- id lists (N24) ---------------------------------------------------------------------------
full, _ = compiled("full", {"e": e, "w": w}, cli.spec(cli.lookup_block(linear)))
os.makedirs(cli.path("ids"))
with open(cli.path("ids", "ids.txt"), "w") as f:
    f.write("# some tokens\n3\n1\n1\n")
for ranks in (0, 2):
    out, _ = compiled("ids", {"e": e, "w": w}, cli.spec(cli.lookup_block(linear), ids="ids.txt"), ranks=ranks)
    recipe = cli.read_json(out, "recipe.json")
    check(recipe["num_embeddings"] == 6, f"ids: {recipe['num_embeddings']}")
    check(cli.read_tables(out + ".work")["bulk", "output"].shape[0] == 2, "ids: deduplicated to two rows")
    check(np.array_equal(cli.rows_of(out, [3, 1, 3]), cli.rows_of(full, [3, 1, 3])), "ids: rows by original id")
    cli.run("lookup", out, "--ids", "2", code=2, stderr="2")
    cli.run("lookup", out, "--ids", "3,6", code=2, stderr="6")
spec = cli.path("ids", "spec.json")
cli.run("verify", out, "--against", spec, ranks=2)
storage = cli.report_of(out)["storage"]
check(storage["logical_after"] == 2 * 2 * 4 and storage["unique_after"] == 2 * 2 * 4 + 2 * 8, f"ids: {storage}")
for text, what in (("7\n", "7"), ("x\n", "x"), ("5-2\n", "5-2"), ("", "")):
    with open(cli.path("ids", "ids.txt"), "w") as f:
        f.write(text)
    cli.compile(spec, cli.path("ids", "bad"), code=3, stderr=what)

# ---- blocks (N80) -----------------------------------------------------------------------------
experts = {f"x{i}": cli.random((2, 3), i) for i in range(3)}
blocks = [dict(cli.lookup_block([{"op": "linear", "weight": n}]), name=n) for n in experts]
for ranks in (0, 3):
    out, r = compiled(f"blocks{ranks}", {"e": e, **experts}, cli.spec(blocks), ranks=ranks)
    names = [b["block"] for b in r.json()["blocks"]]
    check(names == list(experts) and sorted(os.listdir(out)) == names, f"blocks: {names}, {os.listdir(out)}")
    for name, weight in experts.items():
        recipe = os.path.join(out, name)
        check(np.allclose(cli.rows_of(recipe, range(V)), e @ weight.T, rtol=1e-5, atol=1e-5), f"block {name}: rows")
        cli.run("verify", recipe, "--against", cli.path(f"blocks{ranks}", "spec.json"))
p = cli.run("plan", cli.path("blocks0", "spec.json"), "--json").json()
check([b["block"] for b in p["blocks"]] == list(experts), "plan of several blocks")
# A wide block that may not grow does not keep the others from being published; 5 goes before 6.
wide = dict(cli.lookup_block([{"op": "linear", "weight": "wide"}]), name="wide")
small = dict(cli.lookup_block(linear), name="small")
tensors = {"e": e, "w": w, "wide": cli.random((40, 3), 1)}
out, r = compiled("mixed", tensors, cli.spec([wide, small], storage="must_shrink"), code=6)
check([b["exit_code"] for b in r.json()["blocks"]] == [6, 0], f"wide and small: {r.out}")
check(os.listdir(out) == ["small"], f"wide and small: {os.listdir(out)}")
overflow = dict(cli.lookup_block([{"op": "scale", "value": 3e38}]), name="over")
out, r = compiled("policy", tensors, cli.spec([wide, overflow, small], storage="must_shrink"), code=5)
check([b["exit_code"] for b in r.json()["blocks"]] == [6, 5, 0], f"5 before 6: {r.out}")
# A recompile that is not accepted says that the recipe of the run before is still there.
out, r = compiled("kept", tensors, cli.spec(wide))
check("previous_recipe_kept" not in r.out, f"accepted: {r.out}")
strict = cli.folder("kept", None, cli.spec(wide, storage="must_shrink"))
r = cli.compile(strict, out, code=6)
check(r.json()["verb"] == "compile" and r.json()["blocks"][0]["previous_recipe_kept"] is True, f"kept: {r.out}")
r = cli.run("compile", strict, "--out", out, "--progress", "none", code=6)
check(f"{out} still holds the recipe of an earlier run" in r.out, f"kept: {r.out}")
r = cli.compile(strict, cli.path("kept", "new"), code=6)
check(r.json()["blocks"][0]["previous_recipe_kept"] is False, f"nothing kept: {r.out}")
broken = cli.folder("kept", None, dict(cli.spec(wide), mode="train"))
cli.compile(broken, out, code=3, stderr="still holds the recipe of an earlier run")
r = cli.run("plan", strict, "--json", ranks=2, code=2, stderr="plan runs alone: start it without mpirun")
nan = dict(tensors, e=np.full_like(e, np.nan))
_, r = compiled("nan", nan, cli.spec(small), code=5)
check(" tokens in " not in r.err, f"a checkpoint refused at once: {r.err}")
# Names of files that lie where the block's folder would.
for name in ("lock", "run.json", "report.json", "recipe.json", "tables-1", "weights-1", "journal", "lock.tmp"):
    compiled("taken", tensors, cli.spec(dict(small, name=name)), code=3,
             stderr=f"block.name: block {name} would be a folder")
out, _ = compiled("free", tensors, cli.spec(dict(small, name="locks")))
for document, what in (
        (cli.spec(small, aliases={"zz": "nowhere"}), "aliases.zz: stands for nowhere"),
        (cli.spec(small, vocab=2**53), "from 1 to 9007199254740991, found"),
        (cli.spec(cli.lookup_block([{"op": "lookups"}])), 'unknown op "lookups", nearest is "(?!lookup)')):
    compiled("typing", tensors, document, code=3, stderr=what)
compiled("twice", tensors, cli.spec([small, small]), code=3, stderr="small")
compiled("names", tensors, cli.spec(dict(cli.lookup_block(linear), name="a/b")), code=3, stderr="name")

# ---- aliases and shared tensors (N17) ---------------------------------------------------------
square = {"model.embed_tokens.weight": cli.random((5, 5), 1)}
head = cli.lookup_block([{"op": "linear", "weight": "lm_head.weight"}], embedding="model.embed_tokens.weight")
_, r = compiled("untied", square, cli.spec(head), code=3, stderr="lm_head.weight")
check("model.embed_tokens.weight" in r.err, f"no hint at the embedding: {r.err}")
table = square["model.embed_tokens.weight"]
for how in ("model.embed_tokens.weight", {"alias": "model.embed_tokens.weight"}):
    out, _ = compiled("tied", square, cli.spec(head, aliases={"lm_head.weight": how}))
    check(np.allclose(cli.rows_of(out, range(5)), table @ table.T, rtol=1e-5, atol=1e-5), "tied rows")
    storage = cli.report_of(out)["storage"]
    check(storage["logical_before"] == 200 and storage["unique_before"] == 100, f"an alias is stored once: {storage}")
once = {"e": e[:, :2].copy(), "w": np.eye(2, dtype="<f4") * 2}
out, _ = compiled("twice_used", once, cli.spec(cli.lookup_block([{"op": "linear", "weight": "w"}] * 3)))
check(cli.report_of(out)["storage"]["logical_before"] == 4 * (V * 2 + 4), "a tensor used three times counts once")
check(np.array_equal(cli.rows_of(out, range(V)), 8 * e[:, :2]), "the same linear three times")
out, _ = compiled("external", {"e": e, "w": w}, cli.spec(cli.lookup_block(linear, external_consumers=["e"])))
storage = cli.report_of(out)["storage"]
check(storage["retained"] == V * 3 * 4 and storage["logical_after"] == V * 2 * 4 + V * 3 * 4, f"retained: {storage}")
compiled("external_name", {"e": e, "w": w}, cli.spec(cli.lookup_block(linear, external_consumers=["absent"])), code=3,
         stderr="absent")
cli.finish()
