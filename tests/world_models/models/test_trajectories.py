"""Windows of behaviour: cut by hand, encoded and back, denoised with and without a guide, trained and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robopolicy.config.schema import TARGET
from robopolicy.core.errors import CheckpointError, ConfigError, DataError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE
from robopolicy.networks.denoiser import Denoiser
from robopolicy.runs.checkpointer import Checkpointer
from robopolicy.world_models.models.trajectories import Trajectories, load_trajectories
from robopolicy.world_models.models.windows import cut, whole
from robopolicy.world_models.training.fit_trajectories import fit
from tests.fakes import NoTracker
from tests.world_models.point import walk
from tests.world_models.training.test_fit import Stopping, record

MODEL = {
    TARGET: "trajectories", "length": 4, "denoising_steps": 6,
    "network": {TARGET: "residual_mlp", "_partial_": True, "width": 32, "time_dim": 8},
}  # fmt: skip


class Echo(Denoiser):
    """Says 0 whatever it sees: under "sample" the denoised window is the mean of the data."""

    def __init__(self, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        super().__init__(cond_dim=cond_dim, time_dim=2, embed_dim=1, activation=nn.SiLU())

    def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
        return torch.zeros_like(x)


def small(length: int = 4, **options: Any) -> Trajectories:
    """Fitted to walks of a point, not trained; only the last of every second episode's windows succeeds."""
    torch.manual_seed(0)
    data = walk([12] * 8, success=[True, False] * 4)
    spec = PolicySpec(data.observation, data.action_spec, data.dt, 1, 1, 1, data.tasks)
    made = {"network": Echo, "denoising_steps": 5, "prediction": "sample", **options}
    model = Trajectories(spec, length=length, **made)
    model.fit(data, cut(data, whole(data, length), length))
    return model.eval()


def test_windows_never_cross_the_end_of_an_episode() -> None:
    """Frames 0…4 run out of time, 5…8 end by success: there a window may be cut short, and stands still."""
    data = walk([5, 4], success=[False, True])
    assert whole(data, 3).tolist() == [0, 1, 5, 6, 7, 8], "2…4 would need states that are not recorded"
    assert whole(data, 5).tolist() == [5, 6, 7, 8]
    window = cut(data, torch.tensor([1, 7]), 3)
    torch.testing.assert_close(window.state[0], data.obs[STATE][[1, 2, 3, 4]])
    torch.testing.assert_close(window.state[1], data.obs[STATE][[7, 8, 8, 8]])
    torch.testing.assert_close(window.action, data.action[torch.tensor([[1, 2, 3], [7, 8, 8]])])
    assert window.success.tolist() == window.terminated.tolist() == [[False] * 3, [False, True, True]]


def test_units_by_hand_and_back() -> None:
    """The point moves by its action: the linear model knows all, but for a kick in x that nothing foretells."""
    data = walk([9] * 60, success=[True, False] * 30, dims=3)
    plain = cut(data, whole(data, 4), 4)
    kick = torch.randn(len(plain.state), 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 2, 3, 4])
    window = plain._replace(state=plain.state.clone())
    window.state[:, 1:, 0] += 0.01 * kick
    spec = PolicySpec(data.observation, data.action_spec, data.dt, 1, 1, 1, data.tasks)
    model = Trajectories(spec, network=Echo, length=4)
    model.fit(data, window)
    tokens, going = model.encode(window), ~window.terminated
    torch.testing.assert_close(model.ways[:, 0], torch.tensor([0.01, 0.02, 0.03, 0.04]), atol=0.0, rtol=0.15)
    of_kick = (0.01 * kick / model.ways[:, 0])[going]
    assert float((tokens[..., 2][going] - of_kick).square().mean()) < 0.1, "what is left is the kick"
    reach = torch.stack([model.linear[k, 4:, 0] for k in range(4)]).view(4, 4, 2)[..., 0]  # of action j on way k
    assert torch.equal(reach.triu(1), torch.zeros(4, 4)), "later actions lead nowhere before"
    assert float((reach.tril() - reach[0, 0] * torch.ones(4, 4).tril()).abs().max()) < 0.01 < float(reach[0, 0])
    assert model.counts.tolist() == [1, 1, 1, 1, 0, 1, 1], "the third number of the state never changes"
    assert not tokens[..., 4].any()
    rare = (window.success.float().mean() * 2.0 - 1.0).double()  # a flag of ±1 has this mean, and √(1 − mean²) about it
    assert tokens[..., 5:].double().unique().tolist() == pytest.approx(
        [(side - float(rare)) / float((1.0 - rare**2).sqrt()) for side in (-1.0, 1.0)], rel=1e-4
    )
    assert not tokens[..., 2:4][~going].any(), "where the end leads is not recorded"
    back = model.decode(tokens, window.state[:, 0])
    torch.testing.assert_close(back.action, window.action)
    torch.testing.assert_close(back.state[:, 1:][going], window.state[:, 1:][going], atol=1e-5, rtol=1e-4)
    assert torch.equal(back.success, window.success) and torch.equal(back.terminated, window.terminated)


def test_numbers_that_follow_from_others_are_not_modelled_and_still_right() -> None:
    data = walk([9] * 30, dims=3)
    data.obs[STATE][:, 2] = data.obs[STATE][:, 0] - 2.0 * data.obs[STATE][:, 1]
    spec = PolicySpec(data.observation, data.action_spec, data.dt, 1, 1, 1, data.tasks)
    window = cut(data, whole(data, 4), 4)
    model = Trajectories(spec, network=Echo, length=4)
    model.fit(data, window)
    assert model.counts[2:5].sum() == 2
    noisy = model.encode(window) + 0.3 * torch.randn(len(window.state), 4, 7)
    state = model.decode(noisy, window.state[:, 0]).state
    torch.testing.assert_close(state[..., 2], state[..., 0] - 2.0 * state[..., 1], atol=1e-4, rtol=1e-4)


def test_where_success_ends_the_task_two_flags_say_one_thing() -> None:
    model = small(length=3)
    model.flag.copy_(torch.tensor([[0.0, 0.0], [1.0, 1.0]]))
    tokens = torch.zeros(1, 3, model.token_dim)
    tokens[0, :, -2:] = torch.tensor([[0.9, -1.0], [-0.2, 0.4], [-1.0, -1.0]])
    window = model.decode(tokens, torch.zeros(1, 2))
    assert window.terminated.tolist() == [[False, True, True]] == window.success.tolist(), "and what has ended stays so"
    model.final.fill_(0.0)
    window = model.decode(tokens, torch.zeros(1, 2))
    assert window.success.tolist() == [[True, True, True]] and window.terminated.tolist() == [[False, True, True]]


@pytest.mark.parametrize("prediction", ["epsilon", "sample", "v_prediction"])
def test_an_exact_network_has_no_error_and_samples_what_it_knows(prediction: str) -> None:
    """A network that knows the one window there is denoises any noise to it."""
    model = small(prediction=prediction)
    tokens = model.encode(cut(walk([12]), torch.tensor([3]), 4))

    class Knows(Echo):
        def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
            return self.denoise(x, t[:, None])

        def embed_cond(self, cond: Tensor) -> Tensor:
            return cond.new_zeros(len(cond), 1)

        def embed_time(self, t: Tensor) -> Tensor:
            return t[:, None]

        def denoise(self, x: Tensor, embedding: Tensor) -> Tensor:
            bar = model.alpha_bar[(embedding[:, 0] * len(model.alpha_bar)).round().long()][:, None, None]
            noise = (x - bar.sqrt() * tokens) / (1.0 - bar).sqrt()
            return {"epsilon": noise, "sample": tokens.expand_as(x),
                    "v_prediction": bar.sqrt() * noise - (1.0 - bar).sqrt() * tokens}[prediction]  # fmt: skip

    model.network = Knows(horizon=4, action_dim=6, cond_dim=4)
    first, step = torch.zeros(5, 2), torch.arange(5)
    error, nothing = model.errors(tokens.expand(5, -1, -1), first, step, torch.randn(5, 4, 6))
    assert float(error.max()) < 1e-8 < float(nothing.min()) and len(model.alpha_bar) == 5
    window = model.sample(first, noise=torch.randn(5, *model.noise_shape))
    found = model.encode(window)
    torch.testing.assert_close(found, tokens.expand(5, -1, -1), atol=2e-4, rtol=1e-3)


def test_a_guide_moves_actions_alone() -> None:
    model = small()
    clean, first = torch.randn(3, 4, model.token_dim), torch.randn(3, 2)
    seen: list[Tensor] = []

    def guide(state: Tensor, action: Tensor, variance: float) -> Tensor:
        seen.append(state)
        return action + 1.0

    steered = model.steer(clean, first, guide, 0.5)
    torch.testing.assert_close(steered[..., :2], clean[..., :2] + 1.0)
    assert torch.equal(steered[..., 2:], clean[..., 2:]), "neither states nor flags"
    torch.testing.assert_close(seen[0], model.decode(clean, first).state[:, :-1])
    assert torch.equal(seen[0][:, 0], first), "the policy is asked from the first state on"


def test_variance_falls_to_nothing() -> None:
    model = small()
    found: list[float] = []
    model.sample(torch.zeros(1, 2), noise=torch.zeros(1, *model.noise_shape),
                 guide=lambda state, action, variance: (found.append(variance), action)[1])  # fmt: skip
    assert found == sorted(found, reverse=True) and found[0] > 0.99 and found[-1] < 0.2
    assert found[-1] == pytest.approx(1.0 - float(model.alpha_bar[0]))


# -- training ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("data") / "play")


def run(run_dir: Path, data: Path | None, /, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "world_model": MODEL, "dataset": data, "incomplete": False, "steps": 30, "batch_size": 16, "holdout": 0.3,
        "warmup": 5, "lr": 3e-3, "seed": 0, "device": torch.device("cpu"), "tracker": NoTracker(), "log_every": 10,
        "save_every": 10, "min_windows": 100,
        "checkpointer": changes.pop("checkpointer", None) or Checkpointer(run_dir),
    }  # fmt: skip
    result = fit(**(given | changes))
    (run_dir / "config.yaml").write_text(f"dataset: {data}\nloop: {{data: {{}}, holdout: 0.3}}\n")
    return result


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "windows"
    run(out, data, steps=250, save_every=0)
    return out


def test_a_trained_model_is_judged_on_episodes_it_has_not_seen(trained: Path) -> None:
    report = load_trajectories(trained).report
    assert report["denoising"]["held_out"] < 0.8 * report["denoising"]["nothing"]
    assert sum(part["episodes"] for part in report["data"].values()) == 120
    assert all(part["windows"] >= 30 for part in report["data"].values())


def test_interrupted_and_resumed_it_ends_in_the_same_bits(data: Path, tmp_path: Path) -> None:
    run(tmp_path / "whole", data)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", data, checkpointer=Stopping(tmp_path / "cut", at=17))
    with pytest.raises(CheckpointError, match=r"its training has not ended.*Repeat its command"):
        load_trajectories(tmp_path / "cut")
    other = record(tmp_path / "other", seed=1)
    with pytest.raises(CheckpointError, match=r"dataset: \w+.* is not that of the run"):
        run(tmp_path / "cut", other)
    run(tmp_path / "cut", data)
    a, b = load_trajectories(tmp_path / "whole"), load_trajectories(tmp_path / "cut")
    for name, value in a.state_dict().items():
        assert torch.equal(value, b.state_dict()[name]), name
    assert a.report == b.report


def test_too_little_to_learn_from(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train: \d+ episodes hold \d+ windows of .*length=4 steps, needed 9000"):
        run(tmp_path / "a", data, min_windows=9_000)
    with pytest.raises(DataError, match=r"held_out: 0 episodes hold 0 windows.*loop\.holdout=0\.0"):
        run(tmp_path / "b", data, holdout=0.0)
    with pytest.raises(ConfigError, match="dataset: there is no data"):
        run(tmp_path / "c", None)
    with pytest.raises(ConfigError, match=r"world_model\._target_: "):
        run(tmp_path / "d", data, world_model={TARGET: "robopolicy.networks.mlp.Identity", "in_dim": 3})


def test_models_that_are_not_to_be_used(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Give a run directory of `train algo=trajectories`"):
        load_trajectories(tmp_path)
    source = next((trained / "checkpoints").glob("step_*")) / "trajectories"
    for name, change, message in (
        ("trajectories.json", {"format": 9}, "damaged|format"),
        ("report.json", {"denoising": {"held_out": 1.0, "nothing": 1.0}}, "damaged|learned nothing"),
    ):
        copy = tmp_path / name
        copy.mkdir()
        for file in source.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        (copy / name).write_text(json.dumps(json.loads((copy / name).read_text()) | change))
        with pytest.raises(CheckpointError, match=message):
            load_trajectories(copy)


def test_an_untrained_model_is_refused(data: Path, tmp_path: Path) -> None:
    run(tmp_path / "bad", data, steps=1, warmup=0, lr=1.0, min_windows=10)
    with pytest.raises(CheckpointError, match=r"it has learned nothing\. Train it longer"):
        load_trajectories(tmp_path / "bad")
