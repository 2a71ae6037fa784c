#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The man pages and the completion name every verb and option of --help, and nothing else.
source "$(dirname "$0")/lib.sh"
source_dir=${TOKENTAB_SOURCE_DIR:?}
page=$source_dir/man/tokentab.1
source "$source_dir/completions/tokentab.bash"

# Options in the text of --help; in the section of a verb of the page; as the completion offers them.
help_options() { "$tokentab" "$1" --help | sed -n 's/^  \(--[a-z-]*\)\( .*\)\{0,1\}$/\1/p' | sort; }
page_options() {
    { sed -n '/^\.SH OPTIONS OF EVERY VERB/,/^\.SH VERBS/p' "$page"
      awk -v verb="$1" '/^\.S[SH] /{on = ($1 == ".SS" && $2 == verb)} on' <(sed 's/\\-/-/g' "$page"); } |
        sed 's/\\-/-/g' | sed -n 's/^\.BR \(--[a-z-]*\)\( .*\)\{0,1\}$/\1/p' | sort
}
offered() { # offered WORD...: what is offered for the last word
    COMP_WORDS=(tokentab "$@")
    COMP_CWORD=$#
    _tokentab
    printf '%s\n' "${COMPREPLY[@]}" | sort
}
equal() { # equal WHAT A B
    check "$1" test "$2" == "$3" || diff <(echo "$2") <(echo "$3") >&2
}

verbs=$("$tokentab" --help | awk '/^verbs:/ {on = 1; next} /^$/ {on = 0} on {print $1}' | sort)
check "verbs are found" test "$(wc -l <<<"$verbs")" -gt 15
equal "verbs of the page" "$verbs" "$(sed 's/\\-/-/g' "$page" | awk '$1 == ".SS" {print $2}' | sort)"
equal "verbs of the completion" "$verbs" "$(offered "" | grep -v '^--')"
for verb in $verbs; do
    options=$(help_options "$verb")
    check "options of $verb are found" test "$(wc -l <<<"$options")" -ge 5
    equal "options of $verb in the page" "$options" "$(page_options "$verb")"
    equal "options of $verb in the completion" "$options" "$(offered "$verb" --)"
    usage=$("$tokentab" "$verb" --help | sed -n 's/^usage: tokentab //p')
    check "usage of $verb in the page" grep -qxF ".SS $usage" <(sed 's/\\-/-/g' "$page")
done
for code in 0 1 2 3 4 5 6 75; do
    check "exit code $code in the page" grep -qx "\.B $code" "$page"
done
equal "choices" "compressme npy safetensors" "$(offered export r --to "" | xargs)"
equal "choices behind =" "npy" "$(offered export r --to = n | xargs)"
equal "no choices of a number" "" "$(offered compile s --blas-threads "")"
equal "options begun" "--packed --partition --progress" "$({ offered compile --pa; offered sbatch --pa; offered compile --pr; } | sort -u | xargs)"
touch here.json
equal "files" "here.json" "$(offered plan here)"

# The page of the library names every function and status of the header, and no other.
functions() { grep -oh 'tokentab_[a-z_]*(' "$1" | sort -u; }
equal "functions of the library's page" "$(functions "$source_dir/lookup/tokentab.h")" \
    "$(functions "$source_dir/man/libtokentab.3")"
for word in $(grep -oE 'TOKENTAB_(OK|E[A-Z]+|OPEN_[A-Z_]+)\b' "$source_dir/lookup/tokentab.h" | sort -u); do
    check "$word in the library's page" grep -q "$word" "$source_dir/man/libtokentab.3"
done
version=$("$tokentab" --version | cut -d' ' -f2)
for file in tokentab.1 libtokentab.3; do
    check "version in $file" grep -q "^\.TH .*\"tokentab $version\"" "$source_dir/man/$file"
    if command -v groff >/dev/null; then
        check "$file has no warnings" test -z "$(groff -man -Tutf8 -ww -z "$source_dir/man/$file" 2>&1)"
    fi
done
finish
