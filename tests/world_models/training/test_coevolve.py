"""Rounds of co-evolution are kept, dropped and stopped by known rates, and resume to the same record."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from robopolicy.config import registry
from robopolicy.config.schema import TARGET
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE
from robopolicy.evaluation.rollout import evaluate
from robopolicy.evaluation.statistics import Interval, wilson
from robopolicy.policies.base import Policy
from robopolicy.world_models.evaluation.real_rollouts import roll_out
from robopolicy.world_models.training import coevolve as coevolve_module
from robopolicy.world_models.training import round_runner
from robopolicy.world_models.training.coevolve import coevolve
from robopolicy.world_models.training.rounds import apart_in_a_row, kept_last, parted, record_of
from tests.fakes import MemoryCheckpoints, PointEnv, PointPolicy

GOES, STANDS = 1.0, 0.0  # gains: every episode succeeds, none does
HORIZON, EPISODES = 12, 6


class Counted:
    """Rows of which only so many successes matter."""

    def __init__(self, successes: int, count: int) -> None:
        self.successes, self.count, self.frame = successes, count, {"length": torch.full((count,), 5)}

    def __len__(self) -> int:
        return self.count

    def success_rate(self, *, level: float) -> Interval:
        return wilson(self.successes, self.count, level=level)


class Rig:
    """A run of rounds whose commands do nothing but say what they were asked.

    Args:
        gains: of the policy that each round's imagination comes to.
        belief: success in imagination of (gain, name of the model).
        cut: number of the command, from 0, in whose middle the user interrupts.
    """

    def __init__(
        self, root: Path, patch: pytest.MonkeyPatch, gains: list[float], belief: Callable[[float, str], float]
    ):
        self.root, self.gains, self.belief, self.cut = root, gains, belief, -1
        self.calls: list[dict[str, Any]] = []
        self.saved, self.base = MemoryCheckpoints(), root / "base"
        (root / "model").mkdir(parents=True)
        (root / "model" / "config.yaml").write_text("dataset: play\nloop: {steps: 9000, holdout: 0.2}\nseed: 7\n")
        patch.setitem(registry._SLOTS["task"], "point_env", PointEnv)
        for name in ("train_run", "load_policy", "record_rollouts", "recorded"):
            patch.setattr(round_runner, name, getattr(self, f"_{name}"))
        patch.setattr(coevolve_module, "load_policy", self._load_policy)
        patch.setattr(coevolve_module, "Checkpointer", lambda run_dir, keep: self.saved)
        patch.setattr(round_runner, "load_world", lambda path: type("W", (), {"report": path})())
        patch.setattr(round_runner, "faults", lambda report: [])
        patch.setattr(
            round_runner.RoundRunner,
            "_imagined_success",
            lambda rounds, policy, model: self._imagined_success(policy, model),
        )

    def run(self, *, rounds: int = 2, more: dict[str, Any] | None = None, **options: Any) -> dict[str, float]:
        config = {
            "task": {TARGET: "point_env", "horizon": HORIZON}, "world": {"model": str(self.root / "model")},
            "policy": {TARGET: "finetuned"}, "base": str(self.base), "seed": 3, "threads": 1,
            **(more or {}),
        }  # fmt: skip
        return coevolve(rounds=rounds, run_dir=self.root / "run", config=config, episodes=EPISODES, **options)

    @property
    def records(self) -> list[dict[str, Any]]:
        return json.loads((self.root / "run" / "rounds.json").read_text())  # type: ignore[no-any-return]

    def _train_run(self, config: dict[str, Any]) -> None:
        if len(self.calls) == self.cut:
            self.cut = -1
            raise KeyboardInterrupt
        self.calls.append(copy.deepcopy(config))
        folder = Path(config["run_dir"])
        folder.mkdir(parents=True)
        if "world" in config:
            gain = self.gains[int(folder.parent.name[-1]) - 1]
            better = self.belief(gain, self._name(Path(config["world"]["model"]))) > 0.5
            (folder / "gate.json").write_text(json.dumps([{"accepted": True}, {"accepted": better}]))

    def _load_policy(self, path: Path, *, env: Any = None) -> Policy:
        if path == self.base:
            return PointPolicy(gain=STANDS)
        return PointPolicy(gain=self.gains[int(path.parent.name[-1]) - 1])

    def _record_rollouts(self, policy: Policy, env: Any, seeds: Any, out: Path, *, facts: Any) -> Any:
        out.mkdir()
        return roll_out(policy, env, seeds)[0]

    def _recorded(self, out: Path) -> str:
        return "whole" if out.exists() else "nothing"

    def _imagined_success(self, policy: Any, model: Path) -> list[float]:
        rate = self.belief(policy.gain, self._name(model))
        return [rate, max(0.0, rate - 0.1), min(1.0, rate + 0.1)]

    def _name(self, model: Path) -> str:
        """ "first", or the round that refitted it."""
        return "first" if model == self.root / "model" else model.parent.name


def test_a_policy_that_only_imagination_likes_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first model believes everything; refitted it tells the truth."""
    rig = Rig(tmp_path, monkeypatch, [STANDS, GOES], lambda gain, model: 1.0 if model == "first" else gain)
    found = rig.run()
    first, second = rig.records
    assert first["imagined"][0] == 1.0 and first["true"][0] == 0.0 and first["gap"] == 1.0 and first["parted"]
    assert first["accepted"] and not first["kept"] and not first["stop"]
    assert "taken back: the model promised too much; the refitted model says 0% (0–10)" in first["reason"]
    assert first["real_steps"] == EPISODES * HORIZON, "every failure takes the whole horizon"
    assert second["kept"] and second["true"][0] == 1.0 and second["gap"] == 0.0 and not second["parted"]
    assert second["real_steps_total"] == first["real_steps"] + second["real_steps"] == found["real_steps"]
    assert found["success_rate"] == 1.0 and found["rounds"] == 2
    assert rig.saved.saved[2]["policy"] == "round_2/imagined" and rig.saved.best == [2]


def test_fewer_real_steps_than_two_episodes_take_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, [GOES], lambda gain, model: 1.0)
    with pytest.raises(ConfigError, match=r"coevolve\.real_steps=\d+: expected at least two episodes' steps"):
        rig.run(real_steps=2 * HORIZON - 1)
    assert not rig.calls


def test_every_command_gets_what_the_rounds_before_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, [GOES, GOES, GOES], lambda gain, model: gain)
    rig.run(rounds=3, refit_steps=50, share=0.2)
    run = tmp_path / "run"
    imagined, refits = rig.calls[::2], rig.calls[1::2]
    assert [c["base"] for c in imagined] == [str(rig.base), *(str(run / f"round_{n}/imagined") for n in (1, 2))]
    models = [str(tmp_path / "model"), *(str(run / f"round_{n}/model") for n in (1, 2))]
    assert [c["world"]["model"] for c in imagined] == models and [c["loop"]["init"] for c in refits] == models
    assert all(c["rounds"] == 0 for c in rig.calls) and [c["seed"] for c in imagined] == [4, 5, 6]
    assert refits[2]["loop"]["steps"] == 50 and refits[2]["dataset"] == "play" and refits[2]["loop"]["holdout"] == 0.2
    assert refits[2]["loop"]["data"] == {f"round_{n}": str(run / f"round_{n}/rollouts") for n in (1, 2, 3)}
    weights = refits[2]["loop"]["mix_weights"]
    assert sum(weights.values()) / (1.0 + sum(weights.values())) == pytest.approx(0.2), "of all that is drawn"


def test_what_learns_off_policy_begins_anew_with_all_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, [GOES, GOES, GOES], lambda gain, model: gain)
    loop = {TARGET: "off_policy", "rollouts": {"mine": "there"}}
    rig.run(rounds=3, more={"policy": {TARGET: "residual"}, "loop": loop})
    imagined, run = rig.calls[::2], tmp_path / "run"
    assert [c["base"] for c in imagined] == [str(rig.base)] * 3
    for n, call in enumerate(imagined):
        before = {f"round_{k}": str(run / f"round_{k}/rollouts") for k in range(1, n + 1)}
        assert call["loop"]["rollouts"] == {"mine": "there", **before}
        assert call["world"]["model"] == str(run / f"round_{n}/model" if n else tmp_path / "model")
    assert rig.saved.saved[3]["policy"] == "round_3/imagined"


def test_a_round_that_is_surely_worse_than_the_one_before_is_taken_back() -> None:
    rows = evaluate(PointPolicy(gain=STANDS), PointEnv(6), episode_seeds("train", 0, 6))  # 0% (0–39)
    evaluations = {"imagined": [0.3, 0.2, 0.5], "imagined_refitted": [0.3, 0.2, 0.5], "faults": []}
    gate = [{"accepted": True}, {"accepted": True}]

    def kept(rival: Interval | None) -> tuple[bool, str]:
        record = record_of(2, rows, evaluations, gate=gate, used=0, rival=rival, left=1)
        return record["kept"], record["reason"]

    assert kept(None)[0] and kept(wilson(2, 6))[0], "with six episodes it may be as good as 33%"
    assert kept(wilson(1, 2))[0], "of which two episodes say little"
    assert not kept(wilson(6, 6))[0] and "taken back: 100% (61–100) were true before" in kept(wilson(6, 6))[1]
    rounds = [(True, wilson(3, 6)), (True, wilson(5, 6)), (False, wilson(0, 6))]
    before = [{"kept": kept, "true": list(true)} for kept, true in rounds]
    assert kept_last(before) == wilson(5, 6) and kept_last(before[2:]) is None


@pytest.mark.parametrize("rate", [0.8, 0.9, 0.95])
def test_equal_policies_are_seldom_called_worse(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two with the same true success, twelve episodes each, by their exact odds."""
    odds = [math.comb(12, k) * rate**k * (1 - rate) ** (12 - k) for k in range(13)]
    evaluations = {"imagined": [rate, 0.0, 1.0], "imagined_refitted": [rate, 0.0, 1.0], "faults": []}
    wrong = 0.0
    for k, chance in enumerate(odds):
        rows: Any = Counted(k, 12)
        for before, other in enumerate(odds):
            record = record_of(2, rows, evaluations, gate=[], used=0, rival=wilson(before, 12), left=1)
            wrong += chance * other * (not record["kept"])
    assert wrong < 0.03


def test_it_stops_where_imagination_and_truth_part_for_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, [STANDS, GOES], lambda gain, model: 1.0)
    rig.run()
    (only,) = rig.records
    assert not only["kept"] and "part beyond their intervals, 100% (90–100) and 0% (0–39)" in only["stop"]
    assert "taken back: the model promised too much" in only["reason"] and only["accepted"]
    count = len(rig.calls)
    rig.run(rounds=5)
    assert len(rig.calls) == count, "more rounds do not change that"


def test_patience_lets_rounds_learn_from_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is wrong until the second refit; what it promised in vain is never kept."""
    wrong = {"first", "round_1"}
    rig = Rig(tmp_path / "two", monkeypatch, [STANDS, STANDS, GOES], lambda g, model: 1.0 if model in wrong else g)
    rig.run(rounds=3, patience=2)
    assert [(r["kept"], r["apart"]) for r in rig.records] == [(False, True), (False, False), (True, False)]
    assert not any(r["stop"] for r in rig.records)
    never = Rig(tmp_path / "never", monkeypatch, [STANDS] * 4, lambda gain, model: 1.0)
    never.run(rounds=4, patience=3)
    assert [bool(r["stop"]) for r in never.records] == [False, False, True], "three in a row"


def test_patience_counts_rounds_in_a_row() -> None:
    rounds = [{"apart": a} for a in (True, True, False, True)]
    assert [apart_in_a_row(rounds[:n]) for n in range(5)] == [0, 1, 2, 0, 1]
    assert apart_in_a_row([{}]) == 0, "of a run begun before this was written down"


def test_without_a_gate_the_model_says_whether_the_policy_before_was_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imagination is right about a policy that is worse than the base; nothing else would have noticed."""
    believed = {GOES: 0.2, STANDS: 0.9}  # STANDS is the base's too
    rig = Rig(tmp_path / "free", monkeypatch, [GOES], lambda gain, model: believed[gain])
    rig.run(rounds=1)
    (only,) = rig.records
    assert not only["kept"] and "of the policy before the model expects 90% (80–100)" in only["reason"]
    rig = Rig(tmp_path / "gated", monkeypatch, [GOES], lambda gain, model: believed[gain])
    rig.run(rounds=1, more={"world": {"model": str(rig.root / "model"), "gate": {"starts": 100}}})
    assert "the policy before" not in rig.records[0]["reason"], "the gate has compared them"


def test_intervals_that_meet_do_not_part() -> None:
    assert not parted(Interval(0.9, 0.8, 1.0), Interval(0.7, 0.5, 0.85))
    assert parted(Interval(0.9, 0.86, 1.0), Interval(0.7, 0.5, 0.85))
    assert parted(Interval(0.2, 0.1, 0.4), Interval(0.7, 0.5, 0.85)), "too little is parted too"


def test_real_steps_are_never_exceeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path, monkeypatch, [STANDS, STANDS, STANDS], lambda gain, model: gain)
    rig.run(rounds=3, real_steps=EPISODES * HORIZON + 2 * HORIZON + 1)
    assert [r["episodes"] for r in rig.records] == [EPISODES, 2], "the third round would need more than is left"
    assert rig.records[-1]["real_steps_total"] == EPISODES * HORIZON + 2 * HORIZON


@pytest.mark.parametrize("cut", [0, 1, 2, 3])
def test_interrupted_anywhere_it_ends_in_the_same_record(
    cut: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, cut: int) -> Rig:
        rig = Rig(tmp_path / name, monkeypatch, [GOES, GOES], lambda gain, model: gain)
        rig.cut = cut
        if cut >= 0:
            with pytest.raises(KeyboardInterrupt):
                rig.run()
        rig.run()
        return rig

    whole, again = run("whole", -1), run("again", cut)
    assert again.records == whole.records and again.saved.saved == whole.saved.saved
    assert len(again.calls) == len(whole.calls) == 4, "what was done is not done again"


def test_what_cannot_go_on_from_round_to_round(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "world": {"model": "m"},
        "policy": {TARGET: "residual"},
    }
    with pytest.raises(ConfigError, match=r"task: got null"):
        coevolve(rounds=1, run_dir=tmp_path, config=config)
    config |= {"task": {}, "base": "b"}
    with pytest.raises(ConfigError, match=r"policy=finetuned does on base=.*found policy 'residual"):
        coevolve(rounds=1, run_dir=tmp_path, config=config)
    config["loop"] = {TARGET: "off_policy", "demo_fraction": 0.8}
    with pytest.raises(ConfigError, match=r"base=zero_action"):
        coevolve(rounds=1, run_dir=tmp_path, config={**config, "base": "zero_action"})
    with pytest.raises(ConfigError, match=r"demo_fraction=0\.8 and loop\.rollout_fraction=0\.25 are .* second round"):
        coevolve(rounds=1, run_dir=tmp_path, config={**config, "dataset": "d"})
    config["policy"] = {TARGET: "finetuned"}
    with pytest.raises(ConfigError, match=r"world\.model=m: is not in a run"):
        coevolve(rounds=1, run_dir=tmp_path, config=config)


def test_rollouts_are_what_was_evaluated() -> None:
    """Seven episodes in three envs: rows as `evaluate` gives them, frames that follow one another by the actions."""
    seeds, policy = episode_seeds("train", 5, 7), PointPolicy(noise=0.05)
    rows, episodes = roll_out(policy, PointEnv(3), seeds)
    plain = evaluate(policy, PointEnv(7), seeds)
    kept = ["seed", "success_once", "length", "return"]
    assert rows.frame[kept].equals(plain.frame[kept])
    assert [len(e.action) for e in episodes] == rows.frame["length"].tolist()
    for episode in episodes:
        position = episode.obs[STATE][:, :2]
        torch.testing.assert_close(position[1:], position[:-1] + episode.action[:-1])
        assert bool(episode.success[-1]) == episode.terminated and not episode.success[:-1].any()
