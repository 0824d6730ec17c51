"""Export our checkpoints as directories that LeRobot's commands run."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any, Literal

import torch

from robopolicy.config.schema import Count
from robopolicy.core.errors import CheckpointError
from robopolicy.core.types import BASE_ACTION, ENV_STATE, IMAGES, TASK, Feature
from robopolicy.policies.base import Policy, with_bases
from robopolicy.policies.find import find_policy, is_ours
from robopolicy.policies.io import load_policy
from robopolicy.policies.lerobot.config import entrances
from robopolicy.policies.lerobot.find import CONFIG, WEIGHTS
from robopolicy.policies.lerobot.flow import STEPS, LeRobotFlow
from robopolicy.policies.lerobot.load import PROCESSORS
from robopolicy.policies.lerobot.metadata import annotate_policy
from robopolicy.utils.storage import new_directory, write_tensors
from robopolicy.utils.threads import set_threads


def export(
    *,
    checkpoint: Path,
    out: Path,
    which: Literal["latest", "best"] = "latest",
    format: Literal["native", "robopolicy"] | None = None,
    threads: Count | None = None,
) -> Path:
    """Write a checkpoint as a LeRobot policy directory.

    Args:
        format: "robopolicy": LeRobot's plugin type of that name. The directory holds our policy unchanged, in policy/,
            and LeRobot's config and processors, which do nothing. "native": LeRobot's own type, for its policies that
            were fine-tuned through their chain. None: native where possible.
        checkpoint: run directory, checkpoint or policy directory. out: the new directory.
        which: newest or best checkpoint of a run directory. threads: of torch; None: torch's choice.

    Raises:
        CheckpointError: the checkpoint is LeRobot's already or cannot be loaded, LeRobot has no type for it, or `out`
            exists.
    """
    set_threads(threads)
    env = write_policy(checkpoint, out, which=which, format=format)
    print(f"exported: {out}\n  lerobot-eval --policy.path={shlex.quote(str(out))} {env}")
    return out


def write_policy(
    checkpoint: Path, out: Path, *, which: Literal["latest", "best"] = "latest",
    format: Literal["native", "robopolicy"] | None = None,
) -> str:  # fmt: skip
    """Write what `export` does, and return the env's options of lerobot-eval.

    Raises:
        CheckpointError: see `export`.
    """
    folder = find_policy(checkpoint, which=which)
    if not is_ours(folder):
        raise CheckpointError(f"{checkpoint}: is a policy of LeRobot already; its commands run it as it is")
    if out.exists():
        raise CheckpointError(f"{out}: exists already. Give a new directory.")
    policy = load_policy(folder)  # whole, and of this version
    if format != "robopolicy" and isinstance(policy, LeRobotFlow):
        with new_directory(out) as made:
            write_native(policy, made)
        return "--env.type=…"
    if format == "native":
        raise CheckpointError(
            f"{checkpoint}: format=native: LeRobot has no type for a {type(policy).__name__}; expected a policy of its "
            "own that was fine-tuned through its chain. Leave format out, or give format=robopolicy."
        )
    with new_directory(out) as made:
        shutil.copytree(folder, made / "policy")
        _write_plugin(policy, made)
    return "--env.type=robopolicy --env.task=<task> --env.discover_packages_path=robopolicy.lerobot_plugin"


def _write_plugin(policy: Policy, folder: Path) -> None:
    """Write LeRobot's config of our plugin type, and its processors, which do nothing."""
    features: dict[str, Feature] = {}
    for member in with_bases(policy):
        features |= {k: f for k, f in member.spec.observation.items() if k not in (BASE_ACTION, TASK)}
    config: dict[str, Any] = {
        "type": "robopolicy",
        "n_obs_steps": 1,  # histories are the policy's own
        "input_features": {k: _feature(k, f) for k, f in features.items()},
        "output_features": {"action": {"type": "ACTION", "shape": [policy.spec.action.dim]}},
        "device": "cpu",
        "push_to_hub": False,
    }
    device = {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}}
    rename = {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}}
    steps = dict(zip(PROCESSORS, ([rename, device], [device]), strict=True))
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name, parts in steps.items():
        document = {"name": name.removesuffix(".json"), "steps": parts}
        (folder / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def write_native(policy: LeRobotFlow, folder: Path) -> None:
    """Write config, weights and processors with their statistics for LeRobot's loader into an empty folder.

    Raises:
        CheckpointError: LeRobot's type cannot hold the policy; see LeRobotFlow.lerobot_state.
    """
    write_tensors(policy.lerobot_state(), folder / WEIGHTS)
    node = policy.config
    config = {**node["config"], STEPS[node["config"]["type"]]: node["sampling_steps"]}
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name, document in zip(PROCESSORS, (node["preprocessor"], node["postprocessor"]), strict=True):
        for file, numbers in document.get("state", {}).items():
            tensors = {k: torch.tensor(v, dtype=torch.float32) for k, v in numbers.items()}
            write_tensors(tensors, folder / f"{file}.safetensors")
        kept = {k: v for k, v in document.items() if k != "state"}
        (folder / name).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    annotate_policy(
        folder, action=policy.spec.action, dt=policy.spec.dt, tasks=policy.spec.tasks, rename=_renamed(policy)
    )


def _renamed(policy: LeRobotFlow) -> dict[str, str]:
    """Return {input of the policy: our name}, where an input enters the preprocessor under another than ours."""
    entrance = entrances(policy.config["preprocessor"])
    reads = {key: entrance.get(key, key) for key in policy.config["config"]["input_features"]}
    return {key: ours for key, enters in reads.items() if (ours := policy.inputs.get(enters, enters)) != enters}


def _feature(key: str, feature: Feature) -> dict[str, Any]:
    kind = "VISUAL" if key.startswith(IMAGES) else "ENV" if key == ENV_STATE else "STATE"
    return {"type": kind, "shape": list(feature.shape)}
