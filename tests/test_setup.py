"""scripts/setup.sh against stand-ins for uv, apt and sudo: nothing is downloaded, nothing outside a temporary folder
is touched. (The real thing is what every CI run starts with.)"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

UV = f"""#!/bin/bash
echo "$*" >>"$UV_LOG"
case "$*" in
--version) echo "uv 0.99.0 (stand-in)" ;;
"python find"*) echo {sys.executable} ;;
venv*) mkdir -p .venv/bin && ln -sf {sys.executable} .venv/bin/python ;;
"pip install"*) [[ -z ${{UV_FAILS:-}} ]] ;;
esac
"""
FAILS = "#!/bin/bash\necho 'pyenv: version `3.12` is not installed' >&2\nexit 127\n"


@dataclass
class Checkout:
    """A copy of what set-up reads, with a PATH on which only stand-ins are found first."""

    root: Path
    bin: Path
    log: Path

    def stand_in(self, name: str, script: str, folder: str = "bin") -> None:
        path = self.root.parent / folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(script)
        path.chmod(0o755)

    def setup(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run("setup.sh", *args, **env)

    def run(self, script: str, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.root.parent / 'shims'}:{self.bin}:/usr/bin:/bin"
        return subprocess.run(
            ["bash", str(self.root / "scripts" / script), *args],
            cwd="/",  # from anywhere
            env={"PATH": path, "HOME": str(self.root.parent), "UV_LOG": str(self.log), **env},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )

    def calls(self) -> list[str]:
        """What uv was asked to do since the last call, its version aside."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line for line in lines if line != "--version"]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    root = tmp_path / "a checkout"  # with a space in its path
    for name in ("scripts", "requirements"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("pyproject.toml", ".python-version"):
        shutil.copy(ROOT / name, root)
    made = Checkout(root, tmp_path / "bin", tmp_path / "uv.log")
    made.stand_in("uv", UV)
    made.stand_in("ffmpeg", "#!/bin/sh\n")
    for name in ("apt-get", "apt-cache", "sudo"):
        made.stand_in(name, FAILS)
    return made


def installs(calls: list[str]) -> list[str]:
    return [call for call in calls if call.startswith("pip install")]


def test_makes_the_environment_once(checkout: Checkout) -> None:
    first = checkout.setup()
    assert first.returncode == 0, first.stderr
    calls = checkout.calls()
    locked, editable = installs(calls)
    assert "--require-hashes" in locked and "--compile-bytecode" in locked
    assert locked.endswith("requirements/core.txt")
    assert editable.endswith("--no-deps --build-constraints requirements/build.txt --editable .")
    again = checkout.setup()
    assert again.returncode == 0
    assert installs(checkout.calls()) == []
    assert "installing" not in again.stderr


def test_a_file_system_without_locks_does_not_stop_it(checkout: Checkout) -> None:
    checkout.stand_in(
        "flock", "#!/bin/sh\n[ $1 = --version ] || { echo 'flock: 9: No locks available' >&2; exit 71; }\n"
    )
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert "has no locks" in done.stderr and len(installs(checkout.calls())) == 2


def test_a_set_up_waits_for_another(checkout: Checkout) -> None:
    checkout.stand_in("flock", "#!/bin/sh\ncase $1 in -n) exit $3 ;; esac\n")
    done = checkout.setup()
    assert done.returncode == 0 and "waiting for another set-up" in done.stderr


def test_larger_sets_are_added_and_stay(checkout: Checkout) -> None:
    checkout.setup("core")
    checkout.calls()
    checkout.setup("dev")
    assert installs(checkout.calls())[0].endswith("requirements/dev.txt")
    checkout.setup("core")
    assert installs(checkout.calls()) == []
    lock = checkout.root / "requirements" / "dev.txt"
    lock.write_text(lock.read_text() + "# changed\n")
    checkout.setup("core")  # the lock moved on: what was asked for before is what is brought up to date
    assert installs(checkout.calls())[0].endswith("requirements/dev.txt")


def test_without_cuda(checkout: Checkout) -> None:
    done = checkout.setup("--cpu", "core")
    assert done.returncode == 0, done.stderr
    locked, editable = installs(checkout.calls())
    assert "--require-hashes --no-deps --torch-backend cpu" in locked and locked.endswith("requirements/core-cpu.txt")
    assert "--no-deps" in editable
    assert checkout.setup("core").returncode == checkout.setup().returncode == 0
    assert installs(checkout.calls()) == [], "what runs set-up again leaves PyTorch as it is"
    lock = checkout.root / "requirements" / "core-cpu.txt"
    lock.write_text(lock.read_text() + "# changed\n")
    checkout.setup()
    assert installs(checkout.calls())[0].endswith("requirements/core-cpu.txt")


def test_pytorch_with_and_without_cuda_do_not_mix(checkout: Checkout) -> None:
    for wrong in (("--cpu", "dev"), ("core-cpu",), ("--gpu", "core")):
        assert checkout.setup(*wrong).returncode != 0
    assert installs(checkout.calls()) == []
    for first, second in ((("--cpu", "core"), ("dev",)), (("core",), ("--cpu", "core"))):
        shutil.rmtree(checkout.root / ".venv", ignore_errors=True)
        assert checkout.setup(*first).returncode == 0
        checkout.calls()
        refused = checkout.setup(*second)
        assert refused.returncode != 0 and "rm -r .venv" in refused.stderr
        assert installs(checkout.calls()) == []


def test_force(checkout: Checkout) -> None:
    checkout.setup()
    checkout.calls()
    checkout.setup("--force")
    assert len(installs(checkout.calls())) == 2


def test_a_failed_install_is_tried_again(checkout: Checkout) -> None:
    assert checkout.setup(UV_FAILS="1").returncode != 0
    checkout.calls()
    assert checkout.setup().returncode == 0
    assert len(installs(checkout.calls())) == 2


def test_a_failed_install_without_cuda_names_the_way_out_and_the_variant_is_not_changed(checkout: Checkout) -> None:
    done = checkout.setup("--cpu", "core", UV_FAILS="1")
    assert done.returncode == 1
    assert "If PyTorch's own index cannot be reached" in done.stderr
    assert "./scripts/setup.sh takes PyTorch for CUDA from PyPI (6 GB of disk)" in done.stderr
    checkout.calls()
    (checkout.root / ".venv" / "bin" / "robopolicy").write_text("#!/bin/bash\necho ran\n")
    (checkout.root / ".venv" / "bin" / "robopolicy").chmod(0o755)
    refused = checkout.run("run.sh", "doctor")
    assert refused.returncode == 1 and "setup.sh --cpu core did not finish" in refused.stderr
    assert checkout.calls() == []
    chosen = checkout.setup()
    assert chosen.returncode == 0 and "the set core with PyTorch for CUDA, 6 GB" in chosen.stderr
    assert checkout.run("run.sh", "doctor").stdout == "ran\n"
    elsewhere = checkout.setup("--force", UV_FAILS="1")
    assert elsewhere.returncode == 1 and "cannot be reached" not in elsewhere.stderr


def test_help_is_the_header(checkout: Checkout) -> None:
    done = checkout.setup("--help")
    assert done.returncode == 0 and checkout.calls() == []
    assert "  suites ros + light task suites" in done.stdout and "--cpu: PyTorch without CUDA" in done.stdout
    assert "set -euo" not in done.stdout and not done.stdout.startswith("#")


def test_shims_that_fail_are_passed_over(checkout: Checkout) -> None:
    """pyenv puts commands on PATH that exist and fail where the version asked for is not installed."""
    for name in ("uv", "python3", "python3.12", "pip"):
        checkout.stand_in(name, FAILS, folder="shims")
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert len(installs(checkout.calls())) == 2


def test_no_uv_is_installed_from_the_pinned_file(checkout: Checkout) -> None:
    """Neither a failing uv nor one that is too old is used; Python's own pip brings the pinned one."""
    checkout.stand_in("uv", FAILS, folder="shims")
    checkout.stand_in("uv", "#!/bin/bash\necho 'uv 0.4.30'\n")
    pip = f"""#!/bin/bash
[[ $1 == -c ]] && exit 0
echo "$*" >>"$UV_LOG"
if [[ $* == *install* ]]; then mkdir -p .tools/bin && cp {checkout.bin.parent}/new-uv .tools/bin/uv; fi
"""
    checkout.stand_in("new-uv", UV, folder=".")
    checkout.stand_in("python3", pip)
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    calls = checkout.calls()
    assert any("--require-hashes" in c and c.endswith("-r requirements/uv.txt") for c in calls)
    assert len(installs(calls)) == 2
    assert (checkout.root / ".tools" / ".gitignore").read_text() == "*\n"


def test_without_rights_it_says_what_to_install(checkout: Checkout) -> None:
    """No ffmpeg, no sudo: set-up goes on and names the command, since only videos need it."""
    checkout.stand_in("ffmpeg", FAILS)
    checkout.stand_in("apt-get", "#!/bin/bash\n[[ $1 == --version ]]\n")
    checkout.stand_in("apt-cache", "#!/bin/bash\necho '  Candidate: 7:1.0'\n")
    checkout.stand_in("env", FAILS)  # what would run apt-get as root
    done = checkout.setup()
    assert done.returncode == 0, done.stderr
    assert "sudo apt-get install -y" in done.stderr
    assert "ffmpeg" in done.stderr


@pytest.mark.parametrize("args", [("everything",), ("core", "dev"), ("--gpu",)])
def test_wrong_arguments(checkout: Checkout, args: tuple[str, ...]) -> None:
    done = checkout.setup(*args)
    assert done.returncode == 1
    assert "[core|ros|suites|dev|bench]" in done.stderr
    assert checkout.calls() == []


@pytest.mark.parametrize(
    "script", [*sorted((ROOT / "scripts").glob("*.sh")), ROOT / ".ci" / "run"], ids=lambda p: p.name
)
def test_scripts_parse_and_are_executable(script: Path) -> None:
    assert subprocess.run(["bash", "-n", str(script)], capture_output=True).returncode == 0
    assert os.access(script, os.X_OK)
    assert "set -euo pipefail" in script.read_text()
