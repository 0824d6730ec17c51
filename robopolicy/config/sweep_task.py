"""Define what launchers run: a job with the values that a sweeper chose."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Values = dict[str, str]  # {key: value of it as text} of one job
Job = Callable[[Values], float | None]  # runs a job; returns the value that a sweeper optimises
STOP = ".stop"  # in the folder of the sweep: no further job begins


@dataclass(frozen=True)
class SweepTask:
    """Hydra's task function: hands the values that Hydra chose to the job.

    Args:
        keys: {key of Hydra's config: key of ours}.
    """

    job: Job
    keys: dict[str, str]

    def __call__(self, config: Any) -> float | None:
        from hydra.core.hydra_config import HydraConfig

        return self.job(self.values(HydraConfig.get().overrides.task))

    def values(self, overrides: Iterable[str]) -> Values:
        """Return the values in overrides of Hydra's config."""
        texts = [text.lstrip("+").partition("=") for text in overrides]
        return {self.keys[code]: value for code, _, value in texts}
