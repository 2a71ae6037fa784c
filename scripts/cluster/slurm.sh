#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A throw-away Slurm on one machine: munged, slurmctld and one slurmd a virtual node, each node with its own
# host name and /dev/shm; no systemd, no cgroups, loopback only.
#   slurm.sh can                   exit 0 where this machine permits it, else 77 with the reason
#   slurm.sh up [NODES] [CPUS]     start it and wait until all nodes are idle
#   slurm.sh down                  end it, its jobs and what they left
#   slurm.sh run [-n NODES] [-c CPUS] -- CMD...   up, CMD with SLURM_CONF set, down; exits with CMD's code
#   slurm.sh env                   the variables that CMD gets, to eval
#   slurm.sh kill-node nX          kill all on a node;  start-node nX starts its slurmd again
# State: $TT_SLURM_DIR (default /tmp/tt-slurm-UID).  Ports from $TT_SLURM_PORT (26800).  Needs root and the
# packages slurm-wlm and munge.  SLURM_CONF marks what belongs to this cluster.
set -u
self=$(readlink -f "$0")
source "$(dirname "$self")/lib.sh"
dir=${TT_SLURM_DIR:-/tmp/tt-slurm-$(id -u)}
port=${TT_SLURM_PORT:-26800}
export SLURM_CONF=$dir/slurm.conf

# Jobs inherit these: root, loopback, several ranks a core.
mpi_env=(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_pml=ob1
    OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=lo OMPI_MCA_oob_tcp_if_include=lo
    OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_hwloc_base_binding_policy=none)

can() {
    local program
    for program in slurmctld slurmd munged srun; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null ||
            { echo "$program is not installed (packages slurm-wlm, munge)"; return 77; }
    done
    may_make_namespaces || { echo "namespaces need root and a kernel that permits them"; return 77; }
}

daemon() { recall "$dir/$1.pid2"; }

# Daemons write their pid alone; note the start time beside it.
note_daemon() { # NAME PIDFILE
    local i
    for ((i = 0; i < 100; i++)); do
        [[ -s $2 ]] && break
        sleep 0.05
    done
    [[ -s $2 ]] || die "$1 wrote no pid file"
    remember "$dir/$1.pid2" "$(tr -dc 0-9 <"$2")"
}

write_conf() { # NODES CPUS
    local n=$1 cpus=$2 i mem
    mem=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    cat >"$SLURM_CONF" <<CONF
ClusterName=tokentab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=$port
SrunPortRange=$((port + 100))-$((port + 399))
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool.%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SwitchType=switch/none
MpiDefault=pmix
TmpFS=$dir/tmp.%n
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
PriorityType=priority/basic
SlurmctldTimeout=10
SlurmdTimeout=${TT_SLURMD_TIMEOUT:-10}
KillWait=5
MinJobAge=300
MessageTimeout=20
JobRequeue=1
JobCompType=jobcomp/filetxt
JobCompLoc=$dir/jobcomp.log
AccountingStorageType=accounting_storage/none
CONF
    for ((i = 1; i <= n; i++)); do
        echo "NodeName=n$i NodeHostname=n$i NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=$cpus Boards=1" \
            "SocketsPerBoard=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=$mem State=UNKNOWN"
    done >>"$SLURM_CONF"
    echo "PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO" \
        >>"$SLURM_CONF"
    {
        cat /etc/hosts
        for ((i = 1; i <= n; i++)); do echo "127.0.0.1 n$i"; done
    } >"$dir/hosts"
}

# Open MPI names shared-memory segments by host name and local rank, and the pmix plugin its sockets under
# TmpFS: virtual nodes must not share either.
start_node() { # nX
    mkdir -p "$dir/spool.$1" "$dir/tmp.$1"
    chmod 1777 "$dir/tmp.$1"
    rm -f "$dir/slurmd.$1.pid"
    unshare -u -m --propagation private bash -c 'hostname "$1" && mount --bind "$2/hosts" /etc/hosts &&
        mount -t tmpfs tmpfs /dev/shm && exec slurmd -N "$1"' - "$1" "$dir" \
        </dev/null >/dev/null 2>"$dir/slurmd.$1.err" || die "slurmd $1: $(cat "$dir/slurmd.$1.err")"
    note_daemon "slurmd.$1" "$dir/slurmd.$1.pid"
}

kill_node() { # nX
    local pid uts
    pid=$(daemon "slurmd.$1") || die "$1 has no slurmd"
    uts=$(readlink "/proc/$pid/ns/uts")
    [[ -n $uts && $uts != "$(readlink /proc/self/ns/uts)" ]] || die "$1 has no namespace of its own"
    for pid in $(pids_in uts "$uts"); do kill -KILL "$pid" 2>/dev/null; done
    return 0
}

up() { # NODES CPUS
    local n=${1:-2} cpus=${2:-2} i
    can || exit 77
    daemon slurmctld >/dev/null && die "a cluster is up already under $dir"
    rm -rf "$dir"
    mkdir -p "$dir"/{munge,state}
    chmod 755 "$dir" "$dir/munge"
    (umask 077; head -c 1024 /dev/urandom >"$dir/munge/key")
    chmod 400 "$dir/munge/key"
    munged --force --socket="$dir/munge/socket" --key-file="$dir/munge/key" \
        --pid-file="$dir/munge/pid" --log-file="$dir/munge/log" --seed-file="$dir/munge/seed" \
        </dev/null 2>"$dir/munge/err" || die "munged: $(cat "$dir/munge/err")"
    note_daemon munged "$dir/munge/pid"
    write_conf "$n" "$cpus"
    slurmctld -c -i </dev/null >/dev/null 2>"$dir/slurmctld.err" ||
        { cat "$dir/slurmctld.err" >&2; down; die "slurmctld does not start"; }
    note_daemon slurmctld "$dir/slurmctld.pid"
    for ((i = 1; i <= n; i++)); do start_node "n$i"; done
    for ((i = 0; i < 300; i++)); do
        [[ $(sinfo -h -N -o %T 2>/dev/null | grep -c '^idle$') == "$n" ]] && return 0
        sleep 0.1
    done
    tail -n 5 "$dir"/slurmctld.log "$dir"/slurmd.*.log >&2
    down
    die "the nodes did not become idle"
}

# Step daemons and job processes that run under our slurm.conf.
leftovers() {
    local p text
    for p in /proc/[0-9]*; do
        text=$(tr '\0' '\n' 2>/dev/null <"$p/environ") || continue
        grep -qx "SLURM_CONF=$SLURM_CONF" <<<"$text" || continue
        [[ $(cat "$p/comm" 2>/dev/null) == slurmstepd ]] || grep -q '^SLURM_JOB_ID=' <<<"$text" ||
            continue
        echo "${p#/proc/}"
    done
}

down() {
    local file pid i
    [[ -e $SLURM_CONF ]] || return 0
    if daemon slurmctld >/dev/null; then
        timeout 5 scancel --state=PENDING,RUNNING,SUSPENDED -u root 2>/dev/null
        for ((i = 0; i < 60; i++)); do
            [[ -z $(timeout 5 squeue -h 2>/dev/null) ]] && break
            sleep 0.1
        done
    fi
    for pid in $(leftovers); do
        [[ $pid == "$$" ]] || end_process "$pid" 2
    done
    for file in "$dir"/slurmd.*.pid2 "$dir/slurmctld.pid2" "$dir/munged.pid2"; do
        [[ -e $file ]] && pid=$(recall "$file") && end_process "$pid"
    done
    rm -rf "$dir"
    return 0
}

case ${1-} in
can) can ;;
up) shift; up "$@" ;;
down) down ;;
kill-node) kill_node "$2" ;;
start-node) start_node "$2" ;;
env) echo "export SLURM_CONF=$SLURM_CONF ${mpi_env[*]}" ;;
run)
    shift
    nodes=2 cpus=2
    while [[ ${1-} == -n || ${1-} == -c ]]; do
        [[ $1 == -n ]] && nodes=$2 || cpus=$2
        shift 2
    done
    [[ ${1-} == -- ]] && shift
    trap down EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    up "$nodes" "$cpus"
    env "${mpi_env[@]}" "$@"
    ;;
*)
    sed -n '3,14p' "$0" | sed 's/^# \{0,1\}//'
    exit 2
    ;;
esac
