"""Sizes of networks that do not fit one another are refused by their dotted key, with those that fit."""

from __future__ import annotations

from typing import Any

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import IMAGES, STATE, Feature
from robopolicy.policies.factory import build_policy
from robopolicy.policies.normalizer import Normalizer
from tests.toy import spec

MLP = {"_target_": "residual_mlp", "width": 16}
SEEING = spec(observation={STATE: Feature((3,)), IMAGES + "front": Feature((3, 84, 84), "uint8")})
UNFIT: dict[str, tuple[str, dict[str, Any], str]] = {
    "dims": ("network", {"_target_": "unet1d", "dims": [64, 60]}, r"dims\[1\]: .*groups=8, found 60.*56 or 64"),
    "no_dims": ("network", {"_target_": "unet1d", "dims": []}, r"dims: expected one number or more"),
    "kernel": ("network", {"_target_": "unet1d", "kernel": 4}, r"kernel: .*odd number, found 4.*3 or 5"),
    "width": ("network", {"_target_": "transformer", "width": 130}, r"width: .*heads=4, found 130.*128 or 132"),
    "time_dim": ("network", {**MLP, "time_dim": 15}, r"time_dim: expected a multiple of 2, found 15"),
    "none": ("network", {**MLP, "width": 0}, r"width: expected int ≥ 1, found 0"),
    "channels": ("image_encoder", {"_target_": "conv", "dims": [12, 16]}, r"dims\[0\]: .*of 8, found 12"),
    "patch": ("image_encoder", {"_target_": "vit"}, r"patch: .*sides 84×84, found 8.*6 or 7"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_size_that_does_not_fit_is_refused_by_its_key(name: str) -> None:
    key, unfit, said = UNFIT[name]
    parts = {slot: {**node, "_partial_": True} for slot, node in {"network": MLP, key: unfit}.items()}
    normalizer = Normalizer.from_limits(SEEING.observation, SEEING.action)
    with pytest.raises(ConfigError, match=rf"^policy\.{key}\.{said}"):
        build_policy({"_target_": "flow", **parts}, spec=SEEING, normalizer=normalizer)


@pytest.mark.parametrize(("part", "target"), [("prefix", "prefix"), ("network", "action_expert")])
def test_a_vla_s_width_is_a_multiple_of_its_heads(part: str, target: str) -> None:
    normalizer = Normalizer.from_limits(SEEING.observation, SEEING.action)
    node = {"_target_": "vla", part: {"_target_": target, "_partial_": True, "width": 130}}
    with pytest.raises(ConfigError, match=rf"^policy\.{part}\.width: .*heads=4, found 130"):
        build_policy(node, spec=SEEING, normalizer=normalizer)
