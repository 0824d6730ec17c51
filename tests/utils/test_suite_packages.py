"""Suites that are missing, of another version, or beside what breaks them: named, with what works."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from robopolicy.core.errors import ConfigError
from robopolicy.doctor import checks, suites
from robopolicy.doctor.probes import ProbeError, probe
from robopolicy.sim.suites.base import needs
from robopolicy.utils import suite_packages
from robopolicy.utils.suite_packages import PACKAGES


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """{distribution: version} that seem to be installed; to be filled."""
    found: dict[str, str] = {}
    for module in (suite_packages, suites):
        monkeypatch.setattr(module, "installed", found.get)
    return found


def test_a_missing_suite_names_the_command(there):
    with (
        pytest.raises(ConfigError, match=r"mani-skill, which is not installed: \./scripts/setup\.sh bench, or"),
        needs("maniskill"),
    ):
        raise AssertionError("imports must not be tried")
    with pytest.raises(ConfigError, match=r"setup\.sh suites, or: .* pip install .*'robopolicy\[pusht\]'"):
        suite_packages.require("pusht")


def test_a_version_that_breaks_is_named_with_the_one_that_works(there):
    there |= {"metaworld": "3.1.1", "mujoco": "3.8.1"}
    with (
        pytest.raises(ConfigError, match=r"metaworld 3\.1\.1 breaks \(ImportError: moved\); 3\.0\.0 works"),
        needs("metaworld"),
    ):
        raise ImportError("moved")
    there["metaworld"] = "3.0.0"
    with pytest.raises(ConfigError, match=r"metaworld 3\.0\.0 does not load \(ImportError: gone\)"), needs("metaworld"):
        raise ImportError("gone")
    with needs("metaworld"):
        pass


def test_what_a_suite_does_not_run_beside_is_named(there):
    there |= {"metaworld": "3.0.0", "mujoco": "4.0.0"}
    with pytest.raises(ConfigError, match=r"does not run beside mujoco 4\.0\.0: it needs mujoco<4, 3\.8\.1 works"):
        suite_packages.require("metaworld")
    there |= {"robosuite": "1.4.0", "mujoco": "3.10.0"}
    assert "needs mujoco<3.10" in suite_packages.misfits("robosuite")[0] and not suite_packages.misfits("metaworld")


def test_a_system_package_is_named_where_a_suite_needs_one(there):
    there["mani-skill"] = "3.0.1"
    with (
        pytest.raises(ConfigError, match=r"libvulkan1, and without a GPU mesa-vulkan-drivers 24\.3 or later"),
        needs("maniskill"),
    ):
        raise ImportError("libvulkan.so.1: cannot open shared object file")


def test_what_works_is_what_is_declared_and_every_suite_has_an_extra():
    from packaging.requirements import Requirement

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for name, package in PACKAGES.items():
        own = [Requirement(r) for r in declared["optional-dependencies"][name]]
        (found,) = [r for r in own if r.name == package.distribution]
        assert found.specifier.contains(package.works), name
        inside = [Requirement(r).name for r in declared["optional-dependencies"][package.setup]]
        assert package.distribution in inside, f"{name}: setup.sh {package.setup} does not install it"


# ---- doctor ----------------------------------------------------------------------------------------------------


def test_doctor_lists_suites(there):
    assert suites.check_suites().ok and "none is installed" in suites.check_suites().detail
    there |= {"metaworld": "3.0.0", "mujoco": "3.8.1"}
    check = suites.check_suites()
    assert check.ok and check.detail.startswith("metaworld 3.0.0 (not: maniskill, ")
    there["metaworld"] = "3.1.1"
    check = suites.check_suites()
    assert check.state == "optional" and check.fix.endswith(" metaworld==3.0.0")
    there |= {"metaworld": "3.0.0", "mujoco": "4.0.0"}
    check = suites.check_suites()
    assert "does not run beside mujoco 4.0.0" in check.detail and check.fix.endswith(" mujoco==3.8.1")


def test_doctor_asks_for_vulkan_only_where_it_is_needed(there, monkeypatch):
    def answers(found):
        def fake(code, env=None):
            if isinstance(found, str):
                raise ProbeError(found)
            return found

        monkeypatch.setattr(suites, "probe", fake)
        return suites.check_vulkan()

    assert answers("must not be asked").ok
    there["mani-skill"] = "3.0.1"
    software = {"device": "llvmpipe", "driver": "Mesa 22.3.6", "mesa": [22, 3], "cpu": True}
    assert "llvmpipe, Mesa 22.3.6: too old" in answers(software).detail
    for better in ({"mesa": [24, 3]}, {"mesa": [25, 0]}, {"cpu": False}, {"mesa": None}):
        assert answers({**software, **better}).ok
    missing = answers("libvulkan.so.1 does not load; the package is libvulkan1")
    assert missing.state == "optional" and missing.fix.endswith("scripts/setup.sh bench")
    monkeypatch.setattr(suites, "in_checkout", lambda: False)
    assert "install -y libvulkan1 mesa-vulkan-drivers" in answers("no driver").fix


def test_a_loader_that_is_missing_is_named():
    code = "import robopolicy.doctor.suites as s; s.LOADER = 'libnone.so.9'; s.vulkan()"
    with pytest.raises(ProbeError, match=r"libnone\.so\.9 does not load .*the package is libvulkan1"):
        probe(code)


@pytest.mark.skipif(checks.installed("mani-skill") is None, reason="set-up brings Vulkan with ./scripts/setup.sh bench")
def test_vulkan_for_real():
    check = suites.check_vulkan()
    assert check.ok, f"{check.detail}; {check.fix}"
