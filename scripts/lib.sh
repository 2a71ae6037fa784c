# SPDX-License-Identifier: Apache-2.0
# Shared by scripts/demo, scripts/test and .ci/run: packages, build, MPI's environment.  Sourced, not run.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build_packages=(gcc g++ libc6-dev cmake ninja-build pkg-config openmpi-bin libopenmpi-dev libhdf5-dev
    hdf5-tools libopenblas-dev libzstd-dev libcjson-dev libxxhash-dev libssl-dev libsleef-dev
    libmpfr-dev libgmp-dev)
test_packages=(libcunit1-dev zstd python3 python3-numpy python3-h5py procps)

# need_packages NAME...: install those that are missing; without root, name them and stop.
need_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
            missing+=("$package")
    done
    ((${#missing[@]} == 0)) && return 0
    if [[ $(id -u) -ne 0 ]]; then
        echo "$0: these packages are missing and only root can install them: ${missing[*]}" >&2
        exit 4
    fi
    echo "installing ${missing[*]}" >&2
    apt-get update -qq >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" \
        >/dev/null
}

# build_preset NAME: configure and build one preset of CMakePresets.json.
build_preset() {
    (cd "$root" && cmake --preset "$1" >"/tmp/tokentab-configure-$$.log" 2>&1) || {
        cat "/tmp/tokentab-configure-$$.log" >&2
        rm -f "/tmp/tokentab-configure-$$.log"
        return 1
    }
    rm -f "/tmp/tokentab-configure-$$.log"
    cmake --build "$root/build/$1"
}

# mpi_environment: what mpirun needs as root on one machine with few cores (docs/slurm.md).
mpi_environment() {
    export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
    export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OPENBLAS_NUM_THREADS=1
    if [[ $(id -u) -eq 0 ]]; then
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    fi
}
