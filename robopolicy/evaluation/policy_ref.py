"""Find a policy, the folder of its results, and the task of its training."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import TASK, Feature, VecEnv
from robopolicy.core.untrusted import WANDB, check_links, leads_inside, pointed, refusing
from robopolicy.datasets.lerobot_reader import dataset_features, load_episodes
from robopolicy.policies.base import Policy
from robopolicy.policies.find import is_ours, policy_digest
from robopolicy.policies.lerobot.find import HUB, training_run
from robopolicy.runs.checkpointer import find_policy
from robopolicy.runs.run_dir import CONFIG, own_task, read_config

_NOTHING = "none"  # memory=none


@dataclass
class PolicyRef:
    """Folders of a policy, of its run and of its results."""

    policy: Path
    run: Path | None
    out: Path
    name: str
    checkpoint: str = ""
    lerobot_run: Path | None = None
    provenance_suffix: str = ""  # names a memory or sampler that replaces the policy's own

    @classmethod
    def of(cls, path: Path, which: Literal["latest", "best"], out: Path | None) -> PolicyRef:
        policy = find_policy(path, which=which)
        if not is_ours(policy):
            return cls._of_lerobot(path, policy, out)
        if (fetched := _repository(path)) is not None:
            return cls(policy, None, _given(out, path), fetched)
        parents = policy.resolve().parents
        run = next((p for p in parents if (p / CONFIG).is_file()), None)
        steps = (p for p in parents if p.parent.name == "checkpoints" and p.name.startswith("step_"))
        folder = run or next((p.parents[1] for p in steps), None)  # the latter of a training in Python
        if folder is not None:
            check_links(folder, apart=WANDB)
        name = (folder or policy.resolve()).name
        checkpoint = which if which == "best" else _checkpoint(policy.resolve(), folder)
        return cls(policy, run, out or folder or _beside(policy), name, checkpoint=checkpoint)

    @classmethod
    def _of_lerobot(cls, path: Path, policy: Path, out: Path | None) -> PolicyRef:
        """Return a policy of LeRobot's: results go to <run>/robopolicy where `lerobot-train` wrote it."""
        if (fetched := _repository(path)) is not None:
            return cls(policy, None, _given(out, path), fetched)
        if (found := training_run(policy)) is None:
            return cls(policy, None, out or _beside(policy), policy.name)
        run, step = found
        if not leads_inside(run / "robopolicy", run):
            raise ConfigError(f"{run}: its robopolicy/ is a link that leads out of it; say with out=<folder>")
        check_links(run / "robopolicy")
        newest = (run / "checkpoints" / "last").resolve().name
        checkpoint = "" if step == newest else step
        return cls(policy, None, out or run / "robopolicy", run.name, checkpoint, lerobot_run=run)

    @property
    def ident(self) -> str:
        """Name of the weights: run, checkpoint and part of a checksum of all files, with `provenance_suffix`."""
        digest = policy_digest(self.policy)[:12]
        inner = ("policy", "pretrained_model")
        step = self.policy.resolve().parent.name if self.policy.name in inner else self.policy.name
        return f"{self.name}/{step}@{digest}{self.provenance_suffix}"


def _repository(path: Path) -> str | None:
    """Return <name> of hub:<owner>/<name>[@<revision>]; None for a path of this machine."""
    return str(path).partition("@")[0].rsplit("/", 1)[-1] if str(path).startswith(HUB) else None


def _given(out: Path | None, path: Path) -> Path:
    if out is None:
        raise ConfigError(f"{path}: is of the hub; say with out=<folder> where results go")
    return out


def _beside(policy: Path) -> Path:
    """Return the folder of results of a policy that lies in no run: <policy>-results, beside it.

    Raises:
        ConfigError: it is a link. CheckpointError: a link in it leads out.
    """
    found = policy.resolve()
    folder = found.with_name(f"{found.name}-results")
    if folder.is_symlink():
        raise ConfigError(f"{folder}: results do not follow links; say with out=<folder> where they go")
    check_links(folder)
    return folder


def _checkpoint(policy: Path, run: Path | None) -> str:
    """Return "" for the newest of its run or without a run, else "best", its name, or "base" for an inner policy."""
    folder = None if run is None else run / "checkpoints"
    if folder is None or folder not in policy.parents:
        return ""
    step, *inner = policy.relative_to(folder).parts  # step_…, policy, perhaps base
    if len(inner) > 1:
        return "-".join(inner[1:])
    marks = {pointed(folder / mark).name: name for mark, name in
             (("best", "best"), ("latest", "")) if (folder / mark).is_file()}  # fmt: skip
    return marks.get(step, step)


def task_of(given: dict[str, Any] | None, ref: PolicyRef) -> dict[str, Any]:
    """Return the task of the command line, or that of the run's training."""
    task = given or trained_task(ref)
    if task is None:
        raise ConfigError(
            f"task: {ref.name} has no task in its config; choose one: task=<name>. A policy of a robot's own data, "
            "which no task has, is played by the ROS 2 node alone (docs/ros2.md)"
        )
    return task


def trained_task(ref: PolicyRef) -> dict[str, Any] | None:
    """Return the task of a run's training; None where it had none, or there is no run."""
    return own_task((read_config(ref.run) if ref.run is not None else None) or {})


def env_of(
    given: dict[str, Any] | None, ref: PolicyRef, num_envs: int, changes: dict[str, Any] | None = None
) -> VecEnv:
    """Build the task of `task_of`, with `changes` of its parameters.

    Raises:
        ConfigError: it cannot be built; for the task of a run, any error of the env.
    """
    node = {**task_of(given, ref), **(changes or {})}
    with nullcontext() if given else refusing(f"{ref.run}/{CONFIG}: task", ConfigError):
        env: VecEnv = build(node, "task", num_envs=num_envs, seed=0)
    return env


def set_retrieval_memory(policy: Policy, memory: Path) -> str:
    """Replace a policy's retrieval memory by a dataset, or by nothing ("none"); return a suffix that names it."""
    episodes = None
    if policy.memory is not None and memory != Path(_NOTHING):
        index = {TASK: Feature((), "int64")} if TASK in dataset_features(memory) else {}
        own = {k: f for k, f in policy.spec.observation.items() if k != TASK}
        episodes = load_episodes(memory, needed={**own, **index})
    policy.set_retrieval_memory(episodes)
    assert policy.memory is not None
    return f"+{memory.name}@{policy.memory.digest()[:12]}"
