"""The command line of the policy node as a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robopolicy.core.errors import ConfigError
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.real.deploy.deploy_config import DeployConfig
from robopolicy.real.ros2.simulated_wiring import check_lockstep
from robopolicy.real.ros2.wiring import Wiring, load_wiring
from robopolicy.runs.run_dir import own_task, read_config


def config_of(options: dict[str, Any], checkpoint: Path, wiring: str) -> DeployConfig:
    """Build a config from JSON values; where they name no task, it is the one that the checkpoint was trained on.

    Raises:
        ConfigError: `options` is no object, or holds a wrong value. CheckpointError: no such checkpoint.
    """
    if not isinstance(options, dict):
        raise ConfigError(f'--options: expected a JSON object, {{"key": value}}, found {options!r}')
    values = {**options, "checkpoint": str(checkpoint), "wiring": wiring}
    if "task" not in options:
        run_dir = PolicyRef.of(checkpoint, options.get("which", "latest"), Path()).run
        values["task"] = None if run_dir is None else own_task(read_config(run_dir) or {})
    return DeployConfig.from_values(values)


def wiring_of(config: DeployConfig) -> Wiring:
    """Load the wiring of a config.

    Raises:
        WiringError: no such wiring, a wrong one, or one of a real arm in simulated time.
    """
    wiring = load_wiring(config.wiring)
    if config.lockstep:
        check_lockstep(wiring)
    return wiring


def policy_id_of(config: DeployConfig) -> str:
    """Name the policy of a config, for recordings."""
    return PolicyRef.of(config.checkpoint, config.which, Path()).ident
