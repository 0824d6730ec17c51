"""`robopolicy robustness`: evaluate a policy, with or without its base, under conditions outside its training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

from robopolicy.config.instantiate import build
from robopolicy.config.schema import Count, Device, Node
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import VecEnv, close
from robopolicy.core.untrusted import refusing
from robopolicy.envs.perturbations import UNITS, Grid, changes, check_grid, perturbed
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.evaluation.saved import Split, evaluated_rows
from robopolicy.reporting.robustness import Point, Robustness
from robopolicy.reporting.run_reader import label
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.run_dir import CONFIG
from robopolicy.utils.threads import set_threads


def robustness(
    *,
    checkpoint: Path,
    base: Path | None = None,
    task: Node | None = None,
    grid: Grid | None = None,
    names: tuple[str, ...] | None = None,
    episodes: Count = 200,
    split: Split = "test",
    deterministic: bool = False,
    out: Path | None = None,
    num_envs: Count = 100,
    device: Device = "cpu",
    threads: Count | None = None,
) -> Robustness:
    """Evaluate under every condition of the grid, one at a time, all policies on the same episodes.

    Rows, tables and curves are written to <out>/robustness. Existing rows of the same weights, task, seeds, settings
    and code are reused.

    Args:
        base: policy to compare with; None: none.
        names: of the base and the policy, or of the policy.
        checkpoint: run directory, checkpoint or policy directory. grid: values of each condition.
        episodes: number of episodes at every point.
        out: rows, tables and curves go to <out>/robustness; None: the run directory.
        task: node of the task; None: the one that the run was trained on.
        split: seeds of the episodes: test or validation. deterministic: use the policy's mode in place of a sample.
        num_envs: N, envs at a time. device: of the networks. threads: of torch; None: torch's choice.

    Raises:
        ConfigError: the task does not support a condition; raised before the first evaluation.
    """
    grid = grid or Grid()
    if not grid.points():
        raise ConfigError("grid: expected values of at least one condition, found none")
    set_threads(threads)
    place = PolicyRef.of(checkpoint, "latest", out)
    node = task_of(task, place)
    folder = place.out / "robustness"
    places = [p for p in (None if base is None else PolicyRef.of(base, "latest", folder), place) if p is not None]
    called = _called(names, (("base",) if base is not None else ()) + (place.name,))
    for p in places:
        p.out = folder
    count, rows = min(num_envs, episodes), dict[tuple[str, float], tuple[EpisodeTable, ...]]()
    with nullcontext() if task else refusing(f"{place.run}/{CONFIG}: task", ConfigError):
        first: VecEnv = build(node, "task", num_envs=count, seed=0)
    check_grid(node, first.spec, grid)
    policies = [load_policy(p.policy, device=device, env=first.spec) for p in places]
    if all(changes(node, what, value) for what, value in grid.points()):
        close(first)
    points = []
    for what, value in grid.points():
        nominal = not changes(node, what, value)
        key = ("nominal", 0.0) if nominal else (what, value)
        if key not in rows:
            env = first if nominal else perturbed(node, what, value, num_envs=count)
            said = "nominal" if nominal else f"{what}-{value:g}"
            files = [label(f"{name}-{said}", checkpoint=p.checkpoint, deterministic=deterministic, split=split)
                     for name, p in zip(called, places, strict=True)]  # fmt: skip
            rows[key] = tuple(
                evaluated_rows(policy, env, p, file, episodes, split, deterministic)
                for policy, p, file in zip(policies, places, files, strict=True)
            )
            close(env)
            rates = zip(called, (r.success_rate().value for r in rows[key]), strict=True)
            print(f"{said}: {', '.join(f'{n} {100 * rate:.1f}%' for n, rate in rates)}")
        points.append(Point(what, float(value), rows[key]))
    result = Robustness(tuple(called), points, UNITS)
    report = result.save(folder)
    print(result.text() + f"report: {report}")
    return result


def _called(names: tuple[str, ...] | None, usual: tuple[str, ...]) -> tuple[str, ...]:
    called = names or usual
    if len(called) != len(usual) or len({*called}) != len(called):
        raise ConfigError(f"names: expected {len(usual)} different names, found {list(called)}")
    return called
