#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How runs end, seen from the launcher: exit code, one line, no hang.
# usage: test_endings.sh PROGRAM MPIEXEC
set -u
program=$1
mpiexec=$2
failed=0

# expect CODE LINES REGEX command...: LINES is how many lines of stderr match REGEX
expect() {
    local code=$1 lines=$2 regex=$3
    shift 3
    local text rc found
    text=$(timeout -k 5 20 "$@" 2>&1 </dev/null)
    rc=$?
    found=$(grep -c -E -- "$regex" <<<"$text")
    if [ "$rc" != "$code" ] || [ "$found" != "$lines" ]; then
        echo "FAILED: $*: exit $rc (expected $code), $found lines of '$regex' (expected $lines)"
        echo "$text" | sed 's/^/    /'
        failed=1
    fi
}

for n in 1 2 4; do
    expect 3 1 "the last rank's file" "$mpiexec" -n $n "$program" --fail
    expect 70 1 "rank $((n - 1)) \(.*\): invariant 42" "$mpiexec" -n $n "$program" --abort
    expect 0 0 . "$mpiexec" -n $n "$program" --end
done
if [ "${TEST_FAULTS:-0}" = 1 ]; then
    expect 70 2 "promised equal" "$mpiexec" -n 2 "$program" --unequal
fi
expect 4 1 "srun --mpi=pmix" env SLURM_NTASKS=4 SLURM_PROCID=2 "$program" --end
expect 4 1 "srun --mpi=pmix" env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=0 "$program" --end
expect 0 0 . env SLURM_NTASKS=4 SLURM_PROCID=0 "$program" --end
expect 0 0 . env SLURM_STEP_NUM_TASKS=3 SLURM_PROCID=2 "$mpiexec" -n 2 "$program" --end
exit $failed
