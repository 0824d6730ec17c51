"""configs/: the constructor's default is the default of the command line, so that no value has two sources."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from robopolicy.config.hydra_configs import config_folder
from robopolicy.config.registry import resolve
from robopolicy.config.schema import PARTIAL, TARGET, is_node, signature

GROUPS = ("algo", "network", "policy", "tracker", "world", "world_model")
PRESETS = {"tracker/local", "tracker/quiet", "tracker/tensorboard", "algo/offline"}  # of tracker/wandb and algo/aloe
LOOPS = {"bc", "dppo", "residual", "residual_synthetic", "trajectories", "world_model"}  # each the main one of its loop
EMPTY = inspect.Parameter.empty


def main_nodes() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name of a file, slot and node: of the files that are no presets of another one."""
    for file in sorted(f for group in GROUPS for f in (config_folder() / group).glob("*.yaml")):
        name, config = f"{file.parent.name}/{file.stem}", yaml.safe_load(file.read_text())
        based = any(isinstance(d, str) and d != "_self_" for d in config.pop("defaults", []))
        if name in PRESETS or (based and file.stem not in LOOPS):
            continue
        nodes = {file.parent.name: config} if is_node(config) else {k: v for k, v in config.items() if is_node(v)}
        for slot, node in nodes.items():
            if slot != "loop" or file.stem in LOOPS:
                yield name, slot, node


def differences(node: dict[str, Any], slot: str, where: str, given: dict[str, Any]) -> list[str]:
    """Keys whose value is not the default of the target; `given`: keywords of a factory that is the default."""
    target, found = resolve(node, slot, where), []
    for key, value in node.items():
        if key in (TARGET, PARTIAL):
            continue
        default = given[key] if key in given else signature(target, node).known[key].default
        if default is EMPTY:
            continue  # required: the file is the only source
        if is_node(value):
            if default is not None and getattr(default, "func", default) is not resolve(value, key, where):
                found.append(f"{where}.{key}: a {value[TARGET]}, by default {default}")
            found += differences(value, key, f"{where}.{key}", getattr(default, "keywords", {}))
        elif (list(default) if isinstance(default, tuple) else default) != (None if value == {} else value):
            found.append(f"{where}.{key}: {value!r}, by default {default!r}")
    return found


@pytest.mark.parametrize(("name", "slot", "node"), [pytest.param(*n, id=f"{n[0]}:{n[1]}") for n in main_nodes()])
def test_the_main_file_has_the_defaults_of_its_constructor(name: str, slot: str, node: dict[str, Any]) -> None:
    assert differences(node, slot, slot, {}) == []
