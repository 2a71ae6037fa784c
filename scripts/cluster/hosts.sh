#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Several hosts on one machine: network, UTS (host name), IPC and mount namespaces joined by a bridge that
# lives in a namespace too; nothing of the machine's own network is touched.  They share pids and files.
#   hosts.sh can               exit 0 where this machine permits it, else 77 with the reason
#   hosts.sh up N              hosts h1 ... hN with addresses 10.77.0.1 ...
#   hosts.sh down              end them and all that runs on them
#   hosts.sh run N -- CMD...   up, CMD on the machine itself, down; exits with CMD's code
#   hosts.sh exec HOST CMD...  run CMD on HOST
#   hosts.sh mpirun ARGS...    Open MPI's mpirun on h1; ranks go to the others by `hosts.sh agent`
#   hosts.sh hostfile [SLOTS]  a hostfile for it
#   hosts.sh pids HOST         what runs on HOST
#   hosts.sh kill HOST         kill all on HOST; its kernel lives, so peers are told
#   hosts.sh cut HOST          pull its cable at the switch: peers hear nothing more
#   hosts.sh join HOST         plug it in again
# State: $TT_HOSTS_DIR (default /tmp/tt-hosts-UID).  Needs root, iproute2, util-linux.
set -u
self=$(readlink -f "$0")
source "$(dirname "$self")/lib.sh"
dir=${TT_HOSTS_DIR:-/tmp/tt-hosts-$(id -u)}
net=10.77.0

can() {
    command -v ip >/dev/null || { echo "ip (iproute2) is not installed"; return 77; }
    command -v nsenter >/dev/null || { echo "nsenter (util-linux) is not installed"; return 77; }
    may_make_namespaces || { echo "namespaces need root and a kernel that permits them"; return 77; }
    unshare -n ip link add tt0 type bridge 2>/dev/null || { echo "no bridge in a namespace"; return 77; }
}

host_pid() { recall "$dir/$1.pid"; }

network_of() {
    local pid
    pid=$(host_pid "$1") || return 1
    readlink "/proc/$pid/ns/net"
}

host_pids() {
    local ns
    ns=$(network_of "$1") || return 1
    [[ -n $ns && $ns != "$(readlink /proc/self/ns/net)" ]] || return 1
    pids_in net "$ns"
}

new_host() { # NAME
    setsid unshare -m -u -n -i --propagation private bash -c '
        hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount -t tmpfs tmpfs /dev/shm &&
        ip link set lo up && echo ready >"$2/$1.ready" && exec sleep infinity' - "$1" "$dir" \
        </dev/null >/dev/null 2>"$dir/$1.err" &
    local pid=$! i
    disown "$pid"
    for ((i = 0; i < 200; i++)); do
        [[ -s $dir/$1.ready ]] && break
        sleep 0.05
    done
    [[ -s $dir/$1.ready ]] || die "host $1: $(cat "$dir/$1.err")"
    rm -f "$dir/$1.ready" "$dir/$1.err"
    remember "$dir/$1.pid" "$pid"
}

# Until nothing but the host's first process is left.
kill_all() { # HOST
    local init pid left i
    init=$(host_pid "$1") || return 0
    for ((i = 0; i < 100; i++)); do
        left=0
        for pid in $(host_pids "$1"); do
            [[ $pid == "$init" || -z $(start_time "$pid") ]] && continue
            left=1
            kill -KILL "$pid" 2>/dev/null
        done
        ((left == 0)) && return 0
        sleep 0.05
    done
    return 1
}

up() {
    local n=$1 i switch pid
    [[ $n =~ ^[1-9][0-9]?$ ]] || die "up: a number of hosts expected"
    [[ ! -e $dir/switch.pid ]] || down
    mkdir -p "$dir"
    {
        echo "127.0.0.1 localhost"
        for ((i = 1; i <= n; i++)); do echo "$net.$i h$i"; done
    } >"$dir/hosts"
    new_host switch
    switch=$(host_pid switch)
    nsenter -t "$switch" -n ip link add br0 type bridge &&
        nsenter -t "$switch" -n ip link set br0 up || die "no bridge"
    for ((i = 1; i <= n; i++)); do
        new_host "h$i"
        pid=$(host_pid "h$i")
        nsenter -t "$switch" -n ip link add "p$i" type veth peer name eth0 netns "$pid" &&
            nsenter -t "$switch" -n ip link set "p$i" master br0 up &&
            nsenter -t "$pid" -n ip addr add "$net.$i/24" dev eth0 &&
            nsenter -t "$pid" -n ip link set eth0 up || die "no cable to h$i"
    done
    for ((i = 2; i <= n; i++)); do
        timeout 10 "$self" exec h1 bash -c \
            "until { exec 3<>/dev/tcp/h$i/9; } 2>&1 | grep -q refused; do sleep 0.05; done" ||
            die "h$i is not reached from h1"
    done
}

down() {
    local file pid host
    for file in "$dir"/h*.pid "$dir"/switch.pid; do
        [[ -e $file ]] || continue
        host=$(basename "$file" .pid)
        kill_all "$host"
        pid=$(host_pid "$host") && kill -KILL "$pid" 2>/dev/null
        rm -f "$file"
    done
    rm -rf "$dir"
    return 0
}

on_host() { # HOST CMD...
    local pid
    pid=$(host_pid "$1") || die "no host $1"
    shift
    exec nsenter -t "$pid" -m -u -n -i --wd="$PWD" -- "$@"
}

agent() { # what mpirun calls instead of ssh: [options] HOST COMMAND...
    while [[ ${1-} == -* ]]; do shift; done
    local host=$1
    shift
    on_host "$host" sh -c "$*"
}

case ${1-} in
can) can ;;
up) up "${2-}" ;;
down) down ;;
run)
    n=$2
    shift 2
    [[ ${1-} == -- ]] && shift
    trap down EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    up "$n"
    "$@"
    ;;
exec) shift; on_host "$@" ;;
agent) shift; agent "$@" ;;
mpirun)
    shift
    on_host h1 env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun \
        --mca plm rsh --mca plm_rsh_agent "$self agent" --mca ras ^slurm --mca pml ob1 \
        --mca btl self,vader,tcp --mca btl_tcp_if_include "$net.0/24" \
        --mca oob_tcp_if_include "$net.0/24" --mca mpi_yield_when_idle 1 --bind-to none \
        --oversubscribe "$@"
    ;;
hostfile)
    for file in "$dir"/h*.pid; do echo "$(basename "$file" .pid) slots=${2:-2}"; done | sort -V
    ;;
pids) host_pids "$2" ;;
kill) kill_all "$2" ;;
cut) nsenter -t "$(host_pid switch)" -n ip link set "p${2#h}" nomaster ;;
join) nsenter -t "$(host_pid switch)" -n ip link set "p${2#h}" master br0 ;;
*)
    sed -n '3,18p' "$0" | sed 's/^# \{0,1\}//'
    exit 2
    ;;
esac
