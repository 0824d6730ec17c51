"""A world model of pictures: its errors beside copying's, and a policy refined in it; rows of `image_world_model`.

    python scripts/image_world_model.py [--seeds 0 1 2] [--jobs 2] [--record] [loop.steps=6000 …]

As scripts/imagination.py, with a camera of 32 × 32 pixels that the base, the model and what is learned in it look
through, beside the state; and with a model small enough for minutes of one core. Overrides are of the model's training.

<task>/state, <task>/<camera>   error_ratio_20: open-loop error after 20 steps over copying the last one, on held-out
                                episodes that the model steps through with their actions and without seeing them
<task>/base, <task>/refined     success in truth, of the base and of DPPO in the model; and the difference
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.evaluation.compare import compare
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.utils.provenance import command
from scripts.experiment_plan import Base
from scripts.experiments import ROOT
from scripts.imagination import SEEDS, TRIALS, Arm, ImaginationTrial

ID, STEPS = "image_world_model", "20"
SEEN = Base(
    "reach", 20, 1.0,
    ("loop.steps=1500", "loop.batch_size=64",
     "policy.image_encoder={_target_: conv, _partial_: true, dims: [8,16,16]}"),
    "seen", options=("task.cameras=[front]", "task.image_size=[32,32]"), num_envs=32,
)  # fmt: skip
SMALL = (
    "world_model.units=128",
    "world_model.width=128",
    "world_model.unroll=12",
    "world_model.disagreement_heads=3",
    "loop.batch_size=8",
    "loop.labelled=32",
    "loop.holdout=0.25",
)


class Seen(ImaginationTrial):
    """A trial whose base, model and refined policy look through a camera."""

    label, kind, learning = "-seen", "algo=world_model_pictures", ("loop.total_steps=200000",)
    about = SMALL

    def errors(self) -> Iterator[tuple[str, float, str]]:
        """Of what the model says of itself: setting, ratio to copying, and both errors."""
        newest = Checkpointer(self.folder / "world").latest_path()
        assert newest is not None
        report: dict[str, Any] = json.loads((newest / "model" / "report.json").read_text())
        state = {name: report["open_loop"][STEPS][name] for name in ("model", "linear", "copy_last")}
        notes = ", ".join(f"{name} {error:.3f}" for name, error in state.items())
        outcome = report["success"]
        success = f"success: precision {outcome['precision']:.2f}, recall {outcome['recall']:.2f}"
        yield "state", state["model"] / state["copy_last"], f"deviations: {notes}; {success}"
        for key, errors in report["pictures"].items():
            found = {name: errors[STEPS][name] for name in ("model", "copy_last")}
            notes = ", ".join(f"{name} {e['psnr']:.1f} dB" for name, e in found.items())
            yield key.rpartition(".")[2], found["model"]["mse"] / found["copy_last"]["mse"], notes


def evidence(trials: dict[int, tuple[Seen, Arm]]) -> Iterator[Evidence]:
    """The model's errors, success before and after, and what pools the seeds."""
    rates: dict[str, list[Evidence]] = {}
    for seed, (trial, arm) in trials.items():
        task, about = trial.base.task, f"{arm.frames:,} transitions"
        made: dict[str, Any] = {"id": ID, "commit": arm.commit}
        for name, ratio, notes in trial.errors():
            yield measured(setting=f"{task}/{name}", metric=f"error_ratio_{STEPS}", interval=ratio, seeds=seed,
                           notes=f"{notes}; {about}", **made)  # fmt: skip
        for name, rows in (("base", arm.base), ("refined", arm.true)):
            wall = round(arm.wall_s, 1) if name == "refined" and arm.wall_s else None
            row = of_rows(rows, setting=f"{task}/{name}", seed=seed, command=command(), env_steps=0, wall_s=wall,
                          notes=about, **made)  # fmt: skip
            rates.setdefault(name, []).append(row)
            yield row
        both = compare(arm.base, arm.true, names=("base", "refined"))
        notes = f"McNemar p = {both.p_value:.1e}" + (f", imagined {arm.imagined.summary()}" if arm.imagined else "")
        yield measured(setting=f"{task}/refined", metric="difference", interval=both.difference, seeds=seed,
                       episodes=both.pairs.total, notes=notes, **made)  # fmt: skip
    yield from (pooled(rows) for rows in rates.values() if {row.seeds for row in rows} == set(SEEDS))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--out", type=Path, default=Path("runs/image_world_model"))
    parser.add_argument("--episodes", type=int, default=600, help="of the base with noise, for the model")
    parser.add_argument("--spread", type=float, default=0.1, help="the largest noise of these, in action limits")
    parser.add_argument("--model-steps", type=int, default=3_000, help="of training the model")
    parser.add_argument("--jobs", type=int, default=2, help="training seeds at a time")
    parser.add_argument("--record", action="store_true", help="write docs/results")
    options = parser.parse_args(arguments)
    options.arms, options.even_if_bad = ["dppo"], True
    if options.record and max(options.seeds) >= TRIALS:
        parser.error(f"--seeds: those from {TRIALS} on are trials, never recorded")
    trials = [Seen(options, SEEN, seed, about=tuple(options.overrides)) for seed in options.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = list(pool.map(lambda trial: (trial, trial.run()["dppo"]), trials))
    rows = list(evidence({trial.seed: (trial, arm) for trial, arm in found}))
    for row in rows:
        print(json.dumps({k: getattr(row, k) for k in ("setting", "metric", "value", "low", "high", "seeds", "notes")}))
    if options.record:
        write(rows, root=ROOT / "docs" / "results", keep=set(options.seeds) != set(SEEDS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
