"""Open-loop errors of a world model of pictures beside copying the last frame, as rows of `image_world_model`.

    python scripts/image_world_model.py [--task push] [--seeds 0 1 2] [--record] [loop.steps=6000 …]

For every training seed: 300 episodes of an imperfect expert with a camera of 32 × 32, and a recurrent latent model of
them, small enough for minutes of one core. The errors are those that training ends with, on held-out episodes that the
model steps through with their actions and without seeing them: of the state in deviations, of pictures squared.
Stages that are done are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.checkpoint import Checkpointer
from robopolicy.data.meta import recorded
from robopolicy.evaluate.evidence import Evidence, measured, write
from scripts.experiments import ROOT, robopolicy

ID, STEPS = "image_world_model", "20"
SMALL = (
    "world_model.units=128",
    "world_model.width=128",
    "world_model.unroll=12",
    "world_model.doubters=3",
    "loop.batch_size=8",
    "loop.labelled=16",
    "loop.holdout=0.3",
)


def measure(task: str, seed: int, out: Path, overrides: list[str]) -> Iterator[Evidence]:
    """Train the model of one seed; its rows."""
    folder = out.resolve() / f"{task}-{seed}"
    data, run, log = folder / "data", folder / "model", folder / "log.txt"
    cameras = (f"task={task}", "task.cameras=[front]", "task.image_size=[32,32]")
    if recorded(data) != "whole":
        robopolicy("demos", *cameras, f"out={data}", "only_success=false", "episodes=300", "imperfection=0.5",
                   f"seed={seed}", "overwrite=true", threads=1, log=log)  # fmt: skip
    began, fresh = time.perf_counter(), Checkpointer(run).latest_path() is None
    robopolicy("train", "algo=world_model_pictures", f"run_dir={run}", f"dataset={data}", f"seed={seed}", "threads=1",
               "tracker=local", *SMALL, *overrides, threads=1, log=log)  # fmt: skip
    seconds = round(time.perf_counter() - began, 1) if fresh else None
    newest = Checkpointer(run).latest_path()
    assert newest is not None
    report = json.loads((newest / "model" / "report.json").read_text())
    state = {name: report["open_loop"][STEPS][name] for name in ("model", "linear", "copy_last")}
    notes = ", ".join(f"{name} {error:.3f}" for name, error in state.items())
    success = f"success: precision {report['success']['precision']:.2f}, recall {report['success']['recall']:.2f}"
    yield measured(id=ID, setting=f"{task}/state", metric=f"error_ratio_{STEPS}", seeds=seed, wall_s=seconds,
                   interval=state["model"] / state["copy_last"], notes=f"deviations: {notes}; {success}")  # fmt: skip
    for key, errors in report["pictures"].items():
        found = {name: errors[STEPS][name] for name in ("model", "copy_last")}
        notes = ", ".join(f"{name} {e['psnr']:.1f} dB" for name, e in found.items())
        yield measured(id=ID, setting=f"{task}/{key.rpartition('.')[2]}", metric=f"error_ratio_{STEPS}", seeds=seed,
                       interval=found["model"]["mse"] / found["copy_last"]["mse"], notes=notes,
                       wall_s=seconds)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--task", default="push")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/image_world_model"))
    parser.add_argument("--record", action="store_true", help="write docs/results")
    options = parser.parse_args()
    for seed in options.seeds:
        rows = list(measure(options.task, seed, options.out, options.overrides))
        for row in rows:
            print(
                json.dumps({k: getattr(row, k) for k in ("setting", "metric", "value", "seeds", "notes")}), flush=True
            )
        if options.record:
            write(rows, root=ROOT / "docs" / "results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
