"""An independent checker: reads published commands and a profile's numbers, shares no arithmetic with the limits.

Splines by SciPy, kinematics, Jacobians and distances by MuJoCo from a model of its own.
"""

from __future__ import annotations

import mujoco
import numpy as np
from scipy.interpolate import BSpline

from robopolicy.real.safety.array_ops import Array
from robopolicy.real.safety.profile import Profile


def model_of(profile: Profile) -> mujoco.MjModel:
    """Return the profile's chain and capsules as a MuJoCo model: geoms by capsule name, a site `tcp`."""
    k, chain = profile.data["kinematics"], ""
    shapes = {
        c.link: "".join(
            f'<geom name="{o.name}" type="capsule" size="{o.radius}" fromto="{_numbers((*o.start, *o.end))}"/>'
            for o in profile.capsules
            if o.link == c.link
        )
        for c in profile.capsules
    }
    chain = f'<site name="tcp" pos="{_numbers(k["tcp"])}"/>'
    for i in reversed(range(len(profile.joints))):
        if "turns" in k:
            turned = f'quat="{_numbers((1, k["turns"][i], 0, 0) if k["turns"][i] else (1, 0, 0, 0))}"'
        else:
            turned = f'euler="{_numbers(k["rpy"][i])}"'
        chain = (
            f'<body pos="{_numbers(k["offsets"][i])}" {turned}><joint axis="0 0 1"/>'
            f'<inertial mass="1" pos="0 0 0" diaginertia="1 1 1"/>{shapes.get(i + 1, "")}{chain}</body>'
        )
    xml = f"<mujoco><compiler angle='radian' eulerseq='XYZ'/><worldbody>{shapes.get(0, '')}{chain}</worldbody></mujoco>"
    return mujoco.MjModel.from_xml_string(xml)


def _numbers(values: object) -> str:
    return " ".join(f"{v:.17g}" for v in values)  # type: ignore[attr-defined]


def dense(commands: Array, times: int) -> Array:
    """Sample the spline of control points [T … n], `times` points a tick."""
    count = len(commands)
    knots = np.arange(-3.0, count + 1.0)
    u = np.arange((count - 3) * times + 1) / times
    return np.asarray(BSpline(knots, commands, 3)(u))


def joint_violations(commands: Array, profile: Profile, dt: float, *, rate: float = 1000.0) -> dict[str, int]:
    """Count how often published commands [T N n] break each joint limit when upsampled to `rate` Hz.

    Position to 1e-9 rad; derivatives to 1e-6 of the limit and the rounding of their differences.
    """
    times = max(1, round(dt * rate))
    q, h = dense(commands, times), dt / times
    m, s = profile.maker, profile.settings
    low, high = m["low"] + s.joint_margin, m["high"] - s.joint_margin
    bad: dict[str, int] = {"finite": int((~np.isfinite(q)).sum())}
    bad["joint_position"] = int(((q < low - 1e-9) | (q > high + 1e-9)).sum())
    difference: Array = q
    for order, name in enumerate(("velocity", "acceleration", "jerk"), 1):
        difference = np.diff(difference, axis=0)
        limit = m[name] * getattr(s, name) * (1 + 1e-6)
        rounding = 8 * np.finfo(float).eps * np.abs(q[order:]) / h**order
        bad[f"joint_{name}"] = int((np.abs(difference / h**order) > limit + rounding).sum())
    if "position_dependent_velocity" in profile.data:
        e = profile.data["position_dependent_velocity"]
        offset, slow, (low, high) = np.array(e["offset"]), np.array(e["deceleration"]), np.array(e["range"])
        v, here = np.diff(q, axis=0) / h, 0.5 * (q[1:] + q[:-1])
        up = np.maximum(0.0, np.sqrt(np.maximum(0.0, 2 * slow * (high - here))) - offset)
        down = np.maximum(0.0, np.sqrt(np.maximum(0.0, 2 * slow * (here - low))) - offset)
        bad["edge_velocity"] = int(((v > up + 1e-6) | (v < -down - 1e-6)).sum())
    return bad


def space_violations(commands: Array, profile: Profile, dt: float, *, poses: int, seed: int = 0) -> dict[str, int]:
    """Count how often `poses` random 1 kHz poses of published commands [T N n] break each limit in space."""
    times = max(1, round(dt * 1000))
    q, h = dense(commands, times), dt / times
    model = model_of(profile)
    data, s = mujoco.MjData(model), profile.settings
    site, rng = model.site("tcp").id, np.random.default_rng(seed)
    names = ("tcp_speed", "workspace", "planes", "keep_out", "self_collision", "singularity")
    bad = dict.fromkeys(names, 0)
    jac, from_to = np.zeros((6, model.nv)), np.zeros(6)
    for t, arm in zip(rng.integers(1, len(q), poses), rng.integers(0, q.shape[1], poses), strict=True):
        tips = []
        for time in (t - 1, t):
            data.qpos[:] = q[time, arm]
            mujoco.mj_kinematics(model, data)
            tips.append(data.site_xpos[site].copy())
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], site)
        bad["tcp_speed"] += bool(np.linalg.norm(tips[1] - tips[0]) / h > s.tcp_speed + 1e-6)
        jac[:3] /= profile.data["kinematics"].get("length", 1.0)
        bad["singularity"] += bool(np.linalg.cond(jac) > s.condition * (1 + 1e-6))
        if s.workspace is not None:
            bad["workspace"] += bool(((tips[1] < s.workspace.low) | (tips[1] > s.workspace.high)).any())
        for a, b in profile.data["pairs"]:
            gap = mujoco.mj_geomDistance(model, data, model.geom(a).id, model.geom(b).id, 1.0, from_to)
            bad["self_collision"] += gap < s.self_distance - 1e-6
        for c in profile.capsules:
            if not c.scene:
                continue
            geom = model.geom(c.name).id
            centre, axis = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)[:, 2]
            ends = [centre + side * model.geom_size[geom, 1] * axis for side in (-1, 1)]
            for p in s.planes:
                gap = min(float(np.dot(p.normal, end)) for end in ends) - p.offset - c.radius
                bad["planes"] += gap < s.scene_distance - 1e-6
            for box in s.keep_out:
                points = np.linspace(ends[0], ends[1], 9)
                outside = np.linalg.norm(points - np.clip(points, box.low, box.high), axis=1)
                bad["keep_out"] += bool(outside.min() - c.radius < s.scene_distance - 1e-6)
    return {k: int(v) for k, v in bad.items()}
