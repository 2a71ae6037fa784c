# SPDX-License-Identifier: Apache-2.0
# Shared by scripts/cluster/*.sh: processes that are known by pid and start time, so that only those
# which these scripts started are ever ended.  Sourced, not run.

die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# start_time PID: ticks since boot; nothing for one that is gone or a zombie
start_time() {
    local stat
    stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 0
    # shellcheck disable=SC2086
    set -- ${stat##*) }
    [[ $1 == Z ]] || echo "${20}"
}

# remember FILE PID: write "PID START"
remember() { echo "$2 $(start_time "$2")" >"$1"; }

# recall FILE: the pid that was remembered, if that very process still lives
recall() {
    local pid start
    read -r pid start 2>/dev/null <"$1" || return 1
    [[ -n $start && $(start_time "$pid") == "$start" ]] || return 1
    echo "$pid"
}

# end_process PID [SECONDS]: TERM, then KILL when the same process is still there
end_process() {
    local start i
    start=$(start_time "$1")
    [[ -n $start ]] || return 0
    kill -TERM "$1" 2>/dev/null
    for ((i = 0; i < ${2:-5} * 20; i++)); do
        [[ $(start_time "$1") == "$start" ]] || return 0
        sleep 0.05
    done
    kill -KILL "$1" 2>/dev/null
    return 0
}

# pids_in NAMESPACE_KIND INODE: processes in a namespace, by the text of /proc/PID/ns/KIND
pids_in() {
    local p
    for p in /proc/[0-9]*; do
        [[ $(readlink "$p/ns/$1" 2>/dev/null) == "$2" ]] && echo "${p#/proc/}"
    done
    return 0
}

# may_make_namespaces: can this user make hosts here?
may_make_namespaces() {
    [[ $(id -u) -eq 0 ]] && unshare -m -u -n -i --propagation private true 2>/dev/null
}
