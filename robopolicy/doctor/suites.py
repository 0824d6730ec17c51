"""Third-party suites: what is installed, what fits, and Vulkan, which ManiSkill wants even for state observations."""

from __future__ import annotations

import ctypes
import json
import shlex

from robopolicy.doctor.checks import ROOT, Check, apt_install, in_checkout, pip_install
from robopolicy.doctor.probes import ProbeError, probe
from robopolicy.suite_packages import PACKAGES, installed, misfits

LOADER = "libvulkan.so.1"
MESA = (24, 3)  # the first whose software device runs ManiSkill
_INSTANCE_INFO = 1  # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO
_CPU = 4  # VK_PHYSICAL_DEVICE_TYPE_CPU
_TRY = "from robopolicy.doctor.suites import vulkan; vulkan()"


def check_suites() -> Check:
    """Versions against those that were measured to work."""
    found = {name: installed(package.distribution) for name, package in PACKAGES.items()}
    there = [f"{PACKAGES[name].distribution} {version}" for name, version in found.items() if version]
    detail = ", ".join(there) or "none is installed"
    beside = [sentence for name, version in found.items() if version for sentence in misfits(name)]
    if beside:
        fix = pip_install(*sorted({f"'{o}=={m}'" for n, v in found.items() if v for o, _, m in PACKAGES[n].beside}))
        return Check("Task suites", False, "; ".join(beside), fix, required=False)
    other = {n: v for n, v in found.items() if v and v != PACKAGES[n].works}
    if other:
        detail += "; measured to work: " + ", ".join(f"{PACKAGES[n].distribution} {PACKAGES[n].works}" for n in other)
        fix = pip_install(*(f"'{PACKAGES[n].distribution}=={PACKAGES[n].works}'" for n in other))
        return Check("Task suites", False, detail, fix, required=False)
    missing = [name for name, version in found.items() if version is None]
    return Check("Task suites", True, detail + (f" (not: {', '.join(missing)})" if missing else ""))


def check_vulkan() -> Check:
    """A Vulkan device, where ManiSkill is installed."""
    if installed(PACKAGES["maniskill"].distribution) is None:
        return Check("Vulkan", True, "not needed: ManiSkill is not installed")
    fix = f"{shlex.quote(str(ROOT / 'scripts' / 'setup.sh'))} bench" if in_checkout() else ""
    fix = fix or apt_install("libvulkan1 mesa-vulkan-drivers") + "  # Debian 12: with -t bookworm-backports"
    try:
        answer = probe(_TRY)
    except ProbeError as error:
        return Check("Vulkan", False, f"ManiSkill needs it: {error}", fix, required=False)
    name, version = answer["device"], ".".join(map(str, answer["driver"]))
    if answer["cpu"] and tuple(answer["driver"][:2]) < MESA:
        detail = f"{name}: Mesa {version} is too old for ManiSkill without a GPU; 24.3 is needed"
        return Check("Vulkan", False, detail, fix, required=False)
    return Check("Vulkan", True, f"{name}, driver {version}")


def vulkan() -> None:
    """Print the first physical device. Runs in a process of its own: drivers may crash it."""
    try:
        loader = ctypes.CDLL(LOADER)
    except OSError as error:
        raise SystemExit(f"{LOADER} does not load ({error}); the package is libvulkan1") from None
    info = (ctypes.c_uint64 * 8)()  # VkInstanceCreateInfo without layers or extensions
    ctypes.cast(info, ctypes.POINTER(ctypes.c_uint32))[0] = _INSTANCE_INFO
    instance = ctypes.c_void_p()
    code = loader.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if code:
        raise SystemExit(f"no Vulkan driver ({code}); without a GPU the package is mesa-vulkan-drivers")
    count = ctypes.c_uint32()
    loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
    if not count.value:
        raise SystemExit("no Vulkan device; without a GPU the package is mesa-vulkan-drivers")
    devices = (ctypes.c_void_p * count.value)()
    loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    facts = ctypes.create_string_buffer(4096)  # VkPhysicalDeviceProperties is 824 bytes
    loader.vkGetPhysicalDeviceProperties(ctypes.c_void_p(devices[0]), facts)
    words = ctypes.cast(facts, ctypes.POINTER(ctypes.c_uint32))
    driver, kind = words[1], words[4]
    name = facts.raw[20:276].split(b"\0")[0].decode(errors="replace")
    version = [driver >> 22, (driver >> 12) & 0x3FF, driver & 0xFFF]
    print(json.dumps({"device": name, "driver": version, "cpu": kind == _CPU}))
