from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from robopolicy.algos.residual import ResidualTD3
from robopolicy.buffers.replay_buffer import Batch, Replay
from robopolicy.core.errors import CheckpointError, ConfigError, RobopolicyError, SpecError
from robopolicy.core.types import BASE_ACTION, ENV_STATE, STATE, TASK, Feature
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.networks.task_conditioned import by_task
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import ResidualPolicy
from robopolicy.training.off_policy import off_policy
from tests.evaluation.points import DivergingPoint
from tests.fakes import MemoryCheckpoints, NoTracker, PointEnv, PointPolicy

GAMMA = 0.95


def make(*, gain=0.35, num_envs=8, scale=0.5, seed=0, **kw):
    torch.manual_seed(seed)
    base = PointPolicy(gain=gain, chunk=3)
    normalizer = Normalizer.from_limits(base.spec.observation, base.spec.action)
    normalizer._affine(STATE).set(torch.tensor([0.0, 0.0, 500.0, 6.0]), torch.tensor([0.3, 0.3, 500.0, 6.0]))
    policy = ResidualPolicy(base.spec, normalizer, base, hidden=(32, 32), scale=scale)
    short = dict(exploration_std=0.15, warmup_std=0.3, confidence=0.0, average=1.0, actor_warmup=0, penalty_steps=8_000)
    critic = kw.pop("critic", partial(CriticEnsemble, heads=3, width=32))
    algo = ResidualTD3(policy, critic=critic, seed=seed, **short | kw)
    return policy, algo, wrap_for(policy, PointEnv(num_envs))


def loop(algo, env, checkpoints, **kw):
    settings = dict(
        total_steps=400, warmup_steps=100, critic_only_updates=20, updates_per_step=0.5, batch_size=64, demos=None,
        evaluate=None, tracker=NoTracker(), save_every=0, seed=1,
    )  # fmt: skip
    replay = partial(Replay, capacity=20_000, n_step=3, gamma=GAMMA)
    return off_policy(algo=algo, env=env, replay=replay, checkpointer=checkpoints, **{**settings, **kw})


def batch_of(policy, n=16):
    state = {STATE: torch.randn(n, 4), BASE_ACTION: 0.1 * torch.randn(n, 2)}
    return Batch(state, 0.1 * torch.randn(n, 2), torch.zeros(n), torch.full((n,), 0.9), state)


def test_before_training_it_is_the_base():
    policy, algo, env = make()
    obs = env.reset()
    assert torch.allclose(policy.act(obs)[:, 0], obs[BASE_ACTION].clamp(-0.1, 0.1), atol=1e-7)
    assert torch.allclose(algo.explore({k: v if k == BASE_ACTION else v[:, -1] for k, v in obs.items()}, warmup=True),
                          obs[BASE_ACTION], atol=0.5 * 0.1 + 1e-6)  # fmt: skip


def test_a_base_that_tells_tasks_apart_is_refined_on_one():
    policy, _, _ = make()
    base, env = policy.base, PointEnv(2)
    told = {**base.spec.observation, TASK: Feature((), "int64")}
    base.spec = replace(base.spec, observation=told)
    env.spec = replace(env.spec, observation=told)
    wrap_for(policy, env)
    env.spec = replace(env.spec, tasks=("go to the origin", "stay away"))
    with pytest.raises(SpecError, match="has 2 tasks, which the base tells apart by 'task_index'"):
        wrap_for(policy, env)


def test_all_vectors_of_the_base_are_read_the_state_first():
    policy, _, _ = make()
    state, world = Feature((2,), names=("x", "y")), Feature((3,), names=("a", "b", "c"))
    spec = replace(policy.base.spec, observation={"observation.touch": Feature((1,), names=("t",)), ENV_STATE: world,
                                                  STATE: state})  # fmt: skip
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    both = ResidualPolicy(spec, normalizer, policy.base, hidden=(8,))
    assert list(both.spec.observation) == [STATE, ENV_STATE, "observation.touch", BASE_ACTION]
    obs = {STATE: torch.tensor([[[1.0, 2.0]]]), ENV_STATE: torch.tensor([[[3.0, 4.0, 5.0]]]),
           "observation.touch": torch.tensor([[[6.0]]]), BASE_ACTION: torch.zeros(1, 2)}  # fmt: skip
    read, _ = both.features(both.replay_features(obs))
    assert read.tolist() == [[1, 2, 3, 4, 5, 6]]
    some = ResidualPolicy(spec, normalizer, policy.base, hidden=(8,), state=("c", "x"))
    assert some.features(some.replay_features(obs))[0].tolist() == [[5, 1]]
    assert some.act(obs).shape == (1, 1, 2)
    with pytest.raises(SpecError, match="reads vectors of float32"):
        ResidualPolicy(replace(spec, observation={STATE: Feature((2, 3))}), normalizer, policy.base)


def test_the_residual_is_bounded_whatever_the_network_says():
    policy, _, env = make(scale=0.3)
    torch.nn.init.constant_(policy.net[-1].bias, 100.0)
    obs = env.reset()
    moved = policy.act(obs)[:, 0] - obs[BASE_ACTION]
    assert moved.max().item() <= 0.3 * 0.1 + 1e-6 and moved.min().item() > 0.0


def test_target_by_hand():
    policy, algo, _ = make(target_subset=3)
    with torch.no_grad():
        for p in algo.target_params:
            p.zero_()
        algo.target.last.bias.copy_(torch.tensor([2.0, -1.0, 5.0])[:, None, None])
    batch = batch_of(policy)._replace(reward=torch.full((16,), 0.5))
    metrics = algo.update(batch, learned_steps=None)
    assert float(metrics["critic/target"]) == pytest.approx(0.5 + 0.9 * -1.0)  # r + discount · min over the subset


def test_loss_squares_each_head_apart():
    policy, algo, _ = make(target_subset=3)
    with torch.no_grad():
        for p in (*algo.critic_params, *algo.target_params):
            p.zero_()
        algo.critic.last.bias.copy_(torch.tensor([1.0, -1.0, 0.0])[:, None, None])  # their mean error is zero
    metrics = algo.update(batch_of(policy), learned_steps=None)
    assert float(metrics["critic/loss"]) == pytest.approx(2.0 / 3.0)


def test_critic_only_updates_leave_the_policy_alone_and_updates_leave_the_base_alone():
    policy, algo, _ = make()
    before = [p.clone() for p in policy.net.parameters()]
    for _ in range(4):
        algo.update(batch_of(policy), learned_steps=None)
    assert all(torch.equal(a, b) for a, b in zip(before, policy.net.parameters(), strict=True))
    algo.update(batch_of(policy), learned_steps=0)
    algo.update(batch_of(policy), learned_steps=0)
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.net.parameters(), strict=True))
    assert not any(p.requires_grad for p in policy.base.parameters())


def test_penalty_falls_geometrically_and_holds_the_policy_at_the_base():
    assert make(penalty=0.0)[1].penalty_weight(50) == 0.0
    policy, algo, _ = make(penalty=2.0, penalty_final=0.5, penalty_steps=100)
    assert [algo.penalty_weight(s) for s in (0, 50, 100, 500)] == [2.0, 1.0, 0.5, 0.5]
    sizes = {}
    for penalty in (0.0, 1e4):
        policy, algo, _ = make(penalty=penalty, actor_lr=1e-2)
        for _ in range(60):
            metrics = algo.update(batch_of(policy), learned_steps=0)
        sizes[penalty] = float(metrics["actor/residual_sq"])
    assert sizes[1e4] < 0.01 < sizes[0.0]


def test_what_is_stored_is_what_was_executed():
    _policy, algo, env = make(scale=3.0)
    checkpoints = MemoryCheckpoints()
    loop(algo, env, checkpoints)
    action = checkpoints.latest()["replay"]["store"]["action"]
    assert float(action.abs().max()) <= 0.1 + 1e-7 and float(action.abs().max()) > 0.099


@pytest.mark.parametrize("seed", [0, 1])
def test_it_improves_a_slow_base(seed):
    # From most starts the base needs more steps than the horizon allows.
    policy, algo, env = make(seed=seed, gain=0.45, penalty=0.1, penalty_steps=1000, actor_lr=1e-3, critic_lr=1e-3)

    def success(policy):
        obs, env, count = None, wrap_for(policy, PointEnv(64, seed=5)), 0
        obs = env.reset()
        ended, won = torch.zeros(64, dtype=torch.bool), torch.zeros(64, dtype=torch.bool)
        while not bool(ended.all()):
            step = env.step(policy.act(obs)[:, 0].detach())
            won |= step.success & ~ended
            ended |= step.ended
            obs, count = step.obs, count + 1
        return float(won.float().mean())

    before = success(policy)
    loop(algo, env, MemoryCheckpoints(), total_steps=3_000, warmup_steps=800, critic_only_updates=200, seed=seed)
    after = success(policy)
    assert before < 0.3 and after > 0.8, (before, after)


def test_resume_gives_the_same_run_bit_for_bit():
    def weights(policy):
        return torch.cat([p.flatten() for p in policy.net.parameters()])

    policy, algo, env = make()
    whole = MemoryCheckpoints()
    loop(algo, env, whole, total_steps=600)
    want = weights(policy)

    policy, algo, env = make()
    first = MemoryCheckpoints()
    loop(algo, env, first, total_steps=600, save_every=240)
    half = MemoryCheckpoints()
    half.saved[240] = first.saved[240]
    policy, algo, env = make(seed=9)
    env.reset()
    loop(algo, env, half, total_steps=600, save_every=240)
    assert torch.equal(weights(policy), want)
    a, b = whole.latest(), half.latest()
    assert torch.equal(a["obs"][STATE], b["obs"][STATE])
    assert torch.equal(a["replay"]["store"]["reward"], b["replay"]["store"]["reward"])


class Filtered(DivergingPoint):
    """Diverges now and then; a filter steps in where x > 0."""

    def step(self, action):
        step = super().step(action)
        return step._replace(info={"intervened": step.next_obs[STATE][:, 0] > 0})


def test_a_resumed_run_logs_the_same_lines():
    def lines(checkpoints):
        _, algo, _ = make()
        tracker = NoTracker()
        # An update every 50 steps: each one's numbers are logged more than once.
        result = loop(algo, wrap_for(algo.policy, Filtered(8)), checkpoints, tracker=tracker, total_steps=600,
                      save_every=248, updates_per_step=0.02, log_every=16)  # fmt: skip
        times = ("train/seconds", "train/steps_per_s")
        return result, [(step, {k: v for k, v in row.items() if k not in times}) for step, row in tracker.rows]

    whole, half = MemoryCheckpoints(), MemoryCheckpoints()
    result, want = lines(whole)
    half.saved[248] = whole.saved[248]
    assert lines(half)[1] == [(step, row) for step, row in want if step > 248]
    diverged = int((~whole.latest()["replay"]["store"]["valid"]).sum())
    assert result["train_diverged"] == want[-1][1]["train/diverged"] == diverged > 0, "counted since the run began"
    assert 0.0 < want[-1][1]["train/intervened"] < 1.0


@pytest.mark.parametrize("warmup_steps", [0, 8, 100])
def test_critic_only_updates_come_first_once_there_is_enough_to_sample(warmup_steps):
    _, algo, env = make()
    update, seen = algo.update, []
    algo.update = lambda batch, learned_steps: seen.append(learned_steps) or update(batch, learned_steps=learned_steps)
    loop(algo, env, MemoryCheckpoints(), warmup_steps=warmup_steps)
    assert seen[:20] == [None] * 20
    assert None not in seen[20:]


def test_a_run_that_is_all_warm_up_is_refused():
    _, algo, env = make()
    with pytest.raises(ConfigError, match=r"loop\.warmup_steps=400 leaves nothing of loop\.total_steps=400"):
        loop(algo, env, MemoryCheckpoints(), total_steps=400, warmup_steps=400)


def test_a_target_over_more_heads_than_there_are_is_refused():
    with pytest.raises(ConfigError, match=r"algo\.target_subset: expected at most algo\.critic\.heads=3, found 4"):
        make(target_subset=4)


def test_evaluations_happen_on_schedule_and_the_best_is_kept():
    _, algo, env = make()
    tracker, seen, checkpoints = NoTracker(), [], MemoryCheckpoints()

    def score(policy, step):
        seen.append(step)
        return {"success_rate": {0: 0.2, 200: 0.6, 400: 0.4}[step]}

    loop(algo, env, checkpoints, tracker=tracker, eval_every=200, evaluate=score)
    assert seen == [0, 200, 400]
    assert [s for s, row in tracker.rows if "eval/success_rate" in row] == [0, 200, 400]
    assert checkpoints.best == [0, 200]
    # Resumed after the best one, it does not take a worse one for the best.
    _, algo, env = make()
    resumed = MemoryCheckpoints()
    resumed.saved[200] = checkpoints.saved[200]
    loop(algo, env, resumed, eval_every=200, evaluate=score)
    assert resumed.best == [] and max(resumed.saved) == 400


def test_of_several_tasks_it_is_told_which():
    """A residual that has learned one number per task and nothing else gives each task its own."""
    base = make()[0].base
    told = {**base.spec.observation, TASK: Feature((), "int64")}
    spec = replace(base.spec, observation=told, tasks=("left", "right"))
    base.spec = spec
    policy = ResidualPolicy(
        spec, Normalizer.from_limits(spec.observation, spec.action), base, hidden=(), scale=0.5, task_weights=False
    )
    assert policy.spec.observation.keys() == {STATE, BASE_ACTION, TASK}
    with torch.no_grad():
        policy.net[-1].weight[:, 4:6] = torch.tensor([[9.0, -9.0], [0.0, 0.0]])  # after a state of 4
    obs = {STATE: torch.zeros(2, 1, 4), BASE_ACTION: torch.zeros(2, 2), TASK: torch.tensor([[0], [1]])}
    moved = policy.normalizer.normalize("action", policy.act(obs)[:, 0])
    torch.testing.assert_close(moved, torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), atol=1e-4, rtol=0.0)
    env = PointEnv(2)
    env.spec = replace(env.spec, observation=told, tasks=("left", "right"))
    assert TASK in wrap_for(policy, env).spec.observation


def test_each_of_several_tasks_has_weights_of_its_own():
    """Of two things whose places are read, the one that the task is about is one product away; saved and reloaded."""
    base = make()[0].base
    told = {**base.spec.observation, TASK: Feature((), "int64")}
    base.spec = replace(base.spec, observation=told, tasks=("left", "right"))
    normalizer = Normalizer.from_limits(told, base.spec.action)
    policy = ResidualPolicy(base.spec, normalizer, base, hidden=(), task_weights=True)
    with torch.no_grad():  # after a state of 4: that of "left", that of "right"
        policy.net[-1].weight[0, 4:8], policy.net[-1].weight[0, 8:12] = (torch.eye(4)[i] for i in (0, 1))
    state = torch.tensor([0.2, -0.3, 0.0, 0.0]).expand(2, 1, 4)
    obs = {STATE: state, BASE_ACTION: torch.zeros(2, 2), TASK: torch.tensor([[0], [1]])}
    state, _ = policy.features(policy.replay_features(obs))
    u = policy.residual(state, torch.zeros(2, 2))
    torch.testing.assert_close(u, torch.tensor([[0.2, 0.0], [-0.3, 0.0]]).tanh())
    assert state.shape == (2, 4 + 2) and policy.net[0].in_features == 4 * (1 + 2) + 2 + 2
    plain = ResidualPolicy(base.spec, normalizer, base, hidden=(), task_weights=False)
    assert plain.net[0].in_features == 4 + 2 + 2
    base.spec = replace(base.spec, tasks=("left",))
    one = ResidualPolicy(base.spec, normalizer, base, hidden=(), task_weights=True)
    assert one.net[0].in_features == 4 + 1 + 2, "of one task there is nothing to tell apart"


def test_a_learner_of_several_tasks_learns_as_one_of_the_written_out_layout(monkeypatch):
    """Critics, targets and actor after some updates, with the weights, batches and draws of each other."""
    base = make()[0].base
    told = {**base.spec.observation, TASK: Feature((), "int64")}
    base.spec = replace(base.spec, observation=told, tasks=("left", "right", "up"))
    normalizer = Normalizer.from_limits(told, base.spec.action)

    def product(x, weight, layout):
        number = x[:, layout.seen : layout.seen + layout.tasks].argmax(1)
        return torch.cat([by_task(x[:, : layout.seen], number, layout.tasks), x[:, layout.seen :]], dim=1) @ weight

    def learned():
        torch.manual_seed(0)
        policy = ResidualPolicy(base.spec, normalizer, base, hidden=(16,), task_weights=True)
        algo = ResidualTD3(policy, critic=partial(CriticEnsemble, heads=3, width=16), seed=0)
        for _ in range(12):
            batch = batch_of(policy)
            task = {TASK: torch.randint(0, 3, (16,))}
            batch = batch._replace(obs=batch.obs | task, next_obs=batch.next_obs | task, reward=torch.randn(16))
            algo.update(batch, learned_steps=100)
        return [p for net in (policy.net, algo.critic, algo.target) for p in net.parameters()]

    found = learned()
    for module in ("task_conditioned", "critics"):
        monkeypatch.setattr(f"robopolicy.networks.{module}.task_product", product)
    for mine, want in zip(found, learned(), strict=True):
        torch.testing.assert_close(mine, want)


def test_state_of_other_parameters_is_refused():
    _, algo, _ = make()
    algo.update(batch_of(algo.policy), learned_steps=100)
    state = algo.state_dict()
    state["critic_optim"] = {
        "0": state["critic_optim"]["1"],
        **{k: v for k, v in state["critic_optim"].items() if k != "0"},
    }
    with pytest.raises(CheckpointError, match=r"optimizer: parameter 0 was saved with state of shapes"):
        algo.load_state_dict(state)


class Reader(PointPolicy):
    """A base that reads instructions, whatever they are."""

    def set_tasks(self, tasks):
        self.spec = replace(self.spec, tasks=tuple(tasks))


def two_tasks(kind):
    """A residual that has learned to go ±0.5 on the tasks left and right, on a base of `kind` that stands still."""
    base = kind(gain=0.0)
    spec = replace(
        base.spec, observation={**base.spec.observation, TASK: Feature((), "int64")}, tasks=("left", "right")
    )
    base.spec = spec
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    policy = ResidualPolicy(spec, normalizer, base, hidden=(), scale=0.5, task_weights=False)
    with torch.no_grad():
        policy.net[-1].weight[:, 4:6] = torch.tensor([[9.0, -9.0], [0.0, 0.0]])
    return policy


def moves(policy):
    """[T] how far along x it goes on each task of its spec."""
    count = len(policy.spec.tasks)
    obs = {STATE: torch.zeros(count, 1, 4), BASE_ACTION: torch.zeros(count, 2), TASK: torch.arange(count)[:, None]}
    return (policy.act(obs)[:, 0, 0] / 0.1).tolist()


def test_in_other_words_it_is_silent_and_known_ones_keep_their_numbers():
    policy = two_tasks(Reader)
    policy.set_tasks(("to the left", "right", "left"))
    assert moves(policy) == pytest.approx([0.0, -0.5, 0.5], abs=1e-4)
    env = PointEnv(2)
    env.spec = replace(env.spec, observation={**env.spec.observation, TASK: Feature((), "int64")},
                       tasks=("to the left", "right", "left"))  # fmt: skip
    wrap_for(policy, env)  # the whole chain follows the env's instructions
    policy.set_tasks(("left", "right"))
    assert moves(policy) == pytest.approx([0.5, -0.5], abs=1e-4)


def test_other_words_over_a_base_that_cannot_read_are_refused():
    with pytest.raises(SpecError, match="by number, and the env's are others: left, to the left"):
        two_tasks(PointPolicy).set_tasks(("to the left", "right"))


def test_what_an_instructed_residual_is_saved_with_tells_both_apart():
    policy = two_tasks(Reader)
    policy.config = {"_target_": "residual", "hidden": [], "scale": 0.5, "task_weights": False}
    policy.set_tasks(("to the left", "right", "left"))
    options = {k: v for k, v in policy.config.items() if k != "_target_"}
    again = ResidualPolicy(policy.spec, policy.normalizer, policy.base, **options)
    again.load_state_dict(policy.state_dict())
    assert moves(again) == pytest.approx([0.0, -0.5, 0.5], abs=1e-4)


def test_it_and_its_critics_read_the_elements_of_the_state_that_are_named():
    base = PointPolicy(gain=0.35, chunk=3)
    names = ("to_x", "to_y", "place_x", "place_y")
    spec = replace(base.spec, observation={STATE: Feature((4,), names=names)})
    normalizer = Normalizer.from_limits(spec.observation, spec.action)

    def chosen(*state: str) -> ResidualPolicy:
        return ResidualPolicy(spec, normalizer, base, hidden=(8,), state=state)

    policy = chosen("place_y", "to_*")
    obs = batch_of(policy).obs
    state, _ = policy.features(obs)
    assert torch.equal(state, obs[STATE][:, [3, 0, 1]])
    assert policy.net[0].in_features == 3 + 2  # what critics are made for
    with pytest.raises(SpecError, match=r"policy\.state: 'observation\.state' has no 'to_z'\. Did you mean 'to_"):
        chosen("to_x", "to_z")
    with pytest.raises(SpecError, match=r"policy\.state: names nothing"):
        chosen()
    with pytest.raises(SpecError, match=r"policy\.state: the elements of 'observation\.state' have no names"):
        ResidualPolicy(
            replace(spec, observation={STATE: Feature((4,))}), normalizer, base, hidden=(8,), state=("to_x",)
        )


def test_of_several_tasks_what_is_read_of_the_state_has_weights_for_each():
    base = PointPolicy(gain=0.35, chunk=3)
    names = ("to_x", "to_y", "place_x", "place_y")
    observation = {STATE: Feature((4,), names=names), TASK: Feature((), "int64")}
    spec = replace(base.spec, observation=observation, tasks=("left", "right"))
    normalizer = Normalizer.from_limits(spec.observation, spec.action)
    policy = ResidualPolicy(spec, normalizer, base, hidden=(8,), state=("to_*",), task_weights=True)
    assert policy.net[0].in_features == 2 * (1 + 2) + 2 + 2
    with torch.no_grad():
        policy.net[-1].weight.normal_(generator=torch.Generator().manual_seed(0))
        policy.net[0].weight[:, :4] = 0.0  # what all tasks share, and what is the left's: only the right's is read
    obs = {STATE: torch.randn(3, 1, 4), BASE_ACTION: torch.zeros(3, 2), TASK: torch.tensor([[0], [1], [0]])}
    before = policy.act(obs)
    assert torch.equal(policy.act({**obs, STATE: obs[STATE] + torch.tensor([0.0, 0.0, 1.0, 1.0])}), before)
    moved = policy.act({**obs, STATE: obs[STATE] + torch.tensor([1.0, 0.0, 0.0, 0.0])})
    assert (moved != before).flatten(1).any(dim=1).tolist() == [False, True, False]


def gripping(**options):
    """A learner whose second action is a gripper, and observations of eight envs in which the base opens it."""
    base = PointPolicy(gain=0.35, chunk=3)
    spec = replace(base.spec, action=replace(base.spec.action, gripper=1, gripper_meaning="-1 opens"))
    policy = ResidualPolicy(spec, Normalizer.from_limits(spec.observation, spec.action), base, hidden=(8,))
    algo = ResidualTD3(policy, critic=partial(CriticEnsemble, heads=2, width=8), seed=3, exploration_std=0.0,
                       warmup_std=0.0, **options)  # fmt: skip
    low = torch.tensor(spec.action.low)
    return algo, {STATE: torch.zeros(8, 4), BASE_ACTION: torch.stack([torch.zeros(8), low[1].expand(8)], dim=1)}


@pytest.mark.parametrize("warmup", [True, False])
def test_the_gripper_is_taken_for_some_steps_now_and_then_and_nothing_else_is(warmup):
    algo, obs = gripping(gripper_rate=0.1, gripper_hold=4)
    low, high = algo.policy.spec.action.low[1], algo.policy.spec.action.high[1]
    played = torch.stack([algo.explore(obs, warmup=warmup) for _ in range(400)])  # [T N Da]
    assert torch.equal(played[..., 0], torch.zeros(400, 8))
    closing = played[..., 1] > 0
    assert torch.allclose(played[..., 1][~closing], torch.tensor(low)), "opened by the base or by a draw"
    assert closing[:, 0].any() and bool((played[..., 1] <= high).all())
    starts = closing & ~torch.cat([torch.zeros(1, 8, dtype=torch.bool), closing[:-1]])
    lengths = [int(closing[t:, n].int().cumprod(0).sum()) for t, n in starts.nonzero().tolist() if t < 390]
    assert min(lengths) == 4, "held; two in a row may be longer"
    assert 0.08 < float(closing.float().mean()) < 0.22  # half of 4 / (4 + 1 / 0.1)


def test_whose_gripper_is_taken_is_saved():
    algo, obs = gripping(gripper_rate=0.1, gripper_hold=4)
    for _ in range(30):
        algo.explore(obs, warmup=True)
    assert bool((algo.forced_gripper_steps != 0).any())
    again, _ = gripping(gripper_rate=0.1, gripper_hold=4)
    again.load_state_dict(algo.state_dict())
    assert all(torch.equal(again.explore(obs, warmup=False), algo.explore(obs, warmup=False)) for _ in range(20))


def test_at_rate_zero_no_number_is_drawn_for_the_gripper_and_runs_stay_what_they_were():
    algo, obs = gripping()
    before = algo.generator.get_state()
    algo._randn = lambda shape: torch.zeros(shape)
    algo.explore(obs, warmup=False)
    assert torch.equal(algo.generator.get_state(), before)


def test_a_gripper_that_is_not_there_cannot_be_taken():
    with pytest.raises(ConfigError, match=r"algo\.gripper_rate=0\.1: none of the actions .* is a gripper's"):
        make(gripper_rate=0.1)


class Disagreeing(torch.nn.Module):
    """Heads that are linear in the action: all see a gain along the first axis, they disagree along the second."""

    heads = 3

    def forward(self, state, action, heads=None):
        return torch.stack([action[:, 0] + slope * action[:, 1] for slope in (-3.0, 0.0, 9.0)])


def climb(**kw):
    policy, algo, _ = make(penalty=0.0, policy_delay=1, actor_lr=3e-3, **kw)
    algo.critic = Disagreeing()
    batch = batch_of(policy, 64)
    state, base = policy.features(batch.obs)
    for _ in range(200):
        algo._update_actor(state, base, 0.0)
    return policy, algo, policy.residual(state, base).detach().mean(dim=0)


def test_with_confidence_the_actor_leaves_the_base_only_where_the_heads_agree():
    _, _, u = climb()
    assert (u > 0.9).all(), "their mean rises along both axes"
    _, _, u = climb(confidence=1.0)
    assert u[0] > 0.9 and abs(u[1]) < 0.1


def test_a_single_head_knows_no_deviation_and_learns_all_the_same():
    critic = partial(CriticEnsemble, heads=1, width=32)
    policy, algo, _ = make(critic=critic, target_subset=1, confidence=1.0)
    before = [p.clone() for p in policy.net.parameters()]
    for _ in range(4):
        metrics = algo.update(batch_of(policy), learned_steps=0)
    assert float(metrics["actor/gain_deviation"]) == 0.0
    assert all(bool(p.isfinite().all()) for p in policy.net.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, policy.net.parameters(), strict=True))


def test_a_loss_that_is_not_finite_is_refused_and_changes_nothing():
    policy, algo, _ = make(policy_delay=1)
    learned = [*algo.critic_params, *algo.actor_params]
    before = [p.clone() for p in learned]
    batch = batch_of(policy)
    batch.reward[3] = torch.nan
    with pytest.raises(RobopolicyError, match=r"critic: loss nan and gradient norm nan at update 1 .*algo\.critic_lr"):
        algo.update(batch, learned_steps=0)
    assert all(torch.equal(a, b) for a, b in zip(before, learned, strict=True))
    state = torch.full_like(batch.obs[STATE], torch.nan)
    with pytest.raises(RobopolicyError, match=r"actor: loss nan .*algo\.actor_lr"):
        algo._update_actor(state, batch.obs[BASE_ACTION], 0.0)
    assert all(torch.equal(a, b) for a, b in zip(before, learned, strict=True))


def test_what_acts_follows_the_actor_by_an_average():
    policy, algo, u = climb(average=0.01)
    raw = torch.nn.utils.parameters_to_vector(algo.actor.parameters())
    acting = torch.nn.utils.parameters_to_vector(policy.net.parameters())
    assert 0.0 < (raw - acting).norm() < raw.norm() and 0.0 < u[0] < 0.99
    before = acting.clone()
    state, base = policy.features(batch_of(policy).obs)
    algo._update_actor(state, base, 0.0)
    raw = torch.nn.utils.parameters_to_vector(algo.actor.parameters())
    after = torch.nn.utils.parameters_to_vector(policy.net.parameters())
    assert torch.allclose(after, before + 0.01 * (raw - before), atol=1e-6)


def test_averages_keep_no_graph_of_their_updates():
    policy, algo, _ = make(policy_delay=1, average=0.01)
    for _ in range(2):
        algo.update(batch_of(policy), learned_steps=0)
    assert all(p.grad_fn is None for p in (*algo.target_params, *algo.acting_params))


def test_the_learning_rate_of_the_actor_rises_from_zero():
    policy, algo, _ = make(actor_warmup=4, actor_lr=1e-3)
    state, base = policy.features(batch_of(policy).obs)
    rates = [algo._update_actor(state, base, 1.0) and algo.actor_optim.param_groups[0]["lr"] for _ in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_a_run_with_an_averaged_actor_goes_on_as_if_it_had_not_stopped():
    kept = MemoryCheckpoints()
    settings = dict(confidence=1.0, average=0.05, actor_warmup=10)
    whole, algo, env = make(**settings)
    loop(algo, env, MemoryCheckpoints(), save_every=200)
    _, algo, env = make(**settings)
    loop(algo, env, kept, total_steps=200, save_every=200)
    resumed, algo, env = make(**settings)
    loop(algo, env, kept, save_every=200)
    for a, b in zip(whole.net.parameters(), resumed.net.parameters(), strict=True):
        assert torch.equal(a, b)
