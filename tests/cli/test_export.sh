#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# export: what is written holds the recipe's tables bit for bit, and what cannot be expressed is refused.
source "$(dirname "$0")/lib.sh"
check "four-token model" make_four four
for dtype in F32 BF16 F16 F64; do
    check "fanout model" make_fanout fan-$dtype $dtype
done

# safetensors and npy: every route in full, equal to the recipe
for dtype in F32 BF16 F16 F64; do
    recipe=fan-$dtype/recipe
    expect 0 'safetensors of' "$tokentab" export $recipe --to safetensors --out $dtype.safetensors
    expect 0 '^equal: 1800 elements of 9 tables' "$tokentab" diff $recipe $dtype.safetensors
    expect 0 '' "$tokentab" export $recipe --to npy --out $dtype.npys
    expect 0 '^equal: 1800 elements of 9 tables' "$tokentab" diff $recipe $dtype.npys
    expect 0 '' "$tokentab" export $recipe --to safetensors --out again
    same $dtype.safetensors again
    rm again
done
expect 0 'profile1/residual +BF16 +\[40,8\]' "$tokentab" inspect BF16.safetensors
check "folders by route" test -f F32.npys/profile0/q.npy
expect 0 '<u2' "$tokentab" export fan-BF16/recipe --to npy --out noted
run_json export.json "$tokentab" export four/recipe --to safetensors --out four.safetensors
check_json export.json '[(t["name"], t["dtype"], t["shape"]) for t in d["tables"]]' "[('bulk/output', 'F32', [4, 2])]"
"$make_checkpoint" --out expected.safetensors --tensor bulk/output:F32:4x2=3.5,0,7.5,0,0,0,0,2.5
expect 0 '^equal: 8 elements' "$tokentab" diff four.safetensors expected.safetensors
if /usr/bin/python3 -c 'import numpy' 2>/dev/null; then
    check "numpy reads it" /usr/bin/python3 - <<'CHECK'
import numpy
a = numpy.load("F32.npys/bulk/q.npy")
raise SystemExit(not (a.shape == (40, 4) and a.dtype == numpy.dtype("<f4")))
CHECK
fi

# a packed recipe, a projected one
check "packed" compile fan-F32/spec.json packed --packed
expect 0 '' "$tokentab" export packed --to safetensors --out packed.safetensors
same packed.safetensors F32.safetensors
mkdir projected
"$make_checkpoint" --out projected/model.safetensors --tensor e:F32:30x64 --tensor w:F32:5x64 --tensor b:F32:5
cat >projected/spec.json <<'SPEC'
{"tokentab": 1, "checkpoint": "model.safetensors", "mode": "eval", "input_contract": "token_indices_only",
 "block": {"kind": "projected", "name": "tower", "embedding": {"weight": "e"},
  "linear": {"weight": "w", "bias": "b"}, "normalize_eps": 1e-12},
 "bulk_rows": 8, "validation_rows": 7, "tolerance": {"absolute": 0.001, "relative": 0.001}}
SPEC
if check "projected model" compile projected/spec.json projected/recipe; then
    expect 0 '' "$tokentab" export projected/recipe --to safetensors --out projected.safetensors
    expect 0 '^equal: 185 elements of 3 tables' "$tokentab" diff projected/recipe projected.safetensors
    expect 0 'bias +F32 +\[5\]' "$tokentab" inspect projected.safetensors
    expect 0 '' "$tokentab" export projected/recipe --to compressme --out projected.cm
    run_json cm.json "$tokentab" inspect projected.cm/model.safetensors
    check_json cm.json 'sorted((t["name"], t["shape"]) for t in d["tensors"])' \
        "[('_norms', [30, 1]), ('_rows', [30, 5]), ('bias', [5])]"
fi

# compressme
expect 0 'compressme' "$tokentab" export fan-F32/recipe --to compressme --out cm
check_json cm/manifest.json 'd["finite_lookup_rewrites"][0]["version"], d["weights_file"]' "(2, 'model.safetensors')"
check_json cm/manifest.json 'd["weights_sha256"]' "$(sha256sum cm/model.safetensors | cut -d' ' -f1)"
expect 0 '' "$tokentab" export four/recipe --to compressme --out cm-packed --packed --module encoder.first
check_json cm-packed/manifest.json 'd["finite_lookup_rewrites"][0]["path"], d["weights_file"], d["packing"]' \
    "('encoder.first', 'model.cmppack', 'lossless_byte_shuffle_zstd')"
expect 2 'compressme alone' "$tokentab" export four/recipe --to npy --out x --packed
sed 's/"bulk_rows"/"row_count_profiles": [{"max_rows": 1, "evaluation_rows": 1}], "bulk_rows"/;
     s/must_shrink/may_grow/' four/spec.json >four/profiles.json
check "lookup with a profile" compile four/profiles.json four/profiled
expect 3 'profile' "$tokentab" export four/profiled --to compressme --out refused
check "no manifest after a refusal" test ! -e refused/manifest.json

# a payload that does not match its digest is exported as nothing
for recipe in fan-F32/recipe packed; do
    cp -r $recipe corrupt
    python3 - corrupt/tables-* <<'DAMAGE'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(-1, 2)
    b = f.read(1)[0] ^ 1
    f.seek(-1, 2)
    f.write(bytes([b]))
DAMAGE
    for to in safetensors npy compressme; do
        expect 3 'corrupt' "$tokentab" export corrupt --to $to --out corrupt.$to
        check "no export of a corrupt recipe" test ! -e corrupt.$to
    done
    rm -r corrupt
done

# what compressme artifacts are compared as
for artifact in cm cm/model.safetensors cm-packed cm-packed/model.cmppack; do
    expect 2 'import it first \(tokentab import DIR --from compressme' "$tokentab" diff fan-F32/recipe $artifact
    expect 2 'import it first' "$tokentab" diff $artifact fan-F32/recipe
done
expect 3 'import it first' "$tokentab" inspect cm-packed/model.cmppack
expect 0 '^equal' "$tokentab" diff cm cm/model.safetensors
expect 0 '' "$tokentab" import cm --from compressme --out cm-recipe
expect 0 '^equal: 1800 elements of 9 tables' "$tokentab" diff fan-F32/recipe cm-recipe
expect 0 'compressme artifact once import has' "$tokentab" export --help

# nothing is overwritten
expect 2 'exists; --force' "$tokentab" export four/recipe --to safetensors --out F32.safetensors
expect 0 '^equal: 1800' "$tokentab" diff fan-F32/recipe F32.safetensors
expect 0 '' "$tokentab" export four/recipe --to safetensors --out F32.safetensors --force
same F32.safetensors four.safetensors
expect 2 'exists; --force' "$tokentab" export four/recipe --to npy --out F32.npys
expect 0 '9 .npy files that are not of this recipe' "$tokentab" export four/recipe --to npy --out F32.npys --force
expect 2 'is a recipe' "$tokentab" export four/recipe --to npy --out fan-F32/recipe --force
expect 2 '--to' "$tokentab" export four/recipe --out x
expect 2 'safetensors\|npy\|compressme' "$tokentab" export four/recipe --to gguf --out x
expect 2 '--out is missing' "$tokentab" export four/recipe --to npy
expect 3 'no recipe' "$tokentab" export four --to npy --out x

# a failed write leaves neither file nor rest
if [[ $(TOKENTAB_FAULT=file_write "$tokentab" export four/recipe --to safetensors --out f.safetensors 2>&1) != *"of four/recipe"* ]]; then
    expect 4 'f.safetensors' env TOKENTAB_FAULT=file_write#2 "$tokentab" export four/recipe --to safetensors --out f.safetensors
    check "nothing left" test -z "$(find . -name 'f.safetensors*')"
fi
check "no temporary files" test -z "$(find . -name '*.tmp')"
finish
