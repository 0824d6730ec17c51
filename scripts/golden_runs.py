"""Trains, deploys and resumes small, and compares metrics, weights and safety decisions with an earlier run of it.

    python scripts/golden_runs.py --out golden.json                      # about ten minutes of two cores
    python scripts/golden_runs.py --out now.json --against golden.json   # exits with 1 if anything differs
    python scripts/golden_runs.py --only bc residual --out now.json --against golden.json
    python scripts/golden_runs.py --against golden.json --out now.json --record   # writes docs/results/house_same.json

A change that only moves or renames code must leave all of it the same to the digit. Weights are compared by the
SHA-256 of each tensor's bytes, without its name; metrics by value, without those that measure time.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from safetensors import safe_open

from robopolicy.reporting.result_rows import Evidence, measured, write

ROOT = Path(__file__).resolve().parents[1]
QUIET = ("tracker=quiet", "threads=1")
TABLETOP = ("task=tabletop", "task.cameras=[front]", "task.image_size=[32,32]")
PICK = ("task=pick",)
SHORT = ("num_envs=16", "validation_episodes=20", "loop.log_every=200")
RESIDUAL = ("train", "algo=residual", *PICK, "base=bc", "dataset=demos", *SHORT, "loop.total_steps=4_000",
            "loop.warmup_steps=1_000", "loop.critic_only_updates=100", "loop.save_every=1_000", *QUIET)  # fmt: skip
RUNS: dict[str, tuple[tuple[str, ...], ...]] = {
    "bc": (
        ("demos", *PICK, "out=demos", "episodes=40", "expert_noise=1.0"),
        ("train", "algo=bc", "dataset=demos", *PICK, "run_dir=bc", "loop.steps=400", *QUIET),
    ),
    "residual": ((*RESIDUAL, "run_dir=residual"),),
    "dppo": (
        ("train", "algo=dppo", *PICK, "base=bc", "run_dir=dppo", "num_envs=16", "validation_episodes=20",
         "loop.total_steps=20_000", "loop.save_every=10_000", *QUIET),
    ),
    "pixels": (
        ("demos", *PICK, "task.cameras=[front]", "task.image_size=[48,48]", "out=seen", "episodes=20"),
        ("train", "algo=bc", "dataset=seen", "run_dir=pixels", "loop.steps=60", "loop.batch_size=32",
         "loop.log_every=10", *QUIET),
    ),
    "vla": (
        ("demos", *TABLETOP, "out=tabletop", "episodes=42", "expert_noise=0.5"),
        ("train", "algo=bc", "policy=vla", "dataset=tabletop", "run_dir=vla", "loop.steps=60", "loop.batch_size=16",
         "loop.log_every=10", *QUIET),
        ("train", "algo=grpo", "base=vla", *TABLETOP, "run_dir=grpo", "num_envs=16", "validation_episodes=16",
         "loop.total_steps=4_000", "algo.epochs=1", "algo.minibatch=64", *QUIET),
    ),
    "imagined": (
        ("demos", *PICK, "out=around", "only_success=false", "episodes=60", "expert_noise=0.25", "seed=101"),
        ("train", "algo=world_model", "run_dir=world", "dataset=around", "loop.steps=300",
         "loop.success.min_positives=1", "loop.labelled=32", *QUIET),
        ("train", "algo=dppo", "world=imagined", "world.model=world", "world.even_if_bad=true", "base=bc", *PICK,
         "run_dir=dreamt", "num_envs=16", "validation_episodes=16", "loop.total_steps=10_000", *QUIET),
    ),
    "deployed": (
        ("deploy", "checkpoint=residual", "episodes=2", "record=recorded"),
        ("replay", "recording=recorded"),
    ),
}  # fmt: skip
AFTER = {"residual": ("bc",), "dppo": ("bc",), "imagined": ("bc",), "deployed": ("bc", "residual"),
         "killed": ("bc", "residual")}  # fmt: skip
NAMES = (*RUNS, "quickstart", "killed")
TIME = ("_s", "seconds")  # ends of the names of metrics that measure this machine
RENAMED = {"doubt": "uncertainty", "doubted": "uncertain"}  # last parts of metrics' names: before → now


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--against", type=Path, help="JSON file of an earlier run to compare with")
    parser.add_argument("--record", action="store_true", help="write docs/results/house_same.json")
    options = parser.parse_args()
    if options.record and (options.against is None or set(options.only) != set(NAMES)):
        parser.error("--record: give --against, and leave --only out")
    wanted = {*options.only, *(n for name in options.only for n in AFTER.get(name, ()))}
    with tempfile.TemporaryDirectory(prefix="golden") as folder:
        found = {name: run(name, Path(folder)) for name in NAMES if name in wanted}
    options.out.write_text(json.dumps(found, indent=1, sort_keys=True))
    if options.against is None:
        return 0
    before = json.loads(options.against.read_text())
    before = renamed(before)
    differ = {name: differences(before[name], found[name]) for name in found}
    for name, where in differ.items():
        print(f"{name}: {'the same' if not where else f'{len(where)} differ'}", *where[:10], sep="\n    ")
    if options.record:
        write(rows(before, differ), root=ROOT / "docs" / "results")
    return int(any(differ.values()))


def rows(before: dict[str, Any], differ: dict[str, list[str]]) -> list[Evidence]:
    """Results: tables of episodes are counted apart, since each row names the version of the code."""
    found = []
    for name, where in differ.items():
        tables = [w for w in where if "/tables/" in w]
        note = f"of {len(flat(before[name]))} values"
        for metric, count in (("differing_values", len(where) - len(tables)), ("differing_tables", len(tables))):
            row = measured(id="house_same", setting=name, metric=metric, interval=count, notes=note)
            found.append(
                replace(row, command="python scripts/golden_runs.py --out now.json --against before.json --record")
            )
    return found


def run(name: str, folder: Path) -> dict[str, Any]:
    """The values of one run; `folder` holds what those before it made."""
    began, said = time.monotonic(), list[str]()
    before = set(folder.iterdir())
    if name == "quickstart":
        call(folder, "quickstart", "out=quickstart", "tracker=quiet")
    elif name == "killed":
        killed(folder)
    else:
        said = [line for command in RUNS[name] for line in call(folder, *command).splitlines()]
    found = {p.relative_to(folder).as_posix(): values(p) for p in sorted(folder.iterdir()) if p not in before}
    if name == "deployed":  # success, reasons and counts of every decision, and that the replay agrees
        found["said"] = [line for line in said if line.startswith(("success", "control steps", "commands", "episode"))]
    if name == "killed":
        found["not_as_uninterrupted"] = differences(values(folder / "residual")["weights"], found["killed"]["weights"])
    print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
    return found


def call(folder: Path, *command: str) -> str:
    """Run a command of ours; return what it printed."""
    done = subprocess.run([*ROBOPOLICY, *command], cwd=folder, env=ENV, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def killed(folder: Path) -> None:
    """The residual again, ended by SIGKILL after its second checkpoint and resumed."""
    command = (*RESIDUAL, "run_dir=killed")
    process = subprocess.Popen([*ROBOPOLICY, *command], cwd=folder, env=ENV, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)  # fmt: skip
    while len(list((folder / "killed").glob("checkpoints/step_*"))) < 2:
        if process.poll() is not None:
            sys.exit("killed: ended before its second checkpoint")
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    call(folder, *command)


def values(path: Path) -> dict[str, Any]:
    """Metrics by step, hashes of tensors and of recorded tables under `path`."""
    metrics: dict[str, Any] = {}
    for file in sorted(path.rglob("metrics.jsonl")):
        for line in file.read_text().splitlines():
            row = json.loads(line)
            step = row.pop("step")
            kept = {k: v for k, v in row.items() if not k.endswith(TIME)}
            metrics.setdefault(f"{file.parent.relative_to(path)}:{step}", {}).update(kept)
    weights = {f.relative_to(path).as_posix(): tensors(f) for f in sorted(path.rglob("*.safetensors"))}
    tables = {f.relative_to(path).as_posix(): digest(f) for f in sorted(path.rglob("*.csv"))}
    arrays = {f.relative_to(path).as_posix(): digest(f) for f in sorted(path.rglob("data/*/*.parquet"))}
    return {"metrics": metrics, "weights": weights, "tables": tables, "arrays": arrays}


def tensors(file: Path) -> list[str]:
    with safe_open(file, "pt") as opened:
        return sorted(hashlib.sha256(opened.get_tensor(k).contiguous().view(-1).numpy().tobytes()).hexdigest()[:16]
                      for k in opened.keys())  # noqa: SIM118  # fmt: skip


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def flat(value: Any, at: str = "") -> dict[str, Any]:
    if isinstance(value, dict):
        return {k: v for key, child in value.items() for k, v in flat(child, f"{at}/{key}").items()}
    if isinstance(value, list):
        return {k: v for n, child in enumerate(value) for k, v in flat(child, f"{at}/{n}").items()}
    return {at: value}


def renamed(values: Any) -> Any:
    """Values with the names that metrics have now, without those that measure time."""
    if not isinstance(values, dict):
        return values
    found = {}
    for key, value in values.items():
        *parts, last = key.split("/")
        if not (key.startswith("train/") and last.endswith(TIME)):
            found["/".join([*parts, RENAMED.get(last, last)])] = renamed(value)
    return found


def differences(before: Any, now: Any) -> list[str]:
    a, b = flat(before), flat(now)
    gone = object()
    return sorted(f"{k}: {a.get(k, 'absent')} → {b.get(k, 'absent')}" for k in {**a, **b}
                  if a.get(k, gone) != b.get(k, gone))  # fmt: skip


ROBOPOLICY = (sys.executable, "-m", "robopolicy")
ENV = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

if __name__ == "__main__":
    sys.exit(main())
