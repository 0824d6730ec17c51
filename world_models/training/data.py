"""Prepare data for world models: datasets mixed by weight, split by episode seed, cut into sequences.

A dataset holds the observation *before* each action and not the one after an episode's last action. So an episode of
n frames has n − 1 transitions for the dynamics. Success is a property of (frame, action), not of a frame.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robopolicy.core.errors import ConfigError, DataError, SpecError, closest
from robopolicy.core.rng import keyed_uniform, step_seed
from robopolicy.core.specs import with_cameras
from robopolicy.core.types import STATE, Feature
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, concatenate, take
from robopolicy.datasets.lerobot_reader import dataset_features, load_episodes
from robopolicy.world_models.models.dynamics import Dynamics, History

_log = logging.getLogger(__name__)
HOLDOUT = 0.15  # share of episodes that a model is not trained on, where its config does not say
_SPLIT_STREAM, _DRAW_STREAM = 9201, 9202
_NEAR = 15  # frames before an episode's end that are drawn more often as negatives: they resemble success


@dataclass(frozen=True)
class Mixture:
    """Episodes of S sources in a row, and how often each source is drawn."""

    episodes: Episodes
    source: Tensor  # [E] int64 into `names`
    names: tuple[str, ...]
    weights: Tensor  # [S], sum 1

    def take(self, mask: Tensor) -> Mixture:
        """Only the episodes of `mask` [E] bool."""
        return replace(self, episodes=take(self.episodes, mask), source=self.source[mask])


def load_source(
    path: Path,
    name: str,
    *,
    incomplete: bool = True,
    cameras: tuple[str, ...] | None = None,
    reads: Callable[[dict[str, Feature]], dict[str, Feature]] = Dynamics.reads,
) -> Episodes:
    """Load the features of a dataset that a model `reads`, without pictures by default; `name`: what to call it.

    Raises:
        SpecError: it has no states.
    """
    features = dataset_features(path)
    if STATE not in features:
        raise SpecError(f"{name}={path}: the world model reads {STATE!r}, the dataset offers {sorted(features)}")
    needed = reads(with_cameras(features, cameras, where="cameras"))
    if unread := sorted(key for key, feature in features.items() if key not in needed and len(feature.shape) == 1):
        _log.warning("%s=%s: the world model predicts no %s; a policy that reads it cannot act in this model.",
                     name, path, ", ".join(unread))  # fmt: skip
    return load_episodes(path, needed=needed, incomplete=incomplete)


def mix(sources: Mapping[str, Episodes], weights: Mapping[str, float]) -> Mixture:
    """Join all sources. Sources without a weight get their shares of each other's frames, with a sum of 1.

    Raises:
        ConfigError: no sources, a weight of an unknown source, or of nothing.
        SpecError: they differ in features, actions, rate or tasks; all differences are listed.
        DataError: a source without recorded outcomes: nothing tells success from failure.
    """
    if not sources:
        raise ConfigError("dataset: there is no data. Give dataset=<path>, or several: loop.data.<name>=<path>.")
    for name in weights:
        if name not in sources:
            raise ConfigError(f"loop.mix_weights.{name}: there is no such source. {closest(name, sources)}")
    first_name, first = next(iter(sources.items()))
    problems = []
    for name, other in sources.items():
        problems += misfits(first, other, needs=first_name, offers=name)
        if first.tasks != other.tasks:
            problems.append(f"tasks: {first_name} has {first.tasks}, {name} has {other.tasks}")
        if not other.outcomes:
            raise DataError(
                f"{name}: has neither rewards nor successes, so success cannot be learned from it. Annotate it "
                'with outcomes="success" if all its episodes are good '
                "(robopolicy.datasets.lerobot_reader.annotate_dataset)."
            )
    if problems:
        raise SpecError("datasets of one world model do not fit together:\n  - " + "\n  - ".join(problems))
    frames = {name: float(e.num_frames) for name, e in sources.items()}
    total = sum(n for name, n in frames.items() if name not in weights)
    share = torch.tensor([weights[name] if name in weights else n / total for name, n in frames.items()])
    if bool((share < 0).any()) or not float(share.sum()) > 0.0:
        raise ConfigError(f"loop.mix_weights: weights must not be negative nor all 0, found {dict(weights)}")
    counts = torch.tensor([e.num_episodes for e in sources.values()])
    source = torch.repeat_interleave(torch.arange(len(sources)), counts)
    return Mixture(concatenate(list(sources.values())), source, tuple(sources), share / share.sum())


def split(episodes: Episodes, holdout: float) -> tuple[Tensor, Tensor, Tensor]:
    """Masks [E] bool of training, calibration and validation episodes; half of `holdout` each for the last two.

    A function of the episode's seed: the same start never lies on both sides, in whichever source it occurs.
    """
    unit = keyed_uniform(episodes.seeds, torch.zeros_like(episodes.seeds), (1,), stream=_SPLIT_STREAM)[:, 0]
    return unit >= holdout, unit < holdout / 2, (unit >= holdout / 2) & (unit < holdout)


def check_learnable(episodes: Episodes, *, unroll: int, key: str = "unroll") -> None:
    """Raise where these episodes cannot teach a world model.

    Raises:
        SpecError: no `observation.state`, or several tasks.
        DataError: every episode is shorter than a training sequence; other rewards than success, or other ends.
    """
    if STATE not in episodes.obs:
        raise SpecError(f"the world model reads {STATE!r}. {closest(STATE, episodes.obs)}")
    if len(episodes.tasks) > 1:
        raise SpecError(f"the data has {len(episodes.tasks)} tasks, a world model is of one: {episodes.tasks}")
    longest = int(episodes.lengths.max())
    if longest <= unroll:
        raise DataError(
            f"a training sequence takes {unroll + 1} frames ({unroll} steps), the longest episode has {longest}. Lower "
            f"world_model.{key} so that it takes {longest} at most, or record longer episodes."
        )
    if not torch.equal(episodes.reward, episodes.success.float()):
        frame = int((episodes.reward != episodes.success.float()).nonzero()[0])
        raise DataError(
            f"frame {frame} has reward {float(episodes.reward[frame]):.4g} with success "
            f"{bool(episodes.success[frame])}: only the reward 1 at success is modelled. Record with reward=sparse."
        )
    if bool((episodes.terminated & ~episodes.success).any()):
        raise DataError("some episodes terminated without success: failures that end an episode are not modelled")


def sequences(episodes: Episodes, length: int) -> tuple[Tensor, Tensor]:
    """Return every window of up to L transitions, as frames [n L+1], and whether [n L] each transition exists.

    A window that reaches over its episode's end repeats the last frame there.
    """
    starts = torch.arange(episodes.num_frames)
    last = episodes.starts[1:][episodes.episode_of] - 1  # [F]
    begins = starts < last  # at least one transition
    index = starts[begins, None] + torch.arange(length + 1)
    end = last[begins, None]
    return torch.minimum(index, end), index[:, 1:] <= end


class WorldModelBatches:
    """Training batches as a pure function of (seed, step): resuming needs no state but the step.

    Args:
        heads: members of the ensemble; each draws its own sequences.
        unroll: L. window: S frames of history of the labelled frames.
        labelled: (frame, action) pairs for the success classifier, half of them positive.
    """

    def __init__(
        self,
        mixture: Mixture,
        *,
        heads: int,
        unroll: int,
        batch_size: int,
        window: int,
        labelled: int,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        episodes = mixture.episodes
        self.heads, self.batch_size, self.labelled, self.seed, self.device = heads, batch_size, labelled, seed, device
        self.episodes, self.window = episodes, window
        self.keys = tuple(k for k in episodes.observation if k in episodes.obs)
        frames, valid = sequences(episodes, unroll)
        of_source = mixture.source[episodes.episode_of[frames[:, 0]]]
        order = of_source.argsort(stable=True)
        self.frames, self.valid = frames[order], valid[order]
        self.sizes = torch.bincount(of_source, minlength=len(mixture.names))
        self.first = self.sizes.cumsum(0) - self.sizes
        weights = torch.where(self.sizes > 0, mixture.weights, 0.0)
        self.edges = (weights / weights.sum()).cumsum(0)
        self.positive = episodes.success.nonzero()[:, 0]
        self.negative = (~episodes.success).nonzero()[:, 0]
        numbers = torch.arange(episodes.num_frames)
        left = episodes.starts[1:][episodes.episode_of] - numbers  # frames to the episode's end, this one included
        self.near = ((left <= _NEAR) & ~episodes.success).nonzero()[:, 0]

    def __getitem__(self, step: int) -> dict[str, Any]:
        """Return the batch of training step `step`.

        {key: [E B L+1 ...], "action": [E B L Da], "valid": [E B L] bool, "success_history": History of P frames,
        "label": [P] float, success after the action at the last frame, "mixing": seed}.
        """
        generator = torch.Generator().manual_seed(step_seed(self.seed, step, stream=_DRAW_STREAM))
        u = torch.rand(2, self.heads, self.batch_size, generator=generator)
        source = torch.searchsorted(self.edges, u[0]).clamp_(max=len(self.sizes) - 1)
        rows = self.first[source] + (u[1] * self.sizes[source]).long().clamp_(max=self.sizes[source] - 1)
        frames = self.frames[rows]  # [E B L+1]
        half = self.labelled // 2
        parts = [
            self._some(self.positive, half, generator),
            self._some(self.near, half // 2, generator),
            self._some(self.negative, self.labelled - half - half // 2, generator),
        ]
        labelled_frames = torch.cat(parts)
        batch = {k: self.episodes.obs[k][frames] for k in self.keys}
        batch |= {"action": self.episodes.action[frames[..., :-1]], "valid": self.valid[rows]}
        batch["label"] = self.episodes.success[labelled_frames].float()
        batch["mixing"] = torch.randint(2**31, (1,), generator=generator)
        history = History.before(self.episodes, labelled_frames, self.window)
        return {"success_history": history.to(self.device), **{k: v.to(self.device) for k, v in batch.items()}}

    @staticmethod
    def _some(pool: Tensor, count: int, generator: torch.Generator) -> Tensor:
        if not len(pool):
            return pool
        return pool[torch.randint(len(pool), (count,), generator=generator)]
