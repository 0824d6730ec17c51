"""`robopolicy pipeline`: from demonstrations to a fast refined policy, in stages that are ordinary runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from robopolicy.cli.pipeline_stages import Flow, split_keys
from robopolicy.cli.quickstart import Stages
from robopolicy.cli.refine import own_dataset
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.schema import Count, Device, Fraction, Node
from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import WANDB, check_links
from robopolicy.evaluation.off_policy_evaluation import FEWEST
from robopolicy.evaluation.policy_ref import PolicyRef, task_of
from robopolicy.reporting.pipeline_page import StageResult, comparisons, write_pipeline_report
from robopolicy.runs.logger import grouped
from robopolicy.runs.run_dir import claimed
from robopolicy.utils.threads import set_threads

Stage = Literal["imitate", "collect", "offline", "online", "one_step", "compare"]
STAGES: dict[str, str] = {  # in order
    "imitate": "a policy learns from the demonstrations",
    "collect": "the policy acts, and its episodes are recorded, failures too",
    "offline": "a copy of the policy learns from these episodes, and a gate decides whether it is kept",
    "online": "reinforcement learning on top of the frozen policy, from success alone",
    "one_step": "a policy of one network call learns from the refined one",
    "compare": "every policy on the same unseen episodes",
}


def pipeline(
    *,
    out: Path,
    tracker: Node,
    task: Node | None = None,
    base: Path | None = None,
    dataset: Path | None = None,
    stages: tuple[Stage, ...] = ("imitate", "collect", "offline", "online", "one_step", "compare"),
    rollouts: Count = 300,
    look_episodes: Count = 100,
    env_steps: Count | None = None,
    level: Fraction = 0.9,
    imitate: dict[str, Any] | None = None,
    offline: dict[str, Any] | None = None,
    online: dict[str, Any] | None = None,
    one_step: dict[str, Any] | None = None,
    episodes: Count = 500,
    seed: int = 0,
    device: Device = "cpu",
    threads: Count | None = None,
) -> list[StageResult]:
    """Run stages from demonstrations, or from a policy, to a refined policy of one step; compare all on one page.

    Args:
        out: folder of all stages, out/<stage>. tracker: node of the tracker of metrics.
        task: node of the task; None: the one that the base was trained on.
        base: policy to begin with; None: imitate `dataset`.
        dataset: demonstrations; None: those that the base was trained on, where they still are.
        stages: that are run, in the order of `STAGES`. rollouts: number of episodes that `collect` records.
        look_episodes: validation episodes by which `online` chooses its settings, see `refine`.
        env_steps: budget of `online` in primitive env steps; None: by the rules of `refine`.
        level: confidence of the gate after `offline`, see the verb `gate`.
        imitate, offline, online, one_step: further keys of `robopolicy train` for that stage.
        episodes: number of episodes of the comparison. seed: of everything random.
        device: of the networks. threads: of torch; None: torch's choice.

    Returns:
        The results of the stages, in order.

    Raises:
        ConfigError: nothing to begin with, or a stage whose config or inputs changed since it began.
    """
    set_threads(threads)
    given = {"imitate": imitate, "offline": offline, "online": online, "one_step": one_step}
    more = {name: keys or {} for name, keys in given.items()}
    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    _check_folders(out)
    with claimed(out, "out"):
        flow = _begin(out, base, dataset, task, stages, more, rollouts)
        flow.common = {"seed": seed, "device": device, "threads": threads, "tracker": grouped(tracker, out.name)}
        work: dict[str, Callable[[], Any]] = {
            "imitate": flow.imitate,
            "collect": lambda: flow.collect(rollouts),
            "offline": lambda: flow.offline(level),
            "online": lambda: flow.online(look_episodes, env_steps),
            "one_step": flow.one_step,
            "compare": lambda: flow.compare(episodes),
        }
        chosen = [name for name in STAGES if name in stages and not (name == "imitate" and base is not None)]
        shown = Stages(console, total=len(chosen))
        for name in chosen:
            shown.run(name, STAGES[name], work[name])
        return _finish(flow, console)


def _check_folders(out: Path) -> None:
    """Refuse links that lead out of a stage, except for those of wandb, which lie in a folder of each run."""
    check_links(out, levels=1, where=f"out={out}", error=ConfigError)
    for stage in sorted(p for p in out.iterdir() if p.is_dir() and not p.is_symlink()):
        check_links(stage, apart=WANDB, where=f"out={out}: {stage.name}", error=ConfigError)


def _check_rollouts(rollouts: int, held_out: float) -> None:
    """Refuse too few episodes for the gate; the held-out ones are drawn, so half as many again are asked for."""
    found, least = rollouts * held_out, 1.5 * FEWEST
    if found < least:
        raise ConfigError(
            f"rollouts={rollouts}: about {found:.0f} of these episodes are held out for the gate, expected {least:.0f} "
            "or more. Raise rollouts or offline.loop.held_out, or leave the stage offline out."
        )


def _begin(
    out: Path, base: Path | None, dataset: Path | None, task: dict[str, Any] | None, stages: tuple[Stage, ...],
    more: dict[str, dict[str, Any]], rollouts: int,
) -> Flow:  # fmt: skip
    """Check the arguments of all stages, and return the stages, ready to run."""
    if base is None and (dataset is None or "imitate" not in stages):
        raise ConfigError(
            f"base: there is no policy to begin with: base=None, dataset={dataset}, stages={list(stages)}. Give "
            "base=<run directory>, or dataset=<demonstrations> with the stage imitate."
        )
    if base is None and task is None:
        raise ConfigError("task: is needed to begin with demonstrations. Choose one: task=<name>.")
    if "offline" in stages and "collect" not in stages:
        raise ConfigError("stages: `offline` learns from the episodes of `collect`. Add collect, or remove offline.")
    node = task
    if base is not None:
        ref = PolicyRef.of(base, "latest", out / "look")
        node, dataset = task_of(task, ref), dataset or own_dataset(ref)
    assert node is not None
    algos = {"imitate": "bc", "offline": "offline", "online": "residual", "one_step": "distill"}
    for name, keys in more.items():  # a typo is refused before hours of work
        words, settings = split_keys(keys)
        config = compose(
            find_verb("train"), [f"algo={algos[name]}", *words], settings={**settings, "run_dir": out / name}
        )
        if name == "offline" and name in stages:
            _check_rollouts(rollouts, float(config["loop"].get("held_out") or 0.0))
    flow = Flow(out, node, dataset, more)
    if base is not None:
        flow.policies["base"], flow.accepted = base, "base"
    return flow


def _finish(flow: Flow, console: Console) -> list[StageResult]:
    """Write the page, print the table, and return the results in order."""
    order = ["base", *STAGES]
    results = sorted(flow.results.values(), key=lambda stage: order.index(stage.name))
    page = write_pipeline_report(
        results, flow.out / "report.html", title=f"Pipeline {flow.out.absolute().name}",
        command=shlex.join(["robopolicy", *sys.argv[1:]]) if "pipeline" in sys.argv[1:2] else "",
    )  # fmt: skip
    console.print()
    console.print(_table(results))
    for stage in results:
        if not stage.accepted:
            console.print(f"{stage.name}: {stage.note}", soft_wrap=True)
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
