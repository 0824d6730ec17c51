"""One task of ManiSkill: the suite's env on one robot, with its success, film and changed physics.

The film has a scene of its own, made at the first picture: the simulated scene has no renderer, which would slow every
episode down.
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import torch

from robopolicy.core.errors import ConfigError, closest
from robopolicy.sim.suites import maniskill_meaning as meaning
from robopolicy.sim.suites.base import SuiteEnv, needs, seed32
from robopolicy.sim.suites.maniskill_registry import suites_own
from robopolicy.utils.suite_packages import broken

with needs("maniskill"):
    import sapien
    from mani_skill.utils import common

_FILM = {"width": 320, "height": 320}


class ManiSkillEnv(SuiteEnv):
    """One task without its batch axis.

    Args:
        robot: its uid; None: the task's own.
        control: a control mode of the robot.
        cameras: of the observation; with any, the state is the suite's for pictures, without the objects.
        size: pixels of the square pictures.
        friction: of everything, as a multiple of the suite's own. mass: the same, of free bodies.
        relative: append the differences of PegInsertionSide to its state.
    """

    begins_anywhere = True

    def __init__(
        self, name: str, robot: str | None, control: str, cameras: tuple[str, ...] = (), size: int = 128,
        friction: float = 1.0, mass: float = 1.0, relative: bool = False,
    ) -> None:  # fmt: skip
        self.relative = relative
        self.name, self.robot, self.control, self.cameras = name, robot, control, cameras
        self.friction, self.mass = friction, mass
        seen: dict[str, Any] = {"sensor_configs": {"width": size, "height": size}} if cameras else {}
        make = functools.partial(suites_own, name, 1, "physx_cpu", robot, control, **seen)
        try:
            self.inner = make(pictures=bool(cameras))
        except AttributeError:  # a task that draws itself, as PushT's goal
            self.inner = make(pictures=None)
        except ImportError as error:  # of a task that needs more than the suite does
            raise ConfigError(f"task.name={name!r}: needs another package: {error}") from error
        except RuntimeError as error:  # no Vulkan device
            raise broken("maniskill", error) from error
        obs, info = self.inner.reset(seed=0)
        _check(name, self.inner, info, cameras)
        self.metadata = {
            **self.metadata,
            "render_fps": self.inner.control_freq,
            "action": meaning.action(self.inner, robot, control),
            "names": meaning.names(self.inner.get_obs(info, unflattened=True)),
        }
        self.observation_space = self._space(self._seen(obs), size)
        low, high = (np.asarray(limit, np.float32) for limit in _limits(self.inner))
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        # Tasks of drawing have hundreds of strokes to make, some seconds an episode, and nothing that is touched.
        # Changed physics are those of a new scene.
        changed = (friction, mass) != (1.0, 1.0)
        self._again = changed or "drawing" not in type(self.inner).__module__.split(".")
        self._twin: Any = None  # the scene that is filmed
        self._twin_seed: int | None = None
        self._seed: int | None = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seed = int(self.np_random.integers(2**32)) if seed is None else seed32(seed)
        # Build the whole scene again, in about 0.05 s: PhysX lets contacts of earlier episodes affect the last digits
        # of later ones, even where all contacts were separated and stepped before the reset.
        obs, _ = self.inner.reset(seed=self._seed, options={"reconfigure": self._again})
        if self.friction != 1.0 or self.mass != 1.0:
            self._change_physics()
        if self.begin_in is not None:
            obs = self._placed(obs)
        return self._seen(obs), {"success": False}

    def act(self, action: Any) -> tuple[Any, Any]:
        obs, _, _, _, info = self.inner.step(torch.from_numpy(np.asarray(action, dtype=np.float32))[None])
        return self._seen(obs), info["success"]

    def render(self) -> Any:
        """Return the suite's own picture of the state, uint8 [h w 3]."""
        if self._twin is None:
            self._twin = suites_own(
                self.name, 1, "physx_cpu", self.robot, self.control, pictures=None, human_render_camera_configs=_FILM
            )
        if self._twin_seed != self._seed:
            self._twin.reset(seed=self._seed, options={"reconfigure": self._again})
            self._twin_seed = self._seed
        self._twin.set_state_dict(self.inner.get_state_dict())
        return self._twin.render()[0].cpu().numpy()

    def close(self) -> None:
        super().close()
        if self._twin is not None:
            self._twin.close()

    def _placed(self, obs: Any) -> Any:
        """Put the scene into the state `begin_in`, unless it is there; return the observation.

        Raises:
            ConfigError: the scene has other parts.
        """
        now, wanted = self.inner.get_state_dict(), {}
        for group, states in now.items():
            given = self.begin_in.get(group, {})
            if {k: v.shape[1:] for k, v in states.items()} != {k: v.shape for k, v in given.items()}:
                raise ConfigError(f"source: its {group} are {sorted(given)}, those of {self.name} are {sorted(states)}")
            wanted[group] = {k: torch.from_numpy(v).float()[None] for k, v in given.items()}
        if all(
            torch.allclose(v, wanted[group][k], atol=1e-5) for group, found in now.items() for k, v in found.items()
        ):
            return obs
        self.inner.set_state_dict(wanted)
        self.inner.agent.controller.reset()
        return self.inner.get_obs()

    def _seen(self, obs: Any) -> Any:
        if not self.cameras:
            state = obs[0].numpy().copy()
            return np.concatenate([state, meaning.differences(state)]) if self.relative else state
        state = common.flatten_state_dict({k: obs[k] for k in ("agent", "extra")}, use_torch=True)
        pictures = {name: obs["sensor_data"][name]["rgb"][0].numpy().copy() for name in self.cameras}
        return {"state": state[0].float().numpy().copy(), **pictures}

    def _space(self, seen: Any, size: int) -> gymnasium.Space:
        box = gymnasium.spaces.Box
        if not self.cameras:
            return box(-np.inf, np.inf, seen.shape, np.float32)
        pictures = {name: box(0, 255, (size, size, 3), np.uint8) for name in self.cameras}
        return gymnasium.spaces.Dict({"state": box(-np.inf, np.inf, seen["state"].shape, np.float32), **pictures})

    def _change_physics(self) -> None:
        """Of a scene as it is made: friction of everything, mass and inertia of free bodies."""
        scene = self.inner.unwrapped.scene
        for actor in scene.actors.values():
            for entity in actor._objs:
                body = entity.find_component_by_type(sapien.physx.PhysxRigidBaseComponent)
                if isinstance(body, sapien.physx.PhysxRigidDynamicComponent):
                    body.mass, body.inertia = body.mass * self.mass, body.inertia * self.mass
                self._rub(body)
        for arm in scene.articulations.values():
            for link in arm.links:
                for body in link._objs:
                    self._rub(body)

    def _rub(self, body: Any) -> None:
        for shape in body.collision_shapes:
            was = shape.physical_material  # shapes may share one, so it stays as it is
            shape.set_physical_material(
                sapien.physx.PhysxMaterial(
                    was.static_friction * self.friction, was.dynamic_friction * self.friction, was.restitution
                )
            )


def _check(name: str, inner: Any, info: dict[str, Any], cameras: tuple[str, ...]) -> None:
    """Raise ConfigError where a task tells no success, or has not these cameras."""
    if "success" not in info:
        found = ", ".join(sorted(info))
        raise ConfigError(
            f"task.name={name!r}: ManiSkill tells no success of this task (its info has {found}), so it cannot be "
            "evaluated. Take another task, or register an env of your own that tells success: task=gymnasium."
        )
    offered = list(inner._sensors)
    if unknown := sorted(set(cameras) - set(offered)):
        raise ConfigError(f"task.cameras: {name} has no {unknown[0]!r}. {closest(unknown[0], offered)}")


def _limits(inner: Any) -> tuple[Any, Any]:
    space = inner.single_action_space
    if not isinstance(space, gymnasium.spaces.Box):
        raise ConfigError(f"{type(inner).__name__}: expected actions of one Box, found {type(space).__name__}")
    return space.low, space.high
