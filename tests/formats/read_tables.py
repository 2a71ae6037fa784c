# SPDX-License-Identifier: Apache-2.0
"""What h5py sees of a unit file and of tables.h5.  Usage: read_tables.py FOLDER

The values are those of fill_tables in test_shard.c: element j of row i of the whole table is
i * 8 + j, exact in every dtype; rows from 6 on have no unit file.  Exit 1 at the first difference.
"""
import sys

import h5py
import numpy as np


def check(condition, what):
    if not condition:
        sys.exit("read_tables.py: " + what)


def values(dataset):
    raw = dataset[...]
    if dataset.attrs["dtype"] in (b"BF16", "BF16"):
        check(raw.dtype == np.uint16, "BF16 lies as u16")
        raw = (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.astype(np.float64)


folder = sys.argv[1]
expected = np.arange(7 * 3, dtype=np.float64).reshape(7, 3)
expected = np.array([[i * 8 + j for j in range(3)] for i in range(7)], dtype=np.float64)
types = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "uint16"}

with h5py.File(folder + "/tables.h5", "r") as f:
    check(f.attrs["n_rows"] == 7, "n_rows")
    for name, dtype in types.items():
        dataset = f["tables/bulk/" + name]
        check(dataset.is_virtual, name + " is virtual")
        check(dataset.dtype == dtype, "%s is %s, expected %s" % (name, dataset.dtype, dtype))
        check(dataset.shape == (7, 3), name + " shape")
        got = values(dataset)
        check((got[:6] == expected[:6]).all(), name + " values:\n" + str(got))
        check(np.isnan(got[6:]).all(), name + " fill")
    check(f["tables/profile0/f32"].shape == (7, 3), "profile0")

with h5py.File(folder + "/unit1.h5", "r") as f:
    check(f.attrs["unit"] == 1 and f.attrs["first_row"] == 4, "unit")
    check(f.attrs["complete"] == 1, "complete")
    check((values(f["tables/bulk/f16"]) == expected[4:6]).all(), "unit values")
    check(f["columns/decision/q/margin"].shape == (2,), "column")
    check(f["fingerprint_fields"][()] == b'{"a":"1","b":"two"}', "fields")
