"""The verbs of the command line as Python functions: same checks, same figures, same files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robopolicy.api.objects import Task, make_env, rollout
from robopolicy.cli.main import invoke
from robopolicy.config.hydra_configs import group_files
from robopolicy.config.overrides import ALIASES
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics
from robopolicy.datasets.demonstrations import RecordedDemos
from robopolicy.evaluation import compare as comparing
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.evaluation.saved import Split
from robopolicy.evaluation.training_seeds import compare_pooled
from robopolicy.policies.base import Policy
from robopolicy.policies.io import load_policy

Trained = Policy | Path | str  # a policy, or the path of one


def run(verb: str, *overrides: str, config_dir: Path | str | None = None, **settings: Any) -> Any:
    """Run a verb as the command line does.

    Args:
        verb: "train", "deploy", "data check", … as `robopolicy --help` lists them.
        *overrides: in the form of the command line, e.g. "policy=flow", "loop.steps=100".
        config_dir: folder with config groups of your own, as --config-dir names it: `<config_dir>/algo/mine.yaml` makes
            `algo="mine"`. `train`, `demos`, `evaluate` and `compare` take it too.
        **settings: the same as Python values: `run_dir="runs/a"`, an option of a group (`task="pick"`), several keys of
            a group (`loop={"steps": 100}`). None leaves the default.

    Returns:
        The result of the verb: metrics, rows, episodes, the path of a report.

    Raises:
        ConfigError: an unknown verb, option or key, or a value of another type; all faults at once.
        RobopolicyError: of the verb.

    Example:
        >>> rp.run("report", run_dir="runs/base").name
        report: ...
        'report.html'
    """
    folders = [] if config_dir is None else [Path(config_dir)]
    options, values, groups = list(overrides), dict[str, Any](), group_files(folders)
    for key, value in _leaves(settings):
        if value is None and "." in key:
            options.append(f"{key}=null")
        elif isinstance(value, str) and key in groups:
            options.append(f"{key}={value}")
        else:
            values[key] = value
    return invoke(verb, *options, config_dirs=folders, **values)


def _leaves(settings: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Key with dots and value of all settings; an empty mapping, and one with `_target_`, is one value."""
    for name, value in settings.items():
        key = above + (name if above else ALIASES.get(name, name) if isinstance(value, Mapping) else name)
        if isinstance(value, Mapping) and value and "_target_" not in value:
            yield from _leaves(value, f"{key}.")
        else:
            yield key, value


def demos(out: Path | str, *overrides: str, task: Task = "pick", episodes: int = 100, **settings: Any) -> RecordedDemos:
    """Record demonstrations of a task's scripted expert as a LeRobotDataset v3.

    Args:
        out: the dataset's folder.
        task: as for `make_env`.
        episodes: how many to keep.
        *overrides, **settings: further keys of `robopolicy demos`: expert_noise, cameras, overwrite, seed, …

    Returns:
        Counts of episodes and frames, and the seconds that it took.

    Raises:
        ConfigError: the task has no expert, or a key is wrong. DataError: `out` holds something else.

    Example:
        >>> rp.demos("data/more", task="reach", episodes=4).episodes
        4 demonstrations, ...
        4
    """
    found: RecordedDemos = run("demos", *overrides, out=Path(out), task=task, episodes=episodes, **settings)
    return found


def train(run_dir: Path | str, *overrides: str, **settings: Any) -> Metrics:
    """Train a policy or a world model; the same call on the same `run_dir` resumes.

    Args:
        run_dir: folder of configuration, curves and checkpoints; `load_policy` and `evaluate` take it.
        *overrides, **settings: keys of `robopolicy train`: `algo`, `policy`, `task`, `dataset`, `base`, `loop`, …;
            `config_dir` as for `run`.

    Returns:
        The last metrics of the loop, e.g. steps and `wall_s` in s.

    Raises:
        ConfigError: a key is wrong or missing. SpecError: env, data and policies do not fit together.
        DataError: the dataset cannot be trained on.

    Example:
        >>> rp.train("runs/flow", policy="flow", dataset="data/reach", loop={"steps": 5}, tracker="quiet")["steps"]
        trained: ...
        5
    """
    found: Metrics = run("train", *overrides, run_dir=Path(run_dir), **settings)
    return found


def evaluate(
    policy: Trained,
    *overrides: str,
    task: Task | None = None,
    episodes: int = 500,
    seed: int = 0,
    split: Split = "test",
    deterministic: bool = False,
    num_envs: int = 100,
    videos: int = 0,
    **settings: Any,
) -> EpisodeTable:
    """Run a policy on test episodes, the same ones as `robopolicy eval`.

    Args:
        policy: a path as for `load_policy`, or a policy. Rows of a path are saved in its run directory and used again
            while weights, task and code are the same; rows of a policy are not saved.
        task: as for `make_env`; None: the task that the run was trained on.
        episodes: E, how many.
        seed: 0 are the episodes of the command line; others are for a second look, and their rows are not saved.
        split: "test" or "validation".
        deterministic: the policy's mode instead of a sample.
        num_envs: N, episodes that run at a time.
        videos: films to write beside the rows, failures first.
        *overrides, **settings: further keys of `robopolicy eval` for a path: which, out, name, device, …

    Returns:
        One row an episode. Its success rate is shown with the 95% Wilson interval.

    Raises:
        ConfigError: no task, or a wrong key. CheckpointError: no policy there. SpecError: it does not fit the task.

    Example:
        >>> rp.evaluate("runs/base", episodes=4, out="results").success_rate().low >= 0
        base on reach, test seeds: ...
        True
    """
    if not isinstance(policy, Policy) and seed == 0:
        rows: EpisodeTable = run(
            "eval", *overrides, checkpoint=policy, task=task, episodes=episodes, split=split,
            deterministic=deterministic, num_envs=num_envs, videos=videos, **settings,
        )  # fmt: skip
        return rows
    if overrides or settings or videos:
        given = [*overrides, *settings, *(["videos"] if videos else [])]
        raise ConfigError(f"evaluate: got {given}, which need the path of a policy and seed=0. Leave them away.")
    if task is None:
        if isinstance(policy, Policy):
            raise ConfigError("task: got None, expected a task, for a policy does not know its own. Add task='pick'.")
        task = task_of(None, PolicyRef.of(Path(policy), "latest", Path()))
    env = make_env(task, num_envs=min(num_envs, episodes))
    found = policy if isinstance(policy, Policy) else load_policy(policy, env=env.spec)
    return rollout(found, env, episodes=episodes, split=split, seed=seed, deterministic=deterministic)


def compare(
    a: Trained | EpisodeTable | Sequence[Trained | EpisodeTable],
    b: Trained | EpisodeTable | Sequence[Trained | EpisodeTable],
    *overrides: str,
    task: Task | None = None,
    names: tuple[str, str] | None = None,
    episodes: int = 500,
    split: Split = "test",
    deterministic: bool = False,
    num_envs: int = 100,
    videos: int = 0,
    **settings: Any,
) -> Any:
    """Test whether policy B differs from policy A on the same episodes, as `robopolicy compare` does.

    Args:
        a, b: two paths, two policies, or two results of `rollout` or `evaluate`. `a` is the reference. Two lists of
            equal length are training seeds of two algorithms, paired in order.
        names: what to call them; None: of paths the command line's names, else "A" and "B".
        task, episodes, split, deterministic, num_envs: as for `evaluate`; not for results, which have them.
        videos: films of both side by side, for paths.
        *overrides, **settings: further keys of `robopolicy compare` for paths: out, device, …

    Returns:
        A Comparison: both success rates with 95% Wilson intervals, their difference with Tango's, and the exact McNemar
        p-value. Of lists a PooledComparison: these in `.seeds`, and the mean difference with a bootstrap interval.

    Raises:
        ConfigError: a wrong key, or lists of different length. DataError: results of different episodes or tasks.

    Example:
        >>> rows = rp.evaluate(rp.load_policy("runs/base"), task="reach", episodes=4)
        >>> rp.compare(rows, rows).p_value
        1.0
        >>> rp.compare([rows, rows], [rows, rows]).difference.value
        0.0
    """
    lists: list[list[Any]] = [[x] if isinstance(x, EpisodeTable | Policy | Path | str) else list(x) for x in (a, b)]
    several = not isinstance(a, EpisodeTable | Policy | Path | str)
    kinds = {EpisodeTable if isinstance(x, EpisodeTable) else Policy if isinstance(x, Policy) else Path
             for x in (*lists[0], *lists[1])}  # fmt: skip
    if len(kinds) > 1 or several == isinstance(b, EpisodeTable | Policy | Path | str):
        found = [type(x).__name__ for x in (a, b)]
        raise ConfigError(
            f"a, b: expected two paths, two policies or two results, got {found}. Give two of a kind, or two lists."
        )
    how: dict[str, Any] = dict(
        task=task, episodes=episodes, split=split, deterministic=deterministic, num_envs=num_envs
    )
    if kinds == {Path}:
        return run("compare", *overrides, a=a, b=b, names=names, videos=videos, **how, **settings)
    if kinds == {Policy}:
        lists = [[evaluate(policy, *overrides, videos=videos, **how, **settings) for policy in side] for side in lists]
    if several:
        return compare_pooled(*lists, names=names)
    return comparing.compare(*lists[0], *lists[1], names=names or ("A", "B"))
