"""Train off-policy with a share of synthetic transitions, which a model of the data generates.

They are generated again as the policy changes. The loop is `off_policy`, on a replay buffer with a synthetic share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from robopolicy.buffers.chunk_replay_buffer import ChunkReplay
from robopolicy.buffers.recorded_rollouts import replay_of_episodes
from robopolicy.buffers.replay_buffer import Batch, Replay
from robopolicy.config.schema import Count, Fraction
from robopolicy.core.errors import ConfigError
from robopolicy.core.types import Metrics, Obs
from robopolicy.datasets.episodes import Episodes
from robopolicy.training.off_policy import off_policy


class SyntheticSource(Protocol):
    """Generates experience of the current policy."""

    def __call__(self, number: int) -> tuple[Episodes, Obs]:
        """Generate set `number` of episodes, and the replay features of their F frames [F ...]."""
        ...


class MixedReplay:
    """A replay buffer with a synthetic `fraction` in every sample, drawn from the newest synthetic set.

    Synthetic rows are spread evenly over a sample, so that every part of it has its share.

    Args:
        real: the env's transitions; everything except sampling is forwarded to it.
        every: transitions drawn until the next set is generated.
    """

    def __init__(self, real: Replay, source: SyntheticSource, *, fraction: float, every: int) -> None:
        self.real, self.source, self.fraction, self.every = real, source, fraction, every
        self.synthetic: Replay | None = None
        self.drawn, self.sets = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """See Replay."""
        if self.synthetic is None or self.drawn >= self.sets * self.every:
            episodes, obs = self.source(self.sets)
            self.synthetic, self.sets = replay_of_episodes(self.real, episodes, obs=obs), self.sets + 1
        self.drawn += batch_size
        share = (torch.arange(batch_size + 1, dtype=torch.float64) * self.fraction + 1e-9).floor()
        synthetic = share[1:] > share[:-1]
        count = int(synthetic.sum())
        parts = self.real.sample(batch_size - count, generator), self.synthetic.sample(count, generator)
        place = torch.cat([(~synthetic).nonzero()[:, 0], synthetic.nonzero()[:, 0]])
        return _reordered(*parts, place.argsort())

    def state_dict(self) -> dict[str, Any]:
        """Include the synthetic set, since the policy that it was generated for is gone."""
        synthetic = {} if self.synthetic is None else self.synthetic.state_dict()
        return {"real": self.real.state_dict(), "synthetic": synthetic, "drawn": self.drawn, "lots": self.sets}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.real.load_state_dict(state["real"])
        self.drawn, self.sets, self.synthetic = int(state["drawn"]), int(state["lots"]), None
        if saved := state["synthetic"]:
            self.synthetic = self.real.empty(int(saved["added"]))
            self.synthetic.load_state_dict(saved)


def synthetic_off_policy(
    *,
    algo: Any,
    replay: Callable[..., Replay],
    synthetic: Callable[..., SyntheticSource],
    demos: Episodes | None,
    batch_size: Count,
    synthetic_fraction: Fraction = 0.25,
    demo_fraction: Fraction = 0.25,
    refresh_every: Count = 1_000,
    seed: int = 0,
    **loop: Any,
) -> Metrics:
    """Run `off_policy` on real, demonstrated and synthetic transitions.

    Args:
        synthetic: makes the SyntheticSource for a `policy`.
        synthetic_fraction: of every batch. Together with `demo_fraction` it may be 1; then no real transition is
            learned from, and the env only counts the steps.
        refresh_every: updates between two synthetic sets.
        **loop: see off_policy.

    Raises:
        ConfigError: the fractions exceed 1, rollouts are given, or `algo` learns from chunks.
    """
    if loop.get("rollouts"):
        raise ConfigError(
            f"loop.rollouts={sorted(loop['rollouts'])}: are not drawn beside synthetic transitions. Leave them out, or "
            "use algo=residual."
        )
    demo_size = round(batch_size * demo_fraction) if demos is not None else 0
    rest, wanted = batch_size - demo_size, round(batch_size * synthetic_fraction)
    if wanted > rest:
        raise ConfigError(
            f"loop.synthetic_fraction={synthetic_fraction} and loop.demo_fraction={demo_fraction} are more than a "
            "whole batch. Lower one of them."
        )
    source = synthetic(policy=algo.policy, seed=seed)

    def mixed(**given: Any) -> MixedReplay:
        real, fraction = replay(**given), wanted / rest if rest else 0.0
        if isinstance(real, ChunkReplay):
            raise ConfigError(
                f"loop.replay: expected a buffer of single steps, found a {type(real).__name__}: {type(algo).__name__} "
                "learns from chunks, and synthetic transitions are single steps. Use algo=residual_synthetic, or "
                "loop._target_=off_policy."
            )
        return MixedReplay(real, source, fraction=fraction, every=refresh_every * max(1, rest))

    return off_policy(
        algo=algo, replay=cast(Callable[..., Replay], mixed), demos=demos, batch_size=batch_size,
        demo_fraction=demo_fraction, seed=seed, **loop,
    )  # fmt: skip


synthetic_off_policy.forwards_to = lambda given: (off_policy,)  # type: ignore[attr-defined]


def _reordered(first: Batch, second: Batch, order: Tensor) -> Batch:
    """Concatenate both batches and reorder their rows by `order` [B]."""

    def joined(a: Any, b: Any) -> Any:
        return {k: joined(v, b[k]) for k, v in a.items()} if isinstance(a, dict) else torch.cat([a, b])[order]

    return Batch(*map(joined, first, second))
