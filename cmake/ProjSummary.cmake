message(STATUS "tokentab ${PROJECT_VERSION}: ${CMAKE_BUILD_TYPE}, sanitizers ${TOKENTAB_SANITIZE}, "
               "fault points ${TOKENTAB_FAULTS}, warnings are errors ${TOKENTAB_WERROR}")
message(STATUS "  MPI ${MPI_C_VERSION}, HDF5 ${HDF5_VERSION}, zstd ${ZSTD_VERSION}, cJSON ${CJSON_VERSION}, "
               "xxHash ${XXHASH_VERSION}, libcrypto ${CRYPTO_VERSION}, sleef ${SLEEF_VERSION}")
