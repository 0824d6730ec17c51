"""The built wheel, away from the checkout: it holds all it needs, and runs.

The wheel goes into an environment of its own. Its heavy dependencies (torch and the like, 5 GB) are not installed
again: a `.pth` file lends those of the environment that runs the tests. Python does not follow `.pth` files found that
way, so the editable install of this checkout stays out of sight, which the first test makes sure of.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from scripts import wheel_beside

ROOT = Path(__file__).parents[1]
LINKED = ("sim", "real", "world_models", "configs")  # folders of the checkout, installed inside robopolicy

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path, timeout: float = 60, **env: str) -> str:
    """Run as a user would who never saw the checkout; the output is returned, and shown where it fails."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")}
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**kept, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin/` of an environment that has the wheel."""
    env = tmp_path_factory.mktemp("env") / "venv"
    uv = Path(sys.executable).parent / "uv"
    run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, env, cwd=env.parent)
    install = ("pip", "install", "--quiet", "--offline", "--no-deps", "--python", env / "bin" / "python")
    run(uv, *install, wheel, cwd=env.parent)
    site = next((env / "lib").glob("python3*/site-packages"))
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return env / "bin"


def test_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {Path(name) for name in names if ".dist-info/" not in name}
    assert {path.parts[0] for path in shipped} == {"robopolicy"}
    for folder in ("robopolicy", *LINKED):  # data too: Hydra's YAML, the report's style sheet
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                inside = path.relative_to(ROOT) if folder == "robopolicy" else "robopolicy" / path.relative_to(ROOT)
                assert inside in shipped, f"{path.relative_to(ROOT)} is not in the wheel"
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_runs_from_the_wheel_alone(bin: Path, tmp_path: Path) -> None:
    code = (
        "import robopolicy as r; from robopolicy import configs, sim; print(r.__file__, configs.__file__, sim.__file__)"
    )
    for path in run(bin / "python", "-c", code, cwd=tmp_path).split():
        assert Path(path).is_relative_to(bin.parent), path
        assert not Path(path).is_relative_to(ROOT)


def test_every_verb_explains_itself(bin: Path, tmp_path: Path) -> None:
    """`robopolicy --help` lists the verbs of docs/commands.md, and each has help: configs are found from the wheel."""
    said = run(bin / "robopolicy", "--help", cwd=tmp_path)
    assert said == run(bin / "python", "-m", "robopolicy", "--help", cwd=tmp_path)
    verbs = re.findall(r"^  ([a-z]+(?: [a-z]+)?)  ", said, re.MULTILINE)
    page = (ROOT / "docs" / "commands.md").read_text()
    assert sorted(verbs) == sorted(re.findall(r"^\| `([a-z ]+)` \|", page, re.MULTILINE))
    each = "[main([*verb.split(), '--help']) for verb in sys.argv[1:]]"
    code = f"import sys; from robopolicy.cli.main import main; sys.exit(any({each}))"
    helped = run(bin / "python", "-c", code, *verbs, cwd=tmp_path)
    assert all(f"robopolicy {verb}" in helped for verb in verbs)


def test_lerobot_finds_the_plugin(bin: Path, tmp_path: Path) -> None:
    code = (
        "from lerobot.configs.parser import load_plugin; from lerobot.envs.configs import EnvConfig\n"
        "load_plugin('robopolicy.lerobot_plugin'); assert 'robopolicy' in EnvConfig.get_known_choices()"
    )
    run(bin / "python", "-c", code, cwd=tmp_path, timeout=240)


def test_doctor(bin: Path, tmp_path: Path) -> None:
    out = run(bin / "robopolicy", "doctor", cwd=tmp_path, timeout=240)
    assert "FAILED" not in out
    assert "64×64 frame" in out.replace("\n", " ")


def test_gymnasium_makes_the_native_tasks(bin: Path, tmp_path: Path) -> None:
    """By an id that names our module, without an import of ours."""
    code = (
        "import gymnasium\n"
        "first = gymnasium.make('robopolicy.sim.gym_envs:robopolicy/Pick-v0')\n"
        "ids = [i for i in gymnasium.registry if i.startswith('robopolicy/')]\n"
        "for i in ids:\n"
        "    env = gymnasium.make(i)\n"
        "    env.reset(seed=0), env.step(env.action_space.sample()), env.close()\n"
        "envs = gymnasium.make_vec('robopolicy.sim.gym_envs:robopolicy/Pick-v0', num_envs=2)\n"
        "print(len(ids), envs.reset(seed=0)[0].shape[0])"
    )
    assert run(bin / "python", "-W", "ignore", "-c", code, cwd=tmp_path, timeout=120).split() == ["9", "2"]


def test_nothing_is_lost_beside_a_package_with_folders_of_the_same_names(tmp_path: Path) -> None:
    assert wheel_beside.beside(tmp_path, ("--version",)) == []
