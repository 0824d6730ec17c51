"""Define the types that environments, policies and algorithms exchange.

Axes, used in every name, docstring and comment:
N envs · B batch · T rollout steps · To observation history · H predicted steps · Ta executed steps ·
Da action dim · K denoising steps · K' fine-tuned ones · M = flattened (T·N·K') samples.
γ is per *primitive* step everywhere.

Observations carry LeRobot's feature keys end to end: `observation.state` float32 [N Ds],
`observation.images.<cam>` uint8 [N 3 h w], `observation.points.<cam>` float32 [N P 3] in m,
`task_index` int64 [N] into `EnvSpec.tasks`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from robopolicy.core.errors import DataError, SpecError

if TYPE_CHECKING:
    from robopolicy.core.specs import PolicySpec

Obs = dict[str, Tensor]
Metrics = dict[str, float]

STATE = "observation.state"
IMAGES = "observation.images."  # prefix; the camera's name follows
POINTS = "observation.points."  # prefix of point clouds; the depth camera's name follows
RENDERED = (IMAGES, POINTS)  # prefixes of observations that cost a simulator a rendering
ENV_STATE = "observation.environment_state"  # LeRobot's; our datasets without pictures repeat STATE under it
TASK = "task_index"
BASE_ACTION = "base_action"  # [N Da], added by BaseActionEnv only


@dataclass(frozen=True)
class Feature:
    """One observation key: `shape` without batch or history axes, torch dtype name, optional element names."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    names: tuple[str, ...] | None = None

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)


@dataclass(frozen=True)
class ActionSpec:
    """The meaning of an action. Policy and env must agree in every field; all are required.

    `low`/`high` are physical limits per dimension, in `units` ("m", "rad", "1").
    `frame`: the frame in which translations and rotations are expressed ("base", "tcp", "world", or "joint").
    `tcp`: name of the controlled site. `rotation`: "none", "yaw", "rotvec" or "joint".
    `reference`: a delta is added to the *measured* or the *commanded* pose, or the action is *absolute*.
    `gripper`: index of the gripper channel or None; `gripper_meaning` says what its ends do.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    frame: Literal["base", "tcp", "joint", "world"]
    tcp: str
    rotation: Literal["none", "yaw", "rotvec", "joint"]
    reference: Literal["measured", "commanded", "absolute"]
    gripper: int | None
    gripper_meaning: str

    def __post_init__(self) -> None:
        sizes = {k: len(getattr(self, k)) for k in ("names", "units", "low", "high")}
        if len(set(sizes.values())) != 1:
            raise SpecError(f"ActionSpec: names, units, low and high must have one entry per dimension, found {sizes}")
        bad = [n for n, lo, hi in zip(self.names, self.low, self.high, strict=True) if not lo < hi]
        if bad:
            raise SpecError(f"ActionSpec: low must be below high in every dimension; it is not in {bad}")
        if self.gripper is not None and not 0 <= self.gripper < self.dim:
            raise SpecError(f"ActionSpec: gripper: expected 0 to {self.dim - 1}, or None; found {self.gripper}")

    @property
    def dim(self) -> int:
        """Da."""
        return len(self.names)


@dataclass(frozen=True)
class EnvSpec:
    """The observations and actions of an environment, and the task that it stands for.

    `dt`: seconds per primitive step. `horizon`: primitive steps to truncation.
    `digest`: hash of every parameter that defines the task, written into each evaluation row.
    `history`: To, or 0 where single frames are emitted. `chunk`: Ta, or 0 where `step` takes one primitive action.
    `joint_access`: joint commands pass a hook between IK and physics, so safety limits can be trained under.
    `resumable`: `state_dict` holds the unfinished episodes, so training resumes bit for bit. Other envs are reset after
    `load_state_dict` (those that are not `Stateful` are only reset), and training continues with new episodes.
    `deterministic`: an episode's trajectory is a function of its seed and its actions, bit for bit. Else its start is.
    `branches`: episodes start from states inside recorded ones and are cut early, so they have no outcome.
    `task_horizon`: primitive steps of a whole episode where `branches` cuts them at `horizon`; None: `horizon`.
    """

    id: str
    observation: dict[str, Feature]
    action: ActionSpec
    tasks: tuple[str, ...]
    dt: float
    horizon: int
    digest: str
    history: int = 0
    chunk: int = 0
    joint_access: bool = False
    resumable: bool = False
    branches: bool = False
    task_horizon: int | None = None
    deterministic: bool = True

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Step(NamedTuple):
    """The result of one `VecEnv.step`; `obs` already starts a new episode where one ended."""

    obs: Obs  # to act on next: the first observation of a new episode where one ended
    next_obs: Obs  # the true successor; the same object as `obs` where no env ended
    executed: Tensor  # [N Da] or [N Ta Da]: the applied action, after clamping and safety
    steps: Tensor  # [N] int64: primitive steps taken (a chunk may end early); 0: the env was reset, or its worker died
    reward: Tensor  # [N] float32: Σ γⁱ rᵢ over those steps
    terminated: Tensor  # [N] bool: the task itself ended (success, failure)
    truncated: Tensor  # [N] bool: cut by the time limit or a fault; values bootstrap through it
    success: Tensor  # [N] bool: the task's success condition holds at `next_obs`
    valid: Tensor  # [N] bool: False where the transition must not be learned from (physics went non-finite)
    info: dict[str, Tensor]  # [N] scalars to log; nothing that an algorithm needs

    @property
    def ended(self) -> Tensor:
        """[N] bool: `obs` starts a new episode."""
        return self.terminated | self.truncated


@runtime_checkable
class VecEnv(Protocol):
    """N environments that step together: simulator, world model or real arm.

    Contract (tests/contracts/test_vec_env.py holds every registered env to it):
    an episode's trajectory is a function of its seed and its actions alone, bit for bit, for any N, thread
    count and neighbours, unless `spec.deterministic` is False; `step` resets ended episodes itself; single frames are
    emitted.
    """

    spec: EnvSpec
    num_envs: int
    device: torch.device

    @property
    def episode_seed(self) -> Tensor:
        """[N] int64: seed of the episode that `obs` belongs to."""
        ...

    def reset(self, seeds: Tensor | None = None) -> Obs:
        """Start new episodes in all envs.

        Args:
            seeds: [M ≥ N] int64 episode seeds; the first N start now, the others are handed out in order as
                episodes end, then the env's own training stream follows. None: the training stream.
        """
        ...

    def step(self, action: Tensor) -> Step:
        """Apply `action` [N Da] in physical units; it is clamped to the spec's limits.

        Raises:
            SpecError: wrong shape, or a non-finite entry (the env index and dimension are named).
        """
        ...


@runtime_checkable
class Stateful(Protocol):
    """An object with a saved state: env, buffer, executor or algorithm. Tensors and JSON values only.

    All resume bit for bit, apart from envs whose spec is not `resumable`.
    """

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@runtime_checkable
class FixedStarts(Protocol):
    """An env whose episodes begin in one of `fixed_starts` states: that of seed i in state i modulo their number."""

    fixed_starts: int


@runtime_checkable
class Renderable(Protocol):
    """An env that can be filmed."""

    def render(self, index: int, *, camera: str | None = None, width: int = 320, height: int = 240) -> Tensor:
        """Return the current picture of env `index`, uint8 [3 h w]."""
        ...


@runtime_checkable
class Selective(Protocol):
    """An env that can skip unused pictures: rendering may cost ten times the physics."""

    def request_images(self, rows: Tensor) -> None:
        """Render in the next `step` only envs in `rows` [N] bool, new episodes, and true successors of cut episodes.

        The other pictures are black, and the other point clouds zero. Without a call all are rendered.
        """
        ...


class Algorithm(Stateful, Protocol):
    """An update rule over a policy. `update` takes one batch and returns floats to log."""

    policy: Any

    def update(self, batch: Any) -> Metrics: ...


def close(env: object) -> None:
    """Close an env that can be closed; some have nothing to close."""
    if (end := getattr(env, "close", None)) is not None:
        end()


def check_action(action: Tensor, spec: EnvSpec, num_envs: int) -> None:
    """Raise SpecError unless `action` is finite and shaped [N Da] ([N Ta Da] for a chunked spec)."""
    expected = (num_envs, spec.chunk, spec.action.dim) if spec.chunk else (num_envs, spec.action.dim)
    if tuple(action.shape) != expected:
        raise SpecError(
            f"{spec.id}: action must have shape {expected}, found {tuple(action.shape)}. "
            f"Dimensions are {', '.join(spec.action.names)}."
        )
    if not math.isfinite(action.sum().item()) and not bool(
        torch.isfinite(action).all()
    ):  # the sum is a fast first check
        where = (~torch.isfinite(action)).nonzero()[0].tolist()
        raise SpecError(
            f"{spec.id}: action of env {where[0]}, dimension {spec.action.names[where[-1]]!r} is "
            f"{action[tuple(where)].item()}. Check the policy's normaliser and its training for divergence."
        )


def check_finite(step: Step, names: tuple[str, ...] | None = None) -> None:
    """Raise DataError where a valid primitive step has a reward, or an action called `names`, that is not finite."""
    wrong = ~torch.isfinite(torch.cat([step.reward[:, None], step.executed], dim=1)) & step.valid[:, None]
    if not bool(wrong.any()):
        return
    env, k = wrong.nonzero()[0].tolist()
    what = "reward" if k == 0 else f"executed action {k - 1 if names is None else repr(names[k - 1])}"
    found = step.reward[env] if k == 0 else step.executed[env, k - 1]
    raise DataError(
        f"{what} of env {env} is {float(found)}, expected a finite number. Where the physics failed, the env has to "
        "say so: Step.valid=False."
    )


def newest(obs: Obs, spec: PolicySpec) -> Obs:
    """Select the keys of `spec` and its last To frames of obs [B ≥To ...]; `base_action` has no history axis."""
    return {k: obs[k] if k == BASE_ACTION else obs[k][:, -spec.n_obs_steps :] for k in spec.observation}
