"""Check MuJoCo Warp, which steps the native tasks on a GPU."""

from __future__ import annotations

from pathlib import Path

from robopolicy.doctor.checks import RUN, UPDATE_DRIVER, Check
from robopolicy.doctor.fixes import pip_install
from robopolicy.doctor.probes import ProbeError, probe
from robopolicy.utils.suite_packages import installed

PACKAGES = ("mujoco-warp>=3.9,<4", "warp-lang>=1.19")  # the extra `warp`


def check_warp() -> Check:
    """Check the packages and the GPU of `task.physics=warp`."""
    gpu = Path("/dev/nvidiactl").exists()
    found = {name: installed(name) for name in ("mujoco-warp", "warp-lang")}
    if None in found.values():
        fix = pip_install(*PACKAGES) if gpu else ""
        return Check("MuJoCo Warp", not gpu, "not installed: native tasks run on the CPU", fix, required=False)
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    try:
        devices = probe(RUN.format("warp"))["cuda"]
    except ProbeError as error:
        return Check(
            "MuJoCo Warp", False, f"{versions}: does not load: {error}", pip_install(*PACKAGES), required=False
        )
    if devices:
        return Check("MuJoCo Warp", True, f"{versions}; {', '.join(devices)}")
    detail = f"{versions}; no CUDA device for task.physics=warp"
    return Check("MuJoCo Warp", not gpu, detail, UPDATE_DRIVER if gpu else "", required=False)
