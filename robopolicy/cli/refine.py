"""`robopolicy refine`: look at a base, choose settings by rules, train, compare and report."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from robopolicy.cli.main import invoke
from robopolicy.cli.quickstart import Stages
from robopolicy.cli.verbs import find_verb
from robopolicy.config import registry
from robopolicy.config.compose import compose, task_node
from robopolicy.config.hydra_configs import config_folder
from robopolicy.config.schema import TARGET, Count, Device, Natural, Node, Seed
from robopolicy.core.command_line import argument, hydra_text
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import FixedStarts, VecEnv
from robopolicy.core.untrusted import checked, read_json
from robopolicy.datasets.compatibility import check_same_data
from robopolicy.datasets.lerobot_reader import dataset_features, load_episodes
from robopolicy.evaluation.compare import Comparison
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef, env_of, task_of
from robopolicy.evaluation.saved import evaluated_rows
from robopolicy.policies.base import Policy
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.state_reading import places
from robopolicy.policies.state_vectors import joined, state_vectors
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.inputs import there
from robopolicy.runs.run_dir import check_no_dataset, check_same, has_checkpoint, read_config
from robopolicy.training.refinement_rules import BaseFacts, Choice, busy_remark, check_budget, choose
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.other_work import OtherWork
from robopolicy.utils.threads import set_threads

NUM_ENVS = 50  # of the look; rows are named by their N, as those of another show another speed
FACTS = "facts.json"  # of the look


def refine(
    *,
    base: Path,
    out: Path,
    tracker: Node,
    task: Node | None = None,
    dataset: Path | None = None,
    env_steps: Count | None = None,
    look_episodes: Count = 100,
    plan_only: bool = False,
    episodes: Count = 500,
    videos: Natural = 4,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Count | None = None,
) -> Comparison | None:
    """Refine a policy by settings that rules choose, and print them as an ordinary command.

    Args:
        base: run or policy directory of the policy to refine. out: directory of all stages, look/ and refined/.
        tracker: node of the tracker of metrics. task: node of the task; None: the one that the base was trained on.
        dataset: demonstrations; None: those that the base was trained on, where they still are.
        env_steps: budget of primitive env steps; None: by the rules.
        look_episodes: validation episodes that the base is looked at in. plan_only: print the command, and stop.
        episodes: number of episodes of the comparison. videos: number of films. seed: of everything random.
        device: of the networks. threads: of torch; None: torch's choice.

    Returns:
        The comparison of the refined policy with its base; None with `plan_only`.

    Raises:
        ConfigError: the base succeeds too rarely, the budget is too small, there is no task, `out` is a dataset, or the
            refinement in it began with other options.
    """
    check_budget(env_steps)
    check_no_dataset(out, "out")
    set_threads(threads)
    console = Console()
    stages = Stages(console, total=2 if plan_only else 5)
    ref = PolicyRef.of(base, "latest", out / "look")
    node, dataset = task_of(task, ref), dataset or own_dataset(ref)
    refined = out / "refined"
    facts = stages.run(
        "look", f"{look_episodes} validation episodes of {ref.name}, with and without sampling noise",
        lambda: look(ref, env_of(task, ref, min(NUM_ENVS, look_episodes)), look_episodes, dataset, device,
                     run=refined),
    )  # fmt: skip
    choices = stages.run("choice", "settings by the rules of docs/refine.md", lambda: choose(facts, env_steps))
    given = {"base": base, "dataset": dataset, "run_dir": refined, "seed": seed, "device": device, "threads": threads}
    overrides = _show(console, choices, node, given)
    if plan_only:
        return None
    common: dict[str, Any] = {"task": node, "threads": threads, "device": device}
    settings = {"run_dir": refined, "base": base, "dataset": dataset, "seed": seed, "tracker": tracker, **common}
    _check_begun(refined, overrides, settings)
    stages.run(
        "refinement", "it learns from success alone, on top of the frozen policy",
        lambda: invoke("train", *overrides, **settings),
    )  # fmt: skip
    result: Comparison = stages.run(
        "comparison", f"both on the same {episodes} unseen episodes",
        lambda: invoke("compare", a=base, b=refined, episodes=episodes, videos=videos, **common),
    )  # fmt: skip
    page = stages.run("report", "one page with all of it", lambda: invoke("report", run_dir=refined))
    console.print(f"open [bold]{page}[/] in a browser", soft_wrap=True)
    if result.b_is_worse:
        console.print(f"[bold red]the refined policy is worse than its base[/]: keep {base}", soft_wrap=True)
    return result


def own_dataset(ref: PolicyRef) -> Path | None:
    """Return the demonstrations that the base was trained on; None where they are gone."""
    config = (read_config(ref.run) if ref.run is not None else None) or {}
    return there(config["dataset"]) if config.get("dataset") else None


def _check_begun(run: Path, overrides: list[str], settings: dict[str, Any]) -> None:
    """Refuse other options than a refinement began with, in the words of `refine`."""
    if not has_checkpoint(run):
        return
    try:
        check_same(run, compose(find_verb("train"), overrides, settings=settings))
    except ConfigError as error:
        raise ConfigError(
            f"{error}\nOf `refine`: repeat its old base, task, dataset, seed and env_steps, or give a new out=. Keys "
            "that you did not give follow from env_steps by the rules."
        ) from None


def look(
    ref: PolicyRef, env: VecEnv, episodes: int, dataset: Path | None, device: str, *, run: Path
) -> BaseFacts:  # fmt: skip
    """Run a base on validation episodes, with and without sampling noise, and return the facts that rules read.

    A training that began keeps its facts: another look measures another speed, by which rules choose other settings.

    Args:
        run: that is trained by the rules.

    Raises:
        ConfigError: the file of kept facts is damaged.
    """
    if isinstance(env, FixedStarts):
        raise ConfigError(
            f"task: settings are chosen by validation episodes, and {env.spec.id} has none: its {env.fixed_starts} "
            "starts are all its test. Train by robopolicy train, with settings of your own"
        )
    file = ref.out / FACTS
    if has_checkpoint(run) and file.is_file():
        print(f"{run.name} began with the facts in {file}: no further look")
        return checked(BaseFacts, read_json(file, error=ConfigError), str(file), error=ConfigError)
    facts = _look(ref, env, episodes, dataset, device)
    write_atomically(file, json.dumps(asdict(facts), indent=1) + "\n")
    return facts


def _look(ref: PolicyRef, env: VecEnv, episodes: int, dataset: Path | None, device: str) -> BaseFacts:
    policy = load_policy(ref.policy, device=device, env=env.spec)
    of_dataset = _of_dataset(policy.spec, ref.policy, dataset)  # refuses before anything is played
    others = OtherWork()
    rows = evaluated_rows(policy, env, ref, f"sampled-{env.num_envs}", episodes, "validation", deterministic=False)
    share = others.share()
    mode = evaluated_rows(policy, env, ref, "mode", episodes, "validation", deterministic=True)
    facts = facts_of(policy, rows, mode, at_a_time=env.num_envs, demonstrations=dataset is not None)
    if remark := busy_remark(facts.steps_per_second, share, ref.out):
        print(remark)
    return replace(facts, **of_dataset)


def _of_dataset(spec: PolicySpec, base: Path, dataset: Path | None) -> dict[str, Any]:
    """Return the facts that a dataset shows: whether RL can learn from it, and the places that it does not have.

    Places that are zero in all demonstrations are of a thing that the task does not have.

    Raises:
        SpecError: the base reads no vector, or it and the dataset do not fit. DataError: see `load_episodes`.
    """
    vectors = {key: spec.observation[key] for key in state_vectors(spec.observation)}
    if dataset is None:
        return {}
    names = joined(vectors).names or ()
    episodes = load_episodes(dataset, needed=vectors)
    offered = replace(episodes, observation=dataset_features(dataset))  # pictures are checked, and not loaded
    check_same_data(spec, offered, base=base, dataset=dataset)
    if not episodes.outcomes:
        print(
            f"dataset={dataset}: says nothing of success, so RL reads none of its transitions. Where every episode is "
            f"a good one, say so first: robopolicy data import {argument('dataset', dataset)} outcomes=success"
        )
    zero = (torch.cat([episodes.obs[key] for key in vectors], dim=-1) == 0.0).all(dim=0).tolist()
    known = dict(zip(names, zero, strict=False))
    absent = tuple(place for place in places(names) if all(known[f"{place}_{axis}"] for axis in "xyz"))
    return {"demonstrations": episodes.outcomes, "absent": absent}


def facts_of(
    policy: Policy, rows: EpisodeTable, mode: EpisodeTable, *, at_a_time: int, demonstrations: bool
) -> BaseFacts:
    """Return the facts about a base from its episodes with and without sampling noise."""
    frame, observation = rows.frame, policy.spec.observation
    won = frame["length"][frame["success_once"]]
    vectors = {key: observation[key] for key in state_vectors(observation)}
    return BaseFacts(
        success=rows.success_rate().value,
        mode_success=mode.success_rate().value,
        episodes=len(rows),
        steps_per_second=at_a_time * float(frame["length"].sum()) / float(frame["wall_s"].sum()),
        success_steps=float(np.median(won)) if len(won) else 0.0,
        elements=(joined(vectors).names or ()) if vectors else (),
        pictures=any(len(feature.shape) == 3 for feature in observation.values()),
        demonstrations=demonstrations,
        instructions=len(policy.spec.tasks),
        chunks=isinstance(policy, DiffusionPolicy) and policy.spec.n_action_steps > 1,
    )


def _show(console: Console, choices: list[Choice], task: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """Print every rule's settings with its reason, and the command that they make; return its overrides."""
    table = Table(show_edge=False, pad_edge=False)
    table.add_column("settings", overflow="fold")
    table.add_column("because", overflow="fold")
    for choice in choices:
        table.add_row("\n".join(choice.overrides) or "–", choice.reason)
    console.print(table)
    overrides = [override for choice in choices for override in choice.overrides]
    words = ["robopolicy", "train", *task_overrides(task), *overrides,
             *(f"{k}={hydra_text(v)}" for k, v in given.items() if v is not None),
             *(word for module in registry.admitted() for word in ("--allow", module))]  # fmt: skip
    console.print(f"\nthe same by hand:\n{shlex.join(words)}", soft_wrap=True, markup=False, highlight=False)
    return overrides


def task_overrides(node: dict[str, Any]) -> list[str]:
    """Return the words of the command line that choose a task: the option that is closest, and what differs from it."""
    options = {file.stem: task_node(file.stem) for file in sorted((config_folder() / "task").glob("*.yaml"))}
    same = {n: o for n, o in options.items() if o[TARGET] == node[TARGET] and o.keys() <= node.keys()}
    if not same:  # of the user's own folder of configs
        return [f"task.{key}={hydra_text(value)}" for key, value in node.items()]
    name = min(same, key=lambda n: (-sum(node[k] == v for k, v in same[n].items()), len(same[n])))
    keys = [k for k, v in node.items() if k not in same[name] or same[name][k] != v]
    return [f"task={name}", *(f"task.{k}={hydra_text(node[k])}" for k in keys)]
