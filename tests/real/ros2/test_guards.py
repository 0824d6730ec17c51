"""As tests/real/safety/test_guards.py, for what stands between the limits and a ROS graph: without it, a test fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

pytest.importorskip("rclpy")

from robopolicy.real.control.depth_cameras import CloudMaker, DepthCamera, JointLog
from robopolicy.real.ros2 import arm_findings as findings_module
from robopolicy.real.ros2 import images as images_module
from robopolicy.real.ros2 import messages
from robopolicy.real.ros2 import remote_arm as remote_arm_module
from robopolicy.real.ros2.ages import Ages
from robopolicy.real.ros2.arm_publishers import StatePublishers
from robopolicy.real.ros2.cdr import TrajectoryBytes
from robopolicy.real.ros2.clock import ArmClock, Stamps
from robopolicy.real.ros2.command_history import CommandHistory
from robopolicy.real.ros2.command_sources import OtherSources
from robopolicy.real.ros2.continuity import Continuity
from robopolicy.real.ros2.depth import DepthReader
from robopolicy.real.ros2.depth_inputs import DepthInputs
from robopolicy.real.ros2.episode_client import EpisodeClient
from robopolicy.real.ros2.images import ImageReader
from robopolicy.real.ros2.joint_states import JointStates
from robopolicy.real.ros2.messages import StateReader
from robopolicy.real.ros2.outputs import PositionOutput
from robopolicy.real.ros2.publishers import Publishers
from robopolicy.real.ros2.receipts import Receipts
from robopolicy.real.ros2.remote_arm import RemoteArm
from robopolicy.real.ros2.subscriptions import Subscriptions
from robopolicy.real.ros2.timeline import Timeline
from robopolicy.real.ros2.trajectory_stream import TrajectoryStream
from robopolicy.real.safety import Mode, SafetyChain
from tests.real.control import test_joints
from tests.real.guards import FAILS, Guard, case_of, kill, with_patch
from tests.real.ros2 import test_arm_publishers as publishers
from tests.real.ros2 import test_cdr as cdr
from tests.real.ros2 import test_clock as clocks
from tests.real.ros2 import test_command_sources as sources
from tests.real.ros2 import test_depth as depth
from tests.real.ros2 import test_episode_client as operator
from tests.real.ros2 import test_images as images
from tests.real.ros2 import test_joint_states as joint_states
from tests.real.ros2 import test_messages as inputs
from tests.real.ros2 import test_outputs as outputs
from tests.real.ros2 import test_receipts as receipt
from tests.real.ros2 import test_trajectory_stream as streams
from tests.real.safety import test_chain as chain

refusals = streams.test_refusals_name_what_is_missing
splices = streams.test_a_trajectory_that_does_not_belong_is_refused
others = cdr.test_what_others_write_takes_the_long_way


def case(module, test: str, what: str):
    """The one case of a parametrized test whose message begins so."""
    return case_of(getattr(module, test), lambda case: case[-1].startswith(what))


state = partial(case, inputs, "test_a_state_that_is_wrong_is_refused")
picture = partial(case, images, "test_a_picture_that_is_wrong_is_refused")
depth_image = partial(case, depth, "test_a_depth_image_that_is_wrong_is_refused")
lens = partial(case, depth, "test_a_lens_that_is_wrong_is_refused")
exposure = partial(
    depth.test_clouds_are_those_of_the_simulator_at_the_pictures_exposure, key=depth.KEY, frame="base"
)  # fmt: skip
set_between = streams.test_a_clock_that_was_set_between_two_episodes_changes_nothing_in_the_second
never = partial(streams.test_while_the_arm_runs_another_time_is_never_believed, -15.0)
echo = partial(streams.test_an_echo_of_another_moment_is_no_sign_of_what_was_lost, 10.0)


def stamp(age: float):
    """A stamp that is so old is refused, and for that reason."""
    test = clocks.test_stamps_are_bounded_on_both_sides
    return case_of(test, lambda case: np.array_equal(case[0], age, equal_nan=True))


def moment(reason: str):
    """A picture that is refused for that reason."""
    test = images.test_a_picture_of_another_moment_is_not_used_and_the_next_good_one_is
    bound = case_of(test, lambda case: case[-1] == reason)
    return with_patch(bound)


GUARDS = [
    # -- messages
    Guard("velocities", StateReader, "read", "if len(message.velocity) != len(names):", "if False:",
          state("expected 9 velocities")),
    Guard("finite state", StateReader, "read", "if not np.isfinite(value).all():", "if False:",
          state("'panda_joint7' is not finite")),
    Guard("unit of a gripper", StateReader, "read_gripper", "if not low <= opening <= high:", "if False:",
          state("are 80 m apart")),
    Guard("degrees", StateReader, "_check_unit", "if not outside.any():", "if True:", state("look like degrees")),
    Guard("times of points", messages, "points_of", "if abs(due - first - k * dt_ns) > 1000:", "if False:", others),
    Guard("positions of points", messages, "points_of",
          "any((len(p.positions) != len(message.joint_names) for p in message.points))", "False", others,
          (*FAILS, ValueError)),
    Guard("bytes as expected", TrajectoryBytes, "read",
          'all((np.array_equal(rows[part], due[part]) for part in ("n", "none", "s", "ns")))', "True", others),
    Guard("whole bytes", TrajectoryBytes, "read", "Exception", "KeyError",
          partial(cdr.test_bytes_that_are_cut_off_are_refused, 100), (RuntimeError,)),
    # -- pictures
    Guard("camera", ImageReader, "read", "if expected and found != expected:", "if False:", picture("frame 'wrist'")),
    Guard("encoding", ImageReader, "_raw", "if message.encoding not in CHANNELS:", "if False:",
          picture("encoding 'mono8'"), (*FAILS, KeyError)),
    Guard("bytes of a picture", ImageReader, "_raw", "len(message.data) != step * height", "False",
          picture("2304 bytes"), (*FAILS, ValueError)),
    Guard("step of a picture", ImageReader, "_raw", "if step < 3 * width or len(message.data) != step * height:",
          "if len(message.data) < 0:", picture("bytes for 24 rows of 95"), (*FAILS, ValueError)),
    Guard("size of a picture", ImageReader, "_check_size", "not (0 < height <= LARGEST and 0 < width <= LARGEST)",
          "False", picture("2147483648 × 24"), (*FAILS, ValueError, MemoryError)),
    Guard("too few pixels", images_module, "fitted", "if height < h or width < w:", "if False:",
          picture("16 × 12 pixels are fewer")),
    Guard("shape of a picture", images_module, "fitted", "if abs(width / height * h / w - 1) > ASPECT:",
          "if False:", picture("32 × 48 pixels")),
    Guard("colours", ImageReader, "_compressed", 'if picture.mode not in ("RGB", "RGBA"):', "if False:",
          picture("pixels of mode 'L'")),
    Guard("decoders", ImageReader, "_compressed", "Exception", "KeyError", picture("no whole JPEG"), (OSError,)),
    # -- depth
    Guard("depth camera", DepthReader, "_check_frame", "if found != self.topic.frame_id:", "if False:",
          depth_image("frame 'front'")),
    Guard("encoding of depth", DepthReader, "read", "if message.encoding not in UNITS:", "if False:",
          depth_image("encoding 'rgb8'"), (*FAILS, KeyError)),
    Guard("size of depth", DepthReader, "read", "if (height, width) != self.size:", "if False:",
          depth_image("48 × 48 pixels")),
    Guard("bytes of depth", DepthReader, "read", "len(message.data) != step * height", "False",
          depth_image("4 bytes"), (*FAILS, ValueError)),
    Guard("a lens at all", DepthReader, "read", "if not self.heard:", "if False:",
          depth.test_the_lens_of_camera_info_counts_in_place_of_the_file),
    Guard("distortion", DepthReader, "on_lens", 'message.distortion_model != "plumb_bob" or any(d[4:])', "False",
          lens("plumb_bob with k3")),
    Guard("a lens that folds over", DepthReader, "on_lens", "lens.check(size)", "pass", lens("cannot be undone")),
    Guard("a part of a picture", DepthReader, "on_lens",
          "max(message.binning_x, message.binning_y) > 1 or any((message.roi.width, message.roi.height))", "False",
          lens("binning")),
    Guard("the arm at the exposure", CloudMaker, "finished", "p.taken <= self.log.newest and k not in self._running",
          "True", exposure),
    Guard("the arm between two states", JointLog, "at", "(time - before) / (after - before)", "1.0", exposure),
    Guard("range of depth", DepthCamera, "__call__", "(depth >= near) & (depth <= far)", "depth == depth",
          depth.test_depth_out_of_range_has_no_point),
    Guard("stamps of depth", DepthInputs, "_on_image", "self.arm.stamps[key].take(taken, at)", "pass",
          with_patch(depth.test_no_episode_begins_without_a_good_cloud)),
    # -- time
    Guard("readable stamps", Stamps, "take", "if not math.isfinite(stamp):", "if False:", stamp(np.nan)),
    Guard("stamps at all", Stamps, "take", "if stamp == 0.0:", "if False:", moment("unstamped")),
    Guard("a clock to compare with", Stamps, "take", "if time == -math.inf:", "if False:",
          with_patch(images.test_a_picture_cannot_be_dated_before_the_arm_has_said_what_time_it_is)),
    Guard("stamps of the future", Stamps, "take", "if not age >= -self.ahead:", "if False:", stamp(-3600.0)),
    Guard("old stamps", Stamps, "take", "if not age <= self.latency + self.most:", "if False:", stamp(2.0)),
    Guard("a latency that is not so", Stamps, "take", "not age >= self.latency - self.most", "False",
          with_patch(images.test_the_latency_of_a_camera_must_be_the_one_that_the_wiring_says, 0.05, "latency")),
    Guard("stamps that repeat themselves", Stamps, "take", "not stamp > self.last", "False", moment("repeated")),
    Guard("a last stamp of another time", Stamps, "take", "self.last <= time + self.ahead", "True",
          partial(set_between, -15.0, "enable"), (*FAILS, streams.SafetyError)),
    Guard("an echo ahead of its commands", remote_arm_module, "stamps_of", "ahead", "100.0", echo),
    Guard("a clock that was set", RemoteArm, "on_state", "self.clock.restart(stamp, at)",
          "self.clock.learn(stamp, at)", partial(set_between, -15.0, "enable"), (*FAILS, streams.SafetyError)),
    Guard("no other time while it runs", RemoteArm, "on_state",
          "if not (running and (self.begun or not self.clock.follow)):", "if True:", never),
    Guard("simulated time that leaps", RemoteArm, "on_state", 'self.chain.fault("clock")', "pass",
          partial(streams.test_simulated_time_that_leaps_is_a_fault, 3600.0)),
    Guard("a clock that may be set before the first command", RemoteArm, "on_state", "self.begun", "True",
          streams.test_no_plan_begins_before_a_simulated_arm_waits_for_it),
    Guard("a plan that would let simulated time go on", TrajectoryStream, "_begun", "if not arm.waiting:", "if False:",
          streams.test_no_plan_begins_before_a_simulated_arm_waits_for_it),
    Guard("time that has not begun", TrajectoryStream, "_begun", "if self.early:", "if False:",
          partial(streams.test_simulated_time_begins_with_the_first_plan_however_long_the_arm_went_on_before, 200, 1)),
    Guard("a leap of a clock that is followed", Stamps, "take",
          "if self.latency and not age >= self.latency - self.most:", "if not age >= self.latency - self.most:",
          partial(streams.test_simulated_time_begins_with_the_first_plan_however_long_the_arm_went_on_before, 25, 1)),
    Guard("an enable that is gone", RemoteArm, "awaits_enable", 'self.ages.silent("enable", now) > OVERDUE',
          "False",
          partial(streams.test_simulated_time_waits_for_an_enable_that_a_busy_machine_holds_up, 1.0, Mode.FAULT)),
    Guard("the median", ArmClock, "learn", "median + SLACK", "math.inf",
          partial(clocks.test_wrong_stamps_do_not_move_the_clock, 0.2, 10)),
    Guard("a window", ArmClock, "learn", "if len(self._recent) > self.window:", "if False:",
          partial(clocks.test_a_clock_that_was_set_is_followed_within_a_window_and_the_time_before_is_forgotten, 0.2)),
    Guard("numbers for the clock", ArmClock, "learn", "if not math.isfinite(stamp):", "if False:",
          partial(clocks.test_a_clock_that_was_set_is_followed_within_a_window_and_the_time_before_is_forgotten, 0.2)),
    Guard("a time that is given up", ArmClock, "restart", "not self.follow", "False",
          partial(set_between, -15.0, "enable"), (*FAILS, streams.SafetyError)),
    Guard("time from nothing", TrajectoryStream, "start", '(tick, 0.0, arm.ages.heard["state"])',
          '(self.zero or tick, arm.time, arm.ages.heard["state"])', partial(set_between, -15.0, "enable"),
          (*FAILS, streams.SafetyError)),
    Guard("hours that were slept through", TrajectoryStream, "_catch_up", "goal - arm.history.last > KEPT", "False",
          clocks.test_a_stream_that_slept_through_hours_wakes_at_once),
    # -- ages
    Guard("watchdogs on our clock", TrajectoryStream, "_decide", "arm.ages.tell(arm.now, arm.time)", "pass",
          partial(streams.test_silence_faults_and_stays, "states")),
    Guard("ages, not times of ticks", Ages, "tell", "time - self.of(dog.name, now)", "time",
          partial(streams.test_silence_faults_and_stays, "enable")),
    Guard("silences without a tick", Ages, "hear", "self.chain.fault(name)", "pass",
          partial(streams.test_a_silence_that_nobody_saw_counts_all_the_same, "enable")),
    Guard("no enable by a beginning", Ages, "begin", 'if dog.name != "enable":', "if True:",
          clocks.test_an_enable_is_not_fed_by_the_beginning_of_an_episode),
    Guard("no enable by an activation", SafetyChain, "activate", 'if dog.name != "enable":', "if True:",
          chain.test_the_enable_is_a_sign_of_life_not_a_message_that_can_get_lost),
    Guard("an enable that is alive", SafetyChain, "activate", "dog.level(now) >= Mode.HOLD", "False",
          chain.test_the_enable_is_a_sign_of_life_not_a_message_that_can_get_lost),
    Guard("states that waited", RemoteArm, "read", 'self.ages.of("state", self.now)',
          '0.0 * self.ages.of("state", self.now)', streams.test_states_that_waited_for_the_node_are_as_old_as_they_are),
    Guard("messages that waited", Receipts, "received", "return now - waited", "return now",
          with_patch(receipt.test_a_message_is_as_old_as_its_receipt, 2.0, 3.0, 0.0, 2.0)),
    Guard("a system's clock that was set", Receipts, "received", "max(min(self.drained, now), now - waited)",
          "now - waited", with_patch(receipt.test_a_message_is_as_old_as_its_receipt, 0.0, 0.002, 3600.0, 0.002)),
    Guard("a system's clock that was set back", Receipts, "received",
          'max(system - int(info["received_timestamp"]), 0)', '(system - int(info["received_timestamp"]))',
          with_patch(receipt.test_a_message_is_as_old_as_its_receipt, 0.0, 0.002, -3600.0, 0.0)),
    Guard("keys that waited", Subscriptions, "_on_key", "(age := time.monotonic() - at) > FRESH", "False",
          with_patch(receipt.test_keys_that_waited_move_nothing_but_a_stop_always_counts)),
    Guard("stops that waited", Subscriptions, "_on_key", "message.data not in STOPS", "True",
          with_patch(receipt.test_keys_that_waited_move_nothing_but_a_stop_always_counts)),
    Guard("stamps of features", Subscriptions, "_on_features",
          'self.arm.stamps["features"].take(stamp_of(message), at)',
          "pass", with_patch(receipt.test_features_of_another_moment_are_not_used)),
    Guard("stamps of pictures", Subscriptions, "_on_image", "self.arm.stamps[key].take(stamp_of(message), at)", "pass",
          moment("late")),
    Guard("stamps of a gripper", JointStates, "on_gripper", "self.arm.stamps[GRIPPER].take(stamp_of(message), at)",
          "pass", with_patch(joint_states.test_a_gripper_that_is_silent_or_of_another_moment_is_said),
          (*FAILS, IndexError)),
    Guard("stamps of echoes", RemoteArm, "on_commanded", "self.stamps[PLAYED].take(stamp, at)", "pass", echo),
    # -- whose it is
    Guard("motions that are possible", Continuity, "take", "if not (moved <= most).all():", "if False:",
          clocks.test_joints_move_no_further_than_they_can),
    Guard("a fault where they are not", RemoteArm, "on_state", "self.chain.fault(str(error))", "pass",
          partial(streams.test_a_state_that_no_motion_leads_to_stops_the_arm, True)),
    Guard("no start after a jump", RemoteArm, "refusals", "found += self.continuity.problems(now)", "pass",
          partial(streams.test_a_state_that_no_motion_leads_to_stops_the_arm, False)),
    Guard("messages of others", JointStates, "wants",
          "if self.reader.has_arm(message) if role == ARM else self.reader.has_gripper(message):", "if True:",
          with_patch(joint_states.test_an_empty_first_message_and_those_of_others_are_counted_and_refuse_nothing)),
    Guard("the number of joints of a task", test_joints, "check_arm", "if arm.dof != other.dof:", "if False:",
          test_joints.test_actions_of_another_arm_are_refused),
    Guard("the frames of a task's arm", test_joints, "check_arm",
          "if mine.shape != theirs.shape or not (np.abs(mine - theirs) < CLOSE).all():", "if False:",
          test_joints.test_actions_of_another_arm_are_refused),
    Guard("one publisher while it runs", Publishers, "take", "gid != self.owner", "False",
          clocks.test_while_the_arm_runs_nobody_else_is_listened_to),
    Guard("one publisher at the start", Publishers, "problems", "if len(nodes) <= 1:", "if True:",
          clocks.test_more_than_one_publisher_speaks_against_a_start, (*FAILS, IndexError)),
    Guard("publishers that the graph lacks", Publishers, "problems",
          '{gid: "unknown" for gid in self.heard if gid not in silent and gid not in nodes and not self.latched}', "{}",
          clocks.test_more_than_one_publisher_speaks_against_a_start),
    Guard("publishers that are gone", Publishers, "problems", "now - at > ALIVE", "False",
          clocks.test_more_than_one_publisher_speaks_against_a_start),
    Guard("another's messages", Subscriptions, "_of_one", "publishers.take(gid, at, running)", "pass",
          with_patch(receipt.test_another_publisher_is_not_listened_to_while_the_arm_runs, b"b")),
    Guard("another in the graph", Subscriptions, "_of_one", "raise PublisherError(publishers.second())", "pass",
          with_patch(receipt.test_another_publisher_is_not_listened_to_while_the_arm_runs, None)),
    Guard("a fault for another", Subscriptions, "_of_one", "self.arm.on_second_publisher(str(error))", "pass",
          with_patch(receipt.test_another_publisher_is_not_listened_to_while_the_arm_runs, b"b")),
    Guard("a description that is late", Subscriptions, "_of_one", "not publishers.latched", "True",
          with_patch(receipt.test_a_description_that_comes_late_stops_no_arm)),
    Guard("other nodes that can command", OtherSources, "_sources",
          "{role: other_sources(self.node, topic, connected=True) for role, topic in self.topics.items()}", "{}",
          case(sources, "test_another_node_that_can_command_counts", "/teleop"), (*FAILS, ValueError)),
    Guard("other nodes that come later", OtherSources, "newcomers", "self._sources()", "{}",
          sources.test_a_node_that_comes_while_the_arm_runs_is_told_once_the_graph_has_settled, (*FAILS, ValueError)),
    Guard("a graph that settles", OtherSources, "newcomers", "now - self._since >= SETTLES", "True",
          sources.test_a_node_that_comes_while_the_arm_runs_is_told_once_the_graph_has_settled),
    Guard("two publishers of the same joints", StatePublishers, "together",
          "any(mine.first <= their.last and their.first <= mine.last for k, their in spans.items() if k != gid)",
          "False", publishers.test_a_second_publisher_of_the_arm_is_named_and_what_to_stop),
    Guard("states too fast", findings_module, "_times", "rate > FAST * topic.rate_hz", "False",
          publishers.test_too_many_messages_of_one_publisher_are_said_with_the_bound),
    # -- what the arm plays
    Guard("foreign commands", CommandHistory, "heard", 'return "foreign"', 'return ""',
          streams.test_an_arm_that_plays_what_nobody_sent_is_a_fault),
    Guard("foreign commands fault", RemoteArm, "on_commanded", 'self.chain.fault("foreign_command")', "pass",
          streams.test_an_arm_that_plays_what_nobody_sent_is_a_fault),
    Guard("shape of a trajectory", Timeline, "offer", "points.ndim != 2 or points.shape[1] != n or not len(points)",
          "False", splices, (*FAILS, ValueError)),
    Guard("finite trajectory", Timeline, "offer", "if not np.isfinite(points).all():", "if False:", splices),
    Guard("trajectories of the past", Timeline, "offer", "if first + len(points) <= self.tick - MATCH:", "if False:",
          splices),
    Guard("trajectories far ahead", Timeline, "offer", "if first > self.tick + AHEAD:", "if False:", splices),
    Guard("seam", Timeline, "offer", "not np.array_equal(points[min(tick - first, len(points) - 1)], self.at(tick))",
          "False", splices),
    Guard("a driver that says what it plays", RemoteArm, "on_commanded", "self.hear(PLAYED, at)", "pass",
          streams.test_an_echo_that_comes_keeps_the_arm_running),
    Guard("numbers in the next tick", RemoteArm, "read", "self.unreadable", "False",
          streams.test_a_state_of_numbers_that_are_none_holds_the_arm_in_the_next_tick),
    # -- starting
    Guard("a policy of this robot", inputs, "check_robot", "if found:", "if False:",
          inputs.test_a_spec_that_does_not_match_the_robot),
    Guard("a topic for features", inputs, "check_features", 'wiring.topics["features"] is None', "False",
          inputs.test_a_spec_that_does_not_match_the_robot),
    Guard("a state at all", RemoteArm, "refusals", "if state is None:", "if False:", refusals),
    Guard("a fresh state", RemoteArm, "refusals", 'not age <= min(FRESH, self.wiring.watchdogs["state"].fault)',
          "False", refusals),
    Guard("a still arm", RemoteArm, "refusals", "not np.abs(state.qd).max() <= STILL", "False", refusals),
    Guard("commands heard", RemoteArm, "refusals", "self.commanded is None", "False", refusals,
          (*FAILS, TypeError)),
    Guard("fresh commands", RemoteArm, "refusals", "STALE", "10 ** 9", refusals),
    Guard("arm where it is held", RemoteArm, "refusals", "if not away <= self.chain.profile.max_tracking_error:",
          "if False:", refusals),
    Guard("an operator", RemoteArm, "refusals", 'not self.ages.silent("enable", now) <= patience', "False",
          refusals),
    Guard("no longer braking", RemoteArm, "refusals", "self.chain.active", "False",
          streams.test_an_emergency_stop_brakes_in_the_next_command),
    # -- stopping
    Guard("emergency stop", RemoteArm, "on_enable", 'self.chain.fault("emergency_stop")', "pass",
          streams.test_an_emergency_stop_brakes_in_the_next_command),
    Guard("a stop that nothing hides", EpisodeClient, "_on_timer", "self._signing", "threading.Lock()",
          operator.test_no_enable_follows_an_emergency_stop),
    Guard("bugs in the loop", TrajectoryStream, "_decide", "Exception", "KeyError",
          streams.test_whatever_goes_wrong_in_the_loop_brakes_the_arm, (ZeroDivisionError,)),
    # -- positions
    Guard("a stop in time", PositionOutput, "send", "if self.clock() - self._sent > self.timeout_s:", "if False:",
          with_patch(outputs.test_a_stop_is_not_streamed_to_a_driver_that_has_stopped)),
    Guard("a gap in motion", TrajectoryStream, "_fell_behind", "gone > 1", "False",
          with_patch(outputs.test_two_missed_in_motion_are_a_fault_for_the_driver_stood_meanwhile)),
    Guard("the driver's time-out", TrajectoryStream, "_fell_behind", "self.wiring.output.timeout_s", "np.inf",
          with_patch(outputs.test_a_silence_beyond_the_time_out_is_a_fault_and_nothing_more_is_sent)),
    Guard("no word after giving up", RemoteArm, "on_driver_failure", "self.muted = True", "pass",
          with_patch(outputs.test_a_silence_beyond_the_time_out_is_a_fault_and_nothing_more_is_sent)),
]  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS, ids=[g.name for g in GUARDS])
def test_without_it_a_test_fails(guard, monkeypatch):
    kill(guard, monkeypatch)
