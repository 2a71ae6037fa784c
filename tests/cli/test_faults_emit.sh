#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Fault points behind the schedule: reduction, payload, seal, layout check, publication.  An older recipe in
# the same place outlives them all.
source "$(dirname "$0")/cluster_lib.sh"
need_faults
model m
model new --change 7 --eps 1e-5
ranks 1 "$tokentab" compile m/spec.json --out old -q
check "undisturbed run" ended 0 ""
ranks 1 "$tokentab" compile new/spec.json --out expected -q
check "undisturbed run" ended 0 ""
cp -a old r
ranks 3 "$tokentab" compile m/spec.json --out r -q # fills the work folder

fault() { # POINT REGEX RANKS
    local where name=${1%#*} nth=
    [[ $1 == *'#'* ]] && nth=#${1#*#}
    for where in $3; do
        TOKENTAB_FAULT="$name@$where$nth" ranks 3 "$tokentab" compile new/spec.json --out r -q
        check "$1 on $where" ended 4 "rank $([[ $where == all ]] && echo '[012]' || echo "$where") \([^)]*\): .*$2"
        check "$1 on $where leaves nothing staged" nothing_staged r r.work
        check "$1 on $where keeps the old recipe" cmp old/recipe.json r/recipe.json
        check "$1 on $where keeps its payload" test -e "r/$(basename old/tables-*)"
    done
}

ranks 3 "$tokentab" compile new/spec.json --out warm --work r.work -q
check "shards of the new model" ended 0 ""
fault reduce_compare "reduce_compare" "0 2 all"
fault shard_read#12 "shard_read" "0 2 all"
fault emit_open "emit_open" "0 all"
fault emit_write "emit_write" "0 2 all"
fault emit_seal "emit_seal" "0 all"
fault emit_check "emit_check" "0 2 all"
fault emit_publish "emit_publish" "0 all"
fault file_write#3 "No space left" "0 2 all"
TOKENTAB_FAULT="" ranks 3 "$tokentab" compile new/spec.json --out r -q
check "run after all of them" ended 0 ""
check "its tables" cmp expected/recipe.json r/recipe.json
check "its files" test "$(ls expected | tr '\n' ' ')" = "$(ls r | tr '\n' ' ')"
check "the old recipe still verifies" "$tokentab" verify old -q
finish
