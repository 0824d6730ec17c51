"""`robopolicy replay`: run the safety chain again on recorded inputs, and compare every decision."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.config.schema import Count
from robopolicy.core.errors import DataError
from robopolicy.core.untrusted import refusing
from robopolicy.real.recording.recording import Recording, read
from robopolicy.real.recording.records import LIBRARIES, decided, dumps
from robopolicy.real.recording.speeds import episode_of, table
from robopolicy.real.safety import SafetyChain
from robopolicy.real.safety.decision import Measured, Patience
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.profile_data import check_data
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.settings import recorded_settings
from robopolicy.utils.threads import set_threads

Array = NDArray[np.float64]


class Replayed(NamedTuple):
    """How far a recording was reproduced."""

    path: Path
    ticks: int  # in the file
    reproduced: int  # from the first on, bit for bit
    difference: str  # of the next one, "" where all were reproduced

    def __str__(self) -> str:
        if not self.difference:
            return f"{self.path.name}: all {self.ticks} decisions reproduced bit for bit"
        return f"{self.path.name}: {self.reproduced} of {self.ticks} decisions reproduced, then {self.difference}"


def replay(*, recording: Path, threads: Count | None = None) -> list[Replayed]:
    """Reproduce the decisions in a recording, or in all of a folder.

    Args:
        recording: MCAP file of `robopolicy deploy … record=<folder>`, or the folder.
        threads: of torch; None: torch's choice.

    Raises:
        DataError: no recording, a damaged or incomplete one, or a decision that comes out otherwise.
    """
    set_threads(threads)
    paths = sorted(recording.glob("*.mcap")) if recording.is_dir() else [recording]
    if not paths:
        raise DataError(f"recording={recording}: holds no .mcap files. `robopolicy deploy … record=…` writes them.")
    done, episodes = [], []
    for path in paths:
        found = read(path)
        done.append(reproduce(found))
        print(done[-1])
        if (episode := episode_of(found)) is not None:
            episodes.append(episode)
            print(f"  {episode}")
    print(table(episodes))
    if bad := [result for result in done if result.difference]:
        raise DataError(f"{len(bad)} of {len(done)} recordings were not reproduced; the first: {bad[0]}")
    return done


def reproduce(recording: Recording) -> Replayed:
    """Run the chain again. The recording's own limits and critic are used, this robopolicy's code.

    Raises:
        DataError: the recording holds inputs that no chain can have had. SafetyError: limits that are none.
    """
    with refusing(str(recording.path), DataError):
        return Replayed(recording.path, len(recording.of("tick")), *_reproduce(recording))


def _reproduce(recording: Recording) -> tuple[int, str]:
    """Return how many decisions were reproduced, and the difference of the next one, "" where there is none."""
    clock, expected, done = _Clock(), Counter[str](), 0
    chain = rebuild(recording.header, clock)
    for topic, content in recording.messages:
        if topic not in ("activate", "tick"):
            continue
        if content["n"] != expected[topic]:
            return done, f"{content['n'] - expected[topic]} {topic} messages are missing: they were not written"
        expected[topic] += 1
        if topic == "activate":
            _activate(chain, content)
            continue
        for name, value in content["events"]:
            if name not in EVENTS:
                raise DataError(f"recording: unknown event {name!r}; it is of a newer robopolicy")
            EVENTS[name](chain, value)
        clock.late = "late" in content["reasons"]
        clock.calls = 0
        decision = decided(chain.filter(_array(content["target"]), _measured(content), content["now"],
                                        reason=content["reason"]))  # fmt: skip
        for key, value in decision.items():
            if dumps({key: value}) != dumps({key: content[key]}):
                differs = _difference(key, content[key], value, chain.profile.joints) + _versions(recording.header)
                return done, f"tick {content['n']} at {content['now']:.6f} s: {differs}"
        done += 1
    footer = recording.footer["messages"]
    for topic in ("activate", "tick"):  # lost at the end
        if footer.get(topic, 0) != expected[topic]:
            return done, f"{footer[topic] - expected[topic]} {topic} messages are missing: they were not written"
    return done, ""


def rebuild(header: dict[str, Any], clock: _Clock | None = None) -> SafetyChain:
    """Rebuild the chain that a header describes.

    Raises:
        DataError: the header does not describe one, or its limits are not those that its digest names.
    """
    try:
        data = header["profile"]["data"]
        check_data(data, "recording: profile.data")
        profile = Profile(data, recorded_settings(header["profile"]["settings"]))
        patience = {k: Patience(*(float(s) for s in v)) for k, v in header["watchdogs"].items()}
        dt, budget = float(header["dt"]), float(header["budget_s"])
        if not 0.0005 <= dt <= 0.1 or not 0.0 < budget <= 1.0:
            raise ValueError(f"dt: expected 0.0005 to 0.1 s, budget_s up to 1 s, found {dt} and {budget}")
        chain = SafetyChain(
            profile, dt=dt, state=patience["state"], enable=patience.get("enable"), clock=clock,
            budget=budget, risk=_critic(header["risk"], data),
            inputs={k: v for k, v in patience.items() if k not in ("state", "enable")},
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"recording: its header does not describe a safety chain ({error!r})") from error
    if profile.digest != header["digest"]:
        raise DataError(f"recording: its limits have digest {profile.digest}, its header says {header['digest']}")
    return chain


# -- inside ---------------------------------------------------------------------------------------------------------
class _Clock:
    """Computation takes as long as it did: a tick that was late is late again."""

    late = False
    calls = 0

    def __call__(self) -> float:
        self.calls += 1
        return np.inf if self.late and self.calls > 1 else 0.0


def _activate(chain: SafetyChain, content: dict[str, Any]) -> None:
    chain.deactivate()
    settings = recorded_settings(content["settings"])
    if settings != chain.profile.settings:
        chain.tighten(**vars(settings))
    measured = _measured(content)
    assert measured is not None
    if content["enable"] is not None:
        chain.enable(content["enable"])
    chain.activate(measured, content["now"])
    chain.limiter.load_state_dict({k: np.array(v) for k, v in content["limiter"].items()})
    if chain.tank is not None:
        n, tank = len(chain.profile.joints), content["tank"]
        held = {k: _array(tank[k], n) for k in ("q", "torque")}
        chain.tank.load_state_dict({"energy": float(tank["energy"]), **held})


def _heard(chain: SafetyChain, value: Any) -> None:
    played = _array(value, len(chain.profile.joints))
    assert played is not None
    chain.heard(played)


def _feed(chain: SafetyChain, value: Any) -> None:
    dog, now = value
    chain.feed(str(dog), float(now))


EVENTS: dict[str, Callable[[SafetyChain, Any], object]] = {
    "heard": _heard,
    "resume": lambda chain, value: chain.load_resumed({k: np.array(v) for k, v in value.items()}),
    "feed": _feed,
    "fault": lambda chain, value: chain.fault(str(value)),
    "tighten": lambda chain, value: chain.tighten(**vars(recorded_settings(value))),
}


def _critic(data: dict[str, Any] | None, profile: dict[str, Any]) -> RiskCritic | None:
    if data is None:
        return None
    layers = tuple((np.array(w, dtype=np.float64), np.array(b, dtype=np.float64)) for w, b in data["layers"])
    own = Profile(profile, recorded_settings(data["settings"]))
    dt, low, high, floor = (float(data[k]) for k in ("dt", "low", "high", "floor"))
    if not dt > 0.0:
        raise ValueError(f"risk.dt: expected s > 0, found {dt}")
    critic = RiskCritic(own, dt, layers, low, high, floor)
    critic.check("recording: risk")
    return critic


def _array(value: Any, size: int | None = None) -> Array | None:
    """Numbers, "nan" and the like among them; of so many joints.

    Raises:
        DataError: another shape.
    """
    if value is None:
        return None
    found = np.array(value, dtype=np.float64)
    if size is not None and found.shape != (size,):
        raise DataError(f"recording: expected {size} numbers, one a joint, found shape {found.shape}")
    return found


def _measured(content: dict[str, Any]) -> Measured | None:
    q = _array(content["q"])
    return None if q is None else Measured(q, _array(content["torque"]))


def _difference(key: str, was: Any, now: Any, joints: tuple[str, ...]) -> str:
    if key == "command" and len(was) == len(now):
        k = next(k for k, (a, b) in enumerate(zip(was, now, strict=True)) if dumps({"": a}) != dumps({"": b}))
        return f"{joints[k]} was commanded to {was[k]!r} rad, now {now[k]!r} ({abs(now[k] - was[k]):.1e} apart)"
    return f"{key} was {was!r}, now {now!r}"


def _versions(header: dict[str, Any]) -> str:
    """Describe changed versions, for the end of a message."""
    found = {n: importlib.metadata.version(n) for n in LIBRARIES} | {"machine": platform.machine()}
    was = {**header["versions"], "machine": header["machine"]}
    other = [f"{n} {was[n]} → {found[n]}" for n in found if n in was and was[n] != found[n]]
    return f" ({', '.join(other)})" if other else ""
