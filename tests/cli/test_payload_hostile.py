# SPDX-License-Identifier: Apache-2.0
"""Payloads that are corrupt, cut, oversized or made to harm: every verb that reads them ends with exit 3 within
64 MiB, and writes nothing."""
import ctypes
import ctypes.util
import glob
import hashlib
import json
import os
import re
import shutil
import struct
import subprocess
import sys

import cli
from cli import check, np

LIMIT_KIB = 64 << 10
# A bare interpreter starts the verb, so that no memory of this one is counted.
MEASURE = """import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
_, status, usage = os.wait4(pid, 0)
sys.stderr.write(f"peak {usage.ru_maxrss}\\n")
sys.exit(os.waitstatus_to_exitcode(status))"""
with open(cli.BIN, "rb") as program:
    sanitized = b"__asan_init" in program.read()  # its shadow memory is no memory of ours
worst = 0


def run(*args, code=3, **how):
    global worst
    r = cli.run_command([sys.executable, "-I", "-S", "-c", MEASURE, cli.BIN, *map(str, args)], code=code, **how)
    found = re.search(r"peak (\d+)", r.err)
    if check(found, f"no peak: {r.err}") and not sanitized:
        worst = max(worst, int(found[1]))
        check(int(found[1]) <= LIMIT_KIB, f"{int(found[1]) >> 10} MiB: {args}")
    return r


def refused(recipe, *verbs):
    """By each of the verbs, with nothing written."""
    out = cli.path("out")
    for verb in verbs:
        if verb == "lookup":
            r = run("lookup", recipe, "--ids", "0-39")
            check(r.out == "", f"lookup printed {r.out[:80]}")
        elif verb == "verify":
            run("verify", recipe)
        elif verb == "diff":
            run("diff", recipe, recipe + ".whole", code=2)  # as diff tools have it
        elif verb == "unpack":
            run("unpack", glob.glob(recipe + "/*.ttz")[0], "--out", out)
        else:
            run("export", recipe, "--to", "safetensors", "--out", out)
        check(not glob.glob(out + "*"), f"{verb} left {glob.glob(out + '*')}")


# ---- recipes -------------------------------------------------------------------------------------

V = 40
tensors = {"e": cli.random((V, 64), 1), "q": cli.random((48, 64), 2, 0.1)}
block = {"kind": "fanout", "name": "b", "embedding": {"weight": "e"}, "residual": "r",
         "branches": {"q": [{"op": "linear", "weight": "q"}, {"op": "tanh"}]}}
spec = cli.folder("model", tensors, cli.spec(block, bulk_rows=8, tolerance={"absolute": 1, "relative": 1},
                                             row_count_profiles=[{"max_rows": 1, "evaluation_rows": 1}]))
recipes = {}
for name, options in (("mapped", ()), ("packed", ("--packed",))):
    recipes[name] = cli.path(name)
    cli.compile(spec, recipes[name], "--work", cli.path("work"), *options)
    shutil.copytree(recipes[name], recipes[name] + ".whole")
    run("verify", recipes[name], code=0)
    run("lookup", recipes[name], "--ids", "0-39", code=0)


def payload_of(recipe):
    return glob.glob(recipe + "/tables-*")[0]


def flipped(data, places):
    for place in places:
        wrong = bytearray(data)
        wrong[place] ^= 0x40
        yield bytes(wrong)


for name, recipe in recipes.items():
    file = payload_of(recipe)
    data = open(file, "rb").read()
    size = len(data)
    # Anywhere: the digest tells.  Only verify reads all of it.
    for wrong in flipped(data, [0, 8, 9, 20, 40, size // 3, size // 2, size - 40, size - 3, size - 1]):
        open(file, "wb").write(wrong)
        refused(recipe, "verify")
    # Of another size: opening tells.
    for wrong in (b"", data[:1], data[:7], data[:31], data[:size // 2], data[:-1], data + b"x", data + data):
        open(file, "wb").write(wrong)
        refused(recipe, "verify", "lookup", "export", "diff")
    with open(file, "wb") as f:
        f.truncate(1 << 40)  # oversized
    refused(recipe, "verify", "lookup", "export")
    os.unlink(file)
    refused(recipe, "verify", "lookup", "export")
    os.mkfifo(file)
    refused(recipe, "verify", "lookup", "export")
    os.unlink(file)
    os.mkdir(file)
    refused(recipe, "verify", "lookup", "export")
    os.rmdir(file)
    open(file, "wb").write(data)
    run("verify", recipe, code=0)


# ---- payloads whose digests are in order ---------------------------------------------------------

def seal(recipe, payload, change=None):
    """The recipe with this payload, sealed again as FORMAT.md has it: an attacker can do that too."""
    for old in glob.glob(recipe + "/tables-*"):
        os.unlink(old)
    digest = hashlib.sha256(payload).hexdigest()
    name = f"tables-{digest[:16]}." + ("ttz" if "packed" in recipe else "safetensors")
    open(os.path.join(recipe, name), "wb").write(payload)
    text = open(os.path.join(recipe + ".whole", "recipe.json")).read()
    text = re.sub(r'"file": "[^"]*"', f'"file": "{name}"', text)
    text = re.sub(r'"sha256": "[^"]*"', f'"sha256": "{digest}"', text, count=1)
    text = re.sub(r'"bytes": \d+', f'"bytes": {len(payload)}', text, count=1)
    text = change(text) if change else text
    text = re.sub(r'"seal": "[^"]*"', '"seal": ""', text)
    sealed = hashlib.sha256(text.encode()).hexdigest()
    open(os.path.join(recipe, "recipe.json"), "w").write(text.replace('"seal": ""', f'"seal": "{sealed}"'))


recipe = recipes["mapped"]
data = open(payload_of(recipe), "rb").read()
seal(recipe, data)
run("verify", recipe, code=0)  # the way of sealing is right
header_size = struct.unpack("<Q", data[:8])[0]
header = json.loads(data[8:8 + header_size])


def with_header(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack("<Q", len(text)) + text + data[8 + header_size:]


first = next(iter(header))
for wrong in (struct.pack("<Q", 1 << 63) + data[8:], struct.pack("<Q", len(data) - 8) + data[8:],
              struct.pack("<Q", 0) + data[8:], with_header(b"[" * 60000), with_header(b"{}"),
              with_header({**header, first: {**header[first], "shape": [1 << 40, 1 << 40]}}),
              with_header({**header, first: {**header[first], "data_offsets": [0, 1 << 62]}}),
              with_header({**header, first: {**header[first], "data_offsets": [8, 4]}}),
              with_header({**header, first: {**header[first], "dtype": "F64"}}),
              with_header({**header, "more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}),
              with_header({n: t for n, t in header.items() if n != first})):
    seal(recipe, wrong)
    refused(recipe, "verify", "lookup", "export")
for pattern, value in ((r'"num_embeddings": \d+', '"num_embeddings": 9007199254740992'),
                       (r'"shape": \[\s*\d+', '"shape": [9007199254740992'), (r'"bytes": \d+', '"bytes": 1'),
                       (r'"file": "', '"file": "../')):
    seal(recipe, data, lambda text, p=pattern, v=value: re.sub(p, v, text, count=1))
    refused(recipe, "verify", "lookup", "export")
with open(os.path.join(recipe, "recipe.json"), "w") as f:
    f.truncate(1 << 34)
refused(recipe, "verify", "lookup", "export")

# Packed: the directory's own digest is made again, through the library that holds the function.
library = ctypes.util.find_library("xxhash")
if library is None:
    print("no libxxhash for python: directories with a digest in order are not tried")
else:
    class Hash(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]
    xxh3 = ctypes.CDLL(library).XXH3_128bits
    xxh3.restype, xxh3.argtypes = Hash, [ctypes.c_char_p, ctypes.c_size_t]

    recipe = recipes["packed"]
    data = open(payload_of(recipe), "rb").read()
    start = data.index(b"TTZDIR1\n")
    n_frames = struct.unpack("<I", data[-9:-5])[0]
    seek = len(data) - 9 - 8 * n_frames - 8
    directory, tail = data[start:seek - 16], data[seek:]

    def rebuilt(new, frames=data[:start - 8], seek_table=None):
        """The file with another directory, its digest and its place in the seek table."""
        h = xxh3(bytes(new), len(new))
        whole = bytes(new) + struct.pack(">QQ", h.high, h.low)
        table = bytearray(seek_table or tail)
        struct.pack_into("<I", table, len(table) - 9 - 8, len(whole) + 8)
        return frames + struct.pack("<II", 0x184D2A50, len(whole)) + whole + bytes(table)

    check(rebuilt(directory) == data, "the way of rebuilding is right")
    seal(recipe, data)
    run("verify", recipe, code=0)
    # Every word of the directory in turn: small, large, and its lowest bit.  A word may be of no consequence to
    # some verb; none may crash, hang, take memory, or answer with other rows.
    right = run("lookup", recipe, "--ids", "0-39", code=0).out
    random = np.random.default_rng(1)
    words = sorted({*range(8, min(len(directory) - 4, 200), 4), *random.integers(8, len(directory) - 4, 40).tolist()})
    for at in words:
        for value in (0, 0xFFFFFFFF, struct.unpack_from("<I", directory, at)[0] ^ 1):
            wrong = bytearray(directory)
            struct.pack_into("<I", wrong, at, value)
            seal(recipe, rebuilt(wrong))
            r = run("lookup", recipe, "--ids", "0-39", code=(0, 3))
            check(r.code == 3 or r.out == right, f"word {at} = {value}: other rows")
            if at % 5 == 0:
                run("unpack", payload_of(recipe), "--out", cli.path("out"))
    # A frame that is no frame, one that claims 4 GiB, one of other bytes; a seek table that lies.
    frames = bytearray(data[:start - 8])
    for at, bytes_ in ((32, b"\0" * 8), (32, b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 32)),
                       (36, b"\x04"), (len(frames) // 2, b"\xff" * 16), (0, b"\0" * 8)):
        wrong = bytearray(frames)
        wrong[at:at + len(bytes_)] = bytes_
        seal(recipe, rebuilt(directory, bytes(wrong)))
        refused(recipe, "lookup", "export", "unpack")
    for at, value in ((4, 0), (4, 0xFFFFFFFF), (8, 0), (8, 0xFFFFFFFF), (12, 0xFFFFFFFF), (len(tail) - 9, 0),
                      (len(tail) - 9, 0xFFFFFFFF)):
        wrong = bytearray(tail)
        struct.pack_into("<I", wrong, at, value)
        seal(recipe, data[:seek] + bytes(wrong))
        refused(recipe, "lookup", "export", "unpack")

# ---- large ones ----------------------------------------------------------------------------------

# 96 MiB that do not compress, with one wrong byte near the end: what was read before it is not kept.
noise, packed, out = cli.path("noise"), cli.path("noise.ttz"), cli.path("out")
with open(noise, "wb") as f:
    for _ in range(96):
        f.write(os.urandom(1 << 20))
run("pack", noise, "--out", packed, code=0)
run("unpack", packed, "--out", out, code=0)
check(subprocess.call(["cmp", noise, out]) == 0, "a large file comes back")
os.unlink(out)
with open(packed, "r+b") as f:
    f.seek(95 << 20)
    byte = f.read(1)
    f.seek(95 << 20)
    f.write(bytes([byte[0] ^ 1]))
run("unpack", packed, "--out", out)
check(not glob.glob(out + "*"), "unpack leaves nothing")
# What claims to unpack to a terabyte: refused by a limit before anything is written, else by its frames.
bomb = cli.path("bomb")
with open(bomb, "wb") as f:
    f.truncate(1 << 30)
run("pack", bomb, "--out", packed, "--force", code=0)
check(os.path.getsize(packed) < 1 << 20, "zeros pack well")
run("unpack", packed, "--out", out, "--size-limit", "1000000000", stderr="the limit is")
check(not glob.glob(out + "*"), "a limit is kept before anything is written")

# Damage at the end of a large recipe: diff and export have read the rest by then.
rows, width = 12000, 1024
large = cli.folder("large", {"e": cli.random((rows, width), 3)}, cli.spec(cli.lookup_block([{"op": "identity"}])))
for name, options in (("large.mapped", ()), ("large.packed", ("--packed",))):
    recipe = cli.path(name)
    cli.compile(large, recipe, "--work", cli.path("large.work"), *options, timeout=250)
    shutil.copytree(recipe, recipe + ".whole")
    run("verify", recipe, code=0)
    run("export", recipe, "--to", "npy", "--out", cli.path(name + ".npy"), code=0)
    run("export", recipe, "--to", "compressme", "--out", cli.path(name + ".cm"), code=0)
    run("import", cli.path(name + ".cm"), "--from", "compressme", "--out", cli.path(name + ".back"), code=0)
    run("diff", recipe, cli.path(name + ".back"), code=0)
    size = os.path.getsize(payload_of(recipe))
    with open(payload_of(recipe), "r+b") as f:
        f.seek(size * 9 // 10)
        f.write(b"\xff" * 64)
    refused(recipe, "verify")
    if options:
        refused(recipe, "export", "diff", "unpack")
print(f"largest peak: {worst / 1024:.1f} MiB")
cli.finish()
