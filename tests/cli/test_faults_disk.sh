#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What disks and other people do to a run: full, read-only, damaged shards, a checkpoint that shrinks, changes or
# is replaced while it is read, a stale lock, two runs on one work folder.
source "$(dirname "$0")/cluster_lib.sh"
model m
ranks 1 "$tokentab" compile m/spec.json --out expected -q
check "undisturbed run" ended 0 ""

mounts=0
if mkdir t && mount -t tmpfs -o size=300k tmpfs t 2>/dev/null; then
    umount t
    mounts=1
else
    echo "skipped: a full and a read-only disk (mounting is not permitted here)"
fi

# full SIZE WHAT PLACE...: SIZE kilobytes hold the PLACE of a run, but not all of it
full() {
    local size=$1 what=$2
    shift 2
    mount -t tmpfs -o "size=$size" tmpfs t || return 1
    cleanups+=("umount -l t 2>/dev/null")
    ranks 3 "$tokentab" compile m/spec.json "$@" -q
    check "full disk: $what" ended 4 'rank [012] \(.*No space left|rank [012] \(.*write'
    check "full disk: $what: nothing staged" nothing_staged t
    check "full disk: $what: no recipe" test ! -e t/r/recipe.json
    mount -o remount,size=50m t
    ranks 3 "$tokentab" compile m/spec.json "$@" -q
    check "room again: $what" ended 0 ""
    check "bytes: $what" same_files expected "${@: -1}"
    umount t
}
if ((mounts)); then
    full 150k "work folder" --work t/r.work --out r1
    full 60k "recipe" --work r2.work --out t/r
    mkdir ro
    mount --bind ro t && mount -o remount,ro,bind t
    ranks 3 "$tokentab" compile m/spec.json --work t/w --out r3 -q
    check "read-only work folder" ended 4 'rank 0 \(.*t/w.*Read-only'
    ranks 3 "$tokentab" compile m/spec.json --work r3.work --out t/r -q
    check "read-only recipe folder" ended 4 'rank 0 \(.*t/r.*Read-only'
    umount t
    ranks 3 "$tokentab" compile m/spec.json --work r3.work --out r3 -q
    check "elsewhere" ended 0 ""
    check "bytes" same_files expected r3
fi

# Damaged shards: exactly those are made again, and named.
ranks 1 "$tokentab" compile m/spec.json --out r -q
units=r.work/first/units
printf '\x40' | dd of=$units/unit-00000002.h5 bs=1 seek=3000 conv=notrunc status=none
truncate -s 1000 $units/unit-00000003.h5
truncate -s 0 $units/unit-00000004.h5
truncate -s "$(stat -c %s $units/unit-00000005.h5)" zeros && cp zeros $units/unit-00000006.h5
ranks 3 "$tokentab" compile m/spec.json --out r
check "damaged shards" test "$code" -eq 0
for unit in 2 3 4 6; do check "unit $unit named" grep -q "unit $unit: evaluated again: " log; done
check "made again" json_is r.work/run.json "d['blocks'][0]['units_evaluated']" 4
check "bytes" same_files expected r
rm $units/unit-00000007.h5
ranks 3 "$tokentab" compile m/spec.json --out r -q
check "a deleted shard" json_is r.work/run.json "d['blocks'][0]['units_evaluated']" 1

# A lock file that a dead process left, and a second run beside a living one.
echo "elsewhere 1" >r.work/lock
ranks 3 "$tokentab" compile m/spec.json --out r -q
check "stale lock" ended 0 ""
if [[ ${TEST_FAULTS:-0} == 1 ]]; then
    rm -rf r r.work
    TOKENTAB_UNIT_MS=1200 start_ranks 3 "$tokentab" compile m/spec.json --out r -q
    check "first run" wait_for 20 units_done r.work 2
    mv log first.log
    "$tokentab" compile m/spec.json --out r -q --lock-wait 0.2 >log 2>&1
    code=$?
    check "second run on one work folder" ended 4 'r.work/lock: held by a run \(pid [0-9]+ on '
    wait_launcher 60
    check "the first is not disturbed" test "$code" -eq 0
    check "bytes" same_files expected r

    # The checkpoint under a running compile.
    change() { # WHAT REGEX COMMAND
        rm -rf r r.work c
        cp -a m c
        TOKENTAB_UNIT_MS=700 start_ranks 3 "$tokentab" compile c/spec.json --out r -q
        check "checkpoint that $1" wait_for 20 units_done r.work 2
        eval "$3"
        wait_launcher 60
        check "checkpoint that $1" ended 4 "$2"
        check "checkpoint that $1: no recipe" test ! -e r/recipe.json
        cp m/model.safetensors c/model.safetensors
        ranks 3 "$tokentab" compile c/spec.json --out r -q
        check "run after one that $1" ended 0 ""
        check "bytes after one that $1" same_files expected r
    }
    changed='rank [012] \(.*c/model.safetensors: changed while it was read'
    change "shrinks" "$changed: [0-9]+ bytes when opened, 9000 now" 'truncate -s 9000 c/model.safetensors'
    change "changes" "$changed: written to" \
        'printf x | dd of=c/model.safetensors bs=1 seek=20000 conv=notrunc status=none'
    change "is replaced" "$changed: replaced" 'cp m/model.safetensors c/x && mv c/x c/model.safetensors'
fi

# A run that has no checkpoint, or no spec, says so once.
ranks 3 "$tokentab" compile nothing.json --out r4 -q
check "no spec" ended 3 'nothing.json'
finish
