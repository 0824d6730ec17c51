"""The certificate again, in plain NumPy for one arm: what the compiled one must agree with to rounding."""

from __future__ import annotations

import numpy as np
from scipy.spatial.transform import Rotation

from robopolicy.real.safety.profile import Profile

HISTORY = 6
SAMPLE = 0.01  # s


def stop(history: np.ndarray, command: np.ndarray, profile: Profile, dt: float) -> np.ndarray:
    """[K n] history [6 n], command [n] and the time-optimal stop under acceleration and jerk limits."""
    acc, jerk = profile.acceleration, profile.jerk
    v = (command - history[-1]) / dt
    a = ((command - history[-1]) - (history[-1] - history[-2])) / dt**2
    sign = np.where(v + a * np.abs(a) / (2 * jerk) < 0, -1.0, 1.0)
    v, a = sign * v, sign * a
    square = np.maximum(jerk * v + 0.5 * a**2, 0.0)
    peak = np.minimum(np.sqrt(square), acc)
    lead = np.maximum(a + peak, 0.0) / jerk
    total = lead + np.maximum(square - peak**2, 0.0) / (jerk * acc) + peak / jerk
    longest = (profile.velocity / acc + 2.5 * acc / jerk).max()
    ticks, stride = int(np.ceil(min(total.max(), longest) / dt)) + 3, int(SAMPLE / dt + 1e-9)
    ticks += -(ticks + 1) % stride
    t = dt * np.arange(1, ticks + 1)[:, None]
    left, tail = np.maximum(total - t, 0.0), peak / jerk
    first, middle = v + t * (a - 0.5 * jerk * t), 0.5 * jerk * tail**2 + peak * (left - tail)
    speed = np.where(left <= tail, 0.5 * jerk * left**2, np.where(t < lead, first, middle))
    return np.concatenate([history, command[None], command + dt * np.cumsum(sign * speed, axis=0)])


def frames(q: np.ndarray, profile: Profile) -> list[np.ndarray]:
    """[4 4] of every link at `q` [n]."""
    out, k = [np.eye(4)], profile.chain
    for i, angle in enumerate(q):
        c, s, h = np.cos(angle), np.sin(angle), k.quarter_turns[i]
        turn = np.array([[1, 0, 0], [0, 0 if h else 1, -h], [0, h, 0 if h else 1]])
        if (rpy := profile.data["kinematics"].get("rpy")) is not None:
            turn = Rotation.from_euler("xyz", rpy[i]).as_matrix()
        step = np.eye(4)
        step[:3, :3] = turn @ np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
        step[:3, 3] = k.offsets[i]
        out.append(out[-1] @ step)
    return out


def at(frame: np.ndarray, point) -> np.ndarray:
    return frame[:3, :3] @ np.asarray(point) + frame[:3, 3]


def jacobian(links: list[np.ndarray], point: np.ndarray) -> np.ndarray:
    """[6 n] of `point` [3] on the last link."""
    columns = [np.concatenate([np.cross(f[:3, 2], point - f[:3, 3]), f[:3, 2]]) for f in links[1:]]
    return np.array(columns).T


def gap(p1, q1, p2, q2) -> float:
    """Distance of two segments: where both are inside by the normal equations, else from an end. Brute, but plain."""
    d1, d2, r = q1 - p1, q2 - p2, p1 - p2
    found = []
    m = np.array([[d1 @ d1, -d1 @ d2], [-d1 @ d2, d2 @ d2]])
    if abs(np.linalg.det(m)) > 1e-12:
        s, t = np.linalg.solve(m, [-d1 @ r, d2 @ r])
        if 0 <= s <= 1 and 0 <= t <= 1:
            found.append(np.linalg.norm(r + s * d1 - t * d2))
    for end, start, d in ((p1, p2, d2), (q1, p2, d2), (p2, p1, d1), (q2, p1, d1)):
        u = np.clip((end - start) @ d / max(d @ d, 1e-12), 0, 1)
        found.append(np.linalg.norm(start + u * d - end))
    return float(min(found))


def margins(history: np.ndarray, command: np.ndarray, profile: Profile, dt: float) -> dict[str, float]:
    """Every limit's margin on the path from `command` [n] on, after `history` [6 n]."""
    from robopolicy.real.safety.body import Body

    s, body, n = profile.settings, Body(profile), len(command)
    c = stop(history, command, profile, dt)
    new, stride = c[HISTORY:], int(SAMPLE / dt + 1e-9)
    v = np.diff(c, axis=0) / dt
    a, j = np.diff(v, axis=0) / dt, np.diff(np.diff(v, axis=0) / dt, axis=0) / dt
    out = {
        "finite": 1e6 - np.abs(c).max(),
        "joint_position": min((new - profile.low).min(), (profile.high - new).min()),
    }
    for order, name, value in ((1, "velocity", v), (2, "acceleration", a), (3, "jerk", j)):
        rounding = 8 * np.finfo(float).eps * np.abs(c[HISTORY - order :]).max() / dt**order
        room = getattr(profile, name) * (1 + 1e-9) + rounding - np.abs(value[HISTORY - order :])
        out[f"joint_{name}"] = room.min()
    if profile.edge is not None:
        offset, slow, low, high = profile.edge
        rooms = []
        for k in range(HISTORY - 2, len(c)):
            near, speed = c[k - 3 : k + 3], v[k - 1]
            up = np.maximum(np.sqrt(np.maximum(2 * slow * (high - near.max(axis=0)), 0)) - offset, 0)
            down = np.maximum(np.sqrt(np.maximum(2 * slow * (near.min(axis=0) - low), 0)) - offset, 0)
            rooms.append(np.minimum(up - speed, speed + down) + 1e-9 * np.maximum(np.abs(speed), 1.0))
        out["edge_velocity"] = np.min(rooms)

    index = np.arange(HISTORY - 2, len(c) - 1, stride)
    q, qd = (c[index - 1] + 4 * c[index] + c[index + 1]) / 6, (c[index + 1] - c[index - 1]) / (2 * dt)
    most = [[np.abs(x[k - 1 : k + stride + 1 - o]).max(axis=0) for k in index[:-1]] for o, x in enumerate((v, a, j))]
    fast, strong, hard = map(np.array, most)
    travel = fast * stride * dt
    links = [frames(angles, profile) for angles in q]

    def between(distance: np.ndarray, reach: np.ndarray) -> float:  # of [S] by [n]
        return float((0.5 * (distance[:-1] + distance[1:] - travel @ reach)).min())

    tcp = np.array([at(f[-1], profile.chain.tcp) for f in links])
    jac = np.array([jacobian(f, p) for f, p in zip(links, tcp, strict=True)])
    arm = body.tcp_reach
    speed = np.linalg.norm(np.einsum("skn,sn->sk", jac[:, :3], qd), axis=1)
    w, alpha = fast.sum(axis=1), strong.sum(axis=1)
    third = hard @ arm + 4 * w * (strong @ arm) + (2 * alpha + 4 * w**2) * (fast @ arm)
    out["tcp_speed"] = s.tcp_speed - (np.maximum(speed[:-1], speed[1:]) + (stride * dt) ** 2 / 8 * third).max()
    if s.workspace is not None:
        inside = np.minimum(tcp - s.workspace.low, s.workspace.high - tcp).min(axis=1)
        out["workspace"] = between(inside, arm)
    for name, row, link, point, radius in _points(body):
        where = np.array([at(f[link], point) for f in links])
        if name == "sphere":
            for box in s.keep_out:
                outside = np.maximum(np.array(box.low) - where, where - np.array(box.high))
                d = np.linalg.norm(np.maximum(outside, 0), axis=1) + np.minimum(outside.max(axis=1), 0)
                value = between(d - radius - s.scene_distance, body.reach[row])
                out["keep_out"] = min(out.get("keep_out", np.inf), value)
        else:
            for p in s.planes:
                d = where @ np.array(p.normal) - p.offset - radius - s.scene_distance
                out["planes"] = min(out.get("planes", np.inf), between(d, body.reach[row]))
    rooms = []
    for (i, k), reach in zip(profile.pairs, body.pair_reach, strict=True):
        two = [profile.capsules[i], profile.capsules[k]]
        d = np.array([gap(*(at(f[c.link], end) for c in two for end in (c.start, c.end))) for f in links])
        rooms.append(between(d - two[0].radius - two[1].radius - s.self_distance, reach))
    out["self_collision"] = min(rooms)

    pick = np.unique(np.linspace(0, len(q) - 1, min(8, len(q))).astype(int))
    length = profile.data["kinematics"].get("length", 1.0)
    value = np.linalg.svd(jac[pick] / np.array([[length]] * 3 + [[1.0]] * 3), compute_uv=False)
    reach = arm / length
    reach[-1] = np.hypot(*profile.chain.tcp[:2]) / length
    rates = [0.0, *(np.sqrt(sum(reach[max(i, m)] ** 2 for m in range(n)) + n - 1 - i) for i in range(1, n))]
    half = 0.5 * np.array([(travel[x:y] @ rates).sum() for x, y in zip(pick, pick[1:], strict=False)])
    change = np.maximum(np.append(half, 0.0), np.insert(half, 0, 0.0))
    out["singularity"] = float((s.condition * (value[:, -1] - change) - (value[:, 0] + change)).min())
    return out


def _points(body):
    """What must keep off the scene: (kind, row of `reach`, link, point [m], radius [m])."""
    profile, size = body.profile, len(body.profile.capsules)
    for i, c in enumerate(profile.capsules):
        if c.scene:
            yield "end", i, c.link, c.start, c.radius
            yield "end", i + size, c.link, c.end, c.radius
    for k, row in enumerate(range(body.spheres.start, body.spheres.stop)):
        yield "sphere", row, body.links[row], body.local[row], body.sphere_radius[k]
