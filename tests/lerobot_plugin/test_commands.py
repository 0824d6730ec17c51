"""LeRobot's own commands on our tasks, datasets and policies, as a user would type them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import STATE, TASK, Feature
from robopolicy.datasets.demonstrations import record_demos
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.evaluation.rollout import evaluate
from robopolicy.policies.factory import build_policy
from robopolicy.policies.lerobot.export import export
from robopolicy.policies.normalizer import Normalizer
from robopolicy.runs.checkpointer import load_policy, save_policy
from tests import toy
from tests.fakes import PointEnv, PointPolicy
from tests.lerobot_toys import save

ROOT = Path(__file__).parents[2]
OURS = ("--env.type=robopolicy", "--env.discover_packages_path=robopolicy.lerobot_plugin")
SMALL = {
    "act": "chunk_size=8 n_action_steps=4 dim_model=32 n_heads=2 dim_feedforward=64 n_encoder_layers=1 "
    "n_vae_encoder_layers=1",
    "diffusion": "horizon=8 n_action_steps=4 down_dims=[16,32] n_groups=4 num_train_timesteps=8",
}


def run(python: list[str], module: str, *arguments: str, cwd: Path) -> str:
    """The output of one of LeRobot's commands, offline."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [*python, "-m", f"lerobot.scripts.{module}", *arguments], cwd=cwd, env=environment, text=True,
        capture_output=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    return done.stdout + done.stderr


def on_reach(root: Path, kind: str) -> Path:
    """A residual that does something, on a LeRobot policy of that kind with small actions, for reach; exported."""
    spec = sim.make("reach", 1).spec
    save(kind, root / "lerobot", action=spec.action, dim=spec.observation[STATE].shape[0], scale=0.002)
    base = load_policy(root / "lerobot", env=spec)
    policy = build_policy(
        {"_target_": "residual", "hidden": [16]}, spec=base.spec, base=base,
        normalizer=Normalizer.from_limits(base.spec.observation, base.spec.action),
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.no_grad():
        policy.net[-1].weight.normal_(std=0.3)
    save_policy(policy, root / "ours")
    return export(checkpoint=root / "ours", out=root / "exported")


@pytest.fixture(scope="module")
def refined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """On ACT, which has no noise."""
    return on_reach(tmp_path_factory.mktemp("refined"), "act")


@pytest.mark.slow
def test_lerobot_eval_runs_our_policy_on_our_task_as_we_do(
    refined: Path, tmp_path: Path, warm_python: list[str]
) -> None:
    """Returns of a dense reward, episode by episode: same starts, histories, chunks and residual."""
    run(
        warm_python, "lerobot_eval", f"--policy.path={refined}", "--policy.device=cpu", *OURS, "--env.task=reach",
        '--env.options={"reward": "dense", "horizon": 20}', "--eval.n_episodes=3", "--eval.batch_size=2",
        "--seed=1000", f"--output_dir={tmp_path / 'out'}", cwd=tmp_path,
    )  # fmt: skip
    info = json.loads((tmp_path / "out" / "eval_info.json").read_text())
    theirs = info["per_task"][0]["metrics"]
    env = sim.make("reach", 3, reward="dense", horizon=20)
    rows = evaluate(load_policy(refined), env, torch.tensor([1000, 1001, 1002]))
    assert len(set(theirs["sum_rewards"])) == 3
    assert theirs["sum_rewards"] == pytest.approx(rows.frame["return"].tolist(), rel=1e-5)
    assert theirs["successes"] == rows.frame["success_once"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", SMALL)
def test_lerobot_train_on_our_dataset_and_task(kind: str, tmp_path: Path, warm_python: list[str]) -> None:
    """A stock policy on our demonstrations, evaluated by LeRobot on our task as it trains; then it runs here."""
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("lerobot-train needs accelerate: lerobot[training]")
    env = sim.make("reach", 4)
    record_demos(env=env, expert=sim.make_expert(env), episodes=2, out=tmp_path / "data")
    options = [f"--policy.{option}" for option in SMALL[kind].split()]
    run(
        warm_python, "lerobot_train", "--dataset.repo_id=local/reach", f"--dataset.root={tmp_path / 'data'}",
        f"--policy.type={kind}", *options, "--policy.device=cpu", "--policy.push_to_hub=false", "--steps=2",
        "--batch_size=4", "--num_workers=0", "--prefetch_factor=null", "--persistent_workers=false",
        f"--output_dir={tmp_path / 'out'}", *OURS, "--env.task=reach", '--env.options={"horizon": 5}',
        "--env_eval_freq=2", "--eval.n_episodes=2", "--eval.batch_size=2", cwd=tmp_path,
    )  # fmt: skip
    policy = load_policy(tmp_path / "out", env=env.spec)
    assert policy.spec.action == env.spec.action
    assert policy.spec.observation[STATE].names == env.spec.observation[STATE].names, "as its dataset has them"
    assert len(evaluate(policy, env, torch.arange(4))) == 4


def test_an_exported_policy_acts_as_in_our_pipeline(tmp_path: Path) -> None:
    """Diffusion reads two frames and draws noise: two envs, step by step, then new episodes after `reset`."""
    from robopolicy.lerobot_plugin.modeling_robopolicy import RobopolicyPolicy

    exported = on_reach(tmp_path, "diffusion")
    policy, ours = RobopolicyPolicy.from_pretrained(exported), load_policy(exported)
    env = wrap_for(ours, sim.make("reach", 2))
    drawn = []
    for episode in range(2):
        policy.reset()
        torch.manual_seed(episode)
        noise = torch.randint(2**40, (2,))
        torch.manual_seed(episode)
        obs = env.reset(noise)
        executor = ChunkExecutor(ours, 2)
        for _ in range(6):
            action = policy.select_action({STATE: obs[STATE][:, -1], "task": ["", ""]})
            torch.testing.assert_close(action, executor.next_action(obs, noise))
            obs = env.step(action).obs
        drawn.append(action)
    assert not torch.allclose(*drawn)


def test_an_exported_policy_is_told_its_task_as_lerobots_robot_commands_do(tmp_path: Path) -> None:
    from lerobot.policies.utils import prepare_observation_for_inference

    from robopolicy.lerobot_plugin.modeling_robopolicy import RobopolicyPolicy

    shown = {STATE: Feature((3,)), TASK: Feature((), "int64")}
    spec = toy.spec(observation=shown, tasks=("lift the cube", "open the drawer"))
    made = build_policy({"_target_": "gaussian"}, spec=spec, normalizer=Normalizer.from_limits(shown, toy.ACTION))
    save_policy(made.eval(), tmp_path / "ours")
    policy = RobopolicyPolicy.from_pretrained(export(checkpoint=tmp_path / "ours", out=tmp_path / "out"))

    def act(text: str) -> torch.Tensor:
        policy.reset()
        state = {STATE: np.zeros(3, np.float32)}
        return policy.select_action(prepare_observation_for_inference(state, torch.device("cpu"), text, "so101"))

    torch.manual_seed(0)
    lifted = act("lift the cube")
    torch.manual_seed(0)
    assert not torch.equal(act("open the drawer"), lifted)
    with pytest.raises(SpecError, match=r"task: the policy knows no instruction 'lift'"):
        act("lift")


def test_what_an_exported_policy_is_shown_has_to_fit(refined: Path) -> None:
    from robopolicy.lerobot_plugin.modeling_robopolicy import RobopolicyPolicy

    policy = RobopolicyPolicy.from_pretrained(refined)
    with pytest.raises(SpecError, match=r"'observation.state': the policy expects shape \(\d+,\), the env has \(3,\)"):
        policy.select_action({STATE: torch.zeros(2, 3), "task": ["x", "x"]})
    with pytest.raises(SpecError, match=r"needs 'observation.state', which the env does not have"):
        policy.select_action({"observation.images.top": torch.zeros(2, 3, 8, 8)})


def test_pictures_are_floats_to_one_or_uint8() -> None:
    from robopolicy.lerobot_plugin.configuration_robopolicy import RobopolicyConfig
    from robopolicy.lerobot_plugin.modeling_robopolicy import RobopolicyPolicy

    inner, key = PointPolicy(gain=2.0, chunk=1), "observation.images.top"
    inner.spec = replace(inner.spec, observation={key: Feature((3, 4, 4), "uint8")})
    policy = RobopolicyPolicy(RobopolicyConfig(device="cpu"), inner)
    picture = torch.randint(256, (2, 3, 4, 4), dtype=torch.uint8)
    for given in (picture, picture / 255.0):
        assert torch.equal(policy._observation({key: given})[key], picture)
    for given in (picture.float(), picture / 127.5 - 1.0, picture / 255.0 * torch.nan):
        with pytest.raises(SpecError, match=r"top': expected pictures of floats in 0 … 1, or of uint8"):
            policy._observation({key: given})


def test_our_env_as_lerobot_sees_it() -> None:
    from lerobot.envs.utils import env_to_policy_features, preprocess_observation

    from robopolicy.lerobot_plugin.env import RobopolicyEnv

    config = RobopolicyEnv(task="reach", options={"horizon": 7})
    size = sim.make("reach", 1).spec.observation[STATE].shape
    features = env_to_policy_features(config)
    assert {k: tuple(f.shape) for k, f in features.items()} == {
        "action": (5,), STATE: size, "observation.environment_state": size,
    }  # fmt: skip
    assert (config.fps, config.type) == (20, "robopolicy")
    env = config.create_envs(3)["robopolicy"][0]
    obs, _ = env.reset(seed=[5, 6, 7])
    shown = preprocess_observation(obs)
    expected = sim.make("reach", 3).reset(torch.tensor([5, 6, 7]))[STATE]
    assert torch.equal(shown[STATE], expected) and torch.equal(shown["observation.environment_state"], expected)
    for first in (5, np.int64(5)):
        assert np.array_equal(env.reset(seed=first)[0]["agent_pos"], obs["agent_pos"])
    assert env.call("_max_episode_steps") == (7, 7, 7)
    assert env.call("task_description")[0] == sim.make("reach", 1).spec.tasks[0]
    for step in range(7):
        _, _, terminated, truncated, info = env.step(env.action_space.low)
        assert truncated.all() == (step == 6) and not terminated.any()
    assert info["final_info"]["is_success"].tolist() == [False] * 3
    with pytest.raises(AttributeError, match="LeRobot asks for 'set_state'"):
        env.call("set_state")
    with pytest.raises(ConfigError, match=r"task=reahc: no such task. Did you mean 'reach'\?"):
        RobopolicyEnv(task="reahc")


def test_an_env_whose_episode_is_over_earns_nothing() -> None:
    """LeRobot's own evaluation of envs that end at different steps: each success counts once."""
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
    from lerobot.scripts.lerobot_eval import eval_policy

    from robopolicy.lerobot_plugin.configuration_robopolicy import RobopolicyConfig
    from robopolicy.lerobot_plugin.env import LeRobotVectorEnv
    from robopolicy.lerobot_plugin.modeling_robopolicy import RobopolicyPolicy

    policy = RobopolicyPolicy(RobopolicyConfig(device="cpu"), PointPolicy(gain=2.0, chunk=1))
    same, ident = PolicyProcessorPipeline(steps=[]), {
        "to_transition": policy_action_to_transition, "to_output": transition_to_policy_action,
    }  # fmt: skip
    info = eval_policy(
        LeRobotVectorEnv(PointEnv(3)), policy, same, same, same, PolicyProcessorPipeline(steps=[], **ident), 6,
        start_seed=40,
    )  # fmt: skip
    rows = evaluate(policy.policy, PointEnv(3), torch.arange(40, 46))
    assert len(set(rows.frame["length"][:3])) > 1, "they end at different steps"
    episodes = info["per_episode"]
    assert [e["sum_reward"] for e in episodes] == rows.frame["return"].tolist()
    assert [e["success"] for e in episodes] == rows.frame["success_once"].tolist()
    assert [e["seed"] for e in episodes] == list(range(40, 46))


def test_only_our_own_policies_are_exported(refined: Path, tmp_path: Path) -> None:
    save("act", tmp_path / "act")
    with pytest.raises(CheckpointError, match="is a policy of LeRobot already"):
        export(checkpoint=tmp_path / "act", out=tmp_path / "out")
    with pytest.raises(CheckpointError, match="exists already"):
        export(checkpoint=refined, out=tmp_path / "act")
    assert load_policy(refined).spec.action.dim == 5, "an exported policy is still ours"
