"""Refinement in imagination, the model-free learner on the same transitions, and how far imagination was right.

    python scripts/imagination.py [--tasks reach] [--seeds 0 1 2] [--arms dppo residual …] [--jobs 2] [--record]
        [--world-model chunk_transformer world_model.precision=bfloat16 …]

For every task and training seed, in <out>/<task>-<seed>: a base by imitation, episodes of it with more and less noise,
a world model of these and of the demonstrations, and from there, without a further step of the task:

  dppo        algo=dppo in imagination, anchored to the base, behind the gate
  free        the same without anchor and gate
  loose       the same with an anchor of 0.003, and three rollouts of critic warm-up where `dppo` and `free` have one
  residual    algo=residual in imagination, of small scale; no real transition in any batch
  wide        the same with the full scale, a penalty of 0.3, and half as long; its rows up to 2026-11-23 were made by
              the arm `residual` of then
  mixed       as `wide`, with half of each batch from the recorded transitions
  model_free  algo=residual on the recorded transitions themselves (world=recorded, half of each batch
              demonstrations): those that the model was trained on, its held-out part too
  real        algo=dppo on the task itself, for the env steps that it needs to be as good as `dppo`
  branched    as `mixed`, with imagined episodes of 10 steps that begin in any recorded state
  branched_ungated  the same without the gate, which with few held-out starts refuses what it cannot be sure of
  branched_alone    as `branched`, no real transition in any batch
  rounds      algo=residual in four rounds of imagination, each with up to 30 real episodes to refit the model on,
              5,000 env steps in all; half of each batch recorded transitions, a quarter those of the rounds before
  branched_rounds   as `branched_ungated` in up to six rounds of 15 real episodes, 5,000 env steps in all; three in a
              row in which the refitted model is wrong end them
  control     algo=residual on the task itself for 5,000 env steps, half of each batch recorded transitions

Each result is evaluated on the task's test episodes; what was learned in imagination also in imagination, from starts
that the model was not trained on, where an episode that ends in uncertainty is a failure. Rows of `imagined_dppo`, and
of `coevolution` for rounds and `control`; of `imagination_gap`: |imagined − true|, its interval from Newcombe's for two
unpaired rates; of `imagination_real_steps`: the first evaluation of `real`, on validation episodes, that is as good as
`dppo`, over the transitions of the model. Stages that are done are not repeated. With `--world-model` another kind of
model takes the ensemble's place, in folders of its own; its rows are <arm>_<kind>. Overrides are of the model's
training. Training seeds of 100 and above are trials: evaluated on validation episodes and never recorded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.compare import compare
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval, unpaired_difference
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from robopolicy.utils.provenance import command
from scripts.experiment_plan import EXPERIMENTS, Base
from scripts.experiments import ROOT, envs_of, policy_of, robopolicy, task_of, train_base

SEEDS = (0, 1, 2)  # a pool is made only of all of them
TRIALS = 100  # training seeds from here on
ENSEMBLE, CHUNKS = "ensemble", "chunk_transformer"  # kinds of models; all else was recorded with the first
ONE = "algo.critic_warmup=1"  # rollout, with which `dppo` and `free` were recorded; the default has become 3
# Nothing but a penalty holds a residual of full range to the base, and it finds where the model errs sooner.
EARLIER = "experiment=residual_earlier_fast"
HELD = (EARLIER, "algo.penalty_final=0.3")
NONE = "loop.demo_fraction=0"  # of a batch is recorded
BRANCHED = (*HELD, "world.branch=10")
IMAGINED = {
    "dppo": ("algo=dppo", ONE),
    "loose": ("algo=dppo", "algo.anchor=0.003"),
    "free": ("algo=dppo", ONE, "algo.anchor=0", "world.gate=null"),
    "residual": (EARLIER, "policy.scale=0.1", "loop.total_steps=60000", NONE),
    "wide": (*HELD, NONE),
    "mixed": HELD,
    "branched": BRANCHED,
    "branched_ungated": (*BRANCHED, "world.gate=null"),
    "branched_alone": (*BRANCHED, NONE),
    "rounds": (*HELD, "rounds=4", "coevolve.episodes=30", "coevolve.refit_steps=1500"),
    "branched_rounds": (
        *(*BRANCHED, "world.gate=null", "rounds=6"),
        *("coevolve.episodes=15", "coevolve.refit_steps=1500", "coevolve.patience=3"),
    ),
}
DREAMT = [arm for arm in IMAGINED if "rounds" not in arm]  # evaluated in imagination too
IDS = {**dict.fromkeys(("rounds", "branched_rounds", "control"), "coevolution"), "real": "imagination_real_steps"}
LEARNED = {  # without a model
    "model_free": (EARLIER, "loop.total_steps=100000"),
    "real": ("algo=dppo", "loop.eval_every=20480", "loop.total_steps=204800", "validation_episodes=200"),
    "control": (EARLIER, "loop.total_steps=5000", "loop.warmup_steps=1000", "loop.updates_per_step=4"),
}
ARMS = (*IMAGINED, *LEARNED)
# Noise makes many episodes miss by less than a model can tell; the default of 0.97 then finds one success in eight.
PRECISION = "loop.success.precision=0.9"
BASES = {setting.base.task: setting.base for setting in EXPERIMENTS["native_suite_residual"].settings}
TURN = "world_model.periods.turn=1.5707963"  # of a cube, which looks the same after a quarter
EPISODES = {"pick": 1_200}  # of the base with noise, where 2,000 would be more than 100,000 transitions
MODELS = {"push": (TURN,), "pick": (TURN,), "stack": (TURN,)}  # what the model is told about a task's state


@dataclass(frozen=True)
class Arm:
    """What one arm of one task and training seed gave."""

    base: EpisodeTable
    true: EpisodeTable
    imagined: EpisodeTable | None
    wall_s: float | None
    env_steps: int
    frames: int  # transitions that model and learner were given
    commit: str
    curve: dict[int, float]  # env step -> success on validation episodes, where the training looked


class ImaginationTrial:
    """The stages of one task and training seed."""

    label, kind = "", "algo=world_model"  # of the folder, and of the model
    about: tuple[str, ...] = ()  # of how the model is trained
    learning: tuple[str, ...] = ()  # of what is learned then

    def __init__(
        self, options: argparse.Namespace, base: Base, seed: int, *, model: str = ENSEMBLE, about: tuple[str, ...] = ()
    ) -> None:
        self.base, self.seed, self.options, self.about = base, seed, options, (*self.about, *about)
        if model != ENSEMBLE:
            self.label, self.about = f"{self.label}-{model}", (f"world_model={model}", *self.about)
        self.folder = options.out.resolve() / f"{base.task}-{seed}{self.label}"
        self.threads = max(1, (os.cpu_count() or 1) // options.jobs)
        self.start = options.out.resolve() / "bases" / f"{self.base.name}-{seed}"

    def record(self) -> tuple[Path, Path]:
        """Episodes of the base, and demonstrations, that model and model-free learner are given."""
        episodes = self.options.episodes or EPISODES.get(self.base.task, 2_000)
        return self.episodes_of_base(episodes, self.options.spread), self.start / "data"

    def episodes_of_base(self, count: int, spread: float) -> Path:
        out, bc = self.folder / "around", policy_of(self.base, self.start)
        if recorded(out) != "whole":
            self.call("demos", f"out={out}", "only_success=false", f"episodes={count}", f"expert_noise={spread}",
                      f"seed={self.seed + 1_000}", "overwrite=true", *envs_of(self.base),
                      "expert._target_=policy", f"expert.checkpoint={bc}")  # fmt: skip
        return out

    def run(self) -> dict[str, Arm]:
        train_base(self.options.out, self.base, self.seed, self.threads)
        bc, (around, data) = policy_of(self.base, self.start), self.record()
        model = self.train("world", self.kind, f"dataset={around}", f"loop.data.demos={data}",
                           f"loop.steps={self.options.model_steps}", PRECISION, *MODELS.get(self.base.task, ()),
                           *self.about, task=False)  # fmt: skip
        frames = sum(frames_of(d) for d in (around, data))
        bad = ("world.even_if_bad=true",) if self.options.even_if_bad else ()
        dream = ("world=imagined", f"world.model={model}", *bad)
        given = {"model_free": ("world=recorded", f"world.dataset={around}", f"dataset={data}"),
                 "real": (f"dataset={data}",), "control": (f"dataset={around}",),
                 **dict.fromkeys(("mixed", "rounds"), (*dream, f"dataset={around}")),
                 **{arm: (*dream, f"dataset={around}") for arm in IMAGINED if arm.startswith("branched")}}  # fmt: skip
        found = {}
        for arm in self.options.arms:
            run = self.train(arm, *{**IMAGINED, **LEARNED}[arm], *given.get(arm, (*dream, f"dataset={data}")),
                             *self.learning, f"base={bc}")  # fmt: skip
            true = self.rows(run, run)
            dreamt = self.rows(run, run, *dream, "world.part=held_out") if arm in DREAMT else None
            found[arm] = Arm(self.rows(bc, self.start / "bc"), true, dreamt, frames=frames, **left(run, arm))
            told = f", in imagination {dreamt.summary()}" if dreamt else ""
            print(f"{self.folder.name} {arm}: {true.summary()}{told}", flush=True)
        return found

    def train(self, name: str, *overrides: str, task: bool = True) -> Path:
        run = self.folder / name
        self.call("train", f"run_dir={run}", f"seed={self.seed}", "tracker=local", f"threads={self.threads}",
                  *overrides, task=task)  # fmt: skip
        return run

    def rows(self, policy: Path, out: Path, *world: str) -> EpisodeTable:
        split = "validation" if self.seed >= TRIALS else "test"
        self.call("eval", f"checkpoint={policy}", f"split={split}", f"episodes={self.base.episodes}", "videos=0",
                  f"out={out}", f"threads={self.threads}", *envs_of(self.base), *world)  # fmt: skip
        marks = [*(["imagined"] if world else []), *([split] if split != "test" else [])]
        return EpisodeTable.load(out / ("-".join(["episodes", *marks]) + ".csv"))

    def call(self, verb: str, *arguments: str, task: bool = True) -> None:
        about = task_of(self.base) if task else ()
        robopolicy(verb, *about, *arguments, threads=self.threads, log=self.folder / "log.txt")


def frames_of(dataset: Path) -> int:
    return int(json.loads((dataset / "meta" / "info.json").read_text())["total_frames"])


def left(run: Path, arm: str) -> dict[str, Any]:
    """What a training says of itself: seconds, env steps of the true task, commit, and its evaluations there."""
    log = run / "metrics.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    wall = max((float(line["train/seconds"]) for line in lines if "train/seconds" in line), default=None)
    curve = {int(x["step"]): float(x["eval/success_rate"]) for x in lines if "eval/success_rate" in x}
    steps = int(lines[-1]["step"]) if arm in ("real", "control") else 0
    if (run / "rounds.json").exists():
        steps = json.loads((run / "rounds.json").read_text())[-1]["real_steps_total"]
    made = json.loads((run / "provenance.json").read_text())["commit"]
    return {"wall_s": wall, "env_steps": steps, "commit": made, "curve": curve}


def evidence(found: dict[tuple[str, int], dict[str, Arm]], *, model: str = ENSEMBLE) -> Iterator[Evidence]:
    """Rates and paired differences for every arm and training seed, the gaps, and what pools the seeds."""
    kind = "" if model == ENSEMBLE else f"_{model}"
    rates: dict[tuple[str, str], list[Evidence]] = {}
    for (task, seed), arms in found.items():
        for name, arm in arms.items():
            id = IDS.get(name, "imagined_dppo")
            about = "none of the recorded transitions" if name == "real" else f"{arm.frames:,} transitions"
            label = {"rounds": "refined"}.get(name, name) + kind
            for setting, rows, made in ((f"{task}/base", arm.base, False), (f"{task}/{label}", arm.true, True)):
                row = of_rows(rows, id=id, setting=setting, seed=seed, notes=about, commit=arm.commit,
                              command=command(), env_steps=arm.env_steps if made else None,
                              wall_s=round(arm.wall_s, 1) if made and arm.wall_s else None)  # fmt: skip
                if row.key not in {r.key for r in rates.get((id, setting), [])}:
                    rates.setdefault((id, setting), []).append(row)
                    yield row
            both = compare(arm.base, arm.true, names=("base", name))
            yield measured(id=id, setting=f"{task}/{label}", metric="difference", commit=arm.commit,
                           interval=both.difference, seeds=seed, episodes=both.pairs.total,
                           notes=f"McNemar p = {both.p_value:.1e}")  # fmt: skip
            if arm.imagined is not None:
                yield _gap(task, {"dppo": "accepted"}.get(name, name) + kind, seed, arm)
        if {"dppo", "real"} <= set(arms):
            yield from _real_steps(task, seed, arms["dppo"], arms["real"])
    yield from (pooled(rows) for rows in rates.values() if {row.seeds for row in rows} == set(SEEDS))


def _gap(task: str, label: str, seed: int, arm: Arm) -> Evidence:
    assert arm.imagined is not None
    imagined, true = arm.imagined.success_rate(), arm.true.success_rate()
    difference = unpaired_difference(true, imagined)
    ends = sorted((abs(difference.low), abs(difference.high)))
    size = Interval(abs(difference.value), 0.0 if difference.low <= 0 <= difference.high else ends[0], ends[1])
    return measured(id="imagination_gap", setting=f"{task}/{label}", metric="gap", interval=size, seeds=seed,
                    episodes=len(arm.imagined) + len(arm.true), commit=arm.commit,
                    notes=f"imagined {100 * imagined.value:.1f}%, true {100 * true.value:.1f}%")  # fmt: skip


def _real_steps(task: str, seed: int, dppo: Arm, real: Arm) -> Iterator[Evidence]:
    wanted, most = dppo.true.success_rate().value, max(real.curve)
    reached = [step for step, rate in sorted(real.curve.items()) if rate >= wanted]
    steps = reached[0] if reached else most
    notes = f"{100 * wanted:.1f}% by {dppo.frames:,} offline transitions and no env step" + (
        "" if reached else f"; not reached in {most:,}: no less than this"
    )  # fmt: skip
    for metric, value in (("env_steps_to_target", steps), ("ratio", steps / dppo.frames)):
        yield measured(id="imagination_real_steps", setting=task, metric=metric, interval=value, seeds=seed,
                       commit=real.commit, notes=notes)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/imagination"))
    parser.add_argument("--tasks", nargs="+", choices=BASES, default=["reach"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=["dppo", "free", "residual", "model_free"])
    parser.add_argument("--episodes", type=int, help="of the base with noise, for the model")
    parser.add_argument("--spread", type=float, default=0.25, help="the largest noise of these, in action limits")
    parser.add_argument("--model-steps", type=int, default=6_000, help="of training the model")
    parser.add_argument("--world-model", default=ENSEMBLE, choices=[ENSEMBLE, CHUNKS], help="the model's kind")
    parser.add_argument("--even-if-bad", action="store_true", help="also in a model that is not fit to learn in")
    parser.add_argument("--jobs", type=int, default=2, help="training seeds at a time")
    parser.add_argument("--record", action="store_true", help="write docs/results")
    options = parser.parse_args(arguments)
    trials = {seed >= TRIALS for seed in options.seeds}
    if len(trials) > 1 or (options.record and True in trials):
        parser.error(f"--seeds: those from {TRIALS} on are trials, apart from the others and never recorded")
    model, about = options.world_model, tuple(options.overrides)
    if model != ENSEMBLE and (alike := sorted(set(options.arms) & {*LEARNED})):
        parser.error(f"--arms {alike}: learn without a model, so --world-model={model} would change nothing in them")
    if model == ENSEMBLE and about and options.record:
        parser.error(f"{' '.join(about)}: rows are of the ensemble as configs/ has it. Leave --record out.")
    keys = [(task, seed) for task in options.tasks for seed in options.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        trials = [ImaginationTrial(options, BASES[task], seed, model=model, about=about) for task, seed in keys]
        found = dict(zip(keys, pool.map(ImaginationTrial.run, trials), strict=True))
    rows = list(evidence(found, model=model))
    for row in rows:
        print(json.dumps({k: getattr(row, k) for k in ("id", "setting", "metric", "value", "low", "high", "seeds")}))
    if options.record:
        write(rows, root=ROOT / "docs" / "results")
    return 0


if __name__ == "__main__":
    sys.exit(main())
