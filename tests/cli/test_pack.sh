#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pack and unpack: byte-exact for any file and length; refusals leave nothing behind.
source "$(dirname "$0")/lib.sh"
"$make_checkpoint" --out f32.safetensors --tensor x:F32:500x301
"$make_checkpoint" --out bf16.safetensors --tensor x:BF16:300x501
cp "$tokentab" program
truncate -s 1M program
: >empty
printf x >one
head -c 4097 /dev/urandom >noise
head -c 3000001 /dev/zero >zeros
for file in f32.safetensors bf16.safetensors program empty one noise zeros; do
    expect 0 'packed' "$tokentab" pack $file --out $file.ttz
    expect 0 '' "$tokentab" unpack $file.ttz --out $file.back
    same $file $file.back
    expect 0 'packed' "$tokentab" inspect $file.ttz
    expect 0 '' "$tokentab" pack $file --out $file.again
    same $file.ttz $file.again
done
check "trained-like floats shrink" test "$(stat -c %s f32.safetensors.ttz)" -lt "$(stat -c %s f32.safetensors)"
check "noise hardly grows" test "$(stat -c %s noise.ttz)" -lt 5000
check "zeros vanish" test "$(stat -c %s zeros.ttz)" -lt 3000

run_json pack.json "$tokentab" pack zeros --out zeros2.ttz
check_json pack.json 'd["raw_bytes"], d["packed_bytes"] < 3000' '(3000001, True)'
run_json unpack.json "$tokentab" unpack zeros2.ttz --out zeros2
check_json unpack.json 'd["raw_bytes"]' 3000001

# nothing is overwritten, nothing eats its source
expect 2 'zeros2 exists; --force' "$tokentab" unpack noise.ttz --out zeros2
same zeros2 zeros
expect 0 '' "$tokentab" unpack noise.ttz --out zeros2 --force
same zeros2 noise
expect 2 'the file that is read' "$tokentab" pack noise --out noise --force
ln noise link
expect 2 'the file that is read' "$tokentab" pack noise --out link --force
expect 2 '--out is missing' "$tokentab" pack noise

# limits and damage: exit 3, no file
refuse() {
    expect 3 "$1" "$tokentab" unpack "${@:2}" --out refused
    check "no file after a refusal" test -z "$(find . -name 'refused*')"
}
refuse 'limit' zeros.ttz --size-limit 3000000
expect 0 '' "$tokentab" unpack zeros.ttz --size-limit 3000001 --out limited
refuse 'not a packed file' noise
refuse '' empty
refuse 'No such file' missing.ttz
size=$(stat -c %s f32.safetensors.ttz)
for at in 0 9 40 1000 $((size / 2)) $((size - 200)) $((size - 3)); do
    cp f32.safetensors.ttz bad.ttz
    python3 -c "
import sys
with open('bad.ttz', 'r+b') as f:
    f.seek($at); b = f.read(1); f.seek($at); f.write(bytes([b[0] ^ 0x10]))"
    refuse '' bad.ttz
done
for cut in 0 1 31 100 $((size / 2)) $((size - 1)); do
    head -c "$cut" f32.safetensors.ttz >cut.ttz
    refuse '' cut.ttz
done
finish
