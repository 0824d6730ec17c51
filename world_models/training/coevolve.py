"""Policy and world model in turns: imagine, try a few episodes for real, refit the model on what happened, go on.

Every step of a round is a command of its own in a folder of its own, which resumes by itself:
round_<n>/  imagined/ (train world=…) · rollouts/ and rollouts.csv · model/ (train algo=world_model) · judged.json
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import TARGET, Count, Fraction
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import Metrics
from robopolicy.core.untrusted import below, parse_json, read_bytes, read_json, refusing
from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.policies.base import Policy
from robopolicy.policies.zero_action import ZERO_ACTION
from robopolicy.runs.checkpointer import Checkpointer, load_policy
from robopolicy.runs.run_dir import read_config
from robopolicy.training.train import train_run
from robopolicy.utils.atomic import write_atomically
from robopolicy.world_models.envs.starts import run_of
from robopolicy.world_models.evaluation.calibration import faults
from robopolicy.world_models.evaluation.imagined_evaluation import ImaginedEvaluation, evaluate_in_imagination
from robopolicy.world_models.evaluation.real_rollouts import record_rollouts
from robopolicy.world_models.models.world import load_world
from robopolicy.world_models.training.gate import LEVEL
from robopolicy.world_models.training.rounds import apart_in_a_row, kept_last, record_of

_FIRST_SEED = 1 << 20  # of the run's training stream: envs that train have not come that far
_FINETUNED, _REPLAYED = "finetuned", "off_policy"


def coevolve(
    *,
    rounds: Count,
    run_dir: Path,
    config: dict[str, Any] | None,
    episodes: Count = 12,
    real_steps: Count = 5_000,
    refit_steps: Count = 2_000,
    share: Fraction = 0.25,
    starts: Count = 100,
    patience: Count = 1,
) -> Metrics:
    """Carry out `rounds`, going on after the newest that is done.

    A finetuned policy goes on from the one kept last. What learns off-policy, as a residual, begins anew in each round,
    with all rollouts so far in its batches (`loop.rollout_fraction`), and is taken back where it is surely worse in
    truth than the one kept before.

    A round's policy is kept where its gate accepted something and the truth does not contradict what was imagined of
    it; without a gate, where the model does not surely prefer the one kept before. Where the refitted model and the
    truth still part beyond their intervals, it stops: more imagining would only widen the gap. Unless `patience` lets
    the next round learn from what has just failed.

    Args:
        config: of the whole command; its `world` is imagined in, its `task` is the truth.
        episodes: real rollouts of a round's policy. real_steps: primitive env steps of all rounds together, at most.
        refit_steps: updates of the model a round, from its weights. share: of its batches that is of these rollouts.
        starts: held-out ones that the gap is measured from.
        patience: rounds in a row in which they part that end it. Made of little data, a model is wrong at first, and
            real failures mend it; what the truth contradicted is not kept, however many these are.

    Returns:
        Of the last round: success in imagination and in truth, their gap; rounds done and real steps taken.

    Raises:
        ConfigError: no task to try it in, a policy that can neither go on from the one before nor learn from rollouts.
    """
    if config is None:
        raise ConfigError("rounds: are of `robopolicy train`, which says with its config what a round is made of")
    if config.get("task") is None:
        raise ConfigError("rounds: a few rollouts of each round are real, in task=<name>; none is given")
    if not (_goes_on(config) or _replays(config)) or config.get("base") in (None, ZERO_ACTION):
        found = {k: (config.get(k) or {}).get(TARGET) for k in ("policy", "loop")}
        raise ConfigError(
            "rounds: each goes on from the policy of the one before, as policy=finetuned does on base=<run directory> "
            "(algo=dppo, ppo, policy_flow), or learns off-policy on top of such a base from all rollouts so far "
            f"(algo=residual); found policy {found['policy']!r}, loop {found['loop']!r}, "
            f"base={config.get('base')}."
        )
    _check_fractions(config)
    if run_of(Path(config["world"]["model"] or "")) is None:
        raise ConfigError(f"world.model={config['world']['model']}: is not in a run, so nobody knows how to refit it")
    if config["world"].get("starts") is not None:
        raise ConfigError("world.starts: in rounds, episodes begin where the model's own data does; leave it away")
    checkpointer = Checkpointer(run_dir, keep=int(config.get("keep_checkpoints", 2)))
    state = checkpointer.latest() or {"records": [], "policy": "", "model": ""}
    with refusing("checkpoint: state.json"):
        records = [dict(record) for record in state["records"]]
        state = {**state, "records": records, "policy": str(state["policy"]), "model": str(state["model"])}
    driver = Rounds(run_dir, config, episodes, real_steps, refit_steps, share, starts, patience)
    while (reason := driver.over(state, rounds)) == "":
        state = driver.round(state)
        kept = state["records"][-1]["kept"]
        policy = load_policy(driver.policy(state))
        write_atomically(run_dir / "spec.json", policy.spec.to_json() + "\n")
        write_atomically(run_dir / "rounds.json", json.dumps(state["records"], indent=1) + "\n")
        checkpointer.save(len(state["records"]), policy=policy, state=state, best=kept)
    print(f"rounds: {reason}")
    last = state["records"][-1]
    return {
        "rounds": len(state["records"]), "real_steps": last["real_steps_total"], "gap": last["gap"],
        "imagined_success": last["imagined"][0], "success_rate": last["true"][0],
    }  # fmt: skip


class Rounds:
    """What a round does, given what is left of the rounds before: `records`, and `policy` and `model` to go on from.

    Both are names of runs below `run_dir`; "" stands for those that the command names.
    """

    def __init__(
        self, run_dir: Path, config: dict[str, Any], episodes: int, real_steps: int, refit_steps: int, share: float,
        starts: int, patience: int,
    ) -> None:  # fmt: skip
        self.run_dir, self.config, self.starts, self.patience = run_dir, config, starts, patience
        self.episodes, self.real_steps, self.refit_steps, self.share = episodes, real_steps, refit_steps, share
        self.env = build(config["task"], "task", num_envs=min(episodes, 64), seed=0)

    def policy(self, state: dict[str, Any]) -> Path:
        return (
            below(self.run_dir, state["policy"], where="state.json: policy")
            if state["policy"]
            else Path(self.config["base"])
        )

    def model(self, state: dict[str, Any]) -> Path:
        return (
            below(self.run_dir, state["model"], where="state.json: model")
            if state["model"]
            else Path(self.config["world"]["model"])
        )

    def over(self, state: dict[str, Any], rounds: int) -> str:
        """Why there is not another round; "" where there is."""
        records = state["records"]
        if records and records[-1]["stop"]:
            return str(records[-1]["stop"])
        if len(records) >= rounds:
            return f"all {rounds} are done"
        used = records[-1]["real_steps_total"] if records else 0
        if self.real_steps - used < 2 * self.env.spec.horizon:
            return f"{used} of {self.real_steps} real steps are taken, and two more episodes may need more than is left"
        return ""

    def round(self, state: dict[str, Any]) -> dict[str, Any]:
        """Carry out the next round, or what is left of it."""
        records, number = state["records"], len(state["records"]) + 1
        name, folder = f"round_{number}", self.run_dir / f"round_{number}"
        used = records[-1]["real_steps_total"] if records else 0
        imagined, model = folder / "imagined", folder / "model"
        if not (folder / "imagined.done").exists():
            train_run(self._imagining(state, imagined, number))
            write_atomically(folder / "imagined.done", "")
        policy = load_policy(imagined, env=self.env.spec)
        count = min(self.episodes, (self.real_steps - used) // self.env.spec.horizon)
        rows = self._real(policy, folder, first=sum(r["episodes"] for r in records), count=count)
        if not (folder / "model.done").exists():
            train_run(self._refitting(state, model, number))
            write_atomically(folder / "model.done", "")
        judged = _once(folder / "judged.json", lambda: {
            "imagined": self._judge(policy, self.model(state)), "imagined_refitted": self._judge(policy, model),
            "before": None if self.config["world"].get("gate") else
            self._judge(load_policy(self.policy(state), env=self.env.spec), self.model(state)),
            "faults": faults(load_world(model).report),
        })  # fmt: skip
        rival = None if _goes_on(self.config) else kept_last(records)
        left = self.patience - apart_in_a_row(records)
        record = record_of(number, rows, judged, gate=_decisions(imagined), used=used, rival=rival, left=left)
        usable = not judged["faults"] or bool(self.config["world"].get("even_if_bad"))
        print(f"round {number}: {record['reason']}")
        return {
            "records": [*records, record],
            "policy": f"{name}/imagined" if record["kept"] else state["policy"],
            "model": f"{name}/model" if usable else state["model"],
        }

    def _imagining(self, state: dict[str, Any], run_dir: Path, number: int) -> dict[str, Any]:
        config = copy.deepcopy(self.config)
        config |= {"run_dir": str(run_dir), "rounds": 0, "seed": config["seed"] + number}
        config["world"]["model"] = str(self.model(state))
        if _goes_on(config):
            config["base"] = str(self.policy(state))
        else:
            config["loop"]["rollouts"] = {**(config["loop"].get("rollouts") or {}), **self._rollouts(number - 1)}
        return config

    def _rollouts(self, rounds: int) -> dict[str, str]:
        """Those of the first `rounds`."""
        return {f"round_{n}": str(self.run_dir / f"round_{n}" / "rollouts") for n in range(1, rounds + 1)}

    def _real(self, policy: Policy, folder: Path, *, first: int, count: int) -> EpisodeTable:
        """Each round's own starts, which no training in imagination and no evaluation knows."""
        out, file = folder / "rollouts", folder / "rollouts.csv"
        seeds = episode_seeds("train", int(self.config["seed"]), count, start=_FIRST_SEED + first)
        if not (file.exists() and recorded(out) == "whole"):
            record_rollouts(policy, self.env, seeds, out, facts={"round": folder.name, "episodes": count}).save(file)
        return EpisodeTable.load(file)

    def _refitting(self, state: dict[str, Any], run_dir: Path, number: int) -> dict[str, Any]:
        """The first model's own config, from the newest weights, with all rollouts so far beside its data."""
        first = run_of(Path(self.config["world"]["model"]))
        assert first is not None
        config = copy.deepcopy(read_config(first))
        if config is None or not config.get("loop") or config.get("seed") is None:
            raise ConfigError(f"world.model={first}: does not say how it was trained")
        loop, fresh = config["loop"], self._rollouts(number)
        weights = dict(loop.get("mix_weights") or {})
        known = sum(weights.values()) if weights else 1.0  # of what has none, shares of frames, which sum to about 1
        each = known * self.share / max(1e-9, 1.0 - self.share) / len(fresh)
        loop |= {
            "init": str(self.model(state)), "steps": self.refit_steps, "data": {**(loop.get("data") or {}), **fresh},
            "mix_weights": {**weights, **dict.fromkeys(fresh, each)},
        }  # fmt: skip
        config |= {"run_dir": str(run_dir), "rounds": 0, "seed": config["seed"] + number}
        return config | {k: self.config[k] for k in ("tracker", "threads") if k in self.config}

    def _judge(self, policy: Policy, model: Path) -> list[float]:
        """Success of `policy` as `model` has it, with its interval."""
        world = {**self.config["world"], "model": str(model), "even_if_bad": True, "branch": None}
        exam = ImaginedEvaluation.crossed(build(world, "world", num_envs=1, seed=0), self.starts)
        return list(evaluate_in_imagination(policy, exam).interval(level=LEVEL, resamples=2_000))


def _goes_on(config: dict[str, Any]) -> bool:
    return bool((config.get("policy") or {}).get(TARGET) == _FINETUNED)


def _replays(config: dict[str, Any]) -> bool:
    return bool((config.get("loop") or {}).get(TARGET) == _REPLAYED)


def _check_fractions(config: dict[str, Any]) -> None:
    """The first round has no rollouts yet, and would not notice."""
    loop = config.get("loop") or {}
    if not _replays(config) or config.get("dataset") is None:
        return
    demos, rollouts = float(loop.get("demo_fraction", 0.5)), float(loop.get("rollout_fraction", 0.25))
    if demos + rollouts > 1.0:
        raise ConfigError(
            f"loop.demo_fraction={demos:g} and loop.rollout_fraction={rollouts:g} are more than a whole batch, from "
            "the second round on. Lower one of them."
        )


def _decisions(run_dir: Path) -> list[dict[str, Any]]:
    """Of the gate of a run; none where it had none."""
    file = run_dir / "gate.json"
    if not file.is_file():
        return []
    found = parse_json(read_bytes(file), str(file), finite=False)
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise CheckpointError(f"{file} is damaged: expected a list of objects")
    return found


def _once(file: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gave, now or before."""
    if not file.is_file():
        write_atomically(file, json.dumps(work(), indent=1) + "\n")
    return read_json(file, finite=False)
