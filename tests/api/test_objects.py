from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import robopolicy as rp
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.evaluation.mp4 import read_mp4


def test_the_package_imports_little_and_offers_its_functions() -> None:
    code = (
        "import sys, time; began = time.perf_counter(); import robopolicy as rp; took = time.perf_counter() - began\n"
        "from robopolicy import sim as _\n"
        "assert 'torch' not in heavy, heavy\n"
        "assert set(rp.__all__) <= set(dir(rp))\n"
        "try: rp.evalute\nexcept AttributeError as error: assert 'evalute' in str(error)\nelse: raise SystemExit(1)"
    ).replace("from robopolicy import sim as _", "heavy = set(sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(callable(getattr(rp, name)) for name in rp.__all__)


def test_an_env_takes_cameras_and_parameters() -> None:
    env = rp.make_env("reach", num_envs=2, cameras=["front"], horizon=7)
    assert env.num_envs == 2 and env.spec.horizon == 7
    assert env.reset(torch.tensor([1, 2]))["observation.images.front"].dtype == torch.uint8
    assert rp.make_env({"_target_": "native", "task": "reach"}).spec.id == "reach"
    for wrong, key in (({"task": "reech"}, "task=reech"), ({"task": "reach", "horizonn": 3}, "horizonn")):
        with pytest.raises(ConfigError, match=key):
            rp.make_env(**wrong)  # type: ignore[arg-type]


def test_a_policy_is_checked_against_its_env(folder: Path) -> None:
    assert rp.load_policy("runs/base", env=rp.make_env("reach")).spec.action.dim == 5
    with pytest.raises(SpecError):
        rp.load_policy("runs/base", env=rp.make_env("stack"))


def test_one_episode_is_filmed(folder: Path, tmp_path: Path) -> None:
    policy, env = rp.load_policy("runs/base"), rp.make_env("reach", num_envs=2)
    out = rp.film(policy, env, tmp_path / "new" / "a.mp4", episode=2, width=96, height=64)
    rows = rp.rollout(policy, env, episodes=3)
    held = round(0.8 / env.spec.dt)  # pictures of the last state
    assert len(list(read_mp4(out))) == rows.frame["length"].iloc[2] + held
    assert [p.name for p in out.parent.iterdir()] == ["a.mp4"]
    with pytest.raises(ConfigError, match=r"split: expected one of \('test', 'validation'\), found 'train'"):
        rp.rollout(policy, env, split="train")  # type: ignore[arg-type]
    wrongs = ({"out": "a.gif"}, "out: "), ({"out": "a.mp4", "episode": -1}, "episode: "), (
        {"out": "a.mp4", "split": "val"}, "split: "
    )  # fmt: skip
    for wrong, key in wrongs:
        with pytest.raises(ConfigError, match=key):
            rp.film(policy, env, **wrong)  # type: ignore[arg-type]
