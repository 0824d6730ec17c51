"""Counts, for each suite, the tasks that reset, step, render, are evaluated and keep the contract of a VecEnv.

    python scripts/suite_coverage.py                        # all installed suites
    python scripts/suite_coverage.py maniskill robosuite --record   # writes their rows of suite_coverage.json
    python scripts/suite_coverage.py metaworld --only reach-v3

A task passes a check or is named with the reason. A task whose models have to be downloaded first is counted apart.
The contract: specs tell the truth, an episode is a function of its seed whatever the number of envs, time limits
truncate, and the successor is the state before the reset.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import keyed_uniform
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, Obs, Renderable, VecEnv, close
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.base import Policy
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.utils.suite_packages import PACKAGES, installed

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ("reset", "step", "render", "evaluate", "contract")
DOWNLOAD = "not on this machine"  # of the suite's message
LIBERO = ("libero_spatial", "libero_object", "libero_goal", "libero_10", "libero_90")
SUITES = ("metaworld", "robosuite", "maniskill", *LIBERO)
STEPS = 4
SEEDS = torch.tensor([2**41 + 5, 2**41 + 6, 2**41 + 7])  # test episodes


def _key(suite: str) -> str:
    """Return the key of a suite's package and module."""
    return "libero" if suite in LIBERO else suite


class Middle(Policy):
    """Holds every channel at the middle of its limits."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__()
        spec = env.spec
        self.spec = PolicySpec(spec.observation, spec.action, spec.dt, 1, 1, 1, spec.tasks)
        low, high = torch.tensor(spec.action.low), torch.tensor(spec.action.high)
        self.register_buffer("middle", (low + high) / 2)

    def act(self, obs: Obs, *, noise: torch.Tensor | None = None, deterministic: bool = False) -> torch.Tensor:
        middle: Any = self.middle
        return middle.expand(next(iter(obs.values())).shape[0], 1, -1)


def tasks_of(suite: str) -> dict[str, dict[str, Any]]:
    """Return {name: config node} of a suite's single-arm tasks."""
    module: Any = importlib.import_module(f"robopolicy.sim.suites.{_key(suite)}")
    if suite in LIBERO:
        fixed = {"_target_": "libero", "suite": suite, "cameras": []}
        return {str(i): {**fixed, "name": str(i)} for i in range(len(module.task_names(suite)))}
    names = module.table_top() if suite == "maniskill" else module.task_names()
    return {name: {"_target_": suite, "name": name} for name in names}


def check_task(node: dict[str, Any]) -> dict[str, str]:
    """Return {check: why it failed} of one task; a check that could not be reached fails for the first one's reason."""
    failed: dict[str, str] = {}
    envs: list[VecEnv] = []

    def make(count: int) -> VecEnv:
        envs.append(build({**node, "horizon": STEPS}, "task", num_envs=count, seed=0))
        return envs[-1]

    def attempt(name: str, check: Callable[[], None]) -> bool:
        try:
            check()
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return name not in failed

    found: list[Any] = []
    try:
        if not attempt("reset", lambda: begin(make(2))):
            return dict.fromkeys(CHECKS, failed["reset"])
        attempt("step", lambda: found.append(run(envs[0])))
        attempt("render", lambda: picture(envs[0]))
        if (
            attempt("evaluate", lambda: check(len(evaluate(Middle(make(1)), envs[1], SEEDS[:1])) == 1, "one row"))
            and found
        ):
            attempt("contract", lambda: contract(found[0], envs[0], run(envs[1], SEEDS[2:], STEPS - 1)))
    finally:
        for env in envs:
            close(env)
    if "contract" not in failed and (before := failed.get("step") or failed.get("evaluate")):
        failed["contract"] = before
    return failed


def check(holds: bool, what: str) -> None:
    if not holds:
        raise SpecError(f"expected: {what}")


def begin(env: VecEnv) -> None:
    obs = env.reset(SEEDS)  # which begins an episode twice, to see that it follows from its seed
    for key, feature in env.spec.observation.items():
        check(obs[key].shape == (env.num_envs, *feature.shape) and obs[key].dtype == feature.torch_dtype, key)
    names = env.spec.observation[STATE].names or ()
    check(len(set(names)) == env.spec.observation[STATE].shape[0], "a name of its own for every number of the state")
    check(bool((obs[STATE][0] != obs[STATE][1]).any()), "episodes of two seeds that differ")


def run(env: VecEnv, seeds: torch.Tensor = SEEDS, steps: int = 2 * STEPS - 1) -> dict[int, list[Any]]:
    """Return {seed: its steps} under noise that follows from seed and age; each step is (observation, Step, row)."""
    obs, age = env.reset(seeds), torch.zeros(env.num_envs, dtype=torch.int64)
    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    found: dict[int, list[Any]] = collections.defaultdict(list)
    for _ in range(steps):
        now = env.episode_seed.tolist()
        unit = keyed_uniform(env.episode_seed, age, (len(low),), stream=1)
        step = env.step(low + (high - low) * unit)
        for i, seed in enumerate(now):
            found[seed].append((obs[STATE][i], step, i))
        age, obs = torch.where(step.ended, 0, age + 1), step.obs
    return found


def picture(env: VecEnv) -> None:
    check(isinstance(env, Renderable), "render()")
    seen = env.render(0)  # type: ignore[attr-defined]
    check(seen.dtype == torch.uint8 and float(seen.float().std()) > 1.0, "a picture that shows something")


def contract(many: dict[int, list[Any]], env: VecEnv, alone: dict[int, list[Any]]) -> None:
    """Raise SpecError where steps of two envs, or of one alone, break the contract."""
    last = int(SEEDS[2])
    for (before, step, i), (_, own, k) in zip(many[last], alone[last], strict=True):
        check(bool(torch.isfinite(before).all()), "finite observations")
        check(torch.equal(step.next_obs[STATE][i], own.next_obs[STATE][k]), "the same episode whatever N")
    for seed in (int(s) for s in SEEDS[:2]):
        for t, (_, step, i) in enumerate(many[seed][:STEPS]):
            check(bool(step.truncated[i] | step.terminated[i]) == (t == STEPS - 1), f"an episode of {STEPS} steps")
    with_nan = torch.full((env.num_envs, env.spec.action.dim), float("nan"))
    try:
        env.step(with_nan)
    except SpecError:
        return
    check(False, "an action of NaN is refused")


def cover(suite: str, only: list[str]) -> list[Evidence]:
    """Check all tasks of a suite, print each, and return its rows."""
    nodes = {name: node for name, node in tasks_of(suite).items() if not only or name in only}
    began, passed, reasons, absent = time.perf_counter(), collections.Counter[str](), {}, []
    for name, node in nodes.items():
        failed = check_task(node)
        passed.update(c for c in CHECKS if c not in failed)
        passed["whole"] += not failed
        if DOWNLOAD in failed.get("reset", ""):
            absent.append(name)
        elif failed:
            reasons[name] = "; ".join(f"{k}: {v}" for k, v in failed.items())[:160]
        print(f"{suite} {name}: {failed if failed else 'passes'}", flush=True)
    version = f"{PACKAGES[_key(suite)].distribution} {installed(PACKAGES[_key(suite)].distribution)}"
    counts = {"tasks": len(nodes), **{c: passed[c] for c in (*CHECKS, "whole")}, "to_download": len(absent),
              "failed": len(reasons)}  # fmt: skip
    notes = {"tasks": version, "to_download": ", ".join(absent),
             "failed": "; ".join(f"{name} ({why})" for name, why in reasons.items())}  # fmt: skip
    wall = time.perf_counter() - began
    return [
        measured(
            id="suite_coverage", setting=suite, metric=metric, interval=n, notes=notes.get(metric, ""), wall_s=wall
        )
        for metric, n in counts.items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="suite", help=", ".join(SUITES))
    parser.add_argument("--only", nargs="*", default=[], help="names of tasks")
    parser.add_argument("--record", action="store_true", help="write docs/results/suite_coverage.json")
    options = parser.parse_args()
    if unknown := [s for s in options.suites if s not in SUITES]:
        parser.error(f"unknown suite {unknown[0]!r}; known: {', '.join(SUITES)}")
    chosen = options.suites or [s for s in SUITES if installed(PACKAGES[_key(s)].distribution) is not None]
    misses = 0
    for suite in chosen:
        try:
            rows = cover(suite, options.only)
        except ConfigError as error:
            print(f"{suite}: {error}")
            misses += 1
            continue
        print(f"{suite}: " + ", ".join(f"{row.metric} {row.value}" for row in rows), flush=True)
        misses += sum(int(row.value) for row in rows if row.metric == "failed")
        if options.record:
            write(rows, root=ROOT / "docs" / "results")
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
