"""Trainings by two ranks: the episodes and, but for rounding, the weights of one rank."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.cli.main import main
from robopolicy.core.errors import ConfigError, RankError
from robopolicy.core.rng import draw_rows, part_of_batch
from robopolicy.utils.storage import read_state
from tests.rank_processes import in_ranks

pytestmark = pytest.mark.timeout(1500)  # seconds, on a machine that others use too
COMMON = ("task=reach", "tracker=local", "threads=1", "validation_episodes=3")
BC = ("algo=bc", "policy=diffusion", "loop.steps=10", "loop.batch_size=17", "loop.log_every=5", "horizon=4",
      "n_action_steps=2", "loop.eval_every=10", "policy.noise_samples=2")  # fmt: skip
RL = ("num_envs=4", "loop.rollout_steps=40", "loop.save_every=160", "loop.eval_every=320", "algo.epochs=2",
      "algo.minibatch=64")  # fmt: skip
DPPO = ("algo=dppo", "policy.finetuned_steps=2", "algo.critic_warmup=1", *RL)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "data"
    assert main(["demos", "task=reach", f"out={folder}", "episodes=5", "threads=1"]) == 0
    return folder


def _train(*arguments: str) -> list[int]:
    """Train by the command line; return the seeds of the episodes that this rank learned from."""
    from robopolicy.buffers.collector import RolloutCollector
    from robopolicy.cli import main as cli

    seeds: set[int] = set()
    collect = RolloutCollector.collect

    def watched(self: RolloutCollector, length: int) -> Any:
        env, step = self.env, self.env.step

        def stepping(action: torch.Tensor) -> Any:
            seeds.update(env.episode_seed.tolist())
            return step(action)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(env, "step", stepping)
            return collect(self, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RolloutCollector, "collect", watched)
        cli._run("train", list(arguments))
    return sorted(seeds)


def train(count: int, run_dir: Path, *arguments: str) -> list[Any]:
    results = in_ranks(_train, count, *COMMON, *arguments, f"run_dir={run_dir}", timeout=300.0)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def weights(run_dir: Path) -> torch.Tensor:
    newest = run_dir / "checkpoints" / (run_dir / "checkpoints" / "latest").read_text().strip()
    algo = read_state(newest)["training"]["algo"]
    parts = [*algo["parameters"]] if "parameters" in algo else [*algo["model"].values()]
    parts += algo["value"].get("network", {}).values() if "value" in algo else []
    return torch.cat([part.double().flatten() for part in parts if part.is_floating_point()])


def apart(one: Path, other: Path) -> float:
    a, b = weights(one), weights(other)
    return float((a - b).norm() / a.norm())


def rows(run_dir: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def test_rows_are_drawn_as_for_the_whole_batch() -> None:
    def draw(n: int) -> torch.Tensor:
        return torch.rand(n, generator=torch.Generator().manual_seed(1))

    with part_of_batch(slice(2, 5), 7):
        assert torch.equal(draw_rows(draw, 3), draw(7)[2:5]) and torch.equal(draw_rows(draw, 6), draw(14)[4:10])
    assert torch.equal(draw_rows(draw, 3), draw(3))


def test_imitation_and_dppo_learn_as_one_rank_and_go_on_with_another_number(data: Path, tmp_path: Path) -> None:
    for count in (1, 2):
        train(count, tmp_path / f"bc{count}", *BC, f"dataset={data}")
    assert apart(tmp_path / "bc1", tmp_path / "bc2") < 1e-5
    assert [r["train/loss"] for r in rows(tmp_path / "bc2") if "train/loss" in r] == pytest.approx(
        [r["train/loss"] for r in rows(tmp_path / "bc1") if "train/loss" in r], rel=1e-4
    )
    base = f"base={tmp_path / 'bc1'}"
    one = train(1, tmp_path / "rl1", *DPPO, base, "loop.total_steps=480")[0]
    two = train(2, tmp_path / "rl2", *DPPO, base, "loop.total_steps=480")
    assert sorted([*two[0], *two[1]]) == one and min(map(len, two)) > 2
    assert apart(tmp_path / "rl1", tmp_path / "rl2") < 1e-5
    first, second = rows(tmp_path / "rl1"), rows(tmp_path / "rl2")
    for key in ("step", "train/chunks", "train/reward_scale", "train/kl", "train/explained_variance", "eval/return"):
        found = [[row[key] for row in log if key in row] for log in (first, second)]
        assert found[0] and found[1] == pytest.approx(found[0], rel=1e-3, abs=1e-6), key
    for count in (1, 2):  # 2 → 1 and 1 → 2
        train(3 - count, tmp_path / f"rl{count}", *DPPO, base, "loop.total_steps=800", "algo.lr_schedule=cosine")
    assert apart(tmp_path / "rl1", tmp_path / "rl2") < 1e-4
    assert rows(tmp_path / "rl2")[-1]["step"] == 800


def test_groups_begin_and_learn_as_in_one_rank(data: Path, tmp_path: Path) -> None:
    grpo = ("algo=grpo", "group_size=2", "policy.finetuned_steps=2", *RL, "loop.total_steps=160", "task.reward=dense",
            "loop.eval_every=0", f"base={tmp_path / 'bc'}")  # fmt: skip
    train(1, tmp_path / "bc", *BC, f"dataset={data}")
    parts = [train(n, tmp_path / f"{n}", *grpo) for n in (1, 2)]
    assert sorted([*parts[1][0], *parts[1][1]]) == parts[0][0]
    assert rows(tmp_path / "1")[-1]["train/informative"] == rows(tmp_path / "2")[-1]["train/informative"] > 0.0
    assert apart(tmp_path / "1", tmp_path / "2") < 1e-5


def _fails(*arguments: str) -> Any:
    from robopolicy.utils import ranks

    seed = [f"seed={ranks.rank()}"] if "differ" in arguments else []
    return _train(*(a for a in arguments if a != "differ"), *seed)


@pytest.mark.parametrize(("changes", "kind", "said"), [
    (("algo=ppo", "num_envs=5"), ConfigError, "num_envs=5: 2 ranks .* Set num_envs=6, or start 5 ranks"),
    (("algo=residual", "num_envs=4"), ConfigError, "the loop off_policy learns in one process"),
    (("algo=ppo", "num_envs=4", "differ"), RankError, "seed: rank 0 has 0, rank 1 1"),
])  # fmt: skip
def test_ranks_that_cannot_train_together_say_so(
    tmp_path: Path, changes: tuple[str, ...], kind: type[Exception], said: str
) -> None:
    run_dir = tmp_path / "run"
    arguments = (*COMMON, "base=zero_action", "policy=gaussian", f"run_dir={run_dir}", *changes)
    for error in in_ranks(_fails, 2, *arguments, timeout=120.0):
        with pytest.raises(kind, match=said):
            raise error
    assert not run_dir.exists()


def _opens_slowly(*arguments: str) -> None:
    from robopolicy.cli import main as cli
    from robopolicy.runs import run_dir
    from robopolicy.utils import ranks

    with pytest.MonkeyPatch.context() as patch:
        if not ranks.rank():
            patch.setattr(run_dir, "write_inputs", lambda *_: time.sleep(12))  # digests of a big dataset
        cli._run("train", list(arguments))


def test_the_others_wait_while_the_first_opens_the_run_directory(tmp_path: Path) -> None:
    wrong = ("algo=ppo", "policy=gaussian", "base=zero_action", "num_envs=5", f"run_dir={tmp_path / 'run'}")
    for error in in_ranks(_opens_slowly, 2, *COMMON, *wrong, timeout=8.0):
        with pytest.raises(ConfigError, match="num_envs=5: 2 ranks"):
            raise error
