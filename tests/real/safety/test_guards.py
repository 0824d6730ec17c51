"""Every guard, disabled in turn, breaks at least one test: otherwise it is decoration, or the tests do not bite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from robopolicy.real.control.chunk_buffer import ChunkBuffer
from robopolicy.real.control.control_loop import ControlLoop
from robopolicy.real.control.joint_order import JointOrder
from robopolicy.real.control.joints import ActionDecoder
from robopolicy.real.control.robots import MujocoArm
from robopolicy.real.safety import CommandLimiter, SafetyChain, SafetyError, load_profile, profile_names
from robopolicy.real.safety import chain as chain_module
from robopolicy.real.safety.command_limiter import ERROR, INPUT, OVER_BUDGET, POST
from robopolicy.real.safety.decision import Measured
from robopolicy.real.safety.energy_tank import EnergyTank
from robopolicy.real.safety.joint_space import EdgeVelocity, JointPositionLimit, JointRoom
from robopolicy.real.safety.risk import RiskCritic
from robopolicy.real.safety.settings import Box, Plane, Settings
from robopolicy.real.safety.singularity import Singularity
from robopolicy.real.safety.space import KeepOut, Planes, SelfCollision
from robopolicy.real.safety.tool import TcpSpeed, Workspace
from robopolicy.real.safety.tracking import TrackingCheck
from tests.real.control import test_joints, test_robots
from tests.real.guards import FAILS, Guard, GuardNotFoundError, disabled, kill, with_patch
from tests.real.safety import test_chain, test_limits, test_projection, test_risk, test_tracking

NO_LIMIT = "np.full(len(path.c), np.inf)"


def limit(name: str, owner: type, test: Callable[[], Any]) -> Guard:
    """A limit whose margin is always ample."""
    other = "" if owner is not JointRoom else f" if self.name == {name!r} else self.kept(path)"
    return Guard(name, owner, "margin", "", f"return {NO_LIMIT}{other}", test)


def needed(name: str) -> Callable[[], Any]:
    return partial(test_limits.test_each_limit_is_needed, *next(n for n in test_limits.NEEDED if n[0] == name))


def seen(name: str, *step: float) -> Callable[[], Any]:
    return partial(test_limits.test_joint_limits_see_what_breaks_them, name, list(step))


trouble = partial(partial, test_limits.test_trouble_inside_brakes_within_the_tick)
GUARDS = [
    limit("finite", JointRoom, seen("finite", np.nan, 0.0)),
    limit("joint_position", JointPositionLimit, seen("joint_position", 5.0, 0.0)),
    limit("joint_velocity", JointRoom, seen("joint_velocity", 0.01, 0.01)),
    limit("joint_acceleration", JointRoom, seen("joint_acceleration", 0.0, 1.3e-4)),
    limit("joint_jerk", JointRoom, seen("joint_jerk", 0.0, 5.5e-5)),
    limit("edge_velocity", EdgeVelocity, needed("edge_velocity")),
    limit("tcp_speed", TcpSpeed, needed("tcp_speed")),
    limit("workspace", Workspace, needed("workspace")),
    limit("planes", Planes, needed("planes")),
    limit("keep_out", KeepOut, needed("keep_out")),
    limit("self_collision", SelfCollision, needed("self_collision")),
    limit("singularity", Singularity, needed("singularity")),
    limit("energy", EnergyTank, partial(test_chain.test_a_wall_met_at_speed_gets_no_more_than_the_tank_holds, 0.3)),
    # -- limiter
    Guard(INPUT, CommandLimiter, "_readable", "~np.asarray((np.abs(target) < 1e6).all(axis=1))",
          "np.zeros(len(target), bool)",
          partial(test_limits.test_one_unreadable_number_brakes_in_the_same_tick, np.nan), (*FAILS, ValueError)),
    Guard(OVER_BUDGET, CommandLimiter, "filter", "self.clock() - start > self.budget", "False", trouble("late")),
    Guard(POST, CommandLimiter, "filter", "going & ~self._post_check(command)", "going & False",
          with_patch(test_limits.test_the_post_check_stands_alone)),
    Guard(ERROR, CommandLimiter, "filter", "Exception", "ZeroDivisionError", trouble("exception"),
          (test_limits.Broken,)),
    Guard("certified stop", CommandLimiter, "_accept", "if any_true(going):", "if False:",
          test_limits.test_the_stop_is_as_short_as_physics_lets_it_be),
    Guard("known position", CommandLimiter, "filter", "if not all_true(self.active):", "if False:",
          test_limits.test_an_arm_that_stands_wrong_is_refused_with_the_limit_named),
    Guard("certified rest", CommandLimiter, "start", "if failed.any():", "if False:",
          test_limits.test_an_arm_that_stands_wrong_is_refused_with_the_limit_named),
    Guard("readable rest", CommandLimiter, "start", "not np.isfinite(q).all()", "False",
          test_limits.test_an_arm_that_stands_wrong_is_refused_with_the_limit_named, (*FAILS, ValueError)),
    Guard("lost commands", CommandLimiter, "heard", "np.array_equal(played, self.c[0, -1])", "True",
          partial(test_robots.test_a_policy_drives_the_arm_and_the_arm_never_aborts, 0.0, 0.05)),
    # -- projection
    Guard("finite programme", test_projection, "project", "not _stack(wish, low, high, g, h, low_far, high_h)",
          "None is _stack(wish, low, high, g, h, low_far, high_h)",
          test_projection.test_projection_refuses_numbers_that_are_none),
    Guard("solver's flag", test_projection, "project", "flag == 1", "True",
          with_patch(test_projection.test_a_solver_is_not_believed, "gave up")),
    Guard("solver's numbers", test_projection, "project", "_meets(v, low, high, g, h)", "True",
          with_patch(test_projection.test_a_solver_is_not_believed, "lies")),
    # -- chain
    Guard("watchdog", SafetyChain, "filter", "dog.level(now)", "Mode.RUN",
          test_chain.test_a_state_that_stops_coming_ends_in_hold_then_fault, (*FAILS, ValueError)),
    Guard("steady clock", SafetyChain, "filter", "if not now >= self._now:", "if False:",
          partial(test_chain.test_a_clock_that_runs_backwards_is_a_fault, -3600.0, True)),
    Guard("enable", SafetyChain, "__init__", "if enable is not None:", "if False:",
          test_chain.test_the_enable_is_a_sign_of_life_not_a_message_that_can_get_lost, (*FAILS, ValueError)),
    Guard("latched fault", SafetyChain, "filter", "if self._fault:", "if False:",
          test_chain.test_a_state_that_stops_coming_ends_in_hold_then_fault),
    Guard("tracking error", TrackingCheck, "fault", "self.most", "np.inf",
          test_chain.test_an_arm_that_is_not_where_it_should_be_is_a_fault),
    Guard("an arm that stands", TrackingCheck, "fault", 'return "stalled" if stands > self.stall else ""', 'return ""',
          test_tracking.test_an_arm_that_stands_while_its_command_waits_ahead_is_a_fault),
    Guard("reference clip", SafetyChain, "_within_reach", 'return clipped', "return target",
          test_chain.test_the_command_does_not_run_away_from_a_blocked_arm),
    Guard("readable state", Measured, "joints", "not within(q, 1e6)", "False",
          partial(test_chain.test_a_state_that_cannot_be_read_is_no_state, np.full(7, np.nan))),
    Guard("shape of the state", Measured, "joints", "q.shape != (n,)", "False",
          partial(test_chain.test_a_state_that_cannot_be_read_is_no_state, np.zeros(6)), (*FAILS, ValueError)),
    Guard("a tank at rest", SafetyChain, "activate", "self.tank.rest()", "pass",
          test_chain.test_who_moves_a_resting_arm_by_hand_neither_fills_nor_empties_the_tank, (*FAILS, SafetyError)),
    Guard("stiffness of the tank", chain_module, "tank_for", "tank.stiffness = settings.contact_stiffness",
          "pass", test_chain.test_a_stiffer_contact_is_reckoned_with_at_once),
    Guard("torques", SafetyChain, "_take", "if torque.shape != q.shape or not within(torque, np.inf):", "if False:",
          test_chain.test_a_tank_without_torques_is_no_tank, (*FAILS, ValueError)),
    Guard("rest before motion", SafetyChain, "_waiting",
          "not (bool(self.limiter.at_rest[0]) and now - self._since >= SETTLE)", "False",
          test_chain.test_hold_is_left_by_itself_once_all_is_well_and_the_arm_stood),
    Guard("hold on bad numbers", SafetyChain, "filter", 'if "input" in why:', "if False:",
          test_chain.test_hold_is_left_by_itself_once_all_is_well_and_the_arm_stood),
    Guard("slow", SafetyChain, "filter", "SLOW_PACE if level is Mode.SLOW else 1.0", "1.0",
          test_chain.test_speed_is_reduced_before_it_is_stopped),
    Guard("tighten only", SafetyChain, "tighten", "self.active", "False",
          test_chain.test_limits_tighten_live_and_loosen_only_at_rest),
    Guard("range of settings", Settings, "__post_init__", "not (number and low <= value <= high)", "False",
          test_chain.test_limits_tighten_live_and_loosen_only_at_rest),
    Guard("activate first", SafetyChain, "filter", "if not self.active:", "if False:",
          test_joints.test_a_hundred_lives_of_a_chain),
    Guard("activate at rest", SafetyChain, "activate", "self.active", "False",
          test_joints.test_a_hundred_lives_of_a_chain),
    Guard("risk", SafetyChain, "filter", "min", "max", test_risk.test_a_critic_can_only_slow_down),
    Guard("risk of no number", RiskCritic, "pace", "if not risk <= self.high:", "if risk > self.high:",
          partial(test_risk.test_what_is_no_number_is_as_slow_as_can_be, test_risk.NOT_A_NUMBER)),
    # -- the simulated arm, as strict as the maker's
    Guard("arm: finite", MujocoArm, "_judge", "if not np.isfinite(q).all():", "if False:",
          partial(test_robots.test_the_arm_aborts_as_the_makers_would, "not finite", np.nan)),
    Guard("arm: position", MujocoArm, "_judge", 'if ((q[-1] < m["low"]) | (q[-1] > m["high"])).any():', "if False:",
          partial(test_robots.test_the_arm_aborts_as_the_makers_would, "position", 5.0)),
    Guard("arm: derivatives", MujocoArm, "_judge", "bad.any()", "False",
          partial(test_robots.test_each_derivative_of_what_is_played_is_judged, 2, "acceleration")),
    Guard("arm: ends of joints", MujocoArm, "_judge", "self.profile.edge is not None", "False",
          test_robots.test_near_the_ends_of_its_joints_an_fr3_may_go_only_slowly),
    Guard("arm: lost packets", MujocoArm, "_judge", "if self._lost >= LOST_IN_A_ROW:", "if False:",
          test_robots.test_a_resting_arm_bears_nineteen_lost_packets_and_no_more),
    # -- inputs
    Guard("chunk's shape", ChunkBuffer, "add", "chunk.shape != (self.length, spec.action.dim)", "False",
          test_joints.test_a_chunk_of_another_shape_is_refused, (*FAILS, IndexError)),
    Guard("chunk's numbers", ChunkBuffer, "add", "if not np.isfinite(chunk).all():", "if False:",
          test_robots.test_delays_the_policy_was_not_trained_for_are_refused),
    Guard("chunk's delay", ChunkBuffer, "add", "not 0.0 <= delay < self.max_delay + 0.5 * spec.dt", "False",
          test_robots.test_delays_the_policy_was_not_trained_for_are_refused),
    Guard("late actions of a chunk", ChunkBuffer, "add", "[p for p in new if p.due >= now - 0.5 * spec.dt]",
          "[p for p in new]", test_robots.test_late_actions_are_dropped_never_executed),
    Guard("late actions on their way", ChunkBuffer, "pop", "self.plan[0].due < now - half", "False",
          test_robots.test_late_actions_are_dropped_never_executed),
    Guard("range of actions", ActionDecoder, "decode", "np.clip(action, self.low, self.high)", "action",
          test_joints.test_actions_are_clamped_to_their_range),
    Guard("joints of the robot", ControlLoop, "__init__", "tuple(robot.joints) != chain.profile.joints", "False",
          test_joints.test_a_robot_with_other_joints_is_refused),
    Guard("names of joints", JointOrder, "_index", "if problems:", "if False:",
          test_joints.test_joints_that_are_missing_twice_or_foreign_are_refused, (*FAILS, ValueError)),
]  # fmt: skip


@pytest.mark.parametrize("guard", GUARDS, ids=[g.name for g in GUARDS])
def test_without_it_a_test_fails(guard, monkeypatch):
    if guard.owner is JointRoom:
        monkeypatch.setattr(JointRoom, "kept", JointRoom.margin, raising=False)
    kill(guard, monkeypatch)


def test_a_guard_is_code_and_not_text():
    """Spaces, quotes and line breaks do not matter; a guard that is gone is reported with the function's conditions."""
    spaced = Guard("", SafetyChain, "filter", "if  'input'  in ( why ):", "if False:", print)
    assert callable(disabled(spaced))
    with pytest.raises(GuardNotFoundError, match="'input' in why"):
        disabled(replace(spaced, old="if 'output' in why:"))
    with pytest.raises(AssertionError, match=r"filter does not know \['contextlib'\]"):
        disabled(replace(spaced, new="if contextlib.nullcontext():"))


def test_the_list_is_complete():
    """Every limit of every robot under every setting, and every reason for which the limiter brakes."""
    full = {
        "workspace": Box((-1.0,) * 3, (1.0,) * 3), "planes": (Plane((0.0, 0.0, 1.0), -1.0),), "energy": 5.0,
        "keep_out": (Box((2.0, 2.0, 2.0), (3.0, 3.0, 3.0)),),
    }  # fmt: skip
    names = {INPUT, OVER_BUDGET, POST, ERROR}
    for robot in profile_names():
        names |= {found.name for found in SafetyChain(load_profile(robot, **full)).limiter.limits}
    assert names <= {guard.name for guard in GUARDS}
