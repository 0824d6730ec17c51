"""SmolVLA and π0 of LeRobot, tiny and random, through the command line: every route that refines a policy."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from robopolicy import sim
from robopolicy.cli.main import main
from robopolicy.core.types import STATE
from robopolicy.lerobot_plugin import env as plugin
from robopolicy.policies.gaussian import GaussianPolicy
from robopolicy.policies.io import load_policy
from robopolicy.policies.lerobot.find import find_lerobot
from robopolicy.policies.lerobot.flow import LeRobotFlow
from robopolicy.policies.lerobot.metadata import annotate_policy
from robopolicy.policies.lerobot.policy import LeRobotPolicy
from tests.lerobot_toys import tiny_vla

pytest.importorskip("transformers", reason="VLAs need lerobot[smolvla,pi]")
TASK_ARGS = ["task=reach", "task.cameras=[front]", "task.image_size=[64,64]", "task.horizon=6"]
KINDS = ["smolvla", "pi0"]


@pytest.fixture(scope="module")
def patch():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demos") / "reach"
    assert main(["demos", *TASK_ARGS[:-1], f"out={folder}", "episodes=2", "num_envs=2"]) == 0
    return folder


@pytest.fixture(scope="module", params=KINDS)
def base(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> Path:
    """A run of lerobot-train, as far as its policy goes."""
    if request.param == "smolvla":
        pytest.importorskip("num2words", reason="SmolVLA needs lerobot[smolvla]")
    env = sim.make("reach", 1, cameras=("front",), image_size=(64, 64))
    root = tmp_path_factory.mktemp(request.param) / "checkpoints" / "000001"
    dim = env.spec.observation[STATE].shape[0]
    tiny_vla(request.param, root, env.spec.tasks, patch, action=env.spec.action, dim=dim, scale=0.002)
    (root / "policy").rename(root / "pretrained_model")
    annotate_policy(root / "pretrained_model", action=env.spec.action, dt=env.spec.dt, tasks=env.spec.tasks)
    return root / "pretrained_model"


CHAIN = ["policy.finetuned_steps=2", "algo.critic_warmup=0", "algo.critic.width=8"]
ROUTES = {
    "residual": ["loop.total_steps=30", "loop.warmup_steps=12", "loop.batch_size=8", "loop.critic_only_updates=2",
                      "loop.eval_every=0"],
    "dppo": [*CHAIN, "policy.lora_rank=2", "policy.expert={precision: bfloat16, checkpointing: true}"],
    "grpo": ["group_size=2", "policy.finetuned_steps=2"],
    "co_dppo": [*CHAIN, "algo.data_batch=4"],
    "policy_flow": ["policy.finetuned_steps=3", "policy.sampling=null", *CHAIN[1:]],
    "rpd": ["n_action_steps=2", "policy.network.width=8"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "key", "value"), [("reach", "image_size", [48, 48]), ("pusht_gym", "size", 48), ("gymnasium", "size", 48)]
)
def test_pictures_have_the_size_that_is_asked_for(task, key, value, monkeypatch):
    """Tasks of suites take a side, ours a height and a width."""
    built = []

    def build(node, *_, **__):
        built.append(node)
        return sim.make("reach", 1)

    monkeypatch.setattr(plugin, "build", build)
    plugin.RobopolicyEnv(task=task, cameras=["front"], image_size=48)
    assert built[0][key] == value and not {"size", "image_size"} - {key} & built[0].keys()


def train(route: str, base: Path, run: Path, demos: Path, *given: str) -> None:
    sizes = ["num_envs=2", "validation_episodes=0", "tracker=quiet"]
    if route != "residual":
        sizes += ["loop.rollout_steps=6", "loop.total_steps=12", "algo.minibatch=4", "algo.epochs=1"]
    source = f"teacher={base}" if route == "rpd" else f"base={base}"
    data = [f"dataset={demos}"] if route == "co_dppo" else []
    assert (
        main(["train", f"algo={route}", source, f"run_dir={run}", *TASK_ARGS, *data, *sizes, *ROUTES[route], *given])
        == 0
    )


@pytest.mark.parametrize("route", ROUTES)
def test_every_route(base: Path, demos: Path, tmp_path: Path, route: str):
    run = tmp_path / "run"
    train(route, base, run, demos)
    refined = load_policy(run)
    if route == "rpd":
        assert isinstance(refined, GaussianPolicy)
    elif route == "residual":
        assert isinstance(refined.base, LeRobotPolicy)
    else:
        assert isinstance(refined, LeRobotFlow)
        before = refined.network.state_dict()
        moved = any(not torch.equal(v, before[k]) for k, v in refined.lerobot_expert().items())
        assert moved == (route != "grpo"), "so short a time is enough for nobody, so groups have nothing to compare"


def test_a_resumed_run_is_the_uninterrupted_one(base: Path, demos: Path, tmp_path: Path):
    """Twelve steps and twelve more, against twenty-four: what LeRobot's directory was is no longer asked."""
    steady = ["algo.lr_schedule=constant", "loop.total_steps=24"]
    train("dppo", base, tmp_path / "whole", demos, *steady)
    train("dppo", base, tmp_path / "parts", demos, *steady[:1])
    train("dppo", base, tmp_path / "parts", demos, *steady)
    whole, parts = (load_policy(tmp_path / name).state_dict() for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(torch.equal(v, parts[k]) for k, v in whole.items())


def test_evaluation_and_lerobots_own_loader(base: Path, demos: Path, tmp_path: Path):
    """The black box, and PolicyFlow's product, exported: LeRobot's policy acts as ours."""
    assert main(["eval", f"checkpoint={base}", *TASK_ARGS, "episodes=2", "videos=0", f"out={tmp_path / 'eval'}"]) == 0
    assert len(pd.read_csv(next((tmp_path / "eval").rglob("episodes*.csv")))) == 2
    run, out = tmp_path / "run", tmp_path / "out"
    train("policy_flow", base, run, demos)
    assert main(["export", f"checkpoint={run}", f"out={out}"]) == 0
    assert find_lerobot(out) == out
    assert main(["eval", f"checkpoint={out}", *TASK_ARGS, "episodes=2", "videos=0", f"out={tmp_path / 'again'}"]) == 0
