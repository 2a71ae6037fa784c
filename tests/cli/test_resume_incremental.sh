#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Rebuilds evaluate what is new, say why, count it in run.json and the log, and give the bytes of a build from
# nothing; at 1 and 3 ranks.
source "$(dirname "$0")/cluster_lib.sh"
model m # 600 tokens in units of 64: nine full ones and a ragged one
n_units=10
ranks 1 "$tokentab" compile m/spec.json --out base -q
check "first build" ended 0 ""

# The work folder of that build, again.
first_build() {
    rm -rf r r.work
    cp -a base r && cp -a base.work r.work
}

# rebuild WHAT EVALUATED REASON [model options]: after the run on `m`
rebuild() {
    local what=$1 evaluated=$2 reason=$3 n total
    shift 3
    rm -rf other fresh fresh.work
    model other "$@"
    ranks 1 "$tokentab" compile other/spec.json --out fresh -q
    check "$what: from nothing" ended 0 ""
    total=$(json_count fresh.work units)
    for n in $at; do
        first_build
        ranks "$n" "$tokentab" compile other/spec.json --out r
        check "$what: rebuild on $n" test "$code" -eq 0
        check "$what: evaluated" json_is r.work/run.json "d['blocks'][0]['units_evaluated']" "$evaluated"
        check "$what: reused" json_is r.work/run.json "d['blocks'][0]['units_reused']" $((total - evaluated))
        check "$what: the result counts them" grep -q "units $total ($((total - evaluated)) reused)" log
        if [[ -n $reason ]]; then
            check "$what: reason" grep -qE "unit [0-9]+: evaluated again: $reason" log
        else
            check "$what: no reason" test "$(grep -c 'evaluated again' log)" = 0
        fi
        check "$what: bytes" same_files fresh r
    done
}
json_count() { "$python" -c 'import json, sys
print(json.load(open(sys.argv[1] + "/run.json"))["blocks"][0][sys.argv[2]])' "$1" "$2"; }

digest='[0-9a-f]{32} → [0-9a-f]{32}'
at=3
rebuild "nothing changed" 0 ""
at="1 3"
rebuild "rows 5, 6 and 300" 2 "embedding_rows: $digest" --change 5,6,300
rebuild "50 rows appended" 2 "embedding_rows: $digest" --append 50 # the ragged unit and a new one
at=3
rebuild "a weight" $n_units "weight\.[0-9]+: $digest" --change-weight
rebuild "eps" $n_units 'graph\.[0-9]+: .* → ' --eps 1e-5
rebuild "profiles" $n_units 'profiles: 1:1 → 1:1,7:2' --profiles 1:1,7:2
rebuild "tolerance" 0 "" --tolerance 1e-3
rebuild "validation rows" $n_units 'validation_rows: 5 → 6' --validation 6
rebuild "arithmetic" $n_units 'arithmetic: library → correctly_rounded' --arithmetic correctly_rounded

# The storage policy decides anew and evaluates nothing: what may not grow is retained, its report says so.
first_build
cp -a r before
model other --storage must_shrink
ranks 3 "$tokentab" compile other/spec.json --out r
check "storage policy" test "$code" -eq 6
check "storage policy: evaluated" json_is r.work/run.json "d['blocks'][0]['units_evaluated']" 0
check "storage policy: the old recipe stays" same_files before r

# A new payload takes the place of the old one; files that others put there are left alone.
cp -a r aside
for name in tables-mine.safetensors tables-0123456789abcdeX.ttz tables-0123456789abcdef.bak; do echo mine >"aside/$name"; done
echo ours >aside/tables-0123456789abcdef.ttz
model other --change-weight
ranks 2 "$tokentab" compile other/spec.json --out aside -q
check "new payload" test "$code" -eq 0
check "new payload: one of ours" test "$(ls aside | grep -cE '^tables-[0-9a-f]{16}[.](safetensors|ttz)$')" = 1
check "new payload: others' files" test "$(cat aside/tables-mine.safetensors aside/tables-0123456789abcdeX.ttz aside/*.bak)" = $'mine\nmine\nmine'
rm -rf aside aside.work

# A finished run is verified, not made again; --fresh makes it.
ranks 3 "$tokentab" compile m/spec.json --out r
check "unchanged" grep -q '(unchanged)' log
ranks 3 "$tokentab" compile m/spec.json --out r --fresh -q
check "--fresh" json_is r.work/run.json "d['blocks'][0]['units_evaluated']" $n_units
check "--fresh: bytes" same_files before r
# Fewer and more ranks, other shard sizes: the same bytes, all reused.
ranks 2 "$tokentab" compile m/spec.json --out r --shard-units 3 -q
check "other shards" json_is r.work/run.json "d['blocks'][0]['units_reused']" $n_units
check "other shards: bytes" same_files before r
finish
