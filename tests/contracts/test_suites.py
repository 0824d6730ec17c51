"""The VecEnv contract, held over the suites that are installed."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from robopolicy.config.instantiate import build
from robopolicy.core.errors import ConfigError, RobopolicyError, SpecError
from robopolicy.core.rng import keyed_uniform
from robopolicy.core.types import STATE, Stateful, VecEnv
from robopolicy.envs.perturbations import perturbed
from robopolicy.utils.suite_packages import PACKAGES

# suite: (its config, steps after which the first contact has been made or lost)
TASKS: dict[str, tuple[dict[str, Any], int]] = {
    "metaworld": ({"_target_": "metaworld", "name": "push-v3"}, 40),
    "maniskill": ({"_target_": "maniskill", "name": "StackCube-v1"}, 13),
    "robosuite": ({"_target_": "robosuite", "name": "Lift"}, 19),
    "libero": ({"_target_": "libero", "name": "0", "cameras": []}, 5),
    "pusht": ({"_target_": "gymnasium", "package": "gym_pusht", "name": "gym_pusht/PushT-v0"}, 20),
    "fetch": ({"_target_": "gymnasium", "package": "gymnasium_robotics", "name": "FetchPush-v4"}, 20),
}
SEEDS = torch.tensor([5, 2**40 + 6, 2**41 + 7])  # one of each split


PARAMS = [pytest.param(n, marks=pytest.mark.slow) if n == "libero" else n for n in TASKS]  # it reloads its model


@pytest.fixture(params=PARAMS, scope="module")
def suite(request) -> Iterator[tuple[str, Callable[..., VecEnv], int]]:
    """(name, how to make an env of it, steps)."""
    name = request.param
    installed(name)
    node, steps = TASKS[name]
    made = []

    def make(num_envs: int, **options: Any) -> VecEnv:
        made.append(build({**node, **options}, "task", num_envs=num_envs, seed=0))
        return made[-1]

    yield name, make, steps
    for env in made:
        env.close()


def installed(name: str) -> None:
    """Skip the test where the suite is not."""
    try:
        importlib.metadata.version(PACKAGES[name].distribution)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{PACKAGES[name].distribution} is not installed")


def trajectories(env: VecEnv, seeds: torch.Tensor, steps: int) -> dict[int, torch.Tensor]:
    """{seed: [steps Ds] successors} of the episodes `seeds`, under the expert where there is one, else noise."""
    expert = env.make_expert(expert_noise=0.2) if hasattr(env, "make_expert") else None
    obs = env.reset(seeds)
    if expert is not None:
        expert.reset(None, episode_seed=env.episode_seed)
    age = torch.zeros(env.num_envs, dtype=torch.int64)
    found: dict[int, list[torch.Tensor]] = {int(s): [] for s in seeds}
    low, high = torch.tensor(env.spec.action.low), torch.tensor(env.spec.action.high)
    while any(len(rows) < steps for rows in found.values()):
        now = env.episode_seed.tolist()
        if expert is not None:
            action = expert.act(obs)
        else:
            action = low + (high - low) * keyed_uniform(env.episode_seed, age, (len(low),), stream=1)
        step = env.step(action)
        for i, seed in enumerate(now):
            if seed in found and len(found[seed]) < steps:
                assert not step.terminated[i], "too short an episode for this test"
                found[seed].append(step.next_obs[STATE][i])
        age = torch.where(step.ended, 0, age + 1)
        if expert is not None:
            expert.reset(step.ended, episode_seed=env.episode_seed)
        obs = step.obs
    return {seed: torch.stack(rows) for seed, rows in found.items()}


def test_follows_the_protocols_and_its_own_spec(suite):
    _, make, _ = suite
    env = make(2)
    assert isinstance(env, VecEnv) and isinstance(env, Stateful)
    obs = env.reset(SEEDS[:2])
    assert env.episode_seed.tolist() == SEEDS[:2].tolist()
    step = env.step(torch.zeros(2, env.spec.action.dim))
    for found in (obs, step.obs):
        assert found.keys() == env.spec.observation.keys()
        for key, feature in env.spec.observation.items():
            assert found[key].shape == (2, *feature.shape) and found[key].dtype == feature.torch_dtype, key
    assert step.obs is step.next_obs and not step.ended.any()
    assert not torch.equal(obs[STATE][0], obs[STATE][1]), "two episodes begin alike"
    assert env.spec.tasks[0] and env.spec.dt > 0
    wild = torch.full((2, env.spec.action.dim), 1e3)
    assert torch.equal(env.step(wild).executed, torch.tensor(env.spec.action.high).expand(2, -1))
    wild[1, 0] = float("nan")
    with pytest.raises(SpecError, match=env.spec.action.names[0]):
        env.step(wild)


def test_an_episode_is_a_function_of_its_seed_whatever_n_and_what_came_before(suite):
    """The third episode begins after the first in the env of two, and alone in the other."""
    _, make, steps = suite
    many = trajectories(make(2, horizon=steps), SEEDS, steps)
    alone = trajectories(make(1, horizon=steps), SEEDS[2:], steps)
    last = int(SEEDS[2])
    assert torch.equal(many[last], alone[last])
    assert not torch.equal(many[last], many[int(SEEDS[0])])


def test_time_limits_are_no_terminations_and_next_obs_is_the_true_successor(suite):
    _, make, _ = suite
    short, long = make(2, horizon=3), make(2, horizon=9)
    assert short.spec.digest != long.spec.digest and short.spec.horizon == 3
    seeds = torch.cat([SEEDS, SEEDS[:1] + 1])
    first = make(2).reset(seeds[2:])
    short.reset(seeds)
    long.reset(seeds)
    action = 0.5 * torch.tensor(short.spec.action.low) + 0.5 * torch.tensor(short.spec.action.high)
    for t in range(3):
        a, b = short.step(action.expand(2, -1)), long.step(action.expand(2, -1))
        assert torch.equal(a.next_obs[STATE], b.next_obs[STATE]), "the successor is the state before the reset"
        assert a.truncated.all() == (t == 2) and not a.terminated.any() and not b.ended.any()
    assert a.obs is not a.next_obs and short.episode_seed.tolist() == seeds[2:].tolist()
    assert torch.equal(a.obs[STATE], first[STATE]), "obs starts the next episode"


def test_a_fraction_is_no_success(suite):
    name, make, _ = suite
    env = make(1)
    env.reset(SEEDS)
    one = env.env.envs[0].unwrapped
    if name in ("robosuite", "libero"):
        one.inner.check_success = one.inner._check_success = lambda: 0.25
    else:
        told = one if name in ("pusht", "fetch") else one.inner
        step = told.step

        def partly(action):
            *rest, info = step(action)
            key = "success" if "success" in info else "is_success"
            return *rest, {**info, key: torch.tensor([0.25]) if name == "maniskill" else 0.25}

        told.step = partly
    with pytest.raises(RobopolicyError, match="success"):
        env.step(torch.zeros(1, env.spec.action.dim))


# (config, options, which elements are differences of which)
DIFFERENCES = [
    (
        "metaworld",
        {"name": "push-v3", "relative": True},
        {
            "hand_to_object": ("object", "hand"),
            "object_to_goal": ("goal", "object"),
            "hand_step": ("hand", "before_hand"),
            "object_step": ("object", "before_object"),
        },
    ),
    (
        "maniskill",
        {"name": "StackCube-v1"},
        {"tcp_to_cube": ("cube", "tcp"), "tcp_to_base": ("base", "tcp"), "cube_to_base": ("base", "cube")},
    ),
    ("maniskill", {"name": "PickCube-v1"}, {"tcp_to_cube": ("cube", "tcp"), "cube_to_goal": ("goal", "cube")}),
    ("robosuite", {"name": "Lift"}, {"object_to_tool": ("tool", "object")}),
    ("robosuite", {"name": "Can"}, {}),
    ("robosuite", {"name": "Can", "relative": True}, {"tool_to_object": ("object", "tool")}),
]


def test_every_element_of_the_state_has_a_name_of_its_own(suite):
    _, make, _ = suite
    feature = make(1).spec.observation[STATE]
    assert feature.names is not None and len(set(feature.names)) == len(feature.names) == feature.shape[0]


@pytest.mark.parametrize(("name", "options", "differences"), DIFFERENCES)
def test_elements_of_the_state_have_the_names_of_what_they_are(name, options, differences):
    env, state = a_while(name, **options)
    names = env.spec.observation[STATE].names or ()
    assert len(set(names)) == len(names) == state.shape[1]
    for element, (end, start) in differences.items():
        for axis in "xyz":
            found, to, of = (state[:, names.index(f"{k}_{axis}")] for k in (element, end, start))
            torch.testing.assert_close(found, to - of, atol=1e-5, rtol=0)
            assert bool((found != 0).any()), element


def test_robosuites_can_is_seen_in_the_tools_frame():
    env, state = a_while("robosuite", name="Can")
    names = env.spec.observation[STATE].names or ()
    tool, turned, can, seen = (
        state[:, [names.index(f"{k}{axis}") for axis in axes]].double()
        for k, axes in (("tool_", "xyz"), ("tool_q", "xyzw"), ("object_", "xyz"), ("object_in_tool_", "xyz"))
    )
    scipy = pytest.importorskip("scipy.spatial.transform")
    expected = scipy.Rotation.from_quat(turned.numpy()).inv().apply((can - tool).numpy())
    # the suite computes its own from the tool's pose of the physics step before
    torch.testing.assert_close(seen, torch.from_numpy(expected), atol=5e-3, rtol=0)


def a_while(suite: str, /, **options: Any) -> tuple[VecEnv, torch.Tensor]:
    """An env of a suite, and [steps Ds] of its expert's episode."""
    installed(suite)
    node, steps = TASKS[suite]
    env = build({**node, **options}, "task", num_envs=1, seed=0)
    try:
        return env, trajectories(env, SEEDS[:1], steps)[int(SEEDS[0])]
    finally:
        env.close()


def test_metaworlds_own_numbers_stay_what_they_are_with_the_relative_ones_behind():
    metaworld = pytest.importorskip("robopolicy.sim.suites.metaworld")
    plain, more = metaworld.make("push-v3", 2), metaworld.make("push-v3", 2, relative=True)
    assert torch.equal(plain.reset(SEEDS[:2])[STATE], more.reset(SEEDS[:2])[STATE][:, :39])
    assert plain.spec.digest != more.spec.digest
    expert = more.make_expert()
    assert torch.equal(expert.act(more.reset(SEEDS[:2])), plain.make_expert().act(plain.reset(SEEDS[:2])))


@pytest.mark.parametrize("name", ["Lift", "Can", "NutAssemblySquare"])
def test_robosuites_own_numbers_stay_what_they_are_with_the_relative_ones_behind(name):
    installed("robosuite")
    node = {**TASKS["robosuite"][0], "name": name, "horizon": 4}
    plain, more = (build({**node, **o}, "task", num_envs=1, seed=0) for o in ({}, {"relative": True}))
    own = plain.spec.observation[STATE].shape[0]
    names = more.spec.observation[STATE].names or ()
    assert names[:own] == plain.spec.observation[STATE].names and plain.spec.digest != more.spec.digest
    moved = [i for i, n in enumerate(names) if "_step_" in n]
    of = [names.index(names[i].replace("_step", "")) for i in moved]
    first = was = more.reset(SEEDS[:2])[STATE]
    assert torch.equal(plain.reset(SEEDS[:2])[STATE], was[:, :own]) and not was[:, moved].any()
    for _ in range(4):
        action = torch.full((1, 7), 0.3)
        a, b = plain.step(action), more.step(action)
        assert torch.equal(a.obs[STATE], b.obs[STATE][:, :own])
        found = b.next_obs[STATE]
        torch.testing.assert_close(found[:, moved], (found - was)[:, of], atol=1e-6, rtol=0)
        was = found
    assert b.ended.all() and found[:, moved].all(), "all of them moved"
    assert not b.obs[STATE][:, moved].any(), "an episode begins at rest"
    more.step(action)
    assert torch.equal(more.reset(SEEDS[:2])[STATE], first), "and so it does amid another"
    for env in (plain, more):
        env.close()


@pytest.mark.parametrize("names", [("cos", "sin"), ("cos", "sin", "sin")])
def test_names_that_are_not_one_for_each_element_are_refused(names):
    from robopolicy.sim.gymnasium.adapter import adapt

    gymnasium = pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match=f"for each of the 3 elements .*, found {len(names)}, of which 2 differ"):
        adapt(gymnasium.make_vec("Pendulum-v1", num_envs=1), names=names)


def test_maniskills_friction_and_mass_can_be_changed_and_episodes_begin_alike():
    pytest.importorskip("mani_skill")
    node = {"_target_": "maniskill", "name": "PickCube-v1"}
    plain = build(node, "task", num_envs=1, seed=0)
    found, first = {}, plain.reset(SEEDS[:1])[STATE]
    for what, value in (("mass", 4.0), ("friction", 0.5), ("friction", 1.0)):
        env = perturbed(node, what, value, num_envs=1)
        for _ in range(2):  # the second reset changes no more than the first
            assert torch.equal(env.reset(SEEDS[:1])[STATE], first)
        scene = env.env.envs[0].unwrapped.inner.unwrapped.scene
        cube = next(c for c in scene.actors["cube"]._objs[0].components if hasattr(c, "mass"))
        finger = next(k for k in scene.articulations["panda"].links if k.name == "panda_leftfinger")._objs[0]
        materials = [body.collision_shapes[0].physical_material for body in (cube, finger)]
        found[what, value] = (cube.mass, cube.inertia[0], *(m.dynamic_friction for m in materials))
        assert (env.spec.digest == plain.spec.digest) == (value == 1.0)
        env.close()
    mass, inertia, cube, finger = found["friction", 1.0]
    assert found["mass", 4.0] == pytest.approx((4 * mass, 4 * inertia, cube, finger))
    assert found["friction", 0.5] == pytest.approx((mass, inertia, cube / 2, finger / 2))
    plain.close()
