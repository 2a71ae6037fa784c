#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Signals and kills at a run of three ranks: exit 75 within 10 s where a rank can still report, the launcher's
# own code within a bounded time otherwise; an immediate new run waits for the dying and ends with the same bytes.
source "$(dirname "$0")/cluster_lib.sh"
need_faults
model m
ranks 1 "$tokentab" compile m/spec.json --out expected -q
check "undisturbed run" ended 0 ""

# A run whose units take 0.8 s each, stopped after its first ones.
begin() {
    rm -rf r r.work
    TOKENTAB_UNIT_MS=800 start_ranks 3 "$tokentab" compile m/spec.json --out r -q
    check "first shards" wait_for 20 units_done r.work 2
}

# Resume at once, without slowness, and compare.
resume() {
    local before
    before=$(cat r.work/first/journal-*.jsonl | wc -l)
    ranks 3 "$tokentab" compile m/spec.json --out r -q
    check "run after $1" ended 0 ""
    check "bytes after $1" same_files expected r
    check "shards kept after $1" json_is r.work/run.json "d['blocks'][0]['units_reused'] >= min($before, 2)" True
    check "nothing staged after $1" nothing_staged r r.work
}

stopped() { # WHAT REGEX
    wait_launcher 20
    check "$1: within 10 s" test "$took_s" -le 10
    check "$1" ended 75 "$2"
    check "$1: no recipe" test ! -e r/recipe.json
    check "$1: status says so" grep -q '"state": "stopped"' r.work/first/progress.json
}

begin
kill -USR1 "$launcher"
stopped "USR1 to mpirun" 'rank [012] \([^)]*\): stopped by a signal'
resume "USR1 to mpirun"
for what in "TERM 0" "USR1 2" "HUP 1" "INT 1" "INT 0" "TERM 2"; do
    read -r signal rank <<<"$what"
    begin
    kill "-$signal" "$(rank_pid "$rank")"
    stopped "$signal to rank $rank" "(rank $rank \([^)]*\): )?stopped by a signal"
done
resume "a signal to a rank"

# mpirun turns TERM and INT to itself into kills.
for signal in TERM INT; do
    begin
    kill "-$signal" "$launcher"
    wait_launcher 20
    check "$signal to mpirun: bounded" test "$took_s" -le 15
    check "$signal to mpirun: not 0" test "$code" -ne 0
done
resume "INT to mpirun"
for rank in 2 0; do
    begin
    kill -KILL "$(rank_pid "$rank")"
    wait_launcher 20
    check "KILL of rank $rank: bounded" test "$took_s" -le 15
    check "KILL of rank $rank: code $code" test "$code" -eq 137
    check "KILL of rank $rank: found dead" grep -q '"state": "died"' <("$tokentab" status r.work --json)
    resume "KILL of rank $rank"
done

# The launcher itself: its ranks notice within seconds, and a new run waits for them.
begin
kill -KILL "$launcher"
wait_launcher 5
resume "KILL of mpirun"

# A signal while a run waits for the lock of another.
begin
TOKENTAB_FAULT='' "$tokentab" compile m/spec.json --out r -q --lock-wait 50 >second 2>&1 &
second=$!
sleep 1
kill -TERM "$second"
wait "$second"
check "TERM while waiting for the lock" test $? -eq 75
check "and its line" grep -q 'while waiting for its holder' second
kill -USR1 "$launcher"
wait_launcher 20
finish
