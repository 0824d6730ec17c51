"""Arms sent beyond a wall, into themselves and into singularities, held against the independent checker; evidence rows.

    python scripts/safety_targets.py [--targets 1000] [--record]

From home, `--targets` arms each go for a pose of their own that a limit forbids, found at random by the checker's own
kinematics, with projection as a single arm has it. `violations`: of all limits, on every 1 kHz sample in joint space
and on `--poses` random ones in space. `held_off`: the share of arms that are still short of their target at the end,
which must be all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from time import process_time

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.real.safety import CommandLimiter, load_profile, profile_names
from robopolicy.real.safety.audit import joint_violations, model_of, space_violations
from robopolicy.real.safety.profile import Profile
from robopolicy.real.safety.settings import Box
from robopolicy.reporting.result_rows import Evidence, measured, write
from robopolicy.runs.logger import Tracker

Array = NDArray[np.float64]
DT = 0.004
KINDS = ("wall", "self", "singular")
ROOM = 0.15  # m for a Panda, of the box around where the tool is at home, whose sides are the walls


def profile_for(robot: str, kind: str) -> Profile:
    """Limits under which what `kind` names is what stops the arm."""
    profile = load_profile(robot, tcp_speed=0.8)
    if kind != "wall":
        return profile
    model = model_of(profile)
    data = mujoco.MjData(model)
    data.qpos[:] = profile.data["home"]
    mujoco.mj_kinematics(model, data)
    tip = data.site("tcp").xpos
    room = ROOM * profile.length
    walls = Box(tuple(map(float, tip - room)), tuple(map(float, tip + room)))
    return load_profile(robot, tcp_speed=0.8, workspace=walls)


def forbidden(profile: Profile, kind: str, count: int, seed: int) -> Array:
    """[count n] joint targets inside the joint limits that break the limit named by `kind`, and not by a hair."""
    rng, model = np.random.default_rng(seed), model_of(profile)
    data, s = mujoco.MjData(model), profile.settings
    jac, from_to, found = np.zeros((6, model.nv)), np.zeros(6), list[Array]()
    while len(found) < count:
        q = rng.uniform(profile.low, profile.high)
        if kind == "singular" and rng.random() < 0.9:  # rare by chance: one joint is turned until it is one
            q = _towards_singular(model, data, q, profile, rng)
        data.qpos[:] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, jac[:3], jac[3:], model.site("tcp").id)
        tip = data.site("tcp").xpos
        if kind == "wall":
            assert s.workspace is not None
            wanted = bool(((tip < np.array(s.workspace.low) - 0.02) | (tip > np.array(s.workspace.high) + 0.02)).any())
        elif kind == "self":
            gaps = (mujoco.mj_geomDistance(model, data, model.geom(a).id, model.geom(b).id, 1.0, from_to)
                    for a, b in profile.data["pairs"])  # fmt: skip
            wanted = min(gaps) < -0.01
        else:
            wanted = _condition(jac, profile) > 2 * s.condition
        if wanted:
            found.append(q)
    return np.array(found)


def _condition(jac: Array, profile: Profile) -> float:
    """Condition of a Jacobian [6 n] in the profile's length."""
    return float(np.linalg.cond(np.concatenate([jac[:3] / profile.data["kinematics"].get("length", 1.0), jac[3:]])))


def _towards_singular(
    model: mujoco.MjModel, data: mujoco.MjData, q: Array, profile: Profile, rng: np.random.Generator
) -> Array:
    """`q` with the joint turned that brings its Jacobian closest to singular, of forty angles each."""
    jac, worst, best = np.zeros((6, model.nv)), -1.0, q
    for joint in range(1, len(q) - 1):
        for angle in rng.uniform(profile.low[joint], profile.high[joint], 40):
            turned = q.copy()
            turned[joint] = angle
            data.qpos[:] = turned
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_jacSite(model, data, jac[:3], jac[3:], model.site("tcp").id)
            if (condition := _condition(jac, profile)) > worst:
                worst, best = condition, turned
    return best


def press(robot: str, kind: str, count: int, ticks: int, poses: int) -> list[Evidence]:
    """`count` arms go for targets that `kind` forbids."""
    begin, profile = process_time(), profile_for(robot, kind)
    targets = forbidden(profile, kind, count, seed=0)
    limiter = CommandLimiter(profile, count, dt=DT)
    limiter.start(np.tile(profile.data["home"], (count, 1)))
    out = list(limiter.c.transpose(1, 0, 2)[-4:])
    for _ in range(ticks):
        verdict = limiter.filter(targets)
        if verdict.error:
            sys.exit(f"{robot}, {kind}: {verdict.error}")
        out.append(verdict.command)
    commands = np.array(out)
    counted = joint_violations(commands, profile, DT) | space_violations(commands, profile, DT, poses=poses)
    short = float((np.abs(commands[-1] - targets).max(axis=1) > 1e-3).mean())
    gone = float(np.median(np.abs(commands[-1] - commands[0]).max(axis=1)))
    notes = (
        f"{count} targets, {ticks} ticks of {DT} s from home, with projection; {poses} poses for limits in space; "
        f"joints went {gone:.2f} rad (median); {process_time() - begin:.0f} s of one core; {counted}"
    )
    rows = {"violations": float(sum(counted.values())), "held_off": short}
    return [
        measured(id="safety_targets", setting=f"{robot}/{kind}", metric=k, interval=v, notes=notes)
        for k, v in rows.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=1000, help="of each kind, for each robot")
    parser.add_argument("--ticks", type=int, default=500)
    parser.add_argument("--poses", type=int, default=20_000)
    parser.add_argument("--robots", nargs="+", default=profile_names(), choices=profile_names())
    parser.add_argument("--record", action="store_true", help="write docs/results/safety_targets.json too")
    args = parser.parse_args()
    rows: list[Evidence] = []
    with Tracker().progress(len(args.robots) * len(KINDS), "forbidden targets") as bar:
        for done, (robot, kind) in enumerate(((r, k) for r in args.robots for k in KINDS), 1):
            rows += press(robot, kind, args.targets, args.ticks, args.poses)
            bar.update(done, violations=sum(r.value for r in rows if r.metric == "violations"))
    print(*(json.dumps(asdict(row), ensure_ascii=False) for row in rows), sep="\n")
    if args.record:
        print(*write(rows), file=sys.stderr)
    sys.exit(any(r.value != {"violations": 0.0, "held_off": 1.0}[r.metric] for r in rows))


if __name__ == "__main__":
    main()
