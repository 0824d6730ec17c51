#!/usr/bin/env bash
# Make .venv ready to use, installing whatever is missing. Quick when nothing is.
#
#   ./scripts/setup.sh [--force] [core|ros|suites|dev|bench]
#   ./scripts/setup.sh [--force] --cpu core
#
#   core   what robopolicy needs (default)
#   ros    core + the ROS 2 node
#   suites ros + light task suites that others wrote (Meta-World, gym-pusht, Fetch)
#   dev    suites + tests, linters, build tools
#   bench  dev + the stacks it is measured against, and the heavy suites (ManiSkill with Vulkan on the CPU, robosuite,
#          LIBERO, LeRobot's extras)
#   --force: put .venv right even if it looks up to date
#   --help: this text
#   --cpu: PyTorch without CUDA, from PyTorch's own index, and no wandb: 2 GB of disk instead of 6. Core alone; .venv
#          stays so.
#
# 1. system packages for off-screen rendering and video, through apt (sudo only where needed)
# 2. uv: one that works, else a pinned one under .tools/
# 3. Python 3.12: one that works, else uv fetches it. To choose one yourself: UV_PYTHON=/path/to/python3.12
# 4. .venv from the hash-pinned lock in requirements/, and this checkout as an editable install.
#    What you installed into .venv yourself stays.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

SETS="core ros suites dev bench" # nested: each contains those before it
UV_MINIMUM=0.9.0
MESA_MINIMUM=24.3 # the first whose lavapipe runs ManiSkill

say() { echo "setup: $*" >&2; }
die() {
    say "$*"
    exit 1
}
works() { "$@" >/dev/null 2>&1 </dev/null; } # a command may exist and fail, as pyenv's shims do

rank() { # rank SET: its place in SETS, 0 where it is not one
    local i=0 name
    for name in $SETS; do
        i=$((i + 1))
        [[ $name != "${1%-cpu}" ]] || { echo "$i" && return; }
    done
    echo 0
}

# ---- system packages -------------------------------------------------------------------------------------------

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@"
    elif ! works sudo --version; then
        return 1
    elif [[ -t 0 ]]; then
        sudo "$@"
    else
        sudo -n "$@" # nobody is there to type a password
    fi
}

apt_updated=false
apt_update() {
    $apt_updated || as_root apt-get update -qq || say "apt-get update failed; trying with the lists that are there"
    apt_updated=true
}

apt_install() { # apt_install ARGS...
    as_root env DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes \
        apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" >/dev/null
}

has_candidate() { LC_ALL=C LANGUAGE=C apt-cache policy "$1" 2>/dev/null | grep 'Candidate: [^(]' >/dev/null; }

has_library() { # read all of ldconfig's output: closing the pipe early would fail it under pipefail
    { PATH="$PATH:/sbin:/usr/sbin" ldconfig -p 2>/dev/null || true; } | grep -F "$1" >/dev/null
}

system_packages() {
    local missing=() wanted=() name
    has_library libEGL.so.1 || missing+=(libegl1)
    has_library libGL.so.1 || missing+=(libgl1)
    has_library libOSMesa.so || missing+=(libosmesa6)
    works ffmpeg -version || missing+=(ffmpeg)
    [[ $1 != bench ]] || has_library libvulkan.so.1 || missing+=(libvulkan1)
    # libosmesa6 is the second of two ways to render; distributions are dropping it.
    [[ ${missing[*]-} != libosmesa6 ]] || missing=()
    if [[ ${#missing[@]} -gt 0 ]]; then
        if ! works apt-get --version; then
            say "no apt-get here. Install the equivalents of: ${missing[*]}"
            return 0
        fi
        say "installing system packages: ${missing[*]}"
        apt_update
        for name in "${missing[@]}"; do
            if has_candidate "$name"; then wanted+=("$name"); else say "this system offers no $name; going on without"; fi
        done
        if [[ ${#wanted[@]} -gt 0 ]] && ! apt_install "${wanted[@]}"; then
            say "could not install them (needed for videos and camera observations). By hand:"
            say "  sudo apt-get install -y ${wanted[*]}"
        fi
    fi
    [[ $1 != bench ]] || vulkan_on_cpu
}

mesa_is_recent() {
    local version
    version=$(dpkg-query -W -f '${Version}' mesa-vulkan-drivers 2>/dev/null) || return 1
    dpkg --compare-versions "${version:-0}" ge "$MESA_MINIMUM"
}

# shellcheck disable=SC2016  # $(RELEASE) and the like are apt's own placeholders
vulkan_on_cpu() { # ManiSkill wants Vulkan even for state observations; without a GPU that is Mesa's lavapipe
    local codename uri suite=()
    if [[ -e /dev/nvidiactl ]] || ! works apt-get --version || mesa_is_recent; then return 0; fi
    say "ManiSkill without a GPU needs mesa-vulkan-drivers >= $MESA_MINIMUM"
    apt_update
    codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    if [[ $(. /etc/os-release && echo "${ID:-}") == debian && $codename == bookworm ]]; then
        # The same archive that this machine already uses, its backports suite.
        uri=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
            awk -v r="$codename" '$1 == r && $2 == "main" { print $3; exit }')
        [[ -n $uri ]] || die "found no apt source for $codename main to derive its backports from"
        if ! apt-get indextargets --format '$(RELEASE)' | grep -x "$codename-backports" >/dev/null; then
            say "adding $codename-backports to the apt sources (robopolicy-backports.list)"
            echo "deb $uri $codename-backports main" |
                as_root tee /etc/apt/sources.list.d/robopolicy-backports.list >/dev/null
            apt_updated=false
            apt_update
        fi
        suite=(-t "$codename-backports")
    fi
    if ! apt_install "${suite[@]}" mesa-vulkan-drivers libvulkan1 || ! mesa_is_recent; then
        say "could not install mesa-vulkan-drivers >= $MESA_MINIMUM: ManiSkill will not run without a GPU"
    fi
}

# ---- uv and Python ---------------------------------------------------------------------------------------------

uv_works() { # a uv that runs and is recent enough
    local version
    version=$("$1" --version 2>/dev/null </dev/null) || return 1
    version=${version#uv }
    [[ $(printf '%s\n' "$UV_MINIMUM" "${version%% *}" | sort -V | head -n 1) == "$UV_MINIMUM" ]]
}

find_uv() {
    local candidate
    while IFS= read -r candidate; do
        if [[ -n $candidate ]] && uv_works "$candidate"; then
            echo "$candidate"
            return
        fi
    done < <(
        printf '%s\n' .tools/bin/uv .venv/bin/uv
        type -ap uv || true
        printf '%s\n' "${HOME:-/nonexistent}/.local/bin/uv" "${HOME:-/nonexistent}/.cargo/bin/uv"
    )
    return 1
}

find_python3() { # any Python 3 with pip or venv, to install uv with
    local candidate
    while IFS= read -r candidate; do
        if [[ -n $candidate ]] && works "$candidate" -c "import $1"; then
            echo "$candidate"
            return
        fi
    done < <(type -ap python3 || true)
    return 1
}

install_uv() { # into .tools/, pinned and hash-checked
    local python
    say "installing uv into .tools/"
    if ! python=$(find_python3 pip) && ! python=$(find_python3 ensurepip); then
        works apt-get --version || die "no working uv, and no Python with pip to install it with. Install uv, then run this again"
        say "installing system packages: python3-venv (brings pip, which brings uv)"
        apt_update
        apt_install python3-venv || die "that failed. By hand: sudo apt-get install -y python3-venv; then run this again"
        hash -r
        python=$(find_python3 ensurepip) || die "python3 still has no pip. Install uv, then run this again"
    fi
    if ! works "$python" -m pip --version; then
        "$python" -m venv --clear .tools/bootstrap || die "python3 -m venv failed. Install uv, then run this again"
        python=.tools/bootstrap/bin/python
    fi
    "$python" -m pip install -q --disable-pip-version-check --require-hashes --upgrade --target .tools \
        -r requirements/uv.txt || die "could not download uv; is the package index reachable?"
    rm -rf .tools/bootstrap
    uv_works .tools/bin/uv || die "the uv that was just installed does not run"
}

find_python() { # a Python 3.12 that runs, on PATH or where version managers keep them; else uv's own, fetched now
    local candidate=
    if [[ -z ${UV_PYTHON:-} ]]; then
        for candidate in "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/3.12*/bin/python3.12 \
            /usr/local/bin/python3.12 /opt/*/bin/python3.12; do
            if [[ -x $candidate ]] && works "$candidate" -c 'import ssl, sqlite3, ctypes'; then
                break
            fi
            candidate=
        done
    fi
    "$uv" python find --no-python-downloads --no-project --system "${UV_PYTHON:-3.12}" 2>/dev/null && return
    [[ -z ${UV_PYTHON:-} ]] || die "UV_PYTHON=$UV_PYTHON is not a Python that runs"
    [[ -z $candidate ]] || { echo "$candidate" && return; }
    say "fetching Python 3.12"
    "$uv" python install 3.12 >&2 && "$uv" python find --no-project --managed-python 3.12 && return
    die "found no Python 3.12 and could not fetch one. Install it, then: UV_PYTHON=/path/to/python3.12 $0 $set"
}

# ---- .venv -----------------------------------------------------------------------------------------------------

stamp=.venv/.robopolicy-setup # "SET DIGEST" of the last set-up that finished; core-cpu is a SET too

digest() { cat pyproject.toml .python-version requirements/"$1".txt requirements/build.txt | sha256sum | cut -d ' ' -f 1; }

up_to_date() {
    local done_set done_digest
    read -r done_set done_digest 2>/dev/null <"$stamp" || return 1
    [[ $(rank "$done_set") -ge $(rank "$set") && $done_digest == "$(digest "$done_set")" ]] && works .venv/bin/python -c ''
}

check_cuda() { # one .venv has PyTorch with CUDA or without, never a mixture
    local done_set
    read -r done_set _ 2>/dev/null <"$stamp" || return 0
    if [[ $set == core-cpu && $done_set != core-cpu ]]; then
        die ".venv has PyTorch with CUDA. To change that: rm -r .venv, then run this again"
    elif [[ $set != core && $set != core-cpu && $done_set == core-cpu ]]; then
        die ".venv has PyTorch without CUDA, and the set $set needs the other. To change that: rm -r .venv, then run this again"
    fi
}

failed() { # after uv's own message
    if [[ $set == core-cpu ]]; then
        die "uv could not install the packages, see above. If PyTorch's own index cannot be reached from here, ./scripts/setup.sh takes PyTorch for CUDA from PyPI (6 GB of disk); it works without a GPU too"
    fi
    die "uv could not install the packages, see above. The same command tries again"
}

make_venv() {
    local uv python done_set free flags=() how=() torch="PyTorch for CUDA, 6 GB" size="3 GB to download" disk=7
    uv=$(find_uv) || { install_uv && uv=.tools/bin/uv; }
    if read -r done_set _ 2>/dev/null <"$stamp" && [[ $(rank "$done_set") -ge $(rank "$set") ]]; then
        set=$done_set # never take away what is there
    fi
    if [[ $set == core-cpu ]]; then
        how=(--no-deps --torch-backend cpu) torch="PyTorch without CUDA, 2 GB" size="0.6 GB to download" disk=2
    else
        how=(--compile-bytecode) # the first command answers at once; for a small disk it is too much
    fi
    if ! works .venv/bin/python -c 'import sys; assert sys.version_info[:2] == (3, 12)'; then
        free=$(df -Pk . | awk 'NR == 2 { print int($4 / 1048576) }')
        [[ $free -ge $((disk + 3)) ]] || say "only $free GiB free here; the environment takes about $disk (its download cache shares the space where both are on one disk)"
        python=$(find_python) || exit 1
        say "making .venv with $("$python" --version)"
        "$uv" venv --quiet --clear --python "$python" --prompt robopolicy .venv
    fi
    say "installing the set ${set%-cpu} with $torch: requirements/$set.txt into .venv (the first time, about $size)"
    [[ -t 2 ]] || flags+=(--quiet) # progress bars are for people
    export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-300} VIRTUAL_ENV=$PWD/.venv
    unset CONDA_PREFIX UV_SYSTEM_PYTHON UV_PYTHON
    rm -f "$stamp" .venv/.robopolicy-cpu
    [[ $set != core-cpu ]] || touch .venv/.robopolicy-cpu # run.sh then takes no other PyTorch by itself
    "$uv" pip install "${flags[@]}" --require-hashes "${how[@]}" --build-constraints requirements/build.txt \
        -r "requirements/$set.txt" || failed
    "$uv" pip install "${flags[@]}" --compile-bytecode --no-deps --build-constraints requirements/build.txt --editable .
    echo "$set $(digest "$set")" >"$stamp"
}

force=false cpu=false usage="usage: $0 [--force] [${SETS// /|}], or $0 [--force] --cpu core"
while [[ ${1:-} == --* ]]; do
    case $1 in
    --force) force=true ;;
    --cpu) cpu=true ;;
    --help)
        sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' scripts/setup.sh
        exit 0
        ;;
    *) die "$usage" ;;
    esac
    shift
done
set=${1:-core}
[[ $# -le 1 && $set != *-cpu && $(rank "$set") -gt 0 ]] || die "$usage"
if $cpu; then
    [[ $set == core ]] || die "--cpu: got the set $set, and PyTorch without CUDA is offered with core alone. Leave --cpu away"
    set=core-cpu
fi
[[ $(uname -s) == Linux ]] || die "only Linux is supported (Debian 12, Ubuntu 24.04 and their like)"

mkdir -p .tools && echo '*' >.tools/.gitignore
if works flock --version; then
    exec 9>.tools/lock
    held=0
    flock -n -E 75 9 || held=$?
    if [[ $held == 75 ]]; then
        say "waiting for another set-up of this checkout" && flock 9
    elif [[ $held != 0 ]]; then # some file systems of clusters
        say "this file system has no locks: start no other set-up of this checkout meanwhile"
    fi
fi

check_cuda
system_packages "$set"
if ! $force && up_to_date; then
    exit 0
fi
make_venv
say "done in $SECONDS s; next: source .venv/bin/activate"
