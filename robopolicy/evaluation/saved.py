"""Evaluated rows on disk, used again while policy, task, seeds, settings and code are the same."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from robopolicy.core.errors import ConfigError, DataError, SpecError
from robopolicy.core.rng import episode_seeds, listed_seeds
from robopolicy.core.types import FixedStarts, VecEnv
from robopolicy.evaluation import rollout
from robopolicy.evaluation.code_version import code_version
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.policy_ref import PolicyRef
from robopolicy.policies.base import Policy
from robopolicy.runs.logger import Tracker
from robopolicy.runs.run_dir import CONFIG
from robopolicy.utils.provenance import version, write_provenance

Split = Literal["test", "validation"]


def evaluated_rows(
    policy: Policy, env: VecEnv, ref: PolicyRef, called: str, episodes: int, split: Split, deterministic: bool
) -> EpisodeTable:
    """Evaluate, or load the rows on disk of the same weights, task, seeds, settings and code; also fewer of them."""
    code_version()  # as it is now, not as it may be when the episodes are over
    file = ref.out / f"{joined('episodes', called)}.csv"
    if isinstance(env, FixedStarts):
        seeds = listed_seeds(split, episodes, most=env.fixed_starts, what=env.spec.id)
    else:
        seeds = episode_seeds(split, 0, episodes)
    if file.is_file():
        try:
            rows = EpisodeTable.load(file)
        except DataError as error:
            raise DataError(f"{error}; remove {file} first") from None
        wanted = {"policy": {ref.ident}, "digest": {env.spec.digest}, "deterministic": {deterministic}}
        if rows.seeds[:episodes] == seeds.tolist() and all(set(rows.frame[k]) == v for k, v in wanted.items()):
            found = set(rows.frame["version"])
            if found == {code_version()}:
                dirty = "; its code has uncommitted changes, remove the file if they matter" * ("dirty" in version())
                print(f"{file.name}: rows of {code_version()} are used again{dirty}")
                return EpisodeTable(rows.frame.head(episodes))
            print(f"{file.name}: is of code {', '.join(sorted(found))}, this is {code_version()}: evaluated again")
    try:  # an unusable folder fails before the evaluation
        ref.out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=ref.out):
            pass
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"out={ref.out}: is a file, or lies below one. Give a folder.") from None
    except OSError as error:
        raise ConfigError(f"out={ref.out}: cannot be written to ({error}). Give another folder: out=<folder>") from None
    with Tracker().progress(episodes, f"evaluating {called or ref.name}") as bar:
        bar.update(0)  # the rate counts from here, also where all first episodes end at once
        rows = rollout.evaluate(
            policy, env, seeds, deterministic=deterministic, policy_id=ref.ident,
            progress=lambda done, total, rate: bar.update(done, success=rate),
        )  # fmt: skip
    rows.save(file)
    return rows


def record_command(ref: PolicyRef) -> None:
    """Write which command made the rows in `ref.out`, except into a run or a sweep, which have their training's."""
    if not (ref.out / CONFIG).is_file() and not any(ref.out.glob(f"*/{CONFIG}")):
        write_provenance(ref.out)


def filming(work: Callable[[], list[Path]]) -> None:
    """Film evaluated episodes by `work`; print a message on a machine that cannot render."""
    try:
        paths = work()
    except DataError:
        raise
    except SpecError as error:  # the env shows no pictures
        print(f"no films: {error}")
        return
    except Exception as error:
        print(f"no films: {type(error).__name__}: {error}. `robopolicy doctor` explains how to repair rendering.")
        return
    if paths:
        print(f"films: {paths[0].parent}")


def joined(stem: str, called: str) -> str:
    return f"{stem}-{called}" if called else stem
