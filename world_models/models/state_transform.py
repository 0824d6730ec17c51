"""Choose the numbers of the state that a model predicts, and their units.

States are redundant: they hold cube − tool beside cube and tool. Single predictions of these drift apart in a rollout,
and the contact, which depends on their difference, is lost. So the transform finds exact linear relations in the data.
The model predicts an independent set, the slowest numbers first (an object at rest rather than its distance to a moving
hand), and computes the others. Numbers that never change within an episode stay constant.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from robopolicy.core.errors import ConfigError, DataError, closest
from robopolicy.core.types import STATE, ActionSpec, Feature
from robopolicy.datasets.episodes import Episodes

# Matrix products whose sizes are multiples of this treat all rows alike, bit for bit (others have rows at the edge).
ROWS = 16
_EXACT = 1e-4  # a relation is exact where what it leaves unexplained is below this share of the deviation
_ROWS = 20_000  # frames in which relations are searched
_WIDER = 0.25  # of the range seen, on each side, that a state may lie outside of it


def round_up(size: int) -> int:
    """Return the next multiple of ROWS."""
    return -(-size // ROWS) * ROWS


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raise ConfigError unless all, by the name of their option, are multiples of ROWS."""
    for name, value in sizes.items():
        if value % ROWS:
            raise ConfigError(
                f"world_model.{name}: expected a multiple of {ROWS}, with which a row's bits do not depend on the "
                f"others', found {value}. Take {round_up(value)}."
            )


class StateTransform(nn.Module):
    """Statistics of states and of their changes, in the units of the data; NaN until `fit`.

    Args:
        state: names give `periods` their meaning.
        periods: {name: period} of angles that wrap; they are kept in [−period/2, period/2), as `sim` folds them.
        fine: states enter networks at two scales; the second is `fine` times larger about zero, where relative
            positions are small and contact is decided, and clipped.
    """

    mean: Tensor
    std: Tensor
    delta_std: Tensor
    predicted: Tensor
    relation: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor
    period: Tensor
    centre: Tensor
    reach: Tensor

    def __init__(
        self, state: Feature, action: ActionSpec, *, periods: Mapping[str, float] | None = None, fine: float = 8.0
    ) -> None:
        super().__init__()
        size = state.shape[0]
        self.names = state.names or tuple(str(i) for i in range(size))
        self.fine = fine
        self.feature_dim = 2 * size
        self.in_dim = 2 * size + action.dim
        for name in ("mean", "std", "delta_std", "predicted", "offset", "low", "high"):
            self.register_buffer(name, torch.full((size,), torch.nan))
        self.size = size
        self.register_buffer("relation", torch.full((round_up(size), size), torch.nan))  # derived = · state + offset
        period = torch.zeros(size)
        for name, value in (periods or {}).items():
            if name not in self.names:
                raise ConfigError(f"world_model.periods.{name}: no such element. {closest(name, self.names)}")
            period[self.names.index(name)] = value
        self.register_buffer("period", period)
        low, high = torch.tensor([action.low, action.high])
        finite = torch.isfinite(high - low)
        self.register_buffer("centre", torch.where(finite, (high + low) / 2, 0.0))
        self.register_buffer("reach", torch.where(finite, (high - low) / 2, 1.0))

    def fit(self, episodes: Episodes) -> StateTransform:
        """Take statistics over all frames and transitions.

        Raises:
            DataError: no number of the state ever changes, or an angle lies beyond half a turn.
        """
        x = episodes.obs[STATE].to(torch.float64)
        self._check_angles(x)
        within = episodes.episode_of[1:] == episodes.episode_of[:-1]
        delta = self.wrap(x[1:] - x[:-1])[within]
        std, mean = torch.std_mean(x, dim=0, correction=0)
        typical = std[std > 0].median() if bool((std > 0).any()) else std.new_ones(())
        delta_std = delta.square().mean(0).sqrt()  # about zero: a clock's steps are all alike
        moves = delta.abs().amax(0) > 1e-6 * typical
        if not bool(moves.any()):
            raise DataError("no number of the state changes within an episode: there are no dynamics to learn")
        keep, relation, offset = _relations(x, moves, delta.abs().mean(0), std, self.period > 0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 0, std, typical))
        self.predicted.copy_(keep & moves)
        self.delta_std.copy_(torch.where(moves, delta_std, 0.0))
        self.relation.zero_()[: self.size] = relation.to(self.relation.dtype)
        self.offset.copy_(offset)
        low, high = _reach(x, typical)
        self.low.copy_(low)
        self.high.copy_(high)
        return self

    def widen(self, episodes: Episodes) -> None:
        """Let the range that a state may lie in reach over `episodes` too; units stay as the weights know them.

        Raises:
            DataError: an angle lies beyond half a turn.
        """
        self._check_angles(episodes.obs[STATE])
        low, high = _reach(episodes.obs[STATE].to(torch.float64), self.std.median().double())
        self.low.copy_(torch.minimum(self.low, low.to(self.low.dtype)))
        self.high.copy_(torch.maximum(self.high, high.to(self.high.dtype)))

    def _check_angles(self, x: Tensor) -> None:
        """Raise where angles of `x` [F Ds] lie beyond half a turn, to which imagined ones are wrapped.

        Noise may carry a few of them over the seam.
        """
        beyond = (x.abs() > 0.55 * self.period.to(x.dtype)).double().mean(0) > 0.01
        for i in ((self.period > 0).to(beyond.device) & beyond).nonzero()[:, 0].tolist():
            half, name, most = float(self.period[i]) / 2, self.names[i], float(x[:, i].abs().max())
            raise DataError(
                f"world_model.periods.{name}={2 * half:g}: expected angles from {-half:g} to {half:g}, found up to "
                f"{most:g}. Record them so, or leave the key away where the angle never passes its seam."
            )

    def wrap(self, difference: Tensor) -> Tensor:
        """Differences [... Ds] of angles to the nearest turn."""
        period = self.period.to(difference.dtype)
        revolutions = torch.where(period > 0, torch.round(difference / period.clamp_min(1e-12)), 0.0)
        return difference - revolutions * period

    def difference(self, before: Tensor, after: Tensor) -> Tensor:
        """Return the change from `before` to `after` [... Ds] in deviations of a step; 0 for derived numbers."""
        scaled = self.wrap(after - before) / self.delta_std.clamp_min(1e-12)
        return torch.where(self.predicted > 0, scaled, 0.0)

    def advance(self, state: Tensor, change: Tensor) -> Tensor:
        """Return the state [... Ds] after `change` [... Ds], in deviations of a step: inverse of `difference`."""
        return self.derive(state + torch.where(self.predicted > 0, change * self.delta_std, 0.0))

    def derive(self, state: Tensor) -> Tensor:
        """Return `state` [... Ds] with wrapped angles and recomputed derived numbers."""
        moved = self.wrap(state)
        derived = (moved @ self.relation.T)[..., : self.size] + self.offset
        return torch.where(self.is_derived, self.wrap(derived), moved)

    @property
    def is_derived(self) -> Tensor:
        """Return whether [Ds] a number follows from the others."""
        return self.relation[: self.size].abs().sum(1) > 0

    def features(self, state: Tensor) -> Tensor:
        """Return [... 2·Ds], the state at both scales."""
        coarse = ((state - self.mean) / self.std).clamp(-5.0, 5.0)
        return torch.cat([coarse, (self.fine * state / self.std).clamp(-3.0, 3.0)], dim=-1)

    def inputs(self, state: Tensor, action: Tensor) -> Tensor:
        """Return [... in_dim], features of the state, and the action with its limits as ±1."""
        return torch.cat([self.features(state), self.units(action)], dim=-1)

    def units(self, action: Tensor) -> Tensor:
        """Return [... Da] with its limits as ±1."""
        return (action - self.centre) / self.reach

    def outside(self, state: Tensor) -> Tensor:
        """Return whether [...] some number is far from the data."""
        return ((state < self.low) | (state > self.high)).any(-1)


def hyperbolic(missed: Tensor, spread: Tensor) -> Tensor:
    """Return −log p of the error `missed` up to a constant: Gaussian near 0, with heavier tails.

    The tails limit the gradient of rare hard contacts.
    """
    return torch.sqrt(1.0 + (missed / spread).square()) - 1.0 + spread.log()


def _reach(x: Tensor, typical: Tensor) -> tuple[Tensor, Tensor]:
    """Lowest and highest [Ds] that a state may be of which `x` [F Ds] has been seen."""
    span = x.amax(0) - x.amin(0)
    return x.amin(0) - _WIDER * span - 1e-3 * typical, x.amax(0) + _WIDER * span + 1e-3 * typical


def _relations(x: Tensor, moves: Tensor, change: Tensor, std: Tensor, angle: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Greedy search: [Ds] bool of numbers to keep, [Ds Ds] relation and [Ds] offset of those that follow from them."""
    rows = x[:: max(1, len(x) // _ROWS)]
    centred = (rows - rows.mean(0)) / std.clamp_min(1e-30)
    size = x.shape[1]
    keep = torch.ones(size, dtype=torch.bool)
    relation, offset = torch.zeros(size, size, dtype=x.dtype), torch.zeros(size, dtype=x.dtype)
    # Derived numbers have the unit of their summands. Numbers at rest come first; 5% do not count as a difference.
    speed = torch.where(moves, (20.0 * change.clamp_min(1e-30).log()).round(), -torch.inf)
    kept: list[int] = []
    for j in speed.argsort(stable=True).tolist():
        if std[j] <= 0 or angle[j]:  # constants explain nothing; angles are not linear
            continue
        if moves[j] and kept and len(rows) > 10 * len(kept):  # fewer frames would explain anything
            basis = centred[:, kept]
            weights = torch.linalg.lstsq(basis, centred[:, j : j + 1], driver="gelsd").solution[:, 0]
            weights = torch.where(weights.abs() > 10 * _EXACT, weights, 0.0)
            left = centred[:, j] - basis @ weights
            if float(left.square().mean().sqrt()) < _EXACT:
                keep[j] = False
                relation[j, kept] = weights * std[j] / std[kept]
                offset[j] = rows[:, j].mean() - relation[j] @ rows.mean(0)
                continue
        kept.append(j)
    return keep, relation, offset
