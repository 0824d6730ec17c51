"""Present a world model as a `VecEnv`, so that algorithms train in imagination unchanged.

An episode ends for four reasons: success (terminated, reward 1), the horizon (truncated), an unreliable state and
non-finite numbers (truncated, not valid). A state of high uncertainty or outside the data is unreliable; it terminates
with a pessimistic value, so no value is bootstrapped from it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import keyed_uniform
from robopolicy.core.specs import with_cameras
from robopolicy.core.types import EnvSpec, Obs, Step, check_action
from robopolicy.envs.episode_queue import EpisodeQueue
from robopolicy.world_models.models.dynamics import History, by_blocks
from robopolicy.world_models.models.world import World

_START_STREAM, _DRAW_STREAM = 9101, 9102


class ImaginedEnv:
    """N imagined episodes at once.

    `held_out`: function that returns starts outside the model's training data; None: unknown. `gate`: node of the
    gate that decides which updates are kept; None: all are kept.

    Args:
        world: trained and calibrated.
        starts: where episodes begin, `world.memory` frames each; the seed of an episode chooses one.
        num_envs: N. seed: names the stream of training episodes.
        horizon: primitive steps to truncation; None: the env's own.
        trust: factor of the calibrated bound on uncertainty; larger allows more.
        pessimism: value of an uncertain state, given as reward of the step into it.
        sampled: draw outcomes; False takes the likeliest.
        cameras: names of the cameras to observe; None: all modelled ones. Others are never decoded.

    Raises:
        ConfigError: an uncalibrated world, no starts, or a pessimism that is better than the worst return.
    """

    held_out: Callable[[], History] | None = None
    gate: dict[str, Any] | None = None

    def __init__(
        self,
        world: World,
        starts: History,
        num_envs: int,
        *,
        seed: int = 0,
        horizon: int | None = None,
        trust: float = 1.0,
        pessimism: float = 0.0,
        sampled: bool = True,
        cameras: tuple[str, ...] | None = None,
        digest: str = "",
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, found {num_envs}")
        if not bool(torch.isfinite(world.bound)) or not bool(torch.isfinite(world.success.threshold)):
            raise ConfigError("world.model: is not calibrated, its bound or threshold is missing. Train it to its end.")
        if not len(starts):
            raise ConfigError("world.starts: holds no frame to start from")
        if not -math.inf < pessimism <= 0.0:
            raise ConfigError(
                f"world.pessimism: expected a number of at most 0, the return of an episode that fails, found "
                f"{pessimism}. A positive one rewards uncertain states."
            )
        self.world, self.starts, self.num_envs = world.eval(), starts, num_envs
        self.device = torch.device("cpu")
        self.trust, self.pessimism, self.sampled, self.cameras = trust, pessimism, sampled, cameras
        self.spec: EnvSpec = replace(
            world.spec, id=f"imagined {world.spec.id}",
            observation=with_cameras(world.spec.observation, cameras, where="world.cameras"),
            horizon=horizon or world.spec.horizon, digest=digest or world.spec.digest, joint_access=False,
            resumable=True,
        )  # fmt: skip
        self._low, self._high = torch.tensor([self.spec.action.low, self.spec.action.high])
        self.queue = EpisodeQueue(seed, {})
        self.episode_seed = torch.zeros(num_envs, dtype=torch.int64)
        self._t = torch.zeros(num_envs, dtype=torch.int64)
        self._latent = torch.zeros(num_envs, world.dynamics.latent_dim)
        self._frame_scores = torch.zeros(num_envs, world.success.window, 2)  # of the last latents, newest last
        self._episode = torch.zeros(num_envs)  # uniform number of the episode
        # First latents and scores, computed when a start is chosen for the first time.
        self._known = torch.zeros(len(starts), dtype=torch.bool)
        self._first_latent = torch.empty(len(starts), world.dynamics.latent_dim)
        self._first_scores = torch.empty(len(starts), world.success.window, 2)
        self.reset()

    # -- VecEnv ------------------------------------------------------------------------------------------------------
    def reset(self, seeds: Tensor | None = None) -> Obs:
        self.queue.start(seeds, num_envs=self.num_envs)
        self._begin(torch.arange(self.num_envs))
        return self.observe()

    @torch.no_grad()
    def step(self, action: Tensor) -> Step:
        check_action(action, self.spec, self.num_envs)
        executed = torch.clamp(action.detach().float().cpu(), self._low, self._high)
        dynamics, latent = self.world.dynamics, self._latent
        draw = keyed_uniform(self.episode_seed, self._t, (1,), stream=_DRAW_STREAM)[:, 0]
        imagined = dynamics.step(latent, executed, episode=self._episode, draw=draw if self.sampled else None)
        frame_scores = self._score_frames(imagined.latent)
        score = self.world.success.window_score(torch.cat([self._frame_scores, frame_scores[:, None]], dim=1))
        bad = ~(torch.isfinite(imagined.latent).all(1) & torch.isfinite(imagined.uncertainty) & torch.isfinite(score))
        after = torch.where(bad[:, None], latent, imagined.latent)
        uncertain = ((imagined.uncertainty > self.trust * self.world.bound) | dynamics.outside(after)) & ~bad
        success = (score > self.world.success.threshold) & ~bad & ~uncertain
        self._t += 1
        terminated = success | uncertain
        truncated = ((self._t >= self.spec.horizon) & ~terminated) | bad
        frame_scores = torch.where(bad[:, None], self._frame_scores[:, -1], frame_scores)
        self._latent, self._frame_scores = after, torch.cat([self._frame_scores[:, 1:], frame_scores[:, None]], dim=1)
        next_obs = self.observe()
        obs, ended = next_obs, terminated | truncated
        if bool(ended.any()):
            rows = ended.nonzero()[:, 0]
            self._begin(rows)
            begun = self.world.dynamics.decode(self._latent[rows], self.spec.observation)
            obs = {k: v.index_copy(0, rows, begun[k]) for k, v in next_obs.items()}
        return Step(
            obs=obs,
            next_obs=next_obs,
            executed=executed,
            steps=torch.ones(self.num_envs, dtype=torch.int64),
            reward=success.float() + self.pessimism * uncertain.float(),
            terminated=terminated,
            truncated=truncated,
            success=success,
            valid=~bad,
            info={"uncertainty": torch.where(bad, 0.0, imagined.uncertainty), "uncertain": uncertain, "diverged": bad},
        )

    def observe(self) -> Obs:
        """Return the observation to act on now, e.g. after `load_state_dict`."""
        return self.world.dynamics.decode(self._latent, self.spec.observation)

    # -- Stateful ----------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        return {
            "latent": self._latent.clone(), "frame_scores": self._frame_scores.clone(), "t": self._t.clone(),
            "episode_seed": self.episode_seed.clone(), **self.queue.state_dict(), "digest": self.spec.digest,
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
        shapes = {"latent": self._latent.shape, "frame_scores": self._frame_scores.shape}
        if state["digest"] != self.spec.digest or any(state[k].shape != shape for k, shape in shapes.items()):
            raise CheckpointError(
                f"{self.spec.id}: the saved state is of world {state['digest']} with {len(state['t'])} envs; this one "
                f"is {self.spec.digest} with {self.num_envs}. Resume with the world model it was saved under."
            )
        self._latent, self._frame_scores, self._t = (state[k].clone() for k in ("latent", "frame_scores", "t"))
        self.episode_seed = state["episode_seed"].clone()
        self.queue.load_state_dict(state)
        self._episode = self._choose(self.episode_seed)[1]

    # -- inside ------------------------------------------------------------------------------------------------------
    @torch.no_grad()
    def _score_frames(self, latent: Tensor) -> Tensor:
        """Return scores [B 2] of latents [B C], see SuccessClassifier.window_score."""
        world = self.world
        return by_blocks(lambda x: (world.success.frame_scores(world.dynamics.features(x)),), latent)[0]

    def _begin(self, rows: Tensor) -> None:
        """Start the next episodes in the queue in `rows` [M]."""
        seeds = torch.from_numpy(self.queue.next(len(rows))[0])
        chosen, unit = self._choose(seeds)
        self._encode(chosen[~self._known[chosen]].unique())
        self.episode_seed = self.episode_seed.clone()  # steps handed out before keep the seeds they were made with
        self.episode_seed[rows] = seeds
        self._episode[rows] = unit
        self._latent = self._latent.index_copy(0, rows, self._first_latent[chosen])
        self._frame_scores = self._frame_scores.index_copy(0, rows, self._first_scores[chosen])
        self._t[rows] = 0

    def _encode(self, starts: Tensor) -> None:
        """Encode `starts` [M] once: the encoder takes longer than the steps between few new episodes."""
        if len(starts):
            windows = self.world.windows(self.starts.take(starts))
            self._first_latent[starts] = windows[:, -1]
            self._first_scores[starts] = self._score_frames(windows.flatten(0, 1)).unflatten(0, windows.shape[:2])
            self._known[starts] = True

    def starts_of(self, seeds: Tensor) -> Tensor:
        """Return the numbers [M] of the starts in which episodes of `seeds` [M] begin."""
        return self._choose(seeds)[0]

    def _choose(self, seeds: Tensor) -> tuple[Tensor, Tensor]:
        """Return the start [M] and the member's uniform number [M] of episodes `seeds` [M]."""
        unit = keyed_uniform(seeds, torch.zeros_like(seeds), (2,), stream=_START_STREAM)
        return (unit[:, 0].double() * len(self.starts)).long(), unit[:, 1]
