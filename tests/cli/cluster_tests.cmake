# Runs that die, resume, share a work folder or live in a batch queue.  Each script tells what it needs;
# those that need a cluster carry the label `cluster` and skip with a reason where the machine permits none.

# They start mpirun over and over and mostly wait, so they count as one processor.
# run_test(NAME SCRIPT file.sh [TIMEOUT s] [LABELS ...])
function(run_test name)
  cmake_parse_arguments(T "" "SCRIPT;TIMEOUT" "LABELS" ${ARGN})
  cli_test(${name} SCRIPT ${T_SCRIPT} TIMEOUT ${T_TIMEOUT} LABELS ${T_LABELS})
  if(TOKENTAB_FAULTS)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT TEST_FAULTS=1)
  endif()
endfunction()

run_test(cli_faults_shards SCRIPT test_faults_shards.sh TIMEOUT 300)
run_test(cli_faults_emit SCRIPT test_faults_emit.sh TIMEOUT 300)
run_test(cli_faults_disk SCRIPT test_faults_disk.sh TIMEOUT 300)
run_test(cli_signals SCRIPT test_signals.sh TIMEOUT 300)
run_test(cli_resume_kills SCRIPT test_resume_kills.sh TIMEOUT 300)
run_test(cli_resume_incremental SCRIPT test_resume_incremental.sh TIMEOUT 300)
run_test(cli_resume_environment SCRIPT test_resume_environment.sh TIMEOUT 180)
run_test(cli_ranks_end SCRIPT test_ranks_end.sh TIMEOUT 180)
run_test(cli_status SCRIPT test_status.sh TIMEOUT 120)
run_test(cli_sbatch SCRIPT test_sbatch.sh TIMEOUT 240)
run_test(cluster_hosts SCRIPT ../cluster/test_hosts.sh TIMEOUT 300 LABELS cluster)
run_test(cluster_slurm SCRIPT ../cluster/test_slurm.sh TIMEOUT 400 LABELS cluster)
