"""Every page in docs/bring_your_own, and docs/lerobot.md, runs as it stands, in an empty directory.

```python blocks of a page are one script, in order. A block with `title="some/file"` after its language is saved under
that name instead. A ```bash block runs what came before it, then itself.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from scripts.promise_list import programs

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs" / "bring_your_own").glob("*.md")), ROOT / "docs" / "lerobot.md"]
COMMANDS = {"robopolicy": "robopolicy.cli.main", "lerobot-train": "lerobot.scripts.lerobot_train",
            "lerobot-eval": "lerobot.scripts.lerobot_eval"}  # fmt: skip


def test_there_are_pages() -> None:
    assert {p.stem for p in PAGES} >= {"algorithm", "dataset", "gym_env", "policy", "task"}


@pytest.mark.parametrize("name", ["own_rl_algorithm.py", "configs/algo/plain_td3.yaml"])
def test_the_page_shows_the_example(name: str) -> None:
    blocks = dict(programs((ROOT / "docs" / "bring_your_own" / "algorithm.md").read_text(encoding="utf-8")))
    assert blocks[name] == (ROOT / "examples" / name).read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_page_runs(page: Path, tmp_path: Path, warm_python: list[str]) -> None:
    if page.stem == "lerobot" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("lerobot-train needs accelerate: lerobot[training]")
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "disabled",
    }
    python = shlex.join(warm_python)
    prelude = "set -e\n" + "".join(f'{name}() {{ {python} -m {module} "$@"; }}\n' for name, module in COMMANDS.items())
    ran = 0
    for kind, code in programs(page.read_text()):
        if kind not in ("python", "bash"):
            (tmp_path / kind).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / kind).write_text(code)
            continue
        program = tmp_path / f"{page.stem}_md"
        program.write_text(code if kind == "python" else prelude + code)
        command = [*(warm_python if kind == "python" else ["bash"]), str(program)]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{page.name} (python: lines are the page's):\n{code}\n{done.stderr[-4000:]}"
        ran += 1
    assert ran, f"{page.name} has nothing to run"


def test_blocks_keep_their_lines_and_order() -> None:
    page = (
        '# T\n```python title="b/a.py"\nx = 1\n```\n```python\ny = 2\n```\n```text\nno\n```\n'
        "```bash\nls\n```\n```python\nz\n```\n"
    )
    assert list(programs(page)) == [
        ("b/a.py", "x = 1\n"),
        ("python", "\n" * 5 + "y = 2\n"),
        ("bash", "ls\n"),
        ("python", "\n" * 14 + "z\n"),
    ]
