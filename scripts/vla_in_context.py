"""A new task from a few demonstrations and no weight update: retrieval (policy=ricl) against none.

    python scripts/vla_in_context.py [--hold press pick_blue words places] [--seeds 0 1 2] [--demos 10 20] [--record]

Tabletop from the state. What is held out: a goal (training has the other six), `words` (every goal, in sentences that
training never had) or `places` (columns of the table that it never had). `--demos` demonstrations of each held-out
instruction, about so many where there are several, go into the memory. Evaluated are, on the same episodes, all of them
of what was held out:

  memory<n>    the policy with n demonstrations of each instruction in memory
  none         the same weights, an empty memory
  nearest<n>   the nearest demonstrated chunk, played as it is (λ = 0): retrieval without learning
  vla          policy=vla, trained on the same demonstrations as long, with the same sizes

Stages that are done are not repeated. Training seeds of 100 and above are trials: they are evaluated on validation
episodes and never recorded.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pandas as pd

from robopolicy import sim
from robopolicy.core.rng import episode_seeds
from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.compare import compare
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef, set_retrieval_memory
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.ricl import RICLPolicy
from robopolicy.reporting.result_rows import Evidence, measured, of_rows, pooled, write
from robopolicy.runs.checkpointer import load_policy
from robopolicy.sim.tasks.tabletop import Tabletop
from robopolicy.sim.tasks.tabletop_goals import GOALS
from robopolicy.utils.provenance import command
from scripts.experiments import ROOT, robopolicy

ID = "vla_ricl"
TRIALS = 100  # training seeds from here on
OTHERS = {"words": {"wording": "unseen"}, "places": {"positions": "unseen"}}
KINDS = ("ricl", "vla")


def sides(hold: str) -> tuple[dict[str, object], dict[str, object]]:
    """Parameters of the task in training, and of what is held out."""
    if hold in OTHERS:
        return {}, OTHERS[hold]
    return {"only": [g for g in GOALS if g != hold]}, {"only": [hold]}


def overrides(changes: dict[str, object]) -> list[str]:
    return ["task=tabletop", *(f"task.{k}={json.dumps(v).replace(' ', '')}" for k, v in changes.items())]


class InContextTrial:
    """The stages of one held-out thing and training seed, in <out>/<hold>-<seed>."""

    def __init__(self, options: argparse.Namespace, hold: str, seed: int) -> None:
        self.options, self.hold, self.seed = options, hold, seed
        self.seen, self.new = sides(hold)
        # What was held out is no part of the training on all goals, which is then one for both.
        self.training = options.out.resolve() / f"{'all' if hold in OTHERS else hold}-{seed}"
        self.folder = options.out.resolve() / f"{hold}-{seed}"
        self.env = sim.make("tabletop", num_envs=min(100, options.episodes), **self.new)

    def run(self) -> dict[str, EpisodeTable]:
        """Rows by setting."""
        for kind in KINDS:
            self.train(kind)
        found = {"vla": self.evaluate("vla"), "none": self.evaluate("ricl", memory=Path("none"))}
        for count in self.options.demos:
            memory = self.demonstrate(count)
            found[f"memory{count}"] = self.evaluate("ricl", memory=memory)
            found[f"nearest{count}"] = self.evaluate("ricl", memory=memory, decay=0.0)
        for setting, rows in found.items():
            print(f"{self.folder.name} {setting}: {rows.summary()}", flush=True)
        return found

    def train(self, kind: str) -> None:
        log, data = self.training / "log.txt", self.training / "data"
        if recorded(data) != "whole":
            self._demos(data, self.seen, self.options.training_demos, self.seed, log)
        robopolicy("train", "algo=bc", f"policy={kind}", f"dataset={data}", f"run_dir={self.training / kind}",
                   f"seed={self.seed}", "tracker=local", f"device={self.options.device}",
                   f"threads={self.options.threads}", f"loop.steps={self.options.steps}", *self.options.overrides,
                   threads=self.options.threads, log=log)  # fmt: skip

    def demonstrate(self, count: int) -> Path:
        """Demonstrations of what is held out, of starts that training never had: of the next run's seeds."""
        data = self.folder / f"memory{count}"
        if recorded(data) != "whole":
            instructions = len(Tabletop(**self.new).instructions)  # type: ignore[arg-type]
            self._demos(data, self.new, count * instructions, self.seed + 1_000, self.folder / "log.txt")
        return data

    def _demos(self, data: Path, changes: dict[str, object], count: int, seed: int, log: Path) -> None:
        robopolicy("demos", *overrides(changes), f"out={data}", f"episodes={count}", f"seed={seed}", "overwrite=true",
                   f"expert_noise={self.options.expert_noise}", threads=self.options.threads, log=log)  # fmt: skip

    def evaluate(self, kind: str, *, memory: Path | None = None, decay: float | None = None) -> EpisodeTable:
        split = "validation" if self.seed >= TRIALS else "test"
        place = PolicyRef.of(self.training / kind, "latest", None)
        policy = load_policy(self.training / kind, env=self.env.spec, device=self.options.device)
        if memory is not None:
            place.provenance_suffix = set_retrieval_memory(policy, memory)
        if decay is not None:
            assert isinstance(policy, RICLPolicy)
            policy.decay = decay
        return evaluate(policy, self.env, episode_seeds(split, 0, self.options.episodes), policy_id=place.ident)


def evidence(found: dict[tuple[str, int], dict[str, EpisodeTable]]) -> list[Evidence]:
    """A row for each setting and training seed, one of all seeds, and what each has over the empty memory."""
    rows: list[Evidence] = []
    settings = dict.fromkeys((hold, s) for (hold, _), of in found.items() for s in of)
    for hold, setting in settings:
        each = [
            of_rows(of[setting], id=ID, setting=f"{hold}/{setting}", seed=seed, command=command())
            for (held, seed), of in found.items() if held == hold and setting in of
        ]  # fmt: skip
        rows += [*each, pooled(each)] if len(each) > 1 else each
    for (hold, seed), of in found.items():
        for setting in (s for s in of if s.startswith("memory")):
            both = compare(of["none"], of[setting], names=("none", setting))
            notes = f"over none; McNemar p = {both.p_value:.1e}"
            rows.append(measured(id=ID, setting=f"{hold}/{setting}", metric="difference", interval=both.difference,
                                 seeds=seed, episodes=both.pairs.total, notes=notes))  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/in_context"))
    parser.add_argument("--hold", nargs="+", choices=(*GOALS, *OTHERS), default=["press", "pick_blue", *OTHERS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="training seeds")
    parser.add_argument("--demos", type=int, nargs="+", default=[10, 20], help="in memory, of each instruction")
    parser.add_argument("--training-demos", type=int, default=700)
    parser.add_argument("--expert-noise", type=float, default=0.5, help="of the expert's demonstrations")
    parser.add_argument("--steps", type=int, default=9_000, help="of imitation")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--record", action="store_true", help=f"write docs/results/{ID}.json and its rows")
    parser.add_argument("--overrides", nargs="+", default=["loop.batch_size=128"], help="of both trainings")
    options = parser.parse_args(arguments)
    if options.record and (trials := [s for s in options.seeds if s >= TRIALS]):
        parser.error(f"--record: training seeds {trials} are trials. Leave --record away, or give others.")
    found = {(h, s): InContextTrial(options, h, s).run() for h in options.hold for s in options.seeds}
    rows = evidence(found)
    for row in rows:
        print(json.dumps(asdict(row), ensure_ascii=False))
    if options.record:
        write(rows, root=ROOT / "docs" / "results")
        frames = [
            r.frame.drop(columns=["policy", "wall_s", "deterministic"]).assign(setting=f"{h}/{name}", train_seed=seed)
            for (h, seed), of in found.items() for name, r in of.items()
        ]  # fmt: skip
        path = ROOT / "docs" / "results" / "rows" / f"{ID}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pd.concat(frames, ignore_index=True).to_parquet(path, index=False, compression="zstd")
    return 0


if __name__ == "__main__":
    sys.exit(main())
