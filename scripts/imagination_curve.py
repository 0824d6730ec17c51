"""True success against how many transitions were recorded: imagination beside the model-free learner.

    python scripts/imagination_curve.py [--task pick] [--data narrow broad] [--sizes 2000 5000 20000] [--record]

As scripts/imagination.py, with its bases and its arms `dppo` and `model_free`, on about `size` transitions in all. Up
to half of these are demonstrations, the first of those that the base was cloned from; the rest are episodes of the
base, as it is (narrow) or with more and less noise (broad). A success classifier of few episodes has few to be judged
on: of so little data it is trained with fewer successes than is the default, and what it then says is used all the
same (`world.even_if_bad`), or nothing could be compared. Rows of `imagination_data_curve`; of rounds and
`control`, of `coevolution`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.compare import compare
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from robopolicy.utils.provenance import command
from scripts.experiments import ROOT
from scripts.imagination import ARMS, BASES, IDS, SEEDS, TRIALS, Arm, ImaginationTrial, frames_of

ID = "imagination_data_curve"
LENGTH = {"pick": 64, "reach": 36}  # frames of an episode of a base, about
FEW = ("loop.holdout=0.3", "loop.success.min_positives=8")


class Sized(ImaginationTrial):
    """A trial on data of one kind and size."""

    about = FEW

    def __init__(self, options: argparse.Namespace, data: str, size: int, seed: int) -> None:
        self.data, self.size, self.label = data, size, f"-{data}-{size}"
        super().__init__(options, BASES[options.task], seed)

    def record(self) -> tuple[Path, Path]:
        demos, all_demos = self.folder / "demos", self.start / "data"
        each = frames_of(all_demos) / self.base.demos
        count = min(self.base.demos, round(self.size / 2 / each))
        if recorded(demos) != "whole":
            self.call("demos", f"out={demos}", f"episodes={count}", f"seed={self.seed}", "overwrite=true",
                      f"expert_noise={self.base.expert_noise}")  # fmt: skip
        left = self.size - frames_of(demos)
        spread = {"narrow": 0.0, "broad": self.options.spread}[self.data]
        return self.episodes_of_base(max(1, round(left / LENGTH[self.base.task])), spread), demos


def evidence(found: dict[tuple[str, int, int], dict[str, Arm]], task: str) -> Iterator[Evidence]:
    """Rates and paired differences to the base for every arm, kind, size and seed, and what pools the seeds."""
    rates: dict[str, list[Evidence]] = {}
    for (data, size, seed), arms in found.items():
        for name, arm in arms.items():
            id, frames = IDS.get(name, ID), f"{arm.frames:,} transitions"
            setting = f"{task}/{data}/{size}/{'refined' if name == 'rounds' else name}"
            wall = round(arm.wall_s, 1) if arm.wall_s else None
            row = of_rows(arm.true, id=id, setting=setting, seed=seed, commit=arm.commit, command=command(),
                          env_steps=arm.env_steps, wall_s=wall, notes=frames)  # fmt: skip
            rates.setdefault(setting, []).append(row)
            both = compare(arm.base, arm.true, names=("base", name))
            gain = measured(id=id, setting=setting, metric="difference", interval=both.difference, seeds=seed,
                            episodes=both.pairs.total, commit=arm.commit, notes=frames)  # fmt: skip
            yield from (row, gain)
    yield from (pooled(rows) for rows in rates.values() if {row.seeds for row in rows} == set(SEEDS))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/imagination"))
    parser.add_argument("--task", choices=LENGTH, default="pick")
    parser.add_argument("--data", nargs="+", choices=["narrow", "broad"], default=["narrow", "broad"])
    parser.add_argument("--sizes", type=int, nargs="+", default=[2_000, 5_000, 20_000])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--arms", nargs="+", choices=sorted({*ARMS} - {"real"}), default=["dppo", "model_free"])
    parser.add_argument("--spread", type=float, default=0.25, help="the largest noise of `broad`, in action limits")
    parser.add_argument("--model-steps", type=int, default=4_000, help="of training the model")
    parser.add_argument("--jobs", type=int, default=2, help="training seeds at a time")
    parser.add_argument("--record", action="store_true", help="write docs/results")
    options = parser.parse_args(arguments)
    options.even_if_bad = True
    if options.record and max(options.seeds) >= TRIALS:
        parser.error(f"--seeds: those from {TRIALS} on are trials, never recorded")
    kinds = [(data, size) for size in options.sizes for data in options.data]

    def of(seed: int) -> dict[tuple[str, int, int], dict[str, Arm]]:
        """One after another: they share a base. One that is refused, e.g. by the gate, is left out."""
        done = {}
        for kind in kinds:
            try:
                done[(*kind, seed)] = Sized(options, *kind, seed).run()
            except subprocess.CalledProcessError:  # its last line is in the trial's log
                print(f"{options.task}, {kind}, seed {seed}: failed, see its log.txt", file=sys.stderr, flush=True)
        return done

    with ThreadPoolExecutor(options.jobs) as pool:
        found = {key: arms for trials in pool.map(of, options.seeds) for key, arms in trials.items()}
    rows = list(evidence(found, options.task))
    for row in rows:
        print(json.dumps({k: getattr(row, k) for k in ("id", "setting", "metric", "value", "low", "high", "seeds")}))
    if options.record:
        write(rows, root=ROOT / "docs" / "results")
    return int(len(found) < len(kinds) * len(options.seeds))


if __name__ == "__main__":
    sys.exit(main())
