"""Wirings: limits by name or from a file of one's own, a cell's settings, and what the simulated arm can play."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from robopolicy.real.ros2.simulated_wiring import simulated_problems
from robopolicy.real.ros2.wiring import FOLDER, WiringError, load_wiring
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.profile import FOLDER as PROFILES


def wiring(folder: Path, base: str = "mujoco_panda", **changes: object) -> str:
    data = yaml.safe_load((FOLDER / f"{base}.yaml").read_text())
    path = folder / "cell.yaml"
    path.write_text(yaml.safe_dump({**data, **changes}))
    return str(path)


def test_limits_may_lie_beside_the_wiring(tmp_path):
    data = json.loads((PROFILES / "panda.json").read_text())
    (tmp_path / "mine.json").write_text(json.dumps({**data, "robot": "mine", "velocity": [0.5] * 7}))
    found = load_wiring(wiring(tmp_path, limits="mine.json"))
    assert found.limits == "mine" and found.profile(velocity=1.0).velocity.tolist() == [0.5] * 7
    assert load_wiring("mujoco_panda").profile(tcp_speed=0.1).digest == load_profile("panda", tcp_speed=0.1).digest


@pytest.mark.parametrize("limits", ["cell1_fr3", "none.json", "panda.yaml", "", "../panda"])
def test_unknown_limits_are_refused_by_key_file_and_what_there_is(tmp_path, limits):
    with pytest.raises(WiringError, match=r"cell\.yaml: limits.*fr3, panda, so101, ur5e, ur5e_hand.*JSON"):
        load_wiring(wiring(tmp_path, limits=limits))


@pytest.mark.parametrize("content", ["[]", "{}", '{"format": 2}', "no"])
def test_limits_that_are_none_are_refused(tmp_path, content):
    (tmp_path / "mine.json").write_text(content)
    with pytest.raises(WiringError, match=r"cell\.yaml: limits.*mine\.json"):
        load_wiring(wiring(tmp_path, limits="mine.json"))


def test_a_cell_has_settings_of_its_own(tmp_path):
    assert load_wiring(wiring(tmp_path, safety={"joint_speed": 0.5})).safety == {"joint_speed": 0.5}
    assert load_wiring("fr3").safety == {}
    for wrong in ({"joint_sped": 0.5}, {"joint_speed": [0.5]}, {"velocity": "fast"}):
        with pytest.raises(WiringError, match=r"cell\.yaml.*safety"):
            load_wiring(wiring(tmp_path, safety=wrong))


def test_the_simulated_arm_says_what_it_cannot_play():
    assert simulated_problems(load_wiring("mujoco_panda"), 7) == []
    found = simulated_problems(load_wiring("fr3"), 6)
    assert [p.split(":")[0] for p in found] == [
        "topics.trajectory", "topics.trajectory.node", "topics.joint_commands", "topics.robot_description", "limits",
    ]  # fmt: skip
