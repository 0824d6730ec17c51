"""Text of `robopolicy deploy`: limits in force, the speed that they cost, and how episodes ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from robopolicy.evaluation.statistics import wilson
from robopolicy.real.deploy.simulated_arm import Episode
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.kinematics import pose
from robopolicy.real.safety.profile import Profile
from robopolicy.sim.env import SimEnv


def limits_in_force(profile: Profile) -> str:
    """Name the limits, with their digest and their speeds."""
    speeds = [f"{v:.2f}" for v in profile.velocity]
    joints = speeds[0] if len(set(speeds)) == 1 else " ".join(speeds)
    title = f" ({title})" if (title := profile.data.get("title", "")) else ""
    return (
        f"limits {profile.robot}{title}, digest {profile.digest}: joints at most {joints} rad/s, the tool "
        f"{profile.settings.tcp_speed:.2f} m/s"
    )


def forecast(env: SimEnv, profile: Profile) -> list[str]:
    """Say where the limits are slower than the policy's fastest actions, a sentence each."""
    if env.spec_is_joint:
        return []
    found, top = list[str](), float(max(env.controller.spec.high[:3]) / env.dt)  # m/s a direction
    slower = "it will be slower than trained, and may run out of its horizon"
    fast = f"the policy's actions go up to {top:.2f} m/s a direction"
    if top > (limit := profile.settings.tcp_speed):
        found.append(f"{fast}, tcp_speed permits {limit:.2f}: {slower}")
    need = joint_speeds(profile, top)
    k = int(np.argmax(need / profile.velocity))
    if need[k] > profile.velocity[k]:
        found.append(
            f"{fast}: at the home pose that takes {need[k]:.2f} rad/s of {profile.joints[k]}, velocity and joint_speed "
            f"permit {profile.velocity[k]:.2f}: {slower}"
        )
    return found


def joint_speeds(profile: Profile, speed: float) -> Array:
    """Return [n] rad/s that the joints need at the home pose for `speed` m/s of the tool along any one axis."""
    home = np.array([profile.data["home"]], dtype=np.float64)
    links = np.array([len(profile.joints)])
    jacobian = pose(profile.chain, home, links, profile.chain.tcp[None]).jacobian[0].T  # [6 n]
    return np.asarray(np.abs(np.linalg.pinv(jacobian)[:, :3]).max(axis=1) * speed)


def of_episode(done: Sequence[Episode], count: int, *, dry_run: bool = False) -> str:
    """Say in a line how the newest of `count` episodes ended, and how many succeeded so far.

    Args:
        dry_run: the arm did not move, so success is left out.
    """
    episode = done[-1]
    faults = {r.removeprefix("fault:"): n for r, n in episode.reasons.items() if r.startswith("fault:")}
    if episode.aborted:
        how = f"aborted by the arm ({episode.aborted})"
    elif faults:
        why, ticks = next(iter(faults.items()))
        first = episode.ticks - ticks <= 0
        how = f"FAULT in its first tick ({why})" if first else f"FAULT ({why}) after {episode.ticks - ticks} ticks"
    elif dry_run:
        how = "dry run"
    else:
        how = "success" if episode.success else "no success"
    changed = round(episode.changed * episode.ticks)
    so_far = f"; success so far {sum(e.success for e in done)} of {len(done)}" if len(done) > 1 and not dry_run else ""
    return f"episode {len(done)} of {count}: {how}, {episode.ticks} ticks, {changed} of them changed{so_far}"


def report(done: list[Episode], *, dry_run: bool = False) -> str:
    """Summarise episodes in a few lines; shares are of all ticks and control steps together.

    Args:
        dry_run: the arm did not move, so success is left out.
    """
    rate = wilson(sum(e.success for e in done), len(done))
    why: Counter[str] = sum((e.reasons for e in done), Counter())
    aborts = Counter(e.aborted for e in done if e.aborted)
    steps, ticks = sum(e.steps for e in done) or 1, sum(e.ticks for e in done) or 1
    helped = [e for e in done if e.helped]
    share = sum(e.helped * e.steps for e in helped) / (sum(e.steps for e in helped) or 1)
    human = f"a human drove in {len(helped)} episodes, {100 * share:.0f}% of their control steps\n"
    success = f"success {100 * rate.value:.0f}% ({100 * rate.low:.0f}–{100 * rate.high:.0f}) of {len(done)} episodes"
    stood = f"dry run of {len(done)} episodes: the arm did not move"
    return (
        f"{stood if dry_run else success}, aborted by the arm: {dict(aborts) or 'never'}\n"
        f"{human if helped else ''}"
        f"control steps slower than asked for: {100 * sum(e.paced * e.steps for e in done) / steps:.1f}%\n"
        f"commands changed in {100 * sum(e.changed * e.ticks for e in done) / ticks:.1f}% of {ticks} ticks; reasons, "
        f"in ticks: {dict(why.most_common())}"
    )
