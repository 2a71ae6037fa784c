#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# inspect: every kind of file by its headers alone.
source "$(dirname "$0")/lib.sh"
check "fanout model" make_fanout fan F32

# checkpoints: file, index, folder
expect 0 'embed +F32 +\[40,8\] +1280' "$tokentab" inspect fan/model.safetensors
run_json file.json "$tokentab" inspect fan
check_json file.json 'd["kind"], d["n_tensors"], d["bytes"]' "('checkpoint', 4, 1536)"
check_json file.json '[(t["name"], t["dtype"], t["shape"], t["bytes"]) for t in d["tensors"] if t["name"] == "k"]' \
    "[('k', 'F32', [3, 8], 96)]"
check_json file.json '[(t["dtype"], t["tensors"], t["elements"], t["bytes"]) for t in d["totals"]]' "[('F32', 4, 384, 1536)]"
mkdir sharded
"$make_checkpoint" --out sharded/model.safetensors.index.json --shards 3 --tensor a:F32:4 --tensor b:BF16:2x3 --tensor c:F64:1
run_json index.json "$tokentab" inspect sharded/model.safetensors.index.json
check_json index.json 'sorted((t["dtype"], t["bytes"]) for t in d["totals"])' "[('BF16', 12), ('F32', 16), ('F64', 8)]"
check_json index.json 'len(set(t["file"] for t in d["tensors"]))' 3
cp sharded/model-00001-of-00003.safetensors sharded/model.safetensors
"$tokentab" inspect sharded --json >stray.json 2>stray.txt
check_json stray.json 'len(d["warnings"])' 1
check "a stray file is a warning" grep -q model.safetensors stray.txt
rm sharded/model-00002-of-00003.safetensors
expect 3 'model-00002-of-00003' "$tokentab" inspect sharded/model.safetensors.index.json
expect 0 '' "$tokentab" inspect sharded/model.safetensors.index.json --allow-missing-unused

# dtypes we do not compute are listed; nothing but headers is read
python3 - <<'MAKE'
import json, struct
header = json.dumps({"x": {"dtype": "F4_NEW", "shape": [3], "data_offsets": [0, 5]},
                     "big": {"dtype": "F8_E4M3", "shape": [1 << 33], "data_offsets": [5, 5 + (1 << 33)]}}).encode()
with open("odd.safetensors", "wb") as f:
    f.write(struct.pack("<Q", len(header)) + header)
    f.truncate(8 + len(header) + 5 + (1 << 33))
MAKE
run_json odd.json timeout 20 "$tokentab" inspect odd.safetensors
check_json odd.json '[(t["dtype"], t["bytes"]) for t in sorted(d["tensors"], key=lambda t: t["name"])]' \
    "[('F8_E4M3', 8589934592), ('F4_NEW', 5)]"
rm odd.safetensors

# a unit file
unit=$(find fan/recipe.work -name 'unit-*.h5' | head -1)
run_json unit.json "$tokentab" inspect "$unit"
check_json unit.json 'd["kind"], d["unit"], d["first_row"], d["n_rows"], d["complete"]' "('unit', 0, 0, 40, True)"
check_json unit.json 'len(d["tables"]), d["tables"][0]["name"], d["tables"][0]["shape"]' "(9, 'bulk/q', [40, 4])"
check_json unit.json 'len(d["fingerprint"]), "embedding_rows" in d["fingerprint_fields"]' '(64, True)'
expect 0 'profile1/residual +F32 +\[40,8\]' "$tokentab" inspect "$unit"
head -c 1000 "$unit" >cut.h5
expect 3 'cut.h5' "$tokentab" inspect cut.h5

# a recipe, as folder and as file
for path in fan/recipe fan/recipe/recipe.json; do
    run_json recipe.json "$tokentab" inspect $path
    check_json recipe.json 'd["kind"], d["block_kind"], d["block"], d["version"], d["num_embeddings"]' \
        "('recipe', 'fanout', 'first', 2, 40)"
done
check_json recipe.json '[(o["name"], o["width"]) for o in d["outputs"]]' "[('q', 4), ('k', 3), ('residual', 8)]"
check_json recipe.json '[(r["name"], r.get("max_rows")) for r in d["routes"]]' \
    "[('bulk', None), ('profile0', 1), ('profile1', 5)]"
check_json recipe.json 'd["may_grow"], d["thresholds"]["absolute"], len(d["seal"])' "(True, '0.1', 64)"
expect 0 'route profile0 \(calls of at most 1 ids' "$tokentab" inspect fan/recipe
payload=$(ls fan/recipe/tables-*)
expect 0 'tables.group_0' "$tokentab" inspect "$payload"

# a packed file
expect 0 '' "$tokentab" pack "$payload" --out payload.ttz
expect 0 'packed' "$tokentab" inspect payload.ttz
run_json packed.json "$tokentab" inspect payload.ttz
check_json packed.json 'd["kind"], d["bytes"]' "('packed', $(stat -c %s "$payload"))"

# what it cannot read
: >nothing
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n' >pointer.safetensors
expect 3 'neither a unit, recipe, packed nor .npy file' "$tokentab" inspect "$here/lib.sh"
expect 3 'nothing' "$tokentab" inspect nothing
expect 3 'Git LFS pointer' "$tokentab" inspect pointer.safetensors
expect 3 'no-such-file' "$tokentab" inspect no-such-file
expect 3 'expected model.safetensors.index.json' "$tokentab" inspect "$here"
"$tokentab" inspect nothing --json >out.txt 2>/dev/null
check "no half result" test ! -s out.txt
finish
