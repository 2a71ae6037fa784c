#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cmake --install to a folder: everything is there, the program runs from there, and no file has another's path in it.
# That programs link the installed library is the test lookup_consumer.
source "$(dirname "$0")/lib.sh"
build=${TOKENTAB_BUILD_DIR:?is the build folder}
check "install" cmake --install "$build" --prefix "$tmp/prefix" >log || { cat log; finish; }
cd prefix || finish
for file in bin/tokentab include/tokentab.h share/man/man1/tokentab.1 share/man/man3/libtokentab.3 \
    share/bash-completion/completions/tokentab; do
    check "$file" test -s $file
done
lib=$(dirname "$(find . -name libtokentab.so)")
for file in libtokentab.a libtokentab.so.0 libtokentab.so.0.1.0 pkgconfig/tokentab.pc \
    cmake/tokentab/tokentabConfig.cmake cmake/tokentab/tokentabConfigVersion.cmake cmake/tokentab/tokentabTargets.cmake; do
    check "$file" test -s "$lib/$file"
done
# What is listed above, the name links and the target file of the build type, and no private header or test.
check "nothing else" test "$(find . -type f -o -type l | wc -l)" -eq 14 || find . -type f -o -type l >&2
check "one header" test "$(find . -name '*.h' | wc -l)" -eq 1
check "no build path in text files" test -z "$(grep -rIl -e "$build" -e "$tmp" .)"

bin=$tmp/prefix/bin/tokentab
cd "$tmp" || finish
expect 0 'tokentab 0\.1\.0' "$bin" --version
check "the four-token example" env ASAN_OPTIONS=detect_leaks=0 "$bin" compile \
    "$TOKENTAB_SOURCE_DIR/examples/four-token/spec.json" --out four >log
expect 0 '27\.5' "$bin" lookup four --ids 3
check "completion" bash -c "source prefix/share/bash-completion/completions/tokentab && complete -p tokentab" >log
if command -v man >/dev/null && man -M prefix/share/man -w tokentab >log 2>&1; then
    check "man finds the page" grep -q 'prefix/share/man/man1/tokentab\.1' log
    check "and the library's" test -n "$(man -M prefix/share/man -w 3 libtokentab)"
fi
finish
