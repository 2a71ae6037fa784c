#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# diff: exit 0 equal, 1 different, 2 trouble; the worst places are the right ones.
source "$(dirname "$0")/lib.sh"
make() { # make FILE NAME:DTYPE:SHAPE=VALUES...
    local file=$1 options=()
    shift
    for tensor; do options+=(--tensor "$tensor"); done
    "$make_checkpoint" --out "$file" "${options[@]}"
}
make a.safetensors x:F32:2x3=1,2,3,4,5,6 y:F64:2=0.5,1
make b.safetensors x:F32:2x3=1,2.5,3,4,5,7 y:F64:2=0.5,1
cp a.safetensors c.safetensors

expect 0 '^equal: 8 elements of 2 tables' "$tokentab" diff a.safetensors c.safetensors
expect 1 'x: 2 of 6 differ' "$tokentab" diff a.safetensors b.safetensors
expect 1 'x id 0 column 1: 2 \(0x40000000\) and 2.5 \(0x40200000\)' "$tokentab" diff a.safetensors b.safetensors
"$tokentab" diff a.safetensors b.safetensors --json >d.json 2>d.txt
check "exit 1" test $? = 1
check "differing is no error" test ! -s d.txt
check_json d.json 'd["schema_version"], d["equal"], d["different"], d["elements"]' '(1, False, 2, 8)'
check_json d.json '[t["max_absolute"] for t in d["tables"] if t["name"] == "x"]' "[{'value': 1, 'row_id': 1, 'column': 2}]"
check_json d.json '[t["max_relative"] for t in d["tables"] if t["name"] == "x"]' "[{'value': 0.2, 'row_id': 0, 'column': 1}]"
check_json d.json '[t["max_ulp"] for t in d["tables"] if t["name"] == "x"]' \
    "[{'value': 2097152, 'row_id': 0, 'column': 1}]"
check_json d.json '[(p["name"], p["row_id"], p["column"], p["a"], p["b"]) for p in d["places"]]' \
    "[('x', 0, 1, '2', '2.5'), ('x', 1, 2, '6', '7')]"

# tolerances: any of those given
expect 0 '' "$tokentab" diff a.safetensors b.safetensors --absolute 1
expect 1 '1 of 6 differ' "$tokentab" diff a.safetensors b.safetensors --absolute 0.5
expect 0 '' "$tokentab" diff a.safetensors b.safetensors --relative 0.2
expect 1 '1 of 6' "$tokentab" diff a.safetensors b.safetensors --relative 0.15
expect 0 '' "$tokentab" diff a.safetensors b.safetensors --relative 0.15 --absolute 0.5
expect 0 '' "$tokentab" diff a.safetensors b.safetensors --ulp 2097152
expect 1 '2 of 6' "$tokentab" diff a.safetensors b.safetensors --ulp 2097151
expect 1 'and 1 more' "$tokentab" diff a.safetensors b.safetensors --max-lines 1

# zeros and NaN
python3 - <<'MAKE'
import json, struct
def make(name, *values):
    data = b"".join(struct.pack("<I", v) for v in values)
    header = json.dumps({"x": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}).encode()
    open(name, "wb").write(struct.pack("<Q", len(header)) + header + data)
make("zero.safetensors", 0, 0)
make("minus.safetensors", 0, 1 << 31)
make("nan.safetensors", 0, 0x7fc00000)
make("nan1.safetensors", 0, 0x7fc00001)
MAKE
expect 1 'x: 1 of 2 differ' "$tokentab" diff zero.safetensors minus.safetensors
expect 0 '' "$tokentab" diff zero.safetensors minus.safetensors --ulp 0
expect 0 '' "$tokentab" diff nan.safetensors nan.safetensors
expect 1 'with NaN' "$tokentab" diff nan.safetensors nan1.safetensors
expect 1 'with NaN' "$tokentab" diff nan.safetensors nan.safetensors --nan differ
expect 1 'with NaN' "$tokentab" diff nan.safetensors nan.safetensors --absolute 1
expect 0 '' "$tokentab" diff nan.safetensors nan1.safetensors --absolute 1 --nan equal
expect 0 '' "$tokentab" diff nan.safetensors nan1.safetensors --nan equal
expect 0 '' "$tokentab" diff nan.safetensors nan.safetensors --absolute 1 --nan bits
expect 1 '' "$tokentab" diff nan.safetensors zero.safetensors --absolute 1e30 --nan equal

# structure
make less.safetensors x:F32:2x3=1,2,3,4,5,6
make shape.safetensors x:F32:3x2=1,2,3,4,5,6
make dtype.safetensors x:F64:2x3=1,2,3,4,5,6
expect 1 'y: only in a.safetensors' "$tokentab" diff a.safetensors less.safetensors
expect 1 'y: only in a.safetensors' "$tokentab" diff less.safetensors a.safetensors --absolute 1e9
expect 1 'x: shape 2x3 and 3x2' "$tokentab" diff less.safetensors shape.safetensors --absolute 1
expect 1 'x: dtype F32 and F64' "$tokentab" diff less.safetensors dtype.safetensors
expect 0 '' "$tokentab" diff less.safetensors dtype.safetensors --absolute 0

# recipes, units
check "fanout model" make_fanout fan F32
check "the same at two ranks" bash -c 'cp -r fan fan2 && rm -r fan2/recipe fan2/recipe.work'
check "mpirun" env ASAN_OPTIONS=detect_leaks=0 mpirun -n 2 "$tokentab" compile fan2/spec.json --out fan2/recipe --progress none >/dev/null 2>&1
expect 0 '^equal: 1800 elements of 9 tables' "$tokentab" diff fan/recipe fan2/recipe
unit=$(find fan/recipe.work -name 'unit-*.h5')
expect 0 '^equal: 1800 elements' "$tokentab" diff "$unit" fan/recipe
payload=$(ls fan2/recipe/tables-*)
expect 0 '' "$tokentab" export fan2/recipe --to safetensors --out fan2.safetensors
python3 - "$payload" fan2.safetensors <<'DAMAGE'
import sys
for name in sys.argv[1:]:
    with open(name, "r+b") as f:
        f.seek(-4, 2)
        b = bytearray(f.read(4))
        b[0] ^= 1
        f.seek(-4, 2)
        f.write(b)
DAMAGE
expect 1 'max ulp 1 \(id 39, column' "$tokentab" diff fan/recipe fan2.safetensors
expect 0 '' "$tokentab" diff fan/recipe fan2.safetensors --ulp 1
expect 2 'corrupt' "$tokentab" diff fan/recipe fan2/recipe
expect 2 'corrupt' "$tokentab" diff fan2/recipe fan/recipe --ulp 1
expect 1 'id 39' "$tokentab" diff "$payload" fan/recipe/tables-*
check "four-token model" make_four four
expect 1 'kind: fanout and lookup' "$tokentab" diff fan/recipe four/recipe
expect 0 '' "$tokentab" lookup four/recipe --ids 0-3 --format npy --file four.npy
expect 0 '^equal: 8 elements' "$tokentab" diff four/recipe four.npy
check "packed" compile fan/spec.json fan/packed --packed
expect 0 '^equal: 1800 elements' "$tokentab" diff fan/recipe fan/packed
check "halves" make_fanout half BF16
expect 0 '' "$tokentab" lookup half/recipe --ids 0-39 --output k --route bulk --format npy --file k.npy
mkdir -p dir && cp k.npy dir/
expect 0 '' "$tokentab" diff dir k.npy

# trouble is 2
expect 2 'no-such-file' "$tokentab" diff a.safetensors no-such-file
expect 2 '' "$tokentab" diff "$here/lib.sh" a.safetensors
head -c 100 a.safetensors >cut.safetensors
expect 2 'cut.safetensors' "$tokentab" diff cut.safetensors a.safetensors
expect 2 'argument is missing' "$tokentab" diff a.safetensors
expect 2 '--ulp' "$tokentab" diff a.safetensors b.safetensors --ulp -1
expect 0 'Exit 0 equal' "$tokentab" diff --help
finish
