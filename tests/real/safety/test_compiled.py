"""The compiled certificate and proposals decide as plain NumPy does."""

from __future__ import annotations

import numpy as np
import pytest

from robopolicy.real.safety import CommandLimiter, load_profile, profile_names
from robopolicy.real.safety.joint_space import joint_limits
from robopolicy.real.safety.motion import HISTORY
from robopolicy.real.safety.path import Path
from robopolicy.real.safety.settings import Box, Plane
from robopolicy.real.safety.space import space_limits
from tests.real import plain
from tests.real.adversary import targets

DT = 0.004
SCENE = {
    "planes": (Plane((0.0, 0.0, 1.0), 0.0), Plane((0.0, 0.8, 0.6), -0.5)), "workspace": Box((-0.8,) * 3, (0.8,) * 3),
    "keep_out": (Box((0.3, 0.35, 0.0), (0.6, 0.6, 0.4)), Box((-0.6, -0.6, 0.0), (-0.3, -0.35, 0.4))),
}  # fmt: skip


@pytest.mark.parametrize("robot", profile_names())
def test_margins_are_those_of_plain_numpy(robot):
    """Random histories and commands, inside the limits and far outside, several arms at a time."""
    profile = load_profile(robot, tcp_speed=0.8, **SCENE)
    body = CommandLimiter(profile).body
    limits = (*joint_limits(profile), *space_limits(body))
    rng, n, signs = np.random.default_rng(3), len(profile.joints), set()
    for size in np.geomspace(1e-3, 1.5, 10):
        q = rng.uniform(profile.low, profile.high, (3, n))
        v, a = size * rng.uniform(-1, 1, (2, 3, n)) * [[[1.0]], [[10.0]]] * profile.velocity
        t = DT * np.arange(1 - HISTORY, 1)[:, None]
        history = q[:, None] + v[:, None] * t + 0.5 * a[:, None] * t**2
        command = history[:, -1] + DT * v + rng.normal(0, 1e-5 * size, (3, n))
        path = Path.of(history, command, body, DT)
        ours = {limit.name: limit.margin(path) for limit in limits}
        for arm in range(3):
            theirs = plain.margins(history[arm], command[arm], profile, DT)
            alone = plain.stop(history[arm], command[arm], profile, DT)
            np.testing.assert_allclose(path.c[arm, : len(alone)], alone, rtol=0, atol=1e-12)
            assert np.array_equal(
                path.c[arm, len(alone) :], np.repeat(alone[-1:], path.c.shape[1] - len(alone), axis=0)
            )
            assert theirs.keys() == ours.keys()
            for name, value in theirs.items():
                signs.add((name, value >= 0))
                if name == "singularity" and value >= 0 and ours[name][arm] == np.inf:
                    continue  # certain without its value
                scale = max(1.0, abs(value))
                assert abs(ours[name][arm] - value) <= 1e-12 * scale, (name, ours[name][arm], value)
    assert {s for n, s in signs if n != "finite"} == {True, False}


def test_decisions_are_those_of_plain_numpy():
    """Along an adversarial motion, candidates that pass and that fail: the same verdict, limit by limit."""
    profile = load_profile("panda", tcp_speed=0.8, **SCENE)
    limiter = CommandLimiter(profile)
    limiter.start(np.array(profile.data["home"])[None])
    seen = {True: 0, False: 0}
    for k, target in enumerate(targets(profile, 1, 120, seed=11)):
        if k % 4 == 0 and np.isfinite(target).all() and np.abs(target).max() < 10:
            for part in (0.002, 0.02, 0.2):
                command = limiter.c[:, -1] + part * (target - limiter.c[:, -1])
                path = Path.of(limiter.c, command, limiter.body, DT)
                theirs = plain.margins(limiter.c[0], command[0], profile, DT)
                for limit in limiter.limits:
                    fine = bool(limit.margin(path)[0] >= 0)
                    assert fine == (theirs[limit.name] >= 0), limit.name
                    seen[fine] += 1
        limiter.filter(target)
    assert min(seen.values()) > 20
