# Verbs that need no ranks: one script each.
foreach(verb lookup inspect doctor diff pack export)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/test_${verb}.sh)
    cli_test(cli_${verb} SCRIPT test_${verb}.sh PROCESSORS 2)
    set_property(TEST cli_${verb} APPEND PROPERTY ENVIRONMENT
      "TOKENTAB_MAKE_CHECKPOINT=$<TARGET_FILE:make_checkpoint>")
  endif()
endforeach()
