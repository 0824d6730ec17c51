"""Check this machine: each function returns one `Check`. Heavy packages are not imported here."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from robopolicy.doctor.fixes import ROOT, apt_install, in_checkout, pip_install, setup_fix
from robopolicy.doctor.probes import ProbeError, probe
from robopolicy.utils.memory import container_limit, free_memory
from robopolicy.utils.suite_packages import installed

GIB = 2**30
GL_PACKAGES = "libegl1 libgl1 libosmesa6"
MIN_DISK, GOOD_DISK = 1.0, 5.0  # GiB: no run fits; a few runs with videos fit
MIN_MEMORY = 3.0  # GiB: peak of `robopolicy quickstart`
UPDATE_DRIVER = "nvidia-smi  # then update the driver"
RUN = "from robopolicy.doctor.probes import {0}; {0}()"  # a program there


@dataclass(frozen=True)
class Check:
    """One finding. `fix` is the command (or the one action) that fixes it; empty where nothing is wrong."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True

    def __post_init__(self) -> None:
        if not self.ok and not self.fix:
            raise ValueError(f"Check {self.name!r} fails without a fix")

    @property
    def state(self) -> str:
        return "ok" if self.ok else "FAILED" if self.required else "optional"


def check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    version = sys.version_info[:2]
    ok = version == (3, 12) if in_checkout() else version >= (3, 12)  # the locks of a checkout are of 3.12
    fix = f"rm -r {shlex.quote(str(ROOT / '.venv'))} && {setup_fix()}" if in_checkout() else "uv venv --python 3.12"
    return Check("Python", ok, f"{found} ({sys.executable})" + ("" if ok else "; 3.12 is needed"), fix)


def read_lock(path: Path) -> dict[str, str]:
    """Read the pins (name → version) of a requirements file."""
    from packaging.requirements import Requirement

    pins = {}
    for line in path.read_text().splitlines():
        if line and line[0].isalnum():
            requirement = Requirement(line.rstrip("\\ "))
            if requirement.marker is None or requirement.marker.evaluate():
                pins[requirement.name] = str(next(iter(requirement.specifier))).removeprefix("==")
    return pins


def check_packages() -> Check:
    """Compare installed versions with the ranges that robopolicy declares, then with the lock (in a checkout)."""
    try:
        from packaging.requirements import Requirement

        declared = [Requirement(r) for r in metadata.requires("robopolicy") or []]
    except (ImportError, metadata.PackageNotFoundError) as error:
        return Check("Packages", False, f"robopolicy is not installed: {error}", setup_fix())
    needed = [r for r in declared if r.marker is None or r.marker.evaluate({"extra": ""})]
    broken = []
    for requirement in needed:
        version = installed(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            broken.append(f"{requirement.name}{requirement.specifier} (found {version or 'none'})")
    if broken:
        return Check("Packages", False, f"missing or unfit: {', '.join(broken)}", setup_fix())

    without_cuda = (ROOT / ".venv" / ".robopolicy-cpu").exists()  # set up by --cpu
    lock = ROOT / "requirements" / ("core-cpu.txt" if without_cuda else "core.txt")
    if not in_checkout() or not lock.is_file():
        return Check("Packages", True, f"robopolicy {installed('robopolicy')}; all {len(needed)} dependencies fit")
    pins = read_lock(lock)
    differ = [f"{n} {installed(n) or 'missing'} (locked {v})" for n, v in pins.items() if installed(n) != v]
    if differ:
        shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
        # Within the declared ranges, so it may well work; it is just not what was tested.
        return Check("Packages", False, f"not as locked: {shown}", setup_fix(), required=False)
    return Check("Packages", True, f"robopolicy {installed('robopolicy')}; all {len(pins)} as locked")


def check_rendering() -> Check:
    """Render one frame off-screen, as cameras and videos do."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    failures = []
    for backend in dict.fromkeys(filter(None, (chosen, "egl", "osmesa"))):
        try:
            answer = probe(RUN.format("rendering"), {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": ""})
        except ProbeError as error:
            failures.append(f"{backend}: {error}")
            continue
        detail = f"{backend} on {answer['device']}, a 64×64 frame in {answer['ms']:.1f} ms"
        if chosen and backend != chosen:
            broken = f"MUJOCO_GL={chosen} fails ({failures[0]}); {backend} works"
            return Check("Rendering", False, broken, "unset MUJOCO_GL")
        return Check("Rendering", True, detail)
    fix = setup_fix() if all("ModuleNotFoundError" in f for f in failures) else apt_install(GL_PACKAGES)
    return Check("Rendering", False, "; ".join(failures), fix)


def check_video() -> Check:
    """Encode and decode a short H.264 clip, as evaluation and reports do."""
    try:
        answer = probe(RUN.format("video"))
    except ProbeError as error:
        return Check("Video", False, f"PyAV cannot write H.264: {error}", setup_fix())
    return Check("Video", True, f"H.264 written and read (PyAV {answer['version']})")


def check_ffmpeg() -> Check:
    """Check FFmpeg's libraries, which LeRobot's fast reader of video datasets loads."""
    path = shutil.which("ffmpeg")
    if path is None:
        return Check("FFmpeg", False, "not found: video datasets read slowly", apt_install("ffmpeg"), required=False)
    done = subprocess.run([path, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        return Check("FFmpeg", False, f"{path} does not run", apt_install("--reinstall ffmpeg"), required=False)
    return Check("FFmpeg", True, " ".join(done.stdout.split()[:3]))


def check_cuda() -> Check:
    """Check the GPU. It is optional; one that cannot be used is reported."""
    present = Path("/dev/nvidiactl").exists()
    try:
        answer = probe(RUN.format("cuda"))
    except ProbeError as error:
        if present:
            return Check("GPU", False, f"CUDA fails: {error}", UPDATE_DRIVER, required=False)
        return Check("GPU", False, f"PyTorch does not load: {error}", setup_fix())
    torch, cuda = f"torch {answer['torch']}", answer["cuda"]
    if answer["names"]:
        gpus = [f"{n} ({m / GIB:.0f} GiB)" for n, m in zip(answer["names"], answer["memory"], strict=True)]
        return Check("GPU", True, f"{', '.join(gpus)}; {torch}, CUDA {cuda}")
    if not present:
        return Check("GPU", True, f"none: everything runs on the CPU ({torch})")
    if cuda is None:
        return Check("GPU", False, f"{torch} is a CPU build", setup_fix(), required=False)
    detail = f"{torch} (CUDA {cuda}) finds none: the driver may be too old for it"
    return Check("GPU", False, detail, UPDATE_DRIVER, required=False)


def check_ros() -> Check:
    """Check ROS 2, which only `deploy` to a real arm needs."""
    try:
        answer = probe("import json, os, rclpy; print(json.dumps({'distro': os.environ.get('ROS_DISTRO', '')}))")
    except ProbeError as error:
        if "No module named 'rclpy'" not in str(error):
            fix = pip_install("--force-reinstall", "ros-rclpy")
            return Check("ROS 2", False, f"rclpy does not load: {error}", fix, required=False)
        detail = "rclpy is not importable (needed to drive a real arm only)"
        distro = next(iter(sorted(Path("/opt/ros").glob("*/setup.bash"))), None)
        fix = f"source {distro}" if distro else pip_install("ros-rclpy")
        return Check("ROS 2", False, detail, fix, required=False)
    return Check("ROS 2", True, f"rclpy {installed('ros-rclpy') or answer['distro'] or 'found'}")


def check_disk(path: Path | None = None) -> Check:
    path = path or Path.cwd()
    free = shutil.disk_usage(path).free / GIB
    detail = f"{free:.1f} GiB free in {path}"
    if free < GOOD_DISK:
        detail += f"; a few runs with videos take {GOOD_DISK:.0f}"
    fix = f"du -xh --max-depth=2 {shlex.quote(str(path))} | sort -h | tail  # then delete what you can spare"
    return Check("Disk", free >= GOOD_DISK, detail, fix, required=free < MIN_DISK)


def check_memory() -> Check:
    import psutil

    memory = psutil.virtual_memory()
    total = min(memory.total, container_limit()) / GIB
    free = min(free_memory() / GIB, total)
    cores = len(os.sched_getaffinity(0))
    detail = f"{cores} core{'s' if cores > 1 else ''}, {free:.1f} of {total:.1f} GiB available"
    if free < MIN_MEMORY:
        detail += f"; quickstart takes up to {MIN_MEMORY:.0f}"
    fix = "ps -eo rss,pid,comm --sort=-rss | head  # then end what you can spare"
    return Check("Cores, memory", free >= MIN_MEMORY, detail, fix, required=False)


def check_wandb() -> Check:
    """Start an offline run of wandb, and report whether runs are uploaded."""
    if os.environ.get("WANDB_MODE") == "disabled":
        return Check("wandb", True, "WANDB_MODE=disabled: runs log to files alone")
    try:
        found = probe(RUN.format("tracking"))
    except ProbeError as error:
        gone = "ModuleNotFoundError" in str(error)  # a set-up without CUDA has none
        fix = setup_fix() if in_checkout() and not gone else pip_install("--upgrade", "wandb")
        return Check("wandb", False, f"does not start, runs log to files alone: {error}", fix, required=False)
    detail = f"{found['version']} starts; runs are {found['mode']}"
    if found["mode"] != "offline" or os.environ.get("WANDB_MODE"):
        return Check("wandb", True, detail)
    login = f"{shlex.quote(str(Path(sys.executable).parent / 'wandb'))} login"
    return Check("wandb", False, f"{detail}, as you are not logged in", login, required=False)


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_packages,
    check_rendering,
    check_video,
    check_ffmpeg,
    check_cuda,
    check_memory,
    check_disk,
    check_wandb,
    check_ros,
)
