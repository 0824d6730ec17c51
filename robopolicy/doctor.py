"""`robopolicy doctor`: what this machine has, what is missing, and the command that mends it.

Every check answers with one `Check`. Whatever may crash a process (a GL driver, CUDA, a broken wheel) is tried in a
process of its own, so that the doctor outlives its patients; nothing heavy is imported here.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import netrc
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from robopolicy.errors import ConfigError, closest

ROOT = Path(__file__).resolve().parents[1]  # the checkout, or site-packages
GIB = 2**30
GL_PACKAGES = "libegl1 libgl1 libosmesa6"
MIN_DISK, GOOD_DISK = 1.0, 5.0  # GiB: no run fits; a few runs with videos fit
MIN_MEMORY = 3.0  # GiB: what `robopolicy quickstart` may take
TIMEOUT = 120.0  # s: a cold import of torch from a slow disk takes tens of seconds


@dataclass(frozen=True)
class Check:
    """One finding. `fix` is the command (or the one action) that mends it; empty where nothing is to mend."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    required: bool = True

    def __post_init__(self) -> None:
        if not self.ok and not self.fix:
            raise ValueError(f"Check {self.name!r} fails without saying how to mend it")

    @property
    def state(self) -> str:
        return "ok" if self.ok else "FAILED" if self.required else "optional"


class ProbeError(Exception):
    """A probe process failed; the message is its last line."""


def probe(code: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Run `code` in a fresh interpreter and return the JSON object that it prints last.

    Raises:
        ProbeError: it crashed, hung or printed something else.
    """
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **(env or {})},
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise ProbeError(f"no answer within {TIMEOUT:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise ProbeError(lines[-1].strip() if lines else how)
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        raise ProbeError(f"unexpected answer: {done.stdout[-200:]!r}") from None


def in_checkout() -> bool:
    return (ROOT / "scripts" / "setup.sh").is_file()


def uv() -> str:
    """How to call uv from here."""
    for path in (Path(sys.prefix) / "bin" / "uv", ROOT / ".tools" / "bin" / "uv"):
        if path.is_file():
            return shlex.quote(str(path))
    return "uv"


def pip_install(*packages: str) -> str:
    return f"{uv()} pip install --python {shlex.quote(sys.executable)} {' '.join(packages)}"


def apt_install(packages: str) -> str:
    sudo = "" if os.geteuid() == 0 else "sudo "
    return f"{sudo}apt-get update && {sudo}apt-get install -y {packages}"


def setup_fix() -> str:
    """The command that restores the Python environment."""
    if in_checkout():
        return f"{shlex.quote(str(ROOT / 'scripts' / 'setup.sh'))} --force"
    return pip_install("--upgrade", "robopolicy")


# ---- the checks ------------------------------------------------------------------------------------------------


def check_python() -> Check:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info[:2] == (3, 12)
    fix = f"rm -r {shlex.quote(str(ROOT / '.venv'))} && {setup_fix()}" if in_checkout() else "uv venv --python 3.12"
    return Check("Python", ok, f"{found} ({sys.executable})" + ("" if ok else "; 3.12 is needed"), fix)


def read_lock(path: Path) -> dict[str, str]:
    """Pins (name → version) of a requirements file."""
    from packaging.requirements import Requirement

    pins = {}
    for line in path.read_text().splitlines():
        if line and line[0].isalnum():
            requirement = Requirement(line.rstrip("\\ "))
            if requirement.marker is None or requirement.marker.evaluate():
                pins[requirement.name] = str(next(iter(requirement.specifier))).removeprefix("==")
    return pins


def installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_packages() -> Check:
    """Installed versions against the ranges that robopolicy declares, then against the lock (in a checkout)."""
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

    lock = ROOT / "requirements" / "core.txt"
    if not in_checkout() or not lock.is_file():
        return Check("Packages", True, f"robopolicy {installed('robopolicy')}; all {len(needed)} dependencies fit")
    pins = read_lock(lock)
    differ = [f"{n} {installed(n) or 'missing'} (locked {v})" for n, v in pins.items() if installed(n) != v]
    if differ:
        shown = ", ".join(differ[:5]) + (f" and {len(differ) - 5} more" if len(differ) > 5 else "")
        # Within the declared ranges, so it may well work; it is just not what was tested.
        return Check("Packages", False, f"not as locked: {shown}", setup_fix(), required=False)
    return Check("Packages", True, f"robopolicy {installed('robopolicy')}; all {len(pins)} as locked")


RENDER = """
import json, os, time
import mujoco
from OpenGL.GL import GL_RENDERER, glGetString
model = mujoco.MjModel.from_xml_string('''<mujoco><worldbody><light pos="0 0 3"/><geom type="plane" size="1 1 .1"/>
<geom type="sphere" size=".3" pos="0 0 .3" rgba=".9 .3 .1 1"/></worldbody></mujoco>''')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 64, 64)
renderer.update_scene(data)
renderer.render()  # the first frame compiles shaders
start = time.perf_counter()
picture = renderer.render()
ms = 1e3 * (time.perf_counter() - start)
assert picture.std() > 1, "the rendered frame is blank"
print(json.dumps({"ms": ms, "device": glGetString(GL_RENDERER).decode()}), flush=True)
os._exit(0)  # GL drivers complain about the order in which an interpreter shuts down
"""


def check_rendering() -> Check:
    """Render one frame off-screen, as cameras and videos do."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    failures = []
    for backend in dict.fromkeys(filter(None, (chosen, "egl", "osmesa"))):
        try:
            answer = probe(RENDER, {"MUJOCO_GL": backend, "PYOPENGL_PLATFORM": ""})
        except ProbeError as error:
            failures.append(f"{backend}: {error}")
            continue
        detail = f"{backend} on {answer['device']}, a 64×64 frame in {answer['ms']:.1f} ms"
        if chosen and backend != chosen:
            return Check(
                "Rendering", False, f"MUJOCO_GL={chosen} fails ({failures[0]}); {backend} works", "unset MUJOCO_GL"
            )
        return Check("Rendering", True, detail)
    fix = setup_fix() if all("ModuleNotFoundError" in f for f in failures) else apt_install(GL_PACKAGES)
    return Check("Rendering", False, "; ".join(failures), fix)


VIDEO = """
import io, json
import av, numpy as np
buffer = io.BytesIO()
with av.open(buffer, "w", format="mp4") as file:
    stream = file.add_stream("libx264", rate=10)
    stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
    for i in range(8):
        frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 30 * i, np.uint8), format="rgb24")
        file.mux(stream.encode(frame))
    file.mux(stream.encode())
buffer.seek(0)
with av.open(buffer) as file:
    frames = sum(1 for _ in file.decode(video=0))
assert frames == 8, f"8 frames were encoded, {frames} decoded"
print(json.dumps({"version": av.__version__}))
"""


def check_video() -> Check:
    """Encode and decode a short H.264 clip, as evaluation and reports do."""
    try:
        answer = probe(VIDEO)
    except ProbeError as error:
        return Check("Video", False, f"PyAV cannot write H.264: {error}", setup_fix())
    return Check("Video", True, f"H.264 written and read (PyAV {answer['version']})")


def check_ffmpeg() -> Check:
    """FFmpeg's own libraries: LeRobot's fast reader of video datasets loads them."""
    path = shutil.which("ffmpeg")
    if path is None:
        return Check("FFmpeg", False, "not found: video datasets read slowly", apt_install("ffmpeg"), required=False)
    done = subprocess.run([path, "-version"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        return Check("FFmpeg", False, f"{path} does not run", apt_install("--reinstall ffmpeg"), required=False)
    return Check("FFmpeg", True, " ".join(done.stdout.split()[:3]))


CUDA = """
import json, torch
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
memory = [torch.cuda.get_device_properties(i).total_memory for i in range(len(names))]
if names:
    assert float(torch.ones(8, device="cuda").sum()) == 8.0
print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "names": names, "memory": memory}))
"""


def check_cuda() -> Check:
    """A GPU is optional; one that is there and cannot be used is reported."""
    present = Path("/dev/nvidiactl").exists()
    try:
        answer = probe(CUDA)
    except ProbeError as error:
        if present:
            return Check("GPU", False, f"CUDA fails: {error}", "nvidia-smi  # then update the driver", required=False)
        return Check("GPU", False, f"PyTorch does not load: {error}", setup_fix())
    if answer["names"]:
        gpus = [f"{n} ({m / GIB:.0f} GiB)" for n, m in zip(answer["names"], answer["memory"], strict=True)]
        return Check("GPU", True, f"{', '.join(gpus)}; torch {answer['torch']}, CUDA {answer['cuda']}")
    if present and answer["cuda"] is None:
        return Check("GPU", False, f"torch {answer['torch']} is a CPU build", setup_fix(), required=False)
    if present:
        detail = f"torch {answer['torch']} (CUDA {answer['cuda']}) finds none: the driver may be too old for it"
        return Check("GPU", False, detail, "nvidia-smi  # then update the driver", required=False)
    return Check("GPU", True, f"none: everything runs on the CPU (torch {answer['torch']})")


def check_ros() -> Check:
    """ROS 2 is needed for `deploy` to a real arm only."""
    try:
        probe("import importlib.util, json; print(json.dumps({'found': importlib.util.find_spec('rclpy').origin}))")
    except ProbeError:
        detail = "rclpy is not importable (needed to drive a real arm only)"
        distro = next(iter(sorted(Path("/opt/ros").glob("*/setup.bash"))), None)
        fix = f"source {distro}" if distro else pip_install("ros-rclpy")
        return Check("ROS 2", False, detail, fix, required=False)
    try:
        answer = probe("import json, os, rclpy; print(json.dumps({'distro': os.environ.get('ROS_DISTRO', '')}))")
    except ProbeError as error:
        return Check("ROS 2", False, f"rclpy does not load: {error}", pip_install("--reinstall", "ros-rclpy"), False)
    return Check("ROS 2", True, f"rclpy {installed('ros-rclpy') or answer['distro'] or 'found'}")


def check_disk(path: Path | None = None) -> Check:
    path = path or Path.cwd()
    free = shutil.disk_usage(path).free / GIB
    detail = f"{free:.1f} GiB free in {path}"
    if free < GOOD_DISK:
        detail += f"; a few runs with videos take {GOOD_DISK:.0f}"
    fix = f"du -xh --max-depth=2 {shlex.quote(str(path))} | sort -h | tail  # then delete what you can spare"
    return Check("Disk", free >= GOOD_DISK, detail, fix, required=free < MIN_DISK)


def cgroup_memory() -> float:
    """GiB that a container may use; infinite without a limit."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            limit = (Path("/sys/fs/cgroup") / name).read_text().strip()
        except OSError:
            continue
        if limit.isdigit():
            return int(limit) / GIB
    return float("inf")


def check_memory() -> Check:
    memory = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, value = line.split(":")
        memory[key] = int(value.split()[0]) * 1024 / GIB
    total = min(memory["MemTotal"], cgroup_memory())
    free = min(memory["MemAvailable"], total)
    cores = len(os.sched_getaffinity(0))
    detail = f"{cores} core{'s' if cores > 1 else ''}, {free:.1f} of {total:.1f} GiB available"
    if free < MIN_MEMORY:
        detail += f"; quickstart takes up to {MIN_MEMORY:.0f}"
    fix = "ps -eo rss,pid,comm --sort=-rss | head  # then end what you can spare"
    return Check("Cores, memory", free >= MIN_MEMORY, detail, fix, required=False)


def check_wandb() -> Check:
    """Runs log to files and, offline, to wandb; they upload as they go where the user is logged in."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun"):
        return Check("wandb", True, f"WANDB_MODE={mode}")
    if os.environ.get("WANDB_API_KEY"):
        return Check("wandb", True, "logged in (WANDB_API_KEY)")
    try:
        hosts = netrc.netrc(os.environ.get("NETRC") or None).hosts
    except (OSError, netrc.NetrcParseError):
        hosts = {}
    if any("wandb" in host for host in hosts):
        return Check("wandb", True, "logged in")
    login = f"{shlex.quote(str(Path(sys.executable).parent / 'wandb'))} login"
    return Check("wandb", False, "not logged in: runs are logged offline", login, required=False)


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


# ---- the command -----------------------------------------------------------------------------------------------


def examine(checks: Sequence[Callable[[], Check]] = CHECKS) -> list[Check]:
    """Run all checks at once (most wait for a process of their own); a check that breaks is itself a finding."""

    def safely(check: Callable[[], Check]) -> Check:
        try:
            return check()
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            return Check(name, False, f"the check itself failed: {type(error).__name__}: {error}", setup_fix())

    with ThreadPoolExecutor(len(checks)) as pool:
        return list(pool.map(safely, checks))


def show(checks: Sequence[Check]) -> None:
    """Print a table, then the mending commands unwrapped, to be copied."""
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:  # a broken environment is what a doctor is for
        for check in checks:
            print(f"{check.state:8} {check.name}: {check.detail}" + ("" if check.ok else f"\n         {check.fix}"))
        return
    colours = {"ok": "green", "optional": "yellow", "FAILED": "bold red"}
    table = Table(box=None, pad_edge=False)
    for column in ("", "Check", "Found"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(Text(check.state, colours[check.state]), Text(check.name), Text(check.detail))
    console = Console()
    console.print(table)
    for title, required in (("To mend", True), ("Optional", False)):
        broken = [check for check in checks if not check.ok and check.required is required]
        if broken:
            console.print(Text(f"\n{title}:", "bold"))
        for check in broken:
            console.print(Text(f"  {check.name}: {check.fix}"), soft_wrap=True)


def main(overrides: Sequence[str] = ()) -> int:
    """`robopolicy doctor [json=true]`. Exit code 0 where everything required is there."""
    as_json = False
    for override in overrides:
        key, _, value = override.partition("=")
        if key != "json" or value.lower() not in ("true", "false"):
            raise ConfigError(f"doctor: unknown override {override!r}. {closest(key, ['json=true', 'json=false'])}")
        as_json = value.lower() == "true"
    checks = examine()
    if as_json:
        print(json.dumps([{**asdict(check), "state": check.state} for check in checks], indent=2))
    else:
        show(checks)
    return int(any(check.required and not check.ok for check in checks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
