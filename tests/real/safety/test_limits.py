"""What the limiter promises: whatever comes in, what goes out stays inside the limits, and can always stop."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from robopolicy.real.safety import CommandLimiter, SafetyError, load_profile, profile_names
from robopolicy.real.safety.audit import joint_violations, space_violations
from robopolicy.real.safety.body import Body
from robopolicy.real.safety.joint_space import joint_limits
from robopolicy.real.safety.motion import HISTORY
from robopolicy.real.safety.path import Path
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.settings import Box, Plane
from robopolicy.real.safety.space import space_limits
from robopolicy.real.safety.velocity_bounds import VelocityBounds
from scripts.safety_targets import forbidden, profile_for
from tests.real.adversary import play, targets

DT = 0.004
SCENE = {"planes": (Plane((0.0, 0.0, 1.0), 0.0),), "keep_out": (Box((0.3, 0.35, 0.0), (0.6, 0.6, 0.4)),)}


def home(profile: Profile) -> np.ndarray:
    return np.array(profile.data["home"], dtype=np.float64)


def ready(profile: Profile, **options) -> CommandLimiter:
    limiter = CommandLimiter(profile, **options)
    limiter.start(np.tile(home(profile), (limiter.num_arms, 1)))
    return limiter


def total(found: dict[str, int]) -> int:
    return sum(found.values())


def test_importable_without_torch_ros_and_mujoco():
    code = "import robopolicy.real.safety, sys; print({'torch', 'rclpy', 'mujoco'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.mark.parametrize("robot", profile_names())
def test_no_input_sequence_breaks_a_limit(robot):
    profile = load_profile(robot, tcp_speed=0.8, **SCENE)
    limiter = ready(profile, num_arms=8)
    with np.errstate(all="ignore"):
        commands = play(limiter, targets(profile, 8, 160, seed=1))
    assert np.isfinite(commands).all()
    assert total(joint_violations(commands, profile, DT)) == 0
    assert total(space_violations(commands, profile, DT, poses=60)) == 0
    assert np.ptp(commands, axis=0).max() > 0.1, "the arms moved at all"


# One limit alone keeps the arm from harm: (limit, robot, settings, joint that is driven, by how much)
NEEDED = [
    ("tcp_speed", "panda", {}, 0, 1.5),
    ("workspace", "panda", {"tcp_speed": 1.0, "workspace": Box((0.4, -0.1, 0.1), (0.6, 0.1, 0.3))}, 0, 1.0),
    ("planes", "panda", {"tcp_speed": 1.0, "planes": SCENE["planes"], "workspace": None}, 1, 1.0),
    ("keep_out", "panda", {"tcp_speed": 1.0, "keep_out": SCENE["keep_out"]}, 0, 1.2),
    ("self_collision", "panda", {"tcp_speed": 1.0, "self_distance": 0.12, "condition": 1e3}, 3, -0.6),
    ("singularity", "panda", {"tcp_speed": 2.0, "condition": 12.0}, 3, 1.8),
    (
        "edge_velocity", "fr3",
        {"tcp_speed": 3.0, "velocity": 1.0, "acceleration": 1.0, "jerk": 1.0, "joint_margin": 0.0, "condition": 1e5},
        1, 1.4,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "robot", "settings", "joint", "by"), NEEDED, ids=[n[0] for n in NEEDED])
def test_each_limit_is_needed(name, robot, settings, joint, by):
    """With the limit: no violation by the independent checker. Without it: some."""
    profile = load_profile(robot, **settings)
    every = (*joint_limits(profile), *space_limits(Body(profile)))
    assert name in {limit.name for limit in every}
    found = {}
    for guarded in (True, False):
        limiter = ready(profile, limits=[limit for limit in every if guarded or limit.name != name])
        target = home(profile)
        target[joint] += by
        commands = play(limiter, [target[None]] * 260)
        counted = joint_violations(commands, profile, DT) | space_violations(commands, profile, DT, poses=260)
        found[guarded] = counted[name]
    assert found[True] == 0 and found[False] > 0, found


def test_volumes_come_from_plain_data():
    """As YAML and JSON have them: from `deploy safety=…` and the ROS 2 node's options."""
    plain = {
        "workspace": {"low": [0.2, -0.4, 0], "high": [0.7, 0.4, 0.6]},
        "planes": [{"normal": [0, 0, 1], "offset": -0.02}],
        "keep_out": [{"low": [1, 1, 0], "high": [2, 2, 1]}],
    }
    settings = load_profile("panda", **plain).settings
    assert settings.workspace == Box((0.2, -0.4, 0.0), (0.7, 0.4, 0.6))
    assert settings.planes == (Plane((0.0, 0.0, 1.0), -0.02),)
    assert settings.keep_out == (Box((1.0, 1.0, 0.0), (2.0, 2.0, 1.0)),)
    assert "workspace" in {limit.name for limit in space_limits(Body(load_profile("panda", **plain)))}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workspace": {"low": [0, 0, 0]}}, r"safety\.workspace.*\n.*high: Field required"),
        ({"workspace": {"low": [0, 0], "high": [1, 1, 1]}}, r"safety\.workspace.*\n.*low\.2: Field required"),
        ({"planes": {"normal": [0, 0, 1], "offset": 0}}, r"safety\.planes.*\n.*array"),
        ({"planes": [{"normal": [0, 0, 2], "offset": 0}]}, "normal must have length 1"),
        ({"keep_out": [{"low": [0, 0, 0], "high": [1, 1, "x"]}]}, r"safety\.keep_out.*\n.*0\.high\.2: .*'x'"),
        ({"tcp_speed": "fast"}, "tcp_speed: expected a number"),
        ({"tcp_sped": 0.1}, "no such safety setting: 'tcp_sped'"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, message):
    with pytest.raises(SafetyError, match=message):
        load_profile("panda", **settings)


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("joint_position", [5.0, 0.0]),
        ("joint_velocity", [0.01, 0.01]),
        ("joint_acceleration", [0.0, 1.3e-4]),
        ("joint_jerk", [0.0, 5.5e-5]),
        ("finite", [np.nan, 0.0]),
    ],
)
def test_joint_limits_see_what_breaks_them(name, step):
    """One step of a history: where to, and how fast. Each limit alone must object."""
    profile = load_profile("panda")
    rest = np.tile(home(profile), (HISTORY, 1))[None]
    command = home(profile)[None].copy()
    if name == "joint_velocity":  # already moving at 2.5 rad/s
        rest = rest + np.arange(HISTORY)[None, :, None] * np.eye(7)[0] * step[0]
        command = rest[:, -1] + np.eye(7)[0] * step[1]
    else:
        command[0, 0] += step[0] + step[1]
    with np.errstate(all="ignore"):
        limit = next(limit for limit in joint_limits(profile) if limit.name == name)
        if name == "finite":
            broken = np.concatenate([rest, np.full((1, 9, 7), np.nan)], axis=1)
            path = Path(broken, np.array([8]), Body(profile), DT)
        else:
            path = Path.of(rest, command, Body(profile), DT)
    assert not limit.margin(path)[0] >= 0
    assert (
        limit.margin(Path.of(np.tile(home(profile), (1, HISTORY, 1)), home(profile)[None], Body(profile), DT))[0] >= 0
    )


def test_commands_inside_the_limits_pass_bit_for_bit():
    profile = load_profile("panda")
    limiter = ready(profile)
    t = DT * np.arange(400)[:, None]
    stream = home(profile) + 0.03 * (1 - np.cos(2.0 * t)) * (1 - np.cos(t)) * np.sin(np.arange(7) + 1.0)
    verdicts = [limiter.filter(target[None]) for target in stream]
    assert not any(v.changed.any() for v in verdicts)
    assert all(np.array_equal(v.command[0], target) for v, target in zip(verdicts, stream, strict=True))


def test_it_arrives_where_it_is_sent_and_stays():
    profile = load_profile("panda", tcp_speed=1.0)
    limiter = ready(profile)
    target = home(profile) + 0.2 * np.array([1, -1, 1, 1, -1, 1, -1])
    for _ in range(400):
        verdict = limiter.filter(target[None])
    assert np.array_equal(verdict.command[0], target) and limiter.at_rest[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308])
def test_one_unreadable_number_brakes_in_the_same_tick(value):
    profile = load_profile("panda")
    limiter = ready(profile)
    target = home(profile) + 0.2
    for _ in range(30):
        limiter.filter(target[None])
    stop = limiter.stop_ahead()
    bad = target.copy()
    bad[3] = value
    verdict = limiter.filter(bad[None])
    assert verdict.stopping[0] and np.array_equal(verdict.command, stop[:, 0])
    assert verdict.reasons[0, limiter.reasons.index("input")]


def test_the_stop_is_as_short_as_physics_lets_it_be():
    profile = load_profile("panda", tcp_speed=3.0)
    limiter = ready(profile)
    target = home(profile) + np.array([2.0, 0, 0, 0, 0, 0, -2.0])
    for _ in range(120):
        limiter.filter(target[None])
    v, acc, jerk = profile.velocity, profile.acceleration, profile.jerk
    speed = np.abs(limiter.c[0, -1] - limiter.c[0, -2]) / DT
    assert speed[0] > 0.9 * v[0]
    bound = (speed / acc + 2.5 * acc / jerk).max()
    commands = [limiter.filter(target[None], hold=np.array([True])).command[0] for _ in range(int(bound / DT) + 2)]
    assert np.abs(np.diff(commands, axis=0))[-1].max() == 0.0
    assert total(joint_violations(np.array(commands)[:, None], profile, DT)) == 0


class Broken(RuntimeError):
    pass


def explode(*_):
    raise Broken("no solver today")


def test_a_limiter_that_starts_again_is_like_a_new_one():
    """Nothing is left of what it did before, or a recording that begins there could not be reproduced."""
    profile = load_profile("panda", workspace=Box((0.4, -0.05, 0.1), (0.6, 0.05, 0.3)))
    used, new = ready(profile), ready(profile)
    for _ in range(120):
        used.filter(home(profile)[None] + np.array([0.5, 0.3, 0, 0, 0, 0, 0]))
    assert used.search.near and used.search.first
    used.start(home(profile)[None])
    for name, value in new.state_dict().items():
        if name not in ("last", "stop"):  # of which nothing is read before it is written
            assert np.array_equal(used.state_dict()[name], value), name


@pytest.mark.parametrize("kind", ["exception", "limit raises", "late", "infeasible", "not a number", "lies"])
def test_trouble_inside_brakes_within_the_tick(kind):
    """Injected after a run-up: the next command is the stored stop's."""
    profile, now = load_profile("panda", workspace=Box((0.4, -0.05, 0.1), (0.6, 0.05, 0.3))), [0.0]
    limiter = ready(profile, clock=lambda: now[0])
    target = home(profile) + np.array([0.5, 0, 0, 0, 0, 0, 0])
    for _ in range(100):
        if limiter.search.near:  # the wall makes itself felt
            break
        limiter.filter(target[None])
    stop = limiter.stop_ahead()[:, 0]
    if kind == "exception":
        limiter.search.projection = explode
    elif kind == "limit raises":
        limits = [type("Bad", (), {"name": "bad", "margin": explode, "rows": explode})()]
        limiter.use(profile, limits)
    elif kind == "late":
        limiter.clock = lambda: now.__setitem__(0, now[0] + 1.0) or now[0]
    elif kind == "infeasible":
        limiter.search.projection = lambda *_: None
    elif kind == "not a number":
        limiter.search.projection = lambda wish, *_: np.full_like(wish, np.nan)
    else:
        limiter.search.projection = lambda wish, *_: wish + 10.0
    before = limiter.c[0].copy()
    verdict = limiter.filter(target[None])
    assert verdict.stopping[0] and np.array_equal(verdict.command, stop)
    published = [*before, verdict.command[0]]
    while not limiter.at_rest[0]:  # and all the way to rest it keeps its distance to the wall
        published.append(limiter.filter(target[None]).command[0])
        assert len(published) < 400
    commands = np.array(published)[:, None]
    assert sum(joint_violations(commands, profile, DT).values()) == 0
    assert sum(space_violations(commands, profile, DT, poses=200, seed=0).values()) == 0


def test_the_post_check_stands_alone(monkeypatch):
    """Certificates that approve of everything: what is published still keeps the joint limits."""
    profile = load_profile("panda")
    yes = type("Yes", (), {"name": "yes", "margin": lambda self, path: np.array([0.0]), "rows": lambda *_: None})()
    limiter = ready(profile, limits=[yes])
    limiter.start(home(profile)[None])
    far = home(profile)[None] + 0.5
    far = VelocityBounds(np.full((1, 7), -1e3), np.full((1, 7), 1e3), np.full((1, 7), 0.5 / DT), np.array([True]), far)
    monkeypatch.setattr("robopolicy.real.safety.safe_command_search.velocity_bounds", lambda *_: far)
    verdict = limiter.filter(home(profile)[None] + 0.5)
    assert verdict.stopping[0] and verdict.reasons[0, limiter.reasons.index("post_check")]


def test_an_arm_that_stands_wrong_is_refused_with_the_limit_named():
    limiter = CommandLimiter(load_profile("panda", workspace=Box((0.0, 0.5, 0.0), (0.1, 0.6, 0.1))))
    with pytest.raises(SafetyError, match="workspace"):
        limiter.start(home(limiter.profile)[None])
    with pytest.raises(SafetyError, match="start"):
        limiter.filter(home(limiter.profile)[None])
    with pytest.raises(SafetyError, match="finite joint angles"):
        limiter.start(np.full((1, 7), np.nan))


def test_batched_arms_do_not_feel_each_other():
    profile = load_profile("panda", **SCENE)
    stream = list(targets(profile, 3, 40, seed=5))
    with np.errstate(all="ignore"):
        together = play(ready(profile, num_arms=3, projection=None), stream)
        for arm in range(3):
            alone = play(ready(profile, projection=None), [t[arm : arm + 1] for t in stream])
            assert np.array_equal(alone[:, 0], together[:, arm]), "bit for bit: resume and N do not matter"


@pytest.mark.parametrize("kind", ["wall", "self", "singular"])
def test_forbidden_targets_are_kept_away_from_and_the_limit_is_what_does_it(kind):
    """scripts/safety_targets.py in small; without the limits in space arms break the one that the targets are for."""
    profile = profile_for("panda", kind)
    goals = forbidden(profile, kind, 12, seed=1)
    counts = []
    for limits in (None, joint_limits(profile)):
        limiter = ready(profile, num_arms=len(goals), limits=limits)
        commands = play(limiter, [goals] * 400)
        counts.append(space_violations(commands, profile, DT, poses=600))
        assert np.abs(commands[-1] - commands[0]).max(axis=1).min() > 0.01, "every arm set out"
    assert total(counts[0]) == 0
    assert counts[1][{"wall": "workspace", "self": "self_collision", "singular": "singularity"}[kind]] > 10
