"""An exported policy, run by LeRobot: the executors, histories and noise of our own evaluation inside its interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

from robopolicy.core.errors import CheckpointError, SpecError, closest
from robopolicy.core.specs import check_features
from robopolicy.core.types import BASE_ACTION, TASK, Feature, Obs
from robopolicy.core.untrusted import read_json
from robopolicy.envs.chunk_executor import ChunkExecutor
from robopolicy.lerobot_plugin.configuration_robopolicy import RobopolicyConfig
from robopolicy.policies.base import Policy, with_bases
from robopolicy.policies.io import load_policy
from robopolicy.policies.lerobot.config import decode
from robopolicy.policies.lerobot.find import CONFIG, download

_TRAINED = "policies of type 'robopolicy' are trained by `robopolicy train`, not by lerobot-train"

_SLACK = 1e-3  # of pictures; less than half a level


def _config(folder: Path) -> RobopolicyConfig:
    """config.json, read as other files of strangers are; LeRobot's own reader has no bounds."""
    config = decode(read_json(folder / CONFIG))
    if not isinstance(config, RobopolicyConfig):
        raise CheckpointError(f"{folder}/{CONFIG}: type: expected 'robopolicy', found {config.type!r}")
    return config


class RobopolicyPolicy(PreTrainedPolicy):
    """Batches of N envs, one episode each between two calls of `reset`.

    LeRobot does not tell a policy the seeds of its episodes. Noise is keyed by numbers that `reset` has drawn from
    torch's global generator, which LeRobot's commands seed (`--seed`).
    """

    config_class = RobopolicyConfig
    name = "robopolicy"

    def __init__(self, config: RobopolicyConfig, policy: Policy | None = None, **_: Any) -> None:
        super().__init__(config)
        if policy is None:
            raise CheckpointError(f"{_TRAINED}; give --policy.path=<directory of `robopolicy export`>")
        self.policy = policy
        self.chain = with_bases(policy)[::-1]  # the lowest base first
        self.reset()

    @classmethod
    def from_pretrained(
        cls, pretrained_name_or_path: str | Path, *, config: RobopolicyConfig | None = None,
        revision: str | None = None, **_: Any,
    ) -> RobopolicyPolicy:  # fmt: skip
        """From a directory of `robopolicy export`, or the hub's copy of one."""
        folder = Path(pretrained_name_or_path)
        if not folder.is_dir():
            folder = download(f"{pretrained_name_or_path}" + (f"@{revision}" if revision else ""))
        config = config or _config(folder)
        return cls(config, load_policy(folder / "policy", device=str(config.device))).eval()

    def reset(self) -> None:
        """New episodes everywhere."""
        self._executors: list[ChunkExecutor] = []
        self._frames: Obs = {}

    @torch.no_grad()
    def select_action(self, batch: dict[str, Any], **_: Any) -> Tensor:
        """The next action [N Da], physical units, for single frames [N ...]."""
        frame = self._observation(batch)
        count = len(next(iter(frame.values())))
        if not self._executors:
            device = next(iter(frame.values())).device
            self._executors = [ChunkExecutor(policy, count, device=device) for policy in self.chain]
            self._seeds = torch.randint(2**40, (count,)).to(device)
            length = max(policy.spec.n_obs_steps for policy in self.chain)
            self._frames = {k: v[:, None].repeat_interleave(length, dim=1) for k, v in frame.items()}
        else:
            self._frames = {k: torch.cat([old[:, 1:], frame[k][:, None]], dim=1) for k, old in self._frames.items()}
        obs = dict(self._frames)
        for executor in self._executors:
            obs[BASE_ACTION] = executor.next_action(obs, self._seeds)
        return obs[BASE_ACTION]

    def predict_action_chunk(self, batch: dict[str, Tensor], **_: Any) -> Tensor:
        raise NotImplementedError("a 'robopolicy' policy keeps its own chunks; call select_action at every step")

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict | None]:
        raise NotImplementedError(_TRAINED)

    def get_optim_params(self) -> dict:
        raise NotImplementedError(_TRAINED)

    def _observation(self, batch: dict[str, Any]) -> Obs:
        """Our features [N ...] of LeRobot's batch, whose pictures are floats in 0 … 1, or uint8.

        Raises:
            SpecError: the env does not offer what the policies read (all differences are listed), or pictures of other
                numbers.
        """
        needed: dict[str, Feature] = {}
        for policy in self.chain:
            needed |= {k: f for k, f in policy.spec.observation.items() if k not in (BASE_ACTION, TASK)}
        obs, offered = {}, {}
        for key, value in batch.items():
            if isinstance(value, Tensor) and key.startswith("observation."):
                picture = needed.get(key) is not None and needed[key].dtype == "uint8"
                obs[key] = _picture(key, value) if picture else value.float()
                offered[key] = Feature(tuple(value.shape[1:]), "uint8" if picture else "float32")
        problems = check_features(needed, offered, needs="the policy", offers="the env")
        if problems:
            raise SpecError("policy and environment do not fit:\n  - " + "\n  - ".join(problems))
        found = {k: obs[k] for k in needed}
        if any(TASK in policy.spec.observation for policy in self.chain):
            tasks, count = self.policy.spec.tasks, len(next(iter(found.values())))
            texts = batch.get("task") or ""
            texts = [texts] * count if isinstance(texts, str) else texts  # LeRobot's robot commands give one text
            for text in texts:
                if text not in tasks:
                    raise SpecError(f"task: the policy knows no instruction {text!r}. {closest(text, tasks)}")
            device = next(iter(found.values())).device
            found[TASK] = torch.tensor([tasks.index(t) for t in texts], device=device)
        return found


def _picture(key: str, value: Tensor) -> Tensor:
    """Return pictures as uint8; raises SpecError for floats beyond 0 … 1, which uint8 would wrap around."""
    if value.dtype == torch.uint8:
        return value
    low, high = float(value.min()), float(value.max())
    if not (low >= -_SLACK and high <= 1.0 + _SLACK):
        raise SpecError(
            f"{key!r}: expected pictures of floats in 0 … 1, or of uint8, found {low:.4g} to {high:.4g}. Leave out the "
            "step that normalises them: the policy does that itself."
        )
    return (value * 255.0).round().to(torch.uint8)
