# SPDX-License-Identifier: Apache-2.0
"""Damaged, hostile, huge and unusual checkpoints (NEEDS 1A and 1B), one clear line each."""
import json
import os
import resource
import struct

import cli
from cli import check, np

LAYERS = [{"op": "linear", "weight": "w"}]
SPEC = cli.spec(cli.lookup_block(LAYERS), checkpoint="bad.safetensors")
file, spec = cli.path("bad.safetensors"), cli.write_json(cli.path("spec.json"), SPEC)
GOOD = {"e": np.arange(8.0).reshape(4, 2), "w": np.array([[1.0, 2], [3, 4], [5, 6]])}


def raw(header, data=b"", size=None):
    text = header.encode() if isinstance(header, str) else header
    with open(file, "wb") as f:
        f.write(struct.pack("<Q", len(text) if size is None else size) + text + data)


def entry(dtype, shape, begin, end):
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [begin, end]})


def refused(pattern, code=3, what=("plan", "inspect")):
    for verb in what:
        target = spec if verb == "plan" else file
        r = cli.run(verb, target, "--quiet", code=code, stderr=pattern)
        check(len(r.err.splitlines()) == 1, f"one line expected: {r.err}")
        check(r.out == "", f"{verb} printed a result: {r.out}")


# ---- N1: the header's length -----------------------------------------------------------------
with open(file, "wb") as f:
    f.write(struct.pack("<Q", 0x7FFFFFFFFFFFFFFF))
refused("9223372036854775807")
before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
check(before < (1 << 20 if os.environ.get("TOKENTAB_SANITIZE") == "1" else 64 << 10), f"peak {before} KiB")
for content, pattern in ((b"", "0"), (b"1234567", "7"), (b"version https://git-lfs.github.com/spec/v1\noid x\n",
                                                         "Git LFS pointer"), (struct.pack("<Q", 0), "0")):
    with open(file, "wb") as f:
        f.write(content)
    refused(pattern)
os.unlink(file)
refused("bad.safetensors", (3, 4))
header = json.dumps({"e": json.loads(entry("F32", [4, 2], 0, 32)), "w": json.loads(entry("F32", [3, 2], 32, 56))})
data = GOOD["e"].astype("<f4").tobytes() + GOOD["w"].astype("<f4").tobytes()
raw(header, data)
cli.run("plan", spec, "--header-cap", len(header) - 1, code=3, stderr=str(len(header)))
cli.run("plan", spec, "--header-cap", len(header))

# ---- N2, N6: names twice, case, junk behind the document, depth --------------------------------
raw('{"a":%s,"a":%s}' % (entry("F32", [1], 0, 4), entry("F32", [1], 4, 8)), bytes(8))
refused('"a"|\\ba\\b')
raw('{"a":{"dtype":"F32","dtype":"BF16","shape":[1],"data_offsets":[0,4]}}', bytes(4))
refused("dtype")
raw(header + "x", data)
refused("")
raw(header + "    ", data)
cli.run("plan", spec)
raw("[" * 1001, bytes(8))
refused("")
raw('{"a\\u0000b":%s}' % entry("F32", [1], 0, 4), bytes(4))
refused("")
cases = {"A": np.array([[1.0]]), "a": np.array([[2.0]])}
cli.write_safetensors(cli.path("case.safetensors"), cases)
r = cli.write_json(cli.path("case.json"), cli.spec(cli.lookup_block([], embedding="a"), checkpoint="case.safetensors"))
cli.compile(r, cli.path("case"))
check(cli.rows_of(cli.path("case"), [0]).tolist() == [[2.0]], "the tensor named a")

# ---- N3: overlaps, holes, order, cut and longer files ------------------------------------------
raw('{"a":%s,"b":%s}' % (entry("F32", [2], 0, 8), entry("F32", [2], 4, 12)), bytes(12))
refused("a.*b|b.*a")
raw('{"a":%s,"b":%s}' % (entry("F32", [1], 0, 4), entry("F32", [1], 8, 12)), bytes(12))
refused("4.*8")
swapped = json.dumps({"w": json.loads(entry("F32", [3, 2], 32, 56)), "e": json.loads(entry("F32", [4, 2], 0, 32))})
raw(swapped, data)
cli.compile(spec, cli.path("swapped"))
check(np.array_equal(cli.rows_of(cli.path("swapped"), range(4)), GOOD["e"] @ GOOD["w"].T), "w listed first")
raw(header, data + b"\0\0\0\0")
refused("60|trailing|4 ")
raw(header, data[:-1])
refused("55|56")

# ---- N4, N5: shapes and offsets ----------------------------------------------------------------
for shape, end in (([1000, 1000], 4), ([4294967296, 4294967296], 0), ([-1], 4), ([1.5], 4), (["2"], 8), (2, 8)):
    raw('{"e":%s}' % entry("F32", shape, 0, end), bytes(end))
    refused("e")
raw('{"e":{"dtype":"F32","shape":[1],"data_offsets":[0,9007199254740993]}}', bytes(4))
refused("e")

# ---- N8: a data section that is not aligned ----------------------------------------------------
odd = header + (" " if len(header) % 2 == 0 else "")
raw(odd, data)
check((8 + len(odd)) % 2 == 1, "the data section is not aligned")
cli.compile(spec, cli.path("odd"))
check(np.array_equal(cli.rows_of(cli.path("odd"), range(4)), GOOD["e"] @ GOOD["w"].T), "unaligned data")

# ---- N9: offsets beyond 2^31 -------------------------------------------------------------------
rows, width = 262144, 8960
text = json.dumps({"e": {"dtype": "BF16", "shape": [rows, width], "data_offsets": [0, 2 * rows * width]}}).encode()
sparse = cli.path("sparse.safetensors")
markers = (239673, 239674, 262143)
with open(sparse, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text)
    f.truncate(8 + len(text) + 2 * rows * width)
    for i, row in enumerate(markers):
        f.seek(8 + len(text) + 2 * row * width)
        f.write(cli.bf16(np.full(width, i + 1.5)).tobytes())
with open(cli.path("ids.txt"), "w") as f:
    f.write("\n".join(map(str, markers)))
huge = cli.write_json(cli.path("huge.json"), cli.spec(cli.lookup_block([]), checkpoint="sparse.safetensors",
                                                      ids="ids.txt", bulk_rows=1))
cli.compile(huge, cli.path("huge"))
found = cli.as_float("BF16", cli.rows_of(cli.path("huge"), markers).view("<u2"))
check([r.tolist() for r in found[:, :2]] == [[1.5, 1.5], [2.5, 2.5], [3.5, 3.5]], f"markers {found[:, :2]}")
check((found == found[:, :1]).all(), "a whole marked row")
r = cli.run("inspect", sparse, "--json")
check(str(2 * rows * width) in r.out, f"inspect of 4.7 GB: {r.out[:300]}")
os.unlink(sparse)

# ---- N10: dtypes -------------------------------------------------------------------------------
for dtype, size, pattern in (("F8_E4M3", 1, "F8_E4M3"), ("F4", 1, "F4"), ("F8_E8M0", 1, "F8_E8M0"), ("I8", 1, "quantised"),
                             ("I32", 4, "quantised"), ("U8", 1, "quantised"), ("BOOL", 1, "BOOL")):
    raw('{"e":%s,"w":%s}' % (entry("F32", [4, 2], 0, 32), entry(dtype, [3, 2], 32, 32 + 6 * size)), bytes(32 + 6 * size))
    r = cli.run("plan", spec, code=3, stderr=pattern)
    check("w" in r.err, f"{dtype}: the tensor is not named: {r.err}")
    check(dtype in cli.run("inspect", file).out, f"{dtype}: inspect does not list it")
    unused = dict(SPEC, block=cli.lookup_block([]))
    cli.run("plan", cli.write_json(cli.path("unused.json"), unused))

# ---- N12: a file that gets shorter while it is read --------------------------------------------
if cli.FAULTS:
    raw(header, data)
    r = cli.compile(spec, cli.path("short"), code=4, env={"TOKENTAB_FAULT": "rows_read"})
    check("bad.safetensors" in r.err or "rows" in r.err, f"short read: {r.err}")
    check(not os.path.exists(cli.path("short", "recipe.json")), "a recipe after a short read")


# ---- N13 to N16: sharded checkpoints -----------------------------------------------------------
def sharded(name, files, weight_map, **more):
    os.makedirs(cli.path(name), exist_ok=True)
    for f, tensors in files.items():
        cli.write_safetensors(cli.path(name, f), tensors)
    cli.write_json(cli.path(name, "model.safetensors.index.json"), {"weight_map": weight_map, **more})
    return cli.write_json(cli.path(name + ".json"), dict(SPEC, checkpoint=name))


e, w, unused = GOOD["e"], GOOD["w"], np.zeros(3)
files = {"one.safetensors": {"e": e}, "two.safetensors": {"w": w}, "three.safetensors": {"u": unused}}
names = {"e": "one.safetensors", "w": "two.safetensors", "u": "three.safetensors"}
whole = sharded("whole", files, names)
cli.compile(whole, cli.path("whole.out"))
check(np.array_equal(cli.rows_of(cli.path("whole.out"), range(4)), e @ w.T), "a sharded checkpoint")
cli.run("plan", cli.write_json(cli.path("index.json"), dict(SPEC, checkpoint="whole/model.safetensors.index.json")))

gone = sharded("gone", files, names)
os.unlink(cli.path("gone", "two.safetensors"))
r = cli.run("plan", gone, code=3, stderr="two.safetensors")
check("one.safetensors" not in r.err and "three.safetensors" not in r.err, f"only the absent file: {r.err}")
os.unlink(cli.path("gone", "three.safetensors"))
cli.run("plan", gone, code=3, stderr="two.safetensors.*three.safetensors|three.safetensors.*two.safetensors")
gone = sharded("gone2", files, names)
os.unlink(cli.path("gone2", "three.safetensors"))
cli.run("plan", gone, code=3, stderr="three.safetensors")
r = cli.run("plan", gone, "--allow-missing-unused")
check("three.safetensors" in r.err, f"no warning: {r.err}")
os.unlink(cli.path("gone2", "two.safetensors"))
cli.run("plan", gone, "--allow-missing-unused", code=3, stderr="two.safetensors")
messages = [cli.run("plan", sharded("not_in_index", files, {k: v for k, v in names.items() if k != "w"}), code=3).err,
            cli.run("plan", gone, code=3).err,
            cli.run("plan", sharded("no_such_tensor", {**files, "two.safetensors": {"x": w}}, names), code=3).err]
check("not in index" in messages[0] or "index" in messages[0], f"not in the index: {messages[0]}")
check("two.safetensors" in messages[2] and "w" in messages[2], f"not in its file: {messages[2]}")
check(len(set(messages)) == 3, f"three faults, three messages: {messages}")

stray = sharded("stray", files, names)
cli.write_safetensors(cli.path("stray", "model.safetensors"), {"e": e + 1, "w": w})
r = cli.compile(stray, cli.path("stray.out"))
check("model.safetensors" in r.err, f"stray file: no warning: {r.err}")
check(np.array_equal(cli.rows_of(cli.path("stray.out"), range(4)), e @ w.T), "the index wins")
r = cli.run("plan", sharded("sizes", files, names, metadata={"total_size": 12345}))
check("12345" in r.err, f"total_size: no warning: {r.err}")
r = cli.run("plan", sharded("twice", {**files, "three.safetensors": {"u": unused, "w": w * 2}}, names))
check("three.safetensors" in r.err or "twice" in r.err or '"w"' in r.err, f"a tensor in two files: {r.err}")

cli.write_safetensors(cli.path("outside.safetensors"), {"e": e})
for bad in ("../outside.safetensors", "/etc/passwd", cli.path("outside.safetensors"), ".", "a/../../outside.safetensors"):
    cli.run("plan", sharded("escape", files, {**names, "e": bad}), code=3, stderr="index|outside|passwd|escape")
linked = sharded("hub/snapshots/abc", files, names)
os.makedirs(cli.path("hub", "blobs"))
os.rename(cli.path("hub/snapshots/abc/one.safetensors"), cli.path("hub/blobs/f00"))
os.symlink("../../blobs/f00", cli.path("hub/snapshots/abc/one.safetensors"))
cli.run("plan", cli.write_json(cli.path("linked.json"), dict(SPEC, checkpoint="hub/snapshots/abc")))

# ---- N17, N18, N21: names and shapes -----------------------------------------------------------
cli.write_safetensors(file, {"model.embed.weight": e, "model.proj.weight": w, "lm_head.weight": w, "far": w})
close = dict(SPEC, block=cli.lookup_block([{"op": "linear", "weight": "proj.weight"}], embedding="model.embed.weight"))
r = cli.run("plan", cli.write_json(cli.path("close.json"), close), code=3, stderr=r"layers\[0\]\.weight")
check("model.proj.weight" in r.err and len(r.err.split("nearest")[1].split(",")) == 3, f"three nearest names: {r.err}")
cli.write_safetensors(file, {"e": e, "w": w.T})
r = cli.run("plan", spec, code=3, stderr=r"block\.layers\[0\]\.weight.*\[2, 3\]")
check("orientation" in r.err, f"no hint at the orientation: {r.err}")

# ---- N43, N47: denormals stay, values that are not finite are named ----------------------------
tiny = np.array([[1e-40, -1e-45], [0.0, 1.0]], "<f4")
for arithmetic in ("library", "correctly_rounded"):
    cli.write_safetensors(file, {"e": tiny, "w": np.eye(2)})
    document = cli.write_json(cli.path("tiny.json"), dict(SPEC, arithmetic=arithmetic))
    cli.compile(document, cli.path("tiny-" + arithmetic))
    found = cli.rows_of(cli.path("tiny-" + arithmetic), [0, 1])
    check(found.view("<u4")[0, 0] == 0x000116C2 and (found == tiny).all(), f"denormals: {found}")
for value, row in ((np.inf, 2), (np.nan, 0)):
    bad = e.copy()
    bad[row, 1] = value
    cli.write_safetensors(file, {"e": bad, "w": w})
    r = cli.compile(spec, cli.path("nonfinite"), code=5, stderr=rf"\be\b.*{row}")
    check("1 value" in r.err or "1 " in r.err, f"non-finite: {r.err}")
    cli.run("plan", spec, code=5)
big = e.copy()
big[2] = 3e38
cli.write_safetensors(file, {"e": big, "w": w})
r = cli.compile(spec, cli.path("overflow"), code=5, stderr="token 2")
report = cli.report_of(cli.path("overflow"))
check(report["status"] == "refused_unsupported" and "token 2" in report["reason"], f"overflow: {report}")
check(not os.path.exists(cli.path("overflow")), "an overflow left a recipe")
cli.finish()
