"""Any `gymnasium.vector.VectorEnv` as a `robopolicy.types.VecEnv`.

    env = adapt(gymnasium.make_vec("FetchReach-v4", num_envs=8))

How an ended episode is reset depends on the env's autoreset mode (https://farama.org/Vector-Autoreset-Mode):
SAME_STEP      the successor is in info["final_obs"].
DISABLED, and NEXT_STEP of Gymnasium's own Sync- and AsyncVectorEnv: we reset the ended envs at once through
               options["reset_mask"], with a seed for every episode.
NEXT_STEP elsewhere: the env spends its next step on the reset. That step is handed on with `steps` 0, `valid` False
               and `truncated` True, so learners drop it and executors start anew at its `obs`.

Training episodes have seeds of their own too, so that a run is a function of its seed. Where the env resets without
asking for one, an episode still gets a number that no other has, because the noise of policies is keyed by it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.errors import CheckpointError, ConfigError
from robopolicy.types import IMAGES, STATE, TASK, ActionSpec, EnvSpec, Feature, Obs, Step, check_action
from sim.episodes import EpisodeQueue

_HOW_MANY = ("num_envs", "vectorization_mode", "vector_kwargs")  # how a task is run, not what it is


def adapt(env: VectorEnv, **kw: Any) -> GymVecEnv:
    """`GymVecEnv(env, **kw)`."""
    return GymVecEnv(env, **kw)


class GymVecEnv:
    """VecEnv over a Gymnasium vector env with Box actions and Box or Dict-of-Box observations.

    Float boxes are flattened and joined, in the space's order, into `observation.state`; uint8 boxes of three axes
    [h w 3] or [3 h w] become `observation.images.<key>` (`main` for a bare Box).

    `episode_seed` is negative where the env chose the episode itself: it cannot be asked for again.

    Args:
        seed: names the stream of training episodes.
        instructions: task text; one task.
        horizon: steps to truncation; default: the env's own `max_episode_steps`.
        dt: s per step; default: 1 / metadata["render_fps"], else 0.05.
        action: what the action means; default: numbers in the env's own units, absolute.
        names: of the elements of `observation.state`, each its own; default: the space's keys, counted.

    Raises:
        ConfigError: `names` that are not one of its own for every element, or spaces other than these.
    """

    def __init__(
        self,
        env: VectorEnv,
        *,
        seed: int = 0,
        instructions: str = "",
        horizon: int | None = None,
        dt: float | None = None,
        action: ActionSpec | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.env, self.num_envs, self.device = env, env.num_envs, torch.device("cpu")
        self.mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        own = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._by_mask = self.mode == AutoresetMode.DISABLED or (self.mode == AutoresetMode.NEXT_STEP and own)
        self._idle = np.zeros(self.num_envs, dtype=bool)  # NEXT_STEP elsewhere: the coming step is the reset
        self.episode_seed = torch.full((self.num_envs,), -1, dtype=torch.int64)
        self._queue = EpisodeQueue(seed, {})
        self.spec = self._spec(instructions, horizon, dt, action, names)
        self._low, self._high = torch.tensor(self.spec.action.low), torch.tensor(self.spec.action.high)

    def reset(self, seeds: Tensor | None = None) -> Obs:
        n = self.num_envs
        if seeds is not None and (seeds.ndim != 1 or len(seeds) < n):
            raise ConfigError(f"{self.spec.id}: reset needs seeds [M] with M >= {n}, found {tuple(seeds.shape)}")
        if seeds is not None and len(seeds) > n and not self._by_mask:
            raise ConfigError(
                f"{self.spec.id}: autoreset mode {self.mode.name} resets episodes without asking for a seed, so at "
                f"most {n} seeds can be given, found {len(seeds)}. Build the env with AutoresetMode.DISABLED."
            )
        self._idle[:] = False
        self._queue.start(seeds)
        first, _ = self._queue.next(n)
        self.episode_seed = torch.from_numpy(first.copy())
        obs, _ = self.env.reset(seed=first.tolist())
        return self._convert(obs)

    def step(self, action: Tensor) -> Step:
        check_action(action, self.spec, self.num_envs)
        executed = torch.clamp(action.detach().float().cpu(), self._low, self._high)
        space = self.env.single_action_space
        sent = executed.numpy().astype(space.dtype).reshape(self.num_envs, *space.shape)
        raw, reward, terminated, truncated, info = self.env.step(sent)
        idle = self._idle.copy()
        terminated = np.asarray(terminated, dtype=bool) & ~idle
        truncated = (np.asarray(truncated, dtype=bool) & ~terminated) | idle  # if both: terminated only
        ended = terminated | truncated
        obs = next_obs = self._convert(raw)
        success = self._success(info, ended) & ~idle
        starting = ended & ~idle
        if starting.any():
            if self.mode == AutoresetMode.SAME_STEP:
                next_obs = {k: v.clone() for k, v in obs.items()}
                for i in starting.nonzero()[0]:
                    for key, value in self._convert(_expand(info["final_obs"][i])).items():
                        next_obs[key][i] = value[0]
                self._name(starting)
            elif self._by_mask:
                obs = self._convert(self._reset_rows(starting))
            else:
                self._idle = starting
        if idle.any():
            self._idle = self._idle & ~idle
            self._name(idle)
        reward = np.where(idle, 0.0, np.asarray(reward, dtype=np.float64))
        return Step(
            obs=obs,
            next_obs=next_obs,
            executed=executed,
            steps=torch.from_numpy((~idle).astype(np.int64)),
            reward=torch.from_numpy(reward.astype(np.float32)),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated),
            success=torch.from_numpy(success),
            valid=torch.from_numpy(~idle),
            info={},
        )

    def state_dict(self) -> dict[str, Any]:
        """Which training episodes were begun; what happens inside the env cannot be saved."""
        return {**self._queue.state_dict(), "num_envs": self.num_envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the training episode after the last one begun, at the next `reset`, which has to follow.

        Raises:
            CheckpointError: saved with another number of envs.
        """
        if state["num_envs"] != self.num_envs:
            raise CheckpointError(
                f"{self.spec.id}: the saved state is of {state['num_envs']} envs, this one has {self.num_envs}. "
                f"Resume with num_envs={state['num_envs']}."
            )
        self._queue.load_state_dict(state)

    def close(self) -> None:
        self.env.close()

    # -- inside -----------------------------------------------------------------------------------------------------
    def _reset_rows(self, rows: NDArray[np.bool_]) -> Any:
        """Reset the envs in `rows` [N], with the next seeds; all N observations."""
        self._name(rows)
        seed = [int(s) if row else None for s, row in zip(self.episode_seed, rows, strict=True)]
        obs, _ = self.env.reset(seed=seed, options={"reset_mask": rows.copy()})
        return obs

    def _name(self, rows: NDArray[np.bool_]) -> None:
        """New `episode_seed`s where `rows` [N]: the next in the queue."""
        seeds = torch.from_numpy(self._queue.next(int(rows.sum()))[0])
        self.episode_seed = self.episode_seed.clone()  # seeds handed out before stay as they were
        # The complement of a seed that the env was not given: unique as well, and never taken for a seed.
        self.episode_seed[torch.from_numpy(rows)] = seeds if self._by_mask else ~seeds

    def _success(self, info: dict[str, Any], ended: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """[N]: info["success"] or info["is_success"]; where an episode ended in this step, its final info's."""
        final = info.get("final_info", {})
        for key in ("success", "is_success"):
            if key in info or (isinstance(final, dict) and key in final):
                now = np.asarray(info.get(key, np.zeros(self.num_envs)), dtype=bool)
                if isinstance(final, dict) and key in final:
                    now = np.where(ended, np.asarray(final[key], dtype=bool), now)
                return now
        return np.zeros(self.num_envs, dtype=bool)

    def _convert(self, raw: Any) -> Obs:
        """Gymnasium's batch (any leading size) to our features."""
        parts = {"main": raw} if not isinstance(raw, dict) else raw
        obs, vectors = {}, []
        for key in self._images:
            picture = np.asarray(parts[key])
            picture = picture if picture.shape[-3] == 3 else np.moveaxis(picture, -1, -3)
            obs[IMAGES + key] = torch.from_numpy(np.array(picture, dtype=np.uint8))
        for key in self._vectors:
            value = np.asarray(parts[key], dtype=np.float32)
            vectors.append(value.reshape(value.shape[0], -1))
        size = len(next(iter(parts.values())))
        if vectors:
            obs[STATE] = torch.from_numpy(np.concatenate(vectors, axis=1))
        obs[TASK] = torch.zeros(size, dtype=torch.int64)
        return obs

    def _spec(
        self,
        instructions: str,
        horizon: int | None,
        dt: float | None,
        action: ActionSpec | None,
        names: Sequence[str] | None,
    ) -> EnvSpec:
        env, space = self.env, self.env.single_observation_space
        name = env.spec.id if env.spec is not None else type(env.unwrapped).__name__
        boxes = dict(space.spaces) if isinstance(space, Dict) else {"main": space}
        wrong = {k: type(v).__name__ for k, v in boxes.items() if not isinstance(v, Box)}
        if wrong or not isinstance(env.single_action_space, Box):
            raise ConfigError(
                f"{name}: observations must be Box or Dict of Box and actions Box; found "
                f"{wrong or type(env.single_action_space).__name__}. Wrap the env to flatten or drop the others."
            )
        pictures = {k for k, v in boxes.items() if v.dtype == np.uint8 and len(v.shape) == 3 and 3 in v.shape}
        self._images = tuple(k for k in boxes if k in pictures)
        self._vectors = tuple(k for k in boxes if k not in pictures)
        features: dict[str, Feature] = {}
        counted = [f"{k}_{i}" for k in self._vectors for i in range(int(np.prod(boxes[k].shape)))]
        if names is not None and not len(set(names)) == len(names) == len(counted):
            raise ConfigError(
                f"{name}: names: expected one of its own for each of the {len(counted)} elements of {STATE!r}, found "
                f"{len(names)}, of which {len(set(names))} differ"
            )
        if self._vectors:
            features[STATE] = Feature((len(counted),), names=tuple(names or counted))
        for k in self._images:
            shape = boxes[k].shape
            size = shape[1:] if shape[0] == 3 else shape[:2]
            features[IMAGES + k] = Feature((3, *size), dtype="uint8")
        features[TASK] = Feature((), dtype="int64")
        if action is None:
            low = env.single_action_space.low.reshape(-1).astype(float)
            high = env.single_action_space.high.reshape(-1).astype(float)
            action = ActionSpec(
                names=tuple(f"a{i}" for i in range(len(low))),
                units=("1",) * len(low),
                low=tuple(low.tolist()),
                high=tuple(high.tolist()),
                frame="world",
                tcp="",
                rotation="none",
                reference="absolute",
                gripper=None,
                gripper_meaning="",
            )
        steps = horizon or (env.spec.max_episode_steps if env.spec is not None else None)
        if not steps:
            raise ConfigError(f"{name}: its spec states no max_episode_steps; pass horizon=")
        dt = dt or 1 / float(env.metadata.get("render_fps") or 20)
        given = env.spec.kwargs if env.spec is not None else {}  # of Gymnasium's make
        task = {k: v for k, v in given.items() if k not in _HOW_MANY}
        kwargs = json.dumps([task, int(steps)], sort_keys=True, default=str)
        identity = json.dumps([name, kwargs, repr(space), repr(env.single_action_space), gymnasium.__version__])
        return EnvSpec(
            id=name,
            observation=features,
            action=action,
            tasks=(instructions or name,),
            dt=dt,
            horizon=int(steps),
            digest=hashlib.sha256(identity.encode()).hexdigest()[:16],
        )


def _expand(obs: Any) -> Any:
    """One env's observation with a batch axis."""
    return {k: np.asarray(v)[None] for k, v in obs.items()} if isinstance(obs, dict) else np.asarray(obs)[None]
