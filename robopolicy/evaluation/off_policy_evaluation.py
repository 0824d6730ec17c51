"""Decide from recorded episodes alone whether a policy is better than its base: bootstrapped fitted Q evaluation.

Q of each policy is learned by TD from the recorded chunks, and read at the episodes' first frames. Each head learns
from its own resample of the episodes, so the heads' spread is that of the data (Hao et al. 2021, arXiv 2102.03607).
Both policies share resamples, batches and initial weights, so the common part of the error cancels. The errors of Q at
chunks that no episode shows are not in the interval, so a candidate whose chunks lie far from the recorded ones is
refused.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from robopolicy.buffers.chunk_replay_buffer import ChunkBatch, ChunkReplay
from robopolicy.buffers.recorded_rollouts import replay_of_episodes
from robopolicy.buffers.relabeling import CHUNK
from robopolicy.buffers.replay_buffer import split_batches
from robopolicy.core.protocols import Progress, ShowsProgress
from robopolicy.core.rng import kept_generators
from robopolicy.core.types import Obs
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.evaluation.gate_checks import Reader, check_episodes, check_level, check_policies
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.base import SEEN, Policy, use_tasks
from robopolicy.policies.normalizer import ACTION
from robopolicy.runs.logger import Tracker

FARTHEST = 2.0  # of a candidate's chunks from the recorded ones, in distances of the base's
HEADS, UPDATES = 20, 1_500  # resamples of the episodes; TD steps of each policy's critic
_WIDTH, _DEPTH, _BATCH = 64, 2, 256  # of the critics; transitions of an update
_SAMPLES = 4  # chunks of a policy at each frame
_LR, _TAU = 1e-3, 0.02
_AT_ONCE = 8  # batches that are sampled together
_NEAR = 0.1  # of the base's distance, in normalised units: a base without noise plays what is recorded
_CHUNK, _WEIGHT = "chunk", "weight"  # keys of a frame beside its encoded observation


@dataclass(frozen=True)
class GateResult:
    """The decision about a candidate.

    `accepted`: `low` is above 0, and the `estimator` trusts its data. `gain`: the candidate's value minus the base's:
    the discounted return from the episodes' first frames, or, in a world model, the rate of success. `low`, `high`:
    one-sided bounds of the gain at `level` each. `episodes`: number of recorded episodes that it was judged on; in a
    world model the number of its starts. `without_run`: policies, "candidate" or "base", that no run lies beside: they
    count as having learned from none of the episodes. `distance`: of the candidate's chunks from the recorded ones, as
    a multiple of the base's, at most FARTHEST. `uncertain`, `base_uncertain`: shares of their imagined episodes of
    which the world model is too uncertain, by `trust` times its bound. `diverged`: share of the candidate's or of the
    base's, the larger one, in which its numbers are not finite. `faults`: why it would not do to learn in.
    `starts`: where its episodes begin.
    """

    accepted: bool
    gain: float
    low: float
    high: float
    level: float
    episodes: int
    without_run: tuple[str, ...] = ()
    distance: float = 1.0
    uncertain: float = 0.0
    base_uncertain: float = 0.0
    trust: float = 1.0
    diverged: float = 0.0
    faults: tuple[str, ...] = ()
    starts: str = "held-out starts"
    estimator: Literal["fitted_q", "world_model"] = "fitted_q"


class Fitted(NamedTuple):
    """Values [E] of a policy, one for each resample, and its chunks' distance from the recorded ones, normalised."""

    values: Tensor
    distance: float


def gate(
    candidate: Policy,
    base: Policy,
    episodes: Episodes,
    *,
    level: float = 0.9,
    seed: int = 0,
    heads: int = HEADS,
    updates: int = UPDATES,
    tracker: ShowsProgress | None = None,
) -> GateResult:
    """Accept `candidate` where fitted Q evaluation finds it better than `base` with confidence `level`.

    Args:
        candidate, base: on the CPU.
        episodes: recorded ones that neither policy learned from, with failures and successes.
        heads: resamples of the episodes. tracker: shows progress.
        updates: TD steps of each policy's critic; more where success takes longer, see `updates_needed`.

    Raises:
        SpecError: a policy does not fit the episodes or refines another, or the executed chunks differ in length.
        DataError: fewer than FEWEST episodes, only failures or only successes, or neither rewards nor successes.
        ConfigError: the level is not between 0.5 and 1.
    """
    check_level(level)
    reader = check_policies(candidate, base, episodes)
    check_episodes(episodes)
    updates = max(updates, updates_needed(episodes, base.spec.n_action_steps))
    how: dict[str, Any] = {"seed": seed, "heads": heads, "updates": updates, "tracker": tracker}
    fitted = [fitted_values(policy, reader, episodes, name=name, **how)
              for name, policy in (("candidate", candidate), ("base", base))]  # fmt: skip
    return decided(fitted[0], fitted[1], level=level, episodes=episodes.num_episodes)


def updates_needed(episodes: Episodes, played: int) -> int:
    """Return the TD steps in which a reward reaches the first frame of the longest success, in chunks of `played`.

    A target that follows at the rate τ passes a value on by one chunk in 1/τ updates. After u updates the share that
    has come n chunks far is at most P(Poisson(τu) ≥ n), so u = (n + 3·√n)/τ.
    """
    good = succeeded(episodes)
    chunks = math.ceil(int(episodes.lengths[good].max()) / played) if bool(good.any()) else 0
    return math.ceil((chunks + 3 * math.sqrt(chunks)) / _TAU)


def decided(candidate: Fitted, base: Fitted, *, level: float, episodes: int) -> GateResult:
    """Return the decision from both policies' values under the same resamples: mean and normal bounds."""
    gains, distance = candidate.values - base.values, candidate.distance / max(base.distance, _NEAR)
    gain, margin = float(gains.mean()), NormalDist().inv_cdf(level) * float(gains.std())
    accepted = gain > margin and distance <= FARTHEST
    return GateResult(accepted, gain, gain - margin, gain + margin, level, episodes, distance=distance)


def fitted_values(
    policy: Policy, base: Reader, episodes: Episodes, *, seed: int, heads: int, updates: int, name: str = "policy",
    tracker: ShowsProgress | None = None,
) -> Fitted:  # fmt: skip
    """Estimate the value of `policy` from the episodes' first frames, one for each resample of the episodes.

    Args:
        base: encodes and normalises for the critic. seed: of resamples, batches, weights and the policies' noise.
        name: of the policy in the progress that `tracker` shows; None: nothing is shown.
    """
    shown = tracker or Tracker(quiet=True)
    generator = torch.Generator().manual_seed(seed)
    share = torch.full((heads, episodes.num_episodes), 1.0)
    drawn = torch.multinomial(share, episodes.num_episodes, replacement=True, generator=generator)
    weight = torch.zeros_like(share).scatter_add_(1, drawn, torch.ones_like(share))  # [E episodes]
    spec = base.spec
    with kept_generators(policy):
        torch.manual_seed(seed)
        with shown.progress(2 * episodes.num_frames, f"{name}: actions") as bar:  # frames, encoded and acted on
            frames = {SEEN: encoded(base, episodes, bar), _CHUNK: chunks(policy, base, episodes, bar)}
        frames[_WEIGHT] = weight.T[episodes.episode_of]  # [F E]
        torch.manual_seed(seed)  # the same initial weights, however much noise the policy drew
        inputs = frames[SEEN].shape[1] + spec.n_action_steps * spec.action.dim
        critic = CriticEnsemble(inputs, heads=heads, width=_WIDTH, depth=_DEPTH)
    like = ChunkReplay(capacity=spec.n_action_steps + 1, num_envs=1, spec=spec, horizon=int(episodes.lengths.max()))
    replay = replay_of_episodes(like, episodes, obs=frames)
    target = copy.deepcopy(critic).requires_grad_(False)
    adam = torch.optim.Adam(critic.parameters(), lr=_LR, fused=True)
    params, averaged = ([p.detach() for p in net.parameters()] for net in (critic, target))  # no graph of averages
    rounds = -(-updates // _AT_ONCE)
    with shown.progress(rounds * _AT_ONCE, f"{name}: value") as bar:
        for done in range(rounds):
            rows = cast(ChunkBatch, replay.sample(_AT_ONCE * _BATCH, generator))
            for batch in split_batches([rows], _AT_ONCE):
                loss = temporal_difference(critic, target, batch, base, generator)
                adam.zero_grad(set_to_none=True)
                loss.backward()
                adam.step()
                torch._foreach_lerp_(averaged, params, _TAU)
            bar.update((done + 1) * _AT_ONCE)
    first = episodes.starts[:-1]
    with torch.no_grad():
        each = [critic(frames[SEEN][first], frames[_CHUNK][first, i].flatten(1)) for i in range(_SAMPLES)]
    values = (torch.stack(each).mean(0) * weight).sum(1) / weight.sum(1)
    return Fitted(values, distance_of(frames[_CHUNK], base, episodes))


def distance_of(drawn: Tensor, base: Reader, episodes: Episodes) -> float:
    """Return the root mean square distance of chunks [F _SAMPLES Ta Da] from those that begin at the same frames."""
    at = torch.arange(episodes.num_frames)[:, None] + torch.arange(base.spec.n_action_steps)  # [F Ta]
    inside = at < episodes.starts[1:][episodes.episode_of][:, None]
    recorded = base.normalizer.normalize(ACTION, episodes.action)[at.clamp(max=episodes.num_frames - 1)]
    return float((drawn - recorded[:, None]).square().mean(dim=(1, 3))[inside].mean().sqrt())


def temporal_difference(
    critic: CriticEnsemble, target: CriticEnsemble, batch: ChunkBatch, base: Reader, generator: torch.Generator
) -> Tensor:
    """Compute the weighted squared TD error [], summed over heads: each head learns from its own resample."""
    following, played = batch.next_obs[_CHUNK], base.spec.n_action_steps
    chosen = torch.randint(_SAMPLES, (len(following),), generator=generator)
    following = following[torch.arange(len(following)), chosen]
    executed = base.normalizer.normalize(ACTION, batch.action).masked_fill(~batch.keep[..., None], 0.0)[:, :played]
    with torch.no_grad():
        y = batch.reward + batch.discount * target(batch.next_obs[SEEN], following.flatten(1))  # [E B]
    q = critic(batch.obs[SEEN], executed.flatten(1))
    return ((q - y).square() * batch.obs[_WEIGHT].T).mean(1).sum()


@torch.no_grad()
def encoded(base: Reader, episodes: Episodes, bar: Progress) -> Tensor:
    """Encode every frame by the base: [F C], the numbers that critics read."""
    parts = list[Tensor]()
    for obs in histories(base, episodes):
        parts.append(base.encode(obs)[:, : base.cond_dim].cpu())
        bar.update(sum(map(len, parts)))
    return torch.cat(parts)


@torch.no_grad()
def chunks(policy: Policy, base: Reader, episodes: Episodes, bar: Progress) -> Tensor:
    """Draw chunks [F _SAMPLES Ta Da] of `policy` at every frame, in the base's normalised units, within the limits."""
    low, high = base.normalizer.normalize(ACTION, torch.tensor([base.spec.action.low, base.spec.action.high]))
    parts = list[Tensor]()
    for obs in histories(policy, episodes):
        drawn = [policy.act(obs)[:, : base.spec.n_action_steps] for _ in range(_SAMPLES)]
        parts.append(base.normalizer.normalize(ACTION, torch.stack(drawn, dim=1)).clamp(low, high).cpu())
        bar.update(episodes.num_frames + sum(map(len, parts)))
    return torch.cat(parts)


def histories(policy: Policy, episodes: Episodes) -> Iterator[Obs]:
    """Yield the observations [B To ...] of all frames in order, with the dataset's tasks."""
    with use_tasks(policy, episodes.tasks):
        for frames in torch.arange(episodes.num_frames).split(CHUNK):
            yield episodes.history(frames, policy.spec.n_obs_steps)
