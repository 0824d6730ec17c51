"""Build a policy from its config node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robopolicy.config.instantiate import build
from robopolicy.config.schema import TARGET, join, plain
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.policies.base import Policy


def build_policy(node: Mapping[str, Any], where: str = "policy", /, **runtime: Any) -> Policy:
    """Build a policy; `runtime` holds the constructor's arguments that the config lacks (`spec`, `normalizer`, `base`).

    The node is stored as `policy.config`, from which a checkpoint rebuilds it, unless the builder has already stored
    another one.

    Raises:
        ConfigError: as `build`, or the result is not a Policy.
    """
    policy = build(node, "policy", where, **runtime)
    if not isinstance(policy, Policy):
        raise ConfigError(f"{join(where, TARGET)}: {node[TARGET]!r} built a {type(policy).__name__}, not a Policy")
    policy.config = getattr(policy, "config", None) or plain(node)
    return policy


def copy_weights(base: Policy, policy: Policy, *, new: str) -> None:
    """Load the weights of `base` into `policy`, which has more under the prefix `new`.

    Raises:
        CheckpointError: the weights differ in others.
    """
    missing, strange = policy.load_state_dict(base.state_dict(), strict=False)
    if strange or (missing := [k for k in missing if not k.startswith(new)]):
        raise CheckpointError(f"base: its weights are not those of its config: missing {missing}, unknown {strange}")
