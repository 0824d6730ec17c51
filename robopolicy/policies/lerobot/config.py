"""LeRobot's config.json as its config object, without what would download, compile or unpickle."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any

from robopolicy.core.errors import CheckpointError, SpecError, closest
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import IMAGES
from robopolicy.policies.lerobot.names import check_name, refuse_remote_code

Document = dict[str, Any]  # a JSON file of LeRobot's
_READY = {  # whatever the file says, and where it says nothing too: nothing is downloaded, compiled or unpickled
    "device": "cpu", "use_peft": False, "push_to_hub": False, "repo_id": None, "pretrained_path": None,
    "pretrained_revision": None, "compile_model": False, "pretrained_backbone_weights": None, "load_vlm_weights": False,
}  # fmt: skip


def entrances(preprocessor: Document) -> dict[str, str]:
    """Return {after: before}: the policy's input `after` enters its preprocessor as `before`."""
    return {
        after: before
        for step in preprocessor["steps"]
        if step.get("registry_name") == "rename_observations_processor"
        for before, after in (step["config"].get("rename_map") or {}).items()
    }


def check_inputs(settings: Any, preprocessor: Document, spec: PolicySpec, inputs: dict[str, str]) -> None:
    """Raise SpecError where the spec does not offer what LeRobot's config reads and commands, in its shape."""
    entrance, problems = entrances(preprocessor), []
    for key, feature in settings.input_features.items():
        if key.startswith(f"{IMAGES}empty_camera_"):  # a place that a VLA keeps free, and fills by itself
            continue
        ours, shape = inputs.get(entrance.get(key, key), ""), tuple(feature.shape)
        offered = spec.observation.get(ours)
        if offered is None or offered.shape != shape:
            problems.append(f"{key!r}: expected {ours!r} of shape {shape}, found {offered}")
    problems += [f"inputs: {k!r} is no feature of the spec" for k in inputs.values() if k not in spec.observation]
    action = settings.action_feature
    if action is None or tuple(action.shape) != (spec.action.dim,):
        problems.append(f"action: expected {spec.action.dim} dimensions, found {action}")
    if problems:
        raise SpecError("config.json and the spec do not fit:\n  - " + "\n  - ".join(problems))


def prepared(config: Document) -> Document:
    """LeRobot's config.json without what belongs to the machine it was trained on; nothing is downloaded for it.

    Raises:
        CheckpointError: only an adapter of a policy (PEFT) is in the directory, or a type that no package has.
    """
    if config.get("use_peft"):
        raise CheckpointError(
            "config.json: use_peft is true: the directory holds an adapter, not a policy. Merge it into its base "
            "policy (peft's merge_and_unload) and save the result."
        )
    has = {field.name for field in fields(_class_of(config))}
    return {**copy.deepcopy(config), **{k: v for k, v in _READY.items() if k in has}}


def decode(config: Document) -> Any:
    """LeRobot's config object of a config.json, `prepared`: no reader of a config goes around that.

    Raises:
        CheckpointError: see `prepared`; a field that the type does not have, or a language model that is not taken.
    """
    import draccus
    from draccus.utils import DecodingError, ParsingError

    refuse_remote_code()
    made = _class_of(config)
    try:
        settings = draccus.decode(made, {k: v for k, v in prepared(config).items() if k != "type"})
    except (DecodingError, ParsingError, TypeError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"config.json: not a configuration of LeRobot's {config['type']!r} policy as it is installed ({error})"
        ) from error
    if hasattr(settings, "vlm_model_name"):
        check_name(settings.vlm_model_name, "config.json: vlm_model_name")
    return settings


def _class_of(config: Document) -> Any:
    """LeRobot's config class of the type that a config.json names."""
    import lerobot.policies  # noqa: F401  (its types register themselves)
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.utils.import_utils import register_third_party_plugins

    kind = str(config.get("type"))
    if kind not in PreTrainedConfig.get_known_choices():
        register_third_party_plugins()
    known = PreTrainedConfig.get_known_choices()
    if kind not in known:
        raise CheckpointError(
            f"config.json: no policy type {kind!r} is installed. {closest(kind, known)} Packages named "
            "lerobot_policy_… are found by themselves once they are installed."
        )
    return PreTrainedConfig.get_choice_class(kind)
