#!/usr/bin/env bash
# Regenerate requirements/*.txt: every package pinned and hashed, no download address or index recorded.
#
#   ./scripts/lock.sh                        resolve again, keeping the pins that still fit
#   ./scripts/lock.sh --upgrade              move to the newest versions within requirements/constraints.txt
#   ./scripts/lock.sh --upgrade-package av   … of one package
#
# Sets are nested, so that one environment serves all of them: core ⊂ ros ⊂ suites ⊂ dev ⊂ bench. The largest is resolved first and
# constrains the others. Hashes of every platform's files are kept; versions are resolved for x86-64 Linux.
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
compile dev.txt pyproject.toml --extra ros --extra suites --extra dev -c requirements/bench.txt
compile suites.txt pyproject.toml --extra ros --extra suites -c requirements/bench.txt
compile ros.txt pyproject.toml --extra ros -c requirements/bench.txt
compile core.txt pyproject.toml -c requirements/bench.txt
compile build.txt requirements/build.in -c requirements/bench.txt

if grep -nE '://|--(index|extra-index|find-links)' requirements/*.txt; then
    echo "lock: the lines above name a download address; remove its source before committing" >&2
    exit 1
fi
