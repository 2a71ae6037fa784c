# SPDX-License-Identifier: Apache-2.0
"""Packed payloads and row sharing through the program: same bytes at any rank count, same rows as the mapped
payload, deltas and indexes that save, damage that is found."""
import glob
import os

import cli
from cli import check

# ---- packed beside mapped: a decoder's first layer with two profiles ---------------------------

spec = cli.path("spec.json")
cli.run_command([cli.MAKE, "--preset", "novomolgen", "--seed", "3", "--width", "128", "--bulk-rows", "4", "--out",
                 cli.path("model.safetensors"), "--spec", spec, "--storage", "may_grow"])
mapped = cli.path("mapped")
cli.compile(spec, mapped)
packed = {}
for ranks in (0, 2, 3, 4):
    out = cli.path(f"packed{ranks}")
    cli.compile(spec, out, "--packed", "--work", mapped + ".work", ranks=ranks)
    packed[ranks] = {name: data for name, data in cli.promised_bytes(out).items() if name.startswith("recipe/")}
    cli.check_same_bytes(packed[0], packed[ranks], f"packed at {ranks} ranks")
out = cli.path("packed0")
recipe = cli.read_json(out, "recipe.json")
check(recipe["payload"]["file"].endswith(".ttz"), f"payload {recipe['payload']}")
check(os.path.getsize(os.path.join(out, recipe["payload"]["file"])) == recipe["storage"]["on_disk"],
      "on_disk is the size of the file")
check(recipe["storage"]["on_disk"] < cli.read_json(mapped, "recipe.json")["storage"]["on_disk"], "packing pays")
cli.run("diff", mapped, out)
cli.run("verify", out)
cli.run("verify", out, "--against", spec, "--progress", "none", ranks=2)

# Any profile table of its own is stored as a delta, for less than a full table.
deltas = [t for t in recipe["storage"]["packed"] if t["raw_of_delta"] > 0]
for t in deltas:
    check(t["stored_of_delta"] < 0.6 * t["planes_of_delta"], f"delta of {t['tensor']}: {t}")
if cli.read_json(mapped, "recipe.json")["tables"].keys() - {"group_0", "group_1"}:
    check(deltas, "a profile's own tables have a base")

# Unchanged: verified, not written again.  Asked for as safetensors: replaced, the old payload gone.
check(cli.compile(spec, out, "--packed", "--work", mapped + ".work").json()["blocks"][0]["unchanged"], "unchanged")
cli.compile(spec, out, "--work", mapped + ".work")
check(not glob.glob(out + "/*.ttz") and len(glob.glob(out + "/tables-*.safetensors")) == 1, os.listdir(out))
cli.check_same_bytes(cli.promised_bytes(out, mapped + ".work"), cli.promised_bytes(mapped), "back to safetensors")

# One flipped bit anywhere in the packed file is found, with exit 3.
hurt = cli.path("packed2")
file = glob.glob(hurt + "/*.ttz")[0]
data = bytearray(open(file, "rb").read())
for place in (0, 40, len(data) // 3, len(data) - 3):
    wrong = bytearray(data)
    wrong[place] ^= 4
    open(file, "wb").write(wrong)
    cli.run("verify", hurt, code=3, stderr="ttz")
open(file, "wb").write(data[:-1])
cli.run("verify", hurt, code=3, stderr="ttz")
open(file, "wb").write(data)
cli.run("verify", hurt)

# ---- row sharing -------------------------------------------------------------------------------

rows, width, distinct = 600, 16, 200
embedding = cli.random((rows, width), 5)
embedding[distinct:] = embedding[7]  # padding rows
document = cli.spec({"kind": "fanout", "name": "b", "embedding": {"weight": "e"}, "residual": "r",
                     "branches": {"q": [{"op": "relu"}]}}, bulk_rows=16, validation_rows=9)
shared = cli.folder("shared", {"e": embedding}, document)
for options in ((), ("--packed",)):
    for ranks in (0, 3):
        out = cli.path(f"shared.out{len(options)}{ranks}")
        cli.compile(shared, out, *options, ranks=ranks)
        report, recipe = cli.report_of(out, "b"), cli.read_json(out, "recipe.json")
        group = report["groups"][0]
        check(group["indexed"] and group["rows"] == group["distinct_rows"] == distinct, f"group {group}")
        check(report["storage"]["logical_after"] == rows * 2 * width * 4, f"storage {report['storage']}")
        check(report["storage"]["unique_after"] == distinct * 2 * width * 4 + rows * 4, f"{report['storage']}")
        got = cli.rows_of(out, [0, 7, 199, 200, 599], "r")
        check(got.tobytes() == embedding[[0, 7, 199, 200, 599]].tobytes(), "rows behind the index")
        cli.run("verify", out, "--against", shared, "--progress", "none")
    cli.check_same_bytes(cli.promised_bytes(cli.path(f"shared.out{len(options)}0")),
                         cli.promised_bytes(cli.path(f"shared.out{len(options)}3")), f"shared {options}")

# No index where it would not save: all rows distinct, and rows too narrow for an index of four bytes.
plain = cli.folder("plain", {"e": cli.random((rows, width), 6)}, document)
cli.compile(plain, cli.path("plain.out"))
check(not cli.report_of(cli.path("plain.out"), "b")["groups"][0]["indexed"], "distinct rows are not shared")
narrow = cli.folder("narrow", {"e": (cli.random((rows, 1), 7) > 0).astype("<f4")},
                    cli.spec(cli.lookup_block([{"op": "identity"}]), bulk_rows=64))
cli.compile(narrow, cli.path("narrow.out"))
group = cli.report_of(cli.path("narrow.out"))["groups"][0]
check(not group["indexed"] and group["distinct_rows"] == 2, f"an index as wide as a row saves nothing: {group}")
cli.finish()
