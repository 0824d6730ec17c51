#!/usr/bin/env bash
# Set up whatever is missing, then run `robopolicy` with the arguments given:
#
#   ./scripts/run.sh quickstart
#   ./scripts/run.sh train task=push
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

if [[ -f $root/.venv/.robopolicy-cpu && ! -f $root/.venv/.robopolicy-setup ]]; then
    echo "run: ./scripts/setup.sh --cpu core did not finish. Repeat it, or take PyTorch for CUDA (6 GB): ./scripts/setup.sh" >&2
    exit 1
fi
"$root/scripts/setup.sh" core
exec "$root/.venv/bin/robopolicy" "$@"
