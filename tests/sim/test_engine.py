"""The batched engine against plain mj_step, and its behaviour at the edges."""

from __future__ import annotations

import dataclasses
import os

import mujoco
import numpy as np
import pytest
import torch

from robopolicy import sim
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import episode_seeds
from robopolicy.core.types import STATE
from robopolicy.sim import engine
from robopolicy.sim.engine import RolloutPhysics, compile_model
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.reach import Reach

FULL = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)


def contact_state(n: int) -> tuple[sim.SimEnv, np.ndarray]:
    """An env in the middle of grasps, where the solver has work."""
    env = sim.make("pick", n)
    expert = env.make_expert()
    obs = env.reset(episode_seeds("test", 0, n))
    expert.reset(None, episode_seed=env.episode_seed)
    for _ in range(14):
        obs = env.step(expert.act(obs)).obs
    return env, env.physics.state.copy()


def test_a_step_equals_a_cold_started_mj_step_loop():
    env, state = contact_state(6)
    ctrl = np.random.default_rng(0).uniform(0, 0.01, (6, env.model.nu)) + np.concatenate(
        [env.controller.q, np.zeros((6, 2))], axis=1
    )
    start = env.controller.q.copy()
    env.physics.step(ctrl, start)
    data = mujoco.MjData(env.model)
    touching = 0
    for i in range(6):
        mujoco.mj_setState(env.model, data, state[i], FULL)
        data.qacc_warmstart[:] = 0
        for k in range(1, 6):
            data.ctrl[:] = ctrl[i]
            data.ctrl[:7] = ctrl[i, :7] + (1 - k / 5) * (start[i] - ctrl[i, :7])
            mujoco.mj_step(env.model, data)
        touching += data.ncon
        found = np.empty_like(state[i])
        mujoco.mj_getState(env.model, data, found, FULL)
        assert np.array_equal(found, env.physics.state[i])
    assert touching > 24, "the test must run through contacts"


def test_threads_and_splitting_do_not_change_a_bit():
    env, state = contact_state(7)
    ctrl = np.concatenate([env.controller.q, np.zeros((7, 2))], axis=1)
    results = []
    for threads in (1, 2, 5):
        physics = RolloutPhysics(env.model, num_envs=7, substeps=5, threads=threads)
        physics.state[:] = state
        for _ in range(4):
            assert not physics.step(ctrl).any()
        results.append(physics.state.copy())
    halves = []
    for rows in (slice(0, 3), slice(3, 7)):
        physics = RolloutPhysics(env.model, num_envs=len(state[rows]), substeps=5)
        physics.state[:] = state[rows]
        for _ in range(4):
            physics.step(ctrl[rows])
        halves.append(physics.state.copy())
    assert all(np.array_equal(r, results[0]) for r in [*results, np.concatenate(halves)])


def test_models_with_hidden_state_are_refused():
    with pytest.raises(ConfigError, match="nsensor"):
        compile_model('<mujoco><worldbody><site name="s"/></worldbody><sensor><framepos objtype="site" objname="s"/>'
                      "</sensor></mujoco>")  # fmt: skip


def test_unknown_names_are_answered_with_the_closest():
    for call, near in (
        (lambda: sim.make("pik", 1), "'pick'"),
        (lambda: sim.make("pick", 1, horizn=3), "'horizon'"),
        (lambda: sim.make("pick", 1, control="delta_pos"), "'delta_pose'"),
        (lambda: sim.make("pick", 1).render(0, camera="fornt"), "'front'"),
    ):
        with pytest.raises(ConfigError, match=near):
            call()


def test_training_streams_differ_by_seed_and_are_not_tied_to_n():
    a, b, c = sim.make("reach", 2, seed=0), sim.make("reach", 4, seed=0), sim.make("reach", 2, seed=1)
    assert torch.equal(a.reset()[STATE], sim.make("reach", 2, seed=0).reset()[STATE])
    assert torch.equal(a.episode_seed, episode_seeds("train", 0, 4)[2:]), "the constructor used the first two"
    assert torch.equal(b.episode_seed, episode_seeds("train", 0, 4))
    assert not torch.equal(c.observe()[STATE], b.observe()[STATE][:2])


def test_state_of_another_task_is_refused():
    with pytest.raises(CheckpointError, match="digest"):
        sim.make("reach", 2).load_state_dict(sim.make("push", 2).state_dict())


def test_pick_held_cube_rests_in_the_hand():
    """The grasp neither shakes nor slips: what the servo gains and finger settings in sim/arm.py are for."""
    env = sim.make("pick", 16, lift=10.0)
    expert = env.make_expert()
    obs = env.reset(episode_seeds("test", 1, 16))
    expert.reset(None, episode_seed=env.episode_seed)
    offsets = []
    for t in range(60):
        obs = env.step(expert.act(obs)).obs
        if t >= 35:
            offsets.append(env.layout.unpack(obs[STATE].numpy())["cube_rel"].copy())
    wander = np.abs(np.array(offsets) - offsets[0]).max(axis=(0, 2))
    assert env.layout.unpack(obs[STATE].numpy())["cube"][:, 2].min() > 0.15
    assert np.median(wander) < 2e-3, f"held cubes moved {wander * 1e3} mm in the hand over 1.2 s"


def test_the_engine_has_no_more_threads_than_the_container_has_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for quota, cores in ((float("inf"), 16), (1.5, 2), (0.2, 1), (64.0, 16)):
        monkeypatch.setattr(engine, "cpu_quota", lambda quota=quota: quota)
        assert engine.available_cores() == cores


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("pick", {"hold": 0}, r"task.hold: expected at least 1, found 0"),
        ("pick", {"substeps": 0}, r"task.substeps: expected at least 1, found 0"),
        ("pick", {"timestep": 0.0}, r"task.timestep: expected seconds above 0, found 0.0"),
        ("pick", {"horizon": 0}, r"task.horizon: expected at least 1, found 0"),
        ("pick", {"cube_mass": 0.0}, r"task=pick: MuJoCo cannot build the scene with task.cube_mass=0.0. .*'cube'"),
        ("reach", {"range_x": float("nan")}, r"range of target_x: expected two finite numbers"),
    ],
)  # fmt: skip
def test_a_parameter_that_makes_no_episode_is_named(name, options, said):
    with pytest.raises(ConfigError, match=said):
        sim.make(name, 1, **options)


def test_a_task_without_dense_says_so_at_once():
    class Bare(Reach):
        dense = Task.dense

    for reward in ("dense", "shaped"):
        with pytest.raises(ConfigError, match=rf"task.reward: expected sparse, found {reward}: reach has no method"):
            sim.SimEnv(Bare(), 1, reward=reward)
    sim.SimEnv(Bare(), 1).close()


def test_what_a_caller_does_to_an_observation_stays_with_the_caller():
    env = sim.make("reach", 2)
    step = env.step(torch.zeros(2, 5))
    expected = step.obs[STATE].clone()
    step.obs[STATE].zero_()
    step.obs.pop("task_index")
    env.observe()[STATE].zero_()
    assert torch.equal(env.observe()[STATE], expected) and "task_index" in env.observe()
    first = env.reset()
    expected = first[STATE].clone()
    first[STATE].zero_()
    assert torch.equal(env.observe()[STATE], expected)


def test_a_scene_with_parameters_of_any_type_is_named_where_it_cannot_be_built():
    @dataclasses.dataclass(frozen=True)
    class Own(Reach):
        points: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(3))

        def bodies(self):
            return "<geom"

    with pytest.raises(ConfigError, match=r"task=reach: MuJoCo cannot build the scene with task.points=array"):
        Own().compile()
