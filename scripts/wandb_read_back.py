"""Trains every loop for seconds with wandb offline, and reads the runs back from their files by wandb's own reader.

    python scripts/wandb_read_back.py              # prints what is found of each loop
    python scripts/wandb_read_back.py --record     # writes docs/results/wandb_read_back.json

One of the trainings is interrupted and resumed: both files have to be of one run, and the newest has to hold all of it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write

ROOT = Path(__file__).resolve().parents[1]
TASK = ("task=reach", "task.horizon=40", "validation_episodes=4", "threads=1")
FEW = ("num_envs=4", "policy.finetuned_steps=2", "algo.epochs=1", "algo.minibatch=16", "algo.critic_warmup=1")
LOOPS: dict[str, tuple[str, ...]] = {
    "bc": ("policy=diffusion", "dataset=data", *TASK, "loop.steps=60", "loop.eval_every=20", "loop.batch_size=16"),
    "on_policy": ("algo=dppo", "base=bc", *TASK, *FEW, "loop.total_steps=960", "loop.rollout_steps=20",
                  "loop.eval_every=480"),
    "off_policy": ("algo=residual", "base=bc", "dataset=data", *TASK, "num_envs=4", "loop.total_steps=960",
                   "loop.warmup_steps=80", "loop.critic_only_updates=4", "loop.updates_per_step=0.1",
                   "loop.batch_size=16", "loop.eval_every=480"),
    "world_model": ("algo=world_model", "dataset=data", "threads=1", "loop.steps=60", "loop.batch_size=16",
                    "loop.success.min_positives=1", "loop.labelled=32", "loop.holdout=0.4"),
    "imagined": ("algo=dppo", "world=imagined", "world.model=world_model", "world.even_if_bad=true", "base=bc", *TASK,
                 *FEW, "loop.total_steps=960", "loop.rollout_steps=20", "loop.eval_every=480"),
    "resumed": ("policy=diffusion", "dataset=data", *TASK, "loop.steps=120", "loop.eval_every=40",
                "loop.save_every=10", "loop.batch_size=16"),
}  # fmt: skip
CURVE = {"world_model": "train/loss", "bc": "train/loss", "resumed": "train/loss"}  # of the others: train/success


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/wandb_read_back.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wandb") as name:
        folder = Path(name)
        train("demos", "task=reach", "task.horizon=40", "out=data", "episodes=40", "num_envs=4", folder=folder)
        found = {}
        for loop, keys in LOOPS.items():
            command = ("train", *keys, f"run_dir={loop}", "tracker=wandb", "tracker.group=read_back")
            if loop == "resumed":
                interrupt(*command, folder=folder, after=folder / loop / "metrics.jsonl")
            train(*command, folder=folder)
            found[loop] = facts(folder / loop, CURVE.get(loop, "train/success"))
            print(f"{loop}: " + ", ".join(f"{k} {v}" for k, v in found[loop].items()), flush=True)
    if options.record:
        rows = [measured(id="wandb_read_back", setting=loop, metric=metric, interval=value)
                for loop, values in found.items() for metric, value in values.items()]  # fmt: skip
        write(rows, root=ROOT / "docs" / "results", keep=False)
    return 0


def train(*arguments: str, folder: Path) -> None:
    """Run a command of ours in `folder`."""
    subprocess.run(called(arguments), cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)


def interrupt(*arguments: str, folder: Path, after: Path, lines: int = 8) -> None:
    """Run a command, and stop it by Ctrl-C once `after` has some lines."""
    process = subprocess.Popen(called(arguments), cwd=folder, env=environment(folder), stderr=subprocess.DEVNULL)
    while process.poll() is None and not (after.is_file() and len(after.read_text().splitlines()) >= lines):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    if (code := process.wait()) != 130:
        raise RuntimeError(f"the command ended with {code} before it was interrupted")


def called(arguments: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "robopolicy.cli.main", *arguments]


def environment(folder: Path) -> dict[str, str]:
    """The environment of a user without a login or a network."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_") and k != "NETRC"}
    return {**kept, "HOME": str(folder), "WANDB_BASE_URL": "http://127.0.0.1:9", "PYTHONPATH": str(ROOT)}


def facts(run_dir: Path, curve: str) -> dict[str, int]:
    """Counts of a run's parts in its files, and of what the newest file lacks of metrics.jsonl."""
    files = offline_files(run_dir)
    rows, config = history(files[-1:]), records(files[-1:], "run")[0].config.update
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    axis = "updates" if curve == "train/loss" else "env_steps"
    steps = {row[axis] for row in rows}
    return {
        "curve_points": sum(curve in row for row in rows),
        "evaluations": sum("eval/success_low" in row for row in rows),
        "films": sum(films(file) for file in files),
        "config_keys": len([update.key for update in config if update.key in ("seed", "loop", "tracker")]),
        "system_samples": len(records(files, "stats")),
        "steps_missing": len({line["step"] for line in lines} - steps),
        "ids": len({file.name for file in files}),
        "files": len(files),
    }


def films(file: Path) -> int:
    """Films of a run's file that are there."""
    found = [row[key] for row in history([file]) for key in row if key.startswith("films/")]
    return sum(f["_type"] == "video-file" and (file.parent / "files" / f["path"]).is_file() for f in found)


def offline_files(run_dir: Path) -> list[Path]:
    """Files of a run directory's offline runs, the oldest first."""
    return sorted(run_dir.glob("wandb/offline-run-*/run-*.wandb"))


def records(files: list[Path], kind: str) -> list[Any]:
    """Every record of a kind, read by wandb's own reader."""
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    found = []
    for path in files:
        store = DataStore()
        store.open_for_scan(str(path))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record.FromString(data)
            if record.WhichOneof("record_type") == kind:
                found.append(getattr(record, kind))
    return found


def history(files: list[Path]) -> list[dict[str, Any]]:
    """Rows of the curves. A film has several items, one a field."""
    rows = []
    for entry in records(files, "history"):
        rows.append(row := dict[str, Any]())
        for item in entry.item:
            *outer, last = item.nested_key or [item.key]
            inner = row
            for key in outer:
                inner = inner.setdefault(key, {})
            inner[last] = json.loads(item.value_json)
    return rows


if __name__ == "__main__":
    sys.exit(main())
