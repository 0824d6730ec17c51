"""Every script in examples/ runs in its small form, in an empty folder."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
LONGEST = {"own_rl_algorithm": 115}  # lines; an algorithm, read from top to bottom
LEFT = {  # what each leaves behind
    "compare_checkpoints": ("rates.svg", "late.mp4", "runs/bc/comparison.json"),
    "deploy_simulated_arm": ("recordings",),
    "own_dataset": ("data/mine/meta/robopolicy.json", "runs/mine/checkpoints"),
    "own_env": ("runs/refined/comparison.json",),
    "own_policy": ("runs/mine/episodes.csv",),
    "own_rl_algorithm": ("runs/residual-s0/checkpoints", "runs/plain_td3-s0/training_seeds.json"),
    "refine_lerobot_policy": ("runs/act/checkpoints/last", "runs/refined/comparison.json"),
}


def test_scripts_are_short_and_listed() -> None:
    assert {s.stem for s in SCRIPTS} == set(LEFT)
    listed = (ROOT / "examples" / "README.md").read_text()
    for script in SCRIPTS:
        assert len(script.read_text().splitlines()) <= LONGEST.get(script.stem, 60), script.name
        assert f"`{script.name}`" in listed


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_script_runs(script: Path, tmp_path: Path, warm_python: list[str]) -> None:
    """The limit is on CPU time, as other load does not count, without the import of the large packages."""
    if script.stem == "refine_lerobot_policy" and importlib.util.find_spec("accelerate") is None:
        pytest.skip("lerobot-train needs accelerate: lerobot[training]")
    used = tmp_path / "cpu_seconds"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "WANDB_MODE": "disabled",
           "WARM_CPU_SECONDS": str(used)}  # fmt: skip
    done = subprocess.run([*warm_python, str(script), "--small"], cwd=tmp_path, env=env, capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert float(used.read_text()) < 32, "more than 16 s of two cores"
    for left in LEFT[script.stem]:
        assert (tmp_path / left).exists(), left
