"""Time on the arm's clock, by the stamps of its states; and the checks that every stamp must pass."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable

from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.decision import Patience

SLACK = 0.01  # s by which a state may be less delayed than the median of them
AHEAD = 0.05  # s by which a stamp may lie in the future, as no clock is exact
LONGEST = 10.0  # s: no older picture says anything
LEAP = 0.25  # s that simulated time may go on from one state to the next


class StampError(SafetyError):
    """A stamp that is not of this moment, or not after the one before.

    Attributes:
        reason: `unreadable`, `unstamped`, `undated`, `late`, `ahead`, `repeated` or `latency`.
    """

    def __init__(self, role: str, reason: str, text: str) -> None:
        super().__init__(f"{role}: stamp: {text}")
        self.reason = reason


class ArmClock:
    """Which tick it is on the arm, by the stamps of its states and a steady clock of ours.

    The difference of the two clocks is that of the least delayed state of a sliding window, among those that agree
    with the window's median: a few wrong stamps change nothing, and leave the window with time.

    Args:
        dt: s a tick.
        follow: the arm waits for us (simulated time): no tick passes without a state.
        window: states that are remembered.
    """

    def __init__(self, dt: float, *, follow: bool = False, window: int = 256) -> None:
        self.dt, self.follow, self.window = dt, follow, window
        self.offset, self.newest = -math.inf, -math.inf
        self._recent: deque[float] = deque()  # s, stamps minus times of receipt
        self._sorted: list[float] = []

    def learn(self, stamp: float, at: float) -> None:
        """Take note that a state stamped `stamp` s was received at `at` s of our steady clock."""
        if not math.isfinite(stamp):
            return
        self._recent.append(stamp - at)
        insort(self._sorted, stamp - at)
        if len(self._recent) > self.window:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        median = self._sorted[(len(self._sorted) - 1) // 2]
        self.offset = self._sorted[bisect_right(self._sorted, median + SLACK) - 1]

    def restart(self, stamp: float, at: float) -> None:
        """Learn as `learn` does while the arm stands: the time of before may be given up."""
        self.learn(stamp, at)
        if self.follow and not 0.0 < stamp - self.newest <= LEAP:
            self.newest = stamp
        elif not self.follow and self.newest > at + self.offset + AHEAD:
            self.newest = -math.inf

    def time(self, at: float) -> float:
        """Return s of the arm's clock at `at` s of ours; −∞ where no state has come."""
        return self.newest if self.follow else max(self.newest, at + self.offset)

    def tick(self, at: float) -> int:
        """Return the arm's tick at `at` s of our clock; 0 where no state has come."""
        time = self.time(at)
        return 0 if time == -math.inf else math.floor(time / self.dt + 1e-3)


class Stamps:
    """The stamps of one topic: of this moment on the arm's clock, each after the one before.

    Args:
        role: of the topic, for messages.
        clock: the arm's.
        most: s that a message may be older than `latency`.
        ahead: s that a stamp may lie in the future.
        latency: s that a message is old by the wiring; one that is younger by more than `most` is refused too.
    """

    def __init__(self, role: str, clock: ArmClock, *, most: float, ahead: float = AHEAD, latency: float = 0.0) -> None:
        self.role, self.clock, self.most, self.ahead, self.latency = role, clock, most, ahead, latency
        self.last = -math.inf  # s, of the newest that was taken
        self.age = math.nan  # s, of the same when it came
        self.taken = math.nan  # s of our steady clock, when it came

    def take(self, stamp: float, at: float) -> None:
        """Check a message stamped `stamp` s that was received at `at` s of our steady clock.

        Raises:
            StampError: it must not be used; says why.
        """
        time = self.clock.time(at)
        if not math.isfinite(stamp):
            raise StampError(self.role, "unreadable", f"expected finite seconds, found {stamp}")
        if stamp == 0.0:
            raise StampError(self.role, "unstamped", "expected the time of the data, found 0. Set header.stamp")
        if time == -math.inf:
            raise StampError(self.role, "undated", "no state of the arm has come to compare its clock with")
        age = time - stamp
        if not age >= -self.ahead:
            raise StampError(self.role, "ahead", f"lies {-age:.3f} s in the future of the arm's clock. {SAME_CLOCK}")
        if not age <= self.latency + self.most:
            most = self.latency + self.most
            raise StampError(self.role, "late", f"is {age:.3f} s old, expected at most {most:.3f} s. {SAME_CLOCK}")
        if self.latency and not age >= self.latency - self.most:
            expected = f"expected latency_s, {self.latency} s, within {self.most} s. Measure it again"
            raise StampError(self.role, "latency", f"is {age:.3f} s old when it comes, {expected}")
        if not stamp > self.last and self.last <= time + self.ahead:  # else the last one is of another time
            raise StampError(
                self.role, "repeated", f"expected one after {self.last:.6f} s, found {stamp:.6f} s. Does it hang?"
            )
        self.last, self.age, self.taken = stamp, age, at

    def old(self, now: float) -> float:
        """Return the age [s] of the newest message at `now` s of our steady clock, the silence since included."""
        return self.age + max(0.0, now - self.taken)


SAME_CLOCK = "Do both machines' clocks agree (chrony, PTP)?"


def shortest(patience: Patience) -> float:
    """Return s of silence until the arm is held."""
    return min(patience.hold, patience.fault)


def stamps_of(wiring: Wiring, clock: ArmClock) -> dict[str, Stamps]:
    """Return the checks of all topics that carry stamps, by role."""
    most = {name: shortest(patience) for name, patience in wiring.watchdogs.items()}
    state = min(most["state"], LEAP)
    ahead = (max(1, wiring.lead_ticks - 1) + 0.5) * clock.dt  # further on, it would hide that commands were lost
    found = {
        "joint_states": Stamps("joint_states", clock, most=state, ahead=LEAP if clock.follow else state),
        "joint_commands": Stamps("joint_commands", clock, most=state, ahead=ahead),
        "features": Stamps("features", clock, most=most["features"]),
    }
    if "gripper_states" in most:
        found["gripper_states"] = Stamps("gripper_states", clock, most=most["gripper_states"])
    for key, latency in latencies(wiring).items():
        found[key] = Stamps(key, clock, most=most["images"], latency=latency)
    return found


def latencies(wiring: Wiring) -> dict[str, float]:
    """Return s from a picture's exposure to its arrival, by the feature of its camera."""
    return {key: camera.latency_s for key, camera in (wiring.cameras | wiring.depth_cameras).items()}


def oldest(wiring: Wiring, seen: Iterable[str]) -> float:
    """Return s by which the pictures of `seen` are older than the arm's state, as a policy node pairs them."""
    return max((s for key, s in latencies(wiring).items() if key in seen), default=0.0)


def oldest_picture(wiring: Wiring) -> float:
    """Return the age in s up to which a camera's picture counts."""
    return max(latencies(wiring).values(), default=0.0) + min(shortest(wiring.watchdogs["images"]), LONGEST)
