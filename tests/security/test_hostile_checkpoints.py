"""scripts/hostile_checkpoints.py in small, and what its checker must notice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from robopolicy.core.errors import RobopolicyError
from robopolicy.runs.checkpointer import load_policy, save_policy
from robopolicy.utils.storage import write_manifest
from scripts.hostile_inputs import KINDS, policy

ROOT = Path(__file__).parents[2]
QUICK = (
    "policy_gaussian", "policy_residual", "policy_flow", "run_config", "run_files", "run_state", "world", "recording",
    "robot", "wire",
)  # fmt: skip


def test_nothing_runs_nothing_changes_outside_and_every_error_is_ours() -> None:
    command = [sys.executable, "scripts/hostile_checkpoints.py", "--count", "300", "--jobs", "0", "--kinds", *QUICK]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["metric"]: row["value"] for row in map(json.loads, done.stdout.splitlines()[-4:])}
    assert found == {"cases": 300, "processes_started": 0, "files_outside": 0, "foreign_exceptions": 0}


HARMFUL = """
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from scripts.hostile_checkpoints import Watch
folder, watch = Path({folder!r}), Watch()
(folder / "case").mkdir()
watch.inside = folder / "case"
{attack}
watch.inside = None
print(len(watch.processes), len(watch.outside))
"""


@pytest.mark.parametrize(
    ("attack", "processes", "outside"),
    [
        ("subprocess.run(['true'])", 1, 0),
        ("os.system('true')", 1, 0),
        ("os.posix_spawn('/bin/true', ['true'], {})", 1, 0),
        ("sys.audit('socket.getaddrinfo', 'example.org', 443, 0, 0, 0)", 1, 0),
        ("sys.audit('socket.getaddrinfo', '127.0.0.1', 443, 0, 0, 0)", 0, 0),
        ("sys.audit('urllib.Request', 'file:///x', None, {}, 'GET')", 1, 0),
        ("(folder / 'x').write_text('x')", 0, 1),
        ("(folder / 'case' / 'x').write_text('x')", 0, 0),
        ("(folder / 'case' / '..' / 'x').mkdir()", 0, 1),
        ("os.symlink(folder, folder / 'case' / 'l'); (folder / 'case' / 'l' / 'x').touch()", 0, 2),
        ("(folder / 'case' / 'x').touch(); os.remove('x', dir_fd=os.open(folder / 'case', os.O_RDONLY))", 0, 0),
        ("(folder / 'case' / 'd').mkdir(); os.rmdir('case/d', dir_fd=os.open(folder, os.O_RDONLY))", 0, 0),
    ],
)
def test_the_checker_sees_what_is_done(tmp_path: Path, attack: str, processes: int, outside: int) -> None:
    code = HARMFUL.format(root=str(ROOT), folder=str(tmp_path), attack=attack)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    started, touched = map(int, done.stdout.split())
    assert (started > 0) == (processes > 0)
    assert (touched > 0) == (outside > 0)


@pytest.mark.parametrize(
    "node",
    [
        {"_target_": "subprocess.call", "args": ["touch", "{out}"]},
        {"_target_": "robopolicy.config.instantiate.allow", "package": "subprocess"},
        {"_target_": "robopolicy.config.registry.allow", "module": "subprocess"},
        {"_target_": "robopolicy.utils.atomic.write_atomically", "path": "{out}", "data": "x"},
        {"_target_": "os.system", "command": "touch {out}"},
        {"_target_": "tracker", "run_dir": "{out}"},
    ],
)
@pytest.mark.parametrize("place", ["node", "network", "base", "option"])
def test_a_checkpoint_calls_nothing(tmp_path: Path, node: dict[str, Any], place: str) -> None:
    out = tmp_path / "out"
    node = json.loads(json.dumps(node).replace("{out}", str(out)))
    folder = save_policy(policy("residual"), tmp_path / "p")
    inner = folder / "base" if place in ("base", "network") else folder
    data = json.loads((inner / "policy.json").read_text())
    if place in ("node", "base"):
        data["node"] = node
    else:
        data["node"]["network" if place == "network" else "scale"] = node
    (inner / "policy.json").write_text(json.dumps(data))
    write_manifest(folder / "base")
    write_manifest(folder)
    with pytest.raises(RobopolicyError, match=r"policy\.json"):
        load_policy(folder)
    assert not out.exists()


def test_links_and_pipes_in_a_checkpoint_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    for name in ("policy.json", "spec.json", "model.safetensors", "base/policy.json"):
        for make in (os.mkfifo, lambda path: path.symlink_to(tmp_path / "other")):
            folder = save_policy(policy("residual"), tmp_path / f"p{len(list(tmp_path.iterdir()))}")
            (folder / name).unlink()
            make(folder / name)
            with pytest.raises(RobopolicyError, match=name.rpartition("/")[2]):
                load_policy(folder)


def test_every_kind_of_input_is_attacked() -> None:
    assert set(QUICK) <= set(KINDS)
