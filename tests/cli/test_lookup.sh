#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# lookup: values, shapes, types, formats; what is outside the vocabulary touches nothing (N19).
source "$(dirname "$0")/lib.sh"
check "four-token model" make_four four
recipe=four/recipe

# values, known by hand
run_json all.json "$tokentab" lookup $recipe --ids 0-3
check_json all.json 'd["outputs"][0]["values"]' '[[3.5, 0], [7.5, 0], [0, 0], [0, 2.5]]'
check_json all.json 'd["outputs"][0]["name"], d["outputs"][0]["dtype"], d["outputs"][0]["shape"], d["route"], d["kind"]' \
    "('output', 'F32', [4, 2], 'bulk', 'lookup')"
check_json all.json 'd["historical"]' False
run_json shaped.json "$tokentab" lookup $recipe --ids 3,0,1,1,3,2 --shape 1x2x3
check_json shaped.json 'd["ids"]' '[[[3, 0, 1], [1, 3, 2]]]'
check_json shaped.json 'd["outputs"][0]["values"]' \
    '[[[[0, 2.5], [3.5, 0], [7.5, 0]], [[7.5, 0], [0, 2.5], [0, 0]]]]'
run_json scalar.json "$tokentab" lookup $recipe --ids 1 --shape scalar --id-type int32
check_json scalar.json 'd["ids"], d["outputs"][0]["shape"], d["outputs"][0]["values"]' '(1, [2], [7.5, 0])'
for shape in 0 2x0 0x3x2; do
    run_json empty.json "$tokentab" lookup $recipe --shape $shape
    check_json empty.json 'd["n_ids"]' 0
done
check_json empty.json 'd["outputs"][0]["shape"], d["outputs"][0]["values"]' '([0, 3, 2, 2], [])'
printf '2\n# two\n0-1\n' >ids.txt
run_json file.json "$tokentab" lookup $recipe/recipe.json --ids @ids.txt
check_json file.json 'd["outputs"][0]["values"]' '[[0, 0], [3.5, 0], [7.5, 0]]'

# outside the vocabulary: one line, exit 2, nothing on stdout, no file
for id in -1 4 4294967296 -9223372036854775808 9223372036854775807 18446744073709551616 0-3000000000; do
    for type in int64 int32; do
        expect 2 '^tokentab: .+$' "$tokentab" lookup $recipe --ids="$id" --id-type $type
        "$tokentab" lookup $recipe --ids="0,$id,1" --id-type $type --format raw --output output --file out.raw >out.txt 2>err.txt
        check "stdout stays empty" test ! -s out.txt
        check "no file" test ! -e out.raw
        check "one line" test "$(wc -l <err.txt)" = 1
    done
done
expect 2 'id 4 at place 1' "$tokentab" lookup $recipe --ids 0,4

# files
"$make_checkpoint" --out rows.safetensors --tensor output:F32:3x2=0,2.5,3.5,0,7.5,0
expect 0 '' "$tokentab" lookup $recipe --ids 3,0,1 --format raw --file rows.raw
tail -c 24 rows.safetensors >rows.expected
same rows.raw rows.expected
expect 0 '' "$tokentab" lookup $recipe --ids 3,0,1 --format npy --file rows.npy
expect 0 '^equal: 6 elements' "$tokentab" diff rows.npy rows.safetensors
expect 0 'npy.*\[3,2\]' bash -c "\"$tokentab\" inspect rows.npy | tr '\n' ' '"
expect 2 'rows.npy exists; --force' "$tokentab" lookup $recipe --ids 3 --format npy --file rows.npy
expect 0 '^equal: 6' "$tokentab" diff rows.npy rows.safetensors
expect 0 '' "$tokentab" lookup $recipe --ids 0 --format npy --file rows.npy --force
expect 1 'shape 1x2 and 3x2' "$tokentab" diff rows.npy rows.safetensors
expect 2 '--file is missing' "$tokentab" lookup $recipe --ids 0 --format raw
expect 0 '' "$tokentab" lookup $recipe --ids 0-3 --file all2.json
same all.json all2.json

# outputs, routes, half precision
check "fanout model" make_fanout fan BF16
run_json one.json "$tokentab" lookup fan/recipe --ids 5
check_json one.json 'd["route"], [o["name"] for o in d["outputs"]]' "('profile0', ['q', 'k', 'residual'])"
run_json five.json "$tokentab" lookup fan/recipe --ids 1-5 --output k
check_json five.json 'd["route"], [o["name"] for o in d["outputs"]]' "('profile1', ['k'])"
run_json six.json "$tokentab" lookup fan/recipe --ids 1-6 --output residual
check_json six.json 'd["route"], d["outputs"][0]["shape"]' "('bulk', [6, 8])"
run_json forced.json "$tokentab" lookup fan/recipe --ids 5 --output residual --route bulk
check_json forced.json 'd["route"]' bulk
run_json bf16.json "$tokentab" lookup fan/recipe --ids 0-39 --output residual
check "BF16 values are exact" python3 - <<'CHECK'
import json, struct
d = json.load(open("bf16.json"))
raw = open("fan/model.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
at = json.loads(raw[8:8 + size])["embed"]["data_offsets"][0] + 8 + size
bits = struct.unpack("<320H", raw[at:at + 640])
expected = [struct.unpack("<f", struct.pack("<I", b << 16))[0] for b in bits]
found = [x for row in d["outputs"][0]["values"] for x in row]
raise SystemExit(found != expected)
CHECK
run_json note.json bash -c "\"$tokentab\" lookup fan/recipe --ids 0 --output q --format npy --file q.npy --json 2>note.txt"
check_json note.json '"<u2" in d["outputs"][0]["note"]' True
check "the warning" grep -q '<u2' note.txt
expect 2 '--output: no "z" among the outputs q, k, residual' "$tokentab" lookup fan/recipe --ids 0 --output z
expect 2 'no "profile2"' "$tokentab" lookup fan/recipe --ids 0 --route profile2
expect 2 'name one by --output' "$tokentab" lookup fan/recipe --ids 0 --format raw --file x.raw
run_json more.json "$tokentab" lookup fan/recipe --ids 0-6 --route profile0 # more ids than the profile is chosen for
check_json more.json 'd["route"], d["outputs"][0]["shape"]' "('profile0', [7, 4])"

# a changed recipe is historical: loaded, and said so
cp -r four/recipe old
sed -i 's/"absolute": "1e-05"/"absolute": "2e-05"/' old/recipe.json
check "the edit took" bash -c '! cmp -s old/recipe.json four/recipe/recipe.json'
expect 0 'historical' "$tokentab" lookup old --ids 0
"$tokentab" lookup old --ids 0 >old.json 2>/dev/null
check_json old.json 'd["historical"]' True

# no recipe
expect 3 'recipe.json' "$tokentab" lookup four --ids 0
truncate -s -1 old/tables-*.safetensors
expect 3 'tables-' "$tokentab" lookup old --ids 0
expect 2 'ids LIST is missing' "$tokentab" lookup $recipe
expect 0 '--shape DIMS' "$tokentab" lookup --help
finish
