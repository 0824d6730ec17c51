"""Messages of a bag over time, and whether they came as they should."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopolicy.datasets.converted import UnusableError

Array = NDArray[np.float64]
FASTER, SLOWER = 1.35, 0.75  # of the wiring's rate; beyond it is another topic, or one that was lost on its way
LATE = 0.25  # s by which a message's way may differ from the others'


class Stream(NamedTuple):
    """Messages of a topic in the order of arrival."""

    arrived: Array  # [M] s, by the recorder's clock
    stamped: Array | None  # [M] s, by the sender's; None: they carry none
    values: Array  # [M ...]


def newest(stream: Stream, at: Array) -> NDArray[np.int64]:
    """Return [T] index of the newest message that had arrived at `at` [T] s; −1 where there was none."""
    return np.searchsorted(stream.arrived, at + 1e-9, side="right") - 1


def check_stream(name: str, stream: Stream, rate_hz: float, patience: float) -> None:
    """Whether messages came in order, without gaps, as often as they should, and none of them late.

    Args:
        patience: s that the robot's watchdog waits for the next.

    Raises:
        UnusableError: says which message, when and by how much.
    """
    t, stamps = stream.arrived, stream.stamped
    if len(t) < 2:
        raise UnusableError(f"{name}: {len(t)} messages")
    for what, times in (("arrived", t), ("are stamped", stamps)):
        if times is None:
            continue
        step = np.diff(times)
        if (bad := np.flatnonzero(~(step >= 0 if what == "arrived" else step > 0))).size:
            raise UnusableError(
                f"{name}: {len(bad)} of {len(t)} messages {what} out of order or twice, the first after "
                f"{t[bad[0] + 1] - t[0]:.3f} s"
            )
        if not (longest := float(step.max())) <= patience:
            raise UnusableError(
                f"{name}: a gap of {longest:.3f} s after {t[int(step.argmax())] - t[0]:.3f} s; the wiring's watchdog "
                f"waits {patience} s"
            )
    times = t if stamps is None else stamps
    rate = (len(t) - 1) / (times[-1] - times[0])
    if not SLOWER * rate_hz <= rate <= FASTER * rate_hz:
        raise UnusableError(f"{name}: {rate:.1f} messages a second, the wiring says {rate_hz:g}")
    if stamps is not None:
        way = t - stamps
        late = np.abs(way - np.median(way))
        if not late.max() <= LATE:
            raise UnusableError(
                f"{name}: a message {late.max():.3f} s later than the others, after "
                f"{t[int(late.argmax())] - t[0]:.3f} s: held up on its way, or a clock that was set"
            )
