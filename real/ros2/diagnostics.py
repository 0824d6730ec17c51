"""What a policy node says of itself: diagnostics, a few times a second and at every change of mode."""

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
    """Publishes the diagnostics of `node`. `tick_ms`: what ticks took, to be appended to."""

    def __init__(self, node: Node, wiring: Wiring) -> None:
        topic = wiring.topic("diagnostics")
        self.name, self.hardware, self.every = node.get_name(), wiring.limits, 1 / topic.rate_hz
        self.tick_ms: list[float] = []
        self._last, self._mode = 0.0, ""  # s; the last that was reported
        self._out = node.create_publisher(DiagnosticArray, topic.name, profile_of(topic))

    def due(self, session: TrajectoryStream | None, now: float) -> bool:
        """Whether it is time to report, at `now` s."""
        changed = session is not None and session.active and session.mode.name != self._mode
        return changed or now - self._last > self.every

    def publish(self, session: TrajectoryStream | None, text: str, more: dict[str, str] | None = None) -> None:
        """How it stands; `text`: what is wrong, in words; `more`: what else is to be known."""
        self._last = time.monotonic()
        active = session is not None and session.active
        values: dict[str, object] = {"state": "active" if active else "inactive", **(more or {})}
        level = DiagnosticStatus.OK[0]
        if session is not None:
            self._mode = session.mode.name if session.active else ""
            reasons = () if session.decision is None else session.decision.reasons
            if session.mode is Mode.FAULT and (why := f"fault:{session.chain.why}") not in reasons:
                reasons = (*reasons, why)  # of now: no tick has decided since
            values |= {
                "mode": self._mode, "step": session.loop.step if session.ticks else 0, "ticks": session.ticks,
                "driver": session.loop.driver, "halted": session.loop.halted, "changed": session.changed,
                "limits": session.chain.profile.digest,
                "reasons_now": "; ".join(reasons),
                "reasons": json.dumps(session.reasons), "error": session.chain.error,
                "ages_ms": json.dumps({r: round(1e3 * s.age, 1) for r, s in session.stamps.items() if s.age == s.age}),
                "counts": json.dumps({**session.counts, **{f"loop_{k}": v for k, v in session.loop.counts.items()}}),
            }  # fmt: skip
            if session.active and session.mode > Mode.RUN:
                level = DiagnosticStatus.ERROR[0] if session.mode is Mode.FAULT else DiagnosticStatus.WARN[0]
                text = text or f"{session.mode.name}: {values['reasons_now']}"
        if self.tick_ms:
            self.tick_ms = self.tick_ms[-RECENT:]
            recent = np.array(self.tick_ms)
            values |= {"tick_ms_p50": np.median(recent).round(3), "tick_ms_p99": np.percentile(recent, 99).round(3)}
        if text:
            level = max(level, DiagnosticStatus.WARN[0])
        found = messages.status(self.name, self.hardware, level, text or "ok", values)
        self._out.publish(messages.diagnostics(time.time_ns(), found))
