#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fault points of reading, evaluating and storing, on the first, the last and all ranks: one exit code, one line
# that names rank and host, nothing staged, no recipe; the next run completes with the same bytes.
source "$(dirname "$0")/cluster_lib.sh"
need_faults
model m
ranks 1 "$tokentab" compile m/spec.json --out expected -q
check "undisturbed run" ended 0 ""

# fault POINT[#NTH] REGEX [RANKS]
fault() {
    local point=$1 regex=$2 where name=${1%#*} nth=
    [[ $point == *'#'* ]] && nth=#${point#*#}
    for where in ${3:-0 2 all}; do
        TOKENTAB_FAULT="$name@$where$nth" ranks 3 "$tokentab" compile m/spec.json --out r -q
        check "$point on $where" ended 4 "rank $([[ $where == all ]] && echo '[012]' || echo "$where") \([^)]*\): .*$regex"
        check "$point on $where leaves nothing staged" nothing_staged r r.work
        check "$point on $where makes no recipe" test ! -e r/recipe.json
    done
    # The folder has seen all of these faults; a run without one repairs it.
    ranks 3 "$tokentab" compile m/spec.json --out r -q
    check "run after $point" ended 0 ""
    check "bytes after $point" same_files expected r
    rm -rf r r.work
}

fault mem_alloc#30 "out of memory"
fault lock_take "cannot lock"
fault rows_read "tensor embed"
fault schedule_answer "answer of shard"
fault shard_close "Input/output"
fault shard_rename "Input/output"
fault journal_append "No space left"
fault file_sync "sync" 2
fault shard_write "No space left" 2
fault shard_put "No space left" 2

# A rank inside a unit that cannot take in the word to stop must not wait for another one.
TOKENTAB_UNIT_MS=300 TOKENTAB_FAULT='rows_read@0,comm_receive@1#2' \
    ranks 2 "$tokentab" compile m/spec.json --out r --shard-units 5 -q
check "a stop that is lost" ended 4 "rank 0 \([^)]*\): .*tensor embed"
rm -rf r r.work
finish
