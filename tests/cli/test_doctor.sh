#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# doctor: the libraries, the core in use and the best one, the folder.
source "$(dirname "$0")/lib.sh"
state='[c["state"] for c in d["checks"] if c["name"] == '
value='[c["value"] for c in d["checks"] if c["name"] == '

run_json doctor.json "$tokentab" doctor .
check_json doctor.json 'd["healthy"]' True
for name in tokentab MPI HDF5 zstd cJSON xxHash libcrypto Sleef libm; do
    check_json doctor.json "$state'$name']" "['ok']"
done
for name in write lock "HDF5 file"; do
    check_json doctor.json "$state'$name']" "['ok']"
done
check_json doctor.json "'deflate' in $value'HDF5 filters'][0]" True
check_json doctor.json 'd["blas"]["core_in_use"] in [c["core"] for c in d["blas"]["cores"]]' True
check_json doctor.json '0 < d["blas"]["share_of_best"] <= 1 and d["blas"]["gflops"] > 0' True
check_json doctor.json 'd["blas"]["gflops"] <= max(c["gflops"] for c in d["blas"]["cores"])' True
check "it cleans up" test -z "$(find . -name '.tokentab-doctor*')"
expect 0 'core in use' "$tokentab" doctor

# another core than the best one is in use, and said
run_json old.json "$tokentab" doctor --blas-core Nehalem
check_json old.json 'd["blas"]["core_in_use"]' Nehalem
check_json old.json "$value'core in use']" "['Nehalem (--blas-core)']"

# launcher variables are shown; a rank count that the machine cannot hold is a warning
run_json crowd.json env OMPI_COMM_WORLD_SIZE=5000 OMPI_COMM_WORLD_LOCAL_SIZE=5000 "$tokentab" doctor
check_json crowd.json "'OMPI_COMM_WORLD_SIZE=5000' in $value'variables'][0], $state'cores']" "(True, ['warn'])"

# what is broken: exit 4, one line, and the result is still printed
expect 4 'no such folder' "$tokentab" doctor no-such-folder
"$tokentab" doctor no-such-folder --json >broken.json 2>broken.txt
check_json broken.json "d['healthy'], $state'write']" "(False, ['fail'])"
check "one line" test "$(wc -l <broken.txt)" = 1
expect 4 'unknown BLAS core "NoSuchCore": OpenBLAS [0-9.]+ loaded [A-Za-z0-9]+ instead; known: Prescott, ' \
    "$tokentab" doctor --blas-core NoSuchCore
expect 4 'standard output: ' bash -c '"$1" plan --help >/dev/full' full "$tokentab"
expect 4 'standard output: ' bash -c '"$1" --version >/dev/full' full "$tokentab"
if [[ $("$tokentab" doctor --help; TOKENTAB_FAULT=lock_take "$tokentab" doctor . 2>&1) == *"cannot lock"* ]]; then
    # only where fault points are compiled in
    expect 4 'cannot lock' env TOKENTAB_FAULT=lock_take "$tokentab" doctor .
    expect 4 '^ +fail +write' env TOKENTAB_FAULT=file_write "$tokentab" doctor .
    check "it cleans up after faults" test -z "$(find . -name '.tokentab-doctor*')"
fi
if [[ $(id -u) != 0 ]]; then
    mkdir closed && chmod 555 closed
    expect 4 'closed' "$tokentab" doctor closed
fi
finish
