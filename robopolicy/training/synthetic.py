"""Off-policy training a share of whose batches is synthetic: transitions that a model of the data makes up.

They are made anew as the policy changes. Nothing in the loop knows: it draws from a replay of which a share is made up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from robopolicy.buffers.batch import Batch
from robopolicy.buffers.replay_buffer import Replay
from robopolicy.config.schema import Count, Fraction
from robopolicy.core.errors import ConfigError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Metrics, Obs, Step
from robopolicy.datasets.episodes import Episodes
from robopolicy.training.off_policy import off_policy


class SyntheticSource(Protocol):
    """Makes up experience of the policy as it is now."""

    def __call__(self, number: int) -> tuple[Episodes, Obs]:
        """The `number`-th lot of episodes, and what the policy's `read` makes of their F frames [F ...]."""
        ...


class MixedReplay:
    """A replay of which `fraction` of every sample is synthetic, of the lot made last.

    The synthetic rows lie evenly among the others, so that wherever a sample is cut every part has its share.

    Args:
        real: what the env answered; all that is not about sampling is its own.
        every: transitions drawn until the next lot is made.
    """

    def __init__(self, real: Replay, source: SyntheticSource, *, fraction: float, every: int) -> None:
        self.real, self.source, self.fraction, self.every = real, source, fraction, every
        self.synthetic: Replay | None = None
        self.drawn, self.lots = 0, 0

    @property
    def can_sample(self) -> bool:
        return self.real.can_sample

    def add(self, obs: Obs, step: Step) -> None:
        self.real.add(obs, step)

    def interrupt(self) -> None:
        self.real.interrupt()

    def of_episodes(self, episodes: Episodes, *, obs: Obs) -> Replay:
        return self.real.of_episodes(episodes, obs=obs)

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """See Replay."""
        if self.synthetic is None or self.drawn >= self.lots * self.every:
            episodes, obs = self.source(self.lots)
            self.synthetic, self.lots = self.real.of_episodes(episodes, obs=obs), self.lots + 1
        self.drawn += batch_size
        share = (torch.arange(batch_size + 1, dtype=torch.float64) * self.fraction + 1e-9).floor()
        made_up = share[1:] > share[:-1]
        count = int(made_up.sum())
        parts = self.real.sample(batch_size - count, generator), self.synthetic.sample(count, generator)
        place = torch.cat([(~made_up).nonzero()[:, 0], made_up.nonzero()[:, 0]])
        return _reordered(*parts, place.argsort())

    def state_dict(self) -> dict[str, Any]:
        """The lot too: the policy that it was made for is gone."""
        lot = {} if self.synthetic is None else self.synthetic.state_dict()
        return {"real": self.real.state_dict(), "synthetic": lot, "drawn": self.drawn, "lots": self.lots}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.real.load_state_dict(state["real"])
        self.drawn, self.lots, self.synthetic = int(state["drawn"]), int(state["lots"]), None
        if lot := state["synthetic"]:
            self.synthetic = Replay(
                capacity=int(lot["added"]), num_envs=1, n_step=self.real.n_step, gamma=self.real.gamma
            )
            self.synthetic.load_state_dict(lot)


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
    """`off_policy` with synthetic transitions beside real and demonstrated ones.

    Args:
        synthetic: makes the Source for a `policy`.
        synthetic_fraction: of every batch. With `demo_fraction` it may be all of it: then no real transition is learned
            from, and the env only counts the steps.
        refresh_every: updates for which a lot is learned from.
        **loop: see off_policy.

    Raises:
        ConfigError: the fractions leave less than nothing to real transitions; rollouts are given.
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

    def mixed(num_envs: int, spec: PolicySpec) -> MixedReplay:
        fraction = wanted / rest if rest else 0.0
        return MixedReplay(
            replay(num_envs=num_envs, spec=spec), source, fraction=fraction, every=refresh_every * max(1, rest)
        )

    return off_policy(
        algo=algo, replay=cast(Callable[..., Replay], mixed), demos=demos, batch_size=batch_size,
        demo_fraction=demo_fraction, seed=seed, **loop,
    )  # fmt: skip


synthetic_off_policy.forwards_to = lambda given: (off_policy,)  # type: ignore[attr-defined]


def _reordered(first: Batch, second: Batch, order: Tensor) -> Batch:
    """Rows of both, one after the other, in `order` [B]."""

    def joined(a: Tensor, b: Tensor) -> Tensor:
        return torch.cat([a, b])[order]

    def joined_obs(a: Obs, b: Obs) -> Obs:
        return {k: joined(v, b[k]) for k, v in a.items()}

    return Batch(
        joined_obs(first.obs, second.obs),
        joined(first.action, second.action),
        joined(first.reward, second.reward),
        joined(first.discount, second.discount),
        joined_obs(first.next_obs, second.next_obs),
    )
