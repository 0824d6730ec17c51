"""`robopolicy doctor`: check this machine, and print the command that fixes each fault.

checks.py asks the machine, each check answering with one `Check`; probes.py tries what may crash a process in a
process of its own, so that the doctor outlives its patients.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from robopolicy.core.errors import UsageError, closest
from robopolicy.doctor.checks import CHECKS, Check
from robopolicy.doctor.fixes import setup_fix
from robopolicy.doctor.suites import check_suites, check_vulkan
from robopolicy.doctor.warp import check_warp


def examine(checks: Sequence[Callable[[], Check]] = (*CHECKS, check_suites, check_vulkan, check_warp)) -> list[Check]:
    """Run all checks in parallel (most wait for a process); a check that raises is a finding."""

    def safely(check: Callable[[], Check]) -> Check:
        try:
            return check()
        except Exception as error:
            name = check.__name__.removeprefix("check_")
            return Check(name, False, f"the check itself failed: {type(error).__name__}: {error}", setup_fix())

    with ThreadPoolExecutor(len(checks)) as pool:
        return list(pool.map(safely, checks))


def show(checks: Sequence[Check]) -> None:
    """Print a table, then the fixes unwrapped, ready to copy."""
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
            raise UsageError(f"doctor: unknown override {override!r}. {closest(key, ['json=true', 'json=false'])}")
        as_json = value.lower() == "true"
    checks = examine()
    if as_json:
        print(json.dumps([{**asdict(check), "state": check.state} for check in checks], indent=2))
    else:
        show(checks)
    return int(any(check.required and not check.ok for check in checks))
