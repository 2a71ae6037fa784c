# One function makes every library, one every test program.

option(TOKENTAB_SANITIZE "Build with ASan and UBSan" OFF)
option(TOKENTAB_FAULTS "Compile fault points and test backends in" OFF)
option(TOKENTAB_WERROR "Treat warnings as errors" OFF)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# What every target is compiled with.  No -march=native: kernels choose at run time (N45); no
# contraction and no fast-math: bits are promised (docs/numerics.md).
add_library(proj_flags INTERFACE)
target_compile_features(proj_flags INTERFACE c_std_11)
target_compile_definitions(proj_flags INTERFACE _POSIX_C_SOURCE=200809L _FILE_OFFSET_BITS=64)
target_compile_options(proj_flags INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla
  -Wformat=2 -Wundef -Wcast-qual -ffp-contract=off -fno-fast-math -fvisibility=hidden -UNDEBUG)
target_include_directories(proj_flags INTERFACE ${PROJECT_SOURCE_DIR})
if(TOKENTAB_WERROR)
  target_compile_options(proj_flags INTERFACE -Werror)
endif()
if(TOKENTAB_SANITIZE)
  target_compile_options(proj_flags INTERFACE
    -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(proj_flags INTERFACE -fsanitize=address,undefined)
endif()
if(TOKENTAB_FAULTS)
  target_compile_definitions(proj_flags INTERFACE TOKENTAB_FAULTS=1)
else()
  target_compile_definitions(proj_flags INTERFACE TOKENTAB_FAULTS=0)
endif()

# proj_module(name SOURCES ... PUBLIC libs... PRIVATE libs...)
# A static library of one folder.  PUBLIC libraries appear in its header, PRIVATE ones do not.
function(proj_module name)
  cmake_parse_arguments(M "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(${name} STATIC ${M_SOURCES})
  set_target_properties(${name} PROPERTIES C_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_link_libraries(${name} PUBLIC ${M_PUBLIC} PRIVATE proj_flags ${M_PRIVATE})
endfunction()

# proj_program(name SOURCES ... LIBS ...)
function(proj_program name)
  cmake_parse_arguments(P "" "" "SOURCES;LIBS" ${ARGN})
  add_executable(${name} ${P_SOURCES})
  set_target_properties(${name} PROPERTIES C_EXTENSIONS OFF)
  target_link_libraries(${name} PRIVATE proj_flags ${P_LIBS})
endfunction()
