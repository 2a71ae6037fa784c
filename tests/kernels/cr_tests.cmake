# Correctly rounded arithmetic, against MPFR.
foreach(topic round linear norm elementwise softmax)
  unit_test(test_cr_${topic} SOURCES test_cr_${topic}.c
    LIBS kernels ${MPFR_LIBRARY} ${GMP_LIBRARY} m)
endforeach()
