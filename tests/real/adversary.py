"""Targets that no good policy sends, for tests that count violations."""

from __future__ import annotations

import numpy as np

from robopolicy.real.safety import CommandLimiter
from robopolicy.real.safety.profile import Profile


def targets(profile: Profile, arms: int, ticks: int, seed: int = 0):
    """[N n] a tick: every arm changes at random between steps, bang-bang, noise, drift and unreadable numbers."""
    rng = np.random.default_rng(seed)
    n, home = len(profile.joints), np.array(profile.data["home"])
    low, high = profile.low - 0.5, profile.high + 0.5
    kind, goal = np.zeros(arms, dtype=int), np.tile(home, (arms, 1))
    speed, drift = np.zeros((arms, n)), np.tile(home, (arms, 1))
    for _ in range(ticks):
        new = rng.random(arms) < 0.02
        kind = np.where(new, rng.integers(0, 6, arms), kind)
        far = rng.uniform(low, high, (arms, n))
        goal = np.where(
            new[:, None], np.where(rng.random((arms, 1)) < 0.4, home + rng.normal(0, 0.3, (arms, n)), far), goal
        )
        speed = np.where(new[:, None], rng.normal(0, 1.0, (arms, n)), speed)
        drift = np.where(new[:, None], goal, drift + 0.004 * speed)
        bang = np.where(rng.random((arms, n)) < 0.5, low, high)
        choices = [goal, bang, goal + rng.normal(0, 0.2, (arms, n)), drift, home + 0 * goal]
        out = np.select([(kind == k)[:, None] for k in range(5)], choices, default=0.0)
        bad = kind == 5
        odd = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0], (arms, n))
        out = np.where(bad[:, None] & (rng.random((arms, n)) < 0.3), odd, np.where(bad[:, None], goal, out))
        yield out


def play(limiter: CommandLimiter, stream) -> np.ndarray:
    """Published commands [T N n], the rest before them included. An exception inside brakes, and is a bug: it fails."""
    out = list(limiter.c.transpose(1, 0, 2)[-4:])
    for target in stream:
        verdict = limiter.filter(target)
        assert not verdict.error, verdict.error
        out.append(verdict.command)
    return np.array(out)
