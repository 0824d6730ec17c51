"""Any `gymnasium.vector.VectorEnv` as a `robopolicy.core.types.VecEnv`.

    env = adapt(gymnasium.make_vec("FetchReach-v4", num_envs=8))

How an ended episode is reset depends on the env's autoreset mode (https://farama.org/Vector-Autoreset-Mode):
SAME_STEP      the successor is in info["final_obs"], or "final_observation" as it was called before Gymnasium 1.0.
DISABLED, and NEXT_STEP of Gymnasium's own Sync- and AsyncVectorEnv: we reset the ended envs at once through
               options["reset_mask"], with a seed for every episode.
NEXT_STEP elsewhere: the env spends its next step on the reset. That step is handed on with `steps` 0, `valid` False
               and `truncated` True, so learners drop it and executors start again at its `obs`.

Training episodes have seeds of their own too, so that a run is a function of its seed. Where the env resets without
asking for one, an episode still gets a number that no other has, because the noise of policies is keyed by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from numpy.typing import NDArray
from torch import Tensor

from robopolicy.core.errors import CheckpointError, ConfigError, SpecError
from robopolicy.core.types import IMAGES, ActionSpec, Obs, Step, check_action
from robopolicy.envs.episode_queue import EpisodeQueue
from robopolicy.sim.gymnasium.checked_env import CheckedEnv
from robopolicy.sim.gymnasium.farm import Farm
from robopolicy.sim.gymnasium.film import picture
from robopolicy.sim.gymnasium.info import Success
from robopolicy.sim.gymnasium.observations import Observations, differ, layout
from robopolicy.sim.gymnasium.spec import check_vector_env, env_spec, name_of, reset_mode


class GymVecEnv:
    """VecEnv over a Gymnasium vector env with Box actions and Box or Dict-of-Box observations.

    Boxes are flattened and joined, in the space's order, into `observation.state`; uint8 boxes of three axes [h w 3]
    or [3 h w] become `observation.images.<key>` (`main` for a bare Box). Boxes of nested Dicts have keys with dots:
    `arm.joints`. LeRobot's names keep their meaning: next to `agent_pos`, `environment_state` becomes
    `observation.environment_state`; `pixels` may be a Dict of pictures.

    `episode_seed` is negative where the env chose the episode itself: it cannot be asked for again.

    Args:
        seed: names the stream of training episodes.
        instructions: task text; one task.
        horizon: steps to truncation; default: the env's own `max_episode_steps`.
        dt: s per step; default: 1 / metadata["render_fps"], else 0.05.
        action: meaning of the action; default: numbers in the env's own units, absolute.
        names: of the elements of `observation.state`, then of `observation.environment_state`, each its own; default:
            the space's keys, counted.
        success: key of success, see sim/gymnasium/info.py; default: info["success"] or info["is_success"].
        autoreset_mode: where the env's metadata do not say it.

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
        success: str | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
    ) -> None:
        check_vector_env(env)
        self.env, self.num_envs, self.device = env, int(env.num_envs), torch.device("cpu")
        self._layout = layout(env.single_observation_space, name_of(env))
        self.spec = env_spec(env, self._layout, instructions=instructions, horizon=horizon, dt=dt, action=action,
                             names=names, success=success)  # fmt: skip
        self._observed, self._success = Observations(self._layout, self.spec.id), Success(success, self.spec.id)
        self._checked = CheckedEnv(env, self.spec.id)
        self.mode = reset_mode(env, autoreset_mode, self.spec.id)
        self._farm = env.unwrapped if isinstance(env.unwrapped, Farm) else None
        self._own = isinstance(env.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self._by_mask = self.mode == AutoresetMode.DISABLED or (self.mode == AutoresetMode.NEXT_STEP and self._own)
        self._idle: NDArray[np.bool_] = np.zeros(self.num_envs, dtype=bool)  # NEXT_STEP: the coming step is the reset
        self._age: NDArray[np.int64] = np.zeros(self.num_envs, dtype=np.int64)  # steps of the episode
        self._seeded = False  # whether it was seen that an episode follows from its seed
        self.episode_seed = torch.full((self.num_envs,), -1, dtype=torch.int64)
        self._queue = EpisodeQueue(seed, {})
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
        self._idle[:], self._age[:] = False, 0
        self._queue.start(seeds)
        first, _ = self._queue.next(n)
        self.episode_seed = torch.from_numpy(first.copy())
        obs = self._begin(first.tolist())
        if not self._seeded:
            obs = self._check_seeds(first.tolist(), obs)
        return obs

    def step(self, action: Tensor) -> Step:
        check_action(action, self.spec, self.num_envs)
        executed = torch.clamp(action.detach().float().cpu(), self._low, self._high)
        idle, checked = self._idle.copy(), self._checked
        raw, reward, terminated, truncated, info = checked.call("step", 5, checked.to_env(executed))
        terminated, truncated = checked.flags(terminated, "terminated"), checked.flags(truncated, "truncated")
        if (idle & (terminated | truncated)).any():
            raise SpecError(f"{self.spec.id}: autoreset mode NEXT_STEP: a step that resets ended an episode as well")
        truncated &= ~terminated  # if both: terminated only
        starting = terminated | truncated
        obs = next_obs = self._observed(raw, self.num_envs)
        idle |= False if self._farm is None else self._farm.lost  # their episodes end without a step
        success = self._success.read(
            info, terminated, active=~idle, ended=starting & ~idle, same_step=self.mode == AutoresetMode.SAME_STEP
        )
        reward = checked.reward(reward, idle)
        self._age = np.where(idle, 0, self._age + 1)
        self._check_horizon(starting)
        if starting.any():
            self._checked.refuse_final(info, self.mode)
            if self.mode == AutoresetMode.SAME_STEP:
                next_obs = self._with_final(obs, info, starting)
                self._name(starting)
            elif self._by_mask:
                self._name(starting)
                obs = self._begin_rows(self.episode_seed.tolist(), starting, next_obs)
            else:
                self._idle = starting
            self._age[starting] = 0
        if (reset := idle & ~starting).any():
            self._idle = self._idle & ~reset
            self._name(reset)
        return Step(
            obs=obs,
            next_obs=next_obs,
            executed=executed,
            steps=torch.from_numpy((~idle).astype(np.int64)),
            reward=torch.from_numpy(reward),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(truncated | idle),
            success=torch.from_numpy(success),
            valid=torch.from_numpy(~idle),
            info={},
        )

    @property
    def lost_episodes(self) -> int:
        """Number of episodes that ended because their worker died."""
        return 0 if self._farm is None else self._farm.lost_episodes

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the training stream; the env's own state cannot be saved."""
        return {**self._queue.state_dict(), "num_envs": self.num_envs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with the next training episode at the next `reset`, which must follow.

        Raises:
            CheckpointError: saved with another number of envs.
        """
        if state["num_envs"] != self.num_envs:
            raise CheckpointError(
                f"{self.spec.id}: the saved state is of {state['num_envs']} envs, this one has {self.num_envs}. "
                f"Resume with num_envs={state['num_envs']}."
            )
        self._queue.load_state_dict(state)

    def render(self, index: int, *, camera: str | None = None, width: int = 320, height: int = 240) -> Tensor:
        """Return the picture that env `index` renders itself, see `sim.gymnasium.film`: it has one camera and shape."""
        return picture(self.env, index, camera, height, self.spec.id)

    def close(self) -> None:
        self.env.close()

    # -- resets -----------------------------------------------------------------------------------------------------
    def _begin(self, seed: Sequence[int | None], options: dict[str, Any] | None = None) -> Obs:
        """Return all N observations after a reset."""
        given = {"options": options} if options else {}
        raw, _ = self._checked.call("reset", 2, seed=list(seed), **given)
        return self._observed(raw, self.num_envs)

    def _begin_rows(self, seeds: list[int], rows: NDArray[np.bool_], before: Obs) -> Obs:
        """Return all N observations after a reset of the envs in `rows` [N]."""
        seed = [s if row else None for s, row in zip(seeds, rows, strict=True)]
        obs, others = self._begin(seed, {"reset_mask": rows.copy()}), torch.from_numpy(~rows)
        if not self._own and not all(torch.equal(obs[k][others], v[others]) for k, v in before.items()):
            raise SpecError(
                f"{self.spec.id}: reset(options={{'reset_mask': …}}) changed envs outside the mask. In autoreset mode "
                f"{self.mode.name} it has to reset the envs in the mask, and no others."
            )
        return obs

    def _check_seeds(self, seeds: list[int], first: Obs) -> Obs:
        """Begin the same episodes once more, or one of them where one can be asked for; all N observations.

        Raises:
            SpecError: they begin otherwise, so no comparison on the same seeds would be one.
        """
        alone = np.arange(self.num_envs) == 0
        obs = self._begin_rows(seeds, alone, first) if self._by_mask else self._begin(seeds)
        for key, value in obs.items():
            if differ(value, first[key], picture=key.startswith(IMAGES)):
                raise SpecError(
                    f"{self.spec.id}: reset(seed=…) with the same seeds began other episodes the second time ({key!r} "
                    "differs). The env has to draw from self.np_random alone, which super().reset(seed=seed) seeds."
                )
        self._seeded = True
        return obs

    def _name(self, rows: NDArray[np.bool_]) -> None:
        """New `episode_seed`s where `rows` [N]: the next in the queue."""
        seeds = torch.from_numpy(self._queue.next(int(rows.sum()))[0])
        self.episode_seed = self.episode_seed.clone()  # seeds handed out before stay as they were
        # The complement of a seed that the env was not given: unique as well, and never taken for a seed.
        self.episode_seed[torch.from_numpy(rows)] = seeds if self._by_mask else ~seeds

    # -- what the env hands out -------------------------------------------------------------------------------------
    def _check_horizon(self, ended: NDArray[np.bool_]) -> None:
        late = ~ended & (self._age >= self.spec.horizon)
        if late.any():
            raise SpecError(
                f"{self.spec.id}: the episode of env {late.nonzero()[0][0]} goes on after {self.spec.horizon} steps, "
                "its horizon. The env has to truncate there: gymnasium.make_vec(…, max_episode_steps=…)."
            )

    def _with_final(self, obs: Obs, info: Any, ended: NDArray[np.bool_]) -> Obs:
        """Return `obs`, with the last observations of the envs in `ended` [N]."""
        last = self._checked.final_observations(info, ended)
        next_obs = {k: v.clone() for k, v in obs.items()}
        for i, one in zip(ended.nonzero()[0], last, strict=True):
            for key, value in self._observed.one(one).items():
                next_obs[key][i] = value[0]
        return next_obs


adapt = GymVecEnv  # in the words of a user: adapt this env
