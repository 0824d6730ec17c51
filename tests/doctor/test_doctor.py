"""`robopolicy doctor`: each check tells what is missing and how to mend it, and survives what it examines."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from robopolicy import doctor
from robopolicy.core.errors import UsageError
from robopolicy.doctor import checks as machine
from robopolicy.doctor import probes
from robopolicy.doctor.checks import Check


@pytest.fixture
def no_probe(monkeypatch: pytest.MonkeyPatch):
    """Make every probe process fail with a message."""

    def fail(message: str) -> None:
        def probe(code: str, env=None):
            raise probes.ProbeError(message)

        monkeypatch.setattr(machine, "probe", probe)

    return fail


def test_a_failed_check_has_a_fix() -> None:
    with pytest.raises(ValueError, match="without a fix"):
        Check("x", ok=False, detail="broken")


def test_states() -> None:
    assert Check("x", True, "").state == "ok"
    assert Check("x", False, "", "fix").state == "FAILED"
    assert Check("x", False, "", "fix", required=False).state == "optional"


# ---- probes ----------------------------------------------------------------------------------------------------


def test_probe_returns_the_last_line() -> None:
    assert probes.probe("print('noise'); print('{\"a\": 1}')") == {"a": 1}


def test_probe_passes_the_environment() -> None:
    code = "import json, os; print(json.dumps({'x': os.environ['PROBED']}))"
    assert probes.probe(code, {"PROBED": "yes"}) == {"x": "yes"}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise OSError('no such driver')", "OSError: no such driver"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("print('hello')", "unexpected answer"),
        ("pass", "unexpected answer"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
def test_probe_survives(code: str, message: str) -> None:
    with pytest.raises(probes.ProbeError, match=message):
        probes.probe(code)


def test_probe_ends_what_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "TIMEOUT", 0.5)
    with pytest.raises(probes.ProbeError, match="no answer"):
        probes.probe("import time; time.sleep(60)")


# ---- on this machine, which set-up has prepared ----------------------------------------------------------------


def test_renders_for_real(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    check = machine.check_rendering()
    assert check.ok, check.detail
    assert "64×64 frame" in check.detail


def test_encodes_for_real() -> None:
    assert machine.check_video().ok


def test_python_and_packages_are_as_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray, which another test may have imported here, puts packages of its own before the installed ones.
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "thirdparty_files" not in p])
    assert machine.check_python().ok
    check = machine.check_packages()
    assert check.ok, f"{check.detail}; {check.fix}"


# ---- what is missing is named ----------------------------------------------------------------------------------


def test_other_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 1, "final", 0))
    check = machine.check_python()
    assert check.state == "FAILED"
    assert "3.13.1" in check.detail
    assert "setup.sh" in check.fix


def test_package_missing_or_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.installed
    monkeypatch.setattr(machine, "installed", lambda n: {"torch": None, "numpy": "1.26.4"}.get(n, found(n)))
    check = machine.check_packages()
    assert check.state == "FAILED"
    assert "torch" in check.detail
    assert "found 1.26.4" in check.detail
    assert check.fix


def test_package_not_as_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    found = machine.installed
    monkeypatch.setattr(machine, "installed", lambda n: "99.0" if n == "rich" else found(n))
    check = machine.check_packages()
    assert check.state == "optional"
    assert "rich 99.0 (locked" in check.detail
    assert "setup.sh --force" in check.fix


def test_lock_is_read(tmp_path: Path) -> None:
    lock = tmp_path / "core.txt"
    lock.write_text(
        "# made by\n"
        "av==15.1.0 \\\n    --hash=sha256:00\n    # via x\n"
        "colorama==0.4 ; sys_platform == 'win32' \\\n    --hash=sha256:11\n"
        "torch==2.11.0\n"
    )
    assert machine.read_lock(lock) == {"av": "15.1.0", "torch": "2.11.0"}


def test_no_rendering(no_probe) -> None:
    no_probe("ImportError: cannot load libEGL")
    check = machine.check_rendering()
    assert check.state == "FAILED"
    assert "egl: ImportError" in check.detail
    assert "osmesa: ImportError" in check.detail
    assert "apt-get install -y libegl1" in check.fix


def test_rendering_without_mujoco_is_no_driver_problem(no_probe) -> None:
    no_probe("ModuleNotFoundError: No module named 'mujoco'")
    assert "apt-get" not in machine.check_rendering().fix


def test_chosen_gl_backend_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(code: str, env):
        if env["MUJOCO_GL"] == "glfw":
            raise probes.ProbeError("no display")
        return {"ms": 1.0, "device": "llvmpipe"}

    monkeypatch.setattr(machine, "probe", probe)
    monkeypatch.setenv("MUJOCO_GL", "glfw")
    check = machine.check_rendering()
    assert check.state == "FAILED"
    assert "no display" in check.detail
    assert check.fix == "unset MUJOCO_GL"


def test_no_video(no_probe) -> None:
    no_probe("UnknownCodecError: libx264")
    check = machine.check_video()
    assert check.state == "FAILED"
    assert "libx264" in check.detail


def test_no_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    check = machine.check_ffmpeg()
    assert check.state == "optional"
    assert check.fix.endswith("apt-get install -y ffmpeg")


@pytest.mark.parametrize(
    ("present", "answer", "state", "words"),
    [
        (False, {"torch": "2", "cuda": "13.0", "names": [], "memory": []}, "ok", "runs on the CPU"),
        (True, {"torch": "2", "cuda": "13.0", "names": ["H100"], "memory": [80 * 2**30]}, "ok", "H100 (80 GiB)"),
        (True, {"torch": "2", "cuda": "13.0", "names": [], "memory": []}, "optional", "driver"),
        (True, {"torch": "2", "cuda": None, "names": [], "memory": []}, "optional", "CPU build"),
    ],
)
def test_gpu(monkeypatch: pytest.MonkeyPatch, present: bool, answer: dict, state: str, words: str) -> None:
    monkeypatch.setattr(machine, "probe", lambda code, env=None: answer)
    monkeypatch.setattr(machine.Path, "exists", lambda self: present)
    check = machine.check_cuda()
    assert check.state == state
    assert words in check.detail


def test_torch_that_does_not_load_is_fatal_without_a_gpu_too(no_probe) -> None:
    no_probe("ImportError: libtorch")
    assert machine.check_cuda().required


@pytest.mark.parametrize(("free", "state"), [(0.5, "FAILED"), (2.0, "optional"), (50.0, "ok")])
def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: float, state: str) -> None:
    usage = SimpleNamespace(free=int(free * machine.GIB))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: usage)
    check = machine.check_disk(tmp_path)
    assert check.state == state
    assert f"{free:.1f} GiB free" in check.detail


def test_memory_minds_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "container_limit", lambda: machine.GIB)
    check = machine.check_memory()
    assert check.state == "optional"
    assert "of 1.0 GiB" in check.detail


@pytest.fixture
def fresh_wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No login, no setting, no home of another user."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def test_wandb_starts_a_run(fresh_wandb: None) -> None:
    check = machine.check_wandb()
    assert check.state == "optional"
    assert "offline" in check.detail
    assert check.fix.endswith("wandb login")


def test_wandb_with_a_login(fresh_wandb: None, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password " + 40 * "5")
    check = machine.check_wandb()
    assert check.ok
    assert "online" in check.detail
    assert "5555" not in check.detail


def test_wandb_that_is_not_installed(fresh_wandb: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("raise ModuleNotFoundError(\"No module named 'wandb'\", name='wandb')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    check = machine.check_wandb()
    assert not check.ok and not check.required
    assert check.fix.endswith("--upgrade wandb")


def test_wandb_that_does_not_start(fresh_wandb: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "wandb.py").write_text("__version__ = '0'\ndef setup(): raise RuntimeError('another interface')")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    monkeypatch.setenv("PYTHONPATH", path)
    check = machine.check_wandb()
    assert not check.ok
    assert "RuntimeError" in check.detail
    assert check.fix


def test_wandb_that_logs_nothing(fresh_wandb: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from robopolicy.runs import wandb_run

    def broken() -> None:
        raise RuntimeError("another interface")

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setattr(wandb_run, "import_wandb", broken)
    with pytest.raises(AssertionError, match="RuntimeError"):
        probes.tracking()


def test_wandb_that_is_not_wanted(no_probe, monkeypatch: pytest.MonkeyPatch) -> None:
    no_probe("not to be asked")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert machine.check_wandb().ok


@pytest.mark.parametrize(
    ("error", "words"),
    [("ModuleNotFoundError: No module named 'rclpy'", "not importable"), ("ImportError: librcl.so", "librcl.so")],
)
def test_no_ros(no_probe, error: str, words: str) -> None:
    no_probe(error)
    check = machine.check_ros()
    assert check.state == "optional"
    assert words in check.detail
    assert check.fix


# ---- the command -----------------------------------------------------------------------------------------------


def test_a_check_that_breaks_is_a_finding() -> None:
    def check_bad() -> Check:
        raise RuntimeError("boom")

    (check,) = doctor.examine([check_bad])
    assert check.state == "FAILED"
    assert "RuntimeError: boom" in check.detail


GOOD = Check("Good", True, "fine")
OPTIONAL = Check("Extra", False, "not there", "get it", required=False)
FATAL = Check("Vital", False, "gone [really]", "sudo mend " + "it " * 60)


@pytest.mark.parametrize(("checks", "code"), [([GOOD], 0), ([GOOD, OPTIONAL], 0), ([GOOD, OPTIONAL, FATAL], 1)])
def test_exit_code(monkeypatch: pytest.MonkeyPatch, capsys, checks: list[Check], code: int) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: checks)
    assert doctor.main() == code
    out = capsys.readouterr().out
    for check in checks:
        assert check.detail in out
        assert check.ok or f"{check.name}: {check.fix}" in out  # whole, on one line, to be copied


def test_json(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(doctor, "examine", lambda: [GOOD, FATAL])
    assert doctor.main(["json=true"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in rows] == ["ok", "FAILED"]
    assert rows[1]["fix"] == FATAL.fix


def test_works_without_rich(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)
    doctor.show([GOOD, FATAL])
    assert FATAL.fix in capsys.readouterr().out


def test_unknown_override() -> None:
    with pytest.raises(UsageError, match="json=true"):
        doctor.main(["jsn=true"])


def test_a_set_up_without_cuda_is_compared_with_its_own_lock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, torch in (("core", "2.0"), ("core-cpu", "2.0+cpu")):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        (tmp_path / "requirements" / f"{name}.txt").write_text(f"torch=={torch}\n")
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "in_checkout", lambda: True)
    monkeypatch.setattr(machine.metadata, "requires", lambda _: [])
    monkeypatch.setattr(machine, "installed", lambda _: "2.0+cpu")
    assert "not as locked: torch" in machine.check_packages().detail
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".robopolicy-cpu").touch()
    assert machine.check_packages().detail.endswith("all 1 as locked")
