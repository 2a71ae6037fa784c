# SPDX-License-Identifier: Apache-2.0
"""bindings/python against an independent reader of recipe.json and safetensors.

test_python.py FOLDER_TOOL; exit 77 where numpy is missing."""
import json
import os
import subprocess
import sys
import tempfile
import threading

try:
    import numpy
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

sys.path.insert(0, os.path.join(os.environ["TOKENTAB_SOURCE_DIR"], "bindings", "python"))
import tokentab  # noqa: E402

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I32": "<i4", "I64": "<i8"}


def read_payload(folder):
    with open(os.path.join(folder, "recipe.json"), encoding="utf-8") as file:
        recipe = json.load(file)
    with open(os.path.join(folder, recipe["payload"]["file"]), "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        tensors[name] = numpy.frombuffer(data[8 + size + first:8 + size + end],
                                         DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return recipe, tensors


def expected(recipe, tensors, route, name, ids):
    outputs = recipe["outputs"] if route == "bulk" else \
        recipe["row_count_profiles"][int(route[7:])]["outputs"]
    _, group, column, width = next(o for o in outputs if o[0] == name)
    table = tensors["tables." + group]
    rows = ids
    if table.shape[0] == 1:
        rows = numpy.zeros_like(ids)
    elif "tables." + group + ".index" in tensors:
        rows = tensors["tables." + group + ".index"][ids]
    return table[rows][..., column:column + width]


def same(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def check_fanout(tool, work, kind):
    folder = os.path.join(work, "fanout." + kind)
    subprocess.run([tool, "fanout", folder, kind], check=True)
    recipe, tensors = read_payload(os.path.join(work, "fanout.mapped"))
    with tokentab.open(folder, verify=True) as opened:
        assert opened.kind == "fanout" and opened.num_embeddings == 37 and not opened.historical
        assert opened.routes == ["bulk", "profile0", "profile1"]
        assert opened.route(1) == "profile0" and opened.route(16) == "bulk"
        assert opened.dtype("v") == "BF16" and opened.width("q") == 5
        every = numpy.arange(37)
        grid = (numpy.arange(24) * 5 % 37).reshape(2, 3, 4)
        for ids in (numpy.int64(7), numpy.arange(3, dtype=numpy.int32), every, every[::-1],
                    every[::3], grid, grid.transpose(2, 0, 1), grid[::-1, :, ::2],
                    grid.astype(numpy.int32)[:, ::-1], grid.astype(numpy.uint8),
                    numpy.broadcast_to(every, (2, 37)), numpy.zeros((2, 0), numpy.int64),
                    grid.astype(">i4")):
            ids = numpy.asarray(ids)
            for route in [None] + opened.routes:
                taken = route or opened.route(ids.size)
                rows = opened.gather(ids, route=route)
                for name in ("q", "k", "v", "w"):
                    want = expected(recipe, tensors, taken, name, ids.astype(numpy.int64))
                    assert same(rows[name], want), (name, ids.shape, route)
        assert opened.gather([]).keys() == {"q", "k", "v", "w"}
        assert opened.gather([[1, 2]], outputs="q").shape == (1, 2, 5)
        wide = opened.gather([4], outputs="v", widen=True)
        assert wide.dtype == numpy.float32
        out = numpy.zeros((5, 37), numpy.float32)
        assert opened.gather(every, outputs="q", route="bulk", out=out.T) is not None
        assert same(numpy.ascontiguousarray(out.T), expected(recipe, tensors, "bulk", "q", every))
        for bad in ([-1], [37], [2**40], numpy.array([2**64 - 1], numpy.uint64)):
            sentinel = numpy.full((1, 5), 9, numpy.float32)
            try:
                opened.gather(bad, outputs="q", out=sentinel)
            except IndexError as fault:
                assert isinstance(fault, tokentab.TokentabError) and fault.status == 2
                assert (sentinel == 9).all()
            else:
                raise AssertionError(bad)
        for bad in ([0.5], "x"):
            try:
                opened.gather(bad)
            except TypeError:
                continue
            raise AssertionError(bad)
        opened.prefetch(every)
        faults = []

        def read():
            for _ in range(20):
                if not same(opened.gather(every, outputs="q", route="bulk"),
                            expected(recipe, tensors, "bulk", "q", every)):
                    faults.append("q")
        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
        opened.trim()
    try:
        opened.gather([1])
    except ValueError:
        pass
    else:
        raise AssertionError("a closed recipe was used")


def check_projected(tool, work):
    folder = os.path.join(work, "projected")
    subprocess.run([tool, "projected", folder, "mapped"], check=True)
    _, tensors = read_payload(folder)
    z, r = tensors["tables.group_0"][:, :13], tensors["tables.group_0"][:, 13:]
    with tokentab.open(folder) as opened:
        rows = opened.gather(numpy.arange(9))
    assert same(rows["raw"], z + tensors["bias"])
    assert same(rows["normalized"], z / r + tensors["bias"])


def check_ids(tool, work):
    folder = os.path.join(work, "ids")
    subprocess.run([tool, "ids", folder, "packed"], check=True)
    with tokentab.open(folder) as opened:
        assert opened.gather(36, outputs="output").shape == (3,)
        try:
            opened.gather(35)
        except tokentab.OutOfVocabulary as fault:
            assert "not in the recipe's id list" in str(fault)
        else:
            raise AssertionError("35 is not in the list")


def main():
    tool = sys.argv[1]
    assert tokentab.version() == "0.1.0"
    with tempfile.TemporaryDirectory() as work:
        try:
            tokentab.open(os.path.join(work, "absent"))
        except tokentab.TokentabError as fault:
            assert fault.status == 3 and "absent" in str(fault)
        else:
            raise AssertionError("opened what is not there")
        check_fanout(tool, work, "mapped")
        check_fanout(tool, work, "packed")
        check_projected(tool, work)
        check_ids(tool, work)
    print("python bindings: ok")


main()
