"""Turn a VLA into one that acts from demonstrations in its context."""

from __future__ import annotations

import copy
from typing import Any

from robopolicy.config.instantiate import value_of
from robopolicy.config.schema import plain
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.base import Policy
from robopolicy.policies.factory import build_policy, copy_weights
from robopolicy.policies.ricl import RICLPolicy
from robopolicy.policies.vla import VLAPolicy, prefix_node

_OPTIONS = {"pairs", "shown", "decay", "alone", "forget", "compare", "thumbnail"}


def in_context(base: Policy, episodes: Episodes, *, retrieval: dict[str, Any] | None = None) -> RICLPolicy:
    """Turn a VLA trained without retrieval into a RICLPolicy, to be trained further (RICL's recipe).

    Weights, words and normaliser are copied. The vision towers are frozen, and their tokens are the retrieval keys.

    Args:
        base: a VLAPolicy without a fine-tuned copy. A RICLPolicy is returned itself; the instructions of `episodes`
            join those of its training.
        episodes: training data and initial memory.
        retrieval: RICLPolicy's arguments for retrieval: `pairs`, `shown`, `decay`, `alone`, `forget`, `compare`,
            `thumbnail`.

    Raises:
        ConfigError: `retrieval` has other keys, or other values than a base that is a RICLPolicy.
        SpecError: another base, or it cannot read the demonstrations.
        CheckpointError: the base's weights are not those of its config.
    """
    if strange := sorted(set(retrieval or {}) - _OPTIONS):
        raise ConfigError(f"policy.retrieval: {strange} are not about retrieval; known: {sorted(_OPTIONS)}")
    if not isinstance(base, VLAPolicy) or base.finetuned_steps:
        found = type(base).__name__ + (" with a fine-tuned copy" if isinstance(base, VLAPolicy) else "")
        raise SpecError(f"base: policy=ricl_adapted goes on from a policy=vla as imitation left it, found {found}")
    if isinstance(base, RICLPolicy):
        wanted = plain(retrieval or {})
        if (own := {k: value_of(base.config, "policy", k) for k in wanted}) != wanted:
            raise ConfigError(
                f"policy.retrieval: the base retrieves with {plain(own)}, and cannot go on with {wanted}. Set it to "
                "the former or to null, or give the VLA that the base was made from."
            )
        base.known = tuple(dict.fromkeys((*base.known, *episodes.tasks)))
        base.set_tasks(episodes.tasks)
        base.set_retrieval_memory(episodes)
        return base
    base.set_tasks(episodes.tasks)
    config: dict[str, Any] = base.config
    node = {**config, **(retrieval or {}), "_target_": "ricl", "prefix": {**prefix_node(base), "freeze_vision": True}}
    policy = build_policy(node, spec=base.spec, normalizer=copy.deepcopy(base.normalizer))
    assert isinstance(policy, RICLPolicy)
    copy_weights(base, policy, new="pair.")
    policy.to(base.times.device)
    policy.set_retrieval_memory(episodes)
    return policy
