#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `status` while a run is on, after it was stopped, killed and done; log lines as JSON.
source "$(dirname "$0")/cluster_lib.sh"
need_faults
model m
"$tokentab" status nowhere >log 2>&1
code=$?
check "no such folder" ended 3 'nowhere: expected a work folder, found nothing'
mkdir empty
"$tokentab" status empty >log 2>&1
code=$?
check "no work folder" ended 3 'no run has worked here'

TOKENTAB_UNIT_MS=900 start_ranks 3 "$tokentab" compile m/spec.json --out r -q
check "first shards" wait_for 20 units_done r.work 2
status() { "$tokentab" status r.work --json >s.json 2>status.err; }
seen() { status && json_is s.json "d['blocks'][0]['runs'][0]['shards_done'] > 0" True 2>/dev/null; }
check "shards are seen" wait_for 5 seen
run="d['blocks'][0]['runs'][0]"
check "state" json_is s.json "$run['state']" running
check "shards" json_is s.json "$run['shards']" 10
check "in flight" json_is s.json "0 < $run['shards_in_flight'] <= 3" True
check "failed" json_is s.json "$run['shards_failed']" 0
check "rate" json_is s.json "$run['tokens_per_s'] > 0 and $run['seconds_left'] > 0" True
check "no error" json_is s.json "$run['last_error']" None
check "holder" json_is s.json "d['held'] and d['holder'].startswith('pid ')" True
check "stored" json_is s.json "2 <= d['blocks'][0]['units_stored'] < 10" True
"$tokentab" status r.work >text
check "as text" grep -q 'shards [0-9]* of 10 done, [0-9]* in flight, 0 failed' text
check "held by" grep -q '^r.work: held by pid' text
check "time left" grep -q 's left' text
kill -USR1 "$launcher"
wait_launcher 20
check "the run was not disturbed" ended 75 'stopped by a signal'
status
check "stopped" json_is s.json "$run['state']" stopped
check "its last error" json_is s.json "'stopped by a signal' in $run['last_error']" True
check "not held" json_is s.json "d['held']" False

TOKENTAB_UNIT_MS=900 start_ranks 2 "$tokentab" compile m/spec.json --out r -q
sleep 1.5
kill -KILL "$(rank_pid 0)"
wait_launcher 20
status
check "died" json_is s.json "$run['state']" died

TOKENTAB_FAULT=rows_read@1 ranks 2 "$tokentab" compile m/spec.json --out r -q --fresh
status
check "failed" json_is s.json "$run['state']" failed
check "the reason of a failure" json_is s.json "'tensor embed' in $run['last_error']" True

ranks 2 "$tokentab" compile m/spec.json --out r --log-json
cp log jsonlog
check "done" test "$code" -eq 0
status
check "accepted" json_is s.json "$run['state']" accepted_on_full_domain_validation
check "all stored" json_is s.json "d['blocks'][0]['units_stored']" 10
cp -a r.work torn && : >torn/first/progress.json
"$tokentab" status torn >text 2>log
code=$?
check "a torn progress file is no failure" ended 0 'warning: torn/first/progress.json'
check "and the rest is told" grep -q 'units stored' text

# The result on stdout aside, each line of the log is a JSON object with a time; events name shard and rank.
grep "^{" jsonlog >log.json
check "log lines" "$python" -c 'import json
lines = [json.loads(l) for l in open("log.json")]
assert all("time" in l for l in lines), lines
shards = sorted(l["shard"] for l in lines if l.get("event") == "shard_done")
assert shards == list(range(10)), shards'
finish
