#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# How the golden files were made.  They stay as they are: a new version of a format gets new ones beside them.
#   make.sh MAKE_CHECKPOINT TOKENTAB FOLDER      (v1/ and v2/ with their specs lie in FOLDER)
# A library recipe names the numeric environment that made it; its numbers are exact on every machine.
set -euo pipefail
make_checkpoint=$1 tokentab=$2
cd "$3"

rows=$(for t in {0..19}; do printf '%d,1,%s,%d,' "$t" "$(awk "BEGIN { print -$t / 2 }")" $((t % 3)); done)
"$make_checkpoint" --out v1/model.safetensors \
    --tensor tokens.weight:F32:6x2=9,9,3,4,7,7,0,2,-6,8,1,1 \
    --tensor projection.weight:F32:3x2=5,0,0,5,5,5 \
    --tensor projection.bias:F32:3=0.5,-1,2
"$make_checkpoint" --out v2/model.safetensors \
    --tensor "tokens.weight:F32:20x4=${rows%,}" \
    --tensor q.up.weight:F32:8x4=1,0,0,0,0,1,0,0,0,0,1,0,0,0,0,1,1,1,0,0,-1,0,0,4,0,0,2,0.5,0.25,-1,0,0 \
    --tensor q.up.bias:F32:8=0,1,0,-1,0.5,0,0,2 \
    --tensor q.down.weight:F32:2x8=1,1,1,1,1,1,1,1,2,0,-1,0,0.5,0,3,-0.25 \
    --tensor k.weight:F32:3x4=0,0,0,0,0,0,0,0,0,0,0,0 \
    --tensor k.bias:F32:3=1.5,-2,0.25

for v in v1 v2; do
    "$tokentab" compile $v/spec.json --out $v/recipe --work $v/stored --blas-core Haswell --progress none
    # What belongs to one run or host is no part of the format's promise.
    rm -f $v/stored/lock $v/stored/*/progress.json $v/stored/run.json $v/stored/*/report.json
    mv $v/stored/*/journal-*.jsonl "$(echo $v/stored/*/)journal-golden-1.jsonl"
done
"$tokentab" pack v2/recipe/tables-*.safetensors --out v2/tables.ttz
