"""Arms of URDFs move as MuJoCo and Pinocchio say; others are refused by name."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pinocchio
import pytest

from robopolicy.real.arms.urdf import LARGEST, UrdfError, read_urdf
from robopolicy.real.arms.urdf_chain import arm_of
from robopolicy.real.safety import load_profile
from robopolicy.real.safety.kinematics import KinematicChain, pose, rotation
from tests.real.arms.robots import joint, random_arm, robot, simple


def chain_of(text: str, **named: str) -> KinematicChain:
    """The chain as a limit profile would hold it."""
    k = arm_of(read_urdf(text), **named).kinematics
    offsets, tcp = np.array(k["offsets"]), np.array(k["tcp"])
    if "turns" in k:
        return KinematicChain(offsets, np.array(k["turns"], dtype=np.float64), tcp)
    return KinematicChain(offsets, np.zeros(len(offsets)), tcp, np.ascontiguousarray(rotation(k["rpy"])))


def ours(chain: KinematicChain, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Tool's point [3] and Jacobian [6 n] at q [n]."""
    found = pose(chain, q[None], np.array([len(q)]), chain.tcp[None])
    return found.points[0, 0], found.jacobian[0].T


def of_mujoco(text: str, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    model = mujoco.MjModel.from_xml_string(
        text.replace("<robot ", '<robot xmlns:m="m" ', 1).replace(
            "</robot>", '<mujoco><compiler fusestatic="false" discardvisual="false"/></mujoco></robot>'
        )
    )
    data = mujoco.MjData(model)
    data.qpos[:] = q
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    jac, body = np.zeros((6, model.nv)), model.body("tool").id
    mujoco.mj_jac(model, data, jac[:3], jac[3:], data.xpos[body], body)
    return data.xpos[body].copy(), jac


def of_pinocchio(text: str, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    model = pinocchio.buildModelFromXML(text)
    data, frame = model.createData(), model.getFrameId("tool")
    jac = pinocchio.computeFrameJacobian(model, data, q, frame, pinocchio.ReferenceFrame.LOCAL_WORLD_ALIGNED)
    return data.oMf[frame].translation.copy(), jac


@pytest.mark.parametrize("n", [5, 6, 7])
@pytest.mark.parametrize("reference", [of_mujoco, of_pinocchio])
def test_positions_and_velocities_are_those_of_others(n, reference):
    rng = np.random.default_rng(n)
    for text in (simple(n), random_arm(n, seed=n), random_arm(n, seed=10 + n)):
        chain = chain_of(text)
        for _ in range(10):
            q = rng.uniform(-2.5, 2.5, n)
            for mine, theirs in zip(ours(chain, q), reference(text, q), strict=True):
                np.testing.assert_allclose(mine, theirs, atol=1e-12)


def test_a_panda_as_urdf_is_the_profile_to_the_bit():
    profile = load_profile("panda")
    k, q = profile.data["kinematics"], np.random.default_rng(0).uniform(-2, 2, (10, 7))
    joints = [
        joint(name, f"link{i}", f"link{i + 1}", xyz=k["offsets"][i], rpy=(k["turns"][i] * math.pi / 2, 0, 0))
        for i, name in enumerate(profile.joints)
    ]
    text = robot(*joints, joint("tcp", "link7", "tool", type="fixed", xyz=k["tcp"]))
    found = arm_of(read_urdf(text))
    assert found.kinematics == {"offsets": k["offsets"], "turns": k["turns"], "tcp": k["tcp"]}
    args = (np.array([7]), profile.chain.tcp[None])
    for a, b in zip(pose(chain_of(text), q, *args), pose(profile.chain, q, *args), strict=True):
        assert np.array_equal(a, b)


def test_the_arm_ends_at_the_named_frame_and_leaves_its_gripper_out():
    fingers = [
        joint("finger", "l6", "f1", type="prismatic"),
        joint("finger2", "l6", "f2", type="prismatic", more='<mimic joint="finger"/>'),
    ]
    text = simple().replace("</robot>", "<link name='f1'/><link name='f2'/>" + "".join(fingers) + "</robot>")
    with pytest.raises(UrdfError, match=r"expected one end.*'f1', 'f2', 'tool'.*tip="):
        arm_of(read_urdf(text))
    found = arm_of(read_urdf(text), tip="tool")
    assert [j.name for j in found.joints] == [f"j{i}" for i in range(1, 7)]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"j3": {"type": "prismatic"}}, r"'j3': expected a revolute joint, found 'prismatic'"),
        ({"j3": {"type": "continuous"}}, r"'j3'.*'continuous'.*no range"),
        ({"j2": {"type": "floating"}}, r"'j2'.*'floating'"),
        ({"j4": {"limit": ""}}, r"'j4': expected <limit>"),
        ({"j4": {"limit": 'velocity="1" effort="1"'}}, r"'j4': expected <limit> with lower and upper"),
        ({"j4": {"limit": 'lower="1" upper="-1" velocity="1"'}}, r"'j4': expected lower below upper, found 1 and -1"),
        ({"j4": {"limit": 'lower="-170" upper="170" velocity="1"'}}, r"'j4'.*degrees"),
        ({"j5": {"xyz": (0, 0, 333)}}, r"'j5'.*333.*millimetres"),
        ({"j5": {"axis": (0, 0, 0)}}, r"'j5': expected an axis"),
        ({"j5": {"axis": (1e300, 0, 1e300)}}, r"'j5': expected an axis"),
        ({"j6": {"more": '<mimic joint="j1"/>'}}, r"'j6': moves with 'j1'"),
        ({"j6": {"limit": 'lower="nan" upper="1"'}}, r"'j6': limit lower: expected 1 finite"),
        ({"j6": {"limit": 'lower="-1 0" upper="1"'}}, r"'j6': limit lower: expected 1 finite"),
    ],
)
def test_arms_that_are_not_supported_are_refused_by_name(changes, why):
    with pytest.raises(UrdfError, match=why):
        arm_of(read_urdf(simple(6, **changes)))


@pytest.mark.parametrize("n", [4, 8])
def test_too_few_or_many_joints(n):
    with pytest.raises(UrdfError, match=f"{n} revolute joints.*expected 5 to 7"):
        arm_of(read_urdf(simple(n)))


def test_links_that_are_none_of_the_arm():
    urdf = read_urdf(simple())
    with pytest.raises(UrdfError, match=r"tip='tol'.*tool"):
        arm_of(urdf, tip="tol")
    with pytest.raises(UrdfError, match="does not hang"):
        arm_of(urdf, base="l4", tip="l2")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('<!DOCTYPE r [<!ENTITY a "b">]><robot name="&a;"/>', "DOCTYPE"),
        ('<!DOCTYPE robot SYSTEM "file:///etc/passwd"><robot/>', "DOCTYPE"),
        ('<?xml version="1.0"?><robot>&undefined;</robot>', "not readable"),
        ("<robot><joint></robot>", "not readable"),
        ("<sdf/>", "expected <robot>"),
        ("", "not readable"),
        ("<robot>\ud800</robot>", "not readable"),
        ('<robot xmlns:xacro="x"><xacro:include filename="a"/></robot>', "xacro file"),
        ("<robot>" + "<a>" * 100 + "</a>" * 100 + "</robot>", "deep"),
        ("<robot>" + "<a/>" * 200_001 + "</robot>", "elements"),
        ("<robot>" + " " * LARGEST + "</robot>", "characters"),
        ("<robot>" + '<joint name="a"/>' + "</robot>", "expected a name"),
        (robot(joint("a", "l0", "l1"), joint("a", "l1", "l2")), "two joints are called 'a'"),
        (robot(joint("a", "l0", "l1"), joint("b", "l2", "l1")), "'l1' hangs on both 'a' and 'b'"),
        (robot(joint("a", "l0", "l1"), joint("b", "l1", "l0")), "circle"),
    ],
)  # fmt: skip
def test_hostile_text_is_refused(text, why):
    with pytest.raises(UrdfError, match=why):
        read_urdf(text)


def test_a_declared_encoding_and_meshes_change_nothing():
    mesh = '<collision><geometry><mesh filename="package://missing/a.stl"/></geometry></collision>'
    text = simple().replace("<link name='x'/>", "")
    plain = read_urdf(text)
    other = read_urdf('<?xml version="1.0" encoding="utf-16"?>' + text.replace("</link>", mesh + "</link>"))
    assert other.joints == plain.joints and other.meshes == 8 and plain.meshes == 0
