"""DPPO with a supervised loss on demonstrations, against forgetting (RLinf-Co).

Reinforcement in one env may degrade skills that this env never requires: other tasks, real images, the demonstrated
style of motion. So every gradient step also imitates a batch of real or held-out demonstrations.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.algos.dppo import DPPO, DenoisingSamples
from robopolicy.config.schema import Count, Positive
from robopolicy.core.errors import CheckpointError, ConfigError
from robopolicy.core.rng import step_seed
from robopolicy.core.types import Metrics
from robopolicy.datasets.batches import Batches
from robopolicy.datasets.episodes import Episodes
from robopolicy.policies.base import use_tasks
from robopolicy.policies.denoising import ChunkDenoiser
from robopolicy.policies.normalizer import ACTION


class CoDPPO(DPPO):
    """DPPO's loss plus `supervised` · the policy's imitation loss at the fine-tuned steps, on batches of `episodes`.

    The base's encoder is frozen; images are not augmented.

    Args:
        episodes: demonstrations of skills that must not be forgotten. A policy that reads instructions reads the
            dataset's; one that identifies tasks by number needs the env's tasks.
        supervised: weight of the imitation loss. data_batch: frames of a batch, one a gradient step (or piece of one).
        **options: see DPPOConfig.

    Raises:
        SpecError: data and policy do not fit.
        ConfigError: the data are fewer than a batch.
    """

    across_ranks = False  # every rank would have to draw the same batches of data

    def __init__(
        self,
        policy: ChunkDenoiser,
        episodes: Episodes,
        *,
        supervised: Positive = 0.1,
        data_batch: Count = 256,
        **options: Any,
    ) -> None:
        super().__init__(policy, **options)
        if episodes.num_frames < data_batch:
            raise ConfigError(f"algo.data_batch={data_batch}: the dataset has only {episodes.num_frames} frames")
        self.batches = Batches(
            episodes, policy.spec, batch_size=data_batch, seed=self.config.seed, device=self.clip.device
        )
        self.denoiser, self.tasks, self.supervised, self.drawn = policy, episodes.tasks, supervised, 0
        with use_tasks(policy, self.tasks):  # raises here if the policy cannot follow them
            pass
        self.losses: list[Tensor] = []  # of the update under way

    def loss(self, batch: DenoisingSamples, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Add the weighted imitation loss of the next batch of data to DPPO's loss of samples `rows` [B]; see STATS."""
        loss, stats = super().loss(batch, rows)
        imitation = self.imitation(self.drawn)
        self.drawn += 1
        self.losses.append(imitation.detach())
        return loss + self.supervised * imitation, stats

    def imitation(self, number: int) -> Tensor:
        """Compute the imitation loss [] on batch `number`; its noise is a function of that number and the seed."""
        data, policy = self.batches[number], self.denoiser
        action = policy.normalizer.normalize(ACTION, data[ACTION])
        with torch.no_grad(), use_tasks(policy, self.tasks):
            cond = policy.encode(data)
        generator = torch.Generator().manual_seed(step_seed(self.batches.seed, number, stream=2))
        k = torch.randint(self.steps, (len(action),), generator=generator).to(action.device)
        noise = torch.randn(action.shape, generator=generator).to(action)
        return policy.finetuned_loss(cond, action, ~data["action_is_pad"], k=k, noise=noise)

    def update(self, batch: DenoisingSamples, *, progress: float) -> Metrics:
        """See DPPO; `imitation` is the mean loss on the data."""
        self.losses = []
        found = super().update(batch, progress=progress)
        return found | ({"imitation": float(torch.stack(self.losses).mean())} if self.losses else {})

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "drawn": self.drawn, "recorded": len(self.batches.action)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state.

        Raises:
            CheckpointError: the dataset is another one.
        """
        frames = len(self.batches.action)
        if state.get("recorded", frames) != frames:  # older checkpoints have none
            raise CheckpointError(
                f"dataset: holds {frames} frames, and the run began with {state['recorded']}. Restore it, or give a "
                "new run_dir."
            )
        super().load_state_dict(state)
        self.drawn = int(state["drawn"])
