"""Behaviour cloning: minimise the policy's own imitation loss."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from robopolicy.config.schema import Count, Decay, Fraction, Natural, NonNegative, Positive
from robopolicy.core.errors import ConfigError, RobopolicyError, closest
from robopolicy.core.types import Metrics
from robopolicy.policies.base import Policy
from robopolicy.utils import ranks
from robopolicy.utils.ema import EMA
from robopolicy.utils.optim import cosine_with_warmup, decay_groups, load_optimizer_state, optimizer_state


class BC:
    """AdamW with warm-up, cosine decay, gradient clipping and a moving average of the weights.

    `policy` is the average, for evaluation, saving and deployment. `model` is the network that gradients change.
    Several ranks learn parts of the batch each (see utils.ranks).

    Args:
        policy: trained in place (it becomes `model`).
        steps: updates until the learning rate reaches zero; the loop's number of steps.
        warmup: updates over which the learning rate rises linearly.
        part_decay: {name of a module of the policy: its weight decay}.
        clip_norm: bound of the gradient's global norm.
        ema_decay, ema_power: largest decay of the moving average, and the power of its growth, see EMA.
        lr: learning rate after the warm-up.
        betas: AdamW's.
        weight_decay: AdamW's.

    Raises:
        ConfigError: a policy that is not trained by imitation, or unknown or overlapping parts.
    """

    across_ranks = True

    def __init__(
        self,
        policy: Policy,
        *,
        steps: Count,
        lr: Positive = 1e-3,
        warmup: Natural = 100,
        betas: tuple[Decay, Decay] = (0.9, 0.99),
        weight_decay: NonNegative = 1e-4,
        part_decay: Mapping[str, NonNegative] | None = None,
        clip_norm: Positive = 1.0,
        ema_decay: Fraction = 0.999,
        ema_power: Positive = 0.75,
    ) -> None:
        _check_imitable(policy)
        self.model = policy.train()
        self.ema = EMA(policy, decay=ema_decay, power=ema_power)
        self.policy = cast(Policy, self.ema.average)
        self.steps, self.lr, self.warmup, self.clip_norm = steps, lr, warmup, clip_norm
        parts = {name: list(module.parameters()) for name, module in _parts(policy, part_decay or {}).items()}
        apart = {p for parameters in parts.values() for p in parameters}
        groups = decay_groups((p for p in policy.parameters() if p not in apart), weight_decay)
        for name, parameters in parts.items():
            groups += decay_groups(parameters, (part_decay or {})[name])
        self.parameters = [p for group in groups for p in group["params"]]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, fused=True)
        self.updates = 0

    def update(self, batch: dict[str, Any]) -> Metrics:
        """Take one gradient step on a batch {key: [B To ...], "action": [B H Da], "action_is_pad": [B H]}.

        Raises:
            RobopolicyError: the loss or its gradient is not finite; the weights are unchanged.
        """
        lr = self.lr * cosine_with_warmup(self.updates, steps=self.steps, warmup=self.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        loss, metrics = self.loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        numbers = loss.detach()[None]
        if ranks.count() > 1:
            numbers = torch.cat([numbers, numbers.new_tensor(list(metrics.values()))])
            numbers = ranks.average_gradients(self.parameters, numbers, self.loss_items(batch))
            metrics = dict(zip(metrics, numbers[1:].tolist(), strict=True))
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        value, size = torch.stack([numbers[0], norm]).tolist()
        if not math.isfinite(value + size):
            raise RobopolicyError(
                f"BC: loss {value} and gradient norm {size} at update {self.updates} are not both finite. "
                "Was the normaliser fitted? Else check the data for NaN, or lower lr."
            )
        self.optimizer.step()
        self.ema.update(self.updates)
        self.updates += 1
        return {"loss": value, "grad_norm": size, "lr": lr, **metrics}

    def loss(self, batch: dict[str, Any]) -> tuple[Tensor, Metrics]:
        """Compute what is minimised [], and further numbers to log."""
        return self.model.loss(batch)

    def loss_items(self, batch: dict[str, Any]) -> int:
        """Count the items of `batch` whose mean `loss` is."""
        return self.model.loss_items(batch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "average": self.policy.state_dict(),
            "optimizer": optimizer_state(self.optimizer),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.policy.load_state_dict(state["average"])
        load_optimizer_state(self.optimizer, state["optimizer"])
        self.updates = int(state["updates"])


def _check_imitable(policy: Policy) -> None:
    """Raise ConfigError for a policy that is not trained by imitation."""
    kind, reason = type(policy), ""
    if getattr(policy, "base", None) is not None:
        reason = "corrects a base, and learns by reinforcement"
    elif getattr(policy, "finetuned_steps", 0):
        reason = "has a fine-tuned copy of its denoiser, and learns by reinforcement"
    elif kind.loss is Policy.loss:
        reason = "has no imitation loss"
    if reason:
        raise ConfigError(
            f"policy: expected one that is trained by imitation, found a {kind.__name__}, which {reason}. Set "
            "policy=<diffusion, flow, gaussian, mixture or vla>, or choose another algo for it."
        )


def _parts(policy: Policy, names: Iterable[str]) -> dict[str, nn.Module]:
    """Return the modules of `policy` by name.

    Raises:
        ConfigError: one is unknown, or lies in another one.
    """
    modules, chosen = dict(policy.named_modules()), list(names)
    for name in chosen:
        if not name or name not in modules:
            raise ConfigError(
                f"algo.part_decay.{name}: expected a module of the policy, found none of this name. "
                f"{closest(name, [known for known in modules if known])}"
            )
        if outer := next((other for other in chosen if name.startswith(f"{other}.")), None):
            raise ConfigError(
                f"algo.part_decay.{name}: expected parts that do not overlap, and it lies in {outer}. Remove one."
            )
    return {name: modules[name] for name in chosen}
