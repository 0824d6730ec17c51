"""What `robopolicy deploy` says: limits in force, forecasts, episodes, and shares of all ticks together."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from robopolicy import sim
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.real.deploy.summary import forecast, joint_speeds, limits_in_force, of_episode, report
from robopolicy.real.safety import load_profile


def episode(ticks: int, changed: int, *, success: bool = False, aborted: str = "", **reasons: int) -> Episode:
    named = Counter({k.replace("__", ":"): n for k, n in reasons.items()})
    return Episode(0, success, 10, aborted, "RUN", changed / ticks, 0.0, named, ticks=ticks)


def test_limits_are_named_with_their_digest_and_speeds():
    profile = load_profile("fr3", velocity=1.0, joint_speed=0.5, tcp_speed=0.2)
    text = limits_in_force(profile)
    assert profile.digest in text and "fr3" in text and "0.50 rad/s" in text and "0.20 m/s" in text
    assert "1.31 1.31 1.31 1.31 2.63 2.09 2.63 rad/s" in limits_in_force(load_profile("fr3"))


def test_slower_joints_are_forecast_as_a_slower_tool_is():
    env = sim.make("reach", 1)
    fast = max(env.controller.spec.high[:3]) / env.dt
    assert forecast(env, load_profile("panda", velocity=1.0, tcp_speed=3.0)) == []
    (tool,) = forecast(env, load_profile("panda", velocity=1.0, tcp_speed=fast / 2))
    assert "tcp_speed" in tool
    (joint,) = forecast(env, load_profile("panda", velocity=1.0, tcp_speed=3.0, joint_speed=0.1))
    assert "joint_speed permit 0.10" in joint


def test_joint_speeds_move_the_tool_as_fast_as_asked_for():
    profile = load_profile("panda")
    assert joint_speeds(profile, 0.2) == pytest.approx(joint_speeds(profile, 0.1) * 2)
    assert (joint_speeds(profile, 0.1) > 0.02).any() and np.isfinite(joint_speeds(profile, 0.1)).all()


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (episode(412, 3, success=True), "2 of 5: success, 412 ticks, 3 of them changed; success so far 1 of 2"),
        (episode(38, 38, enable=1, fault__enable=38), "FAULT in its first tick (enable)"),
        (episode(100, 38, fault__tracking_error=30), "FAULT (tracking_error) after 70 ticks"),
        (episode(7, 0, aborted="jerk"), "aborted by the arm (jerk)"),
        (episode(9, 0), "no success"),
    ],
)
def test_an_episode_is_a_line(found, says):
    assert says in of_episode([episode(9, 0), found], 5)


def test_a_dry_run_says_nothing_of_success():
    done = [episode(9, 0), episode(412, 3)]
    assert of_episode(done, 5, dry_run=True) == "episode 2 of 5: dry run, 412 ticks, 3 of them changed"
    assert "FAULT (rate)" in of_episode([episode(9, 0, fault__rate=2)], 5, dry_run=True)
    text = report(done, dry_run=True)
    assert text.startswith("dry run of 2 episodes: the arm did not move, ") and "success" not in text
    assert report(done).startswith("success 0% (0–66) of 2 episodes, ")


def test_shares_are_of_all_ticks_together():
    text = report([episode(38, 38, fault__enable=38), episode(1061, 1, rate=1)])
    assert "changed in 3.5% of 1099 ticks" in text
