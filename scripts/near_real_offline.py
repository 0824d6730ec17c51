"""One policy chosen offline from recorded episodes as real robots give them, beside the policy that recorded them.

    python scripts/near_real_offline.py [--recipes delayed cautious] [--seeds 0 1 2] [--model] [--record]

Recipes are in scripts/near_real_offline.yaml. From 300 recorded episodes, failures too, and without an env step:

  imitation   behaviour cloning of demonstrations and of the episodes that succeeded
  offline     algo=offline on the base
  model       with --model: algo=dppo in that world model; no row where it fails
  chosen      of imitation and offline the one that `robopolicy gate` accepts with the larger gain; else the base. It
              asks a world model of the episodes and demonstrations; where these do not make one, fitted Q evaluation of
              the quarter of the episodes that is held out

`data` is the policy that recorded: the base on the same test episodes, or the success of the recorded episodes
themselves where others than the base played. `difference` is that of `chosen` to it. Stages that are done are not
repeated. Training seeds of 100 and above are trials: evaluated on validation episodes, never recorded.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from omegaconf import OmegaConf
from pydantic import ConfigDict, TypeAdapter

from robopolicy.cli.pipeline_gate import MODEL, unusable
from robopolicy.datasets.metadata import RecordingMeta, recorded
from robopolicy.evaluation.compare import compare
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval, unpaired_difference, wilson
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from robopolicy.utils.provenance import command
from scripts.experiment_plan import Words
from scripts.experiments import ROOT, finished, robopolicy

ID, FILE = "near_real_offline", Path(__file__).with_suffix(".yaml")
SEEDS, TRIALS = (0, 1, 2), 100
ROLLOUTS, EPISODES, HELD_OUT = 300, 500, 0.25
JUDGED = ("imitation", "offline")


@dataclass(frozen=True)
class Recipe:
    """How demonstrations and rollouts are recorded, and what is deployed on; see the file."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    task: str
    demos: int
    teacher: Words
    players: tuple[Words, ...] = ()
    taught: Words = ()
    recorded: Words = ()
    wider: Words = ()

    @property
    def deployed(self) -> Words:
        return (f"task={self.task}", *(self.wider or self.recorded))


@dataclass(frozen=True)
class Outcome:
    """What one recipe and training seed gave: success of every policy, and of the chosen one the difference."""

    data: Interval
    policies: dict[str, EpisodeTable]
    chosen: str
    difference: Interval
    gates: str  # gain and lower bound of each


RECIPES = TypeAdapter(dict[str, Recipe]).validate_python(OmegaConf.to_container(OmegaConf.load(FILE)))


class Study:
    """The stages of one recipe and training seed, in `folder`."""

    def __init__(self, folder: Path, recipe: Recipe, seed: int, *, model: bool) -> None:
        self.folder, self.recipe, self.seed, self.model = folder, recipe, seed, model
        self.demos, self.base = folder / "demos", folder / "base"
        count = max(1, len(recipe.players))
        self.rollouts = [folder / f"rollouts_{n}" for n in range(count)]
        self.learned_from = [f"loop.rollouts.own_{n}={path}" for n, path in enumerate(self.rollouts)]

    def run(self) -> Outcome:
        self.record(self.demos, self.recipe.demos, *self.recipe.taught, *self.recipe.teacher)
        self.train("base", "algo=bc", "loop.steps=3000", f"dataset={self.demos}")
        player = ("expert._target_=policy", f"expert.checkpoint={self.base}")
        for out, words in zip(self.rollouts, self.recipe.players or (player,), strict=True):
            each = ROLLOUTS // len(self.rollouts)
            self.record(out, each, "only_success=false", *self.recipe.recorded, *words, seed=self.seed + 1_000)
        self.learn()
        names = ("base", *JUDGED, *(["model"] if self.model else []))
        found = {name: self.evaluate(name) for name in names if (self.folder / name / "checkpoints").is_dir()}
        chosen, gates = self.choose()
        if not self.recipe.players:
            data, pairs = found["base"].success_rate(), compare(found["base"], found[chosen])
            return Outcome(data, found, chosen, pairs.difference, gates)
        facts = [RecordingMeta.load(path).provenance for path in self.rollouts]
        data = wilson(sum(f["successes"] for f in facts), sum(f["attempted"] for f in facts))
        return Outcome(data, found, chosen, unpaired_difference(data, found[chosen].success_rate()), gates)

    def learn(self) -> None:
        """Train imitation, offline, and where asked for in a world model, from the same episodes."""
        own = (f"dataset={self.demos}", *self.learned_from, f"loop.held_out={HELD_OUT}")
        self.train("imitation", "algo=bc", "loop.steps=3000", *own)
        self.train("offline", "algo=offline", f"base={self.base}", *own)
        more = [f"loop.data.more_{n}={path}" for n, path in enumerate((*self.rollouts[1:], self.demos))]
        dream = ("world=imagined", f"world.model={self.folder / 'world'}")
        try:
            self.train("world", *MODEL, f"dataset={self.rollouts[0]}", *more)
            if self.model:
                self.train("model", *self.recipe.deployed, "algo=dppo", f"base={self.base}", *dream)
        except subprocess.CalledProcessError:  # its last lines were shown: refused, or an error
            print(f"{self.folder.name}: no world model, or no policy of it: see {self.folder.name}/log.txt", flush=True)

    def choose(self) -> tuple[str, str]:
        """Return the accepted policy of the largest estimated gain, else the base; and what the gate said."""
        world = self.folder / "world"
        asked = "fitted_q" if not (world / "checkpoints").is_dir() or unusable(world) else "world_model"
        more = [f"rollouts.more_{n}={path}" for n, path in enumerate(self.rollouts[1:])]
        data = {
            "fitted_q": (f"dataset={self.rollouts[0]}", *more),
            "world_model": ("world=imagined", f"world.model={world}"),
        }
        found = {}
        for name in JUDGED:
            out = self.folder / f"gate_{name}_{asked}"
            if not (out / "decision.json").is_file():
                self.call("gate", f"candidate={self.folder / name}", f"base={self.base}", f"out={out}", "threads=1",
                          *data[asked])  # fmt: skip
            found[name] = json.loads((out / "decision.json").read_text())
        accepted = {name: gate["gain"] for name, gate in found.items() if gate["accepted"]}
        said = ", ".join(f"{name} {gate['gain']:+.3f} (from {gate['low']:+.3f})" for name, gate in found.items())
        return max(accepted, key=accepted.__getitem__, default="base"), f"{asked}: {said}"

    def record(self, out: Path, episodes: int, *words: str, seed: int | None = None) -> None:
        if recorded(out) != "whole":
            self.call("demos", f"task={self.recipe.task}", f"out={out}", f"episodes={episodes}", "overwrite=true",
                      f"seed={self.seed if seed is None else seed}", "threads=1", *words)  # fmt: skip

    def train(self, name: str, *words: str) -> None:
        self.call("train", f"run_dir={self.folder / name}", f"seed={self.seed}", "tracker=local", "threads=1", *words)

    def evaluate(self, name: str) -> EpisodeTable:
        trial = self.seed >= TRIALS
        rows = self.folder / name / f"episodes{'-validation' if trial else ''}.csv"
        if not finished(rows, self.folder / name):
            self.call("eval", f"checkpoint={self.folder / name}", *self.recipe.deployed, f"episodes={EPISODES}",
                      f"split={'validation' if trial else 'test'}", "videos=0", "threads=1")  # fmt: skip
        return EpisodeTable.load(rows)

    def call(self, *words: str) -> None:
        robopolicy(*words, threads=1, log=self.folder / "log.txt")


def rows_of(name: str, seed: int, found: Outcome) -> Iterator[Evidence]:
    """Return the success of every policy, and the difference of the chosen one to the data."""
    about = f"{ROLLOUTS} recorded episodes"
    if RECIPES[name].players:
        yield measured(id=ID, setting=f"{name}/data", metric="success_rate", interval=found.data, seeds=seed,
                       episodes=ROLLOUTS, notes="of the recorded episodes")  # fmt: skip
    for policy, rows in found.policies.items():
        yield of_rows(rows, id=ID, setting=f"{name}/{policy}", seed=seed, command=command(), notes=about)
    yield of_rows(found.policies[found.chosen], id=ID, setting=f"{name}/chosen", seed=seed, command=command(),
                  notes=f"{found.chosen}; gains by the gate: {found.gates}")  # fmt: skip
    yield measured(id=ID, setting=f"{name}/chosen", metric="difference", interval=found.difference, seeds=seed,
                   episodes=EPISODES, notes=f"{found.chosen}, to the policy that recorded")  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS), help="training seeds")
    parser.add_argument("--model", action="store_true", help="with the policy of a world model")
    parser.add_argument("--record", action="store_true", help="write into docs/results")
    options = parser.parse_args(arguments)
    if options.record and max(options.seeds) >= TRIALS:
        parser.error(f"--seeds: those from {TRIALS} on are trials, never recorded")
    found = list[Evidence]()
    for seed in options.seeds:
        for name in options.recipes:
            folder = options.out.resolve() / ID / f"{name}-{seed}"
            rows = list(rows_of(name, seed, Study(folder, RECIPES[name], seed, model=options.model).run()))
            for row in rows:
                shown = {k: getattr(row, k) for k in ("setting", "metric", "value", "seeds", "notes")}
                print(json.dumps(shown, ensure_ascii=False), flush=True)
            found += rows
    rates = [row for row in found if row.metric == "success_rate"]
    by_setting = {s: [row for row in rates if row.setting == s] for s in dict.fromkeys(row.setting for row in rates)}
    found += [pooled(rows) for rows in by_setting.values() if {row.seeds for row in rows} == set(SEEDS)]
    if options.record:
        write(found, root=ROOT / "docs" / "results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
