"""`robopolicy pipeline`: from demonstrations to a fast refined policy, in stages that are ordinary runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from robopolicy.cli.quickstart import Stages
from robopolicy.cli.refine import NUM_ENVS, look, own_dataset
from robopolicy.cli.run_verb import call
from robopolicy.cli.verbs import find_verb
from robopolicy.config.compose import compose
from robopolicy.config.hydra_configs import group_files
from robopolicy.config.schema import Count, Device, Node
from robopolicy.core.errors import ConfigError
from robopolicy.core.trees import flatten
from robopolicy.core.untrusted import WANDB, check_links
from robopolicy.datasets.metadata import RecordingMeta, recorded
from robopolicy.evaluation.policy_ref import PolicyRef, env_of, task_of
from robopolicy.reporting.pipeline_page import StageResult, comparisons, write_pipeline_report
from robopolicy.runs.logger import grouped
from robopolicy.runs.run_dir import claimed, open_run
from robopolicy.runs.stages import StageRecords
from robopolicy.training.refinement_rules import choose
from robopolicy.training.teacher_episodes import FOLDER
from robopolicy.utils.threads import set_threads

Stage = Literal["imitate", "collect", "online", "one_step", "compare"]
STAGES: dict[str, str] = {  # in order
    "imitate": "a policy learns from the demonstrations",
    "collect": "the policy acts, and its episodes are recorded, failures too",
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
    stages: tuple[Stage, ...] = ("imitate", "collect", "online", "one_step", "compare"),
    rollouts: Count = 300,
    look_episodes: Count = 100,
    env_steps: Count | None = None,
    imitate: dict[str, Any] | None = None,
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
        imitate, online, one_step: further keys of `robopolicy train` for that stage.
        episodes: number of episodes of the comparison. seed: of everything random.
        device: of the networks. threads: of torch; None: torch's choice.

    Returns:
        The results of the stages, in order.

    Raises:
        ConfigError: nothing to begin with, or a stage whose config or inputs changed since it began.
    """
    set_threads(threads)
    more = {"imitate": imitate or {}, "online": online or {}, "one_step": one_step or {}}
    out.mkdir(parents=True, exist_ok=True)
    check_links(out, apart=WANDB, where=f"out={out}", error=ConfigError)
    with claimed(out, "out"):
        flow = _begin(out, base, dataset, task, stages, more)
        flow.common = {"seed": seed, "device": device, "threads": threads, "tracker": grouped(tracker, out.name)}
        work: dict[str, Callable[[], Any]] = {
            "imitate": flow.imitate,
            "collect": lambda: flow.collect(rollouts),
            "online": lambda: flow.online(look_episodes, env_steps),
            "one_step": flow.one_step,
            "compare": lambda: flow.compare(episodes),
        }
        chosen = [name for name in STAGES if name in stages and not (name == "imitate" and base is not None)]
        shown = Stages(flow.console, total=len(chosen))
        for name in chosen:
            shown.run(name, STAGES[name], work[name])
        return flow.finish()


def _begin(
    out: Path, base: Path | None, dataset: Path | None, task: dict[str, Any] | None, stages: tuple[Stage, ...],
    more: dict[str, dict[str, Any]],
) -> Flow:  # fmt: skip
    """Check what is given, before any stage runs."""
    if base is None and (dataset is None or "imitate" not in stages):
        raise ConfigError(
            f"base: there is no policy to begin with: base=None, dataset={dataset}, stages={list(stages)}. Give "
            "base=<run directory>, or dataset=<demonstrations> with the stage imitate."
        )
    if base is None and task is None:
        raise ConfigError("task: is needed to begin with demonstrations. Choose one: task=<name>.")
    node = task
    if base is not None:
        ref = PolicyRef.of(base, "latest", out / "look")
        node, dataset = task_of(task, ref), dataset or own_dataset(ref)
    assert node is not None
    algos = {"imitate": "bc", "online": "residual", "one_step": "distill"}
    for name, keys in more.items():  # a typo is refused before hours of work
        words, settings = _split(keys)
        compose(find_verb("train"), [f"algo={algos[name]}", *words], settings={**settings, "run_dir": out / name})
    flow = Flow(out, node, dataset, more)
    if base is not None:
        flow.policies["base"] = base
    return flow


@dataclass
class Flow:
    """The stages, with the policies and data that they have made so far.

    `policies`: path by stage, the newest accepted one last. `results`: by stage.
    """

    out: Path
    task: dict[str, Any]
    dataset: Path | None
    more: dict[str, dict[str, Any]]
    common: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, Path] = field(default_factory=dict)
    results: dict[str, StageResult] = field(default_factory=dict)
    console: Console = field(default_factory=Console)

    def __post_init__(self) -> None:
        self.records = StageRecords(self.out)

    @property
    def policy(self) -> Path:
        """The newest accepted policy."""
        return list(self.policies.values())[-1]

    def imitate(self) -> None:
        self._train("imitate", "algo=bc", dataset=self.dataset)
        self._made("imitate", note="")

    def collect(self, rollouts: int) -> None:
        """Record episodes of the policy in out/collect/data, from other starts than demonstrations of the same seed."""
        data, verb = self.out / "collect" / "data", find_verb("demos")
        settings = {
            "task": self.task, "out": data, "episodes": rollouts, "only_success": False,
            "expert": {"_target_": "policy", "checkpoint": self.policy}, "seed": self.common["seed"] + 1000,
            "threads": self.common["threads"],
        }  # fmt: skip
        config = compose(verb, settings=settings)
        kept = {key: value for key, value in config.items() if key != "out"}  # the folder may be moved
        with self.records.running("collect", kept) as todo:
            if todo:
                with open_run(data.parent, kept, begun=lambda _: recorded(data) == "whole"):
                    if recorded(data) != "whole":
                        self.records["collect"].env_steps = call(verb, config).frames
        meta = RecordingMeta.load(data)
        found = {} if meta is None else meta.provenance
        self._add("collect", note=f"{found.get('successes')} of {found.get('attempted')} episodes succeeded")

    def online(self, look_episodes: int, env_steps: int | None) -> None:
        record = self.records["online"]
        if not record.overrides:
            ref = PolicyRef.of(self.policy, "latest", self.out / "look")
            env = env_of(self.task, ref, min(NUM_ENVS, look_episodes))
            facts = look(self.policy, ref, env, look_episodes, self.dataset, self.common["device"])
            record.overrides = tuple(o for choice in choose(facts, env_steps) for o in choice.overrides)
        result = self._train("online", *record.overrides, base=self.policy, dataset=self.dataset)
        if result:
            record.env_steps = int(result["steps"])
        self._made("online", note=" ".join(record.overrides))

    def one_step(self) -> None:
        self._train("one_step", "algo=distill", teacher=self.policy)
        meta = RecordingMeta.load(self.out / "one_step" / FOLDER)
        found = {} if meta is None else meta.provenance
        self._made("one_step", note=f"from {found.get('successes')} successes of the policy before")

    def compare(self, episodes: int) -> None:
        """Evaluate every policy on test episodes; rows on disk of the same weights and code are used again."""
        for name, path in self.policies.items():
            settings = {
                "checkpoint": path, "task": self.task, "episodes": episodes, "videos": 0, "out": self.out / "compare",
                "name": name, "device": self.common["device"], "threads": self.common["threads"],
            }  # fmt: skip
            rows = call(find_verb("eval"), compose(find_verb("eval"), settings=settings))
            before = self.results.get(name, StageResult(name))
            self.results[name] = StageResult(**{**vars(before), "rows": rows})

    def finish(self) -> list[StageResult]:
        """Write the page, print the table, and return the results in order."""
        results = sorted(self.results.values(), key=lambda s: -1 if s.name == "base" else list(STAGES).index(s.name))
        page = write_pipeline_report(
            results, self.out / "report.html", title=f"Pipeline {self.out.absolute().name}",
            command=shlex.join(["robopolicy", *sys.argv[1:]]) if "pipeline" in sys.argv[1:2] else "",
        )  # fmt: skip
        self.console.print()
        self.console.print(_table(results))
        self.console.print(f"open [bold]{page}[/] in a browser", soft_wrap=True)
        return results

    def _train(self, name: str, *words: str, **inputs: Path | None) -> dict[str, float] | None:
        """Train a stage in its folder; None where it was done."""
        further, settings = _split(self.more[name])
        given = {**self.common, "task": self.task, "run_dir": self.out / name, **inputs, **settings}
        config = compose(find_verb("train"), [*words, *further], settings=given)
        with self.records.running(name, config) as todo:
            return call(find_verb("train"), config) if todo else None

    def _made(self, name: str, note: str) -> None:
        """Add the policy of a stage."""
        self._add(name, note=note, run=self.out / name, previous=next(reversed(self.policies), None))
        self.policies[name] = self.out / name

    def _add(self, name: str, **values: Any) -> None:
        record = self.records[name]
        self.results[name] = StageResult(name, env_steps=record.env_steps, seconds=record.seconds, **values)


def _split(keys: Mapping[str, Any]) -> tuple[list[str], dict[str, Any]]:
    """Return further keys of a stage as options of groups, "policy=flow", and values, {"loop.steps": 100}."""
    groups, values = group_files(()), flatten(keys)
    words = [f"{key}={value}" for key, value in values.items() if key in groups and isinstance(value, str)]
    return words, {key: value for key, value in values.items() if f"{key}={value}" not in words}


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
