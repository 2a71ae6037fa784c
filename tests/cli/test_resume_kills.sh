#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# SIGKILL at 20 random moments, alone and under mpirun, each time into the same work folder; the run that is
# left alone in the end gives the bytes of one that never was disturbed.
source "$(dirname "$0")/cluster_lib.sh"
model m --vocab 1300
start=$(date +%s%N)
"$tokentab" compile m/spec.json --out expected -q >log 2>&1
code=$?
took_ms=$((($(date +%s%N) - start) / 1000000))
check "undisturbed run" ended 0 ""
RANDOM=${TOKENTAB_SEED:-$$}
echo "RANDOM=$RANDOM, an undisturbed run takes $took_ms ms"

completed=0
for ((i = 0; i < 20; i++)); do
    if ((i % 4 == 3)); then
        start_ranks 3 "$tokentab" compile m/spec.json --out r -q
        sleep "$(awk "BEGIN {print ($RANDOM % $took_ms) / 1000}")"
        pid=$(rank_pid $((RANDOM % 3))) && kill -KILL "$pid" 2>/dev/null
        wait_launcher 30
    else
        "$tokentab" compile m/spec.json --out r -q >log 2>&1 &
        launcher=$!
        sleep "$(awk "BEGIN {print ($RANDOM % $took_ms) / 1000}")"
        kill -KILL "$launcher" 2>/dev/null
        wait "$launcher" 2>/dev/null
        code=$?
    fi
    # Whatever was published is whole.
    if ((code == 0)); then
        completed=$((completed + 1))
        check "what was finished" same_files expected r
        rm -rf r r.work
    elif [[ -e r/recipe.json ]]; then
        check "a killed run's recipe verifies" "$tokentab" verify r -q
    fi
done
ranks 3 "$tokentab" compile m/spec.json --out r -q
check "the last run ($completed of 20 were done before their kill)" ended 0 ""
check "its bytes" same_files expected r
check "nothing staged" nothing_staged r r.work
check "its shards" same_files expected.work/first/units r.work/first/units
finish
