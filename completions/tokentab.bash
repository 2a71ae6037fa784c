# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Completion of tokentab(1) for bash.

_tokentab_options() {
    case $1 in
    compile) echo "--progress --out --work --checkpoint --blas-core --blas-threads --shard-units --header-cap --allow-missing-unused --accept-environment --fresh --packed --shards --reduce --lock-wait" ;;
    plan) echo "--checkpoint --blas-core --blas-threads --shard-units --header-cap --allow-missing-unused --ranks" ;;
    status) echo "" ;;
    verify) echo "--progress --against --checkpoint --blas-core --blas-threads --header-cap --allow-missing-unused --quick" ;;
    lookup) echo "--force --ids --shape --id-type --output --format --route --file" ;;
    run) echo "--force --out --checkpoint --blas-core --blas-threads --header-cap --allow-missing-unused --inputs" ;;
    inspect) echo "--header-cap --allow-missing-unused" ;;
    probe) echo "--force --checkpoint --blas-core --blas-threads --header-cap --allow-missing-unused --max-rows --tokens --seeds --emit-profiles" ;;
    diff) echo "--header-cap --absolute --relative --ulp --max-lines --nan" ;;
    pack) echo "--force --out" ;;
    unpack) echo "--force --out --size-limit" ;;
    export) echo "--force --out --packed --to --module" ;;
    import) echo "--force --out --from --module --size-limit" ;;
    import-hf) echo "--force --out --header-cap --revision" ;;
    sbatch) echo "--out --work --checkpoint --blas-core --blas-threads --shard-units --header-cap --allow-missing-unused --accept-environment --packed --nodes --tasks-per-node --time --array --partition --job-name --launcher" ;;
    report) echo "--force --out" ;;
    doctor) echo "--blas-core --blas-threads" ;;
    esac
    echo "--help --json --log-json --quiet --verbose"
}

# Words that an option chooses from; nothing where it takes a file, a folder or a number.
_tokentab_choices() {
    case $1 in
    --progress) echo "auto bar log none" ;;
    --blas-core) echo "Prescott Nehalem Sandybridge Haswell Zen SkylakeX" ;;
    --format) echo "json npy raw" ;;
    --id-type) echo "int64 int32" ;;
    --to) echo "safetensors npy compressme" ;;
    --from) echo "compressme" ;;
    --nan) echo "differ equal bits" ;;
    --launcher) echo "auto srun mpirun" ;;
    --route) echo "bulk profile0 profile1 profile2" ;;
    --shape) echo "scalar" ;;
    esac
}

# Options whose value is no path and no word to choose.
_tokentab_is_free() {
    case $1 in
    --absolute | --array | --blas-threads | --header-cap | --job-name | --lock-wait | --max-lines | --max-rows) return 0 ;;
    --module | --nodes | --output | --partition | --ranks | --relative | --revision | --seeds | --shard-units) return 0 ;;
    --shards | --size-limit | --tasks-per-node | --time | --tokens | --ulp) return 0 ;;
    esac
    return 1
}

_tokentab() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} verb=${COMP_WORDS[1]}
    local words
    local verbs="compile plan status verify lookup run inspect probe diff pack unpack export import import-hf sbatch report doctor"
    COMPREPLY=()
    if ((COMP_CWORD == 1)); then
        mapfile -t COMPREPLY < <(compgen -W "$verbs --help --version" -- "$current")
        return
    fi
    if [[ $verb == --* || $verb == help ]]; then
        [[ $verb == --version ]] || mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$current")
        return
    fi
    if [[ $previous == = ]]; then # --option=value comes as three words
        previous=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $current == = ]]; then
        previous=${COMP_WORDS[COMP_CWORD - 1]}
        current=
    fi
    words=$(_tokentab_choices "$previous")
    if [[ -n $words ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
    elif _tokentab_is_free "$previous"; then
        return
    elif [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_tokentab_options "$verb")" -- "$current")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -F _tokentab tokentab
