#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every rank of a run ends with the same exit code, whatever rank 0 alone does; locks and progress of array tasks.
source "$(dirname "$0")/cluster_lib.sh"
need_faults
model m

# ---- results that cannot be printed ---------------------------------------------------------------------------
export tokentab
ranks 2 bash -c '"$tokentab" compile m/spec.json --out r -q >/dev/full; echo $? >code.$OMPI_COMM_WORLD_RANK'
check "full output: rank 0" test "$(cat code.0)" = 4
check "full output: rank 1" test "$(cat code.1)" = 4
code=0
check "full output: one line" ended 0 'standard output: No space left'
check "full output: the recipe is whole" "$tokentab" verify r -q

# ---- an array task's ranks hold locks of their own, beside other tasks' ----------------------------------------
lock_of() { awk -v pid="$1" '$2 == "POSIX" && $5 == pid {print $7}' /proc/locks; }
if [[ -r /proc/locks ]]; then
    TOKENTAB_UNIT_MS=300 start_ranks 2 "$tokentab" compile m/spec.json --out a --shards 0/2 --shard-units 1 --progress none
    wait_for 30 units_done a.work 1
    pid=$(rank_pid 1)
    check "task: rank 1 holds a lock" test -n "$(lock_of "$pid")"
    check "task: and another task's rank 1 another one" \
        timeout 60 mpirun -n 2 "$tokentab" compile m/spec.json --out a --shards 1/2 --shard-units 1 --lock-wait 1 -q
    wait_launcher 60
    check "task: ends well" test "$code" = 0
    rm -rf a a.work
fi

# ---- progress of a task whose part is more than its share -------------------------------------------------------
# 10 units in shards of 4 for 2 tasks: the first has shards 0 and 2, 344 of 600 tokens.
TOKENTAB_UNIT_MS=250 "$tokentab" compile m/spec.json --out p --shards 0/2 --shard-units 4 --progress bar >/dev/null 2>bar
check "progress: total of the task" grep -q '/344 tokens' bar
check "progress: no time beyond all reason" test -z "$(grep -oE '[0-9]{9,} s left' bar)"

# ---- options that exclude one another --------------------------------------------------------------------------
for with in "--shards 0/2" --fresh; do
    "$tokentab" compile m/spec.json --out p --reduce $with >log 2>&1
    code=$?
    check "--reduce $with" ended 2 "--reduce evaluates nothing: not together with ${with%% *}"
done
finish
