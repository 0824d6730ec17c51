"""Refine a policy of LeRobot by reinforcement learning.

python refine_lerobot_policy.py                       # trains a small ACT first, by the stock lerobot-train
python refine_lerobot_policy.py outputs/train/my_act  # one of your own for the task pick, or hub:<owner>/<name>
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import robopolicy as rp

SMALL = "--small" in sys.argv  # shows that it runs, and learns nothing
TASK, DATA = "pick", "data/pick"
ACT = {
    "policy.type": "act", "policy.device": "cpu", "policy.push_to_hub": "false", "policy.chunk_size": 8,
    "policy.n_action_steps": 4, "policy.dim_model": 64, "policy.n_heads": 4, "policy.dim_feedforward": 256,
    "policy.n_encoder_layers": 2, "policy.n_vae_encoder_layers": 2, "steps": 2 if SMALL else 3_000,
    "batch_size": 4 if SMALL else 64, "num_workers": 0, "prefetch_factor": "null", "persistent_workers": "false",
}  # fmt: skip


def train_act(out: str) -> str:
    """Train an ACT on the demonstrations, as LeRobot's users do."""
    where = {"dataset.repo_id": "local/pick", "dataset.root": DATA, "output_dir": out}
    options = [f"--{key}={value}" for key, value in {**where, **ACT}.items()]
    subprocess.run([sys.executable, "-m", "lerobot.scripts.lerobot_train", *options], check=True)
    return out


given = [word for word in sys.argv[1:] if word != "--small"]
if not Path(DATA).exists():
    rp.demos(DATA, task=TASK, episodes=4 if SMALL else 40, expert_noise=0.5)
base = given[0] if given else "runs/act" if Path("runs/act").exists() else train_act("runs/act")

small = {"loop": {"total_steps": 200, "warmup_steps": 100, "critic_only_updates": 5}, "validation_episodes": 4}
rp.train(
    "runs/refined", algo="residual", base=base, task=TASK, dataset=DATA, tracker="local", **(small if SMALL else {})
)
result = rp.compare(base, "runs/refined", task=TASK, episodes=4 if SMALL else 500)
print("refined minus base:", result.difference)
