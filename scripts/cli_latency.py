"""Measures the CPU time (user and system) of commands that need no torch: help texts, and answers to mistakes.

    python scripts/cli_latency.py              # prints the seconds of each command, median of 5 runs, and its answer
    python scripts/cli_latency.py --record     # writes docs/results/cli_latency.json

Every command runs in a process of its own, once before it is measured: bytecode is compiled then, files are cached.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write

ROOT = Path(__file__).resolve().parents[1]
RUNS = 5
COMMANDS = {  # setting: (arguments, exit code, what the answer has to name)
    "help": ("--help", 0, "train"),
    "version": ("--version", 0, "robopolicy"),
    "train_help": ("train --help", 0, "run_dir"),
    "unknown_verb": ("trian", 2, "train"),
    "unknown_key": ("train policy.horizonn=8 run_dir=x", 2, "policy.horizonn"),
    "unknown_option": ("train task=pik run_dir=x", 2, "task=pik"),
    "missing_key": ("train algo=bc", 2, "run_dir"),
    "missing_dataset": ("train algo=bc dataset=gone run_dir=x", 1, "dataset=gone"),
    "missing_checkpoint": ("eval checkpoint=gone", 1, "checkpoint=gone"),
    "unknown_task_native": ("train algo=residual task=reach task.task=reech run_dir=x", 2, "task.task='reech'"),
    "sweep_unknown_key": ("train --multirun seed=0,1 n_action_steps=1,2,4 policy.horizonn=8 run_dir=x", 2, "horizonn"),
    "sweep_wrong_value": ("train --multirun seed=0,1 n_action_steps=1,2,4,8,many run_dir=x", 2, "n_action_steps=many"),
    "sweep_no_launcher": ("train --multirun seed=0,1 hydra/launcher=none run_dir=x", 2, "hydra/launcher=none"),
    **{f"unknown_task_{suite}": (f"train task={suite} task.name=nothing run_dir=x", 2, "task.name='nothing'")
       for suite in ("metaworld", "maniskill", "robosuite", "libero", "gymnasium")},
    "unknown_task_gym_id": ("train algo=residual task=gymnasium task.package=gymnasium_robotics task.name=FetchPush-v9 "
                            "run_dir=x", 2, "task.name='FetchPush-v9'"),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/cli_latency.json")
    options = parser.parse_args()
    seconds, wrong = {}, 0
    for setting, (command, code, named) in COMMANDS.items():
        times, answers = zip(*(run(command.split()) for _ in range(RUNS + 1)), strict=True)
        seconds[setting] = statistics.median(times[1:])
        right = all(found == code and named in text for found, text in answers)
        wrong += not right
        print(f"{seconds[setting]:6.2f} s  {setting}{'' if right else f': WRONG, {answers[-1]}'}", flush=True)
    if options.record:
        rows = [measured(id="cli_latency", setting=s, metric="cpu_s", interval=value) for s, value in seconds.items()]
        rows.append(measured(id="cli_latency", setting="all", metric="wrong_answers", interval=wrong))
        write(rows, root=ROOT / "docs" / "results", keep=False)
    return 1 if wrong else 0


def run(arguments: list[str]) -> tuple[float, tuple[int, str]]:
    """CPU time of a command in an empty folder, its exit code, and all that it says."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        called = [sys.executable, "-m", "robopolicy.cli.main", *arguments]
        done = subprocess.run(called, cwd=folder, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, (done.returncode, done.stdout + done.stderr)


if __name__ == "__main__":
    sys.exit(main())
