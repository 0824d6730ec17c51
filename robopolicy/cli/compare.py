"""`robopolicy compare`: compare two checkpoints, or two lists of training seeds, on the same episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from robopolicy.cli.task_label import task_label
from robopolicy.config.schema import TARGET, Count, Device, Natural, Node
from robopolicy.core.command_line import argument
from robopolicy.core.errors import ConfigError
from robopolicy.evaluation import compare as comparing
from robopolicy.evaluation import video
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.evaluation.forgetting import forgetting, frame, table
from robopolicy.evaluation.policy_ref import PolicyRef, env_of, trained_task
from robopolicy.evaluation.saved import Split, evaluated_rows, filming, joined, record_command
from robopolicy.evaluation.training_seeds import PooledComparison, check_lengths, compare_pooled
from robopolicy.policies.find import policy_digest
from robopolicy.policies.residual import ZERO_ACTION
from robopolicy.reporting.run_reader import label
from robopolicy.runs.checkpointer import load_policy
from robopolicy.runs.inputs import same_input, there, unchanged_input
from robopolicy.runs.run_dir import read_config
from robopolicy.utils.atomic import write_atomically
from robopolicy.utils.threads import set_threads


def compare(
    *,
    a: Path | tuple[Path, ...] | None = None,
    b: Path | tuple[Path, ...],
    task: Node | None = None,
    names: tuple[str, str] | None = None,
    episodes: Count = 500,
    split: Split = "test",
    deterministic: bool = False,
    videos: Natural = 4,
    out: Path | None = None,
    num_envs: Count = 100,
    device: Device = "cpu",
    threads: Count | None = None,
) -> comparing.Comparison | PooledComparison:
    """Evaluate both checkpoints on the same episodes; write rows, films and comparison.json to `out`.

    With several instructions tasks.csv holds the change of each, which shows forgetting. Two lists are training seeds
    of two algorithms, paired in order: each pair is compared, then all are pooled.

    Args:
        a: the reference, a run, checkpoint or policy directory; or a list, one for each training seed; None: b's base.
        b: the policy that is compared with it, or a list of the same length.
        names: of both; None: "base" where a is b's base, else the names of their directories.
        episodes: number of paired episodes. videos: films of both side by side, differing outcomes first.
        out: folder of rows, films and comparison.json; None: b's run, else <b>-results beside b. Of lists: a folder for
            each pair in it.
        task: node of the task; None: the one that b was trained on, or else a.
        split: seeds of the episodes: test or validation. deterministic: use the policy's mode in place of a sample.
        num_envs: N, envs at a time. device: of the networks. threads: of torch; None: torch's choice.

    Raises:
        ConfigError: `names` are not two different ones, the lists cannot be paired, or `a` is missing.
    """
    set_threads(threads)
    how: dict[str, Any] = dict(
        task=task, episodes=episodes, split=split, deterministic=deterministic, videos=videos, num_envs=num_envs,
        device=device,
    )  # fmt: skip
    if not isinstance(a, tuple) and isinstance(b, Path):
        return _compare_pair(a, b, names=names, out=out, **how)[0]
    b = (b,) if isinstance(b, Path) else b
    references = (None,) * len(b) if a is None else (a,) if isinstance(a, Path) else a
    check_lengths(len(references), len(b))
    places = [PolicyRef.of(path, "latest", out) for path in b]
    folders = [None if out is None else out / place.name for place in places]
    if len({folder or place.out for folder, place in zip(folders, places, strict=True)}) < len(b):
        raise ConfigError(f"b: expected policies of different runs, found {[str(path) for path in b]}")
    _check_copies(b, places)
    found = [_compare_pair(reference, path, names=names, out=folder, **how) for reference, path, folder in
             zip(references, b, folders, strict=True)]  # fmt: skip
    pairs = [(c.a, c.b) for c, _, _ in found]
    result = compare_pooled(
        [rows for _, rows, _ in found], [rows for _, _, rows in found], pair_names=pairs, names=names
    )
    mark = label(task_label(task, places[0]), deterministic=deterministic, split=split)
    file = result.save((out or places[0].out) / f"{joined('training_seeds', mark)}.json")
    print(f"\n{result.text()}\nthe pooled comparison is in {file}")
    return result


def _differing(task: dict[str, Any], other: dict[str, Any]) -> str:
    """Return those keys of a task in which it differs from another."""
    return ", ".join(f"{'task' if key == TARGET else key}={value}" for key, value in task.items()
                     if key not in other or other[key] != value) or "its defaults"  # fmt: skip


def _dashed(*parts: str) -> str:
    return "-".join(filter(None, parts))


def _check_copies(b: tuple[Path, ...], places: list[PolicyRef]) -> None:
    """Refuse a training seed that is named twice, as a run and its copy."""
    found: dict[str, Path] = {}
    for path, place in zip(b, places, strict=True):
        twin = found.setdefault(policy_digest(place.policy), path)
        if twin is not path:
            raise ConfigError(
                f"b: {twin} and {path} hold the same policy, expected one of each training seed. A copy is no further "
                "seed: name it once."
            )


def _compare_pair(
    a: Path | None,
    b: Path,
    *,
    task: dict[str, Any] | None,
    names: tuple[str, str] | None,
    episodes: int,
    split: Split,
    deterministic: bool,
    videos: int,
    out: Path | None,
    num_envs: int,
    device: str,
) -> tuple[comparing.Comparison, EpisodeTable, EpisodeTable]:
    """Compare two policies as `compare` says; also return the rows of both."""
    place_b = PolicyRef.of(b, "latest", out)
    a, place_a, is_base = _reference(a, b, place_b)
    called = names or _names(place_a, place_b, is_base)
    if called[0] == called[1] or not all(called):
        raise ConfigError(f"names: expected two different names, found {list(called)}; they name the files of the rows")
    how: dict[str, Any] = {"deterministic": deterministic, "split": split}
    of_a, of_b = map(trained_task, (place_a, place_b))
    if task is None and of_a and of_b and of_a != of_b:
        print(f"task: {called[0]} was trained on {_differing(of_a, of_b)}, {called[1]} on {_differing(of_b, of_a)}; "
              "they are compared on the latter. To choose: task=<name>.")  # fmt: skip
    other, own = task_label(task, place_b), called[1] if called[1] != place_b.name else ""
    label_a = label(_dashed(called[0], other), checkpoint=place_a.checkpoint, **how)
    label_b = label(_dashed(own, other), checkpoint=place_b.checkpoint, **how)
    env = env_of(task, place_b if of_b else place_a, min(num_envs, episodes))
    first, second = (load_policy(ref.policy, device=device, env=env.spec) for ref in (place_a, place_b))
    rows_a = evaluated_rows(first, env, place_a, label_a, episodes, split, deterministic)
    rows_b = evaluated_rows(second, env, place_b, label_b, episodes, split, deterministic)
    result = comparing.compare(rows_a, rows_b, names=called)
    mark = label(other, checkpoint=place_b.checkpoint, **how)
    result.save(place_b.out / f"{joined('comparison', mark)}.json")
    record_command(place_b)
    print(result.text())
    if len(changes := forgetting(rows_a, rows_b)) > 1:
        text = frame(changes).to_csv(index=False, lineterminator="\n")
        write_atomically(place_b.out / f"{joined('tasks', mark)}.csv", text)
        print(f"\nby instruction, {called[0]} before and {called[1]} after:\n{table(changes)}")
    if videos:
        filming(lambda: video.film_pairs(
            (first, rows_a), (second, rows_b), env, place_b.out / "videos" / joined("pairs", mark), names=called,
            count=videos, deterministic=deterministic,
        ))  # fmt: skip
    look = f"robopolicy report {argument('run_dir', place_b.out)}"
    print(f"rows and comparison are in {place_b.out}; to look at them: {look}")
    return result, rows_a, rows_b


class _Base(NamedTuple):
    """The policy that a run refined."""

    run: Path | None
    given: str  # `base=` of the run; "": none
    path: Path | None  # where it can be loaded from: the run's own copy, else `given` where its contents are the same
    changed: bool = False  # `given` holds another policy now

    def is_at(self, path: Path, ref: PolicyRef) -> bool:
        """Return whether `path`, which is `ref`, is this policy: the same directory, or the same files."""
        if self.run is None or not self.given:
            return False
        found = there(self.given)
        if self.changed:
            return there(str(path)) != found and same_input(self.run, "base", self.given, str(path))
        at_it = found is not None and found in (ref.run, ref.lerobot_run)
        return at_it or same_input(self.run, "base", self.given, str(path))


def _base(b: PolicyRef) -> _Base:
    config = (read_config(b.run) if b.run is not None else None) or {}
    base, own = config.get("base") or "", b.policy / "base"
    given = base if base != ZERO_ACTION else ""
    found = unchanged_input(b.run, "base", given) if b.run is not None and given else None
    changed = bool(given) and found is None and there(given) is not None
    return _Base(b.run, given, own if own.is_dir() else found, changed)


def _reference(a: Path | None, b: Path, place_b: PolicyRef) -> tuple[Path, PolicyRef, bool]:
    """Return the policy to compare with, and whether it is the base that `b` was refined from."""
    base = _base(place_b)
    if a is None and (a := base.path) is None:
        found = "another policy" if base.changed else "nothing"
        why = f"refined from {base.given}, where {found} lies now" if base.given else "not refined from a base"
        raise ConfigError(f"a: {b} was {why}. Name the policy to compare it with: a=<run directory or checkpoint>")
    place_a = PolicyRef.of(a, "latest", place_b.out)
    is_base = a == base.path or base.is_at(a, place_a)
    if base.given and not is_base:
        given = f"an earlier policy of {base.given}" if base.changed else base.given
        leave = "" if base.path is None else "; to compare with that, leave a= away"
        print(f"{place_b.name} was refined from {given}, not from {a}{leave}")
    return a, place_a, is_base


def _names(a: PolicyRef, b: PolicyRef, is_base: bool) -> tuple[str, str]:
    if is_base:
        return "base", b.name
    return (a.name, b.name) if a.name != b.name else (f"{a.name} (a)", f"{b.name} (b)")
