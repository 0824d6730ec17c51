"""chunk_transformer.py: nothing fed back within it, one mode each, rows alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from robopolicy.core.errors import ConfigError
from robopolicy.core.types import STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.world_models.models.chunk_transformer import ChunkTransformer
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.training.data import WorldModelBatches, mix
from tests.world_models.point import SPEC, relative, walk, with_state


def small(episodes: Episodes, *, random: bool = True, **kw: object) -> ChunkTransformer:
    """With `random` weights of the last layer everything has its say."""
    torch.manual_seed(0)
    given = {"chunk": 3, "chunks": 2, "heads": 2, "modes": 2, "width": 16, "depth": 1, "attention_heads": 2,
             "block": 16, **kw}  # fmt: skip
    model = ChunkTransformer(replace(SPEC, observation=episodes.observation), **given)  # type: ignore[arg-type]
    model.fit(episodes)
    for parameter in [p for m in model.members for p in (m.change.weight, m.odds.weight)] if random else []:
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def plain(episodes: Episodes, *, odds: tuple[float, float] = (0.5, 0.5), **kw: object) -> ChunkTransformer:
    """Whatever is done, mode 0 moves everything by −1 deviations a step, mode 1 by +1."""
    model, size = small(episodes, **kw), len(episodes.observation[STATE].names or ())
    with torch.no_grad():
        for member in model.members:
            member.change.weight.zero_(), member.odds.weight.zero_()
            member.change.bias[: 2 * size] = torch.tensor([-1.0, 1.0]).repeat_interleave(size)
            member.odds.bias[:2] = torch.tensor(odds).log()
    return model


def first(model: ChunkTransformer, state: torch.Tensor) -> torch.Tensor:
    return model.encode(History.first({STATE: state}, 2))[:, 0]


def some(model: ChunkTransformer, rows: int, steps: int) -> tuple[torch.Tensor, ...]:
    """Latents, actions [rows steps 2], and uniform numbers of episodes [rows] and steps [rows steps]."""
    generator = torch.Generator().manual_seed(1)
    state = torch.rand(rows, model.size, generator=generator)
    action = 0.2 * torch.rand(rows, steps, 2, generator=generator) - 0.1
    episode, draw = torch.rand(rows, generator=generator), torch.rand(rows, steps, generator=generator)
    return first(model, state), action, episode, draw


def test_a_chunk_begins_where_one_ended() -> None:
    model = small(walk([30]))
    latent, action, episode, draw = some(model, 4, 4)
    for k in range(3):
        latent, _ = model.step(latent, action[:, k], episode=episode, draw=draw[:, k])
    again = first(model, latent[:, : model.size])
    goes_on, _ = model.step(latent, action[:, 3], episode=episode, draw=draw[:, 3])
    anew, _ = model.step(again, action[:, 3], episode=episode, draw=draw[:, 3])
    assert torch.equal(goes_on, anew)


def test_nothing_is_fed_back_within_a_chunk() -> None:
    """What the model believes to be at by now does not change what it expects of the next action, the action does."""
    model = small(walk([30]))
    latent, action, episode, draw = some(model, 4, 2)
    latent, _ = model.step(latent, action[:, 0], episode=episode, draw=draw[:, 0])
    moved = latent.clone()
    moved[:, : model.size] += 0.37

    def change(at: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        return model.step(at, taken, episode=episode, draw=draw[:, 1]).latent[:, : model.size] - at[:, : model.size]

    torch.testing.assert_close(change(moved, action[:, 1]), change(latent, action[:, 1]))
    assert not torch.allclose(change(latent, action[:, 1]), change(latent, -action[:, 1]))
    before = latent.clone()
    before[:, 2 * model.size] += 0.5  # the first action of the chunk
    assert not torch.allclose(change(latent, action[:, 1]), change(before, action[:, 1]))


def test_a_mode_is_drawn_once_a_chunk_by_its_odds() -> None:
    model = plain(walk([30]), odds=(0.2, 0.8))
    draws = torch.linspace(0.0005, 0.9995, 1000)
    latent, episode, action = first(model, torch.zeros(1000, 2)), torch.full((1000,), 0.7), torch.zeros(1000, 2)
    for k in range(3):
        draw = draws if k == 0 else draws.flip(0)  # of later steps nothing is asked
        latent, uncertainty = model.step(latent, action, episode=episode, draw=draw)
    moved = latent[:, 0] / model.state_transform.delta_std[0]
    torch.testing.assert_close(moved.abs(), torch.full((1000,), 3.0))  # three steps of the same mode
    assert (moved < 0).float().mean() == pytest.approx(0.2, abs=0.002)
    assert torch.equal(uncertainty, torch.zeros(1000)), "members agree"
    likeliest = model.step(latent, action, episode=episode, draw=None).latent[:, 0] - latent[:, 0]
    torch.testing.assert_close(likeliest, model.state_transform.delta_std[0].expand(1000))


def test_loss_in_closed_form() -> None:
    """One chunk of two steps that move by +1 and +2 deviations; spreads 1 and ½ at every step, even odds."""
    model = plain(walk([30]), chunk=2, chunks=1, heads=1, min_spread=1e-6)
    with torch.no_grad():
        model.log_spread[0, :, 0], model.log_spread[0, :, 1] = 0.0, math.log(0.5)
    state = torch.tensor([0.0, 1.0, 3.0])[None, None, :, None] * model.state_transform.delta_std
    batch = {STATE: state, "action": torch.zeros(1, 1, 2, 2), "valid": torch.ones(1, 1, 2, dtype=torch.bool)}
    loss, metrics = model.loss(batch)
    # Mode 0 is at −1, −2 where +1, +3 is true; mode 1 at +1, +2. Each in both numbers.
    zero = 0.5 * math.exp(-2 * (math.sqrt(1 + 2.0**2) - 1 + math.sqrt(1 + 5.0**2) - 1))
    one = 0.5 * math.exp(-2 * (2 * math.log(0.5) + math.sqrt(1 + 2.0**2) - 1))  # z = 0, then 1 / ½
    assert float(loss.detach()) == pytest.approx(-math.log(zero + one) / 2 / 2, rel=1e-4), "per number and step"
    missed = float((model.state_transform.delta_std / model.state_transform.std).mean())
    assert metrics["error_1"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["error_2"] == pytest.approx(missed, rel=1e-4), "mode 1 is the one that fits"


def test_the_second_chunk_begins_where_the_first_is_imagined_to_end() -> None:
    model = plain(walk([30]), chunk=1, chunks=2, heads=1)
    state = torch.tensor([0.0, 1.5, 2.0])[None, None, :, None] * model.state_transform.delta_std
    batch = {STATE: state, "action": torch.zeros(1, 1, 2, 2), "valid": torch.ones(1, 1, 2, dtype=torch.bool)}
    _, error = model._unrolled(batch)
    unit = (model.state_transform.delta_std / model.state_transform.std).mean()
    torch.testing.assert_close(error[0, 0], torch.tensor([0.5, 0.0]) * unit)  # at 1 and 2, not at 1 and 2.5


def test_steps_that_do_not_exist_count_for_nothing() -> None:
    episodes = walk([40])
    model = small(episodes)
    state = episodes.obs[STATE][:14].view(1, 2, 7, 2).repeat(2, 1, 1, 1)
    action = episodes.action[:12].view(1, 2, 6, 2).repeat(2, 1, 1, 1)
    valid = torch.tensor([[True] * 6, [True] * 2 + [False] * 4]).expand(2, 2, 6)
    loss, metrics = model.loss({STATE: state, "action": action, "valid": valid})
    spoiled = state.clone()
    spoiled[:, 1, 3:] = 1e3
    again, same = model.loss({STATE: spoiled, "action": action, "valid": valid})
    assert torch.equal(again, loss) and same == metrics
    assert not torch.equal(model.loss({STATE: spoiled, "action": action, "valid": valid | True})[0], loss)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_row_does_not_know_how_many_there_are(precision: str) -> None:
    model = small(relative([30] * 4), width=32, depth=2, precision=precision)
    latent, action, episode, draw = some(model, 37, 2)
    mid, _ = model.step(latent, action[:, 0], episode=episode, draw=draw[:, 0])
    latent = torch.where(torch.arange(37)[:, None] % 2 == 0, mid, latent)  # rows at different places of a chunk
    whole = model.step(latent, action[:, 1], episode=episode, draw=draw[:, 1])
    order = torch.randperm(37, generator=torch.Generator().manual_seed(2))
    for rows in (order, torch.tensor([5]), torch.tensor([8])):
        part = model.step(latent[rows], action[rows, 1], episode=episode[rows], draw=draw[rows, 1])
        assert torch.equal(part.latent, whole.latent[rows]) and torch.equal(part.uncertainty, whole.uncertainty[rows])
    assert (whole.uncertainty > 0).all()


def test_in_bfloat16_it_is_the_same_model_to_its_precision() -> None:
    """Same weights: blocks compute in it; what reads a state, or moves it, computes in float32."""
    full, half = (small(relative([30] * 4), precision=p) for p in ("float32", "bfloat16"))
    made = []
    for member in half.members:
        for layer in (member.enter, member.attention[0], member.feed[0], member.change, member.odds):
            layer.register_forward_hook(lambda _, __, out: made.append(out.dtype))
    latent, action, episode, draw = some(full, 5, 3)
    a, b = (m.step(latent, action[:, 0], episode=episode, draw=draw[:, 0]) for m in (full, half))
    assert made == [torch.float32, torch.bfloat16, torch.bfloat16, torch.float32, torch.float32] * 2
    moved = (a.latent - latent)[..., : full.size].abs().max()
    assert b.latent.dtype == torch.float32 and 0 < (a.latent - b.latent)[..., : full.size].abs().max() < 0.02 * moved


def test_a_mixture_begins_a_chunk_and_is_consistent() -> None:
    episodes = relative([20] * 10)
    model = small(episodes)
    state = episodes.obs[STATE]
    here, there = first(model, state[:1]), first(model, state[-1:])
    here, _ = model.step(here, torch.ones(1, 2), episode=torch.zeros(1), draw=torch.zeros(1))
    swap = torch.zeros(1, model.latent_dim, dtype=torch.bool)
    swap[0, 2] = True  # the goal
    found = model.mixed(here, there, swap)
    x, _, goal, rel, _ = found[0, :5].tolist()
    assert goal == there[0, 2].item() and rel == pytest.approx(goal - x, abs=1e-5)
    assert not found[:, 5:].any(), "no action of another state's chunk is left"


def test_sizes_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"world_model\.width: expected a multiple of attention_heads=5, found 16"):
        small(walk([30]), attention_heads=5)
    with pytest.raises(ConfigError, match=r"world_model\.width.*Take 32"):
        small(walk([30]), width=20)


@pytest.mark.learning
def test_a_grasp_holds_or_slips_for_the_whole_chunk() -> None:
    """A point that is carried by three actions or left behind by all of them, at random."""
    generator = torch.Generator().manual_seed(0)
    episodes = walk([4] * 1000)
    held = torch.rand(1000, generator=generator) < 0.5
    begun = torch.rand(1000, 1, 2, generator=generator)
    carried = episodes.action.view(1000, 4, 2)[:, :3].cumsum(1) * held[:, None, None]
    episodes = with_state(episodes, torch.cat([begun, begun + carried], 1).flatten(0, 1), ("x", "y"))
    model = small(episodes, random=False, width=32, chunks=1)
    drawn = WorldModelBatches(mix({"a": episodes}, {}), heads=2, unroll=3, batch_size=64, window=1, labelled=4, seed=0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(800):
        loss, _ = model.loss(drawn[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    action = torch.tensor([0.1, -0.1]).expand(200, 3, 2)
    draw = torch.linspace(0.001, 0.999, 200)
    latent, at = first(model, torch.full((200, 2), 0.5)), []
    for k in range(3):
        latent, _ = model.step(latent, action[:, k], episode=torch.zeros(200), draw=draw)
        at.append(latent[:, 0] - 0.5)
    share = torch.stack(at, dim=1) / torch.tensor([0.1, 0.2, 0.3])  # [200 3]
    near = (share.abs() < 0.15) | ((share - 1).abs() < 0.15)
    assert near.all(), f"between the outcomes: {share[~near.all(1)][:5].tolist()}"
    assert ((share[:, 0] > 0.5) == (share[:, 2] > 0.5)).all(), "never held first and lost then"
    assert 0.35 < (share[:, 0] > 0.5).float().mean() < 0.65
