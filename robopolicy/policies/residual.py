"""A bounded correction on top of a frozen policy (ResFiT, Ankile et al. 2025; Silver et al. 2018), or of no motion."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, NonNegative, Positive
from robopolicy.core.errors import SpecError
from robopolicy.core.specs import PolicySpec
from robopolicy.core.types import BASE_ACTION, RENDERED, TASK, Feature, Obs, newest
from robopolicy.datasets.episodes import Episodes
from robopolicy.networks.task_conditioned import TaskLayout, TaskLinear
from robopolicy.policies.base import SEEN, DenoisingPolicy, LikelihoodPolicy, Policy
from robopolicy.policies.normalizer import Normalizer
from robopolicy.policies.state_reading import StateReading
from robopolicy.policies.state_vectors import joined, state_vectors

ZERO_ACTION = "zero_action"  # its name in `base=`
ZERO_ACTION_NODE = {"_target_": "zero_action"}


class ResidualPolicy(Policy):
    """action = clamp(clamp(base) + scale · u), u = tanh(net(state, base action)) ∈ [-1, 1].

    Both clamps are to the same box [low, high]. Without the first one, u has no gradient where the base lies far
    outside the box: a small u does not change the action there.

    `act` returns the *full* action, so this policy is deployed as it is. All arithmetic is in normalised action units,
    where [-1, 1] is the demonstrated range. The last layer starts at zero: before training this policy is the base,
    clamped to the box of `widen`. Several tasks are identified by number. For an instruction outside its training u is
    0, and the base acts alone. With `task_weights` the first layer of the residual and of its critics has additional
    weights for each task (see TaskLayout).

    Actor and critics read the elements `state` of the state: all vectors of numbers that the base reads, joined.
    `observation.state` comes first, then `observation.environment_state`, then others in the spec's order. Relative
    elements (the distance to the goal, not its place) let both learn from far fewer episodes (docs/suites.md).

    With `pictures` the residual also reads the observation as encoded by the base's frozen encoder. Replay buffers
    store this encoding, not images and point clouds.

    Args:
        spec: the base's; observation gains `base_action`, chunks shrink to one step.
        normalizer: of the demonstrations, or the base's; `state` and `action` statistics are used.
        base: the frozen policy, used only through its actions.
        scale: bound of the correction per dimension, normalised units; below 1 it may be unable to undo errors of the
            base. gripper_scale: the same of the gripper channel, large enough to reverse the base's command.
        widen: the demonstrated range is widened by this fraction on each side, then intersected with the env's limits;
            the full action stays in this box.
        state: elements of the state that are read, and differences of its places, see `StateReading`; None: all.
        pictures: read images and point clouds, through the base; False: only the state.
        task_weights: give the first layer weights for each task; False: the task's number is an input.
        tasks: instructions of its training, where `spec` has others; None: those of `spec`.
        hidden: widths of the hidden layers.
        episodes: demonstrations, for the statistics of differences; None: from the places' own.

    Raises:
        SpecError: the observation has no vector of numbers, or keys that are none of vectors, images and point clouds;
            `state` names no or unknown elements; `pictures` without either, or with a base that has no encoder of ours.
    """

    numbers: Tensor  # [tasks of the env] int64: number of each in `known`, −1 where it is not
    scale: Tensor  # [Da] bound of the correction
    low: Tensor  # [Da] normalised
    high: Tensor  # [Da] normalised

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: Normalizer,
        base: Policy,
        *,
        hidden: tuple[Count, ...] = (256, 256),
        scale: Positive = 1.0,
        gripper_scale: NonNegative = 1.5,
        widen: NonNegative = 0.25,
        state: tuple[str, ...] | None = None,
        pictures: bool = False,
        task_weights: bool = True,
        tasks: tuple[str, ...] | None = None,
        episodes: Episodes | None = None,
    ) -> None:
        super().__init__()
        cameras = {k: f for k, f in spec.observation.items() if k.startswith(RENDERED)}
        self.vectors = state_vectors(spec.observation)
        self.encoded_dim = _encoded_dim(base, cameras) if pictures else 0
        action = spec.action
        observation = {k: spec.observation[k] for k in self.vectors}
        observation[BASE_ACTION] = Feature((action.dim,), names=action.names)
        observation |= cameras if pictures else {}
        self.known = tuple(spec.tasks if tasks is None else tasks)
        self.tasks = len(self.known) if TASK in spec.observation else 0
        if self.tasks:
            observation[TASK] = spec.observation[TASK]
        self.register_buffer("numbers", _numbers(spec.tasks, self.known), persistent=False)
        seen = base.spec.n_obs_steps if pictures else 1
        self.spec = replace(spec, observation=observation, n_obs_steps=seen, horizon=1, n_action_steps=1)
        self.base = base.eval().requires_grad_(False)
        self.normalizer = normalizer
        self.reading = StateReading(joined({k: spec.observation[k] for k in self.vectors}), state, where="policy.state")
        self.reading.fit(*_states(episodes, self.vectors, normalizer))
        if not self.reading.dim and not self.encoded_dim:
            raise SpecError("policy.state: names nothing: the residual would be blind. Name elements, or null for all.")
        seen_dim = self.reading.dim + self.encoded_dim
        # Layout of the first layers, the critics' included, with weights for each task; or None.
        self.layout = TaskLayout(seen_dim, self.tasks) if task_weights and self.tasks > 1 else None
        sizes = [seen_dim + self.tasks + action.dim, *hidden, action.dim]
        first = TaskLinear(self.layout, action.dim, sizes[1]) if self.layout else nn.Linear(sizes[0], sizes[1])
        layers: list[nn.Module] = [first]
        for a, b in pairwise(sizes[1:]):
            layers += [nn.LayerNorm(a), nn.ReLU(), nn.Linear(a, b)]
        for parameter in layers[-1].parameters():
            nn.init.zeros_(parameter)
        self.net = nn.Sequential(*layers)
        bound = torch.full((action.dim,), float(scale))
        if action.gripper is not None:
            bound[action.gripper] = gripper_scale
        self.register_buffer("scale", bound)
        low, high = normalizer.normalize("action", torch.tensor([action.low, action.high]))
        self.register_buffer("low", low.clamp(min=-1.0 - 2.0 * widen))
        self.register_buffer("high", high.clamp(max=1.0 + 2.0 * widen))

    def set_tasks(self, tasks: tuple[str, ...]) -> None:
        """Keep the numbers of known instructions; for others the base acts alone, if it reads instructions.

        Raises:
            SpecError: there are unknown instructions, and the base cannot follow them.
        """
        assert self.base is not None
        self.base.set_tasks(tasks)
        if not self.tasks or TASK not in self.base.spec.observation:
            super().set_tasks(tasks)
            return
        self.numbers = _numbers(tasks, self.known).to(self.numbers.device)
        self.spec = replace(self.spec, tasks=tuple(tasks))
        if node := getattr(self, "config", None):  # the saved config needs both
            self.config = {**node, "tasks": list(self.known)}

    @torch.no_grad()
    def replay_features(self, obs: Obs) -> Obs:
        """See Policy: the newest vectors, task and base action, and `seen` [B C], the base's encoding."""
        frame = {k: obs[k][:, -1] for k in (*self.vectors, TASK) if k in self.spec.observation}
        frame[BASE_ACTION] = obs[BASE_ACTION]
        if self.encoded_dim:
            assert isinstance(self.base, (DenoisingPolicy, LikelihoodPolicy))
            seen = self.base.encode({k: v.to(self.low.device) for k, v in newest(obs, self.base.spec).items()})
            frame[SEEN] = seen[:, : self.encoded_dim].to(obs[self.vectors[0]].device)
        return frame

    def features(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Compute the network's inputs from replay features.

        Returns:
            [B Ds+C+T] normalised state, base's encoding and one-hot task; and [B Da] normalised base action.
        """
        vectors = [self.normalizer.normalize(k, obs[k]) for k in self.vectors]
        state = self.reading(_joined([obs[k] for k in self.vectors]), _joined(vectors))
        if self.encoded_dim:  # encoders differ in scale
            state = torch.cat([state, nn.functional.layer_norm(obs[SEEN], (self.encoded_dim,))], dim=-1)
        if self.tasks:
            number = self.numbers[obs[TASK]].clamp_min(0)  # `act` ignores u of an unknown task
            state = torch.cat([state, nn.functional.one_hot(number, self.tasks).to(state.dtype)], dim=-1)
        return state, self.normalizer.normalize("action", obs[BASE_ACTION])

    def residual(self, state: Tensor, base_action: Tensor) -> Tensor:
        """Compute u [B Da] in [-1, 1] from normalised inputs."""
        return torch.tanh(self.net(torch.cat([state, base_action], dim=-1)))

    def combine(self, base_action: Tensor, u: Tensor) -> Tensor:
        """Return the full normalised action [B Da]."""
        # The sum alone would leave u without a gradient where the base lies outside the box.
        inside = torch.clamp(base_action, self.low, self.high)
        return torch.clamp(inside + self.scale * u, self.low, self.high)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B 1 Da] from the spec's observations [B To ...] and `base_action` [B Da]; deterministic."""
        frame = self.replay_features(obs)
        state, base_action = self.features(frame)
        u = self.residual(state, base_action)
        if self.tasks:
            u = u * (self.numbers[frame[TASK]] >= 0)[:, None]
        return self.normalizer.unnormalize("action", self.combine(base_action, u))[:, None]


class ZeroActionPolicy(Policy):
    """Returns zero motion, the gripper channel at the middle of its range.

    A residual of scale ≥ 1 on top of it reaches every action. That is reinforcement learning from scratch by the same
    code, and the comparison for refined policies.

    Raises:
        SpecError: actions are absolute, so a zero action is a motion.
    """

    rest: Tensor  # [Da] physical units

    def __init__(self, spec: PolicySpec) -> None:
        super().__init__()
        if spec.action.reference == "absolute":
            raise SpecError(
                "ZeroActionPolicy needs delta actions, got action.reference='absolute', where zero is a pose. Give "
                "base=<run directory> of a trained policy."
            )
        self.spec = replace(spec, horizon=1, n_action_steps=1, n_obs_steps=1)
        rest = torch.zeros(spec.action.dim)
        if (g := spec.action.gripper) is not None:
            rest[g] = (spec.action.low[g] + spec.action.high[g]) / 2
        self.register_buffer("rest", rest)

    def act(self, obs: Obs, *, noise: Tensor | None = None, deterministic: bool = False) -> Tensor:
        """[B 1 Da], the same for every observation."""
        batch = next(iter(obs.values())).shape[0]
        return self.rest.expand(batch, 1, -1)


def _joined(vectors: list[Tensor]) -> Tensor:
    return vectors[0] if len(vectors) == 1 else torch.cat(vectors, dim=-1)


def _states(
    episodes: Episodes | None, keys: tuple[str, ...], normalizer: Normalizer
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """Return the joined vectors [F Ds] of demonstrations, None without, and the deviations [Ds] of their elements."""
    scale = torch.cat([normalizer.scale_of(k) for k in keys])
    return None if episodes is None else _joined([episodes.obs[k] for k in keys]), scale


def _encoded_dim(base: Policy, cameras: dict[str, Feature]) -> int:
    """Return C, the size of the base's encoded observation."""
    if not cameras:
        raise SpecError(
            "policy.pictures: the base reads no pictures and no point clouds. Leave it out, or give a base that was "
            "trained on some."
        )
    if not isinstance(base, (DenoisingPolicy, LikelihoodPolicy)):
        raise SpecError(
            f"policy.pictures: they are read by the base's encoder, and {type(base).__name__} shows none: expected a "
            "policy of ours (diffusion, flow, gaussian, mixture, vla). Without it the residual reads only the state."
        )
    return base.cond_dim


def _numbers(tasks: tuple[str, ...], known: tuple[str, ...]) -> Tensor:
    """Return the index [T] int64 of each of `tasks` in `known`; −1 where it is unknown."""
    if tasks == known:
        return torch.arange(len(tasks))
    return torch.tensor([known.index(task) if task in known else -1 for task in tasks], dtype=torch.int64)
