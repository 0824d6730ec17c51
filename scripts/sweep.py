"""Runs six settings with two training seeds each by one command on two processes, interrupts it, and starts it again.

    python scripts/sweep.py              # prints what was found; takes minutes
    python scripts/sweep.py --record     # writes docs/results/sweep.json

The trainings imitate a few demonstrations of the task reach. Ctrl-C is sent once a third of the runs is finished. Then
the same command goes on, the page is made, and one of the interrupted runs is compared with the same training without
an interruption.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write
from robopolicy.reporting.settings import read_members, runs_below
from robopolicy.reporting.sweep_figures import summarize
from robopolicy.runs.sweep_job import JOB, read_job

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = [sys.executable, "-m", "robopolicy.cli.main"]
TRAIN = ["task=reach", "policy=gaussian", "dataset=data", "loop.steps=1500", "loop.batch_size=64", "threads=1",
         "loop.eval_every=500", "loop.save_every=200", "validation_episodes=40", "tracker=local"]  # fmt: skip
SWEPT = ["algo.lr=3e-4,1e-3,3e-3", "n_action_steps=2,4", "seed=0,1"]
LAUNCHER = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
SWEEP = ["train", "--multirun", *TRAIN, *SWEPT, *LAUNCHER, "run_dir=sweep"]
RUNS, SETTINGS, SEEDS, LONGEST_S = 12, 6, 2, 3600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/sweep.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder))
    for name, value in found.items():
        print(f"{name}: {value}")
    if options.record:
        notes = {"interrupted_code": "exit code after Ctrl-C", "resumed_differs": "weights, against no interruption"}
        rows = [measured(id="sweep", setting="reach", metric=name, interval=value, notes=notes.get(name, ""))
                for name, value in found.items()]  # fmt: skip
        write(rows, root=ROOT / "docs" / "results", keep=False)
    wanted = {"runs_finished": RUNS, "settings_on_page": SETTINGS, "seeds_a_setting": SEEDS, "interrupted_code": 130,
              "done_again": 0, "resumed_differs": 0}  # fmt: skip
    return 0 if all(found[name] == value for name, value in wanted.items()) and found["runs_resumed"] else 1


def measure(folder: Path) -> dict[str, int]:
    """Carry out the sweep in `folder`; return the figures."""
    run(folder, ["demos", "task=reach", "episodes=20", "out=data"])
    code = interrupted(folder)
    states = {d.name: job.state for d in runs_below(folder / "sweep") if (job := read_job(d)) is not None}
    begun = {name for name, state in states.items() if state in ("interrupted", "begun") and weights(folder, name)}
    before = {name: stamp(folder, name) for name, state in states.items() if state == "finished"}
    run(folder, SWEEP)
    after = {d.name: job.state for d in runs_below(folder / "sweep") if (job := read_job(d)) is not None}
    run(folder, ["report", "run_dir=sweep"])
    figures = summarize(read_members(runs_below(folder / "sweep")))
    page = (folder / "sweep" / "report.html").read_text(encoding="utf-8")
    return {
        "interrupted_code": code,
        "finished_before": len(before),
        "runs_resumed": len(begun),
        "done_again": sum(stamp(folder, name) != kept for name, kept in before.items()),
        "runs_finished": Counter(after.values())["finished"],
        "settings_on_page": sum(f"<td>{setting.name}<td" in page for setting in figures.settings),
        "seeds_a_setting": min(setting.fewest for setting in figures.settings),
        "resumed_differs": sum(differs(folder, name) for name in sorted(begun)[:1]),
    }


def interrupted(folder: Path) -> int:
    """Start the sweep, send Ctrl-C once a third of its runs is finished; return its exit code."""
    process = subprocess.Popen([*PROGRAM, *SWEEP], cwd=folder, env=environment(), start_new_session=True)
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < LONGEST_S:
        jobs = [(d, job.state) for d in runs_below(folder / "sweep") if (job := read_job(d)) is not None]
        saved = any(state == "begun" and weights(folder, d.name) for d, state in jobs)
        if saved and sum(state == "finished" for _, state in jobs) >= RUNS // 3:
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            break
        time.sleep(0.2)
    return process.wait(LONGEST_S)


def differs(folder: Path, name: str) -> bool:
    """Train once more without an interruption, by the command that the run recorded; return whether weights differ."""
    recorded = json.loads((folder / "sweep" / name / "provenance.json").read_text(encoding="utf-8"))
    words = shlex.split(recorded["command"])
    run(folder, [*(word for word in words[1:] if not word.startswith("run_dir=")), "run_dir=alone"])
    return digest(folder / "alone") != digest(folder / "sweep" / name)


def digest(run_dir: Path) -> str:
    file = run_dir / "checkpoints" / (run_dir / "checkpoints" / "latest").read_text(encoding="utf-8").strip()
    return hashlib.sha256(b"".join(f.read_bytes() for f in sorted((file / "policy").glob("*.safetensors")))).hexdigest()


def weights(folder: Path, name: str) -> bool:
    return (folder / "sweep" / name / "checkpoints" / "latest").is_file()


def stamp(folder: Path, name: str) -> int:
    return (folder / "sweep" / name / JOB).stat().st_mtime_ns


def run(folder: Path, arguments: list[str]) -> None:
    subprocess.run([*PROGRAM, *arguments], cwd=folder, env=environment(), check=True)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(":")}


if __name__ == "__main__":
    sys.exit(main())
