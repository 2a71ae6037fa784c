#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Three hosts, as network namespaces: the bytes of one host; a host that dies, a cable that is cut, hosts whose
# numeric environments differ.
source "$(dirname "$0")/../cli/cluster_lib.sh"
need_faults
hosts=$source_dir/scripts/cluster/hosts.sh
reason=$("$hosts" can) || { echo "skipped: $reason"; exit 77; }
export TT_HOSTS_DIR=$tmp/hosts
cleanups+=('"$hosts" down')
"$hosts" up 3 || { check "three hosts" false; finish; }
model m --vocab 1200
ranks 1 "$tokentab" compile m/spec.json --out expected -q
check "one host" ended 0 ""

# on HOSTS N cmd...: as `ranks`, over hosts
on() {
    local where=$1 n=$2
    shift 2
    timeout -k 5 60 "$hosts" mpirun -n "$n" --host "$where" "$@" >log 2>&1 </dev/null
    code=$?
}
keepalive=(--mca oob_tcp_keepalive_time 3 --mca oob_tcp_keepalive_intvl 1 --mca oob_tcp_keepalive_probes 3)

on h1:2,h2:2,h3:2 6 "$tokentab" compile m/spec.json --out r -q
check "three hosts" ended 0 ""
check "three hosts: bytes" same_files expected r
for h in h1 h2 h3; do
    check "$h stored something" test -n "$(echo r.work/first/journal-$h-*)"
done

# begin SECONDS: a slow run over three hosts that ends after SECONDS at the latest, past its first shards
begin() {
    rm -rf r r.work
    TOKENTAB_UNIT_MS=2000 timeout -k 5 "$1" "$hosts" mpirun "${keepalive[@]}" -x TOKENTAB_UNIT_MS -n 6 \
        --host h1:2,h2:2,h3:2 "$tokentab" compile m/spec.json --out r -q >log 2>&1 </dev/null &
    launcher=$!
    check "first shards" wait_for 20 units_done r.work 3
}
resume() {
    on h1:2,h2:2 4 "$tokentab" compile m/spec.json --out r -q
    check "$1: run on the others" ended 0 ""
    check "$1: bytes" same_files expected r
    check "$1: shards are kept" json_is r.work/run.json "d['blocks'][0]['units_reused'] >= 3" True
    check "$1: nothing staged" nothing_staged r r.work
}

begin 50
pkill -USR1 -P "$launcher" # mpirun, the child of timeout
wait_launcher 20
check "USR1 to mpirun" ended 75 'rank [0-5] \(h[123]\): stopped by a signal'

begin 50
"$hosts" kill h3
wait_launcher 30
check "h3 dies: ends within 15 s" test "$took_s" -le 15
check "h3 dies: code $code" grep -qx "$code" <<<$'9\n137\n205'
resume "h3 dies"

"$hosts" down
"$hosts" up 3
begin 50
"$hosts" cut h3
wait_launcher 40
check "cable of h3 cut: ends within 20 s" test "$took_s" -le 20
check "cable of h3 cut: code" test "$code" -eq 205
resume "cable of h3 cut"
"$hosts" join h3

# Without keepalives nothing is noticed: the outer timeout ends the run, and what is left beyond the cut cable
# keeps its locks, as it must.
keepalive=()
begin 12
"$hosts" cut h3
wait_launcher 40
check "no keepalives: the guard: code $code" grep -qx "$code" <<<$'124\n137' # 137: mpirun did not heed TERM either
on h1:2,h2:2 4 "$tokentab" compile m/spec.json --out r -q --lock-wait 0.5
if [[ $code != 0 ]]; then # h3 may have gone by itself
    check "the lost host holds its locks" ended 4 'r.work/lock: held by a rank \(pid [0-9]+'
fi
"$hosts" kill h3
resume "no keepalives"

# Different cores on two hosts.
"$hosts" mpirun -n 1 --host h1 -x OPENBLAS_CORETYPE=Nehalem "$tokentab" compile m/spec.json --out x -q : \
    -n 1 --host h2 -x OPENBLAS_CORETYPE=Prescott "$tokentab" compile m/spec.json --out x -q >log 2>&1 </dev/null
code=$?
check "mixed hosts" ended 4 'blas_core is "Nehalem" on rank 0 \(h1\), "Prescott" on rank 1 \(h2\)'
finish
