"""LeRobot's policies behind our interface: LeRobot's own answers, row by row, whatever happens beside."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from robopolicy.build import build_policy
from robopolicy.checkpoint import find_policy, load_policy, save_policy
from robopolicy.data.writer import DatasetWriter
from robopolicy.errors import CheckpointError, SpecError
from robopolicy.execute import ChunkExecutor
from robopolicy.lerobot.notes import annotate_policy
from robopolicy.normalize import Normalizer
from robopolicy.types import STATE, Obs
from tests.data import conftest as recorded
from tests.lerobot_toys import DIM, ENV, env, observations, save
from tests.toy import ACTION

CAMERAS = {"front": 32}
CASES: dict[str, dict[str, Any]] = {
    "act": {"kind": "act"},
    "act_pixels": {"kind": "act", "cameras": CAMERAS},
    "ddim": {"kind": "diffusion"},
    "ddpm": {"kind": "diffusion", "noise_scheduler_type": "DDPM", "num_train_timesteps": 8, "num_inference_steps": 8},
    "vqbet": {"kind": "vqbet", "cameras": {"front": 64}},
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any, Any, Any]]:
    """Every case as a directory, LeRobot's policy and its processors."""
    root = tmp_path_factory.mktemp("lerobot")
    return {name: (root / name, *save(folder=root / name, **case)) for name, case in CASES.items()}


def spec_of(name: str) -> Any:
    return env(CASES[name].get("cameras"))


def noise(policy: Any, rows: int, *, seed: int = 1) -> Tensor | None:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, *policy.noise_shape, generator=generator) if policy.noise_shape else None


def theirs(saved: tuple[Path, Any, Any, Any], obs: Obs, **given: Tensor) -> Tensor:
    """Actions [B Ta Da] of LeRobot's own `select_action`, which is shown one frame after another."""
    _, policy, pre, post = saved
    policy.reset()
    actions = []
    frames = obs[STATE].shape[1]
    for t in range(frames + policy.config.n_action_steps - 1):
        batch: dict[str, Any] = {k: v[:, min(t, frames - 1)] for k, v in obs.items() if k != "task_index"}
        batch = {k: v.float() / 255 if v.dtype == torch.uint8 else v for k, v in batch.items()}
        if "observation.environment_state" in policy.config.input_features:
            batch["observation.environment_state"] = batch[STATE]
        batch["task"] = ["toy"] * len(obs[STATE])
        if t < frames - 1:  # only fills the queue
            from lerobot.policies.utils import populate_queues

            policy._queues = populate_queues(policy._queues, pre(batch), exclude_keys=["action"])
        else:
            actions.append(post(policy.select_action(pre(batch), **given)))
    return torch.stack(actions, dim=1)


@pytest.mark.parametrize("name", ["act", "act_pixels", "ddim"])
def test_actions_are_those_of_lerobot(saved: dict[str, Any], name: str) -> None:
    policy = load_policy(saved[name][0], env=spec_of(name))
    obs, z = observations(policy.spec.n_obs_steps, 5, spec_of(name)), noise(policy, 5)
    with torch.no_grad():
        expected = theirs(saved[name], obs, **({} if z is None else {"noise": z}))
    chunk = policy.act(obs, noise=z)
    assert chunk.shape == (5, policy.spec.horizon, ACTION.dim)
    assert expected.mean() > 3.0, "in physical units"
    torch.testing.assert_close(chunk[:, : policy.spec.n_action_steps], expected, rtol=1e-4, atol=1e-5)


def test_ddpm_draws_from_the_noise_of_its_own_row(saved: dict[str, Any]) -> None:
    """LeRobot's own sampler, alone with a row, its generator seeded as `seeds_of` says."""
    from robopolicy.policies.lerobot_kinds import seeds_of

    folder, policy, pre, post = saved["ddpm"]
    ours = load_policy(folder, env=ENV)
    obs, z = observations(2, 3), noise(ours, 3)
    assert z is not None and z.shape == (3, 9, 2)
    chunk = ours.act(obs, noise=z)
    for i, seed in enumerate(seeds_of(z[:, 8])):
        batch = pre({STATE: obs[STATE][i : i + 1], "observation.environment_state": obs[STATE][i : i + 1]})
        with torch.no_grad():
            cond = policy.diffusion._prepare_global_conditioning(batch)
            generator = torch.Generator().manual_seed(seed)
            x = policy.diffusion.conditional_sample(1, global_cond=cond, generator=generator, noise=z[i : i + 1, :8])
        torch.testing.assert_close(chunk[i : i + 1], post(x)[:, 1:], rtol=1e-4, atol=1e-5)
    other = z.clone()
    other[:, 8] += 1.0
    assert not torch.allclose(ours.act(obs, noise=other), chunk), "what is drawn later counts"


@pytest.mark.parametrize("name", CASES)
def test_a_row_depends_on_its_observation_and_noise_alone(saved: dict[str, Any], name: str) -> None:
    policy = load_policy(saved[name][0], env=spec_of(name))
    obs, z = observations(policy.spec.n_obs_steps, 4, spec_of(name)), noise(policy, 4)
    chunk = policy.act(obs, noise=z)
    torch.randn(7)  # somebody else draws
    assert torch.equal(policy.act(obs, noise=z), chunk), "no state is left behind"
    for i in range(4):
        alone = policy.act({k: v[i : i + 1] for k, v in obs.items()}, noise=None if z is None else z[i : i + 1])
        torch.testing.assert_close(alone[0], chunk[i], rtol=1e-4, atol=1e-5)
    moved = {k: v.flip(0) if v.dtype != torch.int64 else v for k, v in obs.items()}
    assert not torch.allclose(policy.act(moved, noise=z), chunk, atol=1e-3), "observations count"
    if z is not None:
        assert not torch.allclose(policy.act(obs, noise=z.flip(0)), chunk, atol=1e-3), "noise counts"
        assert torch.equal(policy.act(obs, deterministic=True), policy.act(obs, deterministic=True))


@pytest.mark.parametrize("name", ["ddim", "vqbet"])
def test_envs_run_side_by_side_as_they_do_alone(saved: dict[str, Any], name: str) -> None:
    """Three envs that were reset at different times, against each in an executor of its own."""
    policy = load_policy(saved[name][0], env=spec_of(name))
    seeds = torch.tensor([11, 12, 13])
    frames = [observations(2, 3, spec_of(name), seed=t) for t in range(7)]
    together, alone = ChunkExecutor(policy, 3), [ChunkExecutor(policy, 1) for _ in range(3)]
    for t, obs in enumerate(frames):
        if t == 3:
            together.reset(torch.tensor([False, True, False]))
            alone[1].reset()
        actions = together.next_action(obs, seeds)
        for i, executor in enumerate(alone):
            own = executor.next_action({k: v[i : i + 1] for k, v in obs.items()}, seeds[i : i + 1])
            torch.testing.assert_close(own[0], actions[i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_saved_as_ours_it_needs_lerobots_directory_no_more(saved: dict[str, Any], name: str, tmp_path: Path) -> None:
    policy = load_policy(saved[name][0], env=spec_of(name))
    save_policy(policy, tmp_path / "ours")
    again = load_policy(tmp_path / "ours")
    obs, z = observations(policy.spec.n_obs_steps, 2, spec_of(name)), noise(policy, 2)
    assert again.spec == policy.spec
    assert torch.equal(again.act(obs, noise=z), policy.act(obs, noise=z))


def test_residual_on_top(saved: dict[str, Any], tmp_path: Path) -> None:
    base = load_policy(saved["act"][0], env=ENV)
    policy = build_policy(
        {"_target_": "robopolicy.policies.residual.ResidualPolicy", "hidden": [8]}, spec=base.spec, base=base,
        normalizer=Normalizer.from_limits(base.spec.observation, base.spec.action),
    )  # fmt: skip
    save_policy(policy, tmp_path / "refined")
    again = load_policy(tmp_path / "refined", env=ENV)
    obs = {**observations(1, 2), "base_action": torch.zeros(2, 2)}
    assert torch.equal(again.act(obs), policy.act(obs))
    assert again.base is not None
    assert torch.equal(again.base.act(obs), base.act(obs))


def test_checkpoints_and_runs_of_lerobot_train_are_found(saved: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved["act"][0], run / "checkpoints" / "000100" / "pretrained_model")
    (run / "checkpoints" / "last").symlink_to("000100")
    for path in (run, run / "checkpoints" / "000100", run / "checkpoints" / "last" / "pretrained_model"):
        assert find_policy(path).resolve() == (run / "checkpoints" / "000100" / "pretrained_model").resolve()
    with pytest.raises(CheckpointError, match="LeRobot marks no best checkpoint"):
        find_policy(run, which="best")


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(saved: dict[str, Any], tmp_path: Path) -> Path:
    """A copy of the ACT that reads pictures."""
    return Path(shutil.copytree(saved["act_pixels"][0], tmp_path / "act"))


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_all_differences_are_listed_before_any_weight_is_read(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"not read")
    other = env({"wrist": 32}, observation={STATE: env().observation[STATE].__class__((DIM + 2,))})
    with pytest.raises(SpecError) as error:
        load_policy(folder, env=other)
    assert "observation.images.front" in str(error.value)
    assert f"expects shape ({DIM},), toy has ({DIM + 2},)" in str(error.value)
    three = ACTION.__class__(**{**vars(ACTION), "names": ("x",), "units": ("m",), "low": (0.0,), "high": (1.0,)})
    with pytest.raises(SpecError) as error:
        load_policy(folder, env=env({"front": 48}, action=three))
    assert "(3, 48, 48)" in str(error.value) and "2 dimensions, toy has 1" in str(error.value)


@pytest.mark.parametrize("file", ["policy_preprocessor.json", "policy_postprocessor.json"])
def test_without_processors(folder: Path, file: str) -> None:
    (folder / file).unlink()
    with pytest.raises(CheckpointError, match=f"{file} is missing, so nothing says how .* are scaled"):
        load_policy(folder, env=env(CAMERAS))


def test_statistics_that_are_missing(folder: Path) -> None:
    document = json.loads((folder / "policy_postprocessor.json").read_text())
    document["steps"][0].pop("state_file")
    (folder / "policy_postprocessor.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match="has no mean and std of 'action', which its mode MEAN_STD needs"):
        load_policy(folder, env=env(CAMERAS))


def test_pickles_are_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    (folder / "pytorch_model.bin").write_bytes(b"PK")
    weights.unlink()
    with pytest.raises(CheckpointError, match="looks like a pickle"):
        load_policy(folder, env=env(CAMERAS))
    weights.write_bytes(b"\x80\x02pickled")
    with pytest.raises(CheckpointError, match="looks like a pickle"):
        load_policy(folder, env=env(CAMERAS))


def test_steps_may_not_call_code_from_elsewhere(folder: Path, tmp_path: Path) -> None:
    document = json.loads((folder / "policy_preprocessor.json").read_text())
    touched = tmp_path / "touched"
    document["steps"].append({"class": "subprocess.Popen", "config": {"args": ["touch", str(touched)]}})
    (folder / "policy_preprocessor.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"'subprocess.Popen' names code outside LeRobot"):
        load_policy(folder, env=env(CAMERAS))
    assert not touched.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "atc"}, "no policy type 'atc' is installed. Did you mean 'act'"),
        ({"dim_modle": 3}, "not a configuration of LeRobot's 'act' policy"),
        ({"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}, "temporal_ensemble_coeff=0.01 blends the chunks"),
        ({"use_peft": True}, "holds an adapter"),
        ({"dim_model": 64}, "weights do not fit the policy that config.json describes"),
    ],
)
def test_configs_that_cannot_be_used(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_policy(folder, env=env(CAMERAS))


def test_meaning_of_actions(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The env's, with a warning, unless the directory says it; then it is held to it."""
    with pytest.raises(CheckpointError, match="LeRobot does not say what a policy's actions mean"):
        load_policy(folder)
    assert load_policy(folder, env=env(CAMERAS)).spec.action == ACTION
    assert "does not say what its actions mean; taken to be those of toy" in caplog.text
    annotate_policy(folder, action=ACTION, dt=0.1, tasks=("toy",))
    assert load_policy(folder).spec.dt == 0.1
    with pytest.raises(SpecError, match=r"trained at 0.1 s a step, toy runs at 0.05 s"):
        load_policy(folder, env=env(CAMERAS))


def test_keys_are_renamed(folder: Path) -> None:
    """By a note of ours, or by LeRobot's own renaming step."""
    front, top = "observation.images.front", "observation.images.top"
    obs = observations(1, 2, env(CAMERAS))
    expected = load_policy(folder, env=env(CAMERAS)).act(obs)
    obs[top] = obs.pop(front)
    annotate_policy(folder, action=ACTION, dt=0.05, rename={front: top})
    assert torch.equal(load_policy(folder, env=env({"top": 32})).act(obs), expected)
    (folder / "robopolicy.json").unlink()
    document = json.loads((folder / "policy_preprocessor.json").read_text())
    document["steps"][0]["config"]["rename_map"] = {top: front}
    (folder / "policy_preprocessor.json").write_text(json.dumps(document))
    assert torch.equal(load_policy(folder, env=env({"top": 32})).act(obs), expected)
    with pytest.raises(CheckpointError, match=r"does not read \['observation.images.back'\]"):
        annotate_policy(folder, action=ACTION, dt=0.05, rename={"observation.images.back": top})


def test_the_training_data_says_what_actions_mean(folder: Path, tmp_path: Path) -> None:
    """Of a policy that was trained on a dataset of ours, while it is there."""
    root = tmp_path / "data"
    with DatasetWriter(root, observation=recorded.OBSERVATION, action=recorded.ACTION, dt=0.1, tasks=("push",)) as data:
        data.add_episode(**recorded.episode(0, 5))
    (folder / "train_config.json").write_text(json.dumps({"dataset": {"root": str(root)}}))
    spec = load_policy(folder).spec
    assert (spec.action, spec.dt, spec.tasks) == (recorded.ACTION, 0.1, ("push",))
    assert spec.observation[STATE].names == ("x", "y", "z")
    with pytest.raises(SpecError) as error:
        load_policy(folder, env=env(CAMERAS))
    assert "action.low: the policy has (-0.1, -0.1), toy has (-0.02, -0.02)" in str(error.value)
    assert "trained at 0.1 s" in str(error.value)
    shutil.rmtree(root)
    assert load_policy(folder, env=env(CAMERAS)).spec.action == ACTION
