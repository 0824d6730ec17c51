"""The loss in closed form, and rows whose bits do not depend on the others."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.models.ensemble import PhaseEnsemble
from tests.world_models.point import SPEC, relative, walk, with_state


def small(episodes: Episodes, **kw: object) -> PhaseEnsemble:
    torch.manual_seed(0)
    spec = replace(SPEC, observation=episodes.observation)
    given = {"heads": 2, "width": 16, "depth": 1, "phases": 2, "unroll": 2, "block": 16, **kw}
    model = PhaseEnsemble(spec, **given)  # type: ignore[arg-type]
    model.state_transform.fit(episodes)
    return model


def test_a_mixture_of_two_states_is_consistent() -> None:
    episodes = relative([20] * 10)
    state = episodes.obs[STATE]
    here, there = state[:1], state[-1:]
    swap = torch.tensor([[False, False, True, False, True]])
    found = small(episodes).mixed(here, there, swap)[0]
    x, y, goal, rel, seven = found.tolist()
    assert (x, y, seven) == (here[0, 0].item(), here[0, 1].item(), 7.0) and goal == there[0, 2].item()
    assert rel == pytest.approx(goal - x, abs=1e-5) and abs(rel - here[0, 3].item()) > 0.01, "made anew"


def test_loss_in_closed_form() -> None:
    """Two phases that predict −1 and +1 deviations everywhere, spreads 1 and ½, even odds, one transition of +1."""
    model = small(walk([30]), heads=1, unroll=1, min_spread=1e-6)
    size = 2 * 2
    with torch.no_grad():
        model.last.weight.zero_()
        model.last.bias[0, 0, :size] = torch.tensor([-1.0, -1.0, 1.0, 1.0])
        model.log_spread[0, 0], model.log_spread[0, 1] = 0.0, math.log(0.5)
    state = torch.zeros(1, 1, 2, 2)
    state[0, 0, 1] = model.state_transform.delta_std
    batch = {STATE: state, "action": torch.zeros(1, 1, 1, 2), "valid": torch.ones(1, 1, 1, dtype=torch.bool)}
    loss, metrics = model.loss(batch)
    first = 0.5 * math.exp(-2 * (math.sqrt(1 + 2.0**2) - 1))  # z = 2 in both numbers
    second = 0.5 * math.exp(-2 * math.log(0.5))  # z = 0
    assert float(loss.detach()) == pytest.approx(-math.log(first + second) / 2, rel=1e-4)
    assert metrics["error_1"] == pytest.approx(0.0, abs=1e-6), "the phase that fits is the one followed"


def test_steps_that_do_not_exist_count_for_nothing() -> None:
    episodes = walk([30])
    model = small(episodes)
    state = episodes.obs[STATE][:6].view(1, 2, 3, 2).repeat(2, 1, 1, 1)
    action = episodes.action[:4].view(1, 2, 2, 2).repeat(2, 1, 1, 1)
    valid = torch.tensor([[True, True], [True, False]]).expand(2, 2, 2)
    loss = model.loss({STATE: state, "action": action, "valid": valid})[0]
    spoiled = state.clone()
    spoiled[:, 1, 2] = 1e3
    assert torch.equal(model.loss({STATE: spoiled, "action": action, "valid": valid})[0], loss)
    assert not torch.equal(model.loss({STATE: spoiled, "action": action, "valid": valid | True})[0], loss)


def test_the_unroll_is_open_loop() -> None:
    """The second step is predicted from the first prediction: the true state between is not looked at."""
    model = small(walk([30]))
    start = torch.full((2, 1, 3, 2), 0.3)
    action = torch.zeros(2, 1, 2, 2)
    _, error = model._unrolled({STATE: start, "action": action, "valid": torch.ones(2, 1, 2, dtype=torch.bool)})
    with torch.no_grad():
        mean, logits = model.predict(start[:, :, 0], action[:, :, 0])
        phase = logits.argmax(-1)[0, 0]  # at the start all phases predict the same
        once = model.state_transform.advance(start[:, :, 0], mean[:, :, phase])
        mean, _ = model.predict(once, action[:, :, 1])
        twice = model.state_transform.advance(once, mean[:, :, phase])
    expected = ((twice - 0.3).abs() / model.state_transform.std).mean(-1)
    torch.testing.assert_close(error[:, :, 1], expected)


def test_a_row_does_not_know_how_many_there_are() -> None:
    model = small(relative([30] * 4), width=32, depth=2)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        model.last.weight.normal_(0, 0.3, generator=generator)
    state = torch.rand(37, 5, generator=generator)
    action, u, draw = (torch.rand(37, n, generator=generator) for n in (2, 1, 1))
    whole = model.step(state, action, episode=u[:, 0], draw=draw[:, 0])
    order = torch.randperm(37, generator=generator)
    mixed = model.step(state[order], action[order], episode=u[order, 0], draw=draw[order, 0])
    alone = model.step(state[5:6], action[5:6], episode=u[5:6, 0], draw=draw[5:6, 0])
    for all_rows, shuffled, one in zip(whole, mixed, alone, strict=True):
        assert torch.equal(all_rows[order], shuffled) and torch.equal(all_rows[5:6], one)
    assert whole.latent.unique(dim=0).shape[0] == 37 and (whole.uncertainty > 0).all()


def test_uncertainty_is_about_what_is_predicted() -> None:
    """Outputs for numbers that follow from others are never trained: what members say there must not count."""
    model = small(relative([30] * 4))
    state, action, u = torch.rand(9, 5), torch.rand(9, 2), torch.rand(9)
    before = model.step(state, action, episode=u, draw=None).uncertainty
    with torch.no_grad():
        numbers = model.last.weight[0, :, : 2 * 5].unflatten(-1, (2, 5))
        numbers[..., 3:] += 5.0  # "rel" follows, "seven" is constant
    assert torch.equal(model.step(state, action, episode=u, draw=None).uncertainty, before)
    with torch.no_grad():
        numbers[..., 0] += 5.0
    assert not torch.equal(model.step(state, action, episode=u, draw=None).uncertainty, before)


def test_phases_are_drawn_by_their_odds_and_members_by_the_episode() -> None:
    model = small(walk([30]), heads=2, elites=1)
    with torch.no_grad():
        model.last.weight.zero_()
        model.last.bias[:, 0, :4] = torch.tensor([-1.0, -1.0, 1.0, 1.0])
        model.last.bias[:, 0, 4:6] = torch.tensor([math.log(0.2), math.log(0.8)])
        model.last.bias[1, 0, :4] *= 3.0
    draw = torch.linspace(0.0005, 0.9995, 1000)
    state, action = torch.zeros(1000, 2), torch.zeros(1000, 2)

    def moved(draw: torch.Tensor | None) -> torch.Tensor:
        after = model.step(state, action, episode=torch.full((1000,), 0.7), draw=draw).latent
        return after[:, 0] / model.state_transform.delta_std[0]

    assert (moved(draw) < 0).float().mean() == pytest.approx(0.2, abs=0.002)
    assert torch.allclose(moved(None), torch.ones(1000)), "the likeliest phase of the first member"
    model.order.copy_(torch.tensor([1, 0]))
    assert torch.allclose(moved(None), torch.full((1000,), 3.0)), "the best member dreams"
    uncertainty = model.step(state, action, episode=torch.zeros(1000), draw=draw).uncertainty
    torch.testing.assert_close(uncertainty, torch.full((1000,), 0.6))  # means 0.6 and 1.8: half their distance


@pytest.mark.learning
def test_two_outcomes_are_told_apart_where_one_gaussian_would_average() -> None:
    """A point that is either carried by its action or left behind, at random: samples are one or the other."""
    generator = torch.Generator().manual_seed(0)
    episodes = walk([50] * 60)
    held = torch.rand(3000, generator=generator) < 0.5
    state = torch.zeros(3000, 2)
    for f in range(1, 3000):
        carried = episodes.action[f - 1] * held[f - 1]
        state[f] = (state[f - 1] + carried) if f % 50 else torch.rand(2, generator=generator)
    episodes = with_state(episodes, state, ("x", "y"))
    model = small(episodes, width=32, unroll=1, phases=2)
    from robopolicy.world_models.training.data import WorldModelBatches, mix

    drawn = WorldModelBatches(
        mix({"a": episodes}, {}), heads=2, unroll=1, batch_size=64, window=1, labelled=4, seed=0,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(600):
        loss, _ = model.loss(drawn[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    action = torch.tensor([[0.1, -0.1]]).expand(200, 2)
    draw, start = torch.linspace(0.001, 0.999, 200), torch.full((200, 2), 0.5)
    after = model.step(start, action, episode=torch.zeros(200), draw=draw).latent - start
    share = after[:, 0] / 0.1
    near = (share.abs() < 0.15) | ((share - 1).abs() < 0.15)
    assert near.all(), f"between the outcomes: {share[~near][:5].tolist()}"
    assert 0.3 < (share > 0.5).float().mean() < 0.7
