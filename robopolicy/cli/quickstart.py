"""`robopolicy quickstart`: call the verbs for demonstrations, imitation, refinement, comparison and report."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from robopolicy.cli.main import invoke
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.schema import Count, Fraction, Natural, Node, Seed
from robopolicy.core.errors import ConfigError
from robopolicy.datasets.metadata import recorded
from robopolicy.evaluation.compare import Comparison, format_p
from robopolicy.runs.logger import grouped


def quickstart(
    *,
    out: Path,
    task: Node,
    tracker: Node,
    demos: Count = 60,
    expert_noise: Fraction = 1.0,
    bc_steps: Count = 3_000,
    rl_steps: Count = 30_000,
    episodes: Count = 500,
    videos: Natural = 4,
    seed: Seed = 0,
    threads: Count | None = None,
) -> Comparison:
    """Run all stages once, in `out`: data/, bc/, residual/ with report.html. Finished stages are not repeated.

    Args:
        out: directory of all stages. task: node of the task. tracker: node of the tracker of metrics.
        demos: number of demonstrations. expert_noise: imperfection of the expert, see `demos`.
        bc_steps: updates of the imitation. rl_steps: env steps of the refinement, more than its warm-up.
        episodes: number of episodes of the comparison. videos: number of films. seed: of everything random.
        threads: of torch; None: torch's choice, and one for the refinement.

    Returns:
        The comparison of the refined policy with its base.
    """
    _check_steps(rl_steps)
    console = Console()
    data, base, refined = out / "data", out / "bc", out / "residual"
    stages = Stages(console, total=5)
    name = str(task.get("task", "the task"))

    stages.run(
        "demonstrations", f"{demos} of an imperfect scripted expert on {name}",
        lambda: None if recorded(data) == "whole" else invoke(
            "demos", task=task, out=data, episodes=demos, expert_noise=expert_noise, seed=seed,
            overwrite=recorded(data) == "part",
        ),
    )  # fmt: skip
    shown = grouped(tracker, out.resolve().name)
    common: dict[str, Any] = {"dataset": data, "task": task, "seed": seed, "threads": threads, "tracker": shown}
    stages.run(
        "imitation", "a diffusion policy learns from them",
        lambda: invoke("train", "algo=bc", f"loop.steps={bc_steps}", run_dir=base, **common),
    )  # fmt: skip
    one = {**common, "threads": threads or 1}  # its networks are small: more gain nothing, and wait for busy cores
    stages.run(
        "refinement", "a residual learns from sparse success alone, on top of the frozen policy",
        lambda: invoke("train", "algo=residual", f"loop.total_steps={rl_steps}", run_dir=refined, base=base, **one),
    )  # fmt: skip
    result = stages.run(
        "comparison", f"both on the same {episodes} unseen episodes",
        lambda: invoke("compare", a=base, b=refined, task=task, episodes=episodes, videos=videos, threads=threads),
    )  # fmt: skip
    page = stages.run("report", "one page with all of it", lambda: invoke("report", run_dir=refined))
    _summary(console, stages, result, page, out)
    return result


def _check_steps(rl_steps: int) -> None:
    """Refuse a refinement that ends within its warm-up, before the stages that come first."""
    warmup = compose(find_verb("train"), ["algo=residual"], settings={"run_dir": "residual"})["loop"]["warmup_steps"]
    if rl_steps <= warmup:
        raise ConfigError(
            f"rl_steps={rl_steps}: expected more than {warmup}, in which the base acts alone and nothing is learned. "
            "Raise it."
        )


class Stages:
    """Announces and times the stages."""

    def __init__(self, console: Console, *, total: int) -> None:
        self.console, self.total = console, total
        self.seconds: dict[str, float] = {}

    def run(self, name: str, what: str, work: Callable[[], Any]) -> Any:
        self.console.print(f"\n[bold]{len(self.seconds) + 1}/{self.total} {name}[/]: {what}")
        began = time.monotonic()
        result = work()
        self.seconds[name] = time.monotonic() - began
        if self.seconds[name] < 1.0 and result is None:
            self.console.print("already there")
        return result


def _summary(console: Console, stages: Stages, result: Comparison, page: Path, out: Path) -> None:
    table = Table(title=f"{result.env}: {result.pairs.total} unseen episodes", title_justify="left")
    for column in ("", "success", "95% interval"):
        table.add_column(column, justify="left" if not column else "right")
    for name, rate in ((f"{result.a} (imitation)", result.rate_a), (f"{result.b} (refined)", result.rate_b)):
        table.add_row(name, f"{100 * rate.value:.1f}%", f"{100 * rate.low:.1f} to {100 * rate.high:.1f}")
    d = result.difference
    table.add_row("difference", f"{100 * d.value:+.1f} points", f"{100 * d.low:+.1f} to {100 * d.high:+.1f}")
    console.print()
    console.print(table)
    took = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in stages.seconds.items())
    console.print(f"paired exact McNemar p = {format_p(result.p_value)}: {result.verdict}")
    console.print(f"{sum(stages.seconds.values()):.0f} s in all ({took}), peak memory {peak_gib():.1f} GiB")
    console.print(f"open [bold]{page}[/] in a browser", soft_wrap=True)
    console.print(f"demonstrations, base and refined policy: {out}/{{data,bc,residual}}", soft_wrap=True)


def peak_gib() -> float:
    """Return the peak resident memory of this process, in GiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**30 if sys.platform == "darwin" else peak / 2**20
