"""What a training is made of: each part is made from the arguments of `train` when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from robopolicy.config.instantiate import build, resolve
from robopolicy.config.schema import TARGET, parameters
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.specs import PolicySpec, check_fits, with_cameras
from robopolicy.core.types import BASE_ACTION, IMAGES, TASK, EnvSpec, Metrics, VecEnv
from robopolicy.datasets.compatibility import check_same_data, check_same_spec, check_same_statistics, check_same_world
from robopolicy.datasets.episodes import Episodes
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.envs.wrappers import GroupedEnv, wrap_for
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy
from robopolicy.policies.finetuning import resampled
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.zero_action import HOLD, HOLD_NODE
from robopolicy.runs.checkpointer import Checkpointer, load_policy
from robopolicy.runs.logger import Tracker
from robopolicy.utils.storage import load_weights, read_tensors

_ANCHOR = 0.01  # in imagination, where `algo.anchor` does not say
_LOOKS = 8  # evaluation points of a gate, where `loop.eval_every` does not say
_EVAL_ENVS = 100  # envs that validation episodes are run in; outcomes do not depend on it


@dataclass(frozen=True)
class TrainArguments:
    """The arguments of `train` that parts are made from."""

    run_dir: Path
    policy_node: dict[str, Any] | None
    loop: dict[str, Any]
    algo: dict[str, Any] | None
    task: dict[str, Any] | None
    dataset: Path | None
    incomplete: bool
    base: Path | None
    steps: tuple[int, int, int]  # To, H, Ta
    cameras: tuple[str, ...] | None
    num_envs: int
    validation_episodes: int
    seed: int
    device: torch.device
    world: dict[str, Any] | None
    world_node: dict[str, Any] | None
    group_size: int | None
    teacher: Path | None
    teacher_sampling: dict[str, Any] | None


class Parts:
    """What loops, algorithms and policies may ask for, by the name of a parameter; each is made on first use."""

    NAMES = ("algo", "anchor", "base", "cameras", "checkpointer", "dataset", "demos", "device", "env", "episodes",
             "evaluate", "group_size", "incomplete", "normalizer", "policy", "seed", "spec", "steps", "stop", "teacher",
             "world_model")  # fmt: skip

    def __init__(self, settings: TrainArguments, checkpointer: Checkpointer) -> None:
        self.settings, self.checkpointer = settings, checkpointer
        self.seed, self.device = settings.seed, settings.device
        self.resumed = checkpointer.latest_path()
        self.tracker: Tracker  # made last, once everything is known to fit
        self._keeping: Any = None  # the checkpoints of a training whose world judges what is learned in it

    def complete(self, node: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Arguments that the node's target takes and its config leaves to the program."""
        known, _ = parameters(resolve(node, where), node)
        return {name: getattr(self, name) for name in known if name in self.NAMES and name not in node}

    def offered(self, loop: Mapping[str, Any], name: str) -> dict[str, Any]:
        known, _ = parameters(resolve(loop, "loop"), loop)
        return {name: getattr(self, name)} if name in known else {}

    # -- the world ---------------------------------------------------------------------------------------------------
    @cached_property
    def env_spec(self) -> EnvSpec | None:
        return None if self.settings.task is None and self.settings.world is None else self.raw_env.spec

    @cached_property
    def raw_env(self) -> VecEnv:
        s = self.settings
        if s.world is not None:
            world = build(s.world, "world", num_envs=s.num_envs, seed=self.seed)
            if s.task is not None:
                true = build(s.task, "task", num_envs=1, seed=0)
                getattr(true, "close", lambda: None)()
                check_same_world(world.spec, true.spec)
            return world
        if s.task is None:
            raise ConfigError(f"task: is needed by {self._loop}. Choose one: task=<name>.")
        return build(s.task, "task", num_envs=s.num_envs, seed=self.seed)

    @property
    def world_model(self) -> dict[str, Any]:
        if self.settings.world_node is None:
            raise ConfigError(f"world_model: is needed by {self._loop}. Choose one: world_model=<name>.")
        return self.settings.world_node

    @cached_property
    def env(self) -> VecEnv:
        """Training envs in the pipeline of the policy: history, and the base's action where there is a base."""
        size = self.settings.group_size
        env = GroupedEnv(self.raw_env, size, seed=self.seed) if size else self.raw_env
        return wrap_for(self.policy, env, teacher=self.teacher if self.settings.teacher else None)

    @property
    def group_size(self) -> int:
        if self.settings.group_size is None:
            raise ConfigError("group_size: is needed by this algo: how many envs start in the same state, e.g. 8")
        return self.settings.group_size

    @cached_property
    def evaluate(self) -> Callable[[Policy, int], Metrics] | None:
        """Success on the validation episodes, the same ones every time; None without a task.

        The episodes of each evaluation stay in `evaluations/<step>.parquet`.
        """
        settings, task = self.settings, self.settings.task
        if task is None or settings.validation_episodes < 1:
            return None
        seeds = episode_seeds("validation", 0, settings.validation_episodes)
        envs: list[VecEnv] = []

        def score(policy: Policy, step: int) -> Metrics:
            if not envs:
                envs.append(build(task, "task", num_envs=min(_EVAL_ENVS, len(seeds)), seed=0))
            with torch.random.fork_rng():  # training goes on as if nobody had looked
                rows = evaluate(policy, envs[0], seeds, policy_id=f"step_{step}")
            rows.save(settings.run_dir / "evaluations" / f"{step:09d}.parquet")
            return rows.metrics()

        return score

    # -- data --------------------------------------------------------------------------------------------------------
    @property
    def dataset(self) -> Path | None:
        return self.settings.dataset

    @property
    def incomplete(self) -> bool:
        return self.settings.incomplete

    @property
    def cameras(self) -> tuple[str, ...] | None:
        return self.settings.cameras

    @cached_property
    def episodes(self) -> Episodes:
        """The dataset, checked against what is trained on it."""
        s = self.settings
        if s.dataset is None:
            raise ConfigError(
                f"dataset: is needed by {self._loop}. Give dataset=<path>; `robopolicy demos` records one."
            )
        if s.base is None:
            return load_episodes(s.dataset, cameras=s.cameras, incomplete=s.incomplete)
        needed = {k: v for k, v in self.base.spec.observation.items() if k != BASE_ACTION}
        episodes = load_episodes(s.dataset, needed=needed, incomplete=s.incomplete)
        check_same_data(self.base.spec, episodes, base=s.base, dataset=s.dataset)
        return episodes

    @property
    def demos(self) -> Episodes | None:
        """As `episodes`, where a dataset is given."""
        return None if self.settings.dataset is None else self.episodes

    # -- the policy --------------------------------------------------------------------------------------------------
    @cached_property
    def base(self) -> Policy:
        """The frozen policy underneath. A run keeps the one that it began with, whatever becomes of `base=` later."""
        given = self.settings.base
        if given is None:
            raise ConfigError(
                f"base: is needed by {self._policy_node[TARGET]}. Give base=<run directory> of a trained "
                f"policy, or base={HOLD} to learn from scratch."
            )
        if given == Path(HOLD):
            return build_policy(HOLD_NODE, "base", spec=self._offered_spec(self.raw_env.spec)).to(self.device)
        path = given
        if self.resumed:  # a fine-tuned policy has no base any more: it goes on from itself
            path = self.resumed / "policy"
            path = path / "base" if (path / "base").is_dir() else path
        with self._blamed("base", given):
            return load_policy(path, device=self.device, env=self.env_spec)

    @cached_property
    def teacher(self) -> Policy:
        given, sampling = self.settings.teacher, self.settings.teacher_sampling
        if given is None:
            raise ConfigError("teacher: is needed by this algo. Give teacher=<run directory> of a trained policy.")
        with self._blamed("teacher", given):
            policy = load_policy(given, device=self.device, env=self.env_spec)
        return resampled(policy, sampling, "teacher_sampling") if sampling else policy

    @cached_property
    def spec(self) -> PolicySpec:
        """What the policy shall read and command: as its base does, or else as the dataset has it."""
        s = self.settings
        if s.base is not None:
            spec = self.base.spec
            if self._policy_node.get("pictures"):
                return spec
            return replace(spec, observation={k: v for k, v in spec.observation.items() if not k.startswith(IMAGES)})
        return self._offered_spec(self.episodes if s.dataset is not None else self.raw_env.spec)

    def _offered_spec(self, source: Episodes | EnvSpec) -> PolicySpec:
        """All that a dataset or an env has to offer."""
        observation = {k: v for k, v in source.observation.items() if k != TASK or len(source.tasks) > 1}
        observation = with_cameras(observation, self.settings.cameras, where="cameras")
        action = source.action_spec if isinstance(source, Episodes) else source.action
        to, h, ta = self.settings.steps
        return PolicySpec(observation, action, source.dt, to, h, ta, source.tasks)

    @contextmanager
    def _blamed(self, key: str, given: Path | None) -> Iterator[None]:
        """Say where what does not fit the env came from."""
        try:
            yield
        except SpecError as error:
            if given is None or self.env_spec is None:
                raise
            raise SpecError(f"{key}={given}: {error}\nIs it of another task than task={self.env_spec.id}?") from None

    @cached_property
    def normalizer(self) -> Normalizer:
        spec = self.spec
        if self.settings.dataset is None:
            return Normalizer.from_limits(spec.observation, spec.action)
        return Normalizer(spec.observation, spec.action).fit(self.episodes)

    @cached_property
    def policy(self) -> Policy:
        node = self._policy_node
        policy = build_policy(node, "policy", **self.complete(node, "policy")).to(self.device)
        if self.resumed:
            check_same_spec(self.resumed, policy.spec)
        if self.env_spec is not None:
            with self._blamed("dataset", self.settings.dataset):
                check_fits(policy.spec, self.env_spec, ignore=[BASE_ACTION] if policy.base is not None else [])
        if self.resumed:  # the normaliser too is the one that the run began with
            weights = read_tensors(self.resumed / "policy" / "model.safetensors")
            check_same_statistics(self.resumed, policy.state_dict(), weights, dataset=self.settings.dataset)
            load_weights(policy, weights, skip="base." if policy.base is not None else "", where=str(self.resumed))
        return policy

    # -- learning ----------------------------------------------------------------------------------------------------
    def gated(self, loop: dict[str, Any], call: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """`loop` and its arguments where the env judges what is learned in it: its gate evaluates, and is saved.

        The true task is asked only where `loop.eval_every` says so, and to be logged alone.
        """
        node = getattr(self.raw_env, "gate", None) if {"env", "evaluate"} <= set(call) else None
        if node is None:
            return loop, call
        asked = loop.get("eval_every", 0) > 0
        truth = call["evaluate"] if asked else None
        gate = build(
            node, "gate", "world.gate", algo=self.algo, env=self.raw_env, truth=truth, run_dir=self.settings.run_dir
        )
        every = loop["eval_every"] if asked else max(1, self.steps // _LOOKS)
        self._keeping = gate.keeping(self.checkpointer)
        call = {**call, "evaluate": gate, "checkpointer": self._keeping}
        return {**loop, "eval_every": every}, call

    def finish(self) -> None:
        """After the loop, and before anybody is told that the training is over."""
        if self._keeping is not None:
            self._keeping.finish()

    @property
    def anchor(self) -> float:
        """Weight of the pull towards the base: what a model says far away from its data is not to be believed."""
        return 0.0 if self.settings.world is None else _ANCHOR

    @cached_property
    def algo(self) -> Any:
        if self.settings.algo is None:
            raise ConfigError(f"algo: is needed by {self._loop}. Choose one: algo=<name>.")
        return build(self.settings.algo, "algo", **self.complete(self.settings.algo, "algo"))

    @property
    def steps(self) -> int:
        """How long the loop will run, for schedules."""
        loop = self.settings.loop
        return int(loop["steps"] if "steps" in loop else loop["total_steps"])

    @property
    def stop(self) -> Callable[[], bool]:
        return lambda: self.checkpointer.requested

    @property
    def _loop(self) -> str:
        return str(self.settings.loop[TARGET])

    @property
    def _policy_node(self) -> dict[str, Any]:
        if self.settings.policy_node is None:
            raise ConfigError(f"policy: is needed by {self._loop}. Choose one: policy=<name>.")
        return self.settings.policy_node
