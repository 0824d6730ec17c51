"""A vector env as others write them, whose observations say which env, episode and step they are of.

It keeps what really happened, so a successor, an outcome or an episode that is taken for another one is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.spaces import Box, Dict
from gymnasium.vector import AutoresetMode, VectorEnv

from robopolicy.core.types import IMAGES, STATE
from robopolicy.sim.gymnasium.adapter import GymVecEnv

Array = np.ndarray[Any, Any]


class ToyTruth(NamedTuple):
    """What a step did, by env: states are [env, episode, step]."""

    before: Array
    after: Array
    now: Array  # after resets
    active: Array
    reward: Array
    terminated: Array
    truncated: Array
    success: Array


class Toy(VectorEnv):
    """Counts steps. An episode whose number is even succeeds, in its last step, which terminates it; others are cut.

    Args:
        mode: of its resets. metadata: None: says the mode.
        as_dict: observes a Dict with a camera.
        final, final_key: form and name of last observations: objects, list, batched, rows (in a list of infos), none.
        told, key: form and name of final infos: columns, objects, list, rows (in a list of infos), none.
        says: what info says for success [N], at steps [N] that are the episode's last.
        edit: changes what `step` returns. edit_reset: the same.
    """

    def __init__(
        self,
        mode: str = "SAME_STEP",
        *,
        lengths: tuple[int, ...] = (2, 3, 4),
        metadata: dict[str, Any] | None = None,
        as_dict: bool = False,
        final: str = "objects",
        final_key: str = "final_obs",
        told: str = "columns",
        key: str = "success",
        says: Callable[[Array, Array], Any] = lambda success, ended: success,
        edit: Callable[[Toy, list[Any]], Any] = lambda toy, out: tuple(out),
        edit_reset: Callable[[Toy, list[Any]], Any] = lambda toy, out: tuple(out),
    ) -> None:
        self.num_envs, self.mode, self.spec = len(lengths), AutoresetMode[mode], None
        self.metadata = {"autoreset_mode": self.mode} if metadata is None else metadata
        self.lengths, self.as_dict, self.final, self.final_key = np.array(lengths), as_dict, final, final_key
        self.told, self.key, self.says, self.edit, self.edit_reset = told, key, says, edit, edit_reset
        box = Box(-np.inf, np.inf, (3,), np.float32)
        parts = {"step": Box(0, 99, (1,), np.int64), "eye": Box(0, 255, (6, 5, 3), np.uint8), "who": box}
        self.single_observation_space: Any = Dict(parts) if as_dict else box
        self.single_action_space: Any = Box(-1.0, 1.0, (2,), np.float32)
        self.random = [np.random.default_rng(i) for i in range(self.num_envs)]
        self.state = np.zeros((self.num_envs, 3), dtype=np.int64)
        self.state[:, 0] = np.arange(self.num_envs)
        self.waits = np.zeros(self.num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        rows = (options or {}).get("reset_mask", np.ones(len(self.lengths), dtype=bool))
        for i in rows.nonzero()[0]:
            if seed is not None:
                self.random[i] = np.random.default_rng(seed[i % len(seed)])
            self.begin(i)
        self.waits &= ~rows
        return self.edit_reset(self, [self.seen(self.state), {}])

    def begin(self, i: int) -> None:
        self.state[i, 1:] = self.random[i].integers(1, 10**6), 0

    def step(self, actions: Any) -> Any:
        before, active = self.state.copy(), ~self.waits
        self.state[active, 2] += 1
        after = self.state.copy()
        ended = active & (after[:, 2] >= self.lengths)
        success = ended & (after[:, 1] % 2 == 0)
        reward = np.where(active, after[:, 2] + 10.0 * after[:, 0], 0.0)
        for i in (ended if self.mode == AutoresetMode.SAME_STEP else ~active).nonzero()[0]:
            self.begin(i)
        self.waits = ended & (self.mode == AutoresetMode.NEXT_STEP)
        terminated, truncated = success.copy(), ended & ~success
        self.truth = ToyTruth(before, after, self.state.copy(), active, reward, terminated, truncated, success)
        info = self.info(after, success, ended, active)
        return self.edit(self, [self.seen(self.state), reward.copy(), terminated.copy(), truncated.copy(), info])

    def seen(self, state: Array) -> Any:
        if not self.as_dict:
            return state.astype(np.float32)
        eye = np.broadcast_to(state[:, 2, None, None, None] * 9 + np.arange(3), (len(state), 6, 5, 3))
        return {"step": state[:, 2:].copy(), "eye": eye.astype(np.uint8), "who": state.astype(np.float32)}

    def info(self, after: Array, success: Array, ended: Array, active: Array) -> Any:
        says = self.says(success, ended)
        same = self.mode == AutoresetMode.SAME_STEP
        if "rows" in (self.told, self.final):
            rows: list[Any] = [{self.key: says[i]} for i in range(self.num_envs)]
            for i in ended.nonzero()[0] if same else ():
                rows[i] = {self.key: False, "final_info": rows[i], self.final_key: self.one(after, i)}
            return rows
        # As Gymnasium has it: what an ended env says in the same step is said of its new episode.
        info = {self.key: np.where(ended, False, says) if same and isinstance(says, np.ndarray) else says}
        info[f"_{self.key}"] = active.copy()
        if same and ended.any():
            rows = [{self.key: says[i]} if ended[i] else None for i in range(self.num_envs)]
            forms = {"columns": {self.key: says, f"_{self.key}": ended}, "objects": objects(rows), "list": rows}
            if self.told != "none":
                info |= {"final_info": forms[self.told], "_final_info": ended.copy()}
            info |= self.final_observations(after, ended)
        return info

    def final_observations(self, after: Array, ended: Array) -> dict[str, Any]:
        last = [self.one(after, i) if ended[i] else None for i in range(self.num_envs)]
        batch = self.seen(np.where(ended[:, None], after, -7))
        forms = {"objects": objects(last), "list": last, "batched": batch}
        return {} if self.final == "none" else {self.final_key: forms[self.final], f"_{self.final_key}": ended.copy()}

    def one(self, state: Array, i: int) -> Any:
        seen = self.seen(state[i : i + 1])
        return {k: v[0] for k, v in seen.items()} if self.as_dict else seen[0]


def objects(rows: list[Any]) -> Array:
    found = np.full(len(rows), None)
    for i, row in enumerate(rows):
        found[i] = row
    return found


def play(env: GymVecEnv, toy: Toy, *, steps: int = 24) -> None:
    """Step `env`, and hold what it hands out to what happened in `toy`."""
    obs, ends, wins = env.reset(), np.zeros(toy.num_envs, dtype=int), 0
    _same(toy, obs, toy.state, "the first observation")
    for _ in range(steps):
        step = env.step(torch.zeros(toy.num_envs, env.spec.action.dim))
        truth = toy.truth
        if env.mode == AutoresetMode.DISABLED:  # reset by us, after the step
            truth = truth._replace(now=toy.state.copy())
        rows = truth.active
        assert step.valid.tolist() == rows.tolist() == (step.steps == 1).tolist(), "steps that are resets"
        _same(toy, obs, truth.before, "acts on", rows)
        _same(toy, step.next_obs, truth.after, "the successor", rows)
        _same(toy, step.obs, truth.now, "goes on from")
        assert step.reward.tolist() == truth.reward.tolist(), "reward"
        assert step.terminated.tolist() == truth.terminated.tolist(), "terminated"
        assert step.truncated.tolist() == (truth.truncated | ~rows).tolist(), "truncated"
        assert step.success.tolist() == truth.success.tolist(), "success"
        ends += (step.ended & step.valid).numpy()
        wins += int(step.success.sum())
        obs = step.obs
    assert (ends >= 3).all() and 0 < wins < ends.sum(), f"too little happened: {ends}, {wins}"


def _same(toy: Toy, obs: dict[str, torch.Tensor], state: Array, what: str, rows: Any = slice(None)) -> None:
    expected = toy.seen(state[rows])
    if not toy.as_dict:
        assert np.array_equal(obs[STATE][rows], expected), what
        return
    keys = [k for k in toy.single_observation_space if k != "eye"]
    joined = np.concatenate([expected[k] for k in keys], axis=1)
    assert np.array_equal(obs[STATE][rows], joined), what
    assert np.array_equal(obs[IMAGES + "eye"][rows], np.moveaxis(expected["eye"], -1, -3)), what
