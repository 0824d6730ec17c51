"""Installs the built wheel beside a package that ships its own `sim` and `configs`, and removes both again.

    python scripts/wheel_beside.py            # quickstart's small form from the wheel; about two minutes of one core
    python scripts/wheel_beside.py --record   # writes docs/results/wheel.json

The environment is empty but for the two wheels; torch and the like are lent by a `.pth` file (as tests/test_wheel.py).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from robopolicy.reporting.result_rows import measured, write

ROOT = Path(__file__).resolve().parents[1]
TOY = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "toy-arm"
version = "1.0"
[tool.hatch.build.targets.wheel]
packages = ["sim", "configs"]
"""
SMALL = ("quickstart", "out=quickstart", "demos=4", "expert_noise=0", "bc_steps=20", "rl_steps=6_400", "episodes=4",
         "videos=0", "tracker=quiet", "threads=1")  # fmt: skip
USED = "import sim, configs; assert sim.NAME == configs.NAME == 'toy'"
OURS = "import robopolicy; from robopolicy import configs, sim; assert sim.task_names(), configs.__file__"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write docs/results/wheel.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wheel") as name:
        lost = beside(Path(name), SMALL)
    print(f"lost or broken: {lost or 'nothing'}")
    if options.record:
        row = measured(
            id="wheel", setting="beside_toy", metric="lost_or_broken", interval=len(lost), notes="; ".join(lost)
        )
        write([row], root=ROOT / "docs" / "results")
    return int(bool(lost))


def beside(folder: Path, command: tuple[str, ...]) -> list[str]:
    """Every loss and failure while both are installed, `command` of ours runs, and each is removed in turn."""
    ours, toy = wheel(ROOT, folder / "ours"), wheel(toy_package(folder / "toy"), folder / "toys")
    lost: list[str] = []
    for first, second in (("toy-arm", "robopolicy"), ("robopolicy", "toy-arm")):
        env = Environment(folder / f"without-{first}")
        for built in (ours, toy):
            env.install(built)
        kept = env.files(second)
        lost += env.failures(
            ("-c", USED), ("-c", OURS), ("-m", "robopolicy", *command) if second == "robopolicy" else ()
        )
        env.uninstall(first)
        lost += [f"{second}: {path} went with {first}" for path in kept if not path.exists()]
        lost += env.failures(("-c", OURS if second == "robopolicy" else USED))
        env.uninstall(second)
        lost += [f"{second}: {path} is left" for path in kept if path.exists() and path.suffix != ".pyc"]
    return lost


def toy_package(folder: Path) -> Path:
    """A package with top-level `sim` and `configs` of its own."""
    for package in ("sim", "configs"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text('NAME = "toy"\n')
    (folder / "pyproject.toml").write_text(TOY)
    return folder


def wheel(source: Path, out: Path) -> Path:
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out], cwd=source,
                   check=True, capture_output=True)  # fmt: skip
    (built,) = out.glob("*.whl")
    return built


class Environment:
    """A virtual environment that holds what is installed here, and is lent what robopolicy depends on."""

    def __init__(self, folder: Path) -> None:
        self.python, self.uv = folder / "bin" / "python", Path(sys.executable).parent / "uv"
        self.work = folder.parent / f"{folder.name}-work"
        self.work.mkdir()
        run(self.uv, "venv", "--quiet", "--no-project", "--python", sys.executable, folder, cwd=self.work)
        self.site = next((folder / "lib").glob("python3*/site-packages"))
        (self.site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, built: Path) -> None:
        run(
            self.uv,
            "pip",
            "install",
            "--quiet",
            "--offline",
            "--no-deps",
            "--python",
            self.python,
            built,
            cwd=self.work,
        )

    def uninstall(self, name: str) -> None:
        run(self.uv, "pip", "uninstall", "--quiet", "--python", self.python, name, cwd=self.work)

    def files(self, name: str) -> list[Path]:
        """Installed files of a distribution."""
        (record,) = self.site.glob(f"{name.replace('-', '_')}-*.dist-info/RECORD")
        return [self.site / line.split(",")[0] for line in record.read_text().splitlines()]

    def failures(self, *commands: tuple[str, ...]) -> list[str]:
        found = []
        for command in filter(None, commands):
            done = run(self.python, *command, cwd=self.work, check=False)
            if done.returncode:
                found.append(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-500:]}")
        return found


def run(*command: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    env = {
        k: v
        for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE")
    }
    return subprocess.run([str(c) for c in command], cwd=cwd, env=env, check=check, capture_output=True, text=True)


if __name__ == "__main__":
    sys.exit(main())
