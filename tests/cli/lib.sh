# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What the command-line tests in shell share; to be sourced.  Checks count and go on; `finish` ends the script.
set -uo pipefail
tokentab=${TOKENTAB_BIN:?is the program to test}
make_checkpoint=${TOKENTAB_MAKE_CHECKPOINT:?is tests/tools/make_checkpoint}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
unset OPENBLAS_CORETYPE TOKENTAB_TEST_BACKEND TOKENTAB_DAMAGE TOKENTAB_FAULT
command -v python3 >/dev/null || { echo "skipped: python3 is needed to read JSON"; exit 77; }
tmp=$(mktemp -d "${TMPDIR:-/tmp}/tokentab-cli.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
checks=0 failures=0

# check WHAT cmd...: cmd succeeds.
check() {
    local what=$1
    shift
    checks=$((checks + 1))
    "$@" && return 0
    failures=$((failures + 1))
    echo "FAILED: $what: $*" >&2
    return 1
}

# expect CODE REGEX cmd...: as tests/expect.sh.
expect() {
    check "$3 ${4:-}" "$here/../expect.sh" "$@"
}

# run_json FILE cmd...: cmd with --json: exit 0, a clean stderr, and on stdout one JSON document with a
# schema_version, kept in FILE.
run_json() {
    local file=$1
    shift
    check "exit code of $2" "$@" --json >"$file" 2>"$file.err"
    check "nothing on stderr" test ! -s "$file.err" || cat "$file.err" >&2
    check "schema_version of $2" json_is "$file" 'd["schema_version"]' 1
}

# json_is FILE EXPRESSION VALUE: the Python expression over the document d prints VALUE.
json_is() {
    local found
    found=$(python3 -c 'import json, sys
try:
    d = json.load(open(sys.argv[1]))
    print(eval(sys.argv[2]))
except Exception as e:
    sys.exit(f"  {sys.argv[1]}: {e!r}")' "$1" "$2") || return 1
    [[ $found == "$3" ]] || { echo "  $2 is $found, expected $3" >&2; return 1; }
}
check_json() {
    check "$1" json_is "$@"
}

# same A B: the same bytes.
same() {
    check "the same bytes" cmp "$1" "$2"
}

# make_four DIR [make_checkpoint options]: DIR/model.safetensors and DIR/spec.json of the four-token model:
#   embedding 0: [1, 2]  1: [3, 4]  2: [-1, 0]  3: [0.5, -2];  output [relu(a + b + 0.5), relu(a - b)], that is
#   0: [3.5, 0]  1: [7.5, 0]  2: [0, 0]  3: [0, 2.5].  Its recipe is DIR/recipe.
make_four() {
    local dir=$1
    shift
    mkdir -p "$dir"
    "$make_checkpoint" --out "$dir/model.safetensors" --preset four-token --spec "$dir/spec.json" "$@" &&
        compile "$dir/spec.json" "$dir/recipe"
}

# make_fanout DIR DTYPE [compile options]: 40 tokens of width 8, outputs q [4], k [3] and the residual; two profiles.
make_fanout() {
    local dir=$1 dtype=$2
    shift 2
    mkdir -p "$dir"
    "$make_checkpoint" --out "$dir/model.safetensors" --seed 7 --tensor "embed:$dtype:40x8" \
        --tensor "norm:$dtype:8:0.1:1" --tensor "q:$dtype:4x8" --tensor "k:$dtype:3x8" || return 1
    cat >"$dir/spec.json" <<'SPEC'
{"tokentab": 1, "checkpoint": "model.safetensors", "mode": "eval", "input_contract": "token_indices_only",
 "block": {"kind": "fanout", "name": "first", "embedding": {"weight": "embed"},
  "prefix": [{"op": "rms_norm", "weight": "norm", "eps": 1e-6}],
  "branches": {"q": [{"op": "linear", "weight": "q"}], "k": [{"op": "linear", "weight": "k"}]},
  "residual": "residual"},
 "row_count_profiles": [{"max_rows": 1, "evaluation_rows": 1}, {"max_rows": 5, "evaluation_rows": 2}],
 "bulk_rows": 8, "validation_rows": 7, "tolerance": {"absolute": 0.1, "relative": 0.1}, "storage": "may_grow"}
SPEC
    compile "$dir/spec.json" "$dir/recipe" "$@"
}

# compile SPEC OUT [options]: without output; LeakSanitizer would see Open MPI's own leaks.
compile() {
    local spec=$1 out=$2
    shift 2
    ASAN_OPTIONS=detect_leaks=0 "$tokentab" compile "$spec" --out "$out" --progress none "$@" \
        >compile.log 2>&1 || { cat compile.log >&2; return 1; }
}

finish() {
    echo "$checks checks, $failures failed"
    [[ $checks -gt 0 && $failures -eq 0 ]]
    exit
}

# The verbs below need no MPI, so their leaks are ours.
export ASAN_OPTIONS=detect_leaks=1
