"""Read the sweeps of a command line, and run them with Hydra's sweepers and launchers.

Hydra chooses the values and starts the jobs, in this process or in others. It does not compose their configs: `compose`
does, as for a single run. So the config of a job is that of the command with one value in place of each sweep.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robopolicy.config.hydra_configs import group_files
from robopolicy.config.sweep_task import Job, SweepTask, Values
from robopolicy.core.errors import UsageError, closest
from robopolicy.utils.install_commands import pip_install

_PACKAGES = {  # of plug-ins that are not in hydra-core
    "hydra/launcher": {"joblib": "robopolicy[sweep]", "submitit_local": "robopolicy[sweep]",
                       "submitit_slurm": "robopolicy[sweep]", "ray": "robopolicy[ray]"},
    "hydra/sweeper": {"optuna": "robopolicy[optuna]", "ax": "hydra-ax-sweeper", "nevergrad": "hydra-nevergrad-sweeper"},
}  # fmt: skip
_TAKEN = re.compile(r"hydra/(launcher|sweeper|sweeper/sampler)$|hydra\.(launcher|sweeper)\.(?!params\b)(?!.*_target_)")
_SETTINGS = {  # (option, key): value, unless the command line gives it
    ("joblib", "hydra.launcher.batch_size"): "1",  # jobs that are finished already would be bundled with long ones
    ("optuna", "hydra.sweeper.direction"): "maximize",
    ("optuna", "hydra.sweeper.max_failure_rate"): "1.0",  # other jobs go on
    ("optuna", "hydra.sweeper.sampler.seed"): "0",  # a sweep that starts again proposes the same values
}
_QUIET = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null", "hydra.sweep.subdir=.")


@dataclass(frozen=True)
class Sweep:
    """Overrides of a command line of which some have several values.

    Args:
        texts: all overrides but Hydra's, as given.
        values: {key: the values that it takes} of the swept ones; the ends of an interval.
        intervals: {key: Hydra's sweep as given} of those that are continuous.
        ranges: the same of all others.
        hydra: choices and settings of launcher and sweeper.
    """

    texts: tuple[str, ...]
    values: dict[str, tuple[str, ...]]
    intervals: dict[str, str] = field(default_factory=dict)
    ranges: dict[str, str] = field(default_factory=dict)
    hydra: tuple[str, ...] = ()

    def option(self, group: str) -> str:
        """Return the chosen option of `hydra/launcher` or `hydra/sweeper`."""
        return next((text.partition("=")[2] for text in self.hydra if text.startswith(f"{group}=")), "basic")

    @property
    def optimises(self) -> bool:
        """Return whether the sweeper chooses values by the results of earlier jobs."""
        return self.option("hydra/sweeper") != "basic"

    def overrides(self, chosen: Mapping[str, str]) -> list[str]:
        """Return the overrides of one job."""
        return [f"{t.partition('=')[0]}={chosen[key]}" if (key := _key(t)) in self.values else t for t in self.texts]

    def jobs(self) -> list[Values]:
        """Return the values of all jobs, the last key's change fastest; a value given twice is one job."""
        rows = itertools.product(*self.values.values())
        return [dict(zip(self.values, row, strict=True)) for row in rows]

    def to_check(self) -> Iterator[Values]:
        """Yield values whose jobs are to be checked: each value once first, then all combinations."""
        first = {key: values[0] for key, values in self.values.items()}
        yield first
        yield from ({**first, key: value} for key, values in self.values.items() for value in values[1:])
        if not self.optimises:
            yield from (job for job in self.jobs() if sum(job[key] != first[key] for key in first) > 1)


def read_sweep(overrides: Sequence[str], config_dirs: Sequence[Path] = (), *, checked: bool = True) -> Sweep:
    """Read overrides in which values are swept: `a,b`, `choice(a,b)`, `range(a,b)`, `glob(*)`, `interval(a,b)`.

    Args:
        checked: False: accept overrides without a sweep, and plug-ins that are not installed.

    Raises:
        UsageError: nothing is swept, a key is given twice, or Hydra's sweeper or launcher is not installed.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, groups = OverridesParser.create(), group_files(config_dirs)
    hydra = tuple(text for text in overrides if _key(text).startswith("hydra"))
    texts = tuple(text for text in overrides if not _key(text).startswith("hydra"))
    found = Sweep(texts, {}, hydra=hydra)
    for text in texts:
        try:
            override = parser.parse_override(text)
        except HydraException:
            continue  # read_overrides says what is wrong
        if not override.is_sweep_override():
            continue
        key = _key(text)
        if [_key(other) for other in texts].count(key) > 1 or "@" in key:
            raise UsageError(f"{key}: is swept, so it is given once and without '@', e.g. {key}=a,b")
        found.values[key] = tuple(dict.fromkeys(_values(override, groups.get(key))))
        (found.ranges if override.is_discrete_sweep() else found.intervals)[key] = text.partition("=")[2]
        if not found.values[key]:
            options = groups.get(key, ())
            fix = closest(text.partition("=")[2], options) if options else f"Give values, e.g. {key}=0,1"
            raise UsageError(f"{text}: sweeps over nothing. {fix}")
    if not checked:
        return found
    if not found.values:
        raise UsageError("--multirun: nothing is swept. Give several values, e.g. seed=0,1 or algo.tau=0.005,0.01")
    _check_plugins(found)
    if found.intervals and not found.optimises:
        key, text = next(iter(found.intervals.items()))
        raise UsageError(f"{key}={text}: hydra/sweeper=basic takes no interval. Give values, or hydra/sweeper=optuna")
    return found


def first_job(overrides: Sequence[str], config_dirs: Sequence[Path] = ()) -> list[str]:
    """Return the overrides of a sweep's first job, whether its launcher is installed or not."""
    found = read_sweep(overrides, config_dirs, checked=False)
    return found.overrides(next(found.to_check()))


def launch(sweep: Sweep, folder: Path, job: Job) -> None:
    """Run all jobs by the chosen sweeper and launcher; return when they have ended.

    Args:
        folder: of the sweep; Hydra's multirun.yaml is written there.
        job: is pickled for launchers of other processes.

    Raises:
        What sweeper and launcher raise; `job` says what becomes of its own errors.
    """
    given = [_key(text) for text in sweep.hydra]
    if "hydra/sweeper/sampler=grid" in sweep.hydra:
        given.append("hydra.sweeper.sampler.seed")  # a grid has none
    options = {sweep.option(group) for group in _PACKAGES}
    wanted = {key: value for (option, key), value in _SETTINGS.items() if option in options and key not in given}
    settings = [f"{key}={value}" for key, value in wanted.items()]
    quoted = str(folder.absolute()).replace("\\", "\\\\").replace("'", "\\'").replace("${", "\\${")
    coded = {_coded(key): key for key in sweep.values}
    swept = [f"+{code}={(sweep.intervals | sweep.ranges)[key] if sweep.optimises else ','.join(sweep.values[key])}"
             for code, key in coded.items()]  # fmt: skip
    with _hydra(folder.resolve().name) as hydra:
        overrides = [*sweep.hydra, *settings, *_QUIET, f"hydra.sweep.dir='{quoted}'", *swept]
        hydra.multirun(None, SweepTask(job, coded), overrides, with_log_configuration=False)


def _check_plugins(sweep: Sweep) -> None:
    """Refuse launchers, sweepers and settings of theirs that Hydra does not have."""
    from hydra import compose
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    for text in sweep.hydra:
        if not _TAKEN.match(_key(text)):
            raise UsageError(
                f"{text!r}: is no setting of a sweep; run_dir=… says where it goes. Of Hydra's own, hydra/launcher, "
                "hydra/sweeper, hydra.launcher.<key> and hydra.sweeper.<key> are."
            )
    with _hydra("sweep") as hydra:
        for group, packages in _PACKAGES.items():
            option, there = sweep.option(group), hydra.config_loader.get_group_options(group)
            if option not in there:
                fix = f"Install it: {pip_install(packages[option])}" if option in packages else closest(option, there)
                raise UsageError(f"{group}={option}: is not installed. {fix}")
        try:
            choices = [text for text in sweep.hydra if text.startswith("hydra/")]
            known = compose(None, choices, return_hydra_config=True).hydra
            for text in sweep.hydra:
                _, place, key = [*_key(text).split("."), "", ""][:3]
                if place and key not in known[place]:
                    raise UsageError(f"{text}: hydra.{place} has no key {key!r}. {closest(key, known[place])}")
            compose(None, list(sweep.hydra), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            raise UsageError(f"config: {' '.join(lines[:2])}") from error


def _hydra(name: str) -> Any:
    """Return a context with Hydra ready to compose no config but its own."""
    import contextlib

    from hydra import initialize
    from hydra.core.global_hydra import GlobalHydra

    if (plugins := str(Path(__file__).parent / "plugins")) not in sys.path:
        sys.path.append(plugins)  # one more part of the namespace package hydra_plugins
    from hydra_plugins.robopolicy_ray import offer

    @contextlib.contextmanager
    def ready() -> Iterator[Any]:
        GlobalHydra.instance().clear()
        offer()
        with initialize(config_path=None, job_name=name, version_base="1.3"):
            yield GlobalHydra.instance().hydra

    return ready()


def _values(override: Any, options: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield the values of a sweep as text; of an interval its ends."""
    from hydra.core.override_parser.types import Glob, IntervalSweep

    swept = override.value()
    if isinstance(swept, Glob):
        yield from swept.filter(sorted(options or ()))
    elif isinstance(swept, IntervalSweep):
        yield from (str(swept.start), str(swept.end))
    else:
        yield from override.sweep_string_iterator()


def _key(text: str) -> str:
    return text.partition("=")[0].lstrip("+")


def _coded(key: str) -> str:
    """Return a key without dots: Hydra's own config has none of the nodes that they lead into."""
    return key.replace(".", "__").replace("/", "__")
