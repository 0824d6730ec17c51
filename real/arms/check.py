"""`robopolicy arm check`: a wiring and its limits against a running arm over ROS 2."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pydantic

from robopolicy.core.errors import ConfigError
from robopolicy.core.untrusted import parse_yaml, read_text
from robopolicy.doctor import show
from robopolicy.doctor.checks import Check
from robopolicy.real.arms.wiring_text import with_delay
from robopolicy.real.ros2.channels import LineDelay
from robopolicy.real.ros2.wiring import FOLDER, WiringError, load_wiring, parse
from robopolicy.real.safety import SafetyError
from robopolicy.utils.atomic import write_atomically

CONTROL_STEP = 0.05  # s, of the native tasks


def arm_check(
    *, wiring: str, seconds: Annotated[float, pydantic.Field(ge=0.5, le=600.0)] = 5.0, write: bool = False
) -> list[Check]:
    """Compare a wiring and its limits with a running arm, and print a finding each; nothing is published.

    Args:
        wiring: a preset in configs/robots/, or a file.
        seconds: s to listen; move each joint meanwhile to see its direction. Other nodes are found in 2 s or more.
        write: write the measured delay of the arm's states into the wiring, which must be a file.

    Raises:
        ConfigError: ROS 2 is missing, or `write` and a preset. SafetyError: something does not fit, or no delay could
            be measured; the findings are printed before.
    """
    known = load_wiring(wiring)
    if write and not wiring.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"write=true: expected a wiring of your own, found the preset {wiring!r}. Copy {FOLDER / wiring}.yaml first"
        )
    try:
        from robopolicy.real.ros2.arm_check import checks_of
    except ImportError as error:
        raise ConfigError(
            f"arm check needs ROS 2 ({error}): ./scripts/setup.sh ros, or source a ROS 2 installation"
        ) from error
    print(f"listening for {seconds:g} s on {known.topic('joint_states').name!r} …", flush=True)
    checks, delay = checks_of(known, seconds)
    show(checks)
    if write:
        _write(Path(wiring), delay)
    if failed := [check.name for check in checks if not check.ok]:
        raise SafetyError(f"wiring={wiring}: does not fit the running arm: {', '.join(failed)}")
    return checks


def _write(path: Path, delay: LineDelay | None) -> None:
    """Write a measured delay into a wiring, and print the delay to train under."""
    if delay is None:
        raise SafetyError(
            "write=true: no delay could be measured. Expected 20 states or more with stamps that increase and are not "
            "in the future: listen longer (seconds=), let the driver stamp its states, and let the clocks agree"
        )
    text = with_delay(read_text(path, error=WiringError), delay)
    answer = parse(parse_yaml(text, str(path), error=WiringError), path.name, path.parent).answer_s
    write_atomically(path, text)
    steps = f"{answer / CONTROL_STEP:.2f}"
    print(
        f"{path}: delay: {text.rpartition('delay: ')[2].partition('  #')[0]}\n"
        f"An action begins {1000 * answer:.0f} ms after the state that it answers, and the time of its planning later. "
        f"To train under that: '+task.randomization.latency=[{steps},{steps}]', in steps of {CONTROL_STEP} s"
    )
