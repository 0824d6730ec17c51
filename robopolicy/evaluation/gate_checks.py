"""What policies and episodes have to be for the gate to decide."""

from __future__ import annotations

from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, succeeded
from robopolicy.policies.base import DenoisingPolicy, LikelihoodPolicy, Policy

FEWEST = 20  # episodes that a decision needs
DIVERGED = 0.01  # largest share of imagined episodes with non-finite numbers of a policy that is accepted
Reader = DenoisingPolicy | LikelihoodPolicy  # policies whose encoded observations critics can read


def check_level(level: float) -> None:
    """Raise ConfigError unless `level` is a confidence."""
    if not 0.5 <= level < 1.0:
        raise ConfigError(f"level={level}: expected a confidence from 0.5 to below 1, e.g. 0.9")


def check_policies(candidate: Policy, base: Policy, episodes: Episodes) -> Reader:
    """Return the base, or raise SpecError: both stand alone, read these episodes and execute chunks of one length."""
    for name, policy in (("candidate", candidate), ("base", base)):
        if policy.base is not None:
            raise SpecError(
                f"{name}: a {type(policy).__name__} refines another policy, and its chunks depend on the base's at "
                "each step. Give a policy that stands alone: fine-tuned, imitated or distilled."
            )
        if problems := misfits(policy.spec, episodes, needs=f"the {name}", offers="the dataset"):
            raise SpecError(f"{name}: does not fit the dataset:\n  - " + "\n  - ".join(problems))
    if not isinstance(base, DenoisingPolicy | LikelihoodPolicy):
        raise SpecError(
            f"base: expected a diffusion, flow, VLA, Gaussian or mixture policy, found {type(base).__name__}. Its "
            "encoded observations are what the critics read."
        )
    played = [policy.spec.n_action_steps for policy in (candidate, base)]
    if played[0] != played[1]:
        raise SpecError(f"candidate: executes {played[0]} steps of each chunk, the base {played[1]}; expected the same")
    return base


def check_episodes(episodes: Episodes) -> None:
    """Raise DataError unless the episodes suffice for a decision."""
    count, good = episodes.num_episodes, int(succeeded(episodes).sum())
    if count < FEWEST:
        raise DataError(
            f"dataset: {count} held-out episodes, expected at least {FEWEST}. Record more, or raise held_out here and "
            "loop.held_out of the candidate's training."
        )
    if good in (0, count):
        raise DataError(
            f"dataset: all {count} held-out episodes {'succeeded' if good else 'failed'}; a decision needs successes "
            "and failures. Record more (robopolicy demos only_success=false)."
        )
