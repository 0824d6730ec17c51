"""rssm.py and image_codec.py: what latents are made from, masks, rows alone, resuming, what it refuses."""

from __future__ import annotations

import base64
import copy
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from robopolicy.config.schema import TARGET
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import IMAGES, STATE, Feature
from robopolicy.datasets.episodes import Episodes
from robopolicy.reporting.imagination import imagination
from robopolicy.reporting.run_reader import read_run
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.world_models.envs import starts as starting
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.envs.make_imagined import make
from robopolicy.world_models.envs.starts import starts_of
from robopolicy.world_models.evaluation import calibration
from robopolicy.world_models.evaluation import world_model_report as report_module
from robopolicy.world_models.evaluation.real_rollouts import roll_out
from robopolicy.world_models.evaluation.validation import copy_last, dream, open_loop, squared_picture_error
from robopolicy.world_models.models import model_files
from robopolicy.world_models.models.dynamics import History
from robopolicy.world_models.models.image_codec import ImageCodec
from robopolicy.world_models.models.rssm import RSSM
from robopolicy.world_models.models.success import SuccessClassifier
from robopolicy.world_models.models.world import World, load_world
from robopolicy.world_models.training import data as loading
from robopolicy.world_models.training import fit as fitting
from robopolicy.world_models.training.data import WorldModelBatches, mix
from tests.fakes import NoTracker
from tests.world_models.dot import FRONT, SEEN, SIDE, drawn_at, filmed, small
from tests.world_models.point import relative
from tests.world_models.training.test_fit import Stopping
from tests.world_models.training.test_gate import Walker


def with_film(episodes: Episodes) -> Episodes:
    """With pictures of where x and y are."""
    seen = {**episodes.observation, FRONT: SEEN.observation[FRONT]}
    return replace(episodes, obs={**episodes.obs, FRONT: drawn_at(episodes.obs[STATE][:, :2])}, observation=seen)


def batch_of(episodes: Episodes, model: RSSM, *, size: int = 6, seed: int = 0) -> dict[str, Any]:
    return WorldModelBatches(
        mix({"a": episodes}, {}), heads=1, unroll=model.unroll, batch_size=size, window=4, labelled=8, seed=seed,
    )[0]  # fmt: skip


def loss_of(model: RSSM, batch: dict[str, Any]) -> torch.Tensor:
    torch.manual_seed(7)  # the same samples of z
    model.zero_grad()
    loss, _ = model.loss(batch)
    loss.backward()
    return loss.detach()


# --- sequences --------------------------------------------------------------------------------------------------------


def test_histories_at_an_episodes_start_by_hand() -> None:
    episodes = filmed([3, 4])
    found = History.before(episodes, torch.tensor([4, 2, 6]), 3)
    state = episodes.obs[STATE]
    assert torch.equal(found.obs[STATE], torch.stack([state[[3, 3, 4]], state[[0, 1, 2]], state[[4, 5, 6]]]))
    assert found.fresh.tolist() == [[True, True, False], [True, False, False], [False, False, False]]
    assert torch.equal(found.action[1], episodes.action[:3]) and found.obs[FRONT].shape == (3, 3, 3, SIDE, SIDE)
    along = History.along({k: v[3:] for k, v in episodes.obs.items()}, episodes.action[3:], 3)
    every = History.before(episodes, torch.arange(3, 7), 3)
    assert torch.equal(along.obs[FRONT], every.obs[FRONT]) and torch.equal(along.fresh, every.fresh)


def test_pictures_and_states_of_a_batch_are_of_the_same_frames_of_one_episode() -> None:
    """Every frame's picture bears its number; episodes are shorter than the sequence, longer and of one frame."""
    episodes = filmed([2, 9, 1, 4])
    numbers = torch.arange(16, dtype=torch.uint8)
    episodes.obs[FRONT] = numbers[:, None, None, None].expand(-1, 3, SIDE, SIDE).contiguous()
    batch = batch_of(episodes, small(filmed([9])), size=200)
    shown = batch[FRONT][0, :, :, 0, 0, 0].long()  # [B L+1]
    assert torch.equal(episodes.obs[STATE][shown], batch[STATE][0])
    assert torch.equal(episodes.action[shown[:, :-1]], batch["action"][0])
    owner = episodes.episode_of[shown]
    assert (owner == owner[:, :1]).all() and set(owner[:, 0].tolist()) == {0, 1, 3}
    assert torch.equal(shown[:, 1:] > shown[:, :-1], batch["valid"][0]) and not batch["valid"].all()


def test_frames_that_do_not_exist_count_for_nothing() -> None:
    """What lies beyond an episode's end changes neither the loss nor any gradient, bit for bit."""
    episodes = filmed([3, 6, 2])
    model, batch = small(episodes, free_nats=0.0), batch_of(episodes, small(episodes), size=12)
    assert 0 < int(batch["valid"].sum()) < batch["valid"].numel()
    loss = loss_of(model, batch)
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    assert len(gradients) == len(list(model.parameters())), "all is trained"
    spoiled = copy.deepcopy(batch)
    spoiled[STATE][:, :, 1:][~batch["valid"]] = 1e3
    spoiled[FRONT][:, :, 1:][~batch["valid"]] = 255
    spoiled["action"][~batch["valid"]] = 0.1
    assert torch.equal(loss_of(model, spoiled), loss)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name]), name  # type: ignore[arg-type]
    assert not torch.equal(loss_of(model, {**spoiled, "valid": batch["valid"] | True}), loss)


def test_the_loss_is_a_mean_over_frames_that_exist() -> None:
    """Nothing predicted, one picture that differs by one deviation everywhere: ½ · weight · pixels."""
    episodes = filmed([5])
    model = small(episodes, picture=0.1)
    camera = model.pictures["camera_0"]
    with torch.no_grad():
        for parameter in camera.squares[-1].parameters():
            parameter.zero_()
        camera.mean.fill_(0.5), camera.spread.fill_(0.1)
    batch = batch_of(episodes, model, size=3)
    batch[FRONT] = torch.full_like(batch[FRONT], 153)  # 0.6: one deviation above the mean
    torch.manual_seed(0)
    _, metrics = model.loss(batch)
    assert metrics["picture.front"] == pytest.approx(0.5 * 0.1 * 3 * SIDE * SIDE, rel=1e-5)
    assert set(metrics) == {"kl", "state", "picture.front", "disagreement"}


# --- latents ----------------------------------------------------------------------------------------------------------


def test_nothing_is_known_before_a_fresh_frame() -> None:
    """A repeated first frame is as one alone; another frame before it, unless it is fresh, makes a difference."""
    episodes = filmed([6])
    model = small(episodes)
    alone = model.encode(History.before(episodes, torch.tensor([0]), 1))[0, 0]
    repeated = model.encode(History.before(episodes, torch.tensor([2]), 5))[0]  # frames 0 0 0 1 2
    for k in range(3):
        assert torch.equal(repeated[k], alone)
    later = model.encode(History.before(episodes, torch.tensor([4]), 2))[0]  # frames 3 4
    assert not torch.equal(later[1], model.encode(History.before(episodes, torch.tensor([4]), 1))[0, 0])
    history = History.before(episodes, torch.tensor([4]), 2)
    cut = replace(history, fresh=torch.tensor([[False, True]]))
    assert torch.equal(model.encode(cut)[0, 1], model.encode(History.before(episodes, torch.tensor([4]), 1))[0, 0])


def test_the_last_action_of_a_history_leads_out_of_it() -> None:
    episodes = filmed([6])
    model, history = small(episodes), History.before(episodes, torch.tensor([4]), 3)
    before = model.encode(history)
    last, first = history.action.clone(), history.action.clone()
    last[:, -1], first[:, 0] = -last[:, -1], -first[:, 0]
    assert torch.equal(model.encode(replace(history, action=last)), before)
    changed = model.encode(replace(history, action=first))
    assert torch.equal(changed[:, 0], before[:, 0]) and not torch.equal(changed[:, 1], before[:, 1])


def test_a_latent_holds_the_state_as_it_was_seen() -> None:
    episodes = filmed([6])
    model = small(episodes)
    latent = model.encode(History.before(episodes, torch.arange(6), 2))[:, -1]
    assert latent.shape == (6, model.latent_dim) and model.features(latent).shape == (6, model.feature_dim)
    shown = model.decode(latent, SEEN.observation)
    assert torch.equal(shown[STATE], episodes.obs[STATE])
    assert shown[FRONT].shape == (6, 3, SIDE, SIDE) and shown[FRONT].dtype == torch.uint8


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_row_does_not_know_how_many_there_are(precision: str) -> None:
    episodes = filmed([40])
    model = small(episodes, precision=precision)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(37, generator=generator)
    history = History.before(episodes, torch.arange(37), 3)
    latent = model.encode(history)
    assert torch.equal(model.encode(history.take(order)), latent[order])
    assert torch.equal(model.encode(history.take(torch.tensor([5]))), latent[5:6])
    now, action = latent[:, -1], episodes.action[:37]
    u, draw = torch.rand(37, generator=generator), torch.rand(37, generator=generator)
    whole = model.step(now, action, episode=u, draw=draw)
    mixed = model.step(now[order], action[order], episode=u[order], draw=draw[order])
    alone = model.step(now[5:6], action[5:6], episode=u[5:6], draw=draw[5:6])
    for all_rows, shuffled, one in zip(whole, mixed, alone, strict=True):
        assert torch.equal(all_rows[order], shuffled) and torch.equal(all_rows[5:6], one)
    shown = model.decode(whole.latent, [FRONT])[FRONT]
    assert torch.equal(model.decode(whole.latent[order], [FRONT])[FRONT], shown[order])
    assert torch.equal(model.decode(whole.latent[5:6], [FRONT])[FRONT], shown[5:6])
    assert whole.latent.unique(dim=0).shape[0] == 37 and (whole.uncertainty > 0).all()


def test_in_bfloat16_it_is_the_same_model_to_its_precision() -> None:
    """Same weights: networks compute in it and nothing else does, so that relations between numbers stay exact."""
    episodes = with_film(relative([40] * 8))
    full, half = small(episodes), small(episodes, precision="bfloat16")
    made: dict[str, torch.dtype] = {}
    camera = half.pictures.codec("observation.images.front")
    inside = {"enter": half.cell.enter[0], "gates": half.cell.gates[0], "prior": half.prior,
              "posterior": half.posterior, "move": half.move, "disagreement": half.disagreement_ensemble,
              "down": camera.down, "squares": camera.squares}  # fmt: skip
    for name, layer in {**inside, "lean": half.lean}.items():
        layer.register_forward_hook(lambda _, __, out, name=name: made.update({name: out.dtype}))
    history, action = History.before(episodes, torch.arange(9), 3), episodes.action[:9]
    latents = [m.encode(history)[:, -1] for m in (full, half)]
    imagined = [m.step(latents[0], action, episode=torch.zeros(9), draw=None) for m in (full, half)]
    half.decode(latents[1], [FRONT])
    assert made == dict.fromkeys(inside, torch.bfloat16) | {"lean": torch.float32}
    state, moves = slice(-full.state_transform.size, None), full.state_transform.delta_std > 0
    for (a, b), kept in ((latents, True), ((imagined[0].latent, imagined[1].latent), False)):
        assert b.dtype == torch.float32 and not torch.equal(a, b)
        assert torch.equal(a[:, state], b[:, state]) == kept and (a - b)[:, : full.units].abs().max() < 0.05
        off = ((a - b)[:, state] / full.state_transform.delta_std)[:, moves]
        assert off.abs().max() < 0.01, "deviations of a step"
    assert imagined[1].uncertainty.dtype == torch.float32
    batch = batch_of(episodes, full)
    one, other = (loss_of(m, batch) for m in (full, half))
    assert one.dtype == other.dtype == torch.float32 and one != other == pytest.approx(float(one), rel=0.02)


def test_a_step_is_drawn_by_its_number_alone() -> None:
    model = small(filmed([9]))
    latent, action = torch.zeros(3, model.latent_dim), torch.zeros(3, 2)
    zero = torch.zeros(3)
    a = model.step(latent, action, episode=zero, draw=torch.tensor([0.3, 0.3, 0.6])).latent
    assert torch.equal(a[0], a[1]) and not torch.equal(a[0], a[2])
    likeliest = model.step(latent, action, episode=zero, draw=None).latent
    assert torch.equal(likeliest[0], likeliest[2])


def test_open_loop_pictures_by_hand() -> None:
    """A picture that gets 51 of 255 brighter every frame: copying is 0.2·k off."""
    episodes = filmed([3, 2])
    level = torch.tensor([0, 51, 102, 0, 51], dtype=torch.uint8)
    episodes.obs[FRONT] = level[:, None, None, None].expand(-1, 3, SIDE, SIDE).contiguous()
    found = open_loop(copy_last, episodes, squared_picture_error, key=FRONT, horizons=(1, 2, 3), stride=1)
    assert [len(found[k]) for k in (1, 2, 3)] == [3, 1, 0]
    assert found[1].mean() == pytest.approx(0.04) and found[2].mean() == pytest.approx(0.16)
    found = calibration._pictures({"model": copy_last}, episodes, FRONT, 1)
    assert found["1"]["model"]["psnr"] == pytest.approx(-10 * math.log10(0.04)) and found["50"]["model"]["psnr"] is None


# --- the world around it ----------------------------------------------------------------------------------------------

LENGTHS = [12] * 90
WON = [i % 2 == 0 for i in range(90)]
MODEL = {TARGET: "rssm", "units": 16, "variables": 4, "classes": 4, "width": 16, "unroll": 4,
         "memory": 2, "disagreement_heads": 2, "block": 16}  # fmt: skip
SUCCESS = {TARGET: "classifier", "window": 2, "width": 16, "depth": 1, "min_positives": 8}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A dataset that is already in memory."""
    episodes = filmed(LENGTHS, success=WON)

    def load(path: Path, *, needed: dict[str, Feature], incomplete: bool = True) -> Episodes:
        return replace(episodes, obs={k: episodes.obs[k] for k in needed}, observation=dict(needed))

    monkeypatch.setattr(loading, "dataset_features", lambda path: episodes.observation)
    monkeypatch.setattr(loading, "load_episodes", load)
    monkeypatch.setattr(starting, "load_episodes", load)
    return tmp_path / "dots"


def run(run_dir: Path, data: Path, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "world_model": MODEL, "success": SUCCESS, "dataset": data, "incomplete": False, "steps": 6, "batch_size": 4,
        "labelled": 8, "holdout": 0.4, "warmup": 2, "lr": 1e-3, "seed": 0, "device": torch.device("cpu"),
        "tracker": NoTracker(), "checkpointer": Checkpointer(run_dir), "log_every": 2, "save_every": 2,
    } | changes  # fmt: skip
    result = fitting.fit(**given)
    run_dir.mkdir(exist_ok=True)
    (run_dir / "config.yaml").write_text(f"dataset: {data}\nloop: {{data: {{}}, holdout: {given['holdout']}}}\n")
    return result


def test_interrupted_and_resumed_it_ends_in_the_same_bits(data: Path, tmp_path: Path) -> None:
    run(tmp_path / "whole", data)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", data, checkpointer=Stopping(tmp_path / "cut", at=3))
    run(tmp_path / "cut", data)
    whole, cut = load_world(tmp_path / "whole"), load_world(tmp_path / "cut")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, cut.state_dict()[name]), name
    assert whole.report == cut.report
    shown = whole.report["pictures"][FRONT]
    assert set(shown["5"]) == {"windows", "model", "copy_last"} and shown["5"]["windows"] > 10
    none = {"mse": None, "psnr": None}
    assert shown["50"] == {"windows": 0, "model": none, "copy_last": none}


def test_the_env_shows_what_is_asked_for_and_makes_nothing_else(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "run", data)
    given = {"num_envs": 3, "seed": 1, "even_if_bad": True}
    env = make(tmp_path / "run", **given)  # type: ignore[arg-type]
    step = env.step(torch.zeros(3, 2))
    for key, feature in SEEN.observation.items():
        assert step.obs[key].shape == (3, *feature.shape) and step.obs[key].dtype == feature.torch_dtype
    again = make(tmp_path / "run", **given).step(torch.zeros(3, 2))  # type: ignore[arg-type]
    assert all(torch.equal(v, again.obs[k]) for k, v in step.obs.items())
    saved = env.state_dict()
    other = make(tmp_path / "run", **given)  # type: ignore[arg-type]
    other.load_state_dict(saved)
    a, b = env.step(torch.full((3, 2), 0.05)), other.step(torch.full((3, 2), 0.05))
    assert torch.equal(a.next_obs[FRONT], b.next_obs[FRONT]) and torch.equal(a.next_obs[STATE], b.next_obs[STATE])

    monkeypatch.setattr(ImageCodec, "decode", lambda *x: pytest.fail("a picture was made"))
    blind = make(tmp_path / "run", cameras=(), **given)  # type: ignore[arg-type]
    assert set(blind.spec.observation) == {STATE} == set(blind.step(torch.zeros(3, 2)).obs)
    assert blind.spec.digest != env.spec.digest
    with pytest.raises(ConfigError, match=r"world\.cameras: there is no 'frnt'.*Did you mean 'front'"):
        make(tmp_path / "run", cameras=("frnt",), **given)  # type: ignore[arg-type]


def test_weights_of_another_architecture_say_to_train_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "run", data, steps=1)
    read = model_files.read_tensors
    older = lambda path: {k.replace("squares", "up"): v for k, v in read(path).items()}  # noqa: E731
    monkeypatch.setattr(model_files, "read_tensors", older)
    with pytest.raises(CheckpointError, match=r"Train it again, or use the version that wrote it \(.+\)\."):
        load_world(tmp_path / "run")


def test_latents_of_another_model_are_refused(data: Path, tmp_path: Path) -> None:
    """Of the same shape, trained one update further: nothing but the digest tells them apart."""
    run(tmp_path / "a", data, steps=1)
    run(tmp_path / "b", data, steps=2)
    a, b = (make(tmp_path / name, num_envs=2, even_if_bad=True) for name in "ab")
    state = a.state_dict()
    assert state["latent"].shape == b.state_dict()["latent"].shape
    with pytest.raises(CheckpointError, match="Resume with the world model it was saved under"):
        b.load_state_dict(state)


def test_world_model_report_shows_real_pictures_above_imagined_ones(data: Path, tmp_path: Path) -> None:
    run(tmp_path / "run", data)
    loop = "{_target_: fit_world_model, data: {}, holdout: 0.4}"
    (tmp_path / "run" / "config.yaml").write_text(f"dataset: {data}\nloop: {loop}\n")
    file = report_module.write_world_model_report(run_dir=tmp_path / "run", episodes=1)
    assert file is not None
    (episode,) = json.loads(file.read_text())["episodes"]
    picture = Image.open(io.BytesIO(base64.b64decode(episode["strips"]["front"])))
    assert picture.size == (12 * SIDE, 2 * SIDE), "twelve moments, two rows"
    above, below = (
        torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
        .view(2, SIDE, 12, SIDE, 3)
        .permute(0, 2, 4, 1, 3)
        .short()
    )
    real = drawn_at(torch.tensor(episode["real"]["state"]).T).short()  # of states with five digits
    assert (above - real).abs().max() <= 1, "all frames of an episode that has twelve"
    assert torch.equal(above[0], below[0]) and not torch.equal(above[1:], below[1:]), "both begin with the same frame"
    page = "".join(imagination([read_run(tmp_path / "run")]))
    assert page.count("data:image/png;base64,") == 1 and "front: signal to noise" in page


def test_a_camera_is_left_away_or_must_exist(data: Path, tmp_path: Path) -> None:
    run(tmp_path / "blind", data, cameras=(), steps=1)
    world = load_world(tmp_path / "blind")
    assert set(world.spec.observation) == {STATE} and world.report["pictures"] == {}
    with pytest.raises(ConfigError, match=r"cameras: there is no 'side'"):
        run(tmp_path / "no", data, cameras=("side",))


def test_a_model_of_states_does_not_load_pictures(data: Path, tmp_path: Path) -> None:
    ensemble = {TARGET: "ensemble", "heads": 2, "width": 16, "depth": 1, "unroll": 3}
    run(tmp_path / "run", data, world_model=ensemble, steps=1)
    assert set(load_world(tmp_path / "run").spec.observation) == {STATE}


def test_success_does_not_shape_the_latents_it_is_judged_by() -> None:
    episodes = filmed([8] * 6, success=[True, False] * 3)
    model = small(episodes)
    world = World(SEEN, model, SuccessClassifier(model.feature_dim, window=2, width=16, depth=1))
    assert world.memory == 4
    batch = batch_of(episodes, model)
    torch.manual_seed(7)
    world.loss(batch)[0].backward()
    with_success = {n: p.grad.clone() for n, p in model.named_parameters()}  # type: ignore[union-attr]
    learned = [*world.success.done.embed.parameters(), *world.success.real.embed.parameters()]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in learned)
    loss_of(model, batch)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, with_success[name]), name  # type: ignore[arg-type]


def test_rollouts_keep_the_pictures_that_a_model_is_refitted_on() -> None:
    episodes = filmed([9] * 8)
    model = small(episodes)
    world = World(SEEN, model, SuccessClassifier(model.feature_dim, window=2, width=16, depth=1))
    world.bound.fill_(1e9), world.success.threshold.fill_(1e9)
    _, found = roll_out(Walker(), ImaginedEnv(world, starts_of(episodes, world.memory), 2, horizon=4), torch.arange(3))
    assert [e.obs[FRONT].shape for e in found] == [(4, 3, SIDE, SIDE)] * 3
    assert not torch.equal(found[0].obs[FRONT][0], found[1].obs[FRONT][0])


def test_episodes_in_the_env_do_not_depend_on_neighbours() -> None:
    episodes = filmed([9] * 8)
    model = small(episodes)
    world = World(SEEN, model, SuccessClassifier(model.feature_dim, window=2, width=16, depth=1))
    world.bound.fill_(1e9), world.success.threshold.fill_(1e9)
    model.state_transform.low.fill_(-1e9), model.state_transform.high.fill_(1e9)

    def shown(seeds: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        env = ImaginedEnv(world, starts_of(episodes, world.memory), len(seeds), horizon=9)
        env.reset(torch.tensor(seeds))
        steps = [env.step(torch.full((len(seeds), 2), 0.03)).next_obs for _ in range(4)]
        return torch.stack([s[STATE] for s in steps], 1), torch.stack([s[FRONT] for s in steps], 1)

    state, picture = shown([3, 1, 4, 15, 9])
    for i, seed in enumerate([3, 1, 4, 15, 9]):
        alone = shown([seed])
        assert torch.equal(alone[0][0], state[i]) and torch.equal(alone[1][0], picture[i])


@pytest.mark.parametrize("shape", [(3, 30, 32), (3, 4, 4), (3, 48, 48), (3, 33, 33)])
def test_pictures_of_other_sides_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match=rf"'{IMAGES}top'.*found {shape[1]}×{shape[2]}.*task\.image_size=\[32,32\]"):
        ImageCodec(IMAGES + "top", shape, feature_dim=4, depth=16, out_dim=8)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 64, 64), (3, 32, 64), (3, 64, 96)])
def test_pictures_of_these_sides_are_encoded_and_decoded(shape: tuple[int, ...]) -> None:
    model = ImageCodec("top", shape, feature_dim=4, depth=16, out_dim=8)
    pictures = torch.randint(0, 256, (6, *shape), dtype=torch.uint8)
    model.fit(pictures)
    units = model.units(pictures)
    assert float(units.mean().abs()) < 1e-3 and float(units.square().mean()) == pytest.approx(1.0, abs=1e-3)
    assert torch.equal(model.picture(units), pictures), "there and back"
    features = torch.randn(6, 4)
    assert model.encode(units).shape == (6, 8) and model.decode(features[:0]).shape == (0, *shape)
    squares, decoded = model.squares(features), model.decode(features)
    for i in range(squares.shape[1]):
        y, x = 4 * (i // (shape[2] // 4)), 4 * (i % (shape[2] // 4))
        assert torch.equal(decoded[:, :, y : y + 4, x : x + 4], squares[:, i].view(6, 3, 4, 4))


def test_sizes_with_which_rows_would_depend_on_others() -> None:
    for name, value in (("units", 20), ("width", 50), ("depth", 8), ("block", 10)):
        with pytest.raises(ConfigError, match=rf"world_model\.{name}: expected a multiple of 16.*found {value}"):
            RSSM(SEEN, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"variables·classes: expected a multiple of 16.*found 15"):
        RSSM(SEEN, variables=3, classes=5)


@pytest.mark.learning
def test_it_sees_where_the_point_is_and_where_it_will_be() -> None:
    """Open loop over five steps, states and pictures are nearer to the truth than those of standing still."""
    episodes, unseen = filmed([20] * 40), filmed([20] * 6, seed=1)
    model = small(episodes, units=32, variables=8, width=32, unroll=8, picture=1.0)
    drawn = WorldModelBatches(
        mix({"a": episodes}, {}), heads=1, unroll=8, batch_size=16, window=1, labelled=2, seed=0,
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(300):
        torch.manual_seed(step)
        loss, _ = model.loss(drawn[step])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    world = World(SEEN, model.eval(), SuccessClassifier(model.feature_dim, window=1))
    rollouts, std = (dream(world, likeliest=False), copy_last), unseen.obs[STATE].std(0)
    errors = [open_loop(r, unseen, lambda a, b: (a - b).abs() / std, horizons=(5,), memory=3)[5] for r in rollouts]
    assert errors[0].mean() < 0.5 * errors[1].mean()
    errors = [open_loop(r, unseen, squared_picture_error, key=FRONT, horizons=(5,), memory=3)[5] for r in rollouts]
    assert errors[0].mean() < 0.7 * errors[1].mean()


def test_a_mixture_of_two_latents_keeps_what_belongs_together() -> None:
    episodes = filmed([8] * 6, success=[True, False] * 3)
    model = small(episodes)
    one, two = torch.zeros(1, model.latent_dim), torch.ones(1, model.latent_dim)
    swap = torch.zeros(1, model.latent_dim, dtype=torch.bool)
    swap[0, 0] = swap[0, model.units + 1] = True  # of h its first number, of z its second variable
    mixed = model.mixed(one, two, swap)[0]
    h, z, state = mixed.split([model.units, model.variables * model.classes, model.state_transform.size])
    assert h.eq(1.0).all(), "h is one thing"
    assert z.view(model.variables, model.classes)[1].eq(1.0).all() and z.sum() == model.classes
    torch.testing.assert_close(state, model.state_transform.derive(torch.zeros(model.state_transform.size)))
