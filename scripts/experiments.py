"""Train, evaluate and record what docs/results/<id>.json holds: every stage is a `robopolicy` command, all seeds run.

    python scripts/experiments.py pick_residual_fast            # five training seeds, two at a time
    python scripts/experiments.py never_worse --only drawer stack

Stages that are done are not repeated, interrupted ones resume. Evaluations after training use test episodes, those
during training validation episodes. A training seed seeds demonstrations, imitation and reinforcement alike.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from threading import Lock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.core.errors import RobopolicyError
from robopolicy.datasets.metadata import recorded
from robopolicy.datasets.source import INFO_FILE
from robopolicy.evaluation.episode_table import EpisodeTable
from robopolicy.reporting.result_rows import read, write
from robopolicy.training.teacher_episodes import FOLDER as TEACHER_EPISODES
from robopolicy.utils.provenance import commit, write_provenance
from scripts.experiment_plan import EXPERIMENTS, Base, Setting, trains
from scripts.experiment_record import Found, record, save_rows

ROOT = Path(__file__).resolve().parents[1]
LOCKS: defaultdict[str, Lock] = defaultdict(Lock)  # by the path of what several refinements may want


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("id", choices=EXPERIMENTS)
    parser.add_argument("--out", type=Path, default=Path("runs/experiments"), help="run directories go here")
    parser.add_argument("--seeds", type=int, nargs="+", help="training seeds (default: those of the experiment)")
    parser.add_argument("--only", nargs="+", default=[], help="tasks or settings (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="seeds at a time, with cores / jobs threads each")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--no-record", action="store_true", help="print the rows, write nothing into --results")
    options = parser.parse_args(arguments)
    experiment = EXPERIMENTS[options.id]
    only = set(options.only)
    chosen = [(s, name) for s in experiment.settings for name in s.refine
              if not only or {name, s.prefix + name, s.base.task, s.base.label} & only]  # fmt: skip
    recorded = {*experiment.seeds, *(seed for s, _ in chosen for seed in s.seeds)}
    if not options.no_record and (other := sorted(set(options.seeds or ()) - recorded)):
        parser.error(f"--seeds {other}: {options.id} is recorded over {sorted(recorded)}. Add --no-record.")
    work = [(s, name, seed) for s, name in chosen for seed in options.seeds or s.seeds or experiment.seeds
            if options.no_record or seed in (s.seeds or experiment.seeds)]  # fmt: skip
    if not work:
        parser.error(f"--only {options.only}, --seeds {options.seeds}: no setting of {options.id} is left to run")
    threads = max(1, (os.cpu_count() or 1) // options.jobs)
    try:
        with ThreadPoolExecutor(options.jobs) as pool:
            bases = {key: pool.submit(train_base, options.out, *key, threads)
                     for key in dict.fromkeys((s.base, seed) for s, _, seed in work)}  # fmt: skip

            def after_base(setting: Setting, name: str, seed: int) -> Found:
                bases[setting.base, seed].result()  # queued before: it is done or being done by another worker
                return refine(options.out, experiment.runs or options.id, setting, name, seed, options.jobs)

            runs = [pool.submit(after_base, *job) for job in work]
            try:
                wait([*bases.values(), *runs], return_when=FIRST_EXCEPTION)
            finally:  # after a failure or Ctrl-C nothing further begins
                pool.shutdown(wait=False, cancel_futures=True)
            for base in bases.values():
                base.result()
            found = [run.result() for run in runs]
        path = options.results / f"{options.id}.json"
        evidence = record(options.id, experiment, work, found, read(path) if path.exists() else [])
        for row in evidence:
            print(json.dumps({k: getattr(row, k) for k in ("setting", "metric", "value", "low", "high", "seeds")}))
        if not options.no_record:
            write(evidence, root=options.results, keep=False)
            save_rows(options.results / "rows" / f"{options.id}.parquet", work, found)
        return 0
    except (RobopolicyError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def robopolicy(*arguments: str, threads: int, log: Path) -> None:
    """Run a command of ours."""
    call("robopolicy", *arguments, threads=threads, log=log)


def call(module: str, *arguments: str, threads: int, log: Path) -> None:
    """Run a module as a program; its output goes to `log`, which is shown if it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "WANDB_MODE": "disabled"}
    with log.open("a") as file:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=ROOT, env=environment, stdout=file, stderr=file
        )
    if done.returncode:
        print("\n".join(log.read_text().splitlines()[-15:]), file=sys.stderr)
        raise subprocess.CalledProcessError(done.returncode, [module, *arguments])


def train_base(out: Path, base: Base, seed: int, threads: int) -> None:
    """Demonstrations, imitation, evaluation in <out>/bases/<base>-<seed>."""
    folder = out.resolve() / "bases" / f"{base.name}-{seed}"
    log, data, run = folder / "log.txt", folder / "data", folder / "bc"
    if recorded(data) != "whole":
        robopolicy("demos", *task_of(base), f"out={data}", f"episodes={base.demos}", f"seed={seed}", *envs_of(base),
                   f"expert_noise={base.expert_noise}", "overwrite=true", threads=threads, log=log)  # fmt: skip
    if base.lerobot:
        train_lerobot(base, folder, seed, threads, log)
    else:
        robopolicy("train", "algo=bc", *task_of(base), f"dataset={data}", f"run_dir={run}", f"seed={seed}",
                   f"threads={threads}", "tracker=local", *base.bc, threads=threads, log=log)  # fmt: skip
    if not finished(run / "episodes.csv", policy_of(base, folder)):
        evaluate(base, policy_of(base, folder), threads, log, *task_of(base), f"out={run}")
    print(f"{folder.name}: {EpisodeTable.load(run / 'episodes.csv').summary()}", flush=True)


def finished(rows: Path, policy: Path) -> bool:
    """Whether the evaluation whose `rows` these are is of the newest checkpoint of the run `policy`."""
    made = [path.stat().st_mtime for path in (policy / "checkpoints").glob("*") if path.is_dir()]
    return rows.exists() and bool(made) and rows.stat().st_mtime > max(made)


def policy_of(base: Base, folder: Path) -> Path:
    """The run directory of a base: ours, or one of lerobot-train."""
    return folder / ("lerobot" if base.lerobot else "bc")


def train_lerobot(base: Base, folder: Path, seed: int, threads: int, log: Path) -> None:
    """The stock `lerobot-train` on the demonstrations, in <folder>/lerobot; begun anew where it was interrupted."""
    run = policy_of(base, folder)
    if (run / "checkpoints" / "last").exists():
        return
    shutil.rmtree(run, ignore_errors=True)
    arguments = [f"--dataset.repo_id=local/{base.name}", f"--dataset.root={folder / 'data'}", f"--output_dir={run}",
                 f"--seed={seed}", "--policy.device=cpu", "--policy.push_to_hub=false", "--num_workers=1",
                 "--env_eval_freq=0", *base.lerobot]  # fmt: skip
    call("lerobot.scripts.lerobot_train", *arguments, threads=threads, log=log)
    write_provenance(folder / "bc", ["lerobot-train", *arguments])


def refine(out: Path, id: str, setting: Setting, name: str, seed: int, jobs: int) -> Found:
    """Reinforcement and evaluation in <out>/<id>/<setting>-<seed>, beside `jobs` - 1 others."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    base = out.resolve() / "bases" / f"{setting.base.name}-{seed}"
    run = out.resolve() / id / f"{setting.prefix.replace('/', '-')}{name}-{seed}"
    log = run / "log.txt"
    if setting.rollouts:
        setting = setting.with_rollouts(record_rollouts(setting.base, base, seed, setting.rollouts, threads))
    over = list(setting.refine[name])
    before = before_it(out.resolve() / id, setting, base, seed, threads)
    begin = student_of(out.resolve() / id, setting, base, seed, threads) if setting.student else None
    if not trains(setting.refine[name]):
        return untrained(setting, name, base, begin, run, before, threads, jobs)
    if not any("residual_scratch" in o for o in over):
        policy, taught = policy_of(setting.base, base), "algo=rpd" in over
        sources = {"teacher": policy if taught else None, "base": begin or (None if taught else policy)}
        over += [f"{name}={path}" for name, path in sources.items() if path]
    over += [] if any(o.startswith("threads=") for o in over) else [f"threads={threads}"]
    given = [*task_of(setting.base), *setting.task, f"dataset={base / 'data'}", f"seed={seed}", "tracker=local"]
    if over[0] == "refine":
        many = f"episodes={setting.base.episodes}"
        robopolicy(*over, *given, f"out={run}", many, "videos=0", threads=threads, log=log)
        run /= "refined"
    else:
        robopolicy("train", *given, f"run_dir={run}", *over, threads=threads, log=log)
    if not finished(run / "episodes.csv", run):
        evaluate(setting.base, run, threads, log)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = [(int(line["step"]), float(line["train/seconds"])) for line in lines if "train/seconds" in line]
    evaluations = {int(f.stem): EpisodeTable.load(f) for f in sorted((run / "evaluations").glob("*.parquet"))}
    commits = [json.loads((at / "provenance.json").read_text())["commit"] for at in (base / "bc", run)]
    seconds = {at: max((s for step, s in timed if step <= at), default=0.0) for at in evaluations}
    found = Found(
        base=before, rows=EpisodeTable.load(run / "episodes.csv"), evaluations=evaluations,
        seconds=seconds, env_steps=timed[-1][0], wall_s=timed[-1][1], jobs=jobs, commits=(commits[0], commits[1]),
    )  # fmt: skip
    print(f"{id} {setting.prefix}{name} {seed}: {found.rows.summary()}, {found.wall_s:.0f} s", flush=True)
    return found


def record_rollouts(base: Base, folder: Path, seed: int, episodes: int, threads: int) -> Path:
    """Return the dataset of so many episodes that the base in `folder` plays, failures too."""
    data = folder / f"rollouts-{episodes}"
    with LOCKS[str(data)]:
        if recorded(data) != "whole":
            robopolicy("demos", *task_of(base), f"out={data}", f"episodes={episodes}", "only_success=false",
                       "expert._target_=policy", f"expert.checkpoint={policy_of(base, folder)}", f"seed={1000 + seed}",
                       *envs_of(base), "overwrite=true", threads=threads, log=folder / "log.txt")  # fmt: skip
    return data


def before_it(out: Path, setting: Setting, base: Path, seed: int, threads: int) -> EpisodeTable:
    """Episodes of the base on the task that it is refined on, which may be another than the one it was trained on."""
    if not setting.task:
        return EpisodeTable.load(base / "bc" / "episodes.csv")
    folder = out / f"{setting.prefix.replace('/', '-')}base-{seed}"
    rows, policy = folder / "episodes-base.csv", policy_of(setting.base, base)
    with LOCKS[str(rows)]:
        if not finished(rows, policy):
            evaluate(setting.base, policy, threads, folder / "log.txt", *task_of(setting.base), *setting.task,
                     f"out={folder}", "name=base")  # fmt: skip
    return EpisodeTable.load(rows)


def student_of(out: Path, setting: Setting, base: Path, seed: int, threads: int) -> Path:
    """The run of what is refined in place of the base: made of it by imitation, on the same demonstrations."""
    key = "teacher" if "algo=distill" in setting.student else "base"
    run = out / f"{setting.prefix.replace('/', '-')}begin-{seed}"
    with LOCKS[str(run)]:
        robopolicy("train", *task_of(setting.base), f"dataset={base / 'data'}", f"run_dir={run}", f"seed={seed}",
                   "tracker=local", f"{key}={policy_of(setting.base, base)}", *setting.student,
                   threads=threads, log=run / "log.txt")  # fmt: skip
    return run


def untrained(
    setting: Setting,
    name: str,
    base: Path,
    begin: Path | None,
    run: Path,
    before: EpisodeTable,
    threads: int,
    jobs: int,
) -> Found:
    """The base, or the student that `begin` is, as it is, by another sampler, or on a variant of its task."""
    evaluate(setting.base, begin or policy_of(setting.base, base), threads, run / "log.txt", *task_of(setting.base),
             *setting.task, *setting.refine[name], f"out={run}", f"name={name}")  # fmt: skip
    commits = [json.loads((at / "provenance.json").read_text())["commit"] for at in (base / "bc", begin or base / "bc")]
    mode = "-deterministic" if "deterministic=true" in setting.refine[name] else ""
    rows = EpisodeTable.load(run / f"episodes-{name}{mode}.csv")
    print(f"{(begin or base).name} {setting.prefix}{name}: {rows.summary()}", flush=True)
    info = (begin or base) / TEACHER_EPISODES / INFO_FILE  # of what a student recorded of its teacher, failures too
    steps = json.loads(info.read_text())["total_frames"] if info.exists() else 0
    return Found(base=before, rows=rows, evaluations={}, seconds={}, env_steps=steps, wall_s=None if begin else 0.0,
                 jobs=jobs, commits=(commits[0], commits[1]))  # fmt: skip


def task_of(base: Base) -> tuple[str, ...]:
    return (f"task={base.task}", *base.options)


def envs_of(base: Base) -> tuple[str, ...]:
    return () if base.num_envs is None else (f"num_envs={base.num_envs}",)


def evaluate(base: Base, policy: Path, threads: int, log: Path, *more: str) -> None:
    robopolicy("eval", f"checkpoint={policy}", f"episodes={base.episodes}", "videos=0", *envs_of(base),
               f"threads={threads}", *more, threads=threads, log=log)  # fmt: skip


if __name__ == "__main__":
    print(f"commit {commit()}", flush=True)
    sys.exit(main())
