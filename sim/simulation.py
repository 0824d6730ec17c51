"""Simulate N copies of a native task on the batched engine: arrays of state, resets and observations."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from robopolicy.config.schema import Count, Side
from robopolicy.core.errors import ConfigError
from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import STATE, TASK, EnvSpec, Feature, Obs
from robopolicy.envs.episode_queue import EpisodeQueue
from robopolicy.sim.camera_observations import CameraObservations
from robopolicy.sim.control import JointFilter, make_controller
from robopolicy.sim.kinematics import Frame, forward, serial_arm, twist, yaw_of
from robopolicy.sim.physics import Engine, Physics, WarpOptions, make_physics
from robopolicy.sim.randomization import ModelBank, Randomization
from robopolicy.sim.render import Camera, Offset, Quality
from robopolicy.sim.tasks.base import Task
from robopolicy.sim.tasks.checks import check_scene, drawn
from robopolicy.sim.tasks.scene import Scene, StateLayout, arm_features, turn_between
from robopolicy.utils.point_clouds import PointCloud

Array = NDArray[np.float64]
_NOISE_STREAM = 9002


class Simulation:
    """N copies of a task on the batched engine, without the interface of an env; see SimEnv.

    Args:
        task: the task.
        num_envs: N.
        seed: names the stream of training episodes.
        control: "delta_pose" or "joint_position" (sim/control.py).
        reward: "sparse", "dense" or "shaped".
        objects: the state holds what a camera would have to see too: objects, targets; False: the arm's own alone.
        cameras: names of cameras in the scene whose pictures join the observation ("front", "side", "wrist").
        image_size: (height, width) of these pictures.
        points: names of cameras whose point clouds join the observation.
        cloud: box, number of points, resolution, frame and sampling of these clouds; see PointCloud.
        camera_offset: m in the world, by which the cameras that do not ride on the arm are moved.
        pictures: False leaves pictures and clouds out, though the spec has them: they come from elsewhere.
        render_quality: "fast" (no shadows, no multisampling) or "full"; recorded in the digest.
        randomization: domain randomisation, off by default.
        joint_filter: joint targets [N n] -> permitted joint targets [N n], between IK and physics.
        threads: C++ threads; None: one per core.
        physics: "rollout" (MuJoCo in C++ threads), or "warp" (MuJoCo Warp on a GPU, the extra `warp`).
        warp: device and memory of "warp", see WarpOptions.
    """

    def __init__(
        self, task: Task, num_envs: int, *, seed: int = 0, control: str = "delta_pose",
        reward: Literal["sparse", "dense", "shaped"] = "sparse", objects: bool = True, cameras: tuple[str, ...] = (),
        image_size: tuple[Side, Side] = (96, 96), points: tuple[str, ...] = (), cloud: PointCloud | None = None,
        camera_offset: Offset = (0.0, 0.0, 0.0), render_quality: Quality = "fast", pictures: bool = True,
        randomization: Randomization | None = None, joint_filter: JointFilter | None = None,
        threads: Count | None = None, physics: Engine = "rollout", warp: WarpOptions | None = None,
    ) -> None:  # fmt: skip
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, found {num_envs}")
        task.check(reward)
        self.pictures, self.objects = pictures, objects
        self.task, self.num_envs, self.device, self.reward = task, num_envs, torch.device("cpu"), reward
        self.randomization = randomization or Randomization()
        self.cameras, self.render_quality = tuple(cameras), render_quality
        self.dt = task.timestep * task.substeps
        self.arm = serial_arm(task.model)
        self.dof = self.arm.dof  # n joints, before two fingers, in qpos, qvel and ctrl
        self.model = task.compile()
        self.at = task.bind(self.model)
        self._bank = ModelBank(self.model, num_envs, self.randomization) if self.randomization.physical else None
        self.physics: Physics = make_physics(
            physics, self.model, self._bank, num_envs=num_envs, substeps=task.substeps, threads=threads, warp=warp,
            capacity=task.capacity,
        )  # fmt: skip
        self.controller = make_controller(
            control, num_envs, dt=self.dt, joint_filter=joint_filter, arm=self.arm, workspace=task.box,
            speed=task.speed * task.model.layout.speed,
        )  # fmt: skip
        noise = {f"joint{i + 1}": (-task.joint_noise, task.joint_noise) for i in range(self.dof)}
        self._queue = EpisodeQueue(seed, drawn(task, noise, self.randomization.ranges))
        self._camera = Camera(self.model, task, self.at, render_quality, camera_offset)
        seen: dict[str, Any] = {"cameras": cameras, "image_size": image_size, "points": points, "cloud": cloud}
        self.views = CameraObservations(self._camera, task.box, **seen)

        n = num_envs
        self.episode_seed = torch.zeros(n, dtype=torch.int64)
        self.draws = np.zeros((n, len(self._queue.names)))  # [N K] this episode's numbers, named by `draw_names`
        self.draw_names = self._queue.names
        self._start = np.array(task.start)
        self._extra = np.zeros((n, task.extra_size))
        self._t = np.zeros(n, dtype=np.int64)  # control steps into the episode
        self._held: NDArray[np.int64] = np.zeros(n, dtype=np.int64)  # steps for which success has lasted
        self._tcp, self._yaw, self._twist = np.zeros((n, 3)), np.zeros(n), np.zeros((n, 6))
        depth = self.randomization.most_steps + 1
        self._late: Array = np.zeros((n, depth, self.controller.spec.dim))  # delayed actions, newest first
        self._potential: Array = np.zeros(n)  # Φ of the state as it is, for reward="shaped"
        self._requested: NDArray[np.bool_] | None = None  # [N] see `request_images`; None: all
        limits = (self.controller.spec.low, self.controller.spec.high)
        self._low, self._high = (torch.tensor(b, dtype=torch.float32) for b in limits)

        self._reset_rows(np.arange(n))  # the layout follows from a first observation; the stream starts over below
        check_scene(task, self.at, self._scene(), reward)
        self.layout = StateLayout.of(self._groups(self._scene()))
        self.spec = self._spec(task.xml(), control, physics)
        self._queue.reseed(seed)
        self._measure()
        self._queue.start(None)
        self._reset_rows(np.arange(n))
        self._last = self._observe(None)

    def _weigh(self, rows: NDArray[np.int64]) -> None:
        """Store the potential from which the next steps of `rows` start."""
        if self.reward == "shaped":
            self._potential[rows] = self.task.dense(self.at, self._scene(rows))

    def _named(self, numbers: Array) -> dict[str, Array]:
        return {name: numbers[:, k] for k, name in enumerate(self.draw_names)}

    def _reset_rows(self, rows: NDArray[np.int64]) -> None:
        """Start the next episodes in the queue in `rows` [M]."""
        seeds, numbers = self._queue.next(len(rows))
        draw = self._named(numbers)
        qpos = np.tile(self.model.qpos0, (len(rows), 1))
        extra = np.zeros((len(rows), self.task.extra_size))
        qpos[:, : self.dof] = self._start + numbers[:, : self.dof]  # the joints' noise comes first in `draw_names`
        qpos[:, self.dof : self.dof + 2] = self.task.start_opening / 2
        self.task.reset(self.at, draw, qpos, extra)
        self.physics.state[rows] = 0.0
        self.physics.qpos[rows] = qpos
        self._extra[rows] = extra
        self._t[rows] = self._held[rows] = 0
        self.draws[rows] = numbers
        self.episode_seed = self.episode_seed.clone()  # steps handed out before keep the seeds they were made with
        self.episode_seed[torch.from_numpy(rows)] = torch.from_numpy(seeds)
        if self._bank:
            for k, row in enumerate(rows):
                self._bank.set(int(row), draw, k)
        frame = forward(qpos[:, : self.dof], self.arm)
        self._store(rows, frame, self.physics.qvel[rows, : self.dof])
        self.controller.reset(rows, qpos, frame)
        if self._late.shape[1] > 1:
            # Nothing is on its way yet: stand still with the gripper as it is.
            self._late[rows] = 0.0
            if self.spec_is_joint:
                self._late[rows, :, : self.dof] = qpos[:, None, : self.dof]
            self._late[rows, :, -1] = self.controller.grip[rows][:, None]
        self._weigh(rows)

    @property
    def spec_is_joint(self) -> bool:
        return self.controller.spec.reference == "absolute"

    def _delayed(self, action: Array) -> Array:
        """Return the delayed action [N Da] that reaches the arm now."""
        if self._late.shape[1] == 1:
            return action
        self._late = np.concatenate([action[:, None], self._late[:, :-1]], axis=1)
        steps = self.draws[:, self.draw_names.index("randomize_latency")]
        return self.randomization.late(self._late, steps, self.controller.spec.gripper)

    def _measure(self) -> None:
        """Tool pose and velocity from qpos and qvel: one code path at reset and at step (sensors lag a substep)."""
        n = self.num_envs
        both = forward(np.concatenate([self.physics.qpos[:, : self.dof], self.controller.q]), self.arm)
        self._store(slice(None), both.rows(slice(n)), self.physics.qvel[:, : self.dof])
        self.controller.follow(both.rows(slice(n, None)))

    def _store(self, rows: Any, frame: Frame, qvel: Array) -> None:
        self._tcp[rows], self._yaw[rows], self._twist[rows] = frame.pos, yaw_of(frame), twist(frame, qvel)

    def _scene(self, rows: NDArray[np.int64] | None = None) -> Scene:
        r: Any = slice(None) if rows is None else rows
        c, qpos = self.controller, self.physics.qpos[r]
        tcp, yaw, twist = self._tcp[r], self._yaw[r], self._twist[r]
        lag = np.empty((len(tcp), 4))
        lag[:, :3], lag[:, 3] = c.pos[r] - tcp, turn_between(yaw, c.yaw[r])
        arm = {"tcp": tcp, "yaw": yaw, "tcp_vel": twist[:, :3], "yaw_rate": twist[:, 5], "lag": lag}
        opening = qpos[:, self.dof] + qpos[:, self.dof + 1]
        return Scene(qpos, self.physics.qvel[r], self._extra[r], opening=opening, gripper=c.grip[r], **arm)

    def _groups(self, scene: Scene) -> dict[str, Array]:
        return {**arm_features(scene), **(self.task.observe(self.at, scene) if self.objects else {})}

    def _observe(
        self,
        rows: NDArray[np.int64] | None,
        scene: Scene | None = None,
        *,
        pictures: bool = True,
        seen: NDArray[np.bool_] | None = None,
    ) -> Obs:
        """Return the observation of all envs, or of `rows` [M], from their `scene` if given.

        seen: [M] envs that are rendered, see CameraObservations; None: all.
        """
        index = np.arange(self.num_envs) if rows is None else rows
        state, scene = np.empty((len(index), self.layout.size), dtype=np.float32), scene or self._scene(rows)
        self.layout.pack(self._groups(scene), state)
        obs: Obs = {STATE: torch.from_numpy(state), TASK: torch.from_numpy(self.task.task_index(scene))}
        if self.randomization.sensor_noise:
            seed, t = self.episode_seed[torch.from_numpy(index)], torch.from_numpy(self._t[index])
            noise = keyed_normal(seed, t, (self.layout.size,), stream=_NOISE_STREAM)
            obs[STATE] += self.randomization.sensor_noise * noise
        if pictures and self.pictures:
            episode = self._tcp[index], self.episode_seed[torch.from_numpy(index)], self._t[index]
            obs |= self.views.observe(self.physics.state[index], self._extra[index], *episode, seen)
        return obs

    def _spec(self, xml: str, control: str, physics: Engine) -> EnvSpec:
        identity = {
            "xml": xml,
            "task": self.task.parameters(),
            "control": control,
            "reward": self.reward,
            "randomization": asdict(self.randomization),
            "features": self.layout.names,
            **self.views.identity(self.render_quality),
            **({} if physics == "rollout" else {"physics": physics}),
        }
        text = json.dumps(identity, sort_keys=True, default=list)
        features = {
            STATE: Feature((self.layout.size,), names=self.layout.names),
            TASK: Feature((), dtype="int64"),
            **self.views.features,
        }
        return EnvSpec(
            id=self.task.name,
            observation=features,
            action=self.controller.spec,
            tasks=self.task.instructions,
            dt=self.dt,
            horizon=self.task.horizon,
            digest=hashlib.sha256(text.encode()).hexdigest()[:16],
            joint_access=True,
            resumable=self.physics.deterministic,
            deterministic=self.physics.deterministic,
        )
