"""A residual that sees what its base makes of pictures: on the simulator, without objects in the state."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch

from robopolicy import sim
from robopolicy.algos.residual import ResidualTD3
from robopolicy.buffers.relabeling import read_frames
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.cli.main import invoke
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, IMAGES, STATE
from robopolicy.datasets.episodes import Episodes
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.envs.wrap_for import wrap_for
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.networks.mlp import ResidualMLP
from robopolicy.policies.diffusion import DiffusionPolicy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.residual import SEEN, ResidualPolicy
from robopolicy.training.off_policy import off_policy
from tests.fakes import MemoryCheckpoints, NoTracker, PointPolicy

FRONT = IMAGES + "front"
SEEING = {"objects": False, "cameras": ("front",), "image_size": (16, 16), "horizon": 10, "joint_noise": 0.0}


@pytest.fixture(scope="module")
def env():
    made = sim.make("reach", 2, seed=3, **SEEING)
    yield made
    made.close()


def base_of(env, n_obs_steps=2):
    torch.manual_seed(0)
    observation = {k: env.spec.observation[k] for k in (STATE, FRONT)}
    spec = PolicySpec(observation, env.spec.action, env.dt, n_obs_steps, 4, 2, env.spec.tasks)
    return DiffusionPolicy(
        spec, Normalizer.from_limits(observation, env.spec.action), network=partial(ResidualMLP, width=32, time_dim=8),
        denoising_steps=2,
    ).eval()  # fmt: skip


def residual_of(base, **options):
    torch.manual_seed(1)
    return ResidualPolicy(base.spec, base.normalizer, base, hidden=(16,), **{"pictures": True, **options})


def test_a_state_without_objects_is_the_arm_s_and_experts_do_as_well(env):
    """The same demonstrations, whatever the policy is to see of them."""
    whole = sim.make("reach", 2, seed=3, **{**SEEING, "objects": True, "cameras": ()})
    assert len(env.spec.observation[STATE].names) == 14 < len(whole.spec.observation[STATE].names)
    assert not any("target" in n for n in env.spec.observation[STATE].names) and env.spec.digest != whole.spec.digest
    experts = [e.make_expert(expert_noise=0.5) for e in (env, whole)]
    seeds = torch.tensor([5, 6])
    seen = [e.reset(seeds) for e in (env, whole)]
    for expert in experts:
        expert.reset(None, episode_seed=seeds)
    for _ in range(6):
        actions = [expert.act(obs) for expert, obs in zip(experts, seen, strict=True)]
        assert torch.equal(*actions)
        steps = [e.step(a) for e, a in zip((env, whole), actions, strict=True)]
        seen = [s.obs for s in steps]
    whole.close()


def test_what_it_reads_are_numbers_and_they_are_the_encoder_s(env):
    base = base_of(env)
    policy = residual_of(base)
    assert policy.encoded_dim == base.cond_dim and policy.spec.n_obs_steps == 2 and FRONT in policy.spec.observation
    wrapped = wrap_for(policy, env)
    obs = wrapped.reset()
    frame = policy.replay_features(obs)
    assert frame.keys() == {STATE, BASE_ACTION, SEEN} and frame[SEEN].shape == (2, base.cond_dim)
    assert torch.equal(frame[SEEN], base.encode({k: obs[k][:, -2:] for k in (STATE, FRONT)}))
    executor = ChunkExecutor(policy, 2)
    action = executor.next_action(obs, torch.zeros(2, dtype=torch.int64))
    expected = policy.normalizer.unnormalize(
        "action", policy.combine(policy.normalizer.normalize("action", obs[BASE_ACTION]), torch.zeros(2, 5))
    )
    assert torch.allclose(action, expected, atol=1e-6), "before training it is the base"
    with torch.no_grad():
        policy.net[-1].weight.normal_()
    bright = {**obs, FRONT: 255 - obs[FRONT]}
    assert not torch.equal(policy.act(obs), policy.act(bright)), "it sees"
    again = ResidualPolicy(policy.spec, policy.normalizer, base, hidden=(16,), pictures=True)
    again.load_state_dict(policy.state_dict())
    assert torch.equal(again.act(obs), policy.act(obs))


def test_replays_hold_no_pictures_and_demonstrations_are_read_alike(env):
    base = base_of(env)
    policy = residual_of(base)
    algo = ResidualTD3(policy, critic=partial(CriticEnsemble, heads=2, width=16), seed=0)
    wrapped, store = wrap_for(policy, env), []
    frames = 12
    generator = torch.Generator().manual_seed(0)
    demos = Episodes(
        obs={STATE: torch.randn(frames, 14, generator=generator),
             FRONT: torch.randint(0, 255, (frames, 3, 16, 16), dtype=torch.uint8, generator=generator)},
        action=torch.zeros(frames, 5), reward=torch.zeros(frames), terminated=torch.zeros(frames, dtype=torch.bool),
        success=torch.zeros(frames, dtype=torch.bool), starts=torch.tensor([0, 6, 12]), seeds=torch.tensor([1, 2]),
        observation=base.spec.observation, action_spec=env.spec.action, dt=env.dt, tasks=env.spec.tasks,
    )  # fmt: skip
    read = read_frames(demos, policy)
    alone = base.encode(demos.history(torch.tensor([7]), 2))
    assert torch.allclose(read[SEEN][7:8], alone, atol=1e-6) and read[SEEN].shape == (12, base.cond_dim)

    def replay(**options):
        store.append(Replay(capacity=400, n_step=2, gamma=0.9, **options))
        return store[-1]

    result = off_policy(
        algo=algo, env=wrapped, replay=replay, demos=demos, tracker=NoTracker(), checkpointer=MemoryCheckpoints(),
        evaluate=None, total_steps=60, warmup_steps=20, critic_only_updates=2, updates_per_step=0.5, batch_size=8,
    )  # fmt: skip
    assert result["steps"] == 60 and store[0].obs.keys() == {STATE, BASE_ACTION, SEEN}
    assert float(policy.net[-1].weight.abs().max()) > 0.0, "it learned"
    assert all(torch.equal(a, b) for a, b in zip(base.parameters(), base_of(env).parameters(), strict=True))


def test_resume_gives_the_same_run_where_an_episode_began_just_before_the_save():
    """What was read of a new episode's picture alone is not, to the bit, what all envs at once would give."""

    def run(checkpoints: MemoryCheckpoints, **options) -> list[torch.Tensor]:
        env = sim.make("reach", 3, cameras=("front",), image_size=(16, 16), objects=False, horizon=4, threads=1)
        torch.manual_seed(0)
        policy = residual_of(base_of(env))
        algo = ResidualTD3(policy, critic=partial(CriticEnsemble, heads=2, width=16), seed=0)
        off_policy(
            algo=algo, env=wrap_for(policy, env), replay=partial(Replay, capacity=400, n_step=2, gamma=0.9),
            demos=None, tracker=NoTracker(), checkpointer=checkpoints, evaluate=None, total_steps=72, warmup_steps=12,
            critic_only_updates=2, updates_per_step=0.5, batch_size=8, seed=1, **options,
        )  # fmt: skip
        return [p.clone() for p in (*policy.net.parameters(), *algo.critic.parameters())]

    first = MemoryCheckpoints()
    want = run(first, save_every=12)  # every episode of 4 steps of 3 envs ends there
    for moved in (0.0, 1e-3):  # what was saved is what goes on, not what would be read anew
        half = MemoryCheckpoints()
        half.saved[36] = copy.deepcopy(first.saved[36])
        half.saved[36]["frame"][SEEN] += moved
        same = all(torch.equal(a, b) for a, b in zip(run(half), want, strict=True))
        assert same == (moved == 0.0)


def test_a_base_that_shows_no_pictures_is_refused(env):
    base = base_of(env)
    point = PointPolicy()
    with pytest.raises(SpecError, match="the base reads no pictures"):
        ResidualPolicy(point.spec, Normalizer.from_limits(point.spec.observation, point.spec.action), point,
                       pictures=True)  # fmt: skip
    point.spec = base.spec
    with pytest.raises(SpecError, match="PointPolicy shows none"):
        ResidualPolicy(base.spec, base.normalizer, point, pictures=True)
    assert FRONT not in residual_of(base, pictures=False).spec.observation


@pytest.mark.parametrize(
    "seen", [["task.cameras=[front]", "task.image_size=[16,16]"], ["task.points=[front]", "task.cloud.count=16"]]
)
def test_from_demonstrations_to_a_refined_policy_by_the_commands(tmp_path, seen):
    task = ["task=reach", "task.objects=false", *seen]
    quiet = ["tracker=quiet", "threads=1"]
    invoke("demos", *task, out=tmp_path / "d", episodes=4, num_envs=4)
    invoke("train", "algo=bc", *task, *quiet, "loop.steps=3", "loop.batch_size=8", "network.width=16",
           dataset=tmp_path / "d", run_dir=tmp_path / "bc")  # fmt: skip
    invoke("train", "algo=residual", *task, *quiet, "policy.pictures=true", "loop.total_steps=120",
           "loop.warmup_steps=60", "num_envs=4", "loop.critic_only_updates=2", "loop.batch_size=16",
           base=tmp_path / "bc", dataset=tmp_path / "d", run_dir=tmp_path / "r")  # fmt: skip
    rows = invoke("eval", *task, "episodes=2", "videos=0", "threads=1", checkpoint=tmp_path / "r", num_envs=2)
    assert len(rows) == 2
