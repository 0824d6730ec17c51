"""The verbs around training: demos, eval, compare, report. Each is a plain function; the command line calls it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import torch

from robopolicy.atomic import write_atomically
from robopolicy.build import build
from robopolicy.checkpoint import find_policy, load_policy
from robopolicy.data.demos import Recording, record_demos
from robopolicy.data.lerobot import dataset_features, load_episodes
from robopolicy.errors import ConfigError, DataError, RobopolicyError
from robopolicy.evaluate import compare as comparing
from robopolicy.evaluate import rollout, video
from robopolicy.evaluate.forgetting import forgetting, frame, table
from robopolicy.evaluate.provenance import version
from robopolicy.evaluate.report import write_report
from robopolicy.evaluate.rows import Rows
from robopolicy.evaluate.run_dir import label
from robopolicy.evaluate.suite import Suite, SuiteResult
from robopolicy.lerobot.find import HUB, training_run
from robopolicy.noise import episode_seeds
from robopolicy.policies.base import Policy
from robopolicy.policies.tuned import check_sampling, resampled
from robopolicy.policy_files import is_ours, policy_digest
from robopolicy.run_inputs import there
from robopolicy.runs import CONFIG, own_task, read_config
from robopolicy.schema import Count, Device, Fraction, Natural, Node, Positive
from robopolicy.tracking import Tracker
from robopolicy.types import TASK, Feature, VecEnv
from robopolicy.untrusted import WANDB, check_links, leads_inside, pointed, refusing

Split = Literal["test", "validation"]
_NOTHING = "none"  # memory=none


def demos(
    *,
    out: Path,
    task: Node,
    expert: Node,
    episodes: Count = 100,
    imperfection: Fraction = 0.0,
    only_success: bool = True,
    cameras: tuple[str, ...] | None = None,
    overwrite: bool = False,
    num_envs: Count = 64,
    max_attempts: Count | None = None,
    seed: int = 0,
) -> Recording:
    """Record demonstrations of `expert` on `task` as a LeRobotDataset v3 in `out`."""
    env = build(task, "task", num_envs=min(num_envs, 4 * episodes), seed=seed)
    shown = build(expert, "expert", env=env, imperfection=imperfection)
    recording = record_demos(
        env=env, expert=shown, episodes=episodes, out=out, only_success=only_success, cameras=cameras, run_seed=seed,
        max_attempts=max_attempts, overwrite=overwrite, tracker=Tracker(),
    )  # fmt: skip
    rate = recording.successes / max(1, recording.attempted)
    print(f"{recording.episodes} demonstrations, {recording.frames} frames in {recording.path} "
          f"(the expert succeeded in {100 * rate:.0f}% of {recording.attempted} episodes"
          f"{f', {recording.dropped} with physics faults dropped' if recording.dropped else ''})")  # fmt: skip
    return recording


def evaluate(
    *,
    checkpoint: Path,
    task: Node | None = None,
    world: Node | None = None,
    suite: Suite | None = None,
    memory: Path | None = None,
    sampling: dict[str, Any] | None = None,
    only: tuple[str, ...] = (),
    which: Literal["latest", "best"] = "latest",
    episodes: Count | None = None,
    split: Split = "test",
    deterministic: bool = False,
    videos: Natural = 6,
    variants: dict[str, dict[str, Any]] | None = None,
    out: Path | None = None,
    name: str | None = None,
    num_envs: Count = 100,
    jobs: Count | None = None,
    device: Device = "cpu",
    threads: Count | None = None,
) -> Rows | SuiteResult:
    """Run a checkpoint on `episodes` episodes of a split; rows and films go to `out`, called as `label` says.

    In a `world` the seeds choose imagined episodes; these rows are called "imagined" where they have no name.
    With a `suite` instead of a task: on all of its tasks, or those in `only` (suite_eval.py).

    Args:
        memory: dataset of demonstrations that the policy looks things up in, in place of those that it was saved with;
            "none": in none. These rows are called "memory-<dataset>" where they have no name.
        sampling: changes of the policy's sampler, as policy.sampling of `train`: {sampling_steps: 1}. These rows are
            called "sampling_steps-1" and the like where they have no name; a name of your own is one file, whatever
            the sampler.
        variants: name → parameters of the task that differ; each is evaluated on its own, on the same seeds.

    Returns:
        The rows; of several variants those of the first.
    """
    if suite is not None:
        from robopolicy.suite_eval import evaluate_suite  # which needs Place

        if any(given is not None for given in (task, name, world, variants, memory, sampling)):
            raise ConfigError(
                "suite: brings its own tasks and names; leave task, name, world, variants, memory and sampling away"
            )
        return evaluate_suite(
            suite, checkpoint, which=which, episodes=episodes, split=split, deterministic=deterministic, only=only,
            out=out, num_envs=num_envs, jobs=jobs, device=device, threads=threads,
        )  # fmt: skip
    if only or jobs is not None:
        raise ConfigError("only, jobs: are for suites; add suite=<name>, or leave them away")
    episodes = episodes or 500
    set_threads(threads)
    place, every = Place.of(checkpoint, which, out), []
    check_sampling(sampling or {}, "sampling")
    sampler = "-".join(f"{k}-{v}" for k, v in sorted((sampling or {}).items()))
    name = name or "-".join(
        (["imagined"] if world is not None else [])
        + ([f"memory-{memory.name}"] if memory is not None else [])
        + ([sampler] if sampler else [])
    )
    for variant, changes in (variants or {"": {}}).items():
        called = label(
            "-".join(filter(None, (name, variant))), checkpoint=place.checkpoint, deterministic=deterministic,
            split=split,
        )  # fmt: skip
        count = min(num_envs, episodes)
        if world is None:
            env = env_of(task, place, count, changes)
        else:
            env = build({**world, **changes}, "world", num_envs=count, seed=0)
        if env.spec.branches:
            raise ConfigError("world.branch: cuts episodes, and a policy is evaluated on whole ones. Leave it away.")
        policy = load_policy(checkpoint, device=device, env=env.spec, which=which)
        place.given = remind(policy, memory) if memory is not None else ""
        if sampling:
            policy, place.given = resampled(policy, sampling), f"{place.given}+{sampler}"
        rows = evaluated_rows(policy, env, place, called, episodes, split, deterministic)
        every.append(rows)
        what = f"{env.spec.id}{f' ({variant})' if variant else ''}"
        print(f"{place.name}{place.given} on {what}, {split} seeds: {rows.summary()}{rows.task_table()}")
        if videos and world is None:
            film(policy, env, rows, place.out / "videos" / (called or split), videos, deterministic)
    return every[0]


def compare(
    *,
    a: Path,
    b: Path,
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
) -> comparing.Comparison:
    """Both checkpoints on the same episodes; rows of both, films and comparison.json go to `out`.

    Of several instructions also tasks.csv: what each gained or lost, so that forgetting shows.

    Raises:
        ConfigError: `names` are not two different ones.
    """
    set_threads(threads)
    place_b = Place.of(b, "latest", out)
    place_a = Place.of(a, "latest", place_b.out)
    called = names or _names(place_a, place_b)
    if called[0] == called[1] or not all(called):
        raise ConfigError(f"names: expected two different names, found {list(called)}; they name the files of the rows")
    how: dict[str, Any] = {"deterministic": deterministic, "split": split}
    label_a = label(called[0], checkpoint=place_a.checkpoint, **how)
    label_b = label(called[1] if called[1] != place_b.name else "", checkpoint=place_b.checkpoint, **how)
    env = env_of(task, place_b, min(num_envs, episodes))
    first, second = (load_policy(path, device=device, env=env.spec) for path in (a, b))
    rows_a = evaluated_rows(first, env, place_a, label_a, episodes, split, deterministic)
    rows_b = evaluated_rows(second, env, place_b, label_b, episodes, split, deterministic)
    result = comparing.compare(rows_a, rows_b, names=called)
    mark = label(checkpoint=place_b.checkpoint, **how)
    result.save(place_b.out / f"{_joined('comparison', mark)}.json")
    print(result.text())
    if len(changes := forgetting(rows_a, rows_b)) > 1:
        text = frame(changes).to_csv(index=False, lineterminator="\n")
        write_atomically(place_b.out / f"{_joined('tasks', mark)}.csv", text)
        print(f"\nby instruction, {called[0]} before and {called[1]} after:\n{table(changes)}")
    if videos:
        _filming(lambda: video.film_pairs(
            (first, rows_a), (second, rows_b), env, place_b.out / "videos" / _joined("pairs", mark), names=called,
            count=videos, deterministic=deterministic,
        ))  # fmt: skip
    if place_b.run is not None:
        print(f"rows and comparison are in {place_b.out}; to look at them: robopolicy report run_dir={place_b.run}")
    return result


def report(
    *,
    run_dir: Path | tuple[Path, ...],
    out: Path | None = None,
    title: str = "",
    max_video_mib: Positive = 16.0,
    look: Node | None = None,
) -> Path:
    """Write a self-contained page about one run or several.

    look: node of what looks at runs of a world model or in imagination, before the page is written; None: nobody.
    """
    runs = [run_dir] if isinstance(run_dir, Path) else list(run_dir)
    if not runs:
        raise ConfigError("run_dir: expected at least one run directory, found []")
    if look is not None:
        _look(look, runs)
    path = write_report(runs, out or runs[0] / "report.html", title=title, max_video_mib=max_video_mib)
    print(f"report: {path}")
    return path


def _look(node: dict[str, Any], runs: list[Path]) -> None:
    for run in runs:
        try:
            build(node, "look", run_dir=run)
        except RobopolicyError as error:  # a report is wanted most when something went wrong
            print(f"{run}: nothing of its world is shown: {error}")


class Place:
    """Where a policy lies and where what is found out about it goes."""

    lerobot_run: Path | None = None
    given = ""  # names what the policy was given that is not its own: a memory, a sampler

    def __init__(self, policy: Path, run: Path | None, out: Path, name: str, *, checkpoint: str = "") -> None:
        self.policy, self.run, self.out, self.name, self.checkpoint = policy, run, out, name, checkpoint

    @classmethod
    def of(cls, path: Path, which: Literal["latest", "best"], out: Path | None) -> Place:
        policy = find_policy(path, which=which)
        if not is_ours(policy):
            return cls._of_lerobot(path, policy, out)
        run = next((p for p in policy.resolve().parents if (p / CONFIG).is_file()), None)
        if out is None and run is None:
            raise ConfigError(f"{path}: is not inside a run directory; say with out=<folder> where results shall go")
        if run is not None:
            check_links(run, apart=WANDB)
        name = (run or policy.resolve()).name
        checkpoint = which if which == "best" else _checkpoint(policy.resolve(), run)
        return cls(policy, run, out or run or policy, name, checkpoint=checkpoint)

    @classmethod
    def _of_lerobot(cls, path: Path, policy: Path, out: Path | None) -> Place:
        """A policy of LeRobot's: results go to <run>/robopolicy where `lerobot-train` wrote it."""
        found = training_run(policy)
        if out is None and found is None:
            raise ConfigError(f"{path}: is not inside a run of lerobot-train; say with out=<folder> where results go")
        if found is None:
            called = str(path).partition("@")[0].rsplit("/", 1)[-1] if str(path).startswith(HUB) else policy.name
            return cls(policy, None, out or policy, called)
        run, step = found
        if not leads_inside(run / "robopolicy", run):
            raise ConfigError(f"{run}: its robopolicy/ is a link that leads out of it; say with out=<folder>")
        check_links(run / "robopolicy")
        newest = (run / "checkpoints" / "last").resolve().name
        place = cls(policy, None, out or run / "robopolicy", run.name, checkpoint="" if step == newest else step)
        place.lerobot_run = run
        return place

    @property
    def ident(self) -> str:
        """Names the weights: run, checkpoint, and the beginning of a checksum over all of its files; and `given`."""
        digest = policy_digest(self.policy)[:12]
        inner = ("policy", "pretrained_model")
        step = self.policy.resolve().parent.name if self.policy.name in inner else self.policy.name
        return f"{self.name}/{step}@{digest}{self.given}"


def remind(policy: Policy, memory: Path) -> str:
    """Replace what a policy has in memory by a dataset, or nothing ("none"); returns a name for it."""
    episodes = None
    if policy.memory is not None and memory != Path(_NOTHING):
        index = {TASK: Feature((), "int64")} if TASK in dataset_features(memory) else {}
        own = {k: f for k, f in policy.spec.observation.items() if k != TASK}
        episodes = load_episodes(memory, needed={**own, **index})
    policy.recall(episodes)
    assert policy.memory is not None
    return f"+{memory.name}@{policy.memory.digest()[:12]}"


def film(policy: Policy, env: VecEnv, rows: Rows, out: Path, count: int, deterministic: bool) -> None:
    """Films of evaluated episodes; a machine that cannot render is told so and loses nothing else."""
    _filming(lambda: video.film(policy, env, rows, out, count=count, deterministic=deterministic))


def _filming(work: Any) -> None:
    try:
        paths = work()
    except DataError:
        raise
    except Exception as error:
        print(f"no films: {type(error).__name__}: {error}. `robopolicy doctor` says how to mend rendering.")
        return
    if paths:
        print(f"films: {paths[0].parent}")


def evaluated_rows(
    policy: Policy, env: VecEnv, place: Place, called: str, episodes: int, split: Split, deterministic: bool
) -> Rows:
    """Evaluate, or take the rows on disk where they are of these very weights, task, seeds, settings and code."""
    file = place.out / f"{_joined('episodes', called)}.csv"
    seeds = episode_seeds(split, 0, episodes)
    if file.is_file():
        rows = Rows.load(file)
        wanted = {"policy": {place.ident}, "digest": {env.spec.digest}, "deterministic": {deterministic}}
        if rows.seeds == seeds.tolist() and all(set(rows.frame[k]) == v for k, v in wanted.items()):
            found = set(rows.frame["version"])
            if found == {version()}:
                if "dirty" in version():
                    print(f"{file.name}: reused; {version()} has uncommitted changes, remove the file if they matter")
                return rows
            print(f"{file.name}: is of code {', '.join(sorted(found))}, this is {version()}: evaluated again")
    try:  # before the work, not after it
        place.out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ConfigError(f"out={place.out}: is a file, or lies below one. Give a folder.") from None
    with Tracker().progress(episodes, f"evaluating {called or place.name}") as bar:
        rows = rollout.evaluate(
            policy, env, seeds, deterministic=deterministic, policy_id=place.ident,
            progress=lambda done, total, rate: bar.update(done, success=rate),
        )  # fmt: skip
    rows.save(file)
    return rows


def _checkpoint(policy: Path, run: Path | None) -> str:
    """ "" for the newest of its run, or of none; else "best", its own name, or "base" for what lies inside it."""
    folder = None if run is None else run / "checkpoints"
    if folder is None or folder not in policy.parents:
        return ""
    step, *inner = policy.relative_to(folder).parts  # step_…, policy, perhaps base
    if len(inner) > 1:
        return "-".join(inner[1:])
    marks = {pointed(folder / mark).name: name for mark, name in
             (("best", "best"), ("latest", "")) if (folder / mark).is_file()}  # fmt: skip
    return marks.get(step, step)


def _joined(stem: str, called: str) -> str:
    return f"{stem}-{called}" if called else stem


def task_of(given: dict[str, Any] | None, place: Place) -> dict[str, Any]:
    """The task on the command line, or the one that the run was trained on."""
    task = given or own_task((read_config(place.run) if place.run is not None else None) or {})
    if task is None:
        raise ConfigError(f"task: {place.name} does not say what it was trained on; choose one: task=<name>")
    return task


def env_of(given: dict[str, Any] | None, place: Place, num_envs: int, changes: dict[str, Any] | None = None) -> VecEnv:
    """Build what `task_of` says, with `changes` of its parameters.

    Raises:
        ConfigError: it cannot be built; where a run says it, whatever the env raised.
    """
    node = {**task_of(given, place), **(changes or {})}
    with nullcontext() if given else refusing(f"{place.run}/{CONFIG}: task", ConfigError):
        env: VecEnv = build(node, "task", num_envs=num_envs, seed=0)
    return env


def _names(a: Place, b: Place) -> tuple[str, str]:
    config = (read_config(b.run) if b.run is not None else None) or {}
    base = config.get("base")
    if base and (found := there(base)) is not None and found in (a.run, a.lerobot_run):
        return "base", b.name
    return (a.name, b.name) if a.name != b.name else (f"{a.name} (a)", f"{b.name} (b)")


def set_threads(threads: int | None) -> None:
    if threads is not None:
        torch.set_num_threads(threads)
