"""Classify success from a window of latents, with a threshold that is calibrated on held-out episodes.

A task counts as done after an unknown number of steps. So one network scores every latent, and a window has the lowest
of these scores, with a learned allowance for older latents. A dataset lacks the state after an episode's last action;
the model's likeliest successor replaces it, in training and later.

Without negative examples a classifier accepts unseen states: if every closed hand above the table holds a cube, an
empty hand resembles success too, and a policy in imagination exploits that. So a second network separates recorded
successes from mixtures with numbers of other states; a window unlike recorded successes is no success.

Training uses more positives than the data has, so the output is a score, not a probability. An imagined episode
ends in success where its score first passes the threshold. Precision and recall are therefore counted over held-out
episodes: one false alarm in eighty frames is a false success. That holds for an episode that succeeds later, too: in
imagination an early alarm ends it with reward 1, so it counts as false.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robopolicy.config.schema import Count, Fraction, NonNegative, Positive
from robopolicy.core.errors import DataError
from robopolicy.core.types import Metrics
from robopolicy.networks.mlp import MLP

_FASTER = 10.0  # step size of few parameters that move further than weights
_UNLIKE = -1e4  # below any score


class Lasting(nn.Module):
    """Score windows [B W+1 F] by the lowest score of their states, with a learned allowance for older ones."""

    def __init__(self, feature_dim: int, *, window: int, width: int, depth: int, embedding: int) -> None:
        super().__init__()
        self.embed = MLP(feature_dim, embedding, width=width, depth=depth, norm=True)
        self.head = nn.Linear(embedding, 1)
        self.age = nn.Parameter(torch.zeros(window))  # oldest first: allowance of each further step

    def each(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Score [...] of every state by itself, features [... F], and its embedding [... embedding]."""
        embedding = self.embed(features)
        return (embedding * self.head.weight[0]).sum(-1) + self.head.bias, embedding  # rows alike, bit for bit

    def lowest(self, each: Tensor) -> Tensor:
        """Score [B] of windows whose states have the scores [B W+1]."""
        steps = F.softplus(_FASTER * self.age)
        let_off = torch.cat([steps.flip(0).cumsum(0).flip(0), steps.new_zeros(1)])
        return (each + let_off).amin(-1)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Score [B], and embedding [B embedding] of the newest."""
        each, embedding = self.each(features)
        return self.lowest(each), embedding[:, -1]


class SuccessClassifier(nn.Module):
    """Score that success holds at the end of a window, and whether it looks like a success at all.

    Loss: cross-entropy plus `contrast` × the supervised contrastive loss (Khosla et al. 2020, eq. 2) of the newest
    latents at `temperature`, plus the cross-entropy of telling successes from mixtures.

    Args:
        feature_dim: size of a latent's features.
        window: W latents before the newest; success may have to last that many steps more.
        weight_decay: AdamW's. Successes are few and their windows alike: without much of it they are learned by heart.
        precision: of episodes, that the threshold shall reach on held-out data; early alarms count as false.
        alike: share of held-out successes that must count as like a success.
        min_positives: successful episodes that training needs; a quarter of that for each held-out part.
        width: of the hidden layers.
        depth: number of hidden layers.
        embedding: size of the embedding that is contrasted.
        contrast: weight of the contrastive loss.
        temperature: of the contrastive loss.
    """

    threshold: Tensor
    least: Tensor

    def __init__(
        self,
        feature_dim: int,
        *,
        window: Count = 5,
        width: Count = 128,
        depth: Count = 2,
        embedding: Count = 32,
        contrast: NonNegative = 0.1,
        temperature: Positive = 0.2,
        weight_decay: NonNegative = 1.0,
        precision: Fraction = 0.97,
        alike: Fraction = 0.98,
        min_positives: Count = 40,
    ) -> None:
        super().__init__()
        self.window, self.contrast, self.temperature = window, contrast, temperature
        self.weight_decay = weight_decay
        self.precision, self.alike, self.min_positives = precision, alike, min_positives
        sizes = {"window": window, "width": width, "depth": depth, "embedding": embedding}
        self.done, self.real = Lasting(feature_dim, **sizes), Lasting(feature_dim, **sizes)
        self.register_buffer("threshold", torch.tensor(torch.nan))  # on `done`; NaN until calibrated
        self.register_buffer("least", torch.tensor(-torch.inf))  # on `real`; −∞ until calibrated

    def forward(self, features: Tensor) -> Tensor:
        """Return scores [B] of features [B W+1 F]; the lowest score where they are unlike a success."""
        return self.window_score(self.frame_scores(features))

    def frame_scores(self, features: Tensor) -> Tensor:
        """Return scores [... 2] of single states' features [... F], the inputs of `window_score`."""
        return torch.stack([self.done.each(features)[0], self.real.each(features)[0]], dim=-1)

    def window_score(self, frame_scores: Tensor) -> Tensor:
        """Return scores [B] of windows from scores of their frames [B W+1 2]."""
        done, real = frame_scores.unbind(-1)
        return torch.where(self.real.lowest(real) >= self.least, self.done.lowest(done), _UNLIKE)

    def loss(self, features: Tensor, label: Tensor, mixed: Tensor) -> tuple[Tensor, Metrics]:
        """Loss of B labelled windows; `label` [B] is 1 where success held at the end. `mixed`: [M W+1 F], of successes
        and other windows."""
        score, embedding = self.done(features)
        entropy = F.binary_cross_entropy_with_logits(score, label)
        contrast = supervised_contrast(embedding, label, temperature=self.temperature) if self.contrast else entropy * 0
        seen = torch.cat([features[label > 0.5], mixed])
        real = torch.cat([torch.ones(len(seen) - len(mixed)), torch.zeros(len(mixed))]).to(score)
        unreal = F.binary_cross_entropy_with_logits(self.real(seen)[0], real) if len(seen) else entropy * 0
        right = ((score.detach() > 0) == (label > 0.5)).float().mean()
        metrics = {"success_entropy": float(entropy.detach()), "success_right": float(right),
                   "unlike_entropy": float(unreal.detach())}  # fmt: skip
        return entropy + self.contrast * contrast + unreal, metrics

    @torch.no_grad()
    def calibrate(self, successes: Tensor) -> None:
        """Calibrate the likeness to successes on held-out ones, features [S W+1 F]."""
        self.least.copy_(torch.quantile(self.real(successes)[0], 1.0 - self.alike))

    def check_enough(self, positives: dict[str, int]) -> None:
        """Raise DataError unless the parts of the data ("train", "calibration", "validation") have enough successes."""
        needed = {part: self.min_positives if part == "train" else -(-self.min_positives // 4) for part in positives}
        short = {part: n for part, n in positives.items() if n < needed[part]}
        if short:
            said = ", ".join(f"{needed[part]} for {part} (found {n})" for part, n in short.items())
            raise DataError(
                f"too few successful episodes to learn what success is: needed {said}. Record more episodes that "
                "succeed, change loop.holdout, or lower loop.success.min_positives and read the report with care."
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


class EpisodeScores(NamedTuple):
    """Highest scores of E episodes, before success first held and since; −∞ where there is no such frame."""

    before: Tensor  # [E]; of a failure: of the whole episode
    since: Tensor  # [E]; the frame where success first held counts here; −∞ of a failure
    success: Tensor  # [E] bool


@dataclass(frozen=True)
class SuccessVerdict:
    """Alarms in E episodes by a threshold on their scores. An alarm is right from the first success on."""

    threshold: float
    precision: float  # share of episodes with an alarm whose first alarm is right
    early: float  # share of episodes with an alarm that succeed after their first alarm
    recall: float  # share of successful episodes whose first alarm is right
    predicted: float  # share of episodes with an alarm
    actual: float
    episodes: int
    positives: int


def verdict(scores: EpisodeScores, threshold: float) -> SuccessVerdict:
    """Compute precision and recall over episodes; an alarm before the true success counts as a false one."""
    before, since = scores.before > threshold, scores.since > threshold
    alarms, positives, n = int((before | since).sum()), int(scores.success.sum()), len(before)
    hits = int((since & ~before).sum())
    return SuccessVerdict(
        threshold,
        precision=hits / max(1, alarms),
        early=int((before & scores.success).sum()) / max(1, alarms),
        recall=hits / max(1, positives),
        predicted=alarms / max(1, n),
        actual=positives / max(1, n),
        episodes=n,
        positives=positives,
    )


def choose_threshold(scores: EpisodeScores, precision: float) -> float:
    """Return the threshold between two scores with the highest recall among those that reach `precision`.

    Where none reaches it, the one with the highest precision.
    """
    edges = torch.cat([scores.before, scores.since]).double()
    edges = edges[edges > -torch.inf].unique()
    middle = torch.cat([edges[:1] - 1.0, (edges[1:] + edges[:-1]) / 2])
    found = [verdict(scores, float(t)) for t in middle]
    good = [v for v in found if v.precision >= precision and v.recall > 0] or [
        v for v in found if v.precision == max(f.precision for f in found)
    ]
    most = [v.threshold for v in good if v.recall == max(g.recall for g in good)]
    return most[len(most) // 2]
