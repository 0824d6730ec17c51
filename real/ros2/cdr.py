"""JointTrajectory as the bytes that DDS sends, written and read as one array.

rclpy turns a message into bytes, and back, number by number, and that for every point at every tick
(scripts/bench_ros2.py says what it takes). The layout is plain CDR, little-endian (OMG, DDSI-RTPS 10); tests hold it
against rclpy's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rclpy.serialization import deserialize_message
from trajectory_msgs.msg import JointTrajectory

from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.ros2 import messages
from robopolicy.real.safety import SafetyError
from robopolicy.real.safety.array_ops import Array

LITTLE_ENDIAN = b"\x00\x01\x00\x00"  # how the payload is laid out; offsets and alignment count from behind it
STAMP = len(LITTLE_ENDIAN) + 8  # where the stamp ends


class TrajectoryBytes:
    """Trajectories of these joints, whose points come one a tick.

    Args:
        joints: names, in the order of the columns.
        dt_ns: between two points.
        derivatives: points hold velocities and accelerations beside positions; such are written alone, not read.
    """

    def __init__(self, joints: Sequence[str], dt_ns: int, *, derivatives: bool = False) -> None:
        self.order, self.dt_ns, n = JointOrder(joints), dt_ns, len(joints)
        names = b"".join(_padded(_text(name)) for name in joints)
        self._head = _padded(_text("")) + _number(n) + names  # from the stamp to the number of points: frame_id, names
        self._gap = -(STAMP - len(LITTLE_ENDIAN) + len(self._head) + 8) % 8  # numbers of 8 bytes lie at multiples of 8
        rates: list[Any] = [("none", "<u4", 3)]  # velocities, accelerations and effort
        if derivatives:
            sizes = [(("nv", "<u4"), ("gap_v", "<u4")), (("na", "<u4"), ("gap_a", "<u4"))]
            rates = [*sizes[0], ("v", "<f8", n), *sizes[1], ("a", "<f8", n), ("none", "<u4")]
        self._point = np.dtype([("n", "<u4"), ("q", "<f8", n), *rates, ("s", "<i4"), ("ns", "<u4")])
        self._blank = np.zeros(0, self._point)

    def write(self, first_ns: int, q: Array, qd: Array | None = None, qdd: Array | None = None) -> bytes:
        """Control points, or positions with velocities and accelerations, [K n], the first due at `first_ns` of the
        arm's clock."""
        rows = self._rows(len(q))
        rows["q"] = q
        if qd is not None:
            rows["v"], rows["a"] = qd, qdd
        body = rows.tobytes()
        stamp = (first_ns // messages.S).to_bytes(4, "little", signed=True) + _number(first_ns % messages.S)
        return b"".join(
            (LITTLE_ENDIAN, stamp, self._head, _number(len(rows)), body[:4], bytes(self._gap * bool(body)), body[4:])
        )

    def read(self, data: bytes) -> tuple[int, Array]:
        """Tick of the first point and control points [K n] rad of any JointTrajectory; K = 0 where it has none.

        Raises:
            SafetyError: joints or times are not as expected, or it is something else.
        """
        start = STAMP + len(self._head) + 4
        if data.startswith(LITTLE_ENDIAN) and data[STAMP : start - 4] == self._head:
            count = int.from_bytes(data[start - 4 : start], "little")
            body = data[start : start + 4] + data[start + 4 + self._gap :]
            if len(body) == count * self._point.itemsize:
                rows, due = np.frombuffer(body, self._point), self._rows(count)
                if all(np.array_equal(rows[part], due[part]) for part in ("n", "none", "s", "ns")):
                    second = int.from_bytes(data[STAMP - 8 : STAMP - 4], "little", signed=True)
                    ns = int.from_bytes(data[STAMP - 4 : STAMP], "little")
                    return round((second * messages.S + ns) / self.dt_ns), rows["q"].copy()
        try:
            message = deserialize_message(data, JointTrajectory)  # of another writer, or a wrong one
        except Exception as error:
            raise SafetyError(f"trajectory: {len(data)} bytes that are no JointTrajectory: {error}") from error
        if not message.points:
            return 0, np.zeros((0, len(self.order.joints)))
        return messages.points_of(message, self.order, self.dt_ns)

    def _rows(self, count: int) -> NDArray[np.void]:
        """So many points, without positions."""
        if count > len(self._blank):
            rows = np.zeros(count, self._point)
            due = np.arange(count, dtype=np.int64) * self.dt_ns
            rows["s"], rows["ns"] = due // messages.S, due % messages.S
            for name in {"n", "nv", "na"} & set(self._point.fields or ()):
                rows[name] = len(self.order.joints)
            self._blank = rows
        return self._blank[:count].copy()


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _text(text: str) -> bytes:
    data = text.encode() + b"\0"
    return _number(len(data)) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
