"""MuJoCo Warp on its CPU device against `mj_step`. Its first compile takes some ten seconds, so one worker runs all."""

from __future__ import annotations

from types import SimpleNamespace

import mujoco
import numpy as np
import pytest
import torch

pytest.importorskip("mujoco_warp", reason="needs the extra `warp`")

from robopolicy import sim
from robopolicy.buffers.collector import RolloutCollector
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE
from robopolicy.sim.physics import WarpOptions
from robopolicy.sim.warp_engine import WarpPhysics, _memory

CPU = WarpOptions(device="cpu")
N = 3


def make(task: str = "pick", num_envs: int = N, **options) -> sim.SimEnv:
    return sim.make(task, num_envs, physics="warp", **{"warp": CPU, **options})


def played(env: sim.SimEnv, steps: int) -> tuple[torch.Tensor, list[tuple[np.ndarray, np.ndarray]]]:
    """Success [N] of first episodes within `steps` of the expert, and the servo targets of every step."""
    targets, step = [], env.physics.step

    def recording(ctrl, start):
        targets.append((ctrl.copy(), start.copy()))
        return step(ctrl, start)

    env.physics.step = recording
    expert, obs = env.make_expert(), env.reset(episode_seeds("test", 0, env.num_envs))
    expert.reset(None, episode_seed=env.episode_seed)
    done, success = torch.zeros(2, env.num_envs, dtype=torch.bool)
    for _ in range(steps):
        found = env.step(expert.act(obs))
        obs, success, done = found.obs, success | (found.success & ~done), done | found.ended
        expert.reset(found.ended, episode_seed=env.episode_seed)
        if done.all():
            break
    env.physics.step = step
    return success, targets


@pytest.mark.parametrize("task", sim.task_names())
def test_every_task_is_taken_as_it_is(task):
    env = make(task, 2)
    assert not env.spec.deterministic and not env.spec.resumable
    assert env.spec.digest == make(task, 1).spec.digest != sim.make(task, 1).spec.digest
    plain = sim.make(task, 2)
    assert torch.equal(env.reset(episode_seeds("test", 0, 2))[STATE], plain.reset(episode_seeds("test", 0, 2))[STATE])


def test_240_steps_agree_with_mj_step():
    """The arm moves above cubes that lie on the table; the first step decides by a last bit whether they touch."""
    env = sim.make("pick", N, horizon=200)
    physics = WarpPhysics(env.model, num_envs=N, substeps=5, device="cpu", nconmax=32, njmax=128)
    env.reset(episode_seeds("test", 0, N))
    action = torch.tensor([[0.01, -0.01, 0.0, 0.05, -1.0]]).expand(N, -1)
    env.step(action)
    physics.state[:] = env.physics.state
    data = [mujoco.MjData(env.model) for _ in range(N)]
    for i in range(N):
        mujoco.mj_setState(env.model, data[i], env.physics.state[i], int(mujoco.mjtState.mjSTATE_FULLPHYSICS))
    for t in range(48):
        start = env.controller.q.copy()
        ctrl = env.controller.command((action * (1 if t % 16 < 8 else -1)).double().numpy(), env._tcp, env._yaw).copy()
        assert not physics.step(ctrl, start).any()
        env.physics.step(ctrl, start)
        env._measure()
        for i in range(N):
            for k in range(1, 6):
                data[i].ctrl[:] = ctrl[i]
                data[i].ctrl[:7] += (1 - k / 5) * (start[i] - ctrl[i, :7])
                mujoco.mj_step(env.model, data[i])
            assert data[i].ncon >= 4
    assert np.ptp(physics.qpos[:, 0]) > 0 and np.abs(physics.qpos[:, :7] - env.task.start).max() > 0.02, "it moves"
    assert max(np.abs(physics.qpos[i] - data[i].qpos).max() for i in range(N)) < 1e-5
    assert max(np.abs(physics.state[i, 0] - data[i].time) for i in range(N)) < 1e-5


def test_the_expert_picks_up_the_cube_as_on_the_cpu():
    success, _ = played(make(), 60)
    assert success.all() and torch.equal(success, played(sim.make("pick", N), 60)[0])


def test_a_held_cube_does_not_turn_in_the_hand():
    """Warp's general collider finds one contact between two boxes, about which they turn."""
    env = make(lift=10.0)
    played(env, 35)
    yaw = []
    for _ in range(5):
        env.step(torch.zeros(N, 5) - torch.tensor([0, 0, 0, 0, 1.0]))
        yaw.append(env.layout.unpack(env.observe()[STATE].numpy())["turn"].copy())
    assert env.layout.unpack(env.observe()[STATE].numpy())["cube"][:, 2].min() > 0.05
    assert np.ptp(yaw, axis=0).max() < 0.02


def test_divergence_keeps_the_last_good_state_and_the_neighbours():
    env, twin = make(), make()
    for each in (env, twin):
        each.reset(episode_seeds("test", 3, N + 2))
    env.physics.qvel[1, 0] = float("nan")
    step, other = (each.step(torch.zeros(N, 5)) for each in (env, twin))
    assert step.info["diverged"].tolist() == [False, True, False] and step.truncated[1] and not step.valid[1]
    assert torch.equal(step.obs[STATE][[0, 2]], other.obs[STATE][[0, 2]])
    assert torch.isfinite(step.obs[STATE]).all() and env.step(torch.zeros(N, 5)).valid.all()


@pytest.mark.parametrize(("setting", "words"), [("nconmax", "contacts"), ("njmax", "constraint rows")])
def test_capacity_that_is_exceeded_names_the_setting(setting, words):
    env = make(warp=WarpOptions(device="cpu", **{setting: 2}))
    before = env.physics.state.copy()
    with pytest.raises(ConfigError, match=rf"task\.warp\.{setting}=2.*{words}.*Set task\.warp\.{setting}=\d+"):
        env.step(torch.zeros(N, 5))
    assert np.array_equal(env.physics.state, before)


def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigError, match=r"task\.warp\.device=cuda:97.*doctor"):
        make(warp=WarpOptions(device="cuda:97"))


def test_memory_that_does_not_suffice_names_the_setting():
    device = make(num_envs=1).physics.device
    with pytest.raises(ConfigError, match=r"num_envs=8192.*num_envs=4096"), _memory(device, 8192):
        raise RuntimeError("Failed to allocate 123 bytes on device 'cuda:0'")
    with pytest.raises(RuntimeError, match="other"), _memory(device, 8192):
        raise RuntimeError("other")


def test_training_resumes_with_new_episodes():
    env, again = make(), make()
    spec = SimpleNamespace(action=env.spec.action, n_action_steps=1, reads_pictures=False)
    explorer = SimpleNamespace(policy=SimpleNamespace(spec=spec), noise_shape=(1,))
    saved = RolloutCollector(explorer, env)
    saved.reset()
    env.step(torch.zeros(N, 5))
    resumed = RolloutCollector(explorer, again)
    resumed.load_state_dict(saved.state_dict())
    assert torch.equal(again.episode_seed, episode_seeds("train", 0, 3 * N)[2 * N :]), "those after the saved ones"
    assert not again._t.any() and not resumed.age.any()
