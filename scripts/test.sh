#!/usr/bin/env bash
# Set up whatever is missing, then run the tests. Arguments go to pytest:
#
#   ./scripts/test.sh
#   ./scripts/test.sh tests/doctor/test_doctor.py -k gl
#   ./scripts/test.sh -m 'not slow'
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

./scripts/setup.sh dev

# One pytest worker a core (eight at most: each holds its own torch), one torch thread a worker.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} MKL_NUM_THREADS=${MKL_NUM_THREADS:-1}
# Tests neither log in anywhere nor download; wandb starts where a test says so, not beside every run.
export WANDB_MODE=disabled HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-1}
# They start many processes: without bytecode on disk each would compile torch and LeRobot anew.
unset PYTHONDONTWRITEBYTECODE
# A worker takes whole files: what a file sets up is set up once.
exec .venv/bin/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder "$@"
