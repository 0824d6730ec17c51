"""`robopolicy gate` in a world model: what may be judged there, and from which starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Node
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import EnvSpec
from robopolicy.evaluation.off_policy_evaluation import GateResult
from robopolicy.policies.base import Policy
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.inputs import same_input, there
from robopolicy.runs.run_dir import read_config
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.evaluation.calibration import success_faults
from robopolicy.world_models.evaluation.imagined_gain import decide_in_imagination

_UNREAD = {"part": "train", "start_at": "first", "branch": None}  # keys of the node that have no effect here
_GATE = {"level": 0.8, "enforce": True, "patience": None}  # and of its gate; `starts` has one
_Learner = tuple[str, Path | None, dict[str, Any]]  # name, run and config of a policy


def in_world(
    candidate: Path, base: Path, world: Node, learners: Sequence[_Learner], *, level: float, seed: int
) -> GateResult:
    """Judge `candidate` against `base` in the world model of an imagined env's node.

    A model with an imprecise judge of success will do, as it judges both policies; the result says so.

    Raises:
        ConfigError: one of `learners` learned in this model, another env than an imagined one, keys without an effect,
            a model that is no better than copying, or too few starts.
        CheckpointError: not a trained world model. SpecError: a policy does not fit it.
    """
    gate = _checked(world)
    model = there(str(world.get("model")))
    for name, at, its in learners:
        if at is not None and model == at.resolve():
            raise ConfigError(
                f"world.model={world['model']}: is the {name} itself. Give the run of a world model "
                "(train algo=world_model)."
            )
        if at is not None and _learned_in(at, its, model, str(world.get("model"))):
            raise ConfigError(
                f"world.model={world['model']}: the {name} learned in this world model, or in one that it was made "
                "from, and so fits its errors. Train another one."
            )
    env = _env(world, seed)
    where = "held-out starts"
    if world.get("starts"):
        env.held_out, where = lambda: env.starts, f"starts of {world['starts']}"
    one, other = (_policy(name, path, env.spec, world) for name, path in (("candidate", candidate), ("base", base)))
    result = decide_in_imagination(one, other, env, level=level, starts=int(gate.get("starts", 100)), seed=seed)
    return replace(result, faults=tuple(success_faults(env.world.report)), starts=where)


def _checked(world: Node) -> dict[str, Any]:
    """Return the node of its gate; refuse another env, and keys that have no effect."""
    if world.get("_target_") != "imagined":
        raise ConfigError(
            f"world={world.get('_target_')}: actions have no effect in it. Give world=imagined world.model=<run of "
            "train algo=world_model>, or dataset=<recorded rollouts>."
        )
    gate = dict(world.get("gate") or {})
    unread = [f"world.{key}={world[key]}" for key, usual in _UNREAD.items() if world.get(key, usual) != usual]
    unread += [f"world.gate.{key}={gate[key]}" for key, usual in _GATE.items() if gate.get(key, usual) != usual]
    if unread:
        raise ConfigError(
            f"{', '.join(unread)}: has no effect on `robopolicy gate`. It plays whole episodes, from first states that "
            "the model was not trained on or those of world.starts=<dataset>, and decides by level=. Leave it away."
        )
    return gate


def _learned_in(at: Path, its: dict[str, Any], model: Path | None, text: str) -> bool:
    """Return whether the run `at` learned in the model, in one of its rounds too, or in one that it was made from."""
    if model is not None and model.is_relative_to(at.resolve()):
        return True
    seen = set[Path]()
    while text:
        if same_input(at, "world.model", (its.get("world") or {}).get("model"), text, its):
            return True
        path = there(text)
        if path is None or path in seen:
            return False
        seen.add(path)
        text = str(((read_config(path) or {}).get("loop") or {}).get("init") or "")
    return False


def _env(world: Node, seed: int) -> ImaginedEnv:
    try:
        env: ImaginedEnv = build({**world, "gate": None, "even_if_imprecise": True}, "world", num_envs=1, seed=seed)
    except CheckpointError as error:
        raise CheckpointError(f"world.model={world.get('model')}: {error}") from None
    return env


def _policy(name: str, path: Path, spec: EnvSpec, world: Node) -> Policy:
    try:
        return load_policy(path, env=spec)
    except SpecError as error:
        raise SpecError(
            f"{name}={path}: does not fit world.model={world['model']}. Give a model of the task that it was trained "
            f"on, which predicts what it reads, or judge by dataset=<recorded rollouts>.\n{error}"
        ) from None
