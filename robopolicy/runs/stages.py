"""Run a chain of stages in one folder: what is done is not redone, and a stage whose inputs changed is refused.

<folder>/stages.json, and a run <folder>/<stage> of each stage
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pydantic

from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import checked, read_json
from robopolicy.runs.config_changes import with_choices
from robopolicy.runs.run_dir import check_same, read_config
from robopolicy.utils.atomic import write_atomically

FILE = "stages.json"


@dataclass
class StageRecord:
    """Progress of a stage.

    `seconds`: over all calls. `env_steps`: primitive ones. `overrides`: that were chosen when it began.
    `note`: its outcome in words. `accepted`: later stages build on it. `level`, `estimator`: confidence of the gate
    that decided so, and what it asked; `model`: digest of the world model that it asked, or "".
    """

    done: bool = False
    seconds: float = 0.0
    env_steps: int = 0
    overrides: tuple[str, ...] = ()
    note: str = ""
    accepted: bool = True
    level: float | None = None
    estimator: str = "fitted_q"
    model: str = ""
    __pydantic_config__ = pydantic.ConfigDict(extra="forbid")


class StageRecords:
    """The records of all stages of a folder. The record of a stage whose run was removed begins again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._found = folder, dict[str, StageRecord]()
        if (file := folder / FILE).is_file():
            kind = pydantic.TypeAdapter(dict[str, StageRecord])
            found = checked(kind, read_json(file, error=ConfigError), str(file), error=ConfigError)
            self._found = {name: record for name, record in found.items() if (folder / Path(name).name).is_dir()}

    def __getitem__(self, name: str) -> StageRecord:
        return self._found.setdefault(name, StageRecord())

    def save(self) -> None:
        found = {name: asdict(record) for name, record in self._found.items()}
        write_atomically(self.folder / FILE, json.dumps(found, indent=1) + "\n")

    @contextmanager
    def running(self, name: str, config: Mapping[str, Any]) -> Iterator[bool]:
        """Time the block, which runs stage `name` where it is still to do; a block that ends makes it done.

        Yields:
            Whether the stage is to do: it never ended, or its loop is longer now.

        Raises:
            ConfigError: the stage began with another config, or with other contents of a dataset or policy.
        """
        record, run = self[name], self.folder / name
        if begun := read_config(run) if run.is_dir() else None:
            self._check(name, config)
        todo = not record.done or (begun or {}).get("loop") != with_choices(config, begun).get("loop")
        if todo and record.done:  # its run holds the longer loop as soon as it goes on, and may be interrupted then
            record.done, record.note = False, ""
            self.save()
        began = time.monotonic()
        try:
            yield todo
            record.done = True
        finally:
            record.seconds += time.monotonic() - began
            if run.is_dir():
                self.save()

    def _check(self, name: str, config: Mapping[str, Any]) -> None:
        run = self.folder / name
        fix = f"Give a new out=, or remove {run} to run this stage again, and the stages that build on it."
        try:
            check_same(run, config)
        except ConfigError as error:
            raise ConfigError(f"stage {name}: {error}\n{fix}") from None
