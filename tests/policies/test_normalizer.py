from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopolicy.core.errors import DataError, SpecError
from robopolicy.core.types import BASE_ACTION, POINTS, STATE, TASK, ActionSpec, Feature
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.normalizer import ACTION, Normalizer
from tests.toy import ACTION as LIMITS
from tests.toy import OBSERVATION, episodes, random_episodes

STATES = torch.tensor([[0.0, 10.0, 5.0], [2.0, 30.0, 5.0], [4.0, 50.0, 5.0], [2.0, 30.0, 5.0]])
ACTIONS = torch.tensor([[-0.01, 0.004], [0.02, 0.004], [0.0, 0.004], [0.01, 0.004]])


def fitted(data: Episodes | None = None, **options: float) -> Normalizer:
    return Normalizer(OBSERVATION, LIMITS).fit(data or episodes(STATES, ACTIONS, length=4), **options)


def test_states_by_hand_with_a_constant_dimension():
    # Deviations √2, 10√2, 0. The floor is 0.05 × the smaller of the two that vary (their lower median), √2.
    y = fitted().normalize(STATE, torch.tensor([4.0, 10.0, 5.0 + 0.05 * 2**0.5]))
    torch.testing.assert_close(y, torch.tensor([2**0.5, -(2**0.5), 1.0]))


def test_actions_by_hand():
    # x: demonstrated −0.01…0.02, width 0.03, widened by 5% to −0.0115…0.0215, met with the limit 0.02.
    # y: constant 0.004, so a hundredth of the limits' width 0.04 around it: 0.0038…0.0042.
    box = fitted().unnormalize(ACTION, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    torch.testing.assert_close(box, torch.tensor([[-0.0115, 0.0038], [0.02, 0.0042]]))


def test_a_range_never_leaves_the_limits_even_where_the_data_does():
    far = torch.tensor([[-0.5, 0.0199], [0.5, 0.0199], [0.0, 0.0199], [0.0, 0.0199]])
    box = fitted(episodes(STATES, far, length=4)).unnormalize(ACTION, torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
    torch.testing.assert_close(box, torch.tensor([[-0.02, 0.0197], [0.02, 0.02]]))


@pytest.mark.parametrize("key", [STATE, ACTION, BASE_ACTION])
def test_round_trip(key: str):
    normalizer = fitted(random_episodes())
    x = torch.randn(7, 5, 3 if key == STATE else 2)
    torch.testing.assert_close(normalizer.unnormalize(key, normalizer.normalize(key, x)), x)


def test_statistics_of_normalised_data():
    data = random_episodes()
    normalizer = fitted(data)
    y = normalizer.normalize(STATE, data.obs[STATE])
    torch.testing.assert_close(y.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(3))
    a = normalizer.normalize(ACTION, data.action)
    assert float(a.abs().max()) <= 1.0
    assert float(a.abs().amax(0).min()) > 0.95


@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_guards_do_not_depend_on_the_unit(factor: float):
    limits = replace(LIMITS, low=(-0.02 * factor,) * 2, high=(0.02 * factor,) * 2)
    scaled = Normalizer(OBSERVATION, limits).fit(episodes(factor * STATES, factor * ACTIONS, length=4))
    plain, x = fitted(), torch.randn(6, 3)
    torch.testing.assert_close(scaled.normalize(STATE, factor * x), plain.normalize(STATE, x), rtol=1e-4, atol=1e-4)
    a = 0.02 * torch.randn(6, 2)
    torch.testing.assert_close(scaled.normalize(ACTION, factor * a), plain.normalize(ACTION, a), rtol=1e-4, atol=1e-4)


def test_a_wholly_constant_key_has_deviation_one():
    normalizer = fitted(episodes(torch.full((4, 3), 7.0), ACTIONS, length=4))
    torch.testing.assert_close(normalizer.normalize(STATE, torch.tensor([7.0, 8.0, 6.5])), torch.tensor([0.0, 1, -0.5]))


def test_observations_are_clamped_and_actions_are_not():
    normalizer = fitted()
    assert float(normalizer.normalize(STATE, torch.tensor([1e6, 30.0, 5.0]))[0]) == 10.0
    assert float(normalizer.normalize(ACTION, torch.tensor([1.0, 0.0]))[0]) > 10.0


def test_images_and_integers():
    camera = "observation.images.front"
    features = {STATE: Feature((3,)), camera: Feature((3, 2, 2), "uint8"), TASK: Feature((), "int64")}
    normalizer = Normalizer(features, LIMITS).fit(random_episodes())
    image = torch.tensor([0, 255, 51], dtype=torch.uint8)[None, None, :, None, None].expand(1, 1, 3, 2, 2)
    obs = {camera: image, TASK: torch.tensor([[3]]), STATE: torch.zeros(1, 1, 3), "unknown": torch.zeros(1)}
    out = normalizer.observation(obs)
    torch.testing.assert_close(out[camera][0, 0, :, 0, 0], torch.tensor([-1.0, 1.0, -0.6]))
    assert out[TASK].dtype == torch.int64
    assert set(out) == set(features)


def test_forgetting_to_fit_shows():
    assert bool(Normalizer(OBSERVATION, LIMITS).normalize(STATE, torch.zeros(3)).isnan().all())


def test_statistics_travel_with_the_state_dict():
    one, other = fitted(), Normalizer(OBSERVATION, LIMITS)
    other.load_state_dict(one.state_dict())
    x = torch.randn(3)
    assert torch.equal(other.normalize(STATE, x), one.normalize(STATE, x))


def test_from_limits():
    normalizer = Normalizer.from_limits(OBSERVATION, replace(LIMITS, low=(-0.02, 0.0), high=(0.02, 0.01)))
    torch.testing.assert_close(normalizer.normalize(ACTION, torch.tensor([0.02, 0.0])), torch.tensor([1.0, -1.0]))
    for raw in ([1.0, 2.0, 3.0], [310.0, -95.0, 0.5]):  # pixels or degrees are no outliers
        assert torch.equal(normalizer.normalize(STATE, torch.tensor(raw)), torch.tensor(raw))
    with pytest.raises(SpecError, match="finite"):
        Normalizer.from_limits(OBSERVATION, replace(LIMITS, high=(0.02, float("inf"))))


def test_infinite_limits_fall_back_on_the_data():
    endless = ActionSpec(**{**vars(LIMITS), "low": (-torch.inf,) * 2, "high": (torch.inf,) * 2})
    box = Normalizer(OBSERVATION, endless).fit(random_episodes()).unnormalize(ACTION, torch.ones(2))
    assert bool(box.isfinite().all())


def test_bad_data_is_named():
    broken = STATES.clone()
    broken[2, 1] = torch.nan
    with pytest.raises(DataError, match=r"'observation.state' is not finite in 1 of 4 frames, first in frame 2"):
        fitted(episodes(broken, ACTIONS, length=4))
    with pytest.raises(DataError, match="action"):
        fitted(episodes(STATES, ACTIONS / 0.0, length=4))
    data = episodes(STATES, ACTIONS, length=4)
    with pytest.raises(DataError, match=r"Did you mean 'observation.states'"):
        fitted(replace(data, obs={"observation.states": STATES}))


def test_a_cloud_has_a_centre_and_one_scale_by_hand():
    key = POINTS + "front"
    data = episodes(STATES, ACTIONS, length=4)
    cloud = torch.tensor([[[1.0, 0.0, 0.0], [3.0, 0.0, 4.0]]]).expand(4, 2, 3)
    data = replace(data, obs={**data.obs, key: cloud}, observation={**OBSERVATION, key: Feature((2, 3))})
    made = Normalizer(data.observation, LIMITS).fit(data)
    # Centre (2, 0, 2); squares 1, 0, 4 around it, so the scale is √(5/3), and proportions stay.
    torch.testing.assert_close(made.normalize(key, cloud[:1, :1]), torch.tensor([[[-1.0, 0.0, -2.0]]]) / (5 / 3) ** 0.5)
    torch.testing.assert_close(made.unnormalize(key, made.normalize(key, cloud)), cloud)
    bad = replace(data, obs={**data.obs, key: cloud * torch.tensor([1.0, float("nan"), 1.0])})
    with pytest.raises(DataError, match=key):
        Normalizer(data.observation, LIMITS).fit(bad)
