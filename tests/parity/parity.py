# SPDX-License-Identifier: Apache-2.0
"""Byte parity of kernels/ (library arithmetic) with PyTorch on the same OpenBLAS core.

    parity.py KERNEL_TOOL [--markdown FILE] [--threads N] [--core NAME]

Feeds random arrays to both and prints a table: operation, byte-equal share, worst distance in units in
the last place.  Fails (exit 1) where a share is below what docs/numerics.md promises.  Exit 77 without
PyTorch or on a processor whose PyTorch does not run its AVX2 kernels."""
import argparse
import os
import struct
import subprocess
import sys
import tempfile

SKIP = 77


def cpu_has(*flags):
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        have = next((line.split(":", 1)[1].split() for line in f if line.startswith("flags")), [])
    return all(flag in have for flag in flags)


arguments = argparse.ArgumentParser()
arguments.add_argument("tool")
arguments.add_argument("--markdown")
arguments.add_argument("--threads", type=int, default=1)
arguments.add_argument("--core", help="OPENBLAS_CORETYPE of both (default: what tokentab chooses here)")
options = arguments.parse_args()

if not cpu_has("avx2", "fma"):
    print("skipped: this processor has no AVX2, so PyTorch runs other kernels")
    sys.exit(SKIP)
CORE = "SkylakeX" if cpu_has("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl") else "Haswell"
CORE = options.core or CORE
# OpenBLAS and PyTorch read these when they are loaded, so they come before the imports.
os.environ["OPENBLAS_CORETYPE"] = CORE
os.environ["OPENBLAS_NUM_THREADS"] = str(options.threads)
os.environ.pop("ATEN_CPU_CAPABILITY", None)
try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(SKIP)
torch.set_num_threads(1)

DTYPES = {"F64": 0, "F32": 1, "F16": 2, "BF16": 3}  # enum dtype of base.h
TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
OPERATIONS = ["linear", "layer_norm", "rms_norm", "float32_rms_norm", "l2_normalize", "l2_norm", "elementwise", "softmax"]
FUNCTIONS = ["identity", "relu", "relu6", "gelu_erf", "gelu_tanh", "quick_gelu", "silu", "tanh", "sigmoid", "elu",
             "celu", "leaky_relu", "softplus", "softsign", "hardtanh", "hardswish", "hardsigmoid", "mish", "selu",
             "scale", "exp"]
KEEP = object()
BIAS_ADDED = 1


class Tool:
    """Collects requests, runs the tool once, gives the answers back."""

    def __init__(self):
        self.requests, self.expected = [], []

    def add(self, row, operation, dtype, expected, arrays, shape, sub=0, flags=0, parameters=()):
        kind = np.float64 if dtype == "F64" else np.float32
        m, n, k = shape
        data = [struct.pack("<IIIIQQQ3d", OPERATIONS.index(operation), DTYPES[dtype], sub, flags, m, n, k,
                            *(tuple(parameters) + (0.0,) * 3)[:3])]
        for array in (list(arrays) + [None] * 4)[:4]:
            if array is KEEP:
                data.append(struct.pack("<Q", 2**64 - 1))
                continue
            array = np.zeros(0, kind) if array is None else np.ascontiguousarray(array, kind)
            data += [struct.pack("<Q", array.size), array.tobytes()]
        self.requests.append(b"".join(data))
        self.expected.append((row, dtype, np.ascontiguousarray(expected.to(torch.float64 if dtype == "F64" else
                                                                           torch.float32).numpy())))

    def run(self, table):
        with tempfile.TemporaryDirectory() as folder:
            request, result = os.path.join(folder, "request"), os.path.join(folder, "result")
            with open(request, "wb") as f:
                f.writelines(self.requests)
            done = subprocess.run([options.tool, CORE, str(options.threads), request, result], check=True,
                                  stdout=subprocess.PIPE, text=True)
            with open(result, "rb") as f:
                raw = f.read()
        at = 0
        for row, dtype, expected in self.expected:
            found = np.frombuffer(raw, expected.dtype, expected.size, at).reshape(expected.shape)
            at += expected.nbytes
            table.count(row, dtype, expected, found)
        assert at == len(raw), "the tool answered with another number of bytes"
        self.requests, self.expected = [], []
        return done.stdout


def ordered(x, dtype):
    """Integers whose difference is the distance in units of the storage dtype; both zeros are 0."""
    if dtype in ("F16", "BF16"):
        bits = torch.from_numpy(x.copy()).to(TORCH[dtype]).view(torch.int16).numpy().astype(np.int64)
        low = -2**15
    else:
        bits = x.view(np.int64 if dtype == "F64" else np.int32).astype(np.int64)
        low = -2**63 if dtype == "F64" else -2**31
    return np.where(bits < 0, low - bits, bits)


class Table:
    """Rows: what, dtype, promised share (None: only reported), remark."""

    def __init__(self):
        self.rows = {}

    def declare(self, row, promised, remark=""):
        self.rows[row] = {"promised": promised, "remark": remark, "cases": 0, "good": 0, "n": 0, "equal": 0,
                          "ulp": 0, "absolute": 0.0}

    def count(self, row, dtype, expected, found):
        r = self.rows[row]
        same = expected.view(np.uint8).reshape(expected.shape + (-1,)) == \
            found.view(np.uint8).reshape(found.shape + (-1,))
        same = same.all(-1)
        r["cases"] += 1
        r["good"] += int(same.all())
        r["n"] += same.size
        r["equal"] += int(same.sum())
        if not same.all():
            r["ulp"] = max(r["ulp"], int(np.abs(ordered(expected, dtype) - ordered(found, dtype)).max()))
            r["absolute"] = max(r["absolute"], float(np.abs(expected.astype(np.float64) - found).max()))

    def lines(self):
        yield "| operation | byte-equal calls | byte-equal elements | worst ulp | worst absolute | remark |"
        yield "|---|---|---|---|---|---|"
        for row, r in self.rows.items():
            share = 100.0 * r["equal"] / max(1, r["n"])
            text = "100 %" if r["equal"] == r["n"] else f"{min(share, 99.9999):.4f} %"
            worst = "0" if r["absolute"] == 0 else f"{r['absolute']:.1e}"
            yield f"| {row} | {r['good']} of {r['cases']} | {text} | {r['ulp']} | {worst} | {r['remark']} |"

    def failures(self):
        for row, r in self.rows.items():
            share = r["equal"] / r["n"] if r["n"] else 0.0
            if r["n"] == 0 or (r["promised"] is not None and share < r["promised"]):
                yield f"{row}: promised {r['promised']}, found {share:.6f} of {r['n']}"


LINEAR = [(512, 512), (512, 64), (1024, 64), (64, 64), (100, 37), (5120, 1024), (8, 8), (512, 192), (512, 1), (1, 5),
          (1024, 2048), (37, 100), (512, 3)]


def activations(rng, kind, k):
    """One activation tensor per way that F.linear treats differently."""
    def normal(*shape):
        return torch.from_numpy(rng.standard_normal(shape).astype(kind))
    for shape in [(k,), (1, k), (1, 1, k), (2, k), (1, 2, k), (3, k), (15, k), (16, k), (33, k), (257, k), (1024, k),
                  (2, 3, 4, k)]:
        yield normal(*shape)
    yield normal(5, k).expand(2, 5, k)
    yield normal(7, k + 3)[:, :k]
    yield normal(2, 7, k + 3)[..., :k]


def linear(table, rng):
    for dtype, kind in (("F32", np.float32), ("F64", np.float64)):
        row = f"linear {dtype}"
        table.declare(row, 1.0, "13 (K, N), 15 input layouts, with and without bias")
        for k, n in LINEAR:
            tool = Tool()
            w = (rng.standard_normal((n, k)) / np.sqrt(k)).astype(kind)
            b = (0.1 * rng.standard_normal(n)).astype(kind)
            weight, bias, first = torch.from_numpy(w), torch.from_numpy(b), True
            for x in activations(rng, kind, k):
                flat = x.contiguous().reshape(-1, k)
                prefilled = x.dim() == 2 or (x.dim() == 3 and x.is_contiguous())
                for use in (bias, None):
                    expected = F.linear(x, weight, use).reshape(-1, n)
                    tool.add(row, "linear", dtype, expected,
                             [flat.numpy(), w if first else KEEP, None if use is None else b],
                             (flat.shape[0], n, k), flags=0 if prefilled else BIAS_ADDED)
                    first = False
            tool.run(table)
    row = "linear BF16"
    table.declare(row, 0.99, "PyTorch: oneDNN's own order of summation; one rounding in both")
    for k, n in ((64, 64), (512, 64), (100, 37)):
        tool = Tool()
        w = torch.from_numpy((rng.standard_normal((n, k)) / np.sqrt(k)).astype(np.float32)).bfloat16()
        b = torch.from_numpy((0.1 * rng.standard_normal(n)).astype(np.float32)).bfloat16()
        for m in (2, 16, 257):
            x = torch.from_numpy(rng.standard_normal((m, k)).astype(np.float32)).bfloat16()
            tool.add(row, "linear", "BF16", F.linear(x, w, b), [x.float().numpy(), w.float().numpy(), b.float().numpy()],
                     (m, n, k))
        tool.run(table)


WIDTHS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 31, 33, 64, 100, 127, 130, 512, 515, 1001, 1024, 4100, 5120)


def norms(table, rng):
    def rms(x, w, eps):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return y if w is None else y * w
    for dtype, kind in (("F32", np.float32), ("F64", np.float64)):
        names = ["layer_norm", "rms_norm", "float32_rms_norm", "l2_normalize", "l2_norm", "softmax"]
        for name in names:
            table.declare(f"{name} {dtype}", 1.0, f"{len(WIDTHS)} widths from 1 to 5120; 1, 3 and 200 rows")
        for n in WIDTHS:
            tool = Tool()
            for rows in (1, 3, 200):
                x = torch.from_numpy((rng.standard_normal((rows, n)) * 1.3 + 0.2).astype(kind))
                w = torch.from_numpy((1 + 0.1 * rng.standard_normal(n)).astype(kind))
                b = torch.from_numpy((0.1 * rng.standard_normal(n)).astype(kind))
                size = (rows, n, 0)

                def add(name, expected, *arrays, eps=0.0):
                    tool.add(f"{name} {dtype}", name, dtype, expected,
                             [None if a is None else a.numpy() for a in arrays], size, parameters=(eps,))
                add("layer_norm", F.layer_norm(x, (n,), w, b, 1e-5), x, w, b, eps=1e-5)
                add("layer_norm", F.layer_norm(x, (n,), None, None, 1e-5), x, eps=1e-5)
                add("layer_norm", F.layer_norm(x, (n,), w, None, 1e-5), x, w, eps=1e-5)
                add("rms_norm", rms(x, w, 1e-6), x, w, eps=1e-6)
                add("rms_norm", rms(x, None, 1e-6), x, eps=1e-6)
                add("float32_rms_norm", w * rms(x.float(), None, 1e-6).to(x.dtype), x, w, eps=1e-6)
                add("l2_normalize", F.normalize(x, dim=-1, eps=1e-12), x, eps=1e-12)
                add("l2_norm", x.norm(2, -1).clamp_min(1e-12), x, eps=1e-12)
                add("softmax", torch.softmax(x, -1), x)
            tool.run(table)


ELEMENTWISE = {
    "relu": (F.relu, ()), "relu6": (F.relu6, ()), "gelu_erf": (F.gelu, ()),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), ()),
    "quick_gelu": (lambda x: x * torch.sigmoid(1.702 * x), ()), "silu": (F.silu, ()), "tanh": (torch.tanh, ()),
    "sigmoid": (torch.sigmoid, ()), "elu": (lambda x: F.elu(x, 1.3), (1.3,)),
    "celu": (lambda x: F.celu(x, 0.7), (0.7,)), "leaky_relu": (lambda x: F.leaky_relu(x, 0.02), (0.02,)),
    "softplus": (lambda x: F.softplus(x, 1.5, 12.0), (1.5, 12.0)), "softsign": (F.softsign, ()),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.7), (-0.5, 0.7)), "hardswish": (F.hardswish, ()),
    "hardsigmoid": (F.hardsigmoid, ()), "mish": (F.mish, ()), "selu": (F.selu, ()),
    "scale": (lambda x: x * -0.7, (-0.7,)), "exp": (torch.exp, ()),
}
TAILS = ("gelu_tanh", "quick_gelu", "silu", "tanh", "sigmoid", "elu", "celu", "softplus", "mish", "selu", "exp")


def elementwise(table, rng):
    knots = np.array([0.0, -0.0, 3, -3, 6, -6, 0.5, -0.5, 0.7, 8, 20, -20, 50, -50, 87, -87, 100, -100, 1e4, -1e4, 1e-30, -1e-30,
                      1e30, -1e30, 1, -1, 15, -15, 30, -30, 88, -88])
    for dtype, kind in (("F32", np.float32), ("F64", np.float64)):
        x = np.concatenate([rng.standard_normal(1 << 15) * 2.5, rng.uniform(-12, 12, 1 << 15), knots]).astype(kind)
        assert x.size % 16 == 0, "PyTorch takes two vectors at a time; what is left over goes through libm"
        tool = Tool()
        for name, (function, parameters) in ELEMENTWISE.items():
            row = f"{name} {dtype}"
            if name == "gelu_erf" and dtype == "F32":
                table.declare(row, None, "PyTorch: oneDNN's own polynomial")
                tool.add(row, "elementwise", dtype, function(torch.from_numpy(x)), [x], (1, x.size, 0),
                         sub=FUNCTIONS.index(name), parameters=parameters)
                row += ", oneDNN off"
            table.declare(row, 1.0, "multiples of two vectors")
            with torch.backends.mkldnn.flags(enabled=False):
                expected = function(torch.from_numpy(x))
            tool.add(row, "elementwise", dtype, expected, [x], (1, x.size, 0), sub=FUNCTIONS.index(name),
                     parameters=parameters)
        tool.run(table)
        pair = 16 if dtype == "F32" else 8
        short = [(rng.standard_normal(n) * 2.5).astype(kind) for n in range(1, pair) for _ in range(20)]
        for name in TAILS:
            function, parameters = ELEMENTWISE[name]
            row = f"{name} {dtype}, 1 to {pair - 1} elements"
            table.declare(row, None, "PyTorch: libm in what does not fill two vectors")
            for x in short:
                tool.add(row, "elementwise", dtype, function(torch.from_numpy(x)), [x], (1, x.size, 0),
                         sub=FUNCTIONS.index(name), parameters=parameters)
        tool.run(table)


def main():
    capability = torch.__config__.show().split("CPU capability usage:")[1].split("\n")[0].strip()
    if capability != "AVX2":
        print(f"skipped: PyTorch runs its {capability} kernels here, the promise is for AVX2")
        return SKIP
    rng, table = np.random.default_rng(20), Table()
    linear(table, rng)
    norms(table, rng)
    elementwise(table, rng)
    environment = ", ".join(Tool().run(table).strip().split("\n"))
    lines = list(table.lines())
    print("\n".join(lines))
    print(f"PyTorch {torch.__version__} ({capability}); {environment}")
    if options.markdown:
        with open(options.markdown, "w", encoding="utf-8") as f:
            f.write("# Byte parity of library arithmetic with PyTorch\n\nMade by\n\n    tests/parity/parity.py KERNEL_TOOL "
                    "--markdown FILE\n\n(KERNEL_TOOL is the test program `kernel_tool` of the build; "
                    "PyTorch and tokentab on one OpenBLAS core and thread count.)\n\n"
                    f"PyTorch {torch.__version__} with its {capability} kernels; {environment}.\n\n"
                    "\"Byte-equal calls\" counts calls whose every element has the same bytes. Elementwise rows take tensors "
                    "of a multiple of two vectors (16 floats, 8 doubles), PyTorch's step; the elements left over go through libm there "
                    "and through a padded vector here, which the rows \"1 to ... elements\" show.\n\n")
            f.write("\n".join(lines) + "\n")
    failures = list(table.failures())
    for line in failures:
        print("FAILED", line)
    return 1 if failures else 0


sys.exit(main())
