"""Learn V(observation) as an expectile of Q over recorded chunks (IQL, Kostrikov et al. 2021, arXiv 2110.06169)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from robopolicy.networks.critics import CriticEnsemble
from robopolicy.utils.optim import load_optimizer_state, optimizer_state


class ExpectileValue:
    """The τ-expectile of Q over the chunks that were executed at similar observations.

    τ = 0.5 is their mean, τ towards 1 the best of them. Q of a chunk that was never executed is not read, so errors
    of Q there do not spread: targets need no sample of the policy.

    Args:
        network: reads the encoded observation alone. expectile: τ. lr: of Adam.
    """

    def __init__(self, network: CriticEnsemble, *, expectile: float, lr: float) -> None:
        self.network, self.expectile = network, expectile
        self.params = list[Tensor](network.parameters())
        self.optim = torch.optim.Adam(self.params, lr=lr, fused=True)

    @torch.no_grad()
    def __call__(self, cond: Tensor) -> Tensor:
        """Compute V [B] of cond [B C], the mean over heads."""
        return self.network(cond, cond[:, :0]).mean(dim=0)

    def loss(self, cond: Tensor, q: Tensor) -> Tensor:
        """Compute the asymmetric squared error [] of cond [B C] and Q [B] of the executed chunks, summed over heads."""
        gap = q - self.network(cond, cond[:, :0])  # [E B]
        return (torch.where(gap > 0, self.expectile, 1.0 - self.expectile) * gap.square()).mean(dim=1).sum()

    def state_dict(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "optim": optimizer_state(self.optim)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        load_optimizer_state(self.optim, state["optim"])
