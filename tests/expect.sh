#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tests/expect.sh CODE REGEX cmd...
# Runs cmd; passes when it exits with CODE, its output (stdout and stderr) matches REGEX (extended; "" matches all),
# and no sanitizer complains.  CTest's PASS_REGULAR_EXPRESSION ignores the exit code and hides such reports.
set -uo pipefail
code=$1 regex=$2
shift 2
output=$("$@" 2>&1 | tr -d '\0'; exit "${PIPESTATUS[0]}")
found=$?
complaint=
[[ $found == "$code" ]] || complaint="exit code $found, expected $code"
grep -qE -- "$regex" <<<"$output" || complaint+="${complaint:+; }no /$regex/ in the output"
grep -qE 'Sanitizer|runtime error:' <<<"$output" && complaint+="${complaint:+; }sanitizer report"
[[ -z $complaint ]] && exit 0
printf 'expect: %s\n  command: %s\n  output:\n%s\n' "$complaint" "$*" "$(sed 's/^/    /' <<<"$output")" >&2
exit 1
