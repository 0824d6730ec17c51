"""Bring an RL algorithm: TD3 (Fujimoto et al. 2018) on a residual, compared with `algo=residual` over seeds."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import robopolicy as rp
from robopolicy.buffers.replay_buffer import Batch
from robopolicy.config.registry import register
from robopolicy.core.types import BASE_ACTION, Obs
from robopolicy.networks.critics import CriticEnsemble
from robopolicy.policies.residual import ResidualPolicy


@register("algo", "plain_td3")  # the name in configs
class PlainTD3:
    """TD3 on the residual of `policy`.

    Args:
        critic: makes the ensemble of Q-functions; called as critic(in_dim).
        noise: standard deviation of exploration, in units of u.
        tau: rate at which the target follows. policy_delay: critic updates per actor update.
        lr: learning rate of all networks.
    """

    def __init__(
        self, policy: ResidualPolicy, *, critic: Callable[..., CriticEnsemble], noise: float = 0.15, tau: float = 0.01,
        policy_delay: int = 2, lr: float = 3e-4, seed: int = 0,
    ) -> None:  # fmt: skip
        self.policy, self.noise, self.tau, self.policy_delay = policy, noise, tau, policy_delay
        self.critic = critic(policy.net[0].in_features).to(policy.low.device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optim = torch.optim.Adam(policy.net.parameters(), lr=lr)
        self.critic_optim = torch.optim.Adam(self.critic.parameters(), lr=lr)
        self.generator, self.updates = torch.Generator().manual_seed(seed), 0

    @torch.no_grad()
    def explore(self, obs: Obs, *, warmup: bool) -> Tensor:
        """Return actions [N Da] in physical units for the replay features `obs` [N ...]."""
        state, base = self.policy.features(obs)
        noise = self.noise * torch.randn(base.shape, generator=self.generator).to(base)
        u = noise if warmup else self.policy.residual(state, base) + noise
        full = self.policy.combine(base, u.clamp(-1.0, 1.0))
        return self.policy.normalizer.unnormalize("action", full).to(obs[BASE_ACTION].device)

    def update(self, batch: Batch, *, learned_steps: int | None) -> dict[str, Any]:
        """Learn from a batch; where `learned_steps` is None, the critic alone. Returns metrics to log."""
        self.updates += 1
        batch = batch.to(self.policy.low.device)
        (state, base), action = (
            self.policy.features(batch.obs),
            self.policy.normalizer.normalize("action", batch.action),
        )
        with torch.no_grad():
            following, next_base = self.policy.features(batch.next_obs)
            next_action = self.policy.combine(next_base, self.policy.residual(following, next_base))
            y = batch.reward + batch.discount * self.target(following, next_action).amin(dim=0)  # [B]
        q = self.critic(state, action)  # [E B]
        loss = (q - y).square().mean(dim=1).sum()
        self._step(self.critic_optim, loss, self.critic)
        for slow, fast in zip(self.target.parameters(), self.critic.parameters(), strict=True):
            slow.data.lerp_(fast.data, self.tau)
        metrics = {"critic/loss": loss.detach(), "critic/q": q.detach().mean()}
        if learned_steps is not None and self.updates % self.policy_delay == 0:
            climbed = self.critic(state, self.policy.combine(base, self.policy.residual(state, base)))[0].mean()
            self._step(self.actor_optim, -climbed, self.policy.net)
            metrics["actor/q"] = climbed.detach()
        return metrics

    def _step(self, optimizer: torch.optim.Adam, loss: Tensor, network: nn.Module) -> None:
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next update depends on."""
        parts = {k: getattr(self, k).state_dict() for k in ("critic", "target", "actor_optim", "critic_optim")}
        policy, random = self.policy.net.state_dict(), self.generator.get_state()
        return {**parts, "policy": policy, "generator": random, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("critic", "target", "actor_optim", "critic_optim"):
            getattr(self, name).load_state_dict(state[name])
        self.policy.net.load_state_dict(state["policy"])
        self.generator.set_state(state["generator"])
        self.updates = int(state["updates"])


if __name__ == "__main__":  # `--allow own_rl_algorithm` imports this file, and trains nothing
    small = "--small" in sys.argv  # shows that it runs, and learns nothing
    common: dict[str, Any] = {"task": "pick", "dataset": "data/pick", "tracker": "local"}
    rp.demos("data/pick", task="pick", episodes=4 if small else 60, expert_noise=0.0 if small else 1.0, overwrite=True)
    rp.train("runs/bc", loop={"steps": 20 if small else 3_000}, **common)
    loop = {"total_steps": 1_600, "warmup_steps": 400, "critic_only_updates": 2} if small else {"total_steps": 15_000}
    algorithms, seeds = ("residual", "plain_td3"), range(1 if small else 3)
    for algo in algorithms:
        for seed in seeds:
            rp.train(
                f"runs/{algo}-s{seed}", algo=algo, base="runs/bc", seed=seed, loop=loop, **common,
                config_dir=Path(__file__).parent / "configs",
            )  # fmt: skip
    a, b = ([f"runs/{algo}-s{seed}" for seed in seeds] for algo in algorithms)
    rp.compare(a, b, episodes=10 if small else 300)
