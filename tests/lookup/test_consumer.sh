#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs libtokentab, and builds the example program outside the tree with CMake and pkg-config.
set -euo pipefail
build=$1 folder_tool=$2 flags=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" --component lookup >"$work/log"
cmake -S "$TOKENTAB_SOURCE_DIR/examples/consumer" -B "$work/build" -G Ninja \
    -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_FLAGS="$flags" >>"$work/log"
cmake --build "$work/build" >>"$work/log" || { cat "$work/log"; exit 1; }
"$folder_tool" fanout "$work/recipe" mapped
"$folder_tool" fanout "$work/packed" packed
# Without the sanitizers' own preload order in mind: the example is linked with the same flags.
"$work/build/consumer" "$work/recipe" 5 36 0 | tee "$work/out"
"$work/build/consumer" "$work/packed" 5 36 0 | diff - "$work/out"
grep -q '^tokentab 0\.1\.0, fanout recipe, 37 ids, route profile1$' "$work/out"
[ "$(grep -c '^id ' "$work/out")" -eq 12 ]
if "$work/build/consumer" "$work/recipe" 37 2>"$work/err"; then
    echo "an id outside was accepted"
    exit 1
fi
grep -q 'id 37 at place 0: expected 0 <= id < 37' "$work/err"
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name tokentab.pc)")
[ "$(pkg-config --modversion tokentab)" = 0.1.0 ]
# shellcheck disable=SC2046,SC2086 # words are meant
cc $flags $(pkg-config --cflags tokentab) "$TOKENTAB_SOURCE_DIR/examples/consumer/consumer.c" \
    $(pkg-config --libs tokentab) -Wl,-rpath,"$(pkg-config --variable=libdir tokentab)" \
    -o "$work/consumer"
"$work/consumer" "$work/recipe" 5 36 0 | diff - "$work/out"

# Moved elsewhere, and linked with the archive, through CMake and pkg-config.
mv "$work/prefix" "$work/moved"
PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name tokentab.pc)")
mkdir "$work/static"
cp "$TOKENTAB_SOURCE_DIR/examples/consumer/consumer.c" "$work/static"
sed 's/tokentab::lookup)/tokentab::lookup_static)/' "$TOKENTAB_SOURCE_DIR/examples/consumer/CMakeLists.txt" \
    >"$work/static/CMakeLists.txt"
cmake -S "$work/static" -B "$work/static/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_C_FLAGS="$flags" >>"$work/log"
cmake --build "$work/static/build" >>"$work/log" || { cat "$work/log"; exit 1; }
archive=$(pkg-config --variable=libdir tokentab)/libtokentab.a
# shellcheck disable=SC2046,SC2086
cc $flags $(pkg-config --cflags tokentab) "$work/static/consumer.c" "$archive" \
    $(pkg-config --static --libs-only-l tokentab | sed 's/-ltokentab//') -o "$work/static/consumer"
for program in "$work/static/build/consumer" "$work/static/consumer"; do
    "$program" "$work/recipe" 5 36 0 | diff - "$work/out"
    if ldd "$program" | grep libtokentab; then
        echo "$program: the shared library was linked"
        exit 1
    fi
done
stray=$(nm -g --defined-only "$archive" | awk 'NF == 3 {print $3}' | grep -v '^tokentab_' || true)
[ -z "$stray" ] || { echo "the archive shows more than its API: $stray"; exit 1; }
if command -v c++ >/dev/null; then
    printf '#include <tokentab.h>\nint main() { return tokentab_version()[0] != 48; }\n' \
        >"$work/plus.cpp"
    c++ -Wall -Wextra -Wpedantic -Werror -fsyntax-only $(pkg-config --cflags tokentab) "$work/plus.cpp"
else
    echo "no c++: the header is not tried from C++"
fi
