"""Record a teacher's own episodes, where a distillation has no dataset."""

from __future__ import annotations

from dataclasses import replace

from robopolicy.core.errors import ConfigError, DataError
from robopolicy.core.types import VecEnv
from robopolicy.datasets.demonstrations import TooFewEpisodes, record_demos
from robopolicy.datasets.metadata import RecordingMeta, recorded
from robopolicy.evaluation.policy_expert import PolicyExpert
from robopolicy.policies.base import Policy
from robopolicy.policies.find import policy_digest
from robopolicy.runs.checkpointer import find_policy
from robopolicy.runs.logger import Tracker
from robopolicy.training.train_config import TrainConfig
from robopolicy.utils import ranks

FOLDER = "teacher_episodes"  # in the run directory
_EPISODES = 500  # where `teacher_episodes` is not given


def with_teacher_episodes(config: TrainConfig, teacher: Policy | None, env: VecEnv | None) -> TrainConfig:
    """Return the config with a dataset: the given one, or the teacher's own episodes, recorded once in the run.

    Of a teacher that does not follow one noise only successes are kept, as its recorded actions are learned. Of others
    all episodes are kept, as they are asked for their actions again.

    Raises:
        ConfigError: such a teacher with a dataset, or no dataset and no task to record in.
        DataError: such a teacher succeeds too rarely.
    """
    if teacher is None or config.teacher is None:
        return config
    if config.dataset is not None:
        if not teacher.follows_noise:
            raise ConfigError(
                f"dataset={config.dataset}: the teacher is a residual or an edited policy, which is learned from its "
                "own episodes. Leave dataset out; teacher_episodes=<number> are recorded."
            )
        return config
    if env is None:
        raise config.missing("dataset", "Give dataset=<path>, or task=<name> to record the teacher's own episodes.")
    out, episodes, path = config.run_dir / FOLDER, config.teacher_episodes or _EPISODES, config.teacher
    sampling = config.teacher_sampling or None
    facts = {"teacher": policy_digest(find_policy(path)), "asked": episodes, "sampling": sampling}

    def record() -> None:
        if not _is_there(config, env, facts):
            expert = PolicyExpert(env, path, sampling=config.teacher_sampling)
            try:
                record_demos(
                    env=env, expert=expert, episodes=episodes, out=out, cameras=config.cameras,
                    only_success=not teacher.follows_noise, run_seed=config.seed, provenance=facts, overwrite=True,
                    tracker=Tracker(),
                )  # fmt: skip
            except TooFewEpisodes as error:
                raise DataError(
                    f"teacher={path}: succeeded in {error.successes} of {error.attempted} episodes of {env.spec.id}, "
                    f"{episodes} that succeed are to be learned from. Give fewer, teacher_episodes=<number>, or a "
                    "teacher that succeeds more often."
                ) from None

    ranks.in_first(record)
    return replace(config, dataset=out)


def _is_there(config: TrainConfig, env: VecEnv, facts: dict[str, object]) -> bool:
    """Return whether the run holds all episodes of this teacher in this env, from these seeds."""
    out = config.run_dir / FOLDER
    meta = RecordingMeta.load(out) if recorded(out) == "whole" else None
    if meta is None:
        return False
    found, wanted = meta.provenance, {**facts, "run_seed": config.seed}
    same_env = isinstance(found.get("env"), dict) and found["env"].get("digest") == env.spec.digest
    return same_env and all(found.get(key) == value for key, value in wanted.items())
