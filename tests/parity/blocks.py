# SPDX-License-Identifier: Apache-2.0
"""Whole blocks against the PyTorch reference on the same OpenBLAS core: tables and execution classes.

    blocks.py [--markdown FILE] [--core NAME]          (TOKENTAB_BIN, TOKENTAB_SOURCE_DIR in the environment)

Random blocks go through `tokentab compile` and through ../shared/reference/tokenref.py.

1. Every table of every route has the reference's bytes.
2. PyTorch evaluates every token directly in every layout that report.json names, and the counts of each
   execution class (cases, elements, unequal ones, unequal bytes, worst ulp, worst absolute) are those that PyTorch's own
   calls give.  So layouts of one class really are one kernel call, and the classes know where the bias is
   prefilled and where it is added.

Known exceptions, which stand in docs/: PyTorch sends elements that do not fill two vectors through libm, and F32
gelu_erf through oneDNN; F16 and BF16 matrix products have oneDNN's order of summation.  So elementwise functions are
given whole vectors here and oneDNN is off in gelu_erf; half precision is the reference's float32 mode (each op
computes in float32 and rounds once).  The bulk tables and those of single ids are also compared with PyTorch as it
comes, where only the elements named above may differ.

Exit 77 without PyTorch, without ../shared, or where PyTorch does not run its AVX2 kernels."""
import argparse
import os
import sys
import warnings

SKIP = 77
SOURCE = os.environ["TOKENTAB_SOURCE_DIR"]
REFERENCE = os.path.join(SOURCE, "..", "shared", "reference")


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def cpu_has(*flags):
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as f:
        have = next((line.split(":", 1)[1].split() for line in f if line.startswith("flags")), [])
    return all(flag in have for flag in flags)


arguments = argparse.ArgumentParser()
arguments.add_argument("--markdown", help="put the table under '## Whole blocks against PyTorch' of this file as well")
arguments.add_argument("--core", help="OpenBLAS core type of both (default: what tokentab chooses here)")
options = arguments.parse_args()
if not os.path.exists(os.path.join(REFERENCE, "tokenref.py")):
    skip("no ../shared/reference")
if not cpu_has("avx2", "fma"):
    skip("this processor has no AVX2, so PyTorch runs other kernels")
CORE = "SkylakeX" if cpu_has("avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl") else "Haswell"
# OpenBLAS and PyTorch read these when they are loaded, so they come before the imports.
os.environ.update(OPENBLAS_CORETYPE=options.core or CORE, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
os.environ.pop("ATEN_CPU_CAPABILITY", None)
sys.path[:0] = [os.path.join(SOURCE, "tests", "cli"), REFERENCE]
sys.dont_write_bytecode = True
try:
    import torch
except ImportError as missing:
    skip(missing)
import cli
import stfile
import tokenref
from cli import check, np

F = torch.nn.functional
CAPABILITY = torch.__config__.show().split("CPU capability usage:")[1].split("\n")[0].strip()
if CAPABILITY != "AVX2":
    skip(f"PyTorch runs its {CAPABILITY} kernels here, the promise is for AVX2")

# ---- the reference, with whole vectors --------------------------------------------------------

# Functions that PyTorch computes one way in vectors and another in what is left over.
VECTORED = {"gelu", "quick_gelu", "silu", "tanh", "sigmoid", "elu", "celu", "softplus", "mish", "selu"}
PAIR = 16 # elements of two vectors of floats; a multiple of two of doubles
plain = False # PyTorch as it comes
reference_function = tokenref._function


def in_whole_vectors(f):
    def padded(x):
        n = x.numel()
        if n % PAIR == 0:
            return f(x)
        return f(F.pad(x.reshape(-1), (0, -n % PAIR)))[:n].reshape(x.shape)
    return padded


def without_onednn(f):
    def gelu(x):
        with torch.backends.mkldnn.flags(enabled=False):
            return f(x)
    return gelu


def function(op, *rest):
    f = (lambda x: x * torch.sigmoid(1.702 * x)) if op == "quick_gelu" else reference_function(op, *rest)
    if plain or op not in VECTORED:
        return f
    return in_whole_vectors(without_onednn(f) if op == "gelu" else f)


tokenref._function = function
tokenref.OPS["quick_gelu"] = ({}, {})
warnings.filterwarnings("ignore", message=".*is deprecated. Use torch")


def old_layer(layer):
    """A layer in the reference's spelling."""
    op = layer["op"]
    if op in ("gelu_erf", "gelu_tanh"):
        return {"op": "gelu", "approximate": "tanh" if op == "gelu_tanh" else "none"}
    return layer


def old_spec(block, settings):
    old = {"checkpoint": "", "kind": block["kind"], "embedding": block["embedding"], **settings}
    for key in ("layers", "prefix"):
        if key in block:
            old[key] = [old_layer(layer) for layer in block[key]]
    if "branches" in block:
        old["branches"] = {name: [old_layer(layer) for layer in layers] for name, layers in block["branches"].items()}
    if "residual" in block:
        old["residual"] = block["residual"]
    if "linear" in block:
        old.update(linear=block["linear"], eps=block["normalize_eps"])
    return old


# ---- blocks -----------------------------------------------------------------------------------

# Two units, of 80 and 20 tokens, in chunks of 33, 33, 14 and 20; odd row counts have a last row of their own on some cores.
TOKENS, BULK_ROWS, VALIDATION_ROWS = 100, 5, 33
UNIT = 16 * BULK_ROWS
PROFILES = {"none": [], "1 2": [(1, 1), (15, 2)], "1 2 2": [(1, 1), (6, 2), (24, 2)], "3 16": [(3, 3), (64, 16)]}
ACTIVATIONS = [
    {"op": "relu"}, {"op": "relu6"}, {"op": "gelu_erf"}, {"op": "gelu_tanh"}, {"op": "quick_gelu"}, {"op": "silu"},
    {"op": "tanh"}, {"op": "sigmoid"}, {"op": "elu", "alpha": 1.3}, {"op": "celu", "alpha": 0.7},
    {"op": "leaky_relu", "negative_slope": 0.02}, {"op": "softplus", "beta": 1.5, "threshold": 12.0}, {"op": "softsign"},
    {"op": "hardtanh", "min": -0.5, "max": 0.7}, {"op": "hardswish"}, {"op": "hardsigmoid"}, {"op": "mish"}, {"op": "selu"},
    {"op": "identity"}, {"op": "dropout", "p": 0.1}, {"op": "scale", "value": -0.7}]


class Blocks:
    """Blocks of one dtype and their checkpoint."""

    def __init__(self, dtype, seed):
        self.dtype, self.rng, self.tensors, self.blocks = dtype, np.random.default_rng(seed), {}, []

    def tensor(self, *shape, scale=1.0, offset=0.0):
        name = f"t{len(self.tensors)}"
        values = self.rng.standard_normal(shape) * scale + offset
        self.tensors[name] = (self.dtype, cli.bf16(values) if self.dtype == "BF16" else values)
        return name

    def embedding(self, width):
        return {"weight": self.tensor(TOKENS, width)}

    def linear(self, k, n, bias=True):
        more = {"bias": self.tensor(n, scale=0.3)} if bias else {}
        return {"op": "linear", "weight": self.tensor(n, k, scale=k ** -0.5), **more}

    def norm(self, op, width, eps=1e-6, bias=True):
        if op == "l2_normalize":
            return {"op": op, "eps": eps}
        more = {"bias": self.tensor(width, scale=0.1)} if op == "layer_norm" and bias else {}
        return {"op": op, "weight": self.tensor(width, scale=0.1, offset=1.0), "eps": eps, **more}

    def lookup(self, name, width, layers):
        self.blocks.append({"kind": "lookup", "name": name, "embedding": self.embedding(width), "layers": layers})

    def fanout(self, name, width, prefix, branches, residual="residual"):
        more = {"residual": residual} if residual else {}
        self.blocks.append({"kind": "fanout", "name": name, "embedding": self.embedding(width), "prefix": prefix,
                            "branches": branches, **more})

    def activations(self, name, k, n, some=ACTIVATIONS):
        """Each activation behind a linear layer of its own, and a linear layer behind some of them."""
        branches = {a["op"]: [self.linear(k, n), a] for a in some}
        for op in ("silu", "gelu_tanh"):
            branches[op].append(self.linear(n, 16))
        self.fanout(name, k, [], branches, residual=None)

    def projected(self, name, k, n, bias):
        embedding = self.embedding(k)
        values = self.tensors[embedding["weight"]][1]
        values[3] = 0 # a zero row is divided by eps
        linear = self.linear(k, n, bias)
        del linear["op"]
        self.blocks.append({"kind": "projected", "name": name, "embedding": embedding, "linear": linear,
                            "normalize_eps": 1e-3})

    def wide_chain(self):
        """Longer than a block of K on every core: there a bias that is prefilled gives other bits than an added one."""
        self.lookup("wide_chain", 650, [self.linear(650, 48), {"op": "gelu_tanh"}, self.linear(48, 5, bias=False)])

    def layer_norm_fanout(self):
        self.fanout("layer_norm_fanout", 64, [self.norm("layer_norm", 64, 1e-5)],
                    {"q": [self.linear(64, 64)], "k": [self.linear(64, 16, bias=False)], "v": [self.linear(64, 1)]})

    def small(self):
        self.lookup("chain", 64, [self.linear(64, 64), {"op": "relu"}, self.linear(64, 32)])
        self.wide_chain()
        self.layer_norm_fanout()
        self.projected("projected_bias", 96, 40, True)

    def all(self):
        self.small()
        self.lookup("odd_chain", 37, [self.linear(37, 23), {"op": "silu"}, self.linear(23, 11)])
        self.lookup("one_output", 100, [self.linear(100, 1)])
        self.lookup("one_output_no_bias", 650, [self.linear(650, 1, bias=False), {"op": "sigmoid"}])
        self.lookup("norm_only", 52, [self.norm("layer_norm", 52, 1e-5), {"op": "gelu_erf"}])
        self.lookup("bare_norm", 33, [{"op": "layer_norm", "eps": 1e-5}, {"op": "rms_norm", "eps": 1e-6}])
        self.fanout("rms_norm_fanout", 100, [self.norm("rms_norm", 100)],
                    {"a": [self.linear(100, 32, bias=False)], "b": [self.linear(100, 9), {"op": "tanh"}]})
        self.fanout("float32_rms_norm_fanout", 640,
                    [{"op": "scale", "value": 25.298221281347036}, self.norm("float32_rms_norm", 640)],
                    {"q": [self.linear(640, 64, bias=False)], "gate": [self.linear(640, 20), {"op": "silu"}],
                     "normed": [self.norm("rms_norm", 640, 1e-5)]})
        self.fanout("l2_normalize_fanout", 37, [self.norm("l2_normalize", 37, 1e-12)],
                    {"a": [self.linear(37, 30)], "b": [self.linear(37, 8), self.norm("layer_norm", 8, bias=False)]})
        self.projected("projected", 37, 17, False)
        self.activations("activations_48", 32, 48)
        self.activations("activations_19", 33, 19)
        self.activations("activations_wide_k", 650, 16, ACTIVATIONS[2:6])
        return self


# ---- comparison -------------------------------------------------------------------------------

INTEGERS = {8: np.int64, 4: np.int32, 2: np.int16}


def bits(array):
    """The bytes of a tensor or an array as integers."""
    if isinstance(array, torch.Tensor):
        return tokenref.bits(array).numpy()
    return np.ascontiguousarray(array).view(INTEGERS[array.dtype.itemsize])


def places(b):
    """Integers that count representable numbers, both zeros 0."""
    low = np.int64(np.iinfo(b.dtype).min)
    b = b.astype(np.int64)
    return np.where(b < 0, low - b, b)


def worst_ulp(a, b):
    differ = a != b
    x, y = places(a[differ]), places(b[differ])
    # The true difference fits 64 unsigned bits whatever the signs.
    return int((np.maximum(x, y).view(np.uint64) - np.minimum(x, y).view(np.uint64)).max(initial=0))


def values(b, dtype):
    b = np.ascontiguousarray(b)
    if dtype == "BF16":
        return cli.as_float("BF16", b.view("<u2"))
    return b.view(cli.NUMPY[dtype]).astype(np.float64)


class Count:
    """What report.json says of one class, output and route."""
    KEYS = ("cases", "elements", "unequal", "unequal_bytes", "max_abs", "max_ulp")

    def __init__(self):
        self.cases, self.rows, self.direct = 0, [], []

    def add(self, rows, direct):
        self.cases += 1
        self.rows.append(rows)
        self.direct.append(direct)

    def result(self, table, dtype):
        direct, expected = np.concatenate(self.direct), table[np.concatenate(self.rows)]
        differ = direct != expected
        a, b = values(direct[differ], dtype), values(expected[differ], dtype)
        numbers = np.abs(a - b)
        return dict(zip(self.KEYS, (self.cases, direct.size, int((numbers > 0).sum()), int(differ.sum()),
                                    float(numbers.max(initial=0.0)), worst_ulp(direct, expected))))


# ---- layouts ----------------------------------------------------------------------------------

def units():
    for first in range(0, TOKENS, UNIT):
        yield np.arange(first, min(first + UNIT, TOKENS))


def chunks(shape):
    for unit in units():
        for at in range(0, len(unit), VALIDATION_ROWS):
            rows = unit[at:at + VALIDATION_ROWS]
            yield rows, torch.from_numpy(rows).view([len(rows) if n == "n" else n for n in shape])


def expanded():
    for rows, ids in chunks((1, "n")):
        yield np.concatenate([rows, rows]), ids.expand(2, len(rows))


def filled():
    for unit in units():
        rest = unit[len(unit) // VALIDATION_ROWS * VALIDATION_ROWS:]
        if len(rest):
            rows = np.resize(rest, VALIDATION_ROWS)
            yield rows, torch.from_numpy(rows)


def repeated(shape):
    for token in range(TOKENS):
        ids = torch.full(shape, token, dtype=torch.long)
        yield np.full(ids.numel(), token), ids


def mixed(m):
    for unit in units():
        rows = np.resize(unit, -(-len(unit) // m) * m)
        for at in range(0, len(rows), m):
            yield rows[at:at + m], torch.from_numpy(rows[at:at + m].copy())


def layout(name):
    """The calls of a layout as report.json names it."""
    word, _, shape = name.rpartition(" ") if not name.startswith("(") else ("", "", name)
    if name == "(1,n) expanded to (2,n)":
        return expanded()
    if name == "(n) short, filled by repeating":
        return filled()
    if name == "scalar":
        return repeated(())
    # A block without a linear layer has one class for all counts: any count will do.
    sizes = [3 if n == "m" else n if n == "n" else int(n) for n in shape[1:-1].split(",")]
    if word == "mixed":
        return mixed(sizes[0])
    return chunks(sizes) if "n" in sizes else repeated(tuple(sizes))


# ---- one block --------------------------------------------------------------------------------

class Findings:
    """A row of the printed table."""

    def __init__(self):
        self.equal = self.elements = self.ulp = 0
        self.absolute = 0.0
        self.classes = self.wrong = self.layouts = self.differing = 0

    def merge(self, other):
        for key, value in vars(other).items():
            mine = getattr(self, key)
            setattr(self, key, max(mine, value) if key in ("ulp", "absolute") else mine + value)

    def add(self, found, expected, dtype):
        same = found == expected
        self.equal += int(same.sum())
        self.elements += same.size
        if not same.all():
            self.ulp = max(self.ulp, worst_ulp(found, expected))
            difference = np.abs(values(found[~same], dtype) - values(expected[~same], dtype))
            self.absolute = max(self.absolute, float(difference.max()))

    def share(self):
        if self.equal == self.elements:
            return "100 %"
        return f"{min(100.0 * self.equal / max(1, self.elements), 99.9999):.4f} %"


def reference_block(block, settings, tensors, dtype):
    """The reference's block and tables; None and the text where it refuses."""
    half = "native" if plain else "float32"
    try:
        reference = tokenref.Block(old_spec(block, settings), tensors, half)
        return reference, tokenref.enumerate_all(reference)
    except tokenref.Refusal as refusal:
        check(refusal.code == "positions_disagree", f"{dtype} {block['name']}: the reference refuses: {refusal}")
        return None, refusal.detail


def has_linear(block):
    chains = [block.get("layers", []), block.get("prefix", []), *block.get("branches", {}).values()]
    return "linear" in block or any(layer["op"] == "linear" for chain in chains for layer in chain)


def compare_tables(label, reference, tables, stored, dtype, findings):
    for route, list_ in tables.items():
        for (name, _), table in zip(reference.stored, list_):
            found, expected = bits(stored[route, name]), bits(table)
            if not check(found.shape == expected.shape, f"{label}: {route}.{name} has shape {found.shape}"):
                continue
            findings.add(found, expected, dtype)
            check((found == expected).all(), f"{label}: {route}.{name}: {int((found != expected).sum())} of {found.size} "
                                             f"elements differ, first at {np.argwhere(found != expected)[:1].tolist()}")


def count_layout(reference, calls):
    """Direct calls of PyTorch: (output, route) -> Count."""
    counts = {}
    for rows, ids in calls:
        route = reference.route(ids.numel())
        for (name, width), direct in zip(reference.results, reference(ids)):
            counts.setdefault((name, route), Count()).add(rows, bits(direct).reshape(-1, width))
    return counts


def compare_classes(label, block, reference, tables, report, findings):
    """The report's count of each class against PyTorch's direct calls in each of its layouts."""
    dtype = stfile.dtype_name(reference.dtype)
    results = {(name, route): bits(table) for route, list_ in tables.items()
               for (name, _), table in zip(reference.results, reference.combine(list_))}
    stats = {}
    for s in report["statistics"]:
        stats.setdefault(s["class"], {})[s["output"], s["route"]] = {key: s[key] for key in Count.KEYS}
        check(s["bitwise"] == (s["unequal_bytes"] == 0) and s["nonfinite"] == 0, f"{label}: flags of {s['class']}")
    linear = has_linear(block)
    for entry in report["execution_classes"]:
        claimed = stats.get(entry["name"], {})
        right = True
        findings.differing += any(c["unequal_bytes"] for c in claimed.values())
        check(claimed or entry["name"] == "padded", f"{label}: class {entry['name']} has no statistics")
        for name in entry["layouts"]:
            counts = count_layout(reference, layout(name))
            found = {key: c.result(results[key], dtype) for key, c in counts.items()}
            findings.layouts += 1
            if linear:
                right &= check(found == claimed, f"{label}: class {entry['name']}, layout {name}: the report says "
                                                 f"{claimed}, PyTorch's calls give {found}")
            else: # counted once as single rows under every route, whatever the layout
                right &= check(all(not c["unequal_bytes"] for c in [*found.values(), *claimed.values()]),
                               f"{label}: layout {name}: {found}, the report says {claimed}")
        findings.classes += right
        findings.wrong += not right


# ---- PyTorch as it comes ----------------------------------------------------------------------

def excused(reference, dtype, m):
    """Rows of a call of m that PyTorch's left-over elements may reach, and why."""
    pair, rows, why = PAIR // 2 if dtype == "F64" else PAIR, set(), set()
    for layer in reference.layers():
        rest = m * layer.width_in % pair
        if layer.op == "gelu" and layer.numbers["approximate"] == "none" and dtype == "F32":
            rows.update(range(m))
            why.add("oneDNN's gelu_erf")
        elif layer.op in VECTORED and rest:
            rows.update(range(max(0, m - -(-rest // layer.width_in)), m))
            why.add("vector tails")
    return rows, why


# softsign is two tensor operations there; F16 has few kernels of its own, and the reference takes float32 for the rest.
HALF_REASONS = {"F16": "softsign in two steps", "BF16": "steps in BF16, oneDNN's products"}


def compare_plain(label, block, settings, tensors, stored, dtype):
    """Bulk and single ids against PyTorch without any help.  Returns findings and reasons."""
    global plain
    findings, reasons = Findings(), set()
    plain = True
    try:
        reference = tokenref.Block(old_spec(block, settings), tensors, "native")
        tables = {"bulk": tokenref.enumerate_bulk(reference)}
        if reference.profiles and reference.profiles[0]["evaluation_rows"] == 1:
            tables["profile0"] = tokenref.enumerate_profile(reference, reference.profiles[0])
    finally:
        plain = False
    for route, list_ in tables.items():
        allowed = np.zeros(TOKENS, bool)
        step = BULK_ROWS if route == "bulk" else 1
        for first in range(0, TOKENS, step):
            rows, why = excused(reference, dtype, min(step, TOKENS - first))
            allowed[[first + r for r in rows]] = True
            reasons |= why
        for (name, _), table in zip(reference.stored, list_):
            found, expected = bits(stored[route, name]), bits(table)
            findings.add(found, expected, dtype)
            if dtype not in HALF_REASONS:
                check((found == expected)[~allowed].all(), f"{label}: {route}.{name}: differs from plain PyTorch outside "
                                                           f"its left-over elements")
    if dtype in HALF_REASONS:
        reasons.add(HALF_REASONS[dtype])
    return findings, reasons if findings.equal < findings.elements else set()


# ---- runs -------------------------------------------------------------------------------------

HEADING = "## Whole blocks against PyTorch\n"
TEXT = """Made by

    TOKENTAB_BIN=build/release/driver/tokentab TOKENTAB_SOURCE_DIR=$PWD \\
        /usr/bin/python3 tests/parity/blocks.py --markdown FILE

(ctest `parity_blocks`; needs python3-torch and the reference in `../shared`; `--core NAME` runs both on another OpenBLAS
core type.) PyTorch {torch} with its {capability} kernels; {environment}; {checks} checks, none failed.

Random blocks of 100 tokens go through `tokentab compile` and through the PyTorch reference. *Tables*: every table of
every route, each element's bytes. *Classes*: PyTorch evaluates every token directly in every layout that `report.json`
names ((n), (1,n), (n,1), (1,1,n), expanded, filled up, scalar, (1), (1,1), (1,1,1), repeated, mixed), and cases, elements,
unequal elements, unequal bytes, worst ulp and worst absolute of each execution class, output and route have to be
those of PyTorch's own calls. "Not bitwise" counts the classes where something differs from the table, so where that
comparison has numbers to get right; with K = 650 a bias that is added afterwards gives other bits than a prefilled
one. All sets of profiles of a block are counted together.

For these columns PyTorch's elementwise functions are given whole vectors, oneDNN is off in gelu_erf, and F16 and BF16 are
the reference's float32 mode (each op computes in float32 and rounds once). The last columns take PyTorch as it comes,
bulk and single ids, and name what then differs; in F32 and F64 nothing else may:

- *vector tails*: PyTorch takes two vectors at a time (16 floats, 8 doubles) and sends the elements left over at the end
  of a call through libm. Here they go through a padded vector, so that a row does not depend on its neighbours. A row
  behind a further linear layer differs as a whole then.
- *oneDNN's gelu_erf* (F32) has its own polynomial.
- *steps in BF16*: PyTorch {torch} rounds to BF16 after every step inside silu, gelu and softsign, keeps the mean and the
  deviation of layer_norm in BF16, and oneDNN adds up products in its own order; *softsign in two steps* is the same in F16,
  where PyTorch has hardly an op of its own. Here each op rounds once. Large ulp counts are numbers beside zero.

Profiles "1 2" are {{1, 1}}, {{15, 2}} as {{max_rows, evaluation_rows}}; "1 2 2" are {{1, 1}}, {{6, 2}}, {{24, 2}}. Under {{3, 3}},
{{64, 16}} positions of a linear layer (K = 100, N = 37) disagree on some cores; both have to refuse the same profile
and token then.

"""


class Printed:
    def __init__(self):
        self.rows = {} # (dtype, block) -> profiles, findings, findings with plain PyTorch, reasons
        self.environment = ""

    def add(self, block, dtype, profiles, findings, with_plain, reasons):
        row = self.rows.setdefault((dtype, block), [[], Findings(), Findings(), set()])
        row[0].append(profiles)
        row[1].merge(findings)
        row[2].merge(with_plain)
        row[3] |= reasons

    def lines(self):
        yield ("| block | dtype | profiles | tables, byte-equal | classes with PyTorch's counts | layouts | classes not bitwise "
               "| plain PyTorch, byte-equal | worst ulp | worst absolute | exceptions |")
        yield "|---|---|---|---|---|---|---|---|---|---|---|"
        for (dtype, block), (profiles, f, p, reasons) in self.rows.items():
            worst = f"{p.absolute:.1e}" if p.absolute else "0"
            yield (f"| {block} | {dtype} | {', '.join(profiles)} | {f.share()} | {f.classes} of {f.classes + f.wrong} "
                   f"| {f.layouts} | {f.differing} | {p.share()} | {p.ulp} | {worst} | "
                   f"{', '.join(sorted(reasons)) or 'none'} |")

    def write(self, file):
        """Replace the section, up to the next heading of its level, or put it at the end."""
        with open(file, encoding="utf-8") as f:
            head, _, rest = f.read().partition(HEADING)
        _, mark, tail = rest.partition("\n## ")
        text = TEXT.format(torch=torch.__version__, capability=CAPABILITY, environment=self.environment, checks=cli.checks)
        with open(file, "w", encoding="utf-8") as f:
            f.write(head.rstrip("\n") + "\n\n" + HEADING + "\n" + text + "\n".join(self.lines()) + "\n" + mark + tail)


def compile_blocks(made, name, blocks, settings, code=0, stderr=None):
    file = cli.folder(name, made.tensors, cli.spec(blocks, **settings))
    core = ["--blas-core", options.core] if options.core else []
    out = cli.path(name + ".out")
    cli.compile(file, out, *core, code=code, stderr=stderr)
    return out + ".work"


def check_environment(report):
    """Both have to run the same kernels, or nothing here means anything."""
    mine, theirs = report["environment"], tokenref.environment()
    check(mine["blas_core"] == theirs.get("blas_core") and mine["blas_threads"] == str(theirs.get("blas_threads")),
          f"other kernels: {mine}, the reference has {theirs}")
    return ", ".join(f"{key} {value}" for key, value in mine.items())


def run(made, profiles, printed):
    """All blocks of a checkpoint under one set of profiles."""
    settings = {"row_count_profiles": [{"max_rows": a, "evaluation_rows": b} for a, b in PROFILES[profiles]],
                "bulk_rows": BULK_ROWS, "validation_rows": VALIDATION_ROWS,
                "tolerance": {"absolute": 1.0, "relative": 1.0}}
    if not settings["row_count_profiles"]:
        del settings["row_count_profiles"]
    name = f"{made.dtype}-{profiles.replace(' ', '')}"
    cli.write_safetensors(cli.path(name + ".safetensors"), made.tensors)
    tensors = stfile.read(cli.path(name + ".safetensors"))
    accepted, refused = [], []
    for block in made.blocks:
        reference, tables = reference_block(block, settings, tensors, made.dtype)
        (refused if reference is None else accepted).append((block, reference, tables))
    for block, _, detail in refused:
        route, token = detail.split(":")[0], detail.split()[2]
        compile_blocks(made, f"{name}-{block['name']}", [block], settings, code=5,
                       stderr=rf"{route} .*token {token}, .*positions")
        print(f"{made.dtype} {block['name']}, profiles {profiles}: both refuse: {detail}")
    work = compile_blocks(made, name, [block for block, _, _ in accepted], settings) if accepted else None
    for block, reference, tables in accepted:
        label, f = f"{made.dtype} {block['name']}, profiles {profiles}", Findings()
        report = cli.read_json(work, block["name"], "report.json")
        stored = cli.read_tables(work, block["name"])
        check(report["status"] == "accepted_on_full_domain_validation", f"{label}: {report['status']}")
        printed.environment = check_environment(report)
        compare_tables(label, reference, tables, stored, made.dtype, f)
        compare_classes(label, block, reference, tables, report, f)
        p, reasons = compare_plain(label, block, settings, tensors, stored, made.dtype)
        printed.add(block["name"], made.dtype, profiles, f, p, reasons)
        yield block["name"], report


def check_bias_matters(dtype, report):
    """Teeth of the comparison: here a prefilled bias gives other bits than an added one."""
    stats = {(s["class"], s["route"]): [s["unequal_bytes"], s["ulp_histogram"]] for s in report["statistics"]}
    check(stats.get(("chunk", "bulk")) != stats.get(("chunk added", "bulk")),
          f"{dtype} wide_chain: adding the bias afterwards changed nothing")


def refusals(dtype):
    """Profiles whose positions disagree on some cores: both refuse, or both do not."""
    made = Blocks(dtype, 7)
    made.lookup("positions", 100, [made.linear(100, 37)])
    return made


def main():
    printed = Printed()
    with torch.inference_mode():
        for seed, dtype in enumerate(("F32", "F64")):
            for name, report in run(Blocks(dtype, seed).all(), "1 2", printed):
                if name == "wide_chain":
                    check_bias_matters(dtype, report)
            small = Blocks(dtype, 100 + seed)
            small.small()
            for profiles in ("none", "1 2 2"):
                for _ in run(small, profiles, printed):
                    pass
            for _ in run(refusals(dtype), "3 16", printed):
                pass
        for seed, dtype in enumerate(("F16", "BF16")):
            made = Blocks(dtype, 200 + seed)
            made.small()
            made.activations("activations_19", 33, 19)
            for _ in run(made, "1 2", printed):
                pass
    print("\n".join(printed.lines()))
    print(f"PyTorch {torch.__version__} ({CAPABILITY}); {printed.environment}")
    if options.markdown and not cli.failures:
        printed.write(options.markdown)
    cli.finish()


main()
