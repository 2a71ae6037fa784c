#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The rules of the folder table that a compiler does not see: who includes whom, who includes which library,
# private headers stay in their folder, every test file is named by a CMakeLists.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
bad=0

complain() {
    echo "check_layers: $*" >&2
    bad=1
}

declare -A may=(
    [base]="base"
    [kernels]="base kernels"
    [graph]="base graph"
    [formats]="base graph formats"
    [shards]="base graph formats shards"
    [lookup]="base formats lookup"
    [comm]="base comm"
    [workers]="base kernels graph lookup formats workers"
    [driver]="base kernels graph formats shards lookup comm workers driver"
)
for folder in "${!may[@]}"; do
    while IFS=: read -r file _ include; do
        target=${include#*\"}
        target=${target%%/*}
        [[ -d $target ]] || continue
        [[ " ${may[$folder]} " == *" $target "* ]] || complain "$file includes $target/"
    done < <(grep -nHE '^ *# *include "[a-z]+/' "$folder"/*.[ch] || true)
done

# lookup may use the small target of formats alone; workers read no files.
while IFS=: read -r file _; do
    complain "$file includes formats/formats.h, the large target"
done < <(grep -HE '#include "formats/formats.h"' lookup/*.[ch] workers/*.[ch] || true)

only_in() { # only_in PATTERN FOLDER...
    local pattern=$1 file
    shift
    while read -r file; do
        [[ " $* " == *" ${file%%/*} "* ]] || complain "$file includes $pattern"
    done < <(grep -lE "^ *# *include <$pattern" ./*/*.[ch] 2>/dev/null | sed 's|^\./||' |
        grep -v '^tests/' || true)
}
only_in 'mpi\.h' comm
only_in 'cblas' kernels
only_in '(sleef|mpfr|gmp)' kernels
only_in 'hdf5|<H5' formats
only_in 'zstd' formats
only_in 'cjson/' formats
only_in '(xxhash|openssl)' base formats # packed payloads name their frames' checksums (XXH64)

# Private headers are included in their own folder alone.
while IFS=: read -r file _ include; do
    header=${include#*\"}
    header=${header%%\"*}
    [[ ${file%%/*} == "${header%%/*}" || $file == tests/${header%%/*}/* ]] ||
        complain "$file includes the private header $header"
done < <(git ls-files '*.c' '*.h' | xargs grep -nHE '#include "[a-z]+/[a-z_]*_internal\.h"' || true)

# File names are unique among the sources.
while read -r name; do
    complain "two source files are named $name"
done < <(git ls-files '*.c' '*.h' | grep -v '^tests/' | grep -v '^examples/' | xargs -n1 basename |
    sort | uniq -d)

# Every test is run by something: its name, or its topic behind "test_FOLDER_" or "test_", stands in a CMake
# file of its folder.
while read -r file; do
    name=$(basename "$file")
    stem=${name%.*}
    topic=${stem#test_}
    short=${topic#"$(basename "$(dirname "$file")")"_}
    grep -hwqE "$name|$stem|$topic|$short|${topic##*_}" "$(dirname "$file")"/{CMakeLists.txt,*.cmake} tests/cli/*.cmake \
        2>/dev/null || complain "$file is named by no CMakeLists.txt"
done < <(git ls-files 'tests/**/test_*.c' 'tests/**/test_*.sh')

exit $bad
