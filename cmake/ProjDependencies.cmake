# What the stack is made of.  Each library is linked by one folder only (see README.md).

find_package(PkgConfig REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
# One writer a file, so the serial library; Debian's plain `hdf5` may need mpi.h.
pkg_check_modules(HDF5 REQUIRED IMPORTED_TARGET hdf5-serial)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(CJSON REQUIRED IMPORTED_TARGET libcjson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(CRYPTO REQUIRED IMPORTED_TARGET libcrypto)
pkg_check_modules(SLEEF REQUIRED IMPORTED_TARGET sleef)
find_library(MPFR_LIBRARY mpfr REQUIRED)
find_path(MPFR_INCLUDE mpfr.h REQUIRED)
find_library(GMP_LIBRARY gmp REQUIRED)
find_path(CBLAS_INCLUDE cblas.h PATH_SUFFIXES x86_64-linux-gnu/openblas-pthread openblas REQUIRED)
find_library(CUNIT_LIBRARY cunit)
