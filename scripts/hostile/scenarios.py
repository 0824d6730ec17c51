"""The attacks. Each begins with a configured node; afterwards the world is honest again, and the node must recover."""

from __future__ import annotations

from dataclasses import dataclass

from scripts.hostile import attacks_inputs as inputs
from scripts.hostile import attacks_others as others
from scripts.hostile.attacks import HOUR, Attack
from scripts.hostile.client import Client
from scripts.hostile.world import FR3_ARM, PANDA, Lies, Robot

STATE, COMMANDS, CAMERA = ("joint_states", "state"), ("joint_commands",), ("observation.images.front",)


@dataclass(frozen=True)
class Scenario:
    """One attack.

    names: what a FAULT must name one of; `must`: something must name it. dry: the node is in a dry run. process: it
    plans in a process of its own.
    """

    name: str
    run: Attack
    names: tuple[str, ...] = ()
    must: bool = False
    robot: Robot = PANDA
    dry: bool = False
    process: bool = False


def honest(c: Client) -> None:
    """Tell the truth from now on; a clock that was set stays set, if the arm's driver has it too."""
    c.others.clear()
    c.lies = Lies(shift=c.lies.shift if c.lies.driver_too else 0.0)


def scenarios() -> list[Scenario]:
    """All of them, in the order in which they run."""
    s = Scenario
    nan, inf = float("nan"), float("inf")
    enable, pub = ("enable", "emergency_stop"), (*STATE, "publisher")
    clock = (*STATE, *COMMANDS, "stamp", "clock")
    return [
        s("honest", others.honest_motion, enable),
        s("honest_fr3", others.honest_motion, enable, robot=FR3_ARM),
        *(s(f"clock_inactive_{n}", inputs.clock_inactive(by, wait=w), (*enable, *clock), True)
          for n, by, w in (("-15s", -15.0, 13.0), ("+15s", 15.0, 1.0), ("-1h", -HOUR, 1.0), ("+1h", HOUR, 1.0))),
        *(s(f"clock_before_{n}", inputs.clock_before(by), (*enable, *clock), True)
          for n, by in (("-15s", -15.0), ("+15s", 15.0), ("-1h", -HOUR), ("+1h", HOUR))),
        *(s(f"clock_moving_{n}", inputs.clock_moving(by, driver_too=d), clock, True)
          for n, by, d in (("-15s", -15.0, True), ("+15s", 15.0, False), ("-1h", -HOUR, False), ("+1h", HOUR, True))),
        s("clock_drifts_+1%", inputs.drift(0.01), clock),
        s("clock_drifts_-1%", inputs.drift(-0.01), clock),
        *(s(f"glitch_{n}", inputs.glitch(by, moving=m), clock)
          for n, by, m in (("+0.2s", 0.2, True), ("-0.2s", -0.2, True), ("inactive", 0.2, False))),
        s("two_publishers_before", inputs.two_publishers(moving=False), pub, True),
        s("two_publishers_moving", inputs.two_publishers(moving=True), pub, True),
        *(s(f"second_{role}", inputs.second(role), names, True)
          for role, names in (("states", pub), ("commands", COMMANDS), ("picture", CAMERA))),
        s("jump_3", inputs.jump(3), (*STATE, "tracking_error")),
        s("jump_stays", inputs.jump(10**9), (*STATE, "tracking_error"), True),
        s("states_nan", inputs.spoilt(lambda m: m.position.__setitem__(2, nan)), STATE, True),
        s("states_inf", inputs.spoilt(lambda m: m.velocity.__setitem__(4, inf)), STATE, True),
        s("states_short", inputs.spoilt(inputs.cut), STATE, True),
        s("states_long", inputs.spoilt(inputs.lengthen), STATE, True),
        s("states_swapped", inputs.spoilt(inputs.swap), STATE, True),
        s("states_reordered", inputs.reordered, STATE),
        s("commands_ahead", inputs.commands_ahead, COMMANDS, True),
        s("commands_foreign", inputs.commands_foreign, (*COMMANDS, "foreign_command"), True),
        s("commands_glitch", inputs.commands_glitch, COMMANDS),
        *(s(f"pictures_{lie.replace(' ', '_')}", inputs.pictures(lie), CAMERA, True)
          for lie in ("frozen", "loop", "stamp 0", "an hour ahead", "2 s old")),
        s("pictures_before_an_hour_ahead", inputs.pictures("an hour ahead", moving=False), CAMERA, True),
        s("pictures_before_loop", inputs.pictures("loop", moving=False), CAMERA, True),
        s("enable_silent_reset", others.silent_then("reset", 0.75), enable, True),
        s("enable_silent_activate", others.silent_then("activate", 0.6), enable, True),
        s("enable_latched", others.latched, enable, True),
        s("enable_foreign", others.foreign_enable, enable, True),
        s("enable_stop_and_go", others.stop_and_enable, enable, True),
        s("bystander_moving", others.bystander(before=False), enable),
        s("bystander_before", others.bystander(before=True), enable),
        s("flood_states", others.flood("states", 8)),
        s("flood_enable", others.flood("enable", 60)),
        s("flood_pictures", others.flood("picture", 60)),
        s("flood_calls", others.flood_calls),
        s("flood_foreign_states", others.flood_foreign, pub, True),
        s("dry_run", others.dry_run(raises=False), dry=True),
        s("dry_run_raises", others.dry_run(raises=True), ("RuntimeError", "injected"), True, dry=True),
        s("raises", others.raises_live, ("RuntimeError", "injected"), True),
        s("policy_killed", others.policy_killed, ("planner", "planning", "policy"), True, process=True),
        s("node_stopped", others.stopped(True)),
        s("node_stopped_silent", others.stopped(None), (*enable, *STATE), True),
        s("node_stopped_emergency", others.stopped(False), (*enable, *STATE), True),
    ]  # fmt: skip
