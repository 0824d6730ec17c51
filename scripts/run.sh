#!/usr/bin/env bash
# Set up whatever is missing, then run `robopolicy` with the arguments given:
#
#   ./scripts/run.sh quickstart
#   ./scripts/run.sh train task=push
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/scripts/setup.sh" core
exec "$root/.venv/bin/robopolicy" "$@"
