"""Diagnostics of a policy node, a few times a second and at every change of mode."""

from __future__ import annotations

import json
import time

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node

from robopolicy.real.ros2 import messages
from robopolicy.real.ros2.qos import profile_of
from robopolicy.real.ros2.trajectory_stream import TrajectoryStream
from robopolicy.real.ros2.wiring import Wiring
from robopolicy.real.safety import Mode

RECENT = 2000  # ticks


class Reports:
    """Publish the diagnostics of `node`. `tick_ms`: durations of ticks [ms]; the caller appends them."""

    def __init__(self, node: Node, wiring: Wiring) -> None:
        topic = wiring.topic("diagnostics")
        self.name, self.hardware, self.every = node.get_name(), wiring.limits, 1 / topic.rate_hz
        self.tick_ms: list[float] = []
        self._last, self._mode = 0.0, ""  # s; the last that was reported
        self._out = node.create_publisher(DiagnosticArray, topic.name, profile_of(topic))

    def due(self, stream: TrajectoryStream | None, now: float) -> bool:
        """Whether it is time to report, at `now` s."""
        changed = stream is not None and stream.arm.active and stream.arm.mode.name != self._mode
        return changed or now - self._last > self.every

    def publish(self, stream: TrajectoryStream | None, text: str, more: dict[str, str] | None = None) -> None:
        """Publish the state of the stream; `text`: a problem, in words; `more`: further values."""
        self._last = time.monotonic()
        active = stream is not None and stream.arm.active
        values: dict[str, object] = {"state": "active" if active else "inactive", **(more or {})}
        level = DiagnosticStatus.OK
        if stream is not None:
            values |= self._values(stream)
            mode = stream.arm.mode
            if active and mode > Mode.RUN:
                level = DiagnosticStatus.ERROR if mode is Mode.FAULT else DiagnosticStatus.WARN
                text = text or f"{mode.name}: {values['reasons_now']}"
        if self.tick_ms:
            self.tick_ms = self.tick_ms[-RECENT:]
            recent = np.array(self.tick_ms)
            values |= {"tick_ms_p50": np.median(recent).round(3), "tick_ms_p99": np.percentile(recent, 99).round(3)}
        if text:
            level = max(level, DiagnosticStatus.WARN)
        found = messages.diagnostics(time.time_ns(), self.name, self.hardware, level, text or "ok", values)
        self._out.publish(found)

    def _values(self, stream: TrajectoryStream) -> dict[str, object]:
        """Return the diagnostics of a stream, by key."""
        arm, loop = stream.arm, stream.loop
        self._mode = arm.mode.name if arm.active else ""
        reasons = () if stream.decision is None else stream.decision.reasons
        if arm.mode is Mode.FAULT and (why := f"fault:{stream.chain.why}") not in reasons:
            reasons = (*reasons, why)  # of now: no tick has decided since
        return {
            "mode": self._mode, "step": loop.step if stream.ticks else 0, "ticks": stream.ticks,
            "driver": loop.driver, "halted": loop.halted, "changed": stream.changed,
            "limits": stream.chain.profile.digest, "reasons_now": "; ".join(reasons),
            "reasons": json.dumps(stream.reasons), "error": stream.chain.error,
            "ages_ms": json.dumps({r: round(1e3 * s.old(arm.now), 1) for r, s in arm.stamps.items() if s.age == s.age}),
            "counts": json.dumps({**arm.counts, **{f"loop_{k}": v for k, v in loop.counts.items()}}),
        }  # fmt: skip
