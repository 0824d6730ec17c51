from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from robopolicy.core.errors import SpecError
from robopolicy.core.types import STATE, TASK, Feature, Obs
from robopolicy.networks.entities import EntityTokens
from robopolicy.policies.factory import build_policy
from robopolicy.policies.io import load_policy, save_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.vla import VLAPolicy
from tests.toy import ACTION, spec

NAMES = ("red_x", "hand", "red_y", "lamp", "blue_x", "blue_y", "lamp_on")
KINDS = {"cube": ("red_", "blue_"), "lamp": ("lamp",)}
EXTRA = "observation.force"
TASKS = ("lift the red cube", "lift the blue cube")
PREFIX = {"_target_": "prefix", "_partial_": True, "width": 16, "depth": 1, "max_words": 5,
          "buckets": 64}  # fmt: skip


def policy(history: int = 2, state: Feature | None = None, **prefix) -> VLAPolicy:
    torch.manual_seed(0)
    features = {EXTRA: Feature((2,)), STATE: state or Feature((7,), names=NAMES), TASK: Feature((), "int64")}
    node = {"_target_": "vla", "prefix": PREFIX | prefix, "sampling_steps": 2,
            "network": {"_target_": "action_expert", "_partial_": True, "width": 16,
                        "depth": 1}}  # fmt: skip
    made = build_policy(node, spec=spec(observation=features, tasks=TASKS, n_obs_steps=history),
                        normalizer=Normalizer.from_limits(features, ACTION))  # fmt: skip
    assert isinstance(made, VLAPolicy)
    return made.eval()


def look(history: int = 2) -> Obs:
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(3, history, 7, generator=generator)
    return {STATE: state, EXTRA: torch.randn(3, history, 2, generator=generator), TASK: torch.zeros(3, history).long()}


def tokens(policy: VLAPolicy, obs: Obs) -> Tensor:
    first, width = policy.encoder.summary_dim, policy.encoder.width
    return policy.encode(obs)[:, first : first + policy.encoder.tokens * width].unflatten(1, (-1, width))


def changed(policy: VLAPolicy, obs: Obs, key: str, column: int) -> list[bool]:
    """Which tokens [P] change with this element."""
    moved = {k: v.clone() for k, v in obs.items()}
    moved[key][..., column] += 1.0
    return ((tokens(policy, moved) - tokens(policy, obs)).abs().amax((0, 2)) > 0).tolist()


def test_a_token_reads_its_entity_and_what_is_no_entitys():
    made, obs = policy(depth=0, entities=KINDS), look()  # no blocks: nothing else mixes tokens
    assert made.encoder.tokens == 5 + 3 + 1
    words = [False] * 5
    red, blue, lamp, rest = [True, False, False, False], [False, True, False, False], [False, False, True, False], True
    for column, owner in enumerate((red, None, red, lamp, blue, blue, lamp)):
        assert changed(made, obs, STATE, column) == words + (owner or [True, True, True, rest]), NAMES[column]
    assert changed(made, obs, EXTRA, 1) == words + [True] * 4


def test_words_do_not_see_entities_and_entities_see_words_and_one_another():
    made, obs = policy(entities=KINDS), look()
    assert changed(made, obs, STATE, 0) == [False] * 5 + [True] * 4
    other = tokens(made, {**obs, TASK: obs[TASK] + 1}) - tokens(made, obs)
    assert bool((other[:, -4:].abs().amax((0, 2)) > 0).all())


def test_entities_of_a_kind_share_layers_and_differ_by_name():
    torch.manual_seed(0)
    made, read = EntityTokens(NAMES, KINDS, history=2, width=8), torch.randn(3, 2, 7)
    swapped = read[..., [4, 1, 5, 3, 0, 2, 6]]
    before, after = made(read) - made.name, made(swapped) - made.name
    torch.testing.assert_close(after[:, :2], before[:, [1, 0]])
    torch.testing.assert_close(after[:, 2], before[:, 2])
    assert made.rest.tolist() == [1] and len(made.towers) == 2
    assert not torch.allclose(made.name[0], made.name[1])


def test_without_entities_the_weights_are_those_of_a_policy_that_was_never_asked():
    plain, never = policy(entities={}), policy()
    assert plain.encoder.tokens == 5 + 1 and plain.state_dict().keys() == never.state_dict().keys()
    assert torch.equal(plain.encode(look()), never.encode(look()))


def test_with_entities_it_is_saved(tmp_path: Path):
    made, obs = policy(entities=KINDS), look()
    assert not any("columns" in k or "rest" in k for k in made.state_dict())  # the spec and the config tell them
    save_policy(made, tmp_path / "saved")
    noise = torch.ones(3, made.spec.horizon, made.spec.action.dim)
    assert torch.equal(load_policy(tmp_path / "saved").act(obs, noise=noise), made.act(obs, noise=noise))


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"cube": ("red_", "green_")}, r"entities\.cube: .* begins with 'green_'\. Did you mean 'red_"),
        ({"cube": ("red_", "blue_"), "lamp": ("lamp", "lamp_on")}, "'lamp_on' belongs to 'lamp' and to 'lamp_on'"),
        ({"cube": ("red_", "blue_"), "lamp": ("lamp",), "arm": ("hand",)}, "every element belongs to an entity"),
        ({"cube": ("red_", "blue_"), "lamp": ()}, r"entities\.lamp: names no entity"),
        ({"cube": ("red_", "lamp")}, "'red_' goes on with x, y, 'lamp' with , _on"),
    ],
)
def test_wrong_entities_are_named(kinds: dict[str, tuple[str, ...]], message: str):
    with pytest.raises(SpecError, match=message):
        EntityTokens(NAMES, kinds, history=1, width=8)


def test_wrong_entities_of_a_policy_are_named():
    with pytest.raises(SpecError, match=r"policy\.prefix\.entities\.cube: .*'green_'"):
        policy(entities={"cube": ("green_",)})


def test_a_state_without_names_and_one_that_is_not_read_are_named():
    with pytest.raises(SpecError, match=r"entities: there is no 'observation\.state' whose elements have names"):
        policy(state=Feature((7,)), entities=KINDS)
    with pytest.raises(SpecError, match="begins with 'blue_'"):
        policy(entities=KINDS, proprioception=["hand", "red_x", "red_y"])
