# SPDX-License-Identifier: Apache-2.0
"""Every golden case and refusal of the reference through the program: status, tables, facts."""
import copy
import os

import cli
from cli import check, np

GOLDEN = os.path.join(cli.SHARED, "golden")
BLOCK_KEYS = ("kind", "embedding", "layers", "prefix", "branches", "residual", "linear", "decision")
RMS_EPS = {"F64": 2.0 ** -52, "F32": 2.0 ** -23, "F16": 2.0 ** -10, "BF16": 2.0 ** -7}
EXIT = {"spec": 3, "missing_tensor": 3, "shape": 3, "dtype": 3, "checkpoint": 3, "non_finite_parameter": 5,
        "non_finite_table": 5, "positions_disagree": 5, "storage": 6, "tolerance": 5}


def translate_layer(layer, rms_eps):
    op = layer.get("op")
    if op == "gelu" and layer.get("approximate", "none") in ("none", "tanh"):
        layer["op"] = "gelu_tanh" if layer.pop("approximate", "none") == "tanh" else "gelu_erf"
    default = {"layer_norm": 1e-5, "l2_normalize": 1e-12, "rms_norm": rms_eps}.get(op)
    if default is not None:
        layer.setdefault("eps", default)


def translate(old, checkpoint_folder, dtype):
    """The old spelling of a block in today's."""
    new = copy.deepcopy(old)
    block = {key: new.pop(key) for key in BLOCK_KEYS if key in new}
    if "name" in new:
        block["output"] = new.pop("name")
    if "eps" in new:
        block["normalize_eps"] = new.pop("eps")
    lists = [block.get("layers", []), block.get("prefix", []), *block.get("branches", {}).values()]
    for layers in lists:
        for layer in layers:
            translate_layer(layer, RMS_EPS[dtype])
    new.update(tokentab=1, mode="eval", input_contract="token_indices_only", block=block)
    if "checkpoint" in new:
        new["checkpoint"] = os.path.join(checkpoint_folder, new["checkpoint"])
    return new


def embedding_dtype(folder, old):
    try:
        tensors = cli.read_safetensors(os.path.join(folder, old["checkpoint"]))
        dtype = tensors[old["embedding"]["weight"]][0]
        return dtype if dtype in RMS_EPS else "F32"
    except (OSError, KeyError, ValueError):
        return "F32"


def expected_code(facts):
    if facts["status"] == "accepted":
        return 0
    return min(EXIT[reason] for reason in facts["reasons"])


def check_table(name, stored, dtype, expected, tolerance):
    mine, theirs = cli.as_float(dtype, stored), cli.as_float(*expected)
    if not check(mine.shape == theirs.shape, f"{name}: shape {mine.shape}, expected {theirs.shape}"):
        return
    with np.errstate(invalid="ignore"):
        error = np.abs(mine - theirs)
    error[mine == theirs] = 0 # infinities
    limit = tolerance["absolute"] + tolerance["relative"] * np.abs(theirs)
    check((error <= limit).all(), f"{name}: off by {np.nanmax(error - limit)} beyond the tolerance")


def table_of(report):
    """(route, output) -> entry of the report's table list."""
    return {tuple(use): t for t in report["tables"] for use in t["uses"]}


def check_facts(case, facts, report):
    tables = table_of(report)

    def of(name):
        return tables[tuple(name.split(".", 1))]

    for a, b in facts.get("same", []):
        check(of(a)["id"] == of(b)["id"], f"{case}: {a} and {b} are not shared")
    for a, b in facts.get("different", []):
        check(of(a)["id"] != of(b)["id"], f"{case}: {a} and {b} are shared")
    for a in facts.get("collapsed", []):
        check(of(a)["rows"] == 1 and of(a)["constant"], f"{case}: {a} is not collapsed")
    for a in facts.get("not_collapsed", []):
        check(of(a)["rows"] > 1 and not of(a)["constant"], f"{case}: {a} is collapsed")


def check_bytes(case, facts, report, reference):
    """Bytes before are those of the reference; bytes after follow from the tables."""
    storage = report["storage"]
    check(storage["logical_before"] == reference["storage"]["before"],
          f"{case}: before {storage['logical_before']}, expected {reference['storage']['before']}")
    # The reference leaves a projected block's bias out of `after`.
    tables = sum(t["bytes"] for t in report["tables"])
    check(storage["logical_after"] == tables + reference["storage"].get("retained", 0),
          f"{case}: after {storage['logical_after']}, tables {tables}")
    for t in report["tables"]:
        check(t["bytes"] == t["rows"] * t["width"] * np.dtype(cli.NUMPY[t["dtype"]]).itemsize, f"{case}: {t}")
    if report["kind"] != "projected" and facts["portable_status"]:
        saves = storage["logical_after"] < storage["logical_before"]
        check(saves == ("storage" not in reference["reasons"]), f"{case}: storage verdict {storage}")


def check_lookup(case, out, tables, report):
    """The recipe gives what tables.h5 holds, route by route."""
    if report["kind"] == "projected":
        return
    n = min(report["tokens"], 40)
    ids = [(7919 * i + 13) % report["tokens"] for i in range(n)]
    for (route, output), stored in tables.items():
        t = table_of(report)[route, output]
        rows = cli.rows_of(out, ids, output, route)
        if check(rows is not None, f"{case}: lookup of {route}.{output}"):
            width = np.dtype(cli.NUMPY[t["dtype"]]).itemsize
            mine = np.ascontiguousarray(rows).view(f"<u{width}" if rows.dtype.itemsize == width else rows.dtype)
            check(np.array_equal(mine.reshape(n, -1), np.ascontiguousarray(stored[ids]).view(f"<u{width}")),
                  f"{case}: lookup of {route}.{output} is not the table")


def run_case(case, folder, name, prefix, facts):
    """One block: `name`.json with files `prefix`expected.safetensors."""
    old = cli.read_json(folder, name)
    dtype = embedding_dtype(folder, old)
    spec = cli.write_json(cli.path(case + ".json"), translate(old, folder, dtype))
    out = cli.path(case)
    code = expected_code(facts)
    result = cli.compile(spec, out, code=code if facts["portable_status"] else (0, 5, 6))
    if facts["status"] == "refused" and facts["portable_status"]:
        check(not os.path.exists(out), f"{case}: a refused run left a recipe")
        check(cli.report_of(out)["status"] == "refused_unsupported", f"{case}: report of a refusal")
        return
    if result.code == 5 and "refused" in result.out:
        return # a case whose status is not portable
    report, tables = cli.report_of(out), cli.read_tables(out + ".work")
    reference = cli.read_json(folder, prefix + "report.json")
    half = dtype in ("F16", "BF16")
    file = os.path.join(folder, prefix + ("expected_float32" if half else "expected") + ".safetensors")
    if not os.path.exists(file):
        return
    expected = cli.read_safetensors(file)
    stored = table_of(report)
    for use in stored:
        check_table(f"{case} {'.'.join(use)}", tables[use], stored[use]["dtype"], expected[".".join(use)],
                    facts["table_tolerance"])
        if facts.get("bit_exact"):
            check(np.ascontiguousarray(tables[use]).tobytes() == expected[".".join(use)][1].tobytes(),
                  f"{case}: {'.'.join(use)} is not bit-exact")
    check_facts(case, facts, report)
    check_bytes(case, facts, report, reference)
    check((result.code == 0) == os.path.exists(os.path.join(out, "recipe.json")), f"{case}: recipe and exit code")
    if result.code == 0:
        check_lookup(case, out, tables, report)


def refusals():
    folder = os.path.join(GOLDEN, "refusals")
    for name, facts in cli.read_json(folder, "expected.json").items():
        old = cli.read_json(folder, name + ".json")
        spec = cli.write_json(cli.path(name + ".json"), translate(old, folder, embedding_dtype(folder, old)))
        code = expected_code(facts)
        if name == "mixed_dtypes":
            code = (0, 6) # only the reference wants one dtype a block
        elif facts["status"] == "accepted":
            code = (0, 6)
        out = cli.path("refusal-" + name)
        r = cli.compile(spec, out, "--quiet", code=code)
        if r.code != 0:
            check(not os.path.exists(out), f"refusals/{name}: left a recipe")
            check(len(r.err.splitlines()) == 1, f"refusals/{name}: expected one line, found {r.err}")


if not os.path.isdir(GOLDEN):
    print(f"skipped: no {GOLDEN}")
    raise SystemExit(77)
for case, facts in cli.read_json(GOLDEN, "index.json").items():
    folder = os.path.join(GOLDEN, case)
    if "blocks" in facts:
        for block, block_facts in facts["blocks"].items():
            run_case(f"{case}-{block}", folder, block + ".json", block + "_", block_facts)
    else:
        run_case(case, folder, "spec.json", "", facts)
refusals()
cli.finish()
