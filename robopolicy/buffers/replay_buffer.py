"""Store vectorised experience; form n-step returns and discounts at sampling; mix the batches of several buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from robopolicy.config.schema import Count, Fraction
from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import Obs, Step, check_finite

_TRIES = 1_000  # draws before the buffer is taken to hold hardly any valid transition
_AT_ONCE = 8  # batches sampled together: where observations are small, many windows cost little more than few


class Batch(NamedTuple):
    """B transitions over up to n primitive steps."""

    obs: Obs  # [B ...] single frames
    action: Tensor  # [B Da] executed first action, physical units
    reward: Tensor  # [B] Σ γⁱ rᵢ over the window
    discount: Tensor  # [B] γ^steps·(1 − terminated): what multiplies the value of next_obs
    next_obs: Obs  # [B ...] the true successor after the window

    def to(self, device: torch.device) -> Batch:
        """Copy the batch to `device`."""
        obs = {k: v.to(device) for k, v in self.obs.items()}
        next_obs = {k: v.to(device) for k, v in self.next_obs.items()}
        return Batch(obs, self.action.to(device), self.reward.to(device), self.discount.to(device), next_obs)


def discount_of(horizon: int | None) -> float:
    """Return 1 − 2 / horizon, between 0.98 and 0.99: a success at half of the time limit keeps a share of about 1/e.

    The bounds are what was measured: 0.98 up to 100 steps, 0.99 from 200 steps on (docs/findings/residual.md).

    Raises:
        ConfigError: the horizon is not known.
    """
    if horizon is None:
        raise ConfigError("loop.replay.gamma: is chosen by the env's horizon, which is not known here. Give a number")
    return min(0.99, max(0.98, 1.0 - 2.0 / horizon))


class Replay:
    """Ring buffer of T rows × N envs. Each frame is stored once, the last frame of an episode separately.

    A window starts at a valid transition and never crosses an episode's end. It ends after `n_step` steps, at the
    episode's end, or before the first transition that is not valid. `discount` carries termination; there is no `done`.

    Args:
        capacity: transitions over all envs (rounded down to whole rows). n_step: steps of a window of summed rewards.
        gamma: γ per primitive step; None: by the horizon, see discount_of.
        spec: of the policy; error messages use its action names. horizon: primitive steps of an episode.

    Raises:
        DataError: the capacity holds no window.
    """

    def __init__(
        self,
        *,
        capacity: Count,
        num_envs: Count,
        n_step: Count,
        gamma: Fraction | None = None,
        spec: PolicySpec | None = None,
        horizon: Count | None = None,
    ) -> None:
        self.rows = capacity // num_envs
        if self.rows <= n_step:
            least = num_envs * (n_step + 1)
            raise DataError(
                f"loop.replay.capacity={capacity}: expected at least num_envs·(n_step + 1) = {least}. Raise it, or "
                "lower num_envs."
            )
        self.num_envs, self.n_step = num_envs, n_step
        self.gamma = discount_of(horizon) if gamma is None else gamma
        self.names = None if spec is None else spec.action.names
        self.added = 0  # rows ever added
        self.obs: Obs = {}
        self.final: Obs = {}  # [F ...] last frames of episodes, by slot
        self.store: dict[str, Tensor] = {}
        self.free: list[int] = []  # slots of `final` that may be overwritten

    @property
    def size(self) -> int:
        """Rows held."""
        return min(self.added, self.rows)

    @property
    def num_transitions(self) -> int:
        return self.size * self.num_envs

    @property
    def can_sample(self) -> bool:
        return self.added > self.n_step  # there are always more rows than that

    def add(self, obs: Obs, step: Step) -> None:
        """Append one row.

        Args:
            obs: [N ...] single frames that were acted on.
            step: the env's answer.

        Raises:
            DataError: see check_finite.
        """
        check_finite(step, self.names)
        if not self.store:
            self._allocate(obs, step)
        row = self.added % self.rows
        if self.added >= self.rows:
            old = self.store["slot"][row]
            self.free.extend(old[old >= 0].tolist())
        for key, value in obs.items():
            self.obs[key][row] = value
        ended = step.ended
        for key in ("reward", "terminated", "valid"):
            self.store[key][row] = getattr(step, key)
        self.store["action"][row], self.store["ended"][row] = step.executed, ended
        self.store["slot"][row] = -1
        if bool(ended.any()):
            envs = ended.nonzero()[:, 0]
            slots = torch.tensor([self._slot() for _ in range(len(envs))])
            self.store["slot"][row, envs] = slots
            for key, value in self.final.items():
                value[slots] = step.next_obs[key][envs]
        self.added += 1

    def interrupt(self) -> None:
        """End the running episodes here, since the next row continues none: windows stop before the newest row."""
        if self.added:
            row = (self.added - 1) % self.rows
            self.store["valid"][row] &= self.store["ended"][row]
            self.store["ended"][row] = True  # what comes next is of another episode

    def _allocate(self, obs: Obs, step: Step) -> None:
        shape = (self.rows, self.num_envs)
        self.obs = {k: torch.zeros(*shape, *v.shape[1:], dtype=v.dtype) for k, v in obs.items()}
        self.final = {k: torch.zeros(0, *v.shape[1:], dtype=v.dtype) for k, v in obs.items()}
        flags = {key: torch.zeros(shape, dtype=torch.bool) for key in ("terminated", "ended", "valid")}
        self.store = {
            "action": torch.zeros(*shape, step.executed.shape[-1]), "reward": torch.zeros(shape), **flags,
            "slot": torch.full(shape, -1, dtype=torch.int64),
        }  # fmt: skip

    def _slot(self) -> int:
        if not self.free:
            held = next(iter(self.final.values())).shape[0]
            more = max(64, held)  # doubling
            self.final = {k: torch.cat([v, v.new_zeros(more, *v.shape[1:])]) for k, v in self.final.items()}
            self.free = list(range(held + more - 1, held - 1, -1))
        return self.free.pop()

    def sample(self, batch_size: int, generator: torch.Generator) -> Batch:
        """Draw `batch_size` windows, uniform over the valid transitions with n_step rows after them.

        Raises:
            DataError: there are fewer than n_step + 1 rows, or hardly any is valid.
        """
        if not self.can_sample:
            raise DataError(f"replay holds {self.size} rows; sampling needs more than n_step={self.n_step}")
        age, env = self._draw(batch_size, generator)
        for _ in range(_TRIES):
            if bool((ok := self.store["valid"][self._row(age), env]).all()):
                return self.window(age, env)
            again_age, again_env = self._draw(batch_size, generator)
            age, env = torch.where(ok, age, again_age), torch.where(ok, env, again_env)
        raise DataError(
            f"replay: hardly one of its {self.num_transitions} transitions is valid: the physics diverges almost "
            "everywhere. Check the task's timestep, contacts and action limits."
        )

    def _draw(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        flat = torch.randint((self.size - self.n_step) * self.num_envs, (count,), generator=generator)
        return flat // self.num_envs, flat % self.num_envs

    def _row(self, age: Tensor) -> Tensor:
        """Return the ring row of the `age`-th oldest row."""
        return (age + max(0, self.added - self.rows)) % self.rows

    def window(self, age: Tensor, env: Tensor) -> Batch:
        """Form the n-step windows that start at the `age`-th oldest rows [B] of envs `env` [B]."""
        flat = {k: v.flatten(0, 1) for k, v in self.store.items()}  # row · N + env, so that one index gathers
        at, alive = self._steps(age, env, self.n_step)
        reward = torch.where(alive, torch.take(flat["reward"], at), 0.0)  # may be NaN where not valid
        steps = alive.sum(dim=1)
        last = at.gather(1, steps[:, None] - 1)[:, 0]
        slot, terminated = torch.take(flat["slot"], last), torch.take(flat["terminated"], last)
        first, after, is_final = at[:, 0], self._row(age + steps) * self.num_envs + env, slot >= 0
        frames = {k: v.flatten(0, 1) for k, v in self.obs.items()}
        next_obs = {k: v.index_select(0, after) for k, v in frames.items()}
        if bool(is_final.any()):
            for key, value in next_obs.items():
                value[is_final] = self.final[key][slot[is_final]]
        powers = float(self.gamma) ** torch.arange(self.n_step + 1)
        return Batch(
            obs={k: v.index_select(0, first) for k, v in frames.items()},
            action=flat["action"].index_select(0, first),
            reward=reward @ powers[:-1],
            discount=powers[steps] * ~terminated,
            next_obs=next_obs,
        )

    def _steps(self, age: Tensor, env: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Return the places of the `length` steps after such rows, as row · N + env, and the steps of the window.

        Returns:
            [B n] int64, and [B n] bool: before the episode's end and before the first step that is not valid.
        """
        at = self._row(age[:, None] + torch.arange(length)) * self.num_envs + env[:, None]
        goes_on = torch.take(self.store["valid"], at)
        goes_on[:, 1:] &= ~torch.take(self.store["ended"], at[:, :-1])
        return at, goes_on.cumprod(dim=1, dtype=torch.uint8).bool()

    def empty(self, capacity: int) -> Replay:
        """Make another buffer for one env, with the same windows."""
        return Replay(capacity=capacity, num_envs=1, n_step=self.n_step, gamma=self.gamma)

    def state_dict(self) -> dict[str, Any]:
        size = self.size  # rows that were never written are not saved
        return {
            "obs": {k: v[:size].clone() for k, v in self.obs.items()},
            "final": {k: v.clone() for k, v in self.final.items()},
            "store": {k: v[:size].clone() for k, v in self.store.items()},
            "free": list(self.free),
            "added": self.added,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.added, self.free = int(state["added"]), [int(i) for i in state["free"]]

        def grown(value: Tensor, fill: int = 0) -> Tensor:
            return torch.cat([value, value.new_full((self.rows - value.shape[0], *value.shape[1:]), fill)])

        self.obs = {k: grown(v) for k, v in state["obs"].items()}
        self.final = {k: v.clone() for k, v in state["final"].items()}
        self.store = {k: grown(v, -1 if k == "slot" else 0) for k, v in state["store"].items()}


class Source(NamedTuple):
    """A replay buffer and its transitions in each batch."""

    replay: Replay
    size: int


class BatchSampler:
    """Draws batches to which each source contributes a fixed number of transitions."""

    def __init__(self, sources: list[Source], generator: torch.Generator) -> None:
        self.sources, self.generator = sources, generator

    def draw(self, count: int) -> Iterator[Any]:
        """Yield `count` batches, rows in the order of the sources."""
        for first in range(0, count, _AT_ONCE):
            many = min(_AT_ONCE, count - first)
            parts = [s.replay.sample(many * s.size, self.generator) for s in self.sources if s.size]
            yield from split_batches(parts, many)


def split_batches[Rows: tuple[Any, ...]](parts: list[Rows], count: int) -> list[Rows]:
    """Split samples into `count` batches, each with an equal share [B/count] of every part [B], in their order."""

    def mix(values: list[Any]) -> Any:
        if isinstance(values[0], Tensor):
            return torch.cat([v.unflatten(0, (count, len(v) // count)) for v in values], dim=1).unbind()
        mixed = {k: mix([obs[k] for obs in values]) for k in values[0]}
        return [{k: v[i] for k, v in mixed.items()} for i in range(count)]

    columns = [mix(list(column)) for column in zip(*parts, strict=True)]
    return [type(parts[0])(*row) for row in zip(*columns, strict=True)]
