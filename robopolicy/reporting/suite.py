"""Describe a suite of tasks as data, and the result of its evaluation as table, JSON and page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from robopolicy.config.schema import Count, Node
from robopolicy.core.errors import ConfigError, closest
from robopolicy.core.rng import Split, episode_seeds, listed_seeds
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.statistics import Interval, wilson
from robopolicy.reporting import plots
from robopolicy.reporting.templates import render
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.provenance import command, hardware, version

_MOST_NAMES = 5  # of failed tasks in the name of the total
_RULES = {"success_once": "after some step", "success_at_end": "after the last step"}


@dataclass(frozen=True)
class Suite:
    """A benchmark: which tasks, how they are built, which episodes, and when one counts as a success.

    Args:
        name: of the results' folder.
        protocol: the rules in words; they stand in every table and report.
        task: the node that builds a task, without what differs from task to task.
        tasks: {key: additions to the node}; `name` defaults to the key.
        episodes: of each task.
        seeds: "drawn": `episode_seeds(split, 0, episodes)`; "in_order": numbers 0, 1, … of the split, for suites whose
            initial states are a fixed list.
        criterion: the success rule: after some step, or after the last one.
        num_envs: at most so many in a process, where each takes much memory.
    """

    name: str
    protocol: str
    task: Node
    tasks: dict[str, dict[str, Any]]
    episodes: Count = 50
    seeds: Literal["drawn", "in_order"] = "drawn"
    criterion: Literal["success_once", "success_at_end"] = "success_once"
    num_envs: Count = 50

    def nodes(self, only: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
        """Return the config node of every task, or of those in `only`.

        Raises:
            ConfigError: the suite is empty, or has no such task.
        """
        unknown = sorted(set(only) - set(self.tasks))
        if unknown:
            raise ConfigError(f"only: {self.name} has no task {unknown[0]!r}. {closest(unknown[0], self.tasks)}")
        if not self.tasks:
            raise ConfigError(f"suite.tasks: {self.name} has none")
        return {key: {**self.task, "name": key, **own} for key, own in self.tasks.items() if not only or key in only}

    def episode_seeds(self, split: Split, episodes: int) -> Tensor:
        """Return int64 [episodes], the same for every task.

        Raises:
            ConfigError: validation episodes, or more than there are, of a suite whose episodes are a fixed list.
        """
        if self.seeds == "drawn":
            return episode_seeds(split, 0, episodes)
        return listed_seeds(split, episodes, most=self.episodes, what=f"suite={self.name}")


@dataclass(frozen=True)
class SuiteResult:
    """Rows of evaluated tasks, in the suite's order; `missing`: tasks that failed, and why."""

    suite: Suite
    rows: Mapping[str, EpisodeTable]
    missing: Mapping[str, str] = field(default_factory=dict)

    def rate(self, task: str) -> Interval:
        return self.rows[task].success_rate(self.suite.criterion)

    @property
    def not_asked_for(self) -> list[str]:
        """Return the tasks that the command left out."""
        return [task for task in self.suite.tasks if task not in self.rows and task not in self.missing]

    @property
    def total_name(self) -> str:
        """Return "all", or how many tasks the total covers and which ones failed."""
        known = {*self.suite.tasks, *self.rows}
        if len(self.rows) == len(known):
            return "all"
        failed = list(self.missing)
        more = " …" if len(failed) > _MOST_NAMES else ""
        without = f", without {', '.join(failed[:_MOST_NAMES])}{more} (failed)" if failed else ""
        return f"{len(self.rows)} of {len(known)} tasks{without}"

    def total(self) -> Interval:
        """Return the episodes of all evaluated tasks pooled, with Wilson's interval.

        Every task counts by its episodes, of which all have the same number. Between tasks the rates differ, so the
        interval is wider than it had to be, never narrower.
        """
        outcomes = [s for rows in self.rows.values() for s in rows.successes(self.suite.criterion)]
        return wilson(sum(outcomes), len(outcomes))

    def records(self) -> list[dict[str, Any]]:
        """Return one mapping a task, then the total under `total_name`."""
        found = [
            {**_numbers(task, self.rate(task), [rows]), "policy": str(rows.frame["policy"].iloc[0])}
            for task, rows in self.rows.items()
        ]
        return [*found, _numbers(self.total_name, self.total(), [*self.rows.values()])]

    def text(self) -> str:
        """Return the table as Markdown, under its protocol."""
        rule, tasks = _RULES[self.suite.criterion], self.records()
        return render("suite.md", suite=self.suite, tasks=tasks, rule=rule, missing=self.missing,
                      not_asked_for=self.not_asked_for)  # fmt: skip

    def save(self, out: Path) -> Path:
        """Write table.md, suite.json and report.html into `out`."""
        facts = {"suite": self.suite.name, "protocol": self.suite.protocol, "criterion": self.suite.criterion,
                 "command": command(), "version": version(), "hardware": hardware(), "missing": dict(self.missing),
                 "not_asked_for": self.not_asked_for,
                 "tasks": self.records()}  # fmt: skip
        write_atomically(out / "suite.json", json.dumps(facts, indent=2) + "\n")
        write_atomically(out / "table.md", self.text())
        return write_atomically(out / "report.html", self._page(facts))

    def _page(self, facts: dict[str, Any]) -> str:
        rates = [plots.rate_whisker(task, self.rate(task), len(rows), "c1") for task, rows in self.rows.items()]
        rates.append(plots.rate_whisker(self.total_name, self.total(), sum(map(len, self.rows.values())), "c0"))
        policies = sorted({str(r["policy"]) for r in facts["tasks"] if "policy" in r})
        return render(
            "suite.html", title=self.suite.name, meta=[", ".join(policies[:3]) + (" …" if len(policies) > 3 else "")],
            rule=_RULES[self.suite.criterion], chart=plots.intervals_of_page(rates), **facts,
        )  # fmt: skip


def _numbers(task: str, rate: Interval, tables: list[EpisodeTable]) -> dict[str, Any]:
    episodes = sum(map(len, tables))
    steps = sum(float(rows.frame["length"].sum()) for rows in tables) / max(1, episodes)
    diverged = sum(rows.diverged for rows in tables)
    return {"task": task, **rate._asdict(), "episodes": episodes, "diverged": diverged, "steps": steps}
