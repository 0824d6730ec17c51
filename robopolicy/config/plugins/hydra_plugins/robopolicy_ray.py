"""Offer `hydra/launcher=ray`: Hydra's own launcher of this name pins other versions of packages than robopolicy.

Hydra takes plug-ins of the namespace package `hydra_plugins` alone. config/sweeps.py puts this part of it on the path,
so nothing is installed beside `robopolicy`.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, FloatNode


class RayLauncher(Launcher):
    """Run the jobs of a sweep as tasks of Ray, see robopolicy.config.ray_jobs."""

    def __init__(self, **claims: float) -> None:
        self.claims = claims

    def setup(self, *, hydra_context: Any, task_function: Any, config: Any) -> None:
        """Take the task and the folder of the sweep."""
        self.task, self.folder = task_function, Path(str(config.hydra.sweep.dir))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[JobReturn]:
        """Run jobs; return when all have ended. Raises as run_on_ray."""
        from robopolicy.config.ray_jobs import run_on_ray

        return run_on_ray(self.task, self.folder, job_overrides, **self.claims)


def offer() -> None:
    """Make the launcher known to Hydra, where Ray is installed.

    Keys of hydra.launcher are the CPUs and GPUs that each job claims; parts of one are allowed. They are no dataclass:
    submitit sends what Hydra stores to processes that cannot import this module.
    """
    if find_spec("ray") is not None:
        Plugins.instance().register(RayLauncher)
        node: dict[Any, Any] = {"_target_": f"{__name__}.RayLauncher"}
        node |= {key: FloatNode(value, is_optional=False) for key, value in (("num_cpus", 1.0), ("num_gpus", 0.0))}
        ConfigStore.instance().store(group="hydra/launcher", name="ray", node=DictConfig(node), provider="robopolicy")
