"""Run one round of co-evolution: imagine, roll out for real, refit, evaluate.

Every step of a round is a command of its own in a folder of its own, which resumes by itself:
round_<n>/  imagined/ (train world=…) · rollouts/, rollouts.csv · model/ (train algo=world_model) · evaluations.json
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.untrusted import below, parse_json, read_bytes, read_json
from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.policies.base import Policy
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.logger import grouped
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


class RoundRunner:
    """Run rounds from a state {"records": earlier rounds, "policy": name, "model": name}.

    The names are of runs below `run_dir`; "" stands for the run that the command names.
    """

    def __init__(
        self, run_dir: Path, config: dict[str, Any], episodes: int, real_steps: int, refit_steps: int, share: float,
        starts: int, patience: int,
    ) -> None:  # fmt: skip
        self.run_dir, self.config, self.starts, self.patience = run_dir, config, starts, patience
        self.episodes, self.real_steps, self.refit_steps, self.share = episodes, real_steps, refit_steps, share
        self.env = build(config["task"], "task", num_envs=min(episodes, 64), seed=0)

    def policy(self, state: dict[str, Any]) -> Path:
        return self._run(state, "policy") or Path(self.config["base"])

    def model(self, state: dict[str, Any]) -> Path:
        return self._run(state, "model") or Path(self.config["world"]["model"])

    def _run(self, state: dict[str, Any], key: str) -> Path | None:
        return below(self.run_dir, state[key], where=f"state.json: {key}") if state[key] else None

    def over(self, state: dict[str, Any], rounds: int) -> str:
        """Return the reason to stop, or "" to continue."""
        records = state["records"]
        if records and records[-1]["stop"]:
            return str(records[-1]["stop"])
        if len(records) >= rounds:
            return f"all {rounds} are done"
        used = records[-1]["real_steps_total"] if records else 0
        if not records and self.real_steps < 2 * self.env.spec.horizon:
            raise ConfigError(
                f"coevolve.real_steps={self.real_steps}: expected at least two episodes' steps, "
                f"{2 * self.env.spec.horizon} on {self.env.spec.id}."
            )
        if self.real_steps - used < 2 * self.env.spec.horizon:
            return f"{used} of {self.real_steps} real steps are taken, and two more episodes may need more than is left"
        return ""

    def round(self, state: dict[str, Any]) -> dict[str, Any]:
        """Run the next round, or the rest of an interrupted one."""
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
        evaluations = _once(folder / "evaluations.json", lambda: {
            "imagined": self._imagined_success(policy, self.model(state)),
            "imagined_refitted": self._imagined_success(policy, model),
            "before": None if self.config["world"].get("gate") else
            self._imagined_success(load_policy(self.policy(state), env=self.env.spec), self.model(state)),
            "faults": faults(load_world(model).report),
        })  # fmt: skip
        rival = None if finetunes_policy(self.config) else kept_last(records)
        left = self.patience - apart_in_a_row(records)
        record = record_of(number, rows, evaluations, gate=_decisions(imagined), used=used, rival=rival, left=left)
        usable = not evaluations["faults"] or bool(self.config["world"].get("even_if_bad"))
        print(f"round {number}: {record['reason']}")
        return {
            "records": [*records, record],
            "policy": f"{name}/imagined" if record["kept"] else state["policy"],
            "model": f"{name}/model" if usable else state["model"],
        }

    def _imagining(self, state: dict[str, Any], run_dir: Path, number: int) -> dict[str, Any]:
        config = copy.deepcopy(self.config)
        config |= {"run_dir": str(run_dir), "rounds": 0, "seed": config["seed"] + number}
        config |= self._tracker(run_dir)
        config["world"]["model"] = str(self.model(state))
        if finetunes_policy(config):
            config["base"] = str(self.policy(state))
        else:
            config["loop"]["rollouts"] = {**(config["loop"].get("rollouts") or {}), **self._rollouts(number - 1)}
        return config

    def _rollouts(self, rounds: int) -> dict[str, str]:
        """Return the rollouts of the first `rounds`."""
        return {f"round_{n}": str(self.run_dir / f"round_{n}" / "rollouts") for n in range(1, rounds + 1)}

    def _real(self, policy: Policy, folder: Path, *, first: int, count: int) -> EpisodeTable:
        """Roll out for real from each round's own starts, which no training or evaluation uses."""
        out, file = folder / "rollouts", folder / "rollouts.csv"
        seeds = episode_seeds("train", int(self.config["seed"]), count, start=_FIRST_SEED + first)
        if not (file.exists() and recorded(out) == "whole"):
            record_rollouts(policy, self.env, seeds, out, facts={"round": folder.name, "episodes": count}).save(file)
        return EpisodeTable.load(file)

    def _refitting(self, state: dict[str, Any], run_dir: Path, number: int) -> dict[str, Any]:
        """Return the first model's config with the newest weights and all rollouts beside its data."""
        first = run_of(Path(self.config["world"]["model"]))
        assert first is not None
        config = copy.deepcopy(read_config(first))
        if config is None or not config.get("loop") or config.get("seed") is None:
            raise ConfigError(f"world.model={first}: does not say how it was trained")
        loop, fresh = config["loop"], self._rollouts(number)
        weights = dict(loop.get("mix_weights") or {})
        open_share = {"dataset", *(loop.get("data") or {})} - weights.keys()  # of these, 1 together: see mix
        known = sum(weights.values()) + float(bool(open_share))
        each = known * self.share / max(1e-9, 1.0 - self.share) / len(fresh)
        loop |= {
            "init": str(self.model(state)), "steps": self.refit_steps, "data": {**(loop.get("data") or {}), **fresh},
            "mix_weights": {**weights, **dict.fromkeys(fresh, each)},
        }  # fmt: skip
        config |= {"run_dir": str(run_dir), "rounds": 0, "seed": config["seed"] + number}
        return config | self._tracker(run_dir) | {k: self.config[k] for k in ("threads",) if k in self.config}

    def _tracker(self, run_dir: Path) -> dict[str, Any]:
        """Return the tracker of a round's training, which is shown in one group with those of all rounds."""
        if "tracker" not in self.config:
            return {}
        name = self.run_dir.resolve().name
        return {"tracker": grouped(self.config["tracker"], name, f"{name} {run_dir.parent.name} {run_dir.name}")}

    def _imagined_success(self, policy: Policy, model: Path) -> list[float]:
        """Return the imagined success of `policy` in `model`, with its interval."""
        world = {**self.config["world"], "model": str(model), "even_if_bad": True, "branch": None}
        evaluation = ImaginedEvaluation.crossed(build(world, "world", num_envs=1, seed=0), self.starts)
        return list(evaluate_in_imagination(policy, evaluation).interval(level=LEVEL, resamples=2_000))


def finetunes_policy(config: dict[str, Any]) -> bool:
    return bool((config.get("policy") or {}).get(TARGET) == _FINETUNED)


def learns_off_policy(config: dict[str, Any]) -> bool:
    return bool((config.get("loop") or {}).get(TARGET) == _REPLAYED)


def _decisions(run_dir: Path) -> list[dict[str, Any]]:
    """Return the decisions of a run's gate; none without a gate."""
    file = run_dir / "gate.json"
    if not file.is_file():
        return []
    found = parse_json(read_bytes(file), str(file), finite=False)
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise CheckpointError(f"{file} is damaged: expected a list of objects")
    return found


def _once(file: Path, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the result of `work`, which runs once and is stored in `file`."""
    if not file.is_file():
        write_atomically(file, json.dumps(work(), indent=1) + "\n")
    return read_json(file, finite=False)
