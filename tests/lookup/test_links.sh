#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A program that links lookup, and libtokentab itself, pull in no MPI, HDF5 or BLAS; the library
# exports its versioned API and nothing else.
set -euo pipefail
program=$1 library=$2
for file in "$program" "$library"; do
    needed=$(ldd "$file")
    grep -q 'libzstd' <<<"$needed" || { echo "$file: ldd shows no libzstd; is it what is meant?"; exit 1; }
    if grep -Ei 'libmpi|open-(rte|pal)|hdf5|blas|lapack|sleef|mpfr' <<<"$needed"; then
        echo "$file links more than an inference program may"
        exit 1
    fi
done
readelf -d "$library" | grep -q 'SONAME.*\[libtokentab\.so\.0\]' || { echo "wrong SONAME"; exit 1; }
exported=$(readelf --dyn-syms -W "$library" | awk '$5 == "GLOBAL" && $7 != "UND" {print $8}' |
    grep -v '^TOKENTAB_0.1$' | sort)
stray=$(grep -v '^tokentab_[a-z_]*@@TOKENTAB_0\.1$' <<<"$exported" || true)
[ -z "$stray" ] || { echo "stray exports: $stray"; exit 1; }
header=$(sed -n 's/^.*[ *]\(tokentab_[a-z_]*\)(.*$/\1/p' "$TOKENTAB_SOURCE_DIR/lookup/tokentab.h" |
    sort -u)
[ "$header" = "$(sed 's/@@.*//' <<<"$exported")" ] || {
    diff <(echo "$header") <(sed 's/@@.*//' <<<"$exported")
    echo "header and exports differ"
    exit 1
}
