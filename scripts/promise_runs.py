"""Runs the commands of a page's block, small, in an empty folder: what was named beforehand is made first.

Two rules, both mechanical. `SMALL`: keys that a verb's config has, and that say how long it works, get these values.
`Sandbox.provide`: a dataset, checkpoint or recording that a command names and no command of the block made is made
small, of the task that the command names.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.promise_list import Promise, words

ROOT = Path(__file__).resolve().parents[1]
SMALL: dict[str, dict[str, str]] = {
    "demos": {"episodes": "60", "num_envs": "20"},
    "eval": {"episodes": "2", "videos": "0", "num_envs": "2", "world.even_if_bad": "true"},
    "compare": {"episodes": "2", "videos": "0", "num_envs": "2"},
    "robustness": {"episodes": "2", "num_envs": "2"},
    "deploy": {"episodes": "1"},
    "quickstart": {
        "demos": "4", "expert_noise": "0", "bc_steps": "20", "rl_steps": "6_400", "episodes": "4", "videos": "0",
    },
    "train": {
        "num_envs": "8", "group_size": "4", "validation_episodes": "2", "device": "cpu",
        "loop.steps": "20", "loop.batch_size": "8", "loop.total_steps": "1_600", "loop.warmup_steps": "400",
        "loop.critic_only_updates": "2", "loop.rollout_steps": "40", "loop.save_every": "800", "loop.labelled": "16",
        "loop.success.min_positives": "1", "loop.min_windows": "1", "loop.synthetic.windows": "16",
        "algo.epochs": "1", "algo.minibatch": "64", "algo.penalty_steps": "800", "rounds": "1",
        "coevolve.refit_steps": "4", "coevolve.episodes": "2", "world.even_if_bad": "true", "world.gate": "null",
    },
}  # fmt: skip
RESIDUAL = ("num_envs", "validation_episodes", "loop.total_steps", "loop.warmup_steps", "loop.critic_only_updates")
MODELS = {  # the names that pages give to the runs of world models
    "world": ("algo=world_model", "loop.success.min_positives=1", "loop.labelled=16"),
    "seen": ("algo=world_model_pictures", "loop.success.min_positives=1", "loop.labelled=16"),
    "windows": ("algo=trajectories", "loop.min_windows=1", "loop.steps=400", "loop.batch_size=64"),
}
MORE = {  # values of keys where a command has a word
    "robot=mujoco_ros2": {"lockstep": "true"},  # a busy machine keeps no real time
    "suite=metaworld_mt10": {"only": "[push-v3]"},  # one of its tasks
    "algo=trajectories": {"loop.steps": "400", "loop.batch_size": "64"},  # a model of less is refused
}
DATASETS = ("dataset=", "memory=", "--dataset.root=")
CHECKPOINTS = ("checkpoint=", "base=", "a=", "b=", "teacher=")
UNTIL_STOPPED = ("serve",)  # verbs that work until Ctrl-C, which ends them well
OUTPUTS = ("out=", "run_dir=", "record=", "--out", "--output_dir=")


LOCK = threading.Lock()  # what several blocks name is made by one


class Failed(Exception):
    """A command ended badly; the message is the end of what it said."""


def small(words: Sequence[str], keys: Mapping[str, object]) -> list[str]:
    """The words of a command with the values of `SMALL`; `keys` are those of its composed config."""
    short = {k: v for k, v in SMALL.get(words[1], {}).items() if k in keys and larger(keys[k], v)}
    if words[1] in SMALL and keys.get("episodes", 0) is None:  # as many as the task says
        short["episodes"] = SMALL[words[1]]["episodes"]
    for word in words:
        short |= MORE.get(word, {})
    kept = [w for w in words if w.split("=")[0] not in short]
    return [*kept, *(f"{k}={v}" for k, v in short.items())]


def larger(value: object, least: str) -> bool:
    """A number that is above what is enough, or a setting that is another."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value > float(least)
    return value is not None and str(value).lower() != least


class Wheel:
    """The wheel and what its lock file names, in an environment of their own."""

    def __init__(self, folder: Path) -> None:
        uv = next(p for p in (Path(sys.executable).parent / "uv", ROOT / ".tools" / "bin" / "uv") if p.exists())
        self.folder, env = folder, folder / "env"
        outside = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
        call = functools.partial(subprocess.run, check=True, cwd=folder, env=outside)
        call([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder / "dist"], cwd=ROOT)
        call([uv, "venv", "-q", "--no-project", "--python", Path(sys.executable).resolve(), env])
        install = [uv, "pip", "install", "-q", "--python", env / "bin" / "python"]
        lock = ["--require-hashes", "--build-constraints", ROOT / "requirements" / "build.txt"]
        call([*install, *lock, "-r", ROOT / "requirements" / "dev.txt"])
        call([*install, "--no-deps", *(folder / "dist").glob("*.whl")])
        home = folder / "home"
        home.mkdir()
        kept = {k: v for k, v in outside.items() if not k.startswith(("WANDB_", "HF_")) and k != "NETRC"}
        self.env = {
            **kept, "PATH": f"{env / 'bin'}:{outside['PATH']}", "HOME": str(home), "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "WANDB_BASE_URL": "http://127.0.0.1:9",
        }  # fmt: skip
        self.python = env / "bin" / "python"

    @functools.cache  # noqa: B019
    def words(self, package: str) -> frozenset[str]:
        """Every word in the Python files of an installed package."""
        (folder,) = (self.folder / "env").glob(f"lib/python3*/site-packages/{package}")
        return frozenset(w for p in folder.rglob("*.py") for w in re.findall(r"\w+", p.read_text(encoding="utf-8")))

    def ask(self, promises: Sequence[Promise], what: str) -> dict[str, Any]:
        """Answers of scripts/promise_check.py: {promise: verdict}, or {promise: keys of its composed command}."""
        asked = [
            {"id": str(p), "page": p.page, "kind": p.kind, "text": p.text, "words": words(p.text)} for p in promises
        ]
        shutil.copy(ROOT / "scripts" / "promise_check.py", self.folder)
        done = subprocess.run(
            [self.python, "promise_check.py", what], input=json.dumps(asked), text=True, stdout=subprocess.PIPE,
            check=True, cwd=self.folder, env=self.env,
        )  # fmt: skip
        answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answers


class Sandbox:
    """An empty folder in which the commands of one block run, one after the other."""

    def __init__(self, folder: Path, shelf: Path, env: Mapping[str, str], timeout: float) -> None:
        self.folder, self.shelf, self.env, self.timeout = folder, shelf, dict(env), timeout
        folder.mkdir(parents=True)

    def run(self, words: Sequence[str], *, cwd: Path | None = None) -> None:
        """Run one command.

        Raises:
            Failed: it ended with another exit code than 0, or took too long.
        """
        process = subprocess.Popen(
            list(words), cwd=cwd or self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        stops = words[0] == "robopolicy" and words[1] in UNTIL_STOPPED
        try:
            out, _ = process.communicate(timeout=30 if stops else self.timeout)
            code = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT if stops else signal.SIGKILL)
            out, _ = process.communicate(timeout=60)
            code = 0 if stops and process.returncode in (0, 130) else f"{self.timeout:.0f} s were too few"
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        if code:
            raise Failed(f"{shlex.join(words)}: {code}: {out.strip()[-1200:]}")

    def provide(self, words: Sequence[str]) -> None:
        """Make what the command names and the folder does not have."""
        task = [w for w in words if re.match(r"task(=|\.(cameras|image_size|objects|name)=)", w)]
        for word in (f"{name}={value}" for name, _, values in (w.partition("=") for w in words)
                     for value in values.strip("[]").split(",")):  # fmt: skip
            name, _, value = word.partition("=")
            path = self.folder / value.split("@")[0].rstrip("/")
            if not re.match(r"[\w./@-]+$", value) or value in ("none", "zero_action") or path.exists():
                continue
            if word.startswith(DATASETS) or name.startswith("loop.data."):
                shutil.copytree(self.dataset(value, task), path)
            elif word.startswith(CHECKPOINTS) or name in ("expert.checkpoint", "world.model", "loop.synthetic.model"):
                at = path / "push-v3" if "@" in value else path
                shutil.copytree(self.checkpoint(value, task), at)
            elif name == "recording" and "deploy" in value:
                shutil.copytree(self.recording(), path)

    # ---- what is made, once each -----------------------------------------------------------------------------

    def _once(self, name: str, *commands: Sequence[str]) -> Path:
        at = self.shelf / re.sub(r"[^\w.]+", "_", name)
        with LOCK:
            if not at.exists():
                try:
                    for command in commands:
                        self.run([w.replace("@AT", str(at)) for w in command], cwd=self.shelf)
                except Failed:
                    shutil.rmtree(at, ignore_errors=True)
                    raise
        return at

    def dataset(self, value: str, task: Sequence[str]) -> Path:
        task = task or named(value)
        keep = "only_success=false" if "around" in value else "only_success=true"
        how = ["expert_noise=0", "episodes=60", "num_envs=20", keep]
        return self._once(f"data_{'_'.join(task)}_{keep}", ["robopolicy", "demos", *task, *how, "out=@AT"])

    def checkpoint(self, value: str, task: Sequence[str]) -> Path:
        task = [w for w in (task or named(value)) if "wording" not in w]
        label, last = "_".join(task), Path(value).name
        train = ["robopolicy", "train", f"dataset={self.dataset(value, task)}", "run_dir=@AT", "tracker=quiet"]
        short = ["loop.steps=20", "loop.batch_size=8"]
        if last in MODELS:
            own = {word.split("=")[0] for word in MODELS[last]}
            rest = [word for word in short if word.split("=")[0] not in own]
            return self._once(f"{last}_{label}", [*train, *rest, *MODELS[last]])
        policy = next((p for p in ("vla", "ricl", "gaussian") if p in value), "diffusion")
        base = self._once(f"{policy}_{label}", [*train, *short, f"policy={policy}", "validation_episodes=0"])
        if "residual" not in value:
            return base
        rl = [f"{key}={SMALL['train'][key]}" for key in RESIDUAL]
        return self._once(f"residual_{label}", [*train, "algo=residual", f"base={base}", *task, *rl])

    def recording(self) -> Path:
        base = self.checkpoint("runs/bc", ["task=pick"])
        return self._once(
            "recording", ["robopolicy", "deploy", f"checkpoint={base}", "task=pick", "episodes=1", "record=@AT"]
        )


def named(value: str) -> list[str]:
    """The task that a path names; pick where it names none."""
    if "mt10" in value or "multi_task" in value:
        return ["task=metaworld", "task.name=push-v3"]
    if any(word in value for word in ("tabletop", "vla", "ricl", "student", "data/new")):
        return ["task=tabletop"]
    return [f"task={next((t for t in ('stack', 'drawer', 'push', 'reach', 'peg') if t in value), 'pick')}"]
