"""As tests/real/test_guards.py, for what stands between the limits and a ROS graph: without it, a test fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

pytest.importorskip("rclpy")

from real.ros2 import messages
from real.ros2.cdr import TrajectoryBytes
from real.ros2.images import ImageReader
from real.ros2.ledger import ArmClock, Ledger
from real.ros2.messages import StateReader
from real.ros2.operator import Operator
from real.ros2.outputs import Positions
from real.ros2.session import Session
from real.ros2.timeline import Timeline
from tests.real import test_ros2_cdr as cdr
from tests.real import test_ros2_images as images
from tests.real import test_ros2_inputs as inputs
from tests.real import test_ros2_operator as operator
from tests.real import test_ros2_outputs as outputs
from tests.real import test_ros2_session as session
from tests.real.test_guards import FAILS, Guard, disabled, with_patch

refusals = session.test_refusals_name_what_is_missing
splices = session.test_a_trajectory_that_does_not_belong_is_refused
clock = session.test_the_arm_s_clock
others = cdr.test_what_others_write_takes_the_long_way


def case(module, test: str, what: str):
    """The one case of a parametrized test whose message begins so."""
    function = getattr(module, test)
    cases = next(mark.args[1] for mark in function.pytestmark if mark.name == "parametrize")
    return partial(function, *next(found for found in cases if found[-1].startswith(what)))


state = partial(case, inputs, "test_a_state_that_is_wrong_is_refused")
picture = partial(case, images, "test_a_picture_that_is_wrong_is_refused")
GUARDS = [
    # -- messages
    Guard("velocities", StateReader, "read", "if len(message.velocity) != len(names):", "if False:",
          state("expected 9 velocities")),
    Guard("finite state", StateReader, "read", "if not np.isfinite(value).all():", "if False:",
          state("'panda_joint7' is not finite")),
    Guard("degrees", StateReader, "_check_unit", "if not outside.any():", "if True:", state("look like degrees")),
    Guard("times of points", messages, "points_of", "if abs(due - first - k * dt_ns) > 1000:", "if False:", others),
    Guard("positions of points", messages, "points_of", "if any(len(p.positions)", "if False and any(len(p.positions)",
          others, (*FAILS, ValueError)),
    Guard("bytes as expected", TrajectoryBytes, "read", "if all(np.array_equal(", "if True or all(np.array_equal(",
          others),
    Guard("whole bytes", TrajectoryBytes, "read", "except Exception as error", "except KeyError as error",
          partial(cdr.test_bytes_that_are_cut_off_are_refused, 100), (RuntimeError,)),
    # -- pictures
    Guard("camera", ImageReader, "read", "if expected and found != expected:", "if False:", picture("frame 'wrist'")),
    Guard("encoding", ImageReader, "_raw", "if message.encoding not in CHANNELS:", "if False:",
          picture("encoding 'mono8'"), (*FAILS, KeyError)),
    Guard("bytes of a picture", ImageReader, "_raw", "or len(message.data) != step * height", "",
          picture("2304 bytes"), (*FAILS, ValueError)),
    Guard("step of a picture", ImageReader, "_raw", "if step < 3 * width or len(message.data) != step * height:",
          "if len(message.data) < 0:", picture("bytes for 24 rows of 95"), (*FAILS, ValueError)),
    Guard("size of a picture", ImageReader, "_check_size", "if not (", "if False and not (",
          picture("2147483648 × 24"), (*FAILS, ValueError, MemoryError)),
    Guard("too few pixels", ImageReader, "read", "if height < self.height or width < self.width:", "if False:",
          picture("16 × 12 pixels are fewer")),
    Guard("shape of a picture", ImageReader, "read", "if abs(width / height * self.height / self.width - 1) > ASPECT:",
          "if False:", picture("32 × 48 pixels")),
    Guard("colours", ImageReader, "_compressed", 'if picture.mode not in ("RGB", "RGBA"):', "if False:",
          picture("pixels of mode 'L'")),
    Guard("decoders", ImageReader, "_compressed", "except Exception as error", "except KeyError as error",
          picture("no whole JPEG"), (OSError,)),
    # -- time
    Guard("readable stamps", ArmClock, "take", "if not math.isfinite(stamp):", "if False:", clock),
    Guard("stamps that jump", ArmClock, "take", "abs(late) > self.jump", "False", clock),
    Guard("old stamps", ArmClock, "take", "if stamp <= self.newest:", "if False:", clock),
    Guard("a clock that was set", Session, "on_state", "self.clock.reset()", "pass",
          partial(session.test_an_arm_whose_clock_was_set_is_not_believed_until_it_is_started_anew, 1),
          (*FAILS, session.SafetyError)),
    # -- what the arm plays
    Guard("foreign commands", Ledger, "heard", 'return "foreign"', 'return ""',
          session.test_an_arm_that_plays_what_nobody_sent_is_a_fault),
    Guard("foreign commands fault", Session, "on_commanded", 'self.chain.fault("foreign_command")', "pass",
          session.test_an_arm_that_plays_what_nobody_sent_is_a_fault),
    Guard("shape of a trajectory", Timeline, "offer",
          "points.ndim != 2 or points.shape[1] != n or not len(points)", "False", splices, (*FAILS, ValueError)),
    Guard("finite trajectory", Timeline, "offer", "if not np.isfinite(points).all():", "if False:", splices),
    Guard("trajectories of the past", Timeline, "offer", "if first + len(points) <= self.tick - MATCH:", "if False:",
          splices),
    Guard("trajectories far ahead", Timeline, "offer", "if first > self.tick + AHEAD:", "if False:", splices),
    Guard("seam", Timeline, "offer", "if not np.array_equal(", "if False and not np.array_equal(", splices),
    Guard("a driver that goes on", Session, "on_commanded", "if goes_on:", "if True:",
          partial(session.test_a_driver_that_no_longer_says_what_it_plays_stops_the_arm, True)),
    Guard("a driver that says what it plays", Session, "on_commanded", "self.chain.feed(PLAYED, self.time)", "pass",
          session.test_an_echo_that_comes_keeps_the_arm_running),
    Guard("numbers in the next tick", Session, "read", "if self.unreadable and", "if False and",
          session.test_a_state_of_numbers_that_are_none_holds_the_arm_in_the_next_tick),
    # -- starting
    Guard("a policy of this robot", inputs, "check_robot", "if found:", "if False:",
          inputs.test_a_spec_that_does_not_match_the_robot),
    Guard("a topic for features", inputs, "check_features", 'and wiring.topics["features"] is None', "and False",
          inputs.test_a_spec_that_does_not_match_the_robot),
    Guard("a state at all", Session, "refusals", "if state is None:", "if False:", refusals),
    Guard("a fresh state", Session, "refusals", "age > 0.5", "False", refusals),
    Guard("a still arm", Session, "refusals", "np.abs(state.qd).max() > STILL", "False", refusals),
    Guard("commands heard", Session, "refusals", "and self.commanded is None", "and False", refusals,
          (*FAILS, TypeError)),
    Guard("fresh commands", Session, "refusals", "> STALE", "> 10**9", refusals),
    Guard("arm where it is held", Session, "refusals", "if not away <= self.chain.profile.astray:",
          "if False:", refusals),
    Guard("an operator", Session, "refusals", "now - self.enabled > max(1.0, patience)", "False", refusals),
    Guard("no longer braking", Session, "refusals", "if self.chain.active and not", "if False and not",
          session.test_an_emergency_stop_brakes_in_the_next_command),
    # -- stopping
    Guard("emergency stop", Session, "on_enable", 'self.chain.fault("emergency_stop")', "pass",
          partial(session.test_the_next_command_after_an_emergency_stop_is_the_stop_s, 150)),
    Guard("a stop that nothing hides", Operator, "_on_timer", "with self._signing:", "if True:",
          operator.test_no_enable_follows_an_emergency_stop),
    Guard("bugs in the loop", Session, "_decide", "except Exception as problem", "except KeyError as problem",
          session.test_whatever_goes_wrong_in_the_loop_brakes_the_arm, (ZeroDivisionError,)),
    # -- positions
    Guard("a stop in time", Positions, "send", "if self.clock() - self._sent > self.timeout_s:", "if False:",
          with_patch(outputs.test_a_stop_is_not_streamed_to_a_driver_that_has_stopped)),
    Guard("a gap in motion", Session, "_fell_behind", "elif gone > 1 and", "elif False and",
          with_patch(outputs.test_two_missed_in_motion_are_a_fault_for_the_driver_stood_meanwhile)),
    Guard("the driver's time-out", Session, "_fell_behind", "> self.wiring.output.timeout_s", "> np.inf",
          with_patch(outputs.test_a_silence_beyond_the_time_out_is_a_fault_and_nothing_more_is_sent)),
    Guard("no word after giving up", Session, "on_driver", "self.muted = True", "pass",
          with_patch(outputs.test_a_silence_beyond_the_time_out_is_a_fault_and_nothing_more_is_sent)),
]  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS, ids=[g.name for g in GUARDS])
def test_without_it_a_test_fails(guard, monkeypatch):
    monkeypatch.setattr(guard.owner, guard.function, disabled(guard))
    with np.errstate(all="ignore"), pytest.raises(guard.how):
        guard.test()
