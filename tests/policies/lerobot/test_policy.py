"""LeRobot's policies behind our interface: LeRobot's own answers, row by row, whatever happens beside."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import ENV_STATE, STATE, Obs
from robopolicy.datasets.lerobot_writer import DatasetWriter
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.factory import build_policy
from robopolicy.policies.find import read_spec
from robopolicy.policies.finetuning import finetuned
from robopolicy.policies.lerobot.export import export
from robopolicy.policies.lerobot.flow import ExpertOptions
from robopolicy.policies.lerobot.metadata import annotate_policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.runs.checkpointer import find_policy, load_policy, save_policy
from robopolicy.utils.storage import write_manifest
from tests import toy
from tests.datasets import conftest as recorded
from tests.hub import serving
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


def test_a_small_policy_with_a_large_backbone_is_no_attack(tmp_path: Path) -> None:
    """A resnet18 of 11 million weights: loading it asks each for its memory, several times."""
    save("act", tmp_path, cameras=CAMERAS, dim_model=16, dim_feedforward=16)
    assert load_policy(tmp_path, env=env(CAMERAS)).spec.horizon == 6


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [("act_pixels", "pretrained_backbone_weights", "ResNet18_Weights.IMAGENET1K_V1"), ("ddim", "compile_model", True)],
)
def test_a_saved_policys_config_is_made_ready_again(
    saved: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, key: str, value: Any
) -> None:
    """policy.json holds LeRobot's config, and is a stranger's as much as config.json."""
    folder = save_policy(load_policy(saved[name][0], env=spec_of(name)), tmp_path / "ours")
    document = json.loads((folder / "policy.json").read_text())
    document["node"]["config"][key] = value
    (folder / "policy.json").write_text(json.dumps(document))
    write_manifest(folder)
    done: list[Any] = []
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *a, **k: done.append(a))
    monkeypatch.setattr("torch.compile", lambda module, **k: done.append(module) or module)
    loaded = load_policy(folder)
    assert not done and not loaded.config["config"][key], "nor in what is saved or exported of it"


def test_ddpm_draws_from_the_noise_of_its_own_row(saved: dict[str, Any]) -> None:
    """LeRobot's own sampler, alone with a row, its generator seeded as `seeds_of` says."""
    from robopolicy.policies.lerobot.kinds import seeds_of

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
        {"_target_": "residual", "hidden": [8]}, spec=base.spec, base=base,
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
    with pytest.raises(CheckpointError, match=r"is a policy of LeRobot, which holds no spec.json"):
        read_spec(run)


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


def test_a_processor_without_steps(folder: Path) -> None:
    edit(folder / "policy_preprocessor.json", steps="none")
    with pytest.raises(CheckpointError, match="expected a list of steps, found str"):
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


def test_steps_are_named_so_that_they_are_checked(folder: Path) -> None:
    """LeRobot's own classes too: some run code from the hub, and are refused by name."""
    document = json.loads((folder / "policy_preprocessor.json").read_text())
    step = "lerobot.processor.tokenizer_processor.ActionTokenizerProcessorStep"
    document["steps"].append({"class": step, "config": {"trust_remote_code": True, "action_tokenizer_name": "x/y"}})
    (folder / "policy_preprocessor.json").write_text(json.dumps(document))
    with pytest.raises(CheckpointError, match=r"is named by its class; LeRobot names its own by registry_name"):
        load_policy(folder, env=env(CAMERAS))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "atc"}, "no policy type 'atc' is installed. Did you mean 'act'"),
        ({"dim_modle": 3}, "not a configuration of LeRobot's 'act' policy"),
        ({"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}, "temporal_ensemble_coeff=0.01 blends the chunks"),
        ({"use_peft": True}, "holds an adapter"),
        ({"output_features": {}}, "no 'action' among its output_features"),
        ({"dim_model": 64}, "weights do not fit the policy that config.json describes"),
    ],
)
def test_configs_that_cannot_be_used(folder: Path, changes: dict[str, Any], message: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(CheckpointError, match=message):
        load_policy(folder, env=env(CAMERAS))


def test_policies_that_come_back_untrained(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """π0's `from_pretrained` prints what went wrong and returns random weights."""
    from lerobot.policies.act.modeling_act import ACTPolicy

    def untrained(path: str, *, config: Any, strict: bool) -> ACTPolicy:
        print("Warning: Could not load state dict: something")
        return ACTPolicy(config)

    monkeypatch.setattr(ACTPolicy, "from_pretrained", untrained)
    with pytest.raises(CheckpointError, match=r"was not loaded(.|\n)*LeRobot said: Warning: Could not load"):
        load_policy(folder, env=env(CAMERAS))


def test_types_of_other_packages(tmp_path: Path) -> None:
    """One that nobody here knows, whose actions are drawn from torch's global generator."""
    import tests.lerobot_third_party  # noqa: F401  (registers it)

    save("toy_of_others", tmp_path)
    policy = load_policy(tmp_path, env=ENV)
    obs, z = observations(1, 3), noise(policy, 3)
    assert z is not None
    chunk = policy.act(obs, noise=z)
    assert chunk.shape == (3, 5, 2) and policy.spec.n_action_steps == 5
    torch.randn(3)
    for i in range(3):
        alone = policy.act({k: v[i : i + 1] for k, v in obs.items()}, noise=z[i : i + 1])
        assert torch.equal(alone[0], chunk[i])
    assert not torch.allclose(policy.act(obs, noise=z.flip(0)), chunk)


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


@pytest.fixture
def apart(saved: dict[str, Any], tmp_path: Path) -> Path:
    """An ACT whose environment state has other statistics than its state."""
    folder = Path(shutil.copytree(saved["act"][0], tmp_path / "apart"))
    for file in folder.glob("policy_*.safetensors"):
        tensors = {k: v - 7.0 if k == f"{ENV_STATE}.mean" else v for k, v in load_file(file).items()}
        save_file(tensors, file)
    return folder


def test_an_environment_state_of_its_own_is_no_second_state(apart: Path) -> None:
    both = {**ENV.observation, ENV_STATE: ENV.observation[STATE]}
    policy = load_policy(apart, env=env(observation=both))
    obs = observations(1, 2, env(observation=both))
    other = policy.act({**obs, ENV_STATE: obs[STATE]})
    assert not torch.allclose(policy.act(obs), other)
    with pytest.raises(SpecError, match=r"needs 'observation.environment_state'(?s:.)*saved statistics are not those"):
        load_policy(apart, env=ENV)
    annotate_policy(apart, action=ACTION, dt=0.05, rename={ENV_STATE: STATE})
    assert torch.equal(load_policy(apart, env=ENV).act(obs), other)


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


def test_policies_without_such_a_chain(saved: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"LeRobot's 'act' has no chain .* expected smolvla, pi0, pi05"):
        finetuned(load_policy(saved["act"][0], env=ENV))
    node = {"_target_": "flow", "network": {
        "_target_": "residual_mlp", "_partial_": True, "width": 8}}  # fmt: skip
    flow = build_policy(node, spec=toy.spec(), normalizer=Normalizer.from_limits(toy.OBSERVATION, toy.ACTION))
    with pytest.raises(ConfigError, match=r"policy.expert: says how a VLA of LeRobot .* is a FlowPolicy"):
        finetuned(flow, finetuned_steps=1, expert=ExpertOptions())
    with pytest.raises(CheckpointError, match="format=native: LeRobot has no type for a FlowPolicy"):
        export(checkpoint=save_policy(flow, tmp_path / "flow"), out=tmp_path / "out", format="native")


# --- the hub, and the verbs -------------------------------------------------------------------------------------------


@pytest.fixture
def hub(saved: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A hub on this machine that has `me/policy`; the paths that it was asked for."""
    files = {p.name: p.read_bytes() for p in saved["act"][0].iterdir()}
    with serving(tmp_path, monkeypatch) as kept:
        kept.files["models/me/policy"] = files | {"pytorch_model.bin": b"PK"}
        yield kept.asked


def test_from_the_hub(hub: list[str], saved: dict[str, Any]) -> None:
    policy, obs = load_policy("hub:me/policy@v1", env=ENV), observations(1, 2)
    assert torch.equal(policy.act(obs), load_policy(saved["act"][0], env=ENV).act(obs))
    assert any("v1" in path for path in hub)
    assert not any("pytorch_model.bin" in path for path in hub), "pickles are not even fetched"
    with pytest.raises(CheckpointError, match="hub:me/other: could not be fetched"):
        load_policy("hub:me/other", env=ENV)


def test_results_have_a_place(saved: dict[str, Any], hub: list[str], tmp_path: Path) -> None:
    """In the run of lerobot-train, or where `out` says; an edited policy is another one."""
    run = tmp_path / "myrun"
    for step in ("000100", "000200"):
        shutil.copytree(saved["act"][0], run / "checkpoints" / step / "pretrained_model")
    (run / "checkpoints" / "last").symlink_to("000200")
    newest, older = (PolicyRef.of(path, "latest", None) for path in (run, run / "checkpoints" / "000100"))
    assert (newest.out, newest.name, newest.checkpoint) == (run / "robopolicy", "myrun", "")
    assert older.checkpoint == "000100"
    before = older.ident
    assert newest.ident.startswith("myrun/000200@") and before.startswith("myrun/000100@")
    assert newest.ident.split("@")[1] == before.split("@")[1]
    edit(run / "checkpoints" / "000100" / "pretrained_model" / "config.json", n_action_steps=2)
    assert PolicyRef.of(run / "checkpoints" / "000100", "latest", None).ident != before
    assert PolicyRef.of(saved["act"][0], "latest", None).out.name == "act-results"
    with pytest.raises(ConfigError, match="is of the hub; say with out="):
        PolicyRef.of(Path("hub:me/policy"), "latest", None)
    assert PolicyRef.of(Path("hub:me/policy"), "latest", tmp_path).name == "policy"
