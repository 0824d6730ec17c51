"""Recording a deployment: one MCAP file an episode, with all that the safety chain's decisions depend on.

A file opens in Foxglove and other MCAP tools. Messages are JSON: a float64 is written in the shortest form that reads
back as the same number, one that is none as the text "nan", "inf" or "-inf".

/header    once, first: limits, risk critic, policy, versions
/activate  where the arm was activated, and the state of the chain then
/tick      inputs and decision of the chain
/step      once a control step: observation, action of the policy or of a human, executed action
/chunk     a chunk of actions as it arrived from the policy
/footer    once, last: how it ended and how many messages were lost; a file without it was cut off

`n` counts the messages of a topic, lost ones too: a gap in it is a loss. Times are those of the loop's own
steady clock.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from mcap.writer import Writer
from numpy.typing import NDArray

from robopolicy.core.errors import DataError
from robopolicy.core.types import Obs
from robopolicy.real.control.joints import Commanded
from robopolicy.real.recording.records import as_list, decided, dumps, measured_record, packed
from robopolicy.real.safety import Decision, SafetyChain, SafetyError
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.limiter_state import Past
from robopolicy.utils.provenance import version

Array = NDArray[np.float64]

FORMAT = 1
TOPICS = ("header", "activate", "tick", "step", "chunk", "footer")
CHUNK = 64 * 1024  # bytes that a kill −9 may cost

Put = Callable[[str, float, dict[str, Any]], None]  # topic, s, content


class Recorder:
    """Write MCAP files from a thread of its own; callers never wait.

    Args:
        folder: of the files, one an episode; made if need be.
        backlog: messages that may wait to be written. Further ones are dropped and counted.

    Raises:
        DataError: `folder` holds recordings already.
    """

    def __init__(self, folder: Path | str, *, backlog: int = 4096) -> None:
        self.folder, self.backlog = Path(folder), backlog
        self.folder.mkdir(parents=True, exist_ok=True)
        if found := sorted(self.folder.glob("*.mcap")):
            raise DataError(f"record={self.folder}: holds {len(found)} recordings already. Give a new folder.")
        self.files = 0
        self.count, self.dropped = Counter[str](), Counter[str]()  # messages of the file under way, by topic
        self._queue: queue.Queue[tuple[str, float, int, dict[str, Any]] | None] | None = None
        self._thread: threading.Thread | None = None
        self._broken: BaseException | None = None

    def begin(self, header: Mapping[str, Any]) -> Path:
        """Open the next file; `header` is JSON values (`describe` makes one)."""
        if self._queue is not None:
            raise DataError("record: an episode begins before the one under way was ended")
        path = self.folder / f"episode_{self.files:06d}.mcap"
        self.files, self._broken = self.files + 1, None
        self.count.clear()
        self.dropped.clear()
        self._queue = queue.Queue(maxsize=self.backlog)
        self._thread = threading.Thread(target=self._write, args=(path, self._queue), name="recorder", daemon=True)
        self._thread.start()
        self.put("header", 0.0, {"format": FORMAT, **header})
        return path

    def put(self, topic: str, now: float, content: dict[str, Any]) -> None:
        """Queue a message, which must not change afterwards; without an open file it is dropped."""
        if self._queue is None:
            return
        try:
            self._queue.put_nowait((topic, now, self.count[topic], content))
        except queue.Full:
            self.dropped[topic] += 1
        self.count[topic] += 1

    def end(self, **outcome: Any) -> None:
        """Write the footer with `outcome` and close the file; waits until all of it is written.

        Raises:
            DataError: it could not be written, e.g. the disk is full.
        """
        if self._queue is None or self._thread is None:
            return
        footer = {**outcome, "messages": dict(self.count), "dropped": dict(self.dropped)}
        self._queue.put(("footer", 0.0, 0, footer))
        self._queue.put(None)
        self._thread.join()
        self._queue = self._thread = None
        if self._broken is not None:
            raise DataError(f"record={self.folder}: the recording could not be written: {self._broken}")

    # -- inside -----------------------------------------------------------------------------------------------------
    def _write(self, path: Path, messages: queue.Queue[Any]) -> None:
        message: Any = ()  # None is the last one
        try:
            with path.open("wb") as file:
                writer = Writer(file, chunk_size=CHUNK)
                writer.start(profile="", library=f"robopolicy {version()}")
                channels = {}
                for topic in TOPICS:
                    schema = writer.register_schema(f"robopolicy.{topic}", "jsonschema", b'{"type": "object"}')
                    channels[topic] = writer.register_channel(f"/{topic}", "json", schema)
                while (message := messages.get()) is not None:
                    topic, now, n, content = message
                    stamp = int(max(0.0, now) * 1e9)  # for viewers; the exact one is inside
                    writer.add_message(channels[topic], stamp, dumps({"n": n, "now": now, **content}), stamp, n)
                writer.finish()
        except BaseException as error:
            self._broken = error
            while message is not None:  # no caller may wait for a queue that is not emptied
                message = messages.get()


class RecordedChain(SafetyChain):
    """A safety chain that passes its inputs and decisions to `put` (Recorder.put)."""

    def __init__(self, *args: Any, put: Put, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._given is not None:
            raise SafetyError("record: a chain with limits of its own cannot be replayed")
        self.put = put
        self._events: list[list[Any]] = []  # since the last tick
        self._inside = False

    def activate(self, measured: Measured, now: float) -> None:
        super().activate(measured, now)
        self._events = []
        state = self._limiter_state()
        tank = self.tank and {k: v if k == "energy" else as_list(v) for k, v in self.tank.state_dict().items()}
        about = {"settings": asdict(self.profile.settings), "digest": self.profile.digest}
        enabled = next((dog.last for dog in self.watchdogs if dog.name == "enable"), None)  # s, when it came
        inputs = {**measured_record(measured), **about, "enable": enabled}
        self.put("activate", now, {**inputs, "limiter": state, "tank": tank})

    def heard(self, played: Array) -> bool:
        reached = super().heard(played)
        if not reached:  # else without effect
            self._happened("heard", as_list(played))
        return reached

    def resume(self, past: Past, ticks: int) -> None:
        super().resume(past, ticks)
        self._happened("resume", self._limiter_state())

    def _happened(self, name: str, what: Any) -> None:
        """Remember until the next tick; while inactive there is none, and `activate` says where it stands."""
        if self.active:
            self._events.append([name, what])

    def _limiter_state(self) -> dict[str, Any]:
        return {k: np.asarray(v).tolist() for k, v in self.limiter.state_dict().items()}

    def feed(self, name: str, now: float) -> None:
        super().feed(name, now)
        self._happened("feed", [name, now])

    def fault(self, reason: str) -> None:
        super().fault(reason)
        if not self._inside:
            self._happened("fault", reason)

    def tighten(self, **settings: Any) -> None:
        super().tighten(**settings)
        self._happened("tighten", asdict(self.profile.settings))

    def filter(self, target: Array | None, measured: Measured | None, now: float, *, reason: str = "") -> Decision:
        inputs = {"target": as_list(target), **measured_record(measured), "reason": reason, "events": self._events}
        begun, self._inside, self._events = time.perf_counter(), True, []
        try:
            decision = super().filter(target, measured, now, reason=reason)
        finally:
            self._inside = False
        took = time.perf_counter() - begun
        self.put("tick", now, {**inputs, **decided(decision), "error": self.error, "filter_s": took})
        return decision


class PolicyJournal:
    """Pass the journal of a ControlLoop to `put`."""

    def __init__(self, put: Put) -> None:
        self.put = put

    def step(
        self, now: float, step: int, obs: Obs, before: Commanded, action: Array | None, limited: bool,
        driver: str = "policy", proposed: Array | None = None,
    ) -> None:  # fmt: skip
        seen = {k: packed(v[0].numpy()) for k, v in obs.items()}
        commanded = {"q": as_list(before.q), "pos": as_list(before.pos), "yaw": before.yaw, "grip": before.grip}
        wanted = {"action": as_list(action), "limited": bool(limited), "driver": driver, "proposed": as_list(proposed)}
        self.put("step", now, {"step": step, "obs": seen, "commanded": commanded, **wanted})

    def chunk(self, now: float, chunk: Array, observed: float, refused: str) -> None:
        self.put("chunk", now, {"chunk": as_list(chunk), "observed": observed, "refused": refused})
