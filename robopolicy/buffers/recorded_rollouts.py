"""Load recorded rollouts of several datasets, and give them a share of the batches of an off-policy learner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from robopolicy.buffers.chunk_replay_buffer import DEMONSTRATION, ChunkReplay
from robopolicy.buffers.relabeling import read_frames
from robopolicy.buffers.replay_buffer import Replay, Source
from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.types import BASE_ACTION, Obs
from robopolicy.datasets.compatibility import misfits
from robopolicy.datasets.episodes import Episodes, concatenate, held_out, succeeded, take
from robopolicy.datasets.lerobot_reader import load_episodes
from robopolicy.datasets.remarks import evaluation_starts
from robopolicy.datasets.tables import DRIVERS
from robopolicy.policies.base import Policy
from robopolicy.utils import ranks

_POLICY = DRIVERS.index("policy")


def load_rollouts(datasets: Mapping[str, Path], policy: Policy) -> Episodes:
    """Load and join `datasets`, {name: path}, with the observations that `policy` or its base reads.

    A dataset without a driver column counts as driven by a policy.

    Raises:
        SpecError: a dataset lacks an observation, or its actions, rate or tasks differ from the first's.
        DataError: a dataset has neither rewards nor successes.
    """
    reader, parts = policy if policy.base is None else policy.base, list[Episodes]()
    needed = {k: f for k, f in reader.spec.observation.items() if k != BASE_ACTION}
    for name, path in datasets.items():
        part = load_episodes(path, needed=needed)
        problems = misfits(reader.spec, part, needs="the policy", offers="the dataset")
        if parts and part.tasks != parts[0].tasks:
            problems.append(f"tasks: {next(iter(datasets))} has {parts[0].tasks}, the dataset has {part.tasks}")
        if problems:
            raise SpecError(f"loop.rollouts.{name}={path} does not fit:\n  - " + "\n  - ".join(problems))
        if not part.outcomes:
            raise DataError(
                f"loop.rollouts.{name}={path}: has neither rewards nor successes, so nothing can be learned from it. "
                "Leave it out, or write the column next.success into it: True at the last frame of each episode that "
                "succeeded."
            )
        if (said := evaluation_starts(part, f"loop.rollouts.{name}={path}")) and not ranks.rank():
            print(said)
        driver = torch.full((part.num_frames,), _POLICY) if part.driver is None else part.driver
        parts.append(replace(part, driver=driver))
    return concatenate(parts)


def with_successes(demos: Episodes, datasets: Mapping[str, Path], policy: Policy, share: float) -> Episodes:
    """Put the episodes of `datasets` that succeeded behind the demonstrations, but for the held-out `share`.

    Raises:
        SpecError: demonstrations and rollouts differ in their tasks; see load_rollouts.
        DataError: none of the rollouts succeeded; see load_rollouts.
    """
    rollouts = load_rollouts(datasets, policy)
    named = ", ".join(f"loop.rollouts.{name}={path}" for name, path in datasets.items())
    if rollouts.tasks != demos.tasks:
        raise SpecError(f"{named}: tasks: the demonstrations have {demos.tasks}, the rollouts have {rollouts.tasks}")
    good = succeeded(rollouts) & ~held_out(rollouts, share)
    if not bool(good.any()):
        raise DataError(
            f"{named}: none of the {rollouts.num_episodes} episodes that are not held out succeeded, so none is worth "
            "imitating. Leave loop.rollouts out, or record more."
        )
    seen = {key: demos.observation[key] for key in rollouts.observation}
    same = replace(demos, observation=seen, obs={key: demos.obs[key] for key in rollouts.obs})
    return concatenate([same, take(rollouts, good)])


def batch_sources(
    online: Replay, recorded: dict[str, tuple[Episodes, float]], policy: Policy, batch_size: int
) -> list[Source]:
    """Return the replay buffers, of online and of recorded data, with their shares of a batch.

    Args:
        recorded: {key of the loop that sets the fraction: (episodes, fraction)}.

    Raises:
        ConfigError: the fractions are more than a whole batch.
    """
    offline = [
        Source(replay_of_episodes(online, episodes, obs=read_frames(episodes, policy)), round(batch_size * fraction))
        for episodes, fraction in recorded.values() if fraction
    ]  # fmt: skip
    rest = batch_size - sum(source.size for source in offline)
    if rest < 0:
        fractions = " and ".join(f"loop.{key}={fraction}" for key, (_, fraction) in recorded.items())
        raise ConfigError(f"{fractions} are more than a whole batch of {batch_size}. Lower one of them.")
    return [Source(online, rest), *offline]


def replay_of_episodes(like: Replay, episodes: Episodes, *, obs: Obs) -> Replay:
    """Make a buffer with the windows of `like` over stored episodes, as one timeline of F frames.

    A dataset lacks the frame after an episode's last action. So without termination an episode's last transition
    is not valid, and windows stop before it. They also end with the first frame that terminates, where a recorder set
    it on several. A dataset without a driver column counts as demonstrations.

    Args:
        obs: [F ...] stored in place of the episodes' observations (robopolicy.buffers.relabeling.read_frames).

    Raises:
        DataError: the dataset has neither rewards nor successes, or none of its transitions is valid.
    """
    if not episodes.outcomes:
        raise DataError(
            "dataset: has neither rewards nor successes that say how its episodes ended (next.success, or rewards "
            "with next.truncated), which learning from its transitions needs. Where every episode is a good one, say "
            "so: robopolicy data import dataset=… outcomes=success; or leave its transitions out: loop.demo_fraction=0"
        )
    frames, pad = episodes.num_frames, like.n_step + 1
    replay = like.empty(frames + pad)
    last = torch.zeros(frames, dtype=torch.bool)
    last[episodes.starts[1:] - 1] = True
    valid = ~last | episodes.terminated
    if not bool(valid.any()):
        raise DataError("no transition of the dataset can be learned from: no episode terminates or has two frames")

    def padded(value: Tensor) -> Tensor:
        # Rows that are never valid allow sampling of the newest episode's windows too.
        return torch.cat([value, value[-1:].expand(pad, *value.shape[1:]).clone()])[:, None]

    replay.obs = {k: padded(v) for k, v in obs.items()}
    replay.final = {k: v[last] for k, v in obs.items()}  # stands in for the successor; its discount is 0
    columns = {
        "action": episodes.action, "reward": episodes.reward, "terminated": episodes.terminated,
        "ended": last | episodes.terminated,
        "valid": valid, "slot": torch.where(last, last.cumsum(0) - 1, -1),
    }  # fmt: skip
    if isinstance(replay, ChunkReplay):
        columns["driver"] = torch.full((frames,), DEMONSTRATION) if episodes.driver is None else episodes.driver
        columns["success"] = succeeded(episodes)[episodes.episode_of]
    replay.store = {k: padded(v) for k, v in columns.items()}
    replay.store["valid"][frames:] = False
    replay.added = frames + pad
    return replay
