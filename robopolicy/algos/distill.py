"""Distil a denoising policy of many steps into a flow of one or two (Luhman & Luhman 2021; Liu et al. 2023).

The student learns where the teacher takes each initial noise: a straight line from the noise to the teacher's chunk.
On such lines one Euler step is exact. The noise goes on choosing among the chunks of a flow or of DDIM, so the student
still explores. Liu et al. call this reflow; there the teacher is a flow, here any policy that begins at noise.

A residual begins at no noise of its own, and an edited policy chooses among chunks of several. There the student learns
the recorded actions, which are the teacher's, and one step leads from every noise to their mean.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from robopolicy.algos.bc import BC
from robopolicy.algos.teacher_check import check_same_teacher, fingerprint
from robopolicy.config.schema import signature
from robopolicy.core.errors import ConfigError, SpecError
from robopolicy.core.rng import draw_rows
from robopolicy.core.specs import PolicySpec
from robopolicy.core.specs import check_teacher as check_actions
from robopolicy.core.types import BASE_ACTION, TASK, Metrics
from robopolicy.datasets.compatibility import task_numbers
from robopolicy.policies.base import Policy, with_bases
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.flow import FlowPolicy
from robopolicy.policies.normalizer import ACTION


class Distill(BC):
    """Regress the student's prediction on the line from noise to the teacher's chunk, at the dataset's observations.

    The chunks of a teacher that does not follow one noise are those of the dataset: its own episodes.

    The teacher acts from the initial noise alone: the noise of later steps of a DDPM is zero. Then every start ends in
    nearly the same chunk; DDIM's steps of the same weights keep the teacher's scatter (`teacher_sampling`). The student
    begins with the teacher's encoder where both are alike and normalise alike.

    Args:
        policy: a flow policy, trained in place.
        teacher: a policy that reads nothing that the student does not read. It begins at noise [H Da], or it is a
            residual or an edited policy.
        **options: see BC.

    Raises:
        SpecError: the student is no flow without noise between its steps, or the teacher does not fit it.
        ConfigError: the student has options of imitation that a distillation does not read.
    """

    @staticmethod
    def forwards_to(given: object) -> tuple[type, ...]:
        return (BC,)

    def __init__(self, policy: FlowPolicy, teacher: Policy, **options: Any) -> None:
        if not isinstance(policy, FlowPolicy) or len(policy.noise_shape) != 2:
            raise SpecError(
                f"policy: expected a flow without noise between its steps, found {type(policy).__name__}. Say "
                "policy=flow policy.sampling_steps=1"
            )
        self.check_teacher(policy.spec, teacher)
        _check_options(policy)
        self.teacher = teacher.eval().requires_grad_(False)
        if isinstance(teacher, ChunkDenoiser) and _same(policy.normalizer, teacher.normalizer):
            _take_over(policy.encoder, teacher.encoder)
        super().__init__(policy, **options)
        action, self.normalizer = policy.spec.action, policy.normalizer
        self.limits = torch.tensor([action.low, action.high], device=policy.times.device)
        self.task_number = _task_number(policy, teacher)

    @staticmethod
    def check_teacher(spec: PolicySpec, teacher: Policy) -> None:
        """Raise SpecError where a student of `spec` cannot follow `teacher`; all problems are listed."""
        check_actions(spec, teacher.spec, more=_misfits(spec, teacher))

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Compute the mean square error [] of the prediction at random sampling times.

        Args:
            batch: {key: [B To ...], "action": [B H Da], "action_is_pad": [B H]}; actions are read where the
                teacher does not follow one noise.
        """
        student = self.model
        assert isinstance(student, FlowPolicy)
        shape, device = student.noise_shape, self.limits.device
        noise = draw_rows(lambda rows: torch.randn(rows, *shape, device=device), len(batch[ACTION]))
        recorded = not self.teacher.follows_noise
        chunk = self.normalizer.normalize(ACTION, batch[ACTION]) if recorded else self.chunk(batch, noise)
        index = draw_rows(lambda rows: torch.randint(len(student.times), (rows,), device=device), len(noise))
        x, target = student.noised(chunk, noise, index)
        error = (student.network(x, student.times[index], student.encode_batch(batch)) - target).square()
        if recorded:  # the dataset repeats the last action past an episode's end
            keep = ~batch["action_is_pad"]
            return (error.mean(-1) * keep).sum() / keep.sum(), {}
        return error.mean(), {"chunk_rms": float(chunk.square().mean().sqrt())}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "teacher": fingerprint(self.teacher)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: the teacher is another one.
        """
        check_same_teacher(state, self.teacher)
        super().load_state_dict(state)

    def loss_items(self, batch: dict[str, Any]) -> int:
        """Count the chunks, or the recorded steps of them, whose mean `loss` is."""
        return len(batch[ACTION]) if self.teacher.follows_noise else int((~batch["action_is_pad"]).sum())

    @torch.no_grad()
    def chunk(self, batch: dict[str, Any], noise: Tensor) -> Tensor:
        """Return the teacher's chunks [B H Da] from initial noise [B H Da], in normalised units."""
        given = noise
        if len(self.teacher.noise_shape) == 3:
            given = noise.new_zeros(len(noise), *self.teacher.noise_shape)
            given[:, 0] = noise
        obs = {key: batch[key] for key in self.teacher.spec.observation}
        if self.task_number is not None:
            obs[TASK] = self.task_number.to(obs[TASK].device)[obs[TASK]]
        chunk = self.teacher.act(obs, noise=given).clamp(*self.limits)
        return self.normalizer.normalize(ACTION, chunk)


def _check_options(student: FlowPolicy) -> None:
    """Raise ConfigError for options of imitation with other values than their defaults."""
    known = signature(type(student)).known
    for key in ("noise_samples", "time_distribution"):
        default, found = known[key].default, getattr(student, key)
        if found != default:
            raise ConfigError(
                f"policy.{key}: expected its default, {default}, found {found}. A distillation does not read it: it "
                "noises each chunk once, at a time of the student's own chain. Leave it out."
            )


def _misfits(own: PolicySpec, teacher: Policy) -> list[str]:
    """List what keeps a student of spec `own` from following the teacher, one sentence each."""
    problems, other, shape = list[str](), teacher.spec, (own.horizon, own.action.dim)
    needed = {key for policy in with_bases(teacher) for key in policy.spec.observation} - {BASE_ACTION}
    if missing := sorted(needed - set(own.observation)):
        problems.append(f"it reads {missing}, which the student does not; see cameras=")
    if not teacher.follows_noise:
        return problems
    if teacher.noise_shape[-2:] != shape:
        problems.append(
            f"it begins at noise of shape {teacher.noise_shape}, expected one that ends in {shape}: a "
            "diffusion, flow or VLA policy of the same horizon"
        )
    problems += [
        f"{key}: the student has {mine}, the teacher {theirs}. Say {key}={theirs}"
        for key in ("n_obs_steps", "horizon", "n_action_steps")
        if (mine := getattr(own, key)) != (theirs := getattr(other, key))
    ]  # fmt: skip
    return problems


def _task_number(student: Policy, teacher: Policy) -> Tensor | None:
    """Return the teacher's number of each of the student's tasks, [T]; None where both count alike.

    A teacher that reads instructions is given the student's.

    Raises:
        SpecError: a teacher that identifies tasks by number lacks one of the student's.
    """
    own, other = student.spec, teacher.spec
    if not teacher.follows_noise or TASK not in other.observation or own.tasks == other.tasks:
        return None
    try:
        teacher.set_tasks(own.tasks)
    except SpecError:
        return task_numbers(own.tasks, other.tasks, holds="the student", whose="the teacher")
    return None


def _same(own: nn.Module, other: nn.Module) -> bool:
    mine, theirs = own.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


def _take_over(own: nn.Module, other: nn.Module) -> None:
    """Copy all weights where names and shapes are alike."""
    mine, theirs = own.state_dict(), other.state_dict()
    if {k: v.shape for k, v in mine.items()} == {k: v.shape for k, v in theirs.items()}:
        own.load_state_dict(theirs)
