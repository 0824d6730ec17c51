"""As real/safety/test_guards.py, for what comes in from other machines, robots and disks: without it, a test fails."""

from __future__ import annotations

import queue
import tempfile
from pathlib import Path

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.real.planning import server, wire
from robopolicy.real.planning.remote_planner import RemotePlanner
from robopolicy.real.planning.server import PolicyServer
from robopolicy.real.planning.wire import WireError
from robopolicy.real.recording.recorder import Recorder
from robopolicy.real.ros2 import urdf
from tests.real.control import test_joints
from tests.real.guards import FAILS, Guard, case_of, kill
from tests.real.planning import test_remote_planner
from tests.real.recording import test_recorder

greetings, garbage = (
    test_remote_planner.test_greetings_that_are_refused,
    test_remote_planner.test_messages_that_are_refused,
)


def fitting(what: str):
    """The case of a robot's description whose refusal begins so."""
    test = test_joints.test_a_description_that_does_not_fit_is_refused_and_said_where
    return case_of(test, lambda case: case[-1].startswith(what))


def somewhere(test):
    """A test that wants a folder, in a new one."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))

    return run


elsewhere = somewhere(test_remote_planner.test_other_machines_need_a_token_and_tls)
GUARDS = [
    # -- who may connect
    Guard("loopback or token and TLS", PolicyServer, "__init__",
          "if lacks and not is_loopback(host):", "if False:", elsewhere, (*FAILS, ConfigError)),
    Guard("a token for another machine", RemotePlanner, "__init__", "if not local and self.token is None:", "if False:",
          elsewhere, (*FAILS, test_remote_planner.PlanningError)),
    Guard("token", PolicyServer, "_greet", "if self.token is not None:", "if False:", greetings),
    Guard("the right token", PolicyServer, "_greet",
          "if not hmac.compare_digest(given.encode(), self.token.secret.encode()):", "if False:", greetings),
    Guard("token's expiry", PolicyServer, "_check_expiry", "self.token is not None", "False", greetings),
    Guard("expiry while connected", PolicyServer, "_talk", "self._check_expiry()", "pass",
          somewhere(test_remote_planner.test_a_token_that_expires_ends_the_connection)),
    Guard("protocol", PolicyServer, "_greet", 'if head["type"] != "hello" or head["protocol"] != PROTOCOL:',
          "if False:", greetings),
    Guard("the same policy", PolicyServer, "_greet", "if differ:", "if False:", greetings),
    # -- what they may say
    Guard("size of a message", wire, "_sizes", "if head > HEADER or body > limit:", "if False:", garbage),
    Guard("magic", wire, "_sizes", "if magic != _MAGIC:", "if False:", garbage),
    Guard("sizes that were announced", wire, "decode",
          "if (size := sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in layouts)) != body:", "if False:",
          garbage, (*FAILS, WireError)),
    Guard("types of fields", wire, "decode",
          'checked(_HEADERS[kind], found, f"malformed message: {kind}", error=WireError)',
          "_HEADERS[kind].validate_python({**found, 'step': 0})", garbage),
    Guard("names of arrays", server, "_observation", "if set(found) != set(needed):", "if False:", garbage,
          (*FAILS, WireError)),
    Guard("shapes of arrays", server, "_observation", "value.shape != shape", "False", garbage),
    Guard("types of arrays", server, "_observation", "value.dtype.name != feature.dtype", "False", garbage),
    Guard("finite arrays", server, "_observation", "not np.isfinite(value).all()", "False", garbage),
    # -- the arm's own description
    Guard("joints of a description", test_joints, "check_urdf", "if (joint := robot.joints.get(name)) is None:",
          "if (joint := robot.joints.get(name, next(iter(robot.joints.values())))) is None:",
          fitting("panda_joint7: is not in it")),
    Guard("kind of a joint", test_joints, "check_urdf", 'if joint.type not in ("revolute", "continuous"):',
          "if False:",
          fitting("expected a revolute")),
    Guard("order of joints", test_joints, "check_urdf",
          "if before and before not in _ancestors(joint, robot):", "if False:",
          test_joints.test_a_description_of_another_arm_is_refused),
    Guard("limits of a description", urdf, "_limits", "not sign * ours <= sign * theirs + TOLERANCE", "False",
          fitting("panda_joint3: upper")),
    # -- recordings
    Guard("recordings are kept", Recorder, "__init__", 'if found := sorted(self.folder.glob("*.mcap")):', "if False:",
          somewhere(test_recorder.test_a_second_recording_goes_elsewhere)),
    Guard("no tick waits for a disk", Recorder, "put", "queue.Full", "KeyError",
          somewhere(test_recorder.test_a_full_queue_drops_counts_and_says_so), (queue.Full,)),
    Guard("lost messages count", Recorder, "put", "self.dropped[topic] += 1", "pass",
          somewhere(test_recorder.test_a_full_queue_drops_counts_and_says_so)),
    Guard("a disk that refuses", Recorder, "end", "if self._broken is not None:", "if False:",
          somewhere(test_recorder.test_recording_says_when_the_disk_refuses)),
]  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS, ids=[g.name for g in GUARDS])
def test_without_it_a_test_fails(guard, monkeypatch):
    monkeypatch.setattr(server, "GREETING", 0.5)
    kill(guard, monkeypatch)
