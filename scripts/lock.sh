#!/usr/bin/env bash
# Regenerate requirements/*.txt: every package pinned and hashed, no download address or index recorded.
#
#   ./scripts/lock.sh                        resolve again, keeping the pins that still fit
#   ./scripts/lock.sh --upgrade              move to the newest versions within requirements/constraints.txt
#   ./scripts/lock.sh --upgrade-package av   … of one package
#
# Sets are nested, so that one environment serves all of them: core ⊂ ros ⊂ suites ⊂ dev ⊂ bench. The largest is
# resolved first and constrains the others. core-cpu is core without CUDA and wandb, robosuite15 is core with robosuite
# 1.5. Hashes of every platform's files are kept; versions are resolved for x86-64 Linux.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./scripts/setup.sh dev

compile() { # compile OUTPUT ARGS...
    local output=$1
    shift
    echo "lock: requirements/$output"
    .venv/bin/uv pip compile "$@" --quiet --generate-hashes --no-emit-index-url --no-emit-find-links \
        --python-version 3.12 --python-platform x86_64-unknown-linux-gnu \
        --custom-compile-command ./scripts/lock.sh --output-file "requirements/$output"
}

compile uv.txt requirements/uv.in "$@"
compile bench.txt pyproject.toml --extra ros --extra suites --extra dev --extra bench \
    -c requirements/constraints.txt -c requirements/uv.txt "$@"
# The rest follows the largest set: nothing is left to upgrade.
compile dev.txt pyproject.toml --extra wandb --extra sweep --extra ros --extra suites --extra dev -c requirements/bench.txt
compile suites.txt pyproject.toml --extra wandb --extra sweep --extra ros --extra suites -c requirements/bench.txt
compile ros.txt pyproject.toml --extra wandb --extra sweep --extra ros -c requirements/bench.txt
compile core.txt pyproject.toml --extra wandb --extra sweep -c requirements/bench.txt
compile core-cpu.txt pyproject.toml --extra sweep -c requirements/bench.txt
compile build.txt requirements/build.in -c requirements/bench.txt
compile robosuite15.txt pyproject.toml --extra robosuite15 -c requirements/suites.txt # beside bench, which holds 1.4
# Core without CUDA and wandb (setup.sh --cpu core): PyTorch of its own index, and these are taken out.
#   nvidia-*, cuda-*, triton: CUDA. torchcodec: PyTorch's index holds another file of it; LeRobot decodes with av then.
#   cmake: LeRobot declares it to build extensions that nothing here uses.
cpu_without='^(nvidia-.*|cuda-.*|triton|torch|torchvision|torchcodec|cmake)=='
pin() { sed -n "s/^$1==\([0-9.]*\).*/\1/p" "requirements/$2.txt"; }
for name in torch torchvision; do
    [[ $(pin $name cpu) == "$(pin $name core)" ]] || moved=true
done
if ${moved:-false}; then # needs PyTorch's index; the hashes of a version stay, so no other lock does
    printf '%s\n' torch torchvision | compile cpu.txt - --no-deps --torch-backend cpu -c requirements/core.txt
fi
{
    awk -v without="$cpu_without" '/^[a-z0-9]/ { kept = $0 !~ without } NR <= 2 || kept' requirements/core-cpu.txt
    grep -v '^#' requirements/cpu.txt
} >requirements/core-cpu.part
mv requirements/core-cpu.part requirements/core-cpu.txt

if grep -nE '://|--(index|extra-index|find-links)' requirements/*.txt; then
    echo "lock: the lines above name a download address; remove its source before committing" >&2
    exit 1
fi
