"""Our checkpoints as directories that LeRobot's commands run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Literal

from robopolicy.errors import CheckpointError
from robopolicy.lerobot.load import PROCESSORS
from robopolicy.policy_files import find_policy, is_ours, load_policy
from robopolicy.storage import new_directory
from robopolicy.types import BASE_ACTION, IMAGES, TASK, Feature


def export(*, checkpoint: Path, out: Path, which: Literal["latest", "best"] = "latest") -> Path:
    """Write a checkpoint as a LeRobot policy directory of the type "robopolicy".

    The directory holds the policy as it is, in policy/, and LeRobot's config and processors, which change nothing.

    Raises:
        CheckpointError: it is LeRobot's already, cannot be loaded, or `out` exists.
    """
    folder = find_policy(checkpoint, which=which)
    if not is_ours(folder):
        raise CheckpointError(f"{checkpoint}: is a policy of LeRobot already; its commands run it as it is")
    if out.exists():
        raise CheckpointError(f"{out}: exists already. Give a new directory.")
    policy = load_policy(folder)  # whole, and of this version
    chain = [policy]
    while chain[-1].base is not None:
        chain.append(chain[-1].base)
    features: dict[str, Feature] = {}
    for member in chain:
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
    with new_directory(out) as made:
        shutil.copytree(folder, made / "policy")
        (made / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name, parts in steps.items():
            document = {"name": name.removesuffix(".json"), "steps": parts}
            (made / name).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"exported: {out}\n  lerobot-eval --policy.path={out} --env.type=robopolicy --env.task=<task> "
          "--env.discover_packages_path=robopolicy.lerobot.plugin")  # fmt: skip
    return out


def _feature(key: str, feature: Feature) -> dict[str, Any]:
    return {"type": "VISUAL" if key.startswith(IMAGES) else "STATE", "shape": list(feature.shape)}
