#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What plan predicts against what runs take, at 1, 2 and 4 ranks.  Prints both; asserts no time.
#   TOKENTAB_BIN=... TOKENTAB_SOURCE_DIR=... bench_schedule.sh
# A prediction is for a core a rank; with more ranks than cores it is scaled by ranks / cores here.
source "$(dirname "$0")/../cli/cluster_lib.sh"
cores=$(nproc)
model m --vocab "${BENCH_VOCAB:-1500}" --width 128 --outputs 256 --bulk 8 --validation 17 --profiles 1:1,7:2
number() { "$python" -c 'import json, sys
d = json.load(open(sys.argv[1]))["blocks"][0]
print(eval(sys.argv[2]))' "$1" "$2"; }

echo "load $(cut -d " " -f 1-3 /proc/loadavg) on $cores cores: what else runs here makes the measured times longer"
printf '%5s %12s %12s %6s %12s %12s\n' ranks "predicted s" "measured s" ratio "messages/s" efficiency
for n in 1 2 4; do
    "$tokentab" plan m/spec.json --ranks "$n" --json >p.json 2>log
    check "plan" test $? -eq 0
    rm -rf r r.work
    ranks "$n" "$tokentab" compile m/spec.json --out r -q
    check "run" ended 0 ""
    predicted=$(number p.json "d['schedule']['makespan_seconds']")
    predicted=$(awk "BEGIN {print $predicted * ($n > $cores ? $n / $cores : 1)}")
    measured=$(number r.work/run.json "d['schedule_seconds']")
    awk -v n="$n" -v p="$predicted" -v m="$measured" \
        -v r="$(number p.json "d['schedule']['messages_a_second']")" \
        -v e="$(number p.json "d['schedule']['efficiency']")" \
        'BEGIN {printf "%5d %12.3f %12.3f %6.2f %12.1f %11.1f%%\n", n, p, m, p / m, r, 100 * e}'
done

echo "the same spec on paper:"
for n in 1 16 256 4096 100000; do
    "$tokentab" plan m/spec.json --ranks "$n" --shard-units 1 | grep -A1 'schedule on'
done
finish
