# Artifacts of other programs, damaged payloads, and what is installed with the program.
python_test(cli_import_foreign SCRIPT test_import_foreign.py)
foreach(topic manual install)
  cli_test(cli_${topic} SCRIPT test_${topic}.sh)
  set_property(TEST cli_${topic} APPEND PROPERTY ENVIRONMENT
    "TOKENTAB_MAKE_CHECKPOINT=$<TARGET_FILE:make_checkpoint>" "TOKENTAB_BUILD_DIR=${CMAKE_BINARY_DIR}")
endforeach()
python_test(cli_payload_hostile SCRIPT test_payload_hostile.py TIMEOUT 600)
