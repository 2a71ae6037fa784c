# SPDX-License-Identifier: Apache-2.0
"""What the command-line tests share: run the program, insist on its exit code, read and write its files."""
import atexit
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

try:
    import h5py
    import numpy as np
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

BIN = os.environ["TOKENTAB_BIN"]
SOURCE = os.environ["TOKENTAB_SOURCE_DIR"]
SHARED = os.path.join(SOURCE, "..", "shared")
MAKE = os.environ.get("TOKENTAB_MAKE_CHECKPOINT", "")
FAULTS = os.environ.get("TOKENTAB_FAULTS", "1") == "1"  # the build has fault points and test backends
CORE_VARIABLES = ("OPENBLAS_CORETYPE", "TOKENTAB_TEST_BACKEND", "TOKENTAB_DAMAGE", "TOKENTAB_FAULT")

tmp = tempfile.mkdtemp(prefix="tokentab-cli-")
failures = 0
checks = 0


def _clean():
    if failures and os.environ.get("TOKENTAB_KEEP"):
        print(f"kept: {tmp}")
    else:
        shutil.rmtree(tmp, ignore_errors=True)


atexit.register(_clean)


def check(ok, what):
    """Count and go on."""
    global failures, checks
    checks += 1
    if not ok:
        failures += 1
        print(f"FAILED: {what}", flush=True)
    return bool(ok)


def finish():
    print(f"{checks} checks, {failures} failed")
    sys.exit(1 if failures or not checks else 0)


def path(*parts):
    return os.path.join(tmp, *parts)


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def json(self):
        return json.loads(self.out)


def run(*args, code=0, stderr=None, ranks=0, env=None, prefix=(), timeout=110):
    """Run a verb.  code: expected exit code, or a tuple of them; stderr: a pattern in the error text.
    A failed run tells it in one line; a clean run prints none at error level."""
    command = [*prefix, BIN, *map(str, args)]
    if ranks:
        command = ["mpirun", "-n", str(ranks), *command]
    return run_command(command, code=code, stderr=stderr, env=env, timeout=timeout)


def run_command(command, code=0, stderr=None, env=None, timeout=110):
    environment = {k: v for k, v in os.environ.items() if k not in CORE_VARIABLES}
    environment.update(env or {})
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=timeout)
    except subprocess.TimeoutExpired:
        check(False, f"timed out: {' '.join(command)}")
        return Result(124, "", "")
    r = Result(done.returncode, done.stdout.decode(), done.stderr.decode())
    shown = f"{' '.join(command)}\n  env {env or {}}\n  stderr: {r.err[-1500:]}"
    codes = code if isinstance(code, tuple) else (code,)
    check(r.code in codes, f"exit {r.code}, expected {code}: {shown}")
    if stderr is not None:
        check(re.search(stderr, r.err), f"no /{stderr}/ in the error text of {shown}")
    check("Sanitizer" not in r.err and "runtime error" not in r.err, f"sanitizer report: {shown}")
    return r


# ---- files -----------------------------------------------------------------------------------

NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "U8": "u1", "I8": "i1"}


def bf16(values):
    """float32 to the bits of bfloat16, nearest even."""
    bits = np.asarray(values, "<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def as_float(dtype, values):
    if dtype == "BF16":
        return (np.asarray(values).astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.asarray(values, np.float64)


def write_safetensors(file, tensors, header=None):
    """tensors: name -> array (F32 unless of another type) or (dtype, array)."""
    entries, data = {}, b""
    for name, value in tensors.items():
        dtype, array = value if isinstance(value, tuple) else ("F32", value)
        array = np.ascontiguousarray(array, NUMPY[dtype])
        entries[name] = {"dtype": dtype, "shape": list(array.shape),
                         "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    text = header if header is not None else json.dumps(entries).encode()
    with open(file, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def read_safetensors(file):
    """name -> (dtype, array)."""
    with open(file, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    return {name: (t["dtype"], np.frombuffer(data[t["data_offsets"][0]:t["data_offsets"][1]],
                                             NUMPY[t["dtype"]]).reshape(t["shape"]))
            for name, t in header.items() if name != "__metadata__"}


def read_tables(work, block="block"):
    """Whole tables of a run from its tables.h5: (route, output) -> stored elements."""
    tables = {}
    with h5py.File(os.path.join(work, block, "tables.h5"), "r") as f:
        for route in f["tables"]:
            for output in f["tables"][route]:
                tables[route, output] = f["tables"][route][output][()]
    return tables


def read_json(*parts):
    with open(os.path.join(*parts)) as f:
        return json.load(f)


def write_json(file, value):
    with open(file, "w") as f:
        json.dump(value, f)
    return file


def spec(block, checkpoint="model.safetensors", **more):
    """A spec document around a block (or a list of blocks)."""
    document = {"tokentab": 1, "checkpoint": checkpoint, "mode": "eval", "input_contract": "token_indices_only",
                "storage": "may_grow"}
    document["blocks" if isinstance(block, list) else "block"] = block
    document.update(more)
    return document


def lookup_block(layers, embedding="e", **more):
    return {"kind": "lookup", "embedding": {"weight": embedding}, "layers": layers, **more}


def folder(name, tensors=None, document=None):
    """A fresh folder with model.safetensors and spec.json; the path of the spec."""
    os.makedirs(path(name), exist_ok=True)
    if tensors is not None:
        write_safetensors(path(name, "model.safetensors"), tensors)
    return write_json(path(name, "spec.json"), document) if document is not None else path(name, "spec.json")


def compile(spec_file, out, *options, code=0, stderr=None, ranks=0, env=None, timeout=110):
    return run("compile", spec_file, "--out", out, "--progress", "none", "--json", *options, code=code,
               stderr=stderr, ranks=ranks, env=env, timeout=timeout)


def report_of(out, block="block"):
    return read_json(out + ".work", block, "report.json")


def rows_of(out, ids, output="output", route=None):
    """Rows gathered by id, through the lookup verb."""
    file = out + ".rows.npy"
    options = ["--route", route] if route else []
    r = run("lookup", out, "--ids", ",".join(map(str, ids)), "--output", output, "--format", "npy", "--file",
            file, "--force", *options)
    return np.load(file) if r.code == 0 else None


def promised_bytes(out, work=None):
    """Everything of a run that is promised to repeat: name -> bytes."""
    work = work or out + ".work"
    files = {}
    for root, base in ((out, "recipe"), (work, "work")):
        for directory, _, names in os.walk(root):
            for name in names:
                if name in ("run.json", "tables.h5") or "journal" in name or "lock" in name or "progress" in name:
                    continue
                full = os.path.join(directory, name)
                with open(full, "rb") as f:
                    files[base + "/" + os.path.relpath(full, root)] = f.read()
    return files


def check_same_bytes(a, b, what):
    check(sorted(a) == sorted(b), f"{what}: other files: {sorted(set(a) ^ set(b))}")
    for name in sorted(set(a) & set(b)):
        check(a[name] == b[name], f"{what}: {name} differs")


def random(shape, seed, scale=1.0):
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype("<f4")
