#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Numeric environments: ranks that differ stop before any work; shards of another environment are refused until
# they are given up; correctly rounded runs do not care.
source "$(dirname "$0")/cluster_lib.sh"
model m
# Two cores that every x86-64 machine can run.
one=Nehalem two=Prescott
cat >mixed.sh <<'MIXED'
#!/bin/bash
# rank 1 is of another core type
core=$1
[[ $OMPI_COMM_WORLD_RANK == 1 ]] && core=$2
shift 2
exec env OPENBLAS_CORETYPE="$core" "$@"
MIXED

ranks 3 bash mixed.sh $one $two "$tokentab" compile m/spec.json --out r -q
check "mixed cores" ended 4 "blas_core is \"$one\" on rank 0 \([^)]+\), \"$two\" on rank 1 \([^)]+\); --blas-core"
check "mixed cores: nothing was done" test ! -e r.work
ranks 3 bash mixed.sh $one $two "$tokentab" compile m/spec.json --out r -q --blas-core $one
check "--blas-core pins one" ended 0 ""
check "--blas-core: in the recipe" grep -q "\"$one\"" r/recipe.json
ranks 1 env OPENBLAS_CORETYPE=$one "$tokentab" compile m/spec.json --out alone -q
check "the same core alone" same_files alone r

# Resume elsewhere.
cp -a r before
ranks 3 "$tokentab" compile m/spec.json --out r -q --blas-core $two
check "other environment" ended 4 "environment\.blas_core: $one → $two.*--accept-environment"
check "other environment: the recipe stays" same_files before r
ranks 3 "$tokentab" compile m/spec.json --out r -q --blas-core $two --accept-environment
check "--accept-environment" ended 0 ""
check "--accept-environment starts over" json_is r.work/run.json "d['blocks'][0]['units_evaluated']" 10
ranks 1 "$tokentab" compile m/spec.json --out fresh -q --blas-core $two
check "--accept-environment: bytes" same_files fresh r
ranks 2 "$tokentab" compile m/spec.json --out r -q --blas-core $two --blas-threads 2
check "thread count" ended 4 'environment\.blas_threads: 1 → 2'

# Inputs that differ between ranks, as copies on nodes' own disks may.
model other --change-weight
cat >copies.sh <<'COPIES'
#!/bin/bash
spec=m/spec.json
[[ $OMPI_COMM_WORLD_RANK == 2 ]] && spec=other/spec.json
exec "$TOKENTAB_BIN" compile $spec --out copies -q
COPIES
ranks 3 bash copies.sh
check "copies differ" ended 4 'weight\.[0-9]+ is [0-9a-f]+ on rank 0 \([^)]+\), [0-9a-f]+ on rank 2'

# Correctly rounded: nodes may differ, and the bytes do not tell.
model exact --arithmetic correctly_rounded
ranks 1 "$tokentab" compile exact/spec.json --out e1 -q --blas-core $one
ranks 3 bash mixed.sh $one $two "$tokentab" compile exact/spec.json --out e2 -q
check "correctly rounded on mixed cores" test "$code" -eq 0
check "correctly rounded: bytes" cmp e1/recipe.json e2/recipe.json
ranks 2 "$tokentab" compile exact/spec.json --out e1 -q --blas-core $two
check "correctly rounded: resumed elsewhere" ended 0 ""
check "correctly rounded: reused" json_is e1.work/run.json "d['blocks'][0]['units_reused']" 10

# One of several processes that do not see each other.
code=0
env SLURM_STEP_NUM_TASKS=4 SLURM_PROCID=2 "$tokentab" compile m/spec.json --out s >log 2>&1 || code=$?
check "srun singleton" ended 4 'srun --mpi=pmix'
check "srun singleton: no file" test ! -e s.work
finish
