"""Train, evaluate and record what docs/results/<id>.json holds: every stage is a `robopolicy` command, all seeds run.

    python scripts/experiments.py pick_residual_fast            # five training seeds, two at a time
    python scripts/experiments.py native_suite_residual --only drawer stack

Stages that are done are not repeated, interrupted ones resume. Evaluations after training use test episodes, those
during training validation episodes. A training seed seeds demonstrations, imitation and reinforcement alike.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.errors import RobopolicyError
from robopolicy.evaluate.compare import compare, worse_than_base
from robopolicy.evaluate.evidence import Evidence, measured, of_rows, pooled, write
from robopolicy.evaluate.provenance import commit
from robopolicy.evaluate.rows import Rows
from robopolicy.evaluate.statistics import mean

ROOT = Path(__file__).resolve().parents[1]
EPISODES = 500


@dataclass(frozen=True)
class Base:
    """An imitation policy: `demos` successful demonstrations of an expert of the given imperfection, then BC."""

    task: str
    demos: int
    imperfection: float
    overrides: tuple[str, ...] = ("loop.steps=3000",)
    kind: str = ""  # tells bases of the same demonstrations apart

    @property
    def name(self) -> str:
        return f"{self.task}-{self.demos}x{self.imperfection:g}" + (f"-{self.kind}" if self.kind else "")


@dataclass(frozen=True)
class Setting:
    """One kind of refinement of a base. `prefix` leads its settings' names: "" or "<task>/"."""

    base: Base
    refine: dict[str, tuple[str, ...]]  # setting -> overrides of `robopolicy train`
    prefix: str = ""


@dataclass(frozen=True)
class Experiment:
    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    extra: tuple[str, ...] = field(default=())  # what else is derived: "dip", "worse", "mean"


# Chosen on validation episodes; test episodes are run for the record alone.
PICK = Base("pick", 60, 1.0)
PEG_EASY = Base("peg_easy", 32, 1.0)
PEG = Base("peg", 40, 0.7)
PUSHT = Base("pusht", 200, 0.25, ("loop.steps=8000", "network.width=512"))
WATCH = ("validation_episodes=200", "threads=1")
SUITE = (
    Base("reach", 40, 0.6),
    Base("push", 20, 0.4),
    PICK,
    Base("stack", 20, 0.7),
    Base("drawer", 15, 1.0),
    PUSHT,
    PEG_EASY,
    PEG,
)
PICK_FLOW = Base("pick", 60, 1.0, ("loop.steps=3000", "policy=flow"), "flow")
PICK_GAUSSIAN = Base("pick", 60, 1.0, ("loop.steps=3000", "policy=gaussian"), "gaussian")
CURVE = ("loop.eval_every=50000", *WATCH)
ABLATION = {  # one change each of algo=dppo
    "as_is": (),
    "floor_0.05": ("algo.noise.floor=0.05",),
    "floor_0.2": ("algo.noise.floor=0.2",),
    "tuned_steps_2": ("policy.tuned_steps=2",),
    "tuned_steps_10": ("policy.tuned_steps=10",),
    "denoising_gamma_0.9": ("algo.denoising_gamma=0.9",),
    "clip_0.01": ("algo.clip=0.01", "algo.clip_first=0.01"),
    "clip_0.2": ("algo.clip=0.2", "algo.clip_first=0.2"),
    "anchor_0.1": ("algo.anchor=0.1",),
    "critic_warmup_0": ("algo.critic_warmup=0",),
    "critic_warmup_5": ("algo.critic_warmup=5",),
}
PEG_HARD = (  # usual noise, of millimetres, tips the peg in the fingers: next to no episode with it succeeds
    "loop.total_steps=150000",
    "loop.warmup_steps=10000",
    "algo.penalty_steps=40000",
    "algo.exploration_std=0.05",
    "algo.warmup_std=0.1",
)
SUITE_CONFIG = ("algo=residual_long",)
EXPERIMENTS = {
    "pick_residual_fast": Experiment(
        (
            Setting(
                PICK,
                {
                    "refined": ("algo=residual_fast",),
                    "scratch": ("algo=residual_scratch", "loop.demo_fraction=0"),
                    "scratch_with_demos": ("algo=residual_scratch",),
                },
            ),
        ),
        seeds=(0, 1, 2, 3, 4),
    ),
    "residual_no_dip": Experiment(
        (Setting(PICK, {"refined": ("algo=residual_fast", "loop.eval_every=1000", *WATCH)}),),
        seeds=(0, 1, 2, 3, 4),
        extra=("dip",),
    ),
    "pick_residual_sample_efficient": Experiment(
        (Setting(PICK, {"refined": ("algo=residual_sample_efficient",)}),), seeds=(0, 1, 2, 3, 4)
    ),
    "strong_base_residual": Experiment(
        (Setting(Base("drawer", 30, 0.8), {"refined": ("algo=residual_fast", "loop.eval_every=2500", *WATCH)}),),
        extra=("worse",),
    ),
    "peg_residual": Experiment(
        (
            Setting(PEG_EASY, {"refined": ("algo=residual_fast",)}, "easy/"),
            Setting(PEG, {"refined": ("algo=residual_fast", *PEG_HARD)}, "hard/"),
        )
    ),
    "native_suite_residual": Experiment(
        tuple(Setting(base, {"refined": SUITE_CONFIG}, prefix=f"{base.task}/") for base in SUITE), extra=("mean",)
    ),
    "pick_dppo": Experiment((Setting(PICK, {"refined": ("algo=dppo",)}),), seeds=(0, 1, 2, 3, 4)),
    "peg_dppo": Experiment((Setting(PEG, {"refined": ("algo=dppo", "loop.total_steps=3000000")}),)),
    "native_suite_dppo": Experiment(
        tuple(
            Setting(base, {"refined": ("algo=dppo", "loop.total_steps=1000000")}, prefix=f"{base.task}/")
            for base in SUITE
        ),
        extra=("mean",),
    ),
    "pusht_dppo": Experiment((Setting(PUSHT, {"refined": ("algo=dppo", "loop.total_steps=3000000", *CURVE)}),)),
    "pick_flow_ppo": Experiment(
        (
            Setting(
                PICK_FLOW,
                {
                    f"k{k}": ("algo=dppo", f"policy.sampling={{sampling_steps: {k}}}", f"policy.tuned_steps={k}")
                    for k in (4, 1)
                },
            ),
        )
    ),
    "dppo_ablation": Experiment(
        (Setting(PICK, {k: ("algo=dppo", "loop.total_steps=300000", *v) for k, v in ABLATION.items()}),), seeds=(0, 1)
    ),
    "routes_compared": Experiment(
        (
            Setting(
                PICK,
                {
                    "dppo": ("algo=dppo", *CURVE),
                    "residual": ("algo=residual_fast", "loop.eval_every=3000", *WATCH),
                },
            ),
            Setting(PICK_GAUSSIAN, {"ppo": ("algo=ppo", *CURVE)}, prefix="gaussian/"),
        )
    ),
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", choices=EXPERIMENTS)
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--seeds", type=int, nargs="+", help="training seeds (default: those of the experiment)")
    parser.add_argument("--only", nargs="+", default=[], help="tasks or settings (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, with cores / jobs threads each")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--no-record", action="store_true", help="print the rows, write nothing into --results")
    options = parser.parse_args(arguments)
    experiment = EXPERIMENTS[options.id]
    seeds = options.seeds or list(experiment.seeds)
    work = [(s, name, seed) for s in experiment.settings for name in s.refine for seed in seeds
            if not options.only or {name, s.base.task} & set(options.only)]  # fmt: skip
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            bases = dict.fromkeys((s.base, seed) for s, _, seed in work)
            list(pool.map(lambda job: train_base(options.out, job[0], job[1], threads), bases))
            found = list(pool.map(lambda job: refine(options.out, options.id, job[0], job[1], job[2], threads), work))
        evidence = list(record(options.id, experiment, work, found))
        for row in evidence:
            print(json.dumps({k: getattr(row, k) for k in ("setting", "metric", "value", "low", "high", "seeds")}))
        if not options.no_record:
            write(evidence, root=options.results)
            save_rows(options.results / "rows" / f"{options.id}.parquet", work, found)
        return 0
    except (RobopolicyError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


@dataclass(frozen=True)
class Found:
    """What one refinement of one seed gave."""

    base: Rows
    rows: Rows
    evaluations: dict[int, Rows]  # env step -> validation episodes during training
    env_steps: int
    wall_s: float


def robopolicy(*arguments: str, threads: int, log: Path) -> None:
    """Run a command of ours; its output goes to `log`, which is shown if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
    with log.open("a") as file:
        done = subprocess.run(
            [sys.executable, "-m", "robopolicy", *arguments], cwd=ROOT, env=environment, stdout=file, stderr=file
        )
    if done.returncode:
        print("\n".join(log.read_text().splitlines()[-15:]), file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, ["robopolicy", *arguments])


def train_base(out: Path, base: Base, seed: int, threads: int) -> None:
    """Demonstrations, imitation, evaluation in <out>/bases/<base>-<seed>."""
    from robopolicy.data.meta import recorded

    folder = out.resolve() / "bases" / f"{base.name}-{seed}"
    log, data, run = folder / "log.txt", folder / "data", folder / "bc"
    if recorded(data) != "whole":
        robopolicy("demos", f"task={base.task}", f"out={data}", f"episodes={base.demos}", f"seed={seed}",
                   f"imperfection={base.imperfection}", "overwrite=true", threads=threads, log=log)  # fmt: skip
    robopolicy("train", "algo=bc", f"task={base.task}", f"dataset={data}", f"run_dir={run}", f"seed={seed}",
               f"threads={threads}", "tracker=local", *base.overrides, threads=threads, log=log)  # fmt: skip
    evaluate(run, threads, log)
    print(f"{folder.name}: {Rows.load(run / 'episodes.csv').summary()}", flush=True)


def refine(out: Path, id: str, setting: Setting, name: str, seed: int, threads: int) -> Found:
    """Reinforcement and evaluation in <out>/<id>/<setting>-<seed>."""
    base = out.resolve() / "bases" / f"{setting.base.name}-{seed}"
    run = out.resolve() / id / f"{setting.prefix.replace('/', '-')}{name}-{seed}"
    over, log = list(setting.refine[name]), run / "log.txt"
    over += [] if any("residual_scratch" in o for o in over) else [f"base={base / 'bc'}"]
    over += [] if any(o.startswith("threads=") for o in over) else [f"threads={threads}"]
    robopolicy("train", f"task={setting.base.task}", f"dataset={base / 'data'}", f"run_dir={run}", f"seed={seed}",
               "tracker=local", *over, threads=threads, log=log)  # fmt: skip
    evaluate(run, threads, log)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if "train/seconds" in line][-1]
    evaluations = {int(f.stem): Rows.load(f) for f in sorted((run / "evaluations").glob("*.parquet"))}
    found = Found(Rows.load(base / "bc" / "episodes.csv"), Rows.load(run / "episodes.csv"), evaluations,
                  int(last["step"]), float(last["train/seconds"]))  # fmt: skip
    print(f"{id} {setting.prefix}{name} {seed}: {found.rows.summary()}, {found.wall_s:.0f} s", flush=True)
    return found


def evaluate(run: Path, threads: int, log: Path) -> None:
    robopolicy("eval", f"checkpoint={run}", f"episodes={EPISODES}", "videos=0", f"threads={threads}", threads=threads,
               log=log)  # fmt: skip


def record(id: str, experiment: Experiment, work: list, found: list[Found]) -> Iterator[Evidence]:
    """Rows a seed, then rows of all seeds."""
    groups: dict[str, list[Evidence]] = {}
    for (setting, name, seed), result in zip(work, found, strict=True):
        base, label = f"{setting.prefix}base", f"{setting.prefix}{name}"
        about = f"{setting.base.demos} demonstrations, imperfection {setting.base.imperfection:g}"
        if seed not in [e.seeds for e in groups.get(base, [])]:
            groups.setdefault(base, []).append(of_rows(result.base, id=id, setting=base, seed=seed, notes=about))
        row = of_rows(
            result.rows, id=id, setting=label, seed=seed, env_steps=result.env_steps, wall_s=round(result.wall_s, 1),
            notes=" ".join(setting.refine[name]),
        )  # fmt: skip
        groups.setdefault(label, []).append(row)
        if "scratch" not in name:
            both = compare(result.base, result.rows, names=("base", "refined"))
            yield measured(id=id, setting=label, metric="difference", interval=both.difference, seeds=seed,
                           episodes=both.pairs.total, notes=f"McNemar p = {both.p_value:.1e}")  # fmt: skip
        yield from watched(id, experiment, label, seed, result)
    for rows in groups.values():
        yield from [*rows, pooled(rows)]
    if "mean" in experiment.extra:
        rates = {label: mean([r.value for r in rows]) for label, rows in groups.items() if label.endswith("refined")}
        yield measured(id=id, setting="refined", metric="mean_success_rate", interval=mean(list(rates.values())),
                       notes=", ".join(f"{k.split('/')[0]} {100 * v:.1f}%" for k, v in rates.items()))  # fmt: skip


def watched(id: str, experiment: Experiment, label: str, seed: int, result: Found) -> Iterator[Evidence]:
    """What evaluations during training show beside their base, which step 0 is."""
    steps = [step for step in result.evaluations if step > 0]
    if not steps:
        return
    base = result.evaluations[0]
    episodes = len(steps) * len(base)
    if "dip" in experiment.extra:
        rate = base.success_rate().value
        dips = {step: 100 * (rate - result.evaluations[step].success_rate().value) for step in steps}
        worst = max(dips, key=dips.__getitem__)
        yield measured(id=id, setting=label, metric="worst_dip_points", interval=dips[worst], seeds=seed,
                       episodes=episodes,
                       notes=f"at env step {worst} of {len(steps)} evaluations, base {100 * rate:.1f}%")  # fmt: skip
    if "worse" in experiment.extra:
        smallest = min(p for _, p in worse_than_base(base, [result.evaluations[s] for s in steps]))
        yield measured(id=id, setting=label, metric="worse_p_holm", interval=smallest, seeds=seed, episodes=episodes,
                       notes=f"smallest of {len(steps)} evaluations")  # fmt: skip
        before, after = 1 - result.base.success_rate().value, 1 - result.rows.success_rate().value
        yield measured(id=id, setting=label, metric="failure_ratio", interval=after / before, seeds=seed,
                       episodes=len(result.rows), notes=f"{after:.3f} / {before:.3f}")  # fmt: skip


def save_rows(path: Path, work: list, found: list[Found]) -> None:
    """Every evaluated episode, with the training seed, the setting and the env step of the policy."""
    frames = []
    for (setting, name, seed), result in zip(work, found, strict=True):
        parts = {("base", 0): result.base, (name, result.env_steps): result.rows}
        parts |= {(f"{name}, while training", step): rows for step, rows in result.evaluations.items()}
        for (label, step), rows in parts.items():
            frames.append(rows.frame.drop(columns=["policy", "task", "wall_s", "deterministic"]).assign(
                setting=setting.prefix + label, train_seed=seed, env_step=step))  # fmt: skip
    whole = pd.concat(frames, ignore_index=True).drop_duplicates(["setting", "train_seed", "env_step", "seed"])
    path.parent.mkdir(parents=True, exist_ok=True)
    whole.to_parquet(path, index=False, compression="zstd")


if __name__ == "__main__":
    print(f"commit {commit()}", flush=True)
    sys.exit(main())
