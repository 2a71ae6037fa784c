# SPDX-License-Identifier: Apache-2.0
# What the tests of runs that die, resume or share a work folder have in common; to be sourced.  Checks count
# and go on; `finish` ends the script.
set -uo pipefail
tokentab=${TOKENTAB_BIN:?is the program to test}
source_dir=${TOKENTAB_SOURCE_DIR:?is the source folder}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
unset OPENBLAS_CORETYPE TOKENTAB_TEST_BACKEND TOKENTAB_DAMAGE_PAYLOAD TOKENTAB_FAULT TOKENTAB_UNIT_MS
python=python3
"$python" -c 'import numpy' 2>/dev/null || python=/usr/bin/python3
"$python" -c 'import numpy' 2>/dev/null || { echo "skipped: python3 with numpy is needed"; exit 77; }
command -v pgrep >/dev/null || { echo "skipped: pgrep is needed"; exit 77; }
tmp=$(mktemp -d "${TMPDIR:-/tmp}/tokentab-cluster.XXXXXX")
cd "$tmp" || exit 1
cleanups=()
leave() {
    local i
    for ((i = ${#cleanups[@]} - 1; i >= 0; i--)); do eval "${cleanups[i]}"; done
    cd / && rm -rf "$tmp"
}
trap leave EXIT
checks=0 failures=0

need_faults() {
    [[ ${TEST_FAULTS:-0} == 1 ]] || { echo "skipped: built without fault points"; exit 77; }
}

# check WHAT cmd...: cmd succeeds
check() {
    local what=$1
    shift
    checks=$((checks + 1))
    "$@" && return 0
    failures=$((failures + 1))
    echo "FAILED: $what: $*" >&2
    [[ ! -s log ]] || sed 's/^/    /' log >&2
    return 1
}

finish() {
    echo "$checks checks, $failures failed"
    [[ $checks -gt 0 && $failures -eq 0 ]]
    exit
}

# model DIR [options of cluster_model.py]
model() { "$python" "$here/cluster_model.py" "$@"; }

# ranks N cmd...: under mpirun, bounded; the output goes to `log`, the exit code to $code
ranks() {
    local n=$1
    shift
    timeout -k 5 60 mpirun -n "$n" "$@" >log 2>&1 </dev/null
    code=$?
}

# ended CODE REGEX: the last run ended with CODE and said one line, which matches
ended() {
    local lines
    lines=$(grep '^tokentab: ' log)
    if [[ $code != "$1" ]]; then
        echo "  exit $code, expected $1" >&2
        return 1
    fi
    if [[ -z $2 ]]; then
        [[ -z $lines ]] || { echo "  a clean run said: $lines" >&2; return 1; }
    elif [[ $(wc -l <<<"$lines") != 1 ]] || ! grep -qE -- "$2" <<<"$lines"; then
        echo "  said: $lines; expected one line that matches: $2" >&2
        return 1
    fi
}

# nothing_staged FOLDER...: no temporary file is left
nothing_staged() {
    local found
    found=$(find "$@" \( -name '*tmp*' -o -name '*staged*' \) 2>/dev/null)
    [[ -z $found ]] || { echo "  left: $found" >&2; return 1; }
}

# same_files A B: two recipes, byte for byte
same_files() { diff -r "$1" "$2" >&2; }

# json_is FILE EXPRESSION VALUE: the Python expression over the document d prints VALUE
json_is() {
    local found
    found=$("$python" -c 'import json, sys
d = json.load(open(sys.argv[1]))
print(eval(sys.argv[2]))' "$1" "$2") || return 1
    [[ $found == "$3" ]] || { echo "  $2 of $1 is $found, expected $3" >&2; return 1; }
}

# wait_for SECONDS cmd...: until cmd succeeds
wait_for() {
    local i n=$(($1 * 20))
    shift
    for ((i = 0; i < n; i++)); do
        "$@" 2>/dev/null && return 0
        sleep 0.05
    done
    echo "  waited in vain: $*" >&2
    return 1
}

# start_ranks N cmd...: in the background; $launcher is mpirun's pid
start_ranks() {
    local n=$1
    shift
    mpirun -n "$n" "$@" >log 2>&1 </dev/null &
    launcher=$!
}

# wait_launcher SECONDS: its exit code in $code, the time it took in $took_s; killed when it takes longer
wait_launcher() {
    local start=$SECONDS watchdog
    (sleep "$1" && kill -KILL "$launcher") >/dev/null 2>&1 &
    watchdog=$!
    wait "$launcher" 2>/dev/null
    code=$?
    took_s=$((SECONDS - start))
    pkill -P "$watchdog" 2>/dev/null
    kill "$watchdog" 2>/dev/null
    wait "$watchdog" 2>/dev/null
}

# rank_pid R: the process that is rank R of $launcher
rank_pid() {
    local pid
    for pid in $(pgrep -P "$launcher"); do
        if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1"; then
            echo "$pid"
            return 0
        fi
    done
    return 1
}

# units_done WORK N: are at least N units journalled?
units_done() { (($(cat "$1"/first/journal-*.jsonl 2>/dev/null | wc -l) >= $2)); }
