#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The batch script as text, job arrays without Slurm, and the nightly rebuild.  tests/cluster runs them in a
# real Slurm.
source "$(dirname "$0")/cluster_lib.sh"
model "m o'del" # a name that a shell would trip over
model m
unset SLURM_JOB_ID SLURM_ARRAY_JOB_ID

# ---- the script -------------------------------------------------------------------------------------
script() { # FILE options
    local file=$1
    shift
    "$tokentab" sbatch "$@" >"$file" 2>log
    code=$?
    check "sbatch $*" ended 0 ""
    check "$file is a script" bash -n "$file"
}
script b.mpirun "m o'del/spec.json" --out out --launcher mpirun --nodes 2 --tasks-per-node 4 --blas-core Haswell
for line in '#SBATCH --nodes=2' '#SBATCH --ntasks-per-node=4' '#SBATCH --signal=B:USR1@' '#SBATCH --requeue' \
    '#SBATCH --open-mode=append' 'keepalive_time' 'timeout -k' 'OPENBLAS_NUM_THREADS=1' '--blas-core Haswell' \
    'pkill -USR1 -P "$launcher"' '1 | 9 | 124 | 137 | 143 | 205'; do
    check "mpirun: $line" grep -qF -- "$line" b.mpirun
done
check "mpirun: one argument" grep -qF "spec='$tmp/m o'\\''del/spec.json'" b.mpirun
script b.srun m/spec.json --out out --launcher srun --time 30 --partition fast
check "srun: signal" grep -q '^#SBATCH --signal=USR1@120$' b.srun
check "srun: pmix" grep -q 'srun --mpi=pmix' b.srun
check "srun: time" grep -q '^#SBATCH --time=0:30:00$' b.srun
check "srun: partition" grep -q '^#SBATCH --partition=fast$' b.srun
script b.array m/spec.json --out out --launcher srun --array 5
check "array" grep -q '^#SBATCH --array=0-4$' b.array
check "array: parts" grep -q -- '--shards slurm' b.array
check "array: reduce" grep -q -- '--reduce' b.array
"$tokentab" sbatch m/spec.json --out out --partition 'a b' >/dev/null 2>log
code=$?
check "a partition of two words" ended 2 'partition'
"$tokentab" sbatch m/spec.json >/dev/null 2>log
code=$?
check "no --out" ended 2 '--out'

# The script's own end: codes of a launcher that stands in for mpirun, a requeue that only says so.
mkdir bin
printf '#!/bin/bash\nexit "$FAKE_CODE"\n' >bin/mpirun
printf '#!/bin/bash\necho "scontrol $*"\n' >bin/scontrol
chmod +x bin/*
ends() { # CODE OF THE LAUNCHER, CODE OF THE SCRIPT, REQUEUE?
    FAKE_CODE=$1 SLURM_JOB_ID=7 PATH=$tmp/bin:$PATH bash b.mpirun >log 2>&1
    check "launcher's $1" test $? -eq "$2"
    check "launcher's $1: requeue $3" test "$(grep -c 'scontrol requeue 7' log)" = "$3"
}
ends 0 0 0
ends 75 75 1
for code in 1 137 143 205 9; do ends $code 75 1; done
for code in 2 3 4 5 6; do ends $code $code 0; done
FAKE_CODE=75 SLURM_JOB_ID=7 SLURM_RESTART_COUNT=50 PATH=$tmp/bin:$PATH bash b.mpirun >log 2>&1
check "no requeue for ever" test "$(grep -c 'scontrol requeue' log)" = 0

# ---- arrays -----------------------------------------------------------------------------------------
ranks 1 "$tokentab" compile m/spec.json --out expected -q
array() { # MIN MAX STEP
    local id count=$((($2 - $1) / $3 + 1))
    rm -rf a a.work
    for ((id = $1; id <= $2; id += $3)); do
        SLURM_ARRAY_TASK_ID=$id SLURM_ARRAY_TASK_MIN=$1 SLURM_ARRAY_TASK_MAX=$2 SLURM_ARRAY_TASK_STEP=$3 \
            SLURM_ARRAY_TASK_COUNT=$count "$tokentab" compile m/spec.json --out a --shards slurm -q >log 2>&1
        code=$?
        check "task $id of $1-$2:$3" ended 0 ""
    done
    check "$1-$2:$3: each unit once" test "$(cat a.work/first/journal-*.jsonl | wc -l)" = \
        "$(cat a.work/first/journal-*.jsonl | sed 's/,.*//' | sort -u | wc -l)"
    for n in 1 2; do
        ranks 1 "$tokentab" compile m/spec.json --out a --reduce -q
        check "$1-$2:$3: reduce, time $n" ended 0 ""
        check "$1-$2:$3: bytes, time $n" same_files expected a
    done
    check "$1-$2:$3: nothing evaluated" json_is a.work/run.json "d['blocks'][0]['units_evaluated']" 0
}
array 0 3 1
array 1 7 2
SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_MIN=1 SLURM_ARRAY_TASK_MAX=6 SLURM_ARRAY_TASK_STEP=0 \
    SLURM_ARRAY_TASK_COUNT=3 "$tokentab" compile m/spec.json --out a --shards slurm -q >log 2>&1
code=$?
check "an array with gaps" ended 2 'MIN-MAX:STEP'
"$tokentab" compile m/spec.json --out a --shards slurm -q >log 2>&1
code=$?
check "no array" ended 2 'SLURM_ARRAY_TASK_ID'
rm -rf a a.work
"$tokentab" compile m/spec.json --out a --shards 0/2 -q >log 2>&1
ranks 1 "$tokentab" compile m/spec.json --out a --reduce -q
check "reduce before its tasks" ended 1 'block first: [0-9]+ of [0-9]+ units are not stored yet: [0-9]+(-[0-9]+)?(, [0-9]+(-[0-9]+)?)*; run'
if [[ ${TEST_FAULTS:-0} == 1 ]]; then
    TOKENTAB_UNIT_MS=1500 "$tokentab" compile m/spec.json --out a --shards 1/2 -q >first 2>&1 &
    first=$!
    check "a task" wait_for 10 test -s a.work/first/progress-part-1-of-2.json
    "$tokentab" compile m/spec.json --out a --shards 1/2 --lock-wait 0.2 -q >log 2>&1
    code=$?
    check "the same task twice" ended 4 'held by an array task'
    "$tokentab" compile m/spec.json --out a --lock-wait 0.2 -q >log 2>&1
    code=$?
    check "a whole run beside a task" ended 4 'held by an array task'
    "$tokentab" compile m/spec.json --out a --shards 0/2 --lock-wait 0.2 -q >log 2>&1
    code=$?
    check "another task beside it" ended 0 ""
    wait "$first"
    check "the first task" test $? -eq 0
fi

# ---- nightly ----------------------------------------------------------------------------------------
cp -a m n
nightly() {
    TOKENTAB_SPEC=n/spec.json TOKENTAB_RECIPES=recipes TOKENTAB_PROGRAM=$tokentab TOKENTAB_KEEP=2 \
        TOKENTAB_LAUNCHER="mpirun -n 2" "$@" bash "$source_dir/scripts/nightly.sbatch" >log 2>&1
    code=$?
}
current() { readlink recipes/current; }
nightly env
check "first night" test "$code" -eq 0
first=$(current)
check "current" same_files expected recipes/current/
nightly env
check "unchanged" grep -q 'nightly: unchanged' log
model n --change 3
nightly env
check "changed checkpoint" test "$code" -eq 0
second=$(current)
check "another recipe" test "$first" != "$second"
work=recipes/work
check "only what changed" json_is "$work/run.json" "d['blocks'][0]['units_evaluated']" 1
check "both kept" test -d "recipes/$first"
model n --nan 5
nightly env
check "a bad checkpoint" test "$code" -eq 5
check "current stays" test "$(current)" = "$second"
check "and works" "$tokentab" verify recipes/current -q
model n --change 4
nightly env
third=$(current)
check "third recipe" test "$third" != "$second"
check "the oldest is gone" test ! -e "recipes/$first"
check "the last two stay" test -d "recipes/$second"
check "no leftovers" test "$(find recipes -mindepth 1 -maxdepth 1 | wc -l)" = 4 # two recipes, current, work
printf 'x' | dd of="$(echo recipes/"$third"/tables-*)" bs=1 seek=5000 conv=notrunc status=none
nightly env
check "a damaged current recipe is made again" test "$code" -eq 0
check "and verifies" "$tokentab" verify recipes/current -q
finish
