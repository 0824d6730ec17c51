"""A mock of a Feetech servo bus at the level of its packets, which lags and drops. LeRobot's own bus code runs on it.

The packets (protocol 0): two bytes 0xFF, id, length, instruction or error, parameters, checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scservo_sdk as scs
from lerobot.motors import MotorCalibration

PING, READ, WRITE, SYNC_READ, SYNC_WRITE = 1, 2, 3, 0x82, 0x83
BROADCAST = 0xFE
MODEL, LOW, HIGH, OFFSET, TORQUE, GOAL, POSITION = 3, 9, 11, 31, 40, 42, 56  # addresses of an STS3215's registers
STS3215 = 777  # its model number
SIGN = 11  # bit of the sign of a homing offset
POLL = 0.001  # s that a reader waits between two looks at an empty line


@dataclass(frozen=True)
class BusTrouble:
    """How the bus misbehaves.

    Args:
        drop: fraction of requests whose reply is lost, and of goals that no motor hears.
        lag: fraction of requests that are answered `lag_s` s later, as after a hiccup of USB.
        turnaround_s: s that every reply takes, beside its bytes.
        silent: ids of motors that never answer.
    """

    drop: float = 0.0
    lag: float = 0.0
    lag_s: float = 0.03
    turnaround_s: float = 0.001
    silent: tuple[int, ...] = ()


class MockPort(scs.PortHandler):
    """Stand in for the serial port of a Feetech bus, with one STS3215 for each entry of a calibration.

    Args:
        calibration: LeRobot's; the motors hold it in their memory.
        clock, sleep: s, of the time in which replies are late.
        seed: draws which packets are lost or late.

    Attributes:
        positions: called at each reading of positions; counts by id.
        goals: newest goal in counts by id, of motors with torque.
    """

    def __init__(
        self, calibration: Mapping[str, MotorCalibration], *, clock: Callable[[], float],
        sleep: Callable[[float], None], trouble: BusTrouble | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__("mock")
        self.clock, self.sleep = clock, sleep
        self.trouble, self.rng = trouble or BusTrouble(), np.random.default_rng(seed)
        self.memory = {c.id: bytearray(256) for c in calibration.values()}
        self.positions: Callable[[], Mapping[int, int]] = dict
        self.goals: dict[int, int] = {}
        self._line, self._ready = b"", 0.0  # the reply under way, and s when it has come
        for c in calibration.values():
            self._put(c.id, MODEL, STS3215)
            self._put(c.id, LOW, c.range_min)
            self._put(c.id, HIGH, c.range_max)
            self._put(c.id, OFFSET, abs(c.homing_offset) | ((c.homing_offset < 0) << SIGN))

    def setupPort(self, cflag_baud: int) -> bool:
        self.is_open, self.tx_time_per_byte = True, 1e4 / self.baudrate  # ms
        return True

    def closePort(self) -> None:
        self.is_open = False

    def clearPort(self) -> None:
        self._line = b""

    def getBytesAvailable(self) -> int:
        return len(self._line) if self.clock() >= self._ready else 0

    def getCurrentTime(self) -> float:
        return 1000 * self.clock()  # ms

    def setPacketTimeout(self, packet_length: int) -> None:
        """Wait as long as LeRobot's own patch of this port does: 50 ms beyond the bytes."""
        self.setPacketTimeoutMillis(self.tx_time_per_byte * (packet_length + 3) + 50)

    def readPort(self, length: int) -> bytes:
        left = self._ready - self.clock()
        if not self._line or left > 0.0:
            self.sleep(min(POLL, left) if self._line else POLL)
        if self.clock() < self._ready - 1e-9:
            return b""
        found, self._line = self._line[:length], self._line[length:]
        return found

    def writePort(self, packet: Any) -> int:
        data = bytes(packet)
        reply = b"".join(self._answers(data[2], data[4], data[5:-1]))
        wait = self.trouble.turnaround_s + 1e-3 * self.tx_time_per_byte * (len(data) + len(reply))
        if self.rng.random() < self.trouble.lag:
            wait += self.trouble.lag_s
        self._line, self._ready = reply, self.clock() + wait
        return len(data)

    # -- inside -----------------------------------------------------------------------------------------------------
    def _put(self, motor: int, address: int, value: int, size: int = 2) -> None:
        self.memory[motor][address : address + size] = value.to_bytes(size, "little")

    def _answers(self, motor: int, instruction: int, given: bytes) -> Iterator[bytes]:
        """Let the motors take a packet, and yield their replies."""
        lost = instruction in (SYNC_READ, SYNC_WRITE) and self.rng.random() < self.trouble.drop
        if instruction == SYNC_WRITE:
            start, size = given[0], given[1]
            for k in range(2, len(given) if not lost else 0, size + 1):
                self._store(given[k], start, given[k + 1 : k + 1 + size])
            return
        if instruction == SYNC_READ:
            self._measure()
            for k in given[2:] if not lost else b"":
                yield self._reply(k, bytes(self.memory[k][given[0] : given[0] + given[1]]))
            return
        for k in self.memory if motor == BROADCAST else (motor,):
            if k not in self.memory or k in self.trouble.silent:
                continue
            if instruction == READ:
                self._measure()
            elif instruction == WRITE:
                self._store(k, given[0], given[1:])
            yield self._reply(k, bytes(self.memory[k][given[0] : given[0] + given[1]]) if instruction == READ else b"")

    def _measure(self) -> None:
        for motor, counts in self.positions().items():
            self._put(motor, POSITION, min(max(counts, 0), 4095))

    def _store(self, motor: int, address: int, data: bytes) -> None:
        if motor not in self.memory or motor in self.trouble.silent:
            return
        self.memory[motor][address : address + len(data)] = data
        if address == GOAL and self.memory[motor][TORQUE]:
            self.goals[motor] = int.from_bytes(data[:2], "little")

    @staticmethod
    def _reply(motor: int, data: bytes) -> bytes:
        body = bytes((motor, len(data) + 2, 0)) + data
        return b"\xff\xff" + body + bytes((~sum(body) & 0xFF,))


def mount(robot: Any, port: MockPort) -> None:
    """Put the mock in the place of the serial port of one of LeRobot's arms, before it connects."""
    robot.bus.port_handler = robot.bus.sync_reader.port = robot.bus.sync_writer.port = port
