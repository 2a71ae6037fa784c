# Correctly rounded arithmetic, against MPFR.
foreach(topic round linear norm elementwise softmax)
  unit_test(test_cr_${topic} SOURCES test_cr_${topic}.c
    LIBS kernels ${MPFR_LIBRARY} ${GMP_LIBRARY} m)
endforeach()

# The same bits as plain loops on every core type that runs here, one process each; skipped elsewhere.
foreach(core Prescott Haswell SkylakeX Cooperlake)
  foreach(threads 1 2)
    set(test test_cr_linear_${core}_${threads})
    add_test(NAME ${test} COMMAND test_cr_linear)
    set_tests_properties(${test} PROPERTIES TIMEOUT 120 LABELS unit SKIP_RETURN_CODE 77
      ENVIRONMENT "TOKENTAB_TEST_BLAS_CORE=${core};TOKENTAB_TEST_BLAS_THREADS=${threads}")
  endforeach()
endforeach()
