"""Check third-party suites: versions, and Vulkan, which ManiSkill needs even for state observations."""

from __future__ import annotations

import ctypes
import json
import re
import shlex
from typing import Any, ClassVar

from robopolicy.doctor.checks import Check
from robopolicy.doctor.fixes import ROOT, apt_install, in_checkout, pip_install
from robopolicy.doctor.probes import ProbeError, probe
from robopolicy.utils.suite_packages import PACKAGES, installed, misfits

LOADER = "libvulkan.so.1"
MESA = (24, 3)  # the first whose software device runs ManiSkill
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_TRY = "from robopolicy.doctor.suites import vulkan; vulkan()"


def check_suites() -> Check:
    """Compare installed versions with the tested ones."""
    found = {name: installed(package.distribution) for name, package in PACKAGES.items()}
    there = [f"{PACKAGES[name].distribution} {version}" for name, version in found.items() if version]
    detail = ", ".join(there) or "none is installed"
    beside = [sentence for name, version in found.items() if version for sentence in misfits(name)]
    if beside:
        fix = pip_install(*sorted({f"{o}=={m}" for n, v in found.items() if v for o, _, m in PACKAGES[n].beside}))
        return Check("Task suites", False, "; ".join(beside), fix, required=False)
    other = {n: v for n, v in found.items() if v and v not in (PACKAGES[n].works, PACKAGES[n].also)}
    if other:
        detail += "; measured to work: " + ", ".join(f"{PACKAGES[n].distribution} {PACKAGES[n].works}" for n in other)
        fix = pip_install(*(f"{PACKAGES[n].distribution}=={PACKAGES[n].works}" for n in other))
        return Check("Task suites", False, detail, fix, required=False)
    missing = [name for name, version in found.items() if version is None]
    return Check("Task suites", True, detail + (f" (not: {', '.join(missing)})" if missing else ""))


def check_vulkan() -> Check:
    """Check for a Vulkan device, where ManiSkill is installed."""
    if installed(PACKAGES["maniskill"].distribution) is None:
        return Check("Vulkan", True, "not needed: ManiSkill is not installed")
    fix = f"{shlex.quote(str(ROOT / 'scripts' / 'setup.sh'))} bench" if in_checkout() else ""
    fix = fix or apt_install("libvulkan1 mesa-vulkan-drivers") + "  # Debian 12: with -t bookworm-backports"
    try:
        answer = probe(_TRY)
    except ProbeError as error:
        return Check("Vulkan", False, f"ManiSkill needs it: {error}", fix, required=False)
    found = f"{answer['device']}, {answer['driver']}"
    if answer["cpu"] and answer["mesa"] is not None and tuple(answer["mesa"]) < MESA:
        detail = f"{found}: too old for ManiSkill without a GPU; Mesa 24.3 is needed"
        return Check("Vulkan", False, detail, fix, required=False)
    return Check("Vulkan", True, found)


class _Chained(ctypes.Structure):
    """Head of every structure of Vulkan that can be extended."""

    _fields_: ClassVar[Any] = (("kind", ctypes.c_int32), ("following", ctypes.c_void_p))


class _Application(_Chained):  # VkApplicationInfo
    _fields_ = (("name", ctypes.c_char_p), ("version", ctypes.c_uint32), ("engine", ctypes.c_char_p),
                ("engine_version", ctypes.c_uint32), ("api", ctypes.c_uint32))  # fmt: skip


class _Instance(_Chained):  # VkInstanceCreateInfo without layers or extensions
    _fields_ = (
        ("flags", ctypes.c_uint32),
        ("application", ctypes.POINTER(_Application)),
        ("none", ctypes.c_uint64 * 4),
    )


class _Driver(_Chained):  # VkPhysicalDeviceDriverProperties
    _fields_ = (("id", ctypes.c_int32), ("name", ctypes.c_char * 256), ("info", ctypes.c_char * 256),
                ("conformance", ctypes.c_uint8 * 4))  # fmt: skip


class _Device(_Chained):  # VkPhysicalDeviceProperties2; `rest` is longer than the 548 bytes that are left
    _fields_ = (("api", ctypes.c_uint32), ("driver", ctypes.c_uint32), ("vendor", ctypes.c_uint32),
                ("device", ctypes.c_uint32), ("type", ctypes.c_int32), ("name", ctypes.c_char * 256),
                ("rest", ctypes.c_uint64 * 128))  # fmt: skip


def vulkan() -> None:
    """Print the first physical device. Runs in a separate process: drivers may crash."""
    try:
        loader = ctypes.CDLL(LOADER)
    except OSError as error:
        raise SystemExit(f"{LOADER} does not load ({error}); the package is libvulkan1") from None
    # Vulkan 1.2: from there on drivers say their version in words.
    application = _Application(kind=0, api=(1 << 22) | (2 << 12))
    info, instance = _Instance(kind=1, application=ctypes.pointer(application)), ctypes.c_void_p()
    code = loader.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if code:
        raise SystemExit(f"no Vulkan driver ({code}); without a GPU the package is mesa-vulkan-drivers")
    count = ctypes.c_uint32()
    loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    if not count.value:
        raise SystemExit("no Vulkan device; without a GPU the package is mesa-vulkan-drivers")
    devices = (ctypes.c_void_p * count.value)()
    loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    driver = _Driver(kind=1000196000)
    device = _Device(kind=1000059001, following=ctypes.addressof(driver))
    loader.vkGetPhysicalDeviceProperties2(ctypes.c_void_p(devices[0]), ctypes.byref(device))
    mesa = re.search(r"Mesa (\d+)\.(\d+)", driver.info.decode(errors="replace"))
    print(json.dumps({
        "device": device.name.decode(errors="replace"), "driver": driver.info.decode(errors="replace"),
        "mesa": [int(n) for n in mesa.groups()] if mesa else None, "cpu": device.type == _CPU,
    }))  # fmt: skip
