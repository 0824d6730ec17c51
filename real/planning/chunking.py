"""How one chunk follows another on an arm, by name; for `rtc`, `inpaint`: policies/realtime_chunking.py."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch

from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import keyed_normal
from robopolicy.core.types import RENDERED, Obs
from robopolicy.policies.base import DenoisingPolicy, Policy, with_bases
from robopolicy.policies.realtime_chunking import Continuation, continue_chunk, longest_delay
from robopolicy.real.control.chunk_buffer import Ahead, ChunkBuffer, Delays, check_latency
from robopolicy.real.planning.planner import Array, Planner, Plans
from robopolicy.real.planning.remote_planner import RemotePlanner

Chunking = Literal["async", "rtc", "inpaint"]


class Chunks(NamedTuple):
    """Planner, buffer and timing of chunks for a ControlLoop."""

    planner: Plans
    buffer: ChunkBuffer
    lead: int
    delays: Delays | None
    predict: bool  # plan from the state that the arm will be in when the chunk begins


class RealtimePlanner(Planner):
    """A Planner whose chunks go on from the actions ahead. With none ahead they are a Planner's, all H steps of them.

    Args:
        mode: see `continue_chunk`.
    """

    def __init__(self, policy: DenoisingPolicy, mode: Continuation, *, seed: int = 0) -> None:
        super().__init__(policy, seed=seed)
        self.sampler, self.mode = policy, mode

    def plan(self, obs: Obs, step: int, ahead: Ahead | None = None) -> Array:
        """Return [H Da] for a history of observations [1 To …], at control step `step` of the episode."""
        policy, spec = self.sampler, self.sampler.spec
        part = {k: obs[k][:, -spec.n_obs_steps :] for k in spec.observation}
        noise = keyed_normal(self.seed, torch.tensor([step]), policy.noise_shape, stream=policy.depth)
        left, delay = torch.zeros(1, 0, spec.action.dim), 0
        if ahead is not None:
            left, delay = torch.from_numpy(ahead.actions)[None].float(), ahead.delay
        chunk = continue_chunk(policy, part, left, delay=delay, mode=self.mode, noise=noise)
        return chunk[0].double().numpy().copy()


def check_chunking(chunking: Chunking, policy: Policy | RemotePlanner, latency: float, *, early: float = 0.0) -> str:
    """Check that `chunking` fits `policy`; returns a sentence about the delays that it can bridge.

    Args:
        latency, early: s; see check_latency.

    Raises:
        ConfigError: it is no policy whose chunks can be continued.
        SpecError: it cannot bridge `latency` s between an observation and the first use of its plan.
    """
    spec = policy.spec
    horizon, count = spec.horizon, spec.n_action_steps
    if chunking == "async":
        check_latency(spec, latency, early)
        return f"chunking=async: {count} steps a chunk, delays of up to {count} steps ({1000 * count * spec.dt:.0f} ms)"
    if isinstance(policy, RemotePlanner):
        raise ConfigError(f"chunking={chunking}: server=… plans every chunk by itself so far. Use chunking=async")
    if policy.base is not None:
        raise ConfigError(
            f"chunking={chunking}: {type(policy).__name__} corrects its base's next action, one step at a time, so "
            "there is no chunk to go on from. Use chunking=async, or a policy without a base: the base itself, or one "
            "that was fine-tuned through its denoising chain (algo=dppo)"
        )
    if not isinstance(policy, DenoisingPolicy):
        raise ConfigError(
            f"chunking={chunking}: expected a policy that denoises (diffusion, flow), found {type(policy).__name__}. "
            "Use chunking=async"
        )
    longest, needed = longest_delay(spec), math.ceil(latency / spec.dt - 1e-9)
    if longest < max(1, needed):
        raise SpecError(
            f"chunking={chunking}: the policy predicts horizon={horizon} steps and executes n_action_steps={count} "
            f"before it plans again, which bridges delays of up to {longest} control steps "
            f"({1000 * longest * spec.dt:.0f} ms); found {needed} ({1000 * latency:.0f} ms). Plan faster, or train "
            "with a longer horizon"
        )
    return (
        f"chunking={chunking}: plans again after {count} of {horizon} steps, "
        f"for delays of up to {longest} steps ({1000 * longest * spec.dt:.0f} ms)"
    )


def chunking_of(
    chunking: Chunking, policy: Policy | RemotePlanner, latency: float, *, predict: bool = False, early: float = 0.0
) -> Chunks:
    """Planner, buffer and timing of `policy` with plans that take `latency` s.

    `async`: the next chunk is asked for as early before the last ends as the latency takes (with none: when it has
    ended), is planned without regard to it, and blended at the seam. With `predict` it begins where the last one ends,
    as the policy is shown the state of that moment; one that sees pictures cannot be. Without, its late actions are
    dropped; a chunk that is too short for that is due later than planned. `rtc`, `inpaint`: it is asked for after
    n_action_steps and continues the rest of the last one; both have all their H steps.

    Raises:
        ConfigError, SpecError: see check_chunking.
    """
    check_chunking(chunking, policy, latency, early=early)
    spec = policy.spec
    steps = math.ceil(latency / spec.dt - 1e-9)
    predict = predict and not sees_pictures(policy)
    if chunking == "async":
        planner: Plans = Planner(policy) if isinstance(policy, Policy) else policy
        shift = steps if predict else max(0, steps + 1 - spec.n_action_steps)
        return Chunks(planner, ChunkBuffer(spec, shift=shift), steps, None, predict)
    assert isinstance(policy, DenoisingPolicy)
    longest, left = longest_delay(spec), spec.horizon - spec.n_action_steps
    return Chunks(
        RealtimePlanner(policy, chunking),
        ChunkBuffer(spec, length=spec.horizon, blend=0, max_delay=longest * spec.dt),
        left,
        Delays(spec.dt, first=steps, most=longest),
        predict,
    )


def sees_pictures(policy: Policy | RemotePlanner) -> bool:
    """Return whether a policy, or one that it corrects, sees pictures or clouds, which show no later state."""
    if isinstance(policy, RemotePlanner):
        keys = list(policy.keys)
    else:
        keys = [key for level in with_bases(policy) for key in level.spec.observation]
    return any(key.startswith(RENDERED) for key in keys)
