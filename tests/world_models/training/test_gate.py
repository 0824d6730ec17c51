"""The gate, in a world whose true answer is known: going to the origin succeeds, standing about does not."""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robopolicy.buffers.collector import Rollout
from robopolicy.core.errors import CheckpointError, ConfigError, RobopolicyError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import STATE, Metrics, Obs
from robopolicy.envs.wrappers import HistoryEnv
from robopolicy.policies.base import Policy
from robopolicy.training.on_policy import on_policy
from robopolicy.world_models.envs.imagined import ImaginedEnv
from robopolicy.world_models.evaluation.imagined_evaluation import (
    ImaginedEvaluation,
    ImaginedScores,
    crossed_bootstrap,
    evaluate_in_imagination,
)
from robopolicy.world_models.training.gate import Gate, Keeping
from tests.fakes import MemoryCheckpoints, NoTracker
from tests.world_models.point import SPEC, at, point_env

STARTS = [[0.1 + 0.01 * i, 0.0] for i in range(20)]  # at most 0.29: three steps to the origin, and two to stay there
NEAR = [[0.1 - 0.001 * i, 0.0] for i in range(20)]


class Walker(Policy):
    """Goes `gain` of the way to x = 0, and `lift` up, where uncertainty is."""

    def __init__(self, gain: float = 0.0, lift: float = 0.0) -> None:
        super().__init__()
        self.spec = PolicySpec(observation=SPEC.observation, action=SPEC.action, dt=0.1, n_obs_steps=1, horizon=1,
                               n_action_steps=1, tasks=SPEC.tasks)  # fmt: skip
        self.weights = nn.Parameter(torch.tensor([gain, lift]))
        self.noise_shape = ()

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        x = obs[STATE][:, -1, 0]
        step = torch.stack([-self.weights[0] * x, self.weights[1].expand_as(x)], dim=1)
        return step.detach()[:, None]


class Plan:
    """An algorithm whose updates are known beforehand: the gradient of update i is −`moves[i]`."""

    critic_warmup = 0

    def __init__(self, moves: list[tuple[float, float]], *, gain: float = 0.0) -> None:
        self.policy, self.moves, self.updates = Walker(gain), moves, 0
        self.optimizer = torch.optim.SGD(self.policy.parameters(), lr=1.0, momentum=0.5)
        self.noise_shape = (1,)

    def explore(self, obs: Obs, noise: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        chunk = self.policy.act(obs)
        return chunk, {"chunk": chunk}

    def returns(self, rollout: Rollout) -> Rollout:
        return rollout

    def update(self, batch: Any, *, progress: float) -> Metrics:
        self.policy.weights.grad = -torch.tensor(self.moves[self.updates])
        self.optimizer.step()
        self.updates += 1
        return {}

    def state_dict(self) -> dict[str, Any]:
        momentum = [s["momentum_buffer"] for s in self.optimizer.state.values()]
        return {
            "weights": self.policy.weights.detach().clone(),
            "momentum": copy.deepcopy(momentum),
            "at": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        with torch.no_grad():
            self.policy.weights.copy_(state["weights"])
        self.optimizer.state.clear()
        for momentum in state["momentum"]:
            self.optimizer.state[self.policy.weights] = {"momentum_buffer": momentum.clone()}


def world(starts: list[list[float]] = STARTS, *, heads: int = 1, **options: Any) -> ImaginedEnv:
    env = point_env([[0.15, 0.0]], 4, bound=options.pop("bound", 0.25), **options)
    env.world.dynamics.heads = heads
    env.held_out = lambda: at(starts)
    return env


def gated(algo: Plan, env: ImaginedEnv | None = None, **options: Any) -> Gate:
    return Gate(algo=algo, env=env or world(), starts=20, **{"patience": 0, **options})


def move(algo: Plan, gain: float, lift: float = 0.0) -> None:
    with torch.no_grad():
        algo.policy.weights.copy_(torch.tensor([gain, lift]))


def test_better_is_accepted_and_worse_is_taken_back_with_its_optimiser(tmp_path: Path, capsys: Any) -> None:
    algo = Plan([(1.0, 0.0), (-0.9, 0.0)])
    judge = gated(algo, run_dir=tmp_path)
    first = judge(algo.policy, 0)
    assert first["rank"] == 0.0 and first["accepted"] == 1.0, "standing still never succeeds"
    algo.update(None, progress=0.0)  # gain 1: all of the way
    better = judge(algo.policy, 100)
    assert better["accepted"] == 1.0 and better["rank"] == 1.0 and better["gain_low"] > 0.0
    kept, momentum = algo.policy.weights.detach().clone(), algo.state_dict()["momentum"][0].clone()
    algo.update(None, progress=0.0)  # momentum 0.5 · 1 − 0.9: gain 0.6
    move(algo, 0.02)
    worse = judge(algo.policy, 200)
    assert worse["accepted"] == 0.0 and worse["imagined_success"] == 0.0 and worse["rank"] == 1.0
    assert torch.equal(algo.policy.weights, kept) and torch.equal(algo.state_dict()["momentum"][0], momentum)
    records = json.loads((tmp_path / "gate.json").read_text())
    assert [r["accepted"] for r in records] == [True, True, False]
    assert records[2]["reason"] == "refused: is not better: -100.0 points (-100.0 to -100.0); back to step 100"
    assert "gate, step 200: 0.0% in imagination, refused: is not better" in capsys.readouterr().out


def test_what_is_no_better_is_refused_and_a_little_luck_is_not_enough() -> None:
    algo = Plan([], gain=1.0)
    judge = gated(algo, world(STARTS + [[0.45, 0.0]] * 2))  # from 0.45 the horizon is too short
    judge(algo.policy, 0)
    assert judge(algo.policy, 1)["accepted"] == 0.0, "the same policy is not better than itself"
    scores = ImaginedScores(*(torch.zeros(1, 100, dtype=torch.bool) for _ in range(3)))
    judge.scores = scores
    lucky = ImaginedScores(scores.success.clone(), scores.uncertain, scores.diverged)
    lucky.success[0, :1] = True  # one of a hundred: absent from every third resample
    gain, why = judge._decide(lucky)
    assert (
        gain is not None and gain.value == pytest.approx(0.01) and why.startswith("is not surely better: +1.0 points")
    )
    lucky.success[0, :10] = True
    assert judge._decide(lucky)[1] == ""


def test_going_where_the_model_is_not_believed_is_no_success() -> None:
    algo = Plan([], gain=0.0)
    judge = gated(algo, world(bound=0.05))
    judge(algo.policy, 0)
    move(algo, 1.0, lift=0.1)  # y is 0.1 before the second step, and none succeeds at the first
    found = judge(algo.policy, 1)
    assert found["accepted"] == 0.0 and found["uncertain"] == 1.0
    assert "the model is too uncertain" in judge.records[-1]["reason"]
    assert found["imagined_high"] > found["imagined_success"], "the upper limit holds uncertain episodes for successes"


def test_a_model_that_diverges_is_refused_and_at_once_an_error() -> None:
    algo, env = Plan([], gain=1.0), world([[-4.95 - 0.001 * i, 0.0] for i in range(20)])
    judge = gated(algo, env)
    judge(algo.policy, 0)
    move(algo, -1.0)  # further away than x = −5, where the model breaks down
    assert judge(algo.policy, 1)["accepted"] == 0.0
    assert "the model has diverged: its numbers are not finite in 100%" in judge.records[-1]["reason"]
    assert algo.policy.weights[0] == 1.0
    with pytest.raises(RobopolicyError, match=r"world\.gate: the model has diverged.*Train the world model longer"):
        gated(Plan([], gain=-1.0), env)(Walker(-1.0), 0)


def test_every_member_dreams_every_held_out_start() -> None:
    evaluation = ImaginedEvaluation.crossed(world(heads=3), 20)
    assert len(evaluation.seeds) == 60 and evaluation.start.tolist() == [*range(20)] * 3
    seen = []
    step = evaluation.world.dynamics.step

    def watched(latent: Tensor, action: Tensor, *, episode: Tensor, draw: Tensor | None) -> Any:
        seen.extend(zip((3 * episode).long().tolist(), latent[:, 0].tolist(), strict=True))
        return step(latent, action, episode=episode, draw=draw)

    evaluation.world.dynamics.step = watched  # type: ignore[method-assign]
    found = evaluate_in_imagination(Walker(0.0), evaluation)
    assert found.success.shape == (3, 20)
    counts = Counter((m, round(x, 2)) for m, x in seen)
    assert counts == {(m, round(x, 2)): SPEC.horizon for m in range(3) for x, _ in STARTS}, "none but these starts"


def test_too_few_starts_that_the_model_has_not_seen() -> None:
    with pytest.raises(ConfigError, match=r"held-out starts, at least 10; there are 9"):
        ImaginedEvaluation.crossed(world(STARTS[:9]), 20)
    env = world()
    env.held_out = None
    with pytest.raises(ConfigError, match="does not say which starts"):
        Gate(algo=None, env=env)


def test_the_bootstrap_draws_members_and_starts() -> None:
    """Two members, all 0 and all 1: the mean is 0, ½ or 1 with ¼, ½, ¼. One member: the starts' binomial spread."""
    two = torch.tensor([[0.0] * 50, [1.0] * 50])
    assert tuple(crossed_bootstrap(two, level=0.8)) == (0.5, 0.0, 1.0)
    assert tuple(crossed_bootstrap(two, level=0.4)) == (0.5, 0.5, 0.5), "its ends, 30% and 70%, lie in the middle half"
    one = (torch.arange(400) % 4 == 0).double()[None]
    found = crossed_bootstrap(one, level=0.95, resamples=4_000)
    half = 1.96 * (0.25 * 0.75 / 400) ** 0.5
    assert found.value == 0.25 and found.low == pytest.approx(0.25 - half, abs=0.004)
    assert found.high == pytest.approx(0.25 + half, abs=0.004)
    assert crossed_bootstrap(one[:, :1] * 0, level=0.8) == (0.0, 0.0, 0.0)


class Cut(MemoryCheckpoints):
    """Ends the process after saving step `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def save(self, step: int, *, policy: Any, state: dict[str, Any], best: bool = False) -> None:
        super().save(step, policy=policy, state=state, best=best)
        if step == self.at:
            raise KeyboardInterrupt


MOVES = [(0.18, 0.0), (0.3, 0.0), (-0.5, 0.0), (0.4, 0.0), (0.0, 0.2), (0.1, 0.0)]


def train(checkpoints: MemoryCheckpoints, *, truth: Any = None, **options: Any) -> tuple[Plan, Gate, NoTracker]:
    algo, env, tracker = Plan(MOVES), world(), NoTracker()
    keeping = Keeping(checkpoints, judge := gated(algo, truth=truth, **options))
    resumed = keeping.latest()
    algo.updates = 0 if resumed is None else resumed["done"]
    on_policy(
        algo=algo, env=HistoryEnv(env, 1), tracker=tracker, checkpointer=keeping, evaluate=judge,
        total_steps=6 * 40, rollout_steps=10, eval_every=40, save_every=40,
    )  # fmt: skip
    keeping.finish()
    return algo, judge, tracker


def test_a_loop_keeps_only_what_is_better_and_resumes_to_the_same_bits() -> None:
    whole, judge, tracker = train(checkpoints := MemoryCheckpoints())
    ranks = [row["eval/rank"] for _, row in tracker.rows if "eval/rank" in row]
    assert ranks == sorted(ranks) and ranks[0] == 0.0 and ranks[-1] == 1.0
    verdicts = [r["accepted"] for r in judge.records]
    assert verdicts[:4] == [True, True, True, False], "gain 0.18, from near; 0.57, from everywhere; then less"
    assert 0.0 < ranks[1] < 0.5
    final = checkpoints.saved[240]
    assert torch.equal(final["algo"]["weights"], final["gate"]["accepted"]["weights"]), "it ends with what is accepted"
    assert checkpoints.best[0] == 0 and 240 in checkpoints.best, "the best is what the gate has kept"
    cut = Cut(at=120)
    with pytest.raises(KeyboardInterrupt):
        train(cut)
    cut.at = -1
    again, second, _ = train(cut)
    assert torch.equal(again.policy.weights, whole.policy.weights)
    assert second.records == judge.records
    assert torch.equal(again.state_dict()["momentum"][0], whole.state_dict()["momentum"][0])


@pytest.mark.parametrize("at", [-1, 200, 240])
def test_learning_goes_on_from_what_was_refused_and_ends_with_what_was_accepted(at: int) -> None:
    """Interrupted or not, and even between the loop's last checkpoint and the end."""
    cut = Cut(at)
    if at >= 0:
        with pytest.raises(KeyboardInterrupt):
            train(cut, patience=None)
        cut.at = -1
        assert cut.saved[at]["gate"]["refused"] == at // 40 - 2
    algo, judge, _ = train(cut, patience=None)
    assert [r["accepted"] for r in judge.records] == [True, True, True, False, False, False, False]
    assert [round(r["imagined"][0], 1) for r in judge.records[2:4]] == [1.0, 0.7]
    assert not any("back to" in r["reason"] for r in judge.records)
    torch.testing.assert_close(algo.policy.weights.detach(), torch.tensor([0.57, 0.0]))
    newest = cut.saved[240]
    assert torch.equal(newest["algo"]["weights"], algo.policy.weights) and newest["gate"]["refused"] == 0
    assert cut.best == [0, 40, 80, 240], "what was refused is never the best"


def test_patience_ends() -> None:
    _, judge, _ = train(MemoryCheckpoints(), patience=1)
    assert [r["reason"].rpartition("; ")[2] for r in judge.records if r["step"] in (160, 240)] == [
        "back to step 80"
    ] * 2
    assert not any("back to" in r["reason"] for r in judge.records if r["step"] not in (160, 240))


def test_the_truth_is_logged_and_changes_nothing() -> None:
    """Zero-step mode: whatever the true task says of a policy, the same weights come out."""
    asked = []

    def lying(policy: Policy, step: int) -> Metrics:
        asked.append(step)
        return {"success_rate": 1.0 - 0.001 * step, "success_low": 0.0, "success_high": 1.0}

    alone, judge, _ = train(MemoryCheckpoints())
    beside, other, tracker = train(MemoryCheckpoints(), truth=lying)
    assert torch.equal(alone.policy.weights, beside.policy.weights)
    assert [r["accepted"] for r in judge.records] == [r["accepted"] for r in other.records]
    assert asked == [r["step"] for r in other.records if r["accepted"]], "what is taken back is not tried"
    last = [row for _, row in tracker.rows if "eval/gap" in row][-1]
    assert last["eval/gap"] == pytest.approx(last["eval/rank"] - last["eval/success_rate"])


def test_a_gate_that_only_watches_takes_nothing_back() -> None:
    free, judge, _ = train(MemoryCheckpoints(), enforce=False)
    assert not all(r["accepted"] for r in judge.records) and free.updates == 6
    weights, momentum = torch.zeros(2), torch.zeros(2)
    for planned in MOVES:
        momentum = 0.5 * momentum + torch.tensor(planned)
        weights = weights + momentum
    torch.testing.assert_close(free.policy.weights.detach(), weights)


def test_a_checkpoint_without_a_gate_is_refused() -> None:
    inner = MemoryCheckpoints()
    inner.saved[0] = {"done": 0}
    with pytest.raises(CheckpointError, match=r"Resume with world\.gate=null"):
        Keeping(inner, gated(Plan([]))).latest()
