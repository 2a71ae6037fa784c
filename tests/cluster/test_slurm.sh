#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Batch scripts in a real Slurm (slurmctld and three slurmd): both launchers to the end, the time limit and
# the requeue after it, a signal to a step, a node that dies, a job array, srun without pmix, the nightly rebuild.
source "$(dirname "$0")/../cli/cluster_lib.sh"
need_faults
slurm=$source_dir/scripts/cluster/slurm.sh
PATH=$PATH:/usr/sbin
reason=$("$slurm" can) || { echo "skipped: $reason"; exit 77; }
unset "${!SLURM_@}"
export TT_SLURM_DIR=$tmp/slurm
cleanups+=('"$slurm" down')
"$slurm" up 3 2 || { check "a Slurm of three nodes" false; finish; }
eval "$("$slurm" env)"
model m
ranks 1 "$tokentab" compile m/spec.json --out expected -q
check "no Slurm" ended 0 ""

# A program that is slow until its job is requeued.
cat >slow <<SLOW
#!/bin/bash
[[ \${SLURM_RESTART_COUNT:-0} == 0 ]] && export TOKENTAB_UNIT_MS=\${SLOW_MS:-20000}
exec "$tokentab" "\$@"
SLOW
chmod +x slow

script() { # NAME LAUNCHER options
    local name=$1 launcher_name=$2
    shift 2
    "$tokentab" sbatch m/spec.json --out "$name" --launcher "$launcher_name" --job-name "$name" "$@" >"$name.sh"
    check "$name: script" bash -n "$name.sh"
}
slow_script() {
    script "$@"
    sed -i "s|^program=.*|program='$tmp/slow'|" "$1.sh"
}
state() { scontrol show job "$1" -o 2>/dev/null | sed -n 's/.* JobState=\([A-Z_]*\) .*/\1/p'; }
is() { [[ $(state "$1") =~ ^($2)$ ]]; }
restarts() { scontrol show job "$1" -o | sed -n 's/.* Restarts=\([0-9]*\) .*/\1/p'; }
waits_again() { [[ $(restarts "$1") -ge 1 ]] && is "$1" PENDING; }
# A requeued job waits two minutes; a test does not.  Sooner than two seconds after it the job would fail.
hurry() {
    sleep 3
    scontrol update "JobId=$1" StartTime=now 2>/dev/null # it may have started by itself
}
log_of() { ls -- *-"$1".log 2>/dev/null; }
says() { cat -- *-"$1".log >log 2>/dev/null; grep -qE -- "$2" log; }
completes() { # JOB NAME
    check "$2: completes" wait_for 40 is "$1" "COMPLETED"
    says "$1" . # into log, for messages
    check "$2: bytes" same_files expected "$2"
}

# ---- the time limit, on two nodes while the rest goes on ------------------------------------------------
export SLOW_MS=20000
slow_script limit_srun srun --tasks-per-node 2 --time 1
slow_script limit_mpirun mpirun --tasks-per-node 2 --time 1
job_s=$(sbatch --parsable limit_srun.sh)
job_m=$(sbatch --parsable limit_mpirun.sh)

# ---- to the end ------------------------------------------------------------------------------------------
script plain_srun srun --tasks-per-node 2
job=$(sbatch --parsable plain_srun.sh)
completes "$job" plain_srun
script plain_mpirun mpirun --tasks-per-node 2
job=$(sbatch --parsable plain_mpirun.sh)
completes "$job" plain_mpirun

# ---- a job array, then its reduction ---------------------------------------------------------------------
script array srun --tasks-per-node 1 --array 3
job=$(sbatch --parsable --array=1-5:2 array.sh)
job=$(sbatch --parsable --dependency=afterany:"$job" --array=0 array.sh reduce)
check "array: reduced" wait_for 60 is "$job" COMPLETED
cat array-*.log >log
check "array: bytes" same_files expected array
check "array: nothing evaluated by the reduction" json_is array.work/run.json \
    "d['blocks'][0]['units_evaluated']" 0

# ---- srun without pmix: singletons -------------------------------------------------------------------------
srun -n 2 --mpi=none "$tokentab" compile m/spec.json --out single -q >log 2>&1
check "srun singletons: code" test $? -eq 4
check "srun singletons: hint" grep -q 'srun --mpi=pmix' log
check "srun singletons: no file" test ! -e single.work

# ---- the nightly rebuild -------------------------------------------------------------------------------------
TOKENTAB_SPEC=m/spec.json TOKENTAB_RECIPES=recipes TOKENTAB_PROGRAM=$tokentab \
    timeout 60 sbatch --wait --ntasks-per-node=2 --mem-per-cpu=100M --output=nightly-%j.log \
    "$source_dir/scripts/nightly.sbatch" >/dev/null
check "nightly: code" test $? -eq 0
cat nightly-*.log >log
check "nightly: current" same_files expected recipes/current/

# ---- after the limit -------------------------------------------------------------------------------------------
for what in "$job_s limit_srun" "$job_m limit_mpirun"; do
    read -r job name <<<"$what"
    check "$name: waits again" wait_for 75 waits_again "$job"
    check "$name: stopped by the signal" says "$job" 'stopped by a signal'
    check "$name: no recipe yet" test ! -e "$name/recipe.json"
done
hurry "$job_s"
scontrol update "JobId=$job_m" StartTime=now 2>/dev/null
completes "$job_s" limit_srun
completes "$job_m" limit_mpirun
check "the log is appended to" says "$job_s" 'requeue'

# ---- a signal to a step; a node that dies ---------------------------------------------------------------------
export SLOW_MS=4000
slow_script step srun --tasks-per-node 2
job=$(sbatch --parsable step.sh)
check "step: first shards" wait_for 20 units_done step.work 1
scancel --signal=USR1 "$job"
check "step: waits again" wait_for 15 waits_again "$job"
check "step: stopped" says "$job" 'stopped by a signal'
scancel "$job"

slow_script node mpirun --nodes 2 --tasks-per-node 2
job=$(sbatch --parsable node.sh)
check "node: first shards" wait_for 20 units_done node.work 2
nodes=$(scontrol show job "$job" -o | sed -n 's/.* NodeList=\(n[^ ]*\) .*/\1/p')
victim=$(scontrol show hostnames "$nodes" | tail -n 1)
"$slurm" kill-node "$victim"
restarted() { [[ $(restarts "$1") -ge 1 ]]; } # at once where Slurm itself noticed first
check "node dies: requeued" wait_for 60 restarted "$job"
hurry "$job"
completes "$job" node
check "node dies: shards are kept" json_is node.work/run.json "d['blocks'][0]['units_reused'] >= 2" True
finish
