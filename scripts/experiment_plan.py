"""Read scripts/experiments.yaml: bases, their refinements, and the words of the command line for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import ConfigDict, TypeAdapter

from robopolicy.core.errors import ConfigError, closest

FILE = Path(__file__).with_name("experiments.yaml")
Words = tuple[str, ...]  # of the command line


@dataclass(frozen=True)
class Base:
    """An imitation policy: `demos` successful demonstrations of an expert with the given expert noise, then BC."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    task: str
    demos: int
    expert_noise: float
    bc: Words = ("loop.steps=3000",)
    kind: str = ""  # tells bases of the same demonstrations apart
    lerobot: Words = ()  # options of the stock `lerobot-train`, which then takes the place of BC
    options: Words = ()  # of the task, for every stage: "task.name=Can"
    num_envs: int | None = None  # where demonstrations and evaluations cannot have the usual many
    episodes: int = 500  # of every evaluation on test episodes

    @property
    def label(self) -> str:
        """The task, with its name inside a suite or its arm: "metaworld-door-open-v3", "pick-ur5e"."""
        names = [o.partition("=")[2] for o in self.options if o.startswith(("task.name=", "task.arm="))]
        return "-".join([self.task, *names])

    @property
    def name(self) -> str:
        return f"{self.label}-{self.demos}x{self.expert_noise:g}" + (f"-{self.kind}" if self.kind else "")


@dataclass(frozen=True)
class Setting:
    """One kind of refinement of a base. `prefix` leads its settings' names: "", "<task>/" or "<task>/<group>/"."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    base: Base
    refine: dict[str, Words]  # setting -> words of `robopolicy train`, `refine` or `eval`: see `trains`
    prefix: str = ""
    seeds: tuple[int, ...] = ()  # training seeds; (): the experiment's
    task: Words = ()  # changes of the base's task: what it is evaluated and refined on
    student: Words = ()  # of a `train` on the base's data that makes what is refined in place of the base
    rollouts: int = 0  # episodes that the base plays and records before; {rollouts} in the words is their dataset
    in_mean: bool = True  # its `refined` counts in the mean over tasks

    @property
    def base_name(self) -> str:
        """The setting's name of the base itself: those of a task share it."""
        task, slash, _ = self.prefix.partition("/")
        return f"{task}{slash}base"

    def with_rollouts(self, path: Path) -> Setting:
        """Put the path of recorded rollouts into all words."""

        def filled(words: Words) -> Words:
            return tuple(word.replace("{rollouts}", str(path)) for word in words)

        refine = {name: filled(words) for name, words in self.refine.items()}
        return replace(self, student=filled(self.student), refine=refine)


@dataclass(frozen=True)
class Experiment:
    """Settings that make one page of results."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    settings: tuple[Setting, ...]
    seeds: tuple[int, ...] = (0, 1, 2)
    extra: tuple[str, ...] = ()  # what else is derived: "curve", "dip", "worse", "mean"
    compared: dict[str, tuple[str, str]] = field(default_factory=dict)  # row -> two settings: the second less the first
    runs: str = ""  # the experiment whose runs these are; "": its own
    kept: tuple[str, ...] = ()  # begins settings in the same file that other commands recorded, and that stay


def trains(words: Words) -> bool:
    """Whether a setting is a training; else the base or its student is evaluated: by another sampler, or elsewhere.

    With the word `refine` it is one of `robopolicy refine`, whose rules choose the settings.
    """
    return any(word == "refine" or word.startswith(("algo=", "experiment=")) for word in words)


def read_plan(path: Path = FILE) -> tuple[dict[str, Base], dict[str, Experiment]]:
    """Return bases and experiments of a file, by name.

    Raises:
        ConfigError: a setting names a base that is not there. ValueError: an unknown key, or a value of the wrong type.
        yaml.YAMLError: a key stands twice.
    """
    plan: Any = OmegaConf.to_container(OmegaConf.load(path))
    bases = TypeAdapter(dict[str, Base]).validate_python(plan["bases"])
    whole = {
        name: {**about, "settings": [s for group in about["settings"] for s in _settings(bases, **group)]}
        for name, about in plan["experiments"].items()
    }
    return bases, TypeAdapter(dict[str, Experiment]).validate_python(whole)


def _settings(
    named: Mapping[str, Base],
    *,
    bases: list[str] | dict[str, list[str] | None],
    refine: dict[str, list[str]],
    overrides: tuple[str, ...] = (),
    prefix: str | None = None,
    **others: Any,
) -> Iterator[dict[str, Any]]:
    """Yield the setting of each base. Later words win: those of all, of the refinement, of the base.

    Args:
        prefix: of the settings' names, where {task} is the base's; None: <task>/ where there are several bases.
    """
    own = bases if isinstance(bases, dict) else {name: [] for name in bases}
    for name, words in own.items():
        if name not in named:
            raise ConfigError(f"bases: there is no base {name!r}. {closest(name, named)}")
        label = named[name].label.lower()
        leads = f"{label}/" * (len(own) > 1) if prefix is None else prefix.replace("{task}", label)
        texts = {setting: [*overrides, *change, *(words or ())] for setting, change in refine.items()}
        yield {**others, "prefix": leads, "base": named[name], "refine": texts}


BASES, EXPERIMENTS = read_plan()
