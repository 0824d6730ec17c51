"""Largest joint speeds of recordings beside their limits, and the ticks that the limits changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import refusing
from robopolicy.real.recording.recording import Recording, read
from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.profile_data import check_data
from robopolicy.real.safety.settings import settings_of


class EpisodeSpeeds(NamedTuple):
    """Summarise the ticks and joint speeds of a recorded episode."""

    name: str
    ticks: int
    changed: int  # ticks in which the command was not the target
    reasons: Counter[str]  # ticks, by reason
    joints: tuple[str, ...]
    limit: Array  # [n] rad/s, at activation
    commanded: Array  # [n] rad/s, largest; of control points, which bound the spline's
    measured: Array  # [n] rad/s, largest that the driver reported; NaN: it reported none

    def __str__(self) -> str:
        why = ", ".join(f"{reason} {n}" for reason, n in self.reasons.most_common())
        return f"{self.name}: {self.ticks} ticks, {self.changed} changed{f'; reasons, in ticks: {why}' if why else ''}"


def episode_of(recording: Recording) -> EpisodeSpeeds | None:
    """Summarise a recording; None where no tick was recorded.

    Raises:
        DataError: it holds values that cannot be used. SafetyError: limits that are none.
    """
    with refusing(str(recording.path), DataError):
        ticks, began = recording.of("tick"), recording.of("activate")
        if not ticks or not began:
            return None
        header = recording.header
        check_data(header["profile"]["data"], f"{recording.path}: profile.data")
        profile = Profile(header["profile"]["data"], settings_of(began[0]["settings"]))
        n, dt = len(profile.joints), float(header["dt"])
        command, now = _rows([t["command"] for t in ticks], n), _rows([[t["now"]] for t in ticks], 1)[:, 0]
        follows = np.abs(np.diff(now) - dt) < 0.5 * dt  # a missed tick's command is not in the recording
        speed = np.abs(np.diff(command, axis=0)[follows]) / dt
        measured = _rows([t["qd"] for t in ticks if t.get("qd") is not None], n)
        return EpisodeSpeeds(
            recording.path.name, len(ticks), sum(bool(t["changed"]) for t in ticks),
            Counter(str(r) for t in ticks for r in t["reasons"]), profile.joints, profile.velocity,
            speed.max(axis=0, initial=0.0), np.abs(measured).max(axis=0) if len(measured) else np.full(n, np.nan),
        )  # fmt: skip


def table(episodes: Iterable[EpisodeSpeeds]) -> str:
    """Return a table of the largest speeds of all episodes under the same limits, "" without any."""
    groups: dict[tuple[object, ...], list[EpisodeSpeeds]] = {}
    for episode in episodes:
        groups.setdefault((episode.joints, *episode.limit.tolist()), []).append(episode)
    lines = []
    for group in groups.values():
        width = max(len("joint"), *map(len, group[0].joints))
        lines.append(f"{'joint':{width}}  {'limit':>7}  {'commanded':>9}  {'measured':>8}  rad/s, largest")
        commanded = np.max([e.commanded for e in group], axis=0)
        measured = np.fmax.reduce([e.measured for e in group])
        for row in zip(group[0].joints, group[0].limit, commanded, measured, strict=True):
            lines.append(f"{row[0]:{width}}  {row[1]:7.3f}  {row[2]:9.3f}  {row[3]:8.3f}")
    return "\n".join(lines)


def summary(folder: Path) -> str:
    """Summarise all recordings of a folder, a cut off one up to its end."""
    paths = sorted(folder.glob("*.mcap"))
    found = [e for path in paths if (e := episode_of(read(path, whole=False))) is not None]
    return "\n".join([*map(str, found), table(found)])


def _rows(values: list[object], n: int) -> Array:
    """Return [K n] numbers; "nan" and "inf" are read as such."""
    found = np.array(values, dtype=np.float64) if values else np.zeros((0, n))
    if found.shape != (len(values), n):
        raise DataError(f"recording: expected {n} numbers in each row, found shape {found.shape}")
    return found
