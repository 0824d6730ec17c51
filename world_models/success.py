"""When an imagined episode has succeeded: a classifier of (window of latents, action), and a threshold with evidence.

It is trained on far more positives than there are in life, so its output is a score, not a probability. What counts is
decided on held-out episodes: an imagined episode succeeds where its score passes the threshold for the first time, so
precision and recall are counted over episodes, in which one false alarm in eighty frames is a false success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.errors import DataError
from robopolicy.networks.mlp import MLP
from robopolicy.schema import Count, Fraction, NonNegative, Positive
from robopolicy.types import ActionSpec, Metrics


class SuccessClassifier(nn.Module):
    """Score that success holds after an action: a contrastive embedding and a linear head on it.

    Loss: cross-entropy plus `contrast` × the supervised contrastive loss (Khosla et al. 2020, eq. 2) at `temperature`.

    Args:
        feature_dim: size of a latent's features.
        window: W latents up to the one acted on; success that must last is not in one of them.
        precision: of episodes, that the threshold shall reach on held-out data.
        min_positives: successful episodes that training needs; a quarter of that for each held-out part.
    """

    threshold: Tensor
    centre: Tensor
    reach: Tensor

    def __init__(
        self,
        feature_dim: int,
        action: ActionSpec,
        *,
        window: Count = 5,
        width: Count = 128,
        depth: Count = 2,
        embedding: Count = 32,
        contrast: NonNegative = 0.1,
        temperature: Positive = 0.2,
        precision: Fraction = 0.97,
        min_positives: Count = 40,
    ) -> None:
        super().__init__()
        self.window, self.contrast, self.temperature = window, contrast, temperature
        self.precision, self.min_positives = precision, min_positives
        self.embed = MLP(window * feature_dim + action.dim, embedding, width=width, depth=depth, norm=True)
        self.head = nn.Linear(embedding, 1)
        low, high = torch.tensor([action.low, action.high])
        finite = torch.isfinite(high - low)
        self.register_buffer("centre", torch.where(finite, (high + low) / 2, 0.0))
        self.register_buffer("reach", torch.where(finite, (high - low) / 2, 1.0))
        self.register_buffer("threshold", torch.tensor(torch.nan))  # on the score; NaN until calibrated

    def forward(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Score [B] and embedding [B embedding] of features [B W F] and actions [B Da]."""
        x = torch.cat([features.flatten(1), (action - self.centre) / self.reach], dim=-1)
        embedding = self.embed(x)
        return (embedding * self.head.weight[0]).sum(-1) + self.head.bias, embedding  # rows alike, bit for bit

    def loss(self, features: Tensor, action: Tensor, label: Tensor) -> tuple[Tensor, Metrics]:
        """Loss of B labelled pairs; `label` [B] is 1 where success held after the action."""
        score, embedding = self(features, action)
        entropy = F.binary_cross_entropy_with_logits(score, label)
        contrast = supervised_contrast(embedding, label, temperature=self.temperature) if self.contrast else entropy * 0
        right = ((score.detach() > 0) == (label > 0.5)).float().mean()
        metrics = {"success_entropy": float(entropy.detach()), "success_right": float(right)}
        return entropy + self.contrast * contrast, metrics

    def check_enough(self, positives: dict[str, int]) -> None:
        """Raise DataError unless the parts of the data ("train", "calibration", "validation") have enough successes."""
        needed = {part: self.min_positives if part == "train" else -(-self.min_positives // 4) for part in positives}
        short = {part: n for part, n in positives.items() if n < needed[part]}
        if short:
            said = ", ".join(f"{needed[part]} for {part} (found {n})" for part, n in short.items())
            raise DataError(
                f"too few successful episodes to learn what success is: needed {said}. Record more episodes that "
                "succeed, change loop.holdout, or lower success.min_positives and read the report with care."
            )


def supervised_contrast(embedding: Tensor, label: Tensor, *, temperature: float) -> Tensor:
    """Mean over samples that have a partner of −mean over partners of log softmax(cosine / temperature)."""
    z = F.normalize(embedding, dim=-1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_p = (z @ z.T / temperature).masked_fill(itself, -torch.inf).log_softmax(-1)
    partner = (label[:, None] == label[None]) & ~itself
    count = partner.sum(-1)
    per_sample = torch.where(partner, log_p, 0.0).sum(-1) / count.clamp_min(1)
    return -per_sample.sum() / (count > 0).sum().clamp_min(1)


@dataclass(frozen=True)
class Verdict:
    """How a threshold separates E episodes by their highest score."""

    threshold: float
    precision: float
    recall: float
    predicted: float  # share of episodes called successes
    actual: float
    episodes: int
    positives: int

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def verdict(score: Tensor, success: Tensor, threshold: float) -> Verdict:
    """Precision and recall over episodes: highest `score` [E] above `threshold` against `success` [E] bool."""
    called = score > threshold
    hits, n = int((called & success).sum()), len(score)
    return Verdict(
        threshold,
        precision=hits / max(1, int(called.sum())),
        recall=hits / max(1, int(success.sum())),
        predicted=int(called.sum()) / max(1, n),
        actual=int(success.sum()) / max(1, n),
        episodes=n,
        positives=int(success.sum()),
    )


def choose_threshold(score: Tensor, success: Tensor, precision: float) -> float:
    """The threshold between two scores [E] that reaches `precision` with the most recall, amid all that do as well.

    Where none reaches it, the one with the highest precision.
    """
    edges = score.double().unique()
    middle = torch.cat([edges[:1] - 1.0, (edges[1:] + edges[:-1]) / 2])
    found = [verdict(score, success, float(t)) for t in middle]
    good = [v for v in found if v.precision >= precision and v.recall > 0] or [
        v for v in found if v.precision == max(f.precision for f in found)
    ]
    most = [v.threshold for v in good if v.recall == max(g.recall for g in good)]
    return most[len(most) // 2]
