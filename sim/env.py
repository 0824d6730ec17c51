"""Present a native task as a `robopolicy.core.types.VecEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.types import STATE, Obs, Step, check_action
from robopolicy.sim.experts.waypoints import Expert
from robopolicy.sim.render import DepthImage
from robopolicy.sim.simulation import Simulation
from robopolicy.sim.tasks.checks import check_state
from robopolicy.sim.tasks.scene import arm_features

Array = NDArray[np.float64]


class SimEnv(Simulation):
    """N copies of a task on the batched engine.

    Reward is 1 on the step at which success has lasted for `task.hold` steps, and the episode terminates there.
    `reward="dense"` adds the task's dense reward, in [0, 1] per step, which may reward lingering. `reward="shaped"`
    adds Φ(s') − Φ(s), where Φ is the dense reward, or 0 where the episode terminates. Without a discount, and with
    values bootstrapped at time limits, the best policy stays that of the sparse reward (Ng et al. 1999). Ended episodes
    are reset inside `step`. Both methods raise SpecError where the task observes a number that is not finite.

    Arguments: see Simulation.
    """

    # -- VecEnv -----------------------------------------------------------------------------------------------------
    def reset(self, seeds: Tensor | None = None) -> Obs:
        self._queue.start(seeds, num_envs=self.num_envs)
        self._requested = None
        self._last_frames: dict[int, tuple[Array, Array]] = {}  # physics and the task's own, of episodes that ended
        self._reset_rows(np.arange(self.num_envs))
        self._last = self._observe(None)
        check_state(self._last[STATE], self.layout.names, self.spec.id)
        return self.observe()

    def step(self, action: Tensor) -> Step:
        check_action(action, self.spec, self.num_envs)
        executed = torch.clamp(action.detach().to(dtype=torch.float32, device=self.device), self._low, self._high)
        applied = self._delayed(executed.double().numpy())
        start = self.controller.q
        bad = self.physics.step(self.controller.command(applied, self._tcp, self._yaw), start)
        self._t += 1
        self._measure()
        scene = self._scene()
        self._held = np.where(self.task.success(self.at, scene), self._held + 1, 0)
        success = (self._held >= self.task.hold) & ~bad
        failure = self.task.failure(self.at, scene)
        terminated = success if failure is None else success | (failure & ~bad)
        truncated = ((self._t >= self.task.horizon) & ~terminated) | bad
        reward = success.astype(np.float32)
        if self.reward != "sparse":
            extra = self.task.dense(self.at, scene)
            if self.reward == "shaped":
                before, self._potential = self._potential, extra
                extra = np.where(terminated, 0.0, extra) - before
            reward = reward + np.where(bad, 0.0, extra).astype(np.float32)
        requested, self._requested = self._requested, None
        next_obs = self._observe(None, scene, seen=None if requested is None else requested | truncated)
        if bad.any():  # the state is the last good one, but the commanded pose moved on: repeat what was measured
            index = torch.from_numpy(bad)
            next_obs[STATE][index] = self._last[STATE][index]
        check_state(next_obs[STATE], self.layout.names, self.spec.id)
        info = {"diverged": torch.from_numpy(bad)}
        if self.controller.joint_filter is not None:
            info["intervened"] = torch.from_numpy(self.controller.intervened.copy())

        obs, ended = next_obs, terminated | truncated
        if ended.any():
            rows = ended.nonzero()[0]
            self._begin_next(rows)
            fresh, index = self._observe(rows), torch.from_numpy(rows)
            check_state(fresh[STATE], self.layout.names, self.spec.id)
            obs = {k: v.clone() for k, v in next_obs.items()}
            for key, value in fresh.items():
                obs[key][index] = value
        elif self._queue.shared:
            self._queue.next(0)
        self._last = {**obs, STATE: obs[STATE].clone()}  # callers may change the state that they are given
        return Step(
            obs=dict(obs) if obs is not next_obs else next_obs,
            next_obs=next_obs,
            executed=executed,
            steps=torch.ones(self.num_envs, dtype=torch.int64),
            reward=torch.from_numpy(reward),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            success=torch.from_numpy(success),
            valid=torch.from_numpy(~bad),
            info=info,
        )

    def _begin_next(self, rows: NDArray[np.int64]) -> None:
        """Start the next episodes in `rows` [M]; `render` still shows the last frames of the ended ones."""
        self._last_frames = {int(i): (self.physics.state[i].copy(), self._extra[i].copy()) for i in rows}
        self._reset_rows(rows)

    def request_images(self, rows: Tensor) -> None:
        """Render images of `rows` [N] alone at the next step, see Selective."""
        if rows.shape != (self.num_envs,) or rows.dtype != torch.bool:
            raise ConfigError(
                f"request_images: rows must be [{self.num_envs}] bool, found {list(rows.shape)} {rows.dtype}"
            )
        self._requested = rows.cpu().numpy().copy()

    def reseed(self, seed: int) -> None:
        """Name another stream of training episodes, from which the next episodes come."""
        self._queue.reseed(seed)

    def share_episodes(self) -> None:
        """See Shareable."""
        self._queue.share()

    # -- Stateful, Renderable ---------------------------------------------------------------------------------------
    def observe(self) -> Obs:
        """Return the current observation, e.g. after `load_state_dict`; `request_images` may have left pictures out."""
        return {**self._last, STATE: self._last[STATE].clone()}

    def sense(self, qpos: Array, qvel: Array, *, pictures: bool = True) -> tuple[Obs, NDArray[np.bool_]]:
        """Observation and success [N] with the physics in `qpos` [N nq], `qvel` [N nv] of another simulation.

        `pictures=False` leaves out those of its cameras, which take most of the time.
        """
        self.physics.qpos[:], self.physics.qvel[:] = qpos, qvel
        self._measure()
        return self._observe(None, pictures=pictures), self.task.success(self.at, self._scene())

    def task_state(self) -> Array:
        """Return the task's own state [N E] beside physics, e.g. a target."""
        return self._extra.copy()

    _ARRAYS = ("_extra", "_t", "_held", "_late", "draws")

    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {k.lstrip("_"): torch.from_numpy(getattr(self, k).copy()) for k in self._ARRAYS}
        state |= {f"controller.{k}": torch.from_numpy(v) for k, v in self.controller.state_dict().items()}
        state |= {f"queue.{k}": v for k, v in self._queue.state_dict().items()}
        state["physics"] = torch.from_numpy(self.physics.state.copy())
        state["episode_seed"] = self.episode_seed.clone()
        state["digest"] = self.spec.digest
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["digest"] != self.spec.digest or len(state["t"]) != self.num_envs:
            raise CheckpointError(
                f"{self.spec.id}: the saved state is of task digest {state['digest']} with {len(state['t'])} envs; "
                f"this env has {self.spec.digest} and {self.num_envs}. Resume with the config it was saved under."
            )
        for k in self._ARRAYS:
            setattr(self, k, state[k.lstrip("_")].numpy().copy())
        self.controller.load_state_dict({k[11:]: v.numpy() for k, v in state.items() if k.startswith("controller.")})
        self._queue.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("queue.")})
        self.physics.state[:] = state["physics"].numpy()
        self.episode_seed = state["episode_seed"].clone()
        if self._bank:
            for row in range(self.num_envs):
                self._bank.set(row, self._named(self.draws), row)
        self._requested = None
        self._measure()
        self._weigh(np.arange(self.num_envs))
        self._last = self._observe(None)

    def render(
        self, index: int, *, camera: str | None = None, width: int = 320, height: int = 240, final: bool = False
    ) -> Tensor:
        """Return uint8 [3 h w] picture of env `index` as it stands now.

        Args:
            final: of the last frame of its episode instead, which must have ended in the newest step that ended any.
        """
        state, extra = self._last_frames[index] if final else (self.physics.state[index], self._extra[index])
        return torch.from_numpy(self._camera.picture(state, extra, camera or "front", height, width))

    def depth(self, index: int, camera: str) -> DepthImage:
        """Return the depth image of env `index` as it stands now, in the size of its point clouds."""
        return self._camera.depth(self.physics.state[index], self._extra[index], camera, *self.views.cloud.size)

    def close(self) -> None:
        self.physics.close()
        self._camera.close()

    def make_expert(self, *, expert_noise: float = 0.0) -> Expert:
        """This task's scripted expert for this env; raises ConfigError where its class names none."""
        if self.task.expert is None:
            raise ConfigError(
                f"{self.task.name}: has no scripted expert, so no demonstrations can be recorded of it. Set `expert` "
                f"of {type(self.task).__name__}, or train on demonstrations of your own: dataset=<folder>."
            )
        reads = self.layout if self.objects else _Scenery(self)
        return self.task.expert(self.task, self.spec, reads, self.num_envs, expert_noise=expert_noise)


class _Scenery:
    """State of the whole scene for experts, where `observation.state` holds no objects."""

    def __init__(self, env: SimEnv) -> None:
        self.env = env

    def unpack(self, state: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Return the groups of all envs now, as StateLayout.unpack; `state` is ignored."""
        scene = self.env._scene()
        groups = {**arm_features(scene), **self.env.task.observe(self.env.at, scene)}
        return {name: value.astype(np.float32) for name, value in groups.items()}
