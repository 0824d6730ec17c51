"""Check LeRobot's policy directories before any weight is read, then load them. Never a pickle."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import CheckpointError, SpecError
from robopolicy.core.specs import PolicySpec, check_features, check_fits
from robopolicy.core.types import ENV_STATE, IMAGES, STATE, TASK, EnvSpec, Feature
from robopolicy.core.untrusted import check_links, check_numbers, inside, read_json, refusing
from robopolicy.policies.base import Policy
from robopolicy.policies.lerobot.config import Document, decode, entrances, prepared
from robopolicy.policies.lerobot.find import CONFIG, WEIGHTS
from robopolicy.policies.lerobot.kinds import kind_of
from robopolicy.policies.lerobot.metadata import PolicyMetadata, read_metadata
from robopolicy.policies.lerobot.policy import LeRobotPolicy
from robopolicy.utils.allocation import allocating_at_most, budget
from robopolicy.utils.storage import read_tensors, refuse_pickle

PROCESSORS = ("policy_preprocessor.json", "policy_postprocessor.json")
_log = logging.getLogger(__name__)


def load_lerobot(folder: Path, *, device: torch.device | str = "cpu", env: EnvSpec | None = None) -> Policy:
    """Load a LeRobot policy with its processors.

    Raises:
        CheckpointError: files are missing, damaged or pickles, the policy cannot be built, weights do not fit, or
            the meaning of its actions is unknown.
        SpecError: it does not fit `env`; all differences are listed.
    """
    check_links(folder)
    with refusing(str(folder)):
        return _load(folder, device, env)


def _load(folder: Path, device: torch.device | str, env: EnvSpec | None) -> Policy:
    documents = [_processor(folder, name) for name in PROCESSORS]
    config = prepared(read_json(folder / CONFIG))
    check_numbers(config, f"{folder}/{CONFIG}")
    settings = decode(config)
    spec, inputs = describe(folder, settings, documents[0], env)
    if not (folder / WEIGHTS).is_file():
        for file in folder.iterdir():
            refuse_pickle(file)
        raise CheckpointError(f"{folder}: {WEIGHTS} is missing")
    tensors = read_tensors(folder / WEIGHTS)  # whole, and no pickle
    node = {"config": config, "preprocessor": documents[0], "postprocessor": documents[1], "inputs": inputs}
    with allocating_at_most(budget(folder / WEIGHTS), f"{folder}/{CONFIG}"):
        network, said = _network(folder, settings)
        policy = LeRobotPolicy(spec, **node, network=network)
    _check_loaded(folder, network, tensors, said)  # of sizes that are known by now
    bad = [k for k, v in policy.state_dict().items() if v.is_floating_point() and not bool(torch.isfinite(v).all())]
    if bad:
        raise CheckpointError(f"{folder}: weight {bad[0]!r} holds NaN or infinity: its training diverged")
    return policy.to(device).eval()


def describe(
    folder: Path, settings: Any, preprocessor: Document, env: EnvSpec | None
) -> tuple[PolicySpec, dict[str, str]]:
    """Derive the policy's spec, and the feature for each key that LeRobot reads, without reading weights.

    Raises: see `load_lerobot`.
    """
    if not settings.input_features or settings.action_feature is None:
        raise CheckpointError(f"{folder}/{CONFIG}: has no input_features, or no 'action' among its output_features")
    known = read_metadata(folder)
    features, inputs, clashes = _features(settings, preprocessor, known, env)
    dim = settings.action_feature.shape[0]
    for action, says in ((known.action, known.source), (env.action if env else None, env.id if env else "")):
        if action is not None and action.dim != dim:
            clashes.append(f"action: the policy has {dim} dimensions, {says} has {action.dim} {action.names}")
    if clashes and env is not None:
        problems = check_features(features, env.observation, needs="the policy", offers=env.id) + clashes
        raise SpecError("policy and environment do not fit:\n  - " + "\n  - ".join(problems))
    if clashes:
        raise CheckpointError(f"{folder}: contradicts itself:\n  - " + "\n  - ".join(clashes))
    action, dt = known.action, known.dt
    if env is not None:
        action, dt = action or env.action, dt or env.dt
    if action is None or dt is None:
        raise CheckpointError(
            f"{folder}: LeRobot does not say what a policy's actions mean, and the dataset it was trained on is not "
            "there. Run it on a task (task=…), whose actions are then taken to be its own, or say it once with "
            "robopolicy.policies.lerobot.metadata.annotate_policy(path, action=ActionSpec(…), dt=…)."
        )
    if known.action is None:
        _log.warning(
            "%s does not say what its actions mean; taken to be those of %s. Say it once with "
            "robopolicy.policies.lerobot.metadata.annotate_policy.", folder.name, env.id if env else "",
        )  # fmt: skip
    tasks = (env.tasks if env is not None else known.tasks) or ("",)
    if len(tasks) > 1 and any(s.get("registry_name") == "tokenizer_processor" for s in preprocessor["steps"]):
        features[TASK] = Feature((), "int64")
    to, h, ta = kind_of(settings).steps(settings)
    spec = PolicySpec(features, action, dt, to, h, ta, tasks)
    if env is not None:
        check_fits(spec, env)
    return spec, inputs


def _features(
    settings: Any, preprocessor: Document, known: PolicyMetadata, env: EnvSpec | None
) -> tuple[dict[str, Feature], dict[str, str], list[str]]:
    """Return the features under our names, the source of each of LeRobot's inputs, and contradictions."""
    entrance = entrances(preprocessor)
    features: dict[str, Feature] = {}
    inputs: dict[str, str] = {}
    clashes = []
    for key, feature in settings.input_features.items():
        if key.startswith(f"{IMAGES}empty_camera_"):  # a place that a VLA keeps free, and fills by itself
            continue
        enters, shape = entrance.get(key, key), tuple(feature.shape)
        ours = known.rename.get(enters, known.rename.get(key, enters))
        if ours == ENV_STATE and ours not in (env.observation if env else known.observation):
            if known.repeats_state or _same_statistics(preprocessor, key, STATE):
                ours = STATE  # our datasets hold the state under this name too: see lerobot_writer.py
            elif env is not None:
                clashes.append(
                    f"{key!r}: its saved statistics are not those of {STATE!r}, so it is no copy. If it is one, say "
                    f'annotate_policy(…, rename={{"{key}": "{STATE}"}}), of robopolicy.policies.lerobot.metadata'
                )
        wanted = Feature(shape, "uint8" if feature.type.value == "VISUAL" else "float32")
        if (named := known.observation.get(ours)) is not None and named.shape == shape:
            wanted = named
        if ours in features and features[ours].shape != shape:
            clashes.append(f"{key!r}: the policy expects shape {shape}, {ours!r}, which it is taken from, has "
                           f"{features[ours].shape}")  # fmt: skip
        features.setdefault(ours, wanted)
        inputs[enters] = ours
    return features, inputs, clashes


def _same_statistics(preprocessor: Document, a: str, b: str) -> bool:
    """Return whether the processor was saved with statistics of two keys, and the same for both."""
    found: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for name, value in ((k, v) for tensors in preprocessor["state"].values() for k, v in tensors.items()):
        key, _, statistic = name.rpartition(".")
        for own, numbers in zip((a, b), found, strict=True):
            if key == own:
                numbers[statistic] = value
    return bool(found[0]) and found[0] == found[1]


def _network(folder: Path, settings: Any) -> tuple[Any, str]:
    """Load LeRobot's policy with the weights of the folder; return it and LeRobot's printed output."""
    from lerobot.policies.factory import get_policy_class

    said = StringIO()
    try:
        with redirect_stdout(said):  # where it reads from; and what went wrong, which π0 says there alone
            network = get_policy_class(settings.type).from_pretrained(str(folder), config=settings, strict=True)
    except (RuntimeError, KeyError, ValueError) as error:
        raise CheckpointError(f"{folder}: weights do not fit the policy that {CONFIG} describes: {error}") from error
    except (ImportError, OSError) as error:
        raise CheckpointError(f"{folder}: LeRobot cannot build its {settings.type!r} policy: {error}") from error
    return network, said.getvalue()


def _check_loaded(folder: Path, network: Any, tensors: dict[str, Tensor], said: str) -> None:
    if found := _not_loaded(network.state_dict(), tensors):
        raise CheckpointError(
            f"{folder}: weights do not fit the policy that {CONFIG} describes:\n  - " + "\n  - ".join(found[:6])
            + "".join(f"\nLeRobot said: {line}" for line in said.strip().splitlines()[-1:])
        )  # fmt: skip


def _not_loaded(own: dict[str, Tensor], tensors: dict[str, Tensor]) -> list[str]:
    """List weights that differ from the file, one sentence each.

    Some policies of LeRobot silently stay untrained where loading fails.
    """
    names = {k: k if k in own else f"model.{k}" for k in tensors}  # π0's files may leave the prefix out
    found = [f"{k!r} is not a weight of this policy" for k, name in names.items() if name not in own]
    there = {k: own[name] for k, name in names.items() if name in own}
    found += [
        f"{k!r} was not loaded" for k, value in there.items()
        if value.shape != tensors[k].shape or not torch.equal(value, tensors[k].to(value))
    ]  # fmt: skip
    shared = {v.data_ptr() for v in there.values()}  # files hold tensors that share memory once
    missing = [k for k, v in own.items() if k not in names.values() and v.data_ptr() not in shared]
    return found + [f"{k!r} is missing" for k in missing]


def _processor(folder: Path, name: str) -> Document:
    """Read a processor's JSON with the tensors of its state files under "state"."""
    if not (folder / name).is_file():
        raise CheckpointError(
            f"{folder}: {name} is missing, so nothing says how observations and actions are scaled; without it the "
            "policy would command normalised numbers. `lerobot-train` writes it. For a checkpoint of before LeRobot "
            "0.4: python -m lerobot.processor.migrate_policy_normalization --pretrained-path <directory>"
        )
    document = read_json(folder / name)
    steps = document.get("steps")
    state: dict[str, Any] = {}
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise CheckpointError(f"{folder}/{name}: expected a list of steps, found {type(steps).__name__}")
    for step in steps:
        if file := step.get("state_file"):
            tensors = read_tensors(inside(folder, file, where=f"{folder}/{name}: state_file"))
            used = (step.get("config") or {}).get("features")  # statistics of other columns come along
            state[file.removesuffix(".safetensors")] = {
                k: v.tolist() for k, v in tensors.items() if used is None or k.rpartition(".")[0] in used
            }
    return {**document, "state": state}
