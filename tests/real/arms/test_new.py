"""Limits and a wiring of a URDF: what they hold, where it is from, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from robopolicy.cli.main import main
from robopolicy.core.errors import RobopolicyError
from robopolicy.real.arms.new import arm_new
from robopolicy.real.arms.urdf import UrdfError
from robopolicy.real.control.arm_kinematics import kinematics_of
from robopolicy.real.ros2.urdf import check_urdf, contradictions
from robopolicy.real.ros2.wiring import load_wiring
from robopolicy.real.safety import CommandLimiter, load_profile
from robopolicy.real.safety.audit import joint_violations, space_violations
from robopolicy.sim.kinematics import forward
from tests.real.adversary import targets
from tests.real.arms.robots import joint, random_arm, robot, simple

DT = 0.004
FINGERS = (
    joint("finger", "l6", "f1", type="prismatic", limit='lower="0" upper="0.04" velocity="0.1"'),
    joint("finger2", "l6", "f2", type="prismatic", axis=(0, 0, -1), more='<mimic joint="finger" multiplier="1"/>'),
)


def file_of(folder, text):
    path = folder / "arm.urdf"
    path.write_text(text)
    return path


@pytest.mark.parametrize("text", [simple(5), simple(6), random_arm(7, 3)])
def test_what_is_made_fits_its_own_urdf_and_holds_an_adversary(tmp_path, text):
    wiring = load_wiring(str(arm_new(urdf=file_of(tmp_path, text), out=tmp_path / "made")))
    profile = wiring.profile(tcp_speed=0.8)
    check_urdf(profile, text, wiring.joints)
    limiter = CommandLimiter(profile, 4, dt=DT)
    limiter.start(np.tile(profile.data["home"], (4, 1)))
    out = list(limiter.c.transpose(1, 0, 2)[-4:])
    with np.errstate(all="ignore"):
        for target in targets(profile, 4, 150, seed=1):
            verdict = limiter.filter(target)
            assert not verdict.error
            out.append(verdict.command)
    commands = np.array(out)
    counted = joint_violations(commands, profile, DT) | space_violations(commands, profile, DT, poses=200)
    assert sum(counted.values()) == 0, counted
    assert np.abs(commands[-1] - commands[0]).max() > 1e-3


def test_every_number_says_where_it_is_from(tmp_path):
    arm_new(urdf=file_of(tmp_path, simple()), out=tmp_path, source="Maker, rev 3", acceleration=(8.0,) * 6, high=2.0,
            low=-2.0)  # fmt: skip
    data = json.loads((tmp_path / "robot.json").read_text())
    assert data["acceleration"] == [8.0] * 6 and data["sources"]["acceleration"] == "maker's sheet: Maker, rev 3"
    assert data["sources"]["jerk"].startswith("conservative default")
    assert data["sources"]["velocity"].startswith("URDF 'robot', sha256")
    assert set(data["position"]) == {"urdf", "sheet"} and data["position"]["urdf"]["range"][1] == [2.5] * 6
    assert load_wiring(str(tmp_path / "robot.yaml")).profile().maker["high"].tolist() == [2.0] * 6
    numbers = set(data) - {"format", "robot", "version", "title", "sources"}
    labelled = " ".join(data["sources"])
    assert all(key in labelled for key in numbers), "a label for each"


SOFT = {"more": '<safety_controller soft_lower_limit="-1" soft_upper_limit="1.5" k_velocity="1"/>'}
UPPER = {"more": '<safety_controller soft_upper_limit="1.5" k_velocity="1"/>'}


@pytest.mark.parametrize(
    ("soft", "low", "high"),
    [
        ({f"j{i}": SOFT for i in range(1, 7)}, [-1.0] * 6, [1.5] * 6),
        ({"j2": SOFT, "j4": UPPER}, [-2.5, -1, -2.5, -2.5, -2.5, -2.5], [2.5, 1.5, 2.5, 1.5, 2.5, 2.5]),
    ],
)
def test_soft_limits_count_where_they_are_tighter(tmp_path, soft, low, high):
    arm_new(urdf=file_of(tmp_path, simple(6, **soft)), out=tmp_path)
    found = load_wiring(str(tmp_path / "robot.yaml")).profile()
    assert found.maker["low"].tolist() == low and found.maker["high"].tolist() == high
    label = found.data["sources"]["position.urdf, soft"]
    assert all((f"'j{i}'" in label) == (soft.get(f"j{i}") is not SOFT) for i in range(1, 7)), label


def with_fingers(*fingers):
    return simple().replace("</robot>", "<link name='f1'/><link name='f2'/>" + "".join(fingers) + "</robot>")


def finger(number, side=1, lower=0.0, upper=0.04, at=0.0, **more):
    return joint(f"finger{number}", "l6", f"f{number}", type="prismatic", axis=(0, side, 0), xyz=(0, at, 0.05),
                 limit=f'lower="{lower}" upper="{upper}" velocity="0.1"', **more)  # fmt: skip


BACK = joint("finger2", "l6", "f2", type="prismatic", limit='lower="-0.04" upper="0" velocity="0.1"',
             more='<mimic joint="finger" multiplier="-1"/>')  # fmt: skip


@pytest.mark.parametrize("second", [FINGERS[1], BACK])
def test_fingers_that_mimic_one_another_are_one_gripper(tmp_path, capsys, second):
    path = file_of(tmp_path, with_fingers(FINGERS[0], second))
    wiring = load_wiring(str(arm_new(urdf=path, out=tmp_path, tip="tool")))
    assert wiring.gripper == {"finger": 2.0} and wiring.grip is not None and wiring.grip.high == 0.08
    assert "gripper: {'finger': 2.0}, closed at 0, 80 mm open" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fingers", "why"),
    [
        ([finger(1)], r"expected two fingers that slide, found \['finger1'\]"),
        ([finger(1, lower=-0.04, upper=0), finger(2, -1)], r"\['finger1'\] do not go from 0 to some positive end"),
        ([finger(1), finger(2)], "do not part as they go"),
        ([finger(1, -1, at=0.04), finger(2, 1, at=-0.04)], "do not part as they go"),  # open at 0
        ([finger(1), finger(2, -1, more='<mimic joint="finger1" offset="0.01"/>')], "follow with an offset"),
        (
            [joint("knuckle", "l6", "k"), finger(1), finger(2, -1, more='<mimic joint="knuckle" multiplier="0.1"/>')],
            r"follow \['knuckle'\], which do not slide",
        ),
    ],
)
def test_a_gripper_whose_opening_is_unknown_is_left_out_and_named(tmp_path, capsys, fingers, why):
    wiring = load_wiring(str(arm_new(urdf=file_of(tmp_path, with_fingers(*fingers)), out=tmp_path, tip="tool")))
    assert wiring.gripper == {} and wiring.grip is None
    assert re.search(f"no gripper: .*{why}", capsys.readouterr().out)


@pytest.mark.parametrize("high", [0.05, 0.3])
def test_a_long_tool_keeps_off_a_plane_but_for_its_tip(tmp_path, high):
    """The tool's point may come close to a plane, the body of the tool may not be in it."""
    text = simple().replace("0.02 0.10000000000000001", f"0 {high}")
    profile = load_wiring(str(arm_new(urdf=file_of(tmp_path, text), out=tmp_path, radius=0.03))).profile()
    kept = [c for c in profile.data["capsules"] if c["link"] == 6 and c.get("scene", True)]
    reach = np.linalg.norm(kept[0]["end"]) if kept else 0.0
    assert reach == pytest.approx(max(0.0, high - 0.055), abs=1e-9)
    assert (
        profile.data["capsules"][-1]["scene"] is False and "'link0', 'tip'" in profile.data["sources"]["capsules.scene"]
    )


@pytest.mark.parametrize(
    ("text", "keys", "why"),
    [
        (simple(6, j3={"limit": 'lower="-1" upper="1"'}), {}, "velocity: the URDF's <limit> has none"),
        (simple(6), {"velocity": 180.0, "source": "x"}, r"velocity: found 180 of j1, for which the URDF has 2 rad/s"),
        (simple(6), {"low": -180.0, "high": 180.0, "source": "x"}, "low, high: .*expected rad"),
        (
            simple(6),
            {"home": (0.0, -90.0, 0.0, 0.0, 0.0, 0.0)},
            "home: found -90 of j2, which goes from -2.5 to 2.5 rad",
        ),
        (simple(6), {"home": (0.0,) * 5}, "home: expected 6 numbers, one a joint, found 5"),
        (simple(6), {"acceleration": 1500.0, "source": "x"}, r"a stop takes up to [\d.]+ s, expected at most 3 s"),
        (
            simple(6, j3={"limit": 'lower="-1" upper="1" velocity="100"'}),
            {},
            "velocity: the URDF says 100.*placeholder",
        ),
        (simple(), {"acceleration": 3.0}, "acceleration: expected the sheet"),
        (simple(), {"acceleration": (3.0,) * 5, "source": "x"}, "acceleration: expected one number, or 6.*found 5"),
        (simple(), {"high": 3.0, "source": "x"}, "low, high: expected both"),
        (simple(), {"radius": 0.4}, "radius: the capsules of link0 and link4 touch"),
        (simple(), {"low": 3.0, "high": 4.0, "source": "x"}, "position: the ranges of j1 by .* have nothing in common"),
        (simple(), {"low": -1.0, "high": 1.0, "source": "x", "home": (2.0,) * 6}, "home: found 2 of j1.* by 'sheet'"),
        (simple(), {"name": "ur5e"}, "name: limits called 'ur5e' ship with robopolicy.*name=my_ur5e"),
        (simple(6, j3={"rpy": (0, 90, 0)}), {}, r"rpy is \(0.0, 90.0, 0.0\).*are these degrees"),
        (simple().replace("l3", "${side}l3"), {}, "which xacro fills in"),
        (simple(6, j6={"type": "continuous"}), {}, "in a copy of the file make it revolute"),
    ],
)
def test_what_is_missing_is_named(tmp_path, text, keys, why):
    with pytest.raises(RobopolicyError, match=why):
        arm_new(urdf=file_of(tmp_path, text), out=tmp_path, **keys)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm.urdf"], "nothing half written"


@pytest.mark.parametrize("limit", ['lower="-2" upper="2" effort="0" velocity="0"', 'lower="-2" upper="2"'])
def test_an_exporter_that_writes_no_velocity_leaves_it_to_the_sheet(tmp_path, limit):
    text = simple(6, **{f"j{i}": {"limit": limit} for i in range(1, 7)})
    wiring = load_wiring(str(arm_new(urdf=file_of(tmp_path, text), out=tmp_path, velocity=2.0, source="x")))
    assert contradictions(wiring.profile(), text, wiring.joints) == []


@pytest.mark.parametrize(("high", "fits"), [(3.1, True), (5.0, False)])
def test_a_driver_may_call_a_joint_continuous_that_the_limits_end_within_a_turn(tmp_path, high, fits):
    copy = simple(6, j6={"limit": f'lower="-3.1" upper="{high}" velocity="2"'})
    wiring = load_wiring(str(arm_new(urdf=file_of(tmp_path, copy), out=tmp_path)))
    found = contradictions(wiring.profile(), simple(6, j6={"type": "continuous"}), wiring.joints)
    assert found == [] if fits else "j6: upper is 3.14159 rad, the limits go to 4.9" in found[0]


def test_a_link_s_name_adds_nothing_to_the_wiring(tmp_path):
    """A character reference is a line break in XML, and the name stands in a comment of the YAML file."""
    text = simple().replace('"l0"', '"l0&#10;tick_s: 0.02&#10;#{name}"')
    wiring = load_wiring(str(arm_new(urdf=file_of(tmp_path, text), out=tmp_path)))
    assert wiring.tick_s == 0.004 and "tick_s: 0.02" in wiring.limits_file.with_suffix(".yaml").read_text()


@pytest.mark.parametrize("lead", ["", "/"])
def test_a_controller_in_a_namespace_is_found_by_its_bare_name(tmp_path, lead):
    """As the graph gives it: `node` of a topic is without its namespace."""
    path = file_of(tmp_path, simple())
    out = load_wiring(str(arm_new(urdf=path, out=tmp_path, controller=f"{lead}cell1/arm_controller"))).output
    assert (out.name, out.node) == ("/cell1/arm_controller/joint_trajectory", "arm_controller")


@pytest.mark.parametrize("name", ["cell1//arm", "arm/", "cell1/2nd", "my-arm", ""])
def test_a_controller_that_no_topic_can_be_called_by_is_refused(tmp_path, name, capsys):
    path = file_of(tmp_path, simple())
    assert main(["arm", "new", f"urdf={path}", f"out={tmp_path}/made", f"controller={name}"]) == 2
    assert "controller" in capsys.readouterr().err


def test_files_are_not_overwritten(tmp_path):
    path = file_of(tmp_path, simple())
    arm_new(urdf=path, out=tmp_path)
    with pytest.raises(UrdfError, match=r"robot\.json exists"):
        arm_new(urdf=path, out=tmp_path)


def test_the_command_line_names_a_typo_and_a_missing_file(tmp_path, capsys):
    assert main(["arm", "new", f"urdf={tmp_path}/no.urdf", f"out={tmp_path}/x"]) == 1
    assert "no.urdf is missing" in capsys.readouterr().err
    assert main(["arm", "new", f"urdf={tmp_path}/no.urdf", f"out={tmp_path}/x", "tipp=tool"]) == 2
    assert "tip" in capsys.readouterr().err


def test_the_command_line_takes_a_base_link(tmp_path):
    path = file_of(tmp_path, simple())
    assert main(["arm", "new", f"urdf={path}", f"out={tmp_path}/made", "base=l0"]) == 0


def test_an_arm_of_five_joints_with_a_jaw_that_turns_is_the_profile_that_ships(tmp_path):
    """The SO-101's own numbers: a small arm, other rotations than quarter turns about x, a placeholder of a speed."""
    known = load_profile("so101")
    k, low, high = known.data["kinematics"], known.maker["low"], known.maker["high"]
    parts = [
        joint(name, f"l{i}", f"l{i + 1}", xyz=k["offsets"][i], rpy=k["rpy"][i],
              limit=f'lower="{low[i]}" upper="{high[i]}" velocity="10" effort="10"')
        for i, name in enumerate(known.joints)
    ]  # fmt: skip
    tool = joint("tool", "l5", "tool", type="fixed", xyz=k["tcp"])
    path = file_of(tmp_path, robot(*parts, tool, joint("gripper", "l5", "jaw")))
    with pytest.raises(UrdfError, match="velocity: the URDF says 10 rad/s"):
        arm_new(urdf=path, out=tmp_path, tip="tool")
    wiring = load_wiring(str(arm_new(urdf=path, out=tmp_path, tip="tool", velocity=3.0, source="Feetech STS3215")))
    profile, q = wiring.profile(), np.random.default_rng(0).uniform(low, high, (5, 5))
    assert wiring.gripper == {} and wiring.grip is None and profile.length == pytest.approx(known.length, abs=0.02)
    for mine, theirs in zip(*(forward(q, kinematics_of(p)) for p in (profile, known)), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)
