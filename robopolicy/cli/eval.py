"""`robopolicy eval`: run a checkpoint on episodes of a split."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from robopolicy.cli.eval_suite import evaluate_suite
from robopolicy.cli.task_label import task_label
from robopolicy.config.instantiate import build
from robopolicy.config.schema import TARGET, Count, Device, Natural, Node
from robopolicy.core.errors import ConfigError, RobopolicyError
from robopolicy.core.types import VecEnv
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef, env_of, set_retrieval_memory
from robopolicy.evaluation.saved import Split, evaluated_rows, filming, record_command
from robopolicy.evaluation.statistics import wilson
from robopolicy.evaluation.video import film
from robopolicy.policies.finetuning import check_sampling, resampled
from robopolicy.reporting.run_reader import label
from robopolicy.reporting.suite import Suite, SuiteResult
from robopolicy.runs.checkpointer import load_policy
from robopolicy.utils.threads import set_threads
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.envs.recorded import RecordedEnv


def evaluate(
    *,
    checkpoint: Path,
    task: Node | None = None,
    world: Node | None = None,
    suite: Suite | None = None,
    memory: Path | None = None,
    sampling: dict[str, Any] | None = None,
    only: tuple[str, ...] = (),
    which: Literal["latest", "best"] = "latest",
    episodes: Count | None = None,
    split: Split = "test",
    deterministic: bool = False,
    videos: Natural = 6,
    variants: dict[str, dict[str, Any]] | None = None,
    out: Path | None = None,
    name: str | None = None,
    num_envs: Count = 100,
    jobs: Count | None = None,
    device: Device = "cpu",
    threads: Count | None = None,
) -> EpisodeTable | SuiteResult:
    """Run a checkpoint on `episodes` episodes of a split; write rows and films to `out`.

    In a `world` the seeds choose imagined episodes; these rows are called "imagined" where they have no name.
    With a `suite` instead of a task: on all of its tasks, or those in `only` (cli/eval_suite.py).

    Args:
        memory: dataset of demonstrations for the policy's retrieval, in place of those that it was saved with; "none":
            no demonstrations. These rows are called "memory-<dataset>" where they have no name.
        sampling: changes of the policy's sampler, as policy.sampling of `train`: {sampling_steps: 1}. These rows are
            called "sampling_steps-1" and the like where they have no name; with `name` all samplers share one file.
        variants: name → parameters of the task that differ; each is evaluated on its own, on the same seeds.
        checkpoint: run directory, checkpoint or policy directory; for a suite, @ in it stands for the task's name.
        which: newest or best checkpoint of a run directory. world: node of an imagined env to evaluate in.
        suite: a benchmark, whose tasks are all evaluated. only: tasks of the suite; (): all.
        episodes: number of episodes; None: 500, or as many of each task as the suite says.
        videos: number of films, failures first. out: folder of rows and films; None: the run directory, or
            <policy>-results beside a policy that lies in none.
        name: of the rows: episodes-<name>.csv. jobs: processes of a suite; None: one a core, at most one a task.
        task: node of the task; None: the one that the run was trained on. Rows of another one are called after it.
        split: seeds of the episodes: test or validation. deterministic: use the policy's mode in place of a sample.
        num_envs: N, envs at a time. device: of the networks. threads: of torch; None: torch's choice.

    Returns:
        The rows; with several variants those of the first.
    """
    if suite is not None:
        if any(given is not None for given in (task, name, world, variants, memory, sampling)):
            raise ConfigError("suite: has its own tasks: leave task, name, world, variants, memory and sampling away")
        return evaluate_suite(
            suite, checkpoint, which=which, episodes=episodes, split=split, deterministic=deterministic, only=only,
            out=out, num_envs=num_envs, jobs=jobs, device=device, threads=threads,
        )  # fmt: skip
    if only or jobs is not None:
        raise ConfigError("only, jobs: are for suites; add suite=<name>, or leave them away")
    episodes = episodes or 500
    set_threads(threads)
    place, every = PolicyRef.of(checkpoint, which, out), []
    check_sampling(sampling or {}, "sampling")
    sampler = "-".join(f"{k}-{v}" for k, v in sorted((sampling or {}).items()))
    marks = [task_label(task, place), "imagined" if world is not None else "",
             f"memory-{memory.name}" if memory is not None else "", sampler]  # fmt: skip
    name = name or "-".join(filter(None, marks))
    every_variant = variants or {"": {}}
    if len(every_variant) > 1:
        _check_variants(every_variant, place, task, world)
    for variant, changes in every_variant.items():
        called = label(
            "-".join(filter(None, (name, variant))), checkpoint=place.checkpoint, deterministic=deterministic,
            split=split,
        )  # fmt: skip
        _check_films(called)
        env = _env(place, task, world, min(num_envs, episodes), changes)
        policy = load_policy(place.policy, device=device, env=env.spec)
        place.provenance_suffix = set_retrieval_memory(policy, memory) if memory is not None else ""
        if sampling:
            policy, place.provenance_suffix = resampled(policy, sampling), f"{place.provenance_suffix}+{sampler}"
        rows = evaluated_rows(policy, env, place, called, episodes, split, deterministic)
        record_command(place)
        every.append(rows)
        what = f"{env.spec.id}{f' ({variant})' if variant else ''}"
        print(f"{place.name}{place.provenance_suffix} on {what}, {split} seeds: {rows.summary()}{rows.task_table()}")
        if isinstance(env, ImaginedEnv):
            print(_by_starts(rows, env))
        if place.run is None:
            print(f"rows: {place.out}")
        if videos and world is None:
            out = place.out / "videos" / (called or split)
            filming(partial(film, policy, env, rows, out, count=videos, deterministic=deterministic))
    return every[0]


def _check_films(called: str) -> None:
    """Raise ConfigError for rows whose films would replace those of other rows."""
    if called == "test" or called.split("-")[0] == "pairs":
        whose = "the evaluation without a name" if called == "test" else "`robopolicy compare`"
        raise ConfigError(f"name {called!r}: its films would replace those of {whose}. Give another name.")


def _check_variants(
    variants: dict[str, dict[str, Any]], place: PolicyRef, task: Node | None, world: Node | None
) -> None:  # fmt: skip
    """Raise ConfigError for a variant that the task or the policy does not take, before any is evaluated."""
    for variant, changes in variants.items():
        try:
            load_policy(place.policy, env=_env(place, task, world, 1, changes).spec)
        except RobopolicyError as error:
            hint = f"To evaluate the others, leave it out: '~variants.{variant}'"
            raise ConfigError(f"variants.{variant}: {error}\n{hint}") from error


def _env(place: PolicyRef, task: Node | None, world: Node | None, num_envs: int, changes: dict[str, Any]) -> VecEnv:
    """Build the task or the world with `changes` of its parameters."""
    env = env_of(task, place, num_envs, changes) if world is None else _world({**world, **changes}, num_envs)
    if env.spec.branches:
        raise ConfigError("world.branch: cuts episodes, and a policy is evaluated on whole ones. Leave it away.")
    return env


def _world(node: Node, num_envs: int) -> VecEnv:
    """Build a world to evaluate in.

    Raises:
        ConfigError: actions have no effect in it.
    """
    env: VecEnv = build(node, "world", num_envs=num_envs, seed=0)
    if isinstance(env, RecordedEnv):
        raise ConfigError(
            f"world={node[TARGET]}: plays what was recorded, whatever the policy does. Give world=imagined "
            "world.model=<run of train algo=world_model>, or task=<name>."
        )
    return env


def _by_starts(rows: EpisodeTable, env: ImaginedEnv) -> str:
    """Return the interval of as many episodes as there are starts: those of one start are not independent."""
    count = len(env.starts_of(torch.tensor(rows.seeds)).unique())
    rate = rows.success_rate().value
    low, high = wilson(rate * count, count)[1:]
    return f"They begin in {count} recorded starts. By their number the interval is {100 * low:.1f}–{100 * high:.1f}%."
