"""`robopolicy pipeline`: from demonstrations to a fast refined policy, in stages that are ordinary runs."""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from robopolicy.cli.pipeline_films import COMPARED
from robopolicy.cli.pipeline_gate import Estimator, PipelineGate
from robopolicy.cli.pipeline_names import named
from robopolicy.cli.pipeline_plan import PlannedStage, Stage, begin, plan
from robopolicy.cli.pipeline_stages import Flow
from robopolicy.cli.quickstart import Stages
from robopolicy.config.schema import Count, Device, Fraction, Natural, Node, Seed
from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import WANDB, check_links
from robopolicy.reporting.pipeline_page import StageResult, comparisons, write_pipeline_report
from robopolicy.runs.folder_lock import claimed
from robopolicy.runs.logger import grouped
from robopolicy.runs.run_dir import CONFIG
from robopolicy.training.refinement_rules import check_budget
from robopolicy.utils.threads import set_threads


def pipeline(
    *,
    out: Path,
    tracker: Node,
    task: Node | None = None,
    base: Path | None = None,
    dataset: Path | None = None,
    demos: Count | None = None,
    expert_noise: Fraction = 0.0,
    stages: tuple[Stage, ...] = ("imitate", "collect", "offline", "online", "one_step", "compare"),
    rounds: Count = 1,
    rollouts: Count = 300,
    look_episodes: Count = 100,
    env_steps: Count | None = None,
    gate: Estimator = "world_model",
    level: Fraction = 0.9,
    imitate: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    offline: dict[str, Any] | None = None,
    online: dict[str, Any] | None = None,
    one_step: dict[str, Any] | None = None,
    episodes: Count = 500,
    videos: Natural = 4,
    num_envs: Count | None = None,
    seed: Seed = 0,
    device: Device = "cpu",
    threads: Count | None = None,
) -> list[StageResult]:
    """Run stages from demonstrations, or from a policy, to a refined policy of one step; compare all on one page.

    Args:
        out: folder of all stages, out/<stage>. tracker: node of the tracker of metrics.
        task: node of the task; None: the one that the base was trained on.
        base: policy to begin with; None: imitate `dataset`.
        dataset: demonstrations; None: those that the base was trained on, where they still are.
        demos: number of demonstrations that the expert of the task records, where neither dataset nor base is given.
        expert_noise: of that expert, see `demos`.
        stages: that are run, in their order. rollouts: number of episodes that each `collect` records.
        rounds: of recording, imitation and offline learning; each begins with the accepted policy and all episodes.
        look_episodes: validation episodes by which `online` chooses its settings, see `refine`.
        env_steps: budget of `online` in primitive env steps; None: by the rules of `refine`.
        gate: what it asks: a world model of all episodes, which the stage `model` learns, or fitted Q evaluation. It
            asks the latter too where the episodes do not make a model.
        level: confidence of the gate, see the verb `gate`.
        imitate, model, offline, online, one_step: further keys of `robopolicy train` for that stage.
        episodes: number of episodes of the comparison. videos: films of the first and the last accepted policy side by
            side, differing outcomes first.
        num_envs: N, envs at a time of all stages but `online`; None: as each command has it.
        seed: of everything random. device: of the networks. threads: of torch; None: torch's choice.

    Returns:
        The results of the stages, in order.

    Raises:
        ConfigError: nothing to begin with, too small a budget, or a stage whose config or inputs changed since
            it began.
    """
    check_budget(env_steps)
    set_threads(threads)
    given = {"imitate": imitate, "model": model, "offline": offline, "online": online, "one_step": one_step}
    more = {name: keys or {} for name, keys in given.items()}
    console = Console()
    if (out / CONFIG).exists() or (out / "meta").exists():
        raise ConfigError(
            f"out={out}: is a run or a dataset. A pipeline puts its stages below a folder: give a new one"
        )
    _make_folder(out)
    with claimed(out, "out"):
        flow = begin(out, base, dataset, task, stages, more, rollouts=rollouts, rounds=rounds, demos=demos,
                     gate=PipelineGate(gate, level))  # fmt: skip
        flow.common = {"seed": seed, "device": device, "threads": threads, "tracker": grouped(tracker, out.name)}
        flow.num_envs = num_envs
        work: dict[str, Callable[[int], Any]] = {
            "demos": lambda _: flow.demonstrate(demos or 0, expert_noise),
            "imitate": flow.imitate,
            "collect": lambda n: flow.collect(rollouts, n),
            "model": flow.model,
            "offline": flow.offline,
            "online": lambda _: flow.online(look_episodes, env_steps),
            "one_step": lambda _: flow.one_step(),
            "compare": lambda _: flow.compare(episodes, videos),
        }
        steps = list(plan(stages, rounds, demos=demos is not None, base=base is not None,
                          model=gate == "world_model"))  # fmt: skip
        shown = Stages(console, total=len(steps))
        for stage, n, about in steps:
            if n == 1 or not flow.settled:
                shown.run(named(stage, n), about, functools.partial(work[stage], n))
        return _finish(flow, steps, console)


def _make_folder(out: Path) -> None:
    """Make the folder, and refuse links that lead out of a stage. Those of wandb lie in a folder of each run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"out={out}: is a file, or lies below one. Give a folder.") from None
    check_links(out, levels=1, where=f"out={out}", error=ConfigError)
    for stage in sorted(p for p in out.iterdir() if p.is_dir() and not p.is_symlink()):
        check_links(stage, apart=WANDB, where=f"out={out}: {stage.name}", error=ConfigError)


def _finish(flow: Flow, steps: list[PlannedStage], console: Console) -> list[StageResult]:
    """Write the page, print the table, and return the results in order."""
    order = ["base", *(named(step.stage, step.round) for step in steps)]
    results = sorted(flow.results.values(), key=lambda stage: order.index(stage.name))
    page = write_pipeline_report(
        results, flow.out / "report.html", title=f"Pipeline {flow.out.absolute().name}",
        command=shlex.join(["robopolicy", *sys.argv[1:]]) if "pipeline" in sys.argv[1:2] else "",
        compared=flow.out / COMPARED,
    )  # fmt: skip
    console.print()
    console.print(_table(results))
    if flow.settled:
        console.print(flow.settled, soft_wrap=True)
    for stage in results:
        if not stage.accepted:
            console.print(f"{stage.name}: {stage.note}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"open [bold]{page}[/] in a browser", soft_wrap=True)
    return results


def _table(results: list[StageResult]) -> Table:
    table, compared = Table(), comparisons(results)
    for column in ("stage", "success", "difference", "env steps", "minutes"):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for stage in results:
        rate = "" if stage.rows is None else f"{100 * stage.rows.success_rate().value:.1f}%"
        c = compared.get(stage.name)
        difference = "" if c is None else f"{100 * c.difference.value:+.1f} to {c.a}"
        steps = f"{stage.env_steps:,}" if stage.env_steps else ""
        minutes = f"{stage.seconds / 60:.1f}" if stage.seconds else ""
        table.add_row(stage.name, rate, difference, steps, minutes)
    return table
