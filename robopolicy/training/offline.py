"""Offline training: sample → update → log → evaluate → checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from robopolicy.config.schema import Count, Natural
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec, check_action_spec, check_features
from robopolicy.core.types import Algorithm, Metrics, Obs
from robopolicy.core.untrusted import refusing
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.base import Policy


class Progress(Protocol):
    def update(self, step: int, **numbers: float) -> None: ...


class Tracker(Protocol):
    def log(self, metrics: Metrics, step: int) -> None: ...
    def progress(self, total: int, description: str) -> AbstractContextManager[Progress]: ...


class Checkpoints(Protocol):
    requested: bool  # somebody asked to stop: save now; `save` then raises KeyboardInterrupt

    def save(self, step: int, *, policy: Policy, state: dict[str, Any], best: bool = False) -> Any: ...
    def latest(self) -> dict[str, Any] | None: ...


class Batches:
    """Training batches of a policy as a pure function of (seed, step): resuming needs no state but the step.

    Every epoch is a fresh permutation of all frames, cut into ⌊F/B⌋ batches; what is left over is dropped.

    Args:
        remember: of observations [F ...] and the seeds of their episodes [F], see Policy.remember.

    Raises:
        SpecError: the episodes lack what the policy reads or speak of other actions; all differences are listed.
    """

    def __init__(
        self,
        episodes: Episodes,
        spec: PolicySpec,
        *,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        remember: Callable[[Obs, Tensor], Obs] | None = None,
    ) -> None:
        problems = check_features(spec.observation, episodes.observation, needs="the policy", offers="the dataset")
        problems += check_action_spec(spec.action, episodes.action_spec, needs="the policy", offers="the dataset")
        if abs(spec.dt - episodes.dt) > 1e-6:
            problems.append(f"dt: the policy is for {spec.dt} s a step, the dataset has {episodes.dt} s")
        if problems:
            raise SpecError("policy and dataset do not fit:\n  - " + "\n  - ".join(problems))
        self.seed, self.batch_size = seed, batch_size
        # Windows as tables of frame numbers: the frames themselves stay where they are, once.
        frames = torch.arange(episodes.num_frames)
        numbered = replace(episodes, obs={"frame": frames}, action=frames[:, None])
        chunk, pad = numbered.chunk(frames, spec.horizon)
        self.history = numbered.history(frames, spec.n_obs_steps)["frame"].to(device)  # [F To]
        self.chunk, self.pad = chunk[..., 0].to(device), pad.to(device)  # [F H]
        self.obs = {k: episodes.obs[k].to(device) for k in spec.observation}
        if remember is not None:
            self.obs = remember(self.obs, episodes.seeds[episodes.episode_of].to(device))
        self.action = episodes.action.to(device)
        self.per_epoch = max(1, len(frames) // batch_size)
        self._epoch, self._order = -1, frames

    def __getitem__(self, step: int) -> dict[str, Tensor]:
        """{key: [B To ...], "action": [B H Da], "action_is_pad": [B H]} of training step `step`."""
        epoch, position = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(step_seed(self.seed, epoch, stream=1))
            order = torch.randperm(len(self.action), generator=generator)
            self._epoch, self._order = epoch, order.to(self.action.device)
        rows = self._order[position * self.batch_size : (position + 1) * self.batch_size]
        batch = {k: v[self.history[rows]] for k, v in self.obs.items()}
        return {**batch, "action": self.action[self.chunk[rows]], "action_is_pad": self.pad[rows]}


def offline(
    *,
    algo: Algorithm,
    episodes: Episodes,
    steps: Count,
    batch_size: Count,
    seed: int,
    tracker: Tracker,
    checkpointer: Checkpoints,
    log_every: Count = 100,
    save_every: Natural = 2_000,
    evaluate: Callable[[Policy, int], Metrics] | None = None,
    evaluate_every: Natural = 0,
) -> Metrics:
    """Train `algo` on fixed data for `steps` updates, going on from the newest checkpoint where there is one.

    All randomness of step s is drawn from a stream seeded by (seed, s), so a run that was cut off anywhere and
    started again ends in the same weights, bit for bit, as one that was not.

    Args:
        evaluate: called with `algo.policy` and step every `evaluate_every` steps; its numbers are logged under `eval/`.

    Returns:
        The means of the last log interval, `steps`, and `wall_s`, seconds in this process.
    """
    began = time.perf_counter()
    device = next(algo.policy.parameters()).device
    policy = algo.policy
    batches = Batches(episodes, policy.spec, batch_size=batch_size, seed=seed, device=device, remember=policy.remember)
    state = checkpointer.latest()
    step, sums, means, best = 0, {}, {}, -1.0  # best: success rate of the best evaluation
    if state is not None:
        with refusing("checkpoint: state.json"):
            step, sums, means = int(state["step"]), dict(state["sums"]), dict(state["means"])
            best = float(state["best"])
            algo.load_state_dict(state["algo"])
    with tracker.progress(steps, "offline") as progress:
        progress.update(step)
        while step < steps:
            seed_generators(step_seed(seed, step), device)
            for name, value in algo.update(batches[step]).items():
                sums[name] = sums.get(name, 0.0) + value
            step, better = step + 1, False
            if step % log_every == 0:
                means, sums = {name: total / log_every for name, total in sums.items()}, {}
                tracker.log({f"train/{name}": value for name, value in means.items()}, step)
            progress.update(step, **means)
            if evaluate is not None and evaluate_every and step % evaluate_every == 0:
                result = evaluate(algo.policy, step)
                tracker.log({f"eval/{name}": value for name, value in result.items()}, step)
                best, better = max(best, result["success_rate"]), result["success_rate"] >= best
            if (save_every and step % save_every == 0) or step == steps or better or checkpointer.requested:
                state = {"step": step, "algo": algo.state_dict(), "sums": sums, "means": means, "best": best}
                checkpointer.save(step, policy=algo.policy, state=state, best=better)
    return {**means, "steps": step, "wall_s": time.perf_counter() - began}


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators that `device` draws from (`torch.manual_seed` costs 0.1 ms, this 1 µs)."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def step_seed(seed: int, step: int, *, stream: int = 0) -> int:
    """A 63-bit seed for one step of one stream: mixed, so that neighbouring steps and seeds share nothing."""
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        x = ((x ^ (x >> 33)) * multiplier) & 0xFFFFFFFFFFFFFFFF  # MurmurHash3's finaliser
    return (x ^ (x >> 33)) >> 1
