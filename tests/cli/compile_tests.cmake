# compile, plan, verify and probe as a user runs them.  Python (numpy, h5py) drives the program; a test skips
# itself (exit 77) where those are absent.
find_program(SYSTEM_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH)

# python_test(NAME SCRIPT file.py [TIMEOUT s] [PROCESSORS n] [FAULTS]); FAULTS: needs fault points
function(python_test name)
  cmake_parse_arguments(T "FAULTS" "SCRIPT;TIMEOUT;PROCESSORS" "" ${ARGN})
  if(NOT SYSTEM_PYTHON OR (T_FAULTS AND NOT TOKENTAB_FAULTS))
    return()
  endif()
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  if(NOT T_PROCESSORS)
    set(T_PROCESSORS 1)
  endif()
  add_test(NAME ${name} COMMAND ${SYSTEM_PYTHON} -B ${CMAKE_CURRENT_SOURCE_DIR}/${T_SCRIPT})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} PROCESSORS ${T_PROCESSORS}
    LABELS cli SKIP_RETURN_CODE 77
    ENVIRONMENT "${MPI_TEST_ENVIRONMENT};TOKENTAB_MAKE_CHECKPOINT=$<TARGET_FILE:make_checkpoint>;TOKENTAB_FAULTS=$<BOOL:${TOKENTAB_FAULTS}>")
endfunction()

python_test(cli_golden SCRIPT test_golden.py)
python_test(cli_identity SCRIPT test_identity.py PROCESSORS 2)
python_test(cli_novomolgen SCRIPT test_novomolgen.py)
python_test(cli_damage SCRIPT test_damage.py FAULTS)
python_test(cli_plan SCRIPT test_plan.py)
python_test(cli_verify SCRIPT test_verify.py PROCESSORS 2)
python_test(cli_blocks SCRIPT test_blocks.py)
python_test(cli_collision SCRIPT test_collision.py)
python_test(cli_projected SCRIPT test_projected.py)
python_test(cli_decision SCRIPT test_decision.py)
python_test(cli_packed SCRIPT test_packed.py PROCESSORS 2)
python_test(cli_cr SCRIPT test_cr.py PROCESSORS 2)
python_test(cli_probe SCRIPT test_probe.py)
python_test(cli_needs_files SCRIPT test_needs_files.py)
if(NOT TOKENTAB_SANITIZE)
  python_test(cli_memory SCRIPT test_memory.py PROCESSORS 2)
endif()
