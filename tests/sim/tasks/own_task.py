"""A task of one's own, with one part changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from robopolicy import sim
from robopolicy.sim.env import SimEnv
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.scene import BodySpec, free_box


@dataclass(frozen=True)
class Stand(Task):
    """A block stands on end."""

    name = "stand"
    instructions = ("leave the block alone",)

    def bodies(self):
        return free_box("block", (0.02, 0.02, 0.06), mass=0.1, rgba="0.2 0.4 0.8 1")

    @property
    def ranges(self):
        return {"x": (0.48, 0.56), "y": (-0.1, 0.1)}

    def bind(self, model):
        return BodySpec.find(model, "block")

    def reset(self, at, draw, qpos, extra):
        at.place(qpos, draw["x"], draw["y"], 0.06)

    def observe(self, at, scene):
        return {"block": at.pos(scene)}

    def success(self, at, scene):
        return at.up(scene) < 0.5


def make(
    num_envs: int = 3, *, reward: str = "sparse", randomization: dict[str, Any] | None = None, **changed: Any
) -> SimEnv:
    """Build the task with class members in place of its own."""
    task = dataclass(frozen=True)(type("Own", (Stand,), changed))()
    return sim.make(task, num_envs, reward=reward, randomization=randomization)
