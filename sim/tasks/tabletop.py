"""Tabletop: three cubes and a button. The instruction alone says which one to pick up, to push or to press.

Seven goals in one scene: pick up or push away the red, the green or the blue cube, or press the button. Where things
lie does not depend on the goal, so a picture or a state alone tells a policy nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.experts.tabletop import TabletopExpert
from robopolicy.sim.tasks import register
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import (
    Array,
    BodySpec,
    Bool,
    Joint,
    Planar,
    Range,
    Scene,
    fold,
    free_box,
    planar_fixture,
)
from robopolicy.sim.tasks.tabletop_goals import COLOURS, CUBES, GOALS, PRESS, SENTENCES

_CELLS = 6  # positions on the table, in two rows
_ROWS = (0.42, 0.60)  # m: a cube can be pushed 5 cm towards the other row, and a finger fits behind one of the far row
_COLUMNS = {"seen": (-0.15, 0.0, 0.15), "unseen": (-0.075, 0.075, 0.225)}  # m
_TOP = 0.045  # m, the button's, at rest


class Things(NamedTuple):
    cubes: tuple[BodySpec, ...]
    stand: Planar
    button: Joint
    distractors: tuple[BodySpec, ...]


@register("tabletop")
@dataclass(frozen=True)
class Tabletop(Task):
    """Args beside those of every task:

    only: the goals of `GOALS` that episodes have; (): all.
    wording: "plain": one sentence a goal; "varied": four; "unseen": two others, to evaluate on.
    instruction_goal: "other": the instruction names another goal than the episode's own (a control).
    success_goal: which goal counts, the episode's "own" or the "instructed" one.
    positions: "unseen": columns between and beside those of training.
    distractors: further objects on the table that no instruction names, at most two.
    """

    hold: int = 3
    cube_half: float = 0.02  # m
    cube_mass: float = 0.06  # kg
    lift: float = 0.08  # m above the table, for a cube to be picked up
    push: float = 0.05  # m away from the robot
    press: float = 0.006  # m down
    range_x: float = 0.02  # m, either side of a cell's centre
    range_y: float = 0.025
    range_yaw: float = float(np.pi / 4)
    only: tuple[str, ...] = ()
    wording: Literal["plain", "varied", "unseen"] = "plain"
    instruction_goal: Literal["own", "other"] = "own"
    success_goal: Literal["own", "instructed"] = "own"
    positions: Literal["seen", "unseen"] = "seen"
    distractors: int = 0

    name = "tabletop"
    capacity = (64, 384)
    extra_size = 2 + CUBES  # the goal that counts, the index of the instruction, where each cube began along x
    periods: ClassVar[Mapping[str, float]] = {f"{colour}_turn": np.pi / 2 for colour in COLOURS}
    expert = TabletopExpert

    def __post_init__(self) -> None:
        choices = {
            "wording": SENTENCES,
            "instruction_goal": ("own", "other"),
            "success_goal": ("own", "instructed"),
            "positions": _COLUMNS,
        }
        for key, known in choices.items():
            if (found := getattr(self, key)) not in known:
                raise ConfigError(f"tabletop: {key}={found!r} is unknown. {closest(str(found), known)}")
        for goal in self.only:
            if goal not in GOALS:
                raise ConfigError(f"tabletop: only={goal!r} is no goal. {closest(goal, GOALS)}")
        if not 0 <= self.distractors <= _CELLS - CUBES - 1:
            raise ConfigError(f"tabletop: distractors must be from 0 to 2, found {self.distractors}")
        if self.instruction_goal == "other" and len(self.goals) < 2:
            raise ConfigError("tabletop: instruction_goal='other' needs two goals at least; widen `only`")

    @property
    def goals(self) -> NDArray[np.int64]:
        """Return [G] the goals that episodes have, as indices into GOALS; instructions come in this order."""
        return np.array([GOALS.index(g) for g in self.only or GOALS])

    @property
    def instructions(self) -> tuple[str, ...]:  # type: ignore[override]
        named = [GOALS[g].partition("_") for g in self.goals]
        return tuple(text.format(c) for verb, _, c in named for text in SENTENCES[self.wording][verb])

    def goal_of(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the goal [N], into GOALS, that the instruction of `index` [N] names."""
        return self.goals[index // len(SENTENCES[self.wording]["pick"])]

    def bodies(self) -> str:
        size = (self.cube_half,) * 3
        cubes = "".join(free_box(c, size, mass=self.cube_mass, rgba=rgba) for c, rgba in COLOURS.items())
        others = (
            free_box("purple", (0.015, 0.03, 0.015), mass=self.cube_mass, rgba="0.5 0.2 0.6 1"),
            free_box("yellow", (0.025, 0.025, 0.012), mass=self.cube_mass, rgba="0.9 0.75 0.1 1"),
        )
        button = f"""
      <geom name="stand" type="cylinder" size="0.032 0.015" pos="0 0 0.015" rgba="0.25 0.25 0.27 1"/>
      <body name="button" pos="0 0 {_TOP}" gravcomp="1">
        <inertial mass="0.05" pos="0 0 0" diaginertia="1e-5 1e-5 1e-5"/>
        <joint name="button" type="slide" axis="0 0 -1" range="0 0.01" stiffness="150" damping="3"/>
        <geom name="button" type="cylinder" size="0.022 0.0075" pos="0 0 -0.0075" rgba="0.95 0.95 0.95 1"/>
      </body>"""
        return planar_fixture("stand", button) + cubes + "".join(others[: self.distractors])

    @property
    def ranges(self) -> Mapping[str, Range]:
        def pose_ranges(*things: str) -> dict[str, Range]:
            x = {f"{name}_x": (-self.range_x, self.range_x) for name in things}
            y = {f"{name}_y": (-self.range_y, self.range_y) for name in things}
            yaw = {f"{name}_yaw": (-self.range_yaw, self.range_yaw) for name in things if name != "button"}
            return {**x, **y, **yaw}

        cells = {f"cell_{k}": (0.0, 1.0) for k in range(_CELLS)}  # their order says which object lies where
        whole = {"goal": (0.0, 1.0), "other": (0.0, 1.0), "sentence": (0.0, 1.0), **cells}
        # Distractors last: drawn by position, the rest of a seed's scene is the same with and without them.
        return {**whole, **pose_ranges(*COLOURS, "button"), **pose_ranges(*("purple", "yellow")[: self.distractors])}

    def bind(self, model: mujoco.MjModel) -> Things:
        stand, button = Planar.find(model, "stand"), Joint.find(model, "button")
        others = tuple(BodySpec.find(model, n) for n in ("purple", "yellow")[: self.distractors])
        return Things(tuple(BodySpec.find(model, c) for c in COLOURS), stand, button, others)

    def reset(self, at: Things, draw: Mapping[str, Array], qpos: Array, extra: Array) -> None:
        cell = np.argsort(np.stack([draw[f"cell_{k}"] for k in range(_CELLS)], axis=1), axis=1)  # [M 6] which cell
        rows, columns = np.array(_ROWS), np.array(_COLUMNS[self.positions])

        def place(k: int, name: str) -> tuple[Array, Array]:
            return rows[cell[:, k] // 3] + draw[f"{name}_x"], columns[cell[:, k] % 3] + draw[f"{name}_y"]

        heights = (*(self.cube_half,) * CUBES, 0.015, 0.012)
        for k, (name, body) in enumerate(zip((*COLOURS, "purple", "yellow"), (*at.cubes, *at.distractors))):  # noqa: B905
            x, y = place(k, name)
            body.place(qpos, x, y, heights[k], draw[f"{name}_yaw"])
            if k < CUBES:
                extra[:, 2 + k] = x
        at.stand.place(qpos, *place(_CELLS - 1, "button"))

        count, per = len(self.goals), len(SENTENCES[self.wording]["pick"])
        own = (draw["goal"] * count).astype(np.int64)
        instructed = own
        if self.instruction_goal == "other":
            instructed = (own + 1 + (draw["other"] * (count - 1)).astype(np.int64)) % count
        extra[:, 0] = self.goals[own if self.success_goal == "own" else instructed]
        extra[:, 1] = instructed * per + (draw["sentence"] * per).astype(np.int64)

    def task_index(self, scene: Scene) -> NDArray[np.int64]:
        return scene.extra[:, 1].astype(np.int64)

    def observe(self, at: Things, scene: Scene) -> Mapping[str, Array]:
        found: dict[str, Array] = {}
        for colour, cube in zip(COLOURS, at.cubes, strict=True):
            found[f"{colour}_rel"] = cube.pos(scene) - scene.tcp
            turn = f"{colour}_turn"  # to the nearest face
            found[turn] = fold(cube.yaw(scene) - scene.yaw, self.periods[turn])
            found[f"{colour}_vel"] = cube.vel(scene)
        return {**found, "button_rel": self._button(at, scene) - scene.tcp, "button": at.button.pos(scene)}

    def _button(self, at: Things, scene: Scene) -> Array:
        """Return [M 3] m, the middle of its top."""
        return np.column_stack([at.stand.pos(scene), _TOP - at.button.pos(scene)])

    def achieved(self, at: Things, scene: Scene) -> Bool:
        """Return whether [M 7] each of GOALS holds now."""
        pos = np.stack([c.pos(scene) for c in at.cubes], axis=1)  # [M 3 3]
        picked = pos[..., 2] - self.cube_half > self.lift
        pushed = (pos[..., 0] - scene.extra[:, 2:] > self.push) & (pos[..., 2] < 1.5 * self.cube_half)
        return np.concatenate([picked, pushed, (at.button.pos(scene) > self.press)[:, None]], axis=1)

    def success(self, at: Things, scene: Scene) -> Bool:
        return self.achieved(at, scene)[np.arange(len(scene.extra)), scene.extra[:, 0].astype(np.int64)]

    def dense(self, at: Things, scene: Scene) -> Array:
        goal, n = scene.extra[:, 0].astype(np.int64), np.arange(len(scene.extra))
        pos = np.stack([*(c.pos(scene) for c in at.cubes), self._button(at, scene)], axis=1)
        which = np.where(goal == PRESS, CUBES, goal % CUBES)
        near = 1 - np.tanh(8 * np.sqrt(((pos[n, which] - scene.tcp) ** 2).sum(axis=1)))
        cube = pos[n, np.minimum(which, CUBES - 1)]
        forth = (cube[:, 0] - scene.extra[n, 2 + np.minimum(which, CUBES - 1)]) / self.push
        done = np.select([goal < CUBES, goal < PRESS], [(cube[:, 2] - self.cube_half) / self.lift, forth],
                         at.button.pos(scene) / self.press)  # fmt: skip
        return 0.4 * near + 0.6 * np.clip(done, 0, 1)
